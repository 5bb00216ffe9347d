//! The rate of calls of one channel, by the crate `governor`.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use governor::clock::Clock as _;
use governor::nanos::Nanos;
use governor::state::{InMemoryState, NotKeyed};
use governor::{Quota, RateLimiter};

use crate::clock::Clock;

/// Our clock in the form that `governor` needs.
#[derive(Clone)]
struct Ticks(Arc<dyn Clock>);

impl governor::clock::Clock for Ticks {
    type Instant = Nanos;

    fn now(&self) -> Nanos {
        Nanos::new(self.0.monotonic_ns())
    }
}

/// See the module.
pub(super) struct Rate {
    limiter: RateLimiter<NotKeyed, InMemoryState, Ticks>,
    per_second: NonZeroU32,
}

impl Rate {
    /// At most so many calls a second.
    pub(super) fn new(per_second: NonZeroU32, clock: Arc<dyn Clock>) -> Rate {
        let limiter = RateLimiter::direct_with_clock(Quota::per_second(per_second), Ticks(clock));
        Rate { limiter, per_second }
    }

    /// Takes room for so many calls.
    ///
    /// # Errors
    /// The time until there is room: nothing is taken.
    pub(super) fn take(&self, calls: NonZeroU32) -> Result<(), Duration> {
        let calls = calls.min(self.per_second);
        match self.limiter.check_n(calls).expect("no more than a second has") {
            Ok(()) => Ok(()),
            Err(until) => Err(until.wait_time_from(self.limiter.clock().now())),
        }
    }
}
