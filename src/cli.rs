//! The command line: what can be typed, and nothing of what it does.
//!
//! Arguments that are wrong in themselves are refused here, with exit code 2.

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

/// Longest life of a token, s: a year. One that lives longer outlives its user's rights.
const TTL_S_MAX: u64 = 31_536_000;

/// Moves money between PostgreSQL and UBSCore, and never makes or loses any.
///
/// Exit codes: 0 done, or nothing is wrong. 1 refused, failed, or something is wrong. 2 bad arguments or configuration, or the
/// command cannot run. 3 another operator must approve it first.
#[derive(Debug, Parser)]
#[command(name = "ubscore", version = release::LINE, help_template = overview::template())]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The subcommands: the first paragraph is their clause in `--help`, see [`overview`].
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
    /// It changes nothing, also while the service runs. Exit code 1: something is bad. 0: at most warnings.
    Doctor(DoctorArgs),
    /// Compare the log with PostgreSQL.
    ///
    /// The service may run or not. Exit code 1: something does not add up. 2: the comparison cannot run.
    Verify(VerifyArgs),
    /// Print every movement on one user's accounts, in both stores.
    ///
    /// Each line has the balance after it. Exit code 1: the movements do not add up.
    Statement(StatementArgs),
    /// Bring PostgreSQL back to the state that the log proves.
    ///
    /// For example after a restored backup; no service may run. Exit code 1: something is left that nothing proves.
    Repair(RepairArgs),
    /// Rebuild a log that is lost from what PostgreSQL proves.
    ///
    /// Exit code 1: something is left that nothing proves. 2: refused, or it cannot run.
    #[command(subcommand)]
    Engine(EngineCommand),
    /// Back up both stores at one consistent point.
    ///
    /// The service may run. Exit code 1: no backup was written.
    Backup(BackupArgs),
    /// Restore a backup into an empty data directory and an empty database.
    ///
    /// The same command continues an interrupted restore. Exit code 1: the stores disagree afterwards. 2: nothing was restored.
    Restore(RestoreArgs),
    /// Stop all money until `resume`.
    ///
    /// If the service is down, the flag goes into the data directory and halts the next start. Exit code 1: not halted.
    Halt(HaltArgs),
    /// Continue after a halt.
    ///
    /// It checks both stores first. The service stays halted if they disagree. Exit code 1: still halted. 3: another operator
    /// must approve it.
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
    /// How the command writes its answer, and why it failed.
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

/// What `ubscore completions` is told.
#[derive(Debug, Args)]
pub struct CompletionsArgs {
    /// Whose script.
    #[arg(value_enum)]
    pub shell: Shell,
}

/// What `ubscore man` is told.
#[derive(Debug, Args)]
pub struct ManArgs {
    /// Where ubscore.1 and a page for each command are written; without: ubscore.1 goes to standard output.
    #[arg(value_name = "DIR")]
    pub directory: Option<PathBuf>,
}

/// Where both stores are, as `ubscore verify` is told, and `serve` and `repair` among other things.
#[derive(Clone, Debug, Args)]
pub struct StoreArgs {
    /// Configuration file; default: UBSCORE_CONFIG, else /etc/ubscore/ubscore.toml if it exists.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Directory of the log and the embedded PostgreSQL.
    #[arg(long, value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
    /// Where PostgreSQL is; visible to other users of the machine, so a password belongs in a file.
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
    /// What the flags change in the configuration.
    pub fn overrides(&self) -> Overrides {
        Overrides {
            data_dir: self.data_dir.clone(),
            postgres_url: self.postgres.clone(),
            postgres_bin: self.postgres_bin.clone(),
            ..Overrides::default()
        }
    }
}

/// What `ubscore doctor` is told.
#[derive(Debug, Args)]
pub struct DoctorArgs {
    /// How the findings are written.
    #[arg(long, value_enum, default_value_t = Format::Text)]
    pub format: Format,
    /// Where both stores are.
    #[command(flatten)]
    pub stores: StoreArgs,
}

