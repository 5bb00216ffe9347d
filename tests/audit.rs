//! The audit: a change outside the service is found, named and halts the service; no other event
//! does.

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::json;
use ubscore::alert::Alert;

use domain::transfer::Op;

use crate::harness::{
    Server, SetAtEnd, Site, Way, copy_files, eventually, forgetful, segments, soak_rounds,
    wait_for_all_below, while_watched,
};

const USER: u64 = 1001;

/// A site with several audit rounds per second.
fn watched() -> Site {
    Site::new().with("UBSCORE__CONSERVATION__EVERY_MS", 50)
}

/// Four transfers that have ended each way, and one that was refused.
fn history(site: &Site, server: &Server) {
    for (way, amount) in
        [(Way::ToSpot, "10"), (Way::ToSpot, "5"), (Way::ToFunding, "3"), (Way::ToFunding, "1")]
    {
        assert_eq!(server.transfer(USER, way, amount).status, 200);
    }
    assert_eq!(server.transfer(USER, Way::ToFunding, "9999").status, 422);
    server.deposit(USER + 1, "BTC", "2.5");
    site.wait_for_rest();
}

fn runs(server: &Server, result: &str) -> u64 {
    let name = format!("ubscore_conservation_runs_total{{result=\"{result}\"}} ");
    let metrics = server.metrics();
    let line = metrics.lines().find_map(|line| line.strip_prefix(&name));
    line.map_or(0, |count| count.parse().expect("a count"))
}

/// One change outside the service, and the words that the alert must contain.
struct Tampering {
    action: &'static str,
    undo: &'static str,
    says: &'static [&'static str],
}

