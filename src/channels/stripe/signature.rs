//! The signature of a callback: `t=…,v1=…`, HMAC-SHA256 over the time and the body.

use std::hint::black_box;

use jiff::Timestamp;
use ring::hmac;

use crate::channels::{ChannelKeyError, check_time};
use crate::config::secret::Secret;
use crate::recharge::answers::Rejected;

/// The longest header, bytes.
const HEADER_BYTES_MAX: usize = 4_096;

/// The most signatures in one header.
const SIGNATURES_MAX: usize = 16;

/// The secrets that sign callbacks: one, or two during a change.
pub struct Signing {
    keys: Vec<hmac::Key>,
}

/// The header, taken apart.
#[derive(Debug, PartialEq, Eq)]
pub struct StripeSignature<'a> {
    /// The time, as it stands there: it is a part of the signed text.
    pub time: &'a str,
    /// Every `v1`.
    pub signatures: Vec<[u8; 32]>,
}

impl Signing {
    /// The keys of one or two secrets.
    ///
    /// # Errors
    /// [`ChannelKeyError::Empty`]: there is none, or one is empty.
    pub fn new(secrets: &[Secret]) -> Result<Signing, ChannelKeyError> {
        if secrets.is_empty() || secrets.iter().any(|secret| secret.expose().is_empty()) {
            return Err(ChannelKeyError::Empty("webhook_secret_file"));
        }
        let key = |secret: &Secret| hmac::Key::new(hmac::HMAC_SHA256, secret.expose().as_bytes());
        Ok(Signing { keys: secrets.iter().map(key).collect() })
    }

    /// Verifies the header of a callback over its raw body.
    ///
    /// # Errors
    /// [`Rejected`].
    pub fn verify(&self, header: &str, body: &[u8], now: Timestamp) -> Result<(), Rejected> {
        let StripeSignature { time, signatures } = parse(header).ok_or(Rejected::Header)?;
        check_time(time, now)?;
        let text = [time.as_bytes(), b".", body].concat();
        let mut fits = false;
        for key in &self.keys {
            // Once a key: the body is long, and a forger may send many signatures.
            let tag = hmac::sign(key, &text);
            for signature in &signatures {
                fits |= is_same(tag.as_ref(), signature);
            }
        }
        if fits { Ok(()) } else { Err(Rejected::Signature) }
    }
}

/// Takes a header apart: exactly one `t`, and at least one `v1`. Other schemes are passed over.
pub fn parse(header: &str) -> Option<StripeSignature<'_>> {
    if header.len() > HEADER_BYTES_MAX {
        return None;
    }
    let (mut time, mut signatures) = (None, Vec::new());
    for part in header.split(',') {
        match part.trim().split_once('=')? {
            ("t", value) if time.is_none() => time = Some(value),
            ("t", _) => return None,
            ("v1", value) => signatures.push(digest(value)?),
            _ => {}
        }
    }
    let few = (1..=SIGNATURES_MAX).contains(&signatures.len());
    time.filter(|_| few).map(|time| StripeSignature { time, signatures })
}

/// Whether two tags are the same, in the same time for every wrong one.
fn is_same(tag: &[u8], signature: &[u8; 32]) -> bool {
    let pairs = tag.iter().zip(signature);
    // `black_box` keeps the compiler from an end at the first byte that differs.
    let apart = pairs.fold(0, |apart, (one, other)| black_box(apart | (one ^ other)));
    tag.len() == signature.len() && apart == 0
}

/// 32 bytes in hexadecimal digits.
fn digest(text: &str) -> Option<[u8; 32]> {
    let digit = |byte: u8| char::from(byte).to_digit(16);
    let mut bytes = [0; 32];
    let pairs = text.as_bytes().chunks_exact(2);
    if text.len() != 64 {
        return None;
    }
    for (byte, pair) in bytes.iter_mut().zip(pairs) {
        let [high, low] = pair else { return None };
        *byte = u8::try_from(digit(*high)? << 4 | digit(*low)?).ok()?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_has_one_time_and_a_signature() {
        let v1 = "ab".repeat(32);
        let read = |text: &str| parse(text).map(|header| header.signatures.len());
        assert_eq!(read(&format!("t=1,v1={v1}")), Some(1));
        assert_eq!(read(&format!("v0={v1},v1={v1}, v1={v1},t=1")), Some(2));
        for bad in [
            String::new(),
            "t=1".to_owned(),
            format!("v1={v1}"),
            format!("t=1,t=1,v1={v1}"),
            format!("t=1,v0={v1}"),
            format!("t=1,v1={v1}0"),
            format!("t=1,v1={}", "zz".repeat(32)),
            format!("t=1,v1={v1},x"),
            format!("t=1{}", format!(",v1={v1}").repeat(17)),
            format!("t=1,v1={v1},{}=1", "x".repeat(5_000)),
        ] {
            assert_eq!(read(&bad), None, "{bad}");
        }
    }

    /// Each byte of a tag counts.
    #[test]
    fn tags_that_differ_in_one_bit_are_not_the_same() {
        let tag: [u8; 32] = std::array::from_fn(|place| u8::try_from(place).expect("below 32"));
        assert!(is_same(&tag, &tag));
        for bit in 0..256 {
            let mut other = tag;
            other[bit / 8] ^= 1 << (bit % 8);
            assert!(!is_same(&tag, &other), "{bit}");
        }
        assert!(!is_same(&tag[..31], &tag) && !is_same(&[], &tag));
    }

    /// Two secrets are valid during a change, and a third one is not.
    #[test]
    fn a_signature_of_either_secret_fits() {
        let secrets = ["new", "old"].map(Secret::new);
        let signing = Signing::new(&secrets).expect("secrets");
        let now = Timestamp::from_second(1_000_000).expect("a time");
        let signed = |secret: &str, time: i64, body: &str| {
            let key = hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes());
            let tag = hmac::sign(&key, format!("{time}.{body}").as_bytes());
            let hex: String = tag.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
            format!("t={time},v1={hex}")
        };
        for good in ["new", "old"] {
            for time in [1_000_000, 1_000_300, 999_700] {
                assert_eq!(signing.verify(&signed(good, time, "{}"), b"{}", now), Ok(()), "{time}");
            }
        }
        let check = |header: &str| signing.verify(header, b"{}", now);
        assert_eq!(check(&signed("other", 1_000_000, "{}")), Err(Rejected::Signature));
        assert_eq!(check(&signed("new", 1_000_000, "{ }")), Err(Rejected::Signature));
        assert_eq!(check(&signed("new", 1_000_301, "{}")), Err(Rejected::Time));
        assert_eq!(check(&signed("new", 999_699, "{}")), Err(Rejected::Time));
        // The right one may stand anywhere among the most that a header has.
        let fill = format!(",v1={}", "ab".repeat(32));
        for secret in ["new", "old"] {
            let right = signed(secret, 1_000_000, "{}");
            let (time, v1) = right.split_once(',').expect("a time and a signature");
            for place in 0..SIGNATURES_MAX {
                let (front, back) = (fill.repeat(place), fill.repeat(SIGNATURES_MAX - 1 - place));
                assert_eq!(check(&format!("{time}{front},{v1}{back}")), Ok(()), "{place}");
            }
            assert_eq!(check(&format!("{time}{}", fill.repeat(16))), Err(Rejected::Signature));
        }
        assert!(Signing::new(&[]).is_err() && Signing::new(&[Secret::new("")]).is_err());
    }
}
