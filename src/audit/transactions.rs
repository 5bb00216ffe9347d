//! Postings by name in the log against the transactions in PostgreSQL.
//!
//! A RESERVE is asked for behind the row of its round, a SETTLE and a RELEASE behind the decision
//! in the row. Rows are never deleted, and a decision stands. So a record that was read before a
//! row needs that row:
//!
//! | record | the row |
//! |---|---|
//! | RESERVE of round n | has n rounds, unless it is aborted; its branch does not contradict |
//! | SETTLE, POST | COMMITTED or DONE, with the legs of the record in Spot's branches |
//! | RELEASE | ABORTED or CANCELLED |

use std::collections::BTreeMap;
use std::path::Path;

use domain::posting::Leg;
use domain::transfer::{Decision, Op, Participant, ReqId};
use engine::command::Command;
use engine::entry::Entry;
use engine::ledger::{Answer, Ledger, Step};
use engine::named::Named;
use wal::{Directory, Reader, Sequence};

use super::error::Error;
use super::mismatch::{Kind, Mismatch};
use crate::transaction::{
    Branch, BranchState, Party, REPAIRED, ROUNDS_MAX, TransactionRow, TransactionVerdict,
};

/// A posting by name in the log.
#[derive(Clone, Debug)]
pub struct NamedRecord {
    /// The posting.
    pub named: Box<Named>,
    /// Its record.
    pub sequence: Sequence,
    /// When it was recorded, ns since the Unix epoch.
    pub time_ns: u64,
}

impl NamedRecord {
    /// The transaction. No record has the name 0.
    pub fn transaction(&self) -> Option<ReqId> {
        ReqId::new(self.named.transaction)
    }

    /// Whether it was carried out.
    pub fn is_success(&self) -> bool {
        self.named.decision == Decision::Success
    }
}

/// Compares a record with the row of its transaction, which was read after it.
pub(super) fn judge(logged: &NamedRecord, row: Option<&TransactionRow>) -> Option<Mismatch> {
    let there = contradiction(logged, row)?;
    let (transaction, op, sequence) = (logged.transaction()?, logged.named.op, logged.sequence);
    Some(Mismatch::new(Kind::Transaction { transaction, op, sequence, there }))
}

/// The answer of PostgreSQL that does not fit.
fn contradiction(logged: &NamedRecord, row: Option<&TransactionRow>) -> Option<String> {
    let Some(row) = row else { return Some("has no such transaction".to_owned()) };
    let named = &*logged.named;
    let (number, round) = (row.order_number, named.round);
    if number != named.order_number {
        return Some(format!("has it with order number {number}"));
    }
    let tx_id = row.name.tx_id.as_str();
    if row.name.owner != REPAIRED && tx_id != named.tx_id.as_str() {
        return Some(format!("has it with tx_id {tx_id}"));
    }
    let verdict = row.state.verdict();
    let wrong_state = || Some(format!("has it as {}", row.state.name()));
    match (named.op, logged.is_success()) {
        (Op::Reserve, _) if verdict != Some(TransactionVerdict::Abort) && round > row.rounds => {
            Some(format!("has it with {} rounds, and this is round {round}", row.rounds))
        }
        (Op::Reserve, done) => {
            let state = spot_branch(row, round).map(|branch| branch.state);
            let fits = match state {
                Some(BranchState::Refused) => !done,
                Some(BranchState::Tried | BranchState::Confirmed) => done,
                _ => true,
            };
            (!fits).then(|| {
                let state = state.map_or("absent", BranchState::name);
                format!("has its branch on Spot in round {round} as {state}")
            })
        }
        (Op::Settle | Op::Post, true) if verdict != Some(TransactionVerdict::Commit) => {
            wrong_state()
        }
        (Op::Settle, true) if spot_legs(row) != named.legs.as_slice() => {
            Some("has it with other legs on Spot".to_owned())
        }
        (Op::Release, _) if verdict != Some(TransactionVerdict::Abort) => wrong_state(),
        _ => None,
    }
}

