//! `ubscore wal repair`: prints the loss of a cut of a damaged log, and cuts it if an operator
//! accepts the loss by naming the first lost record.
//!
//! # The order of its steps, and what dying between two of them leaves
//!
//! | done | a start finds | the same command |
//! |---|---|---|
//! | files copied aside | the old log, as damaged as before | copies them again, elsewhere |
//! | log marked, some files removed | a refusal that names the cut | continues the cut |
//! | log and snapshots cut | the same refusal | continues with PostgreSQL |
//! | PostgreSQL's claims taken back, halted | the same refusal | repeats it without effect |
//! | mark removed | a log that ends before the cut, halted | finds nothing to do |
//!
//! The files come first: as long as PostgreSQL claims more than the log has, no start takes the
//! rest for the whole. The mark goes last, so that a log with an unrecorded loss is never opened.
//! `ubscore repair` then restores the part that PostgreSQL proves.

use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};
use engine::entry::Entry;
use engine::snapshot::Snapshot;
use engine::snapshot::store::SnapshotStore;
use engine::text::Text;
use jiff::Timestamp;
use wal::cut::{Cause, Cut, Survey, finish, unfinished};
use wal::{Directory, DirectoryLock, Identity, Medium, Sequence};

use super::aside;
use super::ink::Ink;
use super::line::Printer;
use super::named::named_users;
use super::posting::posted_users;
use crate::cli::{StoreArgs, WalRepairArgs};
use crate::clock::{Clock, SystemClock};
use crate::commands::configured::load_config;
use crate::crash;
use crate::data_dir::{self, LOG_DIRECTORY};
use crate::exit::Exit;
use crate::format::Format;
use crate::postgres::cut::{Claims, Loss, Witness, record};
use crate::postgres::store::Transfer;
use crate::stores::{Target, with_stores};
use crate::telemetry::chain;
use domain::asset::Catalog;
use domain::transfer::ReqId;

/// The next step if nothing is left of a log.
const ADOPT: &str = "next: ubscore restore --only-log with a backup, or ubscore engine adopt --plan, which rebuilds the log \
                     from PostgreSQL";

/// Readable records that are looked up in PostgreSQL at a time.
const LOOKED_UP: usize = 1_000;

/// Prints the loss of a repair, or carries it out.
///
/// Exit code 0: nothing is wrong, or it is done; 1: something would be lost, or PostgreSQL has not
/// recorded the cut yet; 2: refused, or it cannot run.
pub(super) fn run(args: &WalRepairArgs, out: &mut impl Write) -> anyhow::Result<Exit> {
    let (place, lock) = prepare(args)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let exit = runtime.block_on(repair(args, &place, lock.as_ref(), out))?;
    out.flush()?;
    Ok(exit)
}

/// Whether a cut leaves anything of a log to go on with.
///
/// # Errors
/// A file cannot be read, or belongs to another log than `identity`.
pub(in crate::commands) fn leaves_a_log(
    log: &Directory,
    snapshots: &Path,
    identity: Identity,
) -> anyhow::Result<bool> {
    let found = Survey::open(log.clone(), 0, Some(identity))?.identity();
    if let Some(found) = found.filter(|found| *found != identity) {
        bail!(
            "the log has identity {found}, the database belongs to log {identity}: they are not a pair"
        );
    }
    let stored = Snapshots { all: stored(snapshots, identity)?, identity, log };
    let Some(mut way) = stored.way_through()? else { return Ok(false) };
    Ok(way.survey.cut()?.is_some())
}

/// Where everything lies.
struct Place {
    data_dir: PathBuf,
    log: Directory,
    snapshots: PathBuf,
}

impl Place {
    /// The data directory that a path means: it, or the log in it.
    fn find(path: &Path) -> anyhow::Result<Place> {
        let absolute = std::path::absolute(path)?;
        let is_log = !absolute.join(LOG_DIRECTORY).is_dir() && absolute.ends_with(LOG_DIRECTORY);
        let data_dir = match absolute.parent() {
            Some(parent) if is_log => parent.to_owned(),
            _ => absolute,
        };
        let log = data_dir::log(&data_dir);
        ensure!(log.is_dir(), "{} is no data directory: there is no log in it", path.display());
        let snapshots = data_dir::snapshots(&data_dir);
        Ok(Place { data_dir, log: Directory::at(log), snapshots })
    }
}

