//! Owners that die, stand still, or are cut off: another node goes on, and each payment is one.

use std::sync::Arc;
#[cfg(feature = "crash")]
use std::thread;
#[cfg(feature = "crash")]
use std::time::Duration;

use serde_json::json;
#[cfg(feature = "crash")]
use ubscore::crash::TXM_POINTS;

#[cfg(feature = "crash")]
use super::place::Party;
use super::place::{Place, signers};
use super::{PAYEE, SIGNER};
use crate::harness::{ChainProxy, Lie, Passing, Proxy, SEND, eventually, hex_of};

/// Goal: a killed owner's transactions go on at another node, and an owner that ends in order gives
/// its signer back. Method: SIGKILL, then SIGTERM, with a transaction on the way each time.
/// Ids: LSE-005, LSE-006.
#[test]
fn lse_005_006_the_end_of_an_owner_is_the_begin_of_another() {
    // However long a take-over lasts: a raised price would be a transaction of its own.
    let place = Place::new(&[("RESUBMIT__BUMP_AFTER", "1000")]);
    let a = place.first_node();
    let first = place.pay(&a, "a-1");
    a.becomes(&first, "TRACKING", Some("PENDING"));
    let token = place.owned_by("txm-a");
    let b = place.node("txm-b", &[]);
    a.kill();
    assert_eq!(place.owned_by("txm-b"), token + 1);
    assert_eq!(place.end(&b, &first)["state"], "CONFIRMED");

    let second = place.pay(&b, "a-2");
    b.becomes(&second, "TRACKING", Some("PENDING"));
    b.stop();
    let free = "SELECT expires_at = '-infinity' FROM txm.signer_lease";
    assert_eq!(place.site.sql_value(free), "t", "given back before its end");
    let c = place.node("txm-c", &[]);
    assert_eq!(place.owned_by("txm-c"), token + 2);
    assert_eq!(place.end(&c, &second)["state"], "CONFIRMED");
    assert_eq!(place.sent().len(), 2, "no third transaction was signed");
}

/// Goal: a process that is started again is a stranger to its paused predecessor. Method: the owner
/// stands still; a node of its name takes the signer, and pays; the first one wakes.
#[test]
fn lse_007_a_restarted_node_is_a_stranger_to_its_paused_self() {
    let place = Place::new(&[]);
    let paused = place.first_node();
    let first = place.pay(&paused, "a-1");
    paused.becomes(&first, "TRACKING", Some("PENDING"));
    let token = place.owned_by("txm-a");
    let owner = || place.site.sql_value("SELECT owner_incarnation FROM txm.signer_lease");
    let before = owner();
    paused.pause();
    let again = place.node("txm-a", &[]);
    eventually("a take-over", || (place.token() == token + 1).then_some(()));
    assert_ne!(owner(), before);
    let second = place.pay(&again, "a-2");
    again.becomes(&second, "TRACKING", Some("PENDING"));
    paused.wake();
    let third = place.pay(&paused, "a-3");
    for id in [&first, &second, &third] {
        assert_eq!(place.end(&again, id)["state"], "CONFIRMED");
        assert_eq!(paused.row(id)["state"], "CONFIRMED");
    }
    assert_eq!(place.token(), token + 1, "it was not taken back");
    assert_eq!(place.chain.nonce(SIGNER), 3);
}

