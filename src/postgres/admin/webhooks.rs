//! Dead letters that an operator sends again.

use super::Admin;
use crate::postgres::Error;
use crate::postgres::events::fenced;

impl Admin {
    /// Makes the dead letters of an event due, with an audit row in the same transaction. Returns
    /// whether there was one.
    ///
    /// # Errors
    /// [`Error`]: PostgreSQL is away, or this process has been superseded. The outcome may be
    /// unknown; a repeat is harmless.
    pub async fn resend(&self, event_id: i64, actor: &str, reason: &str) -> Result<bool, Error> {
        let client = self.pool().get().await?;
        let resend = "SELECT webhook_resend($1, $2, $3, $4)";
        let values: [&(dyn tokio_postgres::types::ToSql + Sync); 4] =
            [&self.incarnation(), &event_id, &actor, &reason];
        let row = client.query_one(resend, &values).await;
        Ok(row.map_err(fenced)?.try_get::<_, i64>(0)? > 0)
    }
}
