//! Transfers that PostgreSQL has lost, or has in an earlier state, and the log proves. Causes: a
//! restored backup, or a fail-over to a replica that lacked the last commits.
//!
//! Records of UBSCore carry the full intent and are never taken back, so they prove how a transfer
//! has ended, or how far it came:
//!
//! | UBSCore recorded | the transfer | and on Funding |
//! |---|---|---|
//! | DEPOSIT succeeded | COMMITTED | the WITHDRAW is carried out |
//! | DEPOSIT refused | ROLLED_BACK | WITHDRAW and REFUND, which cancel each other |
//! | WITHDRAW refused | FAILED | nothing |
//! | WITHDRAW and REFUND succeeded | ROLLED_BACK | the refusal of the DEPOSIT |
//! | WITHDRAW succeeded | SOURCE_DONE, and on from there | it is asked for the DEPOSIT |
//! | the same, below the watermark | COMMITTED | the DEPOSIT is carried out |
//!
//! An external operation with a record and no row is written again from the record, see
//! [`super::externals`].
//!
//! For the other direction, after a cut of the log, see [`super::redecision`].
//!
//! All other findings are left to the operator, because neither store proves them.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::path::Path;

use engine::entry::Entry;
use engine::ledger::Ledger;
use wal::{Directory, Reader, Sequence};

use super::error::Error;
use super::externals::{self, ExternalRecord};
use super::lost_venues::{Awaited, awaited};
use super::mismatch::{Kind, Mismatch};
use super::outside_repair;
use super::redecision::{
    LostPosting, PlanStep, Rehearsed, Repeated, lacking, pending, rehearse, renumbering,
};
use super::settled;
use super::transaction_repair;
use super::unproven::Unproven;
use super::verify::{Stores, compare, made_by_transactions};
use crate::postgres::audit_reader::{AuditReader, Ending, Page};
use crate::postgres::cut::{CutState, Past, Witness};
use crate::postgres::repair_writer::external::{ExternalRepair, Way};
use crate::postgres::repair_writer::transaction::TransactionRepair;
use crate::postgres::repair_writer::{Posting, Renumbering, TransferRepair};
use domain::account::UserId;
use domain::asset::AssetId;
use domain::code::Code;
use domain::transfer::{
    Claim, Decision, Direction, ExternalOperation, Intent, Op, Participant, ReqId, State,
};

/// The repairs that are possible, and the findings that are left.
#[derive(Debug, Default)]
pub struct Plan {
    /// Proven by the log.
    pub repairs: Vec<TransferRepair>,
    /// Not proven by anything, each with the reason.
    pub left: Vec<(Mismatch, Unproven)>,
    /// Set if the database is older than the log.
    pub behind: Option<Mismatch>,
    /// The latest incarnation that the log knows.
    pub incarnation: u64,
    /// Whether the log has been cut, and no repair has been carried out since.
    pub open_cut: bool,
    /// After a cut: the venues that have not sent again. While there is one, only credits are
    /// decided again.
    pub awaited: Vec<Awaited>,
    /// Each of these venues has opened behind the credits that were decided last.
    pub sent: bool,
    /// Whether a venue was ever added.
    pub has_venues: bool,
    /// Proven by PostgreSQL, after a cut of the log.
    pub steps: Vec<PlanStep>,
    /// Record numbers that PostgreSQL still lacks, of operations that are decided again already.
    pub renumberings: Vec<Renumbering>,
    /// External operations that PostgreSQL has lost and the log proves.
    pub externals: Vec<ExternalRepair>,
    /// Transactions that PostgreSQL has lost or has undecided, and the log proves.
    pub transactions: Vec<TransactionRepair>,
    /// Damaged rows of Funding's journal: the totals of the audit begin anew behind them.
    pub damaged: Vec<Mismatch>,
}

impl Plan {
    /// The number of transfers that are repaired or decided again.
    pub fn transfers(&self) -> usize {
        let again: BTreeSet<ReqId> =
            self.steps.iter().filter_map(PlanStep::transfer).map(|intent| intent.req_id).collect();
        self.repairs.len() + again.len() + self.renumberings.len()
    }

    /// The number of transactions that are repaired or decided again.
    pub fn by_name(&self) -> usize {
        let again: BTreeSet<ReqId> = self.steps.iter().filter_map(PlanStep::transaction).collect();
        self.transactions.len() + again.len()
    }

