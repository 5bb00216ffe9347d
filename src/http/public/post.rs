//! `POST /api/v1/internal_transfer`: accepts a transfer and waits for its final state.
//!
//! A request passes these steps, and each may end it:
//!
//! 1. `Post::read`: the body, its key and its user.
//! 2. `Post::admit`: the halt, the checks of `validation`, the user's limits. A refused request
//!    with a known cid is answered as a repeat (`Post::replay_or`).
//! 3. `Post::accept`: a worker accepts the transfer, or the stored transfer of the cid is found.
//! 4. `Post::follow`: the transfer reaches a final state, or `http.transfer_wait_ms` is over.

use std::sync::Arc;
use std::time::Duration;

use hyper::StatusCode;
use tokio::sync::oneshot::error::TryRecvError;
use tracing::{debug_span, info};

use crate::config::http::BESIDE_ACCEPT_MS;
use crate::coordinator::{Accepted, Rejection, Request, Submitted};
use crate::http::answer::{add_limits, json, mark_replayed};
use crate::http::idempotency;
use crate::http::refusal::{Outcome, Refusal, invalid, postgres_away};
use crate::http::request::{Call, parse};
use crate::http::service::{Caller, Intake, Transfers};
use crate::http::settle::settle;
use crate::http::wire::{self, FundsAt, TransferBody};
use crate::pause::Pauses;
use crate::postgres::store::{Sought, Transfer, differing_fields, fingerprint};
use crate::quota::{self, Reservation, Standing};
use crate::telemetry::{self, count_limited};
use crate::validation::{Checked, Draft};
use domain::account::UserId;
use domain::asset::Catalog;
use domain::code::Code;
use domain::transfer::{Cid, ReqId};

/// Time beyond the wait for an accept: the worker answers within it, and a direct read takes no
/// longer.
const ACCEPT_GRACE: Duration = Duration::from_secs(1);

/// A request waits for its user's limits, for the worker's answer and for one direct read.
const _: () = assert!(
    quota::PATIENCE.as_millis() + 2 * ACCEPT_GRACE.as_millis() <= BESIDE_ACCEPT_MS as u128,
    "a request would end before its wait for an accept"
);

/// Answers a transfer. If the request came as far as the limits, the answer shows their status.
pub(super) async fn post(
    intake: &Intake,
    transfers: &Transfers,
    caller: Caller,
    call: Call,
) -> Outcome {
    let request_id = call.request_id.clone();
    if caller.is_read_only() {
        return Err(Code::Forbidden.into());
    }
    let mut standings = Vec::new();
    let outcome = transfer(intake, transfers, caller, call, &mut standings).await;
    let mut answer = outcome.unwrap_or_else(|refusal| {
        count_refused(&refusal);
        refusal.answer(&request_id)
    });
    add_limits(&mut answer, &standings);
    Ok(answer)
}

/// Counts a refusal by its reason. A shortage is counted by [`Refusal::answer`].
fn count_refused(refusal: &Refusal) {
    count_limited(refusal.code);
    match refusal.code {
        Code::ServiceHalted => telemetry::refused(telemetry::HALTED_REASON),
        Code::SystemError if !refusal.unknown => telemetry::refused(telemetry::AWAY_REASON),
        _ => {}
    }
}

async fn transfer(
    intake: &Intake,
    transfers: &Transfers,
    caller: Caller,
    call: Call,
    standings: &mut Vec<Standing>,
) -> Outcome {
    let (post, draft) = Post::read(intake, transfers, caller, call).await?;
    transfers.count(post.user);
    let pauses = transfers.reads.pauses();
    let (checked, reservation) = match post.admit(&draft, &pauses, standings).await {
        Ok(admitted) => admitted,
        Err(refusal) => return Box::pin(post.replay_or(refusal)).await,
    };
    match post.accept(checked, reservation, pauses).await? {
        Accept::ByWorker { accepted, waited } => post.follow(accepted, waited).await,
        Accept::Stored { transfer, replayed } => post.respond(&transfer, replayed).await,
    }
}

