//! A load of transfers, each with a cid, and the lasting claims about their answers.

use std::collections::HashMap;
use std::net::SocketAddr;

use serde_json::Value;

use super::{Reply, Request, Server, Site, Way, eventually, send, token, unique};

pub(crate) const USERS: [u64; 4] = [1001, 1002, 1003, 1004];

/// One transfer of a load: its user, and the body with its cid.
#[derive(Clone)]
pub(crate) struct Planned {
    pub(crate) user: u64,
    pub(crate) body: Value,
}

/// `count` transfers of four users, both ways, of different amounts and two assets, each with a
/// cid.
pub(crate) fn plan(count: usize) -> Vec<Planned> {
    plan_of_round(count, 0)
}

/// The same with the cids of one round.
pub(crate) fn plan_of_round(count: usize, round: usize) -> Vec<Planned> {
    let planned = |index: usize| {
        let way = Way::BOTH[index / USERS.len() % 2];
        let asset = if index.is_multiple_of(3) { "BTC" } else { "USDT" };
        let amount = format!("0.{:08}", 1_000_000 + index);
        let body = way.body_with_cid(asset, &amount, &format!("load-{round}-{index}"));
        Planned { user: USERS[index % USERS.len()], body }
    };
    (0..count).map(planned).collect()
}

/// Money on both sides for all users, without open transfers.
pub(crate) fn endow(site: &Site, server: &Server) {
    for user in USERS {
        for asset in ["USDT", "BTC"] {
            server.deposit(user, asset, "5.5");
            let cid = format!("some-{}", unique());
            server.post_taken(user, &Way::ToSpot.body_with_cid(asset, "2", &cid));
        }
    }
    site.wait_for_rest();
}

/// Posts to an address; `None` without an answer.
pub(crate) fn post_to(http: SocketAddr, planned: &Planned) -> Option<Reply> {
    let token = token(planned.user, None);
    let path = "/api/v1/internal_transfer";
    let request = Request { body: Some(&planned.body), ..Request::new(&token, "POST", path) };
    send(http, &request).ok()
}

/// Asserts that each answer still holds, and that each cid leads to one transfer with one outcome.
pub(crate) fn assert_kept(server: &Server, plan: &[Planned], answered: &[Option<Reply>]) {
    let mut transfers = HashMap::new();
    for (planned, answer) in plan.iter().zip(answered) {
        // A transfer without a promise may begin only now, and be in progress for a while.
        let promised = answer.as_ref().is_some_and(|first| first.status == 200);
        let allowed: &[u16] = if promised { &[200] } else { &[200, 202] };
        let now = eventually("the transfer's end", || {
            let now = server.post_taken(planned.user, &planned.body);
            assert!(allowed.contains(&now.status), "{now:?}, and before {answer:?}");
            (now.status == 200).then_some(now)
        });
        let again = server.post_taken(planned.user, &planned.body);
        assert_eq!((again.status, again.json()), (200, now.json()));
        assert_eq!(again.header("idempotent-replayed"), Some("true"));
        let seen = transfers.insert(now.req_id(), planned.body.clone());
        assert_eq!(seen, None, "two cids have one transfer");
        match answer {
            // An answer that was a promise.
            Some(first) if first.status == 200 => assert_eq!(first.json(), now.json()),
            Some(first) if first.status == 202 => assert_eq!(first.req_id(), now.req_id()),
            Some(first) => assert_eq!(first.status, 503, "{first:?}"),
            None => {}
        }
    }
}
