//! Transactions, for operators: find those that do not end, see the party that has not answered,
//! have all parties asked at once, abort one that is not decided, have its last participant decide,
//! and end the branch of a service that can never be reached.

use std::sync::Arc;

use hyper::StatusCode;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use tracing::warn;

use super::approvals;
use super::audit_note::{AuditNote, actor, check_reason};
use super::page::{LIMIT_DEFAULT, LIMIT_MAX};
use crate::approval::Action;
use crate::http::answer::{Answer, json};
use crate::http::auth::Owner;
use crate::http::refusal::{Outcome, Refusal, invalid, postgres_away};
use crate::http::request::{Call, number, parameters, query};
use crate::http::service::{Caller, Intake, Service, Transfers};
use crate::http::transaction_answer::{position, transaction_state};
use crate::http::transaction_body::{TransactionOperatorBody, TransactionShownBody};
use crate::postgres::reads::transactions::TransactionFilter;
use crate::transaction::{Did, TransactionRow, TransactionState, TransactionVerdict};
use crate::transactions::abandon::Judged;
use crate::transactions::{Abandon, TransactionReply};
use domain::code::Code;
use domain::transfer::{Cid, ReqId};

/// The service's clock.
fn now(transfers: &Transfers) -> Timestamp {
    Timestamp::from_nanosecond(transfers.clock.now_ns().into()).expect("any u64 of ns is in range")
}

/// `GET /admin/v1/transactions`: transactions that are not final, or those of a state or a name.
pub(super) async fn list(intake: &Intake, transfers: &Transfers, call: &Call) -> Outcome {
    intake.authenticate_viewer(call)?;
    let (now, stuck_ms) = (now(transfers), transfers.limits.stuck_ms);
    let filter = parse(call.request.uri().query().unwrap_or(""), stuck_ms)?;
    let page = transfers.reads.transactions(&filter).await.map_err(postgres_away)?;
    #[derive(Serialize)]
    struct Body {
        transactions: Vec<TransactionOperatorBody>,
        next_cursor: Option<String>,
    }
    let rows = page.transactions.iter();
    let body = Body {
        transactions: rows.map(|row| TransactionOperatorBody::new(row, now, stuck_ms)).collect(),
        next_cursor: page.next.map(|next| next.to_string()),
    };
    Ok(json(StatusCode::OK, &body, &call.request_id))
}

/// Reads the filter from a query.
fn parse(query: &str, stuck_ms: u64) -> Result<TransactionFilter, Refusal> {
    let names = ["stuck", "state", "owner", "tx_id", "ended", "limit", "cursor"];
    let [stuck, state, owner, tx_id, ended, limit, cursor] = parameters(query, names)?;
    let flag = |name: &str, value: Option<&str>| match value {
        None | Some("false") => Ok(false),
        Some("true") => Ok(true),
        Some(_) => Err(invalid(format!("{name} must be true or false."))),
    };
    let (stuck, ended) = (flag("stuck", stuck.as_deref())?, flag("ended", ended.as_deref())?);
    let state = state.map(|name| transaction_state(&name)).transpose()?;
    let sane = |name: &str, text: &str| match Cid::new(text) {
        Some(_) => Ok(text.to_owned()),
        None => Err(invalid(format!("{name} must be 1 to 64 of A-Z a-z 0-9 _ . : -"))),
    };
    let owner = owner.map(|text| sane("owner", &text)).transpose()?;
    let tx_id = tx_id.map(|text| sane("tx_id", &text)).transpose()?;
    let limit = limit.map(|text| number("limit", &text, 1..=LIMIT_MAX)).transpose()?;
    let before = cursor.map(|text| position(&text)).transpose()?;
    if stuck && (ended || state.is_some_and(TransactionState::is_terminal)) {
        return Err(invalid("A transaction that has ended is never stuck."));
    }
    let unfinished = state.is_none() && !ended && tx_id.is_none();
    Ok(TransactionFilter {
        owner,
        tx_id,
        state,
        unfinished,
        stuck_ms: stuck.then_some(stuck_ms),
        since: None,
        until: None,
        before,
        limit: limit.unwrap_or(LIMIT_DEFAULT),
    })
}

/// The transaction with the id of a path.
async fn find(transfers: &Transfers, id: &str) -> Result<TransactionRow, Refusal> {
    let id = ReqId::parse(id).ok_or(Code::TransactionNotFound)?;
    let found = transfers.reads.transaction(id).await.map_err(postgres_away)?;
    found.ok_or_else(|| Code::TransactionNotFound.into())
}

