//! How many final transfers per second does the whole system do over HTTP, both ways mixed? How
//! much CPU time does each part take for one? How long does one take without overload?
//!
//! Base cases, in the same run, on the same PostgreSQL with the same settings. Both balances are in
//! PostgreSQL: (a) as BEGIN, two guarded updates, one insert, COMMIT, and (b) as one function. Both
//! run by `pgbench -M prepared`. Both are without HTTP, without tokens, without a second system,
//! and without a record of the caller. Server, PostgreSQL and load share the machine.
//!
//! The base cases and ubscore take turns, with each number of clients, for several rounds: a ratio
//! compares neighbors in time. Before each measurement the disk and the machine are probed.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use anyhow::{Context, ensure};
use serde_json::Value;
use ubscore::clock::{Clock, NS_PER_S, SystemClock};
use ubscore::postgres::embedded::Embedded;

use crate::base::{figure, pgbench, scripts};
use crate::environment::{Environment, probes, ratio};
use crate::server::Server;
use crate::usage::{CLIENTS, LOAD, Meter, SERVICE, TICK, Usage};

/// Seconds of each measurement.
const SECONDS: u64 = 3;
const ROUNDS: usize = 3;
/// The tried numbers of clients.
const COUNTS: [u64; 5] = [1, 8, 32, 128, 256];
/// All of one asset, so that the asset is as hot as possible in every row.
const USERS: u64 = 1_000;
/// Connections in the case with one user for all transfers.
const HOT_CONNECTIONS: u64 = 1_000;
/// The length of each probe before a measurement.
const PROBE: Duration = Duration::from_millis(300);
/// Time at the begin and the end of pgbench in which its CPU time is not counted.
const EDGE: Duration = Duration::from_millis(500);

/// The compared systems.
#[derive(Clone, Copy, PartialEq, Eq)]
enum System {
    Statements,
    Function,
    Ubscore,
}

impl System {
    const ALL: [System; 3] = [System::Statements, System::Function, System::Ubscore];

    fn name(self) -> &'static str {
        match self {
            System::Statements => "(a)",
            System::Function => "(b)",
            System::Ubscore => "ubscore",
        }
    }
}

/// One measurement.
struct Row {
    /// Final transfers per second.
    rate: u64,
    /// CPU time by part, ns a transfer.
    usage: Usage,
    /// PostgreSQL's bytes of log a transfer, and its commits in thousandths.
    bytes: u64,
    milli_commits: u64,
}

/// The server, the base cases and the meter of a run.
struct Bench<'a> {
    data_dir: &'a Path,
    server: &'a Server,
    postgres: &'a tokio_postgres::Client,
    url: String,
    pgbench: PathBuf,
    meter: Meter,
}

/// PostgreSQL's counters so far.
struct Done {
    commits: i64,
    bytes: i64,
}

/// Prints the rates of both base cases and of ubscore, and the CPU time of each part.
pub(crate) async fn run(
    data_dir: &Path,
    server: &Server,
    embedded: &Embedded,
    postgres: &tokio_postgres::Client,
    environment: &Environment,
) -> anyhow::Result<()> {
    let schema = std::fs::read_to_string(scripts().join("schema.sql"))?;
    postgres.batch_execute(&schema).await?;
    let meter = Meter::start(server.pid(), embedded)?;
    let bench =
        Bench { data_dir, server, postgres, url: embedded.url(), pgbench: pgbench()?, meter };

    // By number of clients, by round, by system.
    let mut rows: Vec<Vec<Vec<Row>>> = COUNTS.map(|_| Vec::new()).into();
    println!(
        "{:<9}{:>8}{:>10}{:>10}{:>12}   CPU us a transfer",
        "", "clients", "done/s", "D50 us", "p99.9 us"
    );
    for round in 1..=ROUNDS {
        println!("round {round}");
        for (clients, rows) in COUNTS.into_iter().zip(&mut rows) {
            let mut turn = Vec::new();
            for system in System::ALL {
                turn.push(bench.measure(system, clients).await?);
            }
            rows.push(turn);
        }
    }
    let most = bench.judge(environment, &rows);

    let hot = bench.load(1, HOT_CONNECTIONS, None)?;
    let rate = number(&hot["rows"][0], "achieved")?;
    println!(
        "one user, {HOT_CONNECTIONS} clients: {rate}/s, {} x those of {USERS} users",
        ratio(rate, most)
    );
    let quarter = (most / 4).max(1);
    let row = &bench.load(USERS, 128, Some(quarter))?["rows"][0];
    let us = |index: usize| row["latency_us"][index][1].as_u64().context("a latency");
    let (p50, p99) = (us(0)?, us(2)?);
    let d50_us = environment.d50 / 1_000;
    println!(
        "at {quarter}/s, open loop: p50 {p50} us ({} x D50), p99 {p99} us ({} x D50); the sender was late by {} us at p99.9\n",
        ratio(p50, d50_us),
        ratio(p99, d50_us),
        row["sender_late_us"]
    );
    environment.judge("S12, p50 at most 12 x D50", p50 <= 12 * d50_us);
    ensure!(number(row, "committed")? > 0, "no transfer was committed");
    Ok(())
}

