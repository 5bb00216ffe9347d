//! Actions that need two operators: one asks, another one approves, and the action is done once.

use std::fs;

use serde_json::{Value, json};
use ubscore::http::auth::Role;

use crate::harness::{
    Balance, COIN, Reply, Request, Server, Session, Site, Way, assert_refused, cli, crowd,
    eventually, external, repair, said, send, text, token,
};

const USER: u64 = 1001;
const NEW: u64 = 5005;
const MAKER: u64 = 9_001;
const APPROVER: u64 = 9_002;
const DEPOSITS: &str = "/admin/v1/deposits";
const APPROVALS: &str = "/admin/v1/approvals";
const RESUME: &str = "/admin/v1/resume";
const REQUIRED: &str = "UBSCORE__APPROVAL__REQUIRED";

/// A site on which every such action needs two operators.
fn site() -> Site {
    Site::new()
        .with(REQUIRED, "resolve, repair, resume, external")
        .with("UBSCORE__POSTGRES__LOCK_TIMEOUT_MS", 100)
        .with("UBSCORE__HTTP__TRANSFER_WAIT_MS", 300)
}

/// A request with a body as one of the operators; its answer, if the server lives to send it.
fn try_post(server: &Server, who: u64, path: &str, body: &Value) -> std::io::Result<Reply> {
    let token = token(who, Some(Role::Admin));
    send(server.ops, &Request { body: Some(body), ..Request::new(&token, "POST", path) })
}

fn post(server: &Server, who: u64, path: &str, body: &Value) -> Reply {
    try_post(server, who, path, body).expect("an answer")
}

/// The approval's name in an answer that waits for another operator.
fn pending(reply: &Reply, action: &str) -> String {
    assert_eq!(reply.status, 202, "{reply:?}");
    let json = reply.json();
    let fields = [text(&json["action"]), text(&json["state"])];
    assert_eq!(fields, [action, "PENDING_APPROVAL"], "{reply:?}");
    assert!(json["expires_at"].is_string(), "{reply:?}");
    text(&json["approval_id"]).to_owned()
}

fn decide(server: &Server, who: u64, id: &str, action: &str) -> Reply {
    let reason = format!("{action} by {who}");
    post(server, who, &format!("{APPROVALS}/{id}/{action}"), &json!({"reason": reason}))
}

/// Approves, and asks again while PostgreSQL is too slow for it.
fn approve(server: &Server, id: &str) -> Reply {
    eventually("a decision", || {
        let reply = decide(server, APPROVER, id, "approve");
        let slow = reply.status == 503 && reply.json()["code"] == json!("SYSTEM_ERROR");
        (!slow).then_some(reply)
    })
}

/// Asks for a deposit of 3 coins, the standard request of these tests.
fn ask(server: &Server, idem_key: &str) -> String {
    let reply = post(server, MAKER, DEPOSITS, &external(NEW, "USDT", "3", idem_key));
    pending(&reply, "external")
}

fn list(server: &Server, query: &str) -> Vec<Value> {
    let reply = server.admin_get(&format!("{APPROVALS}{query}"));
    assert_eq!(reply.status, 200, "{reply:?}");
    reply.json()["approvals"].as_array().expect("an array").clone()
}

/// The row of an approval: its state, and whether it was carried out.
fn row(site: &Site, id: &str) -> [String; 2] {
    let find = format!(
        "SELECT state, carried_out_at IS NOT NULL FROM approvals_tb WHERE approval_id = '{id}'"
    );
    let row = site.sql(&find).remove(0);
    [row[0].clone(), row[1].clone()]
}

/// The audit rows in order: actor, action and reason. Rows without an operator are left out.
fn audit(site: &Site) -> Vec<String> {
    let rows = "SELECT actor, action, subject, reason FROM admin_audit \
                WHERE actor LIKE 'admin/%' ORDER BY id";
    site.sql(rows).into_iter().map(|row| row.join(" | ")).collect()
}

/// A transfer of 12 coins with a deposit that Funding does not decide, and the session that blocks
/// it.
fn stick(site: &Site, server: &Server) -> (String, Session) {
    server.transfer_accepted(USER, Way::ToSpot, "50");
    site.wait_for_rest();
    let lock = site.lock_usdt(&[USER]);
    let body = Way::ToFunding.body_with_cid("USDT", "12", "stuck");
    let reply = server.post_pending(USER, &body);
    let state = format!("SELECT state FROM transfers WHERE req_id = '{}'", reply.req_id());
    eventually("it rests", || (site.sql_value(&state) == "30").then_some(()));
    (reply.req_id(), lock)
}

