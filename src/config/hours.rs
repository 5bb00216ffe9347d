//! How long something is kept: a time in hours or in minutes, with the same bounds.

use std::time::Duration;

use serde::Deserialize;

use super::{Error, range};

/// Seconds of an hour.
const HOUR_S: u64 = 3_600;
/// Seconds of a minute.
const MINUTE_S: u64 = 60;

/// A time in hours; fractions are allowed.
pub type Hours = Span<HOUR_S>;
/// A time in minutes; fractions are allowed.
pub type Minutes = Span<MINUTE_S>;

/// A time in units of `UNIT_S` seconds. It is within its bounds after loading.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(from = "f64")]
pub struct Span<const UNIT_S: u64>(f64);

impl<const UNIT_S: u64> Span<UNIT_S> {
    /// The unit's name, and the least and the most of it: 36 ms, short enough for tests, and ten
    /// years.
    const BOUNDS: (&str, f64, f64) = match UNIT_S {
        HOUR_S => ("hours", 0.000_01, 87_600.0),
        MINUTE_S => ("minutes", 0.000_6, 5_256_000.0),
        _ => panic!("a unit without bounds"),
    };

    /// The same as a [`Duration`].
    pub fn duration(self) -> Duration {
        Duration::from_secs(UNIT_S).mul_f64(self.0)
    }

    /// Refuses a time out of bounds, and NaN, which is in no range. `key`: `section.key`.
    pub(super) fn check(self, key: &'static str) -> Result<(), Error> {
        let (unit, min, max) = Self::BOUNDS;
        if (min..=max).contains(&self.0) {
            return Ok(());
        }
        Err(range(key, self.0, format!("{min}..={max} {unit}")))
    }
}

impl<const UNIT_S: u64> From<f64> for Span<UNIT_S> {
    fn from(units: f64) -> Self {
        Self(units)
    }
}

#[cfg(test)]
mod tests {
    use crate::config::tests::assert_refused;

    #[test]
    fn a_time_is_above_nothing_and_below_ten_years() {
        assert_refused(&[
            (
                "[outcomes]\nkeep_hours = 0",
                "outcomes.keep_hours = 0: must be 0.00001..=87600 hours",
            ),
            ("[outcomes]\nkeep_hours = nan", "outcomes.keep_hours = NaN"),
            ("[outcomes]\nkeep_hours = 87601", "outcomes.keep_hours = 87601"),
            ("[events]\nkeep_hours = 0", "events.keep_hours = 0: must be 0.00001..=87600 hours"),
            ("[webhooks]\ndead_keep_hours = 0", "webhooks.dead_keep_hours = 0"),
            (
                "[outcomes]\nkeep_minutes = 0",
                "outcomes.keep_minutes = 0: must be 0.0006..=5256000 minutes",
            ),
        ]);
    }
}
