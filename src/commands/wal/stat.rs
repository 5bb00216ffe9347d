//! `ubscore wal stat`: counts the content of a log in one pass and in constant memory.
//!
//! The log has no times of syncs. Each record holds the sequence that was durable when the record
//! was written. If that sequence moved since the record before, at least one sync ended between the
//! two: a step. The records that a step made durable are its batch. The time between the first
//! records after two steps is their gap. So a batch is never shown too small, the last batch is not
//! shown, and time without orders counts in a gap.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io::Write;

use engine::entry::Entry;
use hdrhistogram::Histogram;
use jiff::Timestamp;
use serde::Serialize;
use wal::{Record, Sequence};

use super::assets::{ASSETS_MAX, Assets};
use super::error::Error;
use super::finding::Damage;
use super::ink::{BAD, GOOD, Ink};
use super::integer::Integer;
use super::log::Log;
use super::named::named_users;
use super::posting::{outcome, posted_users};
use super::read::{Read, ReadObject};
use super::verify::{FoundObject, found_text};
use crate::cli::WalStatArgs;
use crate::commands::output::json;
use crate::format::Format;

/// The most users that are distinguished, some 10 MB of memory. At the bound the output adds \"or
/// more\".
const USERS_MAX: usize = 1_000_000;

/// Length of the longest bar, characters.
const BAR_WIDTH: u64 = 40;

/// The lower bounds of a histogram's buckets: 0, and 1, 2 and 5 times each power of ten. The last
/// bucket has no upper bound.
const BOUNDS: [u64; 40] = bounds();

const fn bounds() -> [u64; 40] {
    let mut bounds = [0; 40];
    let (mut at, mut power) = (1, 1);
    while at + 2 < bounds.len() {
        bounds[at] = power;
        bounds[at + 1] = 2 * power;
        bounds[at + 2] = 5 * power;
        at += 3;
        power *= 10;
    }
    bounds
}

const _: () = assert!(BOUNDS[39] == 5_000_000_000_000);

/// Counts the whole log, and prints its content.
pub(super) fn stat(args: &WalStatArgs, out: &mut impl Write, ink: Ink) -> Result<(), Error> {
    let log = Log::find(&args.path)?;
    let (mut read, mut tally) = (Read::default(), Tally::default());
    let counted = log.read_all(&mut read, |record, entry| tally.add(record, entry));
    let found = match &counted {
        Ok(ending) => Ok(ending),
        Err(error) => match error.damage() {
            Some(damage) => Err(damage),
            None => return counted.map(drop),
        },
    };
    let written = match args.format {
        Format::Text => {
            let (verdict, style) = verdict(&found, ink);
            let found = found_text(&found);
            writeln!(out, "{style}{verdict}{style:#} {}{found}", read.text())
                .and_then(|()| tally.print(out))
        }
        Format::Json => {
            let (verdict, _) = verdict(&found, ink);
            let (read, found) = (read.object(), FoundObject::of(&found));
            writeln!(out, "{}", json(&StatObject { verdict, read, found, tally: tally.object() }))
        }
    };
    // Damage first, as in `wal verify`.
    counted?;
    Ok(written?)
}

fn verdict<T>(found: &Result<T, Damage<'_>>, ink: Ink) -> (&'static str, anstyle::Style) {
    match found {
        Ok(_) => ("ok", ink.of(GOOD)),
        Err(_) => ("damaged", ink.of(BAD)),
    }
}

/// Records and their bytes, with header and padding.
#[derive(Clone, Copy, Default)]
struct Count {
    records: u64,
    bytes: u64,
}

impl Count {
    fn add(&mut self, record: &Record<'_>) {
        self.records += 1;
        self.bytes += record.bytes;
    }
}

