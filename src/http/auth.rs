//! Reads and makes the tokens of `Authorization: Bearer`.
//!
//! A token is a JSON Web Token (RFC 7519). Its algorithm is compared with the configuration, and
//! never followed. The time comes from the caller. Keys are in [`keys`].

pub mod keys;

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use clap::ValueEnum;
use jsonwebtoken::errors::ErrorKind;
use jsonwebtoken::{EncodingKey, Header, TokenData, Validation};
use quick_cache::sync::Cache;
use serde::{Deserialize, Serialize};

use self::keys::{KeyError, Keys, Material, algorithm};
use super::rotation::Rotating;
use crate::config;
use crate::config::auth::Auth;
pub use crate::role::{Owner, Role};
pub use domain::account::USER_ID_MAX;

/// Tokens that are remembered, and the longest of them, bytes: 16 MiB and the map.
const REMEMBERED_MAX: usize = 16_384;
const REMEMBERED_BYTES_MAX: usize = 1_024;

/// The claims of a verified token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claims {
    /// `sub`: 1..=[`USER_ID_MAX`]. 0 in the token of a service: its `sub` is in `role`.
    pub user_id: u64,
    /// `role`, if it is a known one.
    pub role: Option<Role>,
    /// `exp`: seconds since the Unix epoch.
    pub expires_s: u64,
}

/// Why a token is refused. The reason is for the log. The client gets UNAUTHORIZED and no more, so
/// that an attacker does not learn which part is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unauthorized {
    /// No `Authorization` header.
    #[error("no token")]
    Missing,
    /// Another scheme than Bearer.
    #[error("not a bearer token")]
    Scheme,
    /// Not a token, an unknown critical extension, or claims of a wrong type.
    #[error("malformed token")]
    Malformed,
    /// Signed by another algorithm than the configured one.
    #[error("algorithm not allowed")]
    Algorithm,
    /// `kid` names no key, or is missing while there are several keys.
    #[error("no such key")]
    Key,
    /// Not signed by our key.
    #[error("wrong signature")]
    Signature,
    /// `exp` is missing.
    #[error("no expiry")]
    NoExpiry,
    /// `exp` has passed.
    #[error("expired")]
    Expired,
    /// `nbf` lies ahead.
    #[error("not yet valid")]
    NotYetValid,
    /// `iss` is not the configured one.
    #[error("wrong issuer")]
    Issuer,
    /// `aud` does not contain the configured one.
    #[error("wrong audience")]
    Audience,
    /// `sub` is not a user id, or not the name of a service.
    #[error("the subject is not a user id")]
    Subject,
}

/// Why no token can be made.
#[derive(Debug, thiserror::Error)]
pub enum SignError {
    /// Only the issuer has the private key.
    #[error("auth.algorithm = {}: only your issuer has the private key and can make tokens", .0.name())]
    NotShared(config::auth::Algorithm),
    /// No secret; `Config::validate` refuses this too.
    #[error("auth.secret is missing")]
    NoSecret,
    /// Not 1..=[`USER_ID_MAX`].
    #[error("user {0}: must be 1..={USER_ID_MAX}")]
    User(u64),
    /// The signature failed.
    #[error("cannot sign the token")]
    Signing(#[source] jsonwebtoken::errors::Error),
}

/// Checks tokens against the keys in force and one algorithm.
pub struct Verifier {
    auth: Auth,
    validation: Validation,
    trust: ArcSwap<Trust>,
}

/// Keys, and the tokens that they have verified. A verified token is known by its bytes, and only
/// its times are checked again. It is dropped with the keys, so that none outlives the key of its
/// signature.
struct Trust {
    material: Material,
    keys: Keys,
    known: Cache<Box<str>, Verified>,
}

/// The claims that a signature proves, and the time from which they count, seconds since the Unix
/// epoch.
#[derive(Clone, Copy)]
struct Verified {
    claims: Claims,
    begins_s: u64,
}

/// The claims we read; others are ignored (RFC 7519, 4).
#[derive(Deserialize)]
struct WireClaims {
    sub: Option<serde_json::Value>,
    exp: Option<serde_json::Number>,
    nbf: Option<serde_json::Number>,
    iss: Option<serde_json::Value>,
    aud: Option<serde_json::Value>,
    role: Option<serde_json::Value>,
    venue: Option<serde_json::Value>,
}

/// The claims we write.
#[derive(Serialize)]
struct SignedClaims<'a> {
    sub: String,
    iat: u64,
    exp: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    role: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    venue: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    iss: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    aud: Option<&'a str>,
    #[serde(flatten)]
    scope: Option<&'a SignerScope>,
}

/// The claims of a service beside its name, for nodes of the transaction manager.
#[derive(Clone, Debug, Serialize)]
pub struct SignerScope {
    /// The signers that it may use.
    pub signers: Vec<String>,
    /// The beginning of its ids.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prefix: Option<String>,
}

impl Verifier {
    /// Reads the keys that the configuration names.
    ///
    /// # Errors
    /// [`KeyError`]: the operator must change the configuration.
    pub fn new(auth: &Auth) -> Result<Self, KeyError> {
        let trust = Trust::new(Material::read(auth)?, auth)?;
        let mut validation = Validation::new(algorithm(auth.algorithm));
        // The library would use the system's clock. `decode` checks all claims, and `verify` the
        // times.
        validation.validate_exp = false;
        validation.validate_nbf = false;
        validation.validate_aud = false;
        validation.required_spec_claims.clear();
        Ok(Self { auth: auth.clone(), validation, trust: ArcSwap::from_pointee(trust) })
    }

