//! `ubscore serve`: everything put together, in the order in which a start is safe.
//!
//! The log's lock comes first, so that a second process touches nothing. Then PostgreSQL and the incarnation, so that a
//! process before us can write no more; then the log is read, which nobody changes any longer; then the transfers that
//! are under way are taken up, and only then is anybody listened to.

use std::io::Write;
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use anyhow::{Context, bail};
use arc_swap::ArcSwap;
use engine::snapshot::store::SnapshotStore;
use engine::{Closed, Engine, Replayed};
use parking_lot::Mutex;
use sd_notify::NotifyState;
use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{Notify, watch};
use tracing::{info, warn};
use wal::Identity;

use super::dev;
use crate::adapters::Adapter;
use crate::adapters::funding::Funding;
use crate::adapters::spot::{Spot, Unanswered};
use crate::alert::{self, Alert, alert, alert_about, webhook};
use crate::audit::conservation::Audit;
use crate::audit::externals::Held;
use crate::audit::failover::{self, Difference};
use crate::audit::frequency::Frequency;
use crate::audit::halt::{self, Found, Halt};
use crate::audit::mismatch::Mismatch;
use crate::audit::{rounds, totals};
use crate::checkpointer::{self, Checkpointer};
use crate::cli::ServeArgs;
use crate::clock::{Clock, SystemClock};
use crate::config::tls::TlsFiles;
use crate::config::{self, Config};
use crate::coordinator::{Coordinator, Failed, Options, Parts, Pool, watermark};
use crate::data_dir;
use crate::entropy::{Entropy, SystemEntropy};
use crate::events::relay::{self, Relay};
use crate::events::webhooks::{self, Webhooks};
use crate::events::{Bounds, Hub};
use crate::exit::Exit;
use crate::gate::CleanRounds;
use crate::http::auth::Verifier;
use crate::http::listener::{self, Limits};
use crate::http::readiness::Readiness;
use crate::http::rotation::{self, Rotating};
use crate::http::service::{
    Approvals, Intake, Operations, Service, Streams, TransferLimits, Transfers,
};
use crate::http::tls::Tls;
use crate::http::wire::EventBody;
use crate::http::{ops, public};
use crate::last_words;
use crate::postgres::audit_reader::AuditReader;
use crate::postgres::database::{Database, Lease};
use crate::postgres::development;
use crate::postgres::embedded::{self, Embedded};
use crate::postgres::funds::Funds;
use crate::postgres::incarnation::{self, Behind, Incarnation};
use crate::postgres::pin::{Pin, Sight};
use crate::postgres::reads::Reads;
use crate::postgres::reads::assets::Unreadable;
use crate::postgres::watermark::Watermark;
use crate::postgres::{self, Address};
use crate::quota::usage::DayMax;
use crate::quota::{self, Quotas};
use crate::stores;
use crate::telemetry::lines;
use crate::telemetry::{self, Metrics, chain, init_logging};
use domain::amount::Amount;
use domain::asset::Catalog;
use domain::transfer::ExternalOperation;

/// How long a shard's lease lasts from each commit on. Nothing depends on it while one process owns all shards.
const LEASE: Duration = Duration::from_secs(10);
/// Between two foldings of the histograms' samples, and two looks at the log's room.
const UPKEEP: Duration = Duration::from_secs(5);
/// Between two words of a replay's progress.
const REPLAY_PROGRESS: Duration = Duration::from_secs(1);
/// How long an orderly stop waits for the webhook.
const LAST_ALERTS: Duration = Duration::from_secs(1);
/// And for the collector of spans.
const LAST_SPANS: Duration = Duration::from_secs(1);
/// How long a start waits until UBSCore has room for the records of external operations.
const RECORDS_WAIT: Duration = Duration::from_secs(30);
/// Between two tries.
const RECORDS_PAUSE: Duration = Duration::from_millis(20);
/// Between two looks whether the checkpointer has ended.
const STOP_LOOK: Duration = Duration::from_millis(10);
/// One part of so many of the outcome map is kept for transfers that UBSCore would not refuse at once.
const KEPT_PART: usize = 8;
/// Files this process may have open, if the system lets it: connections, segments, PostgreSQL.
pub const OPEN_FILES: u64 = 65_536;

/// Serves until SIGTERM or SIGINT.
///
/// # Errors
/// What stands in the way of a start, or has ended the service.
pub fn run(args: &ServeArgs) -> anyhow::Result<()> {
    let config = Config::load(args.stores.config.as_deref(), args.overrides(), args.stores.dev)
        .context("load the configuration")?;
    let traces = init_logging(&config.log, &config.telemetry)?;
    #[cfg(feature = "crash")]
    crate::crash::arm().map_err(anyhow::Error::msg)?;
    raise_open_files();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let served = runtime.block_on(serve(&config, args.stores.dev));
    traces.stop(LAST_SPANS);
    if served.is_ok() {
        // An error is the last line itself, behind these.
        telemetry::lines::flush();
    }
    served
}

