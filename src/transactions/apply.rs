//! A recorded move, applied to the row in memory.

use jiff::Timestamp;

use super::step::Passage;
use crate::postgres::transactions::{BranchMove, TransactionMove};
use crate::transaction::{
    BranchState, Party, TransactionPassage, TransactionRow, TransactionState, TransactionVerdict,
};

/// Applies the passage of one branch.
///
/// # Panics
/// The branch is in another state, or the passage does not exist: a bug.
pub(super) fn branch(row: &mut TransactionRow, passage: &BranchMove) {
    let named = (&passage.party, passage.round);
    let found = row.branches.iter_mut().find(|branch| (&branch.party, branch.round) == named);
    let branch = found.expect("a move is made from the row's branches");
    assert_eq!(branch.state, passage.from, "{named:?}");
    assert!(branch.state.nexts().contains(&passage.to), "{named:?}: {:?}", passage.to);
    branch.state = passage.to;
    branch.code = passage.code.or(branch.code);
    branch.leg = passage.leg.or(branch.leg);
    branch.participant_code = passage.participant_code.clone().or(branch.participant_code.take());
    branch.log_sequence = passage.log_sequence.or(branch.log_sequence);
}

/// Applies a whole move that the store has recorded at `at`.
///
/// # Panics
/// As [`branch`].
pub(super) fn whole(row: &mut TransactionRow, moved: &TransactionMove, at: Timestamp) {
    assert_eq!(row.state, moved.from, "{}", row.id);
    for passage in &moved.branches {
        branch(row, passage);
    }
    row.updated_at = at;
    row.sealed |= moved.seal;
    row.stores_ended |= moved.stores_ended;
    if let Some(note) = &moved.note {
        row.history.push(TransactionPassage {
            state: moved.from.name().to_owned(),
            at,
            by: note.by.clone(),
            reason: Some(note.text.clone()),
        });
    }
    if moved.to == moved.from {
        return;
    }
    assert!(row.state.nexts().contains(&moved.to), "{}: {:?}", row.id, moved.to);
    row.state = moved.to;
    if matches!(moved.to, TransactionState::Committed | TransactionState::Aborted) {
        row.decided_by = Some(moved.by.clone());
        row.code = moved.code;
        row.detail.clone_from(&moved.detail);
    }
    row.history.push(TransactionPassage {
        state: moved.to.name().to_owned(),
        at,
        by: moved.by.clone(),
        reason: moved.detail.clone(),
    });
}

/// The move of a row by branches alone.
pub(super) fn unmoved(row: &TransactionRow, branches: Vec<BranchMove>) -> TransactionMove {
    TransactionMove {
        id: row.id,
        rounds: row.rounds,
        from: row.state,
        to: row.state,
        by: String::new(),
        code: None,
        detail: None,
        seal: false,
        stores_ended: false,
        note: None,
        branches,
    }
}

/// Adds a passage to a move. A decision of the service is durable with its own commit.
pub(super) fn with(moved: TransactionMove, passage: Passage) -> TransactionMove {
    let Passage { to, by, code, detail } = passage;
    let seal = moved.seal || to.verdict() == Some(TransactionVerdict::Commit);
    TransactionMove { to, by, code, detail, seal, ..moved }
}

/// The move of a branch that was never asked.
pub(super) fn closed(party: Party, round: u8) -> BranchMove {
    BranchMove {
        party,
        round,
        from: BranchState::Trying,
        to: BranchState::Cancelled,
        code: None,
        leg: None,
        participant_code: None,
        log_sequence: None,
    }
}
