//! `ubscore doctor`: checks that the machine, PostgreSQL and the configuration can keep the
//! service's promises, and names the settings to change. It changes nothing and may run beside the
//! service.
//!
//! `machine` and `pair` collect observations, and `node` those of a node of the transaction
//! manager; `judgement` has one small function for each check and does no I/O.

mod channels;
mod finding;
mod judgement;
mod machine;
mod node;
mod pair;
mod seen;

use std::io::Write;
use std::path::{Path, PathBuf};

use self::channels::ChannelsSeen;
use self::finding::{Finding, Verdict};
use self::judgement::CHECKS;
use self::machine::Machine;
use self::pair::Pair;
use self::seen::{Seen, Unasked};
use crate::cli::DoctorArgs;
use crate::clock::Clock;
use crate::config::Config;
use crate::data_dir;
use crate::exit::Exit;
use crate::format::Format;
use crate::postgres::settings::Settings;
use crate::postgres::watermark::Watermark;
use crate::postgres::{self, Address, embedded};
use crate::stores;
use crate::telemetry::chain;

/// Collects the observations, runs the checks, and prints one finding per line.
///
/// # Errors
/// None: a closed stdout leaves the exit code.
pub fn run(args: &DoctorArgs, clock: &impl Clock, out: &mut impl Write) -> anyhow::Result<Exit> {
    Ok(report(args, &examine(args, clock), out))
}

fn examine(args: &DoctorArgs, clock: &impl Clock) -> Vec<Finding> {
    let stores = &args.stores;
    if args.txm {
        return node::examine(stores.config.as_deref(), stores.dev, clock);
    }
    let loaded = Config::load(stores.config.as_deref(), stores.overrides(), stores.dev);
    let (config, valid) = match loaded {
        Ok(config) => {
            let found = match &stores.config {
                Some(file) => format!("{} and the environment are valid", file.display()),
                None => "the defaults and the environment are valid".to_owned(),
            };
            (config, Finding { check: "configuration", verdict: Verdict::Ok, found, change: None })
        }
        Err(error) => {
            let found = chain(&error);
            let change = "correct it; all checks below use the defaults".to_owned();
            let verdict = Verdict::Bad;
            let data_dir = stores.data_dir.clone().unwrap_or(Config::default().data_dir);
            let config = Config { data_dir, ..Config::default() };
            (config, Finding { check: "configuration", verdict, found, change: Some(change) })
        }
    };
    let postgres = match valid.verdict {
        Verdict::Ok => ask(&config, clock),
        Verdict::Warn | Verdict::Bad => Err(Unasked::Failed(
            "the configuration is invalid, so its address is unknown".to_owned(),
        )),
    };
    let (postgres, pair, rate) = match postgres {
        Ok((settings, pair, rate)) => (Ok(settings), Some(pair), rate),
        Err(unasked) => (Err(unasked), None, None),
    };
    let machine = Machine::look(&log_dir(&config), clock);
    let channels = ChannelsSeen::look(&config, clock);
    let seen = Seen { config, postgres, pair, rate, machine, channels };
    let findings = CHECKS.iter().flat_map(|check| check(&seen));
    [valid].into_iter().chain(findings).collect()
}

/// The settings, the records of both stores about each other, and the last measured rate.
type Examined = (Settings, Pair, Option<u64>);

fn ask(config: &Config, clock: &impl Clock) -> Result<Examined, Unasked> {
    let failed = |error: &dyn std::error::Error| Unasked::Failed(chain(error));
    let target = match &config.postgres.url {
        Some(url) => Address::parse(url.expose()).map_err(|error| failed(&error))?,
        None => embedded::running(&config.data_dir).ok_or(Unasked::NotRunning)?.into(),
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| failed(&error))?;
    let limits = stores::postgres_limits(config);
    let (log, snapshots) = (data_dir::log(&config.data_dir), data_dir::snapshots(&config.data_dir));
    let asked = runtime.block_on(async {
        let settings = Settings::read(&target, &limits, || clock.now_ns()).await?;
        let pair = Pair::look(&target, &limits, &log, &snapshots).await?;
        let rate = match pair.database {
            Some(_) => Watermark::new(target, limits, 0).rate().await?,
            None => None,
        };
        Ok((settings, pair, rate))
    });
    asked.map_err(|error: postgres::Error| failed(&error))
}

/// The log's directory, or the nearest existing directory above it, where it will be created.
fn log_dir(config: &Config) -> PathBuf {
    let log = data_dir::log(&config.data_dir);
    let there = log.ancestors().find(|path| path.is_dir());
    // A relative path's last ancestor is empty and means the current directory.
    there.filter(|path| !path.as_os_str().is_empty()).unwrap_or(Path::new(".")).to_owned()
}

fn report(args: &DoctorArgs, findings: &[Finding], out: &mut impl Write) -> Exit {
    let written = match args.format {
        Format::Json => findings.iter().try_for_each(|finding| {
            let line = serde_json::to_string(finding).expect("plain values");
            writeln!(out, "{line}")
        }),
        Format::Text => print_text(findings, out),
    };
    // If stdout is closed, the exit code remains.
    drop(written);
    match findings.iter().map(|finding| finding.verdict).max() {
        Some(Verdict::Bad) => Exit::Failed,
        Some(Verdict::Ok | Verdict::Warn) | None => Exit::Done,
    }
}

fn print_text(findings: &[Finding], out: &mut impl Write) -> std::io::Result<()> {
    let width = findings.iter().map(|finding| finding.check.len()).max().unwrap_or(0);
    for Finding { check, verdict, found, change } in findings {
        writeln!(out, "{:<4}  {check:<width$}  {found}", verdict.name())?;
        if let Some(change) = change {
            writeln!(out, "      {:width$}  -> {change}", "")?;
        }
    }
    let count = |verdict| findings.iter().filter(|finding| finding.verdict == verdict).count();
    let [ok, warn, bad] = [Verdict::Ok, Verdict::Warn, Verdict::Bad].map(count);
    writeln!(out, "{ok} ok, {warn} warn, {bad} bad")
}
