//! Requests, readiness, logging.

use std::io::Read;
use std::net::TcpStream;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};
use ubscore::http::auth::Role;

use crate::harness::{
    ADMIN, Passing, Proxy, Reply, Request, Server, Site, Way, assert_refused, crowd, eventually,
    last_line, refused, send, token,
};

const USER: u64 = 1_001;
/// More lines than a pipe and the queue hold, at the debug level.
const TRANSFERS: usize = 2_000;

/// Story: the collector of log lines stood still, and no request was answered any more, a halt
/// included. Method: stderr is a pipe without a reader, each transfer logs many lines; transfers
/// until lines are dropped, a halt, a stop in order.
#[test]
fn f06_a_stderr_that_nobody_reads_holds_up_no_transfer() {
    let site = Site::new().with("UBSCORE__LOG__FILTER", "trace,hyper=off");
    let (server, unread) = Server::start_unread(site.command());
    let dropped = || server.metric("ubscore_log_lines_dropped_total");
    let posted = AtomicUsize::new(0);
    crowd(8, |index| {
        let user = USER + index as u64 % 3;
        while posted.fetch_add(1, Ordering::Relaxed) < TRANSFERS || dropped() == 0 {
            let way = Way::BOTH[index % 2];
            let reply = server.transfer(user, way, "0.00000001");
            assert!([200, 202, 422, 429].contains(&reply.status), "{reply:?}");
        }
    });
    assert!(dropped() > 0);
    let halted = server.admin("POST", "/admin/v1/halt", &json!({"reason": "no reader"}));
    assert_eq!(halted.status, 200, "{halted:?}");
    server.stop();
    drop(unread);
}

/// Story: a collector of JSON lines met a line that was not JSON, the one with the reason of the
/// process's death, and lines with paths of the build machine. Method: a start that migrates, a
/// stop, and a start without PostgreSQL.
#[test]
fn every_line_of_a_json_log_is_json_the_last_one_too() {
    let site = Site::new()
        .with("UBSCORE__LOG__FORMAT", "json")
        .with("UBSCORE__LOG__FILTER", "info,tokio_postgres=debug");
    let mut server = site.start();
    server.signal(rustix::process::Signal::TERM);
    let (status, said) = server.wait();
    assert!(status.success(), "{said}");
    let (code, refusal) = refused(site.command_with("postgres://nobody@127.0.0.1:1/none"));
    assert_ne!(code, 0, "{refusal}");
    for line in said.lines().chain(refusal.lines()) {
        let json: Value = serde_json::from_str(line).unwrap_or_else(|_| panic!("not JSON: {line}"));
        assert!(json["timestamp"].is_string() && json["level"].is_string(), "{line}");
        let fields = json["fields"].as_object().unwrap_or_else(|| panic!("no fields: {line}"));
        assert!(!fields.keys().any(|name| name.starts_with("log.")), "{line}");
    }
    assert!(said.contains("tokio_postgres"), "no line of the crate log: {said}");
    assert!(last_line(&said).contains("stopped"), "{said}");
    let last: Value = serde_json::from_str(last_line(&refusal)).expect("JSON");
    assert_eq!(last["level"], json!("ERROR"), "{last}");
    let message = last["fields"]["message"].as_str().expect("a message");
    assert!(message.starts_with("error: ") && message.contains("PostgreSQL"), "{message}");
}

/// Story: each try of a blocked step was logged twice, with Rust's own notation of its values.
/// Method: a step waits for a row; every line about it.
#[test]
fn a_try_is_logged_once_and_in_plain_words() {
    let site = Site::new();
    let server = site.start();
    server.transfer_committed(USER, Way::ToSpot, "5");
    let lock = site.lock_usdt(&[USER]);
    let req_id = server.transfer_held(&site, USER, Way::ToFunding, "1");
    let tries = || {
        let said = server.said();
        let about = |line: &&str| line.contains(&req_id) && line.contains("WARN");
        said.lines().filter(about).map(str::to_owned).collect::<Vec<_>>()
    };
    let lines = eventually("three tries", || Some(tries()).filter(|lines| lines.len() >= 3));
    for (index, line) in lines.iter().enumerate() {
        assert!(line.contains(&format!("attempt={}", index + 1)), "once a try: {lines:?}");
        assert!(line.contains("lock timeout"), "{line}");
        assert!(!line.contains("UserId("), "{line}");
    }
    lock.sql("ROLLBACK");
    site.wait_for_rest();
    server.stop();
}

