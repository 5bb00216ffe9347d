use super::*;

use ubscore::alert::Alert;

use crate::alerts::{assert_raised, site as alerting};
use crate::harness::COIN;

/// Goal: a payment that no callback and no query has told is found by the bill and credited once,
/// and then the day is clean.
#[test]
fn rch_035_a_payment_that_the_bill_alone_has_is_credited() {
    let books = Billing::new();
    for channel in BOTH {
        let id = books.paid(channel, channel, day(3));
        books.reconciles(channel, day(3), &json!({"callbacks": "drop"}));
        let order = books.server.recharge_is(USER, &id, "PAID");
        assert_eq!(order["payments"].as_array().expect("a list").len(), 1, "{order}");
        let seen = format!("SELECT seen_by FROM channel_payments WHERE merchant_no = '{id}'");
        assert_eq!(books.desk.site.sql_value(&seen), "3");
        let trade_no = books.trade_no(&id);
        let want = ("MISSING_HERE".to_owned(), "DONE".to_owned(), trade_no);
        assert_eq!(books.findings(channel), [want]);
        let series =
            format!("ubscore_recharge_credits_total{{channel=\"{channel}\",seen_by=\"bill\"}}");
        assert_eq!(books.server.metric(&series), 1);
        assert_eq!(
            books.bill(channel, day(3))["state"],
            json!("COMPARED"),
            "the next day may tell"
        );
        books.reconciles(channel, day(2), &json!({}));
        let bill = books.is_clean(channel, day(3));
        assert_eq!((&bill["lines"], &bill["paid"]), (&json!(1), &json!(10_000)), "{bill}");
    }
    assert_eq!(books.server.balances(USER)["CNY"].funding, Some(200 * COIN));
    books.is_whole();
}

/// Goal: a callback, a query and the bill at once credit once.
#[test]
fn rch_008_a_callback_a_query_and_a_bill_at_once_credit_once() {
    let books = Billing::new();
    books.desk.sim.faults(&json!({"callbacks": "hold"}));
    let mut orders = Vec::new();
    for channel in BOTH {
        for number in 0..4 {
            let key = format!("{channel}-{number}");
            let body = recharge("100", channel, &key);
            let id = books.server.recharge_paying(USER, &body);
            books.desk.sim.done("POST", &format!("/pay/{id}"), &json!({"at_s": noon(day(3))}));
            orders.push(id);
        }
    }
    for channel in BOTH {
        books.asks(channel, day(3), &json!({}));
    }
    for id in &orders {
        let asked = books.post(&format!("recharges/{id}/query"), &json!({"reason": "a test"}));
        assert_eq!(asked.status, 200, "{asked:?}");
    }
    for id in &orders {
        books.server.recharge_is(USER, id, "PAID");
    }
    eventually("every callback to be answered", || {
        let parcels = books.desk.sim.done("GET", "/sim/parcels", &json!({}));
        (parcels["open"] == json!(0)).then_some(())
    });
    for channel in BOTH {
        books.reconciles(channel, day(3), &json!({}));
        assert!(books.findings(channel).iter().all(|(_, state, _)| state == "DONE"));
    }
    let movements = "SELECT count(*) FROM recharge_movements";
    assert_eq!(books.desk.site.sql_value(movements), "8");
    assert_eq!(books.server.balances(USER)["CNY"].funding, Some(800 * COIN));
    books.is_whole();
}

/// Goal: a payment that stands neither in the bill of its day nor in the next one calls a person,
/// nothing is taken from its user, and the finding ends when the data show the payment.
#[test]
fn rch_035_a_lost_line_is_alerted_until_it_is_there() {
    let (site, webhook) = alerting();
    let books = Billing::on(site);
    for channel in BOTH {
        let id = books.credited(channel, channel, day(3));
        let lose = json!({"bill": "lose"});
        let bill = match channel {
            "wechat" => books.reconciles(channel, day(3), &lose),
            // Two lines: an empty list would be no bill yet.
            _ => {
                books.credited(channel, "another", day(3));
                books.reconciles(channel, day(3), &lose)
            }
        };
        assert_eq!(bill["state"], json!("COMPARED"), "{bill}");
        assert!(books.findings(channel).is_empty(), "it may stand in the next day's");
        books.reconciles(channel, day(2), &lose);
        let found = eventually("a finding", || {
            books.findings(channel).first().filter(|one| one.1 == "OPEN").cloned()
        });
        assert_eq!(found.0, "MISSING_THERE");
        assert_raised(&books.server, &webhook, Alert::BillMismatch);
        let gauge =
            format!("ubscore_bill_findings{{channel=\"{channel}\",kind=\"MISSING_THERE\"}}");
        eventually("the gauge", || (books.server.metric(&gauge) == 1).then_some(()));
        assert_eq!(books.server.recharge_of(USER, &id)["state"], json!("PAID"));
        books.reconciles(channel, day(3), &json!({}));
        books.is_clean(channel, day(3));
        assert_eq!(books.findings(channel)[0].1, "DONE");
        eventually("the gauge", || (books.server.metric(&gauge) == 0).then_some(()));
    }
    assert_eq!(books.server.balances(USER)["CNY"].funding, Some(300 * COIN));
    books.is_whole();
}

