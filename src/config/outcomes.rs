//! How long what was decided is remembered.

use serde::Deserialize;

use super::Error;
use super::bound::{Bound, HOUR_MS, bound};
use super::hours::Hours;

/// The section `[outcomes]`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Outcomes {
    /// How long a transfer has been terminal before UBSCore may forget it, hours.
    pub keep_hours: Hours,
    /// Time between two looks at what may be forgotten, ms.
    pub evict_every_ms: u64,
}

impl Default for Outcomes {
    fn default() -> Self {
        Self { keep_hours: Hours::from(24.0), evict_every_ms: 10_000 }
    }
}

/// What its whole numbers may be.
#[rustfmt::skip]
pub(super) const BOUNDS: &[Bound] = &[
    bound("outcomes.evict_every_ms", |c| Some(c.outcomes.evict_every_ms), 10, HOUR_MS, "ms"),
];

impl Outcomes {
    /// Checks what is no whole number.
    pub(super) fn validate(&self) -> Result<(), Error> {
        self.keep_hours.check("outcomes.keep_hours")
    }
}
