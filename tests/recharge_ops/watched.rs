//! The things that operators watch and look up: receivables, the accounts of channels, the events
//! of a recharge, kept callbacks, and the halt by a broken law.

use std::slice::from_ref;

use super::refunds::{paid, refund, return_is, taken};
use super::*;
use crate::harness::{Endpoint, Site};

/// The secret of the webhook.
const SECRET: &str = "whsec_YW4gZW5kcG9pbnQncyBzZWNyZXQsIDMyIGJ5dGVzLi4=";
/// So long that the till asks nothing by itself, ms.
const LATE_MS: u32 = 3_600_000;

/// A site on which a payment comes by callbacks alone.
fn unasked(site: Site) -> Recharging {
    let desk = Recharging::on(site);
    let site = desk.site.clone().with("UBSCORE__RECHARGE__QUERY_AFTER_MS", LATE_MS);
    let site = site.with("UBSCORE__RECHARGE__QUERY_CAP_MS", LATE_MS);
    Recharging { site, ..desk }
}

/// The values of a key in a list of an answer.
fn each<'a>(answer: &'a Value, list: &str, key: &str) -> Vec<&'a str> {
    answer[list].as_array().expect("a list").iter().map(|row| text(&row[key])).collect()
}

/// Goal: money that users owe calls an operator, is counted, and is listed until it is ended.
/// Method: two disputes at the simulator; the list by each filter, over HTTP and by the command.
#[test]
fn rch_041_a_receivable_is_said_and_listed() {
    let (site, webhook) = alerting();
    let desk = Recharging::on(site);
    let server = desk.start();
    let (order, _, first) = taken(&desk, &server, USER, "a");
    let (_, _, second) = taken(&desk, &server, OTHER, "b");
    let said = assert_raised(&server, &webhook, Alert::ReceivableOpened);
    assert!(text(&said["message"]).contains(&first), "{said}");
    let alerts = "ubscore_alerts_total{alert=\"receivable_opened\"}";
    eventually("one for each", || (server.metric(alerts) == 2).then_some(()));
    eventually("the gauge", || {
        (server.metric("ubscore_recharge_receivables_open") == 2).then_some(())
    });
    let ids = |query: &str| -> Vec<String> {
        let found = get(&server, &format!("receivables?{query}"));
        each(&found, "receivables", "return_id").into_iter().map(str::to_owned).collect()
    };
    assert_eq!(ids(""), [first.clone(), second.clone()], "the oldest first");
    assert_eq!(ids(&format!("user={OTHER}")), from_ref(&second));
    let page = get(&server, "receivables?limit=1&open=true");
    let cursor = text(&page["next_cursor"]);
    assert_eq!(ids(&format!("limit=1&open=true&cursor={cursor}")), from_ref(&second));
    let path = format!("receivables/{first}/write-off");
    assert_eq!(post(&server, &path, &credit("w-1")).status, 200);
    assert_eq!(ids("open=true"), from_ref(&second));
    assert_eq!(ids(""), [first.clone(), second.clone()]);
    let (code, says) = server.operate(&["recharge", "receivables", "--open"]);
    assert_eq!(code, 0, "{says}");
    assert!(says.contains(&second) && !says.contains(&first), "{says}");
    for bad in ["open=1", "user=x", "limit=0", "cursor=x", "cursor=1.x", "x=1"] {
        let reply = server.admin_get(&format!("/admin/v1/receivables?{bad}"));
        assert_refused(&reply, 400, "INVALID_REQUEST");
    }

    // The accounts of the channel: 200 paid and taken, 60 of it written off, 60 owed.
    let wanted = json!({
        "channel": "card", "asset": "CNY", "paid": "200", "returned": "0", "taken": "200",
        "given_back": "0", "clearing": "0", "suspense": "0", "receivable": "60", "loss": "60",
    });
    eventually("the sums of a channel", || {
        let totals = get(&server, "totals");
        let sums = totals["channels"].as_array().expect("sums").clone();
        let own = wanted.as_object().expect("an object");
        let is_all = |row: &Value| own.iter().all(|(key, value)| row[key] == *value);
        sums.iter().any(is_all).then_some(())
    });
    let (code, says) = server.operate(&["channel", "totals"]);
    assert_eq!(code, 0, "{says}");
    assert!(says.contains("RECEIVABLE") && says.contains("60"), "{says}");
    let shown = get(&server, &format!("recharges/{order}"));
    assert_eq!(shown["receivables"][0]["open"], json!("0"), "{shown}");
    desk.site.assert_verified();
}

