//! The model of the chain against the node, by random runs. The simulation of the manager runs on
//! the model, so its findings count for a real chain as far as the two agree.
//!
//! Both get the same transactions, blocks, reorganizations and losses of the pool, through the
//! [`Endpoint`] that production uses. Behind each step both are asked the same questions. Answers
//! are equal but for the hashes of blocks, which are translated, and for [`DIFFERENCES`].

use std::collections::{BTreeMap, BTreeSet};

use alloy_primitives::{Address, B256, Bytes, U256};
use chain::class::SendClass;
use chain::fee::GasPrice;
use serde_json::json;
use txm::model;
use txm::model::chain::{Fate, ModelChain, ModelEndpoint};
use txm::model::wallet::Wallet;
use txm::rpc::http::HttpEndpoint;
use txm::rpc::{BlockAt, Endpoint, RpcCall, RpcError, RpcValue};
use txm::signer::Unsigned;

use crate::harness::{
    CHAIN_ID, Chain, ChainProxy, FIRST_BASE_FEE, Random, SLOTS_IN_AN_EPOCH, block_on, crowd, hash,
    hex_of,
};

const SEEDS: u64 = 30;
const STEPS: usize = 60;
/// Seeds that run at the same time.
const CROWD: usize = 3;
/// The account that is paid.
const PAYEE: Address = Address::repeat_byte(0xb1);
/// Coins of each wallet but the last one, wei.
const RICH: u128 = 1_000_000 * COIN;
/// Of the last one.
const POOR: u128 = COIN / 1_000;
const COIN: u128 = 1_000_000_000_000_000_000;
/// The highest usual base fee, in units of the first one.
const USUAL_FEES: usize = 4;
/// The hashes that are asked for behind a step, the latest ones.
const ASKED_MAX: usize = 12;

/// A difference that is the node's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Difference {
    LowFeeRefused,
    LowFeeDropped,
    GapDropped,
    LaterDropped,
    OldBlockGone,
    BaseFeeOfNewBlocks,
    NoTip,
    FeeCap,
}

/// All of them, each met by the runs. The model is as geth is, `docs/chain-node.md` has both.
const DIFFERENCES: [(Difference, &str); 8] = [
    (Difference::LowFeeRefused, "a fee below the base fee is refused; the model's pool keeps it"),
    (Difference::LowFeeDropped, "the next block drops one from the pool; the model keeps it"),
    (Difference::GapDropped, "the next block drops transactions behind a lost nonce"),
    (Difference::LaterDropped, "the later ones go with one that the pool is told to drop"),
    (Difference::OldBlockGone, "a reorganized block is not found by its hash"),
    (Difference::BaseFeeOfNewBlocks, "new blocks of a reorganization have a base fee of their own"),
    (Difference::NoTip, "a transaction without a tip is taken"),
    (Difference::FeeCap, "one may cost more than a coin in gas"),
];

/// A transaction that both were sent.
#[derive(Clone, Debug)]
struct SentTx {
    from: Address,
    nonce: u64,
    hash: B256,
    raw: Bytes,
    price: GasPrice,
}

/// The odd thing about a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Odd {
    Nothing,
    Replaces,
    ReplacesTooLow,
    BehindAGap,
    MinedNonce,
    SameBytes,
    LowFee,
    NoTip,
    FeeCap,
    LittleGas,
    MuchGas,
    TipAboveFee,
    OtherChain,
    Poor,
    NoTransaction,
}

const ODDS: [Odd; 14] = [
    Odd::Replaces,
    Odd::ReplacesTooLow,
    Odd::BehindAGap,
    Odd::MinedNonce,
    Odd::SameBytes,
    Odd::LowFee,
    Odd::NoTip,
    Odd::FeeCap,
    Odd::LittleGas,
    Odd::MuchGas,
    Odd::TipAboveFee,
    Odd::OtherChain,
    Odd::Poor,
    Odd::NoTransaction,
];

