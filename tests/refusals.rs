//! Every refusal code for clients, where it occurs, and which one comes first.

use jsonwebtoken::{Algorithm, EncodingKey, Header};
use serde_json::{Value, json};
use ubscore::config::auth::DEVELOPMENT_SECRET;
use ubscore::http::auth::Role;

use crate::harness::{
    ADMIN, Balance, COIN, Reply, Request, Server, Site, Way, assert_refused, crowd, eventually,
    external, now_s, send, send_text, text, token,
};

const USER: u64 = 1001;
const OTHER: u64 = 1002;
const POST: &str = "/api/v1/internal_transfer";

/// Signs any claims with any secret.
pub(crate) fn signed(algorithm: Algorithm, claims: &Value, secret: &str) -> String {
    let key = EncodingKey::from_secret(secret.as_bytes());
    jsonwebtoken::encode(&Header::new(algorithm), claims, &key).expect("a token")
}

/// A GET with these `Authorization` headers.
fn with_headers(server: &Server, headers: &str) -> Reply {
    send_text(server.http, "GET", "/api/v1/balances", headers, "").expect("an answer")
}

#[test]
fn only_a_whole_and_timely_token_of_ours_is_accepted() {
    let server = Site::new().start();
    let now = now_s();
    let good = json!({"sub": "1001", "exp": now + 600});
    let hs256 = |claims: &Value| signed(Algorithm::HS256, claims, DEVELOPMENT_SECRET);
    let bearer = |token: String| format!("Authorization: Bearer {token}\r\n");
    assert_eq!(with_headers(&server, &bearer(hs256(&good))).status, 200);

    let token = hs256(&good);
    let (head, rest) = token.split_once('.').expect("three parts");
    let (payload, signature) = rest.split_once('.').expect("three parts");
    // {"alg":"none","typ":"JWT"}
    let none = "eyJhbGciOiJub25lIiwidHlwIjoiSldUIn0";
    let claims = |changes: Value| {
        let mut claims = good.clone();
        for (name, value) in changes.as_object().expect("an object") {
            claims[name] = value.clone();
        }
        bearer(hs256(&claims))
    };
    let mut without_expiry = good.clone();
    without_expiry.as_object_mut().expect("an object").remove("exp");
    let other = hs256(&json!({"sub": "1002", "exp": now + 600}));
    for (what, headers) in [
        ("no token", String::new()),
        ("nothing", bearer(String::new())),
        ("no bearer", format!("Authorization: {token}\r\n")),
        ("another scheme", format!("Authorization: Basic {token}\r\n")),
        ("no token at all", bearer("abc".to_owned())),
        ("two parts", bearer(format!("{head}.{payload}"))),
        ("no signature", bearer(format!("{head}.{payload}."))),
        ("another's signature", bearer(format!("{head}.{payload}.{signature}x"))),
        ("another's claims", bearer(format!("{head}.{}.{signature}", &other[head.len() + 1..]))),
        ("expired", claims(json!({"exp": now - 60}))),
        ("not yet valid", claims(json!({"nbf": now + 600}))),
        ("no expiry", bearer(hs256(&without_expiry))),
        ("an expiry that is no number", claims(json!({"exp": "tomorrow"}))),
        ("no user", claims(json!({"sub": ""}))),
        ("user zero", claims(json!({"sub": "0"}))),
        ("another spelling of the user", claims(json!({"sub": "01001"}))),
        ("a user that is no number", claims(json!({"sub": "root"}))),
        ("a user as a number", claims(json!({"sub": 1001}))),
        ("a user out of range", claims(json!({"sub": "9223372036854775808"}))),
        (
            "another secret",
            bearer(signed(Algorithm::HS256, &good, "another secret of 32 bytes or more")),
        ),
        ("another algorithm", bearer(signed(Algorithm::HS512, &good, DEVELOPMENT_SECRET))),
        ("no algorithm", bearer(format!("{none}.{payload}."))),
        ("no algorithm, signed", bearer(format!("{none}.{payload}.{signature}"))),
        ("two tokens", bearer(token.clone()).repeat(2)),
        ("two users", bearer(token.clone()) + bearer(other.clone()).as_str()),
    ] {
        let reply = with_headers(&server, &headers);
        assert_eq!((reply.status, reply.refusal().1.as_str()), (401, "UNAUTHORIZED"), "{what}");
        assert_refused(&reply, 401, "UNAUTHORIZED");
    }
    // Two clocks differ a little.
    let close: [fn(u64) -> Value; 2] =
        [|now| json!({"exp": now - 2}), |now| json!({"nbf": now + 2})];
    for close in close {
        // If the machine stood still, the clocks had come to differ more.
        eventually("a clock that differs a little to be taken", || {
            let reply = with_headers(&server, &claims(close(now_s())));
            (reply.status == 200).then_some(())
        });
    }
}

