//! `ubscore wal`: reads the log, also while the service writes it, and changes nothing.
//!
//! Records go to `out` as they are read, one a line; how the log ends goes to `notes`, so that a
//! pipe gets records alone. Exit codes: 0 also for a torn end, which is said; 1 for damage; 2 where
//! there is no log to read.

mod line;

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
const LOG_DIRECTORY: &str = "wal";

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

    /// Where the log is damaged; none if it is something else that went wrong.
    fn damage(&self) -> Option<&Place> {
        match self {
            Error::Payload { place, .. } => Some(place),
            Error::Log { source, .. } => match source {
                wal::Error::Damaged { place, .. }
                | wal::Error::Missing { place }
                | wal::Error::Header { place }
                | wal::Error::Version { place, .. }
                | wal::Error::Foreign { place, .. }
                | wal::Error::Order { place }
                | wal::Error::Chain { place } => Some(place),
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
    let mut reader = seek(&log, reader, from, &mut assets)?;
    let mut left = args.limit.unwrap_or(u64::MAX);
    let (mut last, mut undecodable) = (None, 0);
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
        last = Some(Integer::from(record.sequence));
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
            let last = last.map_or_else(|| "-".to_owned(), |last| last.to_string());
            let undecodable = match undecodable {
                0 => String::new(),
                count => format!(" undecodable={count}"),
            };
            format!("last={last}{undecodable} {}", ending_text(&ending))
        }
        Format::Json => json(&DumpEnd {
            last,
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
    last: Option<Integer>,
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
        Ok(Entry::Asset { .. } | Entry::Mark) | Err(_) => (None, None, None),
    };
    args.req_id.is_none_or(|wanted| req_id == Some(wanted.0))
        && args.user.is_none_or(|wanted| user == Some(wanted))
        && args.op.is_none_or(|wanted| op == Some(wanted))
}

/// A reader that stands at the segment of the record `from`, and what can be learned about assets
/// before it without reading much.
fn seek(
    log: &Log,
    mut reader: Reader<Directory>,
    from: Sequence,
    assets: &mut Assets,
) -> Result<Reader<Directory>, Error> {
    let firsts = reader.headers().map(|header| header.first());
    let start = firsts.skip(1).take_while(|first| *first <= from).last();
    let Some(start) = start else { return Ok(reader) };
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
    log.reader(start)
}

/// Reads and decodes everything, and prints what was found.
fn verify(args: &WalVerifyArgs, out: &mut impl Write) -> Result<(), Error> {
    let mut verdict = Verdict::default();
    let checked = check(&args.path, &mut verdict);
    let (ending, damage) = match &checked {
        Ok(ending) => (Some(ending), None),
        Err(error) => match error.damage() {
            Some(place) => (None, Some((place, error))),
            // Nothing was found out about the log.
            None => return checked.map(drop),
        },
    };
    let line = match args.format {
        Format::Text => verdict.text(ending, damage),
        Format::Json => verdict.json(ending, damage),
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
    fn text(&self, ending: Option<&Ending>, damage: Option<(&Place, &Error)>) -> String {
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
        match (ending, damage) {
            (Some(ending), _) => format!("ok {read} {}", ending_text(ending)),
            (None, Some((place, error))) => format!("damaged {read} at {place}: {}", reason(error)),
            (None, None) => unreachable!("a log that was read ends or is damaged"),
        }
    }

    fn json(&self, ending: Option<&Ending>, damage: Option<(&Place, &Error)>) -> String {
        json(&VerdictObject {
            verdict: if damage.is_none() { "ok" } else { "damaged" },
            log: self.log.as_deref(),
            records: self.records.into(),
            first: self.first.map(Integer::from),
            last: self.last.map(Integer::from),
            segments: self.segments,
            ending: ending.map(ending_name),
            torn: ending.and_then(TornObject::of),
            damage: damage.map(|(place, error)| DamageObject {
                at: PlaceObject::of(place),
                reason: reason(error),
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
    reason: String,
}

/// What is wrong at the place of the damage.
fn reason(error: &Error) -> String {
    match error {
        Error::Log { source, .. } => source.to_string(),
        Error::Payload { source, .. } => source.to_string(),
        other => other.to_string(),
    }
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

fn json(object: &impl Serialize) -> String {
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
