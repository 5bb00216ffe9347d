//! Transfers over HTTP from the client's side.

use std::io::Write;
use std::net::TcpStream;
use std::thread;

use serde_json::{Value, json};
use ubscore::http::auth::Role;

use crate::harness::{
    Balance, COIN, Reply, Request, Site, Way, assert_refused, crowd, eventually, send, text, token,
    while_watched,
};

const USER: u64 = 1001;
const OTHER: u64 = 1002;
/// The first balance of a development user, USDT in smallest units.
const GIFT: u128 = 10_000 * COIN;

/// The names of the states in a transfer's history.
pub(crate) fn history(transfer: &Value) -> Vec<&str> {
    let passed = transfer["history"].as_array().expect("an array");
    passed.iter().map(|passed| text(&passed["state"])).collect()
}

/// Goal: both ways move exactly the amount, through exactly the states of the specification, and
/// every answer has exactly its fields. Method: one transfer each way, fused and not; answers and
/// rows are compared whole.
#[test]
fn a_transfer_moves_the_amount_through_every_state_both_ways() {
    for fuse in [true, false] {
        let site = Site::fused(fuse);
        let server = site.start();
        let fused = |states: &str| match fuse {
            true => vec![states.to_owned()],
            false => states.split(' ').map(str::to_owned).collect(),
        };
        for (way, commits, after) in [
            (Way::ToSpot, ["0 10 20 30", "40"], Balance::at_rest(GIFT - 100 * COIN, 100 * COIN)),
            (Way::ToFunding, ["0 10", "20 30 40"], Balance::at_rest(GIFT, 0)),
        ] {
            let reply = server.transfer(USER, way, "100.00");
            assert_eq!(reply.status, 200, "{reply:?}");
            let req_id = reply.req_id();
            let (from, to) = way.accounts();
            let transfer_id = reply.json()["transfer_id"].clone();
            assert!(transfer_id.is_u64(), "{reply:?}");
            assert_eq!(req_id.len(), 26);
            let want = json!({
                "transfer_id": transfer_id, "req_id": req_id, "from": from, "to": to,
                "asset": "USDT", "amount": "100", "state": "COMMITTED", "funds_at": "target",
                "final": true, "cid": null, "message": "Transfer successful",
            });
            assert_eq!(reply.json(), want);
            assert_eq!(server.usdt(USER), after);

            site.wait_for_rest();
            let mut transfer = server.look(USER, &req_id);
            let states = ["INIT", "SOURCE_PENDING", "SOURCE_DONE", "TARGET_PENDING", "COMMITTED"];
            assert_eq!(history(&transfer), states);
            let want_commits: Vec<String> = commits.into_iter().flat_map(fused).collect();
            assert_eq!(site.commits(&req_id), want_commits);
            for passed in transfer["history"].as_array().expect("an array") {
                assert_eq!(passed["attempt"], json!(0), "{passed}");
                assert!(passed["reason"].is_null(), "{passed}");
                let at: Result<jiff::Timestamp, _> = text(&passed["at"]).parse();
                at.unwrap_or_else(|error| panic!("{passed}: {error}"));
            }
            assert_eq!(transfer["error"], Value::Null);
            let fields = transfer.as_object_mut().expect("an object");
            for only_here in ["history", "created_at", "updated_at", "error"] {
                fields.remove(only_here).expect(only_here);
            }
            assert_eq!(transfer, want);
        }
        site.assert_in_order(&server);
        server.stop();
    }
}

/// Whether an answer is marked as a replay.
fn is_replayed(reply: &Reply) -> bool {
    reply.header("idempotent-replayed") == Some("true")
}

