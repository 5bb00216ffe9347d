//! The header `Idempotency-Key`: another place for a request's idempotency key.
//!
//! Source: draft-ietf-httpapi-idempotency-key-header-07. Its value is a quoted string. The bare key
//! is accepted too, since most clients send it.

use super::refusal::{Refusal, invalid};
use super::request::Call;
use domain::transfer::Cid;

/// The header's name.
pub const HEADER: &str = "Idempotency-Key";

/// The key in a request's header, `None` without the header.
///
/// # Errors
/// INVALID_REQUEST: two headers, or a value that is not a key.
pub fn key(call: &Call) -> Result<Option<String>, Refusal> {
    let mut headers = call.request.headers().get_all(HEADER).iter();
    match (headers.next(), headers.next()) {
        (None, _) => Ok(None),
        (Some(value), None) => {
            let text = value.to_str().ok().and_then(unquoted);
            let what = format!(
                "The header {HEADER} must be 1 to 64 of A-Z a-z 0-9 _ . : -, bare or in quotation marks."
            );
            text.map(Some).ok_or_else(|| invalid(what))
        }
        (Some(_), Some(_)) => Err(invalid(format!("The header {HEADER} must come once."))),
    }
}

/// The one key of a request: from its header, from its field `name`, or from both if they are
/// equal.
///
/// # Errors
/// INVALID_REQUEST: they differ.
pub fn one_key(
    header: Option<String>,
    name: &str,
    field: Option<String>,
) -> Result<Option<String>, Refusal> {
    match (header, field) {
        (Some(header), Some(field)) if header != field => {
            let what = format!("The header {HEADER} and {name} are different keys.");
            Err(invalid(what))
        }
        (header, field) => Ok(field.or(header)),
    }
}

/// A key without its quotation marks, `None` if it is not one.
fn unquoted(value: &str) -> Option<String> {
    let value = value.trim();
    let bare = value.strip_prefix('"').map_or(Some(value), |rest| rest.strip_suffix('"'));
    bare.and_then(Cid::new).map(|key| key.as_str().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_taken_bare_and_quoted_and_nothing_else_is_one() {
        for value in ["order-1", "\"order-1\"", "  order-1 "] {
            assert_eq!(unquoted(value).as_deref(), Some("order-1"), "{value}");
        }
        let long = "k".repeat(300);
        for value in ["", "\"\"", "\"", "\"order-1", "order-1\"", "order 1", "\"a\";b=1", &long] {
            assert_eq!(unquoted(value), None, "{value}");
        }
    }

    #[test]
    fn two_different_keys_are_refused() {
        let key = |text: &str| Some(text.to_owned());
        assert_eq!(one_key(key("a"), "cid", None).expect("one"), key("a"));
        assert_eq!(one_key(None, "cid", key("b")).expect("one"), key("b"));
        assert_eq!(one_key(key("c"), "cid", key("c")).expect("the same"), key("c"));
        assert_eq!(one_key(None, "cid", None).expect("none"), None);
        let refusal = one_key(key("a"), "cid", key("b")).expect_err("two");
        assert!(refusal.message.is_some_and(|message| message.contains(HEADER)));
    }
}
