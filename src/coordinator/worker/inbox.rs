//! The messages that reach a worker from outside.

use tokio::sync::{oneshot, watch};
use tracing::Span;

use super::Worker;
use super::queue::Queued;
use super::reply::ReplyTo;
use crate::adapters::Adapter;
use crate::alert::{Alert, alert_about};
use crate::coordinator::parts::Options;
use crate::coordinator::request::Rejection;
use crate::postgres::store::{Call, Sought, Transfer};
use crate::quota::Reservation;
use domain::account::UserId;
use domain::code::Code;
use domain::shortage::Shortage;
use domain::transfer::{Cid, ReqId};

/// A message with its deadline and its trace.
pub(crate) struct Envelope {
    pub(crate) message: Message,
    /// The end of the sender's wait, monotonic ns. A call that was not begun by then never is.
    pub(crate) deadline_ns: u64,
    /// The request that the message is a part of.
    pub(crate) span: Span,
}

/// See the module.
pub(crate) enum Message {
    /// A call of the store. The worker gives it its order number, if it needs one.
    Call {
        call: Box<Call>,
        reply_to: ReplyTo,
        /// Its share of the user's daily limit, if there is one.
        reservation: Option<Reservation>,
    },
    /// A question that the worker answers from its own state, at once.
    Look(Look),
}

/// A question about the state of a worker. A question that comes too late gets no answer.
pub(crate) enum Look {
    /// Whether an accept with this cid may still be committed.
    IsUndecided { user: UserId, cid: Cid, answer_to: oneshot::Sender<bool> },
    /// The progress of a transfer, if it is in hand.
    Follow { req_id: ReqId, answer_to: oneshot::Sender<Option<watch::Receiver<Transfer>>> },
    /// The order numbers under way.
    UnderWay { answer_to: oneshot::Sender<Vec<u64>> },
}

impl<T: Adapter, F: Adapter> Worker<T, F> {
    pub(super) fn receive(&mut self, envelope: Envelope) {
        let Envelope { message, deadline_ns, span } = envelope;
        let late = self.now() >= deadline_ns;
        match message {
            Message::Look(look) if !late => self.look(look),
            Message::Look(_) => {}
            Message::Call { reply_to, .. } if late => {
                reply_to.reject(Rejection::of(Code::SystemError));
            }
            Message::Call { call, reply_to, reservation } => {
                let mut queued = Queued::own(*call, reply_to);
                queued.ticket.deadline_ns = deadline_ns;
                queued.ticket.reservation = reservation;
                queued.ticket.span = span;
                self.receive_call(queued);
            }
        }
    }

    /// Queues a call, or answers it at once.
    fn receive_call(&mut self, mut queued: Queued) {
        match &mut queued.call {
            Call::Accept { intent, .. } => {
                if let Some(shortage) = self.shortage() {
                    queued.ticket.reply_to.reject(Rejection::overloaded(shortage));
                    return;
                }
                let claim = |cid: Cid| self.undecided.claim(intent.user, cid);
                queued.ticket.claim = intent.cid.clone().map(claim);
                intent.order_number = self.number();
            }
            // A new one waits for room; a repeat gets the earlier decision.
            Call::External(external) if self.shortage().is_some() => {
                queued.call = Call::FindExternal(external.clone());
            }
            Call::External(external) => external.order_number = self.number(),
            Call::Recharge(call) if call.may_credit() && self.shortage().is_some() => {
                queued.call = Call::FindRecharge(call.clone());
            }
            Call::Recharge(call) if call.may_credit() => {
                call.order_number = self.number();
                if call.may_move_bonus() {
                    call.bonus_number = self.number();
                }
            }
            // An end is taken without a look at the room: it is never refused.
            Call::Hold(order) => {
                let (deposited, withdrawn) = order.act.outside();
                order.outside_numbers = [deposited, withdrawn].map(|units| match units {
                    0 => 0,
                    _ => self.number(),
                });
            }
            Call::Find(Sought::ReqId(req_id)) if self.active.contains_key(req_id) => {
                let req_id = *req_id;
                if let ReplyTo::Attend(action, operator) = queued.ticket.reply_to {
                    self.attend(req_id, action, operator, queued.ticket.deadline_ns);
                    return;
                }
            }
            _ => {}
        }
        self.queue.push(queued);
    }

    /// The thing of this worker that has no room for one more transfer or external operation.
    fn shortage(&self) -> Option<Shortage> {
        let Options { active_max, parked_max, .. } = self.parts.options;
        if self.under_way.len() >= active_max {
            return Some(Shortage::Worker);
        }
        let parked = Some(self.queue.parked_transfers()).filter(|parked| *parked >= parked_max);
        let (count, are) = match (parked, self.old.full(&self.under_way)) {
            (Some(parked), _) => (parked, "parked"),
            (None, Some(old)) => (old, "open for more than journal.open_flights flights"),
            (None, None) => return None,
        };
        let shard = self.shard;
        let what = format_args!(
            "{count} transfers of shard {shard} are {are}, as many as coordinator.parked_max \
             allows; new ones are refused"
        );
        alert_about(Alert::ParkedFull, &shard, what);
        Some(Shortage::Parked)
    }

    /// The next order number. It is under way from now on.
    fn number(&mut self) -> u64 {
        let number = self.numbers.take(self.shard);
        let fresh = self.under_way.insert(number);
        assert!(fresh, "{number} is under way already");
        self.numbers.set_count(self.shard, self.under_way.len());
        number
    }

    /// Answers a question. If its sender has hung up, that is no error.
    fn look(&self, look: Look) {
        match look {
            Look::IsUndecided { user, cid, answer_to } => {
                answer_to.send(self.undecided.holds(user, &cid)).ok();
            }
            Look::Follow { req_id, answer_to } => {
                let active = self.active.get(&req_id);
                drop(answer_to.send(active.map(|active| active.progress())));
            }
            Look::UnderWay { answer_to } => {
                drop(answer_to.send(self.under_way.iter().copied().collect()));
            }
        }
    }
}
