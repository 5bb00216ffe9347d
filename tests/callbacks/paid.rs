use super::*;
use crate::harness::Cluster;

/// The channels of the simulator.
const CHANNELS: [&str; 2] = ["wechat", "card"];

impl Shop {
    /// Makes an order over HTTP, and waits until its payer can pay. Returns its id.
    fn order(&self, channel: &str, idem_key: &str) -> String {
        let body = json!({
            "asset": "CNY", "amount": "100", "channel": channel, "idem_key": idem_key,
        });
        let reply = self.server.ask(USER, "POST", "/api/v1/recharge", Some(&body));
        assert!([201, 202].contains(&reply.status), "{reply:?}");
        let id = reply.json()["recharge_id"].as_str().expect("an id").to_owned();
        eventually("PAYING", || (self.look(&id)["state"] == json!("PAYING")).then_some(()));
        id
    }

    fn look(&self, id: &str) -> Value {
        let reply = self.server.get(USER, &format!("/api/v1/recharge/{id}"));
        assert_eq!(reply.status, 200, "{reply:?}");
        reply.json()
    }

    /// CNY in Funding, fen.
    fn fen(&self) -> i64 {
        // The harness counts in units of eight decimals.
        let units = self.server.balances(USER)["CNY"].funding.unwrap_or(0);
        i64::try_from(units / 1_000_000).expect("small")
    }

    fn pay(&self, id: &str) {
        self.simulate("POST", &format!("/pay/{id}"), &json!({}));
    }

    fn wait_for_paid(&self, id: &str) -> Value {
        eventually("PAID", || {
            let order = self.look(id);
            (order["state"] == json!("PAID")).then_some(order)
        })
    }
}

/// No query before the test is over: each credit here comes by a callback.
pub(super) fn unasked(site: Site) -> Site {
    on(site)
        .with("UBSCORE__RECHARGE__QUERY_AFTER_MS", 3_600_000)
        .with("UBSCORE__RECHARGE__QUERY_CAP_MS", 3_600_000)
}

/// Goal: created, paid and credited, from the first request to the balance. Method: both formats,
/// over HTTP alone; a replay of the callback changes nothing.
#[test]
fn rch_001_over_http_create_pay_callback() {
    let shop = Shop::at(unasked(Site::new()));
    for (number, channel) in CHANNELS.into_iter().enumerate() {
        let before = shop.fen();
        let id = shop.order(channel, &format!("key-{channel}"));
        shop.pay(&id);
        let order = shop.wait_for_paid(&id);
        assert_eq!(order["payments"].as_array().map(Vec::len), Some(1), "{order}");
        assert_eq!(shop.fen(), before + FEN, "{channel}");
        let rows = (number + 1).to_string();
        assert_eq!(shop.rows(), [rows.as_str(); 4]);
        let known = shop.counted(channel, "success");
        shop.simulate("POST", &format!("/sim/replay/{id}"), &json!({}));
        eventually("the replay", || (shop.counted(channel, "success") > known).then_some(()));
        assert_eq!(shop.rows(), [rows.as_str(); 4], "it writes nothing");
        assert_eq!(shop.fen(), before + FEN, "{channel}");
    }
    shop.site.assert_verified();
}

/// Goal: halted, a payment is answered 503, and is credited behind resume without help. Method: pay
/// during a halt; the channel sends it again by itself.
#[test]
fn rch_026_halted_a_payment_waits_for_the_resume() {
    let shop = Shop::at(unasked(Site::new()));
    let id = shop.order("wechat", "key-1");
    let halted = shop.server.admin("POST", "/admin/v1/halt", &json!({"reason": "a test"}));
    assert_eq!(halted.status, 200, "{halted:?}");
    shop.pay(&id);
    eventually("a refusal", || (shop.counted("wechat", "later") >= 2).then_some(()));
    assert_eq!(shop.rows()[1], "0");
    assert_eq!(shop.look(&id)["state"], json!("PAYING"));
    let resumed = shop.server.resume("a test");
    assert_eq!(resumed.status, 200, "{resumed:?}");
    shop.wait_for_paid(&id);
    assert_eq!(shop.fen(), FEN);
    shop.site.assert_verified();
}

/// Goal: without PostgreSQL a payment is answered 503; then it is credited once. Method: a
/// PostgreSQL of its own is killed around the payment, and comes back.
#[test]
fn rch_027_without_postgresql_a_payment_waits_and_is_credited_once() {
    let (site, cluster): (Site, Arc<Cluster>) = Site::on_its_own_cluster();
    let shop = Shop::at(unasked(site));
    let id = shop.order("card", "key-1");
    cluster.kill();
    shop.pay(&id);
    eventually("a refusal", || (shop.counted("card", "later") >= 1).then_some(()));
    cluster.restart();
    shop.wait_for_paid(&id);
    eventually("the balance", || (shop.fen() == FEN).then_some(()));
    assert_eq!(shop.rows(), ["1"; 4]);
}
