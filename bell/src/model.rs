//! The ground below the bell while loom tries its interleavings, and the claims to check.

use std::cell::Cell;
use std::collections::VecDeque;
// Not loom's: it cannot be dropped by a thread that finds a deadlock.
use std::sync::Arc;
use std::task::{Wake, Waker};
use std::time::Duration;

use loom::sync::atomic::{AtomicU64, AtomicUsize, Ordering, fence};
use loom::sync::{Condvar, Mutex as LoomMutex, MutexGuard};
use loom::thread;

use crate::{Bell, Replies, Side, Sleeper};

thread_local! {
    /// The side without its fence. loom runs all threads of a model on the thread of its test.
    static UNFENCED: Cell<Option<Side>> = const { Cell::new(None) };
}

pub(crate) fn fence_of(side: Side) {
    if UNFENCED.get() != Some(side) {
        fence(Ordering::SeqCst);
    }
}

/// A token that is put down once and taken once, as in crossbeam's parker.
#[derive(Debug)]
pub(crate) struct Parker {
    unparker: Unparker,
}

#[derive(Clone, Debug)]
pub(crate) struct Unparker {
    token: Arc<(LoomMutex<bool>, Condvar)>,
}

impl Parker {
    pub(crate) fn new() -> Parker {
        Parker { unparker: Unparker { token: Arc::new((LoomMutex::new(false), Condvar::new())) } }
    }

    pub(crate) fn unparker(&self) -> &Unparker {
        &self.unparker
    }

    /// Time does not pass in a model: a wait that only a timeout would end is a deadlock, which
    /// loom finds.
    pub(crate) fn park_timeout(&self, _: Duration) {
        let (token, put_down) = &*self.unparker.token;
        let mut token = token.lock().expect("no panic under the lock");
        while !*token {
            token = put_down.wait(token).expect("no panic under the lock");
        }
        *token = false;
    }
}

impl Unparker {
    pub(crate) fn unpark(&self) {
        let (token, put_down) = &*self.token;
        *token.lock().expect("no panic under the lock") = true;
        put_down.notify_one();
    }
}

impl Wake for Unparker {
    fn wake(self: Arc<Unparker>) {
        self.unpark();
    }
}

/// A lock without poison, as parking_lot's.
#[derive(Debug)]
pub(crate) struct Mutex<T>(LoomMutex<T>);

impl<T> Mutex<T> {
    pub(crate) fn new(value: T) -> Mutex<T> {
        Mutex(LoomMutex::new(value))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().expect("no panic under the lock")
    }
}

/// A bounded queue. crossbeam's own interleavings are not tried.
#[derive(Debug)]
pub(crate) struct ArrayQueue<T> {
    places: usize,
    all: Mutex<VecDeque<T>>,
}

impl<T> ArrayQueue<T> {
    pub(crate) fn new(places: usize) -> ArrayQueue<T> {
        ArrayQueue { places, all: Mutex::new(VecDeque::new()) }
    }

    pub(crate) fn push(&self, value: T) -> Result<(), T> {
        let mut all = self.all.lock();
        if all.len() == self.places {
            return Err(value);
        }
        all.push_back(value);
        Ok(())
    }

    pub(crate) fn pop(&self) -> Option<T> {
        self.all.lock().pop_front()
    }
}

/// `producers` threads publish one piece of work each and ring; the sleeper takes all of it. Work
/// is published as weakly as possible, so that only the bell's fences order it.
fn all_work_is_taken(producers: usize) {
    let sleeper = Sleeper::new();
    let published = Arc::new(AtomicUsize::new(0));
    let threads: Vec<_> = (0..producers)
        .map(|_| {
            let (bell, published) = (sleeper.bell(), Arc::clone(&published));
            thread::spawn(move || {
                published.fetch_add(1, Ordering::Relaxed);
                bell.ring();
            })
        })
        .collect();
    let mut taken = 0;
    while taken < producers {
        let work = || published.load(Ordering::Relaxed) > taken;
        if work() {
            taken += 1;
        } else {
            sleeper.sleep(work, Duration::MAX);
        }
    }
    threads.into_iter().for_each(|thread| thread.join().expect("rung"));
}

