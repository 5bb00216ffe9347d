use super::*;

use domain::code::Code;
use ubscore::recharge::decide::PaymentDecision;
use ubscore::recharge::payment::{Disposition, HeldCause, RechargePayment};
use ubscore::recharge::returned::ReturnState;
use ubscore::recharge::terms::PaymentRule;

fn payment(shop: &Shop, answer: &PaymentAnswer) -> RechargePayment {
    let id = answer.payment.as_ref().expect("recorded").id;
    block_on(shop.reads.payment(id)).expect("read").expect("a payment")
}

fn until(shop: &Shop, answer: &PaymentAnswer, to: Disposition) -> RechargePayment {
    eventually(to.name(), || {
        Some(payment(shop, answer)).filter(|payment| payment.disposition == to)
    })
}

/// The refunds of an order, in the simulator's books.
fn refunds(shop: &Shop, order: &Recharge) -> Vec<Value> {
    let orders = shop.books(order);
    let payments = orders.iter().flat_map(|order| order["payments"].as_array().expect("a list"));
    payments.flat_map(|payment| payment["returns"].as_array().expect("a list")).cloned().collect()
}

/// The sum of a channel's suspense, smallest units.
fn suspense(shop: &Shop, channel: &str) -> String {
    shop.value(&format!(
        "SELECT COALESCE(sum(CASE WHEN credit = '{channel}/suspense' THEN amount \
                                  WHEN debit = '{channel}/suspense' THEN -amount END), 0) \
           FROM recharge_movements"
    ))
}

/// An order that was paid twice at its channel, with the answer about the second payment.
fn paid_twice(shop: &Shop, channel: &str, key: &str) -> (Recharge, PaymentAnswer) {
    let order = shop.paying(channel, key);
    let paid = shop.simulator.pay(&order.id.to_string(), &json!({"times": 2}));
    let numbers: Vec<&str> = (0..2).map(|n| paid["trade_nos"][n].as_str().expect("text")).collect();
    let first = shop.told(&order, numbers[0]);
    assert_eq!(first.decision, PaymentDecision::Credit { pays: true });
    let second = shop.told(&order, numbers[1]);
    assert_eq!(second.decision, PaymentDecision::Return);
    shop.till.look(order.id);
    (order, second)
}

/// Goal: a second payment goes back at the channel, once, also while the channel is away at first.
/// One that the channel refuses to give back is held.
#[test]
fn rch_017_a_second_payment_goes_back_at_the_channel() {
    let shop = Shop::new();
    for (channel, refused) in BOTH.into_iter().zip(["CLOSED", "failed"]) {
        let (order, second) = paid_twice(&shop, channel, channel);
        let returned = until(&shop, &second, Disposition::Returned);
        assert_eq!(returned.amount.map(Amount::units), Some(100 * COIN));
        let there = refunds(&shop, &order);
        assert_eq!(there.len(), 1, "{there:?}");
        assert_eq!(there[0]["amount"], PRICE);
        assert_eq!(suspense(&shop, channel), "0");

        shop.simulator.faults(&json!({"refunds": refused, "callbacks": "drop"}));
        let (_, second) = paid_twice(&shop, channel, &format!("{channel}-refused"));
        let held = until(&shop, &second, Disposition::Held);
        assert_eq!(held.cause, Some(HeldCause::ReturnRefused));
        shop.simulator.faults(&json!({"callbacks": "drop"}));
        assert_eq!(suspense(&shop, channel), (100 * COIN).to_string(), "held");
    }
    let open = "SELECT count(*) FROM recharge_returns WHERE next_at IS NOT NULL";
    assert_eq!(shop.value(open), "0");
    assert_eq!(shop.available(), 410 * COIN, "no user was touched by a return");
    shop.stop();
}

/// Goal: a return is asked for until it ends, also while its channel is away, and leaves once.
#[test]
fn rch_022_a_return_survives_a_channel_that_is_away() {
    let shop = Shop::new();
    for channel in BOTH {
        for lost in [true, false] {
            let order = shop.paying(channel, &format!("{channel}-{lost}"));
            let paid = shop.simulator.pay(&order.id.to_string(), &json!({"times": 2}));
            let number = |n: usize| paid["trade_nos"][n].as_str().expect("text").to_owned();
            shop.told(&order, &number(0));
            // The answers are lost, and in the second round the refund is made all the same.
            shop.simulator.faults(&json!({"answer": "error", "lost": lost, "callbacks": "drop"}));
            let second = shop.told(&order, &number(1));
            eventually("tries", || (shop.calls(channel).of("refund", &order) > 1).then_some(()));
            assert_eq!(payment(&shop, &second).disposition, Disposition::Returning);
            shop.simulator.faults(&json!({"callbacks": "drop"}));
            until(&shop, &second, Disposition::Returned);
            assert_eq!(refunds(&shop, &order).len(), 1, "{channel} {lost}");
        }
    }
    shop.stop();
}

