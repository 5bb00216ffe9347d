//! `DATA/flights`: a start that misses an answered flight is refused, and changes nothing.

use std::fs;
use std::io::Write;
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use serde_json::{Value, json};
use ubscore::exit::Exit;

use super::external::{copied, go_back};
use crate::harness::{
    Part, Passing, Proxy, Server, Site, Speaker, Way, eventually, repair, tells_of_a_commit, token,
};

const USER: u64 = 1001;
const APPLY: [&str; 3] = ["--apply", "--reason", "PostgreSQL went back"];

/// Everything that a start writes before it reads.
fn fences(site: &Site) -> Vec<Vec<String>> {
    let incarnation = site.sql("SELECT incarnation, halted FROM engine_state");
    let journal = "SELECT shard, flight, incarnation, attempt FROM journal_tb ORDER BY 1, 2";
    [incarnation, site.sql(journal)].concat()
}

fn incarnation(site: &Site) -> u64 {
    site.sql_value("SELECT incarnation FROM engine_state").parse().expect("a number")
}

/// Three starts, each refused with these words and without a write.
fn refused_again_and_again(site: &Site, words: &[&str]) {
    let before = fences(site);
    for _ in 0..3 {
        let (code, said) = site.start_refused();
        assert_eq!(code, i32::from(Exit::Damage.code()), "{said}");
        let last = said.lines().last().expect("a line");
        for word in words {
            assert!(last.contains(word), "{word}: {said}");
        }
        assert!(last.contains("next: ubscore repair --plan"), "{said}");
        assert_eq!(fences(site), before);
    }
}

/// Goal: no answered commit is lost without a word, not even the very last before a SIGKILL, on a
/// server that looks unchanged, and no id is given twice. Method: a copy of the database; another
/// start; one more transfer, or only a refused one, of which the log has no record; SIGKILL at its
/// answer; the copy in its place; three starts; repair; a start.
#[test]
fn f01_a_start_that_misses_the_last_answered_flight_is_refused() {
    for (amount, status) in [("5", 200), ("99999", 422)] {
        let site = Site::new();
        let server = site.start();
        assert_eq!(server.transfer(USER, Way::ToSpot, "100").status, 200);
        site.wait_for_rest();
        let copy = copied(&site);
        server.stop();
        let server = site.start();
        let body = Way::ToSpot.body_with_cid("USDT", amount, "the-last-one");
        let reply = eventually("an answer", || {
            let reply = server.post(USER, &body);
            (reply.status == status).then_some(reply)
        });
        server.kill();
        site.wait_for_disconnected();
        let lost = incarnation(&site);
        let balances = site.sql("SELECT * FROM balances ORDER BY user_id, asset_id");
        go_back(&site, &copy);
        let named = if status == 200 { reply.req_id() } else { "no loss of money".to_owned() };
        refused_again_and_again(&site, &["has gone back in time: flight", "of shard", &named]);

        let (code, planned, why) = repair(&site, &["--plan"]);
        assert_eq!(code, Some(0), "{planned}{why}");
        assert!(planned.contains("would    take PostgreSQL's last flights"), "{planned}");
        let (code, done, why) = repair(&site, &APPLY);
        assert_eq!(code, Some(0), "{done}{why}");
        assert!(done.contains("done     take PostgreSQL's last flights"), "{done}");
        assert_eq!(
            site.sql("SELECT * FROM balances ORDER BY user_id, asset_id").len(),
            balances.len()
        );
        let server = site.start();
        assert_eq!(server.ready(), 200, "{}", server.said());
        let again = incarnation(&site);
        assert!(again > lost, "incarnation {again} gives ids of {lost} again");
        let again = server.post(USER, &body);
        assert_eq!(again.status, status, "{again:?}");
        assert_eq!(again.header("idempotent-replayed").is_some(), status == 200, "{again:?}");
        site.wait_for_rest();
        site.assert_in_order(&server);
        server.stop();
        site.start().stop();
    }
}

