//! `ubscore verify`: the log, its newest snapshot and PostgreSQL joined, with or without a running service. Changes
//! nothing.

use std::io::Write;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use arc_swap::ArcSwap;

use super::{serve, snapshot, wal};
use crate::asset::Catalog;
use crate::audit::verify::{Stores, Verdict, verify};
use crate::cli::StoreArgs;
use crate::config::Config;
use crate::engine;
use crate::postgres;
use crate::postgres::books::Books;
use crate::postgres::reads::Reads;

/// Something does not add up.
pub(super) const EXIT_MISMATCH: u8 = 1;
/// Nothing is known.
pub(super) const EXIT_CANNOT_RUN: u8 = 2;

/// Compares, and prints what does not add up, one a line.
pub fn run(args: &StoreArgs, out: &mut impl Write) -> ExitCode {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let verdict = runtime.context("start").and_then(|runtime| runtime.block_on(compare(args)));
    let verdict = match verdict {
        Ok(verdict) => verdict,
        Err(error) => {
            writeln!(std::io::stderr(), "error: {error:#}").ok();
            return ExitCode::from(EXIT_CANNOT_RUN);
        }
    };
    let Verdict { sequence, outcomes, open, mut mismatches, behind, .. } = verdict;
    mismatches.extend(behind);
    for mismatch in &mismatches {
        // Nobody reading it is no reason to say that all is well.
        writeln!(out, "{mismatch}").ok();
    }
    let word = if mismatches.is_empty() { "ok" } else { "mismatch" };
    let found = mismatches.len();
    writeln!(out, "{word} mismatches={found} log={sequence} outcomes={outcomes} open={open}").ok();
    if mismatches.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(EXIT_MISMATCH) }
}

async fn compare(args: &StoreArgs) -> anyhow::Result<Verdict> {
    let work =
        async |stores: Stores, _: &Target| verify(stores).await.context("compare the two stores");
    with_stores(args, work).await
}

/// Where PostgreSQL is, and how long it may take.
pub(super) struct Target {
    pub(super) config: tokio_postgres::Config,
    pub(super) limits: postgres::Limits,
    /// What a process that opens the log goes by.
    pub(super) engine: engine::Options,
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
    let server = serve::start_embedded(&config).await?;
    let done = async {
        let target = Target {
            config: serve::postgres_target(&config, server.as_ref())?,
            limits: serve::postgres_limits(&config),
            engine: serve::engine_options(&config),
        };
        let catalog = Arc::new(ArcSwap::from_pointee(Catalog::default()));
        let pool = postgres::pool(&target.config, &target.limits, 1);
        Reads::new(pool, Arc::clone(&catalog), 0)
            .load_catalog()
            .await
            .context("read the assets")?;
        // Everything is read at once, however long it takes.
        let books =
            Books::new(target.config.clone(), target.limits, Duration::ZERO, Arc::clone(&catalog));
        let snapshots = config.data_dir.join(snapshot::SNAPSHOT_DIRECTORY);
        let places = serve::places(&config);
        let stores = Stores { books, catalog, log, snapshots, places };
        work(stores, &target).await
    }
    .await;
    // One that ran before belongs to somebody else.
    if server.as_ref().is_some_and(|server| !server.is_adopted()) {
        serve::stop_embedded(server).await;
    }
    done
}
