//! Freezes on Funding, for operators.

use super::Reads;
use crate::postgres::Error;
use crate::postgres::columns;
use domain::account::UserId;
use domain::asset::AssetId;

/// The most freezes of one answer.
pub const FREEZES_MAX: usize = 1_000;

/// Which freezes.
#[derive(Clone, Copy, Debug, Default)]
pub struct FreezeFilter {
    /// Of this user.
    pub user: Option<UserId>,
    /// Of this asset.
    pub asset: Option<AssetId>,
    /// For this purpose.
    pub purpose: Option<u16>,
}

/// An amount that is frozen on Funding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FundingFreeze {
    /// The owner.
    pub user: UserId,
    /// Of what.
    pub asset: AssetId,
    /// For what.
    pub purpose: u16,
    /// Smallest units, above 0.
    pub amount: u128,
}

impl Reads {
    /// Freezes that are not 0, by user, asset and purpose, at most [`FREEZES_MAX`].
    ///
    /// # Errors
    /// [`Error`]: PostgreSQL is away, or has a row that cannot be read.
    pub async fn freezes(&self, filter: &FreezeFilter) -> Result<Vec<FundingFreeze>, Error> {
        let client = self.pool.get().await?;
        let user = filter.user.map(UserId::bigint);
        let asset = filter.asset.map(columns::asset_number);
        let purpose = filter.purpose.map(i32::from);
        let limit = i64::try_from(FREEZES_MAX).expect("small");
        let freezes = "SELECT user_id, asset_id, purpose, amount FROM freezes_tb \
                        WHERE amount > 0 AND ($1::bigint IS NULL OR user_id = $1) \
                          AND ($2::integer IS NULL OR asset_id = $2) \
                          AND ($3::integer IS NULL OR purpose = $3) \
                        ORDER BY user_id, asset_id, purpose LIMIT $4";
        let rows = client.query(freezes, &[&user, &asset, &purpose, &limit]).await?;
        let freeze = |row: &tokio_postgres::Row| {
            let bad = |what: &str| Error::Row { table: "freezes_tb", what: what.to_owned() };
            let (asset, purpose): (i32, i32) = (row.try_get(1)?, row.try_get(2)?);
            Ok(FundingFreeze {
                user: columns::user(row, 0)?.ok_or_else(|| bad("user_id"))?,
                asset: u32::try_from(asset).map(AssetId).map_err(|_| bad("asset_id"))?,
                purpose: u16::try_from(purpose).map_err(|_| bad("purpose"))?,
                amount: columns::units(row, 3).ok_or_else(|| bad("amount"))?,
            })
        };
        rows.iter().map(freeze).collect()
    }
}
