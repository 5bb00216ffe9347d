//! Refunds of credited payments and receivables, over HTTP and by the commands.

use super::*;
use crate::harness::Balance;

/// An order of 100 CNY that is PAID.
pub(super) fn paid(
    desk: &Recharging,
    server: &Server,
    user: u64,
    channel: &str,
    key: &str,
) -> String {
    let id = server.recharge_paying(user, &recharge("100", channel, key));
    desk.sim.pay(&id);
    server.recharge_is(user, &id, "PAID");
    id
}

pub(super) fn refund(server: &Server, id: &str, amount: Option<&str>, key: &str) -> Reply {
    let mut body = json!({"reason": "a test", "idem_key": key});
    if let Some(amount) = amount {
        body["amount"] = json!(amount);
    }
    post(server, &format!("recharges/{id}/refund"), &body)
}

/// Asserts the answer of a refund. Returns its id.
#[track_caller]
fn assert_refund(reply: &Reply, amount: &str, replayed: bool) -> String {
    assert_eq!(reply.status, 200, "{reply:?}");
    let body = reply.json();
    let part = (&body["kind"], &body["amount"], &body["asset"]);
    assert_eq!(part, (&json!("REFUND"), &json!(amount), &json!("CNY")), "{reply:?}");
    assert_eq!(reply.header("idempotent-replayed").is_some(), replayed, "{reply:?}");
    text(&body["return_id"]).to_owned()
}

/// Waits until a return is in a state.
pub(super) fn return_is(server: &Server, id: &str, return_id: &str, state: &str) {
    eventually(state, || {
        let shown = get(server, &format!("recharges/{id}"));
        let rows = shown["returns"].as_array().expect("a list").clone();
        let row = rows.into_iter().find(|row| row["return_id"] == json!(return_id))?;
        (row["state"] == json!(state)).then_some(())
    });
}

fn funding(server: &Server, user: u64) -> u128 {
    server.balances(user).get("CNY").and_then(|balance: &Balance| balance.funding).unwrap_or(0)
}

/// What operators have done to payments and receivables, oldest first.
fn acted(desk: &Recharging) -> Vec<String> {
    let rows = "SELECT action, actor FROM admin_audit \
                 WHERE subject LIKE 'wpy_%' OR subject LIKE 'wrf_%' ORDER BY at";
    desk.site.sql(rows).into_iter().map(|row| row.join(" ")).collect()
}

/// Goal: a refund goes out in parts and as the rest, each once for its key, and never more than is
/// left. Method: over HTTP at both channels; each repeat and refusal, and a HELD payment.
#[test]
fn rch_031_refunds_over_http_stay_within_the_payment() {
    let desk = Recharging::new();
    let server = desk.start();
    for channel in ["wechat", "card"] {
        let before = funding(&server, USER);
        let order = paid(&desk, &server, USER, channel, channel);
        let key = |part: &str| format!("{channel}-{part}");
        let part = assert_refund(&refund(&server, &order, Some("40.00"), &key("1")), "40", false);
        return_is(&server, &order, &part, "DONE");
        assert_eq!(funding(&server, USER) - before, 60 * COIN);
        let again = refund(&server, &order, Some("40"), &key("1"));
        assert_eq!(assert_refund(&again, "40", true), part);
        let other = refund(&server, &order, Some("41"), &key("1"));
        assert_refused(&other, 409, "IDEM_KEY_CONFLICT");
        let over = refund(&server, &order, Some("61"), &key("2"));
        assert_refused(&over, 409, "NOT_RETURNABLE");
        assert!(over.body.contains("60 of the payment is left"), "{over:?}");
        for (amount, code) in [("0", "INVALID_AMOUNT"), ("0.001", "PRECISION_OVERFLOW")] {
            assert_refused(&refund(&server, &order, Some(amount), &key("2")), 400, code);
        }
        let rest = assert_refund(&refund(&server, &order, None, &key("3")), "60", false);
        return_is(&server, &order, &rest, "DONE");
        assert_refund(&refund(&server, &order, None, &key("3")), "60", true);
        assert_refused(&refund(&server, &order, None, &key("4")), 409, "NOT_RETURNABLE");
        assert_eq!(funding(&server, USER), before);
        let there = desk.sim.done("GET", &format!("/sim/orders/{order}"), &json!({}));
        let back = there[0]["payments"][0]["returns"].as_array().expect("a list").iter();
        let back: Vec<&Value> = back.map(|row| &row["amount"]).collect();
        assert_eq!(back, [&json!(4_000), &json!(6_000)], "{there}");
        let shown = get(&server, &format!("recharges/{order}"));
        let payment = text(&shown["payments"][0]["payment_id"]);
        // The payment names the order's own refunds too.
        assert_refund(&refund(&server, payment, Some("40"), &key("1")), "40", true);
    }
    let (order, _) = held(&desk, &server, "held", &json!({"amount": 5_000}), "AMOUNT");
    assert_refused(&refund(&server, &order, None, "held"), 409, "NOT_RETURNABLE");
    let path = format!("recharges/{order}/refund");
    assert_refused(&post(&server, &path, &because()), 400, "INVALID_REQUEST");
    let none = "wrc_01JFVQ2X8Z0Y1M3N4P5R6S7T8U";
    assert_refused(&refund(&server, none, None, "none"), 404, "RECHARGE_NOT_FOUND");
    let mine = format!("recharge refund admin/{ADMIN}");
    assert_eq!(acted(&desk), vec![mine; 4], "repeats and refusals do nothing");
    desk.site.assert_verified();
}

