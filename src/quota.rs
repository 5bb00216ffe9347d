//! The limits of one user: requests a second, transfers a day, an amount of each asset a day.
//!
//! Requests a second are counted in memory only, by the crate `governor`: a burst of one second's
//! requests, and from then on that many a second. The limits of a day must survive a restart and
//! are kept exactly. [`usage`] is read from PostgreSQL at a user's first request. From then on
//! every accept passes through it, since no other process accepts.
//!
//! A [`Reservation`] is a share of the day, and travels with the transfer. It is taken before the
//! transfer is sent to its worker, and accepted when the accept is decided. Dropped undecided, it
//! is released. If it is unknown whether there was an accept, it stays with the search for it. So
//! no crash of a request, no client that hangs up and no retry of a cid can make the sums wrong.
//!
//! A user with an open share or a transfer under way is never evicted. So a user is read from
//! PostgreSQL only when no transfer of theirs can be on its way there.

pub mod minute;
mod options;
pub mod usage;

use std::collections::{BTreeMap, HashMap};
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use governor::clock::Clock as _;
use governor::middleware::StateInformationMiddleware;
use governor::nanos::Nanos;
use governor::state::keyed::HashMapStateStore;
use governor::{Quota, RateLimiter};
use jiff::Timestamp;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tracing::error;

use self::usage::{Day, DayMax, Limit, Room, Share, Sums, Usage};
use crate::clock::{Clock, Sleep};
use crate::postgres;
use crate::postgres::reads::Reads;
use crate::postgres::reads::accepted::Accepted;
use crate::telemetry::chain;
use crate::validation::Checked;
use domain::account::UserId;
use domain::code::Code;
use domain::transfer::State;

/// Users with a known usage, a few hundred bytes each. Beyond, users without a recent request are
/// evicted and read again later. If all of them have transfers under way, the next user is answered
/// OVERLOADED.
const USERS_MAX: usize = 100_000;
/// Users counted in one second, about thirty bytes each. The next one is answered OVERLOADED.
const USERS_PER_SECOND_MAX: usize = 100_000;
/// The longest wait of a request for its user's usage, and then for open shares of the same user.
/// Then it is answered SYSTEM_ERROR or OVERLOADED.
pub(crate) const PATIENCE: Duration = Duration::from_secs(2);
/// Seconds in the window of a daily limit.
const DAY_S: u64 = 86_400;

/// The limits. By default there are none.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Requests of one user a second.
    pub requests_per_second: Option<NonZeroU32>,
    /// The limits of one user's day.
    pub day: DayMax,
}

/// Why a request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused {
    /// The code of one of the three limits, OVERLOADED or SYSTEM_ERROR.
    pub code: Code,
    /// Seconds until the limit has room again.
    pub retry_after_s: Option<u64>,
    /// Whether the same request can succeed then.
    pub retryable: bool,
}

impl From<Code> for Refused {
    fn from(code: Code) -> Refused {
        Refused { code, retry_after_s: None, retryable: code.retryable() }
    }
}

/// The status of one limit for one user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Standing {
    /// Its name on the wire.
    pub name: String,
    /// Whether it counts an asset's smallest units; otherwise it counts requests.
    pub units: bool,
    /// The limit of its window.
    pub max: u64,
    /// The window, s.
    pub window_s: u64,
    /// The rest.
    pub left: u64,
    /// Seconds until the limit has room again.
    pub reset_s: u64,
}

/// Our clock in the form that `governor` needs.
#[derive(Clone)]
struct Monotonic(Arc<dyn Clock>);

impl governor::clock::Clock for Monotonic {
    type Instant = Nanos;

    fn now(&self) -> Nanos {
        Nanos::new(self.0.monotonic_ns())
    }
}

type PerUser =
    RateLimiter<UserId, HashMapStateStore<UserId>, Monotonic, StateInformationMiddleware>;

/// The known usage of one user.
#[derive(Debug, Default)]
struct User {
    /// `None` until it is read.
    usage: Mutex<Option<Usage>>,
    /// Held by the request that reads PostgreSQL.
    reading: tokio::sync::Mutex<()>,
    /// Signals that a share was decided.
    decided: Notify,
    /// Whether the user had a request since the last eviction.
    asked: AtomicBool,
}

/// A share of a user's day, for one transfer.
#[derive(Debug)]
pub struct Reservation {
    user: Arc<User>,
    share: Share,
    /// The day of the accept; `None`: not decided.
    day: Option<Day>,
}

impl Reservation {
    /// The transfer was accepted, at this time of the service's clock.
    pub fn accept(&mut self, at: Timestamp) {
        self.accept_in(|_| Day::of(at));
    }

    /// The transfer may have been accepted, and that will never be known: it counts.
    pub fn keep(mut self) {
        self.accept_in(Usage::day);
    }

