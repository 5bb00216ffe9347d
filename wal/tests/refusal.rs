//! Segments that do not belong together are refused.

use wal::memory::Memory;
use wal::{Error, Identity, Medium, Recovery, segment_name};

use crate::harness::{Entry, IDENTITY, SMALL, append, change, prepare, recover, start};

/// A dead log of four segments with eleven records each, all durable.
fn four_segments(identity: Identity, salt: u64) -> Memory {
    let memory = Memory::new();
    let (mut log, _) =
        Recovery::open(memory.clone(), 0, 0).unwrap().start(identity, SMALL).unwrap();
    for n in 0..44 {
        prepare(&mut log).unwrap();
        append(&mut log, &Entry::numbered(n + salt, 1000)).unwrap();
        log.syncer.sync().unwrap();
    }
    drop(log);
    memory
}

/// Replaces one segment by the segment of that number in `from`.
fn replace(memory: &Memory, from: &Memory, number: u64) {
    memory.put(&segment_name(number), from.content(&segment_name(number)).unwrap());
}

#[test]
fn a_missing_segment_is_refused_by_name() {
    for number in 1..4 {
        let memory = four_segments(IDENTITY, 0);
        memory.remove(&segment_name(number)).unwrap();
        let Error::Missing { place } = recover(&memory, 0).unwrap_err() else { panic!() };
        assert_eq!(place.file, segment_name(number));
        assert_eq!(place.sequence, number * 11);
    }
    // No part of the log names its last segment; the caller does.
    let memory = four_segments(IDENTITY, 0);
    memory.remove(&segment_name(4)).unwrap();
    let Error::Damaged { place, .. } = recover(&memory, 44).unwrap_err() else { panic!() };
    assert_eq!((place.file, place.sequence), (segment_name(3), 34));
}

/// The log's identity is known before anything is read, a claim of durability can be added later,
/// and every record read is counted.
#[test]
fn a_log_names_itself_counts_its_records_and_hears_a_late_claim() {
    assert_eq!(Recovery::open(Memory::new(), 0, 0).unwrap().identity(), None);
    let memory = four_segments(IDENTITY, 0);
    let recovery = Recovery::open(memory.clone(), 0, 0).unwrap();
    assert_eq!(recovery.identity(), Some(IDENTITY));
    drop(recovery);
    for (claimed, sound) in [(43, true), (44, true), (45, false)] {
        let mut recovery = Recovery::open(memory.clone(), 0, 0).unwrap();
        recovery.claim(claimed);
        match recovery.start(IDENTITY, SMALL) {
            Ok((_, report)) => assert_eq!((report.records, sound), (44, true)),
            Err(Error::Damaged { place, .. }) => assert_eq!((place.sequence, sound), (45, false)),
            Err(error) => panic!("{error:?}"),
        }
    }
}

#[test]
fn a_foreign_segment_is_refused() {
    let (memory, other) = (four_segments(IDENTITY, 0), four_segments(Identity(7), 0));
    replace(&memory, &other, 3);
    let Error::Foreign { place, found, expected } = recover(&memory, 0).unwrap_err() else {
        panic!()
    };
    assert_eq!((place.file, place.sequence), (segment_name(3), 12));
    assert_eq!((found, expected), (Identity(7), IDENTITY));
}

#[test]
fn a_log_of_another_identity_is_not_started() {
    let memory = four_segments(Identity(7), 0);
    let Error::Foreign { found, .. } = start(&memory).unwrap_err() else { panic!() };
    assert_eq!(found, Identity(7));
}

#[test]
fn a_segment_of_another_history_is_refused() {
    let (memory, other) = (four_segments(IDENTITY, 0), four_segments(IDENTITY, 1));
    replace(&memory, &other, 3);
    let Error::Chain { place } = recover(&memory, 0).unwrap_err() else { panic!() };
    assert_eq!((place.file, place.sequence), (segment_name(3), 23));
}

