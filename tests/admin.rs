//! The operators' routes: external money, accounts and assets. Each change is made once and at
//! once, and is recorded.

use std::io::Write;
use std::net::{Shutdown, TcpStream};

use serde_json::{Value, json};
use ubscore::http::auth::Role;
use ubscore::http::ops;

use crate::harness::{
    ADMIN, Balance, COIN, Reply, Request, Server, Site, Way, assert_refused, crowd, eventually,
    external, send, token,
};

const USER: u64 = 1001;
const NEW: u64 = 5005;
const DEPOSITS: &str = "/admin/v1/deposits";
const WITHDRAWALS: &str = "/admin/v1/withdrawals";

/// The decision on an external operation: outcome, code, balance afterwards.
fn decided(reply: &Reply) -> (Value, Value, Value) {
    assert_eq!(reply.status, 200, "{reply:?}");
    let json = reply.json();
    (json["outcome"].clone(), json["code"].clone(), json["balance_after"].clone())
}

fn success(balance_after: &str) -> (Value, Value, Value) {
    (json!("SUCCESS"), Value::Null, json!(balance_after))
}

fn refusal(code: &str) -> (Value, Value, Value) {
    (json!("REFUSED"), json!(code), Value::Null)
}

#[test]
fn external_money_moves_once_per_idem_key() {
    let site = Site::new();
    let server = site.start();
    let deposit = external(NEW, "USDT", "10.50", "in-1");
    let withdrawal = external(NEW, "USDT", "4", "out-1");
    for _ in 0..3 {
        let reply = server.admin("POST", DEPOSITS, &deposit);
        assert_eq!(decided(&reply), success("10.5"));
        assert_eq!(reply.json()["idem_key"], json!("in-1"));
    }
    for _ in 0..3 {
        assert_eq!(decided(&server.admin("POST", WITHDRAWALS, &withdrawal)), success("6.5"));
    }
    // The first answer is kept, with the first balance.
    assert_eq!(decided(&server.admin("POST", DEPOSITS, &deposit)), success("10.5"));
    for (path, body) in [
        (DEPOSITS, external(NEW, "USDT", "10.51", "in-1")),
        (DEPOSITS, external(NEW, "BTC", "10.5", "in-1")),
        (DEPOSITS, external(USER, "USDT", "10.5", "in-1")),
        (WITHDRAWALS, external(NEW, "USDT", "10.5", "in-1")),
        (DEPOSITS, external(NEW, "USDT", "4", "out-1")),
    ] {
        assert_refused(&server.admin("POST", path, &body), 409, "IDEM_KEY_CONFLICT");
    }
    // The same number in another spelling is the same body.
    let spelled = external(NEW, "USDT", "010.5", "in-1");
    assert_eq!(decided(&server.admin("POST", DEPOSITS, &spelled)), success("10.5"));
    let balance = Balance { funding: Some(65 * COIN / 10), spot: None, in_flight: 0 };
    assert_eq!(server.usdt(NEW), balance);
    site.assert_in_order(&server);
    server.kill();
    let server = site.start();
    assert_eq!(decided(&server.admin("POST", DEPOSITS, &deposit)), success("10.5"));
    assert_eq!(server.usdt(NEW), balance);
}

#[test]
fn fifty_deposits_of_one_idem_key_at_once_are_one() {
    let site = Site::new();
    let server = site.start();
    let body = external(NEW, "USDT", "3", "crowd");
    let replies = crowd(50, |_| server.admin("POST", DEPOSITS, &body));
    for reply in &replies {
        assert_eq!(decided(reply), success("3"));
    }
    site.assert_in_order(&server);
    assert_eq!(server.usdt(NEW).sum(), 3 * COIN);
}

