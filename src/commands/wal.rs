//! `ubscore wal`: reads the log, also while the service writes it. Only `repair` makes changes.
//!
//! Records go to `out` as they are read, one per line. The end of the log goes to `notes`, so that
//! a pipe gets only records. Exit codes: 0, also for a torn end, which is reported; 1 for damage; 2
//! if there is no log to read.

pub(super) mod aside;
pub(super) mod assets;
mod dump;
pub mod error;
mod finding;
pub mod ink;
pub(super) mod integer;
mod line;
mod log;
mod named;
pub(super) mod posting;
mod read;
pub(super) mod repair;
mod stat;
mod verify;

use std::io::{self, BufWriter, Write};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use self::dump::dump;
use self::error::Error;
use self::ink::Ink;
use self::stat::stat;
use self::verify::verify;
use crate::cli::WalCommand;
use crate::exit::Exit;

/// How long `--follow` waits before it looks for records again, ns: short for a person, and rare
/// enough to cost little.
const FOLLOW_PAUSE_NS: i64 = 100_000_000;

/// Bytes of output gathered before they are written.
const OUT_BYTES: usize = 64 * 1024;

/// Runs one of the subcommands.
///
/// `notes`: gets the end of the log. `ink`: for `out`. `pause`: called by `--follow` at the end of
/// a log, returns when it is time to look again; [`io::ErrorKind::BrokenPipe`] ends the command
/// quietly, as in `out`. Returns the exit code.
///
/// # Errors
/// [`Error`]. The records before it were written.
pub fn run(
    command: &WalCommand,
    out: &mut impl Write,
    notes: &mut impl Write,
    ink: Ink,
    pause: &mut impl FnMut() -> io::Result<()>,
) -> anyhow::Result<Exit> {
    let mut out = BufWriter::with_capacity(OUT_BYTES, out);
    let done = match command {
        WalCommand::Dump(args) => dump(args, &mut out, notes, ink, pause),
        WalCommand::Stat(args) => stat(args, &mut out, ink),
        WalCommand::Verify(args) => verify(args, &mut out, ink),
        WalCommand::Repair(args) => return repair::run(args, &mut out),
    };
    // Operators look for the records before the damage, so they are written first.
    let flushed = out.flush().map_err(Error::Write);
    match done.and(flushed) {
        Err(error) if !error.is_hang_up() => Err(error.into()),
        Ok(()) | Err(_) => Ok(Exit::Done),
    }
}

