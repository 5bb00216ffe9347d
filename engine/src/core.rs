//! The pinned loop: check, encode, append, apply; and beside it the thread that syncs and releases the answers of
//! everything the sync covered, and the one that prepares segments ahead.
//!
//! ```text
//!   ring --> core: step, append, apply --> log (mapped) <-- sync: msync, durable mark
//!                    |                                        |
//!                    +------ answers, in order ---------------+--> callers
//! ```

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use arrayvec::ArrayVec;
use bell::{Bell, Sleeper};
use crossbeam::queue::ArrayQueue;
use disruptor::Polling;
use domain::chain::chain;
use domain::shortage::{Capacity, Shortage};
use tracing::{info, warn};
use wal::{Medium, Sequence};

use super::ring::{Poller, Slot, Tickets};
use crate::command::Command;
use crate::entry::Entry;
use crate::ledger::{Answer, FORGET_LEAVES, FORGET_LOOKS, LOOK_AHEAD, Ledger, Step};
use crate::record::PAYLOAD_BYTES_MAX;
use crate::{LOG_TARGET, crash};

/// The most commands taken off the ring before their slots are free again.
const BATCH_MAX: u64 = 256;
/// Looks at the ring, with a pause each, before the core yields: about 20 us.
const SPINS: u32 = 1_000;
/// Yields before the core sleeps.
const YIELDS: u32 = 8;
/// Outcomes looked at in a turn without a command, and how many of them are forgotten: some 5 us, in which a command
/// may have to wait.
const IDLE_LOOKS: usize = 512;
const IDLE_LEAVES: usize = 8;
/// The longest sleep: a belt, since a bell ends every sleep that matters.
const SLEEP_MAX: Duration = Duration::from_secs(1);
/// How long the preparing thread sleeps when nobody rings.
const PREPARE_SLEEP: Duration = Duration::from_millis(100);
/// That many of them pass before a full disk is tried again.
const SPACE_LOOKS: u32 = 20;
/// New work is refused while the log has room for fewer bytes than this, so that refunds, statuses and marks of
/// what is under way still find theirs.
pub(super) const ROOM_RESERVED_BYTES: u64 = 8 * 1024;

/// An answer that leaves once `after` is durable.
struct Release {
    ticket: u32,
    after: Sequence,
    answer: Answer,
}

/// What the threads share.
pub(super) struct Shared {
    releases: ArrayQueue<Release>,
    pub(super) tickets: Arc<Tickets>,
    pub(super) log: wal::Durable,
    pub(super) core_bell: Arc<Bell>,
    pub(super) sync_bell: Arc<Bell>,
    pub(super) prepare_bell: Arc<Bell>,
    mark_wanted: AtomicBool,
    pub(super) stop: AtomicBool,
    core_stopped: AtomicBool,
    pub(super) outcomes: AtomicUsize,
    /// See [`Core::outcome_capacity`].
    pub(super) outcome_capacity: AtomicUsize,
    /// See [`Core::log_capacity`].
    pub(super) log_capacity: AtomicUsize,
    pub(super) accounts: AtomicUsize,
    pub(super) accounts_left: AtomicUsize,
    pub(super) balances: AtomicUsize,
    pub(super) balances_left: AtomicUsize,
    /// Bytes of the log's records since the start.
    pub(super) log_bytes: AtomicU64,
    /// Segments are removed as far as they hold no record from this one on.
    pub(super) remove_before: AtomicU64,
    pub(super) segments_removed: AtomicU64,
}

impl Shared {
    pub(super) fn new(
        tickets: Arc<Tickets>,
        releases_max: usize,
        log: wal::Durable,
        bells: [Arc<Bell>; 3],
    ) -> Shared {
        let [core_bell, sync_bell, prepare_bell] = bells;
        Shared {
            releases: ArrayQueue::new(releases_max),
            tickets,
            log,
            core_bell,
            sync_bell,
            prepare_bell,
            mark_wanted: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            core_stopped: AtomicBool::new(false),
            outcomes: AtomicUsize::new(0),
            outcome_capacity: AtomicUsize::new(0),
            log_capacity: AtomicUsize::new(0),
            accounts: AtomicUsize::new(0),
            accounts_left: AtomicUsize::new(0),
            balances: AtomicUsize::new(0),
            balances_left: AtomicUsize::new(0),
            log_bytes: AtomicU64::new(0),
            remove_before: AtomicU64::new(0),
            segments_removed: AtomicU64::new(0),
        }
    }
}

