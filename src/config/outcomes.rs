//! How long UBSCore keeps outcomes in its map.

use serde::Deserialize;

use super::Error;
use super::bound::{Bound, HOUR_MS, bound};
use super::hours::Hours;

/// The section `[outcomes]`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Outcomes {
    /// A transfer must be terminal for this long before UBSCore may evict its outcomes, hours.
    pub keep_hours: Hours,
    /// Time between two evictions, ms.
    pub evict_every_ms: u64,
}

impl Default for Outcomes {
    fn default() -> Self {
        Self { keep_hours: Hours::from(24.0), evict_every_ms: 10_000 }
    }
}

/// The bounds of its whole numbers.
#[rustfmt::skip]
pub(super) const BOUNDS: &[Bound] = &[
    bound("outcomes.evict_every_ms", |c| Some(c.outcomes.evict_every_ms), 10, HOUR_MS, "ms"),
];

impl Outcomes {
    /// Checks the keys that are not whole numbers.
    pub(super) fn validate(&self) -> Result<(), Error> {
        self.keep_hours.check("outcomes.keep_hours")
    }
}
