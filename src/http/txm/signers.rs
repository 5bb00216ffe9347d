//! Signers: listed, added, suspended, resumed.

use alloy_primitives::Address;
use chain::payload::address_text;
use futures_util::future::join_all;
use hyper::StatusCode;
use serde_json::json;
use txm::store::Suspension;

use super::adoption::{imports, name_no_requests, name_nonces, name_requests};
use super::body::{AdoptDraft, ReasonDraft, SignerDraft, SuspensionDraft, address};
use super::shown::{SignerBody, SignersBody};
use super::token::{TxCaller, admin};
use super::{ADOPTION_BYTES_MAX, TxmService, store_away};
use crate::audit::halt::check_reason;
use crate::http::answer::json;
use crate::http::refusal::{Outcome, Refusal, invalid};
use crate::http::request::{Call, parse, query};
use crate::http::service::BodyLimits;
use crate::postgres::txm::details::{Adoption, Deed, SignerKind};
use domain::code::Code;

/// The operators' own suspension.
const OPERATOR: &str = "OPERATOR";
/// The beginning of the suspensions of services.
const HALT: &str = "halt/";
/// The suspension behind an outflow limit; only two operators lift it.
const OUTFLOW: &str = "OUTFLOW_LIMIT";

/// `GET /api/v1/signers` and `GET /admin/v1/signers`. A service sees its own.
pub(super) async fn list(service: &TxmService, call: &Call) -> Outcome {
    let caller = TxCaller::of(&service.intake, call)?;
    query(call, "")?;
    let rows = service.reads.signers().await.map_err(store_away)?;
    let rows: Vec<_> = rows.into_iter().filter(|row| caller.sees(row.signer)).collect();
    let mut asked = Vec::with_capacity(rows.len());
    for row in &rows {
        asked.push(service.desk.balance(row.signer));
    }
    let balances = join_all(asked).await;
    let rows = rows.into_iter().zip(balances);
    let signers = rows.map(|(row, balance)| SignerBody::new(row, balance)).collect();
    Ok(json(StatusCode::OK, &SignersBody { signers }, &call.request_id))
}

/// `POST /admin/v1/signers`. Its next nonce is the chain's, if every endpoint says the same of its
/// head and of its pool. Otherwise other transactions of it are under way.
pub(super) async fn add(service: &TxmService, call: Call) -> Outcome {
    let user = TxCaller::admin(&service.intake, &call)?;
    query(&call, "")?;
    let request_id = call.request_id.clone();
    let draft: SignerDraft = parse(&service.intake.body(call).await?)?;
    let signer = address("signer", &draft.signer)?;
    let kind = SignerKind::from_name(&draft.kind)
        .ok_or_else(|| invalid("kind must be keystore or remote."))?;
    check(&draft.reason)?;
    if !service.desk.keys().contains(&signer) {
        let message = "This node cannot sign for it. Ask a node that has its key.";
        return Err(Refusal::because(Code::SignerUnknown, message));
    }
    let told = |kind: SignerKind, cursor: u64, is_new: bool| {
        let signer = address_text(&signer);
        let body =
            json!({"signer": signer, "kind": kind.name(), "nextNonce": cursor, "added": is_new});
        json(StatusCode::OK, &body, &request_id)
    };
    if let Some(row) = service.reads.signer(signer).await.map_err(store_away)? {
        return Ok(told(row.kind, row.cursor, false));
    }
    let cursor = settled_count(service, signer, 0).await?;
    let actor = admin(user);
    let deed = Deed { actor: &actor, reason: &draft.reason };
    let is_new = service.reads.add_signer(signer, kind, cursor, &deed).await.map_err(store_away)?;
    match service.reads.signer(signer).await.map_err(store_away)? {
        // Another one was faster, perhaps with another kind.
        Some(row) if !is_new => Ok(told(row.kind, row.cursor, false)),
        _ => Ok(told(kind, cursor, is_new)),
    }
}

