//! Backups: a pair of stores that a crash could have left, taken while both stores work, and
//! restored elsewhere, whole or by halves.

use std::collections::BTreeMap;
use std::fs;
#[cfg(feature = "crash")]
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use serde_json::{Value, json};
use ubscore::postgres::flights;

use crate::harness::{
    Balance, COIN, Cluster, Reply, Server, Site, USERS, Way, endow, eventually, force, forgetful,
    refused, repair, segments, soak_rounds, while_watched,
};
use crate::schema::committed;

const USER: u64 = USERS[0];

/// Exit code, stdout and stderr.
fn output(mut command: Command) -> (Option<i32>, String, String) {
    let Output { status, stdout, stderr } = command.output().expect("the binary");
    let text = |bytes| String::from_utf8(bytes).expect("text");
    (status.code(), text(stdout), text(stderr))
}

fn tool(site: &Site, what: &str, directory: &Path, flags: &[&str]) -> Command {
    let mut command = site.tool([what]);
    command.arg(directory).args(flags);
    command
}

fn back_up(site: &Site) -> PathBuf {
    let directory = site.fresh_path("backup");
    let (code, said, why) = output(tool(site, "backup", &directory, &[]));
    assert_eq!(code, Some(0), "{said}{why}");
    assert!(said.starts_with("backup ") && said.contains(" log="), "{said}");
    directory
}

/// Restores, and asserts that the check afterwards finds no mismatch.
fn restore(site: &Site, directory: &Path) {
    let (code, said, why) = output(tool(site, "restore", directory, &[]));
    assert_eq!(code, Some(0), "{said}{why}");
    assert!(said.starts_with("restored "), "{said}");
    assert!(said.lines().any(|line| line.starts_with("ok mismatches=0 ")), "{said}");
}

/// Asserts that a restore is refused with this word, and leaves no log and no table.
fn assert_not_restored(site: &Site, directory: &Path, flags: &[&str], word: &str) {
    let (code, said, why) = output(tool(site, "restore", directory, flags));
    assert_eq!(code, Some(2), "{word}: {said}{why}");
    assert!(why.contains(word), "{word}: {why}");
}

fn manifest(directory: &Path) -> Value {
    let text = fs::read_to_string(directory.join("manifest.json")).expect("a manifest");
    serde_json::from_str::<Value>(&text).expect("JSON")["backup"].clone()
}

/// Every file of a backup.
fn files(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).expect("a directory") {
        let path = entry.expect("an entry").path();
        if path.is_dir() { found.extend(files(&path)) } else { found.push(path) }
    }
    found.sort();
    found
}

/// A site with short segments, frequent snapshots, short retention of outcomes and frequent audits.
fn busy(site: Site) -> Site {
    forgetful(site)
        .with("UBSCORE__WAL__SEGMENT_BYTES", 1 << 16)
        .with("UBSCORE__SNAPSHOT__EVERY_RECORDS", 150)
        .with("UBSCORE__CONSERVATION__EVERY_MS", 100)
}

/// Waits for some rounds of the audit that begin from now on, and asserts that they find nothing.
fn assert_audited(server: &Server) {
    let rounds = |result: &str| -> u64 {
        let name = format!("ubscore_conservation_runs_total{{result=\"{result}\"}} ");
        let metrics = server.metrics();
        let line = metrics.lines().find_map(|line| line.strip_prefix(&name)?.parse().ok());
        line.unwrap_or(0)
    };
    let before = rounds("clean");
    eventually("rounds of the audit", || (rounds("clean") > before + 3).then_some(()));
    assert_eq!(rounds("mismatch"), 0);
    assert_eq!(server.ready(), 200);
    let reply = server.admin_get("/admin/v1/conservation");
    assert_eq!((reply.status, &reply.json()["ok"]), (200, &json!(true)), "{reply:?}");
}

/// A user, a body and its answer.
type Answered = (u64, Value, Reply);

