//! Prices and amounts of gas.

use serde::Deserialize;

use super::bound::{Bound, bound};

/// Wei of a gwei.
const GWEI: u128 = 1_000_000_000;

/// The section `[txm.fee]`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Fee {
    /// The highest price of a unit of gas, gwei.
    pub max_fee_gwei_max: u64,
    /// The highest tip of a first price, gwei.
    pub tip_gwei_max: u64,
    /// The most that one transaction may cost in gas, gwei.
    pub cost_gwei_max: u64,
    /// The step of both prices at a bump, percent.
    pub bump_percent: u64,
}

impl Default for Fee {
    fn default() -> Self {
        Self { max_fee_gwei_max: 500, tip_gwei_max: 5, cost_gwei_max: 50_000_000, bump_percent: 12 }
    }
}

/// The section `[txm.gas]`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Gas {
    /// The estimate times this, percent.
    pub margin_percent: u64,
    /// The highest gas limit.
    pub max: u64,
}

impl Default for Gas {
    fn default() -> Self {
        Self { margin_percent: 120, max: 1_000_000 }
    }
}

/// The bounds of the whole numbers of both.
#[rustfmt::skip]
pub(super) const BOUNDS: &[Bound] = &[
    bound("txm.fee.max_fee_gwei_max", |c| Some(c.txm.fee.max_fee_gwei_max), 1, 100_000, "gwei"),
    bound("txm.fee.tip_gwei_max", |c| Some(c.txm.fee.tip_gwei_max), 0, 10_000, "gwei"),
    bound("txm.fee.cost_gwei_max", |c| Some(c.txm.fee.cost_gwei_max), 21_000, 1_000_000_000_000, "gwei"),
    bound("txm.fee.bump_percent", |c| Some(c.txm.fee.bump_percent), 10, 100, "percent"),
    bound("txm.gas.margin_percent", |c| Some(c.txm.gas.margin_percent), 100, 300, "percent"),
    bound("txm.gas.max", |c| Some(c.txm.gas.max), 21_000, 30_000_000, "gas"),
];

/// Gwei in wei.
pub(super) fn wei(gwei: u64) -> u128 {
    u128::from(gwei) * GWEI
}
