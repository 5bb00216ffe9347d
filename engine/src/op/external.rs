//! External operations: PostgreSQL has decided them, and UBSCore records them.

use domain::account::UserId;

use crate::entry::Entry;
use crate::external::External;
use crate::fact::Fact;
use crate::ledger::{Answer, Ledger, ORDER_NUMBER_MAX, Step};
use crate::places::OUTCOMES_MAX;
use crate::recorded::Recorded;

/// Decides whether an operation is to be recorded. A repeat must have the same fields.
pub(super) fn step(ledger: &Ledger, external: &External) -> Step {
    let External { op, user, asset, amount, order_number, decision, .. } = *external;
    if !op.is_external() {
        return Step::Violation("no external operation");
    }
    if let Some(recorded) = ledger.outcomes.get(external.key(), op) {
        return match recorded.matches_external(external) {
            true => Step::Known(Answer::Decided(recorded)),
            false => Step::Violation("the idem_key is recorded with another operation"),
        };
    }
    if order_number < ledger.watermark {
        return Step::Forgotten;
    }
    if order_number > ORDER_NUMBER_MAX {
        return Step::Violation("order number out of range");
    }
    if external.idem_key.as_str().is_empty() || UserId::new(user).is_none() || amount == 0 {
        return Step::Violation("not the form of an external operation");
    }
    if !ledger.assets.contains_key(&asset) {
        return Step::Violation("no such asset");
    }
    match ledger.outcomes.has_place(op, decision) {
        true => Step::Append(Entry::External(*external)),
        false => Step::Full(OUTCOMES_MAX),
    }
}

/// Records an operation and counts it for its asset.
pub(super) fn apply(ledger: &mut Ledger, external: &External, time_ns: u64) -> Answer {
    debug_assert!(external.op.is_external(), "{external:?}");
    let recorded = Recorded::of_external(external, ledger.sequence, time_ns);
    let (req_id, op, asset) = (external.key(), external.op, external.asset);
    ledger.outcomes.insert(req_id, op, recorded);
    ledger.exchange(None, Fact::Outcome { req_id, op, recorded });
    let entry = ledger.assets.get(&asset).expect("an entry names a registered asset");
    let after = entry.outside.with(op, external.decision, external.amount);
    ledger.set_outside(asset, after);
    Answer::Decided(recorded)
}
