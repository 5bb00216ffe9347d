//! The loops of the engine's three threads. The core thread decides, appends and applies. The sync
//! thread syncs the log and releases the answers that the sync covers. The preparing thread makes
//! segments ahead.
//!
//! ```text
//!   ring --> core: step, append, apply --> log (mapped) <-- sync: msync, durable mark
//!                    |                                        |
//!                    +------ answers, in order ---------------+--> callers
//! ```
//!
//! For a command without company, a wake of the sync thread takes half as long as the sync, and the
//! core thread has nothing else to do. So the core thread syncs and answers by itself, if all of
//! these hold after its decision:
//!
//! - Its answer is the only pending one. So the ring is empty and no other answer waits.
//! - The sync thread is idle: [`Disk`] is not locked.
//! - The sync thread sent at most one answer when it was last at work. Under a load the first of
//!   many orders is often alone for a moment, and a sync of its own costs the others a sync.
//!
//! A command that arrives during such a sync waits for it, and also waits for a sync of the sync
//! thread: no answer overtakes the records before it. The tickets bound the ring in both cases.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use arrayvec::ArrayVec;
use bell::Sleeper;
use disruptor::Polling;
use domain::chain::chain;
use domain::transfer::Decision;
use parking_lot::{Mutex, MutexGuard};
use tracing::{info, warn};
use wal::{Medium, Sequence};

use crate::command::Command;
use crate::core::{Core, Numbered, Sent};
use crate::crash;
use crate::ledger::{Answer, LOOK_AHEAD, ROWS_READ_MAX};
use crate::line::{Line, Told};
use crate::notice::LOG_TARGET;
use crate::op::number::NumberedAnswer;
use crate::posted::Posted;
use crate::ring::{Poller, Slot, Work};
use crate::shared::{Release, Shared};
use crate::venue::{Look, Reason, Reply, Timed};

/// The most commands taken off the ring before their slots are free again.
pub(crate) const BATCH_MAX: u64 = 256;
/// Looks at the ring, with a pause each, before the core thread yields: about 20 us.
const SPINS: u32 = 1_000;
/// Yields before the core thread sleeps.
const YIELDS: u32 = 8;
/// The wait that a venue is asked for when it must try again, ms.
const RETRY_MS: u32 = 1_000;
/// One command of a venue in so many is measured: two looks at a clock take as long as a decision.
const TIMED_EACH: u32 = 64;
/// The longest sleep. It is a precaution: a bell ends every sleep that matters. Tests would not
/// notice a missing bell behind it.
const SLEEP_MAX: Duration = Duration::from_secs(if cfg!(test) { 3_600 } else { 1 });
/// The sleep of the preparing thread without a bell.
const PREPARE_SLEEP: Duration = Duration::from_millis(100);
/// Sleeps of the preparing thread between two tries on a full disk.
const SPACE_LOOKS: u32 = 20;

/// The log's syncer. The thread with its lock syncs, and then sends the answers. So one sync is
/// under way at a time, and the answers keep their order. The core thread only tries the lock.
pub(crate) struct Disk<M: Medium, F> {
    syncer: wal::Syncer<M>,
    around_sync: F,
    /// The sync thread sent several answers when it was last at work.
    crowded: bool,
    /// See `Streams::decided`: as far as the sessions are woken.
    decided: u64,
}

impl<M: Medium, F: FnMut(&mut dyn FnMut())> Disk<M, F> {
    /// `around_sync` calls each sync.
    pub(crate) fn new(syncer: wal::Syncer<M>, around_sync: F) -> Mutex<Disk<M, F>> {
        Mutex::new(Disk { syncer, around_sync, crowded: false, decided: 0 })
    }

