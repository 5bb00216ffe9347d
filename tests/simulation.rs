//! Whole runs from a seed: the production coordinator and the production core of UBSCore on one
//! thread, in virtual time. They work on a model of PostgreSQL and a disk in memory. The seed
//! decides all faults.
//!
//! A run is a function of its seed: a second run does the same to the last event. The production
//! code in it: `coordinator` with its workers, `transactions` with its worker, `adapters::funding`,
//! `engine::core::Core` with ledger, outcomes and replay, and the crate `wal` with its format, its
//! sync and its recovery. The other parts are replaced:
//!
//! - [`postgres`]: the tables and functions of PostgreSQL's schema, one transaction at a time,
//!   behind the `Store` seam; [`differential`] compares it with the real ones. [`transacted`]: the
//!   tables of transactions, behind the seam of their store ([`link`]); [`compared`] does the same.
//! - [`recharged`]: recharges have a world of their own, with a judge of their own.
//! - [`parties`]: the services that take part in transactions; [`callers`]: those that begin and
//!   decide them. One world in ten has some.
//! - [`spot`]: the ring and the engine's three threads as timers. The real ones are threads, and
//!   could not be replayed; the tests against the real binary drive them.
//! - [`process`]: a process that can be stopped and killed; [`time`] and [`chance`]: the seams for
//!   both.
//! - [`law`]: the judge, written from section 2 of the specification; and [`world`], which puts a
//!   run together.
//!
//! # Faults
//!
//! Calls of PostgreSQL find no connection, are lost, executed without an answer, executed late,
//! delivered twice or rolled back; or one call of a batch is blocked or refused. Orders of UBSCore
//! are lost, late, doubled, decided without an answer or turned away; a sync may take longer than
//! any caller waits. A process is killed, loses power with any unsynced sector, is stopped and
//! continues, is superseded while stopped or while running. PostgreSQL crashes; the gate is closed;
//! the disk is full. Strikes hit at named points: a flight that arrives or is done, a decision, a
//! sync, an answer to a client. Operators change statuses, have transfers tried at once, and
//! resolve them with or without need. Another session changes balances. Old rows of the journal are
//! deleted, down to the last one of each shard. Transactions set money of two users apart, round by
//! round, and settle or release it; they try what the rules of holds forbid as well. Services
//! answer late, twice, with garbage, or never. Callers decide over HTTP or in a session that holds
//! the row and may not wait for the disk; they abort meanwhile, repeat, go away.
//!
//! # Coverage of the judge
//!
//! Each bug of [`world::Bug`] is planted in the model or in the shim around the core, and must be
//! found within the seeds of `make test`. Seeds to the first broken law (2026-11-27; a change of
//! any plan changes them; a bug of transactions is sought only in the worlds that have some):
//!
//! | planted | seeds | law |
//! |---|---|---|
//! | a refund is keyed by req_id only | 2 | L4 only a recorded decision moves a state |
//! | a refusal is answered, not recorded | 1 | L3 answered is durable |
//! | a time-out compensates | 1 | D + R <= W <= 1 |
//! | COMMITTED is answered before the target's success is synced | 1 | L3 answered is durable |
//! | a ROLLBACK is taken for a COMMIT | 2 | each committed flight is sent once |
//! | idempotency by select without insert | 1 | L4 only a recorded decision moves a state |
//! | the fence does not compare the incarnation | 1 | L11 one incarnation writes |
//! | a flight commits after a later one | 1 | a flight that was given up never commits |
//! | outcomes are forgotten early | 1 | the watermark passes only ended transfers |
//! | a refund is refused for the account's status | 3 | a refund is never refused |
//! | a cid finds no earlier transfer | 1 | same cid, same answer |
//! | a status is answered and forgotten | 3 | an answered status holds |
//! | a sync returns before the disk has written | 8 | L3 durable is durable |
//! | UBSCore finds nothing recorded | 3 | L6 answered is final |
//! | an operator's refusal overrules a success | 27 | L4 only a recorded decision moves a state |
//! | an external operation is answered before its record | 1 | L3 answered is durable |
//! | a leg of the outside is answered before its record | 4 | a leg of the outside has its record |
//! | a deposit without a place is not decided | 131 | everything ends terminal |
//! | a flight commits without its predecessor | 1 | L11 one incarnation writes |
//! | a deletion of journal rows takes the last row | 1 | a flight that was given up never commits |
//! | a deletion of journal rows leaves a hole | 1 | L11 one incarnation writes |
//! | a balance is overwritten without a comparison | 4 | balances equal the journals |
//! | an absent journal row proves a rollback | 2 | each committed flight is sent once |
//! | a reply precedes the commit of its flight | 1 | each committed flight is sent once |
//! | money that is set apart stays available | 4 | balances equal the journals |
//! | a hold that was released is settled | 8 | a hold ends once |
//! | a repeat of a Settle settles again | 17 | a hold ends once |
//! | an abort of a name that is not there writes nothing | 13 | L3 answered is durable |
//! | a caller's commit does not look at the branches | 13 | L14 a commit has tried its branches |
//! | a decision compares no state and passes a held row | 139 | L14 a decision stands |
//! | money that arrives with a transaction can be used | 13 | balances equal the journals |
//! | writes of transactions do not compare the incarnation | 42 | L11 one incarnation writes |
//! | a caller's decision counts as sealed | 44 | nothing leaves before the seal |
//! | an operator ends a special account that is named | 13 | a place stays special |
//! | a round is accepted without a look at its special accounts | 13 | a place stays special |
//!
//! # Not covered
//!
//! The ring, the engine's and the runtime's threads and their races; HTTP; SQL itself, its locks
//! and deadlocks; `coordinator::watermark` and `coordinator::balances`, which access PostgreSQL
//! themselves (a raiser of the model replaces the first); snapshots and removed segments; the
//! audit; PostgreSQL that loses committed data; a disk that damages durable data. Several workers
//! and a closed gate do not meet in one run, because tokio wakes several watchers in an order of
//! its own.
//!
//! `UBSCORE_SIM_SEEDS=20000` runs more seeds, from `UBSCORE_SIM_FIRST=0` on. `UBSCORE_SIM_SEED=17`
//! runs one, and prints its events.

