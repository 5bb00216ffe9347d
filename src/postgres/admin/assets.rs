//! Changes of assets: limits and status of one in force, and a new one without a restart.

use std::pin::Pin;

use tokio_postgres::Row;

use super::{Admin, audit};
use crate::postgres::Error;
use crate::postgres::columns::{amount_number, asset_number};
use crate::postgres::reads::assets::{COLUMNS, Unreadable, asset_from_row, label, take_changeable};
use domain::amount::Amount;
use domain::asset::{Asset, AssetId, AssetStatus};

/// A change of an asset.
#[derive(Clone, Copy, Debug, Default)]
pub struct AssetChange {
    /// Whether transfers of it are accepted.
    pub status: Option<AssetStatus>,
    /// Whether internal transfers are enabled.
    pub transfer_enabled: Option<bool>,
    /// The smallest amount of one transfer.
    pub transfer_min: Option<Amount>,
    /// The largest amount of one transfer.
    pub transfer_max: Option<Amount>,
}

/// An asset to add.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewAsset {
    /// Its number; `None`: the next free one.
    pub id: Option<AssetId>,
    /// Its name on the wire, 1..=[`SYMBOL_BYTES_MAX`](domain::asset::SYMBOL_BYTES_MAX) bytes.
    pub symbol: String,
    /// Decimals of its smallest unit, 0..=[`PRECISION_MAX`](domain::amount::PRECISION_MAX).
    pub precision: u8,
    /// Whether internal transfers are enabled.
    pub transfer_enabled: bool,
    /// The smallest amount one transfer moves.
    pub transfer_min: Amount,
    /// The largest amount one transfer moves.
    pub transfer_max: Amount,
}

impl NewAsset {
    fn with(&self, id: AssetId) -> Asset {
        Asset {
            id,
            symbol: self.symbol.clone(),
            precision: self.precision,
            status: AssetStatus::Active,
            transfer_enabled: self.transfer_enabled,
            transfer_min: self.transfer_min,
            transfer_max: self.transfer_max,
        }
    }
}

/// UBSCore's answer to a new asset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Learned {
    /// It knows the asset, durably.
    Done,
    /// It knows the number with another symbol or precision.
    Contradicted,
    /// None in time.
    Unanswered,
}

/// Sends a new asset to UBSCore.
pub type Learn<'a> = &'a (dyn Fn(Asset) -> Pin<Box<dyn Future<Output = Learned> + Send>> + Sync);

/// An asset that was not added.
#[derive(Debug, thiserror::Error)]
pub enum NotAdded {
    /// The symbol or the number belongs to another asset. Nothing changed.
    #[error("{what} is taken by {by}")]
    Taken {
        /// The symbol or the number.
        what: String,
        /// The asset that has it.
        by: String,
    },
    /// UBSCore knows the number. Nothing changed.
    #[error(
        "UBSCore's log knows asset {0} with another symbol or precision: give another id, or none"
    )]
    Contradicted(u32),
    /// UBSCore did not answer. A repeat is safe.
    #[error("UBSCore did not answer")]
    Unanswered,
    /// PostgreSQL. The outcome may be unknown; a repeat is safe.
    #[error(transparent)]
    Postgres(#[from] Error),
}

impl From<tokio_postgres::Error> for NotAdded {
    fn from(error: tokio_postgres::Error) -> NotAdded {
        NotAdded::Postgres(error.into())
    }
}

/// Numbers that are tried if none is given: a lost commit may have left some with UBSCore alone.
const ID_TRIES: u32 = 64;

