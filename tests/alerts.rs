//! Each alert under its condition on the real parts: as a log event, in the metrics, and at the
//! webhook.

use std::ffi::OsStr;
use std::fs;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use domain::transfer::Op;
use rustix::process::geteuid;
use serde_json::{Value, json};
use ubscore::alert::Alert;

use crate::harness::{Server, Site, Way, Webhook, eventually};

const USER: u64 = 1001;

/// A site that sends its alerts to a webhook, and that webhook.
pub(crate) fn site() -> (Site, Webhook) {
    let webhook = Webhook::start();
    let site = Site::new()
        .with("UBSCORE__ALERT__WEBHOOK_URL", webhook.url())
        .with("UBSCORE__POSTGRES__LOCK_TIMEOUT_MS", 100)
        .with("UBSCORE__HTTP__TRANSFER_WAIT_MS", 50);
    (site, webhook)
}

/// How often a server has logged an alert.
fn lines(said: &str, alert: Alert) -> usize {
    let event = format!("alert=\"{}\" severity=\"{}\"", alert.name(), alert.severity());
    said.matches(&event).count()
}

/// The first body of an alert at the webhook, checked for its form.
fn delivered(webhook: &Webhook, alert: Alert) -> Value {
    let name = alert.name();
    let body = eventually(name, || webhook.bodies().into_iter().find(|b| b["alert"] == name));
    assert_eq!(body["severity"], json!(alert.severity()), "{body}");
    for field in ["message", "at", "instance"] {
        assert!(body[field].as_str().is_some_and(|text| !text.is_empty()), "{field}: {body}");
    }
    let keys: Vec<&String> = body.as_object().expect("an object").keys().collect();
    assert_eq!(keys.len(), 5, "{body}");
    body
}

/// Asserts that a running server raises an alert in all three places.
pub(crate) fn assert_raised(server: &Server, webhook: &Webhook, alert: Alert) -> Value {
    let body = delivered(webhook, alert);
    let series = format!("ubscore_alerts_total{{alert=\"{}\"}}", alert.name());
    assert!(server.metric(&series) >= 1, "{series}");
    eventually("its line", || (lines(&server.said(), alert) >= 1).then_some(()));
    eventually("the delivery to be counted", || {
        (server.metric("ubscore_alerts_sent_total{outcome=\"delivered\"}") >= 1).then_some(())
    });
    body
}

/// Asserts that no other alert was raised.
pub(crate) fn assert_only(server: &Server, alerts: &[Alert]) {
    said_only(&server.said(), alerts);
}

/// Asserts that no other alert was logged.
pub(crate) fn said_only(said: &str, alerts: &[Alert]) {
    for other in Alert::ALL.into_iter().filter(|alert| !alerts.contains(alert)) {
        assert_eq!(lines(said, other), 0, "{}: {said}", other.name());
    }
}

/// The alert about little space comes before a refusal. Method: the configured limits make a disk
/// count as full that is not.
#[test]
fn little_room_for_the_log_is_said_before_anybody_is_refused() {
    let (site, webhook) = site();
    let server = site.with("UBSCORE__WAL__SPACE_LOW_BYTES", 1_u64 << 50).start();
    let body = assert_raised(&server, &webhook, Alert::WalSpaceLow);
    let free = server.metrics();
    let free = free.lines().find_map(|line| line.strip_prefix("ubscore_wal_free_bytes "));
    let free = free.expect("a gauge").to_owned();
    assert!(body["message"].as_str().is_some_and(|m| m.contains("bytes are free")), "{body}");
    assert_ne!(free, "0");
    server.transfer_committed(USER, Way::ToSpot, "1");
    assert_only(&server, &[Alert::WalSpaceLow]);
}

