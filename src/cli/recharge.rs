//! The arguments of the commands for recharges and their channels.

use std::path::{Path, PathBuf};

use clap::builder::{NonEmptyStringValueParser, RangedU64ValueParser};
use clap::{ArgGroup, Args, Subcommand};

use super::operator::{AccessArgs, OperatorArgs, PageArgs};
use super::stores::StoreArgs;
use super::values::{
    parse_channel, parse_day, parse_held, parse_payment, parse_recharge, parse_recharge_payment,
    parse_return, parse_trade_no, user_id_parser,
};
use crate::config::secret::Secret;
use crate::format::Format;
use jiff::Timestamp;
use jiff::civil::Date;

/// Commands for recharges, through the running service.
#[derive(Debug, Subcommand)]
pub enum RechargeCommand {
    /// Print orders, newest first; with --held or --trade-no payments, oldest first.
    List(RechargeListArgs),
    /// Print one order: its payments, returns, movements and history.
    Show(RechargeShowArgs),
    /// Have the channel of an order asked now; a payment that it reports is decided as always.
    Query(RechargeAttendArgs),
    /// Close an unpaid order, at its channel and then here.
    Close(RechargeCloseArgs),
    /// Credit a held payment to the owner of its order.
    ///
    /// A payment without an order goes to --user, and always needs another operator. Exit code 3:
    /// another operator must approve it.
    Credit(RechargeCreditArgs),
    /// Send a held payment back through its channel.
    Return(PaymentAttendArgs),
    /// Give up a held payment: it is not ours.
    Dismiss(PaymentAttendArgs),
    /// Ask the channel of a held payment, and decide it again.
    Rematch(PaymentAttendArgs),
    /// Book money of a payment that went back at its channel, without us.
    ///
    /// It is booked as taken, once for the channel's own number: of a credited payment its user
    /// pays. Exit code 3: another operator must approve it.
    Taken(RechargeTakenArgs),
    /// Give money of a credited payment back through its channel.
    ///
    /// It is set apart at once, and leaves when the channel has paid it. Exit code 3: another
    /// operator must approve it.
    Refund(RechargeRefundArgs),
    /// Print receivables, oldest first: taken money that its user did not have.
    Receivables(ReceivableListArgs),
    /// Behind a restore: remake what is lost from the channels. With an id: debit a user that owes.
    ///
    /// Without an id the service must be stopped. Lost orders, payments and returns come back from
    /// the bills of the channels, and nothing is booked twice. With the id of a return that has
    /// taken money: debit its user with all that is available now, through the running service.
    /// Exit code 1: something is left.
    Recover(RecoverArgs),
    /// Give up the open part of taken money that a user owes.
    WriteOff(ReceivableArgs),
    /// Compare the bill of one day with the payments and returns here.
    ///
    /// With --plan the bill that is here is compared, and nothing is written. With --apply it is
    /// fetched anew, and the till repairs what the channel confirms.
    Reconcile(ReconcileArgs),
    /// Print the findings of bills, newest first.
    Findings(FindingListArgs),
    /// Dismiss a finding of a bill that a person has explained.
    DismissFinding(FindingAttendArgs),
}

impl RechargeCommand {
    /// The format of the command's answer and of its error.
    pub fn format(&self) -> Format {
        match self {
            RechargeCommand::List(args) => args.access.format,
            RechargeCommand::Show(args) => args.access.format,
            RechargeCommand::Query(args) => args.operator.access.format,
            RechargeCommand::Close(args) => args.operator.access.format,
            RechargeCommand::Credit(args) => args.operator.access.format,
            RechargeCommand::Return(args)
            | RechargeCommand::Dismiss(args)
            | RechargeCommand::Rematch(args) => args.operator.access.format,
            RechargeCommand::Taken(args) => args.operator.access.format,
            RechargeCommand::Refund(args) => args.operator.access.format,
            RechargeCommand::Receivables(args) => args.access.format,
            RechargeCommand::Recover(args) => args.access.format,
            RechargeCommand::WriteOff(args) => args.operator.access.format,
            RechargeCommand::Reconcile(args) => args.operator.access.format,
            RechargeCommand::Findings(args) => args.access.format,
            RechargeCommand::DismissFinding(args) => args.operator.access.format,
        }
    }
}

