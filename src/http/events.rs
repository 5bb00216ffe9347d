//! `GET /api/v1/events`: a user's own transfers as they move, as server-sent events.
//!
//! What a stream tells is read in PostgreSQL behind the commits, so that no crash takes it back and GET tells the same or more.
//! A stream that ends, for whatever reason, is gone on with by the last id that it has told; each event is told at least once.
//!
//! Source: "Server-sent events" of the HTML standard.

use std::convert::Infallible;
use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream;
use http_body_util::{BodyExt, StreamBody};
use hyper::Response;
use hyper::body::Frame;
use hyper::header::{AUTHORIZATION, CACHE_CONTROL, CONTENT_TYPE, HeaderName, HeaderValue};
use serde_json::json;
use tokio::sync::mpsc;
use tracing::{debug, warn};

use super::X_REQUEST_ID;
use super::api::away;
use super::auth::Verifier;
use super::service::{Call, Caller, Outcome, Service, query};
use super::wire::{Content, EventBody, Refusal};
use crate::clock::{Clock, Sleep};
use crate::events::{Full, Place};
use crate::postgres::events::Event;
use crate::postgres::reads::Reads;
use crate::telemetry::{self, chain};
use domain::code::Code;
use domain::shortage::Shortage;

/// What a browser sends when it goes on.
const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");
/// Proxies that read this pass on what they have at once.
const X_ACCEL_BUFFERING: HeaderName = HeaderName::from_static("x-accel-buffering");
/// Events read at once by a stream that has missed some.
const PAGE_ROWS: u32 = 200;
/// How long a client is asked to wait before it comes again, ms.
const RETRY_MS: u32 = 1_000;
/// Where a client reads what no event tells it any more.
const LIST: &str = "/api/v1/internal_transfers";
/// How long one read of PostgreSQL may take.
const READ_MAX: Duration = Duration::from_secs(10);
/// A life longer than this is as good as one without end.
const LIFE_MAX: Duration = Duration::from_secs(366 * 86_400);

/// Answers with a stream that ends with the token, with the service, or when the client does not keep up.
pub(super) async fn follow(service: &Service, caller: Caller, call: Call) -> Outcome {
    let Some(hub) = &service.streams.hub else {
        return Err(Refusal::because(Code::NotFound, "Events are turned off."));
    };
    // A browser that comes again has the newer id in its header.
    let given = match call.request.headers().get(LAST_EVENT_ID) {
        Some(value) => Some(value.to_str().unwrap_or("")),
        None => None,
    };
    let after = query(&call, "after")?;
    let after = given.or(after.as_deref()).map(event_id).transpose()?;
    let place = hub.enter(caller.user).map_err(|full| {
        let message = match full {
            Full::User => "This user has as many streams open as one may.",
            Full::All => Shortage::Streams.message(),
            Full::Closed => "The service is stopping.",
        };
        Refusal { message: Some(message.to_owned()), ..Shortage::Streams.into() }
    })?;
    let position = service.transfers.reads.position(after).await.map_err(away)?;
    // An id without an event as well: who is cut off before the first event goes on from here.
    let last = after.filter(|_| position.known).unwrap_or(position.last);
    let mut head = format!("retry: {RETRY_MS}\nid: {last}\n");
    if let Some(after) = after.filter(|_| !position.known) {
        debug!(user = %caller.user, after, "a stream cannot be gone on with");
        // Whatever it has missed, it finds there: every event behind this one comes later than that list.
        let gap = json!({"after": after.to_string(), "last": last.to_string(), "read": LIST});
        write!(head, "event: gap\ndata: {gap}\n").expect("a string takes all");
    }
    head.push('\n');
    let authorization = call.request.headers().get(AUTHORIZATION).cloned();
    let life =
        Duration::from_secs(caller.expires_s.saturating_sub(service.transfers.clock.now_s()));
    let stream = Stream {
        closing: Box::pin(hub.closing()),
        expiry: service.transfers.clock.sleep(life.min(LIFE_MAX)),
        head: Some(head),
        last,
        phase: Phase::Behind,
        heartbeat: service.streams.heartbeat,
        said_ns: service.transfers.clock.monotonic_ns(),
        longest_stall: Duration::ZERO,
        reads: service.transfers.reads.clone(),
        clock: Arc::clone(&service.transfers.clock),
        verifier: Arc::clone(&service.intake.verifier),
        authorization,
        place,
    };
    let parts = stream::unfold(Some(stream), |stream| async {
        let (text, stream) = stream?.next().await;
        Some((Ok::<_, Infallible>(Frame::data(Bytes::from(text))), stream))
    });
    let mut answer = Response::new(Content::Right(StreamBody::new(parts).boxed_unsync()));
    let request_id = HeaderValue::from_str(&call.request_id).expect("made by us or found sane");
    let headers = answer.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(X_ACCEL_BUFFERING, HeaderValue::from_static("no"));
    headers.insert(X_REQUEST_ID, request_id);
    Ok(answer)
}

/// An id as we write it.
pub(super) fn event_id(text: &str) -> Result<i64, Refusal> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let id = if digits { text.parse().ok() } else { None };
    let wrong = "Last-Event-ID and after must be the id of an event.";
    id.ok_or_else(|| Refusal::because(Code::InvalidRequest, wrong))
}