/// `GET /admin/v1/transactions/{transaction_id}`: all that PostgreSQL has of a transaction.
pub(super) async fn show(intake: &Intake, transfers: &Transfers, id: &str, call: &Call) -> Outcome {
    intake.authenticate_viewer(call)?;
    query(call, "")?;
    let row = find(transfers, id).await?;
    let catalog = transfers.reads.catalog();
    let stuck_ms = transfers.limits.stuck_ms;
    let body = TransactionShownBody::new(&row, now(transfers), stuck_ms, &catalog);
    Ok(json(StatusCode::OK, &body, &call.request_id))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ReasonDraft {
    reason: String,
}

/// Reads an action about a transaction, and finds it.
async fn attended(
    service: &Service,
    id: &str,
    call: Call,
) -> Result<(Caller, TransactionRow, AuditNote), Refusal> {
    let request_id = call.request_id.clone();
    let caller = service.intake.authenticate_admin(&call)?;
    query(&call, "")?;
    let ReasonDraft { reason } = service.intake.json_body(call).await?;
    check_reason(&reason)?;
    let row = find(&service.transfers, id).await?;
    Ok((caller, row, AuditNote { actor: actor(caller), reason, request_id }))
}

/// Writes the audit row of an action, before it is done.
async fn audit(
    transfers: &Transfers,
    row: &TransactionRow,
    action: &str,
    note: &AuditNote,
) -> Result<(), Refusal> {
    let AuditNote { actor, reason, .. } = note;
    let (id, name) = (row.id.to_string(), &row.name);
    let detail = format!("{} {}, {}", name.owner, name.tx_id.as_str(), row.state.name());
    let audit = transfers.admin.audit(actor, action, &id, &detail, reason);
    audit.await.map_err(postgres_away)?;
    warn!(actor, reason, transaction = id, action, "an operator acts on a transaction");
    Ok(())
}

/// `POST …/retry`: each party that has not answered is asked now.
pub(super) async fn retry(service: Arc<Service>, parameters: Vec<String>, call: Call) -> Outcome {
    let (_, row, note) = attended(&service, &parameters[0], call).await?;
    if row.state.is_terminal() {
        let state = row.state.name();
        let message = format!("The transaction is {state}: there is nothing to retry.");
        return Err(Refusal::because(Code::NotResolvable, message));
    }
    audit(&service.transfers, &row, "transaction retry", &note).await?;
    let reply = service.transactions.worker.retry(row.id).await?;
    Ok(told(&service.transfers, &reply, &note))
}

/// `POST …/abort`: a transaction that is not decided is aborted. To abort the aborted is the same
/// answer.
pub(super) async fn abort(service: Arc<Service>, parameters: Vec<String>, call: Call) -> Outcome {
    let (caller, row, note) = attended(&service, &parameters[0], call).await?;
    let undecided = row.state.verdict().is_none();
    if undecided && service.approvals.need(Action::Transaction) {
        return ask(&service, (caller, &row, &note), &Attended::default()).await;
    }
    abort_now(&service, row, note).await
}

/// `POST …/resolve`: the last participant records a refusal unless it has decided, and its answer
/// is taken.
pub(super) async fn resolve(service: Arc<Service>, parameters: Vec<String>, call: Call) -> Outcome {
    let (caller, row, note) = attended(&service, &parameters[0], call).await?;
    check_deciding(&row)?;
    if service.approvals.need(Action::Transaction) {
        let wanted = Attended { resolve: true, abandon: None };
        return ask(&service, (caller, &row, &note), &wanted).await;
    }
    resolve_now(&service, row, note).await
}

/// `POST …/abandon`: the end of a service's branch by the word of operators. It always needs two.
pub(super) async fn abandon(service: Arc<Service>, parameters: Vec<String>, call: Call) -> Outcome {
    let request_id = call.request_id.clone();
    let caller = service.intake.authenticate_admin(&call)?;
    query(&call, "")?;
    let AbandonDraft { reason, participant, round, did } = service.intake.json_body(call).await?;
    check_reason(&reason)?;
    let row = find(&service.transfers, &parameters[0]).await?;
    let wanted = Abandoned { participant, round, did };
    let note = AuditNote { actor: actor(caller), reason, request_id };
    match wanted.word(&note)?.judge(&row)? {
        Judged::Already => Ok(told(&service.transfers, &done(row), &note)),
        Judged::Move(_) => {
            let wanted = Attended { resolve: false, abandon: Some(wanted) };
            ask(&service, (caller, &row, &note), &wanted).await
        }
    }
}

/// Asks for the approval of an action.
async fn ask(
    service: &Service,
    (caller, row, note): (Caller, &TransactionRow, &AuditNote),
    wanted: &Attended,
) -> Outcome {
    let subject = match &wanted.abandon {
        Some(Abandoned { participant, round, .. }) => format!("{}:{participant}:{round}", row.id),
        None => row.id.to_string(),
    };
    let wish = approvals::Wanted {
        action: Action::Transaction,
        subject: &subject,
        request: serde_json::to_string(wanted).expect("plain words"),
        caller,
        reason: &note.reason,
        request_id: &note.request_id,
    };
    approvals::ask(service, wish).await
}

/// An action about a transaction, as an approval keeps it: an abort, unless it says more.
#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Attended {
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    resolve: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    abandon: Option<Abandoned>,
}

