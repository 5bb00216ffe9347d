//! The same comparison without a running UBSCore. The log and its newest snapshot are replayed,
//! everything is compared at once, and nothing is kept.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arc_swap::ArcSwap;
use engine::command::Command;
use engine::fact::Fact;
use engine::ledger::{Answer, Ledger, Step};
use engine::places::Places;
use engine::recorded::Recorded;
use engine::replay::{Replay, replay};
use engine::snapshot::store::SnapshotStore;
use wal::{Directory, Identity, Reader, Sequence};

use super::conservation::{Answered, AnsweredByName, Audit, SpotReader};
use super::error::Error;
use super::externals::Held;
use super::legs::{LegSums, judge, mismatch};
use super::mismatch::{Kind, Mismatch};
use super::settled;
use super::transactions;
use crate::postgres::audit_reader::{AuditReader, Findings, RechargesFrom};
use crate::postgres::incarnation::{self, identity_text};
use crate::transaction::TransactionRow;
use domain::asset::{AssetId, Catalog};
use domain::transfer::{Op, ReqId};

/// Outcomes of the log that one round compares.
const OUTCOMES_PER_ROUND: usize = 20_000;

/// The two stores.
pub struct Stores {
    /// PostgreSQL.
    pub reader: AuditReader,
    /// The assets of PostgreSQL.
    pub catalog: Arc<ArcSwap<Catalog>>,
    /// The directory of the log.
    pub log: PathBuf,
    /// The directory of the snapshots.
    pub snapshots: PathBuf,
    /// Capacity of the ledger.
    pub places: Places,
}

impl Stores {
    /// The same stores for another comparison.
    pub fn again(&self) -> Stores {
        let (log, snapshots) = (self.log.clone(), self.snapshots.clone());
        let (reader, catalog) = (self.reader.another(), Arc::clone(&self.catalog));
        Stores { reader, catalog, log, snapshots, places: self.places }
    }
}

/// The extent of a comparison, and its findings.
#[derive(Debug, Default)]
pub struct Verdict {
    /// The last record of the log.
    pub sequence: Sequence,
    /// Order numbers below which UBSCore may have forgotten.
    pub watermark: u64,
    /// The latest incarnation with order numbers in the log.
    pub incarnation: u64,
    /// Outcomes in the log and its snapshot.
    pub outcomes: usize,
    /// Transfers that are not terminal.
    pub open: usize,
    /// Set if the database is older than the log.
    pub behind: Option<Mismatch>,
    /// Empty if nothing is wrong.
    pub mismatches: Vec<Mismatch>,
    /// Keys of recharges that a restore has left without their orders.
    pub recover_needed: Vec<String>,
}

/// The end of a log that was replayed on its newest snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Led {
    /// The identity of the log, `None` if there is no log.
    pub identity: Option<Identity>,
    /// The last record.
    pub sequence: Sequence,
    /// Order numbers below which UBSCore may have forgotten.
    pub watermark: u64,
}

/// Replays a log with its newest snapshot, as a start does.
///
/// # Errors
/// [`Error`]: a start would refuse.
pub fn replayed(log: &Path, snapshots: &Path, places: Places) -> Result<Led, Error> {
    let Replayed { reader, ledger } = Replayed::open(log, snapshots, places)?;
    let (sequence, watermark) = (ledger.sequence(), ledger.watermark());
    Ok(Led { identity: reader.identity(), sequence, watermark })
}

/// The ledger of the log and its newest snapshot, empty if there is neither.
///
/// # Errors
/// [`Error`]: a start would refuse.
pub fn led(stores: &Stores) -> Result<Ledger, Error> {
    let Stores { log, snapshots, places, .. } = stores;
    let open = || Replayed::open(log, snapshots, *places);
    Ok(tokio::task::block_in_place(open)?.ledger)
}

/// A log that was read to its end. It is read further when it grows.
struct Replayed {
    reader: Reader<Directory>,
    ledger: Ledger,
}

impl Replayed {
    fn open(log: &Path, snapshots: &Path, places: Places) -> Result<Replayed, Error> {
        let choice = SnapshotStore::at(snapshots).choose().map_err(Box::new)?;
        let from = choice.newest.as_ref().map_or(1, |snapshot| snapshot.header.sequence);
        let mut reader = Reader::open_path(log, from)?;
        let mut replay = Replay::begin(choice.newest, Ledger::new(places)).map_err(Box::new)?;
        while let Some(record) = reader.next()? {
            replay.take(&record).map_err(Box::new)?;
        }
        match replay.unconfirmed() {
            Some(snapshot) => Err(Error::Unconfirmed { path: snapshot.path.clone() }),
            None => Ok(Replayed { reader, ledger: replay.finish().map_err(Box::new)? }),
        }
    }

    fn go_on(&mut self) -> Result<(), Error> {
        while let Some(record) = self.reader.next()? {
            replay(&mut self.ledger, &record).map_err(Box::new)?;
        }
        Ok(())
    }
}

