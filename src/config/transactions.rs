//! Transactions over both stores and over participants.

use domain::transfer::Cid;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};

use super::bound::{Bound, HOUR_MS, MINUTE_MS, bound};
use super::names::names;

/// The section `[transactions]`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Transactions {
    /// The longest time that a transaction may stay undecided, ms.
    pub open_max_ms: u64,
    /// Between two looks at all unfinished transactions, ms.
    pub tick_ms: u64,
    /// Unfinished transactions.
    pub active_max: usize,
    /// Timeout of one call to a participant, ms.
    pub participant_timeout_ms: u64,
    /// Services that may move money from and to the outside, by the names of their tokens.
    #[serde(deserialize_with = "owners")]
    pub outside_owners: Vec<String>,
}

impl Default for Transactions {
    fn default() -> Self {
        Self {
            open_max_ms: 90_000,
            tick_ms: 1_000,
            active_max: 1_000,
            participant_timeout_ms: 5_000,
            outside_owners: Vec::new(),
        }
    }
}

/// Names of services.
fn owners<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    let names = names(deserializer)?;
    // A name has the form of a key.
    match names.iter().find(|name| Cid::new(name).is_none()) {
        None => Ok(names),
        Some(name) => Err(D::Error::custom(format!("{name:?} is not the name of a service"))),
    }
}

/// The bounds of its whole numbers.
#[rustfmt::skip]
pub(super) const BOUNDS: &[Bound] = &[
    bound("transactions.open_max_ms", |c| Some(c.transactions.open_max_ms), 1_000, HOUR_MS, "ms"),
    bound("transactions.tick_ms", |c| Some(c.transactions.tick_ms), 10, MINUTE_MS, "ms"),
    bound("transactions.active_max", |c| Some(c.transactions.active_max as u64), 1, 9_000, "transactions"),
    bound("transactions.participant_timeout_ms", |c| Some(c.transactions.participant_timeout_ms), 100, MINUTE_MS, "ms"),
];