async fn serve(config: &Config, development: bool) -> anyhow::Result<()> {
    // First, so that a signal during a long replay ends the process in order as well.
    let mut signals = Signals::new()?;
    let hangups = signal(SignalKind::hangup())?;
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let verifier = Arc::new(Verifier::new(&config.auth).context("read the keys of tokens")?);
    let tls =
        |files: Option<TlsFiles>| files.map(Tls::new).transpose().map(|tls| tls.map(Arc::new));
    let http_tls = tls(config.http.tls_files()).context("read a certificate")?;
    let ops_tls = tls(config.ops.tls_files()).context("read a certificate")?;
    wal::Directory::create(&config.data_dir)
        .with_context(|| format!("make the data directory {}", config.data_dir.display()))?;
    data_dir::refuse_unfinished_restore(&config.data_dir)?;
    let closed = Closed::open(stores::engine_options(config)).context("open the log")?;
    let http = listen(config.http.listen, "http.listen").await?;
    let ops = listen(config.ops.listen, "ops.listen").await?;

    let (stop, stopped) = watch::channel(());
    let limits = Limits::from(&config.http);
    let addresses = (http.local_addr()?, ops.local_addr()?);
    let wait = |mut stopped: watch::Receiver<()>| async move { drop(stopped.changed().await) };
    // The operators' listener answers from now on: that a long replay goes on is worth knowing.
    let ready = Arc::new(OnceLock::<Arc<Service>>::new());
    let over = Arc::new(AtomicBool::new(false));
    let ops_service = Arc::clone(&ready);
    let ops_over = Arc::clone(&over);
    let ops_handler = move |request| {
        let (service, over) = (ops_service.get().cloned(), Arc::clone(&ops_over));
        async move {
            let answer = match service {
                Some(service) => ops::answer(service, request).await,
                None => ops::starting(&request),
            };
            unless(&over, answer).await
        }
    };
    let ops_task =
        listener::serve(ops, limits, ops_tls.clone(), ops_handler, wait(stopped.clone()));
    let mut ops_task = tokio::spawn(ops_task);

    let mut rotating: Vec<Arc<dyn Rotating>> = vec![Arc::clone(&verifier) as Arc<dyn Rotating>];
    for tls in [&http_tls, &ops_tls].into_iter().flatten() {
        rotating.push(Arc::clone(tls) as Arc<dyn Rotating>);
    }
    let every = Duration::from_millis(config.reload.every_ms);
    let rotation = rotation::keep(rotating, every, Arc::clone(&clock), hangups);
    let rotation = tokio::spawn(rotation);

    let mut server = stores::start_embedded(config).await?;
    let started = tokio::select! {
        started = start(config, development, closed, server.as_ref(), (clock, verifier), stopped.clone()) => started,
        name = signals.next() => Err(anyhow::anyhow!("stopped by {name} before it was ready")),
    };
    let started = match started {
        Ok(started) => started,
        Err(error) => {
            stores::stop_embedded(server).await;
            return Err(error);
        }
    };
    let Started { service, mut pool, engine, checkpointer, pin } = started;

    assert!(ready.set(Arc::clone(&service)).is_ok(), "there is one service");
    let api_service = Arc::clone(&service);
    let api_over = Arc::clone(&over);
    let api_handler = move |request| {
        let (service, over) = (Arc::clone(&api_service), Arc::clone(&api_over));
        async move {
            let answer = public::answer(service, request).await;
            unless(&over, answer).await
        }
    };
    let api_task = listener::serve(http, limits, http_tls, api_handler, wait(stopped.clone()));
    let mut api_task = tokio::spawn(api_task);
    let upkeep = keep_watch(Arc::clone(&service), config.clone(), engine.handle());
    let upkeep = tokio::spawn(upkeep);

    announce(config, development, addresses, service.intake.clock.now_s())?;
    let ended = tokio::select! {
        name = signals.next() => {
            info!(signal = name, "stopping");
            tell_manager(NotifyState::Stopping);
            Ok(())
        }
        failed = pool.failed() => Err(Ended::Failed(failed)),
        Err(panicked) = &mut api_task => Err(Ended::Failed(Failed::Broken(panicked))),
        Err(panicked) = &mut ops_task => Err(Ended::Failed(Failed::Broken(panicked))),
        failure = stores::keep_embedded(config, &mut server) => Err(Ended::Postgres(failure)),
    };
    if let Err(failed) = ended {
        // From here on nothing is answered any more.
        over.store(true, Ordering::Release);
        // Whatever we still know may be another process's by now: end, and leave the disk as it is.
        engine::end_soon();
        last_words::last_alert();
        lines::last_words("ubscore", &chain(&failed));
        let exit = match failed {
            Ended::Failed(Failed::Superseded(_)) => Exit::Superseded,
            Ended::Failed(Failed::Broken(_)) | Ended::Postgres(_) => Exit::Broken,
        };
        std::process::exit(exit.code().into());
    }
    // One limit for everything that follows: supervisors kill what takes longer than it was given.
    let limit = Duration::from_millis(config.http.shutdown_timeout_ms);
    let clock = Arc::clone(&service.intake.clock);
    let stopping = clock.sleep(limit);
    // Streams have no end of their own.
    if let Some(events) = &service.streams.hub {
        events.close();
    }
    drop((stop, stopped));
    upkeep.abort();
    rotation.abort();
    let drained = api_task.await.context("the public listener")?;
    ops_task.await.context("the operators' listener")?;
    drop(ready);
    checkpointer.stop();
    let at_rest = async {
        // Who asked may be gone before what they asked for is done.
        while Arc::strong_count(&service) > 1 {
            clock.sleep(STOP_LOOK).await;
        }
        // The last reference to the coordinator: its workers come to rest now.
        drop(service);
        pool.join().await;
        while !checkpointer.has_stopped() {
            clock.sleep(STOP_LOOK).await;
        }
    };
    tokio::select! {
        biased;
        () = at_rest => {}
        () = stopping => warn!("transfers or a snapshot are still under way; the next start goes on with them"),
    }
    tokio::task::block_in_place(|| engine.stop());
    failover::remember(&pin, &config.data_dir);
    stores::stop_embedded(server).await;
    alert::flush(LAST_ALERTS);
    let (finished, cut) = (drained.finished, drained.cut);
    info!(
        finished,
        cut, "stopped; everything accepted is durable, and the next start goes on with it"
    );
    Ok(())
}

