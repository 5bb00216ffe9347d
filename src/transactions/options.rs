//! The options of the worker of transactions, from the configuration.

use std::time::Duration;

use crate::config::Config;

/// See `[transactions]` in the configuration.
#[derive(Clone, Debug)]
pub struct Options {
    /// Between two looks at everything.
    pub tick: Duration,
    /// Unfinished transactions.
    pub active_max: usize,
    /// Whether a decision shares the commit of the answer behind which it is made.
    pub fuse: bool,
    /// The first back-off of a question, milliseconds.
    pub backoff_base_ms: u64,
    /// The longest one, milliseconds.
    pub backoff_cap_ms: u64,
    /// A decided transaction is stuck after this, milliseconds.
    pub stuck_ms: u64,
    /// How long a caller waits for an answer of PostgreSQL, beside its own wait.
    pub accept_wait: Duration,
}

impl From<&Config> for Options {
    fn from(config: &Config) -> Options {
        Options {
            tick: Duration::from_millis(config.transactions.tick_ms),
            active_max: config.transactions_active_max(),
            fuse: config.coordinator.fuse,
            backoff_base_ms: config.coordinator.backoff_base_ms,
            backoff_cap_ms: config.coordinator.backoff_cap_ms,
            stuck_ms: config.alert.stuck_ms,
            accept_wait: Duration::from_millis(config.http.accept_wait_ms()),
        }
    }
}
