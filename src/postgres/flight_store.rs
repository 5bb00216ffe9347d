//! The store that decides in the process and writes each batch as one flight.
//!
//! ```text
//!   calls --> rows that are missing are read --> Draft decides --> Journal commits the flight
//!     ^                                                                  |
//!     +--- PostgreSQL holds other rows: they are read, and it is decided anew
//! ```
//!
//! A flight of unknown end is settled first, by an empty flight under its number. Until then
//! nothing is decided, because the rows of that flight may still change. Every batch flies, also
//! one that only reads: its commit proves that no later incarnation has begun, and that no flight
//! given up before it can follow.

use std::sync::Arc;

use arc_swap::ArcSwap;
use jiff::Timestamp;
use tracing::warn;

use super::flight::difference::Differences;
use super::flight::draft::{Answer, Draft, Known, Objection, wanted, wanted_behind};
use super::flight::memory::Memory;
use super::flight::{Compared, EventIds, Flight, Journal, Last, Source, Stopped, Told};
use super::store::{Call, Failure, Page, Reply, Standing, Store, Unfinished};
use crate::clock::Clock;
use crate::telemetry::chain;
use domain::account::UserId;
use domain::asset::Catalog;
use domain::transfer::ReqId;

/// Flights of one batch that may meet other rows. The first one rests on memory. The next one rests
/// on rows that were just read, so their owner is in the way.
const MISMATCHES_MAX: usize = 2;

/// See the head of this file.
pub struct FlightStore<J> {
    journal: J,
    catalog: Arc<ArcSwap<Catalog>>,
    clock: Arc<dyn Clock>,
    memory: Memory,
    events: Arc<EventIds>,
    told: Arc<dyn Told>,
    /// The number of the shard's last flight; `None`: to be read.
    last: Option<u64>,
    /// A flight that may have been committed.
    unknown: Option<Flight>,
    /// Flights of unknown end that stand. They are told behind the next commit: it waits for the
    /// standby that their own wait may not have reached.
    stood: Vec<Flight>,
    /// Flights sent so far.
    attempts: u64,
}

/// The store cannot decide it now.
#[derive(Debug, thiserror::Error)]
enum Undecided {
    #[error("another session changes rows of Funding: {0}")]
    Changing(Differences),
    #[error("the last flight of this shard is not the one of this process")]
    Predecessor,
    #[error("a call cannot be part of a flight: {0}")]
    Objection(String),
}

impl<J: Journal> FlightStore<J> {
    /// A store over `journal`. `events`: of all shards. `told`: gets each flight that is committed.
    /// `users_max`: the most users in its memory.
    pub fn new(
        journal: J,
        catalog: Arc<ArcSwap<Catalog>>,
        clock: Arc<dyn Clock>,
        events: Arc<EventIds>,
        told: Arc<dyn Told>,
        users_max: usize,
    ) -> FlightStore<J> {
        let memory = Memory::new(users_max);
        FlightStore {
            journal,
            catalog,
            clock,
            memory,
            events,
            told,
            last: None,
            unknown: None,
            stood: Vec::new(),
            attempts: 0,
        }
    }

    /// Settles a flight of unknown end. Returns the number of the last flight.
    async fn settle(&mut self, standing: Standing) -> Result<u64, Failure> {
        if let Some(unknown) = &self.unknown {
            let number = unknown.number;
            // One of the two commits, and the other one never can.
            self.attempts += 1;
            let (attempt, at) = (self.attempts, self.now());
            let empty = self.departs(Flight { at, ..Flight::default() }, number, attempt, standing);
            let last = match self.journal.fly(&empty).await {
                Ok(()) => Last { number, attempt },
                // An earlier empty flight may have the number. Or PostgreSQL has gone back, and the
                // audit has accepted its rows: the connection has passed its check.
                Err(Stopped::Number | Stopped::Predecessor) => {
                    self.journal.last().await?.ok_or(Failure::Fenced)?
                }
                Err(stopped) => return Err(failure(stopped)),
            };
            let stands = last == Last { number, attempt: unknown.attempt };
            warn!(
                flight = number,
                last = last.number,
                stands,
                "a flight of unknown end is settled"
            );
            let unknown = self.unknown.take().expect("it is some");
            match stands {
                true => {
                    self.memory.advance(&unknown);
                    self.stood.push(unknown);
                }
                false if last.number < number => self.memory.forget(&unknown),
                false => {}
            }
            self.last = Some(last.number);
        }
        if self.last.is_none() {
            let last = self.journal.last().await?.ok_or(Failure::Fenced)?;
            self.last = Some(last.number);
        }
        Ok(self.last.expect("set above"))
    }

