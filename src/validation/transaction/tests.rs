use serde_json::{Value, json};

use super::*;
use crate::validation::parse_object;
use domain::amount::Amount;
use domain::asset::{Asset, AssetId, AssetStatus};

const OPEN_MAX_MS: u64 = 90_000;
const UNITS_MAX: u64 = u64::MAX / 1000;

fn catalog() -> Catalog {
    let asset = |id, symbol: &str, status| Asset {
        id: AssetId(id),
        symbol: symbol.to_owned(),
        precision: 8,
        status,
        transfer_enabled: false,
        transfer_min: Amount::new(100).expect("not zero"),
        transfer_max: Amount::new(1_000).expect("not zero"),
    };
    let active = asset(3, "USDT", AssetStatus::Active);
    Catalog::new([active, asset(4, "SUSP", AssetStatus::Suspended)])
}

fn leg() -> Value {
    json!({"from": {"account": "SPOT", "user_id": 1001},
           "to": {"account": "SPOT", "user_id": 1002}, "asset": "USDT", "amount": "1.50"})
}

/// A good first round.
fn good() -> Value {
    json!({"round": 1, "legs": [leg()]})
}

/// The good round with one field replaced; a path such as `legs/0/amount`.
fn with(path: &str, value: Value) -> Value {
    let mut body = good();
    let (parent, name) = path.rsplit_once('/').unwrap_or(("", path));
    let parent = if parent.is_empty() { String::new() } else { format!("/{parent}") };
    body.pointer_mut(&parent).expect("a parent")[name] = value;
    body
}

fn form(body: &Value) -> Result<RoundForm, RoundError> {
    let draft = parse_object::<PrepareDraft>(body.to_string().as_bytes());
    let draft = draft.map_err(|error| RoundError::form(error.to_string()))?;
    RoundForm::new("envelopes", "tx-1", draft, OPEN_MAX_MS)
}

fn round(body: &Value) -> Result<TransactionRound, RoundError> {
    form(body)?.round(&catalog(), UNITS_MAX)
}

fn known() -> BTreeMap<String, ParticipantKind> {
    let known = [("coupons", ParticipantKind::Veto), ("bank", ParticipantKind::Last)];
    known.map(|(name, kind)| (name.to_owned(), kind)).into()
}

#[test]
fn a_round_is_read_in_whole() {
    let mut body = good();
    body["legs"] = json!([leg(), leg(), {
        "from": {"account": "FUNDING", "user_id": 1}, "to": {"account": "FUNDING", "user_id": 2},
        "asset": "USDT", "amount": "0.00000001"}]);
    body["participants"] =
        json!([{"name": "b", "payload": {"x": 1}}, {"name": "a", "payload": null}]);
    body["ttl_ms"] = json!(OPEN_MAX_MS);
    let round = round(&body).expect("a round");
    assert_eq!((round.name.owner.as_str(), round.name.tx_id.as_str()), ("envelopes", "tx-1"));
    assert_eq!((round.round, round.decider, round.ttl_ms), (1, Decider::Caller, OPEN_MAX_MS));
    assert_eq!((round.spot.len(), round.spot[0].amount), (2, 150_000_000));
    assert_eq!((round.funding.len(), round.funding[0].amount), (1, 1));
    let names: Vec<&str> = round.services.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["a", "b"], "in the order of the names");
}

