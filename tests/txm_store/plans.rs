//! The plans of the statements.

use txm::store::{Created, StoreError, TxStore};
use ubscore::postgres::txm::store::{NodeStart, TxmStore};

use super::{
    Rows, created, first_attempt, name, new_row, node_start, owned, request, signer, step, written,
};
use crate::harness::{LIMITS, block_on};

/// The scans of whole tables by PostgreSQL's own count, within a transaction. Not of `nodes`: it has
/// one row for each start of a process, and the live ones are counted.
const SCANS: &str = "SELECT relname::text, seq_scan FROM pg_stat_xact_user_tables \
    WHERE schemaname = 'txm' AND seq_scan > 0 \
      AND relname IN ('managed_tx', 'tx_attempts', 'tx_confirmations', 'tx_events', 'tx_history', \
                      'tx_commands', 'signer_lease', 'signer_nonce_cursor', \
                      'nonce_jumps', 'outflow_minutes', 'signer_suspensions')";

/// Goal: no statement of the store reads a whole table, whatever its statistics. Method: each one
/// in a connection of the store, with the table empty, fresh and without statistics, and full;
/// PostgreSQL counts the scans.
#[test]
fn every_statement_finds_its_rows_by_an_index() {
    let rows = Rows::new();
    let store = rows.node("a");
    let lease = owned(&store);
    let client = block_on(store.pool().get()).expect("a connection");
    let (me, token) = (store.incarnation(), lease.token);
    let of = format!("'{}', {me}, {token}", name());
    for (round, filled) in [0, 200, 20_000].into_iter().enumerate() {
        rows.site.sql(&format!(
            "INSERT INTO txm.managed_tx (tx_id, signer, request_id, business_key, fingerprint, \
               payload, nonce, gas_limit, state, version, fencing_token, created_at, updated_at) \
             SELECT gen_random_uuid(), '{}', 'f{round}-' || n, 'b{round}-' || n, 'f', '{{}}', \
               NULL, NULL, 0, 1, 0, now(), now() FROM generate_series(1, {filled}) n",
            name()
        ));
        if filled > 1_000 {
            rows.site.sql("ANALYZE");
        }
        let body = |id: &str| {
            format!(
                "{{\"request_id\": \"{id}\", \"business_key\": \"{id}\", \"fingerprint\": \"f\", \
                 \"gas\": 1, \"payload\": {{\"to\": \"x\", \"value\": \"1\"}}}}"
            )
        };
        let id = format!("SELECT tx_id FROM txm.managed_tx WHERE request_id = 'c{round}'");
        let id = format!("({id} AND signer = '{}')", name());
        let attempt = "'{\"number\": 1, \"kind\": 1, \"gas\": 1, \"max_fee\": \"1\", \
                       \"max_tip\": \"1\", \"raw\": \"0x00\"}'::jsonb";
        let step = format!(
            "jsonb_build_array('{{\"version\": 1, \"state\": 20, \"wish\": 0, \"resends\": 0, \
             \"fork\": 0, \"submits\": true, \"is_final\": false, \"attempts\": 1, \
             \"classes\": [{{\"number\": 1, \"was_in_pool\": true}}]}}'::jsonb || \
             jsonb_build_object('id', {id}, 'attempt', {attempt} || jsonb_build_object( \
               'hash', '0x' || lpad('{round}', 64, '0'))))"
        );
        for statement in [
            format!("SELECT count(*) FROM txm.create({of}, 0, '[{}]')", body(&format!("c{round}"))),
            format!("SELECT count(*) FROM txm.keep('{}', {me}, '{}', 99999)", name(), body("k")),
            format!("SELECT count(*) FROM txm.write({of}, {step}, 'null')"),
            format!(
                "SELECT count(*) FROM txm.arrived(ARRAY['{}'], ARRAY[gen_random_uuid()])",
                name()
            ),
            format!(
                "SELECT txm.tx_json(t) FROM txm.managed_tx t WHERE t.signer = '{}' \
                 AND t.request_id = 'c{round}'",
                name()
            ),
            format!(
                "SELECT count(*) FROM txm.number({of}, 0, ARRAY[gen_random_uuid()], '{{1}}', '{{1}}')"
            ),
            format!("SELECT count(*) FROM txm.wanting({me}, 9)"),
            format!("SELECT count(*) FROM txm.acquire('{}', {me})", name()),
        ] {
            let call = async {
                client.batch_execute("BEGIN").await?;
                client.simple_query(&statement).await?;
                let scans = client.query(SCANS, &[]).await?;
                client.batch_execute("COMMIT").await?;
                Ok::<_, tokio_postgres::Error>(scans)
            };
            let scans = block_on(call).unwrap_or_else(|error| panic!("{error:?}: {statement}"));
            let scans: Vec<(String, i64)> =
                scans.iter().map(|row| (row.get(0), row.get(1))).collect();
            assert_eq!(scans, [], "{filled} rows: {statement}");
        }
    }
    // The count is one that counts.
    block_on(
        client.batch_execute(
            "BEGIN; SET LOCAL enable_seqscan = on; SET LOCAL enable_indexscan = off",
        ),
    )
    .expect("begun");
    block_on(client.simple_query("SELECT count(payload) FROM txm.managed_tx")).expect("read");
    assert_eq!(block_on(client.query(SCANS, &[])).expect("counts").len(), 1);
}

