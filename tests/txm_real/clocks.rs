//! Clocks that are wrong: of machines, which count for nothing, and of PostgreSQL, which cost a
//! take-over and no payment.

use jiff::{SignedDuration, Timestamp};
use serde_json::json;

use super::SIGNER;
use super::place::{Party, Place};
use crate::harness::{eventually, now_s};

/// The time by which a node's first line differs from this process's clock.
fn shift(node: &Party) -> SignedDuration {
    let first = eventually("its first line", || {
        let words = node.words();
        words.split_once('\n').map(|(line, _)| line.to_owned())
    });
    let said = first.split_whitespace().next().and_then(|word| word.parse().ok());
    let said: Timestamp = said.unwrap_or_else(|| panic!("no time: {first}"));
    said.duration_since(Timestamp::now())
}

/// Goal: clocks of nodes count for nothing. Method: an owner an hour ahead, its successor an hour
/// behind, and one with the right time: renewals, take-overs, deadlines of requests, ends.
#[test]
fn lse_009_clocks_of_nodes_count_for_nothing() {
    let place = Place::new(&[]);
    let right = place.first_node();
    right.stop();
    let token = place.token();
    let ahead = place.node_with_clock("txm-ahead", "3600");
    assert!(shift(&ahead) > SignedDuration::from_mins(50), "{:?}", shift(&ahead));
    let deadline = |seconds: u64| {
        let at = i64::try_from(now_s() + seconds).expect("a time");
        json!(Timestamp::from_second(at).expect("a time").to_string())
    };
    // Half an hour from now: by the clock of this node it has passed.
    let mut payment = place.payment("a-1");
    payment["deadline"] = deadline(1_800);
    let first = ahead.post("/api/v1/tx", &payment).json()["txId"].clone();
    let first = first.as_str().expect("an id").to_owned();
    ahead.becomes(&first, "TRACKING", Some("PENDING"));
    let own = place.owned_by("txm-ahead");

    let behind = place.node_with_clock("txm-behind", "-3600");
    assert!(shift(&behind) < SignedDuration::from_mins(-50), "{:?}", shift(&behind));
    renewals(&place, 5);
    assert_eq!(place.owned_by("txm-ahead"), own, "nothing was taken over");
    let ends = "SELECT expires_at BETWEEN clock_timestamp() - interval '1 minute' \
                AND clock_timestamp() + interval '1 minute' FROM txm.signer_lease";
    assert_eq!(place.site.sql_value(ends), "t");
    assert_eq!(place.end(&behind, &first)["state"], "CONFIRMED");

    let second = place.pay(&behind, "a-2");
    behind.becomes(&second, "TRACKING", Some("PENDING"));
    ahead.kill();
    assert_eq!(place.owned_by("txm-behind"), own + 1);
    renewals(&place, 5);
    assert_eq!(place.end(&behind, &second)["state"], "CONFIRMED");
    // It has passed now: by the clock of this node it is to come.
    let mut late = place.payment("a-3");
    late["deadline"] = deadline(0);
    let late = behind.post("/api/v1/tx", &late).json()["txId"].clone();
    let late = behind.becomes(late.as_str().expect("an id"), "FAILED", None);
    assert_eq!(late["nonce"], json!(null), "{late}");

    let again = place.node_with_clock("txm-ahead", "3600");
    let third = place.pay(&again, "a-4");
    behind.becomes(&third, "TRACKING", Some("PENDING"));
    behind.stop();
    assert_eq!(place.owned_by("txm-ahead"), own + 2);
    assert_eq!(place.end(&again, &third)["state"], "CONFIRMED");
    assert_eq!(again.metric("ubscore_lease_fenced_total"), 0.0);
    assert!(place.token() > token);
    assert_eq!(place.chain.nonce(SIGNER), 3);
}

/// Waits for so many renewals of the lease.
fn renewals(place: &Place, count: usize) {
    let end = || place.site.sql_value("SELECT expires_at FROM txm.signer_lease");
    for _ in 0..count {
        let before = end();
        eventually("a renewal", || (end() != before).then_some(()));
    }
}

/// Goal: a clock of PostgreSQL that steps costs an owner, and no payment. Method: two real nodes;
/// the clock goes a minute ahead and back, and a minute behind and back, with a payment under way
/// each time.
#[test]
fn lse_010_a_stepped_clock_of_postgresql_pays_once() {
    let place = Place::new(&[]);
    let a = place.first_node();
    let b = place.node("txm-b", &[]);
    let steps = ["+ interval '1 minute'", "", "- interval '1 minute'", ""];
    for (number, step) in steps.iter().enumerate() {
        let id = place.pay(&a, &format!("a-{number}"));
        a.becomes(&id, "TRACKING", Some("PENDING"));
        place.site.sql(&format!(
            "CREATE OR REPLACE FUNCTION txm.clock() RETURNS TIMESTAMPTZ LANGUAGE sql VOLATILE \
               AS $$SELECT clock_timestamp() {step}$$"
        ));
        assert_eq!(place.end(&b, &id)["state"], "CONFIRMED", "{step}");
    }
    let owned = "SELECT count(*) FROM txm.signer_lease WHERE txm.alive(expires_at)";
    let last = place.pay(&b, "last");
    assert_eq!(place.end(&a, &last)["state"], "CONFIRMED");
    eventually("an owner", || (place.site.sql_value(owned) == "1").then_some(()));
    assert_eq!(place.chain.nonce(SIGNER), steps.len() as u64 + 1);
}
