//! Resends and bumps: section 11.

use super::*;

const LOWEST: TxFact = TxFact::Due { is_lowest: true };

#[test]
fn the_lowest_is_bumped_behind_its_resends_and_others_never() {
    let mut row = Row::tracking();
    let mut other = row.clone();
    for resends in [1, 2] {
        row.hand(LOWEST);
        assert_eq!((row.sends(), row.tx.resends), (vec![1], resends));
        assert_eq!(row.tx.resubmit_in, Some(INTERVAL), "the next one is planned before the send");
    }
    row.hand(LOWEST);
    assert_eq!((row.signs(), row.sends()), (vec![AttemptKind::Bump], vec![]));
    row.sign();
    assert_eq!((row.sends(), row.tx.resends), (vec![2], 0));
    let price = GasPrice { max_fee: 3_360_000_000, max_tip: 1_120_000_000 };
    assert_eq!(row.tx.attempts[1].price, price);
    row.hand(LOWEST);
    assert_eq!(row.sends(), [2], "the newest");
    for _ in 0..20 {
        other.hand(TxFact::Due { is_lowest: false });
        assert_eq!((other.signs(), other.sends()), (vec![], vec![1]));
    }
}

/// Goal: a bump starts from the highest price that was ever stored. The newest may be cheaper:
/// rows of an older program, or of an operator's hand.
#[test]
fn a_bump_starts_from_the_highest_and_not_from_the_newest() {
    let mut row = Row::tracking();
    row.refuse(1);
    row.sign();
    row.tx.attempts[0].price = GasPrice { max_fee: 100 * GWEI, max_tip: 2 * GWEI };
    row.refuse(2);
    let price = GasPrice { max_fee: 112 * GWEI, max_tip: 2_240_000_000 };
    assert_eq!(row.effects, [Effect::Sign { kind: AttemptKind::Bump, price, gas: 50_000 }]);
    // A signature at a price that does not replace the highest is not stored.
    let mut signed = row.signature().expect("signs");
    signed.price.max_tip -= 1;
    row.hand(TxFact::Signed(signed));
    assert!(!row.is_moved);
}

#[test]
fn a_cap_forbids_the_whole_step_and_resends_go_on() {
    let mut row = Row::tracking();
    row.rules.caps.max_fee = 4 * GWEI;
    for attempt in [2, 3] {
        row.refuse(attempt - 1);
        row.sign();
    }
    assert_eq!(row.answer(3, SendClass::Underpriced), [Effect::Raise("tx_underpriced")]);
    assert_eq!(row.stands().1, Some(SubState::Underpriced));
    for _ in 0..20 {
        row.hand(LOWEST);
        assert_eq!((row.signs(), row.sends(), row.effects.len()), (vec![], vec![3], 1));
        row.answer(3, SendClass::Underpriced);
        assert_eq!(row.effects, [], "raised once");
    }
    row.rules.caps.max_fee = 5 * GWEI;
    row.hand(LOWEST);
    assert_eq!(row.signs(), [AttemptKind::Bump], "the caps allow it again");
    row.sign();
    row.answer(4, SendClass::Accepted);
    assert_eq!(row.stands().1, Some(SubState::Pending));
}

#[test]
fn the_first_price_waits_while_the_base_fee_is_above_the_cap() {
    let mut row = Row::allocated();
    row.rules.market = Some(GasMarket { base_fee: 400 * GWEI, tip: GWEI });
    assert_eq!(row.hand(TxFact::Turn), [Effect::Raise("tx_underpriced")]);
    row.hand(TxFact::Turn);
    assert!(!row.is_moved);
    row.rules.market = None;
    row.hand(TxFact::Turn);
    assert!(!row.is_moved, "no market, no price");
    row.rules.market = rules().market;
    row.hand(TxFact::Turn);
    row.sign();
    assert_eq!(row.stands(), (TxState::Submitted, None));
}

#[test]
fn the_most_attempts_are_not_exceeded_and_a_cancel_is_no_payment() {
    let mut row = Row::tracking();
    row.rules.attempts_max = 2;
    row.refuse(1);
    row.sign();
    row.answer(2, SendClass::Underpriced);
    assert_eq!(row.stands().1, Some(SubState::Underpriced));
    row.hand(LOWEST);
    assert_eq!(row.sends(), [2]);
    row.hand(TxFact::Cancel);
    assert_eq!(row.signs(), [AttemptKind::Cancel]);
    let mut free = row.clone();
    free.tx.wish = Wish::Pay;
    free.rules.attempts_max = 0;
    free.refuse(2);
    assert_eq!(free.signs(), [AttemptKind::Bump], "0: the caps alone");
}

