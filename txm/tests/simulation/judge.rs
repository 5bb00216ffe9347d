//! The judge: the laws of the chain (CL1 to CL9 of the specification), as the database and
//! the chain show. Each broken law is a panic with its name. The database of the model judges the
//! laws of single statements itself, and an endpoint those of a raw that leaves.

use std::collections::{BTreeMap, BTreeSet};

use alloy_primitives::{Address, B256, U256};
use chain::state::{AttemptKind, TxState};
use chain::tx::{FailCode, Tx};
use txm::model::chain::{ModelChain, ModelTx};
use txm::model::store::ModelDatabase;
use txm::rpc::ReceiptRead;

/// Confirmations on top of a receipt's block, before its row may end.
pub(super) const REQUIRED: usize = 3;

/// The memory of the judge over a run.
#[derive(Default)]
pub(super) struct Judge {
    /// The attempts that are judged, each with its fee and tip, wei per gas.
    priced: BTreeMap<B256, (u128, u128)>,
    /// The transactions that the key signed elsewhere.
    pub foreign: BTreeSet<B256>,
    /// An older database was restored.
    pub is_restored: bool,
}

impl Judge {
    /// Judges everything that is stored, at any moment.
    pub(super) fn look(&mut self, database: &ModelDatabase) {
        database.check();
        for row in database.rows() {
            self.prices(&row);
            if let Some(receipt) = row.receipt.filter(|_| row.state.is_terminal()) {
                let told = row.told.len().saturating_sub(1);
                let is_told = row.told.first().is_some_and(|it| it.hash == receipt.block_hash);
                let id = row.id;
                assert!(
                    told >= REQUIRED && is_told,
                    "CL5: {id} ends in {:?} with {told} confirmations of its receipt",
                    row.state
                );
            }
        }
    }

    /// A pool replaces only by a tenth more of both prices, so each attempt is above all before.
    /// One that a restored database lacked comes behind later ones.
    fn prices(&mut self, row: &Tx) {
        for (at, attempt) in row.attempts.iter().enumerate() {
            if self.priced.contains_key(&attempt.hash) {
                continue;
            }
            let signed = ModelTx::decode(&attempt.raw).expect("CL4: an attempt is a transaction");
            self.priced.insert(attempt.hash, (signed.max_fee, signed.max_tip));
            for other in &row.attempts[..at] {
                let (max_fee, max_tip) = self.priced[&other.hash];
                let rises = |new: u128, old: u128| new * 10 >= old * 11;
                let is_above = rises(signed.max_fee, max_fee) && rises(signed.max_tip, max_tip);
                assert!(
                    is_above || self.is_restored,
                    "CL12: attempt {} of {} can replace no attempt before it",
                    attempt.number,
                    row.id
                );
            }
        }
    }

    /// Judges the end, when everything is healed and the chain has gone on for long.
    /// `may_be_open`: of this signer rows may be open, since it is suspended.
    pub(super) fn end(
        &mut self,
        database: &ModelDatabase,
        chain: &ModelChain,
        signers: &[Address],
        suspended: &BTreeMap<Address, Vec<String>>,
    ) {
        self.look(database);
        if !self.is_restored {
            database.check_sent(&chain.raws());
        }
        let rows = database.rows();
        let by_nonce: BTreeMap<(Address, u64), &Tx> = rows
            .iter()
            .filter_map(|row| row.nonce.map(|nonce| ((row.new.signer, nonce), row)))
            .collect();
        let mut paid: BTreeMap<U256, u32> = BTreeMap::new();
        let mut on_chain: BTreeSet<B256> = BTreeSet::new();
        for signer in signers {
            // A key that is shared on purpose: another wallet's nonces are jumped over.
            let jumped = database.jumped(*signer);
            let is_followed = |nonce: &u64| !self.is_restored && jumped.contains(nonce);
            for nonce in 0.. {
                let Some((tx, receipt)) = chain.mined(*signer, nonce) else { break };
                on_chain.insert(tx.hash);
                if receipt.is_success && tx.to != *signer {
                    *paid.entry(tx.value).or_insert(0) += 1;
                }
                let row = by_nonce.get(&(*signer, nonce)).copied();
                let deep = chain.head().number.saturating_sub(receipt.block_number) > 20;
                // A signer without work asks nothing, and so does not learn of it.
                let goes_on = by_nonce.keys().any(|key| key.0 == *signer && key.1 >= nonce);
                let is_lost_fill = row
                    .is_some_and(|row| row.new.is_fill() && row.code == Some(FailCode::NonceTaken));
                let is_held = suspended.contains_key(signer)
                    || !goes_on
                    || is_followed(&nonce)
                    || is_lost_fill;
                self.mined(row, (&tx, &receipt), deep, is_held);
            }
        }
        for (value, times) in paid {
            assert!(times == 1, "CL7: {value} was paid {times} times");
        }
        for row in &rows {
            let is_suspended = suspended.contains_key(&row.new.signer);
            let (id, state) = (row.id, row.state);
            assert!(
                row.state.is_terminal() || is_suspended,
                "CL5: {id} never ends: {state:?} {:?} {:?}",
                row.sub,
                row.wish
            );
            if let Some(receipt) = row.receipt.filter(|_| row.state.is_terminal()) {
                let hash = receipt.hash;
                assert!(on_chain.contains(&hash), "CL6: {id} is {state:?} by {hash}, not mined");
            }
        }
        for (signer, reasons) in suspended {
            let has_cause = self.is_restored || !self.foreign.is_empty();
            assert!(has_cause, "CL9: {signer} is suspended without a cause: {reasons:?}");
        }
    }

    /// Judges a mined transaction of a signer against the row with its nonce.
    fn mined(
        &self,
        row: Option<&Tx>,
        (tx, receipt): (&ModelTx, &ReceiptRead),
        deep: bool,
        is_held: bool,
    ) {
        let (hash, nonce, from) = (tx.hash, tx.nonce, tx.from);
        let is_other = self.is_restored || self.foreign.contains(&hash);
        let attempt = row.and_then(|row| row.attempts.iter().find(|it| it.hash == hash));
        let Some((row, attempt)) = row.zip(attempt) else {
            assert!(is_other, "CL4: {hash} with nonce {nonce} of {from} is no attempt of ours");
            let is_taken = row.is_some_and(|row| row.code == Some(FailCode::NonceTaken));
            let pays = |row: &&Tx| {
                let called = (tx.to, tx.value, tx.data.clone());
                receipt.is_success && row.new.payload.call() == called && !row.new.is_fill()
            };
            if let Some(row) = row.filter(|row| is_taken && pays(row)) {
                panic!("CL5: {} is paid by {hash}, and its nonce counts as taken", row.id);
            }
            assert!(
                is_held || !deep,
                "CL9: {hash} with nonce {nonce} is none of ours, and {from} signs on ({is_taken})"
            );
            return;
        };
        if !row.state.is_terminal() {
            let (id, state) = (row.id, row.state);
            assert!(!deep, "CL4: attempt {} of {id} is mined, and {state:?}", attempt.number);
            return;
        }
        let fits = match (row.state, row.code) {
            (TxState::Confirmed, None) => attempt.kind.pays() && receipt.is_success,
            (TxState::Failed, Some(FailCode::Reverted)) => !receipt.is_success,
            (TxState::Failed, Some(FailCode::Cancelled)) => attempt.kind == AttemptKind::Cancel,
            (TxState::Failed, Some(FailCode::Filled)) => attempt.kind == AttemptKind::Fill,
            _ => false,
        };
        assert!(fits, "CL6: {} is {:?} {:?}, and {hash} is mined", row.id, row.state, row.code);
    }
}
