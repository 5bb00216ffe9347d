//! Postings and venues in a dump: the words of their lines, and their members in JSON.

use std::fmt::Write;

use domain::posting::{ALL, Leg, Place, PlaceKind};
use domain::transfer::Decision;
use engine::entry::VenueEntry;
use engine::posted::Posted;
use serde::Serialize;
use ulid::Ulid;

use super::line::{Assets, Integer, outcome};

/// The words of a posting between its kind and its outcome: operation, name and all legs.
///
/// `RESERVE venue 1 #1042 user 1001 USDT 100.5 -> hold 1:1042`
pub(super) fn posting_text(posted: &Posted, assets: &Assets) -> String {
    let Posted { venue, number, op, operator, .. } = *posted;
    let mut text = match operator {
        0 => format!("{} venue {venue} #{number}", op.name()),
        // An operator's release of a closed venue's hold has a name and no number.
        name => format!("{} venue {venue} operator {}", op.name(), Ulid(name)),
    };
    for (index, leg) in posted.legs.iter().enumerate() {
        let comma = if index == 0 { "" } else { "," };
        write!(text, "{comma} {}", leg_text(posted, leg, assets)).expect("memory");
    }
    text
}

/// The outcome of a posting. A refusal names the failing leg, from 0, if there are several.
pub(super) fn outcome_text(posted: &Posted) -> String {
    let name = outcome(posted.decision);
    match posted.decision {
        Decision::Refused(_) if posted.imposed => format!("{name} imposed"),
        Decision::Refused(_) if posted.legs.len() > 1 => format!("{name} leg {}", posted.leg),
        Decision::Success | Decision::Refused(_) => name.to_owned(),
    }
}

fn leg_text(posted: &Posted, leg: &Leg, assets: &Assets) -> String {
    let [from, to] = [leg.from, leg.to].map(|place| place_text(posted, place));
    let amount = match leg.amount {
        ALL if leg.from.kind() == PlaceKind::Hold => "ALL".to_owned(),
        units => assets.amount(leg.asset, units.into()),
    };
    match is_unknown_owner(posted, leg.to) {
        // A refused RELEASE found no hold, and so no owner and no asset.
        true => format!("{from} {amount} -> {to}"),
        false => format!("{from} {} {amount} -> {to}", assets.name(leg.asset)),
    }
}

fn place_text(posted: &Posted, place: Place) -> String {
    let venue = posted.venue;
    match place {
        Place::Outside => "outside".to_owned(),
        Place::Available(_) if is_unknown_owner(posted, place) => "owner".to_owned(),
        Place::Available(user) => format!("user {user}"),
        Place::Frozen { user, purpose } => format!("user {user} frozen {purpose}"),
        Place::Hold(number) => format!("hold {venue}:{}", hold_number(posted, number)),
    }
}

/// Whether a place is the owner of a hold that was not found.
fn is_unknown_owner(posted: &Posted, place: Place) -> bool {
    posted.op.row().pays_owner && place == Place::Available(0)
}

/// In a RESERVE, 0 is the hold of the command itself.
fn hold_number(posted: &Posted, number: u64) -> u64 {
    if number == 0 { posted.number } else { number }
}

/// A leg in JSON.
#[derive(Serialize)]
pub(super) struct LegObject<'a> {
    from: PlaceObject,
    to: PlaceObject,
    asset: Option<&'a str>,
    asset_id: u32,
    /// In the asset's decimals; `None` if they are unknown, or if a refused leg asks for all.
    amount: Option<String>,
    amount_units: Integer,
    /// The leg asks for all that is left.
    all: bool,
}

#[derive(Serialize)]
struct PlaceObject {
    place: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    user: Option<Integer>,
    #[serde(skip_serializing_if = "Option::is_none")]
    purpose: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    hold: Option<Integer>,
}

