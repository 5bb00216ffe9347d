//! The order numbers of one incarnation: each worker publishes the lowest one that it has under
//! way, so that the watermark never passes it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use parking_lot::Mutex;

use crate::postgres::incarnation::ORDER_NUMBER_BITS;
use crate::postgres::watermark::Open;

/// Order numbers of one incarnation, and those that are in use.
#[derive(Debug)]
pub(crate) struct Numbers {
    next: AtomicU64,
    workers: Box<[InUse]>,
    /// UBSCore may have forgotten outcomes below it.
    forgotten_below: AtomicU64,
}

#[derive(Debug, Default)]
struct InUse {
    /// No transfer of this worker below it is under way. 0 until the worker has read its shard.
    low: AtomicU64,
    /// The same for those that are not in `old`.
    young: AtomicU64,
    /// Transfers that have been under way for many flights.
    old: Mutex<Vec<u64>>,
    /// Transfers under way.
    count: AtomicUsize,
}

impl Numbers {
    pub(super) fn new(incarnation: u64, workers: u32, watermark: u64) -> Numbers {
        assert!(workers > 0, "a pool without workers");
        Numbers {
            next: AtomicU64::new(incarnation << ORDER_NUMBER_BITS),
            workers: (0..workers).map(|_| InUse::default()).collect(),
            forgotten_below: AtomicU64::new(watermark),
        }
    }

    /// Publishes a minimum for this worker, then draws the next number.
    pub(super) fn take(&self, worker: usize) -> u64 {
        let InUse { low, young, .. } = &self.workers[worker];
        // The minimum is published before the number is drawn: a reader that sees the number drawn
        // sees the minimum.
        let next = self.next.load(Ordering::SeqCst);
        low.fetch_min(next, Ordering::SeqCst);
        young.fetch_min(next, Ordering::SeqCst);
        let number = self.next.fetch_add(1, Ordering::SeqCst);
        let counter = number % (1 << ORDER_NUMBER_BITS);
        assert!(counter + 1 < 1 << ORDER_NUMBER_BITS, "2^40 orders in one incarnation");
        let minimum = low.load(Ordering::SeqCst);
        assert!(minimum <= number, "worker {worker}: {number} is below its minimum {minimum}");
        number
    }

    /// `low`: the lowest number under way in this worker, 0 while unknown, `u64::MAX` for none.
    pub(super) fn publish(&self, worker: usize, low: u64, count: usize) {
        assert!(
            low == 0 || (low == u64::MAX) == (count == 0),
            "worker {worker}: {count} transfers under way from {low} on"
        );
        self.workers[worker].low.store(low, Ordering::SeqCst);
        self.set_count(worker, count);
    }

    /// Publishes the transfers of this worker that have been under way for many flights, and the
    /// lowest number of the others: 0 while unknown, `u64::MAX` for none.
    pub(super) fn publish_old(&self, worker: usize, young: u64, old: Vec<u64>) {
        let InUse { young: published, old: listed, .. } = &self.workers[worker];
        // The list first: a reader that sees the higher minimum sees the list.
        *listed.lock() = old;
        published.store(young, Ordering::SeqCst);
    }

    /// Where all transfers under way are. `None` until every worker has read its shard.
    pub(super) fn open(&self) -> Option<Open> {
        let mut open = Open { from: self.next(), old: Vec::new() };
        for InUse { young, old, .. } in &self.workers {
            open.from = open.from.min(young.load(Ordering::SeqCst));
            open.old.extend(old.lock().iter());
        }
        (open.from > 0).then_some(open)
    }

    /// Transfers under way in this worker. Updated as soon as one is added, so that admission
    /// counts it either here or in the queue.
    pub(super) fn set_count(&self, worker: usize, count: usize) {
        self.workers[worker].count.store(count, Ordering::Relaxed);
    }

    /// Every later number is this one or higher.
    pub(super) fn next(&self) -> u64 {
        self.next.load(Ordering::SeqCst)
    }

    /// Every transfer of this worker, under way or later, has this number or a higher one. 0 until
    /// the worker has read its shard.
    pub(super) fn low(&self, worker: usize) -> u64 {
        let next = self.next();
        self.workers[worker].low.load(Ordering::SeqCst).min(next)
    }

    pub(super) fn all_have_looked(&self) -> bool {
        self.workers.iter().all(|worker| worker.low.load(Ordering::SeqCst) > 0)
    }

