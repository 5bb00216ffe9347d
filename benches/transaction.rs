//! How long does one client wait for one transaction over both stores, until both have booked? And
//! how many a second are there for 64 clients?
//!
//! Base cases, in the same run and in turns: transfers. For one client those from Spot to Funding,
//! for 64 those of `ubscore load`, both ways mixed. The lower bound of all is `D50`.
//!
//! A transaction has one leg of Funding and one of Spot, between two users of its client, and the
//! service decides it. Commits of PostgreSQL, syncs of the log and the CPU time of the service are
//! counted meanwhile.
//!
//! `cargo bench --bench transaction -- N`: N transactions one at a time, against the release binary
//! with `serve --dev`, and a PostgreSQL with the settings of the embedded one; both are new. The
//! balances of all users are compared at the end.

mod database;
mod environment;
mod server;

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use domain::amount::{units_from_text, units_text};
use futures_util::future::try_join_all;
use hyper::{Method, StatusCode};
use procfs::process::Process;
use serde_json::{Value, json};
use ubscore::clock::{Clock, SystemClock};
use ubscore::commands::load::client::Client;
use ubscore::config::{Config, Overrides};
use ubscore::http::auth::{self, Owner, Role};
use ubscore::postgres::embedded::Embedded;

use crate::database::{connect_postgres, settings, start_postgres};
use crate::environment::{Environment, Latencies, per_second, ratio, scratch};
use crate::server::Server;

const TRANSACTIONS: u64 = 1_000;
/// Uncounted ones.
const WARM_UP: u64 = 100;
/// Clients of the crowd, each with two users of its own.
const CLIENTS: u64 = 64;
/// Measurements of a crowd, of transfers and of transactions in turns.
const ROUNDS: usize = 3;
/// The length of each.
const LENGTH: Duration = Duration::from_secs(4);
/// Before it: uncounted.
const CROWD_WARM_UP: Duration = Duration::from_secs(1);
/// The first user; `ubscore load` has others.
const FIRST_USER: u64 = 900_001;
const OPERATOR: u64 = 1;
const ASSET: &str = "USDT";
const PRECISION: u8 = 8;
/// The first balance of each user on each store, and the amount of each leg, smallest units.
const MONEY: u64 = 100_000_000_000;
const UNITS: u64 = 2_000;
/// How long the tokens are valid.
const LIFE: Duration = Duration::from_secs(3_600);

fn main() -> anyhow::Result<()> {
    let count = environment::count(TRANSACTIONS)?;
    let scratch = scratch()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let postgres = start_postgres(scratch.path()).await?;
        let done = run(scratch.path(), &postgres, count).await;
        postgres.stop().await.context("stop PostgreSQL")?;
        done
    })
}

async fn run(data_dir: &Path, embedded: &Embedded, count: u64) -> anyhow::Result<()> {
    let (server, _) = &Server::start(data_dir, embedded, &[])?;
    let postgres = connect_postgres(&embedded.config()).await?;
    let environment = Environment::probe(data_dir, Some(&settings(&postgres).await?))?;
    let tokens = Tokens::new()?;
    let mut desks = Vec::new();
    for number in 0..CLIENTS {
        desks.push(Desk::open(server, &tokens, FIRST_USER + 2 * number).await?);
    }
    let operator = tokens.sign(OPERATOR, Some(Role::Admin))?;
    let mut meter = Meter { postgres, ops: server.ops.to_string(), operator, pid: server.pid() };

    desks[0].connect().await?;
    let one = run_one(&mut desks[0], &mut meter, count).await.context("one client")?;
    one.print(&environment)?;
    let many = run_many(server, &mut desks, &mut meter).await.context("many clients")?;
    many.print();
    for desk in &mut desks {
        desk.connect().await?;
        desk.check().await?;
    }
    println!("balances: correct\n");
    let [_, to_funding, transactions] = &one.latencies;
    environment.judge(
        "P8, one client: p50 at most 1.5 x Spot to Funding",
        2 * transactions.quantile(0.5) <= 3 * to_funding.quantile(0.5),
    );
    let (base, own) = (median(&many.transfers), median(&many.transactions));
    environment.judge("P8, 64 clients: at least 0.3 x the transfers", 10 * own >= 3 * base);
    Ok(())
}