/// Goal: another amount in the bill calls a person, changes nothing, and ends by a dismissal with a
/// reason, which stands.
#[test]
fn rch_035_a_changed_line_is_a_persons_to_explain() {
    let (site, webhook) = alerting();
    let books = Billing::on(site);
    for channel in BOTH {
        books.credited(channel, channel, day(3));
        books.reconciles(channel, day(3), &json!({"bill": "change"}));
        let found =
            books.get(&format!("findings?channel={channel}&state=OPEN"))["findings"].clone();
        let found = &found[0];
        assert_eq!(found["kind"], json!("AMOUNT_DIFFERS"), "{found}");
        assert_eq!((&found["there"], &found["here"]), (&json!(10_001), &json!(10_000)));
        assert_raised(&books.server, &webhook, Alert::BillMismatch);
        let path = format!("findings/{}/dismiss", found["finding_id"]);
        assert_refused(&books.post(&path, &json!({})), 400, "INVALID_REQUEST");
        for _ in 0..2 {
            let reply = books.post(&path, &json!({"reason": "the channel has corrected it"}));
            assert_eq!(reply.status, 200, "{reply:?}");
            assert_eq!(reply.json()["state"], json!("DISMISSED"));
        }
        books.reconciles(channel, day(2), &json!({}));
        books.is_clean(channel, day(3));
        books.reconciles(channel, day(3), &json!({"bill": "change"}));
        books.is_clean(channel, day(3));
        assert_eq!(books.findings(channel)[0].1, "DISMISSED", "it stands");
    }
    let audited = "SELECT count(*) FROM admin_audit WHERE action = 'bill finding dismiss'";
    assert_eq!(books.desk.site.sql_value(audited), "2");
    assert_eq!(books.server.balances(USER)["CNY"].funding, Some(200 * COIN));
    books.is_whole();
}

/// Goal: a bill that is cut, late, empty or of another digest is no bill. It is fetched again,
/// alerted once it is a day late, and its lines never count.
#[test]
fn rch_035_a_bad_bill_is_fetched_again() {
    let (site, webhook) = alerting();
    let books = Billing::on(site);
    // An empty list of a card's day is no bill before two days have gone by.
    for (channel, faults, ago) in
        [("wechat", &["cut", "late", "empty", "digest"][..], 4), ("card", &["late", "empty"], 2)]
    {
        let id = books.credited(channel, channel, day(ago));
        for (number, fault) in faults.iter().enumerate() {
            books.asks(channel, day(ago), &json!({"bill": fault}));
            let bill = eventually("a failed try", || {
                let bill = books.bill(channel, day(ago));
                let tries = bill["tries"].as_u64().expect("a number");
                let failed = tries > number as u64 && !bill["what"].is_null();
                failed.then_some(bill)
            });
            assert_eq!((&bill["state"], &bill["good"]), (&json!("WANTED"), &json!(false)));
            assert!(!bill["next_at"].is_null(), "{bill}");
        }
        assert_raised(&books.server, &webhook, Alert::BillLate);
        books.reconciles(channel, day(ago), &json!({}));
        books.reconciles(channel, day(ago - 1), &json!({}));
        let bill = books.is_clean(channel, day(ago));
        assert_eq!((&bill["lines"], &bill["what"]), (&json!(1), &Value::Null), "{bill}");
        assert!(books.findings(channel).is_empty());
        assert_eq!(books.server.recharge_of(USER, &id)["state"], json!("PAID"));
    }
    let strays = "SELECT count(*) FROM channel_bill_lines l JOIN channel_bills b \
                    USING (channel, day) WHERE l.run IS DISTINCT FROM b.run";
    assert_eq!(books.desk.site.sql_value(strays), "0");
    books.is_whole();
}