    /// Every transfer below this number is durably terminal in the store, and no accept can come
    /// with a lower one. `None` until every worker has read its shard.
    pub(super) fn over(&self) -> Option<u64> {
        let next = self.next();
        let lows = self.workers.iter().map(|worker| worker.low.load(Ordering::SeqCst));
        let low = lows.fold(next, u64::min);
        (low > 0).then_some(low)
    }

    /// Called before UBSCore may forget.
    pub(super) fn forget_below(&self, watermark: u64) {
        self.forgotten_below.fetch_max(watermark, Ordering::SeqCst);
    }

    /// UBSCore may have forgotten outcomes below it. Read it after UBSCore has answered that
    /// nothing is recorded: it decides whether the outcome can have been forgotten.
    pub(super) fn forgotten_below(&self) -> u64 {
        self.forgotten_below.load(Ordering::SeqCst)
    }

    pub(super) fn count(&self) -> usize {
        self.workers.iter().map(|worker| worker.count.load(Ordering::Relaxed)).sum()
    }
}

/// The place of transactions among the order numbers: they share them with transfers, and the
/// watermark waits for the lowest one that Funding or Spot has not ended.
#[derive(Clone, Debug)]
pub struct TransactionNumbers {
    numbers: Arc<Numbers>,
    slot: usize,
}

impl TransactionNumbers {
    /// From now on the watermark waits until the worker of transactions has read its rows.
    pub(super) fn begin(numbers: Arc<Numbers>, slot: usize) -> TransactionNumbers {
        numbers.publish(slot, 0, 0);
        numbers.publish_old(slot, 0, Vec::new());
        TransactionNumbers { numbers, slot }
    }

    /// Order numbers without a coordinator, for a model.
    #[cfg(test)]
    pub(crate) fn alone(incarnation: u64) -> TransactionNumbers {
        TransactionNumbers::begin(Arc::new(Numbers::new(incarnation, 1, 0)), 0)
    }

    /// Draws the next number. The watermark does not pass it before a later
    /// [`TransactionNumbers::publish`].
    pub fn take(&self) -> u64 {
        self.numbers.take(self.slot)
    }

    /// Publishes the lowest number in use, `None` for none, and how many are in use.
    pub fn publish(&self, low: Option<u64>, count: usize) {
        self.numbers.publish(self.slot, low.unwrap_or(u64::MAX), count);
        // A transaction is no transfer: a start does not search for it by the list of those.
        self.numbers.publish_old(self.slot, u64::MAX, Vec::new());
    }

    /// Every transaction or transfer that a store has not ended has this number or a higher one;
    /// `None` before the rows are read.
    pub fn over(&self) -> Option<u64> {
        self.numbers.over()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The number below which transfers are over ends at the lowest minimum, at the next number,
    /// and at a worker that has not looked.
    #[test]
    fn what_is_over_ends_at_the_lowest_promise() {
        let numbers = Numbers::new(3, 2, 0);
        let first = 3 << ORDER_NUMBER_BITS;
        assert_eq!(numbers.over(), None, "no worker has looked");
        numbers.publish(0, u64::MAX, 0);
        assert_eq!(numbers.over(), None, "the other has not looked");
        numbers.publish(1, 700, 1);
        assert_eq!(numbers.over(), Some(700), "left by an earlier incarnation");
        numbers.publish(1, u64::MAX, 0);
        assert_eq!(numbers.over(), Some(first), "nothing is under way");
        assert_eq!(numbers.take(0), first);
        assert_eq!(numbers.take(1), first + 1);
        assert_eq!(numbers.over(), Some(first), "promised with the number");
        numbers.publish(0, u64::MAX, 0);
        assert_eq!(numbers.over(), Some(first + 1));
        numbers.publish(1, u64::MAX, 0);
        assert_eq!(numbers.over(), Some(first + 2));
    }

    /// The listed transfers do not hold back where a search begins.
    #[test]
    fn old_transfers_are_listed_and_a_new_number_is_not() {
        let numbers = Numbers::new(3, 2, 0);
        let first = 3 << ORDER_NUMBER_BITS;
        numbers.publish_old(0, 900, vec![7, 8]);
        assert_eq!(numbers.open(), None, "the other has not looked");
        numbers.publish_old(1, u64::MAX, vec![9]);
        let old = vec![7, 8, 9];
        assert_eq!(numbers.open(), Some(Open { from: 900, old: old.clone() }));
        numbers.publish_old(0, u64::MAX, vec![7, 8]);
        assert_eq!(numbers.take(1), first);
        assert_eq!(numbers.take(0), first + 1);
        assert_eq!(numbers.open(), Some(Open { from: first, old }));
    }
}
