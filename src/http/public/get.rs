//! `GET /api/v1/internal_transfer/{req_id}`: one transfer with its history, at once or when it is
//! final.

use std::time::Duration;

use hyper::StatusCode;

use crate::http::answer::json;
use crate::http::refusal::{Outcome, Refusal, postgres_away};
use crate::http::request::{Call, number, query};
use crate::http::service::{Caller, Transfers};
use crate::http::settle::settle;
use crate::http::wire::{DetailBody, FundsAt};
use crate::postgres::reads::Passed;
use crate::postgres::store::{Sought, Transfer};
use domain::code::Code;
use domain::transfer::ReqId;

/// The longest wait for a final state that a client can ask for, milliseconds.
pub(in crate::http) const WAIT_MS_MAX: u32 = 30_000;
/// The part of a request's time that is left, after a wait for a final state, to read and to
/// answer.
pub const END_WAIT_GRACE: Duration = Duration::from_secs(2);
/// Pause between two reads of a transfer that no worker holds.
const FOLLOW_PAUSE: Duration = Duration::from_millis(250);

/// Answers one transfer. With `wait_ms`, waits that long for its final state.
pub(super) async fn get(
    transfers: &Transfers,
    caller: Caller,
    call: &Call,
    req_id: &str,
) -> Outcome {
    let wait_ms = query(call, "wait_ms")?;
    let wait_ms = wait_ms.map(|text| number("wait_ms", &text, 0..=WAIT_MS_MAX)).transpose()?;
    let req_id = ReqId::parse(req_id).ok_or(Code::TransferNotFound)?;
    let mut seen = look(transfers, caller, req_id).await?;
    let wait = Duration::from_millis(wait_ms.unwrap_or(0).into());
    if !wait.is_zero() && !seen.transfer.state.is_terminal() {
        let mut stopping = transfers.stopping.clone();
        tokio::select! {
            () = ended(transfers, &seen.transfer) => {}
            () = transfers.clock.sleep(wait.min(transfers.limits.end_wait_max)) => {}
            // Changed or gone: the server stops.
            _ = stopping.changed() => {}
        }
        seen = look(transfers, caller, req_id).await?;
    }
    let Seen { transfer, funds_at, history } = seen;
    debug_assert_eq!(transfer.intent.req_id, req_id, "the transfer that was asked for");
    let body = DetailBody::new(&transfer, funds_at, history, &transfers.reads.catalog());
    Ok(json(StatusCode::OK, &body, &call.request_id))
}

/// A transfer as its owner, or an operator, may see it.
struct Seen {
    transfer: Transfer,
    funds_at: FundsAt,
    history: Vec<Passed>,
}

async fn look(transfers: &Transfers, caller: Caller, req_id: ReqId) -> Result<Seen, Refusal> {
    let found = transfers.reads.transfer_with_history(req_id).await.map_err(postgres_away)?;
    // Another user's transfer is answered like a missing one: its name alone reveals nothing.
    let (transfer, history) = found
        .filter(|(transfer, _)| caller.sees_everyone() || transfer.intent.user == caller.user)
        .ok_or(Code::TransferNotFound)?;
    let (transfer, funds_at) = settle(&transfers.coordinator, transfer).await?;
    Ok(Seen { transfer, funds_at, history })
}

/// Returns once a transfer has ended.
///
/// Its worker signals the end. PostgreSQL is read only while no worker holds the transfer: after a
/// start, or after a commit with an unknown outcome, until a worker takes it up.
async fn ended(transfers: &Transfers, transfer: &Transfer) {
    let (user, req_id) = (transfer.intent.user, transfer.intent.req_id);
    let sought = Sought::ReqId(req_id);
    loop {
        if let Ok(Some(mut progress)) = transfers.coordinator.follow(user, req_id).await
            // An error: the worker has stopped. The transfer continues after the next start.
            && progress.wait_for(|transfer| transfer.state.is_terminal()).await.is_ok()
        {
            return;
        }
        let found = transfers.reads.transfer(&sought).await;
        if found.is_ok_and(|found| found.is_none_or(|found| found.state.is_terminal())) {
            return;
        }
        transfers.clock.sleep(FOLLOW_PAUSE).await;
    }
}
