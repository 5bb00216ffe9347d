//! Requests of services about transactions: tokens, and every kind of wrong round. A wrong one is
//! refused with a clear error, and nothing is written.

use std::fs;

use serde_json::{Value, json};
use ubscore::http::auth::{Owner, Role};

use crate::bad_input::assert_nothing_done;
use crate::harness::{
    ADMIN, Reply, Server, Site, assert_refused, cli, said, send_text, text, token,
};
use crate::harness::{Request, send};

const USER: u64 = 1001;
const TRANSACTIONS: &str = "/api/v1/transactions";

/// The token of a service.
fn service(owner: &str) -> String {
    token(1, Owner::new(owner).map(Role::Service))
}

/// Sends a body of a service as it is.
fn post_text(server: &Server, path: &str, body: &str) -> Reply {
    let token = service("envelopes");
    let headers = format!("Authorization: Bearer {token}\r\nContent-Type: application/json\r\n");
    send_text(server.http, "POST", path, &headers, body).expect("an answer")
}

fn leg() -> Value {
    json!({"from": {"account": "FUNDING", "user_id": USER},
           "to": {"account": "FUNDING", "user_id": 1002}, "asset": "USDT", "amount": "1"})
}

/// A round with one field replaced; a path such as `legs/0/amount`.
fn with(path: &str, value: Value) -> Value {
    let mut body = json!({"round": 1, "legs": [leg()]});
    let (parent, name) = path.rsplit_once('/').unwrap_or(("", path));
    let parent = if parent.is_empty() { String::new() } else { format!("/{parent}") };
    body.pointer_mut(&parent).expect("a parent")[name] = value;
    body
}

/// Every route of services.
const ROUTES: [(&str, &str); 6] = [
    ("POST", TRANSACTIONS),
    ("GET", TRANSACTIONS),
    ("GET", "/api/v1/transactions/tx-1"),
    ("POST", "/api/v1/transactions/tx-1/prepare"),
    ("POST", "/api/v1/transactions/tx-1/commit"),
    ("POST", "/api/v1/transactions/tx-1/abort"),
];

/// Goal: a token opens its own routes only. Method: each route of services with the tokens of a
/// user, a viewer and an admin, and routes of the others with the token of a service.
#[test]
fn services_and_users_have_routes_of_their_own() {
    let site = Site::new();
    let server = site.start();
    let ask = |address, token: &str, method: &str, path: &str| {
        let body = json!({});
        let body = (method != "GET").then_some(&body);
        send(address, &Request { body, ..Request::new(token, method, path) }).expect("an answer")
    };
    for (method, path) in ROUTES {
        assert_refused(&ask(server.http, "", method, path), 401, "UNAUTHORIZED");
        for role in [None, Some(Role::Viewer), Some(Role::Admin), Some(Role::Venue(7))] {
            let reply = ask(server.http, &token(ADMIN, role), method, path);
            assert_refused(&reply, 403, "FORBIDDEN");
        }
    }
    // The name of a service may look like the number of a user.
    for owner in ["envelopes", "1001"] {
        let token = service(owner);
        for (method, path) in [
            ("POST", "/api/v1/internal_transfer"),
            ("GET", "/api/v1/internal_transfers"),
            ("GET", "/api/v1/balances"),
            ("GET", "/api/v1/assets"),
            ("GET", "/api/v1/events"),
        ] {
            assert_refused(&ask(server.http, &token, method, path), 403, "FORBIDDEN");
        }
        for path in ["/admin/v1/transactions", "/admin/v1/transfers"] {
            assert_refused(&ask(server.ops, &token, "GET", path), 403, "FORBIDDEN");
        }
    }
    assert_nothing_done(&site, &server);
}

/// Goal: `token --service` makes a token that the routes of services accept. Method: the command,
/// and a request with its output that is refused for its body alone.
#[test]
fn the_command_makes_a_token_for_a_service() {
    let site = Site::new();
    let server = site.start();
    let (code, out, err) = said(&cli(&["token", "--service", "envelopes", "--dev"]));
    assert_eq!(code, 0, "{err}");
    let body = json!({});
    let request = Request {
        body: Some(&body),
        ..Request::new(out.trim(), "POST", "/api/v1/transactions/tx-1/prepare")
    };
    let reply = send(server.http, &request).expect("an answer");
    assert_refused(&reply, 400, "INVALID_REQUEST");
    assert!(text(&reply.json()["message"]).contains("round"), "{reply:?}");
}

