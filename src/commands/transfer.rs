//! `ubscore transfer`: finds transfers that do not end, shows the place of their money and the
//! awaited participant, and ends them.

use std::io::Write;
use std::time::Duration;

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::{Value, json};

use super::listing::{attend, note_cursor, path, rows, write_rows};
use super::ops::Ops;
use super::table::{aligned, text};
use crate::cli::{TransferAttendArgs, TransferCommand, TransferListArgs, TransferShowArgs};
use crate::clock::Clock;
use crate::exit::Exit;
use crate::format::Format;

/// Runs one of the commands. Results go to `out`, notes to `notes`.
///
/// # Errors
/// The configuration is wrong, the service cannot be reached, or it refuses.
pub fn run(
    command: &TransferCommand,
    clock: &impl Clock,
    out: &mut impl Write,
    notes: &mut impl Write,
) -> anyhow::Result<Exit> {
    match command {
        TransferCommand::List(args) => list(args, clock, out, notes)?,
        TransferCommand::Show(args) => show(args, clock, out)?,
        TransferCommand::Retry(args) => act(args, clock, ("retry", "due now"), out)?,
        TransferCommand::Resolve(args) => act(args, clock, ("resolve", "resolved"), out)?,
    }
    Ok(Exit::Done)
}

fn act(
    args: &TransferAttendArgs,
    clock: &impl Clock,
    action: (&str, &str),
    out: &mut impl Write,
) -> anyhow::Result<()> {
    attend(&args.operator, clock, &format!("transfers/{}", args.req_id), action, stands, out)
}

fn list(
    args: &TransferListArgs,
    clock: &impl Clock,
    out: &mut impl Write,
    notes: &mut impl Write,
) -> anyhow::Result<()> {
    let cid = |cid: &String| utf8_percent_encode(cid, NON_ALPHANUMERIC).to_string();
    let parameters = [
        ("stuck", Some(args.stuck.to_string())),
        ("state", args.state.map(|state| state.name().to_owned())),
        ("user", args.user.map(|user| user.to_string())),
        ("cid", args.cid.as_ref().map(cid)),
        ("ended", args.ended.then(|| "true".to_owned())),
        ("order", args.oldest.then(|| "oldest".to_owned())),
        ("limit", args.limit.map(|limit| limit.to_string())),
        ("cursor", args.cursor.map(|cursor| cursor.to_string())),
    ];
    let answer = Ops::new(&args.access, clock)?.get("list", &path("transfers", parameters))?;
    let none = if is_open_only(args) { "no open transfers" } else { "no transfers" };
    let head = [
        "REQ_ID",
        "CREATED",
        "AGE",
        "STATE",
        "DIRECTION",
        "USER",
        "ASSET",
        "AMOUNT",
        "TRIES",
        "WAITS FOR",
        "LAST ERROR",
        "CID",
    ];
    write_rows(rows(&answer, "transfers"), args.access.format, none, (&head, row), out)?;
    note_cursor(&answer, notes)?;
    let asked = args.stuck || args.oldest || args.state.is_some();
    if args.user.is_some() && !asked && is_open_only(args) && args.access.format == Format::Text {
        writeln!(notes, "open transfers only; --ended includes finished ones")?;
    }
    Ok(())
}

/// Whether a list leaves out final transfers.
fn is_open_only(args: &TransferListArgs) -> bool {
    !args.ended && args.cid.is_none() && args.state.is_none_or(|state| !state.is_terminal())
}

fn row(transfer: &Value) -> Vec<String> {
    vec![
        text(&transfer["req_id"]),
        second(&transfer["created_at"]),
        age(transfer),
        text(&transfer["state"]),
        direction(transfer),
        text(&transfer["user_id"]),
        text(&transfer["asset"]),
        text(&transfer["amount"]),
        text(&transfer["retry_count"]),
        waits_for(transfer),
        error_name(transfer),
        text(&transfer["cid"]),
    ]
}

/// A time to the second: `2026-11-23T18:00:00Z`.
fn second(time: &Value) -> String {
    let text = text(time);
    match text.split_once('.') {
        Some((whole, _)) => format!("{whole}Z"),
        None => text,
    }
}

