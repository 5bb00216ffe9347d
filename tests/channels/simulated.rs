/// Faults of the simulator, each by itself.
mod faults;

use std::io::Write;
use std::net::{SocketAddr, TcpListener};
use std::ops::Deref;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use hyper::HeaderMap;
use hyper::header::{HeaderName, HeaderValue};
use jiff::tz::TimeZone;
use jiff::{Timestamp, ToSpan};
use serde_json::{Value, json};
use ubscore::channels::stripe::Stripe;
use ubscore::channels::wechat::{WeChat, WeChatKey};
use ubscore::channels::wire::{HttpWire, Wire};
use ubscore::channels::{BillAsk, CallbackEnd, Channel, CreateAsk, OrderAsk, RefundAsk};
use ubscore::config::secret::Secret;
use ubscore::recharge::answers::{
    BillKind, BillLine, Billed, ChannelDoubt, Closing, Created, PayKind, Queried, Refunded,
    Rejected,
};
use ubscore::recharge::facts::{Facts, Notice, Returned};

use super::{now, stripe, wechat, wechat_settings};
use crate::harness::{ChannelSim, eventually, read_request, run_directory};

/// Long enough for any answer that comes.
pub(crate) const PATIENT: Duration = Duration::from_secs(60);

/// A running simulator with the adapters that speak with it.
pub(crate) struct Simulator(ChannelSim);

impl Deref for Simulator {
    type Target = ChannelSim;

    fn deref(&self) -> &ChannelSim {
        &self.0
    }
}

impl Simulator {
    pub(crate) fn start() -> Simulator {
        Simulator(ChannelSim::start(&[]))
    }

    pub(crate) fn pay(&self, no: &str, how: &Value) -> Value {
        self.done("POST", &format!("/pay/{no}"), how)
    }

    pub(crate) fn wire(&self, timeout: Duration) -> Arc<dyn Wire> {
        let base = self.base();
        Arc::new(HttpWire::new(&base, timeout, timeout).expect("loopback"))
    }

    pub(crate) fn wechat(&self, timeout: Duration) -> WeChat {
        let keys = vec![WeChatKey::Certificate(self.file("platform_1_certificate.pem"))];
        self.wechat_with(keys, timeout)
    }

    fn wechat_with(&self, keys: Vec<WeChatKey>, timeout: Duration) -> WeChat {
        let mut settings = wechat_settings(&self.file("merchant_key.pem"), keys);
        settings.api_v3_key = Secret::new(self.file("api_v3_key"));
        wechat(&settings, self.wire(timeout))
    }

    pub(crate) fn card(&self, timeout: Duration) -> Stripe {
        let secret = self.file("card_webhook_secret");
        stripe(&[&secret], &self.file("card_api_key"), self.wire(timeout))
    }
}

/// The end of each callback, in order.
type Ends = Vec<Result<Vec<Notice>, Rejected>>;

/// The listener of callbacks: it answers as the adapter says, and keeps every end.
struct Listener {
    address: SocketAddr,
    ends: Arc<Mutex<Ends>>,
}

impl Listener {
    fn start(channel: Arc<dyn Channel>) -> Listener {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let ends = Arc::<Mutex<Ends>>::default();
        let kept = Arc::clone(&ends);
        thread::spawn(move || {
            for stream in listener.incoming() {
                let stream = stream.expect("a connection");
                let Ok((head, body)) = read_request(&stream) else { continue };
                let end = channel.callback(&headers(&head), &body, now());
                let told = match &end {
                    Ok(_) => CallbackEnd::Success,
                    Err(rejected) => CallbackEnd::Rejected(*rejected),
                };
                if end == Err(Rejected::Serial) {
                    // Behind the callback, as its caller does it.
                    channel.renew();
                }
                kept.lock().expect("no panic").push(end);
                let answer = channel.acknowledge(told);
                let (status, body) = (answer.status, answer.body);
                let length = match status {
                    204 => String::new(),
                    _ => format!("Content-Length: {}\r\n", body.len()),
                };
                let text =
                    format!("HTTP/1.1 {status} So\r\n{length}Connection: close\r\n\r\n{body}");
                drop((&stream).write_all(text.as_bytes()));
            }
        });
        Listener { address, ends }
    }

