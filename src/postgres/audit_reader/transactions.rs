//! Transactions compared with the holds of Funding that they claim, and rows for a comparison with
//! the log.

use std::collections::BTreeMap;

use tokio_postgres::Client;
use tokio_postgres::types::ToSql;
use wal::Sequence;

use super::{AuditReader, Findings, SNAPSHOT, SWEEP_ROWS};
use crate::postgres::Error;
use crate::postgres::booked::{self, BookedPart, BookedSums};
use crate::postgres::columns::{self, Id, bigint};
use crate::postgres::transactions::rows::{transactions_from_rows, with_branches};
use crate::transaction::{BranchState, Party, TransactionRow, TransactionState};
use domain::asset::AssetId;
use domain::hold::{HoldAct, HoldOrder};
use domain::transfer::{Participant, ReqId};

/// Transactions read by one statement.
const ROWS_PER_READ: usize = 1_000;

/// The part of Spot in a transaction, as its row has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpotPart {
    /// The transaction.
    pub transaction: ReqId,
    /// Its position in the order of accepts.
    pub order_number: u64,
    /// Where the transaction stands.
    pub state: TransactionState,
    /// Round and state of each branch on Spot.
    pub branches: Vec<(u8, BranchState)>,
}

impl SpotPart {
    /// The part in a whole row.
    pub fn of(row: &TransactionRow) -> SpotPart {
        let party = Party::Store(Participant::Spot);
        let branches = row.branches.iter().filter(|branch| branch.party == party);
        SpotPart {
            transaction: row.id,
            order_number: row.order_number,
            state: row.state,
            branches: branches.map(|branch| (branch.round, branch.state)).collect(),
        }
    }
}

/// The transactions that the next round looks at again, beside the part of its sweep: those that
/// may have changed since this one.
#[derive(Clone, Debug, Default)]
pub(super) struct Recent {
    /// The highest order number so far; `None` at first: the sweep comes to all of them.
    last: Option<i64>,
    /// Unfinished ones.
    open: Vec<ReqId>,
}

impl AuditReader {
    /// The rows of these transactions.
    ///
    /// # Errors
    /// [`Error`]: PostgreSQL is away, or has a row that cannot be read.
    pub async fn transactions(
        &mut self,
        names: impl IntoIterator<Item = ReqId>,
    ) -> Result<BTreeMap<ReqId, TransactionRow>, Error> {
        let names: Vec<ReqId> = names.into_iter().collect();
        let mut found = BTreeMap::new();
        if names.is_empty() {
            return Ok(found);
        }
        let client = self.client().await?;
        let chosen = "SELECT * FROM transactions_tb WHERE transaction_id = ANY($1)";
        let named = with_branches(chosen, "ASC");
        for names in names.chunks(ROWS_PER_READ) {
            let rows = client.query(&named, &[&Id::all(names)]).await?;
            let rows = transactions_from_rows(&rows)?;
            found.extend(rows.into_iter().map(|row| (row.id, row)));
        }
        self.client = Some(client);
        Ok(found)
    }

