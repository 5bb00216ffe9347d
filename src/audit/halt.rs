//! HALT: nothing new begins and transfers under way stay where they are, until an operator resumes.
//!
//! The flag is kept twice: in PostgreSQL (`engine_state.halted`) and in the data directory (the
//! file [`FILE`], which holds the reason). Either one halts a start, so that neither a restored
//! backup nor a lost disk loses the halt. Only a resume removes the flag, from both. Within the
//! process it is the closed [`Gate`], which every movement of money passes.
//!
//! [`crate::coordinator::step::restrain`] decides how far a transfer still goes while the service
//! is halted.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use engine::Handle;
use engine::venue::VenueHalt;
use parking_lot::Mutex;
use tokio::runtime;
use tokio::sync::watch;
use tracing::{error, info, warn};

use crate::clock::Clock;
use crate::gate::Gate;
use crate::postgres::admin::Admin;
use crate::postgres::admin::halts::HaltChange;
use crate::postgres::cut::{CutState, THEN};
use crate::postgres::{self, Verdict, is_going_away, verdict};
use crate::telemetry::{self, chain};

/// The file in the data directory that halts a start by its presence.
pub const FILE: &str = "halted";
/// Its name until it is complete.
const FILE_NEW: &str = "halted.new";
/// The longest reason read from the file, bytes: the file may come from outside.
const REASON_BYTES_MAX: usize = 2_000;
/// How long a halt waits for operations that began before it. Longer than any commit or question
/// may take.
const QUIET_WAIT: Duration = Duration::from_secs(10);
/// How long a change is retried while another transaction locks the row in PostgreSQL.
const STORE_WAIT: Duration = Duration::from_secs(5);
/// Between two tries.
const STORE_PAUSE: Duration = Duration::from_millis(20);
/// The operator's next step after a halt.
pub const NEXT: &str = "ubscore verify; when the cause is gone, ubscore resume --reason TEXT; \
                        runbook, \"It has halted\"";
/// The actor of a halt or resume that comes from the service itself.
const OURSELVES: &str = "ubscore";
/// The actor of the audit's halts. While a cut of the log is open, the audit finds its effects.
pub const AUDIT: &str = "audit";
/// The actor of a halt for a venue that is ahead of the log.
const VENUES: &str = "venues";

/// The owner of the flag.
pub struct Halt {
    /// The engine whose venues are halted with the gate.
    venues: Mutex<Option<Handle>>,
    gate: Arc<Gate>,
    admin: Admin,
    clock: Arc<dyn Clock>,
    data_dir: PathBuf,
    state: Mutex<State>,
    /// Held during a whole change, so that changes reach both places one after the other.
    changing: tokio::sync::Mutex<()>,
    /// Halts that wait for `changing`. The check of a resume may wait for one of them, so a resume
    /// gives way to it.
    waiting: watch::Sender<usize>,
}

/// A halt that waits for `changing`.
struct Waiting<'a>(&'a watch::Sender<usize>);

impl<'a> Waiting<'a> {
    fn new(waiting: &'a watch::Sender<usize>) -> Waiting<'a> {
        waiting.send_modify(|count| *count += 1);
        Waiting(waiting)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count -= 1);
    }
}

struct State {
    /// The reason while halted: the first one, which is the cause.
    reason: Option<String>,
    /// The change that holds the gate closed for now, and why; see [`Halt::hold`].
    held: Option<(u64, String)>,
    /// Number of halts and objections. A resume that sees it change gives up.
    halts: u64,
    /// The last halt is not written in PostgreSQL.
    unwritten: bool,
    /// The log was cut, and no repair has ended that.
    cut_open: bool,
    /// The cut is the only cause of the halt, and venues may send again.
    resends: bool,
}

impl State {
    /// Whether the gate is closed.
    fn is_closed(&self) -> bool {
        self.reason.is_some() || self.held.is_some()
    }

    fn of_venues(&self) -> VenueHalt {
        match self.is_closed() {
            false => VenueHalt::Off,
            true if self.resends && self.held.is_none() => VenueHalt::Lost,
            true => VenueHalt::On,
        }
    }
}

