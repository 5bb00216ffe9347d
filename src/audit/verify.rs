//! The same comparison without a running UBSCore: the log and its newest snapshot are replayed, and everything is looked
//! at once. Nothing is kept.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arc_swap::ArcSwap;
use wal::{Directory, Identity, Reader, Sequence};

use super::conservation::{Answered, Audit, Error, Mismatch, SpotReader};
use super::externals::Held;
use super::settled;
use crate::engine::fact::Fact;
use crate::engine::ledger::{Answer, Ledger, Places, Step};
use crate::engine::order::Command;
use crate::engine::outcomes::Recorded;
use crate::engine::replay::{Replay, replay};
use crate::engine::snapshot::store::SnapshotStore;
use crate::postgres::audit_reader::{AuditReader, Findings};
use crate::postgres::incarnation::{self, identity_text};
use domain::asset::Catalog;
use domain::transfer::{Op, ReqId};

/// Outcomes of the log looked at in one round.
const OUTCOMES_PER_ROUND: usize = 20_000;

/// Where the two stores are.
pub struct Stores {
    /// PostgreSQL.
    pub reader: AuditReader,
    /// Its assets.
    pub catalog: Arc<ArcSwap<Catalog>>,
    /// The log's directory.
    pub log: PathBuf,
    /// The snapshots' directory.
    pub snapshots: PathBuf,
    /// What the ledger may hold.
    pub places: Places,
}

impl Stores {
    /// The same, to compare them again.
    pub fn again(&self) -> Stores {
        let (log, snapshots) = (self.log.clone(), self.snapshots.clone());
        let (reader, catalog) = (self.reader.another(), Arc::clone(&self.catalog));
        Stores { reader, catalog, log, snapshots, places: self.places }
    }
}

/// What was compared, and what was found.
#[derive(Debug, Default)]
pub struct Verdict {
    /// The last record of the log.
    pub sequence: Sequence,
    /// Order numbers below which UBSCore may have forgotten.
    pub watermark: u64,
    /// The latest incarnation whose order numbers the log knows.
    pub incarnation: u64,
    /// Outcomes that the log and its snapshot hold.
    pub outcomes: usize,
    /// Transfers that were under way.
    pub open: usize,
    /// Whether the database is older than the log.
    pub behind: Option<Mismatch>,
    /// Nothing, if all is well.
    pub mismatches: Vec<Mismatch>,
}

/// Where a log and its newest snapshot lead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Led {
    /// The log's identity, `None` where there is no log.
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

/// The ledger that the log and its newest snapshot lead to; an empty one where there is neither.
///
/// # Errors
/// [`Error`]: a start would refuse.
pub fn led(stores: &Stores) -> Result<Ledger, Error> {
    let Stores { log, snapshots, places, .. } = stores;
    let open = || Replayed::open(log, snapshots, *places);
    Ok(tokio::task::block_in_place(open)?.ledger)
}

/// A log that is read to its end, and further when it has grown.
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
}

/// Compares everything once: every account, every transfer, every outcome of the log, and what lies below the watermark by
/// its totals.
///
/// # Errors
/// [`Error`]: a store cannot be read; nothing is known.
pub async fn verify(stores: Stores) -> Result<Verdict, Error> {
    Ok(compare(stores).await?.0)
}

/// The same, and the ledger that the log has led to.
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
    let mut audit = Audit::read_only(reader, replayed, Arc::clone(&catalog), log).await?;
    let mut outcomes = outcomes.chunks(OUTCOMES_PER_ROUND);
    let mut found = BTreeMap::new();
    let (mut swept, mut swept_log) = (false, false);
    loop {
        audit.name(outcomes.next().unwrap_or_default());
        let report = audit.round().await?;
        // A later round may have seen the end of what an earlier one saw the middle of; none takes a mismatch back.
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
    // A row without its record may be on its way into the log: the next start, or a service that runs, writes it.
    for mismatch in audit.externals(&held).await?.mismatches {
        let known =
            |found: &Mismatch| mismatch.external.is_some() && found.external == mismatch.external;
        if !found.values().any(known) {
            found.insert(mismatch.to_string(), mismatch);
        }
    }
    verdict.mismatches.extend(found.into_values());
    let (mut reader, mut replayed) = audit.into_parts();
    let Findings { strange, unbalanced, .. } = reader.recount().await?;
    verdict.mismatches.extend(strange.into_iter().map(Mismatch::between_stores));
    for unbalanced in unbalanced {
        let account = (Some(unbalanced.user), Some(unbalanced.asset));
        let known = |m: &Mismatch| m.req_id.is_none() && (m.user, m.asset) == account;
        if !verdict.mismatches.iter().any(known) {
            verdict.mismatches.push(Mismatch::from(unbalanced));
        }
    }
    let (watermark, passed) = reader.passed().await?;
    replayed.durable()?;
    verdict.sequence = replayed.ledger.sequence();
    verdict.watermark = replayed.ledger.watermark();
    let last = replayed.ledger.order_numbers_end().saturating_sub(1);
    verdict.incarnation = incarnation::of_order_number(last);
    if verdict.incarnation > known {
        verdict.behind = Some(Mismatch::older_database(verdict.incarnation, known));
    }
    // It has none where a running service has raised the watermark in this moment, or where PostgreSQL is older than the
    // log, which has been found above.
    if let Some(settled) = replayed.ledger.settled(watermark) {
        verdict.mismatches.extend(settled::compare(&passed, &settled, &catalog.load()));
    }
    Ok((verdict, replayed.ledger))
}

fn outcome_of(fact: Fact) -> Option<(ReqId, Op, Recorded)> {
    match fact {
        Fact::Outcome { op, .. } if op.is_external() => None,
        Fact::Outcome { req_id, op, recorded } => Some((ReqId::new(req_id)?, op, recorded)),
        _ => None,
    }
}
