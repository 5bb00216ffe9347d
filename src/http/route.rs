//! The table of routes of a listener: which path and method lead to which handler.

use std::sync::Arc;
use std::time::Duration;

use hyper::Method;
use hyper::header::{ALLOW, HeaderValue};
use tracing::{Instrument, error_span};

use super::answer::Answer;
use super::refusal::{Outcome, Refusal};
use super::request::Call;
use crate::telemetry::{ROUTE_NONE, time_http_request};
use domain::code::Code;

/// One row of a listener's routing table.
pub struct Route<R> {
    /// The path's pattern.
    pub pattern: &'static str,
    /// The one method that it answers.
    pub method: Method,
    /// The route's name in the handler's `match`.
    pub route: R,
}

/// A listener's routing table.
pub struct Routes<R: 'static> {
    table: &'static [Route<R>],
    paths: matchit::Router<Vec<usize>>,
}

/// The route of a path and method.
pub struct Matched<R> {
    /// The route.
    pub route: R,
    /// Its pattern, for metrics.
    pub pattern: &'static str,
    /// The path's parameters, in its order.
    pub parameters: Vec<String>,
}

/// A path without a route, or a method that its path does not answer.
enum Unrouted {
    NotFound,
    MethodNotAllowed { pattern: &'static str, allow: String },
}

impl<R: Copy> Routes<R> {
    /// Its rows.
    pub fn rows(&self) -> &'static [Route<R>] {
        self.table
    }

    /// Builds the table. Rows of one pattern stand together.
    pub fn new(table: &'static [Route<R>]) -> Routes<R> {
        let mut paths: matchit::Router<Vec<usize>> = matchit::Router::new();
        let mut patterns: Vec<&str> = table.iter().map(|route| route.pattern).collect();
        patterns.dedup();
        for pattern in patterns {
            let of =
                |(index, route): (usize, &Route<R>)| (route.pattern == pattern).then_some(index);
            let rows: Vec<usize> = table.iter().enumerate().filter_map(of).collect();
            assert!(!rows.is_empty(), "a pattern comes from a row");
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
        debug_assert!(path.value.len() <= self.table.len(), "each row is found once");
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
                // At the level of errors: a filter that admits a line must not remove its id.
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
        debug_assert!(answer.status().as_u16() >= 200, "an answer is final");
        let took = Duration::from_nanos(clock.monotonic_ns() - received_ns);
        time_http_request(pattern, answer.status().as_u16(), took);
        answer
    }
}