/// Goal: an answer or an id that a request took from PostgreSQL, before the worker had its own
/// answer, is not lost without a word. Method: a proxy that holds back the answers of flights; a
/// transfer that Funding refuses, told by a POST, a GET, or only by the id that a stream begins
/// with; SIGKILL; the rows of that flight are removed; three starts.
#[test]
fn f01_a_start_that_misses_a_flight_that_was_only_read_is_refused() {
    #[derive(Clone, Copy, PartialEq)]
    enum By {
        Post,
        Get,
        Stream,
    }
    for by in [By::Post, By::Get, By::Stream] {
        // The POST beside a stream must not look for itself.
        let wait_ms = if by == By::Stream { 50_000 } else { 500 };
        let site = Site::new()
            .with("UBSCORE__HTTP__TRANSFER_WAIT_MS", wait_ms)
            .with("UBSCORE__HTTP__REQUEST_TIMEOUT_MS", wait_ms + 9_000)
            .with("UBSCORE__COORDINATOR__ADAPTER_TIMEOUT_MS", 500);
        let holds = Arc::new(AtomicBool::new(false));
        let held = Arc::clone(&holds);
        let proxy = Proxy::start(&site, move |speaker, bytes| {
            let answer = speaker == Speaker::Server && tells_of_a_commit(bytes);
            match answer && held.load(Ordering::Relaxed) {
                true => Passing::Nothing,
                false => Passing::All,
            }
        });
        let server = Server::start(site.command_with(&proxy.url));
        assert_eq!(server.transfer(USER, Way::ToSpot, "100").status, 200);
        site.wait_for_rest();
        let kept = "CREATE TABLE kept AS SELECT shard, flight FROM journal_tb";
        site.sql(kept);
        let noted = fs::read(site.flights()).expect("written");
        holds.store(true, Ordering::Relaxed);
        let body = Way::ToSpot.body_with_cid("USDT", "99999", "the-last-one");
        match by {
            By::Post => assert_eq!(server.post(USER, &body).status, 422),
            By::Get => thread::scope(|scope| {
                scope.spawn(|| server.post(USER, &body));
                eventually("the refusal", || {
                    let list = server.get(USER, "/api/v1/internal_transfers?cid=the-last-one");
                    let state = &list.json()["transfers"][0]["state"];
                    (*state == json!("FAILED")).then_some(())
                });
            }),
            By::Stream => {
                let posting = post_unanswered(&server, &body);
                let ended = "SELECT count(*) FROM transfers_tb WHERE cid = 'the-last-one'";
                eventually("the commit", || (site.sql_value(ended) == "1").then_some(()));
                let last = "SELECT max(event_first + event_count - 1) FROM journal_last";
                let last = site.sql_value(last);
                let Part::Position(id) = server.follow(USER, None).next() else {
                    panic!("no position")
                };
                assert_eq!(id, last, "the id of the last event");
                drop(posting);
            }
        }
        assert_ne!(fs::read(site.flights()).expect("written"), noted, "noted before it is told");
        server.kill();
        site.wait_for_disconnected();
        site.sql(
            "SET session_replication_role = replica; \
             DELETE FROM journal_tb WHERE (shard, flight) NOT IN (SELECT * FROM kept); \
             DELETE FROM transfers_tb WHERE cid = 'the-last-one'; DROP TABLE kept",
        );
        refused_again_and_again(&site, &["has gone back in time: flight", "of shard"]);
    }
}

/// Sends a POST, and reads no answer.
fn post_unanswered(server: &Server, body: &Value) -> TcpStream {
    let (address, token, body) = (server.http, token(USER, None), body.to_string());
    let mut stream = TcpStream::connect(address).expect("a connection");
    write!(
        stream,
        "POST /api/v1/internal_transfer HTTP/1.1\r\nHost: {address}\r\n\
         Authorization: Bearer {token}\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\n\r\n{body}",
        body.len()
    )
    .expect("sent");
    stream
}

