//! Spot: operations on Spot balances, through the ring into UBSCore. An answer is durable when it
//! arrives.

use std::fmt;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use engine::Handle;
use engine::command::Command;
use engine::external::External;
use engine::ledger::Answer as EngineAnswer;
use engine::named::{NamedAnswer, NamedPosting};
use engine::order::Order;
use engine::recorded::Recorded;
use engine::ring::{Overloaded, Pending};
use engine::text::Text;
use engine::venue::{Look, OpenError, Page, VenueRow};
use futures_util::future::{Either, select};
use parking_lot::Mutex;
use tracing::error;
use wal::Sequence;

use super::{Adapter, Answer, Ask, Outcome, Reason, Route, check_ask};
use crate::clock::Clock;
use crate::config::Config;
use domain::account::{AccountStatus, UserId};
use domain::asset::{Asset, AssetId, Catalog};
use domain::code::Code;
use domain::transfer::{Decision, ExternalOperation, Op, ReqId};

/// Pause before questions that found no place on the ring are asked again.
const OVERLOADED_PAUSE: Duration = Duration::from_millis(5);

/// The Spot participant.
pub struct Spot {
    engine: Mutex<Handle>,
    /// Held during a read of rows: there is one page.
    looking: tokio::sync::Mutex<()>,
    clock: Arc<dyn Clock>,
    catalog: Arc<ArcSwap<Catalog>>,
    timeout: Duration,
}

/// UBSCore did not answer a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unanswered {
    /// Its queue is full. Nothing happened.
    #[error("UBSCore's queue is full")]
    Overloaded,
    /// No answer in time, or it has stopped. Whether it happened is unknown.
    #[error("UBSCore did not answer")]
    Silent,
    /// It refused the question.
    #[error("UBSCore refused: {0}")]
    Violation(&'static str),
}

/// A venue is not changed, or a hold is not released.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotChanged {
    /// UBSCore refused: nothing has changed.
    #[error(transparent)]
    Refused(OpenError),
    /// UBSCore did not answer.
    #[error(transparent)]
    Unanswered(#[from] Unanswered),
}

/// A hold that an operator has released.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Released {
    /// Its owner.
    pub user: u64,
    /// Its asset.
    pub asset: AssetId,
    /// Smallest units.
    pub amount: u64,
    /// The record.
    pub sequence: Sequence,
}

/// One Spot balance at a point of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpotBalance {
    /// Smallest units; `None` if the user has no Spot account.
    pub available: Option<u128>,
    /// All holds and freezes, smallest units.
    pub held: u128,
    /// The last record the balance includes.
    pub sequence: Sequence,
}

/// The sum of all Spot balances of one asset at a point of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpotTotal {
    /// Smallest units, with what is held.
    pub units: u128,
    /// All holds and freezes, smallest units.
    pub held: u128,
    /// All that transactions have brought from outside of Spot less all that they have taken there,
    /// smallest units.
    pub crossed: i128,
    /// The last record the sum includes.
    pub sequence: Sequence,
}

/// How long UBSCore is waited for; see `[coordinator]` in the configuration.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Without an answer within it the outcome is [`Outcome::Timeout`].
    pub timeout: Duration,
}

impl From<&Config> for Options {
    fn from(config: &Config) -> Options {
        Options { timeout: Duration::from_millis(config.coordinator.adapter_timeout_ms) }
    }
}

impl Spot {
    /// Spot through `engine`.
    pub fn new(
        engine: Handle,
        clock: Arc<dyn Clock>,
        catalog: Arc<ArcSwap<Catalog>>,
        options: Options,
    ) -> Spot {
        let Options { timeout } = options;
        let looking = tokio::sync::Mutex::default();
        Spot { engine: Mutex::new(engine), looking, clock, catalog, timeout }
    }

    /// The highest log sequence known durable.
    pub fn durable(&self) -> Sequence {
        self.engine.lock().durable()
    }