/// Goal: lines of other users of the merchant account are counted and change nothing, and the
/// bill of an older merchant is read. A long bill is read as a stream.
#[test]
fn rch_035_foreign_lines_and_old_columns_change_nothing() {
    let books = Billing::new();
    for channel in BOTH {
        books.credited(channel, channel, day(4));
        let bill = books.reconciles(channel, day(4), &json!({"bill": "add"}));
        assert_eq!((&bill["lines"], &bill["foreign_lines"]), (&json!(2), &json!(1)), "{bill}");
        assert!(books.findings(channel).is_empty());
    }
    let bill = books.reconciles("wechat", day(4), &json!({"bill": "old"}));
    assert_eq!(bill["lines"], json!(1), "{bill}");
    let bill = books.reconciles("wechat", day(4), &json!({"foreign": 200_000}));
    let (lines, foreign) = (&bill["lines"], &bill["foreign_lines"]);
    assert_eq!((lines, foreign), (&json!(200_001), &json!(200_000)), "{bill}");
    assert!(books.findings("wechat").is_empty());
    for ago in [3, 2] {
        books.reconciles("wechat", day(ago), &json!({}));
    }
    books.is_clean("wechat", day(4));
    // A try that brings nothing takes nothing from a bill that is here.
    books.asks("wechat", day(2), &json!({"bill": "late"}));
    let failed = eventually("a failed try", || {
        let bill = books.bill("wechat", day(2));
        (!bill["what"].is_null()).then_some(bill)
    });
    let state = (&failed["state"], &failed["again"], &failed["good"]);
    assert_eq!(state, (&json!("COMPARED"), &json!(true), &json!(true)), "{failed}");
    books.reconciles("wechat", day(2), &json!({}));
    let lines = "SELECT count(*) FROM channel_bill_lines WHERE channel = 'wechat'";
    eventually("the lines to be removed", || {
        (books.desk.site.sql_value(lines) == "0").then_some(())
    });
    books.is_whole();
}

/// Goal: a day with its only payment in no bill ends: two days behind its time an empty bill is
/// one, and the payment calls a person.
#[test]
fn rch_035_a_day_with_its_only_payment_in_no_bill_ends() {
    let books = Billing::new();
    let empty = json!({"bill": "empty"});
    books.credited("card", "a", day(5));
    let bill = books.reconciles("card", day(5), &empty);
    assert_eq!((&bill["lines"], &bill["good"]), (&json!(0), &json!(true)), "{bill}");
    books.reconciles("card", day(4), &empty);
    let found = eventually("a finding", || books.findings("card").first().cloned());
    assert_eq!((found.0.as_str(), found.1.as_str()), ("MISSING_THERE", "OPEN"));
}

/// Goal: a payment that is decided behind the clean day of its bill is compared all the same, and
/// the bill that has lost its lines is fetched anew.
#[test]
fn rch_035_a_late_payment_opens_its_clean_day_again() {
    let books = Billing::new();
    books.credited("card", "a", day(4));
    for ago in [4, 3, 2] {
        books.reconciles("card", day(ago), &json!({}));
    }
    let purged = format!("SELECT purged FROM channel_bills WHERE day = '{}'", day(4));
    eventually("its lines to be removed", || {
        (books.desk.site.sql(&purged) == [["t"]]).then_some(())
    });
    books.credited("card", "b", day(4));
    assert_eq!(books.bill("card", day(4))["state"], json!("CLEAN"));
    let Billing { server, desk } = books;
    server.kill();
    desk.site.wait_for_disconnected();
    let books = Billing { server: desk.start(), desk };
    eventually("the bill anew", || (books.bill("card", day(4))["lines"] == json!(2)).then_some(()));
    books.is_clean("card", day(4));
    assert!(books.findings("card").is_empty());
}

