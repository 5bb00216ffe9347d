//! UBSCore: one pinned thread that owns all Spot balances in RAM and writes every change to the log before it is
//! answered. Knows no PostgreSQL, no HTTP, no async runtime and no clock.
//!
//! Rooms: [`order`] (what is asked, and its bytes in the log), [`ledger`] (the pure state: `step` decides, `apply`
//! carries out), [`fact`] (what a ledger consists of), [`outcomes`] (the idempotent processed map), [`ring`] (the way in and back), [`core`] (the loops),
//! [`replay`] (the way back from the log).

pub mod core;
pub mod fact;
pub mod ledger;
pub mod order;
pub mod outcomes;
pub mod replay;
pub mod ring;

use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use tracing::{error, info, warn};
use wal::{Directory, Identity, Recovery, Sequence};

use self::core::{Core, Shared};
use self::ledger::Ledger;
use self::order::Command;
use self::ring::{Overloaded, Pending, Publisher, Sleeper};
use crate::alert::{self, Alert, alert};
use crate::telemetry::chain;

/// The exit code of a process whose engine stopped by itself: a failed disk or a broken invariant.
pub const EXIT_ENGINE: i32 = 70;

/// How long a process that must end may take over its last words.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// How much of that the webhook may take.
const LAST_ALERT: Duration = Duration::from_millis(500);

/// What the engine is made of.
#[derive(Clone, Debug)]
pub struct Options {
    /// The log's directory.
    pub log_dir: PathBuf,
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
    /// Outcomes held, see [`outcomes`].
    pub outcomes_max: usize,
    /// After this long without a record, a mark is written.
    pub idle_mark: Duration,
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
    /// The system gives no thread.
    #[error("start a thread")]
    Thread(#[from] std::io::Error),
}

/// A log that this process holds the lock of, not read yet.
pub struct Closed {
    options: Options,
    recovery: Recovery<Directory>,
}

/// A replayed engine that does not run yet.
pub struct Replayed {
    options: Options,
    recovery: Recovery<Directory>,
    ledger: Ledger,
}

impl Closed {
    /// Locks the log's directory, making it where it is absent, and checks the segments' headers.
    ///
    /// # Errors
    /// [`Error::Log`]: another process holds it (named by pid), or the directory cannot be used.
    pub fn open(options: Options) -> Result<Closed, Error> {
        let directory = Directory::create(&options.log_dir);
        let recovery = directory.and_then(|directory| Recovery::open(directory, 0, 0));
        match recovery {
            Ok(recovery) => Ok(Closed { options, recovery }),
            Err(source) => Err(Error::Log { dir: options.log_dir, source }),
        }
    }

    /// The identity in the log's headers, `None` where there is no log.
    pub fn identity(&self) -> Option<Identity> {
        self.recovery.identity()
    }

    /// Replays the whole log.
    ///
    /// `durable_claim`: the highest sequence that something outside the log saw durable, 0 for none.
    ///
    /// # Errors
    /// [`Error::Log`]: damage, or a log that is not whole. [`Error::Replay`]: a record that does not follow from
    /// those before it.
    pub fn replay(self, durable_claim: Sequence) -> Result<Replayed, Error> {
        let Closed { options, mut recovery } = self;
        let failed = |source| Error::Log { dir: options.log_dir.clone(), source };
        recovery.claim(durable_claim);
        let mut ledger = Ledger::new(options.outcomes_max);
        while let Some(record) = recovery.next().map_err(failed)? {
            replay::replay(&mut ledger, &record)?;
        }
        Ok(Replayed { options, recovery, ledger })
    }
}

impl Replayed {
    /// The last record of the log, 0 for none.
    pub fn sequence(&self) -> Sequence {
        self.ledger.sequence()
    }