    /// Adds the repair of a transfer with this finding, or the finding as one that is left.
    fn add(&mut self, mismatch: Mismatch, found: Option<(&Page, &TransferRecords)>, below: Below) {
        match found.map(|(page, logged)| repair_of(page, logged, below)) {
            Some(Ok(repair)) => self.repairs.push(repair),
            Some(Err(why)) => self.left.push((mismatch, why)),
            None => self.left.push((mismatch, Unproven::NoRecord)),
        }
    }

    /// The decisions that this plan repeats.
    fn repeated(&self) -> Repeated {
        match self.awaited.is_empty() {
            true => Repeated::All,
            false => Repeated::Credits,
        }
    }
}

/// The records of one transfer.
#[derive(Clone, Debug)]
struct TransferRecords {
    intent: Intent,
    /// In the order of [`Op::OF_TRANSFER`].
    spot: [Option<Decision>; Op::OF_TRANSFER.len()],
    sequence: Sequence,
}

impl TransferRecords {
    fn decision(&self, op: Op) -> Option<Decision> {
        op.place_in_transfer().and_then(|place| self.spot[place])
    }
}

/// Compares both stores, and plans the repairs that the log proves. Changes nothing.
///
/// # Errors
/// [`Error`]: a store cannot be read. The result is unknown.
pub async fn plan(stores: Stores) -> Result<Plan, Error> {
    let (log, mut reader) = (stores.log.clone(), stores.reader.another());
    let catalog = stores.catalog.load_full();
    let (mut verdict, mut ledger) = compare(stores).await?;
    let witness = reader.witness().await?;
    let past = witness.past().await?;
    let names: BTreeSet<ReqId> = verdict.mismatches.iter().filter_map(|m| m.req_id).collect();
    let (incarnation, behind) = (verdict.incarnation, verdict.behind);
    let mut plan = Plan { incarnation, behind, ..Plan::default() };
    await_venues(&mut plan, (&witness, past.as_ref()), &ledger).await?;
    let repeated = plan.repeated();
    let is_damaged = |mismatch: &mut Mismatch| matches!(mismatch.kind, Kind::DamagedJournal(_));
    plan.damaged = verdict.mismatches.extract_if(.., is_damaged).collect();
    if verdict.mismatches.is_empty() && past.is_none() {
        return Ok(plan);
    }
    let explained = explain(&mut plan, &mut verdict.mismatches, &log, &mut reader).await?;
    let logged = tokio::task::block_in_place(|| read_log(&log, &names))?;
    let (watermark, passed) = reader.passed().await?;
    let pages = reader.open(&names).await?.pages;
    reader.close(Ending::Again).await?;
    let pages: HashMap<ReqId, Page> = pages.into_iter().map(|page| (page.req_id, page)).collect();
    let below = Below { log: verdict.watermark, postgres: watermark };
    // An operation below PostgreSQL's watermark may be above that of a log that was cut. If it is
    // decided again, the sums agree again, so they are compared after the rehearsal.
    let sums = |ledger: &Ledger| match ledger.settled(watermark).filter(|_| past.is_some()) {
        Some(settled) => settled::compare(&passed, &settled, &catalog),
        None => Vec::new(),
    };
    let lacking_sums = sums(&ledger);
    verdict.mismatches.retain(|mismatch| !lacking_sums.contains(mismatch));
    let unbalanced = unbalanced(&verdict.mismatches);
    let (mut done, mut lost, mut named) = (BTreeSet::new(), Vec::new(), HashMap::new());
    let claims = claims_of(&mut verdict.mismatches);
    let postings = lost_postings(&mut plan, &mut reader, claims, (&ledger, past.as_ref())).await?;
    for mismatch in verdict.mismatches {
        let Some(req_id) = mismatch.req_id else {
            plan.left.push((mismatch, Unproven::NoTransfer));
            continue;
        };
        if !done.insert(req_id) {
            continue;
        }
        let page = pages.get(&req_id);
        let logged = logged.get(&req_id);
        let known = page.and_then(|page| page.transfer.as_ref()).map(|there| &there.intent);
        let intent = logged.map(|logged| &logged.intent).or(known.filter(|_| past.is_some()));
        if intent.is_some_and(|intent| unbalanced.contains(&(intent.user, intent.asset))) {
            plan.left.push((mismatch, Unproven::Unbalanced));
            continue;
        }
        if let (Some(past), Some(page)) = (&past, page) {
            match lacking(page, &ledger, past.from) {
                Ok(found) if !found.is_empty() => {
                    if repeated.takes(&found, page.transfer.as_ref().and_then(pending)) {
                        lost.extend(found);
                        named.insert(req_id, mismatch);
                    }
                    continue;
                }
                Err(why) if logged.is_none() => {
                    plan.left.push((mismatch, why));
                    continue;
                }
                // The log may prove it even if PostgreSQL does not.
                Ok(_) | Err(_) => {}
            }
        }
        plan.add(mismatch, page.zip(logged), below);
    }
    plan.repairs.sort_by_key(|repair| repair.intent.order_number);
    let Some(Past { from, until, statuses, open }) = &past else {
        plan.left.extend(left_sums(&mut reader, &ledger, explained, &[]).await?);
        return Ok(plan);
    };
    plan.open_cut = *open;
    let numbered = witness.transfers_from(*from, Some(*until), &catalog).await?;
    plan.renumberings = numbered.iter().filter_map(|t| renumbering(t, &ledger)).collect();
    let nothing = lost.is_empty() && postings.is_empty() && repeated == Repeated::All;
    let paying = match nothing {
        true => Vec::new(),
        false => witness.transfers_paying_spot(&catalog).await?,
    };
    let pending: Vec<_> = paying.iter().filter_map(pending).collect();
    let (found, postings): (Vec<_>, Vec<_>) = postings.into_iter().unzip();
    named.extend(postings.iter().map(|lost: &LostPosting| lost.transaction).zip(found));
    let both = (lost, if repeated == Repeated::All { &postings[..] } else { &[] });
    let rehearsed = rehearse(&mut ledger, both, &pending, statuses, (&catalog, repeated));
    take_rehearsed(&mut plan, rehearsed, named);
    if repeated == Repeated::Credits {
        plan.steps.extend(transaction_repair::credits(&mut ledger, &postings, plan.sent));
    }
    // Before the venues have sent, the debits are missing.
    let sums = sums(&ledger).into_iter().filter(|_| repeated == Repeated::All);
    plan.left.extend(sums.map(|mismatch| (mismatch, Unproven::Unexplained)));
    let waiting = if repeated == Repeated::Credits { &postings[..] } else { &[] };
    plan.left.extend(left_sums(&mut reader, &ledger, explained, waiting).await?);
    Ok(plan)
}

