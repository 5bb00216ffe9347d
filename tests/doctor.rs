//! The doctor's findings about a machine, a PostgreSQL and a configuration. It changes nothing and
//! finds faults.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use crate::harness::{Site, Way, eventually, said, text};

/// Every check, by its printed name.
const CHECKS: [&str; 23] = [
    "configuration",
    "postgres version",
    "postgres fsync",
    "postgres full_page_writes",
    "postgres synchronous_commit",
    "postgres standbys",
    "postgres wal_level",
    "postgres max_connections",
    "postgres data_checksums",
    "postgres snapshots",
    "clocks",
    "log and database",
    "disk sync",
    "file system",
    "disk space",
    "clocksource",
    "clock",
    "open files",
    "cpus",
    "engine core",
    "outcome map",
    "memory",
    "swap",
];

/// Runs the doctor; returns its exit code and its findings by check: verdict, finding, proposed
/// change.
fn doctor(mut command: Command) -> (i32, BTreeMap<String, [String; 3]>) {
    let (code, out, err) = said(&command.args(["--format", "json"]).output().expect("the binary"));
    assert_eq!(err, "", "{out}");
    let finding = |line: &str| {
        let json: Value = serde_json::from_str(line).expect("one JSON object a line");
        let change = json["change"].as_str().unwrap_or("").to_owned();
        let (verdict, found) = (text(&json["verdict"]).to_owned(), text(&json["found"]).to_owned());
        assert_eq!(verdict == "ok", json["change"] == Value::Null, "{json}");
        assert!(!found.is_empty(), "{json}");
        (text(&json["check"]).to_owned(), [verdict, found, change])
    };
    let findings: BTreeMap<_, _> = out.lines().map(finding).collect();
    let bad = findings.values().any(|[verdict, ..]| verdict == "bad");
    assert_eq!(code, i32::from(bad), "{out}");
    (code, findings)
}

fn verdict<'a>(findings: &'a BTreeMap<String, [String; 3]>, check: &str) -> &'a str {
    &findings.get(check).unwrap_or_else(|| panic!("no {check} in {findings:?}"))[0]
}

/// The names of everything in a directory.
fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).expect("a directory");
    let name = |entry: fs::DirEntry| entry.file_name().into_string().expect("text");
    let mut names: Vec<String> = entries.map(|entry| name(entry.expect("an entry"))).collect();
    names.sort();
    names
}

/// Goal: the doctor examines a running service and changes nothing. Method: every check is listed;
/// rows and files before and after; transfers meanwhile.
#[test]
fn a_running_service_is_examined_and_not_disturbed() {
    let site = Site::new();
    let server = site.start();
    server.transfer_accepted(1001, Way::ToSpot, "5");
    site.wait_for_rest();
    let rows = || {
        ["admin_audit", "approvals_tb", "transfers_tb"]
            .map(|table| site.sql(&format!("TABLE {table} ORDER BY 1")))
    };
    let (before, files) = (rows(), names(&site.data_dir));
    let (_, findings) = doctor(site.tool(["doctor"]));
    for check in CHECKS.into_iter().chain(["huge pages"]) {
        assert!(findings.contains_key(check), "{check}: {findings:?}");
    }
    for check in
        ["configuration", "postgres version", "postgres full_page_writes", "clocks", "engine core"]
    {
        assert_eq!(verdict(&findings, check), "ok", "{findings:?}");
    }
    assert_eq!(verdict(&findings, "postgres synchronous_commit"), "ok");
    assert_eq!(verdict(&findings, "postgres standbys"), "warn");
    assert!(findings["disk sync"][1].starts_with("fdatasync of 4 KiB: p50 "), "{findings:?}");
    assert_eq!((rows(), names(&site.data_dir)), (before, files));
    // The service itself prepares segments meanwhile.
    let scratch = |name: &String| name.contains("doctor");
    assert!(!names(&site.log_dir()).iter().any(scratch), "{:?}", names(&site.log_dir()));

    let output = site.tool(["doctor"]).output().expect("the binary");
    let (_, out, _) = said(&output);
    println!("{out}");
    let last = out.lines().next_back().expect("a line");
    assert!(last.contains(" ok, ") && last.ends_with(" bad"), "{out}");
    assert_eq!(
        out.lines().filter(|line| line.starts_with("ok  ")).count().to_string(),
        last.split(' ').next().expect("a number")
    );
    server.transfer_accepted(1001, Way::ToFunding, "5");
    site.wait_for_rest();
    site.assert_in_order(&server);
}

