//! The session that holds the row of a transaction, for people.

use jiff::Timestamp;
use tokio_postgres::Client;

use crate::postgres::columns::Id;
use domain::transfer::ReqId;

/// The session with the lock on a row, by the number that the row has of it. Some of it is shown
/// only to a role that may see it.
const HOLDER: &str = "SELECT l.pid, a.usename::text, a.application_name, a.xact_start \
       FROM transactions_tb t \
       JOIN pg_locks l ON l.locktype = 'transactionid' AND l.transactionid = t.xmax AND l.granted \
       LEFT JOIN pg_stat_activity a USING (pid) \
      WHERE t.transaction_id = $1 LIMIT 1";

/// The session that holds the row, as text: pid, role, application_name, since when.
///
/// # Errors
/// PostgreSQL is away.
pub(super) async fn holder(client: &Client, id: ReqId) -> Result<String, tokio_postgres::Error> {
    let Some(row) = client.query_opt(HOLDER, &[&Id::of(id)]).await? else {
        return Ok("a session that was gone when it was looked for".to_owned());
    };
    let Some(pid) = row.try_get::<_, Option<i32>>(0)? else {
        return Ok("a prepared transaction (pg_prepared_xacts)".to_owned());
    };
    let (role, application): (Option<&str>, Option<&str>) = (row.try_get(1)?, row.try_get(2)?);
    let since: Option<Timestamp> = row.try_get(3)?;
    let since = since.map_or_else(|| "unknown".to_owned(), |at| at.to_string());
    Ok(format!(
        "pid {pid} (role {}, application {:?}, in a transaction since {since})",
        role.unwrap_or("unknown"),
        application.unwrap_or("")
    ))
}
