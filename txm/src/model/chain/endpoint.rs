//! One endpoint of the chain in memory.

use std::sync::Arc;

use alloy_primitives::{Address, B256, Bytes, U256};
use parking_lot::Mutex;
use tokio::time::sleep;

use super::ledger::CALL_GAS;
use super::raw::ModelTx;
use super::{Built, Contract, World};
use crate::rpc::{Block, BlockAt, Endpoint, RpcCall, RpcError, RpcValue, TransactionRead};

/// A wrong answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lie {
    /// Any call: it is done, and its answer is lost.
    LostAnswer,
    /// Any call: it does not arrive.
    LostCall,
    /// A send: it is done, and another hash is answered.
    OtherHash,
    /// A send: it is not taken, with these words.
    Refuses(String),
    /// A send: it is taken, and these words are answered.
    TakesAndSays(String),
    /// A transaction by its sender and nonce: not found.
    NoTransaction,
    /// A receipt: the other status.
    OtherStatus,
    /// A receipt: a block that does not exist.
    OtherBlock,
    /// A receipt: not found.
    NoReceipt,
    /// The head: so many blocks lower.
    OldHead(u64),
    /// The head: a block that is its own parent.
    OwnParent,
    /// The tag `finalized`: the head.
    AllFinal,
    /// A count: so many more.
    CountAhead(u64),
}

impl Lie {
    fn fits(&self, call: &RpcCall) -> bool {
        match self {
            Lie::LostAnswer | Lie::LostCall => true,
            Lie::OtherHash | Lie::Refuses(_) | Lie::TakesAndSays(_) => {
                matches!(call, RpcCall::Send(_))
            }
            Lie::OtherStatus | Lie::OtherBlock | Lie::NoReceipt => {
                matches!(call, RpcCall::Receipt(_))
            }
            Lie::OldHead(_) | Lie::OwnParent => matches!(call, RpcCall::Block(BlockAt::Latest)),
            Lie::AllFinal => matches!(call, RpcCall::Block(BlockAt::Finalized)),
            Lie::NoTransaction => matches!(call, RpcCall::BySenderAndNonce(..)),
            Lie::CountAhead(_) => matches!(call, RpcCall::Count(..)),
        }
    }
}

/// One endpoint of the chain in memory.
#[derive(Clone, Debug)]
pub struct ModelEndpoint {
    world: Arc<Mutex<World>>,
    index: usize,
    name: String,
}

impl ModelEndpoint {
    pub(super) fn new(world: Arc<Mutex<World>>, index: usize) -> ModelEndpoint {
        ModelEndpoint { world, index, name: format!("model-{index}:8545") }
    }
}

impl Endpoint for ModelEndpoint {
    fn name(&self) -> &str {
        &self.name
    }

    async fn calls(&self, calls: &[RpcCall]) -> Vec<Result<RpcValue, RpcError>> {
        let latency = self.world.lock().sites[self.index].latency;
        // The half on the way, and the half back: a caller that gives up in the second half has
        // sent all the same.
        if !latency.is_zero() {
            sleep(latency / 2).await;
        }
        let answers = {
            let mut world = self.world.lock();
            calls.iter().map(|call| world.answer(self.index, call)).collect()
        };
        if !latency.is_zero() {
            sleep(latency / 2).await;
        }
        answers
    }
}

type Answer = Result<RpcValue, RpcError>;

fn lost() -> Answer {
    Err(RpcError::Unknown("connection lost".to_owned()))
}

fn said(code: i64, message: &str) -> Answer {
    Err(RpcError::Said { code, message: message.to_owned(), data: None })
}

