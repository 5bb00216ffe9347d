use super::*;

use crate::harness::COIN;

/// Goal: a refund that was made at the channel, behind our back, is found by the bill and taken
/// from its user once, under the channel's own number.
#[test]
fn rch_034_a_refund_behind_our_back_is_found_by_the_bill() {
    let books = Billing::new();
    for channel in BOTH {
        let id = books.credited(channel, channel, day(4));
        books.reconciles(channel, day(4), &json!({"callbacks": "drop"}));
        let body = json!({"amount": 4_000, "at_s": noon(day(3))});
        let back = books.desk.sim.done("POST", &format!("/sim/refund/{id}"), &body);
        for _ in 0..2 {
            books.reconciles(channel, day(3), &json!({"callbacks": "drop"}));
        }
        let number = back["number"].as_str().expect("a number").to_owned();
        let want = ("RETURN_MISSING_HERE".to_owned(), "DONE".to_owned(), number.clone());
        assert_eq!(books.findings(channel), [want]);
        let rows = "SELECT r.kind, r.state, r.minor_units, r.channel_return_no \
                      FROM recharge_returns r JOIN channel_payments USING (payment_id) \
                     WHERE channel = ";
        let rows = books.desk.site.sql(&format!("{rows}'{channel}'"));
        assert_eq!(rows, [["2".to_owned(), "40".to_owned(), "4000".to_owned(), number]]);
        books.is_clean(channel, day(4));
        let bill = books.bill(channel, day(3));
        assert_eq!(bill["returned"], json!(4_000), "{bill}");
    }
    assert_eq!(books.server.balances(USER)["CNY"].funding, Some(120 * COIN));
    books.is_whole();
}

/// Goal: money that an operator has booked by the merchant's number is not taken again by the
/// bill; one that was booked by a number that no bill has is a person's to explain.
#[test]
fn rch_034_a_taking_of_an_operator_is_not_taken_again() {
    let books = Billing::new();
    let drop = json!({"callbacks": "drop"});
    // Each at its own time: the simulator's number of the merchant follows from it.
    let right = format!("shop-{}", noon(day(3)));
    let booked = [("a", 0, right, None), ("b", 60, "typed-wrong".to_owned(), Some("OPEN"))];
    for (key, later_s, number, finding) in booked {
        let id = books.credited("wechat", key, day(4));
        books.desk.sim.faults(&drop);
        let body = json!({"amount": 4_000, "at_s": noon(day(3)) + later_s});
        books.desk.sim.done("POST", &format!("/sim/refund/{id}"), &body);
        let shown = books.get(&format!("recharges/{id}"));
        let payment = shown["payments"][0]["payment_id"].as_str().expect("an id").to_owned();
        let body = json!({"number": number, "amount": "40", "reason": "a test"});
        let reply = books.post(&format!("payments/{payment}/taken"), &body);
        assert_eq!(reply.status, 200, "{reply:?}");
        books.reconciles("wechat", day(3), &drop);
        let found = books.findings("wechat");
        assert_eq!(found.first().map(|one| one.1.as_str()), finding, "{found:?}");
    }
    assert_eq!(books.server.balances(USER)["CNY"].funding, Some(120 * COIN), "each once");
    let found = books.get("findings?channel=wechat");
    let said = found["findings"][0]["what"].as_str().expect("a word").to_owned();
    assert!(said.contains("typed-wrong"), "{said}");
    books.is_whole();
}