/// Goal: the sleeper misses no work. Method: every interleaving and every value that the memory
/// model allows to be read.
#[test]
fn loom_a_bell_wakes_a_sleeper_or_its_work_is_seen() {
    loom::model(|| all_work_is_taken(1));
}

/// Three threads have too many interleavings for all: those in which a thread is interrupted up to
/// three times.
#[test]
fn loom_two_who_ring_at_once_wake_a_sleeper_for_both() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| all_work_is_taken(2));
}

/// Goal: the sleeper's earlier state, asleep or awake, does not cost it the next ring. Method: work
/// in two pieces by one producer; the second may come while the sleeper is falling asleep, asleep,
/// waking up, or awake.
#[test]
fn loom_a_second_ring_is_not_lost_behind_the_first() {
    loom::model(|| {
        let sleeper = Sleeper::new();
        let published = Arc::new(AtomicUsize::new(0));
        let (bell, count) = (sleeper.bell(), Arc::clone(&published));
        let producer = thread::spawn(move || {
            for _ in 0..2 {
                count.fetch_add(1, Ordering::Relaxed);
                bell.ring();
            }
        });
        for taken in 0..2 {
            while published.load(Ordering::Relaxed) <= taken {
                sleeper.sleep(|| published.load(Ordering::Relaxed) > taken, Duration::MAX);
            }
        }
        producer.join().expect("rung");
    });
}

#[test]
#[should_panic(expected = "deadlock")]
fn loom_without_the_bells_fence_work_is_slept_over() {
    UNFENCED.set(Some(Side::Bell));
    loom::model(|| all_work_is_taken(1));
}

#[test]
#[should_panic(expected = "deadlock")]
fn loom_without_the_sleepers_fence_work_is_slept_over() {
    UNFENCED.set(Some(Side::Sleeper));
    loom::model(|| all_work_is_taken(1));
}

/// A mistake in the release of replies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mistake {
    /// The syncing thread falls asleep without a look at the replies told.
    SleepsOverTold,
    /// The session registers its waker behind its look.
    RegistersLate,
    /// The session releases each reply at once.
    ReleasesEarly,
}

/// The log and the line of one session. A record's number is the number of its reply.
struct Stage {
    appended: AtomicU64,
    /// The records on the disk. Only the mark below orders it.
    synced: AtomicU64,
    durable: AtomicU64,
    /// Replies told that wait for a sync.
    told: AtomicU64,
    replies: Replies<u64>,
}

/// The thread that decides: each record is appended, then its reply is told.
fn decide(stage: &Stage, bell: &Bell, records: u64) {
    for record in 1..=records {
        stage.appended.store(record, Ordering::Release);
        stage.replies.tell(record);
        stage.told.fetch_add(1, Ordering::Release);
        bell.ring();
    }
}

/// The thread that syncs. It ends once all is durable and the session woken behind it.
fn sync(stage: &Stage, sleeper: &Sleeper, records: u64, mistake: Option<Mistake>) {
    let (mut durable, mut woken) = (0, 0);
    while durable < records || woken < records {
        let before = durable;
        durable = stage.appended.load(Ordering::Acquire);
        stage.synced.store(durable, Ordering::Relaxed);
        stage.durable.store(durable, Ordering::Release);
        let told = stage.told.load(Ordering::Acquire);
        if durable > before || told != woken {
            stage.replies.wake();
            woken = told;
            continue;
        }
        let work = || {
            let is_told = stage.told.load(Ordering::Relaxed) != woken;
            stage.appended.load(Ordering::Relaxed) > durable
                || is_told && mistake != Some(Mistake::SleepsOverTold)
        };
        sleeper.sleep(work, Duration::MAX);
    }
}

