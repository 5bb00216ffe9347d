//! `ubscore recharge recover`: behind a restore of an older database with the newer log, the
//! channels bring every paid order back, and nothing twice.

/// Bonuses of promotions.
mod bonuses;

use std::collections::BTreeMap;
use std::os::unix::process::ExitStatusExt;
use std::process::Command;

use serde_json::{Value, json};
use ubscore::crash::RECOVER_POINTS;

use crate::harness::{
    Balance, Recharging, Reply, Server, Site, assert_refused, eventually, recharge, repair, said,
    text,
};

const USER: u64 = 1001;
const OTHER: u64 = 1002;

/// A site as its kill has left it, with its database as it was before.
struct Lost {
    desk: Recharging,
    /// Orders that were PAID, by user and id.
    paid: Vec<(u64, String)>,
    /// Of them: to Spot; with a refund of 40; unpaid in the older database.
    spot: String,
    refunded: [String; 2],
    open: String,
    refunds: Vec<String>,
    balances: [BTreeMap<String, Balance>; 2],
}

fn paid(desk: &Recharging, server: &Server, user: u64, body: &Value) -> String {
    let id = server.recharge_paying(user, body);
    desk.sim.pay(&id);
    server.recharge_is(user, &id, "PAID");
    id
}

fn refund(server: &Server, id: &str, amount: &str, key: &str) -> Reply {
    let body = json!({"reason": "a test", "idem_key": key, "amount": amount});
    server.admin("POST", &format!("/admin/v1/recharges/{id}/refund"), &body)
}

fn shown(server: &Server, id: &str) -> Value {
    let reply = server.admin_get(&format!("/admin/v1/recharges/{id}"));
    assert_eq!(reply.status, 200, "{reply:?}");
    reply.json()
}

/// Waits until the refund of an order is DONE.
fn refund_done(server: &Server, id: &str) {
    eventually("a refund that is done", || {
        let row = &shown(server, id)["returns"][0];
        (row["state"] == json!("DONE")).then_some(())
    });
}

fn arrived(server: &Server, user: u64, id: &str) {
    eventually("money on Spot", || {
        let order = server.recharge_of(user, id);
        (order["transfer"]["state"] == json!("ARRIVED")).then_some(())
    });
}

/// Orders of both channels before and behind a copy of the database, then SIGKILL, and the copy in
/// the place of the database.
fn lost() -> Lost {
    let desk = Recharging::new();
    let server = desk.start();
    let mut orders = Vec::new();
    for (user, channel) in [(USER, "wechat"), (OTHER, "card")] {
        orders.push((user, paid(&desk, &server, user, &recharge("100", channel, "before"))));
    }
    let open = server.recharge_paying(USER, &recharge("70", "wechat", "open"));
    desk.site.wait_for_rest();
    server.stop();
    let restored = desk.site.with_copied_database();
    let server = desk.start();
    desk.sim.pay(&open);
    server.recharge_is(USER, &open, "PAID");
    orders.push((USER, open.clone()));
    for (user, channel) in [(OTHER, "wechat"), (USER, "card")] {
        orders.push((user, paid(&desk, &server, user, &recharge("30", channel, "after"))));
    }
    let mut to_spot = recharge("50", "card", "spot");
    to_spot["to"] = json!("SPOT");
    let spot = paid(&desk, &server, USER, &to_spot);
    arrived(&server, USER, &spot);
    orders.push((USER, spot.clone()));
    let mut refunds = Vec::new();
    let refunded = [(USER, "wechat"), (OTHER, "card")].map(|(user, channel)| {
        let id = paid(&desk, &server, user, &recharge("90", channel, "refunded"));
        let reply = refund(&server, &id, "40", channel);
        assert_eq!(reply.status, 200, "{reply:?}");
        refunds.push(text(&reply.json()["return_id"]).to_owned());
        refund_done(&server, &id);
        orders.push((user, id.clone()));
        id
    });
    desk.site.wait_for_rest();
    let balances = [USER, OTHER].map(|user| server.balances(user));
    server.kill();
    let desk = Recharging { site: restored, ..desk };
    Lost { desk, paid: orders, spot, refunded, open, refunds, balances }
}

/// Runs `ubscore recharge recover` on a site, for the bills of yesterday and today.
fn recover(site: &Site, arguments: &[&str]) -> (i32, String, String) {
    said(&recovering(site, arguments).output().expect("the binary"))
}

fn recovering(site: &Site, arguments: &[&str]) -> Command {
    let day = site.sql_value("SELECT (now() AT TIME ZONE 'UTC' - INTERVAL '1 day')::date::text");
    let words = ["recharge", "recover", "--since", &day];
    site.tool(words.iter().chain(arguments))
}

const APPLY: [&str; 3] = ["--apply", "--reason", "a backup was restored"];

fn repaired(site: &Site) {
    let (code, done, why) = repair(site, &APPLY);
    assert_eq!(code, Some(0), "{done}{why}");
}

