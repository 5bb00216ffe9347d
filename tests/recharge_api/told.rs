use super::*;
use crate::harness::{Endpoint, Follower, Server, Way};

/// "an endpoint's secret, 32 bytes.." in base64.
const SECRET: &str = "whsec_YW4gZW5kcG9pbnQncyBzZWNyZXQsIDMyIGJ5dGVzLi4=";

/// The next event of a recharge: its id, and its data.
fn next(stream: &Follower) -> (String, Value) {
    loop {
        let (id, kind, data) = stream.event();
        if kind == "recharge" {
            assert_eq!(data["event_id"], json!(id), "{data}");
            return (id, data);
        }
    }
}

/// The next event of a recharge must be this one.
fn expect(stream: &Follower, kind: &str, recharge_id: &str) -> String {
    let (id, data) = next(stream);
    assert_eq!(data["type"], json!(kind), "{data}");
    assert_eq!(data["recharge"]["recharge_id"], json!(recharge_id), "{data}");
    id
}

/// Goal: a stream tells each change once, live and behind an id, with transfers in between, and the
/// endpoint gets the same JSON.
#[test]
fn a_stream_and_an_endpoint_tell_a_recharge() {
    let endpoint = Endpoint::start(|_| 200);
    let site = crate::harness::Site::new()
        .with("UBSCORE__WEBHOOKS__URL", endpoint.url())
        .with("UBSCORE__WEBHOOKS__SECRET", SECRET);
    let desk = Recharging::on(site);
    let server = desk.start();
    let stream = server.follow(USER, None);
    assert!(matches!(stream.next(), Part::Position(_)));
    let id = server.recharge_paying(USER, &recharge("5", "wechat", "topup-1"));
    let first = expect(&stream, "recharge.paying", &id);
    server.transfer_committed(USER, Way::ToSpot, "1");
    desk.sim.pay(&id);
    let paid = expect(&stream, "recharge.paid", &id);
    let cancelled = server.recharge_paying(USER, &recharge("5", "wechat", "topup-2"));
    server.ask(USER, "POST", &format!("/api/v1/recharge/{cancelled}/cancel"), None);
    expect(&stream, "recharge.paying", &cancelled);
    expect(&stream, "recharge.closed", &cancelled);
    // Behind an id: the transfer's events too, and all in the order of their ids.
    let late = server.follow(USER, Some(&first));
    let mut kinds = Vec::new();
    let mut last: i64 = first.parse().expect("an id");
    loop {
        let (event, kind, _) = late.event();
        let event: i64 = event.parse().expect("an id");
        assert!(event > last, "{event} behind {last}");
        last = event;
        kinds.push(kind);
        if kinds.iter().filter(|kind| *kind == "recharge").count() == 3 {
            break;
        }
    }
    assert!(kinds.iter().any(|kind| kind == "transfer"), "{kinds:?}");
    let delivered = eventually("deliveries", || {
        let all = endpoint.delivered();
        let of_recharges: Vec<Value> = all
            .iter()
            .map(|delivery| delivery.json())
            .filter(|body| body["type"].is_string())
            .collect();
        (of_recharges.len() == 4).then_some(of_recharges)
    });
    assert!(delivered.iter().any(|body| body["event_id"] == json!(paid)), "{delivered:?}");
}

/// Goal: between the commit and its event the process dies: the next start tells it, once. Method:
/// both crash points, a stream behind the last id, and an endpoint.
#[cfg(feature = "crash")]
#[test]
fn rch_003_an_event_is_told_behind_a_kill() {
    for point in ["recharge_before_tell", "callback_after_commit"] {
        let endpoint = Endpoint::start(|_| 200);
        let site = crate::harness::Site::new()
            .with("UBSCORE__WEBHOOKS__URL", endpoint.url())
            .with("UBSCORE__WEBHOOKS__SECRET", SECRET);
        let desk = Recharging::on(site);
        let server = desk.start();
        let stream = server.follow(USER, None);
        let id = server.recharge_paying(USER, &recharge("5", "wechat", "topup-1"));
        let last = expect(&stream, "recharge.paying", &id);
        server.stop();
        let mut command = desk.site.command();
        command.env("UBSCORE_CRASH", point);
        let mut server = desk.called_back(Server::start(command));
        desk.sim.pay(&id);
        eventually("the crash", || server.has_ended().then_some(()));
        desk.site.wait_for_disconnected();
        assert_eq!(desk.site.sql_value("SELECT state FROM recharges_tb"), "40", "committed");
        let server = desk.start();
        let behind = server.follow(USER, Some(&last));
        let told = expect(&behind, "recharge.paid", &id);
        eventually("the delivery", || {
            let all = endpoint.delivered();
            let paid = all.iter().filter(|one| one.json()["type"] == json!("recharge.paid"));
            let ids: Vec<&String> = paid.map(|one| &one.id).collect();
            (!ids.is_empty() && ids.iter().all(|id| **id == told)).then_some(())
        });
        let rows = "SELECT count(*) FROM recharge_events WHERE change = 2";
        assert_eq!(desk.site.sql_value(rows), "1");
        let after = server.balances(USER)["CNY"];
        assert_eq!(after.funding, Some(5 * COIN));
        desk.site.assert_verified();
    }
}
