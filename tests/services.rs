//! Requests of services about transactions: tokens, and every kind of wrong round. A wrong one is
//! refused with a clear error, and nothing is written.

use std::fs;

use serde_json::{Value, json};
use ubscore::http::auth::{Owner, Role};

use crate::bad_input::assert_nothing_done;
use crate::harness::{
    ADMIN, Reply, Request, Server, Site, assert_refused, cli, said, send, send_text, text, token,
};

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
    let mut site = Site::new();
    let secret = site.fresh_path("secret");
    fs::write(&secret, "whsec_YW4gZW5kcG9pbnQncyBzZWNyZXQsIDMyIGJ5dGVzLi4=").expect("written");
    let secret = secret.to_str().expect("UTF-8");
    for (name, value) in [
        ("UBSCORE__PARTICIPANTS__COUPONS__URL", "http://127.0.0.1:1/"),
        ("UBSCORE__PARTICIPANTS__COUPONS__KIND", "veto"),
        ("UBSCORE__PARTICIPANTS__COUPONS__SECRET_FILE", secret),
        ("UBSCORE__PARTICIPANTS__BANK__URL", "http://127.0.0.1:1/"),
        ("UBSCORE__PARTICIPANTS__BANK__KIND", "last"),
        ("UBSCORE__PARTICIPANTS__BANK__SECRET_FILE", secret),
    ] {
        site = site.with(name, value);
    }
    let server = site.start();
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
        (with("followers", json!(["mail", "mail"])), "INVALID_REQUEST"),
        (with("followers", json!(["mail"])), "UNKNOWN_PARTICIPANT"),
        (
            with("participants", json!([service("coupons", json!("x".repeat(8_192)))])),
            "INVALID_REQUEST",
        ),
        (with("participants", json!([service("bank", json!(1))])), "INVALID_REQUEST"),
        (with("last", service("coupons", json!(1))), "INVALID_REQUEST"),
        (with("last", service("SPOT", json!(1))), "INVALID_REQUEST"),
        (two, "INVALID_REQUEST"),
        (with("participants", json!([service("stranger", json!(1))])), "UNKNOWN_PARTICIPANT"),
        (with("last", service("stranger", json!(1))), "UNKNOWN_PARTICIPANT"),
        (with("legs", json!([])), "INVALID_POSTING"),
        (with("legs", json!(vec![leg(); 17])), "INVALID_POSTING"),
        (with("legs/0/to/user_id", json!(USER)), "INVALID_POSTING"),
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

/// Writes a cancelled transaction of each owner under one name, and returns their ids.
fn cancelled(site: &Site, owners: [&str; 2]) -> [String; 2] {
    let mut number = 0;
    owners.map(|owner| {
        number += 1;
        let id = format!("{:032x}", u128::from(u64::MAX) + number);
        let statement = format!(
            "SELECT transaction_cancel_unknown(incarnation, '{id}', watermark + {number}, \
             '{owner}', 'tx-1', 1::smallint, now(), now(), 38::smallint, '{owner}', 'a test') \
             FROM engine_state"
        );
        assert_eq!(site.sql_value(&statement), "t");
        site.sql_value(&format!("SELECT ulid_text('{id}')"))
    })
}

