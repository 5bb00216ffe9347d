//! The share of a node: how many signers with work it takes and keeps. Pure.
//!
//! ```text
//!   share = signers with open rows / live nodes, rounded up
//!   below it: take signers without an owner
//!   above it: give the least busy one, one a tick
//! ```
//!
//! A signer that was without an owner at two looks is taken beyond the share, because the node with
//! room for it may be gone, or may have no key for it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use alloy_primitives::Address;
use tokio::time::{Duration, Instant};

/// The longest time that a signer stays beyond the share before it is offered again.
const STAY_MAX: Duration = Duration::from_secs(3_600);

/// The share of this node at the last look.
pub(super) struct Shares {
    share: usize,
    /// How many may be taken beyond the share until the next look.
    beyond: usize,
    /// The signers without an owner at the last look that are still to be taken.
    to_take: VecDeque<Address>,
    /// The signers that had no owner at the last look.
    unowned: BTreeSet<Address>,
    /// Those of them that had none at the look before either.
    left_over: BTreeSet<Address>,
    /// Signers taken beyond the share: until when they stay, and for how long that was.
    staying: BTreeMap<Address, (Instant, Duration)>,
    /// The first stay: until then a node that has ended is no longer counted.
    stay: Duration,
}

impl Shares {
    pub(super) fn new(lease_duration: Duration) -> Shares {
        Shares {
            share: 0,
            beyond: 0,
            to_take: VecDeque::new(),
            unowned: BTreeSet::new(),
            left_over: BTreeSet::new(),
            staying: BTreeMap::new(),
            stay: lease_duration * 2,
        }
    }

    /// Takes a look: the signers without an owner that this node has keys for, the oldest work
    /// first, the number of signers with open rows, and the number of live nodes. A look between
    /// two ticks leaves no signer over: the nodes with room for it may not have looked yet.
    pub(super) fn look(
        &mut self,
        free: &[Address],
        open_signers: u32,
        live_nodes: u32,
        is_tick: bool,
    ) {
        let nodes = live_nodes.max(1);
        self.share = usize::try_from(open_signers.div_ceil(nodes)).unwrap_or(usize::MAX);
        self.to_take = free.iter().copied().collect();
        if !is_tick {
            return;
        }
        let now: BTreeSet<Address> = free.iter().copied().collect();
        self.left_over = now.intersection(&self.unowned).copied().collect();
        self.unowned = now;
        // All nodes find the same ones left over. So each takes its part of them.
        self.beyond = self.left_over.len().div_ceil(usize::try_from(nodes).unwrap_or(usize::MAX));
    }

    /// The next signer to acquire. `held`: the busy signers here, and those that are being
    /// acquired.
    pub(super) fn next_to_take(&mut self, held: usize, now: Instant) -> Option<Address> {
        while let Some(signer) = self.to_take.pop_front() {
            if held < self.share {
                return Some(signer);
            }
            if self.beyond > 0 && self.left_over.contains(&signer) {
                self.beyond -= 1;
                let last = self.staying.get(&signer).map(|(_, stay)| *stay);
                let stay = last.map_or(self.stay, |last| (last * 2).min(STAY_MAX));
                self.staying.insert(signer, (now + stay, stay));
                return Some(signer);
            }
        }
        None
    }

    /// The signer to give away now: of more than the share the least busy one. `busy`: the owned
    /// signers with open rows, and how many rows.
    pub(super) fn give(&self, busy: &[(Address, usize)], now: Instant) -> Option<Address> {
        if busy.len() <= self.share {
            return None;
        }
        let stays =
            |signer: &Address| self.staying.get(signer).is_some_and(|(until, _)| now < *until);
        let giving = busy.iter().filter(|(signer, open)| *open < usize::MAX && !stays(signer));
        giving.min_by_key(|(signer, open)| (*open, *signer)).map(|(signer, _)| *signer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn signer(number: u8) -> Address {
        Address::repeat_byte(number)
    }

    /// Takes all that a node may take now, with `held` signers before.
    fn taken(shares: &mut Shares, mut held: usize, now: Instant) -> usize {
        let before = held;
        while shares.next_to_take(held, now).is_some() {
            held += 1;
        }
        held - before
    }

    #[test]
    fn a_node_takes_its_share_and_what_is_left_over() {
        let now = Instant::now();
        let free: Vec<Address> = (1..=12).map(signer).collect();
        let mut shares = Shares::new(Duration::from_secs(10));
        shares.look(&free, 12, 3, true);
        assert_eq!(taken(&mut shares, 0, now), 4);
        // Four are still without an owner: each of three nodes takes two of them at most.
        shares.look(&free[8..], 12, 3, true);
        assert_eq!(taken(&mut shares, 4, now), 2);
        shares.look(&[], 12, 3, true);
        assert_eq!(taken(&mut shares, 6, now), 0);
    }

    #[test]
    fn a_node_above_its_share_gives_the_least_busy_one() {
        let now = Instant::now();
        let mut shares = Shares::new(Duration::from_secs(10));
        shares.look(&[], 5, 2, true);
        let busy = [(signer(1), 5), (signer(2), 1), (signer(3), 3), (signer(4), usize::MAX)];
        assert_eq!(shares.give(&busy, now), Some(signer(2)));
        assert_eq!(shares.give(&busy[..3], now), None);
    }

    /// A signer that no other node takes is not given and taken back each tick.
    #[test]
    fn a_signer_that_came_back_stays_longer_each_time() {
        let mut now = Instant::now();
        let mut shares = Shares::new(Duration::from_secs(10));
        let mut stays = Vec::new();
        for _ in 0..3 {
            shares.look(&[signer(1)], 1, 2, true);
            shares.look(&[signer(1)], 1, 2, true);
            assert_eq!(shares.next_to_take(1, now), Some(signer(1)));
            let taken = now;
            let busy = [(signer(1), 1), (signer(2), 9)];
            while shares.give(&busy, now) != Some(signer(1)) {
                now += Duration::from_secs(1);
            }
            stays.push((now - taken).as_secs());
        }
        assert_eq!(stays, [20, 40, 80]);
    }
}
