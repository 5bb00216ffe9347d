//! Transactions compared with the holds of Funding that they claim, and rows for a comparison with
//! the log.

use std::collections::BTreeMap;

use tokio_postgres::Client;

use super::{AuditReader, Findings, SWEEP_ROWS};
use crate::postgres::Error;
use crate::postgres::columns::{Id, bigint};
use crate::postgres::transactions::rows::{transactions_from_rows, with_branches};
use crate::transaction::TransactionRow;
use domain::transfer::ReqId;

/// Transactions read by one statement.
const ROWS_PER_READ: usize = 1_000;

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

    /// Assets of which confirmed transactions have brought more or less to Funding than they have
    /// taken, as sentences. Nothing is known while Funding confirms one.
    ///
    /// # Errors
    /// [`Error`]: PostgreSQL is away.
    pub async fn unequal_transactions(&mut self) -> Result<Vec<String>, Error> {
        let client = self.client().await?;
        let sums = "SELECT asset_id, sum(moved)::text FROM ( \
               SELECT asset_id, transaction_brought - transaction_taken AS moved FROM watermark_totals \
               UNION ALL \
               SELECT asset_id, brought - taken FROM funding_holds WHERE state = 40 \
                  AND order_number >= (SELECT watermark FROM engine_state)) AS parts \
             WHERE NOT EXISTS (SELECT FROM transactions_tb \
                                WHERE state = 30 AND stores_ended_at IS NULL) \
             GROUP BY asset_id HAVING sum(moved) <> 0 ORDER BY asset_id";
        let mut found = Vec::new();
        for row in client.query(sums, &[]).await? {
            let (asset, moved): (i32, &str) = (row.try_get(0)?, row.try_get(1)?);
            found.push(format!(
                "asset {asset}: on Funding, transactions have brought {moved} smallest units more \
                 than they have taken"
            ));
        }
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
