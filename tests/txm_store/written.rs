//! The steps of rows, and the laws that PostgreSQL holds.

use std::collections::BTreeMap;
use std::time::Duration;

use alloy_primitives::{Address, B256, U256};
use chain::class::SendClass;
use chain::decide::{EndpointAnswer, TxStep};
use chain::payload::{TokenTransfer, TxPayload};
use chain::state::{AttemptKind, TxState};
use chain::tx::{Attempt, FailCode, Proof, SubState, TxReceipt};
use chain::view::{BlockRef, Confirmed};
use txm::options::SignerPolicy;
use txm::store::{Ready, StoreError, Suspension, TxStore};
use ubscore::postgres::txm::reads::TxmReads;

use super::{
    Rows, answer, created, first_attempt, name, new_row, owned, request, signer, step, written,
};
use crate::harness::block_on;

fn block(number: u64) -> BlockRef {
    let hash = |number: u64| B256::left_padding_from(&number.to_be_bytes());
    BlockRef { number, hash: hash(number), parent: hash(number - 1) }
}

/// Goal: a row comes back from each write as it was written, to its end. Method: every kind of step
/// of one payment, each compared with the row that another node reads.
#[test]
fn a_row_comes_back_as_it_was_written() {
    let rows = Rows::new();
    let (store, other) = (rows.node("a"), rows.node("b"));
    let lease = owned(&store);
    let find = || block_on(other.find(signer(1), "r1")).expect("an answer").expect("a row");
    let mut tx = created(&store, lease, "r1");
    let write = |step: TxStep| {
        let mut want = step.tx.clone();
        let row = written(&store, lease, step).expect("its version");
        // Set by the store: the time since the first send.
        want.sent_since = row.sent_since;
        assert_eq!(row, want);
        assert_eq!(find(), row);
        row
    };
    tx = write(first_attempt(&tx));
    assert_eq!(tx.sent_since, Some(Duration::ZERO), "by a clock that stands");
    let heard = step(&tx, |tx| {
        (tx.state, tx.sub) = (TxState::Tracking, Some(SubState::Pending));
        tx.attempts[0].class = Some(SendClass::Accepted);
        tx.attempts[0].was_in_pool = true;
    });
    let said = vec![answer("e1", SendClass::Accepted), answer("e2", SendClass::Unknown)];
    tx = write(TxStep { answers: Some((1, said)), ..heard });
    let receipt = TxReceipt {
        attempt: 1,
        hash: tx.attempts[0].hash,
        block_number: 7,
        block_hash: block(7).hash,
        proof: Proof::Paid,
        gas_used: 21_000,
        gas_price: u128::from(u64::MAX) * 3,
    };
    let mined = step(&tx, |tx| {
        (tx.sub, tx.receipt, tx.resubmit_in) = (Some(SubState::Mined), Some(receipt), None);
        (tx.fork, tx.told) = (1, vec![block(7), block(8)]);
    });
    let blocks = vec![block(7), block(8)];
    tx = write(TxStep { confirmed: Some(Confirmed { new_fork: true, blocks }), ..mined });
    let more = step(&tx, |tx| tx.told.push(block(9)));
    let confirmed = Some(Confirmed { new_fork: false, blocks: vec![block(9)] });
    tx = write(TxStep { confirmed, ..more });
    let ended = step(&tx, |tx| {
        (tx.state, tx.sub, tx.cost) = (TxState::Confirmed, None, Some(U256::MAX >> 4));
        tx.is_final = true;
    });
    tx = write(ended);

    let reads = TxmReads::new(other.pool().clone());
    let details = block_on(reads.get(tx.id)).expect("an answer").expect("a row");
    assert_eq!(details.tx, tx);
    assert_eq!(details.attempts[0].answers.len(), 2);
    assert!(details.confirmed_ms.is_some() && details.final_ms.is_some());
    let passages: Vec<_> = details.history.iter().map(|it| (it.from, it.to, it.sub)).collect();
    assert_eq!(
        passages,
        [
            (None, TxState::Allocated, None),
            (Some(TxState::Allocated), TxState::Submitted, None),
            (Some(TxState::Submitted), TxState::Tracking, Some(SubState::Pending)),
            (Some(TxState::Tracking), TxState::Tracking, Some(SubState::Mined)),
            (Some(TxState::Tracking), TxState::Confirmed, None),
        ]
    );
    assert_eq!(block_on(reads.by_request(signer(1), "r1")), Ok(Some(details)));
    assert_eq!(block_on(store.open(lease)).expect("a book").txs, [], "nothing is open");
    let outflow = rows.site.sql_value("SELECT sum(units) FROM txm.outflow_minutes");
    assert_eq!(outflow, tx.new.payload.value.to_string(), "counted once, by its first attempt");
}