/// What `ubscore verify` is told.
#[derive(Debug, Args)]
pub struct VerifyArgs {
    /// How the mismatches are written.
    #[arg(long, value_enum, default_value_t = Format::Text)]
    pub format: Format,
    /// Where both stores are.
    #[command(flatten)]
    pub stores: StoreArgs,
}

/// What `ubscore statement` is told.
#[derive(Debug, Args)]
pub struct StatementArgs {
    /// Whose accounts.
    #[arg(long, value_name = "ID", value_parser = user_id_parser())]
    pub user: u64,
    /// Of this asset only.
    #[arg(long, value_name = "SYMBOL")]
    pub asset: Option<String>,
    /// From this time on, such as 2026-11-01 or 2026-11-01T08:00:00Z; a date alone begins at midnight UTC.
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    pub since: Option<Timestamp>,
    /// Before this time.
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    pub until: Option<Timestamp>,
    /// How it is written.
    #[arg(long, value_enum, default_value_t = StatementFormat::Text)]
    pub format: StatementFormat,
    /// Where both stores are.
    #[command(flatten)]
    pub stores: StoreArgs,
}

/// How a statement is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum StatementFormat {
    /// Aligned lines.
    Text,
    /// Comma-separated values under a line of names: the movements alone.
    Csv,
    /// One JSON object a line.
    Json,
}

/// What can be done with UBSCore's log as a whole.
#[derive(Debug, Subcommand)]
pub enum EngineCommand {
    /// Write a new log from what PostgreSQL proves: Spot balances, statuses and decisions.
    ///
    /// For a log directory that is empty or cannot be repaired; no service may run. The same command continues an interrupted
    /// rebuild. Exit code 1: something is left that nothing proves. 2: refused, or it cannot run.
    Adopt(AdoptArgs),
}

/// What `ubscore engine adopt` is told.
#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("what").required(true))]
pub struct AdoptArgs {
    /// Say what would be done, and change nothing.
    #[arg(long, group = "what")]
    pub plan: bool,
    /// Do it.
    #[arg(long, group = "what", requires = "reason")]
    pub apply: bool,
    /// Why, for those who come later.
    #[arg(long, value_name = "TEXT", conflicts_with = "plan", value_parser = NonEmptyStringValueParser::new())]
    pub reason: Option<String>,
    /// A file with the token of the admin who adopts; needed where `approval.required` names a repair.
    #[arg(long, value_name = "FILE", requires = "approver_token_file", conflicts_with = "plan")]
    pub token_file: Option<PathBuf>,
    /// A file with the token of the other admin, who approves it.
    #[arg(long, value_name = "FILE", requires = "token_file")]
    pub approver_token_file: Option<PathBuf>,
    /// Where both stores are.
    #[command(flatten)]
    pub stores: StoreArgs,
}

/// What `ubscore repair` is told.
#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("what").required(true))]
pub struct RepairArgs {
    /// Say what would be done, and change nothing.
    #[arg(long, group = "what")]
    pub plan: bool,
    /// Do it.
    #[arg(long, group = "what", requires = "reason")]
    pub apply: bool,
    /// Why, for those who come later.
    #[arg(long, value_name = "TEXT", conflicts_with = "plan")]
    pub reason: Option<String>,
    /// A file with the token of the admin who repairs; needed where `approval.required` names a repair.
    #[arg(long, value_name = "FILE", requires = "approver_token_file", conflicts_with = "plan")]
    pub token_file: Option<PathBuf>,
    /// A file with the token of the other admin, who approves it.
    #[arg(long, value_name = "FILE", requires = "token_file")]
    pub approver_token_file: Option<PathBuf>,
    /// How the plan or the result is written.
    #[arg(long, value_enum, default_value_t = Format::Text)]
    pub format: Format,
    /// Where both stores are.
    #[command(flatten)]
    pub stores: StoreArgs,
}

