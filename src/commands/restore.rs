//! `ubscore restore`: a backup into an empty data directory and an empty database.
//!
//! ```text
//!   checksums --> mark --> PostgreSQL, in one transaction --> snapshots --> log
//!     --> both stores compared --> answered flights --> mark removed
//! ```
//!
//! The mark is a file in the data directory. While it exists, no command starts or reads both
//! stores, and the same command continues the restore. It names the backup and the database, so
//! that another restore cannot continue this one. If an operator removes it by hand, the service
//! still refuses a database without its log, and a part of a log.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

use anyhow::{Context, bail, ensure};
use serde::{Deserialize, Serialize};
use wal::Directory;

use super::backup::manifest::{DUMP, Manifest, Summing};
use super::configured::load_config;
use super::verify;
use super::verify::report;
use crate::audit::verify::{Led, replayed};
use crate::cli::RestoreArgs;
use crate::config::Config;
use crate::crash;
use crate::data_dir::{self, LOG_DIRECTORY, SNAPSHOT_DIRECTORY, sync};
use crate::exit::Exit;
use crate::format::Format;
use crate::postgres;
use crate::postgres::dump::{self, Connection};
use crate::postgres::embedded::programs::find_program;
use crate::postgres::export::{Owner, Place, table_of_ours};
use crate::postgres::incarnation::{self, INCARNATIONS_SKIPPED, identity_from_text, identity_text};
use crate::postgres::recover;
use crate::stores::{self, Target};

/// The name of the mark until it is complete.
const MARK_NEW: &str = "restoring.new";

/// The part of a backup to restore.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Part {
    Both,
    Database,
    Log,
}

/// The mark: a restore that was begun.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Mark {
    /// The backup, by its manifest's checksum.
    backup: String,
    /// The part to restore.
    part: Part,
    /// The database's cluster.
    system_identifier: String,
    /// The database there.
    database: String,
    /// The database's number.
    database_oid: u32,
}

/// Restores a backup, compares both stores, and prints each mismatch as one line.
///
/// # Errors
/// Nothing was restored, or the restore is not finished.
pub fn run(args: &RestoreArgs, out: &mut impl Write) -> anyhow::Result<Exit> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let restored = runtime.context("start")?.block_on(restore(args))?;
    let (manifest, (verdict, catalog)) = restored;
    let (bytes, transfers) = (manifest.bytes(), manifest.postgres.transfers);
    let (from, at) = (args.directory.display(), &manifest.created_at);
    writeln!(out, "restored {from} of {at} transfers={transfers} bytes={bytes}").ok();
    let exit = report(verdict, &catalog, Format::Text, out);
    if args.only_database && exit != Exit::Done {
        writeln!(out, "the log is newer: see `ubscore repair --plan`").ok();
    }
    Ok(exit)
}

async fn restore(args: &RestoreArgs) -> anyhow::Result<(Manifest, verify::Compared)> {
    #[cfg(feature = "crash")]
    crash::arm()?;
    let part = match (args.only_database, args.only_log) {
        (true, _) => Part::Database,
        (false, true) => Part::Log,
        (false, false) => Part::Both,
    };
    let config = load_config(&args.stores)?;
    let manifest = tokio::task::block_in_place(|| {
        let manifest = Manifest::read(&args.directory)?;
        manifest.check_files(&args.directory)?;
        Ok::<_, anyhow::Error>(manifest)
    })?;
    // The lock keeps the service and other restores out.
    let _lock = data_dir::create_and_lock(&config.data_dir).context("open the log")?;
    let begun = Mark::read(&config.data_dir)?;
    match (&begun, part) {
        (Some(begun), _) => begun.refuse_another(&manifest, part, &config.data_dir)?,
        (None, Part::Both | Part::Log) => refuse_used(&config.data_dir)?,
        (None, Part::Database) => {}
    }
    if part == Part::Database {
        refuse_older_log(&config, &manifest)?;
    }
    let server = stores::start_embedded(&config).await?;
    let done = async {
        let target = Target::new(config, server.as_ref())?;
        bring_back(&args.directory, &manifest, part, begun, &target).await
    }
    .await;
    // This process holds the lock, so no service adopted the server.
    if server.as_ref().is_some_and(|server| !server.is_adopted()) {
        stores::stop_embedded(server).await;
    }
    Ok((manifest, done?))
}