/// MLT-005: each line about a service's form.
#[test]
fn mlt_005_a_wrong_form_is_an_invalid_request() {
    let long = "x".repeat(PAYLOAD_BYTES_MAX);
    let mut doubled = good().to_string();
    doubled.insert_str(1, "\"round\":1,");
    assert!(parse_object::<PrepareDraft>(doubled.as_bytes()).is_err(), "doubled");
    let mut cases = vec![
        json!({}),
        json!([1, []]),
        json!({"legs": [leg()]}),
        json!({"round": 1}),
        with("extra", json!(1)),
        with("legs/0/extra", json!(1)),
        with("legs/0/from/extra", json!(1)),
        with("legs/0", json!([{"account": "SPOT", "user_id": 1}, 2, "USDT", "1"])),
        with("legs/0/from", json!(["SPOT", 1001])),
        with("legs/0/from", json!("OUTSIDE")),
        with("legs/0/from", json!("elsewhere")),
        with("legs/0/from/user_id", json!(0)),
        with("legs/0/from/user_id", json!(9_223_372_036_854_775_808_u64)),
        with("legs/0/from/user_id", json!("1001")),
        with("legs/0/from/user_id", json!(-1)),
        with("legs/0/amount", json!(1)),
        with("legs", json!({})),
        with("legs", Value::Null),
        with("participants", json!([["coupons", 1]])),
        with("participants", json!([{"name": "coupons"}])),
        with("participants", json!([{"name": "coupons", "payload": long}])),
        with("participants", json!([{"name": "a", "payload": 1}, {"name": "a", "payload": 1}])),
        with("last", json!({"name": "SPOT", "payload": 1})),
        with("followers", json!(["mail"])),
        with("tx_id", json!("tx-2")),
        with("round", json!(0)),
        with("round", json!(9)),
        with("round", json!("1")),
        with("round", json!(-1)),
        with("ttl_ms", json!(0)),
        with("ttl_ms", json!(OPEN_MAX_MS + 1)),
        with("decide", json!("nobody")),
        with("decide", json!("last")),
        with("wait_ms", json!(-1)),
    ];
    for (field, value) in [("decide", json!("caller")), ("ttl_ms", json!(1))] {
        let mut later = with(field, value);
        later["round"] = json!(2);
        cases.push(later);
    }
    for decide in ["caller", "coordinator"] {
        let mut two = with("last", json!({"name": "bank", "payload": 1}));
        two["decide"] = json!(decide);
        cases.push(two);
    }
    let both = json!([{"name": "bank", "payload": 1}]);
    let mut twice = with("last", both[0].clone());
    twice["participants"] = both;
    cases.push(twice);
    for body in cases {
        let refused = form(&body).expect_err("refused");
        assert_eq!(refused.code, Code::InvalidRequest, "{body}: {refused}");
    }
    for tx_id in ["", "a b", "a/b", &"x".repeat(65)] {
        let draft: PrepareDraft = serde_json::from_value(good()).expect("a draft");
        let refused = RoundForm::new("envelopes", tx_id, draft, OPEN_MAX_MS).expect_err("refused");
        assert_eq!(refused.code, Code::InvalidRequest, "{tx_id}");
    }
}

/// MLT-005: each line about a service's legs.
#[test]
fn mlt_005_the_first_wrong_leg_answers() {
    let many = |legs: usize| with("legs", json!(vec![leg(); legs]));
    let cases = [
        (many(0), Code::InvalidPosting),
        (many(17), Code::InvalidPosting),
        (with("legs/0/to/user_id", json!(1001)), Code::InvalidPosting),
        (with("legs/0/amount", json!("0")), Code::InvalidPosting),
        (with("legs/0/amount", json!("0.00")), Code::InvalidPosting),
        (with("legs/0/amount", json!("ALL")), Code::InvalidPosting),
        (with("legs/0/from/account", json!("WALLET")), Code::InvalidPosting),
        (with("legs/0/from/account", json!("OUTSIDE")), Code::InvalidPosting),
        (with("legs/0/from/account", json!("FUNDING")), Code::InvalidPosting),
        (with("legs/0/from/purpose", json!("DISPUTE")), Code::InvalidPosting),
        (with("legs/0/to/purpose", json!(1)), Code::InvalidPosting),
        (with("legs/0/from/account", json!("MARGIN")), Code::UnsupportedAccountType),
        (with("legs/0/asset", json!("NONE")), Code::InvalidAsset),
        (with("legs/0/asset", json!("usdt")), Code::InvalidAsset),
        (with("legs/0/amount", json!("-1")), Code::InvalidAmount),
        (with("legs/0/amount", json!("1e3")), Code::InvalidAmount),
        (with("legs/0/amount", json!(".")), Code::InvalidAmount),
        (with("legs/0/amount", json!("0.000000001")), Code::PrecisionOverflow),
        (with("legs/0/amount", json!("99999999999999999999")), Code::Overflow),
    ];
    for (body, code) in cases {
        assert_eq!(round(&body).map_err(|refused| refused.code), Err(code), "{body}");
    }
    assert!(round(&many(16)).is_ok());
    let mut second = with("legs", json!([leg(), leg(), leg()]));
    second["legs"][1]["asset"] = json!("NONE");
    second["legs"][2]["amount"] = json!("0");
    let refused = round(&second).expect_err("refused");
    assert_eq!(refused.code, Code::InvalidAsset);
    assert!(refused.detail.starts_with("legs[1]: "), "{refused}");
}

