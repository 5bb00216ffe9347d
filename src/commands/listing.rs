//! A list of the service's things, as commands ask for it and print it; and an action on one.

use std::fmt::Write as _;
use std::io::Write;

use serde_json::{Value, json};

use super::approval::refuse_pending;
use super::ops::Ops;
use super::table::aligned;
use crate::cli::OperatorArgs;
use crate::clock::Clock;
use crate::format::Format;

/// A path with those parameters that have a value. The values are fit for a URL.
pub(super) fn path<const N: usize>(route: &str, parameters: [(&str, Option<String>); N]) -> String {
    let mut path = format!("{route}?");
    for (name, value) in parameters {
        if let Some(value) = value {
            write!(path, "&{name}={value}").expect("a string takes all");
        }
    }
    path
}

/// The values of a list in an answer.
pub(super) fn rows<'a>(answer: &'a Value, key: &str) -> &'a [Value] {
    answer[key].as_array().map_or(&[][..], Vec::as_slice)
}

/// Prints rows: a line of JSON each, or a table. `none`: the words for no rows.
pub(super) fn write_rows(
    rows: &[Value],
    format: Format,
    none: &str,
    (head, cells): (&[&str], impl Fn(&Value) -> Vec<String>),
    out: &mut impl Write,
) -> anyhow::Result<()> {
    match format {
        Format::Json => rows.iter().try_for_each(|row| writeln!(out, "{row}"))?,
        Format::Text if rows.is_empty() => writeln!(out, "{none}")?,
        Format::Text => write!(out, "{}", aligned("", head, rows.iter().map(cells)))?,
    }
    Ok(())
}

/// Notes the cursor of the next page, if there is one.
pub(super) fn note_cursor(answer: &Value, notes: &mut impl Write) -> anyhow::Result<()> {
    if let Some(cursor) = answer["next_cursor"].as_str() {
        writeln!(notes, "there may be more: --cursor {cursor}")?;
    }
    Ok(())
}

/// Does an action on one thing, and prints what became of it. `thing`: its path. `done`: the words
/// printed before `stands`, which says its state in one line.
pub(super) fn attend(
    operator: &OperatorArgs,
    clock: &impl Clock,
    thing: &str,
    (action, done): (&str, &str),
    stands: fn(&Value) -> String,
    out: &mut impl Write,
) -> anyhow::Result<()> {
    let (access, body) = (&operator.access, json!({"reason": operator.reason}));
    let answer = Ops::new(access, clock)?.post(action, &format!("{thing}/{action}"), &body)?;
    refuse_pending(&answer, access.format, out)?;
    match access.format {
        Format::Json => writeln!(out, "{answer}")?,
        Format::Text => writeln!(out, "{done}: {}", stands(&answer))?,
    }
    Ok(())
}
