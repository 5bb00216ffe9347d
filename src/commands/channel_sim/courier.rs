//! Sends callbacks, signed, and again until each is answered with success.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};
use ureq::tls::{RootCerts, TlsConfig};

use super::books::{Format, Line, Parcel};
use super::fault::CallbackFault;
use super::{Sim, crypto, keys};
use crate::clock::Clock;
use crate::commands::ops::certificates;

/// The pause between two looks at the parcels.
const PAUSE: Duration = Duration::from_millis(20);
/// The wait for an answer, as the channels have it.
const PATIENCE: Duration = Duration::from_secs(5);
/// The longest wait between two tries, ns.
const WAIT_MAX_NS: u64 = 2_000_000_000;
/// The age of a forged time, seconds.
const STALE_S: i64 = 301;

/// The client that sends callbacks. `ca`: a file of issuers, the only ones that it trusts.
pub(super) fn agent(ca: Option<&Path>) -> anyhow::Result<ureq::Agent> {
    let mut tls = TlsConfig::builder();
    if let Some(path) = ca {
        tls = tls.root_certs(RootCerts::new_with_certs(&certificates(path)?));
    }
    Ok(ureq::Agent::config_builder()
        .timeout_global(Some(PATIENCE))
        .max_redirects(0)
        .http_status_as_error(false)
        // Each callback meets the certificate of its moment.
        .max_idle_connections(0)
        .tls_config(tls.build())
        .build()
        .into())
}

/// Starts the thread that sends callbacks.
pub(super) fn start(sim: &Arc<Sim>, agent: ureq::Agent) -> std::io::Result<()> {
    let sim = Arc::clone(sim);
    let run = move || {
        let mut due: BTreeMap<u64, (u64, u32)> = BTreeMap::new();
        loop {
            round(&sim, &agent, &mut due);
            thread::sleep(PAUSE);
        }
    };
    thread::Builder::new().name("courier".to_owned()).spawn(run).map(drop)
}

/// Sends each parcel that is due. `due`: the time and the tries of each.
fn round(sim: &Sim, agent: &ureq::Agent, due: &mut BTreeMap<u64, (u64, u32)>) {
    let books = sim.books.lock();
    let mut parcels: Vec<Parcel> = books.parcels.values().cloned().collect();
    // At the same moment: a fault that was set before a payment holds for its callback.
    let fault = sim.faults.lock().callbacks;
    drop(books);
    match fault {
        Some(CallbackFault::Hold) => return,
        Some(CallbackFault::Reorder) => parcels.reverse(),
        _ => {}
    }
    for parcel in parcels {
        let number = parcel.number;
        let now = sim.clock.monotonic_ns();
        let (at, tries) = due.get(&number).copied().unwrap_or_default();
        if at > now {
            continue;
        }
        if fault == Some(CallbackFault::Drop) {
            sim.books.lock().write(Line::Arrived { number });
            continue;
        }
        if let Some(fault) = fault {
            forge(sim, agent, &parcel, fault);
        }
        if post(agent, &parcel.url, &signed(sim, &parcel, tries)) {
            if fault == Some(CallbackFault::Repeat) {
                for again in 1..=3 {
                    post(agent, &parcel.url, &signed(sim, &parcel, tries + again));
                }
            }
            sim.books.lock().write(Line::Arrived { number });
            due.remove(&number);
        } else {
            let wait = (100_000_000 << tries.min(10)).min(WAIT_MAX_NS);
            due.insert(number, (now + wait, tries + 1));
        }
    }
}

