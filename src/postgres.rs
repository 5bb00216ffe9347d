//! PostgreSQL: connections, the schema, what its errors mean, which process may write, and the store of transfers.
//!
//! Rooms: [`store`] (the words the coordinator speaks to a store in, and [`store::Store`] itself), [`flight_store`] (that
//! store: it decides Funding and makes a flight of each batch), [`flight`] (what a flight is, and how it is decided),
//! [`database`] (flights in PostgreSQL), [`reads`] (what HTTP asks), [`admin`] (the writes of operators),
//! [`incarnation`] (who may write), [`watermark`] (below which everything is over), [`audit_reader`] (what the audit reads), [`repair_writer`] (what its repair writes), [`cut`] (what a cut of
//! the log takes back), [`adopt`] (the binding to a log that is rebuilt), [`export`] and [`dump`] (a snapshot for a backup,
//! and back), [`journal`] (rows of the journal, and the faults of damaged ones), [`movements`] (what a user's statement is made of), [`funds`] (what
//! there is of each asset), [`events`] (what users follow), [`transactions`] (the rows that decide them), [`horizon`] (old snapshots), [`webhooks`] (the same on its way to
//! endpoints), [`recover`] (recharges behind a restore), [`settings`] (what the doctor asks), [`embedded`] (a server of our own for one machine), [`address`] (how a
//! database is reached), `connection` (one that checks its server and its notices), `checks` (of rows, validated behind a migration), [`tls`] (the check of the server's
//! certificate), [`pin`] (the one server that a process uses), [`flights`] (the file of the last answered flights), [`development`] (the mark of a database that `--dev` made), [`txm`] (the store of the
//! transaction manager).
//!
//! The schema: tables in `config/migrations/`, functions and triggers in `src/postgres/sql/` (applied by `functions`).

pub mod address;
pub mod admin;
pub mod adopt;
pub mod audit_reader;
pub mod bills;
pub mod booked;
mod checks;
mod columns;
mod connection;
pub mod cut;
pub mod database;
pub mod development;
pub mod dump;
pub mod embedded;
pub mod events;
pub mod export;
pub mod flight;
pub mod flight_store;
pub mod flights;
mod functions;
pub mod funds;
pub mod horizon;
pub mod incarnation;
pub mod journal;
pub mod movements;
pub mod pin;
mod posted;
pub mod promotions;
pub mod reads;
pub mod recharge_events;
pub mod recover;
pub mod repair_writer;
pub mod settings;
pub mod store;
pub mod tls;
pub mod transactions;
pub mod txm;
pub mod watermark;
pub mod webhooks;

use std::time::Duration;

use refinery::error::Kind;
use tokio_postgres::config::TargetSessionAttrs;
use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, Config};
use tracing::{info, warn};
use wal::Identity;

pub use self::address::Address;
use self::connection::pool_by_keys;
pub use self::connection::{Connections, connect, pool};
use self::incarnation::Refusal;

mod migrations {
    refinery::embed_migrations!("config/migrations");
}

/// The key of the advisory lock that migrations run under: "ubscore" in ASCII.
const MIGRATION_LOCK: i64 = 0x0075_6273_636f_7265;

/// After this long without a word, a connection is probed, and again until there is an answer.
const KEEPALIVE: Duration = Duration::from_secs(10);

/// The limits every connection is opened with.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Until a connection must stand.
    pub connect_timeout: Duration,
    /// Until the server gives a statement up.
    pub statement_timeout: Duration,
    /// Until the server gives the wait for a row up.
    pub lock_timeout: Duration,
    /// Until the server ends a transaction that nobody drives on.
    pub idle_in_transaction_timeout: Duration,
}

