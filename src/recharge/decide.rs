//! The one table that decides a verified payment. Pure: the handle asks it whether anything is to
//! be written, and the worker asks it again on the rows that its flight rests on.

use super::RechargeId;
use super::facts::{Facts, Returned};
use super::order::{Recharge, RechargeState};
use super::payment::{Disposition, HeldCause, RechargePayment};
use super::proof::Proven;
use super::terms::{ChannelTerms, PaymentRule, RechargePolicy};
use domain::account::AccountStatus;
use domain::amount::Amount;

/// Everything that a decision rests on.
#[derive(Clone, Copy, Debug)]
pub struct KnownPayment<'a> {
    /// The channel.
    pub terms: &'a ChannelTerms,
    /// The amount that arrived, smallest units: that of the record, if there is one. `None`: no
    /// amount can hold it.
    pub amount: Option<Amount>,
    /// The word of the proof.
    pub proven: Proven,
    /// The payment of this channel and trade_no, if it is recorded.
    pub recorded: Option<&'a RechargePayment>,
    /// The order that the merchant number names, if it is here and on this channel.
    pub order: Option<&'a Recharge>,
    /// The status of the owner's Funding account; `None`: there is none yet.
    pub account: Option<AccountStatus>,
    /// An operator has a HELD payment of an order decided again.
    pub again: bool,
}

/// The decision about a payment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PaymentDecision {
    /// Not ours: nothing is written.
    Foreign,
    /// Its key is recorded with other facts: nothing is written, and an operator must look.
    Contradiction,
    /// Decided before: nothing is written.
    Repeat,
    /// Into suspense, or it stays there.
    Hold(HeldCause),
    /// The channel had given all of it back: recorded, and nothing moves.
    Returned,
    /// Sent back through the channel.
    Return,
    /// To the user. `pays`: it makes its order PAID.
    Credit {
        /// Whether the order becomes PAID.
        pays: bool,
    },
}

/// The credit of a payment that a repair has brought back before the payment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RestoredCredit {
    /// There is none.
    Nothing,
    /// It is there.
    Ours {
        /// Its key.
        key: String,
        /// Whether the order becomes PAID.
        pays: bool,
    },
    /// Its key is there with other facts.
    Other,
}

/// The answer for a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PaymentTold {
    /// It need not come again.
    Success,
    /// It comes again: the order may be back by then.
    NotFound,
    /// Other facts than before.
    Conflict,
}

impl PaymentDecision {
    /// Whether something is to be written.
    pub fn writes(self) -> bool {
        !matches!(
            self,
            PaymentDecision::Foreign | PaymentDecision::Contradiction | PaymentDecision::Repeat
        )
    }

    /// The answer for the channel. `recorded`: the payment as it stands behind the decision.
    pub fn told(self, recorded: Option<&RechargePayment>) -> PaymentTold {
        let waits = |payment: &RechargePayment| {
            let part = Some(HeldCause::PartReturned);
            payment.disposition == Disposition::Held
                && (payment.cause.is_some_and(HeldCause::is_unmatched)
                    || payment.recharge.is_none() && payment.cause == part)
        };
        match self {
            PaymentDecision::Contradiction => PaymentTold::Conflict,
            PaymentDecision::Hold(cause) if cause.is_unmatched() => PaymentTold::NotFound,
            PaymentDecision::Hold(_) | PaymentDecision::Repeat if recorded.is_some_and(waits) => {
                PaymentTold::NotFound
            }
            PaymentDecision::Foreign
            | PaymentDecision::Repeat
            | PaymentDecision::Hold(_)
            | PaymentDecision::Returned
            | PaymentDecision::Return
            | PaymentDecision::Credit { .. } => PaymentTold::Success,
        }
    }
}

