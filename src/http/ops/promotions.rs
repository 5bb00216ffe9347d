//! Promotions, for operators: make one, change the terms that may change, put money in, list them.
//!
//! A promotion gives nothing before money was put into it. Putting it in moves money from outside,
//! so it waits for a second operator wherever a withdrawal does. Its key makes it one action.

use std::sync::Arc;

use hyper::StatusCode;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use tracing::warn;

use super::approvals;
use super::audit_note::{AuditNote, actor, check_reason};
use super::detached::detached;
use super::recharges::{desk, now};
use super::refunds::needed_key;
use super::rejected::rejected;
use crate::approval::Action;
use crate::http::answer::{json, mark_replayed};
use crate::http::idempotency;
use crate::http::refusal::{Outcome, Refusal, invalid, postgres_away};
use crate::http::request::{Call, query};
use crate::http::service::{Service, Transfers};
use crate::postgres::promotions::{PromotionChange, PromotionFunded, PromotionUse, Promotions};
use crate::recharge::movement;
use crate::recharge::promotion::{BonusTerms, Promotion, PromotionStatus, is_promotion_name};
use crate::validation;
use domain::amount::{Amount, units_text};
use domain::asset::Catalog;
use domain::code::Code;

/// The largest part of an amount: a hundred times it.
const BASIS_POINTS_MAX: u32 = 1_000_000;
/// The most orders of one user, as PostgreSQL holds the number.
const PER_USER_MAX: u32 = 1_000_000_000;

/// A promotion as operators read it.
#[derive(Serialize)]
struct PromotionBody {
    name: String,
    asset: String,
    min_amount: String,
    /// The bonus of each order; null: a part of the amount.
    fixed: Option<String>,
    basis_points: Option<u32>,
    bonus_max: String,
    per_user_max: u32,
    starts_at: Timestamp,
    ends_at: Timestamp,
    status: &'static str,
    available: String,
    reserved: String,
    given: String,
    /// Orders with a reserved or a given bonus.
    orders: u64,
    /// It has less than one largest bonus.
    low: bool,
}

impl PromotionBody {
    fn new(used: &PromotionUse, catalog: &Catalog) -> PromotionBody {
        let PromotionUse { promotion, reserved, given, orders } = used;
        let precision = catalog.precision(promotion.asset);
        let text = |units: u64| units_text(units.into(), precision);
        let (fixed, basis_points) = match promotion.bonus {
            BonusTerms::Fixed(bonus) => (Some(bonus.text(precision)), None),
            BonusTerms::Part { basis_points, .. } => (None, Some(basis_points)),
        };
        PromotionBody {
            name: promotion.name.clone(),
            asset: catalog.by_id(promotion.asset).map_or("?".to_owned(), |a| a.symbol.clone()),
            min_amount: promotion.min_amount.text(precision),
            fixed,
            basis_points,
            bonus_max: promotion.bonus.max().text(precision),
            per_user_max: promotion.per_user_max,
            starts_at: promotion.starts_at,
            ends_at: promotion.ends_at,
            status: promotion.status.name(),
            available: text(promotion.available),
            reserved: text(*reserved),
            given: text(*given),
            orders: *orders,
            low: promotion.is_low(),
        }
    }
}

/// The promotion that a path names.
async fn find(transfers: &Transfers, name: &str) -> Result<PromotionUse, Refusal> {
    let none = || Refusal::because(Code::NotFound, "There is no such promotion.");
    if !is_promotion_name(name) {
        return Err(none());
    }
    let found = transfers.reads.promotions(Some(name)).await.map_err(postgres_away)?;
    found.into_iter().next().ok_or_else(none)
}

async fn told(transfers: &Transfers, name: &str, request_id: &str) -> Outcome {
    let body = PromotionBody::new(&find(transfers, name).await?, &transfers.reads.catalog());
    Ok(json(StatusCode::OK, &body, request_id))
}

/// The purpose of a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PromotionAct {
    /// Every promotion.
    List,
    /// One.
    Show,
    /// Make one, or change it.
    Set,
    /// Put money into one.
    Fund,
}

/// Answers a request about promotions.
pub(super) async fn answer(
    service: Arc<Service>,
    act: PromotionAct,
    parameters: Vec<String>,
    call: Call,
) -> Outcome {
    match act {
        PromotionAct::List => list(&service, &call).await,
        PromotionAct::Show => show(&service, &parameters[0], &call).await,
        PromotionAct::Set => detached(set(service, parameters, call)).await,
        PromotionAct::Fund => detached(fund(service, parameters, call)).await,
    }
}

/// `GET /admin/v1/promotions`: every promotion, by name.
async fn list(service: &Service, call: &Call) -> Outcome {
    service.intake.authenticate_viewer(call)?;
    query(call, "")?;
    desk(service)?;
    let reads = &service.transfers.reads;
    let found = reads.promotions(None).await.map_err(postgres_away)?;
    #[derive(Serialize)]
    struct Body {
        promotions: Vec<PromotionBody>,
    }
    let catalog = reads.catalog();
    let promotions = found.iter().map(|used| PromotionBody::new(used, &catalog)).collect();
    Ok(json(StatusCode::OK, &Body { promotions }, &call.request_id))
}

