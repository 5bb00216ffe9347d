//! Every fault of a log or a snapshot, one per row: the result of `ubscore wal verify`, and the
//! result of `ubscore serve`.
//!
//! The two differ if only PostgreSQL has the answer: each lease row holds how far the log was
//! durable. So `wal verify` calls a tail torn, or a log whole, that `serve` refuses because it ends
//! too early.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::Command;

use engine::record::Kind;
use serde_json::Value;
use wal::{Directory, Identity, Options, Reader, Recovery, segment_name};

use crate::harness::{
    Server, Site, USERS, Way, crowd, endow, eventually, force, segments, snapshots,
};

/// Rows in parallel. Few, because other tests run on the same machine.
const CALLERS: usize = 2;
const SEGMENT_BYTES: u64 = 1 << 16;
const HEADER_BYTES: u64 = 4096;

/// The place of a record.
#[derive(Clone, Debug)]
struct Stands {
    segment: u64,
    offset: u64,
    sequence: u64,
    bytes: u64,
    kind: u8,
}

impl Stands {
    /// The place in the form of the messages.
    fn place(&self) -> String {
        place(self.segment, self.offset, self.sequence)
    }
}

fn place(segment: u64, offset: u64, sequence: u64) -> String {
    format!("{} offset {offset} sequence {sequence}", segment_name(segment))
}

/// A log written by the binary, without a process, with all transfers at rest, and the places of
/// its records.
struct Base {
    site: Site,
    records: Vec<Stands>,
    /// Number of the last segment.
    newest: u64,
    /// The highest durable sequence in the lease rows.
    claimed: u64,
}

impl Base {
    fn of(site: Site) -> Base {
        let records = records(&site.log_dir());
        let newest = segments(&site).last().expect("a segment").0;
        let claimed = site.sql_value("SELECT max(durable) FROM journal_last");
        Base { records, newest, claimed: claimed.parse().expect("a number"), site }
    }

    /// Several segments, of which the first is full: one start rolls, and two more begin a segment
    /// each.
    fn written() -> Base {
        let site = Site::new()
            .with("UBSCORE__WAL__SEGMENT_BYTES", SEGMENT_BYTES)
            .with("UBSCORE__SNAPSHOT__KEEP", 8);
        let server = site.start();
        endow(&site, &server);
        crowd(8, |caller| {
            for way in Way::BOTH.into_iter().cycle().take(80) {
                server.transfer_accepted(USERS[caller % USERS.len()], way, "0.01");
            }
        });
        site.wait_for_rest();
        server.kill();
        for _ in 0..2 {
            let server = site.start();
            move_a_little(&site, &server);
            server.kill();
        }
        Base::of(site)
    }

    /// The same log, and two snapshots after it, each from a start of its own.
    fn with_snapshots(&self) -> Base {
        let site = self.copy();
        for _ in 0..2 {
            let server = site.start();
            move_a_little(&site, &server);
            force(&site, &server);
            server.kill();
        }
        Base::of(site)
    }

    /// A copy of all files and of the database.
    fn copy(&self) -> Site {
        let copy = self.site.with_copied_database().with_fresh_data_dir();
        self.site.copy_data(&copy);
        copy
    }

    /// The last record that is an order.
    fn last_order(&self) -> &Stands {
        let is_order = |record: &&Stands| record.kind == Kind::Order as u8;
        self.records.iter().rfind(is_order).expect("an order")
    }

    fn last(&self) -> &Stands {
        self.records.last().expect("a record")
    }

    /// Some record in the middle of a segment.
    fn middle_of(&self, segment: u64) -> &Stands {
        let here: Vec<_> = self.records.iter().filter(|record| record.segment == segment).collect();
        assert!(here.len() > 2, "segment {segment} holds {here:?}");
        here[here.len() / 2]
    }

    fn last_of(&self, segment: u64) -> &Stands {
        self.records.iter().rfind(|record| record.segment == segment).expect("a record")
    }

    /// The place after the last record of a segment.
    fn end_of(&self, segment: u64) -> String {
        let last = self.last_of(segment);
        place(segment, last.offset + last.bytes, last.sequence + 1)
    }
}

