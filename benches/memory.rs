//! How much memory does a Spot account take, how much an outcome, and how long does an order take
//! among that many?
//!
//! Base case: the bytes of the same facts in a snapshot, one behind the other and without an index.
//!
//! `cargo bench --bench memory -- N`: N outcomes, and an account with two balances for every eighth
//! of them. Resident bytes are Linux's count for the process. Latencies cover decision and effect
//! in memory, without a log, and include the clock's own.

mod environment;
mod resident;

use std::time::{Duration, Instant};

use domain::transfer::{Decision, Direction, Op};
use engine::command::Command;
use engine::fact::{FACT_BYTES_MAX, Fact};
use engine::ledger::{Answer, FORGET_LEAVES, FORGET_LOOKS, LOOK_AHEAD, Ledger, Step};
use engine::order::Order;
use engine::places::Places;
use engine::recorded::Recorded;
use engine::text::Text;
use hdrhistogram::Histogram;

use crate::environment::{Environment, per_second, ratio, scratch};
use crate::resident::resident;

const OUTCOMES: u64 = 1_000_000;
const OUTCOMES_PER_ACCOUNT: u64 = 8;
const ASSETS: u64 = 2;
/// Shares no factor with the number of accounts: neighbors in time are not neighbors in memory.
const STRIDE: u64 = 7_919;
/// The goal's limit for eight million outcomes, bytes.
const BYTES_MAX: u64 = 1_500_000_000;
const OUTCOMES_OF_GOAL: u64 = 8_000_000;
/// The goal's p50 of an order, ns.
const ORDER_NS_MAX: u64 = 300;

fn main() -> anyhow::Result<()> {
    let outcomes = environment::count(OUTCOMES)?;
    let accounts = (outcomes / OUTCOMES_PER_ACCOUNT).max(1);
    let scratch = scratch()?;
    let environment = Environment::probe(scratch.path(), None)?;

    println!("\n{:<44}{:>16}{:>14}", "resident", "bytes", "bytes each");
    let one = Places::of_transfers(1, 1);
    let (accounts_places, outcomes_places) =
        (usize::try_from(accounts)?, usize::try_from(outcomes)?);
    let of_accounts = resident_of(Places { accounts_max: accounts_places, ..one })?;
    row(&format!("{accounts} accounts, {ASSETS} balances each"), of_accounts, accounts);
    let of_outcomes = resident_of(Places { outcomes_max: outcomes_places, ..one })?;
    row(&format!("{outcomes} outcomes"), of_outcomes, outcomes);

    let places = Places::of_transfers(accounts_places, outcomes_places);
    let before = resident()?;
    let mut ledger = Ledger::new(places);
    ledger.prefault();
    for asset in 1..=ASSETS {
        let asset = u32::try_from(asset)?;
        let command = Command::RegisterAsset { asset, precision: 8, symbol: Text::EMPTY };
        assert_eq!(run(&mut ledger, &command), Answer::Done, "asset {asset}");
    }
    let began = Instant::now();
    // An eighth stays free: withdrawals keep a place for their refunds.
    let filled = outcomes - outcomes / 8;
    (0..filled).for_each(|number| decide(&mut ledger, &[order(number, accounts, Op::Deposit)]));
    let rate = per_second(filled, began.elapsed());
    let full = resident()?.saturating_sub(before);
    row("both, filled", full, outcomes);
    let base = ledger.facts().map(fact_bytes).sum();
    row("base: the facts of the filled ledger", base, outcomes);
    println!(
        "\nthe filled ledger takes {} x its facts; filled with {rate} orders/s",
        ratio(full, base)
    );

    println!("\n{:<44}{:>9}{:>9}{:>9}{:>12}", "ns", "p50", "p99", "p99.9", "max");
    let asked = outcomes / 32;
    latencies("the clock alone", asked, 1, |_| {})?;
    let mixed = |number: u64| {
        let op = if number.is_multiple_of(2) { Op::Deposit } else { Op::Withdraw };
        order(number, accounts, op)
    };
    let known = ledger.outcome_count();
    let p50 = latencies(&format!("an order, {known} outcomes known"), asked, 1, |number| {
        decide(&mut ledger, &[mixed(filled + number)]);
    })?;
    let batch = LOOK_AHEAD as u64;
    let batches = asked / batch;
    let name = format!("a batch of {batch} orders, each");
    // One histogram entry per batch: an order's time while the next ones are prefetched.
    latencies(&name, batches, batch, |number| {
        let first = filled + asked + number * batch;
        let commands: Vec<Command> = (first..first + batch).map(mixed).collect();
        decide(&mut ledger, &commands);
    })?;
    let raise = Command::RaiseWatermark { order_number: outcomes / 2 };
    assert_eq!(run(&mut ledger, &raise), Answer::Done, "the watermark");
    latencies("an order, half of them forgotten later", asked, 1, |number| {
        decide(&mut ledger, &[mixed(filled + 2 * asked + number)]);
    })?;
    let looked = Instant::now();
    ledger.forget_all();
    println!("\nthe rest forgotten at once in {:.1?}", looked.elapsed());
    assert!(ledger.outcome_count() as u64 <= filled + 3 * asked - outcomes / 2, "not forgotten");
    assert_eq!(sum(&ledger), ledger.digest(), "the digest");
    println!("digest of {filled} deposits and later orders: correct\n");

    if outcomes == OUTCOMES_OF_GOAL {
        environment.judge("S15, memory: at most 1.5 GB", full <= BYTES_MAX);
    }
    environment.judge("S1, one order in memory: p50 at most 300 ns", p50 <= ORDER_NS_MAX);
    Ok(())
}

