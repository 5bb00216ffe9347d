//! A return: money of a payment that goes back through its channel, and the receivable of what its
//! user did not have.

use std::cmp::min;

use jiff::Timestamp;
use rust_fsm::{StateMachineImpl, state_machine};

use super::payment::{Disposition, RechargePayment};
use super::{PaymentId, ReturnId};
use domain::account::UserId;
use domain::amount::{Amount, UNITS_MAX};
use domain::asset::AssetId;
use domain::code::Code;

/// Where a return stands. PostgreSQL stores the number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(i16)]
pub enum ReturnState {
    /// Asked for.
    Requested = 0,
    /// Its money is set apart.
    Ready = 10,
    /// The channel may have been asked.
    Sent = 20,
    /// The payer has it. Terminal.
    Done = 40,
    /// The hold or the channel has refused. Terminal.
    Failed = -10,
}

/// An event that moves a return.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ReturnEvent {
    /// Its money is set apart.
    Apart,
    /// The channel is asked.
    Asked,
    /// The channel has given it back.
    Gone,
    /// The hold or the channel has refused.
    Refused,
}

impl ReturnEvent {
    /// Every event.
    pub const ALL: [ReturnEvent; 4] =
        [ReturnEvent::Apart, ReturnEvent::Asked, ReturnEvent::Gone, ReturnEvent::Refused];
}

state_machine! {
    #[state_machine(
        state(crate::recharge::returned::ReturnState),
        input(crate::recharge::returned::ReturnEvent)
    )]
    return_machine(Requested)

    Requested => {
        Apart => Ready,
        Refused => Failed,
    },
    Ready => {
        Asked => Sent,
        Refused => Failed,
    },
    Sent => {
        Gone => Done,
        Refused => Failed,
    }
}

impl ReturnState {
    /// Every state.
    pub const ALL: [ReturnState; 5] = [
        ReturnState::Requested,
        ReturnState::Ready,
        ReturnState::Sent,
        ReturnState::Done,
        ReturnState::Failed,
    ];

    /// The number that PostgreSQL stores.
    pub fn number(self) -> i16 {
        self as i16
    }

    /// The state with this number.
    pub fn from_number(number: i16) -> Option<ReturnState> {
        ReturnState::ALL.into_iter().find(|state| state.number() == number)
    }

    /// Where `event` leads; `None`: the table does not admit it.
    pub fn next(self, event: ReturnEvent) -> Option<ReturnState> {
        return_machine::Impl::transition(&self, &event)
    }

    /// Whether some sequence of events leads from here to `state`.
    pub fn leads_to(self, state: ReturnState) -> bool {
        let mut nexts = ReturnEvent::ALL.into_iter().filter_map(|event| self.next(event));
        nexts.any(|next| next == state || next.leads_to(state))
    }
}

/// Why money goes back. PostgreSQL stores the number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i16)]
pub enum ReturnKind {
    /// We have asked for it.
    Refund = 1,
    /// The channel has taken it.
    Taken = 2,
    /// The channel has given taken money back.
    GivenBack = 3,
}

impl ReturnKind {
    /// Every kind.
    pub const ALL: [ReturnKind; 3] = [ReturnKind::Refund, ReturnKind::Taken, ReturnKind::GivenBack];

    /// The name in lists.
    pub fn name(self) -> &'static str {
        match self {
            ReturnKind::Refund => "REFUND",
            ReturnKind::Taken => "TAKEN",
            ReturnKind::GivenBack => "GIVEN_BACK",
        }
    }

    /// The number that PostgreSQL stores.
    pub fn number(self) -> i16 {
        self as i16
    }
}

/// A return as it is recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RechargeReturn {
    /// Its id.
    pub id: ReturnId,
    /// Of which payment.
    pub payment: PaymentId,
    /// Why.
    pub kind: ReturnKind,
    /// How much, in the channel's minor units.
    pub minor_units: i64,
    /// Where it stands.
    pub state: ReturnState,
    /// When the till looks at it next; `None`: never.
    pub next_at: Option<Timestamp>,
    /// By the service's clock.
    pub created_at: Timestamp,
    /// By the service's clock.
    pub updated_at: Timestamp,
    /// Rises by one with each flight that changes the row; 1 when it is made.
    pub version: u64,
    /// The idempotency key of a refund that an operator has asked for.
    pub idem_key: Option<String>,
    /// The channel's own number of a taking.
    pub number: Option<String>,
    /// Why it has failed: the code of the hold, or [`Code::ChannelRefused`].
    pub code: Option<Code>,
    /// Tries at the channel.
    pub attempts: u32,
    /// The part of the bonus of its order that goes with it, smallest units.
    pub bonus: u64,
}

impl RechargeReturn {
    /// Whether it is the taking of a refund of ours that the channel has carried out, and that was
    /// not known here.
    pub fn is_lost_refund(&self, id: ReturnId) -> bool {
        self.kind == ReturnKind::Taken && self.number.as_ref() == Some(&id.to_string())
    }
}

