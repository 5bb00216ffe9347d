//! T4, T5 and T7: transactions that are followed to their end, and a reorganization under them.

use std::time::{Duration, Instant};

use alloy_primitives::hex;
use anyhow::{Context, ensure};
use tokio::time::sleep;

use crate::Bench;
use crate::anvil::Rpc;
use crate::endpoint::Endpoint;
use crate::environment::ratio;
use crate::party::{Place, crowd, pay_together};

/// Transactions under way, in a whole run.
const TRACKED: u64 = 1_000;
/// Between two blocks.
const BLOCK: Duration = Duration::from_secs(1);
/// Clients that make them.
const CLIENTS: usize = 64;
const DEPTH: u64 = 5;
const ROUNDS: usize = 3;
const OVER: &str = "SELECT count(*) FROM txm.managed_tx WHERE state = 40";
const SENT: &str = "SELECT count(*) FROM txm.tx_attempts WHERE was_in_pool";
const MINED: &str = "SELECT count(*) FROM txm.managed_tx WHERE receipt_hash IS NOT NULL";

fn tracked(bench: &Bench) -> u64 {
    (bench.count / 20).clamp(64, TRACKED)
}

/// Mines a block each second until so many transactions are CONFIRMED.
async fn mine_until_over(place: &Place, rpc: &mut Rpc, count: i64) -> anyhow::Result<()> {
    let began = Instant::now();
    while place.number(OVER).await? < count {
        ensure!(began.elapsed() < 120 * BLOCK, "not over");
        rpc.mine(1).await?;
        sleep(BLOCK).await;
    }
    Ok(())
}

/// T4 and T5, with this many signers.
pub(crate) async fn followed(bench: &Bench<'_>, signers: usize) -> anyhow::Result<()> {
    let each = tracked(bench) / u64::try_from(signers)?;
    let count = each * u64::try_from(signers)?;
    let name = format!("followed_{signers}");
    let place = Place::new(bench.directory, bench.embedded, &name, signers).await?;
    let endpoint = Endpoint::start(place.chain.host(), Duration::ZERO).await?;
    let node = place.node("txm-a", endpoint.url(), &[("SUBMIT__IN_FLIGHT_MAX", "0")]).await?;
    place.add_signers(&node).await?;
    let mut rpc = place.chain.connect().await?;
    rpc.mine(1).await?;
    let (before, began) = (place.writes().await?, Instant::now());
    endpoint.clear();
    for (number, signer) in place.signers.iter().enumerate() {
        let clients = CLIENTS.min(usize::try_from(each)?);
        let mut payers = crowd(&node, *signer, clients, &format!("pay-{number}")).await?;
        pay_together(&mut payers, each).await?;
    }
    let count_rows = i64::try_from(count)?;
    place.until(SENT, count_rows).await?;
    mine_until_over(&place, &mut rpc, count_rows).await?;
    let writes = u64::try_from(place.writes().await? - before)?;
    let (calls, requests) = (endpoint.calls(), endpoint.requests());
    let all: u64 = calls.values().sum();
    println!(
        "T4, T5: {count} transactions of {signers} signers from their create to CONFIRMED, 20 \
         confirmations, a block a second: {} s",
        began.elapsed().as_secs()
    );
    println!(
        "durable commits a transaction {}; calls {} in {} requests: {calls:?}",
        ratio(writes * 1_000 / count, 1_000),
        ratio(all * 1_000 / count, 1_000),
        ratio(requests * 1_000 / count, 1_000)
    );
    let of = |goal: &str| format!("{goal}, {count} of {signers} signers");
    let most = |found: u64, hundredths: u64| found * 100 <= count * hundredths;
    bench.environment.judge(&of("T4: at most 0.5 commits"), most(writes, 50));
    bench.environment.judge(&of("T4, stretch: 0.2"), most(writes, 20));
    bench.environment.judge(&of("T5: at most 4 calls"), most(all, 400));
    bench.environment.judge(&of("T5, stretch: 2"), most(all, 200));
    println!();
    Ok(())
}

