//! `ubscore load`: offers transfers to a running service over HTTP, and reports their latencies.
//!
//! The loop is open: a transfer is due at its planned time, also if earlier ones are not answered.
//! Its latency counts from that time, so a stalled service shows high latencies. Without a rate
//! each connection sends its next transfer after the last answer. This finds the highest rate of a
//! service; its latencies mean little.
//!
//! Its own test users get money first. At the end every balance must equal the sum of the answers.
//!
//! With a venue it offers that venue's commands instead, see `venue`.

pub mod client;
mod venue;

use std::io::{IsTerminal, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use hdrhistogram::Histogram;
use hyper::{Method, StatusCode};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use ulid::Ulid;

use self::client::Client;
use crate::cli::LoadArgs;
use crate::clock::Clock;
use crate::config::{Config, Overrides};
use crate::exit::Exit;
use crate::format::Format;
use crate::http::auth::{self, Role};
use domain::amount::{units_from_text, units_text};

/// The longest latency that the histogram distinguishes, ns: a minute.
const LATENCY_NS_MAX: u64 = 60_000_000_000;
/// Columns of a table of latencies: heading and quantile.
pub const QUANTILES: [(&str, f64); 6] =
    [("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p99.9", 0.999), ("p99.99", 0.9999), ("max", 1.0)];
/// The assumed transfers per second if no rate is given: the users get money for this many.
const RATE_MAX: u64 = 50_000;
/// Transfers that each user has money for beyond the planned ones, because the two directions are
/// not balanced at each moment.
const TRANSFERS_AHEAD: u64 = 10_000;
/// How long the tokens stay valid after the load.
const TOKEN_MARGIN: Duration = Duration::from_secs(600);
/// How long money may stay in flight after the last answer.
const REST_MAX: Duration = Duration::from_secs(60);
/// Time between two checks of the balances.
const REST_LOOK: Duration = Duration::from_millis(50);
/// The operator that gives the users their money.
const OPERATOR: u64 = 1;
/// Time between two updates of the progress bar.
const PROGRESS: Duration = Duration::from_millis(200);
const TRANSFER: &str = "/api/v1/internal_transfer";

/// Offers the load, and writes a table or JSON to `out`.
///
/// # Errors
/// The configuration is wrong, the service cannot be reached or refuses the users' money, or a
/// balance is wrong at the end.
pub fn run(args: &LoadArgs, clock: &impl Clock, out: &mut impl Write) -> anyhow::Result<Exit> {
    let config = Config::load(args.config.as_deref(), Overrides::default(), args.dev)
        .context("load the configuration")?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(offer(args, &config, clock, out))?;
    Ok(Exit::Done)
}

async fn offer(
    args: &LoadArgs,
    config: &Config,
    clock: &impl Clock,
    out: &mut impl Write,
) -> anyhow::Result<()> {
    let rates = match args.rate.as_slice() {
        [] => vec![None],
        rates => rates.iter().copied().map(Some).collect(),
    };
    let configured = args.socket.as_ref().or(config.stream.socket.as_ref());
    let missing = "the configuration names no socket of venues; name it with --socket";
    let socket = args.venue.map(|_| configured.context(missing)).transpose()?;
    let plan = Arc::new(Plan::new(args, config, rates.len(), clock.now_s()).await?);
    plan.refuse_real_money(args.mint_on.as_deref()).await?;
    let mut clients = Vec::new();
    for _ in 0..args.connections {
        clients.push(Client::connect(&plan.host).await?);
    }
    clients = plan.endow(clients).await.context("give the users their money")?;
    if let Some((venue, socket)) = args.venue.zip(socket) {
        let life = life(args, rates.len())?;
        let role = Some(Role::Venue(venue));
        let token = auth::sign(&config.auth, OPERATOR, role, life, clock.now_s())?;
        let session = venue::Session::open(socket, venue, &token)?;
        return venue::offer(&plan, session, &rates, args, clock, out).await;
    }
    let mut rows = Vec::new();
    for (phase, rate) in rates.into_iter().enumerate() {
        let (row, back) = plan.phase(phase, rate, args, clients, clock).await?;
        rows.push(row);
        clients = back;
    }
    let unclear = plan.check(&mut clients[0]).await?;
    match args.format {
        Format::Text => table(&rows, unclear, out)?,
        Format::Json => writeln!(
            out,
            "{}",
            json!({"rows": rows, "operations": plan.operations(), "users_unclear": unclear})
        )?,
    }
    Ok(())
}

/// The users of a load, its transfers and their results.
struct Plan {
    host: String,
    ops: String,
    operator: String,
    asset: String,
    precision: u8,
    units: u64,
    /// Money of each user in Funding and in Spot, smallest units.
    given: u64,
    to_spot_percent: u64,
    /// A part of every cid, so that each run has its own cids.
    run: Ulid,
    users: Vec<User>,
}

struct User {
    id: u64,
    token: String,
    /// Balances in Funding and Spot at the start of the load, smallest units.
    before: OnceLock<(u128, u128)>,
    to_spot: AtomicU64,
    to_funding: AtomicU64,
    /// Transfers with an unknown final state.
    unclear: AtomicU64,
}

/// The results at one rate.
#[derive(Debug, Serialize)]
struct Row {
    /// Transfers per second; `None`: as fast as answers come back.
    offered: Option<u64>,
    /// Begin and end of the measurement, without money for the users, warm-up and checks, ns since
    /// the Unix epoch.
    measured_unix_ns: (u64, u64),
    achieved: u64,
    committed: u64,
    pending: u64,
    refused: u64,
    turned_away: u64,
    lost: u64,
    /// From the planned time to the answer COMMITTED, microseconds.
    latency_us: Vec<(&'static str, u64)>,
    /// Delay of the sender itself, p99.9, microseconds.
    sender_late_us: u64,
}

/// The results of one connection.
struct Seen {
    client: Client,
    latencies: Histogram<u64>,
    answers: [u64; 5],
}

/// The end of a transfer for its client.
#[derive(Clone, Copy)]
enum Ended {
    Committed,
    Pending,
    Refused,
    TurnedAway,
    Lost,
}

impl Plan {
    async fn new(
        args: &LoadArgs,
        config: &Config,
        phases: usize,
        now_s: u64,
    ) -> anyhow::Result<Plan> {
        let url = |given: &Option<String>, listen: std::net::SocketAddr, tls: bool| {
            let url = given.clone().unwrap_or_else(|| super::configured::url(listen, tls));
            let host =
                url.strip_prefix("http://").map(|host| host.trim_end_matches('/').to_owned());
            host.with_context(|| {
                format!(
                    "{url}: only http:// is spoken here; offer the load to a listener without TLS"
                )
            })
        };
        let (http_tls, ops_tls) = (config.http.tls_files(), config.ops.tls_files());
        let (seconds, life) = (args.duration + args.warm_up, life(args, phases)?);
        let most =
            args.rate.iter().sum::<u64>().max(if args.rate.is_empty() { RATE_MAX } else { 0 });
        let host = url(&args.url, config.http.listen, http_tls.is_some())?;
        let token = auth::sign(&config.auth, args.first_user, None, life, now_s)?;
        let precision = precision(&host, &token, &args.asset).await?;
        let units = units(&args.amount, precision)?;
        let transfers = most * seconds.as_secs().max(1) / args.users + TRANSFERS_AHEAD;
        let given = units
            .checked_mul(transfers)
            .context("so much money cannot be given; lower --amount")?;
        let user = |id| -> anyhow::Result<User> {
            let token = auth::sign(&config.auth, id, None, life, now_s)?;
            let (before, to_spot, to_funding, unclear) = Default::default();
            Ok(User { id, token, before, to_spot, to_funding, unclear })
        };
        Ok(Plan {
            host,
            ops: url(&args.ops, config.ops.listen, ops_tls.is_some())?,
            operator: auth::sign(&config.auth, OPERATOR, Some(Role::Admin), life, now_s)?,
            asset: args.asset.clone(),
            precision,
            units,
            given,
            to_spot_percent: args.to_spot,
            run: Ulid::generate(),
            users: (0..args.users)
                .map(|n| user(args.first_user + n))
                .collect::<anyhow::Result<_>>()?,
        })
    }

    /// Refuses to make money in a database that `serve --dev` did not make, unless `mint_on` names
    /// it.
    async fn refuse_real_money(&self, mint_on: Option<&str>) -> anyhow::Result<()> {
        let mut ops = Client::connect(&self.ops).await?;
        let path = "/admin/v1/session";
        let asked = ops.send(Method::GET, path, &self.operator, String::new()).await;
        let (status, answer) = asked.context("read the owner of the database")?;
        ensure!(status == StatusCode::OK, "read the owner of the database: {status} {answer}");
        let answer: Value = serde_json::from_str(&answer)?;
        let database = answer["database"].as_str().unwrap_or("");
        ensure!(
            mint_on.is_none_or(|named| named == database),
            "the service's database is {database}, and not {}: nothing was done",
            mint_on.unwrap_or_default()
        );
        ensure!(
            answer["development"] == json!(true) || mint_on.is_some(),
            "the database {database} was not made by `serve --dev`, and the load gives its users money that stays there. \
             Offer the load to a service of its own (serve --dev), or repeat with --mint-on {database}"
        );
        Ok(())
    }

    /// The asset's number, as venues name it.
    async fn asset_number(&self, ops: &mut Client) -> anyhow::Result<u32> {
        let path = "/admin/v1/assets";
        let (status, answer) = ops.send(Method::GET, path, &self.operator, String::new()).await?;
        ensure!(status == StatusCode::OK, "read the assets: {status} {answer}");
        let answer: Value = serde_json::from_str(&answer)?;
        let mut assets = answer["assets"].as_array().into_iter().flatten();
        let found = assets.find(|found| found["symbol"] == json!(self.asset));
        let number = found.and_then(|found| found["id"].as_u64()?.try_into().ok());
        number.with_context(|| format!("the service has no asset {}", self.asset))
    }

    /// Gives every user the same amount in Funding and in Spot.
    async fn endow(self: &Arc<Plan>, clients: Vec<Client>) -> anyhow::Result<Vec<Client>> {
        let connections = clients.len();
        let mut tasks = Vec::new();
        for (first, mut client) in clients.into_iter().enumerate() {
            let plan = Arc::clone(self);
            tasks.push(tokio::spawn(async move {
                let mut ops = None;
                for user in plan.users.iter().skip(first).step_by(connections) {
                    let ops = match &mut ops {
                        Some(ops) => ops,
                        None => ops.insert(Client::connect(&plan.ops).await?),
                    };
                    plan.give(user, ops, &mut client).await?;
                }
                anyhow::Ok(client)
            }));
        }
        let mut back = Vec::new();
        for task in tasks {
            back.push(task.await??);
        }
        Ok(back)
    }

    async fn give(&self, user: &User, ops: &mut Client, client: &mut Client) -> anyhow::Result<()> {
        let amount = |units: u64| units_text(u128::from(units), self.precision);
        let deposit = json!({
            "user_id": user.id, "asset": self.asset, "amount": amount(2 * self.given),
            "idem_key": format!("load-{}-{}", self.run, user.id),
        });
        let path = "/admin/v1/deposits";
        let (status, answer) =
            ops.send(Method::POST, path, &self.operator, deposit.to_string()).await?;
        ensure!(status == StatusCode::OK, "deposit: {status} {answer}");
        let body = self.body(true, &amount(self.given), "endow", user.id);
        let (status, answer) = client.send(Method::POST, TRANSFER, &user.token, body).await?;
        ensure!(
            [StatusCode::OK, StatusCode::ACCEPTED].contains(&status),
            "transfer: {status} {answer}"
        );
        let before = self.balances_at_rest(user, client).await?;
        user.before.set(before).map_err(|_| anyhow::anyhow!("user {} comes twice", user.id))
    }

    fn body(&self, to_spot: bool, amount: &str, name: &str, number: u64) -> String {
        let (from, to) = if to_spot { ("FUNDING", "SPOT") } else { ("SPOT", "FUNDING") };
        let (asset, run) = (&self.asset, self.run);
        format!(
            r#"{{"from":"{from}","to":"{to}","asset":"{asset}","amount":"{amount}","cid":"{run}-{name}-{number}"}}"#
        )
    }

    /// Runs the load at one rate and returns the connections.
    async fn phase(
        self: &Arc<Plan>,
        phase: usize,
        rate: Option<u64>,
        args: &LoadArgs,
        clients: Vec<Client>,
        clock: &impl Clock,
    ) -> anyhow::Result<(Row, Vec<Client>)> {
        let connections = clients.len();
        let pace = Arc::new(Pace::new(rate, args.warm_up, args.duration));
        let mut tasks = Vec::new();
        for client in clients {
            tasks.push(tokio::spawn(Arc::clone(self).transfers(phase, Arc::clone(&pace), client)));
        }
        let releasing = Arc::clone(&pace);
        let releaser = thread::spawn(move || releasing.release(connections));
        let progress = tokio::spawn(progress(Arc::clone(&pace)));
        let (mut latencies, mut answers, mut back) = (histogram(), [0; 5], Vec::new());
        for task in tasks {
            let seen = task.await??;
            latencies.add(&seen.latencies)?;
            for (sum, count) in answers.iter_mut().zip(seen.answers) {
                *sum += count;
            }
            back.push(seen.client);
        }
        progress.abort();
        let (took, until_ns) = (pace.measured(), clock.now_ns());
        let late = tokio::task::spawn_blocking(|| releaser.join()).await?;
        let late = late.map_err(|_| anyhow::anyhow!("the releasing thread panicked"))?;
        let [committed, pending, refused, turned_away, lost] = answers;
        let achieved = u128::from(committed) * 1_000_000_000 / took.as_nanos().max(1);
        let row = Row {
            offered: rate,
            measured_unix_ns: (until_ns.saturating_sub(u64::try_from(took.as_nanos())?), until_ns),
            achieved: u64::try_from(achieved)?,
            committed,
            pending,
            refused,
            turned_away,
            lost,
            latency_us: QUANTILES
                .iter()
                .map(|(name, q)| (*name, latencies.value_at_quantile(*q) / 1_000))
                .collect(),
            sender_late_us: late.value_at_quantile(0.999) / 1_000,
        };
        Ok((row, back))
    }

    /// Runs one connection: sends the next due transfer until the end.
    async fn transfers(
        self: Arc<Plan>,
        phase: usize,
        pace: Arc<Pace>,
        mut client: Client,
    ) -> anyhow::Result<Seen> {
        let (mut latencies, mut answers) = (histogram(), [0; 5]);
        let amount = units_text(u128::from(self.units), self.precision);
        let count = self.users.len() as u64;
        while let Some((number, planned)) = pace.next().await {
            let user = &self.users[usize::try_from(number % count)?];
            // Spread evenly: of each hundred transfers of a user exactly this percentage goes to
            // Spot.
            let round = number / count;
            let to_spot =
                (round + 1) * self.to_spot_percent / 100 > round * self.to_spot_percent / 100;
            let body = self.body(to_spot, &amount, &phase.to_string(), number);
            let ended = match client.send(Method::POST, TRANSFER, &user.token, body).await {
                Ok((StatusCode::OK, _)) => Ended::Committed,
                Ok((StatusCode::ACCEPTED, _)) => Ended::Pending,
                Ok((StatusCode::SERVICE_UNAVAILABLE | StatusCode::TOO_MANY_REQUESTS, _)) => {
                    Ended::TurnedAway
                }
                Ok((status, _)) if status.is_client_error() => Ended::Refused,
                Ok((status, answer)) => bail!("{status}: {answer}"),
                Err(_) => {
                    client = Client::connect(&self.host).await?;
                    Ended::Lost
                }
            };
            let moved = if to_spot { &user.to_spot } else { &user.to_funding };
            match ended {
                Ended::Committed => moved.fetch_add(self.units, Ordering::Relaxed),
                // After 503 the transfer may be accepted or not.
                Ended::Pending | Ended::TurnedAway | Ended::Lost => {
                    user.unclear.fetch_add(1, Ordering::Relaxed)
                }
                Ended::Refused => 0,
            };
            if pace.counts(planned) {
                answers[ended as usize] += 1;
                if let Ended::Committed = ended {
                    let ns = u64::try_from(planned.elapsed().as_nanos()).unwrap_or(u64::MAX);
                    latencies.saturating_record(ns);
                }
            }
        }
        let counted: u64 = answers.iter().sum();
        debug_assert!(latencies.len() <= counted, "a time belongs to an answer");
        Ok(Seen { client, latencies, answers })
    }

    /// All operations: the transfers of all phases, and two operations for each user's money.
    fn operations(&self) -> u64 {
        let units = |user: &User| {
            user.to_spot.load(Ordering::Relaxed) + user.to_funding.load(Ordering::Relaxed)
        };
        self.users.iter().map(units).sum::<u64>() / self.units + 2 * self.users.len() as u64
    }

    /// Compares every user's balances with the sums of the answers. Returns the number of users
    /// with a transfer of unknown end; for these only the sum of both balances is checked.
    async fn check(&self, client: &mut Client) -> anyhow::Result<u64> {
        let mut unclear = 0;
        for user in &self.users {
            let (funding, spot) = self.balances_at_rest(user, client).await?;
            let units = |count: &AtomicU64| u128::from(count.load(Ordering::Relaxed));
            let before = user.before.get().context("not endowed")?;
            let (to_spot, to_funding) = (units(&user.to_spot), units(&user.to_funding));
            let wanted = (before.0 + to_funding - to_spot, before.1 + to_spot - to_funding);
            ensure!(
                funding + spot == before.0 + before.1,
                "user {}: {funding} in Funding and {spot} in Spot, which were {before:?}",
                user.id,
            );
            match user.unclear.load(Ordering::Relaxed) {
                0 => ensure!(
                    (funding, spot) == wanted,
                    "user {}: Funding and Spot hold {funding} and {spot}, not {wanted:?}",
                    user.id
                ),
                _ => unclear += 1,
            }
        }
        Ok(unclear)
    }

    /// Funding and Spot after nothing is in flight, smallest units.
    async fn balances_at_rest(
        &self,
        user: &User,
        client: &mut Client,
    ) -> anyhow::Result<(u128, u128)> {
        let began = Instant::now();
        loop {
            let [funding, spot, in_flight] = self.balances(user, client).await?;
            if in_flight == 0 {
                return Ok((funding, spot));
            }
            ensure!(began.elapsed() < REST_MAX, "user {}: money is still in flight", user.id);
            tokio::time::sleep(REST_LOOK).await;
        }
    }

    /// Funding, Spot and in flight, smallest units.
    async fn balances(&self, user: &User, client: &mut Client) -> anyhow::Result<[u128; 3]> {
        let path = format!("/api/v1/balances?asset={}", self.asset);
        let (status, answer) = client.send(Method::GET, &path, &user.token, String::new()).await?;
        ensure!(status == StatusCode::OK, "{status}: {answer}");
        let answer: Value = serde_json::from_str(&answer)?;
        let balance = &answer["balances"][0];
        let units = |value: &Value| units_from_text(value.as_str()?, self.precision);
        let (funding, spot) =
            (units(&balance["funding"]["available"]), units(&balance["spot"]["available"]));
        let found = funding.zip(spot).zip(units(&balance["in_flight"]));
        let ((funding, spot), in_flight) =
            found.with_context(|| format!("no balances: {answer}"))?;
        Ok([funding, spot, in_flight])
    }
}

/// The schedule of a phase.
struct Pace {
    began: Instant,
    warm_up: Duration,
    until: Instant,
    /// Time between two planned times; `None`: due when a connection is free.
    interval: Option<Duration>,
    total: u64,
    next: AtomicU64,
    /// Permits: one for each due transfer that is not yet taken.
    due: Semaphore,
}

impl Pace {
    fn new(rate: Option<u64>, warm_up: Duration, duration: Duration) -> Pace {
        let began = Instant::now();
        let seconds = warm_up + duration;
        let total = rate.map_or(u64::MAX, |rate| {
            u64::try_from(u128::from(rate) * seconds.as_nanos() / 1_000_000_000).unwrap_or(u64::MAX)
        });
        Pace {
            began,
            warm_up,
            until: began + seconds,
            interval: rate.map(|rate| Duration::from_nanos(1_000_000_000 / rate.max(1))),
            total,
            next: AtomicU64::new(0),
            due: Semaphore::new(0),
        }
    }

    /// Waits until the next transfer is due; returns its number and planned time, `None` at the
    /// end.
    async fn next(&self) -> Option<(u64, Instant)> {
        let Some(interval) = self.interval else {
            let now = Instant::now();
            let number = self.next.fetch_add(1, Ordering::Relaxed);
            return (now < self.until).then_some((number, now));
        };
        self.due.acquire().await.ok()?.forget();
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        (number < self.total).then(|| (number, self.planned(interval, number)))
    }

    fn planned(&self, interval: Duration, number: u64) -> Instant {
        let ns = u64::try_from(interval.as_nanos()).unwrap_or(u64::MAX);
        self.began + Duration::from_nanos(ns.saturating_mul(number))
    }

    /// Whether a transfer planned at this time is measured.
    fn counts(&self, planned: Instant) -> bool {
        planned >= self.began + self.warm_up
    }

    /// Time since the measurement began.
    fn measured(&self) -> Duration {
        self.began.elapsed().saturating_sub(self.warm_up)
    }

    /// Releases each transfer at its time, on its own thread, because the threads of the
    /// connections may be busy. Returns its own delays, ns.
    fn release(&self, connections: usize) -> Histogram<u64> {
        let mut late = histogram();
        if let Some(interval) = self.interval {
            for number in 0..self.total {
                let planned = self.planned(interval, number);
                thread::sleep(planned.saturating_duration_since(Instant::now()));
                late.saturating_record(
                    u64::try_from(planned.elapsed().as_nanos()).unwrap_or(u64::MAX),
                );
                self.due.add_permits(1);
            }
        }
        // One more permit for each connection, which then finds the end.
        self.due.add_permits(connections);
        late
    }
}

/// How long the tokens of a load are valid.
fn life(args: &LoadArgs, phases: usize) -> anyhow::Result<Duration> {
    Ok((args.duration + args.warm_up) * u32::try_from(phases)? + TOKEN_MARGIN)
}

/// A histogram of latencies in ns with three digits; for `saturating_record`.
pub fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, LATENCY_NS_MAX, 3).expect("constant bounds")
}

