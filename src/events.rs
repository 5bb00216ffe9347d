//! Events: the steps of transfers, sent as they happen.
//!
//! ```text
//!   worker --flight is committed--> [Hub] --> streams that follow
//!      |                              \--bell--.
//!      v                                       v
//!   journal_tb --[webhooks]--> webhook_deliveries --> endpoint
//!   transfers  --> streams that catch up
//!
//!   transactions --over, in its commit--> webhook_deliveries --> endpoint, followers
//!                                     \-> transaction_events --> streams
//! ```
//!
//! A flight is the source of its events: their ids are drawn when it is put together, and its
//! worker hands it to the [`Hub`] once it is committed. A stream that is too slow leaves the hub
//! and reads the missed events in PostgreSQL. So does one that begins after an earlier event.
//! [`webhooks`] reads the journal and posts events to an endpoint. [`retention`] deletes old ones.
//! A transaction has one event, at DONE or CANCELLED. Its streams are woken, and read it in
//! PostgreSQL. Events of recharges are of flights too, behind those of its transfers; a stream that
//! was away reads them in `recharge_events`.

mod options;
pub mod retention;
pub mod webhooks;

use std::collections::{BTreeSet, HashMap};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{Either, select};
use parking_lot::Mutex;
use tokio::sync::{Notify, Semaphore, mpsc, watch};
use tracing::warn;

use crate::alert::{Alert, alert};
use crate::clock::Clock;
use crate::crash;
use crate::postgres::events::Event;
use crate::postgres::flight::{Flight, Told};
use crate::postgres::recharge_events::{RechargeEvent, events_of};
use crate::postgres::{Error, Limits, Superseded};
use crate::telemetry;
use crate::transaction::TransactionRow;
use domain::account::UserId;

/// Streams that may read missed events at the same time. They share connections with every other
/// read.
const READERS_MAX: usize = 2;

/// The first wait after a failure of PostgreSQL; doubled each time.
const BACKOFF: Duration = Duration::from_millis(100);
const BACKOFF_MAX: Duration = Duration::from_secs(5);

/// How many streams there may be; see `[events]` in the configuration.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Streams in all.
    pub streams_max: usize,
    /// Streams of one user.
    pub streams_per_user_max: usize,
    /// Events waiting for one stream.
    pub queue_max: usize,
}

/// Connects the workers with the streams and the webhooks.
#[derive(Debug)]
pub struct Hub {
    bounds: Bounds,
    users: Mutex<Users>,
    closed: watch::Sender<bool>,
    readers: Semaphore,
    /// Signal that there is an event to deliver: one of each endpoint.
    bells: Mutex<Vec<Arc<Notify>>>,
}

#[derive(Debug, Default)]
struct Users {
    streams: usize,
    by_id: HashMap<UserId, User>,
    next: u64,
}

#[derive(Debug, Default)]
struct User {
    streams: usize,
    queues: Vec<(u64, mpsc::Sender<Pushed>)>,
}

/// A word to a stream that follows.
#[derive(Clone, Debug)]
pub enum Pushed {
    /// An event of a transfer.
    Transfer(Arc<Event>),
    /// An event of a recharge.
    Recharge(Arc<RechargeEvent>),
    /// A transaction has an event in PostgreSQL.
    Transaction,
}

impl Pushed {
    /// The id of an event that came with its flight.
    pub fn id(&self) -> Option<i64> {
        match self {
            Pushed::Transfer(event) => Some(event.id),
            Pushed::Recharge(event) => Some(event.id),
            Pushed::Transaction => None,
        }
    }
}

/// There is no place for another stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Full {
    /// The user has too many streams.
    User,
    /// There are too many streams in all.
    All,
    /// The service is stopping.
    Closed,
}

impl Hub {
    /// A hub without streams.
    pub fn new(bounds: Bounds) -> Hub {
        Hub {
            bounds,
            users: Mutex::default(),
            closed: watch::Sender::new(false),
            readers: Semaphore::new(READERS_MAX),
            bells: Mutex::default(),
        }
    }

    /// Takes a place for a stream of this user.
    ///
    /// # Errors
    /// [`Full`]: there is no place.
    pub fn enter(self: &Arc<Hub>, user: UserId) -> Result<Place, Full> {
        let mut users = self.users.lock();
        if *self.closed.borrow() {
            return Err(Full::Closed);
        }
        if users.streams >= self.bounds.streams_max {
            return Err(Full::All);
        }
        let of_user = users.by_id.get(&user).map_or(0, |user| user.streams);
        if of_user >= self.bounds.streams_per_user_max {
            return Err(Full::User);
        }
        users.streams += 1;
        users.next += 1;
        let id = users.next;
        users.by_id.entry(user).or_default().streams += 1;
        debug_assert!(users.streams <= self.bounds.streams_max, "checked above");
        telemetry::event_streams(users.streams);
        Ok(Place { hub: Arc::clone(self), user, id })
    }

