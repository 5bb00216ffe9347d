//! `ubscore snapshot inspect --diff`: the differences between two snapshots.
//!
//! The facts of a snapshot are in no order. So the facts of one snapshot are held by their keys
//! while the other one is read, a part at a time. Memory stays bounded; large files are read
//! several times.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::BuildHasher;
use std::io::Write;
use std::path::{Path, PathBuf};

use engine::fact::{Fact, HoldFact};
use engine::snapshot::{self, Header, Snapshot};
use foldhash::fast::FixedState;
use serde::{Serialize, Serializer};
use ulid::Ulid;

use super::contents::{Contents, SumObject, check};
use super::error::Error;
use crate::cli::SnapshotInspectArgs;
use crate::commands::wal::assets::Assets;
use crate::commands::wal::integer::Integer;
use crate::commands::wal::posting::outcome;
use crate::format::Format;

/// The most facts held at a time; each takes some 150 bytes.
const FACTS_HELD_MAX: u64 = 500_000;

/// Prints the differences; returns whether there are any.
///
/// # Errors
/// [`Error`]: a snapshot is damaged, or contradicts itself.
pub(super) fn diff(
    args: &SnapshotInspectArgs,
    paths: &[PathBuf],
    out: &mut impl Write,
) -> Result<bool, Error> {
    let [a, b] = paths else { unreachable!("clap asks for two") };
    let (a, b) = (Side::open(a)?, Side::open(b)?);
    let mut differences = Differences::new(args.limit);
    differences.find(&a.snapshot, &b.snapshot)?;
    let comparison = Comparison::new(&a, &b, &differences);
    match args.format {
        Format::Text => comparison.print(out)?,
        Format::Json => {
            let object = serde_json::to_string(&comparison).expect("text and numbers");
            writeln!(out, "{object}")?;
        }
    }
    out.flush()?;
    Ok(comparison.differs)
}

/// One of the two snapshots.
struct Side {
    snapshot: Snapshot,
    contents: Contents,
}

impl Side {
    fn open(path: &Path) -> Result<Side, snapshot::Error> {
        let snapshot = Snapshot::open(path)?;
        let contents = check(&snapshot)?;
        Ok(Side { snapshot, contents })
    }
}

/// The subject of a fact; two facts with one key are two values of it. Facts that exist once in a
/// snapshot have no key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Key {
    Asset(u32),
    Account(u64),
    Balance(u64, u32),
    /// Transfer, transaction or external operation; operation; round of a posting, else 0.
    Outcome(u128, u8, u8),
    Outside(u32),
    Crossed(u32),
    Venue(u32),
    /// Venue and number.
    Hold(u32, u64),
    /// Transaction, user, asset and purpose.
    Transaction(u128, u64, u32, u16),
    /// User, asset and purpose.
    Freeze(u64, u32, u16),
    /// Venue and number.
    Answer(u32, u64),
}

impl Key {
    fn of(fact: &Fact) -> Option<Key> {
        match *fact {
            Fact::Asset { asset, .. } => Some(Key::Asset(asset)),
            Fact::Account { user, .. } => Some(Key::Account(user)),
            Fact::Balance { user, asset, .. } => Some(Key::Balance(user, asset)),
            Fact::Outcome { req_id, op, .. } => Some(Key::Outcome(req_id, op as u8, 0)),
            Fact::Named(named) => {
                Some(Key::Outcome(named.transaction, named.op as u8, named.round))
            }
            Fact::Outside { asset, .. } => Some(Key::Outside(asset)),
            Fact::Crossed { asset, .. } => Some(Key::Crossed(asset)),
            Fact::Venue(venue) => Some(Key::Venue(venue.id)),
            Fact::Hold(HoldFact { venue: 0, transaction: 0, user, asset, purpose, .. }) => {
                Some(Key::Freeze(user, asset, purpose))
            }
            Fact::Hold(HoldFact { venue: 0, transaction, user, asset, purpose, .. }) => {
                Some(Key::Transaction(transaction, user, asset, purpose))
            }
            Fact::Hold(hold) => Some(Key::Hold(hold.venue, hold.number)),
            Fact::Answer(answer) => Some(Key::Answer(answer.venue, answer.number)),
            Fact::Watermark { .. } | Fact::Evicted { .. } => None,
        }
    }

    /// Its place in [`CLASSES`].
    fn class(self) -> usize {
        match self {
            Key::Asset(_) => 0,
            Key::Account(_) => 1,
            Key::Balance(..) => 2,
            Key::Outcome(..) => 3,
            Key::Outside(_) => 4,
            Key::Venue(_) => 5,
            Key::Hold(..) | Key::Transaction(..) | Key::Freeze(..) => 6,
            Key::Answer(..) => 7,
            Key::Crossed(_) => 8,
        }
    }
}