impl Shared {
    pub(super) fn publish<M: Medium>(&self, core: &Core<M>) {
        self.outcomes.store(core.ledger.outcome_count(), Ordering::Relaxed);
        self.outcome_capacity.store(core.outcome_capacity(), Ordering::Relaxed);
        self.log_capacity.store(core.log_capacity(), Ordering::Relaxed);
        let ledger = &core.ledger;
        self.accounts.store(ledger.account_count(), Ordering::Relaxed);
        self.accounts_left.store(ledger.accounts_left(), Ordering::Relaxed);
        self.balances.store(ledger.balance_count(), Ordering::Relaxed);
        self.balances_left.store(ledger.balances_left(), Ordering::Relaxed);
        self.log_bytes.store(core.log_bytes, Ordering::Relaxed);
    }
}

/// State and log together, without a thread: what the simulation drives one command at a time.
pub struct Core<M: Medium> {
    ledger: Ledger,
    writer: wal::Writer<M>,
    /// What a later record covers.
    marked: Sequence,
    time_ns: u64,
    /// Bytes of all records appended.
    log_bytes: u64,
    payload: [u8; PAYLOAD_BYTES_MAX],
}

impl<M: Medium> Core<M> {
    /// A core whose ledger holds everything the log holds.
    pub fn new(ledger: Ledger, writer: wal::Writer<M>) -> Core<M> {
        assert_eq!(ledger.sequence(), writer.appended(), "the ledger is not the log's");
        let marked = ledger.sequence();
        Core { ledger, writer, marked, time_ns: 0, log_bytes: 0, payload: [0; PAYLOAD_BYTES_MAX] }
    }

    /// Decides one command. The answer may leave once the returned sequence is durable.
    pub fn decide(&mut self, command: &Command, time_ns: u64) -> (Answer, Sequence) {
        self.time_ns = time_ns;
        let answer = match self.ledger.step(command) {
            Step::Append(_) if opens_work(command) && self.writer.room() < ROOM_RESERVED_BYTES => {
                Answer::Overloaded
            }
            Step::Append(entry) => self.append(&entry),
            // What is known may have been decided a moment ago: a repeat waits for the same sync.
            Step::Known(answer) => answer,
            Step::Violation(why) => Answer::Violation(why),
            Step::Full(_) => Answer::Overloaded,
            Step::Forgotten => Answer::Forgotten,
        };
        // After any command, recorded or not: a full map must come free by the commands that it refuses.
        self.ledger.forget(FORGET_LOOKS, FORGET_LEAVES);
        (answer, self.ledger.sequence())
    }

    /// Forgets some of what is below the watermark while nothing else is to be done; whether more is left.
    pub fn forget(&mut self) -> bool {
        self.ledger.forget(IDLE_LOOKS, IDLE_LEAVES);
        !self.ledger.has_forgotten()
    }

    /// Appends before it applies: when the log has no room, nothing has happened.
    fn append(&mut self, entry: &Entry) -> Answer {
        let length = entry.encode(&mut self.payload);
        let payload = &self.payload[..length];
        crash::point("engine_before_append");
        match self.writer.append(entry.kind() as u8, self.time_ns, payload) {
            Ok(sequence) => {
                self.log_bytes += wal::record_bytes(length);
                self.ledger.apply(entry, sequence, self.time_ns)
            }
            Err(wal::Error::Full) => Answer::Overloaded,
            Err(error) => panic!("append to the log: {error}"),
        }
    }

