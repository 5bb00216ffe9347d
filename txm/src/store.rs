//! The store of the manager: leases, rows, and the one fenced write.
//!
//! Time is the store's alone: rows, leases and deadlines are read and written by its clock, and a
//! node sees only durations.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use alloy_primitives::{Address, B256};
use chain::decide::TxStep;
use chain::tx::{NewTx, Tx, TxId};

use crate::news::News;

/// The most rows that one look for arrivals returns.
pub const ARRIVED_MAX: usize = 100;

/// The most rows without a nonce that a book has, beside those with an open command.
pub const BOOK_UNNUMBERED_MAX: usize = 1_000;

/// A lease of a signer: this process may act for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Lease {
    /// The signer.
    pub signer: Address,
    /// The fencing token. It rises with each change of the owner.
    pub token: u64,
}

/// The other process that owns a signer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OtherOwner {
    /// Its name.
    pub node: String,
    /// The address of its listener; empty: unknown.
    pub url: String,
}

/// The answer to an acquire.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Acquired {
    /// Owned by this process.
    Mine(Lease),
    /// Owned by another one, alive.
    Other(OtherOwner),
    /// The store does not know this signer.
    Unknown,
}

/// The owner of a signer, as any node may ask.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SignerOwner {
    /// The store does not know this signer.
    Unknown,
    /// No live process owns it.
    Free,
    /// A live process owns it; it may be this one.
    Node(OtherOwner),
}

/// Why the store did not do it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// The lease is not ours any more. Nothing was written.
    #[error("fenced: the store has token {found:?}")]
    Fenced {
        /// The token there; `None`: not told.
        found: Option<u64>,
    },
    /// The signer is suspended: it gets no nonce. Nothing was written.
    #[error("the signer is suspended")]
    Suspended,
    /// The signer has too many rows without a nonce. Nothing was written.
    #[error("the signer has too many transactions without a nonce")]
    Overloaded,
    /// It may be written or not. Ask by key.
    #[error("unknown outcome: {0}")]
    Unknown(String),
    /// Nothing was written.
    #[error("not done: {0}")]
    Away(String),
}

/// Why a signer is suspended.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Suspension {
    /// For example NONCE_AHEAD.
    pub reason: String,
    /// The subject that set it; of the program itself `txm`.
    pub actor: String,
}

impl Suspension {
    /// Whether the rows here may be older than the chain: a request that has no nonce here may be
    /// paid all the same, by the transaction that took a nonce for example. So nothing ends it
    /// before an operator has compared.
    pub fn may_lack_rows(&self) -> bool {
        ["DATABASE_RESTORED", "DATABASE_OLDER", "NONCE_AHEAD", "NONCE_TAKEN"]
            .contains(&self.reason.as_str())
    }
}

/// An operator's command about a signer's row or about the signer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TxCommand {
    /// Its number.
    pub id: u64,
    /// The row; `None`: the signer itself.
    pub tx: Option<TxId>,
    /// The wish.
    pub wish: CommandWish,
}

/// The wish of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CommandWish {
    /// Send the newest bytes now.
    Resubmit,
    /// Cancel it.
    Cancel,
    /// Fill its nonce.
    Fill,
    /// Look at this transaction: it may be the one with the nonce.
    ResolveHash(B256),
    /// End an unproven one.
    Resolve {
        /// Whether it counts as paid.
        is_paid: bool,
    },
    /// Fill a nonce of the signer that a jump passed over.
    FillJumped {
        /// The nonce.
        nonce: u64,
    },
    /// Give the signer back, drained.
    Release,
}

/// Everything of a signer that its new owner must know.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SignerBook {
    /// Its suspensions. Not empty: no nonce, no PAY, no BUMP.
    pub suspensions: Vec<Suspension>,
    /// The next nonce of the store.
    pub cursor: u64,
    /// The rows that are not final, by nonce; behind them, by id, the oldest of those without one,
    /// and those with an open command. The others arrive.
    pub txs: Vec<Tx>,
    /// The nonces that a jump passed over and that have no row, ascending. Those below a row that
    /// is final on chain are left out: they are mined.
    pub jumped: Vec<u64>,
    /// The commands that are not done, the oldest first.
    pub commands: Vec<TxCommand>,
}

