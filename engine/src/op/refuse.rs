//! An imposed refusal: an order is refused whether or not its account would admit it.

use domain::code::Code;
use domain::transfer::{Decision, Op};

use super::order::{self, NO_EXTERNAL, Violation};
use crate::ledger::{Ledger, Step};
use crate::order::Order;

/// Refuses an order that is not recorded yet. Its entry is carried out as that of any order.
pub(super) fn step(ledger: &Ledger, order: &Order, code: Code) -> Step {
    order::decide(ledger, order, true, |_funds| impose(order.op, code))
}

/// The refusal of a new order with `code`.
///
/// # Errors
/// [`Violation`]: UBSCore never refuses this operation, or does not decide it.
fn impose(op: Op, code: Code) -> Result<Decision, Violation> {
    match (op.place_in_transfer(), op.row().refusable) {
        (None, _) => Err(Violation(NO_EXTERNAL)),
        (Some(_), true) => Ok(Decision::Refused(code)),
        (Some(_), false) => Err(Violation("a refund is never refused")),
    }
}
