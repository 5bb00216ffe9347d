//! The running engine: its threads, and the handles through which commands come in.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;

use bell::Sleeper;
use domain::chain::chain;
use domain::shortage::{Capacity, Vacancy};
use domain::transfer::Op;
use tracing::{info, warn};
use wal::{Directory, Identity, Sequence};

use crate::command::Command;
use crate::core::{Core, capacity};
use crate::guard::{guarded, stop_on_failure};
use crate::ledger::{Answer, Ledger};
use crate::line::{Line, Streams};
use crate::named::NamedPosting;
use crate::notice::{LOG_TARGET, Notice, Notify};
use crate::options::Options;
use crate::ring::{self, Overloaded, Pending, Publisher, Work};
use crate::session::VenueSession;
use crate::shared::Shared;
use crate::text::Text;
use crate::threads::{self, Disk};
use crate::venue::{Look, OpenError, Opened, Page, RefusedEnd, VenueHalt};
use crate::wait::wait;

/// The failure of the core thread's syncs and of the sync thread's.
const NOT_SYNCED: &str = "the log could not be synced";

/// The snapshot and the log that a start has found.
#[derive(Clone, Copy, Debug)]
pub struct Covered {
    /// The log's identity.
    pub identity: Identity,
    /// The record of the loaded snapshot, 0 for none.
    pub snapshot: Sequence,
    /// Bytes of the log's records after it, at the start.
    pub log_bytes: u64,
}

/// A running engine. [`Engine::stop`] ends it.
pub struct Engine {
    handle: Handle,
    covered: Covered,
    notify: Notify,
    threads: Vec<JoinHandle<()>>,
}

impl Engine {
    /// Starts the three threads.
    pub(crate) fn spawn(
        options: Options,
        ledger: Ledger,
        log: wal::Log<Directory>,
        covered: Covered,
        around_sync: impl FnMut(&mut dyn FnMut()) + Send + 'static,
    ) -> std::io::Result<Engine> {
        let (core_sleeper, sync_sleeper, prepare_sleeper) =
            (Sleeper::new(), Sleeper::new(), Sleeper::new());
        let (publisher, mut poller) =
            ring::ring(options.ring_slots, options.in_flight_max, core_sleeper.bell());
        let bells = [core_sleeper.bell(), sync_sleeper.bell(), prepare_sleeper.bell()];
        // The tickets are at most as many slots as half of the ring. In the other half, the slots
        // of one batch stay taken for a moment after their cells are free.
        let (slots, batch) =
            (options.ring_slots, usize::try_from(threads::BATCH_MAX).expect("small"));
        let cells = match options.places.venues.venues_max {
            0 => 0,
            _ => (slots / 2).saturating_sub(batch).max(slots / 4),
        };
        let (window, now) = (options.places.venues.window as u64, options.now);
        let holds_max = options.places.venues.holds_max;
        let identity = covered.identity;
        let shared = Arc::new(Shared::new(
            publisher.tickets(),
            Arc::new(Streams::new(cells)),
            options.in_flight_max,
            log.durable.clone(),
            bells,
        ));
        let mut core = Core::new(ledger, log.writer);
        shared.publish(&core);
        let (cpu, busy, idle_mark) = (options.cpu, options.busy, options.idle_mark);
        let notify = options.notify;
        let core_disk = Arc::new(Disk::new(log.syncer, around_sync));
        let sync_disk = Arc::clone(&core_disk);
        let core_shared = Arc::clone(&shared);
        let sync_shared = Arc::clone(&shared);
        let prepare_shared = Arc::clone(&shared);
        let threads = vec![
            guarded("ubscore", &log.durable, notify, move || {
                pin(cpu);
                let (core, poller, disk) = (&mut core, &mut poller, &core_disk);
                let ran = threads::run(core, poller, disk, &core_sleeper, &core_shared, busy);
                stop_on_failure(NOT_SYNCED, ran, notify);
            })?,
            guarded("wal-sync", &log.durable, notify, move || {
                let released = threads::release(&sync_disk, &sync_sleeper, &sync_shared, idle_mark);
                stop_on_failure(NOT_SYNCED, released, notify);
            })?,
            guarded("wal-prepare", &log.durable, notify, move || {
                let no_space = |failure: &wal::Error| notify(Notice::NoSpace(&chain(failure)));
                let shared = &prepare_shared;
                let prepared = threads::prepare(log.preparer, &prepare_sleeper, shared, no_space);
                stop_on_failure("the log could not be prepared ahead", prepared, notify);
            })?,
        ];
        Ok(Engine {
            handle: Handle { publisher, shared, identity, window, holds_max, now },
            covered,
            notify,
            threads,
        })
    }

    /// The snapshot and the log that the start has found.
    pub fn covered(&self) -> Covered {
        self.covered
    }

    /// Starts one more thread. Its panic ends the process, as the panic of every engine thread.
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

