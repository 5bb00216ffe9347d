//! The operator's work on transfers that do not end: find them, see the missing answer, retry them
//! at once, end them.

use std::io;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use domain::transfer::Op;
use jiff::Timestamp;
use serde_json::{Value, json};
use ubscore::http::auth::Role;

use crate::harness::{
    ADMIN, Balance, COIN, Hold, Reply, Request, Server, Site, Way, assert_refused, cli, crowd,
    eventually, patient, said, send, text, token,
};

const USER: u64 = 1001;
const LIST: &str = "/admin/v1/transfers";
const STATE: &str = "UPDATE OF state ON transfers_tb";
const CODE: &str = "RESOLVED_BY_OPERATOR";

/// A site with short lock timeouts, and an early report of stuck transfers.
fn site(fuse: bool) -> Site {
    Site::fused(fuse)
        .with("UBSCORE__POSTGRES__LOCK_TIMEOUT_MS", 100)
        .with("UBSCORE__ALERT__STUCK_MS", 100)
}

/// A server on a site, with 50 coins of the user on Spot.
fn begin(site: &Site) -> Server {
    let server = site.start();
    server.transfer_accepted(USER, Way::ToSpot, "50");
    site.wait_for_rest();
    server
}

/// Posts 12 coins under a cid, and waits until they rest in a state.
fn stick(site: &Site, server: &Server, way: Way, cid: &str, state: &str) -> String {
    let req_id = server.post_held(site, USER, &way.body_with_cid("USDT", "12", cid));
    let stands = format!("SELECT state FROM transfers WHERE cid = '{cid}'");
    eventually(&format!("{cid} in {state}"), || {
        site.sql(&stands).first().filter(|row| row[0] == state).map(|_| ())
    });
    req_id
}

fn attend(server: &Server, req_id: &str, action: &str) -> Reply {
    server.admin("POST", &format!("{LIST}/{req_id}/{action}"), &json!({"reason": "a test"}))
}

fn resolve(server: &Server, req_id: &str) -> Reply {
    attend(server, req_id, "resolve")
}

fn list(server: &Server, query: &str) -> Vec<Value> {
    let reply = server.admin_get(&format!("{LIST}?{query}"));
    assert_eq!(reply.status, 200, "{query}: {reply:?}");
    reply.json()["transfers"].as_array().expect("an array").clone()
}

fn show(server: &Server, req_id: &str) -> Value {
    let reply = server.admin_get(&format!("{LIST}/{req_id}"));
    assert_eq!(reply.status, 200, "{reply:?}");
    reply.json()
}

/// The records of both sides: account, op, outcome, code.
fn recorded(shown: &Value) -> Vec<[String; 4]> {
    let of = |row: &Value| {
        ["account", "op", "outcome", "code"].map(|key| row[key].as_str().unwrap_or("").to_owned())
    };
    shown["operations"].as_array().expect("an array").iter().map(of).collect()
}

/// Asserts that an operator has ended a transfer of 12 coins in this state, with its money at its
/// origin, and that every later answer agrees.
fn assert_resolved(site: &Site, server: &Server, way: Way, cid: &str, req_id: &str, state: &str) {
    for answered in [resolve(server, req_id), resolve(server, req_id)] {
        assert_eq!(answered.status, 200, "{answered:?}");
        let json = answered.json();
        assert_eq!(
            (text(&json["state"]), text(&json["error"]["code"])),
            (state, CODE),
            "{answered:?}"
        );
        assert_eq!((&json["funds_at"], &json["final"]), (&json!("source"), &json!(true)));
    }
    let replay = server.post(USER, &way.body_with_cid("USDT", "12", cid));
    assert_refused(&replay, 422, CODE);
    assert_eq!(replay.json()["state"], json!(state));
    assert_eq!(replay.header("idempotent-replayed"), Some("true"));
    assert_eq!(server.usdt(USER), Balance::at_rest(9_950 * COIN, 50 * COIN));
    let by = format!(
        "SELECT count(*) FROM admin_audit WHERE action = 'transfer resolve' \
                      AND subject = '{req_id}' AND actor = 'admin/{ADMIN}' AND reason = 'a test'"
    );
    assert_ne!(site.sql_value(&by), "0");
    site.assert_in_order(server);
}

