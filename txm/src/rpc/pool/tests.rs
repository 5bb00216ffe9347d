//! The pool over the chain in memory.

use std::time::Duration;

use alloy_primitives::{Address, U256};
use chain::class::best;
use chain::fee::{GasCaps, GasPrice};
use chain::payload::TokenTransfer;
use chain::view::ChainView;
use futures_util::FutureExt as _;
use proptest::prelude::*;

use super::*;
use crate::model::chain::{Contract, Fate, Lie, ModelChain, ModelEndpoint};
use crate::model::wallet::Wallet;
use crate::options::ExternalUse;
use crate::signer::{SignedBytes, Unsigned};

const CHAIN: u64 = 31_337;
const GWEI: u128 = 1_000_000_000;
const REQUIRED: usize = 3;

fn options(quorum: usize, finality: Finality) -> TxmOptions {
    let second = Duration::from_secs(1);
    TxmOptions {
        chain_id: CHAIN,
        quorum,
        poll: second,
        rpc_timeout: second * 5,
        calls_in_flight_max: 8,
        workers: 1,
        batch_max: 100,
        queue_max: 100,
        arrivals_poll: second,
        lease_duration: second * 10,
        lease_renew: second * 3,
        lease_skew: second,
        is_chain_queried: true,
        counts_pending: true,
        nonce_state_timeout: second * 30,
        external_use: ExternalUse::Refuse,
        jump_max: 64,
        fill_after: second * 300,
        in_flight_max: 16,
        is_resubmitted: true,
        resubmit_interval: second * 60,
        bump_after: 2,
        attempts_max: 10,
        bump_percent: 12,
        caps: GasCaps { max_fee: 500 * GWEI, tip: 5 * GWEI, cost: u128::MAX },
        is_legacy: false,
        gas_margin_percent: 120,
        gas_max: 1_000_000,
        required: REQUIRED,
        finality,
        stale: second * 60,
        receipt_workers: 10,
        is_receipt_asked_at_once: false,
        watch_blocks: 16,
        sign_timeout: second,
        release_blind: second * 60,
        shutdown_timeout: second * 10,
    }
}

/// A chain with a funded wallet, and a pool over its endpoints.
fn setup(endpoints: usize, quorum: usize) -> (ModelChain, Wallet, Pool<ModelEndpoint>) {
    let chain = ModelChain::new(CHAIN, endpoints);
    let wallet = Wallet::new(1);
    chain.fund(wallet.address(), U256::from(GWEI).pow(U256::from(2)) * U256::from(100));
    chain.mine(20);
    let pool = Pool::new(chain.endpoints(), &options(quorum, Finality::Count));
    (chain, wallet, pool)
}

fn payee() -> Address {
    Address::repeat_byte(0x77)
}

/// A payment of `nonce` wei and 1.
fn payment(wallet: &Wallet, nonce: u64, price: GasPrice) -> SignedBytes {
    wallet.sign(&Unsigned {
        chain_id: CHAIN,
        signer: wallet.address(),
        nonce,
        to: payee(),
        value: U256::from(nonce + 1),
        data: Bytes::new(),
        gas: 21_000,
        price,
        is_legacy: false,
    })
}

fn usual() -> GasPrice {
    GasPrice { max_fee: 3 * GWEI, max_tip: GWEI }
}

/// Sends payments with these nonces, and returns them with the best class of each.
async fn pay(
    pool: &Pool<ModelEndpoint>,
    wallet: &Wallet,
    nonces: &[u64],
) -> Vec<(B256, SendClass)> {
    let raws: Vec<(B256, Bytes)> = nonces
        .iter()
        .map(|nonce| payment(wallet, *nonce, usual()))
        .map(|signed| (signed.hash, signed.raw))
        .collect();
    let answers = pool.send(&raws).await;
    let class = |answers: &Vec<EndpointAnswer>| {
        best(&answers.iter().map(|answer| answer.class).collect::<Vec<_>>(), false)
    };
    raws.iter().map(|(hash, _)| *hash).zip(answers.iter().map(class)).collect()
}

