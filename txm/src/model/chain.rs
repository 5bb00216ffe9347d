//! A chain in memory, and the endpoints that show it: blocks by parent hash, forks, a pool of each
//! endpoint, and lies. The same calls give the same chain.
//!
//! Every endpoint follows the chain, lags behind it, or stands on a branch of its own. Blocks are
//! built by the test alone.

mod endpoint;
mod ledger;
mod mempool;
mod raw;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use alloy_primitives::{Address, B256, Bytes, U256, keccak256};
use chain::view::BlockRef;
use parking_lot::Mutex;

pub use self::endpoint::{Lie, ModelEndpoint};
pub use self::ledger::Contract;
use self::ledger::Ledger;
use self::mempool::{BLOCK_GAS, Mempool};
pub use self::raw::ModelTx;
use crate::rpc::{Block, ReceiptRead};

/// The fate of the transactions of blocks that leave the chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fate {
    /// Each is in the new block of the same height.
    Kept,
    /// All are in the last new block.
    Moved,
    /// They are in the pools again, as geth does it.
    Pooled,
    /// They are gone.
    Lost,
    /// These are in the first new block, and every other one in its place if it still can.
    Replaced(Vec<Bytes>),
}

/// A mined transaction.
#[derive(Clone, Debug)]
struct Mined {
    tx: ModelTx,
    receipt: ReceiptRead,
}

/// A block with its transactions and the accounts behind it.
#[derive(Clone, Debug)]
struct Built {
    block: Block,
    mined: Vec<Mined>,
    ledger: Arc<Ledger>,
}

/// The head of an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HeadAt {
    /// So many blocks below the chain's.
    Lag(u64),
    /// A block of its own branch.
    Fixed(B256),
}

/// One endpoint's state.
#[derive(Debug)]
struct Site {
    pool: Mempool,
    head: HeadAt,
    lies: Vec<(Lie, u32)>,
    latency: Duration,
    is_away: bool,
    /// The calls that it was asked, by method.
    calls: BTreeMap<&'static str, u64>,
}

/// The chain.
#[derive(Debug)]
struct World {
    chain_id: u64,
    /// Every block that was ever built.
    blocks: BTreeMap<B256, Built>,
    /// The chain's blocks by height.
    chain: Vec<B256>,
    base_fee: u128,
    tip: u128,
    safe_depth: u64,
    final_depth: u64,
    contracts: BTreeMap<Address, Contract>,
    sites: Vec<Site>,
    /// Transactions that come by no endpoint of ours.
    outside: Vec<ModelTx>,
    /// Every raw that an endpoint was sent, the first one first.
    raws: Vec<Bytes>,
    /// The same, decoded, since the recovery of a sender is slow. `None`: no transaction.
    known_raws: BTreeMap<Bytes, Option<ModelTx>>,
}

/// A chain in memory. A clone is the same chain.
#[derive(Clone, Debug)]
pub struct ModelChain {
    world: Arc<Mutex<World>>,
}

impl ModelChain {
    /// A chain of block 0 alone, with endpoints that follow it.
    pub fn new(chain_id: u64, endpoints: usize) -> ModelChain {
        let site = || Site {
            pool: Mempool::default(),
            head: HeadAt::Lag(0),
            lies: Vec::new(),
            latency: Duration::ZERO,
            is_away: false,
            calls: BTreeMap::new(),
        };
        let mut world = World {
            chain_id,
            blocks: BTreeMap::new(),
            chain: Vec::new(),
            base_fee: 1_000_000_000,
            tip: 1_000_000_000,
            safe_depth: 4,
            final_depth: 8,
            contracts: BTreeMap::new(),
            sites: (0..endpoints).map(|_| site()).collect(),
            outside: Vec::new(),
            raws: Vec::new(),
            known_raws: BTreeMap::new(),
        };
        let first = world.build(None, &[]);
        world.chain.push(first);
        ModelChain { world: Arc::new(Mutex::new(world)) }
    }

    /// Its endpoints, in their order.
    pub fn endpoints(&self) -> Vec<ModelEndpoint> {
        let count = self.world.lock().sites.len();
        (0..count).map(|index| ModelEndpoint::new(self.world.clone(), index)).collect()
    }

    /// Gives an account wei, from block 0 on.
    pub fn fund(&self, account: Address, wei: U256) {
        self.world.lock().each_ledger(|ledger| {
            let has = ledger.wei.entry(account).or_default();
            *has = has.saturating_add(wei);
        });
    }

