use super::*;

use domain::code::Code;
use futures_util::future::join_all;
use ubscore::recharge::act::HeldEnd;
use ubscore::recharge::decide::PaymentDecision;
use ubscore::recharge::payment::HeldCause;

/// Goal: a credit needs no callback. Method: every callback is lost; the questions of the till are
/// made due by its clock.
#[test]
fn rch_007_with_every_callback_lost_an_order_is_paid_by_a_query() {
    let shop = Shop::new();
    for (channel, n) in BOTH.into_iter().zip(1..) {
        let order = shop.paying(channel, channel);
        let pay = order.pay.clone().expect("the way to pay");
        let kind = if channel == "wechat" { "code_url" } else { "client_secret" };
        assert!(pay.contains(kind), "{channel}");
        assert!(order.reference.is_some());
        shop.pays(&order, &json!({}));
        shop.later(20, &order);
        let paid = shop.is(&order, RechargeState::Paid);
        assert_eq!((paid.payments, paid.pay, paid.next_at), (1, None, None));
        assert_eq!(shop.available(), (10 + n * 100) * COIN);
        let seen = "SELECT min(seen_by), max(seen_by) FROM channel_payments";
        assert_eq!(shop.site.sql(seen), [["2", "2"]], "by a query");
        shop.later(0, &order);
    }
    shop.stop();
}

/// Goal: an order that was paid before the answer of its create came is asked about at the next
/// create. Method: the answers of WeChat are lost, and so are its callbacks.
#[test]
fn rch_007_an_order_that_was_paid_before_its_create_was_answered_is_credited() {
    let shop = Shop::new();
    let calls = shop.calls("wechat");
    shop.simulator.faults(&json!({"answer": "error", "callbacks": "drop"}));
    let order = shop.made("wechat", "wechat");
    eventually("it is there", || (!shop.books(&order).is_empty()).then_some(()));
    shop.pays(&order, &json!({}));
    assert_eq!(calls.of("query", &order), 0);
    shop.simulator.faults(&json!({"callbacks": "drop"}));
    shop.later(10, &order);
    let paid = shop.is(&order, RechargeState::Paid);
    assert_eq!((paid.payments, calls.of("query", &order)), (1, 1));
    assert_eq!(shop.available(), 110 * COIN);
    shop.stop();
}

/// Goal: callbacks and questions at once credit once.
#[test]
fn rch_008_a_query_and_callbacks_at_once_credit_once() {
    let shop = Shop::new();
    for channel in BOTH {
        let order = shop.paying(channel, channel);
        let trade_no = shop.pays(&order, &json!({}));
        let facts = shop.facts(&order, &trade_no);
        shop.later(20, &order);
        let told = || shop.recharges.told(shop.terms(channel), &facts, SeenBy::Callback);
        let answers = block_on(join_all((0..20).map(|_| told())));
        assert!(answers.iter().all(Result::is_ok));
        shop.is(&order, RechargeState::Paid);
        eventually("the question's end", || shop.calls(channel).is_idle().then_some(()));
        shop.later(0, &order);
    }
    assert_eq!(shop.value("SELECT count(*) FROM external_operations"), "2");
    assert_eq!(shop.value("SELECT count(*) FROM channel_payments"), "2");
    assert_eq!(shop.available(), 210 * COIN);
    shop.stop();
}

/// Goal: an expired order is closed at its channel before it is closed here. A payment that comes
/// first is credited.
#[test]
fn rch_019_an_expired_order_closes_there_and_then_here() {
    let shop = Shop::new();
    for channel in BOTH {
        shop.clock.1.store(0, Ordering::SeqCst);
        let [unpaid, paid] =
            ["a", "b"].map(|key| shop.paying(channel, &format!("{channel}-{key}")));
        shop.pays(&paid, &json!({}));
        shop.later(LIFE_S + 1, &unpaid);
        let closed = shop.is(&unpaid, RechargeState::Closed);
        assert_eq!((closed.closing, closed.code), (Some(ClosingWish::Expired), None));
        assert_eq!((closed.pay, closed.next_at), (None, None));
        assert!(shop.calls(channel).of("close", &unpaid) > 0);
        let (status, _) = shop.simulator.ask("POST", &format!("/pay/{}", unpaid.id), &json!({}));
        assert_eq!(status, 409, "closed there");
        let credited = shop.is(&paid, RechargeState::Paid);
        assert_eq!(credited.closing, Some(ClosingWish::Expired));
    }
    assert_eq!(shop.available(), 210 * COIN);
    shop.stop();
}

