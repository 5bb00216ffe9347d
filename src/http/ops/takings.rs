//! Money of a payment that went back at its channel without us, for operators: booked as taken.
//!
//! The channel's own number makes it one action: a repeat is answered by its return as it stands.
//! It moves money, so it waits for a second operator wherever a withdrawal does, with its amount.

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
use crate::http::refusal::{Outcome, Refusal, invalid, postgres_away};
use crate::http::request::{Call, query};
use crate::http::service::{Service, Transfers};
use crate::recharge::ReturnId;
use crate::recharge::payment::RechargePayment;
use crate::recharge::returned::{RechargeReturn, ReturnKind, ReturnState};
use crate::validation;
use domain::code::Code;

/// The longest number of a channel.
const NUMBER_BYTES_MAX: usize = 128;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TakenDraft {
    reason: String,
    number: String,
    #[serde(default)]
    minor_units: Option<i64>,
    #[serde(default)]
    amount: Option<String>,
}

/// A taking as an operator asks for it, and as an approval keeps it. The facts of the payment never
/// change; they are there for the second operator.
#[derive(Clone, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TakenWanted {
    payment_id: String,
    number: String,
    minor_units: i64,
    /// Absent: no asset stands for the payment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    amount: Option<String>,
    currency: String,
    channel: String,
    trade_no: String,
    user_id: Option<u64>,
}

/// `POST /admin/v1/payments/{payment_id}/taken`.
pub(super) async fn take(service: Arc<Service>, parameters: Vec<String>, call: Call) -> Outcome {
    query(&call, "")?;
    let request_id = call.request_id.clone();
    let caller = service.intake.authenticate_admin(&call)?;
    let draft: TakenDraft = service.intake.json_body(call).await?;
    check_reason(&draft.reason)?;
    desk(&service)?;
    check_number(&draft.number)?;
    let transfers = &service.transfers;
    let payment = find(transfers, &parameters[0]).await?;
    let minor_units = minor_units(transfers, &payment, &draft)?;
    let catalog = transfers.reads.catalog();
    let amount = payment.amount_of(minor_units);
    let wanted = TakenWanted {
        payment_id: payment.id.to_string(),
        number: draft.number,
        minor_units,
        amount: amount.map(|amount| amount.text(catalog.precision(payment.asset))),
        currency: payment.currency.clone(),
        channel: payment.channel.clone(),
        trade_no: payment.trade_no.clone(),
        user_id: payment.user.map(|user| user.number()),
    };
    let note = AuditNote { actor: actor(caller), reason: draft.reason, request_id };
    let returns = transfers.reads.recharge_returns(payment.id).await.map_err(postgres_away)?;
    if !service.approvals.need(Action::External) || wanted.is_known(&returns) {
        return wanted.carry_out(&service, note).await;
    }
    wanted.check(&payment, &returns)?;
    if transfers.halt.is_halted() {
        return Err(Code::ServiceHalted.into());
    }
    let wish = approvals::Wanted {
        action: Action::External,
        subject: &format!("{}{} {}", TakenWanted::SUBJECT, payment.id, wanted.number),
        request: serde_json::to_string(&wanted).expect("plain values"),
        caller,
        reason: &note.reason,
        request_id: &note.request_id,
    };
    approvals::ask(&service, wish).await
}

/// Checks the channel's own number of a refund, as a path and a command can have it.
fn check_number(number: &str) -> Result<(), Refusal> {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"_.-".contains(&b);
    match (1..=NUMBER_BYTES_MAX).contains(&number.len()) && number.bytes().all(plain) {
        true => Ok(()),
        false => Err(invalid("number must be 1 to 128 of A-Z a-z 0-9 _ . -")),
    }
}

