//! `ubscore hold`: finds holds of both stores, releases those of closed venues, and freezes and
//! unfreezes money on both accounts.

use std::io::Write;

use serde_json::{Value, json};

use super::approval::refuse_pending;
use super::listing::{note_cursor, path, rows};
use super::ops::{Ops, Refused};
use super::table::{aligned, text};
use crate::cli::{
    FreezeArgs, FreezesArgs, HoldCommand, HoldListArgs, HoldReleaseArgs, HoldShowArgs,
};
use crate::clock::Clock;
use crate::exit::Exit;
use crate::format::Format;
use domain::code::Code;

/// Runs one of the commands. Results go to `out`, notes to `notes`.
///
/// # Errors
/// The configuration is wrong, the service cannot be reached, or it refuses.
pub fn run(
    command: &HoldCommand,
    clock: &impl Clock,
    out: &mut impl Write,
    notes: &mut impl Write,
) -> anyhow::Result<Exit> {
    match command {
        HoldCommand::List(args) => list(args, clock, out, notes)?,
        HoldCommand::Show(args) => show(args, clock, out)?,
        HoldCommand::Release(args) => release(args, clock, out)?,
        HoldCommand::Freeze(args) => freeze(args, "freeze", clock, out)?,
        HoldCommand::Unfreeze(args) => freeze(args, "unfreeze", clock, out)?,
        HoldCommand::Freezes(args) => freezes(args, clock, out, notes)?,
    }
    Ok(Exit::Done)
}

fn list(
    args: &HoldListArgs,
    clock: &impl Clock,
    out: &mut impl Write,
    notes: &mut impl Write,
) -> anyhow::Result<()> {
    let [limit, cursor] = args.page.parameters();
    let parameters = [
        ("account", args.account.as_ref().map(|account| account.to_uppercase())),
        ("user", args.user.map(|user| user.to_string())),
        ("asset", args.asset.clone()),
        ("venue", args.venue.map(|venue| venue.to_string())),
        ("purpose", args.purpose.map(|purpose| purpose.to_string())),
        ("older_ms", args.older.map(|older| older.as_millis().to_string())),
        limit,
        cursor,
    ];
    let answer = Ops::new(&args.access, clock)?.get("list", &path("holds", parameters))?;
    let holds = rows(&answer, "holds");
    let balances = rows(&answer, "balances");
    if args.access.format == Format::Json {
        for line in holds.iter().chain(balances) {
            writeln!(out, "{line}")?;
        }
    } else {
        match holds {
            [] => writeln!(out, "no holds")?,
            holds => write_holds(holds, out)?,
        }
        if !balances.is_empty() {
            let keys = ["asset", "available", "held", "exact"];
            let row = |balance: &Value| keys.iter().map(|key| text(&balance[*key])).collect();
            let head = ["SPOT", "AVAILABLE", "HELD", "ADDS UP"];
            write!(out, "\n{}", aligned("", &head, balances.iter().map(row)))?;
        }
    }
    note_cursor(&answer, notes)
}

fn freeze(
    args: &FreezeArgs,
    word: &'static str,
    clock: &impl Clock,
    out: &mut impl Write,
) -> anyhow::Result<()> {
    let FreezeArgs { user, account, asset, amount, purpose, idem_key, operator } = args;
    let account = account.name();
    let body = json!({
        "account": account, "user_id": user, "asset": asset, "amount": amount,
        "purpose": purpose, "idem_key": idem_key, "reason": operator.reason,
    });
    let answer = Ops::new(&operator.access, clock)?.post(word, &format!("{word}s"), &body)?;
    refuse_pending(&answer, operator.access.format, out)?;
    if operator.access.format == Format::Json {
        return Ok(writeln!(out, "{answer}")?);
    }
    let (id, state) = (text(&answer["transaction_id"]), text(&answer["state"]));
    let what = format!("{amount} {asset} of user {user} on {account} for {purpose}");
    Ok(writeln!(out, "{word}: {what}, transaction {id} {state}")?)
}

