//! The operators' side of recharges, over a simulated channel: held payments and their ends, by one
//! operator and by two; refunds and receivables; orders; channels; alerts; chapters of the runbook;
//! the things that are watched.

mod refunds;
mod watched;

use serde_json::{Value, json};
use ubscore::alert::Alert;
use ubscore::http::auth::Role;

use crate::alerts::{assert_raised, site as alerting};
use crate::harness::{
    ADMIN, Browser, COIN, Recharging, Reply, Request, Server, assert_refused, eventually, recharge,
    said, send, text, token,
};
use crate::runbook::run_blocks;

const USER: u64 = 1001;
const OTHER: u64 = 1002;
const APPROVER: u64 = ADMIN + 1;

fn get(server: &Server, path: &str) -> Value {
    let reply = server.admin_get(&format!("/admin/v1/{path}"));
    assert_eq!(reply.status, 200, "{path}: {reply:?}");
    reply.json()
}

fn post(server: &Server, path: &str, body: &Value) -> Reply {
    server.admin("POST", &format!("/admin/v1/{path}"), body)
}

fn because() -> Value {
    json!({"reason": "a test"})
}

fn credit(key: &str) -> Value {
    json!({"reason": "a test", "idem_key": key})
}

/// The second operator approves the request of an answer.
fn approve(server: &Server, asked: &Reply) -> Reply {
    assert_eq!(asked.status, 202, "{asked:?}");
    let path = format!("/admin/v1/approvals/{}/approve", text(&asked.json()["approval_id"]));
    let body = because();
    let own = server.admin("POST", &path, &body);
    assert_refused(&own, 403, "FORBIDDEN");
    let second = token(APPROVER, Some(Role::Admin));
    let request = Request { body: Some(&body), ..Request::new(&second, "POST", &path) };
    send(server.ops, &request).expect("an answer")
}

fn assert_stands(reply: &Reply, disposition: &str) {
    assert_eq!(reply.status, 200, "{reply:?}");
    assert_eq!(reply.json()["disposition"], json!(disposition), "{reply:?}");
}

/// An order of 100 CNY that a person has paid in an odd way: its id, and its payment once that is
/// held for this cause.
fn held(
    desk: &Recharging,
    server: &Server,
    key: &str,
    pay: &Value,
    cause: &str,
) -> (String, String) {
    let id = server.recharge_paying(USER, &recharge("100", "wechat", key));
    desk.sim.done("POST", &format!("/pay/{id}"), pay);
    let payment = eventually(cause, || {
        let shown = get(server, &format!("recharges/{id}"));
        let payment = shown["payments"][0].clone();
        let is_held =
            (&payment["disposition"], &payment["cause"]) == (&json!("HELD"), &json!(cause));
        is_held.then(|| text(&payment["payment_id"]).to_owned())
    });
    (id, payment)
}

/// Money in suspense, smallest units.
fn suspense(desk: &Recharging) -> String {
    desk.site.sql_value(
        "SELECT COALESCE(sum(CASE WHEN credit LIKE '%/suspense' THEN amount \
                                  WHEN debit LIKE '%/suspense' THEN -amount END), 0) \
           FROM recharge_movements",
    )
}

/// What operators have done, oldest first.
fn actions(desk: &Recharging) -> Vec<String> {
    let rows = desk
        .site
        .sql("SELECT action, actor FROM admin_audit WHERE subject LIKE 'wpy_%' ORDER BY at");
    rows.into_iter().map(|row| row.join(" ")).collect()
}

