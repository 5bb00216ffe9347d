//! The configuration: its keys, its sources and its bounds.
//!
//! Defaults, then a TOML file, then the environment (`UBSCORE__SECTION__KEY`), then flags; the
//! later source wins. `config/ubscore.toml` explains every key and a test keeps it equal to the
//! defaults in the code. This is the only place that reads the environment.
//!
//! Each section has a file: its keys, their defaults, their bounds, and the checks within it.
//! Checks between sections are here.
//!
//! Every error names the key, so that the operator finds the line. No error quotes a secret.

pub mod alert;
pub mod amount;
pub mod approval;
pub mod auth;
mod bound;
pub mod callbacks;
pub mod channels;
pub mod conservation;
pub mod coordinator;
pub mod engine;
pub mod events;
pub mod file;
pub mod followers;
pub mod holds;
pub mod hours;
pub mod http;
pub mod journal;
mod layer;
pub mod limits;
pub mod log;
mod names;
pub mod ops;
pub mod outcomes;
pub mod participants;
pub mod postgres;
pub mod recharge;
pub mod recovery;
pub mod reload;
pub mod secret;
pub mod snapshot;
pub mod start;
pub mod stream;
pub mod telemetry;
pub mod tls;
pub mod transactions;
pub mod txm;
pub mod txm_confirmations;
pub mod txm_lease;
pub mod txm_network;
pub mod txm_nonce;
pub mod txm_price;
pub mod txm_resubmit;
pub mod txm_signers;
pub mod txm_trust;
pub mod wal;
pub mod webhooks;

use std::borrow::Cow;
use std::env;
use std::ffi::OsString;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use figment::Figment;
use serde::Deserialize;

use self::alert::Alert;
use self::amount::AmountBounds;
use self::approval::Approval;
use self::auth::Auth;
use self::bound::Bound;
use self::callbacks::Callbacks;
use self::channels::Channels;
use self::conservation::Conservation;
use self::coordinator::Coordinator;
use self::engine::Engine;
use self::events::Events;
use self::followers::Followers;
use self::holds::Holds;
use self::http::Http;
use self::journal::Journal;
use self::layer::{Layer, describe};
use self::limits::UserLimits;
use self::log::Log;
use self::ops::Ops;
use self::outcomes::Outcomes;
use self::participants::Participants;
use self::postgres::Postgres;
use self::recharge::RechargeSection;
use self::recovery::Recovery;
use self::reload::Reload;
use self::secret::Secret;
use self::snapshot::Snapshot;
use self::start::Start;
use self::stream::Stream;
use self::telemetry::Telemetry;
use self::transactions::Transactions;
use self::txm::Txm;
use self::wal::Wal;
use self::webhooks::Webhooks;

