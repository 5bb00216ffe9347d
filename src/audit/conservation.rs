//! The rounds of the audit, and the proof that each gives.
//!
//! ```text
//!   log, up to the durable record  -->  one snapshot of PostgreSQL  -->  outcomes of UBSCore
//!         (payments)               (balances, operations, states)       (before and after)
//! ```
//!
//! - Every Funding balance is the sum of all operations on it.
//! - The state of every transfer fits the operations that both stores hold for it ([`super::fit`]).
//! - Every record of the log has its transfer.
//!
//! Together these are the law of conservation: Funding + Spot + in flight = deposits - withdrawals,
//! for every account.
//!
//! A round reads the rows and records that are new since the last kept round, and the transfers
//! that were not settled then. It also reads the next part of everything else: accounts, transfers,
//! operations and the log. A clean round keeps its progress in PostgreSQL with the totals, so that
//! a restart continues there. A round with a finding keeps nothing, so that the next round finds it
//! again.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arc_swap::ArcSwap;
use engine::order::{self, Entry};
use engine::outcomes::Recorded;
use engine::{replay, snapshot};
use wal::{Directory, Reader, Record, Sequence};

use super::externals::{self, Compared, Held, Logged};
use super::fit::{Fit, Operations, Seen, fit};
use super::settled::{self, Settled};
use crate::adapters::spot::{Spot, Unanswered};
use crate::postgres::audit_reader::{AuditReader, Ending, Page, Unbalanced};
use crate::telemetry::chain;
use domain::account::UserId;
use domain::amount::{plain_text, signed_text};
use domain::asset::{AssetId, Catalog};
use domain::transfer::{Direction, Op, ReqId};

/// The operations of a transfer.
const OPS: [Op; 3] = [Op::Withdraw, Op::Deposit, Op::Refund];
/// Records of the log that one round reads.
const RECORDS_PER_ROUND: u64 = 20_000;
/// With this many outcomes of the log not yet kept, no more records are read until a round is kept.
const LOGGED_MAX: usize = 50_000;
/// Old records of the log that one round reads again.
const SWEEP_RECORDS: u64 = 10_000;

/// One thing that does not add up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mismatch {
    /// Whose money, where a user can be named.
    pub user: Option<UserId>,
    /// Of what.
    pub asset: Option<AssetId>,
    /// What the user has too many, or lacks where it is negative, decimal text.
    pub difference: String,
    /// Which transfer.
    pub req_id: Option<ReqId>,
    /// Which external operation, by its order number.
    pub external: Option<u64>,
    /// What is wrong.
    pub what: String,
}

/// The difference where no amount is known.
const UNKNOWN: &str = "unknown";

impl fmt::Display for Mismatch {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Mismatch { user, asset, difference, req_id, external: _, what } = self;
        let subject = [
            user.map(|user| format!("user {user}")),
            asset.map(|asset| format!("asset {}", asset.0)),
            req_id.map(|req_id| format!("transfer {req_id}")),
        ];
        let subject: Vec<String> = subject.into_iter().flatten().collect();
        let colon = if subject.is_empty() { "" } else { ": " };
        write!(out, "{}{colon}{what}", subject.join(", "))?;
        // A sentence about sums names the difference itself.
        let named = ["more", "less"]
            .map(|word| format!("{} {word} than", difference.trim_start_matches('-')))
            .iter()
            .any(|words| what.contains(words.as_str()));
        match difference.as_str() {
            "0" | UNKNOWN => Ok(()),
            _ if named => Ok(()),
            _ => write!(out, "; difference {difference}"),
        }
    }
}

/// The findings of a round.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Empty if nothing is wrong.
    pub mismatches: Vec<Mismatch>,
    /// The sweep has passed every old row of PostgreSQL since it began.
    pub swept: bool,
    /// The sweep of the log has passed every record since it began.
    pub swept_log: bool,
    /// The log has no more records to read now.
    pub caught_up: bool,
    /// Every record that was durable when the round began has been read.
    pub read_all: bool,
    /// Transfers that are not terminal.
    pub open: usize,
}

