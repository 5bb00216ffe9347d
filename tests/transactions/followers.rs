//! The end of a transaction, told to followers, to the operator's endpoint and to its users.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::{Value, json};

use super::desk::{Desk, SECRET, Service, leg, legs};
use super::{A, B, C, part};
use crate::harness::{Delivered, Endpoint, Site, Way, eventually, text};

/// A site with a follower.
pub(super) fn followed(notices: &Endpoint) -> Site {
    let site = Site::new();
    let secret = site.fresh_path("notices");
    std::fs::write(&secret, SECRET).expect("written");
    site.with("UBSCORE__FOLLOWERS__NOTICES__URL", notices.url())
        .with("UBSCORE__FOLLOWERS__NOTICES__SECRET_FILE", secret.display())
        .with("UBSCORE__WEBHOOKS__BACKOFF_BASE_MS", 10)
        .with("UBSCORE__WEBHOOKS__BACKOFF_CAP_MS", 100)
        .with("UBSCORE__WEBHOOKS__ATTEMPTS_MAX", 1_000)
}

fn both() -> Value {
    legs(&[leg("FUNDING", A, B, "3"), leg("SPOT", B, A, "2")])
}

/// A transaction of one round with a follower.
fn told(tx_id: &str) -> Value {
    json!({"tx_id": tx_id, "followers": ["notices"], "legs": both()})
}

/// The transactions that were delivered, with a success.
pub(super) fn taken(notices: &Endpoint) -> Vec<String> {
    let taken = notices.delivered().into_iter().filter(|delivery| delivery.status == 200);
    taken.map(|delivery| text(&delivery.json()["tx_id"]).to_owned()).collect()
}

fn assert_signed(delivery: &Delivered) {
    let mut headers = hyper::HeaderMap::new();
    for (name, value) in [
        ("webhook-id", &delivery.id),
        ("webhook-timestamp", &delivery.timestamp),
        ("webhook-signature", &delivery.signature),
    ] {
        headers.insert(name, value.parse().expect("a header's value"));
    }
    let verifier = standardwebhooks::Webhook::new(SECRET).expect("a secret");
    verifier.verify(delivery.body.as_bytes(), &headers).expect("rightly signed");
}

/// GTX-015. Goal: a follower is told of DONE, signed, never before it and never of CANCELLED.
/// Method: a participant withholds its confirm, so that both stores have booked and the transaction
/// is not DONE; meanwhile one is cancelled, and one without followers is done.
#[test]
fn gtx_015_followers_are_told_of_done_alone() {
    let notices = Endpoint::start(|_| 200);
    let done = || json!({"outcome": "done"});
    let coupons = Service::start(move |action, _| (action != "confirm").then(done));
    let desk = Desk::on(followed(&notices), &[("COUPONS", "veto", &coupons)]);
    let mut slow = told("slow");
    slow["participants"] = json!([part("coupons")]);
    assert_eq!(desk.post("", &slow).status, 200);
    desk.is("slow", "COMMITTED");
    let round = json!({"round": 1, "decide": "caller", "followers": ["notices"], "legs": both()});
    assert_eq!(desk.post("/dropped/prepare", &round).status, 200);
    assert_eq!(desk.post("/dropped/abort", &json!({})).status, 200);
    desk.ends("dropped", "CANCELLED");
    assert_eq!(desk.post("", &json!({"tx_id": "quiet", "legs": both()})).status, 200);
    desk.ends("quiet", "DONE");
    assert_eq!(taken(&notices), Vec::<String>::new());
    let stranger = json!({"tx_id": "x", "followers": ["stranger"], "legs": both()});
    assert_eq!(desk.post("", &stranger).refusal(), (400, "UNKNOWN_PARTICIPANT".to_owned()));

    coupons.answers(move |_, _| Some(done()));
    let row = desk.ends("slow", "DONE");
    let delivery = eventually("a delivery", || notices.delivered().pop());
    assert_signed(&delivery);
    let body = delivery.json();
    let passed = row["history"].as_array().expect("passages").last().expect("DONE").clone();
    let want = json!({
        "event_id": delivery.id, "at": passed["at"], "transaction_id": row["transaction_id"],
        "owner": "shop", "tx_id": "slow", "state": "DONE",
        "legs": [
            {"account": "FUNDING", "from": A, "to": B, "asset": "USDT", "amount": "3"},
            {"account": "SPOT", "from": B, "to": A, "asset": "USDT", "amount": "2"},
        ],
    });
    assert_eq!(body, want);
    // The followers are a part of the request.
    assert_eq!(desk.post("", &slow).status, 200);
    slow.as_object_mut().expect("an object").remove("followers");
    assert_eq!(desk.post("", &slow).refusal(), (409, "TX_ID_CONFLICT".to_owned()));
    let all = "SELECT count(*) FROM webhook_deliveries WHERE kind = 2";
    assert_eq!(desk.site().sql_value(all), "1");
    desk.close();
}

