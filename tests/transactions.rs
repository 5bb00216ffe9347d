//! Transactions over both stores, services and callers, on the real binary and a real PostgreSQL.
//! Each test ends with the sums of all users and with `ubscore verify`.

mod bounds;
mod counted;
mod crossing;
mod desk;
mod followers;
mod formats;
#[cfg(feature = "crash")]
mod kills;
mod lost;
mod operators;
mod outside;
mod purposes;
#[cfg(feature = "crash")]
mod repairs;
mod special;
mod unreadable;

use std::time::Duration;

use serde_json::{Value, json};

use self::desk::{Desk, Service, leg, legs};
use crate::harness::{Request, Site, cli, said, send};
use crate::harness::{USERS, eventually, text, token};

const A: u64 = USERS[0];
const B: u64 = USERS[1];
const C: u64 = USERS[2];

/// GTX-002. Goal: confirmed, all legs are booked; cancelled, every balance is as before. Method: a
/// transaction over both stores by its coordinator; another one that is aborted by its caller.
#[test]
fn gtx_002_all_legs_are_booked_or_none() {
    let desk = Desk::new();
    let before = desk.balances();
    let body = json!({"tx_id": "whole", "legs": legs(&[
        leg("FUNDING", A, B, "3"), leg("FUNDING", B, C, "1"), leg("SPOT", B, A, "2"),
    ])});
    let reply = desk.post("", &body);
    assert_eq!(reply.status, 200, "{reply:?}");
    desk.ends("whole", "DONE");
    assert_eq!(desk.changes(&before), [(A, -300, 200), (B, 200, -200), (C, 100, 0)]);
    let before = desk.balances();
    let round = json!({"round": 1, "decide": "caller", "legs": legs(&[
        leg("FUNDING", A, B, "3"), leg("SPOT", B, A, "2"),
    ])});
    let reply = desk.post("/given-up/prepare", &round);
    assert_eq!(reply.status, 200, "{reply:?}");
    assert_eq!(desk.frozen(A, "FUNDING"), 300, "apart");
    assert_eq!(desk.frozen(B, "SPOT"), 200, "apart");
    assert_eq!(desk.post("/given-up/abort", &json!({})).status, 200);
    desk.ends("given-up", "CANCELLED");
    assert_eq!(desk.changes(&before), []);
    desk.close();
}

/// GTX-005. Goal: a prepare behind an abort, and an abort before its prepare, leave nothing apart.
#[test]
fn gtx_005_a_prepare_behind_an_abort_leaves_nothing_apart() {
    let desk = Desk::new();
    let before = desk.balances();
    let round = |round: u8| {
        json!({"round": round, "decide": "caller", "legs": legs(&[
            leg("FUNDING", A, B, "3"), leg("SPOT", B, A, "2"),
        ])})
    };
    let reply = desk.post("/early/abort", &json!({"reason": "changed my mind"}));
    assert_eq!(reply.status, 200, "{reply:?}");
    assert_eq!(desk.post("/early/prepare", &round(1)).refusal(), (422, refused()));
    assert_eq!(desk.post("/late/prepare", &round(1)).status, 200);
    assert_eq!(desk.post("/late/abort", &json!({})).status, 200);
    let mut later = round(2);
    later.as_object_mut().expect("an object").remove("decide");
    assert_eq!(desk.post("/late/prepare", &later).refusal(), (422, refused()));
    for tx_id in ["early", "late"] {
        desk.ends(tx_id, "CANCELLED");
    }
    assert_eq!(desk.changes(&before), []);
    desk.close();
}

fn refused() -> String {
    "TRANSACTION_ABORTED".to_owned()
}