/// The count of the chain, if every configured endpoint says the same of its head, and its pool has
/// no transaction at `ours` or above. `ours`: the next nonce of the rows, which may be pending.
async fn settled_count(service: &TxmService, signer: Address, ours: u64) -> Result<u64, Refusal> {
    let counts = service.desk.counts(signer).await;
    let Some(cursor) = counts.first().map(|counts| counts.latest) else {
        return Err(Refusal::away("The chain"));
    };
    let asked = service.desk.endpoints();
    if counts.len() < asked {
        // A silent endpoint may have seen more than the others.
        let message = format!("{} of {asked} endpoints answer; each must.", counts.len());
        return Err(Refusal::because(Code::SystemError, message));
    }
    let own = cursor.max(ours);
    let other = counts.iter().find(|it| it.latest != cursor || it.pending > own);
    if let Some(other) = other {
        let message = format!(
            "Transactions of this signer are under way: {} says latest {}, pending {}; another \
             count is {cursor}. Wait until they are mined.",
            other.endpoint, other.latest, other.pending
        );
        return Err(Refusal::because(Code::SystemError, message));
    }
    Ok(cursor)
}

/// `POST /admin/v1/signers/{signer}/adopt`: two operators have matched every transaction that the
/// chain has and no row: each is another's, or gets the row of the request that it pays. They say
/// of each older request without a nonce whether it is still to be paid.
pub(super) async fn adopt(service: &TxmService, signer: &str, call: Call) -> Outcome {
    let user = TxCaller::admin(&service.intake, &call)?;
    query(&call, "")?;
    let second = admin(TxCaller::second(&service.intake, &call, user)?);
    let signer = known(service, signer).await?;
    let request_id = call.request_id.clone();
    let limits = BodyLimits { bytes_max: ADOPTION_BYTES_MAX, ..service.intake.limits };
    let draft: AdoptDraft = parse(&limits.body(call).await?)?;
    check(&draft.reason)?;
    let foreign = draft.foreign()?;
    let next = service.reads.signer(signer).await.map_err(store_away)?.map_or(0, |row| row.cursor);
    let needs = service.reads.to_adopt(signer).await.map_err(store_away)?;
    // Signed nonces of the lost database may be pending: the suspension stays until they are mined.
    let ours = next.max(needs.seen.unwrap_or(0));
    let cursor = settled_count(service, signer, ours).await?;
    let imports = imports(service, signer, &draft.import).await?;
    let (pays, drops, rest) = (draft.pay, draft.drop, draft.rest);
    let adoption = Adoption { cursor, foreign, imports, pays, drops, rest };
    let upcoming = cursor.max(next);
    let waits_for = needs.seen.filter(|seen| *seen > upcoming);
    name_nonces(service, signer, &adoption, &needs, next).await?;
    match waits_for {
        None => name_requests(&adoption, &needs)?,
        Some(nonce) => name_no_requests(&adoption, nonce)?,
    }
    let actor = admin(user);
    let deed = Deed { actor: &actor, reason: &draft.reason };
    let asked = service.reads.ask_adopt(signer, &adoption, &deed).await;
    let command = asked.map_err(store_away)?;
    let done = service.reads.second(command, &second).await.map_err(store_away)?;
    service.desk.wake(signer);
    let body = json!({
        "signer": address_text(&signer),
        "nextNonce": upcoming,
        "adopted": done,
        "waitsForNonce": waits_for,
    });
    Ok(json(StatusCode::OK, &body, &request_id))
}

/// `POST /admin/v1/signers/{signer}/suspend`.
pub(super) async fn suspend(service: &TxmService, signer: &str, call: Call) -> Outcome {
    let user = TxCaller::admin(&service.intake, &call)?;
    query(&call, "")?;
    let signer = known(service, signer).await?;
    let request_id = call.request_id.clone();
    let draft: SuspensionDraft = parse(&service.intake.body(call).await?)?;
    check(&draft.reason)?;
    let reason = match draft.suspension {
        None => OPERATOR.to_owned(),
        Some(name) if name == OPERATOR => name,
        Some(_) => return Err(invalid("Only the suspension OPERATOR is set by hand.")),
    };
    let suspension = Suspension { reason, actor: admin(user) };
    set(service, signer, &suspension, &draft.reason, &request_id).await
}

