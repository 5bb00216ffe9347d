//! CON-001 to CON-004.

use std::slice;

use domain::transfer::{Op, ReqId, State};
use rustix::process::Signal;
use serde_json::json;
use ubscore::postgres::store::{Call, FundingPart, Reply, Sought, Standing, Store, TransitionPath};
use ulid::Ulid;

use super::{
    GIFT, OTHER, SUCCEEDS, USER, after, assert_passed, count_of, funding_operations, impatient,
    recorded_operations, start_endowed, start_given, success, wait_for_state,
};
use crate::harness::{
    Balance, COIN, LIMITS, Site, Way, assert_refused, block_on, crowd, database, eventually,
    external, store_over, while_watched,
};

/// Goal: of many workers that hold the same transfer in the same state, one moves it. Method: a
/// transfer rests in TARGET_PENDING and its process is dead; eight stores of one incarnation take
/// the next step of its worker at once, each until it is answered.
#[test]
fn con_001_of_many_workers_on_one_transfer_one_moves_it() {
    let site = impatient(false);
    let server = start_endowed(&site);
    let before = server.usdt(USER);
    let hold = site.hold_decision(Op::Deposit);
    let req_id = server.transfer_held(&site, USER, Way::ToFunding, "12");
    wait_for_state(&site, &req_id, "30");
    server.kill();
    site.cut_connections();
    hold.release();
    let incarnation = site.begin(&LIMITS, 1).number;
    let standing = Standing { durable: 0, open_from: 0 };
    let name = ReqId::new(req_id.parse::<Ulid>().expect("a ULID").0).expect("not zero");
    let answer = |call: Call| {
        let journal = database(&site.target(), LIMITS, incarnation, 0);
        let mut store = store_over(journal, incarnation, 4);
        eventually("an answer", || {
            let commit = store.commit(standing, slice::from_ref(&call));
            block_on(commit).ok().and_then(|mut replies| replies.pop())
        })
    };
    let found = answer(Call::Find(Sought::ReqId(name)));
    let Reply::Found(Some(transfer)) = found else { panic!("{found:?}") };
    assert_eq!(transfer.state, State::TargetPending);
    let funding = FundingPart {
        op: Op::Deposit,
        on_success: vec![State::Committed],
        on_refused: vec![State::Compensating],
        refuse: false,
    };
    let transition = TransitionPath { path: Vec::new(), funding: Some(funding) };
    let step = Call::Step { transfer, transition, code: None, log_sequence: None, attempt: 0 };
    let seen = crowd(8, |_| match answer(step.clone()) {
        Reply::Transfer(transfer) => transfer.state,
        reply => panic!("{reply:?}"),
    });
    assert_eq!(seen, [State::Committed; 8], "each gets the current state");
    assert_eq!(site.commits(&req_id), ["0", "10", "20", "30", "40"], "one has moved it");
    assert_eq!(funding_operations(&site, &req_id), ["2:1"]);
    let server = site.start();
    assert_passed(&server, USER, &req_id, &SUCCEEDS);
    assert_eq!(server.usdt(USER), after(before, Way::ToFunding, 12 * COIN));
    site.assert_verified();
}

/// Goal: of two processes that hold the same transfer, one moves it. Method: a process is stopped
/// while its deposit waits for a lock, and is taken for dead; its successor ends the transfer from
/// a copy of the log; then the first one continues.
#[test]
fn con_001_a_process_that_comes_back_to_its_transfer_moves_nothing() {
    for fuse in [true, false] {
        let site = impatient(fuse);
        let mut old = start_endowed(&site);
        let before = old.usdt(USER);
        let hold = site.hold_decision(Op::Deposit);
        let req_id = old.transfer_held(&site, USER, Way::ToFunding, "12");
        site.wait_for_held();
        old.signal(Signal::STOP);
        let successor = site.with_fresh_data_dir();
        site.copy_data(&successor);
        hold.release();
        let new = successor.start();
        successor.wait_for_rest();
        old.signal(Signal::CONT);
        let (status, said) = old.wait();
        assert!(!status.success() && said.contains("superseded"), "{status}: {said}");
        assert_passed(&new, USER, &req_id, &SUCCEEDS);
        assert_eq!(funding_operations(&site, &req_id), ["2:1"]);
        assert_eq!(recorded_operations(&successor, &req_id), [success("WITHDRAW")]);
        assert_eq!(new.usdt(USER), after(before, Way::ToFunding, 12 * COIN));
        successor.assert_in_order(&new);
    }
}

