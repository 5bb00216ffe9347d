//! The table of states of section 6, pair by pair, and the wishes at each state.

use std::slice::from_ref;

use super::*;

/// One fact of each kind that fits to the row as well as one can.
fn facts(row: &Row) -> Vec<(&'static str, TxFact)> {
    let mut signing = row.clone();
    signing.hand(TxFact::Turn);
    let signed = signing.signature().unwrap_or(Signed {
        kind: AttemptKind::Bump,
        raw: Bytes::from_static(&[9]),
        hash: B256::repeat_byte(9),
        price: GasPrice { max_fee: 10 * GWEI, max_tip: 5 * GWEI },
        gas: 50_000,
    });
    let foreign = Signed { hash: B256::repeat_byte(7), ..signed.clone() };
    let blocks: Vec<BlockRef> = (100..103).map(|number| block(1, number)).collect();
    let funds = TxFact::Delayed(SubState::WaitingFunds);
    vec![
        ("delayed", funds),
        ("refused", TxFact::Refused("TX_WOULD_REVERT".to_owned())),
        ("expired", TxFact::Expired),
        ("turn", TxFact::Turn),
        ("signed", TxFact::Signed(signed)),
        ("unsigned", TxFact::Unsigned),
        ("accepted", TxFact::Answered { attempt: 1, answers: said(&[SendClass::Accepted]) }),
        ("low", TxFact::Answered { attempt: 1, answers: said(&[SendClass::NonceTooLow]) }),
        ("invalid", TxFact::Answered { attempt: 1, answers: said(&[SendClass::Invalid]) }),
        ("unheard", TxFact::Answered { attempt: 1, answers: Vec::new() }),
        ("found", TxFact::Found { attempt: 1 }),
        ("missing", TxFact::Missing),
        ("mined", TxFact::Mined(row.receipt(1, 1, Proof::Paid))),
        ("unmined", TxFact::Unmined),
        ("confirmed", TxFact::Confirmed(Confirmed { new_fork: true, blocks })),
        ("final", TxFact::Final),
        ("past", TxFact::Past),
        ("unaccounted", TxFact::Unaccounted),
        ("taken", TxFact::Taken(B256::repeat_byte(8))),
        ("forgotten", TxFact::Forgotten(foreign)),
        ("due", TxFact::Due { is_lowest: true }),
        ("cancel", TxFact::Cancel),
        ("fill", TxFact::Fill),
        ("resubmit", TxFact::Resubmit),
        ("resolve", TxFact::Resolve { is_paid: true }),
    ]
}

/// A name, a row, and the facts that move it, each with the state that it leads to.
type Case<'a> = (&'a str, Row, &'a [(&'a str, TxState)]);

#[test]
fn each_fact_leads_from_each_state_where_section_6_says() {
    use TxState::{Allocated, Confirmed, Created, Failed, Submitted, Tracking};
    let mut deep = Row::mined(1, Proof::Paid);
    deep.confirm(1, 2);
    let mut unproven = Row::mined(1, Proof::Unproven);
    unproven.confirm(1, 2);
    unproven.hand(TxFact::Final);
    let rows: [Case<'_>; 9] = [
        ("created", Row::new(), &[("refused", Failed), ("expired", Failed), ("cancel", Failed)]),
        ("allocated", Row::allocated(), &[("signed", Submitted)]),
        (
            "submitted",
            Row::submitted(),
            &[
                ("accepted", Tracking),
                ("found", Tracking),
                ("mined", Tracking),
                ("taken", Failed),
                ("forgotten", Tracking),
            ],
        ),
        ("pending", Row::tracking(), &[("taken", Failed)]),
        ("mined", Row::mined(1, Proof::Paid), &[]),
        ("deep", deep, &[("final", Confirmed)]),
        ("unproven", unproven, &[("resolve", Confirmed)]),
        ("confirmed", Row::confirmed(), &[]),
        ("failed", Row::failed(), &[]),
    ];
    let states = rows.iter().map(|(_, row, _)| row.tx.state).collect::<Vec<_>>();
    assert_eq!(
        states,
        [Created, Allocated, Submitted, Tracking, Tracking, Tracking, Tracking, Confirmed, Failed]
    );
    for (name, row, moves) in rows {
        for (fact_name, fact) in facts(&row) {
            let mut moved = row.clone();
            moved.hand(fact);
            let wanted = moves.iter().find(|(fact, _)| *fact == fact_name);
            let wanted = wanted.map_or(row.tx.state, |(_, state)| *state);
            assert_eq!(moved.tx.state, wanted, "{name} {fact_name}");
        }
    }
}