/// A repeated alert is counted every time, and logged once per configured interval.
#[test]
fn postgresql_that_is_away_is_said_once_and_counted_always() {
    let (site, webhook) = site();
    let server = site.start();
    site.admit_connections(false);
    let reply = server.transfer(USER, Way::ToSpot, "1");
    assert_eq!(reply.status, 503, "{reply:?}");
    assert_raised(&server, &webhook, Alert::PostgresUnreachable);
    // Its worker searches for transfers and tries to commit, each with its own back-off.
    eventually("it to be raised again", || {
        drop(server.transfer(USER, Way::ToSpot, "1"));
        let series = "ubscore_alerts_total{alert=\"postgres_unreachable\"}";
        (server.metric(series) >= 3).then_some(())
    });
    assert_eq!(lines(&server.said(), Alert::PostgresUnreachable), 1);
    assert_eq!(webhook.bodies().len(), 1, "{:?}", webhook.bodies());
    assert_only(&server, &[Alert::PostgresUnreachable]);
    site.admit_connections(true);
    eventually("PostgreSQL to be found again", || {
        (server.transfer(USER, Way::ToSpot, "1").status < 300).then_some(())
    });
    site.wait_for_rest();
    site.assert_in_order(&server);
}

/// Goal: a lock on a table stops every commit and parks no transfer, and the alert names the
/// session that holds it. Method: a session locks the balances; clients of two users send
/// meanwhile.
#[test]
fn a_lock_on_a_table_is_said_with_its_session() {
    let (site, webhook) = site();
    let site = site.with("UBSCORE__ALERT__REPEAT_MS", 0);
    let server = site.start();
    let session = site.session();
    let pid = session.sql("SELECT pg_backend_pid()")[0][0].clone();
    session.sql("BEGIN; LOCK TABLE balances_tb IN SHARE MODE");
    eventually("the alert with the session", || {
        for user in [USER, USER + 2] {
            let reply = server.transfer(user, Way::ToSpot, "1");
            assert_eq!(reply.status, 503, "{reply:?}");
        }
        let about = |body: &&Value| body["alert"] == Alert::FundingBlocked.name();
        let bodies = webhook.bodies();
        let named = bodies.iter().filter(about).any(|body| {
            body["message"].as_str().is_some_and(|m| m.contains(&format!("blocked by pid {pid} (")))
        });
        named.then_some(())
    });
    assert_raised(&server, &webhook, Alert::FundingBlocked);
    assert_only(&server, &[Alert::FundingBlocked]);
    assert!(!server.said().contains("blocked; others go on"), "{}", server.said());
    session.sql("ROLLBACK");
    eventually("its end", || {
        let reply = server.transfer(USER, Way::ToSpot, "1");
        (reply.status < 300).then_some(())
    });
    server.says("the store takes commits again");
    site.wait_for_rest();
    site.assert_in_order(&server);
}

/// Goal: a session that keeps writing into a balance is said, and its writes stand. Method: a
/// session changes the balance of one user without a pause, while that user sends transfers.
#[test]
fn a_balance_that_others_keep_changing_is_said() {
    let (site, webhook) = site();
    let site = site.with("UBSCORE__CONSERVATION__EVERY_MS", 3_600_000);
    let server = site.start();
    let done = AtomicBool::new(false);
    let session = site.session();
    thread::scope(|scope| {
        let meddler = scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                session.sql(&format!(
                    "UPDATE balances_tb SET available = available + 1 \
                     WHERE user_id = {USER} AND asset_id = 3"
                ));
            }
        });
        let alert = eventually("the alert", || {
            drop(server.transfer(USER, Way::ToSpot, "1"));
            let name = Alert::BalanceChangedOutside.name();
            webhook.bodies().into_iter().find(|body| body["alert"] == name)
        });
        done.store(true, Ordering::Relaxed);
        meddler.join().expect("no panic");
        let said = alert["message"].as_str().expect("text");
        let named = format!("user {USER}, USDT: available ");
        assert!(said.contains(&named) && said.contains(", now available "), "{said}");
    });
    assert_raised(&server, &webhook, Alert::BalanceChangedOutside);
    assert_only(&server, &[Alert::BalanceChangedOutside]);
}

