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
    quorum: usize,
    pub(super) blind: Option<Duration>,
    /// The blocks of the views that a quorum has, the lowest first. A view may be anywhere, so
    /// that its heights are counted, and not those between two views.
    agreed: Vec<BlockRef>,
}

impl Look {
    pub(super) fn new(seen: Vec<Option<Arc<Seen>>>, quorum: usize) -> Look {
        let mut counts: BTreeMap<(u64, B256), (BlockRef, usize)> = BTreeMap::new();
        for block in seen.iter().flatten().flat_map(|seen| seen.view.from(0, usize::MAX)) {
            counts.entry((block.number, block.hash)).or_insert((*block, 0)).1 += 1;
        }
        let quorum = quorum.max(1);
        let agreed = counts.into_values().filter(|(_, count)| *count >= quorum);
        let agreed = agreed.map(|(block, _)| block).collect();
        Look { seen, quorum, blind: None, agreed }
    }

    /// A look of endpoints that all showed something, with base fees of 0, for tests of other
    /// modules.
    #[cfg(any(test, feature = "model"))]
    pub fn of(views: Vec<ChainView>, quorum: usize) -> Look {
        let seen = |view: ChainView| {
            let base_fees = view.from(0, usize::MAX).map(|block| (block.number, 0)).collect();
            Some(Arc::new(Seen { view, base_fees, ..Seen::default() }))
        };
        Look::new(views.into_iter().map(seen).collect(), quorum)
    }

    /// The highest block that a quorum of endpoints has.
    pub fn head(&self) -> Option<Block> {
        let at = *self.agreed.last()?;
        let fees = self.views().filter(|seen| seen.view.has(at.number, at.hash));
        let fees = fees.filter_map(|seen| seen.base_fees.get(&at.number).copied());
        // One endpoint that says a wrong fee must not move the price: the middle one counts.
        Some(Block { at, base_fee: median(fees.collect())? })
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

    /// Whether a block is final by a policy, on a quorum of endpoints. Each counts by its own head
    /// and tag.
    pub fn is_final(&self, number: u64, hash: B256, finality: Finality, required: usize) -> bool {
        let says = |seen: &&Arc<Seen>| seen.is_final(number, hash, finality, required);
        self.is_quorum(self.views().filter(says).count())
    }

    /// The highest block that is final.
    pub fn final_block(&self, finality: Finality, required: usize) -> Option<BlockRef> {
        let mut down = self.agreed.iter().rev();
        down.find(|at| self.is_final(at.number, at.hash, finality, required)).copied()
    }

    /// The time without a head that a quorum has; `None`: this cycle has one.
    pub fn is_blind(&self) -> Option<Duration> {
        self.blind
    }

    /// The endpoints' chains in this cycle.
    fn views(&self) -> impl Iterator<Item = &Arc<Seen>> {
        self.seen.iter().flatten()
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
