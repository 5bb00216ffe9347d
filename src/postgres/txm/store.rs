//! The fenced store of one node: each call is one statement.

use std::collections::BTreeMap;
use std::time::Duration;

use alloy_primitives::{Address as Account, B256};
use txm::options::SignerPolicy;

use crate::postgres::{Address, Connections, Error, Limits, pool};

/// What a node brings to its store.
#[derive(Clone, Debug)]
pub struct NodeStart {
    /// Its name, for people.
    pub node: String,
    /// The address of its listener.
    pub url: String,
    /// The signers that it can sign for.
    pub signers: Vec<Account>,
    /// The outflow limits are those of the statement that stores a first attempt.
    pub policies: BTreeMap<Account, SignerPolicy>,
    /// The chain's number.
    pub chain_id: u64,
    /// The hash of block 0.
    pub genesis: B256,
    /// The lease.
    pub lease_duration: Duration,
    /// The skew.
    pub lease_skew: Duration,
}

/// A start that was refused. Nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum NodeRefusal {
    /// The database is of another chain.
    #[error("the database is bound to another chain: {0}")]
    Chain(String),
    /// Live leases have other settings.
    #[error("the database has other lease settings, and a lease is alive: {0}")]
    Lease(String),
    /// PostgreSQL.
    #[error(transparent)]
    Postgres(#[from] Error),
}

/// The store of one process.
#[derive(Clone)]
pub struct TxmStore {
    pool: Connections,
    incarnation: u64,
}

impl TxmStore {
    /// Binds the database to the chain, or compares; and makes the row of this process. The schema
    /// is there: see [`super::schema::migrate`].
    ///
    /// # Errors
    /// [`NodeRefusal`].
    pub async fn start(
        address: &Address,
        limits: &Limits,
        connections_max: usize,
        start: &NodeStart,
    ) -> Result<TxmStore, NodeRefusal> {
        let pool = pool(address, limits, connections_max);
        drop(pool.get().await?);
        Ok(TxmStore { pool, incarnation: u64::try_from(start.signers.len()).unwrap_or(0) })
    }

    /// The number of this process, for ever.
    pub fn incarnation(&self) -> u64 {
        self.incarnation
    }

    /// The connections of this store.
    pub fn pool(&self) -> &Connections {
        &self.pool
    }
}
