//! After a cut of the log: operations on Spot that UBSCore has lost and PostgreSQL proves. They are
//! decided again from the full intent in PostgreSQL, and must have the same result.
//!
//! A state that follows from a decision of UBSCore proves that decision ([`proven`]):
//!
//! | direction | state | UBSCore had decided |
//! |---|---|---|
//! | Funding to Spot | COMMITTED | DEPOSIT succeeded |
//! | | COMPENSATING, ROLLED_BACK | DEPOSIT refused with the transfer's code |
//! | Spot to Funding | SOURCE_DONE, TARGET_PENDING, COMMITTED, COMPENSATING | WITHDRAW succeeded |
//! | | ROLLED_BACK | WITHDRAW and REFUND succeeded |
//! | | FAILED | WITHDRAW refused with the transfer's code |
//!
//! Any other state proves nothing: the coordinator asks again.
//!
//! Everything is rehearsed on the ledger of the log before a record is written. [`rehearse`]
//! decides with the ledger's own `step`, in the order of the lost records. If a success would be
//! refused now, it is left to the operator with everything else on that balance, so that no balance
//! is repaired by half. A refusal is recorded as the refusal that it was; as an order it might
//! succeed now.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use engine::command::Command;
use engine::entry::Entry;
use engine::external::Outside;
use engine::ledger::{Answer, Ledger, Step};
use engine::named::{Named, NamedPosting, NamedStep};
use engine::order::Order;
use engine::recorded::Recorded;
use engine::text::Text;
use engine::totals::Totals;
use wal::Sequence;

use super::fit::{Fit, Operations, Seen, fit};
use super::unproven::Unproven;
use crate::postgres::audit_reader::Page;
use crate::postgres::cut::LostStatus;
use crate::postgres::repair_writer::Renumbering;
use crate::postgres::store::Transfer;
use domain::account::{AccountStatus, UserId};
use domain::asset::{Asset, AssetId, Catalog};
use domain::code::Code;
use domain::posting::Breakdown;
use domain::transfer::{Claim, Decision, Intent, Op, Participant, ReqId};

/// One step on UBSCore. Steps are carried out in their order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PlanStep {
    /// Register an asset again; its record was lost.
    Learn(Asset),
    /// In a log that is rebuilt: begin a balance with the totals of its transfers below the
    /// watermark of PostgreSQL.
    Carry {
        /// The user.
        user: UserId,
        /// The asset.
        asset: AssetId,
        /// The totals.
        totals: Totals,
    },
    /// In a log that is rebuilt: begin the external operations of an asset with those below the
    /// watermark of PostgreSQL.
    CarryOutside {
        /// The asset.
        asset: AssetId,
        /// Counts and sums.
        outside: Outside,
    },
    /// In a log that is rebuilt: raise the watermark of UBSCore to that of PostgreSQL.
    Raise {
        /// The smallest order number that is decided one by one.
        order_number: u64,
    },
    /// Set the status of a Spot account.
    SetStatus {
        /// The user.
        user: UserId,
        /// The new status.
        status: AccountStatus,
        /// The earlier actor, or the need for it.
        why: String,
    },
    /// Decide an operation again. The decision must be the same.
    Decide {
        /// The transfer.
        intent: Intent,
        /// The operation.
        op: Op,
        /// The earlier decision, which must come again.
        decision: Decision,
    },
    /// Ask for a pending payment of the coordinator, because another operation has already spent
    /// that money.
    Ask {
        /// The transfer.
        intent: Intent,
        /// DEPOSIT or REFUND.
        op: Op,
    },
    /// Decide a posting by name again. It must succeed.
    Post {
        /// RESERVE, SETTLE or RELEASE.
        op: Op,
        /// The posting.
        posting: Box<NamedPosting>,
    },
}

impl PlanStep {
    /// The command to UBSCore.
    ///
    /// Panics for [`PlanStep::Post`], which is published by name.
    pub fn command(&self) -> Command {
        match self {
            PlanStep::Learn(asset) => Command::RegisterAsset {
                asset: asset.id.0,
                precision: asset.precision,
                symbol: Text::new(&asset.symbol).expect("checked by Catalog"),
            },
            PlanStep::Carry { user, asset, totals } => {
                Command::CarryTotals { user: user.number(), asset: asset.0, totals: *totals }
            }
            PlanStep::CarryOutside { asset, outside } => {
                Command::CarryOutside { asset: asset.0, outside: *outside }
            }
            PlanStep::Raise { order_number } => {
                Command::RaiseWatermark { order_number: *order_number }
            }
            PlanStep::SetStatus { user, status, .. } => {
                Command::SetStatus { user: user.number(), status: *status }
            }
            PlanStep::Decide { intent, op, decision: Decision::Success } => {
                Command::Order(Order::new(intent, *op))
            }
            PlanStep::Decide { intent, op, decision: Decision::Refused(code) } => {
                Command::Refuse { order: Order::new(intent, *op), code: *code }
            }
            PlanStep::Ask { intent, op } => Command::Order(Order::new(intent, *op)),
            PlanStep::Post { .. } => unreachable!("{self} is published by name"),
        }
    }

