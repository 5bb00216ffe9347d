use super::*;

/// A hold of Funding, as its flight writes it.
fn hold(row: &TransactionRow, user: u64, state: i16, amount: u64, brought: u64) -> String {
    let (taken, after) = if state == 40 { (amount, "0") } else { (0, "NULL") };
    format!(
        "INSERT INTO funding_holds (order_number, user_id, amount, asked, taken, brought, \
           created_at, updated_at, asset_id, state, round, reason, pays, paid, settled_after, \
           hold_key) \
         VALUES ({}, {user}, {amount}, {amount}, {taken}, {brought}, now(), now(), 3, {state}, 1, \
           1, TRUE, TRUE, {after}, '{}:{user}:3')",
        row.order_number, row.id
    )
}

/// GTX-013. Goal: legs from and to the outside count once: by themselves if a version before V11
/// has settled the hold, by external operations otherwise, and a settled hold without these is
/// named. Method: a transaction with both forms of holds, one after the other.
#[test]
fn legs_of_an_earlier_version_count_once() {
    let mut desk = Desk::new();
    let row = done(&mut desk, "outside");
    desk.site.sql(&format!(
        "SET session_replication_role = replica; \
         UPDATE transaction_branches SET legs = '[{{\"from\":\"OUTSIDE\",\"to\":1001,\"asset\":3,\"amount\":7}}, \
           {{\"from\":1002,\"to\":\"OUTSIDE\",\"asset\":3,\"amount\":9}}]' \
          WHERE transaction_id = ulid_uuid('{}') AND participant = 'FUNDING'; \
         DELETE FROM transaction_branches \
          WHERE transaction_id = ulid_uuid('{}') AND participant <> 'FUNDING'",
        row.id, row.id
    ));
    let counted = |desk: &Desk| {
        let sums = "SELECT COALESCE(sum(deposited), 0) || ' ' || COALESCE(sum(withdrawn), 0) \
                      FROM transactions_tb CROSS JOIN LATERAL transaction_outside(transaction_id)";
        desk.site.sql_value(sums)
    };
    desk.site.sql(&hold(&row, 1001, 40, 0, 7));
    desk.site.sql(&hold(&row, 1002, 40, 9, 0));
    assert_eq!((counted(&desk), found(&desk)), ("7 9".to_owned(), Vec::new()));
    let session = desk.site.session();
    session.sql("SET session_replication_role = replica");
    session.sql(
        "UPDATE funding_holds SET brought = 0, deposited = 7 WHERE user_id = 1001; \
         UPDATE funding_holds SET taken = 0, withdrawn = 9 WHERE user_id = 1002",
    );
    assert_eq!(counted(&desk), "0 0");
    let lacks = found(&desk);
    assert_eq!(lacks.len(), 2, "{lacks:?}");
    assert!(lacks.iter().all(|what| what.contains("its external operations have 0 and 0")));
    let key = |user| format!("tx/{}:{user}:3", row.id);
    desk.site.sql(&format!(
        "INSERT INTO external_operations (order_number, user_id, amount, asset_id, op, \
                                          balance_after, idem_key) \
         VALUES (9001, 1001, 7, 3, 4, 7, '{}/in'), (9002, 1002, 9, 3, 5, 0, '{}/out')",
        key(1001),
        key(1002)
    ));
    assert_eq!(found(&desk), Vec::<String>::new());
    // Such a row is kept: without it the legs would count again.
    let kept = desk.site.session().sql_refused("DELETE FROM funding_holds WHERE deposited > 0");
    assert_eq!(kept, "UB003");
}

/// The differences that the audit finds.
fn found(desk: &Desk) -> Vec<String> {
    let all = format!("SELECT * FROM audit_transactions({}, {})", i64::MIN, i64::MAX);
    desk.site.sql(&all).into_iter().map(|row| row.join(" ")).collect()
}

fn done(desk: &mut Desk, tx_id: &str) -> TransactionRow {
    let row = desk.tried(tx_id);
    desk.moved(TransactionMove {
        branches: branch_move(&row, 1, BranchState::Tried, BranchState::Confirmed).branches,
        ..state_move(&row, TransactionState::Done)
    });
    row
}

