//! The legs of postings as the log has them, added up one by one. It uses no code of the ledger, so
//! it is a second judge of what venues and transactions have moved.
//!
//! [`HoldOwners`] follows the holds, because a leg out of a hold does not name its owner.
//! [`LegSums`] adds up all Spot balances. [`judge`] compares them with each snapshot, and with
//! UBSCore's balances.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use domain::posting::{Leg, Place};
use domain::transfer::Decision;
use domain::transfer::op::HoldStep;
use engine::entry::Entry;
use engine::fact::{Fact, HoldFact};
use engine::named::Named;
use engine::posted::Posted;
use engine::snapshot::store::SnapshotStore;
use engine::snapshot::{self, Snapshot};
use ulid::Ulid;
use wal::{Directory, Reader, SegmentHeader, Sequence};

use super::error::Error;
use super::mismatch::{Kind, Mismatch};
use domain::account::UserId;
use domain::amount::signed_text;
use domain::asset::{AssetId, Catalog};

/// The most holds that one finding names: a balance may have many.
const HOLDS_NAMED_MAX: usize = 4;

/// The name of a hold or of a freeze.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Name {
    /// A hold of a venue.
    Hold {
        /// The venue.
        venue: u32,
        /// The number of the command that made it.
        number: u64,
    },
    /// A hold of a transaction: one for each user, asset and purpose.
    Transaction {
        /// The transaction.
        transaction: u128,
        /// The user.
        user: u64,
        /// The asset's number.
        asset: u32,
        /// The freeze that it takes from, 0: the available amount.
        purpose: u16,
    },
    /// All freezes of one user, asset and purpose.
    Freeze {
        /// The user.
        user: u64,
        /// The asset's number.
        asset: u32,
        /// The purpose.
        purpose: u16,
    },
}

impl fmt::Display for Name {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Name::Hold { venue, number } => write!(out, "hold {venue}:{number}"),
            Name::Transaction { transaction, user, asset, purpose } => {
                write!(out, "hold {}:{user}:{asset}", Ulid(*transaction))?;
                if *purpose == 0 { Ok(()) } else { write!(out, ":{purpose}") }
            }
            Name::Freeze { purpose, .. } => write!(out, "freeze of purpose {purpose}"),
        }
    }
}

impl Name {
    /// The hold or freeze of a leg's place. In a RESERVE, 0 is the hold of the command itself.
    pub fn of(posted: &Posted, place: Place, asset: u32) -> Option<Name> {
        let venue = posted.venue;
        match place {
            Place::Hold(0) => Some(Name::Hold { venue, number: posted.number }),
            Place::Hold(number) => Some(Name::Hold { venue, number }),
            Place::Frozen { user, purpose } => Some(Name::Freeze { user, asset, purpose }),
            Place::Available(_) | Place::Outside => None,
        }
    }

    fn of_fact(hold: &HoldFact) -> Name {
        let HoldFact { venue, transaction, number, purpose, user, asset, .. } = *hold;
        match venue {
            0 if transaction != 0 => Name::Transaction { transaction, user, asset, purpose },
            0 => Name::Freeze { user, asset, purpose },
            venue => Name::Hold { venue, number },
        }
    }
}

/// A hold or a freeze.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Row {
    /// `None` if the log read so far has no record of its beginning.
    user: Option<u64>,
    asset: u32,
    /// Smallest units; below 0 only if its beginning is unknown.
    amount: i128,
}

/// The change of one user's balance by one leg.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LegShare {
    /// The index of the leg, from 0.
    pub leg: usize,
    /// The user; `None` for the owner of a hold that is not known.
    pub user: Option<u64>,
    /// The asset's number.
    pub asset: u32,
    /// The change of available and held together, smallest units.
    pub owned: i128,
    /// The change of the held part, smallest units.
    pub held: i128,
}

/// The holds and freezes after the records read so far.
#[derive(Debug, Default)]
pub struct HoldOwners {
    rows: BTreeMap<Name, Row>,
}