    /// Sets a Spot account's status, and creates the account if it is absent. Once answered it
    /// holds for every later withdraw.
    ///
    /// # Errors
    /// [`Unanswered`].
    pub async fn set_status(&self, user: UserId, status: AccountStatus) -> Result<(), Unanswered> {
        let answer = self.put(Command::SetStatus { user: user.number(), status }).await?;
        expect_done(answer)
    }

    /// Registers an asset with UBSCore.
    ///
    /// # Errors
    /// [`Unanswered`]; a violation if UBSCore has it with another symbol or precision.
    pub async fn register(&self, asset: &Asset) -> Result<(), Unanswered> {
        let symbol = Text::new(&asset.symbol).expect("checked by Catalog");
        let precision = asset.precision;
        let answer =
            self.put(Command::RegisterAsset { asset: asset.id.0, precision, symbol }).await?;
        expect_done(answer)
    }

    /// Allows UBSCore to forget outcomes of smaller order numbers. PostgreSQL must have the
    /// watermark before.
    ///
    /// # Errors
    /// [`Unanswered`].
    pub async fn raise_watermark(&self, order_number: u64) -> Result<(), Unanswered> {
        expect_done(self.put(Command::RaiseWatermark { order_number }).await?)
    }

    /// Reads one balance.
    ///
    /// # Errors
    /// [`Unanswered`].
    pub async fn balance(&self, user: UserId, asset: AssetId) -> Result<SpotBalance, Unanswered> {
        match self.put(Command::ReadBalance { user: user.number(), asset: asset.0 }).await? {
            EngineAnswer::Balance { available, held, sequence } => {
                Ok(SpotBalance { available, held, sequence })
            }
            EngineAnswer::Overloaded => Err(Unanswered::Overloaded),
            _ => Err(Unanswered::Silent),
        }
    }

    /// Reads a Spot account's status, `None` if there is no account.
    ///
    /// # Errors
    /// [`Unanswered`].
    pub async fn status(&self, user: UserId) -> Result<Option<AccountStatus>, Unanswered> {
        match self.put(Command::ReadStatus { user: user.number() }).await? {
            EngineAnswer::Status(status) => Ok(status),
            EngineAnswer::Overloaded => Err(Unanswered::Overloaded),
            _ => Err(Unanswered::Silent),
        }
    }

    /// Reads the recorded outcome of each operation, in their order, `None` if there is none; and
    /// then the watermark, below which outcomes may be forgotten.
    ///
    /// # Errors
    /// [`Unanswered`]: for one of them, so for all.
    pub async fn recorded(
        &self,
        operations: &[(ReqId, Op)],
    ) -> Result<(Vec<Option<Recorded>>, u64), Unanswered> {
        let query = |&(req_id, op): &(ReqId, Op)| Command::Query { req_id: req_id.number(), op };
        let found = self.put_all(operations, query).await?;
        let found = found.into_iter().map(|answer| match answer {
            EngineAnswer::Query(recorded) => Ok(recorded),
            _ => Err(Unanswered::Silent),
        });
        let found = found.collect::<Result<_, _>>()?;
        Ok((found, self.watermark().await?))
    }

    /// The same of postings by name. The round of a SETTLE and of a RELEASE is of no meaning.
    ///
    /// # Errors
    /// [`Unanswered`]: for one of them, so for all.
    pub async fn recorded_by_name(
        &self,
        postings: &[(ReqId, Op, u8)],
    ) -> Result<(Vec<Option<NamedAnswer>>, u64), Unanswered> {
        let query =
            |&(transaction, op, round): &(ReqId, Op, u8)| query_named(transaction, op, round);
        let found = self.put_all(postings, query).await?;
        let found = found.into_iter().map(|answer| match answer {
            EngineAnswer::QueryNamed(recorded) => Ok(recorded),
            _ => Err(Unanswered::Silent),
        });
        let found = found.collect::<Result<_, _>>()?;
        Ok((found, self.watermark().await?))
    }