impl Bench<'_> {
    /// Probes the machine, measures one system once, and prints both.
    async fn measure(&self, system: System, clients: u64) -> anyhow::Result<Row> {
        let (hiccups, syncs) = probes(self.data_dir, PROBE)?;
        let before = self.done().await?;
        let (rate, transfers, (from, until)) = match system {
            System::Statements => self.base("statements.sql", clients)?,
            System::Function => self.base("function.sql", clients)?,
            System::Ubscore => {
                let report = self.load(USERS, clients, None)?;
                let (row, operations) = (&report["rows"][0], number(&report, "operations")?);
                let time = |index: usize| row["measured_unix_ns"][index].as_u64().context("a time");
                (number(row, "achieved")?, operations, (time(0)?, time(1)?))
            }
        };
        let after = self.done().await?;
        let each = |count: i64, times: u64| {
            u64::try_from(count).map(|count| count * times / transfers.max(1))
        };
        let row = Row {
            rate,
            usage: self.each(rate, from, until)?,
            bytes: each(after.bytes - before.bytes, 1)?,
            milli_commits: each(after.commits - before.commits, 1_000)?,
        };
        println!(
            "{:<9}{clients:>8}{rate:>10}{:>10}{:>12}   {}",
            system.name(),
            syncs.quantile(0.5) / 1_000,
            hiccups.quantile(0.999) / 1_000,
            texts(&row.usage)
        );
        Ok(row)
    }

    /// CPU time by part a transfer, ns, if this many a second were made between two times.
    fn each(&self, rate: u64, from: u64, until: u64) -> anyhow::Result<Usage> {
        let transfers = u128::from(rate) * u128::from(until - from) / u128::from(NS_PER_S);
        let used = self.meter.between(from, until)?;
        let each = used.into_iter().map(|(part, ns)| {
            let ns = u128::from(ns) / transfers.max(1);
            (part, u64::try_from(ns).unwrap_or(u64::MAX))
        });
        Ok(each.collect())
    }

    /// Runs a base case; returns its rate, its transfers and the time of its CPU, ns since the Unix
    /// epoch.
    fn base(&self, script: &str, clients: u64) -> anyhow::Result<(u64, u64, (u64, u64))> {
        let clock = SystemClock::new();
        let mut command = Command::new(&self.pgbench);
        command
            .args(["-n", "-M", "prepared", "--max-tries=10", "-j", "1"])
            .args(["-c", &clients.to_string(), "-T", &SECONDS.to_string(), "-f"])
            .arg(scripts().join(script))
            .arg(&self.url);
        let edge = u64::try_from(EDGE.as_nanos())?;
        let began = clock.now_ns();
        let said = self.load_of(command)?;
        // So that a sample is behind the counted time.
        thread::sleep(2 * TICK);
        let said = String::from_utf8_lossy(&said);
        let figure = |name: &str| figure(&said, name);
        let rate = figure("tps =").context("pgbench printed no rate")?;
        let transfers = figure("number of transactions actually processed:");
        // The clients connect one after the other.
        let connected_ms: u64 = figure("initial connection time =").unwrap_or(0);
        let from = began + connected_ms * (NS_PER_S / 1_000) + edge;
        let until = began + SECONDS * NS_PER_S - edge;
        ensure!(from < until, "{clients} clients took {connected_ms} ms to connect");
        Ok((rate, transfers.context("pgbench printed no count")?, (from, until)))
    }

    /// Runs `ubscore load`; returns its report.
    fn load(&self, users: u64, connections: u64, rate: Option<u64>) -> anyhow::Result<Value> {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ubscore"));
        command.args(["load", "--dev", "--format", "json", "--users", &users.to_string()]);
        command.args(["--connections", &connections.to_string(), "--warm-up", "1s"]);
        command.arg("--duration").arg(format!("{SECONDS}s"));
        command.arg("--url").arg(format!("http://{}", self.server.http));
        command.arg("--ops").arg(format!("http://{}", self.server.ops));
        if let Some(rate) = rate {
            command.arg("--rate").arg(rate.to_string());
        }
        Ok(serde_json::from_slice(&self.load_of(command)?)?)
    }

    /// Runs a program that makes a load; returns what it printed.
    fn load_of(&self, mut command: Command) -> anyhow::Result<Vec<u8>> {
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        let child = child.with_context(|| format!("start {command:?}"))?;
        self.meter.watch_load(child.id())?;
        let output = child.wait_with_output()?;
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Ok(output.stdout)
    }

    async fn done(&self) -> anyhow::Result<Done> {
        // PostgreSQL's own counters lag by up to a second.
        let settled = "SELECT pg_stat_force_next_flush(), pg_sleep(1.5)";
        self.postgres.batch_execute(settled).await?;
        let counters = "SELECT xact_commit, (pg_current_wal_lsn() - '0/0')::bigint \
                        FROM pg_stat_database WHERE datname = current_database()";
        let row = self.postgres.query_one(counters, &[]).await?;
        Ok(Done { commits: row.get(0), bytes: row.get(1) })
    }

    /// Prints medians, and judges the goals; returns ubscore's best median rate.
    fn judge(&self, environment: &Environment, rows: &[Vec<Vec<Row>>]) -> u64 {
        let rates = |rounds: &[Vec<Row>], system: System| -> Vec<u64> {
            rounds.iter().map(|turn| turn[system as usize].rate).collect()
        };
        // Ratios in hundredths, by round.
        let times = |rounds: &[Vec<Row>], base: System| -> Vec<u64> {
            let pair = |turn: &Vec<Row>| {
                turn[System::Ubscore as usize].rate * 100 / turn[base as usize].rate.max(1)
            };
            rounds.iter().map(pair).collect()
        };
        println!("\nmedians of {ROUNDS} rounds; ratios by round, lowest to highest");
        println!(
            "{:>8}{:>10}{:>10}{:>10}{:>26}{:>26}   bytes, commits a transfer",
            "clients", "(a)/s", "(b)/s", "ubscore/s", "x (a)", "x (b)"
        );
        for (clients, rounds) in COUNTS.iter().zip(rows) {
            let [a, b, own] = System::ALL.map(|system| median(rates(rounds, system)));
            let spread = |base| {
                let mut ratios = times(rounds, base);
                ratios.sort_unstable();
                let text = |hundredths: &u64| ratio(*hundredths, 100);
                let (low, high) = (&ratios[0], &ratios[ratios.len() - 1]);
                format!("{} ({} to {})", text(&ratios[ratios.len() / 2]), text(low), text(high))
            };
            let of = |figure: fn(&Row) -> u64| {
                median(rounds.iter().map(|turn| figure(&turn[System::Ubscore as usize])).collect())
            };
            println!(
                "{clients:>8}{a:>10}{b:>10}{own:>10}{:>26}{:>26}   {}, {}",
                spread(System::Statements),
                spread(System::Function),
                of(|row| row.bytes),
                ratio(of(|row| row.milli_commits), 1_000)
            );
        }
        println!("\nCPU us a transfer, medians");
        for (clients, rounds) in COUNTS.iter().zip(rows) {
            for system in System::ALL {
                let usages: Vec<&Usage> =
                    rounds.iter().map(|turn| &turn[system as usize].usage).collect();
                let parts = usages.iter().flat_map(|usage| usage.keys().copied());
                let of = |part| {
                    let ns = usages.iter().map(|usage| usage.get(part).copied().unwrap_or(0));
                    (part, median(ns.collect()))
                };
                let usage: Usage = parts.map(of).collect();
                println!("{:<9}{clients:>8}   {}", system.name(), texts(&usage));
            }
        }
        println!();
        let best = |system: System, round: usize| {
            rows.iter().map(|rounds| rounds[round][system as usize].rate).max().unwrap_or(0)
        };
        let all = |holds: &dyn Fn(usize) -> bool| (0..ROUNDS).all(holds);
        environment.judge(
            "S11, best of all clients, in each round: 2 x (a) and 1.1 x (b)",
            all(&|round| {
                let own = best(System::Ubscore, round);
                own >= 2 * best(System::Statements, round)
                    && 10 * own >= 11 * best(System::Function, round)
            }),
        );
        let at = |index: usize, hundredths: u64| {
            times(&rows[index], System::Statements).into_iter().all(|found| found >= hundredths)
        };
        environment.judge("S11, 8 clients, in each round: 0.7 x (a)", at(1, 70));
        environment.judge("S11, 32 clients, in each round: 1.5 x (a)", at(2, 150));
        let commits = |rounds: &Vec<Vec<Row>>| {
            median(rounds.iter().map(|turn| turn[System::Ubscore as usize].milli_commits).collect())
        };
        environment.judge(
            "S13, at most 0.06 commits a transfer with 128 clients",
            commits(&rows[3]) <= 60,
        );
        rows.iter().map(|rounds| median(rates(rounds, System::Ubscore))).max().unwrap_or(0)
    }
}

fn median(mut values: Vec<u64>) -> u64 {
    values.sort_unstable();
    values.get(values.len() / 2).copied().unwrap_or(0)
}

/// CPU times in us: the sum of PostgreSQL's, and then each part.
fn texts(usage: &Usage) -> String {
    let postgres = usage.iter().filter(|(part, _)| ![SERVICE, LOAD].contains(part));
    let postgres: u64 = postgres.map(|(_, ns)| ns / 1_000).sum();
    let parts = usage.iter().filter(|(part, ns)| **ns >= 1_000 || **part == CLIENTS);
    let parts: Vec<String> = parts.map(|(part, ns)| format!("{part} {}", ns / 1_000)).collect();
    format!("PostgreSQL {postgres}: {}", parts.join(", "))
}

fn number(row: &Value, name: &str) -> anyhow::Result<u64> {
    row[name].as_u64().with_context(|| format!("no {name} in {row}"))
}
