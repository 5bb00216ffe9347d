//! The public routes: transfers, balances, assets, and their description; lists are in `list.rs`.

pub(super) mod list;

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::Incoming;
use hyper::header::HeaderValue;
use hyper::{Method, Request, StatusCode};
use tracing::{debug_span, error, info};

use super::service::{
    Call, Caller, Matched, Outcome, Route, Routes, Service, invalid, number, parse, query,
};
use super::wire::{
    self, Answer, AssetBody, AssetsBody, BalanceBody, BalancesBody, DetailBody, FundsAt, Refusal,
    TransferBody, json, tell_limits, text,
};
use super::{events, idempotency, openapi};
use crate::config::http::BESIDE_ACCEPT_MS;
use crate::coordinator::{Rejection, Request as TransferRequest};
use crate::postgres::reads::Passed;
use crate::postgres::store::{Sought, Transfer, differing_fields, fingerprint};
use crate::quota::{self, Standing};
use crate::telemetry::{self, chain, count_limited};
use crate::validation::Draft;
use domain::account::UserId;
use domain::amount::Amount;
use domain::asset::{Asset, Catalog};
use domain::code::Code;
use domain::transfer::{Cid, ReqId};

/// Beyond the wait for an accept: the worker's own word on it comes within this, and a last look takes no longer.
const ACCEPT_GRACE: Duration = Duration::from_secs(1);

/// What its user has used, the worker's word, the last look.
const _: () = assert!(
    quota::PATIENCE.as_millis() + 2 * ACCEPT_GRACE.as_millis() <= BESIDE_ACCEPT_MS as u128,
    "a request would be over before its wait for an accept"
);

/// Header that tells a replayed answer from a first one.
const IDEMPOTENT_REPLAYED: &str = "idempotent-replayed";

/// The longest wait for a final state that GET can be asked for, milliseconds.
pub(super) const WAIT_MS_MAX: u32 = 30_000;
/// What is left of a request's time, after a wait for a final state, to read and to answer.
pub const END_WAIT_GRACE: Duration = Duration::from_secs(2);
/// Between two looks for a transfer that no worker has in hand.
const FOLLOW_PAUSE: Duration = Duration::from_millis(250);

/// The public routes. Each is described in [`openapi`].
#[derive(Clone, Copy)]
pub(super) enum Public {
    Post,
    List,
    Get,
    Balances,
    Assets,
    Events,
    OpenApi,
}

pub(super) static ROUTES: LazyLock<Routes<Public>> = LazyLock::new(|| {
    static TABLE: &[Route<Public>] = &[
        Route { pattern: "/api/v1/internal_transfer", method: Method::POST, route: Public::Post },
        Route { pattern: "/api/v1/internal_transfers", method: Method::GET, route: Public::List },
        Route {
            pattern: "/api/v1/internal_transfer/{req_id}",
            method: Method::GET,
            route: Public::Get,
        },
        Route { pattern: "/api/v1/balances", method: Method::GET, route: Public::Balances },
        Route { pattern: "/api/v1/assets", method: Method::GET, route: Public::Assets },
        Route { pattern: "/api/v1/events", method: Method::GET, route: Public::Events },
        Route { pattern: "/openapi.json", method: Method::GET, route: Public::OpenApi },
    ];
    Routes::new(TABLE)
});

/// Answers one request of the public listener.
pub async fn answer(service: Arc<Service>, request: Request<Incoming>) -> Answer {
    let call = service.intake.receive(request);
    let handler = |matched: Matched<Public>, call: Call| async move {
        if let Public::OpenApi = matched.route {
            return get_openapi(&call);
        }
        let caller = service.intake.authenticate(&call)?;
        match matched.route {
            Public::Post => post_transfer(&service, caller, call).await,
            Public::List => list::list(&service, caller, &call).await,
            Public::Get => get_transfer(&service, caller, &call, &matched.parameters[0]).await,
            Public::Balances => get_balances(&service, caller, call).await,
            Public::Assets => get_assets(&service, call),
            Public::Events => events::follow(&service, caller, call).await,
            Public::OpenApi => unreachable!("answered to everybody"),
        }
    };
    ROUTES.answer(call, handler).await
}

