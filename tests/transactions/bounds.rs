//! The bounds of transactions: an end is always possible, and a silent participant holds up its own
//! transactions alone.

use serde_json::{Value, json};

use super::desk::{Desk, Service, crossing, leg, legs, place};
use super::{A, B, C, field, part};
use crate::harness::{Site, Way, crowd, eventually, forgetful, logged, watermark};

const ACTIVE_MAX: &str = "UBSCORE__TRANSACTIONS__ACTIVE_MAX";
const OUTCOMES_MAX: &str = "UBSCORE__ENGINE__OUTCOMES_MAX";

/// A round of both stores, decided by its caller.
fn both() -> Value {
    json!({"round": 1, "decide": "caller", "ttl_ms": 90_000, "legs": legs(&[
        leg("FUNDING", A, B, "3"), leg("SPOT", B, A, "2"),
    ])})
}

/// The same with the participant `coupons`.
fn with_coupons() -> Value {
    let mut body = both();
    body["participants"] = json!([part("coupons")]);
    body
}

fn prepare(desk: &Desk, tx_id: &str, body: &Value) {
    let reply = desk.post(&format!("/{tx_id}/prepare"), body);
    assert_eq!(reply.status, 200, "{tx_id}: {reply:?}");
}

/// The states of the branches of a party.
fn states(row: &Value, party: &str) -> Vec<String> {
    let branches = row["branches"].as_array().expect("a list").iter();
    let mine = branches.filter(|branch| field(branch, "participant") == party);
    mine.map(|branch| field(branch, "state").to_owned()).collect()
}

/// L13. Goal: with a full outcome map nothing new begins, a round without a place stays TRYING, and
/// every open transaction ends. Method: refusals fill the map; a start with so many places as are
/// taken, and the kept ones; ends with a RESERVE and without.
#[test]
fn each_open_transaction_ends_when_the_outcome_map_is_full() {
    const ACTIVE: u64 = 8;
    let site = Site::new().with(OUTCOMES_MAX, 2_048).with(ACTIVE_MAX, ACTIVE);
    let mut desk = Desk::on(site, &[]);
    let before = desk.balances();
    for tx_id in ["booked", "released"] {
        prepare(&desk, tx_id, &both());
    }
    let outcomes = |desk: &Desk| desk.server().metric("ubscore_outcomes");
    // A refusal takes a place, and so many are the least of a configuration.
    crowd(8, |caller| {
        while outcomes(&desk) < 1_050 {
            let reply = desk.server().transfer(9_000 + caller as u64, Way::ToFunding, "1");
            assert_eq!(reply.status, 422, "{reply:?}");
        }
    });
    // Funding comes first, and waits for its row: Spot is asked behind the next start.
    let lock = desk.site().lock_usdt(&[A]);
    let waiting = ["first", "second", "third"];
    for tx_id in waiting {
        let mut body = both();
        body["wait_ms"] = json!(50);
        let reply = desk.post(&format!("/{tx_id}/prepare"), &body);
        assert_eq!(reply.status, 202, "{reply:?}");
    }
    desk.site().wait_for_rest();
    let taken = outcomes(&desk);
    desk.kill();
    lock.sql("ROLLBACK");
    // Two RESERVEs keep a place each.
    let site = desk.site().clone().with(OUTCOMES_MAX, taken + 2 + ACTIVE);
    desk.starts_on(site);
    let new = desk.post("/new/prepare", &both());
    assert_eq!(new.refusal(), (503, "OVERLOADED".to_owned()), "{new:?}");
    assert_eq!(desk.read("new"), None, "nothing is written");
    for tx_id in waiting {
        let row = eventually("Funding", || {
            desk.read(tx_id).filter(|row| states(row, "FUNDING") == ["TRIED"])
        });
        assert_eq!(states(&row, "SPOT"), ["TRYING"], "{row}");
    }
    // Asked again and again, it has no place, and that decides nothing.
    eventually("questions", || {
        let said = desk.server().said();
        (said.matches("asked again").count() > 3 * waiting.len()).then_some(())
    });
    for tx_id in waiting {
        assert_eq!(field(&desk.read(tx_id).expect("a row"), "state"), "OPEN");
    }
    assert_eq!(outcomes(&desk), taken);
    for tx_id in waiting.into_iter().chain(["released"]) {
        assert_eq!(desk.post(&format!("/{tx_id}/abort"), &json!({})).status, 200, "{tx_id}");
        desk.ends(tx_id, "CANCELLED");
    }
    assert_eq!(desk.post("/booked/commit", &json!({})).status, 200);
    desk.ends("booked", "DONE");
    eventually("five ends", || (outcomes(&desk) == taken + 5).then_some(()));
    assert_eq!(desk.changes(&before), [(A, -300, 200), (B, 300, -200)]);
    desk.close();
}

