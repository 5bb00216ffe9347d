//! The rows of recharges in a flight, and the rows that their decisions rest on.

use std::collections::{BTreeMap, BTreeSet};

use domain::account::UserId;

use crate::recharge::movement::RechargeMovement;
use crate::recharge::order::{Recharge, RechargeState, RechargeStep};
use crate::recharge::payment::{HeldCause, RechargePayment};
use crate::recharge::returned::{Receivable, ReceivableAct, RechargeReturn};
use crate::recharge::{PaymentId, RechargeId, ReturnId};

/// The rows of recharges that one flight writes, as they stand behind it. A row of version 1 is
/// new; any other one must have the version before.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recharged {
    /// Orders, by id, each with its history in this flight.
    pub orders: Vec<(Recharge, Vec<RechargeStep>)>,
    /// Payments, by channel and trade_no.
    pub payments: Vec<RechargePayment>,
    /// Returns, by id.
    pub returns: Vec<RechargeReturn>,
    /// Movements, in their order.
    pub movements: Vec<RechargeMovement>,
    /// Entries for the journal, in their order.
    pub notices: Vec<RechargeNotice>,
    /// The orders and payments of notices that this flight may not write.
    pub beside: Beside,
    /// Receivables, by the id of their return, each with the acts of this flight.
    pub receivables: Vec<(Receivable, Vec<ReceivableAct>)>,
}

/// Rows that the notices of a flight name, and that stay as they are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Beside {
    /// Orders.
    pub orders: Vec<Recharge>,
    /// Payments.
    pub payments: Vec<RechargePayment>,
}

impl Recharged {
    /// Whether the flight has none.
    pub fn is_empty(&self) -> bool {
        *self == Recharged::default()
    }
}

/// An entry of the journal, and an event: one for each change that its user sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RechargeNotice {
    /// The change.
    pub change: RechargeChange,
    /// Of the credit; 0 for any other change.
    pub order_number: u64,
    /// The user.
    pub user: UserId,
    /// The order, or 0.
    pub recharge: u128,
    /// The payment, or 0.
    pub payment: u128,
    /// Where the order stands then; `None`: there is none.
    pub state: Option<RechargeState>,
    /// Why the payment is held, if it is.
    pub cause: Option<HeldCause>,
}

/// A change that a user sees. The journal stores the number, which is never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum RechargeChange {
    /// The payer can pay.
    Paying = 1,
    /// Paid and credited.
    Paid = 2,
    /// Nothing is expected any more.
    Closed = 3,
    /// A payment is held.
    PaymentHeld = 4,
    /// A payment was credited that did not pay its order.
    PaymentCredited = 5,
    /// A payment was given back, or a part of it.
    Returned = 6,
    /// The money of a PAID order has gone on to its target.
    Forwarded = 7,
    /// The channel has taken money back.
    Taken = 8,
}

impl RechargeChange {
    /// Every change.
    pub const ALL: [RechargeChange; 8] = [
        RechargeChange::Paying,
        RechargeChange::Paid,
        RechargeChange::Closed,
        RechargeChange::PaymentHeld,
        RechargeChange::PaymentCredited,
        RechargeChange::Returned,
        RechargeChange::Forwarded,
        RechargeChange::Taken,
    ];

    /// The change with this number.
    pub fn from_number(number: u8) -> Option<RechargeChange> {
        RechargeChange::ALL.into_iter().find(|change| *change as u8 == number)
    }

    /// The name of the change with this number.
    pub fn name_of(number: u8) -> Option<&'static str> {
        RechargeChange::from_number(number).map(RechargeChange::name)
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            RechargeChange::Paying => "PAYING",
            RechargeChange::Paid => "PAID",
            RechargeChange::Closed => "CLOSED",
            RechargeChange::PaymentHeld => "PAYMENT_HELD",
            RechargeChange::PaymentCredited => "PAYMENT_CREDITED",
            RechargeChange::Returned => "RETURNED",
            RechargeChange::Forwarded => "FORWARDED",
            RechargeChange::Taken => "TAKEN",
        }
    }

    /// The type of its event on the wire.
    pub fn event_type(self) -> &'static str {
        match self {
            RechargeChange::Paying => "recharge.paying",
            RechargeChange::Paid => "recharge.paid",
            RechargeChange::Closed => "recharge.closed",
            RechargeChange::PaymentHeld => "recharge.payment_held",
            RechargeChange::PaymentCredited => "recharge.payment_credited",
            RechargeChange::Returned => "recharge.returned",
            RechargeChange::Forwarded => "recharge.forwarded",
            RechargeChange::Taken => "recharge.taken",
        }
    }

    /// The state that it names; `None`: the order keeps its own.
    pub fn state(self) -> Option<RechargeState> {
        match self {
            RechargeChange::Paying => Some(RechargeState::Paying),
            RechargeChange::Paid => Some(RechargeState::Paid),
            RechargeChange::Closed => Some(RechargeState::Closed),
            _ => None,
        }
    }
}

/// The key by which rows of recharges are read.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RechargeKey {
    /// An order.
    Order(RechargeId),
    /// The order of a user's idempotency key, and the number of the user's open orders.
    Idem(UserId, String),
    /// A payment, by channel and trade_no.
    Payment(String, String),
    /// A return.
    Return(ReturnId),
    /// The refund with an operator's idempotency key.
    Refund(String),
    /// All returns and receivables of a payment.
    Returns(PaymentId),
    /// Whether there is a movement with this key.
    Movement(String),
}

/// Rows of recharges as they were read. A key that was read and has no row here names none.
#[derive(Clone, Debug, Default)]
pub struct RechargeRows {
    /// Orders.
    pub orders: BTreeMap<RechargeId, Recharge>,
    /// The orders of idempotency keys.
    pub idems: BTreeMap<(UserId, String), RechargeId>,
    /// Open orders of users.
    pub open: BTreeMap<UserId, usize>,
    /// Payments.
    pub payments: BTreeMap<(String, String), RechargePayment>,
    /// Returns.
    pub returns: BTreeMap<ReturnId, RechargeReturn>,
    /// Receivables.
    pub receivables: BTreeMap<ReturnId, Receivable>,
    /// Keys of movements that are there.
    pub moved: BTreeSet<String>,
    /// The keys that were read.
    pub read: BTreeSet<RechargeKey>,
}

impl RechargeRows {
    /// Learns rows.
    pub fn extend(&mut self, other: RechargeRows) {
        self.orders.extend(other.orders);
        self.idems.extend(other.idems);
        self.open.extend(other.open);
        self.payments.extend(other.payments);
        self.returns.extend(other.returns);
        self.receivables.extend(other.receivables);
        self.moved.extend(other.moved);
        self.read.extend(other.read);
    }

    /// Adds an order that was read.
    pub fn order(&mut self, order: Recharge) {
        self.idems.insert((order.user, order.idem_key.clone()), order.id);
        self.orders.insert(order.id, order);
    }
}
