//! Nodes on one model of the store, with a clock that tokio drives: leases, shares, take-overs.

mod crowd;
mod payments;

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use alloy_primitives::{B256, Bytes, U256};
use chain::payload::TxPayload;
use chain::state::TxState;
use chain::tx::{NewTx, SubState, Tx, TxId};
use chain::view::BlockRef;
use futures_util::task::AtomicWaker;
use tokio::task::JoinHandle;
use tokio::time::{Duration, Instant, sleep, timeout};
use uuid::Uuid;

use super::*;
use crate::model::store::{CommandEnd, ModelDatabase, ModelStore, StoreCall, StoreFault};
use crate::refusal::TxRefusal;
use crate::rpc::{Block, BlockAt, RpcCall, RpcError, RpcValue};
use crate::signer::{SignError, SignedBytes, Unsigned};
use crate::store::{BOOK_UNNUMBERED_MAX, CommandWish, Created, OtherOwner, TxStore as _};

/// A chain that stands still: accounts are rich, and nothing was ever sent.
#[derive(Clone, Default)]
struct Still {
    is_away: Arc<AtomicBool>,
}

fn block(number: u64) -> Block {
    let hash = |number| B256::with_last_byte(u8::try_from(number).expect("a low block"));
    let at = BlockRef { number, hash: hash(number), parent: hash(number.saturating_sub(1)) };
    Block { at, base_fee: 1_000_000_000 }
}

impl Endpoint for Still {
    fn name(&self) -> &str {
        "still"
    }

    async fn calls(&self, calls: &[RpcCall]) -> Vec<Result<RpcValue, RpcError>> {
        let answer = |call: &RpcCall| match call {
            _ if self.is_away.load(Ordering::Relaxed) => Err(RpcError::Unknown("away".to_owned())),
            RpcCall::ChainId => Ok(RpcValue::Number(31_337)),
            RpcCall::Block(BlockAt::Latest) => Ok(RpcValue::Block(Some(block(100)))),
            RpcCall::Block(BlockAt::Number(number)) => {
                Ok(RpcValue::Block(Some(block(*number)).filter(|_| *number <= 100)))
            }
            RpcCall::Block(BlockAt::Hash(hash)) => {
                Ok(RpcValue::Block(Some(block(u64::from(hash.0[31])))))
            }
            RpcCall::Block(_) => Ok(RpcValue::Block(Some(block(90)))),
            RpcCall::Count(..) | RpcCall::CodeLength(_) => Ok(RpcValue::Number(0)),
            RpcCall::Estimate { .. } => Ok(RpcValue::Number(21_000)),
            RpcCall::Send(_) => Err(RpcError::Unknown("nothing is sent".to_owned())),
            RpcCall::Receipt(_) => Ok(RpcValue::Receipt(None)),
            RpcCall::Transaction(_) | RpcCall::BySenderAndNonce(..) => {
                Ok(RpcValue::Transaction(None))
            }
            RpcCall::Raw(_) => Ok(RpcValue::Raw(None)),
            RpcCall::Balance(_) | RpcCall::TokenBalance { .. } => {
                Ok(RpcValue::Amount(U256::from(10).pow(U256::from(24))))
            }
            RpcCall::Tip => Ok(RpcValue::Amount(U256::from(1_000_000_000))),
        };
        calls.iter().map(answer).collect()
    }
}

/// Keys that never sign, so that rows stay open.
#[derive(Clone)]
struct Mute(Vec<Address>);

impl Signer for Mute {
    fn addresses(&self) -> Vec<Address> {
        self.0.clone()
    }

    async fn sign(&self, _: &Unsigned) -> Result<SignedBytes, SignError> {
        Err(SignError::Away("mute".to_owned()))
    }
}

/// Whether a process runs. A paused one is not polled, as behind SIGSTOP.
#[derive(Default)]
struct Gate {
    is_paused: AtomicBool,
    waker: AtomicWaker,
}

struct Process<F> {
    gate: Arc<Gate>,
    run: Pin<Box<F>>,
}