    /// Ends every stream and the deliveries. No stream is admitted from now on.
    pub fn close(&self) {
        // Under the lock: a stream that is being admitted is either closed here or sees the flag.
        let _users = self.users.lock();
        self.closed.send_replace(true);
    }

    /// Resolves once it is closed.
    pub fn closing(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut closed = self.closed.subscribe();
        // An error: the hub is gone.
        async move { drop(closed.wait_for(|closed| *closed).await) }
    }

    /// Wakes the tasks that deliver.
    pub fn ring_for_deliveries(&self) {
        for bell in self.bells.lock().iter() {
            bell.notify_one();
        }
    }

    /// The bell of one task that delivers.
    fn bell(&self) -> Arc<Notify> {
        let bell = Arc::new(Notify::new());
        self.bells.lock().push(Arc::clone(&bell));
        bell
    }

    /// A transaction is over, and its commit is durable: deliveries look for it, and its users'
    /// streams read it. A stream without room leaves the hub, and reads it too.
    pub fn transaction_over(&self, row: &TransactionRow) {
        self.ring_for_deliveries();
        let legs = row.branches.iter().flat_map(|branch| &branch.legs);
        let places = legs.flat_map(|leg| [leg.from, leg.to]);
        let named: BTreeSet<UserId> = places.filter_map(|place| place.user()).collect();
        let mut users = self.users.lock();
        for user in named {
            let Some(user) = users.by_id.get_mut(&user) else { continue };
            user.queues.retain(|(_, queue)| queue.try_send(Pushed::Transaction).is_ok());
        }
    }
}

impl Told for Hub {
    /// Sends its events to the streams that follow, in their order. A stream without room for one
    /// leaves the hub: it ends, or reads the events in PostgreSQL.
    fn committed(&self, flight: &Flight) {
        let count = flight.event_count();
        if count == 0 {
            return;
        }
        crash::point("events_before_told");
        if !flight.recharged.notices.is_empty() {
            crash::point("recharge_before_tell");
        }
        telemetry::events(count);
        self.ring_for_deliveries();
        let mut users = self.users.lock();
        if users.by_id.is_empty() {
            return;
        }
        for (id, passed, transfer) in flight.events() {
            let Some(user) = users.by_id.get_mut(&transfer.intent.user) else { continue };
            if user.queues.is_empty() {
                continue;
            }
            let id = i64::try_from(id).expect("an incarnation is below 2^23");
            let event = Event::new(id, flight.at, passed.states.clone(), transfer.clone());
            let event = Arc::new(event);
            let push = || Pushed::Transfer(Arc::clone(&event));
            user.queues.retain(|(_, queue)| queue.try_send(push()).is_ok());
        }
        for event in events_of(flight) {
            let Some(user) = users.by_id.get_mut(&event.user) else { continue };
            let event = Arc::new(event);
            let push = || Pushed::Recharge(Arc::clone(&event));
            user.queues.retain(|(_, queue)| queue.try_send(push()).is_ok());
        }
    }
}

/// The place of one stream, until it is dropped.
#[derive(Debug)]
pub struct Place {
    hub: Arc<Hub>,
    user: UserId,
    id: u64,
}

impl Place {
    /// The stream's user.
    pub fn user(&self) -> UserId {
        self.user
    }

    /// The hub.
    pub fn hub(&self) -> &Arc<Hub> {
        &self.hub
    }

    /// Begins to follow. Every event of a flight that is committed from now on arrives here, in
    /// order, while there is room. Without room the sender is dropped.
    pub fn follow(&self) -> mpsc::Receiver<Pushed> {
        let (queue, events) = mpsc::channel(self.hub.bounds.queue_max);
        let mut users = self.hub.users.lock();
        let user = users.by_id.get_mut(&self.user).expect("it has this place");
        user.queues.push((self.id, queue));
        events
    }

    /// Waits until the stream may read its missed events.
    pub async fn may_read(&self) -> tokio::sync::SemaphorePermit<'_> {
        self.hub.readers.acquire().await.expect("never closed")
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut users = self.hub.users.lock();
        assert!(users.streams > 0, "a place is dropped once");
        users.streams -= 1;
        telemetry::event_streams(users.streams);
        let user = users.by_id.get_mut(&self.user).expect("it has this place");
        assert!(user.streams > 0, "a place is dropped once");
        user.streams -= 1;
        user.queues.retain(|(id, _)| *id != self.id);
        if user.streams == 0 {
            users.by_id.remove(&self.user);
        }
    }
}