impl Mismatch {
    /// PostgreSQL counts from an incarnation that others have followed.
    pub fn older_database(latest: u64, known: u64) -> Mismatch {
        Mismatch::between_stores(format!(
            "the log knows incarnation {latest}, but PostgreSQL has come to {known} only: PostgreSQL is behind, and what \
             came from outside meanwhile is lost in it"
        ))
    }

    /// The stores as wholes do not belong together.
    pub(super) fn between_stores(what: String) -> Mismatch {
        let (user, asset, req_id) = (None, None, None);
        let (difference, external) = (UNKNOWN.to_owned(), None);
        Mismatch { user, asset, difference, req_id, external, what }
    }
}

/// A round that could not be finished. It proves nothing, and nothing was kept.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// PostgreSQL.
    #[error("read PostgreSQL")]
    Postgres(#[from] crate::postgres::Error),
    /// UBSCore.
    #[error("ask UBSCore")]
    Spot(#[from] Unanswered),
    /// The log.
    #[error("read the log")]
    Log(#[from] wal::Error),
    /// A snapshot.
    #[error("read a snapshot")]
    Snapshot(#[from] Box<snapshot::Error>),
    /// The log and the database do not belong together.
    #[error(
        "the log has identity {log}, the database belongs to log {database}: they are not a pair"
    )]
    Foreign {
        /// The identity in the headers of the log.
        log: String,
        /// The identity in `engine_state`.
        database: String,
    },
    /// The log ends before the record of the newest snapshot.
    #[error("the log does not hold the record at which {} stands", path.display())]
    Unconfirmed {
        /// The snapshot's file.
        path: PathBuf,
    },
    /// The log, as it is replayed.
    #[error("replay the log")]
    Replay(#[from] Box<replay::Error>),
    /// A record of the log holds an operation that belongs to Funding.
    #[error("record {sequence} of the log: {} of transfer {req_id} belongs to Funding", op.name())]
    Misplaced {
        /// The record.
        sequence: Sequence,
        /// The transfer.
        req_id: ReqId,
        /// The operation.
        op: Op,
    },
    /// A record of the log cannot be decoded.
    #[error("record {sequence} of the log")]
    Record {
        /// The record.
        sequence: Sequence,
        /// The reason.
        #[source]
        source: order::Error,
    },
}

/// The source of Spot outcomes: the running UBSCore, or a log that is only read.
pub trait SpotReader {
    /// The last durable record.
    ///
    /// # Errors
    /// [`Error`].
    fn durable(&mut self) -> Result<Sequence, Error>;

    /// The recorded outcome of each operation, in their order, `None` if there is none; and the
    /// watermark, below which outcomes may be forgotten. Every outcome that was durable before the
    /// call is included.
    fn recorded(&mut self, operations: &[(ReqId, Op)]) -> impl Future<Output = Answered> + Send;
}

/// See [`Spot::recorded`].
pub type Answered = Result<(Vec<Option<Recorded>>, u64), Error>;

impl SpotReader for Arc<Spot> {
    fn durable(&mut self) -> Result<Sequence, Error> {
        Ok(Spot::durable(self))
    }

    async fn recorded(&mut self, operations: &[(ReqId, Op)]) -> Answered {
        Ok(Spot::recorded(self, operations).await?)
    }
}

/// The state of the audit: little more than the transfers under way.
pub struct Audit<S> {
    rows: AuditReader,
    spot: S,
    catalog: Arc<ArcSwap<Catalog>>,
    /// The directory of the log.
    log: PathBuf,
    reader: Option<Reader<Directory>>,
    /// The last record that has been read.
    read: Sequence,
    /// Transfers that were not settled, and those of rounds that were not kept.
    open: BTreeSet<ReqId>,
    /// Outcomes of the log since the last kept round: UBSCore may have forgotten them.
    logged: HashMap<(ReqId, Op), Recorded>,
    /// External operations of the log since the last kept round, by order number.
    externals: BTreeMap<u64, Logged>,
    /// Reads the log from its beginning, a part in each round, again and again.
    sweeper: Option<Reader<Directory>>,
    /// See [`Audit::kept`].
    kept: Arc<AtomicU64>,
    /// No round is kept.
    read_only: bool,
}

/// The progress of one look at the log.
enum Progress {
    /// It has reached its end.
    Whole,
    /// The next round goes on.
    Part,
    /// It cannot go on, with the finding.
    Stuck(String),
}

impl Progress {
    /// Whether this look is over, and the finding if there is one.
    fn told(self) -> (bool, Option<String>) {
        match self {
            Progress::Whole => (true, None),
            Progress::Part => (false, None),
            Progress::Stuck(why) => (true, Some(why)),
        }
    }
}

impl<S: SpotReader> Audit<S> {
    /// An audit that continues after the last kept round.
    ///
    /// # Errors
    /// [`Error`]: PostgreSQL is away.
    pub async fn begin(
        mut rows: AuditReader,
        spot: S,
        catalog: Arc<ArcSwap<Catalog>>,
        log: PathBuf,
        incarnation: u64,
    ) -> Result<Audit<S>, Error> {
        rows.take_over(incarnation).await?;
        Ok(Audit { read_only: false, ..Audit::read_only(rows, spot, catalog, log).await? })
    }

    /// An audit that keeps nothing.
    ///
    /// # Errors
    /// [`Error`]: PostgreSQL is away.
    pub async fn read_only(
        mut rows: AuditReader,
        spot: S,
        catalog: Arc<ArcSwap<Catalog>>,
        log: PathBuf,
    ) -> Result<Audit<S>, Error> {
        let read = rows.log_sequence().await?;
        Ok(Audit {
            rows,
            spot,
            catalog,
            log,
            reader: None,
            read,
            open: BTreeSet::new(),
            logged: HashMap::new(),
            externals: BTreeMap::new(),
            sweeper: None,
            kept: Arc::new(AtomicU64::new(read)),
            read_only: true,
        })
    }

    /// The last record that a kept round has covered. Later records of the log are still needed.
    pub fn kept(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.kept)
    }

    /// Compares the totals below the watermark of PostgreSQL with those of UBSCore. `settled`
    /// returns UBSCore's totals for one order number.
    ///
    /// # Errors
    /// [`Error`]: PostgreSQL is away.
    pub async fn below_watermark(
        &mut self,
        settled: impl Fn(u64) -> Option<Settled>,
    ) -> Result<Vec<Mismatch>, Error> {
        let (watermark, passed) = self.rows.passed().await?;
        Ok(match settled(watermark) {
            Some(settled) => settled::compare(&passed, &settled, &self.catalog.load()),
            None => Vec::new(),
        })
    }

    /// Compares every external operation that UBSCore holds with PostgreSQL, and finds the rows
    /// that have no record yet.
    ///
    /// # Errors
    /// [`Error`]: a store cannot be read.
    pub async fn externals(&mut self, held: &Held) -> Result<Compared, Error> {
        let catalog = self.catalog.load_full();
        externals::compare(&mut self.rows, held, &self.log, &catalog).await
    }

    /// Adds these outcomes of the log to the next round.
    pub fn name(&mut self, outcomes: &[(ReqId, Op, Recorded)]) {
        self.logged
            .extend(outcomes.iter().map(|(req_id, op, recorded)| ((*req_id, *op), *recorded)));
    }

    /// The catalog of assets, for their symbols.
    pub fn catalog(&self) -> Arc<Catalog> {
        self.catalog.load_full()
    }

    /// Continues over a new connection to PostgreSQL, and sweeps everything from its beginning.
    pub fn reconnect(&mut self) {
        self.rows.abandon();
        self.rewind();
    }

    /// The connection and the source of outcomes.
    pub fn into_parts(self) -> (AuditReader, S) {
        (self.rows, self.spot)
    }

    /// Sweeps everything again from its beginning, a part in each round.
    pub fn rewind(&mut self) {
        self.rows.rewind();
        self.sweeper = None;
    }

    /// Runs one round.
    ///
    /// # Errors
    /// [`Error`]: a store does not answer, or the log cannot be read.
    pub async fn round(&mut self) -> Result<Report, Error> {
        let durable = self.spot.durable()?;
        // If the log cannot be read further, that is a finding. The rest of the round still runs.
        let (caught_up, apart) = self.read_on(durable)?.told();
        let (swept_log, damage) = tokio::task::block_in_place(|| self.sweep_log())?.told();
        let found = apart.into_iter().chain(damage).map(Mismatch::between_stores).collect();
        let read_all = self.read >= durable;
        let report =
            Report { swept_log, caught_up, read_all, mismatches: found, ..Report::default() };
        let result = self.compare(durable, report).await;
        if result.is_err() {
            // The connection may be in the middle of a statement.
            self.rows.abandon();
        }
        result
    }

    /// Runs [`Audit::read_log`]. Damage of the log is a finding, not an error.
    fn read_on(&mut self, durable: Sequence) -> Result<Progress, Error> {
        let read = self.read;
        if read > durable {
            return Ok(Progress::Stuck(format!(
                "the log ends at record {durable}, but PostgreSQL has been compared with it up to {read}: the log is \
                 behind"
            )));
        }
        let result = tokio::task::block_in_place(|| self.read_log(durable));
        if result.is_err() {
            // The reader has passed the record that failed.
            self.reader = None;
        }
        match result {
            Ok(progress) => Ok(progress),
            // It may be readable in the next round.
            Err(Error::Log(away @ wal::Error::Medium { .. })) => Err(away.into()),
            Err(Error::Log(gone @ wal::Error::Missing { .. })) => Ok(Progress::Stuck(format!(
                "PostgreSQL has been compared with the log up to record {read} only, and what follows is not there any \
                 more: PostgreSQL is behind ({gone})"
            ))),
            Err(error @ (Error::Log(_) | Error::Record { .. } | Error::Misplaced { .. })) => {
                Ok(Progress::Stuck(chain(&error)))
            }
            Err(error) => Err(error),
        }
    }

    /// Collects the outcomes of the records up to `durable`, or of the next [`RECORDS_PER_ROUND`].
    fn read_log(&mut self, durable: Sequence) -> Result<Progress, Error> {
        if self.logged.len() + self.externals.len() >= LOGGED_MAX {
            // No round could be kept so far. There is enough to compare.
            return Ok(Progress::Whole);
        }
        let reader = match &mut self.reader {
            Some(reader) => reader,
            None => self.reader.insert(Reader::open_path(&self.log, self.read + 1)?),
        };
        let last = durable.min(self.read + RECORDS_PER_ROUND);
        while self.read < last {
            let Some(record) = reader.next()? else { break };
            match said(&record)? {
                Said::Outcome(name, recorded) => drop(self.logged.insert(name, recorded)),
                Said::External(number, logged) => drop(self.externals.insert(number, logged)),
                Said::Nothing => {}
            }
            self.read = record.sequence;
        }
        Ok(if self.read >= durable { Progress::Whole } else { Progress::Part })
    }

    /// Collects the outcomes of a part of the old records. Damage of the log is a finding.
    fn sweep_log(&mut self) -> Result<Progress, Error> {
        let begun = self.sweeper.take();
        let goes_on = begun.is_some();
        match self.sweep_part(begun) {
            Ok(progress) => Ok(progress),
            // A trim has removed the next segment meanwhile. The sweep begins again.
            Err(Error::Log(wal::Error::Medium { .. } | wal::Error::Missing { .. })) if goes_on => {
                Ok(Progress::Part)
            }
            Err(Error::Log(away @ wal::Error::Medium { .. })) => Err(away.into()),
            Err(error @ (Error::Log(_) | Error::Record { .. } | Error::Misplaced { .. })) => {
                Ok(Progress::Stuck(chain(&error)))
            }
            Err(error) => Err(error),
        }
    }

    fn sweep_part(&mut self, begun: Option<Reader<Directory>>) -> Result<Progress, Error> {
        let mut reader = match begun {
            Some(reader) => reader,
            None => Reader::open_path(&self.log, 0)?,
        };
        for _ in 0..SWEEP_RECORDS {
            match reader.next()? {
                Some(record) if record.sequence <= self.read => match said(&record)? {
                    Said::Outcome(name, recorded) => drop(self.logged.insert(name, recorded)),
                    Said::External(number, logged) => drop(self.externals.insert(number, logged)),
                    Said::Nothing => {}
                },
                Some(_) | None => return Ok(Progress::Whole),
            }
        }
        self.sweeper = Some(reader);
        Ok(Progress::Part)
    }

    async fn compare(&mut self, durable: Sequence, mut report: Report) -> Result<Report, Error> {
        // Read before PostgreSQL: every transfer below this watermark is terminal there.
        let (_, over) = self.spot.recorded(&[]).await?;
        let mut names = self.open.clone();
        names.extend(self.logged.keys().map(|(req_id, _)| req_id));
        let findings = self.rows.open(&names).await?;
        if let Some(back_at) = findings.back_at {
            let read = self.read;
            report.mismatches.push(Mismatch::between_stores(format!(
                "PostgreSQL had been compared with the log up to record {read} and knows only of {back_at}: it has gone \
                 back"
            )));
            (self.read, self.reader, report.caught_up) = (back_at, None, false);
            self.kept.store(back_at, Ordering::Release);
        }
        let mut asked = Vec::with_capacity(findings.pages.len() * 2);
        for page in &findings.pages {
            let direction = page.transfer.as_ref().map(|transfer| transfer.intent.direction);
            let here = |op: &Op| direction.is_none_or(|direction| direction.is_on_spot(*op));
            asked.extend(OPS.into_iter().filter(here).map(|op| (page.req_id, op)));
        }
        let (recorded, watermark) = self.spot.recorded(&asked).await?;
        let mut recorded: HashMap<_, _> = asked.into_iter().zip(recorded).collect();
        report.swept = findings.swept;
        report.mismatches.extend(findings.strange.into_iter().map(Mismatch::between_stores));
        report.mismatches.extend(findings.unbalanced.into_iter().map(Mismatch::from));
        let mut open = BTreeSet::new();
        let catalog = self.catalog.load_full();
        for page in &findings.pages {
            let spot = &OPS.map(|op| {
                let name = (page.req_id, op);
                recorded.remove(&name).flatten().or_else(|| self.logged.get(&name).copied())
            });
            let judged = Judged { page, spot, durable, over, watermark, catalog: &catalog };
            match judged.verdict() {
                Ok(Fit::Settled) => {}
                // Neither store has anything of it: its accept was given up, or never happened.
                Ok(_) if page.transfer.is_none() && spot.iter().all(Option::is_none) => {}
                Ok(_) => {
                    open.insert(page.req_id);
                }
                Err(mismatch) => {
                    open.insert(page.req_id);
                    report.mismatches.push(*mismatch);
                }
            }
        }
        report.open = open.len();
        // A row is committed before its record is written, so every record read has its row in this
        // snapshot.
        let rows = self.rows.externals(self.externals.keys().copied()).await?;
        let lost = self
            .externals
            .iter()
            .filter_map(|(number, logged)| externals::judge(logged, rows.get(number), &catalog));
        report.mismatches.extend(lost);
        let ending = match (self.read_only, report.mismatches.is_empty()) {
            (true, _) => Ending::GoOn,
            (false, true) => Ending::Keep(self.read),
            (false, false) => Ending::Again,
        };
        self.rows.close(ending).await?;
        match ending {
            Ending::Keep(reached) => {
                self.kept.store(reached, Ordering::Release);
                (self.open, self.logged, self.externals) = (open, HashMap::new(), BTreeMap::new());
            }
            Ending::GoOn => {
                (self.open, self.logged, self.externals) = (open, HashMap::new(), BTreeMap::new());
            }
            // The next round compares all of them again.
            Ending::Again => self.open.extend(open),
        }
        Ok(report)
    }
}

impl From<Unbalanced> for Mismatch {
    fn from(unbalanced: Unbalanced) -> Mismatch {
        Mismatch {
            user: Some(unbalanced.user),
            asset: Some(unbalanced.asset),
            difference: plain_text(&unbalanced.difference),
            req_id: None,
            external: None,
            what: unbalanced.sentence(),
        }
    }
}

/// One transfer in both stores.
struct Judged<'a> {
    page: &'a Page,
    /// The WITHDRAW, DEPOSIT and REFUND of UBSCore.
    spot: &'a [Option<Recorded>; 3],
    /// The last durable record before PostgreSQL was read.
    durable: Sequence,
    /// UBSCore's watermark before PostgreSQL was read.
    over: u64,
    /// UBSCore's watermark after its outcomes were read.
    watermark: u64,
    catalog: &'a Catalog,
}

