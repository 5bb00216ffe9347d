//! Receipts, reorganizations and ends.

use std::slice::from_ref;

use super::*;

/// Two attempts in a pool.
fn bumped() -> Row {
    let mut row = Row::tracking();
    row.refuse(1);
    row.sign();
    row.answer(2, SendClass::Accepted);
    row
}

#[test]
fn a_receipt_of_any_attempt_counts() {
    for attempt in [1, 2] {
        let mut row = bumped();
        row.mine(attempt, 1, Proof::Paid);
        assert_eq!(row.tx.resubmit_in, None, "resends stop");
        row.confirm(1, 2);
        row.hand(TxFact::Final);
        assert_eq!(row.ends(), (TxState::Confirmed, None));
        assert_eq!(row.tx.cost, Some(U256::from(63_000)));
        assert!(row.tx.is_final);
    }
}

#[test]
fn a_watched_end_is_final_once_the_chain_is_past_it() {
    for (proof, end) in [
        (Proof::Paid, (TxState::Confirmed, None)),
        (Proof::Reverted, (TxState::Failed, Some(FailCode::Reverted))),
    ] {
        let mut row = Row::mined(1, proof);
        row.rules.is_watched = true;
        row.confirm(1, 2);
        row.hand(TxFact::Past);
        assert!(!row.is_moved, "only an end is watched");
        row.hand(TxFact::Final);
        assert_eq!((row.ends(), row.tx.is_final), (end, false));
        row.hand(TxFact::Past);
        assert_eq!((row.ends(), row.tx.is_final), (end, true));
        row.hand(TxFact::Past);
        assert!(!row.is_moved, "once");
    }
}

#[test]
fn a_receipt_that_is_not_of_an_attempt_is_not_used() {
    let row = bumped();
    let receipt = row.receipt(1, 1, Proof::Paid);
    for lie in [
        TxReceipt { hash: B256::repeat_byte(5), ..receipt },
        TxReceipt { attempt: 3, ..receipt },
        TxReceipt { attempt: 2, ..receipt },
        TxReceipt { proof: Proof::Nothing, ..receipt },
    ] {
        let mut row = row.clone();
        row.hand(TxFact::Mined(lie));
        assert!(!row.is_moved, "{lie:?}");
    }
}

#[test]
fn it_ends_at_the_last_confirmation_and_never_before() {
    let mut row = Row::mined(1, Proof::Paid);
    row.hand(TxFact::Final);
    assert!(!row.is_moved, "no list yet");
    row.confirm(1, 0);
    for number in [101, 102] {
        row.hand(TxFact::Final);
        assert!(!row.is_moved, "block {number} is missing");
        let blocks = vec![block(1, number)];
        row.hand(TxFact::Confirmed(Confirmed { new_fork: false, blocks }));
        assert!(row.is_moved);
    }
    row.hand(TxFact::Final);
    assert_eq!(row.ends(), (TxState::Confirmed, None));
    assert_eq!((row.tx.fork, row.tx.told.len()), (0, 3));
}

#[test]
fn confirmations_that_do_not_link_to_the_receipt_are_not_used() {
    let mut row = Row::mined(1, Proof::Paid);
    row.confirm(1, 1);
    let told = row.tx.told.clone();
    for (new_fork, blocks) in [
        (false, vec![]),
        (false, vec![block(1, 103)]),
        (false, vec![block(2, 102)]),
        (true, vec![]),
        (true, vec![block(2, 100), block(2, 101)]),
        (true, vec![block(1, 101), block(1, 102)]),
        (true, vec![block(1, 100), block(1, 102)]),
        (true, told.clone()),
    ] {
        row.hand(TxFact::Confirmed(Confirmed { new_fork, blocks }));
        assert!(!row.is_moved);
        assert_eq!(row.tx.told, told);
    }
    // A block on top was replaced: the whole list, in the next fork.
    let blocks = vec![block(1, 100), BlockRef { hash: B256::repeat_byte(9), ..block(1, 101) }];
    row.hand(TxFact::Confirmed(Confirmed { new_fork: true, blocks }));
    assert_eq!((row.tx.fork, row.tx.told.len()), (1, 2));
}

