//! A user's own transfers: listed, filtered, in pages, and awaited.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use domain::transfer::Op;
use rustix::process::Signal;
use serde_json::{Value, json};
use ubscore::http::auth::Role;

use crate::harness::{
    PATIENCE, Reply, Request, Server, Site, Way, assert_refused, crowd, send, text, token,
    while_watched,
};

const USER: u64 = 1001;
const OTHER: u64 = 1002;
const LIST: &str = "/api/v1/internal_transfers";
/// The longest allowed wait, longer than any answer that does not wait.
const LONGEST: &str = "wait_ms=30000";
/// An answer within this time has not waited for [`LONGEST`].
const AT_ONCE: Duration = Duration::from_secs(25);

/// A page of a user's list: its rows and the next page's cursor.
fn page(server: &Server, user: u64, query: &str) -> (Vec<Value>, Option<String>) {
    let reply = server.get(user, &format!("{LIST}?{query}"));
    assert_eq!(reply.status, 200, "{query}: {reply:?}");
    let json = reply.json();
    let fields: BTreeSet<&str> =
        json.as_object().expect("an object").keys().map(String::as_str).collect();
    assert_eq!(fields, BTreeSet::from(["next_cursor", "transfers"]), "{json}");
    let rows = json["transfers"].as_array().expect("an array").clone();
    (rows, json["next_cursor"].as_str().map(str::to_owned))
}

/// Every row of a query, page by page; no page exceeds the limit.
fn walk(server: &Server, user: u64, query: &str, limit: usize) -> Vec<Value> {
    let (mut all, mut cursor) = (Vec::new(), String::new());
    loop {
        let (rows, next) = page(server, user, &format!("{query}&limit={limit}{cursor}"));
        assert!(rows.len() <= limit, "{query}: {} rows", rows.len());
        all.extend(rows);
        let Some(next) = next else { return all };
        cursor = format!("&cursor={next}");
    }
}

/// The names in a list.
fn names(rows: &[Value]) -> Vec<String> {
    rows.iter().map(|row| text(&row["req_id"]).to_owned()).collect()
}

/// A transfer's row as in GET.
fn as_looked_at(server: &Server, user: u64, req_id: &str) -> Value {
    let mut looked = server.look(user, req_id);
    looked.as_object_mut().expect("an object").remove("history").expect("only GET has it");
    looked
}

