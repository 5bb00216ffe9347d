//! When a transfer without progress is driven again.

use serde::Deserialize;

use super::bound::{Bound, HOUR_MS, bound};

/// The section `[recovery]`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Recovery {
    /// A transfer without progress for this long is driven again, ms.
    pub stale_ms: u64,
}

impl Default for Recovery {
    fn default() -> Self {
        Self { stale_ms: 60_000 }
    }
}

/// The bounds of its whole numbers.
#[rustfmt::skip]
pub(super) const BOUNDS: &[Bound] = &[
    bound("recovery.stale_ms", |c| Some(c.recovery.stale_ms), 1_000, HOUR_MS, "ms"),
];
