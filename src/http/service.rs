//! What every route works on, and what every route does first.

use std::borrow::Cow;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hyper::body::Incoming;
use hyper::header::{ALLOW, AUTHORIZATION, CONTENT_TYPE, HeaderValue};
use hyper::{Method, Request, StatusCode};
use parking_lot::Mutex;
use percent_encoding::percent_decode_str;
use serde::de::DeserializeOwned;
use tokio::sync::watch;
use tracing::{Instrument, error_span, info};
use ulid::Ulid;

use super::auth::{Role, Verifier};
use super::wire::{Answer, Refusal};
use super::{BodyError, X_REQUEST_ID, read_body, request_id};
use crate::adapters::funding::Funding;
use crate::adapters::spot::Spot;
use crate::alert::{Alert, alert_about};
use crate::approval::Action;
use crate::audit::frequency::Frequency;
use crate::audit::halt::Halt;
use crate::audit::rounds::Check;
use crate::audit::totals;
use crate::checkpointer;
use crate::clock::Clock;
use crate::coordinator::Coordinator;
use crate::entropy::Entropy;
use crate::events::Hub;
use crate::postgres::database::Database;
use crate::postgres::reads::Reads;
use crate::quota::Quotas;
use crate::telemetry::{Metrics, ROUTE_NONE, time_http_request};
use crate::validation::parse_object;
use domain::account::UserId;
use domain::code::Code;

/// Everything behind the listeners, by the part that a handler works with.
pub struct Service {
    /// Receives requests: ids, tokens, bodies.
    pub intake: Intake,
    /// Transfers and their stores.
    pub transfers: Transfers,
    /// Streams of events.
    pub streams: Streams,
    /// Actions that need two operators.
    pub approvals: Approvals,
    /// The Spot accounts, for operators.
    pub spot: Arc<Spot>,
    /// Parts that only operators' routes use.
    pub operations: Operations,
}

/// Receives requests: gives each an id, checks its token and reads its body.
pub struct Intake {
    /// Checks tokens.
    pub verifier: Arc<Verifier>,
    /// Time of requests and of their ids.
    pub clock: Arc<dyn Clock>,
    /// Chance in request ids.
    pub entropy: Mutex<Box<dyn Entropy>>,
    /// The largest body, bytes; a larger one is answered 413.
    pub body_bytes_max: usize,
    /// Time for a body to arrive; then 408.
    pub body_read_timeout: Duration,
}

/// Accepts transfers, reads them and moves them on.
pub struct Transfers {
    /// Accepts and moves transfers.
    pub coordinator: Coordinator<Spot, Funding<Database>>,
    /// Reads PostgreSQL.
    pub reads: Reads,
    /// Set while nothing new may begin.
    pub halt: Arc<Halt>,
    /// How much each user may transfer.
    pub quotas: Quotas,
    /// How often each user transfers.
    pub frequency: Mutex<Frequency>,
    /// Time of waits.
    pub clock: Arc<dyn Clock>,
    /// Changes, or loses its sender, when the server stops: handlers that wait answer then.
    pub stopping: watch::Receiver<()>,
    /// Limits of one transfer.
    pub limits: TransferLimits,
}

/// Limits of one transfer.
#[derive(Clone, Copy, Debug)]
pub struct TransferLimits {
    /// How long POST waits for a final state.
    pub transfer_wait: Duration,
    /// How long POST waits for the transfer to be accepted.
    pub accept_wait: Duration,
    /// The longest wait of GET for a final state; a longer `wait_ms` is cut to it.
    pub end_wait_max: Duration,
    /// A transfer that is under way for longer is stuck, milliseconds.
    pub stuck_ms: u64,
    /// The largest amount, smallest units.
    pub units_max: u64,
    /// Whether a transfer without an idempotency key is refused.
    pub cid_required: bool,
}

/// Serves streams of events.
pub struct Streams {
    /// Where events are followed; `None` if events are turned off.
    pub hub: Option<Arc<Hub>>,
    /// After so long without an event, a stream sends an empty line.
    pub heartbeat: Duration,
    /// Reads events that a stream has missed.
    pub reads: Reads,
    /// Time of heartbeats and of a token's end.
    pub clock: Arc<dyn Clock>,
    /// Checks the stream's token again and again.
    pub verifier: Arc<Verifier>,
}