/// Goal: money enters once, after two people have approved it, for any number of requests and
/// approvals. Method: repeated requests; approvals by every caller but another operator; a crowd
/// of other operators at once; again later.
#[test]
fn money_from_outside_waits_for_another_operator_and_enters_once() {
    let site = site();
    let server = site.start();
    let body = external(NEW, "USDT", "3", "in-1");
    let id = ask(&server, "in-1");
    for amount in ["3", "3.00", "03"] {
        let again = post(&server, MAKER, DEPOSITS, &external(NEW, "USDT", amount, "in-1"));
        assert_eq!(pending(&again, "external"), id);
    }
    for other in [external(NEW, "USDT", "4", "in-1"), external(USER, "USDT", "3", "in-1")] {
        assert_refused(&post(&server, MAKER, DEPOSITS, &other), 409, "IDEM_KEY_CONFLICT");
    }
    let out = post(&server, MAKER, "/admin/v1/withdrawals", &body);
    assert_refused(&out, 409, "IDEM_KEY_CONFLICT");
    assert_eq!(server.usdt(NEW), Balance { funding: None, spot: None, in_flight: 0 });

    let waiting = list(&server, "?state=PENDING_APPROVAL");
    assert_eq!(waiting.len(), 1, "{waiting:?}");
    let want = json!({"op": "EXT_DEPOSIT", "user_id": NEW, "asset": "USDT", "amount": "3", "idem_key": "in-1"});
    assert_eq!((&waiting[0]["request"], &waiting[0]["maker"]), (&want, &json!(MAKER)));

    let own = decide(&server, MAKER, &id, "approve");
    assert_refused(&own, 403, "FORBIDDEN");
    assert!(text(&own.json()["message"]).contains("another operator"), "{own:?}");
    let user = token(APPROVER, None);
    for (method, path) in
        [("GET", APPROVALS.to_owned()), ("POST", format!("{APPROVALS}/{id}/approve"))]
    {
        let why = json!({"reason": "a test"});
        let body = (method == "POST").then_some(&why);
        let request = Request { body, ..Request::new(&user, method, &path) };
        assert_refused(&send(server.ops, &request).expect("an answer"), 403, "FORBIDDEN");
    }
    assert_eq!(row(&site, &id), ["1", "f"]);

    let done =
        json!({"idem_key": "in-1", "outcome": "SUCCESS", "code": null, "balance_after": "3"});
    let crowd_of = 10;
    let replies = crowd(crowd_of, |index| {
        decide(&server, APPROVER + u64::try_from(index).expect("small"), &id, "approve")
    });
    for reply in &replies {
        assert_eq!((reply.status, reply.json()), (200, done.clone()), "{reply:?}");
    }
    assert_eq!(approve(&server, &id).json(), done);
    // The deposit is recorded by now, so each operator gets its result.
    for who in [MAKER, APPROVER] {
        let reply = post(&server, who, DEPOSITS, &body);
        assert_eq!((reply.status, reply.json()), (200, done.clone()));
    }
    assert_eq!(row(&site, &id), ["2", "t"]);
    let decider = list(&server, "?state=APPROVED")[0]["decider"].clone();
    let both = format!("admin/{MAKER}, approved by admin/{decider}");
    assert_eq!(
        audit(&site),
        [
            format!("admin/{MAKER} | approval asked | external in-1 | no reason given"),
            format!("admin/{decider} | approval approved | external in-1 | approve by {decider}"),
            format!("{both} | deposit | {NEW} | external"),
        ]
    );
    assert_eq!(server.usdt(NEW).sum(), 3 * COIN);
    site.assert_in_order(&server);
}