/// One client.
struct One {
    /// Of transfers to Spot and to Funding, and of transactions.
    latencies: [Latencies; 3],
    cost: Cost,
}

/// Transfers and transactions one at a time, in turns.
async fn run_one(desk: &mut Desk, meter: &mut Meter, count: u64) -> anyhow::Result<One> {
    let mut latencies = [Latencies::new(), Latencies::new(), Latencies::new()];
    for number in 0..WARM_UP + count {
        for (step, latencies) in latencies.iter_mut().enumerate() {
            let asked = Instant::now();
            match step {
                0 => desk.transfer("FUNDING", "SPOT").await?,
                1 => desk.transfer("SPOT", "FUNDING").await?,
                _ => desk.transaction().await?,
            }
            if number >= WARM_UP {
                latencies.record(asked.elapsed());
            }
        }
    }
    // Alone, so that nothing else is counted.
    let before = meter.read().await?;
    for _ in 0..count {
        desk.transaction().await?;
    }
    let cost = before.until(&meter.read().await?, count);
    Ok(One { latencies, cost })
}

impl One {
    fn print(&self, environment: &Environment) -> anyhow::Result<()> {
        let [to_spot, to_funding, transactions] = &self.latencies;
        environment.table(&[
            ("Funding to Spot", to_spot),
            ("Spot to Funding", to_funding),
            ("transaction", transactions),
        ])?;
        let times = ratio(transactions.quantile(0.5), to_funding.quantile(0.5));
        println!("transaction: p50 {times} x Spot to Funding");
        let rate = per_second(1, Duration::from_nanos(transactions.quantile(0.5)));
        println!("transaction: {rate}/s at p50, one at a time");
        println!("one client: {}", self.cost);
        Ok(())
    }
}

/// Many clients: rates by round.
struct Many {
    transfers: Vec<u64>,
    transactions: Vec<u64>,
    cost: Cost,
    latencies: Latencies,
}

async fn run_many(server: &Server, desks: &mut [Desk], meter: &mut Meter) -> anyhow::Result<Many> {
    let (mut transfers, mut transactions, mut latencies) =
        (Vec::new(), Vec::new(), Latencies::new());
    let mut cost = Cost::default();
    for _ in 0..ROUNDS {
        transfers.push(load(server)?);
        crowd(desks, CROWD_WARM_UP).await?;
        let (before, began) = (meter.read().await?, Instant::now());
        let each = crowd(desks, LENGTH).await?;
        let took = began.elapsed();
        let count: u64 = each.iter().map(|(count, _)| count).sum();
        for (_, part) in &each {
            latencies += part;
        }
        cost = before.until(&meter.read().await?, count);
        transactions.push(per_second(count, took));
    }
    Ok(Many { transfers, transactions, cost, latencies })
}

impl Many {
    fn print(&self) {
        println!(
            "\n{:<28}{:>12}{:>16}{:>8}",
            "64 clients, by round", "transfers/s", "transactions/s", "ratio"
        );
        for (round, (base, own)) in self.transfers.iter().zip(&self.transactions).enumerate() {
            println!("{:<28}{base:>12}{own:>16}{:>8}", round + 1, ratio(*own, *base));
        }
        let ms = |quantile| ratio(self.latencies.quantile(quantile), 1_000_000);
        println!("64 clients: p50 {} ms, p99 {} ms", ms(0.5), ms(0.99));
        println!("64 clients: {}", self.cost);
    }
}

/// Transactions of all clients at once for so long. Returns count and latencies of each.
async fn crowd(desks: &mut [Desk], length: Duration) -> anyhow::Result<Vec<(u64, Latencies)>> {
    for desk in desks.iter_mut() {
        desk.connect().await?;
    }
    let began = Instant::now();
    let each = desks.iter_mut().map(|desk| async move {
        let (mut count, mut latencies) = (0, Latencies::new());
        while began.elapsed() < length {
            let asked = Instant::now();
            desk.transaction().await?;
            latencies.record(asked.elapsed());
            count += 1;
        }
        anyhow::Ok((count, latencies))
    });
    try_join_all(each).await
}

