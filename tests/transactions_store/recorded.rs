use super::*;

/// Goal: a row is as it was asked, whether it comes from the write or from a read. Method: a round
/// with every kind of branch, hostile payloads among them, accepted and found.
#[test]
fn a_round_is_read_as_it_was_accepted() {
    let mut desk = Desk::new();
    let all = TransactionRound {
        legs: vec![leg(1001, 1002, 250), leg_in(Participant::Spot, 1003, 1004, 9)],
        services: vec![
            ("bank".to_owned(), json!({"zero": "a\u{0}b", "n": 1e2, "b": 1, "a": [null]})),
            ("coupons".to_owned(), json!(null)),
        ],
        last: Some(("archive".to_owned(), json!("text"))),
        ..round("all", 1, Decider::Last)
    };
    let row = desk.taken(&all);
    assert_eq!(desk.find("all"), row);
    assert_eq!(row.branches, all.branches());
    let mut unfinished = |above| block_on(desk.store.unfinished(above, 9)).expect("rows").rows;
    assert_eq!(unfinished(0), std::slice::from_ref(&row));
    assert_eq!(unfinished(row.order_number), []);
    assert_eq!(block_on(desk.store.find(&named("other"))).expect("none"), None);
    assert_eq!(desk.site.sql_value("SELECT count(*) FROM branches"), "5");
    assert_eq!(desk.site.sql_value("SELECT state FROM transactions"), "OPEN");
}

/// Goal: a repeat is told its transaction, and another body the fields that differ. Method: the
/// same round twice, with one field changed each time, while it is open and when it is over.
#[test]
fn a_repeated_round_is_a_replay_and_another_body_a_conflict() {
    let mut desk = Desk::new();
    let asked = round("twice", 1, Decider::Coordinator);
    let row = desk.taken(&asked);
    let other = [9; 16];
    for (changed, field) in [
        (TransactionRound { decider: Decider::Caller, ..asked.clone() }, "decide"),
        (TransactionRound { ttl_ms: 1, ..asked.clone() }, "ttl_ms"),
        (TransactionRound { legs: vec![leg(1001, 1002, 251)], ..asked.clone() }, "legs of FUNDING"),
        (
            TransactionRound {
                legs: vec![asked.legs[0], leg_in(Participant::Spot, 1, 2, 3)],
                ..asked.clone()
            },
            "SPOT is new",
        ),
    ] {
        let (code, detail) = desk.refused(&TransactionRound { fingerprint: other, ..changed });
        assert_eq!(code, Code::TxIdConflict);
        assert!(detail.contains(field), "{field}: {detail}");
    }
    for _ in 0..2 {
        match desk.accept(&asked) {
            Accepted::Taken { row: again, replayed } => {
                assert_eq!((again.id, replayed), (row.id, true));
            }
            other => panic!("{other:?}"),
        }
        if desk.find("twice").state == TransactionState::Open {
            desk.moved(branch_move(&row, 1, BranchState::Trying, BranchState::Refused));
            let aborted = state_move(&row, TransactionState::Cancelled);
            desk.moved(TransactionMove { code: Some(Code::InsufficientBalance), ..aborted });
        }
    }
}

