//! `ubscore webhook`: finds events that an endpoint did not accept, and delivers them again.

use std::io::Write;

use serde_json::{Value, json};

use super::listing::{note_cursor, path, rows, write_rows};
use super::ops::Ops;
use super::table::text;
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
    let path = path("webhooks/dead", args.page.parameters());
    let answer = Ops::new(&args.access, clock)?.get("list", &path)?;
    let head = ["EVENT_ID", "ENDPOINT", "ABOUT", "STATE", "AT", "TRIES", "DIED AT", "WHY"];
    let row = |letter: &Value| {
        let abouts = ["req_id", "transaction_id", "recharge_id"];
        let about = abouts.into_iter().find(|about| letter[about].is_string());
        let about = about.unwrap_or("req_id");
        let keys = ["event_id", "endpoint", about, "state", "at", "attempts", "died_at", "error"];
        keys.map(|key| text(&letter[key])).to_vec()
    };
    let letters = rows(&answer, "dead");
    write_rows(letters, args.access.format, "no dead letters", (&head, row), out)?;
    note_cursor(&answer, notes)
}
