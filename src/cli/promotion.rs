//! The arguments of the commands for promotions.

use clap::{Args, Subcommand};

use super::operator::{AccessArgs, OperatorArgs};
use super::values::parse_channel;
use crate::format::Format;

/// Commands for promotions, through the running service.
#[derive(Debug, Subcommand)]
pub enum PromotionCommand {
    /// Print the promotions.
    List(AccessArgs),
    /// Print one promotion.
    Show(PromotionShowArgs),
    /// Make a promotion, or change its status, its end, or the most orders of one user.
    ///
    /// The other terms stand once it is made.
    Set(PromotionSetArgs),
    /// Put money from outside into a promotion. Exit code 3: another operator must approve it.
    Fund(PromotionFundArgs),
}

impl PromotionCommand {
    /// The format of the command's answer and of its error.
    pub fn format(&self) -> Format {
        match self {
            PromotionCommand::List(access) => access.format,
            PromotionCommand::Show(args) => args.access.format,
            PromotionCommand::Set(args) => args.operator.access.format,
            PromotionCommand::Fund(args) => args.operator.access.format,
        }
    }
}

/// Arguments of `ubscore promotion show`.
#[derive(Debug, Args)]
pub struct PromotionShowArgs {
    /// The promotion.
    #[arg(value_name = "NAME", value_parser = parse_channel)]
    pub name: String,
    /// The listener and the operator.
    #[command(flatten)]
    pub access: AccessArgs,
}

/// Arguments of `ubscore promotion set`.
#[derive(Debug, Args)]
pub struct PromotionSetArgs {
    /// The promotion: 1 to 16 of a-z 0-9 -
    #[arg(value_name = "NAME", value_parser = parse_channel)]
    pub name: String,
    /// The asset of its orders; of a new one.
    #[arg(long, value_name = "SYMBOL")]
    pub asset: Option<String>,
    /// The smallest order; of a new one.
    #[arg(long, value_name = "AMOUNT")]
    pub min_amount: Option<String>,
    /// The bonus of each order; of a new one.
    #[arg(long, value_name = "AMOUNT", conflicts_with = "basis_points")]
    pub fixed: Option<String>,
    /// The bonus in ten thousandths of the amount; of a new one.
    #[arg(long, value_name = "N", requires = "bonus_max")]
    pub basis_points: Option<u32>,
    /// The most of one bonus; with --basis-points.
    #[arg(long, value_name = "AMOUNT", requires = "basis_points")]
    pub bonus_max: Option<String>,
    /// The most orders of one user with a bonus; default of a new one: 1.
    #[arg(long, value_name = "N")]
    pub per_user_max: Option<u32>,
    /// Its beginning, such as 2026-12-01T00:00:00Z; default of a new one: now.
    #[arg(long, value_name = "TIME")]
    pub starts_at: Option<String>,
    /// Its end.
    #[arg(long, value_name = "TIME")]
    pub ends_at: Option<String>,
    /// ACTIVE or STOPPED; default of a new one: ACTIVE.
    #[arg(long, value_name = "STATUS")]
    pub status: Option<String>,
    /// The reason, the listener and the operator.
    #[command(flatten)]
    pub operator: OperatorArgs,
}

/// Arguments of `ubscore promotion fund`.
#[derive(Debug, Args)]
pub struct PromotionFundArgs {
    /// The promotion.
    #[arg(value_name = "NAME", value_parser = parse_channel)]
    pub name: String,
    /// How much.
    #[arg(long, value_name = "AMOUNT")]
    pub amount: String,
    /// A key of your own, 1 to 64 of A-Z a-z 0-9 _ . : -
    #[arg(long, value_name = "KEY")]
    pub idem_key: String,
    /// The reason, the listener and the operator.
    #[command(flatten)]
    pub operator: OperatorArgs,
}
