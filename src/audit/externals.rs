//! External operations: the rows of PostgreSQL against the records of the log.
//!
//! First PostgreSQL commits the row, then the log gets the record, then the caller gets the answer.
//! So a record without its row is an answered operation that PostgreSQL has lost: a mismatch. A row
//! without its record is left by a process that died in between: the next start writes the record.
//!
//! The order number ties row and record together. At and above the watermark each pair is compared.
//! Below it UBSCore keeps only the counts and sums of each asset.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use engine::entry::Entry;
use engine::external::{External, Outside, key};
use engine::fact::Fact;
use engine::ledger::Ledger;
use engine::recorded::Recorded;
use wal::{Directory, Reader, Sequence};

use super::error::Error;
use super::mismatch::{Kind, Mismatch};
use crate::postgres::audit_reader::{AuditReader, Decided};
use domain::account::UserId;
use domain::asset::{AssetId, Catalog};
use domain::transfer::op::Effect;
use domain::transfer::{ExternalOperation, Op};

/// A record of an external operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExternalRecord {
    /// The content of the record.
    pub external: External,
    /// Its place in the log.
    pub sequence: Sequence,
    /// When it was written, ns since the Unix epoch, by the clock of the service.
    pub time_ns: u64,
}

/// External operations that UBSCore holds.
#[derive(Clone, Debug, Default)]
pub struct Held {
    /// Order numbers below it may be forgotten.
    watermark: u64,
    /// Outcomes at and above the watermark, by order number: hash of the idem_key, op, record.
    outcomes: BTreeMap<u64, (u128, Op, Recorded)>,
    /// Counts and sums below the watermark, by asset.
    below: BTreeMap<u32, Outside>,
}

impl Held {
    /// The external operations of a ledger.
    pub fn of(ledger: &Ledger) -> Held {
        let watermark = ledger.watermark();
        let outcomes = ledger.facts().filter_map(|fact| match fact {
            Fact::Outcome { req_id, op, recorded } if op.is_external() => {
                Some((recorded.order_number, (req_id, op, recorded)))
            }
            _ => None,
        });
        let outcomes = outcomes.filter(|(number, _)| *number >= watermark).collect();
        let below = ledger.outside(watermark).expect("the watermark itself is known");
        Held { watermark, outcomes, below }
    }
}

/// The result of a comparison.
#[derive(Debug, Default)]
pub struct Compared {
    /// The findings.
    pub mismatches: Vec<Mismatch>,
    /// Rows that have no record yet.
    pub unrecorded: Vec<ExternalOperation>,
}

/// Compares everything that UBSCore holds with PostgreSQL. `log`: the directory of the log, which
/// has the idem_key of a lost operation.
///
/// # Errors
/// [`Error`]: a store cannot be read. The result is unknown.
pub async fn compare(
    reader: &mut AuditReader,
    held: &Held,
    log: &Path,
    catalog: &Catalog,
) -> Result<Compared, Error> {
    let mut compared = Compared::default();
    let rows = reader.externals_from(held.watermark).await?;
    let names: BTreeSet<(u128, Op)> =
        held.outcomes.values().map(|(key, op, _)| (*key, *op)).collect();
    let mut there = BTreeSet::new();
    for row in rows {
        let name = (key(row.idem_key.as_str()), row.op);
        let recorded = held.outcomes.get(&row.order_number);
        there.insert(row.order_number);
        match recorded {
            Some((key, op, recorded)) if same(&row, (*key, *op), recorded) => {}
            None if !names.contains(&name) => compared.unrecorded.push(row),
            _ => compared.mismatches.push(other(&row, catalog)),
        }
    }
    let lost = held.outcomes.iter().filter(|(number, _)| !there.contains(number));
    let lost: BTreeMap<u64, (Op, Recorded)> =
        lost.map(|(number, (_, op, recorded))| (*number, (*op, *recorded))).collect();
    if !lost.is_empty() {
        let names = tokio::task::block_in_place(|| read_log(log))?;
        compared.mismatches.extend(lost.into_iter().map(|(number, (op, recorded))| {
            let logged = names.get(&number);
            let idem_key = logged.map(|logged| logged.external.idem_key.as_str().to_owned());
            self::lost(idem_key, op, &recorded, catalog)
        }));
    }
    let passed = by_asset(&reader.outside(held.watermark).await?);
    let assets = held.below.keys().map(|asset| AssetId(*asset));
    let assets: BTreeSet<AssetId> = assets.chain(passed.keys().copied()).collect();
    for asset in assets {
        let rows = passed.get(&asset).copied().unwrap_or_default();
        let records = held.below.get(&asset.0).copied().unwrap_or_default();
        if rows != records {
            compared.mismatches.push(sums(asset, rows, records, catalog));
        }
    }
    Ok(compared)
}

