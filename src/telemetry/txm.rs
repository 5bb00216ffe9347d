//! The metrics of nodes of the transaction manager. The service has none of them.

use metrics::{Unit, describe_counter, describe_gauge, describe_histogram};

/// Describes them. Only a node does.
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
    ];
    for (name, what) in counters {
        describe_counter!(name, Unit::Count, what);
    }
    describe_gauge!("ubscore_endpoint_head", Unit::Count, "The height of an endpoint's head.");
    describe_histogram!("ubscore_rpc_seconds", Unit::Seconds, "Time of a batch of calls.");
}