    /// Gives an account units of a token, from block 0 on.
    pub fn fund_token(&self, token: Address, account: Address, units: U256) {
        self.world.lock().each_ledger(|ledger| {
            let has = ledger.units.entry((token, account)).or_default();
            *has = has.saturating_add(units);
        });
    }

    /// Puts a contract at an address.
    pub fn deploy(&self, at: Address, contract: Contract) {
        self.world.lock().contracts.insert(at, contract);
    }

    /// The base fee of the blocks that are built from now on, wei.
    pub fn set_base_fee(&self, wei: u128) {
        self.world.lock().base_fee = wei;
    }

    /// The usual tip, wei.
    pub fn set_tip(&self, wei: u128) {
        self.world.lock().tip = wei;
    }

    /// The depths of the tags `safe` and `finalized` below a head.
    pub fn set_depths(&self, safe: u64, finalized: u64) {
        let mut world = self.world.lock();
        (world.safe_depth, world.final_depth) = (safe, finalized);
    }

    /// Builds blocks. The first one takes from all pools, of each nonce the dearest transaction.
    pub fn mine(&self, blocks: u64) {
        let mut world = self.world.lock();
        for _ in 0..blocks {
            let waiting = world.waiting();
            world.extend(&waiting);
        }
    }

    /// Builds one block with these transactions of the pools alone.
    pub fn mine_only(&self, hashes: &[B256]) {
        let mut world = self.world.lock();
        let mut waiting = world.waiting();
        waiting.retain(|tx| hashes.contains(&tx.hash));
        world.extend(&waiting);
    }

    /// Replaces the last blocks by as many other ones.
    pub fn reorg(&self, depth: u64, fate: &Fate) {
        self.world.lock().reorg(depth, fate);
    }

    /// Puts an endpoint on a branch of its own: it leaves the chain `depth` blocks below the head,
    /// and has so many empty blocks.
    pub fn fork(&self, endpoint: usize, depth: u64, blocks: u64) {
        let mut world = self.world.lock();
        let mut head = world.chain[world.height_below(depth)];
        for _ in 0..blocks {
            head = world.build(Some(head), &[]);
        }
        world.sites[endpoint].head = HeadAt::Fixed(head);
    }

    /// Lets an endpoint follow the chain, so many blocks behind its head. It is also back from a
    /// branch.
    pub fn lag(&self, endpoint: usize, blocks: u64) {
        self.world.lock().sites[endpoint].head = HeadAt::Lag(blocks);
    }

    /// Lets an endpoint lie: the next so many calls that the lie fits.
    pub fn lie(&self, endpoint: usize, lie: Lie, times: u32) {
        self.world.lock().sites[endpoint].lies.push((lie, times));
    }

    /// Ends all lies.
    pub fn tell_the_truth(&self) {
        self.world.lock().sites.iter_mut().for_each(|site| site.lies.clear());
    }

    /// Cuts an endpoint off, or connects it again.
    pub fn set_away(&self, endpoint: usize, is_away: bool) {
        self.world.lock().sites[endpoint].is_away = is_away;
    }

    /// The time that each call to an endpoint takes, half of it before it is done.
    pub fn set_latency(&self, endpoint: usize, latency: Duration) {
        self.world.lock().sites[endpoint].latency = latency;
    }

    /// Copies each pool's transactions to the other ones, as far as they take them.
    pub fn gossip(&self) {
        let mut world = self.world.lock();
        let all: Vec<ModelTx> =
            world.sites.iter().flat_map(|site| site.pool.all().cloned()).collect();
        let chain_id = world.chain_id;
        for index in 0..world.sites.len() {
            let ledger = world.head_of(index).ledger.clone();
            for tx in &all {
                // A pool that refuses it goes without.
                drop(world.sites[index].pool.admit(tx.clone(), &ledger, chain_id));
            }
        }
    }

    /// Takes a transaction out of every pool.
    pub fn forget(&self, hash: B256) {
        for site in &mut self.world.lock().sites {
            for own in site.pool.0.values_mut() {
                own.retain(|_, tx| tx.hash != hash);
            }
        }
    }

    /// A transaction by another wallet: the next block takes it before those of the pools.
    ///
    /// # Panics
    /// If no pool could read it.
    pub fn submit_outside(&self, raw: &Bytes) {
        let tx = ModelTx::decode(raw).expect("a transaction");
        self.world.lock().outside.push(tx);
    }