/// Goal: a deposit that Funding does not decide is found, explained, and ended at once though
/// Funding stays locked; the late call has no effect. Method: another session locks the row of the
/// balance; both fused and not.
#[test]
fn a_deposit_that_funding_does_not_decide_is_found_and_ended() {
    for fuse in [true, false] {
        let site = site(fuse);
        let server = begin(&site);
        let lock = site.lock_usdt(&[USER]);
        let req_id = stick(&site, &server, Way::ToFunding, "stuck", "30");

        let found = eventually("the stuck transfer", || list(&server, "stuck=true").pop());
        for (key, want) in [
            ("req_id", json!(req_id)),
            ("state", json!("TARGET_PENDING")),
            ("funds_at", json!("in_flight")),
            ("user_id", json!(USER)),
            ("waits_for", json!({"account": "FUNDING", "op": "DEPOSIT"})),
            ("amount", json!("12")),
            ("error", Value::Null),
        ] {
            assert_eq!(found[key], want, "{key}: {found}");
        }
        assert!(found["age_ms"].as_u64().is_some_and(|age| age >= 100), "{found}");
        let tried = || list(&server, "").pop().filter(|row| row["retry_count"] != json!(0));
        let tried = eventually("the next try", tried);
        assert!(tried["next_retry_at"].is_string(), "{tried}");
        for (query, count) in [
            ("state=TARGET_PENDING", 1),
            ("state=TARGET_PENDING&user=1001&limit=1&stuck=true", 1),
            ("state=SOURCE_PENDING", 0),
            ("user=1002", 0),
            ("state=COMMITTED", 1),
            ("state=COMMITTED&user=1002", 0),
            ("state=FAILED", 0),
        ] {
            assert_eq!(list(&server, query).len(), count, "{query}");
        }
        let shown = show(&server, &req_id);
        let paid = ["SPOT", "WITHDRAW", "SUCCESS", ""].map(str::to_owned);
        assert_eq!(recorded(&shown), std::slice::from_ref(&paid));
        assert_eq!(shown["operations"][0]["balance_after"], json!("38"));
        assert_eq!(shown["spot_answered"], json!(true));
        let states = shown["history"].as_array().expect("an array");
        let states: Vec<&str> = states.iter().map(|passed| text(&passed["state"])).collect();
        assert_eq!(states, ["INIT", "SOURCE_PENDING", "SOURCE_DONE", "TARGET_PENDING"]);

        let answered = resolve(&server, &req_id);
        assert_eq!(answered.status, 200, "{answered:?}");
        site.wait_for_rest();
        let shown = show(&server, &req_id);
        let refused = ["FUNDING", "DEPOSIT", "REFUSED", CODE].map(str::to_owned);
        let refund = ["SPOT", "REFUND", "SUCCESS", ""].map(str::to_owned);
        assert_eq!(recorded(&shown), [paid, refused, refund]);
        assert_eq!(shown["waits_for"], Value::Null);
        assert_resolved(&site, &server, Way::ToFunding, "stuck", &req_id, "ROLLED_BACK");
        lock.sql("ROLLBACK");
        // The calls queued behind the lock run now.
        let reply = server.transfer(USER, Way::ToSpot, "1");
        assert_eq!(reply.status, 200, "{reply:?}");
        server.transfer_accepted(USER, Way::ToFunding, "1");
        site.wait_for_rest();
        assert_resolved(&site, &server, Way::ToFunding, "stuck", &req_id, "ROLLED_BACK");
        assert_eq!(list(&server, ""), Vec::<Value>::new());
    }
}

/// Without fusion a withdraw at Funding can block too. Nothing has moved, and nothing ever moves.
#[test]
fn a_withdraw_that_funding_does_not_decide_is_ended() {
    let site = site(false);
    let server = begin(&site);
    let lock = site.lock_usdt(&[USER]);
    let req_id = stick(&site, &server, Way::ToSpot, "stuck", "10");
    let shown = show(&server, &req_id);
    assert_eq!(shown["waits_for"], json!({"account": "FUNDING", "op": "WITHDRAW"}));
    assert_eq!((recorded(&shown), &shown["funds_at"]), (vec![], &json!("source")));
    assert_resolved(&site, &server, Way::ToSpot, "stuck", &req_id, "FAILED");
    lock.sql("ROLLBACK");
    server.transfer_accepted(USER, Way::ToFunding, "1");
    server.transfer_accepted(USER, Way::ToSpot, "1");
    assert_resolved(&site, &server, Way::ToSpot, "stuck", &req_id, "FAILED");
}

/// Goal: if the refusal itself cannot be recorded in time, it has no effect, then or later, and the
/// operator gets that answer. Method: Funding's journal is locked, or PostgreSQL is away; resolve;
/// unlock: the transfer ends as without an operator.
#[test]
fn a_resolve_that_is_given_up_does_nothing_later() {
    for fuse in [true, false] {
        let site = site(fuse).with("UBSCORE__HTTP__TRANSFER_WAIT_MS", 300);
        let server = begin(&site);
        let hold = site.hold_decision(Op::Deposit);
        let req_id = stick(&site, &server, Way::ToFunding, "held", "30");
        for _ in 0..2 {
            assert_refused(&resolve(&server, &req_id), 503, "SYSTEM_ERROR");
        }
        hold.release();
        site.wait_for_rest();
        let answered = resolve(&server, &req_id);
        assert_refused(&answered, 409, "NOT_RESOLVABLE");
        assert_eq!(answered.json()["state"], json!("COMMITTED"), "{answered:?}");
        assert_eq!(server.usdt(USER), Balance::at_rest(9_962 * COIN, 38 * COIN));
        site.sql("DROP TRIGGER hold ON transfers_tb");

        let lock = site.lock_usdt(&[USER]);
        let req_id = stick(&site, &server, Way::ToFunding, "away", "30");
        site.admit_connections(false);
        for action in ["resolve", "retry"] {
            assert_refused(&attend(&server, &req_id, action), 503, "SYSTEM_ERROR");
        }
        assert_refused(&server.admin_get(LIST), 503, "SYSTEM_ERROR");
        drop(lock);
        site.admit_connections(true);
        site.wait_for_rest();
        let answered = eventually("PostgreSQL to be found again", || {
            let answered = resolve(&server, &req_id);
            (answered.status != 503).then_some(answered)
        });
        assert_refused(&answered, 409, "NOT_RESOLVABLE");
        site.assert_in_order(&server);
    }
}

