//! One commit of the store, from the queue to the queue.

use std::error::Error;
use std::sync::Arc;

use tracing::field::display;
use tracing::{Instrument, debug, debug_span, error, info, warn};

use super::batch::{Again, Batch, CommitEnd, Member};
use super::queue::{Next, Queued};
use super::reply::ReplyTo;
use super::{Doing, Done, Worker, ns};
use crate::adapters::Adapter;
use crate::alert::{Alert, alert, alert_about};
use crate::coordinator::request::Rejection;
use crate::coordinator::step::{Happened, renew};
use crate::crash;
use crate::gate::Pass;
use crate::postgres::Superseded;
use crate::postgres::store::{Call, Failure, Reply, Sought, Standing, Store};
use crate::telemetry;
use domain::code::Code;
use domain::shortage::Shortage;

/// The reason for a halt: a name or an order number that this process gives is in use.
const ORDER_NUMBER_TAKEN: &str = "order_number_taken";

impl<T: Adapter, F: Adapter> Worker<T, F> {
    /// The next batch. `admitted`: whether it may move money.
    pub(super) fn batch(&mut self, admitted: bool) -> Vec<Member> {
        let now = self.now();
        let mut members = Vec::new();
        while members.len() < self.parts.options.batch_max.min(self.batch_limit)
            && let Some(next) = self.queue.next(now, self.parts.options.parked_calls_max)
        {
            match next {
                Next::Crowded(queued) => {
                    self.reject(queued, Rejection::overloaded(Shortage::Parked));
                }
                Next::Expired(queued) => self.reject(queued, Rejection::of(Code::SystemError)),
                Next::Ready(mut queued) => {
                    if let Call::Step { transfer, transition, .. } = &mut queued.call
                        && let Some(active) = self.active.get(&transfer.intent.req_id)
                    {
                        renew(active.row, transition);
                    }
                    if admitted {
                        let instead = self.hold_back(&mut queued);
                        members.push(Member { queued, instead });
                    } else {
                        members.extend(self.restrained(queued));
                    }
                }
            }
        }
        members
    }

    /// Commits a batch. `pass`: kept until the commit has ended.
    pub(super) fn commit<S: Store>(
        &mut self,
        mut store: S,
        members: Vec<Member>,
        pass: Option<Pass>,
    ) -> Doing<S> {
        self.scan.commit_begins();
        let batch = Batch::new(members);
        let standing =
            Standing { durable: (self.parts.durable)(), open_from: self.numbers.low(self.shard) };
        let clock = Arc::clone(&self.parts.clock);
        // A commit has calls of several traces, so its span is linked with each and belongs to
        // none. Without a subscriber no span is made and nothing is kept.
        let flight = debug_span!(parent: None, "flight", calls = batch.calls.len());
        let mut commits = Vec::new();
        for (call, (ticket, _)) in batch.calls.iter().zip(&batch.rest) {
            let commit = debug_span!(parent: &ticket.span, "commit", call = call.name());
            if !commit.is_disabled() {
                flight.follows_from(&commit);
                commits.push(commit);
            }
        }
        Box::pin(async move {
            let _moving = pass;
            crash::point("coordinator_before_commit");
            let began = clock.monotonic_ns();
            let result = store.commit(standing, &batch.calls).instrument(flight).await;
            drop(commits);
            telemetry::step(telemetry::Step::Commit, clock.monotonic_ns() - began);
            crash::point("coordinator_after_commit");
            Done::Committed(store, batch, result)
        })
    }

