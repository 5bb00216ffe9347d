//! HALT: nothing new begins, transfers under way stay in their states, all reads are still
//! answered, and all of it continues after a resume.

use std::fs;
use std::path::PathBuf;
use std::thread::{self, ScopedJoinHandle};
use std::time::Duration;

use domain::transfer::Op;
use serde_json::{Value, json};
use ubscore::http::auth::Role;

use crate::harness::{
    ADMIN, Balance, COIN, DECISION, Reply, Request, Server, Site, Way, assert_refused, cli,
    decides, eventually, external, said, send, token, units,
};

const USER: u64 = 1001;
const HALT: &str = "/admin/v1/halt";
const RESUME: &str = "/admin/v1/resume";
const REASON: &str = "the sums differ";

fn file(site: &Site) -> PathBuf {
    site.data_dir.join("halted")
}

fn halt_once(server: &Server) -> Value {
    let reply = server.admin("POST", HALT, &json!({"reason": REASON}));
    assert_eq!(reply.status, 200, "{reply:?}");
    let json = reply.json();
    assert_eq!((&json["halted"], &json["quiet"]), (&json!(true), &json!(true)), "{reply:?}");
    json
}

/// Halts, and again while PostgreSQL is too slow to record it.
fn halt(server: &Server) -> Value {
    eventually("a halt that PostgreSQL knows", || {
        Some(halt_once(server)).filter(|answer| answer["in_postgres"] == json!(true))
    })
}

fn resume(server: &Server) {
    let reply = server.resume("they agree again");
    assert_eq!((reply.status, &reply.json()["halted"]), (200, &json!(false)), "{reply:?}");
}

fn ready(server: &Server) -> Reply {
    let token = token(ADMIN, Some(Role::Admin));
    send(server.ops, &Request::new(&token, "GET", "/readyz")).expect("an answer")
}

/// The flag in PostgreSQL: halted, reason.
fn in_postgres(site: &Site) -> (String, String) {
    let rows = site.sql("SELECT halted, halt_reason FROM engine_state");
    (rows[0][0].clone(), rows[0][1].clone())
}

/// Asserts that a server is halted for [`REASON`], in both places, and refuses new requests.
fn assert_halted(site: &Site, server: &Server) {
    for way in Way::BOTH {
        assert_refused(&server.transfer(USER, way, "1"), 503, "SERVICE_HALTED");
        let body = way.body_with_cid("USDT", "1", "never-seen");
        assert_refused(&server.post(USER, &body), 503, "SERVICE_HALTED");
    }
    for path in ["/admin/v1/deposits", "/admin/v1/withdrawals"] {
        for (amount, asset) in [("1", "USDT"), ("-1", "USDT"), ("1", "NONE")] {
            let reply = server.admin("POST", path, &external(USER, asset, amount, "never-seen"));
            assert_refused(&reply, 503, "SERVICE_HALTED");
        }
    }
    let reply = ready(server);
    assert_refused(&reply, 503, "SERVICE_HALTED");
    assert!(reply.body.contains(REASON), "{reply:?}");
    assert!(metric(server, "ubscore_halted 1"));
    assert_eq!(in_postgres(site), ("t".to_owned(), REASON.to_owned()));
    assert_eq!(fs::read_to_string(file(site)).expect("the file").trim(), REASON);
}

fn assert_running(site: &Site, server: &Server) {
    assert_eq!(ready(server).status, 200);
    assert!(metric(server, "ubscore_halted 0"));
    assert_eq!(in_postgres(site), ("f".to_owned(), String::new()));
    assert!(!file(site).exists());
    for way in Way::BOTH {
        server.transfer_accepted(USER, way, "1");
        site.wait_for_rest();
    }
    site.assert_in_order(server);
}

fn metric(server: &Server, line: &str) -> bool {
    server.metrics().lines().any(|found| found == line)
}

/// The changes of the flag, oldest first: actor, action and reason.
fn audited(site: &Site) -> Vec<Vec<String>> {
    site.sql(
        "SELECT actor, action, detail, reason FROM admin_audit \
         WHERE action IN ('halt', 'resume') ORDER BY id",
    )
}

