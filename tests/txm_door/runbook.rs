//! The chapters of the runbook about nodes.

use std::fs;
use std::path::Path;
use std::process::Command;

use super::{SIGNER, pay, place};
use crate::runbook::{blocks, matches};

/// Goal: the commands of the runbook about nodes work as printed. Method: every block marked
/// `console`, against a node with a payment.
#[test]
fn the_chapters_of_the_runbook_about_nodes_work() {
    let (_site, chain, node) = place();
    let paid = pay(&node, "a-1").json();
    chain.mine(1);
    let signer = format!("{SIGNER:#x}");
    let tx_id = paid["txId"].as_str().expect("an id");
    let own = Path::new(env!("CARGO_BIN_EXE_ubscore")).parent().expect("a directory");
    let path = format!("{}:{}", own.display(), std::env::var("PATH").unwrap_or_default());
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/runbook.md");
    let all = blocks(&fs::read_to_string(&file).expect("the runbook"));
    let mut run = 0;
    for (index, block) in all.iter().enumerate().filter(|(_, block)| block.mark == "console") {
        let ops = format!("--dev --ops http://{}", node.ops);
        let line = block.text.replace("--config ubscore.toml", &ops);
        let mut command = Command::new("bash");
        command.args(["-euo", "pipefail", "-c", &line]);
        command.envs([("PATH", path.as_str()), ("SIGNER", signer.as_str()), ("TX_ID", tx_id)]);
        let output = command.output().expect("bash");
        let said = String::from_utf8_lossy(&output.stdout);
        let why = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{}:\n{line}{said}{why}", block.chapter);
        if let Some(expected) = all.get(index + 1).filter(|block| block.mark == "text") {
            let mut lines = said.lines();
            for want in expected.text.lines() {
                let found = lines.any(|line| matches(line, want));
                assert!(found, "{}: {want}\nis not in\n{line}{said}", block.chapter);
            }
        }
        run += 1;
    }
    assert!(run >= 4, "{run}");
}
