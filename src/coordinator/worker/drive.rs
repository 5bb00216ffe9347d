//! The way of a transfer in hand: each event goes through [`decide`], and its effects are carried
//! out.

use std::time::Duration;

use tokio::sync::watch;
use tracing::{Span, warn};

use super::active::Active;
use super::ask::Question;
use super::queue::Queued;
use super::reply::ReplyTo;
use super::{Worker, ns};
use crate::adapters::Adapter;
use crate::alert::{Alert, alert_about};
use crate::coordinator::hand::LastError;
use crate::coordinator::request::Quiet;
use crate::coordinator::route;
use crate::coordinator::step::{Effect, Happened, Row, decide, restrain};
use crate::postgres::sqlstate;
use crate::postgres::store::{Call, Transfer};
use crate::quota::Reservation;
use crate::telemetry;
use domain::code::Code;
use domain::transfer::{ReqId, State};

/// Tries of a refund that may end unknown before an alert.
const REFUND_FAILURES_ALERT: u32 = 3;

impl<T: Adapter, F: Adapter> Worker<T, F> {
    /// Takes a stored transfer in hand and goes on with it. `reservation`: of a transfer that has
    /// just been accepted. `quiet`: of its client, until the transfer ends.
    pub(super) fn adopt(
        &mut self,
        transfer: Transfer,
        span: Span,
        reservation: Option<Reservation>,
        quiet: Option<Quiet>,
    ) -> watch::Receiver<Transfer> {
        let req_id = transfer.intent.req_id;
        self.under_way.insert(transfer.intent.order_number);
        self.hands.hold(self.shard, &transfer);
        let mut active = Active::new(transfer, self.parts.options.fuse, self.now(), span);
        active.keep(reservation);
        active.quiet = quiet;
        let progress = active.progress();
        let before = self.active.insert(req_id, active);
        assert!(before.is_none(), "{req_id} is in hand already");
        self.advance(req_id, Happened::Due);
        progress
    }

    /// Decides about one transfer and carries the effects out.
    pub(super) fn advance(&mut self, req_id: ReqId, happened: Happened) {
        let Some(active) = self.active.get_mut(&req_id) else { return };
        let _entered = active.span.clone().entered();
        let before = active.row;
        let (mut row, mut effects) = decide(before, happened, route::<T, F>);
        if self.parts.gate.is_closed() {
            let halted = |effect| restrain(row, effect, route::<T, F>);
            effects = effects.into_iter().map(halted).collect();
            // A look-up without a record is no failed try.
            if effects.contains(&Effect::Rest) {
                row.attempt = before.attempt.min(row.attempt);
            }
        }
        active.row = row;
        let replied = effects.iter().any(|effect| matches!(effect, Effect::Reply(..)));
        for effect in effects {
            self.carry_out(req_id, row, effect, replied);
        }
        self.settle_resolving(req_id);
    }

    /// Carries out one effect. `replied`: the client gets its answer together with this effect.
    fn carry_out(&mut self, req_id: ReqId, row: Row, effect: Effect, replied: bool) {
        match effect {
            Effect::Accept(_) => unreachable!("only a submitted transfer is accepted"),
            Effect::Step { transition, code, log_sequence } => {
                let transfer = Box::new(self.active[&req_id].transfer());
                let attempt = row.attempt;
                let call = Call::Step { transfer, transition, code, log_sequence, attempt };
                let mut step = Queued::own(call, ReplyTo::Transfer);
                step.ticket.span = Span::current();
                let step = self.queue.arrived(step);
                match replied {
                    true => self.marks.push(step, self.parts.clock.monotonic_ns()),
                    false => self.queue.append([step]),
                }
            }
            // When the question is asked, the gate decides which of the two it is.
            Effect::Ask(participant, op) | Effect::LookUp(participant, op) => {
                self.questions.push(Question { req_id, participant, op, refuse: false });
            }
            Effect::Refuse(participant, op) => {
                self.questions.push(Question { req_id, participant, op, refuse: true });
            }
            Effect::Rest => self.resting.push(req_id),
            Effect::Reply(state, code) => self.show_end(req_id, state, code),
            Effect::Retry => self.retry(req_id),
            Effect::Finish => self.finish(req_id),
        }
    }