/// Goal: a step is a compare-and-set on the version. A late one changes nothing, and a late twin of
/// an attempt is told the one that is there.
#[test]
fn a_late_step_changes_nothing_and_a_late_twin_gets_the_stored_attempt() {
    let rows = Rows::new();
    let store = rows.node("a");
    let lease = owned(&store);
    let tx = created(&store, lease, "r1");
    let row = written(&store, lease, first_attempt(&tx)).expect("its version");
    let mut twin = first_attempt(&tx);
    twin.tx.attempts[0].hash = B256::repeat_byte(0xee);
    twin.tx.attempts[0].raw = vec![9, 9].into();
    assert_eq!(written(&store, lease, twin), Some(row.clone()), "a signer's other bytes");
    let late = step(&tx, |tx| tx.sub = Some(SubState::Blocked));
    assert_eq!(written(&store, lease, late), None);
    // In one batch each step is judged alone.
    let other = created(&store, lease, "r2");
    let stale = step(&tx, |tx| tx.resends = 9);
    let batch = [stale, first_attempt(&other)];
    let answers = block_on(store.write(lease, &batch)).expect("an answer");
    assert_eq!(answers[0], None);
    assert_eq!(answers[1].as_ref().map(|tx| tx.state), Some(TxState::Submitted));
    assert_eq!(block_on(store.find(signer(1), "r1")), Ok(Some(row)));
}

/// Goal: a row that ended is looked at by each owner until it is final, and nothing else of it
/// changes. Method: its end is written, then its signer has another owner, which marks it.
#[test]
fn an_ended_row_is_in_the_book_until_it_is_final() {
    let rows = Rows::new();
    let (store, other) = (rows.node("a"), rows.node("b"));
    let lease = owned(&store);
    let tx = created(&store, lease, "r1");
    let tx = written(&store, lease, first_attempt(&tx)).expect("its version");
    let receipt = TxReceipt {
        attempt: 1,
        hash: tx.attempts[0].hash,
        block_number: 7,
        block_hash: block(7).hash,
        proof: Proof::Paid,
        gas_used: 21_000,
        gas_price: 1,
    };
    let ended = step(&tx, |tx| {
        (tx.state, tx.receipt, tx.resubmit_in) = (TxState::Confirmed, Some(receipt), None);
        tx.cost = Some(U256::from(21_000));
    });
    let tx = written(&store, lease, ended).expect("its version");
    assert!(!tx.is_final);
    let reads = TxmReads::new(other.pool().clone());
    let signers = block_on(reads.signers()).expect("signers");
    assert_eq!((signers[0].open_rows, signers[0].oldest_ms), (0, None), "it is over");
    rows.step("12 seconds");
    let wanting = block_on(other.wanting(9)).expect("an answer");
    assert_eq!((wanting.signers, wanting.open_signers), (vec![signer(1)], 0));
    let lease = owned(&other);
    let book = block_on(other.open(lease)).expect("a book");
    assert_eq!(
        book.txs.iter().map(|tx| (tx.id, tx.is_final)).collect::<Vec<_>>(),
        [(tx.id, false)]
    );
    let moved = TxReceipt { block_hash: block(8).hash, ..receipt };
    let moved = step(&tx, |tx| tx.receipt = Some(moved));
    let refused = block_on(other.write(lease, &[moved]));
    assert!(matches!(refused, Err(StoreError::Away(_) | StoreError::Unknown(_))), "{refused:?}");
    let marked = written(&other, lease, step(&tx, |tx| tx.is_final = true)).expect("its version");
    assert_eq!(block_on(other.open(lease)).expect("a book").txs, []);
    let details = block_on(reads.get(tx.id)).expect("an answer").expect("a row");
    assert_eq!(details.tx, marked);
    assert!(details.final_ms > details.confirmed_ms);
    let told = "SELECT body ->> 'final' FROM txm.tx_events WHERE kind = 'state' ORDER BY event_id";
    assert_eq!(rows.column(told), ["false", "false", "true"], "its end is told, once");
}

