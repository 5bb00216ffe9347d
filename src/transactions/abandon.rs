//! The end of a branch by operators, for a service that can never be reached again.
//!
//! In a decided transaction the branch follows the decision. In DECIDING the operators state the
//! answer of the last participant: that decides. Money is never ended so: Funding and Spot record
//! their own ends.

use tokio::sync::oneshot;

use super::handle::{Abandon, TransactionAnswer, TransactionRefusal};
use crate::postgres::transactions::{BranchMove, TransactionNote};
use crate::transaction::{
    Branch, BranchState, Did, Party, TransactionRow, TransactionState, TransactionVerdict,
};
use domain::code::Code;

/// The code of a last participant that refused by the word of operators.
pub const STATED: &str = "STATED_BY_OPERATORS";

/// The judgement of an [`Abandon`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Judged {
    /// The branch moves so.
    Move(BranchMove),
    /// It stands as it would.
    Already,
}

/// An [`Abandon`] under way.
#[derive(Debug)]
pub(super) struct Abandoning {
    pub(super) abandon: Abandon,
    /// Until when its operator waits, monotonic ns.
    pub(super) until_ns: u64,
    pub(super) reply: oneshot::Sender<TransactionAnswer>,
}

fn refused<T>(code: Code, detail: String) -> Result<T, TransactionRefusal> {
    Err(TransactionRefusal::because(code, detail))
}

impl Abandon {
    /// Judges the wish by a row. The row's state is compared again when the move is recorded.
    ///
    /// # Errors
    /// INVALID_REQUEST: there is no such branch, it is one of Funding or Spot, or `did` is missing
    /// or needless. NOT_RESOLVABLE: the branch has ended otherwise, or owes nothing yet.
    pub fn judge(&self, row: &TransactionRow) -> Result<Judged, TransactionRefusal> {
        let Abandon { participant, round, did, .. } = self;
        let party = Party::from_name(participant);
        if matches!(party, Party::Store(_)) {
            let detail = format!("{participant} is never abandoned: it records its own end.");
            return refused(Code::InvalidRequest, detail);
        }
        let same = |branch: &&Branch| (&branch.party, branch.round) == (&party, *round);
        let Some(branch) = row.branches.iter().find(same) else {
            let detail = format!("The transaction has no branch {participant}:{round}.");
            return refused(Code::InvalidRequest, detail);
        };
        let follows = match row.state.verdict() {
            Some(TransactionVerdict::Commit) => Some(BranchState::Confirmed),
            Some(TransactionVerdict::Abort) => Some(BranchState::Cancelled),
            None => None,
        };
        let state = branch.state.name();
        if branch.state.is_terminal() {
            return match did.map(Did::state).or(follows) == Some(branch.state) {
                true => Ok(Judged::Already),
                false => refused(Code::NotResolvable, format!("The branch is {state}.")),
            };
        }
        let to = match (row.state, follows, did) {
            (_, Some(_), Some(_)) => {
                let detail = "The transaction is decided: its branch follows. Leave out `did`.";
                return refused(Code::InvalidRequest, detail.to_owned());
            }
            // A decision without its seal may be lost.
            (TransactionState::Committed, Some(to), None)
                if row.sealed && branch.state == BranchState::Tried =>
            {
                to
            }
            (TransactionState::Aborted, Some(to), None) => to,
            (TransactionState::Deciding, None, Some(did)) if branch.last => did.state(),
            (TransactionState::Deciding, None, None) if branch.last => {
                let detail =
                    "State the answer of the last participant by `did`: committed or refused.";
                return refused(Code::InvalidRequest, detail.to_owned());
            }
            _ => {
                let transaction = row.state.name();
                let detail =
                    format!("The branch is {state}, and the transaction is {transaction}.");
                return refused(Code::NotResolvable, detail);
            }
        };
        let is_refusal = to == BranchState::Refused;
        Ok(Judged::Move(BranchMove {
            party,
            round: *round,
            from: branch.state,
            to,
            code: is_refusal.then_some(Code::ParticipantRefused),
            leg: None,
            participant_code: is_refusal.then(|| STATED.to_owned()),
            log_sequence: None,
        }))
    }

