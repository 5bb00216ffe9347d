//! A failing medium stops the log; the log waits if nothing is lost.

use wal::memory::{Fault, Memory};
use wal::{
    Error, Medium, Options, PAYLOAD_BYTES_MAX, Progress, RECORD_BYTES_MAX, Recovery,
    SEGMENT_BYTES_MIN, SEGMENT_HEADER_BYTES, record_bytes, segment_name,
};

use crate::harness::{Entry, IDENTITY, SMALL, append, prepare, recover, start};

/// Goal: after a failed sync no more records count as durable, and recovery trusts the disk, not
/// the page cache. Method: the failing sync leaves its pages clean and unwritten, as Linux does.
#[test]
fn a_failed_sync_poisons_the_log_for_ever() {
    let memory = Memory::new();
    let (mut log, _) = start(&memory).unwrap();
    append(&mut log, &Entry::numbered(1, 10)).unwrap();
    log.syncer.sync().unwrap();
    append(&mut log, &Entry::numbered(2, 10)).unwrap();
    memory.fail(Fault::Sync);
    assert!(matches!(log.syncer.sync(), Err(Error::Sync { .. })));
    for _ in 0..3 {
        assert!(matches!(log.syncer.sync(), Err(Error::Poisoned)));
        assert!(matches!(append(&mut log, &Entry::numbered(3, 10)), Err(Error::Poisoned)));
        assert!(matches!(log.preparer.tick(), Err(Error::Poisoned)));
    }
    assert_eq!((log.durable.durable(), log.durable.poisoned()), (1, true));
    assert_eq!(recover(&memory.kill(), 1).unwrap(), [Entry::numbered(1, 10)]);
}

#[test]
fn a_segment_that_cannot_be_named_poisons_the_log() {
    for fault in [Fault::Sync, Fault::Rename, Fault::SyncDirectory] {
        let memory = Memory::new();
        let (mut log, _) = start(&memory).unwrap();
        prepare(&mut log).unwrap();
        for n in 0..15 {
            append(&mut log, &Entry::numbered(n, 1000)).unwrap();
        }
        memory.fail(fault);
        assert!(matches!(log.syncer.sync(), Err(Error::Sync { .. })), "{fault:?}");
        assert!(matches!(log.syncer.sync(), Err(Error::Poisoned)), "{fault:?}");
        assert_eq!(log.durable.durable(), 0);
        recover(&memory.kill(), 0).unwrap();
        recover(&memory.crash(|| false), 0).unwrap();
    }
}

#[test]
fn a_failure_that_is_not_for_space_poisons_the_preparer() {
    let memory = Memory::new();
    let (mut log, _) = start(&memory).unwrap();
    append(&mut log, &Entry::numbered(1, 10)).unwrap();
    memory.fail(Fault::Prefault);
    // The first segment is pre-faulted; the spares are not.
    let error = loop {
        match log.preparer.tick() {
            Ok(_) => {}
            Err(error) => break error,
        }
    };
    assert!(matches!(error, Error::Prepare { .. }), "{error:?}");
    assert!(matches!(log.syncer.sync(), Err(Error::Poisoned)));
}

/// Goal: a full disk is an answer, not a crash, and passes. Method: space for the first segment and
/// one spare; append until full; free space; go on.
#[test]
fn a_full_disk_is_waited_for() {
    let memory = Memory::new();
    memory.limit_space(Some(2 * SEGMENT_BYTES_MIN));
    let (mut log, _) = start(&memory).unwrap();
    assert_eq!(log.preparer.tick().unwrap(), Progress::Busy);
    let mut appended = 0;
    let full = loop {
        assert!(matches!(log.preparer.tick(), Err(Error::Space { .. })));
        match append(&mut log, &Entry::numbered(appended + 1, 1000)) {
            Ok(sequence) => appended = sequence,
            Err(error) => break error,
        }
    };
    assert!(matches!(full, Error::Full));
    assert_eq!(log.syncer.sync().unwrap(), appended);
    assert_eq!(memory.list().unwrap(), [segment_name(1), segment_name(2)]);

    memory.limit_space(None);
    prepare(&mut log).unwrap();
    assert_eq!(append(&mut log, &Entry::numbered(appended + 1, 1000)).unwrap(), appended + 1);
    assert_eq!(log.syncer.sync().unwrap(), appended + 1);
    let recovered = recover(&memory.crash(|| false), appended + 1).unwrap();
    let model: Vec<Entry> = (1..=appended + 1).map(|n| Entry::numbered(n, 1000)).collect();
    assert_eq!(recovered, model);
}

#[test]
fn a_full_disk_at_the_start_refuses_and_changes_nothing() {
    let memory = Memory::new();
    memory.limit_space(Some(SEGMENT_BYTES_MIN - 1));
    assert!(matches!(start(&memory), Err(Error::Space { .. })));
    memory.limit_space(None);
    assert_eq!(start(&memory).unwrap().1.last, 0);
}

