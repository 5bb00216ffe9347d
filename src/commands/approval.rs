//! `ubscore approval`: requests that need two operators, and the second operator's decision.

use std::io::Write;

use serde_json::{Value, json};

use super::ops::Ops;
use super::table::{aligned, text};
use crate::approval::State;
use crate::cli::{ApprovalCommand, ApprovalDecideArgs, ApprovalListArgs};
use crate::clock::Clock;
use crate::exit::Exit;
use crate::format::Format;

/// Nothing was done yet; the output names the next step.
#[derive(Debug, thiserror::Error)]
#[error("another operator has to approve it first")]
pub struct Pending;

/// Writes to `out` that an answer waits for another operator, if it does.
///
/// # Errors
/// [`Pending`]: it does.
pub fn refuse_pending(answer: &Value, format: Format, out: &mut impl Write) -> anyhow::Result<()> {
    if answer["state"] != json!(State::Pending.name()) {
        return Ok(());
    }
    let written = match format {
        Format::Json => writeln!(out, "{answer}"),
        Format::Text => {
            let of = |key: &str| text(&answer[key]);
            let (id, expires) = (of("approval_id"), of("expires_at"));
            writeln!(out, "not done: another operator has to approve it, until {expires}").and_then(
                |()| writeln!(out, "  ubscore approval approve {id} --reason TEXT --as THEIR_ID"),
            )
        }
    };
    // If stdout is closed, the exit code still reports that nothing was done.
    written.ok();
    Err(Pending.into())
}

/// Runs one of the commands.
///
/// # Errors
/// The configuration is wrong, the service cannot be reached, or it refuses.
pub fn run(
    command: &ApprovalCommand,
    clock: &impl Clock,
    out: &mut impl Write,
) -> anyhow::Result<Exit> {
    match command {
        ApprovalCommand::List(args) => list(args, clock, out)?,
        ApprovalCommand::Approve(args) => {
            let answer = decide(args, clock, "approve")?;
            match args.operator.access.format {
                Format::Json => writeln!(out, "{answer}")?,
                Format::Text => {
                    writeln!(out, "approved and carried out: {}", args.approval_id)?;
                    writeln!(out, "  {answer}")?;
                }
            }
        }
        ApprovalCommand::Reject(args) => {
            let answer = decide(args, clock, "reject")?;
            match args.operator.access.format {
                Format::Json => writeln!(out, "{answer}")?,
                Format::Text => writeln!(out, "rejected: {}", args.approval_id)?,
            }
        }
    }
    Ok(Exit::Done)
}

fn decide(args: &ApprovalDecideArgs, clock: &impl Clock, action: &str) -> anyhow::Result<Value> {
    let path = format!("approvals/{}/{action}", args.approval_id);
    let body = json!({"reason": args.operator.reason});
    Ops::new(&args.operator.access, clock)?.post(action, &path, &body)
}

fn list(args: &ApprovalListArgs, clock: &impl Clock, out: &mut impl Write) -> anyhow::Result<()> {
    let path = match args.all {
        true => "approvals".to_owned(),
        false => format!("approvals?state={}", State::Pending.name()),
    };
    let answer = Ops::new(&args.access, clock)?.get("list", &path)?;
    let approvals = answer["approvals"].as_array().map_or(&[][..], Vec::as_slice);
    let row = |approval: &Value| {
        let keys = ["approval_id", "state", "action", "subject", "maker", "expires_at", "decider"];
        let mut cells: Vec<String> = keys.iter().map(|key| text(&approval[*key])).collect();
        cells.push(text(&approval["reason"]));
        // For a halt or a transfer the subject is enough.
        let money = |key: &str| approval["request"][key].as_str().unwrap_or("").to_owned();
        if approval["action"] == json!("external") {
            let user = text(&approval["request"]["user_id"]);
            let (op, amount, asset) = (money("op"), money("amount"), money("asset"));
            cells.push(format!("{op} {amount} {asset} of {user}"));
        } else {
            cells.push("-".to_owned());
        }
        cells
    };
    match args.access.format {
        Format::Json => approvals.iter().try_for_each(|approval| writeln!(out, "{approval}"))?,
        Format::Text if approvals.is_empty() => writeln!(out, "no approvals")?,
        Format::Text => {
            let head = [
                "APPROVAL_ID",
                "STATE",
                "ACTION",
                "SUBJECT",
                "ASKED BY",
                "UNTIL",
                "DECIDED BY",
                "REASON",
                "WHAT",
            ];
            write!(out, "{}", aligned("", &head, approvals.iter().map(row)))?;
        }
    }
    Ok(())
}