/// Counts a refusal by its reason. Where something has no room, its answer is counted by itself.
fn count_refused(refusal: &Refusal) {
    count_limited(refusal.code);
    match refusal.code {
        Code::ServiceHalted => telemetry::refused(telemetry::HALTED_REASON),
        Code::SystemError if !refusal.unknown => telemetry::refused(telemetry::AWAY_REASON),
        _ => {}
    }
}

/// Answers a transfer, and how the limits stand, where it has come as far as them.
async fn post_transfer(service: &Service, caller: Caller, call: Call) -> Outcome {
    let request_id = call.request_id.clone();
    if caller.is_read_only() {
        return Err(Code::Forbidden.into());
    }
    let mut standings = Vec::new();
    let outcome = transfer(service, caller, call, &mut standings).await;
    let mut answer = outcome.unwrap_or_else(|refusal| {
        count_refused(&refusal);
        refusal.answer(&request_id)
    });
    tell_limits(&mut answer, &standings);
    Ok(answer)
}

async fn transfer(
    service: &Service,
    caller: Caller,
    call: Call,
    standings: &mut Vec<Standing>,
) -> Outcome {
    let request_id = call.request_id.clone();
    let header = idempotency::key(&call)?;
    let mut draft: Draft = parse(&service.intake.body(call).await?)?;
    if draft.user_id.is_some_and(|user| user != caller.user.number()) {
        return Err(Code::Forbidden.into());
    }
    draft.cid = idempotency::one_key(header, "cid", draft.cid)?;
    let cid = draft.cid().map_err(|code| {
        Refusal::because(code, "cid must be 1 to 64 of A-Z a-z 0-9 _ . : -".to_owned())
    })?;
    if cid.is_none() && service.transfers.limits.cid_required {
        let what =
            format!("A key is required: the field cid, or the header {}.", idempotency::HEADER);
        return Err(invalid(what));
    }
    let (catalog, pauses) = (service.transfers.reads.catalog(), service.transfers.reads.pauses());
    let fingerprint = request_fingerprint(&draft, &catalog);
    service.transfers.count(caller.user);
    let checked = match service.transfers.halt.is_halted() {
        true => Err(Code::ServiceHalted),
        false => debug_span!("validation")
            .in_scope(|| draft.check(&catalog, &pauses, service.transfers.limits.units_max)),
    };
    let admitted = match checked {
        Ok(checked) => {
            let admitted = service.transfers.quotas.admit(
                &service.transfers.reads,
                caller.user,
                &checked,
                standings,
            );
            admitted.await.map(|reservation| (checked, reservation)).map_err(Refusal::from)
        }
        Err(code) => Err(match draft.paused(&catalog, &pauses) {
            Some(scope) if code == Code::TransferNotAllowed => {
                telemetry::refused(telemetry::PAUSED_REASON);
                Refusal::because(code, format!("{} are paused.", wire::paused(scope, &catalog)))
            }
            _ => code.into(),
        }),
    };
    let (checked, reservation) = match admitted {
        Ok(admitted) => admitted,
        // A known cid is answered before any of these, so that the retry of a transfer that went through is never
        // told what has changed since. Looked up here only: a new cid that passes is caught by the accept itself.
        Err(refusal) => {
            let Some(cid) = &cid else { return Err(refusal) };
            // A refusal for good must not be told where a search may find the transfer: come again.
            service.transfers.quotas.admit_search(caller.user)?;
            let transfer = find_cid(service, caller.user, cid).await?.ok_or(refusal)?;
            check_same_body(&transfer, &fingerprint)?;
            return respond(service, &transfer, true, &request_id).await;
        }
    };
    let user = caller.user;
    // Past a worker that is held up or has too much to do: a retry is told of its transfer where that is plain to read.
    let direct_read = || async {
        let transfer = read_directly(service, &Sought::Cid(user, cid.clone()?)).await?;
        Some(check_same_body(&transfer, &fingerprint).map(|()| transfer))
    };
    let (cid_copy, fingerprint_copy) = (cid.clone(), fingerprint.clone());
    let request = TransferRequest {
        user,
        cid: cid_copy,
        checked,
        fingerprint: fingerprint_copy,
        reservation,
        pauses,
    };
    let (req_id, accepted) = match service.transfers.coordinator.submit(request).await {
        Ok(submitted) => submitted,
        Err(rejection) if rejection.code == Code::Overloaded => match direct_read().await {
            Some(transfer) => return respond(service, &transfer?, true, &request_id).await,
            None => return Err(rejection.into()),
        },
        Err(rejection) => return Err(rejection.into()),
    };
    let unknown = || Refusal {
        transfer: Some((req_id, None)),
        retryable: Some(cid.is_some()),
        unknown: true,
        ..Refusal::because(Code::SystemError, "Whether the transfer was accepted is not known yet.")
    };
    let started = service.transfers.clock.monotonic_ns();
    let accepted = tokio::select! {
        accepted = accepted => accepted.map_err(|_| unknown())?,
        () = service.transfers.clock.sleep(service.transfers.limits.accept_wait + ACCEPT_GRACE) => {
            let transfer = direct_read().await.ok_or_else(unknown)??;
            let replayed = transfer.intent.req_id != req_id;
            return respond(service, &transfer, replayed, &request_id).await;
        }
    };
    let mut accepted = match accepted {
        Ok(accepted) => accepted,
        Err(Rejection { unknown: true, .. }) => return Err(unknown()),
        Err(rejection) if matches!(rejection.code, Code::Overloaded | Code::SystemError) => {
            match direct_read().await {
                Some(transfer) => return respond(service, &transfer?, true, &request_id).await,
                None => return Err(rejection.into()),
            }
        }
        Err(rejection) => return Err(rejection.into()),
    };
    let spent = Duration::from_nanos(service.transfers.clock.monotonic_ns() - started);
    tokio::select! {
        // An error is a worker that has stopped; the transfer goes on with the next start.
        _ = accepted.progress.wait_for(|transfer| transfer.state.is_terminal()) => {}
        () = service.transfers.clock.sleep(service.transfers.limits.transfer_wait.saturating_sub(spent)) => {}
    }
    let pending = !accepted.progress.borrow().state.is_terminal();
    // A commit whose answer is late may have ended it, and another reader been told so.
    let name = Sought::ReqId(accepted.progress.borrow().intent.req_id);
    let read = if pending { self::read_directly(service, &name).await } else { None };
    let told = accepted.progress.borrow().clone();
    let transfer = read.filter(|_| !told.state.is_terminal()).unwrap_or(told);
    info!(req_id = %transfer.intent.req_id, state = transfer.state.name(), "answered");
    respond(service, &transfer, accepted.replayed, &request_id).await
}

