//! Virtual time, which passes only when everything waits.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use parking_lot::Mutex;

use crate::clock::{Clock, Sleep};

/// The virtual time of a run.
#[derive(Debug, Default)]
pub(super) struct Time(Mutex<Timers>);

#[derive(Debug, Default)]
struct Timers {
    now_ns: u64,
    next: u64,
    due: BinaryHeap<Reverse<(u64, u64)>>,
    wakers: BTreeMap<u64, Waker>,
}

#[derive(Default)]
struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Flag>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

impl Time {
    /// Runs to the end, on this thread.
    pub(super) fn run<T>(&self, work: impl Future<Output = T>) -> T {
        let mut work = pin!(work);
        let flag = Arc::new(Flag::default());
        let waker = Waker::from(Arc::clone(&flag));
        loop {
            if let Poll::Ready(done) = work.as_mut().poll(&mut Context::from_waker(&waker)) {
                return done;
            }
            if !flag.0.swap(false, Ordering::SeqCst) {
                self.pass();
            }
        }
    }

    /// Moves on to the next awaited time.
    fn pass(&self) {
        let waker = {
            let mut timers = self.0.lock();
            loop {
                let Reverse((due_ns, id)) = timers.due.pop().expect("something waits");
                if let Some(waker) = timers.wakers.remove(&id) {
                    timers.now_ns = timers.now_ns.max(due_ns);
                    break waker;
                }
            }
        };
        waker.wake();
    }
}

/// The clock of a run. It begins in 2023.
#[derive(Clone)]
pub(super) struct VirtualClock(pub(super) Arc<Time>);

const EPOCH_NS: u64 = 1_700_000_000_000_000_000;

impl VirtualClock {
    pub(super) fn now_ms(&self) -> u64 {
        self.monotonic_ns() / 1_000_000
    }

    pub(super) fn wait(&self, duration: Duration) -> Sleep {
        self.sleep(duration)
    }
}

impl Clock for VirtualClock {
    fn now_ns(&self) -> u64 {
        EPOCH_NS + self.monotonic_ns()
    }

    fn monotonic_ns(&self) -> u64 {
        self.0.0.lock().now_ns
    }

    fn sleep(&self, duration: Duration) -> Sleep {
        let wait = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        let due_ns = self.monotonic_ns().saturating_add(wait);
        Box::pin(Wait { time: Arc::clone(&self.0), due_ns, id: None })
    }
}

struct Wait {
    time: Arc<Time>,
    due_ns: u64,
    id: Option<u64>,
}

impl Future for Wait {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let time = Arc::clone(&self.time);
        let mut timers = time.0.lock();
        if self.due_ns <= timers.now_ns {
            return Poll::Ready(());
        }
        let id = match self.id {
            Some(id) => id,
            None => {
                timers.next += 1;
                let id = timers.next;
                timers.due.push(Reverse((self.due_ns, id)));
                self.id = Some(id);
                id
            }
        };
        timers.wakers.insert(id, context.waker().clone());
        Poll::Pending
    }
}

impl Drop for Wait {
    fn drop(&mut self) {
        if let Some(id) = self.id {
            self.time.0.lock().wakers.remove(&id);
        }
    }
}