/// Arguments of `ubscore recharge list`.
#[derive(Debug, Args)]
pub struct RechargeListArgs {
    /// Held payments; with a cause, such as UNMATCHED, only those.
    #[arg(
        long, value_name = "CAUSE", num_args = 0..=1, default_missing_value = "true",
        require_equals = true, value_parser = parse_held, conflicts_with = "overdue"
    )]
    pub held: Option<String>,
    /// Only orders that are PAYING for more than 30 minutes.
    #[arg(long, conflicts_with = "trade_no")]
    pub overdue: bool,
    /// Only this user.
    #[arg(long, value_name = "ID", value_parser = user_id_parser())]
    pub user: Option<u64>,
    /// The payment with this number of the channel.
    #[arg(long, value_name = "NUMBER", value_parser = parse_trade_no)]
    pub trade_no: Option<String>,
    /// Only this channel.
    #[arg(long, value_name = "NAME", value_parser = parse_channel)]
    pub channel: Option<String>,
    /// The part of the list.
    #[command(flatten)]
    pub page: PageArgs,
    /// The listener and the operator.
    #[command(flatten)]
    pub access: AccessArgs,
}

/// Arguments of `ubscore recharge show`.
#[derive(Debug, Args)]
pub struct RechargeShowArgs {
    /// The order, wrc_…, or one of its payments, wpy_….
    #[arg(value_name = "ID", value_parser = parse_recharge_payment)]
    pub id: String,
    /// Also ask the channel; that changes nothing.
    #[arg(long)]
    pub ask: bool,
    /// The listener and the operator.
    #[command(flatten)]
    pub access: AccessArgs,
}

/// Arguments of `ubscore recharge query`.
#[derive(Debug, Args)]
pub struct RechargeAttendArgs {
    /// The order.
    #[arg(value_name = "RECHARGE_ID", value_parser = parse_recharge)]
    pub id: String,
    /// The reason, the listener and the operator.
    #[command(flatten)]
    pub operator: OperatorArgs,
}

/// Arguments of `ubscore recharge close`.
#[derive(Debug, Args)]
pub struct RechargeCloseArgs {
    /// The order.
    #[arg(value_name = "RECHARGE_ID", value_parser = parse_recharge)]
    pub id: String,
    /// Close it here alone, at once. Its channel may still take a payment, which is late then.
    #[arg(long)]
    pub force: bool,
    /// The reason, the listener and the operator.
    #[command(flatten)]
    pub operator: OperatorArgs,
}

/// Arguments of `ubscore recharge return`, `dismiss` and `rematch`.
#[derive(Debug, Args)]
pub struct PaymentAttendArgs {
    /// The payment.
    #[arg(value_name = "PAYMENT_ID", value_parser = parse_payment)]
    pub id: String,
    /// The reason, the listener and the operator.
    #[command(flatten)]
    pub operator: OperatorArgs,
}

/// Arguments of `ubscore recharge credit`.
#[derive(Debug, Args)]
pub struct RechargeCreditArgs {
    /// The payment.
    #[arg(value_name = "PAYMENT_ID", value_parser = parse_payment)]
    pub id: String,
    /// The user, only for a payment without an order.
    #[arg(long, value_name = "ID", value_parser = user_id_parser())]
    pub user: Option<u64>,
    /// A key of your own, 1 to 64 of A-Z a-z 0-9 _ . : -
    #[arg(long, value_name = "KEY")]
    pub idem_key: String,
    /// The reason, the listener and the operator.
    #[command(flatten)]
    pub operator: OperatorArgs,
}

/// Arguments of `ubscore recharge taken`.
#[derive(Debug, Args)]
#[group(id = "part", required = true, multiple = false, args = ["amount", "minor_units"])]
pub struct RechargeTakenArgs {
    /// The payment.
    #[arg(value_name = "PAYMENT_ID", value_parser = parse_payment)]
    pub id: String,
    /// How much went back.
    #[arg(long, value_name = "AMOUNT")]
    pub amount: Option<String>,
    /// The same in the channel's minor units.
    #[arg(long, value_name = "N", value_parser = RangedU64ValueParser::<u64>::new().range(1..=i64::MAX as u64))]
    pub minor_units: Option<u64>,
    /// The number of that refund as its bill has it: the channel's own (re_…, or the refund's id of
    /// WeChat Pay), or the merchant's that was given at the console.
    #[arg(long, value_name = "NUMBER", value_parser = parse_trade_no)]
    pub number: String,
    /// The reason, the listener and the operator.
    #[command(flatten)]
    pub operator: OperatorArgs,
}

/// Arguments of `ubscore recharge refund`.
#[derive(Debug, Args)]
pub struct RechargeRefundArgs {
    /// The order, wrc_…, or one of its payments, wpy_….
    #[arg(value_name = "ID", value_parser = parse_recharge_payment)]
    pub id: String,
    /// The payment, if several of the order are credited.
    #[arg(long, value_name = "PAYMENT_ID", value_parser = parse_payment)]
    pub payment: Option<String>,
    /// A part; default: all that is left.
    #[arg(long, value_name = "AMOUNT")]
    pub amount: Option<String>,
    /// A key of your own, 1 to 64 of A-Z a-z 0-9 _ . : -
    #[arg(long, value_name = "KEY")]
    pub idem_key: String,
    /// The reason, the listener and the operator.
    #[command(flatten)]
    pub operator: OperatorArgs,
}

