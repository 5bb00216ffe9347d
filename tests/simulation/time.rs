//! Virtual time, which passes only when all tasks wait, and the one thread that runs everything.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use parking_lot::Mutex;

/// Virtual time in nanoseconds since the run began.
#[derive(Debug, Default)]
pub(super) struct Time {
    timers: Mutex<Timers>,
}

#[derive(Debug, Default)]
struct Timers {
    now_ns: u64,
    id_next: u64,
    /// By time, and then in the order of the requests.
    due: BinaryHeap<Reverse<(u64, u64)>>,
    /// The waiting tasks.
    wakers: BTreeMap<u64, Waker>,
}

impl Time {
    pub(super) fn now_ns(&self) -> u64 {
        self.timers.lock().now_ns
    }

    pub(super) fn sleep(self: &Arc<Time>, duration: Duration) -> Wait {
        let wait = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        let due_ns = self.now_ns().saturating_add(wait);
        Wait { time: Arc::clone(self), due_ns, id: None }
    }

    /// Moves to the next awaited time. Called when the thread has nothing left to run.
    fn pass(&self) {
        let waker = {
            let mut timers = self.timers.lock();
            loop {
                let Reverse((due_ns, id)) = timers.due.pop().expect("a task always waits");
                if let Some(waker) = timers.wakers.remove(&id) {
                    timers.now_ns = timers.now_ns.max(due_ns);
                    break waker;
                }
            }
        };
        waker.wake();
    }

    /// Runs `work` and all its tasks on this thread, in virtual time, and drops the rest when
    /// `work` has ended.
    pub(super) fn run<T>(self: &Arc<Time>, work: impl Future<Output = T>) -> T {
        let time = Arc::clone(self);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .on_thread_park(move || time.pass())
            .build()
            .expect("no driver is needed");
        runtime.block_on(work)
    }
}

/// A wait for a time to come.
#[derive(Debug)]
pub(super) struct Wait {
    time: Arc<Time>,
    due_ns: u64,
    id: Option<u64>,
}

impl Future for Wait {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let time = Arc::clone(&self.time);
        let mut timers = time.timers.lock();
        if timers.now_ns >= self.due_ns {
            return Poll::Ready(());
        }
        let id = match self.id {
            Some(id) => id,
            None => {
                let id = timers.id_next;
                timers.id_next += 1;
                self.id = Some(id);
                id
            }
        };
        if timers.wakers.insert(id, context.waker().clone()).is_none() {
            timers.due.push(Reverse((self.due_ns, id)));
        }
        Poll::Pending
    }
}

impl Drop for Wait {
    fn drop(&mut self) {
        if let Some(id) = self.id {
            self.time.timers.lock().wakers.remove(&id);
        }
    }
}