/// Why a service that has begun ends by itself.
#[derive(Debug, thiserror::Error)]
enum Ended {
    #[error(transparent)]
    Failed(Failed),
    #[error("the embedded PostgreSQL ended, and cannot be started again")]
    Postgres(#[source] embedded::Error),
}

/// The answer, unless the process has nothing to say any more: another one may have changed what was read.
async fn unless<T>(over: &AtomicBool, answer: T) -> T {
    if over.load(Ordering::Acquire) {
        return std::future::pending().await;
    }
    answer
}

/// Whether a start was refused for something that the next start would meet again: a person has to look first.
pub(super) fn needs_person(error: &anyhow::Error) -> bool {
    use engine::snapshot::Error as Snapshot;
    error.chain().any(|cause| {
        cause.is::<NoPair>()
            || matches!(cause.downcast_ref(), Some(data_dir::Error::UnfinishedRestore(_)))
            || cause.is::<engine::replay::Error>()
            || matches!(
                cause.downcast_ref(),
                Some(
                    incarnation::Refusal::Foreign { .. }
                        | incarnation::Refusal::LogMissing { .. }
                        | incarnation::Refusal::Unused { .. }
                        | incarnation::Refusal::Exhausted(_)
                )
            )
            || matches!(
                cause.downcast_ref(),
                Some(
                    wal::Error::Damaged { .. }
                        | wal::Error::Missing { .. }
                        | wal::Error::Header { .. }
                        | wal::Error::Version { .. }
                        | wal::Error::Foreign { .. }
                        | wal::Error::Order { .. }
                        | wal::Error::Unfinished { .. }
                        | wal::Error::Chain { .. }
                        | wal::Error::Sync { .. }
                        | wal::Error::Poisoned
                )
            )
            || matches!(
                cause.downcast_ref(),
                Some(incarnation::Refusal::Postgres(error))
                    if error.is_of_other_version() || matches!(error, postgres::Error::Unadopted)
            )
            || cause.downcast_ref().is_some_and(|error| !matches!(error, Snapshot::Io { .. }))
            || matches!(
                cause.downcast_ref(),
                Some(
                    engine::Error::ForeignSnapshot { .. }
                        | engine::Error::SnapshotAhead { .. }
                        | engine::Error::NoSnapshot { .. }
                )
            )
    })
}

/// A log that has been used beside a database that never used one.
#[derive(Debug, thiserror::Error)]
#[error(
    "the log {log} holds {records} records, but the database has never used a log: they are not a pair"
)]
struct NoPair {
    log: String,
    records: u64,
}

/// A service that is ready but not listening.
struct Started {
    service: Arc<Service>,
    pool: Pool,
    engine: Engine,
    checkpointer: Checkpointer,
    pin: Arc<Pin>,
}