impl SignerBook {
    /// The last id up to which each open row is here. Those with a nonce all are.
    pub fn read_to(&self) -> TxId {
        let mut ids = self.txs.iter().filter(|tx| tx.nonce.is_none()).map(|tx| tx.id);
        ids.nth(BOOK_UNNUMBERED_MAX - 1).unwrap_or(TxId::MAX)
    }
}

/// The row of a request.
#[derive(Clone, Debug, PartialEq)]
pub enum Created {
    /// It is new.
    New(Box<Tx>),
    /// It was there, with the same body.
    Known(Box<Tx>),
    /// Its id was used with another body, or its business key by another request: the names of the
    /// fields.
    Conflict(Vec<String>),
}

/// Work that came to owned signers.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Arrived {
    /// Rows without a nonce.
    pub txs: Vec<Tx>,
    /// Open commands, each with its signer.
    pub commands: Vec<(Address, TxCommand)>,
    /// Rows without a nonce, with a deadline that has passed by the store's clock, each with
    /// its signer. Such a row gets no nonce.
    pub expired: Vec<(Address, TxId)>,
    /// The suspended signers, each with its suspensions.
    pub suspended: Vec<(Address, Vec<Suspension>)>,
}

/// The work that waits for an owner.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wanting {
    /// Signers with rows that are not final or commands and without a live lease: those with open
    /// work first, of them the oldest.
    pub signers: Vec<Address>,
    /// The nodes that were seen within the lease's duration.
    pub live_nodes: u32,
    /// The signers with open rows.
    pub open_signers: u32,
    /// Those of them without a live lease, also where this node has no key.
    pub unowned: u32,
    /// Until the first lease of another process ends, of a signer with work, if that process does
    /// not renew it; `None`: there is no such lease.
    pub next_end: Option<Duration>,
}

/// A row without a nonce that is prepared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ready {
    /// The row.
    pub id: TxId,
    /// The version at which it was prepared.
    pub version: u64,
    /// Its gas limit.
    pub gas: u64,
}