    /// Read behind queries on the ring: every outcome forgotten before one of them is below it.
    async fn watermark(&self) -> Result<u64, Unanswered> {
        match self.put(Command::ReadWatermark).await? {
            EngineAnswer::Watermark(order_number) => Ok(order_number),
            EngineAnswer::Overloaded => Err(Unanswered::Overloaded),
            _ => Err(Unanswered::Silent),
        }
    }

    /// Reads the record of the SETTLE of each transaction, in their order, `None` if there is none;
    /// and the watermark, below which outcomes may be forgotten.
    ///
    /// # Errors
    /// [`Unanswered`].
    pub async fn settled(
        &self,
        transactions: &[ReqId],
    ) -> Result<(Vec<Option<Sequence>>, u64), Unanswered> {
        let query = |transaction: &ReqId| query_named(*transaction, Op::Settle, 1);
        let found = self.put_all(transactions, query).await?;
        let found = found.into_iter().map(|answer| match answer {
            EngineAnswer::QueryNamed(named) => Ok(named.map(|named| named.record)),
            _ => Err(Unanswered::Silent),
        });
        let found = found.collect::<Result<_, _>>()?;
        // As for `recorded`: behind the queries.
        match self.put(Command::ReadWatermark).await? {
            EngineAnswer::Watermark(order_number) => Ok((found, order_number)),
            EngineAnswer::Overloaded => Err(Unanswered::Overloaded),
            _ => Err(Unanswered::Silent),
        }
    }

    /// Reads the sum of all Spot balances of each asset, in the order of `assets`, each at its own
    /// point of the log.
    ///
    /// # Errors
    /// [`Unanswered`]: for one of them, so for all.
    pub async fn totals(&self, assets: &[AssetId]) -> Result<Vec<SpotTotal>, Unanswered> {
        let read = |asset: &AssetId| Command::ReadTotal { asset: asset.0 };
        let totals = self.put_all(assets, read).await?.into_iter().map(|answer| match answer {
            EngineAnswer::Total { units, held, crossed, sequence } => {
                Ok(SpotTotal { units, held, crossed, sequence })
            }
            _ => Err(Unanswered::Silent),
        });
        totals.collect()
    }

    /// Reads rows of a table for operators.
    ///
    /// # Errors
    /// [`Unanswered`].
    pub async fn look(&self, look: Look) -> Result<Page, Unanswered> {
        let _one = self.looking.lock().await;
        let pending = self.engine.lock().look(look, self.clock.now_ns());
        let pending = pending.map_err(|Overloaded| Unanswered::Overloaded)?;
        let mut deadline = self.clock.sleep(self.timeout);
        match wait(pending, &mut deadline).await {
            Some(EngineAnswer::Done) => Ok(self.engine.lock().page()),
            _ => Err(Unanswered::Silent),
        }
    }

    /// All venues, in the order of their registration.
    ///
    /// # Errors
    /// [`Unanswered`].
    pub async fn venues(&self) -> Result<Vec<VenueRow>, Unanswered> {
        Ok(self.look(Look::Venues).await?.venues)
    }

    /// Registers, closes or reopens a venue. A repeat changes nothing.
    ///
    /// # Errors
    /// [`NotChanged`].
    pub async fn change_venue(&self, command: Command) -> Result<(), NotChanged> {
        match self.put(command).await? {
            EngineAnswer::NotOpened(error) => Err(NotChanged::Refused(error)),
            answer => Ok(expect_done(answer)?),
        }
    }

    /// Releases a hold of a closed venue. `name`: of this release, not 0.
    ///
    /// # Errors
    /// [`NotChanged`].
    pub async fn release_hold(
        &self,
        name: u128,
        venue: u32,
        hold: u64,
    ) -> Result<Released, NotChanged> {
        match self.put(Command::ReleaseHold { name, venue, hold }).await? {
            EngineAnswer::Released { user, asset, amount, sequence } => {
                Ok(Released { user, asset: AssetId(asset), amount, sequence })
            }
            EngineAnswer::NotOpened(error) => Err(NotChanged::Refused(error)),
            answer => Err(expect_done(answer).err().unwrap_or(Unanswered::Silent).into()),
        }
    }

