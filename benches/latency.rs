//! T3: signers and nodes behind an endpoint with latency. Each signer has one client, which makes
//! its next payment once the chain has acknowledged its last one.

use std::time::{Duration, Instant};

use futures_util::future::try_join_all;

use crate::Bench;
use crate::endpoint::Endpoint;
use crate::environment::{per_second, ratio};
use crate::party::{Party, Payer, Place, Settings};

const LATENCY: Duration = Duration::from_millis(50);
/// Uncounted: the signers get their owners.
const WARM_UP: Duration = Duration::from_secs(3);
/// The part with many signers has a call for each.
const ROOMY: Settings = &[("SUBMIT__IN_FLIGHT_MAX", "0"), ("CHAIN__CALLS_IN_FLIGHT_MAX", "64")];
/// The part with two nodes has the default.
const NARROW: Settings = &[("SUBMIT__IN_FLIGHT_MAX", "0"), ("CHAIN__CALLS_IN_FLIGHT_MAX", "8")];
const MANY: usize = 16;
const CROWD: usize = 64;

/// The length of each measurement.
fn length(bench: &Bench) -> Duration {
    Duration::from_millis(bench.count.clamp(2_000, 8_000))
}

/// Acknowledged payments a second, hundredths. `nodes`: each serves an equal share of the signers.
async fn rate(
    place: &Place,
    nodes: &[&Party],
    endpoint: &Endpoint,
    signers: std::ops::Range<usize>,
    length: Duration,
) -> anyhow::Result<u64> {
    let share = signers.len().div_ceil(nodes.len());
    let began = Instant::now();
    let first = signers.start;
    let clients = signers.map(|number| async move {
        let node = nodes[(number - first) / share];
        let payer = u64::try_from(number)?;
        let mut client =
            Payer::new(node, place.signers[number], payer, format!("one-{number}")).await?;
        let (mut made, mut counted) = (0, 0);
        while began.elapsed() < WARM_UP + length {
            client.pay().await?;
            made += 1;
            endpoint.acknowledged(payer, made).await?;
            counted += u64::from((WARM_UP..WARM_UP + length).contains(&began.elapsed()));
        }
        anyhow::Ok(counted)
    });
    let counted: u64 = try_join_all(clients).await?.into_iter().sum();
    Ok(per_second(counted * 100, length))
}

/// T3, one node: 16 signers against one.
pub(crate) async fn signers(bench: &Bench<'_>) -> anyhow::Result<()> {
    let place = Place::new(bench.directory, bench.embedded, "signers", 1 + MANY).await?;
    let endpoint = Endpoint::start(place.chain.host(), LATENCY).await?;
    let node = place.node("txm-a", endpoint.url(), ROOMY).await?;
    place.add_signers(&node).await?;
    println!("T3: payments one at a time for each signer, 50 ms of RPC latency");
    let one = rate(&place, &[&node], &endpoint, 0..1, length(bench)).await?;
    let many = rate(&place, &[&node], &endpoint, 1..1 + MANY, length(bench)).await?;
    println!(
        "1 signer {}/s, {MANY} signers {}/s: {} x",
        ratio(one, 100),
        ratio(many, 100),
        ratio(many, one)
    );
    bench.environment.judge("T3, 16 signers: 10 x one", many >= 10 * one);
    bench.environment.judge("T3, 16 signers, stretch: 15 x one", many >= 15 * one);
    Ok(())
}

/// T3, 64 signers: two nodes against one.
pub(crate) async fn nodes(bench: &Bench<'_>) -> anyhow::Result<()> {
    let mut rates = Vec::new();
    for (name, count) in [("alone", 1), ("pair", 2)] {
        let place = Place::new(bench.directory, bench.embedded, name, CROWD).await?;
        let endpoint = Endpoint::start(place.chain.host(), LATENCY).await?;
        let mut nodes = Vec::new();
        for number in 0..count {
            let name = format!("txm-{number}");
            nodes.push(place.node(&name, endpoint.url(), NARROW).await?);
        }
        place.add_signers(&nodes[0]).await?;
        let nodes: Vec<&Party> = nodes.iter().collect();
        rates.push(rate(&place, &nodes, &endpoint, 0..CROWD, length(bench)).await?);
    }
    let (one, two) = (rates[0], rates[1]);
    println!(
        "{CROWD} signers, 8 calls under way a node: one node {}/s, two nodes {}/s: {} x",
        ratio(one, 100),
        ratio(two, 100),
        ratio(two, one)
    );
    bench.environment.judge("T3, two nodes: 1.7 x one", 10 * two >= 17 * one);
    bench.environment.judge("T3, two nodes, stretch: 1.9 x one", 10 * two >= 19 * one);
    println!();
    Ok(())
}
