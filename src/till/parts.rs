//! The parts and the options of the till.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use super::step::Pace;
use crate::channels::open::OpenChannels;
use crate::clock::Clock;
use crate::config::Config;
use crate::coordinator::Coordinator;
use crate::coordinator::recharges::Recharges;
use crate::entropy::Entropy;
use crate::gate::Gate;
use crate::postgres::reads::Reads;
use crate::recharge::RechargeId;

/// Why the till is to look at an order.
#[derive(Clone, Copy, Debug)]
pub enum Nudge {
    /// It was changed here, or its owner waits.
    Here(RechargeId),
    /// Its channel says that something may have changed there.
    There(RechargeId),
}

impl Nudge {
    /// The order.
    pub fn id(self) -> RechargeId {
        let (Nudge::Here(id) | Nudge::There(id)) = self;
        id
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
    pub(super) fn pace(&self) -> Pace {
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
    /// The till begins once its workers have found the transfers of an earlier process.
    pub coordinator: Arc<Coordinator<T, F>>,
    /// Finds the rows that are due.
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