impl PlaceObject {
    fn of(posted: &Posted, place: Place) -> PlaceObject {
        let (user, purpose, hold) = (place.user().map(Integer::from), None, None);
        match place {
            Place::Outside => PlaceObject { place: "outside", user, purpose, hold },
            Place::Available(_) => {
                let user = user.filter(|_| !is_unknown_owner(posted, place));
                PlaceObject { place: "available", user, purpose, hold }
            }
            Place::Frozen { purpose, .. } => {
                PlaceObject { place: "frozen", user, purpose: Some(purpose), hold }
            }
            Place::Hold(number) => {
                let hold = Some(hold_number(posted, number).into());
                PlaceObject { place: "hold", user, purpose, hold }
            }
        }
    }
}

/// The legs of a posting, in order.
pub(super) fn leg_objects<'a>(posted: &Posted, assets: &'a Assets) -> Vec<LegObject<'a>> {
    let object = |(index, leg): (usize, &Leg)| {
        let open = leg.amount == ALL && leg.from.kind() == PlaceKind::Hold;
        let asset = assets.symbol(leg.asset);
        let units = u128::from(leg.amount);
        LegObject {
            from: PlaceObject::of(posted, leg.from),
            to: PlaceObject::of(posted, leg.to),
            asset,
            asset_id: leg.asset,
            amount: asset.filter(|_| !open).map(|_| assets.amount(leg.asset, units)),
            amount_units: leg.amount.into(),
            all: open || posted.took_all & 1 << index != 0,
        }
    };
    posted.legs.iter().enumerate().map(object).collect()
}

/// The event of a venue's record. `known`: an earlier record of this venue was read.
pub(super) fn venue_event(venue: &VenueEntry, known: bool) -> &'static str {
    match venue {
        VenueEntry { epoch: 0, closed: true, .. } => "closed",
        VenueEntry { epoch: 0, .. } if known => "reopened",
        VenueEntry { epoch: 0, .. } => "added",
        VenueEntry { .. } => "opened",
    }
}

/// The words of a venue's record: number, name and event.
pub(super) fn venue_text(venue: &VenueEntry, known: bool) -> String {
    let VenueEntry { id, epoch, posts, ref name, .. } = *venue;
    let event = venue_event(venue, known);
    // Escaped, so that it cannot control a terminal.
    let mut text = format!("venue {id} {} {event}", name.as_str().escape_debug());
    if epoch != 0 {
        write!(text, " epoch {epoch}").expect("memory");
    }
    if event == "added" && posts {
        text.push_str(" post");
    }
    text
}

#[cfg(test)]
mod tests {
    use domain::code::Code;
    use domain::posting::Posting;
    use domain::transfer::Op;
    use engine::entry::Entry;
    use engine::text::Text;
    use serde_json::json;

    use super::*;
    use crate::commands::wal::tests::{REQ_ID, Sample, objects, sequences, ubscore_wal};

    const USDT: u32 = 3;
    const BTC: u32 = 4;

    fn leg(from: Place, to: Place, asset: u32, amount: u64) -> Leg {
        Leg { from, to, asset, amount }
    }

    fn posted(number: u64, op: Op, legs: &[Leg]) -> Posted {
        let legs: Posting = legs.iter().copied().collect();
        Posted { venue: 1, number, op, legs, reference: 70 + number, ..Posted::empty() }
    }

    fn refused(posted: Posted, code: Code, leg: u8) -> Posted {
        Posted { decision: Decision::Refused(code), leg, ..posted }
    }

    fn venue(epoch: u64, closed: bool) -> Entry {
        let name = Text::new("book").expect("short");
        Entry::Venue(VenueEntry { id: 1, epoch, closed, posts: false, name })
    }

