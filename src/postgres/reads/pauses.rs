//! Pauses, as PostgreSQL keeps them over a restart and as they are in force.

use std::sync::Arc;

use tokio_postgres::{GenericClient, Row};

use super::Reads;
use crate::pause::{Pause, Pauses, Scope};
use crate::postgres::Error;
use domain::asset::AssetId;
use domain::transfer::Direction;

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

    /// Puts a new set in force, and returns the earlier one.
    pub(in crate::postgres) fn replace_pauses(&self, pauses: Pauses) -> Arc<Pauses> {
        self.pauses.swap(Arc::new(pauses))
    }
}

/// Every pause, oldest first.
pub(in crate::postgres) async fn pauses(client: &impl GenericClient) -> Result<Pauses, Error> {
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
