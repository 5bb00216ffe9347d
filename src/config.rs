//! Configuration: what it is, where it comes from, and what it may be.
//!
//! Defaults, then a TOML file, then the environment (`UBSCORE__SECTION__KEY`), then flags; the
//! later one wins. `config/ubscore.toml` explains every key and a test keeps it equal to the
//! defaults here. This is the only place that reads the environment.
//!
//! Every error names the key, so that the operator need not guess which line is meant, and none
//! quotes a secret.

use std::env;
use std::ffi::OsString;
use std::fmt;
use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::ValueEnum;
use figment::error::Kind;
use figment::value::{Dict, Map, Value};
use figment::{Figment, Metadata, Profile, Provider};
use serde::{Deserialize, Deserializer};
use tracing_subscriber::EnvFilter;

use crate::approval::Action;

const ENVIRONMENT_PREFIX: &str = "UBSCORE__";

/// What `postgres.url` says when we are to run the server ourselves.
pub const POSTGRES_EMBEDDED: &str = "embedded";

/// The secret of `--dev`. It is public, so it is accepted nowhere else, and no address but
/// loopback is bound with it.
pub const DEVELOPMENT_SECRET: &str = "ubscore-development-secret-known-to-everyone";

/// Shortest secret of HS256, bytes: RFC 7518, 3.2 asks for the size of the hash.
pub const SECRET_BYTES_MIN: usize = 32;

/// Longest file that is read for a secret, bytes. A larger one is another file by mistake.
const SECRET_FILE_BYTES_MAX: u64 = 65_536;

/// Longest file of public keys or certificates, bytes: an issuer's set is some thousand.
const KEY_FILE_BYTES_MAX: u64 = 1_048_576;

const _: () = assert!(DEVELOPMENT_SECRET.len() >= SECRET_BYTES_MIN);

/// How the secret of a webhook begins, and how many characters of base64 24 to 64 bytes are.
///
/// Source: Standard Webhooks, "Signature scheme".
const WEBHOOK_SECRET_PREFIX: &str = "whsec_";
const WEBHOOK_SECRET_CHARS: std::ops::RangeInclusive<usize> = 32..=88;

/// Keys that may be given as a value or as the name of a file that holds the value.
const TWINS: [(&str, &str, &str); 6] = [
    ("auth", "secret", "secret_file"),
    ("auth", "previous_secret", "previous_secret_file"),
    ("postgres", "url", "url_file"),
    ("alert", "webhook_url", "webhook_url_file"),
    ("webhooks", "url", "url_file"),
    ("webhooks", "secret", "secret_file"),
];

/// Text that is never printed: not by `{}`, not by `{:?}`.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Takes the text as it is.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The text itself, for the one call that needs it.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl From<String> for Secret {
    fn from(text: String) -> Self {
        Self(text)
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

impl fmt::Display for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

impl<'de> Deserialize<'de> for Secret {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer).map(Self)
    }
}

/// Everything the program can be told. `config/ubscore.toml` says what each key means, its unit
/// and why it is what it is.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Where the log, snapshots and the embedded PostgreSQL live.
    pub data_dir: PathBuf,
    /// The public listener.
    pub http: Http,
    /// The operators' listener.
    pub ops: Ops,
    /// Who may ask.
    pub auth: Auth,
    /// Files that are read again while the service runs.
    pub reload: Reload,
    /// Funding's database.
    pub postgres: Postgres,
    /// UBSCore's thread and its bounds.
    pub engine: Engine,
    /// How long what was decided is remembered.
    pub outcomes: Outcomes,
    /// The log's files.
    pub wal: Wal,
    /// Snapshots, and what goes once they are made.
    pub snapshot: Snapshot,
    /// The workers that drive transfers.
    pub coordinator: Coordinator,
    /// When a quiet transfer is picked up again.
    pub recovery: Recovery,
    /// The continuous audit.
    pub conservation: Conservation,
    /// Bounds of an amount.
    pub amount: AmountBounds,
    /// What one user may ask for.
    pub limits: UserLimits,
    /// What becomes of transfers, told to their users as it happens.
    pub events: Events,
    /// The same told to an endpoint of the operator's.
    pub webhooks: Webhooks,
    /// When somebody is alerted, and who.
    pub alert: Alert,
    /// What needs two operators.
    pub approval: Approval,
    /// What is logged, and how.
    pub log: Log,
    /// Where spans are sent.
    pub telemetry: Telemetry,
}

/// The section `[http]`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Http {
    /// Address of the public listener.
    pub listen: SocketAddr,
    /// Its certificate and what leads to its issuer, PEM; absent: it speaks no TLS.
    pub tls_certificate_file: Option<PathBuf>,
    /// The certificate's private key, PEM.
    pub tls_key_file: Option<PathBuf>,
    /// Largest request body, bytes.
    pub body_bytes_max: usize,
    /// Largest request line and headers together, bytes.
    pub header_bytes_max: usize,
    /// Time for the next whole header, and for a TLS handshake, ms; also how long an idle connection is kept.
    pub header_read_timeout_ms: u64,
    /// Time for a whole body, ms.
    pub body_read_timeout_ms: u64,
    /// Time for an answer, ms; also how long a client may take no bytes of it.
    pub request_timeout_ms: u64,
    /// Connections held at once.
    pub connections_max: usize,
    /// How long an answer waits for a transfer to become final, ms.
    pub transfer_wait_ms: u64,
    /// Time for what is in flight after a signal to stop, ms.
    pub shutdown_timeout_ms: u64,
}

/// Waiting less for PostgreSQL to commit an accept would refuse what is merely slow.
const ACCEPT_WAIT_MS_MIN: u64 = 2_000;

impl Http {
    /// How long a transfer may take to be accepted, however short the wait for its end, ms.
    pub fn accept_wait_ms(&self) -> u64 {
        self.transfer_wait_ms.max(ACCEPT_WAIT_MS_MIN)
    }

    /// What the listener needs to speak TLS, if it is to.
    pub fn tls_files(&self) -> Option<TlsFiles> {
        TlsFiles::new("http", &self.tls_certificate_file, &self.tls_key_file)
    }
}

/// The files of a listener that speaks TLS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// `http` or `ops`.
    pub section: &'static str,
    /// The certificate and what leads to its issuer.
    pub certificate: PathBuf,
    /// The certificate's private key.
    pub key: PathBuf,
}

impl TlsFiles {
    fn new(
        section: &'static str,
        certificate: &Option<PathBuf>,
        key: &Option<PathBuf>,
    ) -> Option<TlsFiles> {
        Some(TlsFiles { section, certificate: certificate.clone()?, key: key.clone()? })
    }
}

/// The section `[ops]`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Ops {
    /// Address of the operators' listener.
    pub listen: SocketAddr,
    /// Its certificate and what leads to its issuer, PEM; absent: it speaks no TLS.
    pub tls_certificate_file: Option<PathBuf>,
    /// The certificate's private key, PEM.
    pub tls_key_file: Option<PathBuf>,
}

impl Ops {
    /// What the listener needs to speak TLS, if it is to.
    pub fn tls_files(&self) -> Option<TlsFiles> {
        TlsFiles::new("ops", &self.tls_certificate_file, &self.tls_key_file)
    }
}

/// How tokens are signed, by the names of RFC 7518.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub enum Algorithm {
    /// HMAC with SHA-256: one shared secret signs and verifies.
    #[serde(rename = "HS256")]
    Hs256,
    /// Ed25519.
    #[serde(rename = "EdDSA")]
    EdDsa,
    /// RSA PKCS #1 v1.5 with SHA-256.
    #[serde(rename = "RS256")]
    Rs256,
    /// ECDSA on P-256 with SHA-256.
    #[serde(rename = "ES256")]
    Es256,
}

/// The section `[auth]`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Auth {
    /// How tokens are signed; what a token says about itself is not believed.
    pub algorithm: Algorithm,
    /// The shared secret of HS256. After loading it holds the file's content too.
    pub secret: Option<Secret>,
    /// A file that holds the secret.
    pub secret_file: Option<PathBuf>,
    /// The secret before this one, while tokens that it has signed are about. After loading it holds the file's content
    /// too, and is absent where that is empty.
    pub previous_secret: Option<Secret>,
    /// A file that holds the secret before this one, or nothing.
    pub previous_secret_file: Option<PathBuf>,
    /// The public keys of the other algorithms: one as PEM, or a JWK Set.
    pub public_key_file: Option<PathBuf>,
    /// What `iss` must be.
    pub issuer: Option<String>,
    /// What `aud` must contain.
    pub audience: Option<String>,
    /// How far the issuer's clock may differ from ours, s.
    pub leeway_s: u64,
}

/// The section `[reload]`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Reload {
    /// Between two looks at the files of keys, secrets of tokens and certificates, ms.
    pub every_ms: u64,
}

/// The section `[postgres]`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Postgres {
    /// Where the server is; after loading, absent means embedded. Secret: it may hold a password.
    pub url: Option<Secret>,
    /// A file that holds the URL.
    pub url_file: Option<PathBuf>,
    /// Directory of the embedded server's programs.
    pub bin: Option<PathBuf>,
    /// Connections for reads.
    pub connections_max: usize,
    /// Time to connect and log in, ms.
    pub connect_timeout_ms: u64,
    /// Time for a statement, ms; kept by the server.
    pub statement_timeout_ms: u64,
    /// Time for a lock, ms; kept by the server.
    pub lock_timeout_ms: u64,
    /// Time for a transaction that nobody goes on with, ms; kept by the server.
    pub idle_in_transaction_timeout_ms: u64,
}

