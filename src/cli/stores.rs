//! The arguments of commands that use both stores.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::builder::{NonEmptyStringValueParser, RangedU64ValueParser};
use clap::{Args, Subcommand, ValueEnum};
use jiff::Timestamp;

use super::values::{parse_time, user_id_parser};
use crate::config::Overrides;
use crate::config::secret::Secret;
use crate::format::Format;

/// The arguments that name both stores, shared by several commands.
#[derive(Clone, Debug, Args)]
pub struct StoreArgs {
    /// Configuration file; default: UBSCORE_CONFIG, else /etc/ubscore/ubscore.toml if it exists.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Directory of the log and of the embedded PostgreSQL.
    #[arg(long, value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
    /// URL of PostgreSQL. Other users of the machine can see it, so put a password into a file.
    #[arg(long, value_name = "URL|embedded")]
    pub postgres: Option<Secret>,
    /// Directory of `initdb` and `postgres` for the embedded server.
    #[arg(long, value_name = "DIR")]
    pub postgres_bin: Option<PathBuf>,
    /// Development: a secret, assets and users of its own, on loopback only.
    #[arg(long)]
    pub dev: bool,
}

impl StoreArgs {
    /// The keys of the configuration that the flags override.
    pub fn overrides(&self) -> Overrides {
        Overrides {
            data_dir: self.data_dir.clone(),
            postgres_url: self.postgres.clone(),
            postgres_bin: self.postgres_bin.clone(),
            ..Overrides::default()
        }
    }
}

/// Arguments of `ubscore doctor`.
#[derive(Debug, Args)]
pub struct DoctorArgs {
    /// Check a node of the transaction manager in the place of the service.
    #[arg(long)]
    pub txm: bool,
    /// Format of the findings.
    #[arg(long, value_enum, default_value_t = Format::Text)]
    pub format: Format,
    /// The stores.
    #[command(flatten)]
    pub stores: StoreArgs,
}

/// Arguments of `ubscore verify`.
#[derive(Debug, Args)]
pub struct VerifyArgs {
    /// Format of the mismatches.
    #[arg(long, value_enum, default_value_t = Format::Text)]
    pub format: Format,
    /// The stores.
    #[command(flatten)]
    pub stores: StoreArgs,
}

/// Arguments of `ubscore statement`.
#[derive(Debug, Args)]
pub struct StatementArgs {
    /// The user.
    #[arg(long, value_name = "ID", value_parser = user_id_parser())]
    pub user: u64,
    /// Only this asset.
    #[arg(long, value_name = "SYMBOL")]
    pub asset: Option<String>,
    /// Start time, such as 2026-11-01 or 2026-11-01T08:00:00Z; a date alone begins at midnight UTC.
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    pub since: Option<Timestamp>,
    /// End time, not included.
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    pub until: Option<Timestamp>,
    /// Also movements between the available and the held part of a balance: RESERVE, RELEASE, and
    /// legs of a SETTLE to the owner of the hold.
    #[arg(long)]
    pub holds: bool,
    /// A directory with the segments that are removed from the log. Without it, postings before the
    /// log's oldest snapshot are one line for each asset, EARLIER.
    #[arg(long, value_name = "DIR")]
    pub archive: Option<PathBuf>,
    /// Format of the statement.
    #[arg(long, value_enum, default_value_t = StatementFormat::Text)]
    pub format: StatementFormat,
    /// The stores.
    #[command(flatten)]
    pub stores: StoreArgs,
}

/// Commands for Funding's journal, one row for each commit. They only read, so they may run beside
/// the service.
#[derive(Debug, Subcommand)]
pub enum JournalCommand {
    /// Print rows, one per line, and below each its entries: the states that a transfer passed, and
    /// the changes of a balance.
    ///
    /// An asset that PostgreSQL does not have is #NUMBER, and its amounts are smallest units as
    /// NUMBERu. Exit code 1: a row is damaged, or rows are missing. 2: the rows cannot be read.
    Dump(JournalDumpArgs),
}

/// Arguments of `ubscore journal dump`.
#[derive(Debug, Args)]
pub struct JournalDumpArgs {
    /// Only this shard; default: every shard, one after the other.
    #[arg(long, value_name = "N")]
    pub shard: Option<u32>,
    /// First flight.
    #[arg(long, value_name = "FLIGHT", value_parser = RangedU64ValueParser::<u64>::new().range(1..=u64::MAX >> 1))]
    pub from: Option<u64>,
    /// At most this many rows.
    #[arg(long, value_name = "N", value_parser = RangedU64ValueParser::<u64>::new().range(1..))]
    pub limit: Option<u64>,
    /// Format of a row.
    #[arg(long, value_enum, default_value_t = Format::Text)]
    pub format: Format,
    /// The stores.
    #[command(flatten)]
    pub stores: StoreArgs,
}

