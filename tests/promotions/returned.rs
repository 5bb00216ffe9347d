use super::*;

fn refund(server: &Server, id: &str, amount: Option<&str>, key: &str) -> Reply {
    let mut body = json!({"reason": "a test", "idem_key": key});
    if let Some(amount) = amount {
        body["amount"] = json!(amount);
    }
    server.admin("POST", &format!("/admin/v1/recharges/{id}/refund"), &body)
}

/// Waits until the return of an answer has this end.
fn ends(desk: &Recharging, reply: &Reply, state: &str) {
    assert_eq!(reply.status, 200, "{reply:?}");
    let id = text(&reply.json()["return_id"]).strip_prefix("wrf_").expect("an id").to_owned();
    let row = format!("SELECT state FROM recharge_returns WHERE return_id = ulid_uuid('{id}')");
    eventually("the end of a return", || (desk.site.sql_value(&row) == state).then_some(()));
}

/// An order of 30.00 with 3.75 of bonus that is PAID, and the balance before it.
fn paid(desk: &Recharging, server: &Server, channel: &str) -> (String, u128) {
    let before = funding(server, USER);
    let id = server.recharge_paying(USER, &promoted("30", channel, channel));
    desk.sim.pay(&id);
    server.recharge_is(USER, &id, "PAID");
    assert_eq!(funding(server, USER) - before, 3_375 * COIN / 100);
    (id, before)
}

/// Goal: a refund takes its part of the bonus, rounded up over all parts, and all of it with the
/// last part; one that the channel refuses gives both back. The promotion gets nothing of it.
#[test]
fn rch_031_a_refund_in_parts_takes_the_bonus_in_proportion() {
    let desk = Recharging::new();
    let server = desk.start();
    funded(&server, &terms(), "100");
    for channel in ["wechat", "card"] {
        let (order, before) = paid(&desk, &server, channel);
        let key = |part: &str| format!("{channel}-{part}");
        // 3.75 * 0.01 / 30 is 0.00125: rounded up to 0.01.
        ends(&desk, &refund(&server, &order, Some("0.01"), &key("1")), "40");
        assert_eq!(funding(&server, USER) - before, 3_373 * COIN / 100);
        // 3.75 * 10 / 30 is 1.25, and 0.01 of it has gone.
        ends(&desk, &refund(&server, &order, Some("9.99"), &key("2")), "40");
        assert_eq!(funding(&server, USER) - before, 2_250 * COIN / 100);
        if channel == "wechat" {
            desk.sim.faults(&json!({"refunds": "CLOSED"}));
            ends(&desk, &refund(&server, &order, None, &key("3")), "-10");
            desk.sim.faults(&json!({}));
            let has = funding(&server, USER) - before;
            assert_eq!(has, 2_250 * COIN / 100, "it has both again");
        }
        ends(&desk, &refund(&server, &order, None, &key("4")), "40");
        assert_eq!(funding(&server, USER), before);
    }
    assert_sums(&server, ["92.5", "0", "7.5"]);
    assert_eq!(desk.site.sql_value("SELECT COALESCE(sum(frozen), 0) FROM balances_tb"), "0");
    assert_whole(&desk);
}

/// Goal: a refund needs its bonus too. Method: a part of the money has left before.
#[test]
fn rch_031_a_refund_without_its_bonus_is_short() {
    let desk = Recharging::new();
    let server = desk.start();
    funded(&server, &terms(), "100");
    let (order, before) = paid(&desk, &server, "wechat");
    let all = json!({"user_id": USER, "asset": "CNY", "reason": "a test", "idem_key": "spent",
        "amount": format!("{}", (before / COIN) + 1)});
    let gone = server.admin("POST", "/admin/v1/withdrawals", &all);
    assert_eq!(gone.status, 200, "{gone:?}");
    assert_refused(&refund(&server, &order, None, "short"), 422, "INSUFFICIENT_BALANCE");
    ends(&desk, &refund(&server, &order, Some("20"), "part"), "40");
    assert_whole(&desk);
}

/// Goal: money that the channel takes comes before the bonus, and the lack of the bonus is not
/// claimed. Method: the user has spent a part of the bonus.
#[test]
fn rch_033_a_taking_takes_the_principal_before_the_bonus() {
    let desk = Recharging::new();
    let server = desk.start();
    funded(&server, &terms(), "100");
    let (order, before) = paid(&desk, &server, "card");
    let spent = before / COIN + 2;
    let all = json!({"user_id": USER, "asset": "CNY", "reason": "a test", "idem_key": "spent",
        "amount": spent.to_string()});
    assert_eq!(server.admin("POST", "/admin/v1/withdrawals", &all).status, 200);
    desk.sim.done("POST", &format!("/sim/take/{order}"), &json!({}));
    eventually("the taking", || {
        let done = "SELECT count(*) FROM recharge_returns WHERE kind = 2 AND state = 40";
        (desk.site.sql_value(done) == "1").then_some(())
    });
    assert_eq!(funding(&server, USER), 0);
    assert_eq!(desk.site.sql_value("SELECT count(*) FROM receivables_tb"), "0");
    assert_eq!(desk.site.sql_value("SELECT bonus FROM recharge_returns"), "175");
    assert_whole(&desk);
}

/// Goal: a refund that its channel refuses behind a chargeback is paid by its user, and its bonus
/// goes with it; money that is given back is that user's again. Method: on the binary: the refund
/// is under way at the channel, the dispute takes all, and the refund fails.
#[test]
fn rch_033_a_refund_that_fails_behind_a_dispute_is_its_users_to_pay() {
    let desk = Recharging::new();
    let server = desk.start();
    funded(&server, &terms(), "100");
    let (order, before) = paid(&desk, &server, "card");
    desk.sim.faults(&json!({"refunds": "pending"}));
    ends(&desk, &refund(&server, &order, None, "all"), "20");
    let sent = eventually("the refund at its channel", || {
        let shown = desk.sim.done("GET", &format!("/sim/orders/{order}"), &json!({}));
        let number = shown[0]["payments"][0]["returns"][0]["number"].as_str();
        number.map(str::to_owned)
    });
    let take = desk.sim.done("POST", &format!("/sim/take/{order}"), &json!({"amount": 3_000}));
    let returned = |kind: u8| {
        let done = "SELECT count(*) FROM recharge_returns WHERE state = 40 AND kind = ";
        eventually("a fact of the channel", || {
            (desk.site.sql_value(&format!("{done}{kind}")) == "1").then_some(())
        });
    };
    returned(2);
    assert_eq!(funding(&server, USER) - before, 3_375 * COIN / 100, "all of it is apart");
    assert_whole(&desk);
    desk.sim.done("POST", &format!("/sim/refunds/{sent}"), &json!({"status": "failed"}));
    ends(&desk, &refund(&server, &order, None, "all"), "-10");
    assert_eq!(funding(&server, USER), before);
    let loss = "SELECT sum(CASE WHEN debit = 'card/loss' THEN amount ELSE -amount END) \
                  FROM recharge_movements WHERE 'card/loss' IN (debit, credit)";
    assert_eq!(desk.site.sql_value(loss), "0");
    assert_eq!(desk.site.sql_value("SELECT sum(frozen) FROM balances_tb"), "0");
    assert_sums(&server, ["96.25", "0", "3.75"]);
    assert_whole(&desk);
    let number = text(&take["number"]).to_owned();
    desk.sim.done("POST", &format!("/sim/give/{number}"), &json!({}));
    returned(3);
    assert_eq!(funding(&server, USER) - before, 30 * COIN);
    assert_whole(&desk);
}