/// Goal: a transaction and its holds in Funding agree, or the difference is named. Method: each
/// state with its right holds, and each with a wrong one.
#[test]
fn holds_that_are_not_those_of_their_transaction_are_named() {
    let mut desk = Desk::new();
    let right = done(&mut desk, "right");
    desk.site.sql(&hold(&right, 1001, 40, 250, 0));
    desk.site.sql(&hold(&right, 1002, 40, 0, 250));
    desk.site.sql(&hold(&right, 1003, -20, 0, 0));
    let open = desk.tried("open");
    desk.site.sql(&hold(&open, 1001, 10, 250, 0));
    let gone = desk.tried("gone");
    desk.site.sql(&hold(&gone, 1001, -20, 0, 0));
    let cancelled = branch_move(&gone, 1, BranchState::Tried, BranchState::Cancelled).branches;
    let ended = state_move(&gone, TransactionState::Cancelled);
    desk.moved(TransactionMove { branches: cancelled, ..ended });
    // A hold of another kind.
    desk.site.sql(&hold(&open, 1009, 10, 5, 0).replace(&format!("'{}:", open.id), "'other:"));
    assert_eq!(found(&desk), Vec::<String>::new());

    let lacking = done(&mut desk, "lacking");
    let short = done(&mut desk, "short");
    desk.site.sql(&hold(&short, 1001, 40, 249, 0));
    desk.site.sql(&hold(&short, 1002, 40, 0, 250));
    desk.site.sql(&hold(&short, 1004, 10, 7, 0));
    desk.site.sql(&hold(&gone, 1002, 10, 1, 0));
    desk.site.sql(&hold(&open, 1002, 40, 0, 250));
    let mut unknown = open.clone();
    unknown.id = ReqId::new(77).expect("one");
    desk.site.sql(&hold(&unknown, 1001, 40, 250, 0));
    let found = found(&desk);
    for (row, user, word) in [
        (&lacking, 1001, "no hold"),
        (&lacking, 1002, "no hold"),
        (&short, 1001, "state 40 with 249"),
        (&short, 1004, "is DONE"),
        (&gone, 1002, "is CANCELLED"),
        (&open, 1002, "is OPEN"),
        (&unknown, 1001, "is unknown"),
    ] {
        let start = format!("{} {user} 3 ", row.id);
        let named = found.iter().any(|one| one.starts_with(&start) && one.contains(word));
        assert!(named, "{start}{word}: {found:?}");
    }
    assert_eq!(found.len(), 7, "{found:?}");
}

/// Goal: a difference halts the service, and names transaction, user and asset. Method: a row that
/// claims to be done, planted under a running server.
#[test]
fn a_planted_difference_halts_the_service() {
    let site = Site::new().with("UBSCORE__CONSERVATION__EVERY_MS", 20);
    let server = site.start();
    let id = "01ARZ3NDEKTSV4RRFFQ69G5FAV";
    site.sql(&format!(
        "INSERT INTO transactions_tb (transaction_id, order_number, owner, tx_id, state, decide, \
           rounds, sealed, incarnation, created_at, updated_at, expires_at, decided_by, decided_at, \
           finished_at) \
         VALUES (ulid_uuid('{id}'), 9000000000000, 'shop', 'planted', 40, 1, 1, TRUE, 1, now(), \
           now(), now(), 'x', now(), now()); \
         INSERT INTO transaction_branches (transaction_id, round, state, last, participant, \
           fingerprint, legs, payload, updated_at) \
         VALUES (ulid_uuid('{id}'), 1, 40, FALSE, 'FUNDING', decode(repeat('00', 16), 'hex'), \
           '[{{\"from\": 1001, \"to\": 1002, \"asset\": 3, \"amount\": 250}}]', 'null', now())"
    ));
    let reason = eventually("a halt", || {
        let row = site.sql("SELECT halted, halt_reason FROM engine_state").remove(0);
        (row[0] == "t").then(|| row[1].clone())
    });
    for word in [id, "user 1001", "USDT", "no hold"] {
        assert!(reason.contains(word), "{word}: {reason}");
    }
    server.stop();
}