/// GTX-006. A participant that refuses has everything cancelled, and its code is told.
#[test]
fn gtx_006_a_refusal_of_a_participant_cancels_everything() {
    let coupons = Service::start(|action, _| match action {
        "try" => Some(json!({"outcome": "refused", "code": "SOLD_OUT"})),
        _ => Some(json!({"outcome": "done"})),
    });
    let desk = Desk::with(&[("COUPONS", "veto", &coupons)]);
    let before = desk.balances();
    let reply = desk.post(
        "",
        &json!({"tx_id": "veto", "participants": [part("coupons")],
        "legs": legs(&[leg("FUNDING", A, B, "3"), leg("SPOT", B, A, "2")])}),
    );
    assert_eq!(reply.refusal(), (422, "PARTICIPANT_REFUSED".to_owned()));
    assert!(reply.body.contains("SOLD_OUT"), "{reply:?}");
    desk.ends("veto", "CANCELLED");
    assert_eq!(desk.changes(&before), []);
    assert_eq!(coupons.asked(), ["try"], "a refused branch holds nothing");
    desk.close();
}

fn part(name: &str) -> Value {
    json!({"name": name, "payload": {"count": 1}})
}

/// GTX-007. Goal: a participant that does not answer its try has the transaction aborted by age,
/// and is asked to cancel until it has.
#[test]
fn gtx_007_a_silent_try_is_aborted_by_age_and_cancelled() {
    let coupons = Service::start(|action, count| match (action, count) {
        ("try", _) => None,
        ("cancel", 1 | 2) => None,
        _ => Some(json!({"outcome": "done"})),
    });
    let desk = Desk::with(&[("COUPONS", "veto", &coupons)]);
    let before = desk.balances();
    let body = json!({"round": 1, "ttl_ms": 1_000, "participants": [part("coupons")],
        "legs": legs(&[leg("FUNDING", A, B, "3"), leg("SPOT", B, A, "2")])});
    desk.post("/silent/prepare", &body);
    let row = desk.ends("silent", "CANCELLED");
    assert_eq!(row["code"], json!("TRANSACTION_EXPIRED"), "{row}");
    assert_eq!(row["decided_by"], json!("age"), "{row}");
    assert_eq!(coupons.asked().iter().filter(|action| *action == "cancel").count(), 3);
    assert_eq!(desk.changes(&before), []);
    desk.close();
}

/// Confirms that a participant fails.
const FAILED: usize = 1_000;

/// GTX-008. Goal: a participant that fails a thousand confirms is asked on, alerted, shown, and
/// then the transaction is DONE. Both stores are booked meanwhile. Method: with a short back-off.
#[test]
fn gtx_008_a_participant_that_fails_its_confirms_is_asked_on() {
    let coupons = Service::start(|action, count| match (action, count) {
        ("confirm", 1..=FAILED) => None,
        _ => Some(json!({"outcome": "done"})),
    });
    let desk = Desk::paced(Site::new(), &[("COUPONS", "veto", &coupons)], 2);
    let before = desk.balances();
    let reply = desk.post(
        "",
        &json!({"tx_id": "slow", "participants": [part("coupons")],
        "legs": legs(&[leg("FUNDING", A, B, "3"), leg("SPOT", B, A, "2")])}),
    );
    assert_eq!((reply.status, &reply.json()["state"]), (200, &json!("COMMITTED")), "{reply:?}");
    assert_eq!(desk.changes(&before), [(A, -300, 200), (B, 300, -200)]);
    eventually("the alert", || {
        let raised = desk.server().metric("ubscore_alerts_total{alert=\"participant_failing\"}");
        (raised > 0).then_some(())
    });
    desk.ends("slow", "DONE");
    let confirms = coupons.asked().iter().filter(|action| *action == "confirm").count();
    assert_eq!(confirms, FAILED + 1);
    desk.close();
}