/// Goal: one answer has an order, its events and their deliveries. Method: a paid order with an
/// endpoint that takes them, and one that does not.
#[test]
fn rch_042_a_recharge_shows_its_events_and_their_deliveries() {
    for (status, wanted) in [(200, "DELIVERED"), (500, "PENDING")] {
        let endpoint = Endpoint::start(move |_| status);
        let site = Site::new()
            .with("UBSCORE__WEBHOOKS__URL", endpoint.url())
            .with("UBSCORE__WEBHOOKS__SECRET", SECRET);
        let desk = Recharging::on(site);
        let server = desk.start();
        let order = paid(&desk, &server, USER, "wechat", "a");
        let other = paid(&desk, &server, USER, "card", "b");
        let shown = eventually("the deliveries", || {
            let shown = get(&server, &format!("recharges/{order}"));
            let events = shown["events"].as_array().expect("a list").clone();
            let first = &events.first()?["deliveries"][0];
            let tried = first["attempts"].as_u64().is_some_and(|tries| tries > 0);
            (first["state"] == json!(wanted) && (tried || status == 200)).then_some(shown)
        });
        assert_eq!(each(&shown, "events", "type"), ["recharge.paying", "recharge.paid"]);
        let payment = &shown["payments"][0]["payment_id"];
        assert_eq!(shown["events"][1]["payment_id"], *payment, "{shown}");
        let ids = each(&shown, "events", "event_id");
        let others = get(&server, &format!("recharges/{other}"));
        let others = each(&others, "events", "event_id");
        assert!(others.iter().all(|id| !ids.contains(id)), "{others:?} {ids:?}");
        let (code, says) = server.operate(&["recharge", "show", &order]);
        assert_eq!(code, 0, "{says}");
        assert!(says.contains("recharge.paid") && says.contains(wanted), "{says}");
    }
}

