//! Transactions that PostgreSQL has lost, or has undecided, and the log proves.
//!
//! | UBSCore recorded | PostgreSQL has | the repair |
//! |---|---|---|
//! | SETTLE | nothing | the row is written as DONE, with its legs on Spot |
//! | RESERVE, no end | nothing | the row is written as ABORTED; the service releases it |
//! | RELEASE, or refusals alone | nothing | the row is written as CANCELLED |
//! | SETTLE | OPEN, DECIDING | COMMITTED; the service confirms the rest |
//! | RELEASE, or a round that is lost | OPEN, DECIDING | ABORTED; the service releases |
//!
//! The log names neither owner nor Funding's part. The owner of a row that is written is
//! [`crate::transaction::REPAIRED`], and no service may take its tx_id again. Legs of Funding that
//! are lost are named for an operator: nothing proves that a service's money moved there. Of a leg
//! between the stores the log has Spot's side. Its other side counts as outside of both, until an
//! operator books it on Funding as an external operation.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use domain::account::UserId;
use domain::asset::AssetId;
use domain::posting::{Leg, Place, Posting};
use domain::transfer::op::HoldStep;
use domain::transfer::{Decision, Op, Participant, ReqId};
use engine::fact::Fact;
use engine::ledger::Ledger;
use engine::named::{NamedPosting, TxId};
use wal::Sequence;

use super::error::Error;
use super::mismatch::{Kind, Mismatch};
use super::redecision::{LostPosting, PlanStep, repost};
use super::transactions::{self, NamedRecord};
use super::unproven::Unproven;
use crate::postgres::audit_reader::AuditReader;
use crate::postgres::repair_writer::transaction::{Bring, TransactionRepair};
use crate::transaction::{
    Branch, BranchState, LegPlace, Party, TransactionLeg, TransactionRow, TransactionState,
    TransactionVerdict,
};

/// The repairs of transactions that the log proves.
#[derive(Debug, Default)]
pub(super) struct TransactionsPlan {
    /// In the order of their order numbers.
    pub(super) repairs: Vec<TransactionRepair>,
    /// Not proven, each with the reason.
    pub(super) left: Vec<(Mismatch, Unproven)>,
    names: BTreeSet<ReqId>,
}

impl TransactionsPlan {
    /// Whether this plan has an answer to the finding.
    pub(super) fn explains(&self, mismatch: &Mismatch) -> bool {
        match &mismatch.kind {
            Kind::Transaction { transaction, .. } => self.names.contains(transaction),
            _ => false,
        }
    }
}

/// Looks up every posting by name in PostgreSQL.
///
/// # Errors
/// [`Error`]: a store cannot be read.
pub(super) async fn plan(log: &Path, reader: &mut AuditReader) -> Result<TransactionsPlan, Error> {
    let logged = tokio::task::block_in_place(|| transactions::read_log(log))?;
    let rows = reader.transactions(logged.keys().copied()).await?;
    let mut plan = TransactionsPlan::default();
    for (transaction, records) in &logged {
        let row = rows.get(transaction);
        let mut found = records.iter().filter_map(|record| transactions::judge(record, row));
        let Some(mismatch) = found.next() else { continue };
        plan.names.insert(*transaction);
        match repair_of(*transaction, records, row) {
            Ok(repair) => plan.repairs.push(repair),
            Err(why) => plan.left.push((mismatch, why)),
        }
    }
    plan.repairs.sort_by_key(|repair| repair.order_number);
    Ok(plan)
}

/// The records of one transaction, summed up.
#[derive(Default)]
struct Proof<'a> {
    /// The highest round.
    rounds: u8,
    /// The last RESERVE that set something apart.
    reserve: Option<&'a NamedRecord>,
    settle: Option<&'a NamedRecord>,
    release: Option<&'a NamedRecord>,
    refused: Vec<u8>,
}

