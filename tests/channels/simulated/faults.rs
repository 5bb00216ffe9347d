use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::{Value, json};
use ubscore::channels::wechat::WeChatKey;
use ubscore::channels::wire::{Wire, WireCall, WireError, WireStream};
use ubscore::channels::{Channel, OrderAsk, RefundAsk};
use ubscore::config::secret::Secret;
use ubscore::recharge::answers::{Closing, Refunded};

use super::{PATIENT, Simulator, both, create, number, paid, reference, stripe};
use super::{wechat, wechat_settings};
use crate::harness::eventually;

/// A network to a channel that has forgotten every idempotency key, as behind a day. While it
/// loses, posts arrive and their answers do not.
struct Forgetful {
    inner: Arc<dyn Wire>,
    loses: AtomicBool,
}

impl Wire for Forgetful {
    fn open(&self, call: &WireCall) -> Result<WireStream, WireError> {
        let mut call = call.clone();
        call.headers.retain(|(name, _)| *name != "idempotency-key");
        let answer = self.inner.open(&call)?;
        if call.method.as_str() == "POST" && self.loses.load(Ordering::SeqCst) {
            return Err(WireError::Unanswered("lost".to_owned()));
        }
        Ok(answer)
    }

    fn own_target(&self, url: &str) -> Option<String> {
        self.inner.own_target(url)
    }
}

/// The returns of the only payment of an order, in the simulator's books.
fn returns(simulator: &Simulator, no: &str) -> Vec<Value> {
    let orders = simulator.done("GET", &format!("/sim/orders/{no}"), &json!({}));
    orders[0]["payments"][0]["returns"].as_array().expect("a list").clone()
}

/// A paid order's number of the payment.
fn bought(simulator: &Simulator, channel: &dyn Channel, no: &str, currency: &str) -> String {
    reference(create(channel, no, "", currency));
    simulator.pay(no, &json!({}))["trade_no"].as_str().expect("text").to_owned()
}

/// Goal: a refund with a lost answer is asked for again a day later and leaves once. Method: of
/// the whole payment, which the channel then refuses, and of a part, which it would make again.
#[test]
fn a_refund_with_a_lost_answer_leaves_once() {
    let simulator = Simulator::start();
    let loses = AtomicBool::new(false);
    let wire = Arc::new(Forgetful { inner: simulator.wire(PATIENT), loses });
    let keys = vec![WeChatKey::Certificate(simulator.file("platform_1_certificate.pem"))];
    let mut settings = wechat_settings(&simulator.file("merchant_key.pem"), keys);
    settings.api_v3_key = Secret::new(simulator.file("api_v3_key"));
    let other = Arc::clone(&wire) as Arc<dyn Wire>;
    let (secret, key) = (simulator.file("card_webhook_secret"), simulator.file("card_api_key"));
    let channels: [(Box<dyn Channel>, &str); 2] = [
        (Box::new(wechat(&settings, Arc::clone(&other))), "CNY"),
        (Box::new(stripe(&[&secret], &key, other)), "EUR"),
    ];
    for (channel, currency) in &channels {
        for (minor_units, n) in [(10_000, 1), (4_000, 2)] {
            let no = number(currency, n);
            let trade_no = bought(&simulator, &**channel, &no, currency);
            let refund = RefundAsk {
                return_no: &format!("wrf_01JFVQ2X8Z0Y1M3N4P5{currency}R{n:04}"),
                merchant_no: &no,
                trade_no: &trade_no,
                minor_units,
                total_minor_units: 10_000,
                currency,
            };
            wire.loses.store(true, Ordering::SeqCst);
            let end = channel.refund(&refund);
            assert!(matches!(end, Refunded::Unknown(_)), "{end:?}");
            wire.loses.store(false, Ordering::SeqCst);
            for _ in 0..2 {
                assert_eq!(channel.refund(&refund), Refunded::Done);
            }
            let returns = returns(&simulator, &no);
            assert_eq!(returns.len(), 1, "{returns:?}");
        }
    }
}

