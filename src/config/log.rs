//! The filter and the format of log lines.

use serde::Deserialize;

use tracing_subscriber::EnvFilter;

use super::{Error, range};
use crate::format::Format;

/// The section `[log]`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Log {
    /// The format of a line.
    pub format: Format,
    /// The filter of lines, in the syntax of [`EnvFilter`].
    pub filter: String,
}

impl Default for Log {
    fn default() -> Self {
        Self { format: Format::Text, filter: "info".to_owned() }
    }
}

impl Log {
    /// Checks that the filter can be parsed.
    pub(super) fn validate(&self) -> Result<(), Error> {
        if EnvFilter::try_new(&self.filter).is_ok() {
            return Ok(());
        }
        let allowed = "a level or target=level pairs, such as \"info,ubscore=debug\"";
        Err(range("log.filter", format!("{:?}", self.filter), allowed))
    }
}

#[cfg(test)]
mod tests {
    use crate::config::tests::assert_refused;

    #[test]
    fn a_filter_is_one_that_can_be_read() {
        assert_refused(&[("[log]\nfilter = \"ubscore=loud\"", "log.filter = ")]);
    }
}
