//! Money that the legs of transactions bring to Spot from outside, or take there. For Spot, outside
//! is Funding: a leg between the stores stands in the posting with its Spot place alone.
//!
//! Postings inside Spot make and lose nothing. So for each asset, all that postings have brought to
//! balances less all that they have taken is the money that has crossed in this way.
//!
//! | bytes | field |
//! |---|---|
//! | 16 | brought less taken, smallest units; not 0 |
//! | 4 | asset |

use domain::posting::{Leg, Place};
use zerocopy::little_endian::{I128, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// A sum in a fact.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct CrossedBytes {
    brought: I128,
    asset: U32,
}

impl CrossedBytes {
    pub(crate) fn new(asset: u32, brought: i128) -> CrossedBytes {
        CrossedBytes { brought: brought.into(), asset: asset.into() }
    }

    /// The asset and the sum; `None` for a sum of 0, which has no fact.
    pub(crate) fn read(&self) -> Option<(u32, i128)> {
        let brought = self.brought.get();
        (brought != 0).then(|| (self.asset.get(), brought))
    }
}

/// Brought to Spot by one leg, smallest units: below 0 if it goes outside, 0 inside Spot.
pub(crate) fn crossing(leg: &Leg) -> i128 {
    match (leg.from, leg.to) {
        (Place::Outside, _) => i128::from(leg.amount),
        (_, Place::Outside) => -i128::from(leg.amount),
        _ => 0,
    }
}

/// Whether a leg comes from outside or goes there.
pub(crate) fn crosses(legs: &[Leg]) -> bool {
    legs.iter().any(|leg| [leg.from, leg.to].contains(&Place::Outside))
}
