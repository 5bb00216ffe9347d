//! Requests and their nonces.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Mutex;

use alloy_primitives::Address;
use chain::state::TxState;
use chain::tx::{FailCode, NewTx, Tx, Wish};
use txm::store::{Acquired, Created, Lease, Ready, StoreError, TxStore};
use ubscore::postgres::txm::reads::TxmReads;

use super::{Rows, created, name, new_row, owned, request, signer};
use crate::harness::{block_on, crowd, eventually};

/// The nonces of all rows, ascending.
fn nonces(rows: &Rows) -> Vec<u64> {
    let sql = "SELECT nonce FROM txm.managed_tx WHERE nonce IS NOT NULL ORDER BY nonce";
    rows.column(sql).iter().map(|nonce| nonce.parse().expect("a number")).collect()
}

fn known(created: &Created) -> Tx {
    match created {
        Created::Known(tx) => (**tx).clone(),
        other => panic!("{other:?}"),
    }
}

fn fields(created: &Created) -> Vec<String> {
    match created {
        Created::Conflict(fields) => fields.clone(),
        other => panic!("{other:?}"),
    }
}

/// Goal: nonces rise by one over all processes. Method: three stores pass the signer to each other
/// behind every batch, until 1,000 requests have their rows.
#[test]
fn non_001_a_thousand_creates_over_three_stores_have_no_hole() {
    let rows = Rows::new();
    let stores = ["a", "b", "c"].map(|name| rows.node(name));
    let queue: VecDeque<NewTx> = (0..1_000).map(|number| request(&format!("r{number}"))).collect();
    let queue = Mutex::new(queue);
    let made = crowd(3, |place| {
        let store = &stores[place];
        let mut made = Vec::new();
        loop {
            let Acquired::Mine(lease) = block_on(store.acquire(signer(1))).expect("an answer")
            else {
                if queue.lock().expect("not poisoned").is_empty() {
                    return made;
                }
                continue;
            };
            let batch: Vec<NewTx> = {
                let mut queue = queue.lock().expect("not poisoned");
                let count = queue.len().min(37);
                queue.drain(..count).collect()
            };
            let answers = block_on(store.create(lease, 0, &batch)).expect("an answer");
            made.extend(answers.iter().map(new_row));
            block_on(store.release(lease)).expect("released");
            if batch.is_empty() {
                return made;
            }
        }
    });
    for mine in &made {
        let nonces: Vec<u64> = mine.iter().filter_map(|tx| tx.nonce).collect();
        assert!(nonces.is_sorted(), "{nonces:?}");
    }
    let all: BTreeSet<u64> = made.iter().flatten().filter_map(|tx| tx.nonce).collect();
    assert_eq!(all, (0..1_000).collect::<BTreeSet<u64>>());
    assert_eq!(nonces(&rows), (0..1_000).collect::<Vec<u64>>());
    assert_eq!(rows.site.sql_value("SELECT next_nonce FROM txm.signer_nonce_cursor"), "1000");
}

/// Goal: a request has one row for ever. Method: 100 times the same, in batches of its owner and
/// kept by two others at the same time.
#[test]
fn non_002_a_hundred_times_the_same_request_is_one_row() {
    let rows = Rows::new();
    let stores = ["a", "b", "c"].map(|name| rows.node(name));
    let lease = owned(&stores[0]);
    let made = crowd(10, |place| match place {
        0 => block_on(stores[0].create(lease, 0, &vec![request("same"); 10])).expect("an answer"),
        _ => {
            let store = &stores[1 + place % 2];
            (0..10).map(|_| block_on(store.keep(&request("same"))).expect("an answer")).collect()
        }
    });
    let made: Vec<&Created> = made.iter().flatten().collect();
    assert_eq!(made.len(), 100);
    assert_eq!(made.iter().filter(|one| matches!(one, Created::New(_))).count(), 1);
    let ids: BTreeSet<_> = made
        .iter()
        .map(|one| match one {
            Created::New(tx) | Created::Known(tx) => tx.id,
            Created::Conflict(fields) => panic!("{fields:?}"),
        })
        .collect();
    assert_eq!(ids.len(), 1);
    assert_eq!(rows.site.sql_value("SELECT count(*) FROM txm.managed_tx"), "1");
}

