//! An imposed refusal: an order is refused whether or not its account would admit it.

use domain::code::Code;
use domain::transfer::{Decision, Op};

use super::order::{self, NO_EXTERNAL, Violation};
use crate::ledger::{Ledger, Step};
use crate::order::Order;

/// Refuses an order that is not recorded yet. Its entry is carried out as that of any order.
pub(super) fn step(ledger: &Ledger, order: &Order, code: Code) -> Step {
    order::decide(ledger, order, true, |_balance| impose(order.op, code))
}

/// The refusal of a new order with `code`.
///
/// # Errors
/// [`Violation`]: UBSCore never refuses this operation, or does not decide it.
fn impose(op: Op, code: Code) -> Result<Decision, Violation> {
    match (op.is_external(), op.row().refusable) {
        (true, _) => Err(Violation(NO_EXTERNAL)),
        (false, true) => Ok(Decision::Refused(code)),
        (false, false) => Err(Violation("a refund is never refused")),
    }
}
