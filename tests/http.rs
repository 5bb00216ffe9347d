//! Transfers over HTTP as a client sees them.

use serde_json::{Value, json};

use crate::harness::{Balance, COIN, Reply, Request, Site, Way, assert_refused, send, text, token};

const USER: u64 = 1001;
const OTHER: u64 = 1002;
/// What a development user is given, USDT in smallest units.
const GIFT: u128 = 10_000 * COIN;

/// The names of the states in a transfer's history.
fn history(transfer: &Value) -> Vec<&str> {
    let passed = transfer["history"].as_array().expect("an array");
    passed.iter().map(|passed| text(&passed["state"])).collect()
}

/// Goal: both ways move exactly the amount, through exactly the states of the specification, and every answer has
/// exactly its fields. Method: one transfer each way, fused and not; answers and rows are compared whole.
#[test]
fn a_transfer_moves_the_amount_through_every_state_both_ways() {
    for fuse in [true, false] {
        let site = Site::fused(fuse);
        let server = site.start();
        let fused = |states: &str| match fuse {
            true => vec![states.to_owned()],
            false => states.split(' ').map(str::to_owned).collect(),
        };
        for (way, commits, after) in [
            (Way::ToSpot, ["0 10 20 30", "40"], Balance::at_rest(GIFT - 100 * COIN, 100 * COIN)),
            (Way::ToFunding, ["0 10", "20 30 40"], Balance::at_rest(GIFT, 0)),
        ] {
            let reply = server.transfer(USER, way, "100.00");
            assert_eq!(reply.status, 200, "{reply:?}");
            let req_id = reply.req_id();
            let (from, to) = way.accounts();
            let transfer_id = reply.json()["transfer_id"].clone();
            assert!(transfer_id.is_u64(), "{reply:?}");
            assert_eq!(req_id.len(), 26);
            let want = json!({
                "transfer_id": transfer_id, "req_id": req_id, "from": from, "to": to,
                "asset": "USDT", "amount": "100", "state": "COMMITTED", "funds_at": "target",
                "final": true, "cid": null, "message": "Transfer successful",
            });
            assert_eq!(reply.json(), want);
            assert_eq!(server.usdt(USER), after);

            site.wait_for_rest();
            let mut transfer = server.look(USER, &req_id);
            let states = ["INIT", "SOURCE_PENDING", "SOURCE_DONE", "TARGET_PENDING", "COMMITTED"];
            assert_eq!(history(&transfer), states);
            let want_commits: Vec<String> = commits.into_iter().flat_map(fused).collect();
            assert_eq!(site.commits(&req_id), want_commits);
            for passed in transfer["history"].as_array().expect("an array") {
                assert_eq!(passed["attempt"], json!(0), "{passed}");
                assert!(passed["reason"].is_null(), "{passed}");
                let at: Result<jiff::Timestamp, _> = text(&passed["at"]).parse();
                at.unwrap_or_else(|error| panic!("{passed}: {error}"));
            }
            assert_eq!(transfer["error"], Value::Null);
            let fields = transfer.as_object_mut().expect("an object");
            for only_here in ["history", "created_at", "updated_at", "error"] {
                fields.remove(only_here).expect(only_here);
            }
            assert_eq!(transfer, want);
        }
        site.assert_books(&server);
        server.stop();
    }
}
