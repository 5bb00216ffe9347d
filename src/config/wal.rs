//! The log's files.

use serde::Deserialize;

use engine::core::VENUES_SEGMENT_BYTES_MIN;
use wal::{PAGE_BYTES, SEGMENT_BYTES_MAX, SPARES_READY_MAX};

use super::bound::{Bound, bound};
use super::{Error, range};

/// The section `[wal]`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Wal {
    /// Size of a segment, bytes; a multiple of a page.
    pub segment_bytes: u64,
    /// Number of segments prepared ahead.
    pub spares_ready: usize,
    /// An alert is raised below this free space on the log's file system, bytes; 0: never.
    pub space_low_bytes: u64,
}

impl Default for Wal {
    fn default() -> Self {
        Self { segment_bytes: 67_108_864, spares_ready: 1, space_low_bytes: 1_073_741_824 }
    }
}

/// The bounds of its whole numbers.
#[rustfmt::skip]
pub(super) const BOUNDS: &[Bound] = &[
    bound("wal.segment_bytes", |c| Some(c.wal.segment_bytes), 65_536, SEGMENT_BYTES_MAX, "bytes, a multiple of 4096"),
    bound("wal.spares_ready", |c| Some(c.wal.spares_ready as u64), 1, SPARES_READY_MAX, "segments"),
    bound("wal.space_low_bytes", |c| Some(c.wal.space_low_bytes), 0, 1 << 50, "bytes"),
];

impl Wal {
    /// Checks that a segment has room for the reserve of venues.
    ///
    /// # Errors
    /// It has not: no venue may open a session.
    pub fn fits_venues(&self) -> Result<(), Error> {
        if self.segment_bytes >= VENUES_SEGMENT_BYTES_MIN {
            return Ok(());
        }
        let allowed = format!("at least {VENUES_SEGMENT_BYTES_MIN} bytes with venues");
        Err(range("wal.segment_bytes", self.segment_bytes, allowed))
    }

    /// Checks that a segment is whole pages.
    pub(super) fn validate(&self) -> Result<(), Error> {
        if self.segment_bytes.is_multiple_of(PAGE_BYTES) {
            return Ok(());
        }
        let allowed = format!("a multiple of {PAGE_BYTES} bytes");
        Err(range("wal.segment_bytes", self.segment_bytes, allowed))
    }
}

#[cfg(test)]
mod tests {
    use crate::config::tests::assert_refused;

    #[test]
    fn a_segment_is_whole_pages() {
        assert_refused(&[("[wal]\nsegment_bytes = 67108865", "wal.segment_bytes = 67108865")]);
    }

    #[test]
    fn a_segment_has_room_for_the_reserve_of_venues() {
        let small = "[wal]\nsegment_bytes = 258048\n[stream]\nsocket = \"/run/venues\"";
        assert_refused(&[(small, "wal.segment_bytes = 258048")]);
    }
}
