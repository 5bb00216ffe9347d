//! Time as a value that is passed in. Only this file reads the machine's clocks.
//!
//! All other code takes a [`Clock`]. So a simulation can run a year in a second, and a replay never
//! depends on the time of day.

use std::future::Future;
use std::pin::Pin;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Nanoseconds of a second.
pub const NS_PER_S: u64 = 1_000_000_000;

/// A wait as a future.
pub type Sleep = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The source of time: the machine in production, a number in the simulation.
pub trait Clock: Send + Sync + 'static {
    /// Nanoseconds since the Unix epoch, UTC. The time may jump, also backwards: never subtract two
    /// readings to measure a duration.
    fn now_ns(&self) -> u64;

    /// Nanoseconds since an arbitrary origin; never goes back. Only the difference of two readings
    /// of one clock has a meaning.
    fn monotonic_ns(&self) -> u64;

    /// Waits for `duration` on the monotonic clock.
    fn sleep(&self, duration: Duration) -> Sleep;

    /// Whole seconds since the Unix epoch, UTC, the unit of tokens.
    fn now_s(&self) -> u64 {
        self.now_ns() / NS_PER_S
    }
}

/// The machine's clocks.
#[derive(Clone, Debug)]
pub struct SystemClock {
    origin: Instant,
}

impl SystemClock {
    /// A clock with a monotonic reading that begins at zero now.
    pub fn new() -> Self {
        Self { origin: Instant::now() }
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

/// The machine's clock, ns since the Unix epoch.
pub fn system_ns() -> u64 {
    let since_epoch = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .expect("the machine's clock is before 1970: set it");
    u64::try_from(since_epoch.as_nanos())
        .expect("the machine's clock stands after the year 2554: set it")
}

impl Clock for SystemClock {
    fn now_ns(&self) -> u64 {
        system_ns()
    }

    fn monotonic_ns(&self) -> u64 {
        u64::try_from(self.origin.elapsed().as_nanos()).expect("up for less than 584 years")
    }

    fn sleep(&self, duration: Duration) -> Sleep {
        Box::pin(tokio::time::sleep(duration))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_and_nanoseconds_tell_the_same_time() {
        struct Fixed;
        impl Clock for Fixed {
            fn now_ns(&self) -> u64 {
                1_700_000_000_999_999_999
            }
            fn monotonic_ns(&self) -> u64 {
                0
            }
            fn sleep(&self, _duration: Duration) -> Sleep {
                Box::pin(std::future::ready(()))
            }
        }
        assert_eq!(Fixed.now_s(), 1_700_000_000);
    }

    #[test]
    fn the_system_clock_is_past_2020_and_never_steps_back() {
        let clock = SystemClock::new();
        assert!(clock.now_s() > 1_577_836_800, "{}", clock.now_s());
        let mut last = clock.monotonic_ns();
        for _ in 0..1_000 {
            let next = clock.monotonic_ns();
            assert!(next >= last, "{next} after {last}");
            last = next;
        }
    }
}