/// How the engine's thread waits for work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Wait {
    /// Spins, yields, parks; the producer wakes it.
    Adaptive,
    /// Spins for ever: for a core of its own.
    Busy,
}

/// The section `[engine]`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Engine {
    /// How the thread waits.
    pub wait: Wait,
    /// The CPU it is pinned to, by index.
    pub core: Option<u64>,
    /// Slots of the ring, a power of two.
    pub ring_slots: usize,
    /// Orders published and not yet answered.
    pub in_flight_max: usize,
    /// Spot accounts kept in memory.
    pub accounts_max: usize,
    /// Outcomes kept in memory.
    pub outcomes_max: usize,
    /// Quiet time before a mark is appended, ms.
    pub idle_mark_ms: u64,
}

/// The section `[outcomes]`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Outcomes {
    /// How long a transfer has been terminal before UBSCore may forget it, hours.
    pub keep_hours: f64,
    /// Time between two looks at what may be forgotten, ms.
    pub evict_every_ms: u64,
}

/// The least and the most of `outcomes.keep_hours` and its like.
const KEEP_HOURS: (f64, f64) = (0.000_01, 87_600.0);

impl Outcomes {
    /// [`Outcomes::keep_hours`] as a time.
    pub fn keep(&self) -> Duration {
        hours(self.keep_hours)
    }
}

/// The section `[wal]`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Wal {
    /// Size of a segment, bytes, a multiple of a page.
    pub segment_bytes: u64,
    /// Segments prepared ahead.
    pub spares_ready: usize,
    /// With fewer free bytes on the log's file system it is said; 0: never.
    pub space_low_bytes: u64,
}

/// The section `[snapshot]`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Snapshot {
    /// A snapshot is made after so many records.
    pub every_records: u64,
    /// Or after so many bytes of the log.
    pub every_bytes: u64,
    /// Snapshots kept.
    pub keep: usize,
    /// Run for every closed segment before it is removed; empty for none.
    pub archive_command: String,
}

/// The section `[coordinator]`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Coordinator {
    /// Workers; accounts are divided among them.
    pub shards: usize,
    /// Whether steps without an answer between them share one commit.
    pub fuse: bool,
    /// Transfers waiting for one worker.
    pub queue_max: usize,
    /// Transfers committed together.
    pub batch_max: usize,
    /// Transfers one worker has under way; more are refused.
    pub active_max: usize,
    /// Time for an adapter's answer, ms.
    pub adapter_timeout_ms: u64,
    /// The first wait before a step is tried again, ms.
    pub backoff_base_ms: u64,
    /// The longest wait, ms.
    pub backoff_cap_ms: u64,
}

/// The section `[recovery]`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Recovery {
    /// A transfer without progress for this long is picked up again, ms.
    pub stale_ms: u64,
}

/// The section `[conservation]`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Conservation {
    /// Between two rounds of the audit, ms.
    pub every_ms: u64,
    /// What PostgreSQL may take over one statement of it, ms.
    pub statement_timeout_ms: u64,
}

/// The section `[amount]`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AmountBounds {
    /// One transfer holds at most `u64::MAX` divided by this, in smallest units.
    pub safety_factor: u64,
}

/// The section `[limits]`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct UserLimits {
    /// Transfers posted by one user in a second; 0: no limit.
    pub user_requests_per_second_max: u32,
    /// Transfers accepted of one user in a day of UTC; 0: no limit.
    pub user_transfers_per_day_max: u64,
    /// Amounts transferred by one user in a day of UTC.
    pub user_amounts_per_day_max: AmountsBySymbol,
}

/// Amounts of assets, as `SYMBOL=AMOUNT, SYMBOL=AMOUNT`: symbol and decimal text, each symbol once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AmountsBySymbol(pub Vec<(String, String)>);

impl<'de> Deserialize<'de> for AmountsBySymbol {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let mut amounts: Vec<(String, String)> = Vec::new();
        for part in text.split(',').filter(|_| !text.trim().is_empty()) {
            let pair = part.split_once('=').map(|(symbol, amount)| (symbol.trim(), amount.trim()));
            let Some((symbol, amount)) = pair.filter(|(symbol, _)| !symbol.is_empty()) else {
                let problem = format!("{part:?} is not SYMBOL=AMOUNT");
                return Err(serde::de::Error::custom(problem));
            };
            if amounts.iter().any(|(other, _)| other == symbol) {
                return Err(serde::de::Error::custom(format!("{symbol} stands twice")));
            }
            amounts.push((symbol.to_owned(), amount.to_owned()));
        }
        Ok(AmountsBySymbol(amounts))
    }
}

/// The section `[events]`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Events {
    /// Whether events are made and told.
    pub enabled: bool,
    /// After so long without an event a stream is told that it is alive, ms.
    pub heartbeat_ms: u64,
    /// Streams in all.
    pub streams_max: usize,
    /// Streams of one user.
    pub streams_per_user_max: usize,
    /// Events waiting for one stream; with more it is ended.
    pub queue_max: usize,
    /// How long events and notes of what was delivered are kept, hours.
    pub keep_hours: f64,
}

/// The section `[webhooks]`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Webhooks {
    /// Where events are posted; absent: nowhere. Secret: it may hold a password.
    pub url: Option<Secret>,
    /// A file that holds the URL.
    pub url_file: Option<PathBuf>,
    /// What deliveries are signed with: `whsec_` and 24 to 64 bytes in base64.
    pub secret: Option<Secret>,
    /// A file that holds the secret.
    pub secret_file: Option<PathBuf>,
    /// Time for one try, ms.
    pub timeout_ms: u64,
    /// Transfers told of at the same time.
    pub parallel: usize,
    /// Tries of one event before it is a dead letter.
    pub attempts_max: u32,
    /// The first wait before another try, ms.
    pub backoff_base_ms: u64,
    /// The longest wait, ms.
    pub backoff_cap_ms: u64,
    /// How long dead letters are kept, hours.
    pub dead_keep_hours: f64,
}

/// [`Events::keep_hours`] and its like as a time.
pub fn hours(hours: f64) -> Duration {
    Duration::from_secs(3_600).mul_f64(hours)
}

/// The section `[alert]`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Alert {
    /// Where alerts are posted; absent: nowhere. Secret: whoever knows it can raise false alarms.
    pub webhook_url: Option<Secret>,
    /// A file that holds the URL.
    pub webhook_url_file: Option<PathBuf>,
    /// Time for the webhook's answer, ms.
    pub webhook_timeout_ms: u64,
    /// The same alert about the same subject is said again after this, ms.
    pub repeat_ms: u64,
    /// Under way for longer, a transfer is stuck, ms.
    pub stuck_ms: u64,
    /// More transfers of one user in a minute are abnormal.
    pub user_requests_per_minute_max: u64,
}

/// The section `[approval]`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Approval {
    /// What one operator asks for and another one has to approve.
    #[serde(deserialize_with = "actions")]
    pub required: Vec<Action>,
    /// How long that may be approved and carried out, ms.
    pub expires_after_ms: u64,
}

/// A list of names, or, from the environment, one text with commas between them.
fn actions<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Action>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Given {
        List(Vec<String>),
        Text(String),
    }
    let names = match Given::deserialize(deserializer) {
        Ok(Given::List(names)) => names,
        Ok(Given::Text(text)) => {
            let names = text.split(',').map(str::trim).filter(|name| !name.is_empty());
            names.map(str::to_owned).collect()
        }
        Err(_) => return Err(serde::de::Error::custom("must be a list of names")),
    };
    let known = |name: &String| {
        let unknown = || {
            let names = Action::ALL.map(Action::name).join(", ");
            serde::de::Error::custom(format!("{name:?} is not one of {names}"))
        };
        Action::from_name(name).ok_or_else(unknown)
    };
    names.iter().map(known).collect()
}

/// How output is written: for eyes or for machines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    /// Aligned lines.
    Text,
    /// One JSON object a line.
    Json,
}

/// The section `[log]`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Log {
    /// How a line is written.
    pub format: Format,
    /// What is logged, as [`EnvFilter`] reads it.
    pub filter: String,
}

/// The section `[telemetry]`, for a binary with the feature `otel`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Telemetry {
    /// Where spans are posted as OTLP, the whole path; absent: nowhere.
    pub otlp_endpoint: Option<String>,
    /// The share of traces that is sent, 0 to 1, where the client has not decided.
    pub sample_ratio: f64,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            data_dir: PathBuf::from("./data"),
            http: Http::default(),
            ops: Ops::default(),
            auth: Auth::default(),
            reload: Reload::default(),
            postgres: Postgres::default(),
            engine: Engine::default(),
            outcomes: Outcomes::default(),
            wal: Wal::default(),
            snapshot: Snapshot::default(),
            coordinator: Coordinator::default(),
            recovery: Recovery::default(),
            conservation: Conservation::default(),
            amount: AmountBounds::default(),
            limits: UserLimits::default(),
            events: Events::default(),
            webhooks: Webhooks::default(),
            alert: Alert::default(),
            approval: Approval::default(),
            log: Log::default(),
            telemetry: Telemetry::default(),
        }
    }
}

