//! Rows for the tests of this room.

use domain::account::UserId;
use domain::asset::AssetId;
use domain::transfer::{Cid, Participant, ReqId};
use jiff::Timestamp;

use crate::transaction::{
    Branch, BranchState, Decider, LegPlace, Party, TransactionLeg, TransactionName, TransactionRow,
    TransactionState,
};

pub(super) fn user(number: u64) -> UserId {
    UserId::new(number).expect("a user")
}

/// The available balance of a user.
pub(super) fn place(store: Participant, number: u64) -> LegPlace {
    LegPlace::Available { store, user: user(number) }
}

/// A leg from one place to another.
pub(super) fn between(from: LegPlace, to: LegPlace, amount: u64) -> TransactionLeg {
    TransactionLeg { from, to, asset: AssetId(3), amount }
}

/// A leg between two users of Funding.
pub(super) fn leg(from: u64, to: u64, amount: u64) -> TransactionLeg {
    let place = |number| place(Participant::Funding, number);
    between(place(from), place(to), amount)
}

/// A leg within Funding, in another store.
fn moved(leg: &TransactionLeg, store: Participant) -> TransactionLeg {
    let place = |place: LegPlace| match place.user() {
        Some(user) => LegPlace::Available { store, user },
        None => place,
    };
    TransactionLeg { from: place(leg.from), to: place(leg.to), ..*leg }
}

pub(super) fn branch(party: Party, round: u8, legs: Vec<TransactionLeg>) -> Branch {
    Branch {
        party,
        round,
        state: BranchState::Trying,
        last: false,
        legs,
        payload: serde_json::Value::Null,
        code: None,
        leg: None,
        participant_code: None,
        log_sequence: None,
    }
}

/// A new transaction with these branches, the caller deciding. A leg that is in no place of its
/// branch's store is moved there.
pub(super) fn row(branches: &[(Participant, u8, Vec<TransactionLeg>)]) -> TransactionRow {
    let rounds = branches.iter().map(|(_, round, _)| *round).max().unwrap_or(1);
    let branches = branches.iter().map(|(store, round, legs)| {
        let legs = legs.iter().map(|leg| if leg.is_in(*store) { *leg } else { moved(leg, *store) });
        branch(Party::Store(*store), *round, legs.collect())
    });
    TransactionRow {
        id: ReqId::new(77).expect("not zero"),
        order_number: 5,
        name: TransactionName {
            owner: "shop".to_owned(),
            tx_id: Cid::new("tx-1").expect("a name"),
        },
        state: TransactionState::Open,
        decider: Decider::Caller,
        decided_by: None,
        expires_at: Timestamp::from_second(1_000).expect("in range"),
        rounds,
        code: None,
        detail: None,
        sealed: false,
        stores_ended: false,
        branches: branches.collect(),
        history: Vec::new(),
        created_at: Timestamp::UNIX_EPOCH,
        updated_at: Timestamp::UNIX_EPOCH,
    }
}
