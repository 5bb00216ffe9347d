//! The id of an event, in a query, a header or a path; and the place of a stream.

use super::refusal::{Refusal, invalid};
use crate::postgres::events::EventCursor;

/// Reads an id as this program writes it: decimal digits.
///
/// # Errors
/// INVALID_REQUEST: any other text.
pub(super) fn event_id(text: &str) -> Result<i64, Refusal> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let id = if digits { text.parse().ok() } else { None };
    id.ok_or_else(|| invalid("Last-Event-ID and after must be the id of an event."))
}

/// Reads the `id` of a stream: the id of a transfer's event, and behind a point that of a
/// transaction's. Without the second one the events of all transactions follow.
///
/// # Errors
/// INVALID_REQUEST: any other text.
pub(super) fn stream_id(text: &str) -> Result<EventCursor, Refusal> {
    let (transfer, transaction) = text.split_once('.').unwrap_or((text, "0"));
    Ok(EventCursor { transfer: event_id(transfer)?, transaction: event_id(transaction)? })
}

#[cfg(test)]
mod tests {
    use super::*;
    use domain::code::Code;

    #[test]
    fn the_id_of_a_stream_is_read_as_it_is_written() {
        for (transfer, transaction, text) in [(0, 0, "0"), (7, 0, "7"), (7, 9, "7.9")] {
            let cursor = EventCursor { transfer, transaction };
            assert_eq!(cursor.to_string(), text);
            assert_eq!(stream_id(text).expect("an id"), cursor);
        }
        for text in ["", ".", "7.", ".7", "7.8.9", "7.-1", "7. 8"] {
            assert_eq!(stream_id(text).expect_err(text).code, Code::InvalidRequest, "{text}");
        }
    }

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
