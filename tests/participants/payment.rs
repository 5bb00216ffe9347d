//! The worked example of transactions: an order is paid with a red envelope and a balance, by
//! `examples/transaction.py` as the caller and `examples/participant.py` as a participant.

use std::process::Command;
use std::thread;
use std::time::Duration;

use serde_json::Value;
use ubscore::http::auth::{Owner, Role};

use super::{Example, NAME};
use crate::harness::{COIN, Server, Site, eventually, said, token};

/// None of them is a user that a development server endows.
const BUYER: u64 = 2001;
const SELLER: u64 = 2002;
const ENVELOPES: u64 = 9000;

/// A site that knows the participant.
fn site(example: &Example) -> Site {
    let key = |end: &str| format!("UBSCORE__PARTICIPANTS__{}__{end}", NAME.to_uppercase());
    let secret = example.path("secret").to_str().expect("UTF-8").to_owned();
    Site::new()
        .with(&key("URL"), example.url())
        .with(&key("SECRET_FILE"), secret)
        .with(&key("KIND"), "veto")
        .with("UBSCORE__TRANSACTIONS__TICK_MS", 50)
}

/// The three users with money, and the caller's right to commit in SQL.
fn endow(site: &Site, server: &Server) {
    server.deposit(BUYER, "USDT", "1000");
    server.deposit(SELLER, "USDT", "1");
    server.deposit(ENVELOPES, "USDT", "500");
    site.sql("INSERT INTO transaction_grants (role_name, owner) VALUES (session_user, 'trade')");
}

/// The example, on one order.
fn caller(site: &Site, url: &str, order: u32, price: &str) -> Command {
    let mut python = Command::new("python3");
    python.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/examples/transaction.py"));
    python.env("UBSCORE_TOKEN", token(1, Owner::new("trade").map(Role::Service)));
    python.args([order.to_string().as_str(), "--buyer", "2001", "--seller", "2002"]);
    python.args(["--price", price, "--envelope", "20", "--envelopes-of", "9000"]);
    python.args(["--owner", "trade", "--database", &site.url(), "--url", url]);
    python.args(["--patience", "120"]);
    python
}

/// Runs the example to its end: exit code and answer.
fn pay(site: &Site, url: &str, order: u32, price: &str) -> (i32, Value) {
    let (code, out, err) = said(&caller(site, url, order, price).output().expect("python3"));
    (code, serde_json::from_str(&out).unwrap_or_else(|error| panic!("{error}: {out}{err}")))
}

/// The whole USDT of buyer, seller and envelopes on Funding.
fn money(server: &Server) -> [u128; 3] {
    [BUYER, SELLER, ENVELOPES].map(|user| server.usdt(user).funding.expect("a balance") / COIN)
}

/// The state of an order.
fn order(site: &Site, number: u32) -> String {
    site.sql(&format!("SELECT state FROM orders WHERE order_id = {number}"))[0][0].clone()
}

/// GTX-017, without the follower. Goal: order, envelope and money agree after every end. Method:
/// the worked example, with each part failing in turn: the balance of the buyer, the envelope, and
/// the caller's own row.
#[test]
fn gtx_017_the_example_pays_an_order_or_leaves_everything_as_it_was() {
    let mut example = Example::new("veto");
    example.start("none");
    let site = site(&example);
    let server = site.start();
    endow(&site, &server);
    let url = format!("http://{}", server.http);
    let (code, answer) = pay(&site, &url, 77, "100");
    assert_eq!((code, &answer["state"]), (0, &"DONE".into()), "{answer}{}", server.said());
    assert_eq!((money(&server), example.pool()), ([920, 101, 480], "999 0 1".to_owned()));
    assert_eq!(order(&site, 77), "PAID");
    // The same again is the same payment.
    let (code, answer) = pay(&site, &url, 77, "100");
    assert_eq!((code, &answer["state"]), (0, &"DONE".into()), "{answer}");
    // The buyer has 920.
    let (code, answer) = pay(&site, &url, 78, "941");
    assert_eq!((code, &answer["code"]), (1, &"INSUFFICIENT_BALANCE".into()), "{answer}");
    // The envelope's owner has 480 left, and this pool nothing.
    let mut python = caller(&site, &url, 79, "100");
    let (code, out, err) = said(&python.args(["--pool", "autumn"]).output().expect("python3"));
    assert!(code == 1 && out.contains("PARTICIPANT_REFUSED"), "{code} {out}{err}");
    // The order has been shipped without a payment, so its update changes no row.
    site.sql("INSERT INTO orders VALUES (80, 'order:80', 100, 'SHIPPED')");
    let (code, answer) = pay(&site, &url, 80, "100");
    assert_eq!(code, 1, "{answer}");
    for (number, state) in [(78, "FAILED"), (79, "FAILED"), (80, "SHIPPED")] {
        assert_eq!(order(&site, number), state);
    }
    eventually("the cancel of the envelope", || (example.pool() == "999 0 1").then_some(()));
    assert_eq!(money(&server), [920, 101, 480]);
}

/// Goal: each order is paid once, or not at all. Method: orders are paid one after
/// the other, while the server is killed and started again at the same address.
#[test]
fn each_order_of_the_example_is_paid_once_while_the_server_is_killed() {
    const ORDERS: u32 = 6;
    let mut example = Example::new("veto");
    example.start("none");
    let site = site(&example);
    let server = site.start();
    endow(&site, &server);
    let (http, ops) = (server.http.to_string(), server.ops.to_string());
    let url = format!("http://{http}");
    let server = thread::scope(|scope| {
        let payments = scope.spawn(|| {
            for number in 1..=ORDERS {
                let (code, answer) = pay(&site, &url, number, "100");
                assert_eq!(code, 0, "order {number}: {answer}");
            }
        });
        let mut server = server;
        for _ in 0..3 {
            thread::sleep(Duration::from_millis(700));
            server.kill();
            server = Server::start(site.command_on(&http, &ops));
        }
        payments.join().expect("every order");
        server
    });
    let paid = u128::from(ORDERS);
    let pool = format!("{} 0 {paid}", 1_000 - paid);
    eventually("every confirm", || (example.pool() == pool).then_some(()));
    assert_eq!(money(&server), [1_000 - 80 * paid, 1 + 100 * paid, 500 - 20 * paid]);
    for number in 1..=ORDERS {
        assert_eq!(order(&site, number), "PAID");
    }
}