/// The most transfers of one user in one round of load, if the round does not end it before.
const LOAD_MAX: usize = 5_000;

/// Transfers of a user both ways, some refused and some refunded, deposits and statuses, until
/// `done`.
fn load(server: &Server, index: usize, round: usize, done: &AtomicBool) -> Vec<Answered> {
    let user = USERS[index];
    let mut answers = Vec::new();
    for number in 0..LOAD_MAX {
        if done.load(Ordering::Relaxed) {
            break;
        }
        let way = Way::BOTH[number % 2];
        let amount = if number % 13 == 12 { "90000" } else { "0.01" };
        let body = way.body_with_cid("USDT", amount, &format!("backup-{round}-{index}-{number}"));
        let reply = server.post(user, &body);
        assert!([200, 202, 422].contains(&reply.status), "{reply:?}");
        answers.push((user, body, reply));
        match number % 17 {
            3 => server.deposit(user, "USDT", "0.5"),
            // While its target is disabled, a deposit is refused and the source is refunded.
            5 => server.set_status(user, ["SPOT", "FUNDING"][number % 2], "DISABLED"),
            7 => {
                ["SPOT", "FUNDING"].iter().for_each(|side| server.set_status(user, side, "ACTIVE"))
            }
            _ => {}
        }
    }
    answers
}

/// The name and state of each transfer by user and cid, before a service runs on the restored site.
fn states(site: &Site) -> BTreeMap<(String, String), (String, String)> {
    let rows = site.sql("SELECT user_id, cid, req_id, state FROM transfers WHERE cid IS NOT NULL");
    let entry =
        |row: &Vec<String>| ((row[0].clone(), row[1].clone()), (row[2].clone(), row[3].clone()));
    rows.iter().map(entry).collect()
}

/// Goal: a backup taken at any moment of a busy service is a pair that a crash could have left. It
/// is restored elsewhere, passes the check and continues by itself. It keeps every answer from
/// before the backup, and conserves all money. Method: rounds of load of four users at once, with
/// refusals, refunds, deposits, statuses, snapshots every 150 records and a watermark that rises.
/// In the middle of each round a backup is taken. Each backup is restored on another cluster,
/// served, brought to rest and added up; then every cid again; new transfers; rounds of the audit.
/// With fused transitions and without.
#[test]
fn a_backup_under_load_restores_elsewhere_and_goes_on() {
    for fuse in [true, false] {
        let (site, cluster) = Site::on_its_own_cluster();
        let site = busy(site).with("UBSCORE__COORDINATOR__FUSE", fuse);
        let server = site.start();
        endow(&site, &server);
        let (mut before, mut backups) = (Vec::new(), Vec::new());
        for round in 0..soak_rounds().unwrap_or(3) {
            let done = AtomicBool::new(false);
            thread::scope(|scope| {
                let (server, done) = (&server, &done);
                let loads: Vec<_> = (0..USERS.len())
                    .map(|index| scope.spawn(move || load(server, index, round, done)))
                    .collect();
                let transfers = "SELECT count(*) FROM transfers";
                let count = || site.sql_value(transfers).parse::<u64>().expect("a number");
                let enough = count() + 150;
                eventually("a load", || (count() > enough).then_some(()));
                if round > 0 {
                    let watermark = "SELECT watermark FROM engine_state";
                    eventually("a watermark and the end of the first segment", || {
                        let gone = segments(&site)[0].0 > 1 && site.sql_value(watermark) != "0";
                        gone.then_some(())
                    });
                }
                let directory = back_up(&site);
                done.store(true, Ordering::Relaxed);
                let answers: Vec<Answered> =
                    loads.into_iter().flat_map(|load| load.join().expect("no panic")).collect();
                backups.push((directory, before.clone()));
                before.extend(answers);
            });
            for user in USERS {
                ["SPOT", "FUNDING"].iter().for_each(|side| server.set_status(user, side, "ACTIVE"));
            }
        }
        site.wait_for_rest();
        site.assert_verified();
        server.stop();
        drop(cluster);
        let last = manifest(&backups.last().expect("some").0);
        assert!(last["postgres"]["watermark"].as_u64() > Some(0), "{last}");
        assert!(last["log"]["first"].as_u64() > Some(1), "{last}");
        let mut cut = 0;
        for (directory, before) in backups {
            let elsewhere = site.elsewhere();
            restore(&elsewhere, &directory);
            cut += assert_goes_on(&elsewhere, &directory, &before);
        }
        assert!(cut > 0, "no backup was taken while something was under way");
    }
}

