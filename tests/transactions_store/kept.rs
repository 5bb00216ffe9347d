use std::time::Duration;

use ubscore::postgres::watermark::Watermark;

use super::*;

/// RCV-008. Goal: the watermark passes a transaction that Funding and Spot have ended, before its
/// final state and behind the keep time. The mark of that is never early, and stands. Method: the
/// moves of a worker, and those of a broken one.
#[test]
fn the_watermark_passes_what_both_stores_have_ended() {
    let mut desk = Desk::new();
    let row = desk.tried("ended");
    let target = row.order_number + 10;
    let mut watermark = Watermark::new(desk.site.target(), LIMITS, desk.incarnation);
    let (keep, none) = (Duration::from_secs(3_600), Duration::ZERO);
    let mut raised =
        |keep| block_on(watermark.raise(target, keep, 100)).expect("an answer").watermark;
    let mark =
        |row: &TransactionRow, to| TransactionMove { stores_ended: true, ..state_move(row, to) };
    let refuses = |desk: &mut Desk, one: TransactionMove| {
        let refused = eventually("a row that is free", || {
            match block_on(desk.store.record(std::slice::from_ref(&one), now())) {
                Ok(results) if matches!(results[0], MoveResult::Held(_)) => None,
                other => Some(other),
            }
        });
        assert!(matches!(refused, Err(TransactionError::Refused(_))), "{refused:?}");
    };
    refuses(&mut desk, mark(&row, TransactionState::Open));
    desk.moved(state_move(&row, TransactionState::Committed));
    let row = desk.find("ended");
    refuses(&mut desk, mark(&row, row.state));
    assert_eq!(raised(none), row.order_number);
    let confirmed = branch_move(&row, 1, BranchState::Tried, BranchState::Confirmed).branches;
    desk.moved(TransactionMove { branches: confirmed, ..mark(&row, row.state) });
    let row = desk.find("ended");
    assert_eq!((row.state, row.stores_ended), (TransactionState::Committed, true));
    assert_eq!(raised(keep), row.order_number);
    assert_eq!(raised(none), target);
    let undo = "UPDATE transactions_tb SET stores_ended_at = NULL";
    assert_eq!(desk.site.session().sql_refused(undo), "UB003");
    let note = TransactionNote { by: "admin/1".to_owned(), text: "seen".to_owned() };
    desk.moved(TransactionMove { note: Some(note), ..state_move(&row, TransactionState::Done) });
    let row = desk.find("ended");
    let passed: Vec<_> =
        row.history.iter().map(|one| (one.state.as_str(), one.by.as_str())).collect();
    let last = [("COMMITTED", "admin/1"), ("DONE", "coordinator")];
    assert_eq!(passed[passed.len() - 2..], last, "{passed:?}");
}

/// Goal: the watermark stops at an unfinished transaction, and at a finished one until its keep
/// time is over; an accept below it is refused. Method: the watermark's own calls with targets
/// above all.
#[test]
fn the_watermark_stops_at_a_transaction() {
    let mut desk = Desk::new();
    let (first, second) = (desk.tried("first"), desk.tried("second"));
    let target = second.order_number + 10;
    let mut watermark = Watermark::new(desk.site.target(), LIMITS, desk.incarnation);
    let (keep, none) = (Duration::from_secs(3_600), Duration::ZERO);
    let mut raised =
        |keep| block_on(watermark.raise(target, keep, 100)).expect("an answer").watermark;
    assert_eq!(raised(none), first.order_number);
    desk.moved(state_move(&first, TransactionState::Aborted));
    assert_eq!(raised(none), first.order_number);
    let aborted = desk.find("first");
    let cancelled = branch_move(&aborted, 1, BranchState::Tried, BranchState::Cancelled).branches;
    let ended = state_move(&aborted, TransactionState::Cancelled);
    desk.moved(TransactionMove { branches: cancelled, ..ended });
    assert_eq!(raised(keep), first.order_number);
    assert_eq!(raised(none), second.order_number);
    desk.moved(TransactionMove {
        branches: branch_move(&second, 1, BranchState::Tried, BranchState::Confirmed).branches,
        ..state_move(&second, TransactionState::Done)
    });
    assert_eq!(raised(none), target);

    let accept = desk.asked(&round("late", 1, Decider::Caller));
    let refused = block_on(desk.store.accept(&accept));
    assert!(matches!(refused, Err(TransactionError::Refused(_))), "{refused:?}");
    let refused = block_on(desk.store.cancel_unknown(&accept, "9001", None));
    assert!(matches!(refused, Err(TransactionError::Refused(_))), "{refused:?}");
    assert_eq!(block_on(desk.store.find(&named("late"))).expect("none"), None);
}
