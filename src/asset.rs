//! Assets: what can be moved, and under which limits.

use std::collections::HashMap;

use crate::amount::{Amount, PRECISION_MAX};

/// The most bytes a symbol has.
pub const SYMBOL_BYTES_MAX: usize = 16;

/// The number of an asset, as PostgreSQL and the log store it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AssetId(pub u32);

/// Whether an asset moves at all. The number is what PostgreSQL stores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i16)]
pub enum AssetStatus {
    /// In use.
    Active = 1,
    /// No new transfer is accepted.
    Suspended = 2,
}

impl AssetStatus {
    /// The status with this number.
    pub fn from_number(number: i16) -> Option<AssetStatus> {
        match number {
            1 => Some(AssetStatus::Active),
            2 => Some(AssetStatus::Suspended),
            _ => None,
        }
    }

    /// The status with this name on the wire.
    pub fn from_name(name: &str) -> Option<AssetStatus> {
        match name {
            "ACTIVE" => Some(AssetStatus::Active),
            "SUSPENDED" => Some(AssetStatus::Suspended),
            _ => None,
        }
    }

    /// The name on the wire.
    pub fn name(self) -> &'static str {
        match self {
            AssetStatus::Active => "ACTIVE",
            AssetStatus::Suspended => "SUSPENDED",
        }
    }
}

/// One asset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asset {
    /// Its number.
    pub id: AssetId,
    /// Its name on the wire, 1..=[`SYMBOL_BYTES_MAX`] bytes.
    pub symbol: String,
    /// Decimals of its smallest unit, 0..=[`PRECISION_MAX`].
    pub precision: u8,
    /// Whether it moves.
    pub status: AssetStatus,
    /// Whether internal transfers are enabled.
    pub transfer_enabled: bool,
    /// The smallest amount one transfer moves.
    pub transfer_min: Amount,
    /// The largest amount one transfer moves.
    pub transfer_max: Amount,
}

/// All assets, by symbol and by number. Replaced as a whole when one changes.
#[derive(Clone, Debug, Default)]
pub struct Catalog {
    by_symbol: HashMap<String, Asset>,
    symbols: HashMap<AssetId, String>,
}

impl Catalog {
    /// A catalog of these assets.
    pub fn new(assets: impl IntoIterator<Item = Asset>) -> Catalog {
        let mut catalog = Catalog::default();
        for asset in assets {
            assert!(asset.precision <= PRECISION_MAX, "{asset:?}");
            assert!((1..=SYMBOL_BYTES_MAX).contains(&asset.symbol.len()), "{asset:?}");
            catalog.symbols.insert(asset.id, asset.symbol.clone());
            catalog.by_symbol.insert(asset.symbol.clone(), asset);
        }
        catalog
    }

    /// The asset with this symbol.
    pub fn by_symbol(&self, symbol: &str) -> Option<&Asset> {
        self.by_symbol.get(symbol)
    }

    /// The asset with this number.
    pub fn by_id(&self, id: AssetId) -> Option<&Asset> {
        self.by_symbol.get(self.symbols.get(&id)?)
    }

    /// All assets in the order of their numbers.
    pub fn all(&self) -> Vec<&Asset> {
        let mut assets: Vec<&Asset> = self.by_symbol.values().collect();
        assets.sort_by_key(|asset| asset.id);
        assets
    }
}