/// What `ubscore backup` is told.
#[derive(Debug, Args)]
pub struct BackupArgs {
    /// Where the backup is made; must not exist, or be empty.
    #[arg(value_name = "DIR")]
    pub directory: PathBuf,
    /// How the result is written.
    #[arg(long, value_enum, default_value_t = Format::Text)]
    pub format: Format,
    /// Where both stores are.
    #[command(flatten)]
    pub stores: StoreArgs,
}

/// What `ubscore restore` is told.
#[derive(Debug, Args)]
pub struct RestoreArgs {
    /// The backup.
    #[arg(value_name = "DIR")]
    pub directory: PathBuf,
    /// Only PostgreSQL's half, beside the log that is there: `ubscore repair` brings it up to that.
    #[arg(long, conflicts_with = "only_log")]
    pub only_database: bool,
    /// Only the log and its snapshots, beside the database that is there.
    #[arg(long)]
    pub only_log: bool,
    /// Where both stores are to be.
    #[command(flatten)]
    pub stores: StoreArgs,
}

/// What `ubscore serve` is told.
#[derive(Debug, Args)]
pub struct ServeArgs {
    /// Address of the public listener.
    #[arg(long, value_name = "ADDR")]
    pub listen: Option<SocketAddr>,
    /// Address of the operators' listener.
    #[arg(long, value_name = "ADDR")]
    pub ops_listen: Option<SocketAddr>,
    /// Where both stores are.
    #[command(flatten)]
    pub stores: StoreArgs,
}

impl ServeArgs {
    /// What the flags change in the configuration.
    pub fn overrides(&self) -> Overrides {
        let (http_listen, ops_listen) = (self.listen, self.ops_listen);
        Overrides { http_listen, ops_listen, ..self.stores.overrides() }
    }
}

/// What can be done with a log; all but a repair reads only, also while the service runs.
#[derive(Debug, Subcommand)]
pub enum WalCommand {
    /// Print records, one a line: sequence, time, kind, req_id, op, user, asset, amount, balance
    /// after, outcome.
    ///
    /// An asset is #NUMBER, and its amounts are smallest units as NUMBERu, where the log does not
    /// tell what it is before it is used. How the log ends is said on stderr.
    Dump(WalDumpArgs),
    /// Check every record; exit code 1 if one is damaged, 0 also if the end is torn.
    Verify(WalVerifyArgs),
    /// Count what the log consists of: records by kind, order and asset, users, batches and the time between syncs.
    Stat(WalStatArgs),
    /// Say what giving up the end of a damaged log would lose; and give it up, where that is accepted.
    ///
    /// For a log that no copy can mend. Without --accept-loss-from it changes nothing. PostgreSQL is asked where --config or
    /// another flag says where it is. Exit code 0: nothing is wrong, or it is done; 1: something would be lost, or PostgreSQL
    /// has not been told yet; 2: refused, or it cannot run.
    Repair(WalRepairArgs),
}

/// What `ubscore wal repair` is told.
#[derive(Debug, Args)]
pub struct WalRepairArgs {
    /// A data directory.
    pub path: PathBuf,
    /// Give up this record and everything behind it: the first one that cannot be read, or an earlier one. The files are
    /// copied aside before.
    #[arg(long, value_name = "SEQ", requires = "reason", value_parser = RangedU64ValueParser::<u64>::new().range(1..=u64::MAX >> 1))]
    pub accept_loss_from: Option<u64>,
    /// Give it up although nothing is wrong with the first record that goes.
    #[arg(long, requires = "accept_loss_from")]
    pub although_sound: bool,
    /// Why, for those who come later.
    #[arg(long, value_name = "TEXT", requires = "accept_loss_from", value_parser = NonEmptyStringValueParser::new())]
    pub reason: Option<String>,
    /// Where PostgreSQL is.
    #[command(flatten)]
    pub stores: StoreArgs,
}

/// What `ubscore wal dump` is told.
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
    /// How a record is written.
    #[arg(long, value_enum, default_value_t = Format::Text)]
    pub format: Format,
    /// At most this many records.
    #[arg(long, value_name = "N", value_parser = RangedU64ValueParser::<u64>::new().range(1..))]
    pub limit: Option<u64>,
    /// Go on with records as they are written, until interrupted or nobody reads them.
    #[arg(long)]
    pub follow: bool,
}