/// The block on a transfer before its resolve, and the outcome.
struct Case {
    way: Way,
    /// The transition into this state is blocked ...
    held: &'static str,
    /// ... so that it rests here.
    rests: &'static str,
    /// Its final state.
    ends: &'static str,
    /// UBSCore's records at the end: op and whether an operator has refused it.
    spot: &'static [(&'static str, bool)],
}

/// Transfers that a stop of PostgreSQL in the middle leaves undecided at UBSCore, or decided and
/// not recorded.
const CASES: [Case; 4] = [
    // UBSCore has no order yet: it refuses, and a late order gets the refusal.
    Case {
        way: Way::ToSpot,
        held: "NEW.state = 30",
        rests: "20",
        ends: "ROLLED_BACK",
        spot: &[("DEPOSIT", true)],
    },
    Case {
        way: Way::ToFunding,
        held: "NEW.state = 10",
        rests: "0",
        ends: "FAILED",
        spot: &[("WITHDRAW", true)],
    },
    // UBSCore has paid, which counts; then Funding's deposit is refused.
    Case {
        way: Way::ToFunding,
        held: "NEW.state = 20",
        rests: "10",
        ends: "ROLLED_BACK",
        spot: &[("WITHDRAW", false), ("REFUND", false)],
    },
    // Funding is next.
    Case {
        way: Way::ToFunding,
        held: "NEW.state = 30",
        rests: "20",
        ends: "ROLLED_BACK",
        spot: &[("WITHDRAW", false), ("REFUND", false)],
    },
];

/// Resolves, and removes the block once the worker works on it.
pub(crate) fn resolve_and_release(
    server: &Server,
    req_id: &str,
    hold: Hold,
) -> std::io::Result<Reply> {
    let path = format!("{LIST}/{req_id}/resolve");
    let token = token(ADMIN, Some(Role::Admin));
    let body = json!({"reason": "a test"});
    thread::scope(|scope| {
        let request = Request { body: Some(&body), ..Request::new(&token, "POST", &path) };
        let resolving = scope.spawn(move || send(server.ops, &request));
        server.says("an operator attends to it");
        hold.release();
        resolving.join().expect("no panic")
    })
}