impl HoldOwners {
    /// Adds a hold or freeze of a snapshot.
    fn learn(&mut self, hold: &HoldFact) {
        let HoldFact { user, asset, amount, .. } = *hold;
        self.rows
            .insert(Name::of_fact(hold), Row { user: Some(user), asset, amount: signed(amount) });
    }

    /// The owner of a place; `None` if it is unknown, and for the outside.
    pub fn owner(&self, posted: &Posted, leg: &Leg, place: Place) -> Option<u64> {
        let row = || self.rows.get(&Name::of(posted, place, leg.asset)?).and_then(|row| row.user);
        place.user().or_else(row)
    }

    /// Books the legs of a posting in their order, if it was admitted. `each` is called once for
    /// each leg and user that it changes.
    pub fn book(&mut self, posted: &Posted, mut each: impl FnMut(LegShare)) {
        if posted.decision != Decision::Success {
            return;
        }
        for (index, leg) in posted.legs.iter().enumerate() {
            let payer = self.owner(posted, leg, leg.from);
            // A new hold belongs to the user that pays it.
            let payee = self.owner(posted, leg, leg.to);
            let payee = if let Place::Hold(_) = leg.to { payee.or(payer) } else { payee };
            let units = i128::from(leg.amount);
            let mut change = |place: Place, user: Option<u64>, owned: i128| {
                let Some(name) = Name::of(posted, place, leg.asset) else { return 0 };
                let fresh = Row { user, asset: leg.asset, amount: 0 };
                self.rows.entry(name).or_insert(fresh).amount += owned;
                owned
            };
            let paid = (change(leg.from, payer, -units), -units);
            let gained = (change(leg.to, payee, units), units);
            let asset = leg.asset;
            let mut share =
                |user, owned, held| each(LegShare { leg: index, user, asset, owned, held });
            match (leg.from, leg.to) {
                (Place::Outside, _) => share(payee, gained.1, gained.0),
                (_, Place::Outside) => share(payer, paid.1, paid.0),
                _ if payer == payee => share(payer, 0, paid.0 + gained.0),
                _ => {
                    share(payer, paid.1, paid.0);
                    share(payee, gained.1, gained.0);
                }
            }
        }
        // Only now: a later leg may pay into a hold that an earlier one has emptied.
        for leg in &posted.legs {
            for name in [leg.from, leg.to].map(|place| Name::of(posted, place, leg.asset)) {
                let Some(name) = name else { continue };
                if self.rows.get(&name).is_some_and(|row| row.amount == 0) {
                    self.rows.remove(&name);
                }
            }
        }
    }
}

impl HoldOwners {
    /// Whether a posting by name has the user in a leg, or ends a hold of the user.
    pub fn names(&self, named: &Named, user: u64) -> bool {
        let legs = named.legs.iter().flat_map(|leg| [leg.from.user(), leg.to.user()]);
        let mut users = legs.flatten().chain(self.of(named.transaction).map(|(spot, _)| spot.user));
        users.any(|other| other == user)
    }