/// Goal: with `late = return` a payment behind CLOSED goes back at the channel.
#[test]
fn rch_018_a_late_payment_goes_back_at_the_channel() {
    let shop =
        Shop::with(RechargePolicy { late: PaymentRule::Return, ..RechargePolicy::default() });
    for channel in BOTH {
        shop.clock.1.store(0, Ordering::SeqCst);
        let order = shop.paying(channel, channel);
        shop.wished(&order, ClosingWish::Cancelled);
        shop.later(301, &order);
        shop.is(&order, RechargeState::Closed);
        let trade_no = shop.pays(&order, &json!({"late": true}));
        let late = shop.told(&order, &trade_no);
        assert_eq!(late.decision, PaymentDecision::Return);
        until(&shop, &late, Disposition::Returned);
        assert_eq!(refunds(&shop, &order).len(), 1);
        assert_eq!(suspense(&shop, channel), "0");
        assert_eq!(shop.stands(&order).state, RechargeState::Closed);
    }
    assert_eq!(shop.available(), 10 * COIN);
    shop.stop();
}

/// Goal: a refund of a credited payment goes out through the till and takes the user's money for
/// good; one that its channel refuses gives the money back.
#[test]
fn rch_031_a_refund_of_a_credited_payment_goes_out_by_the_till() {
    let shop = Shop::new();
    let ends = |id, state| {
        eventually("its end", || {
            let row = block_on(shop.reads.recharge_return(id)).expect("read").expect("a return");
            (row.state == state).then_some(row)
        })
    };
    for (channel, refused) in BOTH.into_iter().zip(["CLOSED", "failed"]) {
        let order = shop.paying(channel, channel);
        let trade_no = shop.pays(&order, &json!({}));
        let payment = shop.told(&order, &trade_no).payment.expect("recorded");
        let before = shop.available();
        let refund = |amount, idem_key: &str| {
            let asked = shop.recharges.refund(&payment, amount, idem_key, "an operator");
            let row = block_on(asked).expect("set apart").row;
            shop.till.look(order.id);
            row.id
        };
        let part = refund(Amount::new(40 * COIN), &format!("{channel}-part"));
        ends(part, ReturnState::Done);
        let there = refunds(&shop, &order);
        assert_eq!((there.len(), &there[0]["amount"]), (1, &json!(PRICE * 2 / 5)), "{there:?}");
        assert_eq!(shop.available(), before - 40 * COIN);

        shop.simulator.faults(&json!({"refunds": refused, "callbacks": "drop"}));
        let rest = refund(None, &format!("{channel}-rest"));
        ends(rest, ReturnState::Failed);
        shop.simulator.faults(&json!({"callbacks": "drop"}));
        assert_eq!(shop.available(), before - 40 * COIN, "it has its money again");
        assert_eq!(shop.value("SELECT sum(frozen) FROM balances_tb"), "0");
    }
    let found = "SELECT count(*) FROM audit_recharges('epoch', 'infinity')";
    assert_eq!(shop.value(found), "0");
    shop.stop();
}

/// Goal: nothing is sent while the channel has given back more than is known here. Method: a refund
/// at the channel of cards that its callbacks do not tell; the user has the money again.
#[test]
fn rch_034_no_refund_is_sent_behind_one_of_the_channel() {
    let shop = Shop::new();
    let order = shop.paying("card", "card");
    let trade_no = shop.pays(&order, &json!({}));
    let payment = shop.told(&order, &trade_no).payment.expect("recorded");
    let before = shop.available();
    let by_itself = format!("/sim/refund/{}", order.id);
    shop.simulator.done("POST", &by_itself, &json!({"amount": 1_000}));
    let asked = shop.recharges.refund(&payment, Amount::new(40 * COIN), "key", "an operator");
    let id = block_on(asked).expect("set apart").row.id;
    shop.till.look(order.id);
    let row = eventually("its end", || {
        let row = block_on(shop.reads.recharge_return(id)).expect("read").expect("a return");
        (row.state == ReturnState::Failed).then_some(row)
    });
    assert_eq!(row.code, Some(Code::NotReturnable));
    assert_eq!(shop.calls("card").of("refund", &order), 0, "nothing was sent");
    assert_eq!(shop.available(), before);
    shop.stop();
}
