//! A process: running, stopped for a while, or dead. A message reaches it only while it runs. So a
//! dead process does nothing more, and a stopped one continues at its last step without noticing
//! the delay.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::Duration;

use futures_util::future::{Either, select};
use parking_lot::Mutex;
use ubscore::clock::{Clock, Sleep};

use super::time::Time;

/// 2026-01-01, nanoseconds since the Unix epoch.
const EPOCH_NS: u64 = 1_767_225_600_000_000_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Life {
    Running,
    Stopped,
    Dead,
}

#[derive(Debug)]
pub(super) struct Process {
    /// Its incarnation.
    pub(super) number: u64,
    time: Arc<Time>,
    /// The lead of its wall clock.
    ahead_ns: u64,
    life: Mutex<(Life, Vec<Waker>)>,
}

impl Process {
    pub(super) fn new(number: u64, time: Arc<Time>, ahead_ns: u64) -> Arc<Process> {
        let life = Mutex::new((Life::Running, Vec::new()));
        Arc::new(Process { number, time, ahead_ns, life })
    }

    pub(super) fn life(&self) -> Life {
        self.life.lock().0
    }

    /// Changes a life that has not ended.
    pub(super) fn set(&self, life: Life) {
        let wakers = {
            let mut state = self.life.lock();
            if state.0 == Life::Dead {
                return;
            }
            state.0 = life;
            std::mem::take(&mut state.1)
        };
        for waker in wakers {
            waker.wake();
        }
    }

    /// Returns when the process runs: at once, after a stop, or never.
    pub(super) async fn awake(&self) {
        poll_fn(|context| {
            let mut state = self.life.lock();
            match state.0 {
                Life::Running => Poll::Ready(()),
                Life::Stopped => {
                    state.1.push(context.waker().clone());
                    Poll::Pending
                }
                Life::Dead => Poll::Pending,
            }
        })
        .await;
    }

    /// The result of a future within `limit`, by this process's clock; the wall clock decides
    /// nothing here.
    pub(super) async fn within<T>(
        &self,
        limit: Duration,
        doing: impl Future<Output = T>,
    ) -> Option<T> {
        let come = match select(pin!(doing), self.time.sleep(limit)).await {
            Either::Left((come, _)) => Some(come),
            Either::Right(((), _)) => None,
        };
        self.awake().await;
        come
    }
}

/// The clocks of one process.
pub(super) struct ProcessClock(pub(super) Arc<Process>);

impl Clock for ProcessClock {
    fn now_ns(&self) -> u64 {
        EPOCH_NS + self.0.ahead_ns + self.0.time.now_ns()
    }

    fn monotonic_ns(&self) -> u64 {
        self.0.time.now_ns()
    }

    fn sleep(&self, duration: Duration) -> Sleep {
        let (process, wait) = (Arc::clone(&self.0), self.0.time.sleep(duration));
        Box::pin(async move {
            wait.await;
            process.awake().await;
        })
    }
}