/// A server accepts the token that `ubscore token` prints for the same configuration.
#[test]
fn the_printed_token_is_accepted() {
    let server = Site::new().start();
    let printed = |arguments: &[&str]| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_ubscore"));
        let output = command.args(["token", "--dev"]).args(arguments).output().expect("the binary");
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).expect("text").trim_end().to_owned()
    };
    let user = printed(&["--user", "1001"]);
    let reply = with_headers(&server, &format!("Authorization: Bearer {user}\r\n"));
    assert_eq!(reply.status, 200, "{reply:?}");
    let admin = printed(&["--user", "1", "--role", "admin", "--ttl", "5m"]);
    let money = external(USER, "USDT", "1", "printed");
    for (token, status) in [(admin, 200), (user, 403)] {
        let request =
            Request { body: Some(&money), ..Request::new(&token, "POST", "/admin/v1/deposits") };
        assert_eq!(send(server.ops, &request).expect("an answer").status, status);
    }
}

#[test]
fn one_user_is_not_another_and_no_user_is_an_operator() {
    let site = Site::new();
    let server = site.start();
    let mut body = Way::ToSpot.body("USDT", "1");
    body["user_id"] = json!(OTHER);
    assert_refused(&server.post(USER, &body), 403, "FORBIDDEN");
    body["user_id"] = json!(USER);
    assert_eq!(server.post(USER, &body).status, 200);

    let user = token(USER, None);
    let money = external(USER, "USDT", "1", "mine");
    let status = json!({"status": "ACTIVE", "reason": "mine"});
    let asset = json!({"status": "SUSPENDED", "reason": "mine"});
    for (method, path, body) in [
        ("POST", "/admin/v1/deposits", &money),
        ("POST", "/admin/v1/withdrawals", &money),
        ("PUT", "/admin/v1/accounts/1001/SPOT/status", &status),
        ("PUT", "/admin/v1/assets/USDT", &asset),
    ] {
        let request = Request { body: Some(body), ..Request::new(&user, method, path) };
        let reply = send(server.ops, &request).expect("an answer");
        assert_refused(&reply, 403, "FORBIDDEN");
        let reply = send(server.ops, &Request { token: "", ..request }).expect("an answer");
        assert_refused(&reply, 401, "UNAUTHORIZED");
    }
    // An unknown role counts as no role.
    let claims = json!({"sub": "1001", "exp": now_s() + 60, "role": "root"});
    let root = signed(Algorithm::HS256, &claims, DEVELOPMENT_SECRET);
    let request =
        Request { body: Some(&money), ..Request::new(&root, "POST", "/admin/v1/deposits") };
    assert_refused(&send(server.ops, &request).expect("an answer"), 403, "FORBIDDEN");
    assert_eq!(site.sql_value("SELECT count(*) FROM transfers"), "1");
    assert_eq!(site.sql_value("SELECT count(*) FROM admin_audit WHERE actor <> 'dev'"), "0");
    site.assert_verified();
}