    /// Shows the end of a transfer to its clients before PostgreSQL has it.
    fn show_end(&mut self, req_id: ReqId, state: State, code: Option<Code>) {
        let now = self.now();
        if let Some(active) = self.active.get_mut(&req_id) {
            self.hands.arrived(self.shard, active.order_number());
            active.reply(state, code, now);
        }
    }

    /// Lets go of a transfer that is terminal in the store.
    fn finish(&mut self, req_id: ReqId) {
        let Some(active) = self.active.remove(&req_id) else { return };
        self.under_way.remove(&active.order_number());
        self.hands.let_go(self.shard, active.order_number());
        let ended_ns = active.replied_ns.unwrap_or_else(|| self.now());
        let seconds = Duration::from_nanos(ended_ns - active.started_ns).as_secs_f64();
        telemetry::transfer(active.row.direction.name(), active.row.state.name(), seconds);
        active.finish();
    }

    /// Tries again later, without an end.
    fn retry(&mut self, req_id: ReqId) {
        if self.active.contains_key(&req_id) {
            let delay_ms = self.back_off(req_id, "the outcome is unknown", "will try again");
            self.timers.set(self.now() + ns(delay_ms), req_id);
        }
    }

    /// Logs a failed try of a transfer in hand. If the store can be reached, the time of the next
    /// try is stored. Returns the wait until then, milliseconds. `message`: of the log line.
    pub(super) fn back_off(&mut self, req_id: ReqId, why: &str, message: &str) -> u64 {
        let active = &self.active[&req_id];
        let Row { attempt, state, direction, .. } = active.row;
        let user = active.user();
        let refunds = state.goes_back() && state.waits_for(direction).is_some();
        if refunds && attempt >= REFUND_FAILURES_ALERT {
            let what = format_args!("refund of {req_id}: {attempt} tries, {why}");
            alert_about(Alert::CompensationFailing, &req_id, what);
        }
        let delay_ms = self.backoff.delay_ms(attempt);
        warn!(%req_id, state = state.name(), attempt, delay_ms, why, "{message}");
        metrics::counter!(telemetry::RETRIES_TOTAL).increment(1);
        if self.outage.is_over() {
            let call = Call::Defer { user, req_id, state, retry_count: attempt, delay_ms };
            self.queue.push(Queued::own(call, ReplyTo::Nothing));
        }
        delay_ms
    }

    /// Keeps the error of a failed try, for operators.
    pub(super) fn note_error(
        &self,
        req_id: ReqId,
        class: &'static str,
        error: &(dyn std::error::Error + 'static),
    ) {
        self.note(req_id, class, sqlstate(error), telemetry::chain(error));
    }

    pub(super) fn note(
        &self,
        req_id: ReqId,
        class: &'static str,
        sqlstate: Option<String>,
        text: String,
    ) {
        if let Some(active) = self.active.get(&req_id) {
            let at_ns = self.parts.clock.now_ns();
            let error = LastError { class, sqlstate, text, at_ns };
            self.hands.fail(self.shard, active.order_number(), error);
        }
    }

    /// Goes on with the transfers and the parked calls that are due.
    pub(super) fn fire_timers(&mut self) {
        let now = self.now();
        while let Some(req_id) = self.timers.next(now) {
            self.advance(req_id, Happened::Due);
        }
        self.queue.unpark(now);
    }

    /// Goes on with the transfers that have rested since the service was halted; while it is
    /// halted, ends the waits of operators.
    pub(super) fn on_gate(&mut self) {
        if self.parts.gate.is_closed() {
            self.halt_resolving();
            return;
        }
        self.stuck.resumed(self.now());
        for req_id in std::mem::take(&mut self.resting) {
            self.advance(req_id, Happened::Due);
        }
    }
}
