//! How long does one client wait for one transfer over HTTP, from the request to its final state,
//! in either direction?
//!
//! Base case: PostgreSQL alone, with both balances: one transaction of BEGIN, two guarded updates,
//! one insert and COMMIT, prepared, one at a time, on ubscore's own server, in the same run. The
//! lower bound of both is `D50`: a durable step takes at least one write and fdatasync.
//!
//! `whole.rs` measures many at once.
//!
//! `cargo bench --bench transfer -- N`: N transfers each way, in turn, one at a time, against the
//! release binary with `serve --dev`, and a PostgreSQL with the settings of the embedded one; both
//! are new. The final balances are read over HTTP.

mod base;
mod database;
mod environment;
mod server;
mod usage;
mod whole;

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use domain::amount::{units_from_text, units_text};
use hyper::{Method, StatusCode};
use serde_json::Value;
use ubscore::commands::load::client::Client;
use ubscore::postgres::embedded::Embedded;

use crate::database::{connect_postgres, settings, start_postgres};
use crate::environment::{Environment, Latencies, per_second, ratio, scratch};
use crate::server::Server;

const TRANSFERS: u64 = 1_000;
/// Uncounted transfers each way.
const WARM_UP: u64 = 100;
/// The development user that gets money from `serve --dev`, and its decimals.
const USER: &str = "1001";
const ASSET: &str = "USDT";
const PRECISION: u8 = 8;
/// Funding's first balance, smallest units.
const FUNDING: u64 = 1_000_000_000_000;
/// Smallest units of one transfer. They differ, so that the final balances prove that both
/// directions took place.
const TO_SPOT: u64 = 2_000;
const TO_FUNDING: u64 = 500;
/// The change of the final balances by one transfer each way, smallest units.
const NET: u64 = TO_SPOT - TO_FUNDING;

/// Each is PostgreSQL's least work for one transfer.
const BASE: [&str; 5] = [
    "BEGIN",
    "UPDATE bench.accounts SET units = units - $2 WHERE id = $1 AND units >= $2",
    "UPDATE bench.accounts SET units = units + $2 WHERE id = $1 AND active",
    "INSERT INTO bench.transfers (id, source, target, units) VALUES ($1, $2, $3, $4)",
    "COMMIT",
];

fn main() -> anyhow::Result<()> {
    let transfers = environment::count(TRANSFERS)?;
    let most = FUNDING / TO_SPOT - WARM_UP;
    ensure!(transfers <= most, "the development user has money for {most} transfers");
    let scratch = scratch()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let postgres = start_postgres(scratch.path()).await?;
        let done = run(scratch.path(), &postgres, transfers).await;
        postgres.stop().await.context("stop PostgreSQL")?;
        done
    })
}

async fn run(data_dir: &Path, embedded: &Embedded, transfers: u64) -> anyhow::Result<()> {
    let (server, _) = &Server::start(data_dir, embedded, &[])?;
    let postgres = connect_postgres(&embedded.config()).await?;
    let environment = Environment::probe(data_dir, Some(&settings(&postgres).await?))?;

    let base = run_base(&postgres, transfers).await.context("the base case")?;
    let mut user =
        User { client: Client::connect(&server.http.to_string()).await?, token: token()? };
    let [to_spot, to_funding] = run_transfers(&mut user, transfers).await?;

    let moved = (WARM_UP + transfers) * NET;
    let wanted = (u128::from(FUNDING - moved), u128::from(moved));
    let balances = user.balances().await?;
    ensure!(balances == wanted, "Funding and Spot hold {balances:?}, not {wanted:?}");

    let rows = [
        ("PostgreSQL alone", &base),
        ("Funding to Spot", &to_spot),
        ("Spot to Funding", &to_funding),
    ];
    environment.table(&rows)?;
    for (name, latencies) in &rows[1..] {
        println!("{name}: p50 {} x base", ratio(latencies.quantile(0.5), base.quantile(0.5)));
    }
    for (name, latencies) in rows {
        let rate = per_second(1, Duration::from_nanos(latencies.quantile(0.5)));
        println!("{name}: {rate}/s at p50, one at a time");
    }
    println!("balances: correct\n");
    let within = |latencies: &Latencies, times| latencies.quantile(0.5) <= times * environment.d50;
    environment.judge("S12b, Funding to Spot: p50 at most 6 x D50", within(&to_spot, 6));
    environment.judge("S12b, Spot to Funding: p50 at most 9 x D50", within(&to_funding, 9));
    println!();
    whole::run(data_dir, server, embedded, &postgres, &environment).await
}