    /// Appends a mark, so that the last batch too is covered by a later record's durable mark; nothing where it is.
    pub fn mark(&mut self) {
        let last = self.ledger.sequence();
        if last > self.marked {
            let durable = self.writer.durable();
            // Without room the mark is left out: it only narrows what recovery has to take for a tear.
            self.append(&Entry::Mark);
            // An order that came between the wish for a mark and the mark itself is covered by the next one only.
            if durable >= last {
                self.marked = self.ledger.sequence();
            }
        }
    }

    /// How many transfers the outcome map has room to see through: each may need a withdraw and a refund.
    fn outcome_capacity(&self) -> usize {
        self.ledger.places_left() / 2
    }

    /// The same of the log.
    fn log_capacity(&self) -> usize {
        let bytes = self.writer.room().saturating_sub(ROOM_RESERVED_BYTES);
        let records = bytes / wal::record_bytes(PAYLOAD_BYTES_MAX);
        usize::try_from(records / 2).unwrap_or(usize::MAX)
    }

    /// How many transfers there is room to see through, and the table or file that bounds them.
    pub fn capacity(&self) -> Capacity {
        capacity(self.outcome_capacity(), self.log_capacity())
    }

    /// The state.
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }
}

/// The capacity of everything that a transfer needs of UBSCore.
pub(super) fn capacity(outcomes: usize, log: usize) -> Capacity {
    let outcomes = Capacity { transfers: outcomes, bound_by: Shortage::Outcomes };
    outcomes.min(Capacity { transfers: log, bound_by: Shortage::LogSpace })
}

/// Whether a command begins something that may need the log again, as opposed to ending it, or can wait for room.
fn opens_work(command: &Command) -> bool {
    let begins = matches!(command, Command::Order(order) if order.op.row().opens_work);
    begins || *command == Command::Digest
}

/// The core thread, until [`Shared::stop`] is set and the ring is empty.
pub(super) fn run<M: Medium>(
    mut core: Core<M>,
    mut poller: Poller,
    sleeper: &Sleeper,
    shared: &Shared,
    busy: bool,
) {
    let mut idle: u32 = 0;
    loop {
        match poller.take(BATCH_MAX) {
            Ok(mut slots) => {
                idle = 0;
                let mut waiting = false;
                let mut rest = &mut slots;
                loop {
                    let ahead: ArrayVec<&Slot, LOOK_AHEAD> =
                        rest.by_ref().take(LOOK_AHEAD).collect();
                    if ahead.is_empty() {
                        break;
                    }
                    let orders = ahead.iter().filter_map(|slot| slot.command.order());
                    core.ledger.expect(orders);
                    for slot in ahead {
                        let (answer, after) = core.decide(&slot.command, slot.time_ns);
                        if after <= shared.log.durable() {
                            shared.tickets.answer(slot.ticket, answer);
                            continue;
                        }
                        let release = Release { ticket: slot.ticket, after, answer };
                        // As many places as tickets, so there is one.
                        assert!(shared.releases.push(release).is_ok(), "no place for an answer");
                        waiting = true;
                    }
                }
                drop(slots);
                shared.publish(&core);
                if waiting {
                    shared.sync_bell.ring();
                }
                continue;
            }
            Err(Polling::NoEvents) => {}
            Err(Polling::Shutdown) => break,
        }
        if shared.mark_wanted.swap(false, Ordering::Relaxed) {
            core.mark();
            shared.sync_bell.ring();
        }
        if shared.stop.load(Ordering::Acquire) {
            break;
        }
        if core.forget() {
            // Not idle yet.
            idle = 0;
            shared.publish(&core);
            continue;
        }
        idle = idle.wrapping_add(1);
        if idle.is_multiple_of(SPINS) {
            // Segments may have been prepared meanwhile.
            shared.publish(&core);
        }
        if busy || idle < SPINS {
            std::hint::spin_loop();
        } else if idle < SPINS + YIELDS {
            std::thread::yield_now();
        } else {
            let work = || {
                poller.has_available()
                    || shared.mark_wanted.load(Ordering::Relaxed)
                    || shared.stop.load(Ordering::Relaxed)
            };
            sleeper.sleep(work, SLEEP_MAX);
            // Awake without work: look at the room again, but do not spin before the next sleep.
            idle = SPINS - 1;
        }
    }
    core.mark();
    shared.core_stopped.store(true, Ordering::Release);
    shared.sync_bell.ring();
}

