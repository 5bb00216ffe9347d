//! When somebody is alerted, and who.

use std::path::PathBuf;

use serde::Deserialize;

use super::bound::{Bound, HOUR_MS, MINUTE_MS, bound};
use super::file::read_secret;
use super::secret::Secret;
use super::{Error, is_http_url, range};

/// The section `[alert]`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Alert {
    /// Where alerts are posted; absent: nowhere. Secret: whoever knows it can raise false alarms.
    pub webhook_url: Option<Secret>,
    /// A file that holds the URL.
    pub webhook_url_file: Option<PathBuf>,
    /// Time for the webhook's answer, ms.
    pub webhook_timeout_ms: u64,
    /// The same alert about the same subject is said again after this, ms.
    pub repeat_ms: u64,
    /// Under way for longer, a transfer is stuck, ms.
    pub stuck_ms: u64,
    /// More transfers of one user in a minute are abnormal.
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
            user_requests_per_minute_max: 600,
        }
    }
}

/// What its whole numbers may be.
#[rustfmt::skip]
pub(super) const BOUNDS: &[Bound] = &[
    bound("alert.webhook_timeout_ms", |c| Some(c.alert.webhook_timeout_ms), 100, MINUTE_MS, "ms"),
    bound("alert.repeat_ms", |c| Some(c.alert.repeat_ms), 0, HOUR_MS, "ms"),
    bound("alert.stuck_ms", |c| Some(c.alert.stuck_ms), 100, HOUR_MS, "ms"),
    bound("alert.user_requests_per_minute_max", |c| Some(c.alert.user_requests_per_minute_max), 1, 1_000_000, "transfers"),
];

impl Alert {
    /// Replaces the name of a file by what it holds. An empty URL is none.
    pub(super) fn read_secrets(&mut self) -> Result<(), Error> {
        read_secret("alert.webhook_url_file", &mut self.webhook_url, &self.webhook_url_file)?;
        self.webhook_url.take_if(|url| url.expose().is_empty());
        Ok(())
    }

    /// Checks what is no whole number.
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