/// Goal: a transfer is ended after two people have approved it, and both are recorded. Method: a
/// transfer that Funding does not decide; requested, approved by its maker, by another operator,
/// and again.
#[test]
fn a_transfer_is_resolved_by_two() {
    let site = site();
    let server = site.start();
    let (req_id, lock) = stick(&site, &server);
    let path = format!("/admin/v1/transfers/{req_id}/resolve");
    let why = json!({"reason": "it hangs"});
    let id = pending(&post(&server, MAKER, &path, &why), "resolve");
    let again = post(&server, MAKER, &path, &json!({"reason": "it still hangs"}));
    assert_eq!(pending(&again, "resolve"), id);
    // The request of another operator is another approval.
    let other = pending(&post(&server, APPROVER, &path, &why), "resolve");
    assert_ne!(other, id);
    assert_eq!(list(&server, "?state=PENDING_APPROVAL").len(), 2);
    assert_refused(&decide(&server, MAKER, &id, "approve"), 403, "FORBIDDEN");
    let state = format!("SELECT state FROM transfers WHERE req_id = '{req_id}'");
    assert_eq!(site.sql_value(&state), "30");

    let reply = approve(&server, &id);
    assert_eq!((reply.status, &reply.json()["req_id"]), (200, &json!(req_id)), "{reply:?}");
    site.wait_for_rest();
    lock.sql("ROLLBACK");
    for id in [&id, &other] {
        let who = if *id == other { MAKER } else { APPROVER };
        let reply = decide(&server, who, id, "approve");
        assert_eq!((reply.status, &reply.json()["state"]), (200, &json!("ROLLED_BACK")));
    }
    // No decision is left to approve: the answer comes at once.
    let reply = post(&server, MAKER, &path, &why);
    assert_eq!((reply.status, &reply.json()["state"]), (200, &json!("ROLLED_BACK")), "{reply:?}");
    let actions = format!(
        "SELECT actor, reason FROM admin_audit WHERE action = 'transfer resolve' AND subject = '{req_id}'"
    );
    let actor = format!("admin/{MAKER}, approved by admin/{APPROVER}");
    assert_eq!(site.sql(&actions), [[actor, "it hangs".to_owned()]]);
    assert_eq!(server.usdt(USER), Balance::at_rest(9_950 * COIN, 50 * COIN));
    site.assert_in_order(&server);
}

/// Goal: an approved resume ends the halt that it was requested for, and no later one, for any
/// number of approvals; a halt never waits. Method: halt, request, approve; halt again, the same
/// approval; a halt between the request and the approval.
#[test]
fn a_resume_by_two_ends_one_halt_and_no_other() {
    let site = site();
    let server = site.start();
    let why = json!({"reason": "all is well"});
    let running = (200, json!({"halted": false}));
    let nothing_to_do = (200, json!({"halted": false, "was_halted": false}));
    let resume = |who| post(&server, who, RESUME, &why);
    let answer_of = |reply: Reply| (reply.status, reply.json());
    let halt = |reason: &str| {
        eventually("a halt that PostgreSQL knows", || {
            let reply = post(&server, MAKER, "/admin/v1/halt", &json!({"reason": reason}));
            assert_eq!(reply.status, 200, "{reply:?}");
            (reply.json()["in_postgres"] == json!(true)).then_some(())
        });
    };
    assert_eq!(answer_of(resume(MAKER)), nothing_to_do, "there is nothing to approve");
    halt("one");
    let first = pending(&resume(MAKER), "resume");
    assert_eq!(pending(&resume(MAKER), "resume"), first);
    assert_eq!(server.ready(), 503);
    assert_refused(&decide(&server, MAKER, &first, "approve"), 403, "FORBIDDEN");
    assert_eq!(answer_of(approve(&server, &first)), running);
    assert_eq!(server.ready(), 200);
    assert_eq!(answer_of(approve(&server, &first)), nothing_to_do);

    halt("two");
    assert_refused(&approve(&server, &first), 503, "SERVICE_HALTED");
    let second = pending(&resume(MAKER), "resume");
    assert_ne!(second, first);
    halt("three, while two is still in force");
    let refused = approve(&server, &second);
    assert_refused(&refused, 503, "SERVICE_HALTED");
    assert!(text(&refused.json()["message"]).contains("halted again"), "{refused:?}");
    assert_eq!((server.ready(), row(&site, &second)), (503, ["2".to_owned(), "f".to_owned()]));
    let third = pending(&resume(MAKER), "resume");
    server.kill();
    let server = site.start();
    assert_eq!(server.ready(), 503);
    assert_eq!(answer_of(approve(&server, &third)), running);
    server.transfer_accepted(USER, Way::ToSpot, "1");
    site.wait_for_rest();
    site.assert_in_order(&server);
}

