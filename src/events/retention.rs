//! Retention: deletes old rows of the journal, and old deliveries.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use super::{outlast, within};
use crate::clock::Clock;
use crate::postgres::events::Retention;
use crate::postgres::{Address, Error, Limits, Superseded};

/// Rows of a kind that are deleted in one transaction. A row of the journal has up to a few hundred
/// events.
const ROWS_MAX: u32 = 1_000;
/// The pause between two deletions: this part of a keep time, and at most a minute.
const PAUSE_PART: u32 = 16;
const PAUSE_MAX: Duration = Duration::from_secs(60);
/// The pause before the next deletion if there may be more.
const PAUSE_MORE: Duration = Duration::from_millis(20);

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
    let Options { target, limits, incarnation, keep, dead_keep } = options;
    let retention = Retention::connect(target, limits, *incarnation).await?;
    let pause = (*keep.min(dead_keep) / PAUSE_PART).min(PAUSE_MAX);
    loop {
        let lived = Duration::from_nanos(clock.monotonic_ns() - born_ns);
        let purge = retention.purge(lived, *keep, *dead_keep, ROWS_MAX);
        let more = within(clock, limits, purge).await?;
        *failures = 0;
        clock.sleep(if more { PAUSE_MORE } else { pause }).await;
    }
}
