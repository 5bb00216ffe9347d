//! Venues: registered, closed and opened again by operators.

use std::sync::Arc;

use engine::venue::OpenError;
use hyper::StatusCode;
use serde::{Deserialize, Serialize};
use tracing::warn;

use super::audit_note::{actor, check_reason};
use crate::http::answer::json;
use crate::http::refusal::{Outcome, Refusal, invalid, postgres_away};
use crate::http::request::{Call, query};
use crate::http::service::Service;
use domain::code::Code;
use domain::shortage::Shortage;

/// A change of a venue.
#[derive(Clone, Copy)]
pub(super) enum Change {
    Add,
    Close,
    Open,
}

impl Change {
    /// Its name in the audit.
    fn name(self) -> &'static str {
        match self {
            Change::Add => "venue add",
            Change::Close => "venue close",
            Change::Open => "venue open",
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct VenueDraft {
    /// Of a new venue.
    name: Option<String>,
    /// Whether a new venue may move money between available balances.
    posts: Option<bool>,
    reason: String,
}

#[derive(Serialize)]
struct Body {
    venue: u32,
    closed: bool,
}

/// `PUT /admin/v1/venues/{venue}`, `POST /admin/v1/venues/{venue}/close` and `…/open`: durable in
/// the log when it is answered. A repeat changes nothing.
pub(super) async fn change(
    service: Arc<Service>,
    change: Change,
    id: String,
    call: Call,
) -> Outcome {
    let Service { intake, transfers, operations, .. } = &*service;
    let request_id = call.request_id.clone();
    let caller = intake.authenticate_admin(&call)?;
    query(&call, "")?;
    let venue: u32 = id.parse().map_err(|_| invalid("The venue must be a number."))?;
    let VenueDraft { name, posts, reason } = intake.json_body(call).await?;
    check_reason(&reason)?;
    let name = match (change, name, posts) {
        (Change::Add, Some(name), _) => name,
        (Change::Add, None, _) => return Err(invalid("A venue needs a name.")),
        (Change::Close | Change::Open, None, None) => String::new(),
        (Change::Close | Change::Open, ..) => return Err(invalid("Name and posts stay.")),
    };
    let (actor, subject) = (actor(caller), format!("venue {venue}"));
    let audit = transfers.admin.audit(&actor, change.name(), &subject, &name, &reason);
    audit.await.map_err(postgres_away)?;
    warn!(actor, reason, venue, change = change.name(), "a venue is changed");
    let engine = operations.engine.lock().clone();
    let changing = tokio::task::spawn_blocking(move || match change {
        Change::Add => engine.add_venue(venue, &name, posts.unwrap_or(false)),
        Change::Close => engine.close_venue(venue),
        Change::Open => engine.reopen_venue(venue),
    });
    changing.await.expect("no panic").map_err(refused)?;
    let body = Body { venue, closed: matches!(change, Change::Close) };
    Ok(json(StatusCode::OK, &body, &request_id))
}

fn refused(error: OpenError) -> Refusal {
    match error {
        OpenError::Unknown => Code::NotFound.into(),
        OpenError::Conflict => invalid("The number is another venue's, or the name is too long."),
        OpenError::NoRoom(_) => Shortage::LogSpace.into(),
        _ => Code::SystemError.into(),
    }
}
