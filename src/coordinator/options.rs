//! The options of the workers and of the watermark, from the configuration.

use std::time::Duration;

use super::{Options, watermark};
use crate::config::Config;

/// One part of so many of the outcome map is kept for transfers that UBSCore would not refuse at
/// once.
const KEPT_PART: usize = 8;

impl From<&Config> for Options {
    fn from(config: &Config) -> Options {
        Options {
            fuse: config.coordinator.fuse,
            queue_max: config.coordinator.queue_max,
            batch_max: config.coordinator.batch_max,
            active_max: config.coordinator.active_max,
            parked_max: config.coordinator.parked_max,
            open_flights: config.journal.open_flights,
            parked_calls_max: config.coordinator.parked_calls_max,
            backoff_base_ms: config.coordinator.backoff_base_ms,
            backoff_cap_ms: config.coordinator.backoff_cap_ms,
            stale_ms: config.recovery.stale_ms,
            stuck_ms: config.alert.stuck_ms,
            accept_wait: Duration::from_millis(config.http.accept_wait_ms()),
            clean_wait: Duration::from_millis(config.conservation.before_withdrawal_wait_ms),
            kept: config.engine.outcomes_max / KEPT_PART,
        }
    }
}

impl From<&Config> for watermark::Options {
    fn from(config: &Config) -> watermark::Options {
        watermark::Options {
            keep: config.outcomes.keep(),
            every: config.outcomes.every(),
            outcomes_max: config.engine.outcomes_max,
            rate_max: config.outcomes.rate_max(config.engine.outcomes_max),
        }
    }
}