fn dump(site: &Site, req_id: &str) -> Vec<Value> {
    let data_dir = site.data_dir.to_str().expect("text");
    let (code, out, err) =
        said(&cli(&["wal", "dump", data_dir, "--req-id", req_id, "--format", "json"]));
    assert_eq!(code, 0, "{err}");
    out.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

/// Goal: resolve follows the existing records, and causes a refusal where none exists, on either
/// side; from there the transfer takes its usual way. Method: one commit of the transfer is
/// blocked, so that it rests in each state of [`CASES`]; resolve; unlock in time.
#[test]
fn a_resolve_catches_up_and_then_refuses_what_is_not_decided() {
    for Case { way, held, rests, ends, spot } in CASES {
        let site = site(false);
        let server = begin(&site);
        let hold = site.hold(STATE, held);
        let req_id = stick(&site, &server, way, "stuck", rests);
        let answered = resolve_and_release(&server, &req_id, hold).expect("an answer");
        assert_eq!(answered.status, 200, "{way:?} {held}: {answered:?}");
        site.wait_for_rest();
        assert_resolved(&site, &server, way, "stuck", &req_id, ends);
        let records: Vec<(String, bool)> = dump(&site, &req_id)
            .iter()
            .map(|record| (text(&record["op"]).to_owned(), record.to_string().contains(CODE)))
            .collect();
        let want: Vec<(String, bool)> =
            spot.iter().map(|(op, by)| ((*op).to_owned(), *by)).collect();
        assert_eq!(records, want, "{way:?} {held}");
        server.kill();
        let server = site.start();
        assert_resolved(&site, &server, way, "stuck", &req_id, ends);
    }
}

/// Goal: a recorded success wins, and the operator gets that answer. Method: a transfer with
/// UBSCore's credit and a blocked final write, fused and not; one that ended long ago; one in a
/// refund for another reason.
#[test]
fn a_success_that_is_recorded_cannot_be_resolved() {
    for fuse in [true, false] {
        let site = site(fuse);
        let server = begin(&site);
        let hold = site.hold(STATE, "NEW.state = 40");
        let reply = server.post(USER, &Way::ToSpot.body_with_cid("USDT", "12", "credited"));
        let req_id = reply.req_id();
        for _ in 0..2 {
            let answered = resolve(&server, &req_id);
            assert_refused(&answered, 409, "NOT_RESOLVABLE");
            assert_eq!(answered.json()["state"], json!("COMMITTED"), "{answered:?}");
        }
        hold.release();
        site.wait_for_rest();
        let answered = resolve(&server, &req_id);
        assert_refused(&answered, 409, "NOT_RESOLVABLE");
        assert_eq!(
            (&answered.json()["req_id"], &answered.json()["state"]),
            (&json!(req_id), &json!("COMMITTED"))
        );
        // A retry has no effect, and the answer names the reason.
        let answered = attend(&server, &req_id, "retry");
        assert_refused(&answered, 409, "NOT_RESOLVABLE");
        assert_eq!(answered.json()["state"], json!("COMMITTED"), "{answered:?}");
        assert_eq!(server.usdt(USER), Balance::at_rest(9_938 * COIN, 62 * COIN));
        site.sql("DROP TRIGGER hold ON transfers_tb");

        server.set_status(USER, "SPOT", "DISABLED");
        let hold = site.hold_decision(Op::Refund);
        let refunding = stick(&site, &server, Way::ToSpot, "refused", "-20");
        let answered = resolve(&server, &refunding);
        assert_refused(&answered, 409, "NOT_RESOLVABLE");
        assert_eq!(answered.json()["state"], json!("COMPENSATING"), "{answered:?}");
        let shown = show(&server, &refunding);
        assert_eq!(shown["waits_for"], json!({"account": "FUNDING", "op": "REFUND"}));
        hold.release();
        site.wait_for_rest();
        server.set_status(USER, "SPOT", "ACTIVE");
        assert_refused(&resolve(&server, &refunding), 409, "NOT_RESOLVABLE");
        site.assert_in_order(&server);
    }
}

/// Goal: the first record wins, and each answer agrees with it. Method: 24 transfers meet a locked
/// row; they are resolved one after the other, and the lock goes in the middle.
#[test]
fn a_late_success_and_a_resolve_never_both_count() {
    const CROWD: usize = 24;
    for fuse in [true, false] {
        let site = site(fuse);
        let server = begin(&site);
        let lock = site.lock_usdt(&[USER]);
        let answered = thread::scope(|scope| {
            // A request that was not accepted before the first blocked one waits behind it until
            // the lock goes.
            scope.spawn(|| {
                thread::sleep(Duration::from_millis(600));
                lock.sql("ROLLBACK");
            });
            crowd(CROWD, |index| {
                let cid = format!("race-{index}");
                let body = Way::ToFunding.body_with_cid("USDT", "2", &cid);
                let name = server.post_held(&site, USER, &body);
                thread::sleep(Duration::from_millis(40 * index as u64));
                let answered = resolve(&server, &name);
                (name, answered)
            })
        });
        site.wait_for_rest();
        let mut resolved = 0;
        for (name, answered) in &answered {
            let shown = show(&server, name);
            let end = (answered.status, text(&shown["state"]));
            resolved += u128::from(end.0 == 200);
            // FAILED: UBSCore had not decided yet.
            let ends = [(200, "ROLLED_BACK"), (200, "FAILED"), (409, "COMMITTED")];
            assert!(ends.contains(&end), "{answered:?} {shown}");
        }
        println!("fuse {fuse}: {resolved} of {CROWD} resolved");
        let back = (24 - resolved) * 2;
        let want = Balance::at_rest((9_950 + back) * COIN, (50 - back) * COIN);
        assert_eq!(server.usdt(USER), want);
        site.assert_in_order(&server);
    }
}

/// Goal: a death at any moment of a resolve leaves one end, and no money in two places. Method:
/// SIGKILL some milliseconds after the request, with Funding's row locked; a start; unlock; the
/// recorded decision has won.
#[test]
fn a_kill_in_a_resolve_leaves_one_end() {
    let site = site(true);
    let mut server = begin(&site);
    server.transfer_accepted(USER, Way::ToSpot, "100");
    site.wait_for_rest();
    for round in 0..8_u64 {
        let cid = format!("killed-{round}");
        let lock = site.lock_usdt(&[USER]);
        let req_id = stick(&site, &server, Way::ToFunding, &cid, "30");
        let path = format!("{LIST}/{req_id}/resolve");
        let (token, body) = (token(ADMIN, Some(Role::Admin)), json!({"reason": "a test"}));
        let ops = server.ops;
        let answered = thread::scope(|scope| {
            let resolving = scope.spawn(|| {
                send(ops, &Request { body: Some(&body), ..Request::new(&token, "POST", &path) })
            });
            thread::sleep(Duration::from_millis(round * 40));
            server.kill();
            resolving.join().expect("no panic")
        });
        lock.sql("ROLLBACK");
        server = site.start();
        site.wait_for_rest();
        let again = resolve(&server, &req_id);
        let shown = show(&server, &req_id);
        let end = (again.status, text(&shown["state"]));
        println!("round {round}: answered {}, {end:?}", answered.is_ok());
        assert!([(200, "ROLLED_BACK"), (409, "COMMITTED")].contains(&end), "{again:?} {shown}");
        if let Ok(answered) = answered {
            assert_eq!(answered.status, again.status, "{answered:?} {again:?}");
        }
        site.assert_in_order(&server);
    }
}

/// Goal: a refusal that UBSCore has recorded without an answer holds after a start. Method: a death
/// at each crash point of a refusal, before its append and after; both ways.
#[cfg(feature = "crash")]
#[test]
fn a_death_between_the_refusal_and_its_answer_changes_nothing_of_it() {
    for Case { way, held, rests, ends, .. } in CASES.into_iter().take(2) {
        for (point, lives_on) in [
            ("engine_before_append", false),
            ("engine_after_sync", true),
            ("coordinator_after_ask", true),
        ] {
            let site = site(false).with("UBSCORE__ENGINE__IDLE_MARK_MS", 10_000);
            begin(&site).stop();
            let hold = site.hold(STATE, held);
            let mut dying = site.clone().with("UBSCORE_CRASH", point).start();
            let req_id = stick(&site, &dying, way, "stuck", rests);
            let answered = resolve_and_release(&dying, &req_id, hold);
            assert!(answered.is_err(), "{point}: {answered:?}");
            let (status, lines) = dying.wait();
            assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(9), "{lines}");
            let server = site.start();
            site.wait_for_rest();
            if lives_on {
                assert_resolved(&site, &server, way, "stuck", &req_id, ends);
            } else {
                // It was never recorded, so the resolve had no effect.
                assert_eq!(text(&show(&server, &req_id)["state"]), "COMMITTED", "{point}");
                assert_refused(&resolve(&server, &req_id), 409, "NOT_RESOLVABLE");
                site.assert_in_order(&server);
            }
        }
    }
}

