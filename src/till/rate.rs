//! The rate of calls of one channel, by the crate `governor`.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use governor::clock::Clock as _;
use governor::middleware::NoOpMiddleware;
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
    limiter: RateLimiter<NotKeyed, InMemoryState, Ticks, NoOpMiddleware<Nanos>>,
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

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;
    use crate::clock::Sleep;

    struct Set(AtomicU64);

    impl Clock for Set {
        fn now_ns(&self) -> u64 {
            self.monotonic_ns()
        }
        fn monotonic_ns(&self) -> u64 {
            self.0.load(Ordering::Relaxed)
        }
        fn sleep(&self, _duration: Duration) -> Sleep {
            Box::pin(std::future::ready(()))
        }
    }

    #[test]
    fn a_second_has_so_many_calls_and_no_more() {
        let count = |number| NonZeroU32::new(number).expect("not zero");
        let clock = Arc::new(Set(AtomicU64::new(1_000_000_000)));
        let rate = Rate::new(count(4), Arc::clone(&clock) as Arc<dyn Clock>);
        rate.take(count(3)).expect("room");
        rate.take(count(2)).expect_err("for one alone");
        rate.take(count(1)).expect("room");
        let pause = rate.take(count(1)).expect_err("none");
        clock.0.fetch_add(u64::try_from(pause.as_nanos()).expect("short"), Ordering::Relaxed);
        rate.take(count(1)).expect("room again");
        clock.0.fetch_add(10_000_000_000, Ordering::Relaxed);
        rate.take(count(9)).expect("one that is larger than a second takes all of it");
        rate.take(count(1)).expect_err("none");
    }
}
