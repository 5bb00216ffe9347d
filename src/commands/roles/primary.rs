//! `ubscore serve`: the primary, the one process that moves money.
//!
//! The stages, in the order in which a start is safe:
//!
//! ```text
//!   keys --> lock of the log --> listeners bound --> health --> PostgreSQL --> incarnation
//!        --> replay --> settings --> engine --> stores compared --> tasks --> recovery
//!        --> snapshots --> public listener
//! ```
//!
//! A stop goes the other way: listeners, checkpointer, workers, engine, PostgreSQL.

use std::collections::BTreeMap;
use std::io::Write;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use arc_swap::ArcSwap;
use domain::asset::Catalog;
use domain::transfer::ExternalOperation;
use engine::ledger::Ledger;
use engine::totals::Totals;
use engine::{Closed, Engine};
use parking_lot::Mutex;
use sd_notify::NotifyState;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tracing::{info, warn};

use super::process::{self, Process, Serving, listen};
use super::recharges::Opening;
use super::signals::{Signals, notify_manager};
use super::{upkeep, venues};
use crate::adapters::Adapter;
use crate::adapters::funding::Funding;
use crate::adapters::spot::{self, Spot, Unanswered};
use crate::audit::conservation::Audit;
use crate::audit::externals::Held;
use crate::audit::failover;
use crate::audit::frequency::Frequency;
use crate::audit::halt::{self, Found, Halt};
use crate::audit::legs;
use crate::audit::mismatch::Mismatch;
use crate::audit::rounds::Watching;
use crate::audit::{rounds, totals};
use crate::checkpointer::{self, Checkpointer};
use crate::cli::ServeArgs;
use crate::clock::Clock;
use crate::commands::dev;
use crate::commands::dev::children::Children;
use crate::config::Config;
use crate::config::secret::Secret;
use crate::config::snapshot::{KEEPS_POSTINGS, KEEPS_POSTINGS_CHANGE};
use crate::config::tls::TlsFiles;
use crate::coordinator::{self, Coordinator, Parts, watermark};
use crate::data_dir;
use crate::entropy::{Entropy, SystemEntropy};
use crate::events::retention::Journal;
use crate::events::webhooks::{self, Webhooks};
use crate::events::{Bounds, Hub, retention};
use crate::exit::Exit;
use crate::gate::CleanRounds;
use crate::http::auth::Verifier;
use crate::http::rotation::Rotating;
use crate::http::service::{
    Approvals, BodyLimits, Heartbeat, Intake, Operations, RechargeDesk, Service, Streams,
    TransactionDesk, TransferLimits, Transfers,
};
use crate::http::tls::{HTTP_1_1, Tls};
use crate::http::transaction_event::posted;
use crate::http::{ops, public};
use crate::postgres::admin::Admin;
use crate::postgres::audit_reader::AuditReader;
use crate::postgres::database::{Database, Writer};
use crate::postgres::embedded::Embedded;
use crate::postgres::flight::{EventIds, Told};
use crate::postgres::flight_store::FlightStore;
use crate::postgres::funds::Funds;
use crate::postgres::incarnation::Incarnation;
use crate::postgres::pin::Pin;
use crate::postgres::reads::Reads;
use crate::postgres::watermark::Watermark;
use crate::postgres::webhooks as deliveries;
use crate::quota::{self, Quotas};
use crate::stores;
use crate::stores::writer::{self, Begun, Postgres};
use crate::stream::ahead::Ahead;
use crate::task::Tasks;
use crate::telemetry::{Metrics, chain};
use crate::transactions::Transactions;

/// How long a start waits until UBSCore has room for the records of external operations.
const RECORDS_WAIT: Duration = Duration::from_secs(30);
/// Between two tries.
const RECORDS_PAUSE: Duration = Duration::from_millis(20);
/// Between two checks whether the last request has ended.
const STOP_LOOK: Duration = Duration::from_millis(10);

/// Serves until SIGTERM or SIGINT.
///
/// # Errors
/// The service cannot start, or a listener broke during the stop.
pub fn run(args: &ServeArgs) -> anyhow::Result<Exit> {
    let mut config = Config::load(args.stores.config.as_deref(), args.overrides(), args.stores.dev)
        .context("load the configuration")?;
    let development = args.stores.dev;
    let mut children = Children::start(args, &mut config)?;
    let ready = |ready: Ready| {
        let guide = children.serve(&ready.config, ready.callbacks, &ready.postgres)?;
        announce(&ready, development, &guide)?;
        notify_manager(NotifyState::Ready);
        Ok(())
    };
    run_until(config, development, Signals::new, ready)
}