/// A database that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No connection.
    #[error("connect to PostgreSQL")]
    Connect(#[source] tokio_postgres::Error),
    /// No connection within the limit.
    #[error("PostgreSQL did not answer within {0:?}")]
    Timeout(Duration),
    /// A statement.
    #[error("PostgreSQL")]
    Query(#[from] tokio_postgres::Error),
    /// No connection from the pool.
    #[error("no connection to PostgreSQL")]
    Pool(#[from] deadpool_postgres::PoolError),
    /// The schema cannot be brought to this version, or is of a later one.
    #[error(
        "the database's schema does not fit this version of ubscore (was it used by a newer one?)"
    )]
    Migration(#[from] refinery::Error),
    /// The database was made before the schema began anew, by a version that was never released.
    #[error(
        "the database was made by a development version of ubscore: it begins with migration {0}, and this schema with \
         another one. Its data cannot be used: start with a new database and an empty data directory (in a clone: \
         `make reset`)"
    )]
    Unreleased(String),
    /// A setting of the connection is another one than was asked for. Nothing else was sent over it.
    #[error(
        "PostgreSQL has {name} = {found} on a new connection, and {asked} was asked for: connect to the server itself, \
         without a pooler"
    )]
    Setting {
        /// The setting.
        name: &'static str,
        /// The value that was asked for.
        asked: String,
        /// The value that it has.
        found: String,
    },
    /// Another incarnation has begun.
    #[error("this process has been superseded")]
    Superseded,
    /// The server is not the one that the process is pinned to. Nothing was sent to it.
    #[error("{0}; it is compared with the log before it is used")]
    Changed(String),
    /// What a cut of the log has lost is not brought back, statuses that only its records had among it.
    #[error(
        "the log has been cut, and not been repaired since: stop the service, and run `ubscore repair --apply`"
    )]
    Unrepaired,
    /// A halt after a cut of the log has another cause as well, and venues would send again.
    #[error(
        "the service is also halted for another cause: {0}; venues would send again; next: end that cause, then \
         the same command with --although-halted"
    )]
    OtherCause(String),
    /// A rebuild of the log has begun, and is not finished.
    #[error(
        "the log is being rebuilt from PostgreSQL by `ubscore engine adopt`, and that is not finished"
    )]
    Unadopted,
    /// A role that PostgreSQL does not have. Roles are made by its administrator.
    #[error("PostgreSQL has no role {0:?}")]
    UnknownRole(String),
    /// A flight was read, and it cannot be noted beside the log: nothing of it may leave the process.
    #[error("note a flight beside the log")]
    Unnoted(#[source] std::io::Error),
    /// A row that this version cannot read.
    #[error("{table} holds what this version cannot read: {what}")]
    Row {
        /// The table.
        table: &'static str,
        /// What is wrong with it.
        what: String,
    },
}

/// Another incarnation has begun: this process may write nothing any more, and must end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("another process has taken over this database: this one has been superseded")]
pub struct Superseded;

impl Error {
    /// Whether a statement has met a limit of time, on the server or here.
    pub fn is_late(&self) -> bool {
        match self {
            Error::Timeout(_) => true,
            Error::Query(error) => {
                [Some("57014"), Some("55P03")].contains(&error.code().map(|code| code.code()))
            }
            _ => false,
        }
    }

    /// Whether the schema was made by another version of the program, or changed by hand.
    pub fn is_of_other_version(&self) -> bool {
        match self {
            Error::Migration(error) => {
                matches!(error.kind(), Kind::DivergentVersion(..) | Kind::MissingVersion(..))
            }
            Error::Unreleased(_) => true,
            _ => false,
        }
    }

    /// Whether the server refused what the protocol between us does not allow.
    pub fn is_violation(&self) -> bool {
        matches!(self, Error::Query(error) if verdict(error) == Verdict::Violation)
    }

    /// The rule of the schema that a row would have broken, by the name of its constraint. Nothing changed then.
    pub fn broken_check(&self) -> Option<&str> {
        let Error::Query(error) = self else { return None };
        let error = error.as_db_error()?;
        (*error.code() == SqlState::CHECK_VIOLATION).then(|| error.constraint().unwrap_or(""))
    }
}

/// What an error says about the transaction it happened in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Nothing changed, and trying again may help: deadlock, serialization, a lock or statement timed out, a page that
    /// cannot be read.
    Retry,
    /// Nothing changed: this process has been superseded.
    Fenced,
    /// Nothing changed: a repeat with another body, or a refund of what was not withdrawn.
    Violation,
    /// Nothing changed: the server has no connection, no memory or no disk left, whatever was asked.
    Unavailable,
    /// It may have committed, or may still: connection lost, server going away, or anything not listed.
    Unknown,
}

/// The one table of what PostgreSQL's errors mean.
pub fn verdict(error: &tokio_postgres::Error) -> Verdict {
    let Some(state) = error.code() else { return Verdict::Unknown };
    match state.code() {
        "UB001" => Verdict::Fenced,
        "UB002" | "UB003" => Verdict::Violation,
        // Serialization failure, deadlock, lock not available, query canceled; and a total, cursor or watermark that another call moved.
        "40001" | "40P01" | "55P03" | "57014" | "UB004" => Verdict::Retry,
        code if code.starts_with("53") => Verdict::Unavailable,
        // A file or a block that the server cannot read: whoever asked for it waits, and nobody else.
        code if code.starts_with("58") => Verdict::Retry,
        _ => Verdict::Unknown,
    }
}

