//! The files of a version with a transaction in each state at a kill: OPEN with a tried round and
//! with a trying one, DECIDING, COMMITTED and ABORTED with a service that owes its end, DONE and
//! CANCELLED. Some have holds of both stores, and two a special account, which is below zero. A
//! later version ends each of them.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use serde_json::{Value, json};
use ubscore::http::auth::{Owner, Role};

use super::{HELD, USER, keep, told_balances};
use crate::harness::{
    Reply, Request, Server, Site, USERS, Way, eventually, force, read_request, send, text, token,
};

/// The transactions with their requests and their ends.
pub(super) const TOLD: &str = "transactions.json";
/// The age of the undecided ones: longer than the rest of the writer, and over at a later start.
const TTL_MS: u64 = 20_000;
/// Each transaction with the path of its request, and with its end under a later version.
const ENDS: [(&str, &str, &str); 9] = [
    ("done", "", "DONE"),
    ("cancelled", "/cancelled/prepare", "CANCELLED"),
    ("tried", "/tried/prepare", "CANCELLED"),
    ("trying", "/trying/prepare", "CANCELLED"),
    ("deciding", "", "DONE"),
    ("committed", "/committed/prepare", "DONE"),
    ("aborted", "/aborted/prepare", "CANCELLED"),
    ("special", "/special/prepare", "DONE"),
    ("special-tried", "/special-tried/prepare", "CANCELLED"),
];
/// The user with a special account, and the user that it pays.
const SPECIAL: [u64; 2] = [USERS[2], USERS[3]];
const SECRET: &str = "whsec_YW4gZW5kcG9pbnQncyBzZWNyZXQsIDMyIGJ5dGVzLi4=";

/// The services `coupons` and `bank`. Until it is set, only a try of `coupons` that is not to wait
/// has an answer.
struct Services {
    url: String,
    willing: Arc<AtomicBool>,
}

impl Services {
    fn start(willing: bool) -> Services {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let url = format!("http://{}/", listener.local_addr().expect("an address"));
        let willing = Arc::new(AtomicBool::new(willing));
        let of_calls = Arc::clone(&willing);
        thread::spawn(move || {
            for stream in listener.incoming() {
                let willing = Arc::clone(&of_calls);
                thread::spawn(move || serve(stream.expect("a call"), &willing));
            }
        });
        Services { url, willing }
    }

    fn on(&self, site: Site) -> Site {
        let secret = site.fresh_path("secret");
        fs::write(&secret, SECRET).expect("written");
        let mut site = site.with("UBSCORE__TRANSACTIONS__TICK_MS", 50);
        for (name, kind) in [("COUPONS", "veto"), ("BANK", "last")] {
            let key = |key: &str| format!("UBSCORE__PARTICIPANTS__{name}__{key}");
            site = site.with(&key("URL"), &self.url).with(&key("KIND"), kind);
            site = site.with(&key("SECRET_FILE"), secret.display());
        }
        site
    }
}

fn serve(mut stream: TcpStream, willing: &AtomicBool) {
    // A test may kill the caller during this call.
    let Ok((_, body)) = read_request(&stream) else { return };
    let call: Value = serde_json::from_slice(&body).expect("JSON");
    let waits = call["payload"]["waits"] == json!(true);
    if !willing.load(Ordering::Relaxed) && (text(&call["action"]) != "try" || waits) {
        return;
    }
    let answer = r#"{"outcome":"done"}"#;
    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n", answer.len());
    // The caller may be gone.
    stream.write_all(format!("{head}Connection: close\r\n\r\n{answer}").as_bytes()).ok();
}

fn ask(server: &Server, method: &str, path: &str, body: Option<&Value>) -> Reply {
    let token = token(1, Owner::new("shop").map(Role::Service));
    let path = format!("/api/v1/transactions{path}");
    send(server.http, &Request { body, ..Request::new(&token, method, &path) }).expect("an answer")
}

/// The state of a transaction.
fn state(server: &Server, tx_id: &str) -> String {
    let reply = ask(server, "GET", &format!("/{tx_id}"), None);
    text(&reply.json()["state"]).to_owned()
}

fn is(server: &Server, tx_id: &str, wanted: &str) {
    eventually(&format!("{tx_id} to be {wanted}"), || {
        (state(server, tx_id) == wanted).then_some(())
    });
}

/// A request with a leg of each store.
fn body(tx_id: &str) -> Value {
    let leg = |store: &str, from: u64, to: u64, amount: &str| {
        let place = |user: u64| json!({"account": store, "user_id": user});
        json!({"from": place(from), "to": place(to), "asset": "USDT", "amount": amount})
    };
    let legs = match tx_id.starts_with("special") {
        true => json!([leg("FUNDING", SPECIAL[0], SPECIAL[1], "7")]),
        false => json!([leg("FUNDING", USER, HELD, "3"), leg("SPOT", HELD, USER, "2")]),
    };
    let mut body = json!({"legs": legs, "wait_ms": 100});
    let payload = |waits: bool| json!({"name": "coupons", "payload": {"waits": waits}});
    match tx_id {
        "done" => body["tx_id"] = json!(tx_id),
        "deciding" => {
            body["tx_id"] = json!(tx_id);
            body["last"] = json!({"name": "bank", "payload": {}});
        }
        _ => {
            body["round"] = json!(1);
            body["decide"] = json!("caller");
            body["ttl_ms"] = json!(TTL_MS);
            if ["trying", "committed", "aborted", "special"].contains(&tx_id) {
                body["participants"] = json!([payload(tx_id == "trying")]);
            }
        }
    }
    body
}

