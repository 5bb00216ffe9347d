//! Makes both stores from the configuration: the embedded server, PostgreSQL's address and limits,
//! the log's options, and the pair of stores that audits read.
//!
//! `serve` and every command that reads or repairs both stores begin here.

pub mod writer;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use arc_swap::ArcSwap;
use domain::asset::Catalog;
use engine::places::{Places, VenuePlaces};
use tracing::{info, warn};

use crate::alert::{Alert, alert};
use crate::audit::verify::Stores;
use crate::clock::system_ns;
use crate::config::Config;
use crate::config::engine::{Engine, Wait};
use crate::config::secret::Secret;
use crate::data_dir;
use crate::last_words;
use crate::postgres::audit_reader::AuditReader;
use crate::postgres::embedded::{self, Embedded};
use crate::postgres::flights::{self, Flights};
use crate::postgres::incarnation;
use crate::postgres::reads::Reads;
use crate::postgres::reads::assets::Unreadable;
use crate::postgres::{self, Address};

/// Where both stores are, and the limits of a command that uses them.
pub struct Target {
    /// PostgreSQL.
    pub address: Address,
    /// How long PostgreSQL may take.
    pub limits: postgres::Limits,
    /// For a command that opens the log.
    pub engine: engine::Options,
    /// The whole configuration.
    pub config: Config,
}

impl Target {
    /// The stores of a configuration. `server`: the embedded PostgreSQL, if the configuration asks
    /// for it.
    ///
    /// # Errors
    /// PostgreSQL's address is missing or wrong.
    pub fn new(config: Config, server: Option<&Embedded>) -> anyhow::Result<Target> {
        let address = postgres_address(&config, server)?;
        let limits = postgres_limits(&config);
        let engine = engine_options(&config);
        Ok(Target { address, limits, engine, config })
    }

    /// The limits without timeouts, for a statement that reads or writes everything.
    pub fn patient(&self) -> postgres::Limits {
        let (statement_timeout, lock_timeout) = (Duration::ZERO, Duration::ZERO);
        let idle_in_transaction_timeout = Duration::ZERO;
        postgres::Limits {
            statement_timeout,
            lock_timeout,
            idle_in_transaction_timeout,
            ..self.limits
        }
    }

    /// Why the file of answered flights must be written anew; empty if PostgreSQL has all of them.
    ///
    /// # Errors
    /// PostgreSQL is away, or the file cannot be read.
    pub async fn lost_flights(&self) -> anyhow::Result<Vec<String>> {
        let answered = match flights::read(&self.config.data_dir) {
            Ok(answered) => answered,
            Err(error @ (flights::Error::Missing(_) | flights::Error::Damaged { .. })) => {
                return Ok(vec![error.to_string()]);
            }
            Err(error) => return Err(error).context("read the answered flights"),
        };
        let compared = incarnation::flights(&self.address, &self.limits, &answered.rows).await;
        Ok(compared.context("look for the answered flights")?.1)
    }

    /// See [`flights::Answered::latest`]; 0 without a readable file.
    pub fn answered_incarnation(&self) -> u64 {
        flights::read(&self.config.data_dir).unwrap_or_default().latest
    }

    /// Writes the file of answered flights anew: PostgreSQL's last ones. No service may run.
    ///
    /// # Errors
    /// PostgreSQL is away, or the file cannot be written.
    pub async fn write_flights(&self) -> anyhow::Result<()> {
        let last = incarnation::flights(&self.address, &self.limits, &[]).await;
        let (last, _) = last.context("read the last flights")?;
        let latest = last.iter().map(|row| row.incarnation).max().unwrap_or(0);
        let latest = latest.max(self.answered_incarnation());
        let written = Flights::create(&self.config.data_dir, latest, &last);
        written.context("write the answered flights").map(drop)
    }

    /// Both stores, as audits read them.
    ///
    /// # Errors
    /// The assets cannot be read.
    pub async fn stores(&self) -> anyhow::Result<Stores> {
        let Target { address, limits, config, .. } = self;
        let catalog = Arc::new(ArcSwap::from_pointee(Catalog::default()));
        let pool = postgres::pool(address, limits, 1);
        let reads = Reads::new(pool, Arc::clone(&catalog));
        reads.load_catalog().await.context("read the assets")?;
        for Unreadable { asset, what } in reads.unreadable() {
            warn!(asset, what, "ignoring an asset with an invalid row");
        }
        // The reads cover whole tables, so they have no timeout.
        let reader =
            AuditReader::new(address.clone(), *limits, Duration::ZERO, Arc::clone(&catalog));
        let log = data_dir::log(&config.data_dir);
        let snapshots = data_dir::snapshots(&config.data_dir);
        let places = places(config);
        Ok(Stores { reader, catalog, log, snapshots, places })
    }
}

/// Runs `work` on both stores. An embedded PostgreSQL is started before and stopped afterwards.
///
/// # Errors
/// There is no log, a restore is not finished, PostgreSQL cannot be reached, or `work` fails.
pub async fn with_stores<T>(
    config: Config,
    work: impl AsyncFnOnce(Stores, &Target) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    let data_dir = config.data_dir.clone();
    ensure!(data_dir::log(&data_dir).is_dir(), "there is no log in {}", data_dir.display());
    data_dir::refuse_unfinished_restore(&data_dir)?;
    let server = start_embedded(&config).await?;
    let done = async {
        let target = Target::new(config, server.as_ref())?;
        work(target.stores().await?, &target).await
    }
    .await;
    release_embedded(server, &data_dir).await;
    done
}