/// Goal: a failed row without a nonce is final at once, and is no work any more.
#[test]
fn a_refused_row_without_a_nonce_is_final() {
    let rows = Rows::new();
    let store = rows.node("a");
    let lease = owned(&store);
    let kept = block_on(store.keep(&request("k1"))).expect("kept");
    let refused = step(&super::new_row(&kept), |tx| {
        (tx.state, tx.code) = (TxState::Failed, Some(FailCode::Refused));
        tx.refusal = Some("TX_WOULD_REVERT".to_owned());
    });
    let row = written(&store, lease, refused).expect("its version");
    assert!(row.is_final);
    assert_eq!(row.refusal.as_deref(), Some("TX_WOULD_REVERT"));
    let wanting = block_on(store.wanting(9)).expect("an answer");
    assert_eq!((wanting.open_signers, wanting.signers), (0, Vec::new()));
}

/// Goal: no role changes a row against the laws. Method: one statement a law, each refused.
#[test]
fn postgresql_refuses_every_change_against_the_laws() {
    let rows = Rows::new();
    let store = rows.node("a");
    let lease = owned(&store);
    let tx = created(&store, lease, "r1");
    written(&store, lease, first_attempt(&tx)).expect("its version");
    block_on(store.keep(&request("k1"))).expect("kept");
    let session = rows.site.session();
    let one = "version = version + 1";
    let of = "WHERE request_id = 'r1'";
    for change in [
        format!("UPDATE txm.managed_tx SET nonce = 9, {one} {of}"),
        format!("UPDATE txm.managed_tx SET nonce = NULL, {one} {of}"),
        format!("UPDATE txm.managed_tx SET gas_limit = 9, {one} {of}"),
        format!("UPDATE txm.managed_tx SET payload = '{{}}', {one} {of}"),
        format!("UPDATE txm.managed_tx SET request_id = 'x', {one} {of}"),
        format!("UPDATE txm.managed_tx SET business_key = 'x', {one} {of}"),
        format!("UPDATE txm.managed_tx SET state = 10, {one} {of}"),
        format!("UPDATE txm.managed_tx SET fencing_token = 0, {one} {of}"),
        format!("UPDATE txm.managed_tx SET state = 30 {of}"),
        "DELETE FROM txm.managed_tx".to_owned(),
        "DELETE FROM txm.tx_attempts".to_owned(),
        "UPDATE txm.tx_attempts SET raw = 'x'".to_owned(),
        "UPDATE txm.tx_attempts SET max_fee = 99".to_owned(),
        "UPDATE txm.tx_history SET node = 'x'".to_owned(),
        "DELETE FROM txm.tx_events".to_owned(),
        "UPDATE txm.signer_lease SET fencing_token = 0".to_owned(),
        "UPDATE txm.signer_lease SET fencing_token = 9".to_owned(),
        "UPDATE txm.signer_lease SET owner_incarnation = 99".to_owned(),
        "DELETE FROM txm.signer_lease".to_owned(),
        "UPDATE txm.signer_nonce_cursor SET next_nonce = 0".to_owned(),
        "DELETE FROM txm.signer_nonce_cursor".to_owned(),
    ] {
        assert!(["UB003", "23514"].contains(&session.sql_refused(&change).as_str()), "{change}");
    }
    let ended =
        format!("UPDATE txm.managed_tx SET state = -10, code = 7, final_at = now(), {one} {of}");
    session.sql(&ended);
    for change in ["sub_state = 1", "state = 40, code = NULL", "tx_hash = NULL"] {
        let change = format!("UPDATE txm.managed_tx SET {change}, {one} {of}");
        assert_eq!(session.sql_refused(&change), "UB003", "{change}");
    }
    session.sql_refused(
        "INSERT INTO txm.managed_tx (tx_id, signer, request_id, fingerprint, payload, nonce, \
           gas_limit, state, version, fencing_token, created_at, updated_at) \
         SELECT gen_random_uuid(), signer, 'r9', '', '{}', 0, 1, 10, 1, 1, now(), now() \
           FROM txm.signers",
    );
}

