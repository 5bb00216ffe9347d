//! The listener of payment channels on the real binary: `serve --dev --channel-sim`, with callbacks
//! of the simulator and callbacks that a test signs with its keys.

/// Keys, secrets and certificates that change under load.
mod changed;
/// Messages that are not believed, and others that are broken.
mod forged;
/// The bounds of the listener.
mod limits;
/// Orders that are made, paid and read over HTTP.
mod paid;
/// Starts that are refused, keys that change, and the simulator's process.
mod started;

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use aes_gcm::aead::{Aead, KeyInit, Payload};
use aes_gcm::{Aes256Gcm, Nonce};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use jiff::ToSpan;
use ring::hmac;
use rsa::pkcs8::DecodePrivateKey;
use rsa::sha2::{Digest, Sha256};
use rsa::{Pkcs1v15Sign, RsaPrivateKey};
use serde_json::{Value, json};
use ubscore::channels::wechat::{WeChat, WeChatKey, WeChatSettings};
use ubscore::channels::wire::HttpWire;
use ubscore::channels::{Channel, CreateAsk};
use ubscore::clock::{Clock, SystemClock};
use ubscore::config::secret::Secret;
use ubscore::entropy::SystemEntropy;
use ubscore::recharge::RechargeId;
use ubscore::recharge::answers::Created;

use crate::harness::{PATIENCE, Reply, Server, Site, eventually, send_text};

const USER: u64 = 1001;
const WECHAT: &str = "/callbacks/v1/wechat";
const CARD: &str = "/callbacks/v1/card";
const MCHID: &str = "1900000001";
const APPID: &str = "wx0000000000000001";
/// Of one payment, in minor units.
const FEN: i64 = 10_000;

/// A server with its simulator.
struct Shop {
    site: Site,
    server: Server,
}

/// A callback with its headers.
#[derive(Clone)]
struct Letter {
    head: Vec<(&'static str, String)>,
    body: String,
}

impl Letter {
    fn with(&self, name: &'static str, value: &str) -> Letter {
        let mut other = self.clone();
        other.head.retain(|(known, _)| *known != name);
        other.head.push((name, value.to_owned()));
        other
    }

    fn doubled(&self, name: &str) -> Letter {
        let mut other = self.clone();
        let again: Vec<_> = self.head.iter().filter(|(known, _)| *known == name).cloned().collect();
        other.head.extend(again);
        other
    }

    fn headers(&self) -> String {
        self.head.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect()
    }
}

/// A site with free ports for recharges.
fn site() -> Site {
    on(Site::new())
}

fn on(site: Site) -> Site {
    site.with("UBSCORE__CALLBACKS__LISTEN", "127.0.0.1:0")
}

/// The time of this machine, seconds since 1970.
fn now_s() -> i64 {
    i64::try_from(SystemClock::new().now_s()).expect("before the year 292 billion")
}

/// A merchant number of ours that names no order.
fn stranger(n: u128) -> String {
    RechargeId::generate(SystemClock::new().now_ns(), n).to_string()
}

impl Shop {
    fn open() -> Shop {
        Shop::at(site())
    }

    fn at(site: Site) -> Shop {
        let mut command = site.command();
        command.arg("--channel-sim");
        let server = Server::start(command);
        Shop { site, server }
    }

    fn callbacks(&self) -> SocketAddr {
        self.server.callbacks.expect("recharges are on")
    }

    /// A file of the simulator.
    fn path(&self, name: &str) -> PathBuf {
        self.site.data_dir.join("channel-sim").join(name)
    }

    fn file(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
    }

    /// A request to the simulator that must succeed.
    fn simulate(&self, method: &str, path: &str, body: &Value) -> Value {
        let simulator = self.server.simulator.expect("a simulator");
        let reply = send_text(simulator, method, path, "", &body.to_string()).expect("an answer");
        assert_eq!(reply.status, 200, "{method} {path}: {reply:?}");
        reply.json()
    }