/// The classes of keys.
const CLASSES: [&str; 9] = [
    "assets", "accounts", "balances", "outcomes", "outside", "venues", "holds", "answers",
    "crossed",
];

/// The facts of one key: before and after.
type Change = (Option<Fact>, Option<Fact>);

/// The differences of one class of facts.
#[derive(Default)]
struct Class {
    added: u64,
    removed: u64,
    changed: u64,
    /// The smallest keys, up to the number shown.
    shown: BTreeMap<Key, Change>,
}

struct Differences {
    classes: [Class; CLASSES.len()],
    /// The number of keys shown of each class.
    limit: usize,
}

impl Differences {
    fn new(limit: usize) -> Differences {
        Differences { classes: Default::default(), limit }
    }

    fn find(&mut self, a: &Snapshot, b: &Snapshot) -> Result<(), snapshot::Error> {
        let passes = a.header.facts.div_ceil(FACTS_HELD_MAX).max(1);
        for pass in 0..passes {
            self.find_part(a, b, |key| FixedState::default().hash_one(key) % passes == pass)?;
        }
        Ok(())
    }

    fn find_part(
        &mut self,
        a: &Snapshot,
        b: &Snapshot,
        wanted: impl Fn(&Key) -> bool,
    ) -> Result<(), snapshot::Error> {
        let mut before: HashMap<Key, Fact, FixedState> = HashMap::default();
        for fact in a.facts()? {
            let fact = fact?;
            if let Some(key) = Key::of(&fact).filter(&wanted) {
                before.insert(key, fact);
            }
        }
        for fact in b.facts()? {
            let fact = fact?;
            let Some(key) = Key::of(&fact).filter(&wanted) else { continue };
            let old = before.remove(&key);
            if old != Some(fact) {
                self.add(key, (old, Some(fact)));
            }
        }
        for (key, old) in before {
            self.add(key, (Some(old), None));
        }
        Ok(())
    }

    fn add(&mut self, key: Key, change: Change) {
        let class = &mut self.classes[key.class()];
        match change {
            (None, _) => class.added += 1,
            (_, None) => class.removed += 1,
            _ => class.changed += 1,
        }
        class.shown.insert(key, change);
        if class.shown.len() > self.limit {
            class.shown.pop_last();
        }
        debug_assert!(class.shown.len() <= self.limit, "one more is one too many");
    }
}

/// A value of a fact.
#[derive(PartialEq, Eq)]
enum Value {
    Text(String),
    Number(Integer),
}

impl From<u64> for Value {
    fn from(number: u64) -> Value {
        Value::Number(number.into())
    }
}

impl std::fmt::Display for Value {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Value::Text(text) => out.write_str(text),
            Value::Number(number) => number.fmt(out),
        }
    }
}

impl Serialize for Value {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Value::Text(text) => serializer.serialize_str(text),
            Value::Number(number) => number.serialize(serializer),
        }
    }
}

/// A signed amount with the asset's decimals.
fn signed(assets: &Assets, asset: u32, units: i128) -> String {
    let sign = if units < 0 { "-" } else { "" };
    format!("{sign}{}", assets.amount(asset, units.unsigned_abs()))
}

