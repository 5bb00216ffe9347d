//! Every check on a round of a transaction, in the order of the codes.
//!
//! [`RoundForm::new`] checks the form, [`RoundForm::round`] the legs: their answers never change.
//! [`RoundForm::check_participants`], [`RoundForm::check_followers`],
//! [`RoundForm::check_outside`], [`RoundForm::check_purposes`] and [`RoundForm::check_assets`]
//! depend on the configuration and on operators: a repeat of a known round is answered without
//! them.

mod draft;
mod fingerprint;

use std::collections::{BTreeMap, BTreeSet};

use super::{amount, check_active, known_asset};
use crate::config::holds::{Purpose, Purposes};
use crate::config::participants::ParticipantKind;
use crate::transaction::{
    Decider, FOLLOWERS_MAX, LegPlace, OPERATORS, OUTSIDE, PAYLOAD_BYTES_MAX, ROUNDS_MAX,
    TransactionLeg, TransactionName, TransactionRound,
};
use domain::account::{AccountType, USER_ID_MAX, UserId};
use domain::asset::Catalog;
use domain::code::Code;
use domain::transfer::{Cid, Participant};

pub use self::draft::{
    AbortDraft, CommitDraft, LegDraft, PlaceDraft, PlaceOfUser, PrepareDraft, ServiceDraft,
    TransactionDraft,
};

/// The most legs of one store in a round.
pub const LEGS_MAX: usize = 16;
/// The amount that names all that is left. Not taken.
const ALL: &str = "ALL";

/// Why a round is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}: {detail}", .code.name())]
pub struct RoundError {
    /// The code to act on.
    pub code: Code,
    /// For people: the field, and the rule.
    pub detail: String,
}

impl RoundError {
    fn form(detail: impl Into<String>) -> RoundError {
        RoundError { code: Code::InvalidRequest, detail: detail.into() }
    }

    /// `index`: of the leg, from 0.
    fn leg(index: usize, code: Code, detail: &str) -> RoundError {
        RoundError { code, detail: format!("legs[{index}]: {detail}") }
    }
}

/// A round in the right form: its own fields, and the names of its places.
#[derive(Clone, Debug, PartialEq)]
pub struct RoundForm {
    /// The name of its transaction.
    pub name: TransactionName,
    /// From 1.
    pub round: u8,
    decider: Decider,
    ttl_ms: u64,
    /// As the request gave it.
    given_ttl_ms: Option<u64>,
    legs: Vec<LegForm>,
    services: Vec<ServiceDraft>,
    last: Option<ServiceDraft>,
    followers: Vec<String>,
}

/// A leg with valid users.
#[derive(Clone, Debug, PartialEq)]
struct LegForm {
    from: PlaceForm,
    to: PlaceForm,
    asset: String,
    amount: String,
}

/// A place of a leg.
#[derive(Clone, Debug, PartialEq)]
enum PlaceForm {
    User(PlaceOfUser, UserId),
    Outside,
}

impl RoundForm {
    /// The one round of a transaction that the coordinator, or a last participant, decides.
    ///
    /// # Errors
    /// INVALID_REQUEST.
    pub fn whole(
        owner: &str,
        draft: TransactionDraft,
        open_max_ms: u64,
    ) -> Result<RoundForm, RoundError> {
        let TransactionDraft { tx_id, legs, participants, last, followers, wait_ms: _ } = draft;
        let decide = Some(if last.is_some() { Decider::Last } else { Decider::Coordinator });
        let prepare = PrepareDraft {
            tx_id: None,
            round: 1,
            legs,
            participants,
            last,
            decide: decide.map(|decider| decider.name().to_owned()),
            ttl_ms: None,
            followers,
            wait_ms: None,
        };
        RoundForm::new(owner, &tx_id, prepare, open_max_ms)
    }