/// The counts and sums of rows, by asset.
pub(super) fn by_asset(rows: &BTreeMap<(AssetId, Op), Decided>) -> BTreeMap<AssetId, Outside> {
    let mut all = BTreeMap::<AssetId, Outside>::new();
    for ((asset, op), Decided { count, units }) in rows {
        let outside = all.entry(*asset).or_default();
        match op.row().available {
            Effect::More => (outside.deposits, outside.deposited) = (*count, *units),
            Effect::Less => (outside.withdrawals, outside.withdrawn) = (*count, *units),
            Effect::Same => {}
        }
    }
    all
}

/// Compares a record with the row that has its order number.
pub(super) fn judge(
    logged: &ExternalRecord,
    row: Option<&ExternalOperation>,
    catalog: &Catalog,
) -> Option<Mismatch> {
    let ExternalRecord { external, sequence, time_ns } = *logged;
    let recorded = Recorded::of_external(&external, sequence, time_ns);
    let idem_key = || Some(external.idem_key.as_str().to_owned());
    let number = external.order_number;
    assert!(row.is_none_or(|row| row.order_number == number), "{row:?} is not number {number}");
    match row {
        None => Some(lost(idem_key(), external.op, &recorded, catalog)),
        Some(row) if same(row, (external.key(), external.op), &recorded) => None,
        Some(row) => Some(other(row, catalog)),
    }
}

/// Every record of an external operation that the log still has, by order number.
///
/// # Errors
/// [`Error`]: the log cannot be read.
pub(super) fn read_log(log: &Path) -> Result<BTreeMap<u64, ExternalRecord>, Error> {
    let mut reader = Reader::<Directory>::open_path(log, 0)?;
    let mut found = BTreeMap::new();
    while let Some(record) = reader.next()? {
        let (sequence, time_ns) = (record.sequence, record.time_ns);
        let entry = Entry::decode(record.kind, record.payload)
            .map_err(|source| Error::Record { sequence, source })?;
        if let Entry::External(external) = entry {
            found.insert(external.order_number, ExternalRecord { external, sequence, time_ns });
        }
    }
    Ok(found)
}

/// Whether a row equals its record. `name`: the hash of the idem_key, and the op.
fn same(row: &ExternalOperation, name: (u128, Op), recorded: &Recorded) -> bool {
    let says = (row.user.number(), row.asset.0, row.amount.units(), row.decision);
    (key(row.idem_key.as_str()), row.op) == name
        && says == (recorded.user, recorded.asset, recorded.amount, recorded.decision)
}

/// PostgreSQL has lost an answered operation.
fn lost(idem_key: Option<String>, op: Op, recorded: &Recorded, catalog: &Catalog) -> Mismatch {
    // PostgreSQL lacks the deposit, or still has the withdrawn money.
    let difference = -op.effect(recorded.decision, recorded.amount);
    let (units, sequence) = (recorded.amount, recorded.sequence);
    let (user, asset) = (UserId::new(recorded.user), AssetId(recorded.asset));
    Mismatch::new(Kind::ExternalLost { op, idem_key, units, sequence })
        .with_account(user, asset, difference, catalog)
        .with_external(recorded.order_number)
}

/// Row and record of one order number differ.
fn other(row: &ExternalOperation, catalog: &Catalog) -> Mismatch {
    let (op, idem_key) = (row.op, row.idem_key.as_str().to_owned());
    Mismatch::new(Kind::ExternalDiffers { op, idem_key })
        .with_account(Some(row.user), row.asset, 0, catalog)
        .with_external(row.order_number)
}

/// The sums below the watermark differ.
fn sums(asset: AssetId, rows: Outside, records: Outside, catalog: &Catalog) -> Mismatch {
    assert_ne!(rows, records, "equal sums are no finding");
    let net = |outside: Outside| {
        let signed = |units: u128| i128::try_from(units).unwrap_or(i128::MAX);
        signed(outside.deposited).saturating_sub(signed(outside.withdrawn))
    };
    let difference = net(rows).saturating_sub(net(records));
    Mismatch::new(Kind::ExternalSums { rows, records })
        .with_account(None, asset, difference, catalog)
}