/// GTX-009. Goal: the last participant's success, refusal and silence decide commit, abort and
/// nothing, however old.
#[test]
fn gtx_009_the_answer_of_the_last_participant_decides() {
    let bank = Service::start(|action, _| {
        assert_eq!(action, "commit");
        None
    });
    let desk = Desk::with(&[("BANK", "last", &bank)]);
    let body = |tx_id: &str| {
        json!({"tx_id": tx_id, "last": part("bank"), "wait_ms": 100,
            "legs": legs(&[leg("FUNDING", A, B, "3"), leg("SPOT", B, A, "2")])})
    };
    let before = desk.balances();
    assert_eq!(desk.post("", &body("first")).status, 202);
    desk.is("first", "DECIDING");
    eventually("another question", || (bank.asked().len() >= 3).then_some(()));
    let reply = desk.post("/first/abort", &json!({}));
    assert_eq!(reply.refusal(), (409, "TRANSACTION_DECIDED".to_owned()));
    bank.answers(|_, _| Some(json!({"outcome": "done"})));
    desk.ends("first", "DONE");
    assert_eq!(desk.changes(&before), [(A, -300, 200), (B, 300, -200)]);
    let before = desk.balances();
    bank.answers(|_, _| Some(json!({"outcome": "refused", "code": "NO"})));
    desk.post("", &body("second"));
    let row = desk.ends("second", "CANCELLED");
    assert_eq!(row["decided_by"], json!("bank"), "{row}");
    assert_eq!(desk.changes(&before), []);
    desk.close();
}

/// GTX-011. Goal: rounds count what earlier ones bring, and one short by a unit is refused and
/// leaves them.
#[test]
fn gtx_011_rounds_count_what_earlier_ones_bring() {
    for store in ["FUNDING", "SPOT"] {
        let desk = Desk::new();
        let before = desk.balances();
        let there = desk.balance(B, store);
        let prepare = |round: u8, legs: Value| {
            let mut body = json!({"round": round, "legs": legs});
            if round == 1 {
                body["decide"] = json!("caller");
            }
            desk.post("/rounds/prepare", &body)
        };
        assert_eq!(prepare(1, legs(&[leg(store, A, B, "3")])).status, 200);
        let short = desk::amount(there + 301);
        let reply = prepare(2, legs(&[leg(store, B, C, &short)]));
        assert_eq!(reply.refusal(), (422, "INSUFFICIENT_BALANCE".to_owned()), "{store}");
        assert_eq!(desk.frozen(B, store), 0, "{store}: nothing of it is apart");
        let all = desk::amount(there + 300);
        assert_eq!(prepare(3, legs(&[leg(store, B, C, &all)])).status, 200, "{store}");
        let early = desk.post("/rounds/commit", &json!({"rounds": 2}));
        assert_eq!(early.refusal(), (409, "TRANSACTION_UNTRIED".to_owned()));
        assert_eq!(desk.post("/rounds/commit", &json!({"rounds": 3})).status, 200);
        desk.ends("rounds", "DONE");
        let moved = i128::try_from(there).expect("small");
        let change = |user, units: i128| match store {
            "FUNDING" => (user, units, 0),
            _ => (user, 0, units),
        };
        let want = [change(A, -300), change(B, -moved), change(C, moved + 300)];
        assert_eq!(desk.changes(&before), want, "{store}");
        desk.close();
    }
}

/// GTX-016. A status set between prepare and confirm changes nothing, and one set before prepare
/// refuses it.
#[test]
fn gtx_016_a_status_counts_at_the_try_alone() {
    let desk = Desk::new();
    let before = desk.balances();
    let body = json!({"round": 1, "decide": "caller", "legs": legs(&[
        leg("FUNDING", A, B, "3"), leg("SPOT", B, A, "2"),
    ])});
    assert_eq!(desk.post("/kept/prepare", &body).status, 200);
    for (user, store) in [(A, "FUNDING"), (B, "SPOT")] {
        desk.server().set_status(user, store, "DISABLED");
    }
    let reply = desk.post("/refused/prepare", &body);
    assert_eq!(reply.refusal(), (422, "ACCOUNT_DISABLED".to_owned()), "{reply:?}");
    assert_eq!(desk.post("/kept/commit", &json!({})).status, 200);
    desk.ends("kept", "DONE");
    assert_eq!(desk.post("/refused/abort", &json!({})).status, 200);
    desk.ends("refused", "CANCELLED");
    for (user, store) in [(A, "FUNDING"), (B, "SPOT")] {
        desk.server().set_status(user, store, "ACTIVE");
    }
    assert_eq!(desk.changes(&before), [(A, -300, 200), (B, 300, -200)]);
    desk.close();
}