/// The sums of transactions that do not add up behind this plan, without the assets of postings
/// that wait for another run. `ledger`: with all decisions that are repeated. `explained`: see
/// [`explain`].
async fn left_sums(
    reader: &mut AuditReader,
    ledger: &Ledger,
    explained: BTreeMap<AssetId, i128>,
    waiting: &[LostPosting],
) -> Result<Vec<(Mismatch, Unproven)>, Error> {
    let mut made = made_by_transactions(reader, ledger).await?;
    for (asset, units) in explained {
        let left = made.entry(asset).or_default();
        *left = left.saturating_sub(units);
    }
    let waits = |asset| waiting.iter().any(|lost| lost.accounts.iter().any(|of| of.1 == asset));
    let left = made.into_iter().filter(|(asset, made)| *made != 0 && !waits(*asset));
    let told = |(asset, made)| (Mismatch::transaction_sums(asset, made), Unproven::NoTransfer);
    Ok(left.map(told).collect())
}

/// The balances that no transfer and no external operation explains.
fn unbalanced(mismatches: &[Mismatch]) -> HashSet<(UserId, AssetId)> {
    let accounts = mismatches.iter();
    let accounts = accounts.filter(|mismatch| (mismatch.req_id, mismatch.external) == (None, None));
    accounts.filter_map(|mismatch| mismatch.user.zip(mismatch.asset)).collect()
}

/// Plans the repairs of external operations and of transactions, and takes the findings out that
/// they explain. Returns the part of the sums of transactions that the repairs will take away, see
/// [`made_by_transactions`].
async fn explain(
    plan: &mut Plan,
    mismatches: &mut Vec<Mismatch>,
    log: &Path,
    reader: &mut AuditReader,
) -> Result<BTreeMap<AssetId, i128>, Error> {
    let logged = tokio::task::block_in_place(|| externals::read_log(log))?;
    let mut outside = externals(&logged, reader).await?;
    mismatches.retain(|mismatch| !outside.explains(mismatch));
    let mut by_name = transaction_repair::plan(log, reader).await?;
    outside_repair::plan(&mut outside.repairs, &mut by_name, &logged, reader).await?;
    plan.externals = outside.repairs;
    plan.left.extend(outside.left);
    mismatches.retain(|mismatch| !by_name.explains(mismatch));
    // Repairs and repeated decisions change these sums, so they are compared at the end.
    mismatches.retain(|found| !matches!(found.kind, Kind::TransactionSums { .. }));
    plan.transactions = by_name.repairs;
    plan.left.extend(by_name.left);
    Ok(by_name.crossed)
}

