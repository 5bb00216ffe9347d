use ubscore::postgres::reads::recharges::MatterKey;
use ubscore::recharge::PaymentId;
use ubscore::recharge::act::{PaymentCall, RechargeAct, RechargeCall, RechargeOutcome};

use super::*;

/// Goal: a repeat gets the decision that stands, and writes nothing: no flight at all.
#[test]
fn rch_002_a_repeat_writes_nothing() {
    let desk = Desk::new();
    let order = desk.paying("order-1");
    let facts = desk.facts(&order, "4200001");
    desk.told(&facts);
    let before = (desk.flights(), desk.credits(), desk.available(USER));
    for _ in 0..3 {
        let later = Facts { returned: Returned::Whole, discount: true, ..facts.clone() };
        for facts in [&facts, &later] {
            let again = desk.told(facts);
            assert_eq!(again.decision, PaymentDecision::Repeat);
            assert_eq!(again.told, PaymentTold::Success);
        }
    }
    assert_eq!((desk.flights(), desk.credits(), desk.available(USER)), before);
    desk.stopped();
}

/// Goal: many messages about one payment at once make one credit.
#[test]
fn rch_004_ten_and_a_thousand_at_once_credit_once() {
    let desk = Desk::new();
    for (count, coins) in [(10, 110), (1_000, 210)] {
        let order = desk.paying(&format!("order-{count}"));
        let facts = desk.facts(&order, &format!("trade-{count}"));
        let tell = async || loop {
            match desk.recharges.told(&desk.terms, &facts, SeenBy::Callback).await {
                Ok(answer) => return answer,
                // Nothing was written, and the channel tells it again.
                Err(rejection) => assert_eq!(rejection.code, Code::Overloaded, "{rejection:?}"),
            }
            tokio::task::yield_now().await;
        };
        let answers = block_on(join_all((0..count).map(|_| tell())));
        let paid = |answer: &&PaymentAnswer| answer.decision != PaymentDecision::Repeat;
        assert_eq!(answers.iter().filter(paid).count(), 1);
        assert!(answers.iter().all(|answer| answer.told == PaymentTold::Success));
        assert_eq!(desk.available(USER), (coins * COIN).to_string());
        assert_eq!(desk.stands(&order), (RechargeState::Paid, 1, 0));
    }
    assert_eq!(desk.credits(), ["2", "2", "2"]);
    let site = desk.stopped();
    assert_eq!(recorded(&site).len(), 2);
}

/// Goal: payments of many orders that are told at once share looks and flights, and one that
/// PostgreSQL cannot take spoils no other. Method: the number of one has a zero byte.
#[test]
fn payments_that_are_told_at_once_are_decided_each_for_itself() {
    let desk = Desk::with_open_max(100);
    let orders: Vec<Recharge> = (0..8).map(|n| desk.paying(&format!("order-{n}"))).collect();
    let number = |n: usize| if n == 3 { "t\0".to_owned() } else { format!("t{n}") };
    let facts: Vec<Facts> =
        orders.iter().enumerate().map(|(n, order)| desk.facts(order, &number(n))).collect();
    let flights = || -> usize { desk.flights().parse().expect("a number") };
    let before = flights();
    let told = facts.iter().map(|facts| desk.recharges.told(&desk.terms, facts, SeenBy::Query));
    let answers = block_on(join_all(told));
    for (n, answer) in answers.iter().enumerate() {
        match (n, answer) {
            (3, Err(rejection)) => assert_eq!(rejection.code, Code::SystemError),
            (_, Ok(answer)) => {
                assert_eq!(answer.decision, PaymentDecision::Credit { pays: true });
                assert!(!answer.due, "the till has nothing to do");
            }
            (n, answer) => panic!("{n}: {answer:?}"),
        }
    }
    assert!(flights() - before < 7, "{} flights for 7 payments", flights() - before);
    assert_eq!(desk.available(USER), (710 * COIN).to_string());
    assert_eq!(desk.stands(&orders[3]), (RechargeState::Paying, 0, 0));
    desk.stopped();
}

/// Goal: a key that PostgreSQL cannot take is an error at its place alone, wherever it stands.
#[test]
fn a_look_that_one_key_fails_is_halved() {
    let desk = Desk::new();
    let order = desk.paying("order-1");
    let reads = Reads::new(pool(&desk.site.target(), &LIMITS, 1), catalog())
        .looking_by_keys(&desk.site.target(), &LIMITS);
    for bad in 0..5 {
        let number = |n: usize| if n == bad { "t\0".to_owned() } else { format!("t{n}") };
        let key = |n| MatterKey {
            channel: "wechat".to_owned(),
            trade_no: number(n),
            order: (n % 2 == 0).then_some(order.id),
        };
        let keys: Vec<MatterKey> = (0..5).map(key).collect();
        let found = block_on(reads.matters(&keys)).expect("PostgreSQL is there");
        assert_eq!(found.len(), keys.len());
        for (n, found) in found.into_iter().enumerate() {
            assert_eq!(found.is_err(), n == bad, "{n} of {bad}: {found:?}");
            let Ok(found) = found else { continue };
            assert_eq!(found.order.map(|order| order.id), keys[n].order);
        }
    }
    desk.stopped();
}

