//! An answer: its body, and the headers that several routes set.

use std::convert::Infallible;

use bytes::Bytes;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{Either, Full};
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::{Response, StatusCode};
use serde::Serialize;

use super::request_id::X_REQUEST_ID;
use crate::quota::Standing;

/// Marks an answer that an earlier request has decided.
const IDEMPOTENT_REPLAYED: &str = "idempotent-replayed";

/// Header: the limits and their windows.
const RATELIMIT_POLICY: &str = "ratelimit-policy";
/// Header: the rest of each limit, and when its window ends.
const RATELIMIT: &str = "ratelimit";
/// The largest integer of a structured field (RFC 9651, 3.3.1). A larger number is cut to it.
const STRUCTURED_INTEGER_MAX: u64 = 999_999_999_999_999;

/// Room for most JSON answers, bytes: a transfer takes some 300. A larger one grows.
const JSON_BYTES: usize = 512;

/// An answer's body: whole (nearly always), or a stream.
pub type Content = Either<Full<Bytes>, UnsyncBoxBody<Bytes, Infallible>>;

/// An answer.
pub type Answer = Response<Content>;

/// A JSON answer.
pub fn json(status: StatusCode, body: &impl Serialize, request_id: &str) -> Answer {
    let mut bytes = Vec::with_capacity(JSON_BYTES);
    serde_json::to_writer(&mut bytes, body).expect("our own structures have no failing serializer");
    text(status, "application/json", bytes.into(), request_id)
}

/// An answer of any kind.
pub fn text(status: StatusCode, kind: &'static str, body: Bytes, request_id: &str) -> Answer {
    debug_assert!(!request_id.is_empty(), "every answer names its request");
    let mut answer = Response::new(Content::Left(Full::new(body)));
    *answer.status_mut() = status;
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    let request_id = HeaderValue::from_str(request_id).expect("made by us or found sane");
    answer.headers_mut().insert(X_REQUEST_ID, request_id);
    answer
}

/// Adds the status of each limit to an answer's headers.
///
/// Source: draft-ietf-httpapi-ratelimit-headers-10: two lists of structured
/// fields (RFC 9651). Amounts are in the asset's smallest units.
pub fn add_limits(answer: &mut Answer, standings: &[Standing]) {
    if standings.is_empty() {
        return;
    }
    let whole = |number: u64| number.min(STRUCTURED_INTEGER_MAX);
    let (mut policies, mut limits) = (Vec::new(), Vec::new());
    for standing in standings {
        let Standing { name, units, max, window_s, left, reset_s } = standing;
        let unit = if *units { ";qu=\"smallest-units\"" } else { "" };
        policies.push(format!("{name:?};q={}{unit};w={window_s}", whole(*max)));
        limits.push(format!("{name:?};r={};t={reset_s}", whole(*left)));
    }
    for (header, values) in [(RATELIMIT_POLICY, policies), (RATELIMIT, limits)] {
        // An asset's symbol may hold a character that no header may.
        if let Ok(value) = HeaderValue::from_str(&values.join(", ")) {
            answer.headers_mut().insert(header, value);
        }
    }
}

/// Marks an answer that an earlier request has decided.
pub fn mark_replayed(answer: &mut Answer) {
    answer.headers_mut().insert(IDEMPOTENT_REPLAYED, HeaderValue::from_static("true"));
}