    /// Reads the user from a request's `Authorization` header.
    ///
    /// `now_s`: seconds since the Unix epoch.
    ///
    /// Source: RFC 6750, 2.1 (the header); RFC 7519, 4.1 (the claims).
    ///
    /// # Errors
    /// [`Unauthorized`]: no claim of the token may be trusted.
    pub fn verify(&self, authorization: Option<&str>, now_s: u64) -> Result<Claims, Unauthorized> {
        let header = authorization.ok_or(Unauthorized::Missing)?;
        let (scheme, token) = header.split_once(' ').ok_or(Unauthorized::Scheme)?;
        if !scheme.eq_ignore_ascii_case("bearer") {
            return Err(Unauthorized::Scheme);
        }
        let token = token.trim();
        let (trust, leeway_s) = (self.trust.load(), self.auth.leeway_s);
        let verified = match trust.known.get(token) {
            Some(verified) => verified,
            None => {
                let verified = self.decode(token, &trust.keys)?;
                if token.len() <= REMEMBERED_BYTES_MAX {
                    trust.known.insert(token.into(), verified);
                }
                verified
            }
        };
        if now_s >= verified.claims.expires_s.saturating_add(leeway_s) {
            return Err(Unauthorized::Expired);
        }
        if verified.begins_s > now_s.saturating_add(leeway_s) {
            return Err(Unauthorized::NotYetValid);
        }
        Ok(verified.claims)
    }

    /// Checks all but the times.
    fn decode(&self, token: &str, keys: &Keys) -> Result<Verified, Unauthorized> {
        let token = self.signed(token, keys)?;
        // A critical extension, which is unknown here (RFC 7515, 4.1.11).
        if token.header.crit.is_some() {
            return Err(Unauthorized::Malformed);
        }
        let claims = token.claims;
        let expires_s = numeric_date(&claims.exp.ok_or(Unauthorized::NoExpiry)?)?;
        let begins_s = claims.nbf.map_or(Ok(0), |begins| numeric_date(&begins))?;
        if let Some(issuer) = &self.auth.issuer
            && claims.iss.as_ref().and_then(serde_json::Value::as_str) != Some(issuer)
        {
            return Err(Unauthorized::Issuer);
        }
        if let Some(audience) = &self.auth.audience {
            let matches = match &claims.aud {
                Some(serde_json::Value::Array(all)) => all.iter().any(|one| one == audience),
                Some(one) => one == audience,
                None => false,
            };
            if !matches {
                return Err(Unauthorized::Audience);
            }
        }
        let subject = claims.sub.as_ref().and_then(serde_json::Value::as_str);
        let subject = subject.ok_or(Unauthorized::Subject)?;
        let role_name = claims.role.as_ref().and_then(serde_json::Value::as_str);
        if role_name == Some(Role::SERVICE) {
            let owner = Owner::new(subject).ok_or(Unauthorized::Subject)?;
            let role = Some(Role::Service(owner));
            return Ok(Verified { claims: Claims { user_id: 0, role, expires_s }, begins_s });
        }
        let user_id = user_id(subject).ok_or(Unauthorized::Subject)?;
        let role = role(claims.role.as_ref(), claims.venue.as_ref())?;
        debug_assert!((1..=USER_ID_MAX).contains(&user_id), "read as a user id");
        Ok(Verified { claims: Claims { user_id, role, expires_s }, begins_s })
    }

    /// Decodes a token by a key that may have signed it.
    fn signed(&self, token: &str, keys: &Keys) -> Result<TokenData<WireClaims>, Unauthorized> {
        let refused = |error: jsonwebtoken::errors::Error| reason(error.kind());
        let header = jsonwebtoken::decode_header(token).map_err(refused)?;
        if header.alg != algorithm(self.auth.algorithm) {
            return Err(Unauthorized::Algorithm);
        }
        let mut refusal = Unauthorized::Key;
        for key in keys.for_token(header.kid.as_deref()) {
            match jsonwebtoken::decode(token, key, &self.validation).map_err(refused) {
                Ok(token) => return Ok(token),
                // There may be a previous secret: either may have signed it.
                Err(other) => refusal = other,
            }
        }
        Err(refusal)
    }
}

impl Trust {
    fn new(material: Material, auth: &Auth) -> Result<Trust, KeyError> {
        let keys = material.keys(auth.algorithm)?;
        Ok(Trust { material, keys, known: Cache::new(REMEMBERED_MAX) })
    }
}

impl Rotating for Verifier {
    fn name(&self) -> String {
        "keys of tokens".to_owned()
    }

    fn reload(&self) -> Result<bool, Box<dyn Error + Send + Sync>> {
        let material = Material::read(&self.auth.read_again()?)?;
        if material == self.trust.load().material {
            return Ok(false);
        }
        self.trust.store(Arc::new(Trust::new(material, &self.auth)?));
        Ok(true)
    }
}

/// Makes a token that a [`Verifier`] of the same configuration accepts.
///
/// `now_s`: seconds since the Unix epoch; `ttl`: only whole seconds count. For a service `user_id`
/// is not used.
///
/// # Errors
/// [`SignError`]: the configuration has no secret, or the user id is out of range.
pub fn sign(
    auth: &Auth,
    user_id: u64,
    role: Option<Role>,
    ttl: Duration,
    now_s: u64,
) -> Result<String, SignError> {
    sign_scoped(auth, user_id, role, None, ttl, now_s)
}