/// Story: PostgreSQL came back as an older copy under a halted service, without a transfer whose
/// step had been in flight, and the process panicked. Method: a step waits for a row, its
/// connection is cut in that flight, a halt, the rows of the transfer go, PostgreSQL is back.
#[test]
fn f11_a_transfer_that_postgresql_lacks_is_an_alert_and_rests() {
    // The lock's timeout equals a statement's, so that the cut comes first.
    let site = Site::new()
        .with("UBSCORE__POSTGRES__LOCK_TIMEOUT_MS", 5_000)
        .with("UBSCORE__POSTGRES__STATEMENT_TIMEOUT_MS", 5_000);
    site.start().stop();
    let proxy = Proxy::start(&site, |_, _| Passing::All);
    let server = Server::start(site.command_with(&proxy.url));
    server.transfer_committed(USER, Way::ToSpot, "5");
    let lock = site.lock_usdt(&[USER]);
    let req_id = server.transfer_held(&site, USER, Way::ToFunding, "1");
    let violations = || server.metric("ubscore_alerts_total{alert=\"protocol_violation\"}");
    let before = violations();
    // The first try ends before Funding; the next one is only Funding's part.
    eventually("a deposit waits for the row", || {
        let state = format!("SELECT state FROM transfers WHERE req_id = '{req_id}'");
        let waits = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() \
                     AND application_name ~ '^ubscore [0-9]+$' AND wait_event_type = 'Lock'";
        (site.sql_value(&state) == "30" && site.sql_value(waits) != "0").then_some(())
    });
    proxy.refuse();
    let halted = server.admin("POST", "/admin/v1/halt", &json!({"reason": "an older copy"}));
    assert_eq!(halted.status, 200, "{halted:?}");
    site.cut_connections();
    site.sql(&format!(
        "SET session_replication_role = replica; \
         DELETE FROM transfers_tb WHERE req_id = ulid_uuid('{req_id}'); \
         SET session_replication_role = origin"
    ));
    lock.sql("ROLLBACK");
    proxy.come_back();
    eventually("the alert", || (violations() > before).then_some(()));
    assert_eq!(server.get(USER, "/api/v1/balances").status, 200, "reads go on");
    server.stop();
}

/// One part of `/readyz`: whether it takes new transfers.
fn part(server: &Server, name: &str) -> bool {
    let body = server.admin_get("/readyz").json();
    let parts = body["parts"].as_array().unwrap_or_else(|| panic!("no parts: {body}"));
    let part = parts.iter().find(|part| part["part"] == json!(name));
    part.and_then(|part| part["ready"].as_bool()).unwrap_or_else(|| panic!("no {name}: {body}"))
}

/// Story: `/readyz` was 200 while each POST was refused, and `ubscore_ready` was 1 while PostgreSQL
/// was away. Method: a halt, everything paused, PostgreSQL away: each time the part, the metric and
/// the session agree, and again afterwards. A full disk is in
/// `a_full_disk_refuses_new_work_and_passes`.
#[test]
fn readiness_names_the_part_that_refuses_and_everything_agrees() {
    let site = Site::new();
    let server = site.start();
    let pause = |direction: &str, paused: bool| {
        let body = json!({"direction": direction, "paused": paused, "reason": "a test"});
        assert_eq!(server.admin("PUT", "/admin/v1/pauses", &body).status, 200);
    };
    let halt = |action: &str| {
        let reply =
            server.admin("POST", &format!("/admin/v1/{action}"), &json!({"reason": "a test"}));
        assert_eq!(reply.status, 200, "{reply:?}");
    };
    let ready = || {
        let (status, metric) = (server.ready(), server.metric("ubscore_ready"));
        assert_eq!(status == 200, metric == 1, "{status} {metric}");
        status == 200
    };
    assert!(ready());
    halt("halt");
    assert!(!ready() && !part(&server, "halt"));
    halt("resume");
    pause("FUNDING_TO_SPOT", true);
    assert!(ready(), "the other direction is open");
    pause("SPOT_TO_FUNDING", true);
    assert!(!ready() && !part(&server, "pauses"));
    let session = server.admin_get("/admin/v1/session").json();
    assert!(session["not_ready"].is_string(), "{session}");
    pause("SPOT_TO_FUNDING", false);
    pause("FUNDING_TO_SPOT", false);
    assert!(ready() && part(&server, "pauses"));
    site.admit_connections(false);
    eventually("PostgreSQL to be away", || (!part(&server, "postgres")).then_some(()));
    assert!(!ready());
    site.admit_connections(true);
    eventually("PostgreSQL to be back", || part(&server, "postgres").then_some(()));
    eventually("readiness", || ready().then_some(()));
    server.stop();
}