/// Waits a moment for a live log to grow, or until the reader of stdout closes it.
///
/// It polls stdout, because an idle log causes no write that would find the closed pipe.
///
/// # Errors
/// [`io::ErrorKind::BrokenPipe`]: the reader has closed. Otherwise the system's error.
pub fn pause() -> io::Result<()> {
    let stdout = io::stdout();
    // No event is requested: the system reports a hang-up always.
    let mut watched = [PollFd::new(&stdout, PollFlags::empty())];
    match poll(&mut watched, Some(&Timespec { tv_sec: 0, tv_nsec: FOLLOW_PAUSE_NS })) {
        Ok(0) | Err(Errno::INTR) => Ok(()),
        Ok(_) => Err(io::ErrorKind::BrokenPipe.into()),
        Err(errno) => Err(errno.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::fs::OpenOptions;
    use std::os::unix::fs::FileExt;

    use clap::Parser;
    use engine::entry::Entry;
    use engine::order::Order;
    use engine::record::PAYLOAD_BYTES_MAX;
    use engine::text::Text;
    use serde_json::{Value, json};
    use tempfile::{TempDir, tempdir};
    use ulid::Ulid;
    use wal::{Directory, Identity, Options, Reader, Recovery, segment_name};

    use super::*;
    use crate::cli::{Cli, Command};
    use crate::commands::exit_of;
    use crate::data_dir::LOG_DIRECTORY;
    use domain::account::AccountStatus;
    use domain::code::Code;
    use domain::transfer::{Decision, Direction, Op};

    pub(super) const REQ_ID: &str = "01JFVQ2X8Z0Y1M3N4P5R6S7T8V";
    pub(super) const TIME_NS: u64 = 1_700_000_000_123_456_789;
    pub(super) const SEGMENT: &str = "segment-0000000000000001.wal";
    /// Where the records of [`Sample::new`] end, in bytes.
    pub(super) const END: u64 = 4472;

    /// A real log in a data directory, open for appending.
    pub(super) struct Sample {
        data: TempDir,
        pub(super) log: wal::Log<Directory>,
    }

    pub(super) fn order(op: Op, user: u64, decision: Decision) -> Entry {
        let req_id = Ulid::from_string(REQ_ID).expect("a ULID").0;
        let order = Order {
            op,
            req_id,
            cid: Text::new(if user == 1001 { "c-1" } else { "" }).expect("short"),
            user,
            asset: 3,
            amount: 25_050_000_000,
            direction: Direction::FundingToSpot,
            order_number: 1 << 60,
        };
        Entry::Order { order, decision, balance_after: 1 << 60, imposed: false }
    }

    impl Sample {
        pub(super) fn empty() -> Sample {
            Sample::open(tempdir().expect("a temporary directory"))
        }

        /// The same log, opened again by the next process.
        pub(super) fn restarted(self) -> Sample {
            let Sample { data, log } = self;
            drop(log);
            Sample::open(data)
        }

        fn open(data: TempDir) -> Sample {
            let directory = Directory::create(data.path().join(LOG_DIRECTORY)).expect("made");
            let recovery = Recovery::open(directory, 0, 0).expect("a log, or none");
            let options = Options { segment_bytes: 16 * 1024, spares_ready: 1 };
            let (log, _) = recovery.start(Identity(0xfe), options).expect("started");
            Sample { data, log }
        }

        /// A record of each kind, and an order that was refused.
        pub(super) fn new() -> Sample {
            let mut sample = Sample::empty();
            let refused = Decision::Refused(Code::InsufficientBalance);
            let symbol = Text::new("USDT").expect("short");
            sample.append(&Entry::Asset { asset: 3, precision: 8, symbol });
            sample.append(&order(Op::Deposit, 1001, Decision::Success));
            sample.append(&order(Op::Withdraw, 1002, refused));
            sample.append(&Entry::AccountStatus { user: 1001, status: AccountStatus::Frozen });
            sample.append(&Entry::Mark);
            sample
        }

        pub(super) fn append(&mut self, entry: &Entry) {
            let mut payload = [0; PAYLOAD_BYTES_MAX];
            let length = entry.encode(&mut payload);
            self.append_bytes(entry.kind() as u8, &payload[..length]);
        }

        pub(super) fn append_bytes(&mut self, kind: u8, payload: &[u8]) {
            while let Err(error) = self.log.writer.append(kind, TIME_NS, payload) {
                assert!(matches!(error, wal::Error::Full), "{error}");
                self.log.preparer.tick().expect("prepared");
            }
            self.log.syncer.sync().expect("synced");
        }

        /// Without a sync, where there is room.
        pub(super) fn append_unsynced(&mut self, entry: &Entry, time_ns: u64) {
            let mut payload = [0; PAYLOAD_BYTES_MAX];
            let length = entry.encode(&mut payload);
            let kind = entry.kind() as u8;
            self.log.writer.append(kind, time_ns, &payload[..length]).expect("room");
        }

        /// Leaves the beginning of a record after the last one.
        pub(super) fn tear(&self) {
            let log = self.data.path().join(LOG_DIRECTORY);
            let mut reader = Reader::open(Directory::at(&log), 0).expect("a log");
            let mut end = (0, 0);
            while let Some(record) = reader.next().expect("sound") {
                end = (record.segment, record.offset + record.bytes);
            }
            let segment = log.join(segment_name(end.0));
            let file = OpenOptions::new().write(true).open(segment).expect("the segment");
            file.write_all_at(&[0xa5; 70], end.1).expect("stored");
        }

        pub(super) fn path(&self, name: &str) -> String {
            self.data.path().join(name).to_str().expect("text").to_owned()
        }

        pub(super) fn data(&self) -> String {
            self.path("")
        }

        pub(super) fn segment(&self) -> String {
            self.path(&format!("{LOG_DIRECTORY}/{SEGMENT}"))
        }

        pub(super) fn store(&self, offset: u64, bytes: &[u8]) {
            let file = OpenOptions::new().write(true).open(self.segment()).expect("the segment");
            file.write_all_at(bytes, offset).expect("stored");
        }
    }

    /// The result of a command.
    pub(super) struct Done {
        pub(super) out: String,
        pub(super) notes: String,
        /// The exit code, and the line on stderr.
        failure: Option<(Exit, String)>,
    }

    impl Done {
        pub(super) fn succeeded(self) -> (String, String) {
            assert_eq!(self.failure, None, "{}", self.out);
            (self.out, self.notes)
        }

        pub(super) fn failed(self) -> (Exit, String) {
            self.failure.expect("a failure")
        }
    }

    pub(super) fn command(words: &[&str]) -> WalCommand {
        let line = ["ubscore", "wal"].iter().chain(words);
        let Command::Wal(command) = Cli::try_parse_from(line).expect("arguments").command else {
            panic!("another command")
        };
        command
    }

    fn ubscore_wal_with(
        ink: Ink,
        words: &[&str],
        pause: &mut impl FnMut() -> io::Result<()>,
    ) -> Done {
        let (mut out, mut notes) = (Vec::new(), Vec::new());
        let done = run(&command(words), &mut out, &mut notes, ink, pause);
        let text = |bytes| String::from_utf8(bytes).expect("text");
        let failure = done.err();
        let failure = failure.map(|error| (exit_of(&error), format!("{error:#}")));
        Done { out: text(out), notes: text(notes), failure }
    }

    pub(super) fn ubscore_wal_following(
        words: &[&str],
        pause: &mut impl FnMut() -> io::Result<()>,
    ) -> Done {
        ubscore_wal_with(Ink::PLAIN, words, pause)
    }

    pub(super) fn ubscore_wal_in(ink: Ink, words: &[&str]) -> Done {
        ubscore_wal_with(ink, words, &mut || panic!("nothing is followed"))
    }

    pub(super) fn ubscore_wal(words: &[&str]) -> Done {
        ubscore_wal_in(Ink::PLAIN, words)
    }

    pub(super) fn objects(out: &str) -> Vec<Value> {
        out.lines().map(|line| serde_json::from_str(line).expect(line)).collect()
    }

    pub(super) fn sequences(words: &[&str]) -> Vec<u64> {
        let (out, _) = ubscore_wal(&[&["dump", "--format", "json"], words].concat()).succeeded();
        objects(&out).iter().map(|object| object["sequence"].as_u64().expect("small")).collect()
    }

    #[test]
    fn a_path_is_a_data_directory_a_log_directory_or_a_segment() {
        let sample = Sample::new();
        for path in [sample.data(), sample.path(LOG_DIRECTORY), sample.segment()] {
            assert_eq!(sequences(&[&path]), [1, 2, 3, 4, 5], "{path}");
            let (out, _) = ubscore_wal(&["verify", &path]).succeeded();
            assert_eq!(out, "ok records=5 first=1 last=5 segments=1 ending=clean\n", "{path}");
        }
    }

    #[test]
    fn a_path_without_a_log_exits_with_2() {
        let sample = Sample::new();
        std::fs::create_dir(sample.path("empty")).expect("made");
        std::fs::write(sample.path("text"), "no log").expect("written");
        for name in ["absent", "empty", "text", "text/below"] {
            let path = sample.path(name);
            for step in ["dump", "verify"] {
                let done = ubscore_wal(&[step, &path]);
                assert_eq!(done.out, "", "{path}");
                let (code, why) = done.failed();
                assert_eq!(code, Exit::Arguments, "{why}");
                assert!(why.contains(&path), "{why}");
            }
        }
    }

    #[test]
    fn a_torn_end_is_fine_and_said() {
        let sample = Sample::new();
        sample.store(END, &[0xff; 17]);
        let data = sample.data();
        let torn = format!(
            "ending=torn at {SEGMENT} offset {END} sequence 6: 24 bytes, 0 whole records among \
             them, never acknowledged\n"
        );
        let (out, notes) = ubscore_wal(&["dump", &data]).succeeded();
        assert_eq!(out.lines().count(), 5);
        assert_eq!(notes, format!("last=5 {torn}"));
        let (out, _) = ubscore_wal(&["verify", &data]).succeeded();
        assert_eq!(out, format!("ok records=5 first=1 last=5 segments=1 {torn}"));
        let (out, _) = ubscore_wal(&["verify", &data, "--format", "json"]).succeeded();
        let want = json!({"verdict": "ok", "log": "000000000000000000000000000000fe",
            "records": 5, "first": 1, "last": 5, "segments": 1,
            "cut": {"tails": 0, "bytes": 0, "records": 0}, "short_segments": 0,
            "kind": "torn_tail", "ending": "torn",
            "torn": {"file": SEGMENT, "offset": END, "sequence": 6, "bytes": 24, "records": 0},
            "damage": null, "ignored": {"spares": 0, "unknown": 0}});
        assert_eq!(objects(&out), [want]);
    }

    #[test]
    fn damage_to_a_durable_record_exits_with_1_and_names_the_place() {
        let sample = Sample::new();
        sample.store(4264 + 50, &[0xff]);
        let data = sample.data();
        let damaged = format!(
            "damaged at {SEGMENT} offset 4264 sequence 3: record 5 shows that record 4 was durable"
        );
        let stderr = format!("{}: {damaged}", sample.path(LOG_DIRECTORY));

        let done = ubscore_wal(&["dump", &data]);
        assert_eq!(done.out.lines().count(), 2, "{}", done.out);
        assert_eq!(done.failed(), (Exit::Failed, stderr.clone()));

        let done = ubscore_wal(&["verify", &data]);
        let kind = "kind=below_durable_mark";
        let want = format!("damaged records=2 first=1 last=2 segments=1 {kind}: {damaged}\n");
        assert_eq!(done.out, want);
        assert_eq!(done.failed(), (Exit::Failed, stderr.clone()));

        let done = ubscore_wal(&["verify", &data, "--format", "json"]);
        let want = json!({"verdict": "damaged", "log": "000000000000000000000000000000fe",
            "records": 2, "first": 1, "last": 2, "segments": 1,
            "cut": {"tails": 0, "bytes": 0, "records": 0}, "short_segments": 0,
            "kind": "below_durable_mark", "ending": null, "torn": null,
            "damage": {"kind": "below_durable_mark", "file": SEGMENT, "offset": 4264,
                "sequence": 3, "claimed_by": "record", "reason": damaged},
            "ignored": {"spares": 0, "unknown": 0}});
        assert_eq!(objects(&done.out), [want]);
        assert_eq!(done.failed(), (Exit::Failed, stderr));
    }

    #[test]
    fn a_bad_header_is_damage_of_what_is_named_a_segment() {
        let sample = Sample::new();
        sample.store(20, &[0xff]);
        for path in [sample.data(), sample.segment()] {
            let done = ubscore_wal(&["verify", &path]);
            let want = format!("bad segment header at {SEGMENT} offset 0 sequence 1");
            let nothing = "damaged records=0 first=- last=- segments=0 kind=bad_header";
            assert_eq!(done.out, format!("{nothing}: {want}\n"));
            let (code, why) = done.failed();
            assert_eq!(code, Exit::Failed);
            assert!(why.ends_with(&want), "{why}");
        }
    }

    #[test]
    fn an_undecodable_record_is_shown_by_dump_and_damage_to_verify() {
        let mut sample = Sample::new();
        sample.append_bytes(9, &[0xde, 0xad]);
        sample.append(&Entry::Mark);
        let data = sample.data();
        let (out, notes) = ubscore_wal(&["dump", &data, "--from", "6"]).succeeded();
        let lines: Vec<&str> = out.lines().collect();
        assert_eq!(lines.len(), 2, "{out}");
        assert_eq!(
            lines[0],
            "         6 2023-11-14T22:13:20.123456Z RAW    kind=9 bytes=dead \
             (payload of 2 bytes is not a External)"
        );
        assert_eq!(notes, "last=7 undecodable=1 ending=clean\n");
        let (out, _) =
            ubscore_wal(&["dump", &data, "--from", "6", "--limit", "1", "--format", "json"])
                .succeeded();
        let want = json!({"sequence": 6, "time": "2023-11-14T22:13:20.123456789Z", "kind": "RAW",
            "kind_number": 9, "bytes": "dead", "error": "payload of 2 bytes is not a External", "segment": 1,
            "offset": END, "length": 48, "durable": 5});
        assert_eq!(objects(&out), [want]);
        // Such a record cannot be attributed.
        assert_eq!(sequences(&[&data, "--from", "6", "--user", "1001"]), [] as [u64; 0]);

        let done = ubscore_wal(&["verify", &data]);
        let undecodable = format!("undecodable record at {SEGMENT} offset {END} sequence 6");
        let want = format!("{undecodable}: payload of 2 bytes is not a External");
        let read = "damaged records=5 first=1 last=5 segments=1 kind=undecodable_record";
        assert_eq!(done.out, format!("{read}: {want}\n"));
        let log = sample.path(LOG_DIRECTORY);
        assert_eq!(done.failed(), (Exit::Failed, format!("{log}: {want}")));
    }

    /// A pipe without a reader.
    struct Closed;

    impl Write for Closed {
        fn write(&mut self, _bytes: &[u8]) -> io::Result<usize> {
            Err(io::ErrorKind::BrokenPipe.into())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_closed_pipe_ends_it_quietly_and_hides_no_damage() {
        let sample = Sample::new();
        let data = sample.data();
        let closed = |words: &[&str]| {
            let mut notes = Vec::new();
            run(&command(words), &mut Closed, &mut notes, Ink::PLAIN, &mut || Ok(()))
        };
        for words in [&["dump", &*data][..], &["dump", &data, "--follow"], &["verify", &data]] {
            closed(words).expect("quiet");
        }
        sample.store(4264 + 50, &[0xff]);
        let error = closed(&["verify", &data]).expect_err("damage");
        let error = error.downcast_ref::<Error>().expect("the log's own error");
        assert_eq!(error.damage().map(|damage| damage.place.sequence), Some(3));
    }
}
