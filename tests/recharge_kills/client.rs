use serde_json::{Value, json};
use ubscore::http::auth::Role;

use super::{BOTH, USER};
use crate::harness::{ADMIN, Recharging, Reply, Request, Server, recharge, send, text, token};

/// The amount of each order, smallest units of CNY.
const FEN: u64 = 10_000;
/// The states of an order, in the order in which it passes them. One of the last two is its end.
const STATES: [&str; 4] = ["INIT", "PAYING", "PAID", "CLOSED"];
/// The fields of an answer that never change.
const FIXED: [&str; 7] =
    ["recharge_id", "asset", "amount", "channel", "to", "created_at", "expires_at"];

/// The plan of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Story {
    /// Pays.
    Pays,
    /// Pays, and the money goes on to Spot.
    GoesOn,
    /// Cancels.
    Cancels,
    /// Pays twice, and gets the second payment back.
    PaysTwice,
    /// Pays, and an operator gives all of it back.
    Refunds,
}

/// A client with one order. Over a death of the server it asks again, under its key.
pub(super) struct Client {
    pub(super) key: String,
    pub(super) story: Story,
    channel: &'static str,
    /// The order, once this process has answered.
    id: Option<String>,
    /// The first answer of any process.
    first: Option<Value>,
    /// The place in [`STATES`] of the last answer.
    seen: usize,
    paid: bool,
}

/// The refunds of orders in the simulator's books.
pub(super) fn refunds(orders: &[Value]) -> Vec<Value> {
    let all = |value: &Value, name: &str| value[name].as_array().expect("a list").clone();
    let payments = orders.iter().flat_map(|order| all(order, "payments"));
    payments.flat_map(|payment| all(&payment, "returns")).collect()
}

impl Client {
    pub(super) fn new(key: String, channel: &'static str, story: Story) -> Client {
        assert!(BOTH.contains(&channel), "{channel}");
        Client { key, story, channel, id: None, first: None, seen: 0, paid: false }
    }

    /// The server has died.
    pub(super) fn asks_again(&mut self) {
        self.id = None;
    }

    fn body(&self) -> Value {
        let mut body = recharge("100", self.channel, &self.key);
        if self.story == Story::GoesOn {
            body["to"] = json!("SPOT");
        }
        body
    }

    /// One thing that a client does, or waits for. Returns whether its order has ended.
    pub(super) fn step(&mut self, desk: &Recharging, server: &Server) -> bool {
        let Some(id) = self.id.clone() else {
            self.post(server);
            return false;
        };
        let path = format!("/api/v1/recharge/{id}");
        let Some(order) = answered(server, "GET", &path, None).map(|reply| reply.json()) else {
            return false;
        };
        self.sees(&order);
        match text(&order["state"]) {
            "PAYING" if self.story == Story::Cancels => {
                let cancelled = answered(server, "POST", &format!("{path}/cancel"), None);
                if let Some(reply) = cancelled {
                    let order = reply.json();
                    let is_closed = order["state"] == json!("CLOSED");
                    assert_eq!(reply.status == 200, is_closed, "{reply:?}");
                    self.sees(&order);
                }
                false
            }
            "PAYING" => {
                self.pay(desk, &id);
                false
            }
            "PAID" => {
                if self.story == Story::Refunds && order["returns"] == json!([]) {
                    self.refund(server, &id);
                }
                self.has_all(&order)
            }
            "CLOSED" => true,
            _ => false,
        }
    }

    fn post(&mut self, server: &Server) {
        let body = self.body();
        let Some(reply) = answered(server, "POST", "/api/v1/recharge", Some(&body)) else {
            return;
        };
        let order = reply.json();
        if self.first.is_some() {
            assert_eq!(reply.header("idempotent-replayed"), Some("true"), "{reply:?}");
        }
        self.sees(&order);
        self.id = Some(text(&order["recharge_id"]).to_owned());
    }

    /// An operator asks for a refund, and again over a death.
    fn refund(&self, server: &Server, id: &str) {
        let operator = token(ADMIN, Some(Role::Admin));
        let body = json!({"reason": "a test", "idem_key": self.key});
        let path = format!("/admin/v1/recharges/{id}/refund");
        let request = Request { body: Some(&body), ..Request::new(&operator, "POST", &path) };
        if let Ok(reply) = send(server.ops, &request) {
            assert!([200, 503].contains(&reply.status), "{reply:?}");
        }
    }