impl Admin {
    /// Changes an asset, with its audit row. The change is in force when this returns.
    ///
    /// Returns the asset. If a part of its row cannot be read, the asset is suspended, and listed
    /// in [`Reads::unreadable`](crate::postgres::reads::Reads::unreadable).
    ///
    /// # Errors
    /// [`Error::Row`]: the asset has no row. [`Error::broken_check`]: the row would break a rule
    /// of the schema. Otherwise PostgreSQL is away, or this process has been superseded, and the
    /// outcome may be unknown.
    pub async fn change_asset(
        &self,
        asset: &Asset,
        change: AssetChange,
        actor: &str,
        reason: &str,
    ) -> Result<Asset, Error> {
        let _changing = self.changing.lock().await;
        let mut client = self.pool().get().await?;
        let transaction = client.transaction().await?;
        self.fence(&transaction).await?;
        let status = change.status.map(|status| status as i16);
        let (min, max) =
            (change.transfer_min.map(amount_number), change.transfer_max.map(amount_number));
        let update = format!(
            "UPDATE assets_tb SET status = COALESCE($2, status), \
             internal_transfer_enabled = COALESCE($3, internal_transfer_enabled), \
             min_transfer_amount = COALESCE($4, min_transfer_amount), \
             max_transfer_amount = COALESCE($5, max_transfer_amount) WHERE asset_id = $1 \
             RETURNING {COLUMNS}"
        );
        // Read before the commit, so that no other change comes between the row and its effect.
        let row = transaction
            .query_opt(
                &update,
                &[&asset_number(asset.id), &status, &change.transfer_enabled, &min, &max],
            )
            .await?;
        let Some(row) = row else {
            let what = "it has no row; `ubscore pause --asset` stops its transfers".to_owned();
            return Err((&Unreadable { asset: label(asset.id.0, &asset.symbol), what }).into());
        };
        let detail = format!("{change:?}");
        audit(&transaction, actor, "asset", &asset.symbol, &detail, reason).await?;
        let mut changed = asset.clone();
        let unreadable = take_changeable(&mut changed, &row);
        transaction.commit().await?;
        self.reads.put_in_force(changed.clone());
        self.reads.replace_unreadable(asset, unreadable);
        Ok(changed)
    }

    /// Adds an asset, with its audit row. The asset is in force when this returns.
    ///
    /// UBSCore learns it before the commit. If UBSCore objects, PostgreSQL rolls back, and a number
    /// that only UBSCore knows is harmless. A row with the same values that is not in force is
    /// taken: SQL added it, or a commit that lost its answer.
    ///
    /// # Errors
    /// [`NotAdded`].
    pub async fn add_asset(
        &self,
        wanted: &NewAsset,
        learn: Learn<'_>,
        actor: &str,
        reason: &str,
    ) -> Result<Asset, NotAdded> {
        let _changing = self.changing.lock().await;
        let mut client = self.pool().get().await?;
        let transaction = client.transaction().await?;
        self.fence(&transaction).await?;
        // SQL may add rows at the same time.
        transaction.batch_execute("LOCK TABLE assets_tb IN SHARE ROW EXCLUSIVE MODE").await?;
        let id = wanted.id.map_or(0, asset_number);
        let query = format!(
            "SELECT {COLUMNS} FROM assets_tb WHERE symbol = $1 OR asset_id = $2 ORDER BY asset_id"
        );
        let rows = transaction.query(&query, &[&wanted.symbol, &id]).await?;
        let asset = match self.waiting(wanted, &rows)? {
            Some(waiting) => {
                learned(learn(waiting.clone()).await, waiting.id)?;
                waiting
            }
            None => {
                let last = "SELECT COALESCE(max(asset_id), 0) FROM assets_tb";
                let last: i32 = transaction.query_one(last, &[]).await?.try_get(0)?;
                let asset = free_number(wanted, u32::try_from(last).unwrap_or(0), learn).await?;
                insert(&transaction, &asset).await?;
                asset
            }
        };
        let detail = format!("{asset:?}");
        audit(&transaction, actor, "asset add", &asset.symbol, &detail, reason).await?;
        transaction.commit().await?;
        self.reads.put_in_force(asset.clone());
        Ok(asset)
    }