fn prepare(args: &WalRepairArgs) -> anyhow::Result<(Place, Option<DirectoryLock>)> {
    #[cfg(feature = "crash")]
    crash::arm()?;
    let place = Place::find(&args.path)?;
    // Lock first: no other process writes from now on.
    let lock = match args.accept_loss_from {
        Some(_) => Some(place.log.lock().context("lock the log")?),
        None => None,
    };
    Ok((place, lock))
}

async fn repair(
    args: &WalRepairArgs,
    place: &Place,
    lock: Option<&DirectoryLock>,
    out: &mut impl Write,
) -> anyhow::Result<Exit> {
    let StoreArgs { config, data_dir, postgres, postgres_bin, dev } = &args.stores;
    ensure!(data_dir.is_none(), "--data-dir: the path says already where the data are");
    let configured = config.is_some() || crate::config::default_file().is_some();
    if !configured && postgres.is_none() && postgres_bin.is_none() && !dev {
        return Repair { args, place, lock, postgres: None }.run(out).await;
    }
    let stores = StoreArgs { data_dir: Some(place.data_dir.clone()), ..args.stores.clone() };
    let mut reached = false;
    let done = async {
        with_stores(load_config(&stores)?, async |stores, target: &Target| {
            let witness = Witness::connect(&target.address, &target.limits).await?;
            let claims = witness.claims().await.context("ask PostgreSQL")?;
            reached = true;
            let catalog = stores.catalog.load_full();
            let postgres = Some(Postgres { witness, claims, catalog: &catalog, target });
            Repair { args, place, lock, postgres }.run(out).await
        })
        .await
    }
    .await;
    match done {
        // A plan is printed as far as possible; a change needs both stores.
        Err(error) if !reached && lock.is_none() => {
            writeln!(out, "note     PostgreSQL cannot be asked: {error:#}")?;
            Repair { args, place, lock, postgres: None }.run(out).await
        }
        done => done,
    }
}

/// PostgreSQL, where it is asked.
struct Postgres<'a> {
    witness: Witness,
    claims: Claims,
    catalog: &'a Catalog,
    target: &'a Target,
}

struct Repair<'a> {
    args: &'a WalRepairArgs,
    place: &'a Place,
    lock: Option<&'a DirectoryLock>,
    postgres: Option<Postgres<'a>>,
}

/// A snapshot's file.
struct Shelved {
    sequence: Sequence,
    path: PathBuf,
    /// Whether a start can begin with it, as far as it alone tells.
    whole: bool,
}

/// A way through the log that a start could go.
struct Way {
    survey: Survey<Directory>,
    /// The snapshot at its begin; none if it begins with the log's first record.
    snapshot: Option<Sequence>,
    /// When the last record passed was written, ns since the Unix epoch; none before the first.
    last_ns: Option<u64>,
}

impl Way {
    /// Reads on until `from` is the next record, or as far as the log is sound. Returns whether it
    /// got there.
    fn go_before(&mut self, from: Sequence) -> Result<bool, wal::Error> {
        debug_assert!(self.survey.last() < from, "the way has not passed record {from}");
        while self.survey.last() + 1 < from {
            let Some(record) = self.survey.next()? else { break };
            self.last_ns = Some(record.time_ns);
        }
        Ok(self.survey.last() + 1 == from)
    }
}

/// A cut that is to be made.
struct Planned<'a> {
    identity: Identity,
    cut: Cut<Directory>,
    /// The files that are changed or removed, and copied before.
    files: Vec<PathBuf>,
    /// Snapshots of records that are gone.
    ahead: Vec<&'a Shelved>,
    /// When the last record that is left was written; none where none is.
    kept: Option<Timestamp>,
    /// Whether the same cut has begun before.
    begun: bool,
}

/// What giving up a log's end would lose.
#[derive(Default)]
struct Lost {
    readable: u64,
    last: Sequence,
    transfers: BTreeSet<ReqId>,
    users: BTreeSet<u64>,
}

/// Refuses a database of another log.
fn refuse_other_log(identity: Identity, database: Option<Identity>) -> anyhow::Result<()> {
    ensure!(
        database == Some(identity),
        "the log has identity {identity}, the database belongs to log {}: they are not a pair",
        database.map_or("none".to_owned(), |log| log.to_string())
    );
    Ok(())
}