    fn accept_in(&mut self, day: impl FnOnce(&Usage) -> Day) {
        if self.day.is_none() {
            let share = self.share;
            self.day = Some(self.user.update(|usage| {
                let day = day(usage);
                usage.accept(share, day);
                day
            }));
        }
    }

    /// The transfer has ended. A failed one gives its amount back.
    pub fn end(self, state: State) {
        if let (Some(day), true) = (self.day, state.is_undone()) {
            self.user.update(|usage| usage.restore(self.share, day));
        }
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if self.day.is_none() {
            self.user.update(|usage| usage.release(self.share));
        }
    }
}

impl User {
    /// Changes the usage, and wakes the requests that wait for it.
    fn update<R>(&self, change: impl FnOnce(&mut Usage) -> R) -> R {
        let changed = change(
            self.usage.lock().as_mut().expect("a share is taken from a usage that was read"),
        );
        self.decided.notify_waiters();
        changed
    }
}

/// Searches a second for the cids of refused requests, for each allowed request. A repeat of a
/// known cid is answered beyond the limit of requests too. Each search costs a read of PostgreSQL.
const SEARCHES_PER_REQUEST: u32 = 10;
/// The least number of searches a second, for a client that sends many repeats at once.
const SEARCHES_MIN: NonZeroU32 = NonZeroU32::new(100).expect("above zero");

fn searches(requests: NonZeroU32) -> NonZeroU32 {
    let many = requests.get().saturating_mul(SEARCHES_PER_REQUEST);
    NonZeroU32::new(many).unwrap_or(SEARCHES_MIN).max(SEARCHES_MIN)
}

/// Counts one request of a user, and returns how many more are allowed now.
fn count(limiter: &PerUser, user: UserId) -> Result<u32, Refused> {
    if limiter.len() >= USERS_PER_SECOND_MAX {
        limiter.retain_recent();
        if limiter.len() >= USERS_PER_SECOND_MAX {
            return Err(Code::Overloaded.into());
        }
    }
    let counted = limiter.check_key(&user);
    counted.map(|state| state.remaining_burst_capacity()).map_err(|until| {
        let wait = until.wait_time_from(limiter.clock().now());
        let retry_after_s = wait.as_secs() + u64::from(wait.subsec_nanos() > 0);
        let retry_after_s = Some(retry_after_s.max(1));
        Refused { retry_after_s, ..Refused::from(Code::RateLimitExceeded) }
    })
}

/// Every limit of every user.
pub struct Quotas {
    clock: Arc<dyn Clock>,
    second: Option<(NonZeroU32, PerUser)>,
    /// Searches for the cid of a refused request, see [`searches`].
    searches: Option<(NonZeroU32, PerUser)>,
    day: DayMax,
    users: Mutex<HashMap<UserId, Arc<User>>>,
    users_max: usize,
}

impl Quotas {
    /// Limits without any usage. The usage of a user's day is read at the first request.
    pub fn new(options: Options, clock: Arc<dyn Clock>) -> Quotas {
        let per_second = |max| {
            let clock = Monotonic(Arc::clone(&clock));
            let limiter = RateLimiter::hashmap_with_clock(Quota::per_second(max), clock);
            (max, limiter.with_middleware())
        };
        Quotas {
            second: options.requests_per_second.map(per_second),
            searches: options.requests_per_second.map(|max| per_second(searches(max))),
            clock,
            day: options.day,
            users: Mutex::default(),
            users_max: USERS_MAX,
        }
    }

    /// Counts a request that passed every other check, and takes its share of the day; `None` if no
    /// day is limited.
    ///
    /// `standings`: receives the status of each limit after this request, refused or not.
    ///
    /// # Errors
    /// [`Refused`]: the request has no share of the day.
    pub async fn admit(
        &self,
        reads: &Reads,
        user: UserId,
        checked: &Checked,
        standings: &mut Vec<Standing>,
    ) -> Result<Option<Reservation>, Refused> {
        self.count_second(user, standings)?;
        if self.day.is_off() {
            return Ok(None);
        }
        let known = self.user(user)?;
        let mut patience = self.clock.sleep(PATIENCE);
        tokio::select! {
            read = self.read(reads, user, &known) => read?,
            () = &mut patience => return Err(Code::SystemError.into()),
        }
        let asset = checked.asset.id;
        let metered = self.day.amounts.contains_key(&asset);
        let share = Share { asset, units: if metered { checked.amount.units() } else { 0 } };
        let room = self.take(&known, share, &mut patience).await;
        self.report_day(&known, checked, standings);
        match room {
            Room::Taken => Ok(Some(Reservation { user: known, share, day: None })),
            Room::None(limit) => {
                let code = match limit {
                    Limit::Transfers => Code::DailyLimitExceeded,
                    Limit::Amount => Code::DailyAmountExceeded,
                };
                let retry_after_s = Some(self.day_left_s(&known));
                // An amount above the limit of a whole day is refused tomorrow too.
                let whole_day = self.day.amounts.get(&asset).copied().unwrap_or(u64::MAX);
                let retryable = limit == Limit::Transfers || share.units <= whole_day;
                Err(Refused { code, retry_after_s, retryable })
            }
            Room::Perhaps => Err(Code::Overloaded.into()),
        }
    }

