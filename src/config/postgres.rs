//! Funding's database.

use std::path::PathBuf;

use serde::Deserialize;

use super::bound::{Bound, FIVE_MINUTES_MS, MINUTE_MS, bound};
use super::file::read_secret;
use super::secret::Secret;
use super::{Error, range};
use crate::postgres::Address;

/// The section `[postgres]`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Postgres {
    /// URL of the server; absent after loading: embedded. Secret: it may hold a password.
    pub url: Option<Secret>,
    /// A file that holds the URL.
    pub url_file: Option<PathBuf>,
    /// Directory of the embedded server's programs.
    pub bin: Option<PathBuf>,
    /// The most connections for reads.
    pub connections_max: usize,
    /// Timeout to connect and log in, ms.
    pub connect_timeout_ms: u64,
    /// Timeout of a statement, ms; the server enforces it.
    pub statement_timeout_ms: u64,
    /// Timeout of a wait for a lock, ms; the server enforces it.
    pub lock_timeout_ms: u64,
    /// Timeout of an idle open transaction, ms; the server enforces it.
    pub idle_in_transaction_timeout_ms: u64,
}

/// The value of `postgres.url` for the embedded server.
const EMBEDDED: &str = "embedded";

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

/// The bounds of its whole numbers.
#[rustfmt::skip]
pub(super) const BOUNDS: &[Bound] = &[
    bound("postgres.connections_max", |c| Some(c.postgres.connections_max as u64), 1, 512, "connections"),
    bound("postgres.connect_timeout_ms", |c| Some(c.postgres.connect_timeout_ms), 100, MINUTE_MS, "ms"),
    bound("postgres.statement_timeout_ms", |c| Some(c.postgres.statement_timeout_ms), 100, FIVE_MINUTES_MS, "ms"),
    bound("postgres.lock_timeout_ms", |c| Some(c.postgres.lock_timeout_ms), 100, FIVE_MINUTES_MS, "ms"),
    bound("postgres.idle_in_transaction_timeout_ms", |c| Some(c.postgres.idle_in_transaction_timeout_ms), 100, FIVE_MINUTES_MS, "ms"),
];

impl Postgres {
    /// Replaces the name of a file by its content, and "embedded" by `None`.
    pub(super) fn read_secrets(&mut self) -> Result<(), Error> {
        read_secret("postgres.url_file", &mut self.url, &self.url_file)?;
        self.url.take_if(|url| url.expose() == EMBEDDED);
        Ok(())
    }

    /// Checks the keys that are not whole numbers, and the relations between keys.
    pub(super) fn validate(&self) -> Result<(), Error> {
        if self.lock_timeout_ms > self.statement_timeout_ms {
            let allowed =
                format!("at most postgres.statement_timeout_ms, {} ms", self.statement_timeout_ms);
            return Err(range("postgres.lock_timeout_ms", self.lock_timeout_ms, allowed));
        }
        if let Some(url) = &self.url
            && let Err(why) = Address::parse(url.expose())
        {
            let allowed = format!("\"embedded\" or a postgres:// URL ({why})");
            return Err(range("postgres.url", url, allowed));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use crate::config::tests::{assert_refused, load};

    #[test]
    fn a_lock_is_waited_for_no_longer_than_a_statement_and_a_url_is_one() {
        assert_refused(&[
            ("[postgres]\nlock_timeout_ms = 5001", "postgres.lock_timeout_ms = 5001"),
            ("[postgres]\nurl = \"mysql://root@localhost\"", "postgres.url = ***"),
        ]);
    }

    #[test]
    fn embedded_is_the_absence_of_a_url() {
        let config = load("[postgres]\nurl = \"embedded\"", &[]).expect("loaded");
        assert_eq!(config.postgres.url, None);
    }
}
