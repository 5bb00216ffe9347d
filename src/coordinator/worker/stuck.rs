//! The alert about transfers that have been under way for too long.

use super::active::Active;
use super::{Worker, ns};
use crate::adapters::Adapter;
use crate::alert::{Alert, alert_about};
use crate::clock::NS_PER_S;

/// Checks within the time after which a transfer is stuck.
const CHECKS: u64 = 4;

/// See the module.
#[derive(Debug)]
pub(super) struct Stuck {
    after_ns: u64,
    /// When the next check is due, monotonic ns.
    due_ns: u64,
    /// When the service was last resumed, monotonic ns. A halt makes no transfer stuck.
    resumed_ns: u64,
}

impl Stuck {
    pub(super) fn new(after_ms: u64) -> Stuck {
        Stuck { after_ns: ns(after_ms), due_ns: 0, resumed_ns: 0 }
    }

    pub(super) fn due_ns(&self) -> u64 {
        self.due_ns
    }

    /// The service is resumed.
    pub(super) fn resumed(&mut self, now: u64) {
        self.resumed_ns = now;
    }

    /// The age that counts for a transfer in hand since `started_ns`.
    fn age_ns(&self, now: u64, started_ns: u64) -> u64 {
        now - started_ns.max(self.resumed_ns)
    }

    /// The oldest stuck transfer, by start and order number, and the number of all stuck ones.
    fn check<K: Ord>(
        &mut self,
        now: u64,
        in_hand: impl Iterator<Item = (u64, u64, K)>,
    ) -> Option<((u64, u64, K), usize)> {
        self.due_ns = now + self.after_ns / CHECKS;
        let mut count = 0;
        let stuck =
            in_hand.filter(|(started_ns, ..)| self.age_ns(now, *started_ns) > self.after_ns);
        let oldest = stuck.inspect(|_| count += 1).min();
        oldest.map(|oldest| (oldest, count))
    }
}

impl<T: Adapter, F: Adapter> Worker<T, F> {
    /// Alerts about the stuck transfers: one alert per check, with the oldest as the example.
    pub(super) fn look_for_stuck(&mut self) {
        let now = self.now();
        if now < self.stuck.due_ns() || self.parts.gate.is_closed() {
            return;
        }
        let in_hand = self
            .active
            .iter()
            .map(|(req_id, active)| (active.started_ns, active.order_number(), *req_id));
        let Some(((started_ns, order_number, req_id), count)) = self.stuck.check(now, in_hand)
        else {
            return;
        };
        let Active { row, .. } = &self.active[&req_id];
        let (seconds, others) = (self.stuck.age_ns(now, started_ns) / NS_PER_S, count - 1);
        let waits_for = row.state.waits_for(row.direction);
        let waits_for = waits_for.map_or("its last commit".to_owned(), |(participant, op)| {
            format!("{} {}", participant.account(), op.name())
        });
        let why = self.hands.last_error(self.shard, order_number);
        let why = why.map_or("no answer yet".to_owned(), |error| error.text);
        let what = format_args!(
            "{req_id} has been under way for {seconds} s and is {}, waiting for {waits_for}: \
             {why}; {others} others of shard {} are stuck too",
            row.state.name(),
            self.shard
        );
        alert_about(Alert::TransferStuck, &req_id, what);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_of_the_stuck_is_the_example() {
        let mut stuck = Stuck::new(1);
        let in_hand = [(30, 1, "young"), (10, 7, "a"), (10, 5, "b"), (20, 3, "c")];
        let mut check = |now| stuck.check(now, in_hand.into_iter());
        assert_eq!(check(ns(1) + 10), None, "as old as allowed");
        assert_eq!(check(ns(1) + 11), Some(((10, 5, "b"), 2)));
        assert_eq!(check(ns(1) + 21), Some(((10, 5, "b"), 3)));
        assert_eq!(stuck.due_ns(), ns(1) + 21 + ns(1) / 4);
    }

    #[test]
    fn the_time_of_a_halt_makes_no_transfer_stuck() {
        let mut stuck = Stuck::new(1);
        stuck.resumed(500);
        let mut check = |now| stuck.check(now, [(10, 1, ())].into_iter()).is_some();
        assert!(!check(ns(1) + 500));
        assert!(check(ns(1) + 501));
    }
}