    fn url(&self) -> String {
        format!("http://{}/callbacks/v1/it", self.address)
    }

    fn ends(&self) -> Ends {
        self.ends.lock().expect("no panic").clone()
    }

    /// The payments so far.
    fn payments(&self) -> Vec<Facts> {
        let notices = self.ends().into_iter().flatten().flatten();
        let payment = |notice| match notice {
            Notice::Payment(facts) => Some(facts),
            _ => None,
        };
        notices.filter_map(payment).collect()
    }
}

fn headers(head: &str) -> HeaderMap {
    let mut map = HeaderMap::new();
    for (name, value) in head.lines().skip(1).filter_map(|line| line.split_once(':')) {
        let name: HeaderName = name.trim().parse().expect("a name");
        map.append(name, HeaderValue::from_str(value.trim()).expect("a value"));
    }
    map
}

/// The n-th merchant number of a format.
fn number(currency: &str, n: u32) -> String {
    format!("wrc_01JFVQ2X8Z0Y1M3N4P{currency}R{n:04}")
}

fn create(channel: &dyn Channel, no: &str, url: &str, currency: &str) -> Created {
    create_since(channel, no, url, currency, now())
}

fn create_since(
    channel: &dyn Channel,
    no: &str,
    url: &str,
    currency: &str,
    first_tried_at: Timestamp,
) -> Created {
    channel.create(&CreateAsk {
        merchant_no: no,
        minor_units: 10_000,
        currency,
        description: "a recharge",
        proof: "1.7.6.10000",
        callback_url: url,
        expires_at: now() + 25.minutes(),
        first_tried_at,
    })
}

fn reference(created: Created) -> (String, PayKind) {
    match created {
        Created::Created { reference, pay } => (reference, pay.kind),
        other => panic!("{other:?}"),
    }
}

fn paid(end: Queried) -> Vec<Facts> {
    match end {
        Queried::Paid(facts) => facts,
        other => panic!("{other:?}"),
    }
}