    /// A round of the transaction in the path.
    ///
    /// # Errors
    /// INVALID_REQUEST.
    pub fn new(
        owner: &str,
        tx_id: &str,
        draft: PrepareDraft,
        open_max_ms: u64,
    ) -> Result<RoundForm, RoundError> {
        let name = transaction_name(owner, tx_id)?;
        if draft.tx_id.as_deref().is_some_and(|given| given != tx_id) {
            return Err(RoundError::form("tx_id must be the one of the path."));
        }
        let round = draft.round;
        if !(1..=u64::from(ROUNDS_MAX)).contains(&round) {
            return Err(RoundError::form(format!("round must be 1 to {ROUNDS_MAX}.")));
        }
        let decider = decider(&draft)?;
        let ttl_ms = draft.ttl_ms.unwrap_or(open_max_ms);
        if !(1..=open_max_ms).contains(&ttl_ms) {
            return Err(RoundError::form(format!("ttl_ms must be 1 to {open_max_ms}.")));
        }
        let PrepareDraft { legs, participants: mut services, last, ttl_ms: given_ttl_ms, .. } =
            draft;
        let followers = followers(draft.followers)?;
        check_services(&services, last.as_ref())?;
        services.sort_by(|one, other| one.name.cmp(&other.name));
        let legs = legs.into_iter().enumerate().map(|(index, leg)| LegForm::new(index, leg));
        Ok(RoundForm {
            name,
            round: u8::try_from(round).expect("in range"),
            decider,
            ttl_ms,
            given_ttl_ms,
            legs: legs.collect::<Result<_, _>>()?,
            services,
            last,
            followers,
        })
    }

    /// Checks that the configuration has each participant, and has it so.
    ///
    /// # Errors
    /// UNKNOWN_PARTICIPANT; INVALID_REQUEST for one of the other kind.
    pub fn check_participants(
        &self,
        known: &BTreeMap<String, ParticipantKind>,
    ) -> Result<(), RoundError> {
        let wanted = self.services.iter().map(|service| (service, ParticipantKind::Veto));
        let last = self.last.iter().map(|service| (service, ParticipantKind::Last));
        for (ServiceDraft { name, .. }, wanted) in wanted.chain(last) {
            match known.get(name) {
                Some(kind) if *kind == wanted => {}
                Some(ParticipantKind::Veto) => {
                    let detail = format!("{name} is of kind veto: name it in participants.");
                    return Err(RoundError::form(detail));
                }
                Some(ParticipantKind::Last) => {
                    let detail = format!("{name} is of kind last: name it in last.");
                    return Err(RoundError::form(detail));
                }
                None => {
                    let detail = format!("There is no participant {name:?}.");
                    return Err(RoundError { code: Code::UnknownParticipant, detail });
                }
            }
        }
        Ok(())
    }

    /// Checks that the owner may move money out of each purpose that a leg takes from.
    ///
    /// # Errors
    /// FORBIDDEN.
    pub fn check_purposes(&self, purposes: &Purposes) -> Result<(), RoundError> {
        let owner = self.name.owner.as_str();
        let may_move = |purpose: &Purpose| match owner {
            OPERATORS => purpose.operators,
            owner => purpose.owners.iter().any(|known| known == owner),
        };
        for (index, leg) in self.legs.iter().enumerate() {
            let PlaceForm::User(place, _) = &leg.from else { continue };
            let Some(name) = place.purpose.as_ref().and_then(|name| name.as_str()) else {
                continue;
            };
            if purposes.by_name(name).is_some_and(|purpose| !may_move(purpose)) {
                let detail = format!("Not allowed to move money out of {name}.");
                return Err(RoundError::leg(index, Code::Forbidden, &detail));
            }
        }
        Ok(())
    }

    /// Checks that the owner may move money from and to the outside, if a leg does.
    ///
    /// # Errors
    /// INVALID_REQUEST.
    pub fn check_outside(&self, owners: &BTreeSet<String>) -> Result<(), RoundError> {
        let outside = |leg: &LegForm| [&leg.from, &leg.to].contains(&&PlaceForm::Outside);
        match self.legs.iter().position(outside) {
            Some(index) if !owners.contains(&self.name.owner) => {
                let detail = "OUTSIDE needs the service in transactions.outside_owners.";
                Err(RoundError::leg(index, Code::InvalidRequest, detail))
            }
            Some(_) | None => Ok(()),
        }
    }