/// Everything counted so far.
#[derive(Default)]
struct Tally {
    all: Count,
    /// By number and name of the kind.
    kinds: BTreeMap<(u8, &'static str), Count>,
    /// Orders by operation and outcome; bounded by the number of names.
    orders: BTreeMap<(&'static str, &'static str), Count>,
    users: HashSet<u64, foldhash::fast::RandomState>,
    users_more: bool,
    assets: Assets,
    /// Orders by asset, up to [`ASSETS_MAX`].
    by_asset: HashMap<u32, Count, foldhash::fast::RandomState>,
    /// Orders in further assets.
    assets_more: Count,
    /// The earliest and the latest time, ns.
    times: Option<(u64, u64)>,
    /// The durable sequence in the last record.
    durable: Option<Sequence>,
    /// Time of the first record after the last step, ns.
    stepped_ns: Option<u64>,
    /// Records made durable by a step.
    batches: Spread,
    /// Times between two steps, ns.
    gaps: Spread,
}

impl Tally {
    fn add(&mut self, record: &Record<'_>, entry: &Entry) {
        self.all.add(record);
        self.kinds.entry((record.kind, entry.kind().name())).or_default().add(record);
        let (earliest, latest) = self.times.unwrap_or((record.time_ns, record.time_ns));
        self.times = Some((earliest.min(record.time_ns), latest.max(record.time_ns)));
        match entry {
            Entry::Order { order, decision, .. } => {
                self.add_order(record, order.user, order.asset);
                let key = (order.op.name(), outcome(*decision));
                self.orders.entry(key).or_default().add(record);
            }
            Entry::External(external) => {
                self.add_order(record, external.user, external.asset);
                let key = (external.op.name(), outcome(external.decision));
                self.orders.entry(key).or_default().add(record);
            }
            Entry::Posting(posted) => {
                posted_users(posted).for_each(|user| self.add_user(user));
                let key = (posted.op.name(), outcome(posted.decision));
                self.orders.entry(key).or_default().add(record);
            }
            Entry::Named(named) => {
                named_users(named).for_each(|user| self.add_user(user));
                let key = (named.op.name(), outcome(named.decision));
                self.orders.entry(key).or_default().add(record);
            }
            Entry::AccountStatus { user, .. } | Entry::Totals { user, .. } => self.add_user(*user),
            Entry::Asset { .. } => self.assets.learn(entry),
            Entry::Watermark { .. }
            | Entry::Outside { .. }
            | Entry::Venue(_)
            | Entry::Mark
            | Entry::Digest { .. } => {}
        }
        // Steps before the first record are not visible.
        let before = *self.durable.get_or_insert(record.durable);
        if record.durable > before {
            self.batches.record(record.durable - before);
            if let Some(stepped_ns) = self.stepped_ns.replace(record.time_ns) {
                // If the clock was set back, the gap is unknown.
                if let Some(gap) = record.time_ns.checked_sub(stepped_ns) {
                    self.gaps.record(gap);
                }
            }
            self.durable = Some(record.durable);
        }
    }

    fn add_order(&mut self, record: &Record<'_>, user: u64, asset: u32) {
        self.add_user(user);
        let room = self.by_asset.len() < ASSETS_MAX || self.by_asset.contains_key(&asset);
        let count = match room {
            true => self.by_asset.entry(asset).or_default(),
            false => &mut self.assets_more,
        };
        count.add(record);
    }

    fn add_user(&mut self, user: u64) {
        if self.users.len() < USERS_MAX {
            self.users.insert(user);
        } else if !self.users.contains(&user) {
            self.users_more = true;
        }
    }

    /// Assets by number.
    fn assets(&self) -> Vec<(u32, Count)> {
        let mut assets: Vec<_> =
            self.by_asset.iter().map(|(&asset, &count)| (asset, count)).collect();
        assets.sort_unstable_by_key(|&(asset, _)| asset);
        assets
    }

    fn print(&self, out: &mut impl Write) -> std::io::Result<()> {
        let Count { records, bytes } = self.all;
        let users = self.users.len();
        let more = if self.users_more { " or more" } else { "" };
        writeln!(out, "\nbytes      {bytes}")?;
        if let Some((earliest, latest)) = self.times {
            let (from, to, span) = (time(earliest), time(latest), Span(latest - earliest));
            writeln!(out, "time       {from} .. {to} ({span})")?;
        }
        writeln!(out, "users      {users}{more}")?;

        let heading = |out: &mut dyn Write, name: &str| {
            writeln!(out, "\n{name:<32}{:>14}{:>16}{:>5}", "records", "bytes", "%")
        };
        let row = |out: &mut dyn Write, name: &str, count: Count| {
            let Count { records: here, bytes } = count;
            let percent = here.saturating_mul(100).checked_div(records).unwrap_or(0);
            writeln!(out, "{name:<32}{here:>14}{bytes:>16}{percent:>5}")
        };
        heading(out, "kind")?;
        for ((_, name), &count) in &self.kinds {
            row(out, name, count)?;
        }
        if !self.orders.is_empty() {
            heading(out, "order")?;
        }
        for ((op, outcome), &count) in &self.orders {
            row(out, &format!("{op:<9}{outcome}"), count)?;
        }
        let assets = self.assets();
        if !assets.is_empty() {
            heading(out, "asset")?;
        }
        for (asset, count) in assets {
            row(out, &self.assets.name(asset), count)?;
        }
        if self.assets_more.records > 0 {
            row(out, "further assets", self.assets_more)?;
        }
        self.batches.print(out, "batch: records made durable by one step", u64::to_string)?;
        self.gaps.print(out, "sync gap: time between two steps", |&ns| Span(ns).to_string())
    }