/// What `ubscore wal verify` is told.
#[derive(Debug, Args)]
pub struct WalVerifyArgs {
    /// A data directory, a log directory or one segment.
    pub path: PathBuf,
    /// How the verdict is written.
    #[arg(long, value_enum, default_value_t = Format::Text)]
    pub format: Format,
}

/// What `ubscore wal stat` is told.
#[derive(Debug, Args)]
pub struct WalStatArgs {
    /// A data directory, a log directory or one segment.
    pub path: PathBuf,
    /// How the counts are written.
    #[arg(long, value_enum, default_value_t = Format::Text)]
    pub format: Format,
}

/// What can be done with a snapshot; all of it reads only, also while the service runs.
#[derive(Debug, Subcommand)]
pub enum SnapshotCommand {
    /// Check a snapshot and say what it holds, or what differs between two; exit code 1 if one is damaged or they differ.
    Inspect(SnapshotInspectArgs),
}

/// What `ubscore snapshot inspect` is told.
#[derive(Debug, Args)]
pub struct SnapshotInspectArgs {
    /// A snapshot's file, or a data directory or directory of snapshots for all there are, newest first.
    #[arg(required_unless_present = "diff", conflicts_with = "diff")]
    pub path: Option<PathBuf>,
    /// Compare the files of two snapshots, A before B.
    #[arg(long, num_args = 2, value_names = ["A", "B"])]
    pub diff: Option<Vec<PathBuf>>,
    /// At most this many differences of each sort are shown; the others are counted.
    #[arg(long, value_name = "N", default_value_t = 20, conflicts_with = "path")]
    pub limit: usize,
    /// How it is written.
    #[arg(long, value_enum, default_value_t = Format::Text)]
    pub format: Format,
}

/// What `ubscore token` is told.
#[derive(Debug, Args)]
pub struct TokenArgs {
    /// Whom the token is for.
    #[arg(long, value_name = "ID", value_parser = user_id_parser())]
    pub user: u64,
    /// What the user may do beyond their own money.
    #[arg(long, value_enum)]
    pub role: Option<Role>,
    /// How long the token is valid, such as 15m or 1h.
    #[arg(long, value_name = "DURATION", default_value = "1h", value_parser = parse_ttl)]
    pub ttl: Duration,
    /// Configuration file that names the secret; default: UBSCORE_CONFIG, else /etc/ubscore/ubscore.toml if it exists.
    #[arg(long, value_name = "FILE", conflicts_with = "dev")]
    pub config: Option<PathBuf>,
    /// Use the development secret, as `serve --dev` does.
    #[arg(long)]
    pub dev: bool,
}

/// What `ubscore load` is told.
#[derive(Debug, Args)]
pub struct LoadArgs {
    /// The public listener; default: where the configuration says.
    #[arg(long, value_name = "URL", value_parser = parse_url)]
    pub url: Option<String>,
    /// The operators' listener; default: where the configuration says.
    #[arg(long, value_name = "URL", value_parser = parse_url)]
    pub ops: Option<String>,
    /// Offered rate, transfers per second (open loop); a comma list is measured in turn. Default: as fast as answers come back.
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
    /// Connections: transfers that may be waited for at once.
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = count_parser())]
    pub connections: u64,
    /// How many of a hundred transfers go from Funding to Spot; the others go back.
    #[arg(long, value_name = "PERCENT", default_value_t = 50, value_parser = RangedU64ValueParser::<u64>::new().range(0..=100))]
    pub to_spot: u64,
    /// What is transferred.
    #[arg(long, value_name = "SYMBOL", default_value = "USDT")]
    pub asset: String,
    /// How much of it at a time.
    #[arg(long, value_name = "AMOUNT", default_value = "0.01")]
    pub amount: String,
    /// Give the users money on this database, although `serve --dev` did not make it. The money stays there.
    #[arg(long, value_name = "DATABASE")]
    pub mint_on: Option<String>,
    /// The first user's number; the others follow. Nobody else must move their money meanwhile.
    #[arg(long, value_name = "ID", default_value_t = 1_000_000, value_parser = user_id_parser())]
    pub first_user: u64,
    /// How the result is written.
    #[arg(long, value_enum, default_value_t = Format::Text)]
    pub format: Format,
    /// Configuration file that names the secret; default: UBSCORE_CONFIG, else /etc/ubscore/ubscore.toml if it exists.
    #[arg(long, value_name = "FILE", conflicts_with = "dev")]
    pub config: Option<PathBuf>,
    /// Use the development secret, as `serve --dev` does.
    #[arg(long)]
    pub dev: bool,
}