fn freezes(
    args: &FreezesArgs,
    clock: &impl Clock,
    out: &mut impl Write,
    notes: &mut impl Write,
) -> anyhow::Result<()> {
    let parameters = [
        ("user", args.user.map(|user| user.to_string())),
        ("asset", args.asset.clone()),
        ("purpose", args.purpose.clone()),
    ];
    let path = path("freezes", parameters);
    let answer = Ops::new(&args.access, clock)?.get("list", &path)?;
    let freezes = rows(&answer, "freezes");
    if args.access.format == Format::Json {
        for line in freezes {
            writeln!(out, "{line}")?;
        }
    } else if freezes.is_empty() {
        writeln!(out, "no freezes")?;
    } else {
        let keys = ["user_id", "asset", "purpose", "amount"];
        let row = |freeze: &Value| keys.iter().map(|key| text(&freeze[*key])).collect();
        let head = ["USER", "ASSET", "PURPOSE", "AMOUNT"];
        write!(out, "{}", aligned("", &head, freezes.iter().map(row)))?;
    }
    if answer["more"] == json!(true) {
        writeln!(notes, "there may be more: name a user, an asset or a purpose")?;
    }
    Ok(())
}

fn write_holds(holds: &[Value], out: &mut impl Write) -> anyhow::Result<()> {
    let head =
        ["HOLD", "ACCOUNT", "PURPOSE", "USER", "ASSET", "AMOUNT", "REFERENCE", "SINCE", "RECORD"];
    let keys =
        ["id", "account", "purpose", "user_id", "asset", "amount", "reference", "at", "sequence"];
    let row = |hold: &Value| keys.iter().map(|key| text(&hold[*key])).collect();
    Ok(write!(out, "{}", aligned("", &head, holds.iter().map(row)))?)
}

fn show(args: &HoldShowArgs, clock: &impl Clock, out: &mut impl Write) -> anyhow::Result<()> {
    let hold = Ops::new(&args.access, clock)?.get("show", &format!("holds/{}", args.id))?;
    match args.access.format {
        Format::Json => writeln!(out, "{hold}")?,
        Format::Text => write_holds(std::slice::from_ref(&hold), out)?,
    }
    Ok(())
}

fn release(args: &HoldReleaseArgs, clock: &impl Clock, out: &mut impl Write) -> anyhow::Result<()> {
    let (access, body) = (&args.operator.access, json!({"reason": args.operator.reason}));
    let ops = Ops::new(access, clock)?;
    let one = |id: &str| ops.post("release", &format!("holds/{id}/release"), &body);
    let Some(venue) = args.venue else {
        let released = one(args.id.as_deref().expect("clap requires one of both"))?;
        refuse_pending(&released, access.format, out)?;
        return tell(&released, access.format, out);
    };
    let (mut cursor, mut pending) = (String::new(), None);
    loop {
        let answer = ops.get("list", &format!("holds?venue={venue}&limit=1000{cursor}"))?;
        for hold in rows(&answer, "holds") {
            match one(&text(&hold["id"])) {
                Ok(released) => match refuse_pending(&released, access.format, out) {
                    Ok(()) => tell(&released, access.format, out)?,
                    Err(waits) => pending = Some(waits),
                },
                Err(error) if is_gone(&error) => {}
                Err(error) => return Err(error),
            }
        }
        match answer["next_cursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => return pending.map_or(Ok(()), Err),
        }
    }
}

/// Whether another operator has released it meanwhile.
fn is_gone(error: &anyhow::Error) -> bool {
    let refused = error.downcast_ref::<Refused>();
    refused.is_some_and(|refused| refused.code == Code::HoldNotFound.name())
}

fn tell(released: &Value, format: Format, out: &mut impl Write) -> anyhow::Result<()> {
    if format == Format::Json {
        return Ok(writeln!(out, "{released}")?);
    }
    let of = |key: &str| text(&released[key]);
    let (id, amount, asset, user) = (of("id"), of("amount"), of("asset"), of("user_id"));
    Ok(writeln!(out, "released: {id}, {amount} {asset} to user {user}")?)
}
