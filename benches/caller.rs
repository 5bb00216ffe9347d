//! The engine of the default configuration, and a caller of it that waits for each answer.

use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Duration;

use engine::command::Command;
use engine::ledger::Answer;
use engine::places::Places;
use engine::{Handle, Options};
use ubscore::clock::{Clock, SystemClock};
use ubscore::config::Config;
use ubscore::config::engine::Wait;

/// The engine of the default configuration, with as many places for outcomes as `orders` orders
/// need.
pub(crate) fn options(log_dir: PathBuf, orders: u64) -> Options {
    let config = Config::default();
    // A deposit takes one place. A withdrawal takes two, and at most every second order is one.
    let needed = usize::try_from(orders + orders / 2).expect("a count of records in memory");
    Options {
        snapshot_dir: log_dir.with_extension("snapshots"),
        log_dir,
        segment_bytes: config.wal.segment_bytes,
        spares_ready: config.wal.spares_ready,
        busy: config.engine.wait == Wait::Busy,
        cpu: None,
        ring_slots: config.engine.ring_slots,
        in_flight_max: config.engine.in_flight_max,
        places: Places::of_transfers(
            config.engine.accounts_max,
            needed.max(config.engine.outcomes_max),
        ),
        ends_kept: 0,
        idle_mark: Duration::from_millis(config.engine.idle_mark_ms),
        now: ubscore::clock::system_ns,
        notify: ubscore::last_words::notice,
    }
}

/// A caller that waits for each answer. It belongs to one thread, because the engine wakes that
/// thread.
pub(crate) struct Caller {
    handle: Handle,
    clock: SystemClock,
    waker: Waker,
}

impl Caller {
    /// A caller on the current thread.
    pub(crate) fn new(handle: Handle) -> Caller {
        let waker = Waker::from(Arc::new(Unpark(thread::current())));
        Caller { handle, clock: SystemClock::new(), waker }
    }

    /// Sends a command, and sleeps until its answer is durable.
    pub(crate) fn ask(&mut self, command: Command) -> Answer {
        let Ok(pending) = self.handle.submit(command, self.clock.now_ns()) else {
            return Answer::Overloaded;
        };
        let mut pending = pin!(pending);
        let mut context = Context::from_waker(&self.waker);
        loop {
            match pending.as_mut().poll(&mut context) {
                Poll::Ready(answer) => return answer.expect("the engine answers every command"),
                Poll::Pending => thread::park(),
            }
        }
    }
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}
