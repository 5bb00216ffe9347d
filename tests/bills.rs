//! The daily bills of channels, on the real binary: each difference is named, repaired or alerted,
//! and then the day is clean. Payments have the time of an earlier day; the server's clock is real.

/// Fees, and money that reaches the bank.
mod booked;
/// One comparison at a time.
mod compared;
/// Lines lost, added, changed; bills cut, late, empty, of old columns.
mod differing;
/// SIGKILL behind a fetch and behind a repair.
#[cfg(feature = "crash")]
mod killed;
/// Money that goes back.
mod returned;

use jiff::civil::Date;
use jiff::tz::Offset;
use jiff::{Timestamp, ToSpan};
use serde_json::{Value, json};

use crate::harness::{
    Recharging, Reply, Server, Site, assert_refused, cli, eventually, recharge, said,
};

const USER: u64 = 1001;
/// Both channels, by the names of their configuration.
const BOTH: [&str; 2] = ["wechat", "card"];

/// A running server with a till that asks for no payment by itself.
struct Billing {
    desk: Recharging,
    server: Server,
}

/// The day so many days ago. It has ended in the days of both channels from two days on.
fn day(ago: i64) -> Date {
    let today = Offset::UTC.to_datetime(Timestamp::now()).date();
    today.checked_sub(ago.days()).expect("a day of today")
}

/// A time of a day that both channels count as theirs, seconds since 1970.
fn noon(day: Date) -> i64 {
    Offset::UTC.to_timestamp(day.at(6, 0, 0, 0)).expect("a day of today").as_second()
}

fn patient(desk: Recharging) -> Recharging {
    let site = desk
        .site
        .clone()
        .with("UBSCORE__RECHARGE__USER_OPEN_MAX", 100)
        .with("UBSCORE__RECHARGE__QUERY_AFTER_MS", 3_600_000)
        .with("UBSCORE__RECHARGE__QUERY_CAP_MS", 86_400_000)
        .with("UBSCORE__CHANNELS__WECHAT__BILL_AT", "00:00")
        .with("UBSCORE__CHANNELS__CARD__BILL_AT", "00:00");
    Recharging { site, ..desk }
}

impl Billing {
    fn new() -> Billing {
        Billing::on(Site::new())
    }

    fn on(site: Site) -> Billing {
        let desk = patient(Recharging::on(site));
        let server = desk.start();
        Billing { desk, server }
    }

    fn post(&self, path: &str, body: &Value) -> Reply {
        self.server.admin("POST", &format!("/admin/v1/{path}"), body)
    }

    fn get(&self, path: &str) -> Value {
        let reply = self.server.admin_get(&format!("/admin/v1/{path}"));
        assert_eq!(reply.status, 200, "{path}: {reply:?}");
        reply.json()
    }

    /// An order of 100 CNY that is paid on a day, and of which no callback tells.
    fn paid(&self, channel: &str, key: &str, day: Date) -> String {
        self.desk.sim.faults(&json!({"callbacks": "drop"}));
        let id = self.server.recharge_paying(USER, &recharge("100", channel, key));
        self.desk.sim.done("POST", &format!("/pay/{id}"), &json!({"at_s": noon(day)}));
        id
    }

    /// The same, and it is credited by a query.
    fn credited(&self, channel: &str, key: &str, day: Date) -> String {
        let id = self.paid(channel, key, day);
        let asked = self.post(&format!("recharges/{id}/query"), &json!({"reason": "a test"}));
        assert_eq!(asked.status, 200, "{asked:?}");
        self.server.recharge_is(USER, &id, "PAID");
        self.desk.sim.faults(&json!({}));
        id
    }

    /// Has the bill of a day fetched, with these faults.
    fn asks(&self, channel: &str, day: Date, faults: &Value) {
        self.desk.sim.faults(faults);
        let body = json!({"day": day.to_string(), "apply": true, "reason": "a test"});
        let reply = self.post(&format!("channels/{channel}/reconcile"), &body);
        assert_eq!(reply.status, 202, "{reply:?}");
    }

