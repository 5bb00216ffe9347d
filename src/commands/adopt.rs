//! `ubscore engine adopt`: rebuilds a lost log from the records of PostgreSQL.
//!
//! # The order of its steps, and the state after a crash between two of them
//!
//! | done | a start finds | the same command |
//! |---|---|---|
//! | files of the old log set aside | an empty directory: refused | sets aside the rest |
//! | PostgreSQL bound to the new log, halted | no log, an unfinished rebuild: refused | continues |
//! | sums, decisions, statuses recorded | an unfinished rebuild: refused | records missing ones |
//! | numbers in PostgreSQL, rebuild closed | the log, halted | refuses: the log is intact |
//!
//! The new log has a new identity, so the old log is refused if it ever comes back. The service
//! starts halted; `resume` checks the money first.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use engine::Closed;
use engine::ledger::Ledger;
use wal::{Directory, DirectoryLock, Identity};

use super::configured::load_config;
use super::repair::{actor, decide};
use super::wal::aside;
use super::wal::repair::leaves_a_log;
use crate::audit::rebuild::{Rebuild, plan};
use crate::audit::redecision::PlanStep;
use crate::audit::verify::{Led, Stores, led, replayed, verify};
use crate::cli::AdoptArgs;
use crate::clock::{Clock, SystemClock};
use crate::crash;
use crate::data_dir;
use crate::entropy::{Entropy, SystemEntropy};
use crate::exit::Exit;
use crate::postgres::adopt::{Asked, Bound, Rebinding, rebind};
use crate::postgres::flights;
use crate::postgres::repair_writer::{Author, CutRepair, renumber};
use crate::postgres::store::Transfer;
use crate::stores::{self, Target};
use domain::asset::Catalog;

/// The error for a database that never had a log.
const NEVER_USED: &str =
    "the database has never used a log: there is nothing to rebuild; next: ubscore serve";
/// How long connections of a killed service may take to end.
const OTHERS_WAIT: Duration = Duration::from_secs(20);
/// Time between two checks of them.
const OTHERS_PAUSE: Duration = Duration::from_millis(50);
/// The prefixes of a log's files; other files in its directory stay.
const LOG_FILES: [&str; 3] = ["segment-", "spare-", "cut"];
/// The prefix of a snapshot's file.
const SNAPSHOT_FILES: [&str; 1] = ["snapshot-"];

/// Prints the plan of a rebuild from PostgreSQL, or carries it out and prints its result; one line
/// each.
///
/// Exit code 0: all is proven; 1: differences are left.
///
/// # Errors
/// The rebuild is refused, or cannot run: exit code 2.
pub fn run(args: &AdoptArgs, out: &mut impl Write) -> anyhow::Result<Exit> {
    #[cfg(feature = "crash")]
    crash::arm()?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let left = runtime.context("start")?.block_on(prepare(args, out))?;
    Ok(if left == 0 { Exit::Done } else { Exit::Failed })
}

async fn prepare(args: &AdoptArgs, out: &mut impl Write) -> anyhow::Result<usize> {
    let config = load_config(&args.stores)?;
    let tokens = (args.token_file.as_deref(), args.approver_token_file.as_deref());
    let actor = actor("ubscore engine adopt", args.apply, tokens, &config)?;
    let data_dir = config.data_dir.clone();
    let (log, snapshots) = (data_dir::log(&data_dir), data_dir::snapshots(&data_dir));
    let lock = match args.apply {
        true => Some(
            data_dir::create_and_lock(&data_dir)
                .context("lock the log; next: stop the service that holds it")?,
        ),
        false => None,
    };
    if config.data_dir.is_dir() {
        data_dir::refuse_unfinished_restore(&data_dir)?;
    }
    let server = stores::start_embedded(&config).await?;
    let done = async {
        let target = Target::new(config, server.as_ref())?;
        let asked = Asked::connect(&target.address, &target.patient()).await?;
        if asked.claimed().await.context("ask PostgreSQL")?.is_none() {
            bail!("{NEVER_USED}");
        }
        if args.apply {
            refuse_others(&asked).await?;
        }
        let stores = target.stores().await?;
        let adoption = Adoption { target: &target, stores, asked, log, snapshots };
        let author = args.reason.as_deref().map(|reason| Author { actor: &actor, reason });
        adoption.run(author, lock, out).await
    }
    .await;
    stores::release_embedded(server, &data_dir).await;
    done
}

