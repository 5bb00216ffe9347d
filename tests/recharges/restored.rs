use ubscore::coordinator::recharges::recovered::proven;
use ubscore::postgres::promotions::remade::Remade;
use ubscore::postgres::recover::Restored;
use ubscore::recharge::{PaymentId, movement};

use super::*;

/// Goal: a payment that was credited before a restore is not credited again behind it, though its
/// order was over. Method: its row and that of its movement are lost, and a repair has brought the
/// external operation back.
#[test]
fn a_payment_behind_a_restore_is_credited_once() {
    let desk = Desk::new();
    let order = desk.paying("order-1");
    desk.closed(&order);
    let facts = desk.facts(&order, "4200001");
    let first = desk.told(&facts).payment.expect("recorded");
    assert_eq!(desk.available(USER), (110 * COIN).to_string());
    let session = desk.site.session();
    session.sql("BEGIN; SET LOCAL session_replication_role = replica");
    session.sql("DELETE FROM channel_payments; DELETE FROM recharge_movements");
    session.sql("UPDATE recharges_tb SET payments = 0");
    session.sql("COMMIT");
    let again = desk.told(&facts);
    assert_eq!(again.decision, PaymentDecision::Credit { pays: false });
    assert_eq!(again.payment.expect("recorded").id, first.id);
    assert_eq!(desk.available(USER), (110 * COIN).to_string());
    assert_eq!(desk.credits(), ["1", "1", "1"]);
    desk.stopped();
}

/// Rows of a restore: the credit of a key without a movement, with its money.
fn credited_before(desk: &Desk, key: &str, coins: u64) {
    desk.site.sql(&format!(
        "INSERT INTO external_operations (order_number, user_id, amount, asset_id, op, \
                                          balance_after, idem_key) \
         VALUES (77, {USER}, {coins}e8, 3, 4, {coins}e8, '{key}')"
    ));
}

impl Desk {
    /// The same behind a restore of its database, a moment ago.
    pub(super) fn behind_a_restore(self, needs_recover: bool) -> Desk {
        let Desk { site, recharges, coordinator, terms, tasks, engine } = self;
        let at: Timestamp = "2200-01-01T00:00:00Z".parse().expect("a time");
        site.sql("UPDATE engine_state SET restored_at = '2200-01-01', recover_needed = TRUE");
        let recharges = recharges.behind(Some(Restored { at, needs_recover }));
        Desk { site, recharges, coordinator, terms, tasks, engine }
    }

    fn closed(&self, order: &Recharge) {
        let wished = self.recharges.wished(order, ClosingWish::Expired, "till");
        block_on(wished).expect("wished");
        block_on(self.recharges.closed(order)).expect("closed");
    }
}

fn order_key(order: &Recharge) -> String {
    movement::recharge_credit(order.id)
}

/// Goal: an order that was PAID before a restore, and is closed behind it, is not credited a second
/// time: its payment has the credit that is there, and a second one is for people. Method: its
/// credit is there with its money.
#[test]
fn a_closed_order_with_a_restored_credit_adopts_it_once() {
    let desk = Desk::new();
    let order = desk.paying("order-1");
    desk.closed(&order);
    credited_before(&desk, &order_key(&order), 100);
    let answer = desk.told(&desk.facts(&order, "4200001"));
    assert_eq!(answer.decision, PaymentDecision::Credit { pays: false });
    assert_eq!(desk.available(USER), (10 * COIN).to_string());
    assert_eq!(desk.credits(), ["1", "1", "1"]);
    assert_eq!(desk.stands(&order), (RechargeState::Closed, 1, 0));
    let (second, cause) = desk.held(&desk.facts(&order, "4200002"));
    assert_eq!(cause, HeldCause::Duplicate);
    desk.not_credited(&second, "was credited before");
    let named = "SELECT count(*) FROM audit_recharges('epoch', 'infinity')";
    assert_eq!(desk.value(named), "0");
    desk.stopped();
}

