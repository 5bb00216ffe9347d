//! Transactions with legs from or to the outside of both stores: PostgreSQL has lost the external
//! operations of these, and the log proves them.
//!
//! Funding settles a hold behind the decision alone, so a record of such an operation proves that
//! its transaction was decided. If PostgreSQL has the transaction, and its legs ask for just these
//! operations, the repair settles the hold with them, and an undecided row becomes COMMITTED. The
//! service books the rest, and finds the hold settled. In any other case the operation is written
//! again alone, as one of an operator, and a sentence names it for people.

use std::collections::{BTreeMap, BTreeSet};

use domain::account::UserId;
use domain::amount::Amount;
use domain::asset::AssetId;
use domain::hold::{HoldKey, HoldOrder};
use domain::transfer::{Decision, ExternalOperation, Op, Participant, ReqId};

use super::error::Error;
use super::externals::ExternalRecord;
use super::transaction_repair::{TransactionsPlan, tried, untried};
use crate::postgres::audit_reader::AuditReader;
use crate::postgres::repair_writer::external::{ExternalRepair, Way};
use crate::postgres::repair_writer::transaction::{Bring, TransactionRepair};
use crate::transaction::{Branch, BranchState, Decider, Party, TransactionRow, TransactionState};
use crate::transactions::rounds;

/// The bytes of a transaction's name in the key of a hold.
const NAME_BYTES: usize = 26;

/// Operation, user, asset and amount.
type Body = (Op, UserId, AssetId, Amount);

fn body(operation: &ExternalOperation) -> Body {
    (operation.op, operation.user, operation.asset, operation.amount)
}

/// The transaction with an external operation of this key.
fn transaction_of(idem_key: &str) -> Option<ReqId> {
    let key = HoldKey::of_external(idem_key)?;
    ReqId::parse(key.as_str().get(..NAME_BYTES)?)
}

/// The external operations that booking a transaction makes, by key, each with its hold.
fn asked(row: &TransactionRow) -> BTreeMap<String, (Body, HoldOrder)> {
    let mut asked = BTreeMap::new();
    for word in rounds::settle(row) {
        let HoldOrder { ref key, user, asset, act, .. } = word.order;
        let (deposited, withdrawn) = act.outside();
        let both = [
            (key.deposit(), Op::ExtDeposit, deposited),
            (key.withdrawal(), Op::ExtWithdraw, withdrawn),
        ];
        for (idem_key, op, units) in both {
            if let Some(amount) = Amount::new(units) {
                asked.insert(idem_key, ((op, user, asset, amount), word.order.clone()));
            }
        }
    }
    asked
}

/// An undecided row as its commit leaves it: without the rounds that Spot has refused, and those
/// that Funding has not tried.
fn as_committed(row: &TransactionRow, refused: &[i16], tried: &[i16]) -> TransactionRow {
    let mut left = row.clone();
    let is_lost = |branch: &Branch| {
        let round = i16::from(branch.round);
        let is_refused = refused.contains(&round) && matches!(branch.party, Party::Store(_));
        let untried = branch.party == Party::Store(Participant::Funding) && !tried.contains(&round);
        branch.state == BranchState::Trying && (is_refused || untried)
    };
    for branch in left.branches.iter_mut().filter(|branch| is_lost(branch)) {
        branch.state = BranchState::Refused;
    }
    left
}

/// The operations whose holds the repair settles, by key. `left`: the row as the repair leaves it;
/// `found`: all operations of it that the log has. A hold is settled if the log has just the
/// operations that booking it makes.
fn bound(left: &TransactionRow, found: &[ExternalOperation]) -> BTreeMap<String, HoldOrder> {
    let mut asked = asked(left);
    let mut spoilt: Vec<HoldKey> = Vec::new();
    for operation in found {
        let key = operation.idem_key.as_str();
        let is_asked = asked.get(key).is_some_and(|(want, _)| *want == body(operation));
        if !is_asked || operation.decision != Decision::Success {
            spoilt.extend(HoldKey::of_external(key));
        }
    }
    let is_found = |key: &String| found.iter().any(|there| there.idem_key.as_str() == key);
    let lacking = asked.iter().filter(|(key, _)| !is_found(key));
    spoilt.extend(lacking.map(|(_, (_, order))| order.key.clone()));
    asked.retain(|_, (_, order)| !spoilt.contains(&order.key));
    asked.into_iter().map(|(key, (_, order))| (key, order)).collect()
}