/// Refuses a database with a connected service, which may still use the log.
async fn refuse_others(asked: &Asked) -> anyhow::Result<()> {
    let clock = SystemClock::new();
    let began = clock.monotonic_ns();
    loop {
        let others = asked.others().await.context("look for other connections")?;
        if others.is_empty() {
            return Ok(());
        }
        // Connections of a killed process end within moments.
        let waited = Duration::from_nanos(clock.monotonic_ns() - began);
        ensure!(
            waited < OTHERS_WAIT,
            "a service is still connected to the database, as PostgreSQL's processes {others:?}; next: stop it"
        );
        clock.sleep(OTHERS_PAUSE).await;
    }
}

/// The state of the log's directory.
enum Found {
    /// No usable log; these files are set aside.
    Lost(Vec<PathBuf>),
    /// The files of an interrupted rebuild.
    Begun,
}

struct Adoption<'a> {
    target: &'a Target,
    stores: Stores,
    asked: Asked,
    log: PathBuf,
    snapshots: PathBuf,
}

impl Adoption<'_> {
    /// Returns the number of differences that are left.
    async fn run(
        self,
        author: Option<Author<'_>>,
        lock: Option<DirectoryLock>,
        out: &mut impl Write,
    ) -> anyhow::Result<usize> {
        let bound = self.asked.bound().await.context("ask PostgreSQL")?;
        let Some(identity) = bound.log else {
            bail!("{NEVER_USED}");
        };
        let found = tokio::task::block_in_place(|| self.find(identity, &bound))?;
        let ledger = match &found {
            Found::Lost(_) => Ledger::new(self.stores.places),
            Found::Begun => led(&self.stores).context("read the log")?,
        };
        let planned = plan(&self.stores, &self.asked, ledger).await?;
        let catalog = self.stores.catalog.load_full();
        let (Some(author), Some(lock)) = (author, lock) else {
            return tell(&planned, &found, &self.log, &catalog, out);
        };
        let (identity, detail) = match &found {
            Found::Begun => (identity, String::new()),
            Found::Lost(files) => {
                let aside = self.set_aside(files, out)?;
                (
                    if bound.begun { identity } else { Identity(SystemEntropy::default().u128()) },
                    aside,
                )
            }
        };
        crash::point("adopt_after_aside");
        if !bound.begun {
            let was = bound.log.context("it was there above")?;
            let latest = self.target.answered_incarnation();
            let rebinding = Rebinding { was, log: identity, latest, detail, author };
            let Target { address, limits, .. } = self.target;
            rebind(address, limits, &rebinding).await.context("bind PostgreSQL to the new log")?;
            say(out, "done", &format_args!("PostgreSQL belongs to log {identity}, and is halted"))?;
        }
        crash::point("adopt_after_postgres");
        // The engine locks it again. Until then PostgreSQL refuses every start.
        drop(lock);
        self.rebuild(identity, author, out).await
    }

    /// The state of the log's directory, or the reason that a rebuild is refused.
    fn find(&self, identity: Identity, bound: &Bound) -> anyhow::Result<Found> {
        let data_dir = &self.target.config.data_dir;
        let files = || -> anyhow::Result<Vec<PathBuf>> {
            let mut files = named(&self.log, &LOG_FILES)?;
            files.extend(named(&self.snapshots, &SNAPSHOT_FILES)?);
            Ok(files)
        };
        if !self.log.is_dir() {
            return Ok(Found::Lost(files()?));
        }
        match replayed(&self.log, &self.snapshots, self.stores.places) {
            Ok(Led { identity: None, .. }) => Ok(Found::Lost(files()?)),
            Ok(Led { identity: Some(found), .. }) if found != identity => bail!(
                "the log in {} has identity {found}, the database belongs to log {identity}: they are not a pair; next: name \
                 the right data directory and database, or move that log elsewhere",
                self.log.display()
            ),
            Ok(_) if bound.begun => Ok(Found::Begun),
            Ok(_) => bail!(
                "the log in {} is there and can be read: nothing is rebuilt over it; next: ubscore serve, or ubscore wal repair \
                 {} if PostgreSQL knows more of it",
                self.log.display(),
                data_dir.display()
            ),
            Err(error) => {
                let directory = Directory::at(&self.log);
                if leaves_a_log(&directory, &self.snapshots, identity)? {
                    return Err(error).with_context(|| {
                        format!(
                            "the log is damaged, not lost; next: ubscore wal repair {}",
                            data_dir.display()
                        )
                    });
                }
                Ok(Found::Lost(files()?))
            }
        }
    }

    /// Moves the rest of the old log to a directory that no command reads. Returns the note for the
    /// record of the rebuild.
    fn set_aside(&self, files: &[PathBuf], out: &mut impl Write) -> anyhow::Result<String> {
        crash::point("adopt_before_aside");
        if files.is_empty() {
            return Ok(String::new());
        }
        let data_dir = &self.target.config.data_dir;
        let now_ns = SystemClock::new().now_ns();
        let to = aside::move_away(data_dir, files, now_ns).context("set the old log aside")?;
        say(
            out,
            "done",
            &format_args!("{} files of the old log set aside to {}", files.len(), to.display()),
        )?;
        let name = to.file_name().context("a directory has a name")?;
        Ok(format!("aside={}", name.to_string_lossy()))
    }

    /// Records all that PostgreSQL proves, and closes the rebuild. Returns the number of
    /// differences that are left.
    async fn rebuild(
        self,
        identity: Identity,
        author: Author<'_>,
        out: &mut impl Write,
    ) -> anyhow::Result<usize> {
        let Target { address, limits, engine, .. } = self.target;
        let open = || Closed::open(engine.clone());
        let closed = tokio::task::block_in_place(open).context("open the log")?;
        if let Some(found) = closed.identity() {
            ensure!(found == identity, "the log has identity {found}, and not {identity}");
        }
        // Planned again: PostgreSQL has ended every process that wrote before.
        let planned = plan(&self.stores, &self.asked, led(&self.stores)?).await?;
        let replayed = tokio::task::block_in_place(|| closed.replay(0, |_| {}));
        let engine = replayed.context("replay the log")?;
        let engine = engine.start(identity, |sync| sync()).context("start the engine")?;
        let done = async {
            decide(&engine, &planned.carried).await?;
            crash::point("adopt_after_carried");
            decide(&engine, &planned.steps).await
        }
        .await;
        // Decisions are durable before they are reported, also if one of them failed.
        tokio::task::block_in_place(|| engine.stop());
        done?;
        crash::point("adopt_after_steps");
        for line in carried_lines(&planned, &self.stores.catalog.load()) {
            say(out, "done", &line)?;
        }
        for step in &planned.steps {
            say(out, "done", step)?;
        }
        let decided = plan(&self.stores, &self.asked, led(&self.stores)?).await?.renumberings;
        // The old disk may have had the file. If it is left, it may prove that PostgreSQL has gone
        // back as well.
        let mut left = match flights::read(&self.target.config.data_dir) {
            Ok(_) => self.target.lost_flights().await?,
            Err(_) => Vec::new(),
        };
        for lost in &left {
            say(out, "left", lost)?;
        }
        self.target.write_flights().await?;
        let latest = self.target.answered_incarnation();
        renumber(address, limits, identity, latest, (&decided, CutRepair::Done), author)
            .await
            .context("write PostgreSQL")?;
        crash::point("adopt_after_renumbering");
        let verdict = verify(self.stores.again()).await.context("compare the two stores")?;
        let told = left.len();
        left.extend(planned.left.iter().map(|(id, why)| format!("transfer {id}: {why}")));
        left.extend(verdict.mismatches.iter().map(ToString::to_string));
        for transfer in &planned.open {
            say(out, "open", &OpenLine(transfer))?;
        }
        for left in &left[told..] {
            say(out, "left", left)?;
        }
        let Rebuild { transfers, open, .. } = &planned;
        writeln!(out, "rebuilt transfers={transfers} open={} left={}", open.len(), left.len())?;
        writeln!(
            out,
            "next     ubscore serve, which starts halted; then ubscore resume --reason TEXT, which checks the money first"
        )?;
        Ok(left.len())
    }
}

