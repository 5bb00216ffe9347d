//! The till: drives each order at its channel, from its row, until nothing can be paid any more. It
//! sends paid money on to Spot, and payments back that no order takes.
//!
//! A row is due at its `next_at`, and everything that changes an order sets that time in the same
//! commit. [`step`] decides from the row alone what is due. Each try is written down before its
//! call, by the worker of the order's user, so a try of a superseded process is none. A look only
//! hurries: nothing stands here that is not in a row, beside what is in hand.
//!
//! Calls of channels block, so they run on threads of the runtime. Each channel has its own part of
//! them, its own rate, and its own due rows. So one that hangs delays no other.

mod call;
mod lane;
mod order;
mod rate;
mod refund;
pub mod step;
mod task;
mod watch;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use tokio::sync::mpsc;

use self::step::Pace;
use crate::adapters::Adapter;
use crate::channels::open::OpenChannels;
use crate::clock::Clock;
use crate::config::Config;
use crate::coordinator::Coordinator;
use crate::coordinator::recharges::Recharges;
use crate::entropy::Entropy;
use crate::gate::Gate;
use crate::postgres::reads::Reads;
use crate::recharge::RechargeId;
use crate::task::Tasks;

/// Orders that wait for the till's next look. A full queue loses nothing: the row has its time.
const LOOKS_MAX: usize = 1024;

/// The till, for everything that changes an order.
#[derive(Clone, Debug)]
pub struct Till {
    looks: mpsc::Sender<RechargeId>,
}

impl Till {
    /// A handle, and the end that the till's task listens at.
    pub fn new() -> (Till, mpsc::Receiver<RechargeId>) {
        let (looks, heard) = mpsc::channel(LOOKS_MAX);
        (Till { looks }, heard)
    }

    /// Has the till look at an order now rather than at its time. It changes nothing but the time.
    pub fn look(&self, id: RechargeId) {
        // Full, or stopping: the row is due at its time.
        let _ = self.looks.try_send(id);
    }
}

/// How the till works; see `[recharge]` in the configuration.
#[derive(Clone, Copy, Debug)]
pub struct TillOptions {
    /// From PAYING to the first question. It doubles with each further one.
    pub query_after: Duration,
    /// The longest pause between two calls about an order.
    pub query_cap: Duration,
    /// How long a transfer to Spot that is refused for now is tried again.
    pub follow_for: Duration,
    /// Calls of channels at the same time.
    pub parallel: usize,
    /// Calls of one channel in a second.
    pub calls_per_second_max: u32,
}

impl TillOptions {
    fn pace(&self) -> Pace {
        Pace { query_after: self.query_after, query_cap: self.query_cap }
    }
}

impl From<&Config> for TillOptions {
    fn from(config: &Config) -> TillOptions {
        let recharge = &config.recharge;
        TillOptions {
            query_after: Duration::from_millis(recharge.query_after_ms),
            query_cap: Duration::from_millis(recharge.query_cap_ms),
            follow_for: Duration::from_hours(recharge.follow_hours),
            parallel: recharge.parallel,
            calls_per_second_max: recharge.calls_per_second_max,
        }
    }
}

/// The parts that the till works with.
pub struct TillParts<T, F> {
    /// Writes orders and payments.
    pub recharges: Arc<Recharges<T, F>>,
    /// The channels.
    pub channels: Arc<OpenChannels>,
    /// The till begins once its workers have found what an earlier process has left.
    pub coordinator: Arc<Coordinator<T, F>>,
    /// Finds what is due.
    pub reads: Reads,
    /// Closed while the service is halted.
    pub gate: Arc<Gate>,
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// For pauses between tries.
    pub entropy: Box<dyn Entropy>,
    /// Set when the process may do nothing more.
    pub silent: Arc<AtomicBool>,
    /// How to work.
    pub options: TillOptions,
}

/// Starts the till. It ends when every [`Till`] of `heard` is dropped.
pub fn start<T: Adapter, F: Adapter>(
    parts: TillParts<T, F>,
    heard: mpsc::Receiver<RechargeId>,
    tasks: &mut Tasks,
) {
    tasks.run("till", task::TillTask::new(parts).run(heard));
}
