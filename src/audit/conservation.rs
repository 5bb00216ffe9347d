//! The rounds of the audit, and the proof that each gives.
//!
//! ```text
//!   log, up to the durable record  -->  short snapshots of PostgreSQL  -->  outcomes of UBSCore
//!         (payments)               (balances, operations, states)       (before and after)
//! ```
//!
//! - Every Funding balance is the sum of all operations on it.
//! - The frozen part of every Funding balance is the sum of its freezes and open holds, and every
//!   freeze has the amount that the holds of its purpose have left there.
//! - The state of every transfer fits the operations that both stores hold for it ([`super::fit`]).
//! - Every record of the log has its transfer, or its transaction ([`super::transactions`]).
//! - Every claim of a transaction about Spot has its outcome.
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
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arc_swap::ArcSwap;
use engine::entry::Entry;
use engine::named::NamedAnswer;
use engine::recorded::Recorded;
use tracing::warn;
use wal::{Directory, Reader, Record, Sequence};

use super::error::Error;
use super::externals::{self, Compared, ExternalRecord, Held};
use super::failover::alert_lost_mark;
use super::fit::{Fit, Operations, Seen, fit};
use super::mismatch::{Kind, Mismatch};
use super::settled::{self, Settled};
use super::transactions::{self, NamedRecord};
use crate::adapters::spot::Spot;
use crate::alert::{Alert, alert};
use crate::postgres::audit_reader::{AuditReader, Ending, Page, RechargesFrom, SpotPart};
use crate::postgres::recover::RECOVER_NEXT;
use crate::postgres::store::Transfer;
use crate::telemetry::chain;
use domain::account::UserId;
use domain::asset::{AssetId, Catalog};
use domain::transfer::{Intent, Op, ReqId};

/// Records of the log that one round reads.
const RECORDS_PER_ROUND: u64 = 20_000;
/// With this many outcomes of the log not yet kept, no more records are read until a round is kept.
const LOGGED_MAX: usize = 50_000;
/// Old records of the log that one round reads again.
const SWEEP_RECORDS: u64 = 10_000;
/// So many rounds behind each other that are late are an alert.
const LATE_ROUNDS: u32 = 5;

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

    /// The same of postings by name: transaction, operation, and round, 0 for an end.
    fn recorded_by_name(
        &mut self,
        postings: &[(ReqId, Op, u8)],
    ) -> impl Future<Output = AnsweredByName> + Send;

    /// Whether a venue is registered.
    fn has_venues(&mut self) -> impl Future<Output = Result<bool, Error>> + Send;
}

/// See [`Spot::recorded`].
pub type Answered = Result<(Vec<Option<Recorded>>, u64), Error>;

/// See [`Spot::recorded_by_name`].
pub type AnsweredByName = Result<(Vec<Option<NamedAnswer>>, u64), Error>;

/// Notes that rows of `what` took too long in a round: such rounds find nothing.
fn late(rounds: &mut u32, what: &str, error: &crate::postgres::Error) {
    *rounds = rounds.saturating_add(1);
    let rounds = *rounds;
    warn!(%error, rounds, "rows of {what} are not compared in this round");
    if rounds.is_multiple_of(LATE_ROUNDS) {
        let what = format_args!("rows of {what} were not compared in {rounds} rounds: {error}");
        alert(Alert::ConservationStalled, what);
    }
}

impl SpotReader for Arc<Spot> {
    fn durable(&mut self) -> Result<Sequence, Error> {
        Ok(Spot::durable(self))
    }

    async fn recorded(&mut self, operations: &[(ReqId, Op)]) -> Answered {
        Ok(Spot::recorded(self, operations).await?)
    }

    async fn recorded_by_name(&mut self, postings: &[(ReqId, Op, u8)]) -> AnsweredByName {
        Ok(Spot::recorded_by_name(self, postings).await?)
    }

    async fn has_venues(&mut self) -> Result<bool, Error> {
        Ok(!Spot::venues(self).await?.is_empty())
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
    /// The log since the last kept round: UBSCore may have forgotten these outcomes.
    unkept: Unkept,
    /// Reads the log from its beginning, a part in each round, again and again.
    sweeper: Option<Reader<Directory>>,
    /// See [`Audit::kept`].
    kept: Arc<AtomicU64>,
    /// No round is kept.
    read_only: bool,
    /// Where the next round of recharges begins; `None`: they are off.
    recharges: Option<RechargesFrom>,
    /// The same of promotions.
    promotions: Option<RechargesFrom>,
    /// Rounds behind each other in which rows of recharges, and of promotions, took too long.
    late: [u32; 2],
}

/// The content of log records that PostgreSQL must know.
#[derive(Default)]
struct Unkept {
    /// Outcomes of operations on Spot.
    outcomes: HashMap<(ReqId, Op), Recorded>,
    /// External operations, by order number.
    externals: BTreeMap<u64, ExternalRecord>,
    /// Postings by name: transaction, operation, round.
    named: BTreeMap<(ReqId, Op, u8), NamedRecord>,
}

impl Unkept {
    fn len(&self) -> usize {
        self.outcomes.len() + self.externals.len() + self.named.len()
    }