/// The address of the embedded server, else the configured one.
///
/// # Errors
/// It is missing or cannot be parsed.
pub fn postgres_address(config: &Config, server: Option<&Embedded>) -> anyhow::Result<Address> {
    match (server, &config.postgres.url) {
        (Some(server), _) => Ok(server.config().into()),
        (None, Some(url)) => Address::parse(url.expose()).context("postgres.url"),
        (None, None) => bail!("postgres.url is missing, and no embedded server was started"),
    }
}

/// The same as a URL, for a process beside this one. Empty: there is none.
pub fn postgres_url(config: &Config, server: Option<&Embedded>) -> Secret {
    let embedded = server.map(|server| Secret::new(server.url()));
    embedded.or_else(|| config.postgres.url.clone()).unwrap_or_else(|| Secret::new(""))
}

/// The configured timeouts of PostgreSQL.
pub fn postgres_limits(config: &Config) -> postgres::Limits {
    let ms = Duration::from_millis;
    postgres::Limits {
        connect_timeout: ms(config.postgres.connect_timeout_ms),
        statement_timeout: ms(config.postgres.statement_timeout_ms),
        lock_timeout: ms(config.postgres.lock_timeout_ms),
        idle_in_transaction_timeout: ms(config.postgres.idle_in_transaction_timeout_ms),
    }
}

/// The configured options of UBSCore and its log.
pub fn engine_options(config: &Config) -> engine::Options {
    let (slots, in_flight) = (config.engine.ring_slots, config.engine.in_flight_max);
    assert!(slots.is_power_of_two() && in_flight <= slots / 2, "checked by the configuration");
    engine::Options {
        log_dir: data_dir::log(&config.data_dir),
        snapshot_dir: data_dir::snapshots(&config.data_dir),
        segment_bytes: config.wal.segment_bytes,
        spares_ready: config.wal.spares_ready,
        busy: config.engine.wait == Wait::Busy,
        cpu: config.engine.core.and_then(|cpu| usize::try_from(cpu).ok()),
        ring_slots: config.engine.ring_slots,
        in_flight_max: config.engine.in_flight_max,
        places: places(config),
        ends_kept: config.transactions_active_max(),
        idle_mark: Duration::from_millis(config.engine.idle_mark_ms),
        now: system_ns,
        notify: last_words::notice,
    }
}

/// The configured sizes of UBSCore's tables.
pub fn places(config: &Config) -> Places {
    let Engine { accounts_max, outcomes_max, holds_max, venues_max, window, .. } = config.engine;
    let venues = VenuePlaces { holds_max, venues_max, window };
    // Without a venue its tables take no memory.
    let venues = if venues_max == 0 { VenuePlaces::NONE } else { venues };
    Places { accounts_max, outcomes_max, venues }
}

/// Starts the embedded PostgreSQL, or adopts a running one; `None` if the configuration has an
/// address.
///
/// # Errors
/// It does not start.
pub async fn start_embedded(config: &Config) -> anyhow::Result<Option<Embedded>> {
    if config.postgres.url.is_some() {
        return Ok(None);
    }
    let server = Embedded::start(&embedded_options(config))
        .await
        .context("start the embedded PostgreSQL")?;
    info!(pid = server.pid(), adopted = server.is_adopted(), "embedded PostgreSQL runs");
    Ok(Some(server))
}

/// Starts the embedded PostgreSQL again each time it ends. Returns when a start fails; without an
/// embedded server it never returns.
pub async fn keep_embedded(config: &Config, server: &mut Option<Embedded>) -> embedded::Error {
    let Some(running) = server else { return std::future::pending().await };
    loop {
        let how = running.died().await;
        let pid = running.pid();
        warn!(pid, %how, "the embedded PostgreSQL has ended; starting it again");
        alert(Alert::PostgresUnreachable, format_args!("the embedded PostgreSQL has ended"));
        match Embedded::start(&embedded_options(config)).await {
            Ok(again) => {
                info!(pid = again.pid(), "the embedded PostgreSQL runs again");
                *running = again;
            }
            Err(error) => return error,
        }
    }
}

fn embedded_options(config: &Config) -> embedded::Options {
    embedded::Options {
        postgres_bin: config.postgres.bin.clone(),
        ..embedded::Options::new(&config.data_dir)
    }
}

/// Stops the embedded PostgreSQL. If it does not stop, the next start adopts it.
pub async fn stop_embedded(server: Option<Embedded>) {
    let Some(server) = server else { return };
    if let Err(error) = server.stop().await {
        warn!(%error, "the embedded PostgreSQL still runs; the next start adopts it");
    }
}

/// Stops the embedded PostgreSQL if this process started it and no service has adopted it since.
pub async fn release_embedded(server: Option<Embedded>, data_dir: &Path) {
    let Some(server) = server.filter(|server| !server.is_adopted()) else { return };
    // A service that holds the lock has adopted the server. The lock keeps a service from starting
    // while the server stops.
    let lock = data_dir::lock(data_dir);
    if !matches!(lock, Err(wal::Error::Locked { .. })) {
        stop_embedded(Some(server)).await;
    }
    drop(lock);
}
