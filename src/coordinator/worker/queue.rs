//! The calls that wait for the next commit, in the order of their arrival.
//!
//! A call that the store blocks is parked for a while, and the others go on. Later calls of the
//! same user are parked with it: a search for a cid must see every accept that came before it.
//! Their number has a bound.

use std::collections::VecDeque;

use tracing::Span;

use super::reply::ReplyTo;
use super::undecided::Claim;
use crate::coordinator::request::Rejection;
use crate::postgres::store::{Call, Sought};
use crate::quota::Reservation;
use domain::account::UserId;
use domain::code::Code;
use domain::transfer::ReqId;

/// A call on its way into a commit, with its reply.
pub(super) struct Queued {
    /// For the store.
    pub(super) call: Call,
    /// Everything else about it.
    pub(super) ticket: Ticket,
}

/// The part of a queued call that the store does not see.
pub(super) struct Ticket {
    /// The destination of the reply.
    pub(super) reply_to: ReplyTo,
    /// An earlier commit with this call may have been carried out.
    pub(super) maybe: bool,
    /// The present commit only searches for it: a withdrawal that waits for a clean round of the
    /// audit.
    pub(super) held: bool,
    /// The end of the caller's wait, monotonic ns; `u64::MAX` without a caller.
    pub(super) deadline_ns: u64,
    /// Times that the store blocked this call and took others.
    pub(super) tries: u32,
    /// Its place in the order of arrival, from 1; 0 before it has arrived.
    pub(super) arrival: u64,
    /// The share of the daily limit, for an accept that is not decided.
    pub(super) reservation: Option<Reservation>,
    /// The cid, for an accept that is not decided. Dropped with the decision.
    pub(super) claim: Option<Claim>,
    /// The request or the transfer that the call is a part of.
    pub(super) span: Span,
}

impl Queued {
    /// A call of the worker itself.
    pub(super) fn own(call: Call, reply_to: ReplyTo) -> Queued {
        let ticket = Ticket {
            reply_to,
            maybe: false,
            held: false,
            deadline_ns: u64::MAX,
            tries: 0,
            arrival: 0,
            reservation: None,
            claim: None,
            span: Span::none(),
        };
        Queued { call, ticket }
    }

    /// Whether a caller waits for it and it was never begun, so that it can be rejected.
    pub(super) fn is_unbegun(&self) -> bool {
        !self.ticket.maybe && self.ticket.reply_to.is_caller()
    }

    /// Whether the caller's wait is over and the call was never begun. It must not be done later,
    /// because the caller is answered that it was not done.
    pub(super) fn is_expired(&self, now: u64) -> bool {
        now >= self.ticket.deadline_ns && self.is_unbegun()
    }

    /// The answer for the caller of a call that is given up.
    pub(super) fn rejection(&self) -> Rejection {
        match self.ticket.maybe {
            true => Rejection::unknown(),
            false => Rejection::of(Code::SystemError),
        }
    }

    /// The user, for the order of the user's calls. `None` if the call waits for no rows of a user
    /// and searches for no cid.
    pub(super) fn user(&self) -> Option<UserId> {
        match &self.call {
            Call::Find(Sought::Cid(user, _)) => Some(*user),
            Call::Defer { .. } => None,
            call => call.user(),
        }
    }

    /// The transfer of a step.
    pub(super) fn stepped(&self) -> Option<ReqId> {
        match &self.call {
            Call::Step { transfer, .. } => Some(transfer.intent.req_id),
            _ => None,
        }
    }
}

/// The next call of a queue.
pub(super) enum Next {
    /// For the commit.
    Ready(Queued),
    /// The caller's wait is over.
    Expired(Queued),
    /// Too many calls of its user are parked. It was never begun.
    Crowded(Queued),
}

/// See the module.
#[derive(Default)]
pub(super) struct Queue {
    ready: VecDeque<Queued>,
    /// Each with the time of its next try, monotonic ns.
    parked: Vec<(u64, Queued)>,
    arrivals: u64,
}

impl Queue {
    /// Gives a call its place in the order of arrival.
    pub(super) fn arrived(&mut self, mut queued: Queued) -> Queued {
        assert_eq!(queued.ticket.arrival, 0, "{:?} arrives a second time", queued.call);
        self.arrivals += 1;
        queued.ticket.arrival = self.arrivals;
        queued
    }

    /// Appends a new call.
    pub(super) fn push(&mut self, queued: Queued) {
        let queued = self.arrived(queued);
        self.ready.push_back(queued);
    }

    /// Appends calls that have arrived before.
    pub(super) fn append(&mut self, arrived: impl IntoIterator<Item = Queued>) {
        self.ready.extend(arrived);
    }

    /// Puts a call back to the front.
    pub(super) fn put_back(&mut self, queued: Queued) {
        self.ready.push_front(queued);
    }

    /// Puts a whole batch back to the front, in its order.
    pub(super) fn put_all_back(&mut self, batch: impl DoubleEndedIterator<Item = Queued>) {
        batch.rev().for_each(|queued| self.put_back(queued));
    }

