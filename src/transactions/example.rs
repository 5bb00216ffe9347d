//! Rows for the tests of this room.

use domain::account::UserId;
use domain::asset::AssetId;
use domain::transfer::{Cid, Participant, ReqId};
use jiff::Timestamp;

use crate::transaction::{
    Branch, BranchState, Decider, Party, TransactionLeg, TransactionName, TransactionRow,
    TransactionState,
};

pub(super) fn user(number: u64) -> UserId {
    UserId::new(number).expect("a user")
}

pub(super) fn leg(from: u64, to: u64, amount: u64) -> TransactionLeg {
    TransactionLeg { from: user(from), to: user(to), asset: AssetId(3), amount }
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

/// A new transaction with these branches, the caller deciding.
pub(super) fn row(branches: &[(Participant, u8, Vec<TransactionLeg>)]) -> TransactionRow {
    let rounds = branches.iter().map(|(_, round, _)| *round).max().unwrap_or(1);
    let branches = branches
        .iter()
        .map(|(store, round, legs)| branch(Party::Store(*store), *round, legs.clone()));
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