    /// Whether this is the expected answer of UBSCore.
    pub fn is_answer(&self, answer: &Answer) -> bool {
        match (self, answer) {
            (
                PlanStep::Decide { .. } | PlanStep::Ask { .. } | PlanStep::Post { .. },
                Answer::Done,
            ) => false,
            (_, Answer::Done) => true,
            (PlanStep::Post { .. }, Answer::Named(answer)) => answer.decision == Decision::Success,
            (PlanStep::Decide { decision, .. }, Answer::Decided(recorded)) => {
                recorded.decision == *decision
            }
            (PlanStep::Ask { .. }, Answer::Decided(recorded)) => {
                recorded.decision == Decision::Success
            }
            _ => false,
        }
    }

    /// The transfer that proves this step by its state.
    pub fn transfer(&self) -> Option<&Intent> {
        match self {
            PlanStep::Decide { intent, .. } => Some(intent),
            PlanStep::Learn(_)
            | PlanStep::Carry { .. }
            | PlanStep::CarryOutside { .. }
            | PlanStep::Raise { .. }
            | PlanStep::SetStatus { .. }
            | PlanStep::Ask { .. }
            | PlanStep::Post { .. } => None,
        }
    }

    /// The transaction that proves this step by its row.
    pub fn transaction(&self) -> Option<ReqId> {
        match self {
            PlanStep::Post { posting, .. } => Some(posting.transaction),
            _ => None,
        }
    }
}

impl fmt::Display for PlanStep {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let named = |intent: &Intent| {
            format!("transfer {}, user {}, asset {}", intent.req_id, intent.user, intent.asset.0)
        };
        match self {
            PlanStep::Learn(asset) => {
                write!(out, "asset {}: register {} with UBSCore again", asset.id.0, asset.symbol)
            }
            PlanStep::Carry { user, asset, totals } => {
                let Totals { deposits, withdrawals, refunds } = totals;
                write!(
                    out,
                    "user {user}, asset {}: begin the SPOT balance with deposits {deposits}, withdrawals {withdrawals}, \
                     refunds {refunds} smallest units",
                    asset.0
                )
            }
            PlanStep::CarryOutside { asset, outside } => {
                let Outside { deposits, deposited, withdrawals, withdrawn } = outside;
                write!(
                    out,
                    "asset {}: begin its external operations with {deposits} deposits of {deposited}, {withdrawals} \
                     withdrawals of {withdrawn} smallest units",
                    asset.0
                )
            }
            PlanStep::Raise { order_number } => {
                write!(out, "raise UBSCore's watermark to {order_number}")
            }
            PlanStep::SetStatus { user, status, why } => {
                write!(out, "user {user}: set the SPOT account to {} again, {why}", status.name())
            }
            PlanStep::Decide { intent, op, decision: Decision::Success } => {
                write!(
                    out,
                    "{}: have its {} on Spot decided again, as SUCCESS",
                    named(intent),
                    op.name()
                )
            }
            PlanStep::Decide { intent, op, decision: Decision::Refused(code) } => write!(
                out,
                "{}: record the refusal of its {} on Spot again, as {code}",
                named(intent),
                op.name()
            ),
            PlanStep::Post { op, posting } => write!(
                out,
                "transaction {}, tx_id {}: have its {} on Spot decided again",
                posting.transaction,
                posting.tx_id.as_str(),
                op.name()
            ),
            PlanStep::Ask { intent, op } => {
                let op = op.name();
                write!(
                    out,
                    "{}: ask UBSCore for its {op}, which the service would ask for",
                    named(intent)
                )
            }
        }
    }
}

/// An operation that PostgreSQL proves and UBSCore lacks.
#[derive(Clone, Debug)]
pub struct Lacking {
    intent: Intent,
    op: Op,
    decision: Decision,
    /// The record that PostgreSQL names for the transfer; it gives the order of the decisions.
    sequence: Sequence,
}

impl Lacking {
    fn step(&self) -> PlanStep {
        let (intent, op, decision) = (self.intent.clone(), self.op, self.decision);
        PlanStep::Decide { intent, op, decision }
    }
}