/// Serves until one of `signals`. `ready` is called once.
///
/// # Errors
/// The service cannot start, a listener broke during the stop, or `ready` refused.
pub fn run_until(
    config: Config,
    development: bool,
    signals: impl FnOnce() -> std::io::Result<Signals>,
    ready: impl FnOnce(Ready) -> anyhow::Result<()>,
) -> anyhow::Result<Exit> {
    process::run(config, signals, async |process| serve(process, development, ready).await)
}

/// A service that serves.
pub struct Ready {
    /// Its configuration.
    pub config: Config,
    /// UBSCore.
    pub engine: engine::Handle,
    /// Opens the sessions of venues.
    pub ahead: Arc<Ahead>,
    /// The parts behind the listeners. They end with the service.
    pub service: Weak<Service>,
    /// Its runtime.
    pub runtime: tokio::runtime::Handle,
    /// The public listener's address.
    pub http: SocketAddr,
    /// The operators' one.
    pub ops: SocketAddr,
    /// That of payment channels; `None`: recharges are off.
    pub callbacks: Option<SocketAddr>,
    /// Whether recharges must be recovered behind a restore, see [`crate::postgres::recover`].
    pub recover_needed: bool,
    /// The URL of its database.
    pub postgres: Secret,
    /// The time at which it was ready, s since the Unix epoch.
    pub now_s: u64,
}

async fn serve(
    mut process: Process,
    development: bool,
    announce: impl FnOnce(Ready) -> anyhow::Result<()>,
) -> anyhow::Result<Exit> {
    let config = process.config.clone();
    let keys = Keys::read(&config)?;
    let closed = writer::open_log(&config)?;
    let http = listen(config.http.listen, "http.listen").await?;
    let ops = listen(config.ops.listen, "ops.listen").await?;
    let venues = venues::listen(&config, keys.stream_tls.as_ref()).await?;
    let recharges = Opening::new(&config, &process.clock).await?;
    let addresses = (http.local_addr()?, ops.local_addr()?);
    // The operators' listener answers from now on, so that a long replay can be watched.
    let ready = Arc::new(OnceLock::new());
    let ops = serve_operators(&mut process, ops, keys.ops_tls.clone(), &ready);
    process.keep_keys([keys.rotating(), recharges.rotating()].concat());

    let mut server = stores::start_embedded(&config).await?;
    let (stopping, silent) = (process.stopping(), process.silent());
    let start = Start {
        config: &config,
        development,
        clock: &process.clock,
        metrics: process.metrics,
        recharges: &recharges,
        silent,
        tasks: &mut process.tasks,
    };
    let started = tokio::select! {
        started = start.run(closed, server.as_ref(), keys.verifier, stopping) => started,
        name = process.signals.next() => Err(anyhow!("stopped by {name} before it was ready")),
    };
    let started = match started {
        Ok(started) => started,
        Err(error) => {
            stores::stop_embedded(server).await;
            return Err(error);
        }
    };
    let service = &started.service;
    assert!(ready.set(Arc::clone(service)).is_ok(), "there is one service");
    let http = serve_public(&mut process, http, keys.http_tls, service);
    let callbacks = (recharges.address(), recharges.serve(&mut process, service));
    let ahead = venues::ahead(&service.transfers.halt);
    venues::serve(&mut process, venues, started.engine.handle(), service, Arc::clone(&ahead));
    let watch = upkeep::keep_watch(Arc::clone(service), config.clone(), started.engine.handle());
    process.tasks.run_endless("upkeep", watch);

    announce(Ready {
        config: config.clone(),
        engine: started.engine.handle(),
        ahead,
        service: Arc::downgrade(service),
        runtime: tokio::runtime::Handle::current(),
        http: addresses.0,
        ops: addresses.1,
        callbacks: callbacks.0,
        recover_needed: service.needs_recover(),
        postgres: stores::postgres_url(&config, server.as_ref()),
        now_s: process.clock.now_s(),
    })?;
    if let Err(ended) = process.ended(stores::keep_embedded(&config, &mut server)).await {
        process.end_at_once(&ended);
    }
    drop(ready);
    stop(process, started, (http, ops, callbacks.1), server).await
}

/// The keys of tokens and the certificates of both listeners.
struct Keys {
    verifier: Arc<Verifier>,
    http_tls: Option<Arc<Tls>>,
    ops_tls: Option<Arc<Tls>>,
    stream_tls: Option<Arc<Tls>>,
}