#[test]
fn a_cid_names_one_transfer_of_one_user() {
    for fuse in [true, false] {
        let site = Site::fused(fuse);
        let server = site.start();
        let body = Way::ToSpot.body_with_cid("USDT", "5.50", "order-1");
        let first = server.post(USER, &body);
        assert_eq!((first.status, is_replayed(&first)), (200, false), "{first:?}");

        let again = server.post(USER, &body);
        assert_eq!((again.status, is_replayed(&again)), (200, true), "{again:?}");
        assert_eq!(again.json(), first.json());
        // The amount is compared as a value.
        let spelled = server.post(USER, &Way::ToSpot.body_with_cid("USDT", "05.5", "order-1"));
        assert_eq!((spelled.status, is_replayed(&spelled)), (200, true), "{spelled:?}");
        assert_eq!(spelled.json(), first.json());

        let other = server.post(OTHER, &body);
        assert_eq!((other.status, is_replayed(&other)), (200, false), "{other:?}");
        assert_ne!(other.req_id(), first.req_id());
        for user in [USER, OTHER] {
            let want = Balance::at_rest(GIFT - 55 * COIN / 10, 55 * COIN / 10);
            assert_eq!(server.usdt(user), want);
        }
        for (body, fields) in [
            (Way::ToSpot.body_with_cid("USDT", "5.51", "order-1"), "amount."),
            (Way::ToSpot.body_with_cid("BTC", "5.5", "order-1"), "asset."),
            (Way::ToFunding.body_with_cid("USDT", "5.5", "order-1"), "from, to."),
            (Way::ToFunding.body_with_cid("ETH", "1", "order-1"), "from, to, asset, amount."),
        ] {
            let reply = server.post(USER, &body);
            assert_refused(&reply, 409, "DUPLICATE_REQUEST");
            let message = text(&reply.json()["message"]).to_owned();
            assert!(message.ends_with(fields), "{body}: {message}");
        }
        // Idempotency comes before the checks with changing answers, so a replay is answered even
        // if it fails them.
        let reply = server.post(USER, &Way::ToSpot.body_with_cid("SUSP", "1", "order-1"));
        assert_refused(&reply, 409, "DUPLICATE_REQUEST");
        assert_eq!(site.sql_value("SELECT count(*) FROM transfers"), "2");
        site.assert_in_order(&server);
    }
}

/// A retry of an accepted transfer must not get a refusal of today.
#[test]
fn a_replay_answers_the_transfer_whatever_has_changed_since() {
    let site = Site::new();
    let server = site.start();
    let body = Way::ToSpot.body_with_cid("USDT", "100", "before");
    let first = server.post(USER, &body);
    assert_eq!(first.status, 200, "{first:?}");
    let failed = Way::ToFunding.body_with_cid("USDT", "101", "failed");
    assert_refused(&server.post(USER, &failed), 422, "INSUFFICIENT_BALANCE");
    for change in [
        json!({"status": "SUSPENDED"}),
        json!({"status": "ACTIVE", "transfer_enabled": false}),
        json!({"transfer_enabled": true, "min": "100.00000001", "max": "101.5"}),
        json!({"min": "0.00000001", "max": "99"}),
    ] {
        server.change_asset("USDT", change.clone());
        let again = server.post(USER, &body);
        assert_eq!((again.status, is_replayed(&again)), (200, true), "{change}: {again:?}");
        assert_eq!(again.json(), first.json());
    }
    server.change_asset("USDT", json!({"max": "1000"}));
    server.set_status(USER, "FUNDING", "DISABLED");
    server.set_status(USER, "SPOT", "DISABLED");
    assert_eq!(server.post(USER, &body).json(), first.json());

    // A failed transfer keeps its cid for ever, even after the account is open again.
    server.set_status(USER, "FUNDING", "ACTIVE");
    server.set_status(USER, "SPOT", "ACTIVE");
    assert_eq!(server.transfer(USER, Way::ToSpot, "1").status, 200);
    let again = server.post(USER, &failed);
    assert_refused(&again, 422, "INSUFFICIENT_BALANCE");
    assert!(is_replayed(&again), "{again:?}");
    assert_eq!(again.json()["state"], json!("FAILED"));
    // A refusal without a transfer does not use up the cid.
    let small = Way::ToSpot.body_with_cid("USDT", "0.000000001", "free");
    assert_refused(&server.post(USER, &small), 400, "PRECISION_OVERFLOW");
    let reply = server.post(USER, &Way::ToSpot.body_with_cid("USDT", "2", "free"));
    assert_eq!((reply.status, is_replayed(&reply)), (200, false), "{reply:?}");
    site.assert_in_order(&server);
}

