//! Actor and reason of an operator's action, as the audit row has them.

use crate::audit::halt;
use crate::http::refusal::{Refusal, invalid};
use crate::http::service::Caller;

/// Actor, reason and request of an action.
pub(super) struct AuditNote {
    pub(super) actor: String,
    pub(super) reason: String,
    pub(super) request_id: String,
}

/// The actor of an operator's own action.
pub(super) fn actor(caller: Caller) -> String {
    debug_assert!(!caller.is_read_only(), "a viewer changes nothing");
    format!("admin/{}", caller.user)
}

/// Checks the reason of an action.
///
/// # Errors
/// INVALID_REQUEST: empty, too long, or not printable.
pub(super) fn check_reason(reason: &str) -> Result<(), Refusal> {
    if halt::check_reason(reason) {
        return Ok(());
    }
    Err(invalid("reason must be 1 to 500 printable characters."))
}