/// Checks a restored site before and after its first start; returns how many transfers were under
/// way.
fn assert_goes_on(site: &Site, directory: &Path, before: &[Answered]) -> usize {
    let known = states(site);
    let manifest = manifest(directory);
    assert!(manifest["log"]["last"].as_u64() >= manifest["postgres"]["claimed_sequence"].as_u64());
    let under_way = known.values().filter(|(_, state)| !["40", "-10", "-30"].contains(&&**state));
    let under_way = under_way.count();
    site.assert_verified();
    let server = site.start();
    assert_eq!(server.ready(), 200, "not halted: {}", server.said());
    for user in USERS {
        ["SPOT", "FUNDING"].iter().for_each(|side| server.set_status(user, side, "ACTIVE"));
    }
    site.wait_for_rest();
    site.assert_in_order(&server);
    let after = states(site);
    for (key, (req_id, state)) in &known {
        let (req_id_now, state_now) = &after[key];
        assert_eq!(req_id, req_id_now);
        if ["40", "-10", "-30"].contains(&&**state) {
            assert_eq!(state, state_now, "{key:?}");
        }
    }
    for (user, body, reply) in before {
        let again = server.post(*user, body);
        assert_eq!(again.header("idempotent-replayed"), Some("true"), "{body}: {again:?}");
        assert_eq!(again.req_id(), reply.req_id(), "{body}");
        if reply.status != 202 {
            assert_eq!((again.status, again.json()["state"].clone()), {
                (reply.status, reply.json()["state"].clone())
            });
        }
    }
    for user in USERS {
        for way in Way::BOTH {
            let reply = server.transfer(user, way, "0.25");
            assert_eq!(reply.status, 200, "{reply:?}");
        }
    }
    site.wait_for_rest();
    site.assert_in_order(&server);
    assert_audited(&server);
    force(site, &server);
    server.kill();
    let server = site.start();
    site.assert_in_order(&server);
    server.stop();
    under_way
}

/// A stopped site with money on both sides, and its backup.
fn backed_up() -> (Site, PathBuf) {
    let site = Site::new();
    let server = site.start();
    endow(&site, &server);
    force(&site, &server);
    assert_eq!(server.transfer(USER, Way::ToFunding, "0.5").status, 200);
    site.wait_for_rest();
    let directory = back_up(&site);
    server.stop();
    (site, directory)
}

/// Goal: a backup with a changed byte is refused with the name of the file, and nothing is restored
/// from it. Method: a byte in the middle and the last byte of every file, a file cut short, and a
/// missing file.
#[test]
fn a_changed_file_is_refused_by_name() {
    let (site, directory) = backed_up();
    let elsewhere = site.elsewhere();
    let files = files(&directory);
    assert!(files.len() >= 4, "{files:?}");
    for path in &files {
        let name = path.file_name().and_then(|name| name.to_str()).expect("text");
        let whole = fs::read(path).expect("there");
        for at in [whole.len() / 2, whole.len() - 1] {
            let mut bytes = whole.clone();
            bytes[at] ^= 1;
            fs::write(path, bytes).expect("written");
            assert_not_restored(&elsewhere, &directory, &[], name);
        }
        fs::write(path, &whole[..whole.len() - 1]).expect("written");
        assert_not_restored(&elsewhere, &directory, &[], name);
        fs::remove_file(path).expect("removed");
        assert_not_restored(&elsewhere, &directory, &[], name);
        fs::write(path, whole).expect("written");
    }
    restore(&elsewhere, &directory);
}