/// How much a request names, in the channel's minor units.
fn minor_units(
    transfers: &Transfers,
    payment: &RechargePayment,
    draft: &TakenDraft,
) -> Result<i64, Refusal> {
    match (draft.minor_units, &draft.amount) {
        (Some(minor_units), None) if minor_units > 0 => Ok(minor_units),
        (Some(_), None) => Err(invalid("minor_units must be above 0.")),
        (None, Some(_)) if payment.amount.is_none() => {
            Err(invalid("No asset stands for this payment: give minor_units."))
        }
        (None, Some(text)) => {
            let precision = transfers.reads.catalog().precision(payment.asset);
            let amount = validation::amount(text, precision, transfers.limits.units_max)?;
            payment.minor_units_of(amount).ok_or_else(|| Code::PrecisionOverflow.into())
        }
        _ => Err(invalid("Give the amount, or the minor_units.")),
    }
}

impl TakenWanted {
    /// The beginning of the subject of each approval. No idem_key has a blank.
    pub(super) const SUBJECT: &str = "taken ";

    /// Whether the number is recorded. Its amount may be another one.
    fn is_known(&self, returns: &[RechargeReturn]) -> bool {
        returns
            .iter()
            .any(|row| row.kind == ReturnKind::Taken && row.number.as_ref() == Some(&self.number))
    }

    /// Checks that no more goes back than has come: more than that is the channel's word alone.
    fn check(&self, payment: &RechargePayment, returns: &[RechargeReturn]) -> Result<(), Refusal> {
        let refused = |what: String| Err(Refusal::because(Code::NotReturnable, what));
        let own = ReturnId::parse(&self.number);
        let known = returns.iter().find(|row| Some(row.id) == own);
        if let Some(own) = known.filter(|row| row.state != ReturnState::Failed) {
            return refused(format!("{} is a return of ours: its channel ends it.", own.id));
        }
        let left = payment.left(returns);
        match self.minor_units <= left {
            true => Ok(()),
            false => refused(format!(
                "{left} minor units of the payment have neither gone back nor are on their way."
            )),
        }
    }

    /// Books it, and answers the return. A repeat moves nothing.
    pub(super) async fn carry_out(self, service: &Service, note: AuditNote) -> Outcome {
        let (desk, transfers) = (desk(service)?, &service.transfers);
        let payment = find(transfers, &self.payment_id).await?;
        let returns = transfers.reads.recharge_returns(payment.id).await.map_err(postgres_away)?;
        if !self.is_known(&returns) {
            self.check(&payment, &returns)?;
            self.audit(transfers, &payment, &note).await?;
        }
        let part = (self.number.as_str(), self.minor_units);
        let made = desk.recharges.taken_by_operator(&payment, part, &note.actor).await;
        let made = made.map_err(rejected)?;
        let body = ReturnBody::new(&made.row, Some(&payment), &transfers.reads.catalog());
        let mut answer = json(StatusCode::OK, &body, &note.request_id);
        if made.replayed {
            mark_replayed(&mut answer);
        }
        Ok(answer)
    }

    /// Writes the audit row, before anything is booked.
    async fn audit(
        &self,
        transfers: &Transfers,
        payment: &RechargePayment,
        note: &AuditNote,
    ) -> Result<(), Refusal> {
        let AuditNote { actor, reason, .. } = note;
        let TakenWanted { payment_id, number, minor_units, currency, channel, trade_no, .. } = self;
        let state = payment.disposition.name();
        let order = payment.recharge.map_or_else(|| "no order".to_owned(), |id| id.to_string());
        let user = payment.user.map_or_else(|| "no user".to_owned(), |id| format!("user {id}"));
        let detail = format!(
            "{minor_units} minor units of {currency}, number {number}, {channel} {trade_no}, \
             {state}, {order}, {user}"
        );
        let audit = transfers.admin.audit(actor, "payment taken", payment_id, &detail, reason);
        audit.await.map_err(postgres_away)?;
        warn!(actor, reason, payment_id, detail, "an operator books money that went back");
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use domain::transfer::Cid;

    #[test]
    fn a_number_is_plain() {
        for number in ["50300", "re_3Pq.x-1", &"a".repeat(128)] {
            assert!(check_number(number).is_ok(), "{number}");
        }
        for wrong in ["", "a b", "a/b", "é", &"a".repeat(129)] {
            assert!(check_number(wrong).is_err(), "{wrong}");
        }
        assert!(Cid::new(TakenWanted::SUBJECT).is_none(), "no key begins so");
    }
}