/// The values of a fact by name. Amounts have the asset's decimals.
fn values(fact: &Fact, assets: &Assets) -> BTreeMap<&'static str, Value> {
    let text = Value::Text;
    match fact {
        Fact::Asset { asset, precision, .. } => BTreeMap::from([
            ("asset_id", u64::from(*asset).into()),
            ("asset", text(assets.name(*asset))),
            ("precision", u64::from(*precision).into()),
        ]),
        Fact::Account { user, status } => {
            BTreeMap::from([("user", (*user).into()), ("status", text(status.name().to_owned()))])
        }
        Fact::Balance { user, asset, available, held, traded, totals } => BTreeMap::from([
            ("user", (*user).into()),
            ("asset", text(assets.name(*asset))),
            ("available", text(assets.amount(*asset, *available))),
            ("held", text(assets.amount(*asset, *held))),
            ("traded", text(signed(assets, *asset, *traded))),
            ("deposits", text(assets.amount(*asset, totals.deposits))),
            ("withdrawals", text(assets.amount(*asset, totals.withdrawals))),
            ("refunds", text(assets.amount(*asset, totals.refunds))),
        ]),
        Fact::Outcome { req_id, op, recorded } => BTreeMap::from([
            ("req_id", text(Ulid(*req_id).to_string())),
            ("op", text(op.name().to_owned())),
            ("user", recorded.user.into()),
            ("asset", text(assets.name(recorded.asset))),
            ("amount", text(assets.amount(recorded.asset, recorded.amount.into()))),
            ("outcome", text(outcome(recorded.decision).to_owned())),
            ("balance_after", text(assets.amount(recorded.asset, recorded.balance_after))),
            ("sequence", recorded.sequence.into()),
            ("order_number", recorded.order_number.into()),
        ]),
        Fact::Outside { asset, outside } => BTreeMap::from([
            ("asset", text(assets.name(*asset))),
            ("deposits", outside.deposits.into()),
            ("deposited", text(assets.amount(*asset, outside.deposited))),
            ("withdrawals", outside.withdrawals.into()),
            ("withdrawn", text(assets.amount(*asset, outside.withdrawn))),
        ]),
        Fact::Crossed { asset, brought } => BTreeMap::from([
            ("asset", text(assets.name(*asset))),
            ("brought", text(signed(assets, *asset, *brought))),
        ]),
        Fact::Venue(venue) => BTreeMap::from([
            ("venue", u64::from(venue.id).into()),
            ("name", text(venue.name.as_str().to_owned())),
            ("epoch", venue.epoch.into()),
            ("acknowledged", venue.acknowledged.into()),
            ("closed", u64::from(venue.closed).into()),
            ("posts", u64::from(venue.posts).into()),
        ]),
        Fact::Named(named) => BTreeMap::from([
            ("transaction", text(Ulid(named.transaction).to_string())),
            ("op", text(named.op.name().to_owned())),
            ("round", u64::from(named.round).into()),
            ("legs", text(format!("{:032x}", named.hash))),
            ("outcome", text(outcome(named.decision).to_owned())),
            ("open", u64::from(named.is_open()).into()),
            ("sequence", named.record.into()),
            ("order_number", named.order_number.into()),
        ]),
        Fact::Hold(hold) if hold.transaction != 0 => BTreeMap::from([
            ("transaction", text(Ulid(hold.transaction).to_string())),
            ("purpose", u64::from(hold.purpose).into()),
            ("user", hold.user.into()),
            ("asset", text(assets.name(hold.asset))),
            ("amount", text(assets.amount(hold.asset, hold.amount))),
            ("sequence", hold.record.into()),
        ]),
        Fact::Hold(hold) => BTreeMap::from([
            ("venue", u64::from(hold.venue).into()),
            ("number", hold.number.into()),
            ("purpose", u64::from(hold.purpose).into()),
            ("user", hold.user.into()),
            ("asset", text(assets.name(hold.asset))),
            ("amount", text(assets.amount(hold.asset, hold.amount))),
            ("reference", hold.reference.into()),
            ("sequence", hold.record.into()),
        ]),
        Fact::Answer(answer) => BTreeMap::from([
            ("venue", u64::from(answer.venue).into()),
            ("number", answer.number.into()),
            ("outcome", text(outcome(answer.decision).to_owned())),
            ("sequence", answer.record.into()),
        ]),
        Fact::Watermark { .. } | Fact::Evicted { .. } => unreachable!("these have no key"),
    }
}

/// Both snapshots side by side.
#[derive(Serialize)]
struct Comparison {
    verdict: &'static str,
    #[serde(skip)]
    differs: bool,
    a: SideObject,
    b: SideObject,
    sums: Vec<SumsObject>,
    assets: ClassObject,
    accounts: ClassObject,
    balances: ClassObject,
    outcomes: ClassObject,
    outside: ClassObject,
    venues: ClassObject,
    holds: ClassObject,
    answers: ClassObject,
    crossed: ClassObject,
}

#[derive(Serialize)]
struct SideObject {
    file: String,
    log: String,
    sequence: Integer,
    facts: Integer,
    watermark: Integer,
    /// The sum over the evicted outcomes.
    #[serde(rename = "departed")]
    evicted: String,
    digest: String,
}

impl SideObject {
    fn of(side: &Side) -> SideObject {
        let Header { identity, sequence, facts, digest } = side.snapshot.header;
        SideObject {
            file: side.snapshot.path.display().to_string(),
            log: identity.to_string(),
            sequence: sequence.into(),
            facts: facts.into(),
            watermark: side.contents.held.watermark.into(),
            evicted: format!("{:032x}", side.contents.evicted),
            digest: format!("{digest:032x}"),
        }
    }
}

/// One asset's sums on both sides; `None` if a side has no balance of it.
#[derive(Serialize)]
struct SumsObject {
    #[serde(skip)]
    name: String,
    a: Option<SumObject>,
    b: Option<SumObject>,
}

#[derive(Serialize)]
struct ClassObject {
    added: Integer,
    removed: Integer,
    changed: Integer,
    shown: Vec<ChangeObject>,
    /// The number of differences that are not shown.
    more: Integer,
}

