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
    /// The removal of segments with postings of venues, if there is no archive command.
    pub trades: Trades,
}

/// The removal of segments with postings of venues, if there is no archive command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Trades {
    /// They stay: only the log has them.
    Keep,
    /// They are removed like others.
    Discard,
}

/// The warning of [`Snapshot::keeps_postings`].
pub const KEEPS_POSTINGS: &str = "only the log has the postings of venues, and no archive command \
                                  is set: their segments stay, and the log grows without a bound";
/// The remedy.
pub const KEEPS_POSTINGS_CHANGE: &str =
    "set snapshot.archive_command, or snapshot.trades = \"discard\" to lose old trades";

impl Snapshot {
    /// Whether segments with postings stay on the disk for ever.
    pub fn keeps_postings(&self) -> bool {
        self.archive_command.is_empty() && self.trades == Trades::Keep
    }
}

impl Default for Snapshot {
    fn default() -> Self {
        Self {
            every_records: 1_000_000,
            every_bytes: 1_073_741_824,
            keep: 4,
            archive_command: String::new(),
            trades: Trades::Keep,
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
