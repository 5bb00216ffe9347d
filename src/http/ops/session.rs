//! The operator's session: the data that a console needs before it shows a page.

use hyper::StatusCode;
use jiff::Timestamp;
use serde::Serialize;

use crate::approval::Action;
use crate::http::answer::json;
use crate::http::refusal::Outcome;
use crate::http::request::{Call, query};
use crate::http::service::{Approvals, Intake, Operations, Transfers};
use crate::release;

#[derive(Serialize)]
struct Halted {
    reason: String,
}

#[derive(Serialize)]
struct Body {
    user_id: u64,
    expires_at: Timestamp,
    version: &'static str,
    approval_required: Vec<&'static str>,
    stuck_ms: u64,
    halted: Option<Halted>,
    /// The name of PostgreSQL's database.
    database: String,
    /// Whether `serve --dev` made that database. Only there may development money be made.
    development: bool,
    /// Why no new transfers are taken; null if they are.
    not_ready: Option<String>,
    /// Whether recharges are on.
    recharges: bool,
}

/// `GET /admin/v1/session`: for admins only, since the console offers all that an admin may do.
pub(super) async fn show(
    intake: &Intake,
    transfers: &Transfers,
    approvals: &Approvals,
    operations: &Operations,
    recharges: bool,
    call: &Call,
) -> Outcome {
    let caller = intake.authenticate_admin(call)?;
    query(call, "")?;
    let (database, development) = operations.database.clone();
    let readiness = transfers.readiness().await;
    let expires_at = i64::try_from(caller.expires_s).ok();
    let body = Body {
        user_id: caller.user.number(),
        // A token may expire later than the last `Timestamp`.
        expires_at: expires_at
            .and_then(|seconds| Timestamp::from_second(seconds).ok())
            .unwrap_or(Timestamp::MAX),
        version: release::VERSION,
        approval_required: approvals.required.iter().copied().map(Action::name).collect(),
        stuck_ms: transfers.limits.stuck_ms,
        database,
        development,
        halted: transfers.halt.reason().map(|reason| Halted { reason }),
        not_ready: readiness.problem().and_then(|part| part.why.clone()),
        recharges,
    };
    Ok(json(StatusCode::OK, &body, &call.request_id))
}