/// All keys. `config/ubscore.toml` explains the meaning of each key, its unit, and the reason for
/// its default.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// The directory of the log, the snapshots and the embedded PostgreSQL.
    pub data_dir: PathBuf,
    /// The public listener.
    pub http: Http,
    /// The operators' listener.
    pub ops: Ops,
    /// The sockets of venues.
    pub stream: Stream,
    /// How tokens are verified.
    pub auth: Auth,
    /// How often key files and certificates are read again while the service runs.
    pub reload: Reload,
    /// Funding's database.
    pub postgres: Postgres,
    /// UBSCore's thread and its bounds.
    pub engine: Engine,
    /// How long UBSCore keeps outcomes in its map.
    pub outcomes: Outcomes,
    /// The log's files.
    pub wal: Wal,
    /// Snapshots, and the archive of the segments that they replace.
    pub snapshot: Snapshot,
    /// The workers that drive transfers.
    pub coordinator: Coordinator,
    /// How a start takes the database over.
    pub start: Start,
    /// When a transfer without progress is driven again.
    pub recovery: Recovery,
    /// The continuous audit.
    pub conservation: Conservation,
    /// Bounds of an amount.
    pub amount: AmountBounds,
    /// Limits of one user.
    pub limits: UserLimits,
    /// Events about transfers, sent to their users.
    pub events: Events,
    /// The bounds of Funding's journal.
    pub journal: Journal,
    /// The same events, sent to an endpoint of the operator.
    pub webhooks: Webhooks,
    /// Transactions over both stores and over participants.
    pub transactions: Transactions,
    /// Money that is frozen for a purpose.
    pub holds: Holds,
    /// The participants, by name.
    pub participants: Participants,
    /// The followers, by name.
    pub followers: Followers,
    /// Money that comes in through payment channels.
    pub recharge: RechargeSection,
    /// The listener of payment channels.
    pub callbacks: Callbacks,
    /// The payment channels, by name.
    pub channels: Channels,
    /// The nodes of the transaction manager.
    pub txm: Txm,
    /// When alerts are raised, and the address that they are sent to.
    pub alert: Alert,
    /// Actions that need two operators.
    pub approval: Approval,
    /// The filter and the format of log lines.
    pub log: Log,
    /// The collector of spans.
    pub telemetry: Telemetry,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            data_dir: PathBuf::from("./data"),
            http: Http::default(),
            ops: Ops::default(),
            stream: Stream::default(),
            auth: Auth::default(),
            reload: Reload::default(),
            postgres: Postgres::default(),
            engine: Engine::default(),
            outcomes: Outcomes::default(),
            wal: Wal::default(),
            snapshot: Snapshot::default(),
            coordinator: Coordinator::default(),
            start: Start::default(),
            recovery: Recovery::default(),
            conservation: Conservation::default(),
            amount: AmountBounds::default(),
            limits: UserLimits::default(),
            events: Events::default(),
            journal: Journal::default(),
            webhooks: Webhooks::default(),
            transactions: Transactions::default(),
            holds: Holds::default(),
            participants: Participants::default(),
            followers: Followers::default(),
            recharge: RechargeSection::default(),
            callbacks: Callbacks::default(),
            channels: Channels::default(),
            txm: Txm::default(),
            alert: Alert::default(),
            approval: Approval::default(),
            log: Log::default(),
            telemetry: Telemetry::default(),
        }
    }
}

impl Config {
    /// Loads and validates the configuration, and reads the files that hold secrets.
    ///
    /// `file`: the TOML file that `--config` names. If it is `None`, [`default_file`] is read.
    /// `dev`: the development secret replaces a missing one, and no default file is read.
    ///
    /// # Errors
    /// [`Error`] names the key or the file that the operator must change.
    pub fn load(file: Option<&Path>, overrides: Overrides, dev: bool) -> Result<Self, Error> {
        let default = if dev { None } else { default_file() };
        let file = file.or(default.as_deref());
        match Self::load_from(file, env::vars_os(), overrides, dev) {
            Err(Error::Missing { key, .. }) if key == "auth.secret" && file.is_none() => {
                Err(Error::NoFile)
            }
            loaded => loaded,
        }
    }

    fn load_from(
        file: Option<&Path>,
        environment: impl IntoIterator<Item = (OsString, OsString)>,
        overrides: Overrides,
        dev: bool,
    ) -> Result<Self, Error> {
        let config = Self::merge(file, environment, overrides, dev)?;
        config.validate(dev)?;
        Ok(config)
    }

    /// Loads the configuration of a node, or of a command about nodes (`is_node` false). Neither
    /// needs the tokens of the service.
    ///
    /// # Errors
    /// As [`Config::load`].
    pub fn load_txm(file: Option<&Path>, dev: bool, is_node: bool) -> Result<Self, Error> {
        let default = if dev { None } else { default_file() };
        let file = file.or(default.as_deref());
        Self::load_txm_from(file, env::vars_os(), dev, is_node)
    }

    fn load_txm_from(
        file: Option<&Path>,
        environment: impl IntoIterator<Item = (OsString, OsString)>,
        dev: bool,
        is_node: bool,
    ) -> Result<Self, Error> {
        let mut config = Self::merge(file, environment, Overrides::default(), dev)?;
        config.txm.read_secrets(dev)?;
        config.validate_but_tokens(dev)?;
        if is_node {
            config.txm.validate_node(&config.auth, dev)?;
        }
        Ok(config)
    }

    /// The URL of a node's database.
    ///
    /// # Errors
    /// [`Error::Missing`]: neither `txm.postgres_url` nor `postgres.url` names one.
    pub fn txm_postgres_url(&self) -> Result<&Secret, Error> {
        self.txm.postgres_url.as_ref().or(self.postgres.url.as_ref()).ok_or(Error::Missing {
            key: "txm.postgres_url".into(),
            advice: "give the postgres:// URL of the database; a node starts none of its own",
        })
    }

