//! PostgreSQL or the log is behind the other one: each transaction is named, and ends by a repair.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use domain::posting::{ALL, Place};
use serde_json::{Value, json};

use super::desk::{Desk, Service, leg, legs};
use super::{A, B, C, part};
use crate::harness::{SetAtEnd, Site, Way, cut_log, eventually, forgetful, repair, soak_rounds};
use crate::stream::client::{self, USDT, Venue};

pub(super) const APPLY: [&str; 3] = ["--apply", "--reason", "a backup was restored"];

/// A round of both stores, decided by its caller.
pub(super) fn both() -> Value {
    json!({"round": 1, "decide": "caller", "ttl_ms": 90_000, "legs": legs(&[
        leg("FUNDING", A, B, "3"), leg("SPOT", B, A, "2"),
    ])})
}

/// A round of Spot alone.
pub(super) fn spot(amount: &str) -> Value {
    json!({"round": 1, "decide": "caller", "ttl_ms": 90_000, "legs": legs(&[
        leg("SPOT", A, C, amount),
    ])})
}

pub(super) fn prepare(desk: &Desk, tx_id: &str, body: &Value) {
    done(desk, tx_id, "prepare", body);
}

pub(super) fn end(desk: &Desk, tx_id: &str, word: &str, state: &str) {
    done(desk, tx_id, word, &json!({}));
    desk.ends(tx_id, state);
}

/// A call that succeeds. On a machine that stands still PostgreSQL may be late: it is repeated.
fn done(desk: &Desk, tx_id: &str, word: &str, body: &Value) {
    let reply = eventually("an answer of PostgreSQL", || {
        let reply = desk.post(&format!("/{tx_id}/{word}"), body);
        (reply.status != 503).then_some(reply)
    });
    assert_eq!(reply.status, 200, "{tx_id}: {reply:?}");
}

/// RCV-005. Goal: transactions that a restored PostgreSQL lacks, or has undecided, are named and
/// end: what Spot has settled stays settled, and nothing stays apart. Method: a copy of the
/// database between the prepare and the end of some, and before others; the log goes on.
#[test]
fn rcv_005_a_restored_database_gets_its_transactions_from_the_log() {
    let mut desk = Desk::new();
    for tx_id in ["paid", "dropped", "kept", "longer", "wider"] {
        prepare(&desk, tx_id, &both());
    }
    desk.kill();
    let restored = desk.site().with_copied_database();
    desk.start();
    let before = desk.balances();
    end(&desk, "paid", "commit", "DONE");
    end(&desk, "dropped", "abort", "CANCELLED");
    for (tx_id, amount) in [("new-paid", "1"), ("new-dropped", "4"), ("new-open", "8")] {
        prepare(&desk, tx_id, &spot(amount));
    }
    end(&desk, "new-paid", "commit", "DONE");
    end(&desk, "new-dropped", "abort", "CANCELLED");
    let second = json!({"round": 2, "legs": legs(&[
        leg("FUNDING", A, B, "1"), leg("SPOT", A, C, "1"),
    ])});
    for tx_id in ["longer", "wider"] {
        prepare(&desk, tx_id, &second);
    }
    end(&desk, "longer", "commit", "DONE");
    assert_eq!(desk.changes(&before), [(A, -700, 200), (B, 700, -400), (C, 0, 200)]);
    desk.kill();

    let (code, said) = restored.start_refused();
    assert_eq!(code, 70, "{said}");
    let (code, planned, why) = repair(&restored, &["--plan"]);
    assert_eq!(code, Some(0), "{planned}{why}");
    for (tx_id, word) in [
        ("paid", "move it to COMMITTED"),
        ("dropped", "move it to ABORTED"),
        ("longer", "move it to COMMITTED"),
        ("wider", "move it to ABORTED"),
        ("new-paid", "again as DONE"),
        ("new-dropped", "again as CANCELLED"),
        ("new-open", "again as ABORTED"),
    ] {
        let line = planned.lines().find(|line| line.contains(&format!("tx_id {tx_id}:")));
        assert!(line.is_some_and(|line| line.contains(word)), "{tx_id} {word}: {planned}");
    }
    assert!(!planned.contains("tx_id kept:"), "{planned}");
    let (code, done, why) = repair(&restored, &APPLY);
    assert_eq!(code, Some(0), "{done}{why}");
    assert!(done.ends_with("repaired transfers=0 transactions=7 left=0\n"), "{done}");
    assert_eq!(done.matches("\nlook ").count(), 2, "Funding's parts of two: {done}");
    let (_, again, _) = repair(&restored, &["--plan"]);
    assert_eq!(again, "planned transfers=0 left=0\n");

    desk.moves_to(restored);
    end(&desk, "kept", "commit", "DONE");
    assert_eq!(desk.changes(&before), [(A, -900, 400), (B, 900, -600), (C, 0, 200)]);
    // Its service asks again: it is booked once.
    for tx_id in ["new-paid", "new-open"] {
        let reply = desk.post(&format!("/{tx_id}/prepare"), &spot("1"));
        assert_eq!(reply.refusal(), (409, "TX_ID_CONFLICT".to_owned()), "{tx_id}");
    }
    desk.close();
}

