//! The arguments of commands that use no store.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use alloy_primitives::Address;
use chain::payload;
use clap::builder::RangedU64ValueParser;
use clap::{Args, Subcommand};
use clap_complete::Shell;
use serde_json::Value;

use super::values::{
    count_parser, parse_json, parse_owner, parse_ttl, parse_url, user_id_parser, venue_parser,
};
use crate::format::Format;
use crate::role::Role;

/// Arguments of `ubscore completions`.
#[derive(Debug, Args)]
pub struct CompletionsArgs {
    /// The shell.
    #[arg(value_enum)]
    pub shell: Shell,
}

/// Arguments of `ubscore man`.
#[derive(Debug, Args)]
pub struct ManArgs {
    /// Directory for ubscore.1 and a page of each command; default: ubscore.1 to standard output.
    #[arg(value_name = "DIR")]
    pub directory: Option<PathBuf>,
}

/// Arguments of `ubscore token`.
#[derive(Debug, Args)]
pub struct TokenArgs {
    /// The user of the token.
    #[arg(long, value_name = "ID", required_unless_present = "service", value_parser = user_id_parser())]
    pub user: Option<u64>,
    /// The user's role beyond their own money.
    #[arg(long, value_enum)]
    pub role: Option<Role>,
    /// The number of the venue that opens sessions with the token.
    #[arg(long, value_name = "ID", conflicts_with = "role")]
    pub venue: Option<u32>,
    /// The name of the service that owns transactions made with the token.
    #[arg(long, value_name = "NAME", conflicts_with_all = ["user", "role", "venue"], value_parser = parse_owner)]
    pub service: Option<String>,
    /// A token for nodes of the transaction manager, signed with the secret of [txm.auth].
    #[arg(long, conflicts_with = "venue")]
    pub txm: bool,
    /// The signers that the service may use, with commas between them.
    #[arg(long, value_name = "ADDRESSES", requires_all = ["txm", "service"], value_delimiter = ',', value_parser = payload::address)]
    pub signers: Vec<Address>,
    /// The beginning of the service's requestId and businessKey.
    #[arg(long, value_name = "TEXT", requires_all = ["txm", "service"])]
    pub prefix: Option<String>,
    /// How long the token is valid, such as 15m or 1h.
    #[arg(long, value_name = "DURATION", default_value = "1h", value_parser = parse_ttl)]
    pub ttl: Duration,
    /// Configuration file with the secret; default: UBSCORE_CONFIG, else /etc/ubscore/ubscore.toml
    /// if it exists.
    #[arg(long, value_name = "FILE", conflicts_with = "dev")]
    pub config: Option<PathBuf>,
    /// Use the development secret, as `serve --dev` does.
    #[arg(long)]
    pub dev: bool,
}

/// Commands for participants of transactions.
#[derive(Debug, Subcommand)]
pub enum ParticipantCommand {
    /// Try every duty of a running participant, and name those that fail.
    ///
    /// It calls the participant as a transaction does, with tx_id and branch_id that begin with
    /// `check-`. Some branches are confirmed or committed, so use a payload whose effect you can
    /// accept. Exit code 1: a duty fails. 2: the participant cannot be asked.
    Check(ParticipantCheckArgs),
}

/// Arguments of `ubscore participant check`.
#[derive(Debug, Args)]
pub struct ParticipantCheckArgs {
    /// NAME of [participants.NAME] in the configuration.
    pub name: String,
    /// Payload that the participant accepts, JSON; default: {}.
    #[arg(long, value_name = "JSON", value_parser = parse_json)]
    pub payload: Option<Value>,
    /// Payload that the participant refuses, JSON. Without it, its own refusals are not tried.
    #[arg(long, value_name = "JSON", value_parser = parse_json)]
    pub refused_payload: Option<Value>,
    /// Format of the result.
    #[arg(long, value_enum, default_value_t = Format::Text)]
    pub format: Format,
    /// Configuration file with the participant; default: UBSCORE_CONFIG, else
    /// /etc/ubscore/ubscore.toml if it exists.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Use the development secret, as `serve --dev` does.
    #[arg(long)]
    pub dev: bool,
}

