//! The format of output: of log lines and of subcommands.

use clap::ValueEnum;
use serde::Deserialize;

/// The format of output: for people or for machines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    /// Aligned lines.
    Text,
    /// One JSON object a line.
    Json,
}