/// `reorder`: of the callbacks that wait, the newest is sent first.
#[test]
fn reordered_callbacks_come_the_newest_first() {
    let simulator = Simulator::start();
    for (channel, listener, currency) in both(&simulator) {
        simulator.faults(&json!({"callbacks": "hold"}));
        for n in 1..=3 {
            reference(create(&*channel, &number(currency, n), &listener.url(), currency));
            simulator.pay(&number(currency, n), &json!({}));
        }
        simulator.faults(&json!({"callbacks": "reorder"}));
        let payments = eventually("three callbacks", || {
            Some(listener.payments()).filter(|payments| payments.len() >= 3)
        });
        let order: Vec<&str> = payments.iter().map(|facts| &*facts.merchant_no).collect();
        assert_eq!(order, [3, 2, 1].map(|n| number(currency, n)));
        simulator.faults(&json!({}));
    }
}

/// `drop`: the callback never comes, also when the fault is over. The query shows the payment.
#[test]
fn a_dropped_callback_never_comes() {
    let simulator = Simulator::start();
    for (channel, listener, currency) in both(&simulator) {
        let [first, second] = [1, 2].map(|n| number(currency, n));
        for (no, faults) in [(&first, json!({"callbacks": "drop"})), (&second, json!({}))] {
            reference(create(&*channel, no, &listener.url(), currency));
            simulator.faults(&faults);
            simulator.pay(no, &json!({}));
            eventually("no callback is open", || {
                let parcels = simulator.done("GET", "/sim/parcels", &json!({}));
                (parcels["open"] == 0).then_some(())
            });
        }
        let payments = eventually("the second callback", || {
            Some(listener.payments()).filter(|payments| !payments.is_empty())
        });
        assert!(payments.iter().all(|facts| facts.merchant_no == second), "{payments:?}");
        let order = OrderAsk { merchant_no: &first, references: &[] };
        assert_eq!(paid(channel.query(&order))[0].merchant_no, first);
    }
}

/// `late`: an order is paid behind its close, and both the callback and the query show it.
#[test]
fn a_late_payment_comes_behind_the_close() {
    let simulator = Simulator::start();
    for (channel, listener, currency) in both(&simulator) {
        let no = number(currency, 1);
        let references = [reference(create(&*channel, &no, &listener.url(), currency)).0];
        let order = OrderAsk { merchant_no: &no, references: &references };
        assert_eq!(channel.close(&order), Closing::Closed);
        let (status, _) = simulator.ask("POST", &format!("/pay/{no}"), &json!({}));
        assert_eq!(status, 409);
        simulator.pay(&no, &json!({"late": true}));
        let told = eventually("a callback", || listener.payments().pop());
        assert_eq!((&*told.merchant_no, told.minor_units), (&*no, 10_000));
        assert_eq!(paid(channel.query(&order))[0].trade_no, told.trade_no);
        assert_eq!(channel.close(&order), Closing::Paid);
    }
}

/// `POST /sim/refunds/{number}`: a refund that is under way ends as the test says.
#[test]
fn a_refund_under_way_is_turned_to_its_end() {
    let simulator = Simulator::start();
    for (channel, _listener, currency) in both(&simulator) {
        let no = number(currency, 1);
        let trade_no = bought(&simulator, &*channel, &no, currency);
        let [under_way, done, failed] = match currency {
            "CNY" => ["PROCESSING", "SUCCESS", "CLOSED"],
            _ => ["pending", "succeeded", "failed"],
        };
        let ends = [(done, Refunded::Done), (failed, Refunded::Refused(failed.to_owned()))];
        for ((status, end), place) in ends.into_iter().zip(0..) {
            let refund = RefundAsk {
                return_no: &format!("wrf_01JFVQ2X8Z0Y1M3N4P5{currency}R{place:04}"),
                merchant_no: &no,
                trade_no: &trade_no,
                minor_units: 100,
                total_minor_units: 10_000,
                currency,
            };
            simulator.faults(&json!({"refunds": under_way}));
            let stays = Refunded::UnderWay { is_stuck: false };
            assert_eq!(channel.refund(&refund), stays);
            assert_eq!(channel.query_refund(&refund), stays);
            let returns = returns(&simulator, &no);
            let back = returns[place]["number"].as_str().expect("a number");
            simulator.done("POST", &format!("/sim/refunds/{back}"), &json!({"status": status}));
            assert_eq!(channel.query_refund(&refund), end);
        }
        simulator.faults(&json!({}));
    }
}