#[test]
fn a_fact_that_changes_nothing_is_no_step() {
    for (row, names) in [
        (
            Row::new(),
            "turn signed unsigned accepted found missing mined unmined confirmed final \
                      unaccounted taken forgotten due fill resubmit resolve",
        ),
        (
            Row::allocated(),
            "refused expired accepted low invalid unheard found missing mined \
                            unmined confirmed final unaccounted taken forgotten resolve",
        ),
        (
            Row::tracking(),
            "delayed refused expired turn unsigned unheard found unmined confirmed \
                           final resolve",
        ),
        (
            Row::mined(1, Proof::Paid),
            "delayed refused turn signed unsigned unheard found missing \
                                      mined final unaccounted taken forgotten resubmit resolve",
        ),
        (
            Row::confirmed(),
            "delayed refused expired turn signed unsigned accepted low found \
                            missing mined confirmed final unaccounted taken forgotten due cancel fill \
                            resubmit resolve",
        ),
        (
            Row::failed(),
            "delayed refused expired turn signed unsigned accepted low found missing \
                         confirmed final unaccounted taken forgotten due cancel fill resubmit resolve",
        ),
    ] {
        for (name, fact) in facts(&row) {
            if names.split_whitespace().any(|listed| listed == name) {
                let mut moved = row.clone();
                moved.hand(fact);
                assert!(!moved.is_moved, "{:?} {name}: {:?}", row.tx.state, moved.effects);
            }
        }
    }
}

#[test]
fn without_a_nonce_it_waits_or_ends() {
    let mut row = Row::new();
    row.hand(TxFact::Delayed(SubState::Suspended));
    assert_eq!(row.stands(), (TxState::Created, Some(SubState::Suspended)));
    row.hand(TxFact::Delayed(SubState::Suspended));
    assert!(!row.is_moved);
    let mut refused = row.clone();
    refused.hand(TxFact::Refused("SIGNER_POLICY".to_owned()));
    assert_eq!(refused.ends(), (TxState::Failed, Some(FailCode::Refused)));
    assert_eq!(refused.tx.refusal.as_deref(), Some("SIGNER_POLICY"));
    let mut late = row.clone();
    late.hand(TxFact::Expired);
    assert_eq!(late.ends(), (TxState::Failed, Some(FailCode::Expired)));
    row.hand(TxFact::Cancel);
    assert_eq!(row.ends(), (TxState::Failed, Some(FailCode::Refused)));
    assert!(row.tx.is_final);
}

#[test]
fn an_allocated_row_signs_its_payment_and_asks_again_if_the_signer_is_away() {
    let mut row = Row::allocated();
    row.hand(TxFact::Delayed(SubState::WaitingTurn));
    row.hand(TxFact::Turn);
    let price = GasPrice { max_fee: 3 * GWEI, max_tip: GWEI };
    let sign = Effect::Sign { kind: AttemptKind::Pay, price, gas: 50_000 };
    assert_eq!(row.effects, from_ref(&sign));
    row.hand(TxFact::Unsigned);
    assert_eq!(row.tx.resubmit_in, Some(INTERVAL));
    row.hand(TxFact::Unsigned);
    assert!(!row.is_moved);
    row.hand(TxFact::Due { is_lowest: false });
    assert_eq!(row.effects, [sign]);
    let signed = row.signature().expect("signs");
    assert_eq!(row.sign(), [Effect::Send { attempt: 1 }]);
    assert_eq!(row.stands(), (TxState::Submitted, None));
    row.hand(TxFact::Signed(signed));
    assert!(!row.is_moved, "the late twin of a signature is not stored");
}

#[test]
fn a_cancel_at_each_state() {
    // ALLOCATED: its nonce is filled, and a payment that was signed meanwhile is not stored.
    let mut row = Row::allocated();
    row.hand(TxFact::Turn);
    let payment = row.signature().expect("signs");
    row.hand(TxFact::Cancel);
    assert_eq!(row.signs(), [AttemptKind::Fill]);
    let fill = row.signature().expect("signs");
    row.hand(TxFact::Signed(payment));
    assert!(!row.is_moved);
    row.hand(TxFact::Signed(fill));
    assert_eq!(row.tx.state, TxState::Submitted);

    // Later: one step above the highest, and from then on only the cancel is sent.
    for mut row in [Row::submitted(), Row::tracking()] {
        row.hand(TxFact::Cancel);
        let price = GasPrice { max_fee: 3_360_000_000, max_tip: 1_120_000_000 };
        let sign = Effect::Sign { kind: AttemptKind::Cancel, price, gas: 21_000 };
        assert_eq!(row.effects, [sign]);
        assert_eq!(row.tx.sub, Some(SubState::Cancelling));
        let lost = row.clone();
        row.sign();
        assert_eq!(row.sends(), [2]);
        for fact in [TxFact::Due { is_lowest: false }, TxFact::Missing, TxFact::Resubmit] {
            row.hand(fact);
            assert_eq!(row.sends(), [2]);
        }
        row.hand(TxFact::Cancel);
        assert!(!row.is_moved, "it is stored already");
        // Of a suspended signer only an operator raises its price, by the same command.
        let mut raised = row.clone();
        raised.rules.is_suspended = true;
        raised.hand(TxFact::Due { is_lowest: true });
        assert_eq!(raised.signs(), []);
        raised.hand(TxFact::Cancel);
        assert_eq!(raised.signs(), [AttemptKind::Cancel]);
        // The signature was lost: no payment is sent, and the cancel is signed again.
        for fact in [TxFact::Cancel, TxFact::Turn, TxFact::Missing, TxFact::Resubmit] {
            let mut row = lost.clone();
            row.hand(fact);
            assert_eq!((row.signs(), row.sends()), (vec![AttemptKind::Cancel], vec![]));
        }
    }

    // Mined: the wish waits. If the block goes, the cancel is signed, and the payment is not sent.
    let mut row = Row::mined(1, Proof::Paid);
    row.hand(TxFact::Cancel);
    assert_eq!((row.signs(), row.stands().1), (vec![], Some(SubState::Mined)));
    row.hand(TxFact::Unmined);
    assert_eq!((row.signs(), row.sends()), (vec![AttemptKind::Cancel], vec![]));
}

