//! The loops of the engine's three threads. The core thread decides, appends and applies. The sync
//! thread syncs the log and releases the answers that the sync covers. The preparing thread makes
//! segments ahead.
//!
//! ```text
//!   ring --> core: step, append, apply --> log (mapped) <-- sync: msync, durable mark
//!                    |                                        |
//!                    +------ answers, in order ---------------+--> callers
//! ```

use std::sync::atomic::Ordering;
use std::time::Duration;

use arrayvec::ArrayVec;
use bell::Sleeper;
use disruptor::Polling;
use domain::chain::chain;
use tracing::{info, warn};
use wal::{Medium, Sequence};

use crate::core::Core;
use crate::crash;
use crate::ledger::LOOK_AHEAD;
use crate::notice::LOG_TARGET;
use crate::ring::{Poller, Slot};
use crate::shared::{Release, Shared};

/// The most commands taken off the ring before their slots are free again.
const BATCH_MAX: u64 = 256;
/// Looks at the ring, with a pause each, before the core thread yields: about 20 us.
const SPINS: u32 = 1_000;
/// Yields before the core thread sleeps.
const YIELDS: u32 = 8;
/// The longest sleep. It is a precaution: a bell ends every sleep that matters.
const SLEEP_MAX: Duration = Duration::from_secs(1);
/// The sleep of the preparing thread without a bell.
const PREPARE_SLEEP: Duration = Duration::from_millis(100);
/// Sleeps of the preparing thread between two tries on a full disk.
const SPACE_LOOKS: u32 = 20;

/// The core thread. It ends once [`Shared::stop`] is set and the ring is empty.
pub(crate) fn run<M: Medium>(
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
                let waiting = decide_all(&mut &mut slots, &mut core, shared);
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
            // Outcomes are left to evict: the core is not idle yet.
            idle = 0;
            shared.publish(&core);
            continue;
        }
        idle = idle.wrapping_add(1);
        if idle.is_multiple_of(SPINS) {
            // New segments may be ready: publish the log's room again.
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
            // Awake without work: publish the room again, but do not spin before the next sleep.
            idle = SPINS - 1;
        }
    }
    core.mark();
    shared.core_stopped.store(true, Ordering::Release);
    shared.sync_bell.ring();
}

/// Decides the commands of a batch, and answers those with durable records. Returns whether an
/// answer waits for a sync.
fn decide_all<'a, M: Medium>(
    slots: &mut impl Iterator<Item = &'a Slot>,
    core: &mut Core<M>,
    shared: &Shared,
) -> bool {
    let mut waiting = false;
    loop {
        let ahead: ArrayVec<&Slot, LOOK_AHEAD> = slots.by_ref().take(LOOK_AHEAD).collect();
        if ahead.is_empty() {
            return waiting;
        }
        core.expect(ahead.iter().filter_map(|slot| slot.command.order()));
        for slot in ahead {
            let (answer, after) = core.decide(&slot.command, slot.time_ns);
            if after <= shared.log.durable() {
                shared.tickets.answer(slot.ticket, answer);
                continue;
            }
            let release = Release { ticket: slot.ticket, after, answer };
            // There are as many places as tickets.
            assert!(shared.releases.push(release).is_ok(), "no place for an answer");
            waiting = true;
        }
    }
}

/// The sync thread. Records that are appended during a sync form the next batch: no timer waits.
///
/// `around_sync` calls each sync. After `idle_mark` without a record, one mark is requested.
///
/// # Errors
/// The log's first failed sync. Answers that are not released by then must never be.
pub(crate) fn release<M: Medium>(
    mut syncer: wal::Syncer<M>,
    mut around_sync: impl FnMut(&mut dyn FnMut()),
    sleeper: &Sleeper,
    shared: &Shared,
    idle_mark: Duration,
) -> Result<(), wal::Error> {
    let mut durable = shared.log.durable();
    // The sequence of the last mark, or of a requested one: without later records none is needed.
    let mut marked = durable;
    let mut held: Option<Release> = None;
    loop {
        // Read first: a core that has stopped by now appends and answers nothing more.
        let last_turn = shared.core_stopped.load(Ordering::Acquire);
        if shared.log.appended() > durable {
            crash::point("engine_before_sync");
            let mut synced = None;
            around_sync(&mut || synced = Some(syncer.sync()));
            let synced = synced.expect("around_sync calls the sync")?;
            assert!(synced >= durable, "{synced} is durable after {durable}");
            durable = synced;
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
