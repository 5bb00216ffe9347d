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
//! are lost are named for an operator: nothing proves that a service's money moved there. A round
//! that Funding was trying counts as tried if all its holds are apart exactly as the round asks:
//! Spot books behind the decision, and that stands behind both tries. Of a leg between the stores
//! the log has Spot's side. Its other side counts as outside of both, until an operator books it on
//! Funding as an external operation.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use domain::account::UserId;
use domain::asset::AssetId;
use domain::hold::HoldOrder;
use domain::posting::{Leg, Place, Posting};
use domain::transfer::op::HoldStep;
use domain::transfer::{Decision, Op, Participant, ReqId};
use engine::fact::Fact;
use engine::ledger::Ledger;
use engine::named::{NamedPosting, TxId};
use wal::Sequence;

use super::error::Error;
use super::legs::crossings;
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
use crate::transactions::rounds;

/// The repairs of transactions that the log proves.
#[derive(Debug, Default)]
pub(super) struct TransactionsPlan {
    /// In the order of their order numbers.
    pub(super) repairs: Vec<TransactionRepair>,
    /// Not proven, each with the reason.
    pub(super) left: Vec<(Mismatch, Unproven)>,
    /// The money that the repaired ones have brought to Spot from its outside less that taken
    /// there, smallest units. PostgreSQL has no other side of it before the repair.
    pub(super) crossed: BTreeMap<AssetId, i128>,
    names: BTreeSet<ReqId>,
}

impl TransactionsPlan {
    /// How a transaction is brought back, if it is.
    pub(super) fn repair_of(&self, transaction: ReqId) -> Option<&TransactionRepair> {
        self.repairs.iter().find(|repair| repair.transaction == transaction)
    }

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
        let tried = match row {
            Some(row) => tried(row, reader).await?,
            None => Vec::new(),
        };
        match repair_of(*transaction, records, row, tried) {
            Ok(repair) => {
                for (asset, brought) in records.iter().flat_map(|record| crossings(&record.named)) {
                    *plan.crossed.entry(AssetId(asset)).or_default() += brought;
                }
                plan.repairs.push(repair);
            }
            Err(why) => plan.left.push((mismatch, why)),
        }
    }
    plan.repairs.sort_by_key(|repair| repair.order_number);
    Ok(plan)
}

/// The rounds that Funding has set apart, while its row does not tell of it yet.
pub(super) async fn tried(
    row: &TransactionRow,
    reader: &mut AuditReader,
) -> Result<Vec<u8>, Error> {
    let mut tried = Vec::new();
    for branch in untried(row) {
        // A round that cannot be asked for was not tried.
        let Ok(words) = rounds::set(row, branch.round) else { continue };
        let orders: Vec<HoldOrder> = words.into_iter().map(|word| word.order).collect();
        if reader.has_set_apart(&orders).await? {
            tried.push(branch.round);
        }
    }
    Ok(tried)
}

/// The branches of Funding without a recorded answer.
pub(super) fn untried(row: &TransactionRow) -> impl Iterator<Item = &Branch> {
    let funding = Party::Store(Participant::Funding);
    let of_funding = row.branches.iter().filter(move |branch| branch.party == funding);
    of_funding.filter(|branch| branch.state == BranchState::Trying)
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
    tried: Vec<u8>,
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
        Some(row) => move_on(&proof, legs, (row, &tried[..]), &mut looks)?,
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
        tried: tried.into_iter().map(i16::from).collect(),
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

/// For a transaction with a row. `tried`: see [`tried`].
fn move_on(
    proof: &Proof<'_>,
    legs: Vec<TransactionLeg>,
    (row, tried): (&TransactionRow, &[u8]),
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
    let counts = |round: &u8| !tried.contains(round) && !proof.refused.contains(round);
    let lost_holds = untried(row).filter(|branch| counts(&branch.round));
    for leg in lost_holds.flat_map(|branch| &branch.legs) {
        let TransactionLeg { from, to, asset, amount } = leg;
        // The log may have the record of a leg with the outside: then the repair has its money.
        let unless = match [*from, *to].contains(&LegPlace::Outside) {
            true => format!(", unless an external operation tx/{} has it", row.id),
            false => String::new(),
        };
        looks.push(format!(
            "Spot has booked it, and Funding has lost its hold: book {amount} smallest units of \
             asset {} from {} to {} by hand{unless}",
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

/// Decides those postings again that venues may need, and returns the steps. Nothing is decided
/// that a lost command of a venue may have come before and that takes its money.
///
/// A RELEASE gives back, and a SETTLE of money that is apart pays: both come at once. A RESERVE
/// with its SETTLE takes money first, and only the venues know whether one of them had that money
/// before: an order that was cancelled, say. So it waits until the venues have sent all that they
/// could, `sent`. A venue that stands still then needs money of an earlier transaction: the
/// transactions are decided in the order of their records, up to the first one that pays a balance
/// which postings have touched. A later one may take money that the venue has had in between, and
/// waits for another run. A RESERVE alone waits for all venues.
pub(super) fn credits(ledger: &mut Ledger, lost: &[LostPosting], sent: bool) -> Vec<PlanStep> {
    let (touched, mut steps) = (touched(ledger), Vec::new());
    let in_order = |wanted: Taking| {
        let mut chosen: Vec<&LostPosting> =
            lost.iter().filter(|lost| taking(lost) == wanted).collect();
        chosen.sort_by_key(|lost| lost.sequence);
        chosen
    };
    for lost in in_order(Taking::Nothing) {
        again(ledger, lost, &mut steps);
    }
    let mut waiting = if sent { in_order(Taking::AndPaying) } else { Vec::new() };
    // One of them may bring the money that an earlier one needs.
    while let Some(next) = waiting.iter().position(|lost| again(ledger, lost, &mut steps)) {
        if pays_one_of(waiting.remove(next), &touched) {
            break;
        }
    }
    steps
}

/// Decides the steps of one transaction again, as far as they succeed. Returns whether one did.
fn again(ledger: &mut Ledger, lost: &LostPosting, steps: &mut Vec<PlanStep>) -> bool {
    let before = steps.len();
    let decided = lost.steps.iter().take_while(|step| match step {
        PlanStep::Post { op, posting } => repost(ledger, *op, posting).is_ok(),
        _ => false,
    });
    steps.extend(decided.cloned());
    steps.len() > before
}

/// The part of available balances that the lost postings of a transaction take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Taking {
    /// They give money back that is apart, or pay with it.
    Nothing,
    /// They set money apart, and pay with it.
    AndPaying,
    /// They set money apart.
    Only,
}

fn taking(lost: &LostPosting) -> Taking {
    let has = |wanted| {
        let is_it = |step: &PlanStep| matches!(step, PlanStep::Post { op, .. } if *op == wanted);
        lost.steps.iter().any(is_it)
    };
    match (has(Op::Reserve), has(Op::Settle)) {
        (false, _) => Taking::Nothing,
        (true, true) => Taking::AndPaying,
        (true, false) => Taking::Only,
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

/// Whether a transaction pays one of these balances.
fn pays_one_of(lost: &LostPosting, balances: &BTreeSet<(u64, u32)>) -> bool {
    let is_paid =
        |leg: &Leg| leg.to.user().is_some_and(|user| balances.contains(&(user, leg.asset)));
    lost.steps.iter().any(|step| match step {
        PlanStep::Post { posting, .. } => posting.legs.iter().any(is_paid),
        _ => false,
    })
}
