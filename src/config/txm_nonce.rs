//! The order of a signer's transactions, and how many are sent ahead.

use serde::Deserialize;
use txm::options::ExternalUse;

use super::bound::{Bound, HOUR_MS, WEEK_MS, bound};

/// The section `[txm.nonce]`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Nonce {
    /// Whether the chain's count is asked for again by time. It is always asked behind an acquire.
    pub chain_query: bool,
    /// Which count is asked for.
    pub chain_query_mode: CountMode,
    /// An answer of the chain is good for so long, ms.
    pub state_timeout_ms: u64,
    /// The reaction if the chain is ahead.
    pub external_use: ForeignUse,
    /// The longest jump of `follow`, nonces.
    pub jump_max: u64,
    /// A nonce that can never be sent is filled behind this time, ms.
    pub fill_after_ms: u64,
}

/// Which count of the chain is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CountMode {
    /// With the pool.
    Pending,
    /// The head alone.
    Latest,
}

impl CountMode {
    /// Whether the pool counts.
    pub fn is_pending(self) -> bool {
        self == CountMode::Pending
    }
}

/// The reaction if the chain has nonces that no row has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ForeignUse {
    /// The signer is suspended.
    Refuse,
    /// The cursor jumps.
    Follow,
}

impl From<ForeignUse> for ExternalUse {
    fn from(foreign: ForeignUse) -> ExternalUse {
        match foreign {
            ForeignUse::Refuse => ExternalUse::Refuse,
            ForeignUse::Follow => ExternalUse::Follow,
        }
    }
}

impl Default for Nonce {
    fn default() -> Self {
        Self {
            chain_query: true,
            chain_query_mode: CountMode::Pending,
            state_timeout_ms: 30_000,
            external_use: ForeignUse::Refuse,
            jump_max: 64,
            fill_after_ms: 300_000,
        }
    }
}

/// The section `[txm.submit]`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Submit {
    /// The most nonces of a signer that are signed and not mined; 0: no window.
    pub in_flight_max: usize,
}

impl Default for Submit {
    fn default() -> Self {
        Self { in_flight_max: 16 }
    }
}

/// The bounds of the whole numbers of both.
#[rustfmt::skip]
pub(super) const BOUNDS: &[Bound] = &[
    bound("txm.nonce.state_timeout_ms", |c| Some(c.txm.nonce.state_timeout_ms), 100, HOUR_MS, "ms"),
    bound("txm.nonce.jump_max", |c| Some(c.txm.nonce.jump_max), 1, 1_024, "nonces"),
    bound("txm.nonce.fill_after_ms", |c| Some(c.txm.nonce.fill_after_ms), 1_000, WEEK_MS, "ms"),
    bound("txm.submit.in_flight_max", |c| Some(c.txm.submit.in_flight_max as u64), 0, 1_024, "nonces"),
];
