//! The keys of tokens: their sources, and the key that checks a token.

use std::io;
use std::path::{Path, PathBuf};

use jsonwebtoken::DecodingKey;
use jsonwebtoken::jwk::{AlgorithmParameters, EllipticCurve, Jwk, KeyOperations, PublicKeyUse};
use serde::Deserialize;
use tracing::{info, warn};

use crate::config::auth::{Algorithm, Auth};
use crate::config::file::read_key_file;
use crate::config::secret::Secret;

/// Why tokens cannot be checked. The operator must change the configuration or a file.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// A missing key; `Config::validate` refuses this too.
    #[error("{key} is missing")]
    Missing {
        /// `section.key`.
        key: &'static str,
    },
    /// The file of the public keys cannot be read.
    #[error("auth.public_key_file = {}: cannot be read", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// The file is neither a JWK Set nor a public key of the configured algorithm.
    #[error("auth.public_key_file = {}: not a public key for {algorithm:?}", path.display())]
    Invalid {
        /// The file.
        path: PathBuf,
        /// The configured algorithm.
        algorithm: Algorithm,
        /// The error of the parser.
        source: jsonwebtoken::errors::Error,
    },
    /// The file is JSON, and not a JWK Set.
    #[error("auth.public_key_file = {}: not a JWK Set", path.display())]
    NotASet {
        /// The file.
        path: PathBuf,
        /// The error of the parser.
        source: serde_json::Error,
    },
    /// The set has no key of the configured algorithm.
    #[error("auth.public_key_file = {}: none of {count} keys fits {algorithm:?}: {}", path.display(), listed(why))]
    NoneFits {
        /// The file.
        path: PathBuf,
        /// The configured algorithm.
        algorithm: Algorithm,
        /// The number of keys.
        count: usize,
        /// The error of each key.
        why: Vec<NamedMisfit>,
    },
    /// Two keys have one name, so a `kid` does not name one key.
    #[error("auth.public_key_file = {}: two keys have the kid {kid:?}", path.display())]
    Twice {
        /// The file.
        path: PathBuf,
        /// The name.
        kid: String,
    },
}

/// A key of a set that cannot check tokens.
#[derive(Debug, thiserror::Error)]
#[error("{name} {why}")]
pub struct NamedMisfit {
    /// The `kid`, or the place in the set.
    name: String,
    /// The error.
    #[source]
    why: Misfit,
}