    /// Opens a fresh segment and starts the threads.
    ///
    /// # Errors
    /// [`Error::Log`]: the segment cannot be made. [`Error::Thread`].
    pub fn start(self, identity: Identity) -> Result<Engine, Error> {
        let Replayed { options, recovery, ledger } = self;
        let wal_options = wal::Options {
            segment_bytes: options.segment_bytes,
            spares_ready: options.spares_ready,
        };
        let (log, report) = recovery
            .start(identity, wal_options)
            .map_err(|source| Error::Log { dir: options.log_dir.clone(), source })?;
        if let wal::Ending::Torn(torn) = &report.ending {
            let (place, bytes, records) = (&torn.place, torn.bytes, torn.records);
            warn!(%place, bytes, records, "the log's end was torn and never acknowledged; it is cut off");
        }
        info!(sequence = ledger.sequence(), outcomes = ledger.outcome_count(), "log replayed");
        Ok(Engine::spawn(options, ledger, log)?)
    }
}

/// A running engine; [`Engine::stop`] ends it.
pub struct Engine {
    handle: Handle,
    threads: Vec<JoinHandle<()>>,
}

impl Engine {
    fn spawn(
        options: Options,
        ledger: Ledger,
        log: wal::Log<Directory>,
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
        let core_shared = Arc::clone(&shared);
        let sync_shared = Arc::clone(&shared);
        let prepare_shared = Arc::clone(&shared);
        let threads = vec![
            guarded("ubscore", &log.durable, move || {
                pin(cpu);
                core::run(core, poller, &core_sleeper, &core_shared, busy);
            })?,
            guarded("wal-sync", &log.durable, move || {
                let released = core::release(log.syncer, &sync_sleeper, &sync_shared, idle_mark);
                stop_on_failure("the log could not be synced", released);
            })?,
            guarded("wal-prepare", &log.durable, move || {
                let no_space = |failure: &wal::Error| {
                    alert(Alert::WalSpaceLow, format_args!("{}", chain(failure)));
                };
                let shared = &prepare_shared;
                let prepared = core::prepare(log.preparer, &prepare_sleeper, shared, no_space);
                stop_on_failure("the log could not be prepared ahead", prepared);
            })?,
        ];
        Ok(Engine { handle: Handle { publisher, shared }, threads })
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

    /// How many transfers UBSCore has room to see through, those under way included.
    pub fn capacity(&self) -> usize {
        self.shared.capacity.load(Ordering::Relaxed)
    }

    /// The most orders to publish before waiting for their answers, so that others find room beside them.
    pub fn share(&self) -> usize {
        (self.shared.tickets.count() / 4).max(1)
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
    body: impl FnOnce() + Send + 'static,
) -> std::io::Result<JoinHandle<()>> {
    let log = log.clone();
    thread::Builder::new().name(name.to_owned()).spawn(move || {
        // The state behind the panic is never used again.
        if std::panic::catch_unwind(std::panic::AssertUnwindSafe(body)).is_err() {
            end_soon();
            // Whoever finds the log dead first may not be whose disk failed, and must not end the process unheard.
            if log.poisoned() {
                alert(Alert::WalSyncFailed, format_args!("the log failed under the engine"));
            }
            fatal("a thread of the engine panicked");
        }
    })
}

/// A log whose disk has failed is never written to again.
fn stop_on_failure(what: &str, result: Result<(), wal::Error>) {
    if let Err(failure) = result {
        end_soon();
        let why = chain(&failure);
        alert(Alert::WalSyncFailed, format_args!("{what}: {why}"));
        fatal(&format!("{what}: {why}"));
    }
}

/// The last line of a process that must not answer any more. Nothing that UBSCore has not synced is answered meanwhile:
/// its answers come from the thread that is here, or wait for it.
fn fatal(why: &str) -> ! {
    error!("{why}");
    last_alert();
    let last =
        format!("ubscore: stopped at once: {why}; restart it to recover from what the disk holds");
    // With nobody at the other end of stderr, the exit code says it alone.
    writeln!(std::io::stderr(), "{last}").ok();
    std::process::exit(EXIT_ENGINE);
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

/// Gives the webhook the chance to be told why the process ends, within [`end_soon`]'s time.
pub fn last_alert() {
    alert::flush(LAST_ALERT);
}

/// Pins the calling thread, where it is allowed to.
fn pin(cpu: Option<usize>) {
    let Some(cpu) = cpu else { return };
    let allowed = core_affinity::get_core_ids().unwrap_or_default();
    match allowed.into_iter().find(|core| core.id == cpu) {
        Some(core) if core_affinity::set_for_current(core) => info!(cpu, "core thread pinned"),
        _ => warn!(cpu, "this CPU is not ours to pin to; the core thread runs unpinned"),
    }
}