/// All rows in PostgreSQL that a step of a transfer changes. A failed try from before a halt may be
/// recorded after it.
fn moving_rows(site: &Site) -> Vec<Vec<String>> {
    let transfers =
        "SELECT req_id, state, code, log_sequence, updated_at FROM transfers ORDER BY 1";
    let tables = ["balances_tb", "transfer_operations", "transfer_history"];
    let rest = tables.map(|table| format!("TABLE {table} ORDER BY 1, 2"));
    [transfers.to_owned()].iter().chain(&rest).flat_map(|statement| site.sql(statement)).collect()
}

#[test]
fn a_halt_refuses_what_is_new_and_answers_what_was_until_a_resume() {
    let site = Site::new();
    let server = site.start();
    let body = Way::ToSpot.body_with_cid("USDT", "50", "before");
    let first = server.post(USER, &body);
    assert_eq!(first.status, 200, "{first:?}");
    let deposit = external(USER, "USDT", "7", "in-before");
    let given = server.admin("POST", "/admin/v1/deposits", &deposit);
    assert_eq!(given.status, 200, "{given:?}");
    site.wait_for_rest();

    for path in [HALT, RESUME] {
        for bad in [json!({}), json!({"reason": ""}), json!({"reason": "x", "more": 1})] {
            assert_refused(&server.admin("POST", path, &bad), 400, "INVALID_REQUEST");
        }
        let body = json!({"reason": "x"});
        let user = token(USER, None);
        let request = Request { body: Some(&body), ..Request::new(&user, "POST", path) };
        assert_refused(&send(server.ops, &request).expect("an answer"), 403, "FORBIDDEN");
    }
    assert_running(&site, &server);

    let answer = halt(&server);
    assert_eq!((&answer["in_data_dir"], &answer["in_postgres"]), (&json!(true), &json!(true)));
    assert_eq!(answer["reason"], json!(REASON));
    assert_halted(&site, &server);
    // Earlier results are answered, by name and by key, and every read continues.
    let before = moving_rows(&site);
    let again = server.post(USER, &body);
    assert_eq!((again.status, again.json()), (200, first.json()), "{again:?}");
    assert_eq!(again.header("idempotent-replayed"), Some("true"));
    let other = server.post(USER, &Way::ToSpot.body_with_cid("USDT", "51", "before"));
    assert_refused(&other, 409, "DUPLICATE_REQUEST");
    let again = server.admin("POST", "/admin/v1/deposits", &deposit);
    assert_eq!((again.status, again.json()), (200, given.json()), "{again:?}");
    let other = external(USER, "USDT", "8", "in-before");
    let other = server.admin("POST", "/admin/v1/deposits", &other);
    assert_refused(&other, 409, "IDEM_KEY_CONFLICT");
    assert_eq!(server.look(USER, &first.req_id())["state"], json!("COMMITTED"));
    assert_eq!(server.usdt(USER), Balance::at_rest(9_957 * COIN, 50 * COIN));
    assert_eq!(server.get(USER, "/api/v1/assets").status, 200);
    // An account can still be closed.
    server.set_status(1002, "FUNDING", "FROZEN");
    server.set_status(1002, "SPOT", "FROZEN");
    assert_eq!(moving_rows(&site), before);

    // The first reason is the cause; a second halt is recorded with its operator.
    let reply = server.admin("POST", HALT, &json!({"reason": "another look"}));
    assert_eq!(reply.json()["reason"], json!(REASON), "{reply:?}");
    assert_halted(&site, &server);
    resume(&server);
    assert_running(&site, &server);
    // To resume a running service does nothing and records nothing.
    resume(&server);
    assert_running(&site, &server);
    let by = format!("admin/{ADMIN}");
    let row = |action: &str, detail: &str, reason: &str| {
        [&by, action, detail, reason].map(str::to_owned).to_vec()
    };
    let again = "they agree again";
    let want = [
        row("halt", REASON, REASON),
        row("halt", REASON, "another look"),
        row("resume", "", again),
    ];
    // The test repeats a halt that PostgreSQL was too slow for, so its note may repeat.
    let mut notes = audited(&site);
    notes.dedup();
    assert_eq!(notes, want);
    server.says(&format!("halted actor=\"{by}\""));
    site.assert_verified();
}

