//! The model of PostgreSQL as the production store sees it: flights that are written blind, and
//! reads. A connection loses and delays messages.
//!
//! A flight is carried out at one moment, whole or not at all, whether or not its client still
//! listens.

use std::sync::Arc;
use std::time::Duration;

use domain::account::{AccountStatus, UserId};
use domain::code::Code;
use domain::hold::{Hold, HoldState};
use domain::transfer::{Decision, Intent, Op, Participant};
use jiff::Timestamp;
use tokio::sync::oneshot;
use ubscore::postgres::flight::{
    Balance, Compared, Decided, Flight, Found, Journal, Last, Operation, Stopped, Told, Wanted,
};
use ubscore::postgres::store::{Failure, Page, Transfer, Unfinished};

use super::law::Law;
use super::postgres::{Fact, Fate, Passed, Postgres, Row, admits, said};
use super::process::Process;
use super::world::{Bug, Point, World};

/// A client's time limit for a flight.
const FLIGHT_LIMIT: Duration = Duration::from_millis(60);

/// One flight on its way.
#[derive(Clone, Debug)]
pub(super) struct Carried {
    incarnation: u64,
    shard: u32,
    flight: Flight,
}

impl Postgres {
    /// Carries out a flight, and rolls it back at the end if its fate demands it. Committed changes
    /// are shown to the judge.
    pub(super) fn fly(
        &mut self,
        carried: &Carried,
        law: &mut Law,
        fate: Fate,
        bug: Option<Bug>,
    ) -> Result<(), Stopped> {
        let Carried { incarnation, shard, flight } = carried;
        let done = self.pass_fence(carried, fate, bug).and_then(|()| self.write(flight, bug));
        let commit = done.is_ok() && !matches!(fate, Fate::HeldUp | Fate::Refused);
        self.end(commit);
        if commit {
            law.wrote(*incarnation, self.incarnation, *shard, flight.number);
            law.expect_flight(*shard, flight);
            self.show_facts(law);
        }
        self.facts.clear();
        match done {
            Ok(()) if commit || bug == Some(Bug::CommitIgnored) => Ok(()),
            Ok(()) if fate == Fate::HeldUp => {
                // Another session holds rows of several users.
                let users = flight.balances.iter().rev().take(2).map(|row| row.user).collect();
                let moved = flight.moved.iter().rev().take(2);
                let req_ids = moved.map(|moved| moved.to.transfer.intent.req_id).collect();
                Err(Stopped::Held { users, req_ids, source: said("lock timeout") })
            }
            Ok(()) => Err(Stopped::Refused { violation: false, source: said("out of range") }),
            Err(stopped) => {
                if let Stopped::Refused { violation: true, .. } = stopped {
                    // It is refused, and no correct process sends it.
                    law.breach("no caller breaks the protocol", format!("{flight:?}"));
                }
                Err(stopped)
            }
        }
    }

    fn pass_fence(
        &mut self,
        carried: &Carried,
        fate: Fate,
        bug: Option<Bug>,
    ) -> Result<(), Stopped> {
        let Carried { incarnation, shard, flight } = carried;
        if fate == Fate::FenceHeld {
            return Err(Stopped::Blocked(said("lock timeout")));
        }
        let (last, row) = self.last(*shard);
        let durable = row.durable.max(flight.durable);
        let row = Row { attempt: flight.attempt, durable, ..row };
        let misses_fence = match bug {
            Some(Bug::FenceUnchecked) => row.incarnation != *incarnation,
            Some(Bug::LateFlightCommitted) => last >= flight.number,
            _ => false,
        };
        if misses_fence {
            self.journal.set((*shard, last + 1), row);
            return Ok(());
        }
        let before = self.journal.get(&(*shard, flight.number - 1));
        let follows = before.is_some_and(|before| before.incarnation == *incarnation);
        if !follows && bug != Some(Bug::PredecessorUnchecked) {
            return Err(Stopped::Predecessor);
        }
        match self.journal.get(&(*shard, flight.number)) {
            Some(taken) if taken.incarnation != *incarnation => return Err(Stopped::Superseded),
            Some(_) => return Err(Stopped::Number),
            None => {}
        }
        self.journal.set((*shard, flight.number), Row { incarnation: *incarnation, ..row });
        Ok(())
    }