/// Goal: a rejected or expired request is never carried out, and its state shows why. Method: each
/// decision after each other; real expiry, and expiry set by hand if a step has to come before.
#[test]
fn what_is_rejected_or_has_expired_is_never_done() {
    let site = site();
    let hasty = site.clone().with("UBSCORE__APPROVAL__EXPIRES_AFTER_MS", 1_000).start();
    let late = ask(&hasty, "late");
    eventually("it has expired", || list(&hasty, "?state=EXPIRED").pop());
    hasty.kill();
    let server = site.start();
    // Rejected by its maker, which takes it back, and by another operator.
    for (who, key) in [(MAKER, "back"), (APPROVER, "no")] {
        let id = ask(&server, key);
        for _ in 0..2 {
            let reply = decide(&server, who, &id, "reject");
            assert_eq!((reply.status, &reply.json()["state"]), (200, &json!("REJECTED")));
        }
        let refused = approve(&server, &id);
        assert_refused(&refused, 409, "INVALID_REQUEST");
        assert!(text(&refused.json()["message"]).contains("REJECTED"), "{refused:?}");
    }
    for action in ["approve", "reject"] {
        let refused = decide(&server, APPROVER, &late, action);
        assert_refused(&refused, 409, "INVALID_REQUEST");
        assert!(text(&refused.json()["message"]).contains("EXPIRED"), "{refused:?}");
    }
    assert_eq!(server.usdt(NEW).sum(), 0);
    // A new request is another approval.
    let anew = ask(&server, "late");
    assert_ne!(anew, late);
    assert_eq!(approve(&server, &anew).status, 200);
    let refused = decide(&server, MAKER, &anew, "reject");
    assert_refused(&refused, 409, "INVALID_REQUEST");
    assert_eq!(approve(&server, &anew).status, 200);
    site.sql(&format!(
        "SET session_replication_role = replica; \
         UPDATE approvals_tb SET expires_at = now() WHERE approval_id = '{anew}'"
    ));
    assert_refused(&approve(&server, &anew), 409, "INVALID_REQUEST");
    assert_eq!(server.usdt(NEW).sum(), 3 * COIN);
    let unknown = approve(&server, "01JFVQ2X8Z0Y1M3N4P5R6S7T8V");
    assert_refused(&unknown, 404, "NOT_FOUND");
    assert_refused(&approve(&server, "unknown"), 404, "NOT_FOUND");
    site.assert_in_order(&server);
}

/// Goal: a wrong request is refused to its maker and never waits for approval. Method: every wrong
/// body, and a request about a halted service.
#[test]
fn a_mistake_is_answered_to_its_maker_and_waits_for_no_approval() {
    let site = site();
    let server = site.start();
    for (body, status, code) in [
        (external(0, "USDT", "1", "k"), 400, "INVALID_REQUEST"),
        (external(NEW, "NONE", "1", "k"), 400, "INVALID_ASSET"),
        (external(NEW, "USDT", "-1", "k"), 400, "INVALID_AMOUNT"),
        (external(NEW, "USDT", "1", "has space"), 400, "INVALID_REQUEST"),
        (
            json!({"user_id": NEW, "asset": "USDT", "amount": "1", "idem_key": "k", "op": "x"}),
            400,
            "INVALID_REQUEST",
        ),
    ] {
        assert_refused(&post(&server, MAKER, DEPOSITS, &body), status, code);
    }
    let resolve = |req_id: &str, why: Value| {
        post(&server, MAKER, &format!("/admin/v1/transfers/{req_id}/resolve"), &why)
    };
    let unknown = resolve("01JFVQ2X8Z0Y1M3N4P5R6S7T8V", json!({"reason": "a test"}));
    assert_refused(&unknown, 404, "TRANSFER_NOT_FOUND");
    let ended = server.transfer_committed(USER, Way::ToSpot, "1");
    assert_refused(&resolve(&ended, json!({"reason": "a test"})), 409, "NOT_RESOLVABLE");
    assert_refused(&resolve(&ended, json!({"reason": ""})), 400, "INVALID_REQUEST");
    assert_refused(&post(&server, MAKER, RESUME, &json!({"reason": ""})), 400, "INVALID_REQUEST");
    let halted = post(&server, MAKER, "/admin/v1/halt", &json!({"reason": "a test"}));
    assert_eq!(halted.status, 200, "{halted:?}");
    let body = external(NEW, "USDT", "1", "k");
    assert_refused(&post(&server, MAKER, DEPOSITS, &body), 503, "SERVICE_HALTED");
    assert_eq!(list(&server, ""), Vec::<Value>::new());
    let state = server.admin_get(&format!("{APPROVALS}?state=GONE"));
    assert_refused(&state, 400, "INVALID_REQUEST");
    site.assert_verified();
}

