//! The merchant's signature, and the seal of the API v3 key.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::rand::SystemRandom;
use ring::signature::{RSA_PKCS1_SHA256, RsaKeyPair};
use serde_json::Value;
use tokio_rustls::rustls::pki_types::PrivateKeyDer;
use tokio_rustls::rustls::pki_types::pem::PemObject;

use super::request_text;
use crate::channels::wire::WireCall;
use crate::channels::{ChannelKeyError, json};
use crate::config::secret::Secret;
use crate::recharge::answers::Rejected;

/// The only scheme of signatures.
pub(super) const SCHEME: &str = "WECHATPAY2-SHA256-RSA2048";

/// The merchant, as the signature of a request names it.
pub(super) struct Merchant {
    mchid: String,
    serial: String,
    key: RsaKeyPair,
}

impl Merchant {
    /// A merchant with the PEM of a private key, PKCS#8 or PKCS#1.
    pub(super) fn new(
        mchid: &str,
        serial: String,
        key: &Secret,
    ) -> Result<Merchant, ChannelKeyError> {
        const NAME: &str = "merchant_key_file";
        let pem = PrivateKeyDer::from_pem_slice(key.expose().as_bytes());
        let key = match pem {
            Ok(PrivateKeyDer::Pkcs8(der)) => RsaKeyPair::from_pkcs8(der.secret_pkcs8_der()),
            Ok(PrivateKeyDer::Pkcs1(der)) => RsaKeyPair::from_der(der.secret_pkcs1_der()),
            _ => return Err(ChannelKeyError::NotPem(NAME, "a private key")),
        };
        let key = key.map_err(|_| ChannelKeyError::NotRsa(NAME))?;
        Ok(Merchant { mchid: mchid.to_owned(), serial, key })
    }

    /// The header `Authorization` of a request.
    pub(super) fn authorization(&self, call: &WireCall, time: u64, nonce: &str) -> String {
        let text = request_text(call, time, nonce);
        let mut signature = vec![0; self.key.public().modulus_len()];
        self.key.sign(&RSA_PKCS1_SHA256, &SystemRandom::new(), &text, &mut signature).expect(
            "the buffer has the length of the modulus, and the kernel gives random numbers",
        );
        let (mchid, serial, signature) = (&self.mchid, &self.serial, STANDARD.encode(signature));
        format!(
            "{SCHEME} mchid=\"{mchid}\",nonce_str=\"{nonce}\",signature=\"{signature}\",\
             timestamp=\"{time}\",serial_no=\"{serial}\""
        )
    }
}

/// AES-256-GCM under the API v3 key.
pub(super) struct Seal {
    key: LessSafeKey,
}

impl Seal {
    pub(super) fn new(key: &Secret) -> Result<Seal, ChannelKeyError> {
        let unbound = UnboundKey::new(&AES_256_GCM, key.expose().as_bytes());
        let unbound = unbound.map_err(|_| ChannelKeyError::Length("api_v3_key_file", 32))?;
        Ok(Seal { key: LessSafeKey::new(unbound) })
    }

    /// Opens the sealed part at a place of an object.
    ///
    /// # Errors
    /// [`Rejected::Sealed`].
    pub(super) fn open(&self, value: &Value, pointer: &str) -> Result<Vec<u8>, Rejected> {
        let part = value.pointer(pointer).ok_or(Rejected::Sealed)?;
        if json::text(part, "/algorithm") != Some("AEAD_AES_256_GCM") {
            return Err(Rejected::Sealed);
        }
        let nonce = json::text(part, "/nonce").ok_or(Rejected::Sealed)?.as_bytes();
        let nonce: [u8; NONCE_LEN] = nonce.try_into().map_err(|_| Rejected::Sealed)?;
        let data = match part.get("associated_data") {
            None | Some(Value::Null) => "",
            Some(Value::String(data)) => data,
            Some(_) => return Err(Rejected::Sealed),
        };
        let text = json::text(part, "/ciphertext").ok_or(Rejected::Sealed)?;
        let mut sealed = STANDARD.decode(text).map_err(|_| Rejected::Sealed)?;
        let nonce = Nonce::assume_unique_for_key(nonce);
        let opened = self.key.open_in_place(nonce, Aad::from(data.as_bytes()), &mut sealed);
        let length = opened.map_err(|_| Rejected::Sealed)?.len();
        sealed.truncate(length);
        Ok(sealed)
    }
}

/// The bytes of a text in hexadecimal digits.
pub(super) fn from_hex(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| char::from(byte).to_digit(16);
    let pair = |pair: &[u8]| {
        let [high, low] = pair else { return None };
        u8::try_from(digit(*high)? << 4 | digit(*low)?).ok()
    };
    text.as_bytes().chunks(2).map(pair).collect()
}
