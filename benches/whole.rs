//! How many final transfers per second does the whole system do over HTTP, both ways mixed? How
//! long does one take without overload?
//!
//! Base cases, in the same run, on the same PostgreSQL with the same settings. Both balances are in
//! PostgreSQL: (a) as BEGIN, two guarded updates, one insert, COMMIT, and (b) as one function. Both
//! run by `pgbench -M prepared` at its best number of clients. Both are without HTTP, without
//! tokens, without a second system, and without a record of the caller. Server, PostgreSQL and load
//! share the machine.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, ensure};
use serde_json::Value;

use crate::environment::{Environment, ratio};
use crate::server::{Server, socket_directory};

/// Seconds of each measurement.
const SECONDS: u64 = 4;
/// The tried numbers of pgbench clients: more are slower on few cores.
const CLIENTS: [u64; 4] = [1, 8, 16, 32];
/// The tried numbers of connections.
const CONNECTIONS: [u64; 4] = [1, 32, 128, 256];
/// All of one asset, so that the asset is as hot as possible in every row.
const USERS: u64 = 1_000;
/// Connections in the case with one user for all transfers.
const HOT_CONNECTIONS: u64 = 1_000;

/// PostgreSQL's counters so far.
struct Done {
    commits: i64,
    bytes: i64,
}

/// Prints the rates of both base cases and of ubscore, and PostgreSQL's work for it.
pub(crate) async fn run(
    data_dir: &Path,
    server: &Server,
    postgres: &tokio_postgres::Client,
    environment: &Environment,
) -> anyhow::Result<()> {
    let pgbench_dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches").join("pgbench");
    postgres.batch_execute(&std::fs::read_to_string(pgbench_dir.join("schema.sql"))?).await?;

    let program = pgbench()?;
    let socket = socket_directory(data_dir)?;
    let mut best = [0; 2];
    for (best, (name, script)) in best
        .iter_mut()
        .zip([("(a) statements", "statements.sql"), ("(b) function", "function.sql")])
    {
        for clients in CLIENTS {
            let output = Command::new(&program)
                .args(["-n", "-M", "prepared", "--max-tries=10", "-j", "1", "-U", "postgres"])
                .args(["-c", &clients.to_string(), "-T", &SECONDS.to_string()])
                .arg("-h")
                .arg(&socket)
                .arg("-f")
                .arg(pgbench_dir.join(script))
                .arg("ubscore")
                .output()
                .context("pgbench")?;
            ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            let rate =
                tps(&String::from_utf8_lossy(&output.stdout)).context("pgbench printed no rate")?;
            println!("{name:<16}{clients:>4} clients {rate:>8}/s");
            *best = rate.max(*best);
        }
    }
    let [statements, function] = best;

    println!();
    let mut most = 0;
    for connections in CONNECTIONS {
        let before = done(postgres).await?;
        let report = load(server, USERS, connections, None)?;
        let row = &report["rows"][0];
        let after = done(postgres).await?;
        let (rate, operations) = (number(row, "achieved")?, number(&report, "operations")?);
        let (commits, bytes) = (after.commits - before.commits, after.bytes - before.bytes);
        println!("ubscore         {connections:>4} clients {rate:>8}/s");
        if rate > most {
            most = rate;
            println!(
                "                     {} commits and {} bytes of log a transfer",
                ratio(u64::try_from(commits)?, operations),
                u64::try_from(bytes)? / operations.max(1)
            );
        }
    }
    println!("\nubscore is {} x (a) and {} x (b)", ratio(most, statements), ratio(most, function));

    let hot = load(server, 1, HOT_CONNECTIONS, None)?;
    let rate = number(&hot["rows"][0], "achieved")?;
    println!(
        "one user        {HOT_CONNECTIONS:>4} clients {rate:>8}/s, {} x those of {USERS} users",
        ratio(rate, most)
    );

    let quarter = (most / 4).max(1);
    let row = &load(server, USERS, 128, Some(quarter))?["rows"][0];
    let us = |index: usize| row["latency_us"][index][1].as_u64().context("a latency");
    let (p50, p99) = (us(0)?, us(2)?);
    let d50_us = environment.d50 / 1_000;
    println!(
        "at {quarter}/s, open loop: p50 {p50} us ({} x D50), p99 {p99} us ({} x D50); the sender was late by {} us at p99.9",
        ratio(p50, d50_us),
        ratio(p99, d50_us),
        row["sender_late_us"]
    );
    println!();
    environment.judge("S11, at least 1.5 x (a)", 2 * most >= 3 * statements);
    environment.judge(
        "S12, p50 at most 8 x D50, p99 at most 30 x D50",
        p50 <= 8 * d50_us && p99 <= 30 * d50_us,
    );
    let committed = number(row, "committed")?;
    ensure!(committed > 0, "no transfer was committed");
    Ok(())
}

/// PostgreSQL's own load generator, beside its server.
fn pgbench() -> anyhow::Result<PathBuf> {
    let output = Command::new("pg_config").arg("--bindir").output().ok();
    let given = output.map(|output| PathBuf::from(String::from_utf8_lossy(&output.stdout).trim()));
    let debian = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let candidates = given.into_iter().chain(debian.map(|entry| entry.path().join("bin")));
    let found = candidates.map(|bin| bin.join("pgbench")).find(|path| path.is_file());
    found.context("pgbench is not there; on Debian it comes with the package postgresql")
}

/// Transactions per second, from pgbench's output.
fn tps(said: &str) -> Option<u64> {
    let line = said.lines().find_map(|line| line.strip_prefix("tps = "))?;
    line.split('.').next()?.parse().ok()
}

async fn done(postgres: &tokio_postgres::Client) -> anyhow::Result<Done> {
    // PostgreSQL's own counters lag by up to a second.
    let settled = "SELECT pg_stat_force_next_flush(), pg_sleep(1.5)";
    postgres.batch_execute(settled).await?;
    let row = postgres
        .query_one(
            "SELECT xact_commit, (pg_current_wal_lsn() - '0/0')::bigint FROM pg_stat_database \
             WHERE datname = current_database()",
            &[],
        )
        .await?;
    Ok(Done { commits: row.get(0), bytes: row.get(1) })
}

fn load(server: &Server, users: u64, connections: u64, rate: Option<u64>) -> anyhow::Result<Value> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ubscore"));
    command.args(["load", "--dev", "--format", "json", "--users", &users.to_string()]);
    command.args(["--connections", &connections.to_string(), "--duration", &format!("{SECONDS}s")]);
    command.arg("--url").arg(format!("http://{}", server.http));
    command.arg("--ops").arg(format!("http://{}", server.ops));
    if let Some(rate) = rate {
        command.arg("--rate").arg(rate.to_string());
    }
    let output = command.output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(serde_json::from_slice(&output.stdout)?)
}

fn number(row: &Value, name: &str) -> anyhow::Result<u64> {
    row[name].as_u64().with_context(|| format!("no {name} in {row}"))
}
