//! How a start takes the database over.

use serde::Deserialize;

use super::bound::{Bound, HOUR_MS, bound};

/// The section `[start]`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Start {
    /// How long a start waits for sessions that hold its tables, ms.
    pub fence_ms: u64,
}

impl Default for Start {
    fn default() -> Self {
        Self { fence_ms: 30_000 }
    }
}

/// The bounds of its whole numbers.
#[rustfmt::skip]
pub(super) const BOUNDS: &[Bound] = &[
    bound("start.fence_ms", |c| Some(c.start.fence_ms), 100, HOUR_MS, "ms"),
];
