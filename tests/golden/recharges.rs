//! The files of a version with a recharge in each state at a kill: INIT, PAYING, PAID and CLOSED,
//! a HELD payment, a RETURNING one, a refund that is SENT, with its hold, and an open receivable.
//! The books of its channels are beside them. A later version ends each of them.

use std::fs;
use std::path::Path;
use std::thread;

use serde_json::{Value, json};

use super::{HELD, USER, keep};
use crate::harness::{
    COIN, Recharging, Request, Server, Site, eventually, force, recharge, send, text, token,
};

/// The orders by their names, and the answers about those that have ended.
pub(super) const TOLD: &str = "recharges.json";
/// The books of the simulator.
const BOOKS: &str = "books.jsonl";
/// Orders that have ended, which no later version changes.
const ENDED: [&str; 2] = ["paid", "closed"];

/// The desk of a folder: its channels know what they have sold.
pub(super) fn desk(folder: &Path, site: Site) -> Recharging {
    let books = fs::read_to_string(folder.join(BOOKS)).expect("text");
    Recharging::with_books(site, &books)
}

fn post(server: &Server, path: &str, body: &Value) -> Value {
    let reply = server.admin("POST", &format!("/admin/v1/{path}"), body);
    assert_eq!(reply.status, 200, "{path}: {reply:?}");
    reply.json()
}

fn shown(server: &Server, id: &str) -> Value {
    server.admin_get(&format!("/admin/v1/recharges/{id}")).json()
}

/// Waits until the last payment of an order has a disposition.
fn payment_is(server: &Server, user: u64, id: &str, disposition: &str) {
    eventually(disposition, || {
        let order = server.recharge_of(user, id);
        let last = order["payments"].as_array().and_then(|all| all.last()).cloned()?;
        (last["disposition"] == json!(disposition)).then_some(())
    });
}

/// A channel takes the money of a user that has 40 left of 100 CNY.
fn take(desk: &Recharging, server: &Server, id: &str) {
    desk.sim.pay(id);
    server.recharge_is(HELD, id, "PAID");
    let coins = server.balances(HELD)["CNY"].funding.expect("credited") / COIN;
    let away = json!({"user_id": HELD, "asset": "CNY", "amount": (coins - 40).to_string(),
                      "idem_key": "away", "reason": "a test"});
    post(server, "withdrawals", &away);
    desk.sim.done("POST", &format!("/sim/take/{id}"), &json!({}));
    eventually("a receivable", || {
        (shown(server, id)["receivables"][0]["open"] == json!("60")).then_some(())
    });
}

/// The files of a version, written by this one.
pub(super) fn write(folder: &Path) {
    let desk = Recharging::on(super::site().with("UBSCORE__OUTCOMES__KEEP_HOURS", 24));
    let (site, server) = (&desk.site, desk.start());
    let mut orders = serde_json::Map::new();
    let mut made = |name: &str, user: u64, channel: &str| {
        let id = server.recharge_paying(user, &recharge("100", channel, name));
        orders.insert(name.to_owned(), json!(id));
        id
    };
    let [paid, closed] = ENDED.map(|name| made(name, USER, "wechat"));
    let held = made("held", USER, "wechat");
    desk.sim.pay(&paid);
    server.recharge_is(USER, &paid, "PAID");
    server.ask(USER, "POST", &format!("/api/v1/recharge/{closed}/cancel"), None);
    server.recharge_is(USER, &closed, "CLOSED");
    desk.sim.done("POST", &format!("/pay/{held}"), &json!({"amount": 5_000}));
    payment_is(&server, USER, &held, "HELD");
    take(&desk, &server, &made("taken", HELD, "card"));
    let [sent, returning] = [("sent", "card"), ("returning", "wechat")].map(|(name, channel)| {
        let id = made(name, USER, channel);
        desk.sim.pay(&id);
        server.recharge_is(USER, &id, "PAID");
        id
    });
    made("paying", USER, "wechat");
    force(site, &server);
    // Nothing reaches the channel from here on; what it says comes by callbacks.
    desk.sim.faults(&json!({"answer": "away", "lost": true}));
    let refund = json!({"amount": "40", "idem_key": "sent", "reason": "a test"});
    post(&server, &format!("recharges/{sent}/refund"), &refund);
    desk.sim.done("POST", &format!("/pay/{returning}"), &json!({"times": 1}));
    payment_is(&server, USER, &returning, "RETURNING");
    let (http, bearer) = (server.http, token(USER, None));
    thread::spawn(move || {
        let body = recharge("100", "card", "init");
        let request =
            Request { body: Some(&body), ..Request::new(&bearer, "POST", "/api/v1/recharge") };
        // The server dies before it knows more.
        drop(send(http, &request));
    });
    let states = "SELECT (SELECT count(*) FROM recharges_tb WHERE state = 0), \
                         (SELECT count(*) FROM recharges_tb WHERE state = 10), \
                         (SELECT count(*) FROM recharge_returns WHERE state = 20), \
                         (SELECT count(*) FROM funding_holds WHERE state = 10)";
    eventually("every state", || (site.sql(states) == [["1", "2", "2", "1"]]).then_some(()));
    eventually("no callback on its way", || {
        (desk.sim.done("GET", "/sim/parcels", &json!({}))["open"] == json!(0)).then_some(())
    });
    let told = ENDED.map(|name| server.recharge_of(USER, text(&orders[name])));
    server.kill();
    let init = "SELECT 'wrc_' || ulid_text(recharge_id) FROM recharges_tb WHERE state = 0";
    orders.insert("init".to_owned(), json!(site.sql_value(init)));
    keep(folder, site, &json!({"answers": [], "balances": {}}));
    let kept = json!({"orders": orders, "told": told});
    let kept = serde_json::to_string_pretty(&kept).expect("JSON");
    fs::write(folder.join(TOLD), kept + "\n").expect("written");
    fs::write(folder.join(BOOKS), desk.sim.file(BOOKS)).expect("written");
}