const TAMPERINGS: &[Tampering] = &[
    Tampering {
        action: "UPDATE balances_tb SET available = available + 7e8 WHERE user_id = 1001 AND asset_id = 3",
        undo: "UPDATE balances_tb SET available = available - 7e8 WHERE user_id = 1001 AND asset_id = 3",
        // The change may fall between the two comparisons of a round, which differ in one word.
        says: &["user 1001", "USDT", "Funding is 7 more than ", "its operations"],
    },
    Tampering {
        action: "CREATE TABLE kept AS SELECT * FROM balances_tb WHERE user_id = 1002 AND asset_id = 3; \
               DELETE FROM balances_tb WHERE user_id = 1002 AND asset_id = 3",
        undo: "INSERT INTO balances_tb SELECT * FROM kept; DROP TABLE kept",
        says: &["user 1002", "Funding is 10000 less than ", "its operations"],
    },
    Tampering {
        action: "SET session_replication_role = replica; \
               UPDATE external_operations SET amount = 3.5e8 WHERE amount = 2.5e8",
        undo: "SET session_replication_role = replica; \
               UPDATE external_operations SET amount = 2.5e8 WHERE amount = 3.5e8",
        says: &["user 1002", "BTC", "external operations add up to 1 more"],
    },
    Tampering {
        action: "SET session_replication_role = replica; \
               CREATE TABLE kept AS SELECT order_number, funding_at, funding_after FROM transfers_tb \
               WHERE state = 40 AND direction = 2 AND amount = 3e8; \
               UPDATE transfers_tb SET funding_at = NULL, funding_after = NULL \
               WHERE order_number IN (SELECT order_number FROM kept)",
        undo: "UPDATE transfers_tb t SET funding_at = k.funding_at, funding_after = k.funding_after \
               FROM kept k WHERE k.order_number = t.order_number; DROP TABLE kept",
        says: &["user 1001", "USDT", "difference -3", "COMMITTED", "DEPOSIT"],
    },
    Tampering {
        action: "SET session_replication_role = replica; \
               UPDATE transfers_tb SET amount = 11e8 WHERE amount = 10e8 AND user_id = 1001",
        undo: "SET session_replication_role = replica; \
               UPDATE transfers_tb SET amount = 10e8 WHERE amount = 11e8 AND user_id = 1001",
        says: &["user 1001", "USDT", "DEPOSIT", "another user, asset or amount"],
    },
    Tampering {
        action: "UPDATE transfers_tb SET refund_at = now() WHERE direction = 1 AND amount = 10e8",
        undo: "SET session_replication_role = replica; UPDATE transfers_tb SET refund_at = NULL",
        says: &["user 1001", "USDT", "difference 10", "REFUND"],
    },
    Tampering {
        action: "SET session_replication_role = replica; \
               UPDATE transfers_tb SET state = -10 WHERE direction = 2 AND amount = 1e8",
        undo: "SET session_replication_role = replica; \
               UPDATE transfers_tb SET state = 40 WHERE direction = 2 AND amount = 1e8",
        says: &["user 1001", "USDT", "FAILED"],
    },
    // With its change of the balance, so that only the log has it.
    Tampering {
        action: "SET session_replication_role = replica; \
               CREATE TABLE kept AS SELECT * FROM transfers_tb WHERE direction = 1 AND amount = 5e8; \
               DELETE FROM transfers_tb WHERE req_id IN (SELECT req_id FROM kept); \
               UPDATE balances_tb SET available = available + 5e8 WHERE user_id = 1001 AND asset_id = 3; \
               UPDATE audit_totals SET journal = journal + 5e8 WHERE user_id = 1001 AND asset_id = 3",
        undo: "INSERT INTO transfers_tb SELECT * FROM kept; DROP TABLE kept; \
               UPDATE balances_tb SET available = available - 5e8 WHERE user_id = 1001 AND asset_id = 3; \
               UPDATE audit_totals SET journal = journal - 5e8 WHERE user_id = 1001 AND asset_id = 3",
        says: &["user 1001", "USDT", "difference 5", "no such transfer"],
    },
    Tampering {
        action: "INSERT INTO transfers_tb (order_number, req_id, user_id, asset_id, amount, direction, state) \
               VALUES (1, '00000000-0000-0000-0000-000000000000', 1002, 3, 4e8, 1, -10)",
        undo: "SET session_replication_role = replica; DELETE FROM transfers_tb WHERE order_number = 1",
        says: &["a row of transfers_tb has the req_id 0"],
    },
    Tampering {
        action: "UPDATE balances_tb SET available = available - 5e8, frozen = frozen + 5e8 \
               WHERE user_id = 1001 AND asset_id = 3",
        undo: "UPDATE balances_tb SET available = available + 5e8, frozen = frozen - 5e8 \
               WHERE user_id = 1001 AND asset_id = 3",
        says: &["user 1001", "USDT", "5 more is frozen on Funding than its freezes and open holds"],
    },
    Tampering {
        action: "INSERT INTO funding_holds VALUES (1152921504606846976, 1002, 3e8, 3e8, 0, 0, now(), \
               now(), 3, 10, 1, NULL, 1, TRUE, FALSE, NULL, 'planted:1002:3')",
        undo: "SET session_replication_role = replica; DELETE FROM funding_holds",
        says: &["user 1002", "USDT", "3 less is frozen", "planted:1002:3"],
    },
    Tampering {
        action: "INSERT INTO freezes_tb VALUES (1002, 3, 7, 3e8)",
        undo: "SET session_replication_role = replica; DELETE FROM freezes_tb",
        says: &["user 1002", "USDT", "3 less is frozen"],
    },
    // With its part of the balance, so that only the holds of the purpose show it.
    Tampering {
        action: "INSERT INTO freezes_tb VALUES (1002, 3, 8, 3e8); \
               UPDATE balances_tb SET available = available - 3e8, frozen = frozen + 3e8 \
               WHERE user_id = 1002 AND asset_id = 3",
        undo: "SET session_replication_role = replica; DELETE FROM freezes_tb; \
               UPDATE balances_tb SET available = available + 3e8, frozen = frozen - 3e8 \
               WHERE user_id = 1002 AND asset_id = 3",
        says: &["freeze of user 1002", "purpose 8", "300000000", "add up to 0"],
    },
    Tampering {
        action: "INSERT INTO balances_tb (user_id, asset_id, available) VALUES (0, 3, 4e8)",
        undo: "DELETE FROM balances_tb WHERE user_id = 0",
        says: &["user 0", "there is no such account"],
    },
];

