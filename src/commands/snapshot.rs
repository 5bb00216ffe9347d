//! `ubscore snapshot`: reads snapshots, also while the service makes them. It changes nothing.
//!
//! One line for each snapshot: its header, its content, and whether it is usable. As text, a line
//! for each asset follows. Exit codes: 0; 1 if a snapshot is damaged or contradicts itself, or if
//! two compared snapshots differ; 2 if there is no snapshot to read.

mod diff;

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use engine::entry::Entry;
use engine::fact::Fact;
use engine::snapshot::store::SnapshotStore;
use engine::snapshot::{self, Header, Snapshot};
use engine::totals::Totals;
use serde::Serialize;

use super::wal::line::{Assets, Integer};
use crate::cli::{SnapshotCommand, SnapshotInspectArgs};
use crate::config::format::Format;
use crate::data_dir;
use crate::exit::Exit;
use crate::telemetry::chain;

/// Why a snapshot could not be read, or why it must not be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The path does not exist or cannot be read. Correct the path.
    #[error("read {}", path.display())]
    Unreadable {
        /// The path as given.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The path is not a snapshot. Correct it.
    #[error(
        "{} holds no snapshot: give a data directory, a directory of snapshots or one of them",
        path.display()
    )]
    NoSnapshot {
        /// The path as given.
        path: PathBuf,
    },
    /// A snapshot must not be used.
    #[error(transparent)]
    Snapshot(#[from] snapshot::Error),
    /// The output could not be written, for another reason than a closed reader.
    #[error("write the output")]
    Write(#[from] io::Error),
}

impl Error {
    /// Whether the arguments are wrong, not the snapshot.
    pub fn is_about_arguments(&self) -> bool {
        match self {
            Error::Unreadable { .. } | Error::NoSnapshot { .. } => true,
            Error::Snapshot(error) => matches!(error, snapshot::Error::Io { .. }),
            Error::Write(_) => false,
        }
    }
}

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

/// The sums over the balances of one asset.
#[derive(PartialEq, Eq, Serialize)]
struct SumObject {
    asset: Option<String>,
    asset_id: u32,
    /// In the asset's decimals, like the other sums.
    available: String,
    deposits: String,
    withdrawals: String,
    refunds: String,
    available_units: Integer,
}

impl SumObject {
    fn text(&self) -> String {
        let SumObject { available, deposits, withdrawals, refunds, .. } = self;
        format!(
            "available={available} deposits={deposits} withdrawals={withdrawals} refunds={refunds}"
        )
    }
}

/// The number of facts of each kind.
#[derive(Clone, Copy, Default, Serialize)]
struct Held {
    assets: u64,
    accounts: u64,
    balances: u64,
    outcomes: u64,
    watermark: u64,
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

/// The content of a snapshot.
#[derive(Default)]
struct Contents {
    held: Held,
    /// The sum over the evicted outcomes.
    evicted: u128,
    assets: Assets,
    /// By asset: the available sum, and the sums of the operations.
    sums: BTreeMap<u32, (u128, Totals)>,
}

impl Contents {
    fn sum_object(&self, asset: u32) -> Option<SumObject> {
        let (available, totals) = self.sums.get(&asset)?;
        let text = |units| self.assets.amount(asset, units);
        Some(SumObject {
            asset: self.assets.symbol(asset).map(str::to_owned),
            asset_id: asset,
            available: text(*available),
            deposits: text(totals.deposits),
            withdrawals: text(totals.withdrawals),
            refunds: text(totals.refunds),
            available_units: (*available).into(),
        })
    }

    /// Adds a balance; `None` if the sum exceeds a u128.
    fn add(&mut self, asset: u32, available: u128, totals: &Totals) -> Option<()> {
        let (available_sum, sums) = self.sums.entry(asset).or_default();
        *available_sum = available_sum.checked_add(available)?;
        *sums = Totals {
            deposits: sums.deposits.checked_add(totals.deposits)?,
            withdrawals: sums.withdrawals.checked_add(totals.withdrawals)?,
            refunds: sums.refunds.checked_add(totals.refunds)?,
        };
        Some(())
    }
}

/// Reads every fact and adds them up.
fn check(snapshot: &Snapshot) -> Result<Contents, snapshot::Error> {
    let contradiction =
        |problem| snapshot::Error::Contradiction { path: snapshot.path.clone(), problem };
    let mut contents = Contents::default();
    let mut digest: u128 = 0;
    for fact in snapshot.facts()? {
        let fact = fact?;
        digest = digest.wrapping_add(fact.digest());
        let held = &mut contents.held;
        match fact {
            Fact::Asset { asset, precision, symbol } => {
                held.assets += 1;
                contents.assets.learn(&Entry::Asset { asset, precision, symbol });
            }
            Fact::Account { .. } => held.accounts += 1,
            Fact::Balance { asset, available, totals, .. } => {
                held.balances += 1;
                contents
                    .add(asset, available, &totals)
                    .ok_or_else(|| contradiction("its balances are more than there can be"))?;
            }
            Fact::Outcome { .. } => held.outcomes += 1,
            Fact::Watermark { order_number } => held.watermark = order_number,
            Fact::Evicted { digest } => contents.evicted = digest,
            Fact::Outside { .. } => {}
        }
    }
    match digest == snapshot.header.digest {
        true => Ok(contents),
        false => Err(contradiction("its facts do not add up to its digest")),
    }
}
