//! The comparison behind a round: the chain with the rows, each row with its attempts on chain, the
//! money, the feed, the alerts.

use std::collections::BTreeMap;

use alloy_primitives::U256;
use serde_json::json;

use super::{SIGNERS, Soak};
use crate::harness::{eventually, hex_of, text};
use crate::txm_real::PAYEE;
use crate::txm_real::place::Party;

/// Alerts that would be false here: no key is used elsewhere, nothing final is taken back, no key
/// lies, and each payment is a plain one.
const FALSE_ALARMS: [&str; 4] =
    ["nonce_ahead", "reorg_after_final", "tx_unproven", "signer_mismatch"];

/// The faults and ends of all places of a run.
#[derive(Default)]
pub(super) struct SoakSum {
    faults: BTreeMap<String, usize>,
    ends: BTreeMap<String, usize>,
}

impl SoakSum {
    pub(super) fn add(&mut self, soak: &Soak) {
        for (fault, times) in &*soak.faults.lock().expect("no panic") {
            *self.faults.entry(fault.clone()).or_default() += times;
        }
        for (end, count) in soak.ends() {
            *self.ends.entry(end).or_default() += count;
        }
    }

    pub(super) fn print(&self, rounds: usize) {
        println!("{rounds} rounds");
        for (name, count) in self.faults.iter().chain(&self.ends) {
            println!("{count:>8}  {name}");
        }
    }
}

impl Soak {
    /// The ends of rows, how many of each, and the writes that were fenced.
    fn ends(&self) -> Vec<(String, usize)> {
        let rows = self.place.site.sql(
            "SELECT 'rows of state ' || state || coalesce(', code ' || code, ''), count(*) \
             FROM txm.managed_tx GROUP BY 1 \
             UNION ALL SELECT 'attempts of kind ' || kind, count(*) FROM txm.tx_attempts \
             GROUP BY 1 \
             UNION ALL SELECT 'lists of confirmations that changed', sum(fork) FROM txm.managed_tx \
             UNION ALL SELECT 'owners', sum(fencing_token) FROM txm.signer_lease ORDER BY 1",
        );
        let of = |row: Vec<String>| (row[0].clone(), row[1].parse().unwrap_or(0));
        let words = self.words.lock().expect("no panic");
        let fenced = words.matches("fenced:").count();
        let ended = self.seats.iter().map(|seat| seat.words().matches("fenced:").count());
        let fenced = fenced + ended.sum::<usize>();
        rows.into_iter().map(of).chain([("fenced writes".to_owned(), fenced)]).collect()
    }

    /// One line.
    pub(super) fn summary(&self) -> String {
        let ends = self.ends();
        ends.iter().map(|(name, count)| format!("{count} {name}")).collect::<Vec<_>>().join("; ")
    }

    /// Everything is compared.
    pub(super) fn compare(&self) {
        self.place.judge();
        self.each_row_ended_as_the_chain_says();
        self.the_feed_is_whole();
        self.no_alarm_was_false();
        let node = self.seats[0].node().expect("all is well");
        // A queued transaction that a reorganization mined is answered as not mined.
        self.place.chain.ask("anvil_dropAllTransactions", json!([]));
        self.the_audit_agrees(&node);
    }

    /// A row is CONFIRMED if and only if a payment of it is on chain, with its amount; every
    /// numbered row has its nonce on chain, and no other nonce is there.
    fn each_row_ended_as_the_chain_says(&self) {
        let chain = &self.place.chain;
        let mut mined: BTreeMap<String, U256> = BTreeMap::new();
        for height in 1..=chain.height() {
            let block = chain.ask("eth_getBlockByNumber", json!([hex_of(height), true]));
            for tx in block["transactions"].as_array().expect("a list") {
                let value = text(&tx["value"]).parse().expect("a number");
                mined.insert(text(&tx["hash"]).to_owned(), value);
            }
        }
        let attempts = self
            .place
            .site
            .sql("SELECT tx_id, kind, '0x' || encode(tx_hash, 'hex') FROM txm.tx_attempts");
        let mut on_chain: BTreeMap<String, (String, U256)> = BTreeMap::new();
        for row in attempts {
            if let Some(value) = mined.get(&row[2]) {
                let twice = on_chain.insert(row[0].clone(), (row[1].clone(), *value));
                assert!(twice.is_none(), "two attempts of {row:?} are mined");
            }
        }
        let rows = self.place.site.sql(
            "SELECT tx_id, coalesce(nonce::text, ''), state, coalesce(code::text, ''), \
             payload->>'value' FROM txm.managed_tx",
        );
        let mut paid = U256::ZERO;
        for row in &rows {
            let there = on_chain.get(&row[0]).map(|(kind, value)| (kind.as_str(), *value));
            let fits = match (row[2].as_str(), row[3].as_str(), there) {
                ("40", "", Some(("1" | "2", value))) => {
                    paid += value;
                    value == row[4].parse::<U256>().expect("a number")
                }
                ("-10", "4", Some(("3", value))) | ("-10", "5", Some(("4", value))) => {
                    value == U256::ZERO
                }
                // A cancel of a row that was not signed yet fills its nonce.
                ("-10", "4", Some(("4", value))) => value == U256::ZERO,
                ("-10", "1" | "2", None) => row[1].is_empty(),
                _ => false,
            };
            assert!(fits, "{row:?} ended so, and on chain is {there:?}\n{}", self.shown(&row[0]));
        }
        assert_eq!(chain.balance(PAYEE), paid + self.place_payee_had(), "the payee's coins");
        for signer in SIGNERS {
            let count = format!(
                "SELECT count(nonce) FROM txm.managed_tx WHERE signer = '{}'",
                hex_of(signer)
            );
            let count = self.place.site.sql_value(&count);
            assert_eq!(count, chain.nonce(signer).to_string(), "nonces of {signer}");
        }
        let suspended = self.place.site.sql("SELECT * FROM txm.signer_suspensions");
        assert!(suspended.is_empty(), "{suspended:?}");
    }

    /// The coins of the payee at the start.
    fn place_payee_had(&self) -> U256 {
        let asked = json!([hex_of(PAYEE), "0x0"]);
        text(&self.place.chain.ask("eth_getBalance", asked)).parse().expect("a number")
    }

    /// Each event of each row once, in its order.
    fn the_feed_is_whole(&self) {
        let node = self.seats[0].node().expect("all is well");
        let mut feed = self.feed.lock().expect("no panic");
        while feed.read(&node) {}
        let rows = self.place.site.sql("SELECT tx_id, event_seq FROM txm.managed_tx");
        for row in rows {
            let read = feed.seqs.get(&row[0]).copied().unwrap_or(0).to_string();
            assert_eq!(read, row[1], "the last event of {}", row[0]);
        }
    }

    fn no_alarm_was_false(&self) {
        for alarm in FALSE_ALARMS {
            assert!(!self.has_named(alarm, ""), "{alarm}");
        }
    }

    /// The audit of an operator finds nothing. It asks the chain for each nonce, and may have to
    /// ask again.
    fn the_audit_agrees(&self, node: &Party) {
        for signer in SIGNERS {
            let (exit, out, why) = eventually("an audit", || {
                let audit = ["tx", "audit", "--signer", &hex_of(signer)];
                let (exit, out, why) = node.operate(&audit);
                let is_away = exit != 0 && why.contains("SYSTEM_ERROR");
                (!is_away).then_some((exit, out, why))
            });
            assert_eq!(exit, 0, "{out}{why}");
        }
    }
}
