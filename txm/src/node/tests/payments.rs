//! Payments over whole nodes, models of the store and of the chain, and faults of everything, from
//! a seed.

use std::sync::LazyLock;

use chain::state::TxState;

use super::*;
use crate::model::Draw;
use crate::model::chain::{Fate, Lie, ModelChain, ModelEndpoint};
use crate::options::Finality;
use crate::signer::keystore::Keystore;
use crate::store::{CommandWish, Lease};

const GWEI: u128 = 1_000_000_000;
const SIGNERS: u8 = 3;
const PAYMENTS: u64 = 24;
const NODES: usize = 3;
const ENDPOINTS: usize = 2;
/// Words of endpoints that do not take a transaction.
const WORDS: [&str; 7] = [
    "txpool is full",
    "nonce too low",
    "replacement transaction underpriced",
    "insufficient funds for gas * price + value",
    "max fee per gas less than block base fee",
    "exceeds block gas limit",
    "already known",
];
/// The tag `finalized` is so many blocks below the head; no reorganization is deeper.
const FINAL_DEPTH: u64 = 4;

type Payer = Running<ModelEndpoint, Keystore>;

/// A database, a chain, and nodes that come and go.
struct World {
    database: ModelDatabase,
    chain: ModelChain,
    options: TxmOptions,
    draw: Draw,
    nodes: Vec<Payer>,
}

fn keys() -> Keystore {
    let secrets: Vec<[u8; 32]> = (1..=SIGNERS).map(|number| [number; 32]).collect();
    Keystore::of_keys(&secrets).expect("keys")
}

/// The addresses of the keys, which are not cheap.
fn signers() -> Vec<Address> {
    static SIGNERS: LazyLock<Vec<Address>> = LazyLock::new(|| keys().addresses());
    SIGNERS.clone()
}

impl World {
    fn new(seed: u64) -> World {
        let mut options = crate::model::options();
        options.required = 3;
        options.finality = Finality::Finalized;
        options.resubmit_interval = Duration::from_secs(10);
        let database = ModelDatabase::new(options.lease_duration, options.lease_skew);
        let chain = ModelChain::new(options.chain_id, ENDPOINTS);
        for signer in signers() {
            database.add_signer(signer, 0);
            chain.fund(signer, U256::from(1_000_000_000 * GWEI));
        }
        chain.set_base_fee(GWEI);
        chain.set_tip(GWEI);
        chain.set_depths(1, FINAL_DEPTH);
        chain.mine(8);
        for endpoint in 0..ENDPOINTS {
            chain.set_latency(endpoint, Duration::from_millis(10));
        }
        let mut world = World { database, chain, options, draw: Draw::new(seed), nodes: vec![] };
        world.nodes = (0..NODES).map(|_| world.node()).collect();
        world
    }

    fn node(&mut self) -> Payer {
        let (endpoints, options) = (self.chain.endpoints(), self.options.clone());
        let node = Running::start(&self.database, "node", endpoints, keys(), options);
        node.store.delay(Duration::from_millis(2));
        node.store.shake(self.draw.below(1 << 40), 30);
        node
    }

    fn index(&mut self, bound: usize) -> usize {
        usize::try_from(self.draw.below(bound as u64)).expect("a small number")
    }

    /// One second, with a fault.
    async fn second(&mut self) {
        match self.draw.below(4) {
            0 => self.fault_of_nodes().await,
            1 => self.fault_of_endpoints(),
            2 => self.fault_of_chain(),
            _ => {}
        }
        sleep(Duration::from_millis(1_000)).await;
        if self.draw.below(3) > 0 {
            self.chain.gossip();
            self.chain.mine(1);
        }
        self.database.check();
        self.database.check_sent(&self.chain.raws());
    }