#[test]
fn the_original_may_win_over_its_cancel_and_a_mined_cancel_ends_nothing() {
    let mut row = Row::tracking();
    row.hand(TxFact::Cancel);
    row.sign();
    row.answer(2, SendClass::Accepted);
    let mut lost = row.clone();
    lost.mine(1, 1, Proof::Paid);
    lost.confirm(1, 2);
    lost.hand(TxFact::Final);
    assert_eq!(lost.ends(), (TxState::Confirmed, None));

    row.mine(2, 1, Proof::Nothing);
    row.confirm(1, 1);
    row.hand(TxFact::Final);
    assert_eq!(row.stands(), (TxState::Tracking, Some(SubState::Mined)), "not deep enough");
    row.hand(TxFact::Unmined);
    assert_eq!(row.sends(), [2]);
    row.mine(1, 2, Proof::Paid);
    row.confirm(2, 2);
    row.hand(TxFact::Final);
    assert_eq!(row.ends(), (TxState::Confirmed, None), "a reorganization paid it");
}

#[test]
fn a_blocked_row_is_filled() {
    let mut row = Row::submitted();
    assert_eq!(row.answer(1, SendClass::Invalid), [Effect::Raise("tx_blocked")]);
    row.hand(TxFact::Fill);
    assert_eq!(row.signs(), [AttemptKind::Fill]);
    row.sign();
    assert_eq!(row.stands(), (TxState::Submitted, Some(SubState::Filling)));
    row.answer(2, SendClass::Accepted);
    row.hand(TxFact::Cancel);
    assert_eq!(row.tx.wish, Wish::Fill, "the first wish stays");
    row.mine(2, 1, Proof::Nothing);
    row.confirm(1, 2);
    row.hand(TxFact::Final);
    assert_eq!(row.ends(), (TxState::Failed, Some(FailCode::Filled)));
}

#[test]
fn a_suspended_signer_signs_no_payment_and_sends_what_is_stored() {
    let mut row = Row::allocated();
    row.hand(TxFact::Turn);
    let payment = row.signature().expect("signs");
    row.rules.is_suspended = true;
    row.hand(TxFact::Signed(payment));
    assert!(!row.is_moved);
    row.hand(TxFact::Turn);
    assert!(!row.is_moved);
    row.hand(TxFact::Cancel);
    assert_eq!(row.signs(), [AttemptKind::Fill], "by command");
    row.hand(TxFact::Unsigned);
    row.hand(TxFact::Turn);
    assert_eq!(row.signs(), [AttemptKind::Fill], "until it is stored");
    row.sign();
    row.answer(1, SendClass::Underpriced);
    assert_eq!(row.signs(), [], "its bump is not the operator's");
    let mut row = Row::tracking();
    row.rules.is_suspended = true;
    row.hand(TxFact::Cancel);
    row.hand(TxFact::Unsigned);
    row.hand(TxFact::Due { is_lowest: true });
    assert_eq!(row.signs(), [AttemptKind::Cancel], "until it is stored");

    let mut row = Row::tracking();
    row.rules.is_suspended = true;
    for _ in 0..9 {
        row.hand(TxFact::Due { is_lowest: true });
        assert_eq!((row.signs(), row.sends()), (vec![], vec![1]));
    }
    row.answer(1, SendClass::Underpriced);
    assert_eq!(row.signs(), []);
    row.mine(1, 1, Proof::Paid);
    row.confirm(1, 2);
    row.hand(TxFact::Final);
    assert_eq!(row.ends(), (TxState::Confirmed, None), "receipts are followed");
}