/// Goal: each refusal that needs only the request. Method: one bad body each, every one also
/// failing each check that comes later, and no transfer may exist afterwards.
#[test]
fn the_first_failing_check_of_a_request_answers() {
    let site = Site::new();
    let server = site.start();
    server.change_asset("ETH", json!({"min": "0.5", "max": "2"}));
    let bad = |from: &str, to: &str, asset: &str, amount: &str| json!({"from": from, "to": to, "asset": asset, "amount": amount, "cid": "never"});
    for (body, status, code) in [
        (bad("SPOT", "SPOT", "NONE", "-1"), 400, "SAME_ACCOUNT"),
        (bad("FUTURE", "FUTURE", "NONE", "-1"), 400, "SAME_ACCOUNT"),
        (bad("WALLET", "FUTURE", "NONE", "-1"), 400, "INVALID_ACCOUNT_TYPE"),
        (bad("FUTURE", "WALLET", "NONE", "-1"), 400, "INVALID_ACCOUNT_TYPE"),
        (bad("funding", "SPOT", "NONE", "-1"), 400, "INVALID_ACCOUNT_TYPE"),
        (bad("", "SPOT", "NONE", "-1"), 400, "INVALID_ACCOUNT_TYPE"),
        (bad("FUNDING", "FUTURE", "NONE", "-1"), 400, "UNSUPPORTED_ACCOUNT_TYPE"),
        (bad("MARGIN", "FUNDING", "NONE", "-1"), 400, "UNSUPPORTED_ACCOUNT_TYPE"),
        (bad("FUNDING", "SPOT", "NONE", "-1"), 400, "INVALID_ASSET"),
        (bad("FUNDING", "SPOT", "usdt", "-1"), 400, "INVALID_ASSET"),
        (bad("FUNDING", "SPOT", "SUSP", "-1"), 422, "ASSET_SUSPENDED"),
        (bad("FUNDING", "SPOT", "NOXFER", "-1"), 422, "TRANSFER_NOT_ALLOWED"),
        (bad("FUNDING", "SPOT", "ETH", "-99999999999999999999.0000000001"), 400, "INVALID_AMOUNT"),
        (
            bad("FUNDING", "SPOT", "ETH", "99999999999999999999.000000001"),
            400,
            "PRECISION_OVERFLOW",
        ),
        (bad("FUNDING", "SPOT", "ETH", "1.000000000"), 400, "PRECISION_OVERFLOW"),
        (bad("FUNDING", "SPOT", "ETH", "184467441"), 400, "OVERFLOW"),
        (bad("FUNDING", "SPOT", "ETH", "0.49999999"), 422, "AMOUNT_TOO_SMALL"),
        (bad("FUNDING", "SPOT", "ETH", "2.00000001"), 422, "AMOUNT_TOO_LARGE"),
    ] {
        assert_refused(&server.post(USER, &body), status, code);
        // User and account come before all of it.
        let mut for_another = body.clone();
        for_another["user_id"] = json!(OTHER);
        assert_refused(&server.post(USER, &for_another), 403, "FORBIDDEN");
        let request = Request { body: Some(&for_another), ..Request::new("", "POST", POST) };
        let reply = send(server.http, &request).expect("an answer");
        assert_refused(&reply, 401, "UNAUTHORIZED");
        // And the form comes before the content.
        let mut malformed = body;
        malformed["extra"] = json!(1);
        assert_refused(&server.post(USER, &malformed), 400, "INVALID_REQUEST");
    }
    assert_eq!(site.sql_value("SELECT count(*) FROM transfers"), "0");
    // No refusal has bound the name.
    let body = Way::ToSpot.body_with_cid("USDT", "1", "never");
    assert_eq!(server.post(USER, &body).status, 200);
    site.assert_verified();
}

/// Goal: an account's refusal, on both sides, is answered with its code and recorded as FAILED, and
/// moves nothing.
#[test]
fn a_source_that_refuses_fails_the_transfer_and_moves_nothing() {
    for fuse in [true, false] {
        let site = Site::fused(fuse);
        let server = site.start();
        // 77 has no account on either side.
        refused_by_source(&site, &server, 77, Way::ToSpot, "SOURCE_ACCOUNT_NOT_FOUND");
        refused_by_source(&site, &server, 77, Way::ToFunding, "SOURCE_ACCOUNT_NOT_FOUND");
        refused_by_source(&site, &server, USER, Way::ToFunding, "SOURCE_ACCOUNT_NOT_FOUND");
        assert_eq!(server.transfer(USER, Way::ToSpot, "3").status, 200);
        server.deposit(USER, "USDT", "0.00000001");
        for (way, account) in [(Way::ToSpot, "FUNDING"), (Way::ToFunding, "SPOT")] {
            server.set_status(USER, account, "FROZEN");
            refused_by_source(&site, &server, USER, way, "ACCOUNT_FROZEN");
            server.set_status(USER, account, "DISABLED");
            refused_by_source(&site, &server, USER, way, "ACCOUNT_DISABLED");
            server.set_status(USER, account, "ACTIVE");
            refused_by_source(&site, &server, USER, way, "INSUFFICIENT_BALANCE");
        }
        site.assert_in_order(&server);
    }
}

/// Posts more than the balance, and checks everything that the refusal must have left unchanged.
fn refused_by_source(site: &Site, server: &Server, user: u64, way: Way, code: &str) {
    let before = server.balances(user);
    let reply = server.transfer(user, way, "10000.00000001");
    assert_refused(&reply, 422, code);
    let json = reply.json();
    assert_eq!((&json["state"], &json["retryable"]), (&json!("FAILED"), &json!(false)));
    site.wait_for_rest();
    let transfer = server.look(user, &reply.req_id());
    let names: Vec<&Value> =
        transfer["history"].as_array().expect("an array").iter().map(|p| &p["state"]).collect();
    assert_eq!(names, ["INIT", "SOURCE_PENDING", "FAILED"]);
    assert_eq!(transfer["error"]["code"], json!(code));
    assert_eq!((&transfer["funds_at"], &transfer["final"]), (&json!("source"), &json!(true)));
    assert_eq!(server.balances(user), before);
}