    /// No answer takes an earlier one back.
    fn sees(&mut self, order: &Value) {
        let first = self.first.get_or_insert_with(|| order.clone());
        for field in FIXED {
            assert_eq!(order[field], first[field], "{field}: {order}");
        }
        let state = STATES.iter().position(|state| order["state"] == json!(state));
        let state = state.unwrap_or_else(|| panic!("{order}"));
        assert!(state >= self.seen, "{} was seen: {order}", STATES[self.seen]);
        self.seen = state;
    }

    fn pay(&mut self, desk: &Recharging, id: &str) {
        if !self.paid {
            let how = match self.story {
                Story::PaysTwice => json!({"times": 2}),
                _ => json!({}),
            };
            desk.sim.done("POST", &format!("/pay/{id}"), &how);
            self.paid = true;
        }
    }

    /// Pays the order while the server is away, if the channel has it.
    pub(super) fn pay_if_there(&mut self, desk: &Recharging) {
        if let Some(id) = self.committed(desk).filter(|_| !self.there(desk).is_empty()) {
            self.pay(desk, &id);
        }
    }

    /// Whether a PAID order has also got what follows.
    fn has_all(&self, order: &Value) -> bool {
        let payments = order["payments"].as_array().expect("a list");
        let mut ends: Vec<&str> = payments.iter().map(|one| text(&one["disposition"])).collect();
        ends.sort_unstable();
        match self.story {
            Story::GoesOn => order["transfer"]["state"] == json!("ARRIVED"),
            Story::PaysTwice => ends == ["CREDITED", "RETURNED"],
            Story::Refunds => order["returns"][0]["state"] == json!("DONE"),
            Story::Pays | Story::Cancels => ends == ["CREDITED"],
        }
    }

    /// The id of the committed order.
    fn committed(&self, desk: &Recharging) -> Option<String> {
        let find = format!(
            "SELECT 'wrc_' || ulid_text(recharge_id) FROM recharges_tb WHERE idem_key = '{}'",
            self.key
        );
        desk.site.sql(&find).first().map(|row| row[0].clone())
    }

    /// Whether nothing happens to its order any more before it asks again.
    pub(super) fn rests(&self, desk: &Recharging) -> bool {
        let row = desk.site.sql(&format!(
            "SELECT state, closing IS NOT NULL, follow_state, \
                    (SELECT count(*) FROM channel_payments p \
                      WHERE p.recharge_id = r.recharge_id AND disposition = -30), \
                    (SELECT count(*) FROM recharge_returns b JOIN channel_payments USING (payment_id) \
                      WHERE recharge_id = r.recharge_id AND b.state <> 40) \
               FROM recharges_tb r WHERE idem_key = '{}'",
            self.key
        ));
        // Without an answer and without a row: its client knows nothing, and asks again.
        let Some(row) = row.first() else {
            assert_eq!(self.first, None, "an order was answered, and is lost");
            return true;
        };
        match (row[0].as_str(), self.story) {
            ("0", _) => false,
            ("10", _) => row[1] == "f" && !self.paid,
            ("40", Story::GoesOn) => row[2] == "40",
            ("40", Story::PaysTwice) => row[3] == "1",
            // Without a return its operator asks again.
            ("40", Story::Refunds) => row[4] == "0",
            _ => true,
        }
    }

    /// The simulator's orders under its number.
    pub(super) fn there(&self, desk: &Recharging) -> Vec<Value> {
        let Some(id) = self.committed(desk) else { return Vec::new() };
        let orders = desk.sim.done("GET", &format!("/sim/orders/{id}"), &json!({}));
        orders.as_array().expect("a list").clone()
    }