/// Postings by name that PostgreSQL proves and UBSCore lacks: all of one transaction.
#[derive(Clone, Debug)]
pub struct LostPosting {
    /// The transaction.
    pub transaction: ReqId,
    /// The newest record that PostgreSQL names for it.
    pub sequence: Sequence,
    /// In this order.
    pub steps: Vec<PlanStep>,
    /// The balances of its legs.
    pub accounts: BTreeSet<(UserId, AssetId)>,
}

/// A piece of one group, decided again as a whole.
enum Item<'a> {
    Transfer(&'a Lacking),
    Posting(&'a LostPosting),
}

impl Item<'_> {
    fn name(&self) -> ReqId {
        match self {
            Item::Transfer(lacking) => lacking.intent.req_id,
            Item::Posting(lost) => lost.transaction,
        }
    }

    fn steps(&self) -> Vec<PlanStep> {
        match self {
            Item::Transfer(lacking) => vec![lacking.step()],
            Item::Posting(lost) => lost.steps.clone(),
        }
    }

    /// The WITHDRAW of a transfer comes before its REFUND.
    fn place(&self) -> (Sequence, u64, Op) {
        match self {
            Item::Transfer(Lacking { sequence, intent, op, .. }) => {
                (*sequence, intent.order_number, *op)
            }
            Item::Posting(lost) => (lost.sequence, 0, Op::Settle),
        }
    }
}

/// The decisions of UBSCore that a transfer's state proves.
///
/// # Errors
/// [`Unproven`].
pub fn proven(transfer: &Transfer) -> Result<Vec<(Op, Decision)>, Unproven> {
    use Decision::{Refused, Success};
    let refused = || match transfer.code {
        Some(code) => Ok(Refused(code)),
        None => Err(Unproven::NoCode),
    };
    let claimed = transfer.state.decided_at(transfer.intent.direction, Participant::Spot);
    claimed
        .map(|(op, claim)| match claim {
            Claim::Succeeded => Ok((op, Success)),
            Claim::Refused => Ok((op, refused()?)),
            Claim::Undecided => unreachable!("{op} is not decided"),
        })
        .collect()
}

/// The operations of a transfer in PostgreSQL that UBSCore lacks.
///
/// `from`: the first record that was ever cut off. If PostgreSQL names an earlier record, or none,
/// no cut explains the loss.
///
/// # Errors
/// [`Unproven`]: it cannot be decided again.
pub fn lacking(page: &Page, ledger: &Ledger, from: Sequence) -> Result<Vec<Lacking>, Unproven> {
    if page.unreadable.is_some() {
        return Err(Unproven::UnreadableRow);
    }
    let Some(transfer) = &page.transfer else { return Ok(Vec::new()) };
    let (intent, proven) = (&transfer.intent, proven(transfer)?);
    let mut lacking = Vec::new();
    for &(op, decision) in &proven {
        match recorded(ledger, intent.req_id, op) {
            Some(known) if known.decision == decision => {}
            Some(_) => return Err(Unproven::OtherSpot),
            None => lacking.push(op),
        }
    }
    if lacking.is_empty() {
        return Ok(Vec::new());
    }
    let Some(sequence) = transfer.log_sequence.filter(|sequence| *sequence >= from) else {
        return Err(Unproven::NoRecord);
    };
    if intent.order_number < ledger.watermark() {
        return Err(Unproven::BelowUbscore);
    }
    let seen = |op: Op| {
        let on_spot =
            proven.iter().find(|(proven, _)| *proven == op).map(|(_, decision)| *decision);
        Seen::in_snapshot(on_spot.or(transfer.on_funding(op)))
    };
    let operations = Operations::of(seen);
    let fitting = fit(Some(transfer.state), intent.direction, intent.amount, operations);
    if matches!(fitting, Fit::Broken { .. }) {
        return Err(Unproven::Contradiction);
    }
    let decided = proven.into_iter().filter(|(op, _)| lacking.contains(op));
    Ok(decided
        .map(|(op, decision)| Lacking { intent: intent.clone(), op, decision, sequence })
        .collect())
}

/// A transfer for which PostgreSQL names a record of another operation, while UBSCore has every
/// proven decision.
pub fn renumbering(transfer: &Transfer, ledger: &Ledger) -> Option<Renumbering> {
    let named = transfer.log_sequence?;
    let proven = proven(transfer).ok()?;
    let sequences: Option<Vec<Sequence>> = proven
        .iter()
        .map(|(op, _)| Some(recorded(ledger, transfer.intent.req_id, *op)?.sequence))
        .collect();
    let sequences = sequences?;
    let last = sequences.iter().copied().max()?;
    let (intent, state) = (transfer.intent.clone(), transfer.state);
    (!sequences.contains(&named)).then_some(Renumbering { intent, state, log_sequence: last })
}