/// Some transfers, and then the mark after the last of them.
fn move_a_little(site: &Site, server: &Server) {
    for user in USERS {
        assert_eq!(server.transfer(user, Way::ToSpot, "0.01").status, 200);
    }
    site.wait_for_rest();
    eventually("the mark of an idle log, and a lease that knows of what is before it", || {
        let records = records(&site.log_dir());
        let last = records.last()?;
        let claimed = site.sql_value("SELECT max(durable) FROM journal_last");
        let known = claimed.parse::<u64>().ok()? + 1 >= last.sequence;
        (last.kind == Kind::Mark as u8 && known).then_some(())
    });
}

fn records(log_dir: &Path) -> Vec<Stands> {
    let mut reader = Reader::open(Directory::at(log_dir), 0).expect("a log");
    let mut records = Vec::new();
    while let Some(record) = reader.next().expect("sound") {
        let wal::Record { segment, offset, sequence, bytes, kind, .. } = record;
        records.push(Stands { segment, offset, sequence, bytes, kind });
    }
    records
}

fn segment(site: &Site, number: u64) -> PathBuf {
    site.log_dir().join(segment_name(number))
}

fn store(path: &Path, offset: u64, bytes: &[u8]) {
    let file = OpenOptions::new().write(true).open(path).expect("the file");
    file.write_all_at(bytes, offset).expect("stored");
}

fn flip(path: &Path, offset: u64) {
    let mut bytes = fs::read(path).expect("the file");
    bytes[usize::try_from(offset).expect("short")] ^= 1;
    fs::write(path, bytes).expect("written");
}

fn zero(site: &Site, record: &Stands) {
    let bytes = vec![0; usize::try_from(record.bytes).expect("short")];
    store(&segment(site, record.segment), record.offset, &bytes);
}

fn truncate(path: &Path, bytes: u64) {
    let file = OpenOptions::new().write(true).open(path).expect("the file");
    file.set_len(bytes).expect("cut");
}

fn remove(path: &Path) {
    fs::remove_file(path).expect("removed");
}

/// Writes after the last record, like a crash in the middle of a write.
fn tear(site: &Site) {
    let records = records(&site.log_dir());
    let newest = segments(site).last().expect("a segment").0;
    let end = records.iter().rfind(|record| record.segment == newest);
    let end = end.map_or(HEADER_BYTES, |record| record.offset + record.bytes);
    store(&segment(site, newest), end, &[0xa5; 70]);
}

/// Appends records in a segment of their own, none of them synced, and returns their places.
fn append_unsynced(site: &Site, kinds: &[u8]) -> Vec<Stands> {
    let recovery = Recovery::open(Directory::at(site.log_dir()), 0, 0).expect("a log");
    let identity = recovery.identity().expect("a log");
    let options = Options { segment_bytes: SEGMENT_BYTES, spares_ready: 1 };
    let (mut log, report) = recovery.start(identity, options).expect("started");
    for &kind in kinds {
        log.writer.append(kind, 1, &[]).expect("room");
    }
    drop(log);
    let appended = |record: &Stands| record.sequence > report.last;
    records(&site.log_dir()).into_iter().filter(appended).collect()
}

/// Changes a segment's header, and makes its checksum right.
fn change_header(path: &Path, at: usize, by: u8) {
    let mut bytes = fs::read(path).expect("the segment");
    bytes[at] ^= by;
    let crc = crc32fast::hash(&bytes[12..4096]);
    bytes[8..12].copy_from_slice(&crc.to_le_bytes());
    fs::write(path, bytes).expect("written");
}

/// The result of `ubscore serve`.
enum Serve {
    /// It starts, nothing is lost, and it has logged this text.
    Starts(&'static str),
    /// It refuses, with all of these words.
    Refuses(Vec<String>),
}

/// One fault.
struct Row<'a> {
    name: &'static str,
    base: &'a Base,
    /// Applies the fault to a copy.
    breaks: Box<dyn Fn(&Site) + Sync + 'a>,
    /// Exit code and kind.
    verify: (i32, &'static str),
    /// The place in the report of `wal verify`, if it names one.
    place: Option<String>,
    serve: Serve,
}

impl Row<'_> {
    fn check(&self) {
        let site = self.base.copy();
        (self.breaks)(&site);
        let name = self.name;

        let mut verify = Command::new(env!("CARGO_BIN_EXE_ubscore"));
        verify.args(["wal", "verify", "--format", "json"]).arg(&site.data_dir);
        let output = verify.output().expect("the binary");
        let said: Value = serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|error| panic!("{name}: {error}: {output:?}"));
        let code = output.status.code().expect("an exit code");
        assert_eq!((code, said["kind"].as_str().expect("a kind")), self.verify, "{name}: {said}");
        let at = if code == 0 { &said["torn"] } else { &said["damage"] };
        let named = at["file"]
            .as_str()
            .map(|file| format!("{file} offset {} sequence {}", at["offset"], at["sequence"]));
        assert_eq!(named, self.place, "{name}: {said}");