/// The same with the claims of a service for nodes.
///
/// # Errors
/// As [`sign`].
pub fn sign_scoped(
    auth: &Auth,
    user_id: u64,
    role: Option<Role>,
    scope: Option<&SignerScope>,
    ttl: Duration,
    now_s: u64,
) -> Result<String, SignError> {
    let subject = match role {
        Some(Role::Service(owner)) => owner.to_string(),
        _ if (1..=USER_ID_MAX).contains(&user_id) => user_id.to_string(),
        _ => return Err(SignError::User(user_id)),
    };
    if auth.algorithm != config::auth::Algorithm::Hs256 {
        return Err(SignError::NotShared(auth.algorithm));
    }
    let secret = auth.secret.as_ref().ok_or(SignError::NoSecret)?;
    let claims = SignedClaims {
        sub: subject,
        iat: now_s,
        exp: now_s.saturating_add(ttl.as_secs()),
        role: role.map(Role::name),
        venue: match role {
            Some(Role::Venue(venue)) => Some(venue),
            Some(Role::Admin | Role::Viewer | Role::Service(_)) | None => None,
        },
        iss: auth.issuer.as_deref(),
        aud: auth.audience.as_deref(),
        scope,
    };
    let key = EncodingKey::from_secret(secret.expose().as_bytes());
    jsonwebtoken::encode(&Header::new(algorithm(auth.algorithm)), &claims, &key)
        .map_err(SignError::Signing)
}

/// Reads a user id as tokens write it: decimal digits, nothing before them.
///
/// Returns `None` for every text but 1..=[`USER_ID_MAX`] without leading zeros, so that no two
/// texts name one user.
pub fn user_id(text: &str) -> Option<u64> {
    if text.starts_with('0') || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    text.parse().ok().filter(|id| (1..=USER_ID_MAX).contains(id))
}

/// The role of a token; `None` for an unknown one, which gives no rights.
fn role(
    name: Option<&serde_json::Value>,
    venue: Option<&serde_json::Value>,
) -> Result<Option<Role>, Unauthorized> {
    let Some(name) = name.and_then(serde_json::Value::as_str) else { return Ok(None) };
    if name == Role::Venue(0).name() {
        // Without its number it would be a user's token.
        let venue = venue.and_then(serde_json::Value::as_u64);
        let venue = venue.and_then(|venue| u32::try_from(venue).ok());
        return venue.map(|venue| Some(Role::Venue(venue))).ok_or(Unauthorized::Malformed);
    }
    Ok(Role::value_variants().iter().find(|role| role.name() == name).copied())
}

fn reason(kind: &ErrorKind) -> Unauthorized {
    match kind {
        ErrorKind::InvalidSignature => Unauthorized::Signature,
        ErrorKind::InvalidAlgorithm => Unauthorized::Algorithm,
        // Also an `alg` that the library does not know, such as "none".
        _ => Unauthorized::Malformed,
    }
}

