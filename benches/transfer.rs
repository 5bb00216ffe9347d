//! How long does one client wait for one transfer over HTTP, from the request to its final state, in either direction?
//!
//! Base case: PostgreSQL alone, holding both balances: one transaction of BEGIN, two guarded updates, one insert and
//! COMMIT, prepared, one at a time, on the server that ubscore itself uses, in the same run. And below both: `D50`,
//! since nothing durable takes less than one write and fdatasync.
//!
//! `cargo bench --bench transfer -- N`: N transfers each way, in turn, one at a time, against the release binary with
//! `serve --dev` and its embedded PostgreSQL, both new. The final balances are read over HTTP.

mod environment;

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST};
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tokio::net::TcpStream;
use tokio_postgres::NoTls;
use ubscore::amount::{units_from_text, units_text};

use crate::environment::{Environment, Latencies, per_second, ratio, scratch};

const TRANSFERS: u64 = 1_000;
/// Transfers each way that are not counted.
const WARM_UP: u64 = 100;
/// The development user that `serve --dev` gives money to, and its decimals.
const USER: &str = "1001";
const ASSET: &str = "USDT";
const PRECISION: u8 = 8;
/// What Funding holds at first, smallest units.
const FUNDING: u64 = 1_000_000_000_000;
/// Smallest units of one transfer. They differ, so that the final balances tell that both directions took place.
const TO_SPOT: u64 = 2_000;
const TO_FUNDING: u64 = 500;
/// What the final balances gain or lose by one transfer each way, smallest units.
const NET: u64 = TO_SPOT - TO_FUNDING;

/// Each alone is what PostgreSQL does for one transfer at the least.
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
    // Dropped in the reverse order: the server ends before its files are removed.
    let scratch = scratch()?;
    let server = Server::start(scratch.path())?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(run(scratch.path(), server.http, transfers))
}

async fn run(data_dir: &Path, http: SocketAddr, transfers: u64) -> anyhow::Result<()> {
    let postgres = connect_postgres(data_dir).await?;
    let environment = Environment::probe(data_dir, Some(&settings(&postgres).await?))?;

    let base = run_base(&postgres, transfers).await.context("the base case")?;
    drop(postgres);
    let mut client = Client::connect(http, token()?).await?;
    let [to_spot, to_funding] = run_transfers(&mut client, transfers).await?;

    let moved = (WARM_UP + transfers) * NET;
    let wanted = (u128::from(FUNDING - moved), u128::from(moved));
    let balances = client.balances().await?;
    ensure!(balances == wanted, "Funding and Spot hold {balances:?}, not {wanted:?}");

    let rows = [
        ("PostgreSQL alone", &base),
        ("Funding to Spot", &to_spot),
        ("Spot to Funding", &to_funding),
    ];
    environment.table(&rows);
    for (name, latencies) in &rows[1..] {
        println!("{name}: p50 {} x base", ratio(latencies.quantile(0.5), base.quantile(0.5)));
    }
    for (name, latencies) in rows {
        let rate = per_second(1, Duration::from_nanos(latencies.quantile(0.5)));
        println!("{name}: {rate}/s at p50, one at a time");
    }
    println!("balances: as they must be\n");
    let within = |latencies: &Latencies, times| latencies.quantile(0.5) <= times * environment.d50;
    environment.judge("S12b, Funding to Spot: p50 at most 5 x D50", within(&to_spot, 5));
    environment.judge("S12b, Spot to Funding: p50 at most 6 x D50", within(&to_funding, 6));
    Ok(())
}