#[test]
fn a_receipt_that_is_gone_is_sent_again_and_its_list_is_replaced() {
    let mut row = bumped();
    row.mine(1, 1, Proof::Paid);
    row.confirm(1, 1);
    row.hand(TxFact::Unmined);
    assert_eq!(row.stands(), (TxState::Tracking, Some(SubState::Reorged)));
    assert_eq!(row.sends(), [1, 2], "the bytes that were mined, and the newest");
    assert_eq!((row.tx.receipt, row.tx.fork, row.tx.told.len()), (None, 1, 0));
    assert_eq!(row.tx.resubmit_in, Some(INTERVAL));
    row.hand(TxFact::Unmined);
    assert!(!row.is_moved);
    row.mine(2, 2, Proof::Paid);
    row.confirm(2, 2);
    assert_eq!((row.tx.fork, row.tx.told.len()), (1, 3), "the whole list, under the next number");
    row.hand(TxFact::Final);
    assert_eq!(row.ends(), (TxState::Confirmed, None));
}

#[test]
fn a_receipt_in_another_block_needs_all_confirmations_again() {
    let mut row = Row::mined(1, Proof::Paid);
    row.confirm(1, 2);
    row.mine(1, 2, Proof::Paid);
    assert_eq!((row.tx.fork, row.tx.told.len()), (1, 0));
    row.hand(TxFact::Final);
    assert!(!row.is_moved);
    row.confirm(2, 2);
    row.hand(TxFact::Final);
    assert_eq!(row.ends(), (TxState::Confirmed, None));
}

#[test]
fn a_failed_call_is_an_end_only_when_it_is_final() {
    let mut row = Row::mined(1, Proof::Reverted);
    row.confirm(1, 1);
    let mut moved = row.clone();
    moved.mine(1, 2, Proof::Paid);
    moved.confirm(2, 2);
    moved.hand(TxFact::Final);
    assert_eq!(moved.ends(), (TxState::Confirmed, None), "a fork made it a success");
    row.confirm(1, 2);
    row.hand(TxFact::Final);
    assert_eq!(row.ends(), (TxState::Failed, Some(FailCode::Reverted)));
    assert_eq!(row.tx.cost, Some(U256::from(63_000)));
}

#[test]
fn a_success_without_its_proof_is_ended_by_operators_alone() {
    let mut row = Row::mined(1, Proof::Unproven);
    row.hand(TxFact::Resolve { is_paid: true });
    assert!(!row.is_moved, "not final");
    row.confirm(1, 2);
    assert_eq!(row.hand(TxFact::Final), [Effect::Raise("tx_unproven")]);
    assert_eq!(row.stands(), (TxState::Tracking, Some(SubState::Unproven)));
    for fact in [TxFact::Final, TxFact::Cancel, TxFact::Fill, TxFact::Due { is_lowest: true }] {
        row.hand(fact);
        assert_eq!(row.stands(), (TxState::Tracking, Some(SubState::Unproven)));
    }
    for (is_paid, end) in
        [(true, (TxState::Confirmed, None)), (false, (TxState::Failed, Some(FailCode::Unproven)))]
    {
        let mut row = row.clone();
        row.hand(TxFact::Resolve { is_paid });
        assert_eq!((row.ends(), row.tx.is_final), (end, true));
    }
    row.hand(TxFact::Unmined);
    row.hand(TxFact::Resolve { is_paid: true });
    assert!(!row.is_moved, "it is not mined any more");
}

