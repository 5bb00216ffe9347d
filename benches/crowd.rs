//! Commands to the engine one at a time, and in batches.

use std::collections::VecDeque;
use std::hint::spin_loop;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use domain::transfer::Decision;
use engine::Handle;
use engine::command::Command;
use engine::ledger::Answer;
use engine::recorded::Recorded;
use engine::ring::Pending;
use ubscore::clock::{Clock, SystemClock};

use crate::environment::Latencies;

/// Orders published with one wake-up.
const PUBLISHED: u64 = 512;

fn poll(pending: &mut Pending) -> Option<Answer> {
    match Pin::new(pending).as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(answer) => Some(answer.expect("the engine answers everything")),
        Poll::Pending => None,
    }
}

fn check(answer: Answer) {
    match answer {
        Answer::Decided(Recorded { decision: Decision::Success, .. }) | Answer::Balance { .. } => {}
        other => panic!("{other:?}"),
    }
}

/// Sends commands, and polls for the answer without pause.
pub(crate) fn one_at_a_time(
    handle: &mut Handle,
    count: u64,
    command: impl Fn(u64) -> Command,
) -> Latencies {
    let (mut latencies, clock) = (Latencies::new(), SystemClock::new());
    for number in 0..count {
        let asked = Instant::now();
        let mut pending = handle.submit(command(number), clock.now_ns()).expect("room for one");
        let answer = loop {
            match poll(&mut pending) {
                Some(answer) => break answer,
                None => spin_loop(),
            }
        };
        latencies.record(asked.elapsed());
        check(answer);
    }
    latencies
}

/// Takes out the finished answers: they come in the order of the commands.
pub(crate) fn take_answered(waiting: &mut VecDeque<(Instant, Pending)>, latencies: &mut Latencies) {
    while let Some((asked, pending)) = waiting.front_mut()
        && let Some(answer) = poll(pending)
    {
        latencies.record(asked.elapsed());
        check(answer);
        waiting.pop_front();
    }
}

/// Publishes many orders with one wake-up, as long as there is room; returns the time of all
/// together.
pub(crate) fn batches(
    handle: &mut Handle,
    count: u64,
    command: impl Fn(u64) -> Command,
) -> (Latencies, Duration) {
    let (mut latencies, clock) = (Latencies::new(), SystemClock::new());
    let mut waiting: VecDeque<(Instant, Pending)> = VecDeque::new();
    let (began, mut number) = (Instant::now(), 0);
    while number < count || !waiting.is_empty() {
        let asked = Instant::now();
        let end = (number + PUBLISHED).min(count);
        let published = handle.submit_all((number..end).map(&command), clock.now_ns());
        for pending in published.into_iter().map_while(Result::ok) {
            waiting.push_back((asked, pending));
            number += 1;
        }
        take_answered(&mut waiting, &mut latencies);
        spin_loop();
    }
    (latencies, began.elapsed())
}
