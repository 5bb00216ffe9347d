//! The mark that the log has venues, whose postings PostgreSQL does not know.

use super::Admin;
use crate::postgres::Error;

impl Admin {
    /// Marks the database: Spot can no longer be rebuilt from it alone. Durable once it returns.
    /// Call it before the log gets its first record of a venue. A repeat changes nothing.
    ///
    /// # Errors
    /// [`Error`]: PostgreSQL is away, or this process has been superseded. No venue may be added.
    pub async fn mark_posted(&self) -> Result<(), Error> {
        let client = self.pool().get().await?;
        let mark = "UPDATE engine_state SET posted = TRUE WHERE incarnation = $1";
        match client.execute(mark, &[&self.incarnation()]).await? {
            0 => Err(Error::Superseded),
            _ => Ok(()),
        }
    }
}