    /// Kills, orderly ends, pauses, cuts, slow ways, and a step of the one clock.
    async fn fault_of_nodes(&mut self) {
        let at = self.index(NODES);
        match self.draw.below(11) {
            0 | 1 => {
                let fresh = self.node();
                std::mem::replace(&mut self.nodes[at], fresh).kill().await;
            }
            2 | 3 => {
                let fresh = self.node();
                let old = std::mem::replace(&mut self.nodes[at], fresh);
                // A paused process never comes to its end, and the faults would wait for it.
                old.pause(false);
                old.stop().await;
            }
            4 | 5 => self.nodes[at].pause(true),
            6 => self.nodes.iter().for_each(|node| node.pause(false)),
            7 => self.nodes[at].store.cut(true),
            8 => self.nodes.iter().for_each(|node| node.store.cut(false)),
            9 => {
                let latency = Duration::from_millis(1 << self.draw.below(11));
                self.nodes[at].store.delay(latency);
            }
            _ => {
                let seconds = i64::try_from(self.draw.below(13)).expect("a few") - 6;
                self.database.step_clock(seconds);
            }
        }
    }

    /// Lies, cuts, slow ways, and views that lag behind or stand on a branch.
    fn fault_of_endpoints(&mut self) {
        let endpoint = self.index(ENDPOINTS);
        let words = WORDS[self.index(WORDS.len())].to_owned();
        let times = 1 + u32::try_from(self.draw.below(8)).expect("a few");
        let lie = match self.draw.below(14) {
            0 => return self.chain.set_away(endpoint, true),
            1 | 2 => return self.chain.set_away(endpoint, false),
            3 => return self.chain.lag(endpoint, self.draw.below(3)),
            // Its tag `finalized` stays where the branch and the chain are one.
            4 => return self.chain.fork(endpoint, FINAL_DEPTH - 1, 1 + self.draw.below(3)),
            5 => {
                let latency = Duration::from_millis(1 << self.draw.below(12));
                return self.chain.set_latency(endpoint, latency);
            }
            6 => Lie::LostCall,
            7 => Lie::LostAnswer,
            8 => Lie::Refuses(words),
            9 => Lie::TakesAndSays(words),
            10 => Lie::OtherHash,
            11 => Lie::NoReceipt,
            12 => Lie::OtherBlock,
            _ => Lie::OldHead(1 + self.draw.below(3)),
        };
        self.chain.lie(endpoint, lie, times);
    }

    /// Reorganizations, dear blocks, forgetful pools, and wishes of operators.
    fn fault_of_chain(&mut self) {
        let rows = self.database.rows();
        let open: Vec<_> = rows.iter().filter(|tx| !tx.state.is_terminal()).collect();
        let at = self.index(open.len().max(1));
        let wish = match self.draw.below(8) {
            0 | 1 => {
                let depth = 1 + self.draw.below(FINAL_DEPTH - 1);
                let fates = [Fate::Kept, Fate::Moved, Fate::Pooled, Fate::Lost];
                let fate = self.index(fates.len());
                return self.chain.reorg(depth, &fates[fate]);
            }
            2 => return self.chain.set_base_fee(GWEI << self.draw.below(5)),
            3 => {
                let attempts = open.get(at).map_or(&[][..], |tx| &tx.attempts);
                return attempts.iter().for_each(|attempt| self.chain.forget(attempt.hash));
            }
            4 => CommandWish::Resubmit,
            5 => CommandWish::Fill,
            6 => CommandWish::Release,
            _ => CommandWish::Cancel,
        };
        if let Some(tx) = open.get(at) {
            let id = (wish != CommandWish::Release).then_some(tx.id);
            self.database.command(tx.new.signer, id, wish);
        }
    }

    /// Ends all faults, and waits for all ends.
    async fn heal(&mut self) {
        self.chain.tell_the_truth();
        self.chain.set_base_fee(GWEI);
        for endpoint in 0..ENDPOINTS {
            self.chain.set_away(endpoint, false);
            self.chain.lag(endpoint, 0);
            self.chain.set_latency(endpoint, Duration::from_millis(10));
        }
        for node in &self.nodes {
            node.store.shake(0, 0);
            node.store.cut(false);
            node.store.delay(Duration::from_millis(2));
            node.pause(false);
        }
        for _ in 0..600 {
            let rows = self.database.rows();
            if rows.len() as u64 == PAYMENTS && rows.iter().all(|tx| tx.state.is_terminal()) {
                return;
            }
            sleep(Duration::from_secs(1)).await;
            self.chain.gossip();
            self.chain.mine(1);
        }
        let open = self.database.rows().into_iter().filter(|tx| !tx.state.is_terminal());
        for tx in open {
            let attempts: Vec<_> = tx.attempts.iter().map(|it| (it.kind, it.class)).collect();
            let (id, nonce, sub) = (&tx.new.request_id, tx.nonce, tx.sub);
            println!("{id}: {nonce:?} {:?} {sub:?} {attempts:?}", tx.state);
        }
        panic!("no end");
    }