    /// The entry of the history.
    pub(super) fn note(&self) -> TransactionNote {
        let Abandon { participant, round, did, by, reason } = self;
        let did = did.map_or_else(String::new, |did| format!(", which has {}", did.name()));
        let text = format!("{participant}:{round}{did}, abandoned by {by}: {reason}");
        TransactionNote { by: by.clone(), text }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transactions::example::{branch, leg, row};
    use domain::transfer::Participant;

    fn judged(row: &TransactionRow, participant: &str, did: Option<Did>) -> String {
        let participant = participant.to_owned();
        let (by, reason) = ("admin/1, approved by admin/2".to_owned(), "gone".to_owned());
        match (Abandon { participant, round: 1, did, by, reason }).judge(row) {
            Ok(Judged::Move(passage)) => passage.to.name().to_owned(),
            Ok(Judged::Already) => "already".to_owned(),
            Err(refusal) => refusal.code.name().to_owned(),
        }
    }

    /// Goal: which branch operators may end, in which state, and how; written down a second time.
    #[test]
    fn operators_end_branches_by_this_table() {
        use BranchState::{Cancelled as X, Confirmed as C, Refused as R, Tried as T, Trying as N};
        use TransactionState::{Aborted, Committed, Deciding, Done, Open};
        const INVALID: &str = "INVALID_REQUEST";
        const NOT: &str = "NOT_RESOLVABLE";
        let [paid, unpaid] = [Some(Did::Committed), Some(Did::Refused)];
        for (state, states, party, did, want) in [
            (Committed, [T, T, C], "FUNDING", None, INVALID),
            (Committed, [T, T, C], "SPOT", None, INVALID),
            (Committed, [T, T, C], "other", None, INVALID),
            (Open, [T, T, N], "coupons", None, NOT),
            (Open, [T, T, N], "bank", paid, NOT),
            (Deciding, [T, T, N], "coupons", None, NOT),
            (Deciding, [T, T, N], "bank", None, INVALID),
            (Deciding, [T, T, N], "bank", paid, "CONFIRMED"),
            (Deciding, [T, T, N], "bank", unpaid, "REFUSED"),
            (Committed, [T, T, C], "coupons", None, "CONFIRMED"),
            (Committed, [T, T, C], "coupons", paid, INVALID),
            (Committed, [T, T, C], "bank", paid, "already"),
            (Committed, [T, T, C], "bank", unpaid, NOT),
            (Committed, [C, C, C], "coupons", None, "already"),
            (Done, [C, C, C], "coupons", None, "already"),
            (Aborted, [X, T, R], "coupons", None, "CANCELLED"),
            (Aborted, [X, N, R], "coupons", None, "CANCELLED"),
            (Aborted, [X, R, X], "coupons", None, NOT),
            (Aborted, [X, T, R], "bank", unpaid, "already"),
            (Aborted, [X, T, R], "bank", paid, NOT),
        ] {
            let mut row = row(&[(Participant::Funding, 1, vec![leg(1, 2, 5)])]);
            for name in ["coupons", "bank"] {
                row.branches.push(branch(Party::Service(name.to_owned()), 1, Vec::new()));
            }
            row.branches[2].last = true;
            (row.state, row.sealed) = (state, true);
            for (branch, state) in row.branches.iter_mut().zip(states) {
                branch.state = state;
            }
            assert_eq!(judged(&row, party, did), want, "{state:?} {states:?} {party} {did:?}");
            row.sealed = false;
            if (state, want) == (Committed, "CONFIRMED") {
                assert_eq!(judged(&row, party, did), NOT, "the decision may be lost");
            }
        }
    }
}
