//! `ubscore tx`: the chain transactions of the transaction manager.

use std::io::Write;

use anyhow::Context;
use chain::payload::address_text;
use serde_json::{Value, json};

use super::signer::tell;
use crate::cli::{
    ChainTxArgs, ChainTxAuditArgs, ChainTxCommand, ChainTxFillArgs, ChainTxListArgs,
    ChainTxResolveArgs,
};
use crate::clock::Clock;
use crate::commands::listing::{note_cursor, path, rows, write_rows};
use crate::commands::ops::Ops;
use crate::commands::table::{aligned, text};
use crate::exit::Exit;
use crate::format::Format;

/// The columns of the list.
const HEAD: [&str; 7] = ["TX", "SIGNER", "NONCE", "STATE", "SUB", "REQUEST", "HASH"];
const KEYS: [&str; 7] = ["txId", "signer", "nonce", "state", "subState", "requestId", "txHash"];
/// The columns of differences; the mined hashes are the last one.
const FINDING_HEAD: [&str; 6] = ["NONCE", "FINDING", "TX", "STATE", "CODE", "MINED"];
const FINDING_KEYS: [&str; 5] = ["nonce", "finding", "txId", "state", "code"];
/// The columns of attempts.
const ATTEMPT_HEAD: [&str; 5] = ["ATTEMPT", "KIND", "MAX FEE", "CLASS", "HASH"];
const ATTEMPT_KEYS: [&str; 5] = ["attempt", "kind", "maxFeePerGas", "class", "hash"];
/// The columns of the history.
const PASSAGE_HEAD: [&str; 5] = ["AT", "STATE", "SUB", "NODE", "TOKEN"];
const PASSAGE_KEYS: [&str; 5] = ["at", "to", "subState", "node", "token"];

/// Runs one of the commands. `notes`: where the cursor of the next page is printed.
///
/// # Errors
/// The node cannot be asked, or it refuses.
pub fn run(
    command: &ChainTxCommand,
    clock: &impl Clock,
    out: &mut impl Write,
    notes: &mut impl Write,
) -> anyhow::Result<Exit> {
    match command {
        ChainTxCommand::List(args) => list(args, clock, out, notes)?,
        ChainTxCommand::Show(args) => {
            let path = format!("tx/{}", args.tx_id);
            let answer = Ops::of_node(&args.access, clock)?.get("show", &path)?;
            match args.access.format {
                Format::Json => writeln!(out, "{answer}")?,
                Format::Text => show(&answer, out)?,
            }
        }
        ChainTxCommand::Audit(args) => return audit(args, clock, out),
        ChainTxCommand::Resubmit(args) => command_of(args, clock, "resubmit", out)?,
        ChainTxCommand::Cancel(args) => command_of(args, clock, "cancel", out)?,
        ChainTxCommand::FillGap(args) => fill(args, clock, out)?,
        ChainTxCommand::Resolve(args) => resolve(args, clock, out)?,
    }
    Ok(Exit::Done)
}

fn list(
    args: &ChainTxListArgs,
    clock: &impl Clock,
    out: &mut impl Write,
    notes: &mut impl Write,
) -> anyhow::Result<()> {
    let parameters = [
        ("signer", args.signer.as_ref().map(address_text)),
        ("state", args.state.clone()),
        ("limit", Some(args.limit.to_string())),
        ("cursor", args.cursor.map(|cursor| cursor.to_string())),
    ];
    let answer = Ops::of_node(&args.access, clock)?.get("list", &path("tx", parameters))?;
    let row = |tx: &Value| KEYS.map(|key| text(&tx[key])).to_vec();
    let found = rows(&answer, "transactions");
    write_rows(found, args.access.format, "no transactions", (&HEAD, row), out)?;
    note_cursor(&answer, notes)
}

/// Compares all nonces, part by part. [`Exit::Failed`]: there is a difference.
fn audit(
    args: &ChainTxAuditArgs,
    clock: &impl Clock,
    out: &mut impl Write,
) -> anyhow::Result<Exit> {
    let ops = Ops::of_node(&args.access, clock)?;
    let signer = address_text(&args.signer);
    let to = args.to.map(|to| to.to_string());
    let (mut checked, mut jumped, mut differences) = (0, Vec::new(), Vec::new());
    let mut from = Some(u64::from(args.from));
    while let Some(nonce) = from {
        let parameters = [("from", Some(nonce.to_string())), ("to", to.clone())];
        let path = path(&format!("signers/{signer}/audit"), parameters);
        let answer = ops.get("audit", &path)?;
        checked += answer["checked"].as_u64().context("no number of nonces in the answer")?;
        jumped.extend_from_slice(rows(&answer, "jumped"));
        differences.extend_from_slice(rows(&answer, "differences"));
        from = answer["next"].as_u64();
    }
    if args.access.format == Format::Json {
        let body = json!({
            "signer": signer, "checked": checked, "jumped": jumped, "differences": differences,
        });
        writeln!(out, "{body}")?;
    } else {
        let cells = |row: &Value| {
            let list = |key: &str| rows(row, key).iter().map(text).collect::<Vec<_>>().join(",");
            let mut cells = FINDING_KEYS.map(|key| text(&row[key])).to_vec();
            cells.push(list("mined"));
            cells
        };
        if !differences.is_empty() {
            write!(out, "{}", aligned("", &FINDING_HEAD, differences.iter().map(cells)))?;
        }
        let (count, over) = (differences.len(), jumped.len());
        writeln!(
            out,
            "{signer}: {checked} nonces, {count} differences, {over} without a row by an adoption or a jump"
        )?;
    }
    Ok(if differences.is_empty() { Exit::Done } else { Exit::Failed })
}

