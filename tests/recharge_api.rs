//! The public routes and the events of recharges, on the binary, with a simulated channel.

use serde_json::{Value, json};
use ubscore::alert::Alert;

use crate::alerts::{assert_raised, site as alerting};
use crate::harness::{COIN, Part, Recharging, assert_refused, eventually, recharge, text};

/// Bad input, other users and viewers.
mod refused;
/// Events, in streams and at an endpoint.
mod told;

const USER: u64 = 1001;
const OTHER: u64 = 1002;

/// Goal: one call, one payment, one event: the wallet has the money, and the order says everything
/// about it. Both formats.
#[test]
fn rch_001_a_recharge_is_created_paid_and_credited() {
    let desk = Recharging::new();
    let server = desk.start();
    for (channel, kind) in [("wechat", "code_url"), ("card", "client_secret")] {
        let before = server.balances(USER)["CNY"];
        let body = recharge("100.00", channel, &format!("topup-{channel}"));
        let made = server.recharge(USER, &body);
        assert_eq!(made.status, 201, "{made:?}");
        let order = made.json();
        for (field, want) in [
            ("asset", json!("CNY")),
            ("amount", json!("100")),
            ("bonus", json!("0")),
            ("total", json!("100")),
            ("to", json!("FUNDING")),
            ("channel", json!(channel)),
            ("state", json!("PAYING")),
            ("closing", json!(false)),
            ("final", json!(false)),
            ("payments", json!([])),
            ("returns", json!([])),
            ("transfer", json!(null)),
            ("error", json!(null)),
            ("idem_key", body["idem_key"].clone()),
            ("paid_at", json!(null)),
        ] {
            assert_eq!(order[field], want, "{field}: {order}");
        }
        assert_eq!(order["pay"]["kind"], json!(kind), "{order}");
        assert!(!text(&order["pay"]["value"]).is_empty());
        let id = text(&order["recharge_id"]).to_owned();
        desk.sim.pay(&id);
        let paid = server.get(USER, &format!("/api/v1/recharge/{id}?wait_ms=30000")).json();
        assert_eq!((&paid["state"], &paid["final"]), (&json!("PAID"), &json!(true)), "{paid}");
        assert_eq!(paid["pay"], json!(null), "forgotten");
        assert_eq!(paid["payments"][0]["disposition"], json!("CREDITED"), "{paid}");
        assert_eq!(paid["payments"][0]["amount"], json!("100"), "{paid}");
        assert!(paid["paid_at"].is_string());
        let after = server.balances(USER)["CNY"];
        assert_eq!(after.funding.unwrap_or(0) - before.funding.unwrap_or(0), 100 * COIN);
        let history = server.get(USER, &format!("/api/v1/recharge/{id}/history")).json();
        let states: Vec<&Value> =
            history["history"].as_array().expect("steps").iter().map(|s| &s["state"]).collect();
        assert_eq!(states, [&json!("INIT"), &json!("PAYING"), &json!("PAID")]);
    }
    let totals = server.get(USER, "/api/v1/recharges/totals").json();
    let want = json!({
        "totals": [{"asset": "CNY", "recharged": "200", "bonus": "0", "returned": "0", "count": 2}],
    });
    assert_eq!(totals, want);
    assert!(!server.said().contains("weixin://"), "no log has what lets its reader pay");
    desk.site.assert_verified();
}

/// Goal: a callback again changes nothing that the user sees: no event, no money.
#[test]
fn rch_002_a_callback_again_tells_no_event() {
    let desk = Recharging::new();
    let server = desk.start();
    let id = server.recharge_paying(USER, &recharge("5", "wechat", "topup-1"));
    desk.sim.pay(&id);
    let paid = server.recharge_is(USER, &id, "PAID");
    let seen = || desk.site.sql("SELECT event_id, change FROM recharge_events ORDER BY event_id");
    let before = (seen(), server.balances(USER)["CNY"].funding);
    assert_eq!(before.0.len(), 2, "paying and paid");
    desk.sim.done("POST", &format!("/sim/replay/{id}"), &json!({}));
    eventually("all callbacks to be answered", || {
        let parcels = desk.sim.done("GET", "/sim/parcels", &json!({}));
        (parcels["open"] == json!(0)).then_some(())
    });
    assert_eq!((seen(), server.balances(USER)["CNY"].funding), before);
    assert_eq!(server.recharge_of(USER, &id), paid);
}