        match &self.serve {
            Serve::Starts(saying) => {
                let server = Server::try_start(site.command())
                    .unwrap_or_else(|(status, said)| panic!("{name}: {status}: {said}"));
                eventually(name, || server.said().contains(saying).then_some(()));
                site.wait_for_rest();
                site.assert_conserved(&server);
                server.kill();
            }
            Serve::Refuses(words) => {
                let (code, said) = site.start_refused();
                assert_ne!(code, 0, "{name}: {said}");
                for word in words {
                    assert!(said.contains(word), "{name}: {word} is not in\n{said}");
                }
            }
        }
    }
}

fn row<'a>(
    base: &'a Base,
    name: &'static str,
    breaks: impl Fn(&Site) + Sync + 'a,
    verify: (i32, &'static str),
    place: Option<String>,
    serve: Serve,
) -> Row<'a> {
    Row { name, base, breaks: Box::new(breaks), verify, place, serve }
}

/// A row in which both refuse at the same place.
fn refused<'a>(
    base: &'a Base,
    name: &'static str,
    breaks: impl Fn(&Site) + Sync + 'a,
    kind: &'static str,
    place: String,
) -> Row<'a> {
    let serve = Serve::Refuses(vec![place.clone()]);
    row(base, name, breaks, (1, kind), Some(place), serve)
}

const CLEAN: (i32, &str) = (0, "clean");
const TORN: (i32, &str) = (0, "torn_tail");
const SAYS_TORN: Serve = Serve::Starts("the log's end is torn");
const SAYS_NOTHING: Serve = Serve::Starts("");

/// Ends of the log: cut ends, and ends that only look cut.
fn tails(base: &Base) -> Vec<Row<'_>> {
    let (newest, last, last_order) = (base.newest, base.last(), base.last_order());
    assert_eq!(last.kind, Kind::Mark as u8);
    assert!(base.claimed >= last_order.sequence, "the lease knows the last order");
    // The lease may or may not include the mark.
    let without_mark = match base.claimed >= last.sequence {
        true => Serve::Refuses(vec![last.place(), "the caller knows".to_owned()]),
        false => SAYS_TORN,
    };
    let marks = |site: &Site| {
        for record in base.records.iter().filter(|r| r.sequence > last_order.sequence) {
            zero(site, record);
        }
    };
    let next =
        |number: u64| place(newest + 1, HEADER_BYTES + 40 * (number - 1), last.sequence + number);
    vec![
        row(base, "nothing", |_| {}, CLEAN, None, SAYS_NOTHING),
        row(base, "torn tail", tear, TORN, Some(base.end_of(newest)), SAYS_TORN),
        row(
            base,
            "stale tails of two recoveries in a row",
            move |site| {
                for _ in 0..2 {
                    tear(site);
                    site.start().kill();
                }
                let output = Command::new(env!("CARGO_BIN_EXE_ubscore"))
                    .args(["wal", "verify"])
                    .arg(&site.data_dir)
                    .output()
                    .expect("the binary");
                let said = String::from_utf8(output.stdout).expect("text");
                assert!(said.contains(" cut_tails=2 "), "{said}");
            },
            CLEAN,
            None,
            SAYS_NOTHING,
        ),
        row(
            base,
            "a hole above the durable mark",
            move |site| {
                let appended = append_unsynced(site, &[Kind::Mark as u8; 3]);
                zero(site, &appended[1]);
            },
            TORN,
            Some(next(2)),
            SAYS_TORN,
        ),
        row(
            base,
            "damage above the durable mark",
            move |site| {
                let appended = append_unsynced(site, &[Kind::Mark as u8; 3]);
                flip(&segment(site, newest + 1), appended[0].offset + 20);
            },
            TORN,
            Some(next(1)),
            SAYS_TORN,
        ),
        refused(
            base,
            "damage in the last batch, and the idle mark behind it",
            move |site| flip(&segment(site, newest), last_order.offset + 30),
            "below_durable_mark",
            last_order.place(),
        ),
        row(
            base,
            "damage in the last batch, and no mark behind it",
            move |site| {
                marks(site);
                flip(&segment(site, newest), last_order.offset + 30);
            },
            TORN,
            Some(last_order.place()),
            Serve::Refuses(vec![last_order.place(), "the caller knows".to_owned()]),
        ),
        row(
            base,
            "the last batch gone, and no mark behind it",
            move |site| {
                marks(site);
                zero(site, last_order);
            },
            CLEAN,
            None,
            Serve::Refuses(vec![last_order.place(), "the caller knows".to_owned()]),
        ),
        row(
            base,
            "damage in the idle mark",
            move |site| flip(&segment(site, newest), last.offset + 30),
            TORN,
            Some(last.place()),
            without_mark,
        ),
    ]
}

