//! `ubscore backup`: both stores as they stand together, also while the service runs.
//!
//! ```text
//!   snapshots --> log, to its end as of now --> snapshot of PostgreSQL
//!             --> log, to PostgreSQL's last claim --> pg_dump
//! ```
//!
//! The log is copied first, up to a record E, and further up to the last record C that the snapshot
//! of PostgreSQL claims to be durable. The pair is one that a crash could have left:
//!
//! - Everything that PostgreSQL claims of the log is in it, by C.
//! - Every record in it was appended before the snapshot was taken: it was read before, or was
//!   durable before. A worker commits its intent before it asks UBSCore, and the watermark is
//!   raised in PostgreSQL first; so the snapshot holds the intent behind every record.
//!
//! Everything that was answered before the backup began is in it. The directory has another name
//! until it is whole.

pub mod manifest;

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::{self, DirBuilder, File};
use std::io::{self, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};
use engine::entry::Entry;
use engine::snapshot::Snapshot;
use engine::snapshot::store::SnapshotStore;
use jiff::Timestamp;
use serde_json::json;
use wal::{Copied, Copier, Directory, Reader, Sequence};

use self::manifest::{DUMP, FILE, Log, Manifest, Postgres, Summed};
use super::configured::load_config;
use crate::audit::halt;
use crate::audit::verify::{Led, Stores, replayed};
use crate::cli::BackupArgs;
use crate::clock::Clock;
use crate::crash;
use crate::data_dir::{LOG_DIRECTORY, SNAPSHOT_DIRECTORY, sync};
use crate::exit::Exit;
use crate::format::Format;
use crate::postgres;
use crate::postgres::dump::{self, Connection};
use crate::postgres::embedded::programs::find_program;
use crate::postgres::export::{Export, Facts, Place};
use crate::postgres::incarnation::identity_text;
use crate::stores::{Target, with_stores};
use domain::transfer::ReqId;

/// Tries to copy the log. A try fails if a segment is removed meanwhile because a snapshot covers
/// it.
const TRIES_MAX: u32 = 10;
/// Transfers that PostgreSQL is asked for at once.
const NAMES_PER_QUESTION: usize = 1_000;
/// The suffix of a backup that is not complete.
const SUFFIX_UNFINISHED: &str = ".partial";

/// A directory that no backup can be made in.
#[derive(Debug, thiserror::Error)]
pub enum Occupied {
    /// There is something in it.
    #[error("{} is not empty", .0.display())]
    Used(PathBuf),
    /// A backup to the same directory is being made, or was interrupted.
    #[error(
        "{} is there: another backup is at work on it, or was interrupted; remove it then",
        .0.display()
    )]
    Unfinished(PathBuf),
    /// It has no name.
    #[error("{} cannot be made", .0.display())]
    Nameless(PathBuf),
}

/// Makes a backup, and prints its summary.
///
/// # Errors
/// There is none then, unless it was killed, and nothing that `restore` takes for one.
pub fn run(args: &BackupArgs, clock: &dyn Clock, out: &mut impl Write) -> anyhow::Result<Exit> {
    #[cfg(feature = "crash")]
    crash::arm()?;
    let began_ns = clock.monotonic_ns();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let manifest = runtime.block_on(back_up(args, clock))?;
    let ms = (clock.monotonic_ns() - began_ns) / 1_000_000;
    let (directory, bytes) = (args.directory.display(), manifest.bytes());
    let (last, transfers) = (manifest.log.last, manifest.postgres.transfers);
    let seconds = format!("{}.{:03}", ms / 1_000, ms % 1_000);
    let line = match args.format {
        Format::Text => format!(
            "backup {directory} log={last} transfers={transfers} bytes={bytes} seconds={seconds}"
        ),
        Format::Json => {
            let directory = directory.to_string();
            json!({
                "directory": directory, "log": last, "transfers": transfers, "bytes": bytes, "ms": ms,
            })
            .to_string()
        }
    };
    writeln!(out, "{line}").ok();
    Ok(Exit::Done)
}

