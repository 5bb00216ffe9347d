//! The watermark: outcomes of smaller order numbers may be evicted.

use crate::entry::Entry;
use crate::fact::Fact;
use crate::ledger::{Answer, Ledger, Step};

/// Decides a raise. A watermark never falls.
pub(super) fn step(ledger: &Ledger, order_number: u64) -> Step {
    if order_number <= ledger.watermark {
        return Step::Known(Answer::Done);
    }
    Step::Append(Entry::Watermark { order_number })
}

/// Raises the watermark.
pub(super) fn apply(ledger: &mut Ledger, order_number: u64) -> Answer {
    assert!(order_number > ledger.watermark, "a watermark only rises");
    let before = Fact::Watermark { order_number: ledger.watermark };
    ledger.watermark = order_number;
    ledger.outcomes.risen();
    ledger.exchange(Some(before), Fact::Watermark { order_number });
    Answer::Done
}