/// Goal: beyond `transactions.active_max` a new transaction is refused before anything is written,
/// and each one that is open goes on. Method: two of two places; a third, a repeat, a later round.
#[test]
fn beyond_active_max_a_new_transaction_is_refused_before_its_accept() {
    let desk = Desk::on(Site::new().with(ACTIVE_MAX, 2), &[]);
    let before = desk.balances();
    for tx_id in ["one", "two"] {
        prepare(&desk, tx_id, &both());
    }
    let replies = crowd(4, |_| desk.post("/three/prepare", &both()));
    for reply in replies {
        assert_eq!(reply.refusal(), (503, "OVERLOADED".to_owned()), "{reply:?}");
        assert!(reply.body.contains("transactions.active_max"), "{reply:?}");
    }
    assert_eq!(desk.read("three"), None);
    assert_eq!(desk.site().sql_value("SELECT count(*) FROM transactions_tb"), "2");
    prepare(&desk, "one", &both());
    prepare(&desk, "one", &json!({"round": 2, "legs": legs(&[leg("SPOT", A, C, "1")])}));
    assert_eq!(desk.post("/one/abort", &json!({})).status, 200);
    desk.ends("one", "CANCELLED");
    prepare(&desk, "three", &both());
    for tx_id in ["two", "three"] {
        assert_eq!(desk.post(&format!("/{tx_id}/abort"), &json!({})).status, 200);
        desk.ends(tx_id, "CANCELLED");
    }
    assert_eq!(desk.changes(&before), []);
    desk.close();
}

/// RCV-008. Goal: the watermark passes a transaction once both stores have ended it, though a
/// participant owes its answer, and no store is asked again. Method: a participant that never
/// confirms and never cancels, a round that Funding has refused; a kill behind the watermark; then
/// it answers.
#[test]
fn rcv_008_a_silent_participant_does_not_hold_the_watermark() {
    let done = || Some(json!({"outcome": "done"}));
    let coupons = Service::start(move |action, _| if action == "try" { done() } else { None });
    let mut desk = Desk::on(forgetful(Site::new()), &[("COUPONS", "veto", &coupons)]);
    let before = desk.balances();
    prepare(&desk, "committed", &with_coupons());
    prepare(&desk, "aborted", &with_coupons());
    // Funding has a refused round alone: no state of a branch says that its holds have ended.
    let funding = json!({"round": 1, "decide": "caller",
                         "legs": legs(&[leg("FUNDING", C, B, "999999")])});
    let reply = desk.post("/refused/prepare", &funding);
    assert_eq!(reply.refusal(), (422, "INSUFFICIENT_BALANCE".to_owned()));
    prepare(
        &desk,
        "refused",
        &json!({"round": 2, "participants": [part("coupons")],
                                      "legs": legs(&[leg("SPOT", C, A, "1")])}),
    );
    for (tx_id, word) in [("committed", "commit"), ("aborted", "abort"), ("refused", "commit")] {
        desk.post(&format!("/{tx_id}/{word}"), &json!({"wait_ms": 100}));
    }
    let last = "SELECT max(order_number) FROM transactions_tb";
    let last: u64 = desk.site().sql_value(last).parse().expect("a number");
    let passes = |desk: &Desk| {
        eventually("the watermark to pass", || {
            desk.server().transfer_ended(A, Way::ToSpot, "0.01");
            (watermark(desk.site()) > last && logged(desk.site()) > Some(last)).then_some(())
        });
    };
    passes(&desk);
    // UBSCore has forgotten all of them, and so has Funding what moved nothing.
    let empty = "SELECT count(*) FROM funding_holds WHERE taken = 0 AND brought = 0";
    eventually("their holds to go", || (desk.site().sql_value(empty) == "0").then_some(()));
    let before_kill = coupons.asked().len();
    desk.kill();
    desk.start();
    eventually("more questions", || (coupons.asked().len() > before_kill + 6).then_some(()));
    desk.server().transfer_ended(A, Way::ToSpot, "0.01");
    for (tx_id, state) in
        [("committed", "COMMITTED"), ("aborted", "ABORTED"), ("refused", "COMMITTED")]
    {
        desk.is(tx_id, state);
    }
    desk.site().assert_verified();
    assert_eq!(desk.server().ready(), 200);
    coupons.answers(move |_, _| done());
    for (tx_id, state) in [("committed", "DONE"), ("aborted", "CANCELLED"), ("refused", "DONE")] {
        desk.ends(tx_id, state);
    }
    let said = desk.server().said();
    assert!(!said.contains("protocol_violation"), "{said}");
    let changes = desk.changes(&before);
    let moved = |user: u64| changes.iter().find(|change| change.0 == user).map(|c| (c.1, c.2));
    assert_eq!((moved(B), moved(C)), (Some((300, -200)), Some((0, -100))), "{changes:?}");
    desk.close();
}