    /// Checks that the configuration has each follower.
    ///
    /// # Errors
    /// UNKNOWN_PARTICIPANT.
    pub fn check_followers(&self, known: &BTreeSet<String>) -> Result<(), RoundError> {
        match self.followers.iter().find(|name| !known.contains(*name)) {
            None => Ok(()),
            Some(name) => {
                let detail = format!("There is no follower {name:?}.");
                Err(RoundError { code: Code::UnknownParticipant, detail })
            }
        }
    }

    /// Checks that each asset that exists is active now.
    ///
    /// # Errors
    /// ASSET_SUSPENDED.
    pub fn check_assets(&self, catalog: &Catalog) -> Result<(), RoundError> {
        for (index, leg) in self.legs.iter().enumerate() {
            let Ok(asset) = known_asset(catalog, &leg.asset) else { continue };
            check_active(asset).map_err(|code| RoundError::leg(index, code, code.message()))?;
        }
        Ok(())
    }

    /// The round, with its legs checked: places, asset and amount of one leg after the other.
    ///
    /// `units_max`: the largest amount in smallest units, `u64::MAX / amount.safety_factor`.
    /// `purposes`: a name in it never changes its number.
    ///
    /// # Errors
    /// The code of the first check that fails.
    pub fn round(
        &self,
        catalog: &Catalog,
        units_max: u64,
        purposes: &Purposes,
    ) -> Result<TransactionRound, RoundError> {
        let mut legs = Vec::new();
        if self.legs.is_empty() {
            let detail = "legs must have a leg.".to_owned();
            return Err(RoundError { code: Code::InvalidPosting, detail });
        }
        for (index, leg) in self.legs.iter().enumerate() {
            let leg = leg.check(catalog, units_max, purposes).map_err(|(code, detail)| {
                RoundError::leg(index, code, detail.unwrap_or(code.message()))
            })?;
            legs.push(leg);
            let of_store = |store: Participant| legs.iter().filter(|leg| leg.is_in(store)).count();
            if of_store(Participant::Funding).max(of_store(Participant::Spot)) > LEGS_MAX {
                let detail = format!("legs must have at most {LEGS_MAX} of each store.");
                return Err(RoundError { code: Code::InvalidPosting, detail });
            }
        }
        check_sums(&legs)?;
        let pair = |service: &ServiceDraft| (service.name.clone(), service.payload.clone());
        let mut round = TransactionRound {
            name: self.name.clone(),
            round: self.round,
            decider: self.decider,
            ttl_ms: self.ttl_ms,
            legs,
            services: self.services.iter().map(pair).collect(),
            last: self.last.as_ref().map(pair),
            followers: self.followers.clone(),
            fingerprint: [0; 16],
        };
        round.fingerprint = fingerprint::of(&round, self.given_ttl_ms);
        Ok(round)
    }
}

impl LegForm {
    fn new(index: usize, draft: LegDraft) -> Result<LegForm, RoundError> {
        let LegDraft { from, to, asset, amount } = draft;
        let place = |name: &str, place: PlaceDraft| match place {
            PlaceDraft::Text(text) if text == OUTSIDE => Ok(PlaceForm::Outside),
            PlaceDraft::Text(_) => {
                let detail = format!("legs[{index}].{name} must be an object or {OUTSIDE}.");
                Err(RoundError::form(detail))
            }
            PlaceDraft::User(place) => match UserId::new(place.user_id) {
                Some(user) => Ok(PlaceForm::User(place, user)),
                None => {
                    let field = format!("legs[{index}].{name}.user_id");
                    Err(RoundError::form(format!("{field} must be 1 to {USER_ID_MAX}.")))
                }
            },
        };
        Ok(LegForm { from: place("from", from)?, to: place("to", to)?, asset, amount })
    }

