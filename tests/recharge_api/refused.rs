use ubscore::http::auth::Role;

use super::*;
use crate::harness::{Request, send, token};

/// Goal: each line of the table of bad input has its answer, makes no order, and asks no channel.
#[test]
fn bad_wishes_are_refused_and_make_no_order() {
    let desk = Recharging::new();
    let server = desk.start();
    let with = |field: &str, value: Value| {
        let mut body = recharge("5", "wechat", "topup-1");
        body[field] = value;
        body
    };
    let without = |field: &str| {
        let mut body = recharge("5", "wechat", "topup-1");
        body.as_object_mut().expect("an object").remove(field);
        body
    };
    for (body, status, code) in [
        (with("amount", json!("5.001")), 400, "PRECISION_OVERFLOW"),
        (with("amount", json!("5.0000001")), 400, "PRECISION_OVERFLOW"),
        (with("amount", json!("0.99")), 422, "AMOUNT_TOO_SMALL"),
        (with("amount", json!("50000.01")), 422, "AMOUNT_TOO_LARGE"),
        (with("amount", json!("0")), 400, "INVALID_AMOUNT"),
        (with("amount", json!("-5")), 400, "INVALID_AMOUNT"),
        (with("amount", json!("5e3")), 400, "INVALID_AMOUNT"),
        (with("amount", json!("99999999999999999999")), 400, "OVERFLOW"),
        (with("amount", json!(5)), 400, "INVALID_REQUEST"),
        (with("channel", json!("alipay")), 400, "INVALID_CHANNEL"),
        (with("asset", json!("USDT")), 400, "INVALID_CHANNEL"),
        (with("asset", json!("NONE")), 400, "INVALID_ASSET"),
        (with("to", json!("MINE")), 400, "INVALID_ACCOUNT_TYPE"),
        (with("to", json!("MARGIN")), 400, "UNSUPPORTED_ACCOUNT_TYPE"),
        (with("promotion", json!("spring")), 422, "PROMOTION_NOT_APPLICABLE"),
        (with("bonus", json!("20")), 400, "INVALID_REQUEST"),
        (with("tenant_id", json!(1)), 400, "INVALID_REQUEST"),
        (with("state", json!("PAID")), 400, "INVALID_REQUEST"),
        (with("idem_key", json!("a/b")), 400, "INVALID_REQUEST"),
        (with("idem_key", json!("")), 400, "INVALID_REQUEST"),
        (with("idem_key", json!("k".repeat(65))), 400, "INVALID_REQUEST"),
        (without("idem_key"), 400, "INVALID_REQUEST"),
        (without("asset"), 400, "INVALID_REQUEST"),
        (without("channel"), 400, "INVALID_REQUEST"),
        (with("user_id", json!(OTHER)), 403, "FORBIDDEN"),
    ] {
        let reply = server.recharge(USER, &body);
        assert_eq!(reply.refusal(), (status, code.to_owned()), "{body}");
    }
    server.change_asset("CNY", json!({"transfer_enabled": false}));
    let onward = server.recharge(USER, &with("to", json!("SPOT")));
    assert_refused(&onward, 422, "TRANSFER_NOT_ALLOWED");
    assert_eq!(desk.site.sql_value("SELECT count(*) FROM recharges_tb"), "0");
}

/// Goal: a viewer makes and cancels nothing, and another user's order is not there. An operator
/// reads it, and is not told how to pay.
#[test]
fn an_order_is_its_owners() {
    let desk = Recharging::new();
    let server = desk.start();
    let id = server.recharge_paying(USER, &recharge("5", "wechat", "topup-1"));
    let as_role = |user, role, method: &str, path: &str, body: Option<&Value>| {
        let token = token(user, role);
        send(server.http, &Request { body, ..Request::new(&token, method, path) })
            .expect("an answer")
    };
    let one = format!("/api/v1/recharge/{id}");
    for path in [one.clone(), format!("{one}/history")] {
        assert_refused(&as_role(OTHER, None, "GET", &path, None), 404, "RECHARGE_NOT_FOUND");
    }
    let cancel = format!("{one}/cancel");
    assert_refused(&as_role(OTHER, None, "POST", &cancel, None), 404, "RECHARGE_NOT_FOUND");
    for name in ["wrc_01ARZ3NDEKTSV4RRFFQ69G5FAV", "wrc_x", "7"] {
        let reply = server.get(USER, &format!("/api/v1/recharge/{name}"));
        assert_refused(&reply, 404, "RECHARGE_NOT_FOUND");
    }
    let body = recharge("5", "wechat", "topup-2");
    let viewer = Some(Role::Viewer);
    assert_refused(
        &as_role(USER, viewer, "POST", "/api/v1/recharge", Some(&body)),
        403,
        "FORBIDDEN",
    );
    assert_refused(&as_role(USER, viewer, "POST", &cancel, None), 403, "FORBIDDEN");
    let seen = as_role(OTHER, viewer, "GET", &one, None);
    assert_eq!((seen.status, &seen.json()["pay"]), (200, &json!(null)), "{seen:?}");
    assert!(server.recharge_of(USER, &id)["pay"].is_object());
    assert_eq!(desk.site.sql_value("SELECT count(*) FROM recharges_tb"), "1");
}

/// Goal: open orders and creates are bounded; a repeat is answered all the same.
#[test]
fn the_bounds_of_a_user_hold() {
    let desk = Recharging::new();
    let site = desk.site.clone().with("UBSCORE__RECHARGE__USER_OPEN_MAX", 2);
    let server = site.start();
    let body = |n: u32| recharge("5", "wechat", &format!("topup-{n}"));
    server.recharge_paying(USER, &body(1));
    server.recharge_paying(USER, &body(2));
    let refused = server.recharge(USER, &body(3));
    assert_refused(&refused, 429, "TOO_MANY_OPEN");
    assert!(refused.header("retry-after").is_some(), "{refused:?}");
    assert_eq!(server.recharge(USER, &body(2)).status, 200, "a repeat");
    server.stop();
    let site = desk.site.clone().with("UBSCORE__RECHARGE__USER_CREATES_PER_MINUTE_MAX", 1);
    let server = site.start();
    server.recharge_paying(OTHER, &body(1));
    let refused = server.recharge(OTHER, &body(2));
    assert_refused(&refused, 429, "RATE_LIMIT_EXCEEDED");
    assert_eq!(server.recharge(OTHER, &body(1)).status, 200, "a repeat");
    server.stop();
    let site = desk.site.clone().with("UBSCORE__RECHARGE__OPEN_MAX", 3);
    let server = site.start();
    assert_refused(&server.recharge(1003, &body(1)), 429, "TOO_MANY_OPEN");
}