    /// Asks one question about each of many things, a share at a time. The answers are in their
    /// order.
    async fn put_all<T>(
        &self,
        things: &[T],
        question: impl Fn(&T) -> Command,
    ) -> Result<Vec<EngineAnswer>, Unanswered> {
        let mut answers = Vec::with_capacity(things.len());
        let share = self.engine.lock().share();
        for mut share in things.chunks(share) {
            let mut deadline = self.clock.sleep(self.timeout);
            while !share.is_empty() {
                let questions = share.iter().map(&question);
                let pending = self.engine.lock().submit_all(questions, self.clock.now_ns());
                assert_eq!(pending.len(), share.len(), "one place or refusal a question");
                // A question that found a place after one that did not is asked again.
                for pending in pending.into_iter().map_while(Result::ok) {
                    answers.push(wait(pending, &mut deadline).await.ok_or(Unanswered::Silent)?);
                    share = &share[1..];
                }
                if !share.is_empty() {
                    match select(self.clock.sleep(OVERLOADED_PAUSE), &mut deadline).await {
                        Either::Left(_) => {}
                        Either::Right(_) => return Err(Unanswered::Overloaded),
                    }
                }
            }
        }
        assert_eq!(answers.len(), things.len(), "one answer a question");
        Ok(answers)
    }

    async fn put(&self, command: Command) -> Result<EngineAnswer, Unanswered> {
        let pending = self.engine.lock().submit(command, self.clock.now_ns());
        let pending = pending.map_err(|Overloaded| Unanswered::Overloaded)?;
        let mut deadline = self.clock.sleep(self.timeout);
        wait(pending, &mut deadline).await.ok_or(Unanswered::Silent)
    }
}

/// The answer, `None` when the deadline came first or the engine has stopped.
async fn wait(
    pending: Pending,
    deadline: &mut (impl Future<Output = ()> + Unpin),
) -> Option<EngineAnswer> {
    match select(pin!(pending), deadline).await {
        Either::Left((answer, _)) => answer.ok(),
        Either::Right(((), _)) => None,
    }
}

fn expect_done(answer: EngineAnswer) -> Result<(), Unanswered> {
    match answer {
        EngineAnswer::Done => Ok(()),
        EngineAnswer::Violation(why) => Err(Unanswered::Violation(why)),
        EngineAnswer::Overloaded => Err(Unanswered::Overloaded),
        _ => Err(Unanswered::Silent),
    }
}

/// The meaning of UBSCore's answer for the coordinator.
fn answer(req_id: impl fmt::Display, engine: Option<EngineAnswer>) -> Answer {
    match engine {
        Some(EngineAnswer::Decided(recorded) | EngineAnswer::Query(Some(recorded))) => {
            Answer { outcome: recorded.decision.into(), log_sequence: Some(recorded.sequence) }
        }
        Some(EngineAnswer::Named(named) | EngineAnswer::QueryNamed(Some(named))) => {
            let NamedAnswer { decision, record, .. } = named;
            Answer { outcome: decision.into(), log_sequence: Some(record) }
        }
        Some(EngineAnswer::Query(None) | EngineAnswer::QueryNamed(None)) => {
            Answer::without_record(Outcome::Unknown(Reason::NotRecorded))
        }
        Some(EngineAnswer::Violation(why)) => {
            error!(%req_id, why, "UBSCore refused an order as a violation of the protocol");
            Answer::without_record(Outcome::Unknown(Reason::Violation))
        }
        Some(EngineAnswer::Forgotten) => {
            error!(%req_id, "UBSCore was asked for an order below the watermark that it does not hold");
            Answer::without_record(Outcome::Unknown(Reason::Forgotten))
        }
        Some(EngineAnswer::Overloaded) => {
            Answer::without_record(Outcome::Unknown(Reason::Overloaded))
        }
        Some(
            EngineAnswer::Done
            | EngineAnswer::Balance { .. }
            | EngineAnswer::Total { .. }
            | EngineAnswer::Released { .. }
            | EngineAnswer::Foreseen(_)
            | EngineAnswer::Status(_)
            | EngineAnswer::Watermark(_)
            | EngineAnswer::Opened { .. }
            | EngineAnswer::NotOpened(_),
        ) => Answer::without_record(Outcome::Unknown(Reason::Mismatched)),
        None => Answer::without_record(Outcome::Timeout),
    }
}