/// Goal: the outflow of an hour has a limit, by PostgreSQL's clock, for every node. Method: three
/// payments of 5 with a limit of 12.
#[test]
fn a_first_payment_beyond_the_outflow_limit_is_not_stored_and_suspends() {
    let rows = Rows::new();
    let policy = SignerPolicy {
        is_native_allowed: true,
        tokens: Vec::new(),
        is_any_allowed: false,
        outflow_per_hour_max: vec![(None, U256::from(12))],
    };
    let store = rows.node_with("a", BTreeMap::from([(signer(1), policy)]));
    let reads = TxmReads::new(store.pool().clone());
    let lease = owned(&store);
    let txs = ["r1", "r2", "r3"].map(|id| created(&store, lease, id));
    let steps = txs.each_ref().map(first_attempt);
    let answers = block_on(store.write(lease, &steps)).expect("an answer");
    assert_eq!(answers.iter().map(Option::is_some).collect::<Vec<_>>(), [true, true, false]);
    let book = block_on(store.open(lease)).expect("a book");
    assert_eq!(book.suspensions[0].reason, "OUTFLOW_LIMIT");
    assert_eq!(book.txs[2], txs[2], "nothing of it was written");
    rows.site.sql(
        "INSERT INTO txm.outflow_minutes SELECT signer, 'another', txm.clock(), 7 FROM txm.signers",
    );
    // One operator does not lift it, and the hour passes.
    let refused = block_on(reads.resume(signer(1), "OUTFLOW_LIMIT", &super::DEED));
    assert!(matches!(refused, Err(StoreError::Away(_))), "{refused:?}");
    let asked = block_on(reads.ask_resume(signer(1), "OUTFLOW_LIMIT", &super::DEED));
    let asked = asked.expect("a command");
    assert_eq!(block_on(reads.second(asked, super::DEED.actor)), Ok(false), "the same person");
    assert_eq!(block_on(reads.second(asked, "op-2")), Ok(true));
    assert_eq!(block_on(reads.second(asked, "op-3")), Ok(false), "once");
    let others = "SELECT units FROM txm.outflow_minutes WHERE asset = 'another'";
    assert_eq!(rows.site.sql_value(others), "7", "the hour of another asset goes on");
    assert!(written(&store, lease, first_attempt(&txs[2])).is_some(), "its hour begins anew");
    let fourth = created(&store, lease, "r4");
    let fifth = created(&store, lease, "r5");
    assert!(written(&store, lease, first_attempt(&fourth)).is_some());
    assert!(written(&store, lease, first_attempt(&fifth)).is_none());
    rows.step("2 hours");
    let lease = owned(&store);
    assert!(written(&store, lease, first_attempt(&fifth)).is_none(), "it is suspended");
    lift(&reads);
    assert!(written(&store, lease, first_attempt(&fifth)).is_some());
}

/// Two operators lift the suspension for an outflow.
fn lift(reads: &TxmReads) {
    let asked = block_on(reads.ask_resume(signer(1), "OUTFLOW_LIMIT", &super::DEED));
    assert_eq!(block_on(reads.second(asked.expect("a command"), "op-2")), Ok(true));
}

/// Goal: nothing without a limit leaves, and no data that may move a token with one.
#[test]
fn an_asset_without_a_limit_and_data_for_a_token_are_not_paid() {
    let rows = Rows::new();
    let token = Address::repeat_byte(0x70);
    let policy = SignerPolicy {
        is_native_allowed: true,
        tokens: vec![token],
        is_any_allowed: true,
        outflow_per_hour_max: vec![(None, U256::from(99)), (Some(token), U256::from(7))],
    };
    let store = rows.node_with("a", BTreeMap::from([(signer(1), policy)]));
    let reads = TxmReads::new(store.pool().clone());
    let lease = owned(&store);
    let transfer = |contract| Some(TokenTransfer { contract, amount: U256::from(7) });
    let ask = |id: &str, change: &dyn Fn(&mut TxPayload)| {
        let mut new = request(id);
        change(&mut new.payload);
        let made = block_on(store.create(lease, 0, &[new])).expect("an answer");
        let is_paid = written(&store, lease, first_attempt(&new_row(&made[0]))).is_some();
        if !is_paid {
            lift(&reads);
        }
        is_paid
    };
    assert!(ask("token", &|it| it.token = transfer(token)));
    assert!(!ask("other", &|it| it.token = transfer(Address::repeat_byte(0x71))));
    assert!(ask("call", &|it| it.data = vec![1].into()));
    assert!(!ask("data", &|it| (it.to, it.data) = (token, vec![1].into())));
}