/// Goal: another body under a known id is a conflict that names its fields, and takes no nonce.
#[test]
fn non_003_another_payload_is_a_conflict_that_names_its_fields() {
    let rows = Rows::with_signers(2);
    let (store, other) = (rows.node("a"), rows.node("b"));
    let lease = owned(&store);
    let mut first = request("r1");
    first.business_key = Some("order/1".to_owned());
    let first_row = new_row(&block_on(store.create(lease, 0, &[first.clone()])).expect("made")[0]);
    assert_eq!((first_row.nonce, first_row.state), (Some(0), TxState::Allocated));
    assert_eq!(first_row.new, first);

    let mut dearer = first.clone();
    dearer.payload.value += alloy_primitives::U256::from(1);
    dearer.payload.to = Address::repeat_byte(0x78);
    let mut renamed = first.clone();
    renamed.business_key = None;
    let mut taken = request("r2");
    taken.business_key = Some("order/1".to_owned());
    let batch = [dearer, renamed, taken, first.clone(), request("r3")];
    let answers = block_on(store.create(lease, 0, &batch)).expect("an answer");
    assert_eq!(fields(&answers[0]), ["to", "value"]);
    assert_eq!(fields(&answers[1]), ["businessKey"]);
    assert_eq!(fields(&answers[2]), ["businessKey"]);
    assert_eq!(known(&answers[3]), first_row);
    assert_eq!(new_row(&answers[4]).nonce, Some(1));
    // A purpose is one row over all signers.
    let elsewhere = NewTx { signer: signer(2), ..first };
    let kept = block_on(other.keep(&elsewhere)).expect("an answer");
    assert_eq!(fields(&kept), ["businessKey"]);
    assert_eq!(nonces(&rows), [0, 1]);
}

/// Goal: a commit without an answer leaves no hole, and the same keys find their rows. Method: the
/// server ends the connection amid a create that waits, and behind one that is done.
#[test]
fn non_004_an_unknown_commit_is_asked_again_by_its_keys() {
    let rows = Rows::new();
    let store = rows.node("a");
    let lease = owned(&store);
    let batch: Vec<NewTx> = (0..5).map(|number| request(&format!("r{number}"))).collect();
    let holder = rows.site.session();
    holder.sql("BEGIN; SELECT FROM txm.signer_nonce_cursor FOR UPDATE");
    let (waiting, lost) = (store.clone(), batch.clone());
    let call = std::thread::spawn(move || block_on(waiting.create(lease, 0, &lost)));
    eventually("a create that waits", || {
        let ended = rows.site.sql(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
              WHERE datname = current_database() AND wait_event_type = 'Lock' \
                AND query LIKE '%txm.create%'",
        );
        (!ended.is_empty()).then_some(())
    });
    let answer = call.join().expect("no panic");
    assert!(matches!(answer, Err(StoreError::Unknown(_))), "{answer:?}");
    holder.sql("ROLLBACK");
    let made = block_on(store.create(lease, 0, &batch)).expect("an answer");
    assert_eq!(
        made.iter().map(new_row).filter_map(|tx| tx.nonce).collect::<Vec<_>>(),
        [0, 1, 2, 3, 4]
    );
    let again = block_on(store.create(lease, 0, &batch)).expect("an answer");
    assert_eq!(
        again.iter().map(known).collect::<Vec<_>>(),
        made.iter().map(new_row).collect::<Vec<_>>()
    );
    assert_eq!(created(&store, lease, "next").nonce, Some(5));
}

