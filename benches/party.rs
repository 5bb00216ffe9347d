//! A database of the transaction manager, its chain and its keys, and processes of its nodes.

use std::fs::{self, File, Permissions};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use alloy_primitives::Address;
use anyhow::{Context, ensure};
use chain::payload::address_text;
use futures_util::future::try_join_all;
use hyper::{Method, StatusCode};
use jsonwebtoken::{EncodingKey, Header};
use rsa::rand_core::OsRng;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use ubscore::clock::{Clock, SystemClock};
use ubscore::commands::load::client::Client;
use ubscore::config::auth::DEVELOPMENT_SECRET;
use ubscore::postgres::embedded::Embedded;

use crate::anvil::{Anvil, CHAIN_ID, PAYEE};
use crate::database::connect_postgres;

const PASSWORD: &str = "a password of a bench";
/// How long a bench waits for anything.
const PATIENCE: Duration = Duration::from_secs(120);
/// The pause between two looks into the database.
const LOOK: Duration = Duration::from_millis(10);

/// Names behind `UBSCORE__TXM__`, or whole ones, and values.
pub(crate) type Settings<'a> = &'a [(&'a str, &'a str)];

/// A database, a chain and keys, all new.
pub(crate) struct Place {
    directory: PathBuf,
    pub(crate) chain: Anvil,
    pub(crate) postgres: tokio_postgres::Client,
    url: String,
    pub(crate) signers: Vec<Address>,
}

impl Place {
    /// A place named `name`, with so many signers. The chain has one account more.
    pub(crate) async fn new(
        directory: &Path,
        embedded: &Embedded,
        name: &str,
        signers: usize,
    ) -> anyhow::Result<Place> {
        let directory = directory.join(name);
        let keys = directory.join("keys");
        fs::create_dir_all(&keys)?;
        let chain = Anvil::start(&directory, signers + 1)?;
        for (place, (_, key)) in chain.accounts.iter().take(signers).enumerate() {
            let file = format!("key-{place}");
            eth_keystore::encrypt_key(&keys, &mut OsRng, key, PASSWORD, Some(&file))?;
            fs::set_permissions(keys.join(file), Permissions::from_mode(0o600))?;
        }
        let password = directory.join("password");
        fs::write(&password, PASSWORD)?;
        fs::set_permissions(&password, Permissions::from_mode(0o600))?;
        let mut config = embedded.config();
        let outer = connect_postgres(&config).await?;
        outer.batch_execute(&format!("CREATE DATABASE {name}")).await?;
        let postgres = connect_postgres(config.dbname(name)).await?;
        let url = embedded.url().replacen("/ubscore?", &format!("/{name}?"), 1);
        let signers = chain.accounts.iter().take(signers).map(|(address, _)| *address).collect();
        Ok(Place { directory, chain, postgres, url, signers })
    }

    /// A node that is ready, with the endpoint at `rpc`.
    pub(crate) async fn node(
        &self,
        name: &str,
        rpc: &str,
        settings: Settings<'_>,
    ) -> anyhow::Result<Party> {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ubscore"));
        command.args(["txm", "serve", "--dev", "--listen", "127.0.0.1:0"]);
        command.args(["--ops-listen", "127.0.0.1:0"]);
        let chain = CHAIN_ID.to_string();
        let defaults = [
            ("NODE_ID", name),
            ("POSTGRES_URL", &self.url),
            ("CHAIN__CHAIN_ID", &chain),
            ("CHAIN__RPC_URLS", rpc),
            ("QUEUE_MAX", "1000000"),
            ("CONFIRMATIONS__POLICY", "count"),
            ("UBSCORE__HTTP__CONNECTIONS_MAX", "4096"),
            ("UBSCORE__HTTP__CONNECTIONS_PER_ADDRESS_MAX", "4096"),
        ];
        for (name, value) in defaults.iter().chain(settings) {
            match name.starts_with("UBSCORE_") {
                true => command.env(name, value),
                false => command.env(format!("UBSCORE__TXM__{name}"), value),
            };
        }
        command.env("UBSCORE__TXM__SIGNERS__KEYSTORE_DIR", self.directory.join("keys"));
        command.env("UBSCORE__TXM__SIGNERS__PASSWORD_FILE", self.directory.join("password"));
        let log = self.directory.join(format!("{name}.log"));
        // Its endpoint may be a task of this thread.
        tokio::task::spawn_blocking(move || Party::start(command, &log)).await?
    }