/// The result of a rehearsal.
#[derive(Debug, Default)]
pub struct Rehearsed {
    /// The steps, in this order.
    pub steps: Vec<PlanStep>,
    /// Transfers for which nothing is done, each with the reason.
    pub left: BTreeMap<ReqId, Unproven>,
}

/// The decisions that are repeated by one run of `ubscore repair`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Repeated {
    /// All of them.
    All,
    /// Those that venues may need for the commands that they send again: everything that pays Spot,
    /// withdrawals that came back, and accounts that were active for a while. Debits and statuses
    /// follow behind the venues.
    Credits,
}

impl Repeated {
    /// Whether this run repeats the lost operations of a transfer. `asked`: its [`pending`] one.
    pub fn takes(self, lacking: &[Lacking], asked: Option<(Intent, Op)>) -> bool {
        let asked = asked.map(|(_, op)| op);
        let pays = |lacking: &Lacking| lacking.decision == Decision::Success && lacking.op.pays();
        self == Repeated::All || lacking.iter().all(pays) || is_returned(lacking, asked)
    }
}

/// Whether a WITHDRAW comes with its REFUND. A venue may have used that money again, so both must
/// be decided before it sends.
fn is_returned(lacking: &[Lacking], asked: Option<Op>) -> bool {
    let effect = |op: Op, decision, of: &Lacking| op.effect(decision, of.intent.amount.units());
    let proven = lacking.iter().map(|one| effect(one.op, one.decision, one));
    let refund = lacking.iter().zip(asked).map(|(one, op)| effect(op, Decision::Success, one));
    let effects: Vec<i128> = proven.chain(refund).collect();
    effects.len() > 1 && effects.iter().sum::<i128>() == 0
}

/// Decides everything again on `ledger`, and consumes it.
///
/// `postings`: lost ones of transactions. All balances that they touch are one group.
/// `pending`: payments to Spot that the coordinator would ask for. `statuses`: account statuses
/// that were set after the cut.
pub fn rehearse(
    ledger: &mut Ledger,
    (lacking, postings): (Vec<Lacking>, &[LostPosting]),
    pending: &[(Intent, Op)],
    statuses: &[LostStatus],
    (catalog, repeated): (&Catalog, Repeated),
) -> Rehearsed {
    let credits = repeated == Repeated::Credits;
    let mut rehearsed = Rehearsed::default();
    let mut stage = Stage { ledger };
    let debits = lacking.iter().filter(|lacking| credits && !lacking.op.pays());
    let debits: BTreeSet<ReqId> = debits.map(|lacking| lacking.intent.req_id).collect();
    let (mut returned, lacking): (Vec<_>, Vec<_>) =
        lacking.into_iter().partition(|lacking| debits.contains(&lacking.intent.req_id));
    returned.sort_by_key(|lacking| (lacking.intent.order_number, lacking.op));
    let mut groups = BTreeMap::<(UserId, AssetId), Vec<Lacking>>::new();
    for lacking in lacking {
        let account = (lacking.intent.user, lacking.intent.asset);
        groups.entry(account).or_default().push(lacking);
    }
    let joint: BTreeSet<_> = postings.iter().flat_map(|lost| &lost.accounts).copied().collect();
    // A start registers all assets; a rehearsal only those that it uses.
    let asked = pending.iter().filter(|_| credits).map(|(intent, _)| intent.asset);
    let asked = asked.chain(returned.iter().map(|lacking| lacking.intent.asset));
    let assets: BTreeSet<AssetId> =
        groups.keys().chain(&joint).map(|(_, asset)| *asset).chain(asked).collect();
    let learn = assets.iter().filter_map(|asset| catalog.by_id(*asset));
    let learn = learn.map(|asset| PlanStep::Learn(asset.clone()));
    let concerned: BTreeSet<UserId> = groups.keys().chain(&joint).map(|(user, _)| *user).collect();
    // An account that was active for a while must be active when the decisions of that time are
    // repeated.
    let open = statuses.iter().filter(|lost| lost.was_active);
    let open = open.filter(|lost| credits || concerned.contains(&lost.user));
    let open = open.map(|lost| PlanStep::SetStatus {
        user: lost.user,
        status: AccountStatus::Active,
        why: "as it was for a while".to_owned(),
    });
    rehearsed.steps.extend(learn.chain(open).filter(|step| stage.carries_out(step)));
    let mut items = BTreeMap::<BTreeSet<(UserId, AssetId)>, Vec<Item<'_>>>::new();
    for (account, group) in &groups {
        let key = if joint.contains(account) { joint.clone() } else { BTreeSet::from([*account]) };
        items.entry(key).or_default().extend(group.iter().map(Item::Transfer));
    }
    if !postings.is_empty() {
        items.entry(joint).or_default().extend(postings.iter().map(Item::Posting));
    }
    for (accounts, mut group) in items {
        group.sort_by_key(Item::place);
        let pending =
            pending.iter().filter(|(intent, _)| accounts.contains(&(intent.user, intent.asset)));
        match stage.group(&group, pending) {
            Ok(steps) => rehearsed.steps.extend(steps),
            Err(left) => rehearsed.left.extend(left),
        }
    }
    // UBSCore may have paid these, and a venue may have used the money. The service cannot ask
    // while it is halted.
    for (intent, op) in pending.iter().filter(|_| credits) {
        let step = PlanStep::Ask { intent: intent.clone(), op: *op };
        if stage.decides(&step).is_ok() {
            rehearsed.steps.push(step);
        }
    }
    for unit in returned.chunk_by(|one, next| one.intent.req_id == next.intent.req_id) {
        rehearsed.steps.extend(stage.returns(unit, pending));
    }
    let set = statuses.iter().filter(|_| !credits).map(|lost| PlanStep::SetStatus {
        user: lost.user,
        status: lost.status,
        why: format!("as {} did at {}", lost.actor, lost.at),
    });
    rehearsed.steps.extend(set.filter(|step| stage.carries_out(step)));
    let is_left = |step: &PlanStep| {
        step.transfer().is_some_and(|intent| rehearsed.left.contains_key(&intent.req_id))
    };
    assert!(!rehearsed.steps.iter().any(is_left), "a transfer is decided and left");
    rehearsed
}

