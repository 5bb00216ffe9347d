//! External operations of recharges in a flight: each is booked once for its key.

use super::super::{Balance, Decided, Key};
use super::recharges::operation;
use super::{Draft, Objected, fits, signed, violation};
use crate::postgres::store::External;
use domain::code::Code;
use domain::transfer::{Decision, ExternalOperation};

impl Draft<'_> {
    /// The external operation of this key, if a repair has restored its row: it comes before the
    /// row that it belongs to.
    pub(super) fn restored(
        &self,
        external: &External,
    ) -> Result<Option<ExternalOperation>, Objected> {
        self.readable(&Key::External(external.idem_key.clone()))?;
        let Some(row) = self.known.externals.get(&external.idem_key) else { return Ok(None) };
        let body = |one: &External| (one.op, one.user, one.asset, one.amount);
        let key = &external.idem_key;
        if row.decision != Decision::Success || body(&row.external) != body(external) {
            return Err(violation(format!("{key} is recorded with another body")));
        }
        let done = operation(row).ok_or_else(|| violation(format!("{key} is no key")))?;
        Ok(Some(done))
    }

    /// Adds a successful external operation to the flight.
    fn decides(
        &mut self,
        external: &External,
        balance_after: Option<i128>,
    ) -> Result<ExternalOperation, Objected> {
        let (external, decision) = (external.clone(), Decision::Success);
        let key = external.idem_key.clone();
        let row = Decided { external, decision, balance_after };
        let done = operation(&row).ok_or_else(|| violation(format!("{key} is no key")))?;
        self.externals.insert(key, self.flight.externals.len());
        self.flight.externals.push(row);
        Ok(done)
    }

    /// Books a credit, or finds it booked. The inner error: the account does not take it, and
    /// nothing was written.
    pub(super) fn booked(
        &mut self,
        external: &External,
    ) -> Result<Result<ExternalOperation, Code>, Objected> {
        if let Some(done) = self.restored(external)? {
            return Ok(Ok(done));
        }
        let External { op, user, asset, amount, .. } = *external;
        let (decision, balance_after) = self.book(op, user, asset, amount)?;
        match decision.code() {
            Some(code) => Ok(Err(code)),
            None => self.decides(external, balance_after).map(Ok),
        }
    }

    /// Books an operation in any state of the account, or finds it booked. `covered`: it takes no
    /// more than is available.
    pub(super) fn booked_anyway(
        &mut self,
        external: &External,
        covered: bool,
    ) -> Result<ExternalOperation, Objected> {
        if let Some(done) = self.restored(external)? {
            return Ok(done);
        }
        let External { op, user, asset, amount, .. } = *external;
        self.readable(&Key::Account(user))?;
        self.readable(&Key::Balance(user, asset))?;
        let (available, units) = (self.available(user, asset), u128::from(amount.units()));
        let effect = op.effect(Decision::Success, amount.units());
        let after = available.checked_add(effect).filter(|after| fits(*after));
        // Nothing is taken from a balance below zero.
        let takes = covered && op.takes();
        let after = after.filter(|_| !takes || self.free(user, asset) >= units);
        let Some(after) = after else {
            let what = format!("{op} of {units} units does not fit the balance {available}");
            return Err(Objected { violation: false, what });
        };
        self.account(user);
        let row = self.balance(user, asset);
        let frozen = row.after.or(row.before).map_or(0, |stands| stands.frozen);
        let version = row.before.map_or(0, |before| before.version) + 1;
        row.after = Some(Balance { available: after, frozen, version });
        self.decides(external, Some(after.saturating_add(signed(frozen))))
    }
}