/// Goal: the engine may rely on `room` to refuse work in time. Method: fill to the last byte by
/// records of every length, and check the promise at every step.
#[test]
fn room_is_never_promised_in_vain() {
    for payload in [0, 1, 500, 1000, PAYLOAD_BYTES_MAX] {
        let memory = Memory::new();
        let (mut log, _) = start(&memory).unwrap();
        prepare(&mut log).unwrap();
        let waste = RECORD_BYTES_MAX as u64 - 8;
        let fresh = SEGMENT_BYTES_MIN - SEGMENT_HEADER_BYTES;
        assert_eq!(log.writer.room(), 3 * fresh - 2 * waste);
        let bytes = record_bytes(payload);
        loop {
            let room = log.writer.room();
            match append(&mut log, &Entry::numbered(1, payload)) {
                Ok(_) => assert!(log.writer.room() + bytes >= room, "payload {payload}"),
                Err(Error::Full) => {
                    assert!(room < bytes, "payload {payload}, room {room}");
                    break;
                }
                Err(error) => panic!("{error:?}"),
            }
        }
        log.syncer.sync().unwrap();
        assert_eq!(
            recover(&memory.crash(|| false), 0).unwrap().len() as u64,
            log.writer.appended()
        );
    }
}

#[test]
fn more_rolls_than_a_sync_may_lag_are_full() {
    let memory = Memory::new();
    let (mut log, _) = start(&memory).unwrap();
    let mut rolls = 0;
    let full = loop {
        prepare(&mut log).unwrap();
        match append(&mut log, &Entry::numbered(1, 1000)) {
            Ok(sequence) => rolls = (sequence - 1) / 11,
            Err(error) => break error,
        }
    };
    assert!(matches!(full, Error::Full));
    assert_eq!(rolls, 8);
    let durable = log.syncer.sync().unwrap();
    append(&mut log, &Entry::numbered(1, 1000)).unwrap();
    assert_eq!(recover(&memory.crash(|| false), durable).unwrap().len() as u64, durable);
}

#[test]
fn a_payload_over_the_limit_is_refused() {
    let (mut log, _) = start(&Memory::new()).unwrap();
    let refused = log.writer.append(1, 1, &[0; PAYLOAD_BYTES_MAX + 1]);
    assert!(matches!(refused, Err(Error::Payload { bytes: 1025 })));
    assert_eq!(log.writer.append(1, 1, &[0; PAYLOAD_BYTES_MAX]).unwrap(), 1);
}

#[test]
fn options_outside_their_range_are_refused() {
    for (segment_bytes, spares_ready) in
        [(SEGMENT_BYTES_MIN - 4096, 1), (SEGMENT_BYTES_MIN + 8, 1), (u64::MAX, 1), (1 << 20, 0)]
    {
        let recovery = Recovery::open(Memory::new(), 0, 0).unwrap();
        let refused = recovery.start(IDENTITY, Options { segment_bytes, spares_ready });
        assert!(matches!(refused, Err(Error::Option { .. })), "{segment_bytes} {spares_ready}");
    }
}

/// Goal: starting without appending is free. Method: 1,000 kills with spares prepared.
#[test]
fn a_thousand_empty_restarts_do_not_grow_the_directory() {
    let mut memory = Memory::new();
    for restart in 0..1_000 {
        let (mut log, report) = start(&memory).unwrap();
        assert_eq!((report.segment, report.reused), (1, restart > 0));
        if restart % 50 == 0 {
            prepare(&mut log).unwrap();
        }
        memory = memory.kill();
    }
    start(&memory).unwrap();
    assert_eq!(memory.list().unwrap(), [segment_name(1)]);

    let (mut log, _) = start(&memory).unwrap();
    append(&mut log, &Entry::numbered(1, 10)).unwrap();
    log.syncer.sync().unwrap();
    drop(log);
    for _ in 0..100 {
        start(&memory).unwrap();
    }
    assert_eq!(memory.list().unwrap(), [segment_name(1), segment_name(2)]);
}

#[test]
fn a_reused_segment_keeps_its_length_whatever_the_options() {
    let memory = Memory::new();
    start(&memory).unwrap();
    let larger = Options { segment_bytes: 2 * SEGMENT_BYTES_MIN, ..SMALL };
    let (mut log, report) =
        Recovery::open(memory.clone(), 0, 0).unwrap().start(IDENTITY, larger).unwrap();
    assert!(report.reused);
    prepare(&mut log).unwrap();
    for n in 0..40 {
        append(&mut log, &Entry::numbered(n, 1000)).unwrap();
    }
    log.syncer.sync().unwrap();
    drop(log);
    assert_eq!(recover(&memory, 40).unwrap().len(), 40);
}

/// Story: the sync of the directory failed after the removal of a segment, and the log lived on.
/// The kernel reports the failure once. A later sync reported none, and would have called the next
/// segment's name durable.
#[test]
fn a_removal_that_cannot_be_synced_poisons_the_log() {
    let memory = Memory::new();
    let (mut log, _) = start(&memory).unwrap();
    for n in 0..30 {
        prepare(&mut log).unwrap();
        append(&mut log, &Entry::numbered(n, 1000)).unwrap();
        log.syncer.sync().unwrap();
    }
    memory.fail(Fault::SyncDirectory);
    assert!(matches!(log.preparer.remove_before(30), Err(Error::Sync { .. })));
    append(&mut log, &Entry::numbered(30, 1000)).unwrap_err();
    assert!(matches!(log.syncer.sync(), Err(Error::Poisoned)));
    assert!(matches!(log.preparer.remove_before(30), Err(Error::Poisoned)));
}