impl Repair<'_> {
    async fn run(&self, out: &mut impl Write) -> anyhow::Result<Exit> {
        let Repair { args, place, postgres, .. } = self;
        let begun = unfinished(&place.log)?;
        if let (Some(begun), Some(asked)) = (begun, args.accept_loss_from) {
            ensure!(
                begun == asked || begun == 0,
                "a cut from record {begun} on is not finished: --accept-loss-from {begun} finishes it"
            );
        }
        let known = postgres.as_ref().and_then(|postgres| postgres.claims.log);
        let identity = Survey::open(place.log.clone(), 0, known)?.identity();
        let identity = identity.with_context(|| {
            format!("no header of the log can be read, and no database names its identity; {ADOPT}")
        })?;
        if let Some(Postgres { claims, .. }) = postgres {
            refuse_other_log(identity, claims.log)?;
        }
        let all = stored(&place.snapshots, identity)?;
        let stored = Snapshots { all, identity, log: &place.log };
        let (first_bad, damaged) = self.first_bad(&stored, out)?;
        // The same command, repeated after the service went on, would remove new records.
        let meant = begun.is_some() || args.although_sound;
        if let Some(asked) = args.accept_loss_from.filter(|asked| !meant && *asked < first_bad) {
            bail!(
                "nothing is wrong with the records {asked} to {}: cutting them is not needed; to cut \
                 them anyway, add --although-sound",
                first_bad - 1
            );
        }
        if let Some(begun) = begun {
            writeln!(out, "cutting  a cut from record {begun} on has begun, and is not finished")?;
        }
        let from =
            args.accept_loss_from.unwrap_or(begun.filter(|begun| *begun > 0).unwrap_or(first_bad));
        if from > first_bad || from == 0 {
            bail!(
                "--accept-loss-from {from}: the first record that is gone is {first_bad}; it, or an earlier one that the \
                 log still has"
            );
        }
        let Some(mut way) = stored.way_before(from)? else {
            bail!(
                "nothing would be left to begin with: what the log still has before record {from} does not begin with \
                 record 1, and no whole snapshot stands in it; nothing was changed; {ADOPT}"
            );
        };
        let Some(cut) = way.survey.cut()? else {
            bail!(
                "nothing would be left to go on with: the log's first segment is not there; nothing was changed; {ADOPT}"
            );
        };
        let mut files: Vec<PathBuf> =
            cut.files().into_iter().map(|name| place.log.path().join(name)).collect();
        let ahead: Vec<&Shelved> = stored.all.iter().filter(|s| s.sequence >= from).collect();
        files.extend(ahead.iter().map(|stored| stored.path.clone()));
        let claimed = postgres.as_ref().map_or(0, |postgres| postgres.claims.last());
        let idle = match args.accept_loss_from {
            Some(_) => files.is_empty() && claimed < from,
            None => !damaged,
        };
        if idle && begun.is_none() {
            writeln!(out, "sound    nothing to cut")?;
            if postgres.is_none() {
                writeln!(out, "note     PostgreSQL was not asked")?;
            }
            return Ok(Exit::Done);
        }
        let kept = way.last_ns.map(time).transpose()?;
        let begins = match way.snapshot {
            Some(sequence) => format!("the snapshot at record {sequence}"),
            None => "record 1".to_owned(),
        };
        match kept {
            Some(kept) => writeln!(
                out,
                "kept     up to record {}, written at {kept}; a start begins with {begins}",
                from - 1
            )?,
            None => writeln!(out, "kept     nothing")?,
        }
        let lost = self.tell(&way, from, out).await?;
        for file in &files {
            writeln!(out, "changed  {}", file.display())?;
        }
        let Some(lock) = self.lock else {
            writeln!(
                out,
                "next     to cut exactly this: ubscore wal repair {} --accept-loss-from {from} --reason TEXT, \
                 with --config or --postgres",
                args.path.display()
            )?;
            return Ok(Exit::Failed);
        };
        out.flush()?;
        let planned = Planned { identity, cut, files, ahead, kept, begun: begun.is_some() };
        self.give_up(&planned, lost, lock, out).await
    }

    /// Gives the end of the log up, in the order that the module tells.
    async fn give_up(
        &self,
        planned: &Planned<'_>,
        lost: Lost,
        lock: &DirectoryLock,
        out: &mut impl Write,
    ) -> anyhow::Result<Exit> {
        let Planned { identity, cut, files, ahead, kept, begun } = planned;
        let (place, from) = (self.place, cut.from());
        // A cut that has begun has copied them before.
        let copies = match (files.is_empty(), begun) {
            (false, false) => {
                let now_ns = SystemClock::new().now_ns();
                let copies =
                    aside::copy(&place.data_dir, files, now_ns).context("copy the files aside")?;
                writeln!(out, "done     copied aside to {}", copies.display())?;
                copies.file_name().map(|name| name.to_string_lossy().into_owned())
            }
            (_, _) => None,
        };
        crash::point("cut_after_copies");
        if !files.is_empty() || *begun {
            cut.carry_out(lock).context("cut the log")?;
            crash::point("cut_after_log");
            for stored in ahead {
                fs::remove_file(&stored.path)
                    .and_then(|()| aside::sync_directory(&place.snapshots))
                    .with_context(|| format!("remove {}", stored.path.display()))?;
            }
            crash::point("cut_after_snapshots");
            writeln!(out, "done     the log ends at record {}", from - 1)?;
        }
        let Some(Postgres { target, .. }) = &self.postgres else {
            writeln!(
                out,
                "PostgreSQL has not recorded the cut yet. Every start refuses the log until the same command runs again \
                 with --config, or another flag that names PostgreSQL"
            )?;
            return Ok(Exit::Failed);
        };
        let Lost { readable, last, transfers, users } = lost;
        let detail = format!(
            "last={last} readable={readable} transfers={} users={} copies={}",
            transfers.len(),
            users.len(),
            copies.as_deref().unwrap_or("made before")
        );
        let kept_until = kept.map_or("-infinity".to_owned(), |kept| kept.to_string());
        let reason = self.args.reason.clone().context("--reason is missing")?;
        let loss = Loss { log: *identity, from, kept_until, detail, reason };
        record(&target.address, &target.limits, &loss).await.context("write PostgreSQL")?;
        crash::point("cut_after_postgres");
        finish(&place.log, lock).context("unmark the log")?;
        writeln!(
            out,
            "done     PostgreSQL no longer claims the cut records, and halts every start"
        )?;
        writeln!(
            out,
            "next     ubscore repair --plan: what PostgreSQL proves of it is brought back"
        )?;
        Ok(Exit::Done)
    }

    /// The first record that a start would not have, and whether it would miss it.
    fn first_bad(
        &self,
        stored: &Snapshots<'_>,
        out: &mut impl Write,
    ) -> anyhow::Result<(Sequence, bool)> {
        let way = stored.way_through()?;
        let Some(Way { survey, snapshot, .. }) = way else {
            bail!(
                "what the log still has does not begin with record 1, and no whole snapshot stands in it: nothing is left \
                 to begin with; {ADOPT}"
            );
        };
        let stop = survey.stop().context("bug: the log was not scanned to its end")?;
        let first_bad = stop.place.sequence;
        let claimed = self.postgres.as_ref().map_or(0, |postgres| postgres.claims.last());
        let ahead = stored.all.iter().filter(|s| s.whole && s.sequence >= first_bad);
        let ahead = ahead.map(|stored| stored.sequence).max();
        let why = match (&stop.cause, ahead) {
            (Cause::Damage(error), _) => Some(chain(error)),
            _ if claimed >= first_bad => Some(format!(
                "nothing at {}, but PostgreSQL knows record {claimed} to have been durable",
                stop.place
            )),
            (_, Some(ahead)) => {
                Some(format!("nothing at {}, but a snapshot stands at record {ahead}", stop.place))
            }
            (Cause::Torn(torn), None) => {
                let (bytes, records) = (torn.bytes, torn.records);
                writeln!(
                    out,
                    "torn     {}: {bytes} bytes, {records} whole records among them, never acknowledged as far as is known: \
                     a start cuts them off by itself",
                    stop.place
                )?;
                None
            }
            (Cause::End, None) => None,
        };
        if let Some(why) = &why {
            writeln!(out, "damaged  from record {first_bad} on: {why}")?;
        }
        if let Some(snapshot) = snapshot {
            stored.tell_covered(snapshot, out)?;
        }
        Ok((first_bad, why.is_some()))
    }

    /// Prints the records and transfers that are lost after `way`, one a line.
    async fn tell(&self, way: &Way, from: Sequence, out: &mut impl Write) -> anyhow::Result<Lost> {
        let mut lost = Lost { last: from.saturating_sub(1), ..Lost::default() };
        let mut printer = Printer::new(Format::Text, Ink::PLAIN);
        let mut read = BTreeSet::new();
        if let Some(Postgres { catalog, .. }) = &self.postgres {
            for asset in catalog.all() {
                let symbol = Text::new(&asset.symbol).expect("checked by Catalog");
                let (asset, precision) = (asset.id.0, asset.precision);
                printer.learn(&Entry::Asset { asset, precision, symbol });
            }
        }
        let mut rest = way.survey.rest();
        let mut lines = Vec::new();
        loop {
            let record = rest.next()?;
            let ended = record.is_none();
            if let Some(record) = record {
                let entry = Entry::decode(record.kind, record.payload);
                let req_id = match &entry {
                    Ok(Entry::Order { order, .. }) => {
                        lost.users.insert(order.user);
                        ReqId::new(order.req_id)
                    }
                    Ok(Entry::External(external)) => {
                        lost.users.insert(external.user);
                        None
                    }
                    Ok(Entry::AccountStatus { user, .. }) => {
                        lost.users.insert(*user);
                        None
                    }
                    Ok(Entry::Posting(posted)) => {
                        lost.users.extend(posted_users(posted));
                        None
                    }
                    Ok(Entry::Named(named)) => {
                        lost.users.extend(named_users(named));
                        None
                    }
                    Ok(_) | Err(_) => None,
                };
                lost.readable += 1;
                lost.last = lost.last.max(record.sequence);
                lost.transfers.extend(req_id);
                read.insert(record.sequence);
                let line = String::from_utf8_lossy(printer.print(&record, &entry));
                lines.push((line.trim().to_owned(), req_id));
                entry.iter().for_each(|entry| printer.learn(entry));
            }
            if ended || lines.len() == LOOKED_UP {
                self.tell_records(&mut lines, out).await?;
            }
            if ended {
                break;
            }
        }
        match &self.postgres {
            None => writeln!(out, "note     PostgreSQL was not asked")?,
            Some(Postgres { witness, catalog, .. }) => {
                for transfer in witness.transfers_from(from, None, catalog).await? {
                    let sequence = transfer.log_sequence.unwrap_or(0);
                    lost.last = lost.last.max(sequence);
                    lost.users.insert(transfer.intent.user.number());
                    if lost.transfers.insert(transfer.intent.req_id) || !read.contains(&sequence) {
                        writeln!(out, "gone     {}", said(&transfer, catalog))?;
                    }
                }
            }
        }
        let users: Vec<String> = lost.users.iter().map(ToString::to_string).collect();
        writeln!(out, "users    {}", users.join(" "))?;
        let Lost { readable, last, transfers, users } = &lost;
        writeln!(
            out,
            "lost from={from} last={last} readable={readable} transfers={} users={}",
            transfers.len(),
            users.len()
        )?;
        Ok(lost)
    }

    async fn tell_records(
        &self,
        lines: &mut Vec<(String, Option<ReqId>)>,
        out: &mut impl Write,
    ) -> anyhow::Result<()> {
        let mut known = HashMap::new();
        if let Some(Postgres { witness, catalog, .. }) = &self.postgres {
            let names: Vec<ReqId> = lines.iter().filter_map(|(_, req_id)| *req_id).collect();
            for transfer in witness.transfers(&names, catalog).await? {
                known.insert(transfer.intent.req_id, transfer);
            }
        }
        for (line, req_id) in lines.drain(..) {
            let word = match (&self.postgres, req_id) {
                (None, _) | (_, None) => String::new(),
                (Some(_), Some(req_id)) => match known.get(&req_id) {
                    Some(transfer) => format!("; in PostgreSQL {}", standing(transfer)),
                    None => "; not in PostgreSQL".to_owned(),
                },
            };
            writeln!(out, "lost     {line}{word}")?;
        }
        Ok(())
    }
}