const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

impl Default for Http {
    fn default() -> Self {
        Self {
            listen: SocketAddr::new(LOOPBACK, 8080),
            tls_certificate_file: None,
            tls_key_file: None,
            body_bytes_max: 16_384,
            header_bytes_max: 16_384,
            header_read_timeout_ms: 5_000,
            body_read_timeout_ms: 5_000,
            request_timeout_ms: 30_000,
            connections_max: 1_024,
            transfer_wait_ms: 2_000,
            shutdown_timeout_ms: 10_000,
        }
    }
}

impl Default for Ops {
    fn default() -> Self {
        Self {
            listen: SocketAddr::new(LOOPBACK, 9090),
            tls_certificate_file: None,
            tls_key_file: None,
        }
    }
}

impl Default for Auth {
    fn default() -> Self {
        Self {
            algorithm: Algorithm::Hs256,
            secret: None,
            secret_file: None,
            previous_secret: None,
            previous_secret_file: None,
            public_key_file: None,
            issuer: None,
            audience: None,
            leeway_s: 5,
        }
    }
}

impl Default for Reload {
    fn default() -> Self {
        Self { every_ms: 5_000 }
    }
}

impl Default for Postgres {
    fn default() -> Self {
        Self {
            url: None,
            url_file: None,
            bin: None,
            connections_max: 8,
            connect_timeout_ms: 2_000,
            statement_timeout_ms: 5_000,
            lock_timeout_ms: 500,
            idle_in_transaction_timeout_ms: 5_000,
        }
    }
}

impl Default for Engine {
    fn default() -> Self {
        Self {
            wait: Wait::Adaptive,
            core: None,
            ring_slots: 4_096,
            in_flight_max: 2_048,
            accounts_max: 1_000_000,
            outcomes_max: 1_000_000,
            idle_mark_ms: 10,
        }
    }
}

impl Default for Outcomes {
    fn default() -> Self {
        Self { keep_hours: 24.0, evict_every_ms: 10_000 }
    }
}

impl Default for Wal {
    fn default() -> Self {
        Self { segment_bytes: 67_108_864, spares_ready: 1, space_low_bytes: 1_073_741_824 }
    }
}

impl Default for Snapshot {
    fn default() -> Self {
        Self {
            every_records: 1_000_000,
            every_bytes: 1_073_741_824,
            keep: 2,
            archive_command: String::new(),
        }
    }
}

impl Default for Coordinator {
    fn default() -> Self {
        Self {
            shards: 2,
            fuse: true,
            queue_max: 1_024,
            batch_max: 128,
            active_max: 10_000,
            adapter_timeout_ms: 5_000,
            backoff_base_ms: 100,
            backoff_cap_ms: 30_000,
        }
    }
}

impl Default for Conservation {
    fn default() -> Self {
        Self { every_ms: 10_000, statement_timeout_ms: 60_000 }
    }
}

impl Default for Recovery {
    fn default() -> Self {
        Self { stale_ms: 60_000 }
    }
}

impl Default for AmountBounds {
    fn default() -> Self {
        Self { safety_factor: 1_000 }
    }
}

impl Default for UserLimits {
    fn default() -> Self {
        Self {
            user_requests_per_second_max: 10,
            user_transfers_per_day_max: 100,
            user_amounts_per_day_max: AmountsBySymbol::default(),
        }
    }
}

impl Default for Events {
    fn default() -> Self {
        Self {
            enabled: true,
            heartbeat_ms: 15_000,
            streams_max: 512,
            streams_per_user_max: 4,
            queue_max: 256,
            keep_hours: 72.0,
        }
    }
}

impl Default for Telemetry {
    fn default() -> Self {
        Self { otlp_endpoint: None, sample_ratio: 1.0 }
    }
}

impl Default for Webhooks {
    fn default() -> Self {
        Self {
            url: None,
            url_file: None,
            secret: None,
            secret_file: None,
            timeout_ms: 5_000,
            parallel: 8,
            attempts_max: 16,
            backoff_base_ms: 1_000,
            backoff_cap_ms: 3_600_000,
            dead_keep_hours: 720.0,
        }
    }
}

impl Default for Alert {
    fn default() -> Self {
        Self {
            webhook_url: None,
            webhook_url_file: None,
            webhook_timeout_ms: 2_000,
            repeat_ms: 60_000,
            stuck_ms: 60_000,
            user_requests_per_minute_max: 600,
        }
    }
}

impl Default for Approval {
    fn default() -> Self {
        Self { required: Vec::new(), expires_after_ms: HOUR_MS }
    }
}

impl Default for Log {
    fn default() -> Self {
        Self { format: Format::Text, filter: "info".to_owned() }
    }
}

