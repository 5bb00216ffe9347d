//! Assets, and the limits of their transfers.

use std::collections::HashMap;

use crate::amount::{Amount, PRECISION_MAX};

/// The most bytes a symbol has.
pub const SYMBOL_BYTES_MAX: usize = 16;

/// Whether a text may be the symbol of a new asset: 1 to [`SYMBOL_BYTES_MAX`] of `A-Za-z0-9_.-`,
/// which need no escape in a path.
pub fn is_symbol(text: &str) -> bool {
    let sane = |b: u8| b.is_ascii_alphanumeric() || b"_.-".contains(&b);
    (1..=SYMBOL_BYTES_MAX).contains(&text.len()) && text.bytes().all(sane)
}

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

    /// The decimals of this asset; 0 if the catalog does not have it, so that amounts print as
    /// smallest units.
    pub fn precision(&self, id: AssetId) -> u8 {
        self.by_id(id).map_or(0, |asset| asset.precision)
    }

    /// All assets in the order of their numbers.
    pub fn all(&self) -> Vec<&Asset> {
        let mut assets: Vec<&Asset> = self.by_symbol.values().collect();
        assets.sort_by_key(|asset| asset.id);
        assets
    }

    /// `text` for people: each `asset NUMBER` that this catalog knows is replaced by its symbol.
    pub fn name_assets(&self, text: &str) -> String {
        let mut named = String::with_capacity(text.len());
        let mut rest = text;
        while let Some(at) = rest.find(ASSET_WORD) {
            let behind = &rest[at + ASSET_WORD.len()..];
            let digits = behind.bytes().take_while(u8::is_ascii_digit).count();
            let id = behind[..digits].parse().ok().map(AssetId);
            match id.and_then(|id| self.by_id(id)) {
                Some(asset) => {
                    named += &rest[..at];
                    named += &asset.symbol;
                }
                None => named += &rest[..at + ASSET_WORD.len() + digits],
            }
            rest = &behind[digits..];
        }
        named + rest
    }
}

/// The word before an asset's number in texts of code without a catalog.
const ASSET_WORD: &str = "asset ";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_known_number_becomes_its_symbol_and_an_unknown_one_stays() {
        let asset = |id, symbol: &str| Asset {
            id: AssetId(id),
            symbol: symbol.to_owned(),
            precision: 8,
            status: AssetStatus::Active,
            transfer_enabled: true,
            transfer_min: Amount::new(1).expect("not zero"),
            transfer_max: Amount::new(2).expect("not zero"),
        };
        let catalog = Catalog::new([asset(3, "USDT"), asset(1, "BTC")]);
        for (text, want) in [
            ("user 1001, asset 3: Funding is 5 more", "user 1001, USDT: Funding is 5 more"),
            ("asset 31, asset 1", "asset 31, BTC"),
            ("another user, asset or amount", "another user, asset or amount"),
            ("asset ", "asset "),
            ("", ""),
        ] {
            assert_eq!(catalog.name_assets(text), want);
        }
    }
}