    /// Adds the outcome of a record, if it has one.
    fn add(&mut self, record: &Record<'_>) -> Result<(), Error> {
        let sequence = record.sequence;
        let entry = Entry::decode(record.kind, record.payload)
            .map_err(|source| Error::Record { sequence, source })?;
        let (order, decision, balance_after) = match entry {
            Entry::Order { order, decision, balance_after, .. } => (order, decision, balance_after),
            Entry::External(external) => {
                let time_ns = record.time_ns;
                let logged = ExternalRecord { external, sequence, time_ns };
                self.externals.insert(external.order_number, logged);
                return Ok(());
            }
            Entry::Named(named) => {
                let (op, round, time_ns) = (named.op, named.round, record.time_ns);
                let logged = NamedRecord { named, sequence, time_ns };
                if let Some(transaction) = logged.transaction() {
                    self.named.insert((transaction, op, round), logged);
                }
                return Ok(());
            }
            _ => return Ok(()),
        };
        let Some(req_id) = ReqId::new(order.req_id) else { return Ok(()) };
        if !order.direction.is_on_spot(order.op) {
            return Err(Error::Misplaced { sequence, req_id, op: order.op });
        }
        let recorded = Recorded::new(&order, decision, balance_after, sequence, record.time_ns);
        self.outcomes.insert((req_id, order.op), recorded);
        Ok(())
    }
}

/// The progress of one look at the log.
enum Progress {
    /// It has reached its end.
    Whole,
    /// The next round goes on.
    Part,
    /// It cannot go on, with the finding.
    Stuck(Kind),
}

impl Progress {
    /// Whether this look is over, and the finding if there is one.
    fn finding(self) -> (bool, Option<Kind>) {
        match self {
            Progress::Whole => (true, None),
            Progress::Part => (false, None),
            Progress::Stuck(kind) => (true, Some(kind)),
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
            unkept: Unkept::default(),
            sweeper: None,
            kept: Arc::new(AtomicU64::new(read)),
            read_only: true,
            recharges: None,
            promotions: None,
            late: [0; 2],
        })
    }

    /// The same, with the rows of recharges if there are any: `enabled` in the configuration.
    pub fn with_recharges(self, enabled: bool) -> Audit<S> {
        let from = enabled.then(RechargesFrom::beginning);
        Audit { recharges: from, promotions: from, ..self }
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
        self.unkept
            .outcomes
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

    /// Marks PostgreSQL again for a log with venues, if it has lost the mark.
    ///
    /// # Errors
    /// [`Error`]: a store does not answer. The mark may be missing.
    pub async fn renew_mark(&mut self) -> Result<(), Error> {
        if !self.spot.has_venues().await? || self.rows.is_posted().await? {
            return Ok(());
        }
        alert_lost_mark();
        Ok(self.rows.mark_posted().await?)
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
        let (caught_up, apart) = self.read_on(durable)?.finding();
        let (swept_log, damage) = tokio::task::block_in_place(|| self.sweep_log())?.finding();
        let found = apart.into_iter().chain(damage).map(Mismatch::new).collect();
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
            return Ok(Progress::Stuck(Kind::LogBehind { durable, read }));
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
            Err(Error::Log(gone @ wal::Error::Missing { .. })) => {
                Ok(Progress::Stuck(Kind::DatabaseBehind { read, missing: gone.to_string() }))
            }
            Err(error @ (Error::Log(_) | Error::Record { .. } | Error::Misplaced { .. })) => {
                Ok(Progress::Stuck(Kind::DamagedLog(chain(&error))))
            }
            Err(error) => Err(error),
        }
    }

