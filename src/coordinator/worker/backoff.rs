//! The waits before another try: of a transfer, of a call, and of the store.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::ns;
use crate::entropy::Entropy;
use domain::transfer::ReqId;

/// The longest wait before a failed store is tried again, milliseconds. It may be back at any
/// time, and every call waits for it.
pub(super) const STORE_RETRY_MS_MAX: u64 = 1_000;
/// Failures of the store in a row that may pass without an alert, if it asks for another try.
const STORE_FAILURES_QUIET: u32 = 2;

/// Exponential back-off with full jitter.
pub(crate) struct Backoff {
    base_ms: u64,
    cap_ms: u64,
    entropy: Box<dyn Entropy>,
}

impl Backoff {
    pub(crate) fn new(base_ms: u64, cap_ms: u64, entropy: Box<dyn Entropy>) -> Backoff {
        Backoff { base_ms, cap_ms, entropy }
    }

    /// The wait after this many tries: 1..=min(cap, base * 2^(tries-1)) milliseconds.
    pub(crate) fn delay_ms(&mut self, tries: u32) -> u64 {
        let doubled = self.base_ms.saturating_mul(1 << tries.saturating_sub(1).min(32));
        1 + self.entropy.u64() % doubled.min(self.cap_ms).max(1)
    }
}

/// The failures of the store in a row.
#[derive(Debug, Default)]
pub(super) struct Outage {
    failures: u32,
    /// The store is not tried before, monotonic ns.
    retry_ns: u64,
}

impl Outage {
    /// A commit has failed as a whole.
    pub(super) fn failed(&mut self, now: u64, backoff: &mut Backoff) {
        self.failures = self.failures.saturating_add(1);
        self.retry_ns = now + ns(backoff.delay_ms(self.failures).min(STORE_RETRY_MS_MAX));
    }

    /// The store has answered, so it can be reached. Returns whether an outage that was no short
    /// one has ended.
    pub(super) fn ended(&mut self) -> bool {
        let was_long = !self.is_short();
        self.failures = 0;
        was_long
    }

    pub(super) fn is_over(&self) -> bool {
        self.failures == 0
    }

    /// Whether it is too short for an alert.
    pub(super) fn is_short(&self) -> bool {
        self.failures <= STORE_FAILURES_QUIET
    }

    /// When the store may be tried, monotonic ns.
    pub(super) fn retry_ns(&self) -> u64 {
        self.retry_ns
    }
}

/// The transfers that wait for their next try.
#[derive(Debug, Default)]
pub(super) struct Timers(BinaryHeap<Reverse<(u64, ReqId)>>);

impl Timers {
    /// Wakes a transfer at `due`, monotonic ns.
    pub(super) fn set(&mut self, due: u64, req_id: ReqId) {
        self.0.push(Reverse((due, req_id)));
    }

    /// A transfer that is due, the earliest first.
    pub(super) fn next(&mut self, now: u64) -> Option<ReqId> {
        let Reverse((due, _)) = *self.0.peek()?;
        if due > now {
            return None;
        }
        self.0.pop().map(|Reverse((_, req_id))| req_id)
    }

    /// Returns whether the transfer was waiting.
    pub(super) fn cancel(&mut self, req_id: ReqId) -> bool {
        let before = self.0.len();
        self.0.retain(|timer| timer.0.1 != req_id);
        self.0.len() < before
    }

    pub(super) fn holds(&self, req_id: ReqId) -> bool {
        self.0.iter().any(|timer| timer.0.1 == req_id)
    }

    /// When the next transfer is due, monotonic ns; `u64::MAX` for never.
    pub(super) fn due_ns(&self) -> u64 {
        self.0.peek().map_or(u64::MAX, |Reverse((due, _))| *due)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// The same number for ever.
    struct Constant(u64);

    impl Entropy for Constant {
        fn u64(&mut self) -> u64 {
            self.0
        }
    }

    /// A back-off that always draws the longest wait.
    pub(in super::super) fn longest(base_ms: u64, cap_ms: u64) -> Backoff {
        // One below a multiple of every bound in these tests.
        Backoff::new(base_ms, cap_ms, Box::new(Constant(1_000_000_000 - 1)))
    }

    fn req_id(number: u128) -> ReqId {
        ReqId::new(number).expect("not zero")
    }

    /// The longest wait doubles with each try up to the cap, and the shortest is never zero.
    #[test]
    fn a_wait_doubles_up_to_its_cap_and_is_never_zero() {
        let mut backoff = longest(10, 80);
        let waits: Vec<u64> = (0..6).map(|tries| backoff.delay_ms(tries)).collect();
        assert_eq!(waits, [10, 10, 20, 40, 80, 80]);
        assert_eq!(backoff.delay_ms(u32::MAX), 80);
        let mut shortest = Backoff::new(10, 80, Box::new(Constant(0)));
        assert!((0..40).all(|tries| shortest.delay_ms(tries) == 1));
        assert_eq!(Backoff::new(0, 0, Box::new(Constant(7))).delay_ms(1), 1);
    }

    #[test]
    fn a_store_that_fails_is_tried_again_within_a_second() {
        let (mut outage, mut backoff) = (Outage::default(), longest(400, 1_000_000));
        let mut waits = Vec::new();
        for failure in 1..=4 {
            outage.failed(5, &mut backoff);
            waits.push(outage.retry_ns() - 5);
            assert_eq!(outage.is_short(), failure <= 2, "{failure} failures");
            assert!(!outage.is_over());
        }
        assert_eq!(waits, [400, 800, 1_000, 1_000].map(ns));
        assert!(outage.ended() && outage.is_over());
        assert!(!outage.ended(), "it has ended before");
    }

    #[test]
    fn transfers_are_due_in_the_order_of_their_times() {
        let mut timers = Timers::default();
        for (due, number) in [(30, 1), (10, 2), (20, 3), (10, 4)] {
            timers.set(due, req_id(number));
        }
        assert!(timers.cancel(req_id(4)) && !timers.cancel(req_id(4)));
        assert_eq!(timers.due_ns(), 10);
        assert_eq!(timers.next(9), None);
        assert_eq!([timers.next(20), timers.next(20)], [2, 3].map(|n| Some(req_id(n))));
        assert_eq!(timers.next(20), None);
        assert!(timers.holds(req_id(1)) && !timers.holds(req_id(2)));
        assert_eq!(timers.next(u64::MAX), Some(req_id(1)));
        assert_eq!(timers.due_ns(), u64::MAX);
    }
}
