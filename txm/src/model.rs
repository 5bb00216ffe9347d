//! Models of the parts outside of a node, for the simulation: strict, and the same each time.

pub mod chain;
pub mod store;
pub mod wallet;

use ::chain::fee::GasCaps;
use tokio::time::Duration;

use crate::options::{ExternalUse, Finality, TxmOptions};

/// Settings for models: the defaults of the configuration, but for short leases.
pub fn options() -> TxmOptions {
    let gwei = 1_000_000_000;
    TxmOptions {
        chain_id: 31_337,
        quorum: 1,
        poll: Duration::from_secs(1),
        rpc_timeout: Duration::from_secs(5),
        calls_in_flight_max: 8,
        workers: 8,
        batch_max: 100,
        queue_max: 10_000,
        arrivals_poll: Duration::from_millis(100),
        lease_duration: Duration::from_secs(10),
        lease_renew: Duration::from_secs(3),
        lease_skew: Duration::from_secs(1),
        is_chain_queried: true,
        counts_pending: true,
        nonce_state_timeout: Duration::from_secs(30),
        external_use: ExternalUse::Refuse,
        jump_max: 64,
        fill_after: Duration::from_secs(300),
        in_flight_max: 16,
        is_resubmitted: true,
        resubmit_interval: Duration::from_secs(60),
        bump_after: 2,
        attempts_max: 10,
        bump_percent: 12,
        caps: GasCaps { max_fee: 500 * gwei, tip: 5 * gwei, cost: 100_000_000 * gwei },
        is_legacy: false,
        gas_margin_percent: 120,
        gas_max: 5_000_000,
        required: 20,
        finality: Finality::Count,
        stale: Duration::from_secs(60),
        receipt_workers: 10,
        is_receipt_asked_at_once: false,
        watch_blocks: 128,
        sign_timeout: Duration::from_secs(5),
        release_blind: Duration::from_secs(30),
        shutdown_timeout: Duration::from_secs(10),
    }
}

/// Numbers that are drawn from a seed: the same seed, the same numbers.
#[derive(Clone, Copy, Debug)]
pub struct Draw(u64);

impl Draw {
    /// A sequence. Near seeds have other sequences.
    pub fn new(seed: u64) -> Draw {
        Draw((seed ^ 0x9e37_79b9_7f4a_7c15).wrapping_mul(0xbf58_476d_1ce4_e5b9) | 1)
    }

    /// The next number, below `bound`.
    pub fn below(&mut self, bound: u64) -> u64 {
        // Source: xorshift64, Marsaglia 2003.
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % bound
    }
}