#[test]
fn a_refused_external_operation_stays_refused() {
    let site = Site::new();
    let server = site.start();
    let post = |path: &str, amount: &str, idem_key: &str| {
        decided(&server.admin("POST", path, &external(NEW, "USDT", amount, idem_key)))
    };
    assert_eq!(post(WITHDRAWALS, "1", "stranger"), refusal("SOURCE_ACCOUNT_NOT_FOUND"));
    assert_eq!(post(DEPOSITS, "5", "first"), success("5"));
    assert_eq!(post(WITHDRAWALS, "5.00000001", "too-much"), refusal("INSUFFICIENT_BALANCE"));
    server.set_status(NEW, "FUNDING", "FROZEN");
    assert_eq!(post(WITHDRAWALS, "1", "frozen"), refusal("ACCOUNT_FROZEN"));
    assert_eq!(post(DEPOSITS, "1", "frozen-in"), success("6"));
    server.set_status(NEW, "FUNDING", "DISABLED");
    assert_eq!(post(WITHDRAWALS, "1", "disabled"), refusal("ACCOUNT_DISABLED"));
    assert_eq!(post(DEPOSITS, "1", "disabled-in"), refusal("ACCOUNT_DISABLED"));
    server.set_status(NEW, "FUNDING", "ACTIVE");
    assert_eq!(post(DEPOSITS, "100", "more"), success("106"));
    // The reasons are gone; the decisions remain.
    assert_eq!(post(WITHDRAWALS, "1", "stranger"), refusal("SOURCE_ACCOUNT_NOT_FOUND"));
    assert_eq!(post(WITHDRAWALS, "5.00000001", "too-much"), refusal("INSUFFICIENT_BALANCE"));
    assert_eq!(post(WITHDRAWALS, "1", "frozen"), refusal("ACCOUNT_FROZEN"));
    assert_eq!(post(DEPOSITS, "1", "disabled-in"), refusal("ACCOUNT_DISABLED"));
    assert_eq!(server.usdt(NEW).sum(), 106 * COIN);
    site.assert_in_order(&server);
}

/// An operation's name may be any text, also the form of a transfer's name.
#[test]
fn an_idem_key_never_meets_a_req_id() {
    let site = Site::new();
    let server = site.start();
    let reply = server.transfer(USER, Way::ToSpot, "5");
    let deposit = external(USER, "USDT", "5", &reply.req_id());
    assert_eq!(decided(&server.admin("POST", DEPOSITS, &deposit)), success("10000"));
    assert_eq!(server.look(USER, &reply.req_id())["state"], json!("COMMITTED"));
    site.wait_for_rest();
    site.assert_in_order(&server);
}

/// Goal: an answered status holds for every withdraw decided afterwards. Method: a crowd takes
/// money out while the account is frozen; after the answer no further withdraw may succeed.
#[test]
fn a_status_holds_from_its_answer_on() {
    for (way, account) in [(Way::ToSpot, "FUNDING"), (Way::ToFunding, "SPOT")] {
        let site = Site::new();
        let server = site.start();
        assert_eq!(server.transfer(USER, Way::ToSpot, "5000").status, 200);
        crowd(20, |index| {
            if index == 10 {
                server.set_status(USER, account, "FROZEN");
                for _ in 0..5 {
                    assert_refused(&server.transfer(USER, way, "1"), 422, "ACCOUNT_FROZEN");
                }
            } else {
                let reply = server.transfer(USER, way, "1");
                assert!([200, 202, 422].contains(&reply.status), "{reply:?}");
            }
        });
        site.wait_for_rest();
        site.assert_in_order(&server);
        server.set_status(USER, account, "ACTIVE");
        assert_eq!(server.transfer(USER, way, "1").status, 200);
    }
}

#[test]
fn the_status_of_an_absent_account_makes_it() {
    let site = Site::new();
    let server = site.start();
    server.set_status(NEW, "SPOT", "FROZEN");
    let spot = Balance { funding: None, spot: Some(0), in_flight: 0 };
    assert_eq!(server.usdt(NEW), spot);
    assert_refused(&server.transfer(NEW, Way::ToFunding, "1"), 422, "ACCOUNT_FROZEN");
    server.set_status(NEW, "FUNDING", "DISABLED");
    assert_eq!(server.usdt(NEW), Balance::at_rest(0, 0));
    server.kill();
    let server = site.start();
    assert_eq!(server.usdt(NEW), Balance::at_rest(0, 0));
    assert_refused(&server.transfer(NEW, Way::ToFunding, "1"), 422, "ACCOUNT_FROZEN");
    assert_refused(&server.transfer(NEW, Way::ToSpot, "1"), 422, "ACCOUNT_DISABLED");
    site.assert_verified();
}