    /// Gives a flight its number, and its events their ids.
    fn departs(&self, flight: Flight, number: u64, attempt: u64, standing: Standing) -> Flight {
        let Standing { durable, open_from } = standing;
        let event_first = self.events.take(flight.event_count());
        Flight { number, attempt, durable, open_from, event_first, ..flight }
    }

    /// The time, as exact as PostgreSQL keeps it.
    fn now(&self) -> Timestamp {
        let us = i64::try_from(self.clock.now_ns() / 1_000).expect("a time before the year 294247");
        Timestamp::from_microsecond(us).expect("a time after 1970")
    }

    /// Reads the rows that the decision of these calls lacks.
    async fn read(&mut self, calls: &[Call], known: &mut Known) -> Result<(), Failure> {
        // Twice: a payment that was read may name the key of its credit.
        for _ in 0..2 {
            let missing = wanted(calls, &self.memory, known);
            if missing.is_empty() {
                return Ok(());
            }
            let found = self.journal.read(&missing).await?;
            self.memory.learn(&missing, &found);
            known.learn(&missing, found);
        }
        assert!(wanted(calls, &self.memory, known).is_empty(), "everything wanted is read");
        Ok(())
    }

    /// The replies of a committed flight. Calls that only read are answered behind it.
    async fn answer(
        &mut self,
        calls: &[Call],
        answers: Vec<Answer>,
    ) -> Result<Vec<Reply>, Failure> {
        let mut replies = Vec::with_capacity(calls.len());
        for (call, answer) in calls.iter().zip(answers) {
            replies.push(match answer {
                Answer::Reply(reply) => reply,
                Answer::Read => self.look(call).await?,
            });
        }
        Ok(replies)
    }

    /// The reply to a call that only reads.
    async fn look(&mut self, call: &Call) -> Result<Reply, Failure> {
        let wanted = wanted_behind(std::slice::from_ref(call));
        let mut known = Known::default();
        match self.journal.read(&wanted).await {
            Ok(found) => known.learn(&wanted, found),
            // The rows of this call alone cannot be read.
            Err(Failure::Split(source)) => {
                return Ok(Reply::Unreadable(chain(source.as_ref())));
            }
            // The flight is committed, and its callers have no answer.
            Err(Failure::Unreachable(source) | Failure::Retry(source)) => {
                return Err(Failure::Unknown(source));
            }
            Err(failure) => return Err(failure),
        }
        Ok(match call {
            Call::Find(sought) => known.sought(sought),
            Call::QueryOperation { req_id, op } => known.decision(*req_id, *op),
            Call::FindExternal(external) => known.external(external),
            Call::FindHold(order) => known.hold(order),
            Call::FindRecharge(call) => known.recharge(call),
            call => unreachable!("{} is no read", call.name()),
        })
    }
}

/// Whether a call rests on rows of recharges.
fn recharges(call: &Call) -> bool {
    matches!(call, Call::Recharge(_))
}

/// The failure of a batch because of one call in it.
fn objected(Objection { index, violation, what }: Objection) -> Failure {
    Failure::Refused { index, violation, source: Undecided::Objection(what).into() }
}

/// The calls of a batch that write a row of these users or transfers, ascending. A deferral writes
/// no row of its user.
fn writers(calls: &[Call], users: &[UserId], req_ids: &[ReqId]) -> Vec<usize> {
    let is_writer = |call: &Call| match (call.user(), call) {
        (None, _) => false,
        (Some(_), Call::Defer { req_id, .. }) => req_ids.contains(req_id),
        (Some(user), _) => {
            users.contains(&user) || call.req_id().is_some_and(|req_id| req_ids.contains(&req_id))
        }
    };
    let indices = calls.iter().enumerate().filter(|(_, call)| is_writer(call));
    indices.map(|(index, _)| index).collect()
}

/// The failure of a batch as a whole.
fn failure(stopped: Stopped) -> Failure {
    match stopped {
        Stopped::Superseded => Failure::Fenced,
        // Another incarnation, or PostgreSQL has gone back. The next connection shows.
        Stopped::Predecessor | Stopped::Number => {
            Failure::Unreachable(Undecided::Predecessor.into())
        }
        // An empty flight rests on no rows.
        Stopped::Differs(_) => Failure::Retry(Undecided::Changing(Differences::default()).into()),
        Stopped::Taken { source, .. }
        | Stopped::Held { source, .. }
        | Stopped::Unnamed(source)
        | Stopped::Blocked(source)
        | Stopped::Refused { source, .. } => Failure::Retry(source),
        Stopped::Unreachable(source) => Failure::Unreachable(source),
        Stopped::Unknown(source) => Failure::Unknown(source),
    }
}

