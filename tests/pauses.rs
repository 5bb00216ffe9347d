//! Pauses: the transfers that they refuse from their answer on, the ones that continue, and the
//! record of the operator.

use std::io::Write;
use std::net::{Shutdown, TcpStream};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use serde_json::{Value, json};

use crate::harness::{
    ADMIN, Reply, Request, Server, SetAtEnd, Site, Way, assert_refused, cli, eventually, said,
    send, text, token,
};

const USER: u64 = 1001;
const PAUSES: &str = "/admin/v1/pauses";
const DIRECTIONS: [(Way, &str); 2] =
    [(Way::ToSpot, "FUNDING_TO_SPOT"), (Way::ToFunding, "SPOT_TO_FUNDING")];

/// A site with money of both assets on both sides.
fn begin(site: &Site) -> Server {
    let server = site.start();
    for asset in ["USDT", "BTC"] {
        let body = Way::ToSpot.body_with_cid(asset, "5", &format!("first-{asset}"));
        assert_eq!(server.post_ended(USER, &body).status, 200);
    }
    site.wait_for_rest();
    server
}

/// Pauses a direction, an asset or both, or resumes them.
fn put(server: &Server, direction: Option<&str>, asset: Option<&str>, paused: bool) -> Reply {
    let mut body = json!({"paused": paused, "reason": "a test"});
    if let Some(direction) = direction {
        body["direction"] = json!(direction);
    }
    if let Some(asset) = asset {
        body["asset"] = json!(asset);
    }
    server.admin("PUT", PAUSES, &body)
}

fn change(server: &Server, direction: Option<&str>, asset: Option<&str>, paused: bool) -> Value {
    let reply = put(server, direction, asset, paused);
    assert_eq!(reply.status, 200, "{reply:?}");
    let json = reply.json();
    let found = [&json["direction"], &json["asset"], &json["paused"], &json["quiet"]];
    let quiet = if paused { json!(true) } else { Value::Null };
    assert_eq!(found, [&json!(direction), &json!(asset), &json!(paused), &quiet], "{reply:?}");
    json
}

/// Posts a transfer each way of each asset. `allowed` lists the accepted ones; every other answer
/// must name its pause.
fn assert_allowed(site: &Site, server: &Server, allowed: impl Fn(Way, &str) -> bool, says: &str) {
    for (way, _) in DIRECTIONS {
        for asset in ["USDT", "BTC"] {
            let reply = server.post(USER, &way.body(asset, "0.01"));
            if allowed(way, asset) {
                assert!([200, 202].contains(&reply.status), "{way:?} {asset}: {reply:?}");
            } else {
                assert_refused(&reply, 422, "TRANSFER_NOT_ALLOWED");
                assert_eq!(reply.json()["message"], json!(says), "{way:?} {asset}");
            }
            site.wait_for_rest();
        }
    }
}