/// Story: behind a written round its row is read, and PostgreSQL's refusal of that read was taken
/// for a refusal of the round: its caller was told that nothing was written. Goal: the end of the
/// round is unknown, and the same round again is told its row. Method: a trigger of the write has
/// the session forget its tables, so that the next statement is refused.
#[test]
fn a_refused_read_behind_a_write_is_no_refusal() {
    let mut desk = Desk::new();
    desk.tried("paid");
    desk.site.sql(
        "CREATE FUNCTION forget() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
           PERFORM set_config('search_path', 'nowhere', FALSE); RETURN NULL; END $$; \
         CREATE TRIGGER forget AFTER INSERT ON transaction_branches \
           FOR EACH ROW EXECUTE FUNCTION forget(); \
         CREATE TRIGGER forget AFTER INSERT ON transactions_tb \
           FOR EACH ROW WHEN (NEW.state = -20) EXECUTE FUNCTION forget()",
    );
    let second = desk.asked(&round("paid", 2, Decider::Caller));
    let done = block_on(desk.store.accept(&second));
    assert!(
        matches!(&done, Err(TransactionError::Unknown(why)) if why.contains("transaction")),
        "{done:?}"
    );
    assert_eq!(desk.site.sql_value("SELECT rounds FROM transactions WHERE tx_id = 'paid'"), "2");
    let fresh = || store_of(&desk.site, desk.incarnation);
    let gone = RoundAccept { order_number: second.order_number + 1, ..second.clone() };
    let gone = RoundAccept { round: round("gone", 1, Decider::Caller), ..gone };
    let done = block_on(fresh().cancel_unknown(&gone, "a test", None));
    assert!(matches!(&done, Err(TransactionError::Unknown(_))), "{done:?}");
    assert_eq!(
        desk.site.sql_value("SELECT state FROM transactions WHERE tx_id = 'gone'"),
        "CANCELLED"
    );
    desk.site
        .sql("DROP TRIGGER forget ON transaction_branches; DROP TRIGGER forget ON transactions_tb");
    desk.store = fresh();
    match block_on(desk.store.accept(&second)).expect("an answer") {
        Accepted::Taken { row, replayed } => assert_eq!((row.rounds, replayed), (2, true)),
        other => panic!("{other:?}"),
    }
    let row = block_on(desk.store.cancel_unknown(&gone, "a test", None)).expect("an answer");
    assert_eq!(row.state, TransactionState::Cancelled);
}

/// Goal: each refusal of a round has its code, and writes nothing. Method: rounds out of order, a
/// ninth, one that is too early, and ones behind each decision.
#[test]
fn a_round_is_refused_by_name() {
    let mut desk = Desk::new();
    let caller = Decider::Caller;
    let refuses = |desk: &mut Desk, asked: &TransactionRound, code| {
        assert_eq!(desk.refused(asked).0, code, "{asked:?}");
    };
    refuses(&mut desk, &round("none", 2, caller), Code::InvalidRequest);
    let empty = TransactionRound { legs: Vec::new(), ..round("empty", 1, caller) };
    refuses(&mut desk, &empty, Code::InvalidRequest);
    desk.taken(&round("alone", 1, Decider::Coordinator));
    refuses(&mut desk, &round("alone", 2, caller), Code::InvalidRequest);

    let first = desk.taken(&round("open", 1, caller));
    refuses(&mut desk, &round("open", 2, caller), Code::TransactionUntried);
    desk.moved(branch_move(&first, 1, BranchState::Trying, BranchState::Tried));
    refuses(&mut desk, &round("open", 3, caller), Code::InvalidRequest);
    refuses(&mut desk, &round("open", 9, caller), Code::InvalidRequest);
    refuses(&mut desk, &round("open", 0, caller), Code::InvalidRequest);
    for number in 2..=8 {
        let row = desk.taken(&round("open", number, caller));
        assert_eq!((row.rounds, row.branches.len()), (number, usize::from(number)));
        desk.moved(branch_move(&row, number, BranchState::Trying, BranchState::Tried));
    }

    for (tx_id, to, code, refusal) in [
        ("committed", TransactionState::Committed, None, Code::TransactionDecided),
        ("deciding", TransactionState::Deciding, None, Code::TransactionDecided),
        ("aborted", TransactionState::Aborted, Some(Code::AccountFrozen), Code::TransactionAborted),
        (
            "expired",
            TransactionState::Aborted,
            Some(Code::TransactionExpired),
            Code::TransactionExpired,
        ),
    ] {
        let row = desk.tried(tx_id);
        desk.moved(TransactionMove { code, ..state_move(&row, to) });
        refuses(&mut desk, &round(tx_id, 2, caller), refusal);
        assert_eq!(desk.find(tx_id).rounds, 1);
    }
    assert_eq!(desk.site.sql_value("SELECT count(*) FROM transactions_tb"), "6");
}