async fn start(
    config: &Config,
    development: bool,
    closed: Closed,
    server: Option<&Embedded>,
    (clock, verifier): (Arc<dyn Clock>, Arc<Verifier>),
    stopping: watch::Receiver<()>,
) -> anyhow::Result<Started> {
    let metrics = Metrics::install();
    alert::start(&alert_options(config), Arc::clone(&clock)).context("start alerting")?;
    metrics.sized(
        config.engine.ring_slots,
        engine::ring::orders_max(config.engine.in_flight_max),
        config.engine.outcomes_max,
    );
    let (target, limits) =
        (stores::postgres_address(config, server)?, stores::postgres_limits(config));
    let (target, pin, different) = pin_server(config, target, &limits).await?;
    if development {
        development::admit(&target, &limits).await.context("make development money")?;
    }
    let log = closed.identity().map(|log| Ok::<_, wal::Error>((log, holds_records(config)?)));
    let log = log.transpose().context("look into the log")?;
    postgres::migrate(&target, &limits, log).await.context("prepare PostgreSQL")?;
    let shards = u32::try_from(config.coordinator.shards).expect("at most 64");
    let (log_identity, owner) = (closed.identity(), format!("pid {}", std::process::id()));
    // One lease a worker, and one for operations of Funding outside a transfer.
    let begin = async |behind| {
        incarnation::begin(&target, &limits, log_identity, behind, shards + 1, &owner, LEASE)
            .await
            .context("begin a new incarnation")
    };
    let mut incarnation = begin(None).await?;
    let replayed = replay_log(closed, &incarnation, clock.as_ref(), metrics)?;
    let latest =
        incarnation::of_order_number(replayed.ledger().order_numbers_end().saturating_sub(1));
    let mut found = Vec::new();
    if latest >= incarnation.number {
        // It counts from an older incarnation, whose order numbers are in the log already.
        let mismatch = Mismatch::older_database(latest, incarnation.number - 1);
        let behind = Behind { latest, reason: mismatch.to_string() };
        found.push(mismatch);
        incarnation = begin(Some(&behind)).await?;
    }
    pin.begin(incarnation.number, shards + 1);
    let catalog = Arc::new(ArcSwap::from_pointee(Catalog::default()));
    let pool = postgres::pool(&target, &limits, config.postgres.connections_max);
    let reads = Reads::new(pool, Arc::clone(&catalog), incarnation.number);
    if development {
        reads.begin_development(&dev::assets()).await.context("add the development assets")?;
    }
    let database = reads.database().await.context("ask for the database's name")?;
    let halt = begin_halt(config, &incarnation, &reads, &clock).await;
    failover::hold_at_changes(&pin, &halt);
    let assets = reads.load_catalog().await.context("read the assets")?;
    let quota_options = quota_options(config, &assets).context("load the configuration")?;
    reads.load_pauses().await.context("read the pauses")?;
    info!(incarnation = incarnation.number, "begun");
    let log_watermark = replayed.ledger().watermark();
    let settled = replayed.ledger().settled(incarnation.watermark);
    let externals = Held::of(replayed.ledger());
    let around_sync = timed_syncs(Arc::clone(&clock));
    let engine =
        start_engine(replayed, log_identity, &incarnation, &target, &limits, around_sync).await?;

    let adapter_timeout = Duration::from_millis(config.coordinator.adapter_timeout_ms);
    let spot = Arc::new(Spot::new(
        engine.handle(),
        Arc::clone(&clock),
        Arc::clone(&catalog),
        adapter_timeout,
    ));
    for asset in assets.all() {
        match spot.register(asset).await {
            // Amounts of it have another meaning in the log: nothing of it may be read by this row.
            Err(Unanswered::Violation(why)) => reads.leave_out(asset, why),
            done => done.with_context(|| format!("register {}", asset.symbol))?,
        }
    }
    name_unreadable(&reads);
    let reader = audit_reader(config, &target.examining(), &limits, &catalog);
    let log_dir = data_dir::log(&config.data_dir);
    let number = incarnation.number;
    let audit = Audit::begin(reader, Arc::clone(&spot), Arc::clone(&catalog), log_dir, number);
    let mut audit = audit.await.context("begin the audit")?;
    // Before anything moves on: what does not add up must not be built upon.
    match settled {
        Some(settled) => {
            let here = |watermark| (watermark == incarnation.watermark).then(|| settled.clone());
            let below = audit.below_watermark(here).await;
            found.extend(below.context("compare what lies below the watermark")?);
        }
        // What follows from it, if anything, is found transfer by transfer.
        None => {
            let known = incarnation.watermark;
            warn!(log_watermark, known, "PostgreSQL's watermark is behind the log's");
        }
    }
    let compared = audit.externals(&externals).await.context("compare external operations")?;
    found.extend(compared.mismatches);
    let (clean, began_ns) = (Arc::new(CleanRounds::default()), clock.monotonic_ns());
    rounds::catch_up(&mut audit, &found, different.as_ref(), &halt, clock.as_ref())
        .await
        .context("compare the two stores")?;
    if !halt.is_halted() {
        clean.ended(began_ns);
    }
    record_externals(&spot, clock.as_ref(), compared.unrecorded).await?;
    failover::remember(&pin, &config.data_dir);
    // PostgreSQL was told first, and a process may have died in between. Without room in the log it waits: until then
    // UBSCore only remembers more than it must, as it does where something is wrong.
    if !halt.is_halted()
        && let Err(error) = spot.raise_watermark(incarnation.watermark).await
    {
        warn!(%error, "the log's watermark stays behind PostgreSQL's for now");
    }
    let kept = audit.kept();
    let (check, requests) = rounds::check();
    let every = Duration::from_millis(config.conservation.every_ms);
    let watching = rounds::Watching {
        found,
        every,
        stalled: Duration::from_millis(config.alert.stuck_ms),
        halt: Arc::clone(&halt),
        pin: Arc::clone(&pin),
        clean: Arc::clone(&clean),
    };
    let lease = |shard| Lease { incarnation: incarnation.number, shard, duration: LEASE };
    let store = |shard| Database::new(target.clone(), limits, lease(shard), Arc::clone(&catalog));
    let (durable, capacity, vacancy) = (engine.handle(), engine.handle(), engine.handle());
    let committed = Arc::new(Notify::new());
    let parts = Parts {
        spot: Arc::clone(&spot),
        funding: Arc::new(Funding::new(store(shards), Arc::clone(&catalog))),
        clock: Arc::clone(&clock),
        options: coordinator_options(config),
        incarnation: incarnation.number,
        watermark: incarnation.watermark.max(log_watermark),
        durable: Arc::new(move || durable.durable()),
        capacity: Arc::new(move || capacity.capacity()),
        vacancy: Arc::new(move || vacancy.vacancy()),
        kept: config.engine.outcomes_max / KEPT_PART,
        gate: halt.gate(),
        committed: Arc::clone(&committed),
        clean: config.conservation.before_withdrawal.then(|| Arc::clone(&clean)),
    };
    let entropy = || -> Box<dyn Entropy> { Box::new(SystemEntropy) };
    let stores = (0..shards).map(store).collect();
    let (coordinator, mut pool) = Coordinator::start(parts, stores, entropy);
    pool.run(rounds::run(audit, watching, Arc::clone(&clock), requests));
    let data_dir = config.data_dir.clone();
    let (pinned, timing) = (Arc::clone(&pin), Arc::clone(&clock));
    let stopped = stopping.clone();
    pool.run(failover::watch(target.clone(), limits, pinned, data_dir, timing, stopped));
    let outcomes = watermark::Options {
        keep: config.outcomes.keep_hours.duration(),
        every: Duration::from_millis(config.outcomes.evict_every_ms),
        outcomes_max: config.engine.outcomes_max,
    };
    let made = relay::Options {
        target: target.clone(),
        limits,
        incarnation: incarnation.number,
        endpoints: config.webhooks.url.iter().map(|_| webhooks::ENDPOINT.to_owned()).collect(),
        catalog: Arc::clone(&catalog),
        keep: config.events.keep_hours.duration(),
        dead_keep: config.webhooks.dead_keep_hours.duration(),
    };
    let events = follow_events(config, &mut pool, committed, &clock, made)?;
    let longest = Duration::from_millis(config.conservation.statement_timeout_ms);
    let funds = Funds::new(target.clone(), limits, longest, incarnation.number);
    let totals = totals::Reader::new(Arc::clone(&spot), Arc::clone(&clock), funds, longest);
    let store = Watermark::new(target, limits, incarnation.number);
    coordinator.keep_watermark(store, outcomes, halt.gate(), &mut pool);
    let ready = async {
        coordinator.recovered().await;
        match development {
            true => dev::give_money(&coordinator, &assets).await,
            false => Ok(()),
        }
    };
    tokio::select! {
        done = ready => done?,
        failed = pool.failed() => return Err(failed.into()),
    }
    let watch = checkpointer::Watch {
        needed_after: Box::new(move || kept.load(Ordering::Acquire)),
        mismatch: halting(&halt),
    };
    let checkpointer =
        Checkpointer::start(checkpointer_options(config)?, &engine, Arc::clone(&clock), watch)
            .context("start to make snapshots")?;
    let transfers = Transfers {
        coordinator,
        reads: reads.clone(),
        halt,
        quotas: Quotas::new(quota_options, Arc::clone(&clock)),
        frequency: Mutex::new(Frequency::new(config.alert.user_requests_per_minute_max)),
        clock: Arc::clone(&clock),
        stopping,
        limits: TransferLimits {
            transfer_wait: Duration::from_millis(config.http.transfer_wait_ms),
            accept_wait: Duration::from_millis(config.http.accept_wait_ms()),
            end_wait_max: Duration::from_millis(config.http.request_timeout_ms)
                .saturating_sub(public::END_WAIT_GRACE),
            stuck_ms: config.alert.stuck_ms,
            units_max: u64::MAX / config.amount.safety_factor,
            cid_required: config.http.cid_required,
        },
    };
    let streams = Streams {
        hub: events,
        heartbeat: Duration::from_millis(config.events.heartbeat_ms),
        reads,
        clock: Arc::clone(&clock),
        verifier: Arc::clone(&verifier),
    };
    let approvals = Approvals {
        required: config.approval.required.clone(),
        expires_after: Duration::from_millis(config.approval.expires_after_ms),
        carrying_out: tokio::sync::Mutex::default(),
    };
    let intake = Intake {
        verifier,
        clock,
        entropy: Mutex::new(Box::new(SystemEntropy)),
        body_bytes_max: config.http.body_bytes_max,
        body_read_timeout: Duration::from_millis(config.http.body_read_timeout_ms),
    };
    let operations = Operations {
        database,
        engine: Mutex::new(engine.handle()),
        snapshots: checkpointer.requests(),
        check,
        totals,
        metrics,
    };
    let service = Service { intake, transfers, streams, approvals, spot, operations };
    Ok(Started { service: Arc::new(service), pool, engine, checkpointer, pin })
}

