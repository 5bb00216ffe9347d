//! What one user may ask for in a time: requests a second, transfers a day, an amount of an asset a day.
//!
//! Requests a second are counted here only, by the crate `governor`: as many at once as are allowed in a second, and
//! from there on as many a second. What is allowed a day must outlive the process, and is kept exactly: [`usage`] is read
//! from PostgreSQL when a user first asks, and from then on every accept passes through it, since no other process
//! accepts. A [`Reservation`] is a share of the day that travels with the transfer: it is taken before the transfer is handed
//! to its worker, and whoever holds it when the accept is decided says so. Dropped undecided, it is given back; where it
//! is unknown whether there was an accept, it stays with the search for it. So no crash of a request, no client that hangs
//! up and no retry of a cid can make the sums wrong.
//!
//! A user whose share is out, or whose transfer is under way, is never forgotten; so a user is read from PostgreSQL only
//! when nothing of theirs can be on its way there.

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

/// Users of whom is known what they have used, a few hundred bytes each. Beyond, those who have not asked for longest are
/// read again when they ask; where all of them have transfers under way, the next user is answered OVERLOADED.
const USERS_MAX: usize = 100_000;
/// Users counted in one second, some thirty bytes each; the next one is answered OVERLOADED.
const USERS_PER_SECOND_MAX: usize = 100_000;
/// How long a request waits for PostgreSQL to say what its user has used, and then for others of the same user, before it
/// is answered SYSTEM_ERROR or OVERLOADED.
pub(crate) const PATIENCE: Duration = Duration::from_secs(2);
/// Seconds in the window of a daily limit.
const DAY_S: u64 = 86_400;

/// What is allowed. Nothing is limited by default.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Requests of one user a second.
    pub requests_per_second: Option<NonZeroU32>,
    /// What one user may use of a day.
    pub day: DayMax,
}

/// Why a request may not go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused {
    /// One of the three limits, OVERLOADED or SYSTEM_ERROR.
    pub code: Code,
    /// When there is more of what is limited, s.
    pub retry_after_s: Option<u64>,
    /// Whether the same request can succeed then.
    pub retryable: bool,
}

impl From<Code> for Refused {
    fn from(code: Code) -> Refused {
        Refused { code, retry_after_s: None, retryable: code.retryable() }
    }
}

/// How a limit stands for one user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Standing {
    /// Its name on the wire.
    pub name: String,
    /// Whether it counts an asset's smallest units, and not requests.
    pub units: bool,
    /// What is allowed in its window.
    pub max: u64,
    /// The window, s.
    pub window_s: u64,
    /// What is left.
    pub left: u64,
    /// When there is more again, s.
    pub reset_s: u64,
}

/// Our clock, as `governor` asks for it.
#[derive(Clone)]
struct Monotonic(Arc<dyn Clock>);

impl governor::clock::Clock for Monotonic {
    type Instant = Nanos;

    fn now(&self) -> Nanos {
        Nanos::new(self.0.monotonic_ns())
    }
}

type PerSecond =
    RateLimiter<UserId, HashMapStateStore<UserId>, Monotonic, StateInformationMiddleware>;

/// What is known of one user's day.
#[derive(Debug, Default)]
struct User {
    /// `None` until it has been read.
    usage: Mutex<Option<Usage>>,
    /// Held by whoever asks PostgreSQL.
    reading: tokio::sync::Mutex<()>,
    /// A share has been decided.
    decided: Notify,
    /// Since the last look for users to forget.
    asked: AtomicBool,
}

/// A share of a user's day, for one transfer.
#[derive(Debug)]
pub struct Reservation {
    user: Arc<User>,
    share: Share,
    /// In which the transfer was accepted; `None`: not decided.
    day: Option<Day>,
}

impl Reservation {
    /// The transfer has been accepted, at this time of PostgreSQL's.
    pub fn accept(&mut self, at: Timestamp) {
        self.accept_in(|_| Day::of(at));
    }

    /// The transfer may have been accepted, and nobody can tell any more: it counts.
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

    /// The transfer has ended.
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
    /// Changes what is known, and tells those who wait.
    fn update<R>(&self, change: impl FnOnce(&mut Usage) -> R) -> R {
        let changed = change(self.usage.lock().as_mut().expect("a share is of what was read"));
        self.decided.notify_waiters();
        changed
    }
}

/// Searches a second for the cids of refused requests. A repeat of a known cid is answered beyond the limit of requests too,
/// so there may be more of them; each costs a read of PostgreSQL.
const SEARCHES_PER_REQUEST: u32 = 10;
/// The least of them, for a client whose many repeats come at once.
const SEARCHES_MIN: NonZeroU32 = NonZeroU32::new(100).expect("above zero");

fn searches(requests: NonZeroU32) -> NonZeroU32 {
    let many = requests.get().saturating_mul(SEARCHES_PER_REQUEST);
    NonZeroU32::new(many).unwrap_or(SEARCHES_MIN).max(SEARCHES_MIN)
}

/// Counts one request of a user's; returns how many more there may be now.
fn count(limiter: &PerSecond, user: UserId) -> Result<u32, Refused> {
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
    second: Option<(NonZeroU32, PerSecond)>,
    /// Searches for the cid of a refused request, see [`searches`].
    searches: Option<(NonZeroU32, PerSecond)>,
    day: DayMax,
    users: Mutex<HashMap<UserId, Arc<User>>>,
    users_max: usize,
}