    /// The rows of a flight. Unique keys come first, comparisons last.
    fn write(&mut self, flight: &Flight, bug: Option<Bug>) -> Result<(), Stopped> {
        for row in &flight.accepted {
            let intent = &row.transfer.intent;
            let (number, name) = (intent.order_number, intent.req_id.number());
            let cid = intent.cid.as_ref();
            let cid = cid.map(|cid| (intent.user.number(), cid.as_str().to_owned()));
            let known = cid.as_ref().is_some_and(|cid| self.cids.get(cid).is_some());
            let forgotten = known && bug == Some(Bug::CidForgotten);
            let taken = self.transfers.get(&number).is_some() || self.names.get(&name).is_some();
            if taken || known && !forgotten {
                return Err(Stopped::Taken { ours: taken, source: said("duplicate key") });
            }
            self.names.set(name, number);
            if let Some(cid) = cid {
                self.cids.set(cid, number);
            }
            self.facts.push(Fact::Accepted(intent.clone()));
            for done in &row.operations {
                self.write_operation(&row.transfer, *done, bug);
            }
            let next = row.next_retry_at.map(milliseconds);
            self.keep(row.transfer.clone(), next);
        }
        let mut differs = None;
        for moved in &flight.moved {
            let to = &moved.to.transfer;
            let number = to.intent.order_number;
            match &self.transfers.get(&number).cloned() {
                Some((stands, stands_next))
                    if stands.state == moved.from && stands.intent == to.intent =>
                {
                    if !admits(moved.from, to.state) {
                        return Err(Stopped::Refused { violation: true, source: said("no way") });
                    }
                    let mut next = moved.to.next_retry_at.map(milliseconds);
                    let mut to = Transfer {
                        created_at: stands.created_at,
                        fingerprint: stands.fingerprint.clone(),
                        ..to.clone()
                    };
                    if !moved.tries {
                        (to.retry_count, next) = (stands.retry_count, *stands_next);
                    }
                    for done in &moved.to.operations {
                        if !self.is_undecided(&to, done.op) {
                            differs = differs.or(Some(Compared::Transfers));
                        }
                        self.write_operation(&to, *done, bug);
                    }
                    self.keep(to, next);
                }
                _ => differs = differs.or(Some(Compared::Transfers)),
            }
        }
        for deferred in &flight.deferred {
            let number = self.names.get(&deferred.req_id.number()).copied();
            let row = number.and_then(|number| self.transfers.get(&number)).cloned();
            if let Some((mut transfer, _)) = row
                && transfer.state == deferred.state
            {
                transfer.retry_count = deferred.retry_count.min(i32::MAX.unsigned_abs());
                let next = Some(milliseconds(deferred.next_retry_at));
                self.transfers.set(transfer.intent.order_number, (transfer, next));
            }
        }
        for (_, passed, transfer) in flight.events() {
            let (attempt, reason) = (passed.attempt, passed.reason);
            let passed = Passed { states: passed.states.clone(), attempt, reason };
            self.facts.push(Fact::Passed(transfer.intent.req_id.number(), passed));
        }
        for Decided { external, decision, balance_after } in &flight.externals {
            if self.externals.get(&external.idem_key).is_some() {
                return Err(Stopped::Taken { ours: false, source: said("duplicate key") });
            }
            let effect = external.op.effect(*decision, external.amount.units());
            if effect != 0 {
                let (user, asset) = (external.user.number(), external.asset.0);
                self.facts.push(Fact::External(user, asset, effect));
            }
            let row = (external.clone(), decision.code(), balance_after.unwrap_or(0));
            self.externals.set(external.idem_key.clone(), row);
        }
        for row in &flight.accounts {
            let stands = self.accounts.get(&row.user.number()).copied();
            if stands != row.before {
                differs = differs.or(Some(Compared::Accounts));
            }
            let forgets = bug == Some(Bug::StatusIgnored) && row.before.is_some();
            if let Some(after) = row.after.filter(|_| row.after != row.before && !forgets) {
                self.accounts.set(row.user.number(), after);
            }
        }
        for row in &flight.holds {
            let key = row.key.as_str().to_owned();
            let blind = matches!(bug, Some(Bug::SettledBehindRelease | Bug::RepeatSettlesTwice));
            if self.holds.get(&key).copied() != row.before && !blind {
                differs = differs.or(Some(Compared::Holds));
            }
            self.holds.set(key, row.after);
        }
        for row in &flight.freezes {
            let key = (row.user.number(), row.asset.0, row.purpose);
            if self.freezes.get(&key).copied() != row.before {
                differs = differs.or(Some(Compared::Freezes));
            }
            // With a planted bug, money that is set apart stays in the freeze too.
            let least = if bug == Some(Bug::FreezeStays) { row.before } else { None };
            self.freezes.set(key, row.after.max(least.unwrap_or(0)));
            self.facts.push(Fact::Freeze(key.0, key.1, key.2));
        }
        self.facts.extend(flight.acts.iter().cloned().map(Fact::Hold));
        for row in &flight.balances {
            let key = (row.user.number(), row.asset.0);
            let frozen = self.frozen_of(key.0, key.1);
            let stands = self.balances.get(&key).map(|row| (row.0, frozen, row.1));
            let before = row.before.map(|before| (before.available, before.frozen, before.version));
            if stands != before && bug != Some(Bug::BalanceUnchecked) {
                differs = differs.or(Some(Compared::Balances));
            }
            if let Some(after) = row.after {
                if after.available < 0 && !self.special.contains(&key) {
                    let source = said("a balance below zero");
                    return Err(Stopped::Refused { violation: true, source });
                }
                let undone = unpaid_refunds(flight, key, self, bug);
                let kept = match bug {
                    Some(Bug::HoldStaysAvailable) => after.frozen.saturating_sub(frozen),
                    _ => 0,
                };
                self.frozen.set(key, after.frozen);
                let kept = i128::try_from(kept).expect("a sum of amounts");
                self.set_balance(key.0, key.1, after.available - undone + kept);
            }
        }
        if bug == Some(Bug::ArrivingAvailable) {
            let tried = flight.holds.iter().filter(|row| row.before.is_none() && row.after.paid);
            for row in tried {
                let (user, asset) = (row.after.user.number(), row.after.asset.0);
                self.bring_early(row.key.as_str(), user, asset);
            }
        }
        let accepted = flight.accepted.iter().map(|row| row.transfer.intent.order_number);
        let externals = flight.externals.iter().map(|row| row.external.order_number);
        let apart = flight.holds.iter().filter(|row| row.before.is_none());
        let apart = apart.map(|row| row.after.order_number);
        if accepted.chain(externals).chain(apart).any(|number| number < self.watermark) {
            return Err(Stopped::Refused { violation: true, source: said("below the watermark") });
        }
        differs.map_or(Ok(()), |compared| Err(Stopped::Differs(compared)))
    }

