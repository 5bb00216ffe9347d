//! One snapshot of PostgreSQL that is held open while it is written to a file, and what it says of the log that belongs to it.

use std::collections::BTreeSet;

use tokio_postgres::{Client, Row};
use wal::{Identity, Sequence};

use super::columns::{self, Id};
use super::incarnation::identity_from_text;
use super::{Address, Error, Limits, connect};
use domain::transfer::ReqId;

/// Tables that no database but ours has.
const TABLES: [&str; 4] =
    ["engine_state", "transfers_tb", "balances_tb", "refinery_schema_history"];

/// A database, and the server it is on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The server's version, for people.
    pub version: String,
    /// Its major version, such as 15.
    pub major: u32,
    /// Which cluster it is.
    pub system_identifier: String,
    /// Which of the cluster's histories.
    pub timeline: i32,
    /// Up to where its log is written, no earlier than the snapshot.
    pub lsn: String,
    /// The database's name.
    pub database: String,
    /// Its number: another database of the same name has another.
    pub database_oid: u32,
    /// Who is connected.
    pub user: String,
}

impl Place {
    /// Asks where a connection leads.
    ///
    /// # Errors
    /// [`Error`]: PostgreSQL is away.
    pub async fn of(client: &Client) -> Result<Place, Error> {
        let row = client
            .query_one(
                "SELECT current_setting('server_version'), \
                    current_setting('server_version_num')::integer / 10000, \
                    (SELECT system_identifier::text FROM pg_control_system()), \
                    (SELECT timeline_id FROM pg_control_checkpoint()), \
                    pg_current_wal_lsn()::text, current_database()::text, \
                    (SELECT oid FROM pg_database WHERE datname = current_database()), \
                    current_user::text",
                &[],
            )
            .await?;
        Ok(Place {
            version: row.try_get(0)?,
            major: unsigned(&row, 1)?,
            system_identifier: row.try_get(2)?,
            timeline: row.try_get(3)?,
            lsn: row.try_get(4)?,
            database: row.try_get(5)?,
            database_oid: row.try_get(6)?,
            user: row.try_get(7)?,
        })
    }
}

/// What `engine_state` says of whose database it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    /// The log it belongs to, `None` where it has never used one.
    pub log: Option<Identity>,
    /// The last incarnation it has given.
    pub incarnation: u64,
    /// Order numbers below it may have left UBSCore's outcome map.
    pub watermark: u64,
    /// Why the service is halted, `None` where it is not.
    pub halted: Option<String>,
}

impl Owner {
    /// Whose database it is.
    ///
    /// # Errors
    /// [`Error`]: PostgreSQL is away.
    pub async fn of(client: &Client) -> Result<Owner, Error> {
        let row = client
            .query_one(
                "SELECT log_identity, incarnation, watermark, \
                    CASE WHEN halted THEN COALESCE(halt_reason, 'no reason is given') END \
                  FROM engine_state",
                &[],
            )
            .await?;
        Ok(Owner {
            log: row.try_get::<_, Option<&str>>(0)?.and_then(identity_from_text),
            incarnation: number(&row, 1)?,
            watermark: number(&row, 2)?,
            halted: row.try_get(3)?,
        })
    }
}

/// A table of ours that is in the database, in whatever schema; `None` for a database that was never used.
///
/// # Errors
/// [`Error`]: PostgreSQL is away.
pub async fn table_of_ours(client: &Client) -> Result<Option<String>, Error> {
    let ours = "SELECT relname::text FROM pg_class WHERE relkind IN ('r', 'p') AND relname = ANY($1) \
                ORDER BY relname LIMIT 1";
    let row = client.query_opt(ours, &[&TABLES.as_slice()]).await?;
    row.map(|row| Ok(row.try_get(0)?)).transpose()
}

/// What a snapshot holds that the log must have as well.
#[derive(Clone, Debug)]
pub struct Facts {
    /// Whose database it is.
    pub owner: Owner,
    /// The highest sequence that any worker has seen durable.
    pub durable: Sequence,
    /// The highest sequence that anything in it claims to be durable.
    pub claimed: Sequence,
    /// Records up to this one have been found in the tables.
    pub audited: Sequence,
    /// How many transfers there are.
    pub transfers: u64,
}

/// A snapshot, held until this is dropped or ended.
pub struct Export {
    client: Client,
    name: String,
    place: Place,
    facts: Facts,
}

impl Export {
    /// Takes the snapshot: it holds whatever was committed before the call.
    ///
    /// # Errors
    /// [`Error`]: PostgreSQL is away.
    pub async fn begin(config: &Address, limits: &Limits) -> Result<Export, Error> {
        let client = connect(config, limits).await?;
        client.batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY").await?;
        // The first statement takes the snapshot.
        let name = client.query_one("SELECT pg_export_snapshot()", &[]).await?.try_get(0)?;
        let place = Place::of(&client).await?;
        let owner = Owner::of(&client).await?;
        let row = client
            .query_one(
                "SELECT (SELECT COALESCE(max(durable), 0) FROM journal_last), \
                    (SELECT log_sequence FROM audit_state), \
                    COALESCE(max(log_sequence), 0), count(*) FROM transfers_tb",
                &[],
            )
            .await?;
        let (durable, audited) = (number(&row, 0)?, number(&row, 1)?);
        let claimed = durable.max(audited).max(number(&row, 2)?);
        let facts = Facts { owner, durable, claimed, audited, transfers: number(&row, 3)? };
        Ok(Export { client, name, place, facts })
    }

    /// What other sessions import it by.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Where it was taken.
    pub fn place(&self) -> &Place {
        &self.place
    }

    /// What it says of the log.
    pub fn facts(&self) -> &Facts {
        &self.facts
    }

    /// The first of these transfers that it does not hold.
    ///
    /// # Errors
    /// [`Error`]: PostgreSQL is away.
    pub async fn first_unknown(&self, req_ids: &BTreeSet<ReqId>) -> Result<Option<ReqId>, Error> {
        let names = Id::all(req_ids);
        let unknown = "SELECT name FROM unnest($1::uuid[]) AS asked (name) \
                       WHERE NOT EXISTS (SELECT FROM transfers_tb WHERE req_id = name) \
                       ORDER BY name LIMIT 1";
        let row = self.client.query_opt(unknown, &[&names]).await?;
        let Some(row) = row else { return Ok(None) };
        let first = columns::req_id(&row, 0)?;
        assert!(first.is_some_and(|first| req_ids.contains(&first)), "one of those asked for");
        Ok(first)
    }

    /// Lets go of the snapshot.
    ///
    /// # Errors
    /// [`Error`]: the connection was lost, and the snapshot with it; what was read by it is right all the same.
    pub async fn end(self) -> Result<(), Error> {
        Ok(self.client.batch_execute("ROLLBACK").await?)
    }
}

fn number(row: &Row, column: usize) -> Result<u64, Error> {
    let number: i64 = row.try_get(column)?;
    u64::try_from(number).map_err(|_| bad(number))
}

fn unsigned(row: &Row, column: usize) -> Result<u32, Error> {
    let number: i32 = row.try_get(column)?;
    u32::try_from(number).map_err(|_| bad(number.into()))
}

fn bad(number: i64) -> Error {
    Error::Row { table: "engine_state", what: format!("{number} is below 0") }
}
