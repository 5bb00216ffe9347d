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
//!
//! And an answer is durable before a row tells of it. So a row that was read before UBSCore is
//! asked needs its outcome there.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use domain::posting::Leg;
use domain::transfer::op::HoldStep;
use domain::transfer::{Decision, Op, Participant, ReqId};
use engine::command::Command;
use engine::entry::Entry;
use engine::ledger::{Answer, Ledger, Step};
use engine::named::{Named, NamedAnswer};
use wal::{Directory, Reader, Sequence};

use super::error::Error;
use super::mismatch::{Kind, Mismatch};
use crate::postgres::audit_reader::SpotPart;
use crate::transaction::{
    Branch, BranchState, Party, REPAIRED, TransactionRow, TransactionVerdict,
};

const SUCCESS: Decision = Decision::Success;

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
    match (named.op.step(), logged.is_success()) {
        (Some(HoldStep::SetApart), _)
            if verdict != Some(TransactionVerdict::Abort) && round > row.rounds =>
        {
            Some(format!("has it with {} rounds, and this is round {round}", row.rounds))
        }
        (Some(HoldStep::SetApart), done) => {
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
        (Some(HoldStep::Book | HoldStep::AtOnce), true)
            if verdict != Some(TransactionVerdict::Commit) =>
        {
            wrong_state()
        }
        (Some(HoldStep::GiveBack), _) if verdict != Some(TransactionVerdict::Abort) => {
            wrong_state()
        }
        (Some(HoldStep::Book), true) if spot_legs(row) != named.legs.as_slice() => {
            Some("has it with other legs on Spot".to_owned())
        }
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

/// The outcomes on Spot that prove the claims of a row: operation and round, 0 for an end.
pub(super) fn questions(part: &SpotPart) -> Vec<(Op, u8)> {
    let is_aborted = part.state.verdict() == Some(TransactionVerdict::Abort);
    let mut asked = BTreeSet::new();
    for &(round, state) in &part.branches {
        match state {
            BranchState::Confirmed => drop(asked.insert((Op::Settle, 0))),
            BranchState::Tried if !is_aborted => {
                let later = part.branches.iter().filter(|(other, _)| *other >= round);
                asked.extend(later.map(|(other, _)| (Op::Reserve, *other)));
            }
            BranchState::Cancelled if is_aborted => {
                asked.extend([(Op::Settle, 0), (Op::Release, 0), (Op::Reserve, round)]);
            }
            _ => {}
        }
    }
    asked.into_iter().collect()
}

/// Compares a row with outcomes that were read after it. An answer is durable before a row tells of
/// it, so each claim has its outcome: TRIED a RESERVE, of its round or of a later one, which
/// carries the legs of all rounds; CONFIRMED a SETTLE; CANCELLED a RELEASE, or nothing. A record of
/// an end behind a row that is TRIED is found from the record, see [`judge`].
///
/// `known`: the outcomes of [`questions`]. `is_forgotten`: UBSCore may have forgotten them.
pub(super) fn judge_part(
    part: &SpotPart,
    known: impl Fn(Op, u8) -> Option<NamedAnswer>,
    is_forgotten: bool,
) -> Vec<Mismatch> {
    let SpotPart { transaction, state: over, .. } = *part;
    let is_aborted = over.verdict() == Some(TransactionVerdict::Abort);
    let done = |op, round| known(op, round).is_some_and(|answer| answer.decision == SUCCESS);
    let (settled, released) = (done(Op::Settle, 0), done(Op::Release, 0));
    let reserved = |round| done(Op::Reserve, round);
    let kind = |&(round, state): &(u8, BranchState)| {
        let claim = format!("has its branch on Spot as {}", state.name());
        let lost =
            |op| Some(Kind::TransactionLost { transaction, op, round, claim: claim.clone() });
        let mut later = part.branches.iter().filter(|(other, _)| *other >= round);
        match state {
            BranchState::Trying | BranchState::Tried if over.is_terminal() => {
                let why = format!(
                    "transaction {transaction}: PostgreSQL {claim} in round {round}, although it is {}",
                    over.name()
                );
                Some(Kind::StrangeRow(why))
            }
            _ if is_forgotten => None,
            BranchState::Confirmed if !settled => lost(Op::Settle),
            BranchState::Tried if !is_aborted && !later.any(|(other, _)| reserved(*other)) => {
                lost(Op::Reserve)
            }
            BranchState::Cancelled if is_aborted => match known(Op::Settle, 0) {
                Some(NamedAnswer { record: sequence, .. }) => {
                    let there = format!("{claim} in round {round}");
                    Some(Kind::Transaction { transaction, op: Op::Settle, sequence, there })
                }
                None if reserved(round) && !released => lost(Op::Release),
                None => None,
            },
            _ => None,
        }
    };
    part.branches.iter().filter_map(kind).map(Mismatch::new).collect()
}

/// Compares a row with a ledger that was read after it: the row's claims about Spot are recorded,
/// and nothing stays apart behind an end.
pub(super) fn judge_row(row: &TransactionRow, ledger: &Ledger) -> Vec<Mismatch> {
    let (transaction, part) = (row.id, SpotPart::of(row));
    let apart = ledger.transaction_holds(transaction.number()).next();
    let is_released = row.state.verdict() == Some(TransactionVerdict::Abort);
    let mut branches = part.branches.iter();
    let is_over = row.state.is_terminal() || branches.all(|(_, state)| state.is_terminal());
    if let Some(hold) = apart.as_ref().filter(|_| is_over && is_released) {
        let (state, user, asset) = (row.state.name(), hold.user, hold.asset);
        let claim = format!("has it as {state}, while user {user}, asset {asset} is apart on Spot");
        let (op, round) = (Op::Release, row.rounds);
        return vec![Mismatch::new(Kind::TransactionLost { transaction, op, round, claim })];
    }
    // UBSCore may have forgotten an ended one.
    let is_forgotten = row.order_number < ledger.watermark() && apart.is_none();
    judge_part(&part, |op, round| named_outcome(ledger, transaction, op, round), is_forgotten)
}

/// The recorded outcome of a posting by name. `round`: 0 for an end.
pub(super) fn named_outcome(
    ledger: &Ledger,
    transaction: ReqId,
    op: Op,
    round: u8,
) -> Option<NamedAnswer> {
    let query = Command::QueryNamed { transaction: transaction.number(), op, round };
    match ledger.step(&query) {
        Step::Known(Answer::QueryNamed(recorded)) => recorded,
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
