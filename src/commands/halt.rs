//! `ubscore halt` and `ubscore resume`: through the operators' listener, or by the flag in the data
//! directory if the service is down.

use std::io::Write;
use std::path::PathBuf;

use anyhow::{Context, bail, ensure};
use serde_json::{Value, json};

use super::approval::refuse_pending;
use super::ops::{Ops, Unreachable};
use crate::audit::halt::{self as flag, check_reason};
use crate::cli::{HaltArgs, OperatorArgs};
use crate::clock::Clock;
use crate::config::{Config, Overrides};
use crate::data_dir;
use crate::exit::Exit;
use crate::format::Format;

/// Halts the service, or its next start if it is down. Writes the result to `out`.
///
/// # Errors
/// The configuration is wrong, the service refuses, or it is not halted.
pub fn halt(args: &HaltArgs, clock: &impl Clock, out: &mut impl Write) -> anyhow::Result<Exit> {
    let (access, reason) = (&args.operator.access, &args.operator.reason);
    let answer = match call(&args.operator, clock, "halt") {
        Err(error) if error.downcast_ref().is_some_and(Unreachable::is_refused) => {
            halt_next_start(args, error, out)?;
            return Ok(Exit::Done);
        }
        answer => answer?,
    };
    if access.format == Format::Json {
        writeln!(out, "{answer}")?;
        return Ok(Exit::Done);
    }
    let in_force = answer["reason"].as_str().unwrap_or("");
    writeln!(out, "halted: {in_force}")?;
    if in_force != reason {
        writeln!(out, "  it was halted before; your reason is in admin_audit: {reason}")?;
    }
    for (key, yes, no) in [
        ("quiet", "no money moves any more", "an operation that began earlier has not ended yet"),
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
    Ok(Exit::Done)
}

/// Writes the flag to the data directory of a service that is down. `error`: why it did not answer.
fn halt_next_start(
    args: &HaltArgs,
    error: anyhow::Error,
    out: &mut impl Write,
) -> anyhow::Result<()> {
    let access = &args.operator.access;
    let data_dir: PathBuf = match (&args.data_dir, &access.ops) {
        (Some(data_dir), _) => data_dir.clone(),
        // The service may be on another machine, with its own data directory.
        (None, Some(_)) => {
            return Err(error.context("give --data-dir DIR to halt the next start of that service"));
        }
        (None, None) => {
            let config = Config::load(access.config.as_deref(), Overrides::default(), access.dev);
            config.context("load the configuration")?.data_dir
        }
    };
    let log = data_dir::log(&data_dir);
    if !log.is_dir() {
        return Err(error.context(format!("{} is no data directory", data_dir.display())));
    }
    let reason = &args.operator.reason;
    ensure!(check_reason(reason), "reason must be 1 to 500 printable characters");
    let shown = data_dir.join(flag::FILE);
    let kept = flag::keep_for_next_start(&data_dir, reason);
    let in_force = kept.with_context(|| format!("write {}", shown.display()))?;
    if let Err(wal::Error::Locked { pid }) = data_dir::lock(&data_dir) {
        bail!(
            "process {pid} holds the log and does not answer: it is NOT halted, only the next start is ({}); \
             end it: kill {pid}",
            shown.display()
        );
    }
    if access.format == Format::Json {
        let answer = json!({
            "halted": true, "reason": in_force, "in_data_dir": true, "in_postgres": false,
            "quiet": true, "running": false,
        });
        return Ok(writeln!(out, "{answer}")?);
    }
    writeln!(out, "halted: {in_force}")?;
    writeln!(out, "  the service is down; its next start is halted")?;
    writeln!(out, "  kept in {}", shown.display())?;
    writeln!(out, "  NOT kept in PostgreSQL: a start with another data directory would not know")?;
    Ok(())
}

/// Ends the halt.
///
/// # Errors
/// The configuration is wrong, the service cannot be reached, or it refuses. Then it is still
/// halted.
pub fn resume(
    args: &OperatorArgs,
    clock: &impl Clock,
    out: &mut impl Write,
) -> anyhow::Result<Exit> {
    let answer = call(args, clock, "resume")?;
    refuse_pending(&answer, args.access.format, out)?;
    let was_halted = answer["was_halted"] != json!(false);
    match args.access.format {
        Format::Json => writeln!(out, "{answer}")?,
        Format::Text if was_halted => writeln!(out, "resumed")?,
        Format::Text => writeln!(out, "nothing to do: the service is not halted")?,
    }
    Ok(Exit::Done)
}

/// Posts to one of the operators' routes; returns the answer's body.
fn call(args: &OperatorArgs, clock: &impl Clock, route: &str) -> anyhow::Result<Value> {
    Ops::new(&args.access, clock)?.post(route, route, &json!({"reason": args.reason}))
}