/// Goal: a server with commits that would never end is found, and the change is named. Method: a
/// cluster of the test's own, configured to wait for a standby that does not exist; and again
/// without. The settings of our own server cannot be set wrong; the unit tests judge the other
/// settings.
#[test]
fn a_server_that_waits_for_nobody_is_found() {
    let (site, _cluster) = Site::on_its_own_cluster();
    site.start().stop();
    let session = site.session();
    for (set, code, verdict_wanted) in [("= 'absent'", 1, "bad"), ("= ''", 0, "warn")] {
        session.sql(&format!("ALTER SYSTEM SET synchronous_standby_names {set}"));
        session.sql("SELECT pg_reload_conf()");
        // The server reads its file with a delay.
        eventually("it is set", || {
            let value = site.sql_value("SHOW synchronous_standby_names");
            set.contains(&format!("'{value}'")).then_some(())
        });
        let (exit_code, findings) = doctor(site.tool(["doctor"]));
        let [verdict, found, change] = &findings["postgres standbys"];
        assert_eq!(verdict, verdict_wanted, "{findings:?}");
        assert!(exit_code >= code && !found.is_empty() && change.contains("standby"), "{found}");
    }
}

/// Goal: an outcome map that the last rate would fill is named before it is full. Method: the
/// sightings of a process with 100,000 transfers a second; the doctor, and the next start.
#[test]
fn a_map_that_is_too_small_for_the_last_rate_is_found() {
    let site = Site::new();
    site.start().stop();
    let check = || doctor(site.tool(["doctor"])).1["outcome map"].clone();
    let [verdict, found, _] = check();
    assert_eq!((&*verdict, &*found), ("ok", "100000 places and 120s carry 253 transfers/s"));
    site.sql(
        "DELETE FROM watermark_sightings; \
         INSERT INTO watermark_sightings \
         SELECT (1::bigint << 40) + n * 100000, n * 1000 FROM generate_series(1, 10) AS n",
    );
    let [verdict, found, change] = check();
    assert_eq!(verdict, "warn", "{found}");
    assert!(found.ends_with("; lately 100000 transfers/s"), "{found}");
    assert!(change.contains("engine.outcomes_max"), "{change}");
    let server = site.start();
    server.says("the outcome map is too small for the last measured rate");
    site.wait_for_rest();
    site.assert_in_order(&server);
}

/// Goal: a missing part is reported, and the other checks still run. Method: an embedded server
/// that does not run, an address without a server, an invalid configuration; nothing is created.
#[test]
fn what_is_missing_is_said_and_the_rest_is_checked() {
    let site = Site::new();
    let (_, findings) = doctor(site.tool_with(["doctor"], "embedded"));
    assert_eq!(verdict(&findings, "postgres"), "warn");
    assert!(findings["postgres"][1].contains("does not run"), "{findings:?}");
    assert!(findings.contains_key("disk sync") && findings.contains_key("swap"));
    assert!(!site.data_dir.exists(), "it makes nothing");

    let (code, findings) = doctor(site.tool_with(["doctor"], "postgres://x@127.0.0.1:1/x"));
    assert_eq!((code, verdict(&findings, "postgres")), (1, "bad"));
    assert!(findings.contains_key("disk sync"));

    let wrong = site.clone().with("UBSCORE__COORDINATOR__SHARDS", 0);
    let (code, findings) = doctor(wrong.tool(["doctor"]));
    assert_eq!((code, verdict(&findings, "configuration")), (1, "bad"));
    assert!(findings["configuration"][1].contains("coordinator.shards"), "{findings:?}");
    assert!(findings.contains_key("disk sync"));

    let output = site.tool(["doctor", "--format", "xml"]).output().expect("the binary");
    assert_eq!(output.status.code(), Some(2));
}

/// The machine is compared with its configuration.
#[test]
fn the_machine_is_held_against_the_configuration() {
    let site = Site::new();
    for (key, value, check, want) in [
        ("ENGINE__CORE", json!(1_023), "engine core", "bad"),
        ("COORDINATOR__SHARDS", json!(64), "cpus", "warn"),
        ("ENGINE__ACCOUNTS_MAX", json!(100_000_000), "memory", ""),
        ("POSTGRES__CONNECTIONS_MAX", json!(512), "postgres max_connections", "bad"),
    ] {
        let site = site.clone().with(&format!("UBSCORE__{key}"), value);
        let (_, findings) = doctor(site.tool(["doctor"]));
        let verdict = verdict(&findings, check);
        assert!(verdict == want || want.is_empty(), "{check}: {findings:?}");
        assert!(verdict == "ok" || !findings[check][2].is_empty(), "{findings:?}");
    }
}