/// Whether the log has a first record, or had one that snapshots cover by now. Its damage is judged by the replay.
fn holds_records(config: &Config) -> Result<bool, wal::Error> {
    let log_dir = data_dir::log(&config.data_dir);
    let first = match wal::Reader::open_path(&log_dir, 0) {
        Ok(mut log) => log.next().map(|first| first.is_some()),
        Err(error) => Err(error),
    };
    match first {
        Ok(first) => Ok(first),
        Err(error @ wal::Error::Medium { .. }) => Err(error),
        Err(_) => Ok(true),
    }
}

/// Pins the process to the server that answers first, and says why both stores must be compared completely, if they must.
async fn pin_server(
    config: &Config,
    target: Address,
    limits: &postgres::Limits,
) -> anyhow::Result<(Address, Arc<Pin>, Option<Difference>)> {
    let client = postgres::connect(&target, limits).await.context("connect to PostgreSQL")?;
    let sight = Sight::look(&client).await.context("ask PostgreSQL which server it is")?;
    let different = failover::difference(&config.data_dir, &sight);
    let pin = Pin::new(&sight);
    Ok((target.pinned(&pin), pin, different))
}

/// Begins to make events of what is committed, and to deliver them where there is an endpoint; returns where they are
/// followed, `None` where there are to be none.
fn follow_events(
    config: &Config,
    pool: &mut Pool,
    committed: Arc<Notify>,
    clock: &Arc<dyn Clock>,
    options: relay::Options,
) -> anyhow::Result<Option<Arc<Hub>>> {
    let (events, hooks) = (&config.events, &config.webhooks);
    if !events.enabled {
        return Ok(None);
    }
    let hub = Arc::new(Hub::new(Bounds {
        // The other half is for requests that end.
        streams_max: events.streams_max.min(config.http.connections_max.div_ceil(2)),
        streams_per_user_max: events.streams_per_user_max,
        queue_max: events.queue_max,
    }));
    if let (Some(url), Some(secret)) = (&hooks.url, &hooks.secret) {
        let options = webhooks::Options {
            target: options.target.clone(),
            limits: options.limits,
            incarnation: options.incarnation,
            catalog: Arc::clone(&options.catalog),
            body: EventBody::json,
            url: url.clone(),
            secret: secret.clone(),
            timeout: Duration::from_millis(hooks.timeout_ms),
            parallel: hooks.parallel,
            attempts_max: hooks.attempts_max,
            backoff_base_ms: hooks.backoff_base_ms,
            backoff_cap_ms: hooks.backoff_cap_ms,
        };
        let (hub, clock) = (Arc::clone(&hub), Arc::clone(clock));
        let webhooks = Webhooks::start(options, hub, clock, Box::new(SystemEntropy));
        pool.run(webhooks.context("start to deliver events")?.run());
    }
    pool.run(Relay::new(options, Arc::clone(&hub), Arc::clone(clock), committed).run());
    Ok(Some(hub))
}