/// Goal: the callback of a held, missing or contradicting payment is kept as it came, for admins
/// alone, in no log, and for its time. Method: both channels; a record that is changed by hand.
#[test]
fn rch_042_a_held_payment_shows_its_callback_as_it_came() {
    let desk = unasked(Site::new().with("UBSCORE__CONSERVATION__EVERY_MS", LATE_MS));
    let server = desk.start();
    let little = json!({"amount": 5_000});
    let fine = paid(&desk, &server, USER, "wechat", "fine");
    let mut words = Vec::new();
    for (channel, signature, has) in
        [("wechat", "wechatpay-signature: ", "\"ciphertext\""), ("card", "stripe-signature: ", "")]
    {
        let id = server.recharge_paying(USER, &recharge("100", channel, channel));
        desk.sim.done("POST", &format!("/pay/{id}"), &little);
        let shown = eventually("the kept callback", || {
            let shown = get(&server, &format!("recharges/{id}"));
            (shown["notices"][0]["outcome"] == json!("HELD")).then_some(shown)
        });
        let payment = text(&shown["payments"][0]["payment_id"]);
        let trade_no = text(&shown["payments"][0]["trade_no"]);
        assert!(shown["notices"][0].get("body").is_none(), "its words stand elsewhere: {shown}");
        let kept = get(&server, &format!("payments/{payment}/notices"))["notices"][0].clone();
        let body = text(&kept["body"]).to_owned();
        assert_eq!(kept["bytes"], json!(body.len()), "{kept}");
        assert!(body.contains(has), "{body}");
        assert_eq!(body.contains(trade_no), channel == "card", "sealed as it came: {body}");
        let headers = kept["headers"].as_array().expect("a list");
        assert!(headers.iter().any(|one| text(one).starts_with(signature)), "{kept}");
        let (code, says) = server.operate(&["channel", "notices", payment]);
        assert_eq!(code, 0, "{says}");
        assert!(says.contains(&body), "{says}");
        let viewer = token(OTHER, Some(Role::Viewer));
        let path = format!("/admin/v1/payments/{payment}/notices");
        let looked = send(server.ops, &Request::new(&viewer, "GET", &path)).expect("an answer");
        assert_refused(&looked, 403, "FORBIDDEN");
        words.push((id, body));
    }
    desk.site.sql(
        "ALTER TABLE channel_payments DISABLE TRIGGER USER; \
         UPDATE channel_payments SET currency = 'EUR' WHERE channel = 'card'; \
         ALTER TABLE channel_payments ENABLE TRIGGER USER",
    );
    let card = &words[1].0;
    for _ in 0..12 {
        desk.sim.done("POST", &format!("/sim/replay/{card}"), &json!({}));
    }
    eventually("a contradiction", || {
        let shown = get(&server, &format!("recharges/{card}"));
        each(&shown, "notices", "outcome").contains(&"CONTRADICTION").then_some(())
    });
    let most = "SELECT max(kept) <= 8 FROM (SELECT count(*) AS kept FROM channel_notices \
                GROUP BY payment_id) AS counted";
    assert_eq!(desk.site.sql_value(most), "t");
    let shown = get(&server, &format!("recharges/{fine}"));
    assert_eq!(shown["notices"], json!([]), "a payment without a doubt keeps nothing");
    let said = server.said();
    for (_, body) in &words {
        assert!(!said.contains(&body[body.len() / 2..]), "in no log");
    }
    server.stop();
    // The record is as it was, so that the sums are.
    desk.site.sql(
        "ALTER TABLE channel_payments DISABLE TRIGGER USER; \
         UPDATE channel_payments SET currency = 'CNY' WHERE channel = 'card'; \
         ALTER TABLE channel_payments ENABLE TRIGGER USER",
    );
    let site = desk.site.clone().with("UBSCORE__RECHARGE__NOTICES_KEEP_HOURS", "0.0001");
    let _server = site.start();
    eventually("the end of the kept", || {
        (site.sql_value("SELECT count(*) FROM channel_notices") == "0").then_some(())
    });
}

