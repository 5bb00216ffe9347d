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

/// Goal: the commit that makes a transaction CANCELLED writes its event for the users of the legs
/// that were given back, and for the operator's endpoint, but for no follower; without such legs
/// there is none. Method: a branch that is cancelled, and one that has refused.
#[test]
fn a_cancelled_transaction_is_told_without_its_followers() {
    let mut desk = Desk::new();
    let followers = ["mail"].map(str::to_owned).to_vec();
    for (tx_id, ending) in [("back", BranchState::Cancelled), ("refused", BranchState::Refused)] {
        let followers = followers.clone();
        let round = TransactionRound { followers, ..round(tx_id, 1, Decider::Coordinator) };
        let row = desk.taken(&round);
        desk.moved(branch_move(&row, 1, BranchState::Trying, ending));
        desk.moved(state_move(&row, TransactionState::Aborted));
        let row = desk.find(tx_id);
        desk.moved(state_move(&row, TransactionState::Cancelled));
    }
    let deliveries = "SELECT tx_id, endpoint, states FROM webhook_deliveries \
                        JOIN transactions_tb ON transaction_id = req_id";
    assert_eq!(desk.site.sql(deliveries), [["back", "default", "{-20}"]]);
    let users = "SELECT tx_id, user_id FROM transaction_events \
                   JOIN transactions_tb USING (transaction_id) ORDER BY 1, 2";
    assert_eq!(desk.site.sql(users), [["back", "1001"], ["back", "1002"]]);
}
