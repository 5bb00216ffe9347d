//! Promotions, by the real binary over simulated channels: a bonus is reserved, given to the unit,
//! goes back, and goes out with a refund.

/// Laws broken by SQL.
mod broken;
/// Deaths at each point of a bonus.
mod kills;
/// The acts of operators.
mod operated;
/// Bonuses that go out again.
mod returned;

use std::thread;

use serde_json::{Value, json};

use crate::harness::{
    ADMIN, Balance, COIN, Recharging, Reply, Server, Site, assert_refused, eventually, recharge,
    text,
};

const USER: u64 = 1001;
const NAME: &str = "spring";

/// A change of a promotion, or a new one.
fn set(server: &Server, name: &str, body: &Value) -> Reply {
    server.admin("PUT", &format!("/admin/v1/promotions/{name}"), body)
}

/// The terms of a promotion of 12.5 %, at most 20 CNY, from 10 CNY on.
fn terms() -> Value {
    json!({
        "reason": "a test", "asset": "CNY", "min_amount": "10", "basis_points": 1_250,
        "bonus_max": "20", "per_user_max": 100, "ends_at": "2200-01-01T00:00:00Z",
    })
}

fn with(body: &Value, field: &str, value: Value) -> Value {
    let mut body = body.clone();
    body[field] = value;
    body
}

fn fund(server: &Server, name: &str, amount: &str, key: &str) -> Reply {
    let body = json!({"reason": "a test", "amount": amount, "idem_key": key});
    server.admin("POST", &format!("/admin/v1/promotions/{name}/fund"), &body)
}

/// A promotion with money in it.
fn funded(server: &Server, body: &Value, amount: &str) {
    let made = set(server, NAME, body);
    assert_eq!(made.status, 200, "{made:?}");
    let put = fund(server, NAME, amount, "fund-1");
    assert_eq!(put.status, 200, "{put:?}");
}

fn promotion(server: &Server) -> Value {
    let reply = server.admin_get(&format!("/admin/v1/promotions/{NAME}"));
    assert_eq!(reply.status, 200, "{reply:?}");
    reply.json()
}

/// Available, reserved and given of the promotion.
fn sums(server: &Server) -> [String; 3] {
    let promotion = promotion(server);
    ["available", "reserved", "given"].map(|key| text(&promotion[key]).to_owned())
}

#[track_caller]
fn assert_sums(server: &Server, sums: [&str; 3]) {
    assert_eq!(self::sums(server), sums);
}

/// The body of a recharge with the promotion.
fn promoted(amount: &str, channel: &str, key: &str) -> Value {
    with(&recharge(amount, channel, key), "promotion", json!(NAME))
}

fn funding(server: &Server, user: u64) -> u128 {
    server.balances(user).get("CNY").and_then(|balance: &Balance| balance.funding).unwrap_or(0)
}

/// Both stores agree, and no row contradicts another.
fn assert_whole(desk: &Recharging) {
    let found = desk.site.sql(
        "SELECT subject, what FROM audit_recharges('epoch', 'infinity') \
         UNION ALL SELECT subject, what FROM audit_promotions('epoch', 'infinity')",
    );
    assert_eq!(found, Vec::<Vec<String>>::new());
    desk.site.assert_verified();
}

fn closed(server: &Server, id: &str) {
    let reply = server.ask(USER, "POST", &format!("/api/v1/recharge/{id}/cancel"), None);
    assert!([200, 202].contains(&reply.status), "{reply:?}");
    server.recharge_is(USER, id, "CLOSED");
}

