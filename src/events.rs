//! Events: what becomes of transfers, told as it happens.
//!
//! ```text
//!   workers --commit--> transfer_history --[relay]--> events_tb ------> streams that catch up
//!              bell ---------------------^     |          \----------> webhook_deliveries --[webhooks]--> endpoint
//!                                              +--> [Hub] --> streams that follow
//! ```
//!
//! [`relay`] makes events of committed history, and nothing waits for it. [`Hub`] is where it meets those who follow; whoever
//! does not keep up with it is let go, and reads in PostgreSQL what was missed. [`webhooks`] tells an endpoint.

mod options;
pub mod relay;
pub mod webhooks;

use std::collections::HashMap;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{Either, select};
use parking_lot::Mutex;
use tokio::sync::{Notify, Semaphore, mpsc, watch};
use tracing::warn;

use crate::alert::{Alert, alert};
use crate::clock::Clock;
use crate::postgres::events::Event;
use crate::postgres::{Error, Limits, Superseded};
use crate::telemetry;
use domain::account::UserId;

/// Streams that read what they have missed at the same time: they share their connections with every other read.
const READERS_MAX: usize = 2;

/// The first wait after a failure of PostgreSQL's; doubled each time.
const BACKOFF: Duration = Duration::from_millis(100);
const BACKOFF_MAX: Duration = Duration::from_secs(5);

/// How many may follow; see `[events]` in the configuration.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Streams in all.
    pub streams_max: usize,
    /// Streams of one user.
    pub streams_per_user_max: usize,
    /// Events waiting for one stream.
    pub queue_max: usize,
}

/// Where the relay meets the streams.
#[derive(Debug)]
pub struct Hub {
    bounds: Bounds,
    users: Mutex<Users>,
    closed: watch::Sender<bool>,
    readers: Semaphore,
    /// Rung where there is something to deliver.
    deliveries: Notify,
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
    queues: Vec<(u64, mpsc::Sender<Arc<Event>>)>,
}

/// There is no place for another stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Full {
    /// Of this user.
    User,
    /// Of anybody.
    All,
    /// The service is stopping.
    Closed,
}

impl Hub {
    /// One that nobody follows yet.
    pub fn new(bounds: Bounds) -> Hub {
        Hub {
            bounds,
            users: Mutex::default(),
            closed: watch::Sender::new(false),
            readers: Semaphore::new(READERS_MAX),
            deliveries: Notify::new(),
        }
    }

    /// Takes a place for a stream of this user's.
    ///
    /// # Errors
    /// [`Full`]: there is none.
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
        telemetry::event_streams(users.streams);
        Ok(Place { hub: Arc::clone(self), user, id })
    }

    /// The users who follow.
    fn followed(&self) -> Vec<i64> {
        let users = self.users.lock();
        let followed = users.by_id.iter().filter(|(_, user)| !user.queues.is_empty());
        followed.map(|(user, _)| user.bigint()).collect()
    }

    /// Tells events, in their order. A stream that has no room for one is let go: it ends, or reads them in PostgreSQL.
    fn publish(&self, events: Vec<Event>) {
        let mut users = self.users.lock();
        for event in events {
            let Some(user) = users.by_id.get_mut(&event.transfer.intent.user) else { continue };
            let event = Arc::new(event);
            user.queues.retain(|(_, queue)| queue.try_send(Arc::clone(&event)).is_ok());
        }
    }

    /// Ends every stream, the relay and the deliveries. Nobody is admitted from now on.
    pub fn close(&self) {
        // With the lock, so that whoever is being admitted is seen to here or sees it.
        let _users = self.users.lock();
        self.closed.send_replace(true);
    }

    /// Resolves once it is closed.
    pub fn closing(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut closed = self.closed.subscribe();
        // An error is a hub that is gone.
        async move { drop(closed.wait_for(|closed| *closed).await) }
    }

    /// Wakes whoever delivers.
    pub fn ring_for_deliveries(&self) {
        self.deliveries.notify_one();
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
    /// Whose.
    pub fn user(&self) -> UserId {
        self.user
    }

    /// Where it is.
    pub fn hub(&self) -> &Arc<Hub> {
        &self.hub
    }

    /// Begins to follow: every event that is not visible in PostgreSQL by now comes here, in order, as long as there is room
    /// for it. The other end is gone where there was none.
    pub fn follow(&self) -> mpsc::Receiver<Arc<Event>> {
        let (queue, events) = mpsc::channel(self.hub.bounds.queue_max);
        let mut users = self.hub.users.lock();
        let user = users.by_id.get_mut(&self.user).expect("it has this place");
        user.queues.push((self.id, queue));
        events
    }

    /// Waits until it may read what it has missed.
    pub async fn may_read(&self) -> tokio::sync::SemaphorePermit<'_> {
        self.hub.readers.acquire().await.expect("never closed")
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut users = self.hub.users.lock();
        users.streams -= 1;
        telemetry::event_streams(users.streams);
        let user = users.by_id.get_mut(&self.user).expect("it has this place");
        user.streams -= 1;
        user.queues.retain(|(id, _)| *id != self.id);
        if user.streams == 0 {
            users.by_id.remove(&self.user);
        }
    }
}

/// Waits after a failure of PostgreSQL's, longer each time, for another session to be tried.
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
        alert(Alert::Fenced, format_args!("{what} belongs to another process"));
        return Err(Superseded);
    }
    warn!(what, why, "will try again; transfers do not wait for it");
    clock.sleep((BACKOFF * (1 << (*failures).min(6))).min(BACKOFF_MAX)).await;
    *failures += 1;
    Ok(())
}

/// The answer, unless it takes longer than a server may.
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
    use super::*;

    #[test]
    fn places_are_counted_by_user_and_in_all_and_given_again() {
        let bounds = Bounds { streams_max: 3, streams_per_user_max: 2, queue_max: 1 };
        let hub = Arc::new(Hub::new(bounds));
        let user = |number| UserId::new(number).expect("in range");
        let held = [hub.enter(user(1)), hub.enter(user(1))].map(|place| place.expect("a place"));
        assert_eq!(hub.enter(user(1)).expect_err("two"), Full::User);
        let other = hub.enter(user(2)).expect("a place");
        assert_eq!(hub.enter(user(3)).expect_err("three"), Full::All);
        assert!(hub.followed().is_empty(), "nobody follows yet");
        let events = held[0].follow();
        assert_eq!(hub.followed(), [1]);
        drop((held, events));
        assert!(hub.followed().is_empty());
        assert_eq!(hub.users.lock().by_id.len(), 1, "only the other one is left");
        drop(other);
        hub.close();
        assert_eq!(hub.enter(user(1)).expect_err("closed"), Full::Closed);
    }
}