async fn progress(pace: Arc<Pace>) {
    let seconds = pace.until - pace.began;
    let target = match std::io::stderr().is_terminal() {
        true => ProgressDrawTarget::stderr(),
        false => ProgressDrawTarget::hidden(),
    };
    let bar = ProgressBar::with_draw_target(Some(seconds.as_secs()), target);
    let style = ProgressStyle::with_template("{bar:40} {pos}/{len} s  {msg}");
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    loop {
        tokio::time::sleep(PROGRESS).await;
        bar.set_position(pace.began.elapsed().as_secs());
        bar.set_message(format!("{} begun", pace.next.load(Ordering::Relaxed).min(pace.total)));
    }
}

/// Decimals of an asset.
async fn precision(host: &str, token: &str, asset: &str) -> anyhow::Result<u8> {
    let mut client = Client::connect(host).await?;
    let (status, answer) = client.send(Method::GET, "/api/v1/assets", token, String::new()).await?;
    ensure!(status == StatusCode::OK, "{status}: {answer}");
    let answer: Value = serde_json::from_str(&answer)?;
    let mut assets = answer["assets"].as_array().into_iter().flatten();
    let found = assets.find(|found| found["symbol"] == asset);
    let precision = found.and_then(|found| found["precision"].as_u64()?.try_into().ok());
    precision.with_context(|| format!("the service has no asset {asset}"))
}