impl<'a> Proof<'a> {
    fn of(records: &'a [NamedRecord]) -> Result<Proof<'a>, Unproven> {
        let mut proof = Proof::default();
        for record in records {
            let round = record.named.round;
            proof.rounds = proof.rounds.max(round);
            match (record.named.op.step(), record.is_success()) {
                (Some(HoldStep::SetApart), true) => proof.reserve = Some(record),
                (Some(HoldStep::SetApart), false) => proof.refused.push(round),
                (Some(HoldStep::Book), _) => proof.settle = Some(record),
                (Some(HoldStep::GiveBack), _) => proof.release = Some(record),
                // No service posts without a RESERVE.
                _ => return Err(Unproven::OtherTransaction),
            }
        }
        Ok(proof)
    }

    /// The record with the legs that count, and the last round that has set something apart.
    fn last(&self) -> Option<(&'a NamedRecord, u8)> {
        let record = self.settle.or(self.reserve)?;
        Some((record, self.reserve.unwrap_or(record).named.round))
    }
}

fn repair_of(
    transaction: ReqId,
    records: &[NamedRecord],
    row: Option<&TransactionRow>,
) -> Result<TransactionRepair, Unproven> {
    let proof = Proof::of(records)?;
    let newest = records.last().ok_or(Unproven::NoRecord)?;
    let tx_id = newest.named.tx_id.as_str().to_owned();
    let (last, mut looks) = (proof.last(), Vec::new());
    let legs = match last {
        Some((record, _)) => legs_of(&record.named.legs)?,
        None => Vec::new(),
    };
    let (bring, legs) = match row {
        None => bring_back(&proof, legs, &mut looks),
        Some(row) => move_on(&proof, legs, row, &mut looks)?,
    };
    Ok(TransactionRepair {
        transaction,
        order_number: newest.named.order_number,
        tx_id,
        bring,
        rounds: proof.rounds,
        round: last.map_or(0, |(_, round)| round),
        legs,
        refused: proof.refused.iter().map(|round| i16::from(*round)).collect(),
        log_sequence: newest.sequence,
        time_ns: records.first().map_or(0, |first| first.time_ns),
        looks,
    })
}

/// For a transaction without a row.
fn bring_back(
    proof: &Proof<'_>,
    legs: Vec<TransactionLeg>,
    looks: &mut Vec<String>,
) -> (Bring, Vec<TransactionLeg>) {
    match (proof.settle, proof.release, proof.reserve) {
        (Some(_), ..) => {
            let what = "Spot has booked it; ask its service for the legs of Funding, which the log \
                        does not have, and book them by hand";
            looks.push(what.to_owned());
            looks.extend(legs.iter().filter_map(crossed));
            (Bring::Done, legs)
        }
        (None, Some(_), _) | (None, None, None) => (Bring::Cancelled, Vec::new()),
        (None, None, Some(_)) => (Bring::Aborted, legs),
    }
}

/// The sentence about a leg of Spot with its other side outside; `None` for a leg within Spot.
fn crossed(leg: &TransactionLeg) -> Option<String> {
    let TransactionLeg { from, to, asset, amount } = leg;
    let (user, way, booked) = match (from.user(), to.user()) {
        (None, Some(user)) => (user, "to", "EXT_WITHDRAW"),
        (Some(user), None) => (user, "from", "EXT_DEPOSIT"),
        _ => return None,
    };
    Some(format!(
        "Spot has booked {amount} smallest units of asset {} {way} user {user}, and Funding has lost \
         the other side: it counts as external until you book an {booked} of it on Funding",
        asset.0
    ))
}

/// For a transaction with a row.
fn move_on(
    proof: &Proof<'_>,
    legs: Vec<TransactionLeg>,
    row: &TransactionRow,
    looks: &mut Vec<String>,
) -> Result<(Bring, Vec<TransactionLeg>), Unproven> {
    let known = accepted(row, &proof.refused);
    // Legs of rounds that PostgreSQL lacks. The log knows them as Spot sees them.
    let as_spot = |legs: &[TransactionLeg]| -> Vec<Leg> {
        legs.iter().map(|leg| leg.in_store(Participant::Spot)).collect()
    };
    let lost = match as_spot(&legs).starts_with(&as_spot(&known)) {
        true => legs[known.len()..].to_vec(),
        false if legs.is_empty() => Vec::new(),
        false => return Err(Unproven::OtherTransaction),
    };
    if row.state.verdict().is_some() {
        return Err(Unproven::OtherVerdict);
    }
    if proof.settle.is_none() {
        return match proof.release.is_some() || row.state == TransactionState::Open {
            true => Ok((Bring::Abort, lost)),
            false => Err(Unproven::OtherTransaction),
        };
    }
    let funding = Party::Store(Participant::Funding);
    let untried = row
        .branches
        .iter()
        .filter(|branch| branch.party == funding && branch.state == BranchState::Trying);
    for leg in untried.flat_map(|branch| &branch.legs) {
        let TransactionLeg { from, to, asset, amount } = leg;
        looks.push(format!(
            "Spot has booked it, and Funding has lost its hold: book {amount} smallest units of \
             asset {} from {} to {} by hand",
            asset.0,
            from.value(Participant::Funding),
            to.value(Participant::Funding)
        ));
    }
    looks.extend(lost.iter().filter_map(crossed));
    if proof.rounds > row.rounds {
        let first = row.rounds + 1;
        looks.push(format!(
            "Spot has booked it, and PostgreSQL has lost rounds {first} to {}: ask its service for \
             their legs of Funding",
            proof.rounds
        ));
    }
    Ok((Bring::Commit, lost))
}

/// The legs of Spot in the rounds of a row that count.
fn accepted(row: &TransactionRow, refused: &[u8]) -> Vec<TransactionLeg> {
    let is_refused = |round: u8| {
        let mut here = row.branches.iter().filter(|branch| branch.round == round);
        refused.contains(&round) || here.any(|branch| branch.state == BranchState::Refused)
    };
    let spot = Party::Store(Participant::Spot);
    let of_spot = row.branches.iter().filter(|branch| branch.party == spot);
    accepted_by(of_spot.filter(|branch| !is_refused(branch.round)))
}

/// The legs of a record. The log does not have the place of Funding that is opposite: it is
/// outside.
fn legs_of(legs: &[Leg]) -> Result<Vec<TransactionLeg>, Unproven> {
    let store = Participant::Spot;
    let place = |place: Place| match place {
        Place::Outside => Some(LegPlace::Outside),
        Place::Available(user) => Some(LegPlace::Available { store, user: UserId::new(user)? }),
        Place::Frozen { user, purpose } => {
            Some(LegPlace::Frozen { store, user: UserId::new(user)?, purpose })
        }
        Place::Hold(_) => None,
    };
    let leg = |leg: &Leg| {
        let (from, to) = (place(leg.from)?, place(leg.to)?);
        Some(TransactionLeg { from, to, asset: AssetId(leg.asset), amount: leg.amount })
    };
    let all: Option<Vec<TransactionLeg>> = legs.iter().map(leg).collect();
    all.ok_or(Unproven::UnreadableRecord)
}

/// The postings by name that a row proves and the ledger lacks. One RESERVE, of the last round that
/// counts, carries the legs of all of them.
///
/// `from`: the first record that was ever cut off.
///
/// # Errors
/// [`Unproven`]: it cannot be decided again.
pub(super) fn lost(
    row: &TransactionRow,
    ledger: &Ledger,
    from: Sequence,
) -> Result<LostPosting, Unproven> {
    let spot = Party::Store(Participant::Spot);
    let branches = || row.branches.iter().filter(|branch| branch.party == spot);
    let sequence = branches().filter_map(|branch| branch.log_sequence).max();
    let sequence = sequence.filter(|sequence| *sequence >= from).ok_or(Unproven::NoRecord)?;
    let counts = |state| matches!(state, BranchState::Tried | BranchState::Confirmed);
    let counting = || branches().filter(|branch| counts(branch.state));
    let legs: Vec<TransactionLeg> = accepted_by(counting());
    let tx_id = TxId::new(row.name.tx_id.as_str()).ok_or(Unproven::UnreadableRow)?;
    let posting = |op, round, legs: &[TransactionLeg]| -> Result<PlanStep, Unproven> {
        let mut all = Posting::new();
        for leg in legs.iter().map(|leg| leg.in_store(Participant::Spot)) {
            all.try_push(leg).map_err(|_| Unproven::UnreadableRow)?;
        }
        let (transaction, order_number, user) = (row.id, row.order_number, 0);
        let posting = NamedPosting { transaction, order_number, round, tx_id, user, legs: all };
        Ok(PlanStep::Post { op, posting: Box::new(posting) })
    };
    let places = branches().flat_map(|branch| &branch.legs);
    let account = |place: LegPlace, asset| Some((place.user_in(Participant::Spot)?, asset));
    let both = |leg: &TransactionLeg| [account(leg.from, leg.asset), account(leg.to, leg.asset)];
    let accounts = places.flat_map(both).flatten().collect();
    let mut steps = Vec::new();
    if row.state.verdict() == Some(TransactionVerdict::Abort) {
        steps.push(posting(Op::Release, row.rounds.max(1), &[])?);
    } else {
        let last = counting().map(|branch| branch.round).max().ok_or(Unproven::Contradiction)?;
        let reserved = transactions::named_outcome(ledger, row.id, Op::Reserve, last);
        match reserved.map(|answer| answer.decision) {
            Some(Decision::Success) => {}
            Some(Decision::Refused(_)) => return Err(Unproven::OtherSpot),
            None => steps.push(posting(Op::Reserve, last, &legs)?),
        }
        if counting().any(|branch| branch.state == BranchState::Confirmed) {
            steps.push(posting(Op::Settle, last, &legs)?);
        }
    }
    Ok(LostPosting { transaction: row.id, sequence, steps, accounts })
}

/// The legs of these branches, in the order of their rounds.
fn accepted_by<'a>(branches: impl Iterator<Item = &'a Branch>) -> Vec<TransactionLeg> {
    let by_round: BTreeMap<u8, _> = branches.map(|branch| (branch.round, &branch.legs)).collect();
    by_round.into_values().flatten().copied().collect()
}