/// Goal: an odd payment is held with its cause, and an operator ends it by each way, once. Method:
/// too little, another currency, discounted; credit, return and dismiss over HTTP, each repeated,
/// and the other ends behind it.
#[test]
fn rch_015_held_payments_are_ended_over_http() {
    let desk = Recharging::new();
    let server = desk.start();
    let before = server.balances(USER)["CNY"].funding.unwrap_or(0);
    let little = json!({"amount": 5_000});
    let (order, credited) = held(&desk, &server, "a", &little, "AMOUNT");
    let (_, returned) = held(&desk, &server, "b", &json!({"borne": 100}), "DISCOUNTED");
    let (_, foreign) = held(&desk, &server, "c", &json!({"currency": "USD"}), "CURRENCY");
    let (_, dismissed) = held(&desk, &server, "d", &little, "AMOUNT");
    let listed = get(&server, "recharges?held=AMOUNT");
    assert_eq!(listed["payments"].as_array().expect("a list").len(), 2, "{listed}");

    let path = format!("payments/{credited}/credit");
    assert_refused(&post(&server, &path, &because()), 400, "INVALID_REQUEST");
    let to = json!({"reason": "a test", "idem_key": "case-1", "user_id": OTHER});
    assert_refused(&post(&server, &path, &to), 400, "INVALID_REQUEST");
    assert_stands(&post(&server, &path, &credit("case-1")), "CREDITED");
    let again = post(&server, &path, &credit("case-1"));
    assert_stands(&again, "CREDITED");
    assert!(again.header("idempotent-replayed").is_some(), "{again:?}");
    server.recharge_is(USER, &order, "PAID");
    let after = server.balances(USER)["CNY"].funding.unwrap_or(0);
    assert_eq!(after - before, 50 * COIN, "as paid, once");
    let back = post(&server, &format!("payments/{credited}/return"), &because());
    assert_refused(&back, 409, "NOT_RETURNABLE");

    let currency = post(&server, &format!("payments/{foreign}/credit"), &credit("case-2"));
    assert_refused(&currency, 400, "INVALID_REQUEST");
    for payment in [&returned, &foreign] {
        let reply = post(&server, &format!("payments/{payment}/return"), &because());
        assert_eq!(reply.status, 200, "{reply:?}");
        eventually("its return", || {
            let shown = get(&server, &format!("recharges/{payment}"));
            (shown["payments"][0]["disposition"] == json!("RETURNED")).then_some(())
        });
    }
    assert_stands(
        &post(&server, &format!("payments/{dismissed}/dismiss"), &because()),
        "DISMISSED",
    );
    let late = post(&server, &format!("payments/{dismissed}/credit"), &credit("case-3"));
    assert_refused(&late, 409, "INVALID_REQUEST");
    assert_eq!(suspense(&desk), "0");
    assert_eq!(get(&server, "recharges?held=true")["payments"], json!([]));
    assert_eq!(
        actions(&desk),
        ["credit", "return", "return", "dismiss"].map(|end| format!("payment {end} admin/{ADMIN}"))
    );
    desk.site.assert_verified();
}

/// Goal: with `external` in `approval.required` no end of a payment moves money before a second
/// operator agrees, and then once. Method: each end, and the approval twice.
#[test]
fn rch_036_each_end_of_a_payment_waits_for_two_people() {
    let desk = Recharging::new();
    let desk = Recharging {
        site: desk.site.clone().with("UBSCORE__APPROVAL__REQUIRED", "external"),
        ..desk
    };
    let server = desk.start();
    let little = json!({"amount": 5_000});
    let mut wanted = Vec::new();
    for (end, body, disposition) in [
        ("credit", credit("case-1"), "CREDITED"),
        ("return", because(), "RETURNING"),
        ("dismiss", because(), "DISMISSED"),
        // The amount still differs.
        ("rematch", because(), "HELD"),
    ] {
        let (_, payment) = held(&desk, &server, end, &little, "AMOUNT");
        let path = format!("payments/{payment}/{end}");
        let asked = post(&server, &path, &body);
        assert_eq!(post(&server, &path, &body).json()["approval_id"], asked.json()["approval_id"]);
        let shown = get(&server, &format!("recharges/{payment}"));
        assert_eq!(shown["payments"][0]["disposition"], json!("HELD"), "{end}: nothing has moved");
        assert_stands(&approve(&server, &asked), disposition);
        wanted.push(format!("payment {end} admin/{ADMIN}, approved by admin/{APPROVER}"));
    }
    assert_eq!(actions(&desk), wanted);
    let credits = "SELECT count(*) FROM external_operations WHERE idem_key LIKE 'recharge/%'";
    assert_eq!(desk.site.sql_value(credits), "1");
    desk.site.assert_verified();
}

