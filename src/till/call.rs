//! One call of a channel, on a thread of its own, and the parts that all jobs of the till share.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use jiff::Timestamp;
use parking_lot::Mutex;
use tracing::error;

use super::parts::{TillOptions, TillParts};
use super::watch::{CallEnd, Watch};
use crate::channels::Channel;
use crate::channels::open::{OpenChannel, OpenChannels};
use crate::clock::Clock;
use crate::coordinator::recharges::Recharges;
use crate::entropy::Entropy;
use crate::gate::Gate;
use crate::postgres::reads::recharges::DueOrder;
use crate::recharge::RechargeId;

/// The most orders that are over and wait to be asked about. Bills find the rest.
const OVER_MAX: usize = 1024;

/// The parts that all jobs share.
pub(super) struct Shop<T, F> {
    pub(super) recharges: Arc<Recharges<T, F>>,
    pub(super) channels: Arc<OpenChannels>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) options: TillOptions,
    gate: Arc<Gate>,
    silent: Arc<AtomicBool>,
    entropy: Mutex<Box<dyn Entropy>>,
    watch: Watch,
    /// Orders that are over, to be asked about once.
    over: Mutex<BTreeMap<RechargeId, DueOrder>>,
}

impl<T, F> Shop<T, F> {
    pub(super) fn new(parts: TillParts<T, F>) -> Shop<T, F> {
        let TillParts { recharges, channels, clock, entropy, silent, options, gate, .. } = parts;
        Shop {
            recharges,
            channels,
            clock,
            options,
            gate,
            silent,
            entropy: Mutex::new(entropy),
            watch: Watch::default(),
            over: Mutex::default(),
        }
    }

    /// Whether nothing may be asked: the service is halted, or the process must end.
    pub(super) fn is_quiet(&self) -> bool {
        self.gate.is_closed() || self.silent.load(Ordering::Acquire)
    }

    /// Has an order that is over asked about, once there is room.
    pub(super) fn ask_over(&self, due: DueOrder) {
        let mut over = self.over.lock();
        if over.len() < OVER_MAX {
            over.insert(due.order.id, due);
        }
    }

    /// The orders that are over and were to be asked about.
    pub(super) fn take_over(&self) -> Vec<DueOrder> {
        std::mem::take(&mut *self.over.lock()).into_values().collect()
    }

    /// The time, as exact as PostgreSQL keeps it.
    pub(super) fn now(&self) -> Timestamp {
        let now_us = i64::try_from(self.clock.now_ns() / 1_000).expect("a date of today");
        Timestamp::from_microsecond(now_us).expect("a date of today")
    }

    pub(super) fn random(&self) -> u64 {
        self.entropy.lock().u64()
    }

    /// Calls a channel, and counts the end. `None`: the adapter broke, and nothing is known.
    pub(super) async fn call<R: CallEnd + Send + 'static>(
        &self,
        channel: &Arc<OpenChannel>,
        call: &'static str,
        work: impl FnOnce(&dyn Channel) -> R + Send + 'static,
    ) -> Option<R> {
        let began_ns = self.clock.monotonic_ns();
        let lent = Arc::clone(channel);
        let ended = tokio::task::spawn_blocking(move || work(&*lent.channel)).await;
        let now_ns = self.clock.monotonic_ns();
        let name = &channel.terms.name;
        match ended {
            Ok(end) => {
                let took = Duration::from_nanos(now_ns.saturating_sub(began_ns));
                self.watch.ended(name, call, &end, now_ns, took);
                Some(end)
            }
            Err(panicked) => {
                error!(channel = name, call, %panicked, "the adapter of a channel broke");
                None
            }
        }
    }
}