    /// Adds all signers, through a node.
    pub(crate) async fn add_signers(&self, node: &Party) -> anyhow::Result<()> {
        let claims = json!({"sub": "7", "role": "admin", "aud": "ubscore-txm"});
        let token = token(claims)?;
        let mut operator = Client::connect(&node.ops).await?;
        for signer in &self.signers {
            let body =
                json!({"signer": address_text(signer), "kind": "keystore", "reason": "a bench"});
            let path = "/admin/v1/signers";
            let (status, said) =
                operator.send(Method::POST, path, &token, body.to_string()).await?;
            ensure!(status.is_success(), "{status}: {said}");
        }
        Ok(())
    }

    /// One whole number of the database.
    pub(crate) async fn number(&self, sql: &str) -> anyhow::Result<i64> {
        Ok(self.postgres.query_one(sql, &[]).await.with_context(|| sql.to_owned())?.get(0))
    }

    /// How long [`Place::commits`] takes, ms.
    pub(crate) const COUNTERS_PAUSE_MS: u64 = 11_000;

    /// Transactions of the database that have ended, those that only read too.
    pub(crate) async fn commits(&self) -> anyhow::Result<i64> {
        // A session that is idle tells its counters within 10 s (PGSTAT_IDLE_INTERVAL).
        let pause = format!(
            "SELECT pg_stat_force_next_flush(), pg_sleep({}::float8 / 1000)",
            Place::COUNTERS_PAUSE_MS
        );
        self.postgres.batch_execute(&pause).await?;
        let counter = "SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()";
        self.number(counter).await
    }

    /// Durable commits: the ids of transactions that are used, without those of the sub-transaction
    /// that each create of a batch has.
    pub(crate) async fn writes(&self) -> anyhow::Result<i64> {
        let ids = "SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint \
                   - (SELECT count(DISTINCT xid) FROM txm.tx_events WHERE seq = 1)";
        self.number(ids).await
    }

    /// Waits until a number of the database is at least this: when it was seen.
    pub(crate) async fn until(&self, sql: &str, least: i64) -> anyhow::Result<Instant> {
        let statement = self.postgres.prepare(sql).await?;
        let began = Instant::now();
        loop {
            let found: i64 = self.postgres.query_one(&statement, &[]).await?.get(0);
            if found >= least {
                return Ok(Instant::now());
            }
            ensure!(began.elapsed() < PATIENCE, "{sql}: {found}, and not {least}");
            tokio::time::sleep(LOOK).await;
        }
    }
}

/// A running node, killed with this value.
pub(crate) struct Party {
    process: Child,
    /// The clients' listener.
    pub(crate) host: String,
    ops: String,
    /// Kept open: its later output must find a reader.
    _stdout: BufReader<ChildStdout>,
}

impl Drop for Party {
    fn drop(&mut self) {
        // It may have ended already.
        self.process.kill().ok();
        self.process.wait().ok();
    }
}

impl Party {
    fn start(mut command: Command, log: &Path) -> anyhow::Result<Party> {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(File::create(log)?);
        let mut process = command.spawn().context("start ubscore")?;
        let mut stdout = BufReader::new(process.stdout.take().expect("piped"));
        let mut line = String::new();
        stdout.read_line(&mut line)?;
        let part = |key: &str| {
            let value = line.split_whitespace().find_map(|word| word.strip_prefix(key));
            value.map(str::to_owned)
        };
        let (Some(host), Some(ops)) = (part("txm="), part("ops=")) else {
            process.kill().ok();
            process.wait()?;
            anyhow::bail!("ubscore txm serve: {}", fs::read_to_string(log)?);
        };
        Ok(Party { process, host, ops, _stdout: stdout })
    }