impl Keys {
    fn read(config: &Config) -> anyhow::Result<Keys> {
        let verifier = Arc::new(Verifier::new(&config.auth).context("read the keys of tokens")?);
        let read = |files: Option<TlsFiles>, protocols| {
            let tls = files.map(|files| Tls::new(files, protocols)).transpose();
            tls.context("read a certificate").map(|tls| tls.map(Arc::new))
        };
        Ok(Keys {
            verifier,
            http_tls: read(config.http.tls_files(), HTTP_1_1)?,
            ops_tls: read(config.ops.tls_files(), HTTP_1_1)?,
            stream_tls: read(config.stream.tls_files(), &[])?,
        })
    }

    fn rotating(&self) -> Vec<Arc<dyn Rotating>> {
        let mut rotating = vec![Arc::clone(&self.verifier) as Arc<dyn Rotating>];
        for tls in [&self.http_tls, &self.ops_tls, &self.stream_tls].into_iter().flatten() {
            rotating.push(Arc::clone(tls) as Arc<dyn Rotating>);
        }
        rotating
    }
}

/// The operators' listener: health until there is a service, then every route.
fn serve_operators(
    process: &mut Process,
    listener: TcpListener,
    tls: Option<Arc<Tls>>,
    ready: &Arc<OnceLock<Arc<Service>>>,
) -> Serving {
    let ready = Arc::clone(ready);
    process.serve("the operators' listener", listener, tls, move |request| {
        let service = ready.get().cloned();
        async move {
            match service {
                Some(service) => ops::answer(service, request).await,
                None => ops::starting(&request),
            }
        }
    })
}

/// The clients' listener.
fn serve_public(
    process: &mut Process,
    listener: TcpListener,
    tls: Option<Arc<Tls>>,
    service: &Arc<Service>,
) -> Serving {
    let service = Arc::clone(service);
    let handler = move |request| public::answer(Arc::clone(&service), request);
    process.serve("the public listener", listener, tls, handler)
}

/// Prints the line that reports readiness, and in development a guide with `more` at its end.
fn announce(ready: &Ready, development: bool, more: &str) -> anyhow::Result<()> {
    let Ready { config, http, ops, callbacks, recover_needed, now_s, .. } = ready;
    let guide = development.then(|| dev::guide(config, *http, *ops, *now_s, more)).transpose()?;
    let guide = guide.unwrap_or_default();
    let mut out = std::io::stdout().lock();
    // If stdout is closed, the service goes on.
    let callbacks = callbacks.map_or(String::new(), |address| format!(" callbacks={address}"));
    let recover = if *recover_needed { " recover=needed" } else { "" };
    drop(writeln!(out, "ubscore ready http={http} ops={ops}{callbacks}{recover}\n{guide}"));
    drop(out.flush());
    Ok(())
}

/// Stops in order: listeners, checkpointer, workers, engine, PostgreSQL.
async fn stop(
    mut process: Process,
    started: Started,
    (http, ops, callbacks): (Serving, Serving, Option<Serving>),
    server: Option<Embedded>,
) -> anyhow::Result<Exit> {
    let Started { service, engine, checkpointer, pin } = started;
    // One limit for the whole stop: a supervisor kills a process that takes longer.
    let clock = Arc::clone(&process.clock);
    let late = clock.sleep(Duration::from_millis(process.config.http.shutdown_timeout_ms));
    // Streams do not end by themselves.
    if let Some(events) = &service.streams.hub {
        events.close();
    }
    process.stop();
    let drained = http.drained().await?;
    for listener in [Some(ops), callbacks].into_iter().flatten() {
        listener.drained().await?;
    }
    checkpointer.stop();
    let tasks = std::mem::take(&mut process.tasks);
    let at_rest = async {
        // A client may hang up before its request has ended.
        while Arc::strong_count(&service) > 1 {
            clock.sleep(STOP_LOOK).await;
        }
        // The last reference to the coordinator. Its workers end now.
        drop(service);
        tasks.join().await;
    };
    tokio::select! {
        biased;
        () = at_rest => {}
        () = late => warn!("transfers or a snapshot are still under way; the next start continues them"),
    }
    tokio::task::block_in_place(|| engine.stop());
    failover::remember(&pin, &process.config.data_dir);
    stores::stop_embedded(server).await;
    let exit = process.finish();
    let (finished, cut) = (drained.finished, drained.cut);
    info!(
        finished,
        cut, "stopped; everything accepted is durable, and the next start continues it"
    );
    Ok(exit)
}