/// Goal: the cursor jumps to a floor once, the jump is kept, and its nonces can be filled.
#[test]
fn a_jump_is_kept_and_its_nonces_are_filled_by_rows_of_their_own() {
    let rows = Rows::new();
    let store = rows.node("a");
    let lease = owned(&store);
    assert_eq!(created(&store, lease, "r0").nonce, Some(0));
    let made = block_on(store.create(lease, 3, &[request("r3")])).expect("an answer");
    assert_eq!(new_row(&made[0]).nonce, Some(3));
    // A chain behind the cursor is normal.
    let made = block_on(store.create(lease, 2, &[request("r4")])).expect("an answer");
    assert_eq!(new_row(&made[0]).nonce, Some(4));
    let book = block_on(store.open(lease)).expect("a book");
    assert_eq!((book.cursor, book.jumped), (5, vec![1, 2]));
    let fill = |nonces: &[u64], is_asked| block_on(store.fill(lease, nonces, is_asked));
    // 3 has a row, and no jump passed over 9.
    let filled = fill(&[2, 3, 9], false).expect("an answer");
    let row = filled[0].clone().expect("a row");
    assert_eq!((row.nonce, row.state, row.wish), (Some(2), TxState::Allocated, Wish::Fill));
    assert_eq!((&row.new, row.version), (&NewTx::fill(signer(1), 2), 1));
    assert_eq!(filled[1..], [None, None]);
    let again = fill(&[2], false).expect("an answer");
    assert_eq!(again, [Some(row)], "one row for ever");
    // The id of a fill is no client's.
    for refused in [
        block_on(store.create(lease, 0, &[request("fill/1")])).map(drop),
        block_on(store.keep(&request("fill/1"))).map(drop),
    ] {
        assert!(matches!(refused, Err(StoreError::Away(_))), "{refused:?}");
    }
    let book = block_on(store.open(lease)).expect("a book");
    assert_eq!((book.cursor, book.jumped), (5, vec![1]));
    assert_eq!(book.txs.iter().filter_map(|tx| tx.nonce).collect::<Vec<_>>(), [0, 2, 3, 4]);
    // A suspended signer gets a fill by an operator alone.
    block_on(store.suspend(lease, "NONCE_AHEAD", "a test")).expect("suspended");
    assert_eq!(fill(&[1], false), Err(StoreError::Suspended));
    assert!(fill(&[1], true).expect("an answer")[0].is_some());
    let reads = TxmReads::new(store.pool().clone());
    assert_eq!(block_on(reads.signers()).expect("signers")[0].jumped, 0);
    // Another owner's statement makes none.
    let late = Lease { token: lease.token + 1, ..lease };
    let fenced = block_on(store.fill(late, &[1], true));
    assert!(matches!(fenced, Err(StoreError::Fenced { .. })), "{fenced:?}");
}

/// Goal: rows without a nonce arrive at the owner, get theirs in its order, and none behind their
/// deadline.
#[test]
fn kept_rows_arrive_and_are_numbered_in_the_owners_order() {
    let rows = Rows::new();
    let (owner, other) = (rows.node("a"), rows.node("b"));
    let lease = owned(&owner);
    let now: i64 = rows.site.sql_value("SELECT txm.ms(txm.clock())").parse().expect("ms");
    let kept: Vec<Tx> = (0..3)
        .map(|number| {
            let late = (number == 1).then_some(now + 5_000);
            let new = NewTx { deadline_ms: late, gas: None, ..request(&format!("k{number}")) };
            new_row(&block_on(other.keep(&new)).expect("kept"))
        })
        .collect();
    assert!(kept.iter().all(|tx| tx.nonce.is_none() && tx.state == TxState::Created));
    assert_eq!(kept[1].new.deadline_ms, Some(now + 5_000));
    let arrived = block_on(owner.arrived(&[lease], &[kept[0].id])).expect("an answer");
    let mut ids: Vec<_> = arrived.txs.iter().map(|tx| tx.id).collect();
    ids.sort();
    let mut want = vec![kept[1].id, kept[2].id];
    want.sort();
    assert_eq!((ids, arrived.expired), (want, Vec::new()));
    rows.step("6 seconds");
    let known: Vec<_> = kept.iter().map(|tx| tx.id).collect();
    let arrived = block_on(owner.arrived(&[lease], &known)).expect("an answer");
    assert_eq!((arrived.txs.len(), arrived.expired), (0, vec![(signer(1), kept[1].id)]));
    let ready = |tx: &Tx, version| Ready { id: tx.id, version, gas: 50_000 };
    let order = [ready(&kept[2], 1), ready(&kept[1], 1), ready(&kept[0], 7), ready(&kept[0], 1)];
    let numbered = block_on(owner.number(lease, 0, &order)).expect("an answer");
    let got: Vec<_> = numbered.iter().map(|tx| (tx.id, tx.nonce, tx.new.gas)).collect();
    assert_eq!(
        got,
        [(kept[2].id, Some(0), Some(50_000)), (kept[0].id, Some(1), Some(50_000))],
        "not the one that expired, and once"
    );
    assert_eq!(block_on(owner.number(lease, 0, &order)), Ok(Vec::new()));
    let found = block_on(other.find(signer(1), "k2")).expect("an answer").expect("a row");
    assert_eq!(found, numbered[0]);
    assert_eq!(block_on(other.find(signer(2), "k2")), Ok(None));
}

