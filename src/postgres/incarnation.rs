//! Which process may write: a start takes the next incarnation before it reads anything, and with it every shard's
//! next flight. Whatever an earlier incarnation still has in flight then commits before us or not at all.

mod hold;

use std::time::Duration;

use tokio_postgres::{Client, Transaction};
use wal::{Identity, Sequence};

use super::adopt::is_begun;
use super::flights::{Answered, FlightRow};
use super::pin::{journal, lacking};
use super::watermark::Open;
use super::{Address, Error, Limits, columns, connect};
use crate::clock::Clock;

/// The low bits of an order number that count within one incarnation.
pub const ORDER_NUMBER_BITS: u32 = 40;
/// The largest incarnation: its order numbers still fit a BIGINT.
pub const INCARNATION_MAX: u64 = (1 << (63 - ORDER_NUMBER_BITS)) - 1;

/// The incarnations that a restore leaves out: more than processes have begun since the backup. A
/// database can be restored 500 times.
pub const INCARNATIONS_SKIPPED: u64 = 1 << 14;

/// The incarnation that gave out an order number.
pub fn of_order_number(order_number: u64) -> u64 {
    order_number >> ORDER_NUMBER_BITS
}

/// What a start asks for.
#[derive(Clone, Copy, Debug)]
pub struct Start<'a> {
    /// The identity in the log's headers, `None` for an empty directory.
    pub log: Option<Identity>,
    /// How many shards this process has, with that of Funding, which is the last one.
    pub shards: u32,
    /// The answered flights, which the journal must have.
    pub answered: &'a Answered,
    /// How long it waits for sessions that hold its tables.
    pub fence_wait: Duration,
}

/// A start that was granted.
#[derive(Clone, Debug)]
pub struct Incarnation {
    /// 1, 2, 3, ...
    pub number: u64,
    /// The log this database belongs to, `None` until one is bound.
    pub log_identity: Option<Identity>,
    /// The highest log sequence that any worker has seen durable.
    pub durable_claim: Sequence,
    /// Why the service is halted, `None` where it is not.
    pub halted: Option<String>,
    /// Order numbers below it may have left UBSCore's outcome map.
    pub watermark: u64,
    /// Where the transfers are that earlier processes have left open.
    pub open: Open,
    /// The last flight of each shard that the journal knows, which is that of this start.
    pub flights: Vec<FlightRow>,
}

/// A start that was refused. Nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// The log and the database belong to others.
    #[error(
        "the log has identity {log}, the database belongs to log {database}: they are not a pair"
    )]
    Foreign {
        /// In the log's headers.
        log: String,
        /// In `engine_state`.
        database: String,
    },
    /// The database has used a log, and there is none.
    #[error("the database belongs to log {database}, but the log directory is empty")]
    LogMissing {
        /// In `engine_state`.
        database: String,
    },
    /// The log has been used, and the database has never used one.
    #[error(
        "the log {log} holds records, but the database has never used a log: they are not a pair"
    )]
    Unused {
        /// In the log's headers.
        log: String,
    },
    /// All incarnations are used up.
    #[error("incarnation {0} is the last one")]
    Exhausted(u64),
    /// Answered commits are missing.
    #[error(
        "PostgreSQL has gone back in time: {lacks}. Nothing was written. If another server has every commit, start with \
         that one; otherwise repair"
    )]
    GoneBack {
        /// Each missing flight.
        lacks: String,
    },
    /// Other sessions hold a table that a start must lock.
    #[error(
        "engine_state or journal_tb is locked for more than {wait:?} (start.fence_ms): {holders}"
    )]
    Held {
        /// How long the start has waited.
        wait: Duration,
        /// Each session.
        holders: String,
    },
    /// PostgreSQL.
    #[error(transparent)]
    Postgres(#[from] Error),
}

impl From<tokio_postgres::Error> for Refusal {
    fn from(error: tokio_postgres::Error) -> Refusal {
        Refusal::Postgres(error.into())
    }
}

/// An identity as `engine_state` stores it.
pub fn identity_text(identity: Identity) -> String {
    format!("{:032x}", identity.0)
}

/// The identity that [`identity_text`] has written.
pub fn identity_from_text(text: &str) -> Option<Identity> {
    u128::from_str_radix(text, 16).ok().map(Identity)
}

/// A database that has been found older than the log: it is halted with the next incarnation.
#[derive(Clone, Debug)]
pub struct Behind {
    /// The latest incarnation that the log knows.
    pub latest: u64,
    /// Why it is halted.
    pub reason: String,
}

