//! Refunds of credited payments, for operators: the whole or a part goes back through the channel.
//!
//! The idempotency key makes it one action: a repeat is answered by its return as it stands. It
//! moves money, so it waits for a second operator wherever a withdrawal does, with its amount.

use std::sync::Arc;

use hyper::StatusCode;
use serde::{Deserialize, Serialize};
use tracing::warn;

use super::approvals;
use super::audit_note::{AuditNote, actor, check_reason};
use super::held_payments::find;
use super::recharge_shown::ReturnBody;
use super::recharges::desk;
use super::rejected::rejected;
use crate::approval::Action;
use crate::http::answer::{json, mark_replayed};
use crate::http::idempotency;
use crate::http::refusal::{Outcome, Refusal, invalid, postgres_away};
use crate::http::request::{Call, query};
use crate::http::service::{Service, Transfers};
use crate::recharge::payment::{Disposition, RechargePayment};
use crate::recharge::returned::{RechargeReturn, ReturnKind};
use crate::recharge::{PaymentId, RechargeId, ReturnId};
use crate::validation;
use domain::amount::{Amount, units_text};
use domain::asset::Catalog;
use domain::code::Code;
use domain::transfer::Cid;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RefundDraft {
    reason: String,
    #[serde(default)]
    payment_id: Option<String>,
    #[serde(default)]
    amount: Option<String>,
    #[serde(default)]
    idem_key: Option<String>,
}

/// A refund as an operator asks for it, and as an approval keeps it. The facts of the payment never
/// change; they are there for the second operator.
#[derive(Clone, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RefundWanted {
    payment_id: String,
    /// Absent: all that is left. An approval names it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    amount: Option<String>,
    idem_key: String,
    asset: String,
    channel: String,
    trade_no: String,
    user_id: Option<u64>,
}

/// The idempotency key of a request, by its field or its header.
///
/// # Errors
/// INVALID_REQUEST: there is none, or it is not one.
pub(super) fn needed_key(header: Option<String>, field: Option<String>) -> Result<String, Refusal> {
    let key = idempotency::one_key(header, "idem_key", field)?.ok_or_else(|| {
        let header = idempotency::HEADER;
        invalid(format!("A key is required: the field idem_key, or the header {header}."))
    })?;
    match Cid::new(&key) {
        Some(_) => Ok(key),
        None => Err(invalid("idem_key must be 1 to 64 of A-Z a-z 0-9 _ . : -")),
    }
}

/// `POST /admin/v1/recharges/{recharge_id}/refund`. The id of a payment names it too.
pub(super) async fn refund(service: Arc<Service>, parameters: Vec<String>, call: Call) -> Outcome {
    query(&call, "")?;
    let request_id = call.request_id.clone();
    let caller = service.intake.authenticate_admin(&call)?;
    let header = idempotency::key(&call)?;
    let draft: RefundDraft = service.intake.json_body(call).await?;
    let RefundDraft { reason, payment_id, amount, idem_key } = draft;
    check_reason(&reason)?;
    desk(&service)?;
    let idem_key = needed_key(header, idem_key)?;
    let transfers = &service.transfers;
    let payment = meant(transfers, &parameters[0], payment_id.as_deref(), &idem_key).await?;
    let catalog = transfers.reads.catalog();
    let mut wanted = RefundWanted {
        payment_id: payment.id.to_string(),
        amount,
        idem_key,
        asset: catalog.by_id(payment.asset).map(|asset| asset.symbol.clone()).unwrap_or_default(),
        channel: payment.channel.clone(),
        trade_no: payment.trade_no.clone(),
        user_id: payment.user.map(|user| user.number()),
    };
    let note = AuditNote { actor: actor(caller), reason, request_id };
    let amount = wanted.amount(transfers, &payment)?;
    let returns = transfers.reads.recharge_returns(payment.id).await.map_err(postgres_away)?;
    if !service.approvals.need(Action::External) || wanted.is_known(&returns) {
        return wanted.carry_out(&service, note).await;
    }
    let amount = check(&catalog, &payment, &returns, amount)?;
    if transfers.halt.is_halted() {
        return Err(Code::ServiceHalted.into());
    }
    // In one spelling, so that a repeat is the same request.
    wanted.amount = Some(amount.text(catalog.precision(payment.asset)));
    let wish = approvals::Wanted {
        action: Action::External,
        subject: &format!("{}{}", RefundWanted::SUBJECT, wanted.idem_key),
        request: serde_json::to_string(&wanted).expect("plain values"),
        caller,
        reason: &note.reason,
        request_id: &note.request_id,
    };
    approvals::ask(&service, wish).await
}

/// The payment that a request means: the one that it names, or the only CREDITED one of its order,
/// or the one that the key has refunded before.
async fn meant(
    transfers: &Transfers,
    id: &str,
    named: Option<&str>,
    idem_key: &str,
) -> Result<RechargePayment, Refusal> {
    let Some(order) = RechargeId::parse(id) else {
        PaymentId::parse(id).ok_or(Code::RechargeNotFound)?;
        return match named {
            Some(other) if other != id => Err(invalid("payment_id is another payment.")),
            _ => find(transfers, id).await,
        };
    };
    if let Some(named) = named {
        let none = || Refusal::because(Code::NotFound, "The order has no such payment.");
        let payment = find(transfers, named).await?;
        return Some(payment).filter(|one| one.recharge == Some(order)).ok_or_else(none);
    }
    let mut payments = transfers.reads.payments_of(&[order]).await.map_err(postgres_away)?;
    payments.retain(|payment| payment.disposition == Disposition::Credited);
    if payments.is_empty() {
        let known = transfers.reads.recharge(order).await.map_err(postgres_away)?;
        known.ok_or(Code::RechargeNotFound)?;
        let message = "No payment of the order is CREDITED.";
        return Err(Refusal::because(Code::NotReturnable, message));
    }
    if payments.len() > 1 {
        let ids: Vec<PaymentId> = payments.iter().map(|payment| payment.id).collect();
        let returns = transfers.reads.returns_of(&ids).await.map_err(postgres_away)?;
        let before = returns.iter().find(|row| {
            let id = ReturnId::of(row.payment, ReturnKind::Refund, idem_key);
            row.idem_key.as_deref() == Some(idem_key) || row.is_lost_refund(id)
        });
        let before = before.map(|row| row.payment);
        payments.retain(|payment| Some(payment.id) == before);
    }
    let several = "The order has several CREDITED payments: name the payment_id.";
    payments.pop().ok_or_else(|| invalid(several))
}

