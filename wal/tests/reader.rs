//! A reader reads beside the log and changes nothing.

use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use wal::memory::Memory;
use wal::{
    Claim, Directory, Ending, Error, Listing, Log, Medium, MediumFile, Passed, Progress, Reader,
    segment_name,
};

use crate::harness::{Entry, append, change, prepare, read, start};

#[test]
fn a_reader_follows_a_log_over_rolls() {
    let memory = Memory::new();
    let mut reader = Reader::open(memory.clone(), 0).unwrap();
    assert!(reader.next().unwrap().is_none());
    let (mut log, _) = start(&memory).unwrap();
    for n in 1..=100 {
        prepare(&mut log).unwrap();
        let entry = Entry::numbered(n, 500);
        append(&mut log, &entry).unwrap();
        log.syncer.sync().unwrap();
        let record = reader.next().unwrap().unwrap();
        assert_eq!((record.sequence, record.payload), (n, &*entry.payload));
        assert!(reader.next().unwrap().is_none());
        assert_eq!(reader.ending().unwrap(), Ending::Clean);
    }
    assert!(reader.passed().segments >= 3);
}

#[test]
fn a_reader_begins_at_the_given_record() {
    let memory = Memory::new();
    let (mut log, _) = start(&memory).unwrap();
    for n in 1..=50 {
        prepare(&mut log).unwrap();
        append(&mut log, &Entry::numbered(n, 1000)).unwrap();
        log.syncer.sync().unwrap();
    }
    for from in [1, 11, 12, 13, 50] {
        let mut reader = Reader::open(memory.clone(), from).unwrap();
        assert_eq!(reader.next().unwrap().unwrap().sequence, from);
    }
    assert!(Reader::open(memory.clone(), 51).unwrap().next().unwrap().is_none());
    log.preparer.remove_before(30).unwrap();
    assert_eq!(Reader::open(memory.clone(), 0).unwrap().next().unwrap().unwrap().sequence, 23);
    assert!(matches!(Reader::open(memory, 1), Err(Error::Missing { .. })));
}