/// An endpoint that keeps the sizes of the batches, and the most questions under way.
#[derive(Clone)]
struct Counted {
    inner: ModelEndpoint,
    batches: Arc<Mutex<Vec<usize>>>,
    under_way: Arc<Mutex<(usize, usize)>>,
}

impl Endpoint for Counted {
    fn name(&self) -> &str {
        self.inner.name()
    }

    async fn calls(&self, calls: &[RpcCall]) -> Vec<Answer> {
        self.batches.lock().push(calls.len());
        if matches!(calls, [RpcCall::Send(_), ..]) {
            return self.inner.calls(calls).await;
        }
        {
            let mut under_way = self.under_way.lock();
            under_way.0 += 1;
            under_way.1 = under_way.1.max(under_way.0);
        }
        let answers = self.inner.calls(calls).await;
        self.under_way.lock().0 -= 1;
        answers
    }
}

/// A pool over one endpoint of 50 ms that counts.
fn counted(calls_in_flight_max: usize) -> (ModelChain, Counted, Pool<Counted>) {
    let chain = ModelChain::new(CHAIN, 1);
    chain.set_latency(0, Duration::from_millis(50));
    let inner = chain.endpoints().remove(0);
    let endpoint = Counted { inner, batches: Arc::default(), under_way: Arc::default() };
    let options = TxmOptions { calls_in_flight_max, ..options(1, Finality::Count) };
    (chain, endpoint.clone(), Pool::new(vec![endpoint], &options))
}

/// Goal: the questions of many signers leave half of the calls under way to sends, and share
/// batches. Story: one by one they took all of them, and sends waited for seconds. Method: 64
/// signers ask for their counts, and 64 for their balances, at once.
#[tokio::test(start_paused = true)]
async fn questions_that_wait_for_a_place_share_a_batch() {
    let (chain, endpoint, pool) = counted(8);
    let signer = |number: u8| Address::repeat_byte(number);
    for number in 0..64 {
        chain.fund(signer(number), U256::from(number));
    }
    let counts = join_all((0..64).map(|number| pool.counts(signer(number))));
    let balances = join_all((0..64).map(|number| pool.balance(signer(number), None)));
    let (counts, balances) = futures_util::join!(counts, balances);
    assert!(counts.iter().all(|counts| counts.len() == 1));
    let amounts: Vec<_> = (0..64).map(|number| Some(U256::from(number))).collect();
    assert_eq!(balances, amounts, "each has its own answer");
    assert_eq!(endpoint.under_way.lock().1, 4);
    // Four pairs of counts at once, then the other 60 and the balances.
    assert_eq!(*endpoint.batches.lock(), [2, 2, 2, 2, 100, 84]);
}

/// Goal: a question that is dropped loses no answer of another in its batch. Method: of three that
/// share one, the first and the last are dropped.
#[tokio::test(start_paused = true)]
async fn a_dropped_question_loses_no_other_answer() {
    let (chain, endpoint, pool) = counted(1);
    let signer = |number: u8| Address::repeat_byte(number);
    for number in 0..4 {
        chain.fund(signer(number), U256::from(number));
    }
    let mut asked: Vec<_> =
        (0..4).map(|number| Some(Box::pin(pool.balance(signer(number), None)))).collect();
    for question in asked.iter_mut().flatten() {
        assert!(question.as_mut().now_or_never().is_none());
    }
    (asked[1], asked[3]) = (None, None);
    let answers = join_all(asked.into_iter().flatten()).await;
    assert_eq!(answers, [Some(U256::from(0)), Some(U256::from(2))]);
    assert_eq!(*endpoint.batches.lock(), [1, 3]);
    // All of a batch are dropped while it waits: it does not go, and keeps no place.
    let mut first = Box::pin(pool.balance(signer(0), None));
    let mut second = Box::pin(pool.balance(signer(1), None));
    assert!(first.as_mut().now_or_never().is_none() && second.as_mut().now_or_never().is_none());
    drop(second);
    assert_eq!(first.await, Some(U256::from(0)));
    assert_eq!(pool.balance(signer(3), None).await, Some(U256::from(3)));
    assert_eq!(*endpoint.batches.lock(), [1, 3, 1, 1]);
}