/// Goal: the answer to a close closes nothing here. A payment behind a lie is late or in time, and
/// never lost.
#[test]
fn rch_020_a_lie_about_a_close_loses_no_payment() {
    let shop = Shop::new();
    let lies = json!({"lie_about_close": true, "callbacks": "drop"});
    for channel in BOTH {
        shop.clock.1.store(0, Ordering::SeqCst);
        let order = shop.paying(channel, channel);
        shop.simulator.faults(&lies);
        shop.later(LIFE_S + 1, &order);
        eventually("a close and a question", || {
            let calls = shop.calls(channel);
            let asked = calls.of("close", &order) > 0 && calls.of("query", &order) > 0;
            (asked && calls.is_idle()).then_some(())
        });
        let stands = shop.stands(&order);
        assert_eq!(stands.state, RechargeState::Paying, "the question behind it says open");
        assert_eq!(stands.closing, Some(ClosingWish::Expired));
        if channel == "wechat" {
            // The channel has an end of payment of its own; it lies about that too.
            shop.later(FENCE_S, &order);
            shop.is(&order, RechargeState::Closed);
            let trade_no = shop.pays(&order, &json!({"late": true}));
            let late = shop.told(&order, &trade_no);
            assert_eq!(late.decision, PaymentDecision::Credit { pays: false });
            assert_eq!(shop.stands(&order).state, RechargeState::Closed);
        } else {
            shop.pays(&order, &json!({}));
            shop.later(LIFE_S + 600, &order);
            shop.is(&order, RechargeState::Paid);
        }
        shop.simulator.faults(&json!({"callbacks": "drop"}));
    }
    assert_eq!(shop.available(), 210 * COIN);
    shop.stop();
}

/// Goal: no create follows the wish to close. Method: creates are lost until a user cancels; then
/// the channel is back. A decision on an older row writes nothing.
#[test]
fn rch_021_no_create_follows_the_wish_to_close() {
    let shop = Shop::new();
    for channel in BOTH {
        shop.clock.1.store(0, Ordering::SeqCst);
        shop.simulator.faults(&json!({"answer": "away", "lost": true, "callbacks": "drop"}));
        let order = shop.made(channel, channel);
        let calls = shop.calls(channel);
        let stale = eventually("a pause behind three tries", || {
            let stands = shop.stands(&order);
            let soon = shop.clock.now_ns() / 1_000 + 500_000;
            let next_us = stands.next_at.map_or(0, Timestamp::as_microsecond);
            let far = u64::try_from(next_us).expect("a time") > soon;
            (stands.attempts > 3 && far && calls.is_idle()).then_some(stands)
        });
        assert_eq!(stale.state, RechargeState::Init);
        shop.wished(&order, ClosingWish::Cancelled);
        let creates = calls.of("create", &order);
        let tried = shop.recharges.tried(&stale, Timestamp::MAX);
        assert_eq!(block_on(tried).expect("an answer"), None, "a decision on an older row");
        shop.simulator.faults(&json!({"callbacks": "drop"}));
        // WeChat's end of payment is the fence of an order that it does not know.
        shop.later(if channel == "wechat" { FENCE_S } else { 400 }, &order);
        let closed = shop.is(&order, RechargeState::Closed);
        assert_eq!(closed.closing, Some(ClosingWish::Cancelled));
        assert_eq!(calls.of("create", &order), creates, "{channel}");
        assert_eq!(shop.books(&order), Vec::<Value>::new(), "{channel}");
    }
    shop.stop();
}