/// Goal: a payment of a lost order goes to a user by two operators alone, and not while the order
/// is here or was credited; an order that is back has it by a rematch. Method: rows of orders are
/// taken away before their payments, and put back.
#[test]
fn rch_023_a_payment_without_an_order_is_ended() {
    let (site, webhook) = alerting();
    // Rows are changed by hand below.
    let desk = Recharging::on(site.with("UBSCORE__CONSERVATION__EVERY_MS", 3_600_000));
    let server = desk.start();
    desk.site.sql("CREATE TABLE kept AS SELECT * FROM recharges_tb");
    let lose = |key: &str| {
        let id = server.recharge_paying(USER, &recharge("100", "card", key));
        let take = "ALTER TABLE recharges_tb DISABLE TRIGGER USER; \
                    WITH gone AS (DELETE FROM recharges_tb RETURNING *) \
                    INSERT INTO kept SELECT * FROM gone; \
                    ALTER TABLE recharges_tb ENABLE TRIGGER USER";
        desk.site.sql(take);
        desk.sim.pay(&id);
        let payment = eventually("the payment without an order", || {
            let found = get(&server, "recharges?held=UNMATCHED");
            let rows = found["payments"].as_array().expect("a list").clone();
            let row = rows.iter().find(|row| row["merchant_no"] == json!(id))?;
            Some(text(&row["payment_id"]).to_owned())
        });
        (id, payment)
    };
    let (lost, first) = lose("a");
    assert_raised(&server, &webhook, Alert::RechargeUnmatched);
    let path = format!("payments/{first}/credit");
    assert_refused(&post(&server, &path, &credit("case-1")), 400, "INVALID_REQUEST");
    let to = json!({"reason": "a test", "idem_key": "case-1", "user_id": USER});
    // A repair may have restored the credit of its order.
    let key = format!("recharge/{}/credit", lost.trim_start_matches("wrc_"));
    desk.site.sql("ALTER TABLE external_operations DISABLE TRIGGER USER");
    desk.site.sql(&format!(
        "INSERT INTO external_operations (idem_key, order_number, user_id, amount, asset_id, op) \
         VALUES ('{key}', 999999999, {USER}, 100000000, 6, 4)"
    ));
    assert_refused(&post(&server, &path, &to), 409, "INVALID_REQUEST");
    desk.site.sql(&format!("DELETE FROM external_operations WHERE idem_key = '{key}'"));
    desk.site.sql("ALTER TABLE external_operations ENABLE TRIGGER USER");
    let asked = post(&server, &path, &to);
    let other = json!({"reason": "a test", "idem_key": "case-1", "user_id": OTHER});
    assert_refused(&post(&server, &path, &other), 409, "IDEM_KEY_CONFLICT");
    assert_stands(&approve(&server, &asked), "CREDITED");

    let (_, second) = lose("b");
    desk.site.sql("INSERT INTO recharges_tb SELECT * FROM kept WHERE idem_key = 'b'");
    let path = format!("payments/{second}/credit");
    let here = post(&server, &path, &to);
    // The channel comes again until the order is there: it may have been first.
    if here.status != 200 {
        assert_refused(&here, 409, "INVALID_REQUEST");
        assert_stands(
            &post(&server, &format!("payments/{second}/rematch"), &because()),
            "CREDITED",
        );
    }
    assert_eq!(suspense(&desk), "0");
}

/// Goal: orders are found, shown with the word of their channel, asked and closed; a forced close
/// is in the name of its operator. Bad input is refused.
#[test]
fn an_order_is_found_shown_asked_and_closed() {
    let desk = Recharging::new();
    let server = desk.start();
    let paid = server.recharge_paying(USER, &recharge("100", "wechat", "a"));
    let open = server.recharge_paying(OTHER, &recharge("20", "card", "b"));
    let forced = server.recharge_paying(OTHER, &recharge("30", "wechat", "c"));
    desk.sim.pay(&paid);
    server.recharge_is(USER, &paid, "PAID");
    let ids = |query: &str| -> Vec<Value> {
        let found = get(&server, &format!("recharges?{query}"));
        let rows = found["recharges"].as_array().expect("a list").iter();
        rows.map(|row| row["recharge_id"].clone()).collect()
    };
    assert_eq!(ids(""), [&forced, &open, &paid].map(|id| json!(id)));
    assert_eq!(ids(&format!("user={USER}")), [json!(paid)]);
    assert_eq!(ids("channel=card"), [json!(open)]);
    assert_eq!(ids("overdue=true"), Vec::<Value>::new());
    let first = get(&server, "recharges?limit=1");
    let cursor = text(&first["next_cursor"]);
    assert_eq!(ids(&format!("cursor={cursor}&limit=1")), [json!(open)]);
    let shown = get(&server, &format!("recharges/{paid}?ask=true"));
    assert_eq!(shown["channel_says"]["word"], json!("PAID"), "{shown}");
    let trade_no = text(&shown["payments"][0]["trade_no"]);
    assert_eq!(shown["channel_says"]["payments"][0]["trade_no"], json!(trade_no));
    let found = get(&server, &format!("recharges?trade_no={trade_no}"));
    assert_eq!(found["payments"][0]["recharge_id"], json!(paid), "{found}");
    assert!(!shown.to_string().contains("weixin://"), "the payer's data is the owner's: {shown}");

    assert_eq!(post(&server, &format!("recharges/{open}/query"), &because()).status, 200);
    assert_refused(
        &post(&server, &format!("recharges/{paid}/close"), &because()),
        409,
        "RECHARGE_PAID",
    );
    assert_eq!(post(&server, &format!("recharges/{open}/close"), &because()).status, 200);
    server.recharge_is(OTHER, &open, "CLOSED");
    let body = json!({"reason": "a test", "force": true});
    let reply = post(&server, &format!("recharges/{forced}/close"), &body);
    assert_eq!((reply.status, &reply.json()["state"]), (200, &json!("CLOSED")), "{reply:?}");
    let shown = get(&server, &format!("recharges/{forced}"));
    let last = shown["history"].as_array().expect("steps").last().expect("one").clone();
    assert_eq!(last["by"], json!(format!("admin/{ADMIN}")), "{last}");
    // It comes all the same, and is a late one.
    desk.sim.done("POST", &format!("/pay/{forced}"), &json!({"late": true}));
    eventually("the late payment", || {
        let shown = get(&server, &format!("recharges/{forced}"));
        (shown["payments"][0]["disposition"] == json!("CREDITED")).then_some(())
    });
    for bad in ["held=LOST", "overdue=1", "user=x", "limit=0", "cursor=x", "channel=A", "x=1"] {
        let reply = server.admin_get(&format!("/admin/v1/recharges?{bad}"));
        assert_refused(&reply, 400, "INVALID_REQUEST");
    }
    let none = "/admin/v1/recharges/wrc_01JFVQ2X8Z0Y1M3N4P5R6S7T8U";
    assert_refused(&server.admin_get(none), 404, "RECHARGE_NOT_FOUND");
}

