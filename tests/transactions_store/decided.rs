use rustix::process::Signal;

use super::*;
use crate::harness::crowd;

/// Goal: each refusal of a caller's commit has its SQLSTATE, and decides nothing. Method: each
/// cause, in one session after the other.
#[test]
fn a_commit_in_sql_is_refused_by_its_sqlstate() {
    let mut desk = Desk::new();
    let (role, other) = (desk.role("caller"), desk.roleless("other"));
    let session = desk.session(&role);
    let refuses = |call: &str, state: &str| {
        assert_eq!(session.sql_refused(call), state, "{call}");
    };
    refuses(&commit("none", 1), "UB012");
    desk.taken(&round("trying", 1, Decider::Caller));
    refuses(&commit("trying", 1), "UB011");
    let theirs = desk.taken(&round("theirs", 1, Decider::Coordinator));
    desk.moved(branch_move(&theirs, 1, BranchState::Trying, BranchState::Tried));
    refuses(&commit("theirs", 1), "UB011");
    let row = desk.tried("aborted");
    desk.moved(state_move(&row, TransactionState::Aborted));
    refuses(&commit("aborted", 1), "UB010");
    desk.tried("tried");
    refuses(&commit("tried", 2), "UB011");
    refuses("SELECT transaction_commit('shop', 'tried', NULL)", "UB011");
    refuses("SELECT transaction_commit('bank', 'tried', 1)", "42501");
    refuses("SELECT * FROM transactions_tb", "42501");
    refuses("UPDATE transactions_tb SET state = 30", "42501");
    assert_eq!(desk.session(&other).sql_refused(&commit("tried", 1)), "42501");
    // With the right to call it, and without a grant.
    desk.site.sql(&format!("GRANT EXECUTE ON FUNCTION transaction_commit TO {other}"));
    assert_eq!(desk.session(&other).sql_refused(&commit("tried", 1)), "42501");

    desk.site.sql("UPDATE engine_state SET halted = TRUE");
    refuses(&commit("tried", 1), "UB005");
    desk.site.sql("UPDATE engine_state SET halted = FALSE");
    let decided = "SELECT count(*) FROM transactions_tb WHERE state = 30";
    assert_eq!(desk.site.sql_value(decided), "0");
    session.sql(&commit("tried", 1));
    session.sql(&commit("tried", 1));
    assert_eq!(desk.site.sql_value(decided), "1");
    let row = desk.find("tried");
    assert_eq!(row.decided_by, Some(format!("caller:{role}")));
    assert_eq!(row.history.len(), 2);
}

/// Goal: the search path of a caller puts nothing in the place of our objects. Method: temporary
/// tables of the same names, and a search path with a schema of the role.
#[test]
fn a_commit_in_sql_uses_our_objects_only() {
    let mut desk = Desk::new();
    let role = desk.role("caller");
    let other = desk.roleless("other");
    desk.tried("tried");
    desk.site.sql(&format!("GRANT EXECUTE ON FUNCTION transaction_commit TO {other}"));
    let session = desk.session(&other);
    session.sql(&format!(
        "CREATE TEMP TABLE transaction_grants (role_name name, owner text); \
         INSERT INTO transaction_grants VALUES ('{other}', 'shop'); \
         SET search_path = pg_temp, public"
    ));
    assert_eq!(
        session.sql_refused(
            &commit("tried", 1).replace("transaction_commit", "public.transaction_commit")
        ),
        "42501"
    );
    let session = desk.session(&role);
    session
        .sql("CREATE TEMP TABLE engine_state (halted boolean); SET search_path = pg_temp, public");
    session.sql(&commit("tried", 1));
    assert_eq!(desk.find("tried").state, TransactionState::Committed);
}

/// Goal: a decision in SQL is that of the local transaction. Method: a ROLLBACK, and then a COMMIT
/// with a business row.
#[test]
fn a_rollback_decides_nothing() {
    let mut desk = Desk::new();
    let role = desk.role("caller");
    let row = desk.tried("tried");
    desk.site.sql(&format!("CREATE TABLE orders (id text); GRANT ALL ON orders TO {role}"));
    let session = desk.session(&role);
    let local = format!("BEGIN; INSERT INTO orders VALUES ('x'); {}", commit("tried", 1));
    session.sql(&local);
    assert_eq!(block_on(desk.store.decided()).expect("none"), []);
    session.sql("ROLLBACK");
    assert_eq!(desk.find("tried"), row);
    session.sql(&format!("{local}; COMMIT"));
    assert_eq!(desk.site.sql_value("SELECT count(*) FROM orders"), "1");
    assert_eq!(block_on(desk.store.decided()).expect("one"), [row.id]);
    let committed = desk.find("tried");
    assert_eq!((committed.state, committed.sealed), (TransactionState::Committed, false));
    // A round and an abort meet the decision.
    assert_eq!(desk.refused(&round("tried", 2, Decider::Caller)).0, Code::TransactionDecided);
    let aborted = state_move(&row, TransactionState::Aborted);
    assert_eq!(desk.record(&[aborted]), [MoveResult::Changed]);
    let seal = state_move(&committed, TransactionState::Committed);
    desk.moved(TransactionMove { seal: true, ..seal });
    assert!(desk.find("tried").sealed);
    assert_eq!(block_on(desk.store.decided()).expect("none"), []);
    assert_eq!(desk.find("tried").history, committed.history);
}