impl World {
    fn answer(&mut self, site: usize, call: &RpcCall) -> Answer {
        *self.sites[site].calls.entry(call.method()).or_default() += 1;
        if self.sites[site].is_away {
            return lost();
        }
        let lies = &mut self.sites[site].lies;
        let lie = lies.iter().position(|(lie, _)| lie.fits(call)).map(|index| {
            lies[index].1 = lies[index].1.saturating_sub(1);
            let lie = lies[index].0.clone();
            lies.retain(|(_, left)| *left > 0);
            lie
        });
        match lie {
            None => self.truth(site, call),
            Some(Lie::LostCall) => lost(),
            Some(Lie::Refuses(words)) => said(-32000, &words),
            Some(Lie::NoTransaction) => Ok(RpcValue::Transaction(None)),
            Some(Lie::NoReceipt) => Ok(RpcValue::Receipt(None)),
            Some(Lie::OldHead(blocks)) => {
                let head = self.head_of(site).block.at.number.saturating_sub(blocks);
                Ok(RpcValue::Block(self.at(site, head).map(|built| built.block)))
            }
            Some(Lie::AllFinal) => Ok(RpcValue::Block(Some(self.head_of(site).block))),
            Some(lie) => {
                let truth = self.truth(site, call);
                bend(&lie, truth)
            }
        }
    }

    fn truth(&mut self, site: usize, call: &RpcCall) -> Answer {
        match call {
            RpcCall::ChainId => Ok(RpcValue::Number(self.chain_id)),
            RpcCall::Block(at) => Ok(RpcValue::Block(self.block(site, *at))),
            RpcCall::Count(account, at) => self.count(site, *account, *at),
            RpcCall::Send(raw) => self.send(site, raw),
            RpcCall::Receipt(hash) => {
                let mined = self.find(site, |tx| tx.hash == *hash);
                Ok(RpcValue::Receipt(mined.map(|it| Box::new(it.receipt.clone()))))
            }
            RpcCall::Transaction(hash) => {
                Ok(RpcValue::Transaction(self.transaction(site, |tx| tx.hash == *hash)))
            }
            RpcCall::Raw(hash) => Ok(self.raw(site, *hash)),
            RpcCall::BySenderAndNonce(account, nonce) => {
                let fits = |tx: &ModelTx| tx.from == *account && tx.nonce == *nonce;
                Ok(RpcValue::Transaction(self.transaction(site, fits)))
            }
            RpcCall::Estimate { from, to, value, data } => {
                self.estimate(site, (*from, *to, *value), data)
            }
            RpcCall::Balance(account) => {
                Ok(RpcValue::Amount(self.head_of(site).ledger.wei(*account)))
            }
            RpcCall::TokenBalance { contract, account } => match self.contracts.get(contract) {
                Some(Contract::Reverts) => said(3, "execution reverted"),
                _ => Ok(RpcValue::Amount(self.head_of(site).ledger.units(*contract, *account))),
            },
            RpcCall::CodeLength(account) => {
                Ok(RpcValue::Number(self.contracts.get(account).map_or(0, |_| 100)))
            }
            RpcCall::Tip => Ok(RpcValue::Amount(U256::from(self.tip))),
        }
    }

    /// The block of a name on an endpoint's chain. By hash, blocks of other branches are found too.
    fn block(&self, site: usize, at: BlockAt) -> Option<Block> {
        let head = self.head_of(site).block.at.number;
        let number = match at {
            BlockAt::Hash(hash) => return self.blocks.get(&hash).map(|built| built.block),
            BlockAt::Latest | BlockAt::Pending => head,
            BlockAt::Safe => head.saturating_sub(self.safe_depth),
            BlockAt::Finalized => head.saturating_sub(self.final_depth),
            BlockAt::Number(number) => number,
        };
        self.at(site, number).map(|built| built.block)
    }

    fn count(&self, site: usize, account: Address, at: BlockAt) -> Answer {
        if at == BlockAt::Pending {
            let ledger = &self.head_of(site).ledger;
            return Ok(RpcValue::Number(self.sites[site].pool.pending(account, ledger)));
        }
        let Some(block) = self.block(site, at) else { return said(-32000, "header not found") };
        if !self.is_on(site, block.at) {
            return said(-32000, "hash is not currently canonical");
        }
        let built: &Built = &self.blocks[&block.at.hash];
        Ok(RpcValue::Number(built.ledger.nonce(account)))
    }

