//! How many verified callbacks of payment channels are committed a second, and how long does one
//! take from its arrival to the answer behind its commit?
//!
//! Base cases, in the same run, in turns, on the same PostgreSQL with the same settings, without
//! HTTP and without signatures: (c) the six writes of a payment as statements of one transaction,
//! and (d) as one function, both by `pgbench -M prepared`. The lower bound of all is `D50`.
//!
//! The orders are rows that this bench writes, and it signs the callbacks by the keys of the
//! simulator of channels. A callback of cards is signed by HMAC; one of WeChat Pay is signed by RSA
//! and sealed by AES-GCM. Every callback is of an order of its own, and credits its user.
//!
//! `cargo bench --bench recharge -- N`: N callbacks in each measurement, against the release binary
//! with `serve --dev --channel-sim`, and a PostgreSQL with the settings of the embedded one; both
//! are new. The sum of all balances is compared at the end.

mod base;
mod database;
mod environment;
mod letters;
mod server;

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use bytes::Bytes;
use futures_util::future::try_join_all;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::header::{CONTENT_TYPE, HOST};
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use procfs::process::Process;
use serde_json::Value;
use tokio::net::TcpStream;
use ubscore::postgres::embedded::Embedded;

use crate::base::{figure, pgbench, scripts};
use crate::database::{connect_postgres, settings, start_postgres};
use crate::environment::{Environment, Latencies, per_second, ratio, scratch};
use crate::letters::{Format, Letter, Pen, UNITS};
use crate::server::Server;

/// Callbacks of each measurement.
const CALLBACKS: u64 = 6_000;
/// Callbacks one at a time.
const ALONE: u64 = 500;
const ROUNDS: usize = 3;
/// The tried numbers of clients; the listener takes 64 callbacks at once.
const COUNTS: [usize; 3] = [8, 32, 64];
/// Seconds of a base case.
const SECONDS: u64 = 3;
const FIRST_USER: i64 = 700_001;
const USERS: i64 = 1_000;
/// The user of the case with one user for all callbacks.
const HOT_USER: i64 = 800_001;
/// Transfers a second beside callbacks.
const TRANSFERS: u64 = 1_000;

/// The compared systems.
#[derive(Clone, Copy, PartialEq, Eq)]
enum System {
    Statements,
    Function,
    Hmac,
    Rsa,
    OneUser,
}

impl System {
    const ALL: [System; 5] =
        [System::Statements, System::Function, System::Hmac, System::Rsa, System::OneUser];

    fn name(self) -> &'static str {
        match self {
            System::Statements => "(c)",
            System::Function => "(d)",
            System::Hmac => "HMAC",
            System::Rsa => "RSA",
            System::OneUser => "one user",
        }
    }
}

/// The server and the base cases of a run.
struct Bench<'a> {
    server: &'a Server,
    callbacks: SocketAddr,
    postgres: &'a tokio_postgres::Client,
    url: String,
    pen: Pen,
    count: u64,
    /// Orders that were made and paid.
    paid: u64,
    /// Answers 503: sent again.
    again: u64,
}

fn main() -> anyhow::Result<()> {
    let count = environment::count(CALLBACKS)?;
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
    let (server, callbacks) = &Server::start(data_dir, embedded, &["--channel-sim"])?;
    let postgres = &connect_postgres(&embedded.config()).await?;
    let environment = Environment::probe(data_dir, Some(&settings(postgres).await?))?;
    let schema = std::fs::read_to_string(scripts().join("paid_schema.sql"))?;
    postgres.batch_execute(&schema).await?;
    let callbacks = callbacks.context("a listener of callbacks")?;
    let (pen, url) = (Pen::open(data_dir)?, embedded.url());
    let mut bench = Bench { server, callbacks, postgres, url, pen, count, paid: 0, again: 0 };
    // Every user has an account behind it.
    bench.callbacks_of(System::Hmac, 64, USERS.unsigned_abs()).await?;
    let most = bench.crowd(&environment).await?;
    bench.alone(&environment).await?;
    bench.beside(&environment, most / 4).await?;
    println!("answered 503, and sent again: {}", bench.again);
    bench.compare().await
}