/// Goal: every filter finds exactly its transfers, and every row agrees with GET. Method: transfers
/// of both directions, two assets, with and without cid, committed and failed; each query's answer
/// is compared by name.
#[test]
fn a_list_is_filtered_and_agrees_with_get() {
    let site = Site::new();
    let server = site.start();
    let post = |body: &Value| server.post(USER, body).req_id();
    let first = post(&Way::ToSpot.body_with_cid("USDT", "10", "a:b.c_d-1"));
    let bitcoin = post(&Way::ToSpot.body("BTC", "1.5"));
    let failed = post(&Way::ToFunding.body_with_cid("USDT", "11", "fails"));
    let back = post(&Way::ToFunding.body("USDT", "2.50"));
    site.wait_for_rest();
    let all = [&back, &failed, &bitcoin, &first].map(Clone::clone);
    let rows = walk(&server, USER, "", 100);
    assert_eq!(names(&rows), all);
    for row in &rows {
        assert_eq!(*row, as_looked_at(&server, USER, text(&row["req_id"])));
    }
    assert_eq!(rows[1]["error"]["code"], json!("INSUFFICIENT_BALANCE"), "{}", rows[1]);
    assert_eq!(rows[3]["error"], Value::Null, "{}", rows[3]);

    let at = |index: usize| text(&rows[index]["created_at"]).to_owned();
    let (of_failed, of_bitcoin) = (at(1), at(2));
    // As clients encode a time and its offset, and another allowed form.
    let encoded = of_failed.replace('Z', "+00:00").replace(':', "%3A").replace('+', "%2B");
    let committed = [&back, &bitcoin, &first].map(String::as_str).to_vec();
    for (query, want) in [
        ("state=COMMITTED".to_owned(), committed),
        ("state=FAILED".to_owned(), vec![&*failed]),
        ("state=TARGET_PENDING".to_owned(), vec![]),
        ("state=ROLLED_BACK".to_owned(), vec![]),
        ("asset=BTC".to_owned(), vec![&*bitcoin]),
        ("asset=ETH".to_owned(), vec![]),
        ("direction=FUNDING_TO_SPOT".to_owned(), vec![&*bitcoin, &*first]),
        ("direction=SPOT_TO_FUNDING".to_owned(), vec![&*back, &*failed]),
        ("cid=fails".to_owned(), vec![&*failed]),
        ("cid=a%3Ab.c_d-1".to_owned(), vec![&*first]),
        ("cid=a:b.c_d-1&state=FAILED".to_owned(), vec![]),
        ("cid=nobodys".to_owned(), vec![]),
        (format!("since={of_failed}"), vec![&*back, &*failed]),
        (format!("until={of_failed}"), vec![&*bitcoin, &*first]),
        (format!("since={encoded}"), vec![&*back, &*failed]),
        (format!("since={of_bitcoin}&until={of_failed}"), vec![&*bitcoin]),
        (format!("since={of_failed}&until={of_bitcoin}"), vec![]),
        ("since=0001-01-01T00:00:00Z&until=9999-12-31T23:59:59.999999999Z".to_owned(), {
            all.iter().map(String::as_str).collect()
        }),
        ("asset=USDT&state=COMMITTED&direction=SPOT_TO_FUNDING".to_owned(), vec![&*back]),
        ("limit=2".to_owned(), vec![&*back, &*failed]),
    ] {
        assert_eq!(names(&page(&server, USER, &query).0), want, "{query}");
    }
    // All page sizes give the same whole.
    for limit in 1..=5 {
        assert_eq!(walk(&server, USER, "", limit), rows, "{limit}");
    }
    let of_state = walk(&server, USER, "state=COMMITTED", 1);
    assert_eq!(names(&of_state), [&*back, &*bitcoin, &*first]);
    site.assert_in_order(&server);
}

#[test]
fn a_list_holds_nobody_elses_transfers() {
    let site = Site::new();
    let server = site.start();
    let own = server.post(USER, &Way::ToSpot.body_with_cid("USDT", "1", "same")).req_id();
    let others = server.post(OTHER, &Way::ToSpot.body_with_cid("USDT", "2", "same")).req_id();
    let next = server.transfer(USER, Way::ToSpot, "3").req_id();
    for query in ["", "state=COMMITTED", "asset=USDT", "direction=FUNDING_TO_SPOT"] {
        assert_eq!(names(&walk(&server, USER, query, 1)), [&*next, &*own], "{query}");
        assert_eq!(names(&walk(&server, OTHER, query, 1)), [&*others], "{query}");
    }
    assert_eq!(names(&page(&server, USER, "cid=same").0), [own]);
    // A cursor is only a place; it gives no right to read.
    let (_, cursor) = page(&server, USER, "limit=1");
    let cursor = format!("cursor={}", cursor.expect("a second page"));
    assert_eq!(names(&page(&server, OTHER, &cursor).0), [&*others]);
    // An operator has a list of all users on the other listener; this one is of the token's user.
    let operator = token(OTHER, Some(Role::Admin));
    let seen = send(server.http, &Request::new(&operator, "GET", LIST)).expect("an answer");
    assert_eq!(names(seen.json()["transfers"].as_array().expect("an array")), [others]);
    assert_eq!(page(&server, 77, ""), (vec![], None));
    site.assert_verified();
}

