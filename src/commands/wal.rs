//! `ubscore wal`: reads the log, also while the service writes it, and changes nothing.
//!
//! Records go to `out` as they are read, one a line; how the log ends goes to `notes`, so that a
//! pipe gets records alone. Exit codes: 0 also for a torn end, which is said; 1 for damage; 2 where
//! there is no log to read.

pub(super) mod line;

use std::fs;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use serde::Serialize;
use wal::{Directory, Ending, Place, Reader, Record, Sequence, Torn, segment_name};

use self::line::{Assets, Integer, Line};
use crate::cli::{WalCommand, WalDumpArgs, WalVerifyArgs};
use crate::config::Format;
use crate::engine::order::{self, Entry, Kind};

/// Where the log lies in a data directory.
pub const LOG_DIRECTORY: &str = "wal";

/// How long `--follow` waits before it looks for records again, in ns: short to the eye, and rare
/// enough to cost nothing.
const FOLLOW_PAUSE_NS: i64 = 100_000_000;

/// Records read in search of assets before the first wanted segment. UBSCore learns its assets at
/// its first start, so they stand at the front; one that stands further back is printed by number.
const ASSET_SEARCH_RECORDS_MAX: u64 = 65_536;

/// Bytes of output gathered before they are written.
const OUT_BYTES: usize = 64 * 1024;

/// Why nothing, or no more, was read.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is nothing at the path, or it may not be read. Correct the path.
    #[error("read {}", path.display())]
    Unreadable {
        /// As it was given.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The path leads to something else. Correct it.
    #[error(
        "{} is no log: give a data directory, a log directory or one segment",
        path.display()
    )]
    NotALog {
        /// As it was given.
        path: PathBuf,
    },
    /// No sequence lies between the two. Correct them.
    #[error("--to {to} is before --from {from}")]
    Range {
        /// The first sequence wanted.
        from: Sequence,
        /// The last one.
        to: Sequence,
    },
    /// The log refuses: it is damaged, not whole, or cannot be read.
    #[error("{}", path.display())]
    Log {
        /// The log's directory, or one segment.
        path: PathBuf,
        /// Why, and where.
        source: wal::Error,
    },
    /// A whole record holds what this program cannot have written, or not in this version.
    #[error("{}: undecodable record at {place}", path.display())]
    Payload {
        /// The log's directory, or one segment.
        path: PathBuf,
        /// Where the record begins.
        place: Place,
        /// What is wrong with it.
        source: order::Error,
    },
    /// The output could not be written, and not because its reader has left.
    #[error("write the output")]
    Write(#[from] io::Error),
}

impl Error {
    /// Whether it is what the command was told that is wrong, and not the log.
    pub fn is_about_arguments(&self) -> bool {
        match self {
            Error::Unreadable { .. } | Error::NotALog { .. } | Error::Range { .. } => true,
            Error::Log { source, .. } => matches!(source, wal::Error::Medium { .. }),
            Error::Payload { .. } | Error::Write(_) => false,
        }
    }

    /// What is wrong in the log, and where; none if it is something else that went wrong.
    fn damage(&self) -> Option<Damage<'_>> {
        match self {
            Error::Payload { place, source, .. } => {
                Some(Damage { place, reason: format!("undecodable record at {place}: {source}") })
            }
            Error::Log { source, .. } => match source {
                wal::Error::Damaged { place, .. }
                | wal::Error::Missing { place }
                | wal::Error::Header { place }
                | wal::Error::Version { place, .. }
                | wal::Error::Foreign { place, .. }
                | wal::Error::Order { place }
                | wal::Error::Chain { place } => Some(Damage { place, reason: source.to_string() }),
                _ => None,
            },
            _ => None,
        }
    }

    /// Whether nobody reads the output any more, which is how `| head` ends.
    fn is_hang_up(&self) -> bool {
        matches!(self, Error::Write(source) if source.kind() == io::ErrorKind::BrokenPipe)
    }
}

/// What is wrong in a log.
struct Damage<'a> {
    /// The first bad place.
    place: &'a Place,
    /// A sentence that names the place.
    reason: String,
}