/// The node and the model.
struct Both {
    seed: u64,
    step: usize,
    node: Chain,
    real: HttpEndpoint,
    model: ModelChain,
    modeled: ModelEndpoint,
    wallets: Vec<Wallet>,
    random: Random,
    /// The base fee of the last block that was mined, and of each block by height, wei.
    base_fee: u128,
    fees: Vec<u128>,
    sent: Vec<SentTx>,
    /// The node's hash and the model's, by height.
    chain: Vec<(B256, B256)>,
    /// The model's hash by the node's, of all blocks that ever were.
    hashes: BTreeMap<B256, B256>,
    /// Heights with [`Difference::BaseFeeOfNewBlocks`].
    other_fees: BTreeSet<u64>,
    /// Accounts that paid other prices there.
    other_coins: BTreeSet<Address>,
    met: BTreeSet<Difference>,
    /// The steps so far, for a failure.
    story: Vec<String>,
    /// Of the proxy, which ends with this value.
    _proxy: ChainProxy,
}

type Answer = Result<RpcValue, RpcError>;

impl Both {
    fn new(seed: u64) -> Both {
        let node = Chain::start();
        let proxy = ChainProxy::start(&node);
        let real = HttpEndpoint::new(&proxy.url(), None, &model::options()).expect("a URL");
        let modeled = ModelChain::new(CHAIN_ID, 1);
        modeled.set_depths(SLOTS_IN_AN_EPOCH, 2 * SLOTS_IN_AN_EPOCH);
        let wallets: Vec<Wallet> = (1..=4).map(|number| Wallet::new(1_000 + number)).collect();
        for (place, wallet) in wallets.iter().enumerate() {
            let wei = U256::from(if place + 1 == wallets.len() { POOR } else { RICH });
            node.set_balance(wallet.address(), wei);
            modeled.fund(wallet.address(), wei);
        }
        let endpoint = modeled.endpoints().remove(0);
        let mut both = Both {
            seed,
            step: 0,
            node,
            real,
            model: modeled,
            modeled: endpoint,
            wallets,
            random: Random::new(seed),
            base_fee: FIRST_BASE_FEE,
            fees: Vec::new(),
            sent: Vec::new(),
            chain: Vec::new(),
            hashes: BTreeMap::from([(B256::ZERO, B256::ZERO)]),
            other_fees: BTreeSet::new(),
            other_coins: BTreeSet::new(),
            met: BTreeSet::new(),
            story: Vec::new(),
            _proxy: proxy,
        };
        both.read_blocks(0);
        both.mine(FIRST_BASE_FEE);
        both
    }

    /// The end of the story.
    fn shown(&self) -> String {
        let last = &self.story[self.story.len().saturating_sub(8)..];
        format!("seed {}, step {}:\n{}", self.seed, self.step, last.join("\n"))
    }

    fn meets(&mut self, difference: Difference) {
        self.met.insert(difference);
    }

    fn ask_node(&self, calls: &[RpcCall]) -> Vec<Answer> {
        block_on(self.real.calls(calls))
    }

    fn ask_model(&self, calls: &[RpcCall]) -> Vec<Answer> {
        block_on(self.modeled.calls(calls))
    }

    fn height(&self) -> u64 {
        self.chain.len() as u64 - 1
    }

    /// Translates the blocks from a height on.
    fn read_blocks(&mut self, from: u64) {
        self.chain.truncate(usize::try_from(from).expect("small"));
        self.fees.truncate(self.chain.len());
        for number in from..=self.node.height() {
            let call = [RpcCall::Block(BlockAt::Number(number))];
            let (node, model) = (self.ask_node(&call).remove(0), self.ask_model(&call).remove(0));
            let (Ok(RpcValue::Block(Some(node))), Ok(RpcValue::Block(Some(model)))) = (node, model)
            else {
                panic!("no block {number}, {}", self.shown());
            };
            self.other_fees.remove(&number);
            if node.base_fee != model.base_fee {
                self.other_fees.insert(number);
            }
            self.hashes.insert(node.at.hash, model.at.hash);
            self.chain.push((node.at.hash, model.at.hash));
            self.fees.push(node.base_fee);
        }
    }