#[test]
fn only_cancels_are_bumped_once_one_is_wanted() {
    let mut row = Row::tracking();
    row.hand(TxFact::Cancel);
    row.sign();
    row.answer(2, SendClass::Accepted);
    for _ in 0..2 {
        row.hand(LOWEST);
        assert_eq!(row.sends(), [2]);
    }
    row.hand(LOWEST);
    assert!(matches!(
        row.effects[..],
        [Effect::Sign { kind: AttemptKind::Cancel, gas: 21_000, .. }]
    ));
    row.sign();
    assert_eq!((row.sends(), row.stands().1), (vec![3], Some(SubState::Cancelling)));
    // A late answer about the payment changes nothing about that.
    row.answer(1, SendClass::Underpriced);
    assert_eq!(row.signs(), []);
}

#[test]
fn without_an_answer_no_price_is_raised() {
    let mut row = Row::submitted();
    for _ in 0..20 {
        row.hand(LOWEST);
        assert_eq!((row.signs(), row.sends()), (vec![], vec![1]));
    }
    let mut row = Row::submitted();
    row.answer(1, SendClass::Unknown);
    for _ in 0..6 {
        row.hand(LOWEST);
        assert_eq!(row.signs(), []);
    }
    row.hand(LOWEST);
    assert_eq!(row.signs(), [AttemptKind::Bump], "an unlisted text, for long");
}

/// Story: a cancel that came right behind a take-over waited for the next resend. Later, it did so
/// only if the first question for the market had no answer.
#[test]
fn a_wish_without_a_market_is_looked_at_again_at_once() {
    let mut row = Row::tracking();
    row.rules.market = None;
    row.hand(TxFact::Cancel);
    assert_eq!((row.signs(), row.tx.resubmit_in), (vec![], Some(Duration::ZERO)));
    row.hand(LOWEST);
    assert_eq!((row.signs(), row.tx.resubmit_in), (vec![], Some(INTERVAL / 16)), "it is away");
    row.rules.market = rules().market;
    row.hand(LOWEST);
    assert_eq!(row.signs(), [AttemptKind::Cancel]);
}

#[test]
fn it_is_stale_without_a_receipt_for_long() {
    let mut row = Row::tracking();
    row.tx.sent_since = Some(Duration::from_secs(59));
    row.hand(LOWEST);
    assert_eq!(row.hand(TxFact::Stale), []);
    assert_eq!(row.stands().1, Some(SubState::Pending));
    row.tx.sent_since = Some(Duration::from_secs(60));
    let mut other = row.clone();
    row.hand(LOWEST);
    assert_eq!(row.stands().1, Some(SubState::Stale));
    let plan = other.tx.resubmit_in;
    assert_eq!(other.hand(TxFact::Stale), [], "its resend has a time of its own");
    assert_eq!((other.stands().1, other.tx.resubmit_in), (Some(SubState::Stale), plan));
    row.answer(1, SendClass::Known);
    assert_eq!(row.stands().1, Some(SubState::Stale));
    row.mine(1, 1, Proof::Paid);
}

#[test]
fn switched_off_leaves_alone_what_an_endpoint_has() {
    let mut row = Row::tracking();
    row.rules.is_resubmitted = false;
    row.hand(LOWEST);
    assert_eq!((row.effects.len(), row.tx.resubmit_in), (0, Some(INTERVAL)));
    row.tx.sent_since = Some(Duration::from_secs(60));
    row.hand(LOWEST);
    assert_eq!((row.effects.len(), row.tx.resubmit_in), (0, None));
    assert_eq!(row.stands().1, Some(SubState::Stale));
    row.answer(1, SendClass::Underpriced);
    assert_eq!(row.signs(), []);
    row.hand(TxFact::Missing);
    assert_eq!(row.sends(), [1], "a gap is closed all the same");
}

#[test]
fn a_cancel_gets_its_attempt_also_with_resends_switched_off() {
    let mut row = Row::tracking();
    row.rules.is_resubmitted = false;
    row.hand(TxFact::Cancel);
    assert_eq!(row.signs(), [AttemptKind::Cancel]);
    row.hand(TxFact::Unsigned);
    row.hand(TxFact::Due { is_lowest: true });
    assert_eq!(row.signs(), [AttemptKind::Cancel]);
    row.sign();
    row.answer(2, SendClass::Accepted);
    row.hand(TxFact::Due { is_lowest: true });
    assert_eq!((row.signs(), row.sends()), (vec![], vec![]));
}