/// A service that is ready and not listening yet.
struct Started {
    service: Arc<Service>,
    engine: Engine,
    checkpointer: Checkpointer,
    pin: Arc<Pin>,
}

/// What every stage of a start uses.
struct Start<'a> {
    config: &'a Config,
    development: bool,
    clock: &'a Arc<dyn Clock>,
    metrics: &'static Metrics,
    recharges: &'a Opening,
    silent: Arc<AtomicBool>,
    tasks: &'a mut Tasks,
}

/// What PostgreSQL holds beside balances and transfers.
struct Settings {
    reads: Reads,
    admin: Admin,
    catalog: Arc<ArcSwap<Catalog>>,
    assets: Arc<Catalog>,
    database: (String, bool),
    quotas: Quotas,
    halt: Arc<Halt>,
}

/// Both stores after the start has compared them.
struct Compared {
    audit: Audit<Arc<Spot>>,
    /// Mismatches that only another start looks for again.
    found: Vec<Mismatch>,
    clean: Arc<CleanRounds>,
}

impl Start<'_> {
    /// From the locked log to a service that is ready.
    async fn run(
        mut self,
        closed: Closed,
        server: Option<&Embedded>,
        verifier: Arc<Verifier>,
        stopping: watch::Receiver<()>,
    ) -> anyhow::Result<Started> {
        let config = self.config;
        self.metrics.sized(
            config.engine.ring_slots,
            engine::ring::orders_max(config.engine.in_flight_max),
            config.engine.outcomes_max,
        );
        let postgres = Postgres::connect(config, server).await?;
        postgres.prepare(config, &closed, self.development).await?;
        let begun = writer::begin(config, &postgres, closed, self.clock.as_ref(), self.metrics);
        let Begun { incarnation, log, replayed, found } = begun.await?;
        let settings = self.read_settings(&postgres, &incarnation).await?;
        info!(incarnation = incarnation.number, "begun");

        let known = Known {
            log_watermark: replayed.ledger().watermark(),
            settled: replayed.ledger().settled(incarnation.watermark),
            externals: Held::of(replayed.ledger()),
            found,
        };
        let log_watermark = known.log_watermark;
        self.know_venues(replayed.ledger(), &settings).await?;
        let clock = Arc::clone(self.clock);
        let engine = writer::start_engine(&postgres, &incarnation, log, replayed, clock).await?;
        let spot = self.register_assets(&engine, &settings).await?;
        let compared = self.compare(&postgres, &incarnation, &settings, &spot, known).await?;
        let kept = compared.audit.kept();

        let journal = Arc::new(Journal::new(config.journal.bytes_max));
        let stores = Both {
            postgres: &postgres,
            incarnation: &incarnation,
            engine: &engine,
            spot: &spot,
            journal: &journal,
        };
        let hub = self.follow_events(&stores, &settings, stopping.clone()).await?;
        let events = Arc::new(EventIds::new(incarnation.number));
        let watermark = incarnation.watermark.max(log_watermark);
        let coordinator =
            self.start_coordinator(&stores, &settings, &compared.clean, (&hub, &events), watermark);
        let transactions = super::transactions::begin(
            config,
            (&postgres, incarnation.number),
            (&coordinator, &spot),
            (&settings.admin, settings.reads.clone()),
            (self.clock, settings.halt.gate(), Arc::clone(&self.silent)),
            (events, hub.clone()),
            self.tasks,
        )?;
        let gate = (settings.halt.gate(), Arc::clone(&self.silent));
        let recharges =
            self.recharges.desk(config, &settings.admin, &coordinator, gate, self.tasks).await?;
        let check = self.watch_stores(compared, &stores, &settings, stopping.clone());
        self.keep_watermark(&coordinator, &stores, &settings);
        self.recover(&coordinator, &settings).await?;
        let checkpointer = self.start_checkpointer(&engine, &settings, kept)?;
        let front = Front { coordinator, transactions, recharges, hub, check, verifier, stopping };
        let service = self.service(front, &stores, settings, checkpointer.requests());
        Ok(Started { service: Arc::new(service), engine, checkpointer, pin: postgres.pin })
    }

    /// A log with venues or postings: PostgreSQL is marked, also one that was restored from before
    /// the mark.
    async fn know_venues(&self, ledger: &Ledger, settings: &Settings) -> anyhow::Result<()> {
        if !ledger.has_postings() {
            return Ok(());
        }
        let mark = async {
            if !settings.admin.is_posted().await? {
                failover::alert_lost_mark();
            }
            settings.admin.mark_posted().await
        };
        mark.await.context("mark PostgreSQL for venues")?;
        if self.config.snapshot.keeps_postings() {
            warn!("{KEEPS_POSTINGS}; next: {KEEPS_POSTINGS_CHANGE}");
        }
        Ok(())
    }

    /// Reads the assets, the pauses and the flag that halts.
    async fn read_settings(
        &self,
        postgres: &Postgres,
        incarnation: &Incarnation,
    ) -> anyhow::Result<Settings> {
        let Postgres { address, limits, pin, .. } = postgres;
        let catalog = Arc::new(ArcSwap::from_pointee(Catalog::default()));
        let pool = crate::postgres::pool(address, limits, self.config.postgres.connections_max);
        let reads = Reads::new(pool, Arc::clone(&catalog)).looking_by_keys(address, limits);
        let admin = Admin::new(reads.clone(), incarnation.number);
        if self.development {
            admin.begin_development(&dev::assets()).await.context("add the development assets")?;
        }
        let database = reads.database().await.context("ask for the database's name")?;
        let found = Found {
            in_postgres: incarnation.halted.clone(),
            in_data_dir: halt::found_in(&self.config.data_dir),
            cut: admin.cut().await.context("ask for a cut of the log")?,
        };
        let (data_dir, clock) = (self.config.data_dir.clone(), Arc::clone(self.clock));
        let halt = Arc::new(Halt::begin(found, admin.clone(), clock, data_dir).await);
        failover::hold_at_changes(pin, &halt);
        let assets = reads.load_catalog().await.context("read the assets")?;
        let options =
            quota::Options::new(self.config, &assets).context("load the configuration")?;
        let quotas = Quotas::new(options, Arc::clone(self.clock));
        reads.load_pauses().await.context("read the pauses")?;
        reads.load_special().await.context("read the special accounts")?;
        Ok(Settings { reads, admin, catalog, assets, database, quotas, halt })
    }

    /// Registers every asset in UBSCore.
    async fn register_assets(
        &self,
        engine: &Engine,
        settings: &Settings,
    ) -> anyhow::Result<Arc<Spot>> {
        let (catalog, options) = (Arc::clone(&settings.catalog), spot::Options::from(self.config));
        settings.halt.follow(engine.handle());
        let spot = Spot::new(engine.handle(), Arc::clone(self.clock), catalog, options);
        for asset in settings.assets.all() {
            match spot.register(asset).await {
                // Its amounts have another meaning in the log, so this row must not be used.
                Err(Unanswered::Violation(why)) => settings.reads.leave_out(asset, why),
                done => done.with_context(|| format!("register {}", asset.symbol))?,
            }
        }
        upkeep::alert_unreadable(&settings.reads);
        Ok(Arc::new(spot))
    }

    /// Compares both stores before anything moves, and brings the log up to PostgreSQL.
    async fn compare(
        &self,
        postgres: &Postgres,
        incarnation: &Incarnation,
        settings: &Settings,
        spot: &Arc<Spot>,
        known: Known,
    ) -> anyhow::Result<Compared> {
        let (config, clock, halt) = (self.config, self.clock.as_ref(), &settings.halt);
        let Known { log_watermark, settled, externals, mut found } = known;
        let mut audit = self.begin_audit(postgres, incarnation, settings, spot).await?;
        match settled {
            Some(settled) => {
                let here =
                    |watermark| (watermark == incarnation.watermark).then(|| settled.clone());
                let below = audit.below_watermark(here).await;
                found.extend(below.context("compare the totals below the watermark")?);
            }
            // A difference that follows from this is found transfer by transfer.
            None => {
                let known = incarnation.watermark;
                warn!(log_watermark, known, "PostgreSQL's watermark is behind the log's");
            }
        }
        let compared = audit.externals(&externals).await.context("compare external operations")?;
        found.extend(compared.mismatches);
        let (clean, began_ns) = (Arc::new(CleanRounds::default()), clock.monotonic_ns());
        rounds::catch_up(&mut audit, &found, postgres.different.as_deref(), halt, clock)
            .await
            .context("compare the two stores")?;
        if !halt.is_halted() {
            clean.ended(began_ns);
        }
        record_externals(spot, clock, compared.unrecorded).await?;
        failover::remember(&postgres.pin, &config.data_dir);
        // PostgreSQL is raised first, so the log may be behind after a crash. If the log has no
        // room now, UBSCore remembers more than it must, which is safe.
        if !halt.is_halted()
            && let Err(error) = spot.raise_watermark(incarnation.watermark).await
        {
            warn!(%error, "the log's watermark stays behind PostgreSQL's for now");
        }
        Ok(Compared { audit, found, clean })
    }

    async fn begin_audit(
        &self,
        postgres: &Postgres,
        incarnation: &Incarnation,
        settings: &Settings,
        spot: &Arc<Spot>,
    ) -> anyhow::Result<Audit<Arc<Spot>>> {
        let timeout = Duration::from_millis(self.config.conservation.statement_timeout_ms);
        let (address, catalog) = (postgres.address.examining(), &settings.catalog);
        let reader = AuditReader::new(address, postgres.limits, timeout, Arc::clone(catalog));
        let (spot, catalog) = (Arc::clone(spot), Arc::clone(catalog));
        let log_dir = data_dir::log(&self.config.data_dir);
        let audit = Audit::begin(reader, spot, catalog, log_dir, incarnation.number);
        let audit = audit.await.context("begin the audit")?;
        Ok(audit.with_recharges(self.config.recharge.enabled))
    }

    /// Starts the workers.
    fn start_coordinator(
        &mut self,
        stores: &Both<'_>,
        settings: &Settings,
        clean: &Arc<CleanRounds>,
        (hub, events): (&Option<Arc<Hub>>, &Arc<EventIds>),
        watermark: u64,
    ) -> Arc<Coordinator<Spot, Funding<FlightStore<Database>>>> {
        let (config, catalog) = (self.config, &settings.catalog);
        let shards = u32::try_from(config.coordinator.shards).expect("at most 64");
        let Both { postgres, incarnation, engine, spot, journal } = *stores;
        let told = || -> Arc<dyn Told> {
            match hub {
                Some(hub) => Arc::clone(hub) as Arc<dyn Told>,
                None => Arc::new(()),
            }
        };
        let store = |shard| {
            let writer = Writer { incarnation: incarnation.number, shard };
            let (address, limits) = (postgres.address.clone(), postgres.limits);
            let journal = Database::new(address, limits, writer, Arc::clone(catalog));
            let users_max = config.coordinator.users_max / config.coordinator.shards;
            let (catalog, clock, events) =
                (Arc::clone(catalog), Arc::clone(self.clock), Arc::clone(events));
            FlightStore::new(journal, catalog, clock, events, told(), users_max)
        };
        let (durable, capacity, vacancy) = (engine.handle(), engine.handle(), engine.handle());
        let journal = Arc::clone(journal);
        let parts = Parts {
            spot: Arc::clone(spot),
            funding: Arc::new(Funding::new(store(shards), Arc::clone(catalog))),
            clock: Arc::clone(self.clock),
            options: coordinator::Options::from(config),
            incarnation: incarnation.number,
            watermark,
            open: incarnation.open.clone(),
            durable: Arc::new(move || durable.durable()),
            capacity: Arc::new(move || capacity.capacity().min(journal.capacity())),
            vacancy: Arc::new(move || vacancy.vacancy()),
            gate: settings.halt.gate(),
            halt: halting(&settings.halt).into(),
            clean: config.conservation.before_withdrawal.then(|| Arc::clone(clean)),
        };
        let entropy = || -> Box<dyn Entropy> { Box::new(SystemEntropy::default()) };
        let stores = (0..shards).map(store).collect();
        Arc::new(Coordinator::start(parts, stores, entropy, self.tasks))
    }

    /// Starts the rounds of the audit, and the watch over PostgreSQL's server.
    fn watch_stores(
        &mut self,
        compared: Compared,
        stores: &Both<'_>,
        settings: &Settings,
        stopping: watch::Receiver<()>,
    ) -> rounds::Check {
        let Postgres { address, limits, pin, .. } = stores.postgres;
        let (check, requests) = rounds::check();
        let watching = Watching {
            found: compared.found,
            options: rounds::Options::from(self.config),
            halt: Arc::clone(&settings.halt),
            pin: Arc::clone(pin),
            clean: compared.clean,
        };
        let clock = Arc::clone(self.clock);
        self.tasks.run("audit", rounds::run(compared.audit, watching, clock, requests));
        let (data_dir, clock) = (self.config.data_dir.clone(), Arc::clone(self.clock));
        let watch =
            failover::watch(address.clone(), *limits, Arc::clone(pin), data_dir, clock, stopping);
        self.tasks.run("watch over PostgreSQL", watch);
        check
    }

    /// Starts to delete old events, and to deliver new ones to the webhook if they are turned on.
    /// It runs before the first flight, so that the webhook misses none.
    async fn follow_events(
        &mut self,
        stores: &Both<'_>,
        settings: &Settings,
        stopping: watch::Receiver<()>,
    ) -> anyhow::Result<Option<Arc<Hub>>> {
        let (config, clock, incarnation) = (self.config, self.clock, stores.incarnation.number);
        let Postgres { address, limits, .. } = stores.postgres;
        let at = || (address.clone(), *limits);
        let journal = Arc::clone(stores.journal);
        let options = retention::Options::new(config, at(), incarnation, journal);
        self.tasks.run("retention", retention::run(options, Arc::clone(clock), stopping));
        // The cursor of the webhooks stays meanwhile: events are delivered once they are on again.
        if !config.events.enabled {
            return Ok(None);
        }
        let catalog = Arc::clone(&settings.catalog);
        let endpoint = config.webhooks.url.as_ref().map(|_| webhooks::ENDPOINT);
        let begin = deliveries::begin(address, limits, incarnation, endpoint);
        begin.await.context("begin to deliver events")?;
        let hub = Arc::new(Hub::new(Bounds::from(config)));
        for options in webhooks::Options::all(config, at(), incarnation, &catalog, posted) {
            let (hub, clock) = (Arc::clone(&hub), Arc::clone(clock));
            let webhooks = Webhooks::start(options, hub, clock, Box::new(SystemEntropy::default()));
            let webhooks = webhooks.context("start to deliver events")?;
            self.tasks.run("webhooks", webhooks.run());
        }
        Ok(Some(hub))
    }

    /// Starts to raise the watermark.
    fn keep_watermark(
        &mut self,
        coordinator: &Coordinator<Spot, Funding<FlightStore<Database>>>,
        stores: &Both<'_>,
        settings: &Settings,
    ) {
        let Postgres { address, limits, .. } = stores.postgres;
        let store = Watermark::new(address.clone(), *limits, stores.incarnation.number);
        let options = watermark::Options::from(self.config);
        coordinator.keep_watermark(store, options, settings.halt.gate(), self.tasks);
    }

    /// Waits until the workers have taken up the transfers of earlier processes.
    async fn recover(
        &mut self,
        coordinator: &Coordinator<Spot, Funding<FlightStore<Database>>>,
        settings: &Settings,
    ) -> anyhow::Result<()> {
        let ready = async {
            coordinator.recovered().await;
            match self.development {
                true => dev::give_money(coordinator, &settings.assets).await,
                false => Ok(()),
            }
        };
        tokio::select! {
            done = ready => done,
            failed = self.tasks.failed() => Err(failed.into()),
        }
    }

    /// Starts to make snapshots.
    fn start_checkpointer(
        &mut self,
        engine: &Engine,
        settings: &Settings,
        kept: Arc<AtomicU64>,
    ) -> anyhow::Result<Checkpointer> {
        let watch = checkpointer::Watch {
            needed_after: Box::new(move || kept.load(Ordering::Acquire)),
            mismatch: halting(&settings.halt),
            differences: differences(self.config, &settings.catalog),
        };
        let options = checkpointer::Options::new(self.config)?;
        let (checkpointer, ended) =
            Checkpointer::start(options, engine, Arc::clone(self.clock), watch)
                .context("start to make snapshots")?;
        self.tasks.run("checkpointer", ended);
        Ok(checkpointer)
    }

    /// The parts that the listeners work with.
    fn service(
        &self,
        front: Front,
        stores: &Both<'_>,
        settings: Settings,
        snapshots: checkpointer::Requests,
    ) -> Service {
        let (config, clock) = (self.config, self.clock);
        let Settings { reads, admin, database, quotas, halt, .. } = settings;
        let Front { coordinator, transactions, recharges, hub, check, verifier, stopping } = front;
        let Both { postgres, incarnation, engine, spot, .. } = stores;
        let transfers = Transfers {
            coordinator,
            reads: reads.clone(),
            admin,
            halt,
            quotas,
            frequency: Mutex::new(Frequency::new(config.alert.user_requests_per_minute_max)),
            clock: Arc::clone(clock),
            stopping,
            limits: TransferLimits::from(config),
        };
        let streams = Streams {
            hub,
            shards: config.coordinator.shards,
            heartbeat: Heartbeat::from(config),
            reads,
            clock: Arc::clone(clock),
            verifier: Arc::clone(&verifier),
        };
        let intake = Intake {
            verifier,
            clock: Arc::clone(clock),
            entropy: Mutex::new(Box::new(SystemEntropy::default())),
            limits: BodyLimits::from(config),
        };
        let timeout = Duration::from_millis(config.conservation.statement_timeout_ms);
        let address = postgres.address.clone();
        let funds = Funds::new(address, postgres.limits, timeout, incarnation.number);
        let totals = totals::Reader::new(Arc::clone(spot), Arc::clone(clock), funds, timeout);
        let engine = Mutex::new(engine.handle());
        let metrics = self.metrics;
        let keeps_postings = config.snapshot.keeps_postings();
        let operations =
            Operations { database, engine, snapshots, check, totals, metrics, keeps_postings };
        let (approvals, spot) = (Approvals::from(config), Arc::clone(spot));
        let transactions = TransactionDesk::new(config, transactions);
        Service { intake, transfers, streams, approvals, spot, transactions, recharges, operations }
    }
}