/// Goal: a key makes one order, here and at the channel, and its repeat is answered by the present
/// state, also if a check would refuse it now.
#[test]
fn rch_005_a_key_is_one_order_here_and_at_the_channel() {
    let desk = Recharging::new();
    let server = desk.start();
    let body = recharge("100.00", "wechat", "topup-1");
    let made = server.recharge(USER, &body);
    assert_eq!((made.status, made.header("idempotent-replayed")), (201, None), "{made:?}");
    let id = text(&made.json()["recharge_id"]).to_owned();
    // Another spelling of the same amount.
    let again = server.recharge(USER, &recharge("100", "wechat", "topup-1"));
    assert_eq!((again.status, again.header("idempotent-replayed")), (200, Some("true")));
    assert_eq!(again.json()["recharge_id"], json!(id));
    let other = server.recharge(USER, &recharge("101", "wechat", "topup-1"));
    assert_refused(&other, 409, "DUPLICATE_REQUEST");
    assert!(text(&other.json()["message"]).contains("amount"), "{other:?}");
    let of_other = server.recharge_paying(OTHER, &body);
    assert_ne!(of_other, id);
    let there = desk.sim.done("GET", &format!("/sim/orders/{id}"), &json!({}));
    assert_eq!(there.as_array().map(Vec::len), Some(1), "{there}");
    desk.sim.pay(&id);
    server.recharge_is(USER, &id, "PAID");
    // What would be refused now is a repeat all the same.
    server.change_asset("CNY", json!({"status": "SUSPENDED"}));
    assert_refused(&server.recharge(USER, &recharge("1", "wechat", "new")), 422, "ASSET_SUSPENDED");
    let again = server.recharge(USER, &body);
    assert_eq!((again.status, &again.json()["state"]), (200, &json!("PAID")), "{again:?}");
    assert_eq!(again.header("idempotent-replayed"), Some("true"));
}

/// Goal: an order that is not paid is closed at the channel and here; a paid one is not.
#[test]
fn a_user_cancels_an_unpaid_order_and_no_paid_one() {
    let desk = Recharging::new();
    let server = desk.start();
    let cancel =
        |user, id: &str| server.ask(user, "POST", &format!("/api/v1/recharge/{id}/cancel"), None);
    let id = server.recharge_paying(USER, &recharge("5", "wechat", "topup-1"));
    assert_refused(&cancel(OTHER, &id), 404, "RECHARGE_NOT_FOUND");
    let closed = cancel(USER, &id);
    assert_eq!((closed.status, &closed.json()["state"]), (200, &json!("CLOSED")), "{closed:?}");
    assert_eq!((&closed.json()["pay"], &closed.json()["final"]), (&json!(null), &json!(true)));
    assert_eq!(cancel(USER, &id).status, 200, "again");
    let (status, _) = desk.sim.ask("POST", &format!("/pay/{id}"), &json!({}));
    assert_eq!(status, 409, "it cannot be paid any more");
    let history = server.get(USER, &format!("/api/v1/recharge/{id}/history")).json();
    let wishes: Vec<&Value> = history["history"].as_array().expect("steps").iter().collect();
    assert!(wishes.iter().any(|step| step["closing"] == json!("CANCELLED")), "{history}");

    let id = server.recharge_paying(USER, &recharge("5", "wechat", "topup-2"));
    desk.sim.pay(&id);
    server.recharge_is(USER, &id, "PAID");
    assert_refused(&cancel(USER, &id), 409, "RECHARGE_PAID");

    // With the channel away the wish is written down.
    let id = server.recharge_paying(USER, &recharge("5", "wechat", "topup-3"));
    desk.sim.faults(&json!({"answer": "away"}));
    let short = desk.site.clone().with("UBSCORE__RECHARGE__CREATE_WAIT_MS", 100);
    server.stop();
    let server = short.start();
    let wished = server.ask(USER, "POST", &format!("/api/v1/recharge/{id}/cancel"), None);
    assert_eq!((wished.status, &wished.json()["closing"]), (202, &json!(true)), "{wished:?}");
    assert_eq!(wished.json()["pay"], json!(null), "no answer says how to pay");
    desk.sim.faults(&json!({}));
    server.recharge_is(USER, &id, "CLOSED");
}

