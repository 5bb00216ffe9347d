//! UBSCore: one pinned thread that owns all Spot balances in RAM and writes every change to the log before it is
//! answered. Knows no PostgreSQL, no HTTP, no async runtime and no clock.
//!
//! Rooms: [`order`] (what is asked, and its bytes in the log), [`ledger`] (the pure state: `step` decides, `apply` carries
//! out), [`external`] (operations of Funding with the outside, which the log only records), [`fact`] (the parts of a
//! ledger), [`accounts`] (balances by user), [`outcomes`] (the idempotent processed map, which forgets), `table` and
//! `memory` (the memory of both, taken at start), [`ring`] (the way in and back), [`core`] (the loops), [`snapshot`] (a
//! ledger in a file), [`replay`] (the way back from the log).

mod accounts;
pub mod builder;
pub mod command;
pub mod core;
mod crash;
pub mod entry;
pub mod external;
pub mod fact;
#[cfg(test)]
mod history;
pub mod ledger;
mod memory;
pub mod notice;
mod op;
pub mod order;
mod outcomes;
pub mod places;
pub mod record;
pub mod recorded;
pub mod replay;
pub mod ring;
pub mod snapshot;
mod table;
pub mod text;
pub mod totals;

use std::panic::resume_unwind;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::sync_channel;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use bell::Sleeper;
use domain::chain::chain;
use domain::shortage::{Capacity, Vacancy};
use parking_lot::Mutex;
use tracing::{info, warn};
use wal::{Directory, Identity, Medium, Recovery, Sequence};

use self::command::Command;
use self::core::{Core, Shared};
use self::ledger::Ledger;
use self::notice::{Notice, Notify};
use self::places::Places;
use self::replay::Replay;
use self::ring::{Overloaded, Pending, Publisher};
use self::snapshot::Snapshot;
use self::snapshot::store::SnapshotStore;

/// The target of the engine's log lines. Operators filter by it.
const LOG_TARGET: &str = "ubscore::engine";

/// Chunks of the log that are read before they are replayed.
const CHUNKS_AHEAD: usize = 4;
/// How long a process that must end may take over its last words.
pub const LAST_WORDS: Duration = Duration::from_secs(2);

/// What the engine is made of.
#[derive(Clone, Debug)]
pub struct Options {
    /// The log's directory.
    pub log_dir: PathBuf,
    /// The directory of snapshots.
    pub snapshot_dir: PathBuf,
    /// One segment's size in bytes.
    pub segment_bytes: u64,
    /// Segments prepared ahead.
    pub spares_ready: usize,
    /// Never sleep: for a core of its own.
    pub busy: bool,
    /// The CPU to pin the core thread to.
    pub cpu: Option<usize>,
    /// Slots of the ring, a power of two.
    pub ring_slots: usize,
    /// Answers on their way, at most half the slots.
    pub in_flight_max: usize,
    /// What the ledger holds at most.
    pub places: Places,
    /// After this long without a record, a mark is written.
    pub idle_mark: Duration,
    /// Takes the engine's notices.
    pub notify: Notify,
}

