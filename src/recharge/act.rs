//! The acts on recharges that a user's worker carries out, each in one flight, and their outcomes.

use std::sync::Arc;

use jiff::Timestamp;

use super::decide::{PaymentDecision, PaymentTold};
use super::facts::{Facts, Returned};
use super::movement;
use super::order::{ClosingWish, Follow, Recharge};
use super::payment::{RechargePayment, SeenBy};
use super::proof::Proven;
use super::returned::{Receivable, ReceivableEnd, RechargeReturn, ReturnKind};
use super::terms::{ChannelTerms, RechargePolicy};
use super::{PaymentId, RechargeId, ReturnId};
use domain::account::UserId;
use domain::asset::AssetId;
use domain::code::Code;
use domain::transfer::ExternalOperation;

/// One act, on its way to the worker of its user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RechargeCall {
    /// The owner of the order, or the user to credit. `None`: a payment without an order.
    pub user: Option<UserId>,
    /// Of the credit, in the order of accepts. Given by the worker; 0 before.
    pub order_number: u64,
    /// The same of the bonus beside it.
    pub bonus_number: u64,
    /// The person or part behind it.
    pub actor: String,
    /// The act.
    pub act: RechargeAct,
}

/// See [`RechargeCall`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RechargeAct {
    /// Make an order INIT, once for its user's idempotency key.
    Create {
        /// The order. Its times are moved to that of the flight.
        order: Box<Recharge>,
        /// The most open orders of its user.
        open_max: usize,
    },
    /// Write a lost order again behind a restore, as its proof has it, once for its id.
    Remake {
        /// The order. Its state is PAYING.
        order: Box<Recharge>,
    },
    /// The channel knows the order: INIT becomes PAYING.
    Note {
        /// The order.
        id: RechargeId,
        /// The channel's own number of it.
        reference: Option<String>,
        /// The data that the payer needs.
        pay: Option<String>,
        /// When the till looks at it next.
        next_at: Option<Timestamp>,
    },
    /// Write down the wish to close an order. The first wish stands.
    Wish {
        /// The order.
        id: RechargeId,
        /// Why.
        closing: ClosingWish,
    },
    /// Close an order that has a wish: its channel says that nothing can be paid any more.
    Close {
        /// The order.
        id: RechargeId,
    },
    /// Write down a try of the till, before its call.
    Try {
        /// The order.
        id: RechargeId,
        /// The version that the till has decided on. With another one nothing is written.
        version: u64,
        /// When the till looks at it next, if the call has no end.
        next_at: Timestamp,
    },
    /// Make the next question about an order due, at most every 3 s.
    Hint {
        /// The order.
        id: RechargeId,
    },
    /// Write down how far the money of a PAID order has gone on. Its end stands.
    Follow {
        /// The order.
        id: RechargeId,
        /// How far.
        follow: Follow,
    },
    /// Decide a verified payment.
    Pay(Box<PaymentCall>),
    /// Write down a try of a return, before its call: READY becomes SENT.
    Send {
        /// The payment.
        payment: PaymentName,
        /// The return.
        id: ReturnId,
        /// The version that the till has decided on. With another one nothing is written.
        version: u64,
        /// When the till looks at it next, if the call has no end.
        next_at: Timestamp,
    },
    /// End a HELD payment, by an operator.
    EndHeld {
        /// The payment.
        payment: PaymentName,
        /// How.
        how: HeldEnd,
    },
    /// The channel has ended a return of a payment that is RETURNING.
    EndReturn {
        /// The payment.
        payment: PaymentName,
        /// The return.
        id: ReturnId,
        /// The payer has the money; otherwise why it has not left.
        gone: Result<(), Code>,
    },
    /// Give money of a CREDITED payment back, once for its idempotency key.
    Refund(Box<RefundCall>),
    /// The channel has taken money of a payment, or has given taken money back.
    Take(Box<TakeCall>),
    /// End the open part of a receivable, once for its idempotency key.
    EndReceivable(Box<ReceivableCall>),
}

/// A refund to set apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefundCall {
    /// The payment.
    pub payment: PaymentName,
    /// Its asset.
    pub asset: AssetId,
    /// The id of the return, if it is new.
    pub id: ReturnId,
    /// How much, in the channel's minor units; `None`: all that is left.
    pub minor_units: Option<i64>,
    /// The operator's key.
    pub idem_key: String,
}

/// The state of a payment in which a taking is booked. In another one it is refused for now, with
/// [`Code::NotReturnable`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TakingCondition {
    /// Any: the word of a callback or of a query has no limit.
    Always,
    /// No refund of ours is under way, so that the part that is left is known: a bill comes again.
    NoRefundUnderWay,
    /// It is no more than is left: an operator's word has this limit.
    WithinLeft,
}

