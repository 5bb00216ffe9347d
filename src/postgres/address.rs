//! How a database is reached: hosts, user, TLS, and the server that the process is pinned to.
//!
//! The text is a URL or a list of `key=value` as libpq takes it. tokio-postgres knows neither `sslmode=verify-ca`,
//! `sslmode=verify-full` nor `sslrootcert`; they are taken out here and decide the TLS of [`super::tls`].

use std::path::PathBuf;
use std::sync::Arc;

use percent_encoding::percent_decode_str;
use tokio_postgres::Config;
use tokio_postgres::config::{Host, SslMode};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::pin::Pin;
use super::tls::{self, Mode};

/// A database, and how to connect to it.
#[derive(Clone)]
pub struct Address {
    config: Config,
    connector: MakeRustlsConnect,
    mode: Mode,
    root: Option<PathBuf>,
    pin: Option<Arc<Pin>>,
    examines: bool,
}

/// A text that names no database. The text itself is left out: it may hold a password.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Not a URL, or a parameter that is not known.
    #[error("not a postgres:// URL: {0}")]
    Text(String),
    /// `sslmode` is none of libpq's.
    #[error("sslmode={0}: expected disable, prefer, require, verify-ca or verify-full")]
    Mode(String),
    /// The certificates cannot be used.
    #[error(transparent)]
    Tls(#[from] tls::Error),
}

impl Address {
    /// The database that a URL or a list of `key=value` names.
    ///
    /// # Errors
    /// [`Error`]: the operator must change the text, or the file that `sslrootcert` names.
    pub fn parse(text: &str) -> Result<Address, Error> {
        let (text, mode, root) = take_tls(text)?;
        let mut config: Config = text.parse().map_err(|error: tokio_postgres::Error| {
            Error::Text(std::error::Error::source(&error).unwrap_or(&error).to_string())
        })?;
        let local = config.get_hosts().iter().all(|host| matches!(host, Host::Unix(_)));
        // As libpq: a socket of this machine speaks no TLS.
        let mode = match local && !config.get_hosts().is_empty() {
            true => Mode::Disable,
            false => mode.unwrap_or(Mode::Prefer),
        };
        config.ssl_mode(match mode {
            Mode::Disable => SslMode::Disable,
            Mode::Prefer => SslMode::Prefer,
            Mode::Require | Mode::VerifyCa | Mode::VerifyFull => SslMode::Require,
        });
        let connector = MakeRustlsConnect::new(tls::client(mode, root.as_deref())?);
        Ok(Address { config, connector, mode, root, pin: None, examines: false })
    }

    /// The same, bound to a server: every connection is checked by `pin` before it is used.
    pub fn pinned(&self, pin: &Arc<Pin>) -> Address {
        Address { pin: Some(Arc::clone(pin)), ..self.clone() }
    }

    /// The same for the audit: it may connect to the server that is being compared with the log.
    pub fn examining(&self) -> Address {
        Address { examines: true, ..self.clone() }
    }

    /// Hosts, user, database, password.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// What a connection of TLS is made with.
    pub(super) fn connector(&self) -> MakeRustlsConnect {
        self.connector.clone()
    }

    /// The server that the process is pinned to, `None` for a command.
    pub(super) fn pin(&self) -> Option<&Arc<Pin>> {
        self.pin.as_ref()
    }

    /// See [`Address::examining`].
    pub(super) fn examines(&self) -> bool {
        self.examines
    }

    /// `sslmode` and `sslrootcert`, as libpq's programs take them.
    pub(super) fn tls(&self) -> (&'static str, Option<&PathBuf>) {
        (self.mode.name(), self.root.as_ref())
    }
}

impl From<Config> for Address {
    /// Without TLS, for a socket of this machine.
    fn from(mut config: Config) -> Address {
        config.ssl_mode(SslMode::Disable);
        let connector = MakeRustlsConnect::new(tls::unverified());
        Address { config, connector, mode: Mode::Disable, root: None, pin: None, examines: false }
    }
}

/// The text without `sslmode` and `sslrootcert`, and the two.
fn take_tls(text: &str) -> Result<(String, Option<Mode>, Option<PathBuf>), Error> {
    let (mut mode, mut root, mut kept) = (None, None, Vec::new());
    let mut take = |pair: &str, decode: &dyn Fn(&str) -> String| -> Result<bool, Error> {
        match pair.split_once('=') {
            Some(("sslmode", name)) => {
                let name = decode(name);
                mode = Some(Mode::from_name(&name).ok_or(Error::Mode(name))?);
                Ok(true)
            }
            Some(("sslrootcert", path)) => {
                root = Some(PathBuf::from(decode(path)));
                Ok(true)
            }
            Some(_) | None => Ok(false),
        }
    };
    let is_url = text.starts_with("postgres://") || text.starts_with("postgresql://");
    let rest = match (is_url, text.split_once('?')) {
        (true, Some((front, query))) => {
            let decode = |part: &str| percent_decode_str(part).decode_utf8_lossy().into_owned();
            for pair in query.split('&').filter(|pair| !pair.is_empty()) {
                if !take(pair, &decode)? {
                    kept.push(pair);
                }
            }
            match kept.is_empty() {
                true => front.to_owned(),
                false => format!("{front}?{}", kept.join("&")),
            }
        }
        (true, None) => text.to_owned(),
        (false, _) => {
            let decode = |part: &str| part.trim_matches('\'').to_owned();
            // A quoted value may hold spaces; only whole words of ours are taken out.
            for word in text.split(' ') {
                if !take(word, &decode)? {
                    kept.push(word);
                }
            }
            kept.join(" ")
        }
    };
    Ok((rest, mode, root))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_says_how_tls_is_spoken_as_with_libpq() {
        let mode = |text: &str| Address::parse(text).map(|address| address.tls().0);
        for (text, want) in [
            ("postgres://u:p@db/x", "prefer"),
            ("postgres://u:p@db/x?sslmode=disable", "disable"),
            ("postgres://u:p@db/x?connect_timeout=3&sslmode=require", "require"),
            ("host=db user=u sslmode=require", "require"),
            ("postgresql:///ubscore?host=/run/x&user=u&sslmode=require", "disable"),
        ] {
            assert_eq!(mode(text).expect(text), want, "{text}");
        }
        let wrong = mode("postgres://u:secret@db/x?sslmode=always").expect_err("no such mode");
        assert!(wrong.to_string().contains("verify-full"), "{wrong}");
        let wrong = mode("mysql://root:secret@db").expect_err("another database").to_string();
        assert!(!wrong.contains("secret"), "{wrong}");
        let missing = mode("postgres://u@db/x?sslmode=verify-full").expect_err("no certificates");
        assert!(missing.to_string().contains("sslrootcert"), "{missing}");
        let unread = "postgres://u@db/x?sslmode=verify-full&sslrootcert=/not%20there.pem";
        let unread = mode(unread).expect_err("no file").to_string();
        assert!(unread.contains("/not there.pem"), "{unread}");
    }
}
