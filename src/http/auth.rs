//! Who is asking: reads and makes the tokens that stand in `Authorization: Bearer`.
//!
//! A token is a JSON Web Token (RFC 7519). What it says about how it is signed is compared with
//! the configuration, never followed; the time comes from the caller.

use std::fs;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use jsonwebtoken::errors::ErrorKind;
use jsonwebtoken::{DecodingKey, EncodingKey, Header, TokenData, Validation};
use quick_cache::sync::Cache;
use serde::{Deserialize, Serialize};

use crate::config;

/// Largest user id: PostgreSQL's BIGINT has no more.
pub const USER_ID_MAX: u64 = i64::MAX as u64;

const ADMIN: &str = "admin";
/// Tokens that are remembered, and the longest of them, bytes: 16 MiB and what the map needs.
const REMEMBERED_MAX: usize = 16_384;
const REMEMBERED_BYTES_MAX: usize = 1_024;

/// What a user may do beyond their own money.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Role {
    /// Operators' routes, and everyone's transfers.
    Admin,
}

/// What a verified token says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claims {
    /// `sub`: 1..=[`USER_ID_MAX`].
    pub user_id: u64,
    /// `role`, if it is one we know.
    pub role: Option<Role>,
    /// `exp`: seconds since the Unix epoch.
    pub expires_s: u64,
}

/// Why a request has no user. The reason is for the log: the client is told UNAUTHORIZED and no
/// more, so that an attacker does not learn which part to mend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unauthorized {
    /// No `Authorization` header.
    #[error("no token")]
    Missing,
    /// Another scheme than Bearer.
    #[error("not a bearer token")]
    Scheme,
    /// Not a token at all, an extension that must be understood, or claims of the wrong type.
    #[error("malformed token")]
    Malformed,
    /// Signed by another algorithm than the configured one.
    #[error("algorithm not allowed")]
    Algorithm,
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
    /// `sub` is not a user id.
    #[error("the subject is not a user id")]
    Subject,
}

/// Why tokens cannot be checked. The operator must change the configuration.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// `Config::validate` was not asked, or it would have said so.
    #[error("{key} is missing")]
    Missing {
        /// `section.key`.
        key: &'static str,
    },
    /// The file of the public key cannot be read.
    #[error("auth.public_key_file = {}: cannot be read", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The file holds no public key of the configured algorithm.
    #[error("auth.public_key_file = {}: not a public key for {algorithm:?}", path.display())]
    Invalid {
        /// The file.
        path: PathBuf,
        /// What it should be for.
        algorithm: config::Algorithm,
        /// What the parser said.
        source: jsonwebtoken::errors::Error,
    },
}

/// Why no token can be made.
#[derive(Debug, thiserror::Error)]
pub enum SignError {
    /// Only the issuer has the private key.
    #[error("auth.algorithm = {0:?}: tokens are made by whoever holds the private key")]
    NotShared(config::Algorithm),
    /// `Config::validate` was not asked, or it would have said so.
    #[error("auth.secret is missing")]
    NoSecret,
    /// Not 1..=[`USER_ID_MAX`].
    #[error("user {0}: must be 1..={USER_ID_MAX}")]
    User(u64),
    /// The signature failed.
    #[error("sign the token")]
    Signing(#[source] jsonwebtoken::errors::Error),
}

/// Checks tokens against one key and one algorithm. A token that was good once is known by its bytes from then on, and only
/// its times are looked at again.
pub struct Verifier {
    key: DecodingKey,
    validation: Validation,
    issuer: Option<String>,
    audience: Option<String>,
    leeway_s: u64,
    known: Cache<Box<str>, Verified>,
}

/// What a signature proves for ever, and between which times it counts, seconds since the Unix epoch.
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
    iss: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    aud: Option<&'a str>,
}

