//! The bonuses of lost orders: the money that their promotions have for them, in a plan.

use std::collections::BTreeMap;

use anyhow::Context;

use super::lost::Lost;
use crate::postgres::promotions::remade::{Remade, recovered_key};
use crate::postgres::reads::Reads;
use crate::recharge::order::Recharge;
use crate::recharge::{PaymentId, movement};
use domain::amount::Amount;
use domain::asset::{AssetId, Catalog};

/// The money of each promotion that a plan has not used yet, smallest units.
pub(super) struct Money(BTreeMap<String, (AssetId, u64)>);

impl Money {
    pub(super) async fn read(reads: &Reads) -> anyhow::Result<Money> {
        let rows = reads.promotion_rows().await.context("read the promotions")?;
        Ok(Money(rows.into_iter().map(|row| (row.name, (row.asset, row.available))).collect()))
    }

    /// The end of an order that is made again: it uses its bonus up, if it `reserves` one.
    pub(super) fn remade(&mut self, order: &Recharge, reserves: bool) -> Remade {
        if !reserves {
            return Remade::Made { lacked: None };
        }
        let found = order.promotion.as_ref().and_then(|name| self.0.get_mut(name));
        let Some((_, units)) = found.filter(|(asset, _)| *asset == order.asset) else {
            return Remade::NoPromotion;
        };
        let lacked = Amount::new(order.bonus.saturating_sub(*units));
        *units = units.saturating_sub(order.bonus);
        Remade::Made { lacked }
    }
}

/// Whether a lost order is made again with its bonus: UBSCore's log has that, or nothing of the
/// order, so that its payment is decided as new. A credit in the log without a bonus had none.
pub(super) fn reserves(lost: &Lost, order: &Recharge, payment: PaymentId) -> bool {
    order.bonus > 0
        && order.promotion.is_some()
        && (lost.has(&movement::recharge_bonus(order.id))
            || !lost.has_credit(payment, Some(order.id)))
}

/// The bonus of a remade order in words, behind those of the order.
pub(super) fn bonus_text(
    catalog: &Catalog,
    order: &Recharge,
    reserves: bool,
    made: Remade,
) -> String {
    let Some(name) = order.promotion.as_deref().filter(|_| order.bonus > 0) else {
        return String::new();
    };
    let text = |units: u64| {
        Amount::new(units)
            .map_or_else(String::new, |amount| amount.text(catalog.precision(order.asset)))
    };
    let bonus = text(order.bonus);
    if !reserves {
        return format!("; its bonus {bonus} of promotion {name} is not in the log, and not given");
    }
    match made {
        Remade::Made { lacked: None } => format!("; with its bonus {bonus} of promotion {name}"),
        Remade::Made { lacked: Some(lacked) } => format!(
            "; with its bonus {bonus} of promotion {name}, which lacks {}: fund/{} puts that in",
            text(lacked.units()),
            recovered_key(order.id)
        ),
        Remade::Found => String::new(),
        Remade::NoPromotion => format!(
            "; promotion {name} of its bonus {bonus} is not here: make it again with `ubscore \
             promotion set {name}`, for the same asset, then the same command"
        ),
    }
}