/// Transfers a second of as many clients.
fn load(server: &Server) -> anyhow::Result<u64> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ubscore"));
    command.args(["load", "--dev", "--format", "json", "--users", &(2 * CLIENTS).to_string()]);
    command.args(["--connections", &CLIENTS.to_string()]);
    command.arg("--warm-up").arg(format!("{}s", CROWD_WARM_UP.as_secs()));
    command.arg("--duration").arg(format!("{}s", LENGTH.as_secs()));
    command.arg("--url").arg(format!("http://{}", server.http));
    command.arg("--ops").arg(format!("http://{}", server.ops));
    let output = command.output().context("start ubscore load")?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout)?;
    report["rows"][0]["achieved"].as_u64().with_context(|| format!("no rate in {report}"))
}

/// A client with its two users.
struct Desk {
    http: String,
    client: Client,
    service: String,
    users: [u64; 2],
    tokens: [String; 2],
    /// Transactions so far: the money goes there and back.
    done: u64,
}

impl Desk {
    /// Connects, and gives money to both users on both stores.
    async fn open(server: &Server, tokens: &Tokens, first: u64) -> anyhow::Result<Desk> {
        let mut ops = Client::connect(&server.ops.to_string()).await?;
        let operator = tokens.sign(OPERATOR, Some(Role::Admin))?;
        let users = [first, first + 1];
        let http = server.http.to_string();
        let mut desk = Desk {
            client: Client::connect(&http).await?,
            http,
            service: tokens.sign(OPERATOR, Owner::new("bench").map(Role::Service))?,
            users,
            tokens: [tokens.sign(users[0], None)?, tokens.sign(users[1], None)?],
            done: 0,
        };
        for (user, token) in users.into_iter().zip(desk.tokens.clone()) {
            let deposit = json!({
                "user_id": user, "asset": ASSET, "amount": amount(2 * MONEY),
                "idem_key": format!("bench-{user}"),
            });
            let path = "/admin/v1/deposits";
            let (status, answer) =
                ops.send(Method::POST, path, &operator, deposit.to_string()).await?;
            ensure!(status == StatusCode::OK, "deposit: {status} {answer}");
            desk.transfer_of(&token, "FUNDING", "SPOT", MONEY).await?;
        }
        Ok(desk)
    }

    /// Connects again: the server ends a connection that was idle for long.
    async fn connect(&mut self) -> anyhow::Result<()> {
        self.client = Client::connect(&self.http).await?;
        Ok(())
    }

    async fn transfer(&mut self, from: &str, to: &str) -> anyhow::Result<()> {
        let token = self.tokens[0].clone();
        self.transfer_of(&token, from, to, UNITS).await
    }

    async fn transfer_of(
        &mut self,
        token: &str,
        from: &str,
        to: &str,
        units: u64,
    ) -> anyhow::Result<()> {
        let body = json!({"from": from, "to": to, "asset": ASSET, "amount": amount(units)});
        let path = "/api/v1/internal_transfer";
        let (status, answer) =
            self.client.send(Method::POST, path, token, body.to_string()).await?;
        let is_final = answer.contains("\"COMMITTED\"");
        ensure!(status == StatusCode::OK && is_final, "transfer: {status} {answer}");
        Ok(())
    }

    /// One transaction: a leg of Funding to the other user, and one of Spot back.
    async fn transaction(&mut self) -> anyhow::Result<()> {
        let (payer, payee) = match self.done.is_multiple_of(2) {
            true => (self.users[0], self.users[1]),
            false => (self.users[1], self.users[0]),
        };
        let leg = |account: &str, from: u64, to: u64| {
            json!({
                "from": {"account": account, "user_id": from},
                "to": {"account": account, "user_id": to},
                "asset": ASSET, "amount": amount(UNITS),
            })
        };
        let body = json!({
            "tx_id": format!("{}-{}", self.users[0], self.done),
            "legs": [leg("FUNDING", payer, payee), leg("SPOT", payee, payer)],
        });
        let path = "/api/v1/transactions";
        let (status, answer) =
            self.client.send(Method::POST, path, &self.service, body.to_string()).await?;
        ensure!(status == StatusCode::OK, "transaction {}: {status} {answer}", self.done);
        self.done += 1;
        Ok(())
    }