/// Goal: a part that went back at the channel without us is booked by its number, by one operator:
/// of a HELD payment, of which the rest then goes back, and of a CREDITED one beside a refund of
/// ours. Method: over HTTP and by the command; each repeat, and each wrong body.
#[test]
fn rch_034_a_part_that_went_back_is_booked_by_an_operator() {
    let (site, webhook) = alerting();
    let desk = unasked(site);
    let server = desk.start();
    let order = server.recharge_paying(USER, &recharge("100", "wechat", "a"));
    desk.sim.faults(&json!({"callbacks": "drop"}));
    desk.sim.pay(&order);
    let back = desk.sim.done("POST", &format!("/sim/refund/{order}"), &json!({"amount": 4_000}));
    let number = text(&back["number"]);
    assert_eq!(post(&server, &format!("recharges/{order}/query"), &because()).status, 200);
    let payment = eventually("the held payment", || {
        let found = get(&server, "recharges?held=PART_RETURNED");
        found["payments"][0]["payment_id"].as_str().map(str::to_owned)
    });
    let sent = post(&server, &format!("payments/{payment}/return"), &because());
    assert_refused(&sent, 409, "NOT_RETURNABLE");
    assert!(sent.body.contains("ubscore recharge taken"), "{sent:?}");
    let path = format!("payments/{payment}/taken");
    let part = |body: Value| {
        let mut whole = json!({"reason": "a test", "number": number});
        whole.as_object_mut().expect("one").extend(body.as_object().expect("one").clone());
        whole
    };
    for bad in [
        json!({}),
        json!({"amount": "40", "minor_units": 4_000}),
        json!({"minor_units": 0}),
        json!({"amount": "40", "number": "a b"}),
    ] {
        assert_refused(&post(&server, &path, &part(bad)), 400, "INVALID_REQUEST");
    }
    let over = post(&server, &path, &part(json!({"amount": "101"})));
    assert_refused(&over, 409, "NOT_RETURNABLE");
    let words = ["recharge", "taken", &payment, "--amount", "40", "--number", number];
    let (code, says) = server.operate(&[&words[..], &["--reason", "a test"]].concat());
    assert_eq!(code, 0, "{says}");
    assert!(says.contains(&format!("DONE, 40 CNY of {payment}\n")), "{says}");
    let again = post(&server, &path, &part(json!({"minor_units": 4_000})));
    assert_eq!((again.status, &again.json()["kind"]), (200, &json!("TAKEN")), "{again:?}");
    assert!(again.header("idempotent-replayed").is_some(), "{again:?}");
    let other = post(&server, &path, &part(json!({"minor_units": 3_999})));
    assert_refused(&other, 409, "IDEM_KEY_CONFLICT");
    assert_stands(&post(&server, &format!("payments/{payment}/return"), &because()), "RETURNING");
    eventually("the rest", || {
        let shown = get(&server, &format!("recharges/{payment}"));
        (shown["payments"][0]["disposition"] == json!("RETURNED")).then_some(())
    });
    assert_eq!(suspense(&desk), "0");
    desk.sim.faults(&json!({}));

    // A refund of ours, and one that is not: together they are all of it.
    let order = paid(&desk, &server, USER, "card", "b");
    let before = server.balances(USER)["CNY"].funding.unwrap_or(0);
    let own = refund(&server, &order, Some("30"), "own");
    let own = text(&own.json()["return_id"]).to_owned();
    return_is(&server, &order, &own, "DONE");
    let back = desk.sim.done("POST", &format!("/sim/refund/{order}"), &json!({"amount": 7_000}));
    let said = assert_raised(&server, &webhook, Alert::RechargeContradiction);
    assert!(text(&said["message"]).contains("ubscore recharge taken"), "{said}");
    let shown = get(&server, &format!("recharges/{order}"));
    let payment = text(&shown["payments"][0]["payment_id"]).to_owned();
    let path = format!("payments/{payment}/taken");
    let ours = json!({"reason": "a test", "number": own, "amount": "30"});
    assert_refused(&post(&server, &path, &ours), 409, "NOT_RETURNABLE");
    let theirs = json!({"reason": "a test", "number": back["number"], "amount": "70"});
    let booked = post(&server, &path, &theirs);
    assert_eq!((booked.status, &booked.json()["amount"]), (200, &json!("70")), "{booked:?}");
    let after = server.balances(USER)["CNY"].funding.unwrap_or(0);
    assert_eq!(before - after, 100 * COIN, "its user has nothing of it");
    assert_eq!(refund(&server, &order, None, "more").status, 409);
    let booked = actions(&desk).into_iter().filter(|row| row.starts_with("payment taken"));
    assert_eq!(booked.count(), 2, "repeats and refusals do nothing");
    desk.site.assert_verified();
}