fn kept(folder: &Path) -> Value {
    let text = fs::read_to_string(folder.join(TOLD)).expect("text");
    serde_json::from_str(&text).expect("JSON")
}

/// The payer of the PAYING order pays, before this version starts.
pub(super) fn pay(folder: &Path, desk: &Recharging) {
    let id = kept(folder)["orders"]["paying"].clone();
    desk.sim.done("POST", &format!("/pay/{}", text(&id)), &json!({"late": true}));
}

/// Asserts that each recharge ends as it must, and that new ones are paid.
pub(super) fn assert_ends(folder: &Path, desk: &Recharging, server: &Server) {
    let kept = kept(folder);
    let id = |name: &str| text(&kept["orders"][name]).to_owned();
    for (name, then) in ENDED.into_iter().zip(kept["told"].as_array().expect("a list")) {
        let now = server.recharge_of(USER, &id(name));
        for (field, value) in then.as_object().expect("an order") {
            assert_eq!(now[field], *value, "{name}.{field}");
        }
    }
    server.recharge_is(USER, &id("paying"), "PAID");
    eventually("INIT to go on", || {
        // Behind its time it is closed.
        let state = server.recharge_of(USER, &id("init"))["state"].clone();
        [json!("PAYING"), json!("CLOSED")].contains(&state).then_some(())
    });
    let because = json!({"reason": "a test", "idem_key": "credit"});
    let held = shown(server, &id("held"))["payments"][0]["payment_id"].clone();
    post(server, &format!("payments/{}/credit", text(&held)), &because);
    server.recharge_is(USER, &id("held"), "PAID");
    payment_is(server, USER, &id("returning"), "RETURNED");
    eventually("the refund", || {
        let order = server.recharge_of(USER, &id("sent"));
        (order["returns"][0]["state"] == json!("DONE")).then_some(())
    });
    let receivable = shown(server, &id("taken"))["receivables"][0].clone();
    assert_eq!(receivable["open"], json!("60"), "{receivable}");
    let path = format!("receivables/{}/write-off", text(&receivable["return_id"]));
    let ended = post(server, &path, &json!({"reason": "a test", "idem_key": "write-off"}));
    assert_eq!(ended["open"], json!("0"), "{ended}");
    assert_eq!(desk.site.sql_value("SELECT count(*) FROM funding_holds WHERE state = 10"), "0");

    for channel in ["wechat", "card"] {
        let body = recharge("100", channel, &format!("later-{channel}"));
        let new = server.recharge_paying(USER, &body);
        desk.sim.pay(&new);
        server.recharge_is(USER, &new, "PAID");
    }
}