impl Bench<'_> {
    /// Measures each system with each number of clients, in turns; returns the best median rate of
    /// callbacks by HMAC.
    async fn crowd(&mut self, environment: &Environment) -> anyhow::Result<u64> {
        // By number of clients, by round, by system.
        let mut rates: Vec<Vec<Vec<u64>>> = COUNTS.map(|_| Vec::new()).into();
        let mut commits = Vec::new();
        let process = Process::new(self.server.pid())?;
        let tick_us = 1_000_000 / procfs::ticks_per_second();
        let names: String =
            System::ALL.iter().map(|system| format!("{:>10}", system.name())).collect();
        println!(
            "{:>6}{:>9}{names}   commits, CPU us of the service, a callback by HMAC",
            "round", "clients"
        );
        for round in 1..=ROUNDS {
            for (clients, rates) in COUNTS.into_iter().zip(&mut rates) {
                let mut turn = Vec::new();
                let (mut milli_commits, mut cpu_us) = (0, 0);
                for system in System::ALL {
                    let (before, used) = (self.commits().await?, process.stat()?);
                    turn.push(match system {
                        System::Statements => self.base("paid_statements.sql", clients)?,
                        System::Function => self.base("paid_function.sql", clients)?,
                        _ => self.callbacks_of(system, clients, self.count).await?,
                    });
                    if system == System::Hmac {
                        let made = u64::try_from(self.commits().await? - before)?;
                        milli_commits = made * 1_000 / self.count;
                        let now = process.stat()?;
                        let ticks = now.utime + now.stime - used.utime - used.stime;
                        cpu_us = ticks * tick_us / self.count;
                    }
                }
                let cells: String = turn.iter().map(|rate| format!("{rate:>10}")).collect();
                let commits_each = ratio(milli_commits, 1_000);
                println!("{round:>6}{clients:>9}{cells}   {commits_each}, {cpu_us}");
                rates.push(turn);
                commits.push((clients, milli_commits));
            }
        }
        let best = |system: System, round: usize| {
            rates.iter().map(|rounds| rounds[round][system as usize]).max().unwrap_or(0)
        };
        // The lowest ratio of a round, in hundredths.
        let lowest = |system: System, base: System| {
            let round = |round| best(system, round) * 100 / best(base, round).max(1);
            (0..ROUNDS).map(round).min().unwrap_or(0)
        };
        let goal = |name: &str, system, base, hundredths: u64| {
            let found = lowest(system, base);
            println!("{name}: {} in the lowest round", ratio(found, 100));
            environment.judge(name, found >= hundredths);
        };
        goal("P1, HMAC: 1.0 x (c)", System::Hmac, System::Statements, 100);
        goal("P1, stretch: 0.8 x (d)", System::Hmac, System::Function, 80);
        goal("P1, RSA: 0.9 x HMAC", System::Rsa, System::Hmac, 90);
        goal("P3, one user: 0.9 x HMAC", System::OneUser, System::Hmac, 90);
        let full = commits.iter().filter(|(clients, _)| *clients == COUNTS[COUNTS.len() - 1]);
        let most = full.map(|(_, milli)| *milli).max().unwrap_or(0);
        environment.judge("P4, at most 0.1 commits a callback with 64 clients", most <= 100);
        let mut of_rounds: Vec<u64> = (0..ROUNDS).map(|round| best(System::Hmac, round)).collect();
        of_rounds.sort_unstable();
        Ok(of_rounds[ROUNDS / 2])
    }

    /// One callback at a time, and one call of the function.
    async fn alone(&mut self, environment: &Environment) -> anyhow::Result<()> {
        let letters = self.letters(System::Hmac, ALONE).await?;
        let mut client = Caller::connect(self.callbacks).await?;
        let statement = self.postgres.prepare("SELECT paid.credit($1, $2, $3)").await?;
        let (mut callbacks, mut function) = (Latencies::new(), Latencies::new());
        for (number, letter) in (0..).zip(&letters) {
            let asked = Instant::now();
            self.again += client.deliver(letter).await?;
            callbacks.record(asked.elapsed());
            let (order, user) = (number % 200_000_i64, 1 + number % 1_000);
            let asked = Instant::now();
            self.postgres
                .query_one(&statement, &[&order, &user, &format!("alone {number}")])
                .await?;
            function.record(asked.elapsed());
        }
        environment.table(&[("a callback", &callbacks), ("(d)", &function)])?;
        let (p50, base) = (callbacks.quantile(0.5), function.quantile(0.5));
        println!("a callback: p50 {} x (d)", ratio(p50, base));
        environment.judge("P2, one at a time: p50 at most 2 x (d)", p50 <= 2 * base);
        Ok(())
    }

    /// Transfers at a fixed rate, alone and beside callbacks, in turns.
    async fn beside(&mut self, environment: &Environment, rate: u64) -> anyhow::Result<()> {
        let mut ratios = Vec::new();
        for round in 1..=ROUNDS {
            let alone = self.transfers().await?;
            let letters = self.letters(System::Hmac, rate * 2 * SECONDS).await?;
            let (callbacks, clients) = (self.callbacks, 16);
            let pause = Duration::from_secs(1) * clients / u32::try_from(rate.max(1))?;
            let load = paced(callbacks, letters, usize::try_from(clients)?, pause);
            let (again, beside) = tokio::join!(load, self.transfers());
            self.again += again?;
            let beside = beside?;
            let hundredths = beside * 100 / alone.max(1);
            println!(
                "round {round}: transfers at {TRANSFERS}/s, p50 {alone} us alone, {beside} us \
                 beside {rate} callbacks a second: {} x",
                ratio(hundredths, 100)
            );
            ratios.push(hundredths);
        }
        ratios.sort_unstable();
        environment.judge("P8, beside a quarter of P1: p50 at most 1.3 x", ratios[1] <= 130);
        Ok(())
    }

    /// The p50 of transfers by `ubscore load`, us.
    async fn transfers(&self) -> anyhow::Result<u64> {
        let mut command = tokio::process::Command::new(env!("CARGO_BIN_EXE_ubscore"));
        command.args(["load", "--dev", "--format", "json", "--warm-up", "1s", "--users", "1000"]);
        command.args(["--connections", "64", "--rate", &TRANSFERS.to_string(), "--duration"]);
        command.arg(format!("{SECONDS}s")).arg("--url").arg(format!("http://{}", self.server.http));
        let output = command.arg("--ops").arg(format!("http://{}", self.server.ops)).output();
        let output = output.await?;
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let report: Value = serde_json::from_slice(&output.stdout)?;
        report["rows"][0]["latency_us"][0][1].as_u64().context("a latency")
    }

    /// Makes orders and sends their callbacks; returns the rate.
    async fn callbacks_of(
        &mut self,
        system: System,
        clients: usize,
        count: u64,
    ) -> anyhow::Result<u64> {
        let letters = self.letters(system, count).await?;
        let began = Instant::now();
        let again = paced(self.callbacks, letters, clients, Duration::ZERO).await?;
        self.again += again;
        Ok(per_second(count, began.elapsed()))
    }

    async fn letters(&mut self, system: System, count: u64) -> anyhow::Result<Vec<Letter>> {
        let format = if system == System::Rsa { Format::WeChat } else { Format::Card };
        let users: Vec<i64> = (0..i64::try_from(count)?)
            .map(|number| match system {
                System::OneUser => HOT_USER,
                _ => FIRST_USER + number % USERS,
            })
            .collect();
        self.paid += count;
        self.pen.orders(self.postgres, format, &users).await
    }

    /// Runs a base case; returns its rate.
    fn base(&self, script: &str, clients: usize) -> anyhow::Result<u64> {
        let output = Command::new(pgbench()?)
            .args(["-n", "-M", "prepared", "-j", "1", "-c", &clients.to_string()])
            .args(["-T", &SECONDS.to_string(), "-f"])
            .arg(scripts().join(script))
            .arg(&self.url)
            .output()?;
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let said = String::from_utf8_lossy(&output.stdout);
        figure(&said, "tps =").context("pgbench printed no rate")
    }

    /// Commits so far.
    async fn commits(&self) -> anyhow::Result<i64> {
        // PostgreSQL's own counters lag by up to a second.
        self.postgres.batch_execute("SELECT pg_stat_force_next_flush(), pg_sleep(1.5)").await?;
        let counter = "SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()";
        Ok(self.postgres.query_one(counter, &[]).await?.get(0))
    }

    /// Compares the orders and the balances that are left.
    async fn compare(&self) -> anyhow::Result<()> {
        let sums = "SELECT (SELECT count(*) FROM recharges_tb WHERE state = 40), \
                           (SELECT sum(available)::bigint FROM balances_tb \
                             WHERE user_id BETWEEN $1 AND $2)";
        let row = self.postgres.query_one(sums, &[&FIRST_USER, &HOT_USER]).await?;
        let (orders, units): (i64, i64) = (row.get(0), row.get(1));
        let paid = i64::try_from(self.paid)?;
        ensure!(orders == paid, "{orders} orders are PAID, of {paid}");
        ensure!(units == paid * UNITS, "users have {units} units of {}", paid * UNITS);
        println!("balances: correct");
        Ok(())
    }
}