/// Goal: a walk through the pages returns every transfer that existed at its start once, and none
/// twice. Method: a crowd of transfers, and then walks with small pages while more of them arrive.
#[test]
fn paging_neither_skips_nor_repeats_while_transfers_come_in() {
    let site = Site::new();
    let server = site.start();
    let there: BTreeSet<String> =
        crowd(24, |_| server.transfer(USER, Way::ToSpot, "1").req_id()).into_iter().collect();
    assert_eq!(there.len(), 24);
    let come_in = || server.transfer_accepted(USER, Way::ToSpot, "0.5");
    let walks = while_watched(3, come_in, || {
        let queries = ["", "state=COMMITTED", "direction=FUNDING_TO_SPOT", "asset=USDT"];
        queries.map(|query| names(&walk(&server, USER, query, 5)))
    });
    for walk in walks {
        let met: BTreeSet<String> = walk.iter().cloned().collect();
        assert_eq!(met.len(), walk.len(), "met twice: {walk:?}");
        let skipped: Vec<&String> = there.difference(&met).collect();
        assert!(skipped.is_empty(), "{skipped:?}");
    }
    let order =
        format!("SELECT req_id FROM transfers WHERE user_id = {USER} ORDER BY order_number DESC");
    let want: Vec<String> = site.sql(&order).into_iter().map(|row| row[0].clone()).collect();
    assert_eq!(names(&walk(&server, USER, "", 100)), want);
    site.wait_for_rest();
    site.assert_in_order(&server);
}

/// Goal: no list shows an earlier state than an answer. Method: PostgreSQL's marks are blocked, so
/// that UBSCore's record is the only proof that the transfers are COMMITTED; every filter has to
/// use it.
#[test]
fn a_list_shows_the_answered_state_though_the_mark_is_late() {
    let site = Site::new();
    let server = site.start();
    let before = server.transfer(USER, Way::ToSpot, "7").req_id();
    site.wait_for_rest();
    let held = site.hold("UPDATE OF state ON transfers_tb", "NEW.state = 40");
    let reply = server.transfer(USER, Way::ToSpot, "40");
    assert_eq!(reply.status, 200, "{reply:?}");
    let req_id = reply.req_id();
    let state = format!("SELECT state FROM transfers WHERE req_id = '{req_id}'");
    assert_eq!(site.sql_value(&state), "30");
    for query in ["", "state=COMMITTED", "asset=USDT&state=COMMITTED"] {
        for limit in [1, 2, 50] {
            let rows = walk(&server, USER, query, limit);
            assert_eq!(names(&rows), [&*req_id, &*before], "{query} {limit}");
            assert_eq!(rows[0]["state"], json!("COMMITTED"), "{query} {limit}");
            assert_eq!(rows[0]["funds_at"], json!("target"), "{query} {limit}");
            assert_eq!(rows[0], as_looked_at(&server, USER, &req_id), "{query} {limit}");
        }
    }
    for query in ["state=TARGET_PENDING", "state=FAILED", "state=INIT"] {
        assert_eq!(walk(&server, USER, query, 1), Vec::<Value>::new(), "{query}");
    }
    held.release();
    site.wait_for_rest();
    site.assert_in_order(&server);
}

/// Goal: a filter that seldom matches costs at most one page of work. Method: more newer rows than
/// one page examines, none of which matches. The first page is empty and not the last, and the walk
/// finds the older row.
#[test]
fn a_page_that_finds_little_says_where_to_go_on() {
    let site = Site::new();
    let server = site.start();
    let oldest = server.transfer(USER, Way::ToSpot, "5").req_id();
    site.wait_for_rest();
    site.sql(&format!(
        "INSERT INTO transfers_tb (order_number, req_id, user_id, asset_id, amount, direction, state, \
           code) \
         SELECT last + n, lpad(n::text, 32, '0')::uuid, {USER}, 3, 1e8, 1, -10, 24 \
         FROM generate_series(1, 10050) AS n, (SELECT max(order_number) AS last FROM transfers) AS t"
    ));
    let (rows, next) = page(&server, USER, "state=COMMITTED");
    assert_eq!(rows, Vec::<Value>::new());
    assert!(next.is_some(), "there is more");
    assert_eq!(names(&walk(&server, USER, "state=COMMITTED", 50)), [&*oldest]);
    let (rows, next) = page(&server, USER, "state=FAILED&limit=100");
    assert_eq!((rows.len(), next.is_some()), (100, true));
}

