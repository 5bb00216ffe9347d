//! External deposits and withdrawals that PostgreSQL forgets: found live and over a restart, named,
//! and brought back.

#[cfg(feature = "crash")]
use crate::crash::start_alive;
use crate::harness::{
    ADMIN, Request, Server, Site, Way, eventually, external, repair, send, token, units,
};
use ubscore::http::auth::Role;

const USER: u64 = 1001;
const DEPOSITS: &str = "/admin/v1/deposits";
const WITHDRAWALS: &str = "/admin/v1/withdrawals";
const APPLY: [&str; 3] = ["--apply", "--reason", "PostgreSQL went back"];

/// Deposits 500 and withdraws 2,000 outside, both answered; one withdrawal is refused.
fn answered(server: &Server) {
    for (path, amount, idem_key, outcome) in [
        (DEPOSITS, "500", "in-lost", "SUCCESS"),
        (WITHDRAWALS, "2000", "out-lost", "SUCCESS"),
        (WITHDRAWALS, "99999", "refused-lost", "REFUSED"),
    ] {
        let reply = ask(server, path, amount, idem_key);
        assert_eq!((reply.0, &*reply.1), (200, outcome), "{idem_key}");
    }
}

/// Status and outcome of one external operation of [`USER`] in USDT.
fn ask(server: &Server, path: &str, amount: &str, idem_key: &str) -> (u16, String) {
    let reply = server.admin("POST", path, &external(USER, "USDT", amount, idem_key));
    let outcome = match reply.status {
        200 => reply.json()["outcome"].as_str().unwrap_or_default().to_owned(),
        _ => reply.refusal().1,
    };
    (reply.status, outcome)
}

/// Replaces the site's database by `copy`, with or without a running service.
pub(super) fn go_back(site: &Site, copy: &Site) {
    site.admit_connections(false);
    let (there, copied) = (&site.database, &copy.database);
    let other = site.with_fresh_database();
    other.sql(&format!("ALTER DATABASE {there} RENAME TO {there}_gone"));
    other.sql(&format!("ALTER DATABASE {copied} RENAME TO {there}"));
}

/// A copy of the database of a running service.
pub(super) fn copied(site: &Site) -> Site {
    site.admit_connections(false);
    let copy = site.with_copied_database();
    site.admit_connections(true);
    copy.admit_connections(true);
    copy
}

fn names_all(said: &str) -> bool {
    ["in-lost", "out-lost", "refused-lost"].iter().all(|name| said.contains(name))
}

/// Repairs, starts, resumes; the balance is exact to the unit, and the repeats get the recorded
/// outcome.
fn assert_repaired(site: &Site, funding: &str) {
    let (code, planned, why) = repair(site, &["--plan"]);
    assert_eq!(code, Some(0), "{planned}{why}");
    assert!(planned.ends_with("planned transfers=0 external=3 left=0\n"), "{planned}");
    let (code, done, why) = repair(site, &APPLY);
    assert_eq!(code, Some(0), "{done}{why}");
    assert!(done.ends_with("repaired transfers=0 external=3 left=0\n"), "{done}");
    let server = site.start();
    let resumed = server.resume("repaired");
    assert_eq!(resumed.status, 200, "{resumed:?}");
    assert_eq!(server.usdt(USER).funding, Some(units(funding)));
    let rows = "SELECT count(*) FROM externals WHERE idem_key LIKE '%-lost'";
    assert_eq!(site.sql_value(rows), "3");
    answered(&server);
    assert_eq!(server.transfer(USER, Way::ToSpot, "1").status, 200);
    site.wait_for_rest();
    assert_eq!(site.sql_value(rows), "3");
    site.assert_in_order(&server);
    server.stop();
    site.assert_verified();
}

