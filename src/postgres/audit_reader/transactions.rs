//! Transactions compared with the holds of Funding that they claim.

use tokio_postgres::Client;

use super::{Findings, SWEEP_ROWS};
use crate::postgres::Error;

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