    /// One block on both, with this base fee. Transactions that only the node drops leave the
    /// model too.
    fn mine(&mut self, base_fee: u128) {
        self.story.push(format!("a block with base fee {base_fee}"));
        self.base_fee = base_fee;
        self.node.set_base_fee(base_fee);
        self.model.set_base_fee(base_fee);
        self.node.mine(1);
        self.model.mine(1);
        let height = self.height();
        self.read_blocks(height + 1);
        assert!(self.other_fees.range(height + 1..).next().is_none(), "the base fee is set");
        for lost in self.only_in_the_model() {
            let is_low = lost.price.max_fee < base_fee;
            let counts = self.ask_node(&[RpcCall::Count(lost.from, BlockAt::Pending)]);
            let is_behind_a_gap = counts[0] != Ok(RpcValue::Number(lost.nonce));
            let why = if is_low { Difference::LowFeeDropped } else { Difference::GapDropped };
            assert!(is_low || is_behind_a_gap, "dropped, {}", self.shown());
            self.meets(why);
            self.model.forget(lost.hash);
        }
    }

    /// Transactions in the model's pool that the node does not know.
    fn only_in_the_model(&self) -> Vec<SentTx> {
        let of = |sent: &SentTx| RpcCall::Transaction(sent.hash);
        let all: Vec<RpcCall> = self.sent.iter().map(of).collect();
        let is_pooled = |answer: &Answer| match answer {
            Ok(RpcValue::Transaction(found)) => found.is_some_and(|found| found.block.is_none()),
            other => panic!("{other:?}"),
        };
        let known = self.sent.iter().zip(self.ask_model(&all));
        let pooled = known.filter(|(_, answer)| is_pooled(answer)).map(|(sent, _)| sent.clone());
        let pooled: Vec<SentTx> = pooled.collect();
        let node = self.ask_node(&pooled.iter().map(of).collect::<Vec<_>>());
        assert_eq!(node.len(), pooled.len());
        let both = pooled.into_iter().zip(node);
        both.filter(|(_, answer)| *answer == Ok(RpcValue::Transaction(None)))
            .map(|(sent, _)| sent)
            .collect()
    }
}

impl Both {
    fn pending(&self, account: Address) -> u64 {
        match self.ask_model(&[RpcCall::Count(account, BlockAt::Pending)])[..] {
            [Ok(RpcValue::Number(count))] => count,
            ref other => panic!("{other:?}"),
        }
    }

    fn mined(&self, account: Address) -> u64 {
        match self.ask_model(&[RpcCall::Count(account, BlockAt::Latest)])[..] {
            [Ok(RpcValue::Number(count))] => count,
            ref other => panic!("{other:?}"),
        }
    }

    /// Prices that every block here takes, but for the dear ones. In one of two the tip is the
    /// whole of it.
    fn price(&self) -> GasPrice {
        let max_fee = (10 + self.random.below(20) as u128) * FIRST_BASE_FEE;
        let tip = 1 + self.random.below(5) as u128;
        let max_tip = if self.random.once_in(2) { max_fee } else { tip * FIRST_BASE_FEE };
        GasPrice { max_fee, max_tip }
    }

    /// The oldest transaction of an account in the pool, by chance.
    fn pooled(&self, account: Address) -> Option<SentTx> {
        let (mined, pending) = (self.mined(account), self.pending(account));
        if mined == pending {
            return None;
        }
        let nonce = mined + self.random.below(usize::try_from(pending - mined).ok()?) as u64;
        let mut own = self.sent.iter().rev();
        let found = own.find(|sent| sent.from == account && sent.nonce == nonce)?;
        let known = self.ask_model(&[RpcCall::Transaction(found.hash)]);
        matches!(known[0], Ok(RpcValue::Transaction(Some(_)))).then(|| found.clone())
    }