/// POST of a transfer with these headers, as a user.
fn post_with(server: &Server, headers: &[(&str, &str)], body: &Value) -> Reply {
    let token = token(USER, None);
    let path = "/api/v1/internal_transfer";
    let request = Request { headers, body: Some(body), ..Request::new(&token, "POST", path) };
    send(server.http, &request).expect("an answer")
}

/// Story: a client sent an Idempotency-Key and no cid, as with other services, and its retry moved
/// the money twice. Method: the key in the header, bare and quoted, and as cid; invalid keys; two
/// that differ; a server that requires one.
#[test]
fn an_idempotency_key_is_the_same_as_a_cid() {
    const KEY: &str = "Idempotency-Key";
    let site = Site::new();
    let server = site.start();
    let body = Way::ToSpot.body("USDT", "2");
    let first = eventually("the first", || {
        Some(post_with(&server, &[(KEY, "order-1")], &body)).filter(|reply| reply.status == 200)
    });
    assert_eq!(first.json()["cid"], json!("order-1"));
    let with_cid = Way::ToSpot.body_with_cid("USDT", "2", "order-1");
    for (headers, body) in [
        (&[(KEY, "order-1")][..], &body),
        (&[(KEY, "\"order-1\"")], &body),
        (&[(KEY, "order-1")], &with_cid),
        (&[], &with_cid),
    ] {
        let again = post_with(&server, headers, body);
        assert_eq!((again.status, again.req_id()), (200, first.req_id()), "{again:?}");
        assert_eq!(again.header("idempotent-replayed"), Some("true"), "{again:?}");
    }
    let long = "k".repeat(300);
    for headers in [
        &[(KEY, "two words")][..],
        &[(KEY, long.as_str())],
        &[(KEY, "")],
        &[(KEY, "\"half")],
        &[(KEY, "one"), (KEY, "one")],
        &[(KEY, "one"), (KEY, "two")],
    ] {
        let refused = post_with(&server, headers, &body);
        assert_refused(&refused, 400, "INVALID_REQUEST");
        assert!(refused.body.contains(KEY), "{refused:?}");
    }
    let other = post_with(&server, &[(KEY, "order-2")], &with_cid);
    assert_refused(&other, 400, "INVALID_REQUEST");
    assert_eq!(site.sql_value("SELECT count(*) FROM transfers"), "1");

    let deposit = |headers: &[(&str, &str)], key: Option<&str>| {
        let mut body = json!({"user_id": USER, "asset": "USDT", "amount": "1"});
        if let Some(key) = key {
            body["idem_key"] = json!(key);
        }
        let admin = token(ADMIN, Some(Role::Admin));
        let path = "/admin/v1/deposits";
        let request = Request { headers, body: Some(&body), ..Request::new(&admin, "POST", path) };
        send(server.ops, &request).expect("an answer")
    };
    for (headers, key) in
        [(&[(KEY, "in-1")][..], None), (&[], Some("in-1")), (&[(KEY, "in-1")], Some("in-1"))]
    {
        let reply = deposit(headers, key);
        assert_eq!((reply.status, &reply.json()["idem_key"]), (200, &json!("in-1")), "{reply:?}");
    }
    let paid = "SELECT count(*) FROM externals WHERE idem_key = 'in-1'";
    assert_eq!(site.sql_value(paid), "1");
    assert_refused(&deposit(&[(KEY, "in-2")], Some("in-3")), 400, "INVALID_REQUEST");
    assert_refused(&deposit(&[], None), 400, "INVALID_REQUEST");
    server.stop();

    let server = site.with("UBSCORE__HTTP__CID_REQUIRED", true).start();
    assert_refused(&post_with(&server, &[], &body), 400, "INVALID_REQUEST");
    assert_eq!(post_with(&server, &[(KEY, "order-1")], &body).status, 200);
    assert_eq!(post_with(&server, &[], &with_cid).status, 200);
    server.stop();
}

/// Story: one client without a token held every connection with silent sockets, and reopened the
/// closed ones. Method: as many silent sockets as there are places, from another address, and more;
/// each transfer is answered.
#[test]
fn f17_idle_sockets_leave_for_clients_that_ask() {
    const PLACES: usize = 64;
    let site = Site::new()
        .with("UBSCORE__HTTP__CONNECTIONS_MAX", PLACES)
        .with("UBSCORE__HTTP__HEADER_READ_TIMEOUT_MS", 60_000);
    let server = site.start();
    let mut silent = Vec::new();
    for round in 0..4 {
        silent.extend((0..PLACES).map(|_| TcpStream::connect(server.http).expect("connected")));
        let body = Way::ToSpot.body_with_cid("USDT", "1", &format!("round-{round}"));
        let reply = server.post(USER, &body);
        assert!([200, 202].contains(&reply.status), "{reply:?}");
    }
    // The first ones have been closed.
    let mut rest = Vec::new();
    assert_eq!(silent[0].read_to_end(&mut rest).map_or(0, |count| count), 0);
    server.stop();
}

