//! The arguments of commands that read or cut the log, or read snapshots.

use std::path::PathBuf;

use clap::builder::{NonEmptyStringValueParser, RangedU64ValueParser};
use clap::{Args, Subcommand};
use ulid::Ulid;

use super::stores::StoreArgs;
use super::values::{op_parser, user_id_parser};
use crate::format::Format;
use domain::transfer::Op;

/// Commands for a log. All but `repair` only read, so they may run beside the service.
#[derive(Debug, Subcommand)]
pub enum WalCommand {
    /// Print records, one per line: sequence, time, kind, req_id, op, user, asset, amount, balance
    /// after, outcome.
    ///
    /// A posting of a venue has its operation, venue and number, then each leg, then the outcome.
    /// If there are several legs, a refusal names the failing one, from 0.
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
    /// Only records of this transfer or transaction.
    #[arg(long, value_name = "ULID")]
    pub req_id: Option<Ulid>,
    /// Only records of the transactions with this name. Each owner has its own names.
    #[arg(long, value_name = "TX_ID")]
    pub tx_id: Option<String>,
    /// Only records of this user. Of a posting: one of its legs names the user, or a hold of the
    /// user. The log is read from its beginning for the owners of its holds.
    #[arg(long, value_name = "ID", value_parser = user_id_parser())]
    pub user: Option<u64>,
    /// Only records of this venue.
    #[arg(long, value_name = "ID", value_parser = RangedU64ValueParser::<u32>::new().range(1..))]
    pub venue: Option<u32>,
    /// Only the postings with this number. Each venue has its own numbers.
    #[arg(long, value_name = "N", value_parser = RangedU64ValueParser::<u64>::new().range(1..))]
    pub number: Option<u64>,
    /// Only postings with this reference of their venue.
    #[arg(long, value_name = "N")]
    pub reference: Option<u64>,
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