#[test]
fn an_assets_change_takes_effect_at_once_and_stays() {
    let site = Site::new();
    let server = site.start();
    let path = "/admin/v1/assets/ETH";
    let change = json!({
        "status": "SUSPENDED", "transfer_enabled": false, "min": "0.5", "max": "7.25",
        "reason": "maintenance",
    });
    let reply = server.admin("PUT", path, &change);
    let want = json!({
        "symbol": "ETH", "precision": 8, "status": "SUSPENDED", "min": "0.5", "max": "7.25",
        "transfer_enabled": false,
    });
    assert_eq!((reply.status, reply.json()), (200, want.clone()));
    let eth = |server: &Server| server.get(USER, "/api/v1/assets").json()["assets"][1].clone();
    assert_eq!(eth(&server), want);
    let transfer = Way::ToSpot.body("ETH", "1");
    assert_refused(&server.post(USER, &transfer), 422, "ASSET_SUSPENDED");
    server.change_asset("ETH", json!({"status": "ACTIVE"}));
    assert_refused(&server.post(USER, &transfer), 422, "TRANSFER_NOT_ALLOWED");
    server.kill();
    let server = site.start();
    assert_refused(&server.post(USER, &transfer), 422, "TRANSFER_NOT_ALLOWED");
    server.change_asset("ETH", json!({"transfer_enabled": true}));
    server.deposit(USER, "ETH", "20");
    assert_refused(&server.post(USER, &Way::ToSpot.body("ETH", "7.26")), 422, "AMOUNT_TOO_LARGE");
    assert_eq!(server.post(USER, &transfer).status, 200);
    // A suspended asset still appears in the totals.
    server.change_asset("ETH", json!({"status": "SUSPENDED"}));
    assert_eq!(server.balances(USER)["ETH"], Balance::at_rest(19 * COIN, COIN));
    site.assert_verified();
}