    fn object(&self) -> TallyObject<'_> {
        let kinds =
            self.kinds.iter().map(|((_, kind), &count)| KindObject { kind, count: count.into() });
        let orders = self.orders.iter();
        let asset = |(asset_id, count): (u32, Count)| AssetObject {
            asset: self.assets.symbol(asset_id),
            asset_id,
            count: count.into(),
        };
        TallyObject {
            bytes: self.all.bytes.into(),
            time_first: self.times.map(|(earliest, _)| time(earliest)),
            time_last: self.times.map(|(_, latest)| time(latest)),
            users: UsersObject { count: self.users.len(), exact: !self.users_more },
            kinds: kinds.collect(),
            orders: orders
                .map(|((op, outcome), &count)| OrderObject { op, outcome, count: count.into() })
                .collect(),
            assets: self.assets().into_iter().map(asset).collect(),
            assets_more: self.assets_more.into(),
            batch_records: self.batches.object(),
            sync_gap_ns: self.gaps.object(),
        }
    }
}

fn time(time_ns: u64) -> String {
    let time = Timestamp::from_nanosecond(time_ns.into()).expect("any u64 of ns is in range");
    format!("{time:.6}")
}

/// A length of time in its largest whole unit, ns.
struct Span(u64);

impl std::fmt::Display for Span {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        const UNITS: [(u64, &str); 4] =
            [(1_000_000_000, "s"), (1_000_000, "ms"), (1_000, "us"), (1, "ns")];
        let (scale, unit) =
            UNITS.into_iter().find(|(scale, _)| self.0 >= *scale).unwrap_or((1, "ns"));
        write!(out, "{}{unit}", self.0 / scale)
    }
}

/// The distribution of some numbers.
struct Spread {
    /// By the bucket of [`BOUNDS`].
    counts: [u64; BOUNDS.len()],
    /// To three digits.
    histogram: Histogram<u64>,
}

impl Default for Spread {
    fn default() -> Spread {
        let histogram = Histogram::new_with_bounds(1, u64::MAX / 2, 3).expect("constant bounds");
        Spread { counts: [0; BOUNDS.len()], histogram }
    }
}

/// The most empty buckets in a row that are printed; a longer run is one line with an ellipsis.
const EMPTY_MAX: usize = 2;

/// The quantiles that are printed.
const QUANTILES: [(&str, f64); 3] = [("p50", 0.5), ("p90", 0.9), ("p99", 0.99)];

impl Spread {
    fn record(&mut self, value: u64) {
        self.counts[BOUNDS.partition_point(|&bound| bound <= value) - 1] += 1;
        self.histogram.saturating_record(value);
    }

    /// Its buckets from the first to the last that is not empty: lower bound and count.
    fn buckets(&self) -> impl Iterator<Item = (u64, u64)> {
        let filled = |&count: &u64| count > 0;
        let first = self.counts.iter().position(filled).unwrap_or(BOUNDS.len());
        let end = self.counts.iter().rposition(filled).map_or(0, |last| last + 1);
        let range = first..end.max(first);
        BOUNDS[range.clone()].iter().copied().zip(self.counts[range].iter().copied())
    }