    /// Each hold of a transaction with its amount.
    fn of(&self, transaction: u128) -> impl Iterator<Item = (SpotPlace, i128)> + '_ {
        let name = |user, asset, purpose| Name::Transaction { transaction, user, asset, purpose };
        let rows = self.rows.range(name(0, 0, 0)..=name(u64::MAX, u32::MAX, u16::MAX));
        rows.filter_map(|(name, row)| match *name {
            Name::Transaction { user, asset, purpose, .. } => {
                Some((SpotPlace { user, asset, purpose }, row.amount))
            }
            Name::Hold { .. } | Name::Freeze { .. } => None,
        })
    }

    /// Books the legs of a posting by name in their order, if it was admitted. `each` is called as
    /// for [`HoldOwners::book`]: for a RESERVE and a RELEASE once for each hold that changes the
    /// held part. Money that is set apart out of a freeze stays held.
    pub fn book_named(&mut self, named: &Named, mut each: impl FnMut(LegShare)) {
        if named.decision != Decision::Success {
            return;
        }
        let mut share = |leg, user, asset, owned, held| {
            each(LegShare { leg, user: Some(user), asset, owned, held });
        };
        let transaction = named.transaction;
        let had: Vec<_> = self.of(transaction).collect();
        match named.op.step() {
            Some(HoldStep::SetApart) => {
                let mut want = BTreeMap::<SpotPlace, (usize, i128)>::new();
                for (index, leg, lacking) in lacking(&named.legs) {
                    let Some(spot) = SpotPlace::of(leg.from, leg.asset) else { continue };
                    want.entry(spot).or_insert((index, 0)).1 += lacking;
                }
                for &(spot, amount) in &had {
                    want.entry(spot).or_insert((0, 0)).1 -= amount;
                }
                for (spot, (leg, more)) in want {
                    if self.set_apart(transaction, spot, more) != 0 {
                        share(leg, spot.user, spot.asset, 0, more);
                    }
                }
            }
            Some(HoldStep::GiveBack) => {
                for &(spot, amount) in &had {
                    if self.set_apart(transaction, spot, -amount) != 0 {
                        share(0, spot.user, spot.asset, 0, -amount);
                    }
                }
            }
            step => {
                for (index, leg, lacking) in lacking(&named.legs) {
                    // A POST has no hold: it takes from the place itself.
                    let apart = if step == Some(HoldStep::Book) { lacking } else { 0 };
                    match self.book_leg(transaction, leg, apart) {
                        [Some((user, _, less)), Some((same, _, more))] if user == same => {
                            share(index, user, leg.asset, 0, less + more);
                        }
                        both => {
                            for (user, owned, held) in both.into_iter().flatten() {
                                share(index, user, leg.asset, owned, held);
                            }
                        }
                    }
                }
            }
        }
        // Only now: a later leg may take money that an earlier one has brought.
        let legs = named.legs.iter().flat_map(|leg| [(leg.from, leg.asset), (leg.to, leg.asset)]);
        let spots = legs.filter_map(|(place, asset)| SpotPlace::of(place, asset));
        let spots: Vec<SpotPlace> = spots.chain(had.into_iter().map(|(spot, _)| spot)).collect();
        for name in spots.iter().flat_map(|spot| [spot.hold(transaction), spot.freeze()]) {
            if self.rows.get(&name).is_some_and(|row| row.amount == 0) {
                self.rows.remove(&name);
            }
        }
    }

    /// Books a leg of which `apart` comes out of the hold of its payer. Returns payer and payee,
    /// each with the changes of the whole balance and of its held part.
    fn book_leg(
        &mut self,
        transaction: u128,
        leg: &Leg,
        apart: i128,
    ) -> [Option<(u64, i128, i128)>; 2] {
        let units = i128::from(leg.amount);
        let [from, to] = [leg.from, leg.to].map(|place| SpotPlace::of(place, leg.asset));
        let paid = from.map(|spot| {
            self.change(spot.hold(transaction), spot, -apart);
            if spot.purpose == 0 {
                return (spot.user, -units, -apart);
            }
            self.change(spot.freeze(), spot, apart - units);
            (spot.user, -units, -units)
        });
        let gained = to.map(|spot| {
            if spot.purpose == 0 {
                return (spot.user, units, 0);
            }
            self.change(spot.freeze(), spot, units);
            (spot.user, units, units)
        });
        [paid, gained]
    }

    /// Sets `more` apart from a place, below 0 back there. Returns the change of the held part.
    fn set_apart(&mut self, transaction: u128, spot: SpotPlace, more: i128) -> i128 {
        self.change(spot.hold(transaction), spot, more);
        if spot.purpose == 0 {
            return more;
        }
        self.change(spot.freeze(), spot, -more);
        0
    }

    /// Changes a hold or a freeze, made if absent.
    fn change(&mut self, name: Name, spot: SpotPlace, by: i128) {
        if by != 0 {
            let fresh = Row { user: Some(spot.user), asset: spot.asset, amount: 0 };
            self.rows.entry(name).or_insert(fresh).amount += by;
        }
    }
}