    /// A log of a venue: two holds, a trade, a release, refusals.
    fn sample() -> Sample {
        let mut sample = Sample::empty();
        for (asset, precision, symbol) in [(USDT, 8, "USDT"), (BTC, 2, "BTC")] {
            let symbol = Text::new(symbol).expect("short");
            sample.append(&Entry::Asset { asset, precision, symbol });
        }
        sample.append(&venue(0, false));
        sample.append(&venue(3, false));
        let (taker, maker, fee) =
            (Place::Available(1001), Place::Available(1002), Place::Available(9));
        let (bid, ask) = (Place::Hold(1042), Place::Hold(1043));
        let own = Place::Hold(0);
        let unit = 100_000_000;
        let trade = [
            leg(bid, maker, USDT, 60 * unit),
            leg(ask, taker, BTC, 150),
            leg(maker, fee, USDT, unit),
            leg(bid, taker, USDT, 40 * unit),
        ];
        let mut settled = posted(1044, Op::Settle, &trade);
        settled.took_all = 0b1000;
        let freeze = Place::Frozen { user: 1002, purpose: 7 };
        let late = leg(Place::Hold(1042), Place::Available(0), 0, ALL);
        for posted in [
            posted(1042, Op::Reserve, &[leg(taker, own, USDT, 10_050_000_000)]),
            posted(1043, Op::Reserve, &[leg(maker, own, BTC, 150)]),
            refused(posted(1044, Op::Settle, &trade), Code::HoldExceeded, 3),
            Posted { number: 1045, ..settled },
            posted(1046, Op::Post, &[leg(maker, freeze, USDT, unit)]),
            refused(posted(1047, Op::Release, &[late]), Code::HoldNotFound, 0),
            posted(1048, Op::Release, &[leg(bid, taker, USDT, 50_000_000)]),
            refused(posted(1049, Op::Settle, &[]), Code::InvalidPosting, 0),
            Posted {
                imposed: true,
                ..refused(posted(1050, Op::Reserve, &[leg(taker, own, 5, 7)]), Code::Overloaded, 0)
            },
        ] {
            sample.append(&Entry::Posting(Box::new(posted)));
        }
        sample.append(&venue(0, true));
        let operator = Ulid::from_string(REQ_ID).expect("a ULID").0;
        let by_operator = posted(0, Op::Release, &[leg(bid, taker, USDT, 50_000_000)]);
        let by_operator = Posted { operator, reference: 0, took_all: 1, ..by_operator };
        sample.append(&Entry::Posting(Box::new(by_operator)));
        sample.append(&venue(0, false));
        sample
    }

    #[test]
    fn a_posting_is_a_line_with_all_its_legs() {
        let (out, _) = ubscore_wal(&["dump", &sample().data()]).succeeded();
        let words = out
            .lines()
            .skip(2)
            .map(|line| &line["         1 2023-11-14T22:13:20.123456Z ".len()..]);
        let trade = "hold 1:1042 USDT 60 -> user 1002, hold 1:1043 BTC 1.5 -> user 1001, \
                     user 1002 USDT 1 -> user 9, hold 1:1042 USDT 40 -> user 1001";
        let want = [
            "VENUE  venue 1 book added".to_owned(),
            "VENUE  venue 1 book opened epoch 3".to_owned(),
            "POSTING RESERVE venue 1 #1042 user 1001 USDT 100.5 -> hold 1:1042 SUCCESS".to_owned(),
            "POSTING RESERVE venue 1 #1043 user 1002 BTC 1.5 -> hold 1:1043 SUCCESS".to_owned(),
            format!("POSTING SETTLE venue 1 #1044 {trade} HOLD_EXCEEDED leg 3"),
            format!("POSTING SETTLE venue 1 #1045 {trade} SUCCESS"),
            "POSTING POST venue 1 #1046 user 1002 USDT 1 -> user 1002 frozen 7 SUCCESS".to_owned(),
            "POSTING RELEASE venue 1 #1047 hold 1:1042 ALL -> owner HOLD_NOT_FOUND".to_owned(),
            "POSTING RELEASE venue 1 #1048 hold 1:1042 USDT 0.5 -> user 1001 SUCCESS".to_owned(),
            "POSTING SETTLE venue 1 #1049 INVALID_POSTING".to_owned(),
            "POSTING RESERVE venue 1 #1050 user 1001 #5 7u -> hold 1:1050 OVERLOADED imposed"
                .to_owned(),
            "VENUE  venue 1 book closed".to_owned(),
            format!(
                "POSTING RELEASE venue 1 operator {REQ_ID} hold 1:1042 USDT 0.5 -> user 1001 SUCCESS"
            ),
            "VENUE  venue 1 book reopened".to_owned(),
        ];
        assert_eq!(words.collect::<Vec<_>>(), want);
    }