/// MLT-005: each line about services.
#[test]
fn mlt_005_a_wrong_round_is_refused_and_nothing_is_written() {
    let site = Site::new();
    let secret = site.fresh_path("secret");
    fs::write(&secret, "whsec_YW4gZW5kcG9pbnQncyBzZWNyZXQsIDMyIGJ5dGVzLi4=").expect("written");
    let secret = secret.to_str().expect("UTF-8");
    let mut started = site.with("UBSCORE__PARTICIPANTS__COUPONS__URL", "http://127.0.0.1:1/");
    for (name, value) in [
        ("UBSCORE__PARTICIPANTS__COUPONS__KIND", "veto"),
        ("UBSCORE__PARTICIPANTS__COUPONS__SECRET_FILE", secret),
        ("UBSCORE__PARTICIPANTS__BANK__URL", "http://127.0.0.1:1/"),
        ("UBSCORE__PARTICIPANTS__BANK__KIND", "last"),
        ("UBSCORE__PARTICIPANTS__BANK__SECRET_FILE", secret),
    ] {
        started = started.with(name, value);
    }
    let server = started.start();
    let prepare = "/api/v1/transactions/tx-1/prepare";
    for body in ["", "null", "[]", "{", "[1, []]", r#"{"round":1,"round":1,"legs":[]}"#, "{}"] {
        assert_refused(&post_text(&server, prepare, body), 400, "INVALID_REQUEST");
        assert_refused(&post_text(&server, TRANSACTIONS, body), 400, "INVALID_REQUEST");
    }
    let service = |name: &str, payload: Value| json!({"name": name, "payload": payload});
    let mut two = with("last", service("bank", json!(1)));
    two["decide"] = json!("caller");
    let cases = [
        (with("extra", json!(1)), "INVALID_REQUEST"),
        (with("legs/0/extra", json!(1)), "INVALID_REQUEST"),
        (with("round", json!(9)), "INVALID_REQUEST"),
        (with("round", json!(0)), "INVALID_REQUEST"),
        (with("ttl_ms", json!(90_001)), "INVALID_REQUEST"),
        (with("wait_ms", json!(30_001)), "INVALID_REQUEST"),
        (with("legs/0/from", json!("OUTSIDE")), "INVALID_REQUEST"),
        (with("legs/0/from/user_id", json!(0)), "INVALID_REQUEST"),
        (with("legs/0/from/user_id", json!(1_u64 << 63)), "INVALID_REQUEST"),
        (with("followers", json!(["mail"])), "INVALID_REQUEST"),
        (
            with("participants", json!([service("coupons", json!("x".repeat(8_192)))])),
            "INVALID_REQUEST",
        ),
        (with("participants", json!([service("bank", json!(1))])), "INVALID_REQUEST"),
        (with("last", service("coupons", json!(1))), "INVALID_REQUEST"),
        (with("last", service("SPOT", json!(1))), "INVALID_REQUEST"),
        (two, "INVALID_REQUEST"),
        (with("participants", json!([service("nobody", json!(1))])), "UNKNOWN_PARTICIPANT"),
        (with("last", service("nobody", json!(1))), "UNKNOWN_PARTICIPANT"),
        (with("legs", json!([])), "INVALID_POSTING"),
        (with("legs", json!(vec![leg(); 17])), "INVALID_POSTING"),
        (with("legs/0/to/user_id", json!(USER)), "INVALID_POSTING"),
        (with("legs/0/to/account", json!("SPOT")), "INVALID_POSTING"),
        (with("legs/0/to/account", json!("WALLET")), "INVALID_POSTING"),
        (with("legs/0/to/purpose", json!("DISPUTE")), "INVALID_POSTING"),
        (with("legs/0/amount", json!("0")), "INVALID_POSTING"),
        (with("legs/0/amount", json!("ALL")), "INVALID_POSTING"),
        (with("legs/0/to/account", json!("MARGIN")), "UNSUPPORTED_ACCOUNT_TYPE"),
        (with("legs/0/asset", json!("NONE")), "INVALID_ASSET"),
        (with("legs/0/amount", json!("-1")), "INVALID_AMOUNT"),
        (with("legs/0/amount", json!("0.000000001")), "PRECISION_OVERFLOW"),
        (with("legs/0/amount", json!("99999999999999999999")), "OVERFLOW"),
    ];
    for (body, code) in cases {
        let reply = post_text(&server, prepare, &body.to_string());
        assert_refused(&reply, 400, code);
    }
    let bad_name = post_text(
        &server,
        "/api/v1/transactions/a%20b/prepare",
        &with("round", json!(1)).to_string(),
    );
    assert_refused(&bad_name, 400, "INVALID_REQUEST");
    for (path, body) in [
        ("/api/v1/transactions/tx-1/commit", json!({"rounds": 0})),
        ("/api/v1/transactions/tx-1/commit", json!({"rounds": 9})),
        ("/api/v1/transactions/tx-1/commit", json!({"round": 1})),
        ("/api/v1/transactions/tx-1/abort", json!({"reason": ""})),
        ("/api/v1/transactions/tx-1/abort", json!({"reason": 1})),
        ("/api/v1/transactions/tx-1/abort", json!({"wait_ms": 30_001})),
    ] {
        assert_refused(&post_text(&server, path, &body.to_string()), 400, "INVALID_REQUEST");
    }
    assert_nothing_done(&site, &server);
    server.stop();
}