/// Goal: a service sees its own transactions, an operator all of them. Method: one name of two
/// owners, listed by both and by the operator.
#[test]
fn a_list_is_of_one_owner_and_operators_see_all() {
    let site = Site::new();
    let server = site.start();
    let ids = cancelled(&site, ["envelopes", "shop"]);
    let list = |owner: &str, query: &str| {
        let path = format!("{TRANSACTIONS}{query}");
        send(server.http, &Request::new(&service(owner), "GET", &path)).expect("an answer")
    };
    for (owner, id) in [("envelopes", &ids[0]), ("shop", &ids[1])] {
        let reply = list(owner, "");
        assert_eq!(reply.status, 200, "{reply:?}");
        let json = reply.json();
        let found = &json["transactions"];
        assert_eq!(found.as_array().map(Vec::len), Some(1), "{reply:?}");
        assert_eq!(found[0]["transaction_id"], json!(id));
        let fields = ["tx_id", "state", "final", "code"].map(|field| found[0][field].clone());
        let want = [json!("tx-1"), json!("CANCELLED"), json!(true), json!("TRANSACTION_ABORTED")];
        assert_eq!(fields, want);
    }
    assert_eq!(list("stranger", "").json(), json!({"transactions": [], "next_cursor": null}));
    assert_eq!(list("shop", "?state=OPEN").json()["transactions"], json!([]));
    for bad in ["?state=open", "?limit=0", "?limit=101", "?cursor=x", "?since=now", "?owner=a"] {
        assert_refused(&list("shop", bad), 400, "INVALID_REQUEST");
    }
    let all = |query: &str| server.admin_get(&format!("/admin/v1/transactions{query}"));
    assert_eq!(all("").json()["transactions"], json!([]), "none is under way");
    assert_eq!(all("?stuck=true").json()["transactions"], json!([]));
    let found = |query: &str| {
        let json = all(query).json();
        let rows = json["transactions"].as_array().expect("an array").clone();
        rows.iter().map(|row| text(&row["owner"]).to_owned()).collect::<Vec<String>>()
    };
    assert_eq!(found("?ended=true"), ["shop", "envelopes"]);
    assert_eq!(found("?tx_id=tx-1"), ["shop", "envelopes"]);
    assert_eq!(found("?ended=true&owner=shop"), ["shop"]);
    let page = all("?ended=true&limit=1").json();
    let cursor = text(&page["next_cursor"]);
    assert_eq!(found(&format!("?ended=true&limit=1&cursor={cursor}")), ["envelopes"]);
    for bad in ["?stuck=true&ended=true", "?stuck=yes", "?state=FLYING", "?owner=a%20b"] {
        assert_refused(&all(bad), 400, "INVALID_REQUEST");
    }
    let shown = all(&format!("/{}", ids[1]));
    assert_eq!((shown.status, &shown.json()["tx_id"]), (200, &json!("tx-1")), "{shown:?}");
    assert_refused(&all("/01JFVQ2X8Z0Y1M3N4P5R6S7T8U"), 404, "TRANSACTION_NOT_FOUND");
    assert_refused(&all("/7"), 404, "TRANSACTION_NOT_FOUND");
    let ops = format!("http://{}", server.ops);
    let on = |arguments: &[&str]| {
        let access = ["--ops", &ops, "--dev"];
        said(&cli(&[&["transaction"][..], arguments, &access].concat()))
    };
    let (code, out, err) = on(&["list", "--ended", "--owner", "shop"]);
    assert!(code == 0 && out.contains(&ids[1]) && !out.contains(&ids[0]), "{out}{err}");
    let (code, out, err) = on(&["show", &ids[0]]);
    assert!(code == 0 && out.contains("CANCELLED") && out.contains("a test"), "{out}{err}");
    let (code, out, err) = on(&["retry", &ids[0], "--reason", "a test"]);
    assert!(code == 1 && err.contains("NOT_RESOLVABLE"), "{out}{err}");
    server.stop();
}