/// Parts that only operators' routes use.
pub struct Operations {
    /// The database's name, and whether `serve --dev` made it.
    pub database: (String, bool),
    /// UBSCore's gauges.
    pub engine: Mutex<engine::Handle>,
    /// Requests snapshots.
    pub snapshots: checkpointer::Requests,
    /// Has both stores compared now.
    pub check: Check,
    /// Adds up each asset.
    pub totals: totals::Reader,
    /// Counters and histograms.
    pub metrics: &'static Metrics,
}

/// What needs two operators.
#[derive(Debug)]
pub struct Approvals {
    /// These actions.
    pub required: Vec<Action>,
    /// How long a request may be approved and carried out.
    pub expires_after: Duration,
    /// Held while one is carried out.
    pub carrying_out: tokio::sync::Mutex<()>,
}

impl Approvals {
    /// Whether an action needs them.
    pub fn need(&self, action: Action) -> bool {
        self.required.contains(&action)
    }
}

/// Who asks.
#[derive(Clone, Copy, Debug)]
pub struct Caller {
    /// The token's user.
    pub user: UserId,
    /// What they may do beyond their own money.
    pub role: Option<Role>,
    /// When the token ends, seconds since the Unix epoch.
    pub expires_s: u64,
}

impl Caller {
    /// Whether they may look at what is another's.
    pub fn sees_everyone(self) -> bool {
        match self.role {
            Some(Role::Admin | Role::Viewer) => true,
            None => false,
        }
    }

    /// Whether they may change nothing.
    pub fn is_read_only(self) -> bool {
        self.role == Some(Role::Viewer)
    }
}

/// A request on its way through a route.
pub struct Call {
    /// Its id, in logs and in the answer.
    pub request_id: String,
    /// Method, headers, path, body.
    pub request: Request<Incoming>,
    /// When its head had come, monotonic ns of `clock`.
    received_ns: u64,
    clock: Arc<dyn Clock>,
}

/// A route's outcome.
pub type Outcome = Result<Answer, Refusal>;

impl Intake {
    /// Gives the request an id: the client's, where it is sane.
    pub fn receive(&self, request: Request<Incoming>) -> Call {
        let given = request_id(request.headers().get(X_REQUEST_ID)).map(str::to_owned);
        let made = || Ulid::from_parts(self.clock.now_ns() / 1_000_000, self.entropy.lock().u128());
        let request_id = given.unwrap_or_else(|| made().to_string());
        let (received_ns, clock) = (self.clock.monotonic_ns(), Arc::clone(&self.clock));
        Call { request_id, request, received_ns, clock }
    }

    /// Who asks.
    ///
    /// # Errors
    /// UNAUTHORIZED, whatever is wrong with the token.
    pub fn authenticate(&self, call: &Call) -> Result<Caller, Refusal> {
        let mut headers = call.request.headers().get_all(AUTHORIZATION).iter();
        // Two tokens are none: a proxy and we might each believe another one.
        let header = match (headers.next(), headers.next()) {
            (Some(header), None) => header.to_str().ok(),
            _ => None,
        };
        let claims = self.verifier.verify(header, self.clock.now_s()).map_err(|reason| {
            info!(%reason, "token refused");
            Refusal::from(Code::Unauthorized)
        })?;
        let user = UserId::new(claims.user_id).ok_or(Code::Unauthorized)?;
        Ok(Caller { user, role: claims.role, expires_s: claims.expires_s })
    }

    /// Who asks, if it is an operator who may change something.
    ///
    /// # Errors
    /// UNAUTHORIZED; FORBIDDEN without the role.
    pub fn authenticate_admin(&self, call: &Call) -> Result<Caller, Refusal> {
        let caller = self.authenticate(call)?;
        if caller.role == Some(Role::Admin) { Ok(caller) } else { Err(Code::Forbidden.into()) }
    }

    /// Who asks, if it is an operator who may look at what is everyone's.
    ///
    /// # Errors
    /// UNAUTHORIZED; FORBIDDEN without a role.
    pub fn authenticate_viewer(&self, call: &Call) -> Result<Caller, Refusal> {
        let caller = self.authenticate(call)?;
        if caller.sees_everyone() { Ok(caller) } else { Err(Code::Forbidden.into()) }
    }

