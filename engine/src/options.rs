//! The settings of an engine.

use std::path::PathBuf;
use std::time::Duration;

use crate::notice::Notify;
use crate::places::Places;

/// The settings of an engine.
#[derive(Clone, Debug)]
pub struct Options {
    /// The log's directory.
    pub log_dir: PathBuf,
    /// The directory of snapshots.
    pub snapshot_dir: PathBuf,
    /// The size of one segment, bytes.
    pub segment_bytes: u64,
    /// Segments prepared ahead.
    pub spares_ready: usize,
    /// The core thread never sleeps: for a CPU of its own.
    pub busy: bool,
    /// The CPU that the core thread is pinned to.
    pub cpu: Option<usize>,
    /// Slots of the ring, a power of two.
    pub ring_slots: usize,
    /// Commands without an answer yet, at most half the slots.
    pub in_flight_max: usize,
    /// The bounds of the ledger.
    pub places: Places,
    /// Outcome places that no new work takes. Each transaction under way may need one for a RELEASE
    /// without a RESERVE. The caller has at most so many transactions under way.
    pub ends_kept: usize,
    /// A mark is written after this time without a record.
    pub idle_mark: Duration,
    /// The caller's clock, ns since the Unix epoch: of the records of venues.
    pub now: fn() -> u64,
    /// Takes the engine's notices.
    pub notify: Notify,
}