/// RCV-005. Goal: decisions on Spot that a cut of the log has lost are made again as the rows of
/// their transactions prove. Method: a cut behind one RESERVE: its RELEASE is lost, and so are
/// RESERVE and SETTLE of a paid transaction, and the RESERVE of an open one.
#[test]
fn rcv_005_a_cut_log_gets_its_transactions_from_postgresql() {
    let mut desk = Desk::new();
    let before = desk.balances();
    prepare(&desk, "dropped", &both());
    let kept = "SELECT max(log_sequence) + 1 FROM transaction_branches";
    let from = desk.site().sql_value(kept).parse().expect("a record");
    prepare(&desk, "paid", &both());
    prepare(&desk, "kept", &both());
    end(&desk, "paid", "commit", "DONE");
    end(&desk, "dropped", "abort", "CANCELLED");
    desk.kill();
    cut_log(desk.site(), from);
    let (code, planned, why) = repair(desk.site(), &["--plan"]);
    assert_eq!(code, Some(0), "{planned}{why}");
    for (tx_id, words) in
        [("paid", &["RESERVE", "SETTLE"][..]), ("dropped", &["RELEASE"]), ("kept", &["RESERVE"])]
    {
        for word in words {
            let line = format!("tx_id {tx_id}: have its {word} on Spot decided again");
            assert!(planned.contains(&line), "{line}: {planned}");
        }
    }
    let (code, done, why) = repair(desk.site(), &APPLY);
    assert_eq!(code, Some(0), "{done}{why}");
    assert!(done.ends_with("repaired transfers=0 transactions=3 left=0\n"), "{done}");
    desk.start();
    assert_eq!(desk.server().resume("repaired").status, 200);
    end(&desk, "kept", "commit", "DONE");
    assert_eq!(desk.changes(&before), [(A, -600, 400), (B, 600, -400)]);
    desk.close();
}

/// RCV-006. Goal: a planted difference between the log and the row of a transaction halts, and is
/// named with its transaction and record. Method: a row in another state, and a row that is gone.
#[test]
fn rcv_006_a_planted_state_of_a_transaction_is_named_and_halts() {
    let desk = Desk::new();
    prepare(&desk, "paid", &spot("1"));
    end(&desk, "paid", "commit", "DONE");
    prepare(&desk, "dropped", &spot("1"));
    end(&desk, "dropped", "abort", "CANCELLED");
    let server = desk.server();
    for (tx_id, change, word) in [
        ("paid", "UPDATE transactions_tb SET state = -20 WHERE tx_id = 'paid'", "CANCELLED"),
        ("dropped", "UPDATE transactions_tb SET state = 40 WHERE tx_id = 'dropped'", "DONE"),
        ("paid", "DELETE FROM transactions_tb WHERE tx_id = 'paid'", "no such transaction"),
    ] {
        let id = desk.site().sql_value(&format!(
            "SELECT ulid_text(transaction_id) FROM transactions_tb WHERE tx_id = '{tx_id}'"
        ));
        desk.site().sql(&format!(
            "DROP TABLE IF EXISTS was; \
             CREATE TABLE was AS SELECT * FROM transactions_tb WHERE tx_id = '{tx_id}'; \
             SET session_replication_role = replica; {change}"
        ));
        eventually("a halt", || (server.ready() == 503).then_some(()));
        let refused = server.resume("hope");
        assert_eq!(refused.status, 503, "{refused:?}");
        for part in [format!("transaction {id}").as_str(), "record", word] {
            assert!(server.said().contains(part), "{tx_id} {part}: {}", server.said());
        }
        desk.site().sql(&format!(
            "SET session_replication_role = replica; \
             DELETE FROM transactions_tb WHERE tx_id = '{tx_id}'; \
             INSERT INTO transactions_tb SELECT * FROM was"
        ));
        assert_eq!(server.resume("undone").status, 200);
    }
    desk.close();
}

