//! All random choices, from one seed.

use std::time::Duration;

use ubscore::entropy::Entropy;

use crate::harness::split_mix;

/// Numbers from one seed.
#[derive(Clone, Debug)]
pub(super) struct Chance(u64);

impl Chance {
    pub(super) fn new(seed: u64) -> Chance {
        Chance(seed)
    }

    pub(super) fn draw(&mut self) -> u64 {
        split_mix(&mut self.0)
    }

    /// 0..`end`.
    pub(super) fn below(&mut self, end: u64) -> u64 {
        self.draw() % end
    }

    /// `low`..=`high`.
    pub(super) fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low + 1)
    }

    /// True once in `n` times; never for 0.
    pub(super) fn one_in(&mut self, n: u64) -> bool {
        n > 0 && self.below(n) == 0
    }

    pub(super) fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        let count = u64::try_from(choices.len()).expect("few");
        choices[usize::try_from(self.below(count)).expect("few")]
    }

    pub(super) fn micros(&mut self, low: u64, high: u64) -> Duration {
        Duration::from_micros(self.between(low, high))
    }

    /// A separate generator, so that draws of one part do not change those of another.
    pub(super) fn fork(&mut self) -> Chance {
        Chance(self.draw())
    }
}

impl Entropy for Chance {
    fn u64(&mut self) -> u64 {
        self.draw()
    }
}