    /// Makes all records durable that are appended by now. Returns the durable mark.
    fn sync(&mut self, shared: &Shared) -> Result<Sequence, wal::Error> {
        let before = shared.log.durable();
        if shared.log.appended() == before {
            return Ok(before);
        }
        let Disk { syncer, around_sync, .. } = self;
        crash::point("engine_before_sync");
        let mut synced = None;
        around_sync(&mut || synced = Some(syncer.sync()));
        let durable = synced.expect("around_sync calls the sync")?;
        assert!(durable >= before, "{durable} is durable after {before}");
        crash::point("engine_after_sync");
        Ok(durable)
    }

    /// Syncs and answers until no record and no answer waits. Records that are appended during a
    /// sync form the next batch: no timer waits. Returns `Streams::decided`, as far as the sessions
    /// are woken.
    fn answer_all(&mut self, shared: &Shared) -> Result<u64, wal::Error> {
        let (mut answers, mut held, mut woken) = (0_u64, None, self.decided);
        loop {
            let before = shared.log.durable();
            let durable = self.sync(shared)?;
            if durable > before {
                shared.prepare_bell.ring();
            }
            // A sync may cover a record whose reply is told a moment later.
            let decided = shared.streams.decided.load(Ordering::Acquire);
            if durable > before || decided != woken {
                shared.streams.wake();
                woken = decided;
            }
            while let Some(release) = held.take().or_else(|| shared.releases.pop()) {
                if release.after > durable {
                    held = Some(release);
                    break;
                }
                shared.tickets.answer(release.ticket, release.answer);
                answers += 1;
            }
            if held.is_none() && shared.log.appended() == durable {
                self.crowded = answers + (decided - self.decided) > 1;
                self.decided = decided;
                return Ok(decided);
            }
        }
    }
}

/// The core thread. It ends once [`Shared::stop`] is set and the ring is empty.
///
/// # Errors
/// The log's first failed sync, if the core thread made it. The answer is not sent.
pub(crate) fn run<M: Medium>(
    core: &mut Core<M>,
    poller: &mut Poller,
    disk: &Mutex<Disk<M, impl FnMut(&mut dyn FnMut())>>,
    sleeper: &Sleeper,
    shared: &Shared,
    busy: bool,
) -> Result<(), wal::Error> {
    let mut idle: u32 = 0;
    let mut lines = Lines::default();
    loop {
        match poller.take(BATCH_MAX) {
            Ok(mut slots) => {
                idle = 0;
                let waiting = decide_all(&mut &mut slots, core, shared, &mut lines);
                drop(slots);
                shared.publish(core);
                if waiting > 0 && !answer_alone(disk, waiting, core.marked(), shared)? {
                    shared.sync_bell.ring();
                }
                continue;
            }
            Err(Polling::NoEvents) => {}
            Err(Polling::Shutdown) => break,
        }
        if shared.mark_wanted.swap(false, Ordering::Relaxed) {
            core.mark();
            shared.publish(core);
            shared.sync_bell.ring();
        }
        if shared.stop.load(Ordering::Acquire) {
            break;
        }
        if core.forget() {
            // Outcomes are left to evict: the core is not idle yet.
            idle = 0;
            shared.publish(core);
            continue;
        }
        idle = idle.wrapping_add(1);
        if idle.is_multiple_of(SPINS) {
            // New segments may be ready: publish the log's room again.
            shared.publish(core);
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
            // Awake without work: publish the room again, but do not spin before the next sleep.
            idle = SPINS - 1;
        }
    }
    core.mark();
    shared.core_stopped.store(true, Ordering::Release);
    shared.sync_bell.ring();
    Ok(())
}

