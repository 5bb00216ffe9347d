//! Freezes and unfreezes by operators. Each is a transaction of one leg, with the idem_key as its
//! tx_id: it is decided once, and a repeat has the same answer.

use std::sync::Arc;

use hyper::StatusCode;
use serde::{Deserialize, Serialize};
use tracing::warn;

use super::approvals;
use super::audit_note::{AuditNote, actor, check_reason};
use crate::approval::Action;
use crate::config::holds::Purposes;
use crate::http::answer::json;
use crate::http::auth;
use crate::http::public::transactions::{is_known, round};
use crate::http::refusal::{Outcome, Refusal, invalid, postgres_away};
use crate::http::request::{Call, parameters, query};
use crate::http::service::{Intake, Service, Transfers};
use crate::postgres::reads::freezes::{FREEZES_MAX, FreezeFilter, FundingFreeze};
use crate::transaction::OPERATORS;
use crate::validation::transaction::{
    LegDraft, PlaceDraft, PlaceOfUser, RoundForm, TransactionDraft,
};
use domain::account::UserId;
use domain::amount::units_text;
use domain::asset::Catalog;
use domain::code::Code;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FreezeDraft {
    account: String,
    user_id: u64,
    asset: String,
    amount: String,
    purpose: String,
    idem_key: String,
    reason: String,
}

/// Money of a user that is frozen or unfrozen for a purpose, as an operator asks for it.
#[derive(Clone, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct OperatorFreeze {
    /// Into the purpose, or out of it.
    freezes: bool,
    account: String,
    user_id: u64,
    asset: String,
    amount: String,
    purpose: String,
    idem_key: String,
}

/// `POST /admin/v1/freezes` and `/unfreezes`.
pub(super) async fn change(service: Arc<Service>, freezes: bool, call: Call) -> Outcome {
    query(&call, "")?;
    let request_id = call.request_id.clone();
    let caller = service.intake.authenticate_admin(&call)?;
    let draft: FreezeDraft = service.intake.json_body(call).await?;
    let FreezeDraft { account, user_id, asset, amount, purpose, idem_key, reason } = draft;
    check_reason(&reason)?;
    let freeze = OperatorFreeze { freezes, account, user_id, asset, amount, purpose, idem_key };
    let form = freeze.form(&service)?;
    if service.approvals.need(Action::Hold) && !is_known(&service, &form).await? {
        form.round(
            &service.transfers.reads.catalog(),
            service.transfers.limits.units_max,
            &service.transactions.purposes,
        )?;
        let request = serde_json::to_string(&freeze).expect("plain values");
        let wanted = approvals::Wanted {
            action: Action::Hold,
            subject: &freeze.subject(),
            request,
            caller,
            reason: &reason,
            request_id: &request_id,
        };
        return approvals::ask(&service, wanted).await;
    }
    freeze.carry_out(&service, AuditNote { actor: actor(caller), reason, request_id }).await
}

impl OperatorFreeze {
    /// The name of an approval: no hold of a venue has it.
    fn subject(&self) -> String {
        format!("freeze {}", self.idem_key)
    }

    /// The one round of its transaction.
    fn form(&self, service: &Service) -> Result<RoundForm, Refusal> {
        let place = |purpose: Option<&str>| {
            PlaceDraft::User(PlaceOfUser {
                account: self.account.clone(),
                user_id: self.user_id,
                purpose: purpose.map(Into::into),
            })
        };
        let (available, frozen) = (place(None), place(Some(&self.purpose)));
        let (from, to) = if self.freezes { (available, frozen) } else { (frozen, available) };
        let (asset, amount) = (self.asset.clone(), self.amount.clone());
        let draft = TransactionDraft {
            tx_id: self.idem_key.clone(),
            legs: vec![LegDraft { from, to, asset, amount }],
            participants: Vec::new(),
            last: None,
            followers: Vec::new(),
            wait_ms: None,
        };
        Ok(RoundForm::whole(OPERATORS, draft, service.transactions.open_max_ms)?)
    }

    /// Freezes or unfreezes, and answers as a transaction is answered.
    pub(super) async fn carry_out(self, service: &Service, note: AuditNote) -> Outcome {
        let form = self.form(service)?;
        let AuditNote { actor, reason, request_id } = note;
        if !is_known(service, &form).await? && !service.transfers.halt.is_halted() {
            let action = if self.freezes { "freeze" } else { "unfreeze" };
            let OperatorFreeze { account, user_id, asset, amount, purpose, idem_key, .. } = &self;
            let detail = format!("{amount} {asset} of user {user_id} on {account} for {purpose}");
            // The intent first: the row of the transaction has no author.
            let audit = service.transfers.admin.audit(&actor, action, idem_key, &detail, &reason);
            audit.await.map_err(postgres_away)?;
            warn!(actor, reason, idem_key, action, detail, "an operator freezes or unfreezes");
        }
        let wait = service.transfers.limits.transfer_wait;
        round(service, form, wait, &request_id).await.map_err(|refusal| match refusal.code {
            Code::TxIdConflict => Code::IdemKeyConflict.into(),
            _ => refusal,
        })
    }
}

/// `GET /admin/v1/freezes`: freezes on Funding. Those on Spot are among the holds.
pub(super) async fn list(
    intake: &Intake,
    transfers: &Transfers,
    purposes: &Purposes,
    call: &Call,
) -> Outcome {
    intake.authenticate_viewer(call)?;
    let text = call.request.uri().query().unwrap_or("");
    let [user, asset, purpose] = parameters(text, ["user", "asset", "purpose"])?;
    let catalog = transfers.reads.catalog();
    let user = user.map(|text| {
        let user = auth::user_id(&text).and_then(UserId::new);
        user.ok_or_else(|| invalid("There is no such user."))
    });
    let asset = asset.map(|symbol| catalog.by_symbol(&symbol).ok_or(Code::InvalidAsset));
    let purpose = purpose.map(|name| {
        let known = purposes.by_name(&name);
        known.ok_or_else(|| invalid(format!("purpose must be one of {purposes}.")))
    });
    let filter = FreezeFilter {
        user: user.transpose()?,
        asset: asset.transpose()?.map(|asset| asset.id),
        purpose: purpose.transpose()?.map(|purpose| purpose.number),
    };
    let found = transfers.reads.freezes(&filter).await.map_err(postgres_away)?;
    #[derive(Serialize)]
    struct Body {
        freezes: Vec<FreezeBody>,
        /// There may be others.
        more: bool,
    }
    let freezes = found.iter().map(|freeze| FreezeBody::new(freeze, purposes, &catalog));
    let body = Body { freezes: freezes.collect(), more: found.len() == FREEZES_MAX };
    Ok(json(StatusCode::OK, &body, &call.request_id))
}

#[derive(Serialize)]
struct FreezeBody {
    user_id: u64,
    asset: String,
    purpose: String,
    amount: String,
}

impl FreezeBody {
    fn new(freeze: &FundingFreeze, purposes: &Purposes, catalog: &Catalog) -> FreezeBody {
        let FundingFreeze { user, asset, purpose, amount } = *freeze;
        let symbol = catalog.by_id(asset).map(|asset| asset.symbol.clone());
        FreezeBody {
            user_id: user.number(),
            asset: symbol.unwrap_or_else(|| format!("#{}", asset.0)),
            // A purpose that was taken out of the configuration is named by its number.
            purpose: purposes.name_of(purpose).map_or_else(|| purpose.to_string(), str::to_owned),
            amount: units_text(amount, catalog.precision(asset)),
        }
    }
}
