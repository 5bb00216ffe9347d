//! Lives of processes from a seed: the production core, ledger and log over a disk in memory. Each
//! process starts from the log that the one before has left.

use wal::memory::Memory;
use wal::{Identity, Log, Options, Progress, Recovery};

use super::*;
use crate::core::Core;
use crate::replay::Replay;

/// Large enough for the reserve of new work.
const SEGMENT_BYTES: u64 = 128 * 1024;

/// A broken law.
#[derive(Debug)]
pub(super) struct Broken(pub(super) String);

pub(super) fn ensure(right: bool, broken: impl FnOnce() -> String) -> Result<(), Broken> {
    if right { Ok(()) } else { Err(Broken(broken())) }
}

/// Numbers from a seed.
pub(super) struct Chance(u64);

impl Chance {
    pub(super) fn new(seed: u64) -> Chance {
        Chance(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) + 1)
    }

    pub(super) fn below(&mut self, end: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }

    pub(super) fn one_in(&mut self, end: u64) -> bool {
        self.below(end) == 0
    }
}

/// One process. `T`: an answer that waits for its record.
pub(super) struct Process<T> {
    pub(super) core: Core<Memory>,
    syncer: wal::Syncer<Memory>,
    preparer: wal::Preparer<Memory>,
    pub(super) waiting: Vec<T>,
}

impl<T> Process<T> {
    /// Replays the log of a disk into an empty ledger, and goes on from there.
    pub(super) fn start(disk: &Memory, ledger: Ledger) -> Result<Process<T>, Broken> {
        let unreplayed = |error: replay::Error| Broken(format!("a log replays: {error}"));
        let mut recovery = Recovery::open(disk.clone(), 0, 1).expect("no damage");
        let mut replay = Replay::begin(None, ledger).expect("nothing to load");
        while let Some(record) = recovery.next().expect("no damage") {
            replay.take(&record).map_err(unreplayed)?;
        }
        let ledger = replay.finish().map_err(unreplayed)?;
        let options = Options { segment_bytes: SEGMENT_BYTES, spares_ready: 2 };
        let (log, _) = recovery.start(Identity(7), options).expect("space");
        let Log { writer, syncer, preparer, .. } = log;
        Ok(Process { core: Core::new(ledger, writer), syncer, preparer, waiting: Vec::new() })
    }

    /// Makes all records durable. Returns the answers that have waited.
    pub(super) fn sync(&mut self) -> Vec<T> {
        while self.preparer.tick().expect("memory") == Progress::Busy {}
        self.syncer.sync().expect("memory");
        std::mem::take(&mut self.waiting)
    }
}

/// The disk that a process leaves: it is killed, or its power is cut.
pub(super) fn left_behind(disk: &Memory, chance: &mut Chance) -> Memory {
    match chance.one_in(2) {
        true => disk.kill(),
        false => disk.crash(|| chance.one_in(2)),
    }
}

/// The ledger that the facts of another one lead to.
pub(super) fn of_facts(ledger: &Ledger, places: Places) -> Result<Ledger, Broken> {
    let mut builder = Builder::new(Ledger::new(places));
    let added = ledger.facts().try_for_each(|fact| builder.add(fact));
    let restored = added.and_then(|()| builder.finish(ledger.sequence(), ledger.digest()));
    restored.map_err(|error| Broken(format!("the facts add up: {error}")))
}

/// A model's balances and accounts follow a transfer that succeeded, or a status.
pub(super) fn follow<K: Ord>(
    command: &Asked,
    answer: Answer,
    available: &mut BTreeMap<K, u64>,
    key: impl FnOnce(u64, u32) -> K,
    accounts: &mut BTreeMap<u64, AccountStatus>,
) {
    match (command, answer) {
        (Asked::Order(order), Answer::Decided(recorded))
            if recorded.decision == Decision::Success =>
        {
            accounts.entry(order.user).or_insert(AccountStatus::Active);
            let balance = available.entry(key(order.user, order.asset)).or_default();
            *balance = match order.op.takes() {
                true => *balance - order.amount,
                false => *balance + order.amount,
            };
        }
        (Asked::SetStatus { user, status }, _) => {
            accounts.insert(*user, *status);
        }
        _ => {}
    }
}
