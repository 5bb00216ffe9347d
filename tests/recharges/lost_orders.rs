use ubscore::recharge::facts::Taking;
use ubscore::recharge::movement;

use super::*;

impl Desk {
    /// A row that a repair has brought back. Its money is in the balance of before.
    fn brought_back(&self, number: u64, key: &str, op: u8, coins: u64) {
        self.site.sql(&format!(
            "INSERT INTO external_operations (order_number, user_id, amount, asset_id, op, \
                                              balance_after, idem_key) \
             VALUES ({number}, {USER}, {coins}e8, 3, {op}, 1e9, '{key}')"
        ));
    }

    fn told_last(&self, facts: &Facts) -> PaymentAnswer {
        let told = self.recharges.told_in_turn(&self.terms, facts, SeenBy::Query, true);
        block_on(told).expect("an answer")
    }

    fn is_coherent(&self) {
        let found = "SELECT subject, what FROM audit_recharges('epoch', 'infinity') \
                     UNION ALL SELECT subject, what FROM audit_promotions('epoch', 'infinity')";
        assert_eq!(self.site.sql(found), Vec::<Vec<String>>::new());
    }

    fn refused(&self, payment: &RechargePayment, end: HeldEnd) -> Code {
        let ended = self.recharges.ended(payment, end, None, "an operator");
        block_on(ended).expect_err("refused").code
    }
}

/// Goal: of two payments of an order that a restore has lost, the one that was sent back does not
/// get the credit of the order, in any turn; one that is alone does. Method: the payment that went
/// back as a whole is told first; then the other one; then it is told in its turn. An order of
/// which the only payment was refunded.
#[test]
fn rch_037_a_payment_that_went_back_takes_no_credit_of_another_one() {
    let desk = Desk::new().behind_a_restore(false);
    let order = desk.paying("order-1");
    desk.brought_back(900, &movement::recharge_credit(order.id), 4, 100);
    let gone = Facts { returned: Returned::Whole, ..desk.facts(&order, "4200002") };
    let (held, cause) = desk.held(&gone);
    assert_eq!(cause, HeldCause::PartReturned);
    assert_eq!(desk.refused(&held, HeldEnd::Dismiss), Code::NotReturnable);
    let answer = desk.told(&desk.facts(&order, "4200001"));
    assert_eq!(answer.decision, PaymentDecision::Credit { pays: true });
    assert_eq!(desk.told_last(&gone).decision, PaymentDecision::Repeat);
    assert_eq!(desk.stands(&order), (RechargeState::Paid, 2, 1));
    assert_eq!(desk.ended(&held, HeldEnd::Dismiss).disposition, Disposition::Dismissed);

    let alone = desk.paying("order-2");
    desk.brought_back(901, &movement::recharge_credit(alone.id), 4, 100);
    let facts = Facts { returned: Returned::Whole, ..desk.facts(&alone, "4200003") };
    let credit = PaymentDecision::Credit { pays: true };
    assert_eq!(desk.told_last(&facts).decision, credit);
    assert_eq!(desk.available(USER), (10 * COIN).to_string(), "nothing was booked");
    desk.is_coherent();
    desk.stopped();
}

/// Goal: the turn of the payments of an order puts those that stand first.
#[test]
fn payments_that_stand_come_first() {
    let at = |returned, trade_no: &str, seconds| Facts {
        merchant_no: "a".to_owned(),
        trade_no: trade_no.to_owned(),
        minor_units: FEN,
        total_minor_units: FEN,
        currency: "CNY".to_owned(),
        discount: false,
        returned,
        paid_at: Timestamp::from_second(seconds).expect("a time"),
        proof: None,
    };
    let mut all = [
        at(Returned::Whole, "d", 1),
        at(Returned::Part, "c", 1),
        at(Returned::None, "b", 3),
        at(Returned::None, "a", 2),
    ];
    Facts::in_turn(&mut all);
    assert_eq!(all.map(|facts| facts.trade_no), ["a", "b", "c", "d"]);
}