/// Takes the findings about claims of transactions out: one of each.
fn claims_of(mismatches: &mut Vec<Mismatch>) -> BTreeMap<ReqId, Mismatch> {
    let is_claim = |found: &mut Mismatch| matches!(found.kind, Kind::TransactionLost { .. });
    let claims = mismatches.extract_if(.., is_claim).filter_map(|found| match found.kind {
        Kind::TransactionLost { transaction, .. } => Some((transaction, found)),
        _ => None,
    });
    claims.collect()
}

/// The postings by name that the rows of these transactions prove, each with its finding.
async fn lost_postings(
    plan: &mut Plan,
    reader: &mut AuditReader,
    claims: BTreeMap<ReqId, Mismatch>,
    (ledger, past): (&Ledger, Option<&Past>),
) -> Result<Vec<(Mismatch, LostPosting)>, Error> {
    let Some(Past { from, .. }) = past else {
        let left = claims.into_values().map(|mismatch| (mismatch, Unproven::NoRecord));
        plan.left.extend(left);
        return Ok(Vec::new());
    };
    let rows = reader.transactions(claims.keys().copied()).await?;
    let mut postings = Vec::new();
    for (transaction, mismatch) in claims {
        let row = rows.get(&transaction).ok_or(Unproven::NoRecord);
        match row.and_then(|row| transaction_repair::lost(row, ledger, *from)) {
            Ok(lost) => postings.push((mismatch, lost)),
            Err(why) => plan.left.push((mismatch, why)),
        }
    }
    Ok(postings)
}

/// Adds the decisions of a rehearsal. `named`: the mismatch of each transfer.
fn take_rehearsed(plan: &mut Plan, rehearsed: Rehearsed, mut named: HashMap<ReqId, Mismatch>) {
    plan.steps = rehearsed.steps;
    let repaired = |step: &PlanStep| {
        let intent = step.transfer();
        intent.is_some_and(|intent| plan.repairs.iter().any(|r| r.intent.req_id == intent.req_id))
    };
    assert!(!plan.steps.iter().any(repaired), "a transfer is repaired in both stores");
    for (req_id, why) in rehearsed.left {
        plan.left.push((named.remove(&req_id).expect("named as it was found"), why));
    }
}

/// Finds the venues that must send again after a cut that is open, and whether each of them has
/// sent all that it could behind an earlier run.
async fn await_venues(
    plan: &mut Plan,
    (witness, past): (&Witness, Option<&Past>),
    ledger: &Ledger,
) -> Result<(), Error> {
    if !past.is_some_and(|past| past.open) {
        return Ok(());
    }
    let ((known, any), mut venues) = (witness.venues().await?, Vec::new());
    ledger.venues(&mut venues);
    plan.has_venues = any || !known.is_empty() || !venues.is_empty();
    plan.awaited = awaited((&known, any), &venues);
    let credited = witness.state().await? == CutState::Credited;
    plan.sent = credited && plan.awaited.iter().all(|venue| venue.has_sent(&known));
    Ok(())
}

/// The repairs of external operations that the log proves.
#[derive(Default)]
struct OutsidePlan {
    repairs: Vec<ExternalRepair>,
    /// The order numbers of their records and rows.
    numbers: BTreeSet<u64>,
    accounts: HashSet<(UserId, AssetId)>,
    left: Vec<(Mismatch, Unproven)>,
}

impl OutsidePlan {
    /// Whether these repairs end a mismatch. Any other mismatch is found again by the comparison
    /// after the repair.
    fn explains(&self, mismatch: &Mismatch) -> bool {
        match (mismatch.external, mismatch.req_id, mismatch.user, mismatch.asset) {
            (Some(number), ..) => {
                self.numbers.contains(&number)
                    || self.left.iter().any(|(left, _)| left.external == Some(number))
            }
            (None, None, Some(user), Some(asset)) => self.accounts.contains(&(user, asset)),
            (None, None, None, Some(asset)) => {
                matches!(mismatch.kind, Kind::ExternalSums { .. })
                    && self.accounts.iter().any(|(_, repaired)| *repaired == asset)
            }
            _ => false,
        }
    }
}