/// Refuses a data directory that holds a log or a snapshot.
fn refuse_used(data_dir: &Path) -> anyhow::Result<()> {
    for (folder, prefix) in [(LOG_DIRECTORY, "segment-"), (SNAPSHOT_DIRECTORY, "snapshot-")] {
        let path = data_dir.join(folder);
        let entries = match fs::read_dir(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            entries => entries.with_context(|| format!("list {}", path.display()))?,
        };
        for entry in entries {
            let entry = entry.with_context(|| format!("list {}", path.display()))?;
            ensure!(
                !entry.file_name().to_string_lossy().starts_with(prefix),
                "{} is there: a restore needs a data directory without a log and without snapshots",
                entry.path().display()
            );
        }
    }
    Ok(())
}

/// Refuses a log with another identity than the backup's database, or an older log.
fn refuse_older_log(config: &Config, manifest: &Manifest) -> anyhow::Result<()> {
    let (log, snapshots) = (data_dir::log(&config.data_dir), data_dir::snapshots(&config.data_dir));
    let places = stores::places(config);
    let led = tokio::task::block_in_place(|| replayed(&log, &snapshots, places));
    let Led { identity, sequence, .. } = led.context("read the log that is there")?;
    let here = identity.map_or("none".to_owned(), identity_text);
    let wanted = &manifest.log.identity;
    ensure!(here == *wanted, "the log has identity {here}, the backup is of log {wanted}");
    let claimed = manifest.postgres.claimed_sequence;
    ensure!(
        sequence >= claimed,
        "the log ends at record {sequence}, and the backup's database knows of record {claimed}: restore both halves"
    );
    Ok(())
}

async fn bring_back(
    from: &Path,
    manifest: &Manifest,
    part: Part,
    begun: Option<Mark>,
    target: &Target,
) -> anyhow::Result<verify::Compared> {
    let data_dir = &target.config.data_dir;
    let limits = target.patient();
    let client = postgres::connect(&target.address, &limits).await?;
    let place = Place::of(&client).await.context("ask PostgreSQL what it is")?;
    let here = format!("database {}", place.database);
    if begun.is_some() {
        refuse_orphan(&client, &here).await?;
    }
    let used = table_of_ours(&client).await.context("look into the database")?;
    let mark = Mark::new(manifest, part, &place);
    match &begun {
        Some(begun) => ensure!(
            *begun == mark,
            "the restore was begun into database {} of cluster {}: name that one",
            begun.database,
            begun.system_identifier
        ),
        None if part == Part::Log => {
            ensure!(used.is_some(), "{here} was never used: restore both halves");
            let log = Owner::of(&client).await.context("read the owner of the database")?.log;
            let (log, wanted) =
                (log.map_or("none".to_owned(), identity_text), &manifest.log.identity);
            ensure!(log == *wanted, "{here} belongs to log {log}, the backup is of log {wanted}");
        }
        None => {
            let used = used.as_deref().unwrap_or_default();
            ensure!(
                used.is_empty(),
                "{here} holds {used}: a restore needs a database that was never used; make a new one"
            );
        }
    }
    if begun.is_none() {
        mark.write(data_dir)?;
    }
    crash::point("restore_after_mark");

    if part != Part::Log {
        if used.is_some() {
            // An earlier run restored all of it or nothing, and no service can have used it since.
            refuse_others(&client, manifest, &here).await?;
        } else {
            let bin = target.config.postgres.bin.as_deref();
            let major = place.major.max(manifest.postgres.major);
            let program = find_program("pg_restore", bin, major).await?;
            let connection = Connection::new(&target.address, &place);
            tokio::task::block_in_place(|| {
                let path = from.join(DUMP);
                let mut file =
                    File::open(&path).with_context(|| format!("open {}", path.display()))?;
                dump::restore(&program, &connection, &mut file).context("restore PostgreSQL")
            })?;
        }
        crash::point("restore_after_postgres");
        let log = identity_from_text(&manifest.log.identity).map(|log| (log, false));
        postgres::migrate(&target.address, &limits, log).await.context("prepare PostgreSQL")?;
        dump::analyze(&target.address, &limits).await.context("analyze the tables")?;
        crash::point("restore_after_settle");
    }
    if part != Part::Log {
        let enabled = target.config.recharge.enabled;
        let marked = recover::mark(&target.address, &limits, enabled).await;
        marked.context("mark PostgreSQL for a recovery of recharges")?;
    }
    if part != Part::Database {
        tokio::task::block_in_place(|| copy_log(from, manifest, data_dir))?;
    }
    let verdict = verify::compare(target).await?;
    // The processes after the backup have told clients ids of events, also ones without a record in
    // the log: the next ones must not be the same.
    if part != Part::Log {
        let incarnation = manifest.postgres.incarnation;
        let skipped = incarnation::skip(&target.address, &limits, incarnation).await;
        skipped.context("raise the incarnation")?;
    }
    crash::point("restore_after_incarnation");
    // A backup has no such file, and its flights are the last ones from now on.
    target.write_flights().await?;
    Mark::remove(data_dir)?;
    Ok(verdict)
}

