//! Behind a restore: orders that are remade from their proofs, and credits that a repair has
//! brought back before the payments that they belong to. Such a credit is adopted: the payment gets
//! its row and its movement, and no balance changes.

use super::super::super::{Decided, Key};
use super::super::{Draft, Objected};
use super::Matter;
use crate::postgres::store::External;
use crate::recharge::PaymentId;
use crate::recharge::act::{RechargeCall, RechargeOutcome, RechargeReply};
use crate::recharge::decide::RestoredCredit;
use crate::recharge::movement;
use crate::recharge::order::{Recharge, RechargeState, RechargeStep};
use crate::recharge::payment::RechargePayment;
use domain::account::UserId;
use domain::amount::Amount;
use domain::asset::AssetId;
use domain::transfer::{Decision, Op};

impl Draft<'_> {
    /// Writes a lost order again as PAYING, once for its id. Nothing of a bonus is reserved.
    pub(super) fn remake(&mut self, call: &RechargeCall, asked: &Recharge) -> RechargeReply {
        if let Some(found) = self.order(asked.id) {
            let order = Box::new(found);
            return RechargeReply::plain(RechargeOutcome::Order { order, replayed: true });
        }
        let order = Recharge { state: RechargeState::Paying, version: 1, ..asked.clone() };
        let step = |state| {
            let (actor, reason) = (call.actor.clone(), None);
            RechargeStep { state, actor, reason }
        };
        let steps = [RechargeState::Init, RechargeState::Paying].map(step).into();
        self.write_order(order.clone(), steps);
        let order = Box::new(Recharge { updated_at: self.flight.at, ..order });
        RechargeReply::plain(RechargeOutcome::Order { order, replayed: false })
    }

    /// The credit of a payment that a repair has brought back. `owner`: its user; `arrived`: its
    /// asset and amount.
    ///
    /// A late credit has the key of its payment. That of the order tells not which of its payments
    /// it was: the first one of this amount has it.
    pub(super) fn restored_credit(
        &self,
        id: PaymentId,
        order: Option<&Recharge>,
        owner: Option<UserId>,
        arrived: (AssetId, Option<Amount>),
    ) -> Result<RestoredCredit, Objected> {
        let is_ours = |row: &Decided| {
            let External { op, user, asset, amount, .. } = row.external;
            row.decision == Decision::Success
                && (op, Some(user)) == (Op::ExtDeposit, owner)
                && (asset, Some(amount)) == arrived
        };
        let found = |row: &Decided, key: String, pays| match is_ours(row) {
            true => RestoredCredit::Ours { key, pays },
            false => RestoredCredit::Other,
        };
        let key = movement::payment_credit(id);
        if let Some(row) = self.unmoved(&key)? {
            return Ok(found(row, key, false));
        }
        let Some(order) = order.filter(|order| order.state != RechargeState::Paid) else {
            return Ok(RestoredCredit::Nothing);
        };
        let key = movement::recharge_credit(order.id);
        let pays = !order.state.is_terminal();
        let row = self.unmoved(&key)?;
        Ok(row.map_or(RestoredCredit::Nothing, |row| found(row, key, pays)))
    }

    /// Whether the credit of an order that a repair has brought back had a bonus beside it: also an
    /// order that was CLOSED behind the restore gets it again, and its promotion does not.
    pub(super) fn adopts_bonus(&self, matter: &Matter) -> Result<bool, Objected> {
        let Some(id) = matter.order.as_ref().map(|order| order.id) else { return Ok(false) };
        if matter.restored != Some(movement::recharge_credit(id)) {
            return Ok(false);
        }
        let key = movement::recharge_bonus(id);
        self.readable(&Key::External(key.clone()))?;
        Ok(self.known.externals.contains_key(&key))
    }

    /// Whether UBSCore's log has a credit of the order that a payment without an order names, and
    /// that order is lost: the user may have the money of this very payment.
    pub(super) fn has_lost_order(&self, payment: &RechargePayment) -> Result<bool, Objected> {
        match payment.named_order() {
            Some(id) => Ok(self.unmoved(&movement::recharge_credit(id))?.is_some()),
            None => Ok(false),
        }
    }

    /// The external operation of a key, if no movement has that key yet.
    fn unmoved(&self, key: &str) -> Result<Option<&Decided>, Objected> {
        self.readable(&Key::External(key.to_owned()))?;
        let here = self.desk.movements.iter().any(|movement| movement.key == key);
        let moved = here || self.known.recharges.moved.contains(key);
        Ok(self.known.externals.get(key).filter(|_| !moved))
    }
}