/// Not only whole coins may be missing: the last unit counts, on both sides.
#[test]
fn the_last_unit_can_be_moved_and_not_one_more() {
    let site = Site::new();
    let server = site.start();
    for way in Way::BOTH {
        assert_refused(
            &server.transfer(
                USER,
                way,
                if way == Way::ToSpot { "10000.00000001" } else { "10000.5" },
            ),
            422,
            "INSUFFICIENT_BALANCE",
        );
        let reply = server.transfer(USER, way, "10000");
        assert_eq!(reply.status, 200, "{reply:?}");
        assert_refused(&server.transfer(USER, way, "0.00000001"), 422, "INSUFFICIENT_BALANCE");
    }
    assert_eq!(server.usdt(USER), Balance::at_rest(10_000 * COIN, 0));
    site.assert_verified();
}

/// The limits of an asset are closed intervals.
#[test]
fn an_assets_limits_themselves_are_allowed() {
    let site = Site::new();
    let server = site.start();
    server.change_asset("USDT", json!({"min": "0.5", "max": "2"}));
    for amount in ["0.5", "2", "2.00000000"] {
        assert_eq!(server.transfer(USER, Way::ToSpot, amount).status, 200, "{amount}");
    }
    site.assert_verified();
}

/// Goal: a halted service accepts no new transfer and still answers old ones. Method: the flag is
/// set in PostgreSQL before a start.
#[test]
fn a_halted_service_refuses_what_is_new_and_answers_what_was() {
    let site = Site::new();
    let server = site.start();
    let body = Way::ToSpot.body_with_cid("USDT", "5", "before");
    let first = server.post(USER, &body);
    assert_eq!(first.status, 200, "{first:?}");
    server.stop();
    site.sql("UPDATE engine_state SET halted = TRUE, halt_reason = 'a test'");
    let server = site.start();
    for way in Way::BOTH {
        assert_refused(&server.transfer(USER, way, "1"), 503, "SERVICE_HALTED");
        // It comes before the checks of the content, and after those of the form.
        assert_refused(&server.transfer(USER, way, "-1"), 503, "SERVICE_HALTED");
        let reply = server.post(USER, &json!({"from": "FUNDING"}));
        assert_refused(&reply, 400, "INVALID_REQUEST");
    }
    for path in ["/admin/v1/deposits", "/admin/v1/withdrawals"] {
        let reply = server.admin("POST", path, &external(USER, "USDT", "1", "halted"));
        assert_refused(&reply, 503, "SERVICE_HALTED");
    }
    let again = server.post(USER, &body);
    assert_eq!((again.status, again.json()), (200, first.json()), "{again:?}");
    assert_eq!(again.header("idempotent-replayed"), Some("true"));
    let other = server.post(USER, &Way::ToSpot.body_with_cid("USDT", "6", "before"));
    assert_refused(&other, 409, "DUPLICATE_REQUEST");
    assert_eq!(server.look(USER, &first.req_id())["state"], json!("COMMITTED"));
    assert_eq!(server.usdt(USER), Balance::at_rest(9_995 * COIN, 5 * COIN));
    let token = token(ADMIN, Some(Role::Admin));
    let ready = send(server.ops, &Request::new(&token, "GET", "/readyz")).expect("an answer");
    assert_refused(&ready, 503, "SERVICE_HALTED");
    let alive = send(server.ops, &Request::new(&token, "GET", "/healthz")).expect("an answer");
    assert_eq!(alive.status, 200);
    assert_eq!(site.sql_value("SELECT count(*) FROM transfers"), "1");
    site.assert_verified();
}

