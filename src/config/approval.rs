//! Actions that need two operators.

use serde::de::Error as _;
use serde::{Deserialize, Deserializer};

use super::bound::{Bound, HOUR_MS, WEEK_MS, bound};
use super::names::names;
use crate::approval::Action;

/// The section `[approval]`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Approval {
    /// Actions that one operator requests and another operator must approve.
    #[serde(deserialize_with = "actions")]
    pub required: Vec<Action>,
    /// A request expires after this: it can no longer be approved or carried out, ms.
    pub expires_after_ms: u64,
}

impl Default for Approval {
    fn default() -> Self {
        Self { required: Vec::new(), expires_after_ms: HOUR_MS }
    }
}

/// The bounds of its whole numbers.
#[rustfmt::skip]
pub(super) const BOUNDS: &[Bound] = &[
    bound("approval.expires_after_ms", |c| Some(c.approval.expires_after_ms), 1_000, WEEK_MS, "ms"),
];

/// The actions with these names.
fn actions<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Action>, D::Error> {
    let names = names(deserializer)?;
    let known = |name: &String| {
        let unknown = || {
            let names = Action::ALL.map(Action::name).join(", ");
            D::Error::custom(format!("{name:?} is not one of {names}"))
        };
        Action::from_name(name).ok_or_else(unknown)
    };
    names.iter().map(known).collect()
}
