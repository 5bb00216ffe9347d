//! One endpoint's chain as it was seen in one cycle: a head and its ancestors, linked by parent
//! hash, so that each height has one hash.
//!
//! A view is replaced by the blocks of a later cycle. Blocks that do not link, another block at or
//! below a finalized one seen before, and a head that falls are not used.

use std::collections::VecDeque;

use alloy_primitives::B256;

/// A block's place in the chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockRef {
    /// Its height.
    pub number: u64,
    /// Its hash.
    pub hash: B256,
    /// The hash of the block below it.
    pub parent: B256,
}

/// Blocks that link, the lowest first. Never empty once it has a head.
#[derive(Clone, Debug, Default)]
pub struct ChainView {
    blocks: VecDeque<BlockRef>,
    finalized: Option<BlockRef>,
}

/// Why the blocks of a cycle are not used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ViewError {
    /// No block came.
    #[error("no block")]
    Empty,
    /// Two of the blocks do not link.
    #[error("block {0} does not link to the one below it")]
    Unlinked(u64),
    /// The head is below the one before.
    #[error("the head fell from {before} to {now}")]
    Fallen {
        /// The head before.
        before: u64,
        /// The head now.
        now: u64,
    },
    /// A block that was finalized is another one now.
    #[error("block {0} was finalized and is another one now")]
    Refinalized(u64),
    /// The tag of the finalized block is above the head.
    #[error("the finalized block {0} is above the head")]
    Ahead(u64),
}

impl ChainView {
    /// Takes the blocks of a cycle, the head first and each ancestor behind it, down to a block
    /// that the view has, or as far as it is kept. `finalized`: the block under that tag, if it was
    /// told. `keep`: the most blocks that stay.
    ///
    /// # Errors
    /// [`ViewError`]: the view stays as it was.
    pub fn take(
        &mut self,
        read: &[BlockRef],
        finalized: Option<BlockRef>,
        keep: usize,
    ) -> Result<(), ViewError> {
        let (Some(head), Some(lowest)) = (read.first(), read.last()) else {
            return Err(ViewError::Empty);
        };
        for pair in read.windows(2) {
            if !links(&pair[0], &pair[1]) {
                return Err(ViewError::Unlinked(pair[0].number));
            }
        }
        if let Some(before) = self.head().filter(|before| head.number < before.number) {
            return Err(ViewError::Fallen { before: before.number, now: head.number });
        }
        let mut blocks: VecDeque<BlockRef> = self.blocks.clone();
        while blocks.back().is_some_and(|block| block.number >= lowest.number) {
            blocks.pop_back();
        }
        if blocks.back().is_some_and(|below| !links(lowest, below)) {
            // Another branch, or a gap: nothing of before is known to be below these blocks.
            blocks.clear();
        }
        blocks.extend(read.iter().rev());
        let kept = |number: u64| {
            let first = blocks.front()?.number;
            blocks.get(usize::try_from(number.checked_sub(first)?).ok()?)
        };
        if let Some(tag) = finalized.filter(|tag| tag.number > head.number) {
            return Err(ViewError::Ahead(tag.number));
        }
        let pinned = [self.finalized, finalized].into_iter().flatten();
        for block in pinned {
            if kept(block.number).is_some_and(|here| here.hash != block.hash) {
                return Err(ViewError::Refinalized(block.number));
            }
        }
        let risen =
            finalized.filter(|tag| self.finalized.is_none_or(|old| old.number <= tag.number));
        self.finalized = risen.or(self.finalized);
        while blocks.len() > keep.max(1) {
            blocks.pop_front();
        }
        self.blocks = blocks;
        Ok(())
    }

    /// The highest block.
    pub fn head(&self) -> Option<&BlockRef> {
        self.blocks.back()
    }

    /// The highest block that was under the tag `finalized`.
    pub fn finalized(&self) -> Option<&BlockRef> {
        self.finalized.as_ref()
    }

    /// The block at a height, if the view reaches it.
    pub fn at(&self, number: u64) -> Option<&BlockRef> {
        let first = self.blocks.front()?.number;
        self.blocks.get(usize::try_from(number.checked_sub(first)?).ok()?)
    }

    /// Whether a block is in the view at its height.
    pub fn has(&self, number: u64, hash: B256) -> bool {
        self.at(number).is_some_and(|block| block.hash == hash)
    }

    /// The blocks from a height to the head, the lowest first, at most `most`.
    pub fn from(&self, number: u64, most: usize) -> impl Iterator<Item = &BlockRef> {
        self.blocks.iter().skip_while(move |block| block.number < number).take(most)
    }
}

fn links(block: &BlockRef, below: &BlockRef) -> bool {
    block.number == below.number.wrapping_add(1) && block.parent == below.hash
}

/// The confirmations of a transaction that are new to its reader.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Confirmed {
    /// The list does not continue the one that was told: it is whole, and replaces that.
    pub new_fork: bool,
    /// The whole list, or its new end.
    pub blocks: Vec<BlockRef>,
}

