use super::*;

use ubscore::postgres::reads::recharges::DUE_KIND;

/// Goal: a channel that hangs delays no other one.
#[test]
fn a_channel_that_hangs_delays_no_other() {
    let shop = Shop::new();
    shop.calls("wechat").hang(true);
    let hanging: Vec<Recharge> =
        (0..10).map(|n| shop.made("wechat", &format!("hangs-{n}"))).collect();
    eventually("a call that hangs", || {
        let begun = |order| shop.calls("wechat").of("create", order) > 0;
        hanging.iter().any(begun).then_some(())
    });
    let order = shop.paying("card", "goes on");
    shop.pays(&order, &json!({}));
    shop.later(20, &order);
    shop.is(&order, RechargeState::Paid);
    for order in &hanging {
        assert_eq!(shop.stands(order).state, RechargeState::Init);
    }
    shop.calls("wechat").hang(false);
    for order in &hanging {
        shop.is(order, RechargeState::Paying);
    }
    shop.stop();
}

/// Goal: a row that cannot be read delays no other one.
#[test]
fn a_row_that_cannot_be_read_delays_no_other() {
    let shop = Shop::new();
    shop.gate.close();
    let orders: Vec<Recharge> = (0..12).map(|n| shop.made("card", &format!("{n}"))).collect();
    let (bad, good) = orders.split_at(8);
    for order in bad {
        let id = order.id.ulid();
        shop.site.sql(&format!(
            "UPDATE recharges_tb SET code = 32000, version = version + 1 \
              WHERE recharge_id = ulid_uuid('{id}')"
        ));
    }
    shop.gate.open();
    for order in good {
        shop.is(order, RechargeState::Paying);
    }
    shop.stop();
}

/// Goal: nothing is asked while the service is halted, and everything goes on behind it.
#[test]
fn rch_026_nothing_is_asked_while_halted() {
    let shop = Shop::new();
    let orders = BOTH.map(|channel| shop.paying(channel, channel));
    for order in &orders {
        shop.pays(order, &json!({}));
    }
    shop.gate.close();
    for order in &orders {
        shop.later(20, order);
    }
    let other = shop.made("card", "new");
    // A halt is seen at a look: the third is behind the first one's end.
    for _ in 0..3 {
        block_on(shop.recharges.hinted(other.id)).expect("nothing to do");
    }
    assert!(orders.iter().all(|order| shop.stands(order).state == RechargeState::Paying));
    assert_eq!(shop.calls("card").of("create", &other), 0);
    shop.gate.open();
    for order in &orders {
        shop.is(order, RechargeState::Paid);
    }
    shop.is(&other, RechargeState::Paying);
    shop.stop();
}

/// Goal: a hint makes the next question due at once, and not more often than every 3 s.
#[test]
fn a_hint_makes_the_next_question_due() {
    let shop = Shop::new();
    let order = shop.paying("wechat", "hinted");
    let due = |order: &Recharge| order.next_at.expect("a time").as_microsecond();
    let usual = due(&order);
    block_on(shop.recharges.hinted(order.id)).expect("hinted");
    let hinted = shop.stands(&order);
    assert!(due(&hinted) < usual);
    assert!(due(&hinted) - order.updated_at.as_microsecond() >= 3_000_000, "3 s behind the last");
    block_on(shop.recharges.hinted(order.id)).expect("hinted");
    assert_eq!(shop.stands(&order).version, hinted.version, "a second one writes nothing");
    shop.stop();
}

/// Goal: due rows are found by their index, among all others. Method: the plan of the
/// read, by the words of the till.
#[test]
fn due_rows_are_found_by_their_index() {
    let site = crate::schema::committed::fresh();
    let session = site.session();
    session.sql("SET enable_seqscan = off; SET enable_bitmapscan = off");
    let plan = session.sql(&format!(
        "EXPLAIN SELECT r.recharge_id FROM unnest('{{card}}'::text[], '{{3}}'::int[]) AS l (channel, kind) \
          CROSS JOIN LATERAL (SELECT * FROM recharges_tb \
            WHERE channel = l.channel AND {DUE_KIND} = l.kind AND next_at <= now() \
            ORDER BY next_at LIMIT 8) AS r"
    ));
    let text: String = plan.into_iter().flatten().collect::<Vec<_>>().join("\n");
    let cond = text.lines().find(|line| line.contains("Index Cond")).expect("an index");
    assert!(text.contains("recharges_due") && !text.contains("Sort"), "{text}");
    for part in ["channel", "CASE", "next_at"] {
        assert!(cond.contains(part), "{part}: {text}");
    }
}

/// Goal: a till that ends loses nothing: its successor finds the rows due.
#[test]
fn a_successor_goes_on_from_the_rows() {
    let mut shop = Shop::new();
    shop.simulator.faults(&json!({"answer": "away", "lost": true, "callbacks": "drop"}));
    let order = shop.made("wechat", "begun");
    shop.until("a try", &order, |order| order.attempts > 1);
    let (till, heard) = Till::new();
    // The last handle of the first one.
    drop(std::mem::replace(&mut shop.till, till));
    shop.simulator.faults(&json!({"callbacks": "drop"}));
    let other = shop.made("card", "new");
    let parts = shop.parts();
    let tasks = &mut shop.tasks;
    block_on(async { till::start(parts, heard, tasks) });
    shop.is(&order, RechargeState::Paying);
    shop.is(&other, RechargeState::Paying);
    shop.stop();
}
