//! Transactions with legs from or to the outside of both stores: PostgreSQL has lost the external
//! operations of these, and the log proves them.
//!
//! Funding settles a hold behind the decision alone, so a record of such an operation proves that
//! its transaction was decided. If PostgreSQL has the transaction, and its legs ask for just these
//! operations, the repair settles the hold with them, and an undecided row becomes COMMITTED. The
//! service books the rest, and finds the hold settled. In any other case the operation is written
//! again alone, as one of an operator.

use std::collections::BTreeMap;

use domain::account::UserId;
use domain::amount::Amount;
use domain::asset::AssetId;
use domain::hold::{HoldKey, HoldOrder};
use domain::transfer::{Decision, ExternalOperation, Op, ReqId};

use super::error::Error;
use super::externals::ExternalRecord;
use super::transaction_repair::{TransactionsPlan, tried, untried};
use crate::postgres::audit_reader::AuditReader;
use crate::postgres::repair_writer::external::{ExternalRepair, Way};
use crate::postgres::repair_writer::transaction::{Bring, TransactionRepair};
use crate::transaction::{TransactionRow, TransactionState};
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
    let names: Vec<ReqId> = externals.iter().filter_map(lost).collect();
    let rows = reader.transactions(names).await?;
    for (transaction, row) in &rows {
        let asked = asked(row);
        let found = records.get(transaction).map(Vec::as_slice).unwrap_or_default();
        let is_asked = |(operation, _): &(ExternalOperation, _)| {
            let want = asked.get(operation.idem_key.as_str()).map(|(body, _)| *body);
            operation.decision == Decision::Success && want == Some(body(operation))
        };
        if !found.iter().all(is_asked) || !decides(row, found, transactions, reader).await? {
            continue;
        }
        let whole = |order: &HoldOrder| {
            let of_hold = asked.iter().filter(|(_, (_, of))| of.key == order.key);
            let mut keys = of_hold.map(|(key, _)| key);
            keys.all(|key| found.iter().any(|(there, _)| there.idem_key.as_str() == key))
        };
        for repair in externals.iter_mut().filter(|repair| lost(repair) == Some(*transaction)) {
            let order = asked.get(repair.operation.idem_key.as_str()).map(|(_, order)| order);
            repair.hold = order.filter(|order| whole(order)).cloned().map(Box::new);
        }
    }
    Ok(())
}

/// Whether a transaction is committed behind the repair. An undecided one that the records prove
/// gets a repair of its own, unless a SETTLE of Spot proves it already.
async fn decides(
    row: &TransactionRow,
    found: &[(ExternalOperation, &ExternalRecord)],
    transactions: &mut TransactionsPlan,
    reader: &mut AuditReader,
) -> Result<bool, Error> {
    match row.state {
        TransactionState::Committed | TransactionState::Done => return Ok(true),
        TransactionState::Open | TransactionState::Deciding => {}
        TransactionState::Aborted | TransactionState::Cancelled => return Ok(false),
    }
    if let Some(bring) = transactions.bring_of(row.id) {
        return Ok(bring == Bring::Commit);
    }
    let tried = tried(row, reader).await?;
    let is_tried = |round: u8| tried.contains(&round) || rounds::is_used_up(row, round);
    let Some((_, newest)) = found.last() else { return Ok(false) };
    if !untried(row).all(|branch| is_tried(branch.round)) {
        return Ok(false);
    }
    transactions.repairs.push(TransactionRepair {
        transaction: row.id,
        order_number: row.order_number,
        tx_id: row.name.tx_id.as_str().to_owned(),
        bring: Bring::Confirm,
        rounds: row.rounds,
        round: 0,
        legs: Vec::new(),
        refused: Vec::new(),
        tried: tried.into_iter().map(i16::from).collect(),
        log_sequence: newest.sequence,
        time_ns: newest.time_ns,
        looks: Vec::new(),
    });
    transactions.repairs.sort_by_key(|repair| repair.order_number);
    Ok(true)
}
