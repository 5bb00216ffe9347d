//! Participants of transactions: services of the operator that are asked over HTTP.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::Deserialize;

use super::file::read_secret;
use super::secret::Secret;
use super::webhooks::check_signing_secret;
use super::{Error, is_http_url, range};

/// The longest name, bytes: it is a part of the id of each branch.
const NAME_BYTES_MAX: usize = 32;
/// The names of the built-in participants.
const BUILT_IN: [&str; 2] = ["funding", "spot"];
/// The most participants: each has its own series of metrics.
const PARTICIPANTS_MAX: usize = 64;

/// The tables `[participants.NAME]`, by name.
pub type Participants = BTreeMap<String, Participant>;

/// The table `[participants.NAME]`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Participant {
    /// URL that each call is posted to; needed. Secret: it may hold a password.
    pub url: Option<Secret>,
    /// A file that holds the secret that signs calls; needed.
    pub secret_file: Option<PathBuf>,
    /// How the participant takes part; needed.
    pub kind: Option<ParticipantKind>,
    /// The content of `secret_file`, once it is read. No key.
    #[serde(skip)]
    pub secret: Option<Secret>,
}

/// How a participant takes part in a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ParticipantKind {
    /// It tries, and confirms or cancels. It can refuse the try.
    Veto,
    /// It only commits, after all others have tried. Its outcome decides the transaction.
    Last,
}

impl Participant {
    /// Reads the file of the secret.
    fn read_secret(&mut self, name: &str) -> Result<(), Error> {
        read_secret(key(name, "secret_file"), &mut self.secret, &self.secret_file)
    }

    fn validate(&self, name: &str) -> Result<(), Error> {
        let missing = |end, advice| Err(Error::Missing { key: key(name, end).into(), advice });
        match &self.url {
            None => return missing("url", "give the http:// or https:// URL that is asked"),
            Some(url) if !is_http_url(url.expose()) => {
                return Err(range(key(name, "url"), url, "an http:// or https:// URL"));
            }
            Some(_) => {}
        }
        if self.kind.is_none() {
            return missing("kind", "give \"veto\" or \"last\"");
        }
        match &self.secret {
            None => missing("secret_file", "name the file of the secret that signs calls"),
            Some(secret) => check_signing_secret(key(name, "secret_file"), secret),
        }
    }
}

/// `participants.NAME.key`.
fn key(name: &str, end: &str) -> String {
    format!("participants.{name}.{end}")
}

/// Whether a table of a service may have this name.
pub(super) fn is_name(name: &str) -> bool {
    let fits =
        |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"_-".contains(&byte);
    (1..=NAME_BYTES_MAX).contains(&name.len()) && name.bytes().all(fits)
}

/// Reads the files of all secrets.
pub(super) fn read_secrets(participants: &mut Participants) -> Result<(), Error> {
    participants.iter_mut().try_for_each(|(name, participant)| participant.read_secret(name))
}