/// Goal: a move is written once, in one commit with the others. Method: a batch with a move that
/// finds another state, the same batch again, and the history afterwards.
#[test]
fn a_repeated_move_is_changed() {
    let mut desk = Desk::new();
    let (one, other) = (desk.tried("one"), desk.tried("other"));
    let decided = TransactionMove {
        branches: branch_move(&one, 1, BranchState::Tried, BranchState::Confirmed).branches,
        ..state_move(&one, TransactionState::Done)
    };
    let wrong_state = TransactionMove {
        from: TransactionState::Deciding,
        ..state_move(&other, TransactionState::Committed)
    };
    let wrong_branch = branch_move(&other, 1, BranchState::Trying, BranchState::Refused);
    // A round was accepted behind the decision.
    let wrong_rounds =
        TransactionMove { rounds: 2, ..state_move(&other, TransactionState::Committed) };
    let unknown = TransactionMove { id: ReqId::new(5).expect("one"), ..wrong_state.clone() };
    let batch = [decided, wrong_state, wrong_branch, wrong_rounds, unknown];
    use MoveResult::{Changed, Moved};
    assert_eq!(desk.record(&batch), [Moved, Changed, Changed, Changed, Changed]);
    assert_eq!(desk.record(&batch), [Changed, Changed, Changed, Changed, Changed]);
    let done = desk.find("one");
    let states: Vec<&str> = done.history.iter().map(|passage| passage.state.as_str()).collect();
    assert_eq!(states, ["OPEN", "COMMITTED", "DONE"]);
    assert_eq!((done.sealed, done.decided_by.as_deref()), (true, Some("coordinator")));
    assert_eq!(desk.find("other"), other);
    assert_eq!(desk.record(&[]), []);
}