    /// Collects the outcomes of the records up to `durable`, or of the next [`RECORDS_PER_ROUND`].
    fn read_log(&mut self, durable: Sequence) -> Result<Progress, Error> {
        if self.unkept.len() >= LOGGED_MAX {
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
            self.unkept.add(&record)?;
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
                Ok(Progress::Stuck(Kind::DamagedLog(chain(&error))))
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
                Some(record) if record.sequence <= self.read => self.unkept.add(&record)?,
                Some(_) | None => return Ok(Progress::Whole),
            }
        }
        self.sweeper = Some(reader);
        Ok(Progress::Part)
    }

    /// Compares a page of the rows of recharges. One that takes too long stops no other comparison.
    async fn compare_recharges(
        &mut self,
        from: RechargesFrom,
        report: &mut Report,
    ) -> Result<(), Error> {
        let page = match self.rows.recharges(from).await {
            Err(error) if error.is_late() => {
                late(&mut self.late[0], "recharges", &error);
                return Ok(());
            }
            page => page?,
        };
        self.late[0] = 0;
        // A finding is found again.
        if page.found.is_empty() {
            self.recharges = Some(page.later);
        }
        for key in page.needed {
            warn!(key, "RECOVER_NEEDED: {RECOVER_NEXT}");
        }
        let found = page.found.into_iter().map(Kind::StrangeRow);
        report.mismatches.extend(found.map(Mismatch::new));
        Ok(())
    }

    /// The same of promotions, in a statement of its own.
    async fn compare_promotions(
        &mut self,
        from: RechargesFrom,
        report: &mut Report,
    ) -> Result<(), Error> {
        let page = match self.rows.promotions(from).await {
            Err(error) if error.is_late() => {
                late(&mut self.late[1], "promotions", &error);
                return Ok(());
            }
            page => page?,
        };
        self.late[1] = 0;
        if page.found.is_empty() {
            self.promotions = Some(page.later);
        }
        let found = page.found.into_iter().map(Kind::StrangeRow);
        report.mismatches.extend(found.map(Mismatch::new));
        Ok(())
    }

    async fn compare(&mut self, durable: Sequence, mut report: Report) -> Result<Report, Error> {
        // Read before PostgreSQL: every transfer below this watermark is terminal there.
        let (_, over) = self.spot.recorded(&[]).await?;
        let mut names = self.open.clone();
        names.extend(self.unkept.outcomes.keys().map(|(req_id, _)| req_id));
        let findings = self.rows.open(&names).await?;
        if let Some(back_at) = findings.back_at {
            let read = self.read;
            report.mismatches.push(Mismatch::new(Kind::WentBack { read, back_at }));
            (self.read, self.reader, report.caught_up) = (back_at, None, false);
            self.kept.store(back_at, Ordering::Release);
        }
        let mut asked = Vec::with_capacity(findings.pages.len() * 2);
        for page in &findings.pages {
            let direction = page.transfer.as_ref().map(|transfer| transfer.intent.direction);
            let here = |op: &Op| direction.is_none_or(|direction| direction.is_on_spot(*op));
            asked.extend(Op::OF_TRANSFER.into_iter().filter(here).map(|op| (page.req_id, op)));
        }
        let (recorded, watermark) = self.spot.recorded(&asked).await?;
        assert_eq!(recorded.len(), asked.len(), "one outcome a question");
        assert!(watermark >= over, "the watermark was {over}, and is {watermark}");
        let mut recorded: HashMap<_, _> = asked.into_iter().zip(recorded).collect();
        report.swept = findings.swept;
        report.caught_up &= !findings.behind;
        let damaged = findings.damaged.into_iter().map(Kind::DamagedJournal);
        report.mismatches.extend(damaged.map(Mismatch::new));
        let strange = findings.strange.into_iter().map(Kind::StrangeRow);
        report.mismatches.extend(strange.map(Mismatch::new));
        report.mismatches.extend(findings.unbalanced.into_iter().map(Mismatch::from));
        report.mismatches.extend(findings.misheld.into_iter().map(Mismatch::from));
        let mut open = BTreeSet::new();
        let catalog = self.catalog.load_full();
        for page in &findings.pages {
            let spot = &Op::OF_TRANSFER.map(|op| {
                let name = (page.req_id, op);
                recorded
                    .remove(&name)
                    .flatten()
                    .or_else(|| self.unkept.outcomes.get(&name).copied())
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
        // A row is committed before its record is written, so every record read has its row now.
        let rows = self.rows.externals(self.unkept.externals.keys().copied()).await?;
        let lost =
            self.unkept.externals.iter().filter_map(|(number, logged)| {
                externals::judge(logged, rows.get(number), &catalog)
            });
        report.mismatches.extend(lost);
        report.mismatches.extend(self.compare_named().await?);
        report.mismatches.extend(self.compare_claims(&findings.parts).await?);
        let ending = match (self.read_only, report.mismatches.is_empty()) {
            (true, _) => Ending::GoOn,
            (false, true) => Ending::Keep(self.read),
            (false, false) => Ending::Again,
        };
        self.rows.close(ending).await?;
        match ending {
            Ending::Keep(reached) => {
                let kept = self.kept.load(Ordering::Acquire);
                assert!(reached >= kept, "record {kept} was kept, and now only {reached}");
                self.kept.store(reached, Ordering::Release);
                (self.open, self.unkept) = (open, Unkept::default());
            }
            Ending::GoOn => {
                (self.open, self.unkept) = (open, Unkept::default());
            }
            // The next round compares all of them again.
            Ending::Again => self.open.extend(open),
        }
        if let Some(from) = self.recharges {
            self.compare_recharges(from, &mut report).await?;
        }
        if let Some(from) = self.promotions {
            self.compare_promotions(from, &mut report).await?;
        }
        Ok(report)
    }

    /// Compares the postings by name that were read with the rows of their transactions. A row is
    /// committed before its records are written.
    async fn compare_named(&mut self) -> Result<Vec<Mismatch>, Error> {
        let logged = &self.unkept.named;
        let names: BTreeSet<ReqId> = logged.keys().map(|(transaction, ..)| *transaction).collect();
        let rows = self.rows.transactions(names).await?;
        let judged = logged.iter().filter_map(|((transaction, ..), logged)| {
            transactions::judge(logged, rows.get(transaction))
        });
        Ok(judged.collect())
    }

    /// Compares the rows of transactions that were read with the outcomes that they claim. UBSCore
    /// is asked after them. `verify` compares all of them with a whole ledger instead.
    async fn compare_claims(&mut self, parts: &[SpotPart]) -> Result<Vec<Mismatch>, Error> {
        if self.read_only || parts.is_empty() {
            return Ok(Vec::new());
        }
        let of_part = |part: &SpotPart| {
            let name = part.transaction;
            transactions::questions(part).into_iter().map(move |(op, round)| (name, op, round))
        };
        let asked: Vec<(ReqId, Op, u8)> = parts.iter().flat_map(of_part).collect();
        let (recorded, watermark) = self.spot.recorded_by_name(&asked).await?;
        assert_eq!(recorded.len(), asked.len(), "one outcome a question");
        let recorded: HashMap<_, _> = asked.into_iter().zip(recorded).collect();
        let judged = parts.iter().flat_map(|part| {
            let known = |op, round| recorded.get(&(part.transaction, op, round)).copied().flatten();
            transactions::judge_part(part, known, part.order_number < watermark)
        });
        Ok(judged.collect())
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
        let Page { transfer, unreadable, .. } = self.page;
        if let Some(why) = unreadable {
            return Err(self.mismatch(0, Kind::UnreadableRow(why.clone())));
        }
        let Some(transfer) = transfer else {
            let paid = self.spot.iter().flatten().any(|spot| spot.sequence <= self.durable);
            return match paid {
                true => Err(self.mismatch(self.lone_difference(), Kind::NoTransfer)),
                false => Ok(Fit::Open),
            };
        };
        let intent = &transfer.intent;
        for (op, spot) in Op::OF_TRANSFER.into_iter().zip(self.spot) {
            let Some(spot) = spot else { continue };
            let same = (spot.user, spot.asset, spot.amount)
                == (intent.user.number(), intent.asset.0, intent.amount.units());
            if !same {
                return Err(self.mismatch(0, Kind::OtherBody { op }));
            }
        }
        if !transfer.state.is_terminal() && intent.order_number < self.over {
            return Err(self.mismatch(0, Kind::Passed { state: transfer.state }));
        }
        let seen = |op: Op| self.seen(transfer, op);
        let operations = Operations::of(seen);
        match fit(Some(transfer.state), intent.direction, intent.amount, operations) {
            Fit::Broken { op, difference } => {
                Err(self.mismatch(difference, Kind::Misfit { state: transfer.state, op }))
            }
            fits => Ok(fits),
        }
    }

    fn seen(&self, transfer: &Transfer, op: Op) -> Seen {
        let Intent { direction, order_number, .. } = transfer.intent;
        if !direction.is_on_spot(op) {
            return Seen::in_snapshot(transfer.on_funding(op));
        }
        match op.place_in_transfer().and_then(|place| self.spot[place].as_ref()) {
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
        let spot = Op::OF_TRANSFER.into_iter().zip(self.spot);
        let spot = spot.filter_map(|(op, spot)| spot.as_ref().map(|spot| (op, spot)));
        spot.map(|(op, spot)| op.effect(spot.decision, spot.amount)).sum::<i128>()
    }

    fn mismatch(&self, difference: i128, kind: Kind) -> Box<Mismatch> {
        let intent = self.page.transfer.as_ref().map(|transfer| &transfer.intent);
        let spot = self.spot.iter().flatten().next();
        let user = intent.map(|intent| intent.user);
        let asset = intent.map(|intent| intent.asset);
        let asset = asset.or(spot.map(|spot| AssetId(spot.asset)));
        let user = user.or(spot.and_then(|spot| UserId::new(spot.user)));
        let mismatch = Mismatch::new(kind).with_transfer(self.page.req_id);
        Box::new(match asset {
            Some(asset) => mismatch.with_account(user, asset, difference, self.catalog),
            None => mismatch.with_units(difference),
        })
    }
}
