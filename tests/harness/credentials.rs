//! Tokens, the keys that sign them, and certificates.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime};

use jsonwebtoken::jwk::Jwk;
use jsonwebtoken::{DecodingKey, EncodingKey};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, IsCa, KeyPair, PKCS_ECDSA_P256_SHA256,
    PKCS_ED25519,
};
use rsa::RsaPrivateKey;
use rsa::pkcs1::EncodeRsaPrivateKey;
use rsa::pkcs8::{EncodePublicKey, LineEnding};
use rsa::rand_core::OsRng;
use serde_json::{Value, json};
use ubscore::config::auth::{Auth, DEVELOPMENT_SECRET};
use ubscore::config::secret::Secret;
use ubscore::http::auth::{self, Role};

use super::{Site, said, unique};

/// A certificate and its private key, as files of a test; and its issuer.
pub(crate) struct Certificate {
    pub(crate) certificate: PathBuf,
    pub(crate) key: PathBuf,
    /// The certificate to trust.
    pub(crate) issuer: PathBuf,
}

impl Certificate {
    /// A certificate for loopback, issued by an authority of its own.
    pub(crate) fn issued(site: &Site) -> Certificate {
        let mut authority = CertificateParams::new(Vec::new()).expect("parameters");
        authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        // Of two with one name, a client would try the wrong one.
        let name = format!("authority {}", unique());
        authority.distinguished_name.push(DnType::CommonName, name);
        let authority_key = KeyPair::generate().expect("a pair of keys");
        let issuer_pem = authority.self_signed(&authority_key).expect("a certificate").pem();
        let issuer = rcgen::Issuer::new(authority, authority_key);
        let key = KeyPair::generate().expect("a pair of keys");
        let names = vec!["127.0.0.1".to_owned(), "localhost".to_owned()];
        let leaf = CertificateParams::new(names).expect("names");
        let leaf = leaf.signed_by(&key, &issuer).expect("a certificate").pem();
        Certificate::write(site, &leaf, &key.serialize_pem(), &issuer_pem)
    }

    /// A self-signed certificate for loopback.
    pub(crate) fn self_signed(site: &Site) -> Certificate {
        let names = vec!["127.0.0.1".to_owned(), "localhost".to_owned()];
        let made = rcgen::generate_simple_self_signed(names).expect("a certificate");
        let pem = made.cert.pem();
        Certificate::write(site, &pem, &made.signing_key.serialize_pem(), &pem)
    }

    fn write(site: &Site, certificate: &str, key: &str, issuer: &str) -> Certificate {
        let file = |name, content| {
            let path = site.fresh_path(name);
            fs::write(&path, content).expect("written");
            path
        };
        Certificate {
            certificate: file("certificate", certificate),
            key: file("key", key),
            issuer: file("issuer", issuer),
        }
    }

    /// Replaces these files by the other certificate's content.
    pub(crate) fn replace_by(&self, other: &Certificate) {
        for (path, other) in [(&self.certificate, &other.certificate), (&self.key, &other.key)] {
            replace(path, &fs::read_to_string(other).expect("our own file"));
        }
    }
}

/// Curl's exit code and output, from a server with a certificate of this issuer.
pub(crate) fn curl(issuer: &Path, arguments: &[&str]) -> (i32, String) {
    let output = Command::new("curl")
        .args(["--silent", "--show-error", "--max-time", "60", "--noproxy", "*", "--cacert"])
        .arg(issuer)
        .args(arguments)
        .output()
        .expect("curl");
    let (code, out, err) = said(&output);
    (code, out + err.as_str())
}

/// A pair of keys that sign tokens.
pub(crate) struct Issuer {
    algorithm: jsonwebtoken::Algorithm,
    key: EncodingKey,
    public_pem: String,
}

impl Issuer {
    /// A new pair for EdDSA, ES256 or RS256.
    pub(crate) fn new(algorithm: jsonwebtoken::Algorithm) -> Issuer {
        let pair = |kind| KeyPair::generate_for(kind).expect("a pair of keys");
        let (key, public_pem) = match algorithm {
            jsonwebtoken::Algorithm::EdDSA => {
                let pair = pair(&PKCS_ED25519);
                (EncodingKey::from_ed_der(pair.serialized_der()), pair.public_key_pem())
            }
            jsonwebtoken::Algorithm::ES256 => {
                let pair = pair(&PKCS_ECDSA_P256_SHA256);
                (EncodingKey::from_ec_der(pair.serialized_der()), pair.public_key_pem())
            }
            jsonwebtoken::Algorithm::RS256 => {
                const BITS: usize = 2_048;
                let pair = RsaPrivateKey::new(&mut OsRng, BITS).expect("a pair of keys");
                let private = pair.to_pkcs1_der().expect("DER");
                let public = pair.to_public_key().to_public_key_pem(LineEnding::LF).expect("PEM");
                (EncodingKey::from_rsa_der(private.as_bytes()), public)
            }
            other => panic!("{other:?} is not served"),
        };
        Issuer { algorithm, key, public_pem }
    }

    /// The public key as PEM.
    pub(crate) fn public_pem(&self) -> &str {
        &self.public_pem
    }

    /// The public key as a member of a JWK Set.
    pub(crate) fn jwk(&self, kid: &str) -> Value {
        let pem = self.public_pem.as_bytes();
        let key = match self.algorithm {
            jsonwebtoken::Algorithm::EdDSA => DecodingKey::from_ed_pem(pem),
            jsonwebtoken::Algorithm::ES256 => DecodingKey::from_ec_pem(pem),
            _ => DecodingKey::from_rsa_pem(pem),
        };
        let key = Jwk::from_decoding_key(&key.expect("our own key"), Some(self.algorithm));
        let mut jwk = serde_json::to_value(key.expect("a JWK")).expect("JSON");
        jwk["kid"] = json!(kid);
        jwk
    }

    /// A token, good for an hour.
    pub(crate) fn token(&self, kid: Option<&str>, user: u64) -> String {
        let mut header = jsonwebtoken::Header::new(self.algorithm);
        header.kid = kid.map(str::to_owned);
        let claims = json!({"sub": user.to_string(), "exp": now_s() + 3_600});
        jsonwebtoken::encode(&header, &claims, &self.key).expect("a token")
    }
}

/// Replaces a file by another at once, so that no reader sees half of it.
pub(crate) fn replace(path: &Path, content: &str) {
    let next = path.with_extension("next");
    fs::write(&next, content).expect("written");
    fs::rename(&next, path).expect("renamed");
}

/// A token that the development secret signs, good for an hour.
pub(crate) fn token(user: u64, role: Option<Role>) -> String {
    let secret = Some(Secret::new(DEVELOPMENT_SECRET));
    let auth = Auth { secret, ..Auth::default() };
    auth::sign(&auth, user, role, Duration::from_secs(3_600), now_s()).expect("a token")
}

/// Seconds since the Unix epoch.
pub(crate) fn now_s() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("after 1970").as_secs()
}