/// Goal: with the channel away the answer is 202, the repeat too, and the order goes on when the
/// channel is back.
#[test]
fn an_order_waits_for_its_channel() {
    let desk = Recharging::new();
    let site = desk.site.clone().with("UBSCORE__RECHARGE__CREATE_WAIT_MS", 100);
    let server = site.start();
    desk.sim.faults(&json!({"answer": "away"}));
    let body = recharge("5", "wechat", "topup-1");
    let made = server.recharge(USER, &body);
    assert_eq!((made.status, &made.json()["state"]), (202, &json!("INIT")), "{made:?}");
    assert_eq!(made.json()["pay"], json!(null));
    let again = server.recharge(USER, &body);
    assert_eq!((again.status, again.header("idempotent-replayed")), (202, Some("true")));
    desk.sim.faults(&json!({}));
    let id = text(&made.json()["recharge_id"]).to_owned();
    let paying = server.recharge_is(USER, &id, "PAYING");
    assert!(paying["pay"].is_object(), "{paying}");
}

/// Goal: the owner and an operator see the money of an order for Spot arrive there, and that it
/// never does.
#[test]
fn rch_029_the_order_says_how_far_its_money_has_gone() {
    let desk = Recharging::new();
    let server = desk.start();
    let for_spot = |key: &str| {
        let mut body = recharge("100", "wechat", key);
        body["to"] = json!("SPOT");
        server.recharge_paying(USER, &body)
    };
    let ends = |id: &str, state: &str| {
        eventually(state, || {
            let order = server.recharge_of(USER, id);
            (order["transfer"]["state"] == json!(state)).then_some(order)
        })
    };
    let shown = |id: &str| {
        let reply = server.admin_get(&format!("/admin/v1/recharges/{id}"));
        assert_eq!(reply.status, 200, "{reply:?}");
        reply.json()["recharge"]["follow"].clone()
    };
    let before = server.balances(USER)["CNY"];
    let id = for_spot("arrives");
    assert_eq!(server.recharge_of(USER, &id)["transfer"], json!(null), "not yet paid");
    desk.sim.pay(&id);
    let order = ends(&id, "ARRIVED");
    assert_eq!((&order["state"], &order["error"]), (&json!("PAID"), &json!(null)), "{order}");
    let req_id = text(&order["transfer"]["req_id"]).to_owned();
    assert_eq!(order["transfer"]["code"], json!(null), "{order}");
    assert_eq!(shown(&id), json!({"state": "ARRIVED", "req_id": req_id, "code": null}));
    let transfer = server.get(USER, &format!("/api/v1/internal_transfer/{req_id}")).json();
    assert_eq!((&transfer["to"], &transfer["amount"]), (&json!("SPOT"), &json!("100")));
    let after = server.balances(USER)["CNY"];
    assert_eq!(after.spot.unwrap_or(0) - before.spot.unwrap_or(0), 100 * COIN);
    assert_eq!(after.funding.unwrap_or(0), before.funding.unwrap_or(0));

    let id = for_spot("stays");
    server.set_status(USER, "FUNDING", "FROZEN");
    desk.sim.pay(&id);
    let order = ends(&id, "FAILED");
    assert_eq!(order["state"], json!("PAID"), "{order}");
    assert_eq!(order["transfer"]["code"], json!("ACCOUNT_FROZEN"), "{order}");
    assert_eq!(shown(&id)["code"], json!("ACCOUNT_FROZEN"));
    let funding = server.balances(USER)["CNY"].funding.unwrap_or(0);
    assert_eq!(funding - before.funding.unwrap_or(0), 100 * COIN);
}

