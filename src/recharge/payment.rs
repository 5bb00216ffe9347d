//! A payment: money that a channel has for an order, and the one decision about it.

use jiff::Timestamp;
use rust_fsm::{StateMachineImpl, state_machine};

use super::facts::Facts;
use super::{PaymentId, RechargeId};
use domain::account::UserId;
use domain::amount::Amount;
use domain::asset::AssetId;

/// Where a payment stands. PostgreSQL stores the number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(i16)]
pub enum Disposition {
    /// In suspense, with a cause.
    Held = 10,
    /// On its way back through the channel.
    Returning = 20,
    /// The user has it. Terminal.
    Credited = 40,
    /// The payer has it again. Terminal.
    Returned = -30,
    /// An operator: it is not ours. Terminal.
    Dismissed = -40,
}

/// An event that moves a payment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PaymentEvent {
    /// It is credited after all.
    Credit,
    /// It is sent back.
    Return,
    /// An operator gives it up.
    Dismiss,
    /// The channel has given it back.
    Gone,
    /// The channel refuses to give it back.
    Refused,
}

impl PaymentEvent {
    /// Every event.
    pub const ALL: [PaymentEvent; 5] = [
        PaymentEvent::Credit,
        PaymentEvent::Return,
        PaymentEvent::Dismiss,
        PaymentEvent::Gone,
        PaymentEvent::Refused,
    ];
}

state_machine! {
    #[state_machine(
        state(crate::recharge::payment::Disposition),
        input(crate::recharge::payment::PaymentEvent)
    )]
    payment_machine(Held)

    Held => {
        Credit => Credited,
        Return => Returning,
        Dismiss => Dismissed,
    },
    Returning => {
        Gone => Returned,
        Refused => Held,
    }
}

impl Disposition {
    /// Every disposition.
    pub const ALL: [Disposition; 5] = [
        Disposition::Held,
        Disposition::Returning,
        Disposition::Credited,
        Disposition::Returned,
        Disposition::Dismissed,
    ];

    /// The number that PostgreSQL stores.
    pub fn number(self) -> i16 {
        self as i16
    }

    /// The disposition with this number.
    pub fn from_number(number: i16) -> Option<Disposition> {
        Disposition::ALL.into_iter().find(|state| state.number() == number)
    }

    /// The name on the wire.
    pub fn name(self) -> &'static str {
        match self {
            Disposition::Held => "HELD",
            Disposition::Returning => "RETURNING",
            Disposition::Credited => "CREDITED",
            Disposition::Returned => "RETURNED",
            Disposition::Dismissed => "DISMISSED",
        }
    }

    /// Where `event` leads; `None`: the table does not admit it.
    pub fn next(self, event: PaymentEvent) -> Option<Disposition> {
        payment_machine::Impl::transition(&self, &event)
    }

    /// Whether nothing can change any more.
    pub fn is_terminal(self) -> bool {
        PaymentEvent::ALL.into_iter().all(|event| self.next(event).is_none())
    }
}

/// Why a payment is held. PostgreSQL stores the number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(i16)]
pub enum HeldCause {
    /// It names an order of ours that is not here.
    Unmatched = 1,
    /// The same, and its proof is none of ours.
    Unproven = 2,
    /// Not the currency of its channel: no asset stands for it.
    Currency = 3,
    /// No amount can hold it.
    Overflow = 4,
    /// The merchant bears a part.
    Discounted = 5,
    /// The channel has given a part back already.
    PartReturned = 6,
    /// The Funding account takes no deposits.
    AccountDisabled = 7,
    /// Another amount than that of its order.
    Amount = 8,
    /// Its order was PAID by another payment.
    Duplicate = 9,
    /// Its order was CLOSED.
    Late = 10,
    /// The channel refuses to give it back.
    ReturnRefused = 11,
}

impl HeldCause {
    /// Every cause.
    pub const ALL: [HeldCause; 11] = [
        HeldCause::Unmatched,
        HeldCause::Unproven,
        HeldCause::Currency,
        HeldCause::Overflow,
        HeldCause::Discounted,
        HeldCause::PartReturned,
        HeldCause::AccountDisabled,
        HeldCause::Amount,
        HeldCause::Duplicate,
        HeldCause::Late,
        HeldCause::ReturnRefused,
    ];

    /// The number that PostgreSQL stores.
    pub fn number(self) -> i16 {
        self as i16
    }

    /// The cause with this number.
    pub fn from_number(number: i16) -> Option<HeldCause> {
        HeldCause::ALL.into_iter().find(|cause| cause.number() == number)
    }