impl Lost {
    /// Asserts that everything stands as before the kill, in a service that runs.
    fn is_back(&self, server: &Server) {
        for (user, id) in &self.paid {
            server.recharge_is(*user, id, "PAID");
        }
        arrived(server, USER, &self.spot);
        self.desk.site.wait_for_rest();
        let balances = [USER, OTHER].map(|user| server.balances(user));
        assert_eq!(balances, self.balances);
        for (id, refund) in self.refunded.iter().zip(&self.refunds) {
            let shown = shown(server, id);
            let row = &shown["returns"][0];
            assert_eq!(row["return_id"], json!(refund), "{shown}");
            assert_eq!((&row["kind"], &row["state"]), (&json!("REFUND"), &json!("DONE")));
            assert_eq!(shown["returns"].as_array().map(Vec::len), Some(1), "{shown}");
        }
        let site = &self.desk.site;
        let value = |statement: &str| site.sql_value(statement);
        let count = self.paid.len().to_string();
        assert_eq!(value("SELECT count(*) FROM channel_payments WHERE disposition = 40"), count);
        assert_eq!(value("SELECT count(*) FROM recharges_tb"), count);
        let sent = "SELECT count(*) FROM transfers_tb WHERE cid LIKE 'recharge/%'";
        assert_eq!(value(sent), "1");
        let found = "SELECT count(*) FROM audit_recharges('epoch', 'infinity')";
        assert_eq!(value(found), "0");
        site.assert_in_order(server);
        let output = site.verify().output().expect("the binary");
        let (code, out, err) = said(&output);
        assert!(code == 0 && !out.contains("RECOVER_NEEDED"), "{code} {out}{err}");
    }
}

/// Goal: behind a restore of an older database every paid order of both channels comes back, with
/// its refund and its transfer to Spot, and nothing twice; until then no refund goes out, and each
/// check names the command. Method: orders before and behind a copy of the database; SIGKILL; the
/// repair, a start without the recovery, the plan, the recovery, and a second one.
#[test]
fn rch_037_behind_a_restore_every_paid_order_comes_back_and_nothing_twice() {
    let lost = lost();
    let site = &lost.desk.site;
    repaired(site);
    let (code, out, err) = said(&site.verify().output().expect("the binary"));
    assert!(code == 0 && out.contains("RECOVER_NEEDED"), "{code} {out}{err}");

    let server = lost.desk.start();
    assert_eq!(server.ready(), 200, "{}", server.said());
    server.says("RECOVER_NEEDED");
    let (_, before) = &lost.paid[0];
    let refused = refund(&server, before, "1", "too-early");
    assert_refused(&refused, 409, "NOT_RETURNABLE");
    assert!(refused.body.contains("ubscore recharge recover"), "{refused:?}");
    let (_, out, _) = said(&site.tool(["doctor"]).output().expect("the binary"));
    assert!(out.contains("ubscore recharge recover"), "{out}");
    // An order that the older database has is found by the till.
    server.recharge_is(USER, &lost.open, "PAID");
    let (code, planned, why) = recover(site, &["--plan"]);
    assert_eq!(code, 0, "{planned}{why}");
    assert!(planned.ends_with("planned orders=5 payments=5 returns=2 left=0\n"), "{planned}{why}");
    let (code, _, why) = recover(site, &APPLY);
    assert!(code == 2 && why.contains(&server.pid().to_string()), "{code} {why}");
    server.stop();

    let (code, done, why) = recover(site, &APPLY);
    assert_eq!(code, 0, "{done}{why}");
    assert!(done.ends_with("recovered orders=5 payments=5 returns=2 left=0\n"), "{done}{why}");
    let (code, done, why) = recover(site, &APPLY);
    assert_eq!((code, &*done), (0, "recovered orders=0 payments=0 returns=0 left=0\n"), "{why}");
    let server = lost.desk.start();
    lost.is_back(&server);
    let remade = server.recharge_of(USER, &lost.spot);
    assert!(text(&remade["idem_key"]).starts_with("recovered/"), "{remade}");
    let recorded = "SELECT count(*) FROM admin_audit WHERE action = 'recover' \
                     AND reason = 'a backup was restored'";
    assert_eq!(site.sql_value(recorded), "1");
    // A repeat of a refund that was lost sends nothing, and a new one goes out.
    let again = refund(&server, &lost.refunded[0], "40", "wechat");
    assert_eq!(text(&again.json()["return_id"]), lost.refunds[0], "{again:?}");
    assert_eq!(refund(&server, before, "1", "later").status, 200);
    refund_done(&server, before);
    site.assert_verified();
}

/// Goal: a kill amid a recovery loses nothing, and the same command ends it. Method: SIGKILL at
/// each of its points, one behind the other, on one database.
#[test]
fn rch_037_a_kill_amid_a_recovery_is_continued() {
    let lost = lost();
    let site = &lost.desk.site;
    repaired(site);
    for point in RECOVER_POINTS {
        let armed = site.clone().with("UBSCORE_CRASH", format!("{point}=1"));
        let output = recovering(&armed, &APPLY).output().expect("the binary");
        assert_eq!(output.status.signal(), Some(9), "{point}: {output:?}");
        site.wait_for_disconnected();
        assert_eq!(site.sql_value("SELECT recover_needed FROM engine_state"), "t", "{point}");
    }
    let (code, done, why) = recover(site, &APPLY);
    assert_eq!(code, 0, "{done}{why}");
    assert_eq!(site.sql_value("SELECT recover_needed FROM engine_state"), "f");
    lost.is_back(&lost.desk.start());
}
