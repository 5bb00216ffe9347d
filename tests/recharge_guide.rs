//! The walk of `docs/recharge.md`: its lines are run as they are printed, by one shell, against
//! `serve --dev --channel-sim`.

use std::path::Path;
use std::process::Command;

use crate::harness::{Server, Site};
use crate::runbook::{assert_printed, blocks};

/// The chapter that is run.
const CHAPTER: &str = "A walk";
/// Between the outputs of two blocks.
const NEXT: &str = "--- the next block";

/// RCH-042. Goal: the walk of the guide shows an order from its wish to its refund, as it is.
/// Method: every block marked `sh`, in one shell; a block marked `text` behind one has the lines
/// that it prints, in this order, with `…` for anything.
#[test]
fn rch_042_the_walk_of_the_guide_does_as_it_says() {
    let site = Site::new().with("UBSCORE__CALLBACKS__LISTEN", "127.0.0.1:0");
    let mut command = site.command();
    command.arg("--channel-sim");
    let server = Server::start(command);
    let all = blocks("docs/recharge.md");
    let steps: Vec<usize> =
        (0..all.len()).filter(|n| all[*n].chapter == CHAPTER && all[*n].mark == "sh").collect();
    assert!(steps.len() >= 7, "{} blocks", steps.len());
    let mut script = String::new();
    for step in &steps {
        script += &format!("{}\necho\necho '{NEXT}'\n", all[*step].text);
    }
    let callbacks = server.callbacks.expect("recharges are on");
    for (printed, real) in [
        ("127.0.0.1:8080", server.http),
        ("127.0.0.1:9090", server.ops),
        ("127.0.0.1:8085", callbacks),
    ] {
        script = script.replace(printed, &real.to_string());
    }
    let own = Path::new(env!("CARGO_BIN_EXE_ubscore")).parent().expect("a directory");
    let others = std::env::var("PATH").unwrap_or_default();
    let simulator = server.simulator.expect("a simulator");
    let output = Command::new("bash")
        .args(["-euo", "pipefail", "-c", &script])
        .env("PATH", format!("{}:{others}", own.display()))
        .env("SIM", format!("http://{simulator}"))
        .env("UBSCORE__OPS__LISTEN", server.ops.to_string())
        .output()
        .expect("bash");
    let said = String::from_utf8_lossy(&output.stdout);
    let why = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}{why}");
    for (step, said) in steps.iter().zip(said.split(NEXT)) {
        assert_printed(all.get(step + 1), said, &format!("{}{said}{why}", all[*step].text));
    }
    site.assert_verified();
}
