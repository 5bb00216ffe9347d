//! Rows that callers have looked up before the flight of their payments.

use std::collections::BTreeMap;

use super::super::{Known, Memory};
use crate::postgres::flight::recharged::RechargeKey;
use crate::postgres::store::Call;
use crate::recharge::RechargeId;
use crate::recharge::act::{PaymentCall, RechargeAct};
use crate::recharge::order::Recharge;

impl Known {
    /// Takes the orders of payments as their callers have seen them, with no row of the payment, so
    /// that neither is read again. A decision on them writes both rows: the flight compares the
    /// version of the order, and a payment that is there takes the key.
    ///
    /// An order that a flight has written since is read, and so is one that another call names: the
    /// answer to that call may write nothing.
    pub fn see(&mut self, calls: &[Call], memory: &Memory) {
        let mut seen: BTreeMap<RechargeId, Option<&Recharge>> = BTreeMap::new();
        for call in calls {
            let Call::Recharge(call) = call else { continue };
            let Some(id) = call.recharge() else { continue };
            let order = match &call.act {
                RechargeAct::Pay(pay) => usable(pay, memory),
                _ => None,
            };
            seen.entry(id)
                .and_modify(|other| {
                    let same = order.zip(*other).is_some_and(|(one, other)| one == other);
                    *other = other.filter(|_| same);
                })
                .or_insert(order);
        }
        for call in calls {
            let Call::Recharge(call) = call else { continue };
            let order = call.recharge().and_then(|id| seen.get(&id).copied().flatten());
            let (Some(order), Some((channel, trade_no))) = (order, call.payment()) else {
                continue;
            };
            let keys = [RechargeKey::Order(order.id), RechargeKey::Payment(channel, trade_no)];
            self.recharges.read.extend(keys);
            self.recharges.orders.insert(order.id, order.clone());
        }
    }
}

/// The order that the caller of a payment has seen, if no flight has written it since.
fn usable<'a>(pay: &'a PaymentCall, memory: &Memory) -> Option<&'a Recharge> {
    // Rows that may be lost behind a restore, and a payment that is recorded, are always read.
    let order = pay.seen.as_deref().filter(|_| !pay.restored && !pay.again)?;
    let stands = memory.order_version(order.id).is_none_or(|version| version == order.version);
    (stands && pay.recharge == Some(order.id)).then_some(order)
}