/// `GET /admin/v1/promotions/{promotion}`.
async fn show(service: &Service, name: &str, call: &Call) -> Outcome {
    service.intake.authenticate_viewer(call)?;
    query(call, "")?;
    desk(service)?;
    told(&service.transfers, name, &call.request_id).await
}

/// A promotion as an operator sets it. Without one of this name all terms are needed.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PromotionDraft {
    reason: String,
    #[serde(default)]
    asset: Option<String>,
    #[serde(default)]
    min_amount: Option<String>,
    #[serde(default)]
    fixed: Option<String>,
    #[serde(default)]
    basis_points: Option<u32>,
    #[serde(default)]
    bonus_max: Option<String>,
    #[serde(default)]
    per_user_max: Option<u32>,
    #[serde(default)]
    starts_at: Option<Timestamp>,
    #[serde(default)]
    ends_at: Option<Timestamp>,
    #[serde(default)]
    status: Option<String>,
}

impl PromotionDraft {
    fn change(&self) -> Result<PromotionChange, Refusal> {
        let status = self.status.as_deref().map(|name| {
            let names = PromotionStatus::ALL.map(PromotionStatus::name).join(", ");
            let wrong = || invalid(format!("status must be one of {names}."));
            PromotionStatus::from_name(name).ok_or_else(wrong)
        });
        if self.per_user_max.is_some_and(|max| !(1..=PER_USER_MAX).contains(&max)) {
            return Err(invalid(format!("per_user_max must be 1 to {PER_USER_MAX}.")));
        }
        let (ends_at, per_user_max) = (self.ends_at, self.per_user_max);
        Ok(PromotionChange { status: status.transpose()?, ends_at, per_user_max })
    }

    /// A new promotion of these terms.
    fn promotion(
        &self,
        name: &str,
        transfers: &Transfers,
        at: Timestamp,
    ) -> Result<Promotion, Refusal> {
        let change = self.change()?;
        let catalog = transfers.reads.catalog();
        let needed = |field: &str| invalid(format!("A new promotion needs {field}."));
        let symbol = self.asset.as_deref().ok_or_else(|| needed("asset"))?;
        let asset = catalog.by_symbol(symbol).ok_or(Code::InvalidAsset)?;
        let amount = |text: &Option<String>, field: &str| {
            let text = text.as_deref().ok_or_else(|| needed(field))?;
            Ok::<Amount, Refusal>(validation::amount(
                text,
                asset.precision,
                transfers.limits.units_max,
            )?)
        };
        let bonus = match (&self.fixed, self.basis_points) {
            (Some(_), None) if self.bonus_max.is_none() => {
                BonusTerms::Fixed(amount(&self.fixed, "fixed")?)
            }
            (None, Some(basis_points)) if (1..=BASIS_POINTS_MAX).contains(&basis_points) => {
                let max = amount(&self.bonus_max, "bonus_max")?;
                BonusTerms::Part { basis_points, max }
            }
            (None, Some(_)) => {
                return Err(invalid(format!("basis_points must be 1 to {BASIS_POINTS_MAX}.")));
            }
            _ => return Err(needed("either fixed, or basis_points and bonus_max")),
        };
        let starts_at = self.starts_at.unwrap_or(at);
        let ends_at = self.ends_at.ok_or_else(|| needed("ends_at"))?;
        if ends_at <= starts_at {
            return Err(invalid("ends_at must be behind starts_at."));
        }
        Ok(Promotion {
            name: name.to_owned(),
            asset: asset.id,
            min_amount: amount(&self.min_amount, "min_amount")?,
            bonus,
            per_user_max: change.per_user_max.unwrap_or(1),
            starts_at,
            ends_at,
            status: change.status.unwrap_or(PromotionStatus::Active),
            available: 0,
        })
    }

    /// Whether it names a term that stands.
    fn names_terms(&self) -> bool {
        let texts = [&self.asset, &self.min_amount, &self.fixed, &self.bonus_max];
        texts.into_iter().any(Option::is_some)
            || self.basis_points.is_some()
            || self.starts_at.is_some()
    }
}

