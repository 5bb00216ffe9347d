//! The chain as all endpoints showed it in one cycle, and the questions that a quorum answers.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use alloy_primitives::B256;
use chain::view::{self, BlockRef, ChainView, Confirmed};

use super::Block;
use crate::options::Finality;

/// One endpoint's chain in this cycle.
#[derive(Clone, Debug, Default)]
pub(super) struct Seen {
    pub(super) view: ChainView,
    /// The block under the tag `safe`, if that was asked for.
    pub(super) safe: Option<BlockRef>,
    /// The base fees of the view's blocks, wei, by height.
    pub(super) base_fees: BTreeMap<u64, u128>,
    /// Blocks below the view that a receipt named, by height.
    pub(super) old: BTreeMap<u64, BlockRef>,
}

impl Seen {
    /// The block at a height, in the view or below it.
    fn at(&self, number: u64) -> Option<&BlockRef> {
        self.view.at(number).or_else(|| self.old.get(&number))
    }

    pub(super) fn has(&self, number: u64, hash: B256) -> bool {
        self.at(number).is_some_and(|block| block.hash == hash)
    }

    /// Whether a block of this chain is final by a policy.
    fn is_final(&self, number: u64, hash: B256, finality: Finality, required: usize) -> bool {
        let Some(head) = self.view.head() else { return false };
        let deep = u64::try_from(required)
            .ok()
            .and_then(|required| number.checked_add(required))
            .is_some_and(|lowest| lowest <= head.number);
        let finalized = || self.view.finalized().is_some_and(|tag| number <= tag.number);
        // The tag `safe` moves with the chain, so it counts only while its block is in the view.
        let safe = || {
            let here = self.safe.filter(|tag| self.has(tag.number, tag.hash));
            here.is_some_and(|tag| number <= tag.number)
        };
        self.has(number, hash)
            && deep
            && match finality {
                Finality::Count => true,
                Finality::Safe => safe() || finalized(),
                Finality::Finalized => finalized(),
            }
    }
}

/// A snapshot of all endpoints of one cycle. It never changes.
#[derive(Clone, Debug, Default)]
pub struct Look {
    /// By endpoint; `None`: it did not answer in this cycle, or is set aside.
    pub(super) seen: Vec<Option<Arc<Seen>>>,
    pub(super) quorum: usize,
    pub(super) blind: Option<Duration>,
}

impl Look {
    /// A look of endpoints that all showed something, for tests of other modules.
    #[cfg(any(test, feature = "model"))]
    pub fn of(views: Vec<ChainView>, quorum: usize) -> Look {
        let seen = |view| Some(Arc::new(Seen { view, ..Seen::default() }));
        Look { seen: views.into_iter().map(seen).collect(), quorum, blind: None }
    }

    /// The highest block that a quorum of endpoints has.
    pub fn head(&self) -> Option<Block> {
        let mut heads: Vec<&BlockRef> = self.views().filter_map(|seen| seen.view.head()).collect();
        heads.sort_by_key(|head| std::cmp::Reverse(head.number));
        let highest = heads.first()?.number;
        let lowest = heads.last()?.number;
        let blocks = (lowest..=highest).rev().find_map(|number| self.agreed(number));
        // Below the lowest head each endpoint has a block at each height, down to its lowest one.
        let at = blocks.or_else(|| {
            let down =
                self.views().filter_map(|seen| seen.view.from(0, 1).next()).map(|b| b.number);
            (down.min()?..lowest).rev().find_map(|number| self.agreed(number))
        })?;
        let fee = |seen: &Arc<Seen>| {
            let here = seen.view.has(at.number, at.hash);
            here.then(|| seen.base_fees.get(&at.number).copied()).flatten()
        };
        // One endpoint that says a wrong fee must not move the price: the middle one counts.
        let base_fee = median(self.views().filter_map(fee).collect())?;
        Some(Block { at, base_fee })
    }