/// The transfer of a user's cid, every accept that was handed over before this included. A read finds it, which costs no
/// commit; an accept that may still be committed is waited for in its worker's order.
async fn find_cid(service: &Service, user: UserId, cid: &Cid) -> Result<Option<Transfer>, Refusal> {
    let sought = Sought::Cid(user, cid.clone());
    let found = match service.transfers.coordinator.is_undecided(user, cid.clone()).await {
        Ok(false) => return service.transfers.reads.transfer(&sought).await.map_err(away),
        Ok(true) => service.transfers.coordinator.find_cid(user, cid.clone()).await,
        Err(rejection) => Err(rejection),
    };
    match found {
        Ok(found) => Ok(found),
        Err(rejection) => match read_directly(service, &sought).await {
            Some(transfer) => Ok(Some(transfer)),
            None => Err(rejection.into()),
        },
    }
}

/// A transfer, if PostgreSQL says within [`ACCEPT_GRACE`] that there is one.
async fn read_directly(service: &Service, sought: &Sought) -> Option<Transfer> {
    tokio::select! {
        found = service.transfers.reads.transfer(sought) => found.ok().flatten(),
        () = service.transfers.clock.sleep(ACCEPT_GRACE) => None,
    }
}

/// A repeat of a cid must be the same request.
fn check_same_body(transfer: &Transfer, fingerprint: &str) -> Result<(), Refusal> {
    if transfer.fingerprint == fingerprint {
        return Ok(());
    }
    let fields = differing_fields(&transfer.fingerprint, fingerprint).join(", ");
    let message = format!("This cid was used with another {fields}.");
    Err(Refusal::because(Code::DuplicateRequest, message))
}