/// Goal: any change in PostgreSQL outside the service is found while it runs, is named by user,
/// asset and difference, and halts; after the repair a resume continues. Method: each change by SQL
/// on a service at rest.
#[test]
fn what_is_changed_by_sql_is_found_named_and_halts() {
    // Story: on a busy machine the watermark rose over a changed row before the audit read it.
    // After the repair of the row its sum was wrong.
    let site = watched().with("UBSCORE__OUTCOMES__EVICT_EVERY_MS", 3_600_000);
    let server = site.start();
    history(&site, &server);
    for Tampering { action, undo, says } in TAMPERINGS {
        assert_eq!(server.ready(), 200, "before {action}");
        let said_before = server.said().len();
        site.sql(action);
        eventually("the halt", || (server.ready() == 503).then_some(()));
        // The last line of the halt: no caller is served before it is logged.
        let halted = "halted actor=\"audit\"";
        eventually("the halt in the log", || {
            server.said()[said_before..].contains(halted).then_some(())
        });
        assert_alerted(&server.said()[said_before..], says);
        let refused = server.transfer(USER, Way::ToSpot, "1");
        assert_eq!(refused.refusal(), (503, "SERVICE_HALTED".to_owned()));

        // Without a repair it stays halted.
        let resumed = server.resume("too early");
        assert_ne!(resumed.status, 200, "{action}: {resumed:?}");
        let report = server.admin_get("/admin/v1/conservation").json();
        assert_eq!(report["ok"], json!(false), "{report}");
        assert!(!report["mismatches"].as_array().expect("a list").is_empty(), "{report}");
        site.sql(undo);
        let report = server.admin_get("/admin/v1/conservation").json();
        assert_eq!((&report["ok"], &report["mismatches"]), (&json!(true), &json!([])), "{action}");
        let resumed = server.resume("repaired");
        assert_eq!(resumed.status, 200, "{action}: {resumed:?}");
    }
    assert_eq!(server.transfer(USER, Way::ToSpot, "1").status, 200);
    site.wait_for_rest();
    site.assert_in_order(&server);
}

/// The first line of defense: an ordinary statement cannot change or remove a journal row.
#[test]
fn journals_refuse_to_be_changed() {
    let site = watched();
    let server = site.start();
    history(&site, &server);
    for table in ["external_operations", "transfers_tb"] {
        for statement in [format!("UPDATE {table} SET amount = 1"), format!("DELETE FROM {table}")]
        {
            let refused = site.session().sql_refused(&statement);
            assert!(refused.contains("UB003") || refused.contains("journal"), "{refused}");
        }
    }
    site.assert_in_order(&server);
}

/// Goal: a change made while the service was down is found at the start. Method: the same changes,
/// after a kill.
#[test]
fn what_is_changed_while_it_is_down_is_found_at_the_start() {
    let site = watched();
    let mut server = site.start();
    history(&site, &server);
    for Tampering { action, undo, .. } in TAMPERINGS {
        server.kill();
        site.sql(action);
        server = site.start();
        eventually("the halt", || (server.ready() == 503).then_some(()));
        server.kill();
        site.sql(undo);
        server = site.start();
        let resumed = server.resume("repaired");
        assert_eq!(resumed.status, 200, "{action}: {resumed:?}");
    }
    assert_eq!(server.transfer(USER, Way::ToSpot, "1").status, 200);
    site.wait_for_rest();
    site.assert_in_order(&server);
}

/// Goal: a start refuses a PostgreSQL that is older than the log, and names each lost transfer.
/// Method: a copy of the database, more transfers, and then the copy in the database's place, like
/// a restored backup.
#[test]
fn a_database_restored_from_a_backup_is_found_at_the_start() {
    let site = watched();
    let server = site.start();
    history(&site, &server);
    server.stop();
    let restored = site.with_copied_database();
    let server = site.start();
    let lost = server.transfer(USER, Way::ToSpot, "2");
    assert_eq!(lost.status, 200);
    site.wait_for_rest();
    server.kill();

    let (code, said) = restored.start_refused();
    assert_eq!(code, 70, "{said}");
    for word in ["user 1001", "USDT", "difference 2", &lost.req_id(), "no such transfer"] {
        assert!(said.contains(word), "{word}: {said}");
    }
}

/// Goal: a PostgreSQL that goes back under the running service is found, with every lost transfer.
/// Method: the database copied; more transfers, which rounds have checked; and the copy in the
/// database's place, without a restart.
#[test]
fn a_database_that_goes_back_under_the_service_is_found() {
    let site = watched();
    let server = site.start();
    history(&site, &server);
    site.admit_connections(false);
    let copy = site.with_copied_database();
    site.admit_connections(true);
    copy.admit_connections(true);
    // The first transfer may meet a broken connection.
    let lost = [Way::ToSpot, Way::ToFunding].map(|way| server.transfer(USER, way, "2"));
    site.wait_for_rest();
    let seen = runs(&server, "clean") + 2;
    eventually("rounds that have seen them", || (runs(&server, "clean") >= seen).then_some(()));

    site.admit_connections(false);
    let (there, copied) = (&site.database, &copy.database);
    let other = site.with_fresh_database();
    other.sql(&format!("ALTER DATABASE {there} RENAME TO {there}_gone"));
    other.sql(&format!("ALTER DATABASE {copied} RENAME TO {there}"));
    eventually("the halt", || (server.ready() == 503).then_some(()));
    eventually("every transfer to be named", || {
        (server.said().contains("it has gone back")
            && lost.iter().all(|reply| server.has_named(reply)))
        .then_some(())
    });
    // Refused for the missing transfers, or because the sessions of that database are gone.
    let resumed = server.admin("POST", "/admin/v1/resume", &json!({ "reason": "hope" }));
    assert_eq!(resumed.status, 503, "{resumed:?}");
    assert_eq!(server.ready(), 503, "still halted");
}

