//! How long does a restart read its log, and how long do the operators' tools take?
//!
//! Base case: reading the same files by 1 MiB, which checks nothing and rebuilds nothing. The tools
//! run like their commands, with discarded output.
//!
//! `cargo bench --bench replay -- N`: N orders of 10,000 users, written by the core itself. The
//! page cache drops the files before each reading, so that both come from the disk; a host's cache
//! below it may still hold them. All balances are read from an engine that is started on the
//! replayed state.

mod caller;
mod environment;
mod rounds;

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Parser;
use domain::transfer::Decision;
use engine::core::Core;
use engine::ledger::{Answer, Ledger};
use engine::recorded::Recorded;
use engine::{Closed, Options};
use rustix::fs::{Advice, fadvise};
use ubscore::cli::{Cli, Command};
use ubscore::commands::wal::ink::Ink;
use wal::{Directory, Identity, Log, Progress, Recovery};

use crate::caller::Caller;
use crate::environment::{Environment, per_second, ratio, scratch};
use crate::rounds::{balance_after, order};

const ORDERS: u64 = 1_000_000;
const USERS: u64 = 10_000;
/// Shares no factor with [`USERS`]: neighbors in the log are not neighbors in memory.
const USER_STRIDE: u64 = 7_919;
/// Orders between two syncs during the writing of the log.
const SYNC_ORDERS: u64 = 4_096;
const IDENTITY: Identity = Identity(1);
const READ_BYTES: usize = 1 << 20;
/// Readings of each kind; the median counts.
const READINGS: usize = 5;

fn main() -> anyhow::Result<()> {
    let orders = environment::count(ORDERS)?;
    let scratch = scratch()?;
    let environment = Environment::probe(scratch.path(), None)?;

    let options = caller::options(scratch.path().join("wal"), orders);
    let began = Instant::now();
    // The asset, the orders and the mark.
    let records = orders + 2;
    assert_eq!(write(&options, orders)?, records, "records written");
    println!("\n{records} records written in {:.1?}", began.elapsed());

    let segments = segments(&options.log_dir)?;
    let mut bytes = 0;
    let (mut plain, mut replay) = (Vec::new(), Vec::new());
    for _ in 0..READINGS {
        drop_cache(&segments)?;
        let began = Instant::now();
        bytes = read_plain(&segments)?;
        plain.push(began.elapsed());

        drop_cache(&segments)?;
        let began = Instant::now();
        let replayed = Closed::open(options.clone())?.replay(0, |_| {})?;
        replay.push(began.elapsed());
        assert_eq!(replayed.ledger().sequence(), records, "records replayed");
    }
    let mut tools = TOOLS.map(|words| (words, Vec::new()));
    for _ in 0..READINGS {
        for (words, durations) in &mut tools {
            drop_cache(&segments)?;
            let began = Instant::now();
            run_tool(words, &options.log_dir)?;
            durations.push(began.elapsed());
        }
    }
    check_balances(options, orders)?;

    println!("\n{:<24}{:>12}{:>16}{:>12}", "", "ms", "records/s", "MB/s");
    let (plain, replay) = (median(plain), median(replay));
    let tools = tools.into_iter().map(|(words, durations)| (words, median(durations)));
    for (name, duration) in [("plain read", plain), ("replay", replay)].into_iter().chain(tools) {
        let (rate, volume) = (per_second(records, duration), per_second(bytes, duration));
        println!("{name:<24}{:>12}{rate:>16}{:>12}", duration.as_millis(), volume / 1_000_000);
    }
    let times = ratio(per_second(bytes, plain), per_second(bytes, replay));
    println!("\nreplay takes {times} x the plain read of {bytes} bytes, unused ends included");
    println!("balances of {USERS} users: correct\n");
    let reached = per_second(records, replay) >= 3_000_000;
    environment.judge("S9, replay: at least 3 M records/s", reached);
    Ok(())
}