impl<J: Journal> Store for FlightStore<J> {
    async fn commit(&mut self, standing: Standing, calls: &[Call]) -> Result<Vec<Reply>, Failure> {
        let number = self.settle(standing).await? + 1;
        let mut known = Known::default();
        known.see(calls, &self.memory);
        let (mut mismatches, mut differed) = (0, None::<Flight>);
        // Each further round has made the batch careful or has counted a mismatch.
        loop {
            self.read(calls, &mut known).await.map_err(|failure| match failure {
                Failure::Split(source) => unnamed(calls, source),
                // A table of recharges may be locked: the calls without them go on.
                Failure::Retry(source) if calls.iter().any(recharges) => unnamed(calls, source),
                failure => failure,
            })?;
            let at = self.now();
            let catalog = self.catalog.load_full();
            if let Some(flight) = differed.take() {
                let differences = Differences::of(&flight, &self.memory, &known, &catalog);
                warn!(flight = number, mismatches, %differences, "PostgreSQL holds other rows");
                if mismatches == MISMATCHES_MAX {
                    return Err(changed(calls, differences));
                }
            }
            let draft = Draft::new(&self.memory, &known, &catalog, at);
            let (flight, answers) = match draft.decide(calls) {
                Ok(decided) => decided,
                Err(objection) if known.careful => return Err(objected(objection)),
                // What PostgreSQL holds may give another answer.
                Err(_) => {
                    known.careful = true;
                    continue;
                }
            };
            self.attempts += 1;
            let flight = self.departs(flight, number, self.attempts, standing);
            let stopped = match self.journal.fly(&flight).await {
                Ok(()) => {
                    for stood in self.stood.drain(..) {
                        self.told.committed(&stood);
                    }
                    self.told.committed(&flight);
                    self.memory.advance(&flight);
                    self.last = Some(number);
                    return self.answer(calls, answers).await;
                }
                Err(stopped) => stopped,
            };
            match stopped {
                Stopped::Taken { .. }
                | Stopped::Refused { .. }
                | Stopped::Differs(Compared::Transfers)
                    if !known.careful =>
                {
                    known.careful = true;
                }
                // The careful reads have found no such row, and no other process gives these
                // numbers.
                Stopped::Taken { ours: true, source } => return Err(Failure::Contradicted(source)),
                Stopped::Taken { source, .. } => return Err(refused(calls, false, source)),
                Stopped::Refused { violation, source } => {
                    return Err(refused(calls, violation, source));
                }
                Stopped::Differs(compared) => {
                    // Memory has no row of recharges that a decision rests on.
                    if !matches!(compared, Compared::Recharges) {
                        self.memory.forget(&flight);
                    }
                    known = known.forgotten();
                    mismatches += 1;
                    differed = Some(flight);
                }
                Stopped::Held { users, req_ids, source } => {
                    let indices = writers(calls, &users, &req_ids);
                    return Err(match indices.is_empty() {
                        true => unnamed(calls, source),
                        false => Failure::Blocked { indices, changed: false, source },
                    });
                }
                Stopped::Unnamed(source) => return Err(unnamed(calls, source)),
                // The same calls, and no fewer, are tried again.
                Stopped::Blocked(source) => return Err(Failure::Retry(source)),
                Stopped::Unknown(source) => {
                    self.unknown = Some(flight);
                    return Err(Failure::Unknown(source));
                }
                stopped => {
                    self.last = None;
                    return Err(failure(stopped));
                }
            }
        }
    }

    async fn unfinished(&mut self, filter: Unfinished) -> Result<Page, Failure> {
        self.journal.unfinished(filter).await
    }
}

/// A call of a batch waits, or its rows cannot be read, and PostgreSQL does not name it. One call
/// waits alone; several are tried again in smaller flights, so that the others go on.
fn unnamed(calls: &[Call], source: Source) -> Failure {
    match calls {
        [_] => Failure::Blocked { indices: vec![0], changed: false, source },
        _ => Failure::Split(source),
    }
}