#[test]
fn fifty_posts_of_one_cid_at_once_are_one_transfer() {
    for way in Way::BOTH {
        let site = Site::new();
        let server = site.start();
        assert_eq!(server.transfer(USER, Way::ToSpot, "1000").status, 200);
        let body = way.body_with_cid("USDT", "7", "crowd");
        let replies = crowd(50, |_| server.post(USER, &body));
        let first = replies[0].req_id();
        for reply in &replies {
            assert_eq!((reply.status, reply.req_id()), (200, first.clone()), "{reply:?}");
        }
        assert_eq!(replies.iter().filter(|reply| !is_replayed(reply)).count(), 1);
        let of_cid = "SELECT count(*) FROM transfers WHERE cid = 'crowd'";
        assert_eq!(site.sql_value(of_cid), "1");
        site.wait_for_rest();
        site.assert_in_order(&server);
    }
}

/// Goal: a client that disconnects changes nothing. Method: the Funding row is locked, so that the
/// transfer waits; the client disconnects; the row is released.
#[test]
fn a_client_that_hangs_up_changes_nothing() {
    for fuse in [true, false] {
        let site = Site::fused(fuse);
        let server = site.start();
        assert_eq!(server.transfer(USER, Way::ToSpot, "10").status, 200);
        site.wait_for_rest();
        let held = site.lock_usdt(&[USER]);
        let body = Way::ToFunding.body_with_cid("USDT", "4", "gone").to_string();
        let (token, length) = (token(USER, None), body.len());
        let mut stream = TcpStream::connect(server.http).expect("connected");
        let request = format!(
            "POST /api/v1/internal_transfer HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n\
             Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
        );
        stream.write_all(request.as_bytes()).expect("sent");
        let accepted = "SELECT req_id FROM transfers WHERE cid = 'gone'";
        let req_id =
            eventually("the accept", || site.sql(accepted).first().map(|row| row[0].clone()));
        drop(stream);
        held.sql("ROLLBACK");
        site.wait_for_rest();
        assert_eq!(server.look(USER, &req_id)["state"], json!("COMMITTED"));
        assert_eq!(server.usdt(USER), Balance::at_rest(GIFT - 6 * COIN, 6 * COIN));
        site.assert_in_order(&server);
    }
}

/// Goal: a transfer that is not yet final is answered as pending, and becomes final by itself.
/// Method: the Funding row is locked while a transfer needs it; balances, GET and replay are read
/// meanwhile; then the row is released.
#[test]
fn what_is_not_final_in_time_is_pending_and_ends_by_itself() {
    for (way, fuse, resting, funds_at) in [
        (Way::ToFunding, true, "TARGET_PENDING", "in_flight"),
        (Way::ToFunding, false, "TARGET_PENDING", "in_flight"),
        (Way::ToSpot, false, "SOURCE_PENDING", "source"),
    ] {
        let site = Site::fused(fuse).with("UBSCORE__HTTP__TRANSFER_WAIT_MS", 100);
        let server = site.start();
        server.deposit(USER, "USDT", "5");
        server.transfer_accepted(USER, Way::ToSpot, "10");
        site.wait_for_rest();
        let held = site.lock_usdt(&[USER]);
        let body = way.body_with_cid("USDT", "4", "waits");
        let reply = server.post_pending(USER, &body);
        let want = (json!("PENDING"), json!(false), json!("Transfer in progress"));
        let json = reply.json();
        assert_eq!((&json["state"], &json["final"], &json["message"]), (&want.0, &want.1, &want.2));

        let now = eventually("the resting state", || {
            let now = server.look(USER, &reply.req_id());
            (now["state"] == json!(resting) && now["funds_at"] == json!(funds_at)).then_some(now)
        });
        assert_eq!(now["final"], json!(false));
        assert_eq!(now["error"], Value::Null);
        let again = server.post_taken(USER, &body);
        assert_eq!((again.status, is_replayed(&again)), (202, true), "{again:?}");
        assert_eq!(again.json()["funds_at"], json!(funds_at));
        let balance = server.usdt(USER);
        assert_eq!(balance.sum(), GIFT + 5 * COIN, "{balance:?}");
        let in_flight = if funds_at == "in_flight" { 4 * COIN } else { 0 };
        assert_eq!(u128::try_from(balance.in_flight), Ok(in_flight), "{balance:?}");

        held.sql("ROLLBACK");
        site.wait_for_rest();
        let again = server.post(USER, &body);
        assert_eq!((again.status, is_replayed(&again)), (200, true), "{again:?}");
        assert_eq!(again.req_id(), reply.req_id());
        assert_eq!(server.look(USER, &reply.req_id())["state"], json!("COMMITTED"));
        site.assert_in_order(&server);
    }
}