/// The operators' tools, by their commands.
const TOOLS: [&str; 4] = ["wal verify", "wal dump", "wal dump --format json", "wal stat"];

fn run_tool(words: &str, log_dir: &Path) -> anyhow::Result<()> {
    let line = ["ubscore"].into_iter().chain(words.split(' ')).map(PathBuf::from);
    let line = line.chain([log_dir.to_owned()]);
    let Command::Wal(command) = Cli::try_parse_from(line)?.command else {
        anyhow::bail!("{words} is no tool of the log")
    };
    let (out, notes) = (&mut io::sink(), &mut io::sink());
    let never = || unreachable!("nothing is followed");
    ubscore::commands::wal::run(&command, out, notes, Ink::PLAIN, &mut { never })?;
    Ok(())
}

/// Writes the log; returns the number of its records.
fn write(options: &Options, orders: u64) -> anyhow::Result<u64> {
    let mut recovery = Recovery::open(Directory::create(&options.log_dir)?, 0, 0)?;
    assert_eq!(recovery.next()?, None, "a new log");
    let wal_options =
        wal::Options { segment_bytes: options.segment_bytes, spares_ready: options.spares_ready };
    let (log, _report) = recovery.start(IDENTITY, wal_options)?;
    let Log { writer, mut syncer, mut preparer, durable } = log;
    let mut core = Core::new(Ledger::new(options.places), writer);
    assert_eq!(core.decide(&rounds::asset(), 0).0, Answer::Done, "the asset");
    for number in 0..orders {
        if number.is_multiple_of(SYNC_ORDERS) {
            syncer.sync()?;
            while preparer.tick()? == Progress::Busy {}
        }
        let (user, round) = place(number);
        let (answer, _sequence) = core.decide(&order(user, round), number);
        let success =
            matches!(answer, Answer::Decided(Recorded { decision: Decision::Success, .. }));
        assert!(success, "order {number}: {answer:?}");
    }
    core.mark();
    syncer.sync()?;
    Ok(durable.durable())
}

/// User and round of an order.
fn place(number: u64) -> (u64, u64) {
    (number * USER_STRIDE % USERS + 1, number / USERS)
}

fn segments(log_dir: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let paths: Result<Vec<PathBuf>, _> =
        fs::read_dir(log_dir)?.map(|entry| entry.map(|entry| entry.path())).collect();
    let is_segment = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "wal");
    Ok(paths?.into_iter().filter(is_segment).collect())
}

fn drop_cache(segments: &[PathBuf]) -> anyhow::Result<()> {
    for segment in segments {
        let file = File::open(segment)?;
        // Only clean pages are dropped.
        file.sync_all()?;
        fadvise(&file, 0, None, Advice::DontNeed)?;
    }
    Ok(())
}

/// Reads all files; returns their bytes.
fn read_plain(segments: &[PathBuf]) -> anyhow::Result<u64> {
    let mut buffer = vec![0; READ_BYTES];
    let mut bytes = 0;
    for segment in segments {
        let mut file = File::open(segment)?;
        loop {
            match file.read(&mut buffer)? {
                0 => break,
                read => bytes += read as u64,
            }
        }
    }
    Ok(bytes)
}

fn check_balances(options: Options, orders: u64) -> anyhow::Result<()> {
    let engine = Closed::open(options)?.replay(0, |_| {})?.start(IDENTITY, |sync| sync())?;
    let mut caller = Caller::new(engine.handle());
    for number in 0..USERS.min(orders) {
        // A user has the same place in each round.
        let (user, _) = place(number);
        let rounds = orders / USERS + u64::from(number < orders % USERS);
        assert_eq!(rounds::balance(&mut caller, user), Some(balance_after(rounds)), "user {user}");
    }
    engine.stop();
    Ok(())
}

fn median(mut durations: Vec<Duration>) -> Duration {
    durations.sort_unstable();
    durations[durations.len() / 2]
}
