use super::*;

/// A change of the facts, and the cause that it is held for.
type Unusual = (HeldCause, fn(&mut Facts));

impl Desk {
    /// An operator cannot send a payment back: the part of it that went back is not booked.
    fn not_sent_back(&self, payment: &RechargePayment) {
        let how = HeldEnd::Return(self.recharges.return_id());
        let refused = self.recharges.ended(payment, how, None, "an operator");
        let refused = block_on(refused).expect_err("refused");
        assert_eq!(refused.code, Code::NotReturnable);
        let why = refused.detail.expect("why");
        assert!(why.contains("book that part first"), "{why}");
    }
}

/// Goal: an unusual payment is held by its cause, and an operator ends it in each way.
#[test]
fn rch_015_unusual_payments_are_held_and_ended() {
    let desk = Desk::new();
    let cases: [Unusual; 4] = [
        (HeldCause::Amount, |facts| facts.minor_units = FEN - 1),
        (HeldCause::Amount, |facts| facts.minor_units = FEN + 1),
        (HeldCause::Discounted, |facts| facts.discount = true),
        (HeldCause::PartReturned, |facts| facts.returned = Returned::Part),
    ];
    for (number, (cause, change)) in cases.into_iter().enumerate() {
        for end in ["credit", "return", "dismiss"] {
            let name = format!("{number}-{end}");
            let order = desk.paying(&name);
            let mut facts = desk.facts(&order, &name);
            change(&mut facts);
            let (payment, why) = desk.held(&facts);
            assert_eq!(why, cause);
            assert_eq!(desk.stands(&order), (RechargeState::Paying, 1, 1));
            let closing = desk.recharges.wished(&order, ClosingWish::Expired, "till");
            assert_eq!(block_on(closing).expect("it stays").closing, None, "held: not closed");
            if cause == HeldCause::PartReturned && end != "dismiss" {
                match end {
                    "credit" => desk.not_credited(&payment, "given a part of this payment back"),
                    _ => desk.not_sent_back(&payment),
                }
                desk.ended(&payment, HeldEnd::Dismiss);
                continue;
            }
            let before: u64 = desk.available(USER).parse().expect("a number");
            let (how, want, state) = match end {
                "credit" => (HeldEnd::Credit, Disposition::Credited, RechargeState::Paid),
                "return" => {
                    let how = HeldEnd::Return(desk.recharges.return_id());
                    (how, Disposition::Returning, RechargeState::Closed)
                }
                _ => (HeldEnd::Dismiss, Disposition::Dismissed, RechargeState::Closed),
            };
            let ended = desk.ended(&payment, how);
            assert_eq!(ended.disposition, want);
            assert_eq!(desk.stands(&order), (state, 1, 0));
            let again = desk.ended(&payment, HeldEnd::Credit);
            assert_eq!(again.disposition, want, "a compare-and-set");
            if let HeldEnd::Return(id) = how {
                let gone = block_on(desk.recharges.returned(&ended, id, true)).expect("gone");
                assert_eq!(gone.payment.expect("recorded").disposition, Disposition::Returned);
            }
            let paid = u64::try_from(facts.minor_units).expect("positive") * COIN / 100;
            let paid = if how == HeldEnd::Credit { paid } else { 0 };
            assert_eq!(desk.available(USER), (before + paid).to_string());
            assert_eq!(desk.account("suspense"), "0", "{name}");
        }
    }
    let codes = "SELECT DISTINCT code FROM recharges_tb WHERE state = -10";
    assert_eq!(desk.value(codes), (Code::HeldEnded as u16).to_string());
    desk.stopped();
}

/// Goal: money for which no asset stands is recorded and never moved.
#[test]
fn rch_015_another_currency_is_held_without_a_movement() {
    let desk = Desk::new();
    let order = desk.paying("order-1");
    let facts = Facts { currency: "USD".to_owned(), ..desk.facts(&order, "4200001") };
    let (payment, cause) = desk.held(&facts);
    assert_eq!((cause, payment.amount), (HeldCause::Currency, None));
    let credit = desk.recharges.ended(&payment, HeldEnd::Credit, None, "an operator");
    assert_eq!(block_on(credit).expect_err("no asset").code, Code::InvalidRequest);
    assert_eq!(desk.ended(&payment, HeldEnd::Dismiss).disposition, Disposition::Dismissed);
    assert_eq!(desk.value("SELECT count(*) FROM recharge_movements"), "0");
    assert_eq!(desk.stands(&order), (RechargeState::Closed, 1, 0));
    desk.stopped();
}

