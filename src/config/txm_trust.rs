//! The tokens that a node accepts: a trust of its own.

use std::path::PathBuf;

use serde::Deserialize;

use super::auth::{Algorithm, Auth};
use super::bound::{Bound, bound};
use super::secret::Secret;
use super::{Error, range};

/// The value that `aud` of every token must contain. It is fixed: no token of another service
/// counts here.
pub const AUDIENCE: &str = "ubscore-txm";

/// The section `[txm.auth]`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Trust {
    /// The algorithm of all tokens.
    pub algorithm: Algorithm,
    /// A file that holds the shared secret of HS256.
    pub secret_file: Option<PathBuf>,
    /// A file that holds the previous secret, or an empty file.
    pub previous_secret_file: Option<PathBuf>,
    /// The public keys of the other algorithms: one key as PEM, or a JWK Set.
    pub public_key_file: Option<PathBuf>,
    /// The required value of `iss`.
    pub issuer: Option<String>,
    /// The allowed difference between the issuer's clock and this one, s.
    pub leeway_s: u64,
    /// The same as a section `[auth]`, with the secrets that its files hold. No key.
    #[serde(skip)]
    pub auth: Option<Auth>,
}

impl Default for Trust {
    fn default() -> Self {
        Self {
            algorithm: Algorithm::Hs256,
            secret_file: None,
            previous_secret_file: None,
            public_key_file: None,
            issuer: None,
            leeway_s: 5,
            auth: None,
        }
    }
}

/// The bounds of its whole numbers.
#[rustfmt::skip]
pub(super) const BOUNDS: &[Bound] = &[
    bound("txm.auth.leeway_s", |c| Some(c.txm.auth.leeway_s), 0, 5, "s"),
];

impl Trust {
    /// Reads the files of secrets. `dev`: the development secret replaces a missing one.
    pub(super) fn read_secrets(&mut self, dev: bool) -> Result<(), Error> {
        let mut auth = Auth {
            algorithm: self.algorithm,
            secret: None,
            secret_file: self.secret_file.clone(),
            previous_secret: None,
            previous_secret_file: self.previous_secret_file.clone(),
            public_key_file: self.public_key_file.clone(),
            issuer: self.issuer.clone(),
            audience: Some(AUDIENCE.to_owned()),
            leeway_s: self.leeway_s,
        };
        auth.read_secrets().map_err(below)?;
        if dev {
            auth.use_development_secret();
        }
        self.auth = Some(auth);
        Ok(())
    }

    /// The same as a section `[auth]`.
    pub fn auth(&self) -> Auth {
        self.auth.clone().unwrap_or_default()
    }

    /// Whether tokens are verified with the development secret, which is public.
    pub(super) fn is_public(&self) -> bool {
        self.auth().is_public()
    }

    /// Checks that tokens can be verified, and that the service's secret does not sign them: its
    /// issuer could otherwise move the money of every signer.
    pub(super) fn validate(&self, core: &Auth, dev: bool) -> Result<(), Error> {
        let auth = self.auth();
        auth.validate(dev).map_err(below)?;
        let same = |one: &Option<Secret>| {
            let own = [&auth.secret, &auth.previous_secret];
            one.is_some() && own.contains(&one)
        };
        let of_core = core.algorithm == Algorithm::Hs256 && self.algorithm == Algorithm::Hs256;
        if of_core && !dev && (same(&core.secret) || same(&core.previous_secret)) {
            let allowed = "another secret than that of [auth]: only --dev may share it";
            return Err(range("txm.auth.secret_file", "***", allowed));
        }
        Ok(())
    }
}

/// The same error with the key of this section. A secret stands in its file.
fn below(error: Error) -> Error {
    let own = |key: &str| match key {
        "auth.secret" => "txm.auth.secret_file".to_owned(),
        "auth.previous_secret" => "txm.auth.previous_secret_file".to_owned(),
        key => format!("txm.{key}"),
    };
    match error {
        Error::Range { key, value, allowed } => {
            Error::Range { key: own(&key).into(), value, allowed }
        }
        Error::Missing { key, .. } if key == "auth.secret" => {
            let advice = "name the file of the secret that signs tokens for ubscore-txm; \
                          --dev has one";
            Error::Missing { key: own("auth.secret").into(), advice }
        }
        Error::Missing { key, advice } => Error::Missing { key: own(&key).into(), advice },
        Error::SecretFile { key, path, source } => {
            Error::SecretFile { key: own(&key).into(), path, source }
        }
        other => other,
    }
}