/// Goal: a signer with too many rows without a nonce takes no more of them, and its book has the
/// oldest thousand.
#[test]
fn rows_without_a_nonce_are_bounded() {
    let rows = Rows::new();
    let start = NodeStart { queue_max: 1_002, ..node_start("a") };
    let store = block_on(TxmStore::start(&rows.site.target(), &LIMITS, 2, &start));
    let store = store.expect("a start");
    let lease = owned(&store);
    let first = block_on(store.keep(&request("k1"))).expect("kept");
    rows.site.sql(
        "INSERT INTO txm.managed_tx (tx_id, signer, request_id, fingerprint, payload, state, \
           version, fencing_token, created_at, updated_at) \
         SELECT txm.uuid7(txm.clock() + INTERVAL '1 second'), signer, 'f' || n, 'f', payload, 0, \
           1, 0, now(), now() FROM txm.managed_tx, generate_series(1, 1000) n",
    );
    block_on(store.keep(&request("k2"))).expect("kept");
    assert_eq!(block_on(store.keep(&request("k3"))), Err(StoreError::Overloaded));
    assert_eq!(block_on(store.keep(&request("k1"))), Ok(Created::Known(Box::new(new_row(&first)))));
    let book = block_on(store.open(lease)).expect("a book");
    let has_first = book.txs.iter().any(|tx| tx.new.request_id == "k1");
    assert_eq!((book.txs.len(), has_first), (1_000, true), "the oldest");
    created(&store, lease, "r1");
    assert_eq!(block_on(store.open(lease)).expect("a book").txs.len(), 1_001);
}

/// Goal: a book with many rows is read in one statement, in its order.
#[test]
fn a_book_is_in_the_order_of_nonces() {
    let rows = Rows::new();
    let store = rows.node("a");
    let lease = owned(&store);
    let requests: Vec<_> = (0..300).map(|number| request(&format!("r{number}"))).collect();
    block_on(store.keep(&request("k1"))).expect("kept");
    block_on(store.create(lease, 0, &requests)).expect("made");
    let first = created(&store, lease, "last");
    let row = written(&store, lease, first_attempt(&first)).expect("its version");
    let done = step(&row, |tx| tx.resends += 1);
    written(&store, lease, done).expect("its version");
    let book = block_on(store.open(lease)).expect("a book");
    let nonces: Vec<_> = book.txs.iter().map(|tx| tx.nonce).collect();
    assert_eq!(nonces[..301], (0..301).map(Some).collect::<Vec<_>>());
    assert_eq!((nonces.len(), nonces[301], book.cursor), (302, None, 301));
    assert_eq!(block_on(store.arrived(&[lease], &[])).expect("an answer").txs.len(), 1);
    assert_eq!(book.txs[301].new.signer, signer(1));
}