/// Goal: an owner that is cut off from PostgreSQL, from the chain, or from both is followed by one
/// that is not, and its number of signers without an owner is unknown. Method: two nodes with ways
/// of their own; each way is cut while a transaction is under way.
#[test]
fn lse_008_an_owner_that_is_cut_off_is_followed() {
    let place = Place::new(&[("RELEASE_BLIND_MS", "1000"), ("SHUTDOWN_TIMEOUT_MS", "500")]);
    let (ways_a, ways_b) = (way(&place), way(&place));
    let start = |name: &str, (postgres, chain): &(Proxy, Arc<ChainProxy>)| {
        let url = chain.url();
        place.node(name, &[("POSTGRES_URL", &postgres.url), ("CHAIN__RPC_URLS", &url)])
    };
    let a = start("txm-a", &ways_a);
    place.add(&a, SIGNER);
    let first = place.pay(&a, "a-1");
    a.becomes(&first, "TRACKING", Some("PENDING"));
    let token = place.owned_by("txm-a");
    let b = start("txm-b", &ways_b);
    let mine = |node: &super::place::Party, id: &str| {
        let row = node.until(id, "its end", |row| {
            place.chain.mine(1);
            row["final"] == json!(true)
        });
        assert_eq!(row["state"], "CONFIRMED");
    };

    ways_a.0.refuse();
    assert_eq!(place.owned_by("txm-b"), token + 1, "A has no PostgreSQL");
    mine(&b, &first);
    let unowned = || a.metric("ubscore_signers_unowned");
    eventually("a number that is not known", || unowned().is_nan().then_some(()));
    ways_a.0.come_back();
    eventually("a number", || (!unowned().is_nan()).then_some(()));

    let second = place.pay(&b, "a-2");
    b.becomes(&second, "TRACKING", Some("PENDING"));
    ways_b.1.refuse();
    assert_eq!(place.owned_by("txm-a"), token + 2, "B has no chain");
    mine(&a, &second);
    ways_b.1.come_back();

    let third = place.pay(&a, "a-3");
    a.becomes(&third, "TRACKING", Some("PENDING"));
    ways_a.0.refuse();
    ways_a.1.refuse();
    assert_eq!(place.owned_by("txm-b"), token + 3, "A has neither");
    mine(&b, &third);
    assert_eq!(place.chain.nonce(SIGNER), 3);
}

/// A way to PostgreSQL and one to the chain.
fn way(place: &Place) -> (Proxy, Arc<ChainProxy>) {
    (Proxy::start(&place.site, |_, _| Passing::All), place.endpoint(&place.chain))
}

/// Goal: nodes share signers evenly, a new one gets its share, and no signer has two owners.
/// Method: twelve signers with a transaction each on two nodes, then on three, then on four.
#[test]
fn lse_012_shares_of_signers_are_even() {
    let signers = signers();
    assert_eq!(signers.len(), 12);
    let place = Place::with_signers(signers.len(), &[("RESUBMIT__INTERVAL_MS", "60000")]);
    let mut nodes = vec![place.node("txm-a", &[]), place.node("txm-b", &[])];
    for signer in &signers {
        place.add(&nodes[0], *signer);
        let mut payment = place.payment("a-1");
        payment["signer"] = json!(hex_of(signer));
        assert_eq!(nodes[0].post("/api/v1/tx", &payment).status, 202);
    }
    let shares = || -> Vec<String> {
        let asked = "SELECT count(*) FROM txm.signer_lease WHERE expires_at > clock_timestamp() \
                     GROUP BY owner_node ORDER BY 1";
        place.site.sql(asked).into_iter().flatten().collect()
    };
    eventually("two shares", || (shares() == ["6", "6"]).then_some(()));
    nodes.push(place.node("txm-c", &[]));
    eventually("three shares", || (shares() == ["4", "4", "4"]).then_some(()));
    nodes.push(place.node("txm-d", &[]));
    eventually("four shares", || (shares() == ["3", "3", "3", "3"]).then_some(()));
    eventually("each payment in the pool", || {
        signers.iter().all(|signer| place.chain.pending_nonce(*signer) == 1).then_some(())
    });
    place.chain.mine(3);
    let ended = "SELECT count(*) FROM txm.managed_tx WHERE state = 40";
    eventually("twelve ends", || (place.site.sql_value(ended) == "12").then_some(()));
    for node in nodes {
        assert!(node.words().matches("fenced").count() == 0, "{}", node.words());
    }
}

/// Goal: doubled sends, and sends of a superseded owner that arrive when all is over, pay once.
/// Method: each send is delivered twice; the owner's second send hangs on the way, the owner is
/// killed, its successor ends the transaction, and the old send arrives.
#[test]
fn sub_017_doubled_and_late_sends_pay_once() {
    let place = Place::new(&[]);
    let late = place.endpoint(&place.chain);
    let a = place.node("txm-a", &[("CHAIN__RPC_URLS", &late.url())]);
    place.add(&a, SIGNER);
    late.lie_times(1, SEND, Lie::Double);
    let first = place.pay(&a, "a-1");
    a.becomes(&first, "TRACKING", Some("PENDING"));
    place.chain.mine(1);
    late.honest();
    late.lie(SEND, Lie::Delay);
    let second = place.pay(&a, "a-2");
    eventually("a send on its way", || (late.waiting() > 0).then_some(()));
    a.kill();
    let b = place.node("txm-b", &[]);
    assert_eq!(place.end(&b, &second)["state"], "CONFIRMED");
    late.release();
    eventually("its arrival", || (late.waiting() == 0).then_some(()));
    assert_eq!(place.end(&b, &first)["state"], "CONFIRMED");
    place.chain.mine(1);
    assert_eq!((place.chain.nonce(SIGNER), place.chain.pending_nonce(SIGNER)), (2, 2));
    let hashes = late.sent();
    assert!(hashes.iter().any(|sent| sent.hash.to_string() == b.row(&second)["txHash"]));
    assert_ne!(place.chain.balance(PAYEE), place.chain.balance(SIGNER));
}

