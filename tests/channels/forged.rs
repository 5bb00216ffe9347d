use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, LazyLock};

use aes_gcm::aead::{Aead, KeyInit, Payload};
use aes_gcm::{Aes256Gcm, Nonce};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hyper::HeaderMap;
use hyper::header::HeaderValue;
use rsa::pkcs8::{EncodePrivateKey, EncodePublicKey, LineEnding};
use rsa::rand_core::OsRng;
use rsa::sha2::{Digest, Sha256};
use rsa::{Pkcs1v15Sign, RsaPrivateKey};
use serde_json::{Value, json};
use tempfile::TempDir;
use ubscore::channels::stripe::{Stripe, StripeSettings};
use ubscore::channels::wechat::{WeChat, WeChatKey};
use ubscore::channels::wire::{Wire, WireCall, WireError, WireStream};
use ubscore::channels::{Channel, OrderAsk, Renewal};
use ubscore::clock::SystemClock;
use ubscore::config::secret::Secret;
use ubscore::recharge::answers::{ChannelDoubt, Queried, Rejected};
use ubscore::recharge::facts::Notice;

use super::{API_V3_KEY, APPID, MCHID, Silent, now, stripe, wechat, wechat_settings};

const ID: &str = "PUB_KEY_ID_0100000000000000000000000000000001";
const NO: &str = "wrc_01JFVQ2X8Z0Y1M3N4P5R6S7T8V";
const SECRET: &str = "whsec_one";

/// The channel's key, and that of a stranger. Made once: a key takes a second.
static KEYS: LazyLock<[RsaPrivateKey; 2]> =
    LazyLock::new(|| [(); 2].map(|()| RsaPrivateKey::new(&mut OsRng, 2048).expect("a key")));

fn private_pem() -> String {
    KEYS[0].to_pkcs8_pem(LineEnding::LF).expect("a key").to_string()
}

fn public_key() -> WeChatKey {
    let pem = KEYS[0].to_public_key().to_public_key_pem(LineEnding::LF).expect("a key");
    WeChatKey::PublicKey { id: ID.to_owned(), pem }
}

pub(super) fn adapter(wire: Arc<dyn Wire>) -> WeChat {
    wechat(&wechat_settings(&private_pem(), vec![public_key()]), wire)
}

/// Base64 of a signature by one of the keys.
fn signed(key: &RsaPrivateKey, text: &[u8]) -> String {
    let signature = key.sign(Pkcs1v15Sign::new::<Sha256>(), &Sha256::digest(text));
    STANDARD.encode(signature.expect("a signature"))
}

/// A message with the headers of its signature, each by name.
#[derive(Clone)]
pub(super) struct Message {
    head: Vec<(&'static str, String)>,
    pub(super) body: Vec<u8>,
}

impl Message {
    /// A message that is rightly signed, `seconds` from now.
    fn signed_at(body: &[u8], seconds: i64, key: &RsaPrivateKey) -> Message {
        let time = now().as_second() + seconds;
        let nonce = "c5ac7061fccab6bf3e254dcf98995b8c";
        let text = [format!("{time}\n{nonce}\n").as_bytes(), body, b"\n"].concat();
        let head = vec![
            ("wechatpay-timestamp", time.to_string()),
            ("wechatpay-nonce", nonce.to_owned()),
            ("wechatpay-serial", ID.to_owned()),
            ("wechatpay-signature", signed(key, &text)),
            ("wechatpay-signature-type", "WECHATPAY2-SHA256-RSA2048".to_owned()),
        ];
        Message { head, body: body.to_vec() }
    }

    pub(super) fn signed(body: &[u8]) -> Message {
        Message::signed_at(body, 0, &KEYS[0])
    }

    fn with(&self, name: &'static str, value: &str) -> Message {
        let mut other = self.clone();
        other.head.retain(|(known, _)| *known != name);
        other.head.push((name, value.to_owned()));
        other
    }

    fn without(&self, name: &str) -> Message {
        let mut other = self.clone();
        other.head.retain(|(known, _)| *known != name);
        other
    }

    fn doubled(&self, name: &str) -> Message {
        let mut other = self.clone();
        let again: Vec<_> = self.head.iter().filter(|(known, _)| *known == name).cloned().collect();
        other.head.extend(again);
        other
    }

