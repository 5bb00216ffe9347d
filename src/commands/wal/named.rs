//! Postings by name in a dump: the words of their lines, and their members in JSON.

use std::fmt::Write;

use domain::posting::{Leg, Place};
use domain::transfer::Decision;
use engine::named::Named;
use engine::posted::Posted;
use serde::Serialize;
use ulid::Ulid;

use super::assets::Assets;
use super::integer::Integer;
use super::posting::{LegObject, leg_objects, outcome};

/// The words of a posting between its kind and its outcome: operation, name and all legs.
///
/// `RESERVE tx 01JFVQ2X8Z0Y1M3N4P5R6S7T8V round 1 tx_id pay:7 user 1001 USDT 100.5 -> user 1002`
pub(super) fn named_text(named: &Named, assets: &Assets) -> String {
    let Named { op, transaction, round, ref tx_id, .. } = *named;
    let (op, name, tx_id) = (op.name(), Ulid(transaction), tx_id.as_str());
    let mut text = format!("{op} tx {name} round {round} tx_id {tx_id}");
    for (index, leg) in named.legs.iter().enumerate() {
        let comma = if index == 0 { "" } else { "," };
        write!(text, "{comma} {}", leg_text(leg, assets)).expect("memory");
    }
    text
}

/// The outcome of a posting. A refusal names the failing leg, from 0, if there are several.
pub(super) fn named_outcome(named: &Named) -> String {
    let name = outcome(named.decision);
    match named.decision {
        Decision::Refused(_) if named.legs.len() > 1 => format!("{name} leg {}", named.leg),
        Decision::Success | Decision::Refused(_) => name.to_owned(),
    }
}

fn leg_text(leg: &Leg, assets: &Assets) -> String {
    let [from, to] = [leg.from, leg.to].map(place_text);
    let (asset, amount) = (assets.name(leg.asset), assets.amount(leg.asset, leg.amount.into()));
    format!("{from} {asset} {amount} -> {to}")
}

/// A refused posting may name any place.
fn place_text(place: Place) -> String {
    match place {
        Place::Outside => "outside".to_owned(),
        Place::Available(user) => format!("user {user}"),
        Place::Frozen { user, purpose } => format!("user {user} frozen {purpose}"),
        Place::Hold(number) => format!("hold {number}"),
    }
}

/// The users of the legs of a posting.
pub(in crate::commands) fn named_users(named: &Named) -> impl Iterator<Item = u64> {
    named.legs.iter().flat_map(|leg| [leg.from.user(), leg.to.user()]).flatten()
}

/// A posting by name in JSON: the members behind `kind`.
#[derive(Serialize)]
pub(super) struct NamedObject<'a> {
    op: &'static str,
    transaction: String,
    round: u8,
    tx_id: &'a str,
    order_number: Integer,
    /// The user of a user's transaction, else 0.
    reference: Integer,
    legs: Vec<LegObject<'a>>,
    outcome: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    leg: Option<u8>,
    state: String,
}

impl<'a> NamedObject<'a> {
    pub(super) fn of(named: &'a Named, assets: &'a Assets) -> NamedObject<'a> {
        // Its legs are written as those of a venue are.
        let posted = Posted { op: named.op, legs: named.legs.clone(), ..Posted::empty() };
        NamedObject {
            op: named.op.name(),
            transaction: Ulid(named.transaction).to_string(),
            round: named.round,
            tx_id: named.tx_id.as_str(),
            order_number: named.order_number.into(),
            reference: named.reference.into(),
            legs: leg_objects(&posted, assets),
            outcome: outcome(named.decision),
            leg: named.code().map(|_| named.leg),
            state: format!("{:016x}", named.state),
        }
    }
}

#[cfg(test)]
mod tests {
    use domain::code::Code;
    use domain::posting::Posting;
    use domain::transfer::{Op, ReqId};
    use engine::entry::Entry;
    use engine::named::NamedPosting;
    use engine::text::Text;
    use serde_json::json;

    use super::*;
    use crate::commands::wal::tests::{REQ_ID, Sample, objects, sequences, ubscore_wal};

    const USDT: u32 = 3;
    const UNIT: u64 = 100_000_000;
    const OTHER: &str = "01JFVQ2X8Z0Y1M3N4P5R6S7T90";

    fn named(op: Op, name: &str, round: u8, legs: &[(u64, u64, u64)]) -> Named {
        let available = Place::Available;
        let legs: Posting = legs
            .iter()
            .map(|&(from, to, amount)| Leg {
                from: available(from),
                to: available(to),
                asset: USDT,
                amount,
            })
            .collect();
        let transaction = ReqId::parse(name).expect("a ULID");
        let tx_id = Text::new(if name == REQ_ID { "pay:7" } else { "pay:8" }).expect("short");
        let posting = NamedPosting { transaction, order_number: 9, round, tx_id, user: 0, legs };
        Named::new(op, &posting)
    }

