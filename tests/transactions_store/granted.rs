use jiff::SignedDuration;
use ubscore::postgres::admin::Admin;
use ubscore::postgres::reads::Reads;
use ubscore::postgres::reads::transactions::{TransactionFilter, TransactionPage};
use ubscore::postgres::{Error, pool};

use super::*;
use crate::harness::catalog;
use crate::schema::committed::migrate;

fn reads(desk: &Desk) -> Reads {
    Reads::new(pool(&desk.site.target(), &LIMITS, 2), catalog())
}

fn admin(desk: &Desk) -> Admin {
    Admin::new(reads(desk), desk.incarnation)
}

/// Goal: a role may commit from its grant to its revoke, over a start that replaces the functions
/// and over a restore that leaves privileges out. Method: each of them, with an audit row each; and
/// a role that PostgreSQL does not have.
#[test]
fn a_role_is_granted_and_revoked() {
    let mut desk = Desk::new();
    let (admin, reads, role) = (admin(&desk), reads(&desk), desk.roleless("caller"));
    desk.tried("tried");
    let unknown = block_on(admin.grant_caller("no such role", OWNER, "admin/9001", "a test"));
    assert!(matches!(unknown, Err(Error::UnknownRole(_))), "{unknown:?}");
    let public = block_on(admin.grant_caller("public", OWNER, "admin/9001", "a test"));
    assert!(matches!(public, Err(Error::UnknownRole(_))), "{public:?}");
    let session = desk.session(&role);
    assert_eq!(session.sql_refused(&commit("tried", 1)), "42501");
    for _ in 0..2 {
        block_on(admin.grant_caller(&role, OWNER, "admin/9001", "a test")).expect("granted");
    }
    block_on(admin.grant_caller(&role, "bank", "admin/9001", "a test")).expect("granted");
    let all = block_on(reads.callers()).expect("grants");
    let all: Vec<(&str, &str)> =
        all.iter().map(|one| (one.role.as_str(), one.owner.as_str())).collect();
    assert_eq!(all, [(role.as_str(), "bank"), (role.as_str(), OWNER)]);

    desk.site.sql("UPDATE engine_state SET functions_hash = 'another'");
    migrate(&desk.site).expect("replaced");
    session.sql(&format!("BEGIN; {}; ROLLBACK", commit("tried", 1)));
    desk.site.sql(
        "DROP FUNCTION transaction_commit; \
         CREATE FUNCTION transaction_commit(p_owner TEXT, p_tx_id TEXT, p_rounds INTEGER) \
         RETURNS VOID LANGUAGE plpgsql SECURITY DEFINER AS 'BEGIN END'; \
         COMMENT ON FUNCTION transaction_commit IS 'ubscore'",
    );
    migrate(&desk.site).expect("privileges");
    let privileges = "SELECT count(*) FROM pg_proc, aclexplode(proacl) \
                      WHERE proname = 'transaction_commit' AND grantee = 0";
    assert_eq!(desk.site.sql_value(privileges), "0");
    desk.site.sql("UPDATE engine_state SET functions_hash = 'another'");
    migrate(&desk.site).expect("replaced");
    session.sql(&commit("tried", 1));

    let revoke = |owner| block_on(admin.revoke_caller(&role, owner, "admin/9001", "a test"));
    assert!(revoke(OWNER).expect("revoked"));
    assert!(!revoke(OWNER).expect("nothing"));
    assert_eq!(session.sql_refused(&commit("tried", 1)), "42501");
    assert!(revoke("bank").expect("revoked"));
    let rows = "SELECT count(*) FROM admin_audit WHERE action LIKE 'transaction %'";
    assert_eq!(desk.site.sql_value(rows), "5");
}

fn page(desk: &Desk, filter: TransactionFilter) -> TransactionPage {
    block_on(reads(desk).transactions(&filter)).expect("a page")
}

fn names(page: &TransactionPage) -> Vec<&str> {
    page.transactions.iter().map(|row| row.name.tx_id.as_str()).collect()
}

/// Goal: each filter of a list, and its pages. Method: transactions of two owners in several
/// states.
#[test]
fn transactions_are_listed_newest_first() {
    let mut desk = Desk::new();
    let began = now();
    for number in 0..5 {
        desk.taken(&round(&format!("tx-{number}"), 1, Decider::Caller));
    }
    let aborted = desk.find("tx-3");
    desk.moved(state_move(&aborted, TransactionState::Aborted));
    let mut other = round("theirs", 1, Decider::Caller);
    other.name.owner = "bank".to_owned();
    desk.taken(&other);
    let filter =
        TransactionFilter { limit: 2, owner: Some(OWNER.to_owned()), ..Default::default() };
    let first = page(&desk, filter.clone());
    assert_eq!(names(&first), ["tx-4", "tx-3"]);
    assert_eq!(first.transactions[0], desk.find("tx-4"));
    let second = page(&desk, TransactionFilter { before: first.next, ..filter.clone() });
    assert_eq!(names(&second), ["tx-2", "tx-1"]);
    let third = page(&desk, TransactionFilter { before: second.next, ..filter });
    assert_eq!((names(&third), third.next), (vec!["tx-0"], None));

    let filter = TransactionFilter { limit: 9, ..Default::default() };
    assert_eq!(names(&page(&desk, filter.clone())).len(), 6);
    let of = TransactionFilter { state: Some(TransactionState::Aborted), ..filter.clone() };
    assert_eq!(names(&page(&desk, of)), ["tx-3"]);
    let hour = SignedDuration::from_hours(1);
    let since = TransactionFilter { since: Some(began + hour), ..filter.clone() };
    assert_eq!(names(&page(&desk, since)).len(), 0);
    let until = TransactionFilter { until: Some(began), ..filter.clone() };
    assert_eq!(names(&page(&desk, until)).len(), 0);
    let an_hour = 3_600_000;
    let stuck = TransactionFilter { stuck_ms: Some(an_hour), ..filter.clone() };
    assert_eq!(names(&page(&desk, stuck)).len(), 0);
    desk.site.sql(
        "UPDATE transactions_tb SET updated_at = updated_at - interval '2 hours' \
          WHERE tx_id IN ('tx-2', 'tx-3')",
    );
    // tx-2 is undecided, and its age has not ended it.
    let stuck = TransactionFilter { stuck_ms: Some(an_hour), ..filter };
    assert_eq!(names(&page(&desk, stuck)), ["tx-3"]);
    let reads = reads(&desk);
    let row = desk.find("tx-2");
    assert_eq!(block_on(reads.transaction(row.id)).expect("read"), Some(row.clone()));
    assert_eq!(block_on(reads.transaction_named(&row.name)).expect("read"), Some(row));
}