    /// Its order has ended as it was meant, once in every table and at the channel.
    pub(super) fn assert_once(&self, desk: &Recharging, server: &Server) {
        let id = self.id.as_ref().expect("answered");
        let ulid = id.strip_prefix("wrc_").expect("an id of an order");
        let (key, price) = (&self.key, FEN.to_string());
        let rows = |statement: String| -> Vec<String> {
            desk.site.sql(&statement).into_iter().map(|row| row.join(" ")).collect()
        };
        let of = |table: &str, columns: &str, and: &str| {
            rows(format!(
                "SELECT {columns}, count(*) FROM {table} \
                  WHERE recharge_id = ulid_uuid('{ulid}') {and} GROUP BY 1 ORDER BY 1"
            ))
        };
        // Payments by disposition, events behind PAYING, and returns by state.
        let (state, payments, events, returns): (_, &[&str], &[&str], &[&str]) = match self.story {
            Story::Pays => ("40", &["40 1"], &["2 1"], &[]),
            Story::GoesOn => ("40", &["40 1"], &["2 1", "7 1"], &[]),
            Story::Cancels => ("-10", &[], &["3 1"], &[]),
            Story::PaysTwice => ("40", &["-30 1", "40 1"], &["2 1", "6 1"], &["40 1"]),
            Story::Refunds => ("40", &["40 1"], &["2 1", "6 1"], &["40 1"]),
        };
        let orders =
            rows(format!("SELECT state FROM recharges_tb WHERE idem_key = '{}'", self.key));
        assert_eq!(orders, [state], "{key}");
        assert_eq!(of("channel_payments", "disposition", ""), payments, "{key}");
        assert_eq!(of("recharge_events", "change", "AND change <> 1"), events, "{key}");
        let paying = of("recharge_events", "change", "AND change = 1");
        assert!(paying.is_empty() || paying == ["1 1"], "{key}: {paying:?}");
        let backs = "recharge_returns b JOIN channel_payments USING (payment_id)";
        assert_eq!(of(backs, "b.state", ""), returns, "{key}");

        let booked = rows(format!(
            "SELECT idem_key, op, amount, code FROM external_operations \
              WHERE idem_key LIKE '%{ulid}%'"
        ));
        let credited = of("recharge_movements", "credit", "AND credit LIKE 'user/%'");
        let moved =
            rows(format!("SELECT state, amount FROM transfers_tb WHERE cid LIKE '%{ulid}%'"));
        if self.story == Story::Cancels {
            assert_eq!((booked.len(), credited.len()), (0, 0), "{key}");
        } else {
            assert_eq!(booked, [format!("recharge/{ulid}/credit 4 {price} ")], "{key}");
            assert_eq!(credited, [format!("user/{USER} 1")], "{key}");
        }
        if self.story == Story::Refunds {
            let left = rows(format!(
                "SELECT e.op, e.amount, e.code FROM external_operations e JOIN recharge_returns b \
                   ON e.idem_key = 'return/' || ulid_text(b.return_id) \
                 JOIN channel_payments USING (payment_id) \
                  WHERE recharge_id = ulid_uuid('{ulid}')"
            ));
            assert_eq!(left, [format!("5 {price} ")], "{key}");
        }
        match self.story {
            Story::GoesOn => assert_eq!(moved, [format!("40 {price}")], "{key}"),
            _ => assert_eq!(moved, Vec::<String>::new(), "{key}"),
        }
        self.assert_once_there(desk);

        let again = server.recharge(USER, &self.body());
        assert_eq!((again.status, again.header("idempotent-replayed")), (200, Some("true")));
        assert_eq!(again.json()["recharge_id"], json!(id));
    }

    fn assert_once_there(&self, desk: &Recharging) {
        let (key, there) = (&self.key, self.there(desk));
        let is_closed = self.story == Story::Cancels;
        assert!(there.iter().all(|order| order["is_closed"] == json!(is_closed)), "{there:?}");
        let backs = refunds(&there);
        let mut numbers: Vec<&str> = backs.iter().map(|back| text(&back["return_no"])).collect();
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len(), backs.len(), "{key}: a number twice: {backs:?}");
        let is_twice = self.story == Story::PaysTwice;
        let is_back = is_twice || self.story == Story::Refunds;
        assert_eq!(backs.len(), usize::from(is_back), "{key}: {backs:?}");
        // A second payment by card is one of a second intent, which its payer has made.
        let orders = if is_twice && self.channel == "card" { 2 } else { 1 };
        assert_eq!(there.len(), orders, "{key}: {there:?}");
    }
}

/// An answer that is one: `None`, if the server dies or cannot say yet.
fn answered(server: &Server, method: &str, path: &str, body: Option<&Value>) -> Option<Reply> {
    let reply = server.try_ask(USER, method, path, body).ok()?;
    if reply.status == 503 {
        return None;
    }
    assert!([200, 201, 202].contains(&reply.status), "{method} {path}: {reply:?}");
    Some(reply)
}