    /// Counts a search for the cid of a refused request.
    ///
    /// # Errors
    /// [`Refused`]: the user has no more searches in this second.
    pub fn admit_search(&self, user: UserId) -> Result<(), Refused> {
        let Some((_, limiter)) = &self.searches else { return Ok(()) };
        count(limiter, user).map(drop)
    }

    fn count_second(&self, user: UserId, standings: &mut Vec<Standing>) -> Result<(), Refused> {
        let Some((max, limiter)) = &self.second else { return Ok(()) };
        let counted = count(limiter, user);
        if matches!(&counted, Err(refused) if refused.code == Code::Overloaded) {
            return counted.map(drop);
        }
        let left = counted.as_ref().map_or(0, |left| *left);
        standings.push(Standing {
            name: "second".to_owned(),
            units: false,
            max: max.get().into(),
            window_s: 1,
            left: left.into(),
            reset_s: 1,
        });
        counted.map(drop)
    }

    /// The user's entry in the table. It is not evicted while it is held.
    fn user(&self, user: UserId) -> Result<Arc<User>, Refused> {
        let mut users = self.users.lock();
        if !users.contains_key(&user) && users.len() >= self.users_max {
            // Users with a request since the last eviction have a second chance.
            for _ in 0..2 {
                users.retain(|_, known| {
                    let asked = known.asked.swap(false, Ordering::Relaxed);
                    // An entry is only reached through this table, which is locked.
                    asked || Arc::strong_count(known) > 1
                });
                if users.len() < self.users_max {
                    break;
                }
            }
            if users.len() >= self.users_max {
                return Err(Code::Overloaded.into());
            }
        }
        let known = users.entry(user).or_default();
        known.asked.store(true, Ordering::Relaxed);
        let known = Arc::clone(known);
        debug_assert!(users.len() <= self.users_max, "evicted before a user is added");
        Ok(known)
    }

    /// Makes the known usage that of this day.
    async fn read(&self, reads: &Reads, user: UserId, known: &User) -> Result<(), Refused> {
        let today = Day::of_second(self.clock.now_s());
        let is_known = || known.usage.lock().as_mut().map(|usage| usage.seen(today)).is_some();
        if is_known() {
            return Ok(());
        }
        let _reading = known.reading.lock().await;
        if is_known() {
            return Ok(());
        }
        // On the heap: it is long, and seldom needed.
        Box::pin(self.read_again(reads, user, known, today)).await
    }

    async fn read_again(
        &self,
        reads: &Reads,
        user: UserId,
        known: &User,
        today: Day,
    ) -> Result<(), Refused> {
        let away = |failure: postgres::Error| {
            error!(error = chain(&failure), "a user's usage of the day cannot be read");
            Refused::from(Code::SystemError)
        };
        let used = self.used_of(reads, user, today).await.map_err(away)?;
        *known.usage.lock() = Some(Usage::new(today, used));
        Ok(())
    }

    /// The usage of each day from `day` on, read from PostgreSQL: a clock may have run ahead. The
    /// user has no open share.
    async fn used_of(
        &self,
        reads: &Reads,
        user: UserId,
        day: Day,
    ) -> Result<BTreeMap<Day, Sums>, postgres::Error> {
        let mut days = BTreeMap::<Day, Sums>::new();
        let enough = self.day.transfers.unwrap_or(u64::MAX);
        let count = |accepted: Accepted| {
            let moved = !accepted.state.is_undone();
            let metered = moved && self.day.amounts.contains_key(&accepted.asset);
            let units = if metered { accepted.amount.units() } else { 0 };
            let of = Day::of(accepted.at);
            let used = days.entry(of).or_default();
            used.add(Share { asset: accepted.asset, units });
            // If all transfers of the day are used, its sums do not matter.
            used.transfers < enough || of != day
        };
        reads.accepted_since(user, day.start(), count).await?;
        Ok(days)
    }

    /// Takes a share. If the result depends on open shares of the same user, waits for them: a
    /// released share may make room, and a refusal for the whole day must be right.
    async fn take(&self, known: &User, share: Share, patience: &mut Sleep) -> Room {
        loop {
            // Created before the check, so that no later decision is missed.
            let decided = known.decided.notified();
            let room = {
                let mut usage = known.usage.lock();
                usage.as_mut().expect("read before").take(&self.day, share)
            };
            if room != Room::Perhaps {
                return room;
            }
            tokio::select! {
                () = decided => {}
                () = &mut *patience => return room,
            }
        }
    }