fn units(amount: &str, precision: u8) -> anyhow::Result<u64> {
    let units = units_from_text(amount, precision).and_then(|units| u64::try_from(units).ok());
    units
        .filter(|units| *units > 0)
        .with_context(|| format!("{amount}: no amount of {precision} decimals"))
}

fn table(rows: &[Row], unclear: u64, out: &mut impl Write) -> anyhow::Result<()> {
    write!(out, "{:>10}{:>10}", "offered/s", "done/s")?;
    for (name, _) in QUANTILES {
        write!(out, "{:>10}", format!("{name} us"))?;
    }
    writeln!(
        out,
        "{:>10}{:>9}{:>9}{:>9}{:>6}{:>12}",
        "done", "pending", "refused", "503/429", "lost", "late p99.9"
    )?;
    for row in rows {
        let offered = row.offered.map_or("most".to_owned(), |rate| rate.to_string());
        write!(out, "{offered:>10}{:>10}", row.achieved)?;
        for (_, us) in &row.latency_us {
            write!(out, "{us:>10}")?;
        }
        let Row { committed, pending, refused, turned_away, lost, sender_late_us, .. } = row;
        writeln!(
            out,
            "{committed:>10}{pending:>9}{refused:>9}{turned_away:>9}{lost:>6}{sender_late_us:>12}"
        )?;
    }
    match unclear {
        0 => writeln!(out, "balances: equal to the answers")?,
        users => writeln!(
            out,
            "balances: all sums are right; {users} users have a transfer with an unknown end"
        )?,
    }
    Ok(())
}
