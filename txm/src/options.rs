//! The manager's settings, as the configuration has them, checked.

use std::time::Duration;

use alloy_primitives::{Address, U256};
use chain::fee::GasCaps;

/// When a block counts as final. The default is `finalized` and `required` together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finality {
    /// So many confirmations.
    Count,
    /// At or below the tag `safe`, and so many confirmations.
    Safe,
    /// At or below the tag `finalized`, and so many confirmations.
    Finalized,
}

/// What happens if the chain is ahead of the cursor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExternalUse {
    /// The signer is suspended: NONCE_AHEAD.
    Refuse,
    /// The cursor jumps, at most `jump_max`, if a quorum says so.
    Follow,
}

/// What a signer may sign, and how much an hour.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SignerPolicy {
    /// Payments of the chain's own coin without data.
    pub is_native_allowed: bool,
    /// Transfers of these tokens.
    pub tokens: Vec<Address>,
    /// Any call.
    pub is_any_allowed: bool,
    /// The most first PAY attempts of an hour, by asset: `None` is the chain's own coin, wei or
    /// units of the token. An asset that is not here has no limit.
    pub outflow_per_hour_max: Vec<(Option<Address>, U256)>,
}

/// The settings of a node.
#[derive(Clone, Debug)]
pub struct TxmOptions {
    /// The chain's number.
    pub chain_id: u64,
    /// Endpoints that must agree.
    pub quorum: usize,
    /// The pause between two cycles of heads.
    pub poll: Duration,
    /// The limit of one call to an endpoint.
    pub rpc_timeout: Duration,
    /// The most calls under way at one endpoint.
    pub calls_in_flight_max: usize,
    /// Workers; a signer belongs to one.
    pub workers: usize,
    /// The most creates of one statement.
    pub batch_max: usize,
    /// The most open rows of a signer.
    pub queue_max: usize,
    /// The pause between two looks for rows and commands that came by other nodes.
    pub arrivals_poll: Duration,
    /// The lease.
    pub lease_duration: Duration,
    /// Between two renewals.
    pub lease_renew: Duration,
    /// The skew.
    pub lease_skew: Duration,
    /// Whether the chain's count is asked for again by time.
    pub is_chain_queried: bool,
    /// Whether the pool counts in it: `pending` instead of `latest`.
    pub counts_pending: bool,
    /// An answer of the chain about a nonce is good for so long.
    pub nonce_state_timeout: Duration,
    /// If the chain is ahead.
    pub external_use: ExternalUse,
    /// The longest jump.
    pub jump_max: u64,
    /// A nonce that can never be sent is filled behind this time.
    pub fill_after: Duration,
    /// The most nonces of a signer that are signed and not mined; 0: no window.
    pub in_flight_max: usize,
    /// Resends and bumps by time.
    pub is_resubmitted: bool,
    /// Between two resends.
    pub resubmit_interval: Duration,
    /// Resends before a bump.
    pub bump_after: u32,
    /// The most PAY and BUMP attempts; 0: the caps alone.
    pub attempts_max: u32,
    /// The step of a bump, percent.
    pub bump_percent: u64,
    /// The caps of prices.
    pub caps: GasCaps,
    /// Type 0 transactions.
    pub is_legacy: bool,
    /// The estimate times this, percent.
    pub gas_margin_percent: u64,
    /// The highest gas limit.
    pub gas_max: u64,
    /// Confirmations on top of the receipt's block.
    pub required: usize,
    /// The policy of finality.
    pub finality: Finality,
    /// Without a receipt for so long a row is STALE.
    pub stale: Duration,
    /// Batches of receipts under way.
    pub receipt_workers: usize,
    /// Whether a receipt is asked for right behind the answer to a send, once.
    pub is_receipt_asked_at_once: bool,
    /// Blocks for which a row that ended is looked at.
    pub watch_blocks: u64,
    /// The limit of one signature.
    pub sign_timeout: Duration,
    /// Behind this time without the chain a node gives its signers back.
    pub release_blind: Duration,
    /// The limit of an orderly end.
    pub shutdown_timeout: Duration,
}
