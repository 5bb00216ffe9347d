//! Assets, as PostgreSQL keeps them and as they are in force.
//!
//! Number, symbol and precision of an asset in force never change: they come from the catalog, whatever a row says later.
//! A row that cannot be read disarms no other one. It is left out, or its asset is suspended, and it is named.

use std::pin::Pin;
use std::sync::Arc;

use rust_decimal::Decimal;
use tokio_postgres::Row;

use super::{Reads, audit};
use crate::postgres::Error;
use crate::postgres::columns::asset_number;
use domain::amount::{Amount, PRECISION_MAX};
use domain::asset::{Asset, AssetId, AssetStatus, Catalog, SYMBOL_BYTES_MAX};

/// The columns that [`asset_from_row`] reads.
const COLUMNS: &str = "asset_id, symbol, precision, status, internal_transfer_enabled, \
                       min_transfer_amount, max_transfer_amount";

/// A change of an asset.
#[derive(Clone, Copy, Debug, Default)]
pub struct AssetChange {
    /// Whether it moves.
    pub status: Option<AssetStatus>,
    /// Whether internal transfers are enabled.
    pub transfer_enabled: Option<bool>,
    /// The smallest amount of one transfer.
    pub transfer_min: Option<Amount>,
    /// The largest amount of one transfer.
    pub transfer_max: Option<Amount>,
}

/// A row of `assets_tb` that cannot be read in whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unreadable {
    /// The asset: its number and, where it is text, its symbol.
    pub asset: String,
    /// The column and its value, and the effect on the asset.
    pub what: String,
}

impl From<&Unreadable> for Error {
    fn from(unreadable: &Unreadable) -> Error {
        let Unreadable { asset, what } = unreadable;
        Error::Row { table: "assets_tb", what: format!("{asset}: {what}") }
    }
}

/// An asset that is to be added.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewAsset {
    /// Its number; `None`: the next free one.
    pub id: Option<AssetId>,
    /// Its name on the wire, 1..=[`SYMBOL_BYTES_MAX`] bytes.
    pub symbol: String,
    /// Decimals of its smallest unit, 0..=[`PRECISION_MAX`].
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
    /// It knows it, durably.
    Done,
    /// It knows the number with another symbol or precision.
    Contradicted,
    /// None in time.
    Unanswered,
}

/// The way to UBSCore for a new asset.
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
    /// UBSCore did not answer. The same again is safe.
    #[error("UBSCore did not answer")]
    Unanswered,
    /// PostgreSQL. Whether it was done may be unknown; the same again is safe.
    #[error(transparent)]
    Postgres(#[from] Error),
}

impl From<tokio_postgres::Error> for NotAdded {
    fn from(error: tokio_postgres::Error) -> NotAdded {
        NotAdded::Postgres(error.into())
    }
}

/// Numbers that are tried where none is given: a lost commit may have left some with UBSCore alone.
const ID_TRIES: u32 = 64;

impl Reads {
    /// Reads all assets and makes them the catalog. Call it before the catalog is used: UBSCore has to learn an asset
    /// before a transfer of it is accepted.
    ///
    /// A row that cannot be read in whole is in [`Reads::unreadable`] then. Its asset is suspended where only its limits or
    /// its status are unreadable, and left out otherwise.
    ///
    /// # Errors
    /// [`Error`]: PostgreSQL is away.
    pub async fn load_catalog(&self) -> Result<Arc<Catalog>, Error> {
        let client = self.pool.get().await?;
        let rows = client.query(&format!("SELECT {COLUMNS} FROM assets_tb"), &[]).await?;
        let (mut assets, mut unreadable) = (Vec::new(), Vec::new());
        for row in &rows {
            match asset_from_row(row) {
                Ok((asset, wrong)) => {
                    assets.push(asset);
                    unreadable.extend(wrong);
                }
                Err(left_out) => unreadable.push(left_out),
            }
        }
        let catalog = Arc::new(Catalog::new(assets));
        self.catalog.store(Arc::clone(&catalog));
        *self.unreadable.lock() = unreadable;
        Ok(catalog)
    }

    /// The rows of `assets_tb` that cannot be read in whole, as last read.
    pub fn unreadable(&self) -> Vec<Unreadable> {
        self.unreadable.lock().clone()
    }

