//! The sessions that keep a start from its table locks: they are ended, or named.
//!
//! A start locks `engine_state`, and then `journal_tb`. It does not queue for long, because
//! everybody who comes after it waits behind it. So it waits a few times `deadlock_timeout`, within
//! which an ordinary autovacuum gives way, and then looks at the holders. Connections of earlier
//! incarnations and vacuum workers on the journal are ended: the first may write no more, the
//! second begin again. Others are named for the operator.

use std::fmt;
use std::time::Duration;

use jiff::Timestamp;
use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, Transaction};
use tracing::{info, warn};

use crate::postgres::Error;

/// A try waits this many times `deadlock_timeout`. An autovacuum is canceled after one.
const DEADLOCK_TIMEOUTS: u32 = 3;

/// How long one try waits for a lock.
///
/// # Errors
/// [`Error`]: PostgreSQL is away.
pub(super) async fn patience(client: &Client) -> Result<Duration, Error> {
    let query = "SELECT setting::bigint FROM pg_settings WHERE name = 'deadlock_timeout'";
    let ms: i64 = client.query_one(query, &[]).await?.try_get(0)?;
    Ok(Duration::from_millis(ms.unsigned_abs()) * DEADLOCK_TIMEOUTS)
}

/// Locks both tables. Returns false if others hold one of them for longer than `patience`; the
/// transaction is then of no use.
///
/// # Errors
/// [`Error`]: PostgreSQL is away.
pub(super) async fn lock(transaction: &Transaction<'_>, patience: Duration) -> Result<bool, Error> {
    // In the order of coming: those who share a row's lock overtake who waits for it alone, as long
    // as there are enough.
    let lock = format!(
        "SET LOCAL lock_timeout = {}; LOCK TABLE engine_state IN EXCLUSIVE MODE; \
         LOCK TABLE journal_tb IN SHARE ROW EXCLUSIVE MODE",
        patience.as_millis().max(1)
    );
    match transaction.batch_execute(&lock).await {
        Ok(()) => Ok(true),
        Err(error) => match error.code() {
            Some(&(SqlState::LOCK_NOT_AVAILABLE | SqlState::T_R_DEADLOCK_DETECTED)) => Ok(false),
            Some(_) | None => Err(error.into()),
        },
    }
}

/// Locks that conflict with those of a start, granted or waited for, each with its session.
const HOLDERS: &str = "SELECT l.pid, l.relation::regclass::text, a.usename::text, \
        a.application_name, a.query_start, \
        COALESCE(substring(a.application_name FROM '^ubscore ([0-9]{1,18})$')::bigint \
                   <= (SELECT incarnation FROM engine_state), FALSE) \
          OR COALESCE(a.backend_type = 'autovacuum worker', FALSE) \
             AND l.relation = 'journal_tb'::regclass AS may_end \
    FROM pg_locks l LEFT JOIN pg_stat_activity a USING (pid) \
    WHERE l.locktype = 'relation' AND l.pid IS DISTINCT FROM pg_backend_pid() \
      AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database()) \
      AND (l.relation = 'engine_state'::regclass AND l.mode <> 'AccessShareLock' \
           OR l.relation = 'journal_tb'::regclass \
              AND l.mode NOT IN ('AccessShareLock', 'RowShareLock')) \
    ORDER BY l.pid, l.relation";

/// A session in the way. PostgreSQL shows some of it only to a role that may see it.
#[derive(Clone, Debug)]
pub(super) struct Holder {
    /// `None`: a prepared transaction.
    pid: Option<i32>,
    table: String,
    user: Option<String>,
    application: Option<String>,
    query_start: Option<Timestamp>,
}

impl fmt::Display for Holder {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Holder { pid, table, user, application, query_start } = self;
        let text = |text: &Option<String>| text.clone().unwrap_or_else(|| "unknown".to_owned());
        let Some(pid) = pid else {
            return write!(out, "a prepared transaction on {table} (see pg_prepared_xacts)");
        };
        let began = query_start.map_or_else(|| "unknown".to_owned(), |at| at.to_string());
        let (user, application) = (text(user), text(application));
        write!(
            out,
            "pid {pid} on {table} (user {user}, application \"{application}\", query begun {began})"
        )
    }
}

/// Ends the sessions in the way that may be ended. Returns the others.
///
/// # Errors
/// [`Error`]: PostgreSQL is away.
pub(super) async fn clear(client: &Client) -> Result<Vec<Holder>, Error> {
    let mut others = Vec::new();
    for row in client.query(HOLDERS, &[]).await? {
        let holder = Holder {
            pid: row.try_get(0)?,
            table: row.try_get(1)?,
            user: row.try_get(2)?,
            application: row.try_get(3)?,
            query_start: row.try_get(4)?,
        };
        let may_end: bool = row.try_get(5)?;
        match holder.pid {
            Some(pid) if may_end => match end(client, pid).await? {
                true => info!(%holder, "ended a session that kept this start from a table"),
                false => others.push(holder),
            },
            Some(_) | None => others.push(holder),
        }
    }
    for holder in &others {
        warn!(%holder, "this start waits for a table that another session holds");
    }
    Ok(others)
}

/// Ends a session. Returns false if our role may not.
async fn end(client: &Client, pid: i32) -> Result<bool, Error> {
    match client.execute("SELECT pg_terminate_backend($1)", &[&pid]).await {
        Ok(_) => Ok(true),
        Err(error) if error.code() == Some(&SqlState::INSUFFICIENT_PRIVILEGE) => Ok(false),
        Err(error) => Err(error.into()),
    }
}