/// Goal: a restore never overwrites existing data. Method: a used database with a fresh data
/// directory, a used data directory with a fresh database, a running service; both stay as they
/// were.
#[test]
fn a_used_data_directory_or_database_is_refused() {
    let (site, directory) = backed_up();
    let other = Site::new();
    let server = other.start();
    let pid = server.pid().to_string();
    assert_not_restored(&other, &directory, &[], &pid);
    assert_eq!(server.transfer(USER, Way::ToSpot, "1").status, 200);
    other.wait_for_rest();
    server.stop();
    assert_not_restored(&other.with_fresh_data_dir(), &directory, &[], "never used");
    assert_not_restored(&other.with_fresh_database(), &directory, &[], "segment-");
    for used in [&site, &other] {
        assert_not_restored(used, &directory, &[], "segment-");
        let server = used.start();
        used.assert_in_order(&server);
        server.stop();
    }
    let fresh = other.with_fresh_data_dir();
    assert_not_restored(&fresh, &directory, &["--only-log"], "belongs to log");
    let fresh = other.with_fresh_database();
    assert_not_restored(&fresh, &directory, &["--only-database"], "the backup is of log");
    let (code, _, why) = output(tool(&site, "backup", &directory, &[]));
    assert!(code == Some(2) && why.contains("is not empty"), "{code:?} {why}");
    let (code, _, why) = output(tool(&site.elsewhere(), "backup", &site.fresh_path("b"), &[]));
    assert!(code == Some(1) && why.contains("no log"), "{code:?} {why}");
}

/// Goal: a killed backup leaves nothing that passes for a backup, and the next backup names the
/// obstacle. Method: SIGKILL at every point of a backup beside a running service.
#[cfg(feature = "crash")]
#[test]
fn a_killed_backup_leaves_nothing_that_is_restored() {
    let site = Site::new();
    let server = site.start();
    endow(&site, &server);
    for point in ubscore::crash::BACKUP_POINTS.iter().filter(|name| name.starts_with("backup_")) {
        let directory = site.fresh_path("backup");
        let armed = site.clone().with("UBSCORE_CRASH", point);
        let status = tool(&armed, "backup", &directory, &[]).output().expect("the binary").status;
        assert_eq!(status.signal(), Some(9), "{point}: {status}");
        assert!(!directory.exists(), "{point}");
        assert_not_restored(&site.elsewhere(), &directory, &[], "no whole backup");
        let unfinished = directory.with_extension("partial");
        if *point != "backup_before_rename" {
            assert_not_restored(&site.elsewhere(), &unfinished, &[], "no whole backup");
        }
        let (code, _, why) = output(tool(&site, "backup", &directory, &[]));
        assert!(code == Some(2) && why.contains(".partial"), "{point}: {code:?} {why}");
        fs::remove_dir_all(&unfinished).expect("removed");
        let (code, said, why) = output(tool(&site, "backup", &directory, &[]));
        assert_eq!(code, Some(0), "{point}: {said}{why}");
        restore(&site.elsewhere(), &directory);
    }
}