    /// Takes an asset out of the catalog, since its row says another thing than UBSCore knows. Call it before the catalog
    /// is used.
    pub fn leave_out(&self, left_out: &Asset, why: &str) {
        let known = self.catalog.load();
        let others = known.all().into_iter().filter(|asset| asset.id != left_out.id).cloned();
        self.catalog.store(Arc::new(Catalog::new(others)));
        let asset = label(left_out.id.0, &left_out.symbol);
        let what = format!("{why}; the asset is left out");
        self.unreadable.lock().push(Unreadable { asset, what });
    }

    /// Changes an asset, with an audit row in the same transaction. In force when this returns.
    ///
    /// Returns the asset. If a part of its row cannot be read, it is suspended, and in [`Reads::unreadable`].
    ///
    /// # Errors
    /// [`Error::Row`]: the asset has no row. [`Error::broken_check`]: the row would break a rule of the schema. Otherwise
    /// PostgreSQL is away, or this process has been superseded. Whether it was done may be unknown.
    pub async fn change_asset(
        &self,
        asset: &Asset,
        change: AssetChange,
        actor: &str,
        reason: &str,
    ) -> Result<Asset, Error> {
        let _changing = self.changing.lock().await;
        let mut client = self.pool.get().await?;
        let transaction = client.transaction().await?;
        self.fence(&transaction).await?;
        let status = change.status.map(|status| status as i16);
        let decimal = |amount: Option<Amount>| amount.map(|a| a.decimal(asset.precision));
        let (min, max) = (decimal(change.transfer_min), decimal(change.transfer_max));
        let update = format!(
            "UPDATE assets_tb SET status = COALESCE($2, status), \
             internal_transfer_enabled = COALESCE($3, internal_transfer_enabled), \
             min_transfer_amount = COALESCE($4, min_transfer_amount), \
             max_transfer_amount = COALESCE($5, max_transfer_amount) WHERE asset_id = $1 \
             RETURNING {COLUMNS}"
        );
        // Read before the commit, so that nothing can come between the row and what it puts in force.
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
        self.put_in_force(changed.clone());
        let named = label(asset.id.0, &asset.symbol);
        let mut all = self.unreadable.lock();
        all.retain(|earlier| earlier.asset != named);
        all.extend(unreadable);
        Ok(changed)
    }

    /// Adds an asset, with an audit row in the same transaction. In force when this returns.
    ///
    /// UBSCore learns it before the commit, so that nothing is half done: where UBSCore objects, PostgreSQL rolls back, and a
    /// number that only UBSCore knows harms nothing. A row that is there with the same values and not in force is taken: it
    /// was added by SQL, or by a commit whose answer was lost.
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
        let mut client = self.pool.get().await?;
        let transaction = client.transaction().await?;
        self.fence(&transaction).await?;
        // Against rows that are added by SQL meanwhile.
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
        self.put_in_force(asset.clone());
        Ok(asset)
    }

    /// The row that is wanted, if it is there and not in force.
    ///
    /// # Errors
    /// [`NotAdded::Taken`].
    fn waiting(&self, wanted: &NewAsset, rows: &[Row]) -> Result<Option<Asset>, NotAdded> {
        let known = self.catalog.load();
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

    /// Puts one asset in force, new or in place of its earlier state. The others stay as they are: a row that was added by
    /// SQL waits for the next start, when UBSCore learns it; one that was removed stays known, since transfers of it may be
    /// under way.
    fn put_in_force(&self, changed: Asset) {
        let known = self.catalog.load();
        let others = known.all().into_iter().filter(|asset| asset.id != changed.id).cloned();
        let catalog = Catalog::new(others.chain([changed.clone()]));
        self.catalog.store(Arc::new(catalog));
    }

    /// Marks the database as made by `serve --dev`, and inserts the development assets that are not there yet. Call it
    /// after [`development::admit`](crate::postgres::development::admit).
    ///
    /// # Errors
    /// [`Error`]: PostgreSQL is away, or this process has been superseded.
    pub async fn begin_development(&self, assets: &[Asset]) -> Result<(), Error> {
        let mut client = self.pool.get().await?;
        let transaction = client.transaction().await?;
        self.fence(&transaction).await?;
        transaction.execute("UPDATE engine_state SET development = TRUE", &[]).await?;
        for asset in assets {
            insert(&transaction, asset).await?;
        }
        Ok(transaction.commit().await?)
    }

    /// The database's name, and whether `serve --dev` made it.
    ///
    /// # Errors
    /// [`Error`]: PostgreSQL is away.
    pub async fn database(&self) -> Result<(String, bool), Error> {
        let client = self.pool.get().await?;
        let asked = "SELECT current_database()::text, development FROM engine_state";
        let row = client.query_one(asked, &[]).await?;
        Ok((row.try_get(0)?, row.try_get(1)?))
    }
}

