//! What operators do about events that an endpoint did not take: list them, and have them delivered after all.

use hyper::StatusCode;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{actor, check_reason};
use crate::http::api::away;
use crate::http::events::event_id;
use crate::http::service::{Call, Outcome, Service, parameters, query};
use crate::http::wire::{Refusal, json};
use crate::postgres::webhooks::DeadLetter;
use domain::code::Code;

/// The dead letters of a page, where nobody says.
const LIMIT_DEFAULT: u32 = 100;
/// The most dead letters of a page.
const LIMIT_MAX: u32 = 1_000;

/// A dead letter.
#[derive(Serialize)]
struct LetterBody {
    /// Text: it is more than a number of JSON keeps everywhere.
    event_id: String,
    endpoint: String,
    req_id: String,
    state: &'static str,
    at: Timestamp,
    attempts: u32,
    error: Option<String>,
    died_at: Timestamp,
}

impl From<DeadLetter> for LetterBody {
    fn from(letter: DeadLetter) -> LetterBody {
        LetterBody {
            event_id: letter.event_id.to_string(),
            endpoint: letter.endpoint,
            req_id: letter.req_id,
            state: letter.state.name(),
            at: letter.at,
            attempts: letter.attempts,
            error: letter.last_error,
            died_at: letter.died_at,
        }
    }
}

/// `GET /admin/v1/webhooks/dead`: oldest first.
pub(super) async fn dead(service: &Service, call: Call) -> Outcome {
    service.intake.authenticate_viewer(&call)?;
    let invalid = |what: &str| Refusal::because(Code::InvalidRequest, what.to_owned());
    let [limit, cursor] =
        parameters(call.request.uri().query().unwrap_or(""), ["limit", "cursor"])?;
    let limit = limit.map_or(Some(LIMIT_DEFAULT), |text| text.parse().ok());
    let limit = limit
        .filter(|limit| (1..=LIMIT_MAX).contains(limit))
        .ok_or_else(|| invalid("limit must be 1 to 1000."))?;
    // The last letter of the page before: its event, and to whom.
    let (event, endpoint) =
        cursor.as_deref().map_or(("0", ""), |text| text.split_once('.').unwrap_or(("", "")));
    let event = event_id(event)
        .map_err(|_| invalid("cursor must be the next_cursor of an earlier answer."))?;
    let letters =
        service.transfers.reads.dead_letters((event, endpoint), limit).await.map_err(away)?;
    let full = u32::try_from(letters.len()).is_ok_and(|count| count == limit);
    let next = letters.last().filter(|_| full);
    let next_cursor = next.map(|last| format!("{}.{}", last.event_id, last.endpoint));
    #[derive(Serialize)]
    struct Body {
        dead: Vec<LetterBody>,
        next_cursor: Option<String>,
    }
    let body = Body { dead: letters.into_iter().map(LetterBody::from).collect(), next_cursor };
    Ok(json(StatusCode::OK, &body, &call.request_id))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ResendDraft {
    reason: String,
}

/// `POST /admin/v1/webhooks/{event_id}/resend`: it is due now, and as if for the first time.
pub(super) async fn resend(service: &Service, event: &str, call: Call) -> Outcome {
    let request_id = call.request_id.clone();
    let caller = service.intake.authenticate_admin(&call)?;
    query(&call, "")?;
    let none = || Refusal::because(Code::NotFound, "There is no dead letter of this event.");
    let event_id = event_id(event).map_err(|_| none())?;
    let ResendDraft { reason } = service.intake.json_body(call).await?;
    check_reason(&reason)?;
    let resent =
        service.transfers.reads.resend(event_id, &actor(caller), &reason).await.map_err(away)?;
    if !resent {
        return Err(none());
    }
    if let Some(hub) = &service.streams.hub {
        hub.ring_for_deliveries();
    }
    #[derive(Serialize)]
    struct Body {
        event_id: String,
        due: bool,
    }
    let body = Body { event_id: event_id.to_string(), due: true };
    Ok(json(StatusCode::OK, &body, &request_id))
}
