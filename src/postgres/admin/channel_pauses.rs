//! Pauses of payment channels.

use super::{Admin, audit};
use crate::postgres::Error;

impl Admin {
    /// Has a channel take no new orders, or take them again, with its audit row. `in_force` puts
    /// it in force in this process, in the order of the commits. Returns whether PostgreSQL knows
    /// the channel.
    ///
    /// # Errors
    /// [`Error`]: PostgreSQL is away, or this process has been superseded. The outcome may be
    /// unknown.
    pub async fn pause_channel(
        &self,
        name: &str,
        paused: bool,
        actor: &str,
        reason: &str,
        in_force: impl FnOnce() + Send,
    ) -> Result<bool, Error> {
        let _changing = self.changing.lock().await;
        let mut client = self.pool().get().await?;
        let transaction = client.transaction().await?;
        self.fence(&transaction).await?;
        let change = "UPDATE channels_tb SET paused = $2 WHERE name = $1";
        let known = transaction.execute(change, &[&name, &paused]).await? > 0;
        if known {
            let action = if paused { "channel pause" } else { "channel unpause" };
            audit(&transaction, actor, action, name, "", reason).await?;
        }
        transaction.commit().await?;
        if known {
            in_force();
        }
        Ok(known)
    }
}