/// The whole seconds of a NumericDate (RFC 7519, 2), which may have a fraction.
fn numeric_date(number: &serde_json::Number) -> Result<u64, Unauthorized> {
    // As text, to avoid floating point: "1700000000.5", "1e300", "-1".
    let text = number.to_string();
    let whole = text.split_once('.').map_or(text.as_str(), |(whole, _)| whole);
    if text.contains('e') {
        return Err(Unauthorized::Malformed);
    }
    whole.parse().map_err(|_| Unauthorized::Malformed)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Write;
    use std::path::PathBuf;

    use jsonwebtoken::DecodingKey;
    use jsonwebtoken::jwk::Jwk;
    use rcgen::{KeyPair, PKCS_ED25519};
    use serde_json::{Value, json};
    use tempfile::NamedTempFile;

    use super::*;
    use crate::config::secret::Secret;

    const NOW_S: u64 = 1_700_000_000;
    const SECRET: &str = "a secret of the tests, and of no one else";

    // Keys and tokens were made once with openssl; the private halves were thrown away. Each token
    // says sub 1001, role admin, exp NOW_S + 3600.
    pub(super) const ED_PUBLIC: &str = "-----BEGIN PUBLIC KEY-----\n\
    MCowBQYDK2VwAyEAr9NzaL2KM/8SpVxxonOZ4Y2t4SSXAv6Wos4OEn4FHfY=\n\
    -----END PUBLIC KEY-----\n";
    const ED_TOKEN: &str = "eyJhbGciOiJFZERTQSIsInR5cCI6IkpXVCJ9.eyJzdWIiOiIxMDAxIiwiZXhwIjoxNzAwMDAzNjAwLCJyb2x\
    lIjoiYWRtaW4ifQ.ujAq4FJKiwmoLGag0HSiLOm7i4CEyLcdtLtR2lwwpUNV375uxr8XEkoXk0cGgtS53YfI\
    _OsdHclkvR4hJ284Dw";
    pub(super) const RSA_PUBLIC: &str = "-----BEGIN PUBLIC KEY-----\n\
    MIIBIjANBgkqhkiG9w0BAQEFAAOCAQ8AMIIBCgKCAQEAoHnyefUvzM0UIoa6bq7w\n\
    ZrJ44b8c8qSJansdZv2ICULHhqZ/K8EK7Pefw6QDK9763tgNP7R1oNOIfvG9hdJl\n\
    iatSL2C43WLTSjZZ8pZkWeTAr9YdviDI1NiRmnatp13hAxfnKnn3GfPQWbTYCxhb\n\
    igS05j2/mvQOaMHDfkGhj3rh71/LulVZNxR3XcHnDvKd6bQPSYO8+fdq3nSct+Ro\n\
    42VAsgWo6ABjzXUygUrzwO920Yp0B2s+DXVH/DIGKMBUhfPt7nr51aHq1uxvrXrN\n\
    9NEnniNXr7PwsfrVtku6UfECRLtiyY4lXNih94bhGVBFJm54q9ozmU5jcawAcsv8\n\
    gwIDAQAB\n\
    -----END PUBLIC KEY-----\n";
    const RSA_TOKEN: &str = "eyJhbGciOiJSUzI1NiIsInR5cCI6IkpXVCJ9.eyJzdWIiOiIxMDAxIiwiZXhwIjoxNzAwMDAzNjAwLCJyb2x\
    lIjoiYWRtaW4ifQ.RR7jmHFgELRwdF7hVwKgQdNOLQiOW_WkywZb_UJy7seI18HTRlXAuujEegpZ64gVX8RB\
    -4lvGIXhGwdeHMTYrfdYzM64bYXkIP-Kcqx4gHZY1qEtcVnmaTFowsqCk5i03fGRFQdfR9_5mZrmMgmNZ-tm\
    G2wCYeSQKOAYtl2VehYJzk7M1mWEWUpxAmHdi4lVT5lUnhQSPrJ3_-IIugUAD5YERwUnQFKde-metHwCEBEo\
    IgpiG1nXFo8IpNXH5ySmOo5-ulxkaRKy35nvDAY5nB4OxdGglitWnY1-QF0yKC5Ktqndg9cJ79-1RQ8BEPOZ\
    jtib5C6-KlG7VU3ViM6teQ";
    pub(super) const EC_PUBLIC: &str = "-----BEGIN PUBLIC KEY-----\n\
    MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAEZ3pVNTOMpkUbzCLAT01xPdIgwrAC\n\
    QHO0GVPRzQ8YFQlMxkxAmt2sZ+N7AN6JGpc2zVvgxpr+PNGwAQ2ejiYBcQ==\n\
    -----END PUBLIC KEY-----\n";
    const EC_TOKEN: &str = "eyJhbGciOiJFUzI1NiIsInR5cCI6IkpXVCJ9.eyJzdWIiOiIxMDAxIiwiZXhwIjoxNzAwMDAzNjAwLCJyb2x\
    lIjoiYWRtaW4ifQ.L6BznvGZ9MNZA2MAfmNaVItl2e--xeAasmh6FExs77vmTxDbUEfoLon0tVA67SKqtm1v\
    fISB2skzT8T39jpmSQ";
    pub(super) const EC384_PUBLIC: &str = "-----BEGIN PUBLIC KEY-----\n\
    MHYwEAYHKoZIzj0CAQYFK4EEACIDYgAE/4iJjxeYfOzz5wdgBptK+rBlh+9u53Zj\n\
    zZNV6uvDFk8jSLwsSbKdsNLzK1ZHvN1LXrW2mOQfUqfuat5NksFmKjsig6AqPVXX\n\
    OMXz5KsbNPDImBMUBwbxJjqpcdY6C7HX\n\
    -----END PUBLIC KEY-----\n";

    /// A public key as a JWK, with what else it says.
    pub(super) fn jwk(algorithm: config::auth::Algorithm, pem: &str, mut jwk: Value) -> Value {
        let parse = match algorithm {
            config::auth::Algorithm::EdDsa => DecodingKey::from_ed_pem,
            config::auth::Algorithm::Rs256 => DecodingKey::from_rsa_pem,
            _ => DecodingKey::from_ec_pem,
        };
        let key = parse(pem.as_bytes()).expect("a public key");
        let made = Jwk::from_decoding_key(&key, None).expect("a JWK");
        let made = serde_json::to_value(made).expect("JSON");
        for (name, value) in made.as_object().expect("an object") {
            jwk[name] = value.clone();
        }
        jwk
    }

    fn shared() -> Auth {
        Auth { secret: Some(Secret::new(SECRET)), ..Auth::default() }
    }

    fn public(algorithm: config::auth::Algorithm, pem: &str) -> (Auth, NamedTempFile) {
        let mut file = NamedTempFile::new().expect("a temporary file");
        file.write_all(pem.as_bytes()).expect("written");
        let public_key_file = Some(file.path().to_owned());
        (Auth { algorithm, public_key_file, ..Auth::default() }, file)
    }

    fn verify(auth: &Auth, header: &str) -> Result<Claims, Unauthorized> {
        Verifier::new(auth).expect("a key").verify(Some(header), NOW_S)
    }

    fn token(header: &Header, claims: &Value, secret: &str) -> String {
        let key = EncodingKey::from_secret(secret.as_bytes());
        format!("Bearer {}", jsonwebtoken::encode(header, claims, &key).expect("encoded"))
    }

    /// The verdict on claims that are rightly signed; `exp` and `sub` are good unless given.
    fn judge_with(auth: &Auth, claims: &Value) -> Result<Claims, Unauthorized> {
        let mut all = json!({"sub": "1001", "exp": NOW_S + 60});
        for (name, value) in claims.as_object().expect("an object") {
            all[name] = value.clone();
        }
        verify(auth, &token(&Header::default(), &all, SECRET))
    }

    fn parts(token: &str) -> [&str; 3] {
        let parts: Vec<&str> = token.split('.').collect();
        parts.try_into().expect("three parts")
    }

    fn judge(claims: &Value) -> Result<Claims, Unauthorized> {
        judge_with(&shared(), claims)
    }

    #[test]
    fn what_is_signed_is_accepted_and_says_who() {
        for (user, role) in
            [(1, None), (7, Some(Role::Viewer)), (1001, Some(Role::Admin)), (USER_ID_MAX, None)]
        {
            let signed = sign(&shared(), user, role, Duration::from_secs(60), NOW_S);
            let header = format!("Bearer {}", signed.expect("signed"));
            let claims = Claims { user_id: user, role, expires_s: NOW_S + 60 };
            assert_eq!(verify(&shared(), &header), Ok(claims));
        }
    }

    #[test]
    fn a_known_token_still_expires_and_no_other_is_taken_for_it() {
        let verifier = Verifier::new(&shared()).expect("a key");
        let signed = sign(&shared(), 7, None, Duration::from_secs(60), NOW_S).expect("signed");
        let verify = |token: &str, now_s| verifier.verify(Some(&format!("Bearer {token}")), now_s);
        for now_s in [NOW_S, NOW_S, NOW_S + 59] {
            assert_eq!(verify(&signed, now_s).map(|claims| claims.user_id), Ok(7));
        }
        let late = NOW_S + 60 + shared().leeway_s;
        assert_eq!(verify(&signed, late), Err(Unauthorized::Expired));
        let (body, signature) = signed.rsplit_once('.').expect("three parts");
        for other in [format!("{body}."), format!("{body}.A{}", &signature[1..])] {
            assert!(verify(&other, NOW_S).is_err() || other == signed, "{other}");
        }
        // More of them than are remembered, and one too long to be.
        for user in 1..=REMEMBERED_MAX as u64 + 100 {
            let signed = sign(&shared(), user, None, Duration::from_secs(60), NOW_S);
            assert!(verify(&signed.expect("signed"), NOW_S).is_ok());
        }
        let known = || verifier.trust.load().known.len();
        assert!(known() <= REMEMBERED_MAX);
        let long = json!({"sub": "7", "exp": NOW_S + 60, "x": "y".repeat(REMEMBERED_BYTES_MAX)});
        let long = token(&Header::default(), &long, SECRET);
        let before = known();
        assert!(verifier.verify(Some(&long), NOW_S).is_ok());
        assert_eq!(known(), before);
    }

    /// Goal: a remembered token is judged by the clock at each use. Method: the time goes forward
    /// through both ends of the token, and back.
    #[test]
    fn a_known_token_is_good_between_its_times_alone() {
        let verifier = Verifier::new(&shared()).expect("a key");
        let claims = json!({"sub": "7", "nbf": NOW_S + 100, "exp": NOW_S + 200});
        let later = token(&Header::default(), &claims, SECRET);
        let early = Err(Unauthorized::NotYetValid);
        for _ in 0..2 {
            for (after_s, verdict) in [
                (0, early),
                (94, early),
                (95, Ok(7)),
                (204, Ok(7)),
                (205, Err(Unauthorized::Expired)),
                (150, Ok(7)),
            ] {
                let user = verifier.verify(Some(&later), NOW_S + after_s).map(|c| c.user_id);
                assert_eq!(user, verdict, "{after_s} s");
            }
        }
    }

    /// Goal: a remembered token keeps its own user, role and end, and no forgery of it is known.
    /// Method: tokens that differ in one claim, and forgeries of each, in turns.
    #[test]
    fn known_tokens_are_kept_apart_and_a_forgery_is_never_one_of_them() {
        let verifier = Verifier::new(&shared()).expect("a key");
        let all = [
            (7, None, 60),
            (7, Some(Role::Admin), 60),
            (7, Some(Role::Viewer), 60),
            (7, None, 90),
            (8, None, 60),
        ];
        for round in 0..3 {
            for (user_id, role, ttl_s) in all {
                let ttl = Duration::from_secs(ttl_s);
                let good = sign(&shared(), user_id, role, ttl, NOW_S).expect("signed");
                let claims = Claims { user_id, role, expires_s: NOW_S + ttl_s };
                let verdict = verifier.verify(Some(&format!("Bearer {good}")), NOW_S);
                assert_eq!(verdict, Ok(claims), "round {round}");
                let [_, payload, signature] = parts(&good);
                // {"alg":"none"}; {"alg":"HS384"}
                for (head, why) in [
                    ("eyJhbGciOiJub25lIn0", Unauthorized::Malformed),
                    ("eyJhbGciOiJIUzM4NCJ9", Unauthorized::Algorithm),
                ] {
                    let forged = format!("Bearer {head}.{payload}.{signature}");
                    assert_eq!(verifier.verify(Some(&forged), NOW_S), Err(why), "round {round}");
                }
            }
            assert_eq!(verifier.trust.load().known.len(), all.len(), "refusals are not kept");
        }
    }

    /// Goal: a token dies with its key, though it is remembered. Method: a set of two keys loses
    /// one, and gets it back. A token by the public key as a secret is refused all along.
    #[test]
    fn a_known_token_is_forgotten_with_its_key() {
        let pairs = [(); 2].map(|()| KeyPair::generate_for(&PKCS_ED25519).expect("a key"));
        let claims = json!({"sub": "1001", "exp": NOW_S + 60});
        let signed = |(pair, kid): (&KeyPair, &str)| {
            let mut header = Header::new(jsonwebtoken::Algorithm::EdDSA);
            header.kid = Some(kid.to_owned());
            let key = EncodingKey::from_ed_der(pair.serialized_der());
            format!("Bearer {}", jsonwebtoken::encode(&header, &claims, &key).expect("signed"))
        };
        let tokens = [(&pairs[0], "a"), (&pairs[1], "b")].map(signed);
        let keys = [(&pairs[0], "a"), (&pairs[1], "b")].map(|(pair, kid)| {
            jwk(config::auth::Algorithm::EdDsa, &pair.public_key_pem(), json!({"kid": kid}))
        });
        let set = |keys: &[Value]| json!({"keys": keys}).to_string();
        let (auth, file) = public(config::auth::Algorithm::EdDsa, &set(&keys));
        let verifier = Verifier::new(&auth).expect("keys");
        let confused = token(&Header::default(), &claims, &pairs[0].public_key_pem());
        for (held, first) in
            [(&keys[..], Ok(())), (&keys[1..], Err(Unauthorized::Key)), (&keys[..], Ok(()))]
        {
            fs::write(file.path(), set(held)).expect("written");
            verifier.reload().expect("keys");
            for _ in 0..2 {
                let verdict = |token: &String| verifier.verify(Some(token), NOW_S).map(drop);
                assert_eq!(tokens.each_ref().map(verdict), [first, Ok(())]);
                assert_eq!(verdict(&confused), Err(Unauthorized::Algorithm));
            }
        }
    }

    /// Goal: a secret can be changed without refusing a token that was good, and then is gone.
    /// Method: one token of each secret, at each step of the change; the old one is remembered from
    /// the first step on.
    #[test]
    fn a_token_is_good_as_long_as_the_secret_that_signed_it() {
        const OLD: &str = "the secret of yesterday, as long as any";
        let [secret, previous] = [(); 2].map(|()| NamedTempFile::new().expect("a file"));
        let write = |file: &NamedTempFile, text| fs::write(file.path(), text).expect("written");
        write(&secret, OLD);
        let auth = Auth {
            secret_file: Some(secret.path().to_owned()),
            previous_secret_file: Some(previous.path().to_owned()),
            ..Auth::default()
        };
        let auth = auth.read_again().expect("a secret");
        let verifier = Verifier::new(&auth).expect("a secret");
        let claims = json!({"sub": "1001", "exp": NOW_S + 60});
        let [old, new] = [OLD, SECRET].map(|secret| token(&Header::default(), &claims, secret));
        let verdicts = || [&old, &new].map(|token| verifier.verify(Some(token), NOW_S).map(drop));
        let good = [Ok(()), Err(Unauthorized::Signature)];
        assert_eq!(verdicts(), good);
        assert!(!verifier.reload().expect("nothing new"));

        write(&previous, OLD);
        assert!(verifier.reload().expect("another"));
        assert_eq!(verdicts(), good);
        write(&secret, SECRET);
        assert!(verifier.reload().expect("another"));
        assert_eq!(verdicts(), [Ok(()), Ok(())]);
        write(&secret, "half of");
        assert!(verifier.reload().is_err());
        assert_eq!(verdicts(), [Ok(()), Ok(())]);
        write(&secret, SECRET);
        write(&previous, "");
        assert!(verifier.reload().expect("another"));
        assert_eq!(verdicts(), [Err(Unauthorized::Signature), Ok(())]);
    }

    /// A `kid` says which key of a set; a key has no other name.
    #[test]
    fn a_token_of_a_set_is_checked_by_the_key_it_names() {
        let pair = || KeyPair::generate_for(&PKCS_ED25519).expect("a key");
        let [mine, other] = [pair(), pair()];
        let signed = |kid: Option<&str>| {
            let mut header = Header::new(jsonwebtoken::Algorithm::EdDSA);
            header.kid = kid.map(str::to_owned);
            let claims = json!({"sub": "1001", "exp": NOW_S + 60});
            let key = EncodingKey::from_ed_der(mine.serialized_der());
            format!("Bearer {}", jsonwebtoken::encode(&header, &claims, &key).expect("signed"))
        };
        let jwk = |pair: &KeyPair, common| {
            jwk(config::auth::Algorithm::EdDsa, &pair.public_key_pem(), common)
        };
        let (a, b) = (json!({"kid": "a"}), json!({"kid": "b"}));
        let (good, unknown) = (Ok(()), Err(Unauthorized::Key));
        for (keys, kid, verdict) in [
            (vec![jwk(&mine, a.clone())], None, good),
            (vec![jwk(&mine, json!({}))], None, good),
            (vec![jwk(&mine, a.clone())], Some("a"), good),
            (vec![jwk(&mine, a.clone())], Some("A"), unknown),
            (vec![jwk(&mine, json!({}))], Some("a"), unknown),
            (vec![jwk(&mine, json!({})), jwk(&other, b.clone())], None, unknown),
            (vec![jwk(&mine, a.clone()), jwk(&other, b.clone())], None, unknown),
            (vec![jwk(&mine, a.clone()), jwk(&other, b.clone())], Some("a"), good),
            // Its own key is there, under another name.
            (vec![jwk(&mine, a), jwk(&other, b)], Some("b"), Err(Unauthorized::Signature)),
        ] {
            let set = json!({"keys": keys}).to_string();
            let (auth, _file) = public(config::auth::Algorithm::EdDsa, &set);
            assert_eq!(verify(&auth, &signed(kid)).map(drop), verdict, "{kid:?} {set}");
        }
        // PEM and secrets have no names.
        let (auth, _file) = public(config::auth::Algorithm::EdDsa, &mine.public_key_pem());
        assert!(verify(&auth, &signed(Some("b"))).is_ok());
        let header = Header { kid: Some("b".to_owned()), ..Header::default() };
        let claims = json!({"sub": "1001", "exp": NOW_S + 60});
        assert!(verify(&shared(), &token(&header, &claims, SECRET)).is_ok());
    }

    #[test]
    fn a_token_carries_the_issuer_and_audience_it_will_be_asked_for() {
        let auth = Auth {
            issuer: Some("us".to_owned()),
            audience: Some("ubscore".to_owned()),
            ..shared()
        };
        let signed = sign(&auth, 7, None, Duration::from_secs(60), NOW_S).expect("signed");
        assert_eq!(verify(&auth, &format!("bearer {signed}")).map(|c| c.user_id), Ok(7));
    }

    #[test]
    fn each_public_key_algorithm_is_accepted() {
        for (algorithm, pem, token) in [
            (config::auth::Algorithm::EdDsa, ED_PUBLIC, ED_TOKEN),
            (config::auth::Algorithm::Rs256, RSA_PUBLIC, RSA_TOKEN),
            (config::auth::Algorithm::Es256, EC_PUBLIC, EC_TOKEN),
        ] {
            let (auth, _file) = public(algorithm, pem);
            let claims = verify(&auth, &format!("Bearer {token}"));
            let role = Some(Role::Admin);
            assert_eq!(claims, Ok(Claims { user_id: 1001, role, expires_s: NOW_S + 3_600 }));
            let mut forged = token.to_owned();
            forged.replace_range(token.len() - 8..token.len() - 7, "_");
            let verdict = verify(&auth, &format!("Bearer {forged}"));
            assert_eq!(verdict, Err(Unauthorized::Signature), "{algorithm:?}");
        }
    }

    /// The algorithm is the configuration's: the token's own is compared, never followed.
    #[test]
    fn no_other_algorithm_is_accepted() {
        let claims = json!({"sub": "1001", "exp": NOW_S + 60});
        for (algorithm, pem) in [
            (config::auth::Algorithm::EdDsa, ED_PUBLIC),
            (config::auth::Algorithm::Rs256, RSA_PUBLIC),
            (config::auth::Algorithm::Es256, EC_PUBLIC),
        ] {
            let (auth, _file) = public(algorithm, pem);
            // The public key is public: signing with it as if it were a secret proves nothing.
            let confused = token(&Header::default(), &claims, pem);
            assert_eq!(verify(&auth, &confused), Err(Unauthorized::Algorithm), "{algorithm:?}");
        }
        for other in [ED_TOKEN, RSA_TOKEN, EC_TOKEN] {
            let verdict = verify(&shared(), &format!("Bearer {other}"));
            assert_eq!(verdict, Err(Unauthorized::Algorithm));
        }
        let stronger = token(&Header::new(jsonwebtoken::Algorithm::HS512), &claims, SECRET);
        assert_eq!(verify(&shared(), &stronger), Err(Unauthorized::Algorithm));

        let signed = token(&Header::default(), &claims, SECRET);
        let payload = signed.split('.').nth(1).expect("a payload");
        // {"alg":"none"}, {"alg":"None"}
        for none in ["eyJhbGciOiJub25lIn0", "eyJhbGciOiJOb25lIn0"] {
            for signature in ["", signed.rsplit('.').next().expect("a signature")] {
                let verdict = verify(&shared(), &format!("Bearer {none}.{payload}.{signature}"));
                assert_eq!(verdict, Err(Unauthorized::Malformed), "{none}");
            }
        }
    }

    #[test]
    fn a_token_of_another_key_or_with_changed_claims_is_refused() {
        let claims = json!({"sub": "1001", "exp": NOW_S + 60});
        let foreign = token(&Header::default(), &claims, "another secret, just as long as ours");
        assert_eq!(verify(&shared(), &foreign), Err(Unauthorized::Signature));

        let mine = token(&Header::default(), &claims, SECRET);
        let theirs = token(&Header::default(), &json!({"sub": "1002", "exp": NOW_S + 60}), SECRET);
        let parts: Vec<&str> = mine.split('.').collect();
        let payload = theirs.split('.').nth(1).expect("a payload");
        let spliced = format!("{}.{payload}.{}", parts[0], parts[2]);
        assert_eq!(verify(&shared(), &spliced), Err(Unauthorized::Signature));
        assert_eq!(
            verify(&shared(), &format!("{}.{}.", parts[0], parts[1])),
            Err(Unauthorized::Signature)
        );
    }

    #[test]
    fn what_is_not_a_bearer_token_is_refused() {
        let verifier = Verifier::new(&shared()).expect("a key");
        assert_eq!(verifier.verify(None, NOW_S), Err(Unauthorized::Missing));
        for (header, refusal) in [
            ("", Unauthorized::Scheme),
            ("Bearer", Unauthorized::Scheme),
            ("Basic dXNlcjpwYXNz", Unauthorized::Scheme),
            ("BearerX a.b.c", Unauthorized::Scheme),
            ("Bearer ", Unauthorized::Malformed),
            ("Bearer a", Unauthorized::Malformed),
            ("Bearer a.b", Unauthorized::Malformed),
            ("Bearer a.b.c", Unauthorized::Malformed),
            ("Bearer a.b.c.d", Unauthorized::Malformed),
            ("Bearer ...", Unauthorized::Malformed),
        ] {
            assert_eq!(verifier.verify(Some(header), NOW_S), Err(refusal), "{header:?}");
        }
    }

    #[test]
    fn time_is_the_callers_with_a_few_seconds_of_leeway() {
        for (claims, expected) in [
            (json!({"exp": NOW_S - 4}), Ok(())),
            (json!({"exp": NOW_S - 5}), Err(Unauthorized::Expired)),
            (json!({"exp": 0}), Err(Unauthorized::Expired)),
            (json!({"exp": u64::MAX}), Ok(())),
            (json!({"exp": 1_700_000_001.5}), Ok(())),
            (json!({"exp": 1_699_999_994.5}), Err(Unauthorized::Expired)),
            (json!({"exp": null}), Err(Unauthorized::NoExpiry)),
            (json!({"exp": -1}), Err(Unauthorized::Malformed)),
            (json!({"exp": 1e300}), Err(Unauthorized::Malformed)),
            (json!({"exp": "1700000060"}), Err(Unauthorized::Malformed)),
            (json!({"nbf": NOW_S + 5}), Ok(())),
            (json!({"nbf": NOW_S + 6}), Err(Unauthorized::NotYetValid)),
            (json!({"nbf": u64::MAX}), Err(Unauthorized::NotYetValid)),
            (json!({"nbf": "soon"}), Err(Unauthorized::Malformed)),
        ] {
            assert_eq!(judge(&claims).map(drop), expected, "{claims}");
        }
        let strict = Auth { leeway_s: 0, ..shared() };
        assert_eq!(judge_with(&strict, &json!({"exp": NOW_S})), Err(Unauthorized::Expired));
        assert!(judge_with(&strict, &json!({"exp": NOW_S + 1, "nbf": NOW_S})).is_ok());
    }

    #[test]
    fn issuer_and_audience_count_where_configured() {
        let auth = Auth {
            issuer: Some("us".to_owned()),
            audience: Some("ubscore".to_owned()),
            ..shared()
        };
        for (claims, expected) in [
            (json!({"iss": "us", "aud": "ubscore"}), Ok(())),
            (json!({"iss": "us", "aud": ["other", "ubscore"]}), Ok(())),
            (json!({"iss": "them", "aud": "ubscore"}), Err(Unauthorized::Issuer)),
            (json!({"iss": ["us"], "aud": "ubscore"}), Err(Unauthorized::Issuer)),
            (json!({"aud": "ubscore"}), Err(Unauthorized::Issuer)),
            (json!({"iss": "us"}), Err(Unauthorized::Audience)),
            (json!({"iss": "us", "aud": []}), Err(Unauthorized::Audience)),
            (json!({"iss": "us", "aud": "ubscore2"}), Err(Unauthorized::Audience)),
            (json!({"iss": "us", "aud": {"ubscore": 1}}), Err(Unauthorized::Audience)),
        ] {
            assert_eq!(judge_with(&auth, &claims).map(drop), expected, "{claims}");
        }
        assert!(judge(&json!({"iss": "anyone", "aud": "anything"})).is_ok());
    }

    #[test]
    fn a_subject_is_one_spelling_of_one_user() {
        for good in ["1", "1001", "9223372036854775807"] {
            assert_eq!(
                judge(&json!({"sub": good})).map(|c| c.user_id.to_string()),
                Ok(good.into())
            );
        }
        for bad in [
            json!("0"),
            json!("01"),
            json!("+1"),
            json!("-1"),
            json!(" 1"),
            json!("1 "),
            json!("1.0"),
            json!("0x1"),
            json!("١"),
            json!(""),
            json!("9223372036854775808"),
            json!("18446744073709551617"),
            json!(1001),
            json!(null),
        ] {
            let verdict = judge(&json!({"sub": bad}));
            assert_eq!(verdict, Err(Unauthorized::Subject), "{bad}");
        }
        // The library gives up before we look.
        assert_eq!(judge(&json!({"sub": ["1001"]})), Err(Unauthorized::Malformed));
    }

    #[test]
    fn only_the_word_itself_makes_a_role() {
        let role = |value: Value| judge(&json!({"role": value})).expect("a user").role;
        assert_eq!(role(json!("admin")), Some(Role::Admin));
        assert_eq!(role(json!("viewer")), Some(Role::Viewer));
        for other in [
            json!("Admin"),
            json!("admin "),
            json!(["admin"]),
            json!(true),
            json!(null),
            json!("VIEWER"),
        ] {
            assert_eq!(role(other.clone()), None, "{other}");
        }
    }

    #[test]
    fn a_service_has_a_name_and_no_user() {
        let verifier = Verifier::new(&shared()).expect("a key");
        let verify = |token: &str| verifier.verify(Some(&format!("Bearer {token}")), NOW_S);
        // A name of digits is not the user with this number.
        for name in ["red-envelope", "1001"] {
            let role = Owner::new(name).map(Role::Service);
            let token = sign(&shared(), 7, role, Duration::from_secs(60), NOW_S).expect("signed");
            let claims = Claims { user_id: 0, role, expires_s: NOW_S + 60 };
            assert_eq!(verify(&token), Ok(claims), "{name}");
        }
        for sub in [json!(""), json!("a b"), json!("x".repeat(65)), json!(1001), Value::Null] {
            let claims = json!({"sub": sub, "role": "service", "exp": NOW_S + 60});
            let key = EncodingKey::from_secret(SECRET.as_bytes());
            let token = jsonwebtoken::encode(&Header::default(), &claims, &key).expect("signed");
            assert_eq!(verify(&token), Err(Unauthorized::Subject), "{sub}");
        }
    }

    #[test]
    fn an_extension_that_must_be_understood_is_refused() {
        let header = Header { crit: Some(vec!["b64".to_owned()]), ..Header::default() };
        let claims = json!({"sub": "1001", "exp": NOW_S + 60});
        assert_eq!(
            verify(&shared(), &token(&header, &claims, SECRET)),
            Err(Unauthorized::Malformed)
        );
    }

    #[test]
    fn a_key_that_fits_no_token_stops_the_start() {
        for (algorithm, pem) in [
            (config::auth::Algorithm::EdDsa, EC_PUBLIC),
            (config::auth::Algorithm::Rs256, ED_PUBLIC),
            (config::auth::Algorithm::Es256, RSA_PUBLIC),
            (config::auth::Algorithm::Es256, EC384_PUBLIC),
            (config::auth::Algorithm::Es256, "not a key"),
        ] {
            let (auth, _file) = public(algorithm, pem);
            let error = Verifier::new(&auth).err().expect("refused");
            assert!(matches!(error, KeyError::Invalid { .. }), "{error:?}");
            assert!(error.to_string().starts_with("auth.public_key_file = "), "{error}");
        }
        let nowhere = Some(PathBuf::from("/nowhere/key.pem"));
        let auth = Auth {
            algorithm: config::auth::Algorithm::EdDsa,
            public_key_file: nowhere,
            ..Auth::default()
        };
        assert!(matches!(Verifier::new(&auth).err(), Some(KeyError::Read { .. })));
    }

    #[test]
    fn a_token_is_made_only_with_a_secret_and_for_a_user() {
        let ttl = Duration::from_secs(60);
        for user in [0, USER_ID_MAX + 1] {
            let error = sign(&shared(), user, None, ttl, NOW_S).expect_err("refused");
            assert!(matches!(error, SignError::User(refused) if refused == user));
        }
        let (auth, _file) = public(config::auth::Algorithm::EdDsa, ED_PUBLIC);
        assert!(matches!(sign(&auth, 1, None, ttl, NOW_S), Err(SignError::NotShared(_))));
        let none = Auth::default();
        assert!(matches!(sign(&none, 1, None, ttl, NOW_S), Err(SignError::NoSecret)));
    }
}
