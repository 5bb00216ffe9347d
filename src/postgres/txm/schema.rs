//! The schema `txm`: tables by migrations, functions and triggers at each start.

use std::time::Duration;

use tokio_postgres::Client;
use tokio_postgres::error::SqlState;
use tracing::{info, warn};
use xxhash_rust::xxh3::xxh3_64;

use crate::postgres::{Address, Error, Limits, connect};

mod migrations {
    refinery::embed_migrations!("config/migrations-txm");
}

/// The key of the advisory lock that migrations run under: "ubs:txm" in ASCII.
const MIGRATION_LOCK: i64 = 0x0075_6273_3a74_786d;

/// The table of refinery.
const HISTORY: &str = "txm.migrations";

/// The version of the functions: rises with each change that nodes of the version before still work
/// with. A node that starts leaves functions of a later version in place.
const VERSION: u32 = 4;

/// The pause behind a lock that was not free, and the most tries.
const TRIES: usize = 60;

/// Dependencies first: PostgreSQL checks the body of an SQL function when it is created.
const FILES: [&str; 7] = [
    include_str!("sql/lease.sql"),
    include_str!("sql/guards.sql"),
    include_str!("sql/rows.sql"),
    include_str!("sql/creates.sql"),
    include_str!("sql/writes.sql"),
    include_str!("sql/operators.sql"),
    include_str!("sql/news.sql"),
];

/// Statements that drop every function of the schema behind the triggers that execute it. The
/// schema is ours alone. An object of another owner that depends on one refuses the start by name.
const DROPS: &str = "\
    WITH ours AS (SELECT oid FROM pg_proc WHERE pronamespace = 'txm'::regnamespace) \
    SELECT format('DROP TRIGGER %I ON %s', tgname, tgrelid::regclass) \
      FROM ours JOIN pg_trigger ON tgfoid = ours.oid WHERE NOT tgisinternal \
    UNION ALL \
    SELECT format('DROP FUNCTION %s', oid::regprocedure) FROM ours \
    ORDER BY 1 DESC";

/// The number of the last migration of this version.
pub(super) fn last_migration() -> i32 {
    let runner = migrations::migrations::runner();
    let numbers = runner.get_migrations().iter().map(|migration| migration.version());
    numbers.max().unwrap_or(0)
}

/// Brings the schema to this version, one process at a time: tables first, then functions.
///
/// # Errors
/// [`Error`]: nothing was changed, unless the answer to a commit was lost.
pub async fn migrate(address: &Address, limits: &Limits) -> Result<(), Error> {
    let zero = Duration::ZERO;
    let patient = Limits { statement_timeout: zero, lock_timeout: zero, ..*limits };
    let mut client = connect(address, &patient).await?;
    client.execute("SELECT pg_advisory_lock($1)", &[&MIGRATION_LOCK]).await?;
    client.batch_execute("CREATE SCHEMA IF NOT EXISTS txm").await?;
    let mut runner = migrations::migrations::runner();
    runner.set_migration_table_name(HISTORY);
    let report = runner.run_async(&mut client).await?;
    for migration in report.applied_migrations() {
        info!(%migration, "schema of the transaction manager migrated");
    }
    // The lock goes with the connection.
    apply(&mut client).await
}

/// Makes the functions and triggers those of this version, if they are not those of a later one.
async fn apply(client: &mut Client) -> Result<(), Error> {
    for _ in 1..TRIES {
        match apply_once(client).await {
            Err(Error::Query(error)) if is_locked(&error) => {
                warn!(%error, "the functions of the transaction manager are in use: once more");
            }
            done => return done,
        }
    }
    apply_once(client).await
}

fn is_locked(error: &tokio_postgres::Error) -> bool {
    let locked = [SqlState::LOCK_NOT_AVAILABLE, SqlState::T_R_DEADLOCK_DETECTED];
    error.code().is_some_and(|code| locked.contains(code))
}

/// The version of the functions in the text that is kept beside them: `version-hash`.
fn version(kept: &str) -> u32 {
    let number = kept.split_once('-').map(|(number, _)| number.parse());
    number.and_then(Result::ok).unwrap_or(0)
}

/// Tries it in one transaction.
async fn apply_once(client: &mut Client) -> Result<(), Error> {
    let text = FILES.concat();
    let name = format!("{VERSION}-{:016x}", xxh3_64(text.as_bytes()));
    let transaction = client.transaction().await?;
    // A wait for a table's lock would hold up every later statement on that table.
    transaction.batch_execute("SET LOCAL lock_timeout = '1s'").await?;
    let found = transaction.query_opt("SELECT hash FROM txm.functions", &[]).await?;
    if let Some(row) = found {
        let kept: &str = row.try_get(0)?;
        if version(kept) > VERSION {
            warn!(functions = kept, "functions of a later version stay in place");
            return Ok(());
        }
        if kept == name {
            return Ok(());
        }
    }
    let rows = transaction.query(DROPS, &[]).await?;
    let drops: Result<Vec<&str>, _> = rows.iter().map(|row| row.try_get(0)).collect();
    transaction.batch_execute(&drops?.join(";\n")).await?;
    transaction.batch_execute(&text).await?;
    let keep = "INSERT INTO txm.functions VALUES (TRUE, $1) \
                ON CONFLICT (one) DO UPDATE SET hash = EXCLUDED.hash";
    transaction.execute(keep, &[&name]).await?;
    transaction.commit().await?;
    info!(functions = name, "functions of the transaction manager applied");
    Ok(())
}
