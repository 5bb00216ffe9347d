//! UBSCore's thread: its waiting, and the bounds of its memory.

use serde::Deserialize;

use super::bound::{Bound, bound};
use super::{Error, range};

/// The section `[engine]`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Engine {
    /// How the thread waits for work.
    pub wait: Wait,
    /// Index of the CPU that the thread is pinned to; absent: none.
    pub core: Option<u64>,
    /// Slots of the ring, a power of two.
    pub ring_slots: usize,
    /// The most orders that are published and not yet answered.
    pub in_flight_max: usize,
    /// The most Spot accounts in memory.
    pub accounts_max: usize,
    /// The most outcomes in memory.
    pub outcomes_max: usize,
    /// The most holds and freezes in memory.
    pub holds_max: usize,
    /// The most venues.
    pub venues_max: usize,
    /// The most numbers of a venue without an acknowledgement.
    pub window: usize,
    /// Idle time before a mark is appended to the log, ms.
    pub idle_mark_ms: u64,
}

/// How the engine's thread waits for work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Wait {
    /// Spins, yields, then parks; the producer wakes the thread.
    Adaptive,
    /// Spins without end: needs a core of its own.
    Busy,
}

impl Default for Engine {
    fn default() -> Self {
        Self {
            wait: Wait::Adaptive,
            core: None,
            ring_slots: 4_096,
            in_flight_max: 2_048,
            accounts_max: 1_000_000,
            outcomes_max: 4_000_000,
            holds_max: 1_000_000,
            venues_max: 8,
            window: 65_536,
            idle_mark_ms: 10,
        }
    }
}

/// The bounds of its whole numbers.
#[rustfmt::skip]
pub(super) const BOUNDS: &[Bound] = &[
    bound("engine.core", |c| c.engine.core, 0, 1_023, "as a CPU index"),
    bound("engine.ring_slots", |c| Some(c.engine.ring_slots as u64), 64, 1_048_576, "slots, a power of two"),
    bound("engine.in_flight_max", |c| Some(c.engine.in_flight_max as u64), 1, 524_288, "orders, at most half of engine.ring_slots"),
    bound("engine.accounts_max", |c| Some(c.engine.accounts_max as u64), 64, 100_000_000, "accounts"),
    bound("engine.outcomes_max", |c| Some(c.engine.outcomes_max as u64), 1_024, 100_000_000, "outcomes"),
    bound("engine.holds_max", |c| Some(c.engine.holds_max as u64), 64, 100_000_000, "holds and freezes"),
    bound("engine.venues_max", |c| Some(c.engine.venues_max as u64), 0, 64, "venues"),
    bound("engine.window", |c| Some(c.engine.window as u64), 64, 1_048_576, "numbers of a venue"),
    bound("engine.idle_mark_ms", |c| Some(c.engine.idle_mark_ms), 1, 10_000, "ms"),
];

impl Engine {
    /// Checks the relations between keys.
    pub(super) fn validate(&self) -> Result<(), Error> {
        if !self.ring_slots.is_power_of_two() {
            return Err(range("engine.ring_slots", self.ring_slots, "a power of two"));
        }
        if self.in_flight_max > self.ring_slots / 2 {
            let allowed = format!("at most half of engine.ring_slots, {}", self.ring_slots / 2);
            return Err(range("engine.in_flight_max", self.in_flight_max, allowed));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use crate::config::tests::assert_refused;

    #[test]
    fn slots_are_a_power_of_two_and_at_most_half_of_them_in_flight() {
        assert_refused(&[
            ("[engine]\nring_slots = 5000", "engine.ring_slots = 5000"),
            ("[engine]\nin_flight_max = 2049", "engine.in_flight_max = 2049"),
        ]);
    }
}