/// Goal: a restored credit is adopted in each state of its order, and with other facts the
/// payment is held. Method: INIT and PAYING with the credit of the order; PAYING with that of the
/// payment, which was late once; another amount.
#[test]
fn rch_037_a_restored_credit_is_adopted_once() {
    let desk = Desk::new().behind_a_restore(false);
    let named = "SELECT count(*) FROM audit_recharges('epoch', 'infinity') \
                  WHERE what LIKE 'RECOVER_NEEDED: %'";
    for (place, order) in [desk.order("init"), desk.paying("paying")].into_iter().enumerate() {
        let number = 900 + place;
        desk.site.sql(&format!(
            "INSERT INTO external_operations (order_number, user_id, amount, asset_id, op, \
                                              balance_after, idem_key) \
             VALUES ({number}, {USER}, 100e8, 3, 4, 110e8, '{}')",
            order_key(&order)
        ));
        assert_eq!(desk.value(named), "1");
        let facts = desk.facts(&order, &format!("420000{place}"));
        // The channel has given it back since: the user was credited all the same.
        let facts = Facts { returned: Returned::Whole, ..facts };
        let told = desk.recharges.told_in_turn(&desk.terms, &facts, SeenBy::Query, true);
        let answer = block_on(told).expect("an answer");
        assert_eq!(answer.decision, PaymentDecision::Credit { pays: true });
        assert_eq!(desk.stands(&order), (RechargeState::Paid, 1, 0));
        assert_eq!(desk.told(&facts).decision, PaymentDecision::Repeat);
        assert_eq!(desk.value(named), "0");
    }
    let late = desk.paying("late");
    let key = movement::payment_credit(PaymentId::of("wechat", "late"));
    credited_before(&desk, &key, 100);
    let answer = desk.told(&desk.facts(&late, "late"));
    assert_eq!(answer.decision, PaymentDecision::Credit { pays: false });
    assert_eq!(desk.stands(&late), (RechargeState::Paying, 1, 0));
    let other = desk.paying("other");
    desk.site.sql(&format!(
        "INSERT INTO external_operations (order_number, user_id, amount, asset_id, op, \
                                          balance_after, idem_key) \
         VALUES (78, {USER}, 99e8, 3, 4, 99e8, '{}')",
        order_key(&other)
    ));
    let (held, cause) = desk.held(&desk.facts(&other, "other"));
    assert_eq!(cause, HeldCause::Duplicate);
    for end in [HeldEnd::Credit, HeldEnd::Dismiss] {
        let ended = desk.recharges.ended(&held, end, None, "an operator");
        assert_eq!(block_on(ended).expect_err("refused").code, Code::NotReturnable);
    }
    assert_eq!(desk.available(USER), (10 * COIN).to_string(), "nothing was booked");
    desk.stopped();
}

/// Goal: a lost order comes back from its proof, once, with its promotion and without a bonus.
#[test]
fn rch_037_a_lost_order_is_remade_from_its_proof() {
    let desk = Desk::new().behind_a_restore(false);
    let order = desk.paying("order-1");
    let facts = desk.facts(&order, "4200001");
    let session = desk.site.session();
    session.sql("BEGIN; SET LOCAL session_replication_role = replica; DELETE FROM recharges_tb");
    session.sql("COMMIT");
    let proofs = desk.recharges.proofs();
    let assets = catalog();
    let remade =
        |facts: &Facts| proven(proofs, &assets.load(), &desk.terms, facts, Timestamp::UNIX_EPOCH);
    let again = remade(&facts).expect("a proof of ours");
    assert_eq!((again.id, again.user, again.amount), (order.id, order.user, order.amount));
    assert_eq!(again.idem_key, format!("recovered/{}", order.id.ulid()));
    assert_eq!(again.fingerprint, order.fingerprint);
    assert_eq!(remade(&Facts { proof: None, ..facts.clone() }), None);
    let broken = facts.proof.as_ref().map(|proof| proof.replace(".3e9.", ".3ea."));
    assert_eq!(remade(&Facts { proof: broken, ..facts.clone() }), None);
    for end in [Remade::Made { lacked: None }, Remade::Found] {
        let made = block_on(desk.recharges.remade(again.clone(), false, "a test"));
        assert_eq!(made.expect("made"), end);
    }
    assert_eq!(desk.told(&facts).decision, PaymentDecision::Credit { pays: true });
    assert_eq!(desk.available(USER), (110 * COIN).to_string());
    desk.stopped();
}

/// Goal: until the recovery has run, no operator sends money back.
#[test]
fn rch_037_no_refund_goes_out_before_the_recovery() {
    let desk = Desk::new().behind_a_restore(true);
    let order = desk.paying("order-1");
    let payment = desk.told(&desk.facts(&order, "4200001")).payment.expect("recorded");
    let refund = desk.recharges.refund(&payment, None, "key", "an operator");
    let refused = block_on(refund).expect_err("refused");
    assert_eq!(refused.code, Code::NotReturnable);
    assert!(refused.detail.expect("why").contains("ubscore recharge recover"));
    assert_eq!(desk.value("SELECT count(*) FROM recharge_returns"), "0");
    desk.stopped();
}