/// Records the external operations that a process has left without their records. Before the watermark is raised: below it
/// nothing is recorded any more.
///
/// # Errors
/// UBSCore does not take one. Without its record the operation could be lost unseen.
async fn record_externals(
    spot: &Spot,
    clock: &dyn Clock,
    mut left: Vec<ExternalOperation>,
) -> anyhow::Result<()> {
    let began = clock.monotonic_ns();
    while !left.is_empty() {
        info!(operations = left.len(), "external operations get their records");
        let answers = spot.record(left.clone()).await;
        let answers = left.into_iter().zip(answers);
        let open: Vec<_> =
            answers.filter(|(_, answer)| answer.outcome.decision().is_none()).collect();
        let waited = Duration::from_nanos(clock.monotonic_ns() - began);
        if let Some((operation, answer)) = open.first()
            && waited >= RECORDS_WAIT
        {
            bail!(
                "external operation {} cannot be recorded in the log ({}); next: make room on the log's disk, or raise engine.outcomes_max, and restart",
                operation.idem_key.as_str(),
                answer.outcome.name()
            );
        }
        left = open.into_iter().map(|(operation, _)| operation).collect();
        if !left.is_empty() {
            clock.sleep(RECORDS_PAUSE).await;
        }
    }
    Ok(())
}

/// What the audit reads in PostgreSQL.
fn audit_reader(
    config: &Config,
    target: &Address,
    limits: &postgres::Limits,
    catalog: &Arc<ArcSwap<Catalog>>,
) -> AuditReader {
    let statement_timeout = Duration::from_millis(config.conservation.statement_timeout_ms);
    AuditReader::new(target.clone(), *limits, statement_timeout, Arc::clone(catalog))
}

/// The flag that halts, as PostgreSQL and the data directory have it.
async fn begin_halt(
    config: &Config,
    incarnation: &Incarnation,
    reads: &Reads,
    clock: &Arc<dyn Clock>,
) -> Arc<Halt> {
    let found = Found {
        in_postgres: incarnation.halted.clone(),
        in_data_dir: halt::found_in(&config.data_dir),
    };
    let (reads, clock) = (reads.clone(), Arc::clone(clock));
    Arc::new(Halt::begin(found, reads, clock, config.data_dir.clone()).await)
}

