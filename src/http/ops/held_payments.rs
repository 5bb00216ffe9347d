//! HELD payments, for operators: each is ended by credit, return, dismiss or rematch, once.
//!
//! The disposition of the payment makes it one action: a repeat is answered by the payment as it
//! stands, and another end of the same payment is refused. Money moves by it, so it waits for a
//! second operator wherever a deposit does; the credit of a payment without an order always does.

use std::sync::Arc;

use hyper::StatusCode;
use serde::{Deserialize, Serialize};
use tracing::warn;

use super::approvals;
use super::audit_note::{AuditNote, actor, check_reason};
use super::recharge_shown::PaymentBody;
use super::recharges::{desk, now, open, query_channel};
use super::rejected::rejected;
use crate::approval::Action;
use crate::http::answer::{json, mark_replayed};
use crate::http::idempotency;
use crate::http::refusal::{Outcome, Refusal, invalid, postgres_away};
use crate::http::request::{Call, query};
use crate::http::service::{RechargeDesk, Service, Transfers};
use crate::postgres::recover::RECOVER_NEXT;
use crate::recharge::act::HeldEnd;
use crate::recharge::answers::Queried;
use crate::recharge::facts::Facts;
use crate::recharge::movement::recharge_credit;
use crate::recharge::payment::{Disposition, HeldCause, RechargePayment};
use crate::recharge::{PaymentId, RechargeId};
use domain::account::UserId;
use domain::code::Code;
use domain::transfer::Cid;

/// How an operator ends a HELD payment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum PaymentEnd {
    /// To the owner of its order; without an order, to a user that two operators name.
    Credit,
    /// Back through its channel.
    Return,
    /// It is not ours.
    Dismiss,
    /// Through the table of decisions again, with the facts of its channel now.
    Rematch,
}