    fn print(
        &self,
        out: &mut impl Write,
        name: &str,
        text: impl Fn(&u64) -> String,
    ) -> std::io::Result<()> {
        let highest = self.counts.iter().copied().max().unwrap_or(0);
        if highest == 0 {
            return Ok(());
        }
        write!(out, "\n{name}; steps={}", self.histogram.len())?;
        for (name, quantile) in QUANTILES {
            write!(out, " {name}={}", text(&self.histogram.value_at_quantile(quantile)))?;
        }
        writeln!(out, " max={}", text(&self.histogram.max()))?;
        let buckets: Vec<(u64, u64)> = self.buckets().collect();
        let mut empty = 0;
        for (index, (from, count)) in buckets.iter().copied().enumerate() {
            empty = if count == 0 { empty + 1 } else { 0 };
            if empty > 0 {
                let run = buckets[index..].iter().take_while(|(_, count)| *count == 0).count();
                if empty + run > EMPTY_MAX + 1 {
                    if empty == 1 {
                        writeln!(out, "{:>9}", "…")?;
                    }
                    continue;
                }
            }
            // A bucket that is not empty has at least one character.
            let length = (count.saturating_mul(BAR_WIDTH) / highest).max(u64::from(count > 0));
            let bar: String = (0..length).map(|_| '#').collect();
            let line = format!("{:>9} {count:>12} {bar}", format!(">={}", text(&from)));
            writeln!(out, "{line}")?;
        }
        Ok(())
    }

    fn object(&self) -> SpreadObject {
        let bucket =
            |(from, count): (u64, u64)| BucketObject { from: from.into(), count: count.into() };
        let [p50, p90, p99] =
            QUANTILES.map(|(_, quantile)| self.histogram.value_at_quantile(quantile).into());
        SpreadObject {
            steps: self.histogram.len().into(),
            p50,
            p90,
            p99,
            max: self.histogram.max().into(),
            buckets: self.buckets().map(bucket).collect(),
        }
    }
}

#[derive(Serialize)]
struct StatObject<'a> {
    verdict: &'static str,
    #[serde(flatten)]
    read: ReadObject,
    #[serde(flatten)]
    found: FoundObject<'a>,
    #[serde(flatten)]
    tally: TallyObject<'a>,
}

#[derive(Serialize)]
struct TallyObject<'a> {
    bytes: Integer,
    time_first: Option<String>,
    time_last: Option<String>,
    users: UsersObject,
    kinds: Vec<KindObject>,
    orders: Vec<OrderObject>,
    assets: Vec<AssetObject<'a>>,
    /// Orders in assets beyond [`ASSETS_MAX`].
    assets_more: CountObject,
    batch_records: SpreadObject,
    sync_gap_ns: SpreadObject,
}

#[derive(Serialize)]
struct UsersObject {
    count: usize,
    /// False if there may be more users.
    exact: bool,
}

#[derive(Serialize)]
struct CountObject {
    records: Integer,
    bytes: Integer,
}

impl From<Count> for CountObject {
    fn from(Count { records, bytes }: Count) -> CountObject {
        CountObject { records: records.into(), bytes: bytes.into() }
    }
}

#[derive(Serialize)]
struct KindObject {
    kind: &'static str,
    #[serde(flatten)]
    count: CountObject,
}

#[derive(Serialize)]
struct OrderObject {
    op: &'static str,
    outcome: &'static str,
    #[serde(flatten)]
    count: CountObject,
}

#[derive(Serialize)]
struct AssetObject<'a> {
    asset: Option<&'a str>,
    asset_id: u32,
    #[serde(flatten)]
    count: CountObject,
}

/// The quantiles have three digits.
#[derive(Serialize)]
struct SpreadObject {
    steps: Integer,
    p50: Integer,
    p90: Integer,
    p99: Integer,
    max: Integer,
    buckets: Vec<BucketObject>,
}

/// It ends where the next bucket begins.
#[derive(Serialize)]
struct BucketObject {
    from: Integer,
    count: Integer,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::commands::wal::tests::{Sample, TIME_NS, objects, order, ubscore_wal};
    use domain::transfer::{Decision, Op};

    #[test]
    fn a_number_falls_into_the_bucket_that_begins_at_or_before_it() {
        let mut spread = Spread::default();
        for value in [0, 1, 4, 5, 9, 10, 49, u64::MAX] {
            spread.record(value);
        }
        let filled: Vec<_> = spread.buckets().filter(|&(_, count)| count > 0).collect();
        let last = 5_000_000_000_000;
        assert_eq!(filled, [(0, 1), (1, 1), (2, 1), (5, 2), (10, 1), (20, 1), (last, 1)]);
    }