/// The legs that a committed transaction books on Spot, as Spot sees them.
fn spot_legs(row: &TransactionRow) -> Vec<Leg> {
    let spot = Participant::Spot;
    let counts = |branch: &&Branch| match branch.state {
        BranchState::Confirmed => true,
        // The legs of a refused round do not count, even before they are set back.
        BranchState::Tried => {
            let mut here = row.branches.iter().filter(|other| other.round == branch.round);
            !here.any(|other| other.state == BranchState::Refused)
        }
        BranchState::Trying | BranchState::Refused | BranchState::Cancelled => false,
    };
    let of_spot = row.branches.iter().filter(|branch| branch.party == Party::Store(spot));
    of_spot.filter(counts).flat_map(|branch| &branch.legs).map(|leg| leg.in_store(spot)).collect()
}

/// The branch of Spot in a round.
pub(super) fn spot_branch(row: &TransactionRow, round: u8) -> Option<&Branch> {
    let party = Party::Store(Participant::Spot);
    row.branches.iter().find(|branch| branch.party == party && branch.round == round)
}

/// Compares a row with a ledger that was read after it: the row's claims about Spot are recorded,
/// and nothing stays apart behind an end.
pub(super) fn judge_row(row: &TransactionRow, ledger: &Ledger) -> Vec<Mismatch> {
    let (transaction, mut found) = (row.id, Vec::new());
    let mut add = |op, round, claim: String| {
        found.push(Mismatch::new(Kind::TransactionLost { transaction, op, round, claim }));
    };
    let party = Party::Store(Participant::Spot);
    let branches = || row.branches.iter().filter(|branch| branch.party == party);
    let apart = ledger.transaction_holds(transaction.number()).next();
    let is_over = row.state.is_terminal()
        || row.state.verdict() == Some(TransactionVerdict::Abort)
            && branches().all(|branch| branch.state.is_terminal());
    let released = row.state.verdict() == Some(TransactionVerdict::Abort);
    if let Some(hold) = apart.as_ref().filter(|_| is_over && released) {
        let (state, user, asset) = (row.state.name(), hold.user, hold.asset);
        let claim = format!("has it as {state}, while user {user}, asset {asset} is apart on Spot");
        add(Op::Release, row.rounds, claim);
        return found;
    }
    // UBSCore may have forgotten an ended one.
    if row.order_number < ledger.watermark() && apart.is_none() {
        return found;
    }
    let done = |op, round| {
        let recorded = named_outcome(ledger, transaction, op, round);
        recorded == Some(Decision::Success)
    };
    for branch in branches() {
        let claim = || format!("has its branch on Spot as {}", branch.state.name());
        match branch.state {
            BranchState::Confirmed if !done(Op::Settle, 0) => {
                add(Op::Settle, branch.round, claim());
            }
            // A later RESERVE carries the legs of all rounds.
            BranchState::Tried
                if !released
                    && !(branch.round..=ROUNDS_MAX).any(|round| done(Op::Reserve, round)) =>
            {
                add(Op::Reserve, branch.round, claim());
            }
            _ => {}
        }
    }
    found
}

/// The recorded outcome of a posting by name. `round`: 0 for an end.
pub(super) fn named_outcome(
    ledger: &Ledger,
    transaction: ReqId,
    op: Op,
    round: u8,
) -> Option<Decision> {
    let query = Command::QueryNamed { transaction: transaction.number(), op, round };
    match ledger.step(&query) {
        Step::Known(Answer::QueryNamed(recorded)) => recorded.map(|answer| answer.decision),
        other => unreachable!("{other:?} answers no query"),
    }
}

/// Every posting by name that the log still has, by transaction and in the order of the log.
///
/// # Errors
/// [`Error`]: the log cannot be read.
pub(super) fn read_log(log: &Path) -> Result<BTreeMap<ReqId, Vec<NamedRecord>>, Error> {
    let mut reader = Reader::<Directory>::open_path(log, 0)?;
    let mut found = BTreeMap::<ReqId, Vec<NamedRecord>>::new();
    while let Some(record) = reader.next()? {
        let (sequence, time_ns) = (record.sequence, record.time_ns);
        let entry = Entry::decode(record.kind, record.payload)
            .map_err(|source| Error::Record { sequence, source })?;
        let Entry::Named(named) = entry else { continue };
        let logged = NamedRecord { named, sequence, time_ns };
        if let Some(transaction) = logged.transaction() {
            found.entry(transaction).or_default().push(logged);
        }
    }
    Ok(found)
}
