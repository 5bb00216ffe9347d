//! Rows by key, in memory that is all taken at the start. No insert and no removal moves more than
//! a few rows or asks the system for a page, so the core thread never waits for its memory. A map
//! that grows, or that marks removed rows and rehashes to clear the marks, does not promise that.
//!
//! The rows lie side by side; a removal fills its gap with the last row. An index with at least
//! twice as many slots holds the row of each key, by linear probing. A removal also closes the gap
//! in the index.

use std::fmt::Debug;
use std::hash::{BuildHasher, Hash};
use std::hint::black_box;
use std::mem::{MaybeUninit, size_of};

use super::memory::{prefer_huge, prefetch};

/// A hash without a random seed, so that nothing in the engine depends on the process.
pub(super) type HashState = foldhash::fast::FixedState;

/// Memory is touched once per so many bytes, the smallest size of a page.
const PAGE_BYTES: usize = 4_096;

/// A value with a key.
pub(super) trait Row: Copy {
    type Key: Copy + Eq + Hash + Debug;

    fn key(&self) -> Self::Key;
}

/// The reason why a row is not added.
#[derive(Clone, Copy, Debug)]
pub(super) enum Misfit {
    /// A row with its key is there.
    Twice,
    /// No place is free.
    Full,
}

/// At most `places` rows.
pub(super) struct Table<R> {
    /// 0 is empty. Else the upper half is that of the key's hash, and the lower half is the row's
    /// position plus one. The search for a key begins at the upper half modulo the number of slots.
    slots: Box<[u64]>,
    rows: Vec<R>,
    places: usize,
}

const HASH_BITS: u64 = 0xffff_ffff_0000_0000;
const POSITION_BITS: u64 = 0xffff_ffff;

impl<R: Row> Table<R> {
    pub(super) fn new(places: usize) -> Table<R> {
        assert!(u32::try_from(places).is_ok_and(|places| places < u32::MAX), "{places} places");
        let slots = (2 * places).max(2).next_power_of_two();
        Table { slots: vec![0; slots].into(), rows: Vec::with_capacity(places), places }
    }

    /// Takes all memory from the system, in huge pages if it has them. A search reads memory that
    /// no other has read for long: with small pages it would wait for the page's address as well.
    pub(super) fn prefault(&mut self) {
        prefer_huge(&mut self.slots);
        prefer_huge(self.rows.spare_capacity_mut());
        for slots in self.slots.chunks_mut(PAGE_BYTES / size_of::<u64>()) {
            slots[0] = black_box(slots[0]);
        }
        let step = (PAGE_BYTES / size_of::<R>()).max(1);
        for row in self.rows.spare_capacity_mut().iter_mut().step_by(step) {
            *row = black_box(MaybeUninit::zeroed());
        }
    }

    pub(super) fn rows(&self) -> &[R] {
        &self.rows
    }

    pub(super) fn places_left(&self) -> usize {
        self.places - self.rows.len()
    }

    pub(super) fn get(&self, key: R::Key) -> Option<&R> {
        self.find(key).ok().map(|slot| &self.rows[self.position(slot)])
    }

    pub(super) fn get_mut(&mut self, key: R::Key) -> Option<&mut R> {
        let slot = self.find(key).ok()?;
        let position = self.position(slot);
        Some(&mut self.rows[position])
    }

    /// The position of a key's row, until the next removal.
    pub(super) fn position_of(&self, key: R::Key) -> Option<usize> {
        self.find(key).ok().map(|slot| self.position(slot))
    }

    /// The row at a position. Its key must not change.
    pub(super) fn row_mut(&mut self, position: usize) -> &mut R {
        &mut self.rows[position]
    }

    /// Prefetches the slot at which the search for a key begins, for [`Table::expect_row`] and the
    /// search itself.
    #[inline]
    pub(super) fn expect_slot(&self, key: R::Key) {
        prefetch(&self.slots[self.home(hash_bits(key))]);
    }