/// Prints the plan of a rebuild. Returns the number of differences that are left.
fn tell(
    planned: &Rebuild,
    found: &Found,
    log: &Path,
    catalog: &Catalog,
    out: &mut impl Write,
) -> anyhow::Result<usize> {
    let log = log.display();
    match found {
        Found::Begun => say(out, "begun", &format_args!("a rebuild in {log} is not finished"))?,
        Found::Lost(files) if files.is_empty() => {
            say(out, "lost", &format_args!("no log is in {log}"))?;
        }
        Found::Lost(files) => {
            say(out, "lost", &format_args!("nothing in {log} is left to begin with"))?;
            for file in files {
                say(out, "would", &format_args!("set aside {}", file.display()))?;
            }
        }
    }
    for line in carried_lines(planned, catalog) {
        say(out, "would", &line)?;
    }
    for step in &planned.steps {
        say(out, "would", step)?;
    }
    for transfer in &planned.open {
        say(out, "open", &OpenLine(transfer))?;
    }
    for (req_id, why) in &planned.left {
        say(out, "left", &format_args!("transfer {req_id}: {why}"))?;
    }
    let Rebuild { transfers, open, left, .. } = planned;
    writeln!(out, "planned transfers={transfers} open={} left={}", open.len(), left.len())?;
    writeln!(
        out,
        "note     make sure first that the log is lost, and not on a disk that is not mounted: once rebuilt, it is foreign"
    )?;
    writeln!(out, "next     ubscore engine adopt --apply --reason TEXT")?;
    Ok(left.len())
}

