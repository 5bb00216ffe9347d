//! The content of a snapshot: its facts by kind, and their sums.

use std::collections::BTreeMap;

use engine::entry::Entry;
use engine::fact::Fact;
use engine::snapshot::{self, Snapshot};
use engine::totals::Totals;
use serde::Serialize;

use crate::commands::wal::line::{Assets, Integer};

/// The sums over the balances of one asset.
#[derive(PartialEq, Eq, Serialize)]
pub(super) struct SumObject {
    pub(super) asset: Option<String>,
    pub(super) asset_id: u32,
    /// In the asset's decimals, like the other sums.
    pub(super) available: String,
    pub(super) deposits: String,
    pub(super) withdrawals: String,
    pub(super) refunds: String,
    pub(super) available_units: Integer,
}

impl SumObject {
    pub(super) fn text(&self) -> String {
        let SumObject { available, deposits, withdrawals, refunds, .. } = self;
        format!(
            "available={available} deposits={deposits} withdrawals={withdrawals} refunds={refunds}"
        )
    }
}

/// The number of facts of each kind.
#[derive(Clone, Copy, Default, Serialize)]
pub(super) struct Held {
    pub(super) assets: u64,
    pub(super) accounts: u64,
    pub(super) balances: u64,
    pub(super) outcomes: u64,
    pub(super) watermark: u64,
}

/// The content of a snapshot.
#[derive(Default)]
pub(super) struct Contents {
    pub(super) held: Held,
    /// The sum over the evicted outcomes.
    pub(super) evicted: u128,
    pub(super) assets: Assets,
    /// By asset: the available sum, and the sums of the operations.
    pub(super) sums: BTreeMap<u32, (u128, Totals)>,
}

impl Contents {
    pub(super) fn sum_object(&self, asset: u32) -> Option<SumObject> {
        let (available, totals) = self.sums.get(&asset)?;
        let text = |units| self.assets.amount(asset, units);
        Some(SumObject {
            asset: self.assets.symbol(asset).map(str::to_owned),
            asset_id: asset,
            available: text(*available),
            deposits: text(totals.deposits),
            withdrawals: text(totals.withdrawals),
            refunds: text(totals.refunds),
            available_units: (*available).into(),
        })
    }

    /// Adds a balance; `None` if the sum exceeds a u128.
    fn add(&mut self, asset: u32, available: u128, totals: &Totals) -> Option<()> {
        let (available_sum, sums) = self.sums.entry(asset).or_default();
        *available_sum = available_sum.checked_add(available)?;
        *sums = Totals {
            deposits: sums.deposits.checked_add(totals.deposits)?,
            withdrawals: sums.withdrawals.checked_add(totals.withdrawals)?,
            refunds: sums.refunds.checked_add(totals.refunds)?,
        };
        Some(())
    }
}

/// Reads every fact and adds them up.
pub(super) fn check(snapshot: &Snapshot) -> Result<Contents, snapshot::Error> {
    let contradiction =
        |problem| snapshot::Error::Contradiction { path: snapshot.path.clone(), problem };
    let mut contents = Contents::default();
    let mut digest: u128 = 0;
    for fact in snapshot.facts()? {
        let fact = fact?;
        digest = digest.wrapping_add(fact.digest());
        let held = &mut contents.held;
        match fact {
            Fact::Asset { asset, precision, symbol } => {
                held.assets += 1;
                contents.assets.learn(&Entry::Asset { asset, precision, symbol });
            }
            Fact::Account { .. } => held.accounts += 1,
            Fact::Balance { asset, available, held: set_apart, totals, .. } => {
                held.balances += 1;
                contents
                    .add(asset, available.saturating_add(set_apart), &totals)
                    .ok_or_else(|| contradiction("its balances are more than there can be"))?;
            }
            Fact::Outcome { .. } => held.outcomes += 1,
            Fact::Watermark { order_number } => held.watermark = order_number,
            Fact::Evicted { digest } => contents.evicted = digest,
            Fact::Outside { .. } | Fact::Hold(_) | Fact::Venue(_) | Fact::Answer(_) => {}
        }
    }
    match digest == snapshot.header.digest {
        true => Ok(contents),
        false => Err(contradiction("its facts do not add up to its digest")),
    }
}