/// What halts the service from a thread of its own.
fn halting(halt: &Arc<Halt>) -> Box<dyn Fn(String) + Send> {
    let (halt, runtime) = (Arc::clone(halt), tokio::runtime::Handle::current());
    Box::new(move |reason| {
        // It is told again and again, as long as it is so.
        if halt.needs_resume() {
            return;
        }
        let halt = Arc::clone(&halt);
        runtime.spawn(async move { halt.halt("keeper", &reason).await });
    })
}

/// Replays the log, as far as the database and it are a pair.
fn replay_log(
    closed: Closed,
    incarnation: &Incarnation,
    clock: &dyn Clock,
    metrics: &'static Metrics,
) -> anyhow::Result<Replayed> {
    let on_disk = closed.identity();
    let began = clock.monotonic_ns();
    let claim = incarnation.durable_claim;
    let mut said = began;
    let progress = |progress: engine::Progress| {
        let now = clock.monotonic_ns();
        if Duration::from_nanos(now - said) >= REPLAY_PROGRESS {
            said = now;
            info!(records = progress.records, sequence = progress.sequence, "replaying the log");
        }
    };
    let replayed =
        tokio::task::block_in_place(|| closed.replay(claim, progress)).context("replay the log")?;
    metrics.replayed(Duration::from_nanos(clock.monotonic_ns() - began));
    let records = replayed.ledger().sequence();
    if incarnation.log_identity.is_none() && records > 0 {
        let log = on_disk.map_or_else(String::new, incarnation::identity_text);
        return Err(NoPair { log, records }.into());
    }
    Ok(replayed)
}

/// What notes how long each sync of the log takes.
fn timed_syncs(clock: Arc<dyn Clock>) -> impl FnMut(&mut dyn FnMut()) + Send + 'static {
    let syncs = telemetry::wal_syncs();
    move |sync| {
        let began_ns = clock.monotonic_ns();
        sync();
        let took = Duration::from_nanos(clock.monotonic_ns() - began_ns);
        syncs.record(took.as_secs_f64());
    }
}

/// Starts UBSCore, binding log and database to each other where neither has been used.
async fn start_engine(
    replayed: Replayed,
    on_disk: Option<Identity>,
    incarnation: &Incarnation,
    target: &Address,
    limits: &postgres::Limits,
    around_sync: impl FnMut(&mut dyn FnMut()) + Send + 'static,
) -> anyhow::Result<Engine> {
    let identity = on_disk.unwrap_or_else(|| Identity(SystemEntropy.u128()));
    let engine = replayed.start(identity, around_sync).context("start the engine")?;
    if incarnation.log_identity.is_none() {
        // The log first: a crash in between leaves an empty log, which any unused database may bind.
        incarnation::bind(target, limits, incarnation.number, identity)
            .await
            .context("bind the log to the database")?;
    }
    Ok(engine)
}

fn checkpointer_options(config: &Config) -> anyhow::Result<checkpointer::Options> {
    Ok(checkpointer::Options {
        log_dir: data_dir::log(&config.data_dir),
        store: SnapshotStore::create(&data_dir::snapshots(&config.data_dir))?,
        places: stores::places(config),
        every_records: config.snapshot.every_records,
        every_bytes: config.snapshot.every_bytes,
        keep: config.snapshot.keep,
        archive_command: config.snapshot.archive_command.clone(),
    })
}

fn coordinator_options(config: &Config) -> Options {
    Options {
        fuse: config.coordinator.fuse,
        queue_max: config.coordinator.queue_max,
        batch_max: config.coordinator.batch_max,
        active_max: config.coordinator.active_max,
        backoff_base_ms: config.coordinator.backoff_base_ms,
        backoff_cap_ms: config.coordinator.backoff_cap_ms,
        stale_ms: config.recovery.stale_ms,
        stuck_ms: config.alert.stuck_ms,
        accept_wait: Duration::from_millis(config.http.accept_wait_ms()),
        clean_wait: Duration::from_millis(config.conservation.before_withdrawal_wait_ms),
    }
}

/// What a user may use, in the numbers of the assets that there are.
fn quota_options(config: &Config, assets: &Catalog) -> Result<quota::Options, config::Error> {
    let limits = &config.limits;
    let key = "limits.user_amounts_per_day_max";
    let amount = |(symbol, text): &(String, String)| {
        let wrong = |allowed: String| {
            let value = format!("{symbol}={text}");
            config::Error::Range { key, value, allowed }
        };
        let asset = assets.by_symbol(symbol);
        let asset = asset.ok_or_else(|| wrong("of an asset that there is".to_owned()))?;
        let amount = Amount::parse(text, asset.precision, u64::MAX).map_err(|_| {
            let decimals = asset.precision;
            wrong(format!("a number above 0 with at most {decimals} decimals, 64 bits in all"))
        })?;
        Ok((asset.id, amount.units()))
    };
    let amounts = limits.user_amounts_per_day_max.0.iter().map(amount);
    let transfers = limits.user_transfers_per_day_max;
    Ok(quota::Options {
        requests_per_second: NonZeroU32::new(limits.user_requests_per_second_max),
        day: DayMax {
            transfers: (transfers > 0).then_some(transfers),
            amounts: amounts.collect::<Result<_, config::Error>>()?,
        },
    })
}