/// Story: an operator's client disconnected while PostgreSQL was slow. The asset was suspended in
/// PostgreSQL and in no other place.
#[test]
fn a_change_whose_client_hangs_up_comes_into_force_all_the_same() {
    let site = Site::new();
    let server = site.start();
    let hold = site.hold("UPDATE ON assets_tb", "NEW.symbol = 'ETH'");
    let body = json!({"status": "SUSPENDED", "reason": "maintenance"}).to_string();
    let mut client = TcpStream::connect(server.ops).expect("a listener");
    let token = token(ADMIN, Some(Role::Admin));
    let head = format!(
        "PUT /admin/v1/assets/ETH HTTP/1.1\r\nHost: ops\r\nAuthorization: Bearer {token}\r\n\
         Content-Type: application/json\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    client.write_all(format!("{head}{body}").as_bytes()).expect("sent");
    site.wait_for_held();
    client.shutdown(Shutdown::Both).expect("hung up");
    drop(client);
    hold.release();
    let suspended = || {
        let reply = server.post(USER, &Way::ToSpot.body("ETH", "1"));
        (reply.status == 422 && reply.json()["code"] == "ASSET_SUSPENDED").then_some(())
    };
    eventually("the change to be in force", suspended);
}

#[test]
fn every_change_is_written_down_with_who_and_why() {
    let site = Site::new();
    let server = site.start();
    server.deposit(USER, "USDT", "1");
    server.set_status(USER, "FUNDING", "FROZEN");
    server.set_status(USER, "SPOT", "DISABLED");
    server.change_asset("ETH", json!({"status": "SUSPENDED"}));
    let audit = "SELECT actor, action, reason FROM admin_audit WHERE actor <> 'dev' ORDER BY id";
    let actor = format!("admin/{ADMIN}");
    let rows = site.sql(audit);
    let actions: Vec<&str> = rows.iter().map(|row| row[1].as_str()).collect();
    assert_eq!(actions, ["deposit", "account status", "account status", "asset"], "{rows:?}");
    for row in &rows {
        assert_eq!(row[0], actor, "{row:?}");
        assert!(!row[2].is_empty(), "{row:?}");
    }
    let subjects = "SELECT subject FROM admin_audit WHERE action = 'account status' ORDER BY id";
    let subjects: Vec<String> = site.sql(subjects).into_iter().map(|row| row[0].clone()).collect();
    assert_eq!(subjects, ["1001 FUNDING", "1001 SPOT"]);
    site.assert_verified();
}

/// Goal: an operator's mistake changes nothing. Method: every wrong body and path, and then the
/// rows.
#[test]
fn an_operators_mistake_changes_nothing() {
    let site = Site::new();
    let server = site.start();
    let rows = || {
        let tables =
            ["admin_audit", "external_operations", "accounts_tb", "assets_tb", "balances_tb"];
        tables.map(|table| site.sql(&format!("TABLE {table} ORDER BY 1, 2")))
    };
    let before = rows();
    let invalid = |code: &'static str| (400, code);
    let money = |user: Value, asset: &str, amount: Value, idem_key: Value| json!({"user_id": user, "asset": asset, "amount": amount, "idem_key": idem_key});
    let bad = [
        (money(json!(0), "USDT", json!("1"), json!("k")), "INVALID_REQUEST"),
        (money(json!(-1), "USDT", json!("1"), json!("k")), "INVALID_REQUEST"),
        (money(json!("1001"), "USDT", json!("1"), json!("k")), "INVALID_REQUEST"),
        (money(json!(1.5), "USDT", json!("1"), json!("k")), "INVALID_REQUEST"),
        (
            money(json!(9_223_372_036_854_775_808_u64), "USDT", json!("1"), json!("k")),
            "INVALID_REQUEST",
        ),
        (money(json!(1001), "USDT", json!(1), json!("k")), "INVALID_REQUEST"),
        (money(json!(1001), "USDT", json!("1"), json!("")), "INVALID_REQUEST"),
        (money(json!(1001), "USDT", json!("1"), json!("has space")), "INVALID_REQUEST"),
        (money(json!(1001), "USDT", json!("1"), json!("k".repeat(65))), "INVALID_REQUEST"),
        (money(json!(1001), "USDT", json!("1"), Value::Null), "INVALID_REQUEST"),
        (json!({"user_id": 1001, "asset": "USDT", "amount": "1"}), "INVALID_REQUEST"),
        (money(json!(1001), "NONE", json!("1"), json!("k")), "INVALID_ASSET"),
        (money(json!(1001), "USDT", json!("0"), json!("k")), "INVALID_AMOUNT"),
        (money(json!(1001), "USDT", json!("-1"), json!("k")), "INVALID_AMOUNT"),
        (money(json!(1001), "USDT", json!("1e3"), json!("k")), "INVALID_AMOUNT"),
        (money(json!(1001), "USDT", json!("0.000000001"), json!("k")), "PRECISION_OVERFLOW"),
        (money(json!(1001), "USDT", json!("99999999999"), json!("k")), "OVERFLOW"),
    ];
    for path in [DEPOSITS, WITHDRAWALS] {
        for (body, code) in &bad {
            let (status, code) = invalid(code);
            assert_refused(&server.admin("POST", path, body), status, code);
        }
    }
    let status = |path: &str, body: Value, code: &str| {
        let path = format!("/admin/v1/accounts/{path}/status");
        assert_refused(&server.admin("PUT", &path, &body), 400, code);
    };
    let good = json!({"status": "FROZEN", "reason": "a test"});
    for user in ["0", "-1", "abc", "01001", "9223372036854775808"] {
        status(&format!("{user}/SPOT"), good.clone(), "INVALID_REQUEST");
    }
    status("1001/WALLET", good.clone(), "INVALID_ACCOUNT_TYPE");
    status("1001/spot", good.clone(), "INVALID_ACCOUNT_TYPE");
    status("1001/FUTURE", good.clone(), "UNSUPPORTED_ACCOUNT_TYPE");
    status("1001/MARGIN", good, "UNSUPPORTED_ACCOUNT_TYPE");
    for body in [
        json!({"status": "frozen", "reason": "a test"}),
        json!({"status": "FROZEN"}),
        json!({"status": "FROZEN", "reason": ""}),
        json!({"status": "FROZEN", "reason": " "}),
        json!({"status": "FROZEN", "reason": "x".repeat(501)}),
        json!({"status": "FROZEN", "reason": "a test", "extra": 1}),
    ] {
        for account in ["1001/FUNDING", "1001/SPOT"] {
            status(account, body.clone(), "INVALID_REQUEST");
        }
    }
    for (symbol, change, code) in [
        ("NONE", json!({"reason": "a test"}), "INVALID_ASSET"),
        ("USDT", json!({"status": "GONE", "reason": "a test"}), "INVALID_REQUEST"),
        ("USDT", json!({"min": "2", "max": "1", "reason": "a test"}), "INVALID_REQUEST"),
        ("USDT", json!({"min": "1000000.1", "reason": "a test"}), "INVALID_REQUEST"),
        ("USDT", json!({"min": "0", "reason": "a test"}), "INVALID_AMOUNT"),
        ("USDT", json!({"min": "0.000000001", "reason": "a test"}), "PRECISION_OVERFLOW"),
        ("USDT", json!({"status": "SUSPENDED"}), "INVALID_REQUEST"),
        ("USDT", json!({"precision": 2, "reason": "a test"}), "INVALID_REQUEST"),
    ] {
        let reply = server.admin("PUT", &format!("/admin/v1/assets/{symbol}"), &change);
        assert_refused(&reply, 400, code);
    }
    assert_eq!(rows(), before);
}

/// Goal: every route checks the caller's role. Method: every route of the table, without a token,
/// as a user, a viewer and an admin. The bodies are empty, so an admitted caller gets an error
/// about the body and nothing changes.
#[test]
fn every_route_asks_for_its_role() {
    let site = Site::new();
    let server = site.start();
    let tokens = [None, Some(Role::Viewer), Some(Role::Admin)].map(|role| token(ADMIN, role));
    let ask = |token: &str, method: &str, path: &str| {
        let body = json!({});
        let body = (method != "GET").then_some(&body);
        send(server.ops, &Request { body, ..Request::new(token, method, path) }).expect("an answer")
    };
    let mut changing = 0;
    for (method, pattern) in ops::patterns() {
        let path = pattern
            .replace("{user_id}", &USER.to_string())
            .replace("{account_type}", "SPOT")
            .replace("{symbol}", "USDT")
            .replace("{transaction_id}", "01JFVQ2X8Z0Y1M3N4P5R6S7T8U")
            .replace("{req_id}", "01JFVQ2X8Z0Y1M3N4P5R6S7T8U")
            .replace("{recharge_id}", "wrc_01JFVQ2X8Z0Y1M3N4P5R6S7T8U")
            .replace("{payment_id}", "wpy_01JFVQ2X8Z0Y1M3N4P5R6S7T8U")
            .replace("{return_id}", "wrf_01JFVQ2X8Z0Y1M3N4P5R6S7T8U")
            .replace("{promotion}", "spring")
            .replace("{channel}", "wechat")
            .replace("{finding_id}", "1")
            .replace("{approval_id}", "01JFVQ2X8Z0Y1M3N4P5R6S7T8U")
            .replace("{event_id}", "1")
            .replace("{venue}", "7")
            .replace("{hold}", "7:1")
            .replace("{file}", "console.js");
        assert!(!path.contains('{'), "{pattern}: what stands there?");
        let method = method.as_str();
        if !path.starts_with("/admin/") {
            assert_eq!(ask("", method, &path).status, 200, "{path} is open to all roles");
            continue;
        }
        assert_refused(&ask("", method, &path), 401, "UNAUTHORIZED");
        let [user, viewer, admin] = tokens.each_ref().map(|token| ask(token, method, &path));
        assert_refused(&user, 403, "FORBIDDEN");
        assert!(![401, 403, 500].contains(&admin.status), "{method} {path}: {admin:?}");
        // Callbacks may name the payer.
        if path == "/admin/v1/session" || path.ends_with("/notices") {
            assert_refused(&viewer, 403, "FORBIDDEN");
        } else if method == "GET" {
            assert_eq!(viewer.status, admin.status, "{path}: {viewer:?}");
        } else {
            assert_refused(&viewer, 403, "FORBIDDEN");
            changing += 1;
        }
    }
    assert!(changing >= 9, "{changing} routes change something");
    assert_eq!(site.sql_value("SELECT count(*) FROM admin_audit WHERE actor <> 'dev'"), "0");
}

/// A viewer reads everything that an admin reads. No request of a viewer moves money, not even
/// their own.
#[test]
fn a_viewer_sees_everything_and_changes_nothing() {
    let site = Site::new();
    let server = site.start();
    let transfer = server.transfer(USER, Way::ToSpot, "3");
    let req_id = transfer.req_id();
    // Lists come from PostgreSQL.
    site.wait_for_rest();
    let viewer = token(USER + 1, Some(Role::Viewer));
    let get = |address, path: &str| {
        send(address, &Request::new(&viewer, "GET", path)).expect("an answer").json()
    };
    let public = get(server.http, &format!("/api/v1/internal_transfer/{req_id}"));
    assert_eq!((&public["state"], &public["amount"]), (&json!("COMMITTED"), &json!("3")));
    let shown = get(server.ops, &format!("/admin/v1/transfers/{req_id}"));
    assert_eq!(shown["req_id"], json!(req_id), "{shown}");
    let listed = get(server.ops, "/admin/v1/transfers?state=COMMITTED");
    assert_eq!(listed["transfers"][0]["req_id"], json!(req_id), "{listed}");
    assert_eq!(get(server.ops, "/admin/v1/conservation")["ok"], json!(true));
    // The balances route returns the caller's own balances.
    assert_eq!(get(server.http, "/api/v1/balances")["balances"][0]["spot"], Value::Null);

    let reason = json!({"reason": "curiosity"});
    let status = json!({"status": "FROZEN", "reason": "curiosity"});
    for (address, method, path, body) in [
        (server.ops, "POST", "/admin/v1/halt".to_owned(), &reason),
        (server.ops, "POST", "/admin/v1/resume".to_owned(), &reason),
        (server.ops, "POST", "/admin/v1/snapshot".to_owned(), &reason),
        (server.ops, "POST", format!("/admin/v1/transfers/{req_id}/retry"), &reason),
        (server.ops, "POST", format!("/admin/v1/transfers/{req_id}/resolve"), &reason),
        (server.ops, "POST", DEPOSITS.to_owned(), &external(USER, "USDT", "1", "in")),
        (server.ops, "POST", WITHDRAWALS.to_owned(), &external(USER, "USDT", "1", "out")),
        (server.ops, "PUT", format!("/admin/v1/accounts/{USER}/FUNDING/status"), &status),
        (server.ops, "PUT", format!("/admin/v1/accounts/{USER}/SPOT/status"), &status),
        (server.ops, "PUT", "/admin/v1/assets/USDT".to_owned(), &reason),
        (
            server.http,
            "POST",
            "/api/v1/internal_transfer".to_owned(),
            &Way::ToSpot.body("USDT", "1"),
        ),
    ] {
        let request = Request { body: Some(body), ..Request::new(&viewer, method, &path) };
        assert_refused(&send(address, &request).expect("an answer"), 403, "FORBIDDEN");
    }
    assert_eq!(server.ready(), 200);
    assert_eq!(server.transfer(USER, Way::ToFunding, "3").status, 200);
    assert_eq!(site.sql_value("SELECT count(*) FROM admin_audit WHERE actor <> 'dev'"), "0");
    assert_eq!(site.sql_value("SELECT count(*) FROM transfers"), "2");
    site.assert_in_order(&server);
}

#[test]
fn health_readiness_and_metrics_need_no_token() {
    let site = Site::new();
    let server = site.start();
    assert_eq!(server.transfer(USER, Way::ToSpot, "1").status, 200);
    for (path, says) in [
        ("/healthz", "ok"),
        ("/readyz", "\"ready\":true"),
        ("/metrics", "ubscore_http_requests_total"),
    ] {
        let reply = send(server.ops, &Request::new("", "GET", path)).expect("an answer");
        assert_eq!(reply.status, 200, "{reply:?}");
        assert!(reply.body.contains(says), "{path}: {reply:?}");
    }
    // No admin route exists on the public listener.
    let admin = token(ADMIN, Some(Role::Admin));
    for path in ["/healthz", "/metrics"] {
        let reply = send(server.http, &Request::new(&admin, "GET", path)).expect("an answer");
        assert_refused(&reply, 404, "NOT_FOUND");
    }
    site.assert_verified();
}
