//! The table of holds: amounts of a balance that are set apart, each with a name. A freeze is a row
//! of the same table, and counts for the same bound.
//!
//! The holds of a venue form a chain in number order, and all rows of a user and asset form
//! another one: a reader looks at a few rows at a time. The holds of a transaction are numbered
//! from 1 to at most 16, so each number is looked up.

use domain::posting::LEGS_MAX;

use crate::fact::{Fact, HoldFact};
use crate::table::{Misfit, Row, Table};

/// A position in the table plus one; 0 is none.
type Link = u32;

/// The ends of a chain of rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Chain {
    first: Link,
    last: Link,
}

/// The neighbors of a row in a chain.
#[derive(Clone, Copy, Debug, Default)]
struct Links {
    before: Link,
    after: Link,
}

/// The owner of a freeze's key: no venue has this bit.
const FREEZE: u64 = 1 << 63;

/// The most holds of a transaction: each leg sets apart at one place.
pub(crate) const TRANSACTION_HOLDS_MAX: u8 = 16;
const _: () = assert!(LEGS_MAX == TRANSACTION_HOLDS_MAX as usize);

/// A hold, or the freeze of a user, asset and purpose.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hold {
    /// The number of the command that made it; of a freeze its purpose; of a hold of a transaction
    /// the lower half of the transaction.
    number: u64,
    pub(crate) user: u64,
    /// Smallest units; of a freeze the lower half.
    low: u64,
    /// The venue's reference; of a freeze the upper half of its amount; of a hold of a transaction
    /// the upper half of the transaction.
    high: u64,
    pub(crate) record: wal::Sequence,
    pub(crate) time_ns: u64,
    /// The venue; 0 for a freeze and for a hold of a transaction.
    pub(crate) venue: u32,
    pub(crate) asset: u32,
    of_venue: Links,
    of_owner: Links,
    /// The position of the owner's row of sums, see `accounts`.
    pub(crate) sums: u32,
    /// A place for a balance is kept free for its SETTLE.
    pub(crate) keeps: bool,
    /// The number of a hold of a transaction, from 1; else 0.
    index: u8,
    /// Of a hold of a transaction the freeze that it takes from, 0 for the available balance.
    purpose: u16,
}

const _: () = assert!(size_of::<Hold>() == 80);

/// The name of a row: number and venue, or purpose, user and asset, or transaction and number.
pub(crate) type HoldKey = (u64, u64, u32);

/// The key of a venue's hold.
pub(crate) fn hold_key(venue: u32, number: u64) -> HoldKey {
    (number, venue.into(), 0)
}

/// The key of a freeze.
pub(crate) fn freeze_key(user: u64, asset: u32, purpose: u16) -> HoldKey {
    (purpose.into(), FREEZE | user, asset)
}

/// The key of a hold of a transaction, by its number. No venue's hold has a number there, and no
/// transaction has the bit of a freeze.
pub(crate) fn transaction_key(transaction: u128, index: u8) -> HoldKey {
    let [low, high] = halves(transaction);
    (low, high, index.into())
}

/// The lower and the upper half.
fn halves(number: u128) -> [u64; 2] {
    [number & u128::from(u64::MAX), number >> 64].map(|half| u64::try_from(half).expect("64 bits"))
}

impl Row for Hold {
    type Key = HoldKey;

    fn key(&self) -> HoldKey {
        match self.kind() {
            HoldKind::Venue => hold_key(self.venue, self.number),
            HoldKind::Transaction => (self.number, self.high, self.index.into()),
            HoldKind::Freeze => {
                let purpose = u16::try_from(self.number).expect("a freeze's purpose");
                freeze_key(self.user, self.asset, purpose)
            }
        }
    }
}

/// The owner of a row.
enum HoldKind {
    Venue,
    Transaction,
    Freeze,
}

impl Hold {
    /// A row of a fact. `sums`: the position of the owner's sums.
    pub(crate) fn new(fact: HoldFact, sums: u32) -> Hold {
        let HoldFact { venue, transaction, purpose, user, asset, amount, .. } = fact;
        let [low, high] = halves(amount);
        let (number, high, index) = match (venue, transaction) {
            (0, 0) => (purpose.into(), high, 0),
            (0, transaction) => {
                let [lower, upper] = halves(transaction);
                (lower, upper, u8::try_from(fact.number).expect("at most 16"))
            }
            _ => (fact.number, fact.reference, 0),
        };
        Hold {
            number,
            user,
            low,
            high,
            record: fact.record,
            time_ns: fact.time_ns,
            venue,
            asset,
            of_venue: Links::default(),
            of_owner: Links::default(),
            sums,
            keeps: fact.keeps,
            index,
            purpose: if transaction == 0 { 0 } else { purpose },
        }
    }

