//! `ubscore snapshot`: reads snapshots, also while the service makes them. It changes nothing.
//!
//! One line for each snapshot: its header, its content, and whether it is usable. As text, a line
//! for each asset follows. Exit codes: 0; 1 if a snapshot is damaged or contradicts itself, or if
//! two compared snapshots differ; 2 if there is no snapshot to read.

mod contents;
mod diff;
pub mod error;

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use engine::snapshot::store::SnapshotStore;
use engine::snapshot::{self, Header, Snapshot};
use serde::Serialize;

use self::contents::{Held, SumObject, check};
use self::error::Error;
use super::wal::integer::Integer;
use crate::cli::{SnapshotCommand, SnapshotInspectArgs};
use crate::data_dir;
use crate::exit::Exit;
use crate::format::Format;
use crate::telemetry::chain;

/// Runs one of the subcommands. Exit code 1: two compared snapshots differ.
///
/// # Errors
/// [`Error`]. The lines before it were written.
pub fn run(command: &SnapshotCommand, out: &mut impl Write) -> anyhow::Result<Exit> {
    let SnapshotCommand::Inspect(args) = command;
    let done = match (&args.diff, &args.path) {
        (Some(pair), _) => diff::diff(args, pair, out),
        (None, Some(path)) => inspect(args, path, out).map(|()| false),
        (None, None) => unreachable!("clap asks for one of them"),
    };
    match done {
        Ok(true) => Ok(Exit::Failed),
        Ok(false) => Ok(Exit::Done),
        // The reader has closed the output, as `| head` does.
        Err(Error::Write(error)) if error.kind() == io::ErrorKind::BrokenPipe => Ok(Exit::Done),
        Err(error) => Err(error.into()),
    }
}

fn inspect(args: &SnapshotInspectArgs, path: &Path, out: &mut impl Write) -> Result<(), Error> {
    let (paths, listed) = find(path)?;
    let mut first_bad = None;
    for path in &paths {
        let (verdict, error) = Verdict::of(path);
        // A listed snapshot may be gone by now: old ones are removed when a new one is made.
        if listed && error.as_ref().is_some_and(is_gone) {
            continue;
        }
        let line = match args.format {
            Format::Text => verdict.text(),
            Format::Json => serde_json::to_string(&verdict).expect("text and numbers"),
        };
        let written = writeln!(out, "{line}");
        first_bad = first_bad.or(error);
        // Damage first: the exit code must report it even if the verdict cannot be printed.
        if written.is_err() {
            break;
        }
    }
    out.flush().or_else(|error| if first_bad.is_some() { Ok(()) } else { Err(error) })?;
    first_bad.map_or(Ok(()), |error| Err(error.into()))
}

fn is_gone(error: &snapshot::Error) -> bool {
    matches!(error, snapshot::Error::Io { source, .. } if source.kind() == io::ErrorKind::NotFound)
}

/// The snapshots at a path, newest first, and whether they were found by listing a directory.
fn find(path: &Path) -> Result<(Vec<PathBuf>, bool), Error> {
    let unreadable = |source| Error::Unreadable { path: path.to_owned(), source };
    if !fs::metadata(path).map_err(unreadable)?.is_dir() {
        return Ok((vec![path.to_owned()], false));
    }
    for directory in [path.to_owned(), data_dir::snapshots(path)] {
        if directory.is_dir() {
            let paths = SnapshotStore::at(&directory).paths()?;
            if !paths.is_empty() {
                return Ok((paths, true));
            }
        }
    }
    Err(Error::NoSnapshot { path: path.to_owned() })
}

/// The verdict on one snapshot.
#[derive(Default, Serialize)]
struct Verdict {
    file: String,
    verdict: &'static str,
    bytes: Option<Integer>,
    log: Option<String>,
    sequence: Option<Integer>,
    facts: Option<Integer>,
    held: Option<Held>,
    sums: Option<Vec<SumObject>>,
    digest: Option<String>,
    reason: Option<String>,
}

impl Verdict {
    fn of(path: &Path) -> (Verdict, Option<snapshot::Error>) {
        let mut verdict = Verdict { file: path.display().to_string(), ..Verdict::default() };
        let checked = Snapshot::open(path).and_then(|snapshot| {
            let Header { identity, sequence, facts, digest } = snapshot.header;
            verdict.bytes = Some(snapshot.bytes.into());
            verdict.log = Some(identity.to_string());
            verdict.sequence = Some(sequence.into());
            verdict.facts = Some(facts.into());
            verdict.digest = Some(format!("{digest:032x}"));
            let contents = check(&snapshot)?;
            verdict.held = Some(contents.held);
            let sums = contents.sums.keys().filter_map(|&asset| contents.sum_object(asset));
            verdict.sums = Some(sums.collect());
            Ok(())
        });
        verdict.verdict = match &checked {
            Ok(()) => "ok",
            Err(snapshot::Error::Io { .. }) => "unreadable",
            Err(snapshot::Error::Damaged { .. }) => "damaged",
            Err(_) => "refused",
        };
        verdict.reason = checked.as_ref().err().map(|error| chain(error));
        (verdict, checked.err())
    }

    fn text(&self) -> String {
        let Verdict { file, verdict, .. } = self;
        let mut line = format!("{verdict} {file}");
        let mut field = |name: &str, value: Option<String>| {
            if let Some(value) = value {
                line.push_str(&format!(" {name}={value}"));
            }
        };
        field("log", self.log.clone());
        field("sequence", self.sequence.map(|number| number.to_string()));
        field("bytes", self.bytes.map(|number| number.to_string()));
        field("facts", self.facts.map(|number| number.to_string()));
        if let Some(held) = self.held {
            field("assets", Some(held.assets.to_string()));
            field("accounts", Some(held.accounts.to_string()));
            field("balances", Some(held.balances.to_string()));
            field("outcomes", Some(held.outcomes.to_string()));
            // Most snapshots have none.
            for (name, count) in [
                ("venues", held.venues),
                ("holds", held.holds),
                ("answers", held.answers),
                ("postings", held.postings),
            ] {
                field(name, (count > 0).then(|| count.to_string()));
            }
            field("watermark", Some(held.watermark.to_string()));
        }
        field("digest", self.digest.clone());
        if let Some(reason) = &self.reason {
            line.push_str(&format!(": {reason}"));
        }
        for sum in self.sums.iter().flatten() {
            let name = sum.asset.clone().unwrap_or_else(|| format!("#{}", sum.asset_id));
            line.push_str(&format!("\n  {} {}", name.escape_debug(), sum.text()));
        }
        line
    }
}