/// A place of a user on Spot. Purpose 0 is the available amount.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct SpotPlace {
    user: u64,
    asset: u32,
    purpose: u16,
}

impl SpotPlace {
    /// `None`: the outside, or a hold of a venue.
    fn of(place: Place, asset: u32) -> Option<SpotPlace> {
        match place {
            Place::Available(user) => Some(SpotPlace { user, asset, purpose: 0 }),
            Place::Frozen { user, purpose } => Some(SpotPlace { user, asset, purpose }),
            Place::Outside | Place::Hold(_) => None,
        }
    }

    fn hold(self, transaction: u128) -> Name {
        let SpotPlace { user, asset, purpose } = self;
        Name::Transaction { transaction, user, asset, purpose }
    }

    fn freeze(self) -> Name {
        let SpotPlace { user, asset, purpose } = self;
        Name::Freeze { user, asset, purpose }
    }
}

/// The money that a posting by name has brought to Spot from outside, or taken there if below 0: of
/// each leg that crosses the asset and the amount. A RESERVE and a RELEASE book no leg.
pub(super) fn crossings(named: &Named) -> impl Iterator<Item = (u32, i128)> + '_ {
    let books = named.decision == Decision::Success
        && matches!(named.op.step(), Some(HoldStep::Book | HoldStep::AtOnce));
    let legs = named.legs.iter().filter(move |_| books);
    legs.filter_map(|leg| match (leg.from, leg.to) {
        (Place::Outside, _) => Some((leg.asset, i128::from(leg.amount))),
        (_, Place::Outside) => Some((leg.asset, -i128::from(leg.amount))),
        _ => None,
    })
}

/// For each leg the amount that the legs before it have not brought to its payer: a RESERVE sets it
/// apart.
fn lacking(legs: &[Leg]) -> impl Iterator<Item = (usize, &Leg, i128)> {
    let mut arrived = BTreeMap::<(Place, u32), i128>::new();
    legs.iter().enumerate().map(move |(index, leg)| {
        let units = i128::from(leg.amount);
        let there = arrived.entry((leg.from, leg.asset)).or_default();
        let taken = units.min(*there);
        *there -= taken;
        *arrived.entry((leg.to, leg.asset)).or_default() += units;
        (index, leg, units - taken)
    })
}

/// One Spot balance.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Sum {
    /// Available and held, smallest units.
    owned: i128,
    /// Held, smallest units.
    held: i128,
    /// All that postings have brought less all that they have taken, smallest units.
    traded: i128,
}

/// The Spot balances after the records read so far.
#[derive(Debug, Default)]
pub struct LegSums {
    balances: BTreeMap<(u64, u32), Sum>,
    /// Brought by transactions from outside less taken there, by asset.
    crossed: BTreeMap<u32, i128>,
    holds: HoldOwners,
    /// Legs out of holds that no record has begun.
    lost: Vec<Wrong>,
}

/// One amount that differs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wrong {
    /// The user; `None` for all users together.
    pub user: Option<u64>,
    /// The asset's number.
    pub asset: u32,
    /// The part that differs.
    pub part: Part,
    /// The holds that are concerned, at most four.
    pub holds: Vec<Name>,
    /// The stated amount, smallest units.
    pub stated: i128,
    /// The amount to which the legs or the holds add up, smallest units.
    pub added: i128,
}

/// The part of a balance that differs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Available and held, against the legs.
    Owned,
    /// Held, against the legs.
    Held,
    /// The sum of all postings, against the legs.
    Traded,
    /// One hold or freeze, against the legs.
    Hold,
    /// Held, against the holds and freezes.
    HoldsOfHeld,
    /// All users of an asset: postings make and lose nothing beside the money from outside.
    TradedOfAsset,
    /// The sum of the money from outside, against the legs.
    Crossed,
    /// A leg out of a hold without a beginning.
    Begun,
}