    /// Sends a callback.
    fn post(&self, path: &str, letter: &Letter) -> Reply {
        self.try_post(path, letter).expect("an answer")
    }

    fn try_post(&self, path: &str, letter: &Letter) -> io::Result<Reply> {
        send_text(self.callbacks(), "POST", path, &letter.headers(), &letter.body)
    }

    /// A callback of Stripe, signed by the shop's secret.
    fn card(&self, event: &Value) -> Letter {
        signed_by(&self.file("card_webhook_secret"), now_s(), event)
    }

    /// A callback of WeChat Pay about a transaction, sealed and signed by the simulator's key.
    fn wechat(&self, transaction: &Value) -> Letter {
        self.wechat_at(transaction, now_s())
    }

    fn wechat_at(&self, transaction: &Value, time_s: i64) -> Letter {
        self.wechat_by(1, transaction, time_s)
    }

    /// The same by the n-th key of the simulator.
    fn wechat_by(&self, n: u8, transaction: &Value, time_s: i64) -> Letter {
        let key = self.file("api_v3_key");
        let cipher = Aes256Gcm::new_from_slice(key.as_bytes()).expect("32 bytes");
        let text = transaction.to_string();
        let payload = Payload { msg: text.as_bytes(), aad: b"transaction" };
        let nonce = Nonce::try_from(&b"fdasflkja484"[..]).expect("12 bytes");
        let sealed = cipher.encrypt(&nonce, payload).expect("sealed");
        let body = json!({
            "id": "EV-1", "event_type": "TRANSACTION.SUCCESS", "resource_type": "encrypt-resource",
            "resource": {
                "algorithm": "AEAD_AES_256_GCM", "ciphertext": STANDARD.encode(sealed),
                "associated_data": "transaction", "nonce": "fdasflkja484",
            },
        })
        .to_string();
        let nonce = "c5ac7061fccab6bf3e254dcf98995b8c";
        let text = format!("{time_s}\n{nonce}\n{body}\n");
        let key = self.file(&format!("platform_{n}_key.pem"));
        let key = RsaPrivateKey::from_pkcs8_pem(&key).expect("a key");
        let signature = key.sign(Pkcs1v15Sign::new::<Sha256>(), &Sha256::digest(text));
        let head = vec![
            ("content-type", "application/json".to_owned()),
            ("wechatpay-timestamp", time_s.to_string()),
            ("wechatpay-nonce", nonce.to_owned()),
            ("wechatpay-serial", format!("4A{n:02X}")),
            ("wechatpay-signature", STANDARD.encode(signature.expect("a signature"))),
        ];
        Letter { head, body }
    }

    /// Makes an order at the simulator alone, with callbacks to this server.
    fn order_there(&self, merchant_no: &str) {
        let base = format!("http://{}", self.server.simulator.expect("a simulator"));
        let settings = WeChatSettings {
            mchid: MCHID.to_owned(),
            appid: APPID.to_owned(),
            api_v3_key: Secret::new(self.file("api_v3_key")),
            merchant_serial: self.file("merchant_serial"),
            merchant_key: Secret::new(self.file("merchant_key.pem")),
            platform_keys: vec![WeChatKey::Certificate(self.file("platform_1_certificate.pem"))],
            close_after: Duration::ZERO,
        };
        let wire = Arc::new(HttpWire::new(&base, PATIENCE, PATIENCE).expect("loopback"));
        let (clock, entropy) = (Arc::new(SystemClock::new()), Box::new(SystemEntropy::default()));
        let channel = WeChat::new(&settings, wire, clock, entropy).expect("keys");
        let now = Timestamp::from_second(now_s()).expect("a time");
        let created = channel.create(&CreateAsk {
            merchant_no,
            minor_units: FEN,
            currency: "CNY",
            description: "a recharge",
            proof: "",
            callback_url: &format!("http://{}{WECHAT}", self.callbacks()),
            expires_at: now + 25.minutes(),
            first_tried_at: now,
        });
        assert!(matches!(created, Created::Created { .. }), "{created:?}");
    }

