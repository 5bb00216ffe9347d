use std::time::Duration;

use alloy_primitives::{Address, B256, Bytes, U256};
use chain::decide::{Effect, TxFact, TxRules};
use chain::fee::{GasCaps, GasMarket, GasPrice};
use chain::payload::TxPayload;
use chain::state::{AttemptKind, TxState};
use chain::tx::{Attempt, NewTx, Proof, SubState, Tx, TxId, TxReceipt};
use tokio::time::Instant;
use uuid::Uuid;

use super::{Book, Place, Times, back_off};
use crate::store::Suspension;

const MINUTE: Duration = Duration::from_secs(60);

fn id(nonce: u64) -> TxId {
    TxId(Uuid::from_u128(u128::from(nonce) + 1))
}

fn tx(nonce: u64, state: TxState) -> Tx {
    let to = Address::repeat_byte(7);
    let payload =
        TxPayload { to, value: U256::from(1), data: Bytes::new(), token: None, gas: None };
    let new = NewTx {
        signer: Address::repeat_byte(1),
        request_id: nonce.to_string(),
        business_key: None,
        payload,
        gas: Some(21_000),
        deadline_ms: None,
    };
    let number = (state != TxState::Created).then_some(nonce);
    let mut tx = Tx { state, ..Tx::stored(id(nonce), new, number) };
    if matches!(state, TxState::Submitted | TxState::Tracking) {
        let hash = B256::left_padding_from(&nonce.to_be_bytes());
        let price = GasPrice { max_fee: 10, max_tip: 1 };
        let (kind, raw, gas) = (AttemptKind::Pay, Bytes::new(), 21_000);
        let (number, class, was_in_pool) = (1, None, true);
        tx.attempts.push(Attempt { number, kind, raw, hash, price, gas, class, was_in_pool });
        tx.resubmit_in = Some(MINUTE);
        tx.sent_since = Some(Duration::ZERO);
    }
    tx
}

fn mined(nonce: u64) -> Tx {
    let mut tx = tx(nonce, TxState::Tracking);
    tx.receipt = Some(TxReceipt {
        attempt: 1,
        hash: tx.attempts[0].hash,
        block_number: 5,
        block_hash: B256::ZERO,
        proof: Proof::Paid,
        gas_used: 21_000,
        gas_price: 1,
    });
    tx
}

fn book(txs: impl IntoIterator<Item = Tx>) -> Book {
    let mut book = Book::new(Times { stale: MINUTE, fill_after: 5 * MINUTE });
    for tx in txs {
        book.put(tx, Instant::now());
    }
    book
}

fn rules() -> TxRules {
    TxRules {
        is_resubmitted: true,
        interval: MINUTE,
        bump_after: 2,
        attempts_max: 10,
        bump_percent: 12,
        stale: MINUTE,
        required: 3,
        is_watched: false,
        caps: GasCaps { max_fee: 1_000, tip: 10, cost: u128::MAX },
        market: Some(GasMarket { base_fee: 1, tip: 1 }),
        is_suspended: false,
    }
}

#[tokio::test(start_paused = true)]
async fn turns_are_given_ascending_and_no_more_than_the_window_has_room_for() {
    let flying = (3..5).map(|nonce| tx(nonce, TxState::Tracking));
    let mut book = book(flying.chain((5..10).map(|nonce| tx(nonce, TxState::Allocated))));
    assert_eq!(book.cursor, 10);
    assert_eq!(book.turns(4), [id(5), id(6)]);
    assert_eq!(book.turns(0).len(), 5, "no window");
    book.change(id(5), |row| row.has_turn = true);
    assert_eq!(book.turns(4), [id(6)]);
    book.mined = 4;
    assert_eq!(book.turns(4), [id(6), id(7)], "nonce 3 is mined");
    assert_eq!(book.lowest_unmined(), Some(4));

    book.suspensions.push(Suspension { reason: "halt".into(), actor: "a".into() });
    assert!(book.turns(4).is_empty());
}

#[tokio::test(start_paused = true)]
async fn receipts_are_asked_for_below_the_mined_count_only() {
    let rows = (0..6).map(|nonce| if nonce == 1 { mined(1) } else { tx(nonce, TxState::Tracking) });
    let mut book = book(rows);
    assert!(book.unreceipted().is_empty());
    book.mined = 4;
    assert_eq!(book.unreceipted(), [id(0), id(2), id(3)]);
    assert_eq!(book.mined_rows(), [id(1)]);
    assert!(book.has_unmined());
    book.mined = 6;
    assert!(!book.has_unmined());
}