/// GTX-018. A repeated request is told its transaction; another body is 409, another owner's 404,
/// a user's token 403.
#[test]
fn gtx_018_a_repeat_is_told_its_transaction() {
    let desk = Desk::new();
    let body = |amount: &str| json!({"tx_id": "once", "legs": legs(&[leg("SPOT", A, B, amount)])});
    let before = desk.balances();
    let first = desk.post("", &body("3"));
    assert_eq!((first.status, first.header("idempotent-replayed")), (200, None), "{first:?}");
    desk.ends("once", "DONE");
    let again = desk.post("", &body("3"));
    assert_eq!((again.status, again.header("idempotent-replayed")), (200, Some("true")));
    assert_eq!(again.json()["transaction_id"], first.json()["transaction_id"]);
    assert_eq!(desk.post("", &body("4")).refusal(), (409, "TX_ID_CONFLICT".to_owned()));
    let of_other = desk.ask("other", "GET", "/once", None);
    assert_eq!(of_other.refusal(), (404, "TRANSACTION_NOT_FOUND".to_owned()));
    let user = token(A, None);
    let path = "/api/v1/transactions/once";
    let of_user = send(desk.server().http, &Request::new(&user, "GET", path)).expect("an answer");
    assert_eq!(of_user.refusal(), (403, "FORBIDDEN".to_owned()));
    assert_eq!(desk.changes(&before), [(A, 0, -300), (B, 0, 300)]);
    desk.close();
}

/// GTX-003. Goal: a caller's business row and its transaction are committed both or neither.
/// Method: COMMIT and ROLLBACK, each with the server killed between the call and its end.
#[test]
fn gtx_003_a_business_row_and_its_transaction_share_a_commit() {
    let mut desk = Desk::new();
    desk.site().sql("CREATE TABLE orders (name TEXT)");
    desk.grant();
    let before = desk.balances();
    let body = json!({"round": 1, "decide": "caller", "ttl_ms": 20_000, "legs": legs(&[
        leg("FUNDING", A, B, "3"), leg("SPOT", B, A, "2"),
    ])});
    for (tx_id, end, kill) in
        [("paid", "COMMIT", false), ("back", "ROLLBACK", false), ("killed", "COMMIT", true)]
    {
        assert_eq!(desk.post(&format!("/{tx_id}/prepare"), &body).status, 200, "{tx_id}");
        let session = desk.site().session();
        session.sql(&format!(
            "BEGIN; SET LOCAL synchronous_commit = off; INSERT INTO orders VALUES ('{tx_id}'); \
             SELECT transaction_commit('shop', '{tx_id}', 1)"
        ));
        if kill {
            desk.kill();
        }
        session.sql(end);
        if kill {
            desk.start();
        }
    }
    desk.ends("paid", "DONE");
    desk.ends("killed", "DONE");
    assert_eq!(desk.post("/back/abort", &json!({})).status, 200);
    desk.ends("back", "CANCELLED");
    let orders = desk.site().sql("SELECT name FROM orders ORDER BY name");
    assert_eq!(orders, [["killed"], ["paid"]]);
    assert_eq!(desk.changes(&before), [(A, -600, 400), (B, 600, -400)]);
    desk.close();
}

/// GTX-004. Goal: a slow local transaction behind `transaction_commit` outlives its age, and one
/// that calls it behind the abort fails whole.
#[test]
fn gtx_004_a_session_with_the_row_outlives_the_age() {
    let desk = Desk::new();
    desk.grant();
    let before = desk.balances();
    let body = json!({"round": 1, "decide": "caller", "ttl_ms": 1_000, "legs": legs(&[
        leg("FUNDING", A, B, "3"), leg("SPOT", B, A, "2"),
    ])});
    assert_eq!(desk.post("/slow/prepare", &body).status, 200);
    let session = desk.site().session();
    session.sql("BEGIN; SELECT transaction_commit('shop', 'slow', 1)");
    // Another one ends by its age meanwhile, so the age of the first one is over too.
    assert_eq!(desk.post("/late/prepare", &body).status, 200);
    desk.ends("late", "CANCELLED");
    desk.is("slow", "OPEN");
    session.sql("COMMIT");
    desk.ends("slow", "DONE");
    let late = desk.site().session();
    assert_eq!(late.sql_refused("SELECT transaction_commit('shop', 'late', 1)"), "UB010");
    assert_eq!(desk.changes(&before), [(A, -300, 200), (B, 300, -200)]);
    desk.close();
}