async fn back_up(args: &BackupArgs, clock: &dyn Clock) -> anyhow::Result<Manifest> {
    let (unfinished, finished) = places(&args.directory)?;
    let work = async |stores: Stores, target: &Target| {
        let mut builder = DirBuilder::new();
        builder.mode(0o700).create(&unfinished).map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => Occupied::Unfinished(unfinished.clone()).into(),
            _ => anyhow::Error::new(error).context(format!("make {}", unfinished.display())),
        })?;
        let filled = fill(&unfinished, stores, target, clock).await.and_then(|manifest| {
            crash::point("backup_before_rename");
            fs::rename(&unfinished, &finished)
                .with_context(|| format!("rename {}", unfinished.display()))?;
            sync(finished.parent().expect("it has a name"))?;
            Ok(manifest)
        });
        if filled.is_err() {
            // If only the new name could not be made durable, the backup is whole and stays.
            fs::remove_dir_all(&unfinished).ok();
        }
        filled
    };
    with_stores(load_config(&args.stores)?, work).await
}

/// The directory in which a backup is made, and its final name.
fn places(directory: &Path) -> anyhow::Result<(PathBuf, PathBuf)> {
    let finished =
        std::path::absolute(directory).with_context(|| format!("find {}", directory.display()))?;
    let Some(name) = finished.file_name() else {
        bail!(Occupied::Nameless(finished));
    };
    match fs::read_dir(&finished).map(|mut entries| entries.next().is_some()) {
        Ok(false) => {}
        Ok(true) => bail!(Occupied::Used(finished)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => {
            return Err(error).with_context(|| format!("look into {}", finished.display()));
        }
    }
    let mut name = name.to_owned();
    name.push(SUFFIX_UNFINISHED);
    Ok((finished.with_file_name(name), finished))
}

async fn fill(
    directory: &Path,
    stores: Stores,
    target: &Target,
    clock: &dyn Clock,
) -> anyhow::Result<Manifest> {
    // A dump is long, and the transaction of its snapshot idles meanwhile.
    let limits = target.patient();
    let client = postgres::connect(&target.address, &limits).await?;
    let place = Place::of(&client).await.context("ask PostgreSQL what it is")?;
    let program = find_program("pg_dump", target.config.postgres.bin.as_deref(), place.major);
    let program = program.await?;
    drop(client);

    let log_dir = directory.join(LOG_DIRECTORY);
    let Begun { mut copier, mut reader, first, last } =
        tokio::task::block_in_place(|| begin_copy(directory, &stores))?;
    let export = Export::begin(&target.address, &limits).await.context("take a snapshot")?;
    let Facts { owner, durable, claimed, audited, transfers } = export.facts().clone();
    let identity = reader.identity().context("there is no log")?;
    ensure!(
        owner.log == Some(identity),
        "the log has identity {}, the database belongs to log {}: they are not a pair",
        identity_text(identity),
        owner.log.map_or("none".to_owned(), identity_text)
    );
    let until = last.max(claimed);
    let copied = tokio::task::block_in_place(|| {
        let reached = copier.copy(&mut reader, until).context("read the log")?;
        ensure!(
            reached == until,
            "the log ends at record {reached}, but PostgreSQL knows of record {until}: the two stores do not belong \
             together; see `ubscore verify`"
        );
        copier.finish(&reader).context("write the copy of the log")
    })?;
    check_intents(&export, &log_dir, audited.max(first.saturating_sub(1))).await?;
    crash::point("backup_after_log");

    let place = export.place().clone();
    let connection = Connection::new(&target.address, &place);
    tokio::task::block_in_place(|| {
        let path = directory.join(DUMP);
        let mut file =
            File::create_new(&path).with_context(|| format!("make {}", path.display()))?;
        dump::dump(&program, &connection, export.name(), &mut file).context("dump PostgreSQL")?;
        file.sync_all().with_context(|| format!("sync {}", path.display()))
    })?;
    // A failed end changes nothing: the dump would have failed before.
    export.end().await.ok();
    crash::point("backup_after_dump");

    tokio::task::block_in_place(|| {
        // PostgreSQL's half has a flag of its own. Either of them halts.
        if let Some(reason) = halt::found_in(&target.config.data_dir) {
            write_new(&directory.join(halt::FILE), reason.as_bytes())?;
        }
        let snapshots = keep_snapshots(directory, &copied)?;
        let led = replayed(&log_dir, &directory.join(SNAPSHOT_DIRECTORY), stores.places)
            .context("replay the copy")?;
        let Led { sequence, watermark, .. } = led;
        ensure!(sequence == copied.last, "the copy ends at record {sequence}, not {}", copied.last);
        ensure!(
            watermark <= owner.watermark,
            "the log's watermark is {watermark}, PostgreSQL's {}: the two stores do not belong together; see \
             `ubscore verify`",
            owner.watermark
        );
        let log = Log {
            identity: identity_text(identity),
            first: copied.first,
            last: copied.last,
            snapshots,
        };
        let database = Postgres {
            version: place.version,
            major: place.major,
            system_identifier: place.system_identifier,
            timeline: place.timeline,
            lsn: place.lsn,
            database: place.database,
            incarnation: owner.incarnation,
            watermark: owner.watermark,
            durable_sequence: durable,
            claimed_sequence: claimed,
            transfers,
        };
        let now_ns = i128::from(clock.now_ns());
        let now = Timestamp::from_nanosecond(now_ns).context("the time")?;
        let manifest = Manifest::new(now.to_string(), log, database, sum_files(directory)?);
        write_new(&directory.join(FILE), &manifest.to_bytes())?;
        for name in [LOG_DIRECTORY, SNAPSHOT_DIRECTORY] {
            sync(&directory.join(name))?;
        }
        sync(directory)?;
        // The checks of a restore.
        Manifest::read(directory)?.check_files(directory)?;
        Ok(manifest)
    })
}

/// Creates a file with these bytes, durably.
fn write_new(path: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    File::create_new(path)
        .and_then(|mut file| file.write_all(bytes).and_then(|()| file.sync_all()))
        .with_context(|| format!("write {}", path.display()))
}

/// A copy of the log up to its end at some moment.
struct Begun {
    copier: Copier,
    reader: Reader<Directory>,
    /// The first record copied.
    first: Sequence,
    /// The last record copied.
    last: Sequence,
}

/// Copies the snapshots and then the log, up to its end as of now.
fn begin_copy(directory: &Path, stores: &Stores) -> anyhow::Result<Begun> {
    let mut tries = 1;
    loop {
        for name in [LOG_DIRECTORY, SNAPSHOT_DIRECTORY] {
            let path = directory.join(name);
            if path.exists() {
                fs::remove_dir_all(&path).with_context(|| format!("empty {}", path.display()))?;
            }
            fs::create_dir(&path).with_context(|| format!("make {}", path.display()))?;
        }
        match try_copy(directory, stores) {
            Ok(Some(begun)) => return Ok(begun),
            Ok(None) if tries < TRIES_MAX => tries += 1,
            Ok(None) => bail!("the log is removed faster than it can be copied"),
            Err(error) => return Err(error),
        }
    }
}

/// One try. `None` if the checkpointer has removed a segment or a snapshot meanwhile.
fn try_copy(directory: &Path, stores: &Stores) -> anyhow::Result<Option<Begun>> {
    let newest = copy_snapshots(&stores.snapshots, &directory.join(SNAPSHOT_DIRECTORY))?;
    let to = directory.join(LOG_DIRECTORY);
    let tried = || -> Result<_, wal::Error> {
        let mut reader = Reader::open(Directory::at(&stores.log), 0)?;
        let mut copier = Copier::create(Directory::at(&to))?;
        let last = copier.copy(&mut reader, Sequence::MAX)?;
        Ok((copier, reader, last))
    };
    let (copier, reader, last) = match tried() {
        Ok(copied) => copied,
        Err(error) if is_gone(&error) => return Ok(None),
        Err(error) => return Err(error).context("copy the log"),
    };
    let first = copier.first();
    debug_assert!(first <= last + 1, "the copy is one piece: {first} to {last}");
    // It begins where a snapshot stands that was made since.
    if first > 1 && newest.is_none_or(|newest| newest < first) {
        return Ok(None);
    }
    Ok(Some(Begun { copier, reader, first, last }))
}

/// Whether a segment was removed while it was looked for.
fn is_gone(error: &wal::Error) -> bool {
    match error {
        wal::Error::Missing { .. } => true,
        wal::Error::Medium { source, .. } => source.kind() == io::ErrorKind::NotFound,
        _ => false,
    }
}

/// Copies every snapshot that is whole; returns where the newest one stands.
fn copy_snapshots(from: &Path, to: &Path) -> anyhow::Result<Option<Sequence>> {
    let mut newest = None;
    if !from.exists() {
        return Ok(None);
    }
    for path in SnapshotStore::at(from).paths()? {
        let copy = to.join(path.file_name().unwrap_or(OsStr::new("snapshot")));
        match fs::copy(&path, &copy) {
            Ok(_) => {}
            // An old one goes when a new one is made.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => {
                return Err(error).with_context(|| format!("copy {}", path.display()));
            }
        }
        match Snapshot::open(&copy) {
            Ok(snapshot) => {
                sync(&copy)?;
                newest = newest.max(Some(snapshot.header.sequence));
            }
            Err(error) if error.is_damage() => {
                let shown = path.display();
                writeln!(io::stderr(), "warning: {shown} is damaged, and is left out").ok();
                fs::remove_file(&copy).with_context(|| format!("remove {}", copy.display()))?;
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(newest)
}

/// Removes the snapshots that the copied log does not lead on from; returns where the others stand,
/// newest first.
fn keep_snapshots(directory: &Path, copied: &Copied) -> anyhow::Result<Vec<Sequence>> {
    let mut kept = Vec::new();
    for path in SnapshotStore::at(&directory.join(SNAPSHOT_DIRECTORY)).paths()? {
        let sequence = Snapshot::open(&path)?.header.sequence;
        if (copied.first..=copied.last).contains(&sequence) {
            kept.push(sequence);
        } else {
            fs::remove_file(&path).with_context(|| format!("remove {}", path.display()))?;
        }
    }
    Ok(kept)
}

/// Checks that PostgreSQL knows every transfer of the copied log after the record `after`. The
/// audit has checked the records before it. An unknown transfer belongs to another history.
async fn check_intents(export: &Export, log: &Path, after: Sequence) -> anyhow::Result<()> {
    let mut reader = Reader::open_path(log, after + 1).context("read the copy of the log")?;
    loop {
        let mut names = BTreeSet::new();
        let ended = tokio::task::block_in_place(|| -> anyhow::Result<bool> {
            while names.len() < NAMES_PER_QUESTION {
                let record = reader.next().context("read the copy of the log")?;
                let Some(record) = record else { return Ok(true) };
                let sequence = record.sequence;
                let entry = Entry::decode(record.kind, record.payload)
                    .with_context(|| format!("record {sequence} of the log"))?;
                if let Entry::Order { order, .. } = entry {
                    names.extend(ReqId::new(order.req_id));
                }
            }
            Ok(false)
        })?;
        let unknown = export.first_unknown(&names).await.context("ask for transfers")?;
        if let Some(req_id) = unknown {
            bail!(
                "the log has transfer {req_id}, and PostgreSQL does not know it: the two stores do not belong together; \
                 see `ubscore verify`"
            );
        }
        if ended {
            return Ok(());
        }
    }
}

/// Every file of the backup, in the order of the names.
fn sum_files(directory: &Path) -> anyhow::Result<Vec<Summed>> {
    let mut paths = Vec::new();
    for folder in ["", LOG_DIRECTORY, SNAPSHOT_DIRECTORY] {
        let path = directory.join(folder);
        let entries = fs::read_dir(&path).with_context(|| format!("list {}", path.display()))?;
        for entry in entries {
            let entry = entry.with_context(|| format!("list {}", path.display()))?;
            if entry.path().is_file() {
                paths.push(Path::new(folder).join(entry.file_name()));
            }
        }
    }
    paths.sort_unstable();
    paths.iter().map(|path| Summed::of(directory, path)).collect()
}