    fn kind(&self) -> HoldKind {
        match (self.venue, self.index) {
            (0, 0) => HoldKind::Freeze,
            (0, _) => HoldKind::Transaction,
            _ => HoldKind::Venue,
        }
    }

    /// The number of the command that made it, or of a hold of a transaction; 0 for a freeze.
    pub(crate) fn number(&self) -> u64 {
        match self.kind() {
            HoldKind::Venue => self.number,
            HoldKind::Transaction => self.index.into(),
            HoldKind::Freeze => 0,
        }
    }

    /// The transaction, 0 for other rows.
    pub(crate) fn transaction(&self) -> u128 {
        match self.kind() {
            HoldKind::Transaction => u128::from(self.high) << 64 | u128::from(self.number),
            HoldKind::Venue | HoldKind::Freeze => 0,
        }
    }

    /// Smallest units.
    pub(crate) fn amount(&self) -> u128 {
        match self.kind() {
            HoldKind::Freeze => u128::from(self.high) << 64 | u128::from(self.low),
            HoldKind::Venue | HoldKind::Transaction => self.low.into(),
        }
    }

    fn set_amount(&mut self, amount: u128) {
        let [low, high] = halves(amount);
        self.low = low;
        match self.kind() {
            HoldKind::Freeze => self.high = high,
            HoldKind::Venue | HoldKind::Transaction => {
                assert_eq!(high, 0, "the judge has refused it: {self:?}");
            }
        }
    }

    /// The fact of this row.
    pub(crate) fn fact(&self) -> Fact {
        Fact::Hold(self.content())
    }

    /// All fields.
    pub(crate) fn content(&self) -> HoldFact {
        HoldFact {
            venue: self.venue,
            transaction: self.transaction(),
            number: self.number(),
            purpose: match self.kind() {
                HoldKind::Freeze => u16::try_from(self.number).expect("a freeze's purpose"),
                HoldKind::Venue | HoldKind::Transaction => self.purpose,
            },
            user: self.user,
            asset: self.asset,
            amount: self.amount(),
            reference: self.reference(),
            record: self.record,
            time_ns: self.time_ns,
            keeps: self.keeps,
        }
    }

    /// The venue's reference.
    pub(crate) fn reference(&self) -> u64 {
        if self.venue == 0 { 0 } else { self.high }
    }
}

/// A chain that a row belongs to.
#[derive(Clone, Copy)]
enum Of {
    Venue,
    Owner,
}

impl Hold {
    fn links(&mut self, of: Of) -> &mut Links {
        match of {
            Of::Venue => &mut self.of_venue,
            Of::Owner => &mut self.of_owner,
        }
    }
}

/// At most `places` holds and freezes.
pub(crate) struct Holds {
    table: Table<Hold>,
    /// Holds that keep a place for a balance.
    kept: usize,
    /// A planted bug of the tests: no hold keeps a place.
    #[cfg(test)]
    pub(crate) keeps_none: bool,
}

/// The owners of chains, by row: the ledger's venues and sums.
pub(crate) trait Chains {
    /// The chain of a venue.
    fn of_venue(&mut self, venue: u32) -> &mut Chain;
    /// The chain of a row of sums.
    fn of_owner(&mut self, sums: u32) -> &mut Chain;
}

impl Holds {
    pub(crate) fn new(places: usize) -> Holds {
        Holds {
            table: Table::new(places),
            kept: 0,
            #[cfg(test)]
            keeps_none: false,
        }
    }

    pub(crate) fn prefault(&mut self) {
        self.table.prefault();
    }

    pub(crate) fn rows(&self) -> &[Hold] {
        self.table.rows()
    }

    pub(crate) fn places_left(&self) -> usize {
        self.table.places_left()
    }

    /// Whether a new hold of a venue keeps a place for a balance.
    pub(crate) fn keeps_places(&self) -> bool {
        #[cfg(test)]
        if self.keeps_none {
            return false;
        }
        true
    }

    /// Places for balances that the holds keep free.
    pub(crate) fn kept(&self) -> usize {
        self.kept
    }

    pub(crate) fn get(&self, key: HoldKey) -> Option<&Hold> {
        self.table.get(key)
    }

    /// The next row of a venue's chain after `row`, or its first one.
    pub(crate) fn next_of_venue(&self, chain: Chain, row: Option<&Hold>) -> Option<&Hold> {
        self.at(row.map_or(chain.first, |row| row.of_venue.after))
    }