/// Adds the holds and the decisions to the repairs of external operations, where the log and the
/// rows prove them. `logged`: every record of an external operation.
///
/// # Errors
/// [`Error`]: PostgreSQL cannot be read.
pub(super) async fn plan(
    externals: &mut [ExternalRepair],
    transactions: &mut TransactionsPlan,
    logged: &BTreeMap<u64, ExternalRecord>,
    reader: &mut AuditReader,
) -> Result<(), Error> {
    let mut records = BTreeMap::<ReqId, Vec<(ExternalOperation, &ExternalRecord)>>::new();
    for record in logged.values() {
        let Some(operation) = record.external.operation() else { continue };
        if let Some(transaction) = transaction_of(operation.idem_key.as_str()) {
            records.entry(transaction).or_default().push((operation, record));
        }
    }
    let lost = |repair: &ExternalRepair| {
        (repair.way == Way::Carry).then(|| transaction_of(repair.operation.idem_key.as_str()))?
    };
    let nothing = |alone| (BTreeMap::new(), BTreeMap::new(), alone);
    let names: Vec<ReqId> = externals.iter().filter_map(lost).collect();
    let rows = reader.transactions(names.iter().copied()).await?;
    for transaction in names.into_iter().collect::<BTreeSet<_>>() {
        let found = records.get(&transaction).map(Vec::as_slice).unwrap_or_default();
        let operations: Vec<_> = found.iter().map(|(operation, _)| operation.clone()).collect();
        let bring = transactions.repair_of(transaction).map(|repair| repair.bring);
        let (holds, asked, alone) = match rows.get(&transaction) {
            // It is written again, with sentences of its own.
            None if bring.is_some() => nothing(None),
            None => nothing(Some(LOST)),
            Some(row) => match left_by(row, found, transactions, reader).await? {
                None if row.state.verdict().is_none() => nothing(Some(UNDECIDED)),
                None => nothing(Some(ENDED)),
                Some(left) => (bound(&left, &operations), asked(&left), Some(OTHER)),
            },
        };
        for repair in externals.iter_mut().filter(|repair| lost(repair) == Some(transaction)) {
            repair.hold = holds.get(repair.operation.idem_key.as_str()).cloned().map(Box::new);
            let alone = alone.filter(|_| repair.hold.is_none());
            let key = repair.operation.idem_key.as_str();
            // Of one that is asked for, the service books the rest.
            let is_asked = asked.get(key).is_some_and(|(want, _)| *want == body(&repair.operation));
            let alone = alone.filter(|_| !is_asked);
            repair.look = alone.map(|why| format!("transaction {transaction} {why}"));
        }
    }
    Ok(())
}

/// Why an operation is written again alone, and the next step of people.
const LOST: &str = "is lost; its service must not repeat it under another id, and a repeat under \
     the old tx_id is a NEW transaction";
const UNDECIDED: &str = "is undecided, and the log does not prove its commit: Funding has booked this \
     part of it. If it is aborted later, book the contrary by hand";
const ENDED: &str = "has not been committed here, and Funding has booked this part of it: ask its \
     service, and book the rest or the contrary by hand";
const OTHER: &str = "has no such operation in the rounds that are left: compare its \
     hold with the operation, and book the rest by hand";

/// The row of a transaction as the repair leaves it, if it is committed behind it. An undecided one
/// that the records prove gets a repair of its own, unless a SETTLE of Spot proves it already.
async fn left_by(
    row: &TransactionRow,
    found: &[(ExternalOperation, &ExternalRecord)],
    transactions: &mut TransactionsPlan,
    reader: &mut AuditReader,
) -> Result<Option<TransactionRow>, Error> {
    match row.state {
        TransactionState::Committed | TransactionState::Done => return Ok(Some(row.clone())),
        TransactionState::Open | TransactionState::Deciding => {}
        TransactionState::Aborted | TransactionState::Cancelled => return Ok(None),
    }
    if let Some(repair) = transactions.repair_of(row.id) {
        let is_commit = repair.bring == Bring::Commit;
        return Ok(is_commit.then(|| as_committed(row, &repair.refused, &repair.tried)));
    }
    let asked = asked(row);
    let is_asked = |(operation, _): &(ExternalOperation, _)| {
        let want = asked.get(operation.idem_key.as_str()).map(|(body, _)| *body);
        operation.decision == Decision::Success && want == Some(body(operation))
    };
    if !found.iter().all(is_asked) {
        return Ok(None);
    }
    let tried = tried(row, reader).await?;
    let is_tried = |round: u8| tried.contains(&round) || rounds::is_used_up(row, round);
    let Some((_, newest)) = found.last() else { return Ok(None) };
    if !untried(row).all(|branch| is_tried(branch.round)) {
        return Ok(None);
    }
    let tried: Vec<i16> = tried.into_iter().map(i16::from).collect();
    transactions.repairs.push(TransactionRepair {
        transaction: row.id,
        order_number: row.order_number,
        tx_id: row.name.tx_id.as_str().to_owned(),
        bring: Bring::Confirm,
        rounds: row.rounds,
        round: 0,
        legs: Vec::new(),
        refused: Vec::new(),
        tried: tried.clone(),
        log_sequence: newest.sequence,
        time_ns: newest.time_ns,
        looks: later(row).into_iter().collect(),
    });
    transactions.repairs.sort_by_key(|repair| repair.order_number);
    Ok(Some(as_committed(row, &[], &tried)))
}