    /// The name on the wire.
    pub fn name(self) -> &'static str {
        match self {
            HeldCause::Unmatched => "UNMATCHED",
            HeldCause::Unproven => "UNPROVEN",
            HeldCause::Currency => "CURRENCY",
            HeldCause::Overflow => "OVERFLOW",
            HeldCause::Discounted => "DISCOUNTED",
            HeldCause::PartReturned => "PART_RETURNED",
            HeldCause::AccountDisabled => "ACCOUNT_DISABLED",
            HeldCause::Amount => "AMOUNT",
            HeldCause::Duplicate => "DUPLICATE",
            HeldCause::Late => "LATE",
            HeldCause::ReturnRefused => "RETURN_REFUSED",
        }
    }

    /// Whether no order was found.
    pub fn is_unmatched(self) -> bool {
        matches!(self, HeldCause::Unmatched | HeldCause::Unproven)
    }
}

/// How a payment was seen first. PostgreSQL stores the number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i16)]
pub enum SeenBy {
    /// The channel's own message.
    Callback = 1,
    /// The till's question.
    Query = 2,
    /// A daily bill.
    Bill = 3,
    /// An operator's question.
    Operator = 4,
}

impl SeenBy {
    /// Every way.
    pub const ALL: [SeenBy; 4] = [SeenBy::Callback, SeenBy::Query, SeenBy::Bill, SeenBy::Operator];

    /// The number that PostgreSQL stores.
    pub fn number(self) -> i16 {
        self as i16
    }

    /// The way with this number.
    pub fn from_number(number: i16) -> Option<SeenBy> {
        SeenBy::ALL.into_iter().find(|way| way.number() == number)
    }

    /// The name in lists and metrics.
    pub fn name(self) -> &'static str {
        match self {
            SeenBy::Callback => "callback",
            SeenBy::Query => "query",
            SeenBy::Bill => "bill",
            SeenBy::Operator => "operator",
        }
    }
}

/// A payment as it is recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RechargePayment {
    /// Its id.
    pub id: PaymentId,
    /// The channel's name: with `trade_no` its key.
    pub channel: String,
    /// The channel's own number.
    pub trade_no: String,
    /// The merchant number, as the channel has it.
    pub merchant_no: String,
    /// Its order; `None`: not found yet.
    pub recharge: Option<RechargeId>,
    /// Its place among the payments of its order, from 1.
    pub ordinal: Option<u32>,
    /// The user that was credited.
    pub user: Option<UserId>,
    /// The amount that arrived, in the channel's minor units.
    pub minor_units: i64,
    /// ISO 4217.
    pub currency: String,
    /// The channel's asset.
    pub asset: AssetId,
    /// The amount that arrived, smallest units; `None`: no amount can hold it, and nothing moves.
    pub amount: Option<Amount>,
    /// Where it stands.
    pub disposition: Disposition,
    /// Why it is held, or was.
    pub cause: Option<HeldCause>,
    /// How it was seen first.
    pub seen_by: SeenBy,
    /// By the channel's clock.
    pub paid_at: Timestamp,
    /// When it was recorded, by the service's clock.
    pub at: Timestamp,
    /// When it last changed, by the service's clock.
    pub updated_at: Timestamp,
    /// Rises by one with each flight that changes the row; 1 when it is made.
    pub version: u64,
}

impl RechargePayment {
    /// The order that a payment without an order names.
    pub fn named_order(&self) -> Option<RechargeId> {
        let named = self.recharge.is_none().then_some(&self.merchant_no);
        named.and_then(|number| RechargeId::parse(number))
    }

    /// Whether facts of its key tell of this payment and no other.
    pub fn agrees(&self, facts: &Facts) -> bool {
        self.merchant_no == facts.merchant_no
            && self.minor_units == facts.minor_units
            && self.currency == facts.currency
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_of_payments_admits_these_events_and_no_other() {
        use Disposition::{Credited, Dismissed, Held, Returned, Returning};
        use PaymentEvent::{Credit, Dismiss, Gone, Refused, Return};
        let admitted = [
            (Held, Credit, Credited),
            (Held, Return, Returning),
            (Held, Dismiss, Dismissed),
            (Returning, Gone, Returned),
            (Returning, Refused, Held),
        ];
        for state in Disposition::ALL {
            for event in PaymentEvent::ALL {
                let want = admitted.iter().find(|row| (row.0, row.1) == (state, event));
                assert_eq!(state.next(event), want.map(|row| row.2), "{state:?} {event:?}");
            }
            assert_eq!(Disposition::from_number(state.number()), Some(state));
        }
        for cause in HeldCause::ALL {
            assert_eq!(HeldCause::from_number(cause.number()), Some(cause), "{}", cause.name());
        }
    }
}
