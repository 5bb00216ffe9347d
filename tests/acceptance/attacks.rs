//! ATK-001 to ATK-013.

use jsonwebtoken::Algorithm;
use serde_json::{Value, json};
use ubscore::config::auth::DEVELOPMENT_SECRET;

use crate::bad_input::assert_nothing_done;
use crate::harness::{Reply, Server, Site, Way, assert_refused, now_s, send_text, token};
use crate::refusals::signed;

const USER: u64 = 1001;
const OTHER: u64 = 1002;
const POST: &str = "/api/v1/internal_transfer";

/// Asserts that each body is refused and that none has an effect.
fn assert_all_refused(bodies: &[Value], status: u16, code: &str) {
    let site = Site::new();
    let server = site.start();
    for body in bodies {
        let reply = server.post(USER, body);
        assert_eq!(reply.refusal(), (status, code.to_owned()), "{body}");
        assert_refused(&reply, status, code);
    }
    assert_nothing_done(&site, &server);
}

/// Transfers of these amounts, each both ways.
fn amounts(amounts: &[&str]) -> Vec<Value> {
    let both = |amount: &&str| Way::BOTH.map(|way| way.body("USDT", amount));
    amounts.iter().flat_map(both).collect()
}

/// Goal: the token of one user reaches no other user. Method: the other user's money, transfer and
/// cid.
#[test]
fn atk_001_nobody_moves_or_sees_what_is_anothers() {
    let site = Site::new();
    let server = site.start();
    let body = Way::ToSpot.body_with_cid("USDT", "5", "theirs");
    let theirs = server.post(OTHER, &body);
    assert_eq!(theirs.status, 200, "{theirs:?}");
    site.wait_for_rest();
    let before = server.balances(OTHER);

    for way in Way::BOTH {
        let mut body = way.body_with_cid("USDT", "1", "theirs");
        body["user_id"] = json!(OTHER);
        assert_refused(&server.post(USER, &body), 403, "FORBIDDEN");
    }
    let path = format!("{POST}/{}", theirs.req_id());
    assert_refused(&server.get(USER, &path), 404, "TRANSFER_NOT_FOUND");
    // Spot has no money of this user, and the other user's Spot balance does not count.
    let reply = server.transfer(USER, Way::ToFunding, "1");
    assert_refused(&reply, 422, "SOURCE_ACCOUNT_NOT_FOUND");
    assert_eq!(server.balances(OTHER), before);
    site.assert_in_order(&server);
}

#[test]
fn atk_002_a_body_cannot_name_another_user() {
    let site = Site::new();
    let server = site.start();
    for user in [OTHER, 1, 9_001, (1 << 63) - 1] {
        let mut body = Way::ToSpot.body("USDT", "1");
        body["user_id"] = json!(user);
        assert_refused(&server.post(USER, &body), 403, "FORBIDDEN");
    }
    assert_nothing_done(&site, &server);
    let mut body = Way::ToSpot.body("USDT", "1");
    body["user_id"] = json!(USER);
    assert_eq!(server.post(USER, &body).status, 200);
    site.wait_for_rest();
    site.assert_in_order(&server);
}

#[test]
fn atk_003_a_negative_amount_is_refused() {
    let bodies = amounts(&["-100", "-0.00000001", "-18446744073709551616"]);
    assert_all_refused(&bodies, 400, "INVALID_AMOUNT");
}

#[test]
fn atk_004_an_amount_of_zero_is_refused() {
    assert_all_refused(&amounts(&["0", "00", "0.0", "0.00000000", "-0"]), 400, "INVALID_AMOUNT");
}

#[test]
fn atk_005_more_decimals_than_the_asset_has_are_refused() {
    let bodies = amounts(&["0.000000001", "1.123456789", "1.000000000"]);
    assert_all_refused(&bodies, 400, "PRECISION_OVERFLOW");
}

/// One more than 64 bits hold, in coins and in smallest units, and an amount that would be small if
/// it wrapped around.
#[test]
fn atk_006_an_amount_beyond_64_bits_is_refused() {
    let bodies = amounts(&[
        "18446744073709551616",
        "184467440737.09551616",
        "184467440737.09551617",
        "340282366920938463463374607431768211456",
    ]);
    assert_all_refused(&bodies, 400, "OVERFLOW");
}

#[test]
fn atk_007_a_transfer_to_the_same_account_is_refused() {
    let body = |account| json!({"from": account, "to": account, "asset": "USDT", "amount": "1"});
    assert_all_refused(&["SPOT", "FUNDING"].map(body), 400, "SAME_ACCOUNT");
}

#[test]
fn atk_008_an_account_type_that_does_not_exist_is_refused() {
    let body = |(from, to)| json!({"from": from, "to": to, "asset": "USDT", "amount": "1"});
    let pairs = [("INVALID", "SPOT"), ("FUNDING", "INVALID"), ("spot", "FUNDING"), ("", "SPOT")];
    assert_all_refused(&pairs.map(body), 400, "INVALID_ACCOUNT_TYPE");
}