/// Goal: a part that went back at the channel is never credited: not behind its order, nor by facts
/// without it. It is not sent back either: the channel would be asked for the whole.
#[test]
fn rch_015_a_part_that_went_back_is_never_credited() {
    let desk = Desk::new();
    let order = desk.paying("order-1");
    let lost = RechargeId::generate(1, 7);
    let facts = Facts { proof: None, ..desk.facts(&order, "4200001") };
    let facts = Facts { merchant_no: lost.to_string(), ..facts };
    let part = Facts { returned: Returned::Part, ..facts.clone() };
    let held = PaymentDecision::Hold(HeldCause::PartReturned);
    let answer = desk.told(&part);
    assert_eq!((answer.decision, answer.told), (held, PaymentTold::NotFound));
    assert_eq!(desk.told(&part).told, PaymentTold::NotFound, "a repeat");
    desk.site.sql(&format!(
        "INSERT INTO recharges_tb SELECT (jsonb_populate_record(r, jsonb_build_object( \
             'recharge_id', ulid_uuid('{}'), 'idem_key', 'lost'))).* FROM recharges_tb r",
        lost.ulid()
    ));
    let back = desk.told(&facts);
    assert_eq!((back.decision, back.told), (held, PaymentTold::Success));
    let again = block_on(desk.recharges.rematched(&desk.terms, &facts, "an operator"));
    assert_eq!(again.expect("decided again").decision, held);
    let payment = back.payment.expect("recorded");
    desk.not_credited(&payment, "given a part of this payment back");
    desk.not_sent_back(&payment);
    assert_eq!(desk.available(USER), (10 * COIN).to_string());
    desk.stopped();
}

/// Goal: a payment that its channel has given back whole ends its order, which would wait for ever.
#[test]
fn a_payment_that_went_back_whole_ends_its_order() {
    let desk = Desk::new();
    let order = desk.paying("order-1");
    let whole = Facts { returned: Returned::Whole, ..desk.facts(&order, "4200001") };
    assert_eq!(desk.told(&whole).decision, PaymentDecision::Returned);
    assert_eq!(desk.stands(&order), (RechargeState::Closed, 1, 0));
    let row = "SELECT code, next_at IS NULL FROM recharges_tb";
    assert_eq!(desk.site.sql(row), [[&(Code::HeldEnded as u16).to_string(), "t"]]);
    assert_eq!(desk.credits(), ["0", "0", "0"]);
    desk.stopped();
}

/// Goal: a channel that is configured anew credits no other amount and no other asset, and no
/// payment stops its worker.
#[test]
fn a_payment_in_other_terms_than_its_order_is_held() {
    let desk = Desk::new();
    let order = desk.paying("order-1");
    let digits = Arc::new(ChannelTerms { minor_digits: 1, ..(*desk.terms).clone() });
    let asset = Arc::new(ChannelTerms { asset: AssetId(1), ..(*desk.terms).clone() });
    let told = |terms: &Arc<ChannelTerms>, facts: &Facts| {
        let told = desk.recharges.told(terms, facts, SeenBy::Callback);
        block_on(told).expect("an answer")
    };
    let first = told(&digits, &desk.facts(&order, "digits"));
    assert_eq!(first.decision, PaymentDecision::Hold(HeldCause::Amount));
    let second = told(&asset, &desk.facts(&order, "asset"));
    assert_eq!(second.decision, PaymentDecision::Hold(HeldCause::Currency));
    let second = second.payment.expect("recorded");
    assert_eq!(second.amount, None, "no asset stands for it");
    let refused = block_on(desk.recharges.ended(&second, HeldEnd::Credit, None, "an operator"));
    assert_eq!(refused.expect_err("no asset").code, Code::InvalidRequest);
    let facts = Facts { discount: true, ..desk.facts(&order, "discounted") };
    let (third, _) = desk.held(&facts);
    let whole = Facts { discount: false, ..facts };
    let again = block_on(desk.recharges.rematched(&asset, &whole, "an operator"));
    let again = again.expect("decided again");
    assert_eq!(again.decision, PaymentDecision::Hold(HeldCause::Currency));
    desk.not_credited(&third, "No asset");
    let again = block_on(desk.recharges.rematched(&desk.terms, &whole, "an operator"));
    assert_eq!(again.expect("by its own terms").decision, PaymentDecision::Credit { pays: true });
    assert_eq!(desk.available(USER), (110 * COIN).to_string());
    desk.stopped();
}