/// Refuses a database while the `pg_restore` of a killed run still writes to it.
async fn refuse_orphan(client: &tokio_postgres::Client, here: &str) -> anyhow::Result<()> {
    let orphan = "SELECT pid FROM pg_stat_activity \
                  WHERE datname = current_database() AND application_name = $1 LIMIT 1";
    let row = client
        .query_opt(orphan, &[&dump::APPLICATION])
        .await
        .context("look who else is connected")?;
    if let Some(row) = row {
        let pid: i32 = row.try_get(0)?;
        bail!(
            "a pg_restore is still at work on {here}, as the server's process {pid}: try again when it has ended"
        );
    }
    Ok(())
}

/// Refuses a database that differs from the backup.
async fn refuse_others(
    client: &tokio_postgres::Client,
    manifest: &Manifest,
    here: &str,
) -> anyhow::Result<()> {
    let Owner { log, incarnation, watermark, .. } =
        Owner::of(client).await.context("read the owner of the database")?;
    let wanted = &manifest.postgres;
    let skipped = [wanted.incarnation, wanted.incarnation + INCARNATIONS_SKIPPED];
    let same = log.map(identity_text).as_ref() == Some(&manifest.log.identity)
        && skipped.contains(&incarnation)
        && watermark == wanted.watermark;
    ensure!(same, "{here} is not what the restore has made of it: make a new one, and begin anew");
    Ok(())
}

/// Copies the snapshots before the log, because a log without its first record needs a snapshot.
fn copy_log(from: &Path, manifest: &Manifest, data_dir: &Path) -> anyhow::Result<()> {
    for folder in [SNAPSHOT_DIRECTORY, LOG_DIRECTORY, ""] {
        let to = data_dir.join(folder);
        Directory::create(&to).with_context(|| format!("make {}", to.display()))?;
        for file in manifest.files_in(folder).filter(|file| file.path != Path::new(DUMP)) {
            let (source, copy) = (from.join(&file.path), data_dir.join(&file.path));
            let copied = || -> io::Result<bool> {
                let mut reading = Summing::new(File::open(&source)?);
                let mut writing = ::wal::create_private(&copy)?;
                // Zeros are written too: the log may continue in its last segment and needs the
                // space.
                reading.copy(&mut writing)?;
                writing.sync_all()?;
                Ok(reading.summed(&file.path) == *file)
            };
            let same = copied().with_context(|| format!("copy {}", source.display()))?;
            ensure!(same, "{} has changed while it was read", source.display());
        }
        sync(&to)?;
        match folder {
            SNAPSHOT_DIRECTORY => crash::point("restore_after_snapshots"),
            LOG_DIRECTORY => crash::point("restore_after_log"),
            _ => {}
        }
    }
    Ok(())
}

impl Mark {
    fn new(manifest: &Manifest, part: Part, place: &Place) -> Mark {
        Mark {
            backup: manifest.sum(),
            part,
            system_identifier: place.system_identifier.clone(),
            database: place.database.clone(),
            database_oid: place.database_oid,
        }
    }

    fn read(data_dir: &Path) -> anyhow::Result<Option<Mark>> {
        let path = data_dir::restore_mark(data_dir);
        let bytes = match fs::read(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            bytes => bytes.with_context(|| format!("read {}", path.display()))?,
        };
        let mark = serde_json::from_slice(&bytes);
        mark.with_context(|| format!("{} is no mark of a restore", path.display())).map(Some)
    }

    fn refuse_another(
        &self,
        manifest: &Manifest,
        part: Part,
        data_dir: &Path,
    ) -> anyhow::Result<()> {
        if self.backup == manifest.sum() && self.part == part {
            return Ok(());
        }
        bail!(
            "another restore into {} is not finished: finish that one, or begin anew with an empty data directory and \
             an empty database",
            data_dir.display()
        )
    }

    fn write(&self, data_dir: &Path) -> anyhow::Result<()> {
        let (new, path) = (data_dir.join(MARK_NEW), data_dir::restore_mark(data_dir));
        let text = serde_json::to_vec(self).context("write the mark")?;
        ::wal::create_private(&new)
            .and_then(|mut file| file.write_all(&text).and_then(|()| file.sync_all()))
            .and_then(|()| fs::rename(&new, &path))
            .with_context(|| format!("write {}", path.display()))?;
        Ok(sync(data_dir)?)
    }

    fn remove(data_dir: &Path) -> anyhow::Result<()> {
        let path = data_dir::restore_mark(data_dir);
        fs::remove_file(&path).with_context(|| format!("remove {}", path.display()))?;
        Ok(sync(data_dir)?)
    }
}