/// The session: it takes replies, and releases those that are durable.
fn listen(stage: &Stage, records: u64, mistake: Option<Mistake>) {
    let parker = Parker::new();
    let waker = Waker::from(Arc::new(parker.unparker().clone()));
    let (mut taken, mut released) = (VecDeque::new(), 0);
    loop {
        if mistake != Some(Mistake::RegistersLate) {
            stage.replies.register(&waker);
        }
        while let Some(record) = stage.replies.take() {
            taken.push_back(record);
        }
        let durable = match mistake {
            Some(Mistake::ReleasesEarly) => u64::MAX,
            _ => stage.durable.load(Ordering::Acquire),
        };
        while let Some(record) = taken.pop_front_if(|record| *record <= durable) {
            assert_eq!(record, released + 1, "a reply is lost");
            assert!(record <= stage.synced.load(Ordering::Relaxed), "{record} is not durable");
            released = record;
        }
        if released == records {
            return;
        }
        if mistake == Some(Mistake::RegistersLate) {
            stage.replies.register(&waker);
        }
        parker.park_timeout(Duration::MAX);
    }
}

/// Three threads: all interleavings in which one is interrupted up to `interrupted` times.
fn all_replies_are_released(records: u64, interrupted: usize, mistake: Option<Mistake>) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(interrupted);
    model.check(move || {
        let stage = Arc::new(Stage {
            appended: AtomicU64::new(0),
            synced: AtomicU64::new(0),
            durable: AtomicU64::new(0),
            told: AtomicU64::new(0),
            replies: Replies::new(2),
        });
        let sleeper = Sleeper::new();
        let (bell, deciding, syncing) = (sleeper.bell(), Arc::clone(&stage), Arc::clone(&stage));
        let decider = thread::spawn(move || decide(&deciding, &bell, records));
        let syncer = thread::spawn(move || sync(&syncing, &sleeper, records, mistake));
        listen(&stage, records, mistake);
        decider.join().expect("all is decided");
        syncer.join().expect("all is durable");
    });
}

/// Goal: a reply is released once its record is durable and never before, none is lost, and the
/// sleeping session is woken for it.
#[test]
fn loom_a_reply_is_released_once_it_is_durable() {
    all_replies_are_released(1, 3, None);
}

#[test]
fn loom_a_second_reply_is_not_lost_behind_the_first() {
    all_replies_are_released(2, 2, None);
}

/// Story: a sync covered a record whose reply was told a moment later, and the bell rang just
/// before the syncing thread fell asleep. The session heard of the reply with the next sync.
#[test]
#[should_panic(expected = "deadlock")]
fn loom_a_syncing_thread_that_does_not_look_at_replies_sleeps_over_one() {
    all_replies_are_released(1, 3, Some(Mistake::SleepsOverTold));
}

#[test]
#[should_panic(expected = "deadlock")]
fn loom_a_session_that_registers_behind_its_look_is_not_woken() {
    all_replies_are_released(1, 3, Some(Mistake::RegistersLate));
}

#[test]
#[should_panic(expected = "is not durable")]
fn loom_a_reply_that_does_not_wait_is_released_early() {
    all_replies_are_released(1, 3, Some(Mistake::ReleasesEarly));
}

/// Goal: a session is woken by its end, also if it falls asleep at that moment.
#[test]
fn loom_a_session_that_is_ended_does_not_sleep_on() {
    loom::model(|| {
        let replies = Arc::new(Replies::<u64>::new(1));
        let ending = Arc::clone(&replies);
        let end = thread::spawn(move || ending.fence());
        let parker = Parker::new();
        let waker = Waker::from(Arc::new(parker.unparker().clone()));
        replies.register(&waker);
        while !replies.fenced() {
            parker.park_timeout(Duration::MAX);
            replies.register(&waker);
        }
        end.join().expect("ended");
    });
}
