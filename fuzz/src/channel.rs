use std::sync::{Arc, LazyLock};

use aes_gcm::aead::{Aead, KeyInit, Payload};
use aes_gcm::{Aes256Gcm, Nonce};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hyper::HeaderMap;
use jiff::Timestamp;
use rsa::pkcs8::{EncodePrivateKey, EncodePublicKey, LineEnding};
use rsa::rand_core::OsRng;
use rsa::sha2::{Digest, Sha256};
use rsa::{Pkcs1v15Sign, RsaPrivateKey};
use ubscore::channels::Channel;
use ubscore::channels::stripe::signature::{Signing, parse};
use ubscore::channels::stripe::{Stripe, StripeSettings};
use ubscore::channels::wechat::{WeChat, WeChatKey, WeChatSettings, read_bill};
use ubscore::channels::wire::{Wire, WireCall, WireError, WireStream};
use ubscore::clock::SystemClock;
use ubscore::config::secret::Secret;
use ubscore::entropy::SystemEntropy;
use ubscore::recharge::answers::{BillKind, Rejected};
use ubscore::recharge::facts::Notice;

const ID: &str = "PUB_KEY_ID_01";
const SEAL: &str = "0123456789abcdef0123456789abcdef";
const SECRET: &str = "whsec_fuzz";
const NONCE: &str = "fdasflkja484";
const NOW_S: i64 = 1_795_000_000;

/// The platform's key, made at the first input.
static KEY: LazyLock<RsaPrivateKey> =
    LazyLock::new(|| RsaPrivateKey::new(&mut OsRng, 2048).expect("a key"));

static WECHAT: LazyLock<WeChat> = LazyLock::new(|| {
    let pem = KEY.to_pkcs8_pem(LineEnding::LF).expect("a key").to_string();
    let public = KEY.to_public_key().to_public_key_pem(LineEnding::LF).expect("a key");
    let settings = WeChatSettings {
        mchid: "1900".to_owned(),
        appid: "wxa".to_owned(),
        api_v3_key: Secret::new(SEAL),
        merchant_serial: "7F".to_owned(),
        merchant_key: Secret::new(pem),
        platform_keys: vec![WeChatKey::PublicKey { id: ID.to_owned(), pem: public }],
        close_after: std::time::Duration::ZERO,
    };
    let (clock, entropy) = (Arc::new(SystemClock::new()), Box::new(SystemEntropy::default()));
    WeChat::new(&settings, Arc::new(Nowhere), clock, entropy).expect("keys")
});

static STRIPE: LazyLock<Stripe> = LazyLock::new(|| {
    let settings = StripeSettings {
        api_key: Secret::new("sk_test"),
        webhook_secrets: vec![Secret::new(SECRET)],
        account: None,
        livemode: false,
    };
    Stripe::new(&settings, Arc::new(Nowhere), Arc::new(SystemClock::new())).expect("a secret")
});

/// A callback uses no network.
struct Nowhere;

impl Wire for Nowhere {
    fn open(&self, _: &WireCall) -> Result<WireStream, WireError> {
        panic!("a callback is pure")
    }

    fn own_target(&self, _: &str) -> Option<String> {
        panic!("a callback is pure")
    }
}

fn now() -> Timestamp {
    Timestamp::from_second(NOW_S).expect("a time")
}

/// A callback of WeChat Pay. A first byte of 0: the rest is the body; else the rest is the text
/// that is sealed. The signature fits.
pub fn wechat(bytes: &[u8]) {
    let Some((way, text)) = bytes.split_first() else { return };
    let body = if *way == 0 { text.to_vec() } else { sealed(text) };
    let signed = [format!("{NOW_S}\nn\n").as_bytes(), &body, b"\n"].concat();
    let signature = KEY.sign(Pkcs1v15Sign::new::<Sha256>(), &Sha256::digest(signed));
    let mut head = HeaderMap::new();
    let signature = STANDARD.encode(signature.expect("a signature"));
    for (name, value) in [
        ("wechatpay-timestamp", NOW_S.to_string()),
        ("wechatpay-nonce", "n".to_owned()),
        ("wechatpay-serial", ID.to_owned()),
        ("wechatpay-signature", signature),
    ] {
        head.insert(name, value.parse().expect("a header"));
    }
    let read = WECHAT.callback(&head, &body, now());
    assert_ne!(read, Err(Rejected::Signature));
    check_notices(read);
    head.insert("wechatpay-serial", "PUB_KEY_ID_02".parse().expect("a header"));
    assert_eq!(WECHAT.callback(&head, &body, now()), Err(Rejected::Serial));
}