/// Decides the commands of a batch, and answers those with durable records. Returns the number of
/// answers that wait for a sync.
fn decide_all<'a, M: Medium>(
    slots: &mut impl Iterator<Item = &'a Slot>,
    core: &mut Core<M>,
    shared: &Shared,
    lines: &mut Lines,
) -> usize {
    let mut waiting = 0;
    loop {
        let ahead: ArrayVec<&Slot, LOOK_AHEAD> = slots.by_ref().take(LOOK_AHEAD).collect();
        if ahead.is_empty() {
            return waiting;
        }
        core.expect(ahead.iter().filter_map(|slot| slot.work.order()));
        for slot in ahead {
            let (ticket, answer, after) = match slot.work {
                Work::Asked { ticket, ref command } => {
                    let (answer, after) = core.decide(command, slot.time_ns);
                    fence(command, &answer, core, shared);
                    (ticket, answer, after)
                }
                Work::Holds { ticket, venue, epoch, after } => {
                    let after = read_holds(core, shared, (venue, epoch), after);
                    (ticket, Answer::Done, after)
                }
                Work::Look { ticket, look } => (ticket, Answer::Done, read(core, shared, look)),
                Work::Named { ticket, cell } => {
                    let (answer, after) =
                        core.name(&mut shared.slab.cell(cell).lock(), slot.time_ns);
                    shared.slab.give_back(cell);
                    (ticket, answer, after)
                }
                Work::Numbered { venue, epoch, cell } => {
                    let mut posted = shared.streams.cell(cell).lock();
                    waiting += usize::from(lines.number(
                        &mut posted,
                        (venue, epoch),
                        slot.time_ns,
                        core,
                        shared,
                    ));
                    drop(posted);
                    shared.streams.give_back(cell);
                    continue;
                }
            };
            if after <= shared.log.durable() {
                shared.tickets.answer(ticket, answer);
                continue;
            }
            let release = Release { ticket, after, answer };
            // There are as many places as tickets.
            assert!(shared.releases.push(release).is_ok(), "no place for an answer");
            waiting += 1;
        }
    }
}

/// Ends the sessions that an Open or a close shuts out.
fn fence<M: Medium>(command: &Command, answer: &Answer, core: &Core<M>, shared: &Shared) {
    match (command, answer) {
        (Command::OpenVenue { id, .. }, Answer::Opened { epoch, .. }) => {
            shared.streams.fence(*id, *epoch - 1);
        }
        (Command::CloseVenue { id, closed: true }, Answer::Done) => {
            let venue = core.ledger().venue_state(*id).expect("it is closed");
            shared.streams.fence(*id, venue.epoch);
        }
        _ => {}
    }
}

/// Reads holds into the line of a venue's session. Returns the last record that they include.
/// An earlier session gets no page: the line is another's.
fn read_holds<M: Medium>(
    core: &Core<M>,
    shared: &Shared,
    (venue, epoch): (u32, u64),
    after: u64,
) -> Sequence {
    let position = core.ledger().sequence();
    if let Some(line) = shared.streams.line_of(venue).filter(|line| line.epoch == epoch) {
        let mut read = line.holds.lock();
        read.holds.clear();
        read.position = position;
        read.next = core.ledger().holds_of(venue, after, ROWS_READ_MAX, &mut read.holds);
    }
    position
}

/// Reads rows for operators. Returns the last record that they include.
fn read<M: Medium>(core: &Core<M>, shared: &Shared, look: Look) -> Sequence {
    let (ledger, mut page) = (core.ledger(), shared.page.lock());
    page.venues.clear();
    page.holds.clear();
    (page.next, page.more, page.position) = (None, false, ledger.sequence());
    match look {
        Look::Venues => ledger.venues(&mut page.venues),
        Look::Holds { before } => {
            page.next = ledger.holds_below(before, ROWS_READ_MAX, &mut page.holds);
        }
        Look::Hold { venue, number } => page.holds.extend(ledger.hold(venue, number)),
        Look::Transaction { transaction } => {
            page.holds.extend(ledger.transaction_holds(transaction));
        }
        Look::Balance { user, asset } => {
            page.balance = (ledger.available(user, asset), ledger.held(user, asset));
            page.holds.extend(ledger.held_of(user, asset, ROWS_READ_MAX + 1));
            page.more = page.holds.len() > ROWS_READ_MAX;
            page.holds.truncate(ROWS_READ_MAX);
        }
    }
    page.position
}

