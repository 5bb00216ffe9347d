//! `GET /api/v1/events`: a user's own transfers and recharges as they move, and the ends of
//! transactions with legs of this user, as server-sent events.
//!
//! A stream sends committed events only: no crash takes one back, and GET answers the same state or
//! a later one. A client continues an ended stream by the last id that it has received. Each event
//! is sent at least once. Events of transactions are always read in PostgreSQL: the hub only says
//! that there is one.
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

use crate::clock::{Clock, Sleep};
use crate::coordinator::worker::shard_of;
use crate::events::{Full, Place, Pushed};
use crate::http::answer::Content;
use crate::http::auth::Verifier;
use crate::http::event_id::stream_id;
use crate::http::recharge_event::RechargeEventBody;
use crate::http::refusal::{Outcome, Refusal, postgres_away};
use crate::http::request::{Call, query};
use crate::http::request_id::X_REQUEST_ID;
use crate::http::service::{Caller, Streams};
use crate::http::transaction_event::TransactionEventBody;
use crate::http::wire::EventBody;
use crate::postgres::events::{Event, EventCursor, Missed, UserEvent};
use crate::postgres::reads::Reads;
use crate::postgres::recharge_events::RechargeEvent;
use crate::telemetry::{self, chain};
use domain::code::Code;
use domain::shortage::Shortage;

/// The header of a browser that continues a stream.
const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");
/// A proxy that reads this header does not buffer.
const X_ACCEL_BUFFERING: HeaderName = HeaderName::from_static("x-accel-buffering");
/// Events of one read, while a stream catches up.
const PAGE_ROWS: usize = 200;
/// The pause before a client connects again, ms; sent as `retry:`.
const RETRY_MS: u32 = 1_000;
/// The route that answers transfers whose events are deleted.
const LIST: &str = "/api/v1/internal_transfers";
/// The longest read of PostgreSQL; then the stream ends as `unavailable`.
const READ_MAX: Duration = Duration::from_secs(10);
/// The longest life of a stream. A timer cannot hold every expiry of a token.
const LIFE_MAX: Duration = Duration::from_secs(366 * 86_400);