/// Decides those postings again that venues may need before they send, and returns the steps. They
/// are decided in the order of their records, as far as the money is there.
///
/// A RELEASE gives back, and a SETTLE of money that is apart pays: both come at once. A RESERVE
/// with its SETTLE takes money that a venue may need. It comes at once if no posting has touched
/// that money yet. Otherwise it waits for another run, `sent`: behind the venues, which have sent
/// all that they could. A RESERVE alone waits for all of them.
pub(super) fn credits(ledger: &mut Ledger, lost: &[LostPosting], sent: bool) -> Vec<PlanStep> {
    let touched = touched(ledger);
    let mut waiting: Vec<&LostPosting> =
        lost.iter().filter(|lost| pays(lost, &touched, sent)).collect();
    waiting.sort_by_key(|lost| lost.sequence);
    let mut steps = Vec::new();
    loop {
        let before = waiting.len();
        // One of them may bring the money that another needs.
        waiting.retain(|lost| {
            let decided = lost.steps.iter().take_while(|step| match step {
                PlanStep::Post { op, posting } => repost(ledger, *op, posting).is_ok(),
                _ => false,
            });
            let count = steps.len();
            steps.extend(decided.cloned());
            steps.len() == count
        });
        if waiting.len() == before {
            return steps;
        }
    }
}

/// The balances that postings have changed, or hold a part of.
fn touched(ledger: &Ledger) -> BTreeSet<(u64, u32)> {
    let balance = |fact| match fact {
        Fact::Balance { user, asset, held, traded, .. } if (held, traded) != (0, 0) => {
            Some((user, asset))
        }
        _ => None,
    };
    ledger.facts().filter_map(balance).collect()
}

/// Whether venues may need a lost posting before they send.
fn pays(lost: &LostPosting, touched: &BTreeSet<(u64, u32)>, sent: bool) -> bool {
    let find = |wanted| {
        lost.steps.iter().find_map(|step| match step {
            PlanStep::Post { op, posting } if *op == wanted => Some(posting),
            _ => None,
        })
    };
    let Some(reserve) = find(Op::Reserve) else { return true };
    let is_touched =
        |leg: &Leg| leg.from.user().is_some_and(|user| touched.contains(&(user, leg.asset)));
    find(Op::Settle).is_some() && (sent || !reserve.legs.iter().any(is_touched))
}