/// The core thread's view of the lines.
#[derive(Default)]
struct Lines {
    known: Vec<Known>,
    /// Commands taken.
    taken: u32,
}

/// A session that has sent a command.
struct Known {
    line: Arc<Line>,
    /// A Back was sent: later numbers are dropped until this one comes.
    due: Option<u64>,
    /// A Close was sent: everything is dropped.
    ended: bool,
}

impl Lines {
    /// Takes one command of a session and replies. Returns whether the reply waits for a sync.
    fn number<M: Medium>(
        &mut self,
        posted: &mut Posted,
        (venue, epoch): (u32, u64),
        time_ns: u64,
        core: &mut Core<M>,
        shared: &Shared,
    ) -> bool {
        let is_timed = self.taken.is_multiple_of(TIMED_EACH);
        self.taken = self.taken.wrapping_add(1);
        // Without a line a newer session is open: the core would not decide it.
        let Some(known) = self.of(venue, epoch, shared) else { return false };
        let line = &known.line;
        if line.replies.fenced() {
            // A close has ended it, even if the venue is open again.
            return false;
        }
        if known.ended {
            line.replies.tell(Told::Dropped);
            return false;
        }
        let sent = Sent {
            epoch,
            acknowledged: line.acknowledged.load(Ordering::Relaxed),
            halt: shared.streams.halt(),
            told: line.told,
        };
        let number = posted.number;
        let (durable, before) = (shared.log.durable(), core.ledger().sequence());
        let numbered = match is_timed {
            true => measure(time_ns, shared, || core.number(posted, sent, time_ns)),
            false => core.number(posted, sent, time_ns),
        };
        let told = match numbered {
            Numbered::Fenced => {
                line.replies.fence();
                return false;
            }
            Numbered::Answer(NumberedAnswer { decision, leg, record }) => {
                // A repeat of an older number does not end the wait.
                known.due = known.due.filter(|due| *due != number);
                let code = match decision {
                    Decision::Success => None,
                    Decision::Refused(code) => Some(code),
                };
                if record > before {
                    shared.count(posted, code);
                }
                line.replies.tell(Told::Reply(Reply::Answer { number, code, leg, record }));
                if record > durable {
                    shared.streams.decided.fetch_add(1, Ordering::Release);
                    return true;
                }
                line.replies.wake();
                return false;
            }
            Numbered::Back { reason: Reason::Gap, .. } if known.due.is_some() => Told::Dropped,
            Numbered::Back { number, reason } => {
                known.due = Some(number);
                Told::Reply(back(number, reason))
            }
            Numbered::Close(reason) => {
                known.ended = true;
                Told::Reply(Reply::Close { number, reason })
            }
        };
        line.replies.tell(told);
        line.replies.wake();
        false
    }

    /// The line of a session; `None` if it is gone.
    fn of(&mut self, venue: u32, epoch: u64, shared: &Shared) -> Option<&mut Known> {
        let of_venue = |known: &Known| known.line.venue == venue;
        let found = self.known.iter().position(of_venue);
        if let Some(index) = found
            && self.known[index].line.epoch == epoch
        {
            return self.known.get_mut(index);
        }
        let line = shared.streams.line_of(venue).filter(|line| line.epoch == epoch)?;
        self.known.retain(|known| !of_venue(known));
        self.known.push(Known { line, due: None, ended: false });
        self.known.last_mut()
    }
}

fn back(number: u64, reason: Reason) -> Reply {
    let after_ms = match reason {
        Reason::Gap | Reason::Window => 0,
        Reason::Halted | Reason::NoRoom => RETRY_MS,
    };
    Reply::Back { number, reason, after_ms }
}

