//! The arguments of commands that call the operators' listener.

use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{NonEmptyStringValueParser, RangedU64ValueParser};
use clap::{Args, Subcommand};
use ulid::Ulid;

use super::values::{
    BranchName, account_parser, asset_status_parser, did_parser, direction_parser, parse_branch,
    parse_cursor, parse_hold, parse_owner, parse_purpose, parse_symbol, parse_url, state_parser,
    transaction_state_parser, user_id_parser, venue_parser,
};
use crate::format::Format;
use crate::transaction::{Did, TransactionState};
use domain::account::AccountType;
use domain::account::USER_ID_MAX;
use domain::asset::AssetStatus;
use domain::transfer::{Direction, State};

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

/// The part of a list that is printed.
#[derive(Debug, Args)]
pub struct PageArgs {
    /// At most this many; default: 100.
    #[arg(long, value_name = "N", value_parser = RangedU64ValueParser::<u64>::new().range(1..=1_000))]
    pub limit: Option<u64>,
    /// Cursor from the end of an earlier list.
    #[arg(long, value_name = "CURSOR", value_parser = parse_cursor)]
    pub cursor: Option<String>,
}

impl PageArgs {
    /// The same as parameters of a route.
    pub fn parameters(&self) -> [(&'static str, Option<String>); 2] {
        [("limit", self.limit.map(|limit| limit.to_string())), ("cursor", self.cursor.clone())]
    }
}

/// Arguments of `ubscore webhook list`.
#[derive(Debug, Args)]
pub struct WebhookListArgs {
    /// The part of the list.
    #[command(flatten)]
    pub page: PageArgs,
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

/// Commands for venues, through the running service.
#[derive(Debug, Subcommand)]
pub enum VenueCommand {
    /// Print the venues, with the numbers that they have reached.
    List(AccessArgs),
    /// Register a venue; a closed one of this name is opened again.
    Add(VenueAddArgs),
    /// Let a closed venue open sessions again.
    Open(VenueArgs),
    /// End the session of a venue and refuse further ones.
    ///
    /// Its holds stay. They can then be released.
    Close(VenueArgs),
}

/// Arguments of `ubscore venue add`.
#[derive(Debug, Args)]
pub struct VenueAddArgs {
    /// Its number.
    #[arg(value_parser = venue_parser())]
    pub id: u32,
    /// Its name, 1 to 32 bytes.
    pub name: String,
    /// Whether it may move money between available balances (POST). It never changes afterwards.
    #[arg(long)]
    pub posts: bool,
    /// The reason, the listener and the operator.
    #[command(flatten)]
    pub operator: OperatorArgs,
}

/// Arguments of `ubscore venue open` and `close`.
#[derive(Debug, Args)]
pub struct VenueArgs {
    /// Its number.
    #[arg(value_parser = venue_parser())]
    pub id: u32,
    /// The reason, the listener and the operator.
    #[command(flatten)]
    pub operator: OperatorArgs,
}

/// Commands for holds on Spot, through the running service.
#[derive(Debug, Subcommand)]
pub enum HoldCommand {
    /// Print holds and freezes; of one user also each Spot balance and whether its holds add up.
    List(HoldListArgs),
    /// Print one hold.
    Show(HoldShowArgs),
    /// Give a hold of a closed venue back to its owner, all that remains of it.
    ///
    /// A later SETTLE or RELEASE of it by the venue is refused as HOLD_NOT_FOUND.
    Release(HoldReleaseArgs),
    /// Freeze available money of a user for a purpose. All freezes of a purpose are one amount.
    Freeze(FreezeArgs),
    /// Make money available again that is frozen for a purpose.
    Unfreeze(FreezeArgs),
    /// Print freezes on Funding. Those on Spot are in `hold list`.
    Freezes(FreezesArgs),
}

/// Arguments of `ubscore hold freeze` and `unfreeze`.
#[derive(Debug, Args)]
pub struct FreezeArgs {
    /// The user.
    #[arg(long, value_name = "ID", value_parser = user_id_parser())]
    pub user: u64,
    /// FUNDING or SPOT.
    #[arg(long, value_name = "ACCOUNT", value_parser = account_parser())]
    pub account: AccountType,
    /// The asset.
    #[arg(long, value_name = "SYMBOL", value_parser = parse_symbol)]
    pub asset: String,
    /// How much, a plain decimal number.
    #[arg(long)]
    pub amount: String,
    /// The purpose, a name of `holds.purposes`.
    #[arg(long, value_name = "NAME", value_parser = parse_purpose)]
    pub purpose: String,
    /// A key of your own: the same command with the same key is done once.
    #[arg(long, value_name = "KEY")]
    pub idem_key: String,
    /// The reason, the listener and the operator.
    #[command(flatten)]
    pub operator: OperatorArgs,
}

/// Arguments of `ubscore hold freezes`.
#[derive(Debug, Args)]
pub struct FreezesArgs {
    /// Only this user.
    #[arg(long, value_name = "ID", value_parser = user_id_parser())]
    pub user: Option<u64>,
    /// Only this asset.
    #[arg(long, value_name = "SYMBOL", value_parser = parse_symbol)]
    pub asset: Option<String>,
    /// Only this purpose, a name of `holds.purposes`.
    #[arg(long, value_name = "NAME", value_parser = parse_purpose)]
    pub purpose: Option<String>,
    /// The listener and the operator.
    #[command(flatten)]
    pub access: AccessArgs,
}

/// Arguments of `ubscore hold list`.
#[derive(Debug, Args)]
pub struct HoldListArgs {
    /// Only this user.
    #[arg(long, value_name = "ID", value_parser = user_id_parser())]
    pub user: Option<u64>,
    /// Only this asset.
    #[arg(long, value_name = "SYMBOL", value_parser = parse_symbol)]
    pub asset: Option<String>,
    /// Only holds on this account.
    #[arg(long, value_name = "ACCOUNT", value_parser = ["funding", "spot"])]
    pub account: Option<String>,
    /// Only this venue.
    #[arg(long, value_name = "ID", value_parser = venue_parser())]
    pub venue: Option<u32>,
    /// Only freezes of this purpose.
    #[arg(long, value_name = "N", value_parser = RangedU64ValueParser::<u16>::new().range(1..))]
    pub purpose: Option<u16>,
    /// Only older ones, such as 90s or 2h.
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    pub older: Option<Duration>,
    /// The part of the list.
    #[command(flatten)]
    pub page: PageArgs,
    /// The listener and the operator.
    #[command(flatten)]
    pub access: AccessArgs,
}

/// Arguments of `ubscore hold show`.
#[derive(Debug, Args)]
pub struct HoldShowArgs {
    /// The hold, as VENUE:NUMBER or TRANSACTION:USER:ASSET NUMBER; on Funding with FUNDING: before
    /// it.
    #[arg(value_parser = parse_hold)]
    pub id: String,
    /// The listener and the operator.
    #[command(flatten)]
    pub access: AccessArgs,
}

/// Arguments of `ubscore hold release`.
#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("which").required(true))]
pub struct HoldReleaseArgs {
    /// The hold, as VENUE:NUMBER.
    #[arg(group = "which", value_parser = parse_hold)]
    pub id: Option<String>,
    /// All holds of this venue; needs --all.
    #[arg(long, group = "which", value_name = "ID", requires = "all", value_parser = venue_parser())]
    pub venue: Option<u32>,
    /// Release every hold of --venue.
    #[arg(long, requires = "venue")]
    pub all: bool,
    /// The reason, the listener and the operator.
    #[command(flatten)]
    pub operator: OperatorArgs,
}

/// Commands for transactions of services, through the running service.
#[derive(Debug, Subcommand)]
pub enum TransactionCommand {
    /// Print transactions that are not final, newest first.
    List(TransactionListArgs),
    /// Print one transaction: its branches, legs and history.
    Show(TransactionShowArgs),
    /// Ask each party that has not answered now, instead of at the next back-off.
    Retry(TransactionAttendArgs),
    /// Abort a transaction that is not decided; its money is free again.
    Abort(TransactionAttendArgs),
    /// Have the last participant refuse in DECIDING, unless it has decided; its answer counts.
    Resolve(TransactionAttendArgs),
    /// End the branch of a service that can never be reached. It needs two operators.
    ///
    /// The branch is confirmed or cancelled by the decision of its transaction. The last
    /// participant of a transaction in DECIDING has the decision: state its answer by --did.
    Abandon(BranchAbandonArgs),
    /// Print the roles of PostgreSQL that may commit transactions in SQL.
    Grants(AccessArgs),
    /// Let a role of PostgreSQL commit an owner's transactions by `transaction_commit`.
    Grant(TransactionGrantArgs),
    /// Take that right away from a role.
    Revoke(TransactionGrantArgs),
}

/// Arguments of `ubscore transaction list`.
#[derive(Debug, Args)]
pub struct TransactionListArgs {
    /// Only transactions that are undecided beyond their age, or decided and unfinished, for longer
    /// than `alert.stuck_ms`.
    #[arg(long)]
    pub stuck: bool,
    /// Only this state; default: all that are not final.
    #[arg(long, value_name = "STATE", value_parser = transaction_state_parser(), ignore_case = true)]
    pub state: Option<TransactionState>,
    /// Only transactions of this service.
    #[arg(long, value_name = "NAME", value_parser = parse_owner)]
    pub owner: Option<String>,
    /// Only transactions with this name, in any state.
    #[arg(long, value_name = "NAME", value_parser = parse_owner)]
    pub tx_id: Option<String>,
    /// Include finished transactions.
    #[arg(long, conflicts_with = "stuck")]
    pub ended: bool,
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

/// Arguments of `ubscore transaction show`.
#[derive(Debug, Args)]
pub struct TransactionShowArgs {
    /// The transaction.
    #[arg(value_name = "TRANSACTION_ID")]
    pub id: Ulid,
    /// The listener and the operator.
    #[command(flatten)]
    pub access: AccessArgs,
}

/// Arguments of `ubscore transaction abandon`.
#[derive(Debug, Args)]
pub struct BranchAbandonArgs {
    /// The branch: TRANSACTION_ID:PARTICIPANT:ROUND.
    #[arg(value_name = "BRANCH", value_parser = parse_branch)]
    pub branch: BranchName,
    /// The answer of the last participant of a transaction in DECIDING.
    #[arg(long, value_name = "WHAT", value_parser = did_parser())]
    pub did: Option<Did>,
    /// The reason, the listener and the operator.
    #[command(flatten)]
    pub operator: OperatorArgs,
}

/// Arguments of `ubscore transaction retry`, `abort` and `resolve`.
#[derive(Debug, Args)]
pub struct TransactionAttendArgs {
    /// The transaction.
    #[arg(value_name = "TRANSACTION_ID")]
    pub id: Ulid,
    /// The reason, the listener and the operator.
    #[command(flatten)]
    pub operator: OperatorArgs,
}

/// Arguments of `ubscore transaction grant` and `revoke`.
#[derive(Debug, Args)]
pub struct TransactionGrantArgs {
    /// The role of PostgreSQL.
    #[arg(value_name = "ROLE", value_parser = NonEmptyStringValueParser::new())]
    pub role: String,
    /// The service that owns the transactions.
    #[arg(long, value_name = "NAME", value_parser = parse_owner)]
    pub owner: String,
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
    /// A balance of Funding may be below zero, for example of fees or clearing: transactions book
    /// it at their end, and set nothing of it apart.
    Special(SpecialArgs),
    /// All special accounts.
    Specials(AccessArgs),
}

/// Arguments of `ubscore account special`.
#[derive(Debug, Args)]
pub struct SpecialArgs {
    /// User id.
    #[arg(value_name = "USER", value_parser = user_id_parser())]
    pub user_id: u64,
    /// The asset.
    #[arg(value_name = "ASSET", value_parser = parse_symbol)]
    pub asset: String,
    /// End it: the balance must not be below zero, and no unfinished transaction may name it.
    #[arg(long)]
    pub off: bool,
    /// The reason, the listener and the operator.
    #[command(flatten)]
    pub operator: OperatorArgs,
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