/// Arguments of `ubscore channel-sim`.
#[derive(Debug, Args)]
pub struct ChannelSimArgs {
    /// Address to listen on, on loopback; port 0: any free one, which the ready line names.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:8090")]
    pub listen: SocketAddr,
    /// Directory of its keys and books. Keys are made at the first start.
    #[arg(long, value_name = "DIR")]
    pub data_dir: PathBuf,
    /// Certificates of the issuers that callbacks over TLS trust, PEM; default: those of the public
    /// web.
    #[arg(long, value_name = "FILE")]
    pub ca: Option<PathBuf>,
    /// End when standard input ends, as it does with the process that holds its other side.
    #[arg(long, hide = true)]
    pub until_stdin_ends: bool,
}

/// Arguments of `ubscore load`.
#[derive(Debug, Args)]
pub struct LoadArgs {
    /// URL of the public listener; default: from the configuration.
    #[arg(long, value_name = "URL", value_parser = parse_url)]
    pub url: Option<String>,
    /// URL of the operators' listener; default: from the configuration.
    #[arg(long, value_name = "URL", value_parser = parse_url)]
    pub ops: Option<String>,
    /// Offer RESERVE and SETTLE of this venue over the Unix socket, instead of transfers. The venue
    /// must be registered and have no other session. Its numbers are used up.
    #[arg(long, value_name = "ID", value_parser = venue_parser())]
    pub venue: Option<u32>,
    /// The Unix socket of venues; default: from the configuration.
    #[arg(long, value_name = "PATH", requires = "venue")]
    pub socket: Option<PathBuf>,
    /// Commands of the venue without an answer at each moment, if no rate is given. At most half of
    /// the venue's window.
    #[arg(long, value_name = "N", default_value_t = 1_000, requires = "venue", conflicts_with = "rate", value_parser = count_parser())]
    pub window: u64,
    /// Offered rate, transfers or commands per second (open loop); a comma list is measured in
    /// turn. Default: as fast as answers come back.
    #[arg(long, value_name = "N", value_delimiter = ',', value_parser = count_parser())]
    pub rate: Vec<u64>,
    /// How long each rate is measured.
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = humantime::parse_duration)]
    pub duration: Duration,
    /// Warm-up before each measurement.
    #[arg(long, value_name = "DURATION", default_value = "2s", value_parser = humantime::parse_duration)]
    pub warm_up: Duration,
    /// Number of test users.
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = count_parser())]
    pub users: u64,
    /// Number of connections, each with one transfer at a time.
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = count_parser())]
    pub connections: u64,
    /// Percentage of transfers from Funding to Spot; the others go back.
    #[arg(long, value_name = "PERCENT", default_value_t = 50, conflicts_with = "venue", value_parser = RangedU64ValueParser::<u64>::new().range(0..=100))]
    pub to_spot: u64,
    /// Asset of the transfers.
    #[arg(long, value_name = "SYMBOL", default_value = "USDT")]
    pub asset: String,
    /// Amount of each transfer or RESERVE.
    #[arg(long, value_name = "AMOUNT", default_value = "0.01")]
    pub amount: String,
    /// Give the users money even if `serve --dev` did not make this database. The money stays
    /// there.
    #[arg(long, value_name = "DATABASE")]
    pub mint_on: Option<String>,
    /// Number of the first user; the others follow. No other program may move their money during
    /// the measurement.
    #[arg(long, value_name = "ID", default_value_t = 1_000_000, value_parser = user_id_parser())]
    pub first_user: u64,
    /// Format of the result.
    #[arg(long, value_enum, default_value_t = Format::Text)]
    pub format: Format,
    /// Configuration file with the secret; default: UBSCORE_CONFIG, else /etc/ubscore/ubscore.toml
    /// if it exists.
    #[arg(long, value_name = "FILE", conflicts_with = "dev")]
    pub config: Option<PathBuf>,
    /// Use the development secret, as `serve --dev` does.
    #[arg(long)]
    pub dev: bool,
}
