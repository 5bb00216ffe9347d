//! Payment channels: the merchant that each name belongs to, and whether it takes new orders.

use super::Admin;
use crate::postgres::Error;

/// A channel as PostgreSQL knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownChannel {
    /// The merchant that the name belongs to for ever.
    pub merchant: String,
    /// Whether it takes no new orders.
    pub paused: bool,
}

impl Admin {
    /// Gives a name to a merchant, unless it has one. Returns the channel as it stands: the caller
    /// compares the merchant. Durable once it returns.
    ///
    /// # Errors
    /// [`Error`]: PostgreSQL is away, or this process has been superseded.
    pub async fn claim_channel(&self, name: &str, merchant: &str) -> Result<KnownChannel, Error> {
        let mut client = self.pool().get().await?;
        let transaction = client.transaction().await?;
        self.fence(&transaction).await?;
        let insert = "INSERT INTO channels_tb (name, merchant) VALUES ($1, $2) \
                      ON CONFLICT (name) DO NOTHING";
        transaction.execute(insert, &[&name, &merchant]).await?;
        let known = "SELECT merchant, paused FROM channels_tb WHERE name = $1";
        let row = transaction.query_one(known, &[&name]).await?;
        let known = KnownChannel { merchant: row.try_get(0)?, paused: row.try_get(1)? };
        transaction.commit().await?;
        Ok(known)
    }
}
