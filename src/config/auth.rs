//! The tokens of clients: their signature, issuer and audience.

use std::path::PathBuf;

use serde::Deserialize;

use super::bound::{Bound, bound};
use super::file::read_secret;
use super::secret::Secret;
use super::{Error, range};

/// The section `[auth]`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Auth {
    /// The algorithm of all tokens. The algorithm in a token's header is never trusted.
    pub algorithm: Algorithm,
    /// The shared secret of HS256. After loading this is also the content of `secret_file`.
    pub secret: Option<Secret>,
    /// A file that holds the secret.
    pub secret_file: Option<PathBuf>,
    /// The secret before this one, as long as tokens that it signed are valid. After loading this
    /// is also the content of `previous_secret_file`, and absent if that file is empty.
    pub previous_secret: Option<Secret>,
    /// A file that holds the previous secret, or an empty file.
    pub previous_secret_file: Option<PathBuf>,
    /// The public keys of the other algorithms: one key as PEM, or a JWK Set.
    pub public_key_file: Option<PathBuf>,
    /// The required value of `iss`.
    pub issuer: Option<String>,
    /// The value that `aud` must contain.
    pub audience: Option<String>,
    /// The allowed difference between the issuer's clock and this one, s.
    pub leeway_s: u64,
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

impl Algorithm {
    /// Its name of RFC 7518 and RFC 8037, as in the configuration.
    pub fn name(self) -> &'static str {
        match self {
            Algorithm::Hs256 => "HS256",
            Algorithm::EdDsa => "EdDSA",
            Algorithm::Rs256 => "RS256",
            Algorithm::Es256 => "ES256",
        }
    }
}

/// The secret of `--dev`. It is public. So it is accepted only with `--dev`, and only loopback
/// addresses are bound with it.
pub const DEVELOPMENT_SECRET: &str = "ubscore-development-secret-known-to-everyone";

/// The shortest secret of HS256, bytes: RFC 7518, 3.2 demands the size of the hash.
const SECRET_BYTES_MIN: usize = 32;

const _: () = assert!(DEVELOPMENT_SECRET.len() >= SECRET_BYTES_MIN);

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

/// The bounds of its whole numbers.
#[rustfmt::skip]
pub(super) const BOUNDS: &[Bound] = &[
    bound("auth.leeway_s", |c| Some(c.auth.leeway_s), 0, 5, "s"),
];

impl Auth {
    /// The same section with the secrets that its files hold now. Other algorithms than HS256 have
    /// no secrets; their section is returned unchanged.
    ///
    /// # Errors
    /// As [`Config::load`](super::Config::load). The development secret is refused, because the
    /// listeners' addresses are not checked again.
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

    /// Whether tokens are verified with the development secret, which is public.
    pub(super) fn is_public(&self) -> bool {
        let known = |secret: &Secret| secret.expose() == DEVELOPMENT_SECRET;
        self.algorithm == Algorithm::Hs256 && self.secret.as_ref().is_some_and(known)
    }

    /// Uses the development secret if no secret is set.
    pub(super) fn use_development_secret(&mut self) {
        if self.algorithm == Algorithm::Hs256 && self.secret.is_none() {
            self.secret = Some(Secret::new(DEVELOPMENT_SECRET));
        }
    }

    /// Replaces the names of files by their contents. An empty previous secret becomes `None`.
    pub(super) fn read_secrets(&mut self) -> Result<(), Error> {
        read_secret("auth.secret_file", &mut self.secret, &self.secret_file)?;
        read_secret(
            "auth.previous_secret_file",
            &mut self.previous_secret,
            &self.previous_secret_file,
        )?;
        self.previous_secret.take_if(|secret| secret.expose().is_empty());
        Ok(())
    }

    /// Checks that tokens can be verified. `dev`: the development secret is allowed.
    pub(super) fn validate(&self, dev: bool) -> Result<(), Error> {
        for (key, text) in [("auth.issuer", &self.issuer), ("auth.audience", &self.audience)] {
            if text.as_deref() == Some("") {
                return Err(range(key, "\"\"", "absent or not empty"));
            }
        }
        if self.algorithm != Algorithm::Hs256 {
            return match self.public_key_file {
                Some(_) => Ok(()),
                None => Err(Error::Missing {
                    key: "auth.public_key_file".into(),
                    advice: "name the file of the public keys, PEM or a JWK Set, or use HS256",
                }),
            };
        }
        let Some(secret) = &self.secret else {
            return Err(Error::Missing {
                key: "auth.secret".into(),
                advice: "give auth.secret_file, auth.secret or UBSCORE__AUTH__SECRET, \
                         or --dev for the development secret",
            });
        };
        check_secret("auth.secret", secret, dev)?;
        if let Some(previous) = &self.previous_secret {
            check_secret("auth.previous_secret", previous, false)?;
        }
        Ok(())
    }
}

/// Refuses a secret that is too short. `dev`: the development secret is allowed.
fn check_secret(key: &'static str, secret: &Secret, dev: bool) -> Result<(), Error> {
    if secret.expose().len() < SECRET_BYTES_MIN {
        return Err(range(key, secret, format!("at least {SECRET_BYTES_MIN} bytes")));
    }
    if secret.expose() == DEVELOPMENT_SECRET && !dev {
        return Err(range(key, secret, "your own: this one needs --dev"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::DEVELOPMENT_SECRET;
    use crate::config::secret::Secret;
    use crate::config::tests::{OWN_SECRET, assert_refused, file, load, refusal};

    #[test]
    fn an_issuer_is_absent_or_named() {
        assert_refused(&[("[auth]\nissuer = \"\"", "auth.issuer = ")]);
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
}