/// Why a key of a set cannot check tokens.
#[derive(Debug, thiserror::Error)]
enum Misfit {
    #[error("is not a key: {0}")]
    NotAKey(#[source] serde_json::Error),
    #[error("is not for signatures by its use")]
    Use,
    #[error("is not to verify by its key_ops")]
    Operations,
    #[error("has another alg")]
    Algorithm,
    #[error("has another kty or crv")]
    Kind,
    #[error("is not a key: {0}")]
    Unusable(#[source] jsonwebtoken::errors::Error),
}

/// The errors of keys, as one text.
fn listed(misfits: &[NamedMisfit]) -> String {
    misfits.iter().map(NamedMisfit::to_string).collect::<Vec<_>>().join("; ")
}

/// The source of the keys, as it was read. Equal sources make equal keys.
#[derive(PartialEq)]
pub(super) enum Material {
    /// HS256: the secret, and the previous one.
    Secrets { current: Secret, previous: Option<Secret> },
    /// The content of the file.
    Public { path: PathBuf, content: Vec<u8> },
}

/// The keys in force.
pub(super) enum Keys {
    /// Keys without names: each may have signed a token, with any `kid`.
    Unnamed(Vec<DecodingKey>),
    /// The keys of a JWK Set, with the `kid` if they have one.
    Set(Vec<(Option<String>, DecodingKey)>),
}

impl Material {
    /// Takes the secrets that the configuration holds, or reads the file that it names.
    pub(super) fn read(auth: &Auth) -> Result<Material, KeyError> {
        if auth.algorithm == Algorithm::Hs256 {
            let current = auth.secret.clone().ok_or(KeyError::Missing { key: "auth.secret" })?;
            return Ok(Material::Secrets { current, previous: auth.previous_secret.clone() });
        }
        let path = auth.public_key_file.as_ref();
        let path = path.ok_or(KeyError::Missing { key: "auth.public_key_file" })?.clone();
        match read_key_file(&path) {
            Ok(content) => Ok(Material::Public { path, content }),
            Err(source) => Err(KeyError::Read { path, source }),
        }
    }

    /// Makes the keys, and logs their number and names.
    pub(super) fn keys(&self, wanted: Algorithm) -> Result<Keys, KeyError> {
        match self {
            Material::Secrets { current, previous } => {
                let secrets = [Some(current), previous.as_ref()].into_iter().flatten();
                let key = |secret: &Secret| DecodingKey::from_secret(secret.expose().as_bytes());
                info!(secrets = 1 + usize::from(previous.is_some()), "secrets of tokens are read");
                Ok(Keys::Unnamed(secrets.map(key).collect()))
            }
            // Every JSON object begins with a brace, and no PEM file does.
            Material::Public { path, content } if content.trim_ascii_start().starts_with(b"{") => {
                key_set(path, content, wanted).map(Keys::Set)
            }
            Material::Public { path, content } => {
                let key = pem(content, wanted).map_err(|source| KeyError::Invalid {
                    path: path.clone(),
                    algorithm: wanted,
                    source,
                })?;
                info!("the public key of tokens is read");
                Ok(Keys::Unnamed(vec![key]))
            }
        }
    }
}

impl Keys {
    /// The keys that may have signed a token. None if the token names an unknown key, or names no
    /// key while there are several.
    pub(super) fn for_token(&self, kid: Option<&str>) -> Vec<&DecodingKey> {
        match (self, kid) {
            (Keys::Unnamed(keys), _) => keys.iter().collect(),
            (Keys::Set(keys), Some(kid)) => keys
                .iter()
                .filter(|(name, _)| name.as_deref() == Some(kid))
                .map(|(_, key)| key)
                .collect(),
            (Keys::Set(keys), None) => match keys.as_slice() {
                [(_, key)] => vec![key],
                _ => Vec::new(),
            },
        }
    }
}

/// The library's name of an algorithm.
pub(super) fn algorithm(algorithm: Algorithm) -> jsonwebtoken::Algorithm {
    match algorithm {
        Algorithm::Hs256 => jsonwebtoken::Algorithm::HS256,
        Algorithm::EdDsa => jsonwebtoken::Algorithm::EdDSA,
        Algorithm::Rs256 => jsonwebtoken::Algorithm::RS256,
        Algorithm::Es256 => jsonwebtoken::Algorithm::ES256,
    }
}

fn pem(content: &[u8], wanted: Algorithm) -> Result<DecodingKey, jsonwebtoken::errors::Error> {
    let parse = match wanted {
        Algorithm::Hs256 => unreachable!("HS256 has no public key"),
        Algorithm::EdDsa => DecodingKey::from_ed_pem,
        Algorithm::Rs256 => DecodingKey::from_rsa_pem,
        Algorithm::Es256 => DecodingKey::from_ec_pem,
    };
    parse(content).and_then(|key| tried(key, wanted))
}

/// Checks a signature with a new key. The parser checks neither the curve nor whether a point lies
/// on it. The signature is wrong in any case, but an unusable key fails here and not at the first
/// request.
fn tried(key: DecodingKey, wanted: Algorithm) -> Result<DecodingKey, jsonwebtoken::errors::Error> {
    jsonwebtoken::crypto::verify("", b"", &key, algorithm(wanted)).map(|_| key)
}

/// The usable keys of a set. Others are skipped: sets of issuers hold keys of several kinds.
///
/// Source: RFC 7517, 5.
fn key_set(
    path: &Path,
    content: &[u8],
    wanted: Algorithm,
) -> Result<Vec<(Option<String>, DecodingKey)>, KeyError> {
    #[derive(Deserialize)]
    struct Set {
        keys: Vec<serde_json::Value>,
    }
    let set: Set = serde_json::from_slice(content)
        .map_err(|source| KeyError::NotASet { path: path.to_owned(), source })?;
    let (mut keys, mut unfit) = (Vec::<(Option<String>, DecodingKey)>::new(), Vec::new());
    let count = set.keys.len();
    for (index, value) in set.keys.into_iter().enumerate() {
        let name = value["kid"].as_str().map(str::to_owned);
        match key(value, wanted) {
            Ok(key) => {
                if let Some(kid) = &name
                    && keys.iter().any(|(other, _)| other.as_ref() == Some(kid))
                {
                    return Err(KeyError::Twice { path: path.to_owned(), kid: kid.clone() });
                }
                keys.push((name, key));
            }
            Err(why) => {
                let name = name.map_or_else(|| format!("number {index}"), |kid| format!("{kid:?}"));
                unfit.push(NamedMisfit { name, why });
            }
        }
    }
    assert_eq!(keys.len() + unfit.len(), count, "each key is usable or not");
    if keys.is_empty() {
        let path = path.to_owned();
        return Err(KeyError::NoneFits { path, algorithm: wanted, count, why: unfit });
    }
    for key in unfit {
        warn!(%key, "a key of the set is skipped");
    }
    let kids: Vec<_> = keys.iter().map(|(kid, _)| kid.as_deref().unwrap_or("(none)")).collect();
    info!(?kids, "the keys of tokens are read");
    Ok(keys)
}

/// Reads one key of a set.
fn key(value: serde_json::Value, wanted: Algorithm) -> Result<DecodingKey, Misfit> {
    let jwk: Jwk = serde_json::from_value(value).map_err(Misfit::NotAKey)?;
    let common = &jwk.common;
    if common.public_key_use.as_ref().is_some_and(|intended| *intended != PublicKeyUse::Signature) {
        return Err(Misfit::Use);
    }
    let verifies = |operations: &Vec<KeyOperations>| operations.contains(&KeyOperations::Verify);
    if common.key_operations.as_ref().is_some_and(|operations| !verifies(operations)) {
        return Err(Misfit::Operations);
    }
    if common.key_algorithm.is_some_and(|named| named != algorithm(wanted).into()) {
        return Err(Misfit::Algorithm);
    }
    let fits = match (wanted, &jwk.algorithm) {
        (Algorithm::EdDsa, AlgorithmParameters::OctetKeyPair(pair)) => {
            pair.curve == EllipticCurve::Ed25519
        }
        (Algorithm::Rs256, AlgorithmParameters::RSA(_)) => true,
        (Algorithm::Es256, AlgorithmParameters::EllipticCurve(point)) => {
            point.curve == EllipticCurve::P256
        }
        _ => false,
    };
    if !fits {
        return Err(Misfit::Kind);
    }
    let key = DecodingKey::from_jwk(&jwk).and_then(|key| tried(key, wanted));
    key.map_err(Misfit::Unusable)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use serde_json::{Value, json};
    use tempfile::NamedTempFile;

    use super::super::tests::{EC_PUBLIC, EC384_PUBLIC, ED_PUBLIC, RSA_PUBLIC, jwk};
    use super::*;

    fn names(set: &Value, wanted: Algorithm) -> Result<Vec<Option<String>>, KeyError> {
        let file = NamedTempFile::new().expect("a file");
        fs::write(file.path(), format!("\n  {set}")).expect("written");
        let auth = Auth {
            algorithm: wanted,
            public_key_file: Some(file.path().to_owned()),
            ..Auth::default()
        };
        match Material::read(&auth)?.keys(wanted)? {
            Keys::Set(keys) => Ok(keys.into_iter().map(|(kid, _)| kid).collect()),
            Keys::Unnamed(_) => panic!("a set has names"),
        }
    }

    #[test]
    fn keys_of_other_kinds_are_passed_over() {
        let ed = |common| jwk(Algorithm::EdDsa, ED_PUBLIC, common);
        let ec = |common| jwk(Algorithm::Es256, EC_PUBLIC, common);
        let rsa = |common| jwk(Algorithm::Rs256, RSA_PUBLIC, common);
        let mut off_curve = ec(json!({"kid": "off"}));
        off_curve["y"] = off_curve["x"].clone();
        let set = json!({"keys": [
            ed(json!({"kid": "ed", "use": "sig", "alg": "EdDSA", "key_ops": ["verify"]})),
            rsa(json!({"kid": "rsa", "x5c": ["AAAA"], "unknown": {"a": 1}})),
            rsa(json!({"kid": "rsa-pss", "alg": "PS256"})),
            rsa(json!({"kid": "rsa-512", "alg": "RS512"})),
            rsa(json!({"kid": "encrypts", "use": "enc"})),
            rsa(json!({"kid": "signs", "key_ops": ["sign"]})),
            ec(json!({"kid": "ec"})),
            ec(json!({})),
            off_curve,
            {"kty": "EC", "crv": "secp256k1", "kid": "k1", "x": "AA", "y": "AA"},
            {"kty": "oct", "kid": "secret", "k": "AAAA", "alg": "HS256"},
            {"kty": "AKP", "kid": "later", "pub": "AA"},
            {"kid": "nothing"},
            {"kty": "RSA", "kid": 7},
            "no object",
        ], "unknown": true});
        let some = |name: &str| Some(name.to_owned());
        for (wanted, kids) in [
            (Algorithm::EdDsa, vec![some("ed")]),
            (Algorithm::Rs256, vec![some("rsa")]),
            (Algorithm::Es256, vec![some("ec"), None]),
        ] {
            assert_eq!(names(&set, wanted).expect("keys"), kids, "{wanted:?}");
        }
    }

    #[test]
    fn a_set_that_cannot_be_used_is_refused() {
        let ec = jwk(Algorithm::Es256, EC_PUBLIC, json!({"kid": "a"}));
        let refusal = |set: &Value, wanted| names(set, wanted).expect_err("refused").to_string();
        let said = refusal(&json!({"keys": [ec, {"kty": "x"}]}), Algorithm::EdDsa);
        let wanted = "none of 2 keys fits EdDsa: \"a\" has another kty or crv; number 1 has";
        assert!(said.contains(wanted), "{said}");
        assert!(refusal(&json!({"keys": []}), Algorithm::EdDsa).contains("none of 0 keys"));
        assert!(refusal(&json!({"kty": "OKP"}), Algorithm::EdDsa).contains("not a JWK Set"));
        let said = refusal(&json!({"keys": [ec, ec]}), Algorithm::Es256);
        assert!(said.contains("two keys have the kid \"a\""), "{said}");
    }

    #[test]
    fn a_large_curve_is_no_small_one() {
        assert!(pem(EC384_PUBLIC.as_bytes(), Algorithm::Es256).is_err());
    }
}