    /// Compares the balances of both users.
    async fn check(&mut self) -> anyhow::Result<()> {
        let moved = if self.done.is_multiple_of(2) { 0 } else { UNITS };
        let wanted = [(MONEY - moved, MONEY + moved), (MONEY + moved, MONEY - moved)];
        for (token, wanted) in self.tokens.iter().zip(wanted) {
            let path = format!("/api/v1/balances?asset={ASSET}");
            let asked = self.client.send(Method::GET, &path, token, String::new());
            let (status, answer) = asked.await?;
            ensure!(status == StatusCode::OK, "balances: {status} {answer}");
            let answer: Value = serde_json::from_str(&answer)?;
            let units = |side: &str| {
                let text = answer["balances"][0][side]["available"].as_str()?;
                units_from_text(text, PRECISION)
            };
            let found = units("funding").zip(units("spot"));
            let wanted = (u128::from(wanted.0), u128::from(wanted.1));
            ensure!(found == Some(wanted), "{answer}, not {wanted:?}");
        }
        Ok(())
    }
}

fn amount(units: u64) -> String {
    units_text(u128::from(units), PRECISION)
}

/// Signs tokens with the secret of `serve --dev`.
struct Tokens {
    config: Config,
    now_s: u64,
}

impl Tokens {
    fn new() -> anyhow::Result<Tokens> {
        let config = Config::load(None, Overrides::default(), true)?;
        Ok(Tokens { config, now_s: SystemClock::new().now_s() })
    }

    fn sign(&self, user: u64, role: Option<Role>) -> anyhow::Result<String> {
        Ok(auth::sign(&self.config.auth, user, role, LIFE, self.now_s)?)
    }
}

/// Reads the counters of PostgreSQL, of the service, and of its process.
struct Meter {
    postgres: tokio_postgres::Client,
    ops: String,
    operator: String,
    pid: i32,
}

/// The counters so far.
struct Reading {
    /// Transaction ids that PostgreSQL has given: one for each commit that writes.
    commits: u64,
    /// Commits of the worker of transactions, of those.
    of_worker: u64,
    syncs: u64,
    /// CPU time of the service, ticks of the system.
    ticks: u64,
}

/// The cost of one transaction, in thousandths.
#[derive(Default)]
struct Cost {
    commits: u64,
    of_worker: u64,
    syncs: u64,
    cpu_us: u64,
}

impl Meter {
    async fn read(&mut self) -> anyhow::Result<Reading> {
        let next = "SELECT pg_snapshot_xmax(pg_current_snapshot())::text";
        let commits = self.postgres.query_one(next, &[]).await?.get::<_, &str>(0).parse()?;
        // The server ends a connection that was idle for long.
        let mut ops = Client::connect(&self.ops).await?;
        let asked = ops.send(Method::GET, "/metrics", &self.operator, String::new());
        let (status, metrics) = asked.await?;
        ensure!(status == StatusCode::OK, "metrics: {status} {metrics}");
        let metric = |name: &str| {
            let value = |line: &str| line.strip_prefix(name)?.trim().parse().ok();
            metrics.lines().find_map(value).unwrap_or(0)
        };
        let stat = Process::new(self.pid)?.stat()?;
        Ok(Reading {
            commits,
            of_worker: metric("ubscore_transaction_commits_total "),
            syncs: metric("ubscore_wal_sync_seconds_count "),
            ticks: stat.utime + stat.stime,
        })
    }
}

impl Reading {
    fn until(&self, after: &Reading, count: u64) -> Cost {
        let each = |before: u64, after: u64| (after - before) * 1_000 / count.max(1);
        let tick_us = 1_000_000 / procfs::ticks_per_second();
        Cost {
            commits: each(self.commits, after.commits),
            of_worker: each(self.of_worker, after.of_worker),
            syncs: each(self.syncs, after.syncs),
            cpu_us: (after.ticks - self.ticks) * tick_us / count.max(1),
        }
    }
}

impl std::fmt::Display for Cost {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Cost { commits, of_worker, syncs, cpu_us } = self;
        let [commits, of_worker, syncs] =
            [commits, of_worker, syncs].map(|thousandths| ratio(*thousandths, 1_000));
        write!(
            f,
            "{commits} commits a transaction, {of_worker} of them by its worker; {syncs} syncs; \
             {cpu_us} us CPU of the service"
        )
    }
}

fn median(values: &[u64]) -> u64 {
    let mut values = values.to_vec();
    values.sort_unstable();
    values.get(values.len() / 2).copied().unwrap_or(0)
}
