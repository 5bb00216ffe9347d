//! Reorganizations: each is told as a new list, and the end is that of the chain.

use serde_json::{Value, json};

use super::blocks::{blocks_from, confirmations, lists, mine_on_top, pooled, raws};
use super::place::{Party, Place};
use crate::harness::{Lie, SEND, eventually};

/// The confirmations that are required: the chain of the tests finalizes the block below that.
const REQUIRED: usize = 4;

/// The fate of a mined transaction in a reorganization.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// Its block stays, and those on top are others.
    Stays,
    /// Another block of the same height has it.
    Kept,
    /// The highest of the new blocks has it.
    Moved,
    /// No new block has it.
    Lost,
}

/// Goal: a reorganization is told as a new, whole list, and the end is that of the chain. Method:
/// each depth up to the required confirmations; the transaction's block stays, or the transaction
/// is kept at its height, moved, or lost.
#[test]
fn cnf_002_a_reorganization_is_told_and_ends_right() {
    let required = REQUIRED.to_string();
    let place = Place::new(&[("CONFIRMATIONS__REQUIRED", &required)]);
    let node = place.first_node();
    for depth in 1..=REQUIRED {
        for fate in [Fate::Stays, Fate::Kept, Fate::Moved, Fate::Lost] {
            // The highest of one block is the lowest. With all confirmations a row is final.
            let is_other =
                (fate == Fate::Moved && depth == 1) || (fate == Fate::Stays && depth == REQUIRED);
            if !is_other {
                reorganize(&place, &node, depth, fate);
            }
        }
    }
}

fn reorganize(place: &Place, node: &Party, depth: usize, fate: Fate) {
    let name = format!("{fate:?}-{depth}");
    let id = pooled(place, node, &name);
    let bytes = raws(place, &id).pop().expect("an attempt");
    let on_top = if fate == Fate::Stays { depth } else { depth - 1 };
    let before = mine_on_top(place, node, &id, 1 + on_top as u64, on_top);
    let mined = before["receipt"]["blockNumber"].as_u64().expect("a height");
    let (highest, sent) = (depth as u64 - 1, place.proxy.sent().len());
    let with: &[(&[u8], u64)] = match fate {
        Fate::Stays | Fate::Lost => &[],
        Fate::Kept => &[(&bytes, 0)],
        Fate::Moved => &[(&bytes, highest)],
    };
    place.chain.reorg(depth as u64, with);
    node.until(&id, &name, |row| row["fork"] != before["fork"]);
    if fate == Fate::Lost {
        eventually("the bytes again", || (place.proxy.sent().len() > sent).then_some(()));
    }
    let row = place.end(node, &id);
    assert_eq!(row["state"], "CONFIRMED", "{name}: {row}");
    let last = row["receipt"]["blockNumber"].as_u64().expect("a height");
    match fate {
        Fate::Stays | Fate::Kept => assert_eq!(last, mined, "{name}"),
        Fate::Moved => assert_eq!(last, mined + highest, "{name}"),
        Fate::Lost => assert!(last > mined + highest, "{name}: {row}"),
    }
    assert!(is_told_anew(place, node, &before, &row), "{name}: {row:#}");
}

/// Whether the feed has two whole lists of a row: that of before, and that of its end.
fn is_told_anew(place: &Place, node: &Party, before: &Value, row: &Value) -> bool {
    let id = row["txId"].as_str().expect("an id");
    let receipt = &row["receipt"];
    let mined = receipt["blockNumber"].as_u64().expect("a height");
    let whole = blocks_from(place, mined, REQUIRED + 1);
    receipt["blockHash"] == json!(whole[0].1)
        && confirmations(row) == whole
        && lists(&place.story(node, id)) == [confirmations(before), whole]
        && row["fork"] == json!(1)
}

/// Goal: the final one of all attempts decides. Method: at each depth a mined cancel is replaced by
/// its payment in a reorganization, and a mined payment by its cancel.
/// Ids: CNF-002, RSB-006.
#[test]
fn cnf_002_rsb_006_a_replaced_transaction_ends_as_the_chain_says() {
    let required = REQUIRED.to_string();
    let place =
        Place::new(&[("CONFIRMATIONS__REQUIRED", &required), ("RESUBMIT__BUMP_AFTER", "1000")]);
    let node = place.first_node();
    for depth in 1..=REQUIRED {
        for (first, then) in [("CANCEL", "PAY"), ("PAY", "CANCEL")] {
            replace(&place, &node, depth, first, then);
        }
    }
}

/// The number of an attempt of a cancelled row.
fn attempt(kind: &str) -> usize {
    if kind == "PAY" { 1 } else { 2 }
}

fn replace(place: &Place, node: &Party, depth: usize, first: &str, then: &str) {
    let name = format!("{first}-{then}-{depth}");
    let id = pooled(place, node, &name);
    if first == "PAY" {
        // The cancel is stored, and no pool has it.
        place.proxy.lie(SEND, Lie::LoseRequest);
    }
    let cancel = node.post(&format!("/api/v1/tx/{id}/cancel"), &json!({}));
    assert_eq!(cancel.status, 202, "{cancel:?}");
    node.until(&id, "a cancel", |row| {
        let cancel = &row["attempts"][1];
        cancel["kind"] == json!("CANCEL") && (first == "PAY" || cancel["inPool"] == json!(true))
    });
    let attempts = raws(place, &id);
    let before = mine_on_top(place, node, &id, depth as u64, depth - 1);
    assert_eq!(before["receipt"]["attempt"], json!(attempt(first)), "{name}");
    place.chain.reorg(depth as u64, &[(&attempts[attempt(then) - 1], 0)]);
    node.until(&id, "the other one", |row| row["receipt"]["attempt"] == json!(attempt(then)));
    place.proxy.honest();
    let row = place.end(node, &id);
    let (state, code) = match then {
        "PAY" => (json!("CONFIRMED"), Value::Null),
        _ => (json!("FAILED"), json!("CANCELLED")),
    };
    assert_eq!((&row["state"], &row["code"]), (&state, &code), "{name}: {row}");
    assert_eq!(row["receipt"]["blockNumber"], before["receipt"]["blockNumber"], "{name}");
    assert!(is_told_anew(place, node, &before, &row), "{name}: {row:#}");
}