    /// With a planted bug, the money that a transaction brings is available at its try.
    fn bring_early(&mut self, key: &str, user: u64, asset: u32) {
        let id = key.split(':').next().unwrap_or_default();
        let Some(row) = self.transacted.with_id(id) else { return };
        let legs = row.branches.iter().filter(|branch| branch.party.name() == "FUNDING");
        let legs = legs.flat_map(|branch| &branch.legs);
        let arriving = legs.filter(|leg| {
            let to = leg.to.user_in(Participant::Funding).map(UserId::number);
            (to, leg.asset.0) == (Some(user), asset)
        });
        let arriving: i128 = arriving.map(|leg| i128::from(leg.amount)).sum();
        if let Some(&(available, _)) = self.balances.get(&(user, asset)) {
            self.set_balance(user, asset, available + arriving);
        }
    }

    /// A decision that stands is never replaced, and a refund rests on a withdrawal that stands.
    fn is_undecided(&self, transfer: &Transfer, op: Op) -> bool {
        let recorded =
            |op: Op| self.operations.get(&(transfer.intent.req_id.number(), op.number()));
        let undone = op.row().undoes.map(recorded);
        recorded(op).is_none()
            && undone.is_none_or(|undone| undone.is_some_and(|row| row.3.is_none()))
    }

    fn write_operation(&mut self, transfer: &Transfer, row: Operation, bug: Option<Bug>) {
        let intent = &transfer.intent;
        let key = (intent.req_id.number(), row.op.number());
        let mut code = row.decision.code();
        if is_unpaid(intent, row.op, self, bug) && bug == Some(Bug::RefundRefused) {
            code = Some(Code::AccountDisabled);
        }
        let forgets = match bug {
            Some(Bug::RefundByReqIdOnly) => row.op == Op::Refund,
            Some(Bug::RefusalNotRecorded) => code.is_some(),
            Some(Bug::SelectWithoutInsert) => true,
            _ => false,
        };
        if !forgets {
            let operation = (intent.user.number(), intent.asset.0, intent.amount.units(), code);
            self.operations.set(key, operation);
            if let Some(after) = row.balance_after {
                self.behind.set(key, after);
            }
            self.facts.push(Fact::Operation(key.0, row.op, operation));
        }
    }

