//! A snapshot on request.

use hyper::StatusCode;
use serde::{Deserialize, Serialize};

use super::audit_note::{actor, check_reason};
use crate::http::answer::json;
use crate::http::refusal::{Outcome, postgres_away};
use crate::http::request::{Call, query};
use crate::http::service::{Intake, Operations};
use crate::postgres::admin::Admin;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SnapshotDraft {
    reason: String,
}

/// `POST /admin/v1/snapshot`: asks for a snapshot, and does not wait: a large one takes longer than
/// a request may.
pub(super) async fn ask(
    intake: &Intake,
    admin: &Admin,
    operations: &Operations,
    call: Call,
) -> Outcome {
    let request_id = call.request_id.clone();
    let caller = intake.authenticate_admin(&call)?;
    query(&call, "")?;
    let draft: SnapshotDraft = intake.json_body(call).await?;
    check_reason(&draft.reason)?;
    let after = operations.engine.lock().durable();
    let (actor, subject) = (actor(caller), format!("log {after}"));
    admin.audit(&actor, "snapshot", &subject, "", &draft.reason).await.map_err(postgres_away)?;
    operations.snapshots.ask();
    #[derive(Serialize)]
    struct Body {
        /// The snapshot will cover the log up to this record, or further.
        after: u64,
    }
    Ok(json(StatusCode::ACCEPTED, &Body { after }, &request_id))
}
