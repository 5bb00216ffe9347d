//! An address of the operator's own systems: one signed POST at a time, within a time limit, and
//! without redirects.
//!
//! Source: Standard Webhooks 1.0 (headers, signature).

use std::io::{self, Read};
use std::time::Duration;

use crate::config::secret::Secret;
use crate::release;

/// A URL and the key of its signatures. Calls block, so each runs on a thread.
pub struct Endpoint {
    agent: ureq::Agent,
    url: Secret,
    signer: standardwebhooks::Webhook,
}

/// The answer to one POST: its status, and a body that is not read yet.
pub struct EndpointAnswer {
    /// The HTTP status.
    pub status: u16,
    body: ureq::Body,
}

/// Why there is no answer. Without the URL, which may hold a password.
#[derive(Debug, thiserror::Error)]
pub enum EndpointError {
    /// The body cannot be signed.
    #[error(transparent)]
    Unsigned(#[from] standardwebhooks::WebhookError),
    /// No answer came. The request may have arrived.
    #[error("{}", reason(.0))]
    Unanswered(ureq::Error),
    /// The answer ended early, or it was too slow.
    #[error("its answer was cut off")]
    Cut(#[source] io::Error),
    /// The body is longer than the caller allows, bytes.
    #[error("its answer is longer than {0} bytes")]
    TooLong(u64),
}

/// A client with a time limit for a whole call, from the name of the host to the end of the body.
pub fn agent(timeout: Duration) -> ureq::Agent {
    ureq::Agent::config_builder()
        .user_agent(release::USER_AGENT)
        .timeout_global(Some(timeout))
        // A redirect would send a body to an address that it was not signed for.
        .max_redirects(0)
        .http_status_as_error(false)
        .build()
        .into()
}

/// A client for long answers: each read of them ends within `silence`, and the whole call within
/// `timeout`. The time in which the caller does not read counts for the second limit alone.
pub fn patient_agent(silence: Duration, timeout: Duration) -> ureq::Agent {
    ureq::Agent::config_builder()
        .user_agent(release::USER_AGENT)
        .timeout_global(Some(timeout))
        .timeout_connect(Some(silence))
        .timeout_per_read(Some(silence))
        .timeout_per_write(Some(silence))
        // As above.
        .max_redirects(0)
        .http_status_as_error(false)
        .build()
        .into()
}

/// The reason of a failure without the URL, which may be a secret.
pub fn reason(error: &ureq::Error) -> String {
    match error {
        ureq::Error::StatusCode(status) => format!("it answered {status}"),
        ureq::Error::Io(error) => error.to_string(),
        ureq::Error::Timeout(_) => "it did not answer in time".to_owned(),
        ureq::Error::HostNotFound => "its host is not found".to_owned(),
        ureq::Error::ConnectionFailed => "no connection".to_owned(),
        ureq::Error::Tls(why) => (*why).to_owned(),
        _ => "the request failed".to_owned(),
    }
}

impl Endpoint {
    /// An endpoint behind `agent`. `secret`: `whsec_` and the base64 of 24 to 64 bytes.
    ///
    /// # Errors
    /// The secret is not one of Standard Webhooks.
    pub fn new(
        agent: ureq::Agent,
        url: Secret,
        secret: &Secret,
    ) -> Result<Endpoint, standardwebhooks::WebhookError> {
        Ok(Endpoint { agent, url, signer: standardwebhooks::Webhook::new(secret.expose())? })
    }

    /// Posts a JSON body once. `id`: its `webhook-id`. `now_s`: seconds since the Unix epoch.
    ///
    /// # Errors
    /// [`EndpointError`]: nothing is known, the request may have arrived.
    pub fn post(&self, id: &str, now_s: u64, body: &str) -> Result<EndpointAnswer, EndpointError> {
        let now_s = i64::try_from(now_s).expect("before the year 292 billion");
        let signature = self.signer.sign(id, now_s, body.as_bytes())?;
        let answer = self
            .agent
            .post(self.url.expose())
            .content_type("application/json")
            .header(standardwebhooks::HEADER_WEBHOOK_ID, id)
            .header(standardwebhooks::HEADER_WEBHOOK_TIMESTAMP, now_s.to_string())
            .header(standardwebhooks::HEADER_WEBHOOK_SIGNATURE, signature)
            .send(body)
            .map_err(EndpointError::Unanswered)?;
        let status = answer.status().as_u16();
        Ok(EndpointAnswer { status, body: answer.into_body() })
    }
}

impl EndpointAnswer {
    /// Whether the status is 2xx.
    pub fn is_success(&self) -> bool {
        (200..300).contains(&self.status)
    }

    /// Reads the whole body of at most `bytes_max`. A connection with a fully read answer can be
    /// used again.
    ///
    /// # Errors
    /// [`EndpointError::Cut`], [`EndpointError::TooLong`].
    pub fn read(self, bytes_max: u64) -> Result<Vec<u8>, EndpointError> {
        let mut bytes = Vec::new();
        let mut rest = self.body.into_reader().take(bytes_max + 1);
        rest.read_to_end(&mut bytes).map_err(EndpointError::Cut)?;
        if bytes.len() as u64 > bytes_max {
            return Err(EndpointError::TooLong(bytes_max));
        }
        Ok(bytes)
    }
}