/// Goal: an answered external deposit and withdrawal that PostgreSQL has lost are named by a start,
/// which is refused, and are repaired to the unit. Method: an older copy of the database
/// in its place.
#[test]
fn f01_a_lost_external_operation_is_found_over_a_restart_and_repaired() {
    let site = Site::new();
    let server = site.start();
    assert_eq!(ask(&server, DEPOSITS, "1", "in-kept"), (200, "SUCCESS".to_owned()));
    server.stop();
    let copy = site.with_copied_database();
    let server = site.start();
    answered(&server);
    server.kill();
    let output = copy.verify().output().expect("the binary");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.code() == Some(1) && names_all(&said), "{said}");
    let (code, said) = copy.start_refused();
    assert_eq!(code, 70, "{said}");
    assert!(said.contains("has gone back in time") && names_all(&said), "{said}");
    assert_repaired(&copy, "8501");
}

/// The same under the running service, with any interval of the audit: each loss is reported within
/// one round.
#[test]
fn f01_a_lost_external_operation_is_found_under_the_service() {
    for every_ms in [300, 10_000] {
        let site = Site::new().with("UBSCORE__CONSERVATION__EVERY_MS", every_ms);
        let server = site.start();
        assert_eq!(ask(&server, DEPOSITS, "1", "in-kept"), (200, "SUCCESS".to_owned()));
        let copy = copied(&site);
        eventually("a connection", || {
            (ask(&server, DEPOSITS, "1", "in-kept").0 == 200).then_some(())
        });
        answered(&server);
        go_back(&site, &copy);
        eventually("the halt", || (server.ready() == 503).then_some(()));
        eventually("each operation in the output", || names_all(&server.said()).then_some(()));
        server.kill();
        if every_ms == 300 {
            assert_repaired(&site, "8501");
        }
    }
}

/// Goal: rows that were deleted by hand are found and written again, with or without a change of
/// the balances.
#[test]
fn f01_external_rows_deleted_by_hand_are_written_again() {
    for with_balance in [true, false] {
        let site = Site::new().with("UBSCORE__CONSERVATION__EVERY_MS", 300);
        let server = site.start();
        answered(&server);
        let clean = "ubscore_conservation_runs_total{result=\"clean\"}";
        let seen = server.metric(clean) + 2;
        eventually("rounds that have seen them", || (server.metric(clean) >= seen).then_some(()));
        server.stop();
        let balance = match with_balance {
            true => {
                "UPDATE balances_tb SET available = available + 1500e8 WHERE user_id = 1001 AND asset_id = 3;"
            }
            false => "",
        };
        site.sql(&format!(
            "ALTER TABLE external_operations DISABLE TRIGGER external_operations_guard; \
             DELETE FROM external_operations WHERE idem_key LIKE '%-lost'; \
             ALTER TABLE external_operations ENABLE TRIGGER external_operations_guard; {balance}"
        ));
        let server = site.start();
        assert_eq!(server.ready(), 503, "halted");
        eventually("each operation in the output", || names_all(&server.said()).then_some(()));
        server.kill();
        assert_repaired(&site, "8500");
    }
}

/// Goal: the client of an answered deposit that PostgreSQL has forgotten sends it again: no second
/// decision goes unnoticed. Method: the same idem_key on the older copy; the service halts, and a
/// repair gives the row its recorded number.
#[test]
fn f01_an_external_operation_decided_again_is_one_effect_and_one_record() {
    let site = Site::new();
    let server = site.start();
    let copy = copied(&site);
    eventually("a connection", || (ask(&server, DEPOSITS, "1", "in-kept").0 == 200).then_some(()));
    assert_eq!(ask(&server, DEPOSITS, "500", "in-lost"), (200, "SUCCESS".to_owned()));
    go_back(&site, &copy);
    eventually("no success", || {
        let (status, _) = ask(&server, DEPOSITS, "500", "in-lost");
        assert_ne!(status, 200, "answered, though it was decided before");
        (server.ready() == 503).then_some(())
    });
    server.kill();
    let (code, done, why) = repair(&site, &APPLY);
    assert_eq!(code, Some(0), "{done}{why}");
    let server = site.start();
    let resumed = server.resume("repaired");
    assert_eq!(resumed.status, 200, "{resumed:?}");
    assert_eq!(ask(&server, DEPOSITS, "500", "in-lost"), (200, "SUCCESS".to_owned()));
    site.assert_in_order(&server);
    server.stop();
    site.assert_verified();
}

