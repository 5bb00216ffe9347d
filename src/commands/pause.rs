//! `ubscore pause`, `unpause` and `pauses`: new transfers are refused until an operator lifts the
//! pause.

use std::io::Write;

use serde_json::{Map, Value, json};

use super::ops::Ops;
use super::table::{aligned, text};
use crate::cli::{AccessArgs, PauseArgs};
use crate::clock::Clock;
use crate::exit::Exit;
use crate::format::Format;
use domain::transfer::Direction;

/// Sets or lifts a pause, and writes the result to `out`.
///
/// # Errors
/// The configuration is wrong, the service cannot be reached, or it refuses.
pub fn change(
    args: &PauseArgs,
    paused: bool,
    clock: &impl Clock,
    out: &mut impl Write,
) -> anyhow::Result<Exit> {
    let mut body = Map::new();
    for (key, value) in [
        ("direction", args.direction.map(Direction::wire_name).map(Value::from)),
        ("asset", args.asset.clone().map(Value::from)),
        ("paused", Some(Value::from(paused))),
        ("reason", Some(Value::from(args.operator.reason.clone()))),
    ] {
        body.extend(value.map(|value| (key.to_owned(), value)));
    }
    let (access, what) = (&args.operator.access, if paused { "pause" } else { "unpause" });
    let answer = Ops::new(access, clock)?.put(what, "pauses", &Value::Object(body))?;
    if access.format == Format::Json {
        writeln!(out, "{answer}")?;
        return Ok(Exit::Done);
    }
    let direction = match &answer["direction"] {
        Value::Null => "both directions".to_owned(),
        direction => text(direction),
    };
    let asset = match &answer["asset"] {
        Value::Null => "all assets".to_owned(),
        asset => text(asset),
    };
    match paused {
        true => {
            writeln!(out, "Paused: {direction}, {asset}.")?;
            let quiet = match answer["quiet"] == json!(true) {
                true => "New transfers are refused from now on. Accepted ones continue.",
                false => "A request from before the pause may still be accepted.",
            };
            writeln!(out, "  {quiet}")?;
        }
        false if answer["was_paused"] == json!(false) => writeln!(out, "No such pause.")?,
        false => writeln!(out, "Lifted: {direction}, {asset}.")?,
    }
    write_all(&answer, out)?;
    Ok(Exit::Done)
}

/// Writes the pauses to `out`.
///
/// # Errors
/// As [`change`].
pub fn list(access: &AccessArgs, clock: &impl Clock, out: &mut impl Write) -> anyhow::Result<Exit> {
    let answer = Ops::new(access, clock)?.get("pauses", "pauses")?;
    match access.format {
        Format::Text => write_all(&answer, out)?,
        Format::Json => pauses(&answer).iter().try_for_each(|pause| writeln!(out, "{pause}"))?,
    }
    Ok(Exit::Done)
}

fn pauses(answer: &Value) -> &[Value] {
    answer["pauses"].as_array().map_or(&[], Vec::as_slice)
}

fn write_all(answer: &Value, out: &mut impl Write) -> anyhow::Result<()> {
    let row = |pause: &Value| {
        vec![
            every(&pause["direction"]),
            every(&pause["asset"]),
            text(&pause["at"]),
            text(&pause["actor"]),
            text(&pause["reason"]),
        ]
    };
    match pauses(answer) {
        [] => writeln!(out, "nothing is paused")?,
        all => {
            let head = ["DIRECTION", "ASSET", "SINCE", "BY", "REASON"];
            write!(out, "{}", aligned("", &head, all.iter().map(row)))?;
        }
    }
    Ok(())
}

/// A part of a pause's scope; \"every\" if it names none.
fn every(value: &Value) -> String {
    if value.is_null() { "every".to_owned() } else { text(value) }
}