/// Both adapters of a simulator, each with its currency, its listener's URL set.
fn both(simulator: &Simulator) -> [(Arc<dyn Channel>, Listener, &'static str); 2] {
    let wechat: Arc<dyn Channel> = Arc::new(simulator.wechat(PATIENT));
    let card: Arc<dyn Channel> = Arc::new(simulator.card(PATIENT));
    let listeners = [&wechat, &card].map(|channel| Listener::start(Arc::clone(channel)));
    let [first, second] = listeners;
    simulator.done("PUT", "/sim/card/callback_url", &json!({"url": second.url()}));
    [(wechat, first, "CNY"), (card, second, "EUR")]
}

fn bill(channel: &dyn Channel, zone_hours: i8, has_trade: bool) -> (Billed, Vec<BillLine>) {
    let zone = TimeZone::fixed(jiff::tz::offset(zone_hours));
    let day = now().to_zoned(zone).date();
    let mut lines = Vec::new();
    let end = channel.bill(&BillAsk { day, has_trade }, &mut |line| lines.push(line));
    (end, lines)
}

/// RCH-001, of the adapters: create, pay, callback, query, close, refund and bill, in both formats.
#[test]
fn rch_001_both_formats_pay_close_refund_and_bill() {
    let simulator = Simulator::start();
    for ((channel, listener, currency), zone) in both(&simulator).into_iter().zip([8, 0]) {
        let channel = &*channel;
        let first = number(currency, 1);
        let (first_ref, _) = reference(create(channel, &first, &listener.url(), currency));
        let (again, kind) = reference(create(channel, &first, &listener.url(), currency));
        assert_eq!(again, first_ref, "a repeat makes no second order");
        assert_eq!(kind == PayKind::CodeUrl, currency == "CNY");
        let references = [first_ref];
        let order = OrderAsk { merchant_no: &first, references: &references };
        assert_eq!(channel.query(&order), Queried::Open);
        let trade_no = simulator.pay(&first, &json!({}))["trade_no"].clone();
        let trade_no = trade_no.as_str().expect("text");
        let told = eventually("a callback", || listener.payments().pop());
        assert_eq!((&*told.merchant_no, &*told.trade_no), (&*first, trade_no));
        assert_eq!((told.minor_units, &*told.currency, told.discount), (10_000, currency, false));
        assert_eq!(told.proof.as_deref(), Some("1.7.6.10000"));
        let [asked] = &paid(channel.query(&order))[..] else { panic!("one payment") };
        assert_eq!((&asked.trade_no, asked.minor_units), (&told.trade_no, 10_000));
        assert_eq!(asked.returned, Returned::None);
        assert_eq!(channel.close(&order), Closing::Paid);

        let refund = RefundAsk {
            return_no: "wrf_01JFVQ2X8Z0Y1M3N4P5R6S7T8V",
            merchant_no: &first,
            trade_no,
            minor_units: 4_000,
            total_minor_units: 10_000,
            currency,
        };
        assert!(matches!(channel.query_refund(&refund), Refunded::Unknown(_)));
        for _ in 0..2 {
            let end = channel.refund(&refund);
            let accepted = Refunded::UnderWay { is_stuck: false };
            assert!([accepted, Refunded::Done].contains(&end), "{end:?}");
        }
        assert_eq!(channel.query_refund(&refund), Refunded::Done);
        assert_eq!(paid(channel.query(&order))[0].returned, Returned::Part);

        // A number that was noted is asked for, and closed, by itself.
        let second = number(currency, 2);
        let (second_ref, _) = reference(create(channel, &second, &listener.url(), currency));
        let references = [second_ref];
        let order = OrderAsk { merchant_no: &second, references: &references };
        assert_eq!(channel.close(&order), Closing::Closed);
        assert_eq!(channel.close(&order), Closing::Closed);
        assert_eq!(channel.query(&order), Queried::Closed);
        let (status, _) = simulator.ask("POST", &format!("/pay/{second}"), &json!({}));
        assert_eq!(status, 409);
        let nothing = number(currency, 3);
        let order = OrderAsk { merchant_no: &nothing, references: &[] };
        assert_eq!(
            (channel.query(&order), channel.close(&order)),
            (Queried::Absent, Closing::Absent)
        );

        let (end, mut lines) = bill(channel, zone, true);
        let Billed::Whole(sums) = end else { panic!("{end:?}") };
        assert_eq!((sums.lines, sums.paid, sums.returned), (2, 10_000, 4_000));
        lines.sort_by_key(|line| line.kind == BillKind::Returned);
        let [bought, back] = &lines[..] else { panic!("{lines:?}") };
        assert_eq!((bought.kind, &*bought.merchant_no), (BillKind::Paid, &*first));
        assert_eq!((&*bought.trade_no, bought.minor_units), (trade_no, 10_000));
        assert_eq!((back.kind, &*back.trade_no), (BillKind::Returned, trade_no));
        assert_eq!((back.minor_units, back.return_no.as_deref()), (4_000, Some(refund.return_no)));
    }
}

/// The simulator's books and callbacks survive its death.
#[test]
fn the_simulator_keeps_its_books_over_a_kill() {
    let simulator = Simulator::start();
    let channels = both(&simulator);
    for (channel, listener, currency) in &channels {
        let (known, _) =
            reference(create(&**channel, &number(currency, 1), &listener.url(), currency));
        simulator.faults(&json!({"callbacks": "hold"}));
        simulator.pay(&number(currency, 1), &json!({}));
        simulator.dies_and_returns();
        let references = [known];
        let order = OrderAsk { merchant_no: &number(currency, 1), references: &references };
        // A connection to the dead one may be met first.
        let asked = eventually("an answer", || match channel.query(&order) {
            Queried::Paid(facts) => Some(facts[0].clone()),
            _ => None,
        });
        // The fault is over with the process that had it.
        let told = eventually("a callback", || listener.payments().pop());
        assert_eq!(told.trade_no, asked.trade_no);
        simulator.dies_and_returns();
        // The kill may have come between the answer to the callback and the note of it.
        let parcels = || simulator.done("GET", "/sim/parcels", &json!({}));
        eventually("no callback is open", || (parcels()["open"] == 0).then_some(()));
    }
}

/// RCH-022, of the adapters: with the channel failing in each way, no call ends in anything but
/// Unknown, and all of them end when it is back.
#[test]
fn rch_022_no_fault_of_an_answer_is_an_end() {
    let simulator = Simulator::start();
    for (channel, listener, currency) in both(&simulator) {
        let is_wechat = currency == "CNY";
        let no = number(currency, 1);
        let references = [reference(create(&*channel, &no, &listener.url(), currency)).0];
        let order = OrderAsk { merchant_no: &no, references: &references };
        let trade_no =
            simulator.pay(&no, &json!({}))["trade_no"].as_str().expect("text").to_owned();
        let faults = ["away", "hang", "error", "busy", "rubbish", "half"];
        let signed = ["unsigned", "changed"].iter().filter(|_| is_wechat);
        for (fault, n) in faults.iter().chain(signed).zip(10..) {
            // A channel that hangs is given up soon.
            let patience = if *fault == "hang" { Duration::from_millis(200) } else { PATIENT };
            let failing: Box<dyn Channel> = if is_wechat {
                Box::new(simulator.wechat(patience))
            } else {
                Box::new(simulator.card(patience))
            };
            simulator.faults(&json!({"answer": fault, "lost": true}));
            let refund = RefundAsk {
                return_no: &format!("wrf_01JFVQ2X8Z0Y1M3N4P5R6S{n:04}"),
                merchant_no: &no,
                trade_no: &trade_no,
                minor_units: 100,
                total_minor_units: 10_000,
                currency,
            };
            let made = create(&*failing, &number(currency, n), &listener.url(), currency);
            assert!(matches!(made, Created::Unknown(_)), "{fault}: {made:?}");
            let end = failing.query(&order);
            assert!(matches!(end, Queried::Unknown(_)), "{fault}: {end:?}");
            let end = failing.close(&order);
            assert!(matches!(end, Closing::Unknown(_)), "{fault}: {end:?}");
            for end in [failing.refund(&refund), failing.query_refund(&refund)] {
                assert!(matches!(end, Refunded::Unknown(_)), "{fault}: {end:?}");
            }
            let (end, _) = bill(&*failing, 0, true);
            assert!(matches!(end, Billed::Unknown(_)), "{fault}: {end:?}");
            simulator.faults(&json!({}));
            assert_eq!(paid(channel.query(&order)).len(), 1, "{fault}");
        }
    }
}

/// RCH-010, over the wire: each forged callback is rejected, and the right one behind it counts.
#[test]
fn rch_010_a_forged_callback_is_rejected_and_the_right_one_counts() {
    let simulator = Simulator::start();
    for (channel, listener, currency) in both(&simulator) {
        let is_wechat = currency == "CNY";
        let mut cases = vec![
            ("forge_body", Rejected::Signature),
            ("forge_key", Rejected::Signature),
            ("forge_time", Rejected::Time),
        ];
        if is_wechat {
            cases.extend([("forge_serial", Rejected::Serial), ("probe", Rejected::Signature)]);
        }
        for ((fault, reason), n) in cases.into_iter().zip(1..) {
            reference(create(&*channel, &number(currency, n), &listener.url(), currency));
            simulator.faults(&json!({"callbacks": fault}));
            let before = listener.ends().len();
            simulator.pay(&number(currency, n), &json!({}));
            let ends = eventually("the right one", || {
                let ends = listener.ends()[before..].to_vec();
                ends.last().is_some_and(Result::is_ok).then_some(ends)
            });
            assert_eq!(ends[0], Err(reason), "{fault}");
            assert_eq!(listener.payments().last().expect("paid").merchant_no, number(currency, n));
            simulator.faults(&json!({}));
        }
    }
}

/// RCH-002, of the adapters: a callback that is sent again has the same facts, signed anew.
#[test]
fn rch_002_a_repeated_callback_has_the_same_facts() {
    let simulator = Simulator::start();
    for (channel, listener, currency) in both(&simulator) {
        reference(create(&*channel, &number(currency, 1), &listener.url(), currency));
        simulator.faults(&json!({"callbacks": "repeat"}));
        simulator.pay(&number(currency, 1), &json!({}));
        let four = || Some(listener.payments()).filter(|payments| payments.len() >= 4);
        let payments = eventually("four callbacks", four);
        assert!(payments.iter().all(|facts| *facts == payments[0]), "{payments:?}");
        simulator.faults(&json!({}));
        simulator.done("POST", &format!("/sim/replay/{}", number(currency, 1)), &json!({}));
        let five = || Some(listener.payments()).filter(|payments| payments.len() >= 5);
        assert_eq!(eventually("a fifth", five)[4], payments[0]);
        let event =
            if currency == "CNY" { "TRANSACTION.CLOSED" } else { "payment_intent.canceled" };
        simulator.done(
            "POST",
            &format!("/sim/event/{}", number(currency, 1)),
            &json!({"event": event}),
        );
        let hint = Notice::Hint { merchant_no: number(currency, 1) };
        eventually("a hint", || listener.ends().contains(&Ok(vec![hint.clone()])).then_some(()));
    }
}

/// RCH-013: keys that change while both are in use lose no payment, certificate or public key.
#[test]
fn rch_013_a_change_of_keys_loses_no_payment() {
    let simulator = Simulator::start();
    let [(channel, listener, currency), _] = both(&simulator);
    simulator.done("POST", "/sim/keys", &json!({"kind": "certificate"}));
    for n in 1..=4 {
        reference(create(&*channel, &number(currency, n), &listener.url(), currency));
        simulator.pay(&number(currency, n), &json!({}));
    }
    let all = |count: usize| {
        let mut numbers: Vec<String> =
            listener.payments().into_iter().map(|facts| facts.merchant_no).collect();
        numbers.sort();
        numbers.dedup();
        (numbers.len() == count).then_some(())
    };
    eventually("every payment", || all(4));
    // The second certificate was met by its serial, and fetched behind that callback.
    assert!(listener.ends().contains(&Err(Rejected::Serial)), "{:?}", listener.ends());

    // From certificates to a public key, which no list has: it is in the configuration.
    let made = simulator.done("POST", "/sim/keys", &json!({"kind": "public_key"}));
    let id = made["serial"].as_str().expect("an id").to_owned();
    let keys = vec![
        WeChatKey::Certificate(simulator.file("platform_2_certificate.pem")),
        WeChatKey::PublicKey { id, pem: simulator.file("platform_3_public.pem") },
    ];
    let channel: Arc<dyn Channel> = Arc::new(simulator.wechat_with(keys, PATIENT));
    let listener = Listener::start(Arc::clone(&channel));
    for n in 11..=14 {
        reference(create(&*channel, &number(currency, n), &listener.url(), currency));
        simulator.pay(&number(currency, n), &json!({}));
    }
    eventually("four callbacks", || (listener.payments().len() >= 4).then_some(()));
    assert!(listener.ends().iter().all(Result::is_ok), "{:?}", listener.ends());
}

/// RCH-020, of the adapters: behind a close that was a lie, the query says open, and a payment
/// comes.
#[test]
fn rch_020_a_lie_about_a_close_shows_in_the_query_behind_it() {
    let simulator = Simulator::start();
    for (channel, listener, currency) in both(&simulator) {
        let no = number(currency, 1);
        let references = [reference(create(&*channel, &no, &listener.url(), currency)).0];
        let order = OrderAsk { merchant_no: &no, references: &references };
        simulator.faults(&json!({"lie_about_close": true}));
        assert_eq!(channel.close(&order), Closing::Closed);
        assert_eq!(channel.query(&order), Queried::Open);
        simulator.pay(&no, &json!({}));
        assert_eq!(eventually("a payment", || listener.payments().pop()).merchant_no, no);
        assert_eq!(channel.close(&order), Closing::Paid);
        simulator.faults(&json!({}));
    }
}

/// RCH-015 and RCH-017, of the adapters: the facts of an odd payment are as it is.
#[test]
fn rch_015_odd_payments_are_read_as_they_are() {
    let simulator = Simulator::start();
    for (channel, listener, currency) in both(&simulator) {
        let pay = |n: u32, how: &Value| {
            reference(create(&*channel, &number(currency, n), &listener.url(), currency));
            simulator.pay(&number(currency, n), how);
            eventually("a payment", || {
                let mut all = listener.payments().into_iter();
                all.find(|facts| facts.merchant_no == number(currency, n))
            })
        };
        assert_eq!(pay(1, &json!({"amount": 9_999})).minor_units, 9_999);
        assert_eq!(pay(2, &json!({"amount": 10_001})).minor_units, 10_001);
        assert_eq!(pay(3, &json!({"currency": "USD"})).currency, "USD");
        if currency == "CNY" {
            let facts = pay(4, &json!({"borne": 500}));
            assert!(facts.discount);
            assert_eq!((facts.minor_units, facts.total_minor_units), (9_500, 10_000));
        }
        pay(5, &json!({"times": 2}));
        let two = eventually("both payments", || {
            let all = listener.payments().into_iter();
            let two: Vec<Facts> =
                all.filter(|facts| facts.merchant_no == number(currency, 5)).collect();
            (two.len() == 2).then_some(two)
        });
        assert_ne!(two[0].trade_no, two[1].trade_no);
        if currency == "EUR" {
            let order = OrderAsk { merchant_no: &number(currency, 5), references: &[] };
            assert_eq!(paid(channel.query(&order)).len(), 2);
        }
    }
}

/// RCH-034 and RCH-033, of the adapters: a refund behind our back is a hint, and a dispute of a
/// card is taken and given back.
#[test]
fn rch_034_money_that_goes_back_at_the_channel_is_seen() {
    let simulator = Simulator::start();
    for (channel, listener, currency) in both(&simulator) {
        let no = number(currency, 1);
        let references = [reference(create(&*channel, &no, &listener.url(), currency)).0];
        let order = OrderAsk { merchant_no: &no, references: &references };
        simulator.pay(&no, &json!({}));
        simulator.done("POST", &format!("/sim/refund/{no}"), &json!({"amount": 3_000}));
        let hint = Notice::Hint { merchant_no: no.clone() };
        eventually("a hint", || listener.ends().contains(&Ok(vec![hint.clone()])).then_some(()));
        assert_eq!(paid(channel.query(&order))[0].returned, Returned::Part);
        if currency == "CNY" {
            continue;
        }
        let made = simulator.done("POST", &format!("/sim/take/{no}"), &json!({"amount": 7_000}));
        let dispute = made["number"].as_str().expect("a number");
        simulator.done("POST", &format!("/sim/give/{dispute}"), &json!({}));
        eventually("a dispute that is won", || {
            let notices: Vec<Notice> = listener.ends().into_iter().flatten().flatten().collect();
            let is = |notice: &Notice, is_taken: bool| match notice {
                Notice::Taken(taking) if is_taken => taking.number == dispute,
                Notice::GivenBack(taking) if !is_taken => taking.minor_units == 7_000,
                _ => false,
            };
            let taken = notices.iter().any(|notice| is(notice, true));
            (taken && notices.iter().any(|notice| is(notice, false))).then_some(())
        });
        let (end, lines) = bill(&*channel, 0, true);
        assert!(matches!(end, Billed::Whole(_)), "{end:?}");
        let kinds = [BillKind::Paid, BillKind::Returned, BillKind::Taken, BillKind::GivenBack];
        for kind in kinds {
            assert_eq!(lines.iter().filter(|line| line.kind == kind).count(), 1, "{kind:?}");
        }
    }
}

/// RCH-031, of the adapters: only an explicit refusal is one.
#[test]
fn rch_031_a_refund_ends_as_the_channel_says() {
    let simulator = Simulator::start();
    for (channel, listener, currency) in both(&simulator) {
        let is_wechat = currency == "CNY";
        reference(create(&*channel, &number(currency, 1), &listener.url(), currency));
        let trade_no = simulator.pay(&number(currency, 1), &json!({}))["trade_no"]
            .as_str()
            .expect("text")
            .to_owned();
        let statuses = if is_wechat {
            ["PROCESSING", "CLOSED", "ABNORMAL", "NOT_ENOUGH"]
        } else {
            ["pending", "failed", "requires_action", "NOT_ENOUGH"]
        };
        for (status, n) in statuses.iter().zip(1..) {
            let return_no = format!("wrf_01JFVQ2X8Z0Y1M3N4P5R6S{n:04}");
            let refund = RefundAsk {
                return_no: &return_no,
                merchant_no: &number(currency, 1),
                trade_no: &trade_no,
                minor_units: 100,
                total_minor_units: 10_000,
                currency,
            };
            simulator.faults(&json!({"refunds": status}));
            let (sent, asked) = (channel.refund(&refund), channel.query_refund(&refund));
            match n {
                1 => assert_eq!(asked, Refunded::UnderWay { is_stuck: false }),
                2 => assert!(matches!(asked, Refunded::Refused(_)), "{asked:?}"),
                3 => assert_eq!(asked, Refunded::UnderWay { is_stuck: true }),
                _ => assert!(matches!(sent, Refunded::Unknown(ChannelDoubt::Code(_))), "{sent:?}"),
            }
        }
        simulator.faults(&json!({}));
    }
}

/// RCH-035, of the adapters: a bill that is cut, late or empty is none; a lost, added or changed
/// line shows in its lines.
#[test]
fn rch_035_a_bad_bill_is_no_bill() {
    let simulator = Simulator::start();
    for ((channel, listener, currency), zone) in both(&simulator).into_iter().zip([8, 0]) {
        let channel = &*channel;
        assert_eq!(bill(channel, zone, false).0, Billed::NoTrade);
        assert_eq!(bill(channel, zone, true).0, Billed::NotYet);
        for n in 1..=3 {
            reference(create(channel, &number(currency, n), &listener.url(), currency));
            simulator.pay(&number(currency, n), &json!({}));
        }
        let lines = |fault: &str| {
            simulator.faults(&json!({"bill": fault}));
            let (end, lines) = bill(channel, zone, true);
            assert!(matches!(end, Billed::Whole(_)), "{fault}: {end:?}");
            lines
        };
        assert_eq!(lines("lose").len(), 2);
        let changed: i64 = lines("change").iter().map(|line| line.minor_units).sum();
        assert_eq!(changed, 30_001);
        simulator.faults(&json!({"bill": "late"}));
        assert_eq!(bill(channel, zone, true).0, Billed::NotYet);
        if currency == "CNY" {
            let foreign = |line: &&BillLine| !line.merchant_no.starts_with("wrc_");
            assert_eq!(lines("add").iter().filter(foreign).count(), 1);
            simulator.faults(&json!({"bill": "cut"}));
            let (end, _) = bill(channel, zone, true);
            assert!(matches!(end, Billed::Unknown(ChannelDoubt::Damaged(_))), "{end:?}");
        }
        simulator.faults(&json!({}));
    }
}

/// Goal: a 5xx that the channel keeps under an idempotency key does not block an order, and makes
/// no second one. Method: with the request lost, and with its effect there.
#[test]
fn a_stored_failure_is_passed_over_after_a_minute() {
    let (simulator, currency) = (Simulator::start(), "EUR");
    let channel = simulator.card(PATIENT);
    for (n, lost) in [(1, true), (2, false)] {
        simulator.faults(&json!({"answer": "error", "lost": lost}));
        let unknown = Created::Unknown(ChannelDoubt::Status(500));
        assert_eq!(create(&channel, &number(currency, n), "", currency), unknown);
        simulator.faults(&json!({}));
        assert_eq!(
            create(&channel, &number(currency, n), "", currency),
            unknown,
            "the key repeats its answer"
        );
        let minutes_ago = now() - 2.minutes();
        let again =
            || reference(create_since(&channel, &number(currency, n), "", currency, minutes_ago)).0;
        assert_eq!(again(), again());
        let orders =
            simulator.done("GET", &format!("/sim/orders/{}", number(currency, n)), &json!({}));
        assert_eq!(orders.as_array().expect("a list").len(), 1, "{orders}");
    }
}

/// A simulator is not for the network.
#[test]
fn the_simulator_refuses_any_address_but_loopback() {
    let directory = run_directory("channel-sim");
    let directory = directory.to_str().expect("text");
    let output =
        crate::harness::cli(&["channel-sim", "--listen", "0.0.0.0:0", "--data-dir", directory]);
    let (code, _, complaint) = crate::harness::said(&output);
    assert_eq!(code, 1, "{complaint}");
    assert!(complaint.contains("loopback"), "{complaint}");
}