/// Refuses a database that belongs to another log, or none for a log that has been used. `log`: its identity, and whether it
/// holds a record; `None` for an empty directory.
///
/// # Errors
/// [`Refusal`].
pub(super) async fn refuse_foreign(
    client: &Client,
    log: Option<(Identity, bool)>,
) -> Result<(), Refusal> {
    let known = "SELECT to_regclass('engine_state') IS NOT NULL";
    let known: bool = client.query_one(known, &[]).await?.try_get(0)?;
    let bound = match known {
        // No row: a database whose first migration is still to come to it.
        true => client.query_opt("SELECT log_identity FROM engine_state", &[]).await?,
        false => None,
    };
    let bound = bound.map(|row| row.try_get::<_, Option<String>>(0)).transpose()?.flatten();
    if bound.is_some() && is_begun(client).await? {
        return Err(Error::Unadopted.into());
    }
    match (log, &bound) {
        (Some((log, true)), None) => Err(Refusal::Unused { log: identity_text(log) }),
        (log, bound) => refuse_other(log.map(|(identity, _)| identity), bound.as_deref()),
    }
}

fn refuse_other(log: Option<Identity>, bound: Option<&str>) -> Result<(), Refusal> {
    match (log, bound) {
        (None, Some(database)) => Err(Refusal::LogMissing { database: database.to_owned() }),
        (Some(log), Some(database)) if identity_text(log) != *database => {
            let (log, database) = (identity_text(log), database.to_owned());
            Err(Refusal::Foreign { log, database })
        }
        // A log without a database's word is judged by its records: an empty one may be bound.
        (Some(_), Some(_)) | (_, None) => Ok(()),
    }
}

/// Takes the next incarnation, and with it every shard, unless the log on this disk is not the database's, or the journal
/// lacks an answered flight.
///
/// # Errors
/// [`Refusal`]: nothing was changed.
pub async fn begin(
    config: &Address,
    limits: &Limits,
    start: &Start<'_>,
    behind: Option<&Behind>,
    clock: &dyn Clock,
) -> Result<Incarnation, Refusal> {
    let statement_timeout = limits.statement_timeout.max(start.fence_wait);
    let limits = Limits { statement_timeout, ..*limits };
    let mut client = connect(config, &limits).await?;
    let patience = hold::patience(&client).await?;
    let began_ns = clock.monotonic_ns();
    loop {
        let waited = Duration::from_nanos(clock.monotonic_ns() - began_ns);
        let left = start.fence_wait.saturating_sub(waited);
        let transaction = client.transaction().await?;
        if hold::lock(&transaction, patience.min(left)).await? {
            return take(transaction, start, behind).await;
        }
        transaction.rollback().await?;
        let others = hold::clear(&client).await?;
        let waited = Duration::from_nanos(clock.monotonic_ns() - began_ns);
        if waited >= start.fence_wait {
            let holders: Vec<String> = others.iter().map(ToString::to_string).collect();
            let holders = match holders.is_empty() {
                true => "PostgreSQL names no session".to_owned(),
                false => holders.join("; "),
            };
            return Err(Refusal::Held { wait: start.fence_wait, holders });
        }
    }
}

/// Takes the incarnation in a transaction that holds the locks.
async fn take(
    transaction: Transaction<'_>,
    start: &Start<'_>,
    behind: Option<&Behind>,
) -> Result<Incarnation, Refusal> {
    let row = transaction
        .query_one(
            "SELECT log_identity, incarnation, CASE WHEN halted THEN \
                COALESCE(halt_reason, 'no reason is given') END, watermark \
              FROM engine_state FOR UPDATE",
            &[],
        )
        .await?;
    let bound: Option<String> = row.try_get(0)?;
    if is_begun(&transaction).await? {
        return Err(Error::Unadopted.into());
    }
    refuse_other(start.log, bound.as_deref())?;
    // Before the fence: its rows would fill the gap.
    let (last, missing) = journal(&transaction, &start.answered.rows).await?;
    if !missing.is_empty() {
        let lacks: Vec<String> = missing.iter().map(|row| lacking(row, &last)).collect();
        return Err(Refusal::GoneBack { lacks: lacks.join("; ") });
    }
    let before = u64::try_from(row.try_get::<_, i64>(1)?).unwrap_or(u64::MAX);
    // PostgreSQL and the log may both have gone back behind an incarnation with told ids.
    let latest = start.answered.latest.max(behind.map_or(0, |behind| behind.latest));
    let number = before.max(latest).saturating_add(1);
    if number > INCARNATION_MAX {
        return Err(Refusal::Exhausted(before));
    }
    let incarnation = i64::try_from(number).expect("below INCARNATION_MAX");
    transaction.execute("UPDATE engine_state SET incarnation = $1", &[&incarnation]).await?;
    let mut halted: Option<String> = row.try_get(2)?;
    if let Some(Behind { reason, .. }) = behind {
        // With the number: nothing else tells the next start.
        let halt = "UPDATE engine_state SET halted = TRUE, halt_reason = COALESCE(halt_reason, $1)";
        transaction.execute(halt, &[reason]).await?;
        halted.get_or_insert_with(|| reason.clone());
    }
    let shards = i32::try_from(start.shards).expect("one a worker and a few");
    transaction.execute("SELECT journal_fence($1, $2)", &[&incarnation, &shards]).await?;
    let claim = "SELECT COALESCE(max(durable), 0) AS durable FROM journal_last";
    let durable_claim = columns::count(&transaction.query_one(claim, &[]).await?, 0, "journal_tb")?;
    let (flights, _) = journal(&transaction, &[]).await?;
    let watermark = columns::count(&row, 3, "engine_state")?;
    let open = open(&transaction).await?;
    commit(transaction).await?;
    let log_identity = bound.as_deref().and_then(identity_from_text);
    Ok(Incarnation { number, log_identity, durable_claim, halted, watermark, open, flights })
}

