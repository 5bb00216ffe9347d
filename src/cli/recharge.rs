//! The arguments of the commands for recharges and their channels.

use std::path::{Path, PathBuf};

use clap::builder::{NonEmptyStringValueParser, RangedU64ValueParser};
use clap::{Args, Subcommand};

use super::operator::{AccessArgs, OperatorArgs};
use super::stores::StoreArgs;
use super::values::{
    parse_channel, parse_cursor, parse_held, parse_payment, parse_recharge, parse_recharge_payment,
    parse_return, parse_trade_no, user_id_parser,
};
use crate::config::secret::Secret;
use crate::format::Format;
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
    /// Give money of a credited payment back through its channel.
    ///
    /// It is set apart at once, and leaves when the channel has paid it. Exit code 3: another
    /// operator must approve it.
    Refund(RechargeRefundArgs),
    /// Behind a restore: remake what is lost from the channels. With an id: debit a user that owes.
    ///
    /// Without an id the service must be stopped. Lost orders, payments and returns come back from
    /// the bills of the channels, and nothing is booked twice. With the id of a return that has
    /// taken money: debit its user with all that is available now, through the running service.
    /// Exit code 1: something is left.
    Recover(RecoverArgs),
    /// Give up the open part of taken money that a user owes.
    WriteOff(ReceivableArgs),
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
            RechargeCommand::Refund(args) => args.operator.access.format,
            RechargeCommand::Recover(args) => args.access.format,
            RechargeCommand::WriteOff(args) => args.operator.access.format,
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
    /// Have a channel take no new orders; everything else goes on.
    Pause(ChannelPauseArgs),
    /// Have a channel take new orders again.
    Unpause(ChannelPauseArgs),
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
