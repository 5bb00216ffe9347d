//! A cut leaves exactly the records before it, after any damage behind it and a crash at any
//! moment.

use wal::cut::{Cause, Survey, finish, unfinished};
use wal::memory::Memory;
use wal::{Error, Medium, SEGMENT_HEADER_BYTES, Sequence, record_bytes, segment_name};

use crate::harness::{Dice, Entry, IDENTITY, append, change, prepare, read, recover, start};

const RECORDS: u64 = 30;
/// Eleven records per segment.
const PAYLOAD_BYTES: usize = 1_000;

/// A dead log of three segments. Every record is durable, and the next one claims so.
fn specimen() -> (Memory, Vec<Entry>) {
    let memory = Memory::new();
    let (mut log, _) = start(&memory).unwrap();
    let entries: Vec<Entry> = (1..=RECORDS).map(|n| Entry::numbered(n, PAYLOAD_BYTES)).collect();
    for entry in &entries {
        prepare(&mut log).unwrap();
        append(&mut log, entry).unwrap();
        log.syncer.sync().unwrap();
    }
    drop(log);
    let names = memory.list().unwrap();
    assert_eq!(names.iter().filter(|name| name.starts_with("segment-")).count(), 3);
    (memory, entries)
}

/// The segment of a record of [`specimen`], and its begin there.
fn place(sequence: Sequence) -> (String, usize) {
    let index = sequence - 1;
    let offset = SEGMENT_HEADER_BYTES + index % 11 * record_bytes(PAYLOAD_BYTES);
    (segment_name(index / 11 + 1), usize::try_from(offset).unwrap())
}

/// Cuts; an error ends it.
fn cut_at(memory: &Memory, from: Sequence) -> Result<(), Error> {
    let lock = memory.lock()?;
    let mut survey = Survey::open(memory.clone(), 0, Some(IDENTITY))?;
    assert!(survey.go_before(from)?, "record {from} is not due: {survey:?}");
    let cut = survey.cut()?.expect("something to go on with");
    cut.carry_out(&lock)?;
    finish(memory, &lock)
}

/// Asserts that a log holds `entries`, and that a start can continue it.
fn assert_holds(memory: &Memory, entries: &[Entry]) {
    assert_eq!(recover(memory, entries.len() as u64).unwrap(), entries);
    let mut survey = Survey::open(memory.clone(), 0, None).unwrap();
    assert!(survey.go_before(entries.len() as u64 + 1).unwrap());
    assert_eq!(survey.cut().unwrap().expect("a log").files(), Vec::<String>::new());
    let (mut log, report) = start(memory).unwrap();
    assert_eq!(report.last, entries.len() as u64);
    let entry = Entry::numbered(99, 10);
    append(&mut log, &entry).unwrap();
    log.syncer.sync().unwrap();
    drop(log);
    let (found, _) = read(memory).unwrap();
    assert_eq!(found.len(), entries.len() + 1);
    assert_eq!((&found[..entries.len()], &found[entries.len()]), (entries, &entry));
}

/// Goal: after a cut exactly the records before it are left. Method: a whole log is cut at every
/// record, and behind the last.
#[test]
fn a_log_cut_at_any_record_recovers_to_the_one_before() {
    let (specimen, entries) = specimen();
    for from in 1..=RECORDS + 1 {
        let memory = specimen.kill();
        cut_at(&memory, from).unwrap();
        let kept = usize::try_from(from - 1).unwrap();
        assert_holds(&memory, &entries[..kept]);
        // A caller's claim from before the cut still holds.
        if from <= RECORDS {
            let memory = specimen.kill();
            cut_at(&memory, from).unwrap();
            assert!(matches!(recover(&memory, from), Err(Error::Damaged { .. })), "{from}");
        }
    }
}

/// Goal: the survey finds the first bad record, and every other readable one; the cut there opens
/// the log again. Method: one bit of each record in turn.
#[test]
fn a_damaged_record_ends_the_survey_and_hides_nothing_else() {
    let (specimen, entries) = specimen();
    for bad in 1..=RECORDS {
        let memory = specimen.kill();
        let (name, offset) = place(bad);
        change(&memory, &name, |bytes| bytes[offset + 50] ^= 1);
        let mut survey = Survey::open(memory.clone(), 0, None).unwrap();
        while survey.next().unwrap().is_some() {}
        let stop = survey.stop().expect("the end");
        assert_eq!((stop.place.sequence, stop.place.offset), (bad, offset as u64));
        assert_eq!(stop.place.file, name);
        // Nothing claims the very last one.
        let torn = matches!(stop.cause, Cause::Torn(_));
        assert!(torn == (bad == RECORDS) && !matches!(stop.cause, Cause::End), "{stop:?}");
        let mut rest = survey.rest();
        let mut found = Vec::new();
        while let Some(record) = rest.next().unwrap() {
            let index = usize::try_from(record.sequence - 1).unwrap();
            assert_eq!(record.payload, entries[index].payload);
            found.push(record.sequence);
        }
        assert_eq!(found, (bad + 1..=RECORDS).collect::<Vec<_>>());
        cut_at(&memory, bad).unwrap();
        assert_holds(&memory, &entries[..usize::try_from(bad - 1).unwrap()]);
    }
}

