//! The functions, triggers and views of the schema. Each stands once, in `src/postgres/sql/`; a
//! start applies them behind the migrations, if the database has others. (The views of migrations
//! need no function.)
//!
//! All of ours are dropped first, because `CREATE OR REPLACE` changes neither a signature nor a
//! trigger, and leaves what is no longer declared. Ours is each function with [`MARK`] as its
//! comment, and each one whose name is declared here; with it go the triggers that execute it. Ours
//! is each view with [`MARK`] as its comment. An object of another owner that depends on one of
//! ours, such as a view, refuses the start by name.

use tokio_postgres::{Client, Transaction};
use tracing::info;
use xxhash_rust::xxh3::xxh3_64;

use super::Error;

/// Dependencies first: PostgreSQL checks the body of an SQL function when it is created.
const FILES: [&str; 15] = [
    include_str!("sql/states.sql"),
    include_str!("sql/fence.sql"),
    include_str!("sql/journal.sql"),
    include_str!("sql/guards.sql"),
    include_str!("sql/funding.sql"),
    include_str!("sql/legs.sql"),
    include_str!("sql/watermark.sql"),
    include_str!("sql/audit.sql"),
    include_str!("sql/webhooks.sql"),
    include_str!("sql/events.sql"),
    include_str!("sql/people.sql"),
    include_str!("sql/transactions.sql"),
    include_str!("sql/promotions.sql"),
    include_str!("sql/recharges.sql"),
    include_str!("sql/bills.sql"),
];

/// The comment that PostgreSQL keeps with each of our functions and views, and that a dump holds
/// too. It never changes: a later version finds those that it no longer declares by it.
const MARK: &str = "ubscore";

/// Statements that drop our views and then our functions, behind the triggers that execute them.
/// $1: the declared names, $2: the mark.
const DROPS: &str = "\
    WITH ours AS ( \
        SELECT oid FROM pg_proc \
         WHERE pronamespace = current_schema()::regnamespace AND prokind = 'f' \
           AND (proname = ANY ($1) OR obj_description(oid, 'pg_proc') = $2)) \
    SELECT format('DROP TRIGGER %I ON %s', tgname, tgrelid::regclass) \
      FROM ours JOIN pg_trigger ON tgfoid = ours.oid WHERE NOT tgisinternal \
    UNION ALL \
    SELECT format('DROP FUNCTION %s', oid::regprocedure) FROM ours \
    UNION ALL \
    SELECT format('DROP VIEW %s', oid::regclass) FROM pg_class \
     WHERE relnamespace = current_schema()::regnamespace AND relkind = 'v' \
       AND obj_description(oid, 'pg_class') = $2 \
    ORDER BY 1 DESC";

/// Statements that mark what is declared. $1: the names, $2: the mark.
const MARKS: &str = "\
    SELECT format('COMMENT ON FUNCTION %s IS %L', oid::regprocedure, $2::text) FROM pg_proc \
     WHERE pronamespace = current_schema()::regnamespace AND proname = ANY ($1) \
    UNION ALL \
    SELECT format('COMMENT ON VIEW %s IS %L', oid::regclass, $2::text) FROM pg_class \
     WHERE relnamespace = current_schema()::regnamespace AND relkind = 'v' \
       AND relname = ANY ($1)";

/// Statements that pin the search path of functions that run with our rights. Another role must not
/// put an object of its own in the place of one of ours. $1: the names, $2: the mark.
const PINS: &str = "\
    SELECT format('ALTER FUNCTION %s SET search_path = pg_catalog, %I, pg_temp', \
                  oid::regprocedure, current_schema()) \
      FROM pg_proc WHERE pronamespace = current_schema()::regnamespace AND prosecdef \
       AND proname = ANY ($1) AND obj_description(oid, 'pg_proc') = $2";

/// Statements that take functions with our rights from PUBLIC, and give them to the roles of
/// `transaction_grants`, if they are not so already. A replaced function has lost its privileges,
/// and a restore leaves them out. A role may have been dropped, or belong to another cluster.
const PRIVILEGES: &str = "\
    WITH ours AS ( \
        SELECT oid, proname, proacl, proowner FROM pg_proc \
         WHERE pronamespace = current_schema()::regnamespace AND prosecdef \
           AND obj_description(oid, 'pg_proc') = $1) \
    SELECT format('REVOKE ALL ON FUNCTION %s FROM PUBLIC', oid::regprocedure) FROM ours \
     WHERE EXISTS (SELECT FROM aclexplode(COALESCE(proacl, acldefault('f', proowner))) AS acl \
                    WHERE acl.grantee = 0) \
    UNION ALL \
    SELECT DISTINCT format('GRANT EXECUTE ON FUNCTION %s TO %I', ours.oid::regprocedure, rolname) \
      FROM ours CROSS JOIN transaction_grants g JOIN pg_roles r ON r.rolname = g.role_name \
     WHERE ours.proname = 'transaction_commit' \
       AND (ours.proacl IS NULL \
            OR NOT EXISTS (SELECT FROM aclexplode(ours.proacl) AS acl WHERE acl.grantee = r.oid)) \
    ORDER BY 1 DESC";