impl RechargePayment {
    /// So many minor units of this payment as an amount, by its own measure: the minor unit of its
    /// channel may have changed since. `None`: no asset stands for it, or it is not above 0.
    pub fn amount_of(&self, minor_units: i64) -> Option<Amount> {
        let factor = self.amount?.units().checked_div(u64::try_from(self.minor_units).ok()?)?;
        let units = u64::try_from(minor_units).ok()?.checked_mul(factor)?;
        Amount::new(units).filter(|amount| amount.units() <= UNITS_MAX)
    }

    /// The minor units of an amount, by the measure of this payment. `None`: it is no multiple of
    /// one.
    pub fn minor_units_of(&self, amount: Amount) -> Option<i64> {
        let factor = self.amount?.units().checked_div(u64::try_from(self.minor_units).ok()?)?;
        let whole = factor > 0 && amount.units().is_multiple_of(factor);
        whole.then(|| i64::try_from(amount.units() / factor).ok()).flatten()
    }

    /// The part of it, in minor units, that has neither gone back nor is on its way. `returns`: all
    /// of its own.
    pub fn left(&self, returns: &[RechargeReturn]) -> i64 {
        let gone = refunded(returns).saturating_add(taken(returns));
        self.minor_units.saturating_sub(gone).max(0)
    }

    /// The part of it, in minor units, that its user bears because the channel has taken it: no
    /// more than refunds leave. `returns`: all of its own.
    pub fn bears(&self, returns: &[RechargeReturn]) -> i64 {
        min(self.minor_units.saturating_sub(refunded(returns)).max(0), taken(returns))
    }

    /// The part of it, in minor units, that is in suspense while it is HELD or RETURNING.
    pub fn in_suspense(&self, returns: &[RechargeReturn]) -> i64 {
        match self.disposition {
            Disposition::Held | Disposition::Returning => {
                self.minor_units - min(self.minor_units, taken(returns))
            }
            Disposition::Credited | Disposition::Returned | Disposition::Dismissed => 0,
        }
    }
}

/// The money that has gone back by refunds, or is on its way, in minor units.
fn refunded(returns: &[RechargeReturn]) -> i64 {
    let refunds = returns.iter().filter(|row| row.kind == ReturnKind::Refund);
    let refunds = refunds.filter(|row| row.state != ReturnState::Failed);
    refunds.fold(0_i64, |sum, row| sum.saturating_add(row.minor_units))
}

/// The money that the channel has taken and not given back, in minor units, not below 0.
pub fn taken(returns: &[RechargeReturn]) -> i64 {
    let sum = returns.iter().fold(0_i64, |sum, row| match row.kind {
        ReturnKind::Refund => sum,
        ReturnKind::Taken => sum.saturating_add(row.minor_units),
        ReturnKind::GivenBack => sum.saturating_sub(row.minor_units),
    });
    sum.max(0)
}

/// The way in which a part of a receivable ends. PostgreSQL stores the number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i16)]
pub enum ReceivableEnd {
    /// Its user has paid.
    Recovered = 1,
    /// It is a loss.
    WrittenOff = 2,
    /// The channel has given it back.
    GivenBack = 3,
}

impl ReceivableEnd {
    /// Every way.
    pub const ALL: [ReceivableEnd; 3] =
        [ReceivableEnd::Recovered, ReceivableEnd::WrittenOff, ReceivableEnd::GivenBack];

    /// The name in lists.
    pub fn name(self) -> &'static str {
        match self {
            ReceivableEnd::Recovered => "RECOVERED",
            ReceivableEnd::WrittenOff => "WRITTEN_OFF",
            ReceivableEnd::GivenBack => "GIVEN_BACK",
        }
    }

    /// The number that PostgreSQL stores.
    pub fn number(self) -> i16 {
        self as i16
    }

    /// The way with this number.
    pub fn from_number(number: i16) -> Option<ReceivableEnd> {
        ReceivableEnd::ALL.into_iter().find(|end| end.number() == number)
    }
}

/// One act on a receivable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReceivableAct {
    /// By the service's clock.
    pub at: Timestamp,
    /// The way.
    pub end: ReceivableEnd,
    /// How much, smallest units.
    pub amount: Amount,
    /// A repeat of an operator's act; the key of the return that the channel has given back.
    pub idem_key: String,
    /// The person or part behind it.
    pub actor: String,
}

/// The part of taken money that its user did not have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Receivable {
    /// The return that has taken the money.
    pub id: ReturnId,
    /// Of which payment.
    pub payment: PaymentId,
    /// The debtor.
    pub user: UserId,
    /// The asset.
    pub asset: AssetId,
    /// How much, smallest units.
    pub amount: Amount,
    /// Paid by its user, or given back by the channel, smallest units.
    pub recovered: u64,
    /// Given up, smallest units.
    pub written_off: u64,
    /// The acts on it, in their order.
    pub acts: Vec<ReceivableAct>,
    /// By the service's clock.
    pub at: Timestamp,
    /// By the service's clock.
    pub updated_at: Timestamp,
    /// Rises by one with each flight that changes the row; 1 when it is made.
    pub version: u64,
}

