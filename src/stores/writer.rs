//! The start of the one process that writes to both stores.
//!
//! ```text
//!   lock of the log --> PostgreSQL's server --> schema --> incarnation --> log replayed --> engine
//! ```
//!
//! The lock comes first, so that a second process changes nothing. The incarnation ends the writes
//! of earlier processes. Only then is the log read: nothing changes it any more.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use engine::{Closed, Engine, Replayed};
use tracing::info;
use wal::Identity;

use super::{Target, engine_options, postgres_address, postgres_limits};
use crate::audit::failover;
use crate::audit::mismatch::Mismatch;
use crate::audit::verify::verify;
use crate::clock::Clock;
use crate::config::Config;
use crate::data_dir;
use crate::entropy::{Entropy, SystemEntropy};
use crate::postgres::development;
use crate::postgres::embedded::Embedded;
use crate::postgres::flights::{self, Answered, Flights};
use crate::postgres::incarnation::{self, Behind, Incarnation, Refusal, Start};
use crate::postgres::pin::{Pin, Sight};
use crate::postgres::{self, Address};
use crate::telemetry::{self, Metrics};

/// Losses that a refused start names.
const NAMED_MAX: usize = 20;
/// Between two log lines with a replay's progress.
const REPLAY_PROGRESS: Duration = Duration::from_secs(1);

/// Opens and locks the log.
///
/// # Errors
/// Another process holds the log, a restore is not finished, or the log is damaged.
pub fn open_log(config: &Config) -> anyhow::Result<Closed> {
    wal::Directory::create(&config.data_dir)
        .with_context(|| format!("make the data directory {}", config.data_dir.display()))?;
    data_dir::refuse_unfinished_restore(&config.data_dir)?;
    Closed::open(engine_options(config)).context("open the log")
}

/// PostgreSQL, as a writing process uses it.
pub struct Postgres {
    /// Its address. Every connection is pinned to the server that answered first.
    pub address: Address,
    /// How long it may take.
    pub limits: postgres::Limits,
    /// The server.
    pub pin: Arc<Pin>,
    /// Why both stores must be compared completely, if they must.
    pub different: Option<String>,
}

impl Postgres {
    /// Connects, and pins the process to the server that answers.
    ///
    /// # Errors
    /// The server cannot be reached.
    pub async fn connect(config: &Config, server: Option<&Embedded>) -> anyhow::Result<Postgres> {
        let (address, limits) = (postgres_address(config, server)?, postgres_limits(config));
        let client = postgres::connect(&address, &limits).await.context("connect to PostgreSQL")?;
        let sight =
            Sight::read(&client, None).await.context("ask PostgreSQL which server it is")?;
        let different = failover::difference(&config.data_dir, &sight);
        let pin = Pin::new(&sight);
        Ok(Postgres { address: address.pinned(&pin), limits, pin, different })
    }

    /// Brings the schema up to this version. `development`: for `serve --dev`.
    ///
    /// # Errors
    /// The database is not for development, is not the log's, or has another version.
    pub async fn prepare(
        &self,
        config: &Config,
        closed: &Closed,
        development: bool,
    ) -> anyhow::Result<()> {
        let Postgres { address, limits, .. } = self;
        if development {
            development::admit(address, limits).await.context("make development money")?;
        }
        let log = closed.identity().map(|log| Ok::<_, wal::Error>((log, holds_records(config)?)));
        let log = log.transpose().context("look into the log")?;
        postgres::migrate(address, limits, log).await.context("prepare PostgreSQL")
    }
}

/// Whether the log holds a record, or held one that snapshots cover by now. Damage is for the
/// replay to judge.
fn holds_records(config: &Config) -> Result<bool, wal::Error> {
    let first = match wal::Reader::open_path(&data_dir::log(&config.data_dir), 0) {
        Ok(mut log) => log.next().map(|first| first.is_some()),
        Err(error) => Err(error),
    };
    match first {
        Ok(first) => Ok(first),
        Err(error @ wal::Error::Medium { .. }) => Err(error),
        Err(_) => Ok(true),
    }
}

/// A process that may write: its incarnation has begun, and the log is replayed.
pub struct Begun {
    /// The process's incarnation.
    pub incarnation: Incarnation,
    /// The identity in the log's headers; `None` for an empty log.
    pub log: Option<Identity>,
    /// UBSCore's state by the log.
    pub replayed: Replayed,
    /// Mismatches that are known already.
    pub found: Vec<Mismatch>,
}