    /// The next call that is not parked, `None` if there is none. A call behind a parked one of its
    /// user is parked too: it would block on the same rows and delay the batch. `behind_max`: the
    /// most calls that wait behind the first one of a user.
    pub(super) fn next(&mut self, now: u64, behind_max: usize) -> Option<Next> {
        while let Some(queued) = self.ready.pop_front() {
            let (user, arrival) = (queued.user(), queued.ticket.arrival);
            let of_user = |parked: &Queued| user.is_some() && parked.user() == user;
            let mut parked = self.parked.iter().filter(|(_, parked)| of_user(parked));
            let before = parked.find(|(_, parked)| parked.ticket.arrival < arrival);
            if queued.is_expired(now) {
                return Some(Next::Expired(queued));
            }
            let Some(&(due, _)) = before else { return Some(Next::Ready(queued)) };
            let count = self.parked.iter().filter(|(_, parked)| of_user(parked)).count();
            if count > behind_max && queued.is_unbegun() {
                return Some(Next::Crowded(queued));
            }
            self.parked.push((due, queued));
        }
        None
    }

    /// Sets a call aside until `due`, monotonic ns.
    pub(super) fn park(&mut self, queued: Queued, due: u64) {
        self.parked.push((due, queued));
    }

    /// Parked steps of transfers.
    pub(super) fn parked_transfers(&self) -> usize {
        self.parked.iter().filter(|(_, queued)| queued.stepped().is_some()).count()
    }

    /// Makes every parked call of a user due.
    pub(super) fn wake(&mut self, user: UserId) {
        for (due, queued) in &mut self.parked {
            if queued.user() == Some(user) {
                *due = 0;
            }
        }
    }