impl Wrong {
    /// A sentence without user and asset. `precision`: the decimals of the asset.
    pub fn sentence(&self, precision: u8) -> String {
        let [stated, added] = [self.stated, self.added].map(|units| signed_text(units, precision));
        let names: Vec<String> = self.holds.iter().map(Name::to_string).collect();
        let names = names.join(", ");
        match self.part {
            Part::Owned => format!("Spot has {stated}, its records add up to {added}"),
            Part::Held => format!("{stated} are held, the legs of the log add up to {added}"),
            Part::Traded => {
                format!("postings have brought {stated}, the legs of the log add up to {added}")
            }
            Part::Hold => format!("{names} has {stated}, the legs of the log add up to {added}"),
            Part::HoldsOfHeld if names.is_empty() => {
                format!("{stated} are held, but there is no hold")
            }
            Part::HoldsOfHeld => {
                format!("{stated} are held, its holds add up to {added} ({names})")
            }
            Part::TradedOfAsset => {
                format!("postings have brought {stated} more than they have taken")
            }
            Part::Crossed => {
                format!("{stated} came from outside, the legs of the log add up to {added}")
            }
            Part::Begun => format!("{names} pays {added}, and no record has begun it"),
        }
    }
}

impl LegSums {
    /// The balances and holds of a ledger or of a snapshot.
    pub fn of(facts: impl Iterator<Item = Fact>) -> LegSums {
        let mut sums = LegSums::default();
        facts.for_each(|fact| sums.learn(&fact));
        sums
    }

    /// The balances and holds of a snapshot.
    ///
    /// # Errors
    /// [`snapshot::Error`].
    pub fn of_snapshot(snapshot: &Snapshot) -> Result<LegSums, snapshot::Error> {
        let mut sums = LegSums::default();
        for fact in snapshot.facts()? {
            sums.learn(&fact?);
        }
        Ok(sums)
    }

    /// All that postings have brought to a user less all that they have taken, by asset.
    pub fn traded(&self, user: u64) -> BTreeMap<AssetId, i128> {
        let of_user = self.balances.range((user, 0)..=(user, u32::MAX));
        of_user.map(|((_, asset), sum)| (AssetId(*asset), sum.traded)).collect()
    }

    /// The holds alone.
    pub fn into_holds(self) -> HoldOwners {
        self.holds
    }

    /// Adds a fact of a ledger.
    fn learn(&mut self, fact: &Fact) {
        match *fact {
            Fact::Balance { user, asset, available, held, traded, .. } => {
                let owned = signed(available).saturating_add(signed(held));
                self.balances.insert((user, asset), Sum { owned, held: signed(held), traded });
            }
            Fact::Hold(ref hold) => self.holds.learn(hold),
            Fact::Crossed { asset, brought } => {
                self.crossed.insert(asset, brought);
            }
            _ => {}
        }
    }

    /// Adds the next record of the log, as it is written.
    pub fn add(&mut self, entry: &Entry) {
        let LegSums { balances, crossed, holds, lost } = self;
        if let Entry::Named(named) = entry {
            for (asset, brought) in crossings(named) {
                *crossed.entry(asset).or_default() += brought;
            }
        }
        match entry {
            Entry::Order { order, decision, .. } => {
                let effect = order.op.effect(*decision, order.amount);
                if effect != 0 {
                    balances.entry((order.user, order.asset)).or_default().owned += effect;
                }
            }
            Entry::Totals { user, asset, totals } => {
                let owned = totals.available().map_or(0, signed);
                balances.entry((*user, *asset)).or_default().owned += owned;
            }
            Entry::Posting(posted) => holds.book(posted, |share| {
                let LegShare { leg, user, asset, owned, held } = share;
                let Some(user) = user else {
                    let hold = Name::of(posted, posted.legs[leg].from, asset);
                    let holds = hold.into_iter().collect();
                    let (stated, added) = (0, owned.max(-owned));
                    lost.push(Wrong { user, asset, part: Part::Begun, holds, stated, added });
                    return;
                };
                let sum = balances.entry((user, asset)).or_default();
                sum.owned += owned;
                sum.held += held;
                sum.traded += owned;
            }),
            Entry::Named(named) => holds.book_named(named, |share| {
                let LegShare { user, asset, owned, held, .. } = share;
                let user = user.expect("each place of a transaction is a user's");
                let sum = balances.entry((user, asset)).or_default();
                sum.owned += owned;
                sum.held += held;
                sum.traded += owned;
            }),
            _ => {}
        }
    }