#[test]
fn con_002_two_equal_transfers_at_once_are_two_transfers() {
    for fuse in [true, false] {
        let site = Site::fused(fuse);
        let server = start_endowed(&site);
        for way in Way::BOTH {
            let before = server.usdt(USER);
            let replies = crowd(2, |_| server.transfer(USER, way, "7.5"));
            assert_eq!(count_of(&replies, 200), 2, "{replies:?}");
            assert_ne!(replies[0].req_id(), replies[1].req_id());
            site.wait_for_rest();
            for reply in &replies {
                assert_passed(&server, USER, &reply.req_id(), &SUCCEEDS);
            }
            assert_eq!(server.usdt(USER), after(before, way, 15 * COIN));
        }
        site.assert_in_order(&server);
    }
}

/// Goal: a transfer and a withdrawal to the outside never spend the same money. Method: both at
/// once, each of more than half of the balance, for two users with and without a shared worker.
#[test]
fn con_003_a_transfer_and_an_external_withdrawal_share_one_balance() {
    for fuse in [true, false] {
        let site = Site::fused(fuse);
        let server = start_endowed(&site);
        for user in [USER, OTHER] {
            let replies = crowd(2, |index| match index {
                0 => server.transfer(user, Way::ToSpot, "6000"),
                _ => {
                    let body = external(user, "USDT", "6000", &format!("out-{user}"));
                    server.admin("POST", "/admin/v1/withdrawals", &body)
                }
            });
            let moved = replies[0].status == 200;
            let withdrawn = replies[1].json()["outcome"] == json!("SUCCESS");
            assert_eq!(replies[1].status, 200, "{replies:?}");
            assert!(moved != withdrawn, "one of them: {replies:?}");
            match moved {
                true => {
                    let code = &replies[1].json()["code"];
                    assert_eq!(code, &json!("INSUFFICIENT_BALANCE"), "{replies:?}");
                    assert_eq!(server.usdt(user), Balance::at_rest(3_950 * COIN, 6_050 * COIN));
                }
                false => {
                    assert_refused(&replies[0], 422, "INSUFFICIENT_BALANCE");
                    assert_eq!(server.usdt(user), Balance::at_rest(3_950 * COIN, 50 * COIN));
                }
            }
        }
        site.wait_for_rest();
        site.assert_in_order(&server);
    }
}

/// Goal: no read between check and deduction lets the same money go twice. Method: thirty transfers
/// at once, each of a tenth, while other threads read the balance; ten succeed, and every read has
/// the exact sum.
#[test]
fn con_004_a_balance_that_is_read_meanwhile_is_deducted_once() {
    for fuse in [true, false] {
        let site = Site::fused(fuse);
        let server = start_given(&site);
        let read = || {
            let balance = server.usdt(USER);
            assert_eq!(balance.sum(), GIFT, "{balance:?}");
        };
        for (way, after) in
            [(Way::ToSpot, Balance::at_rest(0, GIFT)), (Way::ToFunding, Balance::at_rest(GIFT, 0))]
        {
            let replies =
                while_watched(2, read, || crowd(30, |_| server.transfer(USER, way, "1000")));
            let count = |status| count_of(&replies, status);
            assert_eq!((count(200), count(422)), (10, 20), "{replies:?}");
            site.wait_for_rest();
            assert_eq!(server.usdt(USER), after);
        }
        site.assert_in_order(&server);
    }
}
