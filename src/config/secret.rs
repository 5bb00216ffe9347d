//! Configured text that is never shown.

use std::fmt;

use serde::{Deserialize, Deserializer};

/// Text that is never printed: neither by `{}` nor by `{:?}`.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Takes the text as it is.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The text itself, for the call that needs it.
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

#[cfg(test)]
mod tests {
    use crate::config::secret::Secret;
    use crate::config::tests::{OWN_SECRET, load};

    /// Goal: neither a printed configuration nor an error about it shows a secret.
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
}