impl Verifier {
    /// Reads the key that the configuration names.
    ///
    /// # Errors
    /// [`KeyError`]: the operator must change the configuration.
    pub fn new(auth: &config::Auth) -> Result<Self, KeyError> {
        let key = match auth.algorithm {
            config::Algorithm::Hs256 => {
                let secret =
                    auth.secret.as_ref().ok_or(KeyError::Missing { key: "auth.secret" })?;
                DecodingKey::from_secret(secret.expose().as_bytes())
            }
            _ => public_key(auth)?,
        };
        let mut validation = Validation::new(algorithm(auth.algorithm));
        // The library would compare with the system's clock; all claims are checked in `decode`, and times in `verify`.
        validation.validate_exp = false;
        validation.validate_nbf = false;
        validation.validate_aud = false;
        validation.required_spec_claims.clear();
        Ok(Self {
            key,
            validation,
            issuer: auth.issuer.clone(),
            audience: auth.audience.clone(),
            leeway_s: auth.leeway_s,
            known: Cache::new(REMEMBERED_MAX),
        })
    }

    /// Reads the user from a request's `Authorization` header.
    ///
    /// `now_s`: seconds since the Unix epoch.
    ///
    /// Source: RFC 6750, 2.1 (the header); RFC 7519, 4.1 (the claims).
    ///
    /// # Errors
    /// [`Unauthorized`]: nothing in the token may be believed.
    pub fn verify(&self, authorization: Option<&str>, now_s: u64) -> Result<Claims, Unauthorized> {
        let header = authorization.ok_or(Unauthorized::Missing)?;
        let (scheme, token) = header.split_once(' ').ok_or(Unauthorized::Scheme)?;
        if !scheme.eq_ignore_ascii_case("bearer") {
            return Err(Unauthorized::Scheme);
        }
        let token = token.trim();
        let verified = match self.known.get(token) {
            Some(verified) => verified,
            None => {
                let verified = self.decode(token)?;
                if token.len() <= REMEMBERED_BYTES_MAX {
                    self.known.insert(token.into(), verified);
                }
                verified
            }
        };
        if now_s >= verified.claims.expires_s.saturating_add(self.leeway_s) {
            return Err(Unauthorized::Expired);
        }
        if verified.begins_s > now_s.saturating_add(self.leeway_s) {
            return Err(Unauthorized::NotYetValid);
        }
        Ok(verified.claims)
    }

    /// Everything but the times.
    fn decode(&self, token: &str) -> Result<Verified, Unauthorized> {
        let token: TokenData<WireClaims> = jsonwebtoken::decode(token, &self.key, &self.validation)
            .map_err(|error| reason(error.kind()))?;
        // An extension that must be understood, and is not (RFC 7515, 4.1.11).
        if token.header.crit.is_some() {
            return Err(Unauthorized::Malformed);
        }
        let claims = token.claims;
        let expires_s = numeric_date(&claims.exp.ok_or(Unauthorized::NoExpiry)?)?;
        let begins_s = claims.nbf.map_or(Ok(0), |begins| numeric_date(&begins))?;
        if let Some(issuer) = &self.issuer
            && claims.iss.as_ref().and_then(serde_json::Value::as_str) != Some(issuer)
        {
            return Err(Unauthorized::Issuer);
        }
        if let Some(audience) = &self.audience {
            let matches = match &claims.aud {
                Some(serde_json::Value::Array(all)) => all.iter().any(|one| one == audience),
                Some(one) => one == audience,
                None => false,
            };
            if !matches {
                return Err(Unauthorized::Audience);
            }
        }
        let user_id = claims
            .sub
            .as_ref()
            .and_then(serde_json::Value::as_str)
            .and_then(user_id)
            .ok_or(Unauthorized::Subject)?;
        let role = claims.role.is_some_and(|role| role == ADMIN).then_some(Role::Admin);
        Ok(Verified { claims: Claims { user_id, role, expires_s }, begins_s })
    }
}