    /// The same, until the bill is here and compared.
    fn reconciles(&self, channel: &str, day: Date, faults: &Value) -> Value {
        self.asks(channel, day, faults);
        eventually("a bill that is compared", || {
            let looks = format!(
                "SELECT looks FROM channel_bills WHERE channel = '{channel}' AND day = '{day}' \
                    AND state <> 0 AND NOT again AND compared_at IS NOT NULL"
            );
            (!self.desk.site.sql(&looks).is_empty()).then_some(())
        });
        self.bill(channel, day)
    }

    /// A day that has ended is refused before its bill is made. One of the two channels has more
    /// than two hours left of its day.
    fn refuses_a_bill_before_its_time(&self) {
        let site = self.desk.site.elsewhere();
        let site = site
            .with("UBSCORE__CHANNELS__WECHAT__BILL_AT", "23:59")
            .with("UBSCORE__CHANNELS__CARD__BILL_AT", "23:59");
        let server = site.start();
        let local = |hours| Offset::constant(hours).to_datetime(Timestamp::now());
        let (channel, now) = match local(0).hour() {
            ..22 => ("card", local(0)),
            _ => ("wechat", local(8)),
        };
        let yesterday = now.date().yesterday().expect("a day");
        let body = json!({"day": yesterday.to_string(), "apply": true, "reason": "x"});
        let path = format!("/admin/v1/channels/{channel}/reconcile");
        let reply = server.admin("POST", &path, &body);
        assert_refused(&reply, 400, "INVALID_REQUEST");
        assert!(reply.json()["message"].to_string().contains(":59:00Z"), "{reply:?}");
    }

    /// The bill of a day, as operators see it.
    fn bill(&self, channel: &str, day: Date) -> Value {
        self.get(&format!("bills?channel={channel}&day={day}"))["bills"][0].clone()
    }

    fn is_clean(&self, channel: &str, day: Date) -> Value {
        eventually("a clean day", || {
            let bill = self.bill(channel, day);
            (bill["state"] == json!("CLEAN")).then_some(bill)
        })
    }

    /// The findings of a channel: kind, state and reference of each, oldest first.
    fn findings(&self, channel: &str) -> Vec<(String, String, String)> {
        let found = self.get(&format!("findings?channel={channel}"))["findings"].clone();
        let found = found.as_array().expect("a list").iter().rev();
        let part = |one: &Value, key: &str| one[key].as_str().expect(key).to_owned();
        found.map(|one| (part(one, "kind"), part(one, "state"), part(one, "reference"))).collect()
    }

    fn trade_no(&self, order: &str) -> String {
        self.desk.site.sql_value(&format!(
            "SELECT trade_no FROM channel_payments WHERE merchant_no = '{order}'"
        ))
    }

    /// Nothing contradicts anything, and both stores agree.
    fn is_whole(&self) {
        let found = "\
            SELECT subject || ' ' || what FROM audit_recharges('epoch', 'infinity') \
            UNION ALL SELECT subject || ' ' || what FROM audit_recharge_accounts()";
        assert_eq!(self.desk.site.sql(found), Vec::<Vec<String>>::new());
        self.desk.site.assert_in_order(&self.server);
    }
}