    /// Reads rows.
    fn find(&self, wanted: &Wanted, bug: Option<Bug>) -> Found {
        let mut found = Found::default();
        for user in &wanted.accounts {
            let status = self.accounts.get(&user.number());
            found.accounts.extend(status.map(|status| (*user, *status)));
        }
        for (user, asset) in &wanted.balances {
            let row = self.balances.get(&(user.number(), asset.0));
            let frozen = self.frozen_of(user.number(), asset.0);
            let balance = |&(available, version)| Balance { available, frozen, version };
            found.balances.extend(row.map(|row| (*user, *asset, balance(row))));
        }
        for req_id in &wanted.transfers {
            found.transfers.extend(self.read(req_id.number()));
        }
        for (user, cid) in &wanted.cids {
            let number = self.cids.get(&(user.number(), cid.as_str().to_owned()));
            let number = number.filter(|_| bug != Some(Bug::CidForgotten));
            let row = number.and_then(|number| self.transfers.get(number));
            found.transfers.extend(row.map(|(transfer, _)| transfer.clone()));
        }
        for idem_key in &wanted.externals {
            let row = self.externals.get(idem_key);
            found.externals.extend(row.map(|(external, code, after)| Decided {
                external: external.clone(),
                decision: code.map_or(Decision::Success, Decision::Refused),
                balance_after: code.is_none().then_some(*after),
            }));
        }
        for key in &wanted.holds {
            let row = self.holds.get(&key.as_str().to_owned()).copied();
            let row = match (bug, row) {
                (Some(Bug::RepeatSettlesTwice), Some(hold)) if hold.state == HoldState::Settled => {
                    None
                }
                (Some(Bug::SettledBehindRelease), Some(hold))
                    if hold.state == HoldState::Released =>
                {
                    Some(Hold { state: HoldState::Held, ..hold })
                }
                (_, row) => row,
            };
            found.holds.extend(row.map(|hold| (key.clone(), hold)));
        }
        for key in &wanted.freezes {
            let (user, asset, purpose) = *key;
            let row = self.freezes.get(&(user.number(), asset.0, purpose));
            found.freezes.extend(row.map(|units| (*key, *units)));
        }
        found
    }
}

/// Whether a planted bug keeps this refund from its account.
fn is_unpaid(intent: &Intent, op: Op, postgres: &Postgres, bug: Option<Bug>) -> bool {
    let status = postgres.accounts.get(&intent.user.number());
    op == Op::Refund
        && match bug {
            Some(Bug::RefundByReqIdOnly) => true,
            Some(Bug::RefundRefused) => status != Some(&AccountStatus::Active),
            _ => false,
        }
}

/// The units that a planted bug keeps from a balance.
fn unpaid_refunds(flight: &Flight, key: (u64, u32), postgres: &Postgres, bug: Option<Bug>) -> i128 {
    let rows = flight.operations().map(|(transfer, row)| (&transfer.intent, row.op));
    let rows = rows.filter(|(intent, _)| (intent.user.number(), intent.asset.0) == key);
    let unpaid = rows.filter(|(intent, op)| is_unpaid(intent, *op, postgres, bug));
    unpaid.map(|(intent, _)| i128::from(intent.amount.units())).sum()
}

fn milliseconds(time: Timestamp) -> u64 {
    u64::try_from(time.as_millisecond()).expect("after 1970")
}

/// The streams of one shard of one process.
pub(super) struct Streams {
    pub(super) world: Arc<World>,
    pub(super) incarnation: u64,
    pub(super) shard: u32,
}

impl Told for Streams {
    fn committed(&self, flight: &Flight) {
        self.world.law.lock().sent(self.incarnation, self.shard, flight);
    }
}

/// A connection of one shard of one process.
pub(super) struct Connection {
    world: Arc<World>,
    process: Arc<Process>,
    shard: u32,
}

impl Connection {
    pub(super) fn new(world: Arc<World>, process: Arc<Process>, shard: u32) -> Connection {
        Connection { world, process, shard }
    }

    fn fate(&self) -> Fate {
        use Fate::*;
        let rate = self.world.plan.postgres_fault_one_in;
        if !self.world.fault(rate) {
            return Arrives;
        }
        self.world.pick(&[
            NoConnection,
            Lost,
            AnswerLost,
            AnswerLost,
            Late,
            Late,
            Doubled,
            FenceHeld,
            HeldUp,
            Refused,
        ])
    }

