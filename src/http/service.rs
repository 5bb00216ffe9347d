//! What every route works on, and what every route does first.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hyper::body::Incoming;
use hyper::header::{ALLOW, AUTHORIZATION, CONTENT_TYPE, HeaderValue};
use hyper::{Method, Request, StatusCode};
use parking_lot::Mutex;
use serde::de::DeserializeOwned;
use tracing::info;
use ulid::Ulid;

use super::auth::{Role, Verifier};
use super::wire::{Answer, Refusal};
use super::{BodyError, X_REQUEST_ID, read_body, request_id};
use crate::account::UserId;
use crate::adapters::funding::Funding;
use crate::adapters::trading::Trading;
use crate::alert::{Alert, alert_about};
use crate::audit::frequency::Frequency;
use crate::audit::halt::Halt;
use crate::audit::rounds::Check;
use crate::clock::Clock;
use crate::code::Code;
use crate::coordinator::Coordinator;
use crate::engine;
use crate::entropy::Entropy;
use crate::events::Hub;
use crate::keeper;
use crate::postgres::database::Database;
use crate::postgres::reads::Reads;
use crate::telemetry::{Metrics, ROUTE_NONE, count_http_request};
use crate::validation::parse_object;

/// Everything behind the listeners.
pub struct Service {
    /// Transfers.
    pub coordinator: Coordinator<Trading, Funding<Database>>,
    /// Spot accounts.
    pub trading: Arc<Trading>,
    /// What PostgreSQL knows.
    pub reads: Reads,
    /// UBSCore's gauges.
    pub engine: Mutex<engine::Handle>,
    /// The way to ask for a snapshot.
    pub snapshots: keeper::Requests,
    /// Tokens.
    pub verifier: Verifier,
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// Request ids.
    pub entropy: Mutex<Box<dyn Entropy>>,
    /// The way to have both stores compared now.
    pub check: Check,
    /// Counters and histograms.
    pub metrics: &'static Metrics,
    /// Whether nothing new begins.
    pub halt: Arc<Halt>,
    /// Where events are followed; `None` where there are none.
    pub events: Option<Arc<Hub>>,
    /// How often each user transfers.
    pub frequency: Mutex<Frequency>,
    /// Limits of one request.
    pub limits: RequestLimits,
}

/// Limits of one request.
#[derive(Clone, Copy, Debug)]
pub struct RequestLimits {
    /// A body's length.
    pub body_bytes_max: usize,
    /// Time for a body to arrive.
    pub body_read_timeout: Duration,
    /// How long POST waits for a final state.
    pub transfer_wait: Duration,
    /// How long POST waits for the transfer to be accepted.
    pub accept_wait: Duration,
    /// Under way for longer, a transfer is stuck, milliseconds.
    pub stuck_ms: u64,
    /// The largest amount, smallest units.
    pub units_max: u64,
    /// After so long without an event, a stream is told that it is alive.
    pub heartbeat: Duration,
}

/// Who asks.
#[derive(Clone, Copy, Debug)]
pub struct Caller {
    /// The token's user.
    pub user: UserId,
    /// Whether it is an operator.
    pub admin: bool,
    /// When the token ends, seconds since the Unix epoch.
    pub expires_s: u64,
}

/// A request on its way through a route.
pub struct Call {
    /// Its id, in logs and in the answer.
    pub request_id: String,
    /// Method, headers, path, body.
    pub request: Request<Incoming>,
}

/// A route's outcome.
pub type Outcome = Result<Answer, Refusal>;