/// Goal: a row that says more than the journal and the balance is found, also where it fits the
/// log. Method: a deposit is held, its process dies, and its row is written as if it took place.
#[test]
fn a_row_that_says_more_than_its_balance_is_found() {
    let site = watched();
    let server = site.start();
    history(&site, &server);
    let hold = site.hold_decision(Op::Deposit);
    let req_id = server.transfer_held(&site, USER, Way::ToFunding, "2");
    let pending = format!("SELECT state FROM transfers WHERE req_id = '{req_id}'");
    eventually("the deposit", || (site.sql_value(&pending) == "30").then_some(()));
    server.kill();
    site.cut_connections();
    hold.release();
    site.wait_for_disconnected();
    let change = |set: &str| {
        site.sql(&format!(
            "SET session_replication_role = replica; \
             UPDATE transfers_tb SET {set} WHERE req_id = ulid_uuid('{req_id}')"
        ))
    };
    change("state = 40, funding_at = now(), funding_after = 0");
    let server = site.start();
    eventually("the halt", || (server.ready() == 503).then_some(()));
    server.says("user 1001, USDT: Funding is 2 less than all its operations");
    assert_ne!(server.resume("too early").status, 200);
    server.stop();
    change("state = 30, funding_at = NULL, funding_after = NULL");
    let server = site.start();
    assert_eq!(server.resume("repaired").status, 200);
    site.wait_for_rest();
    site.assert_in_order(&server);
}

/// Goal: `ubscore verify` counts again the parts that no round counts again. Method: a balance
/// changed together with the sum that the rounds compare it with; a total below the watermark.
#[test]
fn a_verify_counts_everything_again() {
    let site = forgetful(watched());
    let server = site.start();
    history(&site, &server);
    wait_for_all_below(&site);
    server.stop();
    for (action, undo, says) in [
        (
            "UPDATE balances_tb SET available = available + 7e8 WHERE user_id = 1001 AND asset_id = 3; \
             UPDATE audit_totals SET journal = journal + 7e8 WHERE user_id = 1001 AND asset_id = 3",
            "UPDATE balances_tb SET available = available - 7e8 WHERE user_id = 1001 AND asset_id = 3; \
             UPDATE audit_totals SET journal = journal - 7e8 WHERE user_id = 1001 AND asset_id = 3",
            "user 1001, USDT: Funding is 7 more than all its operations",
        ),
        (
            "UPDATE watermark_totals SET external_deposited = external_deposited + 1e8 WHERE user_id = 1002 AND asset_id = 1",
            "UPDATE watermark_totals SET external_deposited = external_deposited - 1e8 WHERE user_id = 1002 AND asset_id = 1",
            "user 1002, BTC: the totals below the watermark are 1 more than their rows",
        ),
        (
            "UPDATE watermark_totals SET spot_deposited = spot_deposited + 1e8 WHERE user_id = 1001 AND asset_id = 3",
            "UPDATE watermark_totals SET spot_deposited = spot_deposited - 1e8 WHERE user_id = 1001 AND asset_id = 3",
            "user 1001, USDT: below the watermark transfers claim",
        ),
    ] {
        site.sql(action);
        let output = site.verify().output().expect("the binary");
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.code() == Some(1) && said.contains(says), "{says}: {said}");
        site.sql(undo);
        site.assert_verified();
    }
}

/// Goal: an older copy of the log, with its snapshots, is found at the start. Method: more
/// transfers after the copy was made, and the copy in the log's place.
#[test]
fn an_older_copy_of_the_log_is_found_at_the_start() {
    let site = watched();
    let server = site.start();
    history(&site, &server);
    server.kill();
    let older = site.data_dir.join("older");
    copy_files(&site.log_dir(), &older);
    let server = site.start();
    for way in Way::BOTH {
        assert_eq!(server.transfer(USER, way, "1").status, 200);
    }
    site.wait_for_rest();
    server.kill();
    fs::remove_dir_all(site.log_dir()).expect("removed");
    copy_files(&older, &site.log_dir());
    let (code, said) = site.start_refused();
    assert!(code != 0 && said.contains("durable"), "{code} {said}");
}