async fn open(transaction: &Transaction<'_>) -> Result<Open, Error> {
    let open = "SELECT open_from, open_old FROM watermark_open";
    let row = transaction.query_one(open, &[]).await?;
    let old = row.try_get::<_, Vec<i64>>(1)?.into_iter();
    let old = old.filter_map(|number| u64::try_from(number).ok()).collect();
    Ok(Open { from: columns::count(&row, 0, "watermark_open")?, old })
}

/// The last flight of each shard, for a tool that writes the file of answered flights anew, and the flights of that file
/// which PostgreSQL lacks, for people.
///
/// # Errors
/// [`Error`]: PostgreSQL is away.
pub async fn flights(
    config: &Address,
    limits: &Limits,
    answered: &[FlightRow],
) -> Result<(Vec<FlightRow>, Vec<String>), Error> {
    let client = connect(config, limits).await?;
    let (last, missing) = journal(&client, answered).await?;
    let lacks = missing.iter().map(|row| lacking(row, &last)).collect();
    Ok((last, lacks))
}

/// Ends the flights of every earlier process, for a tool that has raised the incarnation in this transaction.
///
/// # Errors
/// [`Error`]: nothing was changed.
pub(super) async fn fence(transaction: &Transaction<'_>) -> Result<(), Error> {
    let fence = "SELECT journal_fence(incarnation, 0) FROM engine_state";
    transaction.execute(fence, &[]).await?;
    Ok(())
}

/// Leaves out the incarnations after the one of a backup, in a database that was just restored from it. They have given
/// out order numbers and ids of events that clients know, and this database does not. A second call changes nothing.
///
/// # Errors
/// [`Error`]: PostgreSQL is away.
pub async fn skip(config: &Address, limits: &Limits, backup: u64) -> Result<(), Error> {
    let client = connect(config, limits).await?;
    let skip = "UPDATE engine_state SET incarnation = incarnation + $2 WHERE incarnation = $1";
    let [backup, skipped] = [backup, INCARNATIONS_SKIPPED].map(columns::bigint);
    client.execute(skip, &[&backup, &skipped]).await?;
    Ok(())
}

/// Binds the database to a log that holds nothing yet.
///
/// # Errors
/// [`Refusal`]: another incarnation has begun or has bound another log.
pub async fn bind(
    config: &Address,
    limits: &Limits,
    incarnation: u64,
    log: Identity,
) -> Result<(), Refusal> {
    let client: Client = connect(config, limits).await?;
    let incarnation = i64::try_from(incarnation).expect("below INCARNATION_MAX");
    let rows = client
        .execute(
            "UPDATE engine_state SET log_identity = $1 \
             WHERE incarnation = $2 AND log_identity IS NULL",
            &[&identity_text(log), &incarnation],
        )
        .await?;
    if rows == 1 {
        return Ok(());
    }
    let row = client.query_one("SELECT log_identity FROM engine_state", &[]).await?;
    let database = row.try_get::<_, Option<String>>(0)?.unwrap_or_else(|| "none".to_owned());
    Err(Refusal::Foreign { log: identity_text(log), database })
}

/// tokio-postgres reports a COMMIT that became a ROLLBACK as a success; here every statement before it succeeded.
async fn commit(transaction: Transaction<'_>) -> Result<(), Error> {
    Ok(transaction.commit().await?)
}
