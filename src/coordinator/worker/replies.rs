//! The store's replies to the calls of a committed batch.

use tokio::sync::watch;
use tracing::field::display;
use tracing::{Span, debug, error, warn};

use super::Worker;
use super::active::span_of;
use super::operator::Operator;
use super::queue::{Queued, Ticket};
use super::reply::{Client, OperatorAction, ReplyTo};
use crate::adapters::Adapter;
use crate::alert::{Alert, alert_about};
use crate::coordinator::request::{Accepted, Quiet, Rejection};
use crate::coordinator::step::Happened;
use crate::postgres::store::{Call, Reply, Transfer, differing_fields};
use crate::quota::Reservation;
use domain::code::Code;

impl<T: Adapter, F: Adapter> Worker<T, F> {
    /// Sends one reply to its destination.
    pub(super) fn on_reply(&mut self, queued: Queued, reply: Reply) {
        if let Reply::Unreadable(why) = reply {
            return self.on_unreadable(queued, &why);
        }
        if let Reply::Recharge(reply) = reply {
            return self.on_recharge_reply(queued, *reply);
        }
        if let Call::Hold(order) | Call::FindHold(order) = &queued.call
            && order.act.outside() != (0, 0)
        {
            let numbers = order.outside_numbers;
            return self.on_settle_reply(queued.ticket, numbers, reply);
        }
        if let ReplyTo::External(_) | ReplyTo::LostExternal = queued.ticket.reply_to {
            return self.on_external_reply(queued, reply);
        }
        let Queued { call, ticket } = queued;
        let Ticket { reply_to, reservation, claim, deadline_ns, span, .. } = ticket;
        match (reply_to, reply) {
            (ReplyTo::Store(caller), reply) => caller.answer(Ok(reply)),
            // While halted, a search has found the earlier transfer of this name or cid.
            (ReplyTo::Accept(client), Reply::Transfer(transfer) | Reply::Found(Some(transfer))) => {
                let Client { caller, quiet, pauses: _decided } = client;
                let answer = self.on_accepted(&call, *transfer, reservation, span, quiet);
                caller.answer(answer);
            }
            (ReplyTo::Accept(client), Reply::Found(None)) => {
                self.forget(&call);
                client.answer(Err(Rejection::of(Code::ServiceHalted)));
            }
            (ReplyTo::Transfer, Reply::Transfer(transfer) | Reply::Found(Some(transfer))) => {
                self.on_stepped(*transfer);
            }
            (ReplyTo::Transfer, Reply::Found(None)) => self.on_lost_row(&call),
            (ReplyTo::Nothing, Reply::Done) => {}
            (ReplyTo::LostAccept(order_number), Reply::Found(found)) => match found {
                Some(transfer) => self.on_accepted_after_all(*transfer, reservation),
                None => drop(self.under_way.remove(&order_number)),
            },
            (ReplyTo::Attend(_, caller), Reply::Found(None)) => {
                caller.answer(Err(Rejection::of(Code::TransferNotFound)));
            }
            (ReplyTo::Attend(action, caller), Reply::Found(Some(transfer))) => {
                self.on_found_for_operator(*transfer, action, caller, deadline_ns);
            }
            (_, reply) => unreachable!("{reply:?} is no reply to {call:?}"),
        }
        // The accept is decided, if it was one.
        drop(claim);
    }

    /// The store has accepted this transfer, or an earlier one of the same cid. The client of a new
    /// one is not woken before its end.
    fn on_accepted(
        &mut self,
        call: &Call,
        transfer: Transfer,
        reservation: Option<Reservation>,
        span: Span,
        quiet: Quiet,
    ) -> Result<Accepted, Rejection> {
        let Call::Accept { intent, fingerprint, .. } = call else {
            unreachable!("{call:?} is no accept")
        };
        let replayed = transfer.intent.req_id != intent.req_id;
        // A repeat gives its share of the daily limit back.
        let reservation = reservation.filter(|_| !replayed);
        if replayed {
            self.under_way.remove(&intent.order_number);
            if transfer.fingerprint != *fingerprint {
                let fields = differing_fields(&transfer.fingerprint, fingerprint);
                let detail = format!("This cid was used with another {}.", fields.join(", "));
                return Err(Rejection { detail: Some(detail), ..Code::DuplicateRequest.into() });
            }
        }
        let progress = match self.active.get_mut(&transfer.intent.req_id) {
            Some(active) => {
                active.keep(reservation);
                active.progress()
            }
            // It ended long ago.
            None if replayed && transfer.state.is_terminal() => watch::channel(transfer).1,
            None => {
                let span = if replayed { span_of(&transfer) } else { span };
                self.adopt(transfer, span, reservation, Some(quiet).filter(|_| !replayed))
            }
        };
        Ok(Accepted { progress, replayed })
    }

    /// The store has moved a transfer in hand, or has found it moved.
    fn on_stepped(&mut self, transfer: Transfer) {
        let (req_id, state) = (transfer.intent.req_id, transfer.state);
        let Some(active) = self.active.get_mut(&req_id) else { return };
        let _entered = active.span.clone().entered();
        self.hands.hold(self.shard, &transfer);
        debug!(%req_id, state = state.name(), code = ?transfer.code, "stored");
        active.stored(transfer);
        self.advance(req_id, Happened::Stored(state));
    }

    /// While halted, the store has no row of a transfer in hand. PostgreSQL is an older copy, or
    /// was edited.
    fn on_lost_row(&mut self, call: &Call) {
        let req_id = call.req_id().expect("a step is of one transfer");
        let what = format_args!(
            "PostgreSQL has no transfer {req_id}, which this process has in hand: it rests until a \
             resume"
        );
        alert_about(Alert::ProtocolViolation, &req_id, what);
        self.resting.push(req_id);
    }

    /// An accept was given up as unknown, and the store has the transfer.
    fn on_accepted_after_all(&mut self, transfer: Transfer, reservation: Option<Reservation>) {
        match self.active.get_mut(&transfer.intent.req_id) {
            Some(active) => active.keep(reservation),
            None => {
                warn!(req_id = %transfer.intent.req_id, "it was accepted after all");
                let span = span_of(&transfer);
                self.adopt(transfer, span, reservation, None);
            }
        }
    }

    /// The transfer of an operator's request was not in hand when the request came.
    fn on_found_for_operator(
        &mut self,
        transfer: Transfer,
        action: OperatorAction,
        operator: Operator,
        deadline_ns: u64,
    ) {
        let req_id = transfer.intent.req_id;
        if !self.active.contains_key(&req_id) {
            if transfer.state.is_terminal() {
                operator.answer(Ok(watch::channel(transfer).1));
                return;
            }
            warn!(%req_id, "no worker had it in hand");
            let span = span_of(&transfer);
            self.adopt(transfer, span, None, None);
        }
        self.attend(req_id, action, operator, deadline_ns);
    }

    /// The call is committed, and the row of its reply cannot be read.
    fn on_unreadable(&mut self, mut queued: Queued, why: &str) {
        let (call, req_id) = (queued.call.name(), queued.call.req_id().map(display));
        error!(why, req_id, call, "a row of the store cannot be read");
        if let Some(req_id) = queued.stepped() {
            self.advance(req_id, Happened::Refused);
        } else if queued.ticket.reply_to.is_caller() {
            // Its own row may be there: the row that cannot be read may be that of an earlier
            // transfer with its cid.
            queued.ticket.maybe = true;
            self.give_up(queued);
        } else if let Some(reservation) = queued.ticket.reservation {
            // Each restart logs the error again, until the row is corrected.
            reservation.keep();
        }
    }
}