/// From, to, asset and amount, the amount as a value where it is one.
pub fn request_fingerprint(draft: &Draft, catalog: &Catalog) -> String {
    let amount = catalog.by_symbol(&draft.asset).and_then(|asset| {
        let amount = Amount::parse(&draft.amount, asset.precision, u64::MAX).ok()?;
        Some(amount.text(asset.precision))
    });
    let amount = amount.as_deref().unwrap_or(&draft.amount);
    fingerprint(&draft.from, &draft.to, &draft.asset, amount)
}

/// A transfer's present state as POST answers it.
async fn respond(
    service: &Service,
    transfer: &Transfer,
    replayed: bool,
    request_id: &str,
) -> Outcome {
    let (transfer, funds_at) = match settle(service, transfer.clone()).await {
        Ok(settled) => settled,
        // Nobody has been told more about a new transfer than that it is under way, so this steps back behind nothing;
        // and an error would invite a client without a cid to move the money twice.
        Err(_) if !replayed => (transfer.clone(), FundsAt::of(transfer.state, false)),
        Err(silent) => return Err(silent),
    };
    let mut answer = match transfer.state.is_undone() {
        true => {
            let code = transfer.code.unwrap_or(Code::SystemError);
            let state = Some((transfer.intent.req_id, Some(transfer.state)));
            let status = Some(StatusCode::UNPROCESSABLE_ENTITY);
            // The transfer has ended: the same cid gets this answer for ever, whatever its code is.
            let retryable = Some(false);
            Refusal { transfer: state, status, retryable, ..code.into() }.answer(request_id)
        }
        false => {
            let status = match transfer.state.is_terminal() {
                true => StatusCode::OK,
                false => StatusCode::ACCEPTED,
            };
            let catalog = service.transfers.reads.catalog();
            json(status, &TransferBody::posted(&transfer, funds_at, &catalog), request_id)
        }
    };
    if replayed {
        replayed_before(&mut answer);
    }
    Ok(answer)
}

/// Marks an answer as one that was decided by an earlier request.
pub(super) fn replayed_before(answer: &mut Answer) {
    answer.headers_mut().insert(IDEMPOTENT_REPLAYED, HeaderValue::from_static("true"));
}

/// A transfer as UBSCore's record has it, and where its money is.
pub(super) async fn settle(
    service: &Service,
    transfer: Transfer,
) -> Result<(Transfer, FundsAt), Refusal> {
    let req_id = transfer.intent.req_id;
    let settled = service.transfers.coordinator.settled(transfer).await.map_err(|silent| {
        error!(%req_id, "{silent}");
        Refusal { transfer: Some((req_id, None)), ..Refusal::away("UBSCore") }
    })?;
    let funds_at = FundsAt::of(settled.transfer.state, settled.withdrawn);
    Ok((settled.transfer, funds_at))
}

async fn get_transfer(service: &Service, caller: Caller, call: &Call, req_id: &str) -> Outcome {
    let wait_ms = query(call, "wait_ms")?;
    let wait_ms = wait_ms.map(|text| number("wait_ms", &text, 0..=WAIT_MS_MAX)).transpose()?;
    let req_id = ReqId::parse(req_id).ok_or(Code::TransferNotFound)?;
    let mut seen = look(service, caller, req_id).await?;
    let wait = Duration::from_millis(wait_ms.unwrap_or(0).into());
    if !wait.is_zero() && !seen.transfer.state.is_terminal() {
        let mut stopping = service.transfers.stopping.clone();
        tokio::select! {
            () = ended(service, &seen.transfer) => {}
            () = service.transfers.clock.sleep(wait.min(service.transfers.limits.end_wait_max)) => {}
            // Changed or gone: the server stops.
            _ = stopping.changed() => {}
        }
        seen = look(service, caller, req_id).await?;
    }
    let Seen { transfer, funds_at, history } = seen;
    let body = DetailBody::new(&transfer, funds_at, history, &service.transfers.reads.catalog());
    Ok(json(StatusCode::OK, &body, &call.request_id))
}

