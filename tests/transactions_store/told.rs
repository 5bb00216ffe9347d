use super::*;

/// A transaction with two followers that is to be DONE with this move.
fn done(desk: &mut Desk, tx_id: &str) -> TransactionMove {
    let followers = ["mail", "notices"].map(str::to_owned).to_vec();
    let row = desk.taken(&TransactionRound { followers, ..round(tx_id, 1, Decider::Coordinator) });
    desk.moved(branch_move(&row, 1, BranchState::Trying, BranchState::Tried));
    TransactionMove {
        branches: branch_move(&row, 1, BranchState::Tried, BranchState::Confirmed).branches,
        ..state_move(&row, TransactionState::Done)
    }
}

/// GTX-015. Goal: the commit that makes a transaction DONE writes its event for each user, and its
/// deliveries; ids rise with the commits. Method: two in one commit, one of them once more; and a
/// commit with an id that another one has passed.
#[test]
fn gtx_015_the_end_of_a_transaction_is_written_with_its_event() {
    let mut desk = Desk::new();
    let (one, two) = (done(&mut desk, "one"), done(&mut desk, "two"));
    let deliveries = "SELECT endpoint, event_id - (SELECT min(event_id) FROM transaction_events), \
                             kind, status FROM webhook_deliveries ORDER BY event_id, endpoint";
    assert_eq!(desk.site.sql(deliveries), Vec::<Vec<String>>::new());
    assert_eq!(desk.record(&[one.clone(), two]), [MoveResult::Moved, MoveResult::Moved]);
    assert_eq!(desk.record(&[one]), [MoveResult::Changed]);
    let row = |endpoint: &str, place: &str| [endpoint, place, "2", "1"].map(str::to_owned).to_vec();
    let all = ["0", "1"].map(|place| {
        ["default", "follower.mail", "follower.notices"].map(|endpoint| row(endpoint, place))
    });
    assert_eq!(desk.site.sql(deliveries), all.concat());
    let users = "SELECT user_id, count(*) FROM transaction_events GROUP BY 1 ORDER BY 1";
    assert_eq!(desk.site.sql(users), [["1001", "2"], ["1002", "2"]]);

    // A call that was given up comes behind a later one.
    let late = done(&mut desk, "late");
    desk.site
        .sql("INSERT INTO transaction_events VALUES (9000000000000000000, 1, gen_random_uuid())");
    let refused = block_on(desk.store.record(std::slice::from_ref(&late), now()));
    assert!(matches!(refused, Err(TransactionError::Refused(_))), "{refused:?}");
    assert_eq!(desk.find("late").state, TransactionState::Open);
    desk.site.sql("DELETE FROM transaction_events WHERE user_id = 1");
    desk.moved(late);
    assert_eq!(desk.site.sql(users), [["1001", "3"], ["1002", "3"]]);
}