    /// A transaction by another wallet, to the pools of the endpoints that take it. It is none of
    /// [`ModelChain::raws`].
    ///
    /// # Panics
    /// If no pool could read it.
    pub fn pool_outside(&self, raw: &Bytes) {
        let tx = ModelTx::decode(raw).expect("a transaction");
        let mut world = self.world.lock();
        let chain_id = world.chain_id;
        for index in 0..world.sites.len() {
            let ledger = world.head_of(index).ledger.clone();
            // A pool that refuses it goes without.
            drop(world.sites[index].pool.admit(tx.clone(), &ledger, chain_id));
        }
    }

    /// The next nonce of an account behind all transactions of the pools.
    pub fn pending(&self, account: Address) -> u64 {
        let world = self.world.lock();
        let of = |site: usize| world.sites[site].pool.pending(account, &world.head_of(site).ledger);
        (0..world.sites.len()).map(of).max().unwrap_or(0)
    }

    /// Every raw that any endpoint was ever sent, each once, the first one first.
    pub fn raws(&self) -> Vec<Bytes> {
        self.world.lock().raws.clone()
    }

    /// The calls that an endpoint was asked.
    pub fn calls(&self, endpoint: usize) -> u64 {
        self.world.lock().sites[endpoint].calls.values().sum()
    }

    /// The calls of a method that an endpoint was asked.
    pub fn calls_of(&self, endpoint: usize, method: &str) -> u64 {
        self.world.lock().sites[endpoint].calls.get(method).copied().unwrap_or_default()
    }

    /// The chain's head.
    pub fn head(&self) -> BlockRef {
        let world = self.world.lock();
        world.blocks[world.chain.last().expect("block 0")].block.at
    }

    /// The transaction that the chain has with this signer and nonce, and its receipt.
    pub fn mined(&self, signer: Address, nonce: u64) -> Option<(ModelTx, ReceiptRead)> {
        let world = self.world.lock();
        let mined = world.chain.iter().flat_map(|hash| &world.blocks[hash].mined);
        let mut fits = mined.filter(|it| it.tx.from == signer && it.tx.nonce == nonce);
        fits.next().map(|it| (it.tx.clone(), it.receipt.clone()))
    }

    /// An account's wei at the chain's head.
    pub fn wei(&self, account: Address) -> U256 {
        self.world.lock().top().ledger.wei(account)
    }

    /// An account's units of a token at the chain's head.
    pub fn units(&self, token: Address, account: Address) -> U256 {
        self.world.lock().top().ledger.units(token, account)
    }
}

impl World {
    fn top(&self) -> &Built {
        &self.blocks[self.chain.last().expect("block 0")]
    }

    fn height_below(&self, depth: u64) -> usize {
        (self.chain.len() - 1).saturating_sub(usize::try_from(depth).unwrap_or(usize::MAX))
    }

    fn each_ledger(&mut self, mut change: impl FnMut(&mut Ledger)) {
        for built in self.blocks.values_mut() {
            change(Arc::make_mut(&mut built.ledger));
        }
    }

    /// The head of an endpoint.
    fn head_of(&self, site: usize) -> &Built {
        match self.sites[site].head {
            HeadAt::Lag(blocks) => &self.blocks[&self.chain[self.height_below(blocks)]],
            HeadAt::Fixed(hash) => &self.blocks[&hash],
        }
    }

    /// The block of an endpoint's chain at a height.
    fn at(&self, site: usize, number: u64) -> Option<&Built> {
        let mut built = self.head_of(site);
        if number > built.block.at.number {
            return None;
        }
        while built.block.at.number > number {
            let on_chain = self.chain.get(usize::try_from(built.block.at.number).ok()?);
            built = match on_chain {
                Some(hash) if *hash == built.block.at.hash => {
                    &self.blocks[self.chain.get(usize::try_from(number).ok()?)?]
                }
                _ => &self.blocks[&built.block.at.parent],
            };
        }
        Some(built)
    }

    /// Whether a block is on an endpoint's chain.
    fn is_on(&self, site: usize, at: BlockRef) -> bool {
        self.at(site, at.number).is_some_and(|built| built.block.at.hash == at.hash)
    }

    /// A mined transaction on an endpoint's chain.
    fn find(&self, site: usize, fits: impl Fn(&ModelTx) -> bool) -> Option<&Mined> {
        let on = self.blocks.values().filter(|built| !built.mined.is_empty());
        let on = on.filter(|built| self.is_on(site, built.block.at));
        on.flat_map(|built| &built.mined).find(|it| fits(&it.tx))
    }