    /// Whether Funding has carried out each of these Sets, and no other act on its hold since.
    ///
    /// # Errors
    /// [`Error`]: PostgreSQL is away.
    pub async fn has_set_apart(&mut self, orders: &[HoldOrder]) -> Result<bool, Error> {
        let mut wanted = Vec::new();
        for order in orders {
            let HoldAct::Set { round, amount, pays, paid } = order.act else { return Ok(false) };
            wanted.push((order, i16::from(round), bigint(amount), pays, paid));
        }
        let holds = "SELECT count(*) \
               FROM unnest($1::text[], $2::bigint[], $3::smallint[], $4::bigint[], $5::boolean[], \
                           $6::boolean[], $7::boolean[]) \
                      AS w (key, number, round, amount, pays, paid, special) \
               JOIN funding_holds h ON h.hold_key = w.key AND h.order_number = w.number \
              WHERE h.state = 10 AND h.round_code IS NULL AND h.amount = w.amount \
                AND h.special = w.special \
                AND (h.round, h.asked, h.pays, h.paid) = (w.round, w.amount, w.pays, w.paid)";
        let keys: Vec<&str> = wanted.iter().map(|(order, ..)| order.key.as_str()).collect();
        let numbers: Vec<i64> = wanted.iter().map(|of| bigint(of.0.order_number)).collect();
        let rounds: Vec<i16> = wanted.iter().map(|of| of.1).collect();
        let amounts: Vec<i64> = wanted.iter().map(|of| of.2).collect();
        let (pays, paid): (Vec<bool>, Vec<bool>) = wanted.iter().map(|of| (of.3, of.4)).unzip();
        let special: Vec<bool> = wanted.iter().map(|of| of.0.special).collect();
        let client = self.client().await?;
        let values: [&(dyn ToSql + Sync); 7] =
            [&keys, &numbers, &rounds, &amounts, &pays, &paid, &special];
        let found = client.query_one(holds, &values).await?.try_get::<_, i64>(0)?;
        self.client = Some(client);
        Ok(usize::try_from(found) == Ok(wanted.len()))
    }

    /// The sums of all transactions, and the parts of those that may be half booked beside Spot up
    /// to record `behind`, in one snapshot.
    ///
    /// # Errors
    /// [`Error`]: PostgreSQL is away, or has a row that cannot be read.
    pub async fn booked(
        &mut self,
        behind: Sequence,
    ) -> Result<(BTreeMap<AssetId, BookedSums>, Vec<BookedPart>), Error> {
        let client = self.client().await?;
        client.batch_execute(SNAPSHOT).await?;
        let found = (booked::sums(&client).await?, booked::parts(&client, behind).await?);
        client.batch_execute("COMMIT").await?;
        self.client = Some(client);
        Ok(found)
    }

    /// At most 1,000 transactions with order numbers above `after`, in their order; of those below
    /// `watermark` only the unfinished ones.
    ///
    /// # Errors
    /// [`Error`]: PostgreSQL is away, or has a row that cannot be read.
    pub async fn transactions_above(
        &mut self,
        after: u64,
        watermark: u64,
    ) -> Result<Vec<TransactionRow>, Error> {
        let client = self.client().await?;
        let chosen = "SELECT * FROM transactions_tb WHERE order_number > $1 \
                       AND (order_number >= $2 OR state NOT IN (40, -20)) \
                       ORDER BY order_number LIMIT $3";
        let page = with_branches(chosen, "ASC");
        let limit = i64::try_from(ROWS_PER_READ).expect("a page");
        let rows = client.query(&page, &[&bigint(after), &bigint(watermark), &limit]).await?;
        self.client = Some(client);
        transactions_from_rows(&rows)
    }
}

/// The most differences that one opening reports.
const DIFFERENCES_MAX: i64 = 100;

/// The end of the next part of the sweep, an order number, and the rows of the longer table. A page
/// that is full of one table ends at its last row, so that the other's rows up to there are read.
///
/// # Errors
/// [`Error`]: PostgreSQL is away.
pub(super) async fn next_transactions(client: &Client, after: i64) -> Result<(i64, i64), Error> {
    let page = |table| {
        format!(
            "SELECT max(order_number), count(*) FROM (SELECT order_number FROM {table} \
              WHERE order_number > $1 ORDER BY order_number LIMIT $2) AS page"
        )
    };
    let pages = format!("{} UNION ALL {}", page("transactions_tb"), page("funding_holds"));
    let (mut until, mut most) = (i64::MAX, 0);
    for page in client.query(&pages, &[&after, &SWEEP_ROWS]).await? {
        let (last, rows): (Option<i64>, i64) = (page.try_get(0)?, page.try_get(1)?);
        if rows == SWEEP_ROWS {
            until = until.min(last.unwrap_or(i64::MAX));
        }
        most = most.max(rows);
    }
    Ok((until, most))
}