fn row(name: &str, bytes: u64, count: u64) {
    println!("{name:<44}{bytes:>16}{:>14}", ratio(bytes, count));
}

/// The memory of an empty ledger, with all its places.
fn resident_of(places: Places) -> anyhow::Result<u64> {
    let before = resident()?;
    let mut ledger = Ledger::new(places);
    ledger.prefault();
    let after = resident()?;
    assert_eq!(ledger.outcome_count(), 0, "a new ledger");
    Ok(after.saturating_sub(before))
}

fn order(number: u64, accounts: u64, op: Op) -> Command {
    let direction = match op {
        Op::Deposit => Direction::FundingToSpot,
        _ => Direction::SpotToFunding,
    };
    Command::Order(Order {
        op,
        req_id: (u128::from(number.wrapping_mul(STRIDE)) << u64::BITS) | u128::from(number + 1),
        cid: Text::EMPTY,
        user: number.wrapping_mul(STRIDE) % accounts + 1,
        asset: u32::try_from(number / accounts % ASSETS + 1).expect("few"),
        amount: if op == Op::Deposit { 1_000 } else { 1 },
        direction,
        order_number: number,
    })
}

fn run(ledger: &mut Ledger, command: &Command) -> Answer {
    match ledger.step(command) {
        Step::Append(entry) => ledger.apply(&entry, ledger.sequence() + 1, 0),
        other => panic!("{command:?}: {other:?}"),
    }
}

/// In the way of the core.
fn decide(ledger: &mut Ledger, commands: &[Command]) {
    ledger.expect(commands.iter().filter_map(Command::order));
    for command in commands {
        let answer = run(ledger, command);
        let success =
            matches!(answer, Answer::Decided(Recorded { decision: Decision::Success, .. }));
        assert!(success, "{command:?}: {answer:?}");
        ledger.forget(FORGET_LOOKS, FORGET_LEAVES);
    }
}

/// Prints the time of each of this many batches, divided by the batch size; returns the p50, ns.
fn latencies(name: &str, count: u64, batch: u64, mut one: impl FnMut(u64)) -> anyhow::Result<u64> {
    let mut histogram = Histogram::<u64>::new(3)?;
    for number in 0..count {
        let asked = Instant::now();
        one(number);
        histogram.record(nanoseconds(asked.elapsed()) / batch)?;
    }
    let at = |quantile| histogram.value_at_quantile(quantile);
    println!("{name:<44}{:>9}{:>9}{:>9}{:>12}", at(0.5), at(0.99), at(0.999), histogram.max());
    Ok(at(0.5))
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

fn fact_bytes(fact: Fact) -> u64 {
    let (_tag, length) = fact.encode(&mut [0; FACT_BYTES_MAX]);
    length as u64 + 1
}

fn sum(ledger: &Ledger) -> u128 {
    ledger.facts().map(|fact| fact.digest()).fold(0, u128::wrapping_add)
}