    /// Sends one transaction to both, with something odd about it.
    fn send(&mut self, odd: Odd) {
        let rich = self.wallets.len() - 1;
        let place = if odd == Odd::Poor { rich } else { self.random.below(rich) };
        let wallet = self.wallets[place].clone();
        let mut wish = Unsigned {
            chain_id: CHAIN_ID,
            signer: wallet.address(),
            nonce: self.pending(wallet.address()),
            to: PAYEE,
            value: U256::from(1 + self.random.below(1_000)),
            data: Bytes::new(),
            gas: 21_000 + self.random.below(10_000) as u64,
            price: self.price(),
            is_legacy: false,
        };
        let pooled = self.pooled(wallet.address());
        match odd {
            Odd::Nothing => wish.is_legacy = self.random.once_in(4),
            Odd::Replaces | Odd::ReplacesTooLow => {
                let Some(old) = pooled else { return };
                let percent = if odd == Odd::Replaces { 110 } else { 109 };
                let raised = |fee: u128| (fee * percent).div_ceil(100);
                let GasPrice { max_fee, max_tip } = old.price;
                wish.nonce = old.nonce;
                wish.price = GasPrice { max_fee: raised(max_fee), max_tip: raised(max_tip) };
            }
            Odd::BehindAGap => wish.nonce += 1 + self.random.below(3) as u64,
            Odd::MinedNonce => match self.mined(wallet.address()) {
                0 => return,
                mined => wish.nonce = mined - 1,
            },
            Odd::SameBytes => {
                // In the pool, or lost.
                let is_lost = |sent: &&SentTx| sent.from == wish.signer && sent.nonce == wish.nonce;
                let old = pooled.or_else(|| self.sent.iter().find(is_lost).cloned());
                let Some(old) = old else { return };
                return self.deliver(odd, old);
            }
            Odd::LowFee => wish.price = GasPrice { max_fee: 1_000, max_tip: 1_000 },
            Odd::NoTip => wish.price.max_tip = 0,
            Odd::FeeCap => {
                let max_fee = 100_000 * FIRST_BASE_FEE;
                wish.price = GasPrice { max_fee, max_tip: FIRST_BASE_FEE };
            }
            Odd::LittleGas => wish.gas = 20_999,
            Odd::MuchGas => {
                wish.gas = 30_000_001;
                wish.price = GasPrice { max_fee: 10 * FIRST_BASE_FEE, max_tip: 1 };
            }
            Odd::TipAboveFee => wish.price.max_tip = wish.price.max_fee + 1,
            Odd::OtherChain => wish.chain_id += 1,
            Odd::Poor => wish.value = U256::from(POOR),
            Odd::NoTransaction => {}
        }
        let signed = wallet.sign(&wish);
        let mut raw = signed.raw;
        if odd == Odd::NoTransaction {
            raw = raw.slice(..raw.len() / 2);
        }
        if wish.is_legacy {
            wish.price.max_tip = wish.price.max_fee;
        }
        let (from, nonce, price) = (wish.signer, wish.nonce, wish.price);
        self.deliver(odd, SentTx { from, nonce, hash: signed.hash, raw, price });
    }

