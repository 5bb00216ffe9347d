//! `ubscore account` and `ubscore asset`: the statuses and limits of accounts and assets.

use std::io::Write;

use serde_json::{Map, Value, json};

use super::approval::refuse_pending;
use super::listing::rows;
use super::ops::Ops;
use super::table::{aligned, text};
use crate::cli::{
    AccessArgs, AccountCommand, AssetAddArgs, AssetCommand, AssetSetArgs, SpecialArgs,
};
use crate::clock::Clock;
use crate::exit::Exit;
use crate::format::Format;
use domain::account::{AccountStatus, AccountType};

/// Sets the status of a user's accounts, and writes the new statuses to `out`.
///
/// # Errors
/// The configuration is wrong, the service cannot be reached, or it refuses. The lines written
/// before are done.
pub fn run(
    command: &AccountCommand,
    clock: &impl Clock,
    out: &mut impl Write,
) -> anyhow::Result<Exit> {
    let (args, status) = match command {
        AccountCommand::Freeze(args) => (args, AccountStatus::Frozen),
        AccountCommand::Unfreeze(args) => (args, AccountStatus::Active),
        AccountCommand::Disable(args) => (args, AccountStatus::Disabled),
        AccountCommand::Special(args) => return special(args, clock, out),
        AccountCommand::Specials(access) => return specials(access, clock, out),
    };
    let ops = Ops::new(&args.operator.access, clock)?;
    let (name, reason) = (status.name(), &args.operator.reason);
    let body = json!({"status": name, "reason": reason, "create": args.create});
    for account in [AccountType::Funding, AccountType::Spot] {
        if args.account.is_some_and(|only| only != account) {
            continue;
        }
        let name = account.name();
        let path = format!("accounts/{}/{name}/status", args.user_id);
        let answer = ops.put(&format!("{name} of {}", args.user_id), &path, &body)?;
        match args.operator.access.format {
            Format::Json => writeln!(out, "{answer}")?,
            Format::Text => writeln!(out, "{name} of {}: {}", args.user_id, status.name())?,
        }
    }
    Ok(Exit::Done)
}

fn special(args: &SpecialArgs, clock: &impl Clock, out: &mut impl Write) -> anyhow::Result<Exit> {
    let SpecialArgs { user_id, asset, off, operator } = args;
    let (special, reason) = (!off, &operator.reason);
    let body = json!({
        "user_id": user_id, "asset": asset, "special": special, "reason": reason,
    });
    let ops = Ops::new(&operator.access, clock)?;
    let answer = ops.post(&format!("{asset} of {user_id}"), "specials", &body)?;
    refuse_pending(&answer, operator.access.format, out)?;
    match operator.access.format {
        Format::Json => writeln!(out, "{answer}")?,
        Format::Text => {
            let word = if special { "special" } else { "not special" };
            writeln!(out, "{asset} of {user_id} on FUNDING: {word}")?;
        }
    }
    Ok(Exit::Done)
}

fn specials(access: &AccessArgs, clock: &impl Clock, out: &mut impl Write) -> anyhow::Result<Exit> {
    let answer = Ops::new(access, clock)?.get("list", "specials")?;
    let specials = rows(&answer, "specials");
    if access.format == Format::Json {
        writeln!(out, "{answer}")?;
    } else if specials.is_empty() {
        writeln!(out, "no special accounts")?;
    } else {
        let keys = ["user_id", "asset", "available"];
        let row = |special: &Value| keys.iter().map(|key| text(&special[*key])).collect();
        write!(out, "{}", aligned("", &["USER", "ASSET", "AVAILABLE"], specials.iter().map(row)))?;
    }
    Ok(Exit::Done)
}

/// Adds, changes or lists assets, and writes their new state to `out`.
///
/// # Errors
/// The configuration is wrong, the service cannot be reached, or it refuses.
pub fn asset(
    command: &AssetCommand,
    clock: &impl Clock,
    out: &mut impl Write,
) -> anyhow::Result<Exit> {
    match command {
        AssetCommand::Add(args) => add(args, clock, out)?,
        AssetCommand::Set(args) => set(args, clock, out)?,
        AssetCommand::List(access) => list(access, clock, out)?,
    }
    Ok(Exit::Done)
}

fn add(args: &AssetAddArgs, clock: &impl Clock, out: &mut impl Write) -> anyhow::Result<()> {
    let mut body = json!({
        "symbol": args.symbol, "precision": args.precision, "min": args.min, "max": args.max,
        "transfer_enabled": args.transfer_enabled, "reason": args.operator.reason,
    });
    if let Some(id) = args.id {
        body["id"] = json!(id);
    }
    let asset = Ops::new(&args.operator.access, clock)?.post(&args.symbol, "assets", &body)?;
    tell(&asset, args.operator.access.format, out)
}

fn list(access: &AccessArgs, clock: &impl Clock, out: &mut impl Write) -> anyhow::Result<()> {
    let answer = Ops::new(access, clock)?.get("list", "assets")?;
    if access.format == Format::Json {
        return Ok(writeln!(out, "{answer}")?);
    }
    let assets = answer["assets"].as_array().map_or(&[][..], Vec::as_slice);
    if assets.is_empty() {
        writeln!(
            out,
            "there is no asset; next: ubscore asset add SYMBOL --precision P --min A --max B --reason TEXT"
        )?;
    } else {
        let keys = ["id", "symbol", "precision", "status", "transfer_enabled", "min", "max"];
        let head = ["ID", "SYMBOL", "DECIMALS", "STATUS", "TRANSFERS", "MIN", "MAX"];
        let row = |asset: &Value| keys.iter().map(|key| text(&asset[*key])).collect();
        write!(out, "{}", aligned("", &head, assets.iter().map(row)))?;
    }
    for row in answer["unreadable"].as_array().into_iter().flatten() {
        writeln!(out, "unreadable: {}", text(row))?;
    }
    Ok(())
}

fn set(args: &AssetSetArgs, clock: &impl Clock, out: &mut impl Write) -> anyhow::Result<()> {
    let mut body = Map::new();
    let status = args.status.map(|status| status.name());
    for (key, value) in [
        ("status", status.map(Value::from)),
        ("transfer_enabled", args.transfer_enabled.map(Value::from)),
        ("min", args.min.clone().map(Value::from)),
        ("max", args.max.clone().map(Value::from)),
        ("reason", Some(Value::from(args.operator.reason.clone()))),
    ] {
        body.extend(value.map(|value| (key.to_owned(), value)));
    }
    let path = format!("assets/{}", args.symbol);
    let ops = Ops::new(&args.operator.access, clock)?;
    let asset = ops.put(&args.symbol, &path, &Value::Object(body))?;
    tell(&asset, args.operator.access.format, out)
}

fn tell(asset: &Value, format: Format, out: &mut impl Write) -> anyhow::Result<()> {
    if format == Format::Json {
        return Ok(writeln!(out, "{asset}")?);
    }
    let of = |key: &str| asset[key].as_str().unwrap_or("").to_owned();
    let (symbol, status, min, max) = (of("symbol"), of("status"), of("min"), of("max"));
    let enabled = match asset["transfer_enabled"] == json!(true) {
        true => "enabled",
        false => "not enabled",
    };
    Ok(writeln!(out, "{symbol}: {status}, transfers {enabled}, {min} to {max} at a time")?)
}