/// Goal: transfers that wait for held rows have a bound, beyond which new ones are refused. Method:
/// one worker with room for one parked transfer; a session holds a balance, and its user's deposit
/// into Funding is parked; another user sends.
#[test]
fn too_many_parked_transfers_are_said_and_refuse_new_ones() {
    let (site, webhook) = site();
    let site = site
        .with("UBSCORE__COORDINATOR__SHARDS", 1)
        .with("UBSCORE__COORDINATOR__PARKED_MAX", 1)
        .with("UBSCORE__COORDINATOR__BACKOFF_BASE_MS", 5_000)
        .with("UBSCORE__COORDINATOR__BACKOFF_CAP_MS", 5_000);
    let server = site.start();
    for user in [USER, USER + 1] {
        server.transfer_committed(user, Way::ToSpot, "5");
    }
    site.wait_for_rest();
    let held = site.lock_usdt(&[USER]);
    assert_eq!(server.transfer(USER, Way::ToFunding, "1").status, 202);
    eventually("a refusal", || {
        let reply = server.transfer(USER + 1, Way::ToSpot, "1");
        (reply.json()["reason"] == "parked").then(|| {
            assert_eq!((reply.status, &reply.json()["code"]), (503, &json!("OVERLOADED")));
        })
    });
    assert_raised(&server, &webhook, Alert::ParkedFull);
    assert_only(&server, &[Alert::ParkedFull]);
    held.sql("ROLLBACK");
    eventually("room again", || {
        (server.transfer(USER + 1, Way::ToSpot, "1").status < 300).then_some(())
    });
    site.wait_for_rest();
    site.assert_in_order(&server);
}

/// Goal: a session that holds back vacuum for too long is named, by the alert and by the doctor.
/// Method: a session keeps a snapshot, and the limit is its least, a second.
#[test]
fn an_old_snapshot_is_said() {
    let (site, webhook) = site();
    let site = site.with("UBSCORE__ALERT__OLD_SNAPSHOT_MS", 1_000);
    let server = site.start();
    let report = site.session();
    report.sql("SET application_name = 'a report'");
    let pid = report.sql("SELECT pg_backend_pid()")[0][0].clone();
    report.sql("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM transfers");
    let named = format!("pid {pid} ('a report', idle in transaction)");
    let body = assert_raised(&server, &webhook, Alert::OldSnapshot);
    assert!(body["message"].as_str().is_some_and(|m| m.starts_with(&named)), "{body}");
    eventually("the doctor's finding", || {
        let output = site.tool(["doctor"]).output().expect("the binary");
        let said = String::from_utf8(output.stdout).expect("text");
        said.contains(&format!("vacuum is held back by {named} for ")).then_some(())
    });
}

/// Goal: an audit that cannot run raises an alert, since silence must not look like success.
/// Method: the audit's own table is moved out of reach, and back.
#[test]
fn an_audit_that_cannot_be_made_is_said() {
    let (site, webhook) = site();
    let site =
        site.with("UBSCORE__CONSERVATION__EVERY_MS", 50).with("UBSCORE__ALERT__STUCK_MS", 200);
    let server = site.start();
    site.sql("ALTER TABLE audit_state RENAME TO elsewhere");
    assert_raised(&server, &webhook, Alert::ConservationStalled);
    assert_only(&server, &[Alert::ConservationStalled]);
    site.sql("ALTER TABLE elsewhere RENAME TO audit_state");
    server.transfer_committed(USER, Way::ToSpot, "1");
    site.wait_for_rest();
    site.assert_in_order(&server);
}

/// Goal: a row with another body raises an alert, moves nothing, and is tried again until it is
/// repaired. Method: while the credit of a transfer waits, the row gets another amount by hand.
#[test]
fn a_transfer_that_is_there_with_another_body_is_said() {
    let (site, webhook) = site();
    let site = site.with("UBSCORE__CONSERVATION__EVERY_MS", 3_600_000);
    let server = site.start();
    server.transfer_committed(USER, Way::ToSpot, "20");
    site.wait_for_rest();
    let hold = site.hold_decision(Op::Deposit);
    let reply = server.transfer(USER, Way::ToFunding, "12");
    let req_id = reply.req_id();
    let change = |amount: u8| {
        site.sql(&format!(
            "SET session_replication_role = replica; \
             UPDATE transfers_tb SET amount = {amount}e8 WHERE req_id = ulid_uuid('{req_id}')"
        ));
    };
    site.wait_for_held();
    // Between two tries: the row is locked during a try.
    change(13);
    hold.release();
    let body = assert_raised(&server, &webhook, Alert::ProtocolViolation);
    assert!(body["message"].as_str().expect("text").contains(&req_id), "{body}");
    assert_only(&server, &[Alert::ProtocolViolation]);
    let paid = "SELECT available FROM balances WHERE user_id = 1001 AND asset_id = 3";
    assert_eq!(site.sql_value(paid), "9980");
    change(12);
    site.wait_for_rest();
    site.assert_in_order(&server);
}

