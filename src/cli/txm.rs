//! The arguments of the commands for nodes of the transaction manager.

use std::net::SocketAddr;
use std::path::PathBuf;

use alloy_primitives::{Address, B256};
use chain::payload;
use clap::builder::NonEmptyStringValueParser;
use clap::builder::RangedU64ValueParser;
use clap::{ArgGroup, Args, Subcommand};
use uuid::Uuid;

use super::operator::{AccessArgs, OperatorArgs};
use crate::format::Format;

/// Commands for nodes of the transaction manager.
#[derive(Debug, Subcommand)]
pub enum TxmCommand {
    /// Run a node: it signs and sends transactions of its signers, and follows them to their end.
    ///
    /// It prints `ubscore ready txm=ADDR ops=ADDR`, and runs until SIGTERM.
    Serve(TxmServeArgs),
}

/// Arguments of `ubscore txm serve`.
#[derive(Debug, Args)]
pub struct TxmServeArgs {
    /// Configuration file; default: UBSCORE_CONFIG, else /etc/ubscore/ubscore.toml if it exists.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Address of the listener; default: txm.listen.
    #[arg(long, value_name = "ADDR")]
    pub listen: Option<SocketAddr>,
    /// Address of the operators' listener; default: txm.ops_listen.
    #[arg(long, value_name = "ADDR")]
    pub ops_listen: Option<SocketAddr>,
    /// Development: a secret of its own, on loopback only, and signers without limits.
    #[arg(long)]
    pub dev: bool,
    /// Stop when standard input ends, as it does with the process that holds its other side.
    #[arg(long, hide = true)]
    pub until_stdin_ends: bool,
}

/// Commands for signers, through a running node.
#[derive(Debug, Subcommand)]
pub enum SignerCommand {
    /// Print the signers with their owners, suspensions and balances.
    List(AccessArgs),
    /// Add a signer. Its key must be at the node that is asked.
    ///
    /// It is refused while transactions of the signer are under way.
    Add(SignerAddArgs),
    /// Let a signer sign no new payment until `resume`. Signed ones go on.
    Suspend(SignerArgs),
    /// Lift a suspension.
    Resume(SignerResumeArgs),
    /// Adopt transactions that the chain has and no row. Two operators, each matched by hand first.
    Adopt(SignerAdoptArgs),
    /// Have the owner of a signer give it back, so that another node may take it.
    Release(SignerArgs),
}

impl SignerCommand {
    /// The format of the command's answer and of its error.
    pub fn format(&self) -> Format {
        match self {
            SignerCommand::List(access) => access.format,
            SignerCommand::Add(args) => args.operator.access.format,
            SignerCommand::Suspend(args) | SignerCommand::Release(args) => {
                args.operator.access.format
            }
            SignerCommand::Resume(args) => args.operator.access.format,
            SignerCommand::Adopt(args) => args.operator.access.format,
        }
    }
}

/// Arguments of `ubscore signer suspend` and `release`.
#[derive(Debug, Args)]
pub struct SignerArgs {
    /// The signer.
    #[arg(value_name = "ADDRESS", value_parser = payload::address)]
    pub signer: Address,
    /// The reason, the listener and the operator.
    #[command(flatten)]
    pub operator: OperatorArgs,
}

/// Arguments of `ubscore signer add`.
#[derive(Debug, Args)]
pub struct SignerAddArgs {
    /// The signer.
    #[arg(value_name = "ADDRESS", value_parser = payload::address)]
    pub signer: Address,
    /// The place of its key: keystore or remote.
    #[arg(long, value_name = "KIND", default_value = "keystore", value_parser = ["keystore", "remote"])]
    pub kind: String,
    /// The reason, the listener and the operator.
    #[command(flatten)]
    pub operator: OperatorArgs,
}

/// Arguments of `ubscore signer resume`.
#[derive(Debug, Args)]
pub struct SignerResumeArgs {
    /// The signer.
    #[arg(value_name = "ADDRESS", value_parser = payload::address)]
    pub signer: Address,
    /// The suspension, as `signer list` prints it.
    #[arg(long, value_name = "NAME", default_value = "OPERATOR", value_parser = NonEmptyStringValueParser::new())]
    pub suspension: String,
    /// File with the token of a second operator, if the suspension needs two.
    #[arg(long, value_name = "FILE")]
    pub approver_token_file: Option<PathBuf>,
    /// The reason, the listener and the operator.
    #[command(flatten)]
    pub operator: OperatorArgs,
}