/// Goal: if an accept's outcome is unknown, the client gets that answer with the transfer's name,
/// and its retry makes no second transfer. Method: the Funding row is locked, so that a fused
/// accept hangs in its own commit; a second one waits behind it, and may be dropped or carried out.
#[test]
fn an_accept_that_is_not_known_yet_is_answered_with_its_name() {
    let site = Site::new()
        .with("UBSCORE__HTTP__TRANSFER_WAIT_MS", 100)
        .with("UBSCORE__POSTGRES__LOCK_TIMEOUT_MS", 60_000)
        .with("UBSCORE__POSTGRES__STATEMENT_TIMEOUT_MS", 60_000);
    let server = site.start();
    let held = site.lock_usdt(&[USER]);
    let begun = server.transfer(USER, Way::ToSpot, "3");
    assert_refused(&begun, 503, "SYSTEM_ERROR");
    let json = begun.json();
    assert_eq!((&json["outcome"], &json["retryable"]), (&json!("unknown"), &json!(false)));
    let body = Way::ToSpot.body_with_cid("USDT", "4", "unknown");
    let waiting = server.post(USER, &body);
    assert_refused(&waiting, 503, "SYSTEM_ERROR");
    assert_eq!(waiting.json()["retryable"], json!(true), "{waiting:?}");
    held.sql("ROLLBACK");
    eventually("the end of what was begun", || {
        let path = format!("/api/v1/internal_transfer/{}", begun.req_id());
        let reply = server.get(USER, &path);
        (reply.status == 200 && reply.json()["state"] == json!("COMMITTED")).then_some(())
    });
    eventually("the retry's success", || (server.post(USER, &body).status == 200).then_some(()));
    assert_eq!(site.sql_value("SELECT count(*) FROM transfers WHERE cid = 'unknown'"), "1");
    site.wait_for_rest();
    assert_eq!(server.usdt(USER), Balance::at_rest(GIFT - 7 * COIN, 7 * COIN));
    site.assert_in_order(&server);
}