/// Goal: a halt in either place stops a start, and is copied to the other place; no kill forgets
/// it. Method: each place alone, a start, a kill, and a start without the first place.
#[test]
fn either_place_halts_a_start_and_a_kill_forgets_neither() {
    let by_route = |site: &Site| {
        let server = site.start();
        halt(&server);
        server.kill();
    };
    let by_file = |site: &Site| fs::write(file(site), REASON).expect("written");
    let by_sql = |site: &Site| {
        let set = format!("UPDATE engine_state SET halted = TRUE, halt_reason = '{REASON}'");
        site.sql(&set);
    };
    let forget_file = |site: &Site| fs::remove_file(file(site)).expect("it was there");
    let forget_sql = |site: &Site| {
        site.sql("UPDATE engine_state SET halted = FALSE, halt_reason = NULL");
    };
    type Act<'a> = &'a dyn Fn(&Site);
    let ways: [(Act<'_>, Act<'_>); 4] = [
        (&by_route, &forget_file),
        (&by_route, &forget_sql),
        (&by_file, &forget_file),
        (&by_sql, &forget_sql),
    ];
    for (say, forget) in ways {
        let site = Site::new();
        site.start().stop();
        say(&site);
        let server = site.start();
        assert_halted(&site, &server);
        server.kill();
        forget(&site);
        let server = site.start();
        assert_halted(&site, &server);
        server.stop();
        let server = site.start();
        assert_halted(&site, &server);
        resume(&server);
        assert_running(&site, &server);
        server.kill();
        assert_running(&site, &site.start());
    }
}

/// If a data directory is halted before its first start, the development users get no money then,
/// and all of it later.
#[test]
fn a_first_start_may_be_halted() {
    let site = Site::new();
    fs::create_dir_all(&site.data_dir).expect("a directory");
    fs::write(file(&site), REASON).expect("written");
    let server = site.start();
    assert_halted(&site, &server);
    assert_eq!(site.sql_value("SELECT count(*) FROM externals"), "0");
    resume(&server);
    server.stop();
    let server = site.start();
    assert_eq!(server.usdt(USER).funding, Some(10_000 * COIN));
    site.assert_in_order(&server);
}

/// Goal: while PostgreSQL is away the file alone halts, and no resume succeeds before PostgreSQL
/// knows of the halt. Method: no connection is admitted; halt; resume, which must fail; connections
/// again; SIGKILL; the next start is halted in both places.
#[test]
fn the_file_alone_halts_while_postgresql_is_away() {
    let site = Site::new().with("UBSCORE__HTTP__TRANSFER_WAIT_MS", 50);
    let server = site.start();
    site.admit_connections(false);
    let answer = halt_once(&server);
    assert_eq!((&answer["in_data_dir"], &answer["in_postgres"]), (&json!(true), &json!(false)));
    assert_refused(&server.transfer(USER, Way::ToSpot, "1"), 503, "SERVICE_HALTED");
    let reply = server.admin("POST", RESUME, &json!({"reason": "too early"}));
    // The check before a resume needs PostgreSQL.
    assert_refused(&reply, 503, "SERVICE_HALTED");
    assert!(reply.body.contains("Still halted"), "{reply:?}");
    assert_refused(&ready(&server), 503, "SERVICE_HALTED");
    assert!(file(&site).exists());
    site.admit_connections(true);
    assert_eq!(in_postgres(&site).0, "f");
    server.kill();
    let server = site.start();
    assert_halted(&site, &server);
    resume(&server);
    assert_running(&site, &server);
    site.assert_verified();
}