/// The deed at a crash point.
#[cfg(feature = "crash")]
#[derive(Clone, Copy, PartialEq, Eq)]
enum Deed {
    Kill,
    Stop,
}

/// The owner of a fresh payment reaches the point: the process, and the payment.
#[cfg(feature = "crash")]
fn reach(place: &Place, point: &str, deed: Deed) -> (Party, String) {
    let armed = match deed {
        Deed::Kill => point.to_owned(),
        Deed::Stop => format!("{point}=stop"),
    };
    let mut a = place.node("txm-a", &[("UBSCORE_CRASH", &armed)]);
    if place.site.sql_value("SELECT count(*) FROM txm.signers") == "0" {
        place.add(&a, SIGNER);
    }
    // It may end or stand still before its answer; the row is found by its key.
    a.post_unheard("/api/v1/tx", place.payment(point));
    let mines = ["txm_after_receipt", "txm_before_final"].contains(&point);
    eventually(point, || {
        let is_there = match deed {
            Deed::Kill => a.has_ended(),
            Deed::Stop => a.is_paused(),
        };
        if mines && !is_there {
            place.chain.mine(1);
            thread::sleep(Duration::from_millis(50));
        }
        is_there.then_some(())
    });
    let named = format!(
        "SELECT coalesce(max(tx_id::text), '') FROM txm.managed_tx WHERE request_id = '{point}'"
    );
    let id = place.site.sql_value(&named);
    (a, id)
}

/// Goal: an owner that stands still at any point is fenced, and the payment is one. Method:
/// SIGSTOP at each point; another node finishes; SIGCONT.
/// Ids: LSE-003, LSE-004.
#[cfg(feature = "crash")]
#[test]
fn lse_003_004_an_owner_that_stands_still_at_any_point_is_fenced() {
    let place = Place::new(&[("RESUBMIT__BUMP_AFTER", "1")]);
    let mut fenced = 0.0;
    for point in TXM_POINTS {
        let (a, id) = reach(&place, point, Deed::Stop);
        let token = place.token();
        let b = place.node("txm-b", &[]);
        assert_eq!(place.end(&b, &id)["state"], "CONFIRMED", "{point}");
        assert!(place.token() > token, "{point}");
        let history = b.row(&id)["history"].clone();
        a.wake();
        // It serves again, and has heard of its end.
        a.until(&id, point, |row| row["state"] == json!("CONFIRMED"));
        eventually("an end of its ownership", || {
            let dead = "SELECT owner_node FROM txm.signer_lease";
            (place.site.sql_value(dead) == "txm-b").then_some(())
        });
        place.looks(2);
        assert_eq!(b.row(&id)["history"], history, "{point}");
        // The line follows its count.
        let counted = eventually("as many words as counts", || {
            let counted = a.metric("ubscore_lease_fenced_total");
            ((counted > 0.0) == a.words().contains("fenced:")).then_some(counted)
        });
        fenced += counted;
        a.kill();
        b.stop();
        place.judge();
    }
    assert!(fenced > 0.0, "a write of a superseded owner came to PostgreSQL");
    assert_eq!(place.chain.nonce(SIGNER), TXM_POINTS.len() as u64);
}

/// Goal: nothing unstored ever leaves, and a payment is one. Method: SIGKILL at each point; another
/// node finishes; every raw transaction that ever left is compared with the rows.
#[cfg(feature = "crash")]
#[test]
fn sub_014_nothing_unstored_leaves_at_any_point() {
    let place = Place::new(&[("RESUBMIT__BUMP_AFTER", "1")]);
    for point in TXM_POINTS {
        let (a, id) = reach(&place, point, Deed::Kill);
        drop(a);
        let b = place.node("txm-b", &[]);
        let id = if id.is_empty() { place.pay(&b, point) } else { id };
        assert_eq!(place.end(&b, &id)["state"], "CONFIRMED", "{point}");
        b.stop();
        place.judge();
    }
    assert_eq!(place.chain.nonce(SIGNER), TXM_POINTS.len() as u64);
}