/// `PUT /admin/v1/promotions/{promotion}`: makes it, or changes status, ends_at and per_user_max.
async fn set(service: Arc<Service>, parameters: Vec<String>, call: Call) -> Outcome {
    query(&call, "")?;
    let request_id = call.request_id.clone();
    let caller = service.intake.authenticate_admin(&call)?;
    let draft: PromotionDraft = service.intake.json_body(call).await?;
    check_reason(&draft.reason)?;
    desk(&service)?;
    let (transfers, name, actor) = (&service.transfers, &parameters[0], actor(caller));
    if !is_promotion_name(name) {
        return Err(invalid("The name of a promotion must be 1 to 16 of a-z 0-9 -"));
    }
    let admin = &transfers.admin;
    let promotions = Promotions::new(transfers.reads.clone(), admin.incarnation_number());
    let known = transfers.reads.promotions(Some(name)).await.map_err(postgres_away)?;
    match known.first() {
        None => {
            let promotion = draft.promotion(name, transfers, now(transfers))?;
            let made = promotions.create(&promotion, &actor, &draft.reason).await;
            if !made.map_err(postgres_away)? {
                let message = "Another operator has made it at the same time.";
                return Err(invalid(message).with_status(StatusCode::CONFLICT));
            }
        }
        Some(known) => {
            let change = draft.change()?;
            if draft.names_terms() {
                let fields = "status, ends_at and per_user_max";
                return Err(invalid(format!("The promotion exists: only {fields} may change.")));
            }
            if change.ends_at.is_some_and(|end| end <= known.promotion.starts_at) {
                return Err(invalid("ends_at must be behind starts_at."));
            }
            promotions.change(name, &change, &actor, &draft.reason).await.map_err(postgres_away)?;
        }
    }
    warn!(actor, reason = draft.reason, promotion = name, "an operator sets a promotion");
    told(transfers, name, &request_id).await
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FundDraft {
    reason: String,
    amount: String,
    #[serde(default)]
    idem_key: Option<String>,
}

/// Money for a promotion as an operator asks for it, and as an approval keeps it.
#[derive(Clone, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FundWanted {
    promotion: String,
    amount: String,
    asset: String,
    idem_key: String,
}

/// `POST /admin/v1/promotions/{promotion}/fund`.
async fn fund(service: Arc<Service>, parameters: Vec<String>, call: Call) -> Outcome {
    query(&call, "")?;
    let request_id = call.request_id.clone();
    let caller = service.intake.authenticate_admin(&call)?;
    let header = idempotency::key(&call)?;
    let FundDraft { reason, amount, idem_key } = service.intake.json_body(call).await?;
    check_reason(&reason)?;
    desk(&service)?;
    let idem_key = needed_key(header, idem_key)?;
    // Before an approval keeps it.
    movement::funded(&idem_key).ok_or_else(long_key)?;
    let (transfers, name) = (&service.transfers, &parameters[0]);
    let used = find(transfers, name).await?;
    let catalog = transfers.reads.catalog();
    let asset = catalog.by_id(used.promotion.asset).ok_or(Code::InvalidAsset)?;
    let amount = validation::amount(&amount, asset.precision, transfers.limits.units_max)?;
    let wanted = FundWanted {
        promotion: name.clone(),
        // In one spelling, so that a repeat is the same request.
        amount: amount.text(asset.precision),
        asset: asset.symbol.clone(),
        idem_key,
    };
    let note = AuditNote { actor: actor(caller), reason, request_id };
    let known = transfers.reads.is_funded(&wanted.idem_key).await.map_err(postgres_away)?;
    if !service.approvals.need(Action::External) || known {
        return wanted.carry_out(&service, note).await;
    }
    if transfers.halt.is_halted() {
        return Err(Code::ServiceHalted.into());
    }
    let wish = approvals::Wanted {
        action: Action::External,
        subject: &format!("{}{}", FundWanted::SUBJECT, wanted.idem_key),
        request: serde_json::to_string(&wanted).expect("plain values"),
        caller,
        reason: &note.reason,
        request_id: &note.request_id,
    };
    approvals::ask(&service, wish).await
}

fn long_key() -> Refusal {
    invalid("idem_key must be at most 59 characters here.")
}

impl FundWanted {
    /// The beginning of the subject of each approval. No idem_key has a blank.
    pub(super) const SUBJECT: &str = "fund ";

    /// Puts the money in, and answers the promotion. A repeat moves nothing.
    pub(super) async fn carry_out(self, service: &Service, note: AuditNote) -> Outcome {
        let (desk, transfers) = (desk(service)?, &service.transfers);
        let catalog = transfers.reads.catalog();
        let asset = catalog.by_symbol(&self.asset).ok_or(Code::InvalidAsset)?;
        let amount = validation::amount(&self.amount, asset.precision, transfers.limits.units_max)?;
        let AuditNote { actor, reason, request_id } = &note;
        let by = (actor.as_str(), reason.as_str());
        let funded = desk.recharges.fund(&self.promotion, amount, &self.idem_key, by).await;
        let replayed = match funded.map_err(rejected)? {
            PromotionFunded::Done { replayed, .. } => replayed,
            PromotionFunded::Conflict => return Err(Code::IdemKeyConflict.into()),
            PromotionFunded::Unknown => return Err(Code::Overflow.into()),
            PromotionFunded::LongKey => return Err(long_key()),
        };
        let (promotion, amount) = (&self.promotion, &self.amount);
        warn!(actor, reason, promotion, amount, replayed, "an operator funds a promotion");
        let mut answer = told(transfers, &self.promotion, request_id).await?;
        if replayed {
            mark_replayed(&mut answer);
        }
        Ok(answer)
    }
}