/// Goal: a payment of a lost order that was credited is neither sent back nor dismissed: its user
/// may have that money. Method: the order is not here, its credit is; then that is found by another
/// payment.
#[test]
fn rch_037_a_payment_of_a_lost_order_is_not_ended() {
    let desk = Desk::new().behind_a_restore(false);
    let order = desk.paying("order-1");
    let facts = desk.facts(&order, "4200001");
    let session = desk.site.session();
    session.sql("BEGIN; SET LOCAL session_replication_role = replica; DELETE FROM recharges_tb");
    session.sql("COMMIT");
    let (held, cause) = desk.held(&facts);
    assert_eq!(cause, HeldCause::Unmatched);
    let key = movement::recharge_credit(order.id);
    desk.brought_back(900, &key, 4, 100);
    let back = HeldEnd::Return(desk.recharges.return_id());
    for end in [back, HeldEnd::Dismiss] {
        assert_eq!(desk.refused(&held, end), Code::NotReturnable);
    }
    assert_eq!(desk.value("SELECT count(*) FROM recharge_returns"), "0");
    let found = format!(
        "INSERT INTO recharge_movements (amount, at, asset_id, kind, debit, credit, payment_id, \
                                         movement_key) \
         VALUES (100e8, now(), 3, 1, 'wechat/clearing', 'user/{USER}', ulid_uuid('{}'), '{key}')",
        order.id.ulid()
    );
    desk.site.sql(&found);
    assert_eq!(desk.ended(&held, HeldEnd::Dismiss).disposition, Disposition::Dismissed);
    desk.stopped();
}

/// Goal: a bonus that its user has does not go back to its promotion, though the order is CLOSED
/// behind a restore before its payment is told. Method: the till's way back, before and behind the
/// repair; a payment that is told, and one that an operator credits.
#[test]
fn rch_037_a_bonus_of_a_closed_order_stays_with_its_user() {
    let desk = Desk::new().behind_a_restore(false);
    let session = desk.site.session();
    session.sql(
        "INSERT INTO promotions_tb (name, asset_id, min_amount, fixed, per_user_max, starts_at, \
                                    ends_at, status) \
         VALUES ('spring', 3, 1, 5e8, 100, '2020-01-01', '2200-01-01', 1)",
    );
    session.sql(
        "INSERT INTO recharge_movements (amount, at, asset_id, kind, debit, credit, movement_key) \
         VALUES (10e8, now(), 3, 15, 'outside', 'promotion/spring', 'fund/spring')",
    );
    for (place, by_operator) in [false, true].into_iter().enumerate() {
        let order = desk.paying(&format!("order-{place}"));
        let ulid = order.id.ulid();
        let discount = by_operator;
        let facts = Facts { discount, ..desk.facts(&order, &format!("420000{place}")) };
        let held = by_operator.then(|| desk.held(&facts).0);
        session.sql("BEGIN; SET LOCAL session_replication_role = replica");
        session.sql(&format!(
            "UPDATE recharges_tb SET bonus = 5e8, bonus_state = 1, promotion = 'spring', \
                    state = -10, next_at = now() WHERE recharge_id = ulid_uuid('{ulid}')"
        ));
        session.sql("COMMIT");
        let number = 900 + 2 * place as u64;
        desk.brought_back(number, &movement::recharge_credit(order.id), 4, 100);
        desk.brought_back(number + 1, &movement::recharge_bonus(order.id), 4, 5);
        let goes_back = format!(
            "SELECT promotion_give_back((SELECT incarnation FROM engine_state), recharge_id, \
                                        version) \
               FROM recharges_tb WHERE recharge_id = ulid_uuid('{ulid}')"
        );
        assert_eq!(desk.value(&goes_back), "f");
        match held {
            Some(held) => {
                let ended = desk.ended(&held, HeldEnd::Credit);
                assert_eq!(ended.disposition, Disposition::Credited);
            }
            None => {
                let want = PaymentDecision::Credit { pays: false };
                assert_eq!(desk.told(&facts).decision, want);
                assert_eq!(desk.told(&facts).decision, PaymentDecision::Repeat);
            }
        }
        let state = format!(
            "SELECT state, bonus_state, next_at IS NULL FROM recharges_tb \
              WHERE recharge_id = ulid_uuid('{ulid}')"
        );
        assert_eq!(desk.site.sql(&state), [["-10", "3", "t"]]);
        assert_eq!(desk.value(&goes_back), "f");
    }
    assert_eq!(desk.available(USER), (10 * COIN).to_string(), "nothing was booked");
    assert_eq!(desk.value("SELECT available FROM promotions_tb"), "0");
    desk.is_coherent();
    let closed = desk.paying("order-9");
    session.sql("BEGIN; SET LOCAL session_replication_role = replica");
    session.sql(&format!(
        "UPDATE recharges_tb SET bonus = 5e8, bonus_state = 1, promotion = 'spring', state = -10 \
          WHERE recharge_id = ulid_uuid('{}')",
        closed.id.ulid()
    ));
    session.sql("COMMIT");
    let given = "UPDATE recharges_tb SET bonus_state = 3, version = version + 1 \
                  WHERE bonus_state = 1";
    assert_eq!(session.sql_refused(given), "UB003", "no bonus was given");
    drop(session);
    desk.stopped();
}