/// What `ubscore halt` is told.
#[derive(Debug, Args)]
pub struct HaltArgs {
    /// The data directory to halt if the service is down; default: the one of the configuration, without --ops.
    #[arg(long, value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
    /// Why, where, and who.
    #[command(flatten)]
    pub operator: OperatorArgs,
}

/// What every command is told by which an operator changes something.
#[derive(Debug, Args)]
pub struct OperatorArgs {
    /// Why; it is written down and shown to other operators.
    #[arg(long, value_name = "TEXT", value_parser = NonEmptyStringValueParser::new())]
    pub reason: String,
    /// Where, and who.
    #[command(flatten)]
    pub access: AccessArgs,
}

/// What can be done about what needs two operators.
#[derive(Debug, Subcommand)]
pub enum ApprovalCommand {
    /// Print what waits for another operator, newest first.
    List(ApprovalListArgs),
    /// Approve the request and carry it out; its author cannot approve it.
    Approve(ApprovalDecideArgs),
    /// Refuse the request; its author can withdraw it this way.
    Reject(ApprovalDecideArgs),
}

/// What `ubscore approval list` is told.
#[derive(Debug, Args)]
pub struct ApprovalListArgs {
    /// Include decided and expired requests.
    #[arg(long)]
    pub all: bool,
    /// Where, and who.
    #[command(flatten)]
    pub access: AccessArgs,
}

/// What `ubscore approval approve` and `reject` are told.
#[derive(Debug, Args)]
pub struct ApprovalDecideArgs {
    /// Which approval.
    pub approval_id: Ulid,
    /// Why, where, and who.
    #[command(flatten)]
    pub operator: OperatorArgs,
}

/// What `ubscore pause` and `unpause` are told.
#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("what").required(true).multiple(true))]
pub struct PauseArgs {
    /// Only this direction; without: both.
    #[arg(long, group = "what", value_parser = direction_parser(), ignore_case = true)]
    pub direction: Option<Direction>,
    /// Only this asset; without: every one.
    #[arg(long, group = "what", value_name = "SYMBOL", value_parser = parse_symbol)]
    pub asset: Option<String>,
    /// Why, where, and who.
    #[command(flatten)]
    pub operator: OperatorArgs,
}

/// What can be done about transfers, through the running service.
#[derive(Debug, Subcommand)]
pub enum TransferCommand {
    /// Print transfers, newest first: those that are under way, or those in one state.
    List(TransferListArgs),
    /// Print one transfer with its history and the operations that both stores recorded.
    Show(TransferShowArgs),
    /// Try a transfer now instead of at the end of its back-off.
    Retry(TransferAttendArgs),
    /// Record a permanent refusal if nothing is decided, so that the transfer fails or is rolled back.
    ///
    /// A decision that is recorded already counts.
    Resolve(TransferAttendArgs),
}

