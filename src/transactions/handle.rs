//! The handle of the worker: HTTP speaks to it, and to nothing behind it.
//!
//! Each call is one message and one answer. The worker keeps the message until the awaited thing
//! has happened or the time is over; a caller that goes away changes nothing.

use std::time::Duration;

use domain::code::Code;
use domain::transfer::ReqId;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{mpsc, oneshot};

use crate::transaction::{Did, TransactionName, TransactionRound, TransactionRow};

/// The state after a request, as PostgreSQL has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TransactionReply {
    /// The whole transaction.
    pub row: TransactionRow,
    /// An earlier request has done it.
    pub replayed: bool,
    /// The awaited thing has happened: the round is tried, or the transaction is final, or it is
    /// committed and both stores have booked. The row may show the last of that a moment later.
    pub settled: bool,
}

/// Why a request was not done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TransactionRefusal {
    /// The code to act on.
    pub code: Code,
    /// For people.
    pub detail: Option<String>,
    /// The transaction, if there is one: its branches say which one refused.
    pub row: Option<Box<TransactionRow>>,
    /// It may have been done all the same.
    pub unknown: bool,
}

impl TransactionRefusal {
    /// A refusal that has done nothing.
    pub fn because(code: Code, detail: impl Into<String>) -> TransactionRefusal {
        TransactionRefusal { code, detail: Some(detail.into()), row: None, unknown: false }
    }
}

impl From<Code> for TransactionRefusal {
    fn from(code: Code) -> TransactionRefusal {
        TransactionRefusal { code, detail: None, row: None, unknown: false }
    }
}

/// The answer to one message.
pub type TransactionAnswer = Result<TransactionReply, TransactionRefusal>;

/// The wish of operators to end a branch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Abandon {
    /// The participant, by its name.
    pub participant: String,
    /// From 1.
    pub round: u8,
    /// In DECIDING, of the last participant.
    pub did: Option<Did>,
    /// The operators.
    pub by: String,
    /// Why.
    pub reason: String,
}

/// One request, as the worker reads it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TransactionAsk {
    /// A first or a later round, checked by the caller.
    Round(Box<TransactionRound>),
    /// The caller's decision by HTTP, or the hint that it was made in SQL.
    Commit {
        /// Of which transaction.
        name: TransactionName,
        /// The rounds that the caller means; `None`: those that were accepted.
        rounds: Option<u8>,
    },
    /// The end of a transaction that is not decided. An unknown name is written as cancelled.
    Abort {
        /// Of which transaction.
        name: TransactionName,
        /// The author: the owner, or an operator.
        by: String,
        /// For people.
        reason: Option<String>,
    },
    /// The transaction as it stands, or TRANSACTION_NOT_FOUND.
    Get(TransactionName),
    /// An operator's wish: back-offs are forgotten, and all parties are asked at once.
    Retry(ReqId),
    /// An operator's wish: the last participant refuses unless it has decided, and its answer is
    /// taken.
    Resolve(ReqId),
    /// The end of a branch by two operators.
    Abandon(ReqId, Abandon),
}

/// A request on its way to the worker.
#[derive(Debug)]
pub struct TransactionMessage {
    /// The request.
    pub ask: TransactionAsk,
    /// How long the caller waits for the awaited thing.
    pub wait: Duration,
    /// Takes the one answer.
    pub reply: oneshot::Sender<TransactionAnswer>,
}

/// Speaks to the worker of transactions.
#[derive(Clone, Debug)]
pub struct Transactions {
    inbox: mpsc::Sender<TransactionMessage>,
}

impl Transactions {
    /// The handle, and the inbox for the worker. `queue_max`: requests that may wait to be read.
    pub fn new(queue_max: usize) -> (Transactions, mpsc::Receiver<TransactionMessage>) {
        let (inbox, messages) = mpsc::channel(queue_max);
        (Transactions { inbox }, messages)
    }

    /// Accepts a round that the caller has checked, and waits until it is tried. With the
    /// coordinator as decider it waits until both stores have booked.
    ///
    /// # Errors
    /// The code of [`TransactionRefusal`]: of the accept, or of the branch that refused.
    pub async fn round(&self, round: TransactionRound, wait: Duration) -> TransactionAnswer {
        self.ask(TransactionAsk::Round(Box::new(round)), wait).await
    }

    /// Decides for the caller, or has the worker look at once at a decision made in SQL.
    ///
    /// # Errors
    /// TRANSACTION_NOT_FOUND, TRANSACTION_ABORTED, TRANSACTION_EXPIRED, TRANSACTION_UNTRIED.
    pub async fn commit(
        &self,
        name: TransactionName,
        rounds: Option<u8>,
        wait: Duration,
    ) -> TransactionAnswer {
        self.ask(TransactionAsk::Commit { name, rounds }, wait).await
    }

    /// Aborts for the owner or for an operator. An unknown name is written as cancelled.
    ///
    /// # Errors
    /// TRANSACTION_DECIDED: committed, or the last participant has been asked.
    pub async fn abort(
        &self,
        name: TransactionName,
        by: String,
        reason: Option<String>,
        wait: Duration,
    ) -> TransactionAnswer {
        self.ask(TransactionAsk::Abort { name, by, reason }, wait).await
    }

    /// The transaction with this name, at once or when the awaited thing has happened.
    ///
    /// # Errors
    /// TRANSACTION_NOT_FOUND.
    pub async fn get(&self, name: TransactionName, wait: Duration) -> TransactionAnswer {
        self.ask(TransactionAsk::Get(name), wait).await
    }

    /// Forgets back-offs and has every party asked at once.
    ///
    /// # Errors
    /// TRANSACTION_NOT_FOUND.
    pub async fn retry(&self, id: ReqId) -> TransactionAnswer {
        self.ask(TransactionAsk::Retry(id), Duration::ZERO).await
    }

    /// Has the last participant of a transaction in DECIDING record a refusal, unless it has
    /// decided, and takes its answer. It is asked so once; a repeat asks again.
    ///
    /// # Errors
    /// TRANSACTION_NOT_FOUND, NOT_RESOLVABLE: the transaction is in another state.
    pub async fn resolve(&self, id: ReqId, wait: Duration) -> TransactionAnswer {
        self.ask(TransactionAsk::Resolve(id), wait).await
    }

    /// Ends the branch of a service by the word of operators.
    ///
    /// # Errors
    /// Those of [`Abandon::judge`]; TRANSACTION_NOT_FOUND, also of a transaction that has ended;
    /// SERVICE_HALTED; SYSTEM_ERROR, not recorded in time.
    pub async fn abandon(&self, id: ReqId, abandon: Abandon, wait: Duration) -> TransactionAnswer {
        self.ask(TransactionAsk::Abandon(id, abandon), wait).await
    }

    async fn ask(&self, ask: TransactionAsk, wait: Duration) -> TransactionAnswer {
        let (reply, answer) = oneshot::channel();
        match self.inbox.try_send(TransactionMessage { ask, wait, reply }) {
            Ok(()) => {}
            Err(TrySendError::Full(_)) => return Err(Code::Overloaded.into()),
            Err(TrySendError::Closed(_)) => {
                let detail = "The worker of transactions does not run. Try again.";
                return Err(TransactionRefusal::because(Code::SystemError, detail));
            }
        }
        // Dropped unanswered: the worker has ended, and it is not known how far it came.
        answer.await.unwrap_or_else(|_dropped| {
            let detail = "The worker of transactions stopped. Ask for the transaction again.";
            let refusal = TransactionRefusal::because(Code::SystemError, detail);
            Err(TransactionRefusal { unknown: true, ..refusal })
        })
    }
}