/// Goal: a segment of another log is found at the start, at any place. Method: a segment of another
/// site after the last, and in the place of the last.
#[test]
fn a_segment_of_another_log_is_found_at_the_start() {
    let [other, site] = [watched(), watched()];
    for site in [&other, &site] {
        let server = site.start();
        history(site, &server);
        server.kill();
        // Every start that writes records begins a segment of its own.
        site.start().kill();
    }
    let (_, foreign) = segments(&other).pop().expect("a segment");
    let (number, last) = segments(&site).pop().expect("a segment");
    let behind = last.with_file_name(format!("segment-{:016x}.wal", number + 1));
    for place in [behind, last] {
        fs::copy(&foreign, &place).expect("copied");
        let (code, said) = site.start_refused();
        let name = place.file_name().and_then(|name| name.to_str()).expect("text");
        assert!(code != 0 && said.contains(name), "{code} {said}");
        fs::remove_file(&place).expect("removed");
    }
}

/// Asserts that one line of the log is the alert, with every one of these words.
fn assert_alerted(said: &str, words: &[&str]) {
    let mut alerts = said.lines().filter(|line| line.contains("conservation_violated"));
    let all = |line: &str| words.iter().all(|word| line.contains(word));
    assert!(alerts.any(all), "no alert says {words:?} in {said}");
}

/// Goal: no false alarm. Method: rounds without a pause under a load of both ways and refusals.
/// Meanwhile outcomes are evicted and snapshots made; after each second clean round the connections
/// are cut or the process is stopped for a while, so that a slow machine gets through rounds as
/// well. A SIGKILL, and the same again. `make soak` asks for more rounds ([`soak_rounds`]).
#[test]
fn a_busy_service_is_never_called_wrong() {
    const KILLS: usize = 2;
    let rounds = (soak_rounds().unwrap_or(120) / KILLS) as u64;
    for fuse in [true, false] {
        let site = Site::fused(fuse)
            .with("UBSCORE__CONSERVATION__EVERY_MS", 10)
            .with("UBSCORE__OUTCOMES__KEEP_HOURS", "0.0001")
            .with("UBSCORE__OUTCOMES__EVICT_EVERY_MS", 50)
            .with("UBSCORE__SNAPSHOT__EVERY_RECORDS", 200)
            .with("UBSCORE__WAL__SEGMENT_BYTES", 1 << 16);
        for _ in 0..KILLS {
            let server = site.start();
            let done = AtomicBool::new(false);
            let two_rounds = || {
                let before = runs(&server, "clean");
                while runs(&server, "clean") < before + 2 && !done.load(Ordering::Relaxed) {
                    thread::sleep(Duration::from_millis(10));
                }
            };
            let disturb = || {
                two_rounds();
                site.cut_connections();
                two_rounds();
                server.signal(Signal::STOP);
                thread::sleep(Duration::from_millis(100));
                server.signal(Signal::CONT);
            };
            let load = |caller: usize| {
                let user = USER + u64::try_from(caller % 2).expect("small");
                for number in caller.. {
                    if done.load(Ordering::Relaxed) {
                        break;
                    }
                    // Its answer does not matter here: some find no money, some lose PostgreSQL.
                    let amount = ["1", "2", "5000"][number % 3];
                    server.transfer(user, Way::BOTH[number % 2], amount);
                }
            };
            while_watched(1, disturb, || {
                thread::scope(|scope| {
                    let (_done, load) = (SetAtEnd(&done), &load);
                    (0..8).for_each(|caller| drop(scope.spawn(move || load(caller))));
                    for round in 1..=rounds {
                        eventually("a clean round", || {
                            assert_eq!(runs(&server, "mismatch"), 0, "{}", server.said());
                            (runs(&server, "clean") >= round).then_some(())
                        });
                    }
                });
            });
            let said = server.said();
            assert_eq!(runs(&server, "mismatch"), 0, "{said}");
            for alert in
                [Alert::ConservationViolated, Alert::ProtocolViolation, Alert::SnapshotMismatch]
            {
                assert!(!said.contains(alert.name()), "{said}");
            }
            server.kill();
        }
        let server = site.start();
        site.wait_for_rest();
        let report = server.admin_get("/admin/v1/conservation").json();
        assert_eq!(report["ok"], json!(true), "{report}");
        site.assert_in_order(&server);
    }
}