fn show(tx: &Value, out: &mut impl Write) -> anyhow::Result<()> {
    for (key, name) in KEYS.iter().zip(HEAD) {
        writeln!(out, "{name:<9} {}", text(&tx[*key]))?;
    }
    let payload = &tx["payload"];
    writeln!(out, "{:<9} {}, {} wei", "TO", text(&payload["to"]), text(&payload["value"]))?;
    if let Some(token) = payload["token"].as_object() {
        writeln!(out, "{:<9} {} of {}", "TOKEN", text(&token["amount"]), text(&token["contract"]))?;
    }
    let receipt = &tx["receipt"];
    if !receipt.is_null() {
        let (block, proof) = (text(&receipt["blockNumber"]), text(&receipt["proof"]));
        let blocks = rows(tx, "confirmations").len();
        writeln!(out, "{:<9} block {block}, {proof}, {blocks} blocks seen", "RECEIPT")?;
    }
    for (what, head, keys) in
        [("attempts", &ATTEMPT_HEAD, &ATTEMPT_KEYS), ("history", &PASSAGE_HEAD, &PASSAGE_KEYS)]
    {
        let cells = |row: &Value| keys.map(|key| text(&row[key])).to_vec();
        let found = rows(tx, what);
        if !found.is_empty() {
            write!(out, "\n{}", aligned("", head, found.iter().map(cells)))?;
        }
    }
    Ok(())
}

fn command_of(
    args: &ChainTxArgs,
    clock: &impl Clock,
    action: &str,
    out: &mut impl Write,
) -> anyhow::Result<()> {
    let body = json!({"reason": args.operator.reason});
    let path = format!("tx/{}/{action}", args.tx_id);
    let answer = Ops::of_node(&args.operator.access, clock)?.post(action, &path, &body)?;
    tell(&args.operator, &answer, &stands(action, &answer), out)
}

/// Fills the nonce of a transaction, or one of a signer that no row has.
fn fill(args: &ChainTxFillArgs, clock: &impl Clock, out: &mut impl Write) -> anyhow::Result<()> {
    let ops = Ops::of_node(&args.operator.access, clock)?;
    let reason = &args.operator.reason;
    let (path, body) = match (&args.tx_id, &args.signer) {
        (Some(id), _) => (format!("tx/{id}/fill"), json!({"reason": reason})),
        (None, Some(signer)) => {
            let path = format!("signers/{}/fill", address_text(signer));
            (path, json!({"reason": reason, "nonce": args.nonce}))
        }
        (None, None) => anyhow::bail!("name a transaction, or a signer and a nonce"),
    };
    let answer = ops.post("fill", &path, &body)?;
    tell(&args.operator, &answer, &stands("fill", &answer), out)
}

fn resolve(
    args: &ChainTxResolveArgs,
    clock: &impl Clock,
    out: &mut impl Write,
) -> anyhow::Result<()> {
    let mut body = json!({"reason": args.operator.reason});
    match args.hash {
        Some(hash) => body["hash"] = json!(hash.to_string()),
        None => body["paid"] = json!(args.paid),
    }
    let ops = Ops::of_node(&args.operator.access, clock)?;
    let ops = ops.approved_by(args.approver_token_file.as_deref())?;
    let answer = ops.post("resolve", &format!("tx/{}/resolve", args.tx_id), &body)?;
    tell(&args.operator, &answer, &stands("resolve", &answer), out)
}

/// The command and the state of its transaction, in one line.
fn stands(action: &str, answer: &Value) -> String {
    let (command, tx) = (text(&answer["command"]), &answer["transaction"]);
    match answer["state"] == json!("DONE") {
        true if tx.is_null() => format!("{action}: done, command {command}"),
        true => format!("{action}: done, command {command}; it is {} now", text(&tx["state"])),
        false => format!("{action}: command {command} waits for the owner of the signer"),
    }
}