/// Compares the confirmations of a view with those that were told; `None`: nothing is new.
///
/// `told`: the list that was told, the lowest first. `number`, `hash`: the block of the receipt.
/// `required`: so many blocks on top of it are enough. The block itself is the first of the list.
pub fn confirmed(
    view: &ChainView,
    told: &[BlockRef],
    (number, hash): (u64, B256),
    required: usize,
) -> Option<Confirmed> {
    if !view.has(number, hash) {
        return None;
    }
    let now: Vec<BlockRef> = view.from(number, required.saturating_add(1)).copied().collect();
    let continues = !told.is_empty() && now.starts_with(told);
    // A view that is shorter than the told list says less, and nothing else.
    if told.len() >= now.len() && told.starts_with(&now) {
        return None;
    }
    let blocks = if continues { now[told.len()..].to_vec() } else { now };
    Some(Confirmed { new_fork: !continues, blocks })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The hash of the block of a branch at a height. Branch 0 is the trunk.
    fn hash(branch: u8, number: u64) -> B256 {
        let mut bytes = [0; 32];
        bytes[0] = branch;
        bytes[24..].copy_from_slice(&number.to_be_bytes());
        B256::from(bytes)
    }

    /// Blocks of a branch that leaves the trunk behind `fork`, the head first.
    fn branch(branch: u8, fork: u64, head: u64, down_to: u64) -> Vec<BlockRef> {
        let at = |number| hash(if number > fork { branch } else { 0 }, number);
        let block =
            |number: u64| BlockRef { number, hash: at(number), parent: at(number.wrapping_sub(1)) };
        (down_to..=head).rev().map(block).collect()
    }

    #[test]
    fn a_fork_is_told_whole_and_a_longer_chain_by_its_end() {
        let mut view = ChainView::default();
        view.take(&branch(0, 100, 10, 5), None, 64).expect("linked");
        let receipt = (8, hash(0, 8));
        let first = confirmed(&view, &[], receipt, 3).expect("new");
        assert!(first.new_fork);
        assert_eq!(first.blocks.len(), 3, "8, 9 and 10");
        assert_eq!(confirmed(&view, &first.blocks, receipt, 3), None);

        view.take(&branch(0, 100, 13, 11), None, 64).expect("linked");
        let more = confirmed(&view, &first.blocks, receipt, 3).expect("new");
        assert!(!more.new_fork);
        assert_eq!(more.blocks.iter().map(|block| block.number).collect::<Vec<_>>(), [11]);
        let told = [first.blocks, more.blocks].concat();

        view.take(&branch(1, 9, 13, 10), None, 64).expect("another branch");
        let forked = confirmed(&view, &told, receipt, 3).expect("new");
        assert!(forked.new_fork);
        assert_eq!(forked.blocks.len(), 4);
        assert_eq!(forked.blocks[2].hash, hash(1, 10));
        assert_eq!(confirmed(&view, &told, (10, hash(0, 10)), 3), None, "its block is gone");
    }

    #[test]
    fn what_does_not_fit_leaves_the_view_as_it_was() {
        let mut view = ChainView::default();
        let tag = branch(0, 100, 6, 6)[0];
        view.take(&branch(0, 100, 10, 3), Some(tag), 64).expect("linked");
        let mut torn = branch(0, 100, 12, 9);
        torn[1].parent = hash(7, 7);
        let before = view.head().copied();
        for (read, error) in [
            (Vec::new(), ViewError::Empty),
            (torn, ViewError::Unlinked(11)),
            (branch(0, 100, 9, 3), ViewError::Fallen { before: 10, now: 9 }),
            (branch(2, 4, 12, 3), ViewError::Refinalized(6)),
        ] {
            assert_eq!(view.take(&read, None, 64), Err(error));
            assert_eq!(view.head().copied(), before);
        }
        let ahead = branch(0, 100, 20, 20)[0];
        let taken = view.take(&branch(0, 100, 11, 11), Some(ahead), 64);
        assert_eq!(taken, Err(ViewError::Ahead(20)));
        assert_eq!(view.finalized(), Some(&tag));
    }

    proptest! {
        /// A view never holds two hashes of one height, and always links.
        #[test]
        fn each_height_has_one_hash(
            cycles in prop::collection::vec((0_u8..4, 0_u64..12, 1_u64..20, 0_u64..6), 1..40),
        ) {
            let mut view = ChainView::default();
            for (fork_of, fork, head, depth) in cycles {
                let read = branch(fork_of, fork, head, head.saturating_sub(depth));
                let taken = view.take(&read, None, 8);
                let fits = matches!(taken, Ok(()) | Err(ViewError::Fallen { .. }));
                prop_assert!(fits, "{:?}", taken);
                let blocks: Vec<&BlockRef> = view.from(0, usize::MAX).collect();
                prop_assert!(blocks.len() <= 8);
                for pair in blocks.windows(2) {
                    prop_assert!(links(pair[1], pair[0]));
                }
                for block in blocks {
                    prop_assert!(view.has(block.number, block.hash));
                }
            }
        }
    }
}