/// The store. Each fenced call is one statement, so that a paused process holds no lock. Of one
/// signer at most one fenced call is under way at a time.
pub trait TxStore: Send + Sync + 'static {
    /// Acquires a signer for this process, if no live one owns it.
    ///
    /// # Errors
    /// [`StoreError`]. `Unknown`: ask again; it then answers `Mine`.
    fn acquire(&self, signer: Address)
    -> impl Future<Output = Result<Acquired, StoreError>> + Send;

    /// Reads the live owner of a signer, and changes nothing: for nodes that have no key for it.
    ///
    /// # Errors
    /// [`StoreError`].
    fn owner_of(
        &self,
        signer: Address,
    ) -> impl Future<Output = Result<SignerOwner, StoreError>> + Send;

    /// Renews all live leases of this process, and returns them. Until it has left, this process is
    /// marked as seen.
    ///
    /// # Errors
    /// [`StoreError`].
    fn renew(&self) -> impl Future<Output = Result<Vec<Lease>, StoreError>> + Send;

    /// Marks this process as gone: it counts in no share, also while it renews and drains.
    ///
    /// # Errors
    /// [`StoreError`].
    fn leave(&self) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Ends a lease.
    ///
    /// # Errors
    /// [`StoreError`].
    fn release(&self, lease: Lease) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// The work without an owner, at most so many signers.
    ///
    /// # Errors
    /// [`StoreError`].
    fn wanting(&self, most: u32) -> impl Future<Output = Result<Wanting, StoreError>> + Send;

    /// Reads a signer's book.
    ///
    /// # Errors
    /// [`StoreError`].
    fn open(&self, lease: Lease) -> impl Future<Output = Result<SignerBook, StoreError>> + Send;

    /// The rows without a nonce and the open commands of these signers that are not in `known`, at
    /// most [`ARRIVED_MAX`] rows, the oldest first, and the suspensions of each signer. It is one
    /// statement for all signers of a node.
    ///
    /// # Errors
    /// [`StoreError`].
    fn arrived(
        &self,
        leases: &[Lease],
        known: &[TxId],
    ) -> impl Future<Output = Result<Arrived, StoreError>> + Send;

    /// The news of rows, commands and suspensions that other processes store. By default there are
    /// none, and the node looks often.
    fn news(&self) -> Arc<News> {
        Arc::default()
    }

    /// Fenced: gives each new request the next nonce and its row (ALLOCATED), without a hole. All
    /// or nothing. One answer a request, in their order. `floor`: the next nonce is at least this;
    /// the nonces that it passes over are kept as a jump. A new request with a deadline that has
    /// passed gets no nonce: it is stored as FAILED EXPIRED, and known. An id of a fill is refused.
    ///
    /// # Errors
    /// [`StoreError`], `Suspended` among them.
    fn create(
        &self,
        lease: Lease,
        floor: u64,
        requests: &[NewTx],
    ) -> impl Future<Output = Result<Vec<Created>, StoreError>> + Send;

    /// Fenced: gives rows without a nonce theirs (ALLOCATED), in their order. A row with another
    /// version is passed over.
    ///
    /// # Errors
    /// [`StoreError`], `Suspended` among them.
    fn number(
        &self,
        lease: Lease,
        floor: u64,
        ready: &[Ready],
    ) -> impl Future<Output = Result<Vec<Tx>, StoreError>> + Send;

    /// Fenced: gives nonces that a jump passed over their rows ([`NewTx::fill`], ALLOCATED, with
    /// the wish to fill). One answer a nonce: its row, also one that was there. `None`: no jump
    /// passed over it, or another row has it; nothing is written. The caller has asked the chain
    /// that the nonce is not mined. `is_asked`: by an operator, who may while the signer is
    /// suspended.
    ///
    /// # Errors
    /// [`StoreError`], `Suspended` among them.
    fn fill(
        &self,
        lease: Lease,
        nonces: &[u64],
        is_asked: bool,
    ) -> impl Future<Output = Result<Vec<Option<Tx>>, StoreError>> + Send;

    /// Stores a request without a nonce (CREATED). Not fenced: any node may.
    ///
    /// # Errors
    /// [`StoreError`], `Overloaded` among them.
    fn keep(&self, request: &NewTx) -> impl Future<Output = Result<Created, StoreError>> + Send;

    /// Finds the row of a request, on any node.
    ///
    /// # Errors
    /// [`StoreError`].
    fn find(
        &self,
        signer: Address,
        request_id: &str,
    ) -> impl Future<Output = Result<Option<Tx>, StoreError>> + Send;

    /// Fenced: writes steps of rows of one signer, at most one a row. Each is a compare-and-set on
    /// `version - 1`. One answer a step: the row as the commit has it. Only the bytes of its
    /// attempts may leave. `None`: the row has another version, or the step has a new attempt that
    /// pays and the signer is suspended or its outflow would pass its limit; nothing of the step is
    /// written. A step that ends as NONCE_TAKEN suspends the signer too.
    /// Of a step with a new attempt of a number that is there already, the stored attempt comes
    /// back (a late twin).
    ///
    /// # Errors
    /// [`StoreError`].
    fn write(
        &self,
        lease: Lease,
        steps: &[TxStep],
    ) -> impl Future<Output = Result<Vec<Option<Tx>>, StoreError>> + Send;

    /// Fenced: suspends a signer.
    ///
    /// # Errors
    /// [`StoreError`].
    fn suspend(
        &self,
        lease: Lease,
        reason: &str,
        about: &str,
    ) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Fenced: a command is done, or refused for a reason.
    ///
    /// # Errors
    /// [`StoreError`].
    fn commanded(
        &self,
        lease: Lease,
        command: u64,
        refused: Option<&str>,
    ) -> impl Future<Output = Result<(), StoreError>> + Send;
}