    /// The rows of recharges: orders, payments, movements, external operations of theirs.
    fn rows(&self) -> [String; 4] {
        [
            "SELECT count(*) FROM recharges_tb",
            "SELECT count(*) FROM channel_payments",
            "SELECT count(*) FROM recharge_movements",
            "SELECT count(*) FROM external_operations WHERE idem_key LIKE 'recharge/%'",
        ]
        .map(|statement| self.site.sql_value(statement))
    }

    fn counted(&self, channel: &str, outcome: &str) -> u64 {
        let labels = format!("{{channel=\"{channel}\",outcome=\"{outcome}\"}}");
        self.server.metric(&format!("ubscore_callbacks_total{labels}"))
    }
}

/// A callback of Stripe, signed by a secret.
fn signed_by(secret: &str, time_s: i64, event: &Value) -> Letter {
    let body = event.to_string();
    let key = hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes());
    let tag = hmac::sign(&key, format!("{time_s}.{body}").as_bytes());
    let tag: String = tag.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
    let head = vec![
        ("content-type", "application/json; charset=utf-8".to_owned()),
        ("stripe-signature", format!("t={time_s},v1={tag}")),
    ];
    Letter { head, body }
}

/// The event of a paid intent.
fn succeeded(trade_no: &str, merchant_no: &str) -> Value {
    let metadata = match merchant_no {
        "" => json!({}),
        no => json!({ "ubscore_order": no }),
    };
    json!({
        "id": "evt_1", "object": "event", "livemode": false, "created": now_s(),
        "type": "payment_intent.succeeded",
        "data": {"object": {
            "id": trade_no, "object": "payment_intent", "status": "succeeded", "amount": FEN,
            "amount_received": FEN, "currency": "cny", "created": now_s(), "metadata": metadata,
        }},
    })
}

/// A paid transaction of WeChat Pay.
fn transaction(trade_no: &str, merchant_no: &str) -> Value {
    json!({
        "appid": APPID, "mchid": MCHID, "out_trade_no": merchant_no, "transaction_id": trade_no,
        "trade_state": "SUCCESS", "success_time": "2026-11-27T10:00:00+08:00",
        "amount": {"total": FEN, "payer_total": FEN, "currency": "CNY"},
    })
}

/// Goal: without recharges there is no listener, no row, and no series. Method: a server without
/// them, at a free `callbacks.listen`.
#[test]
fn rch_044_off_there_is_no_listener() {
    let free = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = free.local_addr().expect("an address");
    drop(free);
    let site = Site::new().with("UBSCORE__CALLBACKS__LISTEN", address);
    let server = site.start();
    assert_eq!((server.callbacks, server.simulator), (None, None));
    let refused = std::net::TcpStream::connect(address).expect_err("nothing listens");
    assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
    assert_eq!(site.sql_value("SELECT count(*) FROM channels_tb"), "0");
    assert!(!server.metrics().contains("ubscore_callbacks_total{"), "no series");
}

