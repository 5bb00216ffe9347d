//! T8: a node that owns signers and has nothing to do.

use std::time::Duration;

use procfs::process::Process;
use tokio::time::sleep;

use crate::Bench;
use crate::environment::ratio;
use crate::party::{Payer, Place};

const SIGNERS: usize = 100;
const WINDOWS: usize = 4;
const OVER: &str = "SELECT count(*) FROM txm.managed_tx WHERE state = 40";

/// T8.
pub(crate) async fn idle(bench: &Bench<'_>) -> anyhow::Result<()> {
    let place = Place::new(bench.directory, bench.embedded, "idle", SIGNERS).await?;
    let settings = [("CONFIRMATIONS__REQUIRED", "1")];
    let node = place.node("txm-a", &place.chain.url(), &settings).await?;
    place.add_signers(&node).await?;
    let mut rpc = place.chain.connect().await?;
    for (number, signer) in place.signers.iter().enumerate() {
        Payer::new(&node, *signer, 0, format!("pay-{number}")).await?.pay().await?;
    }
    let signers = i64::try_from(SIGNERS)?;
    let sent = "SELECT count(*) FROM txm.tx_attempts WHERE was_in_pool";
    place.until(sent, signers).await?;
    rpc.mine(3).await?;
    place.until(OVER, signers).await?;
    let process = Process::new(node.pid())?;
    let seconds = (bench.count / 600).clamp(5, 30);
    // Autovacuum's transactions are counted too: it does not come in each window.
    let mut windows = Vec::new();
    for _ in 0..WINDOWS {
        let (before, used) = (place.commits().await?, process.stat()?);
        for _ in 0..seconds {
            rpc.mine(1).await?;
            sleep(Duration::from_secs(1)).await;
        }
        let now = process.stat()?;
        let ticks = now.utime + now.stime - used.utime - used.stime;
        // The counters lag, and reading them takes a pause too: they are read for longer.
        let statements = u64::try_from(place.commits().await? - before)?;
        let permille = ticks * 1_000 / (seconds * procfs::ticks_per_second());
        let pause_ms = Place::COUNTERS_PAUSE_MS;
        let each_second = statements * 1_000 * 100 / (seconds * 1_000 + pause_ms);
        windows.push((each_second, permille));
    }
    let (each_second, permille) = windows.into_iter().min().unwrap_or_default();
    println!(
        "T8: an idle node with {SIGNERS} signers, a block a second, for {seconds} s: {} % of a \
         core, {} statements a second in the best of {WINDOWS} windows",
        ratio(permille, 10),
        ratio(each_second, 100)
    );
    bench.environment.judge("T8: at most 2 % of a core", permille <= 20);
    bench.environment.judge("T8: at most 1 statement a second", each_second <= 100);
    println!();
    Ok(())
}
