//! Legs from and to the outside of both stores: external operations with a record in UBSCore's log.

use serde_json::{Value, json};

use super::desk::{Desk, amount, crossing, legs, place};
use super::special::{available, set_special};
use super::{A, B, C};
use crate::harness::{Site, repair};

const APPLY: [&str; 3] = ["--apply", "--reason", "a backup was restored"];
/// The external operations of transactions, in their order.
const CROSSED: &str = "SELECT string_agg(op || ' ' || user_id || ' ' || amount / 1000000, ', ' \
                                         ORDER BY user_id, op) \
                         FROM external_operations WHERE idem_key LIKE 'tx/%'";

fn funding(user: u64) -> Value {
    place("FUNDING", user)
}

fn outside() -> Value {
    json!("OUTSIDE")
}

/// A round that its caller decides.
fn round(all: &[Value]) -> Value {
    json!({"round": 1, "decide": "caller", "ttl_ms": 90_000, "legs": legs(all)})
}

fn desk() -> Desk {
    Desk::on(Site::new().with("UBSCORE__TRANSACTIONS__OUTSIDE_OWNERS", "shop"), &[])
}

fn prepared(desk: &Desk, tx_id: &str, all: &[Value]) {
    let reply = desk.post(&format!("/{tx_id}/prepare"), &round(all));
    assert_eq!(reply.status, 200, "{tx_id}: {reply:?}");
}

fn committed(desk: &Desk, tx_id: &str) {
    assert_eq!(desk.post(&format!("/{tx_id}/commit"), &json!({})).status, 200, "{tx_id}");
    desk.ends(tx_id, "DONE");
}

