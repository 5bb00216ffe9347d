//! T1 and T2: creates a second that are durable with their nonce, and that the chain has
//! acknowledged.

use std::fs;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, ensure};
use procfs::process::Process;

use crate::Bench;
use crate::base::{figure, pgbench, scripts};
use crate::database::connect_postgres;
use crate::environment::{per_second, ratio};
use crate::party::{Place, crowd, pay_together};

const ROUNDS: u32 = 3;
/// Clients, each with a connection of its own and one create under way.
const CLIENTS: usize = 1_000;
/// Clients of base case (c), and its length in seconds.
const BASE_CLIENTS: &str = "8";
const BASE_SECONDS: &str = "3";
/// Attempts that a pool has acknowledged, as the rows have it.
const ACKNOWLEDGED: &str = "SELECT count(*) FROM txm.tx_attempts WHERE was_in_pool";
const OVER: &str = "SELECT count(*) FROM txm.managed_tx WHERE state = 40";

/// Runs base case (c); returns its rate.
fn inserts(url: &str) -> anyhow::Result<u64> {
    let output = Command::new(pgbench()?)
        .args(["-n", "-M", "prepared", "-j", "1", "-c", BASE_CLIENTS, "-T", BASE_SECONDS, "-f"])
        .arg(scripts().join("chain_insert.sql"))
        .arg(url)
        .output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    figure(&String::from_utf8_lossy(&output.stdout), "tps =").context("pgbench printed no rate")
}

/// T1.
pub(crate) async fn accepted(bench: &Bench<'_>) -> anyhow::Result<()> {
    let schema = fs::read_to_string(scripts().join("chain_schema.sql"))?;
    connect_postgres(&bench.embedded.config()).await?.batch_execute(&schema).await?;
    let url = bench.embedded.url();
    let place = Place::new(bench.directory, bench.embedded, "accepted", 1).await?;
    let node = place.node("txm-a", &place.chain.url(), &[]).await?;
    place.add_signers(&node).await?;
    let process = Process::new(node.pid())?;
    let tick_us = 1_000_000 / procfs::ticks_per_second();
    println!("T1: creates of one signer, durable with their nonce; {CLIENTS} clients");
    println!(
        "{:>6}{:>10}{:>10}   commits, CPU us of the node, a create",
        "round", "(c)/s", "own/s"
    );
    let mut ratios = Vec::new();
    for round in 1..=ROUNDS {
        let base = inserts(&url)?;
        let mut payers = crowd(&node, place.signers[0], CLIENTS, &format!("round-{round}")).await?;
        // The signer has its owner, and every connection its first request.
        pay_together(&mut payers, u64::try_from(CLIENTS)?).await?;
        let (before, used) = (place.commits().await?, process.stat()?);
        // Idle connections are closed behind some seconds.
        let mut payers = crowd(&node, place.signers[0], CLIENTS, &format!("again-{round}")).await?;
        let began = Instant::now();
        pay_together(&mut payers, bench.count).await?;
        let rate = per_second(bench.count, began.elapsed());
        let now = process.stat()?;
        let commits = u64::try_from(place.commits().await? - before)?;
        let cpu_us = (now.utime + now.stime - used.utime - used.stime) * tick_us / bench.count;
        println!(
            "{round:>6}{base:>10}{rate:>10}   {}, {cpu_us}",
            ratio(commits * 1_000 / bench.count, 1_000)
        );
        ratios.push(rate * 100 / base.max(1));
    }
    let made = i64::try_from(u64::from(ROUNDS) * (bench.count + u64::try_from(CLIENTS)?))?;
    let whole = "SELECT CASE WHEN count(*) = max(nonce) + 1 THEN count(nonce) END \
                 FROM txm.managed_tx";
    let rows = place.number(whole).await.context("nonces without a hole")?;
    ensure!(rows == made, "{rows} rows, and {made} answers");
    let lowest = ratios.into_iter().min().unwrap_or(0);
    println!("T1: {} x (c) in the lowest round", ratio(lowest, 100));
    bench.environment.judge("T1: 0.7 x (c)", lowest >= 70);
    bench.environment.judge("T1, stretch: 2 x (c)", lowest >= 200);
    println!();
    Ok(())
}

/// T2.
pub(crate) async fn acknowledged(bench: &Bench<'_>) -> anyhow::Result<()> {
    let count = (bench.count / 10).clamp(100, 4_000);
    let place = Place::new(bench.directory, bench.embedded, "acknowledged", 1).await?;
    let settings = [("SUBMIT__IN_FLIGHT_MAX", "0"), ("CONFIRMATIONS__REQUIRED", "1")];
    let node = place.node("txm-a", &place.chain.url(), &settings).await?;
    place.add_signers(&node).await?;
    let other = place.chain.accounts[1].0;
    let mut rpc = place.chain.connect().await?;
    println!("T2: {count} creates of one signer until the chain has acknowledged each, window off");
    println!("{:>6}{:>10}{:>10}{:>10}", "round", "(d)/s", "own/s", "accepted/s");
    let (mut ratios, mut made, mut nonce) = (Vec::new(), 0, 0);
    for round in 1..=ROUNDS {
        let sends = rpc.sends(other, nonce, count).await?;
        nonce += count;
        let began = Instant::now();
        rpc.send_all(sends).await?;
        let base = per_second(count, began.elapsed());
        rpc.mine(3).await?;

        let clients = CLIENTS.min(usize::try_from(count)?);
        let mut payers = crowd(&node, place.signers[0], clients, &format!("round-{round}")).await?;
        if round == 1 {
            // The signer has its owner.
            payers[0].pay().await?;
            made += 1;
            place.until(ACKNOWLEDGED, made).await?;
        }
        let began = Instant::now();
        pay_together(&mut payers, count).await?;
        let accepted = per_second(count, began.elapsed());
        made += i64::try_from(count)?;
        let all = place.until(ACKNOWLEDGED, made).await?;
        let rate = per_second(count, all - began);
        println!("{round:>6}{base:>10}{rate:>10}{accepted:>10}");
        ratios.push(rate * 100 / base.max(1));
        // What is left to be written must not meet the next base case.
        rpc.mine(4).await?;
        place.until(OVER, made).await?;
    }
    let lowest = ratios.into_iter().min().unwrap_or(0);
    println!("T2: {} x (d) in the lowest round", ratio(lowest, 100));
    bench.environment.judge("T2: 0.4 x (d)", lowest >= 40);
    bench.environment.judge("T2, stretch: 0.8 x (d)", lowest >= 80);
    println!();
    Ok(())
}
