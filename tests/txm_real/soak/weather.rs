//! The chain of a soak: blocks, reorganizations below the depth that is final, transactions that
//! the pool loses, prices, and connections of all nodes to PostgreSQL that end at once.

use std::collections::BTreeMap;

use alloy_primitives::hex;

use super::{REQUIRED, Soak};
use crate::harness::{FIRST_BASE_FEE, text};

/// The highest base fee, in units of the first one.
const BASE_FEES: usize = 12;

/// The fate of a transaction of a block that leaves the chain.
#[derive(Clone, Copy, Debug)]
enum Fate {
    Kept,
    Moved,
    Lost,
    Replaced,
}

const FATES: [Fate; 4] = [Fate::Kept, Fate::Moved, Fate::Lost, Fate::Replaced];

impl Soak {
    /// Blocks and faults of the chain.
    pub(super) fn change_weather(&self) {
        self.place.chain.mine(REQUIRED);
        while self.goes_on() {
            self.random.pause(200);
            match self.random.below(40) {
                0..4 => self.reorganize(),
                4..7 => self.drop_some(),
                7 => {
                    let times = 1 + self.random.below(BASE_FEES) as u128;
                    self.place.chain.set_base_fee(times * FIRST_BASE_FEE);
                    self.counts("another base fee");
                }
                8 => {
                    self.place.chain.rollback(1);
                    self.random.pause(200);
                    self.place.chain.mine(1);
                    self.counts("a head that falls");
                }
                9 => {
                    let _no_start = self.starts.write().expect("no panic");
                    let cut = self.place.site.cut_connections();
                    self.counts(if cut == 0 { "no connection to end" } else { "all cut off" });
                }
                _ => self.place.chain.mine(1),
            }
        }
    }

    /// Replaces the last blocks. Each of their transactions stays, moves, is lost, or makes way for
    /// another attempt of its row.
    fn reorganize(&self) {
        let (chain, random) = (&self.place.chain, &self.random);
        let height = chain.height();
        let depths: Vec<u64> = (1..REQUIRED).collect();
        let depth = depths[random.below(depths.len())];
        let fate = FATES[random.below(FATES.len())];
        let attempts = self.attempts();
        let mut with: Vec<(Vec<u8>, u64)> = Vec::new();
        for place in 0..depth {
            let block = chain.block(height - depth + 1 + place).expect("below the head");
            for hash in block["transactions"].as_array().expect("a list") {
                // Another one's, if a test ever has some: lost.
                let Some((id, raw)) = attempts.get(text(hash)) else { continue };
                let others = attempts.values().filter(|(of, bytes)| of == id && bytes != raw);
                let others: Vec<&Vec<u8>> = others.map(|(_, bytes)| bytes).collect();
                match fate {
                    Fate::Kept => with.push((raw.clone(), place)),
                    Fate::Moved => with.push((raw.clone(), depth - 1)),
                    Fate::Lost if random.once_in(2) => {}
                    Fate::Replaced if !others.is_empty() => {
                        with.push((others[random.below(others.len())].clone(), place));
                    }
                    Fate::Lost | Fate::Replaced => with.push((raw.clone(), place)),
                }
            }
        }
        let with: Vec<(&[u8], u64)> = with.iter().map(|(raw, at)| (raw.as_slice(), *at)).collect();
        chain.reorg(depth, &with);
        self.counts(format!("reorganization: {fate:?}"));
    }

    /// Row and bytes of every attempt, by hash.
    fn attempts(&self) -> BTreeMap<String, (String, Vec<u8>)> {
        let rows = self.place.site.sql(
            "SELECT '0x' || encode(tx_hash, 'hex'), tx_id, encode(raw, 'hex') FROM txm.tx_attempts \
             WHERE tx_id IN (SELECT tx_id FROM txm.managed_tx WHERE final_at IS NULL)",
        );
        let of = |row: Vec<String>| {
            let [hash, id, raw] = row.try_into().expect("three columns");
            (hash, (id, hex::decode(raw).expect("hex")))
        };
        rows.into_iter().map(of).collect()
    }

    /// The pool loses a transaction by chance, and the later ones of its sender.
    fn drop_some(&self) {
        let attempts = self.attempts();
        if !attempts.is_empty() {
            let place = self.random.below(attempts.len());
            let hash = attempts.keys().nth(place).expect("below the count");
            if self.place.chain.drop_transaction(hash.parse().expect("a hash")) {
                self.counts("a dropped transaction");
            }
        }
    }
}
