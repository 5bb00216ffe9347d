//! How output is written, be it the log's or a subcommand's.

use clap::ValueEnum;
use serde::Deserialize;

/// How output is written: for eyes or for machines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    /// Aligned lines.
    Text,
    /// One JSON object a line.
    Json,
}