/// Goal: a refund behind our back is not booked while one of ours is under way: the channel may
/// refuse ours, and then its user has the money again. Behind the refusal the user pays, and
/// nothing is a loss.
#[test]
fn rch_034_a_refund_behind_our_back_waits_for_ours() {
    let books = Billing::new();
    let id = books.credited("wechat", "a", day(4));
    let busy = json!({"callbacks": "drop", "refunds": "NOT_ENOUGH"});
    books.reconciles("wechat", day(4), &busy);
    let body = json!({"amount": "100", "idem_key": "r-1", "reason": "a test"});
    let reply = books.post(&format!("recharges/{id}/refund"), &body);
    assert_eq!(reply.status, 200, "{reply:?}");
    let states =
        "SELECT string_agg(kind || ' ' || state, ', ' ORDER BY kind) FROM recharge_returns";
    eventually("ours to be sent", || (books.desk.site.sql_value(states) == "1 20").then_some(()));
    let body = json!({"amount": 10_000, "at_s": noon(day(3))});
    books.desk.sim.done("POST", &format!("/sim/refund/{id}"), &body);
    books.reconciles("wechat", day(3), &busy);
    assert_eq!(books.findings("wechat")[0].1, "OPEN");
    assert_eq!(books.desk.site.sql_value(states), "1 20", "nothing is booked");
    let alerts = "ubscore_alerts_total{alert=\"bill_mismatch\"}";
    assert_eq!(books.server.metric(alerts), 0, "it may wait");
    books.desk.site.sql(
        "ALTER TABLE bill_findings DISABLE TRIGGER USER; \
         UPDATE bill_findings SET found_at = found_at - INTERVAL '1 day'; \
         ALTER TABLE bill_findings ENABLE TRIGGER USER",
    );
    books.reconciles("wechat", day(3), &busy);
    eventually("a person is called", || (books.server.metric(alerts) > 0).then_some(()));
    books.desk.sim.faults(&json!({}));
    eventually("ours to be refused", || {
        (books.desk.site.sql_value(states) == "1 -10").then_some(())
    });
    books.reconciles("wechat", day(3), &json!({}));
    eventually("the user to pay", || {
        (books.desk.site.sql_value(states) == "1 -10, 2 40").then_some(())
    });
    assert_eq!(books.server.balances(USER)["CNY"].funding, Some(0));
    let losses = "SELECT count(*) FROM recharge_movements WHERE debit LIKE '%/loss'";
    assert_eq!(books.desk.site.sql_value(losses), "0");
    books.is_clean("wechat", day(4));
    books.is_whole();
}

/// Goal: a refund of a card that fails behind its success calls a person, and moves nothing.
#[test]
fn rch_035_a_refund_that_fails_later_is_a_persons() {
    let books = Billing::new();
    let id = books.credited("card", "a", day(4));
    let drop = json!({"callbacks": "drop"});
    books.desk.sim.faults(&drop);
    let body = json!({"amount": 4_000, "at_s": noon(day(3))});
    let back = books.desk.sim.done("POST", &format!("/sim/refund/{id}"), &body);
    books.reconciles("card", day(3), &drop);
    assert_eq!(books.server.balances(USER)["CNY"].funding, Some(60 * COIN));
    let number = back["number"].as_str().expect("a number").to_owned();
    let failed = json!({"status": "UNDONE"});
    books.desk.sim.done("POST", &format!("/sim/refunds/{number}"), &failed);
    books.reconciles("card", day(3), &drop);
    let found = books.findings("card");
    let want = ("UNDONE".to_owned(), "OPEN".to_owned(), number);
    assert_eq!(found.last(), Some(&want), "{found:?}");
    let alerts = "ubscore_alerts_total{alert=\"bill_mismatch\"}";
    eventually("a person is called", || (books.server.metric(alerts) > 0).then_some(()));
    assert_eq!(books.server.balances(USER)["CNY"].funding, Some(60 * COIN));
    books.is_whole();
}

/// Goal: a chargeback that no callback has told is taken by the bill, and one that was won comes
/// back by it.
#[test]
fn rch_035_a_chargeback_is_taken_and_given_back_by_the_bill() {
    let books = Billing::new();
    let id = books.credited("card", "a", day(4));
    let body = json!({"at_s": noon(day(4))});
    let drop = json!({"callbacks": "drop"});
    books.desk.sim.faults(&drop);
    let taken = books.desk.sim.done("POST", &format!("/sim/take/{id}"), &body);
    books.reconciles("card", day(4), &drop);
    assert_eq!(books.server.balances(USER)["CNY"].funding, Some(0));
    let number = taken["number"].as_str().expect("a number");
    books.desk.sim.done("POST", &format!("/sim/give/{number}"), &json!({}));
    books.reconciles("card", day(4), &drop);
    assert_eq!(books.server.balances(USER)["CNY"].funding, Some(100 * COIN));
    let kinds = "SELECT string_agg(kind::text, ' ' ORDER BY kind) FROM recharge_returns";
    assert_eq!(books.desk.site.sql_value(kinds), "2 3");
    books.reconciles("card", day(3), &json!({}));
    books.is_clean("card", day(4));
    books.is_whole();
}