/// Goal: a suspended signer gets no nonce and stores nothing that pays, from the answer to its
/// suspension on; everything else goes on.
#[test]
fn a_suspended_signer_gets_no_nonce_and_stores_no_payment() {
    let rows = Rows::new();
    let store = rows.node("a");
    let reads = TxmReads::new(store.pool().clone());
    let lease = owned(&store);
    let [first, second] = ["r1", "r2"].map(|id| created(&store, lease, id));
    let second = written(&store, lease, first_attempt(&second)).expect("its version");
    let kept = super::new_row(&block_on(store.keep(&request("k1"))).expect("kept"));

    let (writer, other) = (rows.site.session(), rows.site.session());
    writer.sql(&format!("BEGIN; SELECT txm.fence('{}', {}, 1)", name(), store.incarnation()));
    other.sql("SET lock_timeout = '300ms'");
    let suspend = format!("SELECT txm.suspended('{}', 'X', 'x', 'x')", name());
    assert_eq!(other.sql_refused(&suspend), "55P03", "it waits for the write");
    writer.sql("COMMIT");
    let suspension = Suspension { reason: "halt/core".to_owned(), actor: "core".to_owned() };
    assert_eq!(block_on(reads.suspend(signer(1), &suspension, "a halt")), Ok(true));

    let made = block_on(store.create(lease, 0, &[request("r3")]));
    assert_eq!(made, Err(StoreError::Suspended));
    let ready = Ready { id: kept.id, version: 1, gas: 21_000 };
    assert_eq!(block_on(store.number(lease, 0, &[ready])), Err(StoreError::Suspended));
    let again = |kind: AttemptKind| {
        let step = step(&second, |tx| {
            let hash = B256::repeat_byte(0xf0);
            tx.attempts.push(Attempt { number: 2, kind, hash, ..tx.attempts[0].clone() });
        });
        TxStep { is_new_attempt: true, ..step }
    };
    for step in [first_attempt(&first), again(AttemptKind::Bump)] {
        assert_eq!(written(&store, lease, step), None);
    }
    assert!(written(&store, lease, again(AttemptKind::Cancel)).is_some());
    assert_eq!(block_on(reads.resume(signer(1), "halt/core", &super::DEED)), Ok(true));
    assert!(written(&store, lease, first_attempt(&first)).is_some());
    assert_eq!(created(&store, lease, "r3").nonce, Some(2));
}

/// Goal: a nonce that another transaction took suspends its signer with the row's end.
#[test]
fn a_taken_nonce_suspends_with_its_row() {
    let rows = Rows::new();
    let store = rows.node("a");
    let lease = owned(&store);
    let [first, second] = ["r1", "r2"].map(|id| created(&store, lease, id));
    let taken = step(&first, |tx| {
        (tx.state, tx.code) = (TxState::Failed, Some(FailCode::NonceTaken));
        tx.is_final = true;
    });
    let answers = block_on(store.write(lease, &[taken, first_attempt(&second)]));
    let answers = answers.expect("an answer");
    assert_eq!(answers.iter().map(Option::is_some).collect::<Vec<_>>(), [true, false]);
    let book = block_on(store.open(lease)).expect("a book");
    assert_eq!(book.suspensions[0].reason, "NONCE_TAKEN");
}

/// Goal: no text of an endpoint keeps a step from being written.
#[test]
fn control_characters_of_endpoints_are_left_out() {
    let rows = Rows::new();
    let store = rows.node("a");
    let lease = owned(&store);
    let tx = created(&store, lease, "r1");
    let tx = written(&store, lease, first_attempt(&tx)).expect("its version");
    let said = EndpointAnswer {
        text: "a\0b\u{1b}\nc".to_owned(),
        ..answer("e\u{0}1", SendClass::Unknown)
    };
    let heard = step(&tx, |tx| tx.attempts[0].class = Some(SendClass::Unknown));
    let heard = TxStep { answers: Some((1, vec![said])), ..heard };
    assert!(written(&store, lease, heard).is_some());
    let reads = TxmReads::new(store.pool().clone());
    let details = block_on(reads.get(tx.id)).expect("an answer").expect("a row");
    let said = &details.attempts[0].answers[0];
    assert_eq!((&said.endpoint[..], &said.text[..]), ("e1", "abc"));
    block_on(store.suspend(lease, "X", "a\0b")).expect("suspended");
}
