//! The command line: commands and their arguments, without their work.
//!
//! Arguments that are wrong by themselves are refused here, with exit code 2.

mod log;
mod operator;
pub mod overview;
mod promotion;
mod recharge;
mod stores;
mod tools;
mod txm;
mod values;

use clap::{Parser, Subcommand};

pub use self::log::{
    SnapshotCommand, SnapshotInspectArgs, WalCommand, WalDumpArgs, WalRepairArgs, WalStatArgs,
    WalVerifyArgs,
};
pub use self::operator::{
    AccessArgs, AccountArgs, AccountCommand, ApprovalCommand, ApprovalDecideArgs, ApprovalListArgs,
    AssetAddArgs, AssetCommand, AssetSetArgs, BranchAbandonArgs, ExternalArgs, FreezeArgs,
    FreezesArgs, HaltArgs, HoldCommand, HoldListArgs, HoldReleaseArgs, HoldShowArgs, OperatorArgs,
    PageArgs, PauseArgs, SpecialArgs, TransactionAttendArgs, TransactionCommand,
    TransactionGrantArgs, TransactionListArgs, TransactionShowArgs, TransferAttendArgs,
    TransferCommand, TransferListArgs, TransferShowArgs, VenueAddArgs, VenueArgs, VenueCommand,
    WebhookCommand, WebhookListArgs, WebhookResendArgs,
};
pub use self::promotion::{
    PromotionCommand, PromotionFundArgs, PromotionSetArgs, PromotionShowArgs,
};
pub use self::recharge::{
    ChannelBillsArgs, ChannelCommand, ChannelNoticesArgs, ChannelPauseArgs, ChannelSettleArgs,
    ChannelStatementArgs, FindingAttendArgs, FindingListArgs, PaymentAttendArgs, ReceivableArgs,
    ReceivableListArgs, RechargeAttendArgs, RechargeCloseArgs, RechargeCommand, RechargeCreditArgs,
    RechargeListArgs, RechargeRefundArgs, RechargeShowArgs, RechargeTakenArgs, ReconcileArgs,
    RecoverArgs,
};
pub use self::stores::{
    AdoptArgs, BackupArgs, DoctorArgs, EngineCommand, JournalCommand, JournalDumpArgs, RepairArgs,
    RestoreArgs, ServeArgs, StatementArgs, StatementFormat, StoreArgs, VerifyArgs,
};
pub use self::tools::{
    ChannelSimArgs, CompletionsArgs, LoadArgs, ManArgs, ParticipantCheckArgs, ParticipantCommand,
    TokenArgs,
};
pub use self::txm::{
    ChainTxArgs, ChainTxAuditArgs, ChainTxCommand, ChainTxFillArgs, ChainTxListArgs,
    ChainTxResolveArgs, ChainTxShowArgs, Imported, SignerAddArgs, SignerAdoptArgs, SignerArgs,
    SignerCommand, SignerResumeArgs, TxmCommand, TxmServeArgs,
};
use crate::format::Format;
use crate::release;

