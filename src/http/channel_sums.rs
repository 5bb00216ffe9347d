//! The accounts of payment channels, as they were added up last. A read takes whole tables, so
//! requests share it.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Mutex;

use crate::clock::Clock;
use crate::postgres::Error;
use crate::postgres::reads::Reads;
use crate::postgres::reads::recharges::ChannelAccounts;

/// A read is shared this long, or [`REST`] times as long as it took, if that is longer.
const FRESH: Duration = Duration::from_secs(1);
/// Pause after a read, in multiples of its length.
const REST: u64 = 10;

/// The last read.
#[derive(Default)]
pub struct ChannelSums {
    last: Mutex<Option<Last>>,
}

struct Last {
    accounts: Arc<Vec<ChannelAccounts>>,
    /// Monotonic ns.
    ended_ns: u64,
    took_ns: u64,
}

impl ChannelSums {
    /// The accounts by channel and asset, at most a second old, or ten times as old as their read
    /// took. One read runs at a time.
    ///
    /// # Errors
    /// [`Error`]: PostgreSQL is away, or too slow.
    pub async fn read(
        &self,
        reads: &Reads,
        clock: &dyn Clock,
    ) -> Result<Arc<Vec<ChannelAccounts>>, Error> {
        let mut last = self.last.lock().await;
        let began_ns = clock.monotonic_ns();
        if let Some(last) = &*last {
            let fresh_ns = u64::try_from(FRESH.as_nanos()).unwrap_or(u64::MAX);
            let fresh_ns = fresh_ns.max(last.took_ns.saturating_mul(REST));
            if began_ns.saturating_sub(last.ended_ns) < fresh_ns {
                return Ok(Arc::clone(&last.accounts));
            }
        }
        let accounts = Arc::new(reads.channel_accounts().await?);
        let ended_ns = clock.monotonic_ns();
        let took_ns = ended_ns.saturating_sub(began_ns);
        *last = Some(Last { accounts: Arc::clone(&accounts), ended_ns, took_ns });
        Ok(accounts)
    }
}