/// Carries out one of the subcommands.
///
/// `notes`: for how the log ends. `pause`: called by `--follow` at the end of a log, returns when it
/// is time to look again; [`io::ErrorKind::BrokenPipe`] ends it quietly, as it does in `out`.
///
/// # Errors
/// [`Error`]; what was read before it has been written.
pub fn run(
    command: &WalCommand,
    out: &mut impl Write,
    notes: &mut impl Write,
    pause: &mut impl FnMut() -> io::Result<()>,
) -> Result<(), Error> {
    let mut out = BufWriter::with_capacity(OUT_BYTES, out);
    let done = match command {
        WalCommand::Dump(args) => dump(args, &mut out, notes, pause),
        WalCommand::Verify(args) => verify(args, &mut out),
    };
    // What was read before the damage is what an operator looks for.
    let flushed = out.flush().map_err(Error::Write);
    match done.and(flushed) {
        Err(error) if error.is_hang_up() => Ok(()),
        done => done,
    }
}

/// Waits a moment for a live log to grow, or until nobody reads stdout any more.
///
/// It polls stdout, since an idle log gives no write that would meet the closed pipe.
///
/// # Errors
/// [`io::ErrorKind::BrokenPipe`]: the reader has left. Otherwise what the system said.
pub fn pause() -> io::Result<()> {
    let stdout = io::stdout();
    // No event is asked for: a hang-up is told unasked.
    let mut watched = [PollFd::new(&stdout, PollFlags::empty())];
    match poll(&mut watched, Some(&Timespec { tv_sec: 0, tv_nsec: FOLLOW_PAUSE_NS })) {
        Ok(0) | Err(Errno::INTR) => Ok(()),
        Ok(_) => Err(io::ErrorKind::BrokenPipe.into()),
        Err(errno) => Err(errno.into()),
    }
}

/// Prints the records that are asked for, then how the log ends, if that was reached.
fn dump(
    args: &WalDumpArgs,
    out: &mut impl Write,
    notes: &mut impl Write,
    pause: &mut impl FnMut() -> io::Result<()>,
) -> Result<(), Error> {
    let (from, to) = (args.from.unwrap_or(0), args.to.unwrap_or(Sequence::MAX));
    if to < from {
        return Err(Error::Range { from, to });
    }
    let (log, reader) = Log::find(&args.path)?;
    let mut assets = Assets::default();
    let (mut reader, mut last) = seek(&log, reader, from, &mut assets)?;
    let mut left = args.limit.unwrap_or(u64::MAX);
    let mut undecodable = 0;
    loop {
        let Some(record) = reader.next().map_err(|source| log.refused(source))? else {
            if !args.follow {
                break;
            }
            out.flush()?;
            pause()?;
            continue;
        };
        if record.sequence > to {
            return Ok(());
        }
        last = record.sequence;
        let entry = Entry::decode(record.kind, record.payload);
        if let Ok(Entry::Asset { asset, precision, symbol }) = entry {
            assets.learn(asset, precision, symbol);
        }
        if record.sequence < from {
            continue;
        }
        undecodable += u64::from(entry.is_err());
        if wanted(args, &entry) {
            let line = Line { record: &record, entry: &entry, assets: &assets };
            match args.format {
                Format::Text => writeln!(out, "{}", line.text())?,
                Format::Json => writeln!(out, "{}", line.json())?,
            }
            left -= 1;
        }
        if left == 0 || record.sequence == to {
            return Ok(());
        }
    }
    let ending = reader.ending().map_err(|source| log.refused(source))?;
    // Before the note: on a terminal the end stands behind the records.
    out.flush()?;
    let note = match args.format {
        Format::Text => {
            let undecodable = match undecodable {
                0 => String::new(),
                count => format!(" undecodable={count}"),
            };
            format!("last={last}{undecodable} {}", ending_text(&ending))
        }
        Format::Json => json(&DumpEnd {
            last: last.into(),
            undecodable,
            ending: ending_name(&ending),
            torn: TornObject::of(&ending),
        }),
    };
    // The records have been written; with nobody at the other end of stderr, that is all.
    writeln!(notes, "{note}").ok();
    Ok(())
}

/// How a dump has ended.
#[derive(Serialize)]
struct DumpEnd<'a> {
    last: Integer,
    undecodable: u64,
    ending: &'static str,
    torn: Option<TornObject<'a>>,
}