/// Goal: a direction, an asset, and one direction of one asset are each refused from the answer on,
/// and nothing else; a restart keeps it. Method: each scope, every transfer; kill; again; resume,
/// again.
#[test]
fn what_is_paused_is_refused_by_name_and_stays_so_over_a_restart() {
    for (direction, asset, says) in [
        (Some("FUNDING_TO_SPOT"), None, "Transfers from FUNDING to SPOT are paused."),
        (None, Some("USDT"), "Transfers of USDT are paused."),
        (Some("SPOT_TO_FUNDING"), Some("BTC"), "Transfers of BTC from SPOT to FUNDING are paused."),
    ] {
        let site = Site::new();
        let server = begin(&site);
        let allowed = |way: Way, symbol: &str| {
            let name = DIRECTIONS.iter().find(|(other, _)| *other == way).map(|(_, name)| *name);
            !(direction.is_none_or(|paused| name == Some(paused))
                && asset.is_none_or(|paused| paused == symbol))
        };
        let pauses = change(&server, direction, asset, true)["pauses"].clone();
        assert_eq!(pauses.as_array().map(Vec::len), Some(1), "{pauses}");
        assert_eq!(
            (&pauses[0]["direction"], &pauses[0]["asset"]),
            (&json!(direction), &json!(asset))
        );
        assert_eq!(pauses[0]["actor"], json!(format!("admin/{ADMIN}")));
        assert_eq!(pauses[0]["reason"], json!("a test"));
        assert_allowed(&site, &server, allowed, says);
        server.kill();
        let server = site.start();
        assert_eq!(server.admin_get(PAUSES).json()["pauses"], pauses);
        assert_allowed(&site, &server, allowed, says);
        // The same pause twice is one pause.
        let again = change(&server, direction, asset, true);
        assert_eq!(again["pauses"].as_array().map(Vec::len), Some(1), "{again}");
        let none = change(&server, direction, asset, false);
        assert_eq!(none["pauses"], json!([]));
        assert_eq!(change(&server, direction, asset, false)["pauses"], json!([]));
        assert_allowed(&site, &server, |_, _| true, "");
        let audit = "SELECT action, actor, reason FROM admin_audit \
                     WHERE action IN ('pause', 'unpause') ORDER BY id";
        let actions: Vec<String> = site.sql(audit).into_iter().map(|row| row.join(" ")).collect();
        let row = |action: &str| format!("{action} admin/{ADMIN} a test");
        assert_eq!(actions, ["pause", "pause", "unpause", "unpause"].map(row));
        site.assert_in_order(&server);
    }
}

/// Lifting one pause keeps every other pause that covers the same transfers.
#[test]
fn pauses_are_lifted_one_by_one() {
    let site = Site::new();
    let server = begin(&site);
    change(&server, Some("FUNDING_TO_SPOT"), None, true);
    change(&server, None, Some("USDT"), true);
    let left = change(&server, None, Some("USDT"), false);
    assert_eq!(left["pauses"].as_array().map(Vec::len), Some(1), "{left}");
    let says = "Transfers from FUNDING to SPOT are paused.";
    assert_allowed(&site, &server, |way, _| way == Way::ToFunding, says);
    site.assert_verified();
}

/// Goal: a pause stops neither a replay nor a transfer in progress. Method: a transfer that has
/// ended and one that rests, both with a cid; everything paused; both requested again; the resting
/// one continues.
#[test]
fn replays_and_what_is_under_way_go_on() {
    let site = Site::new().with("UBSCORE__HTTP__TRANSFER_WAIT_MS", 3_000);
    let server = begin(&site);
    let ended = Way::ToSpot.body_with_cid("USDT", "1", "ended");
    let first = server.post_ended(USER, &ended);
    assert_eq!(first.status, 200, "{first:?}");
    let lock = site.lock_usdt(&[USER]);
    let resting = Way::ToFunding.body_with_cid("USDT", "2", "resting");
    let rests = server.post_pending(USER, &resting);
    change(&server, None, Some("USDT"), true);
    for (body, before) in [(&ended, &first), (&resting, &rests)] {
        let replay = server.post_taken(USER, body);
        assert_eq!((replay.status, replay.req_id()), (before.status, before.req_id()));
        assert_eq!(replay.header("idempotent-replayed"), Some("true"));
    }
    lock.sql("ROLLBACK");
    site.wait_for_rest();
    assert_eq!(server.look(USER, &rests.req_id())["state"], json!("COMMITTED"));
    // A refused cid is free.
    let refused = Way::ToSpot.body_with_cid("USDT", "1", "refused");
    assert_refused(&server.post(USER, &refused), 422, "TRANSFER_NOT_ALLOWED");
    change(&server, None, Some("USDT"), false);
    let reply = server.post(USER, &refused);
    assert_eq!((reply.status, reply.header("idempotent-replayed")), (200, None), "{reply:?}");
    site.assert_in_order(&server);
}