/// What `ubscore transfer list` is told.
#[derive(Debug, Args)]
pub struct TransferListArgs {
    /// Only those under way for longer than `alert.stuck_ms`.
    #[arg(long)]
    pub stuck: bool,
    /// Only those in this state; without: every one that is not terminal.
    #[arg(long, value_name = "STATE", value_parser = state_parser(), ignore_case = true)]
    pub state: Option<State>,
    /// Only this user's; open transfers only, without --ended.
    #[arg(long, value_name = "ID", alias = "user-id", value_parser = user_id_parser())]
    pub user: Option<u64>,
    /// Only those with this idempotency key, in whatever state.
    #[arg(long)]
    pub cid: Option<String>,
    /// Include finished transfers (needs --user).
    #[arg(long, requires = "user")]
    pub ended: bool,
    /// Oldest first; open transfers only.
    #[arg(long)]
    pub oldest: bool,
    /// At most this many; without: 100.
    #[arg(long, value_name = "N", value_parser = RangedU64ValueParser::<u64>::new().range(1..=1_000))]
    pub limit: Option<u64>,
    /// Go on where an earlier list ended.
    #[arg(long, value_name = "CURSOR")]
    pub cursor: Option<u64>,
    /// Where, and who.
    #[command(flatten)]
    pub access: AccessArgs,
}

/// What `ubscore transfer show` is told.
#[derive(Debug, Args)]
pub struct TransferShowArgs {
    /// Which transfer.
    pub req_id: Ulid,
    /// Where, and who.
    #[command(flatten)]
    pub access: AccessArgs,
}

/// What `ubscore transfer retry` and `resolve` are told.
#[derive(Debug, Args)]
pub struct TransferAttendArgs {
    /// Which transfer.
    pub req_id: Ulid,
    /// Why, where, and who.
    #[command(flatten)]
    pub operator: OperatorArgs,
}

/// What can be done about events for webhooks, through the running service.
#[derive(Debug, Subcommand)]
pub enum WebhookCommand {
    /// Print dead letters, oldest first: events that were given up after the last try.
    List(WebhookListArgs),
    /// Have a dead letter delivered after all, as if for the first time.
    Resend(WebhookResendArgs),
}

/// What `ubscore webhook list` is told.
#[derive(Debug, Args)]
pub struct WebhookListArgs {
    /// At most this many; without: 100.
    #[arg(long, value_name = "N", value_parser = RangedU64ValueParser::<u64>::new().range(1..=1_000))]
    pub limit: Option<u64>,
    /// Go on where an earlier list ended.
    #[arg(long, value_name = "CURSOR", value_parser = parse_cursor)]
    pub cursor: Option<String>,
    /// Where, and who.
    #[command(flatten)]
    pub access: AccessArgs,
}

/// What `ubscore webhook resend` is told.
#[derive(Debug, Args)]
pub struct WebhookResendArgs {
    /// Which event.
    #[arg(value_parser = RangedU64ValueParser::<u64>::new().range(1..=USER_ID_MAX))]
    pub event_id: u64,
    /// Why, where, and who.
    #[command(flatten)]
    pub operator: OperatorArgs,
}

/// The status of a user's accounts from now on.
#[derive(Debug, Subcommand)]
pub enum AccountCommand {
    /// Nothing leaves; money may come in.
    Freeze(AccountArgs),
    /// Everything again, also of an account that was disabled.
    Unfreeze(AccountArgs),
    /// Nothing leaves and nothing comes in, but refunds.
    Disable(AccountArgs),
}

/// What `ubscore account` is told.
#[derive(Debug, Args)]
pub struct AccountArgs {
    /// User id.
    #[arg(value_name = "USER", value_parser = user_id_parser())]
    pub user_id: u64,
    /// Make the accounts of a user that neither store knows yet.
    #[arg(long)]
    pub create: bool,
    /// Only this account; without: both.
    #[arg(long, value_name = "ACCOUNT", value_parser = account_parser(), ignore_case = true)]
    pub account: Option<AccountType>,
    /// Why, where, and who.
    #[command(flatten)]
    pub operator: OperatorArgs,
}

/// What can be done about assets.
#[derive(Debug, Subcommand)]
pub enum AssetCommand {
    /// Add an asset; it is in force at once. Number, symbol and precision never change afterwards.
    Add(AssetAddArgs),
    /// Print the assets in force.
    List(AccessArgs),
    /// Change an asset; what is not named stays.
    Set(AssetSetArgs),
}