    /// Puts the parked calls that are due back among the others, in the order of arrival.
    pub(super) fn unpark(&mut self, now: u64) {
        let (due, later): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.parked).into_iter().partition(|(due, _)| *due <= now);
        self.parked = later;
        if !due.is_empty() {
            self.ready.extend(due.into_iter().map(|(_, queued)| queued));
            self.ready.make_contiguous().sort_by_key(|queued| queued.ticket.arrival);
        }
    }

    /// Removes the calls that are expired.
    pub(super) fn expire(&mut self, now: u64) -> Vec<Queued> {
        let mut expired = Vec::new();
        for queued in std::mem::take(&mut self.ready) {
            match queued.is_expired(now) {
                true => expired.push(queued),
                false => self.ready.push_back(queued),
            }
        }
        for (due, queued) in std::mem::take(&mut self.parked) {
            match queued.is_expired(now) {
                true => expired.push(queued),
                false => self.parked.push((due, queued)),
            }
        }
        expired
    }

    /// The step of a transfer that waits for its commit.
    pub(super) fn step_of(&self, req_id: ReqId) -> Option<&Queued> {
        let parked = self.parked.iter().map(|(_, queued)| queued);
        self.ready.iter().chain(parked).find(|queued| queued.stepped() == Some(req_id))
    }

    /// Calls that are not parked.
    pub(super) fn len(&self) -> usize {
        self.ready.len()
    }

    /// Whether every call is parked.
    pub(super) fn is_empty(&self) -> bool {
        self.ready.is_empty()
    }

    /// Whether it holds a call, parked or not.
    pub(super) fn holds_work(&self) -> bool {
        !self.ready.is_empty() || !self.parked.is_empty()
    }

    /// Whether a caller waits for a parked call.
    pub(super) fn keeps_a_caller(&self) -> bool {
        self.parked.iter().any(|(_, queued)| queued.ticket.reply_to.is_caller())
    }

    /// When the next parked call is due, monotonic ns; `u64::MAX` for never.
    pub(super) fn due_ns(&self) -> u64 {
        self.parked.iter().map(|(due, _)| *due).min().unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use domain::account::AccountStatus;
    use domain::transfer::Cid;

    use super::super::reply::Caller;
    use super::*;

    fn user(number: u64) -> UserId {
        UserId::new(number).expect("an id")
    }

    /// A call of a user. Its name tells calls apart.
    fn call(number: u64, name: &str) -> Queued {
        let status = AccountStatus::Active;
        let (actor, reason) = (name.to_owned(), String::new());
        let call = Call::SetFundingStatus { user: user(number), status, actor, reason };
        Queued::own(call, ReplyTo::Nothing)
    }

    fn search(number: u64, cid: &str) -> Queued {
        let cid = Cid::new(cid).expect("a cid");
        Queued::own(Call::Find(Sought::Cid(user(number), cid)), ReplyTo::Nothing)
    }

    fn name(queued: &Queued) -> String {
        match &queued.call {
            Call::SetFundingStatus { actor, .. } => actor.clone(),
            Call::Find(Sought::Cid(_, cid)) => cid.as_str().to_owned(),
            call => panic!("{call:?}"),
        }
    }

    /// The calls that a batch would get now.
    fn batch(queue: &mut Queue) -> Vec<Queued> {
        let ready = std::iter::from_fn(|| queue.next(0, 64)).map(|next| match next {
            Next::Ready(queued) => queued,
            Next::Expired(queued) | Next::Crowded(queued) => panic!("{}", name(&queued)),
        });
        ready.collect()
    }

    fn names(batch: &[Queued]) -> Vec<String> {
        batch.iter().map(name).collect()
    }

    #[test]
    fn calls_come_out_in_the_order_of_arrival_and_a_returned_batch_comes_first() {
        let mut queue = Queue::default();
        for (number, name) in [(1, "a"), (2, "b"), (1, "c")] {
            queue.push(call(number, name));
        }
        let taken = batch(&mut queue);
        assert_eq!(names(&taken), ["a", "b", "c"]);
        queue.push(call(3, "d"));
        queue.put_all_back(taken.into_iter());
        assert_eq!(names(&batch(&mut queue)), ["a", "b", "c", "d"]);
        assert!(queue.is_empty() && !queue.holds_work());
    }

    /// A parked call stops the later calls of its user, and no others. Once due, all of them
    /// return in the order of arrival.
    #[test]
    fn a_user_keeps_its_order_around_a_parked_call() {
        let mut queue = Queue::default();
        for queued in [call(1, "a"), call(1, "b"), search(1, "c"), call(2, "d"), call(1, "e")] {
            queue.push(queued);
        }
        let mut taken = batch(&mut queue).into_iter();
        let (first, blocked) = (taken.next().expect("a"), taken.next().expect("b"));
        queue.park(blocked, 50);
        queue.put_all_back([first].into_iter().chain(taken));
        assert_eq!(names(&batch(&mut queue)), ["a", "d"], "the earlier call and the other user");
        assert!(queue.is_empty() && queue.holds_work());
        assert_eq!(queue.due_ns(), 50, "all of them with the parked one");
        queue.push(call(2, "f"));
        queue.unpark(49);
        assert_eq!(names(&batch(&mut queue)), ["f"]);
        queue.push(call(2, "g"));
        queue.unpark(50);
        assert_eq!(names(&batch(&mut queue)), ["b", "c", "e", "g"]);
        assert_eq!(queue.due_ns(), u64::MAX);
    }

    /// Only a call with a caller that was never begun is turned away, and only behind its own user.
    #[test]
    fn the_calls_behind_a_parked_one_have_a_bound() {
        let mut queue = Queue::default();
        let called = |number, name: &str| {
            let mut queued = call(number, name);
            queued.ticket.reply_to = ReplyTo::Store(Caller::new().0);
            queued
        };
        let first = queue.arrived(call(1, "a"));
        queue.park(first, 50);
        for queued in [called(1, "b"), called(1, "c"), called(1, "d"), call(1, "own")] {
            queue.push(queued);
        }
        queue.push(called(2, "other"));
        let turned = queue.next(0, 2);
        assert!(matches!(turned, Some(Next::Crowded(queued)) if name(&queued) == "d"));
        let next = queue.next(0, 2);
        assert!(matches!(next, Some(Next::Ready(queued)) if name(&queued) == "other"));
        queue.unpark(50);
        assert_eq!(names(&batch(&mut queue)), ["a", "b", "c", "own"]);
    }

    #[test]
    fn waking_a_user_makes_its_parked_calls_due() {
        let mut queue = Queue::default();
        for (number, name) in [(1, "a"), (2, "b")] {
            let queued = queue.arrived(call(number, name));
            queue.park(queued, 1_000);
        }
        queue.wake(user(2));
        queue.unpark(0);
        assert_eq!(names(&batch(&mut queue)), ["b"]);
        assert_eq!(queue.due_ns(), 1_000);
    }

    /// Only a call with a caller expires, at its deadline, and only while it was never begun.
    #[test]
    fn a_call_expires_only_if_it_was_never_begun() {
        let late = |name: &str, maybe: bool| {
            let mut queued = call(1, name);
            queued.ticket.reply_to = ReplyTo::Store(Caller::new().0);
            queued.ticket.deadline_ns = 10;
            queued.ticket.maybe = maybe;
            queued
        };
        let mut queue = Queue::default();
        let parked = queue.arrived(late("parked", false));
        queue.park(parked, 1_000);
        queue.push(late("begun", true));
        queue.push(late("ready", false));
        queue.push(call(1, "own"));
        assert!(queue.keeps_a_caller());
        assert_eq!(names(&queue.expire(9)), Vec::<String>::new());
        assert_eq!(names(&queue.expire(10)), ["ready", "parked"]);
        assert!(!queue.keeps_a_caller());
        assert_eq!(names(&batch(&mut queue)), ["begun", "own"]);
        queue.push(late("ready", false));
        assert!(
            matches!(queue.next(10, 64), Some(Next::Expired(queued)) if name(&queued) == "ready")
        );
    }
}