    /// The request's body.
    ///
    /// # Errors
    /// INVALID_REQUEST: not JSON by its type (415), too large (413), broken off or too slow (400, 408).
    pub async fn body(&self, call: Call) -> Result<Bytes, Refusal> {
        if !is_json(call.request.headers().get(CONTENT_TYPE)) {
            let refusal = invalid("The content type must be application/json.");
            return Err(refusal.with_status(StatusCode::UNSUPPORTED_MEDIA_TYPE));
        }
        let (bytes_max, timeout) = (self.body_bytes_max, self.body_read_timeout);
        let body = read_body(call.request.into_body(), bytes_max, timeout).await;
        body.map_err(|error| {
            let status = match &error {
                BodyError::TooLarge { .. } => StatusCode::PAYLOAD_TOO_LARGE,
                BodyError::Aborted(_) => StatusCode::BAD_REQUEST,
                BodyError::Timeout => StatusCode::REQUEST_TIMEOUT,
            };
            invalid(format!("{error}.")).with_status(status)
        })
    }

    /// The request's body as JSON of a known form.
    ///
    /// # Errors
    /// INVALID_REQUEST, naming what is wrong.
    pub async fn json_body<T: DeserializeOwned>(&self, call: Call) -> Result<T, Refusal> {
        parse(&self.body(call).await?)
    }
}

impl Transfers {
    /// Counts a transfer that a user asks for, and says so where they are abnormally many.
    pub fn count(&self, user: UserId) {
        let counted = self.frequency.lock().count(user, self.clock.monotonic_ns());
        if let Some(recent) = counted {
            let what = format_args!("user {user} asked for {recent} transfers in a minute");
            alert_about(Alert::UserFrequencyAbnormal, &user, what);
        }
    }
}

/// JSON of a known form.
///
/// # Errors
/// INVALID_REQUEST, naming what is wrong.
pub fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, Refusal> {
    parse_object(body).map_err(|error| invalid(format!("The body is not valid: {error}.")))
}

fn is_json(value: Option<&HeaderValue>) -> bool {
    let essence = value
        .and_then(|value| value.to_str().ok())
        .map(|text| text.split(';').next().unwrap_or(text).trim().to_ascii_lowercase());
    essence.as_deref() == Some("application/json")
}

/// The value of a request's one query parameter; every other is refused.
///
/// # Errors
/// Those of [`parameter`].
pub fn query<'a>(call: &'a Call, name: &str) -> Result<Option<Cow<'a, str>>, Refusal> {
    parameter(call.request.uri().query().unwrap_or(""), name)
}

/// The value of the one parameter that a query may hold.
///
/// # Errors
/// Those of [`parameters`].
pub fn parameter<'a>(query: &'a str, name: &str) -> Result<Option<Cow<'a, str>>, Refusal> {
    parameters(query, [name]).map(|[value]| value)
}

/// The values of the parameters that a query may hold, in the order of `names`, with percent-encoding undone. A plus sign is
/// one, as in the offset of a time.
///
/// # Errors
/// INVALID_REQUEST: an unknown or repeated parameter, or a value that is no text.
pub fn parameters<'a, const N: usize>(
    query: &'a str,
    names: [&str; N],
) -> Result<[Option<Cow<'a, str>>; N], Refusal> {
    let mut found = [const { None }; N];
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        let Ok(value) = percent_decode_str(value).decode_utf8() else {
            return Err(invalid(format!("The value of parameter {key:?} is not UTF-8.")));
        };
        let place = names.iter().position(|name| *name == key);
        if place.is_none_or(|place| found[place].replace(value).is_some()) {
            return Err(invalid(format!("Unknown or repeated parameter {key:?}.")));
        }
    }
    Ok(found)
}

/// A parameter's value as a number.
///
/// # Errors
/// INVALID_REQUEST: not digits, or outside `range`.
pub fn number(name: &str, text: &str, range: RangeInclusive<u32>) -> Result<u32, Refusal> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let number = if digits { text.parse().ok() } else { None };
    number
        .filter(|number| range.contains(number))
        .ok_or_else(|| invalid(format!("{name} must be {} to {}.", range.start(), range.end())))
}