    /// The next row of an owner's chain after `row`, or its first one.
    pub(crate) fn next_of_owner(&self, chain: Chain, row: Option<&Hold>) -> Option<&Hold> {
        self.at(row.map_or(chain.first, |row| row.of_owner.after))
    }

    fn at(&self, link: Link) -> Option<&Hold> {
        let position = usize::try_from(link).expect("32 bits fit").checked_sub(1)?;
        self.table.rows().get(position)
    }

    /// Adds a row without chains, for a restore: [`Holds::chain_all`] must follow the last one.
    pub(crate) fn restore(&mut self, row: Hold) -> Result<(), Misfit> {
        self.table.try_insert(row)?;
        self.kept += usize::from(row.keeps);
        Ok(())
    }

    /// Chains all restored rows, oldest first: so they are in number order.
    pub(crate) fn chain_all(&mut self, chains: &mut impl Chains) {
        let rows = self.table.rows();
        let mut order: Vec<usize> = (0..rows.len()).collect();
        order.sort_unstable_by_key(|&position| (rows[position].record, rows[position].key()));
        for position in order {
            self.chain(position, chains);
        }
    }

    /// Adds a row at the end of its chains. Panics without a place: the judge has checked it.
    pub(crate) fn insert(&mut self, row: Hold, chains: &mut impl Chains) {
        self.table.insert(row);
        self.kept += usize::from(row.keeps);
        self.chain(self.table.rows().len() - 1, chains);
    }

    fn chain(&mut self, position: usize, chains: &mut impl Chains) {
        let Hold { venue, sums, .. } = self.table.rows()[position];
        if venue != 0 {
            self.append(position, Of::Venue, chains.of_venue(venue));
        }
        self.append(position, Of::Owner, chains.of_owner(sums));
    }

    fn append(&mut self, position: usize, of: Of, chain: &mut Chain) {
        let link = link(position);
        *self.table.row_mut(position).links(of) = Links { before: chain.last, after: 0 };
        match chain.last {
            0 => chain.first = link,
            last => self.row_at(last).links(of).after = link,
        }
        chain.last = link;
    }

    /// Sets the amount of a row, and whether it keeps a place. With nothing left it is removed.
    ///
    /// Returns the facts before and after; no fact after a removal.
    pub(crate) fn set(
        &mut self,
        key: HoldKey,
        amount: u128,
        keeps: bool,
        chains: &mut impl Chains,
    ) -> (Fact, Option<Fact>) {
        let position = self.table.position_of(key).expect("the judge has found it");
        let row = self.table.row_mut(position);
        let before = row.fact();
        self.kept -= usize::from(row.keeps);
        row.set_amount(amount);
        row.keeps = keeps;
        if amount == 0 {
            self.remove(position, chains);
            return (before, None);
        }
        self.kept += usize::from(keeps);
        (before, Some(self.table.rows()[position].fact()))
    }

    fn remove(&mut self, position: usize, chains: &mut impl Chains) {
        let Hold { venue, sums, .. } = self.table.rows()[position];
        if venue != 0 {
            self.unlink(position, Of::Venue, chains.of_venue(venue));
        }
        self.unlink(position, Of::Owner, chains.of_owner(sums));
        let last = self.table.rows().len() - 1;
        self.table.remove(position);
        if position != last {
            // The last row has taken this position.
            let Hold { venue, sums, .. } = self.table.rows()[position];
            if venue != 0 {
                self.moved(position, Of::Venue, chains.of_venue(venue));
            }
            self.moved(position, Of::Owner, chains.of_owner(sums));
        }
    }

    fn unlink(&mut self, position: usize, of: Of, chain: &mut Chain) {
        let Links { before, after } = *self.table.row_mut(position).links(of);
        self.join(before, after, of, chain);
    }

    fn moved(&mut self, position: usize, of: Of, chain: &mut Chain) {
        let Links { before, after } = *self.table.row_mut(position).links(of);
        let link = link(position);
        match before {
            0 => chain.first = link,
            before => self.row_at(before).links(of).after = link,
        }
        match after {
            0 => chain.last = link,
            after => self.row_at(after).links(of).before = link,
        }
    }

    fn join(&mut self, before: Link, after: Link, of: Of, chain: &mut Chain) {
        match before {
            0 => chain.first = after,
            before => self.row_at(before).links(of).after = after,
        }
        match after {
            0 => chain.last = before,
            after => self.row_at(after).links(of).before = before,
        }
    }

    fn row_at(&mut self, link: Link) -> &mut Hold {
        self.table.row_mut(usize::try_from(link).expect("32 bits fit") - 1)
    }
}

fn link(position: usize) -> Link {
    u32::try_from(position + 1).expect("a table has fewer rows")
}
