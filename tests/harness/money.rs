//! Amounts, balances and the bodies that move them.

use domain::amount::units_from_text;
use serde_json::{Value, json};

/// Decimals of every development asset.
const PRECISION: u8 = 8;
/// One coin of every development asset, smallest units.
pub(crate) const COIN: u128 = 100_000_000;

/// A decimal text as smallest units.
pub(crate) fn units(text: &str) -> u128 {
    units_from_text(text, PRECISION).unwrap_or_else(|| panic!("{text:?} is no amount"))
}

/// The same of an amount that may be below zero.
pub(crate) fn signed_units(text: &str) -> i128 {
    let size = i128::try_from(units(text.trim_start_matches('-'))).expect("small");
    if text.starts_with('-') { -size } else { size }
}

/// The body of an external operation.
pub(crate) fn external(user: u64, asset: &str, amount: &str, idem_key: &str) -> Value {
    json!({"user_id": user, "asset": asset, "amount": amount, "idem_key": idem_key})
}

/// A user's balance of one asset, smallest units; `None`: no such account.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Balance {
    pub(crate) funding: Option<u128>,
    pub(crate) spot: Option<u128>,
    pub(crate) in_flight: i128,
}

impl Balance {
    pub(crate) fn sum(&self) -> u128 {
        let owned = self.funding.unwrap_or(0) + self.spot.unwrap_or(0);
        owned.checked_add_signed(self.in_flight).expect("small, and not below zero")
    }

    /// Nothing in flight, and coins on both sides.
    pub(crate) fn at_rest(funding: u128, spot: u128) -> Balance {
        Balance { funding: Some(funding), spot: Some(spot), in_flight: 0 }
    }
}

/// The direction of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    ToSpot,
    ToFunding,
}

impl Way {
    pub(crate) const BOTH: [Way; 2] = [Way::ToSpot, Way::ToFunding];

    /// Source and target, as the API names them.
    pub(crate) fn accounts(self) -> (&'static str, &'static str) {
        match self {
            Way::ToSpot => ("FUNDING", "SPOT"),
            Way::ToFunding => ("SPOT", "FUNDING"),
        }
    }

    /// The body of a transfer.
    pub(crate) fn body(self, asset: &str, amount: &str) -> Value {
        let (from, to) = self.accounts();
        json!({"from": from, "to": to, "asset": asset, "amount": amount})
    }

    /// The same with a cid.
    pub(crate) fn body_with_cid(self, asset: &str, amount: &str, cid: &str) -> Value {
        let mut body = self.body(asset, amount);
        body["cid"] = json!(cid);
        body
    }
}