/// PostgreSQL's code in an error or its causes, such as 55P03; `None` where PostgreSQL did not answer.
pub fn sqlstate(error: &(dyn std::error::Error + 'static)) -> Option<String> {
    let mut cause = Some(error);
    while let Some(error) = cause {
        let code = error.downcast_ref::<tokio_postgres::Error>().and_then(|error| error.code());
        if let Some(code) = code {
            return Some(code.code().to_owned());
        }
        cause = error.source();
    }
    None
}

/// Whether the server is ending the connection: what was sent in the same flight may have been carried out.
pub fn is_going_away(error: &tokio_postgres::Error) -> bool {
    let Some(state) = error.code() else { return true };
    let code = state.code();
    code.starts_with("08") || code.starts_with("57P") || ["40003", "25P03", "25P04"].contains(&code)
}

/// Every statement finds its rows by their keys, whatever statistics say, and is planned once: what a plan made for small
/// tables reads in full would soon be large, so a row that is looked at costs more than any other thing. (jit and parallel
/// workers: such costs would be taken for reasons to compile, and to start processes.)
const BY_KEYS: &str = "SET plan_cache_mode = force_generic_plan; SET jit = off; \
     SET max_parallel_workers_per_gather = 0; SET enable_seqscan = off; SET enable_hashjoin = off; \
     SET enable_mergejoin = off; SET enable_bitmapscan = off; \
     SET cpu_tuple_cost = 10; SET cpu_index_tuple_cost = 10";

/// As [`connect`], for statements that touch a few rows of large tables, again and again.
async fn connect_by_keys(address: &Address, limits: &Limits) -> Result<Client, Error> {
    let client = connect(address, limits).await?;
    client.batch_execute(BY_KEYS).await?;
    Ok(client)
}

/// What must not depend on the server's defaults, nor on those of a role or database. Only a warning reports that the wait
/// for a standby was cancelled, so `client_min_messages` lets warnings through.
fn session_settings(limits: &Limits) -> [(&'static str, String); 7] {
    let ms = |limit: Duration| limit.as_millis().to_string();
    [
        ("synchronous_commit", "on".to_owned()),
        ("client_min_messages", "warning".to_owned()),
        ("statement_timeout", ms(limits.statement_timeout)),
        ("lock_timeout", ms(limits.lock_timeout)),
        ("idle_in_transaction_session_timeout", ms(limits.idle_in_transaction_timeout)),
        ("default_transaction_isolation", "read committed".to_owned()),
        ("default_transaction_read_only", "off".to_owned()),
    ]
}

/// A configuration that sets [`session_settings`]. `incarnation`: of the process, `None` for a command and before a start has
/// begun. It is part of the connection's name, and the next start may end a connection of this name.
fn session(config: &Config, limits: &Limits, incarnation: Option<u64>) -> Config {
    let options = session_settings(limits).map(|(name, value)| {
        let value = value.replace(' ', "\\ ");
        format!("-c {name}={value}")
    });
    let options = options.join(" ");
    let mut config = config.clone();
    // Behind the operator's own, so that ours hold.
    let options = match config.get_options() {
        Some(given) => format!("{given} {options}"),
        None => options,
    };
    let name = match incarnation {
        Some(incarnation) => format!("ubscore {incarnation}"),
        None => "ubscore".to_owned(),
    };
    config
        .options(&options)
        .application_name(&name)
        // Of several hosts only the primary: a standby writes nothing, and reads on it may step back.
        .target_session_attrs(TargetSessionAttrs::ReadWrite)
        .connect_timeout(limits.connect_timeout)
        // A peer that has vanished is noticed, whatever the kernel's defaults are.
        .tcp_user_timeout(limits.statement_timeout + limits.lock_timeout)
        .keepalives_idle(KEEPALIVE)
        .keepalives_interval(KEEPALIVE);
    config
}

/// Brings the schema to this version, tables first and then functions, one process at a time, and warns of a server that does not keep its promises.
///
/// Nothing is migrated before the log and the database are known to be a pair: the database of another log may be in use by
/// a process of an older version. `log`: the identity in the log's headers and whether it holds a record.
///
/// # Errors
/// [`Refusal`]: nothing was changed. [`Error::Migration`]: a schema of a later version, or one that was changed by hand.
/// [`Error::Unreleased`]: a schema from before this one began.
pub async fn migrate(
    address: &Address,
    limits: &Limits,
    log: Option<(Identity, bool)>,
) -> Result<(), Refusal> {
    let patient = Limits { statement_timeout: Duration::ZERO, ..*limits };
    let patient = Limits { lock_timeout: Duration::ZERO, ..patient };
    let mut client = connect(address, &patient).await?;
    client.execute("SELECT pg_advisory_lock($1)", &[&MIGRATION_LOCK]).await?;
    incarnation::refuse_foreign(&client, log).await?;
    let report = migrations::migrations::runner().run_async(&mut client).await;
    let report = report.map_err(|error| match error.kind() {
        Kind::DivergentVersion(there, _) if there.version() == 1 => {
            Error::Unreleased(there.to_string())
        }
        _ => Error::Migration(error),
    })?;
    for migration in report.applied_migrations() {
        info!(%migration, "schema migrated");
    }
    functions::apply(&mut client).await?;
    checks::validate(&client).await?;
    for setting in ["fsync", "full_page_writes"] {
        let row = client.query_one("SELECT current_setting($1)", &[&setting]).await?;
        if row.get::<_, &str>(0) != "on" {
            warn!(setting, "PostgreSQL has this off: a power cut can lose what was acknowledged");
        }
    }
    // The lock goes with the connection.
    Ok(())
}