#[test]
fn sums_of_one_user_fit_a_balance() {
    let form = form(&with(
        "legs",
        json!(vec![
            json!({"from": {"account": "SPOT", "user_id": 1}, "to": {"account": "SPOT", "user_id": 2},
               "asset": "USDT", "amount": "100000000000"});
            2
        ]),
    ));
    let form = form.expect("a form");
    let refused = form.round(&catalog(), u64::MAX).expect_err("too much");
    assert_eq!(refused.code, Code::Overflow);
}

#[test]
fn a_suspended_asset_and_participants_are_checked_apart() {
    let form = |body: &Value| form(body).expect("a form");
    let suspended = form(&with("legs/0/asset", json!("SUSP")));
    // A repeat is answered even now, so the round itself can be made.
    assert!(suspended.round(&catalog(), UNITS_MAX).is_ok());
    let refused = suspended.check_assets(&catalog()).expect_err("suspended");
    assert_eq!(refused.code, Code::AssetSuspended);
    let named = |field: &str, names: Value| form(&with(field, names)).check_participants(&known());
    let one = |name: &str| json!({"name": name, "payload": 1});
    assert_eq!(named("participants", json!([one("coupons")])), Ok(()));
    assert_eq!(named("last", one("bank")), Ok(()));
    for (field, names, code) in [
        ("participants", json!([one("nobody")]), Code::UnknownParticipant),
        ("participants", json!([one("SPOT")]), Code::UnknownParticipant),
        ("participants", json!([one("bank")]), Code::InvalidRequest),
        ("last", one("nobody"), Code::UnknownParticipant),
        ("last", one("coupons"), Code::InvalidRequest),
    ] {
        let refused = named(field, names).map_err(|refused| refused.code);
        assert_eq!(refused, Err(code), "{field}");
    }
}

#[test]
fn one_side_decides() {
    let decider = |body: &Value| form(body).map(|form| form.decider);
    assert_eq!(decider(&good()), Ok(Decider::Caller));
    for side in [Decider::Caller, Decider::Coordinator] {
        assert_eq!(decider(&with("decide", json!(side.name()))), Ok(side));
    }
    let mut last = with("last", json!({"name": "bank", "payload": null}));
    assert_eq!(decider(&last), Ok(Decider::Last));
    last["decide"] = json!("last");
    assert_eq!(decider(&last), Ok(Decider::Last));
    let whole = |last: Value| {
        let body = json!({"tx_id": "tx-1", "legs": [leg()], "last": last});
        let draft: TransactionDraft = serde_json::from_value(body).expect("a draft");
        RoundForm::whole("envelopes", draft, OPEN_MAX_MS).map(|form| form.decider)
    };
    assert_eq!(whole(Value::Null), Ok(Decider::Coordinator));
    assert_eq!(whole(json!({"name": "bank", "payload": 1})), Ok(Decider::Last));
}

#[test]
fn a_fingerprint_is_of_the_meaning() {
    let of = |body: &Value| round(body).expect("a round").fingerprint;
    let first = of(&good());
    assert_eq!(of(&with("legs/0/amount", json!("01.5"))), first);
    assert_eq!(of(&with("wait_ms", json!(5))), first);
    assert_eq!(of(&with("decide", json!("caller"))), first);
    for (path, value) in [
        ("legs/0/amount", json!("1.51")),
        ("legs/0/to/user_id", json!(1003)),
        ("decide", json!("coordinator")),
        ("ttl_ms", json!(OPEN_MAX_MS)),
        ("participants", json!([{"name": "a", "payload": 1}])),
        ("last", json!({"name": "a", "payload": 1})),
    ] {
        assert_ne!(of(&with(path, value)), first, "{path}");
    }
    let payload = |text: &str| {
        let mut body = good().to_string();
        body.insert_str(1, &format!("\"participants\":[{{\"name\":\"a\",\"payload\":{text}}}],"));
        of(&serde_json::from_str(&body).expect("JSON"))
    };
    assert_eq!(payload(r#"{"a":1,"b":[2]}"#), payload(r#"{ "b": [2], "a": 1 }"#));
    assert_ne!(payload(r#"{"a":1,"b":[2]}"#), payload(r#"{"a":1,"b":[3]}"#));
}