    /// Each payee has its value if its row is CONFIRMED, and nothing otherwise; the chain has of
    /// each nonce the attempt that its row ended by; no signer is suspended.
    async fn judge(&self) {
        self.database.check();
        self.database.check_sent(&self.chain.raws());
        let leases: Vec<Lease> =
            signers().into_iter().map(|signer| Lease { signer, token: 0 }).collect();
        let arrived = self.nodes[0].store.arrived(&leases, &[]).await.expect("the store");
        assert_eq!(arrived.suspended, [], "suspended without a reason");
        for tx in self.database.rows() {
            let paid = self.chain.wei(tx.new.payload.to);
            let owed = match tx.state {
                TxState::Confirmed => tx.new.payload.value,
                _ => U256::ZERO,
            };
            assert_eq!(paid, owed, "{}: {tx:#?}", tx.new.request_id);
            let Some(nonce) = tx.nonce else { continue };
            let (mined, _) = self.chain.mined(tx.new.signer, nonce).expect("mined");
            assert_eq!(tx.receipt.map(|it| it.hash), Some(mined.hash), "{}", tx.new.request_id);
        }
    }
}

fn payment(number: u64) -> NewTx {
    let signer = signers()[usize::try_from(number % u64::from(SIGNERS)).expect("a few")];
    let mut request = request(signer, &format!("payment/{number}"));
    request.payload.to = Address::left_padding_from(&(0xaaaa_0000 + number).to_be_bytes());
    request.payload.value = U256::from(1_000 + number);
    request
}

/// Repeats a request at the nodes that are there, until one answers.
async fn pay(desks: Arc<parking_lot::Mutex<Vec<PayerDesk>>>, number: u64) {
    sleep(Duration::from_millis(number * 1_500)).await;
    for turn in number.. {
        let desk = {
            let desks = desks.lock();
            desks[usize::try_from(turn % 3).expect("a few")].clone()
        };
        let answer = desk.create(payment(number), number % 3 == 0);
        match timeout(Duration::from_secs(3), answer).await {
            Ok(Ok(_)) => return,
            Ok(Err(TxRefusal::NotLeader(_) | TxRefusal::Away(_))) | Err(_) => {}
            Ok(Err(refusal)) => panic!("payment {number}: {refusal}"),
        }
        sleep(Duration::from_millis(300)).await;
    }
}

type PayerDesk = Desk<ModelStore, ModelEndpoint, Keystore>;

/// The seed that the variable names, or so many.
fn seeds() -> std::ops::Range<u64> {
    match std::env::var("UBSCORE_SEED").ok().and_then(|seed| seed.parse().ok()) {
        Some(seed) => seed..seed + 1,
        None => 1..61,
    }
}

/// Goal: each request is paid once, or proven unpaid, through kills, pauses, orderly ends, lost and
/// late statements, lost answers, lies, cancels and reorganizations. Method: whole nodes over
/// models of everything else, one run a seed. A failing run names its seed.
#[tokio::test(start_paused = true)]
async fn each_payment_is_made_once_or_proven_unmade() {
    for seed in seeds() {
        println!("seed {seed}");
        let mut world = World::new(seed);
        let list = Arc::new(parking_lot::Mutex::new(desks(&world.nodes)));
        let posts: Vec<_> =
            (0..PAYMENTS).map(|number| tokio::spawn(pay(Arc::clone(&list), number))).collect();
        for _ in 0..60 {
            world.second().await;
            *list.lock() = desks(&world.nodes);
        }
        world.heal().await;
        for post in posts {
            post.await.expect("an answer");
        }
        world.judge().await;
    }
}
