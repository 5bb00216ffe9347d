//! The limits of bodies and transfers, heartbeats and approvals, from the configuration.

use std::time::Duration;

use super::callbacks::ANSWER_WITHIN;
use super::listener::Limits;
use super::public;
use super::service::{Approvals, BodyLimits, Heartbeat, TransactionDesk, TransferLimits};
use crate::config::Config;
use crate::transactions::Transactions;
use domain::amount::UNITS_MAX;

impl From<&Config> for BodyLimits {
    fn from(config: &Config) -> BodyLimits {
        BodyLimits {
            bytes_max: config.http.body_bytes_max,
            read_timeout: Duration::from_millis(config.http.body_read_timeout_ms),
        }
    }
}

impl BodyLimits {
    /// Those of the listener of payment channels. A body that is slower has missed its answer.
    pub fn of_callbacks(config: &Config) -> BodyLimits {
        let read_timeout = Duration::from_millis(config.http.body_read_timeout_ms);
        BodyLimits {
            bytes_max: config.callbacks.body_bytes_max,
            read_timeout: read_timeout.min(ANSWER_WITHIN),
        }
    }
}

impl Limits {
    /// Those of the listener of payment channels. Behind a proxy all connections have one address.
    pub fn of_callbacks(config: &Config) -> Limits {
        let connections_max = config.callbacks.connections_max;
        Limits {
            connections_max,
            connections_per_address_max: connections_max,
            ..Limits::from(&config.http)
        }
    }
}

impl From<&Config> for Heartbeat {
    fn from(config: &Config) -> Heartbeat {
        Heartbeat(Duration::from_millis(config.events.heartbeat_ms))
    }
}

impl From<&Config> for TransferLimits {
    fn from(config: &Config) -> TransferLimits {
        TransferLimits {
            transfer_wait: Duration::from_millis(config.http.transfer_wait_ms),
            accept_wait: Duration::from_millis(config.http.accept_wait_ms()),
            end_wait_max: Duration::from_millis(config.http.request_timeout_ms)
                .saturating_sub(public::END_WAIT_GRACE),
            stuck_ms: config.alert.stuck_ms,
            units_max: (u64::MAX / config.amount.safety_factor).min(UNITS_MAX),
            cid_required: config.http.cid_required,
        }
    }
}

impl From<&Config> for Approvals {
    fn from(config: &Config) -> Approvals {
        Approvals {
            required: config.approval.required.clone(),
            expires_after: Duration::from_millis(config.approval.expires_after_ms),
            carrying_out: tokio::sync::Mutex::default(),
        }
    }
}

impl TransactionDesk {
    /// The desk in front of a worker.
    pub fn new(config: &Config, worker: Transactions) -> TransactionDesk {
        let kinds = config.participants.iter();
        let kinds = kinds.filter_map(|(name, participant)| Some((name.clone(), participant.kind?)));
        let open_max_ms = config.transactions.open_max_ms;
        let outside_owners = config.transactions.outside_owners.iter().cloned().collect();
        let followers = config.followers.keys().cloned().collect();
        let (participants, purposes) = (kinds.collect(), config.holds.purposes.clone());
        TransactionDesk { worker, participants, followers, purposes, open_max_ms, outside_owners }
    }
}
