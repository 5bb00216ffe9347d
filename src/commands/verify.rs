//! `ubscore verify`: the log, its newest snapshot and PostgreSQL joined, with or without a running service. Changes
//! nothing.

use std::io::Write;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use ::wal::{Directory, Medium};
use anyhow::Context;
use arc_swap::ArcSwap;
use serde::Serialize;
use tracing::warn;

use super::wal::json;
use super::{complain, restore, serve, snapshot, wal};
use crate::audit::verify::{Stores, Verdict, verify};
use crate::cli::{StoreArgs, VerifyArgs};
use crate::config::Config;
use crate::config::format::Format;
use crate::postgres;
use crate::postgres::audit_reader::AuditReader;
use crate::postgres::embedded::Embedded;
use crate::postgres::reads::Reads;
use crate::postgres::reads::assets::Unreadable;
use domain::account::UserId;
use domain::asset::Catalog;

/// Something does not add up.
pub(super) const EXIT_MISMATCH: u8 = 1;
/// Nothing is known.
pub(super) const EXIT_CANNOT_RUN: u8 = 2;

/// Compares, and prints what does not add up, one a line.
pub fn run(args: &VerifyArgs, out: &mut impl Write) -> ExitCode {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let verdict = runtime.context("start").and_then(|runtime| {
        let work = async |_: Stores, target: &Target| compare(target).await;
        runtime.block_on(with_stores(&args.stores, work))
    });
    match verdict {
        Ok((verdict, catalog)) => tell(verdict, &catalog, args.format, out),
        Err(error) => {
            complain(&error, args.format, None);
            ExitCode::from(EXIT_CANNOT_RUN)
        }
    }
}

/// One line of JSON.
#[derive(Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
enum Object<'a> {
    Mismatch {
        user_id: Option<u64>,
        asset: Option<&'a str>,
        difference: &'a str,
        req_id: Option<String>,
        what: &'a str,
    },
    End {
        verdict: &'static str,
        mismatches: usize,
        log: u64,
        outcomes: usize,
        open: usize,
    },
}

/// Prints what was found, and returns what it means.
pub(super) fn tell(
    verdict: Verdict,
    catalog: &Catalog,
    format: Format,
    out: &mut impl Write,
) -> ExitCode {
    let Verdict { sequence, outcomes, open, mut mismatches, behind, .. } = verdict;
    mismatches.extend(behind);
    for mismatch in &mismatches {
        let line = match format {
            Format::Text => catalog.name_assets(&mismatch.to_string()),
            Format::Json => json(&Object::Mismatch {
                user_id: mismatch.user.map(UserId::number),
                asset: mismatch.asset.and_then(|id| Some(&*catalog.by_id(id)?.symbol)),
                difference: &mismatch.difference,
                req_id: mismatch.req_id.map(|req_id| req_id.to_string()),
                what: &mismatch.what,
            }),
        };
        // If nobody reads it, the exit code still tells that something is wrong.
        writeln!(out, "{line}").ok();
    }
    let verdict = if mismatches.is_empty() { "ok" } else { "mismatch" };
    let found = mismatches.len();
    let line = match format {
        Format::Text => {
            format!("{verdict} mismatches={found} log={sequence} outcomes={outcomes} open={open}")
        }
        Format::Json => {
            json(&Object::End { verdict, mismatches: found, log: sequence, outcomes, open })
        }
    };
    writeln!(out, "{line}").ok();
    if mismatches.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(EXIT_MISMATCH) }
}

/// What was found, and the assets to name it.
pub(super) type Compared = (Verdict, Arc<Catalog>);

/// Compares both stores.
pub(super) async fn compare(target: &Target) -> anyhow::Result<Compared> {
    let stores = target.stores().await?;
    let catalog = Arc::clone(&stores.catalog);
    let verdict = verify(stores).await.context("compare the two stores")?;
    Ok((verdict, catalog.load_full()))
}

/// Where PostgreSQL is, and how long it may take.
pub(super) struct Target {
    pub(super) config: postgres::Address,
    pub(super) limits: postgres::Limits,
    /// What a process that opens the log goes by.
    pub(super) engine: engine::Options,
    /// Everything else that is configured.
    pub(super) configured: Config,
}

impl Target {
    /// Where the configuration leads. `server`: the embedded one, if that is where.
    pub(super) fn new(configured: Config, server: Option<&Embedded>) -> anyhow::Result<Target> {
        let config = serve::postgres_target(&configured, server)?;
        let limits = serve::postgres_limits(&configured);
        let engine = serve::engine_options(&configured);
        Ok(Target { config, limits, engine, configured })
    }

    /// The limits of who may take as long as it takes.
    pub(super) fn patient(&self) -> postgres::Limits {
        let (statement_timeout, lock_timeout) = (Duration::ZERO, Duration::ZERO);
        let idle_in_transaction_timeout = Duration::ZERO;
        postgres::Limits {
            statement_timeout,
            lock_timeout,
            idle_in_transaction_timeout,
            ..self.limits
        }
    }

    /// Both stores, to be compared.
    pub(super) async fn stores(&self) -> anyhow::Result<Stores> {
        let Target { config, limits, configured, .. } = self;
        let catalog = Arc::new(ArcSwap::from_pointee(Catalog::default()));
        let pool = postgres::pool(config, limits, 1);
        let reads = Reads::new(pool, Arc::clone(&catalog), 0);
        reads.load_catalog().await.context("read the assets")?;
        for Unreadable { asset, what } in reads.unreadable() {
            warn!(asset, what, "an asset cannot be read in whole");
        }
        // Everything is read at once, however long it takes.
        let reader =
            AuditReader::new(config.clone(), *limits, Duration::ZERO, Arc::clone(&catalog));
        let log = configured.data_dir.join(wal::LOG_DIRECTORY);
        let snapshots = configured.data_dir.join(snapshot::SNAPSHOT_DIRECTORY);
        let places = serve::places(configured);
        Ok(Stores { reader, catalog, log, snapshots, places })
    }
}

/// Does something with both stores; an embedded PostgreSQL runs meanwhile.
pub(super) async fn with_stores<T>(
    args: &StoreArgs,
    work: impl AsyncFnOnce(Stores, &Target) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    let config = Config::load(args.config.as_deref(), args.overrides(), args.dev)
        .context("load the configuration")?;
    let log = config.data_dir.join(wal::LOG_DIRECTORY);
    anyhow::ensure!(log.is_dir(), "there is no log in {}", config.data_dir.display());
    restore::refuse_unfinished(&config.data_dir)?;
    let server = serve::start_embedded(&config).await?;
    let done = async {
        let target = Target::new(config, server.as_ref())?;
        work(target.stores().await?, &target).await
    }
    .await;
    end(server, &log).await;
    done
}

/// Stops the embedded PostgreSQL, if it was started for this command, and for nobody since.
pub(super) async fn end(server: Option<Embedded>, log: &Path) {
    let Some(server) = server.filter(|server| !server.is_adopted()) else { return };
    // A service that has begun meanwhile has adopted it; and none is to begin while it stops.
    let lock = Directory::at(log).lock();
    if !matches!(lock, Err(::wal::Error::Locked { .. })) {
        serve::stop_embedded(Some(server)).await;
    }
    drop(lock);
}