/// Another session has changed rows again, right after they were read for this batch.
fn changed(calls: &[Call], differences: Differences) -> Failure {
    let indices = writers(calls, &differences.users, &differences.req_ids);
    let source = Undecided::Changing(differences).into();
    match indices.is_empty() {
        // The rows are as before.
        true => unnamed(calls, source),
        false => Failure::Blocked { indices, changed: true, source },
    }
}

/// PostgreSQL refuses the contents of a flight, and does not name the call. One call is refused;
/// several are tried again in smaller flights.
fn refused(calls: &[Call], violation: bool, source: Source) -> Failure {
    match calls {
        [_] => Failure::Refused { index: 0, violation, source },
        _ => {
            warn!(calls = calls.len(), why = chain(source.as_ref()), "a flight is refused");
            Failure::Split(source)
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::super::flight::{Balance, Found, Key, Wanted};
    use super::*;
    use crate::clock::SystemClock;
    use domain::account::AccountStatus;
    use domain::amount::Amount;
    use domain::asset::AssetId;
    use domain::transfer::Op;

    use crate::commands::dev;
    use crate::postgres::store::External;

    /// A journal that plays a script, and keeps the flights that it gets.
    #[derive(Default)]
    struct Scripted {
        flown: Vec<Flight>,
        ends: VecDeque<Result<(), Stopped>>,
        lasts: VecDeque<Last>,
        balances: VecDeque<Balance>,
        unreadable: Vec<(Key, String)>,
        /// A table of recharges is locked.
        locked: bool,
    }

    impl Journal for Scripted {
        async fn last(&mut self) -> Result<Option<Last>, Failure> {
            Ok(self.lasts.pop_front())
        }

        async fn fly(&mut self, flight: &Flight) -> Result<(), Stopped> {
            self.flown.push(flight.clone());
            self.ends.pop_front().unwrap_or(Ok(()))
        }

        async fn read(&mut self, wanted: &Wanted) -> Result<Found, Failure> {
            if self.locked && !wanted.recharges.is_empty() {
                return Err(Failure::Retry("locked".into()));
            }
            let accounts = wanted.accounts.iter().map(|user| (*user, AccountStatus::Active));
            let mut found = Found { accounts: accounts.collect(), ..Found::default() };
            found.unreadable = self.unreadable.clone();
            let bad = |key: Key| self.unreadable.iter().any(|(bad, _)| *bad == key);
            for (user, asset) in &wanted.balances {
                if bad(Key::Balance(*user, *asset)) {
                    continue;
                }
                let balance = self.balances.pop_front().expect("a balance in the script");
                found.balances.push((*user, *asset, balance));
            }
            Ok(found)
        }

        async fn unfinished(&mut self, _filter: Unfinished) -> Result<Page, Failure> {
            Ok(Page::default())
        }
    }

    const FIRST: Last = Last { number: 7, attempt: 0 };
    const HELD: Balance = Balance { available: 100, frozen: 0, version: 3 };

    /// Keeps the numbers of the flights that it is told of.
    #[derive(Default)]
    struct Listening(parking_lot::Mutex<Vec<u64>>);

    impl Told for Listening {
        fn committed(&self, flight: &Flight) {
            self.0.lock().push(flight.number);
        }
    }

    fn store(ends: impl IntoIterator<Item = Result<(), Stopped>>) -> FlightStore<Scripted> {
        let (ends, lasts) = (ends.into_iter().collect(), VecDeque::from([FIRST]));
        let script = Scripted { ends, lasts, balances: [HELD].into(), ..Scripted::default() };
        let catalog = Arc::new(ArcSwap::from_pointee(Catalog::new(dev::assets())));
        let events = Arc::new(EventIds::new(1));
        FlightStore::new(script, catalog, Arc::new(SystemClock::new()), events, Arc::new(()), 16)
    }

    /// Takes 30 units out of the balance.
    fn withdrawal(number: u64) -> [Call; 1] {
        [Call::External(External {
            idem_key: format!("key-{number}"),
            op: Op::ExtWithdraw,
            user: UserId::new(1).expect("not zero"),
            asset: AssetId(3),
            amount: Amount::new(30).expect("not zero"),
            actor: "a test".to_owned(),
            order_number: number,
        })]
    }

    fn unknown() -> Result<(), Stopped> {
        Err(Stopped::Unknown("the connection is lost".into()))
    }

    /// The balance that the last flight found, and its number.
    fn last_flown(store: &FlightStore<Scripted>) -> (i128, u64) {
        let flight = store.journal.flown.last().expect("a flight");
        (flight.balances[0].before.expect("a row").available, flight.number)
    }

    #[tokio::test]
    async fn an_empty_flight_that_commits_ends_the_one_of_unknown_end() {
        let mut store = store([unknown()]);
        let lost = store.commit(Standing::default(), &withdrawal(1)).await;
        assert!(matches!(lost, Err(Failure::Unknown(_))), "{lost:?}");
        store.commit(Standing::default(), &withdrawal(2)).await.expect("committed");
        let [lost, empty, next] = store.journal.flown.as_slice() else { panic!("three flights") };
        assert_eq!((lost.number, empty.number, next.number), (8, 8, 9));
        assert!(empty.balances.is_empty() && empty.attempt != lost.attempt);
        assert_eq!(last_flown(&store), (100, 9), "the first one took nothing");
    }

    #[tokio::test]
    async fn a_flight_of_unknown_end_that_stands_is_followed() {
        let mut store = store([unknown(), Err(Stopped::Number)]);
        store.commit(Standing::default(), &withdrawal(1)).await.expect_err("lost");
        let attempt = store.journal.flown[0].attempt;
        store.journal.lasts.push_back(Last { number: 8, attempt });
        store.commit(Standing::default(), &withdrawal(2)).await.expect("committed");
        assert_eq!(last_flown(&store), (70, 9), "it took 30");
    }

    /// A commit whose wait for a standby was cut off may be lost with its server. Nothing is told
    /// of it before a later commit has had its whole wait.
    #[tokio::test]
    async fn a_flight_that_stands_is_told_behind_the_next_commit() {
        let mut store = store([unknown(), Err(Stopped::Number), unknown()]);
        let told = Arc::new(Listening::default());
        store.told = Arc::clone(&told) as Arc<dyn Told>;
        store.commit(Standing::default(), &withdrawal(1)).await.expect_err("lost");
        let attempt = store.journal.flown[0].attempt;
        store.journal.lasts.push_back(Last { number: 8, attempt });
        store.commit(Standing::default(), &withdrawal(2)).await.expect_err("the next is lost too");
        assert!(told.0.lock().is_empty(), "{:?}", told.0.lock());
        store.commit(Standing::default(), &withdrawal(3)).await.expect("committed");
        assert_eq!(*told.0.lock(), [8, 10]);
    }

    /// The empty flight can have an unknown end too. Then it may be the one that has the number.
    #[tokio::test]
    async fn a_number_in_use_by_an_empty_flight_ends_the_first_one() {
        let mut store = store([unknown(), unknown(), Err(Stopped::Number)]);
        store.commit(Standing::default(), &withdrawal(1)).await.expect_err("lost");
        store.commit(Standing::default(), &withdrawal(2)).await.expect_err("the empty one is lost");
        let attempt = store.journal.flown[1].attempt;
        store.journal.lasts.push_back(Last { number: 8, attempt });
        store.commit(Standing::default(), &withdrawal(3)).await.expect("committed");
        assert_eq!(last_flown(&store), (100, 9), "the first one took nothing");
    }

    /// The audit has accepted a server that lacks flights of this process.
    #[tokio::test]
    async fn a_server_that_has_gone_back_ends_a_flight_of_unknown_end() {
        let mut store = store([unknown(), Err(Stopped::Predecessor)]);
        store.commit(Standing::default(), &withdrawal(1)).await.expect_err("lost");
        store.journal.lasts.push_back(Last { number: 4, attempt: 1 });
        store.journal.balances.push_back(Balance { available: 50, ..HELD });
        store.commit(Standing::default(), &withdrawal(2)).await.expect("committed");
        assert_eq!(last_flown(&store), (50, 5), "the rows are read again");
    }

    #[tokio::test]
    async fn a_balance_that_differs_is_read_and_decided_anew() {
        let mut store = store([Err(Stopped::Differs(Compared::Balances))]);
        let less = Balance { available: 20, frozen: 0, version: 4 };
        store.journal.balances.push_back(less);
        let replies = store.commit(Standing::default(), &withdrawal(1)).await.expect("committed");
        let [Reply::External { decision, .. }] = replies.as_slice() else { panic!("{replies:?}") };
        assert_eq!(decision.code(), Some(domain::code::Code::InsufficientBalance));
        let flight = store.journal.flown.last().expect("a flight");
        assert_eq!((flight.balances[0].before, flight.balances[0].after), (Some(less), None));
    }

    /// Only the calls of the changed row wait. The text has the row with both values.
    #[tokio::test]
    async fn a_balance_that_differs_twice_blocks_the_calls_of_its_user() {
        let differs = || Err(Stopped::Differs(Compared::Balances));
        let mut store = store([differs(), differs()]);
        let [mut other] = withdrawal(2);
        if let Call::External(external) = &mut other {
            external.user = UserId::new(2).expect("not zero");
        }
        let calls = [[other].as_slice(), &withdrawal(1)].concat();
        let of = |available, version| Balance { available, frozen: 0, version };
        // Two users at first; the balance of the first one is not changed.
        store.journal.balances = [HELD, HELD, of(90, 4), HELD, of(80, 5), HELD].into();
        let blocked = store.commit(Standing::default(), &calls).await;
        let Err(Failure::Blocked { indices, changed: true, source }) = blocked else {
            panic!("{blocked:?}")
        };
        assert_eq!(indices, [1]);
        let said = source.to_string();
        let values = "user 1, USDT: available 0.0000009 frozen 0 version 4, \
                      now available 0.0000008 frozen 0 version 5";
        assert!(said.ends_with(values), "{said}");
        assert_eq!(store.journal.flown.len(), 2);
    }

    /// A repeat of an accept whose commit was lost finds its number in use, and then its row. If
    /// there is no row, PostgreSQL contradicts itself or this process.
    #[tokio::test]
    async fn a_number_in_use_without_its_row_is_a_contradiction() {
        let taken = |ours| Err(Stopped::Taken { ours, source: "duplicate key".into() });
        let mut store = store([taken(true), taken(true), taken(false), taken(false)]);
        let contradicted = store.commit(Standing::default(), &withdrawal(1)).await;
        assert!(matches!(contradicted, Err(Failure::Contradicted(_))), "{contradicted:?}");
        assert_eq!(store.journal.flown.len(), 2, "the second one is careful");
        let refused = store.commit(Standing::default(), &withdrawal(1)).await;
        assert!(matches!(refused, Err(Failure::Refused { index: 0, .. })), "{refused:?}");
    }

    /// No flight is needed to refuse a call because of an unreadable row, and none to use the row
    /// once it is corrected.
    #[tokio::test]
    async fn a_row_that_cannot_be_read_costs_no_flight() {
        let mut store = store([]);
        let key = Key::Balance(UserId::new(1).expect("not zero"), AssetId(3));
        store.journal.unreadable = vec![(key, "half a unit".to_owned())];
        for number in 1..=2 {
            let refused = store.commit(Standing::default(), &withdrawal(number)).await;
            assert!(matches!(refused, Err(Failure::Refused { index: 0, .. })), "{refused:?}");
        }
        assert!(store.journal.flown.is_empty(), "{:?}", store.journal.flown);
        store.journal.unreadable.clear();
        store.commit(Standing::default(), &withdrawal(3)).await.expect("committed");
        assert_eq!(last_flown(&store), (100, 8));
    }

    /// Goal: a lock on a table of recharges stops no call without them.
    #[tokio::test]
    async fn a_lock_on_recharges_holds_up_these_alone() {
        use crate::recharge::act::{RechargeAct, RechargeCall};
        let mut store = store([]);
        store.journal.locked = true;
        let id = crate::recharge::RechargeId::new(7).expect("not zero");
        let act = RechargeAct::Close { id };
        let (user, actor) = (UserId::new(2), "a test".to_owned());
        let call = RechargeCall { user, order_number: 0, bonus_number: 0, actor, act };
        let call = Call::Recharge(Box::new(call));
        let [other] = withdrawal(1);
        let both = [other, call.clone()];
        let split = store.commit(Standing::default(), &both).await;
        assert!(matches!(split, Err(Failure::Split(_))), "{split:?}");
        let alone = store.commit(Standing::default(), &[call]).await;
        let Err(Failure::Blocked { indices, .. }) = alone else { panic!("{alone:?}") };
        assert_eq!(indices, [0]);
        store.commit(Standing::default(), &withdrawal(1)).await.expect("committed");
    }

    #[tokio::test]
    async fn a_contents_that_postgresql_refuses_is_split() {
        let refused = || Err(Stopped::Refused { violation: false, source: "too large".into() });
        let mut store = store([refused(), refused(), refused(), refused()]);
        let two = [withdrawal(1), withdrawal(2)].concat();
        let split = store.commit(Standing::default(), &two).await;
        assert!(matches!(split, Err(Failure::Split(_))), "{split:?}");
        let alone = store.commit(Standing::default(), &withdrawal(1)).await;
        assert!(matches!(alone, Err(Failure::Refused { index: 0, .. })), "{alone:?}");
    }
}