/// Goal: a paused channel takes no new orders, also behind a restart; one that is open is paid.
#[test]
fn a_paused_channel_stays_paused_and_its_orders_go_on() {
    let desk = Recharging::new();
    let server = desk.start();
    let open = server.recharge_paying(USER, &recharge("100", "wechat", "a"));
    let reply = post(&server, "channels/wechat/pause", &because());
    assert_eq!((reply.status, &reply.json()["paused"]), (200, &json!(true)), "{reply:?}");
    let refused = server.recharge(USER, &recharge("100", "wechat", "b"));
    assert_refused(&refused, 422, "CHANNEL_SUSPENDED");
    assert_refused(&post(&server, "channels/nope/pause", &because()), 400, "INVALID_CHANNEL");
    server.stop();
    let server = desk.start();
    assert_eq!(get(&server, "channels")["channels"][1]["paused"], json!(true));
    let refused = server.recharge(USER, &recharge("100", "wechat", "b"));
    assert_refused(&refused, 422, "CHANNEL_SUSPENDED");
    desk.sim.pay(&open);
    server.recharge_is(USER, &open, "PAID");
    assert_eq!(post(&server, "channels/wechat/unpause", &because()).status, 200);
    server.recharge_paying(USER, &recharge("100", "wechat", "b"));
}

/// Goal: a held payment and a contradiction call an operator, and are counted. Method: too little
/// is paid; the record of a payment is changed by hand, and its callback comes again.
#[test]
fn rch_041_held_and_contradicting_payments_are_said() {
    let (site, webhook) = alerting();
    let desk = Recharging::on(site);
    let server = desk.start();
    let (order, _) = held(&desk, &server, "a", &json!({"amount": 5_000}), "AMOUNT");
    assert_raised(&server, &webhook, Alert::RechargeHeld);
    eventually("the gauge", || {
        let line = "ubscore_recharge_payments_held{cause=\"AMOUNT\"} 1";
        server.metrics().lines().any(|found| found == line).then_some(())
    });
    desk.site.sql(
        "ALTER TABLE channel_payments DISABLE TRIGGER USER; \
         UPDATE channel_payments SET minor_units = 1; \
         ALTER TABLE channel_payments ENABLE TRIGGER USER",
    );
    desk.sim.done("POST", &format!("/sim/replay/{order}"), &json!({}));
    assert_raised(&server, &webhook, Alert::RechargeContradiction);
}

