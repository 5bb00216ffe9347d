//! What a server is set to, as far as our promises depend on it. Read only.

use jiff::Timestamp;

use super::horizon::{Holder, holders};
use super::{Address, Error, Limits, connect};

/// A server's settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// For people.
    pub version: String,
    /// Such as 15.
    pub major: i32,
    /// `on` or not.
    pub fsync: String,
    /// `on` or not.
    pub full_page_writes: String,
    /// On a connection of ours, which asks for `on`.
    pub synchronous_commit: String,
    /// Standbys that a commit waits for, empty for none.
    pub synchronous_standby_names: String,
    /// Such standbys that are connected; `None`: we may not see them.
    pub synchronous_standbys: Option<i64>,
    /// `minimal`, `replica` or `logical`.
    pub wal_level: String,
    /// Connections of everybody.
    pub connections_max: i64,
    /// Of these, for superusers.
    pub connections_reserved: i64,
    /// Connections of others than us now.
    pub connections_of_others: i64,
    /// `on` or not.
    pub data_checksums: String,
    /// How far its clock is ahead of ours, ms; less than nothing where it is behind.
    pub clock_ahead_ms: i64,
    /// What holds a snapshot, and so holds back vacuum.
    pub snapshot_holders: Vec<Holder>,
}

const QUERY: &str = "SELECT current_setting('server_version'), \
    current_setting('server_version_num')::integer / 10000, current_setting('fsync'), \
    current_setting('full_page_writes'), \
    current_setting('synchronous_commit'), \
    current_setting('synchronous_standby_names'), \
    CASE WHEN pg_has_role('pg_read_all_stats', 'USAGE') THEN \
      (SELECT count(*) FROM pg_stat_replication WHERE sync_state IN ('sync', 'quorum')) END, \
    current_setting('wal_level'), current_setting('max_connections')::bigint, \
    current_setting('superuser_reserved_connections')::bigint, \
    (SELECT count(*) FROM pg_stat_activity \
      WHERE backend_type = 'client backend' AND application_name !~ '^ubscore( [0-9]+)?$'), \
    current_setting('data_checksums'), clock_timestamp()";

impl Settings {
    /// Asks the server over a connection of its own, and compares the clocks: its word was said between two looks at ours, in
    /// nanoseconds since the Unix epoch.
    ///
    /// # Errors
    /// [`Error`]: it cannot be reached, takes no writes, or does not answer.
    pub async fn read(
        config: &Address,
        limits: &Limits,
        our_clock: impl Fn() -> u64,
    ) -> Result<Settings, Error> {
        let client = connect(config, limits).await?;
        // So that nothing but one question lies between the looks.
        let query = client.prepare(QUERY).await?;
        let before = our_clock();
        let row = client.query_one(&query, &[]).await?;
        let ours = i128::from(before.midpoint(our_clock()));
        let ahead_ns = row.try_get::<_, Timestamp>(12)?.as_nanosecond() - ours;
        Ok(Settings {
            version: row.try_get(0)?,
            major: row.try_get(1)?,
            fsync: row.try_get(2)?,
            full_page_writes: row.try_get(3)?,
            synchronous_commit: row.try_get(4)?,
            synchronous_standby_names: row.try_get(5)?,
            synchronous_standbys: row.try_get(6)?,
            wal_level: row.try_get(7)?,
            connections_max: row.try_get(8)?,
            connections_reserved: row.try_get(9)?,
            connections_of_others: row.try_get(10)?,
            data_checksums: row.try_get(11)?,
            clock_ahead_ms: i64::try_from(ahead_ns / 1_000_000).unwrap_or(i64::MAX),
            snapshot_holders: holders(&client).await?,
        })
    }
}
