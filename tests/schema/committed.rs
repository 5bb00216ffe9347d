//! The whole schema, held against one committed file.

use std::fs;
use std::path::Path;
use std::time::Duration;

use ubscore::postgres::{self, Limits};

use crate::harness::{LIMITS, Site, block_on};

/// The committed file.
const FILE: &str = "tests/golden/schema.sql";

/// The committed file of the transaction manager's schema.
const TXM_FILE: &str = "tests/golden/schema_txm.sql";

/// Renews the files, if set.
const RENEW: &str = "UBSCORE_SCHEMA";

/// Tables with columns and constraints, from the catalog. Texts of the catalog do not depend on the
/// minor version of PostgreSQL.
const TABLES: &str = "\
    SELECT format(E'CREATE TABLE %I (\\n%s\\n)%s;', c.relname, lines.text, \
                  ' WITH (' || array_to_string(c.reloptions, ', ') || ')') \
      FROM pg_class c CROSS JOIN LATERAL ( \
        SELECT string_agg('    ' || line, E',\\n' ORDER BY place, line COLLATE \"C\") AS text FROM ( \
            SELECT attnum AS place, \
                   format('%I %s', attname, format_type(atttypid, atttypmod)) \
                   || CASE WHEN attnotnull THEN ' NOT NULL' ELSE '' END \
                   || COALESCE(' DEFAULT ' || pg_get_expr(adbin, adrelid), '') AS line \
              FROM pg_attribute LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum \
             WHERE attrelid = c.oid AND attnum > 0 AND NOT attisdropped \
            UNION ALL \
            SELECT 10000, format('CONSTRAINT %I %s', conname, pg_get_constraintdef(oid)) \
              FROM pg_constraint WHERE conrelid = c.oid AND contype <> 'n') AS parts) AS lines \
     WHERE c.relnamespace = current_schema()::regnamespace AND c.relkind IN ('r', 'p', 'v', 'm') \
       AND c.relname <> 'refinery_schema_history' \
     ORDER BY c.relname";

/// Indexes that no constraint has made.
const INDEXES: &str = "\
    SELECT pg_get_indexdef(indexrelid) || ';' FROM pg_index JOIN pg_class c ON c.oid = indexrelid \
     WHERE c.relnamespace = current_schema()::regnamespace \
       AND NOT EXISTS (SELECT FROM pg_constraint WHERE conindid = indexrelid) \
     ORDER BY c.relname";

/// Sequences with the columns that own them.
const SEQUENCES: &str = "\
    SELECT format('CREATE SEQUENCE %I AS %s INCREMENT BY %s START WITH %s CACHE %s OWNED BY %s.%I;', \
                  c.relname, format_type(seqtypid, NULL), seqincrement, seqstart, seqcache, \
                  refobjid::regclass, attname) \
      FROM pg_sequence JOIN pg_class c ON c.oid = seqrelid \
      JOIN pg_depend ON classid = 'pg_class'::regclass AND objid = c.oid AND deptype = 'a' \
      JOIN pg_attribute ON attrelid = refobjid AND attnum = refobjsubid \
     WHERE c.relnamespace = current_schema()::regnamespace ORDER BY c.relname";

/// Functions without their bodies, which stand once in `src/postgres/sql/`.
const FUNCTIONS: &str = "\
    SELECT format('-- FUNCTION %s(%s) RETURNS %s LANGUAGE %s %s', proname, \
                  pg_get_function_arguments(p.oid), pg_get_function_result(p.oid), lanname, \
                  CASE provolatile WHEN 'i' THEN 'IMMUTABLE' WHEN 's' THEN 'STABLE' \
                                   ELSE 'VOLATILE' END \
                  || COALESCE(' SET ' || array_to_string(proconfig, ' SET '), '')) \
      FROM pg_proc p JOIN pg_language l ON l.oid = prolang \
     WHERE pronamespace = current_schema()::regnamespace ORDER BY p.oid::regprocedure::text COLLATE \"C\"";

/// Triggers.
const TRIGGERS: &str = "\
    SELECT pg_get_triggerdef(t.oid, TRUE) || ';' FROM pg_trigger t \
      JOIN pg_class c ON c.oid = tgrelid \
     WHERE NOT tgisinternal AND c.relnamespace = current_schema()::regnamespace \
     ORDER BY c.relname, tgname";

/// The schema of a site's database as text.
pub(crate) fn text(site: &Site) -> String {
    let mut text = String::new();
    for part in [TABLES, INDEXES, SEQUENCES, FUNCTIONS, TRIGGERS] {
        for row in site.sql(part) {
            text.push_str(&row[0].replace(" public.", " "));
            text.push('\n');
        }
        text.push('\n');
    }
    text.trim_end().to_owned() + "\n"
}

/// The first rows, without the values that differ between databases.
fn first_rows(site: &Site) -> String {
    let tables = ["audit_state", "engine_state", "watermark_clock", "watermark_open"];
    let rows = tables.map(|table| {
        let row = "to_jsonb(t) - 'functions_hash'";
        let rows = site.sql(&format!("SELECT {row} FROM {table} t"));
        rows.iter().map(|row| format!("-- ROW {table} {}\n", row[0])).collect::<String>()
    });
    rows.concat()
}

/// A site with a schema, and nothing else in its database.
pub(crate) fn fresh() -> Site {
    let site = Site::new();
    migrate(&site).expect("a schema");
    site
}

/// The start's own call.
pub(crate) fn migrate(site: &Site) -> Result<(), postgres::incarnation::Refusal> {
    let wait = Duration::from_secs(30);
    let limits = Limits {
        connect_timeout: wait,
        statement_timeout: wait,
        lock_timeout: wait,
        idle_in_transaction_timeout: wait,
    };
    block_on(postgres::migrate(&site.target(), &limits, None))
}

/// Goal: no migration and no function changes the schema unnoticed. Method: the catalog of a fresh
/// database, compared with the committed file.
#[test]
fn the_schema_is_the_committed_one() {
    let site = fresh();
    compare(FILE, &format!("{}\n{}", text(&site), first_rows(&site)));
}

/// Goal: the same of the schema of the transaction manager.
#[test]
fn the_schema_of_the_transaction_manager_is_the_committed_one() {
    let site = Site::new();
    let database = &site.database;
    site.session().sql(&format!("ALTER DATABASE {database} SET search_path = txm, public"));
    block_on(postgres::txm::schema::migrate(&site.target(), &LIMITS)).expect("a schema");
    compare(TXM_FILE, &text(&site));
}

/// Compares a schema with its committed file, or renews that.
fn compare(file: &str, found: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
    let how = format!("{RENEW}=1 cargo test --features crash --test main -- committed");
    if std::env::var_os(RENEW).is_some() {
        let head = "-- The schema of a fresh database by its catalog. To renew it:";
        fs::write(&path, format!("{head}\n-- {how}\n\n{found}")).expect("written");
    }
    let committed = fs::read_to_string(&path).unwrap_or_default();
    let committed = committed.split_once("\n\n").map_or("", |(_, schema)| schema);
    let differ = found.lines().zip(committed.lines()).find(|(found, there)| found != there);
    assert!(
        found == committed,
        "{file} is another schema, first {differ:?}. To renew it:\n  {how}"
    );
}
