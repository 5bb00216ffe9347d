//! The ground below the bell while loom tries its interleavings, and the claims to check.

use std::cell::Cell;
use std::time::Duration;

use loom::sync::atomic::{AtomicUsize, Ordering, fence};
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;

use crate::{Side, Sleeper};

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
    token: Arc<(Mutex<bool>, Condvar)>,
}

impl Parker {
    pub(crate) fn new() -> Parker {
        Parker { unparker: Unparker { token: Arc::new((Mutex::new(false), Condvar::new())) } }
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