/// Decides one command, and notes how long it waited and how long that takes.
fn measure(time_ns: u64, shared: &Shared, decide: impl FnOnce() -> Numbered) -> Numbered {
    let began_ns = (shared.now)();
    let numbered = decide();
    let wait = Duration::from_nanos(began_ns.saturating_sub(time_ns));
    let decide = Duration::from_nanos((shared.now)().saturating_sub(began_ns));
    shared.timed.force_push(Timed { wait, decide });
    numbered
}

/// Syncs and answers on the core thread if its command has no company. If not, returns `false`: the
/// sync thread must be woken.
///
/// `waiting`: the answers of the last batch that wait. `marked`: see [`Core::marked`].
///
/// # Errors
/// The log's first failed sync. The answer is not sent.
fn answer_alone<M: Medium>(
    disk: &Mutex<Disk<M, impl FnMut(&mut dyn FnMut())>>,
    waiting: usize,
    marked: Sequence,
    shared: &Shared,
) -> Result<bool, wal::Error> {
    // A command takes its ticket before it is published, and gives it back with its answer.
    // A command of a venue has a cell meanwhile, and gives it back when it is decided.
    let own = usize::from(!shared.releases.is_empty());
    if waiting > 1 || shared.tickets.in_use() + shared.streams.in_use() > own {
        return Ok(false);
    }
    let Some(mut disk) = disk.try_lock() else { return Ok(false) };
    if disk.crowded {
        return Ok(false);
    }
    let before = shared.log.durable();
    let durable = match disk.sync(shared) {
        Ok(durable) => durable,
        Err(failure) => {
            // The log is dead. The sync thread must not answer, and must not report less first.
            MutexGuard::leak(disk);
            return Err(failure);
        }
    };
    while let Some(release) = shared.releases.pop() {
        assert!(release.after <= durable, "all that the core has appended is durable");
        shared.tickets.answer(release.ticket, release.answer);
    }
    disk.decided = shared.streams.decided.load(Ordering::Relaxed);
    drop(disk);
    shared.streams.wake();
    // After the answer: each wake delays the caller's.
    shared.prepare_bell.ring();
    if before <= marked {
        // The first record after a mark: the sync thread does not count the idle time yet.
        shared.sync_bell.ring();
    }
    Ok(true)
}

/// The sync thread. After `idle_mark` without a record, and before twice that time, one mark is
/// requested.
///
/// # Errors
/// The log's first failed sync. Answers that are not released by then must never be.
pub(crate) fn release<M: Medium>(
    disk: &Mutex<Disk<M, impl FnMut(&mut dyn FnMut())>>,
    sleeper: &Sleeper,
    shared: &Shared,
    idle_mark: Duration,
) -> Result<(), wal::Error> {
    loop {
        // Read first: a core that has stopped by now appends and answers nothing more.
        let last_turn = shared.core_stopped.load(Ordering::Acquire);
        let decided = disk.lock().answer_all(shared)?;
        if last_turn {
            shared.released.store(true, Ordering::Release);
            shared.streams.wake();
            return Ok(());
        }
        let durable = shared.log.durable();
        let unmarked = durable > shared.marked.load(Ordering::Relaxed);
        // The core thread may append and sync meanwhile: then the idle time begins again.
        // An answer that was told behind the sync of its record: its session sleeps.
        let is_told = || shared.streams.decided.load(Ordering::Relaxed) != decided;
        let work = || {
            shared.log.appended() > durable
                || !shared.releases.is_empty()
                || is_told()
                || shared.core_stopped.load(Ordering::Relaxed)
        };
        sleeper.sleep(work, if unmarked { idle_mark } else { SLEEP_MAX });
        if unmarked && !work() {
            shared.mark_wanted.store(true, Ordering::Relaxed);
            shared.core_bell.ring();
        }
    }
}