#[test]
fn rch_016_with_differing_credit_the_paid_amount_is_credited() {
    let differing = PaymentRule::Credit;
    let desk = Desk::with(RechargePolicy { differing, ..RechargePolicy::default() });
    let order = desk.paying("order-1");
    let facts = Facts { minor_units: 123, ..desk.facts(&order, "4200001") };
    assert_eq!(desk.told(&facts).decision, PaymentDecision::Credit { pays: true });
    assert_eq!(desk.available(USER), (10 * COIN + 123 * COIN / 100).to_string());
    assert_eq!(desk.stands(&order), (RechargeState::Paid, 1, 0));
    desk.stopped();
}

/// Goal: a second payment follows its rule, and one that the channel does not take back is held.
#[test]
fn rch_017_a_second_payment_follows_its_rule() {
    for (duplicate, want) in
        [(PaymentRule::Return, Disposition::Returning), (PaymentRule::Hold, Disposition::Held)]
    {
        let desk = Desk::with(RechargePolicy { duplicate, ..RechargePolicy::default() });
        let order = desk.paying("order-1");
        desk.told(&desk.facts(&order, "first"));
        let second = desk.told(&desk.facts(&order, "second"));
        assert_eq!(second.told, PaymentTold::Success);
        let payment = second.payment.expect("recorded");
        assert_eq!(payment.disposition, want);
        assert_eq!(desk.available(USER), (110 * COIN).to_string());
        assert_eq!(desk.account("suspense"), (100 * COIN).to_string());
        if want == Disposition::Returning {
            let reads = "SELECT ulid_text(return_id) FROM recharge_returns WHERE state = 10";
            let text = format!("wrf_{}", desk.value(reads));
            let id = ubscore::recharge::ReturnId::parse(&text).expect("an id");
            let refused = block_on(desk.recharges.returned(&payment, id, false));
            let held = refused.expect("an answer").payment.expect("recorded");
            let stands = (held.disposition, held.cause);
            assert_eq!(stands, (Disposition::Held, Some(HeldCause::ReturnRefused)));
            let again = desk.ended(&held, HeldEnd::Return(desk.recharges.return_id()));
            assert_eq!(again.disposition, Disposition::Returning);
        }
        assert_eq!(desk.stands(&order).0, RechargeState::Paid);
        assert_eq!(desk.credits(), ["1", "1", "1"]);
        desk.stopped();
    }
}

/// Goal: a payment behind CLOSED follows its rule, and no terminal order moves, by SQL either.
#[test]
fn rch_018_a_late_payment_follows_its_rule_and_its_order_stays() {
    for (late, want) in [
        (PaymentRule::Credit, Disposition::Credited),
        (PaymentRule::Return, Disposition::Returning),
        (PaymentRule::Hold, Disposition::Held),
    ] {
        let desk = Desk::with(RechargePolicy { late, ..RechargePolicy::default() });
        let order = desk.paying("order-1");
        let wished = desk.recharges.wished(&order, ClosingWish::Cancelled, "user/1001");
        assert_eq!(block_on(wished).expect("wished").closing, Some(ClosingWish::Cancelled));
        let closed = block_on(desk.recharges.closed(&order)).expect("closed");
        assert_eq!(closed.state, RechargeState::Closed);
        let payment = desk.told(&desk.facts(&order, "4200001")).payment.expect("recorded");
        assert_eq!(payment.disposition, want, "{late:?}");
        let credited = want == Disposition::Credited;
        let coins = if credited { 110 } else { 10 };
        assert_eq!(desk.available(USER), (coins * COIN).to_string());
        assert_eq!(desk.stands(&order).0, RechargeState::Closed);
        if credited {
            let key = desk.value("SELECT idem_key FROM external_operations");
            assert_eq!(key, format!("payment/{}/credit", payment.id.ulid()));
        }
        for state in [0, 10, 40] {
            let paid = if state == 40 { ", paid_at = now()" } else { "" };
            let set =
                format!("UPDATE recharges_tb SET state = {state}, version = version + 1{paid}");
            let refused = desk.site.session().sql_refused(&set);
            assert_eq!(refused, "UB003");
        }
        desk.stopped();
    }
}