/// Goal: of several credited payments of an order the operator names one; a refund that its user
/// cannot pay, and one that the channel refuses, takes nothing. Method: an order paid late and
/// twice; by the command.
#[test]
fn rch_031_a_refund_names_its_payment() {
    let desk = Recharging::new();
    let desk =
        Recharging { site: desk.site.clone().with("UBSCORE__RECHARGE__DUPLICATE", "hold"), ..desk };
    let server = desk.start();
    let order = paid(&desk, &server, USER, "wechat", "a");
    desk.sim.done("POST", &format!("/pay/{order}"), &json!({"times": 1}));
    let second = eventually("the second payment", || {
        let held = get(&server, "recharges?held=DUPLICATE");
        held["payments"][0]["payment_id"].as_str().map(str::to_owned)
    });
    assert_stands(&post(&server, &format!("payments/{second}/credit"), &credit("b")), "CREDITED");
    let several = refund(&server, &order, Some("10"), "c");
    assert_refused(&several, 400, "INVALID_REQUEST");
    assert!(several.body.contains("name the payment_id"), "{several:?}");
    let words = ["recharge", "refund", &order, "--payment", &second, "--amount", "10"];
    let rest = ["--idem-key", "c", "--reason", "a test"];
    let (code, says) = server.operate(&[&words[..], &rest[..]].concat());
    assert_eq!(code, 0, "{says}");
    assert!(says.contains(&format!("READY, 10 CNY of {second}\n")), "{says}");
    // The key says which.
    let id = assert_refund(&refund(&server, &order, Some("10"), "c"), "10", true);
    return_is(&server, &order, &id, "DONE");
    let (code, says) = server.operate(&["recharge", "show", &order]);
    assert_eq!(code, 0, "{says}");
    assert!(says.contains(&id) && says.contains("10 CNY"), "{says}");

    desk.sim.faults(&json!({"refunds": "CLOSED"}));
    let before = funding(&server, USER);
    let refused = assert_refund(&refund(&server, &second, Some("20"), "d"), "20", false);
    return_is(&server, &order, &refused, "FAILED");
    assert_eq!(funding(&server, USER), before, "it has its money again");
    let again = refund(&server, &second, Some("20"), "d");
    assert_refund(&again, "20", true);
    assert_eq!(again.json()["code"], json!("CHANNEL_REFUSED"), "{again:?}");
    server.set_status(USER, "FUNDING", "FROZEN");
    assert_refused(&refund(&server, &second, Some("20"), "e"), 422, "ACCOUNT_FROZEN");
    server.set_status(USER, "FUNDING", "ACTIVE");
    assert_refused(&refund(&server, &second, Some("20"), "e"), 422, "ACCOUNT_FROZEN");
    desk.site.assert_verified();
}

