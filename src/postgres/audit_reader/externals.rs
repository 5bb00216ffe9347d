//! Rows of external_operations that have a record in UBSCore's log: those with an order number.

use std::collections::BTreeMap;

use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use super::AuditReader;
use crate::postgres::Error;
use crate::postgres::columns::{self, Numeric, bigint};
use crate::postgres::database::decision;
use domain::account::UserId;
use domain::asset::{AssetId, Catalog};
use domain::transfer::{Cid, ExternalOperation, Op};

/// What [`external_from_row`] reads.
pub const EXTERNAL_COLUMNS: &str =
    "idem_key, op, code, user_id, asset_id, amount, order_number, balance_after";
/// Rows read by one statement.
const ROWS_PER_READ: usize = 5_000;

/// External operations of one asset and one op.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Decided {
    /// All of them, refusals included.
    pub count: u64,
    /// What the successful ones add up to, smallest units.
    pub units: u128,
}

/// By asset and op. An operation that has never been decided is absent.
type Outside = BTreeMap<(AssetId, Op), Decided>;

impl AuditReader {
    /// Every row with the order number `from` or a higher one, in their order.
    ///
    /// # Errors
    /// [`Error`]: PostgreSQL is away, or has a row that cannot be read.
    pub async fn externals_from(&mut self, from: u64) -> Result<Vec<ExternalOperation>, Error> {
        let client = self.client().await?;
        let catalog = self.catalog.load_full();
        let page = format!(
            "SELECT {EXTERNAL_COLUMNS} FROM external_operations \
             WHERE order_number >= $1 ORDER BY order_number LIMIT $2"
        );
        let (mut all, mut next) = (Vec::<ExternalOperation>::new(), from);
        let limit = i64::try_from(ROWS_PER_READ).expect("a page");
        loop {
            let rows = client.query(&page, &[&bigint(next), &limit]).await?;
            for row in &rows {
                all.push(external_from_row(row, &catalog)?);
            }
            match all.last() {
                Some(last) if rows.len() == ROWS_PER_READ => next = last.order_number + 1,
                _ => break,
            }
        }
        self.client = Some(client);
        Ok(all)
    }

    /// The rows that have one of these order numbers.
    ///
    /// # Errors
    /// [`Error`]: PostgreSQL is away, or has a row that cannot be read.
    pub async fn externals(
        &mut self,
        numbers: impl IntoIterator<Item = u64>,
    ) -> Result<BTreeMap<u64, ExternalOperation>, Error> {
        let numbers: Vec<i64> = numbers.into_iter().map(bigint).collect();
        let mut found = BTreeMap::new();
        if numbers.is_empty() {
            return Ok(found);
        }
        let client = self.client().await?;
        let catalog = self.catalog.load_full();
        let named = format!(
            "SELECT {EXTERNAL_COLUMNS} FROM external_operations WHERE order_number = ANY($1)"
        );
        for numbers in numbers.chunks(ROWS_PER_READ) {
            for row in client.query(&named, &[&numbers]).await? {
                let operation = external_from_row(&row, &catalog)?;
                found.insert(operation.order_number, operation);
            }
        }
        self.client = Some(client);
        Ok(found)
    }

    /// The rows that have one of these idem_keys and an order number, by idem_key.
    ///
    /// # Errors
    /// [`Error`]: PostgreSQL is away, or has a row that cannot be read.
    pub async fn externals_named(
        &mut self,
        names: &[&str],
    ) -> Result<BTreeMap<String, ExternalOperation>, Error> {
        let client = self.client().await?;
        let catalog = self.catalog.load_full();
        let named =
            format!("SELECT {EXTERNAL_COLUMNS} FROM external_operations WHERE idem_key = ANY($1)");
        let mut found = BTreeMap::new();
        for row in client.query(&named, &[&names]).await? {
            let operation = external_from_row(&row, &catalog)?;
            found.insert(operation.idem_key.as_str().to_owned(), operation);
        }
        self.client = Some(client);
        Ok(found)
    }