impl Service {
    /// Gives the request an id: the client's, where it is sane.
    pub fn receive(&self, request: Request<Incoming>) -> Call {
        let given = request_id(request.headers().get(X_REQUEST_ID)).map(str::to_owned);
        let made = || Ulid::from_parts(self.clock.now_ns() / 1_000_000, self.entropy.lock().u128());
        let request_id = given.unwrap_or_else(|| made().to_string());
        Call { request_id, request }
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
            info!(request_id = call.request_id, %reason, "token refused");
            Refusal::from(Code::Unauthorized)
        })?;
        let user = UserId::new(claims.user_id).ok_or(Code::Unauthorized)?;
        Ok(Caller { user, admin: claims.role == Some(Role::Admin), expires_s: claims.expires_s })
    }

    /// Who asks, if it is an operator.
    ///
    /// # Errors
    /// UNAUTHORIZED; FORBIDDEN without the role.
    pub fn authenticate_admin(&self, call: &Call) -> Result<Caller, Refusal> {
        let caller = self.authenticate(call)?;
        if caller.admin { Ok(caller) } else { Err(Code::Forbidden.into()) }
    }

    /// The request's body.
    ///
    /// # Errors
    /// INVALID_REQUEST: not JSON by its type (415), too large (413), broken off or too slow (400, 408).
    pub async fn body(&self, call: Call) -> Result<Bytes, Refusal> {
        let refused = |message: String| Refusal::because(Code::InvalidRequest, message);
        if !is_json(call.request.headers().get(CONTENT_TYPE)) {
            let refusal = refused("The content type must be application/json.".to_owned());
            return Err(refusal.with_status(StatusCode::UNSUPPORTED_MEDIA_TYPE));
        }
        let (bytes_max, timeout) = (self.limits.body_bytes_max, self.limits.body_read_timeout);
        let body = read_body(call.request.into_body(), bytes_max, timeout).await;
        body.map_err(|error| {
            let status = match &error {
                BodyError::TooLarge { .. } => StatusCode::PAYLOAD_TOO_LARGE,
                BodyError::Aborted(_) => StatusCode::BAD_REQUEST,
                BodyError::Timeout => StatusCode::REQUEST_TIMEOUT,
            };
            refused(format!("{error}.")).with_status(status)
        })
    }

    /// The request's body as JSON of a known form.
    ///
    /// # Errors
    /// INVALID_REQUEST, naming what is wrong.
    pub async fn json_body<T: DeserializeOwned>(&self, call: Call) -> Result<T, Refusal> {
        parse(&self.body(call).await?)
    }

    /// Counts a transfer that a user asks for, and says so where they are abnormally many.
    pub fn count_transfer(&self, user: UserId) {
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
    parse_object(body).map_err(|error| {
        Refusal::because(Code::InvalidRequest, format!("The body is not valid: {error}."))
    })
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
pub fn query<'a>(call: &'a Call, name: &str) -> Result<Option<&'a str>, Refusal> {
    parameter(call.request.uri().query().unwrap_or(""), name)
}

/// The value of the one parameter that a query may hold.
///
/// # Errors
/// INVALID_REQUEST: an unknown or doubled parameter.
pub fn parameter<'a>(query: &'a str, name: &str) -> Result<Option<&'a str>, Refusal> {
    parameters(query, [name]).map(|[value]| value)
}

/// The values of the parameters that a query may hold, in the order of `names`.
///
/// # Errors
/// INVALID_REQUEST: an unknown or doubled parameter.
pub fn parameters<'a, const N: usize>(
    query: &'a str,
    names: [&str; N],
) -> Result<[Option<&'a str>; N], Refusal> {
    let mut found = [None; N];
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        let place = names.iter().position(|name| *name == key);
        if place.is_none_or(|place| found[place].replace(value).is_some()) {
            let message = format!("Unknown or doubled parameter {key:?}.");
            return Err(Refusal::because(Code::InvalidRequest, message));
        }
    }
    Ok(found)
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
                let answer = match handler(matched, call).await {
                    Ok(answer) => answer,
                    Err(refusal) => refusal.answer(&request_id),
                };
                (pattern, answer)
            }
        };
        count_http_request(pattern, answer.status().as_u16());
        answer
    }
}