/// Goal: a request behind its deadline takes no nonce, and a repeat finds its end.
#[test]
fn a_create_behind_its_deadline_is_stored_as_expired() {
    let rows = Rows::new();
    let store = rows.node("a");
    let lease = owned(&store);
    let now: i64 = rows.site.sql_value("SELECT txm.ms(txm.clock())").parse().expect("ms");
    let late = NewTx { deadline_ms: Some(now - 1), ..request("late") };
    let timely = NewTx { deadline_ms: Some(now + 5_000), ..request("r1") };
    let made = block_on(store.create(lease, 0, &[late.clone(), timely, late.clone()]));
    let made = made.expect("an answer");
    let row = known(&made[0]);
    assert_eq!((row.state, row.code), (TxState::Failed, Some(FailCode::Expired)));
    assert_eq!((row.nonce, row.is_final), (None, true));
    assert_eq!(known(&made[2]), row);
    assert_eq!(new_row(&made[1]).nonce, Some(0));
    rows.step("1 hour");
    let lease = owned(&store);
    let again = block_on(store.create(lease, 0, &[late])).expect("an answer");
    assert_eq!(known(&again[0]), row);
    assert_eq!(block_on(store.open(lease)).expect("a book").txs.len(), 1);
}

/// Goal: a cancel of an id that is not there yet is the row that a late request finds.
#[test]
fn a_cancel_that_comes_first_is_what_a_late_request_finds() {
    use ubscore::postgres::txm::details::CancelByRequest;

    let rows = Rows::new();
    let store = rows.node("a");
    let lease = owned(&store);
    let reads = TxmReads::new(store.pool().clone());
    let cancel = |id: &str| {
        block_on(reads.cancel_by_request(signer(1), id, &super::DEED)).expect("an answer")
    };
    let CancelByRequest::Refused(details) = cancel("late") else { panic!("not refused") };
    assert_eq!((details.tx.state, details.tx.code), (TxState::Failed, Some(FailCode::Refused)));
    assert!(details.tx.is_final);
    let made = block_on(store.create(lease, 0, &[request("late"), request("r1")])).expect("made");
    assert_eq!(known(&made[0]).id, details.tx.id);
    assert_eq!(known(&block_on(store.keep(&request("late"))).expect("kept")).id, details.tx.id);
    assert_eq!(new_row(&made[1]).nonce, Some(0), "the refused one has none");
    assert!(matches!(cancel("late"), CancelByRequest::Ended(_)));
    let CancelByRequest::Asked { command, .. } = cancel("r1") else { panic!("not asked") };
    let CancelByRequest::Asked { command: again, .. } = cancel("r1") else { panic!("not asked") };
    assert_eq!(command, again, "one command is enough");
    let count = format!("SELECT count(*) FROM txm.managed_tx WHERE signer = '{}'", name());
    assert_eq!(rows.site.sql_value(&count), "2");
}
