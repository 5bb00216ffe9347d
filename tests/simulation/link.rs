//! The connection of the worker of transactions of one process: calls that are lost, late, carried
//! out without an answer, or refused.
//!
//! A call is carried out at one moment, whole or not at all, whether or not its client still
//! listens.

use std::sync::Arc;
use std::time::Duration;

use domain::transfer::ReqId;
use jiff::Timestamp;
use tokio::sync::oneshot;
use ubscore::postgres::transactions::{
    Accepted, Found, Landed, RoundAccept, TransactionError, TransactionMove, TransactionStore,
    UnfinishedPage,
};
use ubscore::transaction::{TransactionName, TransactionRow, TransactionState};

use super::postgres::{Fate, Postgres};
use super::process::Process;
use super::world::{Bug, Point, World};

/// A client's time limit for a call.
const CALL_LIMIT: Duration = Duration::from_millis(60);

type Done<T> = Result<T, TransactionError>;

/// See the module.
pub(super) struct TransactionLink {
    world: Arc<World>,
    process: Arc<Process>,
}

impl TransactionLink {
    pub(super) fn new(world: Arc<World>, process: Arc<Process>) -> TransactionLink {
        TransactionLink { world, process }
    }

    fn fate(&self) -> Fate {
        use Fate::*;
        match self.world.fault(self.world.plan.postgres_fault_one_in) {
            false => Arrives,
            true => self.world.pick(&[
                NoConnection,
                Lost,
                AnswerLost,
                AnswerLost,
                Late,
                Late,
                FenceHeld,
                Refused,
            ]),
        }
    }

    async fn call<T: Send + 'static>(
        &mut self,
        what: &'static str,
        call: impl FnOnce(&mut Postgres, Option<Bug>) -> Done<T> + Send + 'static,
    ) -> Done<T> {
        self.process.awake().await;
        let fate = self.fate();
        let (up, life) = {
            let postgres = self.world.postgres.lock();
            (postgres.up, postgres.lives)
        };
        if !up || matches!(fate, Fate::NoConnection | Fate::FenceHeld | Fate::Refused) {
            let knock = self.world.chance().micros(100, 5_000);
            self.world.time.sleep(knock).await;
            self.process.awake().await;
            return Err(TransactionError::Refused("a fault".to_owned()));
        }
        let (answer_to, answer) = oneshot::channel();
        let (world, incarnation) = (Arc::clone(&self.world), self.process.number);
        self.world.spawn(async move {
            let travel = world.chance().micros(50, world.plan.travel_us_max);
            let late = CALL_LIMIT * if fate == Fate::Late { 2 } else { 0 };
            world.time.sleep(travel + late).await;
            world.point(Point::FlightArrived);
            if fate == Fate::Lost || world.postgres.lock().lives != life {
                return;
            }
            let done = world.carry_out_call((incarnation, what), call);
            world.point(Point::FlightDone);
            let travel = world.chance().micros(50, world.plan.travel_us_max);
            world.time.sleep(travel).await;
            if fate != Fate::AnswerLost && world.postgres.lock().lives == life {
                // A send error means that the client has given up.
                drop(answer_to.send(done));
            }
        });
        match self.process.within(CALL_LIMIT, answer).await {
            Some(Ok(done)) => done,
            Some(Err(_)) => Err(TransactionError::Unknown("the connection is lost".to_owned())),
            None => Err(TransactionError::Unknown("no answer in time".to_owned())),
        }
    }
}