/// Goal: a restore that was killed at any point is never served, and the same command finishes it.
/// Method: SIGKILL at every point of a restore on a cluster with lower transaction numbers. No
/// service, verify, repair or other restore is possible. The same restore is killed again at the
/// same point, and then runs to its end.
#[cfg(feature = "crash")]
#[test]
fn a_killed_restore_is_never_served_and_goes_on() {
    let (site, directory) = backed_up();
    let (_, other) = backed_up();
    for point in ubscore::crash::BACKUP_POINTS.iter().filter(|name| name.starts_with("restore_")) {
        let elsewhere = site.elsewhere();
        let armed = elsewhere.clone().with("UBSCORE_CRASH", point);
        for _ in 0..2 {
            let killed = tool(&armed, "restore", &directory, &[]).output().expect("the binary");
            assert_eq!(killed.status.signal(), Some(9), "{point}: {killed:?}");
            let (code, said) = elsewhere.start_refused();
            assert!(code == 70 && said.contains("is not finished"), "{point}: {said}");
            let (code, _, why) = output(elsewhere.verify());
            assert!(code == Some(2) && why.contains("is not finished"), "{point}: {why}");
            let (code, _, why) = repair(&elsewhere, &["--plan"]);
            assert!(code == Some(2) && why.contains("is not finished"), "{point}: {why}");
            assert_not_restored(&elsewhere, &other, &[], "another restore");
            assert_not_restored(&elsewhere, &directory, &["--only-log"], "another restore");
            let astray = elsewhere.with_fresh_database();
            assert_not_restored(&astray, &directory, &[], "begun into database");
        }
        restore(&elsewhere, &directory);
        assert_not_restored(&elsewhere, &directory, &[], "segment-");
        let server = elsewhere.start();
        assert_eq!(server.ready(), 200);
        elsewhere.assert_in_order(&server);
        assert_eq!(server.transfer(USER, Way::ToSpot, "0.5").status, 200);
        elsewhere.wait_for_rest();
        elsewhere.assert_in_order(&server);
        server.stop();
    }
}

/// Goal: the `pg_restore` of a killed restore may be able to finish, so a second restore does not
/// run beside it. Method: a lock that blocks it; SIGKILL of its parent; the same command, refused
/// while `pg_restore` runs; again after it has ended.
#[test]
fn what_a_killed_restore_has_left_running_is_not_run_beside() {
    let (site, directory) = backed_up();
    let elsewhere = site.elsewhere();
    let (lock, look) = (elsewhere.session(), elsewhere.session());
    lock.sql("BEGIN; LOCK TABLE pg_catalog.pg_class IN SHARE ROW EXCLUSIVE MODE");
    let mut child = tool(&elsewhere, "restore", &directory, &[])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("the binary");
    let waiting = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() \
                   AND application_name = 'ubscore dump or restore' AND wait_event_type = 'Lock'";
    let pid =
        eventually("pg_restore to wait", || look.sql(waiting).first().map(|row| row[0].clone()));
    child.kill().expect("our own child");
    child.wait().expect("our own child");
    assert_not_restored(&elsewhere, &directory, &[], &pid);
    let (code, said) = elsewhere.start_refused();
    assert!(code == 70 && said.contains("is not finished"), "{said}");
    lock.sql("ROLLBACK");
    let ended = format!("SELECT 1 FROM pg_stat_activity WHERE pid = {pid}");
    eventually("pg_restore's end", || look.sql(&ended).is_empty().then_some(()));
    restore(&elsewhere, &directory);
    let server = elsewhere.start();
    elsewhere.assert_in_order(&server);
    assert_eq!(server.ready(), 200);
}

/// Goal: a restored database gives no id of an event a second time. Method: after the backup two
/// more processes send events whose transfers leave no record in the log; the restored service
/// answers the last id by a gap, and its next event has a greater one.
#[test]
fn a_restored_database_gives_no_id_of_an_event_a_second_time() {
    let (site, directory) = backed_up();
    let mut lost = String::new();
    for _ in 0..2 {
        let server = site.start();
        let stream = server.follow(USER, None);
        assert_eq!(server.transfer(USER, Way::ToSpot, "50000").status, 422);
        lost = stream.transfer().0;
        drop(stream);
        server.kill();
    }
    let elsewhere = site.elsewhere();
    restore(&elsewhere, &directory);
    let server = elsewhere.start();
    let stream = server.follow(USER, Some(&lost));
    let (_, kind, data) = stream.event();
    assert_eq!((kind.as_str(), &data["after"]), ("gap", &json!(lost)), "{data}");
    assert_eq!(server.transfer(USER, Way::ToSpot, "50000").status, 422);
    let number = |id: &str| id.parse::<i64>().expect("a number");
    assert!(number(&lost) < number(&stream.transfer().0));
}

