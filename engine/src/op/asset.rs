//! The registration of an asset.

use domain::amount::PRECISION_MAX;
use domain::asset::SYMBOL_BYTES_MAX;

use crate::entry::Entry;
use crate::fact::Fact;
use crate::ledger::{Answer, AssetEntry, Ledger, Step};
use crate::text::Text;

/// Decides a registration. A repeat must have the same precision and symbol.
pub(super) fn step(
    ledger: &Ledger,
    asset: u32,
    precision: u8,
    symbol: Text<SYMBOL_BYTES_MAX>,
) -> Step {
    match ledger.assets.get(&asset) {
        Some(known) if (known.precision, known.symbol) == (precision, symbol) => {
            Step::Known(Answer::Done)
        }
        Some(_) => Step::Violation("the asset is known with another symbol or precision"),
        None if precision > PRECISION_MAX => Step::Violation("precision out of range"),
        None => Step::Append(Entry::Asset { asset, precision, symbol }),
    }
}

/// Registers an asset.
pub(super) fn apply(
    ledger: &mut Ledger,
    asset: u32,
    precision: u8,
    symbol: Text<SYMBOL_BYTES_MAX>,
) -> Answer {
    let before = ledger.assets.insert(asset, AssetEntry::new(precision, symbol));
    assert!(before.is_none(), "asset {asset} registered twice");
    ledger.exchange(None, Fact::Asset { asset, precision, symbol });
    Answer::Done
}