/// Checks all names and tables.
pub(super) fn validate(participants: &Participants) -> Result<(), Error> {
    if participants.len() > PARTICIPANTS_MAX {
        let allowed = format!("at most {PARTICIPANTS_MAX} tables");
        return Err(range("participants", format!("{} tables", participants.len()), allowed));
    }
    for (name, participant) in participants {
        if !is_name(name) || BUILT_IN.contains(&name.as_str()) {
            let allowed = format!(
                "a name of 1 to {NAME_BYTES_MAX} of a-z 0-9 _ -, and neither funding nor spot"
            );
            return Err(range("participants", format!("{name:?}"), allowed));
        }
        participant.validate(name)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::tests::{assert_refused, file, load, refusal};

    const SECRET: &str = "whsec_YW4gZW5kcG9pbnQncyBzZWNyZXQsIDMyIGJ5dGVzLi4=";

    #[test]
    fn a_participant_has_a_url_a_secret_and_a_kind() {
        let secret = file(&format!("{SECRET}\n"));
        let path = secret.path().display();
        let whole = format!(
            "[participants.red-envelope_2]\nurl = \"http://h/x\"\nsecret_file = \"{path}\"\nkind = \"veto\""
        );
        let config = load(&whole, &[]).expect("a configuration");
        let participant = &config.participants["red-envelope_2"];
        assert_eq!(participant.kind, Some(ParticipantKind::Veto));
        assert_eq!(participant.secret, Some(Secret::new(SECRET)));
        let short = file("whsec_c2hvcnQ=");
        let short = short.path().display();
        let cases = [
            ("", "participants.a.url is missing: "),
            ("url = \"ftp://h/x\"", "participants.a.url = ***: must be an http:// or https:// URL"),
            ("url = \"http://h/x\"", "participants.a.kind is missing: "),
            ("url = 7", "participants.a.url: must be text"),
            ("kind = \"first\"", "participants.a.kind: unknown variant"),
            ("url = \"http://h/x\"\nkind = \"last\"", "participants.a.secret_file is missing: "),
            ("secret_file = \"/nowhere\"", "participants.a.secret_file = /nowhere: cannot be read"),
            (
                "secret = \"x\"",
                "participants.a.secret: unknown key; known are url, secret_file, kind",
            ),
        ];
        for (keys, start) in cases {
            assert_refused(&[(&format!("[participants.a]\n{keys}"), start)]);
        }
        let weak = format!(
            "[participants.a]\nurl = \"http://h/x\"\nkind = \"last\"\nsecret_file = \"{short}\""
        );
        assert_refused(&[(
            &weak,
            "participants.a.secret_file = ***: must be whsec_ and the base64",
        )]);
    }

    #[test]
    fn a_name_is_short_and_plain_and_not_built_in() {
        let long = "x".repeat(NAME_BYTES_MAX + 1);
        for name in ["funding", "spot", "FUNDING", "Spot", "Mail", "a b", "a.b", "", &long] {
            let said = refusal(&format!("[participants.{name:?}]\nkind = \"veto\""), &[]);
            let start = format!("participants = {name:?}: must be a name of 1 to 32 of ");
            assert!(said.starts_with(&start), "{said}");
        }
        assert_refused(&[("participants = 271", "participants: must be tables of ")]);
        assert_refused(&[("[participants]\nurl = \"http://u:p@h\"", "participants.url: must be ")]);
    }

    #[test]
    fn the_environment_completes_and_replaces_a_table() {
        let secret = file(SECRET);
        let path = secret.path().display().to_string();
        let text = "[participants.a_]\nurl = \"http://h/x\"\nkind = \"last\"";
        let environment = [
            ("UBSCORE__PARTICIPANTS__A___SECRET_FILE", path.as_str()),
            ("UBSCORE__PARTICIPANTS__A___URL", "http://other/x"),
            ("UBSCORE__PARTICIPANTS__MAIL__URL", "https://mail/x"),
            ("UBSCORE__PARTICIPANTS__MAIL__KIND", "veto"),
            ("UBSCORE__PARTICIPANTS__MAIL__SECRET_FILE", path.as_str()),
        ];
        let config = load(text, &environment).expect("a configuration");
        let (last, mail) = (&config.participants["a_"], &config.participants["mail"]);
        assert_eq!(last.url, Some(Secret::new("http://other/x")));
        assert_eq!(last.kind, Some(ParticipantKind::Last));
        assert_eq!(mail.kind, Some(ParticipantKind::Veto));
        let said = refusal("", &[("UBSCORE__PARTICIPANTS__MAIL__URLS", "x")]);
        assert!(said.starts_with("participants.mail.urls: unknown key;"), "{said}");
        assert!(said.ends_with("(in the environment)"), "{said}");
        let said = refusal("", &[("UBSCORE__PARTICIPANTS__MAIL", "x")]);
        assert!(said.starts_with("participants.mail: must be a table"), "{said}");
    }
}
