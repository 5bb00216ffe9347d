//! Payments over whole nodes, models of the store and of the chain, and faults of everything, from
//! a seed.

use chain::state::TxState;

use super::*;
use crate::model::Draw;
use crate::model::chain::{Fate, Lie, ModelChain, ModelEndpoint};
use crate::options::Finality;
use crate::signer::keystore::Keystore;
use crate::store::CommandWish;

const GWEI: u128 = 1_000_000_000;
const SIGNERS: u8 = 3;
const PAYMENTS: u64 = 24;
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

impl World {
    fn new(seed: u64) -> World {
        let mut options = crate::model::options();
        options.required = 3;
        options.finality = Finality::Finalized;
        options.resubmit_interval = Duration::from_secs(10);
        let database = ModelDatabase::new(options.lease_duration, options.lease_skew);
        let chain = ModelChain::new(options.chain_id, 2);
        for signer in keys().addresses() {
            database.add_signer(signer, 0);
            chain.fund(signer, U256::from(1_000_000_000 * GWEI));
        }
        chain.set_base_fee(GWEI);
        chain.set_tip(GWEI);
        chain.set_depths(1, FINAL_DEPTH);
        chain.mine(8);
        for endpoint in 0..2 {
            chain.set_latency(endpoint, Duration::from_millis(10));
        }
        let mut world = World { database, chain, options, draw: Draw::new(seed), nodes: vec![] };
        world.nodes = (0..3).map(|_| world.node()).collect();
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
        let endpoint = self.index(2);
        match self.draw.below(14) {
            0 => {
                let at = self.index(3);
                let fresh = self.node();
                std::mem::replace(&mut self.nodes[at], fresh).kill().await;
            }
            1 => {
                let at = self.index(3);
                let fresh = self.node();
                let old = std::mem::replace(&mut self.nodes[at], fresh);
                // A paused process never comes to its end, and the faults would wait for it.
                old.pause(false);
                old.stop().await;
            }
            2 => {
                let at = self.index(3);
                self.nodes[at].pause(true);
            }
            3 | 4 => self.nodes.iter().for_each(|node| node.pause(false)),
            5 => {
                let depth = 1 + self.draw.below(FINAL_DEPTH - 1);
                let fates = [Fate::Kept, Fate::Moved, Fate::Pooled, Fate::Lost];
                let fate = self.index(fates.len());
                self.chain.reorg(depth, &fates[fate]);
            }
            6 => self.chain.lie(endpoint, Lie::LostAnswer, 3),
            7 => self.chain.lie(endpoint, Lie::LostCall, 3),
            8 => self.chain.lie(endpoint, Lie::Refuses("txpool is full".to_owned()), 2),
            9 => self.chain.lie(endpoint, Lie::NoReceipt, 3),
            10 => self.chain.set_away(endpoint, true),
            11 => self.chain.set_away(endpoint, false),
            12 => {
                let rows = self.database.rows();
                let open = rows.iter().filter(|tx| !tx.state.is_terminal());
                if let Some(tx) = open.last() {
                    self.database.command(tx.new.signer, Some(tx.id), CommandWish::Cancel);
                }
            }
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

    /// Ends all faults, and waits for all ends.
    async fn heal(&mut self) {
        self.chain.tell_the_truth();
        (0..2).for_each(|endpoint| self.chain.set_away(endpoint, false));
        for node in &self.nodes {
            node.store.shake(0, 0);
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

    /// Each payee has its value if its row is CONFIRMED, and nothing otherwise; each nonce that the
    /// chain has is of a row.
    fn judge(&self) {
        self.database.check();
        self.database.check_sent(&self.chain.raws());
        for tx in self.database.rows() {
            let paid = self.chain.wei(tx.new.payload.to);
            let owed = match tx.state {
                TxState::Confirmed => tx.new.payload.value,
                _ => U256::ZERO,
            };
            assert_eq!(paid, owed, "{}: {tx:#?}", tx.new.request_id);
        }
    }
}

fn payment(number: u64) -> NewTx {
    let signers = keys().addresses();
    let signer = signers[usize::try_from(number % u64::from(SIGNERS)).expect("a few")];
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
        world.judge();
    }
}