    /// The wanted asset, if its row exists and is not in force.
    ///
    /// # Errors
    /// [`NotAdded::Taken`].
    fn waiting(&self, wanted: &NewAsset, rows: &[Row]) -> Result<Option<Asset>, NotAdded> {
        let known = self.reads.catalog();
        let taken = |what: String, by: String| Err(NotAdded::Taken { what, by });
        let symbol = || format!("symbol {}", wanted.symbol);
        if let Some(asset) = known.by_symbol(&wanted.symbol) {
            return taken(symbol(), label(asset.id.0, &asset.symbol));
        }
        if let Some(asset) = wanted.id.and_then(|id| known.by_id(id)) {
            return taken(format!("id {}", asset.id.0), label(asset.id.0, &asset.symbol));
        }
        let Some(row) = rows.first() else { return Ok(None) };
        match asset_from_row(row) {
            Ok((asset, None)) if rows.len() == 1 && asset == wanted.with(asset.id) => {
                if wanted.id.is_none_or(|id| id == asset.id) {
                    return Ok(Some(asset));
                }
                taken(symbol(), label(asset.id.0, &asset.symbol))
            }
            Ok((asset, _)) if asset.symbol == wanted.symbol => {
                taken(symbol(), label(asset.id.0, &asset.symbol))
            }
            Ok((asset, _)) => taken(format!("id {}", asset.id.0), label(asset.id.0, &asset.symbol)),
            Err(unreadable) => taken(symbol(), unreadable.asset),
        }
    }

    /// Marks the database as made by `serve --dev`, and inserts the missing development assets.
    /// Call it after [`development::admit`](crate::postgres::development::admit).
    ///
    /// # Errors
    /// [`Error`]: PostgreSQL is away, or this process has been superseded.
    pub async fn begin_development(&self, assets: &[Asset]) -> Result<(), Error> {
        let mut client = self.pool().get().await?;
        let transaction = client.transaction().await?;
        self.fence(&transaction).await?;
        transaction.execute("UPDATE engine_state SET development = TRUE", &[]).await?;
        for asset in assets {
            insert(&transaction, asset).await?;
        }
        Ok(transaction.commit().await?)
    }
}

/// Inserts an asset, unless its number or symbol is there.
async fn insert(
    transaction: &deadpool_postgres::Transaction<'_>,
    asset: &Asset,
) -> Result<(), Error> {
    transaction
        .execute(
            "INSERT INTO assets_tb VALUES ($1, $2, $3, $4, $5, $6, $7) ON CONFLICT DO NOTHING",
            &[
                &asset_number(asset.id),
                &asset.symbol,
                &i16::from(asset.precision),
                &(asset.status as i16),
                &asset.transfer_enabled,
                &amount_number(asset.transfer_min),
                &amount_number(asset.transfer_max),
            ],
        )
        .await?;
    Ok(())
}

fn learned(answer: Learned, id: AssetId) -> Result<(), NotAdded> {
    match answer {
        Learned::Done => Ok(()),
        Learned::Contradicted => Err(NotAdded::Contradicted(id.0)),
        Learned::Unanswered => Err(NotAdded::Unanswered),
    }
}

/// Registers the wanted asset in UBSCore: under its number, or under the first one above `last`
/// that UBSCore does not know by other values.
async fn free_number(wanted: &NewAsset, last: u32, learn: Learn<'_>) -> Result<Asset, NotAdded> {
    if let Some(id) = wanted.id {
        learned(learn(wanted.with(id)).await, id)?;
        return Ok(wanted.with(id));
    }
    for number in last.saturating_add(1)..=last.saturating_add(ID_TRIES).min(i32::MAX as u32) {
        let id = AssetId(number);
        match learned(learn(wanted.with(id)).await, id) {
            Ok(()) => return Ok(wanted.with(id)),
            Err(NotAdded::Contradicted(_)) => {}
            Err(not_added) => return Err(not_added),
        }
    }
    Err(NotAdded::Contradicted(last))
}