/// Arguments of `ubscore signer adopt`.
#[derive(Debug, Args)]
pub struct SignerAdoptArgs {
    /// The signer.
    #[arg(value_name = "ADDRESS", value_parser = payload::address)]
    pub signer: Address,
    /// A nonce that no row has, and the hash of its transaction; once for each.
    #[arg(long, value_name = "NONCE=HASH", value_parser = foreign)]
    pub foreign: Vec<(u64, B256)>,
    /// A transaction of ours that no row has, and the request that it pays; once for each. Behind
    /// the request: `key=KEY` if it had a business key, `gas` if it named its gas limit, `data` if
    /// it named the data of a token's transfer instead of the token.
    #[arg(long, value_name = "HASH=REQUEST_ID[,key=KEY][,gas][,data]", value_parser = imported)]
    pub import: Vec<Imported>,
    /// A request without a nonce, older than the suspension, that is still to be paid; once for
    /// each.
    #[arg(long, value_name = "REQUEST_ID", value_parser = NonEmptyStringValueParser::new())]
    pub pay: Vec<String>,
    /// One that is ended: the database that is lost may have said so to its client.
    #[arg(long, value_name = "REQUEST_ID", value_parser = NonEmptyStringValueParser::new())]
    pub drop: Vec<String>,
    /// The verdict on all such requests that are not named.
    #[arg(long, value_name = "VERDICT", value_parser = ["pay", "drop"])]
    pub rest: Option<String>,
    /// File with the token of the second operator.
    #[arg(long, value_name = "FILE")]
    pub approver_token_file: PathBuf,
    /// The reason, the listener and the operator.
    #[command(flatten)]
    pub operator: OperatorArgs,
}

/// A text that is no nonce with a hash.
#[derive(Debug, thiserror::Error)]
#[error("give a nonce and a hash, such as 7=0x4e3a… with 64 digits")]
struct ForeignError;

fn foreign(text: &str) -> Result<(u64, B256), ForeignError> {
    let (nonce, hash) = text.split_once('=').ok_or(ForeignError)?;
    let nonce = nonce.parse().map_err(|_| ForeignError)?;
    Ok((nonce, hash.parse().map_err(|_| ForeignError)?))
}

/// A mined transaction, and the request that it pays.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Imported {
    /// Its hash.
    pub hash: B256,
    /// The client's id.
    pub request_id: String,
    /// The purpose, if the request had one.
    pub business_key: Option<String>,
    /// Whether the request named its gas limit.
    pub gas: bool,
    /// Whether the request named data where a token would do.
    pub data: bool,
}

/// A text that is no hash with a request.
#[derive(Debug, thiserror::Error)]
#[error("give a hash and a request id, such as 0x4e3a…=order-7, or =order-7,key=order/7,gas,data")]
struct ImportedError;

fn imported(text: &str) -> Result<Imported, ImportedError> {
    let (hash, rest) = text.split_once('=').ok_or(ImportedError)?;
    let mut parts = rest.split(',');
    let request_id = parts.next().filter(|id| !id.is_empty()).ok_or(ImportedError)?.to_owned();
    let hash = hash.parse().map_err(|_| ImportedError)?;
    let mut read = Imported { hash, request_id, business_key: None, gas: false, data: false };
    for part in parts {
        match (part, part.strip_prefix("key=")) {
            ("gas", _) => read.gas = true,
            ("data", _) => read.data = true,
            (_, Some(key)) => read.business_key = Some(key.to_owned()),
            _ => return Err(ImportedError),
        }
    }
    Ok(read)
}

/// Commands for chain transactions, through a running node.
#[derive(Debug, Subcommand)]
pub enum ChainTxCommand {
    /// Print transactions, newest first.
    List(ChainTxListArgs),
    /// Print one transaction with its attempts, receipt and history.
    Show(ChainTxShowArgs),
    /// Send the newest bytes of a transaction now.
    Resubmit(ChainTxArgs),
    /// Cancel a transaction. One that is sent may still be mined first.
    Cancel(ChainTxArgs),
    /// Fill a nonce that no transaction will ever have, so that later ones are mined: of a
    /// transaction that can never be sent, or of a signer, where another wallet used the key.
    FillGap(ChainTxFillArgs),
    /// Compare every nonce on the chain with rows and attempts.
    ///
    /// Exit code 0: no difference. 1: there is one. 2: the node cannot be asked.
    Audit(ChainTxAuditArgs),
    /// Find the transaction that took a nonce, or end one without a proof of payment.
    Resolve(ChainTxResolveArgs),
}