/// The sentence about rounds that no record of Spot would show.
fn later(row: &TransactionRow) -> Option<String> {
    (row.decider == Decider::Caller).then(|| {
        format!(
            "Funding has booked it, and its caller decided: PostgreSQL may have lost rounds behind \
             round {}. Ask its service for them, and book their legs by hand",
            row.rounds
        )
    })
}

#[cfg(test)]
mod tests {
    use domain::hold::HoldAct;
    use domain::transfer::Cid;

    use super::*;
    use crate::transaction::{LegPlace, TransactionLeg, TransactionName};

    const FUNDING: Participant = Participant::Funding;

    fn user(number: u64) -> UserId {
        UserId::new(number).expect("a user")
    }

    /// A payout of a user.
    fn payout(number: u64, amount: u64) -> TransactionLeg {
        let from = LegPlace::Available { store: FUNDING, user: user(number) };
        TransactionLeg { from, to: LegPlace::Outside, asset: AssetId(3), amount }
    }

    /// A transaction that its caller has not decided, with branches in the order of rounds.
    fn row(branches: &[(Participant, u8, BranchState, &[TransactionLeg])]) -> TransactionRow {
        let branch =
            |(store, round, state, legs): &(Participant, u8, BranchState, &[TransactionLeg])| {
                Branch {
                    party: Party::Store(*store),
                    round: *round,
                    state: *state,
                    last: false,
                    legs: legs.to_vec(),
                    payload: serde_json::Value::Null,
                    code: None,
                    leg: None,
                    participant_code: None,
                    log_sequence: None,
                }
            };
        let at = jiff::Timestamp::UNIX_EPOCH;
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
            expires_at: at,
            rounds: branches.iter().map(|(_, round, ..)| *round).max().expect("a branch"),
            code: None,
            detail: None,
            sealed: false,
            stores_ended: false,
            branches: branches.iter().map(branch).collect(),
            history: Vec::new(),
            created_at: at,
            updated_at: at,
        }
    }

    /// The record of a payout.
    fn paid(row: &TransactionRow, number: u64, amount: u64) -> ExternalOperation {
        let key = format!("tx/{}:{number}:3/out", row.id);
        ExternalOperation {
            op: Op::ExtWithdraw,
            idem_key: Cid::of_operation(&key).expect("a key"),
            user: user(number),
            asset: AssetId(3),
            amount: Amount::new(amount).expect("not zero"),
            order_number: 9,
            decision: Decision::Success,
            balance_after: 0,
        }
    }

    /// GTX-013, RCV-005. Goal: no hold is settled for a round that the repair refuses, and those of
    /// the other rounds are. Method: one round that Funding has not tried, as PostgreSQL has it;
    /// then a second round that Spot has refused; each with the records of its end.
    #[test]
    fn a_hold_of_a_round_that_is_refused_is_not_settled() {
        use BranchState::{Tried, Trying};
        let (spot, legs) = (Participant::Spot, [payout(1, 50)]);
        let one = row(&[(FUNDING, 1, Trying, &legs), (spot, 1, Trying, &[])]);
        let found = [paid(&one, 1, 50)];
        assert_eq!(bound(&as_committed(&one, &[], &[]), &found), BTreeMap::new());
        let keys = |left: &TransactionRow, found: &[ExternalOperation]| -> Vec<String> {
            bound(left, found).into_keys().collect()
        };
        let key = |number: u64| format!("tx/{}:{number}:3/out", one.id);
        assert_eq!(keys(&as_committed(&one, &[], &[1]), &found), [key(1)]);
        let more = [payout(1, 20), payout(2, 8)];
        let two = row(&[
            (FUNDING, 1, Tried, &legs),
            (spot, 1, Tried, &[]),
            (FUNDING, 2, Trying, &more),
            (spot, 2, Trying, &[]),
        ]);
        let left = as_committed(&two, &[2], &[2]);
        assert_eq!(keys(&left, &found), [key(1)], "round 2 asks for nothing");
        let HoldAct::Settle { withdrawn, .. } = bound(&left, &found)[&key(1)].act else {
            panic!("a Settle")
        };
        assert_eq!(withdrawn, 50);
        let both = [paid(&two, 1, 70), paid(&two, 2, 8)];
        assert_eq!(keys(&left, &both), [""; 0], "the log has booked round 2");
        assert_eq!(keys(&as_committed(&two, &[], &[2]), &both), [key(1), key(2)]);
        assert!(later(&two).is_some_and(|look| look.contains("behind round 2")));
    }
}
