//! `engine_state.posted`: the mark that the log has postings of venues, which PostgreSQL does not
//! know. With it no log is rebuilt from PostgreSQL alone.

use tokio_postgres::GenericClient;

use super::Error;

/// Whether the database of `incarnation` has the mark.
///
/// # Errors
/// [`Error`]: PostgreSQL is away, or the process of `incarnation` has been superseded.
pub(super) async fn read(client: &impl GenericClient, incarnation: i64) -> Result<bool, Error> {
    let read = "SELECT posted FROM engine_state WHERE incarnation = $1";
    let row = client.query_opt(read, &[&incarnation]).await?.ok_or(Error::Superseded)?;
    Ok(row.try_get(0)?)
}

/// Sets the mark. Durable once it returns; a repeat changes nothing.
///
/// # Errors
/// As [`read`].
pub(super) async fn set(client: &impl GenericClient, incarnation: i64) -> Result<(), Error> {
    let mark = "UPDATE engine_state SET posted = TRUE WHERE incarnation = $1";
    match client.execute(mark, &[&incarnation]).await? {
        0 => Err(Error::Superseded),
        _ => Ok(()),
    }
}
