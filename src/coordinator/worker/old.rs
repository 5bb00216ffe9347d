//! Transfers that have been open for many flights. They are listed by number, so that a search for
//! open transfers begins behind them.

use std::collections::BTreeSet;

/// See the module.
#[derive(Debug)]
pub(super) struct Old {
    /// A transfer open for so many flights is old; at the latest after twice as many.
    flights_max: u64,
    /// The most transfers that become old.
    old_max: usize,
    /// Flights since the mark.
    flights: u64,
    /// The order number that came next when the mark was set.
    mark: u64,
    /// Open transfers below this order number are old. It never falls.
    below: u64,
}

/// The open transfers of a worker.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Split {
    /// The lowest order number of those that are not old; `None`: there is none.
    pub(super) young: Option<u64>,
    /// The order numbers of the old ones.
    pub(super) old: Vec<u64>,
}

impl Old {
    /// `below`: the transfers that an earlier process has listed have lower order numbers.
    pub(super) fn new(flights_max: u64, old_max: usize, below: u64) -> Old {
        Old { flights_max, old_max, flights: 0, mark: 0, below }
    }

    /// A flight has ended. `next`: the next order number.
    pub(super) fn flown(&mut self, next: u64, under_way: &BTreeSet<u64>) {
        self.flights += 1;
        if self.flights < self.flights_max {
            return;
        }
        // Those beyond the bound stay young. New work is refused then, so they are few.
        let bound = under_way.iter().nth(self.old_max).copied().unwrap_or(u64::MAX);
        self.below = self.below.max(self.mark.min(bound));
        (self.flights, self.mark) = (0, next);
    }

    /// Which open transfers are old.
    pub(super) fn split(&self, under_way: &BTreeSet<u64>) -> Split {
        let young = under_way.range(self.below..).next().copied();
        Split { young, old: under_way.range(..self.below).copied().collect() }
    }

    /// The number of old ones, at least, if there are as many as may become old.
    pub(super) fn full(&self, under_way: &BTreeSet<u64>) -> Option<usize> {
        let old = under_way.range(..self.below).take(self.old_max).count();
        (old >= self.old_max).then_some(old)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A transfer is old after one to two times the bound, and the list is bounded.
    #[test]
    fn a_transfer_is_old_after_its_flights_and_the_list_is_bounded() {
        let mut old = Old::new(2, 2, 0);
        let under_way = BTreeSet::from([7, 8, 9, 50]);
        let mut fly = |next| {
            old.flown(next, &under_way);
            let Split { young, old: listed } = old.split(&under_way);
            (young, listed, old.full(&under_way))
        };
        for next in [10, 20, 21] {
            assert_eq!(fly(next), (Some(7), Vec::new(), None), "{next}");
        }
        assert_eq!(fly(30), (Some(9), vec![7, 8], Some(2)), "the mark was 20");
        assert_eq!(fly(60), (Some(9), vec![7, 8], Some(2)));
        assert_eq!(fly(61), (Some(9), vec![7, 8], Some(2)));
        assert_eq!(old.split(&BTreeSet::from([8])), Split { young: None, old: vec![8] });
        assert_eq!(old.full(&BTreeSet::from([8, 9])), None);
        // The list of an earlier process stays, also beyond the bound.
        let carried = Old::new(2, 1, 60).split(&under_way);
        assert_eq!(carried, Split { young: None, old: vec![7, 8, 9, 50] });
    }
}