/// Goal: no transfer of a direction is accepted after the answer to its pause, in spite of many
/// concurrent requests; the other direction continues. Method: crowds of both directions without an
/// end; a pause; the rows at its answer, and after.
#[test]
fn under_load_nothing_of_a_direction_is_accepted_after_the_answer() {
    let site = Site::new();
    let server = begin(&site);
    let count = |kind: u8| {
        site.sql_value(&format!("SELECT count(*) FROM transfers WHERE direction = {kind}"))
            .parse::<u64>()
            .expect("a number")
    };
    let stop = AtomicBool::new(false);
    let refused = Mutex::new(0_u32);
    thread::scope(|scope| {
        for index in 0..12 {
            let (server, stop, refused) = (&server, &stop, &refused);
            let way = Way::BOTH[index % 2];
            scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    let reply = server.transfer(USER, way, "0.001");
                    if reply.status == 422 {
                        assert_refused(&reply, 422, "TRANSFER_NOT_ALLOWED");
                        assert_eq!(way, Way::ToSpot, "{reply:?}");
                        *refused.lock().expect("no panic") += 1;
                    }
                }
            });
        }
        let _stop = SetAtEnd(&stop);
        for _ in 0..5 {
            let before = count(1);
            eventually("the first accepts", || (count(1) > before + 5).then_some(()));
            change(&server, Some("FUNDING_TO_SPOT"), None, true);
            let (there, back) = (count(1), count(2));
            eventually("the other direction goes on", || (count(2) > back + 20).then_some(()));
            assert_eq!(count(1), there, "accepted behind the answer");
            change(&server, Some("FUNDING_TO_SPOT"), None, false);
        }
    });
    assert!(*refused.lock().expect("no panic") > 0);
    site.wait_for_rest();
    site.assert_in_order(&server);
}

/// Goal: a pause waits for an accept that was checked before it, even if the client has gone.
/// Method: the journal is locked; a transfer without a waiting client; a pause, with its answer
/// after that.
#[test]
fn the_answer_waits_for_what_was_checked_before() {
    let site = Site::new()
        .with("UBSCORE__POSTGRES__LOCK_TIMEOUT_MS", 30_000)
        .with("UBSCORE__POSTGRES__STATEMENT_TIMEOUT_MS", 30_000);
    let server = begin(&site);
    let hold = site.hold("INSERT ON transfers_tb", "NEW.amount = 3e8");
    let body = Way::ToSpot.body("USDT", "3").to_string();
    let (token, length) = (token(USER, None), body.len());
    let head = format!(
        "POST /api/v1/internal_transfer HTTP/1.1\r\nHost: public\r\nAuthorization: Bearer {token}\r\n\
         Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n"
    );
    let mut client = TcpStream::connect(server.http).expect("a listener");
    client.write_all(format!("{head}{body}").as_bytes()).expect("sent");
    site.wait_for_held();
    client.shutdown(Shutdown::Both).expect("hung up");
    drop(client);
    thread::scope(|scope| {
        let pausing = scope.spawn(|| change(&server, Some("FUNDING_TO_SPOT"), None, true));
        // In force at once, and not answered yet.
        eventually("the pause to be in force", || {
            (server.transfer(1002, Way::ToSpot, "1").status == 422).then_some(())
        });
        assert!(!pausing.is_finished());
        hold.release();
        pausing.join().expect("answered");
    });
    let accepted = "SELECT count(*) FROM transfers WHERE amount = 3";
    assert_eq!(site.sql_value(accepted), "1");
    site.wait_for_rest();
    site.assert_in_order(&server);
}

