//! The command line: commands and their arguments, without their work.
//!
//! Arguments that are wrong by themselves are refused here, with exit code 2.

pub mod overview;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{
    NonEmptyStringValueParser, PossibleValuesParser, RangedU64ValueParser, TypedValueParser,
};
use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use jiff::Timestamp;
use jiff::civil::Date;
use jiff::tz::TimeZone;
use ulid::Ulid;

use crate::config::format::Format;
use crate::config::secret::Secret;
use crate::config::{Overrides, is_http_url};
use crate::http::auth::{Role, USER_ID_MAX};
use crate::release;
use domain::account::AccountType;
use domain::asset::{AssetStatus, SYMBOL_BYTES_MAX};
use domain::transfer::{Direction, Op, State};

/// The longest life of a token, s: a year. A longer life would outlast its user's rights.
const TTL_S_MAX: u64 = 31_536_000;

/// Moves money between PostgreSQL and UBSCore, and never makes or loses any.
///
/// Exit codes: 0 done, or nothing is wrong. 1 refused, failed, or a problem was found. 2 bad
/// arguments or configuration, or the command cannot run. 3 another operator must approve it first.
#[derive(Debug, Parser)]
#[command(name = "ubscore", version = release::LINE, help_template = overview::template())]
pub struct Cli {
    /// The command.
    #[command(subcommand)]
    pub command: Command,
}

/// The subcommands. The first paragraph is the command's line in `--help`, see [`overview`].
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run the service.
    Serve(ServeArgs),
    /// Inspect, check or cut the log.
    #[command(subcommand)]
    Wal(WalCommand),
    /// Inspect or compare snapshots.
    #[command(subcommand)]
    Snapshot(SnapshotCommand),
    /// Print a token for the HTTP API.
    Token(TokenArgs),
    /// Measure a running service with transfers of test users.
    ///
    /// It makes the users and gives them money.
    Load(LoadArgs),
    /// Check machine, PostgreSQL and configuration; say how to correct them.
    ///
    /// It changes nothing, so it may run beside the service. Exit code 1: a finding is bad. 0: at
    /// most warnings.
    Doctor(DoctorArgs),
    /// Compare the log with PostgreSQL.
    ///
    /// The service may run or not. Exit code 1: the stores disagree. 2: the comparison cannot run.
    Verify(VerifyArgs),
    /// Print every movement on one user's accounts, in both stores.
    ///
    /// Each line has the balance after it. Exit code 1: the movements do not add up.
    Statement(StatementArgs),
    /// Bring PostgreSQL back to the state that the log proves.
    ///
    /// Use it for example after a restored backup. The service must be stopped. Exit code 1:
    /// differences are left that no record proves.
    Repair(RepairArgs),
    /// Rebuild a lost log from the records of PostgreSQL.
    ///
    /// Exit code 1: differences are left that no record proves. 2: refused, or it cannot run.
    #[command(subcommand)]
    Engine(EngineCommand),
    /// Back up both stores at one consistent point.
    ///
    /// The service may run. Exit code 1: no backup was written.
    Backup(BackupArgs),
    /// Restore a backup into an empty data directory and an empty database.
    ///
    /// The same command continues an interrupted restore. Exit code 1: the stores disagree
    /// afterwards. 2: nothing was restored.
    Restore(RestoreArgs),
    /// Stop all money until `resume`.
    ///
    /// If the service is down, the flag is written to the data directory and halts the next start.
    /// Exit code 1: not halted.
    Halt(HaltArgs),
    /// Continue after a halt.
    ///
    /// It checks both stores first. The service stays halted if they disagree. Exit code 1: still
    /// halted. 3: another operator must approve it.
    Resume(OperatorArgs),
    /// Refuse new transfers of a direction, an asset, or both, until `unpause`.
    ///
    /// Accepted transfers continue. Exit code 1: the service refuses or does not answer.
    Pause(PauseArgs),
    /// Lift the pause with the same direction and asset.
    Unpause(PauseArgs),
    /// List the pauses in force.
    Pauses(AccessArgs),
    /// List, approve or reject requests of other operators.
    ///
    /// Exit code 1: the service refuses or does not answer.
    #[command(subcommand)]
    Approval(ApprovalCommand),
    /// Find transfers that do not end, and end them.
    ///
    /// Exit code 1: the service refuses or does not answer. 3: another operator must approve it.
    #[command(subcommand)]
    Transfer(TransferCommand),
    /// List failed webhook deliveries, and send them again.
    ///
    /// Exit code 1: the service refuses or does not answer.
    #[command(subcommand)]
    Webhook(WebhookCommand),
    /// Freeze, unfreeze or disable a user's accounts.
    ///
    /// Exit code 1: the service refuses or does not answer.
    #[command(subcommand)]
    Account(AccountCommand),
    /// Change an asset's status and limits.
    ///
    /// Exit code 1: the service refuses or does not answer.
    #[command(subcommand)]
    Asset(AssetCommand),
    /// Enter money from outside into a user's Funding
    ///
    /// The same key again moves nothing. Exit code 3: another operator must approve it first.
    Deposit(ExternalArgs),
    /// Take money out of a user's Funding to the outside
    ///
    /// The same key again moves nothing. Exit code 3: another operator must approve it first.
    Withdraw(ExternalArgs),
    /// Print a completion script for a shell.
    Completions(CompletionsArgs),
    /// Print the manual page, or write the pages of all commands.
    Man(ManArgs),
}

