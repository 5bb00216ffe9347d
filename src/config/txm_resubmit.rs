//! Resends and bumps by time.

use serde::Deserialize;

use super::bound::{Bound, HOUR_MS, bound};

/// The section `[txm.resubmit]`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Resubmit {
    /// Whether stored bytes are sent again, and prices raised, by time.
    pub enabled: bool,
    /// Between two resends, ms.
    pub interval_ms: u64,
    /// Resends before a bump.
    pub bump_after: u32,
    /// The most attempts that pay; 0: the caps of prices alone.
    pub attempts_max: u32,
}

impl Default for Resubmit {
    fn default() -> Self {
        Self { enabled: true, interval_ms: 60_000, bump_after: 2, attempts_max: 10 }
    }
}

/// The bounds of its whole numbers.
#[rustfmt::skip]
pub(super) const BOUNDS: &[Bound] = &[
    bound("txm.resubmit.interval_ms", |c| Some(c.txm.resubmit.interval_ms), 100, HOUR_MS, "ms"),
    bound("txm.resubmit.bump_after", |c| Some(c.txm.resubmit.bump_after.into()), 0, 1_000, "resends"),
    bound("txm.resubmit.attempts_max", |c| Some(c.txm.resubmit.attempts_max.into()), 0, 1_000, "attempts"),
];
