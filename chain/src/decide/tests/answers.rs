//! The table of section 9: each class from each state, and the answers of several endpoints.

use super::SendClass::{
    Accepted, FeeCap, Funds, Invalid, InvalidGas, Known, NonceTooHigh, NonceTooLow, PoolFull,
    Replacement, Underpriced, Unknown,
};
use super::*;

const QUICK: Option<Duration> = Some(Duration::from_millis(3_750));

#[test]
fn each_class_of_the_table_for_a_row_that_no_endpoint_has() {
    let tracking = (TxState::Tracking, Some(SubState::Pending));
    let submitted = (TxState::Submitted, None);
    let with = |sub| (TxState::Submitted, Some(sub));
    let unaccounted = vec![Effect::LookFor, Effect::Raise("nonce_unaccounted")];
    let blocked = vec![Effect::Raise("tx_blocked")];
    for (class, stands, effects, plan) in [
        (Accepted, tracking, vec![], Some(INTERVAL)),
        (Known, tracking, vec![], Some(INTERVAL)),
        (NonceTooLow, submitted, vec![Effect::Receipts], Some(INTERVAL)),
        (Replacement, submitted, unaccounted, Some(INTERVAL)),
        (NonceTooHigh, submitted, vec![Effect::Gap], QUICK),
        (PoolFull, submitted, vec![], QUICK),
        (
            Funds,
            with(SubState::WaitingFunds),
            vec![Effect::Raise("signer_funds_low")],
            Some(INTERVAL),
        ),
        (FeeCap, with(SubState::Blocked), blocked.clone(), Some(INTERVAL)),
        (Invalid, with(SubState::Blocked), blocked, Some(INTERVAL)),
        (Unknown, submitted, vec![], QUICK),
    ] {
        let mut row = Row::submitted();
        row.answer(1, class);
        assert_eq!(row.effects, effects, "{class:?}");
        assert_eq!((row.stands(), row.tx.resubmit_in), (stands, plan), "{class:?}");
        assert_eq!(row.tx.attempts[0].class, Some(class));
        assert_eq!(row.tx.attempts[0].was_in_pool, class.is_in_pool());
        row.answer(1, class);
        let raised = row.effects.contains(&Effect::Raise("tx_blocked"));
        assert!(!raised, "an alert is raised once");
    }
    let mut row = Row::submitted();
    row.refuse(1);
    assert_eq!(row.signs(), [AttemptKind::Bump], "now");
    let mut row = Row::submitted();
    row.answer(1, InvalidGas);
    assert!(matches!(row.effects[..], [Effect::Sign { kind: AttemptKind::Bump, gas: 75_000, .. }]));
    row.sign();
    row.answer(2, InvalidGas);
    assert_eq!(row.stands(), with(SubState::Blocked), "one more attempt, not two");
}

#[test]
fn each_class_of_the_table_for_a_row_that_a_pool_had() {
    let pending = (TxState::Tracking, Some(SubState::Pending));
    for class in SendClass::ALL {
        let mut row = Row::tracking();
        row.answer(1, class);
        let effects = match class {
            NonceTooLow => vec![Effect::Receipts],
            NonceTooHigh => vec![Effect::Gap],
            // Never after an earlier ACCEPTED or KNOWN of that nonce.
            _ => vec![],
        };
        assert_eq!((row.stands(), &row.effects), (pending, &effects), "{class:?}");
        let plan = if class == Underpriced { Duration::ZERO } else { INTERVAL };
        assert_eq!(row.tx.resubmit_in, Some(plan), "{class:?}");
        assert!(row.tx.attempts[0].was_in_pool);
    }
    // Also of another attempt: the pool had the first one.
    let mut row = Row::tracking();
    row.refuse(1);
    row.sign();
    row.answer(2, Invalid);
    assert_eq!((row.stands(), row.effects.len()), (pending, 0));
    row.answer(2, Replacement);
    assert_eq!((row.stands(), row.effects.len()), (pending, 0), "the pool has ours");
}

#[test]
fn no_answer_changes_a_mined_or_ended_row() {
    for class in SendClass::ALL {
        let mut row = Row::mined(1, Proof::Paid);
        row.answer(1, class);
        assert_eq!((row.stands().1, row.effects.len()), (Some(SubState::Mined), 0), "{class:?}");
        for mut row in [Row::confirmed(), Row::failed()] {
            row.answer(1, class);
            assert!(!row.is_moved);
        }
    }
}