/// An engine that cannot start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The log.
    #[error("the log in {}", dir.display())]
    Log {
        /// Where.
        dir: PathBuf,
        /// Why.
        #[source]
        source: wal::Error,
    },
    /// The log's records.
    #[error("replay of the log")]
    Replay(#[from] replay::Error),
    /// A snapshot that no damage explains, or a directory of them that cannot be used.
    #[error("snapshots")]
    Snapshot(#[from] snapshot::Error),
    /// A whole snapshot of another log.
    #[error("{} belongs to log {found}, not {expected}", path.display())]
    ForeignSnapshot {
        /// The file.
        path: PathBuf,
        /// The log it belongs to.
        found: Identity,
        /// The log that is here.
        expected: Identity,
    },
    /// The log does not reach to where the newest snapshot stands: it is an older copy, or a part of it is gone.
    #[error("{} stands at record {sequence}, which the log does not hold", path.display())]
    SnapshotAhead {
        /// The file.
        path: PathBuf,
        /// The record at which it stands.
        sequence: Sequence,
        /// What the log says.
        #[source]
        source: wal::Error,
    },
    /// The log begins later than its first record, and no snapshot tells what was before.
    #[error("no usable snapshot stands before the log's first record{}", because(damaged))]
    NoSnapshot {
        /// Why each snapshot cannot be used.
        damaged: Vec<snapshot::Error>,
        /// What the log says.
        #[source]
        source: wal::Error,
    },
    /// The system gives no thread.
    #[error("start a thread")]
    Thread(#[from] std::io::Error),
}

/// Several reasons in one line.
fn because(reasons: &[snapshot::Error]) -> String {
    reasons.iter().map(|reason| format!("; {}", chain(reason))).collect()
}

/// A log that this process holds the lock of, not read yet.
pub struct Closed {
    options: Options,
    recovery: Recovery<Directory>,
    snapshot: Option<Snapshot>,
}

/// A replayed engine that does not run yet.
pub struct Replayed {
    options: Options,
    recovery: Recovery<Directory>,
    ledger: Ledger,
    /// The record at which the snapshot stands that it began with, 0 for none.
    snapshot: Sequence,
    /// Bytes of the records behind it.
    log_bytes: u64,
}

/// How far a replay has come.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    /// The last record replayed.
    pub sequence: Sequence,
    /// How many were replayed.
    pub records: u64,
}

/// Records between two words of progress.
const PROGRESS_RECORDS: u64 = 4_096;

impl Closed {
    /// Locks the log's directory, making it where it is absent, chooses the newest snapshot that is whole, and checks
    /// the segments' headers.
    ///
    /// # Errors
    /// [`Error::Log`]: another process holds it (named by pid), or the directory cannot be used.
    /// [`Error::Snapshot`], [`Error::ForeignSnapshot`], [`Error::SnapshotAhead`], [`Error::NoSnapshot`]: log and
    /// snapshots do not make a whole.
    pub fn open(options: Options) -> Result<Closed, Error> {
        let failed = |source| Error::Log { dir: options.log_dir.clone(), source };
        let directory = Directory::create(&options.log_dir).map_err(failed)?;
        // The lock before anything of the snapshots is read or removed: another process may be at them.
        let lock = directory.lock().map_err(failed)?;
        let choice = SnapshotStore::create(&options.snapshot_dir)?.choose()?;
        for damaged in &choice.damaged {
            warn!(target: LOG_TARGET, error = chain(damaged), "a snapshot is passed over for an older one or none");
        }
        let from = choice.newest.as_ref().map_or(1, |snapshot| snapshot.header.sequence);
        // The record at which a snapshot stands was durable before it was made.
        let claim = choice.newest.as_ref().map_or(0, |snapshot| snapshot.header.sequence);
        let recovery = Recovery::open_locked(directory, lock, claim, from);
        let snapshot = choice.newest;
        let recovery = match (recovery, &snapshot) {
            (Ok(recovery), _) => recovery,
            (Err(source @ wal::Error::Missing { .. }), Some(snapshot)) => {
                let (path, sequence) = (snapshot.path.clone(), snapshot.header.sequence);
                return Err(Error::SnapshotAhead { path, sequence, source });
            }
            (Err(source @ wal::Error::Missing { .. }), None) => {
                return Err(Error::NoSnapshot { damaged: choice.damaged, source });
            }
            (Err(source), _) => return Err(failed(source)),
        };
        if let (Some(expected), Some(snapshot)) = (recovery.identity(), &snapshot)
            && snapshot.header.identity != expected
        {
            let (path, found) = (snapshot.path.clone(), snapshot.header.identity);
            return Err(Error::ForeignSnapshot { path, found, expected });
        }
        Ok(Closed { options, recovery, snapshot })
    }

    /// The identity in the log's headers, or else in the snapshot; `None` where there is neither.
    pub fn identity(&self) -> Option<Identity> {
        let snapshot = self.snapshot.as_ref().map(|snapshot| snapshot.header.identity);
        self.recovery.identity().or(snapshot)
    }

    /// Loads the snapshot, and replays the log from there.
    ///
    /// `durable_claim`: the highest sequence that something outside the log saw durable, 0 for none. `progress`: told
    /// every some thousand records.
    ///
    /// # Errors
    /// [`Error::Log`]: damage, or a log that is not whole. [`Error::Replay`]: a record that does not follow from
    /// those before it. [`Error::Snapshot`], [`Error::SnapshotAhead`]: the snapshot is not this log's. [`Error::Thread`].
    pub fn replay(
        self,
        durable_claim: Sequence,
        mut progress: impl FnMut(Progress),
    ) -> Result<Replayed, Error> {
        let Closed { options, mut recovery, snapshot } = self;
        recovery.claim(durable_claim);
        let stands_at = snapshot.as_ref().map_or(0, |snapshot| snapshot.header.sequence);
        let mut empty = Ledger::new(options.places);
        empty.prefault();
        let mut replay = Replay::begin(snapshot, empty)?;
        let (mut records, mut log_bytes) = (0, 0);
        let (sender, reads) = sync_channel(CHUNKS_AHEAD);
        let read = thread::scope(|scope| {
            let reader = || replay::read_ahead(&mut recovery, &{ sender });
            let reader = thread::Builder::new()
                .name("replay-read".to_owned())
                .spawn_scoped(scope, reader)?;
            // An error lets go of `reads`, and with it of the reader.
            for read in reads.into_iter().flatten() {
                records += 1;
                log_bytes += read.bytes;
                let sequence = read.sequence;
                replay.take_read(read)?;
                if records % PROGRESS_RECORDS == 0 {
                    progress(Progress { sequence, records });
                }
            }
            Ok::<_, Error>(reader.join().unwrap_or_else(|panic| resume_unwind(panic)))
        })?;
        match (read, replay.unconfirmed()) {
            (Ok(()), None) => {}
            (Ok(()), Some(_)) => unreachable!("its record is claimed durable"),
            (Err(source), Some(snapshot)) => {
                let (path, sequence) = (snapshot.path.clone(), snapshot.header.sequence);
                return Err(Error::SnapshotAhead { path, sequence, source });
            }
            (Err(source), None) => return Err(Error::Log { dir: options.log_dir, source }),
        }
        let ledger = replay.finish()?;
        let (sequence, outcomes) = (ledger.sequence(), ledger.outcome_count());
        info!(target: LOG_TARGET, snapshot = stands_at, records, sequence, outcomes, "log replayed");
        Ok(Replayed { options, recovery, ledger, snapshot: stands_at, log_bytes })
    }
}

impl Replayed {
    /// What the log has led to.
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// Opens a fresh segment and starts the threads.
    ///
    /// `around_sync`: calls what it is given, which is one sync of the log, once, and may time it: the engine knows no
    /// clock. It runs on the thread that syncs, beside the core's.
    ///
    /// # Errors
    /// [`Error::Log`]: the segment cannot be made. [`Error::Thread`].
    pub fn start(
        self,
        identity: Identity,
        around_sync: impl FnMut(&mut dyn FnMut()) + Send + 'static,
    ) -> Result<Engine, Error> {
        let Replayed { options, recovery, ledger, snapshot, log_bytes } = self;
        let wal_options = wal::Options {
            segment_bytes: options.segment_bytes,
            spares_ready: options.spares_ready,
        };
        let (log, report) = recovery
            .start(identity, wal_options)
            .map_err(|source| Error::Log { dir: options.log_dir.clone(), source })?;
        if let wal::Ending::Torn(torn) = &report.ending {
            let (place, bytes, records) = (&torn.place, torn.bytes, torn.records);
            warn!(target: LOG_TARGET, %place, bytes, records, "the log's end was torn and never acknowledged; it is cut off");
        }
        let covered = Covered { identity, snapshot, log_bytes };
        Ok(Engine::spawn(options, ledger, log, covered, around_sync)?)
    }
}

/// What a start has found of snapshots.
#[derive(Clone, Copy, Debug)]
pub struct Covered {
    /// The log.
    pub identity: Identity,
    /// The record at which the snapshot stands that was loaded, 0 for none.
    pub snapshot: Sequence,
    /// Bytes of the log's records behind it, as of the start.
    pub log_bytes: u64,
}

/// A running engine; [`Engine::stop`] ends it.
pub struct Engine {
    handle: Handle,
    covered: Covered,
    notify: Notify,
    threads: Vec<JoinHandle<()>>,
}

impl Engine {
    fn spawn(
        options: Options,
        ledger: Ledger,
        log: wal::Log<Directory>,
        covered: Covered,
        around_sync: impl FnMut(&mut dyn FnMut()) + Send + 'static,
    ) -> std::io::Result<Engine> {
        let (core_sleeper, sync_sleeper, prepare_sleeper) =
            (Sleeper::new(), Sleeper::new(), Sleeper::new());
        let (publisher, poller) =
            ring::ring(options.ring_slots, options.in_flight_max, core_sleeper.bell());
        let bells = [core_sleeper.bell(), sync_sleeper.bell(), prepare_sleeper.bell()];
        let shared = Arc::new(Shared::new(
            publisher.tickets(),
            options.in_flight_max,
            log.durable.clone(),
            bells,
        ));
        let core = Core::new(ledger, log.writer);
        shared.publish(&core);
        let (cpu, busy, idle_mark) = (options.cpu, options.busy, options.idle_mark);
        let notify = options.notify;
        let core_shared = Arc::clone(&shared);
        let sync_shared = Arc::clone(&shared);
        let prepare_shared = Arc::clone(&shared);
        let threads = vec![
            guarded("ubscore", &log.durable, notify, move || {
                pin(cpu);
                core::run(core, poller, &core_sleeper, &core_shared, busy);
            })?,
            guarded("wal-sync", &log.durable, notify, move || {
                let released =
                    core::release(log.syncer, around_sync, &sync_sleeper, &sync_shared, idle_mark);
                stop_on_failure("the log could not be synced", released, notify);
            })?,
            guarded("wal-prepare", &log.durable, notify, move || {
                let no_space = |failure: &wal::Error| notify(Notice::NoSpace(&chain(failure)));
                let shared = &prepare_shared;
                let prepared = core::prepare(log.preparer, &prepare_sleeper, shared, no_space);
                stop_on_failure("the log could not be prepared ahead", prepared, notify);
            })?,
        ];
        Ok(Engine { handle: Handle { publisher, shared }, covered, notify, threads })
    }

    /// What the start has found of snapshots.
    pub fn covered(&self) -> Covered {
        self.covered
    }

    /// Starts a thread beside the engine's own. Its panic ends the process as one of theirs does.
    ///
    /// # Errors
    /// The system gives no thread.
    pub fn spawn_beside(
        &self,
        name: &str,
        body: impl FnOnce() + Send + 'static,
    ) -> std::io::Result<JoinHandle<()>> {
        guarded(name, &self.handle.shared.log, self.notify, body)
    }

    /// A way in; each thread or task that publishes takes its own.
    pub fn handle(&self) -> Handle {
        self.handle.clone()
    }

    /// Decides what is on the ring, syncs it, answers it, and ends the threads.
    pub fn stop(self) {
        self.handle.shared.stop.store(true, Ordering::Release);
        self.handle.shared.core_bell.ring();
        self.handle.shared.prepare_bell.ring();
        for thread in self.threads {
            // A panic in any of them has ended the process already.
            thread.join().expect("guarded");
        }
    }
}

/// A way into UBSCore.
#[derive(Clone)]
pub struct Handle {
    publisher: Publisher,
    shared: Arc<Shared>,
}

impl Handle {
    /// Publishes one command and wakes the core. `time_ns`: ns since the Unix epoch, by the caller's clock.
    ///
    /// # Errors
    /// [`Overloaded`]: nothing was published.
    pub fn submit(&mut self, command: Command, time_ns: u64) -> Result<Pending, Overloaded> {
        let pending = self.publisher.publish(command, time_ns);
        self.publisher.wake();
        pending
    }

    /// Publishes many commands with one wake-up. Answers are in the order of the commands.
    pub fn submit_all(
        &mut self,
        commands: impl IntoIterator<Item = Command>,
        time_ns: u64,
    ) -> Vec<Result<Pending, Overloaded>> {
        let publish = |command| self.publisher.publish(command, time_ns);
        let pending = commands.into_iter().map(publish).collect();
        self.publisher.wake();
        pending
    }

    /// The highest sequence known durable.
    pub fn durable(&self) -> Sequence {
        self.shared.log.durable()
    }

    /// The highest sequence appended.
    pub fn appended(&self) -> Sequence {
        self.shared.log.appended()
    }

    /// Answers on their way.
    pub fn in_flight(&self) -> usize {
        self.shared.tickets.in_use()
    }

    /// How many transfers UBSCore has room to see through, those under way included, and what bounds them.
    pub fn capacity(&self) -> Capacity {
        let outcomes = self.shared.outcome_capacity.load(Ordering::Relaxed);
        core::capacity(outcomes, self.shared.log_capacity.load(Ordering::Relaxed))
    }

    /// What there is room for beside transfers.
    pub fn vacancy(&self) -> Vacancy {
        Vacancy {
            outcomes: 2 * self.shared.outcome_capacity.load(Ordering::Relaxed),
            accounts: self.accounts_left(),
            balances: self.balances_left(),
        }
    }

    /// Accounts that deposits can still make.
    pub fn accounts_left(&self) -> usize {
        self.shared.accounts_left.load(Ordering::Relaxed)
    }

    /// Balances that deposits can still make.
    pub fn balances_left(&self) -> usize {
        self.shared.balances_left.load(Ordering::Relaxed)
    }

    /// Spot accounts held.
    pub fn accounts(&self) -> usize {
        self.shared.accounts.load(Ordering::Relaxed)
    }

    /// Spot balances held.
    pub fn balances(&self) -> usize {
        self.shared.balances.load(Ordering::Relaxed)
    }

    /// The most orders to publish before waiting for their answers, so that others find room beside them.
    pub fn share(&self) -> usize {
        (self.shared.tickets.count() / 4).max(1)
    }

    /// Bytes of the records appended since the start.
    pub fn log_bytes(&self) -> u64 {
        self.shared.log_bytes.load(Ordering::Relaxed)
    }

    /// Lets go of segments as far as they hold no record from `sequence` on; returns before it is done.
    ///
    /// The next start needs a snapshot at or behind `sequence`.
    pub fn remove_before(&self, sequence: Sequence) {
        self.shared.remove_before.fetch_max(sequence, Ordering::Release);
        self.shared.prepare_bell.ring();
    }

    /// Segments removed since the start.
    pub fn segments_removed(&self) -> u64 {
        self.shared.segments_removed.load(Ordering::Relaxed)
    }

    /// Outcomes held.
    pub fn outcomes(&self) -> usize {
        self.shared.outcomes.load(Ordering::Relaxed)
    }
}

/// A thread whose panic ends the process, in debug builds too: a ring without its reader would hang for ever.
fn guarded(
    name: &str,
    log: &wal::Durable,
    notify: Notify,
    body: impl FnOnce() + Send + 'static,
) -> std::io::Result<JoinHandle<()>> {
    let log = log.clone();
    thread::Builder::new().name(name.to_owned()).spawn(move || {
        // The state behind the panic is never used again.
        if std::panic::catch_unwind(std::panic::AssertUnwindSafe(body)).is_err() {
            end_soon();
            let _ending = ENDING.lock();
            // Whoever finds the log dead first may not be whose disk failed, and must not end the process unheard.
            if log.poisoned() {
                notify(Notice::LogFailed("the log failed under the engine"));
            }
            die("a thread of the engine panicked", notify);
        }
    })
}

/// A log whose disk has failed is never written to again.
fn stop_on_failure(what: &str, result: Result<(), wal::Error>, notify: Notify) {
    if let Err(failure) = result {
        end_soon();
        let _ending = ENDING.lock();
        let why = format!("{what}: {}", chain(&failure));
        notify(Notice::LogFailed(&why));
        die(&why, notify);
    }
}

/// Held by the thread that says the last words, until the process is gone: two threads find a dead log at once, and an
/// alert is said once, so the second would end the process before the first has said it.
static ENDING: Mutex<()> = Mutex::new(());

/// Ends the process, by its own last words if it has any.
fn die(why: &str, notify: Notify) -> ! {
    notify(Notice::Dead(why));
    std::process::abort()
}

/// Ends the process in a while, whatever becomes of its last words: a stderr that nobody reads any more must not keep
/// alive what must not answer.
pub fn end_soon() {
    let end = || {
        thread::sleep(LAST_WORDS);
        std::process::abort();
    };
    // Without a thread there is still the hope that the words get through.
    thread::Builder::new().name("end".to_owned()).spawn(end).ok();
}

/// Pins the calling thread, where it is allowed to.
fn pin(cpu: Option<usize>) {
    let Some(cpu) = cpu else { return };
    let allowed = core_affinity::get_core_ids().unwrap_or_default();
    match allowed.into_iter().find(|core| core.id == cpu) {
        Some(core) if core_affinity::set_for_current(core) => {
            info!(target: LOG_TARGET, cpu, "core thread pinned")
        }
        _ => {
            warn!(target: LOG_TARGET, cpu, "this CPU is not ours to pin to; the core thread runs unpinned")
        }
    }
}
