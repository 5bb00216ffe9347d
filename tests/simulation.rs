//! Whole runs from a seed: the production coordinator and the production core of UBSCore on one thread, in virtual time,
//! over a model of PostgreSQL and a disk in memory, with everything going wrong that the seed says.
//!
//! A run is a function of its seed: it can be run again, and does the same to the last event. What is production code in
//! it: `coordinator` with its workers, `adapters::funding`, `engine::core::Core` with ledger, outcomes and replay, and the
//! crate `wal` with its format, its sync and its recovery. What stands in for the rest:
//!
//! - [`postgres`]: the tables and functions of `config/migrations`, one transaction at a time, behind the `Store` seam;
//!   [`differential`] holds it against the real ones.
//! - [`spot`]: the ring and the engine's three threads as timers. The real ones are threads, and could not be replayed;
//!   they are driven by the tests against the real binary.
//! - [`process`]: a process that can be stopped and killed; [`time`] and [`chance`]: the seams for both.
//! - [`law`]: the judge, written from section 2 of the specification; and [`world`], which puts a run together.
//!
//! # What goes wrong
//!
//! Calls of PostgreSQL find no connection, are lost, carried out unheard, carried out late, brought twice, rolled back,
//! held up or refused for one of them; orders of UBSCore are lost, late, doubled, decided unheard or turned away; a sync
//! may take longer than anybody waits. A process is killed, loses power with any unsynced sector, is stopped and comes
//! back, is superseded while stopped or while running; PostgreSQL crashes; the gate is closed; the disk is full. Strikes
//! hit at named points: a flight that arrives or is done, a decision, a sync, a word to a client. Operators change statuses, have
//! transfers tried at once, and resolve them whether they need it or not.
//!
//! # What the judge can see
//!
//! Each bug of [`world::Bug`] is planted in the model or in the shim around the core, and must be found within the seeds
//! of `make test`. Seeds to the first broken law (2026-11-22; a change of any plan changes them):
//!
//! | planted | seeds | law |
//! |---|---|---|
//! | a refund is keyed by req_id only | 2 | L4 only a recorded decision moves a state |
//! | a refusal is answered, not recorded | 1 | L3 told is durable |
//! | a time-out compensates | 1 | L4 only a recorded decision moves a state |
//! | UBSCore answers before the sync: COMMITTED before the target's success is durable | 1 | L3 told is durable |
//! | a COMMIT that became a ROLLBACK is taken for a COMMIT | 1 | L5 persisted first |
//! | idempotency by select without insert | 1 | L4 only a recorded decision moves a state |
//! | the fence does not compare the incarnation | 1 | nobody breaks the protocol |
//! | a flight that was given up commits behind a later one | 1 | what was given up comes no more |
//! | outcomes are forgotten early | 1 | the watermark passes only what has ended |
//! | a refund is refused for the account's status | 47 | nobody breaks the protocol |
//! | a cid finds no earlier transfer | 1 | same cid, same answer |
//! | a status is answered and forgotten | 8 | an answered status holds |
//! | a sync returns before the disk has written | 2 | nothing panics |
//! | UBSCore finds nothing recorded | 1 | L6 told is final |
//! | an operator's refusal is told though a success is recorded | 10 | L4 only a recorded decision moves a state |
//! | an external operation is answered before its record | 1 | L3 told is durable |
//! | a deposit without a place is not decided | 23 | everything ends terminal |
//!
//! # What is not here
//!
//! The ring, the engine's and the runtime's threads and their races; HTTP; SQL itself, its locks and deadlocks;
//! `coordinator::watermark` and `coordinator::balances`, which speak to PostgreSQL themselves (a raiser of the model's
//! stands in for the first); snapshots and removed segments; the audit; PostgreSQL that loses what it has committed;
//! a disk that damages what was durable. Several workers and a closed gate do not meet in one run: tokio wakes
//! several watchers in an order of its own.
//!
//! `UBSCORE_SIM_SEEDS=20000` runs more seeds, `UBSCORE_SIM_SEED=17` one, and prints what happens in it.

mod chance;
mod differential;
mod law;
mod postgres;
mod process;
mod spot;
mod time;
mod world;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use parking_lot::Mutex;

