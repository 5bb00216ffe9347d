//! What waits in a worker's queue for the next commit, and whom its answer is for.

use tokio::sync::oneshot;
use tracing::Span;

use super::message::AcceptReply;
use super::operator::{Attended, Deed};
use super::undecided::Claim;
use crate::account::UserId;
use crate::code::Code;
use crate::coordinator::{ExternalDecided, Rejection};
use crate::postgres::store::{Call, Sought, Transfer};
use crate::quota::Permit;
use crate::transfer::ReqId;

/// A call on its way into a commit, and whom its answer is for.
pub(super) struct Queued {
    /// What the store is told.
    pub(super) call: Call,
    /// Whom the answer is for.
    pub(super) whose: Whose,
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
    pub(super) permit: Option<Permit>,
    /// Of an accept with a cid that is not decided.
    pub(super) claim: Option<Claim>,
    /// What it is a part of.
    pub(super) span: Span,
}

impl Queued {
    /// What nobody outside waits for.
    pub(super) fn own(call: Call, whose: Whose) -> Queued {
        let (maybe, held, deadline_ns, span) = (false, false, u64::MAX, Span::none());
        let (permit, claim) = (None, None);
        Queued { call, whose, maybe, held, deadline_ns, tries: 0, arrival: 0, permit, claim, span }
    }

    /// Somebody outside has waited long enough for what was never begun: it must not be done behind their back.
    pub(super) fn is_expired(&self, now: u64) -> bool {
        !self.maybe && now >= self.deadline_ns && self.whose.is_outside()
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
pub(super) enum Whose {
    /// A new transfer's.
    Accept(ReqId, AcceptReply),
    /// A transfer's next passage.
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
    Attend(ReqId, Deed, Attended),
}

impl Whose {
    /// Tells whoever waits outside that it was not done, or may not have been; gives back what nobody outside waits for.
    pub(super) fn reject(self, rejection: Rejection) -> Option<Whose> {
        // An error is a caller who has gone.
        match self {
            Whose::Step(_) | Whose::Nobody | Whose::Lost(_) | Whose::LostExternal => {
                return Some(self);
            }
            Whose::Accept(_, reply) => reply.send(Err(rejection)),
            Whose::Cid(reply) => drop(reply.send(Err(rejection))),
            Whose::External(reply) => drop(reply.send(Err(rejection))),
            Whose::Status(reply) => drop(reply.send(Err(rejection))),
            Whose::Attend(_, _, reply) => drop(reply.send(Err(rejection))),
        }
        None
    }

    pub(super) fn is_outside(&self) -> bool {
        !matches!(self, Whose::Step(_) | Whose::Nobody | Whose::Lost(_) | Whose::LostExternal)
    }
}
