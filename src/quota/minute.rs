//! Requests of each user a minute, of a kind that few are sent of.

use std::num::NonZeroU32;
use std::sync::Arc;

use governor::{Quota, RateLimiter};

use super::{Monotonic, PerUser, Refused, count};
use crate::clock::Clock;
use domain::account::UserId;

/// A burst of one minute's requests of a user, and from then on that many a minute. Counted in
/// memory only.
pub struct PerMinute(PerUser);

impl PerMinute {
    /// At most `max` a minute.
    pub fn new(max: NonZeroU32, clock: Arc<dyn Clock>) -> PerMinute {
        let limiter = RateLimiter::hashmap_with_clock(Quota::per_minute(max), Monotonic(clock));
        PerMinute(limiter.with_middleware())
    }

    /// Counts a request.
    ///
    /// # Errors
    /// [`Refused`]: RATE_LIMIT_EXCEEDED with the time of the next one, or OVERLOADED.
    pub fn count(&self, user: UserId) -> Result<(), Refused> {
        count(&self.0, user).map(drop)
    }
}
