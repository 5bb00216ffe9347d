//! The fingerprint of a round: equal for two requests that mean the same.

use serde_json::{Value, json};
use xxhash_rust::xxh3::xxh3_128;

use crate::transaction::{TransactionLeg, TransactionRound};
use domain::transfer::Participant;

/// XXH3-128 over the round in one form: amounts as units, keys of objects in order. `ttl_ms`: as
/// the request gave it, since the default may change.
pub(super) fn of(round: &TransactionRound, ttl_ms: Option<u64>) -> [u8; 16] {
    // Plain numbers for legs within a store, as the first version had them: a repeat of a round
    // that it accepted is still the same. A leg between the stores is in both lists.
    let legs = |store: Participant| {
        let columns = |leg: &TransactionLeg| {
            json!([leg.from.value(store), leg.to.value(store), leg.asset.0, leg.amount])
        };
        round.legs_in(store).iter().map(columns).collect::<Vec<Value>>()
    };
    let mut all = json!([
        round.round,
        round.decider.name(),
        ttl_ms,
        legs(Participant::Funding),
        legs(Participant::Spot),
        round.services,
        round.last,
    ]);
    // Only if there are some: a round from before there were followers has the same fingerprint.
    if let (false, Value::Array(parts)) = (round.followers.is_empty(), &mut all) {
        parts.push(json!(round.followers));
    }
    let mut text = String::new();
    write(&all, &mut text);
    xxh3_128(text.as_bytes()).to_be_bytes()
}

/// Writes a value with the keys of each object in order.
fn write(value: &Value, text: &mut String) {
    match value {
        Value::Object(fields) => {
            let mut fields: Vec<(&String, &Value)> = fields.iter().collect();
            fields.sort_by_key(|(key, _)| *key);
            text.push('{');
            for (key, value) in fields {
                text.push_str(&Value::from(key.as_str()).to_string());
                text.push(':');
                write(value, text);
                text.push(',');
            }
            text.push('}');
        }
        Value::Array(items) => {
            text.push('[');
            for item in items {
                write(item, text);
                text.push(',');
            }
            text.push(']');
        }
        scalar => text.push_str(&scalar.to_string()),
    }
}
