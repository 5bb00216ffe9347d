//! The collector of spans.

use serde::Deserialize;

use super::{Error, is_http_url, range};

/// The section `[telemetry]`, for a binary with the feature `otel`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Telemetry {
    /// URL with its path that spans are posted to as OTLP; absent: spans are not sent.
    pub otlp_endpoint: Option<String>,
    /// The share of traces that is sent, 0 to 1, if the client has not decided.
    pub sample_ratio: f64,
}

impl Default for Telemetry {
    fn default() -> Self {
        Self { otlp_endpoint: None, sample_ratio: 1.0 }
    }
}

impl Telemetry {
    /// Checks all that the types cannot express.
    pub(super) fn validate(&self) -> Result<(), Error> {
        if let Some(url) = &self.otlp_endpoint
            && !is_http_url(url)
        {
            let allowed = "an http:// or https:// URL with its path";
            return Err(range("telemetry.otlp_endpoint", format!("{url:?}"), allowed));
        }
        if !(0.0..=1.0).contains(&self.sample_ratio) {
            return Err(range("telemetry.sample_ratio", self.sample_ratio, "0.0 to 1.0"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use crate::config::tests::assert_refused;

    #[test]
    fn spans_are_sent_to_a_url_and_at_most_all_of_them() {
        assert_refused(&[
            ("[telemetry]\notlp_endpoint = \"localhost:4318\"", "telemetry.otlp_endpoint = "),
            ("[telemetry]\nsample_ratio = 1.1", "telemetry.sample_ratio = 1.1"),
        ]);
    }
}
