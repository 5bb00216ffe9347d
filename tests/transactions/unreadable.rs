//! Rows that stop no other one: those that PostgreSQL refuses, and those that cannot be read.

use std::thread;

use serde_json::json;

use super::desk::{Desk, leg, legs};
use super::{A, B};
use crate::harness::eventually;

/// RCV-002. Goal: a round that PostgreSQL refuses stops none of those that share its flight.
/// Method: a trigger refuses some rounds; many come at once.
#[test]
fn rcv_002_a_poisonous_round_stops_no_other() {
    let desk = Desk::new();
    desk.site().sql(
        "CREATE FUNCTION poison() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
         IF NEW.tx_id LIKE 'poison%' THEN RAISE EXCEPTION 'poison'; END IF; \
         RETURN NEW; END $$; \
         CREATE TRIGGER poison BEFORE INSERT ON transactions_tb \
         FOR EACH ROW EXECUTE FUNCTION poison()",
    );
    let before = desk.balances();
    thread::scope(|scope| {
        for thread in 0..8 {
            let desk = &desk;
            scope.spawn(move || {
                for number in 0..5 {
                    let is_poison = (thread + number) % 4 == 0;
                    let word = if is_poison { "poison" } else { "fine" };
                    let tx_id = format!("{word}-{thread}-{number}");
                    let reply = desk.post(
                        "",
                        &json!({"tx_id": tx_id, "legs": legs(&[
                            leg("FUNDING", A, B, "0.01"), leg("SPOT", B, A, "0.01"),
                        ])}),
                    );
                    let wanted = if is_poison { 503 } else { 200 };
                    assert_eq!(reply.status, wanted, "{tx_id}: {reply:?}");
                }
            });
        }
    });
    assert_eq!(desk.site().sql_value("SELECT count(*) FROM transactions_tb"), "30");
    assert_eq!(desk.changes(&before), [(A, -30, 30), (B, 30, -30)]);
    desk.close();
}

/// RCV-002. Goal: a row that cannot be read stops no other one at the start, is named, stays as it
/// is, and keeps the watermark below. Method: a leg that the service does not write, in the middle
/// of three open transactions; then it is mended.
#[test]
fn rcv_002_a_row_that_cannot_be_read_stops_no_other() {
    let mut desk = Desk::new();
    let before = desk.balances();
    let body = json!({"round": 1, "decide": "caller", "legs": legs(&[
        leg("FUNDING", A, B, "3"), leg("SPOT", B, A, "2"),
    ])});
    // Without a part of Spot: with one, the start's own audit refuses it by name.
    let alone = json!({"round": 1, "decide": "caller", "legs": legs(&[leg("FUNDING", A, B, "3")])});
    for (tx_id, body) in [("first", &body), ("bad", &alone), ("third", &body)] {
        assert_eq!(desk.post(&format!("/{tx_id}/prepare"), body).status, 200, "{tx_id}");
    }
    desk.kill();
    let legs_of_bad = "UPDATE transaction_branches b SET legs = $1 FROM transactions_tb t \
         WHERE t.transaction_id = b.transaction_id AND t.tx_id = 'bad' AND participant = 'FUNDING'";
    let sets = |legs: &str| {
        let update = legs_of_bad.replace("$1", legs);
        format!("SET session_replication_role = replica; {update}")
    };
    let kept = desk.site().sql_value(
        "SELECT legs::text FROM transaction_branches JOIN transactions_tb USING (transaction_id) \
          WHERE tx_id = 'bad' AND participant = 'FUNDING'",
    );
    desk.site().sql(&sets("'[{\"from\": 1}]'"));
    desk.start();
    for tx_id in ["first", "third"] {
        assert_eq!(desk.post(&format!("/{tx_id}/commit"), &json!({})).status, 200, "{tx_id}");
        desk.ends(tx_id, "DONE");
    }
    assert_eq!(desk.changes(&before), [(A, -600, 400), (B, 600, -400)]);
    let server = desk.server();
    assert!(server.metric("ubscore_alerts_total{alert=\"transaction_stuck\"}") > 0);
    eventually("the log to name it", || {
        server.said().contains("transaction bad of shop").then_some(())
    });
    for word in ["commit", "abort"] {
        let reply = desk.post(&format!("/bad/{word}"), &json!({}));
        assert_eq!(reply.status, 503, "{word}: {reply:?}");
        assert!(reply.body.contains("unknown"), "{word}: {reply:?}");
    }
    let state = desk.site().sql_value("SELECT state FROM transactions_tb WHERE tx_id = 'bad'");
    assert_eq!(state, "0", "it stays as it is");
    let below = "SELECT watermark <= (SELECT order_number FROM transactions_tb WHERE tx_id = 'bad') \
                   FROM engine_state";
    assert_eq!(desk.site().sql_value(below), "t");
    desk.site().sql(&sets(&format!("'{kept}'")));
    assert_eq!(desk.post("/bad/abort", &json!({})).status, 200);
    desk.ends("bad", "CANCELLED");
    desk.close();
}