/// T7.
pub(crate) async fn reorganized(bench: &Bench<'_>) -> anyhow::Result<()> {
    let count = tracked(bench);
    let place = Place::new(bench.directory, bench.embedded, "reorganized", 1).await?;
    let endpoint = Endpoint::start(place.chain.host(), Duration::ZERO).await?;
    let settings = [("SUBMIT__IN_FLIGHT_MAX", "0"), ("CONFIRMATIONS__REQUIRED", "100")];
    let node = place.node("txm-a", endpoint.url(), &settings).await?;
    place.add_signers(&node).await?;
    let mut rpc = place.chain.connect().await?;
    rpc.mine(DEPTH).await?;
    let mut payers = crowd(&node, place.signers[0], CLIENTS, "pay").await?;
    // In four blocks of the five that are replaced.
    let mut made = 0;
    for block in 1..DEPTH {
        let part = count * block / (DEPTH - 1) - count * (block - 1) / (DEPTH - 1);
        pay_together(&mut payers, part).await?;
        made += i64::try_from(part)?;
        place.until(SENT, made).await?;
        rpc.mine(1).await?;
    }
    rpc.mine(1).await?;
    place.until(MINED, made).await?;
    println!(
        "T7: a reorganization of depth {DEPTH} under {count} transactions, until all are told"
    );
    let mut longest = Duration::ZERO;
    for round in 1..=ROUNDS {
        let behind = reorganize(&place, &mut rpc, &endpoint, made).await?;
        println!("round {round}: all told {} ms behind the first look at it", behind.as_millis());
        longest = longest.max(behind);
    }
    bench.environment.judge("T7: at most 1 s", longest <= Duration::from_secs(1));
    bench.environment.judge("T7, stretch: 0.3 s", longest <= Duration::from_millis(300));
    println!();
    Ok(())
}

/// Replaces the last blocks by others with the same transactions; returns the time from the first
/// look at them until each row has its new receipt.
async fn reorganize(
    place: &Place,
    rpc: &mut Rpc,
    endpoint: &Endpoint,
    count: i64,
) -> anyhow::Result<Duration> {
    let height = rpc.height().await?;
    let lowest = height + 1 - DEPTH;
    let mined = "SELECT DISTINCT a.raw, t.receipt_number, t.nonce FROM txm.managed_tx t \
                 JOIN txm.tx_attempts a USING (tx_hash) ORDER BY t.nonce";
    let rows = place.postgres.query(mined, &[]).await?;
    let with = rows.iter().map(|row| {
        let number = u64::try_from(row.get::<_, i64>(1)).context("a height")?;
        Ok((row.get::<_, Vec<u8>>(0), number.saturating_sub(lowest)))
    });
    let with: Vec<(Vec<u8>, u64)> = with.collect::<anyhow::Result<_>>()?;
    ensure!(i64::try_from(with.len())? == count, "{} raw transactions", with.len());
    endpoint.keep_blocks();
    rpc.reorg(DEPTH, &with).await?;
    let mut hashes = Vec::new();
    for number in lowest..=height {
        hashes.push(rpc.block_hash(&format!("{number:#x}")).await?);
    }
    let bare = |hash: &String| format!("'\\x{}'", hash.trim_start_matches("0x"));
    let blocks: Vec<String> = hashes.iter().map(bare).collect();
    let told = format!(
        "SELECT count(*) FROM txm.managed_tx WHERE receipt_hash IN ({})",
        blocks.join(", ")
    );
    let all = place.until(&told, count).await?;
    let head = hashes.last().context("a head")?;
    ensure!(hex::decode(head).is_ok(), "{head}");
    let seen = endpoint.shown(head).context("no look showed the new head")?;
    Ok(all - seen)
}
