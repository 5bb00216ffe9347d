//! `ubscore transaction`: finds transactions that do not end, shows the party that has not
//! answered, and ends them; and the roles that may commit transactions in SQL.

use std::io::Write;

use serde_json::{Value, json};

use super::approval::refuse_pending;
use super::listing::{attend, note_cursor, path, rows, write_rows};
use super::ops::Ops;
use super::table::{aligned, text};
use crate::cli::{
    AccessArgs, BranchAbandonArgs, TransactionAttendArgs, TransactionCommand, TransactionGrantArgs,
    TransactionListArgs, TransactionShowArgs,
};
use crate::clock::Clock;
use crate::exit::Exit;
use crate::format::Format;

/// Runs one of the commands. Results go to `out`, notes to `notes`.
///
/// # Errors
/// The configuration is wrong, the service cannot be reached, or it refuses.
pub fn run(
    command: &TransactionCommand,
    clock: &impl Clock,
    out: &mut impl Write,
    notes: &mut impl Write,
) -> anyhow::Result<Exit> {
    match command {
        TransactionCommand::List(args) => list(args, clock, out, notes)?,
        TransactionCommand::Show(args) => show(args, clock, out)?,
        TransactionCommand::Retry(args) => act(args, clock, ("retry", "asked again"), out)?,
        TransactionCommand::Abort(args) => act(args, clock, ("abort", "aborted"), out)?,
        TransactionCommand::Resolve(args) => act(args, clock, ("resolve", "asked"), out)?,
        TransactionCommand::Abandon(args) => abandon(args, clock, out)?,
        TransactionCommand::Grants(access) => grants(access, clock, out)?,
        TransactionCommand::Grant(args) => grant(args, clock, true, out)?,
        TransactionCommand::Revoke(args) => grant(args, clock, false, out)?,
    }
    Ok(Exit::Done)
}

fn act(
    args: &TransactionAttendArgs,
    clock: &impl Clock,
    action: (&str, &str),
    out: &mut impl Write,
) -> anyhow::Result<()> {
    attend(&args.operator, clock, &format!("transactions/{}", args.id), action, stands, out)
}

fn list(
    args: &TransactionListArgs,
    clock: &impl Clock,
    out: &mut impl Write,
    notes: &mut impl Write,
) -> anyhow::Result<()> {
    let parameters = [
        ("stuck", Some(args.stuck.to_string())),
        ("state", args.state.map(|state| state.name().to_owned())),
        ("owner", args.owner.clone()),
        ("tx_id", args.tx_id.clone()),
        ("ended", args.ended.then(|| "true".to_owned())),
        ("limit", args.limit.map(|limit| limit.to_string())),
        ("cursor", args.cursor.map(|cursor| cursor.to_string())),
    ];
    let answer = Ops::new(&args.access, clock)?.get("list", &path("transactions", parameters))?;
    let head = [
        "TRANSACTION_ID",
        "OWNER",
        "TX_ID",
        "CREATED",
        "STATE",
        "ROUNDS",
        "DECIDES",
        "WAITS FOR",
        "CODE",
    ];
    let transactions = rows(&answer, "transactions");
    write_rows(transactions, args.access.format, "no transactions", (&head, row), out)?;
    note_cursor(&answer, notes)
}

fn row(transaction: &Value) -> Vec<String> {
    let of = |key: &str| text(&transaction[key]);
    vec![
        of("transaction_id"),
        of("owner"),
        of("tx_id"),
        of("created_at"),
        of("state"),
        of("rounds"),
        of("decide"),
        waits_for(transaction),
        of("code"),
    ]
}

/// The parties that have not answered.
fn waits_for(transaction: &Value) -> String {
    let parties: Vec<String> = rows(transaction, "waits_for").iter().map(text).collect();
    if parties.is_empty() { "-".to_owned() } else { parties.join(", ") }
}

