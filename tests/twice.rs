//! One idempotency key, used several times at once: by two users of two shards, with several
//! bodies, and over a kill.

use std::collections::BTreeMap;

use rustix::process::Signal;
use serde_json::Value;
use ubscore::http::auth::Role;

use crate::harness::{
    ADMIN, COIN, Planned, Reply, Request, Server, Site, Way, crowd, eventually, external, post_to,
    send, token,
};

/// Of two shards.
const USERS: [u64; 2] = [1001, 1002];
const CALLERS: usize = 16;

/// The kind of a key.
#[derive(Clone, Copy, Debug)]
enum Key {
    /// A user's transfer: each user has one.
    Cid,
    /// An external operation: all users have one.
    IdemKey,
}

/// User and body of a caller: two users, and two amounts of each.
fn ask(caller: usize, key: Key, name: &str) -> (u64, Value) {
    let (user, amount) = (USERS[caller % 2], ["1", "2"][caller / 2 % 2]);
    let body = match key {
        Key::Cid => Way::ToSpot.body_with_cid("USDT", amount, name),
        Key::IdemKey => external(user, "USDT", amount, name),
    };
    (user, body)
}

/// Sends one; `None` without a final answer.
fn post(server: &Server, key: Key, user: u64, body: &Value) -> Option<Reply> {
    let reply = match key {
        Key::Cid => post_to(server.http, &Planned { user, body: body.clone() }),
        Key::IdemKey => {
            let token = token(ADMIN, Some(Role::Admin));
            let request = Request::new(&token, "POST", "/admin/v1/deposits");
            send(server.ops, &Request { body: Some(body), ..request }).ok()
        }
    };
    reply.filter(|reply| ![202, 503].contains(&reply.status))
}

/// Goal: a key names one body with one effect, in any order of its callers. Method: sixteen callers
/// with four bodies at once, in quiet and with a kill in the middle; all of them again afterwards.
#[test]
fn one_key_from_two_users_at_once_has_one_effect() {
    let site = Site::new().with("UBSCORE__COORDINATOR__SHARDS", 2);
    let mut server = site.start();
    let mut outside = USERS.map(|_| 10_000 * COIN);
    for round in 0..8 {
        let (key, kills) = ([Key::Cid, Key::IdemKey][round % 2], round >= 4);
        let name = format!("twice-{round}");
        let there = match key {
            Key::Cid => format!("SELECT count(*) FROM transfers WHERE cid = '{name}'"),
            Key::IdemKey => {
                format!("SELECT count(*) FROM externals WHERE idem_key = '{name}'")
            }
        };
        let first = crowd(CALLERS + usize::from(kills), |caller| {
            if caller == CALLERS {
                eventually("a row", || (site.sql_value(&there) != "0").then_some(()));
                server.signal(Signal::KILL);
                return None;
            }
            let (user, body) = ask(caller, key, &name);
            post(&server, key, user, &body)
        });
        if kills {
            server.kill();
            server = site.start();
        }
        let again = crowd(CALLERS, |caller| {
            let (user, body) = ask(caller, key, &name);
            eventually("an answer", || post(&server, key, user, &body))
        });
        // The winning body of each owner of the key.
        let mut winners = BTreeMap::new();
        for (caller, (first, again)) in first.iter().zip(&again).enumerate() {
            let (user, body) = ask(caller, key, &name);
            if let Some(first) = first {
                assert_eq!(first.status, again.status, "{body}: {first:?}, then {again:?}");
                let same = first.status != 200 || first.json() == again.json();
                assert!(same, "{body}: {first:?}, then {again:?}");
            }
            let owner = matches!(key, Key::Cid).then_some(user);
            match again.status {
                200 => {
                    let won = (user, body["amount"].clone());
                    let winner = winners.entry(owner).or_insert_with(|| won.clone());
                    assert_eq!(*winner, won, "{name} has two bodies");
                }
                status => assert_eq!(status, 409, "{body}: {again:?}"),
            }
        }
        let owners = if matches!(key, Key::Cid) { 2 } else { 1 };
        assert_eq!(winners.len(), owners, "{name}");
        assert_eq!(site.sql_value(&there), owners.to_string(), "{name}");
        if let (Key::IdemKey, Some((user, amount))) = (key, winners.get(&None)) {
            let units = if amount == "1" { COIN } else { 2 * COIN };
            outside[usize::from(*user == USERS[1])] += units;
        }
        for (user, sum) in USERS.into_iter().zip(outside) {
            assert_eq!(server.usdt(user).sum(), sum, "{name}");
        }
    }
    site.wait_for_rest();
    site.assert_in_order(&server);
}
