//! The id of a request: in the log, and in the header of the request and of its answer.

use hyper::header::{HeaderName, HeaderValue};

/// The header that carries a request's id, in both directions.
pub const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Longest id that is taken from a client, bytes.
const REQUEST_ID_BYTES_MAX: usize = 64;

/// The id that a client gave its request, if it is 1..=64 of `A-Za-z0-9_.:-`. Any other text could
/// forge lines in a log, and is replaced by an id of ours.
pub fn request_id(value: Option<&HeaderValue>) -> Option<&str> {
    value.and_then(|value| value.to_str().ok()).filter(|id| {
        (1..=REQUEST_ID_BYTES_MAX).contains(&id.len())
            && id.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_.:-".contains(&byte))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sane_request_id_is_kept_and_any_other_is_not() {
        let longest = "x".repeat(REQUEST_ID_BYTES_MAX);
        for (text, sane) in [
            ("a", true),
            ("01JFVQ2X8Z0Y1M3N4P5R6S7T8U", true),
            ("a_b.c:d-e", true),
            (longest.as_str(), true),
            (&format!("{longest}x"), false),
            ("", false),
            ("two words", false),
            ("quote\"", false),
        ] {
            let value = HeaderValue::try_from(text).expect("a header value");
            assert_eq!(request_id(Some(&value)), sane.then_some(text));
        }
        assert_eq!(request_id(HeaderValue::from_bytes(b"\xff").ok().as_ref()), None);
        assert_eq!(request_id(None), None);
    }
}