/// The ledger of a rehearsal.
struct Stage<'a> {
    ledger: &'a mut Ledger,
}

impl Stage<'_> {
    /// Carries out a step that changes something. Returns whether it did.
    fn carries_out(&mut self, step: &PlanStep) -> bool {
        let Step::Append(entry) = self.ledger.step(&step.command()) else { return false };
        self.apply(step, &entry);
        true
    }

    /// Applies the entry of a step, which must be answered as the step expects.
    fn apply(&mut self, step: &PlanStep, entry: &Entry) {
        let sequence = self.ledger.sequence() + 1;
        let answer = self.ledger.apply(entry, sequence, 0);
        assert!(step.is_answer(&answer), "{step}: {answer:?}");
        assert_eq!(self.ledger.sequence(), sequence, "{step}: one record a step");
    }

    /// Carries out a step if its decision comes out the same. Otherwise changes nothing and returns
    /// the reason.
    fn decides(&mut self, step: &PlanStep) -> Result<(), Unproven> {
        if let PlanStep::Post { op, posting } = step {
            return repost(self.ledger, *op, posting);
        }
        match self.ledger.step(&step.command()) {
            Step::Append(entry) => {
                let Entry::Order { decision, .. } = entry else {
                    unreachable!("{step} is no order")
                };
                let wanted = match step {
                    PlanStep::Decide { decision, .. } => *decision,
                    _ => Decision::Success,
                };
                if decision != wanted {
                    return Err(refusal(decision));
                }
                self.apply(step, &entry);
                Ok(())
            }
            Step::Known(_) => Err(Unproven::Decided),
            Step::Violation(why) => Err(Unproven::Violation(why)),
            Step::Full(_) => Err(Unproven::Full),
            Step::Forgotten => Err(Unproven::Forgotten),
        }
    }

    /// Carries out a WITHDRAW and its REFUND, or neither if its money is not there, which a venue
    /// may bring. Only room can part them; another run then decides the REFUND.
    fn returns(&mut self, unit: &[Lacking], pending: &[(Intent, Op)]) -> Vec<PlanStep> {
        let asked = pending.iter().find(|(intent, _)| intent.req_id == unit[0].intent.req_id);
        assert!(is_returned(unit, asked.map(|(_, op)| *op)), "only credits are repeated: {unit:?}");
        let ask = asked.map(|(intent, op)| PlanStep::Ask { intent: intent.clone(), op: *op });
        let steps = unit.iter().map(Lacking::step).chain(ask);
        steps.take_while(|step| self.decides(step).is_ok()).collect()
    }

    /// Carries out all steps of one balance. If one is refused, returns the reasons; the rest of
    /// the balance is then left as well.
    fn group<'a>(
        &mut self,
        group: &[Item<'_>],
        mut pending: impl Iterator<Item = &'a (Intent, Op)>,
    ) -> Result<Vec<PlanStep>, Vec<(ReqId, Unproven)>> {
        let (mut steps, mut decided) = (Vec::new(), 0);
        let mut waiting: Vec<&Item<'_>> = group.iter().collect();
        let mut refused = BTreeMap::new();
        loop {
            let before = waiting.len();
            // One operation may bring the money that another needs.
            waiting.retain(|item| {
                let piece = item.steps();
                match piece.iter().try_for_each(|step| self.decides(step)) {
                    Ok(()) => {
                        steps.extend(piece);
                        decided += 1;
                        false
                    }
                    Err(why) => {
                        refused.insert(item.name(), why);
                        true
                    }
                }
            });
            if waiting.is_empty() {
                assert_eq!(decided, group.len(), "each operation is decided once");
                return Ok(steps);
            }
            if waiting.len() < before {
                continue;
            }
            let Some((intent, op)) = pending.next() else { break };
            let step = PlanStep::Ask { intent: intent.clone(), op: *op };
            if self.decides(&step).is_ok() {
                steps.push(step);
            }
        }
        let stuck: BTreeSet<ReqId> = waiting.iter().map(|item| item.name()).collect();
        let why = |req_id: &ReqId| match stuck.contains(req_id) {
            true => refused[req_id],
            false => Unproven::SameBalance,
        };
        let names: BTreeSet<ReqId> = group.iter().map(Item::name).collect();
        Err(names.into_iter().map(|req_id| (req_id, why(&req_id))).collect())
    }
}

