//! One transaction of a crowd: drawn by chance, and driven by its caller to an end. All requests
//! may be repeated at any time.

use std::net::SocketAddr;

use serde_json::{Value, json};
use ubscore::http::auth::{Owner, Role};

use super::{ASSETS, MOVERS, STILL};
use crate::harness::{COIN, Random, Reply, Request, Site, send, token};

/// The decider and the caller's behaviour.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Course {
    Coordinator,
    /// The last participant agrees, or not.
    Last(bool),
    /// The caller commits beside a row of its own.
    Sql,
    /// The same, and takes all of it back.
    SqlBack,
    /// The caller commits over HTTP.
    Http,
    /// The caller aborts.
    Abort,
    /// The caller is not heard of again: its age ends it.
    Silence,
}

impl Course {
    const ALL: [Course; 10] = [
        Course::Coordinator,
        Course::Coordinator,
        Course::Last(true),
        Course::Last(false),
        Course::Sql,
        Course::Sql,
        Course::Http,
        Course::SqlBack,
        Course::Abort,
        Course::Silence,
    ];

    /// Whether it may end with its money moved.
    fn may_commit(self) -> bool {
        matches!(self, Course::Coordinator | Course::Last(true) | Course::Sql | Course::Http)
    }

    fn is_of_caller(self) -> bool {
        !matches!(self, Course::Coordinator | Course::Last(_))
    }
}

#[derive(Clone, Debug)]
pub(super) struct Leg {
    pub(super) store: &'static str,
    /// The store that is paid.
    pub(super) to_store: &'static str,
    pub(super) from: u64,
    pub(super) to: u64,
    pub(super) asset: &'static str,
    pub(super) units: u128,
}

impl Leg {
    fn drawn(random: &Random, users: &[u64]) -> Leg {
        let from = random.below(users.len());
        let to = (from + 1 + random.below(users.len() - 1)) % users.len();
        let whole = if random.once_in(10) { 1 + random.below(9) } else { 0 };
        let units = whole as u128 * COIN + 1 + random.below(20_000_000) as u128;
        let store = ["FUNDING", "SPOT"][random.below(2)];
        let to_store = if random.once_in(3) { ["FUNDING", "SPOT"][random.below(2)] } else { store };
        let asset = ASSETS[random.below(2)];
        Leg { store, to_store, from: users[from], to: users[to], asset, units }
    }

    fn body(&self) -> Value {
        let amount = format!("{}.{:08}", self.units / COIN, self.units % COIN);
        let place = |store: &str, user: u64| json!({"account": store, "user_id": user});
        let (from, to) = (place(self.store, self.from), place(self.to_store, self.to));
        json!({"from": from, "to": to, "asset": self.asset, "amount": amount})
    }
}

/// See the module.
#[derive(Clone, Debug)]
pub(super) struct Order {
    pub(super) tx_id: String,
    pub(super) course: Course,
    /// The legs of each round.
    pub(super) rounds: Vec<Vec<Leg>>,
    /// The rounds with a veto participant, and whether it agrees.
    pub(super) vetoes: Vec<Option<bool>>,
}

/// The end of a transaction, as its caller was told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Told {
    pub(super) committed: bool,
    pub(super) transaction_id: String,
    /// Of a refusal.
    pub(super) code: Option<String>,
}

impl Order {
    pub(super) fn drawn(tx_id: String, random: &Random) -> Order {
        let course = Course::ALL[random.below(Course::ALL.len())];
        let rounds = if course.is_of_caller() { 1 + random.below(3) } else { 1 };
        // The balance of one user is never moved.
        let mut users = MOVERS.to_vec();
        users.extend((!course.may_commit()).then_some(STILL));
        let legs = |_| (0..=random.below(3)).map(|_| Leg::drawn(random, &users)).collect();
        let veto = |_| random.once_in(4).then(|| !random.once_in(4));
        let (rounds, vetoes) = ((0..rounds).map(legs).collect(), (0..rounds).map(veto).collect());
        Order { tx_id, course, rounds, vetoes }
    }

    fn body(&self, round: usize) -> Value {
        let legs: Vec<Value> = self.rounds[round].iter().map(Leg::body).collect();
        let mut body = json!({ "legs": legs });
        if let Some(agrees) = self.vetoes[round] {
            body["participants"] = json!([{"name": "coupons", "payload": {"agrees": agrees}}]);
        }
        if let Course::Last(agrees) = self.course {
            body["last"] = json!({"name": "bank", "payload": {"agrees": agrees}});
        }
        if self.course.is_of_caller() {
            body["round"] = json!(round + 1);
            if round == 0 {
                body["decide"] = json!("caller");
                let ttl_ms = if self.course == Course::Silence { 1_000 } else { 60_000 };
                body["ttl_ms"] = json!(ttl_ms);
            }
        } else {
            body["tx_id"] = json!(self.tx_id);
        }
        body
    }
}

/// The caller of transactions: its way to the server, and its own table.
pub(super) struct Caller<'a> {
    pub(super) http: SocketAddr,
    pub(super) site: &'a Site,
    pub(super) random: &'a Random,
}

