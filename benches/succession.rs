//! T6: the first send of a successor, behind the end of the owner.

use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::Bench;
use crate::endpoint::Endpoint;
use crate::party::{Party, Payer, Place};

/// The defaults of the lease: its length and its skew.
const LEASE: Duration = Duration::from_secs(10);
const SKEW: Duration = Duration::from_secs(1);
const ROUNDS: u64 = 3;

/// T6.
pub(crate) async fn successors(bench: &Bench<'_>) -> anyhow::Result<()> {
    let place = Place::new(bench.directory, bench.embedded, "successors", 1).await?;
    let rounds = if bench.count < 1_000 { 1 } else { ROUNDS };
    println!("T6: from the end of the owner to the first send of its successor, default lease");
    let first = Endpoint::start(place.chain.host(), Duration::ZERO).await?;
    let mut owner = place.node("txm-0", first.url(), &[("SUBMIT__IN_FLIGHT_MAX", "0")]).await?;
    place.add_signers(&owner).await?;
    let signer = place.signers[0];
    let mut number = 0;
    for (word, signal, goal, stretch) in [
        ("killed", Signal::KILL, LEASE + SKEW + Duration::from_secs(1), Duration::from_millis(300)),
        ("SIGTERM", Signal::TERM, Duration::from_secs(1), Duration::from_millis(300)),
    ] {
        let mut longest = Duration::ZERO;
        for _ in 0..rounds {
            number += 1;
            Payer::new(&owner, signer, 0, format!("owner-{number}")).await?.pay().await?;
            let (next, took) = succeed(&place, &owner, number, signal).await?;
            println!("{word}: {} ms", took.as_millis());
            longest = longest.max(took);
            owner = next;
        }
        let stretch = match signal {
            Signal::KILL => LEASE + SKEW + stretch,
            _ => stretch,
        };
        let of = |what: &str, limit: Duration| {
            format!("T6, {word}{what}: at most {} ms", limit.as_millis())
        };
        bench.environment.judge(&of("", goal), longest <= goal);
        bench.environment.judge(&of(", stretch", stretch), longest <= stretch);
    }
    println!();
    Ok(())
}

/// Starts a successor, ends the owner, and hands in a payment: the successor, and the time until it
/// has sent.
async fn succeed(
    place: &Place,
    owner: &Party,
    number: u64,
    signal: Signal,
) -> anyhow::Result<(Party, Duration)> {
    let endpoint = Endpoint::start(place.chain.host(), Duration::ZERO).await?;
    let settings = [("SUBMIT__IN_FLIGHT_MAX", "0")];
    let next = place.node(&format!("txm-{number}"), endpoint.url(), &settings).await?;
    // So that the moment of its ticks differs by round.
    tokio::time::sleep(Duration::from_millis(700 * (1 + number % 4))).await;
    let mut payer = Payer::new(&next, place.signers[0], 0, format!("next-{number}")).await?;
    endpoint.clear();
    let ended = Instant::now();
    owner.signal(signal)?;
    payer.hand_in().await?;
    let sent = endpoint.first_send().await;
    Ok((next, sent - ended))
}
