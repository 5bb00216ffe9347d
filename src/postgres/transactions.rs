//! The rows of transactions: the words in which their worker speaks to PostgreSQL.
//!
//! Every write compares the incarnation and the state that it goes from. A row that a foreign
//! session holds is passed over: the worker looks again at its next tick.
//!
//! [`database`]: the store of these words.

mod columns;
pub mod database;
mod held;
mod judged;
pub(super) mod rows;

use std::future::Future;

use jiff::Timestamp;

use crate::transaction::{
    BranchState, Party, TransactionName, TransactionRound, TransactionRow, TransactionState,
};
use domain::code::Code;
use domain::transfer::ReqId;

/// A round, with what the service adds to it.
#[derive(Clone, Debug)]
pub struct RoundAccept {
    /// What was asked.
    pub round: TransactionRound,
    /// Used if the transaction is new.
    pub id: ReqId,
    /// Used if the transaction is new.
    pub order_number: u64,
    /// The service's clock.
    pub at: Timestamp,
}

/// The answer to a [`RoundAccept`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Accepted {
    /// The row has the round: it was written now, or the same one before (`replayed`).
    Taken {
        /// The whole transaction.
        row: Box<TransactionRow>,
        /// It was there already.
        replayed: bool,
    },
    /// Nothing was written. TX_ID_CONFLICT, TRANSACTION_DECIDED, TRANSACTION_ABORTED,
    /// TRANSACTION_EXPIRED, TRANSACTION_UNTRIED (an earlier round is still being tried),
    /// INVALID_REQUEST (a round out of order, or one that its decider does not take) or OVERLOADED
    /// (a session of the caller holds the row).
    Refused {
        /// Why.
        code: Code,
        /// For people.
        detail: String,
        /// The row that stands under the name, if there is one.
        row: Option<Box<TransactionRow>>,
    },
}

/// The passage of one branch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BranchMove {
    /// The party.
    pub party: Party,
    /// Of which round.
    pub round: u8,
    /// The state that it must be in.
    pub from: BranchState,
    /// The next state.
    pub to: BranchState,
    /// See [`Branch::code`](crate::transaction::Branch::code).
    pub code: Option<Code>,
    /// See [`Branch::leg`](crate::transaction::Branch::leg).
    pub leg: Option<u8>,
    /// See [`Branch::participant_code`](crate::transaction::Branch::participant_code).
    pub participant_code: Option<String>,
    /// See [`Branch::log_sequence`](crate::transaction::Branch::log_sequence).
    pub log_sequence: Option<u64>,
}

/// A change of one transaction, in one commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TransactionMove {
    /// Of which one.
    pub id: ReqId,
    /// The rounds that it must have: a round that was accepted meanwhile is in no decision.
    pub rounds: u8,
    /// The state that it must be in.
    pub from: TransactionState,
    /// The next state; the same as `from` if only branches move.
    pub to: TransactionState,
    /// With a decision: its author.
    pub by: String,
    /// With an abort: why.
    pub code: Option<Code>,
    /// For people.
    pub detail: Option<String>,
    /// Proves that a caller's decision is durable.
    pub seal: bool,
    /// Funding and Spot have carried out the decision: see [`TransactionRow::stores_ended`].
    pub stores_ended: bool,
    /// An entry of the history besides the passage.
    pub note: Option<TransactionNote>,
    /// Branches that move in the same commit.
    pub branches: Vec<BranchMove>,
}

/// An entry of the history that is no passage: its author, and the text for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TransactionNote {
    /// The author.
    pub by: String,
    /// The deed, and its reason.
    pub text: String,
}

/// The result of a [`TransactionMove`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MoveResult {
    /// Written and durable.
    Moved,
    /// The row is in another state: nothing was written, read it again.
    Changed,
    /// A session of the caller holds the row: nothing was written. The session, for people.
    Held(String),
}

