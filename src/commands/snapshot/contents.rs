//! The content of a snapshot: its facts by kind, and their sums.

use std::collections::BTreeMap;

use engine::entry::Entry;
use engine::fact::Fact;
use engine::snapshot::{self, Snapshot};
use engine::totals::Totals;
use serde::Serialize;

use crate::commands::wal::assets::Assets;
use crate::commands::wal::integer::Integer;

/// The sums over the balances of one asset.
#[derive(PartialEq, Eq, Serialize)]
pub(super) struct SumObject {
    pub(super) asset: Option<String>,
    pub(super) asset_id: u32,
    /// Without holds and freezes; in the asset's decimals, like the other sums.
    pub(super) available: String,
    /// All holds and freezes.
    pub(super) held: String,
    pub(super) deposits: String,
    pub(super) withdrawals: String,
    pub(super) refunds: String,
    pub(super) available_units: Integer,
    pub(super) held_units: Integer,
}

impl SumObject {
    pub(super) fn text(&self) -> String {
        let SumObject { available, held, deposits, withdrawals, refunds, held_units, .. } = self;
        let held = match held_units.is_zero() {
            true => String::new(),
            false => format!(" held={held}"),
        };
        format!(
            "available={available}{held} deposits={deposits} withdrawals={withdrawals} \
             refunds={refunds}"
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
    pub(super) venues: u64,
    /// Holds of venues and of transactions, and freezes.
    pub(super) holds: u64,
    /// Outcomes of postings by name.
    pub(super) postings: u64,
    /// Answers that venues have not acknowledged.
    pub(super) answers: u64,
    pub(super) watermark: u64,
}

/// The content of a snapshot.
#[derive(Default)]
pub(super) struct Contents {
    pub(super) held: Held,
    /// The sum over the evicted outcomes.
    pub(super) evicted: u128,
    pub(super) assets: Assets,
    /// By asset.
    pub(super) sums: BTreeMap<u32, Sum>,
}

/// The sums over the balances of one asset, smallest units.
#[derive(Clone, Copy, Default)]
pub(super) struct Sum {
    available: u128,
    held: u128,
    totals: Totals,
}

impl Contents {
    pub(super) fn sum_object(&self, asset: u32) -> Option<SumObject> {
        let Sum { available, held, totals } = *self.sums.get(&asset)?;
        let text = |units| self.assets.amount(asset, units);
        Some(SumObject {
            asset: self.assets.symbol(asset).map(str::to_owned),
            asset_id: asset,
            available: text(available),
            held: text(held),
            deposits: text(totals.deposits),
            withdrawals: text(totals.withdrawals),
            refunds: text(totals.refunds),
            available_units: available.into(),
            held_units: held.into(),
        })
    }

    /// Adds a balance; `None` if the sum exceeds a u128.
    fn add(&mut self, asset: u32, available: u128, held: u128, totals: &Totals) -> Option<()> {
        let sum = self.sums.entry(asset).or_default();
        sum.available = sum.available.checked_add(available)?;
        sum.held = sum.held.checked_add(held)?;
        sum.totals = Totals {
            deposits: sum.totals.deposits.checked_add(totals.deposits)?,
            withdrawals: sum.totals.withdrawals.checked_add(totals.withdrawals)?,
            refunds: sum.totals.refunds.checked_add(totals.refunds)?,
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
                    .add(asset, available, set_apart, &totals)
                    .ok_or_else(|| contradiction("its balances are more than there can be"))?;
            }
            Fact::Outcome { .. } => held.outcomes += 1,
            Fact::Watermark { order_number } => held.watermark = order_number,
            Fact::Evicted { digest } => contents.evicted = digest,
            Fact::Venue(_) => held.venues += 1,
            Fact::Hold(_) => held.holds += 1,
            Fact::Answer(_) => held.answers += 1,
            Fact::Named(_) => held.postings += 1,
            Fact::Outside { .. } | Fact::Crossed { .. } => {}
        }
    }
    match digest == snapshot.header.digest {
        true => Ok(contents),
        false => Err(contradiction("its facts do not add up to its digest")),
    }
}