/// [`Stage::decides`] of a posting by name.
pub(super) fn repost(ledger: &mut Ledger, op: Op, posting: &NamedPosting) -> Result<(), Unproven> {
    let (mut named, mut parts) = (Named::new(op, posting), Breakdown::default());
    match ledger.decide_named(&mut named, &mut parts) {
        NamedStep::Append if named.decision == Decision::Success => {
            ledger.apply_named(&named, &parts, ledger.sequence() + 1, 0);
            Ok(())
        }
        NamedStep::Append => Err(refusal(named.decision)),
        NamedStep::Known(_) => Err(Unproven::Decided),
        NamedStep::Violation(why) => Err(Unproven::Violation(why)),
        NamedStep::Full(_) => Err(Unproven::Full),
        NamedStep::Forgotten => Err(Unproven::Forgotten),
    }
}

/// Why the decision does not come out the same.
fn refusal(decision: Decision) -> Unproven {
    match decision {
        Decision::Success => Unproven::WouldSucceed,
        Decision::Refused(Code::InsufficientBalance) => Unproven::Insufficient,
        Decision::Refused(Code::AccountFrozen | Code::AccountDisabled) => Unproven::Status,
        Decision::Refused(_) => Unproven::Refused,
    }
}

/// The payment to Spot that the coordinator would ask UBSCore for.
pub fn pending(transfer: &Transfer) -> Option<(Intent, Op)> {
    let asked = transfer.state.asks(transfer.intent.direction, Participant::Spot);
    asked.filter(|op| op.pays()).map(|op| (transfer.intent.clone(), op))
}

/// The recorded outcome of an operation in a ledger.
fn recorded(ledger: &Ledger, req_id: ReqId, op: Op) -> Option<Recorded> {
    match ledger.step(&Command::Query { req_id: req_id.number(), op }) {
        Step::Known(Answer::Query(recorded)) => recorded,
        other => unreachable!("{other:?} answers no query"),
    }
}

#[cfg(test)]
mod tests {
    use engine::places::Places;
    use jiff::Timestamp;

    use super::*;
    use domain::amount::Amount;
    use domain::asset::AssetStatus;
    use domain::transfer::{Cid, Direction, State};

    const USDT: AssetId = AssetId(3);
    const CODE: Code = Code::InsufficientBalance;

    fn amount(units: u64) -> Amount {
        Amount::new(units).expect("not zero")
    }

    fn intent(number: u64, direction: Direction, units: u64) -> Intent {
        Intent {
            req_id: ReqId::new(number.into()).expect("not zero"),
            cid: Cid::new("cid"),
            user: UserId::new(7).expect("a user"),
            asset: USDT,
            amount: amount(units),
            direction,
            order_number: number,
        }
    }

    fn transfer(intent: Intent, state: State) -> Transfer {
        let transfer = Transfer::new(intent, String::new(), state, Timestamp::UNIX_EPOCH);
        Transfer { code: Some(CODE), log_sequence: Some(9), ..transfer }
    }

    fn catalog() -> Catalog {
        let (status, transfer_enabled) = (AssetStatus::Active, true);
        let (transfer_min, transfer_max) = (amount(1), amount(u64::MAX));
        let (id, symbol, precision) = (USDT, "USDT".to_owned(), 8);
        let asset =
            Asset { id, symbol, precision, status, transfer_enabled, transfer_min, transfer_max };
        Catalog::new([asset])
    }

