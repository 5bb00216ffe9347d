//! The bounds of Funding's journal.

use serde::Deserialize;

use super::bound::{Bound, bound};

/// A mebibyte, bytes.
const MIB: u64 = 1 << 20;
/// A gibibyte, bytes.
const GIB: u64 = 1 << 30;

/// The section `[journal]`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Journal {
    /// The most bytes of rows that could be deleted; at more, new work is refused.
    pub bytes_max: u64,
    /// A transfer open for more flights of its worker is listed by number.
    pub open_flights: u64,
}

impl Default for Journal {
    fn default() -> Self {
        Self { bytes_max: 128 * GIB, open_flights: 100_000 }
    }
}

/// The bounds of its whole numbers.
#[rustfmt::skip]
pub(super) const BOUNDS: &[Bound] = &[
    bound("journal.bytes_max", |c| Some(c.journal.bytes_max), MIB, 65_536 * GIB, "bytes"),
    bound("journal.open_flights", |c| Some(c.journal.open_flights), 1, 1_000_000_000, "flights"),
];
