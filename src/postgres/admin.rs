//! The writes of operators to PostgreSQL. No method here moves money.
//!
//! A transaction begins with the fence: a superseded process changes nothing. A change of an
//! asset or of the pauses is in force in [`Reads`] when its method returns.

pub mod approvals;
pub mod assets;
pub mod callers;
pub mod channel_pauses;
pub mod channels;
pub mod halts;
pub mod notices;
pub mod pauses;
pub mod special;
pub mod venues;
pub mod webhooks;

use std::sync::Arc;

use tokio::sync::{Mutex, watch};

use super::bills::BillStore;
use super::reads::Reads;
use super::{Connections, Error};

/// Writes the changes of operators, as one incarnation.
#[derive(Clone)]
pub struct Admin {
    reads: Reads,
    incarnation: u64,
    /// Held from a change of the catalog or the pauses until it is in force. An older state
    /// cannot replace a newer one.
    changing: Arc<Mutex<()>>,
    /// One entry for each earlier set of pauses that a request may still use. It closes when the
    /// last of these requests has let go of the set.
    earlier: Arc<parking_lot::Mutex<Vec<watch::Receiver<()>>>>,
}

impl Admin {
    /// Writes as `incarnation`, through the pool of `reads`.
    pub fn new(reads: Reads, incarnation: u64) -> Admin {
        Admin { reads, incarnation, changing: Arc::default(), earlier: Arc::default() }
    }

    /// The incarnation that it writes as.
    pub fn incarnation_number(&self) -> u64 {
        self.incarnation
    }

    /// The reads through the same pool.
    pub fn reads(&self) -> &Reads {
        &self.reads
    }

    pub(super) fn pool(&self) -> &Connections {
        &self.reads.pool
    }

    /// The incarnation as PostgreSQL stores it.
    fn incarnation(&self) -> i64 {
        i64::try_from(self.incarnation).expect("below INCARNATION_MAX")
    }

    /// Refuses a superseded process, and makes its successor wait for this transaction.
    pub(super) async fn fence(
        &self,
        transaction: &deadpool_postgres::Transaction<'_>,
    ) -> Result<(), Error> {
        let ours = "SELECT 1 FROM engine_state WHERE incarnation = $1 FOR SHARE";
        match transaction.query_opt(ours, &[&self.incarnation()]).await? {
            Some(_) => Ok(()),
            None => Err(Error::Superseded),
        }
    }

    /// The store of bills, as the same incarnation.
    pub fn bills(&self) -> BillStore {
        BillStore::new(self.reads.clone(), self.incarnation())
    }

    /// Writes the audit row of a change that another store makes. Call it before the change.
    ///
    /// # Errors
    /// [`Error`]: PostgreSQL is away, or this process has been superseded.
    pub async fn audit(
        &self,
        actor: &str,
        action: &str,
        subject: &str,
        detail: &str,
        reason: &str,
    ) -> Result<(), Error> {
        let mut client = self.pool().get().await?;
        let transaction = client.transaction().await?;
        self.fence(&transaction).await?;
        audit(&transaction, actor, action, subject, detail, reason).await?;
        Ok(transaction.commit().await?)
    }
}

/// Inserts the audit row of a change into its transaction.
pub(super) async fn audit(
    transaction: &tokio_postgres::Transaction<'_>,
    actor: &str,
    action: &str,
    subject: &str,
    detail: &str,
    reason: &str,
) -> Result<(), Error> {
    let insert = "INSERT INTO admin_audit (actor, action, subject, detail, reason) \
                  VALUES ($1, $2, $3, $4, $5)";
    transaction.execute(insert, &[&actor, &action, &subject, &detail, &reason]).await?;
    Ok(())
}