#[test]
fn a_transfer_that_does_not_end_is_stuck() {
    let (site, webhook) = site();
    let site = site.with("UBSCORE__ALERT__STUCK_MS", 100);
    let server = site.start();
    let hold = site.hold("UPDATE OF state ON transfers_tb", "NEW.state = 40");
    let reply = server.transfer(USER, Way::ToSpot, "1");
    let body = assert_raised(&server, &webhook, Alert::TransferStuck);
    let message = body["message"].as_str().expect("text");
    assert!(message.contains(&reply.req_id()) && message.contains("TARGET_PENDING"), "{message}");
    assert_only(&server, &[Alert::TransferStuck]);
    hold.release();
    site.wait_for_rest();
    site.assert_in_order(&server);
}

/// A refund that fails three times: Funding's refund, blocked by a lock.
#[test]
fn a_refund_that_fails_three_times_is_said() {
    let (site, webhook) = site();
    let server = site.start();
    server.set_status(USER, "SPOT", "DISABLED");
    let hold = site.hold_decision(Op::Refund);
    let reply = server.transfer(USER, Way::ToSpot, "1");
    let body = assert_raised(&server, &webhook, Alert::CompensationFailing);
    assert!(body["message"].as_str().expect("text").contains(&reply.req_id()), "{body}");
    hold.release();
    site.wait_for_rest();
    site.assert_in_order(&server);
}

/// Goal: a transfer that differs from its recorded decision raises an alert before any of it is
/// repeated, and moves nothing on either side. Method: UBSCore or Funding has decided a transfer;
/// its row is changed by hand before the next start. After the repair the transfer continues.
#[test]
fn a_transfer_changed_under_way_is_said_and_halts() {
    for way in Way::BOTH {
        let (site, webhook) = site();
        let server = site.start();
        server.transfer_accepted(USER, Way::ToSpot, "50");
        site.wait_for_rest();
        let condition = match way {
            Way::ToSpot => "NEW.state = 40",
            Way::ToFunding => "NEW.state = 20 OR NEW.state = 40",
        };
        let hold = site.hold("UPDATE OF state ON transfers_tb", condition);
        let reply = server.transfer(USER, way, "12");
        site.wait_for_held();
        server.kill();
        hold.release();
        let set = |amount: &str| {
            let req_id = reply.req_id();
            site.sql(&format!(
                "SET session_replication_role = replica; \
                 UPDATE transfers_tb SET amount = {amount}e8 WHERE req_id = ulid_uuid('{req_id}')"
            ));
        };
        set("13");
        let server = site.start();
        let body = assert_raised(&server, &webhook, Alert::ConservationViolated);
        // The account may be compared before the transfer.
        let named = [&reply.req_id(), "user 1001, USDT: Funding is 1 "];
        let message = body["message"].as_str().expect("text");
        assert!(named.iter().any(|name| message.contains(name)), "{body}");
        server.kill();
        set("12");
        let server = site.start();
        let resumed = server.resume("repaired");
        assert_eq!(resumed.status, 200, "{resumed:?}");
        site.wait_for_rest();
        site.assert_in_order(&server);
    }
}

#[test]
fn a_user_who_transfers_abnormally_often_is_said_and_served() {
    const MAX: u64 = 5;
    let (site, webhook) = site();
    let site = site.with("UBSCORE__ALERT__USER_REQUESTS_PER_MINUTE_MAX", MAX);
    let server = site.start();
    for _ in 0..=MAX + 2 {
        server.transfer_accepted(USER, Way::ToSpot, "1");
    }
    let body = assert_raised(&server, &webhook, Alert::UserFrequencyAbnormal);
    assert!(body["message"].as_str().expect("text").contains(&USER.to_string()), "{body}");
    assert_only(&server, &[Alert::UserFrequencyAbnormal]);
    site.wait_for_rest();
    site.assert_in_order(&server);
}