/// Goal: if the data directory cannot be written, PostgreSQL holds the halt; if neither can, the
/// operator gets an error. Method: a directory is at the path of the file, so it also cannot be
/// removed as a file.
#[test]
fn postgresql_alone_halts_where_the_data_directory_cannot() {
    let site = Site::new();
    let server = site.start();
    fs::create_dir_all(file(&site).join("in the way")).expect("a directory");
    let answer = halt(&server);
    assert_eq!((&answer["in_data_dir"], &answer["in_postgres"]), (&json!(false), &json!(true)));
    let reply = server.admin("POST", RESUME, &json!({"reason": "too early"}));
    assert_refused(&reply, 503, "SYSTEM_ERROR");
    assert_refused(&server.transfer(USER, Way::ToSpot, "1"), 503, "SERVICE_HALTED");
    site.admit_connections(false);
    let reply = server.admin("POST", HALT, &json!({"reason": REASON}));
    assert_refused(&reply, 503, "SYSTEM_ERROR");
    assert!(reply.body.contains("a restart would end the halt"), "{reply:?}");
    site.admit_connections(true);
    fs::remove_dir_all(file(&site)).expect("removed");
    let answer = halt(&server);
    assert_eq!((&answer["in_data_dir"], &answer["in_postgres"]), (&json!(true), &json!(true)));
    assert_halted(&site, &server);
    resume(&server);
    assert_running(&site, &server);
    site.assert_verified();
}

/// The place where a transfer rests before the halt.
struct Resting {
    way: Way,
    /// The target is disabled, so that the transfer compensates.
    refused: bool,
    /// The transition into this state does not happen before the halt ...
    held: &'static str,
    /// ... by a hold on these rows.
    event: &'static str,
    condition: &'static str,
    /// The state while halted.
    stays: &'static str,
    /// The final state after the resume.
    ends: &'static str,
}

const STATE: &str = "UPDATE OF state ON transfers_tb";

/// Goal: a transfer that a halt meets in any state advances only to UBSCore's decision. It survives
/// a kill there, and ends after the resume without a restart. Method: a lock keeps it out of the
/// next state; halt; release the lock; SIGKILL and start, still halted; nothing may change; resume;
/// it must end, and the sums must agree.
#[test]
fn a_transfer_stays_where_a_halt_meets_it_and_ends_after_the_resume() {
    use Way::{ToFunding, ToSpot};
    let case = |way, refused, held, (event, condition), stays, ends| Resting {
        way,
        refused,
        held,
        event,
        condition,
        stays,
        ends,
    };
    // Without fusion a transfer rests in each state.
    let cases = [
        // Funding's withdraw is undecided.
        case(ToSpot, false, "10", (DECISION, decides(Op::Withdraw)), "10", "40"),
        // The deposit was not asked for.
        case(ToSpot, false, "20", (STATE, "NEW.state = 30"), "20", "40"),
        // UBSCore has decided and only the mark is missing: it is recorded.
        case(ToSpot, false, "30", (STATE, "NEW.state = 40"), "40", "40"),
        case(ToSpot, true, "30", (STATE, "NEW.state = -20"), "-20", "-30"),
        // The refund would move Funding's money.
        case(ToSpot, true, "-20", (DECISION, decides(Op::Refund)), "-20", "-30"),
        // UBSCore has paid, or has refused to; it is recorded.
        case(ToFunding, false, "10", (STATE, "NEW.state = 20"), "20", "40"),
        case(ToFunding, false, "20", (STATE, "NEW.state = 30"), "20", "40"),
        // The deposit would move Funding's money.
        case(ToFunding, false, "30", (DECISION, decides(Op::Deposit)), "30", "40"),
        case(ToFunding, true, "30", (STATE, "NEW.state = -20"), "30", "40"),
        // UBSCore has refunded.
        case(ToFunding, true, "-20", (STATE, "NEW.state = -30"), "-30", "-30"),
    ];
    for case in cases {
        let Resting { way, refused, held, event, condition, stays, ends } = case;
        let name = format!("{way:?} refused {refused} held in {held}");
        println!("{name}");
        let site = Site::fused(false)
            .with("UBSCORE__HTTP__TRANSFER_WAIT_MS", 50)
            .with("UBSCORE__POSTGRES__LOCK_TIMEOUT_MS", 100);
        let server = site.start();
        server.transfer_accepted(USER, ToSpot, "50");
        site.wait_for_rest();
        if refused {
            server.set_status(USER, way.accounts().1, "DISABLED");
        }
        let hold = site.hold(event, condition);
        let body = way.body_with_cid("USDT", "12", "held");
        let reply = eventually("it to be taken", || {
            Some(server.post(USER, &body)).filter(|reply| reply.status != 503)
        });
        let state = || site.sql_value("SELECT state FROM transfers WHERE cid = 'held'");
        eventually(&name, || (state() == held).then_some(()));
        site.wait_for_held();
        assert!([200, 202, 422].contains(&reply.status), "{reply:?}");

        halt(&server);
        hold.release();
        if refused && stays == "30" {
            // Funding decides after the resume, and by then the account is open.
            server.set_status(USER, way.accounts().1, "ACTIVE");
        }
        eventually(&name, || (state() == stays).then_some(()));
        let before = moving_rows(&site);
        let balance = server.usdt(USER);
        assert_eq!(balance.sum(), 10_000 * COIN, "{name}: {balance:?}");
        server.kill();
        let server = site.start();
        assert_halted(&site, &server);
        assert_eq!(server.usdt(USER), balance, "{name}");
        assert_eq!(server.post(USER, &body).req_id(), reply.req_id(), "{name}");
        assert_eq!(moving_rows(&site), before, "{name}");

        resume(&server);
        site.wait_for_rest();
        assert_eq!(state(), ends, "{name}");
        site.assert_in_order(&server);
    }
}