/// Goal: a bonus comes out of the promotion to the unit with the credit, in one commit, and goes
/// back on close; a repeat reserves nothing. Method: orders through both channels, paid and
/// cancelled.
#[test]
fn rch_028_a_bonus_is_given_to_the_unit_and_goes_back_on_close() {
    let desk = Recharging::new();
    let server = desk.start();
    funded(&server, &terms(), "30");
    for (channel, left) in [("wechat", "28.62"), ("card", "27.24")] {
        let before = funding(&server, USER);
        // 12.5 % of 11.11 is 1.38875.
        let body = promoted("11.11", channel, channel);
        let made = server.recharge(USER, &body);
        assert_eq!(made.status, 201, "{made:?}");
        let order = made.json();
        assert_eq!((&order["bonus"], &order["total"]), (&json!("1.38"), &json!("12.49")));
        let id = text(&order["recharge_id"]);
        assert_eq!(sums(&server)[..2], [left, "1.38"]);
        let again = server.recharge(USER, &body);
        assert_eq!((again.status, again.header("idempotent-replayed")), (200, Some("true")));
        assert_refused(
            &server.recharge(USER, &promoted("11.12", channel, channel)),
            409,
            "DUPLICATE_REQUEST",
        );
        assert_refused(
            &server.recharge(USER, &recharge("11.11", channel, channel)),
            409,
            "DUPLICATE_REQUEST",
        );
        assert_eq!(sums(&server)[..2], [left, "1.38"], "a repeat reserves nothing");
        desk.sim.pay(id);
        let paid = server.recharge_is(USER, id, "PAID");
        assert_eq!((&paid["bonus"], &paid["total"]), (&json!("1.38"), &json!("12.49")));
        assert_eq!(funding(&server, USER) - before, 1_249 * COIN / 100);
    }
    assert_sums(&server, ["27.24", "0", "2.76"]);
    let id = server.recharge_paying(USER, &promoted("1000", "wechat", "closes"));
    assert_sums(&server, ["7.24", "20", "2.76"]);
    closed(&server, &id);
    eventually("the bonus to go back", || {
        (sums(&server) == ["27.24", "0", "2.76"].map(str::to_owned)).then_some(())
    });
    assert_eq!(server.recharge_of(USER, &id)["bonus"], json!("0"));
    let totals = server.get(USER, "/api/v1/recharges/totals").json();
    assert_eq!(totals["totals"][0]["bonus"], json!("2.76"), "{totals}");
    let records = "SELECT count(*) FROM external_operations WHERE idem_key LIKE 'recharge/%/bonus'";
    assert_eq!(desk.site.sql_value(records), "2");
    assert_whole(&desk);
}

/// Goal: the sum that goes on to Spot is that with the bonus.
#[test]
fn rch_028_a_bonus_goes_on_to_spot_with_its_order() {
    let desk = Recharging::new();
    let server = desk.start();
    funded(&server, &terms(), "30");
    let before = server.balances(USER)["CNY"];
    let body = with(&promoted("100", "wechat", "spot"), "to", json!("SPOT"));
    let id = server.recharge_paying(USER, &body);
    desk.sim.pay(&id);
    eventually("the money on Spot", || {
        let order = server.recharge_of(USER, &id);
        (order["transfer"]["state"] == json!("ARRIVED")).then_some(())
    });
    let after = server.balances(USER)["CNY"];
    assert_eq!(after.spot.unwrap_or(0) - before.spot.unwrap_or(0), 1_125 * COIN / 10);
    assert_eq!(after.funding.unwrap_or(0), before.funding.unwrap_or(0));
    assert_whole(&desk);
}

/// Goal: a payment that is not the order's own gets no bonus, and the promotion has it again.
/// Method: an order that is paid late, and a held payment of another one that an operator
/// credits.
#[test]
fn rch_028_a_late_and_a_held_payment_get_no_bonus() {
    let desk = Recharging::new();
    let server = desk.start();
    funded(&server, &terms(), "30");
    let before = funding(&server, USER);
    let late = server.recharge_paying(USER, &promoted("100", "wechat", "late"));
    closed(&server, &late);
    desk.sim.done("POST", &format!("/pay/{late}"), &json!({"late": true}));
    eventually("the late credit", || (funding(&server, USER) == before + 100 * COIN).then_some(()));
    let odd = server.recharge_paying(USER, &promoted("100", "wechat", "odd"));
    desk.sim.done("POST", &format!("/pay/{odd}"), &json!({"amount": 9_000}));
    let payment = eventually("the payment to be held", || {
        let shown = server.recharge_of(USER, &odd);
        let payment = shown["payments"][0].clone();
        (payment["disposition"] == json!("HELD")).then(|| text(&payment["payment_id"]).to_owned())
    });
    assert_eq!(sums(&server)[1], "12.5", "it is reserved while the payment is held");
    let credit = json!({"reason": "a test", "idem_key": "credit-1"});
    let reply = server.admin("POST", &format!("/admin/v1/payments/{payment}/credit"), &credit);
    assert_eq!(reply.status, 200, "{reply:?}");
    let paid = server.recharge_is(USER, &odd, "PAID");
    eventually("both bonuses to go back", || {
        (sums(&server) == ["30", "0", "0"].map(str::to_owned)).then_some(())
    });
    assert_eq!(paid["error"], Value::Null);
    assert_eq!(funding(&server, USER), before + 190 * COIN);
    assert_whole(&desk);
}