    /// Prefetches the row that is most likely this key's, if there is one.
    #[inline]
    pub(super) fn expect_row(&self, key: R::Key) {
        let slot = self.home(hash_bits(key));
        if self.slots[slot] != 0 {
            prefetch(&self.rows[self.position(slot)]);
        }
    }

    /// Adds a row at the end.
    pub(super) fn try_insert(&mut self, row: R) -> Result<(), Misfit> {
        let key = row.key();
        let Err(slot) = self.find(key) else { return Err(Misfit::Twice) };
        if self.places_left() == 0 {
            return Err(Misfit::Full);
        }
        self.slots[slot] = hash_bits(key) | (self.rows.len() as u64 + 1);
        self.rows.push(row);
        debug_assert!(self.rows.len() <= self.places, "{} rows", self.rows.len());
        Ok(())
    }

    /// Adds a row at the end. Panics if it does not fit: the caller has checked it.
    pub(super) fn insert(&mut self, row: R) {
        let key = row.key();
        self.try_insert(row).unwrap_or_else(|misfit| panic!("{misfit:?}: {key:?}"));
    }

    /// Removes the row at `position`. The last row takes its position.
    pub(super) fn remove(&mut self, position: usize) -> R {
        let last = self.rows.len() - 1;
        let gap = self.find(self.rows[position].key()).expect("every row has a slot");
        debug_assert_eq!(self.position(gap), position, "the index leads to the row");
        if position != last {
            let moved = self.find(self.rows[last].key()).expect("every row has a slot");
            self.slots[moved] = self.slots[moved] & HASH_BITS | (position as u64 + 1);
        }
        self.close(gap);
        self.rows.swap_remove(position)
    }

    /// Empties a slot. Slots after it that probed past it move up, so that no search ends too
    /// early.
    fn close(&mut self, mut gap: usize) {
        let mut slot = gap;
        loop {
            slot = self.after(slot);
            let content = self.slots[slot];
            if content == 0 {
                self.slots[gap] = 0;
                return;
            }
            // It may move unless that is before the slot at which its search begins.
            if self.distance(self.home(content), slot) >= self.distance(gap, slot) {
                self.slots[gap] = content;
                gap = slot;
            }
        }
    }

    /// The slot of a key, or as an error the empty slot for it.
    fn find(&self, key: R::Key) -> Result<usize, usize> {
        let hash = hash_bits(key);
        let mut slot = self.home(hash);
        // At least half of the slots are empty.
        loop {
            let content = self.slots[slot];
            if content == 0 {
                return Err(slot);
            }
            if content & HASH_BITS == hash && self.rows[self.position(slot)].key() == key {
                return Ok(slot);
            }
            slot = self.after(slot);
        }
    }

    /// The row's position in a slot that is not empty.
    fn position(&self, slot: usize) -> usize {
        index((self.slots[slot] & POSITION_BITS) - 1)
    }

    fn home(&self, content: u64) -> usize {
        index(content >> 32) & (self.slots.len() - 1)
    }

    fn after(&self, slot: usize) -> usize {
        (slot + 1) & (self.slots.len() - 1)
    }

    /// Steps forward from one slot to another.
    fn distance(&self, from: usize, to: usize) -> usize {
        to.wrapping_sub(from) & (self.slots.len() - 1)
    }
}

/// The upper half of a key's hash.
fn hash_bits<K: Hash>(key: K) -> u64 {
    HashState::default().hash_one(key) & HASH_BITS
}