/// The differences of a day, by the one comparison.
fn differences(books: &Billing, channel: &str, day: Date) -> Vec<String> {
    let (from, to) = (day, day.tomorrow().expect("a day"));
    let rows = books.desk.site.sql(&format!(
        "SELECT kind, there, here FROM bill_differences('{channel}', '{day}', \
                '{from} 00:00:00+00', '{to} 00:00:00+00') ORDER BY 1, 2"
    ));
    rows.into_iter().map(|row| row.join(" ")).collect()
}

/// Goal: a return of ours that the bill has is that return; one that no bill has is missing there;
/// another amount differs. Method: a refund over the operators' route, and bills written by hand.
#[test]
fn rch_035_our_own_returns_are_compared() {
    let books = Billing::new();
    let id = books.credited("card", "a", day(3));
    let body = json!({"amount": "30", "idem_key": "r-1", "reason": "a test"});
    let reply = books.post(&format!("recharges/{id}/refund"), &body);
    assert_eq!(reply.status, 200, "{reply:?}");
    eventually("the refund", || {
        let done = "SELECT count(*) FROM recharge_returns WHERE state = 40";
        (books.desk.site.sql_value(done) == "1").then_some(())
    });
    // In UTC, as cards count days.
    let today: Date = books
        .desk
        .site
        .sql_value("SELECT (updated_at AT TIME ZONE 'UTC')::date FROM recharge_returns")
        .parse()
        .expect("a day");
    let number =
        books.desk.site.sql_value("SELECT 'wrf_' || ulid_text(return_id) FROM recharge_returns");
    let trade_no = books.trade_no(&id);
    let bill = |day: Date| {
        books.desk.site.sql(&format!(
            "INSERT INTO channel_bills (channel, day, state, tries, run) \
             VALUES ('card', '{day}', 40, 1, 1)"
        ));
    };
    let line = |amount: u64| {
        books.desk.site.sql(&format!(
            "DELETE FROM channel_bill_lines; \
             INSERT INTO channel_bill_lines (channel, day, run, place, kind, marked, merchant_no, \
                trade_no, return_no, channel_return_no, number, minor_units, currency, at) \
             VALUES ('card', '{today}', 1, 0, 2, true, '{id}', '{trade_no}', '{number}', 're_1', \
                '{number}', {amount}, 'CNY', now())"
        ));
    };
    bill(today);
    assert_eq!(differences(&books, "card", today), Vec::<String>::new(), "the next day may tell");
    bill(today.tomorrow().expect("a day"));
    let missing = differences(&books, "card", today);
    assert_eq!(missing, ["5  3000"]);
    line(3_000);
    assert_eq!(differences(&books, "card", today), Vec::<String>::new());
    line(3_001);
    assert_eq!(differences(&books, "card", today), ["3 3001 3000"]);
    // The same line once more, in the bill of the next day; and in another currency.
    books.desk.site.sql(
        "UPDATE channel_bill_lines SET minor_units = 3000; \
             INSERT INTO channel_bill_lines (channel, day, run, place, kind, marked, merchant_no, \
                trade_no, return_no, channel_return_no, number, minor_units, currency, at) \
             SELECT channel, day + 1, run, place, kind, marked, merchant_no, trade_no, return_no, \
                channel_return_no, number, minor_units, currency, at FROM channel_bill_lines",
    );
    assert_eq!(differences(&books, "card", today), ["3 6000 3000"]);
    books
        .desk
        .site
        .sql("DELETE FROM channel_bill_lines WHERE day = (SELECT max(day) FROM channel_bills)");
    books.desk.site.sql("UPDATE channel_bill_lines SET currency = 'USD'");
    assert_eq!(differences(&books, "card", today), ["3 3000 3000"]);
    line(3_001);
    // Of another payment's return: it is in the bill alone, and ours is in none.
    books.desk.site.sql("UPDATE channel_bill_lines SET number = 're_1', return_no = NULL");
    assert_eq!(differences(&books, "card", today), ["4 3001 ", "5  3000"]);
    // The line of a payment that is not here, without one of our numbers.
    books.desk.site.sql(
        "ALTER TABLE channel_payments DISABLE TRIGGER USER; \
         UPDATE channel_payments SET trade_no = 'pi_gone'; \
         UPDATE channel_bill_lines SET marked = false",
    );
    assert_eq!(differences(&books, "card", today), ["5  3000"], "foreign");
}