mod callers;
mod chance;
mod compared;
mod differential;
mod holder;
mod journal;
mod law;
mod link;
mod parties;
mod postgres;
mod process;
mod recharged;
mod special;
mod spot;
mod time;
mod transacted;
mod world;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use parking_lot::Mutex;

use self::law::Broken;
use self::world::{Bug, STRIKES, Tally, has_deals, run};

/// Seeds that `make test` runs; a planted bug must be found within them.
const SEEDS: u64 = 1_000;
const THREADS: u64 = 2;

/// The tally of a run, and its broken law, if any.
type Judged = (Tally, Result<(), Broken>);

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name}={text} is no number")))
}

/// RCV-009. Goal: no seed breaks a law. Method: run them, add up their tallies, and check that
/// every kind of event happened.
#[test]
fn no_seed_breaks_a_law() {
    if let Some(seed) = number("UBSCORE_SIM_SEED") {
        let (tally, judged) = run(seed, None, true);
        println!("{tally:?}");
        assert_eq!(judged, Ok(()), "seed {seed}");
        return;
    }
    let seeds = number("UBSCORE_SIM_SEEDS").unwrap_or(SEEDS);
    // A million seeds may be run in parts, also on several machines.
    let first = number("UBSCORE_SIM_FIRST").unwrap_or(0);
    let began = Instant::now();
    let next = AtomicU64::new(first);
    let done: Mutex<BTreeMap<u64, Judged>> = Mutex::default();
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= first + seeds {
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
    let mut transactions: BTreeMap<i16, u64> = BTreeMap::new();
    let (mut resolved, mut faults, mut events, mut virtual_ms) = (0, 0, 0, 0);
    let mut failed: Vec<u64> = Vec::new();
    for (seed, (tally, judged)) in done.into_inner() {
        for (state, count) in tally.endings {
            *endings.entry(state).or_default() += count;
        }
        for (state, count) in tally.transactions {
            *transactions.entry(state).or_default() += count;
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
        "{seeds} seeds from {first} in {:?}: {} s of virtual time, {events} events, {faults} faults, transfers by last state \
         {endings:?}, transactions {transactions:?}, {resolved} ended by operators, strikes {strikes:?}",
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
    for state in [40, -20] {
        assert!(transactions.contains_key(&state), "no transaction ended in {state}");
    }
    assert!(resolved > 0, "no operator has ended any");
    for strike in STRIKES {
        assert!(strikes.contains_key(&strike), "never: {strike:?}");
    }
}

/// Seeds from longer runs, with their errors; a change of any plan changes the events of a seed.
///
/// 14634: a search for a cid was blamed for its batch and parked. The accept before it in the same
/// batch was held back behind it, as if it had come later. The search found nothing, the client got
/// that answer, and the accept was made after all.
///
/// 69606 and 632244: a false alarm. A withdrawal rested on a deposit from outside of the same
/// flight, and the judge looked at the balance between the two.
const STORIES: [u64; 3] = [14_634, 69_606, 632_244];

#[test]
fn no_seed_of_a_story_breaks_a_law() {
    for seed in STORIES {
        assert_eq!(run(seed, None, false).1, Ok(()), "seed {seed}");
    }
}

/// Goal: a found error can be reproduced. Method: the same seed twice; digests of every event with
/// its time.
#[test]
fn a_seed_does_the_same_again() {
    for seed in 0..60 {
        assert_eq!(run(seed, None, false), run(seed, None, false), "seed {seed}");
    }
}

/// RCV-009. Goal: the judge detects known bugs. Method: each one, planted in the model or in the
/// shim around the core, until a law is broken.
#[test]
fn each_planted_bug_is_found() {
    let mut missed = Vec::new();
    for bug in Bug::ALL {
        let mut seeds = (0..SEEDS).filter(|seed| !bug.needs_transactions() || has_deals(*seed));
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
