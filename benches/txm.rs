//! How fast is the transaction manager: how many creates are durable with their nonce a second, how
//! many are sent and acknowledged, what does one cost in commits and calls of the chain, and how
//! soon does a successor send, and a reorganization show?
//!
//! Base cases, in the same run and in turns: (c) `pgbench` with 8 clients, one INSERT and COMMIT
//! each, on the same PostgreSQL, without HTTP; (d) `eth_sendRawTransaction` of ready bytes over one
//! connection to the same chain.
//!
//! The nodes are processes of the release binary, `txm serve --dev`. The chain is a real node
//! (`make need-anvil`) that mines when it is asked to. Load, nodes, chain and PostgreSQL share the
//! machine. Each part has a database and a chain of its own.
//!
//! `cargo bench --bench txm -- N`: N creates in each measurement of T1; the other parts take their
//! size from it. `UBSCORE_BENCH_PARTS=T1,T6`: only these parts.

mod accepts;
mod anvil;
mod base;
mod database;
mod endpoint;
mod environment;
mod idle;
mod latency;
mod party;
mod succession;
mod tracked;

use std::env;
use std::path::Path;

use anyhow::Context;
use ubscore::postgres::embedded::Embedded;

use crate::database::{connect_postgres, settings, start_postgres};
use crate::environment::{Environment, scratch};

/// Creates of each measurement of T1.
const CREATES: u64 = 20_000;

/// The parts of a run share these.
struct Bench<'a> {
    directory: &'a Path,
    embedded: &'a Embedded,
    environment: Environment,
    count: u64,
}

fn main() -> anyhow::Result<()> {
    let count = environment::count(CREATES)?;
    let scratch = scratch()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let postgres = start_postgres(scratch.path()).await?;
        let done = run(scratch.path(), &postgres, count).await;
        postgres.stop().await.context("stop PostgreSQL")?;
        done
    })
}

async fn run(directory: &Path, embedded: &Embedded, count: u64) -> anyhow::Result<()> {
    let postgres = connect_postgres(&embedded.config()).await?;
    let environment = Environment::probe(directory, Some(&settings(&postgres).await?))?;
    drop(postgres);
    let bench = Bench { directory, embedded, environment, count };
    let chosen = env::var("UBSCORE_BENCH_PARTS").unwrap_or_default();
    let wants = |part: &str| chosen.is_empty() || chosen.split(',').any(|name| name == part);
    if wants("T1") {
        accepts::accepted(&bench).await.context("T1")?;
    }
    if wants("T2") {
        accepts::acknowledged(&bench).await.context("T2")?;
    }
    if wants("T3") {
        latency::signers(&bench).await.context("T3, signers")?;
        latency::nodes(&bench).await.context("T3, nodes")?;
    }
    if wants("T4") {
        tracked::followed(&bench, 1).await.context("T4, one signer")?;
        tracked::followed(&bench, 64).await.context("T4, 64 signers")?;
    }
    if wants("T6") {
        succession::successors(&bench).await.context("T6")?;
    }
    if wants("T7") {
        tracked::reorganized(&bench).await.context("T7")?;
    }
    if wants("T8") {
        idle::idle(&bench).await.context("T8")?;
    }
    Ok(())
}
