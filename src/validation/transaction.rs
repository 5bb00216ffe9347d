//! Every check on a round of a transaction, in the order of the codes.
//!
//! [`RoundForm::new`] checks the form, [`RoundForm::round`] the legs: their answers never change.
//! [`RoundForm::check_participants`] and [`RoundForm::check_assets`] depend on the configuration
//! and on operators: a repeat of a known round is answered without them.

mod draft;
mod fingerprint;

use std::collections::{BTreeMap, BTreeSet};

use super::{amount, check_active, known_asset};
use crate::config::participants::ParticipantKind;
use crate::transaction::{
    Decider, PAYLOAD_BYTES_MAX, ROUNDS_MAX, TransactionLeg, TransactionName, TransactionRound,
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
/// The place outside of both stores. Not taken.
const OUTSIDE: &str = "OUTSIDE";

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

/// A round whose form is right: its own fields, and the names of its places.
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
}

/// A leg whose users are users.
#[derive(Clone, Debug, PartialEq)]
struct LegForm {
    from: (PlaceOfUser, UserId),
    to: (PlaceOfUser, UserId),
    asset: String,
    amount: String,
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
        if draft.followers.is_some() {
            return Err(RoundError::form("followers are not supported."));
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
    ///
    /// # Errors
    /// The code of the first check that fails.
    pub fn round(&self, catalog: &Catalog, units_max: u64) -> Result<TransactionRound, RoundError> {
        let (mut funding, mut spot) = (Vec::new(), Vec::new());
        if self.legs.is_empty() {
            let detail = "legs must have a leg.".to_owned();
            return Err(RoundError { code: Code::InvalidPosting, detail });
        }
        for (index, leg) in self.legs.iter().enumerate() {
            let (store, leg) = leg.check(catalog, units_max).map_err(|(code, detail)| {
                RoundError::leg(index, code, detail.unwrap_or(code.message()))
            })?;
            let legs = match store {
                Participant::Funding => &mut funding,
                Participant::Spot => &mut spot,
            };
            legs.push(leg);
            if legs.len() > LEGS_MAX {
                let detail = format!("legs must have at most {LEGS_MAX} of each store.");
                return Err(RoundError { code: Code::InvalidPosting, detail });
            }
        }
        check_sums(&funding)?;
        check_sums(&spot)?;
        let pair = |service: &ServiceDraft| (service.name.clone(), service.payload.clone());
        let mut round = TransactionRound {
            name: self.name.clone(),
            round: self.round,
            decider: self.decider,
            ttl_ms: self.ttl_ms,
            funding,
            spot,
            services: self.services.iter().map(pair).collect(),
            last: self.last.as_ref().map(pair),
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
            PlaceDraft::Text(text) if text == OUTSIDE => {
                let detail = format!("legs[{index}].{name}: {OUTSIDE} is not supported.");
                Err(RoundError::form(detail))
            }
            PlaceDraft::Text(_) => {
                let detail = format!("legs[{index}].{name} must be an object.");
                Err(RoundError::form(detail))
            }
            PlaceDraft::User(place) => match UserId::new(place.user_id) {
                Some(user) => Ok((place, user)),
                None => {
                    let field = format!("legs[{index}].{name}.user_id");
                    Err(RoundError::form(format!("{field} must be 1 to {USER_ID_MAX}.")))
                }
            },
        };
        Ok(LegForm { from: place("from", from)?, to: place("to", to)?, asset, amount })
    }

    /// The store and the leg, or a code with a sentence if there is more to say.
    fn check(
        &self,
        catalog: &Catalog,
        units_max: u64,
    ) -> Result<(Participant, TransactionLeg), (Code, Option<&'static str>)> {
        let invalid = |detail| (Code::InvalidPosting, Some(detail));
        let stores = [&self.from, &self.to].map(|(place, _)| {
            if place.purpose.is_some() {
                return Err(invalid("Places with a purpose are not supported."));
            }
            match AccountType::from_name(&place.account) {
                Some(AccountType::Funding) => Ok(Participant::Funding),
                Some(AccountType::Spot) => Ok(Participant::Spot),
                Some(_) => Err((Code::UnsupportedAccountType, None)),
                None => Err(invalid("The account must be FUNDING or SPOT.")),
            }
        });
        let [from, to] = stores;
        let (store, other) = (from?, to?);
        if store != other {
            let detail = "A leg between FUNDING and SPOT is not supported: it is a transfer.";
            return Err(invalid(detail));
        }
        let (from, to) = (self.from.1, self.to.1);
        if from == to {
            return Err(invalid("From and to are the same place."));
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
        Ok((store, TransactionLeg { from, to, asset: asset.id, amount: amount.units() }))
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
            Err(RoundError::form("decide is last, and last names nobody."))
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

/// What one user pays or is paid in one asset must fit a balance.
fn check_sums(legs: &[TransactionLeg]) -> Result<(), RoundError> {
    let mut sums: BTreeMap<_, u64> = BTreeMap::new();
    for leg in legs {
        for (user, pays) in [(leg.from, true), (leg.to, false)] {
            let sum = sums.entry((user, leg.asset, pays)).or_default();
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
mod tests;