/// The statements of all users fit their balances, and nothing was made or lost.
fn adds_up(desk: &Desk) {
    for user in [A, B, C] {
        let user = user.to_string();
        let output = desk.site().tool(["statement", "--user", &user, "--format", "json"]).output();
        let out = String::from_utf8(output.expect("the binary").stdout).expect("text");
        assert!(out.contains(r#""verdict":"ok""#), "{out}");
    }
    let made = (desk.total("difference"), desk.total("transactions"));
    assert_eq!(made, ("0".to_owned(), "0".to_owned()));
}

/// GTX-013, RCV-005. Goal: a PostgreSQL that is older than legs from and to the outside gets each
/// unit of them back from the log, once: a transaction that it has undecided is booked whole, and
/// of one that it lacks the operations with the outside come back. Method: all the money of a user
/// goes out, so all of it is apart in the copy; money from outside is passed on; the copy is taken
/// between prepare and commit, and before another transaction.
#[test]
fn gtx_013_a_restored_database_gets_the_outside_back() {
    let mut desk = desk();
    let all = desk.balance(C, "FUNDING");
    let comes = amount(all);
    prepared(
        &desk,
        "paid",
        &[
            crossing(&funding(C), &outside(), &comes),
            crossing(&outside(), &funding(A), &comes),
            crossing(&funding(A), &funding(B), "2"),
        ],
    );
    desk.kill();
    let restored = desk.site().with_copied_database();
    desk.start();
    let before = desk.balances();
    committed(&desk, "paid");
    let both = [crossing(&outside(), &funding(B), "3"), crossing(&funding(B), &outside(), "3")];
    prepared(&desk, "new", &both);
    committed(&desk, "new");
    adds_up(&desk);
    let units = i128::try_from(all).expect("small");
    let moved = [(A, units - 200, 0), (B, 200, 0), (C, -units, 0)];
    assert_eq!(desk.changes(&before), moved);
    let crossed = desk.site().sql_value(CROSSED);
    assert_eq!(crossed, format!("4 {A} {all}, 4 {B} 300, 5 {B} 300, 5 {C} {all}"));
    desk.kill();
    let (code, said) = restored.start_refused();
    assert_eq!(code, 70, "{said}");
    let (code, done, why) = repair(&restored, &APPLY);
    assert_eq!(code, Some(0), "{done}{why}");
    let end = "repaired transfers=0 external=4 transactions=1 left=0\n";
    assert!(done.ends_with(end) && done.contains("settle its hold on Funding"), "{done}");
    desk.moves_to(restored);
    desk.ends("paid", "DONE");
    assert_eq!(desk.changes(&before), moved);
    assert_eq!(desk.site().sql_value(CROSSED), crossed);
    let settled = "SELECT string_agg(deposited / 1000000 || ' ' || withdrawn / 1000000, ', ' \
                                     ORDER BY user_id) FROM funding_holds WHERE state = 40";
    assert_eq!(desk.site().sql_value(settled), format!("{all} 0, 0 0, 0 {all}"));
    adds_up(&desk);
    desk.close();
}

/// GTX-013. Goal: a PostgreSQL that is older than the Settles of a committed transaction, and has
/// its decision, books it whole behind a repair, and nothing twice. Method: a copy between the
/// caller's commit in SQL and the start that carries it out.
#[test]
fn gtx_013_a_restored_decision_is_booked_once() {
    let mut desk = desk();
    let before = desk.balances();
    prepared(
        &desk,
        "paid",
        &[crossing(&outside(), &funding(A), "7"), crossing(&funding(B), &outside(), "7")],
    );
    desk.grant();
    desk.kill();
    // The service is away, so the decision stands alone.
    desk.site().sql("SELECT transaction_commit('shop', 'paid', 1)");
    let restored = desk.site().with_copied_database();
    desk.start();
    desk.ends("paid", "DONE");
    let moved = [(A, 700, 0), (B, -700, 0)];
    assert_eq!(desk.changes(&before), moved);
    desk.kill();
    let (code, said) = restored.start_refused();
    assert_eq!(code, 70, "{said}");
    let (code, done, why) = repair(&restored, &APPLY);
    assert_eq!(code, Some(0), "{done}{why}");
    assert!(done.ends_with("repaired transfers=0 external=2 left=0\n"), "{done}");
    desk.moves_to(restored);
    desk.ends("paid", "DONE");
    assert_eq!(desk.changes(&before), moved);
    assert_eq!(desk.site().sql_value(CROSSED), format!("4 {A} 700, 5 {B} 700"));
    adds_up(&desk);
    desk.close();
}

/// GTX-014, RCV-005. Goal: a place that becomes special and negative behind its try is booked, and
/// a restored PostgreSQL gets a payout of it back below zero. People are told of all that the log
/// cannot show. Method: a plain payout and a plain passage are prepared, the place becomes special
/// and pays; a copy is taken before a payout of the special place, and another transaction.
#[test]
fn gtx_014_a_payout_of_a_place_that_becomes_special_is_booked_and_restored() {
    let mut desk = desk();
    let all = amount(desk.balance(A, "FUNDING"));
    let passage =
        [crossing(&outside(), &funding(A), "100"), crossing(&funding(A), &funding(B), "100")];
    prepared(&desk, "through", &passage);
    prepared(&desk, "plain", &[crossing(&funding(A), &outside(), &all)]);
    assert_eq!(available(&desk, A), "0");
    assert_eq!(set_special(&desk, A, true).status, 200);
    prepared(&desk, "below", &[crossing(&funding(A), &funding(B), "30")]);
    for tx_id in ["below", "through", "plain"] {
        committed(&desk, tx_id);
        assert_eq!(available(&desk, A), "-30", "{tx_id}");
    }
    prepared(&desk, "fee", &[crossing(&funding(A), &outside(), "5")]);
    desk.kill();
    let restored = desk.site().with_copied_database();
    desk.start();
    committed(&desk, "fee");
    prepared(&desk, "new", &[crossing(&outside(), &funding(B), "3")]);
    committed(&desk, "new");
    assert_eq!(available(&desk, A), "-35");
    adds_up(&desk);
    desk.kill();
    let (code, done, why) = repair(&restored, &APPLY);
    assert_eq!(code, Some(0), "{done}{why}");
    let end = "repaired transfers=0 external=2 transactions=1 left=0\n";
    assert!(done.ends_with(end), "{done}");
    for look in ["lost rounds behind round 1", "is lost; its service must not repeat it"] {
        let is_it = |line: &&str| line.starts_with("look ") && line.contains(look);
        assert_eq!(done.lines().filter(is_it).count(), 1, "{look}: {done}");
        let audited = format!("SELECT count(*) FROM admin_audit WHERE detail LIKE '%{look}%'");
        assert_eq!(restored.sql_value(&audited), "1", "{look}");
    }
    desk.moves_to(restored);
    desk.ends("fee", "DONE");
    assert_eq!(available(&desk, A), "-35");
    let after = format!(
        "SELECT trunc(balance_after / 1000000) FROM external_operations \
          WHERE user_id = {A} AND op = 5 ORDER BY order_number DESC LIMIT 1"
    );
    assert_eq!(desk.site().sql_value(&after), "-3500");
    adds_up(&desk);
    desk.site().assert_verified();
    desk.kill();
}

/// GTX-013. Goal: a death between the commit of a Settle and its record in the log, and one behind
/// the record, leave each operation with one row and one record, which a later restore proves.
/// Method: a kill at each point; the next start; a copy of before, which the repair brings back.
#[cfg(feature = "crash")]
#[test]
fn gtx_013_a_kill_before_the_record_of_the_outside_leaves_one() {
    use crate::harness::eventually;
    // A start meets the points once for each gift of development money.
    let mut visit = 1;
    for point in ubscore::crash::EXTERNAL_POINTS {
        let mut desk = desk();
        let before = desk.balances();
        prepared(
            &desk,
            "paid",
            &[crossing(&outside(), &funding(A), "7"), crossing(&funding(B), &outside(), "7")],
        );
        desk.kill();
        let copy = desk.site().with_copied_database();
        while !desk.start_armed(&format!("{point}={visit}")) {
            visit += 1;
            assert!(visit < 40, "{point}");
        }
        desk.try_post("/paid/commit", &json!({}));
        eventually("the kill", || desk.has_ended().then_some(()));
        let rows = "SELECT count(*) FROM external_operations WHERE idem_key LIKE 'tx/%'";
        assert_ne!(desk.site().sql_value(rows), "0", "{point}: the row comes first");
        desk.start_again();
        desk.ends("paid", "DONE");
        let moved = [(A, 700, 0), (B, -700, 0)];
        assert_eq!(desk.changes(&before), moved, "{point}");
        let crossed = format!("4 {A} 700, 5 {B} 700");
        assert_eq!(desk.site().sql_value(CROSSED), crossed, "{point}");
        adds_up(&desk);
        desk.kill();
        let (code, done, why) = repair(&copy, &APPLY);
        assert_eq!(code, Some(0), "{point}: {done}{why}");
        desk.moves_to(copy);
        desk.ends("paid", "DONE");
        assert_eq!(desk.changes(&before), moved, "{point}");
        assert_eq!(desk.site().sql_value(CROSSED), crossed, "{point}");
        adds_up(&desk);
        desk.close();
    }
}