    #[test]
    fn a_log_is_counted_by_kind_order_and_asset() {
        let sample = Sample::new();
        let (out, notes) = ubscore_wal(&["stat", &sample.data(), "--format", "json"]).succeeded();
        assert_eq!(notes, "");
        let object = objects(&out).remove(0);
        let time = "2023-11-14T22:13:20.123456Z";
        for (field, want) in [
            ("verdict", json!("ok")),
            ("records", json!(5)),
            ("bytes", json!(376)),
            ("kind", json!("clean")),
            ("time_first", json!(time)),
            ("time_last", json!(time)),
            ("users", json!({"count": 2, "exact": true})),
            (
                "kinds",
                json!([
                    {"kind": "ORDER", "records": 2, "bytes": 224},
                    {"kind": "STATUS", "records": 1, "bytes": 56},
                    {"kind": "ASSET", "records": 1, "bytes": 56},
                    {"kind": "MARK", "records": 1, "bytes": 40},
                ]),
            ),
            (
                "orders",
                json!([
                    {"op": "DEPOSIT", "outcome": "SUCCESS", "records": 1, "bytes": 112},
                    {"op": "WITHDRAW", "outcome": "INSUFFICIENT_BALANCE", "records": 1,
                        "bytes": 112},
                ]),
            ),
            ("assets", json!([{"asset": "USDT", "asset_id": 3, "records": 2, "bytes": 224}])),
        ] {
            assert_eq!(object[field], want, "{field}");
        }
        // Each record was synced alone, all at the same time.
        let batches = &object["batch_records"];
        assert_eq!((&batches["steps"], &batches["max"]), (&json!(4), &json!(1)));
        assert_eq!(batches["buckets"], json!([{"from": 1, "count": 4}]));
        assert_eq!(object["sync_gap_ns"]["buckets"], json!([{"from": 0, "count": 3}]));
    }

    /// Goal: a batch is the records that became durable together. Method: five records in one sync,
    /// then one record ten milliseconds later, and one two seconds later.
    #[test]
    fn a_batch_is_what_became_durable_together() {
        let mut sample = Sample::empty();
        for _ in 0..5 {
            sample.append_unsynced(&order(Op::Deposit, 1001, Decision::Success), TIME_NS);
        }
        sample.log.syncer.sync().expect("synced");
        for later in [10_000_000, 2_010_000_000, 2_010_000_000] {
            sample.append_unsynced(&Entry::Mark, TIME_NS + later);
            sample.log.syncer.sync().expect("synced");
        }
        let (out, _) = ubscore_wal(&["stat", &sample.data()]).succeeded();
        let lines: Vec<&str> = out.lines().collect();
        assert_eq!(lines[0], "ok records=8 first=1 last=8 segments=1 ending=clean");
        let batch = lines.iter().position(|line| line.starts_with("batch: ")).expect(&out);
        assert!(lines[batch].ends_with("; steps=3 p50=1 p90=5 p99=5 max=5"), "{out}");
        let bar: String = (0..BAR_WIDTH).map(|_| '#').collect();
        let want = [
            format!("      >=1            2 {bar}"),
            "      >=2            0 ".to_owned(),
            format!("      >=5            1 {}", &bar[..20]),
        ];
        assert_eq!(lines[batch + 1..batch + 4], want);
        let gap = lines.iter().position(|line| line.starts_with("sync gap: ")).expect(&out);
        assert!(lines[gap + 1].starts_with("    >=0ns            1 "), "{out}");
        assert!(lines.last().expect("lines").starts_with("     >=2s            1 "), "{out}");
        let zeros = |lines: &[&str]| lines.iter().filter(|line| line.ends_with(" 0 ")).count();
        assert!(lines[gap..].iter().any(|line| line.trim() == "…"), "{out}");
        assert!(zeros(&lines[gap..]) <= 2 * EMPTY_MAX, "{out}");
    }

    #[test]
    fn what_stands_before_a_damage_is_counted() {
        let sample = Sample::new();
        sample.store(4264 + 50, &[0xff]);
        let done = ubscore_wal(&["stat", &sample.data()]);
        let read = "damaged records=2 first=1 last=2 segments=1 kind=below_durable_mark: ";
        assert!(
            done.out.starts_with(read) && done.out.contains("\nDEPOSIT  SUCCESS "),
            "{}",
            done.out
        );
        assert_eq!(done.failed().0, crate::exit::Exit::Failed);
    }
}