    /// All transactions of the pools, in the order in which a block takes them.
    fn waiting(&mut self) -> Vec<ModelTx> {
        let mut pools: Vec<ModelTx> =
            self.sites.iter().flat_map(|site| site.pool.all().cloned()).collect();
        pools.sort_by(|a, b| {
            let dear = (b.max_tip, b.max_fee, b.hash).cmp(&(a.max_tip, a.max_fee, a.hash));
            (a.from, a.nonce).cmp(&(b.from, b.nonce)).then(dear)
        });
        let mut all = std::mem::take(&mut self.outside);
        all.extend(pools);
        all
    }

    /// Puts a block on top of the chain.
    fn extend(&mut self, txs: &[ModelTx]) {
        let top = self.chain.last().copied();
        let hash = self.build(top, txs);
        self.chain.push(hash);
        self.prune();
    }

    fn prune(&mut self) {
        for index in 0..self.sites.len() {
            let ledger = self.head_of(index).ledger.clone();
            self.sites[index].pool.prune(&ledger);
        }
    }

    /// Builds a block with those of the transactions that it can have.
    fn build(&mut self, parent: Option<B256>, txs: &[ModelTx]) -> B256 {
        let parent = parent.map(|hash| &self.blocks[&hash]);
        let number = parent.map_or(0, |built| built.block.at.number + 1);
        let below = parent.map_or(B256::ZERO, |built| built.block.at.hash);
        let mut ledger = parent.map(|built| built.ledger.clone()).unwrap_or_default();
        let mut taken = Vec::new();
        let mut gas = 0;
        for tx in txs {
            let contract = self.contracts.get(&tx.to).copied();
            if gas + tx.gas > BLOCK_GAS {
                continue;
            }
            if let Some(outcome) = Arc::make_mut(&mut ledger).apply(tx, self.base_fee, contract) {
                gas += outcome.gas_used;
                taken.push((tx.clone(), outcome));
            }
        }
        // The count of all blocks makes each hash new, so that an empty block has a twin on a fork.
        let mut text = [below.as_slice(), &self.blocks.len().to_be_bytes()].concat();
        taken.iter().for_each(|(tx, _)| text.extend(tx.hash));
        let hash = keccak256(text);
        let mined = taken.into_iter().map(|(tx, outcome)| {
            let receipt = ReceiptRead {
                hash: tx.hash,
                from: tx.from,
                block_number: number,
                block_hash: hash,
                is_success: outcome.is_success,
                gas_used: outcome.gas_used,
                gas_price: outcome.gas_price,
                logs: outcome.logs,
            };
            Mined { tx, receipt }
        });
        let at = BlockRef { number, hash, parent: below };
        let block = Block { at, base_fee: self.base_fee };
        let built = Built { block, mined: mined.collect(), ledger };
        self.blocks.insert(hash, built);
        hash
    }

    fn reorg(&mut self, depth: u64, fate: &Fate) {
        let keep = self.height_below(depth) + 1;
        let gone = self.chain.split_off(keep);
        let of = |hash: &B256| -> Vec<ModelTx> {
            self.blocks[hash].mined.iter().map(|it| it.tx.clone()).collect()
        };
        let mut old: Vec<Vec<ModelTx>> = gone.iter().map(of).collect();
        let all = old.concat();
        match fate {
            Fate::Kept => {}
            Fate::Moved => {
                old.iter_mut().for_each(Vec::clear);
                if let Some(last) = old.last_mut() {
                    *last = all;
                }
            }
            Fate::Pooled | Fate::Lost => old.iter_mut().for_each(Vec::clear),
            Fate::Replaced(raws) => {
                if let Some(first) = old.first_mut() {
                    let new = raws.iter().map(|raw| ModelTx::decode(raw).expect("a transaction"));
                    *first = new.chain(std::mem::take(first)).collect();
                }
            }
        }
        for txs in old {
            let top = self.chain.last().copied();
            let hash = self.build(top, &txs);
            self.chain.push(hash);
        }
        if *fate == Fate::Pooled {
            let back: Vec<ModelTx> = gone
                .iter()
                .flat_map(|hash| {
                    self.blocks[hash].mined.iter().map(|it| it.tx.clone()).collect::<Vec<_>>()
                })
                .collect();
            for site in self.sites.iter_mut().filter(|site| matches!(site.head, HeadAt::Lag(_))) {
                for tx in &back {
                    site.pool.0.entry(tx.from).or_default().entry(tx.nonce).or_insert(tx.clone());
                }
            }
        }
        self.prune();
    }
}

#[cfg(test)]
mod tests;
