//! The log and the snapshots of transactions, and versions that do not know them.

use engine::fact::Fact;
use engine::snapshot::Snapshot;
use wal::{Directory, Reader, Recovery};

use super::desk::Desk;
use super::lost::{end, prepare, spot};
use crate::harness::{force, snapshots};

/// The kind of a posting, by number or by name.
const POSTING: u8 = 12;
/// Where its flags stand.
const FLAGS_AT: usize = 45;
/// The flags that the version before transactions demands: one of both.
const BEFORE: u8 = 1 | 4;
/// A flag of no version.
const LATER: u8 = 64;

/// RCV-010. Goal: the version before transactions refuses their log and their snapshots, and this
/// one refuses a later form of a posting, each by name. Method: a log with postings by name and a
/// snapshot with the facts 12 and 13, byte by byte as that version reads them; one more record with
/// a flag of no version.
#[test]
fn rcv_010_postings_by_name_are_no_postings_of_the_version_before() {
    let mut desk = Desk::new();
    prepare(&desk, "paid", &spot("1"));
    end(&desk, "paid", "commit", "DONE");
    prepare(&desk, "open", &spot("1"));
    force(desk.site(), desk.server());
    desk.kill();
    let site = desk.site();
    let mut reader = Reader::<Directory>::open_path(&site.log_dir(), 0).expect("a log");
    let mut postings = Vec::new();
    while let Some(record) = reader.next().expect("sound") {
        if record.kind == POSTING {
            assert_eq!(record.payload[FLAGS_AT] & BEFORE, 0, "`flags holds 0`");
            postings.push(record.payload.to_vec());
        }
    }
    assert_eq!(postings.len(), 3, "RESERVE, SETTLE, RESERVE");
    let (_, path) = snapshots(site).pop().expect("forced");
    let bytes = std::fs::read(&path).expect("there");
    assert_eq!(bytes[8..12], 4_u32.to_le_bytes(), "it reads the versions 1 to 3");
    let snapshot = Snapshot::open(&path).expect("sound");
    let facts = || snapshot.facts().expect("sound").map(|fact| fact.expect("sound"));
    assert!(facts().any(|fact| matches!(fact, Fact::Named(_))), "fact 12");
    let is_apart = |fact| matches!(fact, Fact::Hold(hold) if hold.transaction != 0);
    assert!(facts().any(is_apart), "fact 13");

    let mut later = postings.pop().expect("three");
    later[FLAGS_AT] = LATER;
    let directory = Directory::create(site.log_dir()).expect("there");
    let recovery = Recovery::open(directory, 0, 0).expect("a log");
    let identity = recovery.identity().expect("it has segments");
    let options = wal::Options { segment_bytes: 1 << 20, spares_ready: 1 };
    let (mut log, _) = recovery.start(identity, options).expect("started");
    log.writer.append(POSTING, 1, &later).expect("room");
    log.syncer.sync().expect("synced");
    drop(log);
    let (code, why) = site.start_refused();
    assert_eq!(code, 70, "{why}");
    assert!(why.contains("flags holds 64"), "{why}");
}