    /// The differences of `stated` to these sums of legs.
    pub fn compare(&self, stated: &LegSums) -> Vec<Wrong> {
        let mut wrong = self.lost.clone();
        let names: BTreeMap<Name, ()> = self
            .holds
            .rows
            .keys()
            .chain(stated.holds.rows.keys())
            .map(|name| (*name, ()))
            .collect();
        for name in names.into_keys() {
            let [mine, theirs] = [self, stated].map(|sums| sums.holds.rows.get(&name));
            let Some(row) = mine.or(theirs) else { continue };
            let units = |row: Option<&Row>| row.map_or(0, |row| row.amount);
            let owners =
                mine.zip(theirs).is_none_or(|(a, b)| (a.user, a.asset) == (b.user, b.asset));
            if units(mine) != units(theirs) || !owners {
                let (user, asset, holds) = (row.user, row.asset, vec![name]);
                let (stated, added) = (units(theirs), units(mine));
                wrong.push(Wrong { user, asset, part: Part::Hold, holds, stated, added });
            }
        }
        let keys: BTreeMap<(u64, u32), ()> =
            self.balances.keys().chain(stated.balances.keys()).map(|key| (*key, ())).collect();
        for (user, asset) in keys.into_keys() {
            let [mine, theirs] = [self, stated]
                .map(|sums| sums.balances.get(&(user, asset)).copied().unwrap_or_default());
            for (part, added, stated) in [
                (Part::Owned, mine.owned, theirs.owned),
                (Part::Held, mine.held, theirs.held),
                (Part::Traded, mine.traded, theirs.traded),
            ] {
                if added != stated {
                    let (user, holds) = (Some(user), Vec::new());
                    wrong.push(Wrong { user, asset, part, holds, stated, added });
                }
            }
        }
        let assets: BTreeMap<u32, ()> =
            self.crossed.keys().chain(stated.crossed.keys()).map(|asset| (*asset, ())).collect();
        for asset in assets.into_keys() {
            let [added, stated] =
                [self, stated].map(|sums| sums.crossed.get(&asset).copied().unwrap_or_default());
            if added != stated {
                let (part, holds) = (Part::Crossed, Vec::new());
                wrong.push(Wrong { user: None, asset, part, holds, stated, added });
            }
        }
        wrong
    }

    /// The contradictions within these sums: holds add up to the held part, and postings of an
    /// asset make and lose nothing.
    pub fn recount(&self) -> Vec<Wrong> {
        let mut held = BTreeMap::<(u64, u32), (i128, Vec<Name>)>::new();
        for (name, row) in &self.holds.rows {
            let Some(user) = row.user else { continue };
            let (sum, names) = held.entry((user, row.asset)).or_default();
            *sum = sum.saturating_add(row.amount);
            if names.len() < HOLDS_NAMED_MAX {
                names.push(*name);
            }
        }
        let mut wrong = Vec::new();
        let mut traded: BTreeMap<u32, i128> = self
            .crossed
            .iter()
            .map(|(asset, brought)| (*asset, brought.saturating_neg()))
            .collect();
        for (&(user, asset), sum) in &self.balances {
            let (added, holds) = held.remove(&(user, asset)).unwrap_or_default();
            let (part, stated) = (Part::HoldsOfHeld, sum.held);
            if added != stated {
                wrong.push(Wrong { user: Some(user), asset, part, holds, stated, added });
            }
            let brought = traded.entry(asset).or_default();
            *brought = brought.saturating_add(sum.traded);
        }
        for ((user, asset), (added, holds)) in held {
            let (part, stated) = (Part::HoldsOfHeld, 0);
            wrong.push(Wrong { user: Some(user), asset, part, holds, stated, added });
        }
        for (asset, stated) in traded.into_iter().filter(|(_, brought)| *brought != 0) {
            let (part, holds) = (Part::TradedOfAsset, Vec::new());
            wrong.push(Wrong { user: None, asset, part, holds, stated, added: 0 });
        }
        wrong
    }
}

