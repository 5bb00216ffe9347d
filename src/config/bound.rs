//! The bounds of whole numbers: one table, read by the check and by the text of a type error.

use super::{Config, Error, range};

/// A minute, ms.
pub(super) const MINUTE_MS: u64 = 60_000;
/// Five minutes, ms.
pub(super) const FIVE_MINUTES_MS: u64 = 300_000;
/// An hour, ms.
pub(super) const HOUR_MS: u64 = 3_600_000;
/// A day, ms.
pub(super) const DAY_MS: u64 = 86_400_000;
/// A week, ms.
pub(super) const WEEK_MS: u64 = 604_800_000;

/// The least and the greatest value of one key. Each section has its own table.
pub(super) struct Bound {
    /// `section.key`.
    pub(super) key: &'static str,
    /// Reads the key; `None` if it is optional and absent.
    value: fn(&Config) -> Option<u64>,
    /// The least allowed value.
    pub(super) min: u64,
    /// The greatest allowed value.
    pub(super) max: u64,
    /// The unit, and further demands on the number.
    unit: &'static str,
}

/// A bound as one line of a section's table.
pub(super) const fn bound(
    key: &'static str,
    value: fn(&Config) -> Option<u64>,
    min: u64,
    max: u64,
    unit: &'static str,
) -> Bound {
    Bound { key, value, min, max, unit }
}

impl Bound {
    /// The allowed values, with the unit.
    pub(super) fn allowed(&self) -> String {
        format!("{}..={} {}", self.min, self.max, self.unit)
    }

    /// Refuses a number out of bounds.
    pub(super) fn check(&self, config: &Config) -> Result<(), Error> {
        let value = (self.value)(config);
        match value.filter(|value| !(self.min..=self.max).contains(value)) {
            Some(value) => Err(range(self.key, value, self.allowed())),
            None => Ok(()),
        }
    }
}