/// Goal: with `external` in `approval.required` money that went back is booked by two operators.
#[test]
fn rch_036_money_that_went_back_waits_for_two_people() {
    let desk = Recharging::new();
    let desk = Recharging {
        site: desk.site.clone().with("UBSCORE__APPROVAL__REQUIRED", "external"),
        ..desk
    };
    let server = desk.start();
    let order = paid(&desk, &server, USER, "wechat", "a");
    let before = server.balances(USER)["CNY"].funding.unwrap_or(0);
    let shown = get(&server, &format!("recharges/{order}"));
    let path = format!("payments/{}/taken", text(&shown["payments"][0]["payment_id"]));
    let body = json!({"reason": "a test", "number": "50300-1", "minor_units": 2_000});
    let asked = post(&server, &path, &body);
    assert_eq!(asked.json()["request"]["amount"], json!("20"), "{asked:?}");
    let again = post(&server, &path, &body);
    assert_eq!(again.json()["approval_id"], asked.json()["approval_id"]);
    let other = json!({"reason": "a test", "number": "50300-1", "minor_units": 2_001});
    assert_refused(&post(&server, &path, &other), 409, "IDEM_KEY_CONFLICT");
    assert_eq!(server.balances(USER)["CNY"].funding.unwrap_or(0), before);
    let done = approve(&server, &asked);
    assert_eq!((done.status, &done.json()["state"]), (200, &json!("DONE")), "{done:?}");
    assert_eq!(before - server.balances(USER)["CNY"].funding.unwrap_or(0), 20 * COIN);
    let again = post(&server, &path, &body);
    assert!(again.header("idempotent-replayed").is_some(), "{again:?}");
    desk.site.assert_verified();
}

/// A law that SQL breaks, and the mend.
struct Broken {
    change: &'static str,
    mend: &'static str,
    /// The beginning of the subject that the audit names.
    names: &'static str,
}

/// Goal: a broken law of recharges halts the service, which names it; callbacks wait, a resume is
/// refused until the mend, and then all goes on by itself. Method: a movement, a PAID order and the
/// hold of a return, each behind the guards, on the real binary.
#[test]
fn rch_038_a_broken_law_halts_until_it_is_mended() {
    let desk = unasked(Site::new().with("UBSCORE__CONSERVATION__EVERY_MS", 50));
    let server = desk.start();
    let order = paid(&desk, &server, USER, "wechat", "a");
    server.recharge_paying(OTHER, &recharge("20", "wechat", "open"));
    // Its hold stays while the channel has no money for it.
    desk.sim.faults(&json!({"refunds": "NOT_ENOUGH"}));
    let asked = refund(&server, &order, Some("30"), "own");
    assert_eq!(asked.status, 200, "{asked:?}");
    let own = text(&asked.json()["return_id"]).to_owned();
    return_is(&server, &order, &own, "SENT");
    let behind = |change: &str| {
        let session = desk.site.session();
        session.sql(&format!("SET session_replication_role = replica; {change}"));
    };
    for (round, broken) in [
        Broken {
            change: "CREATE TABLE kept AS SELECT * FROM recharge_movements WHERE kind = 1; \
                     DELETE FROM recharge_movements WHERE kind = 1",
            mend: "INSERT INTO recharge_movements SELECT * FROM kept",
            names: "recharge/",
        },
        Broken {
            change: "UPDATE recharges_tb SET state = 40, paid_at = now() WHERE idem_key = 'open'",
            mend: "UPDATE recharges_tb SET state = 10, paid_at = NULL WHERE idem_key = 'open'",
            names: "recharge ",
        },
        Broken {
            change: "UPDATE funding_holds SET amount = amount + 1 WHERE state = 10",
            mend: "UPDATE funding_holds SET amount = amount - 1 WHERE state = 10",
            names: "return",
        },
    ]
    .into_iter()
    .enumerate()
    {
        let body = recharge("5", "card", &format!("round-{round}"));
        let waits = server.recharge_paying(OTHER, &body);
        let said_before = server.said().len();
        behind(broken.change);
        eventually("the halt", || (server.ready() == 503).then_some(()));
        let line = eventually("the law by its name", || {
            let said = server.said()[said_before..].to_owned();
            let line = said.lines().find(|line| line.contains("halted actor=\"audit\""))?;
            Some(line.to_owned())
        });
        assert!(line.contains(broken.names), "{}: {line}", broken.change);
        let reason = send(server.ops, &Request::new("", "GET", "/readyz")).expect("an answer");
        assert!(reason.body.contains(broken.names), "{}: {reason:?}", broken.change);
        let series = "ubscore_callbacks_total{channel=\"card\",outcome=\"later\"}";
        let before = server.metric(series);
        desk.sim.pay(&waits);
        eventually("a callback that waits", || (server.metric(series) > before).then_some(()));
        assert_eq!(server.recharge_of(OTHER, &waits)["state"], json!("PAYING"));
        let early = server.resume("too early");
        assert_ne!(early.status, 200, "{}: {early:?}", broken.change);
        behind(broken.mend);
        let resumed = server.resume("mended");
        assert_eq!(resumed.status, 200, "{}: {resumed:?}", broken.change);
        server.recharge_is(OTHER, &waits, "PAID");
    }
    desk.sim.faults(&json!({}));
    return_is(&server, &order, &own, "DONE");
    desk.site.sql("DROP TABLE kept");
    desk.site.assert_verified();
}