    /// The leg, or a code with a sentence if there is more to say.
    fn check(
        &self,
        catalog: &Catalog,
        units_max: u64,
        purposes: &Purposes,
    ) -> Result<TransactionLeg, (Code, Option<&'static str>)> {
        let invalid = |detail| (Code::InvalidPosting, Some(detail));
        let (from, to) = (self.from.place(purposes)?, self.to.place(purposes)?);
        if [from, to].iter().all(|place| matches!(place, LegPlace::Frozen { .. })) {
            return Err(invalid("Money does not move from one purpose to another."));
        }
        if from == to {
            return Err(invalid("From and to are the same place."));
        }
        let stores = [from.store(), to.store()];
        let freezes = [from, to].iter().any(|place| matches!(place, LegPlace::Frozen { .. }));
        if freezes && stores[0] != stores[1] {
            return Err(invalid("A purpose must be opposite a place of the same account."));
        }
        if stores.contains(&None) && stores.contains(&Some(Participant::Spot)) {
            return Err((Code::InvalidRequest, Some("OUTSIDE must be opposite a FUNDING place.")));
        }
        let asset = known_asset(catalog, &self.asset).map_err(|code| (code, None))?;
        if self.amount == ALL {
            return Err(invalid("ALL is not supported as an amount."));
        }
        let amount = amount(&self.amount, asset.precision, units_max);
        let amount = amount.map_err(|code| match code {
            Code::InvalidAmount if is_zero(&self.amount) => invalid("The amount is zero."),
            code => (code, None),
        })?;
        Ok(TransactionLeg { from, to, asset: asset.id, amount: amount.units() })
    }
}

impl PlaceForm {
    /// The place, or a code with a sentence if there is more to say.
    fn place(&self, purposes: &Purposes) -> Result<LegPlace, (Code, Option<&'static str>)> {
        let invalid = |detail| Err((Code::InvalidPosting, Some(detail)));
        let (place, user) = match self {
            PlaceForm::Outside => return Ok(LegPlace::Outside),
            PlaceForm::User(place, user) => (place, *user),
        };
        let store = match AccountType::from_name(&place.account) {
            Some(AccountType::Funding) => Participant::Funding,
            Some(AccountType::Spot) => Participant::Spot,
            Some(_) => return Err((Code::UnsupportedAccountType, None)),
            None => return invalid("The account must be FUNDING or SPOT."),
        };
        let Some(name) = &place.purpose else { return Ok(LegPlace::Available { store, user }) };
        match name.as_str().and_then(|name| purposes.by_name(name)) {
            None => invalid("There is no such purpose."),
            Some(Purpose { number, .. }) => Ok(LegPlace::Frozen { store, user, purpose: *number }),
        }
    }
}

/// The name of a transaction of an owner.
///
/// # Errors
/// INVALID_REQUEST.
pub fn transaction_name(owner: &str, tx_id: &str) -> Result<TransactionName, RoundError> {
    let what = "tx_id must be 1 to 64 of A-Z a-z 0-9 _ . : -";
    let tx_id = Cid::new(tx_id).ok_or_else(|| RoundError::form(what))?;
    Ok(TransactionName { owner: owner.to_owned(), tx_id })
}

/// The names of followers, in order.
fn followers(mut names: Vec<String>) -> Result<Vec<String>, RoundError> {
    if names.len() > FOLLOWERS_MAX {
        let detail = format!("followers must have at most {FOLLOWERS_MAX} names.");
        return Err(RoundError::form(detail));
    }
    names.sort();
    match names.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(RoundError::form(format!("followers: {:?} stands twice.", pair[0]))),
        None => Ok(names),
    }
}

/// The side that decides. It is set with the first round, and there is one.
fn decider(draft: &PrepareDraft) -> Result<Decider, RoundError> {
    if draft.round > 1 {
        let given = [
            ("decide", draft.decide.is_some()),
            ("ttl_ms", draft.ttl_ms.is_some()),
            ("last", draft.last.is_some()),
        ];
        if let Some((name, _)) = given.into_iter().find(|(_, given)| *given) {
            return Err(RoundError::form(format!("{name} belongs to the first round.")));
        }
        // A later round is taken only if the caller decides.
        return Ok(Decider::Caller);
    }
    let named = draft.decide.as_deref().map(|name| {
        let found = Decider::ALL.into_iter().find(|decider| decider.name() == name);
        let what = "decide must be coordinator, caller or last.";
        found.ok_or_else(|| RoundError::form(what))
    });
    match (named.transpose()?, draft.last.is_some()) {
        (Some(Decider::Last), false) => {
            Err(RoundError::form("decide is last, and there is no last."))
        }
        (Some(Decider::Last) | None, true) => Ok(Decider::Last),
        (Some(_), true) => Err(RoundError::form("Two decide: decide and last.")),
        (named, false) => Ok(named.unwrap_or(Decider::Caller)),
    }
}