/// The parts of Spot to be compared with UBSCore: of transactions with order numbers above `after`,
/// up to `until`, of the unfinished ones, and of those that may have changed since the last round.
/// Below the watermark UBSCore may have forgotten, so only branches that are not over are read.
/// Returns the next round's [`Recent`] as well.
///
/// # Errors
/// [`Error`]: PostgreSQL is away, or has a row that cannot be read.
pub(super) async fn spot_parts(
    client: &Client,
    recent: &Recent,
    (after, until): (i64, i64),
) -> Result<(Vec<SpotPart>, Recent), Error> {
    // Read before the rows: a later one is above it. One that commits late below it is left to the
    // sweep.
    let last = "SELECT COALESCE(max(order_number), 0) FROM transactions_tb";
    let last: i64 = client.query_one(last, &[]).await?.try_get(0)?;
    let parts = "WITH chosen AS ( \
           SELECT transaction_id FROM transactions_tb WHERE order_number > $1 AND order_number <= $2 \
           UNION SELECT transaction_id FROM transactions_tb WHERE state NOT IN (40, -20) \
           UNION (SELECT transaction_id FROM transactions_tb WHERE order_number > $3 \
                   ORDER BY order_number LIMIT $4) \
           UNION SELECT unnest($5::uuid[])) \
         SELECT t.transaction_id, t.order_number, t.state, b.round, b.state \
           FROM chosen JOIN transactions_tb t USING (transaction_id) \
           JOIN transaction_branches b USING (transaction_id) \
          WHERE b.participant = 'SPOT' \
            AND (b.state IN (10, 20) OR t.order_number >= (SELECT watermark FROM engine_state)) \
          ORDER BY t.order_number, b.round";
    let (from, open) = (recent.last.unwrap_or(i64::MAX), Id::all(&recent.open));
    let mut found = Vec::<SpotPart>::new();
    for row in client.query(parts, &[&after, &until, &from, &SWEEP_ROWS, &open]).await? {
        let bad = |what: &str| Error::Row { table: "transactions_tb", what: what.to_owned() };
        let transaction = columns::req_id(&row, 0)?.ok_or_else(|| bad("transaction_id"))?;
        if found.last().is_none_or(|last| last.transaction != transaction) {
            let state = TransactionState::from_number(row.try_get(2)?);
            found.push(SpotPart {
                transaction,
                order_number: columns::count(&row, 1, "transactions_tb")?,
                state: state.ok_or_else(|| bad("state"))?,
                branches: Vec::new(),
            });
        }
        let round = u8::try_from(row.try_get::<_, i16>(3)?).map_err(|_| bad("round"))?;
        let state = BranchState::from_number(row.try_get(4)?).ok_or_else(|| bad("state"))?;
        found.last_mut().expect("pushed above").branches.push((round, state));
    }
    let open = found.iter().filter(|part| !part.state.is_terminal());
    let open = open.map(|part| part.transaction).collect();
    Ok((found, Recent { last: Some(last), open }))
}

/// Compares transactions and holds with these order numbers, in one snapshot. Each difference names
/// the transaction, the user and the asset.
///
/// # Errors
/// [`Error`]: PostgreSQL is away.
pub(super) async fn compare_transactions(
    client: &Client,
    (after, until): (i64, i64),
    findings: &mut Findings,
) -> Result<(), Error> {
    let differences = "SELECT transaction_id, user_id, asset_id, what \
                       FROM audit_transactions($1, $2) LIMIT $3";
    for row in client.query(differences, &[&after, &until, &DIFFERENCES_MAX]).await? {
        let (id, user, asset, what): (&str, i64, i32, &str) =
            (row.try_get(0)?, row.try_get(1)?, row.try_get(2)?, row.try_get(3)?);
        let strange = format!("transaction {id}, user {user}, asset {asset}: it {what}");
        findings.strange.push(strange);
    }
    Ok(())
}
