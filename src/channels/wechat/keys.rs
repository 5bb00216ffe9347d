//! The platform's keys: a set, since a change of keys runs for days under both.

use std::collections::BTreeMap;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hyper::HeaderMap;
use jiff::Timestamp;
use ring::signature::{RSA_PKCS1_2048_8192_SHA256, UnparsedPublicKey};
use serde_json::Value;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, SubjectPublicKeyInfoDer};
use x509_cert::Certificate;
use x509_cert::der::Decode;
use x509_cert::der::asn1::ObjectIdentifier;
use x509_cert::spki::SubjectPublicKeyInfoOwned;

use super::signature::{SCHEME, Seal};
use crate::channels::{ChannelKeyError, check_encoding, check_time, header, json};
use crate::recharge::answers::Rejected;

/// The beginning of the serial of a public key without a certificate.
const PUBLIC_KEY: &str = "PUB_KEY_ID_";

/// rsaEncryption of PKCS#1.
const RSA: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.2.840.113549.1.1.1");

/// A key of the platform in the configuration.
#[derive(Clone, Debug)]
pub enum WeChatKey {
    /// A platform certificate, PEM. Its serial and its end stand in it.
    Certificate(String),
    /// A public key, PEM, with its id.
    PublicKey {
        /// `PUB_KEY_ID_…`.
        id: String,
        /// PEM of a SubjectPublicKeyInfo.
        pem: String,
    },
}

/// A key that signs callbacks and answers.
#[derive(Clone)]
pub(super) struct PlatformKey {
    serial: String,
    /// PKCS#1 `RSAPublicKey`, DER.
    key: Vec<u8>,
    from: Timestamp,
    /// `None`: no end.
    until: Option<Timestamp>,
}

/// The keys that are known, by serial.
#[derive(Clone, Default)]
pub(super) struct PlatformKeys {
    by_serial: BTreeMap<String, PlatformKey>,
}

impl PlatformKeys {
    /// The keys of the configuration.
    pub(super) fn new(configured: &[WeChatKey]) -> Result<PlatformKeys, ChannelKeyError> {
        let mut keys = PlatformKeys::default();
        for key in configured {
            let key = match key {
                WeChatKey::Certificate(pem) => PlatformKey::of_certificate(pem.as_bytes())?,
                WeChatKey::PublicKey { id, pem } => PlatformKey::of_public_key(id, pem)?,
            };
            keys.by_serial.insert(key.serial.clone(), key);
        }
        Ok(keys)
    }

    /// These keys and the listed ones, without those that have ended.
    pub(super) fn with(&self, listed: &[PlatformKey], now: Timestamp) -> Arc<PlatformKeys> {
        let mut keys = self.clone();
        keys.by_serial.extend(listed.iter().map(|key| (key.serial.clone(), key.clone())));
        keys.by_serial.retain(|_, key| key.is_valid(now));
        Arc::new(keys)
    }

    /// The serial that answers are wanted under: a public key, else the newest certificate.
    pub(super) fn wanted(&self) -> Option<String> {
        let best = |key: &&PlatformKey| (key.serial.starts_with(PUBLIC_KEY), key.from);
        self.by_serial.values().max_by_key(best).map(|key| key.serial.clone())
    }

    /// The end of the key that is valid for longest; `None`: it has no end, or there is no key.
    pub(super) fn end(&self) -> Option<Timestamp> {
        let ends = self.by_serial.values().map(|key| key.until).collect::<Option<Vec<_>>>();
        ends?.into_iter().max()
    }

    /// Verifies the signature of a callback or an answer over its bytes.
    ///
    /// # Errors
    /// [`Rejected`].
    pub(super) fn verify(
        &self,
        head: &HeaderMap,
        body: &[u8],
        now: Timestamp,
    ) -> Result<(), Rejected> {
        check_encoding(head)?;
        let one = |name: &str| header(head, name)?.ok_or(Rejected::Header);
        let (time, nonce) = (one("wechatpay-timestamp")?, one("wechatpay-nonce")?);
        let (serial, signature) = (one("wechatpay-serial")?, one("wechatpay-signature")?);
        let scheme = header(head, "wechatpay-signature-type")?;
        if scheme.is_some_and(|scheme| scheme != SCHEME) {
            return Err(Rejected::Header);
        }
        check_time(time, now)?;
        let key = self.by_serial.get(&normal(serial)).filter(|key| key.is_valid(now));
        let key = key.ok_or(Rejected::Serial)?;
        // A probe, `WECHATPAY/SIGNTEST/…`, is a signature that does not fit, as any other.
        let signature = STANDARD.decode(signature).map_err(|_| Rejected::Signature)?;
        let text = [format!("{time}\n{nonce}\n").as_bytes(), body, b"\n"].concat();
        let public = UnparsedPublicKey::new(&RSA_PKCS1_2048_8192_SHA256, &key.key);
        public.verify(&text, &signature).map_err(|_| Rejected::Signature)
    }
}

