//! Below the watermark there are no single outcomes left. The totals that terminal states claim of
//! UBSCore are compared with the totals that UBSCore keeps.

use std::collections::BTreeMap;

use engine::totals::Totals;

use super::mismatch::{Kind, Mismatch};
use crate::postgres::audit_reader::Passed;
use domain::account::UserId;
use domain::asset::{AssetId, Catalog};
use domain::transfer::Op;

/// Totals of UBSCore below an order number, by user and asset.
pub type Settled = BTreeMap<(u64, u32), Totals>;

/// Compares the totals of both stores below one and the same order number.
pub fn compare(passed: &[Passed], settled: &Settled, catalog: &Catalog) -> Vec<Mismatch> {
    let mut left = settled.clone();
    let mut mismatches = Vec::new();
    let mut compare = |user: u64, asset: u32, claimed: Totals, done: Totals| {
        if claimed != done {
            mismatches.push(mismatch(user, AssetId(asset), claimed, done, catalog));
        }
    };
    for Passed { user, asset, claimed: [withdrawals, deposits, refunds] } in passed {
        let claimed = Totals { withdrawals: *withdrawals, deposits: *deposits, refunds: *refunds };
        let done = left.remove(&(user.number(), asset.0)).unwrap_or_default();
        compare(user.number(), asset.0, claimed, done);
    }
    for ((user, asset), done) in left {
        compare(user, asset, Totals::default(), done);
    }
    mismatches
}

fn mismatch(
    user: u64,
    asset: AssetId,
    claimed: Totals,
    done: Totals,
    catalog: &Catalog,
) -> Mismatch {
    assert_ne!(claimed, done, "user {user}: equal totals are no finding");
    // If Spot has paid less than claimed, the user has that much too much.
    let balance = |totals: Totals| {
        let part = |op: Op| {
            let units = i128::try_from(totals.of(op)).unwrap_or(i128::MAX);
            op.row().available.sign() * units
        };
        Op::OF_TRANSFER.map(part).into_iter().fold(0, i128::saturating_add)
    };
    let difference = balance(done).saturating_sub(balance(claimed));
    Mismatch::new(Kind::SettledTotals { claimed, done }).with_account(
        UserId::new(user),
        asset,
        difference,
        catalog,
    )
}