impl SpotReader for Replayed {
    fn durable(&mut self) -> Result<Sequence, Error> {
        tokio::task::block_in_place(|| self.go_on())?;
        Ok(self.ledger.sequence())
    }

    async fn recorded(&mut self, operations: &[(ReqId, Op)]) -> Answered {
        tokio::task::block_in_place(|| self.go_on())?;
        let query = |&(req_id, op): &(ReqId, Op)| {
            let query = Command::Query { req_id: req_id.number(), op };
            match self.ledger.step(&query) {
                Step::Known(Answer::Query(recorded)) => recorded,
                other => unreachable!("{other:?} answers no query"),
            }
        };
        Ok((operations.iter().map(query).collect(), self.ledger.watermark()))
    }

    async fn recorded_by_name(&mut self, postings: &[(ReqId, Op, u8)]) -> AnsweredByName {
        tokio::task::block_in_place(|| self.go_on())?;
        let known = |&(transaction, op, round): &(ReqId, Op, u8)| {
            transactions::named_outcome(&self.ledger, transaction, op, round)
        };
        Ok((postings.iter().map(known).collect(), self.ledger.watermark()))
    }

    async fn has_venues(&mut self) -> Result<bool, Error> {
        Ok(self.ledger.has_postings())
    }
}

/// Compares everything once: every account, every transfer, every outcome of the log, and the
/// totals below the watermark.
///
/// # Errors
/// [`Error`]: a store cannot be read. The result is unknown.
pub async fn verify(stores: Stores) -> Result<Verdict, Error> {
    let (log, snapshots) = (stores.log.clone(), stores.snapshots.clone());
    let catalog = Arc::clone(&stores.catalog);
    match compare(stores).await {
        Ok((verdict, _)) => Ok(verdict),
        Err(refused @ (Error::Snapshot(_) | Error::Replay(_))) => {
            // A snapshot that was changed makes no ledger. The legs of the log name the change.
            let found = tokio::task::block_in_place(|| judge(&log, &snapshots, None))?;
            let catalog = catalog.load();
            let mismatches: Vec<Mismatch> =
                found.iter().map(|found| mismatch(found, &catalog)).collect();
            match mismatches.is_empty() {
                true => Err(refused),
                false => Ok(Verdict { mismatches, ..Verdict::default() }),
            }
        }
        Err(error) => Err(error),
    }
}

/// The same, with the ledger of the log.
pub(super) async fn compare(stores: Stores) -> Result<(Verdict, Ledger), Error> {
    let Stores { reader, catalog, log, snapshots, places } = stores;
    let mut reader = reader;
    let (database, known) = reader.owner().await?;
    let replayed = tokio::task::block_in_place(|| Replayed::open(&log, &snapshots, places))?;
    let identity = replayed.reader.identity();
    if identity != database {
        let text = |identity: Option<Identity>| identity.map_or("none".to_owned(), identity_text);
        return Err(Error::Foreign { log: text(identity), database: text(database) });
    }
    let mut verdict = Verdict { outcomes: replayed.ledger.outcome_count(), ..Verdict::default() };
    let outcomes: Vec<_> = replayed.ledger.facts().filter_map(outcome_of).collect();
    let held = Held::of(&replayed.ledger);
    let stated = (replayed.ledger.sequence(), LegSums::of(replayed.ledger.facts()));
    let judged = tokio::task::block_in_place(|| judge(&log, &snapshots, Some(stated)))?;
    verdict.mismatches.extend(judged.iter().map(|found| mismatch(found, &catalog.load())));
    let mut audit = Audit::read_only(reader, replayed, Arc::clone(&catalog), log).await?;
    let mut outcomes = outcomes.chunks(OUTCOMES_PER_ROUND);
    let mut found = BTreeMap::new();
    let (mut swept, mut swept_log) = (false, false);
    loop {
        audit.name(outcomes.next().unwrap_or_default());
        let report = audit.round().await?;
        // A later round may see the end of a transfer that an earlier one saw half-way. No round
        // takes a finding back.
        for mismatch in report.mismatches {
            found.insert(mismatch.to_string(), mismatch);
        }
        verdict.open = report.open;
        swept |= report.swept;
        swept_log |= report.swept_log;
        if swept && swept_log && report.caught_up && outcomes.len() == 0 {
            break;
        }
    }
    // The record of a row may not be written yet: a running service or the next start writes it.
    for mismatch in audit.externals(&held).await?.mismatches {
        let known =
            |found: &Mismatch| mismatch.external.is_some() && found.external == mismatch.external;
        if !found.values().any(known) {
            found.insert(mismatch.to_string(), mismatch);
        }
    }
    verdict.mismatches.extend(found.into_values());
    let (mut reader, mut replayed) = audit.into_parts();
    verdict.mismatches.extend(claims(&mut reader, &mut replayed).await?);
    let [mut balances, totals] = reader.recount().await?;
    balances.unbalanced.retain(|one| {
        let account = (Some(one.user), Some(one.asset));
        let known = |m: &Mismatch| m.req_id.is_none() && (m.user, m.asset) == account;
        !verdict.mismatches.iter().any(known)
    });
    for Findings { strange, unbalanced, .. } in [balances, totals] {
        let strange = strange.into_iter().map(|why| Mismatch::new(Kind::StrangeRow(why)));
        verdict.mismatches.extend(strange.chain(unbalanced.into_iter().map(Mismatch::from)));
    }
    let mut next = Some(RechargesFrom::beginning());
    while let Some(from) = next {
        let page = reader.recharges(from).await?;
        let promotions = reader.promotions(from).await?.found;
        let found = page.found.into_iter().chain(promotions);
        let found = found.map(|why| Mismatch::new(Kind::StrangeRow(why)));
        verdict.mismatches.extend(found);
        verdict.recover_needed.extend(page.needed);
        next = page.next;
    }
    let accounts = reader.channel_accounts().await?.into_iter();
    verdict.mismatches.extend(accounts.map(|why| Mismatch::new(Kind::StrangeRow(why))));
    replayed.durable()?;
    verdict.mismatches.extend(unequal(&mut reader, &replayed.ledger).await?);
    let (watermark, passed) = reader.passed().await?;
    replayed.durable()?;
    verdict.sequence = replayed.ledger.sequence();
    verdict.watermark = replayed.ledger.watermark();
    let last = replayed.ledger.order_numbers_end().saturating_sub(1);
    verdict.incarnation = incarnation::of_order_number(last);
    if verdict.incarnation > known {
        verdict.behind = Some(Mismatch::older_database(verdict.incarnation, known));
    }
    // There are none if a running service is just raising the watermark, or if PostgreSQL is older
    // than the log. The latter has been found above.
    if let Some(settled) = replayed.ledger.settled(watermark) {
        verdict.mismatches.extend(settled::compare(&passed, &settled, &catalog.load()));
    }
    Ok((verdict, replayed.ledger))
}

