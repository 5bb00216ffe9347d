//! A time in hours: how long something is kept.

use std::time::Duration;

use serde::Deserialize;

use super::{Error, range};

/// The least, hours: 36 ms, short enough for tests.
const HOURS_MIN: f64 = 0.000_01;
/// The most, hours: ten years.
const HOURS_MAX: f64 = 87_600.0;

/// A time in hours; fractions are allowed. It is within its bounds after loading.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(from = "f64")]
pub struct Hours(f64);

impl Hours {
    /// The same as a [`Duration`].
    pub fn duration(self) -> Duration {
        Duration::from_secs(3_600).mul_f64(self.0)
    }

    /// Refuses a time out of bounds, and NaN, which is in no range. `key`: `section.key`.
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