/// Where PostgreSQL has a transfer, and by which record.
fn standing(transfer: &Transfer) -> String {
    let Transfer { state, code, log_sequence, .. } = transfer;
    let code = code.map_or(String::new(), |code| format!(" {code}"));
    let record = log_sequence.map_or("no record".to_owned(), |record| format!("record {record}"));
    format!("{}{code}, {record}", state.name())
}

/// A transfer with an unreadable record, as PostgreSQL has it.
fn said(transfer: &Transfer, catalog: &Catalog) -> String {
    let intent = &transfer.intent;
    let (source, target) = intent.direction.accounts();
    let asset = catalog.by_id(intent.asset);
    let amount = match asset {
        Some(asset) => format!("{} {}", intent.amount.text(asset.precision), asset.symbol),
        None => format!("{}u #{}", intent.amount.units(), intent.asset.0),
    };
    let (req_id, user) = (intent.req_id, intent.user);
    format!(
        "transfer {req_id}, user {user}, {amount} {source} to {target}; in PostgreSQL {}, which cannot be read",
        standing(transfer)
    )
}

fn time(ns: u64) -> anyhow::Result<Timestamp> {
    Timestamp::from_nanosecond(i128::from(ns)).context("a record's time")
}

/// Every snapshot by its name, newest first.
fn stored(directory: &Path, identity: Identity) -> anyhow::Result<Vec<Shelved>> {
    if !directory.is_dir() {
        return Ok(Vec::new());
    }
    let mut all = Vec::new();
    for (sequence, path) in SnapshotStore::at(directory).named().context("list the snapshots")? {
        let whole = match Snapshot::open(&path) {
            Ok(Snapshot { header, .. }) => {
                ensure!(
                    header.identity == identity && header.sequence == sequence,
                    "{} belongs to log {}, record {}: it is not this log's",
                    path.display(),
                    header.identity,
                    header.sequence
                );
                true
            }
            Err(error) if error.is_damage() => false,
            Err(error) => return Err(error.into()),
        };
        all.push(Shelved { sequence, path, whole });
    }
    Ok(all)
}

