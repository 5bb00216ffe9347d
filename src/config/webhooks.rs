//! Events sent to an endpoint of the operator: its URL, the signing secret and the retries.

use std::borrow::Cow;
use std::ops::RangeInclusive;
use std::path::PathBuf;

use serde::Deserialize;

use super::bound::{Bound, DAY_MS, HOUR_MS, MINUTE_MS, bound};
use super::events::Events;
use super::file::read_secret;
use super::hours::Hours;
use super::secret::Secret;
use super::{Error, is_http_url, range};

/// The section `[webhooks]`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Webhooks {
    /// URL that events are posted to; absent: events are not posted. Secret: it may hold a
    /// password.
    pub url: Option<Secret>,
    /// A file that holds the URL.
    pub url_file: Option<PathBuf>,
    /// The secret that signs deliveries: `whsec_` and 24 to 64 bytes in base64.
    pub secret: Option<Secret>,
    /// A file that holds the secret.
    pub secret_file: Option<PathBuf>,
    /// Timeout of one try, ms.
    pub timeout_ms: u64,
    /// The most transfers with a delivery under way at the same time.
    pub parallel: usize,
    /// Number of tries before an event is a dead letter.
    pub attempts_max: u32,
    /// The first wait before a retry, ms.
    pub backoff_base_ms: u64,
    /// The longest wait before a retry, ms.
    pub backoff_cap_ms: u64,
    /// How long dead letters are kept, hours.
    pub dead_keep_hours: Hours,
}

/// The prefix of a webhook's secret, and the number of base64 characters of 24 to 64 bytes.
///
/// Source: Standard Webhooks, "Signature scheme".
const SECRET_PREFIX: &str = "whsec_";
const SECRET_CHARS: RangeInclusive<usize> = 32..=88;

impl Default for Webhooks {
    fn default() -> Self {
        Self {
            url: None,
            url_file: None,
            secret: None,
            secret_file: None,
            timeout_ms: 5_000,
            parallel: 8,
            attempts_max: 16,
            backoff_base_ms: 1_000,
            backoff_cap_ms: 3_600_000,
            dead_keep_hours: Hours::from(720.0),
        }
    }
}

/// The bounds of its whole numbers.
#[rustfmt::skip]
pub(super) const BOUNDS: &[Bound] = &[
    bound("webhooks.timeout_ms", |c| Some(c.webhooks.timeout_ms), 100, MINUTE_MS, "ms"),
    bound("webhooks.parallel", |c| Some(c.webhooks.parallel as u64), 1, 64, "transfers"),
    bound("webhooks.attempts_max", |c| Some(c.webhooks.attempts_max.into()), 1, 1_000, "tries"),
    bound("webhooks.backoff_base_ms", |c| Some(c.webhooks.backoff_base_ms), 1, HOUR_MS, "ms"),
    bound("webhooks.backoff_cap_ms", |c| Some(c.webhooks.backoff_cap_ms), 1, DAY_MS, "ms, at least webhooks.backoff_base_ms"),
];

impl Webhooks {
    /// Replaces the names of files by their contents. An empty URL becomes `None`.
    pub(super) fn read_secrets(&mut self) -> Result<(), Error> {
        read_secret("webhooks.url_file", &mut self.url, &self.url_file)?;
        read_secret("webhooks.secret_file", &mut self.secret, &self.secret_file)?;
        self.url.take_if(|url| url.expose().is_empty());
        Ok(())
    }

    /// Checks the keys that are not whole numbers, and the relations between keys.
    pub(super) fn validate(&self, events: &Events) -> Result<(), Error> {
        self.dead_keep_hours.check("webhooks.dead_keep_hours")?;
        if self.backoff_cap_ms < self.backoff_base_ms {
            let allowed = format!("at least webhooks.backoff_base_ms, {} ms", self.backoff_base_ms);
            return Err(range("webhooks.backoff_cap_ms", self.backoff_cap_ms, allowed));
        }
        let Some(url) = &self.url else { return Ok(()) };
        if !is_http_url(url.expose()) {
            return Err(range("webhooks.url", url, "an http:// or https:// URL"));
        }
        if !events.enabled {
            return Err(range("webhooks.url", url, "absent where events.enabled is false"));
        }
        let Some(secret) = &self.secret else {
            return Err(Error::Missing {
                key: "webhooks.secret".into(),
                advice: "give webhooks.secret_file, webhooks.secret or UBSCORE__WEBHOOKS__SECRET",
            });
        };
        check_signing_secret("webhooks.secret", secret)
    }
}

/// Refuses a secret that is not one of Standard Webhooks. `key`: its key as `section.key`.
pub(super) fn check_signing_secret(
    key: impl Into<Cow<'static, str>>,
    secret: &Secret,
) -> Result<(), Error> {
    let text = secret.expose().strip_prefix(SECRET_PREFIX).unwrap_or("");
    if !SECRET_CHARS.contains(&text.len()) || standardwebhooks::Webhook::new(text).is_err() {
        let allowed = "whsec_ and the base64 of 24 to 64 bytes";
        return Err(range(key, secret, allowed));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::config::tests::assert_refused;

    #[test]
    fn an_endpoint_is_a_url_with_a_secret_of_its_own_where_there_are_events() {
        assert_refused(&[
            ("[webhooks]\nbackoff_cap_ms = 999", "webhooks.backoff_cap_ms = 999"),
            ("[webhooks]\nurl = \"ftp://h/x\"", "webhooks.url = ***"),
            ("[webhooks]\nurl = \"http://h/x\"", "webhooks.secret is missing"),
            (
                "[events]\nenabled = false\n[webhooks]\nurl = \"http://h/x\"",
                "webhooks.url = ***: must be absent where events.enabled is false",
            ),
            (
                "[webhooks]\nurl = \"http://h/x\"\nsecret = \"whsec_c2hvcnQ=\"",
                "webhooks.secret = ***: must be whsec_ and the base64 of 24 to 64 bytes",
            ),
        ]);
    }
}