/// Whether the filters let the record pass. One that cannot be decoded passes only if none of them
/// asks for its contents.
fn wanted(args: &WalDumpArgs, entry: &Result<Entry, order::Error>) -> bool {
    let (req_id, user, op) = match entry {
        Ok(Entry::Order { order, .. }) => (Some(order.req_id), Some(order.user), Some(order.op)),
        Ok(Entry::AccountStatus { user, .. }) => (None, Some(*user), None),
        Ok(Entry::Asset { .. } | Entry::Watermark { .. } | Entry::Mark | Entry::Digest { .. })
        | Err(_) => (None, None, None),
    };
    args.req_id.is_none_or(|wanted| req_id == Some(wanted.0))
        && args.user.is_none_or(|wanted| user == Some(wanted))
        && args.op.is_none_or(|wanted| op == Some(wanted))
}

/// A reader that stands at the segment of the record `from`, and what can be learned about assets
/// before it without reading much. Returns the sequence before the reader's first record, too.
fn seek(
    log: &Log,
    mut reader: Reader<Directory>,
    from: Sequence,
    assets: &mut Assets,
) -> Result<(Reader<Directory>, Sequence), Error> {
    let mut firsts = reader.headers().map(|header| header.first());
    let first = firsts.next().expect("a log was found by its first segment");
    let Some(start) = firsts.take_while(|first| *first <= from).last() else {
        return Ok((reader, first - 1));
    };
    for _ in 0..ASSET_SEARCH_RECORDS_MAX {
        // What is damaged here is not what was asked for; the assets then go by number.
        match reader.next() {
            Ok(Some(record)) if record.sequence < start => {
                if record.kind == Kind::Asset as u8
                    && let Ok(Entry::Asset { asset, precision, symbol }) =
                        Entry::decode(record.kind, record.payload)
                {
                    assets.learn(asset, precision, symbol);
                }
            }
            _ => break,
        }
    }
    Ok((log.reader(start)?, start - 1))
}

/// Reads and decodes everything, and prints what was found.
fn verify(args: &WalVerifyArgs, out: &mut impl Write) -> Result<(), Error> {
    let mut verdict = Verdict::default();
    let checked = check(&args.path, &mut verdict);
    let found = match &checked {
        Ok(ending) => Ok(ending),
        Err(error) => match error.damage() {
            Some(damage) => Err(damage),
            // Nothing was found out about the log.
            None => return checked.map(drop),
        },
    };
    let line = match args.format {
        Format::Text => verdict.text(&found),
        Format::Json => verdict.json(&found),
    };
    let written = writeln!(out, "{line}");
    // Damage first: the exit code must tell it even if nobody reads the verdict.
    checked?;
    Ok(written?)
}

/// Reads and decodes everything, and counts it in `verdict`, up to the first damage.
fn check(path: &Path, verdict: &mut Verdict) -> Result<Ending, Error> {
    let (log, mut reader) = Log::find(path)?;
    verdict.log = reader.identity().map(|identity| identity.to_string());
    loop {
        verdict.segments = reader.headers().count();
        let Some(record) = reader.next().map_err(|source| log.refused(source))? else { break };
        Entry::decode(record.kind, record.payload).map_err(|source| Error::Payload {
            path: log.path.clone(),
            place: log.place(&record),
            source,
        })?;
        verdict.records += 1;
        verdict.first.get_or_insert(record.sequence);
        verdict.last = Some(record.sequence);
    }
    reader.ending().map_err(|source| log.refused(source))
}

/// What was read of a log.
#[derive(Default)]
struct Verdict {
    /// Its identity.
    log: Option<String>,
    segments: usize,
    records: u64,
    first: Option<Sequence>,
    last: Option<Sequence>,
}

impl Verdict {
    fn text(&self, found: &Result<&Ending, Damage<'_>>) -> String {
        let sequence = |sequence: Option<Sequence>| match sequence {
            Some(sequence) => sequence.to_string(),
            None => "-".to_owned(),
        };
        let read = format!(
            "records={} first={} last={} segments={}",
            self.records,
            sequence(self.first),
            sequence(self.last),
            self.segments,
        );
        match found {
            Ok(ending) => format!("ok {read} {}", ending_text(ending)),
            Err(damage) => format!("damaged {read}: {}", damage.reason),
        }
    }

