//! Money from and to the outside.

use hyper::StatusCode;
use serde::{Deserialize, Serialize};

use super::approvals;
use super::audit_note::{AuditNote, actor, check_reason};
use super::rejected::rejected;
use crate::approval::Action;
use crate::http::answer::{json, mark_replayed};
use crate::http::idempotency;
use crate::http::refusal::{Outcome, Refusal, invalid, postgres_away};
use crate::http::request::Call;
use crate::http::service::{Service, Transfers};
use crate::postgres::store;
use crate::validation;
use domain::account::UserId;
use domain::amount::{Amount, signed_text};
use domain::asset::AssetId;
use domain::code::Code;
use domain::transfer::{Cid, Decision, Op};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ExternalDraft {
    user_id: u64,
    asset: String,
    amount: String,
    #[serde(default)]
    idem_key: Option<String>,
    #[serde(default)]
    reason: Option<String>,
}

/// The reason of an approval, if the operation came without one.
const NO_REASON: &str = "no reason given";

/// `POST /admin/v1/deposits` and `/withdrawals`: moves money, or asks for a second operator's
/// approval.
pub(super) async fn external(service: &Service, op: Op, call: Call) -> Outcome {
    let request_id = call.request_id.clone();
    let caller = service.intake.authenticate_admin(&call)?;
    let header = idempotency::key(&call)?;
    let draft: ExternalDraft = service.intake.json_body(call).await?;
    let ExternalDraft { user_id, asset, amount, idem_key, reason } = draft;
    let idem_key = idempotency::one_key(header, "idem_key", idem_key)?;
    let idem_key = idem_key.ok_or_else(|| {
        let header = idempotency::HEADER;
        invalid(format!("A key is required: the field idem_key, or the header {header}."))
    })?;
    reason.as_deref().map_or(Ok(()), check_reason)?;
    let external = External { op: op.name().to_owned(), user_id, asset, amount, idem_key };
    // The coordinator answers a known idem_key by its decision.
    let known = external.known(&service.transfers)?;
    let replayed = service
        .transfers
        .reads
        .external_is_recorded(&external.idem_key)
        .await
        .map_err(postgres_away)?;
    if service.approvals.need(Action::External) && !replayed {
        if service.transfers.halt.is_halted() {
            return Err(Code::ServiceHalted.into());
        }
        // In one spelling, so that a repeat is the same request.
        let external = External { amount: known.amount.text(known.precision), ..external };
        let request = serde_json::to_string(&external).expect("plain values");
        let wanted = approvals::Wanted {
            action: Action::External,
            subject: &external.idem_key,
            request,
            caller,
            reason: reason.as_deref().unwrap_or(NO_REASON),
            request_id: &request_id,
        };
        return approvals::ask(service, wanted).await;
    }
    let actor = actor(caller);
    if let Some(reason) =
        reason.as_deref().filter(|_| !replayed && !service.transfers.halt.is_halted())
    {
        // The intent first: the row of the operation has no column for a reason.
        let action = if op.pays() { "deposit asked" } else { "withdrawal asked" };
        let detail = format!("{} {} of user {user_id}", external.amount, external.asset);
        let audit =
            service.transfers.admin.audit(&actor, action, &external.idem_key, &detail, reason);
        audit.await.map_err(postgres_away)?;
    }
    let note = AuditNote { actor, reason: String::new(), request_id };
    let mut answer = external.carry_out(&service.transfers, note).await?;
    if replayed {
        mark_replayed(&mut answer);
    }
    Ok(answer)
}

/// A deposit from outside or a withdrawal to it, as an operator asks for it.
#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct External {
    op: String,
    user_id: u64,
    asset: String,
    amount: String,
    idem_key: String,
}

/// A checked [`External`].
struct Known {
    op: Op,
    user: UserId,
    asset: AssetId,
    precision: u8,
    amount: Amount,
}

impl External {
    fn known(&self, transfers: &Transfers) -> Result<Known, Refusal> {
        let op = Op::from_name(&self.op).ok_or_else(|| invalid("There is no such operation."))?;
        let user = UserId::new(self.user_id).ok_or_else(|| invalid("There is no such user_id."))?;
        if Cid::new(&self.idem_key).is_none() {
            return Err(invalid("idem_key must be 1 to 64 of A-Z a-z 0-9 _ . : -"));
        }
        let catalog = transfers.reads.catalog();
        let money = catalog.by_symbol(&self.asset).ok_or(Code::InvalidAsset).and_then(|asset| {
            let amount =
                validation::amount(&self.amount, asset.precision, transfers.limits.units_max)?;
            Ok(Known { op, user, asset: asset.id, precision: asset.precision, amount })
        });
        match money {
            Err(_) if transfers.halt.is_halted() => Err(Code::ServiceHalted.into()),
            money => Ok(money?),
        }
    }

    /// Moves the money, and answers the decision. A repeat of its idem_key moves nothing.
    pub(super) async fn carry_out(self, transfers: &Transfers, note: AuditNote) -> Outcome {
        let Known { op, user, asset, precision, amount } = self.known(transfers)?;
        let (AuditNote { actor, request_id, .. }, idem_key) = (note, self.idem_key);
        let (idem_key_asked, order_number) = (idem_key.clone(), 0);
        let external = store::External {
            idem_key: idem_key_asked,
            op,
            user,
            asset,
            amount,
            actor,
            order_number,
        };
        let decided = transfers.coordinator.external(external).await.map_err(rejected)?;
        #[derive(Serialize)]
        struct Body {
            idem_key: String,
            outcome: &'static str,
            code: Option<&'static str>,
            balance_after: Option<String>,
        }
        let (outcome, code) = match decided.decision {
            Decision::Success => ("SUCCESS", None),
            Decision::Refused(code) => ("REFUSED", Some(code.name())),
        };
        let balance_after = decided.balance_after.map(|units| signed_text(units, precision));
        let body = Body { idem_key, outcome, code, balance_after };
        Ok(json(StatusCode::OK, &body, &request_id))
    }
}