/// Goal: a full queue refuses, and a refused request has no effect. Method: one worker with a queue
/// of one place, blocked by a row lock; a crowd of cids; each is posted again afterwards and makes
/// one transfer.
#[test]
fn a_full_queue_refuses_and_forgets() {
    const CROWD: usize = 30;
    let site = Site::new()
        .with("UBSCORE__COORDINATOR__SHARDS", 1)
        .with("UBSCORE__COORDINATOR__QUEUE_MAX", 1)
        .with("UBSCORE__COORDINATOR__BATCH_MAX", 1)
        .with("UBSCORE__HTTP__TRANSFER_WAIT_MS", 200);
    let server = site.start();
    let lock = site.lock_usdt(&[USER]);
    let body = |index: usize| Way::ToSpot.body_with_cid("USDT", "1", &format!("crowd-{index}"));
    let replies = crowd(CROWD, |index| server.post(USER, &body(index)));
    let codes: Vec<(u16, String)> = replies.iter().map(Reply::refusal).collect();
    let overloaded: Vec<usize> =
        (0..CROWD).filter(|&index| codes[index] == (503, "OVERLOADED".to_owned())).collect();
    assert!(!overloaded.is_empty(), "{codes:?}");
    for &index in &overloaded {
        let reply = &replies[index];
        assert_refused(reply, 503, "OVERLOADED");
        assert_eq!(reply.header("retry-after"), Some("1"), "{reply:?}");
        assert_eq!(reply.json()["retryable"], json!(true));
    }
    lock.sql("ROLLBACK");
    for index in 0..CROWD {
        eventually("room in the queue", || {
            let reply = server.post(USER, &body(index));
            assert!([200, 202, 503].contains(&reply.status), "{reply:?}");
            (reply.status == 200).then_some(())
        });
    }
    site.wait_for_rest();
    assert_eq!(server.usdt(USER), Balance::at_rest(9_970 * COIN, 30 * COIN));
    site.assert_in_order(&server);
}

/// Goal: without PostgreSQL every route that needs it returns an error, no request hangs, and all
/// continues when it is back.
#[test]
fn without_postgresql_nothing_is_promised_and_nothing_hangs() {
    let site = Site::new();
    let server = site.start();
    assert_eq!(server.transfer(USER, Way::ToSpot, "5").status, 200);
    site.wait_for_rest();
    site.admit_connections(false);
    for way in Way::BOTH {
        let body = way.body_with_cid("USDT", "1", "away");
        let reply = server.post(USER, &body);
        assert_refused(&reply, 503, "SYSTEM_ERROR");
        assert_eq!(reply.json()["retryable"], json!(true), "{reply:?}");
    }
    for path in ["/api/v1/balances", "/api/v1/internal_transfer/01JFVQ2X8Z0Y1M3N4P5R6S7T8V"] {
        assert_refused(&server.get(USER, path), 503, "SYSTEM_ERROR");
    }
    let reply = server.admin("POST", "/admin/v1/deposits", &external(USER, "USDT", "1", "away"));
    assert_refused(&reply, 503, "SYSTEM_ERROR");
    let admin = token(ADMIN, Some(Role::Admin));
    let ready = |server: &Server| {
        send(server.ops, &Request::new(&admin, "GET", "/readyz")).expect("an answer").status
    };
    assert_eq!(ready(&server), 503);
    let alive = send(server.ops, &Request::new(&admin, "GET", "/healthz")).expect("an answer");
    assert_eq!(alive.status, 200);

    site.admit_connections(true);
    eventually("readiness", || (ready(&server) == 200).then_some(()));
    let body = Way::ToSpot.body_with_cid("USDT", "1", "away");
    eventually("a transfer", || (server.post(USER, &body).status == 200).then_some(()));
    assert_eq!(server.usdt(USER).sum(), 10_000 * COIN);
    server.admin("POST", "/admin/v1/deposits", &external(USER, "USDT", "1", "away"));
    server.admin("POST", "/admin/v1/deposits", &external(USER, "USDT", "1", "away"));
    assert_eq!(server.usdt(USER).sum(), 10_001 * COIN);
    site.wait_for_rest();
    site.assert_in_order(&server);
}

/// A body in 413 and 415, which have statuses of their own.
#[test]
fn a_body_that_is_too_large_or_no_json_by_its_type_has_its_own_status() {
    let server = Site::new().start();
    let authorization = format!("Authorization: Bearer {}\r\n", token(USER, None));
    let body = Way::ToSpot.body("USDT", "1").to_string();
    for kind in ["", "Content-Type: text/plain\r\n", "Content-Type: application/jsonx\r\n"] {
        let headers = format!("{authorization}{kind}");
        let reply = send_text(server.http, "POST", POST, &headers, &body).expect("an answer");
        assert_refused(&reply, 415, "INVALID_REQUEST");
    }
    let headers = format!("{authorization}Content-Type: Application/JSON; charset=utf-8\r\n");
    let padded = |length: usize| format!("{body}{}", " ".repeat(length - body.len()));
    let reply = send_text(server.http, "POST", POST, &headers, &padded(16_385)).expect("an answer");
    assert_refused(&reply, 413, "INVALID_REQUEST");
    let reply = send_text(server.http, "POST", POST, &headers, &padded(16_384)).expect("an answer");
    assert_eq!(reply.status, 200, "{reply:?}");
    assert_eq!(text(&reply.json()["amount"]), "1");
}