/// Story: a resume waited for another resume, and a halt came meanwhile. The resume counted that
/// halt as an earlier one and opened the gate, while the halt was answered as in force. Method: a
/// check that PostgreSQL blocks; a second resume after it, a halt after both; the halt was the
/// last call, in any order of the answers.
#[test]
fn a_halt_behind_two_resumes_is_in_force_when_it_is_answered() {
    let site = Site::new();
    let server = site.start();
    halt(&server);
    let session = site.session();
    session.sql("BEGIN; LOCK TABLE transfers_tb IN ACCESS EXCLUSIVE MODE");
    let post = |path| server.admin("POST", path, &json!({"reason": REASON}));
    let halts = || server.said().matches("halted actor=").count();
    server.says("halted actor=");
    let before = halts();
    let (first, second, last) = thread::scope(|scope| {
        let first = scope.spawn(|| post(RESUME));
        let waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted AND database = \
                       (SELECT oid FROM pg_database WHERE datname = current_database())";
        let blocked = || (site.sql_value(waiting) != "0").then_some(());
        eventually("the check of the first to wait", blocked);
        // This gives it the time to queue up; the test passes with either order.
        let second = scope.spawn(|| post(RESUME));
        thread::sleep(Duration::from_millis(300));
        let last = scope.spawn(|| post(HALT));
        eventually("the last halt", || (halts() > before).then_some(()));
        session.sql("ROLLBACK");
        let join = |thread: ScopedJoinHandle<'_, Reply>| thread.join().expect("an answer");
        (join(first), join(second), join(last))
    });
    assert_refused(&first, 503, "SERVICE_HALTED");
    println!("the second: {second:?}");
    assert_eq!((last.status, &last.json()["quiet"]), (200, &json!(true)), "{last:?}");
    assert_eq!(ready(&server).status, 503);
    assert_halted(&site, &server);
    resume(&server);
    assert_eq!(server.transfer(USER, Way::ToSpot, "1").status, 200);
}