    /// Its process.
    pub(crate) fn pid(&self) -> i32 {
        Pid::from_child(&self.process).as_raw_nonzero().get()
    }

    /// Ends it by a signal, and does not wait for its end.
    pub(crate) fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        Ok(kill_process(Pid::from_child(&self.process), signal)?)
    }
}

/// A client of a node that makes payments of one signer.
pub(crate) struct Payer {
    client: Client,
    token: String,
    signer: Address,
    /// Its number: the last digits of the value of each payment.
    number: u64,
    name: String,
    made: u64,
}

impl Payer {
    /// A client named `name`: no other one has its ids. `number`: below 1,000.
    pub(crate) async fn new(
        node: &Party,
        signer: Address,
        number: u64,
        name: String,
    ) -> anyhow::Result<Payer> {
        let client = Client::connect(&node.host).await?;
        let signers = [address_text(&signer)];
        let claims =
            json!({"sub": "pay", "role": "service", "aud": "ubscore-txm", "signers": signers});
        Ok(Payer { client, token: token(claims)?, signer, number, name, made: 0 })
    }

    /// Asks for a payment, until it is accepted with its nonce. A node that does not own the signer
    /// yet is asked again.
    pub(crate) async fn pay(&mut self) -> anyhow::Result<()> {
        let body = self.payment(None);
        let began = Instant::now();
        loop {
            let (status, said) = self.post(&body).await?;
            if status == StatusCode::ACCEPTED {
                // Its nonce is durable, and it is the owner's answer.
                ensure!(!said.contains("\"nonce\":null"), "{said}");
                return Ok(());
            }
            let is_away = status.is_server_error() || said.contains("NOT_LEADER");
            ensure!(is_away && began.elapsed() < PATIENCE, "{status}: {said}");
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Hands in a payment that gets its nonce later, at a node that does not own the signer.
    pub(crate) async fn hand_in(&mut self) -> anyhow::Result<()> {
        let body = self.payment(Some("later"));
        let (status, said) = self.post(&body).await?;
        ensure!(status == StatusCode::ACCEPTED, "{status}: {said}");
        Ok(())
    }

    async fn post(&mut self, body: &str) -> anyhow::Result<(StatusCode, String)> {
        self.client.send(Method::POST, "/api/v1/tx", &self.token, body.to_owned()).await
    }

    fn payment(&mut self, nonce: Option<&str>) -> String {
        self.made += 1;
        let mut body = json!({
            "signer": address_text(&self.signer),
            "requestId": format!("{}-{}", self.name, self.made),
            "payload": {
                "to": address_text(&PAYEE),
                "value": (self.made * 1_000 + self.number).to_string(),
            },
        });
        if let Some(nonce) = nonce {
            body["nonce"] = json!(nonce);
        }
        body.to_string()
    }
}

/// Clients of one signer at one node.
pub(crate) async fn crowd(
    node: &Party,
    signer: Address,
    clients: usize,
    name: &str,
) -> anyhow::Result<Vec<Payer>> {
    let payer = |number: usize| Payer::new(node, signer, 0, format!("{name}-{number}"));
    try_join_all((0..clients).map(payer)).await
}

/// Has all clients together make so many payments, each its next one behind the answer to its last.
pub(crate) async fn pay_together(payers: &mut [Payer], count: u64) -> anyhow::Result<()> {
    let clients = u64::try_from(payers.len())?;
    let each = payers.iter_mut().zip(0..).map(|(payer, place)| async move {
        for _ in (place..count).step_by(usize::try_from(clients)?) {
            payer.pay().await?;
        }
        anyhow::Ok(())
    });
    try_join_all(each).await.map(drop)
}

fn token(mut claims: Value) -> anyhow::Result<String> {
    claims["exp"] = json!(SystemClock::new().now_s() + 3_600);
    let key = EncodingKey::from_secret(DEVELOPMENT_SECRET.as_bytes());
    Ok(jsonwebtoken::encode(&Header::default(), &claims, &key)?)
}