/// RCV-008. Goal: a recharge counts as external once, though a participant owes its
/// confirm: from the end of both stores on, below the watermark, and when it is DONE. Method: a
/// participant that never confirms; the totals before and behind the
/// watermark, and behind a kill; then it answers.
#[test]
fn rcv_008_a_recharge_counts_once_though_its_participant_is_silent() {
    let done = || Some(json!({"outcome": "done"}));
    let coupons = Service::start(move |action, _| if action == "try" { done() } else { None });
    let site = forgetful(Site::new()).with("UBSCORE__TRANSACTIONS__OUTSIDE_OWNERS", "shop");
    let mut desk = Desk::on(site, &[("COUPONS", "veto", &coupons)]);
    let number = |desk: &Desk, field: &str| -> f64 { desk.total(field).parse().expect("a number") };
    let begun = number(&desk, "deposited") - number(&desk, "withdrawn");
    let before = desk.balances();
    let counts = |desk: &Desk, when: &str| {
        eventually(&format!("the totals {when}"), || {
            let made = (desk.total("difference"), desk.total("transactions"));
            assert_eq!(made, ("0".to_owned(), "0".to_owned()), "{when}");
            let came = number(desk, "deposited") - number(desk, "withdrawn");
            (came == begun + 7.0).then_some(())
        });
    };
    let (outside, funding) = (json!("OUTSIDE"), |user| place("FUNDING", user));
    let mut recharge = both();
    recharge["legs"] = legs(&[
        crossing(&outside, &funding(A), "7"),
        crossing(&funding(A), &place("SPOT", B), "2"),
    ]);
    recharge["participants"] = json!([part("coupons")]);
    prepare(&desk, "recharge", &recharge);
    desk.post("/recharge/commit", &json!({"wait_ms": 100}));
    counts(&desk, "above the watermark");
    let below = "SELECT order_number < (SELECT watermark FROM engine_state) FROM transactions_tb \
                 WHERE tx_id = 'recharge'";
    eventually("the watermark to pass it", || {
        desk.server().transfer_ended(A, Way::ToSpot, "0.01");
        (desk.site().sql_value(below) == "t").then_some(())
    });
    desk.is("recharge", "COMMITTED");
    counts(&desk, "below the watermark");
    desk.site().assert_verified();
    desk.kill();
    desk.start();
    counts(&desk, "behind a kill");
    desk.is("recharge", "COMMITTED");
    coupons.answers(move |_, _| done());
    desk.ends("recharge", "DONE");
    counts(&desk, "of a DONE one");
    // Its outside is an external operation, and is counted as that alone.
    let of_legs = "SELECT COALESCE(sum(transaction_deposited), 0) FROM watermark_totals";
    assert_eq!(desk.site().sql_value(of_legs), "0");
    let recount = "SELECT count(*) FROM watermark_recount() WHERE difference <> 0";
    assert_eq!(desk.site().sql_value(recount), "0");
    desk.site().assert_verified();
    assert!(!desk.server().said().contains("conservation_violated"), "{}", desk.server().said());
    let changes = desk.changes(&before);
    let of_b = changes.iter().find(|change| change.0 == B);
    assert_eq!(of_b, Some(&(B, 0, 200)), "{changes:?}");
    let mut payout = both();
    payout["legs"] = legs(&[crossing(&funding(C), &outside, "7")]);
    prepare(&desk, "payout", &payout);
    assert_eq!(desk.post("/payout/commit", &json!({})).status, 200);
    desk.close();
}

/// Goal: `transaction_stuck` names the participant that has not answered. Method: one that never
/// confirms, and a short time.
#[test]
fn transaction_stuck_names_the_participant_that_has_not_answered() {
    let silent = |action: &str, _| (action == "try").then(|| json!({"outcome": "done"}));
    let coupons = Service::start(silent);
    let site = Site::new().with("UBSCORE__ALERT__STUCK_MS", 200);
    let desk = Desk::on(site, &[("COUPONS", "veto", &coupons)]);
    prepare(&desk, "stuck", &with_coupons());
    desk.post("/stuck/commit", &json!({"wait_ms": 100}));
    let line = eventually("the alert", || {
        let said = desk.server().said();
        let mut lines = said.lines().filter(|line| line.contains("transaction_stuck"));
        lines.find(|line| line.contains("coupons to confirm")).map(str::to_owned)
    });
    for part in ["transaction stuck of shop", "COMMITTED"] {
        assert!(line.contains(part), "{part}: {line}");
    }
    assert!(desk.server().metric("ubscore_alerts_total{alert=\"transaction_stuck\"}") > 0);
    coupons.answers(|_, _| Some(json!({"outcome": "done"})));
    desk.ends("stuck", "DONE");
    desk.close();
}