/// Goal: a disabled account gets nothing before an operator ends the payment; a frozen one takes
/// deposits.
#[test]
fn rch_025_a_disabled_account_holds_and_a_frozen_one_is_credited() {
    let desk = Desk::new();
    desk.set_status(USER, AccountStatus::Disabled);
    let order = desk.paying("order-1");
    let facts = desk.facts(&order, "4200001");
    let (payment, cause) = desk.held(&facts);
    assert_eq!(cause, HeldCause::AccountDisabled);
    let credit = desk.recharges.ended(&payment, HeldEnd::Credit, None, "an operator");
    assert_eq!(block_on(credit).expect_err("still disabled").code, Code::AccountDisabled);
    assert_eq!(desk.credits(), ["0", "0", "0"]);
    desk.set_status(USER, AccountStatus::Frozen);
    let rematched = block_on(desk.recharges.rematched(&desk.terms, &facts, "an operator"));
    let rematched = rematched.expect("decided again");
    assert_eq!(rematched.decision, PaymentDecision::Credit { pays: true });
    assert_eq!(desk.account("suspense"), "0");
    let second = desk.paying("order-2");
    assert_eq!(desk.told(&desk.facts(&second, "4200002")).told, PaymentTold::Success);
    assert_eq!(desk.available(USER), (210 * COIN).to_string());
    desk.stopped();
}

/// Goal: a payment of an order that is not here is held and comes again, and the order's return
/// pays it. A foreign payment leaves no row.
#[test]
fn rch_023_an_unknown_order_is_held_and_a_foreign_one_leaves_no_row() {
    let desk = Desk::new();
    let order = desk.paying("order-1");
    let facts = desk.facts(&order, "4200001");
    let lost = RechargeId::generate(1, 7);
    let facts = Facts { merchant_no: lost.to_string(), proof: None, ..facts };
    for decision in [PaymentDecision::Hold(HeldCause::Unmatched), PaymentDecision::Repeat] {
        let answer = desk.told(&facts);
        assert_eq!((answer.decision, answer.told), (decision, PaymentTold::NotFound));
    }
    assert_eq!(desk.account("suspense"), (100 * COIN).to_string());
    desk.site.sql(&format!(
        "INSERT INTO recharges_tb SELECT (jsonb_populate_record(r, jsonb_build_object( \
             'recharge_id', ulid_uuid('{}'), 'idem_key', 'lost'))).* FROM recharges_tb r",
        lost.ulid()
    ));
    let back = desk.told(&facts);
    assert_eq!(back.decision, PaymentDecision::Credit { pays: true });
    assert_eq!(
        (desk.account("suspense"), desk.credits()),
        ("0".to_owned(), ["1", "1", "1"].map(str::to_owned))
    );
    let elsewhere = ProofKeys::new("test", b"a secret", None).sign(&order);
    for facts in [
        Facts { merchant_no: "shop-7".to_owned(), trade_no: "4".to_owned(), ..facts.clone() },
        Facts {
            merchant_no: RechargeId::generate(2_000_000, 8).to_string(),
            trade_no: "5".to_owned(),
            proof: Some(elsewhere),
            ..facts
        },
    ] {
        let answer = desk.told(&facts);
        assert_eq!(
            (answer.decision, answer.told),
            (PaymentDecision::Foreign, PaymentTold::Success)
        );
    }
    assert_eq!(desk.value("SELECT count(*) FROM channel_payments"), "1");
    desk.stopped();
}