#[test]
fn a_nonce_that_is_mined_by_an_unknown_one_is_looked_for_and_ends_by_a_foreign_one() {
    for mut row in [Row::submitted(), Row::tracking()] {
        let state = row.tx.state;
        let found = [Effect::Raise("nonce_unaccounted"), Effect::LookFor];
        assert_eq!(row.hand(TxFact::Unaccounted), found);
        assert_eq!(row.stands(), (state, Some(SubState::Unaccounted)));
        assert_eq!(row.hand(TxFact::Unaccounted), [Effect::LookFor]);
        row.answer(1, SendClass::NonceTooLow);
        row.hand(TxFact::Due { is_lowest: true });
        assert_eq!(row.stands(), (state, Some(SubState::Unaccounted)), "it stays");
        let mut ours = row.clone();
        ours.hand(TxFact::Taken(ours.tx.attempts[0].hash));
        assert!(!ours.is_moved, "one of ours");
        ours.mine(1, 1, Proof::Paid);
        row.hand(TxFact::Taken(B256::repeat_byte(8)));
        assert_eq!(row.effects, [Effect::Suspend("NONCE_TAKEN")]);
        assert_eq!(row.ends(), (TxState::Failed, Some(FailCode::NonceTaken)));
        row.hand(TxFact::Mined(row.receipt(1, 1, Proof::Paid)));
        assert_eq!(row.effects, [Effect::Raise("reorg_after_final")], "ours, behind the end");
    }
    let mut row = Row::tracking();
    row.hand(TxFact::Unaccounted);
    row.hand(TxFact::Unspent);
    assert_eq!(row.stands(), (TxState::Tracking, Some(SubState::Pending)), "it was too high");
    row.hand(TxFact::Unspent);
    assert!(!row.is_moved);
    // A cancel that was signed meanwhile does not hide it.
    let mut row = Row::tracking();
    row.hand(TxFact::Cancel);
    let cancel = row.signature().expect("signs");
    row.hand(TxFact::Unaccounted);
    row.hand(TxFact::Signed(cancel));
    assert_eq!(row.stands(), (TxState::Tracking, Some(SubState::Unaccounted)));
    let mut row = Row::mined(1, Proof::Paid);
    row.hand(TxFact::Taken(B256::repeat_byte(8)));
    assert!(!row.is_moved, "the views disagree");
}

#[test]
fn a_payment_that_an_older_copy_lacks_is_an_attempt_and_ends_its_row_as_paid() {
    for mut row in [Row::submitted(), Row::tracking()] {
        row.rules.is_suspended = true;
        row.hand(TxFact::Unaccounted);
        let mut found = row.tx.attempts[0].clone();
        (found.hash, found.kind) = (B256::repeat_byte(8), AttemptKind::Bump);
        let Attempt { kind, raw, hash, price, gas, .. } = found;
        let found = Signed { kind, raw, hash, price, gas };
        let effects = [Effect::Raise("tx_attempt_forgotten"), Effect::Receipts];
        assert_eq!(row.hand(TxFact::Forgotten(found.clone())), effects);
        assert_eq!((row.tx.state, row.tx.attempts.len()), (TxState::Tracking, 2));
        row.hand(TxFact::Forgotten(found));
        assert!(!row.is_moved, "it is one of ours now");
        row.mine(2, 1, Proof::Paid);
        row.confirm(1, 2);
        row.hand(TxFact::Final);
        assert_eq!(row.ends(), (TxState::Confirmed, None));
    }
}

#[test]
fn behind_its_end_a_row_stays_and_no_payment_of_a_failed_one_is_sent() {
    let raise = Effect::Raise("reorg_after_final");
    let mut row = Row::confirmed();
    assert_eq!(row.hand(TxFact::Unmined), [raise.clone(), Effect::Send { attempt: 1 }]);
    assert_eq!(row.tx.state, TxState::Confirmed);
    let mut row = Row::failed();
    assert_eq!(row.hand(TxFact::Unmined), from_ref(&raise), "its money may be given back");
    let mut row = Row::tracking();
    row.hand(TxFact::Cancel);
    row.sign();
    row.mine(2, 1, Proof::Nothing);
    row.confirm(1, 2);
    row.hand(TxFact::Final);
    assert_eq!(row.ends(), (TxState::Failed, Some(FailCode::Cancelled)));
    assert_eq!(row.hand(TxFact::Unmined), [raise.clone(), Effect::Send { attempt: 2 }]);
    row.hand(TxFact::Mined(row.receipt(1, 2, Proof::Paid)));
    assert_eq!(row.effects, [raise]);
    row.hand(TxFact::Mined(row.receipt(2, 2, Proof::Nothing)));
    assert!(!row.is_moved, "its cancel in another block");
}