/// Goal: `| head` is not a failure, and the exit code of a pending approval does not depend on a
/// reader. Method: a pipe with a reader that has gone before the first write.
#[test]
fn a_command_whose_reader_has_gone_ends_quietly() {
    let site = site(true).with("UBSCORE__APPROVAL__REQUIRED", "resume");
    let server = begin(&site);
    let halt = server.admin("POST", "/admin/v1/halt", &json!({"reason": "a test"}));
    assert_eq!(halt.status, 200, "{halt:?}");
    let ops = format!("http://{}/", server.ops);
    let access = format!(" --ops {ops} --dev");
    let data_dir = site.data_dir.display();
    let statement =
        format!("statement --user {USER} --dev --data-dir {data_dir} --postgres {}", site.url());
    for (line, code) in [
        ("completions bash".to_owned(), 0),
        ("man".to_owned(), 0),
        (format!("transfer list --ended --user-id 1001{access}"), 0),
        (format!("pauses{access}"), 0),
        (statement.clone(), 0),
        (format!("{statement} --format json"), 0),
        (format!("resume --reason over{access}"), 3),
        (format!("transfer show 01JFVQ2X8Z0Y1M3N4P5R6S7T8V{access}"), 1),
    ] {
        let (reader, writer) = io::pipe().expect("a pipe");
        drop(reader);
        let mut command = Command::new(env!("CARGO_BIN_EXE_ubscore"));
        let output = patient(&mut command)
            .args(line.split(' '))
            .stdout(writer)
            .output()
            .expect("the binary");
        let (got, _, err) = said(&output);
        assert_eq!((got, err.is_empty()), (code, code != 1), "{line}: {err}");
    }
    server.stop();
}

/// Goal: a retried transfer is due at once, with any back-off. Method: back-offs of up to a minute;
/// a lock that has gone meanwhile.
#[test]
fn a_retry_is_due_at_once() {
    for fuse in [true, false] {
        let site = site(fuse)
            .with("UBSCORE__COORDINATOR__BACKOFF_BASE_MS", 60_000)
            .with("UBSCORE__COORDINATOR__BACKOFF_CAP_MS", 60_000);
        let server = begin(&site);
        let lock = site.lock_usdt(&[USER]);
        let req_id = stick(&site, &server, Way::ToFunding, "late", "30");
        // Any back-off up to the longest is equally likely.
        let far = || {
            let at: Timestamp = text(&show(&server, &req_id)["next_retry_at"]).parse().ok()?;
            let left = at.as_second() - Timestamp::now().as_second();
            (left > 15).then_some(())
        };
        eventually("a try that is far away", || {
            let shown = show(&server, &req_id);
            shown["next_retry_at"].is_string().then(far).flatten()
        });
        lock.sql("ROLLBACK");
        let answered = attend(&server, &req_id, "retry");
        assert_eq!(answered.status, 200, "{answered:?}");
        // Too early for the back-off's own end.
        let (session, asked) = (site.session(), Instant::now());
        while asked.elapsed() < Duration::from_secs(14)
            && session.sql("SELECT state FROM transfers WHERE cid = 'late'") != [["40"]]
        {
            thread::sleep(Duration::from_millis(10));
        }
        assert_eq!(site.commits(&req_id).last().expect("some").split(' ').next_back(), Some("40"));
        let audited =
            "SELECT actor, detail, reason FROM admin_audit WHERE action = 'transfer retry'";
        let want = [format!("admin/{ADMIN}"), "TARGET_PENDING".to_owned(), "a test".to_owned()];
        assert_eq!(site.sql(audited), [want]);
        site.assert_in_order(&server);
    }
}

