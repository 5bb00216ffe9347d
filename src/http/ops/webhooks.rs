//! Dead letters: operators list the events that an endpoint did not accept, and send them again.

use hyper::StatusCode;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::audit_note::{actor, check_reason};
use super::page::{LIMIT_DEFAULT, LIMIT_MAX};
use crate::events::Hub;
use crate::http::answer::json;
use crate::http::event_id::event_id;
use crate::http::refusal::{Outcome, Refusal, invalid, postgres_away};
use crate::http::request::{Call, parameters, query};
use crate::http::service::{Intake, Transfers};
use crate::postgres::reads::Reads;
use crate::postgres::webhooks::{DeadLetter, LetterSubject};
use domain::code::Code;

/// A dead letter.
#[derive(Serialize)]
struct LetterBody {
    /// Text: many JSON readers lose digits of a number this large.
    event_id: String,
    endpoint: String,
    /// Of a transfer; null otherwise.
    req_id: Option<String>,
    /// Of a transaction; null otherwise.
    transaction_id: Option<String>,
    /// Of a recharge; null otherwise.
    recharge_id: Option<String>,
    state: &'static str,
    at: Timestamp,
    attempts: u32,
    error: Option<String>,
    died_at: Timestamp,
}

impl From<DeadLetter> for LetterBody {
    fn from(letter: DeadLetter) -> LetterBody {
        let of = |wanted| (letter.about == wanted).then(|| letter.req_id.clone());
        LetterBody {
            event_id: letter.event_id.to_string(),
            req_id: of(LetterSubject::Transfer),
            transaction_id: of(LetterSubject::Transaction),
            recharge_id: of(LetterSubject::Recharge),
            endpoint: letter.endpoint,
            state: letter.state,
            at: letter.at,
            attempts: letter.attempts,
            error: letter.last_error,
            died_at: letter.died_at,
        }
    }
}

/// `GET /admin/v1/webhooks/dead`: oldest first.
pub(super) async fn dead(intake: &Intake, reads: &Reads, call: &Call) -> Outcome {
    intake.authenticate_viewer(call)?;
    let [limit, cursor] =
        parameters(call.request.uri().query().unwrap_or(""), ["limit", "cursor"])?;
    let limit = limit.map_or(Some(LIMIT_DEFAULT), |text| text.parse().ok());
    let limit = limit
        .filter(|limit| (1..=LIMIT_MAX).contains(limit))
        .ok_or_else(|| invalid("limit must be 1 to 1000."))?;
    // The last letter of the page before: its event and its endpoint.
    let (event, endpoint) =
        cursor.as_deref().map_or(("0", ""), |text| text.split_once('.').unwrap_or(("", "")));
    let event = event_id(event)
        .map_err(|_| invalid("cursor must be the next_cursor of an earlier answer."))?;
    let letters = reads.dead_letters((event, endpoint), limit).await.map_err(postgres_away)?;
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

/// `POST /admin/v1/webhooks/{event_id}/resend`: the event is due now, with all its attempts.
pub(super) async fn resend(
    intake: &Intake,
    transfers: &Transfers,
    hub: Option<&Hub>,
    event: &str,
    call: Call,
) -> Outcome {
    let request_id = call.request_id.clone();
    let caller = intake.authenticate_admin(&call)?;
    query(&call, "")?;
    let none = || Refusal::because(Code::NotFound, "There is no dead letter of this event.");
    let event_id = event_id(event).map_err(|_| none())?;
    let ResendDraft { reason } = intake.json_body(call).await?;
    check_reason(&reason)?;
    let resent = transfers.admin.resend(event_id, &actor(caller), &reason).await;
    let resent = resent.map_err(postgres_away)?;
    if !resent {
        return Err(none());
    }
    transfers.coordinator.cover().await;
    if let Some(hub) = hub {
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