/// Arguments of `ubscore recharge receivables`.
#[derive(Debug, Args)]
pub struct ReceivableListArgs {
    /// Only those of which a part is still owed.
    #[arg(long)]
    pub open: bool,
    /// Only this user.
    #[arg(long, value_name = "ID", value_parser = user_id_parser())]
    pub user: Option<u64>,
    /// The part of the list.
    #[command(flatten)]
    pub page: PageArgs,
    /// The listener and the operator.
    #[command(flatten)]
    pub access: AccessArgs,
}

/// Arguments of `ubscore recharge write-off`.
#[derive(Debug, Args)]
pub struct ReceivableArgs {
    /// The return that has taken the money.
    #[arg(value_name = "RETURN_ID", value_parser = parse_return)]
    pub id: String,
    /// A key of your own, 1 to 64 of A-Z a-z 0-9 _ . : -
    #[arg(long, value_name = "KEY")]
    pub idem_key: String,
    /// The reason, the listener and the operator.
    #[command(flatten)]
    pub operator: OperatorArgs,
}

/// Arguments of `ubscore recharge reconcile`.
#[derive(Debug, Args)]
#[command(group(ArgGroup::new("way").required(true).args(["plan", "apply"])))]
pub struct ReconcileArgs {
    /// The channel.
    #[arg(long, value_name = "NAME", value_parser = parse_channel)]
    pub channel: String,
    /// The day, YYYY-MM-DD, as the channel counts days. It must have ended.
    #[arg(long, value_name = "DAY", value_parser = parse_day)]
    pub day: String,
    /// Print the differences.
    #[arg(long)]
    pub plan: bool,
    /// Fetch the bill anew, and repair what the channel confirms.
    #[arg(long)]
    pub apply: bool,
    /// The reason, the listener and the operator.
    #[command(flatten)]
    pub operator: OperatorArgs,
}

/// Arguments of `ubscore recharge findings`.
#[derive(Debug, Args)]
pub struct FindingListArgs {
    /// Only this channel.
    #[arg(long, value_name = "NAME", value_parser = parse_channel)]
    pub channel: Option<String>,
    /// Only those in this state.
    #[arg(long, value_name = "STATE", value_parser = ["OPEN", "DONE", "DISMISSED"])]
    pub state: Option<String>,
    /// The listener and the operator.
    #[command(flatten)]
    pub access: AccessArgs,
}

/// Arguments of `ubscore recharge recover`.
#[derive(Debug, Args)]
pub struct RecoverArgs {
    /// The return that has taken the money.
    #[arg(
        value_name = "ID", value_parser = parse_return, requires_all = ["idem_key", "reason"],
        conflicts_with_all = ["since", "plan", "apply"]
    )]
    pub id: Option<String>,
    /// A key of your own, 1 to 64 of A-Z a-z 0-9 _ . : -
    #[arg(long, value_name = "KEY", requires = "id")]
    pub idem_key: Option<String>,
    /// The first day of the bills to read, such as 2026-11-27: that of the backup.
    #[arg(long, value_name = "DAY", required_unless_present = "id")]
    pub since: Option<Date>,
    /// Print the plan, and change nothing.
    #[arg(long, group = "what", required_unless_present_any = ["id", "apply"])]
    pub plan: bool,
    /// Carry out the plan.
    #[arg(long, group = "what", requires = "reason")]
    pub apply: bool,
    /// The reason; it is recorded and shown to other operators.
    #[arg(
        long, value_name = "TEXT", conflicts_with = "plan",
        value_parser = NonEmptyStringValueParser::new()
    )]
    pub reason: Option<String>,
    /// File with the token of the other admin that approves, where repairs need two.
    #[arg(long, value_name = "FILE", requires_all = ["token_file", "apply"])]
    pub approver_token_file: Option<PathBuf>,
    /// Directory of the log and of the embedded PostgreSQL.
    #[arg(long, value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
    /// URL of PostgreSQL. Other users of the machine can see it, so put a password into a file.
    #[arg(long, value_name = "URL|embedded")]
    pub postgres: Option<Secret>,
    /// Directory of `initdb` and `postgres` for the embedded server.
    #[arg(long, value_name = "DIR")]
    pub postgres_bin: Option<PathBuf>,
    /// The listener and the operator; the configuration.
    #[command(flatten)]
    pub access: AccessArgs,
}

