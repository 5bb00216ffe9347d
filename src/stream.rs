//! The sockets of venues: a Unix socket, and TCP with TLS.
//!
//! A venue is a matching engine that holds, settles and releases money of Spot by numbered
//! commands. `config/stream.sbe.xml` is the contract of its session. The token of its first message
//! names the venue. Each session has one task: `session` moves its messages, `connection` its
//! bytes; `question` waits for UBSCore beside them.

pub mod ahead;
mod connection;
mod question;
mod session;
pub mod socket;

use std::net::{IpAddr, Ipv4Addr};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use engine::VenueSession;
use engine::venue::{Command, OpenError, Opened};
use parking_lot::Mutex;
use stream::block::{CloseReason, Open};
use stream::leg;
use stream::message::Message;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::watch;
use tokio::task::{JoinError, JoinSet};
use tracing::{debug, error, info, warn};

use self::ahead::Ahead;
use self::connection::Connection;
use self::session::Session;
use self::socket::{Accepted, Listener};
use crate::clock::Clock;
use crate::config::Config;
use crate::http::auth::{Role, Verifier};
use crate::http::seats::{Place, Seats};
use crate::telemetry::{self, chain};

/// Pause after a failed accept. The usual cause is a lack of file descriptors, and then the next
/// call fails as fast as this one.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Resolves when the stop begins.
type Stopped = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The bounds of sessions.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Connections at once.
    pub connections_max: usize,
    /// The longest silence of a venue, and the longest time in which it reads nothing.
    pub silence: Duration,
}

impl From<&Config> for Options {
    fn from(config: &Config) -> Options {
        Options {
            connections_max: config.stream.connections_max,
            silence: Duration::from_millis(config.stream.silence_ms),
        }
    }
}

/// Everything that the sessions share.
pub struct SessionParts {
    /// UBSCore.
    pub engine: Mutex<engine::Handle>,
    /// Checks tokens.
    pub verifier: Arc<Verifier>,
    /// Time of commands, heartbeats and silences.
    pub clock: Arc<dyn Clock>,
    /// The bounds.
    pub options: Options,
    /// Opens the sessions.
    pub ahead: Arc<Ahead>,
    /// Set when nothing may be answered any more.
    pub silent: Arc<AtomicBool>,
}

/// The right of a session: its token. A session outlives neither the token nor its key.
struct Right {
    venue: u32,
    /// The value of an Authorization header.
    bearer: String,
}

impl Right {
    /// Whether the token is valid now, for this venue.
    fn stands(&self, parts: &SessionParts) -> bool {
        let venue = self.venue;
        let claims = parts.verifier.verify(Some(&self.bearer), parts.clock.now_s());
        let claims = claims.inspect_err(|reason| info!(venue, %reason, "token of a venue refused"));
        claims.is_ok_and(|claims| claims.role == Some(Role::Venue(venue)))
    }
}

/// Counts a connection while it lives.
struct Counted;

impl Counted {
    fn new() -> Counted {
        telemetry::stream_connections(1.0);
        Counted
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        telemetry::stream_connections(-1.0);
    }
}

/// Serves sessions until `stopping` loses its sender. Then no session reads any more, and each ends
/// once its commands are answered. Returns when the last one has ended.
pub async fn serve(
    listeners: Vec<Listener>,
    parts: Arc<SessionParts>,
    stopping: watch::Receiver<()>,
) {
    let seats = Seats::new(parts.options.connections_max, parts.options.connections_max);
    let mut accepting = JoinSet::new();
    for listener in listeners {
        accepting.spawn(accept(listener, Arc::clone(&parts), Arc::clone(&seats), stopping.clone()));
    }
    while let Some(ended) = accepting.join_next().await {
        report(ended);
    }
}

/// Accepts the connections of one listener.
async fn accept(
    listener: Listener,
    parts: Arc<SessionParts>,
    seats: Arc<Seats>,
    mut stopping: watch::Receiver<()>,
) {
    let (mut sessions, mut accept_fails) = (JoinSet::new(), false);
    loop {
        let accepted = tokio::select! {
            biased;
            _ = stopping.changed() => break,
            Some(ended) = sessions.join_next() => {
                report(ended);
                continue;
            }
            accepted = listener.accept() => accepted,
        };
        let accepted = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                if !accept_fails {
                    warn!(%error, "cannot accept venues; retrying");
                }
                accept_fails = true;
                parts.clock.sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        accept_fails = false;
        let address = match &accepted {
            Accepted::Unix(_) => IpAddr::from(Ipv4Addr::UNSPECIFIED),
            Accepted::Tls(_, _, peer) => peer.ip(),
        };
        // Without a place the connection is dropped here: every other one has a session.
        let Some(place) = seats.take(address) else { continue };
        let (parts, stopping) = (Arc::clone(&parts), stopping.clone());
        sessions.spawn(async move {
            let _counted = Counted::new();
            tokio::select! {
                biased;
                () = welcome(accepted, &parts, &place, stopping) => {}
                () = place.given_away() => debug!("a connection without a session made place"),
            }
        });
    }
    // The closed socket shows venues, and the next process, that this one stops.
    drop(listener);
    while let Some(ended) = sessions.join_next().await {
        report(ended);
    }
}

/// Secures a connection, and holds its conversation.
async fn welcome(
    accepted: Accepted,
    parts: &Arc<SessionParts>,
    place: &Place,
    stopping: watch::Receiver<()>,
) {
    match accepted {
        Accepted::Unix(stream) => converse(stream, parts, place, stopping).await,
        Accepted::Tls(stream, acceptor, _) => {
            let secured = tokio::select! {
                secured = acceptor.accept(stream) => secured,
                () = parts.clock.sleep(parts.options.silence) => return,
            };
            match secured {
                Ok(stream) => converse(stream, parts, place, stopping).await,
                Err(error) => debug!(%error, "a TLS handshake with a venue failed"),
            }
        }
    }
}