    /// Merges the sources, and reads the files that hold secrets.
    fn merge(
        file: Option<&Path>,
        environment: impl IntoIterator<Item = (OsString, OsString)>,
        overrides: Overrides,
        dev: bool,
    ) -> Result<Self, Error> {
        let mut lower = file.map_or_else(|| Ok(Layer::empty()), Layer::read)?;
        // The file's types are checked strictly and before the merge. The merge below is lenient,
        // because the environment has only text; a file must still have the right types.
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
        if dev {
            config.auth.use_development_secret();
        }
        // A development server has no limits that its operator has not set.
        if dev && !requests_given {
            config.limits.user_requests_per_second_max = 0;
        }
        if dev && !transfers_given {
            config.limits.user_transfers_per_day_max = 0;
        }
        Ok(config)
    }

    /// Checks all that the types cannot express.
    ///
    /// # Errors
    /// [`Error::Range`] or [`Error::Missing`] for the first wrong key.
    pub fn validate(&self, dev: bool) -> Result<(), Error> {
        self.validate_but_tokens(dev)?;
        self.auth.validate(dev)?;
        self.keep_public_tokens_at_home()
    }

    /// Checks all but the tokens of the service.
    fn validate_but_tokens(&self, dev: bool) -> Result<(), Error> {
        bounds().try_for_each(|bound| bound.check(self))?;
        if self.data_dir.as_os_str().is_empty() {
            return Err(range("data_dir", "\"\"", "a directory"));
        }
        self.http.validate()?;
        self.ops.validate()?;
        self.stream.validate()?;
        self.postgres.validate()?;
        self.engine.validate()?;
        self.outcomes.validate()?;
        self.wal.validate()?;
        if self.stream.socket.is_some() || self.stream.listen.is_some() {
            self.wal.fits_venues()?;
        }
        self.coordinator.validate()?;
        self.events.validate()?;
        self.webhooks.validate(&self.events)?;
        participants::validate(&self.participants)?;
        followers::validate(&self.followers, &self.events)?;
        self.recharge.validate()?;
        self.callbacks.validate(self.recharge.enabled, dev)?;
        channels::validate(&self.channels, self.recharge.enabled)?;
        self.txm.validate()?;
        self.alert.validate()?;
        self.log.validate()?;
        self.telemetry.validate()
    }

    /// The bound of unfinished transactions. UBSCore keeps an outcome place for the end of each, so
    /// in a small outcome map it is lower than `transactions.active_max`.
    pub fn transactions_active_max(&self) -> usize {
        self.transactions.active_max.min(self.engine.outcomes_max / ENDS_PART)
    }

    /// The development secret is public. With it any client can act as any user and as an admin, so
    /// every listener must stay on the loopback address.
    fn keep_public_tokens_at_home(&self) -> Result<(), Error> {
        for (key, listen) in [
            ("http.listen", Some(self.http.listen)),
            ("ops.listen", Some(self.ops.listen)),
            ("stream.listen", self.stream.listen),
        ] {
            if let Some(listen) = listen
                && self.auth.is_public()
                && !listen.ip().is_loopback()
            {
                return Err(range(key, listen, "a loopback address with the development secret"));
            }
        }
        Ok(())
    }

    /// Replaces the names of files by their contents, and empty values by `None`.
    fn read_secrets(&mut self) -> Result<(), Error> {
        self.auth.read_secrets()?;
        self.postgres.read_secrets()?;
        self.alert.read_secrets()?;
        self.webhooks.read_secrets()?;
        participants::read_secrets(&mut self.participants)?;
        followers::read_secrets(&mut self.followers)?;
        channels::read_files(&mut self.channels)?;
        self.recharge.read_secrets()
    }
}

/// At most one part of so many of the outcome map is kept for ends of transactions.
const ENDS_PART: usize = 16;

/// The variable that names the configuration file if `--config` does not.
pub const FILE_VARIABLE: &str = "UBSCORE_CONFIG";
/// The configuration file if neither names one and this one exists.
pub const FILE_DEFAULT: &str = "/etc/ubscore/ubscore.toml";