/// Begins an incarnation and replays the log.
///
/// # Errors
/// The database belongs to another log, or the log cannot be replayed.
pub async fn begin(
    config: &Config,
    postgres: &Postgres,
    closed: Closed,
    clock: &dyn Clock,
    metrics: &'static Metrics,
) -> anyhow::Result<Begun> {
    let Postgres { address, limits, pin, .. } = postgres;
    let log = closed.identity();
    // One shard a worker, and one for Funding operations outside a transfer.
    let shards = u32::try_from(config.coordinator.shards).expect("at most 64") + 1;
    let answered = answered(config).context("read the answered flights")?;
    let fence_wait = Duration::from_millis(config.start.fence_ms);
    let start = Start { log, shards, answered: &answered, fence_wait };
    let begin = async |behind| incarnation::begin(address, limits, &start, behind, clock).await;
    let mut incarnation = match begin(None).await {
        Ok(incarnation) => incarnation,
        Err(refusal @ Refusal::GoneBack { .. }) => {
            let lost = name_lost(config, postgres).await;
            return Err(anyhow::Error::from(refusal).context(lost));
        }
        Err(refusal) => return Err(refusal).context("begin a new incarnation"),
    };
    let replayed = replay_log(closed, &incarnation, clock, metrics)?;
    let latest =
        incarnation::of_order_number(replayed.ledger().order_numbers_end().saturating_sub(1));
    let mut found = Vec::new();
    if latest >= incarnation.number {
        // The database counts from an older incarnation. Its next order numbers are in the log
        // already.
        let mismatch = Mismatch::older_database(latest, incarnation.number - 1);
        let behind = Behind { latest, reason: mismatch.to_string() };
        found.push(mismatch);
        incarnation = begin(Some(&behind)).await.context("begin a new incarnation")?;
        assert!(incarnation.number > latest, "no order number is given twice");
    }
    let flights = Flights::create(&config.data_dir, incarnation.number, &incarnation.flights);
    pin.begin(incarnation.number, flights.context("write the answered flights")?);
    Ok(Begun { incarnation, log, replayed, found })
}

/// The flights that PostgreSQL's journal must have. Only a new data directory has no such file.
fn answered(config: &Config) -> anyhow::Result<Answered> {
    match flights::read(&config.data_dir) {
        Err(flights::Error::Missing(_))
            if !holds_records(config).context("look into the log")? =>
        {
            Ok(Answered::default())
        }
        answered => Ok(answered?),
    }
}

/// The records of the log that PostgreSQL lacks after it has gone back, as far as a comparison of
/// both stores finds them; for people.
async fn name_lost(config: &Config, postgres: &Postgres) -> String {
    let Postgres { address, limits, .. } = postgres;
    let (address, limits) = (address.clone(), *limits);
    let (engine, config) = (engine_options(config), config.clone());
    let target = Target { address, limits, engine, config };
    let compared = async {
        let stores = target.stores().await?;
        let catalog = Arc::clone(&stores.catalog);
        Ok::<_, anyhow::Error>((verify(stores).await?, catalog))
    };
    match compared.await {
        Ok((verdict, _)) if verdict.mismatches.is_empty() => {
            "the log proves no loss of money".to_owned()
        }
        Ok((verdict, catalog)) => {
            let (found, catalog) = (&verdict.mismatches, catalog.load());
            let named: Vec<String> = found
                .iter()
                .take(NAMED_MAX)
                .map(|mismatch| catalog.name_assets(&mismatch.to_string()))
                .collect();
            let more = match found.len().saturating_sub(NAMED_MAX) {
                0 => String::new(),
                more => format!("; and {more} more"),
            };
            format!("the log proves what PostgreSQL lacks: {}{more}", named.join("; "))
        }
        Err(error) => format!("the log and PostgreSQL could not be compared ({error:#})"),
    }
}

/// Replays the log. A log with records beside a database that never used a log is refused.
fn replay_log(
    closed: Closed,
    incarnation: &Incarnation,
    clock: &dyn Clock,
    metrics: &'static Metrics,
) -> anyhow::Result<Replayed> {
    let on_disk = closed.identity();
    let began = clock.monotonic_ns();
    let mut reported = began;
    let progress = |progress: engine::Progress| {
        let now = clock.monotonic_ns();
        if Duration::from_nanos(now - reported) >= REPLAY_PROGRESS {
            reported = now;
            info!(records = progress.records, sequence = progress.sequence, "replaying the log");
        }
    };
    let replay = || closed.replay(incarnation.durable_claim, progress);
    let replayed = tokio::task::block_in_place(replay).context("replay the log")?;
    metrics.replayed(Duration::from_nanos(clock.monotonic_ns() - began));
    if incarnation.log_identity.is_none() && replayed.ledger().sequence() > 0 {
        let log = on_disk.map_or_else(String::new, incarnation::identity_text);
        return Err(Refusal::Unused { log }.into());
    }
    Ok(replayed)
}

/// Starts UBSCore. If neither store has been used, it binds the log and the database to each other.
///
/// # Errors
/// The system gives no threads, or PostgreSQL cannot be written.
pub async fn start_engine(
    postgres: &Postgres,
    incarnation: &Incarnation,
    log: Option<Identity>,
    replayed: Replayed,
    clock: Arc<dyn Clock>,
) -> anyhow::Result<Engine> {
    if let Some(bound) = incarnation.log_identity {
        assert_eq!(log, Some(bound), "the incarnation has refused the database of another log");
    }
    let identity = log.unwrap_or_else(|| Identity(SystemEntropy::default().u128()));
    let engine = replayed.start(identity, timed_syncs(clock)).context("start the engine")?;
    if incarnation.log_identity.is_none() {
        // The log first: after a crash in between the log is empty, and any unused database may
        // bind it.
        incarnation::bind(&postgres.address, &postgres.limits, incarnation.number, identity)
            .await
            .context("bind the log to the database")?;
    }
    Ok(engine)
}

/// Records how long each sync of the log takes.
fn timed_syncs(clock: Arc<dyn Clock>) -> impl FnMut(&mut dyn FnMut()) + Send + 'static {
    let syncs = telemetry::wal_syncs();
    move |sync| {
        let began_ns = clock.monotonic_ns();
        sync();
        let took = Duration::from_nanos(clock.monotonic_ns() - began_ns);
        syncs.record(took.as_secs_f64());
    }
}
