use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::{Order, Plan, Soak, USERS, admin};
use crate::harness::{Balance, COIN, Server, Strike, eventually, text};

/// Smallest units of a balance, as the harness reads it, in one fen.
const FEN: i128 = COIN as i128 / 100;

/// A payment in the books of a channel, in minor units.
#[derive(Debug)]
struct Paid {
    recharge_id: String,
    minor_units: i64,
    /// By our number, those that have gone.
    returns: BTreeMap<String, i64>,
}

/// The results of all sites of a run.
#[derive(Default)]
pub(super) struct Sum {
    strikes: BTreeMap<Strike, usize>,
    plans: BTreeMap<(Plan, String), usize>,
    /// Payments by disposition, and returns by state.
    payments: BTreeMap<String, usize>,
    returns: BTreeMap<String, usize>,
    told_again: usize,
    keys: usize,
}

impl Sum {
    pub(super) fn add(&mut self, soak: &Soak) {
        for (strike, count) in &soak.strikes {
            *self.strikes.entry(*strike).or_default() += count;
        }
        for order in soak.orders.lock().expect("no panic").iter() {
            let told = order.told.as_ref().expect("every order has its answer");
            *self.plans.entry((order.plan, text(&told["state"]).to_owned())).or_default() += 1;
        }
        let site = &soak.desk.site;
        for (statement, counts) in [
            ("SELECT disposition, count(*) FROM channel_payments GROUP BY 1", &mut self.payments),
            ("SELECT state, count(*) FROM recharge_returns GROUP BY 1", &mut self.returns),
        ] {
            for row in site.sql(statement) {
                *counts.entry(row[0].clone()).or_default() +=
                    row[1].parse::<usize>().expect("a number");
            }
        }
        self.told_again += soak.told_again;
        self.keys += soak.keys;
    }

    pub(super) fn print(&self, rounds: usize) {
        println!("{rounds} kills; PostgreSQL meanwhile {:?}", self.strikes);
        println!("orders by plan and end {:?}", self.plans);
        println!(
            "payments by disposition {:?}; returns by state {:?}",
            self.payments, self.returns
        );
        println!("{} new keys; {} payments told again", self.keys, self.told_again);
        println!("every sum exact, no payment lost or twice, no false alarm");
    }
}

impl Soak {
    /// Every order, payment and return ends: the channels are well.
    pub(super) fn end_all(&mut self, server: &Server) {
        let mut fresh = self.orders.get_mut().expect("no panic").split_off(self.compared);
        for order in &mut fresh {
            if order.told.is_none() {
                eventually("an answer", || order.post(server).then_some(()));
            }
        }
        for order in &mut fresh {
            let mut looks = 0;
            eventually("an end", || {
                order.look(server);
                if order.is("PAYING") {
                    // Its payer comes back once. A payment may win over the cancel behind it.
                    match looks {
                        0 => self.act(order, server),
                        _ => order.cancel(server),
                    }
                    looks += 1;
                    end_held(server);
                }
                (order.is("PAID") || order.is("CLOSED")).then_some(())
            });
        }
        self.orders.get_mut().expect("no panic").append(&mut fresh);
        self.tell_again();
        eventually("the end of every payment", || {
            end_held(server);
            let open = "SELECT (SELECT count(*) FROM channel_payments WHERE disposition IN (10, 20)) \
                            + (SELECT count(*) FROM recharge_returns WHERE state IN (0, 10, 20)) \
                            + (SELECT count(*) FROM recharges_tb WHERE follow_state = 0 \
                                  AND target = 2 AND state = 40) \
                            + (SELECT count(*) FROM funding_holds WHERE state = 10)";
            (self.desk.site.sql_value(open) == "0").then_some(())
        });
        self.desk.site.wait_for_rest();
    }

    /// A payment that no callback has told, and no query asks for, stands in tomorrow's bill. Here
    /// its channel tells it again.
    fn tell_again(&mut self) {
        let sent = || {
            eventually("no callback on its way", || {
                let parcels = self.desk.sim.done("GET", "/sim/parcels", &json!({}));
                (parcels["open"] == json!(0)).then_some(())
            });
        };
        sent();
        let here = self.here();
        let lost: Vec<Paid> = self
            .there(self.compared)
            .into_iter()
            .filter(|(trade_no, _)| !here.contains_key(trade_no))
            .map(|(_, paid)| paid)
            .collect();
        for paid in &lost {
            let path = format!("/sim/replay/{}", paid.recharge_id);
            self.desk.sim.done("POST", &path, &json!({}));
        }
        sent();
        self.told_again += lost.len();
    }