/// The preparing thread. A full disk is reported and tried again. The core refuses new work then.
///
/// # Errors
/// Another failure to prepare a segment, or a failed sync of the directory: the log is dead.
pub(crate) fn prepare<M: Medium>(
    mut preparer: wal::Preparer<M>,
    sleeper: &Sleeper,
    shared: &Shared,
    no_space: impl Fn(&wal::Error),
) -> Result<(), wal::Error> {
    let mut looks_without_space: u32 = 0;
    let mut removed_before = 0;
    while !shared.stop.load(Ordering::Acquire) {
        let remove_before = shared.remove_before.load(Ordering::Acquire);
        // First: on a full disk this frees space.
        if remove_before > removed_before {
            remove(&mut preparer, remove_before, shared)?;
            removed_before = remove_before;
        }
        if !looks_without_space.is_multiple_of(SPACE_LOOKS) {
            // By the clock and not by the bell. The bell rings at every sync, and each try takes
            // the little space that is left.
            std::thread::sleep(PREPARE_SLEEP);
            looks_without_space += 1;
            continue;
        }
        match preparer.tick() {
            // More steps are left. Each is short, so that it never delays a sync for long.
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

/// Removes segments that snapshots cover. After a failure they stay until the next snapshot.
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
    use std::pin::Pin;
    use std::sync::Arc;
    use std::task::{Context, Poll, Waker};
    use std::thread;
    use std::time::Instant;

    use domain::transfer::{Decision, Direction, Op};
    use wal::memory::{Fault, Memory};
    use wal::{Identity, Log, Preparer, Progress, Recovery};

    use super::*;
    use crate::entry::Entry;
    use crate::ledger::Ledger;
    use crate::line::Streams;
    use crate::order::Order;
    use crate::places::Places;
    use crate::ring::{self, Pending, Publisher};
    use crate::text::Text;

    const ASSET: u32 = 3;
    const PLACES: Places = Places::of_transfers(1, 1_000);
    /// The longest wait for a thread. Only a failing test takes it.
    const PATIENCE: Duration = Duration::from_secs(30);

    type AroundSync = Box<dyn FnMut(&mut dyn FnMut()) + Send>;

    /// The engine over a log in memory. No thread runs unless a test starts it.
    struct Stage {
        memory: Memory,
        core: Core<Memory>,
        poller: Poller,
        publisher: Publisher,
        core_sleeper: Sleeper,
        sync_sleeper: Sleeper,
        shared: Arc<Shared>,
        disk: Mutex<Disk<Memory, AroundSync>>,
        preparer: Preparer<Memory>,
        /// The answers that were pending at each sync.
        pending_at_syncs: Arc<Mutex<Vec<usize>>>,
    }

    impl Stage {
        fn new() -> Stage {
            let memory = Memory::new();
            let mut recovery = Recovery::open(memory.clone(), 0, 0).expect("a directory");
            assert_eq!(recovery.next().expect("a log"), None);
            // Small: a hundred orders enter several of them.
            let options = wal::Options { segment_bytes: wal::SEGMENT_BYTES_MIN, spares_ready: 2 };
            let (log, _report) = recovery.start(Identity(1), options).expect("a segment");
            let Log { writer, mut syncer, preparer, durable } = log;
            let mut core = Core::new(Ledger::new(PLACES), writer);
            let symbol = Text::EMPTY;
            core.decide(&Command::RegisterAsset { asset: ASSET, precision: 8, symbol }, 0);
            syncer.sync().expect("the asset");
            let (core_sleeper, sync_sleeper) = (Sleeper::new(), Sleeper::new());
            let (publisher, poller) = ring::ring(64, 32, core_sleeper.bell());
            let streams = Arc::new(Streams::new(32));
            let bells = [core_sleeper.bell(), sync_sleeper.bell(), Sleeper::new().bell()];
            let shared =
                Arc::new(Shared::new(publisher.tickets(), streams, 32, durable, bells, || 0));
            shared.publish(&core);
            let pending_at_syncs = Arc::new(Mutex::new(Vec::new()));
            let (tickets, seen) = (publisher.tickets(), Arc::clone(&pending_at_syncs));
            let around_sync: AroundSync = Box::new(move |sync| {
                seen.lock().push(tickets.in_use());
                sync();
            });
            let disk = Disk::new(syncer, around_sync);
            Stage {
                memory,
                core,
                poller,
                publisher,
                core_sleeper,
                sync_sleeper,
                shared,
                disk,
                preparer,
                pending_at_syncs,
            }
        }

        fn order(&mut self, number: u64) -> Pending {
            self.publisher.publish(deposit(number), 0).expect("room")
        }

        /// The core thread's loop, on this thread until the ring is empty. It ends with a mark that
        /// is not synced.
        fn run_core(&mut self) -> Result<(), wal::Error> {
            self.shared.stop.store(true, Ordering::Relaxed);
            let Stage { core, poller, core_sleeper, shared, disk, .. } = self;
            run(core, poller, disk, core_sleeper, shared, false)
        }

        /// One turn of the sync thread, on this thread after [`Stage::run_core`].
        fn run_sync(&self) {
            assert!(self.shared.core_stopped.load(Ordering::Relaxed), "one turn only");
            release(&self.disk, &self.sync_sleeper, &self.shared, PATIENCE).expect("synced");
        }

        /// The numbers of the orders that are left if the power is cut now, and no unsynced byte
        /// survives.
        fn survivors(&self) -> Vec<u64> {
            let disk = self.memory.crash(|| false);
            let mut recovery = Recovery::open(disk, 0, 0).expect("a log");
            let mut numbers = Vec::new();
            while let Some(record) = recovery.next().expect("undamaged") {
                let entry = Entry::decode(record.kind, record.payload).expect("an entry");
                if let Entry::Order { order, .. } = entry {
                    numbers.push(order.order_number);
                }
            }
            numbers
        }
    }

    fn deposit(number: u64) -> Command {
        Command::Order(Order {
            op: Op::Deposit,
            req_id: u128::from(number) + 1,
            cid: Text::EMPTY,
            user: 7,
            asset: ASSET,
            amount: 1,
            direction: Direction::FundingToSpot,
            order_number: number,
        })
    }

    /// Whether the answer has arrived.
    fn answered(pending: &mut Pending) -> bool {
        match Pin::new(pending).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(Ok(Answer::Decided(recorded))) => {
                assert_eq!(recorded.decision, Decision::Success);
                true
            }
            Poll::Ready(other) => panic!("{other:?}"),
            Poll::Pending => false,
        }
    }

    /// Waits for a thread. Returns whether the condition came true.
    fn comes_true(mut condition: impl FnMut() -> bool) -> bool {
        let began = Instant::now();
        while !condition() {
            if began.elapsed() > PATIENCE {
                return false;
            }
            thread::yield_now();
        }
        true
    }

    /// Goal: the core thread answers an order without company, and never before it is durable, in
    /// every segment. Method: no sync thread; the pending answers at each sync; a power cut after
    /// each answer.
    #[test]
    fn an_order_without_company_is_durable_before_the_core_thread_answers_it() {
        const ORDERS: u64 = 200;
        let mut stage = Stage::new();
        for number in 0..ORDERS {
            while stage.preparer.tick().expect("memory") == Progress::Busy {}
            let mut pending = stage.order(number);
            stage.run_core().expect("synced");
            assert_eq!(*stage.pending_at_syncs.lock(), [1], "order {number}: not one sync before");
            stage.pending_at_syncs.lock().clear();
            assert!(answered(&mut pending), "order {number} is not answered");
            assert_eq!(stage.survivors(), (0..=number).collect::<Vec<_>>());
        }
        assert!(stage.memory.content(&wal::segment_name(3)).is_some(), "too few segments");
    }

    /// Goal: an order with company, beside a sync, or right after a crowd is left to the sync
    /// thread, and the first order without company after that is not.
    #[test]
    fn an_order_with_company_is_left_to_the_sync_thread() {
        let mut stage = Stage::new();
        let mut crowd = [stage.order(0), stage.order(1)];
        stage.run_core().expect("nothing to sync");
        assert!(!crowd.iter_mut().any(answered), "the core thread has synced for a crowd");
        stage.run_sync();
        assert!(crowd.iter_mut().all(answered), "the sync thread has not answered");

        let mut after_crowd = stage.order(2);
        stage.run_core().expect("nothing to sync");
        assert!(!answered(&mut after_crowd), "the core thread has synced right after a crowd");
        stage.run_sync();
        assert!(answered(&mut after_crowd), "the sync thread has not answered");

        let Stage { core, poller, publisher, core_sleeper, shared, disk, .. } = &mut stage;
        let mut beside_sync = publisher.publish(deposit(3), 0).expect("room");
        let under_way = disk.lock();
        run(core, poller, disk, core_sleeper, shared, false).expect("nothing to sync");
        assert!(!answered(&mut beside_sync), "answered beside a sync");
        drop(under_way);
        stage.run_sync();
        assert!(answered(&mut beside_sync), "the sync thread has not answered");

        let mut alone = stage.order(4);
        stage.run_core().expect("synced");
        assert!(answered(&mut alone), "the core thread has not synced");
        assert_eq!(*stage.pending_at_syncs.lock(), [2, 1, 1, 1], "pending answers at each sync");
        assert_eq!(stage.survivors(), [0, 1, 2, 3, 4]);
    }

    /// Goal: a failed sync on the core thread answers nothing, and no other thread syncs after it.
    #[test]
    fn a_failed_sync_of_the_core_thread_answers_nothing() {
        for fault in [Fault::Sync, Fault::Prefault] {
            let mut stage = Stage::new();
            let mut pending = stage.order(0);
            stage.memory.fail(fault);
            let failure = stage.run_core().expect_err("the fault");
            let expected = match fault {
                Fault::Sync => matches!(failure, wal::Error::Sync { .. }),
                _ => matches!(failure, wal::Error::Prepare { .. }),
            };
            assert!(expected, "{fault:?}: {failure}");
            assert!(stage.shared.log.poisoned(), "{fault:?}");
            assert!(!answered(&mut pending), "{fault:?}: answered after a failure");
            assert!(stage.disk.try_lock().is_none(), "{fault:?}: the sync thread may go on");
        }
    }

    /// Goal: a mark follows each order that the core thread has synced. Method: both threads; the
    /// sync thread sleeps without a time limit when there is nothing to mark.
    #[test]
    fn the_sync_thread_marks_an_order_that_the_core_thread_has_synced() {
        let Stage {
            mut core,
            mut poller,
            mut publisher,
            core_sleeper,
            sync_sleeper,
            shared,
            disk,
            ..
        } = Stage::new();
        let is_marked = thread::scope(|scope| {
            let (disk, shared) = (&disk, &*shared);
            let core_thread = scope
                .spawn(move || run(&mut core, &mut poller, disk, &core_sleeper, shared, false));
            let sync_thread =
                scope.spawn(move || release(disk, &sync_sleeper, shared, Duration::from_millis(1)));
            let is_marked = (0..20).all(|number| {
                let mut pending = publisher.publish(deposit(number), 0).expect("room");
                publisher.wake();
                let marked = || shared.marked.load(Ordering::Relaxed) == shared.log.durable();
                comes_true(|| answered(&mut pending)) && comes_true(marked)
            });
            shared.stop.store(true, Ordering::Release);
            shared.core_bell.ring();
            core_thread.join().expect("no panic").expect("no fault");
            sync_thread.join().expect("no panic").expect("no fault");
            is_marked
        });
        assert!(is_marked, "an order has no answer or no mark");
    }
}