/// A loss of whole segments: the first unreadable sequence, the count of readable records from
/// there on, and the change.
type Loss = (Sequence, u64, fn(&Memory));

#[test]
fn headers_lengths_and_whole_segments_may_be_lost() {
    let losses: [Loss; 6] = [
        (1, 30, |memory| change(memory, &segment_name(1), |bytes| bytes[20] ^= 1)),
        (12, 19, |memory| change(memory, &segment_name(2), |bytes| bytes[20] ^= 1)),
        (23, 0, |memory| change(memory, &segment_name(3), |bytes| bytes.fill(0))),
        (12, 8, |memory| memory.remove(&segment_name(2)).unwrap()),
        (13, 8, |memory| change(memory, &segment_name(2), |bytes| bytes.truncate(4096 + 1_050))),
        (31, 0, |memory| change(memory, &segment_name(3), |bytes| bytes.truncate(16_000))),
    ];
    for (bad, readable, lose) in losses {
        let (memory, entries) = specimen();
        lose(&memory);
        let mut survey = Survey::open(memory.clone(), 0, Some(IDENTITY)).unwrap();
        assert_eq!(survey.identity(), Some(IDENTITY));
        while survey.next().unwrap().is_some() {}
        let stop = survey.stop().expect("the end");
        assert!(matches!(stop.cause, Cause::Damage(_)), "{stop:?}");
        assert_eq!(stop.place.sequence, bad, "{stop:?}");
        // Records under an unreadable header are still read.
        let mut rest = survey.rest();
        let mut count = 0;
        while rest.next().unwrap().is_some() {
            count += 1;
        }
        assert_eq!(count, readable, "{bad}");
        cut_at(&memory, bad).unwrap();
        assert_holds(&memory, &entries[..usize::try_from(bad - 1).unwrap()]);
    }
}

#[test]
fn a_log_of_which_no_header_is_left_is_cut_only_by_who_knows_it() {
    let (memory, _) = specimen();
    for number in 1..=3 {
        change(&memory, &segment_name(number), |bytes| bytes[..4096].fill(7));
    }
    let mut survey = Survey::open(memory.clone(), 0, None).unwrap();
    assert_eq!((survey.identity(), survey.cut().unwrap().is_none()), (None, true));
    cut_at(&memory, 1).unwrap();
    assert_holds(&memory, &[]);
    // Without its first segment it has no beginning.
    let (memory, _) = specimen();
    memory.remove(&segment_name(1)).unwrap();
    change(&memory, &segment_name(2), |bytes| bytes[..4096].fill(7));
    let mut survey = Survey::open(memory, 0, Some(IDENTITY)).unwrap();
    assert!(survey.cut().unwrap().is_none());
}

/// Goal: after a kill or a power cut at any moment of a cut, a start finds the old log, a refusal
/// that names the cut, or the wanted log; the same cut again finishes it. Method: every operation
/// in turn is the last one. Then the process is killed, or the power is cut and a random part of
/// the unsynced bytes survives.
#[test]
fn a_cut_that_dies_anywhere_is_finished_by_the_same_cut() {
    let (specimen, entries) = specimen();
    for (from, damaged) in [(5, true), (12, false), (20, true), (20, false), (1, true)] {
        let kept = usize::try_from(from - 1).unwrap();
        let mut finished = false;
        for operations in 0.. {
            for survives in 0..4 {
                let memory = specimen.kill();
                if damaged {
                    let (name, offset) = place(from);
                    change(&memory, &name, |bytes| bytes[offset + 50] ^= 1);
                }
                memory.stop_after(operations);
                finished = cut_at(&memory, from).is_ok();
                let mut dice = Dice(operations * 4 + survives);
                let memory = match survives {
                    0 => memory.kill(),
                    _ => memory.crash(|| dice.coin()),
                };
                match (unfinished(&memory).unwrap(), recover(&memory, 0)) {
                    (Some(at), Err(Error::Unfinished { from: said })) => {
                        assert!(at == from && said == from && !finished, "{at} {said}");
                    }
                    (None, Err(Error::Damaged { place, .. })) => {
                        assert!(damaged && !finished && place.sequence == from, "{place}");
                    }
                    (None, Ok(found)) if found.len() == kept => assert_eq!(found, entries[..kept]),
                    (None, Ok(found)) => assert!(!damaged && !finished && found == entries),
                    other => panic!("after {operations} operations: {other:?}"),
                }
                cut_at(&memory, from).unwrap();
                assert_holds(&memory, &entries[..kept]);
            }
            if finished {
                break;
            }
        }
        assert!(finished);
    }
}

#[test]
fn a_full_disk_stops_a_cut_and_changes_nothing_that_counts() {
    let (memory, entries) = specimen();
    memory.limit_space(Some(0));
    let refused = cut_at(&memory, 20).unwrap_err();
    assert!(matches!(refused, Error::Space { .. }), "{refused:?}");
    memory.limit_space(None);
    assert_eq!(recover(&memory, RECORDS).unwrap(), entries);
    cut_at(&memory, 20).unwrap();
    assert_holds(&memory, &entries[..19]);
}