/// One request on its way.
struct Post<'a> {
    transfers: &'a Transfers,
    catalog: Arc<Catalog>,
    user: UserId,
    /// The idempotency key.
    cid: Option<Cid>,
    /// A repeat of the cid must have the same one.
    fingerprint: String,
    request_id: String,
}

/// How an accept ended, if it was not refused.
enum Accept {
    /// The worker answered after `waited`.
    ByWorker { accepted: Accepted, waited: Duration },
    /// The worker did not answer in time, and PostgreSQL has a transfer with this cid. `replayed`:
    /// an earlier request has made it.
    Stored { transfer: Transfer, replayed: bool },
}

impl<'a> Post<'a> {
    /// Reads the request: its body, its user and its key.
    async fn read(
        intake: &Intake,
        transfers: &'a Transfers,
        caller: Caller,
        call: Call,
    ) -> Result<(Post<'a>, Draft), Refusal> {
        let request_id = call.request_id.clone();
        let header = idempotency::key(&call)?;
        let mut draft: Draft = parse(&intake.body(call).await?)?;
        if draft.user_id.is_some_and(|user| user != caller.user.number()) {
            return Err(Code::Forbidden.into());
        }
        draft.cid = idempotency::one_key(header, "cid", draft.cid)?;
        let cid = draft.cid().map_err(|code| {
            Refusal::because(code, "cid must be 1 to 64 of A-Z a-z 0-9 _ . : -".to_owned())
        })?;
        if cid.is_none() && transfers.limits.cid_required {
            let what =
                format!("A key is required: the field cid, or the header {}.", idempotency::HEADER);
            return Err(invalid(what));
        }
        let catalog = transfers.reads.catalog();
        let fingerprint = request_fingerprint(&draft, &catalog);
        let user = caller.user;
        Ok((Post { transfers, catalog, user, cid, fingerprint, request_id }, draft))
    }

    /// Checks the draft, and takes its share of what the user may transfer.
    async fn admit(
        &self,
        draft: &Draft,
        pauses: &Pauses,
        standings: &mut Vec<Standing>,
    ) -> Result<(Checked, Option<Reservation>), Refusal> {
        let Transfers { halt, limits, quotas, reads, .. } = self.transfers;
        if halt.is_halted() {
            return Err(Code::ServiceHalted.into());
        }
        let check = || draft.check(&self.catalog, pauses, limits.units_max);
        let checked = debug_span!("validation").in_scope(check);
        let checked = checked.map_err(|code| match draft.paused(&self.catalog, pauses) {
            Some(scope) if code == Code::TransferNotAllowed => {
                telemetry::refused(telemetry::PAUSED_REASON);
                let paused = wire::paused(scope, &self.catalog);
                Refusal::because(code, format!("{paused} are paused."))
            }
            _ => code.into(),
        })?;
        let reservation = quotas.admit(reads, self.user, &checked, standings).await?;
        Ok((checked, reservation))
    }

    /// Answers a refused request by the transfer of its cid, if there is one, and else by
    /// `refusal`.
    ///
    /// A retry of a transfer that went through must get its first outcome, even if a check or a
    /// limit refuses it now. Only refused requests are looked up here: the accept itself finds a
    /// known cid.
    async fn replay_or(&self, refusal: Refusal) -> Outcome {
        let Some(cid) = &self.cid else { return Err(refusal) };
        // Beyond the limit of searches the answer is "retry": a final refusal could be wrong.
        self.transfers.quotas.admit_search(self.user)?;
        let transfer = find_cid(self.transfers, self.user, cid).await?.ok_or(refusal)?;
        self.check_same_body(&transfer)?;
        self.respond(&transfer, true).await
    }

