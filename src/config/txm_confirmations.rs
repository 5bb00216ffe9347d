//! When a transaction is final.

use serde::Deserialize;
use txm::options::Finality;

use super::bound::{Bound, HOUR_MS, bound};

/// The section `[txm.confirmations]`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Confirmations {
    /// Blocks on top of the receipt's block.
    pub required: usize,
    /// The tag that the receipt's block must have reached as well.
    pub policy: FinalityTag,
    /// A transaction without a receipt for so long is STALE, ms.
    pub stale_receipt_timeout_ms: u64,
    /// Batches of receipts under way.
    pub receipt_workers: usize,
    /// Whether a receipt is asked for right behind the answer to a send, once.
    pub fetch_receipt_upon_entry: bool,
    /// Blocks for which an ended transaction is still looked at.
    pub watch_blocks: u64,
}

/// The tag of finality.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FinalityTag {
    /// None.
    Count,
    /// `safe`.
    Safe,
    /// `finalized`.
    Finalized,
}

impl From<FinalityTag> for Finality {
    fn from(tag: FinalityTag) -> Finality {
        match tag {
            FinalityTag::Count => Finality::Count,
            FinalityTag::Safe => Finality::Safe,
            FinalityTag::Finalized => Finality::Finalized,
        }
    }
}

impl Default for Confirmations {
    fn default() -> Self {
        Self {
            required: 20,
            policy: FinalityTag::Finalized,
            stale_receipt_timeout_ms: 60_000,
            receipt_workers: 10,
            fetch_receipt_upon_entry: false,
            watch_blocks: 128,
        }
    }
}

/// The bounds of its whole numbers.
#[rustfmt::skip]
pub(super) const BOUNDS: &[Bound] = &[
    bound("txm.confirmations.required", |c| Some(c.txm.confirmations.required as u64), 1, 1_000, "blocks"),
    bound("txm.confirmations.stale_receipt_timeout_ms", |c| Some(c.txm.confirmations.stale_receipt_timeout_ms), 100, HOUR_MS, "ms"),
    bound("txm.confirmations.receipt_workers", |c| Some(c.txm.confirmations.receipt_workers as u64), 1, 256, "batches"),
    bound("txm.confirmations.watch_blocks", |c| Some(c.txm.confirmations.watch_blocks), 0, 10_000, "blocks"),
];
