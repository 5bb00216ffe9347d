//! A reader looks on and changes nothing.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use wal::memory::Memory;
use wal::{Directory, Ending, Error, Progress, Reader, segment_name};

use crate::harness::{Entry, append, prepare, read, start};

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
    assert!(reader.headers().count() > 3);
}

#[test]
fn a_reader_begins_where_it_is_told() {
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
