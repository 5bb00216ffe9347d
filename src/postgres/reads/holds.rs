//! Open holds of Funding, for operators: one, and lists by user, asset and key, a page at a time.

use jiff::Timestamp;
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use super::Reads;
use crate::postgres::Error;
use crate::postgres::columns::{self, asset_number};
use domain::account::UserId;
use domain::asset::AssetId;

/// An open hold of Funding.
#[derive(Clone, Debug)]
pub struct FundingHoldRow {
    /// Its key: the transaction, the user, the number of the asset, and the purpose if it has one.
    pub key: String,
    /// Its user.
    pub user: u64,
    /// Its asset.
    pub asset: AssetId,
    /// The purpose of the freeze that it takes from, 0: the available balance.
    pub purpose: u16,
    /// Apart, smallest units.
    pub amount: u64,
    /// The round that was decided last.
    pub round: i16,
    /// When it was made, by the service's clock.
    pub at: Timestamp,
}

/// Which holds of Funding.
#[derive(Clone, Debug)]
pub struct FundingHoldFilter {
    /// Of this user.
    pub user: Option<UserId>,
    /// Of this asset.
    pub asset: Option<AssetId>,
    /// Taken from the freeze of this purpose.
    pub purpose: Option<u16>,
    /// Made at this time or before.
    pub until: Timestamp,
    /// Behind this user, asset and key: the last one of the page before.
    pub after: Option<(u64, AssetId, String)>,
    /// At most so many.
    pub limit: usize,
}

const COLUMNS: &str = "SELECT hold_key, user_id, asset_id, amount, round, created_at, \
                         purpose \
                         FROM funding_holds WHERE state = 10";

impl Reads {
    /// Open holds, by user, asset and key.
    ///
    /// # Errors
    /// [`Error`]: PostgreSQL is away, or has a row that cannot be read.
    pub async fn funding_holds(
        &self,
        filter: &FundingHoldFilter,
    ) -> Result<Vec<FundingHoldRow>, Error> {
        let FundingHoldFilter { user, asset, purpose, until, after, limit } = filter;
        let holds = format!(
            "{COLUMNS} AND ($1::bigint IS NULL OR user_id = $1) \
               AND ($2::integer IS NULL OR asset_id = $2) AND created_at <= $3 \
               AND (user_id, asset_id, hold_key) > ($4, $5, $6) \
               AND ($8::integer IS NULL OR purpose = $8) \
             ORDER BY user_id, asset_id, hold_key LIMIT $7"
        );
        let (after_user, after_asset, after_key) = match after {
            Some((user, asset, key)) => {
                (columns::bigint(*user), asset_number(*asset), key.as_str())
            }
            None => (0, 0, ""),
        };
        let (user, asset) = (user.map(UserId::bigint), asset.map(asset_number));
        let limit = i64::try_from(*limit).unwrap_or(i64::MAX);
        let purpose = purpose.map(i32::from);
        let values: [&(dyn ToSql + Sync); 8] =
            [&user, &asset, until, &after_user, &after_asset, &after_key, &limit, &purpose];
        let rows = self.pool.get().await?.query(&holds, &values).await?;
        rows.iter().map(hold_from_row).collect()
    }

    /// The open hold with this key.
    ///
    /// # Errors
    /// As [`Reads::funding_holds`].
    pub async fn funding_hold(&self, key: &str) -> Result<Option<FundingHoldRow>, Error> {
        let hold = format!("{COLUMNS} AND hold_key = $1");
        let row = self.pool.get().await?.query_opt(&hold, &[&key]).await?;
        row.as_ref().map(hold_from_row).transpose()
    }
}

fn hold_from_row(row: &Row) -> Result<FundingHoldRow, Error> {
    let table = "funding_holds";
    let (number, purpose): (i32, i32) = (row.try_get(2)?, row.try_get(6)?);
    let asset = u32::try_from(number)
        .map_err(|_| Error::Row { table, what: format!("asset_id {number}") })?;
    let purpose = u16::try_from(purpose)
        .map_err(|_| Error::Row { table, what: format!("purpose {purpose}") })?;
    Ok(FundingHoldRow {
        key: row.try_get(0)?,
        user: columns::count(row, 1, table)?,
        asset: AssetId(asset),
        purpose,
        amount: columns::count(row, 3, table)?,
        round: row.try_get(4)?,
        at: row.try_get(5)?,
    })
}
