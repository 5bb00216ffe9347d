//! `ubscore account` and `ubscore asset`: what may move, and how much of it.

use std::io::Write;

use serde_json::{Map, Value, json};

use super::ops::Ops;
use crate::account::{AccountStatus, AccountType};
use crate::cli::{AccountCommand, AssetCommand};
use crate::clock::Clock;
use crate::config::format::Format;

/// Sets the status of a user's accounts, and writes to `out` what each is then.
///
/// # Errors
/// The configuration is wrong, the service cannot be reached, or it refuses; what was written before is done.
pub fn run(
    command: &AccountCommand,
    clock: &impl Clock,
    out: &mut impl Write,
) -> anyhow::Result<()> {
    let (args, status) = match command {
        AccountCommand::Freeze(args) => (args, AccountStatus::Frozen),
        AccountCommand::Unfreeze(args) => (args, AccountStatus::Active),
        AccountCommand::Disable(args) => (args, AccountStatus::Disabled),
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
    Ok(())
}

/// Changes an asset, and writes to `out` what it is then.
///
/// # Errors
/// The configuration is wrong, the service cannot be reached, or it refuses.
pub fn asset(
    command: &AssetCommand,
    clock: &impl Clock,
    out: &mut impl Write,
) -> anyhow::Result<()> {
    let AssetCommand::Set(args) = command;
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
    if args.operator.access.format == Format::Json {
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
