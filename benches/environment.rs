//! The machine of a bench, measured before anything else, and the printing of figures.
//!
//! A figure depends on its surroundings: the same program is ten times slower on another disk. So
//! every latency is compared with `D50`: the p50 of one 4 KiB write and its fdatasync on the same
//! file system in the same run. No goal is judged if the machine itself stands still for a
//! millisecond.

use std::fs::{self, File};
use std::io::Write;
use std::ops::AddAssign;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use jiff::Timestamp;
use serde_json::Value;
use tempfile::TempDir;
use ubscore::commands::load::{QUANTILES, histogram};

/// The length of each probe.
const PROBE: Duration = Duration::from_secs(2);
/// One sleep of the hiccup probe; any longer sleep is the machine's fault.
const NAP: Duration = Duration::from_millis(1);
/// Above this p99.9 of the hiccup probe no goal is judged, ns.
const HICCUP_MAX_NS: u64 = 1_000_000;
/// One write of the disk-sync probe, bytes.
const PAGE: [u8; 4096] = [1; 4096];
/// Pages of the probe's file, which is filled before: an appending write would measure the journal
/// too.
const PAGES: u64 = 4096;
/// Latencies in ns, kept to three digits.
pub(crate) struct Latencies(Histogram<u64>);

impl Latencies {
    /// None yet.
    pub(crate) fn new() -> Latencies {
        Latencies(histogram())
    }

    /// Adds one; more than a minute counts as a minute.
    pub(crate) fn record(&mut self, latency: Duration) {
        self.0.saturating_record(nanoseconds(latency));
    }

    /// The latency that this share of them does not exceed, ns.
    pub(crate) fn quantile(&self, quantile: f64) -> u64 {
        self.0.value_at_quantile(quantile)
    }

    fn json(&self, name: &str) -> Value {
        let quantile =
            |(heading, quantile): (&str, f64)| (heading.to_owned(), self.quantile(quantile).into());
        let ns: serde_json::Map<_, _> = QUANTILES.map(quantile).into_iter().collect();
        serde_json::json!({ "name": name, "count": self.0.len(), "ns": ns })
    }

    fn print(&self, name: &str, d50: u64) {
        let columns =
            QUANTILES.map(|(_, quantile)| microseconds(self.0.value_at_quantile(quantile)));
        let cells: String = columns.iter().map(|cell| format!("{cell:>11}")).collect();
        println!("{name:<26}{cells}{:>9}{:>10}", ratio(self.quantile(0.5), d50), self.0.len());
    }
}

/// Adds the latencies of another thread.
impl AddAssign<&Latencies> for Latencies {
    fn add_assign(&mut self, other: &Latencies) {
        self.0.add(&other.0).expect("all have the same bounds");
    }
}

/// The hiccup probe and the disk-sync probe, one after the other, each for `length`.
pub(crate) fn probes(directory: &Path, length: Duration) -> anyhow::Result<(Latencies, Latencies)> {
    Ok((hiccups(length), disk_syncs(directory, length)?))
}

/// The machine's best possible figures.
pub(crate) struct Environment {
    /// The p50 of the disk-sync probe, ns.
    pub(crate) d50: u64,
    noisy: bool,
}

impl Environment {
    /// Prints the machine's data, and probes it; `directory` is on the file system in question.
    ///
    /// `postgres`: the server's version and settings, if one takes part.
    pub(crate) fn probe(directory: &Path, postgres: Option<&str>) -> anyhow::Result<Environment> {
        let cores = thread::available_parallelism()?;
        let facts = [
            ("date", format!("{:.0}", Timestamp::now())),
            ("CPU", format!("{}, {cores} cores", cpu())),
            ("kernel", read("/proc/sys/kernel/osrelease")),
            ("load", read("/proc/loadavg")),
            ("file system", file_system(directory)?),
            ("commit", commit()),
            ("PostgreSQL", postgres.unwrap_or("takes no part").to_owned()),
        ];
        for (name, fact) in &facts {
            println!("{name:<13}{fact}");
        }
        let facts = facts.map(|(name, fact)| (name.to_owned(), fact.into()));
        keep(&Value::Object(facts.into_iter().collect()), false)?;
        let (hiccups, syncs) = probes(directory, PROBE)?;
        let environment = Environment {
            d50: syncs.quantile(0.5),
            noisy: hiccups.0.value_at_quantile(0.999) > HICCUP_MAX_NS,
        };
        environment.table(&[("hiccup probe", &hiccups), ("disk-sync probe: D50, D99", &syncs)])?;
        Ok(environment)
    }

    /// Prints latencies, a row each, and keeps them as JSON.
    pub(crate) fn table(&self, rows: &[(&str, &Latencies)]) -> anyhow::Result<()> {
        let headings: String =
            QUANTILES.iter().map(|(heading, _)| format!("{heading:>11}")).collect();
        println!("\n{:<26}{headings}{:>9}{:>10}", "us", "p50/D50", "count");
        for (name, latencies) in rows {
            latencies.print(name, self.d50);
            keep(&latencies.json(name), true)?;
        }
        println!();
        Ok(())
    }