#[test]
fn a_bad_parameter_is_named() {
    let server = Site::new().start();
    for (query, named) in [
        ("state=PENDING", "state"),
        ("state=committed", "state"),
        ("state=", "state"),
        ("direction=funding_to_spot", "direction"),
        ("direction=UP", "direction"),
        ("cid=", "cid"),
        ("cid=a%20b", "cid"),
        ("cid=%ff", "cid"),
        ("since=yesterday", "since"),
        ("since=2026-01-31", "since"),
        ("until=2026-01-31T12:00:00", "until"),
        ("limit=0", "limit must be 1 to 100"),
        ("limit=101", "limit must be 1 to 100"),
        ("limit=+5", "limit"),
        ("limit=99999999999999999999", "limit"),
        ("limit=", "limit"),
        ("cursor=x", "cursor"),
        ("cursor=-1", "cursor"),
        ("cursor=", "cursor"),
        ("user=1001", "user"),
        ("limit=1&limit=1", "limit"),
    ] {
        let reply = server.get(USER, &format!("{LIST}?{query}"));
        assert_refused(&reply, 400, "INVALID_REQUEST");
        assert!(text(&reply.json()["message"]).contains(named), "{query}: {reply:?}");
    }
    assert_refused(&server.get(USER, &format!("{LIST}?asset=NONE")), 400, "INVALID_ASSET");
    let no_token = send(server.http, &Request::new("", "GET", LIST)).expect("an answer");
    assert_refused(&no_token, 401, "UNAUTHORIZED");
    let wrong = server.ask(USER, "POST", LIST, None);
    assert_refused(&wrong, 405, "METHOD_NOT_ALLOWED");
    assert_eq!(wrong.header("allow"), Some("GET"));
    let path = "/api/v1/internal_transfer/01JFVQ2X8Z0Y1M3N4P5R6S7T8V";
    for bad in ["wait_ms=30001", "wait_ms=-1", "wait_ms=", "wait_ms=1.5", "wait_ms=1&wait_ms=1"] {
        let reply = server.get(USER, &format!("{path}?{bad}"));
        assert_refused(&reply, 400, "INVALID_REQUEST");
        assert!(text(&reply.json()["message"]).contains("wait_ms"), "{bad}: {reply:?}");
    }
    for good in ["wait_ms=0", "wait_ms=1", LONGEST] {
        let reply = server.get(USER, &format!("{path}?{good}"));
        assert_refused(&reply, 404, "TRANSFER_NOT_FOUND");
    }
}

/// Asks for a transfer on a thread of its own.
fn ask(http: SocketAddr, req_id: &str, query: &str) -> thread::JoinHandle<Reply> {
    let path = format!("/api/v1/internal_transfer/{req_id}?{query}");
    thread::spawn(move || {
        let token = token(USER, None);
        send(http, &Request::new(&token, "GET", &path)).expect("an answer")
    })
}

/// A site with a POST that does not wait, and with deposits that wait for a lock as long as needed.
fn impatient() -> Site {
    Site::new()
        .with("UBSCORE__HTTP__TRANSFER_WAIT_MS", 50)
        .with("UBSCORE__POSTGRES__LOCK_TIMEOUT_MS", 60_000)
        .with("UBSCORE__POSTGRES__STATEMENT_TIMEOUT_MS", 60_000)
}

/// Posts a transfer back to Funding that cannot end before the held lock is released.
fn waiting(server: &Server) -> String {
    let reply = server.post_pending(USER, &Way::ToFunding.body_with_cid("USDT", "4", "waits"));
    assert_eq!((reply.status, &reply.json()["state"]), (202, &json!("PENDING")), "{reply:?}");
    reply.req_id()
}