/// A fact of a channel about a payment that is recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TakeCall {
    /// The payment.
    pub payment: PaymentName,
    /// Its asset.
    pub asset: AssetId,
    /// [`ReturnId::of`] the fact.
    pub id: ReturnId,
    /// Taken or GivenBack.
    pub kind: ReturnKind,
    /// The channel's own number of it.
    pub number: String,
    /// How much, in the channel's minor units.
    pub minor_units: i64,
    /// Whether the account of a user that is short is frozen.
    pub freezes: bool,
    /// The state of its payment in which it is booked at all.
    pub condition: TakingCondition,
}

/// An act of an operator on a receivable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReceivableCall {
    /// The payment.
    pub payment: PaymentName,
    /// The asset.
    pub asset: AssetId,
    /// The return of the receivable.
    pub id: ReturnId,
    /// Recovered or WrittenOff.
    pub end: ReceivableEnd,
    /// The place of the act among those of the receivable, from 1, if it is new.
    pub number: usize,
    /// The operator's key.
    pub idem_key: String,
}

/// The key of a payment, and its order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PaymentName {
    /// The channel's name.
    pub channel: String,
    /// The channel's own number.
    pub trade_no: String,
    /// Its id.
    pub id: PaymentId,
    /// Its order; `None`: there is none.
    pub recharge: Option<RechargeId>,
}

/// How an operator ends a HELD payment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeldEnd {
    /// To the owner of its order; without an order, to the user of the call.
    Credit,
    /// Back through the channel, under this id.
    Return(ReturnId),
    /// It is not ours.
    Dismiss,
}

/// A verified payment to decide.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PaymentCall {
    /// The id of its row, if it is new: [`PaymentId::of`] its key.
    pub id: PaymentId,
    /// The id of its return, if it is sent back.
    pub return_id: ReturnId,
    /// The facts.
    pub facts: Facts,
    /// The channel.
    pub terms: Arc<ChannelTerms>,
    /// The word of its proof.
    pub proven: Proven,
    /// Its order, as it was looked up; `None`: there is none on this channel.
    pub recharge: Option<RechargeId>,
    /// How it was seen.
    pub seen_by: SeenBy,
    /// The rules.
    pub policy: RechargePolicy,
    /// Whether an operator has a HELD payment decided again.
    pub again: bool,
    /// Whether its order has a bonus.
    pub bonus: bool,
    /// Its order is older than the last restore, or not here: UBSCore's log may have its credit.
    pub restored: bool,
    /// Every other payment of its order was decided before, in the turn of [`Facts::in_turn`]: one
    /// that went back as a whole may have the credit of its order.
    pub last: bool,
    /// Its order, as it was looked up together with its payment, which was not recorded then. The
    /// flight compares both rows, so that it need not read them. `None`: they are read.
    pub seen: Option<Box<Recharge>>,
}

impl PaymentCall {
    /// Whether a payment that went back as a whole is held, since another payment of its order may
    /// be the one that `key` has credited: a second payment of an order is sent back.
    pub fn waits_for_others(&self, key: &str) -> bool {
        let of_order = self.recharge.is_some_and(|id| movement::recharge_credit(id) == key);
        of_order && !self.last && self.facts.returned == Returned::Whole
    }
}

impl RechargeCall {
    /// Whether it may credit a user, and needs an order number.
    pub fn may_credit(&self) -> bool {
        match &self.act {
            RechargeAct::Pay(pay) => pay.recharge.is_some(),
            RechargeAct::EndHeld { how, .. } => *how == HeldEnd::Credit,
            // They take money from a user, or set it apart.
            RechargeAct::EndReturn { .. }
            | RechargeAct::Refund(_)
            | RechargeAct::Take(_)
            | RechargeAct::EndReceivable(_) => true,
            _ => false,
        }
    }

    /// Whether it may move a bonus beside the credit, and needs a second order number.
    pub fn may_move_bonus(&self) -> bool {
        match &self.act {
            RechargeAct::Pay(pay) => pay.bonus,
            RechargeAct::EndReturn { payment, .. } => payment.recharge.is_some(),
            // A refund: one that a restore has lost.
            RechargeAct::Take(take) => {
                take.kind != ReturnKind::GivenBack && take.payment.recharge.is_some()
            }
            _ => false,
        }
    }

    /// The key of the bonus that it may move.
    pub fn bonus_key(&self) -> Option<String> {
        if !self.may_move_bonus() {
            return None;
        }
        match &self.act {
            RechargeAct::Pay(pay) => pay.recharge.map(movement::recharge_bonus),
            RechargeAct::EndReturn { id, .. } => Some(movement::return_bonus(*id)),
            RechargeAct::Take(take) => Some(movement::return_bonus(take.id)),
            _ => None,
        }
    }

    /// The payment that it names by its key.
    fn named(&self) -> Option<&PaymentName> {
        match &self.act {
            RechargeAct::EndHeld { payment, .. }
            | RechargeAct::Send { payment, .. }
            | RechargeAct::EndReturn { payment, .. } => Some(payment),
            RechargeAct::Refund(refund) => Some(&refund.payment),
            RechargeAct::Take(take) => Some(&take.payment),
            RechargeAct::EndReceivable(end) => Some(&end.payment),
            _ => None,
        }
    }

