//! What reaches a worker from outside, and how whoever sent it is answered.

use std::sync::Arc;

use tokio::sync::{oneshot, watch};
use tracing::Span;

use crate::coordinator::request::{Accepted, ExternalDecided, Rejection};
use crate::pause::Pauses;
use crate::postgres::store::{External, Transfer};
use crate::quota::Reservation;
use domain::account::{AccountStatus, UserId};
use domain::transfer::{Cid, Intent, ReqId};

/// What reaches a worker from outside.
pub(crate) struct Envelope {
    pub(crate) message: Message,
    /// Until when whoever sent it is kept waiting, monotonic ns. What was not begun by then never is.
    pub(crate) deadline_ns: u64,
    /// What it is a part of.
    pub(crate) span: Span,
}

/// How whoever submits a transfer is told whether it is accepted.
pub(crate) struct AcceptReply {
    pub(crate) sender: oneshot::Sender<Result<Accepted, Rejection>>,
    /// Kept until then, though the client hangs up.
    pub(crate) _pauses: Arc<Pauses>,
}

impl AcceptReply {
    /// Tells it. A client who has gone is no matter.
    pub(super) fn send(self, answer: Result<Accepted, Rejection>) {
        drop(self.sender.send(answer));
    }
}

/// What an operator wants done with a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OperatorAction {
    /// Try it at once, and as if for the first time.
    Retry,
    /// End the wait for a decision.
    Resolve,
}

/// How an operator is answered: with the transfer as it stands and as it will.
pub(crate) type Attended = oneshot::Sender<Result<watch::Receiver<Transfer>, Rejection>>;

/// What somebody outside wants of a worker, and how they are told.
pub(crate) enum Message {
    Submit {
        intent: Intent,
        fingerprint: String,
        reservation: Option<Reservation>,
        reply: AcceptReply,
    },
    FindCid {
        user: UserId,
        cid: Cid,
        reply: oneshot::Sender<Result<Option<Transfer>, Rejection>>,
    },
    /// Whether an accept under this cid may still be committed.
    IsUndecided {
        user: UserId,
        cid: Cid,
        reply: oneshot::Sender<bool>,
    },
    External {
        external: External,
        /// Whether UBSCore has room for its record.
        room: bool,
        reply: oneshot::Sender<Result<ExternalDecided, Rejection>>,
    },
    SetFundingStatus {
        user: UserId,
        status: AccountStatus,
        actor: String,
        reason: String,
        reply: oneshot::Sender<Result<(), Rejection>>,
    },
    /// An operator's, about one transfer of this user's.
    Attend {
        req_id: ReqId,
        action: OperatorAction,
        reply: Attended,
    },
    /// How a transfer goes on, where it is in hand.
    Follow {
        req_id: ReqId,
        reply: oneshot::Sender<Option<watch::Receiver<Transfer>>>,
    },
    /// The order numbers under way.
    UnderWay {
        reply: oneshot::Sender<Vec<u64>>,
    },
}

impl Message {
    /// Tells whoever sent it that it was not done. An error is a caller who has gone.
    pub(super) fn reject(self, rejection: Rejection) {
        match self {
            Message::Submit { reply, .. } => reply.send(Err(rejection)),
            Message::FindCid { reply, .. } => drop(reply.send(Err(rejection))),
            Message::External { reply, .. } => drop(reply.send(Err(rejection))),
            Message::SetFundingStatus { reply, .. } => drop(reply.send(Err(rejection))),
            Message::Attend { reply, .. } => drop(reply.send(Err(rejection))),
            // Nothing is an answer.
            Message::IsUndecided { reply, .. } => drop(reply),
            Message::Follow { reply, .. } => drop(reply),
            Message::UnderWay { reply } => drop(reply),
        }
    }
}