/// Looks up every record of an external operation in PostgreSQL.
async fn externals(
    logged: &BTreeMap<u64, ExternalRecord>,
    reader: &mut AuditReader,
) -> Result<OutsidePlan, Error> {
    let rows = reader.externals(logged.keys().copied()).await?;
    let catalog = reader.catalog();
    let mut plan = OutsidePlan::default();
    let mut lost = BTreeMap::<(UserId, AssetId), Vec<(ExternalOperation, &ExternalRecord)>>::new();
    for (number, logged) in logged {
        let Some(mismatch) = externals::judge(logged, rows.get(number), &catalog) else { continue };
        let Some(operation) = logged.external.operation() else {
            plan.left.push((mismatch, Unproven::UnreadableRecord));
            continue;
        };
        if rows.contains_key(number) {
            plan.left.push((mismatch, Unproven::OtherExternal));
            continue;
        }
        let name = operation.idem_key.as_str();
        let again = reader.externals_named(&[name]).await?.remove(name);
        let same = |there: &ExternalOperation| {
            let of =
                |one: &ExternalOperation| (one.op, one.user, one.asset, one.amount, one.decision);
            of(there) == of(&operation)
        };
        match again {
            Some(there) if same(&there) => {
                plan.numbers.extend([*number, there.order_number]);
                let (time_ns, way) = (logged.time_ns, Way::Renumber);
                plan.repairs.push(ExternalRepair {
                    operation,
                    time_ns,
                    way,
                    hold: None,
                    look: None,
                });
            }
            Some(there) => {
                plan.numbers.insert(there.order_number);
                plan.left.push((mismatch, Unproven::OtherIdemKey));
            }
            None => {
                let account = (operation.user, operation.asset);
                lost.entry(account).or_default().push((operation, logged));
            }
        }
    }
    for ((user, asset), operations) in lost {
        let effect = |(operation, _): &(ExternalOperation, _)| {
            operation.op.effect(operation.decision, operation.amount.units())
        };
        let sum: i128 = operations.iter().map(effect).sum();
        let way = match reader.imbalance(user, asset).await? {
            0 => Some(Way::Carry),
            more if more == sum => Some(Way::WriteDown),
            _ => None,
        };
        for (operation, logged) in operations {
            let Some(way) = way else {
                let mismatch = externals::judge(logged, None, &catalog);
                let why = Unproven::Unbalanced;
                plan.left.extend(mismatch.map(|mismatch| (mismatch, why)));
                continue;
            };
            plan.numbers.insert(operation.order_number);
            plan.accounts.insert((user, asset));
            let time_ns = logged.time_ns;
            plan.repairs.push(ExternalRepair { operation, time_ns, way, hold: None, look: None });
        }
    }
    plan.repairs.sort_by_key(|repair| repair.operation.order_number);
    let once = plan
        .repairs
        .is_sorted_by(|one, next| one.operation.order_number < next.operation.order_number);
    assert!(once, "an external operation is repaired twice: {:?}", plan.repairs);
    Ok(plan)
}

/// Every record of these transfers that the log still has.
fn read_log(log: &Path, names: &BTreeSet<ReqId>) -> Result<HashMap<ReqId, TransferRecords>, Error> {
    let mut reader = Reader::<Directory>::open_path(log, 0)?;
    let mut found = HashMap::new();
    while let Some(record) = reader.next()? {
        let sequence = record.sequence;
        let entry = Entry::decode(record.kind, record.payload)
            .map_err(|source| Error::Record { sequence, source })?;
        let Entry::Order { order, decision, .. } = entry else { continue };
        let Some(intent) = order.intent().filter(|intent| names.contains(&intent.req_id)) else {
            continue;
        };
        let logged = found.entry(intent.req_id);
        let logged = logged.or_insert_with(|| TransferRecords {
            intent,
            spot: [None; Op::OF_TRANSFER.len()],
            sequence,
        });
        if let Some(place) = order.op.place_in_transfer() {
            logged.spot[place] = Some(decision);
        }
        logged.sequence = sequence;
    }
    Ok(found)
}

/// Watermarks: every transfer of a smaller order number has ended.
#[derive(Clone, Copy, Debug)]
struct Below {
    /// Of UBSCore.
    log: u64,
    /// Of PostgreSQL, which keeps the totals below it.
    postgres: u64,
}