/// Moves money between PostgreSQL and UBSCore, and never makes or loses any.
///
/// Exit codes: 0 done, or nothing is wrong. 1 refused, failed, or a problem was found. 2 bad
/// arguments or configuration, or the command cannot run. 3 another operator must approve it first.
#[derive(Debug, Parser)]
#[command(name = "ubscore", version = release::LINE, help_template = overview::template::<Command>())]
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
    /// Print the rows of Funding's journal.
    #[command(subcommand)]
    Journal(JournalCommand),
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
    /// Try the duties of a participant of transactions on a running one.
    ///
    /// Exit code 1: a duty fails. 2: the participant cannot be asked.
    #[command(subcommand)]
    Participant(ParticipantCommand),
    /// List, add, open and close venues.
    ///
    /// Exit code 1: the service refuses or does not answer.
    #[command(subcommand)]
    Venue(VenueCommand),
    /// Find holds on Spot, release those of closed venues, and freeze money on both accounts.
    ///
    /// Exit code 1: the service refuses or does not answer. 3: another operator must approve it.
    #[command(subcommand)]
    Hold(HoldCommand),
    /// Find transactions of services that do not end, and end them.
    ///
    /// Exit code 1: the service refuses or does not answer. 3: another operator must approve it.
    #[command(subcommand)]
    Transaction(TransactionCommand),
    /// Find recharges and held payments, and end them.
    ///
    /// Exit code 1: the service refuses or does not answer. 3: another operator must approve it.
    #[command(subcommand)]
    Recharge(RechargeCommand),
    /// List payment channels, and have one take no new orders.
    ///
    /// Exit code 1: the service refuses or does not answer.
    #[command(subcommand)]
    Channel(ChannelCommand),
    /// Make promotions that add a bonus to recharges, and put money into them.
    ///
    /// Exit code 1: the service refuses or does not answer. 3: another operator must approve it.
    #[command(subcommand)]
    Promotion(PromotionCommand),
    /// Run a node of the transaction manager, for transactions on a chain.
    #[command(subcommand)]
    Txm(TxmCommand),
    /// List, add, suspend and release signers of the transaction manager.
    ///
    /// Exit code 1: the node refuses or does not answer.
    #[command(subcommand)]
    Signer(SignerCommand),
    /// Find transactions on the chain that do not end, and end them.
    ///
    /// Exit code 1: the node refuses or does not answer.
    #[command(subcommand)]
    Tx(ChainTxCommand),
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
    /// Simulate payment channels on loopback, for development and tests.
    ///
    /// It is a simulator: no money moves. It speaks the formats of WeChat Pay and of Stripe, with
    /// keys of its own in --data-dir. `POST /pay/MERCHANT_NO` pays an order. `PUT /sim/faults`
    /// makes the channel fail. It prints `ready http=ADDR` and runs until it is ended.
    ChannelSim(ChannelSimArgs),
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
            Command::Participant(ParticipantCommand::Check(args)) => args.format,
            Command::Venue(VenueCommand::List(access)) => access.format,
            Command::Venue(VenueCommand::Add(args)) => args.operator.access.format,
            Command::Venue(VenueCommand::Open(args) | VenueCommand::Close(args)) => {
                args.operator.access.format
            }
            Command::Transaction(command) => match command {
                TransactionCommand::List(args) => args.access.format,
                TransactionCommand::Show(args) => args.access.format,
                TransactionCommand::Grants(access) => access.format,
                TransactionCommand::Retry(args)
                | TransactionCommand::Abort(args)
                | TransactionCommand::Resolve(args) => args.operator.access.format,
                TransactionCommand::Abandon(args) => args.operator.access.format,
                TransactionCommand::Grant(args) | TransactionCommand::Revoke(args) => {
                    args.operator.access.format
                }
            },
            Command::Recharge(command) => command.format(),
            Command::Channel(ChannelCommand::List(access) | ChannelCommand::Totals(access)) => {
                access.format
            }
            Command::Channel(ChannelCommand::Notices(args)) => args.access.format,
            Command::Channel(ChannelCommand::Statement(args)) => args.access.format,
            Command::Promotion(command) => command.format(),
            Command::Signer(command) => command.format(),
            Command::Tx(command) => command.format(),
            Command::Channel(ChannelCommand::Pause(args) | ChannelCommand::Unpause(args)) => {
                args.operator.access.format
            }
            Command::Channel(ChannelCommand::Bills(args)) => args.access.format,
            Command::Channel(ChannelCommand::Settle(args)) => args.operator.access.format,
            Command::Hold(HoldCommand::List(args)) => args.access.format,
            Command::Hold(HoldCommand::Show(args)) => args.access.format,
            Command::Hold(HoldCommand::Release(args)) => args.operator.access.format,
            Command::Hold(HoldCommand::Freeze(args) | HoldCommand::Unfreeze(args)) => {
                args.operator.access.format
            }
            Command::Hold(HoldCommand::Freezes(args)) => args.access.format,
            Command::Account(
                AccountCommand::Freeze(args)
                | AccountCommand::Unfreeze(args)
                | AccountCommand::Disable(args),
            ) => args.operator.access.format,
            Command::Account(AccountCommand::Special(args)) => args.operator.access.format,
            Command::Account(AccountCommand::Specials(access)) => access.format,
            Command::Asset(AssetCommand::Set(args)) => args.operator.access.format,
            Command::Asset(AssetCommand::Add(args)) => args.operator.access.format,
            Command::Asset(AssetCommand::List(access)) => access.format,
            Command::Deposit(args) | Command::Withdraw(args) => args.operator.access.format,
            Command::Wal(WalCommand::Dump(WalDumpArgs { format, .. }))
            | Command::Wal(WalCommand::Verify(WalVerifyArgs { format, .. }))
            | Command::Wal(WalCommand::Stat(WalStatArgs { format, .. })) => *format,
            Command::Snapshot(SnapshotCommand::Inspect(args)) => args.format,
            Command::Journal(JournalCommand::Dump(args)) => args.format,
            _ => Format::Text,
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use std::path::PathBuf;

    use domain::transfer::Op;

    use super::*;
    use crate::config::secret::Secret;

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
            "ubscore journal",
            "ubscore journal dump --from 0",
            "ubscore journal dump --limit 0",
            "ubscore journal dump --shard x",
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
            "ubscore token --service a/b",
            "ubscore token --service a --user 1",
            "ubscore token --service a --role admin",
            "ubscore transaction",
            "ubscore transaction list --state FLYING",
            "ubscore transaction list --owner a/b",
            "ubscore transaction list --stuck --ended",
            "ubscore transaction list --limit 0",
            "ubscore transaction show 7",
            "ubscore transaction abort 01JFVQ2X8Z0Y1M3N4P5R6S7T8V",
            "ubscore transaction abandon 01JFVQ2X8Z0Y1M3N4P5R6S7T8V --reason x",
            "ubscore transaction abandon 01JFVQ2X8Z0Y1M3N4P5R6S7T8V:coupons:9 --reason x",
            "ubscore transaction abandon 01JFVQ2X8Z0Y1M3N4P5R6S7T8V:coupons:1 --did x --reason x",
            "ubscore transaction grant shop --reason x",
            "ubscore venue add 0 book --reason x",
            "ubscore venue add 7 --reason x",
            "ubscore venue close 7",
            "ubscore hold list --venue 0",
            "ubscore hold list --older soon",
            "ubscore hold show 7",
            "ubscore hold release --reason x",
            "ubscore hold release 7:1",
            "ubscore hold release 7:1 --venue 7 --all --reason x",
            "ubscore hold release --venue 7 --reason x",
            "ubscore recharge",
            "ubscore recharge list --held=LOST",
            "ubscore recharge list --held --overdue",
            "ubscore recharge list --overdue --trade-no 1",
            "ubscore recharge list --channel Wechat",
            "ubscore recharge list --trade-no a&b",
            "ubscore recharge list --limit 0",
            "ubscore recharge show 7",
            "ubscore recharge query wpy_01JFVQ2X8Z0Y1M3N4P5R6S7T8V --reason x",
            "ubscore recharge close wrc_01jfvq2x8z0y1m3n4p5r6s7t8v --reason x",
            "ubscore recharge credit wpy_01JFVQ2X8Z0Y1M3N4P5R6S7T8V --reason x",
            "ubscore recharge credit wrc_01JFVQ2X8Z0Y1M3N4P5R6S7T8V --idem-key a --reason x",
            "ubscore recharge return wpy_01JFVQ2X8Z0Y1M3N4P5R6S7T8V",
            "ubscore recharge dismiss --reason x",
            "ubscore recharge refund wrc_01JFVQ2X8Z0Y1M3N4P5R6S7T8V --reason x",
            "ubscore recharge recover wpy_01JFVQ2X8Z0Y1M3N4P5R6S7T8V --idem-key a --reason x",
            "ubscore recharge recover wrf_01JFVQ2X8Z0Y1M3N4P5R6S7T8V --idem-key a",
            "ubscore recharge recover --plan",
            "ubscore recharge recover --since 2026-11-27",
            "ubscore recharge recover --since 2026-11-27 --apply",
            "ubscore recharge recover --since yesterday --plan",
            "ubscore recharge recover --since 2026-11-27 --plan --reason x",
            "ubscore recharge write-off wrf_01JFVQ2X8Z0Y1M3N4P5R6S7T8V --idem-key a",
            "ubscore channel",
            "ubscore channel pause --reason x",
            "ubscore channel pause we/chat --reason x",
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
            "ubscore participant",
            "ubscore participant check",
            "ubscore participant check a --payload {",
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
            "ubscore hold freeze --user 1 --account SPOT --asset USDT --amount 1 --purpose A --reason x",
            "ubscore hold freezes --purpose a&user=1",
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
