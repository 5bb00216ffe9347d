//! Retention: deletes old rows of the journal, and old deliveries, and bounds the journal.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::watch;

use super::{outlast, within};
use crate::alert::{Alert, alert};
use crate::clock::Clock;
use crate::postgres::events::Retention;
use crate::postgres::{Address, Error, Limits, Superseded};
use crate::telemetry;
use domain::shortage::{Capacity, Shortage};

/// Rows of a kind that are deleted in one transaction. A row of the journal has up to a few hundred
/// events.
const ROWS_MAX: u32 = 1_000;
/// The pause between two deletions: this part of a keep time, and at most a minute.
const PAUSE_PART: u32 = 16;
const PAUSE_MAX: Duration = Duration::from_secs(60);
/// The pause before the next deletion if there may be more.
const PAUSE_MORE: Duration = Duration::from_millis(20);

/// The pause while the journal refuses new work: the audit may fold rows at any time.
const PAUSE_FULL: Duration = Duration::from_secs(1);
/// An alert comes when one part of so many of the bound is taken.
const FILLING_PART: u64 = 2;

/// The length of Funding's journal, as the last deletion has left it.
#[derive(Debug)]
pub struct Journal {
    bytes: AtomicU64,
    bytes_max: u64,
}

impl Journal {
    /// A journal that may have `bytes_max`; see `[journal]` in the configuration.
    pub fn new(bytes_max: u64) -> Journal {
        Journal { bytes: AtomicU64::new(0), bytes_max }
    }

    /// Room for any number of transfers, or for none.
    pub fn capacity(&self) -> Capacity {
        let transfers = if self.is_full() { 0 } else { usize::MAX };
        Capacity { transfers, bound_by: Shortage::Journal }
    }

    /// Deletion alone could not bring it below its bound.
    fn is_full(&self) -> bool {
        self.bytes.load(Ordering::Relaxed) > self.bytes_max
    }

    fn measured(&self, bytes: u64) {
        self.bytes.store(bytes, Ordering::Relaxed);
        telemetry::journal_bytes(bytes);
        let max = self.bytes_max;
        if bytes >= max / FILLING_PART {
            let what = format_args!("Funding's journal has {bytes} of {max} bytes");
            alert(Alert::JournalFilling, what);
        }
    }
}

/// The options of the deletion.
#[derive(Clone)]
pub struct Options {
    /// PostgreSQL.
    pub target: Address,
    /// Its limits.
    pub limits: Limits,
    /// This process's incarnation.
    pub incarnation: u64,
    /// The life of events and of accepted deliveries.
    pub keep: Duration,
    /// The life of dead letters.
    pub dead_keep: Duration,
    /// The length of the journal.
    pub journal: Arc<Journal>,
}

/// Deletes until the sender of `stopping` is gone or it changes. A failure is retried forever.
///
/// # Errors
/// [`Superseded`]: the process must end.
pub async fn run(
    options: Options,
    clock: Arc<dyn Clock>,
    mut stopping: watch::Receiver<()>,
) -> Result<(), Superseded> {
    let (born_ns, mut failures) = (clock.monotonic_ns(), 0);
    let work = async {
        loop {
            let Err(failure) = session(&options, &*clock, born_ns, &mut failures).await;
            outlast("the deletion of events", &failure, &mut failures, &*clock).await?;
        }
    };
    // A deletion may be cut anywhere: it is one transaction.
    tokio::select! {
        ended = work => ended,
        _ = stopping.changed() => Ok(()),
    }
}

async fn session(
    options: &Options,
    clock: &dyn Clock,
    born_ns: u64,
    failures: &mut u32,
) -> Result<std::convert::Infallible, Error> {
    let Options { target, limits, incarnation, keep, dead_keep, journal } = options;
    let retention = Retention::connect(target, limits, *incarnation).await?;
    let pause = (*keep.min(dead_keep) / PAUSE_PART).min(PAUSE_MAX);
    loop {
        let lived = Duration::from_nanos(clock.monotonic_ns() - born_ns);
        let purge = retention.purge(lived, *keep, *dead_keep, journal.bytes_max, ROWS_MAX);
        let purged = within(clock, limits, purge).await?;
        *failures = 0;
        // Above the bound, the length counts behind the last deletion that shortens it.
        if !purged.shrinks {
            journal.measured(purged.bytes);
        }
        if purged.more {
            clock.sleep(PAUSE_MORE).await;
            continue;
        }
        clock.sleep(if journal.is_full() { pause.min(PAUSE_FULL) } else { pause }).await;
    }
}