    /// Two transactions: one is settled in two rounds, one is refused and released.
    fn sample() -> Sample {
        let mut sample = Sample::empty();
        let symbol = Text::new("USDT").expect("short");
        sample.append(&Entry::Asset { asset: USDT, precision: 8, symbol });
        let (first, second) = ((1001, 1002, 100 * UNIT), (1002, 1003, 50 * UNIT));
        let short = Named {
            decision: Decision::Refused(Code::InsufficientBalance),
            leg: 1,
            ..named(Op::Reserve, OTHER, 2, &[first, second])
        };
        for named in [
            named(Op::Reserve, REQ_ID, 1, &[first]),
            named(Op::Reserve, REQ_ID, 2, &[first, second]),
            named(Op::Reserve, OTHER, 1, &[(1004, 1002, UNIT)]),
            short,
            named(Op::Settle, REQ_ID, 2, &[first, second]),
            named(Op::Release, OTHER, 2, &[]),
        ] {
            sample.append(&Entry::Named(Box::new(named)));
        }
        sample
    }

    #[test]
    fn a_posting_by_name_is_a_line_with_all_its_legs() {
        let (out, _) = ubscore_wal(&["dump", &sample().data()]).succeeded();
        let words = out
            .lines()
            .skip(1)
            .map(|line| &line["         1 2023-11-14T22:13:20.123456Z ".len()..]);
        let (one, both) = (
            "user 1001 USDT 100 -> user 1002",
            "user 1001 USDT 100 -> user 1002, user 1002 USDT 50 -> user 1003",
        );
        let want = [
            format!("POSTING RESERVE tx {REQ_ID} round 1 tx_id pay:7 {one} SUCCESS"),
            format!("POSTING RESERVE tx {REQ_ID} round 2 tx_id pay:7 {both} SUCCESS"),
            format!(
                "POSTING RESERVE tx {OTHER} round 1 tx_id pay:8 user 1004 USDT 1 -> user 1002 \
                 SUCCESS"
            ),
            format!(
                "POSTING RESERVE tx {OTHER} round 2 tx_id pay:8 {both} INSUFFICIENT_BALANCE leg 1"
            ),
            format!("POSTING SETTLE tx {REQ_ID} round 2 tx_id pay:7 {both} SUCCESS"),
            format!("POSTING RELEASE tx {OTHER} round 2 tx_id pay:8 SUCCESS"),
        ];
        assert_eq!(words.collect::<Vec<_>>(), want);
    }

    #[test]
    fn json_has_every_field_of_a_posting_by_name() {
        let sample = sample();
        let (out, _) = ubscore_wal(&["dump", &sample.data(), "--format", "json"]).succeeded();
        let lines = objects(&out);
        let leg = json!({"from": {"place": "available", "user": 1001},
            "to": {"place": "available", "user": 1002}, "asset": "USDT", "asset_id": 3,
            "amount": "100", "amount_units": 10_000_000_000_u64, "all": false});
        let want = json!({"kind": "POSTING", "op": "RESERVE", "transaction": REQ_ID, "round": 1,
            "tx_id": "pay:7", "order_number": 9, "reference": 0, "legs": [leg],
            "outcome": "SUCCESS", "state": "0000000000000000"});
        for (field, want) in want.as_object().expect("an object") {
            assert_eq!(&lines[1][field], want, "{field}");
        }
        assert_eq!((&lines[1]["leg"], &lines[4]["leg"]), (&json!(null), &json!(1)));
        assert_eq!(lines[6]["legs"], json!([]));
    }

    /// Goal: a filter selects by transaction, and a user also by the owner of a hold. Method: the
    /// RELEASE has no legs, and user 1004 owns the hold of its transaction.
    #[test]
    fn filters_select_postings_by_name() {
        let sample = sample();
        let data = sample.data();
        for (words, want) in [
            (&["--tx-id", "pay:7"][..], &[2, 3, 6][..]),
            (&["--req-id", OTHER], &[4, 5, 7]),
            (&["--user", "1004"], &[4, 5, 7]),
            (&["--user", "1003"], &[3, 5, 6]),
            (&["--op", "RESERVE", "--tx-id", "pay:8"], &[4, 5]),
            (&["--venue", "1"], &[]),
            (&["--number", "1"], &[]),
        ] {
            assert_eq!(sequences(&[&[data.as_str()], words].concat()), want, "{words:?}");
        }
        let (out, _) = ubscore_wal(&["stat", &data, "--format", "json"]).succeeded();
        let object = objects(&out).remove(0);
        assert_eq!(object["users"], json!({"count": 4, "exact": true}));
        let orders = object["orders"].as_array().expect("orders");
        let known = |op: &str, outcome: &str| {
            orders.iter().any(|order| order["op"] == op && order["outcome"] == outcome)
        };
        assert!(known("SETTLE", "SUCCESS") && known("RESERVE", "INSUFFICIENT_BALANCE"));
    }
}