/// The body of an event with a sealed text.
fn sealed(text: &[u8]) -> Vec<u8> {
    let cipher = Aes256Gcm::new_from_slice(SEAL.as_bytes()).expect("32 bytes");
    let nonce = Nonce::try_from(NONCE.as_bytes()).expect("12 bytes");
    let sealed = cipher.encrypt(&nonce, Payload { msg: text, aad: b"" }).expect("sealed");
    let sealed = STANDARD.encode(sealed);
    format!(
        r#"{{"event_type":"TRANSACTION.SUCCESS","resource":{{"algorithm":"AEAD_AES_256_GCM","nonce":"{NONCE}","ciphertext":"{sealed}"}}}}"#
    )
    .into_bytes()
}

/// A callback of Stripe. The bytes are its body, and the signature fits.
pub fn stripe(bytes: &[u8]) {
    use hmac::Mac;
    let mut mac = <hmac::Hmac<sha2::Sha256> as hmac::KeyInit>::new_from_slice(SECRET.as_bytes())
        .expect("any length");
    mac.update(format!("{NOW_S}.").as_bytes());
    mac.update(bytes);
    let tag: String =
        mac.finalize().into_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
    let mut head = HeaderMap::new();
    let value = format!("t={NOW_S},v1={tag}");
    head.insert("stripe-signature", value.parse().expect("a header"));
    let read = STRIPE.callback(&head, bytes, now());
    assert_ne!(read, Err(Rejected::Signature));
    check_notices(read);
}

/// The promises of every believed callback.
fn check_notices(read: Result<Vec<Notice>, Rejected>) {
    for notice in read.into_iter().flatten() {
        match notice {
            Notice::Payment(facts) => {
                assert!(facts.minor_units > 0, "{facts:?}");
                assert!(facts.total_minor_units > 0, "{facts:?}");
                assert!(!facts.trade_no.is_empty(), "{facts:?}");
                let currency = facts.currency.as_bytes();
                assert!(currency.len() == 3 && currency.iter().all(u8::is_ascii_uppercase));
            }
            Notice::Taken(taking) | Notice::GivenBack(taking) => {
                assert!(taking.minor_units > 0 && !taking.number.is_empty(), "{taking:?}");
            }
            Notice::Hint { .. } | Notice::Nothing => {}
        }
    }
}

/// The header of Stripe's signature.
pub fn stripe_header(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let secrets = [Secret::new(SECRET)];
    let signing = Signing::new(&secrets).expect("a secret");
    let end = signing.verify(text, b"a body", now());
    assert!(end.is_err(), "a signature without its secret");
    match parse(text) {
        Some(header) => {
            assert!((1..=16).contains(&header.signatures.len()), "{header:?}");
            assert!(text.contains(header.time), "{header:?}");
        }
        None => assert_eq!(end, Err(Rejected::Header)),
    }
}

/// A bill of WeChat Pay.
pub fn bill(bytes: &[u8]) {
    let mut lines = Vec::new();
    let Ok(sums) = read_bill(bytes, &mut |line| lines.push(line)) else { return };
    assert_eq!(sums.lines, lines.len() as u64);
    let sum = |kind: BillKind| -> i64 {
        lines.iter().filter(|line| line.kind == kind).map(|line| line.minor_units).sum()
    };
    assert_eq!((sum(BillKind::Paid), sum(BillKind::Returned)), (sums.paid, sums.returned));
    assert!(lines.iter().all(|line| line.minor_units >= 0 && !line.trade_no.is_empty()));
}
