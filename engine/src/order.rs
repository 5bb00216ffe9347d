//! An operation of a transfer on Spot, and its bytes in the log (kinds 1 and 8).
//!
//! | bytes | field |
//! |---|---|
//! | 16 | req_id |
//! | 16 | balance_after: the Spot balance afterwards, smallest units |
//! | 8 | user |
//! | 8 | amount, smallest units |
//! | 8 | order_number |
//! | 4 | asset |
//! | 2 | code, 0 = success |
//! | 1 | op, 1 = WITHDRAW, 2 = DEPOSIT, 3 = REFUND |
//! | 1 | direction |
//! | 1 | length of cid |
//! | 0 to 64 | cid |

use std::mem::size_of;

use domain::account::UserId;
use domain::amount::Amount;
use domain::asset::AssetId;
use domain::transfer::{CID_BYTES_MAX, Cid, Decision, Direction, Intent, Op, ReqId};
use zerocopy::little_endian::{U16, U32, U64, U128};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::record::{
    Error, Kind, ORDER_BYTES_MAX, PAYLOAD_BYTES_MAX, decision_number, decision_of, join,
};
use crate::text::Text;

/// A transfer's operation on Spot.
///
/// It carries the full intent, so that PostgreSQL can be compared with the log and repaired from
/// it. Its fields are plain numbers: UBSCore checks them itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Order {
    /// WITHDRAW, DEPOSIT or REFUND.
    pub op: Op,
    /// The transfer, not 0.
    pub req_id: u128,
    /// The client's idempotency key, may be empty.
    pub cid: Text<CID_BYTES_MAX>,
    /// The account's user, 1..=2^63-1.
    pub user: u64,
    /// The asset's number.
    pub asset: u32,
    /// Smallest units, not 0.
    pub amount: u64,
    /// The transfer's direction.
    pub direction: Direction,
    /// The transfer's position in the order of accepts.
    pub order_number: u64,
}

impl Order {
    /// The order for one operation of a transfer.
    pub fn new(intent: &Intent, op: Op) -> Order {
        let cid = intent.cid.as_ref().map_or("", |cid| cid.as_str());
        Order {
            op,
            req_id: intent.req_id.number(),
            cid: Text::new(cid).expect("a Cid fits"),
            user: intent.user.number(),
            asset: intent.asset.0,
            amount: intent.amount.units(),
            direction: intent.direction,
            order_number: intent.order_number,
        }
    }

    /// The order's transfer; `None` if a number is out of range.
    pub fn intent(&self) -> Option<Intent> {
        Some(Intent {
            req_id: ReqId::new(self.req_id)?,
            // One of this program's own has a `/`.
            cid: Cid::of_operation(self.cid.as_str()),
            user: UserId::new(self.user)?,
            asset: AssetId(self.asset),
            amount: Amount::new(self.amount)?,
            direction: self.direction,
            order_number: self.order_number,
        })
    }
}

/// An order with its decision: the content of a record of kind 1 or 8.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DecidedOrder {
    pub(crate) order: Order,
    pub(crate) decision: Decision,
    pub(crate) balance_after: u128,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct OrderBytes {
    req_id: U128,
    balance_after: U128,
    user: U64,
    amount: U64,
    order_number: U64,
    asset: U32,
    code: U16,
    op: u8,
    direction: u8,
    cid_length: u8,
}

const _: () = assert!(size_of::<OrderBytes>() == 65);
const _: () = assert!(size_of::<OrderBytes>() + CID_BYTES_MAX == ORDER_BYTES_MAX);

impl DecidedOrder {
    /// Writes the payload into `buffer`. Returns its length in bytes.
    pub(crate) fn encode(
        order: &Order,
        decision: Decision,
        balance_after: u128,
        buffer: &mut [u8; PAYLOAD_BYTES_MAX],
    ) -> usize {
        let fixed = OrderBytes {
            req_id: order.req_id.into(),
            balance_after: balance_after.into(),
            user: order.user.into(),
            amount: order.amount.into(),
            order_number: order.order_number.into(),
            asset: order.asset.into(),
            code: decision_number(decision).into(),
            op: order.op as u8,
            direction: order.direction as u8,
            cid_length: order.cid.length(),
        };
        join(buffer, fixed.as_bytes(), order.cid.as_bytes())
    }

    /// Reads the payload of a record. `kind`: [`Kind::Order`] or [`Kind::Refusal`].
    ///
    /// # Errors
    /// [`Error`]: this version cannot read it.
    pub(crate) fn decode(kind: Kind, payload: &[u8]) -> Result<DecidedOrder, Error> {
        let malformed = || Error::Payload { kind, bytes: payload.len() };
        let field = |field, number: u8| Error::Field { field, number: number.into() };
        let (fixed, cid) = OrderBytes::ref_from_prefix(payload).map_err(|_| malformed())?;
        if cid.len() != usize::from(fixed.cid_length) {
            return Err(malformed());
        }
        let op = Op::from_number(fixed.op).filter(|op| !op.is_posting());
        let op = op.ok_or_else(|| field("op", fixed.op))?;
        let direction = Direction::from_number(fixed.direction)
            .ok_or_else(|| field("direction", fixed.direction))?;
        let decision = decision_of(fixed.code.get())?;
        let order = Order {
            op,
            req_id: fixed.req_id.get(),
            cid: Text::from_bytes(cid).ok_or_else(malformed)?,
            user: fixed.user.get(),
            asset: fixed.asset.get(),
            amount: fixed.amount.get(),
            direction,
            order_number: fixed.order_number.get(),
        };
        Ok(DecidedOrder { order, decision, balance_after: fixed.balance_after.get() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order() -> Order {
        Order {
            op: Op::Withdraw,
            req_id: 0x0102_0304_0506_0708_090a_0b0c_0d0e_0f10,
            cid: Text::new("ab").expect("short"),
            user: 1001,
            asset: 3,
            amount: 25_050_000_000,
            direction: Direction::SpotToFunding,
            order_number: 7,
        }
    }

    #[test]
    fn an_order_leads_back_to_its_transfer() {
        for order in [order(), Order { cid: Text::EMPTY, ..order() }] {
            let intent = order.intent().expect("a transfer's");
            assert_eq!(Order::new(&intent, order.op), order);
        }
        for none in [
            Order { req_id: 0, ..order() },
            Order { user: 0, ..order() },
            Order { user: 1 << 63, ..order() },
            Order { amount: 0, ..order() },
        ] {
            assert_eq!(none.intent(), None, "{none:?}");
        }
    }
}
