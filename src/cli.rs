//! The command line: what can be typed, and nothing of what it does.
//!
//! Arguments that are wrong in themselves are refused here, with exit code 2.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{
    NonEmptyStringValueParser, PossibleValuesParser, RangedU64ValueParser, TypedValueParser,
};
use clap::{Args, Parser, Subcommand, ValueEnum};
use jiff::Timestamp;
use jiff::civil::Date;
use jiff::tz::TimeZone;
use ulid::Ulid;

use crate::config::{Format, Overrides, Secret, is_http_url};
use crate::http::auth::{Role, USER_ID_MAX};
use crate::transfer::Op;

/// Longest life of a token, s: a year. One that lives longer outlives its user's rights.
const TTL_S_MAX: u64 = 31_536_000;

/// Moves money between PostgreSQL and UBSCore, and never makes or loses any.
#[derive(Debug, Parser)]
#[command(name = "ubscore", version)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run the service.
    Serve(ServeArgs),
    /// Read the log.
    #[command(subcommand)]
    Wal(WalCommand),
    /// Read a snapshot.
    #[command(subcommand)]
    Snapshot(SnapshotCommand),
    /// Print a token for the HTTP API.
    Token(TokenArgs),
    /// Offer transfers to a running service, and print how long they take. It makes users of its own and gives them money.
    Load(LoadArgs),
    /// Compare the log with PostgreSQL, with or without a running service.
    Verify(StoreArgs),
    /// Print everything that has moved on one user's accounts, in both stores, with the balance after it. Exit code 1 if
    /// it does not add up.
    Statement(StatementArgs),
    /// Bring PostgreSQL back to what the log proves, after a restored backup; while no service runs. Exit code 1 if
    /// something is left that nothing proves.
    Repair(RepairArgs),
    /// Stop all money from moving, until `resume`. Exit code 1 if the service refuses or does not answer.
    Halt(OperatorArgs),
    /// Go on after a halt, unless the check of the money objects. Exit code 1 if the service is still halted.
    Resume(OperatorArgs),
}

/// Where both stores are, as `ubscore verify` is told, and `serve` and `repair` among other things.
#[derive(Debug, Args)]
pub struct StoreArgs {
    /// Configuration file.
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
    /// Where both stores are.
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

/// What can be done with a log; all of it reads only, also while the service runs.
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
    /// Check a snapshot and say what it holds; exit code 1 if it is damaged.
    Inspect(SnapshotInspectArgs),
}

/// What `ubscore snapshot inspect` is told.
#[derive(Debug, Args)]
pub struct SnapshotInspectArgs {
    /// A snapshot's file, or a data directory or directory of snapshots for all there are, newest first.
    pub path: PathBuf,
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
    /// Configuration file that names the secret.
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
    /// Transfers a second, whatever becomes of them; several for one row each; without: as many as are answered.
    #[arg(long, value_name = "N", value_delimiter = ',', value_parser = count_parser())]
    pub rate: Vec<u64>,
    /// How long each rate is measured.
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = humantime::parse_duration)]
    pub duration: Duration,
    /// How long each rate is offered before.
    #[arg(long, value_name = "DURATION", default_value = "2s", value_parser = humantime::parse_duration)]
    pub warm_up: Duration,
    /// Users, who take turns.
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
    /// The first user's number; the others follow. Nobody else must move their money meanwhile.
    #[arg(long, value_name = "ID", default_value_t = 1_000_000, value_parser = user_id_parser())]
    pub first_user: u64,
    /// How the result is written.
    #[arg(long, value_enum, default_value_t = Format::Text)]
    pub format: Format,
    /// Configuration file that names the secret.
    #[arg(long, value_name = "FILE", conflicts_with = "dev")]
    pub config: Option<PathBuf>,
    /// Use the development secret, as `serve --dev` does.
    #[arg(long)]
    pub dev: bool,
}

/// What `ubscore halt` and `ubscore resume` are told.
#[derive(Debug, Args)]
pub struct OperatorArgs {
    /// Why; it is written down and shown to other operators.
    #[arg(long, value_name = "TEXT", value_parser = NonEmptyStringValueParser::new())]
    pub reason: String,
    /// The operators' listener; default: where the configuration says.
    #[arg(long, value_name = "URL", value_parser = parse_url)]
    pub ops: Option<String>,
    /// Who you are; it is written down.
    #[arg(long, value_name = "ID", default_value_t = 1, value_parser = user_id_parser())]
    pub user: u64,
    /// Configuration file that names the secret.
    #[arg(long, value_name = "FILE", conflicts_with = "dev")]
    pub config: Option<PathBuf>,
    /// Use the development secret, as `serve --dev` does.
    #[arg(long)]
    pub dev: bool,
}

/// A refused name is answered with those that there are.
fn op_parser() -> impl TypedValueParser<Value = Op> {
    const OPS: [Op; 5] = [Op::Withdraw, Op::Deposit, Op::Refund, Op::ExtDeposit, Op::ExtWithdraw];
    PossibleValuesParser::new(OPS.map(Op::name))
        .map(|name| Op::from_name(&name.to_ascii_uppercase()).expect("one of the names above"))
}

fn count_parser() -> RangedU64ValueParser<u64> {
    RangedU64ValueParser::new().range(1..=10_000_000)
}

fn user_id_parser() -> RangedU64ValueParser<u64> {
    RangedU64ValueParser::new().range(1..=USER_ID_MAX)
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
            "ubscore snapshot",
            "ubscore snapshot inspect",
            "ubscore snapshot inspect /d --format xml",
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
            "ubscore halt",
            "ubscore resume",
            "ubscore halt --reason",
            "ubscore halt --reason=",
            "ubscore halt --reason x --ops localhost:9090",
            "ubscore halt --reason x --user 0",
            "ubscore resume --reason x --dev --config /c",
        ] {
            assert_eq!(parse(line).expect_err(line).exit_code(), 2, "{line}");
        }
        assert_eq!(parse("ubscore --help").expect_err("help").exit_code(), 0);
    }
}
