//! The metrics of nodes of the transaction manager. The service has none of them.

use chain::class::SendClass;
use metrics::{Unit, describe_counter, describe_gauge, describe_histogram};

/// The alerts about transactions, by the names that owners raise. Suspensions have upper case.
pub const TX_ALERTS: [&str; 16] = [
    "DATABASE_OLDER",
    "DATABASE_RESTORED",
    "NONCE_AHEAD",
    "NONCE_TAKEN",
    "OUTFLOW_LIMIT",
    "nonce_unaccounted",
    "reorg_after_final",
    "signer_funds_low",
    "signer_mismatch",
    "signer_policy",
    "tx_attempt_forgotten",
    "tx_blocked",
    "tx_replaced_elsewhere",
    "tx_step_refused",
    "tx_underpriced",
    "tx_unproven",
];

/// Describes them, and starts those with known labels at zero. Only a node does.
pub fn describe() {
    let counters = [
        ("ubscore_lease_acquire_success_total", "Signers that this node has acquired."),
        ("ubscore_lease_fenced_total", "Writes that were refused because another node owns it."),
        ("ubscore_tx_submit_total", "Answers of endpoints to sends, by result."),
        ("ubscore_receipt_check_total", "Receipts that were asked for, by result."),
        ("ubscore_confirmations_newfork_total", "Lists of confirmations that replaced another."),
        ("ubscore_rpc_calls_total", "Calls to endpoints, by method and result."),
        ("ubscore_rpc_mismatch_total", "Sends that an endpoint answered with another hash."),
        ("ubscore_endpoint_disagrees_total", "Answers of an endpoint that others contradict."),
        ("ubscore_signer_mismatch_total", "Signatures of another transaction than the asked one."),
        ("ubscore_tx_alert_total", "Alerts about transactions, by name."),
        ("ubscore_tx_resubmit_total", "Sends and bumps of transactions that were sent before."),
    ];
    for (name, what) in counters {
        describe_counter!(name, Unit::Count, what);
    }
    for alert in TX_ALERTS {
        metrics::counter!("ubscore_tx_alert_total", "alert" => alert).increment(0);
    }
    for result in ["found", "not_found", "unclear"] {
        metrics::counter!("ubscore_receipt_check_total", "result" => result).increment(0);
    }
    for class in SendClass::ALL {
        metrics::counter!("ubscore_tx_submit_total", "result" => class.name()).increment(0);
    }
    for name in [
        "ubscore_lease_acquire_success_total",
        "ubscore_lease_fenced_total",
        "ubscore_confirmations_newfork_total",
        "ubscore_signer_mismatch_total",
        "ubscore_tx_resubmit_total",
    ] {
        metrics::counter!(name).increment(0);
    }
    describe_gauge!("ubscore_endpoint_head", Unit::Count, "The height of an endpoint's head.");
    let gauges = [
        ("ubscore_tx_open_rows", "Transactions of this node's signers that are not at their end."),
        ("ubscore_tx_receipt_backlog", "Those that are mined and have no receipt yet."),
        ("ubscore_signers_unowned", "Signers with open transactions that no node owns."),
    ];
    for (name, what) in gauges {
        describe_gauge!(name, Unit::Count, what);
        metrics::gauge!(name).set(0.0);
    }
    describe_histogram!("ubscore_rpc_seconds", Unit::Seconds, "Time of a batch of calls.");
}

/// Starts the series of an endpoint at zero. `endpoint`: its name, without keys.
pub fn expect_endpoint(endpoint: &str) {
    let name = endpoint.to_owned();
    metrics::counter!("ubscore_rpc_mismatch_total", "endpoint" => name.clone()).increment(0);
    metrics::gauge!("ubscore_endpoint_head", "endpoint" => name.clone()).set(0.0);
    for about in ["branch", "head", "lie", "receipt"] {
        let name = name.clone();
        metrics::counter!("ubscore_endpoint_disagrees_total", "endpoint" => name, "about" => about)
            .increment(0);
    }
}
