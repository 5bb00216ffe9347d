//! The way of a reply back to its caller.
//!
//! A [`Call`] of the store goes through the worker together with its [`ReplyTo`]. A new operation
//! that needs nothing from the worker uses [`ReplyTo::Store`]: its caller gets the store's reply as
//! it is, and the worker does not change.
//!
//! [`Call`]: crate::postgres::store::Call

use std::sync::Arc;

use tokio::sync::{oneshot, watch};

use crate::coordinator::request::{Accepted, ExternalDecided, Quiet, Rejection};
use crate::pause::Pauses;
use crate::postgres::store::{Reply, Transfer};

/// A caller outside the worker. A caller that is dropped without an answer gets none.
pub(crate) struct Caller<T> {
    sender: oneshot::Sender<Result<T, Rejection>>,
}

/// The other end of a [`Caller`].
pub(crate) type Response<T> = oneshot::Receiver<Result<T, Rejection>>;

impl<T> Caller<T> {
    /// A caller, and its end that waits.
    pub(crate) fn new() -> (Caller<T>, Response<T>) {
        let (sender, answer) = oneshot::channel();
        (Caller { sender }, answer)
    }

    /// Sends the answer. A caller that has hung up is no error.
    pub(super) fn answer(self, answer: Result<T, Rejection>) {
        drop(self.sender.send(answer));
    }
}

/// A client that submits a transfer.
pub(crate) struct Client {
    /// Gets the answer when the accept is decided.
    pub(crate) caller: Caller<Accepted>,
    /// Wakes the client when it is dropped.
    pub(crate) quiet: Quiet,
    /// Kept until the answer, even if the client hangs up.
    pub(crate) pauses: Arc<Pauses>,
}

impl Client {
    /// Sends the answer and wakes the client.
    pub(super) fn answer(self, answer: Result<Accepted, Rejection>) {
        self.caller.answer(answer);
    }
}

/// An operator's action on a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OperatorAction {
    /// Try it at once, and as if for the first time.
    Retry,
    /// End the wait for a decision.
    Resolve,
}

/// The destination of the store's reply to a call.
pub(crate) enum ReplyTo {
    /// A caller that gets the reply as it is.
    Store(Caller<Reply>),
    /// A client that submits a transfer. The worker takes the transfer in hand.
    Accept(Client),
    /// An operator or a gateway that moves external money. The answer comes after the record.
    External(Caller<ExternalDecided>),
    /// An operator, about a transfer that is not in hand. The worker takes it in hand first.
    Attend(OperatorAction, Caller<watch::Receiver<Transfer>>),
    /// The transfer of the step.
    Transfer,
    /// The reply to a deferral. It is discarded.
    Nothing,
    /// The search for an accept with an unknown result, by its order number. Its client already
    /// has the answer "unknown".
    LostAccept(u64),
    /// The same for an external operation.
    LostExternal,
}

impl ReplyTo {
    /// Whether a caller outside the worker waits for the reply.
    pub(super) fn is_caller(&self) -> bool {
        match self {
            ReplyTo::Store(_) | ReplyTo::Accept(_) | ReplyTo::External(_) | ReplyTo::Attend(..) => {
                true
            }
            ReplyTo::Transfer
            | ReplyTo::Nothing
            | ReplyTo::LostAccept(_)
            | ReplyTo::LostExternal => false,
        }
    }

    /// Rejects the request of the caller, if there is one.
    pub(super) fn reject(self, rejection: Rejection) {
        match self {
            ReplyTo::Store(caller) => caller.answer(Err(rejection)),
            ReplyTo::Accept(client) => client.answer(Err(rejection)),
            ReplyTo::External(caller) => caller.answer(Err(rejection)),
            ReplyTo::Attend(_, caller) => caller.answer(Err(rejection)),
            ReplyTo::Transfer
            | ReplyTo::Nothing
            | ReplyTo::LostAccept(_)
            | ReplyTo::LostExternal => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use domain::code::Code;
    use tokio::sync::oneshot::error::TryRecvError;

    use super::*;

    /// Each kind of caller gets the rejection, and no own call of the worker counts as a caller.
    #[test]
    fn every_caller_gets_its_rejection() {
        fn rejected<T>(to: impl FnOnce(Caller<T>) -> ReplyTo) -> Option<Rejection> {
            let (caller, mut answer) = Caller::new();
            let reply_to = to(caller);
            assert!(reply_to.is_caller());
            reply_to.reject(Rejection::of(Code::ServiceHalted));
            answer.try_recv().expect("an answer").err()
        }
        let halted = Some(Rejection::of(Code::ServiceHalted));
        assert_eq!(rejected(ReplyTo::Store), halted);
        let submitted = |caller| {
            ReplyTo::Accept(Client { caller, quiet: oneshot::channel().0, pauses: Arc::default() })
        };
        assert_eq!(rejected(submitted), halted);
        assert_eq!(rejected(ReplyTo::External), halted);
        assert_eq!(rejected(|caller| ReplyTo::Attend(OperatorAction::Retry, caller)), halted);
        let own =
            [ReplyTo::Transfer, ReplyTo::Nothing, ReplyTo::LostAccept(1), ReplyTo::LostExternal];
        assert!(own.iter().all(|reply_to| !reply_to.is_caller()));
    }

    fn client(pauses: &Arc<Pauses>) -> (Client, Response<Accepted>, oneshot::Receiver<Infallible>) {
        let ((caller, answer), (quiet, woken)) = (Caller::new(), oneshot::channel());
        (Client { caller, quiet, pauses: Arc::clone(pauses) }, answer, woken)
    }

    #[test]
    fn pauses_last_until_the_answer_though_the_client_hangs_up() {
        let pauses: Arc<Pauses> = Arc::default();
        let (client, answer, woken) = client(&pauses);
        drop((answer, woken));
        assert_eq!(Arc::strong_count(&pauses), 2);
        client.answer(Err(Rejection::of(Code::ServiceHalted)));
        assert_eq!(Arc::strong_count(&pauses), 1);
    }

    /// A client that is answered, or forgotten, is woken.
    #[test]
    fn a_client_sleeps_until_its_answer() {
        let (halted, forgotten) = (client(&Arc::default()), client(&Arc::default()));
        let ((halted, mut answer, mut woken), (forgotten, _, mut left)) = (halted, forgotten);
        assert_eq!(woken.try_recv(), Err(TryRecvError::Empty));
        halted.answer(Err(Rejection::of(Code::ServiceHalted)));
        assert_eq!(woken.try_recv(), Err(TryRecvError::Closed));
        assert!(answer.try_recv().is_ok_and(|answer| answer.is_err()));
        drop(forgotten);
        assert_eq!(left.try_recv(), Err(TryRecvError::Closed));
    }
}