/// How far a stream is.
enum Phase {
    /// It reads what it has missed.
    Behind,
    /// It reads what has come while it read, and whatever comes meanwhile waits for it.
    Joining(mpsc::Receiver<Arc<Event>>),
    /// It waits for what comes.
    Live(mpsc::Receiver<Arc<Event>>),
}

/// What a stream wakes up for.
enum Woken {
    Read(Result<Vec<Event>, crate::postgres::Error>),
    Told(Option<Arc<Event>>),
    Idle,
    Expired,
    Closing,
}

/// One client's stream. It works only while the client takes what it says.
struct Stream {
    closing: std::pin::Pin<Box<dyn Future<Output = ()> + Send>>,
    expiry: Sleep,
    head: Option<String>,
    /// The last event told, or passed over with the client's knowledge.
    last: i64,
    phase: Phase,
    heartbeat: Duration,
    /// When it last had something to say, monotonic ns, and the longest time that the client took for it.
    said_ns: u64,
    longest_stall: Duration,
    reads: Reads,
    clock: Arc<dyn Clock>,
    /// The keys may change, and what was signed with one that is gone counts no more.
    verifier: Arc<Verifier>,
    authorization: Option<HeaderValue>,
    /// Until the stream is dropped, however it ends.
    place: Place,
}

impl Stream {
    /// The next text, and the stream, unless this is its end.
    async fn next(mut self) -> (String, Option<Stream>) {
        if let Some(head) = self.head.take() {
            return (head, Some(self));
        }
        let stall = Duration::from_nanos(self.clock.monotonic_ns() - self.said_ns);
        self.longest_stall = self.longest_stall.max(stall);
        loop {
            let woken = tokio::select! {
                biased;
                () = &mut self.closing => Woken::Closing,
                () = &mut self.expiry => Woken::Expired,
                woken = advance(&mut self.phase, &self.place, &self.reads, self.last, &*self.clock, self.heartbeat) => woken,
            };
            let authorization = self.authorization.as_ref().and_then(|value| value.to_str().ok());
            if self.verifier.verify(authorization, self.clock.now_s()).is_err() {
                return self.end("token_expired");
            }
            let text = match woken {
                Woken::Closing => return self.end("stopping"),
                Woken::Expired => return self.end("token_expired"),
                Woken::Idle => ":\n\n".to_owned(),
                Woken::Told(None) if self.longest_stall > self.heartbeat => {
                    return self.end("slow");
                }
                // More at once than there is room for, and the client keeps up.
                Woken::Told(None) => {
                    self.phase = Phase::Behind;
                    continue;
                }
                // Read in PostgreSQL before it came here.
                Woken::Told(Some(event)) if event.id <= self.last => continue,
                Woken::Told(Some(event)) => self.tell(&[&event]),
                Woken::Read(Err(error)) => {
                    warn!(error = chain(&error), "a stream of events cannot be read on");
                    return self.end("unavailable");
                }
                Woken::Read(Ok(page)) => {
                    let whole = u32::try_from(page.len()).is_ok_and(|rows| rows < PAGE_ROWS);
                    if whole {
                        self.phase = match self.phase {
                            Phase::Behind => {
                                self.longest_stall = Duration::ZERO;
                                Phase::Joining(self.place.follow())
                            }
                            Phase::Joining(events) | Phase::Live(events) => Phase::Live(events),
                        };
                    }
                    if page.is_empty() {
                        continue;
                    }
                    self.tell(&page.iter().collect::<Vec<_>>())
                }
            };
            self.said_ns = self.clock.monotonic_ns();
            return (text, Some(self));
        }
    }

    /// Events as text.
    fn tell(&mut self, events: &[&Event]) -> String {
        let catalog = self.reads.catalog();
        let mut text = String::new();
        for event in events {
            let (id, data) = (event.id, EventBody::json(event, &catalog));
            write!(text, "id: {id}\nevent: transfer\ndata: {data}\n\n")
                .expect("a string takes all");
            self.last = id;
        }
        text
    }

    /// The last text: why it ends. The client goes on by the last id.
    fn end(self, reason: &'static str) -> (String, Option<Stream>) {
        telemetry::event_stream_ended(reason);
        debug!(user = %self.place.user(), reason, "a stream of events ends");
        (format!("event: end\ndata: {}\n\n", json!({"reason": reason})), None)
    }
}

/// Reads on, or waits for what comes.
async fn advance(
    phase: &mut Phase,
    place: &Place,
    reads: &Reads,
    last: i64,
    clock: &dyn Clock,
    heartbeat: Duration,
) -> Woken {
    match phase {
        Phase::Behind | Phase::Joining(_) => {
            let _reading = place.may_read().await;
            tokio::select! {
                read = reads.events(place.user(), last, PAGE_ROWS) => Woken::Read(read),
                // A server that hangs must not keep the others from reading.
                () = clock.sleep(READ_MAX) => {
                    Woken::Read(Err(crate::postgres::Error::Timeout(READ_MAX)))
                }
            }
        }
        Phase::Live(events) => tokio::select! {
            event = events.recv() => Woken::Told(event),
            () = clock.sleep(heartbeat) => Woken::Idle,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_what_we_have_written() {
        assert_eq!(event_id("0").expect("an id"), 0);
        assert_eq!(event_id("9223372036854775807").expect("an id"), i64::MAX);
        for text in ["", "-1", "+1", " 1", "1 ", "x", "9223372036854775808", "1.0"] {
            let refusal = event_id(text).expect_err(text);
            assert_eq!(refusal.code, Code::InvalidRequest, "{text}");
        }
    }
}