impl Receivable {
    /// The part that is still owed, smallest units.
    pub fn open(&self) -> u64 {
        self.amount.units().saturating_sub(self.recovered).saturating_sub(self.written_off)
    }

    /// Ends a part of it.
    pub fn ends(&mut self, act: ReceivableAct) {
        assert!(act.amount.units() <= self.open(), "no more is owed than it is");
        match act.end {
            ReceivableEnd::Recovered | ReceivableEnd::GivenBack => {
                self.recovered += act.amount.units();
            }
            ReceivableEnd::WrittenOff => self.written_off += act.amount.units(),
        }
        self.acts.push(act);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recharge::decide::tests::{facts, recorded};

    fn row(kind: ReturnKind, minor_units: i64, state: ReturnState) -> RechargeReturn {
        let at = Timestamp::UNIX_EPOCH;
        RechargeReturn {
            id: ReturnId::new(1).expect("not zero"),
            payment: PaymentId::new(1).expect("not zero"),
            kind,
            minor_units,
            state,
            next_at: None,
            created_at: at,
            updated_at: at,
            version: 1,
            attempts: 0,
            bonus: 0,
            idem_key: None,
            number: None,
            code: None,
        }
    }

    /// Goal: no more goes back than has come, and a refused refund counts for nothing.
    #[test]
    fn what_is_left_is_neither_gone_nor_on_its_way() {
        use ReturnKind::{GivenBack, Refund, Taken};
        use ReturnState::{Done, Failed, Sent};
        let payment = recorded(&facts(), Disposition::Credited, None);
        let whole = payment.minor_units;
        assert_eq!(payment.left(&[]), whole);
        let rows = [row(Refund, 1, Sent), row(Refund, 2, Done), row(Refund, whole, Failed)];
        assert_eq!(payment.left(&rows), whole - 3);
        assert_eq!(payment.left(&[row(Taken, whole + 1, Done)]), 0);
        let back = [row(Taken, whole, Done), row(GivenBack, 4, Done)];
        assert_eq!((payment.left(&back), payment.bears(&back)), (4, whole - 4));
        let beside = [row(Refund, 3, Sent), row(Taken, whole, Done)];
        assert_eq!((payment.left(&beside), payment.bears(&beside)), (0, whole - 3));
        let refused = [row(Refund, 3, Failed), row(Taken, whole, Done)];
        assert_eq!((payment.left(&refused), payment.bears(&refused)), (0, whole));
        let held = recorded(&facts(), Disposition::Held, None);
        assert_eq!((held.in_suspense(&back), payment.in_suspense(&back)), (4, 0));
        assert_eq!(held.in_suspense(&[row(Taken, whole + 1, Done)]), 0);
        let one = payment.amount_of(1).expect("an amount");
        assert_eq!(payment.amount_of(whole), payment.amount);
        assert_eq!(payment.minor_units_of(one), Some(1));
        assert_eq!(payment.amount_of(0), None);
    }

    /// Goal: a fact of a channel has one id for ever, and no two facts share one.
    #[test]
    fn the_id_of_a_fact_follows_from_its_number() {
        let payment = PaymentId::of("card", "pi_1");
        let id = ReturnId::of(payment, ReturnKind::Taken, "dp_1");
        assert_eq!(id, ReturnId::of(payment, ReturnKind::Taken, "dp_1"));
        for other in [
            ReturnId::of(payment, ReturnKind::GivenBack, "dp_1"),
            ReturnId::of(payment, ReturnKind::Taken, "dp_2"),
            ReturnId::of(PaymentId::of("card", "pi_2"), ReturnKind::Taken, "dp_1"),
        ] {
            assert_ne!(other, id);
        }
    }

    #[test]
    fn the_table_of_returns_admits_these_events_and_no_other() {
        use ReturnEvent::{Apart, Asked, Gone, Refused};
        use ReturnState::{Done, Failed, Ready, Requested, Sent};
        let admitted = [
            (Requested, Apart, Ready),
            (Requested, Refused, Failed),
            (Ready, Asked, Sent),
            (Ready, Refused, Failed),
            (Sent, Gone, Done),
            (Sent, Refused, Failed),
        ];
        for state in ReturnState::ALL {
            for event in ReturnEvent::ALL {
                let want = admitted.iter().find(|row| (row.0, row.1) == (state, event));
                assert_eq!(state.next(event), want.map(|row| row.2), "{state:?} {event:?}");
            }
            assert_eq!(ReturnState::from_number(state.number()), Some(state));
        }
    }
}