/// Goal: a live log is never taken for damaged, and its records are never seen half. Method: real
/// files and four threads; the reader runs beside 30,000 appends over some 400 segments.
#[test]
fn a_reader_beside_three_busy_threads_sees_every_record() {
    const RECORDS: u64 = 30_000;
    let temporary = tempfile::tempdir().unwrap();
    let directory = Directory::create(temporary.path().join("log")).unwrap();
    let (log, _) = start(&directory).unwrap();
    let stop = AtomicBool::new(false);
    let (mut writer, mut syncer, mut preparer) = (log.writer, log.syncer, log.preparer);
    thread::scope(|scope| {
        scope.spawn(|| {
            for n in 1..=RECORDS {
                let entry = Entry::numbered(n, usize::try_from(n % 200).unwrap());
                loop {
                    match writer.append(entry.kind, entry.time_ns, &entry.payload) {
                        Ok(sequence) => break assert_eq!(sequence, n),
                        Err(Error::Full) => thread::yield_now(),
                        Err(error) => panic!("{error:?}"),
                    }
                }
            }
        });
        scope.spawn(|| while syncer.sync().unwrap() < RECORDS {});
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                if preparer.tick().unwrap() == Progress::Idle {
                    thread::yield_now();
                }
            }
        });
        let mut reader = Reader::open(directory.clone(), 0).unwrap();
        let mut seen = 0;
        while seen < RECORDS {
            match reader.next().unwrap() {
                Some(record) => {
                    seen += 1;
                    let entry = Entry::numbered(seen, usize::try_from(seen % 200).unwrap());
                    assert_eq!((record.sequence, record.payload), (seen, &*entry.payload));
                }
                None => {
                    reader.ending().unwrap();
                }
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert_eq!(read(&directory).unwrap().1, Ending::Clean);
}

#[test]
fn one_file_is_read_under_any_name() {
    let temporary = tempfile::tempdir().unwrap();
    let directory = Directory::create(temporary.path()).unwrap();
    let (mut log, _) = start(&directory).unwrap();
    for n in 1..=30 {
        prepare(&mut log).unwrap();
        append(&mut log, &Entry::numbered(n, 1000)).unwrap();
    }
    log.syncer.sync().unwrap();
    let copy = temporary.path().join("evidence");
    std::fs::copy(temporary.path().join(segment_name(2)), &copy).unwrap();
    let mut reader = Reader::open_path(&copy, 0).unwrap();
    for n in 12..=22 {
        assert_eq!(reader.next().unwrap().unwrap().sequence, n);
    }
    assert!(reader.next().unwrap().is_none());
    assert_eq!(reader.ending().unwrap(), Ending::Clean);
    let mut reader = Reader::open_path(temporary.path(), 20).unwrap();
    assert_eq!(reader.next().unwrap().unwrap().sequence, 20);
}

/// Appends records of 1,000 bytes, eleven to a segment, all durable.
fn grow(log: &mut Log<Memory>, numbers: RangeInclusive<u64>) {
    for n in numbers {
        prepare(log).unwrap();
        append(log, &Entry::numbered(n, 1000)).unwrap();
        log.syncer.sync().unwrap();
    }
}

/// Reads these records of [`grow`], which must be all there are.
fn follow(reader: &mut Reader<Memory>, numbers: RangeInclusive<u64>) {
    for n in numbers {
        let record = reader.next().unwrap().unwrap();
        assert_eq!((record.sequence, record.payload), (n, &*Entry::numbered(n, 1000).payload));
    }
    assert!(reader.next().unwrap().is_none());
}

#[test]
fn a_reader_does_not_mind_what_is_removed_behind_it() {
    let memory = Memory::new();
    let (mut log, _) = start(&memory).unwrap();
    grow(&mut log, 1..=30);
    let mut reader = Reader::open(memory.clone(), 0).unwrap();
    follow(&mut reader, 1..=30);
    grow(&mut log, 31..=40);
    // It stands in the third segment, of which the fourth is the successor.
    assert_eq!(log.preparer.remove_before(34).unwrap(), 3);
    follow(&mut reader, 31..=40);
    grow(&mut log, 41..=60);
    follow(&mut reader, 41..=60);
    assert_eq!(reader.headers().count(), 1, "what lies behind it takes no memory");
}

/// Goal: a reader that was too slow names the records that it has missed, and never goes on behind
/// a gap. Method: the next segment is removed, once before the reader has listed it and once after.
#[test]
fn a_reader_that_is_overtaken_by_a_removal_names_what_is_missing() {
    for heard in [false, true] {
        let memory = Memory::new();
        let (mut log, _) = start(&memory).unwrap();
        grow(&mut log, 1..=if heard { 40 } else { 5 });
        let mut reader = Reader::open(memory.clone(), 0).unwrap();
        assert_eq!(reader.next().unwrap().unwrap().sequence, 1);
        grow(&mut log, if heard { 41 } else { 6 }..=50);
        assert_eq!(log.preparer.remove_before(40).unwrap(), 3);
        // The file that is open stays readable.
        for n in 2..=11 {
            assert_eq!(reader.next().unwrap().unwrap().sequence, n);
        }
        let Error::Missing { place } = reader.next().unwrap_err() else { panic!() };
        assert_eq!(place.file, segment_name(2));
    }
}

/// Goal: a reader follows a log over restarts that cut torn tails, and counts the cuts. Method: a
/// record is torn twice in a row, each time in view of the reader.
#[test]
fn a_reader_follows_a_log_over_restarts_that_cut_torn_tails() {
    let memory = Memory::new();
    let (mut log, _) = start(&memory).unwrap();
    grow(&mut log, 1..=5);
    let mut reader = Reader::open(memory.clone(), 0).unwrap();
    follow(&mut reader, 1..=5);
    let mut last = 5;
    for restart in 1..=2 {
        drop(log);
        // Record 6, or 9 behind three in the second segment: its front has not reached the disk.
        let at = 4096 + 1040 * if restart == 1 { 5 } else { 3 };
        let segment = memory.open(&segment_name(restart)).unwrap();
        segment.store(at + 104, &[7; 200]);
        assert!(reader.next().unwrap().is_none());
        assert!(matches!(reader.ending().unwrap(), Ending::Torn(_)));
        (log, _) = start(&memory).unwrap();
        assert!(reader.next().unwrap().is_none());
        grow(&mut log, last + 1..=last + 3);
        follow(&mut reader, last + 1..=last + 3);
        last += 3;
        let passed = Passed {
            segments: restart,
            cut_tails: restart,
            cut_bytes: 304 * restart,
            ..Passed::default()
        };
        assert_eq!(reader.passed(), passed);
    }
}

/// A sealed segment that has lost only zeros is read past, and counted.
#[test]
fn a_sealed_segment_that_lost_only_its_unused_end_is_counted() {
    let memory = Memory::new();
    let (mut log, _) = start(&memory).unwrap();
    grow(&mut log, 1..=15);
    change(&memory, &segment_name(1), |bytes| bytes.truncate(bytes.len() - 100));
    let mut reader = Reader::open(memory.clone(), 0).unwrap();
    follow(&mut reader, 1..=15);
    assert_eq!(reader.passed(), Passed { segments: 1, short_segments: 1, ..Passed::default() });
    // Now a record is gone with it.
    change(&memory, &segment_name(1), |bytes| bytes.truncate(4096 + 1040 * 10));
    let mut reader = Reader::open(memory, 0).unwrap();
    let error = loop {
        if let Err(error) = reader.next() {
            break error;
        }
    };
    let Error::Damaged { place, claim: Claim::Length { bytes: 16_384 } } = error else {
        panic!("{error:?}")
    };
    assert_eq!((place.offset, place.sequence), (4096 + 1040 * 10, 11));
}

#[test]
fn a_listing_counts_what_is_no_segment() {
    let temporary = tempfile::tempdir().unwrap();
    let directory = Directory::create(temporary.path()).unwrap();
    let (mut log, _) = start(&directory).unwrap();
    prepare(&mut log).unwrap();
    for name in ["notes", "segment-0000000000000001.wal.bak"] {
        std::fs::write(temporary.path().join(name), "").unwrap();
    }
    let listing = Listing::of(&directory).unwrap();
    // The file that is locked is the log's own.
    assert_eq!((listing.spares, listing.unknown), (2, 2));
}
