//! The ownership of signers: how long it lasts without its owner.

use serde::Deserialize;

use super::bound::{Bound, bound};
use super::{Error, range};

/// The section `[txm.lease]`. Every node of one database has the same values.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LeaseTimes {
    /// How long a lease lasts behind its last renewal, ms.
    pub duration_ms: u64,
    /// Between two renewals, ms.
    pub renew_interval_ms: u64,
    /// The distance that keeps the old owner's last send from the new owner's first, ms.
    pub skew_ms: u64,
}

impl Default for LeaseTimes {
    fn default() -> Self {
        Self { duration_ms: 10_000, renew_interval_ms: 3_000, skew_ms: 1_000 }
    }
}

/// The bounds of its whole numbers.
#[rustfmt::skip]
pub(super) const BOUNDS: &[Bound] = &[
    bound("txm.lease.duration_ms", |c| Some(c.txm.lease.duration_ms), 1_000, 30_000, "ms"),
    bound("txm.lease.renew_interval_ms", |c| Some(c.txm.lease.renew_interval_ms), 50, 15_000, "ms"),
    bound("txm.lease.skew_ms", |c| Some(c.txm.lease.skew_ms), 0, 7_500, "ms"),
];

impl LeaseTimes {
    /// Checks the relations between keys.
    pub(super) fn validate(&self) -> Result<(), Error> {
        let of_duration = |part: u64| {
            let most = self.duration_ms.div_ceil(part);
            format!("below {most} ms: txm.lease.duration_ms / {part}")
        };
        if self.renew_interval_ms.saturating_mul(2) >= self.duration_ms {
            return Err(range(
                "txm.lease.renew_interval_ms",
                self.renew_interval_ms,
                of_duration(2),
            ));
        }
        if self.skew_ms.saturating_mul(4) >= self.duration_ms {
            return Err(range("txm.lease.skew_ms", self.skew_ms, of_duration(4)));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use crate::config::tests::{assert_refused, load};

    #[test]
    fn a_lease_is_renewed_twice_and_outlasts_the_skew() {
        assert!(load("[txm.lease]\nrenew_interval_ms = 4999\nskew_ms = 2499", &[]).is_ok());
        assert_refused(&[
            (
                "[txm.lease]\nrenew_interval_ms = 5000",
                "txm.lease.renew_interval_ms = 5000: must be below 5000 ms",
            ),
            ("[txm.lease]\nskew_ms = 2500", "txm.lease.skew_ms = 2500: must be below 2500 ms"),
        ]);
    }
}