/// A process that ends at once still sends the reason to the webhook.
#[test]
fn a_superseded_process_says_so_and_ends() {
    let (site, webhook) = site();
    let mut server = site.start();
    site.take_over();
    drop(server.try_ask(
        USER,
        "POST",
        "/api/v1/internal_transfer",
        Some(&Way::ToSpot.body("USDT", "1")),
    ));
    let (status, said) = server.wait();
    assert_eq!(status.code(), Some(75), "{said}");
    assert!(lines(&said, Alert::Fenced) >= 1, "{said}");
    delivered(&webhook, Alert::Fenced);
}

/// Goal: a log that can no longer be written ends the process, with an alert before the exit; a
/// webhook that does not answer does not delay the exit. Method: the log's directory is moved away
/// under a running server, which fails when it prepares the next segment.
#[test]
fn a_log_that_cannot_be_written_is_said_and_ends_the_process() {
    for answering in [true, false] {
        let (site, webhook) = site();
        let site = site.with("UBSCORE__WAL__SEGMENT_BYTES", 1 << 16);
        let silent = Webhook::silent();
        let site = match answering {
            true => site,
            false => site.with("UBSCORE__ALERT__WEBHOOK_URL", silent.url()),
        };
        let mut server = site.start();
        let away = site.data_dir.join("wal-away");
        fs::rename(site.log_dir(), &away).expect("moved");
        let body = Way::ToSpot.body("USDT", "0.01");
        eventually("the end", || {
            server.try_ask(USER, "POST", "/api/v1/internal_transfer", Some(&body)).err()
        });
        let (status, said) = server.wait();
        // On a very busy machine the process ends before the alert is sent.
        assert!(status.code() == Some(70) || !answering && !status.success(), "{status} {said}");
        assert!(lines(&said, Alert::WalSyncFailed) >= 1, "{said}");
        if answering {
            delivered(&webhook, Alert::WalSyncFailed);
        }
        // No data is lost.
        fs::rename(&away, site.log_dir()).expect("moved back");
        let server = site.start();
        site.wait_for_rest();
        site.assert_in_order(&server);
    }
}

/// Goal: a disk without space for the next segment raises an alert, and the service continues with
/// its present segments. Method: the log's directory is a file system of two and a half segments,
/// mounted for the server alone; the server has to prepare two ahead.
#[test]
fn a_disk_without_room_for_the_next_segment_is_said() {
    let (site, webhook) = site();
    let site = site.with("UBSCORE__WAL__SPARES_READY", 2);
    fs::create_dir_all(site.log_dir()).expect("a directory");
    let server = Server::start(on_small_disk(&site));
    let body = assert_raised(&server, &webhook, Alert::WalSpaceLow);
    assert!(body["message"].as_str().expect("text").contains("No space left"), "{body}");
    server.transfer_accepted(USER, Way::ToSpot, "1");
    site.wait_for_rest();
    Site::assert_verified_by(&mut where_it_is(&server, &site.verify()));
    site.assert_balances(&server);
    assert_only(&server, &[Alert::WalSpaceLow]);
}

/// A site's server with a file system of its own under its log; both end together. Needs only the
/// rights of a user namespace.
fn on_small_disk(site: &Site) -> Command {
    let server = site.command();
    let mut command = Command::new("unshare");
    command.arg("--mount");
    if !geteuid().is_root() {
        command.arg("--map-root-user");
    }
    let mount = "mount -t tmpfs -o size=2560k tmpfs \"$0\" && exec \"$@\"";
    command.args(["sh", "-c", mount]).arg(site.log_dir());
    wrap(command, &server)
}

/// A command that runs in the mount namespace of a server.
fn where_it_is(server: &Server, inner: &Command) -> Command {
    let mut command = Command::new("nsenter");
    command.arg("--target").arg(server.pid().to_string()).arg("--mount");
    if !geteuid().is_root() {
        command.args(["--user", "--preserve-credentials"]);
    }
    command.arg("--");
    wrap(command, inner)
}

fn wrap(mut outer: Command, inner: &Command) -> Command {
    outer.arg(inner.get_program()).args(inner.get_args());
    let set = |(name, value)| -> Option<(&OsStr, &OsStr)> { Some((name, value?)) };
    outer.envs(inner.get_envs().filter_map(set));
    outer
}