/// Goal: an operator's write that was answered is not lost without a word either. Method: a copy of
/// the database; a pause, a suspended asset or a rejected approval; SIGKILL at its answer; the copy
/// in its place; three starts.
#[test]
fn f01_a_start_that_misses_an_operators_write_is_refused() {
    const ASKED: &str = "01ARZ3NDEKTSV4RRFFQ69G5FAV";
    let pause = json!({ "direction": "SPOT_TO_FUNDING", "paused": true, "reason": "a test" });
    let suspend = json!({ "status": "SUSPENDED", "reason": "a test" });
    let reject = format!("/admin/v1/approvals/{ASKED}/reject");
    for (method, path, body) in [
        ("PUT", "/admin/v1/pauses", pause),
        ("PUT", "/admin/v1/assets/USDT", suspend),
        ("POST", &reject, json!({ "reason": "a test" })),
    ] {
        let site = Site::new();
        let server = site.start();
        assert_eq!(server.transfer(USER, Way::ToSpot, "100").status, 200);
        site.wait_for_rest();
        site.sql(&format!(
            "INSERT INTO approvals_tb (approval_id, action, subject, request, maker, reason, expires_at) \
             VALUES ('{ASKED}', 'external', 'a key', '{{}}', 9001, 'a test', now() + interval '1 day')"
        ));
        let copy = copied(&site);
        let done = server.admin(method, path, &body);
        assert_eq!(done.status, 200, "{done:?}");
        server.kill();
        site.wait_for_disconnected();
        go_back(&site, &copy);
        refused_again_and_again(&site, &["has gone back in time: flight", "of shard"]);
    }
}

/// Goal: without the file no start trusts PostgreSQL, and `repair` writes it anew. Method: the file
/// is removed, cut, and spoiled in both slots, beside a log that was used.
#[test]
fn f01_a_start_without_a_sound_file_of_answered_flights_is_refused() {
    let site = Site::new();
    let server = site.start();
    assert_eq!(server.transfer(USER, Way::ToSpot, "100").status, 200);
    server.stop();
    type Damage = fn(Vec<u8>) -> Option<Vec<u8>>;
    let damages: [(&str, Damage); 4] = [
        ("missing", |_| None),
        ("damaged", |bytes| Some(bytes[..5000].to_vec())),
        ("damaged", |bytes| Some(bytes.iter().map(|byte| byte ^ 0x80).collect())),
        ("both slots of shard 0", |mut bytes| {
            // The first slot of each half.
            for at in [4096, 8192] {
                bytes[at + 8] ^= 1;
            }
            Some(bytes)
        }),
    ];
    for (word, damage) in damages {
        let path = site.flights();
        match damage(fs::read(&path).expect("written by the stop")) {
            Some(bytes) => fs::write(&path, bytes).expect("written"),
            None => fs::remove_file(&path).expect("removed"),
        }
        refused_again_and_again(&site, &[word, "flights"]);
        let (code, done, why) = repair(&site, &APPLY);
        assert_eq!(code, Some(0), "{done}{why}");
        assert!(done.contains("done     take PostgreSQL's last flights"), "{done}");
        let server = site.start();
        assert_eq!(server.ready(), 200, "{}", server.said());
        assert_eq!(server.transfer(USER, Way::ToSpot, "1").status, 200);
        server.stop();
    }
    site.assert_verified();
}

/// Goal: neither a torn write nor a power cut keeps a start from starting. Method: one slot of each
/// shard is spoiled; then the file of an earlier process lies in the data directory.
#[test]
fn f01_a_file_of_answered_flights_may_be_torn_or_behind() {
    let site = Site::new();
    site.start().stop();
    let earlier = fs::read(site.flights()).expect("written by the stop");
    let server = site.start();
    assert_eq!(server.transfer(USER, Way::ToSpot, "100").status, 200);
    server.kill();
    let mut bytes = fs::read(site.flights()).expect("written");
    for slot in bytes[4096..8192].chunks_mut(64).take(2) {
        slot[8] ^= 1;
    }
    fs::write(site.flights(), bytes).expect("written");
    let server = site.start();
    server.says("using the other slot of a torn one");
    assert_eq!(server.transfer(USER, Way::ToSpot, "1").status, 200);
    server.stop();
    fs::write(site.flights(), earlier).expect("written");
    let server = site.start();
    assert_eq!(server.transfer(USER, Way::ToSpot, "1").status, 200);
    site.wait_for_rest();
    site.assert_in_order(&server);
    server.stop();
}
