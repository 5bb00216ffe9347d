//! A site with a service's transactions: requests, balances, and participants with an answer for
//! each call.

use std::collections::BTreeMap;
use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

#[cfg(feature = "crash")]
use rustix::process::Signal;
use serde_json::{Value, json};
use ubscore::http::auth::{Owner, Role};

use super::{POLL, field};
use crate::harness::{
    Balance, Reply, Request, Server, Site, USERS, Way, eventually, read_request, send, text, token,
    units,
};

/// Units of the last two decimals that these tests use: 0.01 coin.
const CENT: u128 = 1_000_000;
const USED: [u64; 3] = [USERS[0], USERS[1], USERS[2]];
pub(super) const SECRET: &str = "whsec_YW4gZW5kcG9pbnQncyBzZWNyZXQsIDMyIGJ5dGVzLi4=";

/// A leg between two users of one store.
pub(super) fn leg(store: &str, from: u64, to: u64, amount: &str) -> Value {
    json!({"from": {"account": store, "user_id": from}, "to": {"account": store, "user_id": to},
           "asset": "USDT", "amount": amount})
}

/// A leg from one place to another, see [`place`].
pub(super) fn crossing(from: &Value, to: &Value, amount: &str) -> Value {
    json!({"from": from, "to": to, "asset": "USDT", "amount": amount})
}

pub(super) fn place(store: &str, user: u64) -> Value {
    json!({"account": store, "user_id": user})
}

pub(super) fn legs(legs: &[Value]) -> Value {
    json!(legs)
}

/// Cents as a decimal text.
pub(super) fn amount(cents: u128) -> String {
    format!("{}.{:02}", cents / 100, cents % 100)
}

/// See the module.
pub(super) struct Desk {
    site: Site,
    server: Option<Server>,
    start: u128,
}

impl Desk {
    pub(super) fn new() -> Desk {
        Desk::with(&[])
    }

    /// With participants: the name in the environment, the kind, and the service.
    pub(super) fn with(services: &[(&str, &str, &Service)]) -> Desk {
        Desk::on(Site::new(), services)
    }

    /// The same on a site with settings of its own.
    pub(super) fn on(site: Site, services: &[(&str, &str, &Service)]) -> Desk {
        Desk::paced(site, services, 200)
    }

    /// The same with another longest back-off, ms.
    pub(super) fn paced(site: Site, services: &[(&str, &str, &Service)], cap_ms: u64) -> Desk {
        let mut site = site
            .with("UBSCORE__TRANSACTIONS__TICK_MS", 50)
            .with("UBSCORE__TRANSACTIONS__PARTICIPANT_TIMEOUT_MS", 1_000)
            .with("UBSCORE__COORDINATOR__BACKOFF_BASE_MS", cap_ms.min(100))
            .with("UBSCORE__COORDINATOR__BACKOFF_CAP_MS", cap_ms);
        if !services.is_empty() {
            let secret = site.fresh_path("secret");
            std::fs::write(&secret, SECRET).expect("written");
            for (name, kind, service) in services {
                let key = |key: &str| format!("UBSCORE__PARTICIPANTS__{name}__{key}");
                site = site.with(&key("URL"), service.url());
                site = site.with(&key("KIND"), kind);
                site = site.with(&key("SECRET_FILE"), secret.display());
            }
        }
        let mut desk = Desk { site, server: None, start: 0 };
        desk.start();
        desk.server().deposit(USED[2], "USDT", "500");
        for user in USED {
            desk.server().transfer_ended(user, Way::ToSpot, "100");
        }
        desk.site.wait_for_rest();
        desk.start = desk.sum();
        desk
    }

    pub(super) fn site(&self) -> &Site {
        &self.site
    }

    pub(super) fn server(&self) -> &Server {
        self.server.as_ref().expect("it runs")
    }

    pub(super) fn start(&mut self) {
        self.server = Some(self.site.start());
    }

    /// Sets `coordinator.fuse` for the next starts.
    #[cfg(feature = "crash")]
    pub(super) fn fuses(&mut self, fuse: bool) {
        self.site = self.site.clone().with("UBSCORE__COORDINATOR__FUSE", fuse);
    }

    #[cfg(feature = "crash")]
    pub(super) fn start_armed(&mut self, point: &str) -> bool {
        let armed = self.site.clone().with("UBSCORE_CRASH", point);
        self.server = Server::try_start(armed.command()).ok();
        self.server.is_some()
    }

    /// Whether the server has ended by itself.
    #[cfg(feature = "crash")]
    pub(super) fn has_ended(&mut self) -> bool {
        self.server.as_mut().is_none_or(Server::has_ended)
    }