/// Transfers both ways with a net effect, and their answers to compare later.
fn transfers_after(site: &Site, server: &Server) -> Vec<(Value, Reply)> {
    let mut answers = Vec::new();
    for (index, way) in Way::BOTH.into_iter().cycle().take(5).enumerate() {
        let body = way.body_with_cid("USDT", "0.125", &format!("after-{index}"));
        let reply = server.post(USER, &body);
        assert_eq!(reply.status, 200, "{reply:?}");
        answers.push((body, reply));
    }
    site.wait_for_rest();
    answers
}

/// A site on a cluster with high transaction numbers, its backup, and the answers given after the
/// backup. The site was killed; it had no further incarnation since the backup.
fn older_and_newer() -> (Site, Arc<Cluster>, PathBuf, Vec<(Value, Reply)>, Balance) {
    let (site, cluster) = Site::on_its_own_cluster();
    let site = site.with("UBSCORE__CONSERVATION__EVERY_MS", 100);
    site.sql(
        "CREATE PROCEDURE burn() LANGUAGE plpgsql AS $$ BEGIN \
         FOR i IN 1..20000 LOOP PERFORM pg_current_xact_id(); COMMIT; END LOOP; END $$; ",
    );
    site.sql("CALL burn()");
    site.sql("DROP PROCEDURE burn()");
    let server = site.start();
    endow(&site, &server);
    let directory = back_up(&site);
    let answers = transfers_after(&site, &server);
    let balance = server.usdt(USER);
    server.kill();
    (site, cluster, directory, answers, balance)
}

/// Goal: PostgreSQL alone is restored from a backup, on a cluster with lower transaction numbers.
/// The start detects it, the documented steps complete it, and nothing in UBSCore is lost. Method:
/// a backup; transfers; the present log with the backup's database; verify, start, repair, resume;
/// balances and answers as before; new transfers; rounds of the audit.
#[test]
fn an_older_database_beside_a_newer_log_is_caught_and_repaired() {
    let (site, cluster, directory, answers, balance) = older_and_newer();
    drop(cluster);
    let restored = site.elsewhere().with_data_dir(&site.data_dir);
    let (code, said, why) = output(tool(&restored, "restore", &directory, &["--only-database"]));
    assert_eq!(code, Some(1), "{said}{why}");
    for (_, reply) in &answers {
        assert!(said.contains(&reply.req_id()), "{said}");
    }
    assert!(said.contains("ubscore repair --plan"), "{said}");

    let server = restored.start();
    assert_eq!(server.ready(), 503, "halted");
    server.says("conservation_violated");
    server.kill();
    let (code, planned, why) = repair(&restored, &["--plan"]);
    assert_eq!(code, Some(0), "{planned}{why}");
    let (code, done, why) = repair(&restored, &["--apply", "--reason", "restored from the backup"]);
    assert_eq!(code, Some(0), "{done}{why}");
    assert!(done.ends_with(&format!("repaired transfers={} left=0\n", answers.len())), "{done}");
    restored.assert_verified();
    let server = restored.start();
    assert_eq!(server.ready(), 503, "still halted");
    let resumed = server.resume("repaired");
    assert_eq!(resumed.status, 200, "{resumed:?}");
    restored.wait_for_rest();
    assert_eq!(server.usdt(USER), balance);
    for (body, before) in &answers {
        let again = server.post(USER, body);
        assert_eq!((again.status, again.req_id()), (before.status, before.req_id()));
    }
    assert_eq!(server.transfer(USER, Way::ToSpot, "0.5").status, 200);
    restored.wait_for_rest();
    restored.assert_in_order(&server);
    assert_audited(&server);
}