/// Goal: finance reads each movement of an account of a channel, with its other side, once. Method:
/// two paid orders and a refund; pages of one row; the command; broken queries.
#[test]
fn rch_035_the_statement_of_a_channel_has_each_movement_once() {
    let desk = Recharging::new();
    let server = desk.start();
    let begun = "2026-01-01T00:00:00Z".parse::<jiff::Timestamp>().expect("a time");
    let now = jiff::Timestamp::now();
    let since = now - jiff::SignedDuration::from_hours(24);
    let until = now + jiff::SignedDuration::from_hours(24);
    let first = paid(&desk, &server, USER, "wechat", "a");
    let second = paid(&desk, &server, OTHER, "wechat", "b");
    let (within, mut cursor) = (format!("since={since}&until={until}"), String::new());
    let (mut keys, mut sum) = (Vec::new(), 0);
    loop {
        let page = get(&server, &format!("channels/wechat/statement?{within}&limit=1{cursor}"));
        assert_eq!(page["account"], json!("wechat/clearing"));
        for row in page["movements"].as_array().expect("a list") {
            assert_eq!(row["side"], json!("debit"), "{row}");
            assert!(text(&row["other"]).starts_with("user/"), "{row}");
            keys.push(text(&row["recharge_id"]).to_owned());
            sum += text(&row["amount"]).parse::<u64>().expect("whole");
        }
        match page["next_cursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => break,
        }
    }
    assert_eq!(keys, [first, second]);
    let totals = get(&server, "totals");
    let channels = totals["channels"].as_array().expect("a list");
    let wechat = channels.iter().find(|row| row["channel"] == json!("wechat")).expect("its sums");
    assert_eq!(text(&wechat["clearing"]).parse::<u64>().expect("whole"), sum);
    let arguments = [
        "channel",
        "statement",
        "wechat",
        "--since",
        &since.to_string(),
        "--until",
        &until.to_string(),
    ];
    let (code, says) = server.operate(&arguments);
    assert_eq!(code, 0, "{says}");
    assert!(keys.iter().all(|id| says.contains(id.as_str())), "{says}");
    let long = format!("since={begun}&until={until}");
    for bad in ["", "since=x&until=y", long.as_str(), &format!("{within}&account=user/1")] {
        let reply = server.admin_get(&format!("/admin/v1/channels/wechat/statement?{bad}"));
        assert_refused(&reply, 400, "INVALID_REQUEST");
    }
}

/// Goal: kept callbacks hold data of payers, and end in time while recharges are off.
#[test]
fn a_kept_callback_ends_while_recharges_are_off() {
    let site = Site::new();
    site.start().kill();
    site.wait_for_disconnected();
    site.sql(
        "INSERT INTO channel_notices (at, payment_id, channel, trade_no, outcome, head, body) \
         SELECT now() - age, '01900000-0000-7000-8000-000000000001', 'card', 'pi_1', 'HELD', \
                '{}', '\\x00' \
           FROM (VALUES (INTERVAL '29 days'), (INTERVAL '31 days')) AS ages (age)",
    );
    let server = site.start();
    let kept = "SELECT count(*) FROM channel_notices";
    eventually("the old one to be deleted", || (site.sql_value(kept) == "1").then_some(()));
    assert!(server.callbacks.is_none(), "recharges are off");
}