/// Goal: a process that dies between PostgreSQL's commit and the record leaves one effect and,
/// after the next start or the repeat, one record. Method: SIGKILL at each point of an external
/// operation, and the same idem_key again.
#[cfg(feature = "crash")]
#[test]
fn f01_a_death_between_commit_and_record_leaves_one_effect_and_one_record() {
    use std::os::unix::process::ExitStatusExt;

    let site = Site::new();
    site.start().stop();
    for &point in ubscore::crash::EXTERNAL_POINTS {
        // A start meets the points once for each gift of development money.
        let mut dying = start_alive(&site, point, &mut 1, 0);
        let token = token(ADMIN, Some(Role::Admin));
        let body = external(USER, "USDT", "7", point);
        let request = Request { body: Some(&body), ..Request::new(&token, "POST", DEPOSITS) };
        // It dies before it answers.
        drop(send(dying.ops, &request));
        let (status, said) = dying.wait();
        assert_eq!(status.signal(), Some(9), "{point}: {status} {said}");
        let server = site.start();
        assert_eq!(server.ready(), 200, "{point}: {}", server.said());
        for _ in 0..2 {
            assert_eq!(ask(&server, DEPOSITS, "7", point), (200, "SUCCESS".to_owned()));
        }
        site.assert_in_order(&server);
        server.stop();
        site.assert_verified();
        let rows = format!("SELECT count(*) FROM externals WHERE idem_key = '{point}'");
        assert_eq!(site.sql_value(&rows), "1");
    }
}

/// Goal: with `conservation.before_withdrawal` a withdrawal is paid after a clean round that began
/// after the user's last movement. A repeat is answered at once, and none is paid while no round
/// can end. Method: an audit that rests for an hour without a request; a movement, then a
/// withdrawal; then an audit that cannot read its tables, and a mismatch.
#[test]
fn f01_a_withdrawal_waits_for_a_clean_round() {
    let site = Site::new()
        .with("UBSCORE__CONSERVATION__EVERY_MS", 3_600_000)
        .with("UBSCORE__CONSERVATION__BEFORE_WITHDRAWAL", true)
        .with("UBSCORE__CONSERVATION__BEFORE_WITHDRAWAL_WAIT_MS", 2_000);
    let server = site.start();
    let clean = "ubscore_conservation_runs_total{result=\"clean\"}";
    assert_eq!(server.transfer(USER, Way::ToSpot, "5").status, 200);
    site.wait_for_rest();
    let before = server.metric(clean);
    let paid = || ask(&server, WITHDRAWALS, "10", "out-1");
    eventually("the withdrawal", || (paid() == (200, "SUCCESS".to_owned())).then_some(()));
    assert!(server.metric(clean) > before, "paid without a round");
    // The audit cannot end a round: a new withdrawal waits, and a decided one is answered.
    site.sql("ALTER TABLE audit_totals RENAME TO elsewhere");
    assert_eq!(ask(&server, WITHDRAWALS, "3", "out-2"), (503, "WITHDRAWAL_HELD".to_owned()));
    assert_eq!(paid(), (200, "SUCCESS".to_owned()));
    assert_eq!(ask(&server, DEPOSITS, "1", "in-1"), (200, "SUCCESS".to_owned()));
    site.sql("ALTER TABLE elsewhere RENAME TO audit_totals");
    eventually("the withdrawal", || {
        (ask(&server, WITHDRAWALS, "3", "out-2") == (200, "SUCCESS".to_owned())).then_some(())
    });
    // A mismatch: no money leaves, and the round for the withdrawal halts the service.
    assert_eq!(server.transfer(USER, Way::ToSpot, "5").status, 200);
    site.wait_for_rest();
    site.sql(
        "UPDATE balances_tb SET available = available + 7e8 WHERE user_id = 1001 AND asset_id = 3",
    );
    let (status, _) = ask(&server, WITHDRAWALS, "4", "out-3");
    assert_eq!(status, 503);
    eventually("the halt", || (server.ready() == 503).then_some(()));
    assert_eq!(ask(&server, WITHDRAWALS, "4", "out-3"), (503, "SERVICE_HALTED".to_owned()));
    let rows = "SELECT count(*) FROM externals WHERE idem_key = 'out-3'";
    assert_eq!(site.sql_value(rows), "0");
}