    fn json(&self, found: &Result<&Ending, Damage<'_>>) -> String {
        let ending = found.as_ref().ok();
        json(&VerdictObject {
            verdict: if found.is_ok() { "ok" } else { "damaged" },
            log: self.log.as_deref(),
            records: self.records.into(),
            first: self.first.map(Integer::from),
            last: self.last.map(Integer::from),
            segments: self.segments,
            ending: ending.map(|ending| ending_name(ending)),
            torn: ending.and_then(|ending| TornObject::of(ending)),
            damage: found.as_ref().err().map(|damage| DamageObject {
                at: PlaceObject::of(damage.place),
                reason: &damage.reason,
            }),
        })
    }
}

#[derive(Serialize)]
struct VerdictObject<'a> {
    verdict: &'static str,
    log: Option<&'a str>,
    records: Integer,
    first: Option<Integer>,
    last: Option<Integer>,
    segments: usize,
    ending: Option<&'static str>,
    torn: Option<TornObject<'a>>,
    damage: Option<DamageObject<'a>>,
}

#[derive(Serialize)]
struct PlaceObject<'a> {
    file: &'a str,
    offset: Integer,
    sequence: Integer,
}

impl<'a> PlaceObject<'a> {
    fn of(place: &'a Place) -> PlaceObject<'a> {
        PlaceObject {
            file: &place.file,
            offset: place.offset.into(),
            sequence: place.sequence.into(),
        }
    }
}

#[derive(Serialize)]
struct TornObject<'a> {
    #[serde(flatten)]
    at: PlaceObject<'a>,
    bytes: Integer,
    records: Integer,
}

impl<'a> TornObject<'a> {
    fn of(ending: &'a Ending) -> Option<TornObject<'a>> {
        let Ending::Torn(Torn { place, bytes, records }) = ending else { return None };
        Some(TornObject {
            at: PlaceObject::of(place),
            bytes: (*bytes).into(),
            records: (*records).into(),
        })
    }
}

#[derive(Serialize)]
struct DamageObject<'a> {
    #[serde(flatten)]
    at: PlaceObject<'a>,
    reason: &'a str,
}

fn ending_name(ending: &Ending) -> &'static str {
    match ending {
        Ending::Clean => "clean",
        Ending::Torn(_) => "torn",
    }
}

fn ending_text(ending: &Ending) -> String {
    match ending {
        Ending::Clean => "ending=clean".to_owned(),
        Ending::Torn(Torn { place, bytes, records }) => format!(
            "ending=torn at {place}: {bytes} bytes, {records} whole records among them, \
             never acknowledged"
        ),
    }
}

pub(super) fn json(object: &impl Serialize) -> String {
    serde_json::to_string(object).expect("text and numbers under text keys")
}

/// Where a log is.
struct Log {
    /// Its directory, or one segment.
    path: PathBuf,
    /// The segment's name; none for a directory.
    file: Option<String>,
}

impl Log {
    /// Finds the log that `path` means, and a reader that stands at its first record.
    fn find(path: &Path) -> Result<(Log, Reader<Directory>), Error> {
        let unreadable = |source| Error::Unreadable { path: path.to_owned(), source };
        let not_a_log = || Error::NotALog { path: path.to_owned() };
        let metadata = fs::metadata(path).map_err(unreadable)?;
        if metadata.is_file() {
            let name = path.file_name().map(|name| name.to_string_lossy().into_owned());
            let name = name.ok_or_else(not_a_log)?;
            // A segment by its name is a log, whatever has become of its header.
            let named = name.starts_with("segment-") && name.ends_with(".wal");
            let log = Log { path: path.to_owned(), file: Some(name) };
            return match log.reader(0) {
                Err(Error::Log { source: wal::Error::Header { .. }, .. }) if !named => {
                    Err(not_a_log())
                }
                reader => Ok((log, reader?)),
            };
        }
        if !metadata.is_dir() {
            return Err(not_a_log());
        }
        for directory in [path.to_owned(), path.join(LOG_DIRECTORY)] {
            if directory.is_dir() {
                let log = Log { path: directory, file: None };
                let reader = log.reader(0)?;
                if reader.identity().is_some() {
                    return Ok((log, reader));
                }
            }
        }
        Err(not_a_log())
    }

    /// A reader that begins with the record `from`; 0 for the first there is.
    fn reader(&self, from: Sequence) -> Result<Reader<Directory>, Error> {
        Reader::open_path(&self.path, from).map_err(|source| self.refused(source))
    }

