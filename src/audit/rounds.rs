//! When the rounds of the audit run, and the consequences of a finding: one alert each, and HALT.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tracing::{error, info, warn};

use super::conservation::{Audit, Report, SpotReader};
use super::error::Error;
use super::halt::{AUDIT, Halt, Objection};
use super::mismatch::{Kind, Mismatch};
use crate::alert::{Alert, alert, alert_about};
use crate::clock::Clock;
use crate::config::Config;
use crate::gate::CleanRounds;
use crate::postgres::pin::{Change, Pin};
use crate::postgres::{self, Superseded};
use crate::telemetry::{self, chain};
use domain::asset::Catalog;

/// Mismatches that get an alert each.
const ALERTS_MAX: usize = 20;
/// Rounds that may fail in a row before an alert.
const ROUNDS_MISSED: u32 = 3;
/// Between two comparisons of a PostgreSQL that has changed.
const SETTLE_PAUSE: Duration = Duration::from_millis(200);
/// How long a comparison waits for operations that began before the change.
const QUIET_WAIT: Duration = Duration::from_secs(30);
/// While a start compares everything, an alert this often reports that nothing is proven yet.
const SWEEP_BLIND_MAX: Duration = Duration::from_secs(60);
/// Checks that wait for their turn.
const REQUESTS_MAX: usize = 16;

/// The findings of a check, empty if nothing is wrong.
pub type Checked = Result<Vec<Mismatch>, Arc<Error>>;

/// Requests a check.
#[derive(Clone)]
pub struct Check {
    requests: mpsc::Sender<oneshot::Sender<Checked>>,
}

/// A check that was not made.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Unchecked {
    /// Too many checks wait, or the service is stopping.
    #[error("the audit is busy or has stopped")]
    Busy,
    /// It could not be finished.
    #[error("the check could not be finished")]
    Failed(#[source] Arc<Error>),
}

impl Check {
    /// Compares everything from its beginning. Halts if it finds something.
    ///
    /// # Errors
    /// [`Unchecked`]: the result is unknown.
    pub async fn now(&self) -> Result<Vec<Mismatch>, Unchecked> {
        let (reply, receiver) = oneshot::channel();
        self.requests.try_send(reply).map_err(|_| Unchecked::Busy)?;
        receiver.await.map_err(|_| Unchecked::Busy)?.map_err(Unchecked::Failed)
    }

    /// The same check before a resume.
    ///
    /// # Errors
    /// [`Objection`]: something was found, or the result is unknown.
    pub async fn objection(self, catalog: &Catalog) -> Result<(), Objection> {
        let found = self.now().await.map_err(|unchecked| Objection(chain(&unchecked)))?;
        in_short(&found, catalog).map_or(Ok(()), |why| Err(Objection(why)))
    }
}

/// The first mismatch for people, and the number of further ones; `None` if there is none.
fn in_short(found: &[Mismatch], catalog: &Catalog) -> Option<String> {
    let first = catalog.name_assets(&found.first()?.to_string());
    Some(match found.len() - 1 {
        0 => first,
        more => format!("{first}; and {more} more"),
    })
}

/// The receiving end of [`Check`].
pub struct Requests(mpsc::Receiver<oneshot::Sender<Checked>>);

/// A requester, and its receiving end.
pub fn check() -> (Check, Requests) {
    let (requests, receiver) = mpsc::channel(REQUESTS_MAX);
    (Check { requests }, Requests(receiver))
}

/// Before the service is ready: compares everything that is new since its last run. If PostgreSQL
/// is another server, compares everything. `found`: findings of the start.
///
/// # Errors
/// [`Error`]: the result is unknown.
pub async fn catch_up(
    audit: &mut Audit<impl SpotReader>,
    found: &[Mismatch],
    different: Option<&str>,
    halt: &Halt,
    clock: &dyn Clock,
) -> Result<(), Error> {
    conclude(found, &audit.catalog(), halt, clock).await;
    if let Some(why) = different {
        let what = format_args!("{why}; everything is compared before the service is ready");
        alert(Alert::PostgresChanged, what);
        let found = sweep(audit, SWEEP_BLIND_MAX, clock).await?;
        conclude(&found, &audit.catalog(), halt, clock).await;
        return Ok(());
    }
    loop {
        let report = audit.round().await?;
        if conclude(&report.mismatches, &audit.catalog(), halt, clock).await || report.caught_up {
            return Ok(());
        }
    }
}

/// When rounds begin and when they are late; see `[conservation]` and `[alert]` in the
/// configuration.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Between two rounds.
    pub every: Duration,
    /// An alert comes after this long without a finished round, and not before three times
    /// [`Options::every`].
    pub stalled: Duration,
}

impl From<&Config> for Options {
    fn from(config: &Config) -> Options {
        Options {
            every: Duration::from_millis(config.conservation.every_ms),
            stalled: Duration::from_millis(config.alert.stuck_ms),
        }
    }
}

