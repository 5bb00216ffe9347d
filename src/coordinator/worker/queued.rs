//! What waits in a worker's queue for the next commit, and whom its answer is for.

use tokio::sync::oneshot;
use tracing::Span;

use super::message::{AcceptReply, Attended, OperatorAction};
use super::undecided::Claim;
use crate::coordinator::request::{ExternalDecided, Rejection};
use crate::postgres::store::{Call, Sought, Transfer};
use crate::quota::Reservation;
use domain::account::UserId;
use domain::code::Code;
use domain::transfer::ReqId;

/// A call on its way into a commit, and whom its answer is for.
pub(super) struct Queued {
    /// What the store is told.
    pub(super) call: Call,
    /// Whom the answer is for.
    pub(super) waiter: Waiter,
    /// An earlier commit that held it may have been carried out.
    pub(super) maybe: bool,
    /// The present commit only looks for it: a withdrawal that waits for a clean round of the audit.
    pub(super) held: bool,
    /// Until when an outside caller is kept waiting, monotonic ns.
    pub(super) deadline_ns: u64,
    /// How often the store has refused this one call while it took others.
    pub(super) tries: u32,
    /// Its place in the order in which the worker's calls have come, see `Worker::enqueue`.
    pub(super) arrival: u64,
    /// Of an accept that is not decided.
    pub(super) reservation: Option<Reservation>,
    /// Of an accept with a cid that is not decided.
    pub(super) claim: Option<Claim>,
    /// What it is a part of.
    pub(super) span: Span,
}

impl Queued {
    /// What nobody outside waits for.
    pub(super) fn own(call: Call, waiter: Waiter) -> Queued {
        let (maybe, held, deadline_ns, span) = (false, false, u64::MAX, Span::none());
        let (reservation, claim) = (None, None);
        Queued {
            call,
            waiter,
            maybe,
            held,
            deadline_ns,
            tries: 0,
            arrival: 0,
            reservation,
            claim,
            span,
        }
    }

    /// Somebody outside has waited long enough for what was never begun: it must not be done behind their back.
    pub(super) fn is_expired(&self, now: u64) -> bool {
        !self.maybe && now >= self.deadline_ns && self.waiter.is_outside()
    }

    /// What to say to whoever waits outside, once it is given up.
    pub(super) fn rejection(&self) -> Rejection {
        match self.maybe {
            true => Rejection::unknown(),
            false => Rejection::of(Code::SystemError),
        }
    }

    /// Whose rows in Funding it may have to wait for, or whose transfers it looks for.
    pub(super) fn user(&self) -> Option<UserId> {
        match &self.call {
            Call::Find(Sought::Cid(user, _)) => Some(*user),
            Call::Defer { .. } => None,
            call => call.lock_order().map(|(user, _)| user),
        }
    }
}

/// Whom the answer to a call is for.
pub(super) enum Waiter {
    /// A new transfer's.
    Accept(ReqId, AcceptReply),
    /// A transfer's next transition.
    Step(ReqId),
    /// Nobody waits for it.
    Nobody,
    /// The search for an accept that was given up as unknown, by its order number.
    Lost(u64),
    /// The search for an external operation that was given up as unknown.
    LostExternal,
    /// The API's, before it refuses what may be a repeat.
    Cid(oneshot::Sender<Result<Option<Transfer>, Rejection>>),
    /// An operator's or a gateway's.
    External(oneshot::Sender<Result<ExternalDecided, Rejection>>),
    /// An operator's.
    Status(oneshot::Sender<Result<(), Rejection>>),
    /// An operator's, about a transfer that is not in hand.
    Attend(ReqId, OperatorAction, Attended),
}

impl Waiter {
    /// Tells whoever waits outside that it was not done, or may not have been; gives back what nobody outside waits for.
    pub(super) fn reject(self, rejection: Rejection) -> Option<Waiter> {
        // An error is a caller who has gone.
        match self {
            Waiter::Step(_) | Waiter::Nobody | Waiter::Lost(_) | Waiter::LostExternal => {
                return Some(self);
            }
            Waiter::Accept(_, reply) => reply.send(Err(rejection)),
            Waiter::Cid(reply) => drop(reply.send(Err(rejection))),
            Waiter::External(reply) => drop(reply.send(Err(rejection))),
            Waiter::Status(reply) => drop(reply.send(Err(rejection))),
            Waiter::Attend(_, _, reply) => drop(reply.send(Err(rejection))),
        }
        None
    }

    pub(super) fn is_outside(&self) -> bool {
        !matches!(self, Waiter::Step(_) | Waiter::Nobody | Waiter::Lost(_) | Waiter::LostExternal)
    }
}