/// Story: a locked balance row blocked every call of its user, and with them the whole shard, so
/// that no other user's transfers completed. Method: one shard, one user's row locked, a crowd of
/// transfers of that user, and then another user's. Each of the latter must be answered with its
/// end while the first user's are still under way. A new transfer of the first user has no row to
/// wait with, and is refused at once.
#[test]
fn a_held_account_holds_up_nobody_else() {
    const OTHER: u64 = USER + 1;
    let site = Site::new()
        .with("UBSCORE__COORDINATOR__SHARDS", 1)
        .with("UBSCORE__POSTGRES__LOCK_TIMEOUT_MS", 100)
        .with("UBSCORE__HTTP__TRANSFER_WAIT_MS", 60_000)
        .with("UBSCORE__HTTP__REQUEST_TIMEOUT_MS", 120_000);
    let server = site.start();
    server.transfer_committed(USER, Way::ToSpot, "8");
    let held = site.lock_usdt(&[USER]);
    let http = server.http;
    let waiting: Vec<_> = (0..8)
        .map(|index| {
            let body = Way::ToFunding.body_with_cid("USDT", "1", &format!("held-{index}"));
            let token = token(USER, None);
            thread::spawn(move || {
                let path = "/api/v1/internal_transfer";
                send(http, &Request { body: Some(&body), ..Request::new(&token, "POST", path) })
            })
        })
        .collect();
    let locked = "SELECT count(*) FROM pg_stat_activity \
                  WHERE datname = current_database() AND wait_event_type = 'Lock'";
    eventually("a call that waits", || (site.sql_value(locked) != "0").then_some(()));
    for _ in 0..5 {
        assert_eq!(server.transfer(OTHER, Way::ToSpot, "2").status, 200);
        assert_eq!(server.transfer(OTHER, Way::ToFunding, "1").status, 200);
    }
    assert_refused(&server.transfer(USER, Way::ToSpot, "1"), 503, "SYSTEM_ERROR");
    assert!(waiting.iter().all(|waiting| !waiting.is_finished()), "no transfer was blocked");
    held.sql("ROLLBACK");
    for waiting in waiting {
        let reply = waiting.join().expect("no panic").expect("an answer");
        assert_eq!(reply.status, 200, "{reply:?}");
    }
    site.wait_for_rest();
    site.assert_in_order(&server);
}

/// Goal: no read counts money twice or misses it. Method: 100 transfers both ways of one user at
/// once, while others read balances, and each read must have the exact sum.
#[test]
fn every_read_sums_exactly_while_a_hundred_transfers_run() {
    for fuse in [true, false] {
        let site = Site::fused(fuse);
        let server = site.start();
        assert_eq!(server.transfer(USER, Way::ToSpot, "5000").status, 200);
        let read = || {
            let balance = server.usdt(USER);
            assert_eq!(balance.sum(), GIFT, "{balance:?}");
        };
        let replies = while_watched(3, read, || {
            crowd(100, |index| {
                let way = Way::BOTH[index % 2];
                (way, index + 1, server.transfer(USER, way, &format!("{}", index + 1)))
            })
        });
        site.wait_for_rest();
        let mut want = Balance::at_rest(5_000 * COIN, 5_000 * COIN);
        for (way, coins, reply) in &replies {
            let units = u128::try_from(*coins).expect("small") * COIN;
            assert!([200, 202].contains(&reply.status), "{reply:?}");
            let (funding, spot) = (want.funding.expect("some"), want.spot.expect("some"));
            want = match way {
                Way::ToSpot => Balance::at_rest(funding - units, spot + units),
                Way::ToFunding => Balance::at_rest(funding + units, spot - units),
            };
        }
        assert_eq!(server.usdt(USER), want);
        site.assert_in_order(&server);
    }
}

/// An answered COMMITTED stays: the mark in PostgreSQL may come later, and no read returns an
/// earlier state.
#[test]
fn no_read_steps_back_behind_an_answer() {
    for fuse in [true, false] {
        let site = Site::fused(fuse);
        let server = site.start();
        crowd(8, |index| {
            for round in 0..8 {
                let way = Way::BOTH[round % 2];
                let body = way.body_with_cid("USDT", "2", &format!("{index}-{round}"));
                let user = if index % 2 == 0 { USER } else { OTHER };
                let reply = server.post(user, &body);
                if reply.status == 200 {
                    let seen = server.look(user, &reply.req_id());
                    assert_eq!(seen["state"], json!("COMMITTED"), "{seen}");
                    assert_eq!(seen["funds_at"], json!("target"), "{seen}");
                    let again = server.post(user, &body);
                    assert_eq!((again.status, again.json()), (200, reply.json()), "{again:?}");
                }
            }
        });
        site.wait_for_rest();
        site.assert_in_order(&server);
    }
}

