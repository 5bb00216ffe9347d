use std::time::Duration;

use ubscore::postgres::watermark::Watermark;

use super::*;

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