    fn deliver(&mut self, odd: Odd, sent: SentTx) {
        let class = |answer: &Answer| match answer {
            Ok(RpcValue::Hash(hash)) if *hash == sent.hash => SendClass::Accepted,
            Err(RpcError::Said { message, data, .. }) => {
                SendClass::of_error(message, data.as_deref())
            }
            other => panic!("{other:?}"),
        };
        let call = [RpcCall::Send(sent.raw.clone())];
        let node = self.ask_node(&call);
        let own = match (odd, class(&node[0])) {
            (_, SendClass::Underpriced) => {
                // The base fee rises by an eighth at most.
                assert!(sent.price.max_fee < self.base_fee * 9 / 8, "{node:?}");
                Some(Difference::LowFeeRefused)
            }
            (Odd::NoTip, SendClass::Accepted) => Some(Difference::NoTip),
            (Odd::FeeCap, SendClass::Accepted) => Some(Difference::FeeCap),
            _ => None,
        };
        if let Some(own) = own {
            self.story.push(format!("{odd:?} {sent:?}: {own:?}"));
            self.meets(own);
            if class(&node[0]) == SendClass::Accepted {
                // The model refuses it; without it the two go on alike.
                let model = self.ask_model(&call);
                assert_ne!(class(&model[0]), SendClass::Accepted, "{own:?}");
                assert!(self.node.drop_transaction(sent.hash));
                self.forget_later(&sent);
            }
            return;
        }
        let model = self.ask_model(&call);
        let (of_node, of_model) = (class(&node[0]), class(&model[0]));
        self.story.push(format!("{odd:?} {sent:?}: {of_node:?}"));
        assert_eq!(of_node, of_model, "{node:?} and {model:?}, {}", self.shown());
        let is_new = self.sent.iter().all(|old| old.hash != sent.hash);
        if class(&node[0]) == SendClass::Accepted && is_new {
            self.sent.push(sent);
        }
    }

    /// The pool loses one; the node's also the later ones of its sender.
    fn drop_one(&mut self) {
        let place = self.random.below(self.wallets.len());
        let Some(lost) = self.pooled(self.wallets[place].address()) else { return };
        self.story.push(format!("drop {lost:?}"));
        assert!(self.node.drop_transaction(lost.hash));
        self.model.forget(lost.hash);
        self.forget_later(&lost);
    }

    /// The node's pool has dropped a transaction, with the later ones of its sender.
    fn forget_later(&mut self, lost: &SentTx) {
        for later in self.only_in_the_model() {
            let is_later = later.from == lost.from && later.nonce > lost.nonce;
            assert!(is_later, "{later:?}, {}", self.shown());
            self.meets(Difference::LaterDropped);
            self.model.forget(later.hash);
        }
    }

    /// Replaces the last blocks on both. A block follows, since until then the node's pool counts
    /// transactions behind lost nonces.
    fn reorganize(&mut self) {
        // The coins stand in the state of the first block alone.
        let depth = (1 + self.random.below(3) as u64).min(self.height() - 1);
        let first = self.height() - depth + 1;
        // The node derives the new blocks' base fee from the parent's.
        let is_dear = |fee: &u128| *fee > USUAL_FEES as u128 * FIRST_BASE_FEE;
        let from = usize::try_from(first - 1).expect("small");
        if depth == 0 || self.fees[from..].iter().any(is_dear) {
            return;
        }
        self.model.set_base_fee(FIRST_BASE_FEE);
        let mut blocks: Vec<Vec<SentTx>> = Vec::new();
        for height in first..=self.height() {
            let block = self.node.block(height).expect("a block");
            let hashes = block["transactions"].as_array().expect("a list").iter().map(hash);
            let of = |hash: B256| self.sent.iter().find(|sent| sent.hash == hash);
            blocks.push(hashes.map(|hash| of(hash).expect("ours").clone()).collect());
        }
        let all = blocks.concat();
        let placed = |moves: bool| -> Vec<(Bytes, u64)> {
            let at = |(txs, place): (&Vec<SentTx>, u64)| {
                let place = if moves { depth - 1 } else { place };
                txs.iter().map(|tx| (tx.raw.clone(), place)).collect::<Vec<_>>()
            };
            blocks.iter().zip(0..).flat_map(at).collect()
        };
        let (fate, with) = match self.random.below(4) {
            0 => (Fate::Lost, Vec::new()),
            1 => (Fate::Moved, placed(true)),
            2 if !all.is_empty() => {
                let new = self.another(&all[self.random.below(all.len())]);
                self.sent.push(new.clone());
                let with = [vec![(new.raw.clone(), 0)], placed(false)].concat();
                (Fate::Replaced(vec![new.raw]), with)
            }
            _ => (Fate::Kept, placed(false)),
        };
        let old = self.chain.last().expect("block 0").0;
        let with: Vec<(&[u8], u64)> = with.iter().map(|(raw, at)| (raw.as_ref(), *at)).collect();
        self.story.push(format!("reorganize {depth}, {fate:?}, {blocks:?}"));
        self.node.reorg(depth, &with);
        self.model.reorg(depth, &fate);
        self.read_blocks(first);
        let gone = RpcCall::Block(BlockAt::Hash(old));
        assert_eq!(self.ask_node(&[gone]), [Ok(RpcValue::Block(None))]);
        let gone = RpcCall::Block(BlockAt::Hash(self.hashes[&old]));
        assert!(matches!(self.ask_model(&[gone])[..], [Ok(RpcValue::Block(Some(_)))]));
        self.meets(Difference::OldBlockGone);
        self.note_other_fees(first);
        self.mine(FIRST_BASE_FEE);
    }