/// The replayed log's side of the comparison.
struct Known {
    log_watermark: u64,
    settled: Option<BTreeMap<(u64, u32), Totals>>,
    externals: Held,
    found: Vec<Mismatch>,
}

/// Both stores, as the later stages use them.
struct Both<'a> {
    postgres: &'a Postgres,
    incarnation: &'a Incarnation,
    engine: &'a Engine,
    spot: &'a Arc<Spot>,
    journal: &'a Arc<Journal>,
}

/// Everything in front of the stores.
struct Front {
    coordinator: Arc<Coordinator<Spot, Funding<FlightStore<Database>>>>,
    transactions: Transactions,
    recharges: Option<RechargeDesk>,
    hub: Option<Arc<Hub>>,
    check: rounds::Check,
    verifier: Arc<Verifier>,
    stopping: watch::Receiver<()>,
}

/// Halts the service from the checkpointer's thread, or from a worker.
fn halting(halt: &Arc<Halt>) -> Box<dyn Fn(String) + Send + Sync> {
    let (halt, runtime) = (Arc::clone(halt), tokio::runtime::Handle::current());
    Box::new(move |reason| {
        // It is called again and again while the cause lasts. Of a cut alone it is another cause.
        if halt.needs_resume() && !halt.resends() {
            return;
        }
        let halt = Arc::clone(&halt);
        runtime.spawn(async move { halt.halt("keeper", &reason).await });
    })
}

