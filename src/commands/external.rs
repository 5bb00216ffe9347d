//! `ubscore deposit` and `ubscore withdraw`: money that enters Funding from outside, or leaves it.

use std::io::Write;

use anyhow::bail;
use serde_json::json;

use super::approval::refuse_pending;
use super::ops::Ops;
use super::table::text;
use crate::cli::ExternalArgs;
use crate::clock::Clock;
use crate::exit::Exit;
use crate::format::Format;

/// Requests a deposit or a withdrawal, and writes the decision to `out`. The same key again moves
/// nothing.
///
/// # Errors
/// The configuration is wrong, the service cannot be reached, or it refuses;
/// [`super::approval::Pending`]: another operator must approve it first.
pub fn run(
    args: &ExternalArgs,
    deposit: bool,
    clock: &impl Clock,
    out: &mut impl Write,
) -> anyhow::Result<Exit> {
    let (what, path, done) = match deposit {
        true => ("deposit", "deposits", "deposited"),
        false => ("withdrawal", "withdrawals", "withdrawn"),
    };
    let body = json!({
        "user_id": args.user, "asset": args.asset, "amount": args.amount,
        "idem_key": args.idem_key, "reason": args.operator.reason,
    });
    let access = &args.operator.access;
    let answer = Ops::new(access, clock)?.post(what, path, &body)?;
    refuse_pending(&answer, access.format, out)?;
    let refused = answer["outcome"] != json!("SUCCESS");
    if access.format == Format::Json {
        writeln!(out, "{answer}")?;
    }
    if refused {
        bail!("the {what} {} is refused, for good: {}", args.idem_key, text(&answer["code"]));
    }
    if access.format == Format::Text {
        let (user, asset, amount) = (args.user, &args.asset, &args.amount);
        let balance = text(&answer["balance_after"]);
        writeln!(
            out,
            "{done}: {amount} {asset}, user {user}; Funding held {balance} {asset} after it"
        )?;
    }
    Ok(Exit::Done)
}