/// Goal: money that a user has paid for a receivable is not lost behind a restore: until the
/// recovery has found it, money that comes back waits, and nothing is written off; then the user
/// gets it. And no operator books money as taken meanwhile. Method: a taking with a receivable; the
/// debit of a later recovery is in the log alone.
#[test]
fn rch_037_a_paid_receivable_is_ended_before_its_money_comes_back() {
    let desk = Desk::new();
    let order = desk.paying("order-1");
    let payment = desk.told(&desk.facts(&order, "4200001")).payment.expect("recorded");
    let session = desk.site.session();
    session.sql("BEGIN; SET LOCAL session_replication_role = replica");
    session.sql(&format!("UPDATE balances_tb SET available = 60e8 WHERE user_id = {USER}"));
    session.sql("COMMIT");
    drop(session);
    let taking = Taking {
        merchant_no: None,
        trade_no: payment.trade_no.clone(),
        number: "dp_1".to_owned(),
        minor_units: FEN,
        currency: payment.currency.clone(),
        at: Timestamp::UNIX_EPOCH,
    };
    let taken = block_on(desk.recharges.taken(&desk.terms, &taking)).expect("an answer");
    let owed = taken.receivable.expect("a receivable");
    assert_eq!(owed.open(), 40 * COIN);
    let desk = desk.behind_a_restore(true);
    desk.brought_back(900, &format!("return/{}/recover/1", owed.id.ulid()), 5, 40);
    let back = |desk: &Desk| block_on(desk.recharges.given_back(&desk.terms, &taking));
    assert_eq!(back(&desk).expect_err("it waits").code, Code::SystemError);
    let off = desk.recharges.write_off(owed.id, "key", "an operator");
    assert_eq!(block_on(off).expect_err("refused").code, Code::NotReturnable);
    let by_hand = desk.recharges.taken_by_operator(&payment, ("by-hand", 1), "an operator");
    let refused = block_on(by_hand).expect_err("refused");
    assert_eq!(refused.code, Code::NotReturnable);
    assert!(refused.detail.expect("why").contains("ubscore recharge recover"));
    let ends = |number| block_on(desk.recharges.paid_before(owed.id, number)).expect("an answer");
    assert!(!ends(2), "an act before it is lost");
    assert!(ends(1));
    assert!(!ends(1), "it is here");
    assert_eq!(desk.available(USER), "0", "nothing was booked");
    back(&desk).expect("booked");
    assert_eq!(desk.available(USER), (100 * COIN).to_string());
    let open = "SELECT amount - recovered - written_off FROM receivables_tb";
    assert_eq!(desk.value(open), "0");
    desk.stopped();
}