#[tokio::test(start_paused = true)]
async fn a_payment_is_sent_to_all_and_its_receipt_believed() {
    let (chain, wallet, pool) = setup(3, 2);
    let (hash, class) = pay(&pool, &wallet, &[0]).await[0];
    assert_eq!(class, SendClass::Accepted);
    assert!(pool.has(hash).await);
    let counts = pool.counts(wallet.address()).await;
    assert_eq!(counts.len(), 3);
    assert!(counts.iter().all(|count| (count.latest, count.pending) == (0, 1)));

    let look = pool.look().await;
    assert_eq!(look.is_blind(), None);
    assert_eq!(pool.receipts(&look, &[hash]).await, [ReceiptAnswer::NotFound]);
    chain.mine(1);
    let stale = look;
    assert_eq!(pool.receipts(&stale, &[hash]).await, [ReceiptAnswer::Unclear], "not in the view");
    let look = pool.look().await;
    assert_eq!(look.head().map(|head| head.at), Some(chain.head()));
    assert_eq!(pool.mined(&look, &[wallet.address(), payee()]).await, [Some(1), Some(0)]);
    let receipts = pool.receipts(&look, &[hash, B256::ZERO]).await;
    let [ReceiptAnswer::Believed(read), ReceiptAnswer::NotFound] = receipts.as_slice() else {
        panic!("{receipts:?}")
    };
    assert!(read.is_success && read.from == wallet.address());
    let at = (read.block_number, read.block_hash);
    let first = look.confirmed(&[], at, REQUIRED).expect("new");
    assert!(first.new_fork && first.blocks.len() == 1);
    assert_eq!(pool.final_mined(&look, wallet.address()).await, Some(0));

    chain.mine(2);
    let look = pool.look().await;
    assert!(!look.is_final(at.0, at.1, Finality::Count, REQUIRED), "one too few");
    let more = look.confirmed(&first.blocks, at, REQUIRED).expect("new");
    assert!(!more.new_fork && more.blocks.len() == 2);
    chain.mine(1);
    let look = pool.look().await;
    assert!(look.is_final(at.0, at.1, Finality::Count, REQUIRED));
    assert!(!look.is_final(at.0, at.1, Finality::Finalized, REQUIRED), "the tag is below");
    assert_eq!(pool.final_mined(&look, wallet.address()).await, Some(1));
    let found = pool.by_sender_and_nonce(&look, wallet.address(), 0).await;
    assert_eq!(found.iter().map(|read| read.hash).collect::<Vec<_>>(), [hash; 3]);
}

