//! `ubscore channel`: the payment channels of the running service.

use std::io::Write;

use serde_json::{Value, json};

use super::approval::refuse_pending;
use super::listing::{attend, note_cursor, path, rows, write_rows};
use super::ops::Ops;
use super::table::text;
use crate::cli::{
    AccessArgs, ChannelBillsArgs, ChannelCommand, ChannelNoticesArgs, ChannelPauseArgs,
    ChannelSettleArgs, ChannelStatementArgs,
};
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
    notes: &mut impl Write,
) -> anyhow::Result<Exit> {
    match command {
        ChannelCommand::List(access) => list(access, clock, out)?,
        ChannelCommand::Totals(access) => totals(access, clock, out)?,
        ChannelCommand::Statement(args) => statement(args, clock, out, notes)?,
        ChannelCommand::Notices(args) => notices(args, clock, out)?,
        ChannelCommand::Pause(args) => pause(args, clock, ("pause", "paused"), out)?,
        ChannelCommand::Unpause(args) => pause(args, clock, ("unpause", "goes on"), out)?,
        ChannelCommand::Bills(args) => bills(args, clock, out)?,
        ChannelCommand::Settle(args) => settle(args, clock, out)?,
    }
    Ok(Exit::Done)
}

fn bills(args: &ChannelBillsArgs, clock: &impl Clock, out: &mut impl Write) -> anyhow::Result<()> {
    let parameters = [("channel", args.channel.clone()), ("day", args.day.clone())];
    let answer = Ops::new(&args.access, clock)?.get("bills", &path("bills", parameters))?;
    let head = ["CHANNEL", "DAY", "STATE", "LINES", "PAID", "RETURNED", "FEES", "TRIES", "WHAT"];
    let keys = ["channel", "day", "state", "lines", "paid", "returned", "fees", "tries", "what"];
    let row = |bill: &Value| keys.iter().map(|key| text(&bill[*key])).collect();
    write_rows(rows(&answer, "bills"), args.access.format, "no bills", (&head, row), out)
}

fn settle(
    args: &ChannelSettleArgs,
    clock: &impl Clock,
    out: &mut impl Write,
) -> anyhow::Result<()> {
    let ChannelSettleArgs { name, amount, asset, idem_key, operator } = args;
    let mut body = json!({"amount": amount, "idem_key": idem_key, "reason": operator.reason});
    if let Some(asset) = asset {
        body["asset"] = json!(asset);
    }
    let thing = format!("channels/{name}/settle");
    let answer = Ops::new(&operator.access, clock)?.post("settle", &thing, &body)?;
    refuse_pending(&answer, operator.access.format, out)?;
    match operator.access.format {
        Format::Json => writeln!(out, "{answer}")?,
        Format::Text => {
            let of = |key: &str| text(&answer[key]);
            writeln!(out, "booked: {} {} of channel {}", of("amount"), of("asset"), of("channel"))?;
        }
    }
    Ok(())
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
        "fees",
        "bank",
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

/// The columns of a statement.
const STATEMENT_HEAD: [&str; 7] =
    ["AT", "SIDE", "AMOUNT", "ASSET", "OTHER SIDE", "KEY", "RECHARGE_ID"];
/// The keys of the same.
const STATEMENT_KEYS: [&str; 7] = ["at", "side", "amount", "asset", "other", "key", "recharge_id"];

fn statement(
    args: &ChannelStatementArgs,
    clock: &impl Clock,
    out: &mut impl Write,
    notes: &mut impl Write,
) -> anyhow::Result<()> {
    let ChannelStatementArgs { name, account, since, until, page, access } = args;
    let [limit, cursor] = page.parameters();
    let parameters = [
        ("account", Some(account.clone())),
        ("since", Some(since.to_string())),
        ("until", Some(until.to_string())),
        limit,
        cursor,
    ];
    let route = path(&format!("channels/{name}/statement"), parameters);
    let answer = Ops::new(access, clock)?.get("statement", &route)?;
    let row = |one: &Value| STATEMENT_KEYS.iter().map(|key| text(&one[*key])).collect();
    let found = rows(&answer, "movements");
    write_rows(found, access.format, "no movements", (&STATEMENT_HEAD, row), out)?;
    note_cursor(&answer, notes)
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