/// RCV-006. Goal: a row that claims an outcome on Spot that the log does not have halts, and is
/// named with its transaction and its claim. Method: each claim planted in a row without touching
/// the log; each is undone again.
#[test]
fn rcv_006_a_planted_claim_without_its_record_is_named_and_halts() {
    let desk = Desk::on(Site::new().with("UBSCORE__CONSERVATION__EVERY_MS", 50), &[]);
    prepare(&desk, "open", &spot("1"));
    for (tx_id, word, state) in [("paid", "commit", "DONE"), ("dropped", "abort", "CANCELLED")] {
        prepare(&desk, tx_id, &spot("1"));
        end(&desk, tx_id, word, state);
    }
    let branch = |state: i16, tx_id: &str| {
        format!(
            "UPDATE transaction_branches SET state = {state} WHERE transaction_id = \
               (SELECT transaction_id FROM transactions_tb WHERE tx_id = '{tx_id}')"
        )
    };
    let row = |state: i16, tx_id: &str| {
        format!(
            "UPDATE transactions_tb SET state = {state}, sealed = TRUE, decided_by = 'x', \
               decided_at = now(), finished_at = now() WHERE tx_id = '{tx_id}'"
        )
    };
    let stranger = "UPDATE transactions_tb SET transaction_id = ulid_uuid('01ARZ3NDEKTSV4RRFFQ69G5FAV'), tx_id = 'stranger', \
                      order_number = order_number + 1000000 WHERE tx_id = 'paid'; \
                    UPDATE transaction_branches SET state = 20, transaction_id = \
                      (SELECT transaction_id FROM transactions_tb WHERE tx_id = 'stranger') \
                      WHERE transaction_id NOT IN (SELECT transaction_id FROM transactions_tb); \
                    UPDATE transactions_tb SET state = 30, finished_at = NULL WHERE tx_id = 'stranger'; \
                    INSERT INTO transactions_tb SELECT * FROM was; \
                    INSERT INTO transaction_branches SELECT * FROM branches_were";
    for (tx_id, named, change, words) in [
        ("open", "open", branch(40, "open"), ["CONFIRMED in round 1", "no SETTLE of it"]),
        (
            "open",
            "open",
            format!("{}; {}", row(-20, "open"), branch(-20, "open")),
            ["CANCELLED in round 1", "no RELEASE of it"],
        ),
        ("paid", "stranger", stranger.to_owned(), ["TRIED in round 1", "no RESERVE of it"]),
        ("paid", "paid", branch(20, "paid"), ["TRIED in round 1", "although it is DONE"]),
        (
            "dropped",
            "dropped",
            branch(10, "dropped"),
            ["TRYING in round 1", "although it is CANCELLED"],
        ),
    ] {
        planted(&desk, tx_id, named, &change, &words);
    }
    end(&desk, "open", "commit", "DONE");
    desk.close();
}

/// Plants a change without guards, waits for the halt that names it, takes it back, and resumes.
fn planted(desk: &Desk, tx_id: &str, named: &str, change: &str, words: &[&str]) {
    let (server, begun) = (desk.server(), desk.server().said().len());
    let of_both = "(SELECT transaction_id FROM transactions_tb WHERE tx_id IN";
    desk.site().sql(&format!(
        "DROP TABLE IF EXISTS was, branches_were; \
         CREATE TABLE was AS SELECT * FROM transactions_tb WHERE tx_id = '{tx_id}'; \
         CREATE TABLE branches_were AS SELECT * FROM transaction_branches \
           WHERE transaction_id IN {of_both} ('{tx_id}')); \
         BEGIN; SET LOCAL session_replication_role = replica; {change}; COMMIT"
    ));
    let id = desk.site().sql_value(&format!(
        "SELECT ulid_text(transaction_id) FROM transactions_tb WHERE tx_id = '{named}'"
    ));
    eventually("a halt", || (server.ready() == 503).then_some(()));
    let refused = server.resume("hope");
    assert_eq!(refused.status, 503, "{refused:?}");
    let said = server.said()[begun..].to_owned();
    let found =
        said.lines().find(|line| line.contains("conservation_violated") && line.contains(&id));
    for word in words {
        assert!(found.is_some_and(|line| line.contains(word)), "{named} {word}: {said}");
    }
    desk.site().sql(&format!(
        "BEGIN; SET LOCAL session_replication_role = replica; \
         DELETE FROM transaction_branches WHERE transaction_id IN {of_both} ('{tx_id}', '{named}')); \
         DELETE FROM transactions_tb WHERE tx_id IN ('{tx_id}', '{named}'); \
         INSERT INTO transactions_tb SELECT * FROM was; \
         INSERT INTO transaction_branches SELECT * FROM branches_were; COMMIT"
    ));
    let resumed = server.resume("undone");
    assert_eq!(resumed.status, 200, "{named}: {resumed:?}");
}