    /// Ends the server, if it runs.
    #[cfg(feature = "crash")]
    pub(super) fn ends_armed(&mut self) {
        if let Some(mut server) = self.server.take() {
            server.signal_if_alive(Signal::KILL);
            server.wait();
        }
    }

    /// Ends the server, if it runs, and starts an unarmed one.
    #[cfg(feature = "crash")]
    pub(super) fn start_again(&mut self) {
        self.ends_armed();
        self.start();
    }

    pub(super) fn kill(&mut self) {
        self.server.take().expect("it runs").kill();
    }

    /// Goes on with another site, which no server runs on.
    pub(super) fn moves_to(&mut self, site: Site) {
        self.moves_to_halted(site);
        assert_eq!(self.server().ready(), 200, "{}", self.server().said());
    }

    /// The same with a site that is halted.
    pub(super) fn moves_to_halted(&mut self, site: Site) {
        assert!(self.server.is_none(), "its server has ended");
        self.site = site;
        self.start();
    }

    /// Goes on with other settings. The server may have no room for new work.
    pub(super) fn starts_on(&mut self, site: Site) {
        assert!(self.server.is_none(), "its server has ended");
        self.site = site;
        self.start();
    }

    /// Waits until the server has ended by itself.
    pub(super) fn wait_for_end(&mut self) {
        let mut server = self.server.take().expect("it ran");
        server.wait();
    }

    /// Allows the tests' role to commit the transactions of `shop`.
    pub(super) fn grant(&self) {
        self.site
            .sql("INSERT INTO transaction_grants (role_name, owner) VALUES (session_user, 'shop')");
    }

    pub(super) fn try_ask(
        &self,
        owner: &str,
        method: &str,
        path: &str,
        body: Option<&Value>,
    ) -> Option<Reply> {
        let token = token(1, Owner::new(owner).map(Role::Service));
        let path = format!("/api/v1/transactions{path}");
        let request = Request { body, ..Request::new(&token, method, &path) };
        send(self.server().http, &request).ok()
    }

    pub(super) fn ask(&self, owner: &str, method: &str, path: &str, body: Option<&Value>) -> Reply {
        self.try_ask(owner, method, path, body).expect("an answer")
    }

    pub(super) fn post(&self, path: &str, body: &Value) -> Reply {
        self.ask("shop", "POST", path, Some(body))
    }

    pub(super) fn try_post(&self, path: &str, body: &Value) -> Option<Reply> {
        self.try_ask("shop", "POST", path, Some(body))
    }

    /// The transaction as its owner reads it; `None`: there is none.
    pub(super) fn read(&self, tx_id: &str) -> Option<Value> {
        let reply = self.ask("shop", "GET", &format!("/{tx_id}"), None);
        (reply.status == 200).then(|| reply.json())
    }

    /// Waits for a state.
    pub(super) fn is(&self, tx_id: &str, state: &str) -> Value {
        eventually(&format!("{tx_id} to be {state}"), || {
            self.read(tx_id).filter(|row| field(row, "state") == state)
        })
    }

    /// Waits for a final state.
    pub(super) fn ends(&self, tx_id: &str, state: &str) -> Value {
        let row = self.ended(tx_id);
        assert_eq!(field(&row, "state"), state, "{row}");
        row
    }

    pub(super) fn ended(&self, tx_id: &str) -> Value {
        let is_final = |row: &Value| ["DONE", "CANCELLED"].contains(&field(row, "state"));
        let mut last = None;
        eventually(&format!("{tx_id} to end; last {last:?}"), || {
            last = self.read(tx_id);
            thread::sleep(POLL);
            last.clone().filter(is_final)
        })
    }

    pub(super) fn balances(&self) -> BTreeMap<u64, Balance> {
        USED.into_iter().map(|user| (user, self.server().usdt(user))).collect()
    }

    /// The whole balance, cents.
    pub(super) fn balance(&self, user: u64, store: &str) -> u128 {
        let Balance { funding, spot, .. } = self.server().usdt(user);
        let units = if store == "FUNDING" { funding } else { spot };
        units.unwrap_or(0) / CENT
    }

    /// The frozen amount, cents.
    pub(super) fn frozen(&self, user: u64, store: &str) -> u128 {
        let reply = self.server().get(user, "/api/v1/balances").json();
        let rows = reply["balances"].as_array().expect("a list");
        let row = rows.iter().find(|row| row["asset"] == json!("USDT")).expect("USDT");
        let frozen = &row[store.to_lowercase()]["frozen"];
        // No account holds nothing.
        frozen.as_str().map_or(0, units) / CENT
    }

