//! The functions and triggers of the schema: a start applies them once, replaces those of another
//! version, and touches no other object.

use super::committed::{fresh, migrate, text};
use crate::harness::{Site, crowd};

/// A version of the functions that no binary has: the next start applies its own.
const OTHER_VERSION: &str = "UPDATE engine_state SET functions_hash = 'another'";

/// The function's row and transaction: both change with every application.
fn applied(site: &Site) -> String {
    let row = "SELECT oid || ' ' || xmin FROM pg_proc WHERE proname = 'journal_fence'";
    site.sql_value(row)
}

/// Goal: a start with the same functions changes nothing. Method: the row of a function in the
/// catalog over several starts, and over a changed hash.
#[test]
fn functions_are_applied_only_if_they_differ() {
    let site = fresh();
    let first = applied(&site);
    migrate(&site).expect("the same");
    assert_eq!(applied(&site), first);
    let hash = site.sql_value("SELECT functions_hash FROM engine_state");
    site.sql(OTHER_VERSION);
    migrate(&site).expect("another");
    assert_ne!(applied(&site), first);
    assert_eq!(site.sql_value("SELECT functions_hash FROM engine_state"), hash);
}

/// Goal: after a start the functions and triggers are exactly those of this version. Method: a
/// function with another result, one with other arguments, one and its trigger that are declared no
/// longer, one without its mark, a trigger that is missing and one with another condition.
#[test]
fn functions_of_another_version_are_replaced() {
    let site = fresh();
    let want = text(&site);
    site.sql(
        "DROP FUNCTION watermark_lived(BIGINT, BIGINT); \
         CREATE FUNCTION watermark_lived(p_incarnation BIGINT, p_lived_ms BIGINT) RETURNS TEXT LANGUAGE sql AS 'SELECT 1::text'; \
         CREATE FUNCTION journal_fence(p_incarnation BIGINT) RETURNS VOID LANGUAGE sql AS ''; \
         CREATE FUNCTION retired() RETURNS TRIGGER LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'; \
         COMMENT ON FUNCTION retired() IS 'ubscore'; \
         CREATE TRIGGER retired BEFORE INSERT ON transfers_tb \
           FOR EACH ROW EXECUTE FUNCTION retired(); \
         COMMENT ON FUNCTION funding_debit IS NULL; \
         DROP TRIGGER transfers_delete_guard ON transfers_tb; \
         DROP TRIGGER external_operations_guard ON external_operations; \
         CREATE TRIGGER external_operations_guard BEFORE DELETE ON external_operations \
           FOR EACH ROW EXECUTE FUNCTION row_guard()",
    );
    site.sql(OTHER_VERSION);
    assert_ne!(text(&site), want);
    migrate(&site).expect("this version's");
    assert_eq!(text(&site), want);
    let unmarked = "SELECT count(*) FROM pg_proc WHERE pronamespace = 'public'::regnamespace \
                    AND obj_description(oid, 'pg_proc') IS DISTINCT FROM 'ubscore'";
    assert_eq!(site.sql_value(unmarked), "0");
}

/// Goal: objects of a DBA stay, and one that depends on a function of ours is never dropped.
/// Method: a function with a trigger of its own, and a view; the view refuses the start by name,
/// and nothing is changed.
#[test]
fn objects_of_others_stay() {
    let site = fresh();
    site.sql(
        "CREATE FUNCTION theirs() RETURNS TRIGGER LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END'; \
         CREATE TRIGGER theirs BEFORE INSERT ON transfers_tb \
           FOR EACH ROW EXECUTE FUNCTION theirs()",
    );
    let want = text(&site);
    site.sql(OTHER_VERSION);
    migrate(&site).expect("applied");
    assert_eq!(text(&site), want);

    site.sql("CREATE VIEW claims AS SELECT spot_operations(direction, state) FROM transfers_tb");
    site.sql(OTHER_VERSION);
    let (want, first) = (text(&site), applied(&site));
    let (code, said) = site.start_refused();
    assert_eq!(code, 1, "{said}");
    assert!(said.contains("view claims depends on function spot_operations"), "{said}");
    assert_eq!((text(&site), applied(&site)), (want, first));
    site.sql("DROP VIEW claims");
    site.start().stop();
}

/// Goal: starts at the same time are one after the other. Method: a crowd of them on an empty
/// database, and on one with the functions of another version.
#[test]
fn concurrent_starts_apply_once() {
    let (site, want) = (Site::new(), text(&fresh()));
    for _ in 0..2 {
        for result in crowd(6, |_| migrate(&site)) {
            result.expect("a schema");
        }
        assert_eq!(text(&site), want);
        site.sql(OTHER_VERSION);
    }
}
