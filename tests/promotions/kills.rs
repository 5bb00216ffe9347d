use std::os::unix::process::ExitStatusExt;

use super::*;
use crate::harness::{Request, send, token};
use ubscore::http::auth::Role;

/// Starts with a point armed at a visit.
fn armed(desk: &Recharging, point: &str, visit: u32) -> Server {
    let site = desk.site.clone().with("UBSCORE_CRASH", format!("{point}={visit}"));
    desk.called_back(site.start())
}

fn dies(desk: &Recharging, mut server: Server, point: &str) {
    let (status, said) = server.wait();
    assert_eq!(status.signal(), Some(9), "{point}: {status} {said}");
    desk.site.wait_for_disconnected();
}

/// Asks without an answer: the server dies on the way.
fn lost(server: &Server, body: &Value) {
    let reply = server.try_ask(USER, "POST", "/api/v1/recharge", Some(body));
    assert!(reply.is_err(), "{reply:?}");
}

/// Goal: behind a death with its reserve an order is that of its key, with one bonus. Method: a
/// death at the first and at the second visit; the client asks again.
#[test]
fn rch_039_a_kill_behind_a_reserve_reserves_once() {
    let desk = Recharging::new();
    let server = desk.start();
    funded(&server, &terms(), "30");
    server.kill();
    let point = "promotion_after_reserve";
    for visit in [1, 2] {
        let server = armed(&desk, point, visit);
        if visit == 2 {
            server.recharge_paying(USER, &promoted("40", "wechat", "before"));
        }
        let body = promoted("40", "wechat", &format!("dies-{visit}"));
        lost(&server, &body);
        dies(&desk, server, point);
        let server = desk.start();
        let again = server.recharge(USER, &body);
        assert!([200, 202].contains(&again.status), "{again:?}");
        assert_eq!(again.header("idempotent-replayed"), Some("true"));
        let id = text(&again.json()["recharge_id"]).to_owned();
        server.recharge_is(USER, &id, "PAYING");
        desk.sim.pay(&id);
        server.recharge_is(USER, &id, "PAID");
        server.kill();
    }
    let server = desk.start();
    assert_sums(&server, ["15", "5", "10"]);
    assert_whole(&desk);
}

/// Goal: a bonus goes back once over a death behind its way back. Method: a death at the first and
/// at the second visit.
#[test]
fn rch_039_a_kill_behind_a_return_to_the_promotion_returns_once() {
    let desk = Recharging::new();
    let server = desk.start();
    funded(&server, &terms(), "30");
    server.kill();
    let point = "promotion_after_return";
    for visit in [1, 2] {
        let server = armed(&desk, point, visit);
        for turn in 1..=visit {
            let key = format!("closes-{visit}-{turn}");
            let id = server.recharge_paying(USER, &promoted("40", "wechat", &key));
            let path = format!("/api/v1/recharge/{id}/cancel");
            // The server may die before its answer.
            drop(server.try_ask(USER, "POST", &path, None));
            if turn < visit {
                eventually("the first bonus to go back", || {
                    (sums(&server)[1] == "0").then_some(())
                });
            }
        }
        dies(&desk, server, point);
        let server = desk.start();
        eventually("the bonus to be back", || {
            (sums(&server) == ["30", "0", "0"].map(str::to_owned)).then_some(())
        });
        server.kill();
    }
    let server = desk.start();
    assert_sums(&server, ["30", "0", "0"]);
    let waits = "SELECT count(*) FROM recharges_tb WHERE next_at IS NOT NULL";
    eventually("nothing to be due", || (desk.site.sql_value(waits) == "0").then_some(()));
    assert_whole(&desk);
}

/// Goal: credit and bonus are one commit, and each has its record of UBSCore's log, over a death
/// between the commit and the records, and behind them. Method: the visits of a point one by one: a
/// start passes it too, for the deposits of development.
#[test]
fn rch_039_a_kill_between_a_bonus_and_its_record_gives_once() {
    let desk = Recharging::new();
    let server = desk.start();
    funded(&server, &terms(), "100");
    let before = funding(&server, USER);
    server.kill();
    let mut paid = 0;
    for point in ["external_before_record", "external_after_record"] {
        let mut visits = 1..20;
        loop {
            let visit = visits.next().expect("a visit of a payment");
            desk.site.wait_for_disconnected();
            let site = desk.site.clone().with("UBSCORE_CRASH", format!("{point}={visit}"));
            let Ok(server) = Server::try_start(site.command()) else { continue };
            let mut server = desk.called_back(server);
            let key = format!("{point}-{visit}");
            let reply = server.try_ask(
                USER,
                "POST",
                "/api/v1/recharge",
                Some(&promoted("40", "wechat", &key)),
            );
            // The deposits may be behind the start.
            let Ok(reply) = reply else { continue };
            let id = text(&reply.json()["recharge_id"]).to_owned();
            desk.sim.pay(&id);
            paid += 1;
            let row = format!("SELECT state FROM recharges_tb WHERE idem_key = '{key}'");
            eventually("a death, or a credit", || {
                (server.has_ended() || desk.site.sql_value(&row) == "40").then_some(())
            });
            // Of the same worker, and so recorded behind the credit: without an answer the server
            // has died.
            let body = json!({"user_id": USER, "asset": "USDT", "amount": "1",
                "idem_key": key, "reason": "a test"});
            let admin = token(ADMIN, Some(Role::Admin));
            let request =
                Request { body: Some(&body), ..Request::new(&admin, "POST", "/admin/v1/deposits") };
            let died = send(server.ops, &request).is_err();
            if !died {
                server.kill();
            }
            desk.site.wait_for_disconnected();
            let server = desk.start();
            server.recharge_is(USER, &id, "PAID");
            assert_eq!(funding(&server, USER), before + 45 * COIN * paid, "{point}");
            server.kill();
            desk.site.wait_for_disconnected();
            desk.site.assert_verified();
            if died {
                break;
            }
        }
    }
    let server = desk.start();
    assert_eq!(sums(&server)[1], "0");
    assert_whole(&desk);
}

/// Goal: no point of a bonus is forgotten here.
#[test]
fn rch_039_every_point_of_a_bonus_is_killed_at() {
    let here = ["promotion_after_reserve", "promotion_after_return"];
    assert_eq!(ubscore::crash::PROMOTION_POINTS, here);
}
