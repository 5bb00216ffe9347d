//! The assets that a log or a snapshot names, for its text.

use std::collections::HashMap;

use engine::entry::Entry;
use engine::text::Text;

use domain::amount::{PRECISION_MAX, units_text};
use domain::asset::SYMBOL_BYTES_MAX;

/// The most assets that are remembered; above it an asset is printed by its number.
pub(super) const ASSETS_MAX: usize = 65_536;

/// The assets read so far from a log or a snapshot.
#[derive(Default)]
pub(in crate::commands) struct Assets {
    pub(super) known: HashMap<u32, Asset, foldhash::fast::RandomState>,
}

pub(super) struct Asset {
    pub(super) symbol: Text<SYMBOL_BYTES_MAX>,
    /// The symbol, escaped so that it cannot control a terminal.
    pub(super) escaped: String,
    pub(super) precision: u8,
}

impl Assets {
    /// Remembers an asset if the entry is one. The newest record about an asset counts.
    pub(in crate::commands) fn learn(&mut self, entry: &Entry) {
        let Entry::Asset { asset, precision, symbol } = *entry else { return };
        let room = self.known.len() < ASSETS_MAX || self.known.contains_key(&asset);
        // Such a precision is never registered, and amounts cannot be written with it.
        if room && precision <= PRECISION_MAX {
            let escaped = escape(&symbol);
            self.known.insert(asset, Asset { symbol, escaped, precision });
        }
    }

    /// The symbol of an asset, or `#` and its number if it is unknown.
    pub(in crate::commands) fn name(&self, asset: u32) -> String {
        self.known.get(&asset).map_or_else(|| format!("#{asset}"), |known| known.escaped.clone())
    }

    /// The symbol of an asset as it was registered.
    pub(in crate::commands) fn symbol(&self, asset: u32) -> Option<&str> {
        self.known.get(&asset).map(|known| known.symbol.as_str())
    }

    /// An amount of an asset, or its smallest units and `u` if the asset is unknown.
    pub(in crate::commands) fn amount(&self, asset: u32, units: u128) -> String {
        match self.known.get(&asset) {
            Some(known) => units_text(units, known.precision),
            None => format!("{units}u"),
        }
    }
}

/// A symbol that cannot control a terminal.
pub(super) fn escape(symbol: &Text<SYMBOL_BYTES_MAX>) -> String {
    symbol.as_str().escape_debug().to_string()
}