impl Command {
    /// The format of the command's answer and of its error.
    pub fn format(&self) -> Format {
        match self {
            Command::Verify(args) => args.format,
            Command::Repair(args) => args.format,
            Command::Backup(args) => args.format,
            Command::Doctor(args) => args.format,
            Command::Load(args) => args.format,
            Command::Statement(args) if args.format == StatementFormat::Json => Format::Json,
            Command::Halt(args) => args.operator.access.format,
            Command::Resume(args) => args.access.format,
            Command::Pause(args) | Command::Unpause(args) => args.operator.access.format,
            Command::Pauses(access) => access.format,
            Command::Approval(ApprovalCommand::List(args)) => args.access.format,
            Command::Approval(ApprovalCommand::Approve(args) | ApprovalCommand::Reject(args)) => {
                args.operator.access.format
            }
            Command::Transfer(TransferCommand::List(args)) => args.access.format,
            Command::Transfer(TransferCommand::Show(args)) => args.access.format,
            Command::Transfer(TransferCommand::Retry(args) | TransferCommand::Resolve(args)) => {
                args.operator.access.format
            }
            Command::Webhook(WebhookCommand::List(args)) => args.access.format,
            Command::Webhook(WebhookCommand::Resend(args)) => args.operator.access.format,
            Command::Account(
                AccountCommand::Freeze(args)
                | AccountCommand::Unfreeze(args)
                | AccountCommand::Disable(args),
            ) => args.operator.access.format,
            Command::Asset(AssetCommand::Set(args)) => args.operator.access.format,
            Command::Asset(AssetCommand::Add(args)) => args.operator.access.format,
            Command::Asset(AssetCommand::List(access)) => access.format,
            Command::Deposit(args) | Command::Withdraw(args) => args.operator.access.format,
            Command::Wal(WalCommand::Dump(WalDumpArgs { format, .. }))
            | Command::Wal(WalCommand::Verify(WalVerifyArgs { format, .. }))
            | Command::Wal(WalCommand::Stat(WalStatArgs { format, .. })) => *format,
            Command::Snapshot(SnapshotCommand::Inspect(args)) => args.format,
            _ => Format::Text,
        }
    }
}

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
    /// Format of the statement.
    #[arg(long, value_enum, default_value_t = StatementFormat::Text)]
    pub format: StatementFormat,
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

/// Commands for a log. All but `repair` only read, so they may run beside the service.
#[derive(Debug, Subcommand)]
pub enum WalCommand {
    /// Print records, one per line: sequence, time, kind, req_id, op, user, asset, amount, balance
    /// after, outcome.
    ///
    /// An asset that the log has not defined before is #NUMBER, and its amounts are smallest units
    /// as NUMBERu. The end of the log is reported on stderr.
    Dump(WalDumpArgs),
    /// Check every record; exit code 1 if one is damaged, 0 also if the end is torn.
    Verify(WalVerifyArgs),
    /// Count the log's records by kind, order and asset, its users, its batches and the time
    /// between syncs.
    Stat(WalStatArgs),
    /// List the losses of cutting a damaged log; cut it if they are accepted.
    ///
    /// Use it for a log without an intact copy. Without --accept-loss-from it changes nothing. It
    /// reads PostgreSQL if --config or another flag names it. Exit code 0: nothing is wrong, or the
    /// cut is done. 1: records would be lost, or the cut is not yet recorded in PostgreSQL. 2:
    /// refused, or it cannot run.
    Repair(WalRepairArgs),
}