    /// Another transaction with the nonce of one.
    fn another(&self, old: &SentTx) -> SentTx {
        let wallet = self.wallets.iter().find(|wallet| wallet.address() == old.from);
        let max_fee = 30 * FIRST_BASE_FEE;
        let price = GasPrice { max_fee, max_tip: max_fee };
        let wish = Unsigned {
            chain_id: CHAIN_ID,
            signer: old.from,
            nonce: old.nonce,
            to: PAYEE,
            value: U256::from(1_000 + self.random.below(1_000)),
            data: Bytes::new(),
            gas: 21_000,
            price,
            is_legacy: false,
        };
        let signed = wallet.expect("a wallet of ours").sign(&wish);
        SentTx { from: old.from, nonce: old.nonce, hash: signed.hash, raw: signed.raw, price }
    }

    /// Notes the accounts that paid by the base fee of blocks that differ there.
    fn note_other_fees(&mut self, first: u64) {
        for height in self.other_fees.range(first..).copied().collect::<Vec<_>>() {
            self.meets(Difference::BaseFeeOfNewBlocks);
            let block = self.node.ask("eth_getBlockByNumber", json!([hex_of(height), false]));
            for mined in block["transactions"].as_array().expect("a list").iter().map(hash) {
                let sent = self.sent.iter().find(|sent| sent.hash == mined).expect("ours");
                if sent.price.max_tip < sent.price.max_fee {
                    self.other_coins.insert(sent.from);
                }
            }
        }
    }
}

impl Both {
    /// One random step, and the questions behind it.
    fn step(&mut self) {
        match self.random.below(20) {
            0..9 => self.send(Odd::Nothing),
            9..13 => self.send(ODDS[self.random.below(ODDS.len())]),
            13..16 => {
                let times =
                    if self.random.once_in(8) { 20 } else { 1 + self.random.below(USUAL_FEES) };
                self.mine(times as u128 * FIRST_BASE_FEE);
            }
            16 | 17 => self.reorganize(),
            18 => self.drop_one(),
            _ => self.mine(FIRST_BASE_FEE),
        }
        self.compare();
    }

    /// A question about a block that is on the chain, for the node and for the model.
    fn block_at(&self) -> (BlockAt, BlockAt) {
        let (node, model) = self.chain[self.random.below(self.chain.len())];
        (BlockAt::Hash(node), BlockAt::Hash(model))
    }