/// Goal: each ended day from the channel's first on is fetched by itself, once, and a day without a
/// trade is a bill. Method: the names of the channels are four days old.
#[test]
fn each_day_is_fetched_by_itself() {
    let desk = patient(Recharging::new());
    let server = desk.start();
    let bills = "SELECT count(*) FROM channel_bills";
    assert_eq!(desk.site.sql_value(bills), "0", "no day of the channels has ended");
    server.kill();
    desk.site.wait_for_disconnected();
    desk.site.sql(
        "ALTER TABLE channels_tb DISABLE TRIGGER USER; \
         UPDATE channels_tb SET created_at = created_at - INTERVAL '4 days'; \
         ALTER TABLE channels_tb ENABLE TRIGGER USER",
    );
    let server = desk.start();
    for channel in BOTH {
        let days = "SELECT count(*) FILTER (WHERE state = 40) = count(*) - 1 AND count(*) >= 4 \
                           AND max(tries) = 1 AND bool_and(lines = 0) \
                      FROM channel_bills WHERE channel = ";
        eventually("all days but the last to be clean", || {
            (desk.site.sql_value(&format!("{days}'{channel}'")) == "t").then_some(())
        });
        let last = format!("ubscore_bill_last_good_timestamp_seconds{{channel=\"{channel}\"}}");
        eventually("the gauge", || (server.metric(&last) > 0).then_some(()));
    }
    desk.site.assert_in_order(&server);
}

/// Goal: operators see bills and findings, and no wrong input is taken. Method: over HTTP and by
/// the commands.
#[test]
fn operators_see_bills_and_no_wrong_input_is_taken() {
    let books = Billing::new();
    let path = "channels/wechat/reconcile";
    let today = day(0).tomorrow().expect("a day");
    for (wrong, status, code) in [
        (json!({"day": today.to_string(), "apply": true, "reason": "x"}), 400, "INVALID_REQUEST"),
        (json!({"day": "yesterday", "apply": true, "reason": "x"}), 400, "INVALID_REQUEST"),
        (json!({"day": "2026-1-1", "apply": true, "reason": "x"}), 400, "INVALID_REQUEST"),
        (json!({"day": day(3).to_string(), "reason": "x"}), 400, "INVALID_REQUEST"),
        (json!({"day": day(94).to_string(), "apply": true, "reason": "x"}), 400, "INVALID_REQUEST"),
        (json!({"day": day(3).to_string(), "apply": true}), 400, "INVALID_REQUEST"),
        (json!({"day": day(3).to_string(), "apply": false, "reason": "x"}), 404, "NOT_FOUND"),
    ] {
        assert_refused(&books.post(path, &wrong), status, code);
    }
    let body = json!({"day": day(3).to_string(), "apply": true, "reason": "x"});
    assert_refused(&books.post("channels/other/reconcile", &body), 400, "INVALID_CHANNEL");
    let reason = json!({"reason": "x"});
    assert_refused(&books.post("findings/7/dismiss", &reason), 404, "NOT_FOUND");
    assert_refused(&books.post("findings/x/dismiss", &reason), 404, "NOT_FOUND");
    for wrong in ["bills?day=tomorrow", "bills?channel=A", "findings?state=new", "bills?x=1"] {
        let reply = books.server.admin_get(&format!("/admin/v1/{wrong}"));
        assert_refused(&reply, 400, "INVALID_REQUEST");
    }
    let id = books.paid("wechat", "a", day(3));
    books.refuses_a_bill_before_its_time();
    let ops = format!("http://{}", books.server.ops);
    let access = ["--ops", &ops, "--dev", "--as", "77"];
    let run = |arguments: &[&str]| {
        let (code, out, err) = said(&cli(&[arguments, &access].concat()));
        assert_eq!(code, 0, "{arguments:?}: {out}{err}");
        out
    };
    let at = day(3).to_string();
    let of = ["recharge", "reconcile", "--channel", "wechat", "--day", &at, "--reason", "x"];
    run(&[&of[..], &["--apply"]].concat());
    books.server.recharge_is(USER, &id, "PAID");
    let plan = eventually("the end of the comparison", || {
        let plan = run(&[&of[..], &["--plan"]].concat());
        plan.contains("no differences").then_some(plan)
    });
    assert!(plan.contains("1 lines"), "{plan}");
    let found = run(&["recharge", "findings", "--channel", "wechat"]);
    assert!(found.contains("MISSING_HERE"), "{found}");
    let listed = run(&["channel", "bills", "--day", &at]);
    assert!(listed.contains("COMPARED"), "{listed}");
    books.is_whole();
}
