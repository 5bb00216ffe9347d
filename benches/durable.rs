//! How long does UBSCore take to make one order durable? How many per second, for callers that wait
//! for each?
//!
//! Base case: the disk alone. One caller cannot be faster than one write and fdatasync, `D50`.
//! Callers with orders in one sync get more than one order out of each.
//!
//! How much slower are they during a snapshot? One caller's orders are measured while snapshots are
//! folded, written and read back one after the other, and again without.
//!
//! `cargo bench --bench durable -- N`: N orders per caller, in the engine of the default
//! configuration. Every order is answered once it is durable. All balances are read at the end.

mod caller;
mod environment;
mod rounds;
mod snapshots;

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use domain::transfer::Decision;
use engine::ledger::Answer;
use engine::recorded::Recorded;
use engine::{Closed, Engine};
use wal::Identity;

use crate::caller::Caller;
use crate::environment::{Environment, Latencies, per_second, ratio, scratch};
use crate::rounds::{balance_after, order};

/// Orders of each caller.
const ORDERS: u64 = 10_000;
/// Uncounted orders of the first caller: the spare segment is filled meanwhile.
const WARM_UP: u64 = 10_000;
/// Callers at the same time.
const CALLERS: u64 = 32;
/// Pause between two tries of an order that was not taken.
const BACKOFF: Duration = Duration::from_micros(100);

/// The results of one caller.
struct Run {
    latencies: Latencies,
    overloads: u64,
}

fn main() -> anyhow::Result<()> {
    let orders = environment::count(ORDERS)?;
    let scratch = scratch()?;
    let environment = Environment::probe(scratch.path(), None)?;

    let total = WARM_UP + 3 * orders + CALLERS * orders;
    let options = caller::options(scratch.path().join("wal"), total);
    let closed = Closed::open(options.clone())?;
    let engine = closed.replay(0, |_| {})?.start(Identity(1), |sync| sync())?;
    let mut first = Caller::new(engine.handle());
    assert_eq!(first.ask(rounds::asset()), Answer::Done, "the asset");

    // The first user belongs to the single caller, the later ones to the many.
    run(&mut first, 1, 0, WARM_UP);
    let before_bytes = device_bytes(scratch.path());
    let one = run(&mut first, 1, WARM_UP, orders);
    let after_bytes = device_bytes(scratch.path());
    let (many, duration) = run_all(&engine, orders);

    let before = run(&mut first, 1, WARM_UP + orders, orders);
    let (beside, snapshots) =
        snapshots::beside(&engine, &options, || run(&mut first, 1, WARM_UP + 2 * orders, orders))?;

    assert_eq!(rounds::balance(&mut first, 1), Some(balance_after(WARM_UP + 3 * orders)), "user 1");
    for user in many_users() {
        assert_eq!(rounds::balance(&mut first, user), Some(balance_after(orders)), "user {user}");
    }
    engine.stop();

    environment.table(&[
        ("1 caller", &one.latencies),
        ("32 callers", &many.latencies),
        ("1 caller, again", &before.latencies),
        ("1 caller, snapshots", &beside.latencies),
    ])?;
    let rate = per_second(CALLERS * orders, duration);
    let alone = per_second(1, Duration::from_nanos(environment.d50));
    let gain = ratio(rate, alone);
    println!("32 callers: {rate} orders/s, {gain} x one order a sync ({alone}/s)");
    let rise = ratio(beside.latencies.quantile(0.99), before.latencies.quantile(0.99));
    match (before_bytes, after_bytes) {
        (Some(before), Some(after)) => {
            let each = (after - before) / orders;
            println!("1 caller: the device writes {each} bytes an order, each synced alone");
            environment.judge("S10, a record synced alone: at most 8 KiB", each <= 8 * 1_024);
        }
        _ => println!("1 caller: the system does not tell what the device writes"),
    }
    println!("{snapshots} snapshots of {total} outcomes: p99 rises to {rise} x");
    println!("not taken and retried: {}", one.overloads + many.overloads);
    println!("balances: correct\n");
    let bound = environment.d50 * 3 / 2;
    environment.judge("S5, 1 caller: p50 at most 1.5 x D50", one.latencies.quantile(0.5) <= bound);
    let bound = before.latencies.quantile(0.99) * 3 / 2;
    let within = beside.latencies.quantile(0.99) <= bound;
    environment.judge("S16, durable: p99 during a snapshot at most 1.5 x", within);
    environment.judge("S7, 32 callers: at least 50 K orders/s", rate >= 50_000);
    Ok(())
}

/// One order at a time.
fn run(caller: &mut Caller, user: u64, first_round: u64, orders: u64) -> Run {
    let mut run = Run { latencies: Latencies::new(), overloads: 0 };
    for round in first_round..first_round + orders {
        let asked = Instant::now();
        loop {
            match caller.ask(order(user, round)) {
                Answer::Decided(Recorded { decision: Decision::Success, .. }) => break,
                Answer::Overloaded => {
                    run.overloads += 1;
                    thread::sleep(BACKOFF);
                }
                other => panic!("round {round} of user {user}: {other:?}"),
            }
        }
        run.latencies.record(asked.elapsed());
    }
    run
}

/// One order at a time by each of many callers, and their time together.
fn run_all(engine: &Engine, orders: u64) -> (Run, Duration) {
    let began = Instant::now();
    let mut all = Run { latencies: Latencies::new(), overloads: 0 };
    thread::scope(|scope| {
        let callers = many_users().map(|user| {
            scope.spawn(move || run(&mut Caller::new(engine.handle()), user, 0, orders))
        });
        // Collected first: all of them are started before the first one is waited for.
        for caller in callers.collect::<Vec<_>>() {
            let run = caller.join().expect("a caller's panic is the bench's");
            all.latencies += &run.latencies;
            all.overloads += run.overloads;
        }
    });
    (all, began.elapsed())
}

/// Bytes written so far to the device of `directory`, by any process; `None` if the system does not
/// report it.
fn device_bytes(directory: &Path) -> Option<u64> {
    /// A sector in the system's own count, not the device's.
    const SECTOR_BYTES: u64 = 512;
    let device = fs::metadata(directory).ok()?.dev();
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let counts = fs::read_to_string(format!("/sys/dev/block/{major}:{minor}/stat")).ok()?;
    let sectors: u64 = counts.split_whitespace().nth(6)?.parse().ok()?;
    Some(sectors * SECTOR_BYTES)
}

fn many_users() -> impl Iterator<Item = u64> {
    2..2 + CALLERS
}
