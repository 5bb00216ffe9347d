//! Changes of the pauses, in PostgreSQL and in force.

use tokio::sync::watch;

use super::{Admin, audit};
use crate::pause::Scope;
use crate::postgres::Error;
use crate::postgres::columns::asset_number;
use crate::postgres::reads::pauses::pauses;

/// A change of a pause.
#[derive(Clone, Copy, Debug)]
pub struct PauseChange<'a> {
    /// Which transfers.
    pub scope: Scope,
    /// Whether new transfers are refused from now on.
    pub paused: bool,
    /// The scope in words, for readers of the audit.
    pub subject: &'a str,
    /// The operator.
    pub actor: &'a str,
    /// Why.
    pub reason: &'a str,
}

/// The requests that were checked against earlier sets of pauses.
pub struct Earlier(Vec<watch::Receiver<()>>);

impl Earlier {
    /// Returns when each of these transfers is accepted, refused, or answered as unknown.
    pub async fn decided(mut self) {
        for kept in &mut self.0 {
            // The channel carries no message: an error reports that the last request has let go.
            while kept.changed().await.is_ok() {}
        }
    }
}

impl Admin {
    /// Sets or ends a pause, with its audit row. It is in force when this returns, for every
    /// transfer that is checked from then on. A repeat changes only the author.
    ///
    /// # Errors
    /// [`Error`]: PostgreSQL is away, or this process has been superseded. The outcome may be
    /// unknown.
    pub async fn change_pause(&self, change: PauseChange<'_>) -> Result<Earlier, Error> {
        let PauseChange { scope, paused, subject, actor, reason } = change;
        let _changing = self.changing.lock().await;
        let mut client = self.pool().get().await?;
        let transaction = client.transaction().await?;
        self.fence(&transaction).await?;
        // 0 stands for all: a key column cannot be NULL.
        let direction = scope.direction().map_or(0, |direction| i16::from(direction as u8));
        let asset = scope.asset().map_or(0, asset_number);
        if paused {
            let pause = "INSERT INTO pauses_tb (direction, asset_id, actor, reason) VALUES ($1, $2, $3, $4) \
                         ON CONFLICT (direction, asset_id) DO UPDATE \
                         SET at = clock_timestamp(), actor = EXCLUDED.actor, reason = EXCLUDED.reason";
            transaction.execute(pause, &[&direction, &asset, &actor, &reason]).await?;
        } else {
            let go_on = "DELETE FROM pauses_tb WHERE direction = $1 AND asset_id = $2";
            transaction.execute(go_on, &[&direction, &asset]).await?;
        }
        let action = if paused { "pause" } else { "unpause" };
        audit(&transaction, actor, action, subject, "", reason).await?;
        // Read before the commit, so that the new set is the one that the commit makes.
        let read = pauses(&*transaction).await?;
        transaction.commit().await?;
        let before = self.reads.replace_pauses(read);
        let mut earlier = self.earlier.lock();
        // A request may still use a set that an earlier change has replaced.
        earlier.retain(|kept| kept.has_changed().is_ok());
        earlier.push(before.kept());
        Ok(Earlier(earlier.clone()))
    }
}
