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
use crate::http::answer::json;
use crate::http::refusal::{Outcome, Refusal, invalid, postgres_away};
use crate::http::request::{Call, query};
use crate::http::service::{Intake, Service};
use domain::code::Code;
use domain::shortage::Shortage;

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
/// the log when it is answered. A repeat changes nothing. PUT also opens a closed venue of the same
/// name.
pub(super) async fn change(
    service: Arc<Service>,
    change: Change,
    id: String,
    call: Call,
) -> Outcome {
    let Service { intake, transfers, spot, .. } = &*service;
    let request_id = call.request_id.clone();
    let caller = intake.authenticate_admin(&call)?;
    query(&call, "")?;
    let id = venue_of_path(&id)?;
    let VenueDraft { name, posts, reason } = intake.json_body(call).await?;
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
    let mut commands = vec![Command::CloseVenue { id, closed: change == Change::Close }];
    if change == Change::Add {
        // Without a word on it, a registered venue keeps its right to POST.
        let known = spot.venues().await.map_err(unanswered)?;
        let known = known.iter().find(|venue| venue.id == id).map(|venue| venue.posts);
        // A registration that a cut of the log has taken comes back as it was.
        let before = transfers.admin.posts_of(id).await.map_err(postgres_away)?;
        let posts = posts.or(known).or(before).unwrap_or(false);
        detail.push_str(&format!(" posts={posts}"));
        commands.insert(0, Command::AddVenue { id, name: text, posts });
    }
    let (actor, subject) = (actor(caller), format!("venue {id}"));
    let audit = transfers.admin.audit(&actor, change.name(), &subject, &detail, &reason);
    audit.await.map_err(postgres_away)?;
    warn!(actor, reason, venue = id, change = change.name(), "a venue is changed");
    if change == Change::Add {
        // Before the first record of a venue: from then on PostgreSQL alone proves no Spot balance.
        transfers.admin.mark_posted().await.map_err(postgres_away)?;
    }
    for command in commands {
        spot.change_venue(command).await.map_err(refused)?;
    }
    let body = Body { venue: id, closed: change == Change::Close };
    Ok(json(StatusCode::OK, &body, &request_id))
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