/// Goal: the same by hand, without a start in between. The repair writes numbers of this cluster,
/// and these must not mix with numbers of another. Method: `pg_restore` of the backup's dump; the
/// repair; the start.
#[test]
fn a_database_restored_by_hand_is_repaired_and_audited() {
    let (site, cluster, directory, answers, balance) = older_and_newer();
    drop(cluster);
    let restored = site.elsewhere().with_data_dir(&site.data_dir);
    let status = Command::new("pg_restore")
        .args(["--exit-on-error", "--single-transaction", "--no-owner", "--dbname"])
        .arg(restored.url())
        .arg(directory.join("postgres.dump"))
        .status()
        .expect("pg_restore");
    assert!(status.success());
    let (code, done, why) = repair(&restored, &["--apply", "--reason", "restored by hand"]);
    assert_eq!(code, Some(0), "{done}{why}");
    assert!(done.ends_with(&format!("repaired transfers={} left=0\n", answers.len())), "{done}");
    restored.assert_verified();
    let server = restored.start();
    assert_eq!((server.ready(), server.usdt(USER)), (200, balance));
    restored.assert_in_order(&server);
    assert_audited(&server);
}

/// Goal: the audit goes on with tables that were brought into another cluster by hand. Method:
/// `pg_restore` of both halves into a cluster with fewer and into one with more transactions; the
/// start; transfers; rounds of the audit.
#[test]
fn tables_from_another_cluster_are_audited() {
    let (site, cluster, directory, ..) = older_and_newer();
    let (far, near) = (site.with_fresh_database().with_fresh_data_dir(), site.elsewhere());
    let there = back_up_of_a_small_cluster();
    for (restored, directory) in [(&near, &directory), (&far, &there)] {
        let status = Command::new("pg_restore")
            .args(["--exit-on-error", "--single-transaction", "--no-owner", "--dbname"])
            .arg(restored.url())
            .arg(directory.join("postgres.dump"))
            .status()
            .expect("pg_restore");
        assert!(status.success());
        for name in ["wal", "snapshots"] {
            crate::harness::copy_files(&directory.join(name), &restored.data_dir.join(name));
        }
        // No backup holds the answered flights.
        assert!(!directory.join(flights::FILE).exists());
        let (code, said) = restored.start_refused();
        assert!(code == 70 && said.contains("ubscore repair --apply"), "{said}");
        let (code, done, why) = repair(restored, &["--apply", "--reason", "restored by hand"]);
        assert_eq!(code, Some(0), "{done}{why}");
        let server = restored.start();
        assert_eq!(server.transfer(USER, Way::ToSpot, "0.5").status, 200);
        restored.wait_for_rest();
        restored.assert_in_order(&server);
        assert_audited(&server);
        server.stop();
    }
    drop(cluster);
}

fn back_up_of_a_small_cluster() -> PathBuf {
    let (site, _cluster) = Site::on_its_own_cluster();
    let server = site.start();
    endow(&site, &server);
    let directory = back_up(&site);
    server.stop();
    directory
}

/// Goal: an older log under a newer database is refused at the start, and the newer log works again
/// in its place. Method: the log's half of a backup beside the database that has continued since.
#[test]
fn an_older_log_under_a_newer_database_is_refused() {
    let (site, _cluster, directory, answers, balance) = older_and_newer();
    let restored = site.with_fresh_data_dir();
    let (code, said, why) = output(tool(&restored, "restore", &directory, &["--only-log"]));
    assert_eq!(code, Some(1), "{said}{why}");
    let (code, said) = restored.start_refused();
    assert_eq!(code, 70, "{said}");
    assert!(
        said.contains("the caller knows that record") && said.contains("was durable"),
        "{said}"
    );
    let server = site.start();
    assert_eq!((server.ready(), server.usdt(USER)), (200, balance));
    let again = server.post(USER, &answers[0].0);
    assert_eq!(again.req_id(), answers[0].1.req_id());
    site.assert_in_order(&server);
    server.stop();
}

