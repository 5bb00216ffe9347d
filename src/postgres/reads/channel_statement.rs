//! The statement of an account of a channel: its movements within a time, the oldest first.

use jiff::Timestamp;
use tokio_postgres::Row;

use super::Reads;
use super::recharge_search::cut;
use crate::postgres::Error;
use crate::postgres::columns::{self, Id};
use crate::recharge::{PaymentId, RechargeId};
use domain::asset::AssetId;

/// Which movements.
#[derive(Clone, Debug)]
pub struct StatementSearch {
    /// The account, such as `wechat/clearing`.
    pub account: String,
    /// From this time on, and before that one.
    pub within: (Timestamp, Timestamp),
    /// Behind this movement: the cursor.
    pub after: Option<(Timestamp, String)>,
    /// At most so many.
    pub limit: u32,
}

/// A movement of the account.
#[derive(Clone, Debug)]
pub struct StatementRow {
    /// Its key.
    pub key: String,
    /// When, by the service's clock.
    pub at: Timestamp,
    /// Whether the account is its debit side: clearing rises by it, and suspense falls.
    pub is_debit: bool,
    /// The account of the other side.
    pub other: String,
    /// The asset.
    pub asset: AssetId,
    /// How much, smallest units.
    pub amount: u64,
    /// The order, if there is one.
    pub recharge: Option<RechargeId>,
    /// The payment, if there is one.
    pub payment: Option<PaymentId>,
}

/// A page of a statement.
#[derive(Clone, Debug)]
pub struct StatementFound {
    /// The oldest first.
    pub rows: Vec<StatementRow>,
    /// The movement that the next page begins behind; `None` at the end.
    pub next: Option<(Timestamp, String)>,
}

impl Reads {
    /// A page of the movements of an account. It passes all movements of the time: by the index of
    /// times.
    ///
    /// # Errors
    /// [`Error`]: PostgreSQL is away, or has a row that cannot be read.
    pub async fn channel_statement(
        &self,
        search: &StatementSearch,
    ) -> Result<StatementFound, Error> {
        let StatementSearch { account, within: (since, until), after, limit } = search;
        // No key is before the empty text.
        let (from, behind) = after.clone().unwrap_or((*since, String::new()));
        let page = format!(
            "SELECT movement_key, at, debit = $1, CASE WHEN debit = $1 THEN credit ELSE debit END, \
                    asset_id, amount, recharge_id, payment_id \
               FROM recharge_movements \
              WHERE at >= $2 AND at < $3 AND (at, movement_key) > ($2, $4) \
                AND (debit = $1 OR credit = $1) \
              ORDER BY at, movement_key LIMIT {}",
            u64::from(*limit) + 1
        );
        let client = self.pool.get().await?;
        let rows = client.query(&page, &[account, &from, until, &behind]).await?;
        self.pool.note(&client).await?;
        let catalog = self.catalog();
        let row = |row: &Row| {
            let key: String = row.try_get(0)?;
            let bad =
                |what| Error::Row { table: "recharge_movements", what: format!("{key}: {what}") };
            let asset = columns::asset(row, 4, &catalog)?.ok_or_else(|| bad("asset_id"))?.id;
            let amount = columns::count(row, 5, "recharge_movements")?;
            let id = |column| row.try_get::<_, Option<Id>>(column);
            let recharge = id(6)?.and_then(|id| RechargeId::new(id.0));
            let payment = id(7)?.and_then(|id| PaymentId::new(id.0));
            let (at, is_debit, other) = (row.try_get(1)?, row.try_get(2)?, row.try_get(3)?);
            Ok(StatementRow { key, at, is_debit, other, asset, amount, recharge, payment })
        };
        let mut rows = rows.iter().map(row).collect::<Result<Vec<StatementRow>, Error>>()?;
        let more = cut(&mut rows, *limit);
        let next = rows.last().filter(|_| more).map(|row| (row.at, row.key.clone()));
        Ok(StatementFound { rows, next })
    }
}