/// Both directions in turn, so that a disturbance of the machine hits both.
async fn run_transfers(user: &mut User, transfers: u64) -> anyhow::Result<[Latencies; 2]> {
    let body = |from, to, units: u64| {
        let amount = units_text(u128::from(units), PRECISION);
        format!(r#"{{"from":"{from}","to":"{to}","asset":"{ASSET}","amount":"{amount}"}}"#)
    };
    let bodies = [body("FUNDING", "SPOT", TO_SPOT), body("SPOT", "FUNDING", TO_FUNDING)];
    let mut latencies = [Latencies::new(), Latencies::new()];
    for number in 0..WARM_UP + transfers {
        for (body, latencies) in bodies.iter().zip(&mut latencies) {
            let asked = Instant::now();
            let answer = user.post(body).await?;
            let latency = asked.elapsed();
            ensure!(answer["state"] == "COMMITTED", "transfer {number}: {answer}");
            if number >= WARM_UP {
                latencies.record(latency);
            }
        }
    }
    Ok(latencies)
}

/// The same transfers, all in PostgreSQL.
async fn run_base(postgres: &tokio_postgres::Client, transfers: u64) -> anyhow::Result<Latencies> {
    let schema = format!(
        "CREATE SCHEMA bench;
         CREATE TABLE bench.accounts (id BIGINT PRIMARY KEY, units BIGINT NOT NULL, active BOOL NOT NULL);
         CREATE TABLE bench.transfers (id BIGINT PRIMARY KEY, source BIGINT NOT NULL, target BIGINT NOT NULL,
             units BIGINT NOT NULL);
         INSERT INTO bench.accounts VALUES (1, {FUNDING}, true), (2, 0, true)"
    );
    postgres.batch_execute(&schema).await?;
    let mut statements = Vec::new();
    for text in BASE {
        statements.push(postgres.prepare(text).await?);
    }
    let (source, target, units) = (1i64, 2i64, i64::try_from(NET)?);
    let total = i64::try_from(WARM_UP + transfers)?;
    let mut latencies = Latencies::new();
    for number in 0..total {
        let asked = Instant::now();
        postgres.execute(&statements[0], &[]).await?;
        let paid = postgres.execute(&statements[1], &[&source, &units]).await?;
        let credited = postgres.execute(&statements[2], &[&target, &units]).await?;
        postgres.execute(&statements[3], &[&number, &source, &target, &units]).await?;
        postgres.execute(&statements[4], &[]).await?;
        let latency = asked.elapsed();
        ensure!((paid, credited) == (1, 1), "transfer {number}: {paid}, {credited}");
        if number >= i64::try_from(WARM_UP)? {
            latencies.record(latency);
        }
    }
    let sums = "SELECT (SELECT units FROM bench.accounts WHERE id = 1),
                       (SELECT units FROM bench.accounts WHERE id = 2),
                       (SELECT count(*) FROM bench.transfers)";
    let row = postgres.query_one(sums, &[]).await?;
    let found: (i64, i64, i64) = (row.get(0), row.get(1), row.get(2));
    let wanted = (i64::try_from(FUNDING)? - total * units, total * units, total);
    ensure!(found == wanted, "source, target and transfers are {found:?}, not {wanted:?}");
    Ok(latencies)
}

/// A token of the development user, made by the command line.
fn token() -> anyhow::Result<String> {
    let output = Command::new(env!("CARGO_BIN_EXE_ubscore"))
        .args(["token", "--dev", "--user", USER])
        .output()?;
    ensure!(output.status.success(), "ubscore token: {}", output.status);
    Ok(String::from_utf8(output.stdout)?.trim_end().to_owned())
}

/// The development user on one connection.
struct User {
    client: Client,
    token: String,
}

impl User {
    async fn post(&mut self, body: &str) -> anyhow::Result<Value> {
        self.send(Method::POST, "/api/v1/internal_transfer", body.to_owned()).await
    }

    /// The balances in Funding and Spot, smallest units.
    async fn balances(&mut self) -> anyhow::Result<(u128, u128)> {
        let path = format!("/api/v1/balances?asset={ASSET}");
        let answer = self.send(Method::GET, &path, String::new()).await?;
        let units = |side: &str| {
            let text = answer["balances"][0][side]["available"].as_str()?;
            units_from_text(text, PRECISION)
        };
        units("funding").zip(units("spot")).with_context(|| format!("no balances: {answer}"))
    }

    async fn send(&mut self, method: Method, path: &str, body: String) -> anyhow::Result<Value> {
        let (status, answer) = self.client.send(method, path, &self.token, body).await?;
        ensure!(status == StatusCode::OK, "{status}: {answer}");
        Ok(serde_json::from_str(&answer)?)
    }
}
