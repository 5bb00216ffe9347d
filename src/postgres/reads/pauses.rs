//! Pauses, as PostgreSQL keeps them over a restart and as they are in force.

use std::sync::Arc;

use tokio::sync::watch;
use tokio_postgres::{GenericClient, Row};

use super::{Reads, audit};
use crate::pause::{Pause, Pauses, Scope};
use crate::postgres::Error;
use crate::postgres::columns::asset_number;
use domain::asset::AssetId;
use domain::transfer::Direction;

/// A change of a pause.
#[derive(Clone, Copy, Debug)]
pub struct PauseChange<'a> {
    /// Which transfers.
    pub scope: Scope,
    /// Whether they are refused from now on.
    pub paused: bool,
    /// The scope in words, for those who read the audit.
    pub subject: &'a str,
    /// Who says so.
    pub actor: &'a str,
    /// Why.
    pub reason: &'a str,
}

/// Those who have checked a transfer against what was in force before a change, and whose transfer may still be accepted.
pub struct Earlier(Vec<watch::Receiver<()>>);

impl Earlier {
    /// Returns once each of their transfers has been accepted, or has not, or has been told to be unknown.
    pub async fn decided(mut self) {
        for kept in &mut self.0 {
            // Nothing is ever sent: an error is the last one who has let go.
            while kept.changed().await.is_ok() {}
        }
    }
}

impl Reads {
    /// What is paused.
    pub fn pauses(&self) -> Arc<Pauses> {
        self.pauses.load_full()
    }

    /// Reads all pauses and puts them in force. To be called before anybody is listened to.
    ///
    /// # Errors
    /// [`Error`]: PostgreSQL is away, or holds a pause that cannot be one.
    pub async fn load_pauses(&self) -> Result<(), Error> {
        let client = self.pool.get().await?;
        self.pauses.store(Arc::new(pauses(&**client).await?));
        Ok(())
    }

    /// Pauses or goes on, with an audit row in the same transaction. In force when this returns, for every transfer that is
    /// checked from then on. The same again changes nothing but the author.
    ///
    /// # Errors
    /// [`Error`]: PostgreSQL is away, or this process has been superseded. Whether it was done may be unknown.
    pub async fn change_pause(&self, change: PauseChange<'_>) -> Result<Earlier, Error> {
        let PauseChange { scope, paused, subject, actor, reason } = change;
        let _changing = self.changing.lock().await;
        let mut client = self.pool.get().await?;
        let transaction = client.transaction().await?;
        self.fence(&transaction).await?;
        // 0 stands for all: a key has no NULL.
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
        // Read before the commit, so that nothing can come between it and what it puts in force.
        let read = pauses(&*transaction).await?;
        transaction.commit().await?;
        let before = self.pauses.swap(Arc::new(read));
        let mut earlier = self.earlier.lock();
        // Somebody may still keep what an earlier change has replaced.
        earlier.retain(|kept| kept.has_changed().is_ok());
        earlier.push(before.kept());
        Ok(Earlier(earlier.clone()))
    }
}

async fn pauses(client: &impl GenericClient) -> Result<Pauses, Error> {
    let all = "SELECT direction, asset_id, at, actor, reason FROM pauses_tb ORDER BY at";
    let rows = client.query(all, &[]).await?;
    Ok(Pauses::new(rows.iter().map(pause_from_row).collect::<Result<_, _>>()?))
}

fn pause_from_row(row: &Row) -> Result<Pause, Error> {
    let (direction, asset): (i16, i32) = (row.try_get(0)?, row.try_get(1)?);
    let bad = || Error::Row { table: "pauses_tb", what: format!("{direction}, asset {asset}") };
    let direction = match u8::try_from(direction).map_err(|_| bad())? {
        0 => None,
        number => Some(Direction::from_number(number).ok_or_else(bad)?),
    };
    let asset = match u32::try_from(asset).map_err(|_| bad())? {
        0 => None,
        number => Some(AssetId(number)),
    };
    let scope = Scope::new(direction, asset).ok_or_else(bad)?;
    Ok(Pause { scope, at: row.try_get(2)?, actor: row.try_get(3)?, reason: row.try_get(4)? })
}
