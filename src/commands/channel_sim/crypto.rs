//! The simulator's own crypto, by RustCrypto: the adapters use `ring`.

use aes_gcm::aead::{Aead, KeyInit, Payload};
use aes_gcm::{Aes256Gcm, Nonce};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, Mac};
use rsa::pkcs1::EncodeRsaPublicKey;
use rsa::pkcs8::{EncodePublicKey, LineEnding};
use rsa::sha2::Sha256 as RsaSha256;
use rsa::{Pkcs1v15Sign, RsaPrivateKey, RsaPublicKey};
use sha1::Sha1;
use sha2::{Digest, Sha256};

/// Base64 of an RSA-PKCS1-SHA256 signature.
pub(super) fn sign(key: &RsaPrivateKey, text: &[u8]) -> String {
    let hashed = Sha256::digest(text);
    let signature = key.sign(Pkcs1v15Sign::new::<RsaSha256>(), &hashed);
    STANDARD.encode(signature.expect("a key of 2048 bits"))
}

/// Whether a signature in base64 fits.
pub(super) fn fits(key: &RsaPublicKey, text: &[u8], signature: &str) -> bool {
    let hashed = Sha256::digest(text);
    let bytes = STANDARD.decode(signature).unwrap_or_default();
    key.verify(Pkcs1v15Sign::new::<RsaSha256>(), &hashed, &bytes).is_ok()
}

/// Base64 of AES-256-GCM.
pub(super) fn seal(key: &str, nonce: &str, data: &str, text: &str) -> String {
    let cipher = Aes256Gcm::new_from_slice(key.as_bytes()).expect("32 bytes");
    let nonce = Nonce::try_from(nonce.as_bytes()).expect("12 bytes");
    let payload = Payload { msg: text.as_bytes(), aad: data.as_bytes() };
    STANDARD.encode(cipher.encrypt(&nonce, payload).expect("a short text"))
}

/// HMAC-SHA256 in hexadecimal digits.
pub(super) fn mac(secret: &str, text: &[u8]) -> String {
    let mut mac = <Hmac<Sha256> as KeyInit>::new_from_slice(secret.as_bytes()).expect("any length");
    mac.update(text);
    hex(&mac.finalize().into_bytes())
}

/// SHA-1 in hexadecimal digits.
pub(super) fn digest(text: &[u8]) -> String {
    hex(&Sha1::digest(text))
}

pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// PEM of a public key.
pub(super) fn public_pem(key: &RsaPublicKey) -> String {
    key.to_public_key_pem(LineEnding::LF).expect("a key")
}

/// A self-signed certificate, valid from 2020 to 2049, PEM. Nothing but its key, serial and times
/// is ever read, so it has no extensions.
pub(super) fn certificate_pem(key: &RsaPrivateKey, serial: &str) -> String {
    let public = key.to_public_key();
    let serial: Vec<u8> = (0..serial.len() / 2)
        .map(|at| u8::from_str_radix(&serial[2 * at..2 * at + 2], 16).expect("hexadecimal"))
        .collect();
    let oid = |bytes: &[u8]| der(0x06, bytes);
    let sha256_with_rsa =
        der(0x30, &[oid(&[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 1, 11]), der(0x05, &[])].concat());
    let name = [oid(&[0x55, 4, 3]), der(0x0c, b"ubscore channel-sim")].concat();
    let name = der(0x30, &der(0x31, &der(0x30, &name)));
    let validity = [der(0x17, b"200101000000Z"), der(0x17, b"491231235959Z")].concat();
    let rsa = [oid(&[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 1, 1]), der(0x05, &[])].concat();
    let bits = |bytes: &[u8]| der(0x03, &[&[0], bytes].concat());
    let public = public.to_pkcs1_der().expect("a key");
    let info = der(0x30, &[der(0x30, &rsa), bits(public.as_bytes())].concat());
    let body = [
        der(0xa0, &der(0x02, &[2])),
        der(0x02, &serial),
        sha256_with_rsa.clone(),
        name.clone(),
        der(0x30, &validity),
        name,
        info,
    ];
    let body = der(0x30, &body.concat());
    let signature = STANDARD.decode(sign(key, &body)).expect("our own");
    let whole = der(0x30, &[body, sha256_with_rsa, bits(&signature)].concat());
    let text = STANDARD.encode(whole);
    let lines: Vec<&str> = text
        .as_bytes()
        .chunks(64)
        .map(|line| std::str::from_utf8(line).expect("base64 is ASCII"))
        .collect();
    format!("-----BEGIN CERTIFICATE-----\n{}\n-----END CERTIFICATE-----\n", lines.join("\n"))
}

/// One element of DER.
fn der(tag: u8, content: &[u8]) -> Vec<u8> {
    let length = content.len().to_be_bytes();
    let first = length.iter().position(|byte| *byte != 0).unwrap_or(length.len() - 1);
    let short = &length[first..];
    let mut element = vec![tag];
    if content.len() >= 128 {
        element.push(0x80 | u8::try_from(short.len()).expect("at most 8"));
    }
    element.extend(short);
    element.extend(content);
    element
}