/// Story: each resume that gave way to a halt left its check in the queue, and the audit compared
/// everything for each of them. Method: a start that is halted, so that only checks are counted; a
/// check that PostgreSQL blocks, and resumes behind it that each give way to a halt.
#[test]
fn a_check_that_its_resume_has_given_up_is_not_made() {
    let site = Site::new();
    fs::create_dir_all(&site.data_dir).expect("a directory");
    fs::write(file(&site), REASON).expect("written");
    let server = site.start();
    let runs = || -> u64 {
        let metrics = server.metrics();
        let runs = metrics.lines().filter(|l| l.starts_with("ubscore_conservation_runs_total{"));
        runs.map(|l| l.rsplit(' ').next().expect("a value").parse::<u64>().expect("whole")).sum()
    };
    let check = || server.admin_get("/admin/v1/conservation");
    let before = runs();
    assert_eq!(check().json()["ok"], json!(true));
    let one = runs() - before;
    assert!(one > 0);
    let session = site.session();
    session.sql("BEGIN; LOCK TABLE transfers_tb IN ACCESS EXCLUSIVE MODE");
    thread::scope(|scope| {
        let blocked = scope.spawn(check);
        let waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted AND database = \
                       (SELECT oid FROM pg_database WHERE datname = current_database())";
        eventually("the check to wait", || (site.sql_value(waiting) != "0").then_some(()));
        for _ in 0..3 {
            let resume = scope.spawn(|| server.admin("POST", RESUME, &json!({"reason": REASON})));
            // This gives it the time to request its check; the test passes without it as well.
            thread::sleep(Duration::from_millis(300));
            while !resume.is_finished() {
                halt_once(&server);
            }
            assert_refused(&resume.join().expect("an answer"), 503, "SERVICE_HALTED");
        }
        session.sql("ROLLBACK");
        assert_eq!(blocked.join().expect("an answer").json()["ok"], json!(true));
    });
    assert_eq!(check().json()["ok"], json!(true));
    assert_eq!(runs() - before, 3 * one, "three checks had a requester to the end");
}

/// Goal: a participant that was not asked before a halt is not asked while halted. Method: a death
/// before UBSCore is asked, both ways; the next start is halted and must not ask; resume.
#[cfg(feature = "crash")]
#[test]
fn a_start_that_is_halted_asks_nobody() {
    for (way, states) in [(Way::ToSpot, "30"), (Way::ToFunding, "10")] {
        for fuse in [true, false] {
            let site = Site::fused(fuse);
            let server = site.start();
            server.transfer_accepted(USER, Way::ToSpot, "50");
            site.wait_for_rest();
            server.stop();
            let dying = site.clone().with("UBSCORE_CRASH", "coordinator_before_ask");
            let mut server = dying.start();
            let body = way.body_with_cid("USDT", "12", "unasked");
            drop(server.try_ask(USER, "POST", "/api/v1/internal_transfer", Some(&body)));
            server.wait();
            fs::write(file(&site), REASON).expect("written");
            let server = site.start();
            assert_halted(&site, &server);
            let state = || site.sql_value("SELECT state FROM transfers WHERE cid = 'unasked'");
            assert_eq!(state(), states);
            let reply = server.post(USER, &body);
            assert_eq!(reply.status, 202, "{reply:?}");
            let spot = server.usdt(USER).spot;
            assert_eq!(spot, Some(50 * COIN), "UBSCore was not asked");
            resume(&server);
            site.wait_for_rest();
            assert_eq!(state(), "40");
            site.assert_in_order(&server);
        }
    }
}

/// Goal: fused commits also stop at the decision, if they are queued, blocked or answered at the
/// halt. Method: a Spot->Funding transfer with a blocked fused commit (deposit and COMMITTED);
/// halt; release.
#[test]
fn a_fused_commit_shrinks_to_what_is_decided() {
    // The commit stays whole until its lock wait ends; the halt comes before that.
    let site = Site::new()
        .with("UBSCORE__HTTP__TRANSFER_WAIT_MS", 50)
        .with("UBSCORE__POSTGRES__LOCK_TIMEOUT_MS", 4_000);
    let server = site.start();
    server.transfer_accepted(USER, Way::ToSpot, "50");
    site.wait_for_rest();
    let hold = site.hold_decision(Op::Deposit);
    let reply = server.post_pending(USER, &Way::ToFunding.body_with_cid("USDT", "12", "held"));
    site.wait_for_held();
    halt(&server);
    hold.release();
    let state = format!("SELECT state FROM transfers WHERE req_id = '{}'", reply.req_id());
    eventually("what is decided", || (site.sql_value(&state) == "20").then_some(()));
    let available = "SELECT available FROM balances WHERE user_id = 1001 AND asset_id = 3";
    assert_eq!(units(&site.sql_value(available)), 9_950 * COIN, "no deposit while halted");
    let want = Balance {
        in_flight: i128::try_from(12 * COIN).expect("small"),
        ..Balance::at_rest(9_950 * COIN, 38 * COIN)
    };
    assert_eq!(server.usdt(USER), want);
    resume(&server);
    site.wait_for_rest();
    assert_eq!(site.commits(&reply.req_id()), ["0 10", "20", "30 40"]);
    site.assert_in_order(&server);
}

