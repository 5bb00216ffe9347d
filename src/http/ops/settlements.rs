//! Money of a channel that has reached the bank, as finance says: one movement, from the bank to
//! clearing, once for its idempotency key. An amount below zero takes an earlier one back. It
//! touches no user, and waits for a second operator wherever a withdrawal does.

use std::sync::Arc;

use hyper::StatusCode;
use serde::{Deserialize, Serialize};
use tracing::warn;

use super::approvals;
use super::audit_note::{AuditNote, actor, check_reason};
use super::recharges::{desk, is_name, now, open};
use super::refunds::needed_key;
use crate::approval::Action;
use crate::http::answer::{json, mark_replayed};
use crate::http::idempotency;
use crate::http::refusal::{Outcome, Refusal, invalid, postgres_away};
use crate::http::request::{Call, query};
use crate::http::service::Service;
use crate::postgres::bills::{BankSettled, BankSettlement};
use crate::recharge::movement;
use crate::validation;
use domain::amount::signed_text;
use domain::code::Code;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SettleDraft {
    amount: String,
    /// Absent: the asset of the channel in the configuration.
    #[serde(default)]
    asset: Option<String>,
    reason: String,
    #[serde(default)]
    idem_key: Option<String>,
}

/// A settlement as an operator asks for it, and as an approval keeps it.
#[derive(Clone, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SettleWanted {
    channel: String,
    /// In one spelling, so that a repeat is the same request.
    amount: String,
    asset: String,
    idem_key: String,
}

/// `POST /admin/v1/channels/{channel}/settle`. A channel that is no longer configured has money on
/// its way too: its `asset` must be named.
pub(super) async fn settle(service: Arc<Service>, parameters: Vec<String>, call: Call) -> Outcome {
    query(&call, "")?;
    let request_id = call.request_id.clone();
    let caller = service.intake.authenticate_admin(&call)?;
    let header = idempotency::key(&call)?;
    let SettleDraft { amount, asset, reason, idem_key } = service.intake.json_body(call).await?;
    check_reason(&reason)?;
    let desk = desk(&service)?;
    let idem_key = needed_key(header, idem_key)?;
    let channel = &parameters[0];
    let since = match is_name(channel) {
        true => desk.bills.store.channel_since(channel).await.map_err(postgres_away)?,
        false => None,
    };
    since
        .ok_or_else(|| Refusal::because(Code::InvalidChannel, "There was never such a channel."))?;
    let catalog = service.transfers.reads.catalog();
    let asset = match asset {
        Some(symbol) => catalog.by_symbol(&symbol),
        None => catalog.by_id(open(desk, channel)?.terms.asset),
    };
    let asset = asset.ok_or(Code::InvalidAsset)?.symbol.clone();
    let mut wanted = SettleWanted { channel: channel.clone(), amount, asset, idem_key };
    let settlement = wanted.settlement(&service)?;
    let units = i128::from(settlement.amount.units());
    let units = if settlement.is_back { -units } else { units };
    wanted.amount = signed_text(units, catalog.precision(settlement.asset));
    let note = AuditNote { actor: actor(caller), reason, request_id };
    let known = desk.bills.store.is_settled(&settlement.key).await.map_err(postgres_away)?;
    if known || !service.approvals.need(Action::External) {
        return wanted.carry_out(&service, note).await;
    }
    if service.transfers.halt.is_halted() {
        return Err(Code::ServiceHalted.into());
    }
    let wish = approvals::Wanted {
        action: Action::External,
        subject: &format!("{}{}", SettleWanted::SUBJECT, wanted.idem_key),
        request: serde_json::to_string(&wanted).expect("plain values"),
        caller,
        reason: &note.reason,
        request_id: &note.request_id,
    };
    approvals::ask(&service, wish).await
}

impl SettleWanted {
    /// The beginning of the subject of each approval. No idem_key has a blank.
    pub(super) const SUBJECT: &str = "settle ";

    /// The movement that it asks for.
    fn settlement(&self, service: &Service) -> Result<BankSettlement, Refusal> {
        let transfers = &service.transfers;
        let catalog = transfers.reads.catalog();
        let asset = catalog.by_symbol(&self.asset).ok_or(Code::InvalidAsset)?;
        let (is_back, text) = match self.amount.strip_prefix('-') {
            Some(text) => (true, text),
            None => (false, self.amount.as_str()),
        };
        let amount = validation::amount(text, asset.precision, transfers.limits.units_max)?;
        let key = movement::bank_key(&self.idem_key);
        let key = key.ok_or_else(|| invalid("idem_key must be at most 59 characters here."))?;
        Ok(BankSettlement { key, channel: self.channel.clone(), asset: asset.id, amount, is_back })
    }

    /// Books it, and answers it. A repeat moves nothing.
    pub(super) async fn carry_out(self, service: &Service, note: AuditNote) -> Outcome {
        let settlement = self.settlement(service)?;
        let store = &desk(service)?.bills.store;
        let known = store.is_settled(&settlement.key).await.map_err(postgres_away)?;
        if !known && service.transfers.halt.is_halted() {
            return Err(Code::ServiceHalted.into());
        }
        let AuditNote { actor, reason, request_id } = &note;
        let SettleWanted { channel, amount, asset, idem_key } = &self;
        let detail = format!("{amount} {asset}, key {idem_key}");
        let at = now(&service.transfers);
        let settled = store.settle_channel(&settlement, at, (actor, reason, &detail)).await;
        let replayed = match settled.map_err(postgres_away)? {
            BankSettled::Booked => false,
            BankSettled::Before => true,
            BankSettled::Conflict => return Err(Code::IdemKeyConflict.into()),
        };
        if !replayed {
            warn!(actor, reason, channel, detail, "money of a channel has reached the bank");
        }
        let mut answer = json(StatusCode::OK, &self, request_id);
        if replayed {
            mark_replayed(&mut answer);
        }
        Ok(answer)
    }
}