/// Checks whether so much of a payment can go back, `None`: all that is left. Returns the amount.
/// The worker checks it again on its own rows.
fn check(
    catalog: &Catalog,
    payment: &RechargePayment,
    returns: &[RechargeReturn],
    amount: Option<Amount>,
) -> Result<Amount, Refusal> {
    if payment.disposition != Disposition::Credited {
        let message = format!("The payment is {}.", payment.disposition.name());
        return Err(Refusal::because(Code::NotReturnable, message));
    }
    let minor_units = match amount {
        Some(amount) => Some(payment.minor_units_of(amount).ok_or(Code::PrecisionOverflow)?),
        None => None,
    };
    let left = payment.left(returns);
    let minor_units = minor_units.unwrap_or(left);
    payment.amount_of(minor_units).filter(|_| minor_units <= left).ok_or_else(|| {
        let units = payment.amount_of(left).map_or(0, Amount::units);
        let left = units_text(units.into(), catalog.precision(payment.asset));
        Refusal::because(Code::NotReturnable, format!("{left} of the payment is left."))
    })
}

impl RefundWanted {
    /// The beginning of the subject of each approval. No idem_key has a blank.
    pub(super) const SUBJECT: &str = "refund ";

    fn amount(
        &self,
        transfers: &Transfers,
        payment: &RechargePayment,
    ) -> Result<Option<Amount>, Refusal> {
        let precision = transfers.reads.catalog().precision(payment.asset);
        let parsed = self.amount.as_ref().map(|text| {
            let units_max = transfers.limits.units_max;
            validation::amount(text, precision, units_max)
        });
        Ok(parsed.transpose()?)
    }

    /// Whether the key has refunded a part of this payment, or was refused for good. One that was
    /// lost has the channel's word, as a taking.
    fn is_known(&self, returns: &[RechargeReturn]) -> bool {
        let payment = PaymentId::parse(&self.payment_id);
        let id = payment.map(|id| ReturnId::of(id, ReturnKind::Refund, &self.idem_key));
        returns.iter().any(|row| {
            row.idem_key.as_ref() == Some(&self.idem_key)
                || id.is_some_and(|id| row.is_lost_refund(id))
        })
    }

    /// Sets the money apart for its way back, and answers the return. A repeat moves nothing.
    pub(super) async fn carry_out(self, service: &Service, note: AuditNote) -> Outcome {
        let (desk, transfers) = (desk(service)?, &service.transfers);
        let payment = find(transfers, &self.payment_id).await?;
        let amount = self.amount(transfers, &payment)?;
        let catalog = transfers.reads.catalog();
        // One read for both: a request of the same key at the same time is a repeat, never short.
        let returns = transfers.reads.recharge_returns(payment.id).await.map_err(postgres_away)?;
        if !self.is_known(&returns) {
            check(&catalog, &payment, &returns, amount)?;
            self.audit(transfers, &payment, &note).await?;
        }
        let made = desk.recharges.refund(&payment, amount, &self.idem_key, &note.actor).await;
        let made = made.map_err(rejected)?;
        debug_assert_eq!(made.row.payment, payment.id, "another payment's key is a conflict");
        if let Some(order) = payment.recharge {
            desk.till.look(order);
        }
        let body = ReturnBody::new(&made.row, Some(&payment), &catalog);
        let mut answer = json(StatusCode::OK, &body, &note.request_id);
        if made.replayed {
            mark_replayed(&mut answer);
        }
        Ok(answer)
    }

    /// Writes the audit row, before anything is set apart.
    async fn audit(
        &self,
        transfers: &Transfers,
        payment: &RechargePayment,
        note: &AuditNote,
    ) -> Result<(), Refusal> {
        let AuditNote { actor, reason, .. } = note;
        let RefundWanted { payment_id, amount, idem_key, asset, channel, trade_no, user_id } = self;
        let amount = amount.as_deref().map_or("all that is left".to_owned(), str::to_owned);
        let order = payment.recharge.map_or_else(|| "no order".to_owned(), |id| id.to_string());
        let user = user_id.map_or_else(|| "no user".to_owned(), |user| format!("user {user}"));
        let detail = format!("{amount} {asset}, {user}, {channel} {trade_no}, {order}, {idem_key}");
        let (action, admin) = ("recharge refund", &transfers.admin);
        let audit = admin.audit(actor, action, payment_id, &detail, reason);
        audit.await.map_err(postgres_away)?;
        warn!(actor, reason, payment_id, detail, "an operator refunds a payment");
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refund_needs_one_key() {
        let key = |text: &str| Some(text.to_owned());
        assert_eq!(needed_key(None, key("a-1")).ok(), key("a-1"));
        assert_eq!(needed_key(key("a-1"), None).ok(), key("a-1"));
        for (header, field) in [(None, None), (key("a"), key("b")), (None, key("a/b"))] {
            assert!(needed_key(header, field).is_err());
        }
        assert!(Cid::new(RefundWanted::SUBJECT).is_none(), "no key begins so");
    }
}