/// Names the balances and holds of snapshots that differ from the legs of the log.
fn differences(
    config: &Config,
    catalog: &Arc<ArcSwap<Catalog>>,
) -> Box<dyn Fn() -> Vec<String> + Send> {
    let (log, snapshots) = (data_dir::log(&config.data_dir), data_dir::snapshots(&config.data_dir));
    let catalog = Arc::clone(catalog);
    Box::new(move || match legs::judge(&log, &snapshots, None) {
        Ok(found) => {
            let catalog = catalog.load();
            found.iter().map(|found| legs::mismatch(found, &catalog).to_string()).collect()
        }
        // The finding that led here is reported all the same.
        Err(error) => vec![chain(&error)],
    })
}

/// Writes the missing records of external operations into the log. The watermark is raised later:
/// below it nothing is recorded any more.
///
/// # Errors
/// UBSCore has no room for a record. Without its record the operation could be lost unseen.
async fn record_externals(
    spot: &Spot,
    clock: &dyn Clock,
    mut left: Vec<ExternalOperation>,
) -> anyhow::Result<()> {
    let began = clock.monotonic_ns();
    while !left.is_empty() {
        info!(operations = left.len(), "recording external operations");
        let answers = spot.record(left.clone()).await;
        assert_eq!(answers.len(), left.len(), "every operation has an answer");
        let answers = left.into_iter().zip(answers);
        let open: Vec<_> =
            answers.filter(|(_, answer)| answer.outcome.decision().is_none()).collect();
        let waited = Duration::from_nanos(clock.monotonic_ns() - began);
        if let Some((operation, answer)) = open.first()
            && waited >= RECORDS_WAIT
        {
            bail!(
                "external operation {} cannot be recorded in the log ({}); next: make room on the log's disk, or raise \
                 engine.outcomes_max, and restart",
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