/// Goal: a comparison that fails each time keeps no other day from its own, and a bill that no job
/// reaches is late. Method: the comparison of one day raises an error.
#[test]
fn rch_035_a_comparison_that_fails_delays_no_other_day() {
    let (site, webhook) = alerting();
    let books = Billing::on(site);
    books.credited("card", "a", day(4));
    let whole = "SELECT pg_get_functiondef('bill_lines_near'::regproc)";
    let whole = books.desk.site.sql_value(whole);
    books.desk.site.sql(&format!(
        "CREATE OR REPLACE FUNCTION bill_lines_near(p_channel TEXT, p_day DATE) \
         RETURNS SETOF channel_bill_lines LANGUAGE plpgsql STABLE AS $$ BEGIN \
            IF p_day = '{}' THEN RAISE EXCEPTION 'a test'; END IF; \
            RETURN QUERY SELECT l.* FROM channel_bills b JOIN channel_bill_lines l \
                ON (l.channel, l.day, l.run) = (b.channel, b.day, b.run) \
             WHERE b.channel = p_channel AND b.day BETWEEN p_day - 1 AND p_day + 1; \
         END $$",
        day(4)
    ));
    books.asks("card", day(4), &json!({}));
    let looks = format!("SELECT looks > 0 FROM channel_bills WHERE day = '{}'", day(4));
    eventually("a look", || (books.desk.site.sql(&looks) == [["t"]]).then_some(()));
    books.reconciles("card", day(6), &json!({}));
    books
        .desk
        .site
        .sql(&format!("INSERT INTO channel_bills (channel, day) VALUES ('card', '{}')", day(9)));
    let Billing { server, desk } = books;
    server.kill();
    desk.site.wait_for_disconnected();
    desk.site.sql(&whole);
    let server = desk.start();
    assert_raised(&server, &webhook, Alert::BillLate);
    let books = Billing { server, desk };
    books.reconciles("card", day(3), &json!({}));
    books.is_clean("card", day(4));
}

/// Goal: differences that are dismissed, however many, hide no other one. Method: bills by hand.
#[test]
fn rch_035_dismissed_findings_hide_no_other() {
    let books = Billing::new();
    let day = day(3);
    books.desk.site.sql(&format!(
        "INSERT INTO channel_bills (channel, day, state, tries, run, next_at) \
         VALUES ('card', '{day}', 10, 1, 1, NULL); \
         INSERT INTO channel_bill_lines (channel, day, run, place, kind, marked, merchant_no, \
            trade_no, minor_units, currency, at) \
         SELECT 'card', '{day}', 1, n, 1, true, 'wrc_1', 'pi_' || n, 100, 'CNY', now() \
           FROM generate_series(100001, 110002) n; \
         INSERT INTO bill_findings (channel, day, kind, reference, trade_no, merchant_no, \
            currency, state, found_at, updated_at, actor, reason) \
         SELECT channel, day, 1, trade_no, trade_no, merchant_no, currency, -40, at, at, 'bill', 'x' \
           FROM channel_bill_lines WHERE place < 110002"
    ));
    let body = json!({"day": day.to_string(), "apply": false, "reason": "a test"});
    let plan = books.post("channels/card/reconcile", &body).json();
    let found = plan["differences"].as_array().expect("a list");
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!(found[0]["reference"], json!("pi_110002"));
}

/// Goal: a payment of another deployment is dismissed. Method: an order of another deployment
/// on the same merchant account.
#[test]
fn rch_035_a_payment_of_another_deployment_is_dismissed() {
    let books = Billing::new();
    let other = Recharging { site: books.desk.site.elsewhere(), sim: books.desk.sim };
    let site = other.site.clone().with("UBSCORE__RECHARGE__DEPLOYMENT", "other");
    let elsewhere = site.start();
    other.sim.faults(&json!({"callbacks": "drop"}));
    let id = elsewhere.recharge_paying(USER, &recharge("100", "wechat", "there"));
    other.sim.done("POST", &format!("/pay/{id}"), &json!({"at_s": noon(day(3))}));
    let books = Billing { desk: Recharging { site: books.desk.site, ..other }, ..books };
    books.reconciles("wechat", day(3), &json!({"callbacks": "drop"}));
    let [found] = &books.findings("wechat")[..] else { panic!("one finding") };
    assert_eq!((found.0.as_str(), found.1.as_str()), ("MISSING_HERE", "DISMISSED"));
    books.reconciles("wechat", day(2), &json!({}));
    books.is_clean("wechat", day(3));
    assert_eq!(books.desk.site.sql_value("SELECT count(*) FROM channel_payments"), "0");
}