    /// A handle. Each thread or task that publishes takes its own.
    pub fn handle(&self) -> Handle {
        self.handle.clone()
    }

    /// Decides, syncs and answers all commands on the ring, then ends the threads.
    pub fn stop(self) {
        self.handle.shared.stop.store(true, Ordering::Release);
        self.handle.shared.core_bell.ring();
        self.handle.shared.prepare_bell.ring();
        for thread in self.threads {
            // The panic of a thread has ended the process already.
            thread.join().expect("guarded");
        }
    }
}

/// A handle on UBSCore: commands go in, answers come out.
#[derive(Clone)]
pub struct Handle {
    publisher: Publisher,
    shared: Arc<Shared>,
    identity: Identity,
    /// See [`VenuePlaces::window`](crate::places::VenuePlaces::window).
    window: u64,
    /// See [`VenuePlaces::holds_max`](crate::places::VenuePlaces::holds_max).
    holds_max: usize,
    now: fn() -> u64,
}

impl Handle {
    /// Publishes one command and wakes the core. `time_ns` is the caller's clock, ns since the Unix
    /// epoch.
    ///
    /// # Errors
    /// [`Overloaded`]: nothing was published.
    pub fn submit(&mut self, command: Command, time_ns: u64) -> Result<Pending, Overloaded> {
        let pending = self.publisher.publish(command, time_ns);
        self.publisher.wake();
        pending
    }

    /// Publishes many commands with one wake-up. The answers have the order of the commands.
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

    /// Publishes a command of a service by name and wakes the core. `op`: RESERVE, SETTLE, RELEASE
    /// or POST. `time_ns` as for [`Handle::submit`].
    ///
    /// # Errors
    /// [`Overloaded`]: nothing was published.
    pub fn submit_named(
        &mut self,
        op: Op,
        posting: &NamedPosting,
        time_ns: u64,
    ) -> Result<Pending, Overloaded> {
        let slab = &self.shared.slab;
        let cell = slab.take().ok_or(Overloaded)?;
        slab.cell(cell).lock().fill(op, posting);
        let opens_work = op.row().opens_work;
        let pending = self.publisher.publish_named(cell, opens_work, time_ns);
        if pending.is_err() {
            slab.give_back(cell);
        }
        self.publisher.wake();
        pending
    }

    /// Registers a venue. `posts`: whether it may POST. Durable once it returns; a repeat changes
    /// nothing. It waits for a sync: not for a task of an async runtime.
    ///
    /// # Errors
    /// [`OpenError::NoRoom`], [`OpenError::Conflict`], [`OpenError::Stopped`].
    pub fn add_venue(&self, id: u32, name: &str, posts: bool) -> Result<(), OpenError> {
        let name = Text::new(name).ok_or(OpenError::Conflict)?;
        self.ask(Command::AddVenue { id, name, posts }).map(|_| ())
    }

    /// Closes a venue: its session ends, and no other is opened. Waits as [`Handle::add_venue`].
    ///
    /// # Errors
    /// [`OpenError::Unknown`], [`OpenError::NoRoom`], [`OpenError::Stopped`].
    pub fn close_venue(&self, id: u32) -> Result<(), OpenError> {
        self.ask(Command::CloseVenue { id, closed: true }).map(|_| ())
    }

    /// Lets a closed venue open sessions again. Waits as [`Handle::add_venue`].
    ///
    /// # Errors
    /// As [`Handle::close_venue`].
    pub fn reopen_venue(&self, id: u32) -> Result<(), OpenError> {
        self.ask(Command::CloseVenue { id, closed: false }).map(|_| ())
    }

    /// Opens a session of a venue. Waits as [`Handle::add_venue`].
    ///
    /// `epoch`: above the venue's last one; 0 takes the next, if no session is open. `told`: the
    /// highest number that the venue has an answer for, 0 for none.
    ///
    /// # Errors
    /// [`OpenError`]: nothing has changed. [`OpenError::Fenced`] may also come after the Open: a
    /// newer one or a close has overtaken it.
    pub fn open_venue(&self, id: u32, epoch: u64, told: u64) -> Result<VenueSession, OpenError> {
        self.open((id, epoch), told, told)
    }

    /// Opens a session as [`Handle::open_venue`], also if the venue has answers that the log does
    /// not hold. Call it only after an [`OpenError::AheadOfLog`], and halt the venues before.
    ///
    /// # Errors
    /// As [`Handle::open_venue`], without [`OpenError::AheadOfLog`].
    pub fn open_venue_ahead(
        &self,
        id: u32,
        epoch: u64,
        told: u64,
    ) -> Result<VenueSession, OpenError> {
        self.open((id, epoch), told, 0)
    }