impl Caller<'_> {
    /// Drives a transaction, from its first request on. `None`: its end is not known yet.
    pub(super) fn drive(&self, order: &Order) -> Option<Told> {
        if !order.course.is_of_caller() {
            return told(&self.settled("POST", "", Some(&order.body(0)))?);
        }
        let (tried, transaction_id) = match self.prepare(order) {
            Ok(prepared) => prepared,
            Err(ended) => return ended,
        };
        let commits = json!({"rounds": order.rounds.len()});
        match order.course {
            Course::Sql if tried => self.pay(order, transaction_id),
            Course::Http if tried => {
                told(&self.settled("POST", &format!("/{}/commit", order.tx_id), Some(&commits))?)
            }
            Course::Silence => told(&self.settled("GET", &format!("/{}", order.tx_id), None)?),
            course => {
                if course == Course::SqlBack && tried {
                    self.take_back(order);
                }
                let path = format!("/{}/abort", order.tx_id);
                told(&self.settled("POST", &path, Some(&json!({"reason": "given up"})))?)
            }
        }
    }

    /// Sends all rounds: whether one of them is tried, and the transaction's id. `Err`: it has
    /// ended, or its state is not known.
    fn prepare(&self, order: &Order) -> Result<(bool, String), Option<Told>> {
        let (mut tried, mut id) = (false, String::new());
        for round in 0..order.rounds.len() {
            let path = format!("/{}/prepare", order.tx_id);
            let reply = self.settled("POST", &path, Some(&order.body(round))).ok_or(None)?;
            if reply.status == 422 {
                let ended = told(&reply).filter(|told| !told.committed);
                ended.map_or(Ok(()), |told| Err(Some(told)))?;
            }
            tried |= reply.status == 200;
            id = field(&reply, "transaction_id").unwrap_or(id);
        }
        Ok((tried, id))
    }

    /// Writes the caller's own row and commits the transaction, in one local transaction.
    fn pay(&self, order: &Order, transaction_id: String) -> Option<Told> {
        let (tx_id, rounds) = (&order.tx_id, order.rounds.len());
        let told = |committed| Some(Told { committed, transaction_id, code: None });
        let session = self.site.try_session()?;
        let row = format!("SELECT tx_id FROM orders WHERE tx_id = '{tx_id}'");
        if session.try_sql(&row).ok()?.is_empty() {
            let durable = ["on", "off"][self.random.below(2)];
            let begun = session.try_sql(&format!(
                "BEGIN; SET LOCAL synchronous_commit = {durable}; \
                 INSERT INTO orders VALUES ('{tx_id}'); \
                 SELECT transaction_commit('shop', '{tx_id}', {rounds})"
            ));
            match begun {
                Err(Some(code)) if code == "UB010" => return told(false),
                // A refused round may still be given back.
                Err(Some(code)) if code.starts_with("UB") && code != "UB011" => {
                    panic!("{code}: {order:?}")
                }
                Err(_) => return None,
                Ok(_) => {}
            }
            self.random.pause(20);
            session.try_sql("COMMIT").ok()?;
            // A crash of PostgreSQL may take it back; and some answers are lost.
            if durable == "off" || self.random.once_in(8) {
                return None;
            }
        }
        if self.random.once_in(2) {
            let path = format!("/{tx_id}/commit");
            self.settled("POST", &path, Some(&json!({"rounds": rounds})));
        }
        told(true)
    }

    /// The same, rolled back.
    fn take_back(&self, order: &Order) {
        let Some(session) = self.site.try_session() else { return };
        let (tx_id, rounds) = (&order.tx_id, order.rounds.len());
        let begun = session.try_sql(&format!(
            "BEGIN; INSERT INTO orders VALUES ('{tx_id}'); \
             SELECT transaction_commit('shop', '{tx_id}', {rounds})"
        ));
        if begun.is_ok() {
            self.random.pause(20);
        }
        // It may be gone, and then PostgreSQL does the same.
        session.try_sql("ROLLBACK").ok();
    }

    /// An answer that is no promise to go on: asked a few times. `None`: none of that kind came.
    fn settled(&self, method: &str, path: &str, body: Option<&Value>) -> Option<Reply> {
        const TIMES: usize = 4;
        for _ in 0..TIMES {
            let reply = ask(self.http, method, path, body)?;
            match reply.status {
                200 | 422 => return Some(reply),
                202 => {}
                503 => {
                    assert_ne!(field(&reply, "code").as_deref(), Some("SERVICE_HALTED"));
                    return None;
                }
                // A refused round may still be given back.
                409 if field(&reply, "code").as_deref() == Some("TRANSACTION_UNTRIED") => {}
                _ => panic!("{reply:?}: {path} {body:?}"),
            }
        }
        None
    }
}

/// One request of the owner; `None` without an answer.
pub(super) fn ask(
    http: SocketAddr,
    method: &str,
    path: &str,
    body: Option<&Value>,
) -> Option<Reply> {
    let token = token(1, Owner::new("shop").map(Role::Service));
    let path = format!("/api/v1/transactions{path}");
    send(http, &Request { body, ..Request::new(&token, method, &path) }).ok()
}

/// A field of an answer, or of the transaction in a refusal.
fn field(reply: &Reply, name: &str) -> Option<String> {
    let json = reply.json();
    let value = [&json[name], &json["transaction"][name]].into_iter().find_map(Value::as_str);
    value.map(str::to_owned)
}

/// The end that an answer tells; `None`: no end.
fn told(reply: &Reply) -> Option<Told> {
    let committed = match field(reply, "state")?.as_str() {
        "COMMITTED" | "DONE" => true,
        "ABORTED" | "CANCELLED" => false,
        _ => return None,
    };
    let code = if reply.status == 422 { field(reply, "code") } else { None };
    Some(Told { committed, transaction_id: field(reply, "transaction_id")?, code })
}
