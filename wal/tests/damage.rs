//! After any damage to a file, a prefix with every durable record comes back, or a refusal.

use wal::memory::Memory;
use wal::{Claim, Ending, Error, Reader, SEGMENT_HEADER_BYTES, record_bytes, segment_name};

use crate::harness::{Entry, append, change, prepare, read, recover, start};

/// A dead log of one segment: 8 records; the 6th and later show that 5 are durable.
struct Specimen {
    memory: Memory,
    entries: Vec<Entry>,
    /// The begin of each record, and the end of the last.
    offsets: Vec<usize>,
}

const DURABLE: usize = 5;
const RECORDS: usize = 8;

impl Specimen {
    fn new() -> Self {
        let memory = Memory::new();
        let (mut log, _) = start(&memory).unwrap();
        let mut offset = usize::try_from(SEGMENT_HEADER_BYTES).unwrap();
        let mut offsets = vec![offset];
        let mut entries = Vec::new();
        for n in 1..=RECORDS {
            let entry = Entry::numbered(n as u64, n * 9);
            append(&mut log, &entry).unwrap();
            offset += usize::try_from(record_bytes(n * 9)).unwrap();
            offsets.push(offset);
            entries.push(entry);
            if n == DURABLE {
                log.syncer.sync().unwrap();
            }
        }
        Self { memory, entries, offsets }
    }

    /// The record of the byte, from 0; none behind the last.
    fn record_at(&self, offset: usize) -> Option<usize> {
        (0..RECORDS).find(|&record| offset < self.offsets[record + 1])
    }

    /// A copy with the change.
    fn changed(&self, by: impl FnOnce(&mut Vec<u8>)) -> Memory {
        let memory = self.memory.kill();
        change(&memory, &segment_name(1), by);
        memory
    }
}

/// The place in a refusal, as (offset, sequence).
fn place(error: &Error) -> (u64, u64) {
    match error {
        Error::Damaged { place, .. }
        | Error::Header { place, .. }
        | Error::Version { place, .. }
        | Error::Order { place } => {
            assert_eq!(place.file, segment_name(1));
            (place.offset, place.sequence)
        }
        other => panic!("{other:?}"),
    }
}

/// Goal: no flipped byte loses a durable record, or yields a wrong one. Method: every byte of the
/// segment, one bit; every byte of the records, every bit; the outcome is predicted exactly.
#[test]
fn a_flip_anywhere_cuts_unsynced_records_or_refuses() {
    let specimen = Specimen::new();
    let end = specimen.offsets[RECORDS];
    for at in 0..specimen.memory.content(&segment_name(1)).unwrap().len() {
        let bits = if (4096..end + 8).contains(&at) { 0..8 } else { at % 8..at % 8 + 1 };
        for bit in bits {
            let memory = specimen.changed(|bytes| bytes[at] ^= 1 << bit);
            let recovered = recover(&memory, 0);
            let Some(record) = specimen.record_at(at) else {
                assert_eq!(recovered.unwrap(), specimen.entries, "byte {at} bit {bit}");
                assert!(matches!(read(&memory).unwrap().1, Ending::Torn(_)));
                continue;
            };
            let due = (specimen.offsets[record] as u64, record as u64 + 1);
            if at < 4096 {
                assert_eq!(place(&recovered.unwrap_err()), (0, 1), "byte {at} bit {bit}");
            } else if record < DURABLE {
                assert_eq!(place(&recovered.unwrap_err()), due, "byte {at} bit {bit}");
            } else {
                let recovered = recovered.unwrap();
                assert_eq!(recovered, specimen.entries[..record], "byte {at} bit {bit}");
                let refused = recover(&memory, record as u64 + 1).unwrap_err();
                assert_eq!(place(&refused), due);
            }
        }
    }
}

/// Goal: a write that stopped at any byte costs nothing durable. Method: zeros from every byte on;
/// then the same with the claim that everything was durable.
#[test]
fn a_write_torn_at_any_byte_recovers_the_records_before_it() {
    let specimen = Specimen::new();
    for at in 4096..specimen.offsets[RECORDS] + 16 {
        let memory = specimen.changed(|bytes| bytes[at..].fill(0));
        // A record that ends in zeros is whole without them.
        let whole = recover(&memory, 0).unwrap();
        let before = specimen.offsets.iter().filter(|&&offset| offset <= at).count() - 1;
        assert!(whole.len() >= before, "byte {at}: {} records", whole.len());
        assert_eq!(whole, specimen.entries[..whole.len()], "byte {at}");
        if whole.len() < RECORDS {
            let refused = recover(&memory, RECORDS as u64).unwrap_err();
            let due = (specimen.offsets[whole.len()] as u64, whole.len() as u64 + 1);
            assert_eq!(place(&refused), due, "byte {at}");
        }
    }
}

