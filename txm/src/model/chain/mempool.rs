//! The pool of one endpoint, as strict as geth's: a replacement raises both prices by a tenth, an
//! account has 16 transactions that may be mined and 64 behind a gap. Its texts are geth's.

use std::collections::BTreeMap;

use alloy_primitives::{Address, U256};

use super::ledger::Ledger;
use super::raw::ModelTx;

/// The most transactions of an account that may be mined now.
const PENDING_MAX: usize = 16;
/// The most transactions of an account behind a gap.
const QUEUED_MAX: usize = 64;
/// The gas of a block.
pub(super) const BLOCK_GAS: u64 = 30_000_000;
/// The most that a transaction may cost in gas, wei: 1 ether.
const FEE_CAP: u128 = 1_000_000_000_000_000_000;

/// The pool of one endpoint, by account and nonce.
#[derive(Clone, Debug, Default)]
pub(super) struct Mempool(pub(super) BTreeMap<Address, BTreeMap<u64, ModelTx>>);

impl Mempool {
    /// Takes a transaction.
    ///
    /// # Errors
    /// The text of the refusal.
    pub(super) fn admit(
        &mut self,
        tx: ModelTx,
        ledger: &Ledger,
        chain_id: u64,
    ) -> Result<(), Refusal> {
        check(&tx, ledger, chain_id)?;
        let pending = self.pending(tx.from, ledger);
        let own = self.0.entry(tx.from).or_default();
        if let Some(other) = own.get(&tx.nonce) {
            if other.hash == tx.hash {
                return Err(Refusal("already known".to_owned()));
            }
            let risen = |new: u128, old: u128| new > old && new * 10 >= old * 11;
            if !risen(tx.max_fee, other.max_fee) || !risen(tx.max_tip, other.max_tip) {
                return Err(Refusal("replacement transaction underpriced".to_owned()));
            }
        } else {
            let next = pending - ledger.nonce(tx.from);
            let queued = own.range(pending..).count();
            let is_full = match tx.nonce == pending {
                true => usize::try_from(next).is_ok_and(|next| next >= PENDING_MAX),
                false => queued >= QUEUED_MAX,
            };
            if is_full {
                return Err(Refusal("txpool is full".to_owned()));
            }
        }
        own.insert(tx.nonce, tx);
        Ok(())
    }

    /// The next nonce of an account with its pool.
    pub(super) fn pending(&self, account: Address, ledger: &Ledger) -> u64 {
        let mut next = ledger.nonce(account);
        while self.0.get(&account).is_some_and(|own| own.contains_key(&next)) {
            next += 1;
        }
        next
    }

    /// Drops mined nonces.
    pub(super) fn prune(&mut self, ledger: &Ledger) {
        for (account, own) in &mut self.0 {
            let next = ledger.nonce(*account);
            own.retain(|nonce, _| *nonce >= next);
        }
    }

    /// All of it, by account and nonce.
    pub(super) fn all(&self) -> impl Iterator<Item = &ModelTx> {
        self.0.values().flat_map(BTreeMap::values)
    }
}

/// The text of a refusal.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct Refusal(pub(super) String);

fn check(tx: &ModelTx, ledger: &Ledger, chain_id: u64) -> Result<(), Refusal> {
    let (next, balance, cost) = (ledger.nonce(tx.from), ledger.wei(tx.from), tx.cost_max());
    let refused = if tx.chain_id != Some(chain_id) {
        let have = tx.chain_id.unwrap_or(0);
        format!("invalid chain id for signer: have {have} want {chain_id}")
    } else if U256::from(tx.max_fee).saturating_mul(U256::from(tx.gas)) > U256::from(FEE_CAP) {
        "tx fee (9.99 ether) exceeds the configured cap (1.00 ether)".to_owned()
    } else if tx.gas > BLOCK_GAS {
        "exceeds block gas limit".to_owned()
    } else if tx.max_tip > tx.max_fee {
        "max priority fee per gas higher than max fee per gas".to_owned()
    } else if tx.gas < tx.intrinsic_gas() {
        let least = tx.intrinsic_gas();
        format!("intrinsic gas too low: gas {}, minimum needed {least}", tx.gas)
    } else if tx.max_tip == 0 {
        "transaction underpriced: gas tip cap 0, minimum needed 1".to_owned()
    } else if tx.nonce < next {
        format!("nonce too low: next nonce {next}, tx nonce {}", tx.nonce)
    } else if balance < cost {
        let over = cost - balance;
        format!(
            "insufficient funds for gas * price + value: balance {balance}, tx cost {cost}, overshot {over}"
        )
    } else {
        return Ok(());
    };
    Err(Refusal(refused))
}