/// Rounds of the audit beside a crowd in `make test`; `make soak FAMILY=transactions` has more.
const ROUNDS: u64 = 60;
/// The rounds that RCV-006 demands at least.
const ROUNDS_SOAKED: u64 = 240;
const VENUE: u32 = 7;

/// RCV-006. Goal: no false alarm under load. Method: an audit that runs at once again, beside
/// transactions of several rounds, committed and aborted, from some threads, transfers, and a
/// venue's trades. Outcomes are forgotten as soon as that is allowed.
#[test]
fn rcv_006_no_round_of_the_audit_alarms_falsely_under_load() {
    let site = forgetful(Site::new()).with("UBSCORE__CONSERVATION__EVERY_MS", 10);
    let socket = site.fresh_path("stream");
    let desk = Desk::on(site.with("UBSCORE__STREAM__SOCKET", socket.display()), &[]);
    let added = json!({"name": "book", "reason": "a test"});
    let reply = desk.server().admin("PUT", &format!("/admin/v1/venues/{VENUE}"), &added);
    assert_eq!(reply.status, 200, "{reply:?}");
    let before = desk.balances();
    let rounds = soak_rounds().map_or(ROUNDS, |_| ROUNDS_SOAKED);
    let clean = || desk.server().metric("ubscore_conservation_runs_total{result=\"clean\"}");
    let (first, ended) = (clean(), AtomicBool::new(false));
    let (paid, traded) = thread::scope(|scope| {
        let callers: Vec<_> = (0..3)
            .map(|thread| {
                let (desk, ended) = (&desk, &ended);
                scope.spawn(move || pay_until(desk, thread, ended))
            })
            .collect();
        let venue = scope.spawn(|| trade_until(&socket, &ended));
        scope.spawn(|| {
            while !ended.load(Ordering::Relaxed) {
                for way in [Way::ToFunding, Way::ToSpot] {
                    desk.server().transfer_ended(C, way, "0.01");
                }
            }
        });
        let _ended = SetAtEnd(&ended);
        eventually("rounds of the audit", || {
            let halted = desk.server().ready() != 200;
            assert!(!halted, "{}", desk.server().said());
            (clean() - first >= rounds).then_some(())
        });
        ended.store(true, Ordering::Relaxed);
        let paid: i128 = callers.into_iter().map(|caller| caller.join().expect("no panic")).sum();
        (paid, venue.join().expect("no panic"))
    });
    assert!(paid > 0 && traded > 0, "{paid} {traded}");
    desk.rests();
    let changes = [(A, -paid, traded), (B, paid, -paid), (C, 0, paid - traded)];
    let changes: Vec<_> = changes.into_iter().filter(|(_, f, s)| (*f, *s) != (0, 0)).collect();
    assert_eq!(desk.changes(&before), changes);
    assert_eq!(desk.server().ready(), 200, "{}", desk.server().said());
    assert!(!desk.server().said().contains("conservation_violated"), "{}", desk.server().said());
    desk.close();
}

/// One transaction of two rounds after the other, each second one aborted. Returns the number of
/// the committed ones: each moves a cent in four places.
fn pay_until(desk: &Desk, thread: usize, ended: &AtomicBool) -> i128 {
    let mut paid = 0;
    for number in 0.. {
        if ended.load(Ordering::Relaxed) {
            break;
        }
        let tx_id = format!("load-{thread}-{number}");
        let mut cent = both();
        cent["legs"] = legs(&[leg("FUNDING", A, B, "0.01"), leg("SPOT", B, A, "0.01")]);
        // A lock that is waited for too long is a 503 behind which nothing has happened.
        let ask = |word: &str, body: &Value| {
            let reply = eventually("an answer", || {
                let reply = desk.post(&format!("/{tx_id}/{word}"), body);
                (reply.status != 503).then_some(reply)
            });
            assert!(reply.status < 300, "{tx_id}: {reply:?}");
        };
        ask("prepare", &cent);
        let second = json!({"round": 2, "legs": legs(&[leg("SPOT", A, C, "0.01")])});
        ask("prepare", &second);
        let commits = number % 2 == 0;
        ask(if commits { "commit" } else { "abort" }, &json!({}));
        paid += i128::from(commits);
    }
    paid
}