/// The money of each asset that transactions have made, smallest units, below 0 if they have lost
/// it: the sums of both stores less the money from outside, without those that are 0. PostgreSQL is
/// read after the log, so it has decided all that the log has booked.
pub(super) async fn made_by_transactions(
    reader: &mut AuditReader,
    ledger: &Ledger,
) -> Result<BTreeMap<AssetId, i128>, Error> {
    let (sums, parts) = reader.booked(ledger.sequence()).await?;
    let crossed = ledger.facts().filter_map(|fact| match fact {
        Fact::Crossed { asset, brought } => Some((AssetId(asset), brought)),
        _ => None,
    });
    let mut made: BTreeMap<AssetId, i128> = crossed.collect();
    let units = |units: u128| i128::try_from(units).unwrap_or(i128::MAX);
    let mut add = |asset: AssetId, more: i128| {
        let sum = made.entry(asset).or_default();
        *sum = sum.saturating_add(more);
    };
    for (asset, booked) in sums {
        let came = units(booked.deposited).saturating_sub(units(booked.withdrawn));
        add(asset, booked.funding.saturating_sub(came));
    }
    for part in parts {
        // By name, since a SETTLE that is decided again after a cut has another record.
        let recorded = transactions::named_outcome(ledger, part.transaction, Op::Settle, 0);
        let forgotten = part.order_number < ledger.watermark();
        let settled = recorded.is_some() || forgotten;
        add(part.asset, part.in_flight(settled).unwrap_or(i128::MAX));
    }
    made.retain(|_, made| *made != 0);
    Ok(made)
}

/// The findings of [`made_by_transactions`].
async fn unequal(reader: &mut AuditReader, ledger: &Ledger) -> Result<Vec<Mismatch>, Error> {
    let made = made_by_transactions(reader, ledger).await?;
    Ok(made.into_iter().map(|(asset, made)| Mismatch::transaction_sums(asset, made)).collect())
}

/// Compares the rows of transactions with the records that they claim. Rows are read before the
/// log: what they tell is recorded then.
async fn claims(reader: &mut AuditReader, replayed: &mut Replayed) -> Result<Vec<Mismatch>, Error> {
    let (mut found, watermark) = (Vec::new(), replayed.ledger.watermark());
    let apart = replayed.ledger.facts().filter_map(|fact| match fact {
        Fact::Hold(hold) => ReqId::new(hold.transaction),
        _ => None,
    });
    let apart: BTreeSet<ReqId> = apart.collect();
    let mut page: Vec<TransactionRow> =
        reader.transactions(apart.iter().copied()).await?.into_values().collect();
    let mut after = 0;
    loop {
        replayed.durable()?;
        found.extend(page.iter().flat_map(|row| transactions::judge_row(row, &replayed.ledger)));
        page = reader.transactions_above(after, watermark).await?;
        let Some(last) = page.last() else { return Ok(found) };
        after = last.order_number;
        page.retain(|row| !apart.contains(&row.id));
    }
}

fn outcome_of(fact: Fact) -> Option<(ReqId, Op, Recorded)> {
    match fact {
        Fact::Outcome { op, .. } if op.is_external() => None,
        Fact::Outcome { req_id, op, recorded } => Some((ReqId::new(req_id)?, op, recorded)),
        _ => None,
    }
}
