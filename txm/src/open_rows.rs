//! The open rows of the signers that this node owns: how many, and the most that they may cost.
//!
//! An owner keeps its signer's rows here. The desk holds the cost of a request from its preparation
//! until the request's row is kept, so that two requests never count on the same coins.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;

use alloy_primitives::{Address, U256, U512};
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
    /// The costs of all rows and holds, wei.
    native: U512,
    /// Those of each token, in its units.
    tokens: BTreeMap<Address, U512>,
    /// Rows that are mined, as far as the count says, and have no receipt.
    unreceipted: usize,
}

struct Row {
    cost: OpenCost,
    is_numbered: bool,
}

impl Signer {
    fn add(&mut self, cost: &OpenCost) {
        self.native += U512::from(cost.native);
        if let Some((contract, amount)) = cost.token {
            *self.tokens.entry(contract).or_default() += U512::from(amount);
        }
    }

    fn subtract(&mut self, cost: &OpenCost) {
        self.native -= U512::from(cost.native);
        if let Some((contract, amount)) = cost.token
            && let Entry::Occupied(mut sum) = self.tokens.entry(contract)
        {
            *sum.get_mut() -= U512::from(amount);
            if sum.get().is_zero() {
                sum.remove();
            }
        }
    }

    /// Takes a row in place of the one of this id; `None`: there is none any more.
    fn put(&mut self, id: TxId, row: Option<Row>) {
        if let Some(row) = &row {
            self.add(&row.cost);
        }
        let before = match row {
            Some(row) => self.rows.insert(id, row),
            None => self.rows.remove(&id),
        };
        if let Some(before) = before {
            self.subtract(&before.cost);
        }
    }

    /// Forgets all rows.
    fn clear(&mut self) {
        for row in std::mem::take(&mut self.rows).into_values() {
            self.subtract(&row.cost);
        }
    }

    /// Whether these balances pay for a cost and for all that is open.
    fn affords(&self, cost: &OpenCost, native: U256, token: U256) -> bool {
        let sum = self.native + U512::from(cost.native);
        let Some((contract, amount)) = cost.token else { return sum <= U512::from(native) };
        let tokens = self.tokens.get(&contract).copied().unwrap_or_default() + U512::from(amount);
        sum <= U512::from(native) && tokens <= U512::from(token)
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
        kept.clear();
        for tx in rows {
            kept.put(tx.id, row(tx, max_fee));
        }
    }

    /// Takes a row as it was written last. A terminal one leaves.
    pub fn keep(&self, tx: &Tx, max_fee: u128) {
        let mut signers = self.signers.lock();
        let kept = signers.entry(tx.new.signer).or_default();
        kept.is_open = true;
        kept.put(tx.id, row(tx, max_fee));
    }

    /// Forgets the rows of a signer. Holds of requests under way stay.
    pub fn close(&self, signer: Address) {
        let mut signers = self.signers.lock();
        if let Some(kept) = signers.get_mut(&signer) {
            kept.is_open = false;
            kept.clear();
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
        kept.add(&cost);
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
            if let Some(cost) = kept.holds.remove(&self.number) {
                kept.subtract(&cost);
            }
            if !kept.is_open && kept.holds.is_empty() {
                signers.remove(&self.signer);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use alloy_primitives::Bytes;
    use chain::payload::TxPayload;
    use chain::tx::NewTx;
    use uuid::Uuid;

    use super::*;

    const SIGNER: Address = Address::repeat_byte(1);
    const TOKEN: Address = Address::repeat_byte(2);

    /// Holds wei and units of the token where there are 10 of each.
    fn hold(rows: &Arc<OpenRows>, native: u64, token: u64) -> Option<Hold> {
        let token = (token > 0).then_some((TOKEN, U256::from(token)));
        let most = U256::from(10);
        rows.hold(SIGNER, OpenCost::new(U256::from(native), token), most, most)
    }

    #[test]
    fn a_hold_counts_until_it_is_dropped() {
        let rows = Arc::default();
        let (first, second) = (hold(&rows, 4, 7), hold(&rows, 6, 0));
        assert!(first.is_some() && second.is_some());
        assert!(hold(&rows, 1, 0).is_none(), "no wei is left");
        drop(second);
        assert!(hold(&rows, 1, 4).is_none(), "3 units are left");
        assert!(hold(&rows, 6, 3).is_some());
        drop(first);
        assert!(rows.signers.lock().is_empty(), "no owner, and nothing held");
    }

    #[test]
    fn a_row_counts_as_it_was_kept_last() {
        let rows = Arc::<OpenRows>::default();
        let payload = TxPayload::of_call(SIGNER, U256::from(4), Bytes::new());
        let (request_id, business_key, deadline_ms) = ("a".to_owned(), None, None);
        let signer = SIGNER;
        let new = NewTx { signer, request_id, business_key, payload, gas: Some(1), deadline_ms };
        let tx = Tx::stored(TxId(Uuid::from_u128(1)), new, Some(0));
        rows.keep(&tx, 2);
        assert!(hold(&rows, 5, 0).is_none(), "6 are taken");
        rows.keep(&tx, 1);
        assert!(hold(&rows, 5, 0).is_some(), "5 are taken");
        rows.open(SIGNER, std::slice::from_ref(&tx), 3);
        assert!(hold(&rows, 4, 0).is_none() && hold(&rows, 3, 0).is_some(), "7 are taken");
        rows.close(SIGNER);
        assert!(hold(&rows, 10, 0).is_some());
    }
}
