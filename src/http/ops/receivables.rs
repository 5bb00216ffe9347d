//! Receivables, for operators: found, and each open part recovered from its user, or written off.
//!
//! The idempotency key makes it one action: a repeat is answered by the receivable as it stands.
//! Both move money, so they wait for a second operator wherever a withdrawal does.

use std::sync::Arc;

use hyper::StatusCode;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use tracing::warn;

use super::approvals;
use super::audit_note::{AuditNote, actor, check_reason};
use super::page::{LIMIT_DEFAULT, LIMIT_MAX};
use super::recharge_shown::ReceivableBody;
use super::recharges::desk;
use super::refunds::needed_key;
use super::rejected::rejected;
use crate::approval::Action;
use crate::http::answer::{json, mark_replayed};
use crate::http::auth;
use crate::http::idempotency;
use crate::http::refusal::{Outcome, Refusal, invalid, postgres_away};
use crate::http::request::{Call, number, parameters, query};
use crate::http::service::{Service, Transfers};
use crate::postgres::reads::receivables::ReceivableSearch;
use crate::recharge::ReturnId;
use crate::recharge::returned::Receivable;
use domain::account::UserId;
use domain::code::Code;

#[derive(Serialize)]
struct ListBody {
    receivables: Vec<ReceivableBody>,
    next_cursor: Option<String>,
}

/// `GET /admin/v1/receivables`: oldest first; with `open=true` those of which a part is owed.
pub(super) async fn list(service: &Service, call: &Call) -> Outcome {
    service.intake.authenticate_viewer(call)?;
    desk(service)?;
    let reads = &service.transfers.reads;
    let search = search(call.request.uri().query().unwrap_or(""))?;
    let found = reads.search_receivables(&search).await.map_err(postgres_away)?;
    let catalog = reads.catalog();
    let rows = found.receivables.iter();
    let body = ListBody {
        receivables: rows.map(|row| ReceivableBody::new(row, &catalog)).collect(),
        next_cursor: found.next.map(|(at, id)| format!("{}.{id}", at.as_microsecond())),
    };
    Ok(json(StatusCode::OK, &body, &call.request_id))
}

/// Reads the search from a query.
fn search(query: &str) -> Result<ReceivableSearch, Refusal> {
    let [user, open, limit, cursor] = parameters(query, ["user", "open", "limit", "cursor"])?;
    let user = user.map(|text| {
        let user = auth::user_id(&text).and_then(UserId::new);
        user.ok_or_else(|| invalid("There is no such user."))
    });
    let open = match open.as_deref() {
        None | Some("false") => false,
        Some("true") => true,
        Some(_) => return Err(invalid("open must be true or false.")),
    };
    let limit = limit.map(|text| number("limit", &text, 1..=LIMIT_MAX)).transpose()?;
    let after = cursor.map(|text| {
        let (at, id) = text.split_once('.')?;
        Some((Timestamp::from_microsecond(at.parse().ok()?).ok()?, ReturnId::parse(id)?))
    });
    let wrong_cursor = || invalid("cursor must be the next_cursor of an earlier answer.");
    let after = after.map(|after| after.ok_or_else(wrong_cursor)).transpose()?;
    Ok(ReceivableSearch {
        user: user.transpose()?,
        open,
        after,
        limit: limit.unwrap_or(LIMIT_DEFAULT),
    })
}

/// How an operator ends a receivable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum ReceivableWay {
    /// Its user pays, as far as money is available now.
    Recover,
    /// The open part is a loss.
    WriteOff,
}