/// A transfer as its owner, or an operator, may see it.
struct Seen {
    transfer: Transfer,
    funds_at: FundsAt,
    history: Vec<Passed>,
}

async fn look(service: &Service, caller: Caller, req_id: ReqId) -> Result<Seen, Refusal> {
    let found = service.transfers.reads.transfer_with_history(req_id).await.map_err(away)?;
    // Another's transfer is answered like none: its name alone tells nothing.
    let (transfer, history) = found
        .filter(|(transfer, _)| caller.sees_everyone() || transfer.intent.user == caller.user)
        .ok_or(Code::TransferNotFound)?;
    let (transfer, funds_at) = settle(service, transfer).await?;
    Ok(Seen { transfer, funds_at, history })
}

/// Returns once a transfer has ended. Its worker tells; PostgreSQL is asked only while none has it in hand, which lasts from a
/// start, or a commit that was not answered, until it is taken up.
async fn ended(service: &Service, transfer: &Transfer) {
    let (user, req_id) = (transfer.intent.user, transfer.intent.req_id);
    let sought = Sought::ReqId(req_id);
    loop {
        if let Ok(Some(mut progress)) = service.transfers.coordinator.follow(user, req_id).await
            // An error is a worker that has stopped; the transfer goes on with the next start.
            && progress.wait_for(|transfer| transfer.state.is_terminal()).await.is_ok()
        {
            return;
        }
        let found = service.transfers.reads.transfer(&sought).await;
        if found.is_ok_and(|found| found.is_none_or(|found| found.state.is_terminal())) {
            return;
        }
        service.transfers.clock.sleep(FOLLOW_PAUSE).await;
    }
}

async fn get_balances(service: &Service, caller: Caller, call: Call) -> Outcome {
    let symbol = query(&call, "asset")?;
    let catalog = service.transfers.reads.catalog();
    let assets: Vec<Asset> = match symbol {
        Some(symbol) => vec![catalog.by_symbol(&symbol).ok_or(Code::InvalidAsset)?.clone()],
        None => catalog.all().into_iter().cloned().collect(),
    };
    let body = balances(service, caller.user, &assets).await?;
    Ok(json(StatusCode::OK, &body, &call.request_id))
}

/// A user's balances in these assets.
pub(super) async fn balances(
    service: &Service,
    user: UserId,
    assets: &[Asset],
) -> Result<BalancesBody, Refusal> {
    let balances =
        service.transfers.coordinator.balances(&service.transfers.reads, user, assets).await;
    let balances = balances.map_err(|error| {
        error!(error = chain(&error), "balances cannot be read");
        Refusal::away("A part of the service")
    })?;
    Ok(BalancesBody { balances: balances.into_iter().map(BalanceBody::from).collect() })
}

fn get_assets(service: &Service, call: Call) -> Outcome {
    query(&call, "")?;
    let catalog = service.transfers.reads.catalog();
    let body = AssetsBody { assets: catalog.all().into_iter().map(AssetBody::from).collect() };
    Ok(json(StatusCode::OK, &body, &call.request_id))
}

/// The same for everybody, so that a client can be made without a token.
fn get_openapi(call: &Call) -> Outcome {
    static DOCUMENT: LazyLock<Bytes> =
        LazyLock::new(|| openapi::document().to_json().expect("strings and numbers").into());
    query(call, "")?;
    Ok(text(StatusCode::OK, "application/json", DOCUMENT.clone(), &call.request_id))
}

/// PostgreSQL did not answer a read.
pub(super) fn away(failure: crate::postgres::Error) -> Refusal {
    error!(error = chain(&failure), "a read failed");
    Refusal::away("PostgreSQL")
}
