//! The last steps of transfers after their clients have the answer.
//!
//! No client waits for such a step. It waits a moment for others, so that they share a commit.

use super::ns;
use super::queue::Queued;

/// The longest wait of a mark for others, milliseconds. A call that comes meanwhile would
/// otherwise have to wait for the commit of a lonely mark.
const WAIT_MS: u64 = 5;
/// With this many marks there is no more wait.
const TOGETHER_MAX: usize = 16;

/// See the module.
#[derive(Default)]
pub(super) struct Marks {
    steps: Vec<Queued>,
    /// The end of the wait of the oldest one, monotonic ns.
    due_ns: u64,
}

impl Marks {
    /// Adds a step that has arrived in the queue's order.
    pub(super) fn push(&mut self, step: Queued, now: u64) {
        if self.steps.is_empty() {
            self.due_ns = now + ns(WAIT_MS);
        }
        self.steps.push(step);
    }

    /// The steps, if their wait is over. `last`: the worker is about to end.
    pub(super) fn take(&mut self, now: u64, last: bool) -> Vec<Queued> {
        match last || self.steps.len() >= TOGETHER_MAX || now >= self.due_ns {
            true => std::mem::take(&mut self.steps),
            false => Vec::new(),
        }
    }

    /// When they are due, monotonic ns; `u64::MAX` for never.
    pub(super) fn due_ns(&self) -> u64 {
        if self.steps.is_empty() { u64::MAX } else { self.due_ns }
    }
}

#[cfg(test)]
mod tests {
    use super::super::reply::ReplyTo;
    use super::*;
    use crate::postgres::store::{Call, Sought};
    use domain::transfer::ReqId;

    fn mark() -> Queued {
        let req_id = ReqId::new(1).expect("not zero");
        Queued::own(Call::Find(Sought::ReqId(req_id)), ReplyTo::Nothing)
    }

    #[test]
    fn marks_wait_for_company_from_the_oldest_on() {
        let mut marks = Marks::default();
        assert_eq!(marks.due_ns(), u64::MAX);
        marks.push(mark(), 1_000);
        marks.push(mark(), ns(4));
        let due = 1_000 + ns(WAIT_MS);
        assert_eq!(marks.due_ns(), due);
        assert!(marks.take(due - 1, false).is_empty());
        assert_eq!(marks.take(due, false).len(), 2);
        assert_eq!(marks.due_ns(), u64::MAX);
        marks.push(mark(), due + 7);
        assert_eq!(marks.due_ns(), due + 7 + ns(WAIT_MS), "a new wait");
    }

    #[test]
    fn many_marks_and_the_last_ones_do_not_wait() {
        let mut marks = Marks::default();
        for count in 1..=TOGETHER_MAX {
            assert!(marks.take(0, false).is_empty(), "{count}");
            marks.push(mark(), 0);
        }
        assert_eq!(marks.take(0, false).len(), TOGETHER_MAX);
        marks.push(mark(), 0);
        assert_eq!(marks.take(0, true).len(), 1);
    }
}