    /// The users with another balance than before: changes of Funding and Spot, cents.
    pub(super) fn changes(&self, before: &BTreeMap<u64, Balance>) -> Vec<(u64, i128, i128)> {
        let cents = |units: Option<u128>| i128::try_from(units.unwrap_or(0) / CENT).expect("small");
        let now = self.balances();
        let change = |user: &u64| {
            let (was, is) = (before[user], now[user]);
            let funding = cents(is.funding) - cents(was.funding);
            (*user, funding, cents(is.spot) - cents(was.spot))
        };
        let changes = USED.iter().map(change);
        changes.filter(|(_, funding, spot)| (*funding, *spot) != (0, 0)).collect()
    }

    /// A field of the totals of USDT.
    pub(super) fn total(&self, field: &str) -> String {
        let totals = eventually("the totals", || {
            let reply = self.server().admin_get("/admin/v1/totals");
            (reply.status == 200).then(|| reply.json())
        });
        let rows = totals["assets"].as_array().expect("a list");
        let row = rows.iter().find(|row| row["asset"] == json!("USDT")).expect("USDT");
        text(&row[field]).to_owned()
    }

    /// All USDT of all users, smallest units.
    fn sum(&self) -> u128 {
        USERS.iter().map(|user| self.server().usdt(*user).sum()).sum()
    }

    /// At rest nothing is apart, nothing is made or lost, and both stores agree.
    pub(super) fn rests(&self) {
        let open = "SELECT count(*) FROM transactions_tb WHERE state NOT IN (40, -20)";
        eventually("rest", || (self.site.sql_value(open) == "0").then_some(()));
        assert_eq!(self.sum(), self.start);
        for user in USED {
            for store in ["FUNDING", "SPOT"] {
                assert_eq!(self.frozen(user, store), 0, "{user} {store}");
            }
        }
        let held = "SELECT count(*) FROM funding_holds WHERE state = 10";
        assert_eq!(self.site.sql_value(held), "0");
        self.site.assert_verified();
    }

    /// Ends a test.
    pub(super) fn close(mut self) {
        self.rests();
        self.server.take().expect("it runs").stop();
    }
}

/// The answer to an action: its name, and the how manyth of the action it is.
type Answers = Box<dyn Fn(&str, usize) -> Option<Value> + Send + Sync>;

/// A participant. `None` as an answer: it takes the call, and closes without an answer.
pub(super) struct Service {
    url: String,
    asked: Arc<Mutex<Vec<String>>>,
    answers: Arc<Mutex<Answers>>,
}

impl Service {
    pub(super) fn start(
        answers: impl Fn(&str, usize) -> Option<Value> + Send + Sync + 'static,
    ) -> Service {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let url = format!("http://{}/", listener.local_addr().expect("an address"));
        let asked: Arc<Mutex<Vec<String>>> = Arc::default();
        let answers: Arc<Mutex<Answers>> = Arc::new(Mutex::new(Box::new(answers)));
        let service = Service { url, asked: Arc::clone(&asked), answers: Arc::clone(&answers) };
        thread::spawn(move || {
            for stream in listener.incoming() {
                let (asked, answers) = (Arc::clone(&asked), Arc::clone(&answers));
                thread::spawn(move || serve(stream.expect("a call"), &asked, &answers));
            }
        });
        service
    }

    /// Answers otherwise from now on.
    pub(super) fn answers(
        &self,
        answers: impl Fn(&str, usize) -> Option<Value> + Send + Sync + 'static,
    ) {
        *self.answers.lock().expect("no panic") = Box::new(answers);
    }

    pub(super) fn url(&self) -> &str {
        &self.url
    }

    /// The actions that it was asked for, in their order.
    pub(super) fn asked(&self) -> Vec<String> {
        self.asked.lock().expect("no panic").clone()
    }
}

fn serve(mut stream: TcpStream, asked: &Mutex<Vec<String>>, answers: &Mutex<Answers>) {
    // A test may kill the caller during this call.
    let Ok((_, body)) = read_request(&stream) else { return };
    let call: Value = serde_json::from_slice(&body).expect("JSON");
    let action = text(&call["action"]).to_owned();
    let count = {
        let mut asked = asked.lock().expect("no panic");
        asked.push(action.clone());
        asked.iter().filter(|other| **other == action).count()
    };
    let answer = answers.lock().expect("no panic")(&action, count);
    let Some(answer) = answer else { return };
    let answer = answer.to_string();
    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n", answer.len());
    // The caller may be gone.
    stream.write_all(format!("{head}Connection: close\r\n\r\n{answer}").as_bytes()).ok();
}