/// The snapshots that a start may begin with.
struct Snapshots<'a> {
    all: Vec<Shelved>,
    identity: Identity,
    log: &'a Directory,
}

impl Snapshots<'_> {
    /// The way that a start would go, to where the log stops to be sound: with the newest snapshot
    /// that the log still holds, or from the log's first record. None where there is neither.
    fn way_through(&self) -> anyhow::Result<Option<Way>> {
        self.way(Sequence::MAX, |way, after| {
            way.go_before(Sequence::MAX)?;
            Ok(way.survey.last() >= after)
        })
    }

    /// The way to where the record `from` is the next.
    fn way_before(&self, from: Sequence) -> anyhow::Result<Option<Way>> {
        self.way(from, |way, _| way.go_before(from))
    }

    /// The first way that `is_good` accepts, among those that begin before `before`. `is_good` gets
    /// the record that must be in it.
    fn way(
        &self,
        before: Sequence,
        is_good: impl Fn(&mut Way, Sequence) -> Result<bool, wal::Error>,
    ) -> anyhow::Result<Option<Way>> {
        let usable = self.all.iter().filter(|stored| stored.sequence < before && stored.whole);
        for sequence in usable.map(|stored| Some(stored.sequence)).chain([None]) {
            let from = sequence.unwrap_or(0);
            let survey = match Survey::open(self.log.clone(), from, Some(self.identity)) {
                Ok(survey) => survey,
                Err(wal::Error::Missing { .. }) => continue,
                Err(error) => return Err(error.into()),
            };
            // Without a snapshot it must begin at the beginning.
            if sequence.is_none() && survey.last() > 0 {
                continue;
            }
            let mut way = Way { survey, snapshot: sequence, last_ns: None };
            if is_good(&mut way, from)? {
                return Ok(Some(way));
            }
        }
        Ok(None)
    }

    /// Reports damage before the snapshot that a start begins with. No start reads that part.
    fn tell_covered(&self, snapshot: Sequence, out: &mut impl Write) -> anyhow::Result<()> {
        let mut survey = Survey::open(self.log.clone(), 0, Some(self.identity))?;
        while survey.next()?.is_some() {}
        if let Some(stop) = survey.stop().filter(|stop| stop.place.sequence <= snapshot) {
            writeln!(
                out,
                "covered  {}: no start reads it, since the snapshot at record {snapshot} covers it; the audit objects to \
                 it, so move that segment and all before it elsewhere",
                stop.place
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use crate::commands::wal::tests::{Sample, ubscore_wal};

    /// Story: without a valid configuration there was no plan at all, though the log needs none.
    #[test]
    fn a_plan_is_printed_without_a_valid_configuration() {
        let sample = Sample::new();
        sample.store(4264 + 50, &[0xff]);
        let (data, config) = (sample.data(), sample.path("absent.toml"));
        let (out, _) = ubscore_wal(&["repair", &data, "--config", &config]).succeeded();
        let note = "note     PostgreSQL cannot be asked: load the configuration: ";
        assert!(out.starts_with(note) && out.contains(&config), "{out}");
        assert!(out.contains("damaged  from record 3 on: "), "{out}");
        assert!(out.contains("next     to cut exactly this: "), "{out}");
    }
}
