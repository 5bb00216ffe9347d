//! The news that other processes' rows, commands and suspensions are.

use chain::tx::{NewTx, TxId};
use txm::news::News;
use txm::store::{CommandWish, Suspension, TxStore};
use ubscore::postgres::txm::details::NewCommand;
use ubscore::postgres::txm::reads::TxmReads;

use super::{DEED, Rows, created, owned, request, signer};
use crate::harness::{block_on, eventually};

/// The sessions of nodes that hear.
const EARS: &str = "SELECT pid FROM pg_stat_activity \
                     WHERE datname = current_database() AND query ^@ 'LISTEN'";

fn hears(news: &News) {
    eventually("the listener", || news.is_live().then_some(()));
}

/// Waits until this signer has news.
fn told(news: &News, what: &str) {
    eventually(what, || news.take([signer(1)]).then_some(()));
}

/// Goal: an owner is told at once of work that another process stores. Method: each kind of work by
/// another process.
#[test]
fn rows_commands_and_suspensions_of_other_processes_are_news() {
    let rows = Rows::with_signers(2);
    let (store, other) = (rows.node("a"), rows.node("b"));
    let (lease, news) = (owned(&store), store.news());
    let reads = TxmReads::new(other.pool().clone());
    hears(&news);
    assert!(news.take([]), "earlier news are lost, so that all signers have some");
    assert!(!news.take([signer(1), signer(2)]));

    block_on(other.keep(&request("k1"))).expect("kept");
    told(&news, "a row");
    let tx = created(&store, lease, "r1");
    let command = |tx: Option<TxId>, wish| {
        let command = NewCommand { signer: signer(1), tx, wish, deed: DEED };
        block_on(reads.command(&command)).expect("a command")
    };
    command(Some(tx.id), CommandWish::Cancel);
    told(&news, "a command");
    let resolve = command(Some(tx.id), CommandWish::Resolve { is_paid: true });
    block_on(reads.second(resolve, "op-2")).expect("seconded");
    told(&news, "a second operator");
    let halt = Suspension { reason: "halt/core".to_owned(), actor: "core".to_owned() };
    block_on(reads.suspend(signer(1), &halt, "a halt")).expect("suspended");
    told(&news, "a suspension");
    block_on(reads.resume(signer(1), "halt/core", &DEED)).expect("lifted");
    told(&news, "its end");

    // The owner's own rows, and those of a signer without an owner, are told by no notification.
    block_on(store.keep(&request("k2"))).expect("kept");
    let second = NewTx { signer: signer(2), ..request("k3") };
    block_on(other.keep(&second)).expect("kept");
    // A later one is heard, so an earlier one would have been.
    block_on(other.keep(&request("k4"))).expect("kept");
    eventually("a row", || {
        let is_second = news.take([signer(2)]);
        assert!(!is_second);
        let known = block_on(store.arrived(&[lease], &[])).expect("an answer");
        (known.txs.len() == 3).then_some(())
    });
}

/// Goal: if the connection of a listener is lost, it says so, and hears again.
#[test]
fn a_listener_that_is_cut_off_connects_again() {
    let rows = Rows::new();
    let store = rows.node("a");
    let news = store.news();
    hears(&news);
    assert!(news.take([signer(1)]));
    let ears = rows.column(EARS);
    assert_eq!(ears.len(), 1, "one connection a process: {ears:?}");
    rows.site.sql(&format!("SELECT pg_terminate_backend({})", ears[0]));
    told(&news, "news that may be lost");
    hears(&news);
    let again = rows.column(EARS);
    assert!(again.len() == 1 && again != ears, "{again:?}");
}