impl Adapter for Spot {
    const ROUTE: Route = Route::Apart;

    fn check(&self, ask: &Ask) -> Result<(), Code> {
        check_ask(ask, self.catalog.load().by_id(ask.intent.asset).is_some())
    }

    async fn foresee(&self, ask: &Ask) -> Result<(), Code> {
        match self.put(Command::Foresee(Order::new(&ask.intent, ask.op))).await {
            Ok(EngineAnswer::Foreseen(foreseen)) => foreseen,
            Ok(_) | Err(_) => Err(Code::Overloaded),
        }
    }

    async fn ask(&self, asks: Vec<Ask>) -> Vec<Answer> {
        self.decide(&asks, Command::Order).await
    }

    async fn refuse(&self, asks: Vec<Ask>) -> Vec<Answer> {
        let refuse = |order| Command::Refuse { order, code: Code::ResolvedByOperator };
        self.decide(&asks, refuse).await
    }

    async fn record(&self, operations: Vec<ExternalOperation>) -> Vec<Answer> {
        let mut answers = Vec::with_capacity(operations.len());
        let share = self.engine.lock().share();
        for share in operations.chunks(share) {
            let commands = share.iter().map(|one| Command::External(External::new(one)));
            let pending = self.engine.lock().submit_all(commands, self.clock.now_ns());
            assert_eq!(pending.len(), share.len(), "one place or refusal an operation");
            let mut deadline = self.clock.sleep(self.timeout);
            for (operation, pending) in share.iter().zip(pending) {
                answers.push(match pending {
                    Err(Overloaded) => Answer::without_record(Outcome::Unknown(Reason::Overloaded)),
                    Ok(pending) => {
                        answer(operation.idem_key.as_str(), wait(pending, &mut deadline).await)
                    }
                });
            }
        }
        assert_eq!(answers.len(), operations.len(), "one answer an operation");
        answers
    }

    async fn query(&self, req_id: ReqId, op: Op) -> Answer {
        match self.put(Command::Query { req_id: req_id.number(), op }).await {
            Ok(found) => answer(req_id, Some(found)),
            Err(_) => Answer::without_record(Outcome::Timeout),
        }
    }
}

/// A service's postings by name. An answer is durable when it arrives. Without a decision the same
/// command may be sent again: it is decided once.
///
/// [`Reason::Violation`]: other legs or another order number under this name, an end that
/// contradicts another one, or a SETTLE of other legs than its RESERVE's. [`Reason::Overloaded`]:
/// nothing has happened. [`Reason::Forgotten`]: it is below the watermark.
impl Spot {
    /// Sets apart the amounts that the legs of all rounds up to this one lack.
    pub async fn reserve(&self, posting: NamedPosting) -> Answer {
        self.post_named(Op::Reserve, &posting).await
    }

    /// Books the legs of the last successful RESERVE, which must be these. It is never refused.
    pub async fn settle(&self, posting: NamedPosting) -> Answer {
        self.post_named(Op::Settle, &posting).await
    }