/// Goal: a payment of another shop on the same account leaves no row and is answered with success,
/// so that the channel does not turn the callbacks off. One of an order of ours that is not here is
/// held, and comes again. Method: both formats; those of WeChat Pay come from the simulator.
#[test]
fn rch_023_over_http_a_foreign_payment_leaves_no_row_and_an_unknown_order_is_held() {
    let shop = Shop::open();
    for foreign in [succeeded("pi_1", ""), succeeded("pi_2", "shop-7")] {
        let reply = shop.post(CARD, &shop.card(&foreign));
        assert_eq!((reply.status, reply.body.as_str()), (204, ""));
    }
    shop.order_there("shop-8");
    shop.simulate("POST", "/pay/shop-8", &json!({}));
    eventually("the callback", || (shop.counted("wechat", "foreign") == 1).then_some(()));
    eventually("its answer", || {
        let open = shop.simulate("GET", "/sim/parcels", &json!({}));
        (open["open"] == json!(0)).then_some(())
    });
    assert_eq!(shop.counted("card", "foreign"), 2);
    assert_eq!(shop.rows(), ["0", "0", "0", "0"]);

    let (of_card, of_wechat) = (stranger(1), stranger(2));
    let letter = shop.card(&succeeded("pi_3", &of_card));
    for _ in 0..2 {
        let reply = shop.post(CARD, &letter);
        assert_eq!(reply.status, 404, "{reply:?}");
        assert!(!reply.body.contains("order"), "no word of why: {reply:?}");
    }
    shop.order_there(&of_wechat);
    shop.simulate("POST", &format!("/pay/{of_wechat}"), &json!({}));
    // It comes again: no answer was a success.
    eventually("a repeat", || (shop.counted("wechat", "missing") >= 2).then_some(()));
    let held = "SELECT channel, disposition, cause, recharge_id IS NULL FROM channel_payments \
                ORDER BY channel";
    let rows = shop.site.sql(held);
    let of = |row: &Vec<String>| (row[0].clone(), row[1].clone(), row[3].clone());
    let want = ["card", "wechat"].map(|name| (name.into(), "10".into(), "t".into()));
    assert_eq!(rows.iter().map(of).collect::<Vec<_>>(), want);
    assert_eq!(shop.rows()[3], "0");
    shop.server.says("recharge_unmatched");
}

/// Goal: a chargeback of ours is booked, or comes again while its payment is not here. One of a
/// foreign payment leaves no row. Method: a dispute of a held payment, and of two that are unknown.
#[test]
fn a_chargeback_of_ours_is_booked_or_comes_again() {
    let shop = Shop::open();
    let taken = |trade_no: &str, kind: &str, metadata: Value| {
        json!({
            "id": "evt_2", "object": "event", "livemode": false, "created": now_s(), "type": kind,
            "data": {"object": {
                "id": "du_1", "payment_intent": trade_no, "amount": FEN, "currency": "cny",
                "metadata": metadata,
            }},
        })
    };
    assert_eq!(shop.post(CARD, &shop.card(&succeeded("pi_1", &stranger(1)))).status, 404);
    let ours = json!({"ubscore_order": stranger(2)});
    for (trade_no, metadata, status) in
        [("pi_1", json!({}), 204), ("pi_2", json!({}), 204), ("pi_3", ours, 404)]
    {
        for kind in ["charge.dispute.funds_withdrawn", "charge.dispute.funds_reinstated"] {
            let reply = shop.post(CARD, &shop.card(&taken(trade_no, kind, metadata.clone())));
            assert_eq!(reply.status, status, "{trade_no} {kind}: {reply:?}");
        }
    }
    shop.server.says("money of a payment that is not here was taken");
    assert_eq!(shop.rows()[1], "1");
    let returns = "SELECT kind, state, channel_return_no FROM recharge_returns ORDER BY kind";
    let of = |kind: &str| vec![kind.to_owned(), "40".to_owned(), "du_1".to_owned()];
    assert_eq!(shop.site.sql(returns), [of("2"), of("3")]);
}

/// Goal: a hint and an event of no interest are answered with success and write nothing.
#[test]
fn rch_009_over_http_hints_write_nothing() {
    let shop = Shop::open();
    let event = |kind: &str, no: &str| {
        let mut event = succeeded("pi_1", no);
        event["type"] = json!(kind);
        event
    };
    for (kind, no) in [
        ("payment_intent.payment_failed", stranger(1)),
        ("payment_intent.canceled", stranger(1)),
        ("charge.refunded", "shop-1".to_owned()),
        ("customer.created", String::new()),
    ] {
        let reply = shop.post(CARD, &shop.card(&event(kind, &no)));
        assert_eq!(reply.status, 204, "{kind}: {reply:?}");
    }
    let mut closed = transaction("4200001", &stranger(1));
    closed["trade_state"] = json!("CLOSED");
    let reply = shop.post(WECHAT, &shop.wechat(&closed));
    assert_eq!(reply.status, 204, "{reply:?}");
    assert_eq!(shop.rows(), ["0", "0", "0", "0"]);
}