#[test]
fn nonce_too_low_is_neither_success_nor_an_end() {
    for mut row in [Row::submitted(), Row::tracking()] {
        let state = row.tx.state;
        for _ in 0..50 {
            row.answer(1, NonceTooLow);
            assert_eq!((row.tx.state, &row.effects[..]), (state, &[Effect::Receipts][..]));
            row.hand(TxFact::Due { is_lowest: true });
            assert_eq!(row.signs(), [], "no price helps");
        }
        assert_eq!(row.tx.code, None);
    }
}

#[test]
fn the_best_of_several_endpoints_counts_and_a_refusal_if_all_say_so() {
    let answered = |classes: &[SendClass]| {
        let mut row = Row::submitted();
        row.hand(TxFact::Answered { attempt: 1, answers: said(classes) });
        row
    };
    assert_eq!(answered(&[Invalid, Accepted]).tx.state, TxState::Tracking);
    assert_eq!(answered(&[NonceTooLow, Known]).tx.state, TxState::Tracking);
    assert_eq!(answered(&[Unknown, NonceTooLow]).effects, [Effect::Receipts]);
    assert_eq!(answered(&[Invalid, Funds]).stands(), (TxState::Submitted, None));
    assert_eq!(answered(&[Funds, Unknown]).stands().1, Some(SubState::WaitingFunds));
    let unheard = answered(&[]);
    assert_eq!(unheard.tx.attempts[0].class, None);
    assert_eq!((unheard.stands(), unheard.tx.resubmit_in), ((TxState::Submitted, None), QUICK));
}

#[test]
fn bytes_that_no_endpoint_has_are_sent_again_for_ever_with_back_off() {
    let mut row = Row::submitted();
    row.rules.is_resubmitted = false;
    let mut plans = Vec::new();
    for _ in 0..8 {
        row.answer(1, Unknown);
        plans.push(row.tx.resubmit_in.expect("planned").as_millis());
        row.hand(TxFact::Due { is_lowest: true });
        assert_eq!((row.sends(), row.tx.resubmit_in), (vec![1], Some(INTERVAL)));
    }
    assert_eq!(plans, [3_750, 7_500, 15_000, 30_000, 60_000, 60_000, 60_000, 60_000]);
    assert_eq!(row.stands(), (TxState::Submitted, None));
    row.hand(TxFact::Turn);
    assert_eq!(row.sends(), [1], "a new owner sends the same bytes");
}

/// Story: each fill of a nonce that another wallet has in a pool raised an alert of a foreign use.
#[test]
fn a_replacement_of_a_fill_is_no_news() {
    let mut row = Row::allocated();
    (row.tx.new.request_id, row.tx.wish) = ("fill/3".to_owned(), Wish::Fill);
    row.hand(TxFact::Turn);
    row.sign();
    assert_eq!(row.answer(1, Replacement), [Effect::LookFor]);
}

/// Story: a refused price waited in memory for its bump, and a later owner did not know of it.
#[test]
fn the_bump_of_a_refused_price_is_planned_in_the_row() {
    let mut row = Row::submitted();
    row.answer(1, Underpriced);
    assert_eq!(
        (row.tx.attempts[0].class, row.tx.resubmit_in),
        (Some(Underpriced), Some(Duration::ZERO))
    );
    row.rules.market = Some(GasMarket { base_fee: 20 * GWEI, tip: GWEI });
    row.hand(TxFact::Due { is_lowest: false });
    row.sign();
    assert_eq!(row.tx.attempts[1].price.max_fee, 41 * GWEI, "the market of after the refusal");
}

#[test]
fn found_by_hash_is_an_acknowledgement() {
    let mut row = Row::submitted();
    row.answer(1, Replacement);
    row.hand(TxFact::Found { attempt: 1 });
    assert_eq!(row.stands(), (TxState::Tracking, Some(SubState::Pending)));
    row.hand(TxFact::Found { attempt: 1 });
    assert!(!row.is_moved);
    row.hand(TxFact::Found { attempt: 9 });
    assert!(!row.is_moved);
}

#[test]
fn a_row_without_funds_is_sent_again_when_the_balance_suffices() {
    let mut row = Row::submitted();
    row.answer(1, Funds);
    row.hand(TxFact::Turn);
    assert_eq!(row.sends(), [1]);
    row.answer(1, Accepted);
    assert_eq!(row.stands(), (TxState::Tracking, Some(SubState::Pending)));
}