/// RCV-002. Goal: the tick finishes what is due without a restart, and a row that PostgreSQL does
/// not take stops no other one. Method: a trigger refuses the end of one transaction.
#[test]
fn rcv_002_one_poisonous_row_stops_no_other() {
    let desk = Desk::new();
    desk.site().sql(
        "CREATE FUNCTION poison() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
         IF NEW.tx_id = 'poison' AND NEW.state <> 0 THEN RAISE EXCEPTION 'poison'; END IF; \
         RETURN NEW; END $$; \
         CREATE TRIGGER poison BEFORE UPDATE ON transactions_tb \
         FOR EACH ROW EXECUTE FUNCTION poison()",
    );
    let before = desk.balances();
    let body = |tx_id: &str| {
        json!({"tx_id": tx_id, "wait_ms": 100,
            "legs": legs(&[leg("FUNDING", A, B, "3"), leg("SPOT", B, A, "2")])})
    };
    assert_eq!(desk.post("", &body("poison")).status, 202);
    for tx_id in ["one", "two"] {
        desk.post("", &body(tx_id));
        desk.ends(tx_id, "DONE");
    }
    desk.is("poison", "OPEN");
    desk.site().sql("DROP TRIGGER poison ON transactions_tb");
    desk.ends("poison", "DONE");
    assert_eq!(desk.changes(&before), [(A, -900, 600), (B, 900, -600)]);
    desk.close();
}

/// RCV-003. Goal: a superseded process decides, confirms, cancels and answers nothing. Method:
/// another process takes over while a caller's transaction is tried; the commit is sent to the
/// first one.
#[test]
fn rcv_003_a_superseded_process_decides_nothing() {
    let mut desk = Desk::new();
    let before = desk.balances();
    let body = json!({"round": 1, "decide": "caller", "legs": legs(&[
        leg("FUNDING", A, B, "3"), leg("SPOT", B, A, "2"),
    ])});
    assert_eq!(desk.post("/ours/prepare", &body).status, 200);
    desk.site().take_over();
    let answer = desk.try_post("/ours/commit", &json!({"wait_ms": 1_000}));
    assert!(answer.is_none(), "it has learned, and answers nothing more: {answer:?}");
    desk.wait_for_end();
    assert_eq!(desk.site().sql_value("SELECT state FROM transactions_tb"), "0");
    desk.start();
    assert_eq!(desk.post("/ours/abort", &json!({})).status, 200);
    desk.ends("ours", "CANCELLED");
    assert_eq!(desk.changes(&before), []);
    desk.close();
}

/// Goal: while halted, nothing is decided, and a decision that stands is told. Method: halt between
/// prepare and commit; resume.
#[test]
fn a_halt_decides_nothing_and_a_resume_goes_on() {
    let desk = Desk::new();
    let before = desk.balances();
    let body = json!({"round": 1, "decide": "caller", "legs": legs(&[
        leg("FUNDING", A, B, "3"), leg("SPOT", B, A, "2"),
    ])});
    assert_eq!(desk.post("/halted/prepare", &body).status, 200);
    let reply = desk.server().admin("POST", "/admin/v1/halt", &json!({"reason": "a test"}));
    assert_eq!(reply.status, 200, "{reply:?}");
    for what in ["commit", "abort"] {
        let reply = desk.post(&format!("/halted/{what}"), &json!({}));
        assert_eq!(reply.refusal(), (503, "SERVICE_HALTED".to_owned()), "{what}");
    }
    let again = desk.post("/halted/prepare", &body);
    assert_eq!(again.status, 200, "{again:?}");
    let new = desk.post("/new/prepare", &body);
    assert_eq!(new.refusal(), (503, "SERVICE_HALTED".to_owned()));
    assert_eq!(desk.server().resume("a test").status, 200);
    assert_eq!(desk.post("/halted/commit", &json!({})).status, 200);
    desk.ends("halted", "DONE");
    assert_eq!(desk.changes(&before), [(A, -300, 200), (B, 300, -200)]);
    desk.close();
}