impl Judged<'_> {
    fn verdict(&self) -> Result<Fit, Box<Mismatch>> {
        let Page { transfer, operations, unreadable, .. } = self.page;
        if let Some(why) = unreadable {
            return Err(self.mismatch(0, format!("a row cannot be read: {why}")));
        }
        let Some(transfer) = transfer else {
            let at_home = operations.is_empty();
            let paid = self.spot.iter().flatten().any(|spot| spot.sequence <= self.durable);
            return match at_home && !paid {
                true => Ok(Fit::Open),
                false => Err(self.mismatch(
                    self.lone_difference(),
                    "there are operations, but PostgreSQL has no such transfer".to_owned(),
                )),
            };
        };
        let intent = &transfer.intent;
        for operation in operations {
            let same = (operation.user, operation.asset, operation.amount)
                == (intent.user, intent.asset, intent.amount);
            if !same {
                let op = operation.op.name();
                return Err(self.mismatch(
                    0,
                    format!("its {op} on Funding is of another user, asset or amount"),
                ));
            }
            if intent.direction.is_on_spot(operation.op) {
                let op = operation.op.name();
                return Err(self.mismatch(
                    i128::from(intent.amount.units()),
                    format!("Funding has a {op}, which belongs to Spot"),
                ));
            }
        }
        for (op, spot) in OPS.into_iter().zip(self.spot) {
            let Some(spot) = spot else { continue };
            let same = (spot.user, spot.asset, spot.amount)
                == (intent.user.number(), intent.asset.0, intent.amount.units());
            if !same {
                let what = format!("its {} on Spot is of another user, asset or amount", op.name());
                return Err(self.mismatch(0, what));
            }
        }
        if !transfer.state.is_terminal() && intent.order_number < self.over {
            let state = transfer.state.name();
            return Err(self.mismatch(
                0,
                format!("its state is {state}, but UBSCore was told that it had come to its end"),
            ));
        }
        let seen = |op: Op| self.seen(intent.direction, intent.order_number, op);
        let operations = Operations {
            withdraw: seen(Op::Withdraw),
            deposit: seen(Op::Deposit),
            refund: seen(Op::Refund),
        };
        match fit(Some(transfer.state), intent.direction, intent.amount, operations) {
            Fit::Broken { op, difference } => {
                let (state, op) = (transfer.state.name(), op.name());
                let what = format!("its state {state} does not fit what is recorded for its {op}");
                Err(self.mismatch(difference, what))
            }
            fits => Ok(fits),
        }
    }

    fn seen(&self, direction: Direction, order_number: u64, op: Op) -> Seen {
        if !direction.is_on_spot(op) {
            let found = self.page.operations.iter().find(|operation| operation.op == op);
            return Seen::in_snapshot(found.map(|operation| operation.decision));
        }
        match &self.spot[usize::from(op as u8) - 1] {
            None if order_number < self.watermark => Seen::Forgotten,
            None => Seen::At { before: None, after: None },
            Some(spot) => {
                let before = (spot.sequence <= self.durable).then_some(spot.decision);
                Seen::At { before, after: Some(spot.decision) }
            }
        }
    }

    /// The net effect of operations that have no transfer, smallest units.
    fn lone_difference(&self) -> i128 {
        use domain::transfer::Decision::Success;
        let effect = |op: Op, units: u64| match op {
            Op::Withdraw => -i128::from(units),
            _ => i128::from(units),
        };
        let funding = self.page.operations.iter().filter(|o| o.decision == Success);
        let funding: i128 = funding.map(|o| effect(o.op, o.amount.units())).sum();
        let spot = OPS.into_iter().zip(self.spot);
        let spot = spot.filter_map(|(op, spot)| spot.as_ref().map(|spot| (op, spot)));
        let spot = spot.filter(|(_, spot)| spot.decision == Success);
        funding + spot.map(|(op, spot)| effect(op, spot.amount)).sum::<i128>()
    }

    fn mismatch(&self, difference: i128, what: String) -> Box<Mismatch> {
        let intent = self.page.transfer.as_ref().map(|transfer| &transfer.intent);
        let funding = self.page.operations.first();
        let spot = self.spot.iter().flatten().next();
        let user = intent.map(|intent| intent.user);
        let user = user.or(funding.map(|operation| operation.user));
        let asset = intent.map(|intent| intent.asset);
        let asset = asset.or(funding.map(|operation| operation.asset));
        let asset = asset.or(spot.map(|spot| AssetId(spot.asset)));
        let precision =
            asset.and_then(|asset| self.catalog.by_id(asset)).map_or(0, |a| a.precision);
        Box::new(Mismatch {
            user: user.or(spot.and_then(|spot| UserId::new(spot.user))),
            asset,
            difference: signed_text(difference, precision),
            req_id: Some(self.page.req_id),
            external: None,
            what,
        })
    }
}

/// The part of a record that PostgreSQL must know.
enum Said {
    /// The outcome of an operation on Spot.
    Outcome((ReqId, Op), Recorded),
    /// An external operation, by its order number.
    External(u64, Logged),
    /// Nothing.
    Nothing,
}

fn said(record: &Record<'_>) -> Result<Said, Error> {
    let sequence = record.sequence;
    let entry = Entry::decode(record.kind, record.payload)
        .map_err(|source| Error::Record { sequence, source })?;
    let (order, decision, balance_after) = match entry {
        Entry::Order { order, decision, balance_after, .. } => (order, decision, balance_after),
        Entry::External(external) => {
            let time_ns = record.time_ns;
            let logged = Logged { external, sequence, time_ns };
            return Ok(Said::External(external.order_number, logged));
        }
        _ => return Ok(Said::Nothing),
    };
    let Some(req_id) = ReqId::new(order.req_id) else { return Ok(Said::Nothing) };
    if !order.direction.is_on_spot(order.op) {
        return Err(Error::Misplaced { sequence, req_id, op: order.op });
    }
    let recorded = Recorded::new(&order, decision, balance_after, sequence, record.time_ns);
    Ok(Said::Outcome((req_id, order.op), recorded))
}
