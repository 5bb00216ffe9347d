//! How long something is kept.

use std::time::Duration;

use serde::Deserialize;

use super::{Error, range};

/// The least: a test's patience.
const HOURS_MIN: f64 = 0.000_01;
/// The most: ten years.
const HOURS_MAX: f64 = 87_600.0;

/// A time in hours, which need not be whole ones. Within its bounds once it is loaded.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(from = "f64")]
pub struct Hours(f64);

impl Hours {
    /// The time itself.
    pub fn duration(self) -> Duration {
        Duration::from_secs(3_600).mul_f64(self.0)
    }

    /// Refuses what is out of bounds; `key` is `section.key`. NaN is in no range.
    pub(super) fn check(self, key: &'static str) -> Result<(), Error> {
        if (HOURS_MIN..=HOURS_MAX).contains(&self.0) {
            return Ok(());
        }
        Err(range(key, self.0, format!("{HOURS_MIN}..={HOURS_MAX} hours")))
    }
}

impl From<f64> for Hours {
    fn from(hours: f64) -> Self {
        Self(hours)
    }
}

#[cfg(test)]
mod tests {
    use crate::config::tests::assert_refused;

    #[test]
    fn hours_are_above_nothing_and_below_ten_years() {
        assert_refused(&[
            (
                "[outcomes]\nkeep_hours = 0",
                "outcomes.keep_hours = 0: must be 0.00001..=87600 hours",
            ),
            ("[outcomes]\nkeep_hours = nan", "outcomes.keep_hours = NaN"),
            ("[outcomes]\nkeep_hours = 87601", "outcomes.keep_hours = 87601"),
            ("[events]\nkeep_hours = 0", "events.keep_hours = 0: must be 0.00001..=87600 hours"),
            ("[webhooks]\ndead_keep_hours = 0", "webhooks.dead_keep_hours = 0"),
        ]);
    }
}