#[test]
fn a_mistake_or_a_stranger_pauses_nothing() {
    let site = Site::new();
    let server = site.start();
    let good = json!({"asset": "USDT", "paused": true, "reason": "a test"});
    for (key, value, code) in [
        ("asset", json!("NONE"), "INVALID_ASSET"),
        ("asset", Value::Null, "INVALID_REQUEST"),
        ("direction", json!("SIDEWAYS"), "INVALID_REQUEST"),
        ("direction", json!("funding_to_spot"), "INVALID_REQUEST"),
        ("paused", json!("yes"), "INVALID_REQUEST"),
        ("reason", json!(" "), "INVALID_REQUEST"),
        ("until", json!("tomorrow"), "INVALID_REQUEST"),
    ] {
        let mut body = good.clone();
        body[key] = value;
        assert_refused(&server.admin("PUT", PAUSES, &body), 400, code);
    }
    let user = token(USER, None);
    let put = Request { body: Some(&good), ..Request::new(&user, "PUT", PAUSES) };
    assert_refused(&send(server.ops, &put).expect("an answer"), 403, "FORBIDDEN");
    let get = Request::new(&user, "GET", PAUSES);
    assert_refused(&send(server.ops, &get).expect("an answer"), 403, "FORBIDDEN");
    assert_eq!(server.admin_get(PAUSES).json(), json!({"pauses": []}));
    assert_eq!(site.sql_value("SELECT count(*) FROM admin_audit WHERE action = 'pause'"), "0");
    // Without PostgreSQL no pause is recorded, and the operator gets an error.
    site.admit_connections(false);
    assert_refused(&server.admin("PUT", PAUSES, &good), 503, "SYSTEM_ERROR");
    site.admit_connections(true);
    assert_eq!(server.admin_get(PAUSES).json(), json!({"pauses": []}));
}

#[test]
fn the_command_line_pauses_lists_and_goes_on() {
    let site = Site::new();
    let server = begin(&site);
    let ops = format!("http://{}/", server.ops);
    let on = |line: &str, more: &[&str]| {
        let mut arguments: Vec<&str> = line.split(' ').collect();
        arguments.extend(["--ops", &ops, "--dev", "--as", "77"]);
        arguments.extend(more);
        said(&cli(&arguments))
    };
    let why = &["--reason", "it is late"][..];
    assert_eq!(on("pauses", &[]), (0, "nothing is paused\n".to_owned(), String::new()));
    let (code, out, err) = on("pause --direction funding_to_spot --asset USDT", why);
    assert_eq!((code, err.as_str()), (0, ""), "{out}");
    println!("{out}");
    let lines: Vec<&str> = out.lines().collect();
    assert_eq!(lines[0], "Paused: FUNDING_TO_SPOT, USDT.");
    assert_eq!(lines[1], "  New transfers are refused from now on. Accepted ones continue.");
    assert!(lines[2].starts_with("DIRECTION        ASSET  SINCE"), "{out}");
    assert!(lines[3].ends_with("  admin/77  it is late"), "{out}");
    assert_refused(&server.transfer(USER, Way::ToSpot, "1"), 422, "TRANSFER_NOT_ALLOWED");
    let (_, out, _) = on("pauses --format json", &[]);
    let pause: Value = serde_json::from_str(out.trim()).expect("one JSON object");
    assert_eq!(text(&pause["direction"]), "FUNDING_TO_SPOT");
    // Lifting another one lifts nothing, and lists the remaining ones.
    let (code, out, _) = on("unpause --asset USDT", why);
    assert!(code == 0 && out.contains("FUNDING_TO_SPOT"), "{out}");
    assert!(out.starts_with("No such pause.\n"), "{out}");
    let (code, out, _) = on("unpause --direction funding_to_spot --asset USDT --format json", why);
    let json: Value = serde_json::from_str(out.trim()).expect("one JSON object");
    assert_eq!((code, &json["pauses"]), (0, &json!([])));
    assert_eq!(server.transfer(USER, Way::ToSpot, "1").status, 200);
    let (code, _, err) = on("pause --asset NONE", why);
    assert!(code == 1 && err.contains("INVALID_ASSET"), "{err}");
    assert_eq!(on("pause", why).0, 2);
}