/// One trade after the other: a hold of C pays a cent to A, and gives the rest back. Returns the
/// number of trades.
fn trade_until(socket: &Path, ended: &AtomicBool) -> i128 {
    let (mut venue, _) = Venue::opened(socket, VENUE, 0);
    let (coin, cent) = (100_000_000, 1_000_000);
    let mut traded = 0;
    for number in (1..).step_by(2) {
        if ended.load(Ordering::Relaxed) {
            break;
        }
        venue.reserve(number, C, USDT, coin);
        let hold = Place::Hold(number);
        let [to, back] = [A, C].map(Place::Available);
        venue.settle(number + 1, &[client::leg(hold, to, cent), client::leg(hold, back, ALL)]);
        venue.succeed(number..number + 2);
        venue.acknowledge(number + 1);
        traded += 1;
    }
    traded
}

/// RCV-008. Goal: the watermark passes no unfinished transaction, and passes an ended one. Method:
/// outcomes are kept for a moment only; transfers behind an open transaction.
#[test]
fn rcv_008_the_watermark_passes_no_unfinished_transaction() {
    let desk = Desk::on(forgetful(Site::new()), &[]);
    prepare(&desk, "first", &both());
    end(&desk, "first", "commit", "DONE");
    prepare(&desk, "open", &both());
    let number = |tx_id: &str| -> u64 {
        let number = format!("SELECT order_number FROM transactions_tb WHERE tx_id = '{tx_id}'");
        desk.site().sql_value(&number).parse().expect("a number")
    };
    let mark = || desk.site().sql_value("SELECT watermark FROM engine_state").parse::<u64>();
    let passes = |number: u64| {
        eventually("the watermark to pass", || {
            desk.server().transfer_ended(A, Way::ToSpot, "0.01");
            (mark().expect("a number") > number).then_some(())
        });
    };
    passes(number("first"));
    for _ in 0..5 {
        desk.server().transfer_ended(A, Way::ToSpot, "0.01");
    }
    assert!(mark().expect("a number") <= number("open"));
    end(&desk, "open", "commit", "DONE");
    passes(number("open"));
    desk.site().wait_for_rest();
    desk.close();
}

/// RCV-005. Goal: a backup holds every state, and its copy goes on elsewhere. Method: a transaction
/// in each state, one of them with an open hold on Spot; services that answer only behind the
/// restore.
#[test]
fn rcv_005_a_backup_holds_transactions_in_every_state() {
    let done = || Some(json!({"outcome": "done"}));
    let coupons = Service::start(move |action, _| if action == "try" { done() } else { None });
    let bank = Service::start(|_, _| None);
    let services = [("COUPONS", "veto", &coupons), ("BANK", "last", &bank)];
    let mut desk = Desk::with(&services);
    let before = desk.balances();
    prepare(&desk, "done", &both());
    end(&desk, "done", "commit", "DONE");
    prepare(&desk, "cancelled", &both());
    end(&desk, "cancelled", "abort", "CANCELLED");
    prepare(&desk, "open", &both());
    let with_coupons = |tx_id: &str| {
        let mut body = both();
        body["participants"] = json!([part("coupons")]);
        prepare(&desk, tx_id, &body);
    };
    with_coupons("committed");
    desk.post("/committed/commit", &json!({"wait_ms": 100}));
    with_coupons("aborted");
    desk.post("/aborted/abort", &json!({"wait_ms": 100}));
    let mut last = json!({"tx_id": "deciding", "last": part("bank"), "wait_ms": 100});
    last["legs"] = both()["legs"].clone();
    desk.post("", &last);
    for (tx_id, state) in
        [("committed", "COMMITTED"), ("aborted", "ABORTED"), ("deciding", "DECIDING")]
    {
        desk.is(tx_id, state);
    }
    let (directory, elsewhere) = (desk.site().fresh_path("backup"), desk.site().elsewhere());
    let runs = |site: &Site, word: &str| {
        let output = site.tool([word]).arg(&directory).output().expect("the binary");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let said = text(&output.stdout);
        assert_eq!(output.status.code(), Some(0), "{said}{}", text(&output.stderr));
        said
    };
    runs(desk.site(), "backup");
    desk.kill();
    let said = runs(&elsewhere, "restore");
    assert!(said.contains("ok mismatches=0 "), "{said}");
    for service in [&coupons, &bank] {
        service.answers(move |_, _| done());
    }
    desk.moves_to(elsewhere);
    end(&desk, "open", "commit", "DONE");
    for (tx_id, state) in [("committed", "DONE"), ("aborted", "CANCELLED"), ("deciding", "DONE")] {
        desk.ends(tx_id, state);
    }
    assert_eq!(desk.changes(&before), [(A, -1200, 800), (B, 1200, -800)]);
    desk.close();
}