/// Arguments of `ubscore recharge dismiss-finding`.
#[derive(Debug, Args)]
pub struct FindingAttendArgs {
    /// The finding, as `recharge findings` prints it.
    #[arg(value_name = "FINDING_ID")]
    pub id: u64,
    /// The reason, the listener and the operator.
    #[command(flatten)]
    pub operator: OperatorArgs,
}

impl RecoverArgs {
    /// The stores.
    pub fn stores(&self) -> StoreArgs {
        StoreArgs {
            config: self.access.config.clone(),
            data_dir: self.data_dir.clone(),
            postgres: self.postgres.clone(),
            postgres_bin: self.postgres_bin.clone(),
            dev: self.access.dev,
        }
    }

    /// The files of two admins' tokens.
    pub fn tokens(&self) -> (Option<&Path>, Option<&Path>) {
        (self.access.token_file.as_deref(), self.approver_token_file.as_deref())
    }
}

/// Commands for payment channels, through the running service.
#[derive(Debug, Subcommand)]
pub enum ChannelCommand {
    /// Print the channels, with the ends of their keys.
    List(AccessArgs),
    /// Print the accounts of each channel: its debt to us, suspense, receivables, losses.
    Totals(AccessArgs),
    /// Print the movements of an account of a channel within a time, oldest first.
    Statement(ChannelStatementArgs),
    /// Print the kept callbacks of a payment as they came; they may name the payer.
    ///
    /// They are kept of a payment that is held, not here, or contradicts its record.
    Notices(ChannelNoticesArgs),
    /// Have a channel take no new orders; everything else goes on.
    Pause(ChannelPauseArgs),
    /// Have a channel take new orders again.
    Unpause(ChannelPauseArgs),
    /// Print the newest bills of channels.
    Bills(ChannelBillsArgs),
    /// Book money of a channel that has reached the bank.
    ///
    /// Exit code 3: another operator must approve it.
    Settle(ChannelSettleArgs),
}

/// Arguments of `ubscore channel statement`.
#[derive(Debug, Args)]
pub struct ChannelStatementArgs {
    /// The channel.
    #[arg(value_name = "NAME", value_parser = parse_channel)]
    pub name: String,
    /// The account.
    #[arg(
        long, value_name = "ACCOUNT", default_value = "clearing",
        value_parser = ["clearing", "suspense", "receivable", "fees", "loss", "bank"]
    )]
    pub account: String,
    /// From this time on, such as 2026-11-27T00:00:00Z.
    #[arg(long, value_name = "TIME")]
    pub since: Timestamp,
    /// Before this time, at most 31 days behind the first.
    #[arg(long, value_name = "TIME")]
    pub until: Timestamp,
    /// The part of the list.
    #[command(flatten)]
    pub page: PageArgs,
    /// The listener and the operator.
    #[command(flatten)]
    pub access: AccessArgs,
}

/// Arguments of `ubscore channel bills`.
#[derive(Debug, Args)]
pub struct ChannelBillsArgs {
    /// Only this channel.
    #[arg(long, value_name = "NAME", value_parser = parse_channel)]
    pub channel: Option<String>,
    /// Only this day, YYYY-MM-DD.
    #[arg(long, value_name = "DAY", value_parser = parse_day)]
    pub day: Option<String>,
    /// The listener and the operator.
    #[command(flatten)]
    pub access: AccessArgs,
}

/// Arguments of `ubscore channel settle`.
#[derive(Debug, Args)]
pub struct ChannelSettleArgs {
    /// The channel.
    #[arg(value_name = "NAME", value_parser = parse_channel)]
    pub name: String,
    /// How much. Below zero: so much has not reached the bank, which takes an earlier one back.
    #[arg(long, value_name = "AMOUNT", allow_hyphen_values = true)]
    pub amount: String,
    /// Its asset. Absent: that of the channel in the configuration.
    #[arg(long, value_name = "SYMBOL")]
    pub asset: Option<String>,
    /// A key of your own, 1 to 59 of A-Z a-z 0-9 _ . : -
    #[arg(long, value_name = "KEY")]
    pub idem_key: String,
    /// The reason, the listener and the operator.
    #[command(flatten)]
    pub operator: OperatorArgs,
}

/// Arguments of `ubscore channel notices`.
#[derive(Debug, Args)]
pub struct ChannelNoticesArgs {
    /// The payment.
    #[arg(value_name = "PAYMENT_ID", value_parser = parse_payment)]
    pub id: String,
    /// The listener and the operator.
    #[command(flatten)]
    pub access: AccessArgs,
}

/// Arguments of `ubscore channel pause` and `unpause`.
#[derive(Debug, Args)]
pub struct ChannelPauseArgs {
    /// The channel.
    #[arg(value_name = "NAME", value_parser = parse_channel)]
    pub name: String,
    /// The reason, the listener and the operator.
    #[command(flatten)]
    pub operator: OperatorArgs,
}
