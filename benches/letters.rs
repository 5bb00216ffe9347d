//! Paid orders and their callbacks: rows of orders, and letters as a channel signs them.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use aes_gcm::aead::{Aead, KeyInit, Payload};
use aes_gcm::{Aes256Gcm, Nonce};
use anyhow::Context;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use ring::rand::SystemRandom;
use ring::signature::{RSA_PKCS1_SHA256, RsaKeyPair};
use ring::{hmac, signature};
use serde_json::{Value, json};
use ubscore::clock::{Clock, SystemClock};
use ubscore::recharge::RechargeId;

/// Minor units of each payment, and its smallest units: a fen is one in development.
pub(crate) const UNITS: i64 = 10_000;
/// The number of `CNY` in development.
const ASSET: i32 = 6;
/// The serial of the simulator's first platform key.
const SERIAL: &str = "4A01";
const NONCE: &str = "c5ac7061fccab6bf3e254dcf98995b8c";

/// A callback, ready to be sent.
#[derive(Clone)]
pub(crate) struct Letter {
    pub(crate) channel: &'static str,
    pub(crate) head: Vec<(&'static str, String)>,
    pub(crate) body: Bytes,
}

/// The format of a channel.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Format {
    /// HMAC.
    Card,
    /// RSA and AES-GCM.
    WeChat,
}

impl Format {
    fn channel(self) -> &'static str {
        match self {
            Format::Card => "card",
            Format::WeChat => "wechat",
        }
    }
}

/// The keys of the simulator below a data directory.
pub(crate) struct Pen {
    directory: PathBuf,
    rsa: RsaKeyPair,
    made: u64,
}

impl Pen {
    pub(crate) fn open(data_dir: &Path) -> anyhow::Result<Pen> {
        let directory = data_dir.join("channel-sim");
        let pem = fs::read_to_string(directory.join("platform_1_key.pem"))?;
        let lines: String = pem.lines().filter(|line| !line.starts_with("-----")).collect();
        let der = STANDARD.decode(lines).context("a key in PEM")?;
        let rsa = RsaKeyPair::from_pkcs8(&der).map_err(|error| anyhow::anyhow!("{error}"))?;
        Ok(Pen { directory, rsa, made: 0 })
    }

    /// Makes orders that are PAYING, one for each of `users`, and the callback of each.
    pub(crate) async fn orders(
        &mut self,
        postgres: &tokio_postgres::Client,
        format: Format,
        users: &[i64],
    ) -> anyhow::Result<Vec<Letter>> {
        let clock = SystemClock::new();
        let mut ids = Vec::with_capacity(users.len());
        for _ in users {
            self.made += 1;
            ids.push(RechargeId::generate(clock.now_ns(), u128::from(self.made)));
        }
        let uuids: Vec<String> = ids.iter().map(|id| format!("{:032x}", id.number())).collect();
        let keys: Vec<String> = ids.iter().map(ToString::to_string).collect();
        // The order is far from its end, so the till leaves it alone.
        let insert = "INSERT INTO recharges_tb (user_id, amount, bonus, minor_units, version, \
                created_at, expires_at, updated_at, next_at, recharge_id, asset_id, payments, \
                held, attempts, state, target, channel, idem_key, fingerprint, history) \
             SELECT user_id, $4, 0, $4, 2, now(), now() + interval '1 day', now(), \
                    now() + interval '1 day', id::uuid, $5, 0, 0, 1, 10, 1, $6, key, 'bench', \
                    ARRAY[(now(), 0, 'bench', NULL)::recharge_step, \
                          (now(), 10, 'channel', NULL)::recharge_step] \
               FROM unnest($1::text[], $2::text[], $3::bigint[]) AS o (id, key, user_id)";
        let channel = format.channel();
        postgres
            .execute(insert, &[&uuids, &keys, &users, &UNITS, &ASSET, &channel])
            .await
            .context("make orders")?;
        // Its own numbers: a payment is keyed by channel and number.
        let trade = |key: &String| format!("bench_{key}");
        match format {
            Format::Card => {
                let secret = fs::read_to_string(self.directory.join("card_webhook_secret"))?;
                let key = hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes());
                Ok(keys.iter().map(|no| card(&key, &trade(no), no)).collect())
            }
            Format::WeChat => {
                let secret = fs::read_to_string(self.directory.join("api_v3_key"))?;
                let cipher = Aes256Gcm::new_from_slice(secret.as_bytes())
                    .map_err(|error| anyhow::anyhow!("{error}"))?;
                keys.iter().map(|no| wechat(&self.rsa, &cipher, &trade(no), no)).collect()
            }
        }
    }
}

fn now_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}

fn card(key: &hmac::Key, trade_no: &str, merchant_no: &str) -> Letter {
    let now = now_s();
    let body = json!({
        "id": format!("evt_{trade_no}"), "object": "event", "livemode": false, "created": now,
        "type": "payment_intent.succeeded",
        "data": {"object": {
            "id": trade_no, "object": "payment_intent", "status": "succeeded", "amount": UNITS,
            "amount_received": UNITS, "currency": "cny", "created": now,
            "metadata": {"ubscore_order": merchant_no},
        }},
    })
    .to_string();
    let tag = hmac::sign(key, format!("{now}.{body}").as_bytes());
    let tag: String = tag.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
    let head = vec![("stripe-signature", format!("t={now},v1={tag}"))];
    Letter { channel: Format::Card.channel(), head, body: body.into() }
}

fn wechat(
    rsa: &RsaKeyPair,
    cipher: &Aes256Gcm,
    trade_no: &str,
    merchant_no: &str,
) -> anyhow::Result<Letter> {
    let transaction: Value = json!({
        "appid": "wx0000000000000001", "mchid": "1900000001", "out_trade_no": merchant_no,
        "transaction_id": trade_no, "trade_state": "SUCCESS",
        "success_time": "2026-11-27T10:00:00+08:00",
        "amount": {"total": UNITS, "payer_total": UNITS, "currency": "CNY"},
    });
    let text = transaction.to_string();
    let payload = Payload { msg: text.as_bytes(), aad: b"transaction" };
    let nonce = Nonce::try_from(&b"fdasflkja484"[..]).context("12 bytes")?;
    let sealed = cipher.encrypt(&nonce, payload).map_err(|error| anyhow::anyhow!("{error}"))?;
    let body = json!({
        "id": "EV-1", "event_type": "TRANSACTION.SUCCESS", "resource_type": "encrypt-resource",
        "resource": {
            "algorithm": "AEAD_AES_256_GCM", "ciphertext": STANDARD.encode(sealed),
            "associated_data": "transaction", "nonce": "fdasflkja484",
        },
    })
    .to_string();
    let now = now_s();
    let mut signed = vec![0; rsa.public().modulus_len()];
    let padding: &'static dyn signature::RsaEncoding = &RSA_PKCS1_SHA256;
    let text = format!("{now}\n{NONCE}\n{body}\n");
    rsa.sign(padding, &SystemRandom::new(), text.as_bytes(), &mut signed)
        .map_err(|error| anyhow::anyhow!("{error}"))?;
    let head = vec![
        ("wechatpay-timestamp", now.to_string()),
        ("wechatpay-nonce", NONCE.to_owned()),
        ("wechatpay-serial", SERIAL.to_owned()),
        ("wechatpay-signature", STANDARD.encode(signed)),
    ];
    Ok(Letter { channel: Format::WeChat.channel(), head, body: body.into() })
}