/// Each participant once, each payload short.
fn check_services(
    services: &[ServiceDraft],
    last: Option<&ServiceDraft>,
) -> Result<(), RoundError> {
    let mut seen = BTreeSet::new();
    for service in services.iter().chain(last) {
        let ServiceDraft { name, payload } = service;
        if !seen.insert(name) {
            return Err(RoundError::form(format!("The participant {name:?} is named twice.")));
        }
        if payload.to_string().len() > PAYLOAD_BYTES_MAX {
            let what = format!("The payload of {name:?} is longer than {PAYLOAD_BYTES_MAX} bytes.");
            return Err(RoundError::form(what));
        }
    }
    let of_spot = Participant::Spot.account();
    if last.is_some_and(|last| last.name == of_spot) {
        return Err(RoundError::form("SPOT is not supported as the last participant."));
    }
    Ok(())
}

/// The sum that one place pays or is paid in one asset must fit a balance.
fn check_sums(legs: &[TransactionLeg]) -> Result<(), RoundError> {
    let mut sums: BTreeMap<_, u64> = BTreeMap::new();
    for leg in legs {
        for (place, pays) in [(leg.from, true), (leg.to, false)] {
            let Some(user) = place.user() else { continue };
            let sum = sums.entry((place, leg.asset, pays)).or_default();
            *sum = sum.checked_add(leg.amount).ok_or_else(|| RoundError {
                code: Code::Overflow,
                detail: format!("The legs of user {user} add up to too much."),
            })?;
        }
    }
    Ok(())
}

