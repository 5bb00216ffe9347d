//! The mark that the log has venues, whose postings PostgreSQL does not know.

use super::Admin;
use crate::postgres::{Error, posted};

impl Admin {
    /// Marks the database: Spot can no longer be rebuilt from it alone. Durable once it returns.
    /// Call it before the log gets its first record of a venue. A repeat changes nothing.
    ///
    /// # Errors
    /// [`Error`]: PostgreSQL is away, or this process has been superseded. No venue may be added.
    pub async fn mark_posted(&self) -> Result<(), Error> {
        let client = self.pool().get().await?;
        posted::set(&**client, self.incarnation()).await
    }

    /// Whether the database has the mark.
    ///
    /// # Errors
    /// [`Error`]: PostgreSQL is away, or this process has been superseded.
    pub async fn is_posted(&self) -> Result<bool, Error> {
        let client = self.pool().get().await?;
        posted::read(&**client, self.incarnation()).await
    }
}
