//! How often the continuous audit runs, and the time limits of its queries.

use serde::Deserialize;

use super::bound::{Bound, FIVE_MINUTES_MS, HOUR_MS, bound};

/// The section `[conservation]`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Conservation {
    /// Time between two rounds of the audit, ms.
    pub every_ms: u64,
    /// Whether an external withdrawal waits for a clean round that began after the user's last
    /// movement.
    pub before_withdrawal: bool,
    /// Timeout of that wait, ms.
    pub before_withdrawal_wait_ms: u64,
    /// Timeout of one SQL statement of the audit, ms.
    pub statement_timeout_ms: u64,
}

impl Default for Conservation {
    fn default() -> Self {
        Self {
            every_ms: 10_000,
            before_withdrawal: false,
            before_withdrawal_wait_ms: 10_000,
            statement_timeout_ms: 60_000,
        }
    }
}

/// The bounds of its whole numbers.
#[rustfmt::skip]
pub(super) const BOUNDS: &[Bound] = &[
    bound("conservation.every_ms", |c| Some(c.conservation.every_ms), 10, HOUR_MS, "ms"),
    bound("conservation.before_withdrawal_wait_ms", |c| Some(c.conservation.before_withdrawal_wait_ms), 100, FIVE_MINUTES_MS, "ms"),
    bound("conservation.statement_timeout_ms", |c| Some(c.conservation.statement_timeout_ms), 1_000, HOUR_MS, "ms"),
];