#[test]
fn only_an_operator_with_a_reason_attends_to_a_transfer_and_only_while_it_runs() {
    let site = site(true);
    let server = begin(&site);
    let lock = site.lock_usdt(&[USER]);
    let req_id = stick(&site, &server, Way::ToFunding, "stuck", "30");
    let user = token(USER, None);
    let body = json!({"reason": "mine"});
    for (method, path) in [
        ("GET", LIST.to_owned()),
        ("GET", format!("{LIST}/{req_id}")),
        ("POST", format!("{LIST}/{req_id}/retry")),
        ("POST", format!("{LIST}/{req_id}/resolve")),
    ] {
        let body = (method == "POST").then_some(&body);
        let request = Request { body, ..Request::new(&user, method, &path) };
        assert_refused(&send(server.ops, &request).expect("an answer"), 403, "FORBIDDEN");
        let nobody = Request { token: "", ..request };
        assert_refused(&send(server.ops, &nobody).expect("an answer"), 401, "UNAUTHORIZED");
    }
    for action in ["retry", "resolve"] {
        let path = format!("{LIST}/{req_id}/{action}");
        for bad in [json!({}), json!({"reason": " "}), json!({"reason": "x", "force": true})] {
            assert_refused(&server.admin("POST", &path, &bad), 400, "INVALID_REQUEST");
        }
        for unknown in ["01JFVQ2X8Z0Y1M3N4P5R6S7T8V", "x"] {
            assert_refused(&attend(&server, unknown, action), 404, "TRANSFER_NOT_FOUND");
        }
        assert_refused(&server.admin_get(&path), 405, "METHOD_NOT_ALLOWED");
    }
    for unknown in ["01JFVQ2X8Z0Y1M3N4P5R6S7T8V", "x"] {
        assert_refused(&server.admin_get(&format!("{LIST}/{unknown}")), 404, "TRANSFER_NOT_FOUND");
    }
    for bad in [
        "stuck=yes",
        "state=GONE",
        "state=committed",
        "user=x",
        "limit=0",
        "limit=1001",
        "cursor=x",
        "page=1",
        "limit=1&limit=2",
        "stuck=true&state=COMMITTED",
    ] {
        assert_refused(&server.admin_get(&format!("{LIST}?{bad}")), 400, "INVALID_REQUEST");
    }
    let halted = server.admin("POST", "/admin/v1/halt", &json!({"reason": "a test"}));
    assert_eq!(halted.status, 200, "{halted:?}");
    for action in ["retry", "resolve"] {
        assert_refused(&attend(&server, &req_id, action), 503, "SERVICE_HALTED");
    }
    assert_eq!(list(&server, "").len(), 1);
    assert_eq!(show(&server, &req_id)["state"], json!("TARGET_PENDING"));
    let done = "SELECT count(*) FROM admin_audit WHERE action LIKE 'transfer %'";
    assert_eq!(site.sql_value(done), "0");
    let resumed = server.resume("a test");
    assert_eq!(resumed.status, 200, "{resumed:?}");
    assert_resolved(&site, &server, Way::ToFunding, "stuck", &req_id, "ROLLED_BACK");
    lock.sql("ROLLBACK");
    site.assert_in_order(&server);
}

