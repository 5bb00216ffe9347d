use ubscore::recharge::facts::Taking;
use ubscore::recharge::returned::{RechargeReturn, ReturnKind};
use ubscore::recharge::{ReturnId, movement};

use super::*;

impl Desk {
    /// Gives an order a reserved bonus of 5, for which a promotion was funded.
    fn reserves(&self, order: &Recharge) {
        let ulid = order.id.ulid();
        let session = self.site.session();
        session.sql("BEGIN; SET LOCAL session_replication_role = replica");
        session.sql(
            "INSERT INTO promotions_tb (name, asset_id, min_amount, fixed, per_user_max, \
                                        starts_at, ends_at, status) \
             VALUES ('spring', 3, 1, 5e8, 100, '2020-01-01', '2200-01-01', 1) \
                 ON CONFLICT DO NOTHING",
        );
        session.sql(&format!(
            "INSERT INTO recharge_movements (amount, at, asset_id, kind, debit, credit, \
                                             movement_key) \
             VALUES (5e8, now(), 3, 15, 'outside', 'promotion/spring', 'fund/{ulid}')"
        ));
        session.sql(&format!(
            "UPDATE recharges_tb SET bonus = 5e8, bonus_state = 1, promotion = 'spring' \
              WHERE recharge_id = ulid_uuid('{ulid}')"
        ));
        session.sql("COMMIT");
    }

    /// A row that a repair has brought back. Its money is in the balance of before.
    fn restored(&self, number: u64, key: &str, op: u8, units: u64) {
        self.site.sql(&format!(
            "INSERT INTO external_operations (order_number, user_id, amount, asset_id, op, \
                                              balance_after, idem_key) \
             VALUES ({number}, {USER}, {units}, 3, {op}, 1e9, '{key}')"
        ));
    }

    /// The bonus_state of an order, and whether the till looks at it.
    fn bonus(&self, order: &Recharge) -> Vec<String> {
        let row = format!(
            "SELECT bonus_state, next_at IS NOT NULL FROM recharges_tb \
              WHERE recharge_id = ulid_uuid('{}')",
            order.id.ulid()
        );
        self.site.sql(&row).remove(0)
    }

    fn coherent(&self) {
        let found = "SELECT subject, what FROM audit_recharges('epoch', 'infinity') \
                     UNION ALL SELECT subject, what FROM audit_promotions('epoch', 'infinity')";
        assert_eq!(self.site.sql(found), Vec::<Vec<String>>::new());
    }
}

/// Goal: behind a restore a bonus is with its user once, or its promotion gets it again, and never
/// both. Method: UBSCore's log has the credit and the bonus, the credit alone, the bonus alone, or
/// neither; and a HELD payment with both that an operator credits.
#[test]
fn rch_037_a_restored_bonus_is_adopted_or_stays_with_its_promotion() {
    let desk = Desk::new().behind_a_restore(false);
    for (place, (credit, bonus, booked, state)) in [
        (true, true, 0, ["3", "f"]),
        (true, false, 0, ["1", "t"]),
        (false, true, 100, ["3", "f"]),
        (false, false, 105, ["3", "f"]),
    ]
    .into_iter()
    .enumerate()
    {
        let order = desk.paying(&format!("order-{place}"));
        desk.reserves(&order);
        let number = 900 + 2 * place as u64;
        if credit {
            desk.restored(number, &movement::recharge_credit(order.id), 4, 100 * COIN);
        }
        if bonus {
            desk.restored(number + 1, &movement::recharge_bonus(order.id), 4, 5 * COIN);
        }
        let before: u64 = desk.available(USER).parse().expect("a number");
        let facts = desk.facts(&order, &format!("420000{place}"));
        for decision in [PaymentDecision::Credit { pays: true }, PaymentDecision::Repeat] {
            assert_eq!(desk.told(&facts).decision, decision);
            assert_eq!(desk.available(USER), (before + booked * COIN).to_string(), "{place}");
            assert_eq!(desk.bonus(&order), state, "{place}");
        }
        desk.coherent();
    }
    let order = desk.paying("held");
    desk.reserves(&order);
    let (held, _) = desk.held(&Facts { discount: true, ..desk.facts(&order, "4200009") });
    desk.restored(990, &movement::recharge_credit(order.id), 4, 100 * COIN);
    desk.restored(991, &movement::recharge_bonus(order.id), 4, 5 * COIN);
    let before = desk.available(USER);
    desk.ended(&held, HeldEnd::Credit);
    assert_eq!(desk.available(USER), before);
    assert_eq!(desk.bonus(&order), ["3", "f"]);
    desk.coherent();
    desk.stopped();
}

/// Goal: the part of a bonus that went with a lost refund or taking is found with it, as large as
/// it was then, and nothing is debited; one that the log lacks is not taken later.
#[test]
fn rch_037_a_lost_refund_is_found_again_with_its_bonus() {
    let desk = Desk::new().behind_a_restore(false);
    let order = desk.paying("order-1");
    desk.reserves(&order);
    let payment = desk.told(&desk.facts(&order, "4200001")).payment.expect("recorded");
    let take = |number: &str, coins: u64| -> RechargeReturn {
        let taking = Taking {
            merchant_no: None,
            trade_no: payment.trade_no.clone(),
            number: number.to_owned(),
            minor_units: i64::try_from(coins).expect("a small number") * 100,
            currency: payment.currency.clone(),
            at: Timestamp::UNIX_EPOCH,
        };
        let taken = block_on(desk.recharges.taken(&desk.terms, &taking)).expect("an answer");
        taken.row.expect("booked")
    };
    let refund = |key: &str| ReturnId::of(payment.id, ReturnKind::Refund, key);
    let taken = ReturnId::of(payment.id, ReturnKind::Taken, "dp_1");
    // 40 with 2; 20 without; 10 with 1, where 0.5 is its share.
    for (number, id, coins, bonus) in
        [(900, refund("a"), 40, 2), (902, refund("b"), 20, 0), (904, taken, 10, 1)]
    {
        desk.restored(number, &movement::return_key(id), 5, coins * COIN);
        if bonus > 0 {
            desk.restored(number + 1, &movement::return_bonus(id), 5, bonus * COIN);
        }
        let number = if id == taken { "dp_1".to_owned() } else { id.to_string() };
        let before = desk.available(USER);
        for _ in 0..2 {
            let row = take(&number, coins);
            assert_eq!((row.id, row.bonus), (id, bonus * COIN), "{number}");
            assert_eq!(desk.available(USER), before, "{number}");
        }
        desk.coherent();
    }
    let before: u64 = desk.available(USER).parse().expect("a number");
    let row = take("dp_2", 30);
    assert_eq!(row.bonus, 3 * COIN / 2, "its own share");
    assert_eq!(desk.available(USER), (before - 63 * COIN / 2).to_string());
    desk.coherent();
    desk.stopped();
}
