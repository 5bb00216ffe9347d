//! Raises the watermark, below which UBSCore may forget. PostgreSQL comes first, with the totals of
//! the transfers that it passes, then the log. The watermark never passes an order number with an
//! accept that may still commit. It never passes a transfer that has not been terminal for
//! [`Options::keep`], by the server's clock and by the lifetime of processes of this database.
//!
//! It is a task of its own, beside the workers, and never delays a batch. A failure here only
//! delays the watermark.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{Either, select};
use tokio::sync::watch;
use tracing::{debug, warn};

use super::Coordinator;
use super::numbers::Numbers;
use crate::adapters::Adapter;
use crate::adapters::spot::{Spot, Unanswered};
use crate::alert::{Alert, alert};
use crate::clock::Clock;
use crate::crash;
use crate::gate::Gate;
use crate::postgres::watermark::Watermark;
use crate::postgres::{self, Superseded};
use crate::task::Tasks;
use crate::telemetry;
use domain::shortage::Capacity;

/// Transfers passed in one transaction: their totals take well under a second, and the lock at its
/// end milliseconds.
const ROWS_MAX: u32 = 50_000;
/// If a server cannot pass that many within its time limit, the number is halved, down to this one.
const ROWS_MIN: u32 = 100;
/// Transactions in one round; the next round continues.
const PAGES_MAX: u32 = 20;
/// If less than this part of the outcome map is free, the next round comes early.
const PRESSURE_PART: usize = 4;
/// An alert comes if a stamp is this far ahead of PostgreSQL's clock. Slewed clocks and rounding
/// stay far below it.
const AHEAD_MAX: Duration = Duration::from_secs(5);
/// Checks of the free part between two rounds.
const LOOKS: u32 = 16;

/// When outcomes may be forgotten; see `[outcomes]` in the configuration.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// How long a transfer must have been terminal before its outcomes may be forgotten.
    pub keep: Duration,
    /// Between two rounds.
    pub every: Duration,
    /// Places in the outcome map.
    pub outcomes_max: usize,
    /// The transfers per second that the map carries.
    pub rate_max: u64,
}