/// Answers with a stream. It ends with the token, with the service, or if the client is too slow.
pub(super) async fn follow(streams: &Streams, caller: Caller, call: Call) -> Outcome {
    let Some(hub) = &streams.hub else {
        return Err(Refusal::because(
            Code::NotFound,
            "Events are turned off in the configuration.",
        ));
    };
    // A browser that reconnects sends the newer id in its header.
    let given = match call.request.headers().get(LAST_EVENT_ID) {
        Some(value) => Some(value.to_str().unwrap_or("")),
        None => None,
    };
    let after = query(&call, "after")?;
    let after = given.or(after.as_deref()).map(stream_id).transpose()?;
    let place = hub.enter(caller.user).map_err(|full| {
        let message = match full {
            Full::User => "This user has reached the limit of open streams. Close one.",
            Full::All => Shortage::Streams.message(),
            Full::Closed => "The service is stopping.",
        };
        Refusal { message: Some(message.to_owned()), ..Shortage::Streams.into() }
    })?;
    let shard = shard_of(caller.user, streams.shards);
    let of_transfer = after.map(|after| after.transfer);
    let position = streams.reads.position(caller.user, shard, of_transfer).await;
    let position = position.map_err(postgres_away)?;
    // The id is sent before any event: a client that is cut off early continues from here.
    let last = match after {
        None => position.last,
        Some(after) if position.known => after,
        Some(after) => EventCursor { transfer: position.last.transfer, ..after },
    };
    let mut head = format!("retry: {RETRY_MS}\nid: {last}\n");
    if let Some(after) = after.filter(|_| !position.known) {
        let (after, last) = (after.transfer, last.transfer);
        debug!(user = %caller.user, after, "a stream cannot be continued: its event is deleted");
        // The list has all that the client missed: every later event is committed after it.
        let gap = json!({"after": after.to_string(), "last": last.to_string(), "read": LIST});
        write!(head, "event: gap\ndata: {gap}\n").expect("a string takes all");
    }
    head.push('\n');
    let authorization = call.request.headers().get(AUTHORIZATION).cloned();
    let life = Duration::from_secs(caller.expires_s.saturating_sub(streams.clock.now_s()));
    let stream = Stream {
        closing: Box::pin(hub.closing()),
        expiry: streams.clock.sleep(life.min(LIFE_MAX)),
        head: Some(head),
        last,
        phase: Phase::Behind(Missed::after(caller.user, shard, last)),
        heartbeat: streams.heartbeat.0,
        sent_ns: streams.clock.monotonic_ns(),
        longest_stall: Duration::ZERO,
        shard,
        reads: streams.reads.clone(),
        clock: Arc::clone(&streams.clock),
        verifier: Arc::clone(&streams.verifier),
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

/// The phase of a stream.
enum Phase {
    /// It reads the events that it has missed.
    Behind(Missed),
    /// It reads the events that came during the last read. Newer ones wait in the queue.
    Joining(Missed, mpsc::Receiver<Pushed>),
    /// It waits for events in the queue.
    Live(mpsc::Receiver<Pushed>),
}

/// Why a stream wakes up.
enum Woken {
    Read(Result<Option<Vec<UserEvent>>, crate::postgres::Error>),
    Event(Option<Pushed>),
    Idle,
    Expired,
    Closing,
}

/// One client's stream. It works only while the client reads it.
struct Stream {
    closing: std::pin::Pin<Box<dyn Future<Output = ()> + Send>>,
    expiry: Sleep,
    head: Option<String>,
    /// The last events that were sent, or that the client knows to be skipped.
    last: EventCursor,
    phase: Phase,
    heartbeat: Duration,
    /// When the last text was sent, monotonic ns, and the longest time that the client took for
    /// one.
    sent_ns: u64,
    longest_stall: Duration,
    /// The user's.
    shard: usize,
    reads: Reads,
    clock: Arc<dyn Clock>,
    /// The keys may change: a token signed with a removed key ends its stream.
    verifier: Arc<Verifier>,
    authorization: Option<HeaderValue>,
    /// Held until the stream is dropped.
    place: Place,
}

impl Stream {
    /// The next text, and the stream unless it ends here.
    async fn next(mut self) -> (String, Option<Stream>) {
        if let Some(head) = self.head.take() {
            return (head, Some(self));
        }
        let stall = Duration::from_nanos(self.clock.monotonic_ns() - self.sent_ns);
        self.longest_stall = self.longest_stall.max(stall);
        loop {
            let woken = tokio::select! {
                biased;
                () = &mut self.closing => Woken::Closing,
                () = &mut self.expiry => Woken::Expired,
                woken = advance(&mut self.phase, &self.place, &self.reads, &*self.clock, self.heartbeat) => woken,
            };
            let authorization = self.authorization.as_ref().and_then(|value| value.to_str().ok());
            if self.verifier.verify(authorization, self.clock.now_s()).is_err() {
                return self.end("token_expired");
            }
            let text = match woken {
                Woken::Closing => return self.end("stopping"),
                Woken::Expired => return self.end("token_expired"),
                Woken::Idle => ":\n\n".to_owned(),
                Woken::Event(None) if self.longest_stall > self.heartbeat => {
                    return self.end("slow");
                }
                // Events of transfers wait in the queue meanwhile.
                Woken::Event(Some(Pushed::Transaction)) => {
                    let (user, shard) = (self.place.user(), self.shard);
                    self.phase = match self.phase {
                        Phase::Live(events) => {
                            let missed = Missed::transactions_after(user, shard, self.last);
                            Phase::Joining(missed, events)
                        }
                        // Only a live stream looks into its queue.
                        phase @ (Phase::Behind(_) | Phase::Joining(..)) => phase,
                    };
                    continue;
                }
                // More events at once than the queue holds, and the client is fast enough.
                Woken::Event(None) => {
                    self.phase =
                        Phase::Behind(Missed::after(self.place.user(), self.shard, self.last));
                    continue;
                }
                // Read in PostgreSQL before it came through the queue.
                Woken::Event(Some(pushed))
                    if pushed.id().is_some_and(|id| id <= self.last.transfer) =>
                {
                    continue;
                }
                Woken::Event(Some(Pushed::Transfer(event))) => self.transfer(&event),
                Woken::Event(Some(Pushed::Recharge(event))) => self.recharge(&event),
                Woken::Read(Err(error)) => {
                    warn!(error = chain(&error), "a stream of events cannot be read on");
                    return self.end("unavailable");
                }
                Woken::Read(Ok(Some(page))) => page.iter().map(|event| self.send(event)).collect(),
                Woken::Read(Ok(None)) => {
                    self.phase = match self.phase {
                        Phase::Behind(_) => {
                            self.longest_stall = Duration::ZERO;
                            // Followed first, then read: a flight is in the one or in the other.
                            let events = self.place.follow();
                            Phase::Joining(
                                Missed::after(self.place.user(), self.shard, self.last),
                                events,
                            )
                        }
                        Phase::Joining(_, events) | Phase::Live(events) => Phase::Live(events),
                    };
                    continue;
                }
            };
            self.sent_ns = self.clock.monotonic_ns();
            return (text, Some(self));
        }
    }

    /// One event as text.
    fn send(&mut self, event: &UserEvent) -> String {
        let event = match event {
            UserEvent::Transfer(event) => return self.transfer(event),
            UserEvent::Recharge(event) => return self.recharge(event),
            UserEvent::Transaction(event) => event,
        };
        debug_assert!(event.id > self.last.transaction, "ids only grow");
        self.last.transaction = event.id;
        let catalog = self.reads.catalog();
        let data = TransactionEventBody::json(event, self.place.user(), &catalog);
        format!("id: {}\nevent: transaction\ndata: {data}\n\n", self.last)
    }

    /// The same of a transfer.
    fn transfer(&mut self, event: &Event) -> String {
        debug_assert!(event.id > self.last.transfer, "ids only grow");
        self.last.transfer = event.id;
        let data = EventBody::json(event, &self.reads.catalog());
        format!("id: {}\nevent: transfer\ndata: {data}\n\n", self.last)
    }

    /// The same of a recharge.
    fn recharge(&mut self, event: &RechargeEvent) -> String {
        debug_assert!(event.id > self.last.transfer, "ids only grow");
        self.last.transfer = event.id;
        let data = RechargeEventBody::json(event, &self.reads.catalog());
        format!("id: {}\nevent: recharge\ndata: {data}\n\n", self.last)
    }

    /// The last text: why the stream ends. The client continues by the last id.
    fn end(self, reason: &'static str) -> (String, Option<Stream>) {
        telemetry::event_stream_ended(reason);
        debug!(user = %self.place.user(), reason, "a stream of events ends");
        (format!("event: end\ndata: {}\n\n", json!({"reason": reason})), None)
    }
}

/// Reads the next page, or waits for the next event.
async fn advance(
    phase: &mut Phase,
    place: &Place,
    reads: &Reads,
    clock: &dyn Clock,
    heartbeat: Duration,
) -> Woken {
    match phase {
        Phase::Behind(missed) | Phase::Joining(missed, _) => {
            let _reading = place.may_read().await;
            tokio::select! {
                read = reads.missed(missed, PAGE_ROWS) => Woken::Read(read),
                // A server that hangs must not block the other readers.
                () = clock.sleep(READ_MAX) => {
                    Woken::Read(Err(crate::postgres::Error::Timeout(READ_MAX)))
                }
            }
        }
        Phase::Live(events) => tokio::select! {
            event = events.recv() => Woken::Event(event),
            () = clock.sleep(heartbeat) => Woken::Idle,
        },
    }
}