    /// `asked`: the last answer that the log must hold.
    fn open(
        &self,
        (id, epoch): (u32, u64),
        told: u64,
        asked: u64,
    ) -> Result<VenueSession, OpenError> {
        let streams = &self.shared.streams;
        if epoch == 0 && streams.line_of(id).is_some_and(|line| line.open()) {
            return Err(OpenError::Busy);
        }
        let answer = self.ask(Command::OpenVenue { id, epoch, told: asked })?;
        let Answer::Opened { epoch, last, acknowledged } = answer else {
            unreachable!("an Open is answered {answer:?}");
        };
        let places = streams.cells();
        let line = Arc::new(Line::new((id, epoch), told, acknowledged, places));
        if !streams.add(&line) {
            return Err(OpenError::Fenced { epoch });
        }
        let opened = Opened {
            epoch,
            last,
            acknowledged,
            window: self.window,
            log_identity: self.identity,
            // The record of the Open is behind all of them, and it is durable.
            durable: last,
        };
        let (publisher, shared) = (self.publisher.clone(), Arc::clone(&self.shared));
        Ok(VenueSession::new(opened, line, publisher, shared, self.now))
    }

    #[cfg(test)]
    pub(crate) fn shared(&self) -> Arc<Shared> {
        Arc::clone(&self.shared)
    }

    /// Publishes a command and waits for its answer.
    fn ask(&self, command: Command) -> Result<Answer, OpenError> {
        let mut publisher = self.publisher.clone();
        let pending = publisher.publish(command, (self.now)());
        publisher.wake();
        wait(pending, &self.shared)
    }

    /// Publishes a read of rows. Once it is answered, [`Handle::page`] returns them. One read at a
    /// time: the caller must take its page before the next read.
    ///
    /// # Errors
    /// [`Overloaded`]: nothing was published.
    pub fn look(&mut self, look: Look, time_ns: u64) -> Result<Pending, Overloaded> {
        let pending = self.publisher.publish_asked(time_ns, |ticket| Work::Look { ticket, look });
        self.publisher.wake();
        pending
    }

    /// The rows of the last read that was answered.
    pub fn page(&self) -> Page {
        self.shared.page.lock().clone()
    }

    /// Decided postings of venues since the start: operation, successes, refusals.
    pub fn postings(&self) -> impl Iterator<Item = (Op, u64, u64)> + '_ {
        let counted = Op::ALL.into_iter().zip(&self.shared.postings);
        counted.filter(|(op, _)| op.is_posting()).map(|(op, [done, refused])| {
            (op, done.load(Ordering::Relaxed), refused.load(Ordering::Relaxed))
        })
    }

    /// Takes the oldest refused SETTLE or RELEASE of a venue. At most 64 wait: a flood drops older
    /// ones.
    pub fn refused_end(&self) -> Option<RefusedEnd> {
        self.shared.refused_ends.pop()
    }

    /// Halts the venues, or lets them go on. A number that the halt stops is answered with
    /// [`Reason::Halted`](crate::venue::Reason::Halted) and not decided.
    pub fn halt_venues(&self, halt: VenueHalt) {
        self.shared.streams.set_halt(halt);
    }

    /// Holds and freezes.
    pub fn holds(&self) -> usize {
        self.shared.holds.load(Ordering::Relaxed)
    }

    /// Holds and freezes that the table has room for.
    pub fn holds_max(&self) -> usize {
        self.holds_max
    }

    /// The highest sequence known durable.
    pub fn durable(&self) -> Sequence {
        self.shared.log.durable()
    }

    /// The highest sequence appended.
    pub fn appended(&self) -> Sequence {
        self.shared.log.appended()
    }

    /// Commands without an answer yet.
    pub fn in_flight(&self) -> usize {
        self.shared.tickets.in_use()
    }

    /// The transfers that UBSCore has room for, and the resource that bounds them. Transfers under
    /// way are included.
    pub fn capacity(&self) -> Capacity {
        let outcomes = self.shared.outcome_capacity.load(Ordering::Relaxed);
        capacity(outcomes, self.shared.log_capacity.load(Ordering::Relaxed))
    }

    /// The free places of each table.
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

    /// The most orders to publish before a wait for their answers. Other callers find room beside
    /// them.
    pub fn share(&self) -> usize {
        (self.shared.tickets.count() / 4).max(1)
    }

    /// Bytes of the records appended since the start.
    pub fn log_bytes(&self) -> u64 {
        self.shared.log_bytes.load(Ordering::Relaxed)
    }

    /// Removes the segments without records from `sequence` on. Returns before they are removed.
    ///
    /// The next start needs a snapshot at `sequence` or later.
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

/// Pins the calling thread if the system allows it.
fn pin(cpu: Option<usize>) {
    let Some(cpu) = cpu else { return };
    let allowed = core_affinity::get_core_ids().unwrap_or_default();
    match allowed.into_iter().find(|core| core.id == cpu) {
        Some(core) if core_affinity::set_for_current(core) => {
            info!(target: LOG_TARGET, cpu, "core thread pinned")
        }
        _ => {
            warn!(target: LOG_TARGET, cpu, "this process may not pin to the CPU: the core thread runs unpinned")
        }
    }
}
