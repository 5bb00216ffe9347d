//! One line of the report, and its severity.

use serde::Serialize;

/// The severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Verdict {
    /// As it should be, or not important.
    Ok,
    /// It costs time, or a promise depends on a part that cannot be checked from here.
    Warn,
    /// A promise does not hold, or the service will not run.
    Bad,
}

impl Verdict {
    pub(super) fn name(self) -> &'static str {
        match self {
            Verdict::Ok => "ok",
            Verdict::Warn => "warn",
            Verdict::Bad => "bad",
        }
    }
}

/// One line of the report.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(super) struct Finding {
    pub(super) check: &'static str,
    pub(super) verdict: Verdict,
    pub(super) found: String,
    /// The change to make, if there is one.
    pub(super) change: Option<String>,
}