/// Goal: a wait lasts until the transfer ends or the time is over, and no longer. Method: the
/// Funding deposit is blocked. A short wait lasts its time; long ones continue after it, and end
/// when the deposit is released.
#[test]
fn a_wait_ends_with_the_transfer_or_with_its_time() {
    let site = impatient();
    let server = site.start();
    server.transfer_accepted(USER, Way::ToSpot, "10");
    site.wait_for_rest();
    let held = site.hold_decision(Op::Deposit);
    let req_id = waiting(&server);
    let crowd: Vec<_> = (0..8).map(|_| ask(server.http, &req_id, LONGEST)).collect();
    let begun = Instant::now();
    let short = ask(server.http, &req_id, "wait_ms=300").join().expect("no panic");
    assert!(begun.elapsed() >= Duration::from_millis(300), "it did not wait");
    assert!(begun.elapsed() < AT_ONCE, "it waited for more than it was asked to");
    assert_eq!((short.status, &short.json()["final"]), (200, &json!(false)), "{short:?}");
    assert!(crowd.iter().all(|waiting| !waiting.is_finished()), "answered before the end");
    // Another user gets no result, and does not wait for it.
    let path = format!("/api/v1/internal_transfer/{req_id}?{LONGEST}");
    assert_refused(&server.get(OTHER, &path), 404, "TRANSFER_NOT_FOUND");

    let begun = Instant::now();
    held.release();
    for waiting in crowd {
        let reply = waiting.join().expect("no panic");
        assert_eq!((reply.status, &reply.json()["state"]), (200, &json!("COMMITTED")), "{reply:?}");
        assert_eq!(reply.json()["history"].as_array().map(Vec::len), Some(5), "{reply:?}");
    }
    // A final transfer is answered at once, also a failed one.
    let failed = Way::ToFunding.body_with_cid("USDT", "1000", "fails");
    let failed = server.post_ended(USER, &failed);
    assert_refused(&failed, 422, "INSUFFICIENT_BALANCE");
    for (req_id, state) in [(req_id, "COMMITTED"), (failed.req_id(), "FAILED")] {
        let reply = ask(server.http, &req_id, LONGEST).join().expect("no panic");
        assert_eq!(reply.json()["state"], json!(state), "{reply:?}");
    }
    assert!(begun.elapsed() < AT_ONCE, "it waited for what had ended");
    site.assert_in_order(&server);
}

/// Goal: a wait uses UBSCore's record, like every read. Method: the marks in PostgreSQL are
/// blocked; a transfer to Spot has ended without them.
#[test]
fn a_wait_does_not_wait_for_a_mark() {
    let site = impatient().with("UBSCORE__HTTP__TRANSFER_WAIT_MS", 15_000);
    let server = site.start();
    let held = site.hold("UPDATE OF state ON transfers_tb", "NEW.state = 40");
    let begun = Instant::now();
    let req_id = server.transfer(USER, Way::ToSpot, "4").req_id();
    let reply = ask(server.http, &req_id, LONGEST).join().expect("no panic");
    assert_eq!(reply.json()["state"], json!("COMMITTED"), "{reply:?}");
    assert!(begun.elapsed() < AT_ONCE, "it waited for the mark");
    held.release();
    site.wait_for_rest();
    site.assert_in_order(&server);
}

/// Goal: waiting requests do not delay a stop, and each gets an answer. Method: a wait and one with
/// a disconnected client, for a transfer that cannot end; SIGTERM.
#[test]
fn a_stop_answers_whoever_waits() {
    let site = impatient();
    let mut server = site.start();
    server.transfer_accepted(USER, Way::ToSpot, "10");
    site.wait_for_rest();
    let held = site.hold_decision(Op::Deposit);
    let req_id = waiting(&server);
    let token = token(USER, None);
    let request = format!(
        "GET /api/v1/internal_transfer/{req_id}?{LONGEST} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\
         Authorization: Bearer {token}\r\n\r\n"
    );
    let [gone, mut waits] = [(), ()].map(|()| {
        let mut stream = TcpStream::connect(server.http).expect("connected");
        stream.write_all(request.as_bytes()).expect("sent");
        stream.set_read_timeout(Some(PATIENCE)).expect("set");
        stream
    });
    drop(gone);
    // This request comes after the two others, so its answer shows that they have been read.
    ask(server.http, &req_id, "wait_ms=500").join().expect("no panic");
    let begun = Instant::now();
    server.signal(Signal::TERM);
    let mut reply = String::new();
    waits.read_to_string(&mut reply).expect("an answer");
    assert!(reply.starts_with("HTTP/1.1 200 "), "{reply}");
    assert!(reply.contains("\"final\":false"), "{reply}");
    assert!(begun.elapsed() < AT_ONCE, "the stop did not answer it");
    held.release();
    let (status, said) = server.wait();
    assert_eq!(status.code(), Some(0), "{said}");
    let server = site.start();
    site.wait_for_rest();
    assert_eq!(server.look(USER, &req_id)["state"], json!("COMMITTED"));
    site.assert_in_order(&server);
}