    /// Whether a quorum of endpoints has this block at its height.
    pub fn has(&self, number: u64, hash: B256) -> bool {
        self.is_quorum(self.views().filter(|seen| seen.has(number, hash)).count())
    }

    /// The confirmations that are new since `told`; `None`: none. Each block of the list is on a
    /// quorum of endpoints.
    ///
    /// `number`, `hash`: the block of the receipt. `required`: so many on top of it are enough.
    pub fn confirmed(
        &self,
        told: &[BlockRef],
        (number, hash): (u64, B256),
        required: usize,
    ) -> Option<Confirmed> {
        let mut best: Vec<BlockRef> = Vec::new();
        for seen in self.views().filter(|seen| seen.has(number, hash)) {
            let list = self.list(seen, number, required);
            // Of two equally long lists the one that was told goes on, so that a fork that is
            // undecided tells nothing.
            let better = list.len() > best.len()
                || (list.len() == best.len() && goes_on(&list, told) && !goes_on(&best, told));
            if better {
                best = list;
            }
        }
        let mut alone = ChainView::default();
        let down: Vec<BlockRef> = best.iter().rev().copied().collect();
        alone.take(&down, None, down.len()).ok()?;
        view::confirmed(&alone, told, (number, hash), required)
    }

    /// The linked blocks of an endpoint from a height up that a quorum has too.
    fn list(&self, seen: &Seen, number: u64, required: usize) -> Vec<BlockRef> {
        let mut list: Vec<BlockRef> = Vec::new();
        let mut at = Some(number);
        while let Some(block) = at.and_then(|number| seen.at(number)) {
            let links = list.last().is_none_or(|below: &BlockRef| block.parent == below.hash);
            if list.len() > required || !links || !self.has(block.number, block.hash) {
                break;
            }
            list.push(*block);
            at = block.number.checked_add(1);
        }
        list
    }

    /// Whether a block is final by a policy, on a quorum of endpoints, each by its own head and tag.
    pub fn is_final(&self, number: u64, hash: B256, finality: Finality, required: usize) -> bool {
        let says = |seen: &&Arc<Seen>| seen.is_final(number, hash, finality, required);
        self.is_quorum(self.views().filter(says).count())
    }

    /// The highest block that is final.
    pub fn final_block(&self, finality: Finality, required: usize) -> Option<BlockRef> {
        let highest = self.head()?.at.number;
        let lowest = self.views().filter_map(|seen| seen.view.from(0, 1).next()).map(|b| b.number);
        (lowest.min()?..=highest).rev().find_map(|number| {
            self.agreed(number).filter(|at| self.is_final(number, at.hash, finality, required))
        })
    }

    /// The time without an answer of any endpoint; `None`: one answered in this cycle.
    pub fn is_blind(&self) -> Option<Duration> {
        self.blind
    }

    /// The endpoints' chains in this cycle.
    fn views(&self) -> impl Iterator<Item = &Arc<Seen>> {
        self.seen.iter().flatten()
    }

    /// The block at a height that a quorum has. Of two such blocks the first endpoint's counts.
    fn agreed(&self, number: u64) -> Option<BlockRef> {
        let mut here = self.views().filter_map(|seen| seen.view.at(number));
        here.find(|block| {
            let same = |seen: &&Arc<Seen>| seen.view.has(number, block.hash);
            self.is_quorum(self.views().filter(same).count())
        })
        .copied()
    }

    /// A look without a quorum says nothing, so at least one endpoint is needed.
    fn is_quorum(&self, count: usize) -> bool {
        count >= self.quorum.max(1)
    }
}

fn goes_on(list: &[BlockRef], told: &[BlockRef]) -> bool {
    list.starts_with(told) || told.starts_with(list)
}

/// The middle one; of two middle ones the lower.
pub(super) fn median(mut amounts: Vec<u128>) -> Option<u128> {
    amounts.sort_unstable();
    amounts.get(amounts.len().checked_sub(1)? / 2).copied()
}