/// Parameters of the rounds.
pub struct Watching {
    /// Findings of the start that no round looks for again. They object to every resume until the
    /// next start.
    pub found: Vec<Mismatch>,
    /// When rounds begin and when they are late.
    pub options: Options,
    /// The halt flag.
    pub halt: Arc<Halt>,
    /// The server that is compared.
    pub pin: Arc<Pin>,
    /// Clean rounds are counted here.
    pub clean: Arc<CleanRounds>,
}

/// Runs a round every [`Options::every`], at once if there is more to compare, and checks on
/// request. Ends when every [`Check`] is gone.
///
/// # Errors
/// [`Superseded`]: the process must end.
pub async fn run(
    mut audit: Audit<impl SpotReader>,
    watching: Watching,
    clock: Arc<dyn Clock>,
    Requests(mut requests): Requests,
) -> Result<(), Superseded> {
    let Watching { found, options, halt, clean, pin } = watching;
    let Options { every, stalled: stalled_after } = options;
    let mut changes = pin.changes();
    let clock = clock.as_ref();
    let blind_max = stalled_after.max(every * ROUNDS_MISSED);
    let (mut behind, mut finished_ns) = (false, clock.monotonic_ns());
    loop {
        if let Some(change) = pin.change() {
            match settle(&mut audit, &pin, &change, &halt, (blind_max, clock)).await {
                true => finished_ns = clock.monotonic_ns(),
                false => clock.sleep(SETTLE_PAUSE).await,
            }
            // A check requested before the change is about another server.
            match requests.try_recv() {
                Ok(reply) => {
                    let changed = postgres::Error::Changed(change.to_string());
                    drop(reply.send(Err(Arc::new(changed.into()))));
                }
                Err(mpsc::error::TryRecvError::Disconnected) => return Ok(()),
                Err(mpsc::error::TryRecvError::Empty) => {}
            }
            continue;
        }
        let pause = if behind { Duration::ZERO } else { every };
        let asked = tokio::select! {
            biased;
            Ok(()) = changes.changed() => continue,
            request = requests.recv() => match request {
                // The requester may have gone. An ordinary round then takes the place of the check.
                Some(reply) => Some(reply).filter(|reply| !reply.is_closed()),
                None => return Ok(()),
            },
            () = clean.wanted() => None,
            () = clock.sleep(pause) => None,
        };
        let finished = match asked {
            Some(reply) => {
                let began_ns = clock.monotonic_ns();
                let checked = everything(&mut audit, blind_max, &found, &halt, clock).await;
                if checked.as_ref().is_ok_and(Vec::is_empty) {
                    clean.ended(began_ns);
                }
                let finished = checked.is_ok();
                // The requester may have gone.
                drop(reply.send(checked));
                finished
            }
            // The finding is known, and is compared again before a resume.
            None if halt.is_halted() && !behind => true,
            None => {
                let began_ns = clock.monotonic_ns();
                match round(&mut audit, blind_max, clock).await {
                    Ok(report) => {
                        let found = &report.mismatches;
                        let violated = conclude(found, &audit.catalog(), &halt, clock).await;
                        if !violated && report.caught_up && report.read_all {
                            clean.ended(began_ns);
                        }
                        behind = !report.caught_up;
                        // A venue may have come while the server changed.
                        if let Err(error) = audit.renew_mark().await {
                            failed(&error);
                        }
                        true
                    }
                    Err(Error::Postgres(postgres::Error::Superseded)) => {
                        alert(Alert::Fenced, format_args!("the audit belongs to another process"));
                        return Err(Superseded);
                    }
                    Err(error) => {
                        failed(&error);
                        behind = false;
                        false
                    }
                }
            }
        };
        if finished {
            finished_ns = clock.monotonic_ns();
        }
        let blind = Duration::from_nanos(clock.monotonic_ns() - finished_ns);
        if blind >= blind_max {
            stalled(blind);
        }
    }
}

/// Runs one round. Alerts every `blind_max` while it runs, because PostgreSQL may hang without an
/// error.
async fn round(
    audit: &mut Audit<impl SpotReader>,
    blind_max: Duration,
    clock: &dyn Clock,
) -> Result<Report, Error> {
    let mut round = pin!(audit.round());
    let mut blind = Duration::ZERO;
    loop {
        tokio::select! {
            biased;
            report = &mut round => return report,
            () = clock.sleep(blind_max) => {
                blind += blind_max;
                stalled(blind);
            }
        }
    }
}

fn stalled(blind: Duration) {
    let what = "no round of the audit was finished for some time: the money is not checked";
    alert(Alert::ConservationStalled, format_args!("{what} ({blind:.0?})"));
}

