//! The chapters of the runbook about nodes.

use super::{SIGNER, pay, place};
use crate::runbook::run_blocks;

/// Goal: the commands of the runbook about nodes work as printed. Method: every block marked
/// `console`, against a node with a payment.
#[test]
fn the_chapters_of_the_runbook_about_nodes_work() {
    let (_site, chain, node) = place();
    let paid = pay(&node, "a-1").json();
    chain.mine(1);
    let signer = format!("{SIGNER:#x}");
    let tx_id = paid["txId"].as_str().expect("an id");
    let run = run_blocks("console", node.ops, &[("SIGNER", &signer), ("TX_ID", tx_id)]);
    assert!(run >= 4, "{run}");
}