    /// The payments in the books of the channels, of the orders from a place on, by number.
    fn there(&self, from: usize) -> BTreeMap<String, Paid> {
        let mut all = BTreeMap::new();
        let orders = self.orders.lock().expect("no panic");
        for id in orders[from..].iter().filter_map(Order::id) {
            let there = self.desk.sim.done("GET", &format!("/sim/orders/{id}"), &json!({}));
            for payment in list(&there).iter().flat_map(|order| list(&order["payments"])) {
                let gone =
                    |back: &&Value| ["SUCCESS", "succeeded"].contains(&text(&back["status"]));
                let back = |back: &Value| {
                    let units = back["amount"].as_i64().expect("a number");
                    (text(&back["return_no"]).to_owned(), units)
                };
                let backs = list(&payment["returns"]);
                let returns: BTreeMap<String, i64> = backs.iter().filter(gone).map(back).collect();
                assert_eq!(returns.len(), backs.len(), "a number twice: {payment}");
                let paid = Paid {
                    recharge_id: id.to_owned(),
                    minor_units: payment["amount"].as_i64().expect("a number"),
                    returns,
                };
                let before = all.insert(text(&payment["trade_no"]).to_owned(), paid);
                assert!(before.is_none(), "{payment}");
            }
        }
        all
    }

    /// The payments here by number: the order, minor units, the user that was credited, and the
    /// disposition.
    fn here(&self) -> BTreeMap<String, [String; 4]> {
        let rows = "SELECT p.trade_no, 'wrc_' || ulid_text(p.recharge_id), p.minor_units, \
                           COALESCE(r.user_id, 0), p.disposition FROM channel_payments p \
                      LEFT JOIN recharges_tb r USING (recharge_id)";
        let of = |row: Vec<String>| {
            let [no, id, units, user, disposition] = <[String; 5]>::try_from(row).expect("five");
            (no, [id, units, user, disposition])
        };
        self.desk.site.sql(rows).into_iter().map(of).collect()
    }

    /// Everything here is as the channels' own books have it, and each user has that money.
    pub(super) fn compare(&mut self, server: &Server) {
        let site = &self.desk.site;
        let (there, here) = (self.there(0), self.here());
        let numbers = |payments: Vec<&String>| payments.into_iter().cloned().collect::<Vec<_>>();
        assert_eq!(numbers(here.keys().collect()), numbers(there.keys().collect()));
        let done = "SELECT 'wrf_' || ulid_text(return_id), b.minor_units, trade_no \
                      FROM recharge_returns b JOIN channel_payments USING (payment_id) \
                     WHERE b.state = 40";
        let mut returned: BTreeMap<String, BTreeMap<String, i64>> = BTreeMap::new();
        for row in site.sql(done) {
            let units = row[1].parse().expect("a number");
            returned.entry(row[2].clone()).or_default().insert(row[0].clone(), units);
        }
        let mut wanted: BTreeMap<u64, i128> = USERS.map(|user| (user, 0)).into();
        for (trade_no, paid) in &there {
            let [id, units, user, disposition] = &here[trade_no];
            assert_eq!((id, units), (&paid.recharge_id, &paid.minor_units.to_string()));
            let backs = returned.remove(trade_no).unwrap_or_default();
            assert_eq!(backs, paid.returns, "{trade_no} of {id}");
            let whole: i64 = backs.values().sum();
            let sum = wanted.get_mut(&user.parse().expect("a number")).expect("a payer");
            match disposition.as_str() {
                "40" => *sum += i128::from(paid.minor_units - whole),
                "-30" => assert_eq!(whole, paid.minor_units, "{trade_no} of {id}"),
                "-40" => assert_eq!(whole, 0, "{trade_no} of {id}"),
                other => panic!("{trade_no} of {id}: {other}"),
            }
        }
        assert!(returned.is_empty(), "{returned:?}");
        for (user, fen) in wanted {
            // A user that has never paid has none.
            let now = server.balances(user).remove("CNY").unwrap_or(Balance::at_rest(0, 0));
            let sum = i128::try_from(now.sum()).expect("small");
            assert_eq!((now.in_flight, sum), (0, fen * FEN), "user {user}: {now:?}");
        }
        site.assert_in_order(server);
        let orders = self.orders.get_mut().expect("no panic");
        for order in orders.iter_mut() {
            // Also those of earlier rounds: no end is taken back.
            assert!(order.look(server), "nothing fails now");
        }
        self.compared = orders.len();
    }
}

fn list(value: &Value) -> Vec<Value> {
    value.as_array().unwrap_or_else(|| panic!("{value} is no list")).clone()
}

/// An operator ends each held payment: those of another amount by a credit, the rest by a return.
fn end_held(server: &Server) {
    let held = admin(server, "GET", "recharges?held=true", &Value::Null);
    let Some(held) = held.filter(|reply| reply.status == 200) else { return };
    for payment in list(&held.json()["payments"]) {
        let id = text(&payment["payment_id"]);
        let (end, body) = match text(&payment["cause"]) {
            "AMOUNT" => ("credit", json!({"reason": "soak", "idem_key": id})),
            _ => ("return", json!({"reason": "soak"})),
        };
        let reply = admin(server, "POST", &format!("payments/{id}/{end}"), &body);
        // It may have ended meanwhile.
        assert!(reply.is_none_or(|reply| [200, 409].contains(&reply.status)), "{payment}");
    }
}
