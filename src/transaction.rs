//! A transaction across both stores and other services: its states, its branches, and the row that
//! decides it. The tables of both state machines stand here and nowhere else; PostgreSQL's guards
//! are compared with them.
//!
//! ```text
//!   OPEN --> DECIDING --> COMMITTED --> DONE          TRYING --> TRIED --> CONFIRMED
//!     |          |                                        |         |
//!     +----------+------> ABORTED ----> CANCELLED          +---------+--> CANCELLED
//!                                                         +--> REFUSED
//! ```

mod leg;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use domain::code::Code;
use domain::transfer::{Cid, Participant, ReqId};

pub use self::leg::{LegError, LegPlace, OUTSIDE, TransactionLeg, read_legs, write_legs};

/// The most rounds of one transaction.
pub const ROUNDS_MAX: u8 = 8;
/// The owner in a row that a repair has written from the log, which does not name owners. No token
/// has this name.
pub const REPAIRED: &str = "?";
/// The owner of transactions that operators make: freezes. No token has this name.
pub const OPERATORS: &str = "@operators";
/// The most bytes of the name of a participant.
pub const PARTICIPANT_BYTES_MAX: usize = 32;
/// The most followers of a round.
pub const FOLLOWERS_MAX: usize = 8;
/// The most bytes of a payload, as JSON.
pub const PAYLOAD_BYTES_MAX: usize = 8 * 1024;

/// Where a transaction stands. PostgreSQL stores the number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(i16)]
pub enum TransactionState {
    /// Rounds are taken, and branches are tried.
    Open = 0,
    /// The last participant has been asked.
    Deciding = 20,
    /// Decided: its branches are being confirmed.
    Committed = 30,
    /// Everything is booked. Terminal.
    Done = 40,
    /// Decided: its branches are being cancelled.
    Aborted = -10,
    /// Nothing was moved. Terminal.
    Cancelled = -20,
}

impl TransactionState {
    /// Every state.
    pub const ALL: [TransactionState; 6] = [
        TransactionState::Open,
        TransactionState::Deciding,
        TransactionState::Committed,
        TransactionState::Done,
        TransactionState::Aborted,
        TransactionState::Cancelled,
    ];

    /// The number that PostgreSQL stores.
    pub fn number(self) -> i16 {
        self as i16
    }

    /// The state with this number.
    pub fn from_number(number: i16) -> Option<TransactionState> {
        TransactionState::ALL.into_iter().find(|state| state.number() == number)
    }

    /// The state with this name.
    pub fn from_name(name: &str) -> Option<TransactionState> {
        TransactionState::ALL.into_iter().find(|state| state.name() == name)
    }

    /// The name on the wire.
    pub fn name(self) -> &'static str {
        match self {
            TransactionState::Open => "OPEN",
            TransactionState::Deciding => "DECIDING",
            TransactionState::Committed => "COMMITTED",
            TransactionState::Done => "DONE",
            TransactionState::Aborted => "ABORTED",
            TransactionState::Cancelled => "CANCELLED",
        }
    }

    /// The states that may follow.
    pub fn nexts(self) -> &'static [TransactionState] {
        use TransactionState::{Aborted, Cancelled, Committed, Deciding, Done, Open};
        match self {
            Open => &[Deciding, Committed, Aborted],
            Deciding => &[Committed, Aborted],
            Committed => &[Done],
            Aborted => &[Cancelled],
            Done | Cancelled => &[],
        }
    }

    /// Whether nothing can change any more.
    pub fn is_terminal(self) -> bool {
        self.nexts().is_empty()
    }

    /// The decision that has been made; `None` while there is none.
    pub fn verdict(self) -> Option<TransactionVerdict> {
        match self {
            TransactionState::Open | TransactionState::Deciding => None,
            TransactionState::Committed | TransactionState::Done => {
                Some(TransactionVerdict::Commit)
            }
            TransactionState::Aborted | TransactionState::Cancelled => {
                Some(TransactionVerdict::Abort)
            }
        }
    }
}