/// An order of a card: its money is taken while its user has 40 CNY. The order, the number of the
/// dispute, and the return of its receivable of 60.
pub(super) fn taken(
    desk: &Recharging,
    server: &Server,
    user: u64,
    key: &str,
) -> (String, String, String) {
    let order = paid(desk, server, user, "card", key);
    let coins = funding(server, user) / COIN;
    let away = json!({
        "user_id": user,
        "asset": "CNY",
        "amount": (coins - 40).to_string(),
        "idem_key": format!("{key}-away"),
        "reason": "a test",
    });
    let mut reply = post(server, "withdrawals", &away);
    if reply.status == 202 {
        reply = approve(server, &reply);
    }
    assert_eq!(reply.json()["outcome"], json!("SUCCESS"), "{reply:?}");
    let made = desk.sim.done("POST", &format!("/sim/take/{order}"), &json!({}));
    let receivable = eventually("the receivable", || {
        let shown = get(server, &format!("recharges/{order}"));
        let row = shown["receivables"][0].clone();
        assert!(row.is_null() || row["open"] == json!("60"), "{shown}");
        row["return_id"].as_str().map(str::to_owned)
    });
    assert_eq!(funding(server, user), 0);
    (order, text(&made["number"]).to_owned(), receivable)
}

fn funding_status(server: &Server, user: u64) -> Value {
    let accounts = get(server, &format!("accounts/{user}"))["accounts"].clone();
    let rows = accounts.as_array().expect("a list");
    let funding = rows.iter().find(|row| row["account_type"] == json!("FUNDING"));
    funding.expect("an account")["status"].clone()
}

/// Goal: money that a dispute takes is debited, and the rest is a receivable of a FROZEN account;
/// an operator recovers a part and writes the rest off, each once for its key; money that is given
/// back closes a receivable first. Method: over HTTP and by the commands, at the simulator.
#[test]
fn rch_033_a_receivable_is_ended_over_http() {
    let desk = Recharging::new();
    let server = desk.start();
    let (order, _, id) = taken(&desk, &server, USER, "a");
    assert_eq!(funding_status(&server, USER), json!("FROZEN"));
    let recover = format!("receivables/{id}/recover");
    assert_refused(&post(&server, &recover, &credit("r-1")), 422, "INSUFFICIENT_BALANCE");
    assert_refused(&post(&server, &recover, &because()), 400, "INVALID_REQUEST");
    let none = "receivables/wrf_01JFVQ2X8Z0Y1M3N4P5R6S7T8U/recover";
    assert_refused(&post(&server, none, &credit("r-1")), 404, "NOT_FOUND");
    server.deposit(USER, "CNY", "25");
    for replayed in [false, true] {
        let reply = post(&server, &recover, &credit("r-1"));
        let body = reply.json();
        let stands = (reply.status, &body["recovered"], &body["open"]);
        assert_eq!(stands, (200, &json!("25"), &json!("35")), "{reply:?}");
        assert_eq!(reply.header("idempotent-replayed").is_some(), replayed, "{reply:?}");
    }
    assert_eq!(funding(&server, USER), 0);
    let other = post(&server, &format!("receivables/{id}/write-off"), &credit("r-1"));
    assert_refused(&other, 409, "IDEM_KEY_CONFLICT");
    for _ in 0..2 {
        let words = ["recharge", "write-off", &id, "--idem-key", "w-1", "--reason", "a test"];
        let (code, says) = server.operate(&words);
        assert_eq!(code, 0, "{says}");
        assert!(says.contains(&format!("{id}: 0 of 60 CNY is open\n")), "{says}");
    }
    let words = ["recharge", "recover", &id, "--idem-key", "r-2", "--reason", "a test"];
    let (code, says) = server.operate(&words);
    assert_eq!(code, 1, "{says}");
    assert!(says.contains("Nothing of the receivable is open"), "{says}");
    let shown = get(&server, &format!("recharges/{order}"));
    let acts = shown["receivables"][0]["acts"].as_array().expect("a list").clone();
    let ends: Vec<(&str, &str)> =
        acts.iter().map(|act| (text(&act["end"]), text(&act["amount"]))).collect();
    assert_eq!(ends, [("RECOVERED", "25"), ("WRITTEN_OFF", "35")], "{shown}");
    assert_eq!(funding_status(&server, USER), json!("FROZEN"), "an operator opens it");
    let mine = |what: &str| format!("receivable {what} admin/{ADMIN}");
    // The first was short.
    assert_eq!(acted(&desk), [mine("recover"), mine("recover"), mine("write-off")]);

    let (order, number, _) = taken(&desk, &server, OTHER, "b");
    desk.sim.done("POST", &format!("/sim/give/{number}"), &json!({}));
    let closed = eventually("given back", || {
        let shown = get(&server, &format!("recharges/{order}"));
        (shown["receivables"][0]["open"] == json!("0")).then_some(shown)
    });
    let kinds: Vec<&str> = closed["returns"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|row| text(&row["kind"]))
        .collect();
    assert_eq!(kinds, ["TAKEN", "GIVEN_BACK"], "{closed}");
    assert_eq!(funding(&server, OTHER), 40 * COIN);
    assert_eq!(funding_status(&server, OTHER), json!("FROZEN"));
    desk.site.assert_verified();
}