fn say(out: &mut impl Write, word: &str, what: &dyn Display) -> std::io::Result<()> {
    writeln!(out, "{word:<8} {what}")
}

/// The sums that the log begins with, one line for each asset, because there may be millions of
/// balances.
fn carried_lines(planned: &Rebuild, catalog: &Catalog) -> Vec<String> {
    let mut sums = BTreeMap::<_, (u64, u128)>::new();
    for step in &planned.carried {
        if let PlanStep::Carry { asset, totals, .. } = step {
            let (balances, sum) = sums.entry(*asset).or_default();
            *balances += 1;
            *sum += totals.available().unwrap_or(0);
        }
    }
    let line = |(asset, (balances, sum))| {
        let named = catalog.by_id(asset);
        let sum = match named {
            Some(named) => {
                format!("{} {}", domain::amount::units_text(sum, named.precision), named.symbol)
            }
            None => format!("{sum} smallest units of asset {}", asset.0),
        };
        format!(
            "carry {sum} on {balances} balances, the sums of transfers below the watermark {}",
            planned.watermark
        )
    };
    sums.into_iter().map(line).collect()
}

/// A transfer that was under way.
struct OpenLine<'a>(&'a Transfer);

impl Display for OpenLine<'_> {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Transfer { intent, state, .. } = self.0;
        write!(
            out,
            "transfer {}, user {}, asset {}: {} in PostgreSQL; the service goes on from there and asks UBSCore again",
            intent.req_id,
            intent.user,
            intent.asset.0,
            state.name()
        )
    }
}

/// The files of a directory with a prefix; none if the directory does not exist.
fn named(directory: &Path, prefixes: &[&str]) -> anyhow::Result<Vec<PathBuf>> {
    let failed = || format!("list {}", directory.display());
    if !directory.is_dir() {
        return Ok(Vec::new());
    }
    let mut files = Vec::new();
    for entry in fs::read_dir(directory).with_context(failed)? {
        let entry = entry.with_context(failed)?;
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if prefixes.iter().any(|prefix| name.starts_with(prefix)) {
            files.push(entry.path());
        }
    }
    files.sort();
    Ok(files)
}
