use std::collections::VecDeque;
use std::io::Cursor;
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use ubscore::channels::wire::{Wire, WireCall, WireError, WireStream};
use ubscore::channels::{Channel, RefundAsk};
use ubscore::recharge::answers::{ChannelDoubt, Refunded};

use super::forged::{Message, adapter};
use super::stripe;

const NO: &str = "wrf_01JFVQ2X8Z0Y1M3N4P5R6S7T8V";

/// An answer: status and body.
type Answer = (u16, Value);

/// A network with these answers in turn, and silence behind them. It keeps each call.
#[derive(Default)]
struct Script {
    answers: Mutex<VecDeque<Answer>>,
    calls: Mutex<Vec<WireCall>>,
}

impl Wire for Script {
    fn open(&self, call: &WireCall) -> Result<WireStream, WireError> {
        self.calls.lock().expect("no panic").push(call.clone());
        let Some((status, body)) = self.answers.lock().expect("no panic").pop_front() else {
            return Err(WireError::Unanswered("silent".to_owned()));
        };
        let message = Message::signed(body.to_string().as_bytes());
        let head = message.headers();
        Ok(WireStream { status, head, body: Box::new(Cursor::new(message.body)) })
    }

    fn own_target(&self, _: &str) -> Option<String> {
        None
    }
}

/// Asks an adapter for a refund of 100. Returns its end, and the calls: `look` or `post`.
fn refund(is_wechat: bool, answers: &[Answer]) -> (Refunded, Vec<WireCall>) {
    let script = Arc::<Script>::default();
    script.answers.lock().expect("no panic").extend(answers.iter().cloned());
    let wire = Arc::clone(&script) as Arc<dyn Wire>;
    let channel: Box<dyn Channel> = if is_wechat {
        Box::new(adapter(wire))
    } else {
        Box::new(stripe(&["whsec_one"], "sk_test", wire))
    };
    let end = channel.refund(&RefundAsk {
        return_no: NO,
        merchant_no: "wrc_01JFVQ2X8Z0Y1M3N4P5R6S7T8V",
        trade_no: "pi_1",
        minor_units: 100,
        total_minor_units: 10_000,
        currency: "CNY",
    });
    let calls = script.calls.lock().expect("no panic").clone();
    (end, calls)
}

/// Runs each case in turn: the answers, the end, and the methods of the calls.
fn run(is_wechat: bool, cases: &[(&[Answer], Refunded, &[&str])]) {
    for (answers, want, methods) in cases {
        let (end, calls) = refund(is_wechat, answers);
        assert_eq!(end, *want, "{answers:?}");
        let called: Vec<&str> = calls.iter().map(|call| call.method.as_str()).collect();
        assert_eq!(called, *methods, "{answers:?}");
    }
}

fn silent() -> Refunded {
    Refunded::Unknown(ChannelDoubt::Unanswered("silent".to_owned()))
}

fn refused(code: &str) -> Refunded {
    Refunded::Refused(code.to_owned())
}

fn unknown(code: &str) -> Refunded {
    Refunded::Unknown(ChannelDoubt::Code(code.to_owned()))
}

const UNDER_WAY: Refunded = Refunded::UnderWay { is_stuck: false };

/// Goal: no refusal of a repeat hides a refund that was accepted. Method: each answer to the look
/// before a refund, to the refund, and to the look behind its refusal.
#[test]
fn a_refund_of_wechat_is_refused_only_if_it_is_not_there() {
    let is = |status: &str| {
        (200, json!({"out_refund_no": NO, "status": status, "amount": {"refund": 100}}))
    };
    let says = |status: u16, code: &str| (status, json!({"code": code, "message": "x"}));
    let absent = || says(404, "RESOURCE_NOT_EXISTS");
    let bad = || says(400, "PARAM_ERROR");
    let over = || says(400, "INVALID_REQUEST");
    let failing = Refunded::Unknown(ChannelDoubt::Status(500));
    let (look, sent, again) = (&["GET"][..], &["GET", "POST"][..], &["GET", "POST", "GET"][..]);
    run(
        true,
        &[
            (&[is("SUCCESS")], Refunded::Done, look),
            (&[is("PROCESSING")], UNDER_WAY, look),
            (&[is("CLOSED")], refused("CLOSED"), look),
            (&[], silent(), look),
            (&[says(500, "SYSTEM_ERROR")], failing.clone(), look),
            (&[bad()], unknown("PARAM_ERROR"), look),
            (&[absent(), is("PROCESSING")], UNDER_WAY, sent),
            (&[absent(), says(403, "NOT_ENOUGH")], unknown("NOT_ENOUGH"), sent),
            (&[absent()], silent(), sent),
            (&[absent(), bad(), is("PROCESSING")], UNDER_WAY, again),
            (&[absent(), bad(), is("SUCCESS")], Refunded::Done, again),
            (&[absent(), bad(), says(500, "SYSTEM_ERROR")], failing, again),
            (&[absent(), bad()], silent(), again),
            (&[absent(), bad(), absent()], refused("PARAM_ERROR"), again),
            (&[absent(), over(), absent()], refused("INVALID_REQUEST"), again),
            (&[absent(), over(), is("PROCESSING")], UNDER_WAY, again),
        ],
    );
}