/// Damage to records that were durable, and to files.
fn damages(base: &Base) -> Vec<Row<'_>> {
    let newest = base.newest;
    let (first, middle, last) = (base.middle_of(1), base.middle_of(newest), base.last_of(newest));
    let header = |number: u64| place(number, 0, base.last_of(number - 1).sequence + 1);
    // A wrong header is reported before its predecessor is read.
    let expected = |number: u64| place(number, 0, base.last_of(number - 2).sequence + 1);
    let below = "below_durable_mark";
    vec![
        refused(base, "a hole", move |site| zero(site, middle), below, middle.place()),
        refused(
            base,
            "damage below the durable mark",
            move |site| flip(&segment(site, newest), middle.offset + 30),
            below,
            middle.place(),
        ),
        refused(
            base,
            "damage in a sealed segment",
            move |site| flip(&segment(site, 1), first.offset + 30),
            below,
            first.place(),
        ),
        refused(
            base,
            "a sealed segment cut among its records",
            move |site| truncate(&segment(site, 1), first.offset),
            "short_segment",
            first.place(),
        ),
        row(
            base,
            "a sealed segment cut behind its records",
            move |site| truncate(&segment(site, newest - 1), SEGMENT_BYTES - 8192),
            CLEAN,
            None,
            SAYS_NOTHING,
        ),
        refused(
            base,
            "the newest segment cut behind its records",
            move |site| truncate(&segment(site, newest), SEGMENT_BYTES - 8192),
            "short_segment",
            base.end_of(newest),
        ),
        refused(
            base,
            "the newest segment cut among its records",
            move |site| truncate(&segment(site, newest), last.offset),
            "short_segment",
            last.place(),
        ),
        refused(
            base,
            "a truncated header",
            move |site| truncate(&segment(site, newest), 100),
            "short_header",
            expected(newest),
        ),
        refused(
            base,
            "a file without a byte",
            move |site| truncate(&segment(site, newest), 0),
            "empty_segment",
            expected(newest),
        ),
        refused(
            base,
            "a damaged header",
            move |site| flip(&segment(site, 3), 2000),
            "bad_header",
            expected(3),
        ),
        refused(
            base,
            "a future version",
            move |site| change_header(&segment(site, newest), 12, 3),
            "unknown_version",
            expected(newest),
        ),
        refused(
            base,
            "a header with another chain",
            move |site| change_header(&segment(site, newest), 64, 1),
            "broken_chain",
            header(newest),
        ),
        row(
            base,
            "a record of an unknown kind",
            move |site| drop(append_unsynced(site, &[99])),
            (1, "undecodable_record"),
            Some(place(newest + 1, HEADER_BYTES, last.sequence + 1)),
            Serve::Refuses(vec![
                place(newest + 1, HEADER_BYTES, last.sequence + 1),
                "kind 99".to_owned(),
            ]),
        ),
    ]
}