/// Why there is no configuration. The operator must change something; nothing was started.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The configuration file cannot be read.
    #[error("read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The configuration file is not TOML. The line itself is not quoted: it may hold a secret.
    #[error("{} line {line}: {problem}", path.display())]
    Syntax {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// What the parser said.
        problem: String,
    },
    /// A key that does not exist, or a value of the wrong type.
    #[error("{key}: {problem} (in {origin})")]
    Key {
        /// `section.key`.
        key: String,
        /// What is wrong, and what is allowed.
        problem: String,
        /// The file or the environment.
        origin: String,
    },
    /// A value that its key does not allow.
    #[error("{key} = {value}: must be {allowed}")]
    Range {
        /// `section.key`.
        key: &'static str,
        /// The value; `***` for a secret.
        value: String,
        /// What is allowed, with the unit.
        allowed: String,
    },
    /// A key without which the program cannot start.
    #[error("{key} is missing: {advice}")]
    Missing {
        /// `section.key`.
        key: &'static str,
        /// How to give it.
        advice: &'static str,
    },
    /// A secret given as a value and as a file, in one place.
    #[error("{key} and {key}_file are both given (in {origin}): give one")]
    Twice {
        /// `section.key`.
        key: String,
        /// The file or the environment.
        origin: String,
    },
    /// A file that holds a secret cannot be read.
    #[error("{key} = {}: cannot be read", path.display())]
    SecretFile {
        /// `section.key`.
        key: String,
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

/// What the command line says about the configuration; absent fields change nothing.
#[derive(Clone, Debug, Default)]
pub struct Overrides {
    /// For `data_dir`.
    pub data_dir: Option<PathBuf>,
    /// For `http.listen`.
    pub http_listen: Option<SocketAddr>,
    /// For `ops.listen`.
    pub ops_listen: Option<SocketAddr>,
    /// For `postgres.url`.
    pub postgres_url: Option<Secret>,
    /// For `postgres.bin`.
    pub postgres_bin: Option<PathBuf>,
}

/// A bound of one whole number, read by [`Config::validate`] and by the text of a type error.
struct Bound {
    key: &'static str,
    /// None: an optional key that is absent.
    value: fn(&Config) -> Option<u64>,
    min: u64,
    max: u64,
    unit: &'static str,
}

impl Bound {
    fn allowed(&self) -> String {
        format!("{}..={} {}", self.min, self.max, self.unit)
    }
}

const fn bound(
    key: &'static str,
    value: fn(&Config) -> Option<u64>,
    min: u64,
    max: u64,
    unit: &'static str,
) -> Bound {
    Bound { key, value, min, max, unit }
}

const MINUTE_MS: u64 = 60_000;
const FIVE_MINUTES_MS: u64 = 300_000;
const HOUR_MS: u64 = 3_600_000;
const WEEK_MS: u64 = 604_800_000;

#[rustfmt::skip]
const BOUNDS: &[Bound] = &[
    bound("http.body_bytes_max", |c| Some(c.http.body_bytes_max as u64), 1_024, 1_048_576, "bytes"),
    bound("http.header_bytes_max", |c| Some(c.http.header_bytes_max as u64), 8_192, 65_536, "bytes"),
    bound("http.header_read_timeout_ms", |c| Some(c.http.header_read_timeout_ms), 100, MINUTE_MS, "ms"),
    bound("http.body_read_timeout_ms", |c| Some(c.http.body_read_timeout_ms), 100, MINUTE_MS, "ms"),
    bound("http.request_timeout_ms", |c| Some(c.http.request_timeout_ms), 100, FIVE_MINUTES_MS, "ms"),
    bound("http.connections_max", |c| Some(c.http.connections_max as u64), 1, 65_536, "connections"),
    bound("http.transfer_wait_ms", |c| Some(c.http.transfer_wait_ms), 0, MINUTE_MS, "ms"),
    bound("http.shutdown_timeout_ms", |c| Some(c.http.shutdown_timeout_ms), 0, FIVE_MINUTES_MS, "ms"),
    bound("auth.leeway_s", |c| Some(c.auth.leeway_s), 0, 5, "s"),
    bound("reload.every_ms", |c| Some(c.reload.every_ms), 100, HOUR_MS, "ms"),
    bound("postgres.connections_max", |c| Some(c.postgres.connections_max as u64), 1, 512, "connections"),
    bound("postgres.connect_timeout_ms", |c| Some(c.postgres.connect_timeout_ms), 100, MINUTE_MS, "ms"),
    bound("postgres.statement_timeout_ms", |c| Some(c.postgres.statement_timeout_ms), 100, FIVE_MINUTES_MS, "ms"),
    bound("postgres.lock_timeout_ms", |c| Some(c.postgres.lock_timeout_ms), 100, FIVE_MINUTES_MS, "ms"),
    bound("postgres.idle_in_transaction_timeout_ms", |c| Some(c.postgres.idle_in_transaction_timeout_ms), 100, FIVE_MINUTES_MS, "ms"),
    bound("engine.core", |c| c.engine.core, 0, 1_023, "as a CPU index"),
    bound("engine.ring_slots", |c| Some(c.engine.ring_slots as u64), 64, 1_048_576, "slots, a power of two"),
    bound("engine.in_flight_max", |c| Some(c.engine.in_flight_max as u64), 1, 524_288, "orders, at most half of engine.ring_slots"),
    bound("engine.accounts_max", |c| Some(c.engine.accounts_max as u64), 64, 100_000_000, "accounts"),
    bound("engine.outcomes_max", |c| Some(c.engine.outcomes_max as u64), 1_024, 100_000_000, "outcomes"),
    bound("engine.idle_mark_ms", |c| Some(c.engine.idle_mark_ms), 1, 10_000, "ms"),
    bound("outcomes.evict_every_ms", |c| Some(c.outcomes.evict_every_ms), 10, HOUR_MS, "ms"),
    bound("wal.segment_bytes", |c| Some(c.wal.segment_bytes), 65_536, 1_073_741_824, "bytes, a multiple of 4096"),
    bound("wal.spares_ready", |c| Some(c.wal.spares_ready as u64), 1, 16, "segments"),
    bound("wal.space_low_bytes", |c| Some(c.wal.space_low_bytes), 0, 1 << 50, "bytes"),
    bound("snapshot.every_records", |c| Some(c.snapshot.every_records), 100, 1_000_000_000_000, "records"),
    bound("snapshot.every_bytes", |c| Some(c.snapshot.every_bytes), 4_096, 1_099_511_627_776, "bytes"),
    bound("snapshot.keep", |c| Some(c.snapshot.keep as u64), 1, 64, "snapshots"),
    bound("coordinator.shards", |c| Some(c.coordinator.shards as u64), 1, 64, "workers"),
    bound("coordinator.queue_max", |c| Some(c.coordinator.queue_max as u64), 1, 65_536, "transfers"),
    bound("coordinator.batch_max", |c| Some(c.coordinator.batch_max as u64), 1, 4_096, "transfers, at most coordinator.queue_max"),
    bound("coordinator.active_max", |c| Some(c.coordinator.active_max as u64), 1, 1_000_000, "transfers"),
    bound("coordinator.adapter_timeout_ms", |c| Some(c.coordinator.adapter_timeout_ms), 100, FIVE_MINUTES_MS, "ms"),
    bound("coordinator.backoff_base_ms", |c| Some(c.coordinator.backoff_base_ms), 1, MINUTE_MS, "ms"),
    bound("coordinator.backoff_cap_ms", |c| Some(c.coordinator.backoff_cap_ms), 1, HOUR_MS, "ms, at least coordinator.backoff_base_ms"),
    bound("recovery.stale_ms", |c| Some(c.recovery.stale_ms), 1_000, HOUR_MS, "ms"),
    bound("conservation.every_ms", |c| Some(c.conservation.every_ms), 10, HOUR_MS, "ms"),
    bound(
        "conservation.statement_timeout_ms",
        |c| Some(c.conservation.statement_timeout_ms),
        1_000,
        HOUR_MS,
        "ms",
    ),
    bound("events.heartbeat_ms", |c| Some(c.events.heartbeat_ms), 10, FIVE_MINUTES_MS, "ms"),
    bound("events.streams_max", |c| Some(c.events.streams_max as u64), 1, 65_536, "streams"),
    bound("events.streams_per_user_max", |c| Some(c.events.streams_per_user_max as u64), 1, 1_024, "streams"),
    bound("events.queue_max", |c| Some(c.events.queue_max as u64), 1, 65_536, "events"),
    bound("webhooks.timeout_ms", |c| Some(c.webhooks.timeout_ms), 100, MINUTE_MS, "ms"),
    bound("webhooks.parallel", |c| Some(c.webhooks.parallel as u64), 1, 64, "transfers"),
    bound("webhooks.attempts_max", |c| Some(c.webhooks.attempts_max.into()), 1, 1_000, "tries"),
    bound("webhooks.backoff_base_ms", |c| Some(c.webhooks.backoff_base_ms), 1, HOUR_MS, "ms"),
    bound("webhooks.backoff_cap_ms", |c| Some(c.webhooks.backoff_cap_ms), 1, 86_400_000, "ms, at least webhooks.backoff_base_ms"),
    bound("alert.webhook_timeout_ms", |c| Some(c.alert.webhook_timeout_ms), 100, MINUTE_MS, "ms"),
    bound("alert.repeat_ms", |c| Some(c.alert.repeat_ms), 0, HOUR_MS, "ms"),
    bound("alert.stuck_ms", |c| Some(c.alert.stuck_ms), 100, HOUR_MS, "ms"),
    bound("alert.user_requests_per_minute_max", |c| Some(c.alert.user_requests_per_minute_max), 1, 1_000_000, "transfers"),
    bound(
        "limits.user_requests_per_second_max",
        |c| Some(c.limits.user_requests_per_second_max.into()),
        0,
        10_000,
        "requests",
    ),
    bound("limits.user_transfers_per_day_max", |c| Some(c.limits.user_transfers_per_day_max), 0, 1_000_000, "transfers"),
    bound("approval.expires_after_ms", |c| Some(c.approval.expires_after_ms), 1_000, WEEK_MS, "ms"),
    bound("amount.safety_factor", |c| Some(c.amount.safety_factor), 1, 1_000_000_000, "(a divisor)"),
];

/// The bytes of a memory page, which a segment is a multiple of.
const PAGE_BYTES: u64 = 4_096;

impl Config {
    /// Loads and validates the configuration, and reads the files that secrets are in.
    ///
    /// `file`: the TOML file, if one was named; none is looked for. `dev`: whether the
    /// development secret may stand in for a missing one.
    ///
    /// # Errors
    /// [`Error`]: the operator must change what it names.
    pub fn load(file: Option<&Path>, overrides: Overrides, dev: bool) -> Result<Self, Error> {
        Self::load_from(file, env::vars_os(), overrides, dev)
    }

    fn load_from(
        file: Option<&Path>,
        environment: impl IntoIterator<Item = (OsString, OsString)>,
        overrides: Overrides,
        dev: bool,
    ) -> Result<Self, Error> {
        let mut lower = file.map_or_else(|| Ok(Layer::empty()), Layer::read)?;
        // Alone and strictly first: merging below is lenient about types, because the environment
        // knows only text, and a file is not to profit from that.
        lower.extract_strictly()?;
        let upper = Layer::from_environment(environment)?;
        lower.refuse_twins()?;
        upper.refuse_twins()?;
        lower.yield_twins(&upper);
        let is_given = |key| lower.holds("limits", key) || upper.holds("limits", key);
        let requests_given = is_given("user_requests_per_second_max");
        let transfers_given = is_given("user_transfers_per_day_max");

        let mut config: Self =
            Figment::from(lower).merge(upper).extract_lossy().map_err(describe)?;
        overrides.apply(&mut config);
        config.read_secrets()?;
        if dev && config.auth.algorithm == Algorithm::Hs256 && config.auth.secret.is_none() {
            config.auth.secret = Some(Secret::new(DEVELOPMENT_SECRET));
        }
        // Whoever tries it out is not to be stopped by what they have not asked for.
        if dev && !requests_given {
            config.limits.user_requests_per_second_max = 0;
        }
        if dev && !transfers_given {
            config.limits.user_transfers_per_day_max = 0;
        }
        config.validate(dev)?;
        Ok(config)
    }

    /// Checks everything that types do not.
    ///
    /// # Errors
    /// [`Error::Range`] or [`Error::Missing`], for the first key that is wrong.
    pub fn validate(&self, dev: bool) -> Result<(), Error> {
        for bound in BOUNDS {
            if let Some(value) = (bound.value)(self)
                && !(bound.min..=bound.max).contains(&value)
            {
                return Err(range(bound.key, value, bound.allowed()));
            }
        }
        if self.data_dir.as_os_str().is_empty() {
            return Err(range("data_dir", "\"\"", "a directory"));
        }
        self.validate_relations()?;
        self.validate_auth(dev)?;
        if let Some(url) = &self.postgres.url
            && url.expose().parse::<tokio_postgres::Config>().is_err()
        {
            return Err(range("postgres.url", url, "\"embedded\" or a postgres:// URL"));
        }
        if let Some(url) = &self.alert.webhook_url
            && !is_http_url(url.expose())
        {
            return Err(range("alert.webhook_url", url, "an http:// or https:// URL"));
        }
        self.validate_webhooks()?;
        if EnvFilter::try_new(&self.log.filter).is_err() {
            let allowed = "a level or target=level pairs, such as \"info,ubscore=debug\"";
            return Err(range("log.filter", format!("{:?}", self.log.filter), allowed));
        }
        if let Some(url) = &self.telemetry.otlp_endpoint
            && !is_http_url(url)
        {
            let allowed = "an http:// or https:// URL with its path";
            return Err(range("telemetry.otlp_endpoint", format!("{url:?}"), allowed));
        }
        if !(0.0..=1.0).contains(&self.telemetry.sample_ratio) {
            let ratio = self.telemetry.sample_ratio;
            return Err(range("telemetry.sample_ratio", ratio, "0.0 to 1.0"));
        }
        Ok(())
    }

    /// What one key demands of another.
    fn validate_relations(&self) -> Result<(), Error> {
        let (http, engine, coordinator) = (&self.http, &self.engine, &self.coordinator);
        let ops = &self.ops;
        for (files, keys) in [
            (
                [&http.tls_certificate_file, &http.tls_key_file],
                ["http.tls_certificate_file", "http.tls_key_file"],
            ),
            (
                [&ops.tls_certificate_file, &ops.tls_key_file],
                ["ops.tls_certificate_file", "ops.tls_key_file"],
            ),
        ] {
            let [certificate, key] = files.map(Option::is_some);
            if certificate != key {
                let key = keys[usize::from(certificate)];
                let advice = "TLS needs a certificate and its private key";
                return Err(Error::Missing { key, advice });
            }
        }
        // POST waits this much longer for what its user has used and for the coordinator's word, and a name to ask for it is
        // better than none.
        let accept_ms = http.accept_wait_ms() + 4_000;
        if http.request_timeout_ms <= accept_ms {
            let allowed = format!(
                "above {accept_ms} ms: http.transfer_wait_ms or {ACCEPT_WAIT_MS_MIN}, whichever is more, and 4000"
            );
            return Err(range("http.request_timeout_ms", http.request_timeout_ms, allowed));
        }
        if self.postgres.lock_timeout_ms > self.postgres.statement_timeout_ms {
            let statement_ms = self.postgres.statement_timeout_ms;
            let allowed = format!("at most postgres.statement_timeout_ms, {statement_ms} ms");
            return Err(range("postgres.lock_timeout_ms", self.postgres.lock_timeout_ms, allowed));
        }
        if !engine.ring_slots.is_power_of_two() {
            return Err(range("engine.ring_slots", engine.ring_slots, "a power of two"));
        }
        if engine.in_flight_max > engine.ring_slots / 2 {
            let allowed = format!("at most half of engine.ring_slots, {}", engine.ring_slots / 2);
            return Err(range("engine.in_flight_max", engine.in_flight_max, allowed));
        }
        // NaN is in no range.
        let (least, most) = KEEP_HOURS;
        for (key, hours) in [
            ("outcomes.keep_hours", self.outcomes.keep_hours),
            ("events.keep_hours", self.events.keep_hours),
            ("webhooks.dead_keep_hours", self.webhooks.dead_keep_hours),
        ] {
            if !(least..=most).contains(&hours) {
                return Err(range(key, hours, format!("{least}..={most} hours")));
            }
        }
        if !self.wal.segment_bytes.is_multiple_of(PAGE_BYTES) {
            let allowed = format!("a multiple of {PAGE_BYTES} bytes");
            return Err(range("wal.segment_bytes", self.wal.segment_bytes, allowed));
        }
        if coordinator.batch_max > coordinator.queue_max {
            let allowed = format!("at most coordinator.queue_max, {}", coordinator.queue_max);
            return Err(range("coordinator.batch_max", coordinator.batch_max, allowed));
        }
        if coordinator.backoff_cap_ms < coordinator.backoff_base_ms {
            let base_ms = coordinator.backoff_base_ms;
            let allowed = format!("at least coordinator.backoff_base_ms, {base_ms} ms");
            return Err(range("coordinator.backoff_cap_ms", coordinator.backoff_cap_ms, allowed));
        }
        Ok(())
    }

    fn validate_webhooks(&self) -> Result<(), Error> {
        let webhooks = &self.webhooks;
        if webhooks.backoff_cap_ms < webhooks.backoff_base_ms {
            let allowed =
                format!("at least webhooks.backoff_base_ms, {} ms", webhooks.backoff_base_ms);
            return Err(range("webhooks.backoff_cap_ms", webhooks.backoff_cap_ms, allowed));
        }
        let Some(url) = &webhooks.url else { return Ok(()) };
        if !is_http_url(url.expose()) {
            return Err(range("webhooks.url", url, "an http:// or https:// URL"));
        }
        if !self.events.enabled {
            return Err(range("webhooks.url", url, "absent where events.enabled is false"));
        }
        let Some(secret) = &webhooks.secret else {
            return Err(Error::Missing {
                key: "webhooks.secret",
                advice: "give webhooks.secret_file, webhooks.secret or UBSCORE__WEBHOOKS__SECRET",
            });
        };
        let key = secret.expose().strip_prefix(WEBHOOK_SECRET_PREFIX).unwrap_or("");
        if !WEBHOOK_SECRET_CHARS.contains(&key.len())
            || standardwebhooks::Webhook::new(key).is_err()
        {
            let allowed = "whsec_ and the base64 of 24 to 64 bytes";
            return Err(range("webhooks.secret", secret, allowed));
        }
        Ok(())
    }

    fn validate_auth(&self, dev: bool) -> Result<(), Error> {
        let auth = &self.auth;
        for (key, text) in [("auth.issuer", &auth.issuer), ("auth.audience", &auth.audience)] {
            if text.as_deref() == Some("") {
                return Err(range(key, "\"\"", "absent or not empty"));
            }
        }
        if auth.algorithm != Algorithm::Hs256 {
            return match auth.public_key_file {
                Some(_) => Ok(()),
                None => Err(Error::Missing {
                    key: "auth.public_key_file",
                    advice: "name the file of the public keys, PEM or a JWK Set, or use HS256",
                }),
            };
        }
        let Some(secret) = &auth.secret else {
            return Err(Error::Missing {
                key: "auth.secret",
                advice: "give auth.secret_file, auth.secret or UBSCORE__AUTH__SECRET, \
                         or --dev for the development secret",
            });
        };
        check_secret("auth.secret", secret, dev)?;
        if let Some(previous) = &auth.previous_secret {
            check_secret("auth.previous_secret", previous, false)?;
        }
        if secret.expose() == DEVELOPMENT_SECRET {
            // Everyone knows the secret, so everyone who can connect is everyone's user and admin.
            for (key, listen) in
                [("http.listen", self.http.listen), ("ops.listen", self.ops.listen)]
            {
                if !listen.ip().is_loopback() {
                    let allowed = "a loopback address with the development secret";
                    return Err(range(key, listen, allowed));
                }
            }
        }
        Ok(())
    }

    /// Replaces the names of files by what they hold, and "embedded" by nothing.
    fn read_secrets(&mut self) -> Result<(), Error> {
        self.auth.read_secrets()?;
        for (key, secret, file) in [
            ("postgres.url_file", &mut self.postgres.url, &self.postgres.url_file),
            ("alert.webhook_url_file", &mut self.alert.webhook_url, &self.alert.webhook_url_file),
            ("webhooks.url_file", &mut self.webhooks.url, &self.webhooks.url_file),
            ("webhooks.secret_file", &mut self.webhooks.secret, &self.webhooks.secret_file),
        ] {
            if let Some(path) = file {
                *secret = Some(read_secret(key, path)?);
            }
        }
        self.postgres.url.take_if(|url| url.expose() == POSTGRES_EMBEDDED);
        self.alert.webhook_url.take_if(|url| url.expose().is_empty());
        self.webhooks.url.take_if(|url| url.expose().is_empty());
        Ok(())
    }
}

impl Auth {
    /// The same with the secrets that its files hold now, where it has any use for them.
    ///
    /// # Errors
    /// As of [`Config::load`]; the development secret is refused, since nobody looks at the listeners' addresses again.
    pub fn read_again(&self) -> Result<Auth, Error> {
        let mut auth = self.clone();
        if auth.algorithm != Algorithm::Hs256 {
            return Ok(auth);
        }
        auth.read_secrets()?;
        for (key, secret, file) in [
            ("auth.secret", &auth.secret, &auth.secret_file),
            ("auth.previous_secret", &auth.previous_secret, &auth.previous_secret_file),
        ] {
            if let (Some(secret), Some(_)) = (secret, file) {
                check_secret(key, secret, false)?;
            }
        }
        Ok(auth)
    }

    /// Replaces the names of files by what they hold.
    fn read_secrets(&mut self) -> Result<(), Error> {
        for (key, secret, file) in [
            ("auth.secret_file", &mut self.secret, &self.secret_file),
            ("auth.previous_secret_file", &mut self.previous_secret, &self.previous_secret_file),
        ] {
            if let Some(path) = file {
                *secret = Some(read_secret(key, path)?);
            }
        }
        self.previous_secret.take_if(|secret| secret.expose().is_empty());
        Ok(())
    }
}

impl Overrides {
    fn apply(self, config: &mut Config) {
        if let Some(path) = self.data_dir {
            config.data_dir = path;
        }
        if let Some(listen) = self.http_listen {
            config.http.listen = listen;
        }
        if let Some(listen) = self.ops_listen {
            config.ops.listen = listen;
        }
        if let Some(url) = self.postgres_url {
            config.postgres.url = Some(url);
            config.postgres.url_file = None;
        }
        if let Some(path) = self.postgres_bin {
            config.postgres.bin = Some(path);
        }
    }
}

/// Whether a text names something that can be called by HTTP.
pub fn is_http_url(text: &str) -> bool {
    let url = text.parse::<hyper::Uri>().ok();
    url.is_some_and(|url| {
        matches!(url.scheme_str(), Some("http" | "https"))
            && url.host().is_some_and(|host| !host.is_empty())
    })
}

fn range(key: &'static str, value: impl fmt::Display, allowed: impl Into<String>) -> Error {
    Error::Range { key, value: value.to_string(), allowed: allowed.into() }
}

/// Whether a secret may sign tokens; `dev`: whether it may be the one that everyone knows.
fn check_secret(key: &'static str, secret: &Secret, dev: bool) -> Result<(), Error> {
    if secret.expose().len() < SECRET_BYTES_MIN {
        return Err(range(key, secret, format!("at least {SECRET_BYTES_MIN} bytes")));
    }
    if secret.expose() == DEVELOPMENT_SECRET && !dev {
        return Err(range(key, secret, "your own: this one needs --dev"));
    }
    Ok(())
}

/// Reads a file of public keys or certificates.
///
/// # Errors
/// What the system said; or it is no file, or longer than any such file is.
pub fn read_key_file(path: &Path) -> io::Result<Vec<u8>> {
    check_file(path, KEY_FILE_BYTES_MAX)?;
    fs::read(path)
}

/// A device or a pipe would be read for ever.
fn check_file(path: &Path, bytes_max: u64) -> io::Result<()> {
    let metadata = fs::metadata(path)?;
    if !metadata.is_file() || metadata.len() > bytes_max {
        let problem = format!("not a file of at most {bytes_max} bytes");
        return Err(io::Error::new(io::ErrorKind::InvalidData, problem));
    }
    Ok(())
}

fn read_secret(key: &str, path: &Path) -> Result<Secret, Error> {
    let failed = |source| Error::SecretFile { key: key.to_owned(), path: path.to_owned(), source };
    check_file(path, SECRET_FILE_BYTES_MAX).map_err(failed)?;
    let mut text = fs::read_to_string(path).map_err(failed)?;
    // Editors and `echo` end the line; nobody means that as part of the secret.
    if text.ends_with('\n') {
        text.pop();
        if text.ends_with('\r') {
            text.pop();
        }
    }
    Ok(Secret(text))
}

/// One source of keys, merged by figment over the one below.
#[derive(Clone)]
struct Layer {
    /// Named in errors: "the environment" or a file.
    origin: String,
    keys: Dict,
}

impl Layer {
    fn empty() -> Self {
        Self { origin: "the defaults".to_owned(), keys: Dict::new() }
    }

    /// Reads a TOML file. Not figment's own reader: its errors quote the line, secret or not.
    fn read(path: &Path) -> Result<Self, Error> {
        let text = fs::read_to_string(path)
            .map_err(|source| Error::Read { path: path.to_owned(), source })?;
        let keys = toml::from_str(&text).map_err(|error: toml::de::Error| {
            let offset = error.span().map_or(0, |span| span.start);
            Error::Syntax {
                path: path.to_owned(),
                line: text.bytes().take(offset).filter(|byte| *byte == b'\n').count() + 1,
                problem: error.message().to_owned(),
            }
        })?;
        Ok(Self { origin: path.display().to_string(), keys })
    }

    /// `UBSCORE__HTTP__LISTEN=…` becomes `http.listen`; every value is text for now.
    fn from_environment(
        variables: impl IntoIterator<Item = (OsString, OsString)>,
    ) -> Result<Self, Error> {
        let mut layer = Self { origin: "the environment".to_owned(), keys: Dict::new() };
        for (name, value) in variables {
            // A name that is not text cannot be one of ours.
            let Some(path) = name.to_str().and_then(|name| name.strip_prefix(ENVIRONMENT_PREFIX))
            else {
                continue;
            };
            let path = path.to_lowercase();
            let refuse = |problem: &str| Error::Key {
                key: path.replace("__", "."),
                problem: problem.to_owned(),
                origin: layer.origin.clone(),
            };
            let Some(value) = value.to_str() else {
                return Err(refuse("not UTF-8"));
            };
            // Of two spellings of one name, which wins would depend on the environment's order.
            match path.split_once("__") {
                None => {
                    if layer.keys.contains_key(&path) {
                        return Err(refuse("given twice"));
                    }
                    layer.keys.insert(path, Value::from(value));
                }
                Some((section, key)) => {
                    let entry = layer
                        .keys
                        .entry(section.to_owned())
                        .or_insert_with(|| Value::from(Dict::new()));
                    let Value::Dict(_, keys) = entry else {
                        return Err(refuse("its section is given as a value"));
                    };
                    if keys.contains_key(key) {
                        return Err(refuse("given twice"));
                    }
                    keys.insert(key.to_owned(), Value::from(value));
                }
            }
        }
        Ok(layer)
    }

    fn extract_strictly(&self) -> Result<(), Error> {
        Figment::from(self.clone()).extract::<Config>().map(drop).map_err(describe)
    }

    fn refuse_twins(&self) -> Result<(), Error> {
        for (section, value, file) in TWINS {
            if self.holds(section, value) && self.holds(section, file) {
                let key = format!("{section}.{value}");
                return Err(Error::Twice { key, origin: self.origin.clone() });
            }
        }
        Ok(())
    }

    /// Drops a secret of which `upper` gives another, be it as a value or as a file.
    fn yield_twins(&mut self, upper: &Self) {
        for (section, value, file) in TWINS {
            if (upper.holds(section, value) || upper.holds(section, file))
                && let Some(Value::Dict(_, keys)) = self.keys.get_mut(section)
            {
                keys.remove(value);
                keys.remove(file);
            }
        }
    }

    fn holds(&self, section: &str, key: &str) -> bool {
        self.keys.get(section).and_then(Value::as_dict).is_some_and(|keys| keys.contains_key(key))
    }
}

impl Provider for Layer {
    fn metadata(&self) -> Metadata {
        Metadata::named(self.origin.clone())
    }

    fn data(&self) -> Result<Map<Profile, Dict>, figment::Error> {
        Ok(Profile::Default.collect(self.keys.clone()))
    }
}

/// Turns figment's error into ours: the key as `section.key`, and no secret in the text.
fn describe(error: figment::Error) -> Error {
    let mut path = error.path.clone();
    let problem = match &error.kind {
        Kind::UnknownField(name, known) => {
            // Figment puts the unknown name at the end of the path in some cases only.
            if path.last() != Some(name) {
                path.push(name.clone());
            }
            format!("unknown key; known are {}", known.join(", "))
        }
        // The value itself is in the kind's text.
        _ if TWINS.iter().any(|(section, key, _)| path == [*section, *key]) => {
            "must be text".to_owned()
        }
        kind => kind.to_string(),
    };
    let key = path.join(".");
    let allowed = BOUNDS
        .iter()
        .find(|bound| bound.key == key)
        .map_or_else(String::new, |bound| format!("; allowed: {}", bound.allowed()));
    let origin = error.metadata.map_or_else(|| "an unknown place".into(), |m| m.name);
    Error::Key { key, problem: problem + &allowed, origin: origin.into_owned() }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::io::Write;

    use tempfile::NamedTempFile;

    use super::*;

    const FILE: &str = include_str!("../config/ubscore.toml");
    const OWN_SECRET: &str = "0123456789abcdef0123456789abcdef";

    fn file(text: &str) -> NamedTempFile {
        let mut file = NamedTempFile::new().expect("a temporary file");
        file.write_all(text.as_bytes()).expect("written");
        file
    }

    fn load(text: &str, environment: &[(&str, &str)]) -> Result<Config, Error> {
        load_with(text, environment, Overrides::default())
    }

    fn load_with(
        text: &str,
        environment: &[(&str, &str)],
        overrides: Overrides,
    ) -> Result<Config, Error> {
        let file = file(text);
        let environment = environment.iter().map(|(name, value)| (name.into(), value.into()));
        Config::load_from(Some(file.path()), environment, overrides, true)
    }

    fn refusal(text: &str, environment: &[(&str, &str)]) -> String {
        load(text, environment).expect_err(text).to_string()
    }

    /// Every key the code knows, as `section.key`: what the refusal of an unknown one lists.
    fn known_keys() -> BTreeSet<String> {
        let known = |text: &str| {
            let keys = toml::from_str(text).expect("TOML");
            let layer = Layer { origin: "test".to_owned(), keys };
            match Figment::from(layer).extract::<Config>().expect_err("unknown").kind {
                Kind::UnknownField(_, known) => known,
                kind => panic!("{kind}"),
            }
        };
        let mut keys = BTreeSet::new();
        for top in known("unknown = 1") {
            if *top == "data_dir" {
                keys.insert((*top).to_owned());
                continue;
            }
            keys.extend(
                known(&format!("[{top}]\nunknown = 1")).iter().map(|k| format!("{top}.{k}")),
            );
        }
        keys
    }

    #[test]
    fn the_file_equals_the_defaults() {
        let keys = toml::from_str(FILE).expect("TOML");
        let layer = Layer { origin: "config/ubscore.toml".to_owned(), keys };
        let from_file: Config = Figment::from(layer).extract().expect("the file's types");
        assert_eq!(from_file, Config::default());
    }

    /// Goal: nothing can be configured that the file does not explain. Method: uncomment the
    /// optional keys; the set of keys is the code's, each has a comment above it, and types fit.
    #[test]
    fn the_file_explains_every_key() {
        let mut section = String::new();
        let mut keys = BTreeSet::new();
        let mut commented = false;
        let mut uncommented = String::new();
        for line in FILE.lines() {
            let bare = line.strip_prefix("# ").unwrap_or(line);
            let key = bare
                .split_once(" = ")
                .map(|(key, _)| key)
                .filter(|key| key.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_'));
            if let Some(name) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
                section = format!("{name}.");
                commented = false;
            } else if let Some(key) = key {
                assert!(commented, "{section}{key} has no comment");
                assert!(keys.insert(format!("{section}{key}")), "{section}{key} stands twice");
                commented = false;
            } else {
                commented = line.starts_with("# ");
            }
            uncommented.push_str(if key.is_some() { bare } else { line });
            uncommented.push('\n');
        }
        assert_eq!(keys, known_keys());
        let keys = toml::from_str(&uncommented).expect("TOML");
        Layer { origin: "uncommented".to_owned(), keys }.extract_strictly().expect("types");
    }

    #[test]
    fn the_file_names_the_bounds_that_the_code_checks() {
        fn grouped(number: u64) -> String {
            let digits = number.to_string();
            let mut text = String::new();
            for (position, digit) in digits.chars().enumerate() {
                if position > 0 && (digits.len() - position).is_multiple_of(3) {
                    text.push(',');
                }
                text.push(digit);
            }
            text
        }
        for bound in BOUNDS {
            let (section, key) = bound.key.split_once('.').expect("section.key");
            let part = FILE.split(&format!("[{section}]\n")).nth(1).expect(section);
            let before = part
                .find(&format!("\n{key} = "))
                .or_else(|| part.find(&format!("\n# {key} = ")))
                .expect(key);
            let comment = part[..before].rsplit(" = ").next().expect("text");
            let max = match bound.key {
                "engine.in_flight_max" => "half of ring_slots".to_owned(),
                _ => grouped(bound.max),
            };
            let min = match bound.key {
                "coordinator.backoff_cap_ms" | "webhooks.backoff_cap_ms" => {
                    "backoff_base_ms".to_owned()
                }
                _ => grouped(bound.min),
            };
            assert!(comment.contains(&format!("{min}..={max}")), "{}: {comment}", bound.key);
        }
    }

    #[test]
    fn every_bound_is_checked_on_both_sides() {
        for bound in BOUNDS {
            let (section, key) = bound.key.split_once('.').expect("section.key");
            for value in [bound.min.checked_sub(1), Some(bound.max + 1)].into_iter().flatten() {
                let text = format!("[{section}]\n{key} = {value}");
                let said = refusal(&text, &[]);
                let expected = format!("{} = {value}: must be {}", bound.key, bound.allowed());
                assert_eq!(said, expected);
            }
        }
    }

    #[test]
    fn an_unknown_key_is_named_with_its_section() {
        assert!(refusal("[http]\nbody_max = 1", &[]).starts_with("http.body_max: unknown key;"));
        assert!(refusal("htpp = 1", &[]).starts_with("htpp: unknown key;"));
        assert!(refusal("[htpp]\nlisten = 1", &[]).starts_with("htpp: unknown key;"));
        let said = refusal("", &[("UBSCORE__HTTP__BODY_MAX", "1")]);
        assert!(said.starts_with("http.body_max: unknown key;"), "{said}");
        assert!(said.ends_with("(in the environment)"), "{said}");
        assert!(refusal("", &[("UBSCORE__", "1")]).contains("unknown key"));
        assert!(refusal("", &[("UBSCORE__HTTP__LISTEN__X", "1")]).contains("http.listen__x"));
    }

    #[test]
    fn a_wrong_type_is_named_with_what_is_allowed() {
        for (text, start, part) in [
            ("[http]\nbody_bytes_max = \"16384\"", "http.body_bytes_max:", "1024..=1048576 bytes"),
            ("[http]\nbody_bytes_max = -1", "http.body_bytes_max:", "1024..=1048576 bytes"),
            ("[http]\nlisten = \"localhost\"", "http.listen:", "socket address"),
            ("[coordinator]\nfuse = 1", "coordinator.fuse:", "a boolean"),
            ("[engine]\nwait = \"lazy\"", "engine.wait:", "`adaptive` or `busy`"),
            ("[auth]\nalgorithm = \"none\"", "auth.algorithm:", "`HS256`"),
            ("http = 1", "http:", "struct Http"),
        ] {
            let said = refusal(text, &[]);
            assert!(said.starts_with(start) && said.contains(part), "{said}");
        }
        let said = refusal("", &[("UBSCORE__ENGINE__CORE", "two")]);
        assert!(said.starts_with("engine.core:") && said.contains("in the environment"), "{said}");
    }

    #[test]
    fn one_key_is_checked_against_another() {
        for (text, key) in [
            ("[engine]\nring_slots = 5000", "engine.ring_slots = 5000"),
            ("[engine]\nin_flight_max = 2049", "engine.in_flight_max = 2049"),
            (
                "[outcomes]\nkeep_hours = 0",
                "outcomes.keep_hours = 0: must be 0.00001..=87600 hours",
            ),
            ("[outcomes]\nkeep_hours = nan", "outcomes.keep_hours = NaN"),
            ("[outcomes]\nkeep_hours = 87601", "outcomes.keep_hours = 87601"),
            ("[wal]\nsegment_bytes = 67108865", "wal.segment_bytes = 67108865"),
            ("[http]\nrequest_timeout_ms = 6000", "http.request_timeout_ms = 6000"),
            ("[postgres]\nlock_timeout_ms = 5001", "postgres.lock_timeout_ms = 5001"),
            ("[coordinator]\nqueue_max = 127", "coordinator.batch_max = 128"),
            ("[coordinator]\nbackoff_cap_ms = 99", "coordinator.backoff_cap_ms = 99"),
            ("[log]\nfilter = \"ubscore=loud\"", "log.filter = "),
            ("[auth]\nissuer = \"\"", "auth.issuer = "),
            ("[postgres]\nurl = \"mysql://root@localhost\"", "postgres.url = ***"),
            ("data_dir = \"\"", "data_dir = "),
            ("[alert]\nwebhook_url = \"ftp://h/x\"", "alert.webhook_url = ***"),
            ("[alert]\nwebhook_url = \"http:///x\"", "alert.webhook_url = ***"),
            ("[telemetry]\notlp_endpoint = \"localhost:4318\"", "telemetry.otlp_endpoint = "),
            ("[telemetry]\nsample_ratio = 1.1", "telemetry.sample_ratio = 1.1"),
            ("[events]\nkeep_hours = 0", "events.keep_hours = 0: must be 0.00001..=87600 hours"),
            ("[webhooks]\ndead_keep_hours = 0", "webhooks.dead_keep_hours = 0"),
            ("[webhooks]\nbackoff_cap_ms = 999", "webhooks.backoff_cap_ms = 999"),
            ("[webhooks]\nurl = \"ftp://h/x\"", "webhooks.url = ***"),
            ("[webhooks]\nurl = \"http://h/x\"", "webhooks.secret is missing"),
            (
                "[events]\nenabled = false\n[webhooks]\nurl = \"http://h/x\"",
                "webhooks.url = ***: must be absent where events.enabled is false",
            ),
            (
                "[webhooks]\nurl = \"http://h/x\"\nsecret = \"whsec_c2hvcnQ=\"",
                "webhooks.secret = ***: must be whsec_ and the base64 of 24 to 64 bytes",
            ),
        ] {
            let said = refusal(text, &[]);
            assert!(said.starts_with(key), "{said}");
        }
    }

    #[test]
    fn a_certificate_and_its_key_are_given_together() {
        for section in ["http", "ops"] {
            for (given, missing) in
                [("tls_certificate_file", "tls_key_file"), ("tls_key_file", "tls_certificate_file")]
            {
                let said = refusal(&format!("[{section}]\n{given} = \"a.pem\""), &[]);
                assert!(said.starts_with(&format!("{section}.{missing} is missing")), "{said}");
            }
        }
    }

    #[test]
    fn flags_beat_the_environment_and_that_beats_the_file() {
        let text = "data_dir = \"/file\"\n[http]\nlisten = \"127.0.0.1:1\"\nconnections_max = 7";
        let environment = [
            ("UBSCORE__DATA_DIR", "/environment"),
            ("UBSCORE__HTTP__LISTEN", "127.0.0.1:2"),
            ("UBSCORE__COORDINATOR__FUSE", "false"),
            ("UBSCORE__ENGINE__CORE", "3"),
            ("UBSCORE__ENGINE__WAIT", "busy"),
            ("UNRELATED", "1"),
        ];
        let overrides =
            Overrides { http_listen: Some(([127, 0, 0, 1], 3).into()), ..Overrides::default() };
        let config = load_with(text, &environment, overrides).expect("a configuration");
        assert_eq!(config.http.listen.port(), 3);
        assert_eq!(config.data_dir, Path::new("/environment"));
        assert_eq!(config.http.connections_max, 7);
        assert!(!config.coordinator.fuse);
        assert_eq!((config.engine.core, config.engine.wait), (Some(3), Wait::Busy));
    }

    #[test]
    fn a_secret_comes_from_a_file_without_its_line_break() {
        let secret = file(&format!("{OWN_SECRET}\n"));
        let path = secret.path().display();
        let config = load(&format!("[auth]\nsecret_file = \"{path}\""), &[]).expect("loaded");
        assert_eq!(config.auth.secret, Some(Secret::new(OWN_SECRET)));

        let said = refusal("[auth]\nsecret_file = \"/nowhere/at/all\"", &[]);
        assert_eq!(said, "auth.secret_file = /nowhere/at/all: cannot be read");
        let said = refusal("[auth]\nsecret_file = \"/dev/zero\"", &[]);
        assert_eq!(said, "auth.secret_file = /dev/zero: cannot be read");
    }

    #[test]
    fn the_previous_secret_comes_from_its_file_unless_that_is_empty() {
        let (secret, previous) = (file(OWN_SECRET), file(""));
        let text = format!(
            "[auth]\nsecret_file = \"{}\"\nprevious_secret_file = \"{}\"",
            secret.path().display(),
            previous.path().display()
        );
        let config = load(&text, &[]).expect("loaded");
        assert_eq!(config.auth.previous_secret, None);
        let older = "fedcba9876543210fedcba9876543210";
        fs::write(previous.path(), older).expect("written");
        let again = config.auth.read_again().expect("read");
        assert_eq!(again.previous_secret, Some(Secret::new(older)));
        assert_eq!(again.secret, config.auth.secret);

        fs::write(previous.path(), "short").expect("written");
        let said = config.auth.read_again().expect_err("short").to_string();
        assert_eq!(said, "auth.previous_secret = ***: must be at least 32 bytes");
        assert_eq!(refusal(&text, &[]), said);
        fs::write(previous.path(), "").expect("written");
        fs::write(secret.path(), DEVELOPMENT_SECRET).expect("written");
        let said = config.auth.read_again().expect_err("public").to_string();
        assert_eq!(said, "auth.secret = ***: must be your own: this one needs --dev");
    }

    #[test]
    fn a_secret_of_digits_survives_the_environment() {
        let digits = "00000000000000000000000000000001";
        let config = load("", &[("UBSCORE__AUTH__SECRET", digits)]).expect("loaded");
        assert_eq!(config.auth.secret, Some(Secret::new(digits)));
    }

    #[test]
    fn a_higher_place_replaces_a_secret_and_its_file() {
        let text = "[auth]\nsecret_file = \"/nowhere\"\n[postgres]\nurl_file = \"/nowhere\"";
        let overrides = Overrides {
            postgres_url: Some(Secret::new("postgres://localhost/ubscore")),
            ..Overrides::default()
        };
        let environment = [("UBSCORE__AUTH__SECRET", OWN_SECRET)];
        let config = load_with(text, &environment, overrides).expect("loaded");
        assert_eq!(config.auth.secret, Some(Secret::new(OWN_SECRET)));
        assert_eq!(config.postgres.url, Some(Secret::new("postgres://localhost/ubscore")));

        let both = format!("[auth]\nsecret = \"{OWN_SECRET}\"\nsecret_file = \"/nowhere\"");
        assert!(refusal(&both, &[]).starts_with("auth.secret and auth.secret_file"));
    }

    #[test]
    fn embedded_is_the_absence_of_a_url() {
        let config = load("[postgres]\nurl = \"embedded\"", &[]).expect("loaded");
        assert_eq!(config.postgres.url, None);
    }

    #[test]
    fn limits_are_on_unless_it_is_a_development_server_that_says_nothing_of_them() {
        let limits = |text: &str, environment: &[(&str, &str)], dev: bool| {
            let file = file(&format!("[auth]\nsecret = \"{OWN_SECRET}\"\n{text}"));
            let environment = environment.iter().map(|(name, value)| (name.into(), value.into()));
            let config =
                Config::load_from(Some(file.path()), environment, Overrides::default(), dev);
            let limits = config.expect("loaded").limits;
            (limits.user_requests_per_second_max, limits.user_transfers_per_day_max)
        };
        assert_eq!(limits("", &[], false), (10, 100));
        assert_eq!(limits("", &[], true), (0, 0));
        assert_eq!(limits("[limits]\nuser_requests_per_second_max = 10", &[], true), (10, 0));
        let given = [("UBSCORE__LIMITS__USER_TRANSFERS_PER_DAY_MAX", "7")];
        assert_eq!(limits("", &given, true), (0, 7));
        assert_eq!(limits("[limits]\nuser_requests_per_second_max = 0", &given, false), (0, 7));
    }

    #[test]
    fn amounts_by_symbol_are_read_from_one_text() {
        let amounts = |text: &str| {
            let given = [("UBSCORE__LIMITS__USER_AMOUNTS_PER_DAY_MAX", text)];
            load("", &given).map(|config| config.limits.user_amounts_per_day_max.0)
        };
        let pair = |symbol: &str, amount: &str| (symbol.to_owned(), amount.to_owned());
        assert_eq!(amounts(" ").expect("none"), []);
        assert_eq!(amounts("5=7").expect("one"), [pair("5", "7")]);
        let two = amounts("USDT=100000, BTC = 2.5").expect("two");
        assert_eq!(two, [pair("USDT", "100000"), pair("BTC", "2.5")]);
        for (text, problem) in [
            ("USDT", "\"USDT\" is not SYMBOL=AMOUNT"),
            ("USDT=1,", "\"\" is not SYMBOL=AMOUNT"),
            ("=1", "\"=1\" is not SYMBOL=AMOUNT"),
            ("BTC=1, BTC=2", "BTC stands twice"),
        ] {
            let said = amounts(text).expect_err(text).to_string();
            assert!(said.starts_with("limits.user_amounts_per_day_max: "), "{said}");
            assert!(said.contains(problem), "{said}");
        }
    }

    /// Goal: no way to print a configuration, or to get it wrong, shows a secret.
    #[test]
    fn no_text_shows_a_secret() {
        let text = format!(
            "[auth]\nsecret = \"{OWN_SECRET}\"\n[postgres]\nurl = \"postgres://u:hunter2@h/d\""
        );
        let config = load(&text, &[]).expect("loaded");
        let shown = format!("{config:?} {config:#?} {}", Secret::new(OWN_SECRET));
        assert!(!shown.contains(OWN_SECRET) && !shown.contains("hunter2"), "{shown}");
        assert!(shown.contains("***"));

        for bad in [
            "[auth]\nsecret = 271828182845904",
            "[auth]\nsecret = 271828182845904 x",
            "[auth]\nsecret = \"271828182845904",
            "[auth]\nsecret = \"271828182845904\"",
            "[auth]\nsecret = [\"271828182845904\"]",
            "[auth.secret]\nx = \"271828182845904\"",
            "[postgres]\nurl = \"postgres://u:271828182845904@[\"",
            "[postgres]\nurl = 271828182845904",
        ] {
            let error = load(bad, &[]).expect_err(bad);
            let said = format!("{error} {error:?}");
            assert!(!said.contains("271828182845904"), "{said}");
        }
    }

    #[test]
    fn without_dev_a_missing_secret_is_named() {
        let strict = |text: &str| {
            let file = file(text);
            Config::load_from(Some(file.path()), [], Overrides::default(), false)
                .expect_err(text)
                .to_string()
        };
        assert!(strict("").starts_with("auth.secret is missing"));
        let public = strict(&format!("[auth]\nsecret = \"{DEVELOPMENT_SECRET}\""));
        assert_eq!(public, "auth.secret = ***: must be your own: this one needs --dev");
        let key = strict("[auth]\nalgorithm = \"EdDSA\"");
        assert!(key.starts_with("auth.public_key_file is missing"), "{key}");
    }

    #[test]
    fn the_development_secret_binds_only_loopback() {
        assert!(load("[http]\nlisten = \"[::1]:8080\"", &[]).is_ok());
        for (text, key) in [
            ("[http]\nlisten = \"0.0.0.0:8080\"", "http.listen = 0.0.0.0:8080"),
            ("[ops]\nlisten = \"[::]:9090\"", "ops.listen = [::]:9090"),
        ] {
            let said = refusal(text, &[]);
            assert!(said.starts_with(key), "{said}");
            let own = format!("{text}\n[auth]\nsecret = \"{OWN_SECRET}\"");
            assert!(load(&own, &[]).is_ok(), "{own}");
        }
    }

    #[test]
    fn a_missing_or_broken_file_is_named() {
        let nowhere = Path::new("/nowhere/ubscore.toml");
        let said = Config::load_from(Some(nowhere), [], Overrides::default(), true)
            .expect_err("no file")
            .to_string();
        assert_eq!(said, "read /nowhere/ubscore.toml");
        assert!(refusal("[http]\n\nlisten = = 1", &[]).contains(" line 3: "));
    }
}
