//! When alerts are raised, and the webhook that they are posted to.

use std::path::PathBuf;

use serde::Deserialize;

use super::bound::{Bound, DAY_MS, HOUR_MS, MINUTE_MS, bound};
use super::file::read_secret;
use super::secret::Secret;
use super::{Error, is_http_url, range};

/// The section `[alert]`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Alert {
    /// The URL that alerts are posted to; absent: alerts are only logged. Secret: any holder of the
    /// URL can raise false alarms.
    pub webhook_url: Option<Secret>,
    /// A file that holds the URL.
    pub webhook_url_file: Option<PathBuf>,
    /// Timeout for the webhook's answer, ms.
    pub webhook_timeout_ms: u64,
    /// The same alert about the same subject is raised again after this, ms.
    pub repeat_ms: u64,
    /// A transfer that is under way for longer is stuck, ms.
    pub stuck_ms: u64,
    /// A hold of a venue that is older is reported, ms; 0: none is.
    pub hold_stuck_ms: u64,
    /// A snapshot that holds back vacuum for longer is old, ms.
    pub old_snapshot_ms: u64,
    /// One user's transfers in a minute above which an alert is raised.
    pub user_requests_per_minute_max: u64,
}

impl Default for Alert {
    fn default() -> Self {
        Self {
            webhook_url: None,
            webhook_url_file: None,
            webhook_timeout_ms: 2_000,
            repeat_ms: 60_000,
            stuck_ms: 60_000,
            hold_stuck_ms: 0,
            old_snapshot_ms: 600_000,
            user_requests_per_minute_max: 600,
        }
    }
}

/// The bounds of its whole numbers.
#[rustfmt::skip]
pub(super) const BOUNDS: &[Bound] = &[
    bound("alert.webhook_timeout_ms", |c| Some(c.alert.webhook_timeout_ms), 100, MINUTE_MS, "ms"),
    bound("alert.repeat_ms", |c| Some(c.alert.repeat_ms), 0, HOUR_MS, "ms"),
    bound("alert.stuck_ms", |c| Some(c.alert.stuck_ms), 100, HOUR_MS, "ms"),
    bound("alert.hold_stuck_ms", |c| Some(c.alert.hold_stuck_ms), 0, 365 * DAY_MS, "ms"),
    bound("alert.old_snapshot_ms", |c| Some(c.alert.old_snapshot_ms), 1_000, DAY_MS, "ms"),
    bound("alert.user_requests_per_minute_max", |c| Some(c.alert.user_requests_per_minute_max), 1, 1_000_000, "transfers"),
];

impl Alert {
    /// Replaces the name of a file by its content. An empty URL becomes `None`.
    pub(super) fn read_secrets(&mut self) -> Result<(), Error> {
        read_secret("alert.webhook_url_file", &mut self.webhook_url, &self.webhook_url_file)?;
        self.webhook_url.take_if(|url| url.expose().is_empty());
        Ok(())
    }

    /// Checks the keys that are not whole numbers.
    pub(super) fn validate(&self) -> Result<(), Error> {
        if let Some(url) = &self.webhook_url
            && !is_http_url(url.expose())
        {
            return Err(range("alert.webhook_url", url, "an http:// or https:// URL"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use crate::config::tests::assert_refused;

    #[test]
    fn alerts_are_posted_to_a_url() {
        assert_refused(&[
            ("[alert]\nwebhook_url = \"ftp://h/x\"", "alert.webhook_url = ***"),
            ("[alert]\nwebhook_url = \"http:///x\"", "alert.webhook_url = ***"),
        ]);
    }
}
