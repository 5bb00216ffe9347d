//! Rows of `transactions_tb` and `transaction_branches`, read in one statement.

use jiff::Timestamp;
use tokio_postgres::Row;

use super::{UnfinishedPage, UnreadableRow};
use crate::postgres::Error;
use crate::postgres::columns;
use crate::telemetry;
use crate::transaction::{
    Branch, BranchState, Decider, Party, TransactionName, TransactionRow, TransactionState,
    read_legs,
};
use domain::transfer::{Cid, Participant};

/// The table in errors.
const TABLE: &str = "transactions_tb";
/// Where the columns of the branch begin.
const BRANCH_FROM: usize = 18;

/// A statement that reads transactions with their branches, a row for each branch, and one for a
/// transaction that has none. `chosen`: a select of rows of `transactions_tb`. `order`: `ASC` or
/// `DESC`, by order number.
pub(in crate::postgres) fn with_branches(chosen: &str, order: &str) -> String {
    format!(
        "SELECT t.transaction_id, t.order_number, t.owner, t.tx_id, t.state, t.decide, \
                t.decided_by, t.expires_at, t.rounds, t.code, t.detail, t.sealed, \
                t.history::text, t.created_at, t.updated_at, t.decided_at, t.finished_at, \
                t.stores_ended_at IS NOT NULL, \
                b.participant, b.round, b.state, b.last, b.legs::text, b.payload::text, b.code, \
                b.leg, b.participant_code, b.log_sequence \
           FROM ({chosen}) AS t LEFT JOIN transaction_branches b USING (transaction_id) \
          ORDER BY t.order_number {order}"
    )
}

/// Reads what [`with_branches`] has selected, in its order.
///
/// # Errors
/// [`Error`]: a row is not one that the service writes.
pub(in crate::postgres) fn transactions_from_rows(
    rows: &[Row],
) -> Result<Vec<TransactionRow>, Error> {
    grouped(rows)?.into_iter().map(|(_, rows)| one_from_rows(rows)).collect()
}

/// The same, with the transactions that cannot be read apart from the others.
///
/// # Errors
/// [`Error`]: a row has no order number.
pub(super) fn readable(rows: &[Row]) -> Result<UnfinishedPage, Error> {
    let mut page = UnfinishedPage::default();
    for (order_number, rows) in grouped(rows)? {
        match one_from_rows(rows) {
            Ok(row) => page.rows.push(row),
            Err(error) => {
                let row = &rows[0];
                let text = |column| row.try_get::<_, String>(column).unwrap_or_default();
                page.unreadable.push(UnreadableRow {
                    id: columns::req_id(row, 0).ok().flatten(),
                    order_number,
                    owner: text(2),
                    tx_id: text(3),
                    what: telemetry::chain(&error).to_string(),
                });
            }
        }
    }
    Ok(page)
}

/// The rows of each transaction, with its order number.
fn grouped(rows: &[Row]) -> Result<Vec<(u64, &[Row])>, Error> {
    let numbers: Vec<u64> =
        rows.iter().map(|row| columns::count(row, 1, TABLE)).collect::<Result<_, _>>()?;
    let mut from = 0;
    let groups = numbers.chunk_by(|one, next| one == next).map(|numbers| {
        let group = &rows[from..from + numbers.len()];
        from += numbers.len();
        (numbers[0], group)
    });
    Ok(groups.collect())
}

/// One transaction from all of its rows.
fn one_from_rows(rows: &[Row]) -> Result<TransactionRow, Error> {
    let mut transaction = transaction_from_row(&rows[0])?;
    for row in rows {
        if row.try_get::<_, Option<&str>>(BRANCH_FROM)?.is_some() {
            let branch = branch_from_row(row).map_err(|error| match error {
                Error::Row { table, what } => {
                    Error::Row { table, what: format!("{}: {what}", transaction.id) }
                }
                other => other,
            })?;
            transaction.branches.push(branch);
        }
    }
    transaction.branches.sort_by_cached_key(place);
    Ok(transaction)
}

/// The place of a branch: by round, FUNDING, SPOT, services by name, the last participant.
fn place(branch: &Branch) -> (u8, u8, String) {
    let rank = match branch.party {
        Party::Store(Participant::Funding) => 0,
        Party::Store(Participant::Spot) => 1,
        Party::Service(_) if !branch.last => 2,
        Party::Service(_) => 3,
    };
    (branch.round, rank, branch.party.name().to_owned())
}

fn transaction_from_row(row: &Row) -> Result<TransactionRow, Error> {
    let id = columns::req_id(row, 0)?;
    let name = id.map_or_else(|| "0".to_owned(), |id| id.to_string());
    let bad = |what: &str| Error::Row { table: TABLE, what: format!("{name}: {what}") };
    let history: &str = row.try_get(12)?;
    Ok(TransactionRow {
        id: id.ok_or_else(|| bad("transaction_id"))?,
        order_number: columns::count(row, 1, TABLE)?,
        name: TransactionName {
            owner: row.try_get(2)?,
            tx_id: Cid::new(row.try_get(3)?).ok_or_else(|| bad("tx_id"))?,
        },
        state: TransactionState::from_number(row.try_get(4)?).ok_or_else(|| bad("state"))?,
        decider: Decider::from_number(row.try_get(5)?).ok_or_else(|| bad("decide"))?,
        decided_by: row.try_get(6)?,
        expires_at: row.try_get(7)?,
        rounds: small(row, 8)?.ok_or_else(|| bad("rounds"))?,
        code: columns::code(row, 9, TABLE)?,
        detail: row.try_get(10)?,
        sealed: row.try_get(11)?,
        stores_ended: row.try_get(17)?,
        branches: Vec::new(),
        history: serde_json::from_str(history)
            .map_err(|error| bad(&format!("history: {error}")))?,
        created_at: row.try_get::<_, Timestamp>(13)?,
        updated_at: row.try_get::<_, Timestamp>(14)?,
    })
}

fn branch_from_row(row: &Row) -> Result<Branch, Error> {
    let table = "transaction_branches";
    let column = |place| BRANCH_FROM + place;
    let party = Party::from_name(row.try_get(column(0))?);
    let bad = |what: &str| Error::Row { table, what: format!("{}: {what}", party.name()) };
    let (legs, payload): (&str, &str) = (row.try_get(column(4))?, row.try_get(column(5))?);
    let log_sequence: Option<i64> = row.try_get(column(9))?;
    let log_sequence = log_sequence.map(u64::try_from).transpose();
    Ok(Branch {
        round: small(row, column(1))?.ok_or_else(|| bad("round"))?,
        state: BranchState::from_number(row.try_get(column(2))?).ok_or_else(|| bad("state"))?,
        last: row.try_get(column(3))?,
        legs: read_legs(&party, legs).map_err(|error| bad(&format!("legs: {error}")))?,
        payload: serde_json::from_str(payload)
            .map_err(|error| bad(&format!("payload: {error}")))?,
        code: columns::code(row, column(6), table)?,
        leg: small(row, column(7))?,
        participant_code: row.try_get(column(8))?,
        log_sequence: log_sequence.map_err(|_| bad("log_sequence"))?,
        party,
    })
}

/// A SMALLINT of a few values; `None`: it is NULL, or none of them.
fn small(row: &Row, column: usize) -> Result<Option<u8>, Error> {
    let number: Option<i16> = row.try_get(column)?;
    Ok(number.and_then(|number| u8::try_from(number).ok()))
}