/// Arguments of `ubscore wal repair`.
#[derive(Debug, Args)]
pub struct WalRepairArgs {
    /// A data directory.
    pub path: PathBuf,
    /// Cut this record and all later ones: the first unreadable record, or an earlier one. The
    /// files are copied first.
    #[arg(long, value_name = "SEQ", requires = "reason", value_parser = RangedU64ValueParser::<u64>::new().range(1..=u64::MAX >> 1))]
    pub accept_loss_from: Option<u64>,
    /// Cut even if the first record to cut is intact.
    #[arg(long, requires = "accept_loss_from")]
    pub although_sound: bool,
    /// The reason, kept for later readers.
    #[arg(long, value_name = "TEXT", requires = "accept_loss_from", value_parser = NonEmptyStringValueParser::new())]
    pub reason: Option<String>,
    /// The database.
    #[command(flatten)]
    pub stores: StoreArgs,
}

/// Arguments of `ubscore wal dump`.
#[derive(Debug, Args)]
pub struct WalDumpArgs {
    /// A data directory, a log directory or one segment.
    pub path: PathBuf,
    /// First sequence.
    #[arg(long, value_name = "SEQ")]
    pub from: Option<u64>,
    /// Last sequence.
    #[arg(long, value_name = "SEQ")]
    pub to: Option<u64>,
    /// Only records of this transfer.
    #[arg(long, value_name = "ULID")]
    pub req_id: Option<Ulid>,
    /// Only records of this user.
    #[arg(long, value_name = "ID", value_parser = user_id_parser())]
    pub user: Option<u64>,
    /// Only this operation.
    #[arg(long, value_name = "OP", value_parser = op_parser(), ignore_case = true)]
    pub op: Option<Op>,
    /// Format of a record.
    #[arg(long, value_enum, default_value_t = Format::Text)]
    pub format: Format,
    /// At most this many records.
    #[arg(long, value_name = "N", value_parser = RangedU64ValueParser::<u64>::new().range(1..))]
    pub limit: Option<u64>,
    /// Follow the log: print new records until interrupted or until the reader closes.
    #[arg(long)]
    pub follow: bool,
}

/// Arguments of `ubscore wal verify`.
#[derive(Debug, Args)]
pub struct WalVerifyArgs {
    /// A data directory, a log directory or one segment.
    pub path: PathBuf,
    /// Format of the verdict.
    #[arg(long, value_enum, default_value_t = Format::Text)]
    pub format: Format,
}

/// Arguments of `ubscore wal stat`.
#[derive(Debug, Args)]
pub struct WalStatArgs {
    /// A data directory, a log directory or one segment.
    pub path: PathBuf,
    /// Format of the counts.
    #[arg(long, value_enum, default_value_t = Format::Text)]
    pub format: Format,
}

/// Commands for a snapshot. They only read, so they may run beside the service.
#[derive(Debug, Subcommand)]
pub enum SnapshotCommand {
    /// Check a snapshot and print its content, or compare two. Exit code 1: damaged, or they
    /// differ.
    Inspect(SnapshotInspectArgs),
}

/// Arguments of `ubscore snapshot inspect`.
#[derive(Debug, Args)]
pub struct SnapshotInspectArgs {
    /// A snapshot's file, or a data directory or snapshot directory: all snapshots, newest first.
    #[arg(required_unless_present = "diff", conflicts_with = "diff")]
    pub path: Option<PathBuf>,
    /// Compare two snapshot files, A before B.
    #[arg(long, num_args = 2, value_names = ["A", "B"])]
    pub diff: Option<Vec<PathBuf>>,
    /// Show at most this many differences of each kind; the others are counted.
    #[arg(long, value_name = "N", default_value_t = 20, conflicts_with = "path")]
    pub limit: usize,
    /// Format of the output.
    #[arg(long, value_enum, default_value_t = Format::Text)]
    pub format: Format,
}