    /// A commit has ended.
    pub(super) fn on_committed(
        &mut self,
        batch: Batch,
        result: Result<Vec<Reply>, Failure>,
    ) -> Result<(), Superseded> {
        let end = CommitEnd::of(batch, result);
        // If the store blames one call, it can be reached, though every call of it may fail.
        if !matches!(end, CommitEnd::Failed { .. }) && self.outage.ended() {
            info!(shard = self.shard, "the store takes commits again");
        }
        match end {
            CommitEnd::Committed(replies) => {
                self.batch_limit = self.batch_limit.saturating_mul(2);
                self.old.flown(self.numbers.next(), &self.under_way);
                for (queued, reply) in replies {
                    self.note_commit(&queued);
                    self.on_reply(queued, reply);
                }
            }
            CommitEnd::Split { batch, source } => {
                let why = telemetry::chain(source.as_ref());
                warn!(calls = batch.len(), why, "the store refused a batch; trying parts of it");
                self.batch_limit = batch.len().div_ceil(2);
                self.queue.put_all_back(batch.into_iter());
            }
            CommitEnd::Refused { blamed, others, violation, source } => {
                self.queue.put_all_back(others.into_iter());
                self.on_refused(*blamed, violation, source.as_ref());
            }
            CommitEnd::Blocked { blamed, changed, others, source } => {
                if changed && let Some(subject) = blamed.first().map(|first| subject(&first.call)) {
                    let why = telemetry::chain(source.as_ref());
                    alert_about(Alert::BalanceChangedOutside, &subject, format_args!("{why}"));
                }
                self.queue.put_all_back(others.into_iter());
                // From the last one, because a cut step goes back to the front.
                for queued in blamed.into_iter().rev() {
                    self.on_blocked(queued, source.as_ref());
                }
            }
            CommitEnd::Failed { batch, failure } => {
                self.store_failed(&failure)?;
                let now = self.now();
                for mut queued in batch.into_iter().rev() {
                    if let Some(req_id) = queued.stepped() {
                        self.note_error(req_id, "store", &failure);
                    }
                    match Again::after(&mut queued.ticket, &failure, now) {
                        Again::Commit => self.queue.put_back(queued),
                        Again::GiveUp => self.give_up(queued),
                        Again::Drop => {}
                    }
                }
            }
        }
        Ok(())
    }

    /// Backs off from the whole store.
    fn store_failed(&mut self, failure: &Failure) -> Result<(), Superseded> {
        if matches!(failure, Failure::Fenced) {
            alert(Alert::Fenced, format_args!("shard {} belongs to another process", self.shard));
            return Err(Superseded);
        }
        let now = self.now();
        self.outage.failed(now, &mut self.backoff);
        let why = telemetry::chain(failure);
        let what = format_args!("shard {}: {why}", self.shard);
        match failure {
            Failure::Retry(_) if self.outage.is_short() => {
                debug!(shard = self.shard, why, "the store asks for another try");
            }
            Failure::Retry(_) => alert(Alert::FundingBlocked, what),
            Failure::Contradicted(_) => {
                alert(Alert::ProtocolViolation, what);
                (self.parts.halt)(format!("{ORDER_NUMBER_TAKEN}: {why}"));
            }
            _ => alert(Alert::PostgresUnreachable, what),
        }
        Ok(())
    }

