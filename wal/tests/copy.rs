//! A copy equals the log after a crash at its last record.

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use wal::{Copied, Copier, Directory, Ending, Error, Progress, Reader, Sequence, segment_name};

use crate::harness::{Entry, append, prepare, read, recover, start};

/// A log of 100 records over some segments, from two starts. The bytes of a torn record follow the
/// last record of the first start.
fn log(directory: &Directory) -> Vec<Entry> {
    let mut model = Vec::new();
    for round in 0..2 {
        let (mut log, _) = start(directory).unwrap();
        for n in 0..50 {
            prepare(&mut log).unwrap();
            let entry = Entry::numbered(round * 50 + n, 500);
            append(&mut log, &entry).unwrap();
            model.push(entry);
        }
        log.syncer.sync().unwrap();
        drop(log);
        if round == 0 {
            let path_of = |number| directory.path().join(segment_name(number));
            let path = (1..).map(path_of).take_while(|path| path.exists()).last().unwrap();
            let mut bytes = fs::read(&path).unwrap();
            let end = bytes.iter().rposition(|&byte| byte != 0).unwrap().next_multiple_of(8) + 8;
            bytes[end..end + 16].fill(7);
            fs::write(&path, bytes).unwrap();
            // And a start that died within its first record.
            drop(start(directory).unwrap());
            let path = (1..).map(path_of).take_while(|path| path.exists()).last().unwrap();
            let mut bytes = fs::read(&path).unwrap();
            bytes[4096..4112].fill(7);
            fs::write(&path, bytes).unwrap();
        }
    }
    model
}

fn copy(from: &Directory, to: &Directory, until: Sequence) -> Copied {
    let mut reader = Reader::open(from.clone(), 0).unwrap();
    let mut copier = Copier::create(to.clone()).unwrap();
    copier.copy(&mut reader, until).unwrap();
    copier.finish(&reader).unwrap()
}

/// Goal: a copy up to any record holds everything up to it and nothing else, ends clean, and a
/// start continues from it. Method: every length, of a log with a torn middle; bytes against the
/// original's.
#[test]
fn a_copy_up_to_any_record_is_a_log_that_ends_there() {
    let temporary = tempfile::tempdir().unwrap();
    let original = Directory::create(temporary.path().join("log")).unwrap();
    let model = log(&original);
    for until in 0..=model.len() {
        let to = Directory::at(temporary.path().join(format!("copy-{until}")));
        let copied = copy(&original, &to, until as u64);
        assert_eq!((copied.first, copied.last), (u64::from(until > 0), until as u64));
        let (entries, ending) = read(&to).unwrap();
        assert_eq!((&*entries, ending), (&model[..until], Ending::Clean));
        for name in &copied.names {
            let [from, copy] = [&original, &to].map(|log| fs::read(log.path().join(name)).unwrap());
            let end = copy.iter().rposition(|&byte| byte != 0).unwrap() + 1;
            assert_eq!(from.len(), copy.len(), "{name}");
            assert!(from[..end] == copy[..end], "{name}");
        }
        assert_eq!(recover(&to, until as u64).unwrap(), model[..until]);
        let refused = recover(&to, until as u64 + 1).unwrap_err();
        assert!(matches!(refused, Error::Damaged { .. }), "{refused:?}");
    }
    let to = Directory::at(temporary.path().join("copy-50"));
    let (mut log, report) = start(&to).unwrap();
    assert_eq!(report.last, 50);
    prepare(&mut log).unwrap();
    append(&mut log, &Entry::numbered(7, 7)).unwrap();
    log.syncer.sync().unwrap();
    drop(log);
    assert_eq!(recover(&to, 51).unwrap().len(), 51);
}

#[test]
fn a_log_without_its_first_segments_is_copied_from_where_it_begins() {
    let temporary = tempfile::tempdir().unwrap();
    let original = Directory::create(temporary.path().join("log")).unwrap();
    let model = log(&original);
    let (mut log, _) = start(&original).unwrap();
    assert!(log.preparer.remove_before(40).unwrap() > 0);
    let to = Directory::at(temporary.path().join("copy"));
    let copied = copy(&original, &to, u64::MAX);
    assert!(copied.first > 1 && copied.first <= 40, "{copied:?}");
    assert_eq!(copied.last, model.len() as u64);
    let mut reader = Reader::open(to, 41).unwrap();
    assert_eq!(reader.next().unwrap().unwrap().sequence, 41);
}

/// Goal: a copy of a live log is whole at every end. Method: copies beside a thread that appends
/// over many segments; each continues once after it has come to the end.
#[test]
fn a_live_log_is_copied_whole() {
    let temporary = tempfile::tempdir().unwrap();
    let original = Directory::create(temporary.path().join("log")).unwrap();
    let (log, _) = start(&original).unwrap();
    let (mut writer, mut syncer, mut preparer) = (log.writer, log.syncer, log.preparer);
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut n = 0;
            while !stop.load(Ordering::Relaxed) {
                let entry = Entry::numbered(n, usize::try_from(n % 200).unwrap());
                match writer.append(entry.kind, entry.time_ns, &entry.payload) {
                    Ok(_) => n += 1,
                    Err(Error::Full) => {
                        syncer.sync().unwrap();
                        while preparer.tick().unwrap() == Progress::Busy {}
                    }
                    Err(error) => panic!("{error:?}"),
                }
            }
        });
        for round in 0..10 {
            let to = Directory::at(temporary.path().join(format!("copy-{round}")));
            let mut reader = Reader::open(original.clone(), 0).unwrap();
            let mut copier = Copier::create(to.clone()).unwrap();
            let before = copier.copy(&mut reader, 2_000 * (round + 1)).unwrap();
            let last = copier.copy(&mut reader, before + 10).unwrap();
            assert_eq!(copier.finish(&reader).unwrap().last, last);
            let (entries, ending) = read(&to).unwrap();
            assert_eq!((entries.len() as u64, ending), (last, Ending::Clean));
        }
        stop.store(true, Ordering::Relaxed);
    });
}