/// Goal: a channel that is away ends nothing, during each call, and everything ends when it is
/// back.
#[test]
fn rch_022_a_channel_that_is_away_ends_nothing() {
    let shop = Shop::new();
    let back = json!({"callbacks": "drop"});
    for channel in BOTH {
        let calls = shop.calls(channel);
        let signed = ["unsigned"].into_iter().filter(|_| channel == "wechat");
        for fault in ["away", "error", "rubbish"].into_iter().chain(signed) {
            let away = json!({"answer": fault, "lost": true, "callbacks": "drop"});
            shop.clock.1.store(0, Ordering::SeqCst);
            shop.simulator.faults(&away);
            let order = shop.made(channel, &format!("{channel}-{fault}"));
            eventually("tries", || (calls.of("create", &order) > 1).then_some(()));
            assert_eq!(shop.stands(&order).state, RechargeState::Init, "{fault}");
            shop.simulator.faults(&back);
            // A create of Stripe that failed is looked for a minute later.
            shop.later(70, &order);
            shop.is(&order, RechargeState::Paying);

            shop.simulator.faults(&away);
            let asked = calls.of("query", &order);
            shop.later(100, &order);
            eventually("a question", || (calls.of("query", &order) > asked).then_some(()));
            shop.wished(&order, ClosingWish::Cancelled);
            let asked = calls.of("close", &order);
            shop.later(500, &order);
            eventually("a close", || (calls.of("close", &order) > asked).then_some(()));
            assert_eq!(shop.stands(&order).state, RechargeState::Paying, "{fault}");
            shop.simulator.faults(&back);
            shop.later(900, &order);
            shop.is(&order, RechargeState::Closed);
        }
    }
    shop.stop();
}

/// Goal: a channel's refusal of a new order closes it with its code, once the channel says that it
/// has none.
#[test]
fn a_refused_order_is_closed() {
    let shop = Shop::new();
    for channel in BOTH {
        shop.calls(channel).refuses.store(true, Ordering::SeqCst);
        let order = shop.made(channel, channel);
        let closed = shop.is(&order, RechargeState::Closed);
        assert_eq!(closed.code, Some(Code::ChannelRefused));
        assert_eq!(closed.closing, Some(ClosingWish::Refused));
        let calls = shop.calls(channel);
        assert_eq!((calls.of("create", &order), calls.of("query", &order)), (1, 1), "{channel}");
    }
    shop.stop();
}

/// Goal: an order is not asked about for ever where its payment has ended without it. Method: the
/// order is away while its payment comes and is dismissed, and is there again behind that.
#[test]
fn an_order_that_its_payment_has_left_is_closed() {
    let shop = Shop::new();
    for channel in BOTH {
        shop.clock.1.store(0, Ordering::SeqCst);
        let order = shop.paying(channel, channel);
        let trade_no = shop.pays(&order, &json!({}));
        let its = format!("recharge_id = ulid_uuid('{}')", order.id.ulid());
        shop.site.sql(&format!(
            "SET session_replication_role = replica; \
             CREATE TABLE away AS SELECT * FROM recharges_tb WHERE {its}; \
             DELETE FROM recharges_tb WHERE {its}"
        ));
        let held = shop.told(&order, &trade_no);
        assert_eq!(held.decision, PaymentDecision::Hold(HeldCause::Unmatched));
        let payment = held.payment.expect("recorded");
        let dismissed = shop.recharges.ended(&payment, HeldEnd::Dismiss, None, "an operator");
        block_on(dismissed).expect("dismissed");
        shop.site.sql(
            "SET session_replication_role = replica; \
             INSERT INTO recharges_tb SELECT * FROM away; DROP TABLE away",
        );
        shop.later(20, &order);
        eventually("a question", || (shop.calls(channel).of("query", &order) > 0).then_some(()));
        assert_eq!(shop.stands(&order).state, RechargeState::Paying, "without a wish it waits");
        shop.wished(&order, ClosingWish::Cancelled);
        shop.later(400, &order);
        let closed = shop.is(&order, RechargeState::Closed);
        assert_eq!((closed.next_at, closed.payments), (None, 0));
    }
    assert_eq!(shop.available(), 10 * COIN);
    shop.stop();
}