/// One conversation: Open, the session, and its end.
async fn converse<S: AsyncRead + AsyncWrite + Unpin>(
    stream: S,
    parts: &Arc<SessionParts>,
    place: &Place,
    mut stopping: watch::Receiver<()>,
) {
    let connection = Connection::new(stream, Arc::clone(&parts.clock), Arc::clone(&parts.silent));
    let mut connection = connection;
    let opened = tokio::select! {
        opened = open(&mut connection, parts, place) => opened,
        _ = stopping.changed() => Err(Some(CloseReason::Stopping)),
    };
    let ended = match opened {
        Ok((right, engine)) => {
            send_opened(&mut connection, engine.opened());
            let stopped: Stopped = Box::pin(async move { drop(stopping.changed().await) });
            Session::new(Arc::clone(parts), connection, right, engine, stopped).run().await
        }
        Err(Some(reason)) => {
            info!(reason = reason.name(), "a venue's Open was refused");
            connection.send_close(reason);
            Some(connection)
        }
        Err(None) => None,
    };
    if let Some(connection) = ended {
        tokio::select! {
            () = connection.finish() => {}
            () = parts.clock.sleep(parts.options.silence) => {}
        }
    }
}

/// Reads Open and opens the session. `Err(None)`: the venue has hung up.
async fn open<S: AsyncRead + AsyncWrite + Unpin>(
    connection: &mut Connection<S>,
    parts: &Arc<SessionParts>,
    place: &Place,
) -> Result<(Right, VenueSession), Option<CloseReason>> {
    let frame = tokio::select! {
        frame = connection.next_frame() => frame.map_err(|_| CloseReason::Malformed)?,
        () = parts.clock.sleep(parts.options.silence) => return Err(Some(CloseReason::Silent)),
    };
    let frame = frame.ok_or(None)?;
    let Ok(Message::Open(open)) = Message::read(&frame) else {
        return Err(Some(CloseReason::Malformed));
    };
    let venue = open.venue.get();
    let right = admit(parts, open).ok_or(CloseReason::Unauthorized)?;
    // From here on the place is kept: the Open may be recorded.
    if !place.begin() {
        return Err(None);
    }
    let (epoch, told) = (open.epoch.get(), open.told.get());
    // On another thread: it waits for a sync.
    let (engine, blocking) = (parts.engine.lock().clone(), Arc::clone(parts));
    let opening = move || blocking.ahead.open(&engine, venue, epoch, told);
    let opened = tokio::task::spawn_blocking(opening).await.expect("no panic");
    let engine = opened.map_err(|error| {
        info!(venue, %error, "a venue's session was not opened");
        match error {
            OpenError::Unknown | OpenError::Conflict => CloseReason::Unauthorized,
            OpenError::TooHigh { .. } => CloseReason::Malformed,
            OpenError::Closed => CloseReason::Closed,
            OpenError::Fenced { .. } | OpenError::Busy => CloseReason::Fenced,
            OpenError::NotClosed | OpenError::NoHold => unreachable!("an Open is no release"),
            OpenError::AheadOfLog { .. }
            | OpenError::Unnoted
            | OpenError::NoRoom(_)
            | OpenError::Stopped => CloseReason::Stopping,
        }
    })?;
    let opened = engine.opened();
    info!(venue, epoch = opened.epoch, last = opened.last, "a venue has opened a session");
    Ok((right, engine))
}

/// Checks the token: `None` if it is not valid for this venue.
fn admit(parts: &SessionParts, open: &Open) -> Option<Right> {
    let right = Right { venue: open.venue.get(), bearer: format!("Bearer {}", open.token()?) };
    right.stands(parts).then_some(right)
}

/// The number and the command of a message; `None` if it is not a command.
pub fn command(message: &Message<'_>) -> Option<(u64, Command)> {
    Some(match message {
        Message::Reserve(reserve) => {
            let command = Command::Reserve {
                reference: reserve.reference.get(),
                user: reserve.user.get(),
                asset: reserve.asset.get(),
                amount: reserve.amount.get(),
                onto: reserve.onto.get(),
            };
            (reserve.number.get(), command)
        }
        Message::Settle(set, rows) => {
            let (reference, legs) = (set.reference.get(), leg::posting(rows));
            (set.number.get(), Command::Settle { reference, legs })
        }
        Message::Release(release) => {
            let command = Command::Release {
                reference: release.reference.get(),
                hold: release.hold.get(),
                amount: release.amount.get(),
            };
            (release.number.get(), command)
        }
        Message::Post(set, rows) => {
            let (reference, legs) = (set.reference.get(), leg::posting(rows));
            (set.number.get(), Command::Post { reference, legs })
        }
        _ => return None,
    })
}

fn send_opened<S: AsyncRead + AsyncWrite + Unpin>(connection: &mut Connection<S>, opened: &Opened) {
    connection.send(&Message::Opened(&stream::block::Opened {
        epoch: opened.epoch.into(),
        last: opened.last.into(),
        acknowledged: opened.acknowledged.into(),
        durable: opened.durable.into(),
        log: opened.log_identity.0.into(),
        window: opened.window.into(),
    }));
}

/// Logs a panic of a session.
fn report(ended: Result<(), JoinError>) {
    if let Err(error) = ended {
        error!(error = chain(&error), "the session of a venue panicked; its connection was closed");
    }
}
