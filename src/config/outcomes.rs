//! How long UBSCore keeps outcomes in its map.

use std::time::Duration;

use serde::Deserialize;

use super::Error;
use super::bound::{Bound, HOUR_MS, bound};
use super::hours::{Hours, Minutes};

/// The most places of the outcome map that a transfer takes: those of a WITHDRAW and of the REFUND
/// that it may still need.
const PLACES_A_TRANSFER: u128 = 2;

/// The section `[outcomes]`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Outcomes {
    /// A transfer must be terminal for this long before UBSCore may evict its outcomes, minutes.
    pub keep_minutes: Minutes,
    /// The same in hours; replaces the minutes.
    pub keep_hours: Option<Hours>,
    /// Time between two evictions, ms.
    pub evict_every_ms: u64,
}

impl Default for Outcomes {
    fn default() -> Self {
        Self { keep_minutes: Minutes::from(2.0), keep_hours: None, evict_every_ms: 10_000 }
    }
}

/// The bounds of its whole numbers.
#[rustfmt::skip]
pub(super) const BOUNDS: &[Bound] = &[
    bound("outcomes.evict_every_ms", |c| Some(c.outcomes.evict_every_ms), 10, HOUR_MS, "ms"),
];

impl Outcomes {
    /// Checks the keys that are not whole numbers.
    pub(super) fn validate(&self) -> Result<(), Error> {
        self.keep_minutes.check("outcomes.keep_minutes")?;
        self.keep_hours.map_or(Ok(()), |hours| hours.check("outcomes.keep_hours"))
    }

    /// How long a transfer must be terminal before UBSCore may evict its outcomes.
    pub fn keep(&self) -> Duration {
        self.keep_hours.map_or(self.keep_minutes.duration(), Hours::duration)
    }

    /// The transfers per second that a map of so many places carries without an end. At this rate
    /// four fifths of the places are taken, and the alert `places_low` comes beyond it.
    ///
    /// An outcome stays for the keep time and for up to two searches: one sees it terminal, and a
    /// later one forgets it. UBSCore's walk over the map then takes an eighth of that time at most.
    pub fn rate_max(&self, outcomes_max: usize) -> u64 {
        let stay_ms = (self.keep() + 2 * self.every()).as_millis() * 9 / 8;
        let places = outcomes_max as u128 * 4 / 5;
        u64::try_from(places * 1_000 / PLACES_A_TRANSFER / stay_ms.max(1)).unwrap_or(u64::MAX)
    }

    /// Time between two evictions.
    pub fn every(&self) -> Duration {
        Duration::from_millis(self.evict_every_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::super::Config;
    use super::super::tests::{load, refusal};
    use super::*;

    /// The highest rate that one machine was seen to reach, transfers/s.
    const RATE_BEST: u64 = 10_000;

    /// Goal: a service at the best rate never fills its map by the defaults. Method: the formula.
    #[test]
    fn the_default_map_carries_the_best_rate() {
        let config = Config::default();
        let rate = config.outcomes.rate_max(config.engine.outcomes_max);
        assert!((RATE_BEST..2 * RATE_BEST).contains(&rate), "{rate}");
        let day = Outcomes { keep_hours: Some(Hours::from(24.0)), ..Outcomes::default() };
        assert_eq!(day.rate_max(100_000_000), 411);
    }

    #[test]
    fn minutes_and_hours_replace_each_other() {
        let minute = Duration::from_secs(60);
        for (text, environment, want) in [
            ("", &[][..], 2 * minute),
            ("[outcomes]\nkeep_minutes = 5", &[], 5 * minute),
            ("[outcomes]\nkeep_hours = 24", &[], 24 * 60 * minute),
            (
                "[outcomes]\nkeep_minutes = 5",
                &[("UBSCORE__OUTCOMES__KEEP_HOURS", "1")],
                60 * minute,
            ),
            ("[outcomes]\nkeep_hours = 5", &[("UBSCORE__OUTCOMES__KEEP_MINUTES", "1")], minute),
        ] {
            let config = load(text, environment).expect(text);
            assert_eq!(config.outcomes.keep(), want, "{text}");
        }
        let both = refusal("[outcomes]\nkeep_minutes = 5\nkeep_hours = 1", &[]);
        let start = "outcomes.keep_minutes and outcomes.keep_hours are both given";
        assert!(both.starts_with(start), "{both}");
    }
}