/// A round that was not finished; the next one continues.
#[derive(Debug, thiserror::Error)]
enum Error {
    #[error("the watermark in PostgreSQL")]
    Postgres(#[from] postgres::Error),
    #[error("PostgreSQL did not answer within {0:?}")]
    Late(Duration),
    #[error("the watermark in the log")]
    Spot(#[from] Unanswered),
}

impl<F: Adapter> Coordinator<Spot, F> {
    /// Starts to raise the watermark, until every [`Coordinator`] is gone. `store`: a connection of
    /// its own. Nothing is raised while `gate` is closed.
    pub fn keep_watermark(
        &self,
        store: Watermark,
        options: Options,
        gate: Arc<Gate>,
        tasks: &mut Tasks,
    ) {
        let raiser = Raiser {
            numbers: Arc::clone(&self.numbers),
            spot: Arc::clone(&self.spot),
            clock: Arc::clone(&self.clock),
            capacity: Arc::clone(&self.capacity),
            gate,
            store,
            options,
            born_ns: self.clock.monotonic_ns(),
            rows: ROWS_MAX,
            stored: self.numbers.forgotten_below(),
            // The start has tried to raise it; the first round makes sure.
            logged: 0,
        };
        tasks.run("watermark", raiser.run(self.open.subscribe()));
    }
}

struct Raiser {
    numbers: Arc<Numbers>,
    spot: Arc<Spot>,
    clock: Arc<dyn Clock>,
    capacity: Arc<dyn Fn() -> Capacity + Send + Sync>,
    gate: Arc<Gate>,
    store: Watermark,
    options: Options,
    /// Monotonic ns.
    born_ns: u64,
    /// Transfers to pass in the next transaction.
    rows: u32,
    /// The watermark in PostgreSQL.
    stored: u64,
    /// The watermark in the log, as far as it is known.
    logged: u64,
}

impl Raiser {
    async fn run(mut self, mut open: watch::Receiver<()>) -> Result<(), Superseded> {
        let work = async {
            self.warn_if_small().await;
            loop {
                self.round().await?;
                self.pause().await;
            }
        };
        tokio::select! {
            // No value is ever sent: the wait ends with the last sender. A round may be cut off
            // anywhere.
            _ = open.changed() => Ok(()),
            ended = work => ended,
        }
    }

    /// Warns if the transfers of the last process would fill the outcome map at their rate.
    async fn warn_if_small(&mut self) {
        let limit = self.store.call_limit();
        let clock = Arc::clone(&self.clock);
        let rate_max = self.options.rate_max;
        match within(&*clock, limit, self.store.rate()).await {
            Ok(Some(rate)) if rate > rate_max => warn!(
                rate,
                rate_max,
                "the outcome map is too small for the last measured rate, transfers/s: raise \
                 engine.outcomes_max, or lower outcomes.keep_minutes"
            ),
            Ok(_) => {}
            Err(error) => warn!(why = telemetry::chain(&error), "the last rate is unknown"),
        }
    }

    async fn round(&mut self) -> Result<(), Superseded> {
        match self.raise().await {
            Ok(()) => Ok(()),
            Err(Error::Postgres(postgres::Error::Superseded)) => {
                alert(Alert::Fenced, format_args!("the watermark belongs to another process"));
                Err(Superseded)
            }
            Err(Error::Postgres(error)) if error.is_violation() => {
                let why = telemetry::chain(&error);
                alert(Alert::ProtocolViolation, format_args!("the watermark: {why}"));
                Ok(())
            }
            Err(error) => {
                // It may have been too much for the server's time limit.
                self.rows = (self.rows / 2).max(ROWS_MIN);
                warn!(why = telemetry::chain(&error), "the watermark waits for the next round");
                Ok(())
            }
        }
    }

    async fn raise(&mut self) -> Result<(), Error> {
        if self.gate.is_closed() {
            // The cause of the halt must still be found, so UBSCore must forget nothing.
            return Ok(());
        }
        // An earlier round may not have brought it into the log.
        self.log().await?;
        // Read the numbers before the time: the time must not be later than the observation.
        let over = self.numbers.over();
        let next = self.numbers.next();
        assert!(over.is_none_or(|over| over <= next), "{over:?} is over, and {next} comes next");
        let lived = Duration::from_nanos(self.clock.monotonic_ns() - self.born_ns);
        let (clock, keep) = (Arc::clone(&self.clock), self.options.keep);
        let limit = self.store.call_limit();
        let ripe = within(&*clock, limit, self.store.observe(over, lived, keep)).await?;
        if let Some(open) = self.numbers.open() {
            // The note only makes a start faster, and an old one stays true.
            match within(&*clock, limit, self.store.note_open(&open)).await {
                Err(error @ Error::Postgres(postgres::Error::Superseded)) => return Err(error),
                Err(error) => {
                    warn!(why = telemetry::chain(&error), "open transfers are not noted");
                }
                Ok(()) => {}
            }
        }
        for _ in 0..PAGES_MAX {
            if ripe > self.stored {
                crash::point("watermark_before_postgres");
            }
            assert!((ROWS_MIN..=ROWS_MAX).contains(&self.rows), "{} rows", self.rows);
            let raising = self.store.raise(ripe, keep, self.rows);
            let raised = within(&*clock, limit, raising).await?;
            if raised.watermark > self.stored {
                crash::point("watermark_after_postgres");
                debug!(watermark = raised.watermark, "raised in PostgreSQL");
            }
            self.stored = raised.watermark;
            self.rows = self.rows.saturating_mul(2).min(ROWS_MAX);
            telemetry::watermark(raised.watermark, raised.oldest);
            self.log().await?;
            if !raised.more {
                break;
            }
        }
        let gone = within(&*clock, limit, self.store.trim_holds(self.rows)).await?;
        if gone > 0 {
            debug!(gone, "holds that moved nothing are deleted");
        }
        let ahead = within(&*clock, limit, self.store.ahead()).await?;
        if ahead > AHEAD_MAX {
            let why = "transfers carry times that far ahead of PostgreSQL's clock";
            alert(Alert::ClockAhead, format_args!("{} s: {why}", ahead.as_secs()));
        }
        Ok(())
    }

    /// Raises the watermark of the log to that of PostgreSQL.
    async fn log(&mut self) -> Result<(), Error> {
        if self.logged == self.stored {
            return Ok(());
        }
        // Published before UBSCore can forget: a reader that finds no record can then decide why.
        self.numbers.forget_below(self.stored);
        let published = self.numbers.forgotten_below();
        assert!(published >= self.stored, "{published} is published, {} is raised", self.stored);
        self.spot.raise_watermark(self.stored).await?;
        crash::point("watermark_after_log");
        self.logged = self.stored;
        debug!(watermark = self.stored, "the log has the watermark");
        Ok(())
    }

    /// Waits for the next round, less long if the outcome map fills.
    async fn pause(&self) {
        for _ in 0..LOOKS {
            self.clock.sleep(self.options.every / LOOKS).await;
            // Each transfer may take two places.
            if (self.capacity)().transfers < self.options.outcomes_max / 2 / PRESSURE_PART {
                return;
            }
        }
    }
}

/// The answer, or a timeout beyond the limits of the server.
async fn within<T>(
    clock: &dyn Clock,
    limit: Duration,
    call: impl Future<Output = Result<T, postgres::Error>>,
) -> Result<T, Error> {
    match select(pin!(call), clock.sleep(limit)).await {
        Either::Left((answer, _)) => Ok(answer?),
        Either::Right(((), _)) => Err(Error::Late(limit)),
    }
}
