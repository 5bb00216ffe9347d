//! Special accounts, by operators: balances of Funding that may be below zero.

use std::sync::Arc;

use hyper::StatusCode;
use serde::{Deserialize, Serialize};
use tracing::warn;

use super::approvals;
use super::audit_note::{AuditNote, actor, check_reason};
use crate::approval::Action;
use crate::http::answer::json;
use crate::http::refusal::{Outcome, Refusal, invalid, postgres_away};
use crate::http::request::{Call, query};
use crate::http::service::{Intake, Service, Transfers};
use crate::postgres::admin::special::{SpecialChange, SpecialChanged};
use domain::account::UserId;
use domain::amount::signed_text;
use domain::asset::Asset;
use domain::code::Code;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SpecialDraft {
    user_id: u64,
    asset: String,
    special: bool,
    reason: String,
}

/// The wish of an operator about an account.
#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SpecialWish {
    user_id: u64,
    asset: String,
    special: bool,
}

/// `POST /admin/v1/specials`: makes an account special, or ends that, or asks for a second
/// operator's approval.
pub(super) async fn change(service: Arc<Service>, call: Call) -> Outcome {
    query(&call, "")?;
    let request_id = call.request_id.clone();
    let caller = service.intake.authenticate_admin(&call)?;
    let draft: SpecialDraft = service.intake.json_body(call).await?;
    let SpecialDraft { user_id, asset, special, reason } = draft;
    check_reason(&reason)?;
    let wish = SpecialWish { user_id, asset, special };
    wish.known(&service.transfers)?;
    if service.approvals.need(Action::External) {
        let request = serde_json::to_string(&wish).expect("plain values");
        let wanted = approvals::Wanted {
            action: Action::External,
            subject: &wish.subject(),
            request,
            caller,
            reason: &reason,
            request_id: &request_id,
        };
        return approvals::ask(&service, wanted).await;
    }
    wish.carry_out(&service, AuditNote { actor: actor(caller), reason, request_id }).await
}

impl SpecialWish {
    /// The beginning of the subject of an approval: no idem_key has a space.
    pub(super) const SUBJECT: &str = "special ";

    fn subject(&self) -> String {
        let word = if self.special { "on" } else { "off" };
        format!("{}{} {} {word}", SpecialWish::SUBJECT, self.user_id, self.asset)
    }

    fn known(&self, transfers: &Transfers) -> Result<(UserId, Asset), Refusal> {
        let user = UserId::new(self.user_id).ok_or_else(|| invalid("There is no such user_id."))?;
        let catalog = transfers.reads.catalog();
        let asset = catalog.by_symbol(&self.asset).ok_or(Code::InvalidAsset)?;
        Ok((user, asset.clone()))
    }

    /// Makes the change, and answers with the account as it is now.
    pub(super) async fn carry_out(self, service: &Service, note: AuditNote) -> Outcome {
        let (user, asset) = self.known(&service.transfers)?;
        let AuditNote { actor, reason, request_id } = note;
        let change = SpecialChange {
            user,
            asset: asset.id,
            symbol: &asset.symbol,
            special: self.special,
            actor: &actor,
            reason: &reason,
        };
        let changed = service.transfers.admin.change_special(change).await;
        let conflict = |message: &str| {
            let refusal = Refusal::because(Code::InvalidRequest, message.to_owned());
            Err(refusal.with_status(StatusCode::CONFLICT))
        };
        match changed.map_err(postgres_away)? {
            SpecialChanged::Changed => {
                warn!(actor, reason, %user, asset = asset.symbol, self.special, "special account");
            }
            SpecialChanged::Same => {}
            SpecialChanged::Unknown => {
                let message = format!("User {user} has no account on FUNDING.");
                return Err(Refusal::because(Code::NotFound, message));
            }
            SpecialChanged::Negative => return conflict("The balance is below zero."),
            SpecialChanged::Named => {
                return conflict("A transaction that is not over books it as special.");
            }
        }
        // From the answer on, each new transaction knows it.
        service.transfers.reads.load_special().await.map_err(postgres_away)?;
        #[derive(Serialize)]
        struct Body {
            user_id: u64,
            asset: String,
            special: bool,
        }
        let body = Body { user_id: user.number(), asset: asset.symbol, special: self.special };
        Ok(json(StatusCode::OK, &body, &request_id))
    }
}

/// `GET /admin/v1/specials`: all special accounts.
pub(super) async fn list(intake: &Intake, transfers: &Transfers, call: &Call) -> Outcome {
    intake.authenticate_viewer(call)?;
    query(call, "")?;
    let found = transfers.reads.load_special().await.map_err(postgres_away)?;
    #[derive(Serialize)]
    struct SpecialBody {
        user_id: u64,
        asset: String,
        available: String,
    }
    #[derive(Serialize)]
    struct Body {
        specials: Vec<SpecialBody>,
    }
    let catalog = transfers.reads.catalog();
    let specials = found.iter().map(|row| SpecialBody {
        user_id: row.user.number(),
        asset: catalog
            .by_id(row.asset)
            .map_or_else(|| format!("#{}", row.asset.0), |asset| asset.symbol.clone()),
        available: signed_text(row.available, catalog.precision(row.asset)),
    });
    let body = Body { specials: specials.collect() };
    Ok(json(StatusCode::OK, &body, &call.request_id))
}
