//! The id of an event, in a query, a header or a path.

use super::refusal::{Refusal, invalid};

/// Reads an id as this program writes it: decimal digits.
///
/// # Errors
/// INVALID_REQUEST: any other text.
pub(super) fn event_id(text: &str) -> Result<i64, Refusal> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let id = if digits { text.parse().ok() } else { None };
    id.ok_or_else(|| invalid("Last-Event-ID and after must be the id of an event."))
}

#[cfg(test)]
mod tests {
    use super::*;
    use domain::code::Code;

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