/// A refusal that names what is not well formed.
pub fn invalid(what: impl Into<String>) -> Refusal {
    Refusal::because(Code::InvalidRequest, what)
}

/// One row of a listener's routing table.
pub struct Route<R> {
    /// The path's pattern.
    pub pattern: &'static str,
    /// The one method it answers.
    pub method: Method,
    /// Which route it is.
    pub route: R,
}

/// A listener's routing table.
pub struct Routes<R: 'static> {
    table: &'static [Route<R>],
    paths: matchit::Router<Vec<usize>>,
}

/// What a path and method lead to.
pub struct Matched<R> {
    /// The route.
    pub route: R,
    /// Its pattern, for metrics.
    pub pattern: &'static str,
    /// The path's parameters, in its order.
    pub parameters: Vec<String>,
}

/// A path or a method that leads nowhere.
enum Unrouted {
    NotFound,
    MethodNotAllowed { pattern: &'static str, allow: String },
}

impl<R: Copy> Routes<R> {
    /// Its rows.
    pub fn rows(&self) -> &'static [Route<R>] {
        self.table
    }

    /// Builds the table.
    pub fn new(table: &'static [Route<R>]) -> Routes<R> {
        let mut paths: matchit::Router<Vec<usize>> = matchit::Router::new();
        let mut patterns: Vec<&str> = table.iter().map(|route| route.pattern).collect();
        patterns.dedup();
        for pattern in patterns {
            let of =
                |(index, route): (usize, &Route<R>)| (route.pattern == pattern).then_some(index);
            let rows = table.iter().enumerate().filter_map(of).collect();
            paths.insert(pattern, rows).expect("patterns do not overlap");
        }
        Routes { table, paths }
    }

    fn find(&self, call: &Call) -> Result<Matched<R>, Unrouted> {
        let Ok(path) = self.paths.at(call.request.uri().path()) else {
            return Err(Unrouted::NotFound);
        };
        let rows = path.value.iter().map(|&index| &self.table[index]);
        let Some(row) = rows.clone().find(|row| row.method == *call.request.method()) else {
            let allow: Vec<&str> = rows.clone().map(|row| row.method.as_str()).collect();
            let pattern = rows.clone().next().map_or("", |row| row.pattern);
            return Err(Unrouted::MethodNotAllowed { pattern, allow: allow.join(", ") });
        };
        let parameters = path.params.iter().map(|(_, value)| value.to_owned()).collect();
        Ok(Matched { route: row.route, pattern: row.pattern, parameters })
    }

    /// Answers a request through `handler`, and counts it.
    pub async fn answer<F: Future<Output = Outcome>>(
        &self,
        call: Call,
        handler: impl FnOnce(Matched<R>, Call) -> F,
    ) -> Answer {
        let request_id = call.request_id.clone();
        let (received_ns, clock) = (call.received_ns, Arc::clone(&call.clock));
        let (pattern, answer) = match self.find(&call) {
            Err(Unrouted::NotFound) => {
                (ROUTE_NONE, Refusal::from(Code::NotFound).answer(&request_id))
            }
            Err(Unrouted::MethodNotAllowed { pattern, allow }) => {
                let mut answer = Refusal::from(Code::MethodNotAllowed).answer(&request_id);
                let allow = HeaderValue::from_str(&allow).expect("method names");
                answer.headers_mut().insert(ALLOW, allow);
                (pattern, answer)
            }
            Ok(matched) => {
                let pattern = matched.pattern;
                // At the level of errors, so that no filter takes the id from a line that it lets through.
                let span = error_span!("http", %request_id, route = pattern);
                #[cfg(feature = "otel")]
                crate::telemetry::otlp::continue_trace(&span, call.request.headers());
                let answer = match handler(matched, call).instrument(span).await {
                    Ok(answer) => answer,
                    Err(refusal) => refusal.answer(&request_id),
                };
                (pattern, answer)
            }
        };
        let took = Duration::from_nanos(clock.monotonic_ns() - received_ns);
        time_http_request(pattern, answer.status().as_u16(), took);
        answer
    }
}
