//! Who an operator is, and what a console needs to know before it shows anything.

use hyper::StatusCode;
use jiff::Timestamp;
use serde::Serialize;

use crate::approval::Action;
use crate::http::readiness::Readiness;
use crate::http::service::{Call, Outcome, Service, query};
use crate::http::wire::json;
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
    /// Whether `serve --dev` made that database, so that development money may be made on it.
    development: bool,
    /// Why no new transfers are taken, if so.
    not_ready: Option<String>,
}

/// `GET /admin/v1/session`: of an admin only, so that whoever is let in may do what the console offers.
pub(super) async fn show(service: &Service, call: &Call) -> Outcome {
    let caller = service.intake.authenticate_admin(call)?;
    query(call, "")?;
    let (database, development) = service.operations.database.clone();
    let readiness = Readiness::look(service).await;
    let expires_at = i64::try_from(caller.expires_s).ok();
    let body = Body {
        user_id: caller.user.number(),
        // A token may be good for longer than a time can tell.
        expires_at: expires_at
            .and_then(|seconds| Timestamp::from_second(seconds).ok())
            .unwrap_or(Timestamp::MAX),
        version: release::VERSION,
        approval_required: service.approvals.required.iter().copied().map(Action::name).collect(),
        stuck_ms: service.transfers.limits.stuck_ms,
        database,
        development,
        halted: service.transfers.halt.reason().map(|reason| Halted { reason }),
        not_ready: readiness.problem().and_then(|part| part.why.clone()),
    };
    Ok(json(StatusCode::OK, &body, &call.request_id))
}