    /// Has a worker accept the transfer. If the worker is blocked or has too much to do, a retry is
    /// answered from PostgreSQL directly.
    async fn accept(
        &self,
        checked: Checked,
        reservation: Option<Reservation>,
        pauses: Arc<Pauses>,
    ) -> Result<Accept, Refusal> {
        let Transfers { coordinator, clock, limits, .. } = self.transfers;
        let (user, cid, fingerprint) = (self.user, self.cid.clone(), self.fingerprint.clone());
        let request = Request { user, cid, checked, fingerprint, reservation, pauses };
        let Submitted { req_id, mut reply, quiet } = match coordinator.submit(request).await {
            Ok(submitted) => submitted,
            Err(rejection) if rejection.code == Code::Overloaded => {
                let transfer = self.stored_or(rejection.into()).await?;
                return Ok(Accept::Stored { transfer, replayed: true });
            }
            Err(rejection) => return Err(rejection.into()),
        };
        let started_ns = clock.monotonic_ns();
        let waited = || Duration::from_nanos(clock.monotonic_ns() - started_ns);
        // Most transfers end within milliseconds of their accept: one wake and one timer for both.
        tokio::select! {
            _ = quiet => {}
            () = clock.sleep(limits.transfer_wait) => {}
        }
        let reply = match reply.try_recv() {
            Ok(reply) => reply,
            Err(TryRecvError::Closed) => return Err(self.unknown(req_id)),
            Err(TryRecvError::Empty) => {
                let longest = limits.accept_wait + ACCEPT_GRACE;
                tokio::select! {
                    reply = reply => reply.map_err(|_dropped| self.unknown(req_id))?,
                    () = clock.sleep(longest.saturating_sub(waited())) => {
                        let transfer = self.stored_or(self.unknown(req_id)).await?;
                        let replayed = transfer.intent.req_id != req_id;
                        return Ok(Accept::Stored { transfer, replayed });
                    }
                }
            }
        };
        match reply {
            Ok(accepted) => Ok(Accept::ByWorker { accepted, waited: waited() }),
            Err(Rejection { unknown: true, .. }) => Err(self.unknown(req_id)),
            Err(rejection) if matches!(rejection.code, Code::Overloaded | Code::SystemError) => {
                let transfer = self.stored_or(rejection.into()).await?;
                Ok(Accept::Stored { transfer, replayed: true })
            }
            Err(rejection) => Err(rejection.into()),
        }
    }

    /// Waits for the final state, as long as the request may still wait, and answers.
    async fn follow(&self, mut accepted: Accepted, waited: Duration) -> Outcome {
        let Transfers { clock, limits, .. } = self.transfers;
        let mut transfer = accepted.progress.borrow().clone();
        if !transfer.state.is_terminal() {
            tokio::select! {
                // An error: the worker has stopped. The transfer continues after the next start.
                _ = accepted.progress.wait_for(|transfer| transfer.state.is_terminal()) => {}
                () = clock.sleep(limits.transfer_wait.saturating_sub(waited)) => {}
            }
            let pending = !accepted.progress.borrow().state.is_terminal();
            // A commit with a late answer may have ended it, and another reader may have seen the
            // end.
            let name = Sought::ReqId(transfer.intent.req_id);
            let read = if pending { read_directly(self.transfers, &name).await } else { None };
            let known = accepted.progress.borrow().clone();
            transfer = read.filter(|_| !known.state.is_terminal()).unwrap_or(known);
        }
        debug_assert_eq!(transfer.intent.user, self.user, "a caller's own transfer");
        info!(req_id = %transfer.intent.req_id, state = transfer.state.name(), "answered");
        self.respond(&transfer, accepted.replayed).await
    }

    /// The stored transfer of this cid, and `instead` if there is none or PostgreSQL is too slow.
    async fn stored_or(&self, instead: Refusal) -> Result<Transfer, Refusal> {
        let Some(cid) = &self.cid else { return Err(instead) };
        let sought = Sought::Cid(self.user, cid.clone());
        let transfer = read_directly(self.transfers, &sought).await.ok_or(instead)?;
        self.check_same_body(&transfer)?;
        Ok(transfer)
    }