/// The branch that ends by the word of operators.
#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct Abandoned {
    participant: String,
    round: u8,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    did: Option<String>,
}

impl Abandoned {
    /// The wish, in the name of the note's operators.
    fn word(&self, note: &AuditNote) -> Result<Abandon, Refusal> {
        let did = match self.did.as_deref() {
            None => None,
            Some(name) => match Did::from_name(name) {
                Some(did) => Some(did),
                None => return Err(invalid("did must be committed or refused.")),
            },
        };
        Ok(Abandon {
            participant: self.participant.clone(),
            round: self.round,
            did,
            by: note.actor.clone(),
            reason: note.reason.clone(),
        })
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AbandonDraft {
    reason: String,
    participant: String,
    round: u8,
    #[serde(default)]
    did: Option<String>,
}

/// Carries an action out in the name of both operators. `subject`: a transaction, or a branch.
pub(super) async fn carry_out(
    service: &Service,
    subject: &str,
    wanted: Attended,
    note: AuditNote,
) -> Outcome {
    let id = subject.split(':').next().unwrap_or_default();
    let row = find(&service.transfers, id).await?;
    match wanted {
        Attended { abandon: Some(wanted), .. } => abandon_now(service, row, &wanted, note).await,
        Attended { resolve: true, .. } => resolve_now(service, row, note).await,
        Attended { .. } => abort_now(service, row, note).await,
    }
}

fn check_deciding(row: &TransactionRow) -> Result<(), Refusal> {
    if row.state == TransactionState::Deciding {
        return Ok(());
    }
    let message = format!("The transaction is {}, and not DECIDING.", row.state.name());
    Err(Refusal::because(Code::NotResolvable, message))
}

async fn resolve_now(service: &Service, row: TransactionRow, note: AuditNote) -> Outcome {
    check_deciding(&row)?;
    audit(&service.transfers, &row, "transaction resolve", &note).await?;
    let wait = service.transfers.limits.transfer_wait;
    let reply = service.transactions.worker.resolve(row.id, wait).await?;
    Ok(told(&service.transfers, &reply, &note))
}

async fn abandon_now(
    service: &Service,
    row: TransactionRow,
    wanted: &Abandoned,
    note: AuditNote,
) -> Outcome {
    let Service { transfers, transactions, .. } = service;
    let word = wanted.word(&note)?;
    // A repeat behind its end is answered alike.
    if word.judge(&row)? == Judged::Already {
        return Ok(told(transfers, &done(row), &note));
    }
    let action = match word.did {
        None => format!("branch abandon {}:{}", word.participant, word.round),
        Some(did) => {
            format!("branch abandon {}:{}, {}", word.participant, word.round, did.name())
        }
    };
    audit(transfers, &row, &action, &note).await?;
    let wait = transfers.limits.transfer_wait;
    let reply = transactions.worker.abandon(row.id, word, wait).await?;
    Ok(told(transfers, &reply, &note))
}

/// The answer about a row that stands as it is wanted.
fn done(row: TransactionRow) -> TransactionReply {
    TransactionReply { row, replayed: true, settled: true }
}

async fn abort_now(service: &Service, row: TransactionRow, note: AuditNote) -> Outcome {
    let Service { transfers, transactions, .. } = service;
    if row.state.verdict() == Some(TransactionVerdict::Commit) {
        let message = format!("The transaction is {}.", row.state.name());
        return Err(Refusal::because(Code::TransactionDecided, message));
    }
    audit(transfers, &row, "transaction abort", &note).await?;
    let (by, reason) = (note.actor.clone(), Some(note.reason.clone()));
    let wait = transfers.limits.transfer_wait;
    let reply = transactions.worker.abort(row.name, by, reason, wait).await?;
    Ok(told(transfers, &reply, &note))
}

fn told(transfers: &Transfers, reply: &TransactionReply, note: &AuditNote) -> Answer {
    let stuck_ms = transfers.limits.stuck_ms;
    let body = TransactionOperatorBody::new(&reply.row, now(transfers), stuck_ms);
    json(StatusCode::OK, &body, &note.request_id)
}

/// The name of an owner in a request.
pub(super) fn owner_of(name: &str) -> Result<Owner, Refusal> {
    Owner::new(name).ok_or_else(|| invalid("owner must be 1 to 64 of A-Z a-z 0-9 _ . : -"))
}
