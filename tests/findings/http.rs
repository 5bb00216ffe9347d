//! Requests, readiness, logging.

use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};

use crate::harness::{Passing, Proxy, Server, Site, Way, crowd, eventually, last_line, refused};

const USER: u64 = 1_001;
/// More lines than a pipe and the queue hold, at the level of debugging.
const TRANSFERS: usize = 2_000;

/// Story: the collector of log lines stood still, and no request was answered any more, a halt included. Method: stderr is
/// a pipe that nobody reads, each transfer logs many lines; transfers until lines are dropped, a halt, a stop in order.
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
    let halted = server.admin("POST", "/admin/v1/halt", &json!({"reason": "nobody reads"}));
    assert_eq!(halted.status, 200, "{halted:?}");
    server.stop();
    drop(unread);
}

/// Story: a collector of JSON lines met a line that was none, the one that said why the process had died, and lines with
/// paths of the machine that built the binary. Method: a start that migrates, a stop, and a start without PostgreSQL.
#[test]
fn every_line_of_a_json_log_is_json_the_last_one_too() {
    let site = Site::new().with("UBSCORE__LOG__FORMAT", "json");
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
    assert!(said.contains("refinery"), "no line of the crate log: {said}");
    assert!(last_line(&said).contains("stopped"), "{said}");
    let last: Value = serde_json::from_str(last_line(&refusal)).expect("JSON");
    assert_eq!(last["level"], json!("ERROR"), "{last}");
    let message = last["fields"]["message"].as_str().expect("a message");
    assert!(message.starts_with("error: ") && message.contains("PostgreSQL"), "{message}");
}

/// Story: each try of a held-up step was logged twice, with Rust's own notation of its values. Method: a step waits for a
/// row; every line about it.
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

/// Story: PostgreSQL came back as an older copy under a halted service, without a transfer whose step had been on its way,
/// and the process panicked. Method: a step waits for a row, its connection is cut in that flight, a halt, the rows of the
/// transfer go, PostgreSQL is back.
#[test]
fn f11_a_transfer_that_postgresql_lacks_is_an_alert_and_rests() {
    // The lock is waited for as long as a statement may take, so that the cut comes first.
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
    // The first try ends in front of Funding, the next one is nothing but Funding's part.
    eventually("a deposit waits for the row", || {
        let state = format!("SELECT state FROM transfers_tb WHERE req_id = '{req_id}'");
        let waits = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() \
                     AND application_name = 'ubscore' AND wait_event_type = 'Lock'";
        (site.sql_value(&state) == "30" && site.sql_value(waits) != "0").then_some(())
    });
    proxy.refuse();
    let halted = server.admin("POST", "/admin/v1/halt", &json!({"reason": "an older copy"}));
    assert_eq!(halted.status, 200, "{halted:?}");
    site.cut_connections();
    site.sql(&format!(
        "SET session_replication_role = replica; \
         DELETE FROM transfer_operations WHERE req_id = '{req_id}'; \
         DELETE FROM transfer_history WHERE req_id = '{req_id}'; \
         DELETE FROM transfers_tb WHERE req_id = '{req_id}'; \
         SET session_replication_role = origin"
    ));
    lock.sql("ROLLBACK");
    proxy.come_back();
    eventually("the alert", || (violations() > before).then_some(()));
    assert_eq!(server.get(USER, "/api/v1/balances").status, 200, "reads go on");
    server.stop();
}
