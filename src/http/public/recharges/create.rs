//! `POST /api/v1/recharge`.

use hyper::StatusCode;
use tracing::info;

use super::{body, settled};
use crate::coordinator::recharges::{RechargeDraft, RechargeMade};
use crate::http::answer::{json, mark_replayed};
use crate::http::idempotency;
use crate::http::refusal::{Outcome, Refusal, invalid, postgres_away};
use crate::http::request::{Call, query};
use crate::http::service::{Caller, RechargeDesk, Service, Transfers};
use crate::recharge::order::{Recharge, RechargeState};
use crate::telemetry::count_limited;
use crate::validation::recharge::{ChannelOffer, RechargeRequest};
use domain::code::Code;
use domain::transfer::Cid;

/// Makes an order, or finds the one of its key, and waits a while for the channel.
pub(super) async fn create(
    service: &Service,
    desk: &RechargeDesk,
    caller: Caller,
    call: Call,
) -> Outcome {
    query(&call, "")?;
    if caller.is_read_only() {
        return Err(Code::Forbidden.into());
    }
    let request_id = call.request_id.clone();
    let header = idempotency::key(&call)?;
    let mut request: RechargeRequest = service.intake.json_body(call).await?;
    if request.user_id.is_some_and(|user| user != caller.user.number()) {
        return Err(Code::Forbidden.into());
    }
    let key = idempotency::one_key(header, "idem_key", request.idem_key.take())?;
    let key = key.ok_or_else(|| {
        let what = format!("A key is required: the field idem_key, or {}.", idempotency::HEADER);
        invalid(what)
    })?;
    // No slash: such keys are made inside.
    let key =
        Cid::new(&key).ok_or_else(|| invalid("idem_key must be 1 to 64 of A-Z a-z 0-9 _ . : -"))?;
    let transfers = &service.transfers;
    let RechargeMade { order, replayed } =
        match admit(transfers, desk, caller, &key, &request).await {
            Ok(draft) => desk.recharges.create(draft).await?,
            Err(refusal) => {
                count_limited(refusal.code);
                known_or(transfers, caller, &key, &request, refusal).await?
            }
        };
    let order = match order.state {
        RechargeState::Init => {
            desk.till.look(order.id);
            let until =
                |order: &Recharge| order.state != RechargeState::Init || order.code.is_some();
            settled(desk, transfers, order, until, desk.create_wait).await
        }
        _ => order,
    };
    debug_assert_eq!(order.user, caller.user, "a key belongs to one user");
    info!(recharge_id = %order.id, state = order.state.name(), replayed, "recharge answered");
    let mut answer = match order.code {
        Some(Code::ChannelRefused) => {
            let refusal = Refusal {
                recharge: Some(Box::new(order.id)),
                // The order has ended: a retry of its key gets this answer for ever.
                retryable: Some(false),
                ..Code::ChannelRefused.into()
            };
            refusal.answer(&request_id)
        }
        _ => {
            let status = match (order.state, replayed) {
                (RechargeState::Init, _) => StatusCode::ACCEPTED,
                (_, true) => StatusCode::OK,
                (_, false) => StatusCode::CREATED,
            };
            let body = body(&transfers.reads, caller.user, order).await?;
            json(status, &body, &request_id)
        }
    };
    if replayed {
        mark_replayed(&mut answer);
    }
    Ok(answer)
}

/// Checks a request, and counts it.
async fn admit(
    transfers: &Transfers,
    desk: &RechargeDesk,
    caller: Caller,
    key: &Cid,
    request: &RechargeRequest,
) -> Result<RechargeDraft, Refusal> {
    if transfers.halt.is_halted() {
        return Err(Code::ServiceHalted.into());
    }
    let channel = desk.channels.get(&request.channel);
    let offer = channel.map(|channel| ChannelOffer {
        terms: &channel.terms,
        amount_min: channel.amount_min,
        amount_max: channel.amount_max,
        paused: channel.is_paused(),
    });
    let catalog = transfers.reads.catalog();
    let checked = request.check(&catalog, offer, transfers.limits.units_max);
    let (target, amount) = checked?;
    let channel = channel.ok_or(Code::InvalidChannel)?;
    let admitted =
        desk.recharges.admit(caller.user, desk.creates_per_minute_max, desk.open_max).await;
    admitted.map_err(|refused| match refused.code {
        Code::TooManyOpen => {
            Refusal::because(refused.code, "There are too many open recharges. Try again later.")
        }
        Code::SystemError => Refusal::away("PostgreSQL"),
        _ => refused.into(),
    })?;
    let (user, idem_key) = (caller.user, key.as_str().to_owned());
    let promotion = request.promotion.clone();
    Ok(RechargeDraft { user, idem_key, terms: channel.terms.clone(), amount, target, promotion })
}

/// The order of a refused request's key, and the refusal if there is none.
///
/// A retry of a request that went through must get its order, even if a check refuses it now.
async fn known_or(
    transfers: &Transfers,
    caller: Caller,
    key: &Cid,
    request: &RechargeRequest,
    refusal: Refusal,
) -> Result<RechargeMade, Refusal> {
    // Beyond the limit of searches the answer is "retry": a final refusal could be wrong.
    transfers.quotas.admit_search(caller.user)?;
    let known = transfers.reads.recharge_of_key(caller.user, key.as_str()).await;
    let order = known.map_err(postgres_away)?.ok_or(refusal)?;
    let fingerprint = request.fingerprint(&transfers.reads.catalog());
    order.replayed(&fingerprint).map_err(|differing| {
        let fields = differing.0.join(", ");
        let what = format!("This idem_key was used with another {fields}.");
        Refusal::because(Code::DuplicateRequest, what)
    })?;
    Ok(RechargeMade { order, replayed: true })
}