/// Waits after a failure of PostgreSQL, longer each time, before the next session.
///
/// # Errors
/// [`Superseded`]: another process has taken over. The task must end, and the process with it.
async fn outlast(
    what: &str,
    failure: &Error,
    failures: &mut u32,
    clock: &dyn Clock,
) -> Result<(), Superseded> {
    let why = telemetry::chain(failure);
    if matches!(failure, Error::Superseded) {
        alert(Alert::Fenced, format_args!("another process has taken over {what}"));
        return Err(Superseded);
    }
    warn!(what, why, "PostgreSQL failed; retrying. Transfers do not wait for this");
    clock.sleep((BACKOFF * (1 << (*failures).min(6))).min(BACKOFF_MAX)).await;
    *failures += 1;
    Ok(())
}

/// The result of a call, or a time-out after the longest time that a statement may take.
async fn within<T>(
    clock: &dyn Clock,
    limits: &Limits,
    call: impl Future<Output = Result<T, Error>>,
) -> Result<T, Error> {
    let limit = limits.statement_timeout + limits.lock_timeout;
    match select(pin!(call), clock.sleep(limit)).await {
        Either::Left((answer, _)) => answer,
        Either::Right(((), _)) => Err(Error::Timeout(limit)),
    }
}

#[cfg(test)]
mod tests {
    use domain::amount::Amount;
    use domain::asset::AssetId;
    use domain::transfer::{Direction, Intent, ReqId, State};

    use super::*;
    use crate::postgres::flight::recharged::{RechargeChange, RechargeNotice};
    use crate::postgres::flight::{Passed, Written};
    use crate::postgres::store::Transfer;

    /// A flight that accepts a transfer of each user. Its first event is 7.
    fn flight(users: [u64; 2]) -> Flight {
        let mut flight = Flight { event_first: 7, ..Flight::default() };
        for number in users {
            let intent = Intent {
                req_id: ReqId::new(number.into()).expect("not zero"),
                cid: None,
                user: UserId::new(number).expect("in range"),
                asset: AssetId(3),
                amount: Amount::new(1).expect("not zero"),
                direction: Direction::FundingToSpot,
                order_number: number,
            };
            let passed = vec![Passed { states: vec![State::Init], attempt: 0, reason: None }];
            let transfer = Transfer::new(intent, String::new(), State::Init, flight.at);
            flight.accepted.push(Written {
                transfer,
                next_retry_at: None,
                passed,
                operations: Vec::new(),
            });
        }
        flight
    }

    /// Goal: a change of a recharge is told to its user alone, behind the transfers of its flight,
    /// with the id that PostgreSQL has for it.
    #[test]
    fn a_recharge_is_told_behind_the_transfers_of_its_flight() {
        let bounds = Bounds { streams_max: 2, streams_per_user_max: 1, queue_max: 4 };
        let hub = Arc::new(Hub::new(bounds));
        let user = |number| UserId::new(number).expect("in range");
        let places = [hub.enter(user(1)), hub.enter(user(2))].map(|place| place.expect("a place"));
        let mut queues = places.each_ref().map(Place::follow);
        let mut flight = flight([1, 2]);
        let notice = RechargeNotice {
            change: RechargeChange::Closed,
            order_number: 0,
            user: user(2),
            recharge: 0,
            payment: 0,
            state: RechargeChange::Closed.state(),
            cause: None,
        };
        flight.recharged.notices.push(notice);
        assert_eq!(flight.event_count(), 3);
        hub.committed(&flight);
        let ids = queues.each_mut().map(|queue| {
            let told = std::iter::from_fn(|| queue.try_recv().ok());
            told.map(|pushed| (pushed.id(), matches!(pushed, Pushed::Recharge(_))))
                .collect::<Vec<_>>()
        });
        assert_eq!(ids, [vec![(Some(7), false)], vec![(Some(8), false), (Some(9), true)]]);
    }

    #[test]
    fn places_are_counted_by_user_and_in_all_and_given_again() {
        let bounds = Bounds { streams_max: 3, streams_per_user_max: 2, queue_max: 1 };
        let hub = Arc::new(Hub::new(bounds));
        let user = |number| UserId::new(number).expect("in range");
        let held = [hub.enter(user(1)), hub.enter(user(1))].map(|place| place.expect("a place"));
        assert_eq!(hub.enter(user(1)).expect_err("two"), Full::User);
        let other = hub.enter(user(2)).expect("a place");
        assert_eq!(hub.enter(user(3)).expect_err("three"), Full::All);
        let mut events = held[0].follow();
        hub.committed(&flight([1, 2]));
        let Ok(Pushed::Transfer(event)) = events.try_recv() else { panic!("an event") };
        assert_eq!(event.id, 7);
        assert!(events.try_recv().is_err(), "the other one is of another user");
        drop((held, events));
        hub.committed(&flight([1, 2]));
        assert_eq!(hub.users.lock().by_id.len(), 1, "only the other one is left");
        drop(other);
        hub.close();
        assert_eq!(hub.enter(user(1)).expect_err("closed"), Full::Closed);
    }
}