impl<F: Future<Output = ()>> Future for Process<F> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        self.gate.waker.register(context.waker());
        if self.gate.is_paused.load(Ordering::Acquire) {
            return Poll::Pending;
        }
        self.run.as_mut().poll(context)
    }
}

/// A node that runs.
struct Running<E, K> {
    desk: Desk<ModelStore, E, K>,
    store: ModelStore,
    gate: Arc<Gate>,
    stop: Arc<Notify>,
    task: JoinHandle<()>,
}

/// Starts a node on a chain that stands still, with keys that are mute.
fn start(database: &ModelDatabase, name: &str, keys: &[Address]) -> Running<Still, Mute> {
    let options = crate::model::options();
    Running::start(database, name, vec![Still::default()], Mute(keys.to_vec()), options)
}

impl<E: Endpoint, K: Signer> Running<E, K> {
    fn start(
        database: &ModelDatabase,
        name: &str,
        endpoints: Vec<E>,
        keys: K,
        options: TxmOptions,
    ) -> Running<E, K> {
        let store = database.start(name);
        let pool = Pool::new(endpoints, &options);
        let policy = SignerPolicy {
            is_native_allowed: true,
            tokens: Vec::new(),
            is_any_allowed: false,
            outflow_per_hour_max: Vec::new(),
        };
        let policies = keys.addresses().into_iter().map(|key| (key, policy.clone())).collect();
        let (node, desk) =
            Node::start(store.clone(), pool, keys, options, policies, name.to_owned());
        let (gate, stop) = (Arc::new(Gate::default()), Arc::new(Notify::new()));
        let stopped = Arc::clone(&stop);
        let run = Box::pin(node.run(async move { stopped.notified().await }));
        let task = tokio::spawn(Process { gate: Arc::clone(&gate), run });
        Running { desk, store, gate, stop, task }
    }

    fn pause(&self, is_paused: bool) {
        self.gate.is_paused.store(is_paused, Ordering::Release);
        self.gate.waker.wake();
    }

    /// Kills it: its futures are dropped where they are.
    async fn kill(self) {
        self.task.abort();
        drop(self.task.await);
    }

    async fn stop(self) {
        self.stop.notify_one();
        self.task.await.expect("it ends");
    }
}

fn key(number: u8) -> Address {
    Address::repeat_byte(number)
}

fn database(signers: u8) -> (ModelDatabase, Vec<Address>) {
    let options = crate::model::options();
    let database = ModelDatabase::new(options.lease_duration, options.lease_skew);
    database.admit_any_bytes();
    let keys: Vec<Address> = (1..=signers).map(key).collect();
    for key in &keys {
        database.add_signer(*key, 0);
    }
    (database, keys)
}

fn request(signer: Address, id: &str) -> NewTx {
    NewTx {
        signer,
        request_id: id.to_owned(),
        business_key: Some(format!("{signer}/{id}")),
        payload: TxPayload {
            to: key(200),
            value: U256::from(7),
            data: Bytes::new(),
            token: None,
            gas: None,
        },
        gas: None,
        deadline_ms: None,
    }
}

/// A client: it repeats the same request at one node behind the other, until one answers.
async fn post<E: Endpoint, K: Signer>(desks: &[Desk<ModelStore, E, K>], request: NewTx) -> Box<Tx> {
    for desk in desks.iter().cycle() {
        match desk.create(request.clone(), false).await {
            Ok(Created::New(tx) | Created::Known(tx)) => return tx,
            Ok(Created::Conflict(fields)) => panic!("{fields:?}"),
            Err(TxRefusal::NotLeader(_) | TxRefusal::Away(_)) => {
                sleep(Duration::from_millis(50)).await;
            }
            Err(refusal) => panic!("{refusal}"),
        }
    }
    unreachable!("it repeats for ever")
}