impl PaymentEnd {
    fn name(self) -> &'static str {
        match self {
            PaymentEnd::Credit => "credit",
            PaymentEnd::Return => "return",
            PaymentEnd::Dismiss => "dismiss",
            PaymentEnd::Rematch => "rematch",
        }
    }

    /// Whether a payment has come to this end.
    fn is_done(self, wanted: Option<UserId>, payment: &RechargePayment) -> bool {
        match self {
            PaymentEnd::Credit => {
                payment.disposition == Disposition::Credited
                    && (wanted.is_none() || payment.user == wanted)
            }
            PaymentEnd::Return => {
                matches!(payment.disposition, Disposition::Returning | Disposition::Returned)
            }
            PaymentEnd::Dismiss => payment.disposition == Disposition::Dismissed,
            // It was decided again, by a repeat of the channel or an earlier try.
            PaymentEnd::Rematch => payment.disposition != Disposition::Held,
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct EndDraft {
    reason: String,
    #[serde(default)]
    user_id: Option<u64>,
    #[serde(default)]
    idem_key: Option<String>,
}

/// The end of a payment as an operator asks for it, and as an approval keeps it. The facts of the
/// payment never change; they are there for the second operator.
#[derive(Clone, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct EndWanted {
    payment_id: String,
    how: PaymentEnd,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    user_id: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    idem_key: Option<String>,
    channel: String,
    trade_no: String,
    minor_units: i64,
    currency: String,
}

/// The beginning of the subject of each approval. No idem_key has a blank.
const SUBJECT: &str = "payment ";

/// Whether an approval of money is about a payment of a channel.
pub(super) fn is_about(subject: &str) -> bool {
    subject.starts_with(SUBJECT)
}

/// `POST /admin/v1/payments/{payment_id}/credit`, `return`, `dismiss` and `rematch`.
pub(super) async fn end(
    service: Arc<Service>,
    how: PaymentEnd,
    parameters: Vec<String>,
    call: Call,
) -> Outcome {
    query(&call, "")?;
    let request_id = call.request_id.clone();
    let caller = service.intake.authenticate_admin(&call)?;
    let header = idempotency::key(&call)?;
    let draft: EndDraft = service.intake.json_body(call).await?;
    let EndDraft { reason, user_id, idem_key } = draft;
    check_reason(&reason)?;
    desk(&service)?;
    let idem_key = idempotency::one_key(header, "idem_key", idem_key)?;
    check_fields(how, user_id, idem_key.as_deref())?;
    let payment = find(&service.transfers, &parameters[0]).await?;
    let wanted = EndWanted {
        payment_id: payment.id.to_string(),
        how,
        user_id,
        idem_key,
        channel: payment.channel.clone(),
        trade_no: payment.trade_no.clone(),
        minor_units: payment.minor_units,
        currency: payment.currency.clone(),
    };
    let note = AuditNote { actor: actor(caller), reason, request_id };
    if is_over(&wanted, &payment)? {
        return told(&service.transfers, &payment, true, &note).await;
    }
    check(&service.transfers, &wanted, &payment).await?;
    let always = how == PaymentEnd::Credit && payment.recharge.is_none();
    if !always && !service.approvals.need(Action::External) {
        return wanted.carry_out(&service, note).await;
    }
    if service.transfers.halt.is_halted() {
        return Err(Code::ServiceHalted.into());
    }
    let request = serde_json::to_string(&wanted).expect("plain values");
    let wish = approvals::Wanted {
        action: Action::External,
        subject: &format!("{SUBJECT}{} {}", payment.id, how.name()),
        request,
        caller,
        reason: &note.reason,
        request_id: &note.request_id,
    };
    approvals::ask(&service, wish).await
}

/// Checks the fields beside the reason.
fn check_fields(
    how: PaymentEnd,
    user_id: Option<u64>,
    idem_key: Option<&str>,
) -> Result<(), Refusal> {
    if how != PaymentEnd::Credit {
        return match (user_id, idem_key) {
            (None, None) => Ok(()),
            _ => Err(invalid("user_id and idem_key are for a credit.")),
        };
    }
    let Some(key) = idem_key else {
        let header = idempotency::HEADER;
        let what = format!("A key is required: the field idem_key, or the header {header}.");
        return Err(invalid(what));
    };
    if Cid::new(key).is_none() {
        return Err(invalid("idem_key must be 1 to 64 of A-Z a-z 0-9 _ . : -"));
    }
    match user_id.map(UserId::new) {
        Some(None) => Err(invalid("There is no such user_id.")),
        _ => Ok(()),
    }
}

/// The payment with the id of a path or an approval.
pub(super) async fn find(transfers: &Transfers, id: &str) -> Result<RechargePayment, Refusal> {
    let none = || Refusal::because(Code::NotFound, "There is no such payment.");
    let id = PaymentId::parse(id).ok_or_else(none)?;
    transfers.reads.payment(id).await.map_err(postgres_away)?.ok_or_else(none)
}

/// Whether a payment has ended as it is wanted.
///
/// # Errors
/// It has ended otherwise.
fn is_over(wanted: &EndWanted, payment: &RechargePayment) -> Result<bool, Refusal> {
    if wanted.how.is_done(wanted.user_id.and_then(UserId::new), payment) {
        return Ok(true);
    }
    if payment.disposition == Disposition::Held {
        return Ok(false);
    }
    let state = payment.disposition.name();
    let code = match wanted.how {
        PaymentEnd::Return => Code::NotReturnable,
        _ => Code::InvalidRequest,
    };
    let message = format!("The payment is {state}: nothing was done.");
    Err(Refusal::because(code, message).with_status(StatusCode::CONFLICT))
}

/// Checks whether a HELD payment can end so. The worker checks it again on its own rows.
async fn check(
    transfers: &Transfers,
    wanted: &EndWanted,
    payment: &RechargePayment,
) -> Result<(), Refusal> {
    if wanted.how != PaymentEnd::Credit {
        return match (wanted.how, payment.recharge) {
            (PaymentEnd::Return | PaymentEnd::Dismiss, None) => {
                check_lost_order(transfers, payment).await
            }
            _ => Ok(()),
        };
    }
    if payment.amount.is_none() || payment.cause == Some(HeldCause::Currency) {
        return Err(invalid("No asset stands for this payment: return it, or dismiss it."));
    }
    if payment.cause == Some(HeldCause::PartReturned) {
        return Err(invalid("The channel has given a part of this payment back."));
    }
    match (payment.recharge, wanted.user_id) {
        (Some(_), None) => return Ok(()),
        (Some(_), Some(_)) => {
            return Err(invalid("user_id is for a payment without an order: leave it out."));
        }
        (None, None) => {
            return Err(invalid("The payment has no order: name the user_id, or rematch it."));
        }
        (None, Some(_)) => {}
    }
    if !matches!(payment.cause, Some(HeldCause::Unmatched | HeldCause::ReturnRefused)) {
        let cause = payment.cause.map_or("unknown", HeldCause::name);
        return Err(invalid(format!("A payment that is held as {cause} goes to no user_id.")));
    }
    check_named_order(transfers, payment).await
}

/// A payment without an order is credited to no user while the order that it names is here, or was
/// credited: a repair may have restored either since.
async fn check_named_order(
    transfers: &Transfers,
    payment: &RechargePayment,
) -> Result<(), Refusal> {
    let Some(id) = RechargeId::parse(&payment.merchant_no) else { return Ok(()) };
    let refused = |what: String| {
        Err(Refusal::because(Code::InvalidRequest, what).with_status(StatusCode::CONFLICT))
    };
    let key = recharge_credit(id);
    if transfers.reads.external_is_recorded(&key).await.map_err(postgres_away)? {
        return refused(format!("The order {id} was credited before: {key} is recorded."));
    }
    let order = transfers.reads.recharge(id).await.map_err(postgres_away)?;
    match order.filter(|order| order.channel == payment.channel) {
        Some(_) => refused(format!("The order {id} is here: rematch the payment.")),
        None => Ok(()),
    }
}

/// A payment without an order does not go back, and is not put aside, while the order that it names
/// is lost behind a restore and was credited: its user may have this very money.
async fn check_lost_order(transfers: &Transfers, payment: &RechargePayment) -> Result<(), Refusal> {
    let Some(id) = RechargeId::parse(&payment.merchant_no) else { return Ok(()) };
    let key = recharge_credit(id);
    if !transfers.reads.is_lost_key(&key).await.map_err(postgres_away)? {
        return Ok(());
    }
    let what = format!(
        "The order {id} was credited before, and is lost here ({key}): {RECOVER_NEXT}, or rematch \
         the payment once the order is back."
    );
    Err(Refusal::because(Code::NotReturnable, what).with_status(StatusCode::CONFLICT))
}

impl EndWanted {
    /// Ends the payment, and answers as it stands then.
    pub(super) async fn carry_out(self, service: &Service, note: AuditNote) -> Outcome {
        let (desk, transfers) = (desk(service)?, &service.transfers);
        let payment = find(transfers, &self.payment_id).await?;
        if is_over(&self, &payment)? {
            return told(transfers, &payment, true, &note).await;
        }
        check(transfers, &self, &payment).await?;
        let facts = match self.how {
            PaymentEnd::Rematch => Some(facts_now(desk, transfers, &payment).await?),
            _ => None,
        };
        audit(transfers, &self, &payment, &note).await?;
        let recharges = &desk.recharges;
        let user = self.user_id.and_then(UserId::new);
        let answer = match (self.how, facts) {
            (PaymentEnd::Credit, _) => {
                recharges.ended(&payment, HeldEnd::Credit, user, &note.actor).await
            }
            (PaymentEnd::Return, _) => {
                let back = HeldEnd::Return(recharges.return_id());
                recharges.ended(&payment, back, None, &note.actor).await
            }
            (PaymentEnd::Dismiss, _) => {
                recharges.ended(&payment, HeldEnd::Dismiss, None, &note.actor).await
            }
            (PaymentEnd::Rematch, Some(facts)) => {
                let terms = &open(desk, &payment.channel)?.terms;
                recharges.rematched(terms, &facts, &note.actor).await
            }
            (PaymentEnd::Rematch, None) => return Err(Code::SystemError.into()),
        };
        let ended = answer.map_err(rejected)?.payment;
        let ended = ended.ok_or_else(|| Refusal::from(Code::SystemError))?;
        if let Some(order) = ended.recharge {
            desk.till.look(order);
        }
        // A rematch may leave it HELD, and says why.
        if self.how != PaymentEnd::Rematch && !self.how.is_done(user, &ended) {
            is_over(&self, &ended)?;
            let message = "The payment has changed meanwhile: look at it again.";
            let refusal = Refusal::because(Code::InvalidRequest, message);
            return Err(refusal.with_status(StatusCode::CONFLICT));
        }
        told(transfers, &ended, false, &note).await
    }
}

/// The facts of a payment, as its channel tells them now: what it has given back since counts.
async fn facts_now(
    desk: &RechargeDesk,
    transfers: &Transfers,
    payment: &RechargePayment,
) -> Result<Facts, Refusal> {
    let open = open(desk, &payment.channel)?;
    // A number that names an intent finds it; other channels take the merchant number alone.
    let references = vec![payment.trade_no.clone()];
    let queried = query_channel(&open, payment.merchant_no.clone(), references, transfers).await;
    let word = match queried {
        Queried::Paid(all) => {
            let same = |facts: &Facts| facts.trade_no == payment.trade_no;
            match all.into_iter().find(same) {
                Some(facts) => return Ok(facts),
                None => "another payment of the order, and not this one",
            }
        }
        Queried::Open => "that the order is open",
        Queried::Closed => "that the order is closed",
        Queried::Absent => "that it does not know the order",
        Queried::Unknown(doubt) => {
            let message = format!("The channel {} was asked: {doubt}. Try again.", payment.channel);
            return Err(Refusal::because(Code::SystemError, message));
        }
    };
    let message = format!("The channel {} says {word}: nothing was done.", payment.channel);
    Err(Refusal::because(Code::InvalidRequest, message).with_status(StatusCode::CONFLICT))
}

/// Writes the audit row of an end, before it is done.
async fn audit(
    transfers: &Transfers,
    wanted: &EndWanted,
    payment: &RechargePayment,
    note: &AuditNote,
) -> Result<(), Refusal> {
    let AuditNote { actor, reason, .. } = note;
    let (action, id) = (format!("payment {}", wanted.how.name()), payment.id.to_string());
    let cause = payment.cause.map_or("none", HeldCause::name);
    let order = payment.recharge.map_or_else(|| "no order".to_owned(), |id| id.to_string());
    let user = wanted.user_id.map_or_else(String::new, |user| format!(", to user {user}"));
    let key = wanted.idem_key.as_ref().map_or_else(String::new, |key| format!(", key {key}"));
    let EndWanted { channel, trade_no, minor_units, currency, .. } = wanted;
    let detail = format!(
        "{channel} {trade_no}, {minor_units} minor units of {currency}, {cause}, {order}{user}{key}"
    );
    let audit = transfers.admin.audit(actor, &action, &id, &detail, reason);
    audit.await.map_err(postgres_away)?;
    warn!(actor, reason, payment_id = id, action, detail, "an operator ends a payment");
    Ok(())
}

/// The payment as it stands.
async fn told(
    transfers: &Transfers,
    payment: &RechargePayment,
    replayed: bool,
    note: &AuditNote,
) -> Outcome {
    let owner = match payment.recharge {
        Some(id) => transfers.reads.recharge(id).await.ok().flatten().map(|order| order.user),
        None => None,
    };
    let catalog = transfers.reads.catalog();
    let body = PaymentBody::new(payment, owner, &catalog, now(transfers));
    let mut answer = json(StatusCode::OK, &body, &note.request_id);
    if replayed {
        mark_replayed(&mut answer);
    }
    Ok(answer)
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;
    use crate::recharge::payment::SeenBy;
    use domain::amount::Amount;
    use domain::asset::AssetId;

    fn payment(disposition: Disposition, user: Option<u64>) -> RechargePayment {
        let at = Timestamp::UNIX_EPOCH;
        RechargePayment {
            id: PaymentId::of("wechat", "42"),
            channel: "wechat".to_owned(),
            trade_no: "42".to_owned(),
            merchant_no: "wrc_01ARZ3NDEKTSV4RRFFQ69G5FAV".to_owned(),
            recharge: None,
            ordinal: None,
            user: user.and_then(UserId::new),
            minor_units: 100,
            currency: "CNY".to_owned(),
            asset: AssetId(6),
            amount: Amount::new(100),
            disposition,
            cause: Some(HeldCause::Unmatched),
            seen_by: SeenBy::Callback,
            paid_at: at,
            at,
            updated_at: at,
            version: 1,
        }
    }

    fn wanted(how: PaymentEnd, user_id: Option<u64>) -> EndWanted {
        let payment = payment(Disposition::Held, None);
        EndWanted {
            payment_id: payment.id.to_string(),
            how,
            user_id,
            idem_key: None,
            channel: payment.channel,
            trade_no: payment.trade_no,
            minor_units: payment.minor_units,
            currency: payment.currency,
        }
    }

    /// Goal: a repeat of an end is answered, and no other end of an ended payment is.
    #[test]
    fn an_ended_payment_answers_its_own_end_alone() {
        use Disposition::{Credited, Dismissed, Held, Returned, Returning};
        use PaymentEnd::{Credit, Dismiss, Rematch, Return};
        let over = |how, user_id, disposition, user| {
            is_over(&wanted(how, user_id), &payment(disposition, user)).ok()
        };
        for how in [Credit, Return, Dismiss, Rematch] {
            assert_eq!(over(how, None, Held, None), Some(false), "{how:?}");
        }
        assert_eq!(over(Credit, Some(7), Credited, Some(7)), Some(true));
        assert_eq!(over(Credit, Some(8), Credited, Some(7)), None, "another user");
        for (how, disposition) in
            [(Return, Returning), (Return, Returned), (Dismiss, Dismissed), (Rematch, Credited)]
        {
            assert_eq!(over(how, None, disposition, None), Some(true), "{how:?}");
        }
        for (how, disposition) in [
            (Credit, Returning),
            (Credit, Dismissed),
            (Return, Credited),
            (Return, Dismissed),
            (Dismiss, Credited),
            (Dismiss, Returned),
        ] {
            let refusal = is_over(&wanted(how, None), &payment(disposition, None));
            let refusal = refusal.expect_err("it has ended otherwise");
            assert_eq!(refusal.status, Some(StatusCode::CONFLICT), "{how:?} {disposition:?}");
        }
    }

    #[test]
    fn a_credit_needs_a_key_and_no_other_end_takes_one() {
        assert!(check_fields(PaymentEnd::Credit, Some(7), Some("key-1")).is_ok());
        for (how, user_id, key) in [
            (PaymentEnd::Credit, None, None),
            (PaymentEnd::Credit, Some(0), Some("key-1")),
            (PaymentEnd::Credit, None, Some("a/b")),
            (PaymentEnd::Return, Some(7), None),
            (PaymentEnd::Dismiss, None, Some("key-1")),
        ] {
            assert!(check_fields(how, user_id, key).is_err(), "{how:?} {user_id:?} {key:?}");
        }
    }

    /// Goal: an approval of a deposit is never read as one of a payment. No key has a blank.
    #[test]
    fn a_subject_of_a_payment_is_no_key() {
        assert!(is_about("payment wpy_01ARZ3NDEKTSV4RRFFQ69G5FAV credit"));
        assert!(!is_about("payment") && !is_about("payment:1"));
        assert!(Cid::new(SUBJECT).is_none());
    }
}