/// `POST /admin/v1/signers/{signer}/resume`.
pub(super) async fn resume(service: &TxmService, signer: &str, call: Call) -> Outcome {
    let user = TxCaller::admin(&service.intake, &call)?;
    query(&call, "")?;
    let signer = known(service, signer).await?;
    // The request is read below; its second token is needed for one suspension only.
    let second = TxCaller::second(&service.intake, &call, user);
    let request_id = call.request_id.clone();
    let draft: SuspensionDraft = parse(&service.intake.body(call).await?)?;
    check(&draft.reason)?;
    let name = draft.suspension.unwrap_or_else(|| OPERATOR.to_owned());
    let actor = admin(user);
    let deed = Deed { actor: &actor, reason: &draft.reason };
    match name.as_str() {
        OPERATOR => {}
        OUTFLOW => {
            let second = admin(second?);
            let asked = service.reads.ask_resume(signer, OUTFLOW, &deed).await;
            let command = asked.map_err(store_away)?;
            let done = service.reads.second(command, &second).await.map_err(store_away)?;
            service.desk.wake(signer);
            return told(signer, OUTFLOW, false, done, &request_id);
        }
        name if name.starts_with(HALT) => {}
        name => {
            // NONCE_AHEAD, NONCE_TAKEN, and those of a database that was restored.
            let message = format!("{name} is lifted by adopt alone, which two operators do.");
            return Err(Refusal::because(Code::Forbidden, message));
        }
    }
    lift(service, signer, &name, &deed, &request_id).await
}

/// `POST /api/v1/signers/{signer}/suspend` and `resume`: a service sets and lifts its own.
pub(super) async fn halt(service: &TxmService, is_set: bool, signer: &str, call: Call) -> Outcome {
    let caller = TxCaller::of(&service.intake, &call)?;
    query(&call, "")?;
    let TxCaller::Service { name, .. } = &caller else { return Err(Code::Forbidden.into()) };
    let (reason, actor) = (format!("{HALT}{name}"), caller.actor());
    let signer = known(service, signer).await?;
    caller.may_see(signer)?;
    let request_id = call.request_id.clone();
    let draft: ReasonDraft = parse(&service.intake.body(call).await?)?;
    check(&draft.reason)?;
    if is_set {
        let suspension = Suspension { reason, actor };
        return set(service, signer, &suspension, &draft.reason, &request_id).await;
    }
    let deed = Deed { actor: &actor, reason: &draft.reason };
    lift(service, signer, &reason, &deed, &request_id).await
}

async fn set(
    service: &TxmService,
    signer: Address,
    suspension: &Suspension,
    about: &str,
    request_id: &str,
) -> Outcome {
    let is_new = service.reads.suspend(signer, suspension, about).await.map_err(store_away)?;
    service.desk.wake(signer);
    told(signer, &suspension.reason, true, is_new, request_id)
}

async fn lift(
    service: &TxmService,
    signer: Address,
    reason: &str,
    deed: &Deed<'_>,
    request_id: &str,
) -> Outcome {
    let was_set = service.reads.resume(signer, reason, deed).await.map_err(store_away)?;
    service.desk.wake(signer);
    told(signer, reason, false, was_set, request_id)
}

fn told(signer: Address, name: &str, is_set: bool, changed: bool, request_id: &str) -> Outcome {
    let signer = address_text(&signer);
    let body =
        json!({"signer": signer, "suspension": name, "suspended": is_set, "changed": changed});
    Ok(json(StatusCode::OK, &body, request_id))
}

/// The signer of a path, if the store knows it.
pub(super) async fn known(service: &TxmService, text: &str) -> Result<Address, Refusal> {
    let signer = address("signer", text)?;
    match service.reads.signer(signer).await.map_err(store_away)? {
        Some(_) => Ok(signer),
        None => Err(Code::SignerUnknown.into()),
    }
}

/// Checks the reason of an action.
pub(super) fn check(reason: &str) -> Result<(), Refusal> {
    match check_reason(reason) {
        true => Ok(()),
        false => Err(invalid("reason must be 1 to 500 printable characters.")),
    }
}