/// A list continues after the last page, in spite of new transfers.
#[test]
fn a_list_is_answered_in_pages() {
    let site = site(true);
    let server = begin(&site);
    // One each: a user's next request waits behind the blocked one.
    let users = [USER, 2001, 2002, 2003, 2004];
    for user in &users[1..] {
        server.transfer_accepted(USER, Way::ToSpot, "1");
        server.deposit(*user, "USDT", "1");
        server.transfer_accepted(*user, Way::ToSpot, "1");
    }
    site.wait_for_rest();
    let lock = site.lock_usdt(&users);
    crowd(users.len(), |index| {
        let body = Way::ToFunding.body_with_cid("USDT", "1", &format!("page-{index}"));
        server.post_held(&site, users[index], &body);
    });
    for (filter, count) in [("", 5), ("state=COMMITTED&", 9), ("state=COMMITTED&user=1001&", 5)] {
        let whole = list(&server, filter);
        assert_eq!(whole.len(), count, "{filter}");
        let (mut pages, mut cursor) = (Vec::new(), String::new());
        loop {
            let reply = server.admin_get(&format!("{LIST}?{filter}limit=2{cursor}"));
            let json = reply.json();
            pages.extend(json["transfers"].as_array().expect("an array").clone());
            match json["next_cursor"].as_str() {
                Some(next) => cursor = format!("&cursor={next}"),
                None => break,
            }
        }
        let names = |rows: &[Value]| -> Vec<Value> {
            rows.iter().map(|row| row["req_id"].clone()).collect()
        };
        assert_eq!(names(&pages), names(&whole), "{filter}");
    }
    let newest: Vec<Value> = list(&server, "").iter().map(|row| row["req_id"].clone()).collect();
    let order = "SELECT req_id FROM transfers WHERE cid LIKE 'page-%' ORDER BY order_number DESC";
    let want: Vec<Value> = site.sql(order).iter().map(|row| json!(row[0])).collect();
    assert_eq!(newest, want);
    lock.sql("ROLLBACK");
    site.wait_for_rest();
    assert_eq!(list(&server, ""), Vec::<Value>::new());
}

/// Goal: everything above from the command line, with reliable exit codes.
#[test]
fn the_command_line_finds_shows_tries_and_ends_transfers() {
    let site = site(true);
    let server = begin(&site);
    let ops = format!("http://{}/", server.ops);
    let on = |line: &str, reason: &[&str]| {
        let mut arguments: Vec<&str> = line.split(' ').collect();
        arguments.extend(["--ops", &ops, "--dev", "--as", "77"]);
        arguments.extend(reason);
        said(&cli(&arguments))
    };
    let why = &["--reason", "it is late"][..];
    assert_eq!(on("transfer list", &[]), (0, "no open transfers\n".to_owned(), String::new()));
    let lock = site.lock_usdt(&[USER]);
    let req_id = stick(&site, &server, Way::ToFunding, "stuck", "30");

    let (code, out, err) = eventually("the stuck transfer", || {
        let answered =
            on("transfer list --stuck --state target_pending --user-id 1001 --limit 5", &[]);
        answered.1.contains("FUNDING DEPOSIT").then_some(answered)
    });
    assert_eq!((code, err.as_str()), (0, ""));
    println!("{out}");
    let lines: Vec<&str> = out.lines().collect();
    assert_eq!(lines.len(), 2, "{out}");
    let head: Vec<&str> = lines[0].split_whitespace().collect();
    assert_eq!(
        head.join(" "),
        "REQ_ID CREATED AGE STATE DIRECTION USER ASSET AMOUNT TRIES WAITS FOR LAST ERROR CID"
    );
    let cells: Vec<&str> = lines[1].split_whitespace().collect();
    assert_eq!((cells[0], cells[3]), (&*req_id, "TARGET_PENDING"), "{out}");
    assert!(lines[1].contains("SPOT->FUNDING  1001  USDT   12"), "{out}");
    let (_, out, _) = on("transfer list --format json", &[]);
    let row: Value = serde_json::from_str(out.trim()).expect("one JSON object");
    assert_eq!(row["req_id"], json!(req_id));
    let (code, out, err) = on("transfer list --state COMMITTED --limit 1", &[]);
    assert_eq!(code, 0, "{out}");
    assert!(err.contains("there may be more: --cursor "), "{err}");

    let (code, out, err) = on(&format!("transfer show {req_id}"), &[]);
    assert_eq!((code, err.as_str()), (0, ""));
    println!("{out}");
    for part in ["waits for FUNDING DEPOSIT", "The money is in flight.", "SOURCE_DONE", "WITHDRAW"]
    {
        assert!(out.contains(part), "{part}: {out}");
    }
    let (_, out, _) = on(&format!("transfer show {req_id} --format json"), &[]);
    let shown: Value = serde_json::from_str(&out).expect("JSON");
    assert_eq!(shown["req_id"], json!(req_id));

    let (code, out, err) = on(&format!("transfer retry {req_id}"), why);
    assert_eq!((code, err.as_str()), (0, ""));
    assert!(out.starts_with(&format!("due now: {req_id}: TARGET_PENDING")), "{out}");
    let (code, out, err) = on(&format!("transfer resolve {req_id}"), why);
    assert_eq!((code, err.as_str()), (0, ""));
    assert!(out.starts_with(&format!("resolved: {req_id}: ")), "{out}");
    site.wait_for_rest();
    let (code, out, _) = on(&format!("transfer resolve {req_id}"), why);
    assert_eq!(code, 0);
    assert_eq!(out, format!("resolved: {req_id}: ROLLED_BACK. The money is at the source.\n"));
    lock.sql("ROLLBACK");
    let committed = list(&server, "state=COMMITTED")[0]["req_id"].clone();
    let (code, out, err) = on(&format!("transfer resolve {}", text(&committed)), why);
    assert_eq!((code, out.as_str()), (1, ""));
    assert!(err.contains("resolve refused: NOT_RESOLVABLE: "), "{err}");
    let (code, _, err) = on("transfer show 01JFVQ2X8Z0Y1M3N4P5R6S7T8V", &[]);
    assert_eq!(code, 1);
    assert!(err.contains("TRANSFER_NOT_FOUND"), "{err}");
    let actors = "SELECT DISTINCT actor, reason FROM admin_audit WHERE action LIKE 'transfer %'";
    assert_eq!(site.sql(actors), [["admin/77".to_owned(), "it is late".to_owned()]]);

    let frozen = (0, "FUNDING of 1001: FROZEN\nSPOT of 1001: FROZEN\n".to_owned(), String::new());
    assert_eq!(on("account freeze 1001", why), frozen);
    for way in Way::BOTH {
        assert_refused(&server.transfer_ended(USER, way, "1"), 422, "ACCOUNT_FROZEN");
    }
    let one = (0, "SPOT of 1001: ACTIVE\n".to_owned(), String::new());
    assert_eq!(on("account unfreeze 1001 --account spot", why), one);
    server.transfer_accepted(USER, Way::ToFunding, "1");
    assert_eq!(on("account disable 1001 --account FUNDING", why).0, 0);
    assert_refused(&server.transfer_ended(USER, Way::ToSpot, "1"), 422, "ACCOUNT_DISABLED");
    assert_eq!(on("account unfreeze 1001", why).0, 0);

    let (code, out, err) =
        on("asset set USDT --status SUSPENDED --transfer-enabled false --min 0.5 --max 70", why);
    assert_eq!((code, err.as_str()), (0, ""));
    assert_eq!(out, "USDT: SUSPENDED, transfers not enabled, 0.5 to 70 at a time\n");
    assert_refused(&server.transfer(USER, Way::ToSpot, "1"), 422, "ASSET_SUSPENDED");
    assert_eq!(on("asset set USDT --status active --transfer-enabled true", why).0, 0);
    assert_refused(&server.transfer(USER, Way::ToSpot, "71"), 422, "AMOUNT_TOO_LARGE");
    let (code, _, err) = on("asset set NONE --min 1", why);
    assert_eq!(code, 1);
    assert!(err.contains("NONE refused: INVALID_ASSET: "), "{err}");
    assert_eq!(on("asset set USDT", why).0, 2);
    assert_eq!(on("transfer retry nobody", why).0, 2);
    site.wait_for_rest();
    site.assert_in_order(&server);
    server.stop();
    let (code, _, err) = on("transfer list", &[]);
    assert_eq!(code, 1);
    assert!(err.contains("is the service running there?"), "{err}");
}