/// A decision about a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransactionVerdict {
    /// Every branch is confirmed.
    Commit,
    /// Every branch is cancelled.
    Abort,
}

/// Where a branch stands. PostgreSQL stores the number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(i16)]
pub enum BranchState {
    /// It may have been asked to try.
    Trying = 10,
    /// It has set apart all that it needs.
    Tried = 20,
    /// It has booked. Terminal.
    Confirmed = 40,
    /// It has refused and holds nothing. Terminal.
    Refused = -10,
    /// It has given back all that it had set apart. Terminal.
    Cancelled = -20,
}

impl BranchState {
    /// Every state.
    pub const ALL: [BranchState; 5] = [
        BranchState::Trying,
        BranchState::Tried,
        BranchState::Confirmed,
        BranchState::Refused,
        BranchState::Cancelled,
    ];

    /// The number that PostgreSQL stores.
    pub fn number(self) -> i16 {
        self as i16
    }

    /// The state with this number.
    pub fn from_number(number: i16) -> Option<BranchState> {
        BranchState::ALL.into_iter().find(|state| state.number() == number)
    }

    /// The name on the wire.
    pub fn name(self) -> &'static str {
        match self {
            BranchState::Trying => "TRYING",
            BranchState::Tried => "TRIED",
            BranchState::Confirmed => "CONFIRMED",
            BranchState::Refused => "REFUSED",
            BranchState::Cancelled => "CANCELLED",
        }
    }

    /// The states that may follow. The last participant goes from TRYING to CONFIRMED at once.
    pub fn nexts(self) -> &'static [BranchState] {
        use BranchState::{Cancelled, Confirmed, Refused, Tried, Trying};
        match self {
            Trying => &[Tried, Confirmed, Refused, Cancelled],
            Tried => &[Confirmed, Cancelled],
            Confirmed | Refused | Cancelled => &[],
        }
    }

    /// Whether nothing can change any more.
    pub fn is_terminal(self) -> bool {
        self.nexts().is_empty()
    }
}

/// The deed of a last participant, by the word of operators.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Did {
    /// It has carried out its part.
    Committed,
    /// It has not, and never will.
    Refused,
}

impl Did {
    /// Both.
    pub const ALL: [Did; 2] = [Did::Committed, Did::Refused];

    /// The name on the wire.
    pub fn name(self) -> &'static str {
        match self {
            Did::Committed => "committed",
            Did::Refused => "refused",
        }
    }

    /// The deed with this name.
    pub fn from_name(name: &str) -> Option<Did> {
        Did::ALL.into_iter().find(|did| did.name() == name)
    }

    /// The state of its branch.
    pub fn state(self) -> BranchState {
        match self {
            Did::Committed => BranchState::Confirmed,
            Did::Refused => BranchState::Refused,
        }
    }
}

/// The side that decides a transaction. PostgreSQL stores the number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(i16)]
pub enum Decider {
    /// The service, once everything is tried.
    Coordinator = 1,
    /// The caller, in a local transaction of its own or by HTTP.
    Caller = 2,
    /// The participant without a try.
    Last = 3,
}

impl Decider {
    /// Every decider.
    pub const ALL: [Decider; 3] = [Decider::Coordinator, Decider::Caller, Decider::Last];

    /// The number that PostgreSQL stores.
    pub fn number(self) -> i16 {
        self as i16
    }

    /// The decider with this number.
    pub fn from_number(number: i16) -> Option<Decider> {
        Decider::ALL.into_iter().find(|decider| decider.number() == number)
    }

    /// The name on the wire.
    pub fn name(self) -> &'static str {
        match self {
            Decider::Coordinator => "coordinator",
            Decider::Caller => "caller",
            Decider::Last => "last",
        }
    }
}

/// The party of a branch.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Party {
    /// Funding or Spot.
    Store(Participant),
    /// A service of the configuration, by name.
    Service(String),
}