/// Goal: a file that became shorter is never taken for a clean or torn end. Method: cut at every
/// byte; a reader still shows every whole record before it refuses.
#[test]
fn a_file_cut_at_any_byte_is_refused() {
    let specimen = Specimen::new();
    let length = specimen.memory.content(&segment_name(1)).unwrap().len();
    for at in (0..specimen.offsets[RECORDS] + 16).chain([length - 1]) {
        let memory = specimen.changed(|bytes| bytes.truncate(at));
        let refused = recover(&memory, 0).unwrap_err();
        if at < 4096 {
            assert_eq!(place(&refused), (0, 1), "byte {at}");
            continue;
        }
        let whole = specimen.offsets.iter().filter(|&&offset| offset <= at).count() - 1;
        let due = (specimen.offsets[whole] as u64, whole as u64 + 1);
        assert_eq!(place(&refused), due, "byte {at}");
        let mut reader = Reader::open(memory, 0).unwrap();
        for _ in 0..whole {
            assert!(reader.next().unwrap().is_some(), "byte {at}");
        }
        let refused = match reader.next() {
            Ok(None) => reader.ending().unwrap_err(),
            Ok(Some(record)) => panic!("record {} at byte {at}", record.sequence),
            Err(error) => error,
        };
        assert_eq!(place(&refused), due, "byte {at}");
    }
}

#[test]
fn a_hole_is_cut_only_while_nothing_claims_it() {
    let specimen = Specimen::new();
    let [.., sixth, seventh, eighth, end] = specimen.offsets[..] else { panic!() };
    let hole = specimen.changed(|bytes| bytes[sixth..seventh].fill(0));
    assert_eq!(recover(&hole, 0).unwrap(), specimen.entries[..5]);
    let Ending::Torn(torn) = read(&hole).unwrap().1 else { panic!() };
    assert_eq!((torn.bytes, torn.records), ((end - sixth) as u64, 2));
    assert_eq!((torn.place.offset, torn.place.sequence), (sixth as u64, 6));

    let fifth = specimen.offsets[4];
    let hole = specimen.changed(|bytes| bytes[fifth..eighth].fill(0));
    let Error::Damaged { place, claim } = recover(&hole, 0).unwrap_err() else { panic!() };
    assert_eq!((place.offset, place.sequence), (fifth as u64, 5));
    assert_eq!(claim, Claim::Record { sequence: 8, durable: 5 });
}

#[test]
fn records_that_change_places_are_no_records() {
    let specimen = Specimen::new();
    let [.., sixth, seventh, eighth, end] = specimen.offsets[..] else { panic!() };
    let swapped = specimen.changed(|bytes| {
        let (six, seven) = (bytes[sixth..seventh].to_vec(), bytes[seventh..eighth].to_vec());
        bytes.splice(sixth..eighth, seven.into_iter().chain(six));
    });
    assert_eq!(recover(&swapped, 0).unwrap(), specimen.entries[..5]);
    let repeated = specimen.changed(|bytes| bytes.copy_within(seventh..eighth, end));
    assert_eq!(recover(&repeated, 0).unwrap(), specimen.entries);
}

/// Goal: bytes that an earlier recovery cut are never taken for damage, after any later claim.
/// Method: tear twice, go on each time, and tear a sealed tail's bytes as well.
#[test]
fn a_tail_cut_before_stays_cut() {
    let specimen = Specimen::new();
    let seventh = specimen.offsets[6];
    let memory = specimen.changed(|bytes| bytes[seventh] ^= 1);
    let mut model = specimen.entries[..6].to_vec();
    for segment in 2..5 {
        let (mut log, report) = start(&memory).unwrap();
        assert!(matches!(report.ending, Ending::Torn(_)), "{report:?}");
        assert_eq!((report.last, report.segment), (model.len() as u64, segment));
        for n in 0..3 {
            let entry = Entry::numbered(segment * 10 + n, 40);
            append(&mut log, &entry).unwrap();
            log.syncer.sync().unwrap();
            model.push(entry);
        }
        append(&mut log, &Entry::numbered(0, 100)).unwrap();
        drop(log);
        // The last record is torn again: its first byte.
        let at = 4096 + 3 * usize::try_from(record_bytes(40)).unwrap();
        change(&memory, &segment_name(segment), |bytes| bytes[at] ^= 1);
        assert_eq!(recover(&memory, model.len() as u64).unwrap(), model);
    }
    change(&memory, &segment_name(1), |bytes| bytes[seventh + 50] ^= 1);
    assert_eq!(recover(&memory, model.len() as u64).unwrap(), model);
}

#[test]
fn damage_in_a_sealed_segment_is_refused() {
    let memory = Memory::new();
    let (mut log, _) = start(&memory).unwrap();
    for n in 0..40 {
        prepare(&mut log).unwrap();
        append(&mut log, &Entry::numbered(n, 1000)).unwrap();
    }
    log.syncer.sync().unwrap();
    drop(log);
    // The last record of the first segment is claimed by nothing but the second one's header.
    let at = 4096 + 10 * usize::try_from(record_bytes(1000)).unwrap();
    change(&memory, &segment_name(1), |bytes| bytes[at] ^= 1);
    let Error::Damaged { place, claim } = recover(&memory, 0).unwrap_err() else { panic!() };
    assert_eq!((place.offset, place.sequence), (at as u64, 11));
    assert_eq!(claim, Claim::Header { segment: 2, last: 11 });
}

#[test]
fn a_clean_end_before_what_the_caller_knows_is_damage() {
    let specimen = Specimen::new();
    assert_eq!(recover(&specimen.memory.kill(), RECORDS as u64).unwrap().len(), RECORDS);
    let refused = recover(&specimen.memory.kill(), RECORDS as u64 + 1).unwrap_err();
    let Error::Damaged { place, claim } = refused else { panic!() };
    assert_eq!(place.sequence, RECORDS as u64 + 1);
    assert_eq!(claim, Claim::Caller(RECORDS as u64 + 1));
    assert!(matches!(recover(&Memory::new(), 1), Err(Error::Missing { .. })));
}