impl Quotas {
    /// Nobody has used anything of a second, and what they have used of the day is read when they ask.
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

    /// Counts a request that nothing else stands against, and takes its share of the day; `None` where no day is limited.
    ///
    /// `told`: how each limit stands now that this request is counted, whatever the answer is.
    ///
    /// # Errors
    /// [`Refused`]: it has no share of the day.
    pub async fn admit(
        &self,
        reads: &Reads,
        user: UserId,
        checked: &Checked,
        told: &mut Vec<Standing>,
    ) -> Result<Option<Reservation>, Refused> {
        self.count_second(user, told)?;
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
        self.tell_day(&known, checked, told);
        match room {
            Room::Taken => Ok(Some(Reservation { user: known, share, day: None })),
            Room::None(limit) => {
                let code = match limit {
                    Limit::Transfers => Code::DailyLimitExceeded,
                    Limit::Amount => Code::DailyAmountExceeded,
                };
                let retry_after_s = Some(self.day_left_s(&known));
                // More than a whole day's is refused tomorrow as well.
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
    /// [`Refused`]: the user has no more of them in this second.
    pub fn admit_search(&self, user: UserId) -> Result<(), Refused> {
        let Some((_, limiter)) = &self.searches else { return Ok(()) };
        count(limiter, user).map(drop)
    }

    fn count_second(&self, user: UserId, told: &mut Vec<Standing>) -> Result<(), Refused> {
        let Some((max, limiter)) = &self.second else { return Ok(()) };
        let counted = count(limiter, user);
        if matches!(&counted, Err(refused) if refused.code == Code::Overloaded) {
            return counted.map(drop);
        }
        let left = counted.as_ref().map_or(0, |left| *left);
        told.push(Standing {
            name: "second".to_owned(),
            units: false,
            max: max.get().into(),
            window_s: 1,
            left: left.into(),
            reset_s: 1,
        });
        counted.map(drop)
    }

    /// The user's place in the table, which they keep as long as somebody holds it.
    fn user(&self, user: UserId) -> Result<Arc<User>, Refused> {
        let mut users = self.users.lock();
        if !users.contains_key(&user) && users.len() >= self.users_max {
            // Those who have asked since the last look have a second chance.
            for _ in 0..2 {
                users.retain(|_, known| {
                    let asked = known.asked.swap(false, Ordering::Relaxed);
                    // Nobody else can come by a place but through this table, which is locked.
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
        Ok(Arc::clone(known))
    }

    /// Sees to it that what is known is of this day.
    async fn read(&self, reads: &Reads, user: UserId, known: &User) -> Result<(), Refused> {
        let today = Day::of_second(self.clock.now_s());
        // Where the two clocks disagree, PostgreSQL is asked each time: its stamps count, and its clock may go back.
        let is_of_today = || known.usage.lock().as_ref().is_some_and(|usage| usage.day() == today);
        if is_of_today() {
            return Ok(());
        }
        let _reading = known.reading.lock().await;
        if is_of_today() {
            return Ok(());
        }
        let away = |failure: postgres::Error| {
            error!(error = chain(&failure), "what a user has used of the day cannot be read");
            Refused::from(Code::SystemError)
        };
        let day = Day::of(reads.now().await.map_err(away)?);
        if let Some(usage) = known.usage.lock().as_mut() {
            usage.seen(day);
            return Ok(());
        }
        // From the earlier day on: where one clock is ahead, the other says which day it will be again.
        let used = self.used_of(reads, user, day, day.min(today)).await.map_err(away)?;
        *known.usage.lock() = Some(Usage::new(day, used));
        Ok(())
    }

    /// What a user with no share out has used of each day from `since` on, from PostgreSQL, which is in `day`.
    async fn used_of(
        &self,
        reads: &Reads,
        user: UserId,
        day: Day,
        since: Day,
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
            // After all transfers of the day are used up, no sum of it matters any more.
            used.transfers < enough || of != day || since != day
        };
        reads.accepted_since(user, since.start(), count).await?;
        Ok(days)
    }

    /// Takes a share, and waits for those that others of the user's have open where it depends on them. A share that is
    /// given back may be the last one: who is refused for the day must not have been refused for nothing.
    async fn take(&self, known: &User, share: Share, patience: &mut Sleep) -> Room {
        loop {
            // Before the look, so that nothing that is decided after it is missed.
            let decided = known.decided.notified();
            let room = {
                let mut usage = known.usage.lock();
                usage.as_mut().expect("it was read").take(&self.day, share)
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

    fn tell_day(&self, known: &User, checked: &Checked, told: &mut Vec<Standing>) {
        let asset = &checked.asset;
        let reset_s = self.day_left_s(known);
        let (transfers, amount) =
            known.usage.lock().as_ref().expect("it was read").left(&self.day, asset.id);
        let standing =
            |name, units, max, left| Standing { name, units, max, window_s: DAY_S, left, reset_s };
        if let (Some(max), Some(left)) = (self.day.transfers, transfers) {
            told.push(standing("day".to_owned(), false, max, left));
        }
        if let (Some(max), Some(left)) = (self.day.amounts.get(&asset.id), amount) {
            let name = format!("day-{}", asset.symbol);
            told.push(standing(name, true, *max, left));
        }
    }

    fn day_left_s(&self, known: &User) -> u64 {
        let day = known.usage.lock().as_ref().expect("it was read").day();
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
            let mut told = Vec::new();
            let counted = quotas.count_second(user(number), &mut told);
            (counted, told[0].left)
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