    /// The store has refused this one call. Nothing of it was done.
    fn on_refused(&mut self, queued: Queued, violation: bool, source: &(dyn Error + 'static)) {
        let why = telemetry::chain(source);
        let (call, req_id) = (queued.call.name(), queued.call.req_id().map(display));
        if violation {
            let subject = subject(&queued.call);
            alert_about(Alert::ProtocolViolation, &subject, format_args!("{subject}: {why}"));
            error!(req_id, call, "refused as a violation of the protocol");
        } else {
            error!(why, req_id, call, "the store refused a call");
        }
        match queued.ticket.reply_to {
            ReplyTo::Transfer => {
                let req_id = queued.stepped().expect("a reply to a transfer is that of a step");
                self.note_error(req_id, "refused", source);
                self.advance(req_id, Happened::Refused);
            }
            ReplyTo::Nothing => {}
            // The search decides whether money has moved, so it never ends without an answer.
            ReplyTo::LostAccept(_) | ReplyTo::LostExternal => self.park(queued, source),
            ReplyTo::Store(_) | ReplyTo::Accept(_) | ReplyTo::External(_) | ReplyTo::Attend(..) => {
                self.give_up(queued)
            }
        }
    }

    /// The store has blocked this call, for example by a lock. Nothing of it was done.
    fn on_blocked(&mut self, mut queued: Queued, source: &(dyn Error + 'static)) {
        if queued.call.end_before_funding() {
            // The states before Funding takes part are committed before the next try.
            self.queue.put_back(queued);
            return;
        }
        match queued.ticket.reply_to {
            ReplyTo::Nothing => {}
            // It has no row, and its client can send it again. It would only hold back later calls.
            _ if queued.is_unbegun() => self.reject(queued, Rejection::of(Code::SystemError)),
            _ if self.now() >= queued.ticket.deadline_ns => self.give_up(queued),
            _ => self.park(queued, source),
        }
    }

    /// Sets one blocked call aside for a while. The others go on.
    fn park(&mut self, mut queued: Queued, why: &(dyn Error + 'static)) {
        const MESSAGE: &str = "blocked; others go on";
        queued.ticket.tries = queued.ticket.tries.saturating_add(1);
        let mut stepped = None;
        if let Call::Step { transfer, attempt, .. } = &mut queued.call
            && let Some(active) = self.active.get_mut(&transfer.intent.req_id)
        {
            active.row.attempt = active.row.attempt.saturating_add(1);
            *attempt = active.row.attempt;
            stepped = Some(transfer.intent.req_id);
        }
        let reason = telemetry::chain(why);
        let delay_ms = match stepped {
            Some(req_id) => {
                self.note_error(req_id, "held_up", why);
                self.back_off(req_id, &reason, MESSAGE)
            }
            None => {
                let tries = queued.ticket.tries;
                let delay_ms = self.backoff.delay_ms(tries);
                let (call, req_id) = (queued.call.name(), queued.call.req_id().map(display));
                warn!(call, req_id, tries, delay_ms, why = reason, "{MESSAGE}");
                delay_ms
            }
        };
        let due = self.now() + ns(delay_ms);
        self.queue.park(queued, due);
    }

    /// Answers the caller of a call that may not be committed again.
    pub(super) fn give_up(&mut self, queued: Queued) {
        let rejection = queued.rejection();
        let Queued { call, mut ticket } = queued;
        match (call, ticket.maybe) {
            // It may have been accepted. A search in a later batch decides that: once it is
            // committed, no batch given up before can be.
            (Call::Accept { intent, .. }, true) => {
                let search = Call::Find(Sought::ReqId(intent.req_id));
                let mut search = Queued::own(search, ReplyTo::LostAccept(intent.order_number));
                search.ticket.reservation = ticket.reservation.take();
                search.ticket.claim = ticket.claim.take();
                self.queue.push(search);
            }
            // The same for an external operation. Its row needs its record.
            (Call::External(external), true) => {
                let search = Call::FindExternal(external);
                self.queue.push(Queued::own(search, ReplyTo::LostExternal));
            }
            // And of a credit.
            (Call::Recharge(call), true) if call.may_credit() => {
                let search = Call::FindRecharge(call);
                self.queue.push(Queued::own(search, ReplyTo::LostExternal));
            }
            // And of a Settle from or to the outside.
            (Call::Hold(order), true) if order.act.outside() != (0, 0) => {
                self.queue.push(Queued::own(Call::FindHold(order), ReplyTo::LostExternal));
            }
            (call, _) => self.forget(&call),
        }
        assert!(ticket.reply_to.is_caller(), "only a caller's request is given up");
        ticket.reply_to.reject(rejection);
    }

    /// Answers the caller of a call that was never begun.
    pub(super) fn reject(&mut self, queued: Queued, rejection: Rejection) {
        let Queued { call, ticket } = queued;
        assert!(!ticket.maybe, "{call:?} may have been carried out");
        assert!(ticket.reply_to.is_caller(), "only a caller's request is rejected");
        self.forget(&call);
        ticket.reply_to.reject(rejection);
    }

    /// Frees the order number of a call that will not be carried out.
    pub(super) fn forget(&mut self, call: &Call) {
        let number = match call {
            Call::Hold(order) | Call::FindHold(order) => {
                return self.free(order.outside_numbers);
            }
            Call::Accept { intent, .. } => intent.order_number,
            Call::External(external) => external.order_number,
            Call::Recharge(call) => return self.free([call.order_number, call.bonus_number]),
            _ => return,
        };
        self.under_way.remove(&number);
    }

    /// Frees the order numbers that a call does not need; 0 is none.
    pub(super) fn free(&mut self, numbers: [u64; 2]) {
        for number in numbers {
            self.under_way.remove(&number);
        }
    }
}

/// The subject of an alert about a call.
fn subject(call: &Call) -> String {
    match call {
        Call::Accept { intent, .. } | Call::Operate { intent, .. } => intent.req_id.to_string(),
        Call::Step { transfer, .. } => transfer.intent.req_id.to_string(),
        Call::Defer { req_id, .. }
        | Call::QueryOperation { req_id, .. }
        | Call::Find(Sought::ReqId(req_id)) => req_id.to_string(),
        Call::External(external) | Call::FindExternal(external) => external.idem_key.clone(),
        Call::Hold(order) | Call::FindHold(order) => order.key.to_string(),
        Call::Recharge(call) | Call::FindRecharge(call) => call.subject(),
        Call::Find(Sought::Cid(user, _)) | Call::SetFundingStatus { user, .. } => user.to_string(),
    }
}