/// Goal: a refund that was made at the channel behind our back calls an operator, and changes
/// nothing; an order that only was paid does not.
#[test]
fn a_refund_behind_our_back_is_said() {
    let (site, webhook) = alerting();
    let desk = Recharging::on(site);
    let server = desk.start();
    let credited = |channel: &str, key: &str| {
        let id = server.recharge_paying(USER, &recharge("100", channel, key));
        desk.sim.pay(&id);
        let paid = server.recharge_is(USER, &id, "PAID");
        (id, text(&paid["payments"][0]["payment_id"]).to_owned())
    };
    let said = |payment: &str| {
        let said = server.said();
        said.lines().any(|line| {
            line.contains("the returns here do not explain it") && line.contains(payment)
        })
    };
    for channel in ["wechat", "card"] {
        let (_, paid) = credited(channel, &format!("{channel}-paid"));
        let (theirs, payment) = credited(channel, &format!("{channel}-theirs"));
        let before = server.balances(USER)["CNY"].funding;
        desk.sim.done("POST", &format!("/sim/refund/{theirs}"), &json!({}));
        eventually("the alert", || said(&payment).then_some(()));
        assert_raised(&server, &webhook, Alert::RechargeContradiction);
        assert_eq!(server.recharge_of(USER, &theirs)["state"], json!("PAID"), "it stays");
        assert_eq!(server.balances(USER)["CNY"].funding, before, "nothing is taken");
        assert!(!said(&paid));
    }
}

/// Goal: a user's list walks over each order once, and shows none of another user.
#[test]
fn a_list_is_walked_in_pages() {
    let desk = Recharging::new();
    let site = desk.site.clone().with("UBSCORE__RECHARGE__USER_OPEN_MAX", 20);
    let server = desk.called_back(site.start());
    let mut made: Vec<String> = (0..7)
        .map(|n| server.recharge_paying(USER, &recharge("5", "wechat", &format!("topup-{n}"))))
        .collect();
    server.recharge_paying(OTHER, &recharge("5", "wechat", "topup-1"));
    desk.sim.pay(&made[3]);
    server.recharge_is(USER, &made[3], "PAID");
    let (mut seen, mut cursor) = (Vec::new(), String::new());
    loop {
        let page = server.get(USER, &format!("/api/v1/recharges?limit=3{cursor}")).json();
        let rows = page["recharges"].as_array().expect("rows");
        seen.extend(rows.iter().map(|row| text(&row["recharge_id"]).to_owned()));
        match page["next_cursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => break,
        }
    }
    made.sort_unstable_by(|one, other| other.cmp(one));
    assert_eq!(seen, made);
    for (query, count) in [
        ("state=PAID", 1),
        ("state=PAYING&channel=wechat", 6),
        ("channel=card", 0),
        ("since=2100-01-01T00:00:00Z", 0),
        ("until=2100-01-01T00:00:00Z", 7),
    ] {
        let page = server.get(USER, &format!("/api/v1/recharges?{query}")).json();
        assert_eq!(page["recharges"].as_array().map(Vec::len), Some(count), "{query}");
    }
    for query in
        ["state=DONE", "limit=0", "limit=101", "cursor=7", "since=now", "channel=A", "user=7"]
    {
        let reply = server.get(USER, &format!("/api/v1/recharges?{query}"));
        assert_refused(&reply, 400, "INVALID_REQUEST");
    }
    let channels = server.get(USER, "/api/v1/channels").json();
    let row = |name: &str| {
        json!({"name": name, "asset": "CNY", "min": "1", "max": "50000", "step": "0.01",
               "enabled": true})
    };
    assert_eq!(channels, json!({"channels": [row("card"), row("wechat")]}));
}

/// Goal: without recharges there is no such route.
#[test]
fn where_recharges_are_off_there_is_no_route() {
    let site = crate::harness::Site::new();
    let server = site.start();
    for (method, path) in [
        ("POST", "/api/v1/recharge"),
        ("PUT", "/api/v1/recharge"),
        ("GET", "/api/v1/recharge/wrc_01ARZ3NDEKTSV4RRFFQ69G5FAV"),
        ("GET", "/api/v1/recharge/wrc_01ARZ3NDEKTSV4RRFFQ69G5FAV/history"),
        ("POST", "/api/v1/recharge/wrc_01ARZ3NDEKTSV4RRFFQ69G5FAV/cancel"),
        ("GET", "/api/v1/recharges"),
        ("GET", "/api/v1/recharges/totals"),
        ("GET", "/api/v1/channels"),
    ] {
        assert_refused(&server.ask(USER, method, path, None), 404, "NOT_FOUND");
    }
}