fn index(number: u64) -> usize {
    usize::try_from(number).expect("32 bits fit")
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    /// The most slots that a search or a removal in a full table may read: 16 cache lines.
    const RUN_MAX: usize = 128;

    #[derive(Clone, Copy, Debug, PartialEq)]
    struct Pair(u64, u64);

    impl Row for Pair {
        type Key = u64;

        fn key(&self) -> u64 {
            self.0
        }
    }

    /// The most slots that a search reads.
    fn search_max<R: Row>(table: &Table<R>) -> usize {
        let looks = table.rows.iter().map(|row| {
            let slot = table.find(row.key()).expect("is there");
            table.distance(table.home(table.slots[slot]), slot) + 1
        });
        looks.max().unwrap_or(0)
    }

    /// The longest run of slots that are not empty. No search and no removal reads more.
    fn run_max<R: Row>(table: &Table<R>) -> usize {
        let runs = table.slots.split(|&content| content == 0).map(<[u64]>::len);
        runs.max().unwrap_or(0)
    }

    proptest! {
        /// Goal: a table is a map. Method: random inserts and removals among few keys, so that
        /// slots collide, compared with a map of the standard library.
        #[test]
        fn a_table_holds_what_a_map_holds(
            steps in prop::collection::vec((any::<bool>(), 0..40u64), 1..400)
        ) {
            let mut table = Table::new(24);
            table.prefault();
            let mut map = HashMap::new();
            for (round, (insert, key)) in steps.into_iter().enumerate() {
                let there = table.rows().iter().position(|row: &Pair| row.0 == key);
                match (insert, there) {
                    (true, None) if table.places_left() > 0 => {
                        table.insert(Pair(key, round as u64));
                        map.insert(key, round as u64);
                    }
                    (false, Some(position)) => {
                        let row = table.remove(position);
                        prop_assert_eq!(map.remove(&key), Some(row.1));
                    }
                    _ => {}
                }
                prop_assert_eq!(table.rows().len(), map.len());
                for key in 0..40 {
                    prop_assert_eq!(table.get(key).map(|row| row.1), map.get(&key).copied());
                }
            }
        }
    }

    #[derive(Clone, Copy)]
    struct Only<K>(K);

    impl<K: Copy + Eq + Hash + Debug> Row for Only<K> {
        type Key = K;

        fn key(&self) -> K {
            self.0
        }
    }

    fn full_of<K: Copy + Eq + Hash + Debug>(keys: impl Iterator<Item = K>) -> usize {
        let mut table = Table::new(1 << 17);
        keys.take(1 << 17).for_each(|key| table.insert(Only(key)));
        assert_eq!(table.places_left(), 0);
        run_max(&table)
    }

    /// Goal: real keys do not crowd in the index. Method: full tables of consecutive users, of a
    /// few assets each, of names of one millisecond (equal first 48 bits), and of consecutive
    /// names.
    #[test]
    fn keys_in_a_row_do_not_crowd() {
        let balances = (1..u64::MAX).flat_map(|user| (1..3u32).map(move |asset| (user, asset)));
        let strewn = |number: u64| u128::from(number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let names = (1..u64::MAX).map(|number| ((0x0190_u128 << 112) | strewn(number), 2u8));
        let row = (1..u128::MAX).flat_map(|number| (1..3u8).map(move |op| (number, op)));
        let runs = [full_of(1..u64::MAX), full_of(balances), full_of(names), full_of(row)];
        assert!(runs.iter().all(|&run| run <= RUN_MAX), "{runs:?}");
    }

    /// Goal: the work of one command has a bound that does not grow with the rows. Method: a full
    /// table, then twice as many removals and inserts as places. Counted, not timed.
    #[test]
    fn a_full_and_worn_table_searches_as_few_slots_as_a_new_one() {
        const PLACES: u64 = 1 << 17;
        let mut table = Table::new(1 << 17);
        (0..PLACES).for_each(|key| table.insert(Pair(key, key)));
        let fresh = (search_max(&table), run_max(&table));
        assert!(fresh.1 <= RUN_MAX, "{fresh:?}");
        for key in PLACES..3 * PLACES {
            // The multiplier shares no factor with the number of places: not the oldest first.
            table.remove(index(key.wrapping_mul(7_919) % PLACES));
            table.insert(Pair(key, key));
        }
        let worn = (search_max(&table), run_max(&table));
        assert!(worn.1 <= RUN_MAX, "{fresh:?} {worn:?}");
        let capacity = table.rows.capacity();
        assert_eq!(capacity, 1 << 17, "the rows have moved");
    }
}
