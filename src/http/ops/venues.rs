//! Venues: registered, closed and opened again by operators.

use std::sync::Arc;

use engine::command::Command;
use engine::text::Text;
use engine::venue::{OpenError, VenueRow};
use hyper::StatusCode;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use tracing::warn;

use super::audit_note::{actor, check_reason};
use super::rejected::unanswered;
use crate::adapters::spot::{NotChanged, Spot};
use crate::config::snapshot::{KEEPS_POSTINGS, KEEPS_POSTINGS_CHANGE};
use crate::http::answer::json;
use crate::http::refusal::{Outcome, Refusal, invalid, postgres_away};
use crate::http::request::{Call, query};
use crate::http::service::{Intake, Service};
use domain::code::Code;
use domain::shortage::Shortage;

/// The actor of the program that the service runs in.
const PROGRAM: &str = "program";

/// A change of a venue.
#[derive(Clone, Copy, PartialEq, Eq)]
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

/// The number of a venue in a path.
pub(super) fn venue_of_path(text: &str) -> Result<u32, Refusal> {
    text.parse().map_err(|_| invalid("The venue must be a number."))
}

/// A venue, as operators read it.
#[derive(Serialize)]
struct Listed {
    venue: u32,
    name: String,
    posts: bool,
    closed: bool,
    epoch: u64,
    number: u64,
    acknowledged: u64,
    unacknowledged: u64,
    oldest_hold: Option<String>,
    oldest_hold_at: Option<Timestamp>,
}

impl From<&VenueRow> for Listed {
    fn from(row: &VenueRow) -> Listed {
        let &VenueRow { id, ref name, posts, closed, epoch, last, acknowledged, oldest } = row;
        let at = |time_ns: u64| {
            Timestamp::from_nanosecond(time_ns.into()).expect("any u64 of ns is in range")
        };
        Listed {
            venue: id,
            name: name.as_str().to_owned(),
            posts,
            closed,
            epoch,
            number: last,
            acknowledged,
            unacknowledged: last - acknowledged,
            oldest_hold: oldest.map(|(number, _)| format!("{id}:{number}")),
            oldest_hold_at: oldest.map(|(_, time_ns)| at(time_ns)),
        }
    }
}

/// `GET /admin/v1/venues`: all venues, by number.
pub(super) async fn list(intake: &Intake, spot: &Spot, call: &Call) -> Outcome {
    intake.authenticate_viewer(call)?;
    query(call, "")?;
    let mut venues = spot.venues().await.map_err(|_| Refusal::away("UBSCore"))?;
    venues.sort_unstable_by_key(|venue| venue.id);
    #[derive(Serialize)]
    struct Body {
        venues: Vec<Listed>,
    }
    let body = Body { venues: venues.iter().map(Listed::from).collect() };
    Ok(json(StatusCode::OK, &body, &call.request_id))
}

/// `PUT /admin/v1/venues/{venue}`, `POST /admin/v1/venues/{venue}/close` and `…/open`: durable in
/// the log when it is answered. A repeat changes nothing. Only `open` opens a closed venue.
pub(super) async fn change(
    service: Arc<Service>,
    change: Change,
    id: String,
    call: Call,
) -> Outcome {
    let intake = &service.intake;
    let request_id = call.request_id.clone();
    let caller = intake.authenticate_admin(&call)?;
    query(&call, "")?;
    let id = venue_of_path(&id)?;
    let draft = intake.json_body(call).await?;
    let body = carry_out(&service, change, id, draft, &actor(caller)).await?;
    Ok(json(StatusCode::OK, &body, &request_id))
}

/// Adds a venue for the program that the service runs in, as PUT does for an operator.
///
/// # Errors
/// As PUT.
pub async fn add(
    service: &Service,
    id: u32,
    name: String,
    posts: bool,
    reason: String,
) -> Result<(), Refusal> {
    let draft = VenueDraft { name: Some(name), posts: Some(posts), reason };
    carry_out(service, Change::Add, id, draft, PROGRAM).await.map(drop)
}

/// Carries out a change: the audit row first, the record last.
async fn carry_out(
    service: &Service,
    change: Change,
    id: u32,
    draft: VenueDraft,
    actor: &str,
) -> Result<Body, Refusal> {
    let Service { transfers, spot, operations, .. } = service;
    let VenueDraft { name, posts, reason } = draft;
    check_reason(&reason)?;
    let named = || invalid("name must be 1 to 32 bytes.");
    let text = match (change, name, posts) {
        (Change::Add, Some(name), _) => {
            Text::new(&name).filter(|name| !name.as_str().is_empty()).ok_or_else(named)?
        }
        (Change::Add, None, _) => return Err(invalid("A venue needs a name.")),
        (Change::Close | Change::Open, None, None) => Text::EMPTY,
        (Change::Close | Change::Open, ..) => return Err(invalid("Name and posts stay.")),
    };
    let mut detail = text.as_str().to_owned();
    let mut closed = change == Change::Close;
    let mut command = Command::CloseVenue { id, closed };
    let mut is_first = false;
    if change == Change::Add {
        let venues = spot.venues().await.map_err(unanswered)?;
        let known = venues.iter().find(|venue| venue.id == id);
        // Without a word on it, a registered venue keeps its right to POST.
        let posts = match posts.or(known.map(|venue| venue.posts)) {
            Some(posts) => posts,
            // A registration that a cut of the log has taken comes back as it was.
            None if transfers.halt.is_cut_open() => {
                let before = transfers.admin.posts_of(id).await.map_err(postgres_away)?;
                let both = "It was added with and without the right to POST before the cut: \
                            say posts.";
                match before[..] {
                    [] => false,
                    [posts] => posts,
                    _ => return Err(invalid(both)),
                }
            }
            None => false,
        };
        detail.push_str(&format!(" posts={posts}"));
        command = Command::AddVenue { id, name: text, posts };
        (closed, is_first) = (known.is_some_and(|venue| venue.closed), venues.is_empty());
    }
    let subject = format!("venue {id}");
    let audit = transfers.admin.audit(actor, change.name(), &subject, &detail, &reason);
    audit.await.map_err(postgres_away)?;
    warn!(actor, reason, venue = id, change = change.name(), "a venue is changed");
    if change == Change::Add {
        // Before the first record of a venue: from then on PostgreSQL alone proves no Spot balance.
        transfers.admin.mark_posted().await.map_err(postgres_away)?;
    }
    spot.change_venue(command).await.map_err(refused)?;
    if is_first && operations.keeps_postings {
        warn!("{KEEPS_POSTINGS}; next: {KEEPS_POSTINGS_CHANGE}");
    }
    Ok(Body { venue: id, closed })
}

/// The refusal if a venue was not changed, or a hold was not released.
pub(super) fn refused(failure: NotChanged) -> Refusal {
    match failure {
        NotChanged::Unanswered(failure) => unanswered(failure),
        NotChanged::Refused(OpenError::Unknown) => {
            Refusal::because(Code::NotFound, "There is no such venue.")
        }
        NotChanged::Refused(OpenError::Conflict) => {
            invalid("The number is another venue's: its name and its right to POST never change.")
                .with_status(StatusCode::CONFLICT)
        }
        NotChanged::Refused(OpenError::NotClosed) => {
            let message = "The venue is open: it may match the hold's order. Close it first.";
            invalid(message).with_status(StatusCode::CONFLICT)
        }
        NotChanged::Refused(OpenError::NoHold) => Code::HoldNotFound.into(),
        NotChanged::Refused(OpenError::NoRoom(_)) => Shortage::LogSpace.into(),
        NotChanged::Refused(_) => Code::SystemError.into(),
    }
}