#[derive(Serialize)]
struct ChangeObject {
    before: Option<BTreeMap<&'static str, Value>>,
    after: Option<BTreeMap<&'static str, Value>>,
}

impl ClassObject {
    fn of(class: &Class, a: &Assets, b: &Assets) -> ClassObject {
        let change = |(before, after): &Change| ChangeObject {
            before: before.as_ref().map(|fact| values(fact, a)),
            after: after.as_ref().map(|fact| values(fact, b)),
        };
        let Class { added, removed, changed, shown } = class;
        ClassObject {
            added: (*added).into(),
            removed: (*removed).into(),
            changed: (*changed).into(),
            more: (added + removed + changed - shown.len() as u64).into(),
            shown: shown.values().map(change).collect(),
        }
    }
}

impl ChangeObject {
    /// One side's values. If both sides have values, equal values come first, then the others as
    /// `before->after`.
    fn text(&self) -> String {
        let plain = |values: &BTreeMap<&'static str, Value>| {
            values.iter().map(|(name, value)| format!(" {name}={value}")).collect::<String>()
        };
        match (&self.before, &self.after) {
            (None, Some(values)) => format!("+{}", plain(values)),
            (Some(values), None) => format!("-{}", plain(values)),
            (Some(before), Some(after)) => {
                let pairs = || before.iter().zip(after.values());
                let same: String = pairs()
                    .filter(|((_, before), after)| before == after)
                    .map(|((name, value), _)| format!(" {name}={value}"))
                    .collect();
                let other: String = pairs()
                    .filter(|((_, before), after)| before != after)
                    .map(|((name, before), after)| format!(" {name}={before}->{after}"))
                    .collect();
                format!("~{same}{other}")
            }
            (None, None) => unreachable!("a change has a side"),
        }
    }
}

impl Comparison {
    fn new(a: &Side, b: &Side, differences: &Differences) -> Comparison {
        let (known_a, known_b) = (&a.contents.assets, &b.contents.assets);
        let [assets, accounts, balances, outcomes, outside, venues, holds, answers, crossed] =
            differences.classes.each_ref().map(|class| ClassObject::of(class, known_a, known_b));
        let numbers = a.contents.sums.keys().chain(b.contents.sums.keys());
        let numbers: BTreeSet<u32> = numbers.copied().collect();
        let sums = numbers.into_iter().map(|asset| SumsObject {
            name: known_b.name(asset),
            a: a.contents.sum_object(asset),
            b: b.contents.sum_object(asset),
        });
        let (side_a, side_b) = (SideObject::of(a), SideObject::of(b));
        // The header's digest covers every fact, evicted outcomes included.
        let differs = a.snapshot.header != b.snapshot.header;
        Comparison {
            verdict: if differs { "differs" } else { "same" },
            differs,
            sums: sums.collect(),
            a: side_a,
            b: side_b,
            assets,
            accounts,
            balances,
            outcomes,
            outside,
            venues,
            holds,
            answers,
            crossed,
        }
    }

    fn print(&self, out: &mut impl Write) -> std::io::Result<()> {
        let Comparison { verdict, a, b, .. } = self;
        writeln!(out, "{verdict} {} {}", a.file, b.file)?;
        for (name, a, b) in [
            ("log", a.log.clone(), b.log.clone()),
            ("sequence", a.sequence.to_string(), b.sequence.to_string()),
            ("facts", a.facts.to_string(), b.facts.to_string()),
            ("watermark", a.watermark.to_string(), b.watermark.to_string()),
            ("departed", a.evicted.clone(), b.evicted.clone()),
            ("digest", a.digest.clone(), b.digest.clone()),
        ] {
            match a == b {
                true => writeln!(out, "{name} {a}")?,
                false => writeln!(out, "{name} {a}->{b}")?,
            }
        }
        for SumsObject { name, a, b } in &self.sums {
            let text =
                |sum: &Option<SumObject>| sum.as_ref().map_or("-".to_owned(), SumObject::text);
            match a == b {
                true => writeln!(out, "sum {name} {}", text(a))?,
                false => writeln!(out, "sum {name} {} -> {}", text(a), text(b))?,
            }
        }
        let Comparison { assets, accounts, balances, outcomes, outside, .. } = self;
        let Comparison { venues, holds, answers, crossed, .. } = self;
        let classes =
            [assets, accounts, balances, outcomes, outside, venues, holds, answers, crossed];
        for (name, class) in CLASSES.into_iter().zip(classes) {
            let ClassObject { added, removed, changed, shown, more } = class;
            writeln!(out, "{name} added={added} removed={removed} changed={changed}")?;
            for change in shown {
                writeln!(out, "  {}", change.text())?;
            }
            if *more != Integer::from(0_u64) {
                writeln!(out, "  and {more} more")?;
            }
        }
        Ok(())
    }
}