/// Makes the functions, triggers and views those of this version, in one transaction. The caller holds the
/// lock of the migrations.
///
/// # Errors
/// [`Error`]: nothing was changed, unless the answer to the commit was lost.
pub(super) async fn apply(client: &mut Client) -> Result<(), Error> {
    let text = FILES.concat();
    let hash = format!("{:016x}", xxh3_64(text.as_bytes()));
    let row = client.query_one("SELECT functions_hash FROM engine_state", &[]).await?;
    if row.try_get::<_, Option<&str>>(0)? == Some(&hash) {
        return privileges(client).await;
    }
    let names: Vec<&str> = declared(&text).collect();
    let transaction = client.transaction().await?;
    // First, as at a take-over: flights lock this table before any other.
    transaction.batch_execute("LOCK TABLE engine_state IN EXCLUSIVE MODE").await?;
    run(&transaction, DROPS, &names).await?;
    transaction.batch_execute(&text).await?;
    run(&transaction, MARKS, &names).await?;
    run(&transaction, PINS, &names).await?;
    transaction.execute("UPDATE engine_state SET functions_hash = $1", &[&hash]).await?;
    transaction.commit().await?;
    info!(declared = names.len(), %hash, "functions and views of the schema applied");
    privileges(client).await
}

/// Gives and takes what [`PRIVILEGES`] finds missing.
async fn privileges(client: &mut Client) -> Result<(), Error> {
    let transaction = client.transaction().await?;
    let rows = transaction.query(PRIVILEGES, &[&MARK]).await?;
    for row in &rows {
        transaction.batch_execute(row.try_get(0)?).await?;
    }
    Ok(transaction.commit().await?)
}

/// Runs the statements that a query makes of the declared names and the mark.
async fn run(transaction: &Transaction<'_>, query: &str, names: &[&str]) -> Result<(), Error> {
    let rows = transaction.query(query, &[&names, &MARK]).await?;
    let statements: Result<Vec<&str>, _> = rows.iter().map(|row| row.try_get(0)).collect();
    Ok(transaction.batch_execute(&statements?.join(";\n")).await?)
}

/// The names of the functions and views that a text declares.
fn declared(text: &str) -> impl Iterator<Item = &str> {
    let rest = text.lines().filter_map(|line| {
        line.strip_prefix("CREATE FUNCTION ").or_else(|| line.strip_prefix("CREATE VIEW "))
    });
    rest.filter_map(|rest| rest.split(['(', ' ']).next())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;
    use std::path::Path;

    use super::*;

    /// Also no overload: a call with an argument of unknown type would be ambiguous.
    #[test]
    fn each_function_and_trigger_is_declared_once() {
        let text = FILES.concat();
        let triggers = text.lines().filter_map(|line| line.strip_prefix("CREATE TRIGGER "));
        let triggers = triggers.filter_map(|rest| rest.split(' ').next());
        for names in [declared(&text).collect::<Vec<_>>(), triggers.collect()] {
            let once: BTreeSet<&str> = names.iter().copied().collect();
            assert!(once.len() > 5);
            assert_eq!(once.len(), names.len(), "{names:?}");
        }
        assert_eq!(text.matches("CREATE ").count(), text.matches("\nCREATE ").count());
        assert!(!text.contains("OR REPLACE") && !text.contains("DROP "));
    }

    #[test]
    fn every_file_is_applied_and_no_migration_declares_a_function() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let read = |folder: &str| -> Vec<String> {
            let entries = fs::read_dir(root.join(folder)).expect("a folder");
            let paths = entries.map(|entry| entry.expect("an entry").path());
            paths.map(|path| fs::read_to_string(path).expect("text")).collect()
        };
        let files = read("src/postgres/sql");
        assert_eq!(files.len(), FILES.len());
        assert!(files.iter().all(|file| FILES.contains(&file.as_str())));
        for migration in read("config/migrations") {
            for word in ["FUNCTION", "TRIGGER"] {
                let code = migration.lines().map(|line| line.split("--").next().unwrap_or(""));
                assert!(!code.into_iter().any(|line| line.contains(word)), "{word}");
            }
        }
    }
}