/// A callback as it leaves.
pub(super) struct Letter {
    headers: Vec<(&'static str, String)>,
    body: String,
}

/// Whether the other side has taken it.
fn post(agent: &ureq::Agent, url: &str, letter: &Letter) -> bool {
    let mut request = agent.post(url).content_type("application/json");
    for (name, value) in &letter.headers {
        request = request.header(*name, value);
    }
    let answer = request.send(letter.body.as_str());
    answer.is_ok_and(|answer| answer.status().is_success())
}

/// The parcel with a right signature of now.
fn signed(sim: &Sim, parcel: &Parcel, tries: u32) -> Letter {
    match parcel.format {
        Format::WeChat => {
            let keys = sim.keys.lock();
            let turn = parcel.number + u64::from(tries);
            wechat(sim, &keys, parcel, sim.now_s(), keys.signing(turn, None))
        }
        Format::Card => card(parcel, sim.now_s(), &sim.keys.lock().card_secret),
    }
}

/// The same parcel, forged. Its answer does not count.
fn forge(sim: &Sim, agent: &ureq::Agent, parcel: &Parcel, fault: CallbackFault) {
    let stale = sim.now_s() - STALE_S;
    let mut letter = match (fault, parcel.format) {
        (CallbackFault::ForgeTime, Format::WeChat) => {
            let keys = sim.keys.lock();
            wechat(sim, &keys, parcel, stale, keys.signing(0, None))
        }
        (CallbackFault::ForgeTime, Format::Card) => {
            card(parcel, stale, &sim.keys.lock().card_secret)
        }
        (CallbackFault::ForgeKey, Format::WeChat) => {
            let private = keys::read_private(&keys::private_pem()).expect("our own");
            let all = sim.keys.lock();
            let serial = all.signing(0, None).serial.clone();
            let stranger = keys::SigningKey { serial, private, certificate: None };
            wechat(sim, &all, parcel, sim.now_s(), &stranger)
        }
        (CallbackFault::ForgeKey, Format::Card) => card(parcel, sim.now_s(), "whsec_stranger"),
        (CallbackFault::ForgeBody | CallbackFault::ForgeSerial | CallbackFault::Probe, _) => {
            signed(sim, parcel, 0)
        }
        _ => return,
    };
    match fault {
        CallbackFault::ForgeBody => letter.body.push(' '),
        CallbackFault::ForgeSerial => letter.replace("wechatpay-serial", "7FFF"),
        CallbackFault::Probe => {
            letter.replace("wechatpay-signature", "WECHATPAY/SIGNTEST/AAAA");
        }
        _ => {}
    }
    post(agent, &parcel.url, &letter);
}

impl Letter {
    fn replace(&mut self, name: &str, value: &str) {
        for header in self.headers.iter_mut().filter(|(known, _)| *known == name) {
            value.clone_into(&mut header.1);
        }
    }
}

/// A callback of WeChat: sealed, then signed.
fn wechat(
    sim: &Sim,
    all: &keys::Keys,
    parcel: &Parcel,
    time_s: i64,
    key: &keys::SigningKey,
) -> Letter {
    let nonce = &sim.random()[..12];
    let original = if parcel.event.starts_with("REFUND") { "refund" } else { "transaction" };
    let body = json!({
        "id": format!("EV-{:032}", parcel.number),
        "create_time": jiff::Timestamp::from_second(time_s).map_or_else(|_| String::new(), |time| time.to_string()),
        "resource_type": "encrypt-resource",
        "event_type": parcel.event,
        "summary": "simulated",
        "resource": {
            "original_type": original,
            "algorithm": "AEAD_AES_256_GCM",
            "ciphertext": crypto::seal(&all.api_v3, nonce, original, &parcel.object),
            "associated_data": original,
            "nonce": nonce,
        },
    })
    .to_string();
    let headers = signature_headers(&sim.random(), time_s, body.as_bytes(), key);
    Letter { headers, body }
}

/// The headers of a signature over a body.
pub(super) fn signature_headers(
    nonce: &str,
    time_s: i64,
    body: &[u8],
    key: &keys::SigningKey,
) -> Vec<(&'static str, String)> {
    let text = [format!("{time_s}\n{nonce}\n").as_bytes(), body, b"\n"].concat();
    vec![
        ("wechatpay-timestamp", time_s.to_string()),
        ("wechatpay-nonce", nonce.to_owned()),
        ("wechatpay-serial", key.serial.clone()),
        ("wechatpay-signature", crypto::sign(&key.private, &text)),
        ("wechatpay-signature-type", "WECHATPAY2-SHA256-RSA2048".to_owned()),
    ]
}

/// A callback of Stripe.
fn card(parcel: &Parcel, time_s: i64, secret: &str) -> Letter {
    let object: Value = serde_json::from_str(&parcel.object).unwrap_or_default();
    let body = json!({
        "id": format!("evt_{:024}", parcel.number),
        "object": "event",
        "api_version": "2024-06-20",
        "created": parcel.at_s,
        "livemode": false,
        "type": parcel.event,
        "data": {"object": object},
    })
    .to_string();
    let signature = crypto::mac(secret, format!("{time_s}.{body}").as_bytes());
    Letter { headers: vec![("stripe-signature", format!("t={time_s},v1={signature}"))], body }
}
