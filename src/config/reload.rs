//! How often key files and certificates are read again while the service runs.

use serde::Deserialize;

use super::bound::{Bound, HOUR_MS, bound};

/// The section `[reload]`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Reload {
    /// Time between two checks of the files of keys, token secrets and certificates, ms.
    pub every_ms: u64,
}

impl Default for Reload {
    fn default() -> Self {
        Self { every_ms: 5_000 }
    }
}

/// The bounds of its whole numbers.
#[rustfmt::skip]
pub(super) const BOUNDS: &[Bound] = &[
    bound("reload.every_ms", |c| Some(c.reload.every_ms), 100, HOUR_MS, "ms"),
];
