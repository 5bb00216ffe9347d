//! Assets, as PostgreSQL keeps them and as they are in force.
//!
//! Number, symbol and precision of an asset in force never change: they come from the catalog, whatever a row says later.
//! A row that cannot be read disarms no other one. It is left out, or its asset is suspended, and it is named.

use std::sync::Arc;

use tokio_postgres::Row;

use super::Reads;
use crate::postgres::Error;
use domain::amount::{Amount, PRECISION_MAX, UNITS_MAX};
use domain::asset::{Asset, AssetId, AssetStatus, Catalog, SYMBOL_BYTES_MAX};

/// The columns that [`asset_from_row`] reads.
pub(in crate::postgres) const COLUMNS: &str = "asset_id, symbol, precision, status, internal_transfer_enabled, \
                       min_transfer_amount, max_transfer_amount";

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

    /// Puts one asset in force, new or in place of its earlier state. The others stay as they are: a row that was added by
    /// SQL waits for the next start, when UBSCore learns it; one that was removed stays known, since transfers of it may be
    /// under way.
    pub(in crate::postgres) fn put_in_force(&self, changed: Asset) {
        let known = self.catalog.load();
        let others = known.all().into_iter().filter(|asset| asset.id != changed.id).cloned();
        let catalog = Catalog::new(others.chain([changed.clone()]));
        self.catalog.store(Arc::new(catalog));
    }

    /// Replaces the entries of one asset among the unreadable rows.
    pub(in crate::postgres) fn replace_unreadable(&self, asset: &Asset, row: Option<Unreadable>) {
        let named = label(asset.id.0, &asset.symbol);
        let mut all = self.unreadable.lock();
        all.retain(|earlier| earlier.asset != named);
        all.extend(row);
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

pub(in crate::postgres) fn label(number: impl std::fmt::Display, symbol: &str) -> String {
    format!("asset {number} {symbol}")
}

/// Reads [`COLUMNS`]: the asset, and the part of its row that cannot be read, if any.
///
/// # Errors
/// [`Unreadable`]: number, symbol or precision cannot be read. There is no such asset then.
pub(in crate::postgres) fn asset_from_row(
    row: &Row,
) -> Result<(Asset, Option<Unreadable>), Unreadable> {
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
        transfer_max: Amount::new(UNITS_MAX).expect("not zero"),
    };
    let unreadable = take_changeable(&mut asset, row);
    Ok((asset, unreadable))
}

/// Takes the four changeable fields of an asset from its row. A field that cannot be read stays as it is, and the asset is
/// suspended.
pub(in crate::postgres) fn take_changeable(asset: &mut Asset, row: &Row) -> Option<Unreadable> {
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
        let found = row.try_get::<_, i64>(column).ok();
        match found.and_then(|units| u64::try_from(units).ok()).and_then(Amount::new) {
            Some(amount) => *limit = amount,
            None => {
                let found = found.map_or_else(String::new, |units| units.to_string());
                wrong.push(format!("{name} {found} is no amount in smallest units"));
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