    fn report_day(&self, known: &User, checked: &Checked, standings: &mut Vec<Standing>) {
        let asset = &checked.asset;
        let reset_s = self.day_left_s(known);
        let (transfers, amount) =
            known.usage.lock().as_ref().expect("read before").left(&self.day, asset.id);
        let standing =
            |name, units, max, left| Standing { name, units, max, window_s: DAY_S, left, reset_s };
        if let (Some(max), Some(left)) = (self.day.transfers, transfers) {
            standings.push(standing("day".to_owned(), false, max, left));
        }
        if let (Some(max), Some(left)) = (self.day.amounts.get(&asset.id), amount) {
            let name = format!("day-{}", asset.symbol);
            standings.push(standing(name, true, *max, left));
        }
    }

    fn day_left_s(&self, known: &User) -> u64 {
        let day = known.usage.lock().as_ref().expect("read before").day();
        day.left_s(self.clock.now_s())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;

    use super::*;

    /// A clock that stands where it is put, in milliseconds.
    struct Standing(AtomicU64);

    impl Clock for Standing {
        fn now_ns(&self) -> u64 {
            self.monotonic_ns()
        }
        fn monotonic_ns(&self) -> u64 {
            self.0.load(Ordering::Relaxed) * 1_000_000
        }
        fn sleep(&self, _duration: Duration) -> Sleep {
            Box::pin(std::future::pending())
        }
    }

    fn user(number: u64) -> UserId {
        UserId::new(number).expect("in range")
    }

    #[test]
    fn a_second_holds_so_many_and_then_as_many_a_second() {
        let clock = Arc::new(Standing(AtomicU64::new(5_000)));
        let requests_per_second = NonZeroU32::new(10);
        let options = Options { requests_per_second, ..Options::default() };
        let quotas = Quotas::new(options, Arc::clone(&clock) as Arc<dyn Clock>);
        let ask = |number| {
            let mut standings = Vec::new();
            let counted = quotas.count_second(user(number), &mut standings);
            (counted, standings[0].left)
        };
        for left in (0..10).rev() {
            assert_eq!(ask(1), (Ok(()), left));
        }
        let refused = Refused { retry_after_s: Some(1), ..Refused::from(Code::RateLimitExceeded) };
        assert_eq!(ask(1), (Err(refused), 0));
        assert_eq!(ask(2), (Ok(()), 9), "another user");
        clock.0.store(5_100, Ordering::Relaxed);
        assert_eq!((ask(1), ask(1)), ((Ok(()), 0), (Err(refused), 0)), "a tenth of a second");
        clock.0.store(9_000, Ordering::Relaxed);
        assert_eq!(ask(1), (Ok(()), 9), "no more than a second's can be saved");
    }

    #[test]
    fn a_user_has_more_searches_than_requests_and_no_more_than_that() {
        let clock = Arc::new(Standing(AtomicU64::new(5_000)));
        let requests_per_second = NonZeroU32::new(1);
        let options = Options { requests_per_second, ..Options::default() };
        let quotas = Quotas::new(options, Arc::clone(&clock) as Arc<dyn Clock>);
        for _ in 0..SEARCHES_MIN.get() {
            assert_eq!(quotas.admit_search(user(1)), Ok(()));
        }
        let refused = quotas.admit_search(user(1)).expect_err("too many");
        assert_eq!(refused.code, Code::RateLimitExceeded);
        assert_eq!(quotas.admit_search(user(2)), Ok(()), "another user");
        let unlimited = Quotas::new(Options::default(), clock);
        assert_eq!(unlimited.admit_search(user(1)), Ok(()));
    }

    #[test]
    fn who_holds_a_share_is_not_forgotten_and_no_more_users_are_kept_than_there_are_places() {
        let clock = Arc::new(Standing(AtomicU64::new(0)));
        let quotas = Quotas { users_max: 2, ..Quotas::new(Options::default(), clock) };
        let known = |number| quotas.users.lock().contains_key(&user(number));
        let first = quotas.user(user(1)).expect("a place");
        drop(quotas.user(user(2)).expect("a place"));
        let third = quotas.user(user(3)).expect("the place of the second");
        assert_eq!((known(1), known(2), known(3)), (true, false, true));
        assert_eq!(quotas.user(user(4)).expect_err("no place").code, Code::Overloaded);
        let again = quotas.user(user(1)).expect("a place");
        assert!(Arc::ptr_eq(&first, &again), "there is one of each user");
        drop(third);
        drop(quotas.user(user(4)).expect("the place of the third"));
        assert_eq!((known(1), known(3), known(4)), (true, false, true));
    }
}