/// Goal: a request survives a kill. So does an approval with an action that was not carried out, or
/// was carried out and not recorded: approved again, the action is done once. Method: SIGKILL while
/// it waits, and at each point between the approval and its end.
#[cfg(feature = "crash")]
#[test]
fn an_approval_that_is_killed_anywhere_is_carried_out_once() {
    use ubscore::crash::APPROVAL_POINTS;
    for &point in APPROVAL_POINTS {
        let site = site();
        let server = site.start();
        let id = ask(&server, "in");
        server.kill();
        let mut server = site.clone().with("UBSCORE_CRASH", point).start();
        assert_eq!(list(&server, "?state=PENDING_APPROVAL").len(), 1);
        let path = format!("{APPROVALS}/{id}/approve");
        let died = try_post(&server, APPROVER, &path, &json!({"reason": "good"}));
        assert!(died.is_err(), "{point}: {died:?}");
        server.wait();
        assert_eq!(row(&site, &id), ["2", "f"], "{point}");
        let server = site.start();
        // The maker cannot finish it either, nor take it back.
        assert_refused(&decide(&server, MAKER, &id, "approve"), 403, "FORBIDDEN");
        assert_refused(&decide(&server, MAKER, &id, "reject"), 409, "INVALID_REQUEST");
        for _ in 0..2 {
            let reply = approve(&server, &id);
            assert_eq!((reply.status, &reply.json()["balance_after"]), (200, &json!("3")));
        }
        assert_eq!(row(&site, &id), ["2", "t"], "{point}");
        assert_eq!(server.usdt(NEW).sum(), 3 * COIN);
        site.assert_in_order(&server);
    }
}

/// PostgreSQL itself requires two different operators and keeps a decision.
#[test]
fn postgresql_refuses_an_approval_by_its_maker_and_another_decision() {
    let site = site();
    let server = site.start();
    let id = ask(&server, "in");
    let session = site.session();
    let set = |what: &str| format!("UPDATE approvals_tb SET {what} WHERE approval_id = '{id}'");
    let by = |who: u64, state: u8| {
        set(&format!("state = {state}, decider = {who}, decider_reason = 'x', decided_at = now()"))
    };
    assert_eq!(session.sql_refused(&by(MAKER, 2)), "23514");
    assert_eq!(session.sql_refused(&set("state = 2")), "23514");
    assert_eq!(session.sql_refused(&set("request = '{}'")), "UB003");
    assert_eq!(decide(&server, APPROVER, &id, "reject").status, 200);
    assert_eq!(session.sql_refused(&by(APPROVER, 2)), "UB003");
}

/// Goal: if two admins are required, a repair needs the tokens of both, and changes nothing without
/// them. Method: a database that lacks a transfer; every wrong pair of tokens; the right pair.
#[test]
fn a_repair_needs_the_tokens_of_two_admins() {
    let site = site();
    let server = site.start();
    server.transfer_accepted(USER, Way::ToSpot, "50");
    site.wait_for_rest();
    server.stop();
    let restored = site.with_copied_database();
    let server = site.start();
    server.transfer_accepted(USER, Way::ToSpot, "7");
    site.wait_for_rest();
    server.kill();

    let file = |name: &str, token: &str| {
        let path = site.data_dir.join(name);
        fs::write(&path, format!("{token}\n")).expect("written");
        path.to_str().expect("text").to_owned()
    };
    let admin = Some(Role::Admin);
    let one = file("one", &token(MAKER, admin));
    let other = file("other", &token(APPROVER, admin));
    let user = file("user", &token(APPROVER, None));
    let broken = file("broken", &token(APPROVER, admin).replace('.', ".x"));
    let apply = |tokens: &[&str]| {
        let mut arguments = vec!["--apply", "--reason", "a backup was restored"];
        arguments.extend(tokens);
        repair(&restored, &arguments)
    };
    let with =
        |one: &str, other: &str| apply(&["--token-file", one, "--approver-token-file", other]);
    let tables = || {
        let tables = ["admin_audit", "transfers_tb", "balances_tb", "engine_state"];
        tables.map(|table| restored.sql(&format!("TABLE {table} ORDER BY 1, 2")))
    };
    let before = tables();
    for ((code, done, why), says) in [
        (apply(&[]), "approval.required"),
        (with(&one, &one), "another admin"),
        (with(&one, &user), "not an admin's"),
        (with(&broken, &other), "the token in"),
        (with(&one, "/nowhere/at/all"), "/nowhere/at/all"),
    ] {
        assert!(code == Some(2) && done.is_empty() && why.contains(says), "{says}: {done}{why}");
    }
    assert_eq!(tables(), before);
    assert_eq!(repair(&restored, &["--plan"]).0, Some(0), "a plan needs no approval");

    let (code, done, why) = with(&one, &other);
    assert_eq!(code, Some(0), "{done}{why}");
    assert!(done.ends_with("repaired transfers=1 left=0\n"), "{done}");
    let actors = "SELECT DISTINCT actor FROM admin_audit WHERE action = 'repair'";
    let both = format!("ubscore repair by admin/{MAKER}, approved by admin/{APPROVER}");
    assert_eq!(restored.sql(actors), [[both]]);
    let server = restored.start();
    assert_eq!(server.usdt(USER), Balance::at_rest(9_943 * COIN, 57 * COIN));
}