/// Both directions in turn, so that whatever disturbs the machine disturbs both.
async fn run_transfers(client: &mut Client, transfers: u64) -> anyhow::Result<[Latencies; 2]> {
    let body = |from, to, units: u64| {
        let amount = units_text(u128::from(units), PRECISION);
        format!(r#"{{"from":"{from}","to":"{to}","asset":"{ASSET}","amount":"{amount}"}}"#)
    };
    let bodies = [body("FUNDING", "SPOT", TO_SPOT), body("SPOT", "FUNDING", TO_FUNDING)];
    let mut latencies = [Latencies::new(), Latencies::new()];
    for number in 0..WARM_UP + transfers {
        for (body, latencies) in bodies.iter().zip(&mut latencies) {
            let asked = Instant::now();
            let answer = client.post(body).await?;
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

/// A second connection to the server that ubscore has started.
async fn connect_postgres(data_dir: &Path) -> anyhow::Result<tokio_postgres::Client> {
    let pid_file = fs::read_to_string(data_dir.join("postgres").join("postmaster.pid"))
        .context("read postmaster.pid")?;
    let socket_directory = pid_file.lines().nth(4).context("postmaster.pid names no socket")?;
    let mut config = tokio_postgres::Config::new();
    config.host_path(socket_directory).user("postgres").dbname("ubscore");
    let (client, connection) = config.connect(NoTls).await.context("connect to PostgreSQL")?;
    // It ends with the client; an error reaches the client's next statement.
    drop(tokio::spawn(connection));
    Ok(client)
}

/// The version, and the settings that decide how long a commit takes.
async fn settings(postgres: &tokio_postgres::Client) -> anyhow::Result<String> {
    let mut settings = postgres.query_one("SHOW server_version", &[]).await?.get::<_, String>(0);
    for name in
        ["fsync", "synchronous_commit", "full_page_writes", "wal_sync_method", "shared_buffers"]
    {
        let row = postgres.query_one(&format!("SHOW {name}"), &[]).await?;
        settings += &format!(", {name}={}", row.get::<_, &str>(0));
    }
    Ok(settings)
}

/// A token of the development user, made as a person would make it.
fn token() -> anyhow::Result<String> {
    let output = Command::new(env!("CARGO_BIN_EXE_ubscore"))
        .args(["token", "--dev", "--user", USER])
        .output()?;
    ensure!(output.status.success(), "ubscore token: {}", output.status);
    Ok(String::from_utf8(output.stdout)?.trim_end().to_owned())
}

/// `ubscore serve`, stopped in order when dropped, and its PostgreSQL with it.
struct Server {
    process: Child,
    http: SocketAddr,
    /// Kept open: what else the server says there must find a reader.
    _stdout: BufReader<ChildStdout>,
}

impl Server {
    fn start(data_dir: &Path) -> anyhow::Result<Server> {
        let log = data_dir.join("serve.log");
        let mut process = Command::new(env!("CARGO_BIN_EXE_ubscore"))
            .args(["serve", "--dev", "--postgres", "embedded"])
            .args(["--listen", "127.0.0.1:0", "--ops-listen", "127.0.0.1:0", "--data-dir"])
            .arg(data_dir)
            .stdout(Stdio::piped())
            .stderr(File::create(&log)?)
            .spawn()
            .context("start ubscore")?;
        let mut stdout = BufReader::new(process.stdout.take().expect("piped"));
        let mut line = String::new();
        stdout.read_line(&mut line)?;
        let address = line
            .strip_prefix("ubscore ready http=")
            .and_then(|rest| rest.split(' ').next())
            .and_then(|address| address.parse().ok());
        let Some(http) = address else {
            let status = process.wait()?;
            bail!("ubscore serve: {status}\n{}", fs::read_to_string(log)?);
        };
        Ok(Server { process, http, _stdout: stdout })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let pid = Pid::from_child(&self.process);
        if let Err(error) = kill_process(pid, Signal::TERM) {
            eprintln!("ubscore cannot be stopped: {error}");
            return;
        }
        match self.process.wait() {
            Ok(status) if status.success() => {}
            ended => eprintln!("ubscore ended: {ended:?}"),
        }
    }
}

/// One connection that is kept alive.
struct Client {
    sender: SendRequest<Full<Bytes>>,
    host: String,
    authorization: String,
}

impl Client {
    async fn connect(address: SocketAddr, token: String) -> anyhow::Result<Client> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let (sender, connection) = handshake(TokioIo::new(stream)).await?;
        // It ends with the sender; an error reaches the sender's next request.
        drop(tokio::spawn(connection));
        Ok(Client { sender, host: address.to_string(), authorization: format!("Bearer {token}") })
    }

    async fn post(&mut self, body: &str) -> anyhow::Result<Value> {
        self.send(Method::POST, "/api/v1/internal_transfer", body.to_owned()).await
    }

    /// What Funding and Spot hold, smallest units.
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
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(HOST, &self.host)
            .header(AUTHORIZATION, &self.authorization)
            .header(CONTENT_TYPE, "application/json")
            .body(Full::from(body))?;
        self.sender.ready().await?;
        let response = self.sender.send_request(request).await?;
        let status = response.status();
        let body = response.into_body().collect().await?.to_bytes();
        ensure!(status == StatusCode::OK, "{status}: {}", String::from_utf8_lossy(&body));
        Ok(serde_json::from_slice(&body)?)
    }
}