/// Goal: calls in a worker's queue at the halt are refused and never done. Method: one worker,
/// blocked by a row lock; transfers and deposits queue up behind it; halt; release.
#[test]
fn what_is_queued_when_the_halt_comes_is_refused_and_never_done() {
    let site = Site::new()
        .with("UBSCORE__COORDINATOR__SHARDS", 1)
        .with("UBSCORE__POSTGRES__LOCK_TIMEOUT_MS", 100)
        .with("UBSCORE__HTTP__TRANSFER_WAIT_MS", 20_000);
    let server = site.start();
    let hold = site.hold("INSERT ON transfers_tb", "NEW.user_id = 1001");
    let (mut transfers, mut deposits) = (Vec::new(), Vec::new());
    let transfer = |index: usize| {
        let body = match index {
            0 => Way::ToSpot.body("USDT", "1"),
            _ => Way::ToSpot.body_with_cid("USDT", "1", &format!("queued-{index}")),
        };
        server.post(USER, &body)
    };
    let deposit = |index: usize| {
        let body = external(USER, "USDT", "1", &format!("queued-{index}"));
        server.admin("POST", "/admin/v1/deposits", &body)
    };
    let (transfer, deposit) = (&transfer, &deposit);
    thread::scope(|scope| {
        let first: Vec<_> = (0..4).map(|index| scope.spawn(move || transfer(index))).collect();
        site.wait_for_held();
        let second: Vec<_> = (0..4).map(|index| scope.spawn(move || deposit(index))).collect();
        halt(&server);
        hold.release();
        let join = |thread: ScopedJoinHandle<'_, Reply>| thread.join().expect("no panic");
        transfers.extend(first.into_iter().map(join));
        deposits.extend(second.into_iter().map(join));
    });
    // A commit that waits for the lock when the halt comes ends without it. Its calls have no row.
    for reply in &transfers {
        let code = reply.json()["code"].clone();
        assert!([json!("SERVICE_HALTED"), json!("SYSTEM_ERROR")].contains(&code), "{reply:?}");
        assert_eq!((reply.status, &reply.json()["outcome"]), (503, &Value::Null), "{reply:?}");
    }
    // A deposit from before the halt may have been done; each answer must be true.
    for reply in &deposits {
        assert!([200, 503].contains(&reply.status), "{reply:?}");
    }
    let done = deposits.iter().filter(|reply| reply.status == 200).count();
    let recorded = "SELECT count(*) FROM externals WHERE idem_key LIKE 'queued-%'";
    assert_eq!(site.sql_value(recorded), done.to_string());
    assert_eq!(site.sql_value("SELECT count(*) FROM transfers"), "0");
    resume(&server);
    assert_eq!(server.post(USER, &Way::ToSpot.body_with_cid("USDT", "1", "queued-1")).status, 200);
    assert_running(&site, &server);
    site.assert_verified();
}

