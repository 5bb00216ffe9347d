//! `ubscore webhook`: finds events that an endpoint did not accept, and delivers them again.

use std::fmt::Write as _;
use std::io::Write;

use serde_json::{Value, json};

use super::ops::Ops;
use super::table::{aligned, text};
use crate::cli::{WebhookCommand, WebhookListArgs};
use crate::clock::Clock;
use crate::exit::Exit;
use crate::format::Format;

/// Runs one of the commands. Results go to `out`, notes to `notes`.
///
/// # Errors
/// The configuration is wrong, the service cannot be reached, or it refuses.
pub fn run(
    command: &WebhookCommand,
    clock: &impl Clock,
    out: &mut impl Write,
    notes: &mut impl Write,
) -> anyhow::Result<Exit> {
    match command {
        WebhookCommand::List(args) => list(args, clock, out, notes)?,
        WebhookCommand::Resend(args) => {
            let path = format!("webhooks/{}/resend", args.event_id);
            let body = json!({"reason": args.operator.reason});
            let access = &args.operator.access;
            let answer = Ops::new(access, clock)?.post("resend", &path, &body)?;
            match access.format {
                Format::Json => writeln!(out, "{answer}")?,
                Format::Text => writeln!(out, "due now: event {}", args.event_id)?,
            }
        }
    }
    Ok(Exit::Done)
}

fn list(
    args: &WebhookListArgs,
    clock: &impl Clock,
    out: &mut impl Write,
    notes: &mut impl Write,
) -> anyhow::Result<()> {
    let mut path = "webhooks/dead?".to_owned();
    if let Some(limit) = args.limit {
        write!(path, "&limit={limit}")?;
    }
    if let Some(cursor) = &args.cursor {
        write!(path, "&cursor={cursor}")?;
    }
    let answer = Ops::new(&args.access, clock)?.get("list", &path)?;
    let letters = answer["dead"].as_array().map_or(&[][..], Vec::as_slice);
    match args.access.format {
        Format::Json => {
            for letter in letters {
                writeln!(out, "{letter}")?;
            }
        }
        Format::Text if letters.is_empty() => writeln!(out, "no dead letters")?,
        Format::Text => {
            let head = ["EVENT_ID", "REQ_ID", "STATE", "AT", "TRIES", "DIED AT", "WHY"];
            let keys = ["event_id", "req_id", "state", "at", "attempts", "died_at", "error"];
            let row = |letter: &Value| keys.iter().map(|key| text(&letter[*key])).collect();
            write!(out, "{}", aligned("", &head, letters.iter().map(row)))?;
        }
    }
    if let Some(cursor) = answer["next_cursor"].as_str() {
        writeln!(notes, "there may be more: --cursor {cursor}")?;
    }
    Ok(())
}