impl ReceivableWay {
    fn name(self) -> &'static str {
        match self {
            ReceivableWay::Recover => "recover",
            ReceivableWay::WriteOff => "write-off",
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ReceivableDraft {
    reason: String,
    #[serde(default)]
    idem_key: Option<String>,
}

/// The end of a receivable as an operator asks for it, and as an approval keeps it. The facts of
/// the receivable never change; they are there for the second operator.
#[derive(Clone, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ReceivableWanted {
    return_id: String,
    how: ReceivableWay,
    idem_key: String,
    payment_id: String,
    user_id: u64,
    asset: String,
    /// As it was opened.
    amount: String,
}

/// `POST /admin/v1/receivables/{return_id}/recover` and `write-off`.
pub(super) async fn end(
    service: Arc<Service>,
    how: ReceivableWay,
    parameters: Vec<String>,
    call: Call,
) -> Outcome {
    query(&call, "")?;
    let request_id = call.request_id.clone();
    let caller = service.intake.authenticate_admin(&call)?;
    let header = idempotency::key(&call)?;
    let ReceivableDraft { reason, idem_key } = service.intake.json_body(call).await?;
    check_reason(&reason)?;
    desk(&service)?;
    let idem_key = needed_key(header, idem_key)?;
    let receivable = find(&service.transfers, &parameters[0]).await?;
    let catalog = service.transfers.reads.catalog();
    let symbol = catalog.by_id(receivable.asset).map(|asset| asset.symbol.clone());
    let wanted = ReceivableWanted {
        return_id: receivable.id.to_string(),
        how,
        idem_key,
        payment_id: receivable.payment.to_string(),
        user_id: receivable.user.number(),
        asset: symbol.unwrap_or_default(),
        amount: receivable.amount.text(catalog.precision(receivable.asset)),
    };
    let note = AuditNote { actor: actor(caller), reason, request_id };
    if !service.approvals.need(Action::External) || wanted.is_known(&receivable) {
        return wanted.carry_out(&service, note).await;
    }
    check_open(&receivable)?;
    if service.transfers.halt.is_halted() {
        return Err(Code::ServiceHalted.into());
    }
    let wish = approvals::Wanted {
        action: Action::External,
        subject: &format!("{}{} {}", ReceivableWanted::SUBJECT, receivable.id, wanted.idem_key),
        request: serde_json::to_string(&wanted).expect("plain values"),
        caller,
        reason: &note.reason,
        request_id: &note.request_id,
    };
    approvals::ask(&service, wish).await
}

/// The receivable of the return that a path or an approval names.
async fn find(transfers: &Transfers, id: &str) -> Result<Receivable, Refusal> {
    let none = || Refusal::because(Code::NotFound, "There is no such receivable.");
    let id = ReturnId::parse(id).ok_or_else(none)?;
    transfers.reads.receivable(id).await.map_err(postgres_away)?.ok_or_else(none)
}

/// Checks that something is owed. The worker checks it again on its own row.
fn check_open(receivable: &Receivable) -> Result<(), Refusal> {
    if receivable.open() > 0 {
        return Ok(());
    }
    let message = "Nothing of the receivable is open: nothing was done.";
    Err(Refusal::because(Code::InvalidRequest, message).with_status(StatusCode::CONFLICT))
}

impl ReceivableWanted {
    /// The beginning of the subject of each approval. No idem_key has a blank.
    pub(super) const SUBJECT: &str = "receivable ";

    fn is_known(&self, receivable: &Receivable) -> bool {
        receivable.acts.iter().any(|act| act.idem_key == self.idem_key)
    }

    /// Ends the open part, or as much of it as is available, and answers the receivable. A repeat
    /// moves nothing.
    pub(super) async fn carry_out(self, service: &Service, note: AuditNote) -> Outcome {
        let (desk, transfers) = (desk(service)?, &service.transfers);
        let receivable = find(transfers, &self.return_id).await?;
        let replayed = self.is_known(&receivable);
        if !replayed {
            check_open(&receivable)?;
            self.audit(transfers, &note).await?;
        }
        let (recharges, id, key) = (&desk.recharges, receivable.id, &self.idem_key);
        let ended = match self.how {
            ReceivableWay::Recover => recharges.recover(id, key, &note.actor).await,
            ReceivableWay::WriteOff => recharges.write_off(id, key, &note.actor).await,
        };
        let ended = ended.map_err(rejected)?;
        debug_assert_eq!(ended.id, id, "the act is about it");
        let body = ReceivableBody::new(&ended, &transfers.reads.catalog());
        let mut answer = json(StatusCode::OK, &body, &note.request_id);
        if replayed {
            mark_replayed(&mut answer);
        }
        Ok(answer)
    }

    /// Writes the audit row, before anything is booked.
    async fn audit(&self, transfers: &Transfers, note: &AuditNote) -> Result<(), Refusal> {
        let AuditNote { actor, reason, .. } = note;
        let ReceivableWanted { return_id, how, idem_key, payment_id, user_id, asset, amount } =
            self;
        let action = format!("receivable {}", how.name());
        let detail = format!("{amount} {asset} of user {user_id}, {payment_id}, key {idem_key}");
        let audit = transfers.admin.audit(actor, &action, return_id, &detail, reason);
        audit.await.map_err(postgres_away)?;
        warn!(actor, reason, return_id, action, detail, "an operator ends a receivable");
        Ok(())
    }
}