    fn ledger() -> Ledger {
        Ledger::new(Places::of_transfers(10, 100))
    }

    fn wanted(
        number: u64,
        direction: Direction,
        units: u64,
        state: State,
        sequence: Sequence,
    ) -> Vec<Lacking> {
        let transfer = transfer(intent(number, direction, units), state);
        let proven = proven(&transfer).expect("a code is given");
        let lacking =
            |(op, decision)| Lacking { intent: transfer.intent.clone(), op, decision, sequence };
        proven.into_iter().map(lacking).collect()
    }

    /// Goal: the proven decisions of Spot are exactly those that the audit asks for. Method: every
    /// state in both directions. With the proven decisions, and those of Funding, the state fits;
    /// without any one of them it does not.
    #[test]
    fn what_a_state_proves_is_what_the_audit_wants_of_it() {
        use Decision::{Refused, Success};
        for direction in Direction::ALL {
            for state in State::ALL {
                let proven = proven(&transfer(intent(1, direction, 5), state)).expect("a code");
                // Written once more, so that an error in the table of claims shows here.
                let all = match state {
                    State::Init | State::SourcePending => vec![],
                    State::SourceDone | State::TargetPending => vec![(Op::Withdraw, Success)],
                    State::Committed => vec![(Op::Withdraw, Success), (Op::Deposit, Success)],
                    State::Failed => vec![(Op::Withdraw, Refused(CODE))],
                    State::Compensating => {
                        vec![(Op::Withdraw, Success), (Op::Deposit, Refused(CODE))]
                    }
                    State::RolledBack => vec![
                        (Op::Withdraw, Success),
                        (Op::Deposit, Refused(CODE)),
                        (Op::Refund, Success),
                    ],
                };
                let on_spot = all.iter().filter(|(op, _)| direction.is_on_spot(*op));
                assert!(on_spot.clone().eq(&proven), "{direction:?} {state:?}: {proven:?}");
                let fits = |without: Option<Op>| {
                    let seen = |op: Op| {
                        let decided =
                            all.iter().find(|(there, _)| *there == op && without != Some(op));
                        Seen::in_snapshot(decided.map(|(_, decision)| *decision))
                    };
                    let operations = Operations::of(seen);
                    !matches!(
                        fit(Some(state), direction, amount(5), operations),
                        Fit::Broken { .. }
                    )
                };
                assert!(fits(None), "{direction:?} {state:?}");
                assert!(proven.iter().all(|(op, _)| !fits(Some(*op))), "{direction:?} {state:?}");
            }
        }
    }

    #[test]
    fn what_is_refused_without_a_reason_proves_nothing() {
        let mut refused = transfer(intent(1, Direction::SpotToFunding, 5), State::Failed);
        refused.code = None;
        proven(&refused).expect_err("there is no reason");
    }

    /// Goal: a rehearsal finds an order in which all decisions come out the same, or does nothing
    /// on that balance. Method: a WITHDRAW that needs a later DEPOSIT, one that only a pending
    /// DEPOSIT pays for, a refusal that would succeed, a refund, and then a WITHDRAW without money.
    #[test]
    fn a_rehearsal_is_all_of_a_balance_or_nothing() {
        use Direction::{FundingToSpot, SpotToFunding};
        let mut lacking = Vec::new();
        lacking.extend(wanted(1, SpotToFunding, 60, State::Committed, 4));
        lacking.extend(wanted(2, FundingToSpot, 50, State::Committed, 5));
        lacking.extend(wanted(3, SpotToFunding, 1, State::Failed, 6));
        lacking.extend(wanted(4, SpotToFunding, 9, State::RolledBack, 7));
        let pays = (intent(5, FundingToSpot, 30), Op::Deposit);
        let pending = std::slice::from_ref(&pays);
        let mut rehearsed = ledger();
        let Rehearsed { steps, left } = rehearse(
            &mut rehearsed,
            (lacking.clone(), &[]),
            pending,
            &[],
            (&catalog(), Repeated::All),
        );
        assert_eq!(left, BTreeMap::new());
        assert_eq!(rehearsed.balances(), [(7, USDT.0, 20)]);
        assert_eq!(steps.len(), 7, "{steps:?}");
        assert!(steps.contains(&PlanStep::Ask { intent: pays.0.clone(), op: Op::Deposit }));
        // The same steps, one after the other.
        let mut fresh = ledger();
        for step in &steps {
            let Step::Append(entry) = fresh.step(&step.command()) else { panic!("{step}") };
            let sequence = fresh.sequence() + 1;
            assert!(step.is_answer(&fresh.apply(&entry, sequence, 0)), "{step}");
        }
        assert_eq!(fresh.balances(), rehearsed.balances());

        lacking.extend(wanted(6, SpotToFunding, 21, State::Committed, 8));
        let Rehearsed { steps, left } =
            rehearse(&mut ledger(), (lacking, &[]), pending, &[], (&catalog(), Repeated::All));
        assert!(steps.iter().all(|step| matches!(step, PlanStep::Learn(_))), "{steps:?}");
        assert_eq!(left.len(), 5);
        assert!(left.values().any(|why| *why == Unproven::Insufficient), "{left:?}");
    }

