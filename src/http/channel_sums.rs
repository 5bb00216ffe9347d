//! The accounts of payment channels, as they were added up last. A read takes whole tables, so
//! requests share it, and one that fails is not tried again at once.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Mutex;

use crate::clock::Clock;
use crate::postgres::Error;
use crate::postgres::reads::recharges::ChannelAccounts;

/// A read is shared this long, or [`REST`] times as long as it took, if that is longer.
const FRESH: Duration = Duration::from_secs(1);
/// Pause after a read, in multiples of its length.
const REST: u64 = 10;
/// The longest wait of a request for a read. The read goes on without it.
const WAIT: Duration = Duration::from_secs(5);

/// There are no sums now.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChannelSumsError {
    /// The last read failed.
    #[error("the last read failed: {0}")]
    Failed(String),
    /// A read is under way, and takes longer than a request waits.
    #[error("the read takes long")]
    Slow,
}

type Sums = Result<Arc<Vec<ChannelAccounts>>, ChannelSumsError>;

/// The last read.
#[derive(Default)]
pub struct ChannelSums {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    last: parking_lot::Mutex<Option<Last>>,
    /// Held by the read that is under way.
    reading: Mutex<()>,
}

struct Last {
    sums: Sums,
    /// Monotonic ns.
    ended_ns: u64,
    took_ns: u64,
}

impl ChannelSums {
    /// The accounts by channel and asset, at most a second old, or ten times as old as their read
    /// took. One `sum` runs at a time, to its end. A failure stands for the same time.
    ///
    /// # Errors
    /// [`ChannelSumsError`]: there are no sums now.
    pub async fn read(
        &self,
        clock: &Arc<dyn Clock>,
        sum: impl Future<Output = Result<Vec<ChannelAccounts>, Error>> + Send + 'static,
    ) -> Sums {
        if let Some(known) = self.shared.known(&**clock) {
            return known;
        }
        let (shared, of_read) = (Arc::clone(&self.shared), Arc::clone(clock));
        let reading = tokio::spawn(async move { shared.renew(&*of_read, sum).await });
        tokio::select! {
            biased;
            ended = reading => {
                ended.unwrap_or_else(|broken| Err(ChannelSumsError::Failed(broken.to_string())))
            }
            () = clock.sleep(WAIT) => Err(ChannelSumsError::Slow),
        }
    }
}

impl Shared {
    /// The last read, if it still counts.
    fn known(&self, clock: &dyn Clock) -> Option<Sums> {
        let now_ns = clock.monotonic_ns();
        let last = self.last.lock();
        let last = last.as_ref()?;
        let fresh_ns = u64::try_from(FRESH.as_nanos()).unwrap_or(u64::MAX);
        let fresh_ns = fresh_ns.max(last.took_ns.saturating_mul(REST));
        let is_fresh = now_ns.saturating_sub(last.ended_ns) < fresh_ns;
        is_fresh.then(|| last.sums.clone())
    }

    /// Adds up, unless another read has ended meanwhile.
    async fn renew(
        &self,
        clock: &dyn Clock,
        sum: impl Future<Output = Result<Vec<ChannelAccounts>, Error>>,
    ) -> Sums {
        let _one = self.reading.lock().await;
        if let Some(known) = self.known(clock) {
            return known;
        }
        let began_ns = clock.monotonic_ns();
        let sums = sum.await.map(Arc::new);
        let sums = sums.map_err(|error| ChannelSumsError::Failed(error.to_string()));
        let ended_ns = clock.monotonic_ns();
        let took_ns = ended_ns.saturating_sub(began_ns);
        *self.last.lock() = Some(Last { sums: sums.clone(), ended_ns, took_ns });
        sums
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;
    use crate::clock::Sleep;

    /// A time that the test sets. No wait on it ends.
    #[derive(Clone, Default)]
    struct SetClock(Arc<AtomicU64>);

    impl Clock for SetClock {
        fn now_ns(&self) -> u64 {
            self.monotonic_ns()
        }

        fn monotonic_ns(&self) -> u64 {
            self.0.load(Ordering::SeqCst)
        }

        fn sleep(&self, _duration: Duration) -> Sleep {
            Box::pin(std::future::pending())
        }
    }

    const S: u64 = 1_000_000_000;

    /// Goal: sums that fail after a long time are not tried again at once.
    #[tokio::test]
    async fn a_failed_read_rests_ten_times_as_long_as_it_took() {
        let (time, sums) = (SetClock::default(), ChannelSums::default());
        let clock: Arc<dyn Clock> = Arc::new(time.clone());
        let slow = time.clone();
        let failed = sums.read(&clock, async move {
            slow.0.store(5 * S, Ordering::SeqCst);
            Err(Error::Timeout(Duration::from_secs(5)))
        });
        assert!(matches!(failed.await, Err(ChannelSumsError::Failed(_))));
        time.0.store(54 * S, Ordering::SeqCst);
        let early = sums.read(&clock, async { Ok(Vec::new()) }).await;
        assert!(matches!(early, Err(ChannelSumsError::Failed(_))), "{early:?}");
        time.0.store(55 * S, Ordering::SeqCst);
        let later = sums.read(&clock, async { Ok(Vec::new()) }).await;
        assert!(later.is_ok(), "{later:?}");
    }

    /// Goal: a request that is gone does not end the read, and its sums are there for the next one.
    #[tokio::test]
    async fn a_read_goes_on_without_its_request() {
        let (time, sums) = (SetClock::default(), ChannelSums::default());
        let clock: Arc<dyn Clock> = Arc::new(time);
        let (let_go, held) = tokio::sync::oneshot::channel::<()>();
        let first = sums.read(&clock, async move {
            held.await.expect("the test lets go");
            Ok(Vec::new())
        });
        let gone = tokio::select! {
            biased;
            done = first => Some(done),
            () = tokio::task::yield_now() => None,
        };
        assert!(gone.is_none());
        let_go.send(()).expect("the read is under way");
        let second = sums.read(&clock, async { Err(Error::Timeout(Duration::from_secs(5))) });
        assert!(second.await.is_ok(), "the second read does not run");
    }
}