/// Goal: the log's half can be restored beside a database that has not continued. Method: the data
/// directory is lost; the database is as in the backup.
#[test]
fn a_lost_log_comes_back_beside_the_database_of_that_moment() {
    let (site, directory) = backed_up();
    let restored = site.with_fresh_data_dir();
    let (code, said, why) = output(tool(&restored, "restore", &directory, &["--only-log"]));
    assert_eq!(code, Some(0), "{said}{why}");
    let server = restored.start();
    assert_eq!(server.ready(), 200);
    restored.assert_in_order(&server);
    assert!(!segments(&restored).is_empty());
}

/// Goal: a halted service is backed up, and is halted when it is restored. Method: halt, backup,
/// restore, resume.
#[test]
fn a_halted_service_comes_back_halted() {
    let site = Site::new();
    let server = site.start();
    endow(&site, &server);
    let halted = server.admin("POST", "/admin/v1/halt", &json!({ "reason": "a look" }));
    assert_eq!(halted.status, 200, "{halted:?}");
    let directory = back_up(&site);
    let elsewhere = site.elsewhere();
    restore(&elsewhere, &directory);
    let server = elsewhere.start();
    assert_eq!(server.ready(), 503);
    let resumed = server.resume("looked");
    assert_eq!(resumed.status, 200, "{resumed:?}");
    assert_eq!(server.transfer(USER, Way::ToSpot, "0.5").status, 200);
}

/// Goal: the same from end to end with the embedded server of `serve --dev`. Method: a backup
/// beside the running service, and one of the stopped service; each into a data directory that does
/// not exist.
#[test]
fn the_embedded_postgresql_is_backed_up_and_brought_back() {
    let site = Site::new();
    let server = Server::start(site.command_with("embedded"));
    assert_eq!(server.transfer(USER, Way::ToSpot, "100").status, 200);
    let embedded = |site: &Site, what: &str, directory: &Path| {
        let mut command = site.tool_with([what], "embedded");
        command.arg(directory);
        let (code, said, why) = output(command);
        assert_eq!(code, Some(0), "{said}{why}");
    };
    let live = site.fresh_path("backup");
    while_watched(
        1,
        || server.transfer_accepted(1002, Way::ToSpot, "0.01"),
        || {
            embedded(&site, "backup", &live);
        },
    );
    server.stop();
    let stopped = site.fresh_path("backup");
    embedded(&site, "backup", &stopped);
    for directory in [live, stopped] {
        let elsewhere = site.with_fresh_data_dir();
        embedded(&elsewhere, "restore", &directory);
        let (code, said) = refused({
            let mut again = elsewhere.tool_with(["restore"], "embedded");
            again.arg(&directory);
            again
        });
        assert!(code == 2 && said.contains("segment-"), "{said}");
        let server = Server::start(elsewhere.command_with("embedded"));
        assert_eq!(server.ready(), 200);
        assert_eq!(server.usdt(USER), Balance::at_rest(9_900 * COIN, 100 * COIN));
        assert_eq!(server.transfer(USER, Way::ToFunding, "40").status, 200);
        server.stop();
    }
}

/// Goal: a backup of an older version is restored with this version's functions. Method: a database
/// with one function less, one trigger less and another hash; backup; restore elsewhere; the schema
/// is the one of a fresh database, and the service works.
#[test]
fn functions_of_an_older_backup_are_this_version_s_after_a_restore() {
    let site = Site::new();
    let server = site.start();
    assert_eq!(server.transfer(USER, Way::ToSpot, "100").status, 200);
    site.wait_for_rest();
    server.stop();
    let want = committed::text(&site);
    site.sql(
        "UPDATE engine_state SET functions_hash = 'another'; \
         DROP TRIGGER transfers_delete_guard ON transfers_tb; \
         DROP FUNCTION webhook_resend",
    );
    let elsewhere = site.elsewhere();
    restore(&elsewhere, &back_up(&site));
    assert_eq!(committed::text(&elsewhere), want);
    let server = elsewhere.start();
    assert_eq!(server.transfer(USER, Way::ToFunding, "60").status, 200);
    elsewhere.wait_for_rest();
    elsewhere.assert_in_order(&server);
}
