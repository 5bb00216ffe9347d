//! The rows of the manager as the listener shows them: a transaction with its attempts and history,
//! signers, events, commands.

use std::collections::BTreeMap;

use alloy_primitives::{Address, B256, Bytes};
use chain::decide::EndpointAnswer;
use chain::fee::GasPrice;
use chain::state::TxState;
use chain::tx::{FailCode, NewTx, SubState, Tx, TxId, TxReceipt};
use serde::Deserialize;
use serde_json::Value;
use txm::store::{CommandWish, Suspension};

/// A transaction with everything that is kept of it.
#[derive(Clone, Debug, PartialEq)]
pub struct TxDetails {
    /// The row, with its attempts, receipt, and the confirmations of the present fork.
    pub tx: Tx,
    /// The time it was stored, ms since 1970 by the store's clock, as every time here.
    pub created_ms: i64,
    /// The time of its last change, ms.
    pub updated_ms: i64,
    /// The time it was confirmed, ms.
    pub confirmed_ms: Option<i64>,
    /// The time from which nothing can take it back, ms.
    pub final_ms: Option<i64>,
    /// One entry for each attempt of `tx`, in the same order.
    pub attempts: Vec<AttemptDetails>,
    /// Its passages, the oldest first. Empty in a list.
    pub history: Vec<TxPassage>,
}

/// More about an attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttemptDetails {
    /// The time it was stored, ms.
    pub signed_ms: i64,
    /// The time of the last answer, ms.
    pub answered_ms: Option<i64>,
    /// The last answer of each endpoint, by name.
    pub answers: Vec<EndpointAnswer>,
}

/// A change of a transaction's state or sub state, or a new attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TxPassage {
    /// The state before; `None`: it is new.
    pub from: Option<TxState>,
    /// The state behind.
    pub to: TxState,
    /// More about that.
    pub sub: Option<SubState>,
    /// Why it failed.
    pub code: Option<FailCode>,
    /// The attempts at that time.
    pub attempts: u32,
    /// ms.
    pub at_ms: i64,
    /// The node that wrote it.
    pub node: String,
    /// The token it was written under; 0: without a lease.
    pub token: u64,
}

/// The wanted part of a list.
#[derive(Clone, Debug, Default)]
pub struct TxListFilter {
    /// Of this signer.
    pub signer: Option<Address>,
    /// In this state.
    pub state: Option<TxState>,
    /// Stored then or later, ms.
    pub since_ms: Option<i64>,
    /// Below this id: the cursor of the page before.
    pub below: Option<TxId>,
    /// At most so many rows.
    pub limit: u32,
}

/// A part of a list, the newest first.
#[derive(Clone, Debug, PartialEq)]
pub struct TxPage {
    /// Without histories.
    pub txs: Vec<TxDetails>,
    /// The id below which the next page begins; `None` at the end.
    pub next: Option<TxId>,
}

/// The place of a signer's key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SignerKind {
    /// A file of the node.
    Keystore,
    /// Another server.
    Remote,
}

impl SignerKind {
    /// The name in rows and answers.
    pub fn name(self) -> &'static str {
        match self {
            SignerKind::Keystore => "keystore",
            SignerKind::Remote => "remote",
        }
    }

    /// The kind with this name.
    pub fn from_name(name: &str) -> Option<SignerKind> {
        [SignerKind::Keystore, SignerKind::Remote].into_iter().find(|kind| kind.name() == name)
    }
}

/// A signer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SignerRow {
    /// Its address.
    pub signer: Address,
    /// The place of its key.
    pub kind: SignerKind,
    /// Its suspensions; empty: active.
    pub suspensions: Vec<Suspension>,
    /// The node that owns it; `None`: no live lease.
    pub owner: Option<String>,
    /// The listener of that node.
    pub owner_url: Option<String>,
    /// The token of the last lease; 0: there was none.
    pub token: u64,
    /// The next nonce.
    pub cursor: u64,
    /// The nonces without a row that a jump or an adoption passed over.
    pub jumped: u64,
    /// The rows that are not over.
    pub open_rows: u64,
    /// The time the oldest of them was stored, ms.
    pub oldest_ms: Option<i64>,
    /// The time it was added, ms.
    pub added_ms: i64,
}