/// A difference, and the snapshot that states the amount; `None` for UBSCore's own state.
pub type Differing = (Option<String>, Wrong);

/// A difference as a finding.
pub fn mismatch((file, wrong): &Differing, catalog: &Catalog) -> Mismatch {
    let Wrong { user, asset, stated, added, .. } = *wrong;
    let sentence = wrong.sentence(catalog.precision(AssetId(asset)));
    let text = match file {
        Some(file) => format!("{file}: {sentence}"),
        None => sentence,
    };
    let (user, asset) = (user.and_then(UserId::new), AssetId(asset));
    Mismatch::new(Kind::Postings(text)).with_account(user, asset, stated - added, catalog)
}

/// Adds up every leg of the log, and compares the sums with each snapshot at its record, and with
/// `stated` after its record. Both are also compared with themselves.
///
/// If the first records are removed, the sums begin with the oldest snapshot that the log
/// continues. `stated`: a ledger's last record and its facts.
///
/// # Errors
/// [`Error`]: the log or a snapshot cannot be read.
pub fn judge(
    log: &Path,
    snapshots: &Path,
    stated: Option<(Sequence, LegSums)>,
) -> Result<Vec<Differing>, Error> {
    let mut snapshots: BTreeMap<_, _> =
        SnapshotStore::at(snapshots).named().map_err(Box::new)?.into_iter().collect();
    let mut reader = Reader::<Directory>::open_path(log, 0)?;
    let mut found = Vec::new();
    let mut sums = LegSums::default();
    let first = reader.headers().next().map_or(1, SegmentHeader::first);
    if first > 1 {
        let mut base = None;
        while let Some((sequence, path)) = snapshots.pop_first() {
            let Some((file, facts)) = of_snapshot(&path)? else { continue };
            found.extend(facts.recount().into_iter().map(|wrong| (Some(file.clone()), wrong)));
            if sequence + 1 < first {
                // Records behind it are removed.
                continue;
            }
            base = Some((sequence, facts));
            break;
        }
        // A start would refuse such a log.
        let Some((sequence, facts)) = base else { return Ok(found) };
        sums = facts;
        reader = Reader::open_path(log, sequence + 1)?;
    }
    let last = stated.as_ref().map_or(Sequence::MAX, |(last, _)| *last);
    while let Some(record) = reader.next()? {
        let sequence = record.sequence;
        if sequence > last {
            break;
        }
        let entry = Entry::decode(record.kind, record.payload)
            .map_err(|source| Error::Record { sequence, source })?;
        sums.add(&entry);
        let Some(path) = snapshots.remove(&sequence) else { continue };
        if let Some((file, facts)) = of_snapshot(&path)? {
            let wrong = facts.recount().into_iter().chain(sums.compare(&facts));
            found.extend(wrong.map(|wrong| (Some(file.clone()), wrong)));
        }
    }
    if let Some((_, stated)) = stated {
        let wrong = stated.recount().into_iter().chain(sums.compare(&stated));
        found.extend(wrong.map(|wrong| (None, wrong)));
    }
    Ok(found)
}

/// The name and the sums of a snapshot; `None` if it is damaged, or was removed meanwhile.
fn of_snapshot(path: &Path) -> Result<Option<(String, LegSums)>, Error> {
    match Snapshot::open(path).and_then(|snapshot| LegSums::of_snapshot(&snapshot)) {
        Ok(sums) => Ok(Some((path.display().to_string(), sums))),
        Err(error) if error.is_damage() => Ok(None),
        Err(error) => Err(Box::new(error).into()),
    }
}

/// A balance is below 2^127; a changed file may state more.
fn signed(units: u128) -> i128 {
    i128::try_from(units).unwrap_or(i128::MAX)
}

#[cfg(test)]
mod tests;