/// The format of a statement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum StatementFormat {
    /// Aligned lines.
    Text,
    /// Comma-separated values below a line of names; only the movements.
    Csv,
    /// One JSON object per line.
    Json,
}

/// Commands for UBSCore's whole log.
#[derive(Debug, Subcommand)]
pub enum EngineCommand {
    /// Write a new log from the records of PostgreSQL: Spot balances, statuses and decisions.
    ///
    /// Use it if the log directory is empty or cannot be repaired. The service must be stopped. The
    /// same command continues an interrupted rebuild. Exit code 1: differences are left that no
    /// record proves. 2: refused, or it cannot run.
    Adopt(AdoptArgs),
}

/// Arguments of `ubscore engine adopt`.
#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("what").required(true))]
pub struct AdoptArgs {
    /// Print the plan, and change nothing.
    #[arg(long, group = "what")]
    pub plan: bool,
    /// Carry out the plan.
    #[arg(long, group = "what", requires = "reason")]
    pub apply: bool,
    /// The reason, kept for later readers.
    #[arg(long, value_name = "TEXT", conflicts_with = "plan", value_parser = NonEmptyStringValueParser::new())]
    pub reason: Option<String>,
    /// File with the token of the admin that adopts; required if `approval.required` has a repair.
    #[arg(long, value_name = "FILE", requires = "approver_token_file", conflicts_with = "plan")]
    pub token_file: Option<PathBuf>,
    /// File with the token of the other admin that approves.
    #[arg(long, value_name = "FILE", requires = "token_file")]
    pub approver_token_file: Option<PathBuf>,
    /// The stores.
    #[command(flatten)]
    pub stores: StoreArgs,
}

/// Arguments of `ubscore repair`.
#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("what").required(true))]
pub struct RepairArgs {
    /// Print the plan, and change nothing.
    #[arg(long, group = "what")]
    pub plan: bool,
    /// Carry out the plan.
    #[arg(long, group = "what", requires = "reason")]
    pub apply: bool,
    /// The reason, kept for later readers.
    #[arg(long, value_name = "TEXT", conflicts_with = "plan")]
    pub reason: Option<String>,
    /// After a cut of the log, let venues send again although the service is halted for another
    /// cause as well.
    #[arg(long, conflicts_with = "plan")]
    pub although_halted: bool,
    /// File with the token of the admin that repairs; required if `approval.required` has a repair.
    #[arg(long, value_name = "FILE", requires = "approver_token_file", conflicts_with = "plan")]
    pub token_file: Option<PathBuf>,
    /// File with the token of the other admin that approves.
    #[arg(long, value_name = "FILE", requires = "token_file")]
    pub approver_token_file: Option<PathBuf>,
    /// Format of the plan or of the result.
    #[arg(long, value_enum, default_value_t = Format::Text)]
    pub format: Format,
    /// The stores.
    #[command(flatten)]
    pub stores: StoreArgs,
}

/// Arguments of `ubscore backup`.
#[derive(Debug, Args)]
pub struct BackupArgs {
    /// Directory of the new backup; must be absent or empty.
    #[arg(value_name = "DIR")]
    pub directory: PathBuf,
    /// Format of the result.
    #[arg(long, value_enum, default_value_t = Format::Text)]
    pub format: Format,
    /// The stores.
    #[command(flatten)]
    pub stores: StoreArgs,
}

/// Arguments of `ubscore restore`.
#[derive(Debug, Args)]
pub struct RestoreArgs {
    /// Directory of the backup.
    #[arg(value_name = "DIR")]
    pub directory: PathBuf,
    /// Restore only PostgreSQL and keep the log; then run `ubscore repair` to bring both together.
    #[arg(long, conflicts_with = "only_log")]
    pub only_database: bool,
    /// Restore only the log and its snapshots, and keep the database.
    #[arg(long)]
    pub only_log: bool,
    /// The stores to restore into.
    #[command(flatten)]
    pub stores: StoreArgs,
}

/// Arguments of `ubscore serve`.
#[derive(Debug, Args)]
pub struct ServeArgs {
    /// Address of the public listener.
    #[arg(long, value_name = "ADDR")]
    pub listen: Option<SocketAddr>,
    /// Address of the operators' listener.
    #[arg(long, value_name = "ADDR")]
    pub ops_listen: Option<SocketAddr>,
    /// Development: recharges through a simulator of payment channels, which runs as a child.
    #[arg(long, requires = "dev")]
    pub channel_sim: bool,
    /// Development: a test chain, and a node of the transaction manager on it, as children.
    #[arg(long, requires = "dev")]
    pub chain: bool,
    /// The stores.
    #[command(flatten)]
    pub stores: StoreArgs,
}

impl ServeArgs {
    /// The keys of the configuration that the flags override.
    pub fn overrides(&self) -> Overrides {
        let (http_listen, ops_listen) = (self.listen, self.ops_listen);
        Overrides { http_listen, ops_listen, ..self.stores.overrides() }
    }
}