    /// The way of a flight through the network and the server; it continues without its client.
    async fn carry(
        world: Arc<World>,
        carried: Carried,
        fate: Fate,
        life: u64,
        answer: oneshot::Sender<Result<(), Stopped>>,
    ) {
        let travel = world.chance().micros(50, world.plan.travel_us_max);
        let late = FLIGHT_LIMIT * if fate == Fate::Late { 2 } else { 0 };
        world.time.sleep(travel + late).await;
        world.point(Point::FlightArrived);
        if fate == Fate::Lost || world.postgres.lock().lives != life {
            return;
        }
        let done = world.carry_out(&carried, fate);
        world.point(Point::FlightDone);
        // Only a flight that was written is recognized when it comes a second time.
        if fate == Fate::Doubled && done.is_ok() {
            let (world, late) = (Arc::clone(&world), world.chance().micros(10, 200_000));
            let twin = carried.clone();
            let server = Arc::clone(&world);
            server.spawn(async move {
                world.time.sleep(late).await;
                if world.postgres.lock().lives == life {
                    drop(world.carry_out(&twin, Fate::Arrives));
                }
            });
        }
        let travel = world.chance().micros(50, world.plan.travel_us_max);
        world.time.sleep(travel).await;
        // The server's end discards all answers that were not yet sent.
        if fate != Fate::AnswerLost && world.postgres.lock().lives == life {
            // A send error means that the client has given up.
            drop(answer.send(done));
        }
    }

    /// A question, with the fate of its answer.
    async fn ask<T>(&self, read: impl FnOnce(&mut Postgres) -> T) -> Result<T, Failure> {
        self.process.awake().await;
        let fate = self.fate();
        let travel = self.world.chance().micros(100, self.world.plan.travel_us_max * 2);
        self.world.time.sleep(travel).await;
        self.process.awake().await;
        let mut postgres = self.world.postgres.lock();
        if !postgres.up || matches!(fate, Fate::NoConnection) {
            return Err(Failure::Unreachable(said("no connection")));
        }
        if matches!(fate, Fate::Lost | Fate::AnswerLost | Fate::Late) {
            return Err(Failure::Unreachable(said("the connection is lost")));
        }
        postgres.set_time(self.world.time.now_ns());
        Ok(read(&mut postgres))
    }
}

impl World {
    /// One transaction, at one moment.
    fn carry_out(&self, carried: &Carried, fate: Fate) -> Result<(), Stopped> {
        let mut postgres = self.postgres.lock();
        postgres.set_time(self.time.now_ns());
        let bug = self.plan.bug;
        let done = postgres.fly(carried, &mut self.law.lock(), fate, bug);
        let Carried { incarnation, shard, flight } = carried;
        self.trace(format_args!(
            "flight {incarnation}/{shard}/{}: {} accepted, {} moved, {} external: {done:?}",
            flight.number,
            flight.accepted.len(),
            flight.moved.len(),
            flight.externals.len(),
        ));
        done
    }
}

impl Journal for Connection {
    async fn last(&mut self) -> Result<Option<Last>, Failure> {
        let (shard, incarnation) = (self.shard, self.process.number);
        self.ask(move |postgres| {
            let (number, row) = postgres.last(shard);
            let last = Last { number, attempt: row.attempt };
            (row.incarnation == incarnation).then_some(last)
        })
        .await
    }

    async fn fly(&mut self, flight: &Flight) -> Result<(), Stopped> {
        self.process.awake().await;
        let fate = self.fate();
        let (up, life) = {
            let postgres = self.world.postgres.lock();
            (postgres.up, postgres.lives)
        };
        if !up || fate == Fate::NoConnection {
            let knock = self.world.chance().micros(100, 5_000);
            self.world.time.sleep(knock).await;
            self.process.awake().await;
            return Err(Stopped::Unreachable(said("no connection")));
        }
        let (incarnation, shard) = (self.process.number, self.shard);
        let carried = Carried { incarnation, shard, flight: flight.clone() };
        let (answer_to, answer) = oneshot::channel();
        let world = Arc::clone(&self.world);
        self.world.spawn(Connection::carry(world, carried, fate, life, answer_to));
        let bug = self.world.plan.bug;
        if bug == Some(Bug::AnsweredBeforeJournal) {
            return Ok(());
        }
        let why = match self.process.within(FLIGHT_LIMIT, answer).await {
            Some(Ok(done)) => return done,
            Some(Err(_)) => said("the connection is lost"),
            None => said("no answer in time"),
        };
        let absent = || self.world.postgres.lock().last(shard).0 < flight.number;
        match bug {
            Some(Bug::AbsenceTrusted) if absent() => Err(Stopped::Unreachable(why)),
            _ => Err(Stopped::Unknown(why)),
        }
    }

    async fn read(&mut self, wanted: &Wanted) -> Result<Found, Failure> {
        let (wanted, bug) = (wanted.clone(), self.world.plan.bug);
        self.ask(move |postgres| postgres.find(&wanted, bug)).await
    }

    async fn unfinished(&mut self, filter: Unfinished) -> Result<Page, Failure> {
        self.ask(move |postgres| postgres.page(filter)).await
    }
}