/// Segments that are absent, or not in their places.
fn segments_astray(base: &Base) -> Vec<Row<'_>> {
    let newest = base.newest;
    let missing = |number| place(number, 0, base.last_of(number).sequence);
    vec![
        row(
            base,
            "the first segment missing",
            move |site| remove(&segment(site, 1)),
            CLEAN,
            None,
            Serve::Refuses(vec!["no usable snapshot".to_owned(), missing(1)]),
        ),
        refused(
            base,
            "a segment missing in the middle",
            move |site| remove(&segment(site, 2)),
            "missing_segment",
            missing(2),
        ),
        row(
            base,
            "the last segment missing",
            move |site| remove(&segment(site, newest)),
            CLEAN,
            None,
            Serve::Refuses(vec![base.end_of(newest - 1), "the caller knows".to_owned()]),
        ),
        refused(
            base,
            "two segments swapped",
            move |site| {
                let (second, third) = (segment(site, 2), segment(site, 3));
                let aside = site.data_dir.join("aside");
                fs::rename(&second, &aside).expect("renamed");
                fs::rename(&third, &second).expect("renamed");
                fs::rename(&aside, &third).expect("renamed");
            },
            "out_of_order",
            place(2, 0, 1),
        ),
        refused(
            base,
            "a foreign segment",
            move |site| {
                let other = site.data_dir.join("other");
                let directory = Directory::create(&other).expect("made");
                let options = Options { segment_bytes: SEGMENT_BYTES, spares_ready: 1 };
                for _ in 0..2 {
                    let recovery = Recovery::open(directory.clone(), 0, 0).expect("a log");
                    let (mut log, _) = recovery.start(Identity(7), options).expect("started");
                    log.writer.append(Kind::Mark as u8, 1, &[]).expect("room");
                    log.syncer.sync().expect("synced");
                }
                fs::rename(other.join(segment_name(2)), segment(site, 2)).expect("renamed");
            },
            "foreign_segment",
            place(2, 0, 1),
        ),
    ]
}

/// Snapshots that are damaged, absent or too new. `base` has two, each in a segment of its own.
fn snapshot_rows(base: &Base) -> Vec<Row<'_>> {
    fn damage(site: &Site, count: usize) {
        for (_, path) in snapshots(site).iter().take(count) {
            flip(path, 70);
        }
    }
    let cut = |site: &Site| remove(&segment(site, 1));
    let lost = || {
        let missing = place(1, 0, base.last_of(1).sequence);
        Serve::Refuses(vec!["no usable snapshot".to_owned(), missing])
    };
    let newest = &snapshots(&base.site)[0];
    let ahead = newest.1.file_name().and_then(|name| name.to_str()).expect("text");
    let passed_over = Serve::Starts("is ignored");
    vec![
        row(
            base,
            "the newest snapshot damaged",
            move |site| damage(site, 1),
            CLEAN,
            None,
            passed_over,
        ),
        row(
            base,
            "the newest snapshot damaged, and the log cut",
            move |site| {
                damage(site, 1);
                cut(site);
            },
            CLEAN,
            None,
            Serve::Starts("is ignored"),
        ),
        row(
            base,
            "all snapshots damaged, and the log whole",
            move |site| damage(site, 2),
            CLEAN,
            None,
            Serve::Starts("snapshot=0 "),
        ),
        row(
            base,
            "all snapshots damaged, and the log cut",
            move |site| {
                damage(site, 2);
                cut(site);
            },
            CLEAN,
            None,
            lost(),
        ),
        row(
            base,
            "no snapshot, and the log whole",
            move |site| fs::remove_dir_all(site.snapshot_dir()).expect("removed"),
            CLEAN,
            None,
            Serve::Starts("snapshot=0 "),
        ),
        row(
            base,
            "no snapshot, and the log cut",
            move |site| {
                fs::remove_dir_all(site.snapshot_dir()).expect("removed");
                cut(site);
            },
            CLEAN,
            None,
            lost(),
        ),
        row(
            base,
            "a snapshot newer than the log",
            move |site| remove(&segment(site, base.newest)),
            CLEAN,
            None,
            Serve::Refuses(vec![
                ahead.to_owned(),
                format!("stands at record {}", newest.0),
                base.end_of(base.newest - 1),
            ]),
        ),
    ]
}

/// Goal: for each fault of the files, the operator gets a true report, and no start makes or loses
/// money. Method: a log of several segments, written once by the binary; each row breaks a copy,
/// runs `ubscore wal verify`, and starts.
#[test]
fn every_row_of_the_matrix_is_documented_and_survived_or_refused() {
    let written = Base::written();
    assert!(written.newest >= 4, "{} segments", written.newest);
    let kept = written.with_snapshots();
    let parts =
        [tails(&written), damages(&written), segments_astray(&written), snapshot_rows(&kept)];
    let rows: Vec<Row<'_>> = parts.into_iter().flatten().collect();
    // All broken rows are reported together, since the table is read as a whole.
    let failed = crowd(CALLERS, |caller| {
        let rows = rows.iter().skip(caller).step_by(CALLERS);
        let fails = |row: &&Row<'_>| catch_unwind(AssertUnwindSafe(|| row.check())).is_err();
        rows.filter(fails).map(|row| row.name).collect::<Vec<_>>()
    });
    assert_eq!(failed.concat(), [""; 0]);
}