impl PlatformKey {
    fn is_valid(&self, now: Timestamp) -> bool {
        self.until.is_none_or(|until| now <= until)
    }

    fn of_public_key(id: &str, pem: &str) -> Result<PlatformKey, ChannelKeyError> {
        const NAME: &str = "platform_keys";
        let info = SubjectPublicKeyInfoDer::from_pem_slice(pem.as_bytes());
        let info = info.map_err(|_| ChannelKeyError::NotPem(NAME, "a public key"))?;
        let info = SubjectPublicKeyInfoOwned::from_der(info.as_ref());
        let key = info.ok().as_ref().and_then(rsa_key).ok_or(ChannelKeyError::NotRsa(NAME))?;
        Ok(PlatformKey { serial: normal(id), key, from: Timestamp::UNIX_EPOCH, until: None })
    }

    fn of_certificate(pem: &[u8]) -> Result<PlatformKey, ChannelKeyError> {
        const NAME: &str = "platform_keys";
        let der = CertificateDer::from_pem_slice(pem);
        let der = der.map_err(|_| ChannelKeyError::NotPem(NAME, "a certificate"))?;
        let certificate = Certificate::from_der(der.as_ref());
        let certificate = certificate.map_err(|_| ChannelKeyError::NotCertificate(NAME))?;
        let body = certificate.tbs_certificate;
        let key = rsa_key(&body.subject_public_key_info).ok_or(ChannelKeyError::NotRsa(NAME))?;
        let hex = |byte: &u8| format!("{byte:02X}");
        let serial: String = body.serial_number.as_bytes().iter().map(hex).collect();
        let time = |time: x509_cert::time::Time| {
            let second = time.to_unix_duration().as_secs();
            i64::try_from(second).ok().and_then(|second| Timestamp::from_second(second).ok())
        };
        let (from, until) = (time(body.validity.not_before), time(body.validity.not_after));
        let (Some(from), Some(_)) = (from, until) else {
            return Err(ChannelKeyError::NotCertificate(NAME));
        };
        Ok(PlatformKey { serial: normal(&serial), key, from, until })
    }
}

/// The keys in the body of `GET /v3/certificates`, each sealed.
///
/// # Errors
/// [`Rejected`]: the list is not taken, none of it.
pub(super) fn listed(body: &[u8], seal: &Seal) -> Result<Vec<PlatformKey>, Rejected> {
    let value = json::object(body).ok_or(Rejected::Malformed)?;
    let items = value.get("data").and_then(Value::as_array).ok_or(Rejected::Malformed)?;
    let mut keys = Vec::new();
    for item in items {
        let pem = seal.open(item, "/encrypt_certificate")?;
        let key = PlatformKey::of_certificate(&pem).map_err(|_| Rejected::Malformed)?;
        let named = json::text(item, "/serial_no").map(normal);
        if named.as_ref() != Some(&key.serial) {
            return Err(Rejected::Malformed);
        }
        keys.push(key);
    }
    Ok(keys)
}

/// The PKCS#1 key of an RSA SubjectPublicKeyInfo of at least 2048 bits.
fn rsa_key(info: &SubjectPublicKeyInfoOwned) -> Option<Vec<u8>> {
    let key = info.subject_public_key.as_bytes()?;
    // A modulus of 2048 bits has 256 bytes.
    (info.algorithm.oid == RSA && key.len() > 256).then(|| key.to_vec())
}

/// A serial in one form: hexadecimal digits in upper case without leading zeros, or an id.
fn normal(serial: &str) -> String {
    if serial.starts_with(PUBLIC_KEY) {
        return serial.to_owned();
    }
    serial.trim_start_matches('0').to_ascii_uppercase()
}