/// Goal: orders at once never overdraw a promotion, nor the most of one user. Method: 50 users for
/// the money of 20 bonuses; then 20 orders of one user with at most 3.
#[test]
fn rch_028_orders_at_once_never_overdraw_a_promotion() {
    let desk = Recharging::on(Site::new().with("UBSCORE__RECHARGE__USER_OPEN_MAX", 100));
    let server = desk.start();
    funded(&server, &with(&terms(), "per_user_max", json!(3)), "200");
    let ask = |user: u64, key: String| {
        let reply = server.recharge(user, &promoted("80", "wechat", &key));
        match reply.status {
            201 => true,
            _ => {
                assert_refused(&reply, 422, "PROMOTION_NOT_APPLICABLE");
                false
            }
        }
    };
    let made = |asked: Vec<(u64, String)>| -> usize {
        thread::scope(|scope| {
            let ask = &ask;
            let threads: Vec<_> =
                asked.into_iter().map(|(user, key)| scope.spawn(move || ask(user, key))).collect();
            let ends = threads.into_iter().map(|one| one.join().expect("no panic"));
            ends.filter(|made| *made).count()
        })
    };
    assert_eq!(made((0..50).map(|n| (2_000 + n, format!("many-{n}"))).collect()), 20);
    assert_sums(&server, ["0", "200", "0"]);
    let orders = "SELECT count(*) FROM recharges_tb";
    assert_eq!(desk.site.sql_value(orders), "20", "a refusal makes no order");
    assert_eq!(fund(&server, NAME, "200", "fund-2").status, 200);
    assert_eq!(made((0..20).map(|n| (USER, format!("one-{n}"))).collect()), 3);
    assert_sums(&server, ["170", "230", "0"]);
    assert_whole(&desk);
}

/// Goal: each reason for no bonus is named, and makes no order.
#[test]
fn rch_028_bad_input_is_refused_with_its_reason() {
    let desk = Recharging::new();
    let server = desk.start();
    let mut n = 0;
    let mut says = |name: &Value, amount: &str| {
        n += 1;
        let body =
            with(&recharge(amount, "wechat", &format!("bad-{n}")), "promotion", name.clone());
        let reply = server.recharge(USER, &body);
        assert_refused(&reply, 422, "PROMOTION_NOT_APPLICABLE");
        reply.body
    };
    for name in ["none", "", "Spring", "a/b", "0123456789abcdefg", "\u{0}", "'; --"] {
        let said = says(&json!(name), "100");
        assert!(said.contains("none of this name"), "{name:?}: {said}");
    }
    let made = |name: &str, field: &str, value: Value| {
        let reply = set(&server, name, &with(&terms(), field, value));
        assert_eq!(reply.status, 200, "{reply:?}");
    };
    made("over", "starts_at", json!("2020-01-01T00:00:00Z"));
    let ends = json!({"reason": "a test", "ends_at": "2021-01-01T00:00:00Z"});
    assert_eq!(set(&server, "over", &ends).status, 200);
    made("soon", "starts_at", json!("2199-01-01T00:00:00Z"));
    made("stopped", "status", json!("STOPPED"));
    made("usdt", "asset", json!("USDT"));
    made("empty", "reason", json!("no money"));
    for (name, amount, why) in [
        ("over", "100", "it is over"),
        ("soon", "100", "it has not begun"),
        ("stopped", "100", "it is stopped"),
        ("usdt", "100", "it is for another asset"),
        ("empty", "9.99", "below its minimum"),
        ("empty", "100", "no money left"),
    ] {
        let said = says(&json!(name), amount);
        assert!(said.contains(why), "{name}: {said}");
    }
    funded(&server, &with(&terms(), "per_user_max", json!(1)), "30");
    server.recharge_paying(USER, &promoted("10", "wechat", "first"));
    let said = says(&json!(NAME), "10");
    assert!(said.contains("used it up"), "{said}");
    let own = with(&promoted("10", "wechat", "own"), "bonus", json!("20"));
    assert_refused(&server.recharge(USER, &own), 400, "INVALID_REQUEST");
    assert_eq!(desk.site.sql_value("SELECT count(*) FROM recharges_tb"), "1");
    assert_whole(&desk);
}