#[test]
fn a_transfer_is_seen_by_its_owner_and_by_operators_only() {
    let site = Site::new();
    let server = site.start();
    let reply = server.transfer(USER, Way::ToSpot, "1");
    let path = format!("/api/v1/internal_transfer/{}", reply.req_id());
    assert_eq!(server.get(USER, &path).status, 200);
    assert_refused(&server.get(OTHER, &path), 404, "TRANSFER_NOT_FOUND");
    let operator = token(OTHER, Some(Role::Admin));
    let seen = send(server.http, &Request::new(&operator, "GET", &path)).expect("an answer");
    assert_eq!((seen.status, seen.req_id()), (200, reply.req_id()), "{seen:?}");
    for unknown in ["01JFVQ2X8Z0Y1M3N4P5R6S7T8V", "1", "%00", "zzzzzzzzzzzzzzzzzzzzzzzzzz"] {
        let path = format!("/api/v1/internal_transfer/{unknown}");
        assert_refused(&server.get(USER, &path), 404, "TRANSFER_NOT_FOUND");
    }
    site.assert_verified();
}

#[test]
fn balances_tell_an_account_that_is_not_there_from_an_empty_one() {
    let site = Site::new();
    let server = site.start();
    let of = |user, path: &str| server.get(user, path).json()["balances"].clone();
    let zero = json!({"available": "0", "frozen": "0"});
    let usdt = "/api/v1/balances?asset=USDT";
    let unused = json!([{"asset": "USDT", "funding": null, "spot": null, "in_flight": "0"}]);
    assert_eq!(of(77, usdt), unused);
    let gift = json!({"available": "10000", "frozen": "0"});
    let before = json!([{"asset": "USDT", "funding": gift, "spot": null, "in_flight": "0"}]);
    assert_eq!(of(USER, usdt), before);
    assert_eq!(server.transfer(USER, Way::ToSpot, "250.5").status, 200);
    let sides = json!([{
        "asset": "USDT", "funding": {"available": "9749.5", "frozen": "0"},
        "spot": {"available": "250.5", "frozen": "0"}, "in_flight": "0",
    }]);
    assert_eq!(of(USER, usdt), sides);
    // Both accounts exist by now, though neither has ever had this asset.
    let empty = json!([{"asset": "ETH", "funding": zero, "spot": zero, "in_flight": "0"}]);
    assert_eq!(of(USER, "/api/v1/balances?asset=ETH"), empty);
    let all = of(USER, "/api/v1/balances");
    let symbols: Vec<&str> =
        all.as_array().expect("an array").iter().map(|row| text(&row["asset"])).collect();
    assert_eq!(symbols, ["BTC", "ETH", "USDT", "SUSP", "NOXFER", "CNY"]);
    assert_refused(&server.get(USER, "/api/v1/balances?asset=NONE"), 400, "INVALID_ASSET");
    for bad in ["?user=1", "?asset=USDT&asset=BTC", "?asset=USDT&x=1"] {
        let reply = server.get(USER, &format!("/api/v1/balances{bad}"));
        assert_refused(&reply, 400, "INVALID_REQUEST");
    }
    site.assert_verified();
}

#[test]
fn assets_are_listed_with_their_limits() {
    let server = Site::new().start();
    let reply = server.get(USER, "/api/v1/assets");
    let asset = |symbol: &str, status: &str, enabled: bool| {
        json!({
            "symbol": symbol, "precision": 8, "status": status, "min": "0.00000001",
            "max": "1000000", "transfer_enabled": enabled,
        })
    };
    let want = json!({"assets": [
        asset("BTC", "ACTIVE", true),
        asset("ETH", "ACTIVE", true),
        asset("USDT", "ACTIVE", true),
        asset("SUSP", "SUSPENDED", true),
        asset("NOXFER", "ACTIVE", false),
        {
            "symbol": "CNY", "precision": 2, "status": "ACTIVE", "min": "0.01", "max": "1000000",
            "transfer_enabled": true,
        },
    ]});
    assert_eq!((reply.status, reply.json()), (200, want));
}