#[test]
fn swapped_segments_are_refused() {
    let memory = four_segments(IDENTITY, 0);
    let second = memory.content(&segment_name(2)).unwrap();
    memory.put(&segment_name(2), memory.content(&segment_name(3)).unwrap());
    memory.put(&segment_name(3), second);
    let Error::Order { place } = recover(&memory, 0).unwrap_err() else { panic!() };
    assert_eq!(place.file, segment_name(2));
}

/// An older copy of a segment, restored beside a newer one that was cut earlier, holds a valid
/// record that contradicts its successor.
#[test]
fn a_record_behind_the_last_that_the_successor_names_is_refused() {
    let memory = four_segments(IDENTITY, 0);
    let whole = memory.content(&segment_name(4)).unwrap();
    // A recovery cuts the last record, and goes on in the fifth segment.
    change(&memory, &segment_name(4), |bytes| bytes[4096 + 10 * 1040] ^= 1);
    let (_, report) = start(&memory).unwrap();
    assert_eq!((report.last, report.segment), (43, 5));
    memory.put(&segment_name(4), whole);
    let Error::Order { place } = recover(&memory, 0).unwrap_err() else { panic!() };
    assert_eq!((place.file, place.offset, place.sequence), (segment_name(4), 4096 + 10 * 1040, 44));
}

#[test]
fn an_unknown_version_is_refused() {
    let memory = four_segments(IDENTITY, 0);
    change(&memory, &segment_name(2), |bytes| bytes[12] = 2);
    let Error::Version { place, found } = recover(&memory, 0).unwrap_err() else { panic!() };
    assert_eq!((place.file, found), (segment_name(2), 2));
}

#[test]
fn a_name_that_only_looks_like_a_segment_is_refused() {
    for name in ["segment-5.wal", "segment-00000000000000AA.wal", "segment-0000000000000000.wal"] {
        let memory = four_segments(IDENTITY, 0);
        memory.put(name, memory.content(&segment_name(4)).unwrap());
        let Error::Order { place } = recover(&memory, 0).unwrap_err() else { panic!() };
        assert_eq!(place.file, name);
    }
    let memory = four_segments(IDENTITY, 0);
    memory.put("snapshot-1", vec![1]);
    assert_eq!(recover(&memory, 44).unwrap().len(), 44);
}

#[test]
fn a_start_may_skip_whole_segments_and_no_others() {
    let memory = four_segments(IDENTITY, 0);
    let (mut log, _) =
        Recovery::open(memory.clone(), 0, 24).unwrap().start(IDENTITY, SMALL).unwrap();
    assert_eq!(log.preparer.remove_before(24).unwrap(), 2);
    assert_eq!(log.preparer.remove_before(24).unwrap(), 0);
    drop(log);
    for (from, first) in [(23, 23), (24, 24), (33, 33), (34, 34), (44, 44)] {
        let mut recovery = Recovery::open(memory.clone(), 44, from).unwrap();
        let record = recovery.next().unwrap().unwrap();
        assert_eq!(
            (record.sequence, record.payload),
            (first, &*Entry::numbered(first - 1, 1000).payload)
        );
        let (_, report) = recovery.start(IDENTITY, SMALL).unwrap();
        assert_eq!(report.last, 44);
    }
    let mut nothing_left = Recovery::open(memory.clone(), 0, 45).unwrap();
    assert!(nothing_left.next().unwrap().is_none());
    drop(nothing_left);
    // A caller with a snapshot of 45 records knows that there were 45.
    let mut ahead = Recovery::open(memory.clone(), 0, 46).unwrap();
    assert!(matches!(ahead.next(), Err(Error::Damaged { .. })));
    drop(ahead);
    let Error::Missing { place } = Recovery::open(memory, 0, 22).unwrap_err() else { panic!() };
    assert_eq!((place.file, place.sequence), (segment_name(2), 22));
}