    #[test]
    fn json_has_every_field_of_a_posting_and_of_a_venue() {
        let sample = sample();
        let (out, _) = ubscore_wal(&["dump", &sample.data(), "--format", "json"]).succeeded();
        let lines = objects(&out);
        let want = json!({"op": "RESERVE", "venue": 1, "number": 1042, "reference": 1112,
            "legs": [{"from": {"place": "available", "user": 1001},
                "to": {"place": "hold", "hold": 1042}, "asset": "USDT", "asset_id": 3,
                "amount": "100.5", "amount_units": 10_050_000_000_u64, "all": false}],
            "outcome": "SUCCESS", "acknowledged": 0, "state": "0000000000000000"});
        for (field, want) in want.as_object().expect("an object") {
            assert_eq!(&lines[4][field], want, "{field}");
        }
        let (failed, done) = (&lines[6], &lines[7]);
        assert_eq!((&failed["leg"], &failed["imposed"]), (&json!(3), &json!(false)));
        assert_eq!(done["legs"][3]["all"], json!(true));
        assert_eq!(done["leg"], json!(null));
        let frozen = json!({"place": "frozen", "user": 1002, "purpose": 7});
        assert_eq!(lines[8]["legs"][0]["to"], frozen);
        let late = json!({"from": {"place": "hold", "hold": 1042}, "to": {"place": "available"},
            "asset": null, "asset_id": 0, "amount": null, "amount_units": u64::MAX.to_string(),
            "all": true});
        assert_eq!(lines[9]["legs"], json!([late]));
        let opened = &lines[3];
        assert_eq!((&opened["event"], &opened["epoch"]), (&json!("opened"), &json!(3)));
        assert_eq!(lines[14]["operator"], REQ_ID);
        assert_eq!(lines[15]["event"], "reopened");
        assert_eq!(lines[13]["closed"], json!(true));
    }

    /// Goal: a filter selects by the fields of a posting, and a user also by the owner of a hold.
    /// Method: user 1001 owns the hold 1042, from which later postings pay others.
    #[test]
    fn filters_select_postings() {
        let sample = sample();
        let data = sample.data();
        for (words, want) in [
            (&["--user", "1001"][..], &[5, 7, 8, 10, 11, 13, 15][..]),
            (&["--user", "9"], &[7, 8]),
            (&["--user", "1001", "--from", "10"], &[10, 11, 13, 15]),
            (&["--venue", "2"], &[]),
            (&["--venue", "1", "--op", "RESERVE"], &[5, 6, 13]),
            (&["--venue", "1", "--to", "5"], &[3, 4, 5]),
            (&["--number", "1045"], &[8]),
            (&["--reference", "1112"], &[5]),
        ] {
            assert_eq!(sequences(&[&[data.as_str()], words].concat()), want, "{words:?}");
        }
        let (out, _) = ubscore_wal(&["stat", &data, "--format", "json"]).succeeded();
        let object = objects(&out).remove(0);
        assert_eq!(object["users"], json!({"count": 3, "exact": true}));
        let orders = object["orders"].as_array().expect("orders");
        let settles = |outcome: &str| {
            orders.iter().any(|order| order["op"] == "SETTLE" && order["outcome"] == outcome)
        };
        assert!(settles("SUCCESS") && settles("HOLD_EXCEEDED"), "{orders:?}");
        let (out, _) = ubscore_wal(&["verify", &data]).succeeded();
        assert_eq!(out, "ok records=16 first=1 last=16 segments=1 ending=clean\n");
    }
}