/// Goal: an order that has changed since its caller looked at it is read again, and its payment is
/// credited once. Method: the row is one version ahead of the caller, and of the flights so far.
#[test]
fn an_order_that_changes_behind_the_look_of_a_caller_is_read_again() {
    let desk = Desk::new();
    let order = desk.paying("order-1");
    let ahead = "SET history = history || history[1], pay = NULL, version = version + 1";
    desk.site.session().sql(&format!("UPDATE recharges_tb {ahead}"));
    let facts = desk.facts(&order, "4200001");
    let proofs = desk.recharges.proofs();
    let proof = facts.proof.as_deref();
    let (proven, _) = proofs.verify(proof, &desk.terms.name, &facts.merchant_no);
    let decided = || {
        let pay = PaymentCall {
            id: PaymentId::of(&desk.terms.name, &facts.trade_no),
            return_id: desk.recharges.return_id(),
            facts: facts.clone(),
            terms: Arc::clone(&desk.terms),
            proven,
            recharge: Some(order.id),
            seen_by: SeenBy::Callback,
            policy: RechargePolicy::default(),
            again: false,
            bonus: false,
            restored: false,
            last: false,
            seen: Some(Box::new(order.clone())),
        };
        let (user, actor) = (Some(order.user), "a test".to_owned());
        let act = RechargeAct::Pay(Box::new(pay));
        let call = RechargeCall { user, order_number: 0, bonus_number: 0, actor, act };
        match block_on(desk.coordinator.recharge(call)).expect("decided") {
            RechargeOutcome::Payment { decision, .. } => decision,
            outcome => panic!("{outcome:?}"),
        }
    };
    assert_eq!(decided(), PaymentDecision::Credit { pays: true });
    assert_eq!(decided(), PaymentDecision::Repeat, "a flight has written it since");
    assert_eq!(desk.stands(&order), (RechargeState::Paid, 1, 0));
    assert_eq!(desk.available(USER), (110 * COIN).to_string());
    assert_eq!(desk.credits(), ["1", "1", "1"]);
    let version = desk.value("SELECT version FROM recharges_tb");
    assert_eq!(version, (order.version + 2).to_string());
    desk.stopped();
}

/// Goal: the same number with other facts is refused, and changes nothing.
#[test]
fn rch_024_a_contradiction_changes_nothing() {
    let desk = Desk::new();
    let order = desk.paying("order-1");
    let facts = desk.facts(&order, "4200001");
    desk.told(&facts);
    let before = (desk.flights(), desk.credits(), desk.available(USER));
    let other = desk.order("order-2");
    for facts in [
        Facts { minor_units: FEN + 1, ..facts.clone() },
        Facts { currency: "USD".to_owned(), ..facts.clone() },
    ] {
        let answer = desk.told(&facts);
        assert_eq!(answer.decision, PaymentDecision::Contradiction);
        assert_eq!(answer.told, PaymentTold::Conflict);
    }
    let moved = desk.told(&desk.facts(&other, "4200001"));
    assert_eq!(moved.told, PaymentTold::Conflict);
    assert_eq!((desk.credits(), desk.available(USER)), (before.1, before.2));
    assert_eq!(desk.stands(&other), (RechargeState::Init, 0, 0));
    desk.stopped();
}

/// Goal: a credit is not booked again if a repair has restored its external operation.
/// Method: the row is there with its money, and the order is not PAID.
#[test]
fn a_restored_credit_is_taken_and_not_booked_again() {
    let desk = Desk::new();
    let order = desk.paying("order-1");
    let key = format!("recharge/{}/credit", order.id.ulid());
    desk.site.sql(&format!(
        "INSERT INTO external_operations (order_number, user_id, amount, asset_id, op, \
                                          balance_after, idem_key) \
         VALUES (77, {USER}, 100e8, 3, 4, 110e8, '{key}')"
    ));
    let before = desk.available(USER);
    let answer = desk.told(&desk.facts(&order, "4200001"));
    assert_eq!(answer.decision, PaymentDecision::Credit { pays: true });
    assert_eq!(desk.available(USER), before);
    assert_eq!(desk.credits(), ["1", "1", "1"]);
    assert_eq!(desk.stands(&order), (RechargeState::Paid, 1, 0));
    desk.stopped();
}
