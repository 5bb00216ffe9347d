//! Transactions of services: rounds, decisions and reads.
//!
//! A round passes these steps: its form, the halt, participants and legs, the worker. A refusal
//! that may change with time is given only if the worker does not know the round: a repeat is
//! answered by its present state.

use std::time::Duration;

use hyper::StatusCode;

use super::get::WAIT_MS_MAX;
use super::list::{LIMIT_DEFAULT, LIMIT_MAX, moment};
use super::routes::Public;
use crate::audit::halt::check_reason;
use crate::http::answer::json;
use crate::http::auth::Owner;
use crate::http::refusal::{Outcome, Refusal, invalid, postgres_away};
use crate::http::request::{Call, number, parameters, query};
use crate::http::service::{Service, Transfers};
use crate::http::transaction_answer::{position, told, transaction_state};
use crate::http::transaction_body::{TransactionBody, TransactionsBody};
use crate::postgres::reads::transactions::TransactionFilter;
use crate::transaction::{ROUNDS_MAX, TransactionName, TransactionState};
use crate::transactions::{TransactionAnswer, TransactionRefusal};
use crate::validation::transaction::{
    AbortDraft, CommitDraft, PrepareDraft, RoundForm, TransactionDraft, transaction_name,
};
use domain::code::Code;
use domain::transfer::Cid;

/// Answers one request of a service. `tx_id`: of the path, if it has one.
pub(super) async fn answer(
    service: &Service,
    route: Public,
    tx_id: Option<&str>,
    call: Call,
) -> Outcome {
    let owner = service.intake.authenticate_service(&call)?;
    let tx_id = tx_id.unwrap_or_default();
    match route {
        Public::ListTransactions => list(service, owner, &call).await,
        Public::GetTransaction => get(service, owner, tx_id, &call).await,
        Public::Prepare => {
            query(&call, "")?;
            let request_id = call.request_id.clone();
            let draft: PrepareDraft = service.intake.json_body(call).await?;
            let wait = longest(&service.transfers, draft.wait_ms)?;
            let open_max_ms = service.transactions.open_max_ms;
            let form = RoundForm::new(owner.as_str(), tx_id, draft, open_max_ms)?;
            round(service, form, wait, &request_id).await
        }
        Public::Commit => commit(service, owner, tx_id, call).await,
        Public::Abort => abort(service, owner, tx_id, call).await,
        _ => {
            query(&call, "")?;
            let request_id = call.request_id.clone();
            let draft: TransactionDraft = service.intake.json_body(call).await?;
            let wait = longest(&service.transfers, draft.wait_ms)?;
            let open_max_ms = service.transactions.open_max_ms;
            let form = RoundForm::whole(owner.as_str(), draft, open_max_ms)?;
            round(service, form, wait, &request_id).await
        }
    }
}

/// How long POST waits.
fn longest(transfers: &Transfers, wait_ms: Option<u32>) -> Result<Duration, Refusal> {
    let limits = transfers.limits;
    match wait_ms {
        None => Ok(limits.transfer_wait),
        Some(wait_ms @ 0..=WAIT_MS_MAX) => {
            Ok(Duration::from_millis(wait_ms.into()).min(limits.end_wait_max))
        }
        Some(_) => Err(invalid(format!("wait_ms must be 0 to {WAIT_MS_MAX}."))),
    }
}

/// `POST /api/v1/transactions` and `…/{tx_id}/prepare`.
pub(in crate::http) async fn round(
    service: &Service,
    form: RoundForm,
    wait: Duration,
    request_id: &str,
) -> Outcome {
    let Service { transfers, transactions, .. } = service;
    let catalog = transfers.reads.catalog();
    let checked = form.round(&catalog, transfers.limits.units_max, &transactions.purposes);
    let refusal = if transfers.halt.is_halted() {
        Some(Refusal::from(Code::ServiceHalted))
    } else {
        let first = form.check_participants(&transactions.participants);
        let first = first.and(form.check_outside(&transactions.outside_owners));
        let first = first.and_then(|()| form.check_followers(&transactions.followers));
        let all = first.and(checked.as_ref().map(drop).map_err(Clone::clone));
        let all = all.and(form.check_purposes(&transactions.purposes));
        all.and(form.check_assets(&catalog)).err().map(Refusal::from)
    };
    let round = match (checked, refusal) {
        (Ok(round), None) => round,
        (Err(_), Some(refusal)) => return Err(refusal),
        (Ok(round), Some(refusal)) if is_known(service, &form).await? => {
            drop(refusal);
            round
        }
        (_, Some(refusal)) => return Err(refusal),
        (Err(error), None) => return Err(error.into()),
    };
    let (name, number) = (round.name.clone(), round.round);
    let asked = transactions.worker.round(round, wait);
    let reply = until_stop(service, name, asked).await?;
    Ok(told(&reply, Some(number), request_id))
}

/// Whether a round was accepted before. Nothing takes it back.
pub(in crate::http) async fn is_known(
    service: &Service,
    form: &RoundForm,
) -> Result<bool, Refusal> {
    match service.transactions.worker.get(form.name.clone(), Duration::ZERO).await {
        Ok(reply) => Ok(reply.row.rounds >= form.round),
        Err(TransactionRefusal { code: Code::TransactionNotFound, .. }) => Ok(false),
        // A final refusal could be wrong.
        Err(refusal) => Err(refusal.into()),
    }
}