fn alert_options(config: &Config) -> alert::Options {
    let timeout = Duration::from_millis(config.alert.webhook_timeout_ms);
    let webhook = config.alert.webhook_url.clone();
    alert::Options {
        repeat: Duration::from_millis(config.alert.repeat_ms),
        webhook: webhook.map(|url| webhook::Options { url, timeout }),
    }
}

/// Binds a listener; an occupied port is named with the process that holds it.
async fn listen(address: SocketAddr, key: &str) -> anyhow::Result<TcpListener> {
    TcpListener::bind(address).await.with_context(|| {
        let holder = listeners::get_process_by_port(address.port(), listeners::Protocol::TCP);
        let holder = match holder {
            Ok(process) => format!(", which process {} ({}) holds", process.pid, process.name),
            Err(_) => String::new(),
        };
        format!("{key}: listen on {address}{holder}")
    })
}

/// Raises an alert for each asset whose row cannot be read in whole.
fn name_unreadable(reads: &Reads) {
    for Unreadable { asset, what } in reads.unreadable() {
        alert_about(Alert::AssetUnreadable, &asset, format_args!("{asset}: {what}"));
    }
}

/// Folds the metrics, names assets that cannot be read, and alerts on little room in the log and in UBSCore's tables, before
/// a user is refused for want of it.
async fn keep_watch(service: Arc<Service>, config: Config, engine: engine::Handle) {
    let log_dir = data_dir::log(&config.data_dir);
    let (clock, metrics) = (Arc::clone(&service.intake.clock), service.operations.metrics);
    let reads = service.transfers.reads.clone();
    // The service is dropped by the stop, which waits for its last user.
    let watched = Arc::downgrade(&service);
    drop(service);
    loop {
        metrics.upkeep();
        name_unreadable(&reads);
        // For its alerts: a shortage is one before a client meets it.
        if let Some(service) = watched.upgrade() {
            Readiness::look(&service.transfers).await;
        }
        match rustix::fs::statvfs(&log_dir) {
            Ok(found) => {
                let free = found.f_bavail.saturating_mul(found.f_frsize);
                telemetry::wal_free(free);
                let low = config.wal.space_low_bytes;
                if free < low {
                    let path = log_dir.display();
                    alert(
                        Alert::WalSpaceLow,
                        format_args!("{free} bytes are free for {path}, less than {low}"),
                    );
                }
            }
            Err(error) => warn!(%error, "what is free for the log cannot be told"),
        }
        watch_places("accounts", engine.accounts(), engine.accounts_left());
        watch_places("balances", engine.balances(), engine.balances_left());
        match files_bytes(&log_dir) {
            Ok(bytes) => telemetry::wal_bytes(bytes),
            Err(error) => warn!(%error, "how long the log is cannot be told"),
        }
        clock.sleep(UPKEEP).await;
    }
}

/// Alerts once four fifths of a table of UBSCore are taken.
fn watch_places(table: &'static str, taken: usize, left: usize) {
    if taken >= left.saturating_mul(4) {
        let places = taken + left;
        let what = format_args!("{taken} of {places} places for {table} are taken");
        alert_about(Alert::PlacesLow, &table, what);
    }
}

/// The length of all files of a directory.
fn files_bytes(directory: &Path) -> std::io::Result<u64> {
    let mut bytes: u64 = 0;
    for entry in std::fs::read_dir(directory)? {
        match entry?.metadata() {
            Ok(found) => bytes = bytes.saturating_add(found.len()),
            // Renamed or removed in between.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(bytes)
}

/// The one line that says it is ready, and in development everything a new user needs.
fn announce(
    config: &Config,
    development: bool,
    (http, ops): (SocketAddr, SocketAddr),
    now_s: u64,
) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    let guide = match development {
        true => dev::guide(config, http, ops, now_s)?,
        false => String::new(),
    };
    // Nobody reading it is no reason to end.
    drop(writeln!(out, "ubscore ready http={http} ops={ops}\n{guide}"));
    drop(out.flush());
    tell_manager(NotifyState::Ready);
    Ok(())
}

/// Tells the service manager, where one has asked for it (`Type=notify`), how far this process is. An embedded PostgreSQL says
/// the same of itself, to the same socket: managers have to listen to the first process alone.
fn tell_manager(state: NotifyState<'_>) {
    if let Err(error) = sd_notify::notify(&[state]) {
        warn!(%error, "the service manager cannot be told");
    }
}

/// As many open files as the system lets us have.
fn raise_open_files() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let wanted = OPEN_FILES.min(limit.maximum.unwrap_or(OPEN_FILES));
    if limit.current.is_some_and(|current| current < wanted) {
        let raised = Rlimit { current: Some(wanted), maximum: limit.maximum };
        if let Err(error) = setrlimit(Resource::Nofile, raised) {
            warn!(%error, "the limit of open files stays low");
        }
    }
}

/// What ends the service in order.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    fn new() -> anyhow::Result<Signals> {
        Ok(Signals {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}
