//! IDP-001 to IDP-004: through the adapters alone over real stores, and through recovery.

use domain::transfer::Op;
use serde_json::json;
use ubscore::adapters::spot::Spot;
use ubscore::adapters::{Adapter, Ask, Outcome};

use super::{
    SUCCEEDS, USER, after, assert_passed, funding_operations, impatient, recorded_operations,
    start_endowed, stored_state, success,
};
use crate::harness::{COIN, Site, Way, block_on, crowd};
use crate::layers::{ask, ask_funding, engine, funding, outcome};

/// The transfer of the adapter tests; 4 USDT.
const REQ_ID: u128 = 1;
/// Another transfer, which brings the money.
const BEFORE: u128 = 2;

/// Asks for an operation of one transfer twice, and then four times at once: it succeeds each time.
fn repeat(adapter: &impl Adapter, ask: &Ask) {
    for _ in 0..2 {
        assert_eq!(outcome(adapter, ask.clone()), Outcome::Success);
    }
    assert_eq!(crowd(4, |_| outcome(adapter, ask.clone())), [Outcome::Success; 4]);
}

fn funding_balance(site: &Site) -> String {
    site.sql_value("SELECT available FROM balances")
}

fn spot_balance(spot: &Spot) -> Option<u128> {
    let intent = ask(Op::Deposit, BEFORE).intent;
    block_on(spot.balance(intent.user, intent.asset)).expect("answered").available
}

#[test]
fn idp_001_a_withdraw_called_twice_deducts_once() {
    let site = Site::new();
    let (funding, _) = funding(&site);
    repeat(&funding, &ask_funding(&site, Op::Withdraw, REQ_ID));
    assert_eq!(funding_balance(&site), "6");

    let (engine, spot) = engine(&site);
    assert_eq!(outcome(&spot, ask(Op::Deposit, BEFORE)), Outcome::Success);
    repeat(&spot, &ask(Op::Withdraw, REQ_ID));
    assert_eq!(spot_balance(&spot), Some(0));
    drop(spot);
    engine.stop();
}

#[test]
fn idp_002_a_deposit_called_twice_credits_once() {
    let site = Site::new();
    let (funding, _) = funding(&site);
    repeat(&funding, &ask_funding(&site, Op::Deposit, REQ_ID));
    assert_eq!(funding_balance(&site), "14");

    let (engine, spot) = engine(&site);
    repeat(&spot, &ask(Op::Deposit, REQ_ID));
    assert_eq!(spot_balance(&spot), Some(4 * COIN));
    drop(spot);
    engine.stop();
}

/// The refund has the name of its withdraw, and is not a repeat of it.
#[test]
fn idp_003_a_refund_called_twice_credits_once() {
    let site = Site::new();
    let (funding, _) = funding(&site);
    assert_eq!(outcome(&funding, ask_funding(&site, Op::Withdraw, REQ_ID)), Outcome::Success);
    repeat(&funding, &ask_funding(&site, Op::Refund, REQ_ID));
    assert_eq!(funding_balance(&site), "10");

    let (engine, spot) = engine(&site);
    assert_eq!(outcome(&spot, ask(Op::Deposit, BEFORE)), Outcome::Success);
    assert_eq!(outcome(&spot, ask(Op::Withdraw, REQ_ID)), Outcome::Success);
    repeat(&spot, &ask(Op::Refund, REQ_ID));
    assert_eq!(spot_balance(&spot), Some(4 * COIN));
    drop(spot);
    engine.stop();
}

/// Goal: for any number of recoveries, a transfer happens once. Method: PostgreSQL does not accept
/// the last state; SIGKILL and start, three times, each of which asks the participant again; then
/// the state is accepted.
#[test]
fn idp_004_many_recoveries_are_one_transfer() {
    for fuse in [true, false] {
        for way in Way::BOTH {
            let site = impatient(fuse);
            let mut server = start_endowed(&site);
            let before = server.usdt(USER);
            let hold = site.hold("UPDATE OF state ON transfers_tb", "NEW.state = 40");
            let body = way.body_with_cid("USDT", "12", "recovered");
            let req_id = server.post(USER, &body).req_id();
            for _ in 0..3 {
                site.wait_for_held();
                assert_ne!(stored_state(&site, &req_id), "40");
                server.kill();
                site.cut_connections();
                server = site.start();
                assert_eq!(server.usdt(USER).sum(), before.sum());
            }
            hold.release();
            site.wait_for_rest();
            let (funding, spot) = match way {
                Way::ToSpot => ("1:1", "DEPOSIT"),
                Way::ToFunding => ("2:1", "WITHDRAW"),
            };
            assert_passed(&server, USER, &req_id, &SUCCEEDS);
            assert_eq!(funding_operations(&site, &req_id), [funding]);
            assert_eq!(recorded_operations(&site, &req_id), [success(spot)]);
            let again = server.post(USER, &body);
            assert_eq!((again.status, &again.json()["state"]), (200, &json!("COMMITTED")));
            assert_eq!(again.req_id(), req_id);
            assert_eq!(server.usdt(USER), after(before, way, 12 * COIN));
            site.assert_in_order(&server);
        }
    }
}