/// Sends letters over so many connections, each with a pause between two; returns the number of
/// those that were sent again.
async fn paced(
    callbacks: SocketAddr,
    letters: Vec<Letter>,
    clients: usize,
    pause: Duration,
) -> anyhow::Result<u64> {
    let client = |number: usize| {
        let letters: Vec<Letter> = letters.iter().skip(number).step_by(clients).cloned().collect();
        async move {
            let mut caller = Caller::connect(callbacks).await?;
            let (began, mut again) = (Instant::now(), 0);
            for (turn, letter) in (0..).zip(&letters) {
                let due: Duration = pause * turn;
                if let Some(early) = due.checked_sub(began.elapsed()).filter(|it| !it.is_zero()) {
                    tokio::time::sleep(early).await;
                }
                again += caller.deliver(letter).await?;
            }
            anyhow::Ok(again)
        }
    };
    let again = try_join_all((0..clients).map(client)).await?;
    Ok(again.into_iter().sum())
}

/// A connection to the listener of callbacks.
struct Caller {
    sender: SendRequest<Full<Bytes>>,
    host: String,
}

impl Caller {
    async fn connect(address: SocketAddr) -> anyhow::Result<Caller> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let (sender, connection) = handshake(TokioIo::new(stream)).await?;
        // The task ends with the sender. An error reaches the sender's next request.
        drop(tokio::spawn(connection));
        Ok(Caller { sender, host: address.to_string() })
    }

    /// Sends a callback until it is answered with success; returns how often it was sent again.
    async fn deliver(&mut self, letter: &Letter) -> anyhow::Result<u64> {
        let mut again = 0;
        loop {
            let mut request = Request::builder()
                .method(Method::POST)
                .uri(format!("/callbacks/v1/{}", letter.channel))
                .header(HOST, &self.host)
                .header(CONTENT_TYPE, "application/json");
            for (name, value) in &letter.head {
                request = request.header(*name, value);
            }
            self.sender.ready().await?;
            let answer = self.sender.send_request(request.body(Full::from(letter.body.clone()))?);
            let answer = answer.await?;
            let status = answer.status();
            answer.into_body().collect().await?;
            match status {
                StatusCode::NO_CONTENT => return Ok(again),
                StatusCode::SERVICE_UNAVAILABLE => again += 1,
                status => anyhow::bail!("a callback was answered {status}"),
            }
        }
    }
}