/// A place in the feed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct FeedCursor {
    /// Rises when the database finds itself in another cluster, or on another timeline.
    pub epoch: u64,
    /// The transaction of PostgreSQL that wrote the event.
    pub xid: u64,
    /// The event.
    pub event: u64,
}

/// The kind of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TxEventKind {
    /// It is new, or its state, sub state or code is another one, or it is final.
    State,
    /// Its confirmations grew, or are others.
    Confirmations,
}

impl TxEventKind {
    /// The name in rows and answers.
    pub fn name(self) -> &'static str {
        match self {
            TxEventKind::State => "state",
            TxEventKind::Confirmations => "confirmations",
        }
    }
}

/// An event of the feed.
#[derive(Clone, Debug, PartialEq)]
pub struct FeedEvent {
    /// Its place: the `after` of the next page.
    pub cursor: FeedCursor,
    /// The transaction.
    pub tx: TxId,
    /// Its signer.
    pub signer: Address,
    /// Its request.
    pub request_id: String,
    /// 1, 2, 3, ... of this transaction.
    pub seq: u32,
    /// The kind.
    pub kind: TxEventKind,
    /// Of confirmations: they replace those that were told.
    pub new_fork: bool,
    /// The members of 003. Its `receipt` is in the form of the store.
    pub body: Value,
    /// Of confirmations: the same receipt, read.
    pub receipt: Option<TxReceipt>,
    /// ms.
    pub at_ms: i64,
}

/// A person or program that changes something, and the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Deed<'a> {
    /// The subject of the token.
    pub actor: &'a str,
    /// For the audit.
    pub reason: &'a str,
}

/// A mined transaction that gets its row by an adoption.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TxImport {
    /// The request that it pays. `gas`: the limit of the transaction.
    pub new: NewTx,
    /// The signed bytes.
    pub raw: Bytes,
    /// Their hash.
    pub hash: B256,
    /// Their prices.
    pub price: GasPrice,
}

/// Everything of a signer that an adoption must name, beside the nonces that the chain has and no
/// row.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ToAdopt {
    /// The nonce behind the last one that was signed before the rows became an older copy: what was
    /// signed with those below may be under way.
    pub seen: Option<u64>,
    /// The nonces that rows have lost to another transaction since then, and that one has no row.
    pub lost: Vec<u64>,
    /// The number of fills since then that are not final.
    pub filling: u64,
    /// The requests without a nonce from before the suspension. A database that is lost may have
    /// ended one, and its client may know that.
    pub waiting: Vec<String>,
}

/// The end of a comparison with the chain, by two operators.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Adoption {
    /// The chain's count.
    pub cursor: u64,
    /// Nonces that no row has, or that a row has lost, with the hash of the transaction that has it.
    pub foreign: BTreeMap<u64, B256>,
    /// The others of them: each gets its row.
    pub imports: BTreeMap<u64, TxImport>,
    /// The requests without a nonce that are paid.
    pub pays: Vec<String>,
    /// Those that are ended.
    pub drops: Vec<String>,
    /// The verdict on all that are in neither list. `None`: there are none.
    pub rest: Option<Verdict>,
}

/// The verdict of two operators on a request without a nonce.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// It is still to be paid.
    Pay,
    /// It is ended.
    Drop,
}

impl Verdict {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Verdict::Pay => "pay",
            Verdict::Drop => "drop",
        }
    }
}

/// A command to be stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewCommand<'a> {
    /// The signer.
    pub signer: Address,
    /// The row; `None`: the signer itself.
    pub tx: Option<TxId>,
    /// The wish.
    pub wish: CommandWish,
    /// By whom, and why.
    pub deed: Deed<'a>,
}

/// Where a command stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CommandState {
    /// It waits for a second operator: see `TxmReads::second`.
    Unseconded,
    /// It waits for the owner of its signer.
    Open,
    /// Done.
    Done,
    /// Refused by the owner, for this reason.
    Refused(String),
}

/// The answer to a cancel by the client's id.
#[derive(Clone, Debug, PartialEq)]
pub enum CancelByRequest {
    /// The request was unknown. It is FAILED REFUSED now, so that a late one finds that.
    Refused(Box<TxDetails>),
    /// The row is there, and a command to cancel it is stored.
    Asked {
        /// The row.
        details: Box<TxDetails>,
        /// The command.
        command: u64,
    },
    /// The row is at its end already.
    Ended(Box<TxDetails>),
}