/// Goal: all of it from the command line, with an exit code of its own for a request that waits.
#[test]
fn the_command_line_says_that_it_waits_and_approves() {
    let site = site();
    let server = site.start();
    let ops = format!("http://{}/", server.ops);
    let on = |user: &str, line: &str| {
        let mut arguments: Vec<&str> = line.split(' ').collect();
        arguments.extend(["--ops", &ops, "--dev"]);
        if !user.is_empty() {
            arguments.extend(["--as", user]);
        }
        said(&cli(&arguments))
    };
    let quiet = (0, "no approvals\n".to_owned(), String::new());
    assert_eq!(on("77", "approval list"), quiet);
    let (req_id, lock) = stick(&site, &server);
    let (code, out, err) = on("77", &format!("transfer resolve {req_id} --reason late"));
    assert_eq!((code, err.as_str()), (3, ""), "{out}");
    println!("{out}");
    assert!(out.starts_with("not done: another operator has to approve it, until "), "{out}");
    let (_, out, _) = on("77", "approval list --format json");
    let approval: Value = serde_json::from_str(out.trim()).expect("one JSON object");
    let id = text(&approval["approval_id"]);
    let (code, out, _) = on("78", "approval list");
    println!("{out}");
    assert!(code == 0 && out.lines().count() == 2 && out.contains(&req_id), "{out}");
    let (code, out, err) = on("77", &format!("approval approve {id} --reason mine"));
    assert!(code == 1 && out.is_empty() && err.contains("FORBIDDEN"), "{out}{err}");
    let file = site.data_dir.join("token");
    fs::write(&file, token(78, Some(Role::Admin))).expect("written");
    let file = file.to_str().expect("text");
    let (code, out, err) =
        on("", &format!("approval approve {id} --reason yes --token-file {file}"));
    assert_eq!((code, err.as_str()), (0, ""), "{out}");
    println!("{out}");
    lock.sql("ROLLBACK");
    site.wait_for_rest();

    assert_eq!(on("77", "halt --reason late").0, 0);
    let (code, out, _) = on("77", "resume --reason early --format json");
    let waits: Value = serde_json::from_str(out.trim()).expect("one JSON object");
    assert_eq!((code, text(&waits["state"])), (3, "PENDING_APPROVAL"));
    let id = text(&waits["approval_id"]);
    let rejected = (0, format!("rejected: {id}\n"), String::new());
    assert_eq!(on("78", &format!("approval reject {id} --reason no")), rejected);
    assert_eq!(on("78", "approval list"), quiet);
    let (code, out, _) = on("78", "approval list --all");
    assert!(code == 0 && out.contains("REJECTED") && out.contains("APPROVED"), "{out}");
    println!("{out}");
}

/// GTX-014. Goal: an account becomes special once another operator approves it, where `external`
/// needs two. Method: one operator asks, and approves in vain; another one approves.
#[test]
fn gtx_014_a_special_account_waits_for_another_operator() {
    let site = site();
    let server = site.start();
    let body = json!({"user_id": USER, "asset": "USDT", "special": true, "reason": "fees"});
    let id = pending(&post(&server, MAKER, "/admin/v1/specials", &body), "external");
    let specials = || server.admin_get("/admin/v1/specials").json()["specials"].clone();
    assert_ne!(decide(&server, MAKER, &id, "approve").status, 200);
    assert_eq!(specials(), json!([]));
    let reply = approve(&server, &id);
    assert_eq!(reply.status, 200, "{reply:?}");
    assert_eq!(specials()[0]["user_id"], json!(USER));
    assert_eq!(row(&site, &id), ["2", "t"]);
    let audited = "SELECT subject FROM admin_audit WHERE action = 'account special'";
    assert_eq!(site.sql_value(audited), format!("{USER} USDT"));
    server.stop();
}