    /// The order that it is about, beside a new one.
    pub fn recharge(&self) -> Option<RechargeId> {
        match &self.act {
            RechargeAct::Create { .. } => None,
            RechargeAct::Remake { order } => Some(order.id),
            RechargeAct::Note { id, .. }
            | RechargeAct::Wish { id, .. }
            | RechargeAct::Try { id, .. }
            | RechargeAct::Hint { id }
            | RechargeAct::Follow { id, .. }
            | RechargeAct::Close { id } => Some(*id),
            RechargeAct::Pay(pay) => pay.recharge,
            _ => self.named().and_then(|payment| payment.recharge),
        }
    }

    /// The channel and trade_no of its payment.
    pub fn payment(&self) -> Option<(String, String)> {
        let key = match &self.act {
            RechargeAct::Pay(pay) => (&pay.terms.name, &pay.facts.trade_no),
            _ => self.named().map(|payment| (&payment.channel, &payment.trade_no))?,
        };
        Some((key.0.clone(), key.1.clone()))
    }

    /// The payment of which all returns and receivables are wanted.
    pub fn returns_of(&self) -> Option<PaymentId> {
        match &self.act {
            RechargeAct::Send { .. } => None,
            _ => self.named().map(|payment| payment.id),
        }
    }

    /// The idempotency key of its refund.
    pub fn refund_key(&self) -> Option<&str> {
        match &self.act {
            RechargeAct::Refund(refund) => Some(&refund.idem_key),
            _ => None,
        }
    }

    /// The return that it is about.
    pub fn ended_return(&self) -> Option<ReturnId> {
        match &self.act {
            RechargeAct::EndReturn { id, .. } | RechargeAct::Send { id, .. } => Some(*id),
            _ => None,
        }
    }

    /// The keys that its credit may have. `payment`: the id of the recorded payment, if it is
    /// another one than that of the call.
    pub fn credit_keys(&self, payment: Option<PaymentId>) -> Vec<String> {
        let id = match &self.act {
            RechargeAct::Pay(pay) => pay.id,
            RechargeAct::EndHeld { payment, .. } => payment.id,
            RechargeAct::EndReturn { id, .. } => {
                return vec![movement::return_key(*id), movement::return_taken(*id)];
            }
            RechargeAct::Take(take) => return vec![movement::return_key(take.id)],
            RechargeAct::EndReceivable(end) => {
                return vec![movement::receivable_act(end.id, end.end, end.number)];
            }
            _ => return Vec::new(),
        };
        let of_payment = [Some(id), payment].into_iter().flatten().map(movement::payment_credit);
        self.recharge().map(movement::recharge_credit).into_iter().chain(of_payment).collect()
    }

    /// The subject of an alert about it.
    pub fn subject(&self) -> String {
        match (&self.act, self.recharge(), self.payment()) {
            (RechargeAct::Create { order, .. }, ..) => order.id.to_string(),
            (_, Some(id), _) => id.to_string(),
            (_, None, Some((channel, trade_no))) => format!("{channel} {trade_no}"),
            (_, None, None) => "recharge".to_owned(),
        }
    }
}

/// The outcome of an act.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RechargeOutcome {
    /// The order as it stands. `replayed`: its idempotency key was used before, with this body.
    Order {
        /// The order.
        order: Box<Recharge>,
        /// Whether the act is a repeat.
        replayed: bool,
    },
    /// The decision about a payment.
    Payment {
        /// The decision.
        decision: PaymentDecision,
        /// The answer for its channel.
        told: PaymentTold,
        /// The payment as it stands; `None`: it is not recorded.
        payment: Option<Box<RechargePayment>>,
    },
    /// Nothing was done.
    Refused {
        /// Why.
        code: Code,
        /// More than the message of the code.
        detail: Option<String>,
    },
    /// Halted, or without room: it was only looked for, and is not there.
    Nothing,
    /// A return as it stands.
    Return {
        /// The return.
        row: Box<RechargeReturn>,
        /// The receivable that it has opened, or that the act is about.
        receivable: Option<Box<Receivable>>,
        /// Whether the act is a repeat.
        replayed: bool,
    },
}

/// The answer of a flight to an act.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RechargeReply {
    /// The outcome.
    pub outcome: RechargeOutcome,
    /// The credit behind it, which UBSCore's log records before the caller has its answer.
    pub credit: Option<ExternalOperation>,
    /// The bonus beside it, recorded in the same way.
    pub bonus: Option<ExternalOperation>,
}

impl RechargeReply {
    /// An outcome without a credit.
    pub fn plain(outcome: RechargeOutcome) -> RechargeReply {
        RechargeReply { outcome, credit: None, bonus: None }
    }

    /// A refusal.
    pub fn refused(code: Code, detail: Option<String>) -> RechargeReply {
        RechargeReply::plain(RechargeOutcome::Refused { code, detail })
    }
}
