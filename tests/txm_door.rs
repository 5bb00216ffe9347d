//! The door of the transaction manager: `ubscore txm serve` over HTTP, on a real PostgreSQL and a
//! real node of the chain.

use alloy_primitives::Address;
use serde_json::{Value, json};

use crate::harness::{ACCOUNTS, Chain, Reply, Site, eventually};

/// The audit of nonces.
mod audited;

/// The description of the clients' listener.
mod described;

/// The chain and the node of `serve --dev --chain`.
mod dev;

/// The doctor's findings.
mod examined;

/// A running node, and tokens for it.
mod node;

/// Each input that is refused, row by row.
mod refused;

/// A database that is older than a node has seen.
mod restored;

/// The commands of the runbook.
mod runbook;

/// The rights of each token.
mod tokens;

/// Transactions from POST to their end, on one node and on two.
mod ways;

use self::node::{Node, service};

/// The signer of these tests.
const SIGNER: Address = ACCOUNTS[0];
/// The payee.
const PAYEE: Address = ACCOUNTS[5];

/// The body of a payment of one wei.
fn payment(request_id: &str) -> Value {
    json!({
        "signer": format!("{SIGNER:#x}"),
        "requestId": request_id,
        "payload": {"to": format!("{PAYEE:#x}"), "value": "1"},
    })
}

/// A database, a chain, and one node with its signer.
fn place() -> (Site, Chain, Node) {
    let (site, chain) = (Site::new(), Chain::start());
    let node = Node::start(&site, &chain, "txm-a", &[]);
    let added = node.operate(&["signer", "add", &format!("{SIGNER:#x}"), "--reason", "a test"]);
    assert_eq!(added.0, 0, "{added:?}");
    (site, chain, node)
}

/// Posts a payment until a node takes it: behind its start it may not own the signer yet.
fn pay(node: &Node, request_id: &str) -> Reply {
    let token = service(&[SIGNER], None);
    eventually("an answer that is not retryable", || {
        let reply = node.post(&token, "/api/v1/tx", &payment(request_id));
        Some(reply).filter(|reply| reply.status < 500)
    })
}
