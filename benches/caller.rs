//! The calls of the engine's benches: rounds of orders with a sum known beforehand, one at a time.

use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Duration;

use domain::transfer::{Direction, Op};
use engine::command::Command;
use engine::ledger::Answer;
use engine::order::Order;
use engine::places::Places;
use engine::text::Text;
use engine::{Handle, Options};
use ubscore::clock::{Clock, SystemClock};
use ubscore::config::Config;
use ubscore::config::engine::Wait;

const ASSET: u32 = 1;
/// The amount of a deposit, smallest units.
const DEPOSIT: u64 = 2;
/// The amount of a withdrawal, smallest units.
const WITHDRAWAL: u64 = 1;

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
        idle_mark: Duration::from_millis(config.engine.idle_mark_ms),
        now: ubscore::clock::system_ns,
        notify: ubscore::last_words::notice,
    }
}

/// The commands before any order.
pub(crate) fn asset() -> Command {
    Command::RegisterAsset { asset: ASSET, precision: 8, symbol: Text::EMPTY }
}

/// A user's order of a round, counted from 0: deposits in even rounds, withdrawals in odd ones.
pub(crate) fn order(user: u64, round: u64) -> Command {
    let (op, amount, direction) = match round.is_multiple_of(2) {
        true => (Op::Deposit, DEPOSIT, Direction::FundingToSpot),
        false => (Op::Withdraw, WITHDRAWAL, Direction::SpotToFunding),
    };
    let req_id = (u128::from(user) << u64::BITS) | u128::from(round);
    let cid = Text::EMPTY;
    Command::Order(Order {
        op,
        req_id,
        cid,
        user,
        asset: ASSET,
        amount,
        direction,
        order_number: round,
    })
}

/// A user's balance after this many rounds, smallest units.
pub(crate) fn balance_after(rounds: u64) -> u128 {
    u128::from(rounds.div_ceil(2) * DEPOSIT - rounds / 2 * WITHDRAWAL)
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

    /// A user's balance, smallest units; `None` if there is no account.
    pub(crate) fn balance(&mut self, user: u64) -> Option<u128> {
        match self.ask(Command::ReadBalance { user, asset: ASSET }) {
            Answer::Balance { available, .. } => available,
            other => panic!("a balance was requested, not {other:?}"),
        }
    }
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}