/// The files of a version, written by this one.
pub(super) fn write(folder: &Path) {
    let services = Services::start(false);
    let site = services.on(super::site()).with("UBSCORE__OUTCOMES__KEEP_HOURS", 24);
    let server = site.start();
    for user in [USER, HELD] {
        server.deposit(user, "USDT", "2000");
        assert_eq!(server.transfer_ended(user, Way::ToSpot, "1000").status, 200);
    }
    for user in SPECIAL {
        server.deposit(user, "USDT", "5");
    }
    let special =
        json!({"user_id": SPECIAL[0], "asset": "USDT", "special": true, "reason": "fees"});
    assert_eq!(server.admin("POST", "/admin/v1/specials", &special).status, 200);
    site.wait_for_rest();
    let before = BTreeMap::from([USER, HELD].map(|user| (user, told_balances(&server, user))));
    let mut told = Vec::new();
    for (tx_id, path, end) in ENDS {
        let body = body(tx_id);
        let waits = ["trying", "deciding"].contains(&tx_id);
        let reply = eventually(tx_id, || {
            let reply = ask(&server, "POST", path, Some(&body));
            (waits || reply.status == 200).then_some(reply)
        });
        let id = reply.json()["transaction_id"].clone();
        told.push(json!({"tx_id": tx_id, "path": path, "body": body, "transaction_id": id,
                         "end": end}));
        if tx_id == "cancelled" {
            force(&site, &server);
        }
    }
    let waits = json!({"wait_ms": 100});
    ask(&server, "POST", "/cancelled/abort", Some(&waits));
    ask(&server, "POST", "/committed/commit", Some(&waits));
    ask(&server, "POST", "/special/commit", Some(&waits));
    ask(&server, "POST", "/aborted/abort", Some(&waits));
    for (tx_id, wanted) in [
        ("done", "DONE"),
        ("cancelled", "CANCELLED"),
        ("tried", "OPEN"),
        ("trying", "OPEN"),
        ("deciding", "DECIDING"),
        ("committed", "COMMITTED"),
        ("aborted", "ABORTED"),
        ("special", "COMMITTED"),
        ("special-tried", "OPEN"),
    ] {
        is(&server, tx_id, wanted);
    }
    let below =
        format!("SELECT count(*) FROM balances WHERE user_id = {} AND available < 0", SPECIAL[0]);
    eventually("a special account below zero", || (site.sql_value(&below) == "1").then_some(()));
    server.kill();
    let held = site.sql_value("SELECT count(*) FROM funding_holds WHERE state = 10 AND amount > 0");
    assert!(held.parse::<u64>().expect("a number") >= 2, "{held} holds of Funding");
    // Three are done in the end.
    let balances: BTreeMap<String, Value> = before
        .into_iter()
        .map(|(user, balances)| (user.to_string(), booked(balances, user, 3)))
        .collect();
    keep(folder, &site, &json!({"answers": [], "balances": balances}));
    let text = serde_json::to_string_pretty(&told).expect("JSON");
    fs::write(folder.join(TOLD), text + "\n").expect("written");
    assert!(!services.willing.load(Ordering::Relaxed), "it ends nothing here");
}

/// Balances behind this many transactions.
fn booked(mut balances: Value, user: u64, times: i128) -> Value {
    const COIN: i128 = 100_000_000;
    let sign = if user == USER { -1 } else { 1 };
    for (side, change) in [(0, sign * 3), (1, -sign * 2)] {
        let units: i128 = text(&balances["USDT"][side]).parse().expect("units");
        balances["USDT"][side] = json!((units + times * change * COIN).to_string());
    }
    balances
}

/// The site with services that do all they are asked for.
pub(super) fn with_services(site: Site) -> Site {
    Services::start(true).on(site)
}

/// Asserts that each transaction ends as it must, and that a repeat finds it.
pub(super) fn assert_ends(folder: &Path, site: &Site, server: &Server) {
    let kept = fs::read_to_string(folder.join(TOLD)).expect("text");
    let kept: Value = serde_json::from_str(&kept).expect("JSON");
    for row in kept.as_array().expect("a list") {
        let (tx_id, end) = (text(&row["tx_id"]), text(&row["end"]));
        is(server, tx_id, end);
        let again = ask(server, "POST", text(&row["path"]), Some(&row["body"])).json();
        let found = [&again, &again["transaction"]];
        let found = found.into_iter().find(|found| found["transaction_id"].is_string());
        let found = found.unwrap_or_else(|| panic!("{tx_id}: {again}"));
        assert_eq!(found["transaction_id"], row["transaction_id"], "{tx_id}: {again}");
        assert_eq!(found["state"], row["end"], "{tx_id}: {again}");
    }
    let held = "SELECT count(*) FROM funding_holds WHERE state = 10";
    assert_eq!(site.sql_value(held), "0");
    let holds = server.admin_get("/admin/v1/holds").json();
    assert_eq!(holds["holds"].as_array().map(Vec::len), Some(0), "{holds}");
    let totals = server.admin_get("/admin/v1/totals").json();
    for asset in totals["assets"].as_array().expect("a list") {
        assert_eq!(asset["difference"], json!("0"), "{totals}");
    }
}
