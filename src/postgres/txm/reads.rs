//! The questions of the listener, and the writes that any node may do: signers, suspensions,
//! commands. None of them is fenced.

use alloy_primitives::Address;
use chain::tx::TxId;
use txm::store::{StoreError, Suspension};

use super::details::{
    CancelByRequest, CommandState, Deed, FeedCursor, FeedEvent, NewCommand, SignerKind, SignerRow,
    TxDetails, TxListFilter, TxPage,
};
use crate::postgres::Connections;

/// The most requests of one query.
pub const QUERY_MAX: usize = 100;

/// The rows of the manager, for any node.
#[derive(Clone)]
pub struct TxmReads {
    pool: Connections,
}

impl TxmReads {
    /// Over a pool of its own.
    pub fn new(pool: Connections) -> TxmReads {
        TxmReads { pool }
    }

    /// A transaction with its history.
    ///
    /// # Errors
    /// [`StoreError::Away`].
    pub async fn get(&self, id: TxId) -> Result<Option<TxDetails>, StoreError> {
        self.away(id)
    }

    /// The transaction of a request, with its history.
    ///
    /// # Errors
    /// [`StoreError::Away`].
    pub async fn by_request(
        &self,
        signer: Address,
        request_id: &str,
    ) -> Result<Option<TxDetails>, StoreError> {
        self.away((signer, request_id))
    }

    /// One answer a request, in their order, at most [`QUERY_MAX`]; without histories.
    ///
    /// # Errors
    /// [`StoreError::Away`].
    pub async fn query(
        &self,
        requests: &[(Address, String)],
    ) -> Result<Vec<Option<TxDetails>>, StoreError> {
        self.away(requests)
    }

    /// A part of the transactions, the newest first.
    ///
    /// # Errors
    /// [`StoreError::Away`].
    pub async fn list(&self, filter: &TxListFilter) -> Result<TxPage, StoreError> {
        self.away(filter)
    }

    /// All signers, by address.
    ///
    /// # Errors
    /// [`StoreError::Away`].
    pub async fn signers(&self) -> Result<Vec<SignerRow>, StoreError> {
        self.away(())
    }

    /// The events behind a place, in the order of the feed, at most `limit`. Nothing becomes
    /// visible behind a place that a page has passed.
    ///
    /// # Errors
    /// [`StoreError::Away`].
    pub async fn events(
        &self,
        after: FeedCursor,
        limit: u32,
    ) -> Result<Vec<FeedEvent>, StoreError> {
        self.away((after, limit))
    }

    /// Adds a signer with its next nonce; `false`: it is there already, and nothing changed.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn add_signer(
        &self,
        signer: Address,
        kind: SignerKind,
        cursor: u64,
        deed: &Deed<'_>,
    ) -> Result<bool, StoreError> {
        self.away((signer, kind, cursor, deed))
    }

    /// Adds a suspension; `false`: it is there already. `suspension.reason` is its key.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn suspend(
        &self,
        signer: Address,
        suspension: &Suspension,
        about: &str,
    ) -> Result<bool, StoreError> {
        self.away((signer, suspension, about))
    }

    /// Lifts a suspension; `false`: it is not there. The caller has checked the right to.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn resume(
        &self,
        signer: Address,
        reason: &str,
        deed: &Deed<'_>,
    ) -> Result<bool, StoreError> {
        self.away((signer, reason, deed))
    }

    /// Stores a command, and returns its id. A `Resolve` waits for a second operator.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn command(&self, command: &NewCommand<'_>) -> Result<u64, StoreError> {
        self.away(command)
    }

    /// Seconds a command; `false`: it does not wait for this, or `actor` is its first operator.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn second(&self, command: u64, actor: &str) -> Result<bool, StoreError> {
        self.away((command, actor))
    }

    /// Where a command stands; `None`: unknown.
    ///
    /// # Errors
    /// [`StoreError::Away`].
    pub async fn command_state(&self, command: u64) -> Result<Option<CommandState>, StoreError> {
        self.away(command)
    }

    /// Cancels by the client's id. An unknown one is stored as FAILED REFUSED.
    ///
    /// # Errors
    /// [`StoreError`]. `Unknown`: ask again.
    pub async fn cancel_by_request(
        &self,
        signer: Address,
        request_id: &str,
        deed: &Deed<'_>,
    ) -> Result<CancelByRequest, StoreError> {
        self.away((signer, request_id, deed))
    }

    fn away<A, T>(&self, _asked: A) -> Result<T, StoreError> {
        Err(StoreError::Away(format!("{:?}", self.pool.status())))
    }
}