#[test]
fn the_command_line_halts_and_resumes_and_says_why_it_does_not() {
    let site = Site::new();
    let server = site.start();
    let ops = format!("http://{}/", server.ops);
    let on = |command: &str, reason: &str| {
        said(&cli(&[command, "--reason", reason, "--ops", &ops, "--dev", "--as", "77"]))
    };
    let (code, out, err) = on("halt", REASON);
    assert_eq!((code, err.as_str()), (0, ""), "{out}");
    let want = format!(
        "halted: {REASON}\n  no money moves any more\n  kept in the data directory\n  kept in PostgreSQL\n"
    );
    assert_eq!(out, want);
    assert_halted(&site, &server);
    let (code, out, err) = on("resume", "seen and repaired");
    assert_eq!((code, out.as_str(), err.as_str()), (0, "resumed\n", ""));
    assert_running(&site, &server);
    let actors: Vec<String> = audited(&site).iter().map(|row| row[0].clone()).collect();
    assert_eq!(actors, ["admin/77", "admin/77"]);

    // Refused, with the service's reason.
    let (code, out, err) = on("halt", " ");
    assert_eq!((code, out.as_str()), (1, ""));
    assert!(err.contains("INVALID_REQUEST"), "{err}");
    // A configuration file supplies its secret and its address; another secret is refused.
    let config = site.data_dir.join("operator.toml");
    let with_secret = |secret: &str| {
        let text = format!("[auth]\nsecret = \"{secret}\"\n[ops]\nlisten = \"{}\"\n", server.ops);
        fs::write(&config, text).expect("written");
        let path = config.to_str().expect("text");
        said(&cli(&["halt", "--reason", REASON, "--config", path]))
    };
    let (code, _, err) = with_secret("another secret, unknown to the server");
    assert_eq!(code, 1, "{err}");
    assert!(err.contains("UNAUTHORIZED"), "{err}");
    assert_eq!(with_secret("short").0, 2);
    assert_running(&site, &server);
    // No server is running.
    server.stop();
    let (code, _, err) = on("halt", REASON);
    assert_eq!(code, 1, "{err}");
    assert!(err.contains("is the service running there?"), "{err}");
    assert_eq!(said(&cli(&["halt"])).0, 2);
    assert_eq!(said(&cli(&["resume", "--reason", "x", "--ops", "nowhere"])).0, 2);
}

/// Goal: an order number that is in use though nobody has its row halts the service, and the reason
/// names it. Method: a row by hand under the number that the next transfer gets. After the row is
/// gone, a resume lets all go on.
#[test]
fn an_order_number_in_use_halts() {
    let site = Site::new().with("UBSCORE__CONSERVATION__EVERY_MS", 3_600_000);
    let server = site.start();
    server.transfer_committed(USER, Way::ToSpot, "1");
    site.wait_for_rest();
    let by_hand = "01ARZ3NDEKTSV4RRFFQ69G5FAV";
    site.sql(&format!(
        "INSERT INTO transfers_tb SELECT (jsonb_populate_record(t, jsonb_build_object( \
           'order_number', t.order_number + 1, 'req_id', ulid_uuid('{by_hand}'), 'cid', NULL))).* \
         FROM transfers_tb t ORDER BY order_number DESC LIMIT 1"
    ));
    let before = site.sql("SELECT user_id, asset_id, available FROM balances ORDER BY 1, 2");
    let reply = server.transfer(USER, Way::ToSpot, "2");
    assert_eq!(reply.status, 503, "{reply:?}");
    eventually("the halt", || (in_postgres(&site).0 == "t").then_some(()));
    let (_, reason) = in_postgres(&site);
    assert!(reason.starts_with("order_number_taken: "), "{reason}");
    assert!(reason.contains("transfers_tb_pkey"), "{reason}");
    // Both places are written at the same time.
    eventually("the flag of the halt", || file(&site).exists().then_some(()));
    let after = site.sql("SELECT user_id, asset_id, available FROM balances ORDER BY 1, 2");
    assert_eq!(after, before);
    site.sql(&format!(
        "SET session_replication_role = replica; \
         DELETE FROM transfers_tb WHERE req_id = ulid_uuid('{by_hand}')"
    ));
    eventually("a resume", || {
        let reply = server.resume("the row is gone");
        (reply.status == 200).then_some(())
    });
    server.transfer_committed(USER, Way::ToSpot, "3");
    site.wait_for_rest();
    site.assert_in_order(&server);
}