impl Party {
    /// The text in PostgreSQL and on the wire: `FUNDING`, `SPOT` or the configured name.
    pub fn name(&self) -> &str {
        match self {
            Party::Store(store) => store.account(),
            Party::Service(name) => name,
        }
    }

    /// The party with this text.
    pub fn from_name(name: &str) -> Party {
        let stores = [Participant::Funding, Participant::Spot];
        match stores.into_iter().find(|store| store.account() == name) {
            Some(store) => Party::Store(store),
            None => Party::Service(name.to_owned()),
        }
    }
}

/// The name that a service gives to its transaction.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TransactionName {
    /// The owner: `sub` of the service's token.
    pub owner: String,
    /// The service's own id, unique for this owner.
    pub tx_id: Cid,
}

/// A branch: the part of one party in one round.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Branch {
    /// The party.
    pub party: Party,
    /// The round, from 1.
    pub round: u8,
    /// Where it stands.
    pub state: BranchState,
    /// It has no try: its one answer decides.
    pub last: bool,
    /// The legs of this round; empty for a service.
    pub legs: Vec<TransactionLeg>,
    /// The words for a service, as they were given; `Null` for a store.
    pub payload: serde_json::Value,
    /// The code of a refusal by a store, or PARTICIPANT_REFUSED.
    pub code: Option<Code>,
    /// The first leg that failed, if a store refused.
    pub leg: Option<u8>,
    /// The code that a service gave with its refusal.
    pub participant_code: Option<String>,
    /// The record of UBSCore's newest answer.
    pub log_sequence: Option<u64>,
}

/// One passage in the history of a transaction, or the note of an operator in its state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TransactionPassage {
    /// The name of the state.
    pub state: String,
    /// By the service's clock; of a decision in SQL by PostgreSQL's.
    pub at: Timestamp,
    /// `coordinator`, `caller`, `age`, an operator's name, or a participant's.
    pub by: String,
    /// For people, if there is more to say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// A transaction as PostgreSQL holds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TransactionRow {
    /// Its own id.
    pub id: ReqId,
    /// Its position in the order of accepts, shared with transfers.
    pub order_number: u64,
    /// The name that its owner gave.
    pub name: TransactionName,
    /// Where it stands.
    pub state: TransactionState,
    /// The side that decides.
    pub decider: Decider,
    /// The decision's author, see [`TransactionPassage::by`].
    pub decided_by: Option<String>,
    /// Beyond it an undecided transaction is aborted.
    pub expires_at: Timestamp,
    /// Rounds that were accepted.
    pub rounds: u8,
    /// Why it is aborted.
    pub code: Option<Code>,
    /// For people: the leg or the participant that the code is about.
    pub detail: Option<String>,
    /// The decision is proven durable by a later commit of the service.
    pub sealed: bool,
    /// Funding and Spot have carried out the decision, and this is durable. Neither is asked again:
    /// the watermark may have passed, and then they know the transaction no more.
    pub stores_ended: bool,
    /// The branches by round, each round in the order FUNDING, SPOT, services by name.
    pub branches: Vec<Branch>,
    /// What it passed, oldest first.
    pub history: Vec<TransactionPassage>,
    /// When it was accepted.
    pub created_at: Timestamp,
    /// When it last changed.
    pub updated_at: Timestamp,
}

impl TransactionRow {
    /// The id of a branch, its name for participants.
    pub fn branch_id(&self, branch: &Branch) -> String {
        format!("{}:{}:{}", self.id, branch.party.name(), branch.round)
    }
}

/// A round to be accepted: with the first one the transaction itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TransactionRound {
    /// The name of its transaction.
    pub name: TransactionName,
    /// From 1.
    pub round: u8,
    /// Of the first round: the side that decides.
    pub decider: Decider,
    /// Of the first round: how long it may stay undecided, milliseconds.
    pub ttl_ms: u64,
    /// In the order of the request.
    pub legs: Vec<TransactionLeg>,
    /// Services that try, with their payloads, in the order of their names.
    pub services: Vec<(String, serde_json::Value)>,
    /// The service without a try.
    pub last: Option<(String, serde_json::Value)>,
    /// The services that are told once the transaction is DONE, in the order of their names.
    pub followers: Vec<String>,
    /// A repeat of the round must have the same one: 16 bytes over the whole request.
    pub fingerprint: [u8; 16],
}