/// Goal: an operator sees the holds of both stores, each with its account and transaction, page by
/// page, and is told that they end with the transaction. Method: a round of both stores that is
/// tried; the routes and the command line.
#[test]
fn an_operator_sees_the_holds_of_both_stores() {
    let desk = Desk::new();
    let body = json!({"round": 1, "decide": "caller", "legs": legs(&[
        leg("FUNDING", A, B, "3"), leg("FUNDING", C, B, "1"), leg("SPOT", B, A, "2"),
    ])});
    let reply = desk.post("/held/prepare", &body);
    assert_eq!(reply.status, 200, "{reply:?}");
    let name = text(&reply.json()["transaction_id"]).to_owned();
    let list = |query: &str| {
        let (mut found, mut cursor) = (Vec::new(), String::new());
        loop {
            let page = desk.server().admin_get(&format!("/admin/v1/holds?{query}{cursor}"));
            assert_eq!(page.status, 200, "{page:?}");
            let page = page.json();
            for hold in page["holds"].as_array().expect("holds") {
                assert_eq!(hold["transaction"], json!(name), "{hold}");
                let of = |key: &str| text(&hold[key]).to_owned();
                found.push((
                    of("account"),
                    hold["user_id"].as_u64().expect("a user"),
                    of("amount"),
                ));
            }
            match page["next_cursor"].as_str() {
                Some(next) => cursor = format!("&cursor={next}"),
                None => return found,
            }
        }
    };
    let hold = |account: &str, user, amount: &str| (account.to_owned(), user, amount.to_owned());
    let mut on_funding = vec![hold("FUNDING", A, "3"), hold("FUNDING", C, "1")];
    // A payee has a hold of 0: its status was checked.
    on_funding.insert(1, hold("FUNDING", B, "0"));
    let all = [vec![hold("SPOT", B, "2")], on_funding.clone()].concat();
    for limit in 1..=5 {
        assert_eq!(list(&format!("limit={limit}")), all, "{limit}");
    }
    assert_eq!(list("account=FUNDING&limit=2"), on_funding);
    assert_eq!(list("account=SPOT"), all[..1]);
    assert_eq!(list(&format!("user={A}")), on_funding[..1]);
    assert_eq!(list("venue=7"), []);
    assert_eq!(list("older_ms=3600000"), []);
    for bad in ["account=x", "cursor=funding.x", "cursor=x"] {
        let refused = desk.server().admin_get(&format!("/admin/v1/holds?{bad}"));
        assert_eq!(refused.refusal(), (400, "INVALID_REQUEST".to_owned()), "{bad}");
    }
    let ops = format!("http://{}", desk.server().ops);
    let command = |line: &str| {
        let arguments: Vec<&str> = line.split(' ').chain(["--dev", "--ops", &ops]).collect();
        said(&cli(&arguments))
    };
    let id = format!("FUNDING:{name}:{A}:{}", domain::asset::AssetId(3).0);
    for shown in [format!("hold show {id}"), "hold list --account funding".to_owned()] {
        let (code, out, _) = command(&shown);
        assert_eq!(code, 0, "{out}");
        assert!(out.contains(&id) && out.contains("FUNDING"), "{out}");
    }
    let (code, _, why) = command(&format!("hold release {id} --reason test"));
    assert_eq!(code, 1, "{why}");
    assert!(why.contains(&format!("ubscore transaction abort {name}")), "{why}");
    let (code, out, _) = command(&format!("transaction abort {name} --reason test"));
    assert!(code == 0 && out.starts_with(&format!("aborted: {name}: ")), "{out}");
    assert_eq!(list(""), []);
    desk.close();
}

/// Between two looks of a helper.
const POLL: Duration = Duration::from_millis(20);

/// The text of a field.
fn field<'a>(row: &'a Value, name: &str) -> &'a str {
    text(&row[name])
}
