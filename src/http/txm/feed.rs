//! `GET /api/v1/tx/events`: the feed of all changes, in order, at least once.

use std::time::Duration;

use hyper::StatusCode;

use super::shown::{EventBody, FeedBody, cursor, cursor_text};
use super::token::TxCaller;
use super::transactions::wait;
use super::{TxmService, store_away};
use crate::http::answer::json;
use crate::http::refusal::{Outcome, invalid};
use crate::http::request::{Call, number, parameters};

/// The most events of one answer, and the usual number.
const LIMIT_MAX: u32 = 1_000;
const LIMIT_DEFAULT: u32 = 100;

/// Answers the events behind `after`; without it, from the first one on. A service gets those of
/// its signers. With `waitMs`, waits that long for the first one.
pub(super) async fn read(service: &TxmService, call: &Call) -> Outcome {
    let caller = TxCaller::of(&service.intake, call)?;
    let text = call.request.uri().query().unwrap_or("");
    let [after, limit, wait_ms] = parameters(text, ["after", "limit", "waitMs"])?;
    let mut place = match after {
        None => Default::default(),
        Some(text) => cursor(&text).ok_or_else(|| invalid("after is not one of an answer."))?,
    };
    let limit = limit.map_or(Ok(LIMIT_DEFAULT), |text| number("limit", &text, 1..=LIMIT_MAX))?;
    let wait = wait(wait_ms.as_deref())?.min(service.wait_max);
    let begun = service.clock.monotonic_ns();
    loop {
        let events = service.reads.events(place, limit).await.map_err(store_away)?;
        // Those of other signers move the place too, so that they are read once.
        let is_whole = u32::try_from(events.len()).is_ok_and(|count| count >= limit);
        place = events.last().map_or(place, |event| event.cursor);
        let events: Vec<EventBody> = events
            .into_iter()
            .filter(|event| caller.sees(event.signer))
            .map(EventBody::new)
            .collect();
        let passed = Duration::from_nanos(service.clock.monotonic_ns() - begun);
        let is_over = !events.is_empty() || passed >= wait;
        if is_over || (!is_whole && !service.pause().await) {
            let body = FeedBody { events, next: cursor_text(place) };
            return Ok(json(StatusCode::OK, &body, &call.request_id));
        }
    }
}