    /// Gives back all that a transaction has set apart. The posting has no legs. Without a RESERVE
    /// it shuts the door for a late one. It is never refused.
    pub async fn release(&self, posting: NamedPosting) -> Answer {
        self.post_named(Op::Release, &posting).await
    }

    /// Books the legs at once, or refuses them.
    pub async fn post(&self, posting: NamedPosting) -> Answer {
        self.post_named(Op::Post, &posting).await
    }

    /// Reads the recorded outcome of a posting. `round` is of no meaning for a SETTLE and a
    /// RELEASE: both end all rounds.
    pub async fn query_posting(&self, transaction: ReqId, op: Op, round: u8) -> Answer {
        match self.put(query_named(transaction, op, round)).await {
            Ok(found) => answer(transaction, Some(found)),
            Err(_) => Answer::without_record(Outcome::Timeout),
        }
    }

    /// The failing leg of a refused posting, from 0; `None` without a recorded refusal.
    ///
    /// # Errors
    /// [`Unanswered`].
    pub async fn failing_leg(
        &self,
        transaction: ReqId,
        op: Op,
        round: u8,
    ) -> Result<Option<u8>, Unanswered> {
        match self.put(query_named(transaction, op, round)).await? {
            EngineAnswer::QueryNamed(found) => {
                Ok(found.filter(|named| named.decision != Decision::Success).map(|named| named.leg))
            }
            _ => Err(Unanswered::Silent),
        }
    }

    async fn post_named(&self, op: Op, posting: &NamedPosting) -> Answer {
        let pending = self.engine.lock().submit_named(op, posting, self.clock.now_ns());
        let Ok(pending) = pending else {
            return Answer::without_record(Outcome::Unknown(Reason::Overloaded));
        };
        let mut deadline = self.clock.sleep(self.timeout);
        answer(posting.transaction, wait(pending, &mut deadline).await)
    }
}

fn query_named(transaction: ReqId, op: Op, round: u8) -> Command {
    Command::QueryNamed { transaction: transaction.number(), op, round }
}

impl Spot {
    /// Decides orders, each by `command`.
    async fn decide(&self, asks: &[Ask], command: impl Fn(Order) -> Command) -> Vec<Answer> {
        let mut refused = Vec::with_capacity(asks.len());
        let mut commands = Vec::with_capacity(asks.len());
        for ask in asks {
            let checked = self.check(ask);
            refused.push(checked.err());
            if checked.is_ok() {
                commands.push((ask.intent.req_id, command(Order::new(&ask.intent, ask.op))));
            }
        }
        let mut answers = Vec::with_capacity(commands.len());
        // A start may ask for thousands: in shares, because most would find the ring full.
        let share = self.engine.lock().share();
        for share in commands.chunks(share) {
            let together = share.iter().map(|(_, command)| *command);
            let pending = self.engine.lock().submit_all(together, self.clock.now_ns());
            assert_eq!(pending.len(), share.len(), "one place or refusal an order");
            let mut deadline = self.clock.sleep(self.timeout);
            let mut backwards = Vec::with_capacity(share.len());
            // The last one first: UBSCore answers in order, so one wake is enough for all.
            for ((req_id, _), pending) in share.iter().zip(pending).rev() {
                backwards.push(match pending {
                    Err(Overloaded) => Answer::without_record(Outcome::Unknown(Reason::Overloaded)),
                    Ok(pending) => answer(req_id, wait(pending, &mut deadline).await),
                });
            }
            answers.extend(backwards.into_iter().rev());
        }
        assert_eq!(answers.len(), commands.len(), "one answer an order");
        let mut answers = answers.into_iter();
        let answer_to = |refused: Option<Code>| match refused {
            // Nothing is recorded, so this is no refusal. The form was checked at accept: a failure
            // here is a bug.
            Some(_) => Answer::without_record(Outcome::Unknown(Reason::Malformed)),
            None => answers.next().expect("one each"),
        };
        refused.into_iter().map(answer_to).collect()
    }
}
