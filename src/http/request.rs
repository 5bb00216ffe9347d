//! Reads a request: its body and its query parameters.

use std::borrow::Cow;
use std::error;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::Request;
use hyper::body::{Body, Incoming};
use hyper::header::HeaderValue;
use percent_encoding::percent_decode_str;
use serde::de::DeserializeOwned;
use tokio::time;

use super::refusal::{Refusal, invalid};
use crate::clock::Clock;
use crate::validation::parse_object;

/// Bytes of a body over its limit that are read and dropped. A client that still sends when the
/// connection closes may never see the answer.
pub(super) const DISCARD_BYTES_MAX: usize = 262_144;

/// Why a body was not read.
#[derive(Debug, thiserror::Error)]
pub enum BodyError {
    /// More bytes than allowed; answered 413.
    #[error("the body is larger than {bytes_max} bytes")]
    TooLarge {
        /// The limit.
        bytes_max: usize,
    },
    /// The client hung up, or sent an invalid body; answered 400.
    #[error("the body ended early")]
    Aborted(#[source] Box<dyn error::Error + Send + Sync>),
    /// Too slow; answered 408.
    #[error("the body did not arrive in time")]
    Timeout,
}

/// A request on its way through a handler.
pub struct Call {
    /// Its id, in logs and in the answer.
    pub request_id: String,
    /// Method, headers, path, body.
    pub request: Request<Incoming>,
    /// When its header was complete, monotonic ns of `clock`.
    pub(super) received_ns: u64,
    /// Measures the time to the answer.
    pub(super) clock: Arc<dyn Clock>,
}

/// Reads a whole body into memory.
///
/// `bytes_max`: the largest body that is returned; `timeout`: for the whole body.
///
/// # Errors
/// [`BodyError`]: the reason, for the answer.
pub async fn read_body<B>(body: B, bytes_max: usize, timeout: Duration) -> Result<Bytes, BodyError>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: Into<Box<dyn error::Error + Send + Sync>>,
{
    time::timeout(timeout, collect(body, bytes_max)).await.unwrap_or(Err(BodyError::Timeout))
}

async fn collect<B>(mut body: B, bytes_max: usize) -> Result<Bytes, BodyError>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: Into<Box<dyn error::Error + Send + Sync>>,
{
    let discard_bytes_max = bytes_max.saturating_add(DISCARD_BYTES_MAX);
    // The length is announced: read nothing, and do not send `100 Continue`.
    if body.size_hint().lower() > discard_bytes_max as u64 {
        return Err(BodyError::TooLarge { bytes_max });
    }
    let mut whole = Bytes::new();
    let mut bytes = 0_usize;
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| BodyError::Aborted(error.into()))?;
        // Trailers are ignored.
        let Ok(data) = frame.into_data() else { continue };
        bytes = bytes.saturating_add(data.len());
        if bytes > discard_bytes_max {
            break;
        }
        if bytes > bytes_max {
            whole = Bytes::new();
        } else if whole.is_empty() {
            // A body is nearly always one frame, which is not copied.
            whole = data;
        } else {
            whole = [whole, data].concat().into();
        }
    }
    debug_assert!(whole.len() <= bytes_max, "no more is kept than may be returned");
    if bytes > bytes_max { Err(BodyError::TooLarge { bytes_max }) } else { Ok(whole) }
}

/// Reads JSON into a struct.
///
/// # Errors
/// INVALID_REQUEST; the sentence names the error.
pub fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, Refusal> {
    parse_object(body).map_err(|error| invalid(format!("The body is not valid: {error}.")))
}

/// Whether a content type is JSON's.
pub(super) fn is_json(value: Option<&HeaderValue>) -> bool {
    let essence = value
        .and_then(|value| value.to_str().ok())
        .map(|text| text.split(';').next().unwrap_or(text).trim().to_ascii_lowercase());
    essence.as_deref() == Some("application/json")
}

/// The value of the only query parameter that a request may have.
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

/// The values of the parameters that a query may hold, in the order of `names`, percent-decoded.
/// A plus sign stays a plus sign, as in the offset of a time.
///
/// # Errors
/// INVALID_REQUEST: an unknown or repeated parameter, or a value that is not UTF-8.
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