/// Waits for a condition of the database, at most an hour of the model's clock.
async fn eventually(what: &str, holds: impl Fn() -> bool) {
    let waits = async {
        while !holds() {
            sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(Duration::from_secs(3_600), waits).await.unwrap_or_else(|_| panic!("never: {what}"));
}

fn desks<E: Endpoint, K: Signer>(nodes: &[Running<E, K>]) -> Vec<Desk<ModelStore, E, K>> {
    nodes.iter().map(|node| node.desk.clone()).collect()
}

/// How many signers each process of these owns.
fn shares(database: &ModelDatabase, keys: &[Address], nodes: &[&str]) -> Vec<usize> {
    let owners: Vec<String> =
        keys.iter().filter_map(|key| database.owner(*key)).map(|owner| owner.0).collect();
    nodes.iter().map(|node| owners.iter().filter(|owner| owner == node).count()).collect()
}

/// NON-001 in the model: one signer, 1,000 concurrent creates over three nodes.
#[tokio::test(start_paused = true)]
async fn creates_over_three_nodes_have_rising_nonces_without_a_hole() {
    let (database, keys) = database(1);
    let nodes = ["a", "b", "c"].map(|name| start(&database, name, &keys));
    let desks = desks(&nodes);
    let posts = (0..1_000_usize).map(|number| {
        let mut desks = desks.clone();
        desks.rotate_left(number % 3);
        let request = request(keys[0], &number.to_string());
        tokio::spawn(async move { post(&desks, request).await })
    });
    let mut nonces = Vec::new();
    for task in posts.collect::<Vec<_>>() {
        nonces.push(task.await.expect("an answer").nonce.expect("a nonce"));
    }
    nonces.sort_unstable();
    assert_eq!(nonces, (0..1_000).collect::<Vec<u64>>());
    assert_eq!(database.token(keys[0]), 1, "one owner throughout");
    database.check();
}

/// NON-002 and NON-003 in the model: one row for 100 times the same request, and a conflict for
/// another body.
#[tokio::test(start_paused = true)]
async fn the_same_request_has_one_row_and_another_body_is_refused() {
    let (database, keys) = database(1);
    let nodes = ["a", "b", "c"].map(|name| start(&database, name, &keys));
    let desks = desks(&nodes);
    let posts = (0..100_usize).map(|number| {
        let mut desks = desks.clone();
        desks.rotate_left(number % 3);
        let request = request(keys[0], "same");
        tokio::spawn(async move { post(&desks, request).await.id })
    });
    for task in posts.collect::<Vec<_>>() {
        assert_eq!(task.await.expect("an answer"), database.rows()[0].id);
    }
    assert_eq!(database.rows().len(), 1);
    let mut other = request(keys[0], "same");
    other.payload.value = U256::from(8);
    for desk in &desks {
        for later in [false, true] {
            let answer = desk.create(other.clone(), later).await;
            assert_eq!(answer, Err(TxRefusal::Duplicate(vec!["value".to_owned()])));
        }
    }
    let reused = NewTx { request_id: "other".to_owned(), ..request(keys[0], "same") };
    let answers = [desks[0].create(reused.clone(), true).await, {
        let owner = desks.iter().find(|desk| !desk.owned().is_empty()).expect("an owner");
        owner.create(reused, false).await
    }];
    for answer in answers {
        assert_eq!(answer, Err(TxRefusal::Duplicate(vec!["businessKey".to_owned()])));
    }
    database.check();
}

/// A signer of another node, an unknown one, and one without a key here.
#[tokio::test(start_paused = true)]
async fn a_request_is_refused_where_its_signer_is_not() {
    let (database, keys) = database(2);
    let a = start(&database, "a", &keys);
    let b = start(&database, "b", &keys[..1]);
    post(std::slice::from_ref(&a.desk), request(keys[0], "1")).await;
    let owner = OtherOwner { node: "a".to_owned(), url: "http://a".to_owned() };
    let not_leader = Err(TxRefusal::NotLeader(owner));
    assert_eq!(b.desk.create(request(keys[0], "2"), false).await, not_leader);
    // A known request is answered anywhere.
    let known = b.desk.create(request(keys[0], "1"), false).await;
    assert!(matches!(known, Ok(Created::Known(_))), "{known:?}");
    // No key here: the node tells the owner, and never acquires.
    assert_eq!(b.desk.create(request(keys[1], "1"), false).await, Err(TxRefusal::no_owner()));
    post(std::slice::from_ref(&a.desk), request(keys[1], "1")).await;
    assert_eq!(b.desk.create(request(keys[1], "2"), false).await, not_leader);
    for later in [false, true] {
        let unknown = b.desk.create(request(key(99), "1"), later).await;
        assert_eq!(unknown, Err(TxRefusal::SignerUnknown));
    }
    let mut call = request(keys[0], "call");
    call.payload.data = Bytes::from_static(&[1]);
    let refused = a.desk.create(call, false).await;
    assert!(matches!(refused, Err(TxRefusal::SignerPolicy(_))), "{refused:?}");
    database.check();
}

/// Rows that come by any node get their nonce from the owner, without a lease at that node.
#[tokio::test(start_paused = true)]
async fn later_rows_get_their_nonce_from_the_owner() {
    let (database, keys) = database(1);
    let a = start(&database, "a", &keys);
    let b = start(&database, "b", &[]);
    let kept = b.desk.create(request(keys[0], "1"), true).await.expect("kept");
    let Created::New(tx) = kept else { panic!("{kept:?}") };
    assert_eq!((tx.nonce, tx.new.gas), (None, None));
    eventually("a nonce", || database.rows()[0].nonce == Some(0)).await;
    // The owner is there now, so a further row waits for one look, and at the owner for none.
    let before = Instant::now();
    b.desk.create(request(keys[0], "2"), true).await.expect("kept");
    eventually("a nonce", || database.rows()[1].nonce == Some(1)).await;
    assert!(before.elapsed() < Duration::from_millis(300), "{:?}", before.elapsed());
    let before = Instant::now();
    a.desk.create(request(keys[0], "3"), true).await.expect("kept");
    eventually("a nonce", || database.rows()[2].nonce == Some(2)).await;
    assert!(before.elapsed() < Duration::from_millis(80), "{:?}", before.elapsed());
    database.check();
}

/// Goal: a row without a nonce that a book has no place for is still known, and is cancelled.
/// Method: a suspended signer with more of them than a book has; a command about no row has it
/// read again.
#[tokio::test(start_paused = true)]
async fn a_cancel_reaches_a_row_that_the_book_has_no_place_for() {
    let (database, keys) = database(1);
    database.suspend(keys[0], "OPERATOR", "admin/7");
    let node = start(&database, "a", &keys);
    for number in 0..BOOK_UNNUMBERED_MAX + 2 {
        node.desk.create(request(keys[0], &number.to_string()), true).await.expect("kept");
    }
    let rows = database.rows();
    let last = rows.iter().map(|tx| tx.id).max().expect("rows");
    let is_told = |tx: &Tx| tx.sub == Some(SubState::Suspended);
    eventually("all are at the owner", || database.rows().iter().all(is_told)).await;
    let cancel = |id| database.command(keys[0], Some(id), CommandWish::Cancel);
    for (id, end) in [
        (TxId(Uuid::nil()), CommandEnd::Refused("it is over".to_owned())),
        (last, CommandEnd::Done),
    ] {
        let command = cancel(id);
        eventually("an end", || database.command_end(command).is_some()).await;
        assert_eq!(database.command_end(command), Some(end));
    }
    let row = database.row(last).expect("it is there");
    assert_eq!((row.state, row.nonce), (TxState::Failed, None));
    database.check();
}

/// Goal: a node that hears news looks when it is told, and seldom otherwise; one that does not hear
/// looks often. Method: a client's rows, told or not.
#[tokio::test(start_paused = true)]
async fn a_row_is_found_at_once_by_its_news_and_soon_without() {
    let (database, keys) = database(2);
    let a = start(&database, "a", &keys);
    let (client, news) = (database.start("client"), a.store.news());
    for key in &keys {
        a.desk.create(request(*key, "0"), false).await.expect("created");
    }
    let found = async |id: &str| {
        client.keep(&request(keys[0], id)).await.expect("kept");
        let (has_news, before) = (id.starts_with("with news"), Instant::now());
        if has_news {
            news.tell(keys[0]);
        }
        let is_numbered = |tx: &Tx| tx.new.request_id == id && tx.nonce.is_some();
        eventually("a nonce", || database.rows().iter().any(is_numbered)).await;
        before.elapsed()
    };
    let soon = Duration::from_millis(300);
    assert!(found("often").await < soon, "nothing is heard");
    news.set_live(true);
    sleep(Duration::from_millis(50)).await;
    assert!(found("with news").await < Duration::from_millis(80));
    let slowly = found("without news").await;
    assert!((Duration::from_secs(1)..Duration::from_secs(6)).contains(&slowly), "{slowly:?}");
    // News of other signers are none.
    let looks = a.store.asked(StoreCall::Arrived);
    news.tell(Address::repeat_byte(0xee));
    sleep(Duration::from_millis(500)).await;
    assert_eq!(a.store.asked(StoreCall::Arrived), looks);
    // More than one look returns: the next look does not wait.
    for number in 0..250 {
        client.keep(&request(keys[1], &format!("many {number}"))).await.expect("kept");
    }
    news.tell(keys[1]);
    let before = Instant::now();
    eventually("nonces", || database.rows().iter().all(|tx| tx.nonce.is_some())).await;
    assert!(before.elapsed() < Duration::from_secs(9), "{:?}", before.elapsed());
    news.set_live(false);
    assert!(found("often again").await < soon);
    database.check();
}

/// Goal: an idle node asks the store less than once a second, with a hundred signers.
#[tokio::test(start_paused = true)]
async fn an_idle_node_asks_the_store_less_than_once_a_second() {
    let (database, keys) = database(100);
    let a = start(&database, "a", &keys);
    for key in &keys {
        a.desk.create(request(*key, "0"), false).await.expect("created");
    }
    assert_eq!(a.desk.owned().len(), 100);
    a.store.news().set_live(true);
    sleep(Duration::from_secs(5)).await;
    let kinds = [StoreCall::Renew, StoreCall::Wanting, StoreCall::Arrived, StoreCall::OwnerOf];
    let asked = || -> usize { kinds.iter().map(|kind| a.store.asked(*kind)).sum() };
    let before = asked();
    sleep(Duration::from_secs(60)).await;
    assert!(asked() - before <= 60, "{} statements in a minute", asked() - before);
}

/// LSE-012 in the model: three nodes, twelve signers; then a fourth node.
#[tokio::test(start_paused = true)]
async fn shares_are_even_and_a_new_node_gets_its_share() {
    let (database, keys) = database(12);
    let kept = database.start("client");
    for key in &keys {
        kept.keep(&request(*key, "1")).await.expect("kept");
    }
    // The client's process is no node for longer than a lease.
    sleep(Duration::from_secs(11)).await;
    let tick = crate::model::options().lease_renew;
    let _nodes = ["a", "b", "c"].map(|name| start(&database, name, &keys));
    sleep(tick * 3).await;
    assert_eq!(shares(&database, &keys, &["a", "b", "c"]), [4, 4, 4]);
    eventually("nonces", || database.rows().iter().all(|tx| tx.nonce.is_some())).await;
    let _fourth = start(&database, "d", &keys);
    sleep(tick * 3).await;
    assert_eq!(shares(&database, &keys, &["a", "b", "c", "d"]), [3, 3, 3, 3]);
    let tokens: Vec<u64> = keys.iter().map(|key| database.token(*key)).collect();
    sleep(tick * 20).await;
    let behind: Vec<u64> = keys.iter().map(|key| database.token(*key)).collect();
    assert_eq!(tokens, behind, "no signer moves without a reason");
    database.check();
}

/// LSE-006 in the model: an orderly end drains, releases, and leaves nothing to wait for.
#[tokio::test(start_paused = true)]
async fn an_orderly_end_hands_over() {
    let (database, keys) = database(2);
    let a = start(&database, "a", &keys);
    let posted = [a.desk.clone()];
    for key in &keys {
        post(&posted, request(*key, "1")).await;
    }
    let b = start(&database, "b", &keys);
    let desk = a.desk.clone();
    let before = Instant::now();
    a.stop().await;
    assert!(before.elapsed() < Duration::from_secs(1), "{:?}", before.elapsed());
    assert!(keys.iter().all(|key| database.owner(*key).is_none()));
    assert_eq!(desk.create(request(keys[0], "2"), false).await, Err(TxRefusal::no_owner()));
    // A request finds the next owner at once.
    post(std::slice::from_ref(&b.desk), request(keys[0], "2")).await;
    assert_eq!(database.owner(keys[0]).expect("an owner").0, "b");
    eventually("both signers", || shares(&database, &keys, &["b"]) == [2]).await;
    database.check();
}

/// LSE-005 in the model: behind a kill another node owns within the lease, the skew, and a tick.
#[tokio::test(start_paused = true)]
async fn a_killed_node_loses_its_signers_when_the_lease_ends() {
    let (database, keys) = database(1);
    let a = start(&database, "a", &keys);
    post(std::slice::from_ref(&a.desk), request(keys[0], "1")).await;
    let b = start(&database, "b", &keys);
    sleep(Duration::from_secs(30)).await;
    assert_eq!(database.owner(keys[0]).expect("an owner").0, "a");
    let before = Instant::now();
    a.kill().await;
    post(std::slice::from_ref(&b.desk), request(keys[0], "2")).await;
    let options = crate::model::options();
    assert!(before.elapsed() <= options.lease_duration + options.lease_skew * 2);
    assert_eq!(database.owner(keys[0]).map(|owner| owner.2), Some(2));
    // The same name again is a stranger to its predecessor.
    let again = start(&database, "a", &keys);
    let answer = again.desk.create(request(keys[0], "3"), false).await;
    assert!(matches!(answer, Err(TxRefusal::NotLeader(_))), "{answer:?}");
    database.check();
}

/// A lease that ends is looked for at its end, and not at the next tick.
#[tokio::test(start_paused = true)]
async fn the_end_of_a_lease_is_seen_at_once() {
    let (database, keys) = database(1);
    let a = start(&database, "a", &keys);
    post(std::slice::from_ref(&a.desk), request(keys[0], "1")).await;
    let b = start(&database, "b", &keys);
    let options = crate::model::options();
    sleep(options.lease_renew * 10 + options.lease_renew / 6).await;
    assert_eq!(database.owner(keys[0]).expect("an owner").0, "a");
    a.kill().await;
    sleep(options.lease_duration + options.lease_skew + Duration::from_millis(20)).await;
    assert_eq!(database.owner(keys[0]).expect("an owner").0, "b");
    drop(b);
    database.check();
}

/// The signers of a node that ends are taken at once, also those beyond the share of a node before.
#[tokio::test(start_paused = true)]
async fn the_signers_of_a_node_that_ends_are_taken_at_once() {
    let (database, keys) = database(12);
    let a = start(&database, "a", &keys);
    for key in &keys {
        post(std::slice::from_ref(&a.desk), request(*key, "1")).await;
    }
    let b = start(&database, "b", &keys);
    eventually("even shares", || shares(&database, &keys, &["a", "b"]) == [6, 6]).await;
    a.stop().await;
    b.store.news().tell_freed();
    sleep(crate::model::options().lease_renew / 10).await;
    assert_eq!(shares(&database, &keys, &["a", "b"]), [0, 12]);
    database.check();
}

/// LSE-003 and LSE-004 in the model: a paused owner wakes up behind its successor.
#[tokio::test(start_paused = true)]
async fn a_paused_owner_changes_nothing_when_it_wakes() {
    for polls in 0..40_u64 {
        let (database, keys) = database(1);
        let a = start(&database, "a", &keys);
        let b = start(&database, "b", &keys);
        a.store.delay(Duration::from_millis(1));
        post(std::slice::from_ref(&a.desk), request(keys[0], "1")).await;
        // Paused at some instant of the creates that follow.
        let (desk, signer) = (a.desk.clone(), keys[0]);
        let cut = tokio::spawn(async move { post(&[desk], request(signer, "2")).await });
        sleep(Duration::from_micros(200 * polls)).await;
        a.pause(true);
        post(std::slice::from_ref(&b.desk), request(keys[0], "3")).await;
        let (owner, _, token) = database.owner(keys[0]).expect("an owner");
        assert_eq!((owner.as_str(), token), ("b", 2));
        a.pause(false);
        sleep(Duration::from_secs(5)).await;
        cut.abort();
        drop(cut.await);
        assert_eq!(a.desk.owned(), []);
        assert_eq!(database.owner(keys[0]).expect("an owner").0, "b");
        let found = post(&[a.desk.clone(), b.desk.clone()], request(keys[0], "2")).await;
        assert!(found.nonce.expect("a nonce") <= 2);
        assert_eq!(database.rows().len(), 3, "paused behind {polls}");
        database.check();
    }
}

/// LSE-008 in the model: cut off from the store, and from the chain.
#[tokio::test(start_paused = true)]
async fn a_node_that_is_cut_off_loses_or_gives_its_signers() {
    let (database, keys) = database(1);
    let a = start(&database, "a", &keys);
    post(std::slice::from_ref(&a.desk), request(keys[0], "1")).await;
    let chain = Still::default();
    let (mute, options) = (Mute(keys.clone()), crate::model::options());
    let b = Running::start(&database, "b", vec![chain.clone()], mute, options);
    a.store.cut(true);
    post(std::slice::from_ref(&b.desk), request(keys[0], "2")).await;
    assert_eq!(database.owner(keys[0]).expect("an owner").0, "b");
    a.store.cut(false);
    sleep(Duration::from_secs(5)).await;
    assert_eq!(a.desk.owned(), []);

    chain.is_away.store(true, Ordering::Relaxed);
    let options = crate::model::options();
    sleep(options.release_blind / 2).await;
    assert_eq!(database.owner(keys[0]).expect("an owner").0, "b", "it keeps them for a while");
    eventually("the other one", || shares(&database, &keys, &["a"]) == [1]).await;
    let answer = b.desk.create(request(keys[0], "3"), false).await;
    assert!(matches!(answer, Err(TxRefusal::Away(_))), "{answer:?}");
    database.check();
}

/// Unknown outcomes about leases.
#[tokio::test(start_paused = true)]
async fn a_lease_with_an_unknown_outcome_is_found() {
    let (database, keys) = database(1);
    let a = start(&database, "a", &keys);
    a.store.fail(StoreCall::Acquire, StoreFault::AnswerLost);
    post(std::slice::from_ref(&a.desk), request(keys[0], "1")).await;
    assert_eq!(database.token(keys[0]), 1);
    a.kill().await;

    let b = start(&database, "b", &keys);
    sleep(Duration::from_secs(20)).await;
    eventually("an owner", || database.token(keys[0]) == 2).await;
    assert_eq!(b.desk.owned().len(), 1, "taken by turns");
    let c = start(&database, "c", &keys);
    // Both answers are lost, and the client leaves: the renewal finds the lease.
    sleep(Duration::from_secs(1)).await;
    b.stop().await;
    for _ in 0..2 {
        c.store.fail(StoreCall::Acquire, StoreFault::AnswerLost);
    }
    let answer = c.desk.create(request(keys[0], "2"), false).await;
    assert!(matches!(answer, Err(TxRefusal::Away(_))), "{answer:?}");
    eventually("its owner", || !c.desk.owned().is_empty()).await;
    assert_eq!(database.token(keys[0]), 3);
    database.check();
}

/// Its owner has drained, and no release was answered: the renewal gives it back, and the node
/// acquires it anew.
#[tokio::test(start_paused = true)]
async fn a_lease_that_was_left_is_given_back_by_the_next_renewal() {
    let (database, keys) = database(1);
    let a = start(&database, "a", &keys);
    post(std::slice::from_ref(&a.desk), request(keys[0], "1")).await;
    for _ in 0..5 {
        a.store.fail(StoreCall::Release, StoreFault::Refused);
    }
    database.command(keys[0], None, CommandWish::Release);
    a.desk.wake(keys[0]);
    eventually("another lease", || database.token(keys[0]) == 2).await;
    database.check();
}

/// A release that fails is made again, and the end does not outlast its limit.
#[tokio::test(start_paused = true)]
async fn an_end_without_the_store_keeps_its_limit() {
    let (database, keys) = database(1);
    let a = start(&database, "a", &keys);
    post(std::slice::from_ref(&a.desk), request(keys[0], "1")).await;
    a.store.fail(StoreCall::Release, StoreFault::Refused);
    a.stop().await;
    assert_eq!(database.owner(keys[0]), None);
    let b = start(&database, "b", &keys);
    post(std::slice::from_ref(&b.desk), request(keys[0], "2")).await;
    b.store.cut(true);
    let before = Instant::now();
    b.stop().await;
    assert!(before.elapsed() <= crate::model::options().shutdown_timeout);
    database.check();
}

/// Goal: under each fault of the way to the store, each request has one row, and no law is broken.
/// Method: three nodes with random faults, clients that repeat, kills, pauses and restarts, from a
/// seed.
#[tokio::test(start_paused = true)]
async fn random_faults_break_no_law() {
    for seed in 1..=20_u64 {
        let (database, keys) = database(4);
        let mut nodes = Vec::new();
        for (number, name) in ["a", "b", "c"].into_iter().enumerate() {
            let node = start(&database, name, &keys);
            node.store.delay(Duration::from_millis(2));
            node.store.shake(seed * 7 + number as u64, 60);
            nodes.push(node);
        }
        let desk_list = Arc::new(parking_lot::Mutex::new(desks(&nodes)));
        let posts = (0..200_u64).map(|number| {
            let (desk_list, keys) = (Arc::clone(&desk_list), keys.clone());
            tokio::spawn(async move {
                sleep(Duration::from_millis(number * 100)).await;
                let signer = keys[usize::try_from(number % 4).expect("a few")];
                let mut turn = usize::try_from(number).expect("a few");
                loop {
                    let desk = { desk_list.lock()[turn % 3].clone() };
                    turn += 1;
                    let answer = desk.create(request(signer, &number.to_string()), number % 5 == 0);
                    match timeout(Duration::from_secs(2), answer).await {
                        Ok(Ok(_)) => return,
                        Ok(Err(TxRefusal::NotLeader(_) | TxRefusal::Away(_))) | Err(_) => {
                            sleep(Duration::from_millis(300)).await;
                        }
                        Ok(Err(refusal)) => panic!("{refusal}"),
                    }
                }
            })
        });
        let posts: Vec<_> = posts.collect();
        for round in 0..6_u64 {
            sleep(Duration::from_millis(2_000 + seed * 37 % 1_000)).await;
            let at = usize::try_from((seed + round) % 3).expect("a few");
            if round % 2 == 0 {
                nodes[at].pause(true);
                sleep(Duration::from_secs(seed % 20)).await;
                nodes[at].pause(false);
            } else {
                let fresh = start(&database, "again", &keys);
                fresh.store.delay(Duration::from_millis(2));
                fresh.store.shake(seed * 31 + round, 60);
                desk_list.lock()[at] = fresh.desk.clone();
                std::mem::replace(&mut nodes[at], fresh).kill().await;
            }
            database.check();
        }
        for post in posts {
            post.await.expect("an answer");
        }
        eventually("nonces", || {
            database.rows().len() == 200 && database.rows().iter().all(|tx| tx.nonce.is_some())
        })
        .await;
        database.check();
    }
}