    fn send(&mut self, site: usize, raw: &Bytes) -> Answer {
        let raws = &mut self.raws;
        let decoded = self.known_raws.entry(raw.clone()).or_insert_with(|| {
            raws.push(raw.clone());
            ModelTx::decode(raw)
        });
        let Some(tx) = decoded.clone() else {
            return said(-32602, "failed to decode signed transaction");
        };
        let hash = tx.hash;
        let ledger = self.head_of(site).ledger.clone();
        let chain_id = self.chain_id;
        match self.sites[site].pool.admit(tx, &ledger, chain_id) {
            Ok(()) => Ok(RpcValue::Hash(hash)),
            Err(refusal) => said(-32000, &refusal.0),
        }
    }

    fn raw(&self, site: usize, hash: B256) -> RpcValue {
        match self.find(site, |tx| tx.hash == hash) {
            Some(mined) => RpcValue::Raw(Some(mined.tx.raw.clone())),
            None => RpcValue::Transaction(None),
        }
    }

    fn transaction(&self, site: usize, fits: impl Fn(&ModelTx) -> bool) -> Option<TransactionRead> {
        let read = |tx: &ModelTx, block| TransactionRead {
            hash: tx.hash,
            from: tx.from,
            nonce: tx.nonce,
            block,
        };
        let mined = self.find(site, &fits);
        let mined =
            mined.map(|it| read(&it.tx, Some((it.receipt.block_number, it.receipt.block_hash))));
        mined.or_else(|| self.sites[site].pool.all().find(|tx| fits(tx)).map(|tx| read(tx, None)))
    }

    fn estimate(
        &self,
        site: usize,
        (from, to, value): (Address, Address, U256),
        data: &Bytes,
    ) -> Answer {
        let tx = ModelTx {
            raw: Bytes::new(),
            hash: B256::ZERO,
            chain_id: None,
            from,
            nonce: 0,
            to,
            value,
            data: data.clone(),
            gas: 0,
            max_fee: 0,
            max_tip: 0,
        };
        let contract = self.contracts.get(&to).copied();
        let mut ledger = (*self.head_of(site).ledger).clone();
        if ledger.wei(from) < value {
            return said(-32000, "insufficient funds for transfer");
        }
        match ledger.call(&tx, contract) {
            None => said(3, "execution reverted"),
            Some(_) => {
                let call = contract.map_or(0, |_| CALL_GAS);
                Ok(RpcValue::Number(tx.intrinsic_gas() + call))
            }
        }
    }
}

/// A true answer, changed.
fn bend(lie: &Lie, truth: Answer) -> Answer {
    let other = B256::repeat_byte(0x66);
    match (lie, truth) {
        (Lie::LostAnswer, _) => lost(),
        (Lie::OtherHash, Ok(RpcValue::Hash(_))) => Ok(RpcValue::Hash(other)),
        (Lie::TakesAndSays(words), Ok(_)) => said(-32000, words),
        (Lie::OtherStatus, Ok(RpcValue::Receipt(Some(mut read)))) => {
            read.is_success = !read.is_success;
            Ok(RpcValue::Receipt(Some(read)))
        }
        (Lie::OtherBlock, Ok(RpcValue::Receipt(Some(mut read)))) => {
            read.block_hash = other;
            Ok(RpcValue::Receipt(Some(read)))
        }
        (Lie::OwnParent, Ok(RpcValue::Block(Some(mut block)))) => {
            block.at.parent = block.at.hash;
            Ok(RpcValue::Block(Some(block)))
        }
        (Lie::CountAhead(more), Ok(RpcValue::Number(count))) => {
            Ok(RpcValue::Number(count.saturating_add(*more)))
        }
        (_, truth) => truth,
    }
}
