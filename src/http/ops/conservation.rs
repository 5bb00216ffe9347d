//! The comparison of both stores, on request.

use hyper::StatusCode;
use jiff::Timestamp;
use serde::Serialize;
use tracing::error;

use crate::audit::mismatch::Mismatch;
use crate::audit::rounds::Check;
use crate::http::answer::json;
use crate::http::refusal::{Outcome, Refusal};
use crate::http::request::{Call, query};
use crate::http::service::{Intake, Transfers};
use crate::telemetry::chain;
use domain::code::Code;

/// One mismatch. A field that the finder does not know is null.
#[derive(Serialize)]
struct MismatchBody {
    user_id: Option<u64>,
    asset: Option<String>,
    difference: String,
    req_id: Option<String>,
    what: String,
}

/// `GET /admin/v1/conservation`: compares both stores now, and answers every mismatch.
pub(super) async fn check(
    intake: &Intake,
    transfers: &Transfers,
    check: &Check,
    call: &Call,
) -> Outcome {
    intake.authenticate_viewer(call)?;
    query(call, "")?;
    let found = check.now().await.map_err(|unchecked| {
        error!(error = chain(&unchecked), "the two stores were not compared");
        Refusal::because(Code::SystemError, format!("{unchecked}."))
    })?;
    let catalog = transfers.reads.catalog();
    let body = |mismatch: Mismatch| MismatchBody {
        user_id: mismatch.user.map(|user| user.number()),
        asset: mismatch.asset.and_then(|id| Some(catalog.by_id(id)?.symbol.clone())),
        difference: mismatch.difference(),
        req_id: mismatch.req_id.map(|req_id| req_id.to_string()),
        what: mismatch.what(),
    };
    #[derive(Serialize)]
    struct Body {
        ok: bool,
        at: Timestamp,
        mismatches: Vec<MismatchBody>,
    }
    let at = i128::from(transfers.clock.now_ns());
    let at = Timestamp::from_nanosecond(at).expect("before the year 2262");
    let mismatches: Vec<MismatchBody> = found.into_iter().map(body).collect();
    let body = Body { ok: mismatches.is_empty(), at, mismatches };
    Ok(json(StatusCode::OK, &body, &call.request_id))
}