/// Whether a text is a plain number that is zero.
fn is_zero(text: &str) -> bool {
    let zeros = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte == b'0');
    match text.split_once('.') {
        Some((whole, fraction)) => zeros(whole) && zeros(fraction),
        None => zeros(text),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::validation::parse_object;
    use domain::amount::Amount;
    use domain::asset::{Asset, AssetId, AssetStatus};
    use domain::posting::Place;

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
        form(body)?.round(&catalog(), UNITS_MAX, &purposes())
    }

    fn purposes() -> Purposes {
        Purposes::parse(["DISPUTE=1", "ESCROW=2:envelopes"]).expect("purposes")
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
        let spot = round.legs_in(Participant::Spot);
        assert_eq!((spot.len(), spot[0].amount), (2, 150_000_000));
        let funding = round.legs_in(Participant::Funding);
        assert_eq!((funding.len(), funding[0].amount), (1, 1));
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
            with("legs", json!([[{"account": "SPOT", "user_id": 1}, 2, "USDT", "1"]])),
            with("legs/0/from", json!(["SPOT", 1001])),
            with("legs/0/from", json!("outside")),
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
            with("followers", json!("mail")),
            with("followers", json!(["mail", "mail"])),
            with("followers", json!(["a", "b", "c", "d", "e", "f", "g", "h", "i"])),
            with("tx_id", json!("tx-2")),
            with("round", json!(0)),
            with("round", json!(9)),
            with("round", json!("1")),
            with("round", json!(-1)),
            with("ttl_ms", json!(0)),
            with("ttl_ms", json!(OPEN_MAX_MS + 1)),
            with("decide", json!("stranger")),
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
            let refused =
                RoundForm::new("envelopes", tx_id, draft, OPEN_MAX_MS).expect_err("refused");
            assert_eq!(refused.code, Code::InvalidRequest, "{tx_id}");
        }
    }

    fn frozen_on(account: &str) -> Value {
        json!({"account": account, "user_id": 1, "purpose": "DISPUTE"})
    }

    fn from_dispute_to(purpose: &str) -> Value {
        let mut body = with("legs/0/from/purpose", json!("DISPUTE"));
        body["legs"][0]["to"]["purpose"] = json!(purpose);
        body
    }

    /// Goal: a place with a purpose is frozen, and money leaves it by those that are named alone.
    #[test]
    fn money_leaves_a_purpose_by_those_that_are_named() {
        let frozen = |name: &str| with("legs/0/from/purpose", json!(name));
        let found = round(&frozen("ESCROW")).expect("a round").legs[0].from;
        let user = UserId::new(1001).expect("a user");
        assert_eq!(found, LegPlace::Frozen { store: Participant::Spot, user, purpose: 2 });
        let check = |owner: &str, body: &Value| {
            let draft: PrepareDraft = serde_json::from_value(body.clone()).expect("a draft");
            let form = RoundForm::new(owner, "tx-1", draft, OPEN_MAX_MS).expect("a form");
            form.check_purposes(&purposes()).map_err(|refused| refused.code)
        };
        assert_eq!(check("envelopes", &frozen("ESCROW")), Ok(()));
        assert_eq!(check("envelopes", &frozen("DISPUTE")), Err(Code::Forbidden));
        assert_eq!(check("trade", &frozen("ESCROW")), Err(Code::Forbidden));
        assert_eq!(check("operators", &frozen("DISPUTE")), Err(Code::Forbidden), "a service");
        assert_eq!(check(OPERATORS, &frozen("DISPUTE")), Ok(()));
        assert_eq!(check(OPERATORS, &frozen("ESCROW")), Err(Code::Forbidden));
        // Any service freezes.
        assert_eq!(check("trade", &with("legs/0/to/purpose", json!("DISPUTE"))), Ok(()));
        // The same place is no movement, and two purposes of one user neither.
        let mut own = with("legs/0/to/purpose", json!("DISPUTE"));
        own["legs"][0]["to"]["user_id"] = json!(1001);
        assert!(round(&own).is_ok(), "a freeze");
    }

    /// MLT-005: each line about a service's legs.
    #[test]
    fn mlt_005_the_first_wrong_leg_answers() {
        let many = |legs: usize| with("legs", json!(vec![leg(); legs]));
        let outside = |from: Value, to: Value| {
            let mut body = with("legs/0/from", from);
            body["legs"][0]["to"] = to;
            body
        };
        let cases = [
            (many(0), Code::InvalidPosting),
            (many(17), Code::InvalidPosting),
            (with("legs/0/to/user_id", json!(1001)), Code::InvalidPosting),
            (with("legs/0/amount", json!("0")), Code::InvalidPosting),
            (with("legs/0/amount", json!("0.00")), Code::InvalidPosting),
            (with("legs/0/amount", json!("ALL")), Code::InvalidPosting),
            (with("legs/0/from/account", json!("WALLET")), Code::InvalidPosting),
            (with("legs/0/from/account", json!("OUTSIDE")), Code::InvalidPosting),
            (with("legs/0/from/purpose", json!("LOAN")), Code::InvalidPosting),
            (with("legs/0/from", json!("OUTSIDE")), Code::InvalidRequest),
            (with("legs/0/to", json!("OUTSIDE")), Code::InvalidRequest),
            (outside(json!("OUTSIDE"), json!("OUTSIDE")), Code::InvalidPosting),
            (outside(json!("OUTSIDE"), json!({"account": "MARGIN", "user_id": 1})), {
                Code::UnsupportedAccountType
            }),
            (outside(frozen_on("FUNDING"), json!("OUTSIDE")), Code::InvalidPosting),
            (with("legs/0/to", frozen_on("FUNDING")), Code::InvalidPosting),
            (with("legs/0/to/purpose", json!(1)), Code::InvalidPosting),
            (from_dispute_to("ESCROW"), Code::InvalidPosting),
            (from_dispute_to("DISPUTE"), Code::InvalidPosting),
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
               "asset": "USDT", "amount": "90000000000"});
                3
            ]),
        ));
        let form = form.expect("a form");
        let refused = form.round(&catalog(), u64::MAX, &purposes()).expect_err("too much");
        assert_eq!(refused.code, Code::Overflow);
    }

    #[test]
    fn a_suspended_asset_and_participants_are_checked_apart() {
        let form = |body: &Value| form(body).expect("a form");
        let suspended = form(&with("legs/0/asset", json!("SUSP")));
        // A repeat is answered even now, so the round itself can be made.
        assert!(suspended.round(&catalog(), UNITS_MAX, &purposes()).is_ok());
        let refused = suspended.check_assets(&catalog()).expect_err("suspended");
        assert_eq!(refused.code, Code::AssetSuspended);
        let named =
            |field: &str, names: Value| form(&with(field, names)).check_participants(&known());
        let one = |name: &str| json!({"name": name, "payload": 1});
        assert_eq!(named("participants", json!([one("coupons")])), Ok(()));
        assert_eq!(named("last", one("bank")), Ok(()));
        for (field, names, code) in [
            ("participants", json!([one("stranger")]), Code::UnknownParticipant),
            ("participants", json!([one("SPOT")]), Code::UnknownParticipant),
            ("participants", json!([one("bank")]), Code::InvalidRequest),
            ("last", one("stranger"), Code::UnknownParticipant),
            ("last", one("coupons"), Code::InvalidRequest),
        ] {
            let refused = named(field, names).map_err(|refused| refused.code);
            assert_eq!(refused, Err(code), "{field}");
        }
    }

    /// MLT-005, GTX-013. Goal: a leg between the stores is in the branches of both, one from or to
    /// the outside in Funding's alone, and only for a service that may.
    #[test]
    fn legs_cross_the_stores_and_the_outside() {
        let place = |account: &str, user: u64| json!({"account": account, "user_id": user});
        let leg = |from: Value, to: Value| {
            let mut leg = leg();
            (leg["from"], leg["to"]) = (from, to);
            leg
        };
        let crossing = [
            leg(place("FUNDING", 1), place("SPOT", 1)),
            leg(place("SPOT", 2), place("FUNDING", 3)),
        ];
        let outside = [
            leg(json!("OUTSIDE"), place("FUNDING", 1)),
            leg(place("FUNDING", 3), json!("OUTSIDE")),
        ];
        let both = round(&with("legs", json!([crossing.clone(), outside.clone()].concat())))
            .expect("a round");
        let count = |store| both.legs_in(store).len();
        assert_eq!([Participant::Funding, Participant::Spot].map(count), [4, 2]);
        let spot = both.legs_in(Participant::Spot)[0].in_store(Participant::Spot);
        assert_eq!((spot.from, spot.to), (Place::Outside, Place::Available(1)));
        let many = json!(vec![crossing[0].clone(); 17]);
        let refused = round(&with("legs", many)).expect_err("17 of each store");
        assert_eq!(refused.code, Code::InvalidPosting);
        let owners = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        for (legs, names, want) in [
            (json!(crossing), &[][..], Ok(())),
            (json!(outside), &["envelopes"], Ok(())),
            (json!(outside), &["other"], Err(Code::InvalidRequest)),
            (json!(outside), &[], Err(Code::InvalidRequest)),
        ] {
            let form = form(&with("legs", legs)).expect("a form");
            let said = form.check_outside(&owners(names)).map_err(|refused| refused.code);
            assert_eq!(said, want, "{names:?}");
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
            ("legs/0/to/account", json!("FUNDING")),
            ("decide", json!("coordinator")),
            ("ttl_ms", json!(OPEN_MAX_MS)),
            ("participants", json!([{"name": "a", "payload": 1}])),
            ("last", json!({"name": "a", "payload": 1})),
        ] {
            assert_ne!(of(&with(path, value)), first, "{path}");
        }
        let payload = |text: &str| {
            let mut body = good().to_string();
            body.insert_str(
                1,
                &format!("\"participants\":[{{\"name\":\"a\",\"payload\":{text}}}],"),
            );
            of(&serde_json::from_str(&body).expect("JSON"))
        };
        assert_eq!(payload(r#"{"a":1,"b":[2]}"#), payload(r#"{ "b": [2], "a": 1 }"#));
        assert_ne!(payload(r#"{"a":1,"b":[2]}"#), payload(r#"{"a":1,"b":[3]}"#));
    }
}