/// Inserts an asset that is not there yet.
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
                &asset.transfer_min.decimal(asset.precision),
                &asset.transfer_max.decimal(asset.precision),
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

/// The wanted asset under its number, or under the first one above `last` that UBSCore does not know otherwise. UBSCore
/// knows it then.
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

fn label(number: impl std::fmt::Display, symbol: &str) -> String {
    format!("asset {number} {symbol}")
}

/// Reads [`COLUMNS`]: the asset, and the part of its row that cannot be read, if any.
///
/// # Errors
/// [`Unreadable`]: number, symbol or precision cannot be read. There is no such asset then.
fn asset_from_row(row: &Row) -> Result<(Asset, Option<Unreadable>), Unreadable> {
    let number: i32 = row.try_get(0).unwrap_or(0);
    let symbol: String = row.try_get(1).unwrap_or_default();
    let left_out = |column: &str| Unreadable {
        asset: label(number, &symbol),
        what: format!("its {column} cannot be read; the asset is left out"),
    };
    let id = u32::try_from(number).ok().filter(|id| *id > 0).ok_or_else(|| left_out("asset_id"))?;
    if !(1..=SYMBOL_BYTES_MAX).contains(&symbol.len()) {
        return Err(left_out("symbol"));
    }
    let precision = row.try_get::<_, i16>(2).ok().and_then(|number| u8::try_from(number).ok());
    let precision = precision.filter(|precision| *precision <= PRECISION_MAX);
    let precision = precision.ok_or_else(|| left_out("precision"))?;
    let mut asset = Asset {
        id: AssetId(id),
        symbol,
        precision,
        status: AssetStatus::Suspended,
        transfer_enabled: false,
        transfer_min: Amount::new(1).expect("not zero"),
        transfer_max: Amount::new(u64::MAX).expect("not zero"),
    };
    let unreadable = take_changeable(&mut asset, row);
    Ok((asset, unreadable))
}

/// Takes the four changeable fields of an asset from its row. A field that cannot be read stays as it is, and the asset is
/// suspended.
fn take_changeable(asset: &mut Asset, row: &Row) -> Option<Unreadable> {
    let mut wrong = Vec::new();
    match row.try_get(3).ok().and_then(AssetStatus::from_number) {
        Some(status) => asset.status = status,
        None => wrong.push("its status cannot be read".to_owned()),
    }
    match row.try_get(4) {
        Ok(enabled) => asset.transfer_enabled = enabled,
        Err(_) => wrong.push("internal_transfer_enabled cannot be read".to_owned()),
    }
    let precision = asset.precision;
    for (column, limit) in [(5, &mut asset.transfer_min), (6, &mut asset.transfer_max)] {
        let name = row.columns()[column].name();
        let found = row.try_get::<_, Decimal>(column).ok();
        match found.and_then(|value| Amount::from_decimal(value, precision)) {
            Some(amount) => *limit = amount,
            None => {
                let found = found.map_or_else(String::new, |value| value.normalize().to_string());
                wrong.push(format!("{name} {found} is no amount of {precision} decimals"));
            }
        }
    }
    // An asset whose row has changed its meaning is not the asset of the amounts that are recorded.
    if row.try_get::<_, String>(1).ok().as_ref() != Some(&asset.symbol) {
        wrong.push("its symbol has changed".to_owned());
    }
    if row.try_get::<_, i16>(2).ok() != Some(i16::from(precision)) {
        wrong.push(format!("its precision is no more {precision}"));
    }
    if wrong.is_empty() {
        return None;
    }
    asset.status = AssetStatus::Suspended;
    let what = format!("{}; the asset is suspended", wrong.join(", "));
    Some(Unreadable { asset: label(asset.id.0, &asset.symbol), what })
}
