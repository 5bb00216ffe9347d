//! The bounds of new orders beside that of one user's open ones: a rate of each user, and the open
//! orders of all users.

use std::num::NonZeroU32;
use std::sync::{Arc, OnceLock};

use crate::clock::Clock;
use crate::postgres::Error;
use crate::postgres::reads::Reads;
use crate::quota::Refused;
use crate::quota::minute::PerMinute;
use domain::account::UserId;

/// For so long a count of the open orders is good, ns. This process's own new orders are added.
const COUNT_GOOD_NS: u64 = 1_000_000_000;

/// See the head of this file.
#[derive(Default)]
pub(super) struct Creates {
    rate: OnceLock<PerMinute>,
    /// When the open orders were counted, monotonic ns, and how many there were.
    open: tokio::sync::Mutex<Option<(u64, u64)>>,
}

impl Creates {
    /// Counts a create of a user.
    pub(super) fn count(
        &self,
        user: UserId,
        per_minute: u32,
        clock: &Arc<dyn Clock>,
    ) -> Result<(), Refused> {
        let Some(max) = NonZeroU32::new(per_minute) else { return Ok(()) };
        self.rate.get_or_init(|| PerMinute::new(max, Arc::clone(clock))).count(user)
    }

    /// The open orders of all users, up to `max`. Those that were closed in the last second may be
    /// among them.
    pub(super) async fn open(
        &self,
        reads: &Reads,
        max: u64,
        clock: &dyn Clock,
    ) -> Result<u64, Error> {
        let mut open = self.open.lock().await;
        let now_ns = clock.monotonic_ns();
        if let Some((at_ns, count)) = *open
            && now_ns.saturating_sub(at_ns) < COUNT_GOOD_NS
        {
            return Ok(count);
        }
        let count = reads.open_recharges(max).await?;
        *open = Some((now_ns, count));
        Ok(count)
    }

    /// A new order was made.
    pub(super) async fn opened(&self) {
        if let Some((_, count)) = &mut *self.open.lock().await {
            *count += 1;
        }
    }
}