/// A write of transactions that has no result.
#[derive(Debug, thiserror::Error)]
pub enum TransactionError {
    /// Another process has taken over.
    #[error("another process has taken over")]
    Superseded,
    /// PostgreSQL refused the statement, or there is no connection; nothing was written. Of several
    /// moves one may be at fault: the worker may write each on its own.
    #[error("PostgreSQL refused a write of transactions: {0}")]
    Refused(String),
    /// No answer: it may have been written.
    #[error("PostgreSQL did not answer: {0}")]
    Unknown(String),
    /// The row that stands is none that the service writes. It stays as it is, until a person has
    /// mended it.
    #[error("the row of a transaction cannot be read: {0}")]
    Unreadable(String),
}

/// The results of one flight.
#[derive(Debug)]
pub struct Landed {
    /// Of the moves, in their order.
    pub moved: Vec<MoveResult>,
    /// Of the rounds, in their order. An error here is that of one round alone.
    pub accepted: Vec<Result<Accepted, TransactionError>>,
}

/// Unfinished transactions, as far as they can be read.
#[derive(Debug, Default)]
pub struct UnfinishedPage {
    /// In the order of their order numbers.
    pub rows: Vec<TransactionRow>,
    /// Those that are none of the service's: they stay as they are.
    pub unreadable: Vec<UnreadableRow>,
    /// Where the next page begins; `None`: this is the last one.
    pub next: Option<u64>,
}

/// A transaction with a row or a branch that the service does not write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnreadableRow {
    /// Its own id, if that can be read.
    pub id: Option<ReqId>,
    /// Its order number: the watermark stays below.
    pub order_number: u64,
    /// Empty, if it cannot be read.
    pub owner: String,
    /// Empty, if it cannot be read.
    pub tx_id: String,
    /// Why, for people.
    pub what: String,
}

/// The store of transactions. One task uses it: there is one writer beside the callers.
pub trait TransactionStore: Send + 'static {
    /// Writes moves, at most one a transaction, and then rounds, all in one commit. Each has a
    /// result of its own. An error is that of all: nothing was written, or all of it may be.
    fn flight(
        &mut self,
        moves: &[TransactionMove],
        accepts: &[&RoundAccept],
        at: Timestamp,
    ) -> impl Future<Output = Result<Landed, TransactionError>> + Send;

    /// Writes an empty cancelled transaction under a name that nothing stands under; otherwise
    /// returns the row that stands there.
    fn cancel_unknown(
        &mut self,
        accept: &RoundAccept,
        by: &str,
        reason: Option<&str>,
    ) -> impl Future<Output = Result<TransactionRow, TransactionError>> + Send;

    /// The transactions with these names, in their order.
    fn find_all(
        &mut self,
        names: &[&TransactionName],
    ) -> impl Future<Output = Result<Vec<Found>, TransactionError>> + Send;

    /// Unfinished transactions above an order number, in its order, at most `limit`.
    fn unfinished(
        &mut self,
        above: u64,
        limit: usize,
    ) -> impl Future<Output = Result<UnfinishedPage, TransactionError>> + Send;

    /// The transactions that callers have decided in SQL and that no move has sealed. Such a
    /// decision may be lost in a crash: nothing leaves on it, and no client is told of it, before
    /// the seal.
    fn decided(&mut self) -> impl Future<Output = Result<Vec<ReqId>, TransactionError>> + Send;

    /// Accepts a round, or tells what stands under its name: a flight of one.
    fn accept(
        &mut self,
        accept: &RoundAccept,
    ) -> impl Future<Output = Result<Accepted, TransactionError>> + Send {
        async move {
            let landed = self.flight(&[], &[accept], accept.at).await?;
            landed.accepted.into_iter().next().expect("one result a round")
        }
    }

    /// Writes moves alone.
    fn record(
        &mut self,
        moves: &[TransactionMove],
        at: Timestamp,
    ) -> impl Future<Output = Result<Vec<MoveResult>, TransactionError>> + Send {
        async move { Ok(self.flight(moves, &[], at).await?.moved) }
    }

    /// The transaction with this name.
    fn find(&mut self, name: &TransactionName) -> impl Future<Output = Found> + Send {
        async move { self.find_all(&[name]).await?.into_iter().next().expect("one a name") }
    }
}

/// The answer to a search by name. The error: the row cannot be read, or there is no answer.
pub type Found = Result<Option<TransactionRow>, TransactionError>;
