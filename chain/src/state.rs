//! The states of a transaction of ours, and the one machine that moves it.
//!
//! ```text
//!   CREATED --> ALLOCATED --> SUBMITTED --> TRACKING --> CONFIRMED
//!      |                          |            |
//!      +--------------------------+------------+------> FAILED
//! ```
//!
//! CREATED has no nonce. From ALLOCATED on the nonce is the row's for ever, and only the chain ends
//! it.

use rust_fsm::{StateMachineImpl, state_machine};

/// Where a transaction stands. PostgreSQL stores the number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(i16)]
pub enum TxState {
    /// Durable, without a nonce.
    Created = 0,
    /// It has its nonce. Nothing is signed.
    Allocated = 10,
    /// An attempt is stored, and may be on the network.
    Submitted = 20,
    /// An endpoint has acknowledged an attempt, or a receipt was seen.
    Tracking = 30,
    /// Paid, and final. Terminal.
    Confirmed = 40,
    /// Not paid, and final. Terminal.
    Failed = -10,
}

/// An event that moves a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TxEvent {
    /// It has got its nonce.
    Numbered,
    /// It is refused for good, cancelled or too late, before it had a nonce.
    Dropped,
    /// Its first attempt is stored.
    Stored,
    /// An endpoint has an attempt of it, or a receipt was seen.
    Acknowledged,
    /// A final receipt pays it, or two operators say so of an unproven one.
    Paid,
    /// A final receipt of one of its attempts pays nothing, or two operators say so of an unproven
    /// one.
    Unpaid,
    /// A final transaction that is not ours has its nonce.
    Taken,
}

impl TxEvent {
    /// Every event.
    pub const ALL: [TxEvent; 7] = [
        TxEvent::Numbered,
        TxEvent::Dropped,
        TxEvent::Stored,
        TxEvent::Acknowledged,
        TxEvent::Paid,
        TxEvent::Unpaid,
        TxEvent::Taken,
    ];
}

state_machine! {
    #[state_machine(state(crate::state::TxState), input(crate::state::TxEvent))]
    tx_machine(Created)

    Created => {
        Numbered => Allocated,
        Dropped => Failed,
    },
    Allocated(Stored) => Submitted,
    Submitted => {
        Acknowledged => Tracking,
        Taken => Failed,
    },
    Tracking => {
        Paid => Confirmed,
        Unpaid => Failed,
        Taken => Failed,
    }
}

impl TxState {
    /// Every state.
    pub const ALL: [TxState; 6] = [
        TxState::Created,
        TxState::Allocated,
        TxState::Submitted,
        TxState::Tracking,
        TxState::Confirmed,
        TxState::Failed,
    ];

    /// The number that PostgreSQL stores.
    pub fn number(self) -> i16 {
        self as i16
    }

    /// The state with this number.
    pub fn from_number(number: i16) -> Option<TxState> {
        TxState::ALL.into_iter().find(|state| state.number() == number)
    }

    /// The name on the wire.
    pub fn name(self) -> &'static str {
        match self {
            TxState::Created => "CREATED",
            TxState::Allocated => "ALLOCATED",
            TxState::Submitted => "SUBMITTED",
            TxState::Tracking => "TRACKING",
            TxState::Confirmed => "CONFIRMED",
            TxState::Failed => "FAILED",
        }
    }

    /// Where `event` leads; `None`: the table does not admit it.
    pub fn next(self, event: TxEvent) -> Option<TxState> {
        tx_machine::Impl::transition(&self, &event)
    }

    /// Whether some sequence of events leads from here to `state`.
    pub fn leads_to(self, state: TxState) -> bool {
        let mut nexts = TxEvent::ALL.into_iter().filter_map(|event| self.next(event));
        nexts.any(|next| next == state || next.leads_to(state))
    }

    /// Whether nothing can change any more.
    pub fn is_terminal(self) -> bool {
        TxEvent::ALL.into_iter().all(|event| self.next(event).is_none())
    }
}

/// The kind of an attempt. PostgreSQL stores the number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i16)]
pub enum AttemptKind {
    /// The payload.
    Pay = 1,
    /// The payload at a higher price.
    Bump = 2,
    /// 0 to the signer itself, in the payload's place.
    Cancel = 3,
    /// The same, of a row that can never be sent, so that later nonces can be mined.
    Fill = 4,
}

impl AttemptKind {
    /// Every kind.
    pub const ALL: [AttemptKind; 4] =
        [AttemptKind::Pay, AttemptKind::Bump, AttemptKind::Cancel, AttemptKind::Fill];

    /// The number that PostgreSQL stores.
    pub fn number(self) -> i16 {
        self as i16
    }

    /// The kind with this number.
    pub fn from_number(number: i16) -> Option<AttemptKind> {
        AttemptKind::ALL.into_iter().find(|kind| kind.number() == number)
    }

    /// The name on the wire.
    pub fn name(self) -> &'static str {
        match self {
            AttemptKind::Pay => "PAY",
            AttemptKind::Bump => "BUMP",
            AttemptKind::Cancel => "CANCEL",
            AttemptKind::Fill => "FILL",
        }
    }

    /// Whether it carries the payload.
    pub fn pays(self) -> bool {
        matches!(self, AttemptKind::Pay | AttemptKind::Bump)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_of_transactions_admits_these_events_and_no_other() {
        use TxEvent::{Acknowledged, Dropped, Numbered, Paid, Stored, Taken, Unpaid};
        use TxState::{Allocated, Confirmed, Created, Failed, Submitted, Tracking};
        let admitted = [
            (Created, Numbered, Allocated),
            (Created, Dropped, Failed),
            (Allocated, Stored, Submitted),
            (Submitted, Acknowledged, Tracking),
            (Submitted, Taken, Failed),
            (Tracking, Paid, Confirmed),
            (Tracking, Unpaid, Failed),
            (Tracking, Taken, Failed),
        ];
        for state in TxState::ALL {
            for event in TxEvent::ALL {
                let want = admitted.iter().find(|row| (row.0, row.1) == (state, event));
                assert_eq!(state.next(event), want.map(|row| row.2), "{state:?} {event:?}");
            }
            assert_eq!(TxState::from_number(state.number()), Some(state));
            assert_eq!(state.is_terminal(), matches!(state, Confirmed | Failed), "{state:?}");
        }
        assert!(!Allocated.leads_to(Created) && Created.leads_to(Confirmed));
        for kind in AttemptKind::ALL {
            assert_eq!(AttemptKind::from_number(kind.number()), Some(kind), "{}", kind.name());
        }
    }
}
