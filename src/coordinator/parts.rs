//! The parts and parameters that all workers share.

use std::sync::Arc;
use std::time::Duration;

use domain::shortage::{Capacity, Vacancy};

use crate::clock::Clock;
use crate::gate::{CleanRounds, Gate};
use crate::postgres::watermark::Open;

/// Parameters of the coordinator; see `[coordinator]` and `[recovery]` in the configuration.
#[derive(Clone, Debug)]
pub struct Options {
    /// Whether transitions share commits.
    pub fuse: bool,
    /// Requests waiting for one worker.
    pub queue_max: usize,
    /// Calls in one commit.
    pub batch_max: usize,
    /// Transfers one worker has under way.
    pub active_max: usize,
    /// Transfers of one worker that are parked.
    pub parked_max: usize,
    /// A transfer that is open for more flights is listed by number; at most
    /// [`Options::parked_max`] of one worker are.
    pub open_flights: u64,
    /// Calls of one user that wait behind a parked one.
    pub parked_calls_max: usize,
    /// The first back-off, milliseconds.
    pub backoff_base_ms: u64,
    /// The longest back-off, milliseconds.
    pub backoff_cap_ms: u64,
    /// A transfer without progress for this long is read again, milliseconds.
    pub stale_ms: u64,
    /// A transfer under way for longer is stuck, milliseconds.
    pub stuck_ms: u64,
    /// How long an accept with an unknown commit is retried before its client gets the answer
    /// "unknown".
    pub accept_wait: Duration,
    /// How long an external withdrawal waits for a clean round of the audit.
    pub clean_wait: Duration,
    /// The last places of the outcome map. Only transfers that UBSCore would not refuse at once get
    /// them.
    pub kept: usize,
}

/// The parts that all workers share.
pub struct Parts<T, F> {
    /// UBSCore.
    pub spot: Arc<T>,
    /// PostgreSQL's Funding balances.
    pub funding: Arc<F>,
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// How to work.
    pub options: Options,
    /// This process's incarnation.
    pub incarnation: u64,
    /// Every transfer below this order number has ended, in PostgreSQL and in UBSCore.
    pub watermark: u64,
    /// Where the transfers are that earlier processes have left open.
    pub open: Open,
    /// The highest durable log sequence, read anew for each commit.
    pub durable: Arc<dyn Fn() -> wal::Sequence + Send + Sync>,
    /// How many transfers UBSCore has room for until their end, those under way included.
    pub capacity: Arc<dyn Fn() -> Capacity + Send + Sync>,
    /// The free places of UBSCore's other tables.
    pub vacancy: Arc<dyn Fn() -> Vacancy + Send + Sync>,
    /// Closed while the service is halted.
    pub gate: Arc<Gate>,
    /// Halts the service for this reason. Returns at once.
    pub halt: Arc<dyn Fn(String) + Send + Sync>,
    /// Clean rounds of the audit, if an external withdrawal waits for one; `None` if it does not.
    pub clean: Option<Arc<CleanRounds>>,
}
