//! Old snapshots: what keeps PostgreSQL from removing dead versions of rows.
//!
//! Each flight leaves dead versions of the balances that it changes. While a snapshot is held,
//! vacuum and HOT pruning keep every version that the snapshot may still see, and reads of hot rows
//! get slower by the minute.

use tokio_postgres::Client;

use super::Error;
use super::reads::Reads;

/// A session, prepared transaction or replication slot that holds a snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// For people: its kind and name.
    pub name: String,
    /// The oldest transaction that its snapshot may need. It stays the same while it is held.
    pub horizon: String,
    /// How long it has been held, seconds; `None`: PostgreSQL does not record it.
    pub held_s: Option<u64>,
    /// A replication slot without a consumer: it will hold its snapshot until it is dropped.
    pub abandoned: bool,
}

/// Without the right to see the sessions of others, their rows are without a snapshot.
const QUERY: &str = "\
    SELECT format('pid %s (%L, %s)', pid, application_name, coalesce(state, backend_type)), \
           coalesce(backend_xmin, backend_xid)::text, \
           extract(epoch FROM clock_timestamp() - xact_start)::bigint, FALSE \
      FROM pg_stat_activity \
     WHERE coalesce(backend_xmin, backend_xid) IS NOT NULL AND pid <> pg_backend_pid() \
       AND (datname = current_database() OR datname IS NULL) \
    UNION ALL \
    SELECT format('prepared transaction %L', gid), transaction::text, \
           extract(epoch FROM clock_timestamp() - prepared)::bigint, FALSE \
      FROM pg_prepared_xacts WHERE database = current_database() \
    UNION ALL \
    SELECT format('replication slot %L', slot_name), xmin::text, NULL, NOT active \
      FROM pg_replication_slots WHERE xmin IS NOT NULL";

/// Everything that holds a snapshot now.
///
/// # Errors
/// [`Error`]: PostgreSQL does not answer.
pub async fn holders(client: &Client) -> Result<Vec<Holder>, Error> {
    let mut holders = Vec::new();
    for row in client.query(QUERY, &[]).await? {
        let held_s: Option<i64> = row.try_get(2)?;
        holders.push(Holder {
            name: row.try_get(0)?,
            horizon: row.try_get(1)?,
            // A clock that was set back has no age.
            held_s: held_s.map(|seconds| u64::try_from(seconds).unwrap_or(0)),
            abandoned: row.try_get(3)?,
        });
    }
    Ok(holders)
}

impl Reads {
    /// See [`holders`].
    ///
    /// # Errors
    /// [`Error`]: PostgreSQL does not answer.
    pub async fn snapshot_holders(&self) -> Result<Vec<Holder>, Error> {
        holders(&*self.pool.get().await?).await
    }
}
