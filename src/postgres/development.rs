//! The mark of a database that `serve --dev` used first. Development money is made only there.

use super::{Address, Error, Limits, connect};

/// A database on which no development money is made. Nothing was changed.
#[derive(Debug, thiserror::Error)]
#[error(
    "the database {database} was not made by `serve --dev`: no development money is made on it. Start without --dev, \
     or name an empty database (createdb ubscore_dev; --postgres URL)"
)]
pub struct NotDevelopment {
    /// Its name.
    pub database: String,
}

/// A check that found no answer, or found a database in use.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// It was used without `--dev`.
    #[error(transparent)]
    Used(#[from] NotDevelopment),
    /// PostgreSQL.
    #[error(transparent)]
    Postgres(#[from] Error),
}

/// Refuses a database that was first used without `--dev`. Reads only, and needs no schema.
///
/// Admitted are: a database without our schema, one with the mark, and one that nothing has used yet: a start may have died
/// between the schema and the mark. So is a schema without a place for the mark, which the start refuses by name later.
///
/// # Errors
/// [`Refusal`]: nothing was changed.
pub async fn admit(address: &Address, limits: &Limits) -> Result<(), Refusal> {
    let client = connect(address, limits).await?;
    let schema = "SELECT current_database()::text, EXISTS (\
          SELECT FROM pg_attribute WHERE attrelid = to_regclass('engine_state') \
             AND attname = 'development' AND NOT attisdropped)";
    let row = client.query_one(schema, &[]).await.map_err(Error::from)?;
    if !row.try_get::<_, bool>(1).map_err(Error::from)? {
        return Ok(());
    }
    let admitted = "SELECT development OR (log_identity IS NULL AND NOT EXISTS (SELECT FROM assets_tb) \
           AND NOT EXISTS (SELECT FROM transfers_tb) AND NOT EXISTS (SELECT FROM external_operations)) \
         FROM engine_state";
    let admitted = client.query_one(admitted, &[]).await.map_err(Error::from)?;
    if admitted.try_get(0).map_err(Error::from)? {
        return Ok(());
    }
    let database = row.try_get(0).map_err(Error::from)?;
    Err(NotDevelopment { database }.into())
}
