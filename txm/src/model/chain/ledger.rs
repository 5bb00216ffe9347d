//! Accounts behind a block, and the execution of a transaction.

use std::collections::BTreeMap;

use alloy_primitives::{Address, B256, U256, keccak256};
use chain::payload::BALANCE_OF;

use super::raw::ModelTx;
use crate::rpc::ReceiptLog;

/// The selector of `transfer(address,uint256)`.
const TRANSFER: [u8; 4] = [0xa9, 0x05, 0x9c, 0xbb];
/// The gas that a call of a contract needs beyond its bytes.
pub(super) const CALL_GAS: u64 = 30_000;

/// How a contract behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contract {
    /// A token that transfers, or fails if the sender has too little.
    Token,
    /// A token that answers false instead: status 1, no transfer, no log.
    AnswersFalse,
    /// A token that keeps a tenth of each transfer.
    TakesFee,
    /// A token that transfers, and tells of it with another contract's log.
    OtherLog,
    /// A contract that fails each call.
    Reverts,
}

/// The accounts behind a block.
#[derive(Clone, Debug, Default)]
pub(super) struct Ledger {
    pub(super) nonces: BTreeMap<Address, u64>,
    pub(super) wei: BTreeMap<Address, U256>,
    /// Units by token and account.
    pub(super) units: BTreeMap<(Address, Address), U256>,
}

/// The outcome of a transaction in a block.
pub(super) struct Outcome {
    pub(super) is_success: bool,
    pub(super) gas_used: u64,
    pub(super) gas_price: u128,
    pub(super) logs: Vec<ReceiptLog>,
}

impl Ledger {
    pub(super) fn nonce(&self, account: Address) -> u64 {
        self.nonces.get(&account).copied().unwrap_or(0)
    }

    pub(super) fn wei(&self, account: Address) -> U256 {
        self.wei.get(&account).copied().unwrap_or_default()
    }

    pub(super) fn units(&self, token: Address, account: Address) -> U256 {
        self.units.get(&(token, account)).copied().unwrap_or_default()
    }

    /// Executes a transaction; `None`: no block may have it now, and nothing changed.
    pub(super) fn apply(
        &mut self,
        tx: &ModelTx,
        base_fee: u128,
        contract: Option<Contract>,
    ) -> Option<Outcome> {
        let gas_price = tx.price(base_fee)?;
        let fits = self.nonce(tx.from) == tx.nonce && tx.gas >= tx.intrinsic_gas();
        if !fits || self.wei(tx.from) < tx.cost_max() {
            return None;
        }
        self.nonces.insert(tx.from, tx.nonce + 1);
        let needed = tx.intrinsic_gas() + contract.map_or(0, |_| CALL_GAS);
        let gas_used = needed.min(tx.gas);
        let fee = U256::from(gas_price).saturating_mul(U256::from(gas_used));
        self.pay(tx.from, fee);
        let called = if needed > tx.gas { None } else { self.call(tx, contract) };
        let is_success = called.is_some();
        Some(Outcome { is_success, gas_used, gas_price, logs: called.unwrap_or_default() })
    }

    /// The logs of a call; `None`: it fails. Gas is paid already.
    pub(super) fn call(
        &mut self,
        tx: &ModelTx,
        contract: Option<Contract>,
    ) -> Option<Vec<ReceiptLog>> {
        let Some(contract) = contract else {
            self.pay(tx.from, tx.value);
            let to = self.wei.entry(tx.to).or_default();
            *to = to.saturating_add(tx.value);
            return Some(Vec::new());
        };
        if contract == Contract::Reverts || !tx.value.is_zero() {
            return None;
        }
        if tx.data.starts_with(&BALANCE_OF) {
            return Some(Vec::new());
        }
        let (to, amount) = transfer(&tx.data)?;
        if contract == Contract::AnswersFalse {
            return Some(Vec::new());
        }
        let left = self.units(tx.to, tx.from).checked_sub(amount)?;
        let kept =
            if contract == Contract::TakesFee { amount / U256::from(10) } else { U256::ZERO };
        self.units.insert((tx.to, tx.from), left);
        let arrives = amount - kept;
        let units = self.units.entry((tx.to, to)).or_default();
        *units = units.saturating_add(arrives);
        let other = Address::repeat_byte(0xee);
        let contract = if contract == Contract::OtherLog { other } else { tx.to };
        let topics = vec![
            keccak256("Transfer(address,address,uint256)"),
            tx.from.into_word(),
            to.into_word(),
        ];
        Some(vec![ReceiptLog { contract, topics, data: B256::from(arrives).into() }])
    }

    fn pay(&mut self, account: Address, wei: U256) {
        let has = self.wei.entry(account).or_default();
        *has = has.checked_sub(wei).expect("the balance covers the highest cost");
    }
}

/// The payee and the amount of a token's transfer.
fn transfer(data: &[u8]) -> Option<(Address, U256)> {
    let words = data.strip_prefix(&TRANSFER).filter(|words| words.len() == 64)?;
    let to = Address::from_word(B256::from_slice(&words[..32]));
    Some((to, U256::from_be_slice(&words[32..])))
}