fn show(args: &TransferShowArgs, clock: &impl Clock, out: &mut impl Write) -> anyhow::Result<()> {
    let path = format!("transfers/{}", args.req_id);
    let transfer = Ops::new(&args.access, clock)?.get("show", &path)?;
    if args.access.format == Format::Json {
        return Ok(writeln!(out, "{transfer}")?);
    }
    let of = |key: &str| text(&transfer[key]);
    writeln!(out, "{}", stands(&transfer))?;
    let (user, amount, asset) = (of("user_id"), of("amount"), of("asset"));
    writeln!(out, "  user {user}, {}, {amount} {asset}, cid {}", direction(&transfer), of("cid"))?;
    writeln!(out, "  accepted {}, {} ago", of("created_at"), age(&transfer))?;
    writeln!(out, "  last moved {}", of("updated_at"))?;
    writeln!(out, "  waits for {}", waits_for(&transfer))?;
    writeln!(out, "  {} tries, next {}", of("retry_count"), of("next_retry_at"))?;
    if transfer["last_error"].is_object() {
        let error = &transfer["last_error"];
        let (message, at) = (text(&error["message"]), text(&error["at"]));
        writeln!(out, "  last error at {at}: {message} ({})", error_name(&transfer))?;
    }
    if transfer["error"].is_object() {
        let error = &transfer["error"];
        writeln!(out, "  {}: {}", text(&error["code"]), text(&error["message"]))?;
    }
    let table = |list: &str, keys: &[&str]| {
        let row = |row: &Value| keys.iter().map(|key| text(&row[*key])).collect();
        rows(&transfer, list).iter().map(row).collect::<Vec<Vec<String>>>()
    };
    writeln!(out, "history")?;
    let passed = table("history", &["state", "at", "attempt", "reason"]);
    write!(out, "{}", aligned("  ", &["STATE", "AT", "ATTEMPT", "REASON"], passed))?;
    writeln!(out, "operations")?;
    let keys =
        ["account", "op", "outcome", "code", "amount", "balance_after", "at", "log_sequence"];
    let head = ["ACCOUNT", "OP", "OUTCOME", "CODE", "AMOUNT", "BALANCE AFTER", "AT", "LOG"];
    write!(out, "{}", aligned("  ", &head, table("operations", &keys)))?;
    if transfer["spot_answered"] != json!(true) {
        writeln!(out, "  UBSCore did not answer: its operations are unknown")?;
    } else if transfer["spot_forgotten"] == json!(true) {
        writeln!(out, "  it is below the watermark: UBSCore may have evicted its operations")?;
    }
    Ok(())
}

/// The state of a transfer and the place of its money, in one line.
fn stands(transfer: &Value) -> String {
    let of = |key: &str| text(&transfer[key]);
    let money = match of("funds_at").as_str() {
        "in_flight" => "in flight".to_owned(),
        place => format!("at the {place}"),
    };
    format!("{}: {}. The money is {money}.", of("req_id"), of("state"))
}

fn direction(transfer: &Value) -> String {
    format!("{}->{}", text(&transfer["from"]), text(&transfer["to"]))
}

fn waits_for(transfer: &Value) -> String {
    match &transfer["waits_for"] {
        Value::Null => "-".to_owned(),
        waits => format!("{} {}", text(&waits["account"]), text(&waits["op"])),
    }
}

/// PostgreSQL's code of the last error, or its kind.
fn error_name(transfer: &Value) -> String {
    match &transfer["last_error"] {
        Value::Null => "-".to_owned(),
        error if error["sqlstate"].is_string() => text(&error["sqlstate"]),
        error => text(&error["class"]),
    }
}

/// Whole seconds from one second on.
fn age(transfer: &Value) -> String {
    let age = Duration::from_millis(transfer["age_ms"].as_u64().unwrap_or(0));
    let whole = if age.as_secs() > 0 { Duration::from_secs(age.as_secs()) } else { age };
    humantime::format_duration(whole).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_age_is_printed_in_whole_seconds_once_there_is_one() {
        for (age_ms, want) in [(0, "0s"), (12, "12ms"), (1_999, "1s"), (65_400, "1m 5s")] {
            assert_eq!(age(&json!({"age_ms": age_ms})), want);
        }
    }
}