/// The sync thread: the sync in flight is the batching window of the next one, and nothing waits for a timer.
///
/// `around_sync`: calls each sync. `idle_mark`: after this long without a record, a mark is asked for once.
///
/// # Errors
/// The log's first failed sync. What was not answered by then must never be.
pub(super) fn release<M: Medium>(
    mut syncer: wal::Syncer<M>,
    mut around_sync: impl FnMut(&mut dyn FnMut()),
    sleeper: &Sleeper,
    shared: &Shared,
    idle_mark: Duration,
) -> Result<(), wal::Error> {
    let mut durable = shared.log.durable();
    // The sequence a mark has or would have: nothing behind it needs another.
    let mut marked = durable;
    let mut held: Option<Release> = None;
    loop {
        // Read first: a core that had stopped before has nothing more to append or to answer.
        let last_turn = shared.core_stopped.load(Ordering::Acquire);
        if shared.log.appended() > durable {
            crash::point("engine_before_sync");
            let mut synced = None;
            around_sync(&mut || synced = Some(syncer.sync()));
            durable = synced.expect("it was called")?;
            crash::point("engine_after_sync");
            shared.prepare_bell.ring();
        }
        while let Some(release) = held.take().or_else(|| shared.releases.pop()) {
            if release.after > durable {
                held = Some(release);
                break;
            }
            shared.tickets.answer(release.ticket, release.answer);
        }
        if held.is_some() || shared.log.appended() > durable {
            continue;
        }
        if last_turn {
            return Ok(());
        }
        let work = || {
            shared.log.appended() > durable
                || !shared.releases.is_empty()
                || shared.core_stopped.load(Ordering::Relaxed)
        };
        let nap = if durable == marked { SLEEP_MAX } else { idle_mark };
        sleeper.sleep(work, nap);
        if !work() && durable != marked {
            marked = durable + 1;
            shared.mark_wanted.store(true, Ordering::Relaxed);
            shared.core_bell.ring();
        }
    }
}

/// The preparing thread. Want of space is reported and tried again: the core refuses new work meanwhile.
///
/// # Errors
/// A segment that could not be prepared for another reason, or a sync of the directory: the log is dead.
pub(super) fn prepare<M: Medium>(
    mut preparer: wal::Preparer<M>,
    sleeper: &Sleeper,
    shared: &Shared,
    no_space: impl Fn(&wal::Error),
) -> Result<(), wal::Error> {
    let mut looks_without_space: u32 = 0;
    let mut removed_before = 0;
    while !shared.stop.load(Ordering::Acquire) {
        let remove_before = shared.remove_before.load(Ordering::Acquire);
        // First, since on a full disk it is what makes space.
        if remove_before > removed_before {
            remove(&mut preparer, remove_before, shared)?;
            removed_before = remove_before;
        }
        if !looks_without_space.is_multiple_of(SPACE_LOOKS) {
            // By the clock and not by the bell: it rings with every sync, and each try takes what little is left.
            std::thread::sleep(PREPARE_SLEEP);
            looks_without_space += 1;
            continue;
        }
        match preparer.tick() {
            // There is more to do, a step at a time, so that it never stands long in a sync's way.
            Ok(wal::Progress::Busy) => continue,
            Ok(wal::Progress::Idle) => looks_without_space = 0,
            Err(error @ wal::Error::Space { .. }) => {
                no_space(&error);
                looks_without_space = 1;
                continue;
            }
            Err(error) => return Err(error),
        }
        sleeper.sleep(|| false, PREPARE_SLEEP);
    }
    Ok(())
}