/// The configuration file of a command without `--config`, outside development.
pub fn default_file() -> Option<PathBuf> {
    choose_file(env::var_os(FILE_VARIABLE), Path::new(FILE_DEFAULT))
}

/// The file that `variable` names, else `default` if it exists or its existence cannot be checked.
fn choose_file(variable: Option<OsString>, default: &Path) -> Option<PathBuf> {
    match variable.filter(|name| !name.is_empty()) {
        Some(name) => Some(PathBuf::from(name)),
        None => default.try_exists().unwrap_or(true).then(|| default.to_owned()),
    }
}

/// The bounds of all whole numbers, section by section.
fn bounds() -> impl Iterator<Item = &'static Bound> {
    [
        http::BOUNDS,
        stream::BOUNDS,
        auth::BOUNDS,
        reload::BOUNDS,
        postgres::BOUNDS,
        engine::BOUNDS,
        outcomes::BOUNDS,
        wal::BOUNDS,
        snapshot::BOUNDS,
        coordinator::BOUNDS,
        start::BOUNDS,
        recovery::BOUNDS,
        conservation::BOUNDS,
        events::BOUNDS,
        journal::BOUNDS,
        webhooks::BOUNDS,
        transactions::BOUNDS,
        recharge::BOUNDS,
        callbacks::BOUNDS,
        alert::BOUNDS,
        limits::BOUNDS,
        approval::BOUNDS,
        amount::BOUNDS,
    ]
    .into_iter()
    .chain(txm::BOUNDS)
    .flatten()
}

/// Why there is no configuration. The operator must change something; nothing was started.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The configuration file cannot be read.
    #[error("read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The configuration file is not TOML. The line itself is not quoted: it may hold a secret.
    #[error("{} line {line}: {problem}", path.display())]
    Syntax {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// The parser's message.
        problem: String,
    },
    /// A key that does not exist, or a value of the wrong type.
    #[error("{key}: {problem} (in {origin})")]
    Key {
        /// `section.key`.
        key: String,
        /// The mistake and the allowed values.
        problem: String,
        /// The file or the environment.
        origin: String,
    },
    /// A value outside of its key's bounds.
    #[error("{key} = {value}: must be {allowed}")]
    Range {
        /// `section.key`.
        key: Cow<'static, str>,
        /// The value; `***` for a secret.
        value: String,
        /// The allowed values, with the unit.
        allowed: String,
    },
    /// A required key that is missing.
    #[error("{key} is missing: {advice}")]
    Missing {
        /// `section.key`.
        key: Cow<'static, str>,
        /// How to set it.
        advice: &'static str,
    },
    /// There is no configuration file, and nothing else names a secret.
    #[error(
        "no --config was given, {FILE_VARIABLE} is not set, and {FILE_DEFAULT} does not exist: give \
         --config FILE, or --dev for the development secret (auth.secret is missing)"
    )]
    NoFile,
    /// Two keys for the same thing in the same source: a secret and its file, or two units.
    #[error("{key} and {other} are both given (in {origin}): give one")]
    Twice {
        /// `section.key`.
        key: String,
        /// `section.key`.
        other: String,
        /// The file or the environment.
        origin: String,
    },
    /// A file that holds a secret cannot be read.
    #[error("{key} = {}: cannot be read", path.display())]
    SecretFile {
        /// `section.key`.
        key: Cow<'static, str>,
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}

/// Keys that flags of the command line override; `None` overrides nothing.
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

/// Whether a text is an HTTP or HTTPS URL with a host.
pub fn is_http_url(text: &str) -> bool {
    let url = text.parse::<hyper::Uri>().ok();
    url.is_some_and(|url| {
        matches!(url.scheme_str(), Some("http" | "https"))
            && url.host().is_some_and(|host| !host.is_empty())
    })
}