/// Goal: a role of PostgreSQL gets and loses the right to commit transactions of one owner, with an
/// audit row each. Method: the commands; an unknown role; a repeat.
#[test]
fn a_role_is_granted_the_transactions_of_an_owner() {
    let site = Site::new();
    let server = site.start();
    let role = format!("shop_{}", std::process::id());
    site.sql(&format!("CREATE ROLE {role}"));
    let ops = format!("http://{}", server.ops);
    let on = |arguments: &[&str]| {
        let access = ["--ops", &ops, "--dev"];
        said(&cli(&[&["transaction"][..], arguments, &access].concat()))
    };
    let why = ["--owner", "shop", "--reason", "a test"];
    let change = |what: &str, role: &str| on(&[&[what, role][..], &why].concat());
    let (code, _, err) = change("grant", "stranger_to_all");
    assert!(code == 1 && err.contains("no role"), "{err}");
    for _ in 0..2 {
        let (code, out, err) = change("grant", &role);
        assert!(code == 0 && out.contains("may commit"), "{out}{err}");
    }
    let (code, out, err) = on(&["grants"]);
    assert!(code == 0 && out.contains(&role) && out.contains("shop"), "{out}{err}");
    let may = format!(
        "SELECT has_function_privilege('{role}', 'transaction_commit(text, text, integer)', \
         'EXECUTE')"
    );
    assert_eq!(site.sql_value(&may), "t");
    for _ in 0..2 {
        let (code, out, err) = change("revoke", &role);
        assert!(code == 0 && out.contains("no longer"), "{out}{err}");
    }
    assert_eq!(site.sql_value(&may), "f");
    let (_, out, _) = on(&["grants"]);
    assert!(out.contains("no grants"), "{out}");
    let audit = "SELECT DISTINCT action FROM admin_audit WHERE action LIKE 'transaction %' \
                 ORDER BY action";
    assert_eq!(site.sql(audit).concat(), ["transaction grant", "transaction revoke"]);
    server.stop();
    site.sql(&format!("DROP OWNED BY {role}; DROP ROLE {role}"));
}

/// Goal: with `transaction` in `approval.required` an abort waits for another operator and happens
/// once; a retry does not wait. Method: a round that is tried, and a caller that never decides.
#[test]
fn an_abort_waits_for_another_operator() {
    let site = Site::new().with("UBSCORE__APPROVAL__REQUIRED", "transaction");
    let server = site.start();
    let body = with("round", json!(1)).to_string();
    let tried = post_text(&server, "/api/v1/transactions/tx-1/prepare", &body);
    assert_eq!(tried.status, 200, "{tried:?}");
    let id = text(&tried.json()["transaction_id"]).to_owned();
    let why = json!({"reason": "a test"});
    let post = |actor: u64, path: &str| -> Reply {
        let token = token(actor, Some(Role::Admin));
        let request = Request { body: Some(&why), ..Request::new(&token, "POST", path) };
        send(server.ops, &request).expect("an answer")
    };
    let of = |action: &str| format!("/admin/v1/transactions/{id}/{action}");
    let retried = post(ADMIN, &of("retry"));
    assert_eq!((retried.status, &retried.json()["state"]), (200, &json!("OPEN")), "{retried:?}");
    assert_eq!(retried.json()["waits_for"], json!(["caller"]));
    let asked = post(ADMIN, &of("abort"));
    assert_eq!(asked.status, 202, "{asked:?}");
    let asked = asked.json();
    assert_eq!([&asked["action"], &asked["subject"]], [&json!("transaction"), &json!(id)]);
    let approve = format!("/admin/v1/approvals/{}/approve", text(&asked["approval_id"]));
    assert_refused(&post(ADMIN, &approve), 403, "FORBIDDEN");
    let approved = post(ADMIN + 1, &approve);
    assert_eq!((approved.status, &approved.json()["owner"]), (200, &json!("envelopes")));
    let state = approved.json()["state"].clone();
    assert!([json!("ABORTED"), json!("CANCELLED")].contains(&state), "{approved:?}");
    // An aborted one needs no approval: nothing is left to be decided.
    assert_eq!(post(ADMIN, &of("abort")).status, 200);
    let committed = post_text(&server, "/api/v1/transactions/tx-1/commit", "{}");
    assert_eq!(committed.status, 422, "{committed:?}");
    assert_eq!(committed.json()["transaction"]["tx_id"], json!("tx-1"));
    let audit = "SELECT count(*) FROM admin_audit WHERE action = 'transaction abort'";
    assert_eq!(site.sql_value(audit), "2");
    assert_nothing_done(&site, &server);
    server.stop();
}
