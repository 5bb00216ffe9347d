//! `ubscore venue`: registers, lists, opens and closes venues.

use std::io::Write;

use serde_json::{Value, json};

use super::ops::Ops;
use super::table::{aligned, text};
use crate::cli::{AccessArgs, VenueAddArgs, VenueArgs, VenueCommand};
use crate::clock::Clock;
use crate::exit::Exit;
use crate::format::Format;

/// Runs one of the commands, and writes the result to `out`.
///
/// # Errors
/// The configuration is wrong, the service cannot be reached, or it refuses.
pub fn run(
    command: &VenueCommand,
    clock: &impl Clock,
    out: &mut impl Write,
) -> anyhow::Result<Exit> {
    match command {
        VenueCommand::List(access) => list(access, clock, out)?,
        VenueCommand::Add(args) => add(args, clock, out)?,
        VenueCommand::Open(args) => change(args, clock, "open", out)?,
        VenueCommand::Close(args) => change(args, clock, "close", out)?,
    }
    Ok(Exit::Done)
}

fn list(access: &AccessArgs, clock: &impl Clock, out: &mut impl Write) -> anyhow::Result<()> {
    let answer = Ops::new(access, clock)?.get("list", "venues")?;
    let venues = answer["venues"].as_array().map_or(&[][..], Vec::as_slice);
    match access.format {
        Format::Json => venues.iter().try_for_each(|venue| writeln!(out, "{venue}"))?,
        Format::Text if venues.is_empty() => {
            writeln!(out, "there is no venue; next: ubscore venue add ID NAME --reason TEXT")?;
        }
        Format::Text => {
            let head =
                ["VENUE", "NAME", "STATE", "EPOCH", "NUMBER", "UNACKNOWLEDGED", "OLDEST HOLD"];
            let row = |venue: &Value| {
                let state = if venue["closed"] == json!(true) { "closed" } else { "open" };
                let keys = ["epoch", "number", "unacknowledged", "oldest_hold"];
                let cells = [text(&venue["venue"]), text(&venue["name"]), state.to_owned()];
                cells.into_iter().chain(keys.map(|key| text(&venue[key]))).collect()
            };
            write!(out, "{}", aligned("", &head, venues.iter().map(row)))?;
        }
    }
    Ok(())
}

fn add(args: &VenueAddArgs, clock: &impl Clock, out: &mut impl Write) -> anyhow::Result<()> {
    let mut body = json!({"name": args.name, "reason": args.operator.reason});
    if args.posts {
        body["posts"] = json!(true);
    }
    let access = &args.operator.access;
    let answer = Ops::new(access, clock)?.put("add", &format!("venues/{}", args.id), &body)?;
    tell(&answer, access.format, out)
}

fn change(
    args: &VenueArgs,
    clock: &impl Clock,
    action: &str,
    out: &mut impl Write,
) -> anyhow::Result<()> {
    let (access, body) = (&args.operator.access, json!({"reason": args.operator.reason}));
    let path = format!("venues/{}/{action}", args.id);
    let answer = Ops::new(access, clock)?.post(action, &path, &body)?;
    tell(&answer, access.format, out)
}

fn tell(venue: &Value, format: Format, out: &mut impl Write) -> anyhow::Result<()> {
    if format == Format::Json {
        return Ok(writeln!(out, "{venue}")?);
    }
    let id = text(&venue["venue"]);
    let state = match venue["closed"] == json!(true) {
        true => format!("closed; its holds stay, next: ubscore hold list --venue {id}"),
        false => "open".to_owned(),
    };
    Ok(writeln!(out, "venue {id}: {state}")?)
}
