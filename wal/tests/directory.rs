//! What a directory of real files holds to.

use std::fs;

use wal::{Directory, Ending, Error, Options, Reader, Recovery, segment_name};

use crate::harness::{Entry, IDENTITY, SMALL, append, prepare, recover, start};

fn directory() -> (tempfile::TempDir, Directory) {
    let temporary = tempfile::tempdir().unwrap();
    let directory = Directory::create(temporary.path().join("a/log")).unwrap();
    (temporary, directory)
}

/// Goal: what goes in comes out, over many rolls and restarts. Method: real files, 5 starts, 100
/// records each of every length class; every start replays everything before it.
#[test]
fn records_come_back_over_rolls_and_restarts() {
    let (_temporary, directory) = directory();
    let mut model: Vec<Entry> = Vec::new();
    for _ in 0..5 {
        assert_eq!(recover(&directory, model.len() as u64).unwrap(), model);
        let (mut log, report) = start(&directory).unwrap();
        assert_eq!(report.last, model.len() as u64);
        assert_eq!(report.ending, Ending::Clean);
        for n in 0..100 {
            let entry = Entry::numbered(n, (n as usize * 37) % 1025);
            prepare(&mut log).unwrap();
            assert_eq!(append(&mut log, &entry).unwrap(), model.len() as u64 + 1);
            model.push(entry);
            if n % 7 == 0 {
                assert_eq!(log.syncer.sync().unwrap(), model.len() as u64);
            }
        }
        assert_eq!(log.syncer.sync().unwrap(), model.len() as u64);
        assert_eq!(log.durable.durable(), model.len() as u64);
    }
    assert!(directory.path().join(segment_name(20)).exists());
}