/// A page of refunds of Stripe; the names are ours or another's.
fn page(has_more: bool, refunds: &[(&str, &str)]) -> Answer {
    let refund = |(id, status): &(&str, &str)| {
        let no = if id.starts_with("re_ours") { NO } else { "wrf_other" };
        json!({"id": id, "status": status, "amount": 100, "metadata": {"ubscore_return": no}})
    };
    let data: Vec<Value> = refunds.iter().map(refund).collect();
    (200, json!({"object": "list", "data": data, "has_more": has_more}))
}

fn says(status: u16, code: &str) -> Answer {
    (status, json!({"error": {"type": "invalid_request_error", "code": code}}))
}

/// The same for Stripe. That a payment is wholly refunded is no refusal of ours.
#[test]
fn a_refund_of_stripe_is_refused_only_if_it_is_not_there() {
    let already = || says(400, "charge_already_refunded");
    let disputed = || says(400, "charge_disputed");
    let none = || page(false, &[("re_1", "succeeded")]);
    let ours = |status: &str| page(false, &[("re_1", "succeeded"), ("re_ours", status)]);
    let (look, sent, again) = (&["GET"][..], &["GET", "POST"][..], &["GET", "POST", "GET"][..]);
    let (_, made) = ours("succeeded");
    run(
        false,
        &[
            (&[ours("succeeded")], Refunded::Done, look),
            (&[ours("pending")], UNDER_WAY, look),
            (&[ours("failed")], refused("failed"), look),
            (&[], silent(), look),
            // The key of another account knows no such payment. Our refund may be there.
            (&[says(404, "resource_missing")], unknown("resource_missing"), look),
            (&[(200, json!({"data": []}))], Refunded::Unknown(ChannelDoubt::Unreadable), look),
            (&[none(), (200, made["data"][1].clone())], Refunded::Done, sent),
            (&[none()], silent(), sent),
            (&[none(), says(400, "balance_insufficient")], unknown("balance_insufficient"), sent),
            (&[none(), already(), ours("succeeded")], Refunded::Done, again),
            (&[none(), already(), none()], unknown("charge_already_refunded"), again),
            (&[none(), already()], silent(), again),
            (&[none(), disputed(), ours("pending")], UNDER_WAY, again),
            (&[none(), disputed(), none()], refused("charge_disputed"), again),
        ],
    );
}

/// Goal: a refund on a later page is found, and an end of patience is not an end of the list.
#[test]
fn a_list_with_more_pages_does_not_say_that_a_refund_is_not_there() {
    let first = || page(true, &[("re_9", "succeeded"), ("re_8", "succeeded")]);
    let (end, calls) = refund(false, &[first(), page(false, &[("re_ours", "succeeded")])]);
    assert_eq!((end, calls.len()), (Refunded::Done, 2));
    assert!(calls[1].target.ends_with("&starting_after=re_8"), "{}", calls[1].target);
    // Money that left is found behind one that failed, on this page or the next.
    let failed = || page(true, &[("re_ours2", "failed")]);
    let (end, _) = refund(false, &[failed(), page(false, &[("re_ours1", "succeeded")])]);
    assert_eq!(end, Refunded::Done);
    let (end, _) = refund(false, &[failed(), page(false, &[("re_1", "succeeded")])]);
    assert_eq!(end, refused("failed"));

    let is_get = |call: &WireCall| call.method.as_str() == "GET";
    let endless: Vec<Answer> = (0..50)
        .map(|n| page(true, &[(if n % 2 == 0 { "re_a" } else { "re_b" }, "succeeded")]))
        .collect();
    let circle = vec![first(), first()];
    let empty = vec![page(true, &[])];
    let cut = vec![first()];
    for answers in [endless, circle, empty, cut] {
        let (end, calls) = refund(false, &answers);
        assert!(matches!(end, Refunded::Unknown(_)), "{end:?}");
        assert!(calls.len() <= 10 && calls.iter().all(is_get), "{calls:?}");
    }
}