fn show(
    args: &TransactionShowArgs,
    clock: &impl Clock,
    out: &mut impl Write,
) -> anyhow::Result<()> {
    let path = format!("transactions/{}", args.id);
    let transaction = Ops::new(&args.access, clock)?.get("show", &path)?;
    if args.access.format == Format::Json {
        return Ok(writeln!(out, "{transaction}")?);
    }
    let of = |key: &str| text(&transaction[key]);
    writeln!(out, "{}", stands(&transaction))?;
    writeln!(out, "  {} of {}, decided by {}", of("tx_id"), of("owner"), of("decided_by"))?;
    writeln!(out, "  accepted {}, expires {}", of("created_at"), of("expires_at"))?;
    writeln!(out, "  last moved {}", of("updated_at"))?;
    writeln!(out, "  waits for {}", waits_for(&transaction))?;
    if !transaction["code"].is_null() {
        writeln!(out, "  {}: {}", of("code"), of("detail"))?;
    }
    let table = |list: &str, keys: &[&str]| {
        let row = |row: &Value| keys.iter().map(|key| text(&row[*key])).collect();
        rows(&transaction, list).iter().map(row).collect::<Vec<Vec<String>>>()
    };
    writeln!(out, "branches")?;
    let keys = ["participant", "round", "state", "code", "leg", "participant_code"];
    let head = ["PARTICIPANT", "ROUND", "STATE", "CODE", "LEG", "ITS CODE"];
    write!(out, "{}", aligned("  ", &head, table("branches", &keys)))?;
    writeln!(out, "legs")?;
    let legs = rows(&transaction, "branches").iter().zip(rows(&transaction, "parts")).flat_map(
        |(branch, part)| {
            let of_branch = [text(&branch["participant"]), text(&branch["round"])];
            rows(part, "legs").iter().map(move |leg| {
                let [from, to] = ["from", "to"].map(|key| place(&leg[key]));
                let cells = [from, to, text(&leg["amount"]), text(&leg["asset"])];
                of_branch.iter().cloned().chain(cells).collect::<Vec<String>>()
            })
        },
    );
    let head = ["ACCOUNT", "ROUND", "FROM", "TO", "AMOUNT", "ASSET"];
    write!(out, "{}", aligned("  ", &head, legs))?;
    if !rows(&transaction, "followers").is_empty() {
        writeln!(out, "followers")?;
        let told = table("followers", &["name", "state", "attempts", "event_id", "error"]);
        let head = ["FOLLOWER", "DELIVERY", "ATTEMPTS", "EVENT_ID", "ERROR"];
        write!(out, "{}", aligned("  ", &head, told))?;
    }
    writeln!(out, "history")?;
    let passed = table("history", &["state", "at", "by", "reason"]);
    write!(out, "{}", aligned("  ", &["STATE", "AT", "BY", "REASON"], passed))?;
    Ok(())
}

/// The place of a leg: a user of the branch's own account, or a place with its name.
fn place(place: &Value) -> String {
    let Some(account) = place.get("account") else { return text(place) };
    let frozen = place.get("purpose").map(|purpose| format!(" frozen {}", text(purpose)));
    let special = if place.get("special").is_some() { " special" } else { "" };
    let user = text(&place["user"]);
    format!("{} {user}{}{special}", text(account), frozen.unwrap_or_default())
}

/// The name and the state, in one line.
fn stands(transaction: &Value) -> String {
    let of = |key: &str| text(&transaction[key]);
    format!("{}: {}", of("transaction_id"), of("state"))
}

fn abandon(
    args: &BranchAbandonArgs,
    clock: &impl Clock,
    out: &mut impl Write,
) -> anyhow::Result<()> {
    let BranchAbandonArgs { branch, did, operator } = args;
    let mut body = json!({
        "participant": branch.participant, "round": branch.round, "reason": operator.reason,
    });
    if let Some(did) = did {
        body["did"] = json!(did.name());
    }
    let path = format!("transactions/{}/abandon", branch.transaction);
    let transaction = Ops::new(&operator.access, clock)?.post("abandon", &path, &body)?;
    refuse_pending(&transaction, operator.access.format, out)?;
    match operator.access.format {
        Format::Json => writeln!(out, "{transaction}")?,
        Format::Text => writeln!(out, "abandoned: {}", stands(&transaction))?,
    }
    Ok(())
}

fn grants(access: &AccessArgs, clock: &impl Clock, out: &mut impl Write) -> anyhow::Result<()> {
    let answer = Ops::new(access, clock)?.get("grants", "transactions/grants")?;
    let grants = rows(&answer, "grants");
    let row = |grant: &Value| ["role", "owner", "at"].map(|key| text(&grant[key])).to_vec();
    let table = (&["ROLE", "OWNER", "SINCE"][..], row);
    write_rows(grants, access.format, "no grants", table, out)?;
    Ok(())
}

fn grant(
    args: &TransactionGrantArgs,
    clock: &impl Clock,
    granted: bool,
    out: &mut impl Write,
) -> anyhow::Result<()> {
    let TransactionGrantArgs { role, owner, operator } = args;
    let (what, path) = match granted {
        true => ("grant", "transactions/grants"),
        false => ("revoke", "transactions/grants/revoke"),
    };
    let body = json!({"role": role, "owner": owner, "reason": operator.reason});
    let answer = Ops::new(&operator.access, clock)?.post(what, path, &body)?;
    match operator.access.format {
        Format::Json => writeln!(out, "{answer}")?,
        Format::Text if granted => writeln!(out, "{role} may commit transactions of {owner}")?,
        Format::Text => writeln!(out, "{role} may no longer commit transactions of {owner}")?,
    }
    Ok(())
}