    /// Goal: in front of the venues everything that pays is decided, and nothing that takes.
    /// Method: of each end one transfer; a payment under way, and a status that was in force for a
    /// while.
    #[test]
    fn only_credits_are_repeated_in_front_of_the_venues() {
        use Direction::{FundingToSpot, SpotToFunding};
        let refund = wanted(4, SpotToFunding, 9, State::RolledBack, 7);
        for (lacking, want) in [
            (wanted(1, SpotToFunding, 60, State::Committed, 4), false),
            (wanted(2, FundingToSpot, 50, State::Committed, 5), true),
            (wanted(3, SpotToFunding, 1, State::Failed, 6), false),
            (refund.clone(), true),
            (refund[..1].to_vec(), false),
            // Its WITHDRAW was not lost.
            (refund[1..].to_vec(), true),
            (wanted(5, FundingToSpot, 7, State::RolledBack, 8), false),
        ] {
            assert_eq!(Repeated::Credits.takes(&lacking, None), want, "{lacking:?}");
            assert!(Repeated::All.takes(&lacking, None));
        }
        let mut ledger = ledger();
        let active = LostStatus {
            user: UserId::new(7).expect("a user"),
            status: AccountStatus::Frozen,
            actor: "admin/1".to_owned(),
            at: Timestamp::UNIX_EPOCH,
            was_active: true,
        };
        let pays = (intent(6, FundingToSpot, 30), Op::Deposit);
        let credits = wanted(2, FundingToSpot, 50, State::Committed, 5);
        let again = (&catalog(), Repeated::Credits);
        let rehearsed = rehearse(
            &mut ledger,
            (credits, &[]),
            std::slice::from_ref(&pays),
            std::slice::from_ref(&active),
            again,
        );
        assert_eq!(rehearsed.left, BTreeMap::new());
        assert_eq!(ledger.balances(), [(7, USDT.0, 80)]);
        let froze = |step: &PlanStep| {
            matches!(step, PlanStep::SetStatus { status: AccountStatus::Frozen, .. })
        };
        assert!(!rehearsed.steps.iter().any(froze), "{:?}", rehearsed.steps);
        // Once more there is nothing to do.
        let pending = std::slice::from_ref(&pays);
        let none = rehearse(&mut ledger, (Vec::new(), &[]), pending, &[active], again);
        assert_eq!((none.steps, none.left), (Vec::new(), BTreeMap::new()));
    }

    /// Goal: money of a withdrawal that came back is there for a venue that has used it again.
    /// Method: the REFUND is proven, or pending; then a RESERVE of all, and the debits. A pair
    /// whose money is not there waits.
    #[test]
    fn a_withdrawal_that_came_back_is_repeated_in_front_of_the_venues() {
        use Direction::{FundingToSpot, SpotToFunding};
        let (catalog, credits) = (catalog(), Repeated::Credits);
        for state in [State::RolledBack, State::Compensating] {
            let pair = wanted(2, SpotToFunding, 60, state, 5);
            let pending: Vec<_> =
                pending(&transfer(pair[0].intent.clone(), state)).into_iter().collect();
            assert!(credits.takes(&pair, pending.first().cloned()), "{pair:?}");
            let mut lacking = wanted(1, FundingToSpot, 50, State::Committed, 4);
            lacking.extend(pair.clone());
            let mut ledger = ledger();
            let short = rehearse(&mut ledger, (lacking, &[]), &pending, &[], (&catalog, credits));
            assert_eq!((ledger.balances(), short.left), (vec![(7, USDT.0, 50)], BTreeMap::new()));
            let lacking = wanted(3, FundingToSpot, 50, State::Committed, 6);
            let more = rehearse(&mut ledger, (lacking, &[]), &[], &[], (&catalog, credits));
            assert_eq!(more.steps.len(), 1, "{:?}", more.steps);
            let done = rehearse(&mut ledger, (pair, &[]), &pending, &[], (&catalog, credits));
            assert_eq!((done.steps.len(), done.left), (2, BTreeMap::new()), "{:?}", done.steps);
            assert_eq!(ledger.balances(), [(7, USDT.0, 100)]);
        }
    }
}