/// Arguments of `ubscore token`.
#[derive(Debug, Args)]
pub struct TokenArgs {
    /// The user of the token.
    #[arg(long, value_name = "ID", value_parser = user_id_parser())]
    pub user: u64,
    /// The user's role beyond their own money.
    #[arg(long, value_enum)]
    pub role: Option<Role>,
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

/// Arguments of `ubscore load`.
#[derive(Debug, Args)]
pub struct LoadArgs {
    /// URL of the public listener; default: from the configuration.
    #[arg(long, value_name = "URL", value_parser = parse_url)]
    pub url: Option<String>,
    /// URL of the operators' listener; default: from the configuration.
    #[arg(long, value_name = "URL", value_parser = parse_url)]
    pub ops: Option<String>,
    /// Offered rate, transfers per second (open loop); a comma list is measured in turn. Default:
    /// as fast as answers come back.
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
    #[arg(long, value_name = "PERCENT", default_value_t = 50, value_parser = RangedU64ValueParser::<u64>::new().range(0..=100))]
    pub to_spot: u64,
    /// Asset of the transfers.
    #[arg(long, value_name = "SYMBOL", default_value = "USDT")]
    pub asset: String,
    /// Amount of each transfer.
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

/// Arguments of `ubscore halt`.
#[derive(Debug, Args)]
pub struct HaltArgs {
    /// Data directory to halt if the service is down; default: from the configuration, without
    /// --ops.
    #[arg(long, value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
    /// The reason, the listener and the operator.
    #[command(flatten)]
    pub operator: OperatorArgs,
}

/// Arguments of every command by which an operator makes a change.
#[derive(Debug, Args)]
pub struct OperatorArgs {
    /// The reason; it is recorded and shown to other operators.
    #[arg(long, value_name = "TEXT", value_parser = NonEmptyStringValueParser::new())]
    pub reason: String,
    /// The listener and the operator.
    #[command(flatten)]
    pub access: AccessArgs,
}

/// Commands for requests that need two operators.
#[derive(Debug, Subcommand)]
pub enum ApprovalCommand {
    /// Print requests that wait for another operator, newest first.
    List(ApprovalListArgs),
    /// Approve the request and carry it out; its author cannot approve it.
    Approve(ApprovalDecideArgs),
    /// Refuse the request; its author can withdraw it this way.
    Reject(ApprovalDecideArgs),
}

/// Arguments of `ubscore approval list`.
#[derive(Debug, Args)]
pub struct ApprovalListArgs {
    /// Include decided and expired requests.
    #[arg(long)]
    pub all: bool,
    /// The listener and the operator.
    #[command(flatten)]
    pub access: AccessArgs,
}

/// Arguments of `ubscore approval approve` and `reject`.
#[derive(Debug, Args)]
pub struct ApprovalDecideArgs {
    /// The request.
    pub approval_id: Ulid,
    /// The reason, the listener and the operator.
    #[command(flatten)]
    pub operator: OperatorArgs,
}

/// Arguments of `ubscore pause` and `unpause`.
#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("what").required(true).multiple(true))]
pub struct PauseArgs {
    /// Only this direction; default: both.
    #[arg(long, group = "what", value_parser = direction_parser(), ignore_case = true)]
    pub direction: Option<Direction>,
    /// Only this asset; default: all.
    #[arg(long, group = "what", value_name = "SYMBOL", value_parser = parse_symbol)]
    pub asset: Option<String>,
    /// The reason, the listener and the operator.
    #[command(flatten)]
    pub operator: OperatorArgs,
}

/// Commands for transfers, through the running service.
#[derive(Debug, Subcommand)]
pub enum TransferCommand {
    /// Print transfers, newest first: all that are under way, or all in one state.
    List(TransferListArgs),
    /// Print one transfer with its history and the operations that both stores recorded.
    Show(TransferShowArgs),
    /// Try a transfer now instead of at the end of its back-off.
    Retry(TransferAttendArgs),
    /// Record a permanent refusal if nothing is decided, so that the transfer fails or is rolled
    /// back.
    ///
    /// A decision that is already recorded stays.
    Resolve(TransferAttendArgs),
}

/// Arguments of `ubscore transfer list`.
#[derive(Debug, Args)]
pub struct TransferListArgs {
    /// Only transfers under way for longer than `alert.stuck_ms`.
    #[arg(long)]
    pub stuck: bool,
    /// Only this state; default: all that are not terminal.
    #[arg(long, value_name = "STATE", value_parser = state_parser(), ignore_case = true)]
    pub state: Option<State>,
    /// Only this user; open transfers only, without --ended.
    #[arg(long, value_name = "ID", alias = "user-id", value_parser = user_id_parser())]
    pub user: Option<u64>,
    /// Only transfers with this idempotency key, in any state.
    #[arg(long)]
    pub cid: Option<String>,
    /// Include finished transfers (needs --user).
    #[arg(long, requires = "user")]
    pub ended: bool,
    /// Oldest first; open transfers only.
    #[arg(long)]
    pub oldest: bool,
    /// At most this many; default: 100.
    #[arg(long, value_name = "N", value_parser = RangedU64ValueParser::<u64>::new().range(1..=1_000))]
    pub limit: Option<u64>,
    /// Cursor from the end of an earlier list.
    #[arg(long, value_name = "CURSOR")]
    pub cursor: Option<u64>,
    /// The listener and the operator.
    #[command(flatten)]
    pub access: AccessArgs,
}

/// Arguments of `ubscore transfer show`.
#[derive(Debug, Args)]
pub struct TransferShowArgs {
    /// The transfer.
    pub req_id: Ulid,
    /// The listener and the operator.
    #[command(flatten)]
    pub access: AccessArgs,
}

/// Arguments of `ubscore transfer retry` and `resolve`.
#[derive(Debug, Args)]
pub struct TransferAttendArgs {
    /// The transfer.
    pub req_id: Ulid,
    /// The reason, the listener and the operator.
    #[command(flatten)]
    pub operator: OperatorArgs,
}

/// Commands for events to webhooks, through the running service.
#[derive(Debug, Subcommand)]
pub enum WebhookCommand {
    /// Print dead letters, oldest first: events whose last try failed.
    List(WebhookListArgs),
    /// Deliver a dead letter again, with all its tries.
    Resend(WebhookResendArgs),
}

/// Arguments of `ubscore webhook list`.
#[derive(Debug, Args)]
pub struct WebhookListArgs {
    /// At most this many; default: 100.
    #[arg(long, value_name = "N", value_parser = RangedU64ValueParser::<u64>::new().range(1..=1_000))]
    pub limit: Option<u64>,
    /// Cursor from the end of an earlier list.
    #[arg(long, value_name = "CURSOR", value_parser = parse_cursor)]
    pub cursor: Option<String>,
    /// The listener and the operator.
    #[command(flatten)]
    pub access: AccessArgs,
}

/// Arguments of `ubscore webhook resend`.
#[derive(Debug, Args)]
pub struct WebhookResendArgs {
    /// The event.
    #[arg(value_parser = RangedU64ValueParser::<u64>::new().range(1..=USER_ID_MAX))]
    pub event_id: u64,
    /// The reason, the listener and the operator.
    #[command(flatten)]
    pub operator: OperatorArgs,
}

/// The new status of a user's accounts.
#[derive(Debug, Subcommand)]
pub enum AccountCommand {
    /// Money may come in but not leave.
    Freeze(AccountArgs),
    /// All movements are allowed again, also for a disabled account.
    Unfreeze(AccountArgs),
    /// Money may neither leave nor come in, except refunds.
    Disable(AccountArgs),
}

/// Arguments of `ubscore account`.
#[derive(Debug, Args)]
pub struct AccountArgs {
    /// User id.
    #[arg(value_name = "USER", value_parser = user_id_parser())]
    pub user_id: u64,
    /// Make the accounts of a new user.
    #[arg(long)]
    pub create: bool,
    /// Only this account; default: both.
    #[arg(long, value_name = "ACCOUNT", value_parser = account_parser(), ignore_case = true)]
    pub account: Option<AccountType>,
    /// The reason, the listener and the operator.
    #[command(flatten)]
    pub operator: OperatorArgs,
}

/// Commands for assets.
#[derive(Debug, Subcommand)]
pub enum AssetCommand {
    /// Add an asset; it is in force at once. Number, symbol and precision never change afterwards.
    Add(AssetAddArgs),
    /// Print the assets in force.
    List(AccessArgs),
    /// Change an asset; values that are not given stay.
    Set(AssetSetArgs),
}

/// Arguments of `ubscore asset add`.
#[derive(Debug, Args)]
pub struct AssetAddArgs {
    /// Its symbol, 1 to 16 of A-Z a-z 0-9 _ . -
    #[arg(value_parser = parse_symbol)]
    pub symbol: String,
    /// Its number; default: the next free one.
    #[arg(long, value_name = "N", value_parser = RangedU64ValueParser::<u32>::new().range(1..=2_147_483_647))]
    pub id: Option<u32>,
    /// Decimals of its smallest unit.
    #[arg(long, value_name = "P", value_parser = RangedU64ValueParser::<u8>::new().range(0..=8))]
    pub precision: u8,
    /// The smallest amount of one transfer.
    #[arg(long, value_name = "AMOUNT")]
    pub min: String,
    /// The largest amount of one transfer.
    #[arg(long, value_name = "AMOUNT")]
    pub max: String,
    /// Whether users can transfer it between their accounts.
    #[arg(long, value_name = "true|false", default_value_t = true, action = clap::ArgAction::Set)]
    pub transfer_enabled: bool,
    /// The reason, the listener and the operator.
    #[command(flatten)]
    pub operator: OperatorArgs,
}

/// Arguments of `ubscore deposit` and `ubscore withdraw`.
#[derive(Debug, Args)]
pub struct ExternalArgs {
    /// User id.
    #[arg(long, value_name = "ID", value_parser = user_id_parser())]
    pub user: u64,
    /// The asset's symbol.
    #[arg(long, value_name = "SYMBOL", value_parser = parse_symbol)]
    pub asset: String,
    /// The amount, such as 100.50.
    #[arg(long)]
    pub amount: String,
    /// Key of this operation, 1 to 64 of A-Z a-z 0-9 _ . : -, never used for another operation.
    #[arg(long, value_name = "KEY")]
    pub idem_key: String,
    /// The reason, the listener and the operator.
    #[command(flatten)]
    pub operator: OperatorArgs,
}

/// Arguments of `ubscore asset set`.
#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("change").required(true).multiple(true))]
pub struct AssetSetArgs {
    /// The asset.
    #[arg(value_parser = parse_symbol)]
    pub symbol: String,
    /// Whether the asset moves.
    #[arg(long, group = "change", value_parser = asset_status_parser(), ignore_case = true)]
    pub status: Option<AssetStatus>,
    /// Whether users can transfer it between their accounts.
    #[arg(long, group = "change", value_name = "true|false")]
    pub transfer_enabled: Option<bool>,
    /// The smallest amount of one transfer.
    #[arg(long, group = "change", value_name = "AMOUNT")]
    pub min: Option<String>,
    /// The largest amount of one transfer.
    #[arg(long, group = "change", value_name = "AMOUNT")]
    pub max: Option<String>,
    /// The reason, the listener and the operator.
    #[command(flatten)]
    pub operator: OperatorArgs,
}

/// The operators' listener, the operator and the format of the answer.
#[derive(Debug, Args)]
pub struct AccessArgs {
    /// Format of the answer.
    #[arg(long, value_enum, default_value_t = Format::Text)]
    pub format: Format,
    /// URL of the operators' listener; default: from the configuration.
    #[arg(long, value_name = "URL", value_parser = parse_url)]
    pub ops: Option<String>,
    /// Issuers of the listener's certificate, PEM; default: from the configuration, else those of
    /// browsers.
    #[arg(long, value_name = "FILE")]
    pub ca: Option<PathBuf>,
    /// Your operator number, for the audit trail.
    #[arg(long = "as", value_name = "ID", default_value_t = 1, value_parser = user_id_parser())]
    pub actor: u64,
    /// File with your token; default: a token for --as, signed with the configuration's secret.
    #[arg(long, value_name = "FILE", conflicts_with = "actor")]
    pub token_file: Option<PathBuf>,
    /// Configuration file with the secret; default: UBSCORE_CONFIG, else /etc/ubscore/ubscore.toml
    /// if it exists.
    #[arg(long, value_name = "FILE", conflicts_with = "dev")]
    pub config: Option<PathBuf>,
    /// Use the development secret, as `serve --dev` does.
    #[arg(long)]
    pub dev: bool,
}

/// A parser of names. Its error lists the known names.
fn op_parser() -> impl TypedValueParser<Value = Op> {
    PossibleValuesParser::new(Op::ALL.map(Op::name))
        .map(|name| Op::from_name(&name.to_ascii_uppercase()).expect("one of the names above"))
}

fn state_parser() -> impl TypedValueParser<Value = State> {
    PossibleValuesParser::new(State::ALL.map(State::name)).map(|name| {
        let name = name.to_ascii_uppercase();
        State::from_name(&name).expect("one of the names above")
    })
}

fn direction_parser() -> impl TypedValueParser<Value = Direction> {
    PossibleValuesParser::new(Direction::ALL.map(Direction::wire_name)).map(|name| {
        Direction::from_wire_name(&name.to_ascii_uppercase()).expect("one of the names above")
    })
}

fn account_parser() -> impl TypedValueParser<Value = AccountType> {
    PossibleValuesParser::new([AccountType::Funding, AccountType::Spot].map(AccountType::name)).map(
        |name| AccountType::from_name(&name.to_ascii_uppercase()).expect("one of the names above"),
    )
}

fn asset_status_parser() -> impl TypedValueParser<Value = AssetStatus> {
    PossibleValuesParser::new([AssetStatus::Active, AssetStatus::Suspended].map(AssetStatus::name))
        .map(|name| {
            AssetStatus::from_name(&name.to_ascii_uppercase()).expect("one of the names above")
        })
}

/// Why a text is not a symbol.
#[derive(Debug, thiserror::Error)]
#[error("must be 1 to {SYMBOL_BYTES_MAX} of A-Z a-z 0-9 _ . -")]
struct SymbolError;

/// Checks a text that becomes a part of a path.
fn parse_symbol(text: &str) -> Result<String, SymbolError> {
    let sane = |b: u8| b.is_ascii_alphanumeric() || b"_.-".contains(&b);
    let fits = (1..=SYMBOL_BYTES_MAX).contains(&text.len()) && text.bytes().all(sane);
    if fits { Ok(text.to_owned()) } else { Err(SymbolError) }
}

fn count_parser() -> RangedU64ValueParser<u64> {
    RangedU64ValueParser::new().range(1..=10_000_000)
}

fn user_id_parser() -> RangedU64ValueParser<u64> {
    RangedU64ValueParser::new().range(1..=USER_ID_MAX)
}

/// Why a text is not a cursor.
#[derive(Debug, thiserror::Error)]
#[error("must be the cursor at the end of an earlier list")]
struct CursorError;

/// Checks a text that becomes a part of a path.
fn parse_cursor(text: &str) -> Result<String, CursorError> {
    let sane = |b: u8| b.is_ascii_alphanumeric() || b"_.-".contains(&b);
    if text.bytes().all(sane) { Ok(text.to_owned()) } else { Err(CursorError) }
}

/// Why a text is not a URL.
#[derive(Debug, thiserror::Error)]
#[error("must be an http:// or https:// URL")]
struct UrlError;

fn parse_url(text: &str) -> Result<String, UrlError> {
    if is_http_url(text) { Ok(text.to_owned()) } else { Err(UrlError) }
}

fn parse_time(text: &str) -> Result<Timestamp, jiff::Error> {
    match text.parse::<Date>() {
        Ok(date) if !text.contains('T') => Ok(date.to_zoned(TimeZone::UTC)?.timestamp()),
        _ => text.parse(),
    }
}

/// Why a duration is not allowed as the life of a token.
#[derive(Debug, thiserror::Error)]
enum TtlError {
    #[error(transparent)]
    Duration(#[from] humantime::DurationError),
    #[error("must be 1s..={TTL_S_MAX}s, a year")]
    Range,
}

fn parse_ttl(text: &str) -> Result<Duration, TtlError> {
    let ttl = humantime::parse_duration(text)?;
    if !(1..=TTL_S_MAX).contains(&ttl.as_secs()) {
        return Err(TtlError::Range);
    }
    Ok(ttl)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    fn parse(line: &str) -> Result<Command, clap::Error> {
        Cli::try_parse_from(line.split(' ')).map(|cli| cli.command)
    }

    #[test]
    fn the_declaration_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn serve_turns_flags_into_overrides() {
        let line = "ubscore serve --data-dir /d --listen 127.0.0.1:1 --ops-listen [::1]:2 \
                    --postgres postgres://u:hunter2@h/d --postgres-bin /b --dev --config /c";
        let command = parse(line).expect("arguments");
        assert!(!format!("{command:?}").contains("hunter2"), "{command:?}");
        let Command::Serve(args) = command else { panic!("another command") };
        let overrides = args.overrides();
        assert_eq!(overrides.data_dir, Some(PathBuf::from("/d")));
        assert_eq!(overrides.http_listen.map(|listen| listen.port()), Some(1));
        assert_eq!(overrides.ops_listen.map(|listen| listen.port()), Some(2));
        assert_eq!(overrides.postgres_url, Some(Secret::new("postgres://u:hunter2@h/d")));
        assert_eq!(overrides.postgres_bin, Some(PathBuf::from("/b")));
        assert!(args.stores.dev);
    }

    #[test]
    fn wal_commands_take_every_filter() {
        let line = "ubscore wal dump /d --from 1 --to 9 --req-id 01JFVQ2X8Z0Y1M3N4P5R6S7T8V \
                    --user 7 --op refund --format json --limit 3 --follow";
        let Command::Wal(WalCommand::Dump(args)) = parse(line).expect("arguments") else {
            panic!("another command")
        };
        assert_eq!(
            (args.from, args.to, args.user, args.limit),
            (Some(1), Some(9), Some(7), Some(3))
        );
        assert_eq!(args.req_id.map(|id| id.to_string()), Some("01JFVQ2X8Z0Y1M3N4P5R6S7T8V".into()));
        assert_eq!((args.op, args.format, args.follow), (Some(Op::Refund), Format::Json, true));
        let verify = parse("ubscore wal verify /d").expect("arguments");
        assert!(matches!(
            verify,
            Command::Wal(WalCommand::Verify(WalVerifyArgs { format: Format::Text, .. }))
        ));
    }

    #[test]
    fn a_date_alone_begins_at_midnight() {
        let line =
            "ubscore statement --user 7 --since 2026-11-01 --until 2026-11-01T08:00:00+02:00";
        let Command::Statement(args) = parse(line).expect("arguments") else {
            panic!("another command")
        };
        let times = [args.since, args.until].map(|time| time.expect("given").to_string());
        assert_eq!(times, ["2026-11-01T00:00:00Z", "2026-11-01T06:00:00Z"]);
    }

    #[test]
    fn bad_arguments_exit_with_2() {
        for line in [
            "ubscore",
            "ubscore fly",
            "ubscore serve --listen localhost",
            "ubscore wal",
            "ubscore wal dump",
            "ubscore wal dump /d --from x",
            "ubscore wal dump /d --limit 0",
            "ubscore wal dump /d --req-id 1",
            "ubscore wal dump /d --op FLY",
            "ubscore wal verify /d --format xml",
            "ubscore wal stat",
            "ubscore wal repair",
            "ubscore wal repair /d --accept-loss-from 5",
            "ubscore wal repair /d --accept-loss-from 0 --reason x",
            "ubscore wal repair /d --accept-loss-from 5 --reason=",
            "ubscore wal repair /d --reason x",
            "ubscore wal repair /d --although-sound",
            "ubscore snapshot",
            "ubscore snapshot inspect",
            "ubscore snapshot inspect /d --format xml",
            "ubscore snapshot inspect /d --limit 3",
            "ubscore snapshot inspect --diff /a",
            "ubscore snapshot inspect --diff /a /b /c",
            "ubscore token",
            "ubscore token --user 0",
            "ubscore token --user -1",
            "ubscore token --user 9223372036854775808",
            "ubscore token --user 1 --role root",
            "ubscore token --user 1 --ttl 0s",
            "ubscore token --user 1 --ttl 500ms",
            "ubscore token --user 1 --ttl 366d",
            "ubscore token --user 1 --ttl soon",
            "ubscore token --user 1 --dev --config /c",
            "ubscore load --rate 0",
            "ubscore load --rate 10,x",
            "ubscore load --to-spot 101",
            "ubscore load --duration soon",
            "ubscore load --url localhost",
            "ubscore load --connections 0",
            "ubscore statement",
            "ubscore statement --user 0",
            "ubscore statement --user 1 --since yesterday",
            "ubscore statement --user 1 --format xml",
            "ubscore backup",
            "ubscore restore",
            "ubscore restore /b --only-log --only-database",
            "ubscore halt",
            "ubscore resume",
            "ubscore halt --reason",
            "ubscore halt --reason=",
            "ubscore halt --reason x --ops localhost:9090",
            "ubscore halt --reason x --as 0",
            "ubscore resume --reason x --dev --config /c",
            "ubscore pause --reason x",
            "ubscore pause --asset USDT",
            "ubscore pause --asset US/DT --reason x",
            "ubscore unpause --direction SIDEWAYS --reason x",
            "ubscore pauses --format xml",
            "ubscore doctor --format xml",
            "ubscore completions",
            "ubscore completions sh",
            "ubscore man /a /b",
            "ubscore pauses --as 7 --token-file t",
            "ubscore pauses --user 7",
            "ubscore approval",
            "ubscore approval approve 01JFVQ2X8Z0Y1M3N4P5R6S7T8V",
            "ubscore approval reject 7 --reason x",
            "ubscore repair --apply --reason x --token-file a",
            "ubscore repair --apply --reason x --approver-token-file b",
            "ubscore repair --plan --token-file a --approver-token-file b",
            "ubscore transfer",
            "ubscore transfer list --state GONE",
            "ubscore transfer list --limit 0",
            "ubscore transfer list --limit 1001",
            "ubscore transfer list --user-id 0",
            "ubscore transfer list --format xml",
            "ubscore transfer show",
            "ubscore transfer show 1",
            "ubscore transfer retry 01JFVQ2X8Z0Y1M3N4P5R6S7T8V",
            "ubscore transfer resolve 01JFVQ2X8Z0Y1M3N4P5R6S7T8V",
            "ubscore transfer resolve --reason x",
            "ubscore webhook",
            "ubscore webhook list --limit 0",
            "ubscore webhook list --cursor 1&x=2",
            "ubscore webhook resend --reason x",
            "ubscore webhook resend 0 --reason x",
            "ubscore webhook resend 1",
            "ubscore account freeze 1",
            "ubscore account freeze 0 --reason x",
            "ubscore account freeze 1 --reason x --account FUTURE",
            "ubscore account thaw 1 --reason x",
            "ubscore asset set USDT --reason x",
            "ubscore asset set USDT --status ACTIVE",
            "ubscore asset set US/DT --reason x --min 1",
            "ubscore asset set USDT --reason x --status GONE",
            "ubscore asset set USDT --reason x --transfer-enabled perhaps",
        ] {
            assert_eq!(parse(line).expect_err(line).exit_code(), 2, "{line}");
        }
        assert_eq!(parse("ubscore --help").expect_err("help").exit_code(), 0);
    }
}