/// The extent of a halt. The process is halted in any case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Halted {
    /// The reason in force. An earlier halt keeps its own reason.
    pub reason: String,
    /// The data directory keeps the halt over a restart.
    pub in_data_dir: bool,
    /// PostgreSQL keeps the halt over a restart.
    pub in_postgres: bool,
    /// Everything that had begun before has ended: no money moves.
    pub quiet: bool,
}

/// The reasons for which a start is halted, by their place.
#[derive(Clone, Debug)]
pub struct Found {
    /// In `engine_state`.
    pub in_postgres: Option<String>,
    /// See [`found_in`].
    pub in_data_dir: Option<String>,
    /// The cut of the log that PostgreSQL knows.
    pub cut: CutState,
}

impl Found {
    /// Whether venues may send again. A halt that PostgreSQL could not record is in the data
    /// directory only, and makes the reasons differ.
    fn resends(&self) -> bool {
        let in_postgres = self.in_postgres.as_ref().map(|reason| as_kept(reason.as_bytes()));
        let agrees = self.in_data_dir.is_none() || self.in_data_dir == in_postgres;
        self.cut == CutState::Credited && in_postgres.is_some() && agrees
    }
}

/// The objection of the check before a resume, for operators.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Objection(pub String);

/// Why the service is still halted.
#[derive(Debug, thiserror::Error)]
pub enum NotResumed {
    /// The check has found something.
    #[error(transparent)]
    Objection(#[from] Objection),
    /// The service was halted again during the resume.
    #[error("it was halted again during the resume")]
    HaltedAgain,
    /// PostgreSQL still holds the halt, or may hold it.
    #[error("PostgreSQL does not have the resume")]
    Postgres(#[source] postgres::Error),
    /// The data directory still holds the halt.
    #[error("the data directory still has the halt")]
    DataDir(#[source] io::Error),
}

/// A halt or an objection came before the gate was opened.
#[derive(Debug, thiserror::Error)]
#[error("still halted: {in_force}")]
struct StillHalted {
    /// The reason in force.
    in_force: String,
}

/// The reason for which a data directory halts, `None` if it does not.
///
/// A file that cannot be read halts as well, because its absence is not proven.
pub fn found_in(data_dir: &Path) -> Option<String> {
    match fs::read(data_dir.join(FILE)) {
        Ok(bytes) => Some(as_kept(&bytes)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => {
            Some(format!("the file {FILE} in the data directory cannot be read: {error}"))
        }
    }
}

/// A reason as it is read from the file.
fn as_kept(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(&bytes[..bytes.len().min(REASON_BYTES_MAX)]);
    match text.trim() {
        "" => "no reason is given".to_owned(),
        reason => reason.to_owned(),
    }
}

/// The most characters of a reason.
const REASON_CHARS_MAX: usize = 500;

/// Whether a text is a valid reason: 1 to 500 characters, no control characters. Control characters
/// could forge lines in a log, and PostgreSQL accepts no zero byte.
pub fn check_reason(reason: &str) -> bool {
    let length = reason.trim().chars().count();
    (1..=REASON_CHARS_MAX).contains(&length) && !reason.chars().any(char::is_control)
}

/// Halts the next start of a data directory while its service is down. Returns the reason in force:
/// an earlier reason stays in front of this one.
///
/// # Errors
/// The flag is not kept.
pub fn keep_for_next_start(data_dir: &Path, reason: &str) -> io::Result<String> {
    let in_force = match found_in(data_dir) {
        Some(earlier) => format!("{earlier}{THEN}{reason}"),
        None => reason.to_owned(),
    };
    keep(data_dir, &in_force)?;
    Ok(in_force)
}

impl Halt {
    /// The flag as a start has found it. If only one place holds the halt, it is written to the
    /// other.
    pub async fn begin(
        found: Found,
        admin: Admin,
        clock: Arc<dyn Clock>,
        data_dir: PathBuf,
    ) -> Halt {
        let resends = found.resends();
        let Found { in_postgres, in_data_dir, cut } = found;
        let reason = in_data_dir.clone().or_else(|| in_postgres.clone());
        let gate = Arc::new(Gate::new(reason.is_some()));
        telemetry::halted(reason.is_some());
        let state = State {
            reason: reason.clone(),
            held: None,
            halts: 0,
            unwritten: false,
            cut_open: cut != CutState::Closed,
            resends,
        };
        let state = Mutex::new(state);
        let changing = tokio::sync::Mutex::new(());
        let waiting = watch::Sender::new(0);
        let venues = Mutex::new(None);
        let halt = Halt { gate, venues, admin, clock, data_dir, state, changing, waiting };
        if let Some(reason) = reason {
            error!(
                reason,
                next = NEXT,
                "the service is halted, as it was before; resume it when the cause is gone"
            );
            if in_data_dir.is_none() {
                halt.keep_in_data_dir(&reason).await;
            }
            if in_postgres.is_none() {
                halt.keep_in_postgres(OURSELVES, &reason, &reason).await;
            }
        }
        halt
    }

    /// The gate that every movement of money passes.
    pub fn gate(&self) -> Arc<Gate> {
        Arc::clone(&self.gate)
    }

    /// From now on the venues of this engine are halted together with the gate.
    pub fn follow(&self, engine: Handle) {
        // The state's lock orders it with a change of the gate.
        let state = self.state.lock();
        engine.halt_venues(state.of_venues());
        *self.venues.lock() = Some(engine);
    }

    /// Closes or opens the gate, after a change of the state. The caller has its lock.
    fn set_gate(&self, state: &State) {
        let closed = state.is_closed();
        match closed {
            true => self.gate.close(),
            false => self.gate.open(),
        }
        telemetry::halted(closed);
        if let Some(engine) = &*self.venues.lock() {
            engine.halt_venues(state.of_venues());
        }
    }

    /// Whether venues may send again the numbers that a cut of the log has lost.
    pub fn resends(&self) -> bool {
        self.state.lock().of_venues() == VenueHalt::Lost
    }

    /// Whether the log was cut, and no repair has ended that.
    pub fn is_cut_open(&self) -> bool {
        self.state.lock().cut_open
    }

    /// Records the last answer that a venue has. An open cut of the log is not repaired before the
    /// log has this number again. Call it before the venue's session sends a number.
    ///
    /// # Errors
    /// PostgreSQL has not recorded it.
    pub async fn note_venue(&self, venue: u32, told: u64) -> Result<(), postgres::Error> {
        self.admin.note_venue(OURSELVES, venue, told).await
    }

    /// Whether the service is halted, or held.
    pub fn is_halted(&self) -> bool {
        self.gate.is_closed()
    }

    /// Whether only a resume opens the gate again.
    pub fn needs_resume(&self) -> bool {
        self.state.lock().reason.is_some()
    }

    /// Why the service is halted or held, `None` if it is neither.
    pub fn reason(&self) -> Option<String> {
        let state = self.state.lock();
        let held = || state.held.as_ref().map(|(_, why)| why.clone());
        state.reason.clone().or_else(held)
    }

    /// Closes the gate at once, until [`Halt::release`], for a comparison of both stores. A restart
    /// does not keep it, since a start compares by itself. A resume that is under way gives up.
    /// `number`: the latest one counts.
    pub fn hold(&self, number: u64, why: &str) {
        let mut state = self.state.lock();
        state.halts += 1;
        state.held = Some((number, why.to_owned()));
        self.set_gate(&state);
    }

    /// Ends the [`Halt::hold`] of this number, unless there is a later one. If the service is
    /// halted, the gate stays closed.
    pub fn release(&self, number: u64) {
        let mut state = self.state.lock();
        let ended = state.held.take_if(|(held, _)| *held == number).is_some();
        if ended {
            self.set_gate(&state);
        }
    }

    /// Whether PostgreSQL has every halt. A halt that it lacks has no number to refer to.
    pub fn is_written(&self) -> bool {
        !self.state.lock().unwritten
    }

    /// Makes a resume that is under way give up. Returns at once.
    pub fn object(&self) {
        self.state.lock().halts += 1;
    }

    /// Halts for a venue that is ahead of the log, before it has a session. A resume ends no halt
    /// whose reason lacks the venue. An open cut, which waits for it, needs no other reason.
    /// Returns at once; [`Halt::halt`] follows on the runtime.
    pub fn halt_for_venue(self: &Arc<Halt>, reason: String, runtime: &runtime::Handle) {
        if self.is_cut_open() && self.needs_resume() {
            return self.object();
        }
        self.close(VENUES, &reason);
        let halt = Arc::clone(self);
        runtime.spawn(async move { halt.halt(VENUES, &reason).await });
    }

    /// Halts. Nothing new begins from the first moment. Returns when both places have the halt, as
    /// far as each can be reached, and earlier operations have ended.
    pub async fn halt(&self, actor: &str, reason: &str) -> Halted {
        self.close(actor, reason);
        error!(actor, reason, next = NEXT, "halted");
        let waiting = Waiting::new(&self.waiting);
        let _changing = self.changing.lock().await;
        drop(waiting);
        // A resume in the queue before this halt counts it as an earlier one, and may have opened
        // the gate again.
        let in_force = self.close(actor, reason);
        let quiet = async {
            tokio::select! {
                () = self.gate.quiet() => true,
                () = self.clock.sleep(QUIET_WAIT) => false,
            }
        };
        // The disk waits neither for PostgreSQL nor for a commit that hangs.
        let (in_data_dir, in_postgres, quiet) = tokio::join!(
            self.keep_in_data_dir(&in_force),
            self.keep_in_postgres(actor, reason, &in_force),
            quiet,
        );
        // Only a resume opens the gate of a halted service, and it waits for `changing`.
        assert!(self.gate.is_closed(), "the gate is open after a halt: {in_force}");
        Halted { reason: in_force, in_data_dir, in_postgres, quiet }
    }

    /// The part of a halt that needs no PostgreSQL: the gate and the data directory. The caller
    /// halts afterwards. `by_audit`: a cut of the log may explain the cause.
    pub async fn begin_halt(&self, by_audit: bool, reason: &str) {
        let in_force = self.close(if by_audit { AUDIT } else { OURSELVES }, reason);
        self.state.lock().unwritten = true;
        self.keep_in_data_dir(&in_force).await;
    }

    /// Closes the gate. Returns the reason in force: the first one. Added to it are a venue ahead
    /// of the log and, while a cut is open, every other cause: they stop venues that send again.
    fn close(&self, actor: &str, reason: &str) -> String {
        let mut state = self.state.lock();
        state.halts += 1;
        let is_kept = state.cut_open || actor == VENUES;
        let resends = state.resends;
        let is_added = |first: &str| match actor {
            AUDIT => false,
            _ if resends => true,
            _ => is_kept && !first.split(THEN).any(|known| known == reason),
        };
        let in_force = match state.reason.take() {
            Some(first) if is_added(&first) => format!("{first}{THEN}{reason}"),
            Some(first) => first,
            None => reason.to_owned(),
        };
        state.reason = Some(in_force.clone());
        state.resends &= actor == AUDIT;
        self.set_gate(&state);
        in_force
    }

    /// Resumes, unless `check` objects. Both places drop the halt before anything moves.
    ///
    /// # Errors
    /// [`NotResumed`]: it is still halted.
    pub async fn resume(
        &self,
        actor: &str,
        reason: &str,
        check: impl Future<Output = Result<(), Objection>>,
    ) -> Result<(), NotResumed> {
        let _changing = self.changing.lock().await;
        if !self.needs_resume() {
            // A check that finds something now would wait for this change, which waits for the
            // check.
            return match self.reason() {
                Some(held) => Err(NotResumed::Objection(Objection(held))),
                None => Ok(()),
            };
        }
        let halts = self.state.lock().halts;
        self.unless_halted(check).await??;
        if self.state.lock().halts != halts {
            return Err(NotResumed::HaltedAgain);
        }
        // PostgreSQL first, with the name of the actor. A crash in between leaves the file, which
        // halts.
        let change = HaltChange::Resume { actor, reason };
        self.store(change).await.map_err(|error| match error {
            postgres::Error::Unrepaired => NotResumed::Objection(Objection(error.to_string())),
            error => NotResumed::Postgres(error),
        })?;
        self.forget_in_data_dir().await.map_err(NotResumed::DataDir)?;
        if let Err(StillHalted { in_force }) = self.open(halts) {
            // An objection alone has written nothing, so both places need the halt again.
            let kept =
                self.keep_in_postgres(OURSELVES, "an objection came during the resume", &in_force);
            tokio::join!(self.keep_in_data_dir(&in_force), kept);
            return Err(NotResumed::HaltedAgain);
        }
        info!(actor, reason, "resumed");
        Ok(())
    }

    /// Awaits the check of a resume, until a halt waits for the resume to end. If a halt waits
    /// already, no check is requested.
    async fn unless_halted<T>(&self, check: impl Future<Output = T>) -> Result<T, NotResumed> {
        let mut waiting = self.waiting.subscribe();
        tokio::select! {
            biased;
            // The sender lives as long as `self`.
            _ = waiting.wait_for(|count| *count > 0) => Err(NotResumed::HaltedAgain),
            checked = check => Ok(checked),
        }
    }

    /// Opens the gate, unless the number of halts and objections has risen above `halts`. `Err`:
    /// the reason of the halt.
    fn open(&self, halts: u64) -> Result<(), StillHalted> {
        let mut state = self.state.lock();
        if state.halts != halts {
            let in_force = state.reason.clone().expect("only a resume takes the reason away");
            return Err(StillHalted { in_force });
        }
        state.reason = None;
        (state.cut_open, state.resends) = (false, false);
        self.set_gate(&state);
        Ok(())
    }

    async fn keep_in_postgres(&self, actor: &str, reason: &str, in_force: &str) -> bool {
        let kept = self.store(HaltChange::Halt { actor, reason, in_force }).await;
        if let Err(failure) = &kept {
            error!(error = chain(failure), "the halt is not written in PostgreSQL");
        }
        self.state.lock().unwritten = kept.is_err();
        kept.is_ok()
    }

    /// Retries while another transaction holds the row, which is short behind a closed gate.
    /// Retries as well over a new connection if the old one has ended.
    async fn store(&self, change: HaltChange<'_>) -> Result<(), postgres::Error> {
        let wait_ns = u64::try_from(STORE_WAIT.as_nanos()).expect("seconds");
        let deadline_ns = self.clock.monotonic_ns() + wait_ns;
        loop {
            let left_ns = deadline_ns.saturating_sub(self.clock.monotonic_ns());
            let done = tokio::select! {
                done = self.admin.change_halt(change) => done,
                // Whether the change was made is unknown. It may be repeated.
                () = self.clock.sleep(Duration::from_nanos(left_ns)) => {
                    return Err(postgres::Error::Timeout(STORE_WAIT));
                }
            };
            match &done {
                // A connection from before an outage ends with its first use. A repeated change
                // only leaves its note twice.
                Err(postgres::Error::Query(error))
                    if (verdict(error) == Verdict::Retry || is_going_away(error))
                        && self.clock.monotonic_ns() < deadline_ns =>
                {
                    self.clock.sleep(STORE_PAUSE).await;
                }
                Ok(()) | Err(_) => return done,
            }
        }
    }

    async fn keep_in_data_dir(&self, reason: &str) -> bool {
        let (data_dir, reason) = (self.data_dir.clone(), reason.to_owned());
        let kept = on_disk(move || keep(&data_dir, &reason)).await;
        if let Err(failure) = &kept {
            error!(error = chain(failure), "the halt is not written in the data directory");
        }
        kept.is_ok()
    }

    async fn forget_in_data_dir(&self) -> io::Result<()> {
        let data_dir = self.data_dir.clone();
        on_disk(move || forget(&data_dir)).await
    }
}

/// Runs disk work on a thread of its own, so that the workers' threads do not wait for the disk.
async fn on_disk(work: impl FnOnce() -> io::Result<()> + Send + 'static) -> io::Result<()> {
    tokio::task::spawn_blocking(work).await.map_err(io::Error::other)?
}

/// Writes the flag with its reason. Atomic, and durable on return.
///
/// # Errors
/// The flag is not kept.
pub fn keep(data_dir: &Path, reason: &str) -> io::Result<()> {
    let new = data_dir.join(FILE_NEW);
    let mut file = wal::create_private(&new)?;
    writeln!(file, "{reason}")?;
    file.sync_all()?;
    fs::rename(&new, data_dir.join(FILE))?;
    File::open(data_dir)?.sync_all()
}

fn forget(data_dir: &Path) -> io::Result<()> {
    match fs::remove_file(data_dir.join(FILE)) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            warn!("the data directory had no halt to remove");
        }
        Err(error) => return Err(error),
    }
    File::open(data_dir)?.sync_all()
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use arc_swap::ArcSwap;
    use tempfile::tempdir;

    use super::*;
    use crate::clock::SystemClock;
    use crate::postgres::reads::Reads;
    use crate::postgres::{Address, Limits, pool};
    use domain::asset::Catalog;

    /// A halt that PostgreSQL does not get: no server listens on port 1.
    async fn without_postgres(data_dir: &Path) -> Arc<Halt> {
        let found = Found { in_postgres: None, in_data_dir: None, cut: CutState::Closed };
        begun(found, data_dir).await
    }

    async fn begun(found: Found, data_dir: &Path) -> Arc<Halt> {
        let address = Address::parse("postgres://nobody@127.0.0.1:1/none").expect("an address");
        let second = Duration::from_secs(1);
        let limits = Limits {
            connect_timeout: second,
            statement_timeout: second,
            lock_timeout: second,
            idle_in_transaction_timeout: second,
        };
        let catalog = Arc::new(ArcSwap::from_pointee(Catalog::default()));
        let admin = Admin::new(Reads::new(pool(&address, &limits, 1), catalog), 1);
        let clock = Arc::new(SystemClock::new());
        Arc::new(Halt::begin(found, admin, clock, data_dir.to_owned()).await)
    }

    /// The check of a resume waits for a round of the audit. That round may have to write an
    /// earlier halt again, and waits for the resume.
    #[tokio::test]
    async fn a_resume_gives_way_to_a_halt_that_its_check_waits_for() {
        let directory = tempdir().expect("a directory");
        let halt = without_postgres(directory.path()).await;
        let halted = halt.halt("audit", "the sums differ").await;
        assert!(halted.in_data_dir && !halted.in_postgres, "{halted:?}");
        let round = Arc::clone(&halt);
        let check = async move {
            tokio::spawn(async move { round.halt("audit", "the sums differ").await });
            pending::<Result<(), Objection>>().await
        };
        let resumed = halt.resume("an operator", "hope", check).await;
        assert!(matches!(resumed, Err(NotResumed::HaltedAgain)), "{resumed:?}");
        assert!(halt.needs_resume() && halt.is_halted());
    }

    /// Story: a resume requested a check while a halt waited already, and gave it up at once. The
    /// audit still made the check.
    #[tokio::test]
    async fn a_resume_before_a_waiting_halt_requests_no_check() {
        let directory = tempdir().expect("a directory");
        let halt = without_postgres(directory.path()).await;
        halt.halt("audit", "the sums differ").await;
        let earlier = halt.changing.lock().await;
        let check = async { unreachable!("the check is requested") };
        // In this order they queue up behind the earlier change.
        let (resumed, _, ()) = tokio::join!(
            halt.resume("an operator", "hope", check),
            halt.halt("an operator", "not yet"),
            async { drop(earlier) },
        );
        assert!(matches!(resumed, Err(NotResumed::HaltedAgain)), "{resumed:?}");
        assert!(halt.needs_resume() && halt.is_halted());
    }

    /// RCV-007. Goal: venues send again only while the cut is the one cause of the halt, over
    /// starts and with either place of the flag.
    #[tokio::test]
    async fn another_cause_than_the_cut_stops_lost_numbers() {
        let of_cut = || Some("the log was cut".to_owned());
        let more = Some("the log was cut; then: suspicious".to_owned());
        let found = |in_postgres, in_data_dir, cut| Found { in_postgres, in_data_dir, cut };
        for (found, want) in [
            (found(of_cut(), of_cut(), CutState::Credited), true),
            (found(of_cut(), None, CutState::Credited), true),
            (found(of_cut(), more.clone(), CutState::Credited), false),
            (found(None, of_cut(), CutState::Credited), false),
            (found(of_cut(), of_cut(), CutState::Open), false),
            (found(of_cut(), of_cut(), CutState::Closed), false),
        ] {
            assert_eq!(found.resends(), want, "{found:?}");
        }
        let directory = tempdir().expect("a directory");
        let halt = begun(found(of_cut(), None, CutState::Credited), directory.path()).await;
        assert!(halt.resends() && halt.is_cut_open());
        halt.hold(1, "another server");
        assert!(!halt.resends());
        halt.release(1);
        assert!(halt.resends() && halt.is_halted());
        // The cut itself makes the stores differ.
        halt.halt(AUDIT, "the sums differ").await;
        halt.begin_halt(true, "the sums differ on another server").await;
        assert!(halt.resends());
        for _ in 0..2 {
            let halted = halt.halt("an operator", "suspicious").await;
            assert_eq!((Some(halted.reason), halt.resends()), (more.clone(), false));
            assert_eq!(found_in(directory.path()), more);
        }
    }

    /// Goal: no resume ends a halt without a word on a venue that is ahead of the log; while a cut
    /// is open, each cause is kept. Method: the venue opens before and during a resume.
    #[tokio::test]
    async fn a_venue_ahead_of_the_log_is_added_to_a_halt() {
        let directory = tempdir().expect("a directory");
        let halt = without_postgres(directory.path()).await;
        let runtime = runtime::Handle::current();
        halt.halt("an operator", "first").await;
        halt.halt("an operator", "second").await;
        let check = async {
            for _ in 0..2 {
                halt.halt_for_venue("venue 7 is ahead".to_owned(), &runtime);
            }
            Ok(())
        };
        let resumed = halt.resume("an operator", "hope", check).await;
        assert!(matches!(resumed, Err(NotResumed::HaltedAgain)), "{resumed:?}");
        assert_eq!(halt.reason().as_deref(), Some("first; then: venue 7 is ahead"));

        let of_cut = Some("cut".to_owned());
        let found = Found { in_postgres: of_cut.clone(), in_data_dir: of_cut, cut: CutState::Open };
        let halt = begun(found, directory.path()).await;
        halt.halt(AUDIT, "the sums differ").await;
        halt.halt_for_venue("venue 7 is ahead".to_owned(), &runtime);
        let halted = halt.halt("an operator", "suspicious").await;
        assert_eq!(halted.reason, "cut; then: suspicious");
    }

    #[test]
    fn a_data_directory_halts_from_keep_to_forget() {
        let directory = tempdir().expect("a directory");
        let path = directory.path();
        assert_eq!(found_in(path), None);
        keep(path, "the sums differ").expect("kept");
        assert_eq!(found_in(path).as_deref(), Some("the sums differ"));
        keep(path, "for another reason").expect("kept");
        assert_eq!(found_in(path).as_deref(), Some("for another reason"));
        forget(path).expect("forgotten");
        assert_eq!(found_in(path), None);
        forget(path).expect("nothing to forget is as good");
        assert_eq!(fs::read_dir(path).expect("readable").count(), 0, "no file is left behind");
    }

    /// Every file or directory of that name halts, also one from outside.
    #[test]
    fn a_file_without_a_reason_or_that_cannot_be_read_halts() {
        let directory = tempdir().expect("a directory");
        let file = directory.path().join(FILE);
        fs::write(&file, b" \n").expect("written");
        assert_eq!(found_in(directory.path()).as_deref(), Some("no reason is given"));
        fs::write(&file, [0xff; 3 * REASON_BYTES_MAX]).expect("written");
        assert!(found_in(directory.path()).is_some());
        fs::remove_file(&file).expect("removed");
        fs::create_dir(&file).expect("a directory in its place");
        let reason = found_in(directory.path()).expect("halts");
        assert!(reason.contains("cannot be read"), "{reason}");
    }
}