/// Makes the token that a [`Verifier`] of the same configuration accepts.
///
/// `now_s`: seconds since the Unix epoch; `ttl`: whole seconds count.
///
/// # Errors
/// [`SignError`]: the configuration holds no secret to sign with, or the user is none.
pub fn sign(
    auth: &config::Auth,
    user_id: u64,
    role: Option<Role>,
    ttl: Duration,
    now_s: u64,
) -> Result<String, SignError> {
    if !(1..=USER_ID_MAX).contains(&user_id) {
        return Err(SignError::User(user_id));
    }
    if auth.algorithm != config::Algorithm::Hs256 {
        return Err(SignError::NotShared(auth.algorithm));
    }
    let secret = auth.secret.as_ref().ok_or(SignError::NoSecret)?;
    let claims = SignedClaims {
        sub: user_id.to_string(),
        iat: now_s,
        exp: now_s.saturating_add(ttl.as_secs()),
        role: role.map(|Role::Admin| ADMIN),
        iss: auth.issuer.as_deref(),
        aud: auth.audience.as_deref(),
    };
    let key = EncodingKey::from_secret(secret.expose().as_bytes());
    jsonwebtoken::encode(&Header::new(algorithm(auth.algorithm)), &claims, &key)
        .map_err(SignError::Signing)
}

/// Reads a user id as tokens write it: decimal digits, nothing before them.
///
/// Returns None for anything but 1..=[`USER_ID_MAX`] in its one spelling, so that no two texts
/// name one user.
pub fn user_id(text: &str) -> Option<u64> {
    if text.starts_with('0') || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    text.parse().ok().filter(|id| (1..=USER_ID_MAX).contains(id))
}

fn public_key(auth: &config::Auth) -> Result<DecodingKey, KeyError> {
    let path =
        auth.public_key_file.as_ref().ok_or(KeyError::Missing { key: "auth.public_key_file" })?;
    let pem = fs::read(path).map_err(|source| KeyError::Read { path: path.clone(), source })?;
    let parse = match auth.algorithm {
        config::Algorithm::Hs256 => unreachable!("HS256 has no public key"),
        config::Algorithm::EdDsa => DecodingKey::from_ed_pem,
        config::Algorithm::Rs256 => DecodingKey::from_rsa_pem,
        config::Algorithm::Es256 => DecodingKey::from_ec_pem,
    };
    parse(&pem)
        .and_then(|key| {
            // Parsing PEM does not look at the curve: check a signature, which is wrong in any
            // case, so that a key that fits no token is found here and not at the first request.
            jsonwebtoken::crypto::verify("", b"", &key, algorithm(auth.algorithm)).map(|_| key)
        })
        .map_err(|source| KeyError::Invalid {
            path: path.clone(),
            algorithm: auth.algorithm,
            source,
        })
}

fn algorithm(algorithm: config::Algorithm) -> jsonwebtoken::Algorithm {
    match algorithm {
        config::Algorithm::Hs256 => jsonwebtoken::Algorithm::HS256,
        config::Algorithm::EdDsa => jsonwebtoken::Algorithm::EdDSA,
        config::Algorithm::Rs256 => jsonwebtoken::Algorithm::RS256,
        config::Algorithm::Es256 => jsonwebtoken::Algorithm::ES256,
    }
}

fn reason(kind: &ErrorKind) -> Unauthorized {
    match kind {
        ErrorKind::InvalidSignature => Unauthorized::Signature,
        ErrorKind::InvalidAlgorithm => Unauthorized::Algorithm,
        // Among them an `alg` that the library does not know, such as "none".
        _ => Unauthorized::Malformed,
    }
}