async fn everything(
    audit: &mut Audit<impl SpotReader>,
    blind_max: Duration,
    found: &[Mismatch],
    halt: &Halt,
    clock: &dyn Clock,
) -> Checked {
    if conclude(found, &audit.catalog(), halt, clock).await {
        return Ok(found.to_vec());
    }
    let unfinished = |error| {
        failed(&error);
        Arc::new(error)
    };
    let found = sweep(audit, blind_max, clock).await.map_err(unfinished)?;
    // Findings first: they halt, with or without the mark.
    if !conclude(&found, &audit.catalog(), halt, clock).await {
        // Before a resume opens the gate.
        audit.renew_mark().await.map_err(unfinished)?;
    }
    Ok(found)
}

/// Compares everything on the server of `change`. The gate is held before, and is open or halted
/// afterwards. Returns false if the result is unknown; the caller tries again.
async fn settle(
    audit: &mut Audit<impl SpotReader>,
    pin: &Pin,
    change: &Change,
    halt: &Halt,
    (blind_max, clock): (Duration, &dyn Clock),
) -> bool {
    let gate = halt.gate();
    tokio::select! {
        () = gate.quiet() => {}
        () = clock.sleep(QUIET_WAIT) => {
            error!("operations from before the change have not ended; the gate stays closed");
            return false;
        }
    }
    info!(%change, "comparing everything before anything moves");
    audit.reconnect();
    let mut found = match sweep(audit, blind_max, clock).await {
        Ok(found) => found,
        Err(error) => {
            failed(&error);
            return false;
        }
    };
    let Some(seen) = pin.change().filter(|now| now.number() == change.number()) else {
        return false;
    };
    let flights = pin.flights();
    let lacks = seen.sight.as_ref().and_then(|sight| sight.lacks(&flights));
    found.extend(lacks.map(|lacks| Mismatch::new(Kind::LostCommits(lacks))));
    // Before the gate opens, and with it the venues. A finding halts, with or without the mark.
    let marked = audit.renew_mark().await.inspect_err(failed).is_ok();
    if found.is_empty() && !marked {
        return false;
    }
    // From the acceptance on, the next start asks for the flights of the new server only. It must
    // find the halt.
    if let Some(why) = in_short(&found, &audit.catalog()) {
        let lacks = found.iter().any(|found| matches!(found.kind, Kind::LostCommits(_)));
        halt.begin_halt(!lacks, &why).await;
    }
    if !pin.accept(change) {
        return false;
    }
    if conclude(&found, &audit.catalog(), halt, clock).await {
        error!(%change, found = found.len(), "the comparison found differences: halted");
    } else {
        warn!(%change, "the comparison found nothing: the service goes on with this server");
    }
    halt.release(change.number());
    true
}

/// Compares everything from its beginning, up to the first round with a finding.
async fn sweep(
    audit: &mut Audit<impl SpotReader>,
    blind_max: Duration,
    clock: &dyn Clock,
) -> Result<Vec<Mismatch>, Error> {
    audit.rewind();
    let (mut swept, mut swept_log) = (false, false);
    loop {
        let report = round(audit, blind_max, clock).await?;
        if !report.mismatches.is_empty() {
            return Ok(report.mismatches);
        }
        // With much to do, no single round may cover both.
        swept |= report.swept;
        swept_log |= report.swept_log;
        // A round that could not keep earlier outcomes reads nothing more, and still counts as
        // caught up.
        if swept && swept_log && report.caught_up && report.read_all {
            return Ok(Vec::new());
        }
    }
}

fn failed(error: &Error) {
    metrics::counter!(telemetry::CONSERVATION_RUNS_TOTAL, "result" => "failed").increment(1);
    warn!(error = chain(error), "a round of the audit could not be finished");
}

/// Alerts and halts if something was found. Returns whether it was.
async fn conclude(found: &[Mismatch], catalog: &Catalog, halt: &Halt, clock: &dyn Clock) -> bool {
    let Some(why) = in_short(found, catalog) else {
        metrics::counter!(telemetry::CONSERVATION_RUNS_TOTAL, "result" => "clean").increment(1);
        metrics::gauge!(telemetry::CONSERVATION_LAST_SUCCESS).set(clock.now_s() as f64);
        return false;
    };
    metrics::counter!(telemetry::CONSERVATION_RUNS_TOTAL, "result" => "mismatch").increment(1);
    let cut = if halt.is_cut_open() { " (the log was cut, and is not repaired)" } else { "" };
    for mismatch in found.iter().take(ALERTS_MAX) {
        let named = catalog.name_assets(&mismatch.to_string()) + cut;
        alert_about(Alert::ConservationViolated, mismatch, format_args!("{named}"));
        if let Kind::DamagedJournal(row) = &mismatch.kind {
            alert_about(Alert::JournalDamaged, &row.place(), format_args!("{row}"));
        }
    }
    // A resume may be under way with a check that did not find this. It may wait for this check,
    // and holds the flag.
    halt.object();
    // If PostgreSQL could not take the halt, for example a server under comparison, the halt is
    // written again now.
    if !halt.needs_resume() || !halt.is_written() {
        info!(found = found.len(), "the audit halts the service");
        halt.halt(AUDIT, &why).await;
    }
    true
}