    /// What the Funding balance of an account holds more than all its operations add up to, smallest units.
    ///
    /// # Errors
    /// [`Error`]: PostgreSQL is away, or has a row that cannot be read.
    pub async fn imbalance(&mut self, user: UserId, asset: AssetId) -> Result<i128, Error> {
        let client = self.client().await?;
        let recount = "SELECT held - counted FROM (SELECT \
             COALESCE((SELECT available + frozen FROM balances_tb WHERE user_id = $1 AND asset_id = $2), 0) AS held, \
             COALESCE((SELECT sum(funding_effect(op, amount)) FROM transfer_decisions \
                        WHERE user_id = $1 AND asset_id = $2 AND code IS NULL), 0) \
             + COALESCE((SELECT sum(funding_effect(op, amount)) FROM external_operations \
                        WHERE user_id = $1 AND asset_id = $2 AND code IS NULL), 0) \
             + COALESCE((SELECT sum(brought - taken) FROM funding_holds \
                        WHERE user_id = $1 AND asset_id = $2 AND state = 40), 0) AS counted) AS both_sides";
        let values: [&(dyn ToSql + Sync); 2] = [&user.bigint(), &columns::asset_number(asset)];
        let row = client.query_one(recount, &values).await?;
        self.client = Some(client);
        let Numeric(units) = row.try_get(0)?;
        Ok(units)
    }

    /// What the rows with order numbers below `below` add up to. It reads the whole table.
    ///
    /// # Errors
    /// [`Error`]: PostgreSQL is away, or has a row that cannot be read.
    pub async fn outside(&mut self, below: u64) -> Result<Outside, Error> {
        let client = self.client().await?;
        let catalog = self.catalog.load_full();
        let sums = "SELECT asset_id, op, count(*), \
                      COALESCE(sum(amount) FILTER (WHERE code IS NULL), 0) \
                    FROM external_operations WHERE order_number < $1 GROUP BY asset_id, op";
        let mut outside = Outside::new();
        for row in client.query(sums, &[&bigint(below)]).await? {
            let bad =
                |what: &str| Error::Row { table: "external_operations", what: what.to_owned() };
            let asset = columns::asset(&row, 0, &catalog)?.ok_or_else(|| bad("asset_id"))?;
            let op = columns::op(&row, 1)?.ok_or_else(|| bad("op"))?;
            let units = columns::units(&row, 3).ok_or_else(|| bad("a sum"))?;
            let count = columns::count(&row, 2, "external_operations")?;
            outside.insert((asset.id, op), Decided { count, units });
        }
        self.client = Some(client);
        Ok(outside)
    }
}

/// Reads [`EXTERNAL_COLUMNS`] of a row that has an order number. With
/// [`External::new`](engine::external::External::new) it is the way from a row to the record of it.
///
/// # Errors
/// [`Error`]: the row is not one that the service writes.
pub fn external_from_row(row: &Row, catalog: &Catalog) -> Result<ExternalOperation, Error> {
    let name: &str = row.try_get(0)?;
    let bad =
        |what: &str| Error::Row { table: "external_operations", what: format!("{name}: {what}") };
    let asset = columns::asset(row, 4, catalog)?.ok_or_else(|| bad("asset_id"))?;
    let op = columns::op(row, 1)?.filter(|op| op.is_external());
    let balance_after = columns::signed_or_null(row, 7).ok_or_else(|| bad("balance_after"))?;
    Ok(ExternalOperation {
        op: op.ok_or_else(|| bad("op"))?,
        idem_key: Cid::of_operation(name).ok_or_else(|| bad("idem_key"))?,
        user: columns::user(row, 3)?.ok_or_else(|| bad("user_id"))?,
        asset: asset.id,
        amount: columns::amount(row, 5)?.ok_or_else(|| bad("amount"))?,
        order_number: columns::count(row, 6, "external_operations")?,
        decision: decision(row, 2)?,
        // As in the log: a special balance below zero is 0.
        balance_after: balance_after.map_or(0, |units| u128::try_from(units).unwrap_or(0)),
    })
}