/// Removes segments that snapshots cover. What cannot be removed stays until the next time.
///
/// # Errors
/// [`wal::Error::Sync`]: the log is poisoned.
fn remove<M: Medium>(
    preparer: &mut wal::Preparer<M>,
    before: Sequence,
    shared: &Shared,
) -> Result<(), wal::Error> {
    match preparer.remove_before(before) {
        Ok(removed) => {
            shared.segments_removed.fetch_add(removed, Ordering::Relaxed);
            if removed > 0 {
                info!(target: LOG_TARGET, removed, before, "segments that snapshots cover are removed");
            }
            crash::point("snapshot_after_segments");
        }
        Err(error @ (wal::Error::Sync { .. } | wal::Error::Poisoned)) => return Err(error),
        Err(error) => {
            warn!(target: LOG_TARGET, error = chain(&error), "old segments stay until the next snapshot")
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use domain::account::AccountStatus;
    use domain::transfer::{Decision, Direction, Op};
    use wal::memory::Memory;
    use wal::{Directory, Identity, Log, Options, Recovery};

    use super::*;
    use crate::fact::Fact;
    use crate::order::Order;
    use crate::places::Places;
    use crate::text::Text;

    const OUTCOMES_MAX: usize = 2_000;

    fn core() -> (Core<Memory>, wal::Durable) {
        let mut recovery = Recovery::open(Memory::new(), 0, 0).expect("a directory");
        assert_eq!(recovery.next().expect("a log"), None);
        let options = Options { segment_bytes: 1 << 20, spares_ready: 1 };
        let (log, _report) = recovery.start(Identity(1), options).expect("a segment");
        let Log { writer, durable, .. } = log;
        let places = Places { accounts_max: 1, outcomes_max: OUTCOMES_MAX };
        let mut core = Core::new(Ledger::new(places), writer);
        let symbol = Text::new("USDT").expect("short");
        core.decide(&Command::RegisterAsset { asset: 3, precision: 8, symbol }, 0);
        (core, durable)
    }

    /// Story: an order that came just before a mark was appended was not covered by it, and no other mark came: damage to that
    /// order looked like a torn end, though it had been answered.
    #[test]
    fn an_order_that_comes_before_its_mark_is_covered_by_the_next_one() {
        let mut recovery = Recovery::open(Memory::new(), 0, 0).expect("a directory");
        assert_eq!(recovery.next().expect("a log"), None);
        let options = Options { segment_bytes: 1 << 20, spares_ready: 1 };
        let (log, _report) = recovery.start(Identity(1), options).expect("a segment");
        let Log { writer, mut syncer, .. } = log;
        let places = Places { accounts_max: 1, outcomes_max: OUTCOMES_MAX };
        let mut core = Core::new(Ledger::new(places), writer);
        let symbol = Text::new("USDT").expect("short");
        core.decide(&Command::RegisterAsset { asset: 3, precision: 8, symbol }, 0);
        let mut mark = || {
            let before = core.ledger.sequence();
            core.mark();
            syncer.sync().expect("synced");
            core.ledger.sequence() - before
        };
        // It does not know the asset durable; the next one does, and is the last.
        assert_eq!([mark(), mark(), mark()], [1, 1, 0]);
    }

    fn deposit(number: u64) -> Command {
        Command::Order(Order {
            op: Op::Deposit,
            req_id: u128::from(number) + 1,
            cid: Text::EMPTY,
            user: 7,
            asset: 3,
            amount: 1,
            direction: Direction::FundingToSpot,
            order_number: number,
        })
    }

    fn succeeds(core: &mut Core<Memory>, number: u64) -> bool {
        match core.decide(&deposit(number), 0).0 {
            Answer::Decided(recorded) => recorded.decision == Decision::Success,
            Answer::Overloaded => false,
            other => panic!("{other:?}"),
        }
    }

    /// Goal: neither a raised watermark nor a full map stops the core. Method: a full map, a watermark above all of
    /// it, and then only commands, each of which may forget no more than its share; counted, not timed.
    #[test]
    fn a_full_map_comes_free_by_the_commands_after_a_raise() {
        let (mut core, _durable) = core();
        let full = OUTCOMES_MAX as u64;
        assert!((0..full).all(|number| succeeds(&mut core, number)));
        assert!(!succeeds(&mut core, full), "there was a place");
        core.decide(&Command::RaiseWatermark { order_number: full }, 0);
        let mut held = core.ledger().outcome_count();
        let mut number = full;
        // The slowest way: each command takes a place where there is one.
        while !core.ledger().has_forgotten() {
            number += 1;
            succeeds(&mut core, number);
            let now = core.ledger().outcome_count();
            assert!(now + FORGET_LEAVES >= held, "{held} held, then {now}");
            held = now;
            assert!(number < 3 * full, "{held} held after {number} commands");
        }
        let oldest = core.ledger().facts().filter_map(|fact| match fact {
            Fact::Outcome { recorded, .. } => Some(recorded.order_number),
            _ => None,
        });
        assert!(oldest.min() > Some(full));
    }

    #[test]
    fn without_commands_the_core_forgets_by_itself() {
        let (mut core, _durable) = core();
        assert!((0..1_000).all(|number| succeeds(&mut core, number)));
        core.decide(&Command::RaiseWatermark { order_number: 900 }, 0);
        let mut turns = 0;
        let mut held = core.ledger().outcome_count();
        while core.forget() {
            turns += 1;
            let now = core.ledger().outcome_count();
            assert!(now + IDLE_LEAVES >= held, "{held} held, then {now}");
            held = now;
            assert!(turns < 1_000, "{held} held");
        }
        assert_eq!(core.ledger().outcome_count(), 100);
        assert_eq!(core.ledger().places_left(), OUTCOMES_MAX - 100);
    }

    /// Goal: the core takes no memory from the system while it works. Method: every kind of command, answered in every way,
    /// over a log on the disk, and the watermark behind them; what this thread allocates is counted.
    #[test]
    fn a_working_core_takes_no_memory() {
        let directory = tempfile::tempdir().expect("a directory");
        let log_dir = Directory::create(directory.path().join("wal")).expect("a directory");
        let options = Options { segment_bytes: 4 << 20, spares_ready: 1 };
        let recovery = Recovery::open(log_dir, 0, 0).expect("no log");
        let (log, _report) = recovery.start(Identity(1), options).expect("a segment");
        let places = Places { accounts_max: 100, outcomes_max: 10_000 };
        let mut core = Core::new(Ledger::new(places), log.writer);
        let symbol = Text::new("USDT").expect("short");
        core.decide(&Command::RegisterAsset { asset: 3, precision: 8, symbol }, 0);
        let mut work = |numbers: std::ops::Range<u64>| {
            for number in numbers {
                let user = number % 100 + 1;
                let order = |op, amount| {
                    let Command::Order(order) = deposit(number) else { unreachable!() };
                    Command::Order(Order { op, user, amount, order_number: number, ..order })
                };
                for command in [
                    order(Op::Deposit, 5),
                    order(Op::Deposit, 5),
                    order(Op::Deposit, 6),
                    order(Op::Withdraw, 1 + number % 9),
                    order(Op::Refund, 1 + number % 9),
                    Command::SetStatus { user, status: AccountStatus::Active },
                    Command::ReadBalance { user, asset: 3 },
                    Command::Query { req_id: u128::from(number), op: Op::Deposit },
                    Command::RaiseWatermark { order_number: number / 2 },
                    Command::Digest,
                ] {
                    core.decide(&command, number);
                }
            }
        };
        // What is set up at the first use is no steady state.
        work(1..10);
        let taken = allocation_counter::measure(|| work(10..2_000));
        assert_eq!(taken.count_total, 0, "{taken:?}");
        let seen = allocation_counter::measure(|| drop(std::hint::black_box(Box::new(1))));
        assert_eq!(seen.count_total, 1, "a box is not counted");
        assert!(core.ledger().sequence() > 5_000, "not worked");
    }
}