/// Decides a verified payment: the first row of the table that fits.
pub fn decide(known: &KnownPayment<'_>, facts: &Facts, policy: RechargePolicy) -> PaymentDecision {
    let Some(id) = RechargeId::parse(&facts.merchant_no) else { return PaymentDecision::Foreign };
    let order = known.order.filter(|order| order.id == id && order.channel == known.terms.name);
    if let Some(recorded) = known.recorded {
        if !recorded.agrees(facts) {
            return PaymentDecision::Contradiction;
        }
        let unmatched = recorded.recharge.is_none() && order.is_some();
        if recorded.disposition != Disposition::Held || !(unmatched || known.again) {
            return PaymentDecision::Repeat;
        }
    }
    let Some(order) = order else {
        return match known.proven {
            // An order that is not here may be another deployment's, and accounts are shared.
            Proven::Elsewhere if known.recorded.is_none() => PaymentDecision::Foreign,
            _ if part_returned(known, facts) => PaymentDecision::Hold(HeldCause::PartReturned),
            Proven::Broken => PaymentDecision::Hold(HeldCause::Unproven),
            _ => PaymentDecision::Hold(HeldCause::Unmatched),
        };
    };
    match unusual(known, order, facts) {
        Some(decision) => decision,
        None => by_order(known, order, facts, policy),
    }
}

/// Whether the channel has given back a part, or all of it, as these facts or those before say. No
/// later word takes that back.
fn part_returned(known: &KnownPayment<'_>, facts: &Facts) -> bool {
    let before = known.recorded.and_then(|row| row.cause);
    facts.returned != Returned::None || before == Some(HeldCause::PartReturned)
}

/// The rows about the payment itself and its account.
fn unusual(known: &KnownPayment<'_>, order: &Recharge, facts: &Facts) -> Option<PaymentDecision> {
    // The asset of a channel may have changed since the order, or since the payment.
    let asset = known.terms.asset;
    let is_other = order.asset != asset || known.recorded.is_some_and(|row| row.asset != asset);
    if facts.currency != known.terms.currency || is_other {
        return Some(PaymentDecision::Hold(HeldCause::Currency));
    }
    if known.amount.is_none() {
        return Some(PaymentDecision::Hold(HeldCause::Overflow));
    }
    if facts.discount {
        return Some(PaymentDecision::Hold(HeldCause::Discounted));
    }
    // A payment in suspense leaves it by a return of its own.
    if facts.returned == Returned::Whole && known.recorded.is_none() {
        return Some(PaymentDecision::Returned);
    }
    if part_returned(known, facts) {
        return Some(PaymentDecision::Hold(HeldCause::PartReturned));
    }
    (known.account == Some(AccountStatus::Disabled))
        .then_some(PaymentDecision::Hold(HeldCause::AccountDisabled))
}

/// The rows about the state of the order.
fn by_order(
    known: &KnownPayment<'_>,
    order: &Recharge,
    facts: &Facts,
    policy: RechargePolicy,
) -> PaymentDecision {
    // The minor unit of a channel may have changed since the order: what is credited counts too.
    let equal = order.minor_units == facts.minor_units
        && known.amount.is_none_or(|amount| amount == order.amount);
    let credited = |pays| match policy.differing {
        _ if equal => PaymentDecision::Credit { pays },
        PaymentRule::Credit => PaymentDecision::Credit { pays },
        PaymentRule::Hold | PaymentRule::Return => PaymentDecision::Hold(HeldCause::Amount),
    };
    match order.state {
        RechargeState::Init | RechargeState::Paying => credited(true),
        RechargeState::Paid => match policy.duplicate {
            PaymentRule::Return => PaymentDecision::Return,
            PaymentRule::Hold | PaymentRule::Credit => PaymentDecision::Hold(HeldCause::Duplicate),
        },
        RechargeState::Closed => match policy.late {
            PaymentRule::Credit => credited(false),
            PaymentRule::Return => PaymentDecision::Return,
            PaymentRule::Hold => PaymentDecision::Hold(HeldCause::Late),
        },
    }
}

#[cfg(test)]
pub(crate) mod tests;