/// The error for a value that `key` does not allow. `key`: `section.key`.
fn range(
    key: impl Into<Cow<'static, str>>,
    value: impl fmt::Display,
    allowed: impl Into<String>,
) -> Error {
    Error::Range { key: key.into(), value: value.to_string(), allowed: allowed.into() }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::io::Write;

    use figment::error::Kind;
    use tempfile::NamedTempFile;

    use super::auth::DEVELOPMENT_SECRET;
    use super::engine::Wait;
    use super::*;

    const FILE: &str = include_str!("../config/ubscore.toml");
    pub(super) const OWN_SECRET: &str = "0123456789abcdef0123456789abcdef";

    pub(super) fn file(text: &str) -> NamedTempFile {
        let mut file = NamedTempFile::new().expect("a temporary file");
        file.write_all(text.as_bytes()).expect("written");
        file
    }

    pub(super) fn load(text: &str, environment: &[(&str, &str)]) -> Result<Config, Error> {
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

    pub(super) fn refusal(text: &str, environment: &[(&str, &str)]) -> String {
        load(text, environment).expect_err(text).to_string()
    }

    /// Asserts that each text is refused with an error that begins with the second text.
    pub(super) fn assert_refused(cases: &[(&str, &str)]) {
        for (text, start) in cases {
            let said = refusal(text, &[]);
            assert!(said.starts_with(start), "{said}");
        }
    }

    fn is_table(value: &toml::Value) -> bool {
        value.is_table()
    }

    /// Every key of the code as `section.key`, read from the error for an unknown key.
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
            // A table by name stands in the file with an example's name.
            let top = match *top {
                "participants" => "participants.red-envelope",
                "followers" => "followers.notices",
                "channels" => "channels.wechat",
                top => top,
            };
            for key in known(&format!("[{top}]\nunknown = 1")).iter() {
                // A section of [txm] is no key.
                let below = format!("{top}.{key}");
                match toml::from_str::<toml::Table>(FILE).expect("TOML").get(top) {
                    Some(toml::Value::Table(table)) if table.get(*key).is_some_and(is_table) => {
                        let known = known(&format!("[{below}]\nunknown = 1"));
                        keys.extend(known.iter().map(|key| format!("{below}.{key}")));
                    }
                    _ => {
                        keys.insert(below);
                    }
                }
            }
        }
        keys
    }

    #[test]
    fn the_variable_names_the_file_and_the_default_counts_if_it_exists() {
        let there = file("");
        let default = there.path();
        let choose =
            |variable: Option<&str>, default| choose_file(variable.map(Into::into), default);
        assert_eq!(choose(Some("/x.toml"), default), Some(PathBuf::from("/x.toml")));
        for unset in [None, Some("")] {
            assert_eq!(choose(unset, default).as_deref(), Some(default));
            assert_eq!(choose(unset, Path::new("/nowhere/ubscore.toml")), None);
        }
    }

    #[test]
    fn the_file_equals_the_defaults() {
        let keys = toml::from_str(FILE).expect("TOML");
        let layer = Layer { origin: "config/ubscore.toml".to_owned(), keys };
        let from_file: Config = Figment::from(layer).extract().expect("the file's types");
        assert_eq!(from_file, Config::default());
    }

    /// Goal: the file explains every key. Method: uncomment the optional keys. Then the set of keys
    /// is that of the code, each key has a comment above it, and the types fit.
    #[test]
    fn the_file_explains_every_key() {
        let is_of_key =
            |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
        let mut section = String::new();
        let mut keys = BTreeSet::new();
        let mut commented = false;
        let mut uncommented = String::new();
        for line in FILE.lines() {
            let bare = line.strip_prefix("# ").unwrap_or(line);
            let key =
                bare.split_once(" = ").map(|(key, _)| key).filter(|key| key.bytes().all(is_of_key));
            let table = bare.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
            if let Some(name) = table {
                section = format!("{name}.");
                commented = false;
            } else if let Some(key) = key {
                assert!(commented, "{section}{key} has no comment");
                assert!(keys.insert(format!("{section}{key}")), "{section}{key} stands twice");
                commented = false;
            } else {
                commented = line.starts_with("# ");
            }
            uncommented.push_str(if key.or(table).is_some() { bare } else { line });
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
        for bound in bounds() {
            let (section, key) = bound.key.rsplit_once('.').expect("section.key");
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
        for bound in bounds() {
            let (section, key) = bound.key.rsplit_once('.').expect("section.key");
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
    fn a_directory_has_a_name() {
        assert_refused(&[("data_dir = \"\"", "data_dir = ")]);
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