#[tokio::test(start_paused = true)]
async fn a_reorganization_moves_the_view_and_its_list_is_told_whole() {
    let (chain, wallet, pool) = setup(1, 1);
    let (hash, _) = pay(&pool, &wallet, &[0]).await[0];
    chain.mine(3);
    let look = pool.look().await;
    let [ReceiptAnswer::Believed(old)] = &pool.receipts(&look, &[hash]).await[..] else { panic!() };
    let told = look.confirmed(&[], (old.block_number, old.block_hash), 9).expect("new").blocks;
    for (fate, depth) in [(Fate::Kept, 2), (Fate::Kept, 3), (Fate::Moved, 3), (Fate::Lost, 3)] {
        chain.reorg(depth, &fate);
        let look = pool.look().await;
        assert_eq!(look.head().map(|head| head.at), Some(chain.head()), "{fate:?}");
        let has = look.has(old.block_number, old.block_hash);
        assert_eq!(has, depth == 2, "{fate:?}");
        if has {
            let at = (old.block_number, old.block_hash);
            let list = look.confirmed(&told, at, 9).expect("others");
            assert!(list.new_fork && list.blocks.len() == 3);
        } else if fate == Fate::Lost {
            assert_eq!(pool.receipts(&look, &[hash]).await, [ReceiptAnswer::NotFound]);
        } else {
            let receipts = pool.receipts(&look, &[hash]).await;
            assert!(matches!(receipts[..], [ReceiptAnswer::Believed(_)]), "{fate:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn one_endpoint_on_a_fork_or_behind_changes_nothing() {
    let (chain, wallet, pool) = setup(3, 2);
    // No block of the fork is finalized: it may be left again.
    chain.set_depths(30, 60);
    let (hash, _) = pay(&pool, &wallet, &[0]).await[0];
    chain.mine(1);
    let at = chain.head();
    chain.fork(0, 1, 9);
    chain.mine(REQUIRED as u64);
    for index in 0..6 {
        // Each height lets another endpoint be asked first.
        chain.mine(u64::from(index > 0));
        let look = pool.look().await;
        assert_eq!(look.head().map(|head| head.at), Some(chain.head()));
        assert!(look.is_final(at.number, at.hash, Finality::Count, REQUIRED));
        let receipts = pool.receipts(&look, &[hash]).await;
        assert!(matches!(receipts[..], [ReceiptAnswer::Believed(_)]), "{receipts:?}");
        assert_eq!(pool.mined(&look, &[wallet.address()]).await, [Some(1)]);
    }
    // With one more endpoint behind, no quorum has the block any more.
    chain.lag(1, 10);
    let look = pool.look().await;
    assert!(!look.has(at.number, at.hash), "its head fell, so it is not used");
    assert_eq!(pool.receipts(&look, &[hash]).await, [ReceiptAnswer::Unclear]);
    chain.lag(1, 0);
    chain.lag(0, 0);
    let look = pool.look().await;
    assert!(look.is_final(at.number, at.hash, Finality::Count, REQUIRED));
    assert_eq!(look.seen.iter().flatten().count(), 3, "the fork came back to the chain");
}

#[tokio::test(start_paused = true)]
async fn heads_that_lie_are_not_used_in_their_cycle() {
    let (chain, _, pool) = setup(1, 1);
    pool.look().await;
    for lie in [Lie::OldHead(3), Lie::OwnParent] {
        chain.mine(1);
        chain.lie(0, lie.clone(), 1);
        let look = pool.look().await;
        assert!(look.head().is_none() && look.is_blind().is_some(), "{lie:?}");
        let look = pool.look().await;
        assert_eq!(look.head().map(|head| head.at), Some(chain.head()), "{lie:?}");
    }
    chain.set_depths(2, 4);
    pool.look().await;
    chain.reorg(6, &Fate::Lost);
    let look = pool.look().await;
    assert!(look.head().is_none(), "a finalized block is another one");
}

#[tokio::test(start_paused = true)]
async fn the_tags_of_a_quorum_count() {
    let (chain, wallet, _) = setup(3, 2);
    chain.set_depths(4, 8);
    let pool = Pool::new(chain.endpoints(), &options(2, Finality::Safe));
    let at = chain.head();
    let says = |look: &Look, finality| look.is_final(at.number, at.hash, finality, 1);
    chain.mine(3);
    chain.lie(0, Lie::AllFinal, u32::MAX);
    let look = pool.look().await;
    assert!(says(&look, Finality::Count));
    assert!(!says(&look, Finality::Safe) && !says(&look, Finality::Finalized), "one liar");
    assert_eq!(look.final_block(Finality::Finalized, 1).map(|at| at.number), Some(15));
    chain.mine(1);
    let look = pool.look().await;
    assert!(says(&look, Finality::Safe) && !says(&look, Finality::Finalized));
    assert_eq!(pool.final_mined(&look, wallet.address()).await, Some(0));
    chain.mine(4);
    let look = pool.look().await;
    assert!(says(&look, Finality::Finalized));
}

#[tokio::test(start_paused = true)]
async fn a_receipt_needs_a_quorum_that_says_the_same() {
    let (chain, wallet, pool) = setup(3, 2);
    let (hash, _) = pay(&pool, &wallet, &[0]).await[0];
    chain.mine(1);
    for lie in [Lie::OtherStatus, Lie::OtherBlock, Lie::NoReceipt, Lie::LostAnswer] {
        let look = pool.look().await;
        for liar in 0..3 {
            chain.lie(liar, lie.clone(), 1);
            let receipts = pool.receipts(&look, &[hash]).await;
            let [ReceiptAnswer::Believed(read)] = &receipts[..] else { panic!("{receipts:?}") };
            assert!(read.is_success, "{lie:?}");
            chain.tell_the_truth();
        }
        for liar in 0..2 {
            chain.lie(liar, lie.clone(), 1);
        }
        let receipts = pool.receipts(&look, &[hash]).await;
        match lie {
            // Two of three are a quorum that lies.
            Lie::OtherStatus => assert!(matches!(receipts[..], [ReceiptAnswer::Believed(_)])),
            _ => assert_eq!(receipts, [ReceiptAnswer::Unclear], "{lie:?}"),
        }
        chain.tell_the_truth();
    }
}

#[tokio::test(start_paused = true)]
async fn an_endpoint_that_answers_another_hash_is_set_aside() {
    let (chain, wallet, pool) = setup(2, 1);
    chain.lie(0, Lie::OtherHash, 1);
    let signed = payment(&wallet, 0, usual());
    let raws = [(signed.hash, signed.raw)];
    let answers = pool.send(&raws).await;
    let classes: Vec<SendClass> = answers[0].iter().map(|answer| answer.class).collect();
    assert_eq!(classes, [SendClass::Unknown, SendClass::Accepted]);
    let answers = pool.send(&raws).await;
    assert_eq!(answers[0].len(), 1, "the liar is left out");
    assert_eq!(answers[0][0].class, SendClass::Known);
    assert_eq!(pool.look().await.seen.iter().flatten().count(), 1);
    tokio::time::advance(Duration::from_secs(601)).await;
    assert_eq!(pool.send(&raws).await[0].len(), 2);
}

#[tokio::test(start_paused = true)]
async fn each_refusal_of_a_pool_has_its_class() {
    let (chain, wallet, pool) = setup(1, 1);
    let mut classes = Vec::new();
    let dear = GasPrice { max_fee: 4 * GWEI, max_tip: 2 * GWEI };
    let near = GasPrice { max_fee: 4 * GWEI, max_tip: GWEI + 1 };
    let free = GasPrice { max_fee: 3 * GWEI, max_tip: 0 };
    for (nonce, price) in [(0, usual()), (0, usual()), (0, near), (0, dear), (1, free)] {
        let signed = payment(&wallet, nonce, price);
        classes.push(pool.send(&[(signed.hash, signed.raw)]).await[0][0].class);
    }
    let poor = payment(&Wallet::new(2), 0, usual());
    classes.push(pool.send(&[(poor.hash, poor.raw)]).await[0][0].class);
    let full = pay(&pool, &wallet, &(1..17).collect::<Vec<_>>()).await;
    classes.extend([full[14].1, full[15].1]);
    chain.mine(1);
    classes.push(pay(&pool, &wallet, &[0]).await[0].1);
    let garbage = (B256::ZERO, Bytes::from_static(&[2, 1, 0]));
    classes.push(pool.send(&[garbage]).await[0][0].class);
    chain.lie(0, Lie::LostAnswer, 1);
    classes.push(pay(&pool, &wallet, &[16]).await[0].1);
    classes.push(pay(&pool, &wallet, &[16]).await[0].1);
    use SendClass::{
        Accepted, Funds, Invalid, Known, NonceTooLow, PoolFull, Replacement, Underpriced, Unknown,
    };
    let expected = [
        Accepted,
        Known,
        Replacement,
        Accepted,
        Underpriced,
        Funds,
        Accepted,
        PoolFull,
        NonceTooLow,
        Invalid,
        Unknown,
        Known,
    ];
    assert_eq!(classes, expected);
    assert_eq!(chain.raws().len(), 22, "each raw once");
}

#[tokio::test(start_paused = true)]
async fn a_receipt_far_below_the_view_is_believed_a_cycle_later() {
    let (chain, wallet, pool) = setup(2, 2);
    let (hash, _) = pay(&pool, &wallet, &[0]).await[0];
    chain.mine(1);
    let at = chain.head();
    chain.mine(500);
    let look = pool.look().await;
    assert!(!look.has(at.number, at.hash));
    assert_eq!(pool.receipts(&look, &[hash]).await, [ReceiptAnswer::Unclear]);
    let look = pool.look().await;
    assert!(matches!(pool.receipts(&look, &[hash]).await[..], [ReceiptAnswer::Believed(_)]));
    let list = look.confirmed(&[], (at.number, at.hash), REQUIRED).expect("new");
    assert_eq!(list.blocks.len(), REQUIRED + 1);
    for finality in [Finality::Count, Finality::Finalized] {
        assert!(look.is_final(at.number, at.hash, finality, REQUIRED));
        assert!(!look.is_final(at.number, B256::ZERO, finality, REQUIRED));
    }
}

#[tokio::test(start_paused = true)]
async fn a_slow_endpoint_holds_up_no_look_and_comes_in_later() {
    let (chain, _, pool) = setup(3, 2);
    chain.set_latency(0, Duration::from_secs(3));
    let begun = Instant::now();
    let look = pool.look().await;
    assert_eq!(begun.elapsed(), Duration::from_secs(1));
    assert_eq!(look.seen.iter().flatten().count(), 2);
    assert_eq!(look.head().map(|head| head.at), Some(chain.head()));
    let mut looks = 1;
    while pool.look().await.seen[0].is_none() {
        looks += 1;
        assert!(looks < 20, "its cycle goes on in the next look");
    }
    for index in 0..3 {
        chain.set_away(index, true);
    }
    chain.set_latency(0, Duration::ZERO);
    pool.look().await;
    tokio::time::advance(Duration::from_secs(7)).await;
    let look = pool.look().await;
    assert!(look.is_blind().is_some_and(|blind| blind >= Duration::from_secs(7)));
    assert!(look.head().is_none());
    chain.set_away(0, false);
    tokio::time::advance(Duration::from_secs(16)).await;
    let look = pool.look().await;
    assert!(look.head().is_none(), "one of three is no quorum");
    assert!(look.is_blind().is_some_and(|blind| blind >= Duration::from_secs(23)));
    let mut looks = 0;
    for index in 0..3 {
        chain.set_away(index, false);
    }
    while pool.look().await.head().is_none() {
        tokio::time::advance(Duration::from_secs(1)).await;
        looks += 1;
        assert!(looks < 20, "the pause of a breaker ends");
    }
}

#[tokio::test(start_paused = true)]
async fn questions_take_the_careful_answer() {
    let (chain, wallet, pool) = setup(2, 1);
    let (token, broken) = (Address::repeat_byte(1), Address::repeat_byte(2));
    chain.deploy(token, Contract::Token);
    chain.deploy(broken, Contract::Reverts);
    chain.fund_token(token, wallet.address(), U256::from(50));
    let transfer = |contract, amount: u64| TxPayload {
        to: payee(),
        value: U256::ZERO,
        data: Bytes::new(),
        token: Some(TokenTransfer { contract, amount: U256::from(amount) }),
        gas: None,
    };
    let from = wallet.address();
    assert!(pool.estimate(from, &transfer(token, 50)).await.expect("it works") > 21_000);
    let refused = |error| matches!(error, Err(EstimateError::Reverts(_)));
    assert!(refused(pool.estimate(from, &transfer(token, 51)).await));
    assert!(refused(pool.estimate(from, &transfer(broken, 1)).await));
    chain.set_away(0, true);
    let away = pool.estimate(from, &transfer(broken, 1)).await;
    assert!(matches!(away, Err(EstimateError::Away(_))), "one endpoint did not answer");
    chain.set_away(0, false);
    assert_eq!(pool.balance(from, Some(token)).await, Some(U256::from(50)));
    assert_eq!(pool.balance(payee(), None).await, Some(U256::ZERO));
    assert_eq!(pool.code_length(token).await, Some(100));
    assert_eq!(pool.code_length(payee()).await, Some(0));
    let market = pool.market(&*pool.look().await).await;
    assert_eq!(market, Some(GasMarket { base_fee: GWEI, tip: GWEI }));
    chain.set_tip(0);
    let market = pool.market(&*pool.look().await).await.expect("known");
    assert_eq!(market.tip, 1, "no pool takes 0");
}

#[tokio::test(start_paused = true)]
async fn an_endpoint_of_another_chain_is_no_endpoint() {
    let (ours, theirs) = (ModelChain::new(CHAIN, 1), ModelChain::new(CHAIN, 1));
    theirs.set_base_fee(7);
    let genesis = Pool::new(ours.endpoints(), &options(1, Finality::Count)).identity().await;
    assert_eq!(genesis, Ok((CHAIN, ours.head().hash)));
    let other = ModelChain::new(1, 1);
    let both = [ours.endpoints(), other.endpoints()].concat();
    let pool = Pool::new(both, &options(1, Finality::Count));
    assert!(matches!(pool.identity().await, Err(IdentityError::Differ(..))));
    let look = pool.look().await;
    assert_eq!(look.seen.iter().flatten().count(), 1);
    let alone = Pool::new(ours.endpoints(), &options(2, Finality::Count));
    assert_eq!(alone.identity().await, Err(IdentityError::Away(1)));
    assert!(alone.look().await.head().is_none(), "one is no quorum of two");
}

#[test]
fn views_that_are_far_apart_are_compared_at_once() {
    let view = |number: u64| {
        let at = BlockRef { number, hash: B256::from(U256::from(number)), parent: B256::ZERO };
        let mut view = ChainView::default();
        view.take(&[at], None, 9).expect("one block");
        view
    };
    let look = Look::of(vec![view(5), view(u64::MAX), view(u64::MAX - 1)], 2);
    assert_eq!(look.head(), None);
    assert_eq!(look.final_block(Finality::Count, 0), None);
    let look = Look::of(vec![view(5), view(u64::MAX), view(5)], 2);
    let five = B256::from(U256::from(5));
    assert_eq!(look.head().map(|head| head.at.hash), Some(five));
    assert!(look.is_final(5, five, Finality::Count, 0));
    assert!(!look.is_final(5, five, Finality::Count, usize::MAX));
    assert!(Look::default().head().is_none() && !Look::default().has(5, five));
    let last = B256::from(U256::from(u64::MAX));
    assert!(!look.is_final(u64::MAX, last, Finality::Count, 1));
    assert_eq!(look.confirmed(&[], (u64::MAX, last), 3), None, "one endpoint has it");
}

/// A thing that happens to the chain or to an endpoint.
#[derive(Clone, Debug)]
enum Event {
    Mine(u64),
    Reorg(u64),
    Fork(usize, u64, u64),
    Lag(usize, u64),
    Lie(usize, usize),
    Away(usize, bool),
    Look,
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        (1_u64..6).prop_map(Event::Mine),
        (1_u64..5).prop_map(Event::Reorg),
        (0_usize..3, 1_u64..6, 1_u64..12)
            .prop_map(|(site, depth, more)| Event::Fork(site, depth, more)),
        (0_usize..3, 0_u64..5).prop_map(|(site, blocks)| Event::Lag(site, blocks)),
        (0_usize..3, 0_usize..5).prop_map(|(site, lie)| Event::Lie(site, lie)),
        (0_usize..3, any::<bool>()).prop_map(|(site, away)| Event::Away(site, away)),
        Just(Event::Look),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    /// Of any answers of endpoints: no block is final, and none is in the look, that is not in the
    /// own views of a quorum, and of one height at most one block is final with a quorum of 2 of 3.
    #[test]
    fn nothing_is_final_without_a_quorum(events in prop::collection::vec(event(), 1..40)) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .expect("a runtime");
        runtime.block_on(async {
            let chain = ModelChain::new(CHAIN, 3);
            chain.set_depths(1, 2);
            chain.mine(5);
            let pool = Pool::new(chain.endpoints(), &options(2, Finality::Finalized));
            for event in events {
                match event {
                    Event::Mine(blocks) => chain.mine(blocks),
                    Event::Reorg(depth) => chain.reorg(depth, &Fate::Lost),
                    Event::Fork(site, depth, blocks) => chain.fork(site, depth, blocks),
                    Event::Lag(site, blocks) => chain.lag(site, blocks),
                    Event::Away(site, away) => chain.set_away(site, away),
                    Event::Look => {}
                    Event::Lie(site, lie) => {
                        let lies = [
                            Lie::AllFinal, Lie::OldHead(2), Lie::OwnParent, Lie::LostAnswer,
                            Lie::LostCall,
                        ];
                        chain.lie(site, lies[lie].clone(), 1);
                    }
                }
                judge(&*pool.look().await);
            }
        });
    }
}

/// Compares the look's answers with the views in it, counted by hand.
fn judge(look: &Look) {
    let blocks: Vec<BlockRef> = look
        .seen
        .iter()
        .flatten()
        .flat_map(|seen| seen.view.from(0, usize::MAX).copied().collect::<Vec<_>>())
        .collect();
    let mut finals = std::collections::BTreeMap::new();
    for block in blocks {
        let (number, hash) = (block.number, block.hash);
        let views: Vec<_> =
            look.seen.iter().flatten().filter(|seen| seen.view.has(number, hash)).collect();
        assert_eq!(look.has(number, hash), views.len() >= 2);
        for finality in [Finality::Count, Finality::Safe, Finality::Finalized] {
            if !look.is_final(number, hash, finality, REQUIRED) {
                continue;
            }
            let deep = views.iter().filter(|seen| {
                let head = seen.view.head().expect("it has a block").number;
                let tag = seen.view.finalized().is_some_and(|tag| tag.number >= number);
                head >= number + REQUIRED as u64 && (tag || finality == Finality::Count)
            });
            assert!(deep.count() >= 2, "{block:?} is final by {finality:?}");
            assert_eq!(*finals.entry(number).or_insert(hash), hash, "two final blocks");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_count_is_as_high_as_a_quorum_says() {
    let (chain, wallet, pool) = setup(3, 2);
    pay(&pool, &wallet, &[0]).await;
    chain.mine(1);
    let look = pool.look().await;
    for endpoint in 0..3 {
        chain.lie(endpoint, Lie::CountAhead(7), 1);
        assert_eq!(pool.mined(&look, &[wallet.address()]).await, [Some(1)]);
    }
    for endpoint in 0..2 {
        chain.lie(endpoint, Lie::LostCall, 1);
    }
    assert_eq!(pool.mined(&look, &[wallet.address()]).await, [None], "no quorum");
}

#[tokio::test(start_paused = true)]
async fn a_transaction_that_an_endpoint_with_its_block_does_not_know_is_not_found() {
    let (chain, wallet, pool) = setup(3, 2);
    pay(&pool, &wallet, &[0]).await;
    chain.mine(1);
    let look = pool.look().await;
    assert_eq!(pool.by_sender_and_nonce(&look, wallet.address(), 0).await.len(), 3);
    chain.lie(1, Lie::NoTransaction, 1);
    assert!(pool.by_sender_and_nonce(&look, wallet.address(), 0).await.is_empty());
    chain.lie(1, Lie::LostCall, 1);
    assert_eq!(pool.by_sender_and_nonce(&look, wallet.address(), 0).await.len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_dead_endpoint_holds_up_no_answer_to_a_send() {
    let (chain, wallet, pool) = setup(3, 2);
    assert_eq!(pool.halves(), (vec![0, 1, 2], vec![]));
    chain.set_away(1, true);
    for nonce in 0..5 {
        pay(&pool, &wallet, &[nonce]).await;
    }
    let (well, shut) = pool.halves();
    assert_eq!((&well[..], &shut[..]), (&[0, 2][..], &[1][..]));
    let signed = payment(&wallet, 5, usual());
    let answers = pool.send_to_those(&well, &[(signed.hash, signed.raw)]).await;
    assert!(answers[0].iter().all(|answer| answer.class == SendClass::Accepted));
    for endpoint in [0, 2] {
        chain.set_away(endpoint, true);
    }
    for nonce in 6..11 {
        pay(&pool, &wallet, &[nonce]).await;
    }
    assert_eq!(pool.halves(), (vec![0, 1, 2], vec![]), "then all are asked");
}

#[test]
fn a_text_has_no_control_characters() {
    assert_eq!(cut("a\0b\nc\u{7f}"), "abc");
    assert_eq!(cut(&"\u{e9}".repeat(150)).len(), 200);
}
