//! `ubscore channel`: the payment channels of the running service.

use std::io::Write;

use serde_json::Value;

use super::listing::{attend, rows, write_rows};
use super::ops::Ops;
use super::table::text;
use crate::cli::{AccessArgs, ChannelCommand, ChannelNoticesArgs, ChannelPauseArgs};
use crate::clock::Clock;
use crate::exit::Exit;
use crate::format::Format;

/// Runs one of the commands.
///
/// # Errors
/// The configuration is wrong, the service cannot be reached, or it refuses.
pub fn run(
    command: &ChannelCommand,
    clock: &impl Clock,
    out: &mut impl Write,
) -> anyhow::Result<Exit> {
    match command {
        ChannelCommand::List(access) => list(access, clock, out)?,
        ChannelCommand::Totals(access) => totals(access, clock, out)?,
        ChannelCommand::Notices(args) => notices(args, clock, out)?,
        ChannelCommand::Pause(args) => pause(args, clock, ("pause", "paused"), out)?,
        ChannelCommand::Unpause(args) => pause(args, clock, ("unpause", "goes on"), out)?,
    }
    Ok(Exit::Done)
}

fn list(access: &AccessArgs, clock: &impl Clock, out: &mut impl Write) -> anyhow::Result<()> {
    let answer = Ops::new(access, clock)?.get("list", "channels")?;
    let head = ["CHANNEL", "ASSET", "CURRENCY", "MIN", "MAX", "PAUSED", "KEYS END"];
    let keys = ["name", "asset", "currency", "min", "max", "paused", "keys_end"];
    let row = |channel: &Value| keys.iter().map(|key| text(&channel[*key])).collect();
    write_rows(rows(&answer, "channels"), access.format, "no channels", (&head, row), out)
}

fn totals(access: &AccessArgs, clock: &impl Clock, out: &mut impl Write) -> anyhow::Result<()> {
    let answer = Ops::new(access, clock)?.get("totals", "totals")?;
    if answer["channels"].is_null() {
        anyhow::bail!("the accounts of channels cannot be added up now: try again");
    }
    let keys = [
        "channel",
        "asset",
        "paid",
        "returned",
        "taken",
        "given_back",
        "clearing",
        "suspense",
        "receivable",
        "loss",
    ];
    let head = keys.map(str::to_uppercase);
    let head = head.each_ref().map(String::as_str);
    let row = |sums: &Value| keys.iter().map(|key| text(&sums[*key])).collect();
    write_rows(rows(&answer, "channels"), access.format, "no payments", (&head, row), out)
}

fn notices(
    args: &ChannelNoticesArgs,
    clock: &impl Clock,
    out: &mut impl Write,
) -> anyhow::Result<()> {
    let ChannelNoticesArgs { id, access } = args;
    let answer = Ops::new(access, clock)?.get("notices", &format!("payments/{id}/notices"))?;
    let kept = rows(&answer, "notices");
    if access.format == Format::Json || kept.is_empty() {
        let no_row = |_: &Value| Vec::new();
        return write_rows(kept, access.format, "no callbacks", (&[], no_row), out);
    }
    for notice in kept {
        let of = |key: &str| text(&notice[key]);
        writeln!(out, "{} {} {}: {}", of("at"), of("channel"), of("trade_no"), of("outcome"))?;
        for header in rows(notice, "headers") {
            writeln!(out, "  {}", text(header))?;
        }
        writeln!(out, "  {}", of("body"))?;
    }
    Ok(())
}

fn pause(
    args: &ChannelPauseArgs,
    clock: &impl Clock,
    action: (&str, &str),
    out: &mut impl Write,
) -> anyhow::Result<()> {
    let stands = |channel: &Value| text(&channel["name"]);
    attend(&args.operator, clock, &format!("channels/{}", args.name), action, stands, out)
}
