//! Pauses: what is refused until an operator lets it go on. A halt stops everything; a pause lets what is under way go on.

use std::time::Duration;

use hyper::StatusCode;
use serde::{Deserialize, Serialize};
use tracing::warn;

use super::{actor, check_reason};
use crate::http::api::away;
use crate::http::service::{Call, Outcome, Service, query};
use crate::http::wire::{PauseBody, Refusal, json, paused};
use crate::pause::{Pauses, Scope};
use crate::postgres::reads::pauses::PauseChange;
use domain::asset::Catalog;
use domain::code::Code;
use domain::transfer::Direction;

/// How long an answer waits for the transfers that were checked before. Longer than most accepts may take.
const DECIDED_WAIT: Duration = Duration::from_secs(10);

fn bodies(pauses: &Pauses, catalog: &Catalog) -> Vec<PauseBody> {
    pauses.all().iter().map(|pause| PauseBody::new(pause, catalog)).collect()
}

/// `GET /admin/v1/pauses`: every pause in force.
pub(super) fn list(service: &Service, call: &Call) -> Outcome {
    service.intake.authenticate_viewer(call)?;
    query(call, "")?;
    #[derive(Serialize)]
    struct Body {
        pauses: Vec<PauseBody>,
    }
    let body = Body {
        pauses: bodies(&service.transfers.reads.pauses(), &service.transfers.reads.catalog()),
    };
    Ok(json(StatusCode::OK, &body, &call.request_id))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PauseDraft {
    #[serde(default)]
    direction: Option<String>,
    #[serde(default)]
    asset: Option<String>,
    paused: bool,
    reason: String,
}

/// `PUT /admin/v1/pauses`: from the answer on, whatever is checked is checked against it. With `"quiet": true` nothing that was
/// checked before is accepted behind it either, but for an accept whose client was told that it is unknown.
pub(super) async fn change(service: &Service, call: Call) -> Outcome {
    let request_id = call.request_id.clone();
    let caller = service.intake.authenticate_admin(&call)?;
    query(&call, "")?;
    let draft: PauseDraft = service.intake.json_body(call).await?;
    let invalid = |what: &str| Refusal::because(Code::InvalidRequest, what.to_owned());
    let direction = draft.direction.as_deref().map(|name| {
        let known = Direction::from_wire_name(name);
        known.ok_or_else(|| invalid("direction must be FUNDING_TO_SPOT or SPOT_TO_FUNDING."))
    });
    let direction = direction.transpose()?;
    let catalog = service.transfers.reads.catalog();
    let asset = draft
        .asset
        .as_deref()
        .map(|symbol| catalog.by_symbol(symbol).map(|asset| asset.id).ok_or(Code::InvalidAsset));
    let scope = Scope::new(direction, asset.transpose()?)
        .ok_or_else(|| invalid("Name a direction, an asset or both; a halt stops everything."))?;
    check_reason(&draft.reason)?;
    let (actor, subject) = (actor(caller), paused(scope, &catalog));
    let PauseDraft { paused, reason, .. } = draft;
    let change = PauseChange { scope, paused, subject: &subject, actor: &actor, reason: &reason };
    let was_paused =
        service.transfers.reads.pauses().all().iter().any(|pause| pause.scope == scope);
    let earlier = service.transfers.reads.change_pause(change).await.map_err(away)?;
    warn!(actor, reason, subject, paused, "pauses changed");
    let decided = async {
        tokio::select! {
            () = earlier.decided() => true,
            () = service.transfers.clock.sleep(DECIDED_WAIT.min(service.transfers.limits.end_wait_max)) => false,
        }
    };
    // Whoever lets transfers go on waits for none.
    let quiet = if paused { Some(decided.await) } else { None };
    #[derive(Serialize)]
    struct Body {
        direction: Option<&'static str>,
        asset: Option<String>,
        paused: bool,
        was_paused: bool,
        quiet: Option<bool>,
        pauses: Vec<PauseBody>,
    }
    let body = Body {
        direction: direction.map(Direction::wire_name),
        asset: draft.asset,
        paused,
        was_paused,
        quiet,
        pauses: bodies(&service.transfers.reads.pauses(), &catalog),
    };
    Ok(json(StatusCode::OK, &body, &request_id))
}
