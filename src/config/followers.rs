//! Followers of transactions: services of the operator that are told of each end, and have no say.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::Deserialize;

use super::events::Events;
use super::file::read_secret;
use super::participants::is_name;
use super::secret::Secret;
use super::webhooks::check_signing_secret;
use super::{Error, is_http_url, range};

/// The most followers: each has a connection to PostgreSQL, and threads, of its own.
const TABLES_MAX: usize = 8;

/// The tables `[followers.NAME]`, by name.
pub type Followers = BTreeMap<String, Follower>;

/// The table `[followers.NAME]`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Follower {
    /// URL that each end is posted to; needed. Secret: it may hold a password.
    pub url: Option<Secret>,
    /// A file that holds the secret that signs deliveries; needed.
    pub secret_file: Option<PathBuf>,
    /// The content of `secret_file`, once it is read. No key.
    #[serde(skip)]
    pub secret: Option<Secret>,
}

impl Follower {
    fn validate(&self, name: &str) -> Result<(), Error> {
        let missing = |end, advice| Err(Error::Missing { key: key(name, end).into(), advice });
        match &self.url {
            None => return missing("url", "give the http:// or https:// URL that is notified"),
            Some(url) if !is_http_url(url.expose()) => {
                return Err(range(key(name, "url"), url, "an http:// or https:// URL"));
            }
            Some(_) => {}
        }
        match &self.secret {
            None => missing("secret_file", "name the file of the secret that signs deliveries"),
            Some(secret) => check_signing_secret(key(name, "secret_file"), secret),
        }
    }
}

/// `followers.NAME.key`.
fn key(name: &str, end: &str) -> String {
    format!("followers.{name}.{end}")
}

/// Reads the files of all secrets.
pub(super) fn read_secrets(followers: &mut Followers) -> Result<(), Error> {
    followers.iter_mut().try_for_each(|(name, follower)| {
        read_secret(key(name, "secret_file"), &mut follower.secret, &follower.secret_file)
    })
}

/// Checks all names and tables.
pub(super) fn validate(followers: &Followers, events: &Events) -> Result<(), Error> {
    if followers.len() > TABLES_MAX {
        let allowed = format!("at most {TABLES_MAX} tables");
        return Err(range("followers", format!("{} tables", followers.len()), allowed));
    }
    for (name, follower) in followers {
        if !is_name(name) {
            let allowed = "a name of 1 to 32 of a-z 0-9 _ -";
            return Err(range("followers", format!("{name:?}"), allowed));
        }
        if !events.enabled {
            let key = format!("followers.{name}");
            return Err(range(key, "there", "absent where events.enabled is false"));
        }
        follower.validate(name)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::tests::{assert_refused, file, load, refusal};

    const SECRET: &str = "whsec_YW4gZW5kcG9pbnQncyBzZWNyZXQsIDMyIGJ5dGVzLi4=";

    #[test]
    fn a_follower_has_a_url_and_a_secret_where_there_are_events() {
        let secret = file(&format!("{SECRET}\n"));
        let path = secret.path().display().to_string();
        let whole = format!("[followers.notices]\nurl = \"http://h/x\"\nsecret_file = \"{path}\"");
        let config = load(&whole, &[]).expect("a configuration");
        assert_eq!(config.followers["notices"].secret, Some(Secret::new(SECRET)));
        let environment = [
            ("UBSCORE__FOLLOWERS__MAIL__URL", "https://mail/x"),
            ("UBSCORE__FOLLOWERS__MAIL__SECRET_FILE", path.as_str()),
        ];
        let config = load("", &environment).expect("a configuration");
        assert_eq!(config.followers["mail"].url, Some(Secret::new("https://mail/x")));
        let cases = [
            ("", "followers.a.url is missing: "),
            ("url = \"ftp://h/x\"", "followers.a.url = ***: must be an http:// or https:// URL"),
            ("url = \"http://h/x\"", "followers.a.secret_file is missing: "),
            ("kind = \"veto\"", "followers.a.kind: unknown key; known are url, secret_file"),
            ("url = 7", "followers.a.url: must be text"),
        ];
        for (keys, start) in cases {
            assert_refused(&[(&format!("[followers.a]\n{keys}"), start)]);
        }
        let off = format!("[events]\nenabled = false\n{whole}");
        assert_refused(&[(&off, "followers.notices = there: must be absent where ")]);
        for name in ["Mail", "a b", "a.b", "", &"x".repeat(33)] {
            let said = refusal(&format!("[followers.{name:?}]\nurl = \"http://h/x\""), &[]);
            assert!(said.starts_with("followers = "), "{said}");
        }
    }
}