/// Story: the reason of a stuck transfer was only in the log, seven times. Method: a deposit waits
/// for a row until it is stuck; the error in an operator's GET, the list, the command, and the
/// alert; it disappears with the transfer's next move.
#[test]
fn the_last_error_of_an_open_transfer_is_shown_everywhere() {
    let site =
        Site::new().with("UBSCORE__ALERT__STUCK_MS", 500).with("UBSCORE__ALERT__REPEAT_MS", 1_000);
    let server = site.start();
    server.transfer_committed(USER, Way::ToSpot, "5");
    let lock = site.lock_usdt(&[USER]);
    let req_id = server.transfer_held(&site, USER, Way::ToFunding, "1");
    let path = format!("/admin/v1/transfers/{req_id}");
    let shown = eventually("an error", || {
        let shown = server.admin_get(&path).json();
        let waits = shown["state"] == json!("TARGET_PENDING") && shown["last_error"].is_object();
        waits.then_some(shown)
    });
    let error = &shown["last_error"];
    assert_eq!((&error["class"], &error["sqlstate"]), (&json!("held_up"), &json!("55P03")));
    assert!(error["message"].as_str().is_some_and(|text| text.contains("lock timeout")), "{error}");
    assert!(error["at"].is_string(), "{error}");
    let listed = server.admin_get("/admin/v1/transfers").json();
    assert_eq!(listed["transfers"][0]["last_error"]["sqlstate"], json!("55P03"), "{listed}");
    server.says("waiting for FUNDING DEPOSIT: blocked by ");
    lock.sql("ROLLBACK");
    site.wait_for_rest();
    assert_eq!(server.admin_get(&path).json()["last_error"], Value::Null);
    server.stop();
}

/// Commits of the workers, as the metrics count them.
fn flights(server: &Server) -> u64 {
    server.metric("ubscore_step_seconds_count{step=\"commit\"}")
}

/// Story: each refused request with a cid cost a commit in PostgreSQL, those beyond the rate limit
/// too. Method: refused requests, each with a cid of its own, without a commit; a known cid still
/// gets its transfer's answer.
#[test]
fn f18_a_refused_request_with_a_cid_costs_no_commit() {
    const REFUSED: usize = 50;
    let site = Site::new().with("UBSCORE__LIMITS__USER_REQUESTS_PER_SECOND_MAX", 1_000);
    let server = site.start();
    let known = Way::ToSpot.body_with_cid("USDT", "1", "known");
    assert_eq!(server.post_ended(USER, &known).status, 200);
    site.wait_for_rest();
    let before = flights(&server);
    for index in 0..REFUSED {
        let body = Way::ToSpot.body_with_cid("USDT", "-1", &format!("refused-{index}"));
        assert_refused(&server.post(USER, &body), 400, "INVALID_AMOUNT");
    }
    assert_eq!(flights(&server), before, "a refusal was looked up by a commit");
    let pause = json!({"direction": "FUNDING_TO_SPOT", "paused": true, "reason": "a test"});
    assert_eq!(server.admin("PUT", "/admin/v1/pauses", &pause).status, 200);
    let again = server.post(USER, &known);
    assert_eq!(again.status, 200, "{again:?}");
    assert_eq!(again.header("idempotent-replayed"), Some("true"));
    server.stop();
}

/// Story: a 401 did not name the accepted scheme, against RFC 9110. Method: both listeners, without
/// a token and with an invalid one.
#[test]
fn a_401_names_the_scheme_on_both_listeners() {
    let server = Site::new().start();
    for token in ["", "no-token"] {
        for (address, path) in
            [(server.http, "/api/v1/balances"), (server.ops, "/admin/v1/transfers")]
        {
            let reply = send(address, &Request::new(token, "GET", path)).expect("an answer");
            assert_refused(&reply, 401, "UNAUTHORIZED");
            let challenge = reply.header("www-authenticate");
            assert_eq!(challenge, Some("Bearer realm=\"ubscore\""), "{reply:?}");
        }
    }
    server.stop();
}