use self::law::Broken;
use self::world::{Bug, STRIKES, Tally, run};

/// Seeds that `make test` runs; a planted bug must be found within them.
const SEEDS: u64 = 1_000;
const THREADS: u64 = 2;

/// What a run was, and whether it broke a law.
type Judged = (Tally, Result<(), Broken>);

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name}={text} is no number")))
}

/// Goal: no seed breaks a law. Method: run them, add up what they did, and look that everything did happen.
#[test]
fn no_seed_breaks_a_law() {
    if let Some(seed) = number("UBSCORE_SIM_SEED") {
        let (tally, judged) = run(seed, None, true);
        println!("{tally:?}");
        assert_eq!(judged, Ok(()), "seed {seed}");
        return;
    }
    let seeds = number("UBSCORE_SIM_SEEDS").unwrap_or(SEEDS);
    let began = Instant::now();
    let next = AtomicU64::new(0);
    let done: Mutex<BTreeMap<u64, Judged>> = Mutex::default();
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds {
                        return;
                    }
                    let judged = run(seed, None, false);
                    if let Err(Broken { law, what }) = &judged.1 {
                        println!("UBSCORE_SIM_SEED={seed}: {law}: {what}");
                    }
                    done.lock().insert(seed, judged);
                }
            });
        }
    });
    let mut endings: BTreeMap<i16, u64> = BTreeMap::new();
    let mut strikes = BTreeMap::new();
    let (mut resolved, mut faults, mut events, mut virtual_ms) = (0, 0, 0, 0);
    let mut failed: Vec<u64> = Vec::new();
    for (seed, (tally, judged)) in done.into_inner() {
        for (state, count) in tally.endings {
            *endings.entry(state).or_default() += count;
        }
        for (strike, count) in tally.strikes {
            *strikes.entry(strike).or_insert(0) += count;
        }
        resolved += tally.resolved;
        faults += tally.faults;
        events += tally.events;
        virtual_ms += tally.virtual_ms;
        failed.extend(judged.is_err().then_some(seed));
    }
    println!(
        "{seeds} seeds in {:?}: {} s of virtual time, {events} events, {faults} faults, transfers by last state \
         {endings:?}, {resolved} ended by operators, strikes {strikes:?}",
        began.elapsed(),
        virtual_ms / 1_000,
    );
    assert_eq!(
        failed,
        Vec::<u64>::new(),
        "of {seeds} seeds, these break a law: UBSCORE_SIM_SEED prints one"
    );
    for state in [40, -10, -30] {
        assert!(endings.contains_key(&state), "no transfer ended in {state}");
    }
    assert!(resolved > 0, "no operator has ended any");
    for strike in STRIKES {
        assert!(strikes.contains_key(&strike), "never: {strike:?}");
    }
}

/// Seeds that a longer run has found, with what was wrong; a change of any plan changes what they do.
///
/// 14634: a search for a cid was blamed for its batch and parked, and the accept before it in the same batch was held up
/// behind it, as if it had come later. The search found nothing, a client was told so, and the accept came after all.
const STORIES: [u64; 1] = [14_634];

#[test]
fn no_seed_of_a_story_breaks_a_law() {
    for seed in STORIES {
        assert_eq!(run(seed, None, false).1, Ok(()), "seed {seed}");
    }
}

/// Goal: what is found can be found again. Method: the same seed twice; digests of every event with its time.
#[test]
fn a_seed_does_the_same_again() {
    for seed in 0..60 {
        assert_eq!(run(seed, None, false), run(seed, None, false), "seed {seed}");
    }
}

/// Goal: the judge sees what he is there for. Method: each known bug, planted in the model or in the shim around the
/// core, until a law is broken.
#[test]
fn each_planted_bug_is_found() {
    let mut missed = Vec::new();
    for bug in Bug::ALL {
        let mut seeds = 0..SEEDS;
        let found = seeds.find_map(|seed| Some((seed, run(seed, Some(bug), false).1.err()?)));
        match found {
            Some((seed, Broken { law, what })) => {
                println!("{bug:?}: {} seeds, {law}: {what}", seed + 1);
            }
            None => missed.push(bug),
        }
    }
    assert!(missed.is_empty(), "not found in {SEEDS} seeds: {missed:?}");
}
