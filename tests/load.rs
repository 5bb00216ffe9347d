//! `ubscore load`: its offered load, its report, and balances that agree with its answers.

use std::process::{Command, Output};

use serde_json::{Value, json};

use crate::harness::{Server, Site};

fn load(server: &Server, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ubscore"));
    command.args(["load", "--dev", "--users", "5", "--duration", "400ms", "--warm-up", "100ms"]);
    command.arg("--url").arg(format!("http://{}", server.http));
    command.arg("--ops").arg(format!("http://{}", server.ops));
    command.args(arguments).output().expect("the binary")
}

fn report(output: &Output) -> Value {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("JSON")
}

#[test]
fn a_load_tells_what_it_offered_and_what_came_of_it() {
    let site = Site::new();
    let server = site.start();
    let said = report(&load(&server, &["--rate", "50,100", "--format", "json"]));
    let rows = said["rows"].as_array().expect("rows");
    assert_eq!(rows.len(), 2);
    for (row, rate) in rows.iter().zip([50, 100]) {
        assert_eq!(row["offered"], json!(rate), "{row}");
        // Every planned transfer was sent and answered, even if late.
        let answers = ["committed", "pending", "refused", "turned_away", "lost"];
        let sum: u64 = answers.iter().map(|name| row[*name].as_u64().expect("a count")).sum();
        assert_eq!(sum, rate * 4 / 10, "{row}");
        assert_eq!((&row["refused"], &row["lost"]), (&json!(0), &json!(0)), "{row}");
    }
    // A second run over the same users, as fast as possible, one way only.
    let output = load(&server, &["--to-spot", "100", "--connections", "3"]);
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(said.contains("offered/s") && said.contains("balances: "), "{said}");
    site.wait_for_rest();
    site.assert_in_order(&server);
}

/// Goal: the commands of a venue are offered in full, and the balances are those of the answers.
/// Method: before the venue is registered; at two rates; as fast as answers come back.
#[test]
fn a_load_of_a_venue_tells_what_it_offered_and_what_came_of_it() {
    let site = Site::new();
    let socket = site.fresh_path("stream");
    let site = site.with("UBSCORE__STREAM__SOCKET", socket.display());
    let server = site.start();
    let place = socket.display().to_string();
    let offer = |more: &[&str]| {
        load(&server, &[&["--venue", "7", "--socket", &place, "--connections", "3"], more].concat())
    };
    let refused = offer(&[]);
    let said = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(1), "{said}");
    assert!(said.contains("open venue 7; next: ubscore venue list"), "{said}");

    let body = json!({"name": "load", "reason": "a test"});
    let reply = server.admin("PUT", "/admin/v1/venues/7", &body);
    assert_eq!(reply.status, 200, "{reply:?}");
    let said = report(&offer(&["--rate", "100,200", "--format", "json"]));
    let rows = said["rows"].as_array().expect("rows");
    assert_eq!(rows.len(), 2);
    for (row, rate) in rows.iter().zip([100, 200]) {
        assert_eq!((&row["offered"], &row["done"]), (&json!(rate), &json!(rate * 4 / 10)), "{row}");
        assert_eq!(row["refused"], json!(0), "{row}");
    }
    for window in ["1", "100"] {
        let output = offer(&["--window", window]);
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        assert!(said.contains("done/s") && said.contains("nothing is held"), "{said}");
    }
    site.assert_verified();
}

/// Story: a statement for many calls always failed without notice, since single statements took its
/// place. Withdraws of transfers that commit every state went unnoticed too: no statement for many
/// calls covered them.
#[test]
fn a_crowd_shares_statements() {
    for fuse in [true, false] {
        let site = Site::new()
            .with("UBSCORE__COORDINATOR__SHARDS", 1)
            .with("UBSCORE__COORDINATOR__FUSE", fuse);
        let server = site.start();
        for to_spot in ["0", "50", "100"] {
            let arguments = ["--to-spot", to_spot, "--connections", "64", "--format", "json"];
            report(&load(&server, &arguments));
        }
        site.wait_for_rest();
        site.assert_in_order(&server);
        assert!(!server.said().contains("one at a time now"), "{fuse}: {}", server.said());
    }
}

#[test]
fn a_load_that_cannot_be_offered_says_why() {
    let site = Site::new();
    let server = site.start();
    for (arguments, why) in [
        (["--asset", "NONE"], "the service has no asset NONE"),
        (["--amount", "0"], "0: no amount of 8 decimals"),
        (["--url", "http://127.0.0.1:1"], "connect to 127.0.0.1:1"),
        (["--url", "https://localhost"], "only http:// is spoken here"),
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_ubscore"))
            .args(["load", "--dev", "--duration", "100ms"])
            .args(match arguments[0] {
                "--url" => [].as_slice(),
                _ => &["--url"],
            })
            .args((arguments[0] != "--url").then(|| format!("http://{}", server.http)))
            .args(arguments)
            .output()
            .expect("the binary");
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains(why), "{said}");
    }
}