    fn questions(&self) -> Vec<(RpcCall, RpcCall)> {
        let same = |call: RpcCall| (call.clone(), call);
        let number = BlockAt::Number(self.random.below(self.chain.len() + 2) as u64);
        let tags = [BlockAt::Latest, BlockAt::Safe, BlockAt::Finalized, number];
        let mut all: Vec<_> = tags.map(|at| same(RpcCall::Block(at))).into();
        all.push(same(RpcCall::ChainId));
        let (node, model) = self.block_at();
        all.push((RpcCall::Block(node), RpcCall::Block(model)));
        for account in self.wallets.iter().map(Wallet::address) {
            let (node, model) = self.block_at();
            all.push((RpcCall::Count(account, node), RpcCall::Count(account, model)));
            let nonce = self.random.below(12) as u64;
            all.extend([
                same(RpcCall::Count(account, BlockAt::Latest)),
                same(RpcCall::Count(account, BlockAt::Pending)),
                same(RpcCall::BySenderAndNonce(account, nonce)),
            ]);
            if !self.other_coins.contains(&account) {
                all.push(same(RpcCall::Balance(account)));
            }
        }
        all.push(same(RpcCall::Balance(PAYEE)));
        for sent in self.sent.iter().rev().take(ASKED_MAX) {
            all.push(same(RpcCall::Transaction(sent.hash)));
            all.push(same(RpcCall::Receipt(sent.hash)));
        }
        all
    }

    fn compare(&self) {
        let (of_node, of_model): (Vec<RpcCall>, Vec<RpcCall>) =
            self.questions().into_iter().unzip();
        let (node, model) = (self.ask_node(&of_node), self.ask_model(&of_model));
        for ((call, node), model) in of_node.iter().zip(node).zip(model) {
            let told = self.translated(node.clone(), &model);
            assert_eq!(told, model, "{call:?}: {node:?}, {}", self.shown());
        }
    }

    /// The node's answer with the model's hashes of blocks, and with its prices where
    /// [`Difference::BaseFeeOfNewBlocks`] is known.
    fn translated(&self, node: Answer, model: &Answer) -> Answer {
        let hash = |hash: B256| self.hashes.get(&hash).copied().unwrap_or(hash);
        Ok(match (node?, model) {
            (RpcValue::Block(Some(mut block)), Ok(RpcValue::Block(Some(other)))) => {
                block.at.hash = hash(block.at.hash);
                block.at.parent = hash(block.at.parent);
                if self.other_fees.contains(&block.at.number) {
                    block.base_fee = other.base_fee;
                }
                RpcValue::Block(Some(block))
            }
            (RpcValue::Receipt(Some(mut read)), Ok(RpcValue::Receipt(Some(other)))) => {
                read.block_hash = hash(read.block_hash);
                if self.other_fees.contains(&read.block_number) {
                    read.gas_price = other.gas_price;
                }
                RpcValue::Receipt(Some(read))
            }
            (RpcValue::Transaction(Some(mut read)), _) => {
                read.block = read.block.map(|(number, of)| (number, hash(of)));
                RpcValue::Transaction(Some(read))
            }
            (other, _) => other,
        })
    }
}

/// Goal: the model of the chain answers as the node does. Method: random steps on both, all
/// questions behind each; every difference is in the table, and each of the table is met.
#[test]
fn the_model_of_the_chain_answers_as_the_node_does() {
    let per_thread = SEEDS.div_ceil(CROWD as u64);
    let met = crowd(CROWD, |thread| {
        let mut met = BTreeSet::new();
        let first = thread as u64 * per_thread;
        for seed in first..SEEDS.min(first + per_thread) {
            let mut both = Both::new(seed);
            for step in 0..STEPS {
                both.step = step;
                both.step();
            }
            met.append(&mut both.met);
        }
        met
    });
    let met: BTreeSet<Difference> = met.into_iter().flatten().collect();
    for (difference, words) in DIFFERENCES {
        assert!(met.contains(&difference), "not met: {difference:?}, {words}");
    }
}