    /// The outcome of an accept is unknown. With a cid, a retry finds it.
    fn unknown(&self, req_id: ReqId) -> Refusal {
        let message = "It is not known yet whether the transfer was accepted.";
        Refusal {
            transfer: Some((req_id, None)),
            retryable: Some(self.cid.is_some()),
            unknown: true,
            ..Refusal::because(Code::SystemError, message)
        }
    }

    /// A repeat of a cid must be the same request.
    fn check_same_body(&self, transfer: &Transfer) -> Result<(), Refusal> {
        debug_assert_eq!(transfer.intent.user, self.user, "a cid belongs to one user");
        if transfer.fingerprint == self.fingerprint {
            return Ok(());
        }
        let fields = differing_fields(&transfer.fingerprint, &self.fingerprint).join(", ");
        let message = format!("This cid was used with another {fields}.");
        Err(Refusal::because(Code::DuplicateRequest, message))
    }

    /// A transfer's present state as POST answers it.
    async fn respond(&self, transfer: &Transfer, replayed: bool) -> Outcome {
        let settled = settle(&self.transfers.coordinator, transfer.clone()).await;
        let (transfer, funds_at) = match settled {
            Ok(settled) => settled,
            // No client knows more of a new transfer than that it is under way, so this answer is
            // no step back. An error would invite a client without a cid to move the money twice.
            Err(_) if !replayed => (transfer.clone(), FundsAt::of(transfer.state, false)),
            Err(silent) => return Err(silent),
        };
        let mut answer = if transfer.state.is_undone() {
            let code = transfer.code.unwrap_or(Code::SystemError);
            let state = Some((transfer.intent.req_id, Some(transfer.state)));
            let status = Some(StatusCode::UNPROCESSABLE_ENTITY);
            // The transfer has ended: a retry of its cid gets this answer forever.
            let retryable = Some(false);
            let refusal = Refusal { transfer: state, status, retryable, ..code.into() };
            refusal.answer(&self.request_id)
        } else {
            let is_final = transfer.state.is_terminal();
            let status = if is_final { StatusCode::OK } else { StatusCode::ACCEPTED };
            let catalog = self.transfers.reads.catalog();
            let body = TransferBody::posted(&transfer, funds_at, &catalog);
            json(status, &body, &self.request_id)
        };
        if replayed {
            mark_replayed(&mut answer);
        }
        Ok(answer)
    }
}

/// The transfer of a user's cid, with every accept that was sent before this search. A read finds
/// it without a commit. If an accept is still undecided, its worker answers the search in order.
async fn find_cid(
    transfers: &Transfers,
    user: UserId,
    cid: &Cid,
) -> Result<Option<Transfer>, Refusal> {
    let sought = Sought::Cid(user, cid.clone());
    let found = match transfers.coordinator.is_undecided(user, cid.clone()).await {
        Ok(false) => return transfers.reads.transfer(&sought).await.map_err(postgres_away),
        Ok(true) => transfers.coordinator.find_cid(user, cid.clone()).await,
        Err(rejection) => Err(rejection),
    };
    match found {
        Ok(found) => Ok(found),
        Err(rejection) => match read_directly(transfers, &sought).await {
            Some(transfer) => Ok(Some(transfer)),
            None => Err(rejection.into()),
        },
    }
}

/// A stored transfer, if PostgreSQL returns one within [`ACCEPT_GRACE`].
async fn read_directly(transfers: &Transfers, sought: &Sought) -> Option<Transfer> {
    tokio::select! {
        // On the heap: it is long, and seldom needed.
        found = Box::pin(transfers.reads.transfer(sought)) => found.ok().flatten(),
        () = transfers.clock.sleep(ACCEPT_GRACE) => None,
    }
}

/// From, to, asset and amount; the amount as a value if it is one.
pub fn request_fingerprint(draft: &Draft, catalog: &Catalog) -> String {
    let amount = draft.plain_amount(catalog);
    let amount = amount.as_deref().unwrap_or(&draft.amount);
    fingerprint(&draft.from, &draft.to, &draft.asset, amount)
}