/// `POST …/commit`.
async fn commit(service: &Service, owner: Owner, tx_id: &str, call: Call) -> Outcome {
    query(&call, "")?;
    let request_id = call.request_id.clone();
    let CommitDraft { rounds, wait_ms } = service.intake.json_body(call).await?;
    let wait = longest(&service.transfers, wait_ms)?;
    let rounds = rounds.map(|rounds| {
        let known = u8::try_from(rounds).ok().filter(|rounds| (1..=ROUNDS_MAX).contains(rounds));
        known.ok_or_else(|| invalid(format!("rounds must be 1 to {ROUNDS_MAX}.")))
    });
    let rounds = rounds.transpose()?;
    let name = transaction_name(owner.as_str(), tx_id)?;
    let asked = service.transactions.worker.commit(name.clone(), rounds, wait);
    let reply = until_stop(service, name, asked).await?;
    Ok(told(&reply, None, &request_id))
}

/// `POST …/abort`.
async fn abort(service: &Service, owner: Owner, tx_id: &str, call: Call) -> Outcome {
    query(&call, "")?;
    let request_id = call.request_id.clone();
    let AbortDraft { reason, wait_ms } = service.intake.json_body(call).await?;
    let wait = longest(&service.transfers, wait_ms)?;
    if let Some(reason) = &reason
        && !check_reason(reason)
    {
        return Err(invalid("reason must be 1 to 500 printable characters."));
    }
    let name = transaction_name(owner.as_str(), tx_id)?;
    let by = owner.to_string();
    let asked = service.transactions.worker.abort(name.clone(), by, reason, wait);
    let reply = until_stop(service, name, asked).await?;
    Ok(told(&reply, None, &request_id))
}

/// Waits for the worker's answer. When the server stops, answers with the transaction as it is.
async fn until_stop(
    service: &Service,
    name: TransactionName,
    asked: impl Future<Output = TransactionAnswer>,
) -> TransactionAnswer {
    let mut stopping = service.transfers.stopping.clone();
    tokio::select! {
        answer = asked => answer,
        // Changed or gone: the server stops.
        _ = stopping.changed() => {
            let seen = service.transactions.worker.get(name, Duration::ZERO).await;
            seen.map_err(|refusal| TransactionRefusal {
                // The request may be on its way to the worker.
                code: Code::SystemError,
                unknown: true,
                ..refusal
            })
        }
    }
}

/// `GET /api/v1/transactions/{tx_id}`. Another owner's transaction has another name: it is not
/// found.
async fn get(service: &Service, owner: Owner, tx_id: &str, call: &Call) -> Outcome {
    let wait_ms = query(call, "wait_ms")?;
    let wait_ms = wait_ms.map(|text| number("wait_ms", &text, 0..=WAIT_MS_MAX)).transpose()?;
    let wait = longest(&service.transfers, Some(wait_ms.unwrap_or(0)))?;
    let tx_id = Cid::new(tx_id).ok_or(Code::TransactionNotFound)?;
    let name = TransactionName { owner: owner.to_string(), tx_id };
    let asked = service.transactions.worker.get(name.clone(), wait);
    let reply = until_stop(service, name, asked).await?;
    Ok(json(StatusCode::OK, &TransactionBody::from(&reply.row), &call.request_id))
}

/// `GET /api/v1/transactions`: the owner's own ones, newest first.
async fn list(service: &Service, owner: Owner, call: &Call) -> Outcome {
    let Service { transfers, transactions, .. } = service;
    let filter = parse(call.request.uri().query().unwrap_or(""), owner)?;
    let mut page = transfers.reads.transactions(&filter).await.map_err(postgres_away)?;
    for row in &mut page.transactions {
        // A crash may still take this decision back: the worker shows it once it is sealed.
        if row.state == TransactionState::Committed && !row.sealed {
            let reply = transactions.worker.get(row.name.clone(), Duration::ZERO).await?;
            *row = reply.row;
        }
    }
    let body = TransactionsBody {
        transactions: page.transactions.iter().map(TransactionBody::from).collect(),
        next_cursor: page.next.map(|next| next.to_string()),
    };
    Ok(json(StatusCode::OK, &body, &call.request_id))
}

/// Reads the filter from a query.
fn parse(query: &str, owner: Owner) -> Result<TransactionFilter, Refusal> {
    let names = ["state", "since", "until", "limit", "cursor"];
    let [state, since, until, limit, cursor] = parameters(query, names)?;
    let state = state.map(|name| transaction_state(&name)).transpose()?;
    let since = since.map(|text| moment("since", &text)).transpose()?;
    let until = until.map(|text| moment("until", &text)).transpose()?;
    let limit = limit.map(|text| number("limit", &text, 1..=LIMIT_MAX)).transpose()?;
    let before = cursor.map(|text| position(&text)).transpose()?;
    Ok(TransactionFilter {
        owner: Some(owner.to_string()),
        state,
        since,
        until,
        before,
        limit: limit.unwrap_or(LIMIT_DEFAULT),
        ..TransactionFilter::default()
    })
}