/// Goal: a script can read the answer of every operator command. Method: each with `--format json`,
/// one object per line.
#[test]
fn every_command_writes_json() {
    let site = site(true);
    let server = begin(&site);
    let ops = format!("http://{}/", server.ops);
    let lock = site.lock_usdt(&[USER]);
    let req_id = stick(&site, &server, Way::ToFunding, "stuck", "30");
    let json = |line: &str, more: &[&str]| -> Vec<Value> {
        let mut arguments: Vec<&str> = line.split(' ').collect();
        arguments.extend(["--format", "json", "--ops", &ops, "--dev"]);
        arguments.extend(more);
        let (code, out, err) = said(&cli(&arguments));
        assert_eq!((code, err.as_str()), (0, ""), "{line}: {out}");
        out.lines().map(|line| serde_json::from_str(line).expect("an object a line")).collect()
    };
    let why = &["--reason", "a test"][..];
    for action in ["retry", "resolve"] {
        let answered = json(&format!("transfer {action} {req_id}"), why);
        assert_eq!((answered.len(), &answered[0]["req_id"]), (1, &json!(req_id)), "{action}");
    }
    lock.sql("ROLLBACK");
    site.wait_for_rest();
    for (line, status) in [("account freeze 1001", "FROZEN"), ("account unfreeze 1001", "ACTIVE")] {
        let answered = json(line, why);
        let statuses: Vec<&str> = answered.iter().map(|account| text(&account["status"])).collect();
        assert_eq!(statuses, [status; 2], "{line}");
        assert_eq!(answered[1]["account_type"], json!("SPOT"));
    }
    assert_eq!(json("asset set USDT --min 0.5", why)[0]["min"], json!("0.5"));
    assert_eq!(json("pause --asset BTC", why)[0]["paused"], json!(true));
    assert_eq!(json("pauses", &[])[0]["asset"], json!("BTC"));
    assert_eq!(json("unpause --asset BTC", why)[0]["pauses"], json!([]));
    assert_eq!(json("halt", why)[0]["halted"], json!(true));
    assert_eq!(json("resume", why)[0]["halted"], json!(false));
    assert_eq!(json("approval list", &[]), Vec::<Value>::new());
    site.assert_in_order(&server);
}