    fn refused(&self, source: wal::Error) -> Error {
        Error::Log { path: self.path.clone(), source }
    }

    fn place(&self, record: &Record<'_>) -> Place {
        let file = self.file.clone().unwrap_or_else(|| segment_name(record.segment));
        Place { file, offset: record.offset, sequence: record.sequence }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::OpenOptions;
    use std::os::unix::fs::FileExt;
    use std::process::ExitCode;

    use clap::Parser;
    use serde_json::{Value, json};
    use tempfile::{TempDir, tempdir};
    use ulid::Ulid;
    use wal::{Identity, Options, Recovery};

    use super::*;
    use crate::account::AccountStatus;
    use crate::cli::{Cli, Command};
    use crate::code::Code;
    use crate::commands::exit_code;
    use crate::engine::order::{Order, PAYLOAD_BYTES_MAX, Text};
    use crate::transfer::{Decision, Direction, Op};

    const REQ_ID: &str = "01JFVQ2X8Z0Y1M3N4P5R6S7T8V";
    const TIME_NS: u64 = 1_700_000_000_123_456_789;
    const SEGMENT: &str = "segment-0000000000000001.wal";
    /// Where the records of [`Sample::new`] end, in bytes.
    const END: u64 = 4472;

    /// A real log in a data directory, open for appending.
    struct Sample {
        data: TempDir,
        log: wal::Log<Directory>,
    }

    fn order(op: Op, user: u64, decision: Decision) -> Entry {
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
        Entry::Order { order, decision, balance_after: 1 << 60 }
    }

    impl Sample {
        fn empty() -> Sample {
            let data = tempdir().expect("a temporary directory");
            let directory = Directory::create(data.path().join(LOG_DIRECTORY)).expect("made");
            let recovery = Recovery::open(directory, 0, 0).expect("an empty log");
            let options = Options { segment_bytes: 16 * 1024, spares_ready: 1 };
            let (log, _) = recovery.start(Identity(0xfe), options).expect("started");
            Sample { data, log }
        }

        /// A record of each kind, and an order that was refused.
        fn new() -> Sample {
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

        fn append(&mut self, entry: &Entry) {
            let mut payload = [0; PAYLOAD_BYTES_MAX];
            let length = entry.encode(&mut payload);
            self.append_bytes(entry.kind() as u8, &payload[..length]);
        }

        fn append_bytes(&mut self, kind: u8, payload: &[u8]) {
            while let Err(error) = self.log.writer.append(kind, TIME_NS, payload) {
                assert!(matches!(error, wal::Error::Full), "{error}");
                self.log.preparer.tick().expect("prepared");
            }
            self.log.syncer.sync().expect("synced");
        }

        fn path(&self, name: &str) -> String {
            self.data.path().join(name).to_str().expect("text").to_owned()
        }

        fn data(&self) -> String {
            self.path("")
        }

        fn segment(&self) -> String {
            self.path(&format!("{LOG_DIRECTORY}/{SEGMENT}"))
        }

        fn store(&self, offset: u64, bytes: &[u8]) {
            let file = OpenOptions::new().write(true).open(self.segment()).expect("the segment");
            file.write_all_at(bytes, offset).expect("stored");
        }
    }

    /// What a command has left behind.
    struct Done {
        out: String,
        notes: String,
        /// The exit code, and the line on stderr.
        failure: Option<(ExitCode, String)>,
    }

    impl Done {
        fn succeeded(self) -> (String, String) {
            assert_eq!(self.failure, None, "{}", self.out);
            (self.out, self.notes)
        }

        fn failed(self) -> (ExitCode, String) {
            self.failure.expect("a failure")
        }
    }

    fn command(words: &[&str]) -> WalCommand {
        let line = ["ubscore", "wal"].iter().chain(words);
        let Command::Wal(command) = Cli::try_parse_from(line).expect("arguments").command else {
            panic!("another command")
        };
        command
    }

    fn ubscore_wal_following(words: &[&str], pause: &mut impl FnMut() -> io::Result<()>) -> Done {
        let (mut out, mut notes) = (Vec::new(), Vec::new());
        let done = run(&command(words), &mut out, &mut notes, pause);
        let text = |bytes| String::from_utf8(bytes).expect("text");
        let failure = done.map_err(anyhow::Error::from).err();
        let failure = failure.map(|error| (exit_code(&error), format!("{error:#}")));
        Done { out: text(out), notes: text(notes), failure }
    }

    fn ubscore_wal(words: &[&str]) -> Done {
        ubscore_wal_following(words, &mut || panic!("nothing is followed"))
    }

    fn objects(out: &str) -> Vec<Value> {
        out.lines().map(|line| serde_json::from_str(line).expect(line)).collect()
    }

    fn sequences(words: &[&str]) -> Vec<u64> {
        let (out, _) = ubscore_wal(&[&["dump", "--format", "json"], words].concat()).succeeded();
        objects(&out).iter().map(|object| object["sequence"].as_u64().expect("small")).collect()
    }

    #[test]
    fn text_is_one_aligned_line_a_record() {
        let sample = Sample::new();
        let (out, notes) = ubscore_wal(&["dump", &sample.data()]).succeeded();
        let want = "
         1 2023-11-14T22:13:20.123456Z ASSET  -                          -                 - USDT                        -                    - id=3 precision=8
         2 2023-11-14T22:13:20.123456Z ORDER  01JFVQ2X8Z0Y1M3N4P5R6S7T8V DEPOSIT        1001 USDT                    250.5 11529215046.06846976 SUCCESS
         3 2023-11-14T22:13:20.123456Z ORDER  01JFVQ2X8Z0Y1M3N4P5R6S7T8V WITHDRAW       1002 USDT                    250.5 11529215046.06846976 INSUFFICIENT_BALANCE
         4 2023-11-14T22:13:20.123456Z STATUS -                          -              1001 -                           -                    - FROZEN
         5 2023-11-14T22:13:20.123456Z MARK   -                          -                 - -                           -                    - durable=4
";
        assert_eq!(format!("\n{out}"), want);
        assert_eq!(notes, "last=5 ending=clean\n");
    }

    #[test]
    fn json_says_all_of_it_and_keeps_large_numbers_exact() {
        let sample = Sample::new();
        let (out, notes) = ubscore_wal(&["dump", &sample.data(), "--format", "json"]).succeeded();
        let time = "2023-11-14T22:13:20.123456789Z";
        let want = [
            json!({"sequence": 1, "time": time, "kind": "ASSET", "asset": "USDT", "asset_id": 3,
                "precision": 8, "segment": 1, "offset": 4096, "length": 56, "durable": 0}),
            json!({"sequence": 2, "time": time, "kind": "ORDER", "req_id": REQ_ID, "cid": "c-1",
                "op": "DEPOSIT", "direction": "funding_to_spot", "user": 1001, "asset": "USDT",
                "asset_id": 3, "amount": "250.5", "amount_units": 25_050_000_000_u64,
                "balance_after": "11529215046.06846976",
                "balance_after_units": "1152921504606846976", "outcome": "SUCCESS",
                "order_number": "1152921504606846976", "segment": 1, "offset": 4152,
                "length": 112, "durable": 1}),
            json!({"sequence": 3, "time": time, "kind": "ORDER", "req_id": REQ_ID, "cid": null,
                "op": "WITHDRAW", "direction": "funding_to_spot", "user": 1002,
                "asset": "USDT", "asset_id": 3, "amount": "250.5",
                "amount_units": 25_050_000_000_u64, "balance_after": "11529215046.06846976",
                "balance_after_units": "1152921504606846976", "outcome": "INSUFFICIENT_BALANCE",
                "order_number": "1152921504606846976", "segment": 1, "offset": 4264,
                "length": 112, "durable": 2}),
            json!({"sequence": 4, "time": time, "kind": "STATUS", "user": 1001,
                "status": "FROZEN", "segment": 1, "offset": 4376, "length": 56, "durable": 3}),
            json!({"sequence": 5, "time": time, "kind": "MARK", "segment": 1, "offset": 4432,
                "length": 40, "durable": 4}),
        ];
        assert_eq!(objects(&out), want);
        assert!(out.starts_with(r#"{"sequence":1,"time":"#), "{out}");
        let ended = json!({"last": 5, "undecodable": 0, "ending": "clean", "torn": null});
        assert_eq!(objects(&notes), [ended]);
    }

    #[test]
    fn filters_let_pass_what_they_name() {
        let sample = Sample::new();
        let data = sample.data();
        for (words, want) in [
            (&["--from", "2", "--to", "4"][..], &[2, 3, 4][..]),
            (&["--from", "4"], &[4, 5]),
            (&["--from", "9"], &[]),
            (&["--to", "1"], &[1]),
            (&["--limit", "2"], &[1, 2]),
            (&["--req-id", REQ_ID], &[2, 3]),
            (&["--req-id", REQ_ID, "--limit", "1"], &[2]),
            (&["--req-id", "01JFVQ2X8Z0Y1M3N4P5R6S7T8W"], &[]),
            (&["--user", "1001"], &[2, 4]),
            (&["--op", "WITHDRAW"], &[3]),
            (&["--op", "WITHDRAW", "--user", "1001"], &[]),
        ] {
            assert_eq!(sequences(&[&[data.as_str()], words].concat()), want, "{words:?}");
        }
        // Who stops before the end has not seen it.
        let (_, notes) = ubscore_wal(&["dump", &data, "--to", "5"]).succeeded();
        assert_eq!(notes, "");
        let (code, why) = ubscore_wal(&["dump", &data, "--from", "3", "--to", "2"]).failed();
        assert_eq!((code, &*why), (ExitCode::from(2), "--to 2 is before --from 3"));
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
            for deed in ["dump", "verify"] {
                let done = ubscore_wal(&[deed, &path]);
                assert_eq!(done.out, "", "{path}");
                let (code, why) = done.failed();
                assert_eq!(code, ExitCode::from(2), "{why}");
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
            "records": 5, "first": 1, "last": 5, "segments": 1, "ending": "torn",
            "torn": {"file": SEGMENT, "offset": END, "sequence": 6, "bytes": 24, "records": 0},
            "damage": null});
        assert_eq!(objects(&out), [want]);
    }

    #[test]
    fn damage_to_a_durable_record_exits_with_1_and_names_the_place() {
        let sample = Sample::new();
        sample.store(4264 + 50, &[0xff]);
        let data = sample.data();
        let damaged =
            format!("damaged at {SEGMENT} offset 4264 sequence 3: record 5 knows 4 to be durable");
        let stderr = format!("{}: {damaged}", sample.path(LOG_DIRECTORY));

        let done = ubscore_wal(&["dump", &data]);
        assert_eq!(done.out.lines().count(), 2, "{}", done.out);
        assert_eq!(done.failed(), (ExitCode::FAILURE, stderr.clone()));

        let done = ubscore_wal(&["verify", &data]);
        assert_eq!(done.out, format!("damaged records=2 first=1 last=2 segments=1: {damaged}\n"));
        assert_eq!(done.failed(), (ExitCode::FAILURE, stderr.clone()));

        let done = ubscore_wal(&["verify", &data, "--format", "json"]);
        let want = json!({"verdict": "damaged", "log": "000000000000000000000000000000fe",
            "records": 2, "first": 1, "last": 2, "segments": 1, "ending": null, "torn": null,
            "damage": {"file": SEGMENT, "offset": 4264, "sequence": 3, "reason": damaged}});
        assert_eq!(objects(&done.out), [want]);
        assert_eq!(done.failed(), (ExitCode::FAILURE, stderr));
    }

    #[test]
    fn a_bad_header_is_damage_of_what_is_named_a_segment() {
        let sample = Sample::new();
        sample.store(20, &[0xff]);
        for path in [sample.data(), sample.segment()] {
            let done = ubscore_wal(&["verify", &path]);
            let want = format!("bad segment header at {SEGMENT} offset 0 sequence 1");
            let nothing = "damaged records=0 first=- last=- segments=0";
            assert_eq!(done.out, format!("{nothing}: {want}\n"));
            let (code, why) = done.failed();
            assert_eq!(code, ExitCode::FAILURE);
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
             (unknown record kind 9)"
        );
        assert_eq!(notes, "last=7 undecodable=1 ending=clean\n");
        let (out, _) =
            ubscore_wal(&["dump", &data, "--from", "6", "--limit", "1", "--format", "json"])
                .succeeded();
        let want = json!({"sequence": 6, "time": "2023-11-14T22:13:20.123456789Z", "kind": "RAW",
            "kind_number": 9, "bytes": "dead", "error": "unknown record kind 9", "segment": 1,
            "offset": END, "length": 48, "durable": 5});
        assert_eq!(objects(&out), [want]);
        // Nobody can tell whose it is.
        assert_eq!(sequences(&[&data, "--from", "6", "--user", "1001"]), [] as [u64; 0]);

        let done = ubscore_wal(&["verify", &data]);
        let undecodable = format!("undecodable record at {SEGMENT} offset {END} sequence 6");
        let want = format!("{undecodable}: unknown record kind 9");
        assert_eq!(done.out, format!("damaged records=5 first=1 last=5 segments=1: {want}\n"));
        let log = sample.path(LOG_DIRECTORY);
        assert_eq!(done.failed(), (ExitCode::FAILURE, format!("{log}: {want}")));
    }

    #[test]
    fn an_asset_that_is_not_known_yet_goes_by_its_number() {
        let mut sample = Sample::empty();
        sample.append(&order(Op::Deposit, 1001, Decision::Success));
        let (out, _) = ubscore_wal(&["dump", &sample.data()]).succeeded();
        let words: Vec<&str> = out.split_whitespace().collect();
        assert_eq!(words[6..], ["#3", "25050000000u", "1152921504606846976u", "SUCCESS"]);
        let (out, _) = ubscore_wal(&["dump", &sample.data(), "--format", "json"]).succeeded();
        let object = objects(&out).remove(0);
        assert_eq!((&object["asset"], &object["amount"]), (&Value::Null, &Value::Null));
        assert_eq!(
            (&object["asset_id"], &object["amount_units"]),
            (&json!(3), &json!(25_050_000_000_u64))
        );
    }

    /// Goal: `--from` neither reads nor forgets what the front of the log says of assets. Method: the
    /// first segment is damaged behind the asset, and wanted is a record of a later one.
    #[test]
    fn symbols_are_known_from_the_front_of_a_log() {
        let mut sample = Sample::new();
        while sample.log.writer.appended() < 300 {
            sample.append(&order(Op::Deposit, 1001, Decision::Success));
        }
        sample.store(4264 + 50, &[0xff]);
        let words = ["dump", &sample.data(), "--from", "300"];
        let (out, notes) = ubscore_wal(&words).succeeded();
        assert!(out.contains(" USDT ") && out.lines().count() == 1, "{out}");
        assert_eq!(notes, "last=300 ending=clean\n");
    }

    /// Goal: `--follow` shows what is appended later, across segments. Method: the pause appends
    /// more than a segment holds, and at last hangs up.
    #[test]
    fn follow_shows_what_is_appended_later() {
        let mut sample = Sample::new();
        let data = sample.data();
        let words = ["dump", &data, "--from", "5", "--format", "json", "--follow"];
        let done = ubscore_wal_following(&words, &mut || {
            if sample.log.writer.appended() > 300 {
                return Err(io::ErrorKind::BrokenPipe.into());
            }
            for _ in 0..100 {
                sample.append(&order(Op::Refund, 1001, Decision::Success));
            }
            Ok(())
        });
        let (out, notes) = done.succeeded();
        let objects = objects(&out);
        let sequences: Vec<u64> =
            objects.iter().filter_map(|object| object["sequence"].as_u64()).collect();
        assert_eq!(sequences, (5..=305).collect::<Vec<u64>>());
        assert!(objects.last().expect("records")["segment"].as_u64() > Some(1));
        assert_eq!(notes, "");
    }

    #[test]
    fn follow_ends_by_itself_where_it_is_told_to() {
        let sample = Sample::new();
        let data = sample.data();
        for words in [["--to", "5"], ["--limit", "5"]] {
            let words = [&["dump", &data, "--follow"], &words[..]].concat();
            let (out, _) = ubscore_wal(&words).succeeded();
            assert_eq!(out.lines().count(), 5);
        }
    }

    /// A pipe that nobody reads any more.
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
            run(&command(words), &mut Closed, &mut notes, &mut || Ok(()))
        };
        for words in [&["dump", &*data][..], &["dump", &data, "--follow"], &["verify", &data]] {
            closed(words).expect("quiet");
        }
        sample.store(4264 + 50, &[0xff]);
        let error = closed(&["verify", &data]).expect_err("damage");
        assert_eq!(error.damage().map(|damage| damage.place.sequence), Some(3));
    }
}