#[test]
fn every_answer_has_a_request_id_the_clients_own_where_it_is_sane() {
    let server = Site::new().start();
    let token = token(USER, None);
    let ask = |path: &str, id: &str| {
        let headers = [("X-Request-Id", id)];
        let request = Request { headers: &headers, ..Request::new(&token, "GET", path) };
        send(server.http, &request).expect("an answer")
    };
    for path in ["/api/v1/balances", "/api/v1/internal_transfer", "/nowhere"] {
        assert_eq!(ask(path, "mine-1").header("x-request-id"), Some("mine-1"));
        for insane in ["", "has space", "way-too-long-".repeat(9).as_str()] {
            let reply = ask(path, insane);
            let made = reply.header("x-request-id").expect("one is made");
            assert_eq!(made.len(), 26, "{made}");
        }
    }
}

/// Goal: a search by request id finds every log line of the request, in both formats, and each line
/// has the id once. Method: a transfer, its replay, and a token that is refused, each under an id
/// of its own.
#[test]
fn every_line_about_a_request_carries_its_id() {
    for (format, field) in [("text", "request_id=mine-1"), ("json", r#""request_id":"mine-1""#)] {
        let server = Site::new().with("UBSCORE__LOG__FORMAT", format).start();
        let body = Way::ToSpot.body_with_cid("USDT", "1", "once");
        let good = token(USER, None);
        for (id, token, status) in [("mine-1", &good, 200), ("mine-2", &"no-token".into(), 401)] {
            let request = Request {
                headers: &[("X-Request-Id", id)],
                body: Some(&body),
                ..Request::new(token, "POST", "/api/v1/internal_transfer")
            };
            let reply = send(server.http, &request).expect("an answer");
            assert_eq!(reply.status, status, "{reply:?}");
        }
        let line = |words: &str| {
            let said = server.said();
            said.lines().find(|line| line.contains(words)).map(str::to_owned)
        };
        let answered = eventually("the transfer's line", || line("answered"));
        assert!(answered.contains(field), "{answered}");
        let refused = eventually("the refusal's line", || line("token refused"));
        assert!(refused.contains(&field.replace("mine-1", "mine-2")), "{refused}");
        if format == "text" {
            assert_eq!(answered.matches("mine-1").count(), 1, "{answered}");
            assert!(answered.contains(" req_id="), "{answered}");
        } else {
            let answered: Value = serde_json::from_str(&answered).expect("JSON");
            assert_eq!(answered["span"]["request_id"], json!("mine-1"), "{answered}");
            assert_eq!(answered["fields"].get("request_id"), None, "{answered}");
            assert_eq!(answered["fields"]["state"], json!("COMMITTED"), "{answered}");
            assert!(answered["fields"]["req_id"].is_string(), "{answered}");
        }
        server.stop();
    }
}

#[test]
fn an_unknown_path_and_a_wrong_method_are_distinguished() {
    let server = Site::new().start();
    for path in
        ["/", "/api", "/api/v1/internal_transfer/", "/api/v2/balances", "/admin/v1/deposits"]
    {
        assert_refused(&server.get(USER, path), 404, "NOT_FOUND");
    }
    for (method, path, allow) in [
        ("GET", "/api/v1/internal_transfer", "POST"),
        ("DELETE", "/api/v1/internal_transfer", "POST"),
        ("POST", "/api/v1/internal_transfer/01JFVQ2X8Z0Y1M3N4P5R6S7T8V", "GET"),
        ("PUT", "/api/v1/balances", "GET"),
        ("POST", "/api/v1/assets", "GET"),
    ] {
        let reply = server.ask(USER, method, path, None);
        assert_refused(&reply, 405, "METHOD_NOT_ALLOWED");
        assert_eq!(reply.header("allow"), Some(allow), "{method} {path}");
    }
    let reply = server.admin("GET", "/admin/v1/deposits", &json!({}));
    assert_refused(&reply, 405, "METHOD_NOT_ALLOWED");
    assert_eq!(reply.header("allow"), Some("POST"));
    assert_refused(&server.admin("GET", "/api/v1/balances", &json!({})), 404, "NOT_FOUND");
}