/// Goal: of a commit and an abort exactly one wins. Method: the commit's transaction open while the
/// abort is tried; the abort first; and both at the same instant, many times.
#[test]
fn a_commit_and_an_abort_have_one_winner() {
    let mut desk = Desk::new();
    let role = desk.role("caller");
    let session = desk.session(&role);
    let row = desk.tried("slow");
    let abort = |row: &TransactionRow| [state_move(row, TransactionState::Aborted)];
    session.sql(&format!("BEGIN; {}", commit("slow", 1)));
    let results = desk.record(&abort(&row));
    assert!(matches!(results[0], MoveResult::Held(_)), "{results:?}");
    session.sql("COMMIT");
    assert_eq!(desk.record(&abort(&row)), [MoveResult::Changed]);
    assert_eq!(desk.find("slow").state, TransactionState::Committed);

    let row = desk.tried("late");
    desk.moved(abort(&row)[0].clone());
    assert_eq!(session.sql_refused(&commit("late", 1)), "UB010");

    for number in 0..20 {
        let tx_id = format!("race-{number}");
        let row = desk.tried(&tx_id);
        let incarnation = desk.incarnation;
        let wins = crowd(2, |side| match side {
            0 => {
                let session = desk.session(&role);
                let result = session.does(&commit(&tx_id, 1));
                usize::from(result)
            }
            _ => {
                let mut store = store_of(&desk.site, incarnation);
                let result = eventually("a row that is free", || {
                    let results = block_on(store.record(&abort(&row), now())).expect("an answer");
                    Some(results[0].clone()).filter(|one| !matches!(one, MoveResult::Held(_)))
                });
                usize::from(result == MoveResult::Moved)
            }
        });
        assert_eq!(wins.iter().sum::<usize>(), 1, "{tx_id}: {wins:?}");
        let state = desk.find(&tx_id).state;
        let want = [TransactionState::Aborted, TransactionState::Committed][wins[0]];
        assert_eq!(state, want, "{tx_id}");
    }
}

/// Goal: rounds that were refused as a whole count for nothing, and a part that is neither way
/// stops the commit. Method: two rounds, the second one in each state.
#[test]
fn a_refused_round_leaves_the_others_to_be_committed() {
    let mut desk = Desk::new();
    let role = desk.role("caller");
    let session = desk.session(&role);
    desk.tried("rounds");
    let row = desk.taken(&round("rounds", 2, Decider::Caller));
    assert_eq!(session.sql_refused(&commit("rounds", 2)), "UB011");
    desk.moved(branch_move(&row, 2, BranchState::Trying, BranchState::Refused));
    assert_eq!(session.sql_refused(&commit("rounds", 1)), "UB011");
    session.sql(&commit("rounds", 2));

    // A service takes part in the refused round: the whole transaction is to be aborted.
    desk.tried("vetoed");
    let second = TransactionRound {
        services: vec![("coupons".to_owned(), json!({}))],
        ..round("vetoed", 2, Decider::Caller)
    };
    let row = desk.taken(&second);
    desk.moved(branch_move(&row, 2, BranchState::Trying, BranchState::Refused));
    let mut rest = branch_move(&row, 2, BranchState::Trying, BranchState::Cancelled);
    rest.branches[0].party = Party::Service("coupons".to_owned());
    desk.moved(rest);
    assert_eq!(session.sql_refused(&commit("vetoed", 2)), "UB011");

    let alone = desk.taken(&round("alone", 1, Decider::Caller));
    desk.moved(branch_move(&alone, 1, BranchState::Trying, BranchState::Refused));
    assert_eq!(session.sql_refused(&commit("alone", 1)), "UB011");
}

/// Goal: nothing that was sealed is lost, and only unsealed decisions can be taken back. Method: a
/// caller that commits without waiting for the disk; PostgreSQL is killed before the seal and
/// behind it.
#[test]
fn a_sealed_decision_survives_a_crash_of_postgresql() {
    let (site, cluster) = Site::on_its_own_cluster();
    crate::schema::committed::migrate(&site).expect("a schema");
    let mut desk = Desk::at(site);
    let role = desk.role("caller");
    for (tx_id, seals) in [("unsealed", false), ("sealed", true)] {
        let row = desk.tried(tx_id);
        let session = desk.session(&role);
        session.sql("SET synchronous_commit = off");
        session.sql(&commit(tx_id, 1));
        let decided = desk.find(tx_id);
        assert_eq!((decided.state, decided.sealed), (TransactionState::Committed, false));
        if seals {
            let seal = state_move(&decided, TransactionState::Committed);
            desk.moved(TransactionMove { seal: true, ..seal });
        }
        cluster.signal(Signal::STOP);
        cluster.kill();
        cluster.restart();
        let there = eventually("an answer", || block_on(desk.store.find(&named(tx_id))).ok());
        let there = there.expect("its accept was durable");
        match seals {
            true => assert_eq!((there.state, there.sealed), (TransactionState::Committed, true)),
            // The kernel may have had it: then it is there, and still to be sealed.
            false => assert!(!there.sealed && [row.state, decided.state].contains(&there.state)),
        }
    }
}