impl TransactionRound {
    /// The legs of one store. A leg between the stores is in both.
    pub fn legs_in(&self, store: Participant) -> Vec<TransactionLeg> {
        self.legs.iter().filter(|leg| leg.is_in(store)).copied().collect()
    }

    /// The branches of this round before anything is asked.
    pub fn branches(&self) -> Vec<Branch> {
        let branch = |party, legs: Vec<TransactionLeg>, payload: &serde_json::Value, last| Branch {
            party,
            round: self.round,
            state: BranchState::Trying,
            last,
            legs,
            payload: payload.clone(),
            code: None,
            leg: None,
            participant_code: None,
            log_sequence: None,
        };
        let null = serde_json::Value::Null;
        let stores = [Participant::Funding, Participant::Spot];
        let stores = stores.into_iter().map(|store| (store, self.legs_in(store)));
        let stores = stores.filter(|(_, legs)| !legs.is_empty());
        let mut branches: Vec<Branch> =
            stores.map(|(store, legs)| branch(Party::Store(store), legs, &null, false)).collect();
        for (name, payload) in &self.services {
            branches.push(branch(Party::Service(name.clone()), Vec::new(), payload, false));
        }
        if let Some((name, payload)) = &self.last {
            branches.push(branch(Party::Service(name.clone()), Vec::new(), payload, true));
        }
        branches
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the table of the specification, written down a second time.
    #[test]
    fn states_numbers_and_ways_are_those_of_the_specification() {
        use TransactionState::{Aborted, Cancelled, Committed, Deciding, Done, Open};
        let table = [
            (Open, 0, "OPEN", vec![Deciding, Committed, Aborted]),
            (Deciding, 20, "DECIDING", vec![Committed, Aborted]),
            (Committed, 30, "COMMITTED", vec![Done]),
            (Done, 40, "DONE", vec![]),
            (Aborted, -10, "ABORTED", vec![Cancelled]),
            (Cancelled, -20, "CANCELLED", vec![]),
        ];
        assert_eq!(table.len(), TransactionState::ALL.len());
        for (state, number, name, nexts) in table {
            assert_eq!((state.number(), state.name(), state.nexts()), (number, name, &nexts[..]));
            assert_eq!(TransactionState::from_number(number), Some(state));
            assert_eq!(TransactionState::from_name(name), Some(state));
            // A decision never changes.
            let verdicts = nexts.iter().filter_map(|next| next.verdict());
            assert!(state.verdict().is_none_or(|was| verdicts.into_iter().all(|is| is == was)));
        }
    }

    /// Goal: the same of branches.
    #[test]
    fn branch_states_numbers_and_ways_are_those_of_the_specification() {
        use BranchState::{Cancelled, Confirmed, Refused, Tried, Trying};
        let table = [
            (Trying, 10, "TRYING", vec![Tried, Confirmed, Refused, Cancelled]),
            (Tried, 20, "TRIED", vec![Confirmed, Cancelled]),
            (Confirmed, 40, "CONFIRMED", vec![]),
            (Refused, -10, "REFUSED", vec![]),
            (Cancelled, -20, "CANCELLED", vec![]),
        ];
        assert_eq!(table.len(), BranchState::ALL.len());
        for (state, number, name, nexts) in table {
            assert_eq!((state.number(), state.name(), state.nexts()), (number, name, &nexts[..]));
            assert_eq!(BranchState::from_number(number), Some(state));
            assert_eq!(state.is_terminal(), nexts.is_empty());
        }
    }

    #[test]
    fn a_party_is_its_name() {
        for name in ["FUNDING", "SPOT", "coupons"] {
            assert_eq!(Party::from_name(name).name(), name);
        }
        assert_eq!(Party::from_name("SPOT"), Party::Store(Participant::Spot));
    }
}