/// Goal: the chapters of the runbook about recharges work as printed. Method: every block marked
/// `bash`, against a service with a held payment, an open order and a channel.
#[test]
fn rch_042_the_runbook_ends_a_held_payment() {
    let desk = Recharging::new();
    let server = desk.start();
    let (_, payment) = held(&desk, &server, "a", &json!({"amount": 5_000}), "AMOUNT");
    let open = server.recharge_paying(USER, &recharge("20", "wechat", "b"));
    let shown = get(&server, &format!("recharges/{payment}"));
    let names = [
        ("PAYMENT_ID", payment.as_str()),
        ("TRADE_NO", text(&shown["payments"][0]["trade_no"])),
        ("RECHARGE_ID", open.as_str()),
        ("CHANNEL", "wechat"),
    ];
    let run = run_blocks("bash", server.ops, &names);
    assert!(run >= 10, "{run}");
}

/// Goal: the doctor sees each channel, its keys, and one that is away. Method: with the simulator,
/// and without it.
#[test]
fn the_doctor_asks_each_channel() {
    let desk = Recharging::new();
    let findings = |expected: i32| -> Vec<(String, String, String)> {
        let output = desk.site.tool(["doctor", "--format", "json"]).output().expect("the binary");
        let (code, out, err) = said(&output);
        assert_eq!(code, expected, "{out}{err}");
        let lines = out.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
        let part = |found: &Value, key: &str| text(&found[key]).to_owned();
        lines
            .map(|found| (part(&found, "check"), part(&found, "verdict"), part(&found, "found")))
            .filter(|(check, ..)| check.starts_with("channel") || check.starts_with("callbacks"))
            .collect()
    };
    let well = findings(0);
    assert_eq!(well.len(), 5, "{well:?}");
    for (check, verdict, found) in &well {
        assert_ne!(verdict, "bad", "{check}: {found}");
    }
    let names = |name: &str| well.iter().filter(|(.., found)| found.starts_with(name)).count();
    assert_eq!((names("wechat"), names("card")), (2, 2), "{well:?}");
    desk.sim.faults(&json!({"answer": "error"}));
    let failing = findings(1);
    let keys = failing
        .iter()
        .find(|(check, verdict, _)| (check.as_str(), verdict.as_str()) == ("channel keys", "bad"));
    assert!(keys.is_some_and(|(.., found)| found.starts_with("wechat")), "{failing:?}");
}

/// Goal: the console shows recharges, channels and a held payment, and two operators end it there.
#[test]
fn rch_042_the_console_credits_a_held_payment() {
    let desk = Recharging::new();
    let desk = Recharging {
        site: desk.site.clone().with("UBSCORE__APPROVAL__REQUIRED", "external"),
        ..desk
    };
    let server = desk.start();
    let (order, payment) = held(&desk, &server, "a", &json!({"amount": 5_000}), "AMOUNT");
    let (maker, approver) = (Browser::start(), Browser::start());
    for (browser, operator) in [(&maker, ADMIN), (&approver, APPROVER)] {
        browser.open(&format!("http://{}/console", server.ops));
        browser.type_into("#token", &token(operator, Some(Role::Admin)));
        browser.press("#sign-in-do");
        browser.wait_for("#operator", &format!("operator {operator}"));
    }
    maker.wait_for("#recharges", &order);
    maker.wait_for("#channels", "wechat");
    maker.wait_for("#held-title", "AMOUNT 1");
    maker.press_button("#held", &payment);
    maker.wait_for("#recharge", "What happened");
    maker.press_button("#recharge", "Ask the channel");
    maker.wait_for("#recharge", "The channel says");
    maker.press_button("#recharge", "Credit");
    maker.wait_for("#action-title", "Credit");
    maker.type_into("#reason", "the payer is right");
    maker.press("#action-do");
    maker.wait_for("#said", "This waits for another operator: approval ");
    approver.wait_for("#approvals", "the payer is right");
    approver.press_button("#approvals", "Approve");
    approver.wait_for("#action-title", "Approve: external payment");
    approver.type_into("#reason", "agreed");
    approver.press("#action-do");
    maker.wait_for("#recharge", "CREDITED");
    maker.wait_for("#held", "Nothing is held.");
    maker.wait_for("#recharge", "recharge.paid");
    maker.wait_for("#channel-sums", "wechat");
    maker.wait_for("#receivables", "No taken money is owed.");
    server.recharge_is(USER, &order, "PAID");
    maker.press_button("#channels", "Pause");
    maker.wait_for("#action-title", "Pause channel card");
    maker.type_into("#reason", "a test");
    maker.press("#action-do");
    maker.wait_for("#channels", "Unpause");
    maker.type_into("#recharges-sought", &USER.to_string());
    maker.press("#recharges-filter button");
    maker.wait_for("#recharges", &order);
}
