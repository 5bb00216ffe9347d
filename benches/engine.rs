//! How long do the parts of UBSCore take, and how long does an answer take when commands come at a
//! fixed rate?
//!
//! Base cases: reading the clock twice, which every figure below includes; and the disk alone, for
//! durable orders.
//!
//! `cargo bench --bench engine -- N`: N commands of each kind. For reads the core thread waits
//! busily. For orders it waits as in the default configuration, and leaves a processor to the sync.
//! The open loops stamp a command with its planned time, so that a stall of the engine is counted.
//! All balances are read at the end.

mod caller;
mod crowd;
mod environment;
mod rounds;

use std::collections::VecDeque;
use std::hint::spin_loop;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use engine::command::Command;
use engine::ledger::Answer;
use engine::ring::Pending;
use engine::{Closed, Engine, Handle};
use ubscore::clock::{Clock, SystemClock};
use wal::{Directory, Identity, Log, Progress, Recovery};

use crate::caller::Caller;
use crate::crowd::{batches, one_at_a_time, take_answered};
use crate::environment::{Environment, Latencies, per_second, ratio, scratch};
use crate::rounds::{balance_after, order};

const COMMANDS: u64 = 200_000;
/// The warm-up after a start, during which the spare segment is filled.
const SETTLE: Duration = Duration::from_secs(2);
/// Bytes of a record's payload: an order with a cid.
const PAYLOAD_BYTES: usize = 120;
/// Records between two syncs in the storing case.
const SYNC_RECORDS: u64 = 1_024;
/// Reads per second in an open loop, and durable orders per second.
const READS_RATE: u64 = 100_000;
const ORDERS_RATE: u64 = 10_000;

fn main() -> anyhow::Result<()> {
    let commands = environment::count(COMMANDS)?;
    let scratch = scratch()?;
    let environment = Environment::probe(scratch.path(), None)?;

    let clock = clock_reads(commands);
    let append = append(&scratch.path().join("append"), commands)?;

    let read = |_| Command::ReadBalance { user: 1, asset: 1 };
    let engine = start(scratch.path().join("reads"), 0, true)?;
    let mut handle = engine.handle();
    let one = one_at_a_time(&mut handle, commands, read);
    let paced = open_loop(&mut handle, commands, READS_RATE, read);
    assert_eq!(
        rounds::balance(&mut Caller::new(engine.handle()), 1),
        None,
        "no account exists yet"
    );
    engine.stop();

    let engine = start(scratch.path().join("orders"), 2 * commands, false)?;
    let mut handle = engine.handle();
    let durable = open_loop(&mut handle, commands / 10, ORDERS_RATE, |n| order(2, n));
    let (batched, took) = batches(&mut handle, commands, |n| order(3, n));
    let mut caller = Caller::new(engine.handle());
    assert_eq!(rounds::balance(&mut caller, 2), Some(balance_after(commands / 10)), "user 2");
    assert_eq!(rounds::balance(&mut caller, 3), Some(balance_after(commands)), "user 3");
    engine.stop();

    environment.table(&[
        ("clock, read twice", &clock),
        ("store a record", &append),
        ("read, one at a time", &one),
        ("ask, 100 K/s", &paced),
        ("order durable, 10 K/s", &durable),
        ("order durable, batched", &batched),
    ])?;
    let rate = per_second(commands, took);
    println!(
        "batched: {rate} orders/s, {} x one order a sync",
        ratio(rate, per_second(1, Duration::from_nanos(environment.d50)))
    );
    println!("balances: correct\n");
    let within = |latencies: &Latencies, quantile, ns| latencies.quantile(quantile) <= ns;
    let net = append.quantile(0.5).saturating_sub(clock.quantile(0.5));
    environment.judge(
        "S2, store a record: p50 at most 100 ns, p99.99 at most 50 us",
        net <= 100 && within(&append, 0.9999, 50_000),
    );
    environment.judge(
        "S3, ask: p50 at most 1 us, p99 at most 2 us",
        within(&one, 0.5, 1_000) && within(&one, 0.99, 2_000),
    );
    environment.judge(
        "S4, ask at 100 K/s: p50 at most 1.5 us, p99 at most 15 us, p99.9 at most 150 us",
        within(&paced, 0.5, 1_500)
            && within(&paced, 0.99, 15_000)
            && within(&paced, 0.999, 150_000),
    );
    let bound = environment.d50 * 17 / 10;
    environment.judge("S6, durable at 10 K/s: p50 at most 1.7 x D50", within(&durable, 0.5, bound));
    environment.judge(
        "S8, batched: at least 1 M orders/s, p99 at most 5 ms",
        rate >= 1_000_000 && within(&batched, 0.99, 5_000_000),
    );
    Ok(())
}

/// An engine that knows the asset and has finished starting.
fn start(log_dir: PathBuf, orders: u64, busy: bool) -> anyhow::Result<Engine> {
    let mut options = caller::options(log_dir, orders);
    options.busy = busy;
    let engine = Closed::open(options)?.replay(0, |_| {})?.start(Identity(1), |sync| sync())?;
    assert_eq!(Caller::new(engine.handle()).ask(rounds::asset()), Answer::Done, "the asset");
    thread::sleep(SETTLE);
    Ok(engine)
}

fn clock_reads(count: u64) -> Latencies {
    let mut latencies = Latencies::new();
    for _ in 0..count {
        latencies.record(Instant::now().elapsed());
    }
    latencies
}

/// Encodes, checks and stores one record in the mapped log at a time.
fn append(log_dir: &Path, count: u64) -> anyhow::Result<Latencies> {
    let mut recovery = Recovery::open(Directory::create(log_dir)?, 0, 0)?;
    assert_eq!(recovery.next()?, None, "a new log");
    let options = wal::Options { segment_bytes: 64 << 20, spares_ready: 1 };
    let (log, _report) = recovery.start(Identity(1), options)?;
    let Log { mut writer, mut syncer, mut preparer, .. } = log;
    let payload = [7; PAYLOAD_BYTES];
    let mut latencies = Latencies::new();
    for number in 0..count {
        if number.is_multiple_of(SYNC_RECORDS) {
            syncer.sync()?;
            while preparer.tick()? == Progress::Busy {}
        }
        let began = Instant::now();
        writer.append(1, number, &payload)?;
        latencies.record(began.elapsed());
    }
    Ok(latencies)
}

/// Sends commands at a rate, without waiting for earlier answers.
fn open_loop(
    handle: &mut Handle,
    count: u64,
    rate: u64,
    command: impl Fn(u64) -> Command,
) -> Latencies {
    let (mut latencies, clock) = (Latencies::new(), SystemClock::new());
    let interval = Duration::from_nanos(1_000_000_000 / rate);
    let mut waiting: VecDeque<(Instant, Pending)> = VecDeque::new();
    let (mut planned, mut number) = (Instant::now(), 0);
    while number < count || !waiting.is_empty() {
        if number < count
            && Instant::now() >= planned
            && let Ok(pending) = handle.submit(command(number), clock.now_ns())
        {
            waiting.push_back((planned, pending));
            planned += interval;
            number += 1;
        }
        take_answered(&mut waiting, &mut latencies);
        spin_loop();
    }
    latencies
}