impl ChainTxCommand {
    /// The format of the command's answer and of its error.
    pub fn format(&self) -> Format {
        match self {
            ChainTxCommand::List(args) => args.access.format,
            ChainTxCommand::Show(args) => args.access.format,
            ChainTxCommand::Audit(args) => args.access.format,
            ChainTxCommand::Resubmit(args) | ChainTxCommand::Cancel(args) => {
                args.operator.access.format
            }
            ChainTxCommand::FillGap(args) => args.operator.access.format,
            ChainTxCommand::Resolve(args) => args.operator.access.format,
        }
    }
}

/// Arguments of `ubscore tx list`.
#[derive(Debug, Args)]
pub struct ChainTxListArgs {
    /// Only of this signer.
    #[arg(long, value_name = "ADDRESS", value_parser = payload::address)]
    pub signer: Option<Address>,
    /// Only in this state.
    #[arg(long, value_name = "STATE", value_parser = ["CREATED", "ALLOCATED", "SUBMITTED", "TRACKING", "CONFIRMED", "FAILED"])]
    pub state: Option<String>,
    /// Rows of a page.
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = RangedU64ValueParser::<u32>::new().range(1..=1_000))]
    pub limit: u32,
    /// The cursor of the page before.
    #[arg(long, value_name = "CURSOR")]
    pub cursor: Option<Uuid>,
    /// The listener and the operator.
    #[command(flatten)]
    pub access: AccessArgs,
}

/// Arguments of `ubscore tx show`.
#[derive(Debug, Args)]
pub struct ChainTxShowArgs {
    /// The transaction.
    #[arg(value_name = "TX_ID")]
    pub tx_id: Uuid,
    /// The listener and the operator.
    #[command(flatten)]
    pub access: AccessArgs,
}

/// Arguments of `ubscore tx audit`.
#[derive(Debug, Args)]
pub struct ChainTxAuditArgs {
    /// The signer.
    #[arg(long, value_name = "ADDRESS", value_parser = payload::address)]
    pub signer: Address,
    /// The first nonce.
    #[arg(long, value_name = "NONCE", default_value_t = 0)]
    pub from: u32,
    /// The last nonce; default: the last one that the chain or the database has.
    #[arg(long, value_name = "NONCE")]
    pub to: Option<u32>,
    /// The listener and the operator.
    #[command(flatten)]
    pub access: AccessArgs,
}

/// Arguments of `ubscore tx fill-gap`.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("gap").required(true))]
pub struct ChainTxFillArgs {
    /// The transaction.
    #[arg(value_name = "TX_ID", group = "gap")]
    pub tx_id: Option<Uuid>,
    /// The signer of a nonce that no row has.
    #[arg(long, value_name = "ADDRESS", value_parser = payload::address, group = "gap", requires = "nonce")]
    pub signer: Option<Address>,
    /// A nonce that a jump passed over; behind a restore also one that was signed before: all up to
    /// it are filled.
    #[arg(long, value_name = "NONCE", requires = "signer")]
    pub nonce: Option<u32>,
    /// The reason, the listener and the operator.
    #[command(flatten)]
    pub operator: OperatorArgs,
}

/// Arguments of `ubscore tx resubmit` and `cancel`.
#[derive(Debug, Args)]
pub struct ChainTxArgs {
    /// The transaction.
    #[arg(value_name = "TX_ID")]
    pub tx_id: Uuid,
    /// The reason, the listener and the operator.
    #[command(flatten)]
    pub operator: OperatorArgs,
}

/// Arguments of `ubscore tx resolve`.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("verdict").required(true))]
pub struct ChainTxResolveArgs {
    /// The transaction.
    #[arg(value_name = "TX_ID")]
    pub tx_id: Uuid,
    /// Look at this transaction: it may have the nonce.
    #[arg(long, value_name = "HASH", group = "verdict")]
    pub hash: Option<B256>,
    /// It has paid. Two operators.
    #[arg(long, group = "verdict", requires = "approver_token_file")]
    pub paid: bool,
    /// It has not paid. Two operators.
    #[arg(long, group = "verdict", requires = "approver_token_file")]
    pub unpaid: bool,
    /// File with the token of the second operator.
    #[arg(long, value_name = "FILE")]
    pub approver_token_file: Option<PathBuf>,
    /// The reason, the listener and the operator.
    #[command(flatten)]
    pub operator: OperatorArgs,
}
