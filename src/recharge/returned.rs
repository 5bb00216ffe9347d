//! A return: money of a payment that goes back through its channel.

use jiff::Timestamp;
use rust_fsm::{StateMachineImpl, state_machine};

use super::{PaymentId, ReturnId};

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
    /// Tries at the channel.
    pub attempts: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

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
