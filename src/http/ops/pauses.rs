//! Pauses: operators refuse new transfers of a direction, an asset or both. A halt stops every
//! transfer; a pause lets transfers under way continue.

use std::sync::Arc;
use std::time::Duration;

use hyper::StatusCode;
use serde::{Deserialize, Serialize};
use tracing::warn;

use super::audit_note::{actor, check_reason};
use crate::http::answer::json;
use crate::http::refusal::{Outcome, invalid, postgres_away};
use crate::http::request::{Call, query};
use crate::http::service::{Intake, Service};
use crate::http::wire::{PauseBody, paused};
use crate::pause::{Pauses, Scope};
use crate::postgres::admin::pauses::PauseChange;
use crate::postgres::reads::Reads;
use domain::asset::Catalog;
use domain::code::Code;
use domain::transfer::Direction;

/// How long an answer waits for transfers that were checked before the change. Most accepts are
/// faster.
const DECIDED_WAIT: Duration = Duration::from_secs(10);

fn bodies(pauses: &Pauses, catalog: &Catalog) -> Vec<PauseBody> {
    pauses.all().iter().map(|pause| PauseBody::new(pause, catalog)).collect()
}

/// `GET /admin/v1/pauses`: every pause in force.
pub(super) fn list(intake: &Intake, reads: &Reads, call: &Call) -> Outcome {
    intake.authenticate_viewer(call)?;
    query(call, "")?;
    #[derive(Serialize)]
    struct Body {
        pauses: Vec<PauseBody>,
    }
    let body = Body { pauses: bodies(&reads.pauses(), &reads.catalog()) };
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

/// `PUT /admin/v1/pauses`: after the answer, every new transfer is checked against the change.
///
/// With `"quiet": true`, no transfer that was checked before is accepted after the answer either.
/// The one exception is an accept that was answered as unknown.
pub(super) async fn change(service: Arc<Service>, call: Call) -> Outcome {
    let Service { intake, transfers, .. } = &*service;
    let request_id = call.request_id.clone();
    let caller = intake.authenticate_admin(&call)?;
    query(&call, "")?;
    let draft: PauseDraft = intake.json_body(call).await?;
    let direction = draft.direction.as_deref().map(|name| {
        let known = Direction::from_wire_name(name);
        known.ok_or_else(|| invalid("direction must be FUNDING_TO_SPOT or SPOT_TO_FUNDING."))
    });
    let direction = direction.transpose()?;
    let catalog = transfers.reads.catalog();
    let asset = draft
        .asset
        .as_deref()
        .map(|symbol| catalog.by_symbol(symbol).map(|asset| asset.id).ok_or(Code::InvalidAsset));
    let scope = Scope::new(direction, asset.transpose()?).ok_or_else(|| {
        invalid("Name a direction, an asset or both. To stop every transfer, use a halt.")
    })?;
    check_reason(&draft.reason)?;
    let (actor, subject) = (actor(caller), paused(scope, &catalog));
    let PauseDraft { paused, reason, .. } = draft;
    let change = PauseChange { scope, paused, subject: &subject, actor: &actor, reason: &reason };
    let was_paused = transfers.reads.pauses().all().iter().any(|pause| pause.scope == scope);
    let earlier = transfers.admin.change_pause(change).await.map_err(postgres_away)?;
    transfers.coordinator.cover().await;
    warn!(actor, reason, subject, paused, "pauses changed");
    let decided = async {
        tokio::select! {
            () = earlier.decided() => true,
            () = transfers.clock.sleep(DECIDED_WAIT.min(transfers.limits.end_wait_max)) => false,
        }
    };
    // The end of a pause waits for no transfer.
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
        pauses: bodies(&transfers.reads.pauses(), &catalog),
    };
    Ok(json(StatusCode::OK, &body, &request_id))
}