impl World {
    /// One statement, at one moment. Written rows are shown to the judge.
    fn carry_out_call<T>(
        &self,
        (incarnation, what): (u64, &'static str),
        call: impl FnOnce(&mut Postgres, Option<Bug>) -> Done<T>,
    ) -> Done<T> {
        let mut postgres = self.postgres.lock();
        postgres.set_time(self.time.now_ns());
        let done = call(&mut postgres, self.plan.bug);
        let (latest, written) = (postgres.incarnation, postgres.transacted.take_written());
        drop(postgres);
        let error = done.as_ref().err().map(ToString::to_string);
        self.trace(format_args!("{what} of process {incarnation}: {error:?}"));
        let mut law = self.law.lock();
        law.claim(
            written.is_empty() || incarnation == latest,
            "L11 one incarnation writes",
            || format!("{what} of incarnation {incarnation} after {latest} had begun"),
        );
        for row in written {
            self.trace(format_args!("{} {}", row.name.tx_id.as_str(), row.state.name()));
            law.transaction(&row);
        }
        done
    }
}

/// A row as the worker reads it: with one planted bug, every decision seems to be sealed.
fn read(row: TransactionRow, bug: Option<Bug>) -> TransactionRow {
    let lies = bug == Some(Bug::SealIgnored) && row.state == TransactionState::Committed;
    TransactionRow { sealed: row.sealed || lies, ..row }
}

/// Whether the answer to a round comes from a read behind its flight.
fn needs_row(accepted: &Result<Accepted, TransactionError>) -> bool {
    match accepted {
        Ok(Accepted::Taken { row, replayed }) => *replayed || row.rounds > 1,
        Ok(Accepted::Refused { row, .. }) => row.is_some(),
        Err(_) => false,
    }
}

impl TransactionStore for TransactionLink {
    async fn flight(
        &mut self,
        moves: &[TransactionMove],
        accepts: &[&RoundAccept],
        at: Timestamp,
    ) -> Done<Landed> {
        let (moves, incarnation) = (moves.to_vec(), self.process.number);
        let accepts: Vec<RoundAccept> = accepts.iter().map(|accept| (*accept).clone()).collect();
        // The rows behind a written flight cannot be read.
        let unread = !accepts.is_empty()
            && self.world.fault(self.world.plan.postgres_fault_one_in)
            && self.world.chance().one_in(4);
        let call = move |postgres: &mut Postgres, bug| {
            let mut landed = postgres.fly_transactions(incarnation, (&moves, &accepts), at, bug)?;
            let met = landed.accepted.iter_mut().filter(|accepted| needs_row(accepted));
            for accepted in met.filter(|_| unread) {
                *accepted = Err(TransactionError::Unknown("a fault".to_owned()));
            }
            Ok(landed)
        };
        self.call("flight", call).await
    }

    async fn cancel_unknown(
        &mut self,
        accept: &RoundAccept,
        by: &str,
        reason: Option<&str>,
    ) -> Done<TransactionRow> {
        let (accept, incarnation) = (accept.clone(), self.process.number);
        let (by, reason) = (by.to_owned(), reason.map(str::to_owned));
        let call = move |postgres: &mut Postgres, bug| {
            postgres.cancel_unknown(incarnation, &accept, (&by, reason.as_deref()), bug)
        };
        self.call("cancel", call).await
    }

    async fn find_all(&mut self, names: &[&TransactionName]) -> Done<Vec<Found>> {
        let names: Vec<TransactionName> = names.iter().map(|name| (*name).clone()).collect();
        let call = move |postgres: &mut Postgres, bug| {
            let find = |name| postgres.transacted.find(name).cloned().map(|row| read(row, bug));
            Ok(names.iter().map(|name| Ok(find(name))).collect())
        };
        self.call("find", call).await
    }

    async fn unfinished(&mut self, above: u64, limit: usize) -> Done<UnfinishedPage> {
        let call = move |postgres: &mut Postgres, bug| {
            let rows = postgres.unfinished_transactions(above, limit).into_iter();
            let rows: Vec<TransactionRow> = rows.map(|row| read(row, bug)).collect();
            let next = rows.last().map(|row| row.order_number).filter(|_| rows.len() == limit);
            Ok(UnfinishedPage { rows, unreadable: Vec::new(), next })
        };
        self.call("unfinished", call).await
    }

    async fn decided(&mut self) -> Done<Vec<ReqId>> {
        self.call("decided", |postgres: &mut Postgres, _| Ok(postgres.unsealed())).await
    }
}