#[tokio::test(start_paused = true)]
async fn rows_that_an_endpoint_lacks_are_named_once_in_each_pause() {
    let mut book = book((2..7).map(|nonce| tx(nonce, TxState::Tracking)));
    (book.mined, book.cursor) = (2, 7);
    let sent = Instant::now();
    for nonce in 2..6 {
        book.change(id(nonce), |row| row.sent = Some(sent));
    }
    book.change(id(6), |row| row.sent = None);
    assert!(book.missing(4, sent, MINUTE).is_empty(), "sent when the pool was asked");
    let asked = sent + Duration::from_secs(1);
    assert_eq!(book.missing(4, asked, MINUTE), [id(4), id(5)], "6 was not sent");
    assert_eq!(book.missing(0, asked, MINUTE).len(), 4, "an old count of mined ones");
    assert!(book.missing(7, asked, MINUTE).is_empty());
    book.change(id(4), |row| row.missed = Some(asked));
    book.change(id(5), |row| row.missed = Some(asked));
    assert!(book.missing(4, asked, MINUTE).is_empty());
    assert_eq!(book.missing(4, asked + MINUTE, MINUTE), [id(4), id(5)]);
    // The first nonce that the pool lacks is not sent yet: later ones cannot be taken.
    book.put(tx(1, TxState::Allocated), sent);
    book.mined = 1;
    assert!(book.missing(1, asked + MINUTE, MINUTE).is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_time_that_has_come_is_named_once() {
    let now = Instant::now();
    let mut book = book([tx(0, TxState::Tracking)]);
    assert_eq!(book.next_wake(), Some(now + MINUTE));
    assert!(book.woken(now).is_empty());
    let later = now + MINUTE;
    assert_eq!(book.woken(later), [id(0)]);
    let wants = book.take_wants(id(0), later);
    assert!(wants.resend && !wants.fill && !wants.turn && !wants.prepare);
    assert_eq!(book.next_wake(), None, "until its step is written");

    let mut blocked = tx(0, TxState::Tracking);
    (blocked.sub, blocked.resubmit_in, blocked.version) = (Some(SubState::Blocked), None, 2);
    book.put(blocked, later);
    assert_eq!(book.next_wake(), Some(later + 5 * MINUTE));
    assert!(book.take_wants(id(0), later + 5 * MINUTE).fill);
    assert_eq!(book.next_wake(), None);
}

#[tokio::test(start_paused = true)]
async fn a_row_has_one_step_a_write_and_keeps_its_further_facts() {
    let mut book = book([mined(1), tx(0, TxState::Tracking)]);
    book.tell(id(1), TxFact::Unmined, None);
    book.tell(id(1), TxFact::Unmined, Some(9));
    book.tell(id(0), TxFact::Cancel, Some(4));
    book.tell(id(0), TxFact::Found { attempt: 1 }, None);
    book.tell_once(id(0), TxFact::Found { attempt: 1 });
    let plan = book.plan(&rules(), 10, Instant::now());
    assert_eq!(plan.steps.iter().map(|it| it.id).collect::<Vec<_>>(), [id(0), id(1)]);
    assert_eq!(plan.steps[0].told.command, Some(4));
    assert!(matches!(plan.steps[0].step.effects[..], [Effect::Sign { .. }]));
    assert!(!book.is_ready(), "both are being written");
    assert!(book.plan(&rules(), 10, Instant::now()).steps.is_empty());

    // Its row is written: now the command finds nothing to do, and is over.
    let written = plan.steps[1].step.tx.clone();
    book.change(id(1), |row| row.is_writing = false);
    book.put(written, Instant::now());
    let plan = book.plan(&rules(), 10, Instant::now());
    assert!(plan.steps.is_empty());
    assert_eq!(plan.over, [(9, Some("nothing to do in its state"))]);
}

#[tokio::test(start_paused = true)]
async fn an_older_row_changes_nothing_and_a_terminal_one_is_watched() {
    let mut newer = mined(3);
    newer.version = 7;
    let mut book = book([newer.clone(), tx(3, TxState::Tracking)]);
    assert_eq!(book.row(id(3)).expect("kept").tx, newer);
    assert_eq!(book.row(id(3)).expect("kept").place(), Place::Mined);
    assert_eq!(book.open(), 1);
    (newer.state, newer.version) = (TxState::Confirmed, 8);
    book.put(newer, Instant::now());
    assert_eq!((book.open(), book.watched()), (0, vec![id(3)]));
    book.forget(id(3));
    assert!(!book.has(id(3)) && book.ids().is_empty());
}

#[test]
fn pauses_double_up_to_a_bound() {
    assert_eq!(back_off(0), Duration::from_millis(100));
    assert_eq!(back_off(3), Duration::from_millis(800));
    assert_eq!(back_off(99), Duration::from_secs(5));
}