    pub(super) fn headers(&self) -> HeaderMap {
        let mut map = HeaderMap::new();
        for (name, value) in &self.head {
            map.append(*name, HeaderValue::from_str(value).expect("a header"));
        }
        map
    }

    fn read(&self, channel: &dyn Channel) -> Result<Vec<Notice>, Rejected> {
        channel.callback(&self.headers(), &self.body, now())
    }
}

/// A paid transaction.
fn transaction() -> Value {
    json!({
        "appid": APPID, "mchid": MCHID, "out_trade_no": NO, "transaction_id": "4200001",
        "trade_state": "SUCCESS", "success_time": "2026-11-27T10:00:00+08:00", "attach": "1.7",
        "amount": {"total": 10_000, "payer_total": 10_000, "currency": "CNY"},
    })
}

/// The body of a callback with a sealed text.
fn sealed(event: &str, text: &str, key: &str) -> Value {
    let cipher = Aes256Gcm::new_from_slice(key.as_bytes()).expect("32 bytes");
    let payload = Payload { msg: text.as_bytes(), aad: b"transaction" };
    let nonce = Nonce::try_from(&b"fdasflkja484"[..]).expect("12 bytes");
    let sealed = cipher.encrypt(&nonce, payload).expect("sealed");
    json!({
        "id": "EV-1", "event_type": event, "resource_type": "encrypt-resource", "new": [1.5],
        "resource": {
            "algorithm": "AEAD_AES_256_GCM", "ciphertext": STANDARD.encode(sealed),
            "associated_data": "transaction", "nonce": "fdasflkja484",
        },
    })
}

fn paid(change: impl FnOnce(&mut Value)) -> Message {
    let mut trade = transaction();
    change(&mut trade);
    raw(&trade.to_string())
}

fn raw(trade: &str) -> Message {
    let body = sealed("TRANSACTION.SUCCESS", trade, API_V3_KEY).to_string();
    Message::signed(body.as_bytes())
}

/// RCH-010: a callback of WeChat with any part forged is rejected, each for its reason.
#[test]
fn rch_010_a_forged_callback_of_wechat_is_rejected() {
    let channel = adapter(Arc::<Silent>::default());
    let right = paid(|_| {});
    let [Notice::Payment(facts)] = &right.read(&channel).expect("believed")[..] else {
        panic!("no payment")
    };
    assert_eq!((&*facts.merchant_no, &*facts.trade_no), (NO, "4200001"));
    assert_eq!((facts.minor_units, facts.total_minor_units), (10_000, 10_000));
    assert_eq!((&*facts.currency, facts.discount), ("CNY", false));
    assert_eq!(facts.proof.as_deref(), Some("1.7"));
    assert!(right.without("wechatpay-signature-type").read(&channel).is_ok());

    let signature = "wechatpay-signature";
    let mut other = right.clone();
    other.body.push(b' ');
    let resealed = |change: &dyn Fn(&mut Value)| {
        let text = transaction().to_string();
        let mut body = sealed("TRANSACTION.SUCCESS", &text, API_V3_KEY);
        change(&mut body);
        Message::signed(body.to_string().as_bytes())
    };
    let cut = |body: &mut Value| {
        let text = body["resource"]["ciphertext"].as_str().expect("text").to_owned();
        let bytes = STANDARD.decode(text).expect("base64");
        body["resource"]["ciphertext"] = json!(STANDARD.encode(&bytes[..bytes.len() - 1]));
    };
    let foreign = sealed("TRANSACTION.SUCCESS", &transaction().to_string(), &"x".repeat(32));
    let at = |seconds: i64| Message::signed_at(&right.body, seconds, &KEYS[0]);
    let cases = [
        ("another body", other, Rejected::Signature),
        ("another key", Message::signed_at(&right.body, 0, &KEYS[1]), Rejected::Signature),
        ("another serial", right.with("wechatpay-serial", "7F"), Rejected::Serial),
        ("an old time", at(-302), Rejected::Time),
        ("a time ahead", at(302), Rejected::Time),
        (
            "a changed time",
            right.with("wechatpay-timestamp", &(now().as_second() - 9).to_string()),
            Rejected::Signature,
        ),
        ("no number", right.with("wechatpay-timestamp", "+1"), Rejected::Header),
        ("another nonce", right.with("wechatpay-nonce", "1"), Rejected::Signature),
        ("a probe", right.with(signature, "WECHATPAY/SIGNTEST/AAAA"), Rejected::Signature),
        ("rubbish", right.with(signature, "!!!"), Rejected::Signature),
        ("an empty signature", right.with(signature, ""), Rejected::Signature),
        ("no signature", right.without(signature), Rejected::Header),
        ("no serial", right.without("wechatpay-serial"), Rejected::Header),
        ("two signatures", right.doubled(signature), Rejected::Header),
        ("two serials", right.doubled("wechatpay-serial"), Rejected::Header),
        ("two nonces", right.doubled("wechatpay-nonce"), Rejected::Header),
        ("two times", right.doubled("wechatpay-timestamp"), Rejected::Header),
        ("another scheme", right.with("wechatpay-signature-type", "HMAC"), Rejected::Header),
        ("an encoding", right.with("content-encoding", "gzip"), Rejected::Encoding),
        ("no JSON", Message::signed(b"x"), Rejected::Malformed),
        ("nothing", Message::signed(b""), Rejected::Malformed),
        (
            "a doubled key",
            Message::signed(br#"{"event_type":"A","event_type":"B"}"#),
            Rejected::Malformed,
        ),
        (
            "another algorithm",
            resealed(&|body| body["resource"]["algorithm"] = json!("AES")),
            Rejected::Sealed,
        ),
        (
            "a nonce of 13",
            resealed(&|body| body["resource"]["nonce"] = json!("fdasflkja4845")),
            Rejected::Sealed,
        ),
        (
            "other data",
            resealed(&|body| body["resource"]["associated_data"] = json!("x")),
            Rejected::Sealed,
        ),
        ("a cut tag", resealed(&cut), Rejected::Sealed),
        (
            "no base64",
            resealed(&|body| body["resource"]["ciphertext"] = json!("?")),
            Rejected::Sealed,
        ),
        ("nothing sealed", resealed(&|body| body["resource"] = json!(1)), Rejected::Sealed),
        ("another seal", Message::signed(foreign.to_string().as_bytes()), Rejected::Sealed),
        (
            "a float",
            raw(&transaction().to_string().replace("10000", "10000.0")),
            Rejected::Malformed,
        ),
        (
            "20 digits",
            raw(&transaction().to_string().replace("10000", "10000000000000000000")),
            Rejected::Malformed,
        ),
        (
            "a doubled amount",
            raw(&transaction().to_string().replacen("{\"", "{\"attach\":\"2\",\"", 1)),
            Rejected::Malformed,
        ),
        ("below zero", paid(|trade| trade["amount"]["total"] = json!(-1)), Rejected::Malformed),
        ("zero", paid(|trade| trade["amount"]["total"] = json!(0)), Rejected::Malformed),
        ("text", paid(|trade| trade["amount"]["total"] = json!("10000")), Rejected::Malformed),
        (
            "no number of it",
            paid(|trade| trade["transaction_id"] = json!(null)),
            Rejected::Malformed,
        ),
    ];
    for (name, message, reason) in cases {
        assert_eq!(message.read(&channel), Err(reason), "{name}");
    }
}

/// RCH-012: a rightly signed callback for another merchant, application or mode is rejected.
#[test]
fn rch_012_a_callback_for_another_merchant_application_or_mode_is_rejected() {
    let channel = adapter(Arc::<Silent>::default());
    let other = |name: &str| paid(|trade| trade[name] = json!("another")).read(&channel);
    assert_eq!(other("mchid"), Err(Rejected::Merchant));
    assert_eq!(other("appid"), Err(Rejected::Application));

    let card = stripe(&[SECRET], "sk_test", Arc::<Silent>::default());
    let event = |change: &dyn Fn(&mut Value)| {
        let mut event = intent_event();
        change(&mut event);
        card_message(&event.to_string(), 0, SECRET).read(&card)
    };
    assert!(event(&|_| {}).is_ok());
    assert_eq!(event(&|event| event["livemode"] = json!(true)), Err(Rejected::Mode));
    assert_eq!(event(&|event| event["account"] = json!("acct_2")), Err(Rejected::Merchant));
    let settings = StripeSettings {
        api_key: Secret::new("sk"),
        webhook_secrets: vec![Secret::new(SECRET)],
        account: Some("acct_1".to_owned()),
        livemode: false,
    };
    let wire = Arc::<Silent>::default();
    let connected = Stripe::new(&settings, wire, Arc::new(SystemClock::new())).expect("secrets");
    for (account, end) in [("acct_1", Ok(1)), ("acct_2", Err(Rejected::Merchant))] {
        let mut event = intent_event();
        event["account"] = json!(account);
        let read = card_message(&event.to_string(), 0, SECRET).read(&connected);
        assert_eq!(read.map(|notices| notices.len()), end, "{account}");
    }
}

/// RCH-009, of the adapters: events that may become untrue are hints, in both formats.
#[test]
fn rch_009_other_events_are_hints() {
    let channel = adapter(Arc::<Silent>::default());
    let hint = Ok(vec![Notice::Hint { merchant_no: NO.to_owned() }]);
    for (event, state) in [
        ("TRANSACTION.SUCCESS", "CLOSED"),
        ("TRANSACTION.CLOSED", "SUCCESS"),
        ("REFUND.SUCCESS", "SUCCESS"),
        ("REFUND.ABNORMAL", "SUCCESS"),
    ] {
        let mut trade = transaction();
        trade["trade_state"] = json!(state);
        let body = sealed(event, &trade.to_string(), API_V3_KEY).to_string();
        assert_eq!(Message::signed(body.as_bytes()).read(&channel), hint, "{event} {state}");
    }
    let card = stripe(&[SECRET], "sk_test", Arc::<Silent>::default());
    for kind in ["payment_intent.canceled", "payment_intent.payment_failed", "charge.refunded"] {
        let mut event = intent_event();
        event["type"] = json!(kind);
        assert_eq!(card_message(&event.to_string(), 0, SECRET).read(&card), hint, "{kind}");
        event["data"]["object"]["metadata"] = json!({});
        let read = card_message(&event.to_string(), 0, SECRET).read(&card);
        assert_eq!(read, Ok(vec![Notice::Nothing]), "{kind}");
    }
}

fn intent_event() -> Value {
    json!({
        "id": "evt_1", "created": 1_795_000_000, "livemode": false,
        "type": "payment_intent.succeeded",
        "data": {"object": {
            "id": "pi_1", "status": "succeeded", "amount": 500, "amount_received": 500,
            "currency": "eur", "created": 1_794_999_000, "livemode": false,
            "metadata": {"ubscore_order": NO, "ubscore": "1.7"},
        }},
    })
}

/// A message of Stripe, signed by another implementation than the adapter's.
fn card_message(body: &str, seconds: i64, secret: &str) -> Message {
    use hmac::Mac;
    let time = now().as_second() + seconds;
    let mut mac = <hmac::Hmac<sha2::Sha256> as hmac::KeyInit>::new_from_slice(secret.as_bytes())
        .expect("any length");
    mac.update(format!("{time}.{body}").as_bytes());
    let hex: String =
        mac.finalize().into_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
    let head = vec![("stripe-signature", format!("t={time},v1={hex}"))];
    Message { head, body: body.as_bytes().to_vec() }
}

/// RCH-010: a callback of Stripe with any part forged is rejected, each for its reason.
#[test]
fn rch_010_a_forged_callback_of_stripe_is_rejected() {
    let channel = stripe(&[SECRET, "whsec_before"], "sk_test", Arc::<Silent>::default());
    let text = intent_event().to_string();
    let right = card_message(&text, 0, SECRET);
    let [Notice::Payment(facts)] = &right.read(&channel).expect("believed")[..] else {
        panic!("no payment")
    };
    assert_eq!((&*facts.merchant_no, &*facts.trade_no, facts.minor_units), (NO, "pi_1", 500));
    assert_eq!((&*facts.currency, facts.proof.as_deref()), ("EUR", Some("1.7")));
    // During a change of secrets both are valid.
    assert!(card_message(&text, 0, "whsec_before").read(&channel).is_ok());

    let name = "stripe-signature";
    let header = right.head[0].1.clone();
    let mut other = right.clone();
    other.body.push(b' ');
    let changed = |from: &str, to: &str| card_message(&text.replace(from, to), 0, SECRET);
    let cases = [
        ("another body", other, Rejected::Signature),
        ("another secret", card_message(&text, 0, "whsec_x"), Rejected::Signature),
        ("an old time", card_message(&text, -302, SECRET), Rejected::Time),
        ("a time ahead", card_message(&text, 302, SECRET), Rejected::Time),
        ("two headers", right.doubled(name), Rejected::Header),
        ("no header", right.without(name), Rejected::Header),
        ("two times", right.with(name, &format!("t=1,{header}")), Rejected::Header),
        ("no v1", right.with(name, &header.replace("v1=", "v0=")), Rejected::Header),
        ("rubbish", right.with(name, "rubbish"), Rejected::Header),
        ("an encoding", right.with("content-encoding", "gzip"), Rejected::Encoding),
        ("no JSON", card_message("", 0, SECRET), Rejected::Malformed),
        ("a doubled key", changed("\"type\":", "\"type\":1,\"type\":"), Rejected::Malformed),
        (
            "a float",
            changed("\"amount_received\":500", "\"amount_received\":500.0"),
            Rejected::Malformed,
        ),
        (
            "below zero",
            changed("\"amount_received\":500", "\"amount_received\":-5"),
            Rejected::Malformed,
        ),
        (
            "20 digits",
            changed("\"amount_received\":500", "\"amount_received\":50000000000000000000"),
            Rejected::Malformed,
        ),
    ];
    for (name, message, reason) in cases {
        assert_eq!(message.read(&channel), Err(reason), "{name}");
    }
}

/// Runs openssl.
fn openssl(directory: &Path, arguments: &[&str]) {
    let output = Command::new("openssl").args(arguments).current_dir(directory).output();
    let output = output.expect("openssl");
    assert!(output.status.success(), "{arguments:?}: {output:?}");
}

/// RCH-011: the adapter accepts signatures of openssl, and openssl those of the adapter.
#[test]
fn rch_011_openssl_and_the_adapter_accept_each_other() {
    let directory = TempDir::new().expect("a directory");
    let path = directory.path();
    let file = |name: &str| fs::read_to_string(path.join(name)).expect("written");
    let key = ["genpkey", "-algorithm", "RSA", "-pkeyopt", "rsa_keygen_bits:2048", "-out", "k.pem"];
    openssl(path, &key);
    openssl(path, &["pkey", "-in", "k.pem", "-pubout", "-out", "p.pem"]);
    let certificate = [
        "req",
        "-x509",
        "-new",
        "-key",
        "k.pem",
        "-subj",
        "/CN=platform",
        "-days",
        "9",
        "-set_serial",
        "0x00F1A2",
        "-out",
        "c.pem",
    ];
    openssl(path, &certificate);
    let wire = Arc::<Silent>::default();
    let keys = vec![WeChatKey::Certificate(file("c.pem"))];
    let channel =
        wechat(&wechat_settings(&file("k.pem"), keys), Arc::clone(&wire) as Arc<dyn Wire>);

    let right = paid(|_| {});
    let time = now().as_second();
    let text = [format!("{time}\nn\n").as_bytes(), &right.body, b"\n"].concat();
    fs::write(path.join("text"), text).expect("written");
    openssl(path, &["dgst", "-sha256", "-sign", "k.pem", "-out", "signature", "text"]);
    let signature = STANDARD.encode(fs::read(path.join("signature")).expect("written"));
    let message = right
        .with("wechatpay-timestamp", &time.to_string())
        .with("wechatpay-nonce", "n")
        .with("wechatpay-serial", "f1a2")
        .with("wechatpay-signature", &signature);
    assert!(message.read(&channel).is_ok());

    let end = channel.query(&OrderAsk { merchant_no: NO, references: &[] });
    assert_eq!(end, Queried::Unknown(ChannelDoubt::Unanswered("silent".to_owned())));
    let calls = wire.0.lock().expect("no panic").clone();
    let header = |name: &str| {
        let found = calls[0].headers.iter().find(|(known, _)| *known == name);
        found.map(|(_, value)| value.clone()).unwrap_or_default()
    };
    assert_eq!(header("wechatpay-serial"), "F1A2");
    let authorization = header("authorization");
    let field = |name: &str| {
        let rest = authorization.split(&format!("{name}=\"")).nth(1).expect("a field");
        rest.split('"').next().expect("its end").to_owned()
    };
    let (target, time, nonce) = (&calls[0].target, field("timestamp"), field("nonce_str"));
    assert_eq!(*target, format!("/v3/pay/transactions/out-trade-no/{NO}?mchid={MCHID}"));
    fs::write(path.join("text"), format!("GET\n{target}\n{time}\n{nonce}\n\n")).expect("written");
    let signature = STANDARD.decode(field("signature")).expect("base64");
    fs::write(path.join("signature"), signature).expect("written");
    openssl(path, &["dgst", "-sha256", "-verify", "p.pem", "-signature", "signature", "text"]);
}

/// A network with one answer for everything.
struct Fixed(u16, Message);

impl Wire for Fixed {
    fn open(&self, _: &WireCall) -> Result<WireStream, WireError> {
        let body = Box::new(std::io::Cursor::new(self.1.body.clone()));
        Ok(WireStream { status: self.0, head: self.1.headers(), body })
    }

    fn own_target(&self, _: &str) -> Option<String> {
        None
    }
}

/// RCH-014: an answer to a query that is not signed, or signed by a stranger, or is about another
/// order, pays nothing.
#[test]
fn rch_014_an_unsigned_answer_pays_nothing() {
    let body = transaction().to_string().into_bytes();
    let order = OrderAsk { merchant_no: NO, references: &[] };
    let ask =
        |status: u16, message: Message| adapter(Arc::new(Fixed(status, message))).query(&order);
    let right = Message::signed(&body);
    assert!(matches!(ask(200, right.clone()), Queried::Paid(_)));
    let bare = Message { head: Vec::new(), body: body.clone() };
    let strange = Message::signed_at(&body, 0, &KEYS[1]);
    let mut changed = right.clone();
    changed.body.push(b' ');
    for (message, reason) in [
        (bare, Rejected::Header),
        (strange, Rejected::Signature),
        (changed, Rejected::Signature),
        (Message::signed_at(&body, -302, &KEYS[0]), Rejected::Time),
        (right.with("wechatpay-serial", "7F"), Rejected::Serial),
    ] {
        assert_eq!(ask(200, message), Queried::Unknown(ChannelDoubt::Unsigned(reason)));
    }
    for (field, value) in [("out_trade_no", "wrc_other"), ("mchid", "1"), ("appid", "1")] {
        let mut other = transaction();
        other[field] = json!(value);
        let end = ask(200, Message::signed(other.to_string().as_bytes()));
        assert_eq!(end, Queried::Unknown(ChannelDoubt::Unreadable), "{field}");
    }
    assert_eq!(ask(401, right.clone()), Queried::Unknown(ChannelDoubt::OwnKey));
    for status in [429, 500, 503] {
        let end = ask(status, right.clone());
        assert_eq!(end, Queried::Unknown(ChannelDoubt::Status(status)));
    }
    assert_eq!(ask(302, right), Queried::Unknown(ChannelDoubt::Status(302)));
    let absent = Message::signed(br#"{"code":"ORDER_NOT_EXIST","message":"x"}"#);
    assert_eq!(ask(404, absent.clone()), Queried::Absent);
    let unsigned = Message { head: Vec::new(), body: absent.body };
    assert_eq!(ask(404, unsigned), Queried::Unknown(ChannelDoubt::Unsigned(Rejected::Header)));
}

/// RCH-013: an unknown serial costs one fetch a minute, and none inside a callback.
#[test]
fn rch_013_an_unknown_serial_costs_one_fetch_a_minute() {
    let wire = Arc::<Silent>::default();
    let channel = adapter(Arc::clone(&wire) as Arc<dyn Wire>);
    let unknown = paid(|_| {}).with("wechatpay-serial", "7F");
    for _ in 0..100 {
        assert_eq!(unknown.read(&channel), Err(Rejected::Serial));
    }
    assert_eq!(wire.0.lock().expect("no panic").len(), 0);
    assert!(matches!(channel.renew(), Renewal::Unknown(_)));
    for _ in 0..100 {
        assert_eq!(channel.renew(), Renewal::TooSoon);
    }
    assert_eq!(wire.0.lock().expect("no panic").len(), 1);
    // A merchant with a public key of the platform has no list, which is no error.
    let refused = Message { head: Vec::new(), body: Vec::new() };
    assert_eq!(adapter(Arc::new(Fixed(403, refused))).renew(), Renewal::NoList);
    // A list that is sealed under another key is not taken, although it is rightly signed.
    let list = json!({"data": [{"serial_no": "7F", "encrypt_certificate":
        sealed("x", "certificate", &"x".repeat(32))["resource"]}]});
    let list = Message::signed(list.to_string().as_bytes());
    let end = adapter(Arc::new(Fixed(200, list))).renew();
    assert_eq!(end, Renewal::Unknown(ChannelDoubt::Unsigned(Rejected::Sealed)));
}
