//! The workers that drive transfers: their number, their queues, their batches and their timeouts.

use serde::Deserialize;

use super::bound::{Bound, FIVE_MINUTES_MS, HOUR_MS, MINUTE_MS, bound};
use super::{Error, range};

/// The section `[coordinator]`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Coordinator {
    /// Number of workers; accounts are divided among them.
    pub shards: usize,
    /// Whether consecutive steps share one commit if no answer is awaited between them.
    pub fuse: bool,
    /// The most transfers that wait for one worker.
    pub queue_max: usize,
    /// The most transfers in one commit.
    pub batch_max: usize,
    /// The most transfers under way in one worker; above it, new transfers are refused.
    pub active_max: usize,
    /// The most transfers of one worker that are parked; above it, new transfers are refused.
    pub parked_max: usize,
    /// The most calls of one user that wait behind a parked transfer of that user; above it, new
    /// ones are refused.
    pub parked_calls_max: usize,
    /// The most users in the memory of all workers, with their Funding accounts and balances.
    pub users_max: usize,
    /// Timeout for an adapter's answer, ms.
    pub adapter_timeout_ms: u64,
    /// The first wait before a step is retried, ms.
    pub backoff_base_ms: u64,
    /// The longest wait before a retry, ms.
    pub backoff_cap_ms: u64,
}

impl Default for Coordinator {
    fn default() -> Self {
        Self {
            shards: 2,
            fuse: true,
            queue_max: 1_024,
            batch_max: 128,
            active_max: 10_000,
            parked_max: 1_000,
            parked_calls_max: 64,
            users_max: 1_000_000,
            adapter_timeout_ms: 5_000,
            backoff_base_ms: 100,
            backoff_cap_ms: 30_000,
        }
    }
}

/// The bounds of its whole numbers.
#[rustfmt::skip]
pub(super) const BOUNDS: &[Bound] = &[
    bound("coordinator.shards", |c| Some(c.coordinator.shards as u64), 1, 64, "workers"),
    bound("coordinator.queue_max", |c| Some(c.coordinator.queue_max as u64), 1, 65_536, "transfers"),
    bound("coordinator.batch_max", |c| Some(c.coordinator.batch_max as u64), 1, 4_096, "transfers, at most coordinator.queue_max"),
    bound("coordinator.active_max", |c| Some(c.coordinator.active_max as u64), 1, 1_000_000, "transfers"),
    bound("coordinator.parked_max", |c| Some(c.coordinator.parked_max as u64), 1, 1_000_000, "transfers"),
    bound("coordinator.parked_calls_max", |c| Some(c.coordinator.parked_calls_max as u64), 1, 65_536, "calls"),
    bound("coordinator.users_max", |c| Some(c.coordinator.users_max as u64), 1_024, 100_000_000, "users"),
    bound("coordinator.adapter_timeout_ms", |c| Some(c.coordinator.adapter_timeout_ms), 100, FIVE_MINUTES_MS, "ms"),
    bound("coordinator.backoff_base_ms", |c| Some(c.coordinator.backoff_base_ms), 1, MINUTE_MS, "ms"),
    bound("coordinator.backoff_cap_ms", |c| Some(c.coordinator.backoff_cap_ms), 1, HOUR_MS, "ms, at least coordinator.backoff_base_ms"),
];

impl Coordinator {
    /// Checks the relations between keys.
    pub(super) fn validate(&self) -> Result<(), Error> {
        if self.batch_max > self.queue_max {
            let allowed = format!("at most coordinator.queue_max, {}", self.queue_max);
            return Err(range("coordinator.batch_max", self.batch_max, allowed));
        }
        if self.backoff_cap_ms < self.backoff_base_ms {
            let allowed =
                format!("at least coordinator.backoff_base_ms, {} ms", self.backoff_base_ms);
            return Err(range("coordinator.backoff_cap_ms", self.backoff_cap_ms, allowed));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use crate::config::tests::assert_refused;

    #[test]
    fn a_batch_fits_its_queue_and_the_longest_wait_is_no_shorter_than_the_first() {
        assert_refused(&[
            ("[coordinator]\nqueue_max = 127", "coordinator.batch_max = 128"),
            ("[coordinator]\nbackoff_cap_ms = 99", "coordinator.backoff_cap_ms = 99"),
        ]);
    }
}