    /// Prints whether a goal was reached, or that the machine is too noisy.
    pub(crate) fn judge(&self, goal: &str, reached: bool) {
        let verdict = match (self.noisy, reached) {
            (true, _) => "environment too noisy",
            (false, true) => "reached",
            (false, false) => "missed",
        };
        println!("goal {goal}: {verdict}");
    }
}

/// Adds a line to `target/bench/<bench>.jsonl`, or begins it: the machine first, then each row of
/// the tables.
fn keep(line: &Value, further: bool) -> anyhow::Result<()> {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("bench");
    fs::create_dir_all(&directory)?;
    let path = directory.join(env!("CARGO_CRATE_NAME")).with_extension("jsonl");
    let mut file =
        File::options().create(true).write(true).truncate(!further).append(further).open(path)?;
    writeln!(file, "{line}")?;
    Ok(())
}

/// A new directory on the file system of the build, removed when dropped.
pub(crate) fn scratch() -> anyhow::Result<TempDir> {
    Ok(tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR"))?)
}

/// The number behind `--` on the command line, or `default`.
pub(crate) fn count(default: u64) -> anyhow::Result<u64> {
    // `cargo bench` itself passes `--bench`.
    match std::env::args().skip(1).find(|argument| argument != "--bench") {
        None => Ok(default),
        Some(text) => match text.parse() {
            Ok(count) if count > 0 => Ok(count),
            _ => anyhow::bail!("expected a count, got {text:?}"),
        },
    }
}

/// `value` to `base`, as text with two decimals.
pub(crate) fn ratio(value: u64, base: u64) -> String {
    let hundredths = u128::from(value) * 100 / u128::from(base.max(1));
    format!("{}.{:02}", hundredths / 100, hundredths % 100)
}

/// The rate per second, if `count` take `duration`.
pub(crate) fn per_second(count: u64, duration: Duration) -> u64 {
    let rate = u128::from(count) * 1_000_000_000 / u128::from(nanoseconds(duration).max(1));
    u64::try_from(rate).unwrap_or(u64::MAX)
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

fn microseconds(ns: u64) -> String {
    format!("{}.{:02}", ns / 1_000, ns % 1_000 / 10)
}

/// The excess sleep of an idle thread.
fn hiccups(length: Duration) -> Latencies {
    let mut latencies = Latencies::new();
    let began = Instant::now();
    while began.elapsed() < length {
        let asleep = Instant::now();
        thread::sleep(NAP);
        latencies.record(asleep.elapsed().saturating_sub(NAP));
    }
    latencies
}

/// One page and its fdatasync at a time, over an existing file.
fn disk_syncs(directory: &Path, length: Duration) -> anyhow::Result<Latencies> {
    let file = File::create(directory.join("probe"))?;
    // Page by page, because the page cache keeps a write's size as its unit, and syncs whole units.
    let offsets = (0..PAGES).map(|page| page * PAGE.len() as u64);
    for offset in offsets.clone() {
        file.write_all_at(&PAGE, offset)?;
    }
    file.sync_all()?;
    let mut latencies = Latencies::new();
    let began = Instant::now();
    for offset in offsets.cycle().take_while(|_| began.elapsed() < length) {
        let asked = Instant::now();
        file.write_all_at(&PAGE, offset)?;
        file.sync_data()?;
        latencies.record(asked.elapsed());
    }
    fs::remove_file(directory.join("probe"))?;
    Ok(latencies)
}

fn read(path: &str) -> String {
    fs::read_to_string(path).map_or("unknown".to_owned(), |text| text.trim_end().to_owned())
}

fn cpu() -> String {
    let text = read("/proc/cpuinfo");
    let model = text.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    model.map_or(std::env::consts::ARCH.to_owned(), |(_, name)| name.to_owned())
}

/// Type, device and options of the mount that holds `directory`.
fn file_system(directory: &Path) -> anyhow::Result<String> {
    let directory = directory.canonicalize()?;
    let text = read("/proc/self/mountinfo");
    // A line: id, parent, device, root, mount point, options, ..., "-", type, source, more options.
    let mounts = text.lines().filter_map(|line| {
        let (mount, kind) = line.split_once(" - ")?;
        let mount: Vec<&str> = mount.split(' ').collect();
        Some((*mount.get(4)?, format!("{kind} {}", mount.get(5)?)))
    });
    let holding = mounts.filter(|(point, _)| directory.starts_with(point));
    // Of two mounts on one point, the later one is on top.
    let mount = holding.max_by_key(|(point, _)| point.len());
    Ok(mount.map_or("unknown".to_owned(), |(_, kind)| kind))
}

fn commit() -> String {
    let git = |arguments: &[&str]| {
        let output = Command::new("git")
            .args(arguments)
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .output()
            .ok()
            .filter(|output| output.status.success())?;
        Some(String::from_utf8_lossy(&output.stdout).trim_end().to_owned())
    };
    match (git(&["rev-parse", "--short=12", "HEAD"]), git(&["status", "--porcelain"])) {
        (Some(commit), Some(changes)) if changes.is_empty() => commit,
        (Some(commit), _) => format!("{commit} with changes"),
        (None, _) => "unknown".to_owned(),
    }
}