/// What `ubscore asset add` is told.
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
    /// Whether it can be transferred between a user's accounts.
    #[arg(long, value_name = "true|false", default_value_t = true, action = clap::ArgAction::Set)]
    pub transfer_enabled: bool,
    /// Why, where, and who.
    #[command(flatten)]
    pub operator: OperatorArgs,
}

/// What `ubscore deposit` and `ubscore withdraw` are told.
#[derive(Debug, Args)]
pub struct ExternalArgs {
    /// User id.
    #[arg(long, value_name = "ID", value_parser = user_id_parser())]
    pub user: u64,
    /// The asset's symbol.
    #[arg(long, value_name = "SYMBOL", value_parser = parse_symbol)]
    pub asset: String,
    /// How much, such as 100.50.
    #[arg(long)]
    pub amount: String,
    /// Key of this operation, 1 to 64 of A-Z a-z 0-9 _ . : - and never used for another one.
    #[arg(long, value_name = "KEY")]
    pub idem_key: String,
    /// Why, where, and who.
    #[command(flatten)]
    pub operator: OperatorArgs,
}

/// What `ubscore asset set` is told.
#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("change").required(true).multiple(true))]
pub struct AssetSetArgs {
    /// Which asset.
    #[arg(value_parser = parse_symbol)]
    pub symbol: String,
    /// Whether it moves.
    #[arg(long, group = "change", value_parser = asset_status_parser(), ignore_case = true)]
    pub status: Option<AssetStatus>,
    /// Whether it can be transferred between a user's accounts.
    #[arg(long, group = "change", value_name = "true|false")]
    pub transfer_enabled: Option<bool>,
    /// The smallest amount of one transfer.
    #[arg(long, group = "change", value_name = "AMOUNT")]
    pub min: Option<String>,
    /// The largest amount of one transfer.
    #[arg(long, group = "change", value_name = "AMOUNT")]
    pub max: Option<String>,
    /// Why, where, and who.
    #[command(flatten)]
    pub operator: OperatorArgs,
}

/// How the operators' listener is reached, and how its answer is written.
#[derive(Debug, Args)]
pub struct AccessArgs {
    /// How the answer is written.
    #[arg(long, value_enum, default_value_t = Format::Text)]
    pub format: Format,
    /// The operators' listener; default: where the configuration says.
    #[arg(long, value_name = "URL", value_parser = parse_url)]
    pub ops: Option<String>,
    /// The issuers of the listener's certificate, PEM; default: what the configuration names, else those of browsers.
    #[arg(long, value_name = "FILE")]
    pub ca: Option<PathBuf>,
    /// Your operator number, for the audit trail.
    #[arg(long = "as", value_name = "ID", default_value_t = 1, value_parser = user_id_parser())]
    pub actor: u64,
    /// File with your token; default: a token for --as, signed with the configuration's secret.
    #[arg(long, value_name = "FILE", conflicts_with = "actor")]
    pub token_file: Option<PathBuf>,
    /// Configuration file that names the secret; default: UBSCORE_CONFIG, else /etc/ubscore/ubscore.toml if it exists.
    #[arg(long, value_name = "FILE", conflicts_with = "dev")]
    pub config: Option<PathBuf>,
    /// Use the development secret, as `serve --dev` does.
    #[arg(long)]
    pub dev: bool,
}

/// A refused name is answered with those that there are.
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

/// Why a text is no symbol.
#[derive(Debug, thiserror::Error)]
#[error("must be 1 to {SYMBOL_BYTES_MAX} of A-Z a-z 0-9 _ . -")]
struct SymbolError;

/// It becomes a part of a path.
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

/// Why a text is no cursor.
#[derive(Debug, thiserror::Error)]
#[error("must be the cursor that an earlier list has named")]
struct CursorError;

/// It becomes a part of a path.
fn parse_cursor(text: &str) -> Result<String, CursorError> {
    let sane = |b: u8| b.is_ascii_alphanumeric() || b"_.-".contains(&b);
    if text.bytes().all(sane) { Ok(text.to_owned()) } else { Err(CursorError) }
}

/// Why a text is no URL.
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

/// Why a duration is no life for a token.
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
