//! The same on real files.

use wal::{Directory, Ending, Error, Recovery, segment_name};

use crate::harness::{Entry, append, prepare, recover, start};

fn directory() -> (tempfile::TempDir, Directory) {
    let temporary = tempfile::tempdir().unwrap();
    let directory = Directory::create(temporary.path().join("a/log")).unwrap();
    (temporary, directory)
}

/// Goal: records come back unchanged over many rolls and restarts. Method: 5 starts, 100 records of
/// every length each; every start replays everything before it.
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
            let entry = Entry::numbered(n, (usize::try_from(n).unwrap() * 37) % 1025);
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

#[test]
fn a_second_opener_learns_the_first_ones_pid() {
    let (_temporary, directory) = directory();
    let (log, _) = start(&directory).unwrap();
    let Error::Locked { pid } = Recovery::open(directory.clone(), 0, 0).unwrap_err() else {
        panic!()
    };
    assert_eq!(pid, std::process::id());
    // Any of the three parts keeps the lock; a mere watcher does not.
    let wal::Log { writer, syncer, preparer, durable } = log;
    drop(writer);
    drop(preparer);
    assert!(matches!(start(&directory), Err(Error::Locked { .. })));
    drop(syncer);
    start(&directory).unwrap();
    assert_eq!(durable.durable(), 0);
}

#[test]
fn an_empty_log_is_reused_on_real_files() {
    let (_temporary, directory) = directory();
    for _ in 0..20 {
        start(&directory).unwrap();
    }
    let (mut log, report) = start(&directory).unwrap();
    assert_eq!((report.segment, report.reused), (1, true));
    append(&mut log, &Entry::numbered(1, 100)).unwrap();
    assert_eq!(log.syncer.sync().unwrap(), 1);
    drop(log);
    assert_eq!(recover(&directory, 1).unwrap(), [Entry::numbered(1, 100)]);
}
