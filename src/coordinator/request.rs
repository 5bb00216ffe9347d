//! A request to the coordinator, and its answers.

use std::convert::Infallible;
use std::sync::Arc;

use domain::account::UserId;
use domain::code::Code;
use domain::shortage::Shortage;
use domain::transfer::{Cid, Decision, ReqId};
use tokio::sync::{oneshot, watch};

use crate::pause::Pauses;
use crate::postgres::store::Transfer;
use crate::quota::Reservation;
use crate::validation::Checked;

/// A transfer to accept.
#[derive(Debug)]
pub struct Request {
    /// The user.
    pub user: UserId,
    /// The client's idempotency key.
    pub cid: Option<Cid>,
    /// The validated form.
    pub checked: Checked,
    /// A repeat of the cid must have the same fingerprint.
    pub fingerprint: String,
    /// Its share of the user's daily limit, if there is one.
    pub reservation: Option<Reservation>,
    /// The pauses that it was checked against. Dropped when the accept is decided or answered as
    /// unknown.
    pub pauses: Arc<Pauses>,
}

/// A transfer on its way to its worker.
#[derive(Debug)]
pub struct Submitted {
    /// Its name, so that the client can ask for a lost answer.
    pub req_id: ReqId,
    /// Gets its value when the accept is decided.
    pub reply: oneshot::Receiver<Result<Accepted, Rejection>>,
    /// Ends, without a value, when the client has something to be woken for: a refusal, a repeat,
    /// or the end of the transfer. A client that waits for it first is woken once and not also by
    /// the accept, which most transfers follow by their end within milliseconds.
    pub quiet: oneshot::Receiver<Infallible>,
}

/// The worker's end of [`Submitted::quiet`]: it holds this while there is nothing to wake the
/// client for.
pub(super) type Quiet = oneshot::Sender<Infallible>;

/// An accepted transfer, and its progress. Dropping it changes nothing.
#[derive(Debug)]
pub struct Accepted {
    /// Its present state, and every later one.
    pub progress: watch::Receiver<Transfer>,
    /// The transfer existed before, with the same cid and body.
    pub replayed: bool,
}

/// Why a request was not carried out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejection {
    /// For the client.
    pub code: Code,
    /// More than the message of the code, if there is more.
    pub detail: Option<String>,
    /// It may have been done.
    pub unknown: bool,
    /// The thing that has no room, if the code is OVERLOADED.
    pub shortage: Option<Shortage>,
}

impl From<Code> for Rejection {
    fn from(code: Code) -> Rejection {
        Rejection::of(code)
    }
}

impl Rejection {
    /// A refusal without any effect.
    pub fn of(code: Code) -> Rejection {
        Rejection { code, detail: None, unknown: false, shortage: None }
    }

    /// A refusal for lack of room, without any effect.
    pub fn overloaded(shortage: Shortage) -> Rejection {
        Rejection { shortage: Some(shortage), ..Rejection::of(Code::Overloaded) }
    }

    /// Whether it happened is unknown.
    pub fn unknown() -> Rejection {
        Rejection { unknown: true, ..Rejection::of(Code::SystemError) }
    }
}

/// The decision of an external operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExternalDecided {
    /// Success or refusal.
    pub decision: Decision,
    /// The Funding balance afterwards, smallest units; of a success only.
    pub balance_after: Option<i128>,
}