/// Plans the step of PostgreSQL to the state that the log proves.
///
/// # Errors
/// [`Unproven`].
fn repair_of(
    page: &Page,
    logged: &TransferRecords,
    below: Below,
) -> Result<TransferRepair, Unproven> {
    let TransferRecords { intent, sequence, .. } = logged;
    let from = match &page.transfer {
        _ if page.unreadable.is_some() => return Err(Unproven::UnreadableRow),
        None if intent.order_number < below.postgres => {
            return Err(Unproven::BelowPostgres);
        }
        None => None,
        Some(transfer) if transfer.intent != *intent => {
            return Err(Unproven::OtherIntent);
        }
        Some(transfer) if transfer.state.is_terminal() => {
            return Err(Unproven::OtherEnd);
        }
        Some(transfer) => Some(transfer.state),
    };
    let recorded = |op: Op| page.transfer.as_ref().and_then(|transfer| transfer.on_funding(op));
    let taken = |op: Op| recorded(op) == Some(Decision::Success);
    let (to, code, wanted) = target(logged, intent.order_number < below.log, taken)?;
    let mut postings = Vec::new();
    for posting in wanted {
        match recorded(posting.op) {
            None => postings.push(posting),
            Some(there) if is_success(there) == is_success(posting.decision) => {}
            Some(_) => return Err(Unproven::OtherFunding),
        }
    }
    let mut there = Op::OF_TRANSFER.into_iter().filter(|op| recorded(*op).is_some());
    if there.any(|op| !is_wanted(op, to, intent)) {
        return Err(Unproven::Surplus);
    }
    // A repair moves the logged amount once at most. A refund gives back only a recorded withdraw.
    let moving = || postings.iter().filter(|posting| posting.moves);
    assert!(moving().count() <= 1, "{}: {postings:?}", intent.req_id);
    let undoes_nothing =
        moving().any(|posting| posting.op.row().undoes.is_some_and(|op| !taken(op)));
    assert!(!undoes_nothing, "{}: {postings:?}", intent.req_id);
    let (intent, log_sequence) = (intent.clone(), *sequence);
    Ok(TransferRepair { intent, from, to, postings, code, log_sequence })
}

fn is_success(decision: Decision) -> bool {
    decision == Decision::Success
}

/// Whether a transfer in state `to` has this operation on Funding.
fn is_wanted(op: Op, to: State, intent: &Intent) -> bool {
    to.claim_at(intent.direction, Participant::Funding, op) != Claim::Undecided
}

/// The state of the transfer that the log proves, its code, and its Funding operations.
/// `carried_out`: whether Funding has recorded an operation as a success.
fn target(
    logged: &TransferRecords,
    is_over: bool,
    carried_out: impl Fn(Op) -> bool,
) -> Result<(State, Option<Code>, Vec<Posting>), Unproven> {
    use Decision::{Refused, Success};
    let posting = |op, decision, moves| Posting { op, decision, moves };
    let spot = |op| logged.decision(op);
    Ok(match logged.intent.direction {
        Direction::FundingToSpot => match spot(Op::Deposit) {
            Some(Success) => (State::Committed, None, vec![posting(Op::Withdraw, Success, true)]),
            Some(Refused(code)) => {
                // Money that was taken comes back. If none was taken, none needs to move.
                let refund = posting(Op::Refund, Success, carried_out(Op::Withdraw));
                let withdraw = posting(Op::Withdraw, Success, false);
                (State::RolledBack, Some(code), vec![withdraw, refund])
            }
            None => return Err(Unproven::Undecided),
        },
        Direction::SpotToFunding => match (spot(Op::Withdraw), spot(Op::Refund)) {
            (Some(Refused(code)), None) => (State::Failed, Some(code), Vec::new()),
            (Some(Success), Some(Success)) => {
                // The log does not name Funding's reason. For an existing account there are two;
                // the status set by an operator is assumed.
                let code = Code::AccountDisabled;
                let refused = posting(Op::Deposit, Refused(code), false);
                (State::RolledBack, Some(code), vec![refused])
            }
            (Some(Success), None) if is_over => {
                (State::Committed, None, vec![posting(Op::Deposit, Success, true)])
            }
            (Some(Success), None) => (State::SourceDone, None, Vec::new()),
            _ => return Err(Unproven::Undecided),
        },
    })
}
