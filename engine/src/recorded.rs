//! One decision as the outcome map keeps it.

use domain::transfer::Decision;

use crate::external::External;
use crate::order::Order;

/// The decision of one operation, with its intent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recorded {
    /// The account's user.
    pub user: u64,
    /// The asset's number.
    pub asset: u32,
    /// Smallest units.
    pub amount: u64,
    /// The decision.
    pub decision: Decision,
    /// The Spot balance right afterwards, smallest units.
    pub balance_after: u128,
    /// The record that holds it.
    pub sequence: wal::Sequence,
    /// The time of the request, ns since the Unix epoch, by the caller's clock.
    pub time_ns: u64,
    /// The transfer's position in the order of accepts.
    pub order_number: u64,
}

impl Recorded {
    /// The content of record `sequence`, written at `time_ns`, for an order.
    pub fn new(
        order: &Order,
        decision: Decision,
        balance_after: u128,
        sequence: wal::Sequence,
        time_ns: u64,
    ) -> Recorded {
        let Order { user, asset, amount, order_number, .. } = *order;
        Recorded { user, asset, amount, decision, balance_after, sequence, time_ns, order_number }
    }

    /// The content of record `sequence`, written at `time_ns`, for an external operation.
    pub fn of_external(external: &External, sequence: wal::Sequence, time_ns: u64) -> Recorded {
        let External { user, asset, amount, order_number, decision, balance_after, .. } = *external;
        Recorded { user, asset, amount, decision, balance_after, sequence, time_ns, order_number }
    }

    /// Whether `external` repeats this operation: every field is equal.
    pub(crate) fn matches_external(&self, external: &External) -> bool {
        let again = Recorded::of_external(external, self.sequence, self.time_ns);
        *self == again
    }

    /// Whether `order` repeats this operation. Another order under the same name does not match.
    pub(crate) fn matches(&self, order: &Order) -> bool {
        let asked = (order.user, order.asset, order.amount, order.order_number);
        (self.user, self.asset, self.amount, self.order_number) == asked
    }
}