/// Goal: with `external` in `approval.required` neither a refund nor the end of a receivable moves
/// money before a second operator agrees to its amount, and then once. Method: each, asked twice,
/// with another body under its key, approved, and asked again.
#[test]
fn rch_036_a_refund_and_a_receivable_wait_for_two_people() {
    let desk = Recharging::new();
    let desk = Recharging {
        site: desk.site.clone().with("UBSCORE__APPROVAL__REQUIRED", "external"),
        ..desk
    };
    let server = desk.start();
    let order = paid(&desk, &server, USER, "wechat", "a");
    let before = funding(&server, USER);
    assert_refused(&refund(&server, &order, Some("101"), "over"), 409, "NOT_RETURNABLE");
    let asked = refund(&server, &order, None, "whole");
    let body = asked.json();
    assert_eq!((asked.status, &body["request"]["amount"]), (202, &json!("100")), "{asked:?}");
    let again = refund(&server, &order, Some("100.0"), "whole");
    assert_eq!(again.json()["approval_id"], body["approval_id"]);
    assert_refused(&refund(&server, &order, Some("99"), "whole"), 409, "IDEM_KEY_CONFLICT");
    assert_eq!(get(&server, &format!("recharges/{order}"))["returns"], json!([]));
    let id = assert_refund(&approve(&server, &asked), "100", false);
    return_is(&server, &order, &id, "DONE");
    assert_refund(&refund(&server, &order, None, "whole"), "100", true);
    assert_eq!(before - funding(&server, USER), 100 * COIN);

    let (_, _, owed) = taken(&desk, &server, OTHER, "b");
    let path = |end: &str| format!("receivables/{owed}/{end}");
    let asked = post(&server, &path("write-off"), &credit("w-1"));
    let again = post(&server, &path("write-off"), &credit("w-1"));
    assert_eq!(again.json()["approval_id"], asked.json()["approval_id"]);
    assert_refused(&post(&server, &path("recover"), &credit("w-1")), 409, "IDEM_KEY_CONFLICT");
    let ended = approve(&server, &asked);
    assert_eq!((ended.status, &ended.json()["open"]), (200, &json!("0")), "{ended:?}");
    let again = post(&server, &path("write-off"), &credit("w-1"));
    assert_eq!(again.status, 200, "{again:?}");
    assert!(again.header("idempotent-replayed").is_some(), "{again:?}");
    let late = post(&server, &path("recover"), &credit("r-1"));
    assert_refused(&late, 409, "INVALID_REQUEST");
    let both = format!("admin/{ADMIN}, approved by admin/{APPROVER}");
    let wanted = [format!("recharge refund {both}"), format!("receivable write-off {both}")];
    assert_eq!(acted(&desk), wanted);
    desk.site.assert_verified();
}