/// The API names assets by their symbols; a number is not a symbol.
#[test]
fn atk_009_an_asset_that_does_not_exist_is_refused() {
    let bodies = ["999999", "NONE", "3", "usdt", ""].map(|asset| Way::ToSpot.body(asset, "1"));
    assert_all_refused(&bodies, 400, "INVALID_ASSET");
    let mut body = Way::ToSpot.body("USDT", "1");
    body["asset"] = json!(999_999);
    assert_all_refused(&[body], 400, "INVALID_REQUEST");
}

#[test]
fn atk_010_a_cid_sent_twice_is_one_transfer_with_one_answer() {
    for fuse in [true, false] {
        let site = Site::fused(fuse);
        let server = site.start();
        let good = Way::ToSpot.body_with_cid("USDT", "3", "good");
        let bad = Way::ToSpot.body_with_cid("USDT", "20000", "bad");
        let first = [&good, &bad].map(|body| server.post(USER, body));
        assert_eq!(first[0].status, 200, "{:?}", first[0]);
        assert_refused(&first[1], 422, "INSUFFICIENT_BALANCE");
        let balance = server.usdt(USER);
        for (body, first) in [&good, &bad].into_iter().zip(&first) {
            let second = server.post(USER, body);
            assert_eq!((second.status, second.req_id()), (first.status, first.req_id()));
            assert_eq!(second.header("idempotent-replayed"), Some("true"), "{second:?}");
        }
        assert_eq!(server.usdt(USER), balance);
        assert_eq!(site.sql_value("SELECT count(*) FROM transfers"), "2");
        site.wait_for_rest();
        site.assert_in_order(&server);
    }
}

/// Posts a transfer under the headers of an attacker.
fn post_with(server: &Server, headers: &str) -> Reply {
    let headers = format!("{headers}Content-Type: application/json\r\n");
    let body = Way::ToSpot.body("USDT", "1").to_string();
    send_text(server.http, "POST", POST, &headers, &body).expect("an answer")
}

/// Asserts that a transfer is refused under each of these headers and that none has an effect.
fn assert_all_unauthorized(headers: &[String]) {
    let site = Site::new();
    let server = site.start();
    for headers in headers {
        assert_eq!(post_with(&server, headers).refusal().1, "UNAUTHORIZED", "{headers}");
        assert_refused(&post_with(&server, headers), 401, "UNAUTHORIZED");
    }
    assert_nothing_done(&site, &server);
}

fn bearer(token: &str) -> String {
    format!("Authorization: Bearer {token}\r\n")
}

#[test]
fn atk_011_without_a_token_every_door_is_closed() {
    assert_all_unauthorized(&[String::new(), bearer(""), "Authorization: Bearer\r\n".to_owned()]);
    let server = Site::new().start();
    for (address, method, path) in [
        (server.http, "GET", "/api/v1/balances"),
        (server.http, "GET", "/api/v1/internal_transfer/01ARZ3NDEKTSV4RRFFQ69G5FAV"),
        (server.ops, "POST", "/admin/v1/deposits"),
        (server.ops, "POST", "/admin/v1/halt"),
    ] {
        let reply = send_text(address, method, path, "", "").expect("an answer");
        assert_refused(&reply, 401, "UNAUTHORIZED");
    }
}

#[test]
fn atk_012_an_expired_token_is_refused() {
    let expired = |ago_s: u64| {
        let claims = json!({"sub": USER.to_string(), "exp": now_s() - ago_s});
        bearer(&signed(Algorithm::HS256, &claims, DEVELOPMENT_SECRET))
    };
    assert_all_unauthorized(&[expired(60), expired(86_400), expired(now_s())]);
}

/// Another secret, another algorithm, no signature, and another user's claims under a good
/// signature.
#[test]
fn atk_013_a_forged_token_is_refused() {
    let claims = json!({"sub": USER.to_string(), "exp": now_s() + 600});
    let (ours, theirs) = (token(USER, None), token(OTHER, None));
    let parts: Vec<&str> = ours.split('.').collect();
    let their_parts: Vec<&str> = theirs.split('.').collect();
    // {"alg":"none","typ":"JWT"}
    let none = "eyJhbGciOiJub25lIiwidHlwIjoiSldUIn0";
    let forged = [
        signed(Algorithm::HS256, &claims, "a secret that was guessed wrong"),
        signed(Algorithm::HS512, &claims, DEVELOPMENT_SECRET),
        format!("{none}.{}.", parts[1]),
        format!("{none}.{}.{}", parts[1], parts[2]),
        format!("{}.{}.{}", parts[0], parts[1], their_parts[2]),
        format!("{}.{}.{}", parts[0], their_parts[1], parts[2]),
        format!("{}.{}", parts[0], parts[1]),
    ];
    assert_all_unauthorized(&forged.map(|token| bearer(&token)));
}