/// The whole seconds of a NumericDate (RFC 7519, 2), which may have a fraction.
fn numeric_date(number: &serde_json::Number) -> Result<u64, Unauthorized> {
    // As text, since no floating point is wanted here: "1700000000.5", "1e300", "-1".
    let text = number.to_string();
    let whole = text.split_once('.').map_or(text.as_str(), |(whole, _)| whole);
    if text.contains('e') {
        return Err(Unauthorized::Malformed);
    }
    whole.parse().map_err(|_| Unauthorized::Malformed)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use serde_json::{Value, json};
    use tempfile::NamedTempFile;

    use super::*;
    use crate::config::Secret;

    const NOW_S: u64 = 1_700_000_000;
    const SECRET: &str = "a secret of the tests, and of no one else";

    // Keys and tokens were made once with openssl; the private halves were thrown away. Each token
    // says sub 1001, role admin, exp NOW_S + 3600.
    const ED_PUBLIC: &str = "-----BEGIN PUBLIC KEY-----\n\
    MCowBQYDK2VwAyEAr9NzaL2KM/8SpVxxonOZ4Y2t4SSXAv6Wos4OEn4FHfY=\n\
    -----END PUBLIC KEY-----\n";
    const ED_TOKEN: &str = "eyJhbGciOiJFZERTQSIsInR5cCI6IkpXVCJ9.eyJzdWIiOiIxMDAxIiwiZXhwIjoxNzAwMDAzNjAwLCJyb2x\
    lIjoiYWRtaW4ifQ.ujAq4FJKiwmoLGag0HSiLOm7i4CEyLcdtLtR2lwwpUNV375uxr8XEkoXk0cGgtS53YfI\
    _OsdHclkvR4hJ284Dw";
    const RSA_PUBLIC: &str = "-----BEGIN PUBLIC KEY-----\n\
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
    const EC_PUBLIC: &str = "-----BEGIN PUBLIC KEY-----\n\
    MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAEZ3pVNTOMpkUbzCLAT01xPdIgwrAC\n\
    QHO0GVPRzQ8YFQlMxkxAmt2sZ+N7AN6JGpc2zVvgxpr+PNGwAQ2ejiYBcQ==\n\
    -----END PUBLIC KEY-----\n";
    const EC_TOKEN: &str = "eyJhbGciOiJFUzI1NiIsInR5cCI6IkpXVCJ9.eyJzdWIiOiIxMDAxIiwiZXhwIjoxNzAwMDAzNjAwLCJyb2x\
    lIjoiYWRtaW4ifQ.L6BznvGZ9MNZA2MAfmNaVItl2e--xeAasmh6FExs77vmTxDbUEfoLon0tVA67SKqtm1v\
    fISB2skzT8T39jpmSQ";
    const EC384_PUBLIC: &str = "-----BEGIN PUBLIC KEY-----\n\
    MHYwEAYHKoZIzj0CAQYFK4EEACIDYgAE/4iJjxeYfOzz5wdgBptK+rBlh+9u53Zj\n\
    zZNV6uvDFk8jSLwsSbKdsNLzK1ZHvN1LXrW2mOQfUqfuat5NksFmKjsig6AqPVXX\n\
    OMXz5KsbNPDImBMUBwbxJjqpcdY6C7HX\n\
    -----END PUBLIC KEY-----\n";

    fn shared() -> config::Auth {
        config::Auth { secret: Some(Secret::new(SECRET)), ..config::Auth::default() }
    }

    fn public(algorithm: config::Algorithm, pem: &str) -> (config::Auth, NamedTempFile) {
        let mut file = NamedTempFile::new().expect("a temporary file");
        file.write_all(pem.as_bytes()).expect("written");
        let public_key_file = Some(file.path().to_owned());
        (config::Auth { algorithm, public_key_file, ..config::Auth::default() }, file)
    }

    fn verify(auth: &config::Auth, header: &str) -> Result<Claims, Unauthorized> {
        Verifier::new(auth).expect("a key").verify(Some(header), NOW_S)
    }

    fn token(header: &Header, claims: &Value, secret: &str) -> String {
        let key = EncodingKey::from_secret(secret.as_bytes());
        format!("Bearer {}", jsonwebtoken::encode(header, claims, &key).expect("encoded"))
    }

    /// The verdict on claims that are rightly signed; `exp` and `sub` are good unless given.
    fn judge_with(auth: &config::Auth, claims: &Value) -> Result<Claims, Unauthorized> {
        let mut all = json!({"sub": "1001", "exp": NOW_S + 60});
        for (name, value) in claims.as_object().expect("an object") {
            all[name] = value.clone();
        }
        verify(auth, &token(&Header::default(), &all, SECRET))
    }

    fn judge(claims: &Value) -> Result<Claims, Unauthorized> {
        judge_with(&shared(), claims)
    }

    #[test]
    fn what_is_signed_is_accepted_and_says_who() {
        for (user, role) in [(1, None), (1001, Some(Role::Admin)), (USER_ID_MAX, None)] {
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
        assert!(verifier.known.len() <= REMEMBERED_MAX);
        let long = json!({"sub": "7", "exp": NOW_S + 60, "x": "y".repeat(REMEMBERED_BYTES_MAX)});
        let long = token(&Header::default(), &long, SECRET);
        let before = verifier.known.len();
        assert!(verifier.verify(Some(&long), NOW_S).is_ok());
        assert_eq!(verifier.known.len(), before);
    }

    #[test]
    fn a_token_carries_the_issuer_and_audience_it_will_be_asked_for() {
        let auth = config::Auth {
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
            (config::Algorithm::EdDsa, ED_PUBLIC, ED_TOKEN),
            (config::Algorithm::Rs256, RSA_PUBLIC, RSA_TOKEN),
            (config::Algorithm::Es256, EC_PUBLIC, EC_TOKEN),
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
            (config::Algorithm::EdDsa, ED_PUBLIC),
            (config::Algorithm::Rs256, RSA_PUBLIC),
            (config::Algorithm::Es256, EC_PUBLIC),
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
        let strict = config::Auth { leeway_s: 0, ..shared() };
        assert_eq!(judge_with(&strict, &json!({"exp": NOW_S})), Err(Unauthorized::Expired));
        assert!(judge_with(&strict, &json!({"exp": NOW_S + 1, "nbf": NOW_S})).is_ok());
    }

    #[test]
    fn issuer_and_audience_count_where_configured() {
        let auth = config::Auth {
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
    fn only_the_word_admin_makes_an_admin() {
        let role = |value: Value| judge(&json!({"role": value})).expect("a user").role;
        assert_eq!(role(json!("admin")), Some(Role::Admin));
        for other in [json!("Admin"), json!("admin "), json!(["admin"]), json!(true), json!(null)] {
            assert_eq!(role(other.clone()), None, "{other}");
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
            (config::Algorithm::EdDsa, EC_PUBLIC),
            (config::Algorithm::Rs256, ED_PUBLIC),
            (config::Algorithm::Es256, RSA_PUBLIC),
            (config::Algorithm::Es256, EC384_PUBLIC),
            (config::Algorithm::Es256, "not a key"),
        ] {
            let (auth, _file) = public(algorithm, pem);
            let error = Verifier::new(&auth).err().expect("refused");
            assert!(matches!(error, KeyError::Invalid { .. }), "{error:?}");
            assert!(error.to_string().starts_with("auth.public_key_file = "), "{error}");
        }
        let nowhere = Some(PathBuf::from("/nowhere/key.pem"));
        let auth = config::Auth {
            algorithm: config::Algorithm::EdDsa,
            public_key_file: nowhere,
            ..config::Auth::default()
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
        let (auth, _file) = public(config::Algorithm::EdDsa, ED_PUBLIC);
        assert!(matches!(sign(&auth, 1, None, ttl, NOW_S), Err(SignError::NotShared(_))));
        let none = config::Auth::default();
        assert!(matches!(sign(&none, 1, None, ttl, NOW_S), Err(SignError::NoSecret)));
    }
}
