//! The open rows of the signers that this node owns: how many, and the most that they may cost.
//!
//! An owner keeps its signer's rows here. The desk holds the cost of a request from its preparation
//! until the request's row is kept, so that two requests never count on the same coins.

use std::collections::BTreeMap;
use std::sync::Arc;

use alloy_primitives::{Address, U256};
use chain::tx::{Tx, TxId};
use parking_lot::Mutex;

/// The most that a transaction may take from its signer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpenCost {
    /// Value and gas, wei.
    pub native: U256,
    /// A token, and the units of it.
    pub token: Option<(Address, U256)>,
}

impl OpenCost {
    /// The cost of a row. `max_fee`: the price, wei per gas, if it has no attempt yet. A row
    /// without a nonce, one that is mined, and one that is terminal cost nothing: the balance at
    /// the head shows a mined one.
    pub fn of(tx: &Tx, max_fee: u128) -> OpenCost {
        let is_paid = tx.receipt.is_some() || tx.state.is_terminal();
        if tx.nonce.is_none() || is_paid {
            return OpenCost::default();
        }
        let price = tx.attempts.iter().map(|attempt| attempt.price.max_fee).max();
        let payload = &tx.new.payload;
        let attempts = tx.attempts.iter().map(|attempt| attempt.gas);
        let gas = attempts.chain(tx.new.gas).max().unwrap_or_default();
        OpenCost::new(payload.value, payload.token.as_ref().map(|it| (it.contract, it.amount)))
            .with_gas(gas, price.unwrap_or(max_fee))
    }

    /// A value in wei and units of a token, without gas.
    pub fn new(native: U256, token: Option<(Address, U256)>) -> OpenCost {
        OpenCost { native, token }
    }

    /// The cost with gas at a price of `max_fee` wei each.
    #[must_use]
    pub fn with_gas(self, gas: u64, max_fee: u128) -> OpenCost {
        let fee = U256::from(gas).saturating_mul(U256::from(max_fee));
        OpenCost { native: self.native.saturating_add(fee), ..self }
    }
}

#[derive(Default)]
struct Signer {
    /// Whether its owner has read its book.
    is_open: bool,
    rows: BTreeMap<TxId, Row>,
    holds: BTreeMap<u64, OpenCost>,
    /// Rows that are mined, as far as the count says, and have no receipt.
    unreceipted: usize,
}

struct Row {
    cost: OpenCost,
    is_numbered: bool,
}

impl Signer {
    fn costs(&self) -> impl Iterator<Item = &OpenCost> {
        self.rows.values().map(|row| &row.cost).chain(self.holds.values())
    }

    /// Whether these balances pay for a cost and for all that is open.
    fn affords(&self, cost: &OpenCost, native: U256, token: U256) -> bool {
        let sum = self.costs().fold(cost.native, |sum, open| sum.saturating_add(open.native));
        let Some((contract, amount)) = cost.token else { return sum <= native };
        let same = self.costs().filter_map(|open| open.token).filter(|open| open.0 == contract);
        let tokens = same.fold(amount, |sum, open| sum.saturating_add(open.1));
        sum <= native && tokens <= token
    }
}

/// The open rows of a node's signers.
#[derive(Default)]
pub struct OpenRows {
    signers: Mutex<BTreeMap<Address, Signer>>,
    holds: Mutex<u64>,
}

impl OpenRows {
    /// Takes the rows of a signer that has a new owner here, in place of all before.
    pub fn open(&self, signer: Address, rows: &[Tx], max_fee: u128) {
        let mut signers = self.signers.lock();
        let kept = signers.entry(signer).or_default();
        kept.is_open = true;
        kept.rows = rows.iter().filter_map(|tx| Some((tx.id, row(tx, max_fee)?))).collect();
    }

    /// Takes a row as it was written last. A terminal one leaves.
    pub fn keep(&self, tx: &Tx, max_fee: u128) {
        let mut signers = self.signers.lock();
        let kept = signers.entry(tx.new.signer).or_default();
        kept.is_open = true;
        match row(tx, max_fee) {
            Some(row) => drop(kept.rows.insert(tx.id, row)),
            None => drop(kept.rows.remove(&tx.id)),
        }
    }

    /// Forgets the rows of a signer. Holds of requests under way stay.
    pub fn close(&self, signer: Address) {
        let mut signers = self.signers.lock();
        if let Some(kept) = signers.get_mut(&signer) {
            kept.is_open = false;
            kept.rows.clear();
            kept.unreceipted = 0;
            if kept.holds.is_empty() {
                signers.remove(&signer);
            }
        }
    }

    /// The open rows of a signer; `None`: its owner has not read its book yet, or is not here.
    pub fn count(&self, signer: Address) -> Option<usize> {
        let signers = self.signers.lock();
        signers.get(&signer).filter(|kept| kept.is_open).map(|kept| kept.rows.len())
    }

    /// Takes the number of a signer's rows that are mined and have no receipt.
    pub fn lack_receipts(&self, signer: Address, rows: usize) {
        if let Some(kept) = self.signers.lock().get_mut(&signer) {
            kept.unreceipted = rows;
        }
    }

    /// The open rows of all owned signers, and those that are mined and have no receipt.
    pub fn totals(&self) -> (usize, usize) {
        let signers = self.signers.lock();
        let sum = |count: fn(&Signer) -> usize| signers.values().map(count).sum();
        (sum(|kept| kept.rows.len()), sum(|kept| kept.unreceipted))
    }

    /// The rows without a nonce that owners have, ascending.
    pub fn without_nonce(&self) -> Vec<TxId> {
        let signers = self.signers.lock();
        let rows = signers.values().flat_map(|kept| &kept.rows);
        let mut ids: Vec<TxId> =
            rows.filter(|(_, row)| !row.is_numbered).map(|(id, _)| *id).collect();
        ids.sort_unstable();
        ids
    }

    /// Holds the cost of a request, if balances pay for it and for all that is open; `None`: they
    /// do not. `native`: wei; `token`: units of the token in `cost`.
    pub fn hold(
        self: &Arc<Self>,
        signer: Address,
        cost: OpenCost,
        native: U256,
        token: U256,
    ) -> Option<Hold> {
        let mut signers = self.signers.lock();
        let kept = signers.entry(signer).or_default();
        if !kept.affords(&cost, native, token) {
            return None;
        }
        let mut last = self.holds.lock();
        *last += 1;
        kept.holds.insert(*last, cost);
        Some(Hold { rows: Arc::clone(self), signer, number: *last })
    }
}

/// The row to keep; `None`: nothing of it is open.
fn row(tx: &Tx, max_fee: u128) -> Option<Row> {
    let is_open = !tx.state.is_terminal();
    is_open.then(|| Row { cost: OpenCost::of(tx, max_fee), is_numbered: tx.nonce.is_some() })
}

/// A held cost. It is free again when this is dropped.
#[must_use]
pub struct Hold {
    rows: Arc<OpenRows>,
    signer: Address,
    number: u64,
}

impl Drop for Hold {
    fn drop(&mut self) {
        let mut signers = self.rows.signers.lock();
        if let Some(kept) = signers.get_mut(&self.signer) {
            kept.holds.remove(&self.number);
            if !kept.is_open && kept.holds.is_empty() {
                signers.remove(&self.signer);
            }
        }
    }
}