/// GTX-015. Goal: a kill between the booking and the delivery takes no notice away, and a repeat
/// has the same id and body. Method: the follower refuses until the server is killed.
#[test]
fn gtx_015_a_notice_outlives_a_kill() {
    let open = Arc::new(AtomicBool::new(false));
    let is_open = Arc::clone(&open);
    let notices = Endpoint::start(move |_| if is_open.load(Ordering::Relaxed) { 200 } else { 503 });
    let mut desk = Desk::on(followed(&notices), &[]);
    for tx_id in ["one", "two"] {
        assert_eq!(desk.post("", &told(tx_id)).status, 200);
        desk.ends(tx_id, "DONE");
    }
    eventually("tries", || (notices.delivered().len() >= 3).then_some(()));
    desk.kill();
    open.store(true, Ordering::Relaxed);
    desk.start();
    eventually("both", || {
        let taken = taken(&notices);
        ["one", "two"].iter().all(|tx_id| taken.iter().any(|one| one == tx_id)).then_some(())
    });
    let all = notices.delivered();
    for delivery in &all {
        let other = all.iter().find(|other| other.id == delivery.id).expect("itself");
        assert_eq!(delivery.body, other.body);
        assert_signed(delivery);
    }
    desk.close();
}

/// Goal: the stream of a user tells of each transaction with legs of that user, once it is DONE,
/// and misses none over a kill; so does the operator's endpoint. Method: transactions of both users
/// and of one, transfers in between, and a kill between two of them.
#[test]
fn a_stream_and_the_endpoint_tell_of_transactions() {
    let hook = Endpoint::start(|_| 200);
    let site = Site::new()
        .with("UBSCORE__WEBHOOKS__URL", hook.url())
        .with("UBSCORE__WEBHOOKS__SECRET", SECRET);
    let mut desk = Desk::on(site, &[]);
    let stream = desk.server().follow(A, None);
    assert_eq!(desk.post("", &json!({"tx_id": "one", "legs": both()})).status, 200);
    let (first, kind, data) = stream.event();
    assert_eq!((kind.as_str(), text(&data["tx_id"])), ("transaction", "one"), "{data}");
    let want = json!([
        {"account": "FUNDING", "side": "PAID", "asset": "USDT", "amount": "3"},
        {"account": "SPOT", "side": "RECEIVED", "asset": "USDT", "amount": "2"},
    ]);
    assert_eq!(
        (&data["legs"], &data["user_id"], &data["state"]),
        (&want, &json!(A), &json!("DONE"))
    );
    // Not one of theirs.
    let others = json!({"tx_id": "others", "legs": legs(&[leg("SPOT", B, C, "1")])});
    assert_eq!(desk.post("", &others).status, 200);
    desk.ends("others", "DONE");
    desk.server().transfer_ended(A, Way::ToSpot, "1");
    let (behind, kind, _) = stream.event();
    assert_eq!(kind, "transfer");
    assert!(behind.contains('.') && first.contains('.'), "{first} {behind}");

    assert_eq!(desk.post("", &json!({"tx_id": "two", "legs": both()})).status, 200);
    desk.ends("two", "DONE");
    desk.site().wait_for_rest();
    desk.kill();
    desk.start();
    assert_eq!(desk.post("", &json!({"tx_id": "three", "legs": both()})).status, 200);
    // From the place behind the transfer's first event, and from the beginning.
    for (after, want) in
        [(behind.as_str(), vec!["two", "three"]), ("0", vec!["one", "two", "three"])]
    {
        let stream = desk.server().follow(A, Some(after));
        let mut named = Vec::new();
        while named.len() < want.len() {
            let (_, kind, data) = stream.event();
            if kind == "transaction" {
                named.push(text(&data["tx_id"]).to_owned());
            }
        }
        assert_eq!(named, want, "{after}");
    }
    eventually("the deliveries", || {
        let bodies = hook.delivered().into_iter().map(|delivery| delivery.json());
        let named = |body: Value| body["tx_id"].as_str().map(str::to_owned);
        let named: Vec<String> = bodies.filter_map(named).collect();
        let all = ["one", "others", "two", "three"];
        all.iter().all(|tx_id| named.iter().any(|one| one == tx_id)).then_some(())
    });
    desk.close();
}
