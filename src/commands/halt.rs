//! `ubscore halt` and `ubscore resume`: the operators' routes from the command line.

use std::io::Write;

use serde_json::{Value, json};

use super::approval::refuse_pending;
use super::ops::Ops;
use crate::cli::OperatorArgs;
use crate::clock::Clock;
use crate::config::format::Format;

/// Halts the service, and writes to `out` what that has achieved.
///
/// # Errors
/// The configuration is wrong, the service cannot be reached, or it refuses.
pub fn halt(args: &OperatorArgs, clock: &impl Clock, out: &mut impl Write) -> anyhow::Result<()> {
    let answer = call(args, clock, "halt")?;
    if args.access.format == Format::Json {
        return Ok(writeln!(out, "{answer}")?);
    }
    let reason = answer["reason"].as_str().unwrap_or("");
    writeln!(out, "halted: {reason}")?;
    for (key, yes, no) in [
        ("quiet", "no money moves any more", "something that had begun before has not ended yet"),
        (
            "in_data_dir",
            "kept in the data directory",
            "NOT kept in the data directory: a start with another database would not know",
        ),
        (
            "in_postgres",
            "kept in PostgreSQL",
            "NOT kept in PostgreSQL: a start with another data directory would not know",
        ),
    ] {
        writeln!(out, "  {}", if answer[key] == json!(true) { yes } else { no })?;
    }
    Ok(())
}

/// Lets the service go on.
///
/// # Errors
/// The configuration is wrong, the service cannot be reached, or it refuses: then it is still halted.
pub fn resume(args: &OperatorArgs, clock: &impl Clock, out: &mut impl Write) -> anyhow::Result<()> {
    let answer = call(args, clock, "resume")?;
    refuse_pending(&answer, args.access.format, out)?;
    match args.access.format {
        Format::Json => writeln!(out, "{answer}")?,
        Format::Text => writeln!(out, "resumed")?,
    }
    Ok(())
}

/// Posts to one of the operators' routes; returns the answer's body.
fn call(args: &OperatorArgs, clock: &impl Clock, route: &str) -> anyhow::Result<Value> {
    Ops::new(&args.access, clock)?.post(route, route, &json!({"reason": args.reason}))
}