/// Goal: rounds and moves of one flight have the results that each would have alone, in one commit.
/// Method: a flight with every kind of answer, and the writers of its rows.
#[test]
fn a_flight_gives_each_its_own_result() {
    let mut desk = Desk::new();
    let (there, moving) = (desk.tried("there"), desk.tried("moving"));
    let caller = Decider::Caller;
    let asked = [
        round("new", 1, caller),
        round("there", 1, caller),
        TransactionRound { fingerprint: [9; 16], ..round("there", 1, caller) },
        // The move of the same flight comes first.
        round("moving", 2, caller),
        round("empty", 9, caller),
        round("new", 1, caller),
        round("none", 2, caller),
        TransactionRound {
            legs: vec![leg(1001, 1002, 250), leg_in(Participant::Spot, 1003, 1004, 9)],
            ..round("other", 1, caller)
        },
    ];
    let mut accepts: Vec<RoundAccept> = asked.iter().map(|round| desk.asked(round)).collect();
    accepts.push(RoundAccept {
        order_number: there.order_number,
        ..desk.asked(&round("late", 1, caller))
    });
    let accepts: Vec<&RoundAccept> = accepts.iter().collect();
    let moves = [
        state_move(&moving, TransactionState::Aborted),
        TransactionMove { rounds: 2, ..state_move(&there, TransactionState::Committed) },
    ];
    let landed = block_on(desk.store.flight(&moves, &accepts, now())).expect("an answer");
    let commits = "SELECT count(DISTINCT xmin::text) FROM transactions_tb WHERE tx_id <> 'there'";
    assert_eq!(desk.site.sql_value(commits), "1");
    assert_eq!(landed.moved, [MoveResult::Moved, MoveResult::Changed]);
    let results: Vec<String> = landed
        .accepted
        .iter()
        .map(|accepted| match accepted {
            Ok(Accepted::Taken { row, replayed }) => {
                format!("{} {replayed}", row.name.tx_id.as_str())
            }
            Ok(Accepted::Refused { code, .. }) => code.to_string(),
            Err(error) => format!("{error:?}").chars().take(7).collect(),
        })
        .collect();
    assert_eq!(
        results,
        [
            "new false",
            "there true",
            "TX_ID_CONFLICT",
            "TRANSACTION_ABORTED",
            "INVALID_REQUEST",
            "new true",
            "INVALID_REQUEST",
            "other false",
            "Refused",
        ]
    );
    for (accepted, tx_id) in [(&landed.accepted[0], "new"), (&landed.accepted[7], "other")] {
        match accepted {
            Ok(Accepted::Taken { row, .. }) => assert_eq!(**row, desk.find(tx_id)),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(desk.find("new").branches, asked[0].branches());
    assert_eq!(desk.site.sql_value("SELECT count(*) FROM transactions_tb"), "4");
    let twice = state_move(&there, TransactionState::Aborted);
    let refused = block_on(desk.store.record(&[twice.clone(), twice], now()));
    assert!(matches!(refused, Err(TransactionError::Refused(_))), "{refused:?}");
    assert_eq!(desk.find("there"), there);
}

/// Goal: a search finds the row of each name, and a row that cannot be read stops no other.
/// Method: a branch with a leg that the service does not write.
#[test]
fn a_row_that_cannot_be_read_stops_no_other() {
    let mut desk = Desk::new();
    let rows = ["one", "bad", "two"].map(|tx_id| desk.tried(tx_id));
    desk.site.sql(
        "SET session_replication_role = replica; \
         UPDATE transaction_branches SET legs = '[{\"from\": 1}]' WHERE transaction_id = \
         (SELECT transaction_id FROM transactions_tb WHERE tx_id = 'bad')",
    );
    let names = ["two", "none", "bad", "one", "two"].map(named);
    let asked: Vec<_> = names.iter().collect();
    let found = block_on(desk.store.find_all(&asked)).expect("an answer");
    assert!(matches!(found[2], Err(TransactionError::Unreadable(_))), "{found:?}");
    for (place, row) in [(0, Some(&rows[2])), (1, None), (3, Some(&rows[0])), (4, Some(&rows[2]))] {
        assert_eq!(found[place].as_ref().expect("readable").as_ref(), row, "{place}");
    }
    let page = block_on(desk.store.unfinished(0, 2)).expect("a page");
    assert_eq!(page.rows, rows[..1]);
    let bad = &page.unreadable[0];
    assert_eq!((bad.id, bad.order_number), (Some(rows[1].id), rows[1].order_number));
    assert_eq!((bad.owner.as_str(), bad.tx_id.as_str()), (OWNER, "bad"));
    assert_eq!(page.next, Some(rows[1].order_number));
    let page = block_on(desk.store.unfinished(rows[1].order_number, 2)).expect("a page");
    assert_eq!((page.rows.as_slice(), page.next), (&rows[2..], None));
    let again = desk.asked(&round("bad", 1, Decider::Caller));
    let unreadable = block_on(desk.store.accept(&again));
    assert!(matches!(unreadable, Err(TransactionError::Unreadable(_))), "{unreadable:?}");
}

/// Goal: an abort of an unknown name shuts the door. Method: the first round behind it, the abort
/// again, and an abort of a transaction that stands.
#[test]
fn a_late_round_runs_into_an_empty_cancel() {
    let mut desk = Desk::new();
    let late = round("late", 1, Decider::Caller);
    for _ in 0..2 {
        let accept = desk.asked(&late);
        let reason = Some("a reason\0");
        let row = block_on(desk.store.cancel_unknown(&accept, "9001", reason)).expect("a row");
        assert_eq!(
            (row.state, row.rounds, row.branches.len()),
            (TransactionState::Cancelled, 0, 0)
        );
        assert_eq!(row.decided_by.as_deref(), Some("9001"));
        assert_eq!(row.history.len(), 2);
    }
    assert_eq!(desk.refused(&late).0, Code::TransactionAborted);
    let there = desk.taken(&round("there", 1, Decider::Caller));
    let accept = desk.asked(&round("there", 1, Decider::Caller));
    let row = block_on(desk.store.cancel_unknown(&accept, "9001", None)).expect("a row");
    assert_eq!(row, there);
}

/// Goal: a superseded process writes nothing. Method: each write after a take-over.
#[test]
fn a_superseded_process_is_refused() {
    let mut desk = Desk::new();
    let row = desk.tried("known");
    desk.site.take_over();
    let accept = desk.asked(&round("new", 1, Decider::Caller));
    let aborted = state_move(&row, TransactionState::Aborted);
    let results = [
        block_on(desk.store.accept(&accept)).map(drop),
        block_on(desk.store.record(&[aborted], now())).map(drop),
        block_on(desk.store.cancel_unknown(&accept, "9001", None)).map(drop),
    ];
    for result in results {
        assert!(matches!(result, Err(TransactionError::Superseded)), "{result:?}");
    }
    assert_eq!(desk.find("known"), row);
    assert_eq!(desk.site.sql_value("SELECT count(*) FROM transactions_tb"), "1");
}

/// Goal: a row that a foreign session holds stops no other one. Method: a session that holds one of
/// two rows; a batch over both, and a round.
#[test]
fn a_held_row_is_passed_over_and_its_session_named() {
    let mut desk = Desk::new();
    let (held, free) = (desk.tried("held"), desk.tried("free"));
    let holder = desk.site.session();
    holder.sql("SET application_name = 'the shop'");
    let pid = holder.sql("SELECT pg_backend_pid()")[0][0].clone();
    holder.sql("BEGIN; SELECT FROM transactions_tb WHERE tx_id = 'held' FOR UPDATE");
    let moves = [&held, &free].map(|row| state_move(row, TransactionState::Aborted));
    let results = desk.record(&moves);
    assert_eq!(results[1], MoveResult::Moved);
    let MoveResult::Held(named) = &results[0] else { panic!("{results:?}") };
    assert!(named.contains(&format!("pid {pid} ")) && named.contains("the shop"), "{named}");
    let (code, detail) = desk.refused(&round("held", 2, Decider::Caller));
    assert_eq!(code, Code::Overloaded);
    assert!(detail.contains(&pid), "{detail}");
    holder.sql("ROLLBACK");
    assert_eq!(desk.record(&moves), [MoveResult::Moved, MoveResult::Changed]);
}

/// Goal: an error of SQL is no unknown outcome, and a lost connection is none of SQL. Method: a
/// passage that the guard refuses, a statement that waits behind a lock, and a connection that is
/// cut under a statement.
#[test]
fn a_refusal_is_not_unknown_and_a_lost_answer_is() {
    let mut desk = Desk::new();
    let row = desk.tried("known");
    let done = branch_move(&row, 1, BranchState::Tried, BranchState::Refused);
    let refused = block_on(desk.store.record(&[done], now()));
    assert!(matches!(refused, Err(TransactionError::Refused(_))), "{refused:?}");

    let starting = desk.site.session();
    starting.sql("BEGIN; LOCK TABLE engine_state IN EXCLUSIVE MODE");
    let aborted = [state_move(&row, TransactionState::Aborted)];
    let waits = block_on(desk.store.record(&aborted, now()));
    assert!(matches!(waits, Err(TransactionError::Refused(_))), "{waits:?}");
    starting.sql("ROLLBACK");

    desk.site.sql(
        "CREATE OR REPLACE FUNCTION cut() RETURNS TRIGGER LANGUAGE plpgsql AS $$ BEGIN \
         PERFORM pg_terminate_backend(pg_backend_pid()); RETURN NEW; END $$; \
         CREATE TRIGGER cut BEFORE UPDATE ON transactions_tb FOR EACH ROW EXECUTE FUNCTION cut()",
    );
    let lost = block_on(desk.store.record(&aborted, now()));
    assert!(matches!(lost, Err(TransactionError::Unknown(_))), "{lost:?}");
    desk.site.sql("DROP TRIGGER cut ON transactions_tb");
    assert_eq!(desk.record(&aborted), [MoveResult::Moved]);
}

/// Goal: PostgreSQL's guards hold against every role. Method: each forbidden change of a row by the
/// superuser.
#[test]
fn rows_of_transactions_are_guarded() {
    let mut desk = Desk::new();
    let row = desk.tried("guarded");
    let session = desk.site.session();
    let refuses = |change: &str, state: &str| {
        assert_eq!(session.sql_refused(change), state, "{change}");
    };
    for column in ["order_number = 1", "owner = 'x'", "tx_id = 'x'", "decide = 1"] {
        refuses(&format!("UPDATE transactions_tb SET {column}"), "UB003");
    }
    refuses("DELETE FROM transactions_tb", "UB003");
    refuses("DELETE FROM transaction_branches", "UB003");
    refuses("UPDATE transaction_branches SET legs = '[]'", "UB003");
    refuses("UPDATE transaction_branches SET state = -10", "UB003");
    refuses("UPDATE transactions_tb SET state = 15", "UB003");
    refuses("UPDATE transactions_tb SET sealed = TRUE, state = 40", "23514");
    desk.moved(state_move(&row, TransactionState::Committed));
    refuses("UPDATE transactions_tb SET state = -10", "UB003");
    refuses("UPDATE transactions_tb SET decided_by = 'x'", "UB003");
    refuses("UPDATE transactions_tb SET sealed = FALSE", "UB003");
    let row = desk.find("guarded");
    let done = state_move(&row, TransactionState::Done);
    let confirmed = branch_move(&row, 1, BranchState::Tried, BranchState::Confirmed).branches;
    desk.moved(TransactionMove { branches: confirmed, ..done });
    refuses("UPDATE transactions_tb SET detail = 'x'", "UB003");
    refuses("UPDATE transaction_branches SET code = 1", "UB003");
}
