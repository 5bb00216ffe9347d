//! When a snapshot is made, and the archive of the segments that it replaces.

use serde::Deserialize;

use super::bound::{Bound, bound};

/// The section `[snapshot]`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Snapshot {
    /// A snapshot is made after this many records.
    pub every_records: u64,
    /// Or after this many bytes of the log.
    pub every_bytes: u64,
    /// Number of snapshots kept.
    pub keep: usize,
    /// Command run for each closed segment before it is removed; empty: none.
    pub archive_command: String,
}

impl Default for Snapshot {
    fn default() -> Self {
        Self {
            every_records: 1_000_000,
            every_bytes: 1_073_741_824,
            keep: 4,
            archive_command: String::new(),
        }
    }
}

/// The bounds of its whole numbers.
#[rustfmt::skip]
pub(super) const BOUNDS: &[Bound] = &[
    bound("snapshot.every_records", |c| Some(c.snapshot.every_records), 100, 1_000_000_000_000, "records"),
    bound("snapshot.every_bytes", |c| Some(c.snapshot.every_bytes), 4_096, 1_099_511_627_776, "bytes"),
    bound("snapshot.keep", |c| Some(c.snapshot.keep as u64), 1, 64, "snapshots"),
];
