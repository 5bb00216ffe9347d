//! Roles of PostgreSQL that may commit transactions in local transactions of their own.

use std::sync::Arc;

use hyper::StatusCode;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use tracing::warn;

use super::audit_note::{actor, check_reason};
use super::transactions::owner_of;
use crate::http::answer::json;
use crate::http::refusal::{Outcome, Refusal, invalid, postgres_away};
use crate::http::request::{Call, query};
use crate::http::service::{Intake, Service};
use crate::postgres::Error;
use crate::postgres::reads::Reads;
use crate::postgres::reads::transactions::CallerGrant;
use domain::code::Code;

/// The most bytes of a role's name in PostgreSQL.
const ROLE_BYTES_MAX: usize = 63;

#[derive(Serialize)]
struct GrantBody {
    role: String,
    owner: String,
    at: Timestamp,
}

/// `GET /admin/v1/transactions/grants`: all grants.
pub(super) async fn list(intake: &Intake, reads: &Reads, call: &Call) -> Outcome {
    intake.authenticate_viewer(call)?;
    query(call, "")?;
    let grants = reads.callers().await.map_err(postgres_away)?;
    #[derive(Serialize)]
    struct Body {
        grants: Vec<GrantBody>,
    }
    let body =
        |grant: CallerGrant| GrantBody { role: grant.role, owner: grant.owner, at: grant.at };
    let body = Body { grants: grants.into_iter().map(body).collect() };
    Ok(json(StatusCode::OK, &body, &call.request_id))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct GrantDraft {
    role: String,
    owner: String,
    reason: String,
}

/// `POST /admin/v1/transactions/grants` and `…/revoke`: in force when it is answered. A repeat
/// changes nothing.
pub(super) async fn change(service: Arc<Service>, granted: bool, call: Call) -> Outcome {
    let request_id = call.request_id.clone();
    let caller = service.intake.authenticate_admin(&call)?;
    query(&call, "")?;
    let GrantDraft { role, owner, reason } = service.intake.json_body(call).await?;
    check_reason(&reason)?;
    let owner = owner_of(&owner)?;
    if !(1..=ROLE_BYTES_MAX).contains(&role.len()) || role.contains('\0') {
        return Err(invalid(format!("role must be 1 to {ROLE_BYTES_MAX} bytes.")));
    }
    let (admin, actor, name) = (&service.transfers.admin, actor(caller), owner.as_str());
    let changed = match granted {
        true => admin.grant_caller(&role, name, &actor, &reason).await,
        false => admin.revoke_caller(&role, name, &actor, &reason).await.map(drop),
    };
    changed.map_err(|failure| match failure {
        Error::UnknownRole(role) => {
            Refusal::because(Code::NotFound, format!("PostgreSQL has no role {role:?}."))
        }
        failure => postgres_away(failure),
    })?;
    warn!(actor, reason, role, %owner, granted, "a grant is changed");
    #[derive(Serialize)]
    struct Body {
        role: String,
        owner: String,
        granted: bool,
    }
    let body = Body { role, owner: owner.to_string(), granted };
    Ok(json(StatusCode::OK, &body, &request_id))
}
