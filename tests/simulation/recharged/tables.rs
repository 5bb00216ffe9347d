//! The model of PostgreSQL's tables as flights with recharges use them: a flight is written whole
//! or not at all, each row by its version, each key once, and the guards refuse the same.

use std::collections::{BTreeMap, BTreeSet};

use domain::account::{AccountStatus, UserId};
use domain::asset::AssetId;
use domain::hold::{Hold, HoldKey, HoldState};
use jiff::Timestamp;
use ubscore::postgres::flight::recharged::{RechargeKey, RechargeRows};
use ubscore::postgres::flight::{Balance, Compared, Decided, Flight, Found, Last, Stopped, Wanted};
use ubscore::recharge::order::{Recharge, RechargeState};
use ubscore::recharge::payment::{Disposition, RechargePayment};
use ubscore::recharge::returned::{Receivable, RechargeReturn, ReturnKind, ReturnState};
use ubscore::recharge::{PaymentId, RechargeId, ReturnId};

use super::world::Planted;

/// A shard's last flight, with its incarnation.
type Fence = (u64, Last);

/// See the head of this file.
#[derive(Debug, Default)]
pub(super) struct Tables {
    pub(super) incarnation: u64,
    fences: BTreeMap<u32, Fence>,
    accounts: BTreeMap<UserId, AccountStatus>,
    pub(super) balances: BTreeMap<(UserId, AssetId), Balance>,
    pub(super) externals: BTreeMap<String, Decided>,
    pub(super) holds: BTreeMap<HoldKey, Hold>,
    pub(super) orders: BTreeMap<RechargeId, Recharge>,
    /// Every further number of an order at its channel.
    pub(super) references: BTreeMap<RechargeId, Vec<String>>,
    pub(super) payments: BTreeMap<(String, String), RechargePayment>,
    pub(super) returns: BTreeMap<ReturnId, RechargeReturn>,
    pub(super) receivables: BTreeMap<ReturnId, Receivable>,
    movements: BTreeSet<String>,
    /// As they were first written, for planted bugs that read an old row.
    firsts: (BTreeMap<RechargeId, Recharge>, BTreeMap<ReturnId, Receivable>),
}

fn differs(what: Compared) -> Result<(), Stopped> {
    Err(Stopped::Differs(what))
}

fn refused(what: String) -> Result<(), Stopped> {
    Err(Stopped::Refused { violation: true, source: what.into() })
}

/// The keys of new rows that are there already, or the rows of others that are not as they were.
fn is_next(stands: Option<u64>, version: u64) -> bool {
    match version {
        1 => stands.is_none(),
        _ => stands == Some(version - 1),
    }
}

impl Tables {
    /// A start: the next incarnation. Returns it.
    pub(super) fn begin(&mut self, shards: u32) -> u64 {
        self.incarnation += 1;
        for shard in 0..shards {
            let (_, last) = self.fence(shard);
            let last = Last { number: last.number + 1, attempt: 0 };
            self.fences.insert(shard, (self.incarnation, last));
        }
        self.incarnation
    }

    fn fence(&self, shard: u32) -> Fence {
        self.fences.get(&shard).copied().unwrap_or((0, Last { number: 0, attempt: 0 }))
    }

    /// A shard's last flight; `None` if a later incarnation has it.
    pub(super) fn last(&self, incarnation: u64, shard: u32) -> Option<Last> {
        let (owner, last) = self.fence(shard);
        (owner == incarnation).then_some(last)
    }

    /// Writes a flight, or nothing of it.
    pub(super) fn fly(
        &mut self,
        incarnation: u64,
        shard: u32,
        flight: &Flight,
        planted: Option<Planted>,
    ) -> Result<(), Stopped> {
        let (owner, last) = self.fence(shard);
        match flight.number {
            _ if owner != incarnation => return Err(Stopped::Superseded),
            number if number == last.number => return Err(Stopped::Number),
            number if number != last.number + 1 => return Err(Stopped::Predecessor),
            _ => {}
        }
        self.funding_fits(flight, planted)?;
        if !planted.is_some_and(Planted::reads_old) {
            self.recharges_fit(flight)?;
            self.guards_admit(flight)?;
        }
        let Flight { number, attempt, .. } = *flight;
        self.fences.insert(shard, (incarnation, Last { number, attempt }));
        self.write(flight);
        Ok(())
    }

    fn funding_fits(&self, flight: &Flight, planted: Option<Planted>) -> Result<(), Stopped> {
        for row in &flight.accounts {
            if self.accounts.get(&row.user).copied() != row.before {
                return differs(Compared::Accounts);
            }
        }
        for row in &flight.balances {
            if self.balances.get(&(row.user, row.asset)).copied() != row.before {
                return differs(Compared::Balances);
            }
        }
        for row in &flight.holds {
            if self.holds.get(&row.key).copied() != row.before {
                return differs(Compared::Holds);
            }
        }
        if planted.is_some_and(Planted::reads_old) {
            return Ok(());
        }
        let taken =
            flight.externals.iter().find(|row| self.externals.contains_key(&row.external.idem_key));
        match taken {
            None => Ok(()),
            Some(row) => {
                let source = row.external.idem_key.clone().into();
                Err(Stopped::Taken { ours: false, source })
            }
        }
    }

    /// Versions and unique keys.
    fn recharges_fit(&self, flight: &Flight) -> Result<(), Stopped> {
        let rows = &flight.recharged;
        let orders = rows.orders.iter().all(|(order, _)| {
            let stands = self.orders.get(&order.id).map(|row| row.version);
            let same_key = |row: &&Recharge| {
                (row.user, &row.idem_key) == (order.user, &order.idem_key) && row.id != order.id
            };
            is_next(stands, order.version) && !self.orders.values().any(|row| same_key(&row))
        });
        let payments = rows.payments.iter().all(|row| {
            let key = (row.channel.clone(), row.trade_no.clone());
            let others = self.payments.iter().filter(|(other, _)| **other != key);
            let same = |other: &RechargePayment| {
                other.id == row.id
                    || row.recharge.is_some()
                        && (other.recharge, other.ordinal) == (row.recharge, row.ordinal)
            };
            is_next(self.payments.get(&key).map(|row| row.version), row.version)
                && !others.map(|(_, other)| other).any(same)
        });
        let returns = rows.returns.iter().all(|row| {
            let same = |other: &RechargeReturn| {
                other.id != row.id
                    && (row.idem_key.is_some() && other.idem_key == row.idem_key
                        || row.number.is_some()
                            && (other.payment, other.kind, &other.number)
                                == (row.payment, row.kind, &row.number))
            };
            is_next(self.returns.get(&row.id).map(|row| row.version), row.version)
                && !self.returns.values().any(same)
        });
        let receivables = rows.receivables.iter().all(|(row, _)| {
            is_next(self.receivables.get(&row.id).map(|row| row.version), row.version)
        });
        let movements = rows.movements.iter().all(|row| !self.movements.contains(&row.key));
        match orders && payments && returns && receivables && movements {
            true => Ok(()),
            false => differs(Compared::Recharges),
        }
    }

    /// The triggers and checks.
    fn guards_admit(&self, flight: &Flight) -> Result<(), Stopped> {
        let rows = &flight.recharged;
        for (order, _) in &rows.orders {
            let is_paid = order.state == RechargeState::Paid;
            if order.held > order.payments || order.paid_at.is_some() != is_paid {
                return refused(format!("the checks of {order:?}"));
            }
            let Some(before) = self.orders.get(&order.id) else { continue };
            let leads = before.state == order.state || before.state.leads_to(order.state);
            let wish = before.closing.is_some() && before.closing != order.closing;
            let over = before.state.is_terminal()
                && (before.paid_at, before.code, before.closing, before.expires_at)
                    != (order.paid_at, order.code, order.closing, order.expires_at);
            let late = before.state.is_terminal() && before.reference != order.reference;
            if !leads || wish || over || late || order.payments < before.payments {
                return refused(format!("{before:?} cannot be {order:?}"));
            }
        }
        for row in &rows.payments {
            let credited = row.disposition == Disposition::Credited;
            let checks = credited == row.user.is_some()
                && row.recharge.is_some() == row.ordinal.is_some()
                && (row.disposition != Disposition::Held || row.cause.is_some());
            let key = (row.channel.clone(), row.trade_no.clone());
            let before = self.payments.get(&key);
            let stands = before.is_none_or(|before| !before.disposition.is_terminal());
            if !checks || !stands {
                return refused(format!("{before:?} cannot be {row:?}"));
            }
        }
        for row in &rows.returns {
            let before = self.returns.get(&row.id);
            let admits = before.is_none_or(|before| {
                before.state == row.state && before.state != ReturnState::Done
                    || before.state.leads_to(row.state)
            });
            if !admits || row.minor_units <= 0 {
                return refused(format!("{before:?} cannot be {row:?}"));
            }
        }
        Ok(())
    }

    fn write(&mut self, flight: &Flight) {
        for row in &flight.accounts {
            self.accounts.extend(row.after.map(|status| (row.user, status)));
        }
        for row in &flight.balances {
            self.balances.extend(row.after.map(|after| ((row.user, row.asset), after)));
        }
        for row in &flight.externals {
            self.externals.entry(row.external.idem_key.clone()).or_insert_with(|| row.clone());
        }
        for row in &flight.holds {
            self.holds.insert(row.key.clone(), row.after);
        }
        let rows = &flight.recharged;
        for (order, steps) in &rows.orders {
            let further = steps.iter().filter_map(|step| {
                Some(step.reason.as_deref()?.strip_prefix("reference ")?.to_owned())
            });
            self.references.entry(order.id).or_default().extend(further);
            self.firsts.0.entry(order.id).or_insert_with(|| order.clone());
            if order.state == RechargeState::Paying {
                self.firsts.0.insert(order.id, order.clone());
            }
            self.orders.insert(order.id, order.clone());
        }
        for row in &rows.payments {
            self.payments.insert((row.channel.clone(), row.trade_no.clone()), row.clone());
        }
        for row in &rows.returns {
            self.returns.insert(row.id, row.clone());
        }
        for (row, _) in &rows.receivables {
            self.firsts.1.entry(row.id).or_insert_with(|| row.clone());
            self.receivables.insert(row.id, row.clone());
        }
        self.movements.extend(rows.movements.iter().map(|row| row.key.clone()));
    }

    /// Reads the rows that a decision wants.
    pub(super) fn read(&self, wanted: &Wanted, planted: Option<Planted>) -> Found {
        let mut found = Found::default();
        let accounts = wanted.accounts.iter();
        found.accounts =
            accounts.filter_map(|user| Some((*user, *self.accounts.get(user)?))).collect();
        let balances = wanted.balances.iter();
        found.balances =
            balances.filter_map(|key| Some((key.0, key.1, *self.balances.get(key)?))).collect();
        if planted != Some(Planted::SecondCredited) {
            let externals = wanted.externals.iter();
            found.externals =
                externals.filter_map(|key| self.externals.get(key).cloned()).collect();
        }
        let holds = wanted.holds.iter();
        found.holds = holds.filter_map(|key| Some((key.clone(), *self.holds.get(key)?))).collect();
        for key in &wanted.recharges {
            self.read_recharge(key, planted, &mut found.recharges);
            found.recharges.read.insert(key.clone());
        }
        found
    }

    fn read_recharge(&self, key: &RechargeKey, planted: Option<Planted>, rows: &mut RechargeRows) {
        match key {
            RechargeKey::Movement(key) => {
                rows.moved.extend(self.movements.get(key).cloned());
            }
            RechargeKey::Order(id) => {
                let Some(order) = self.orders.get(id) else { return };
                let is_paid = order.state == RechargeState::Paid;
                let reads_old = planted == Some(Planted::SecondCredited) && is_paid;
                let old = self.firsts.0.get(id).filter(|_| reads_old);
                rows.order(old.unwrap_or(order).clone());
            }
            RechargeKey::Idem(user, idem_key) => {
                let of_user = || self.orders.values().filter(|order| order.user == *user);
                if let Some(order) = of_user().find(|order| order.idem_key == *idem_key) {
                    rows.order(order.clone());
                }
                let open = of_user().filter(|order| !order.state.is_terminal()).count();
                rows.open.insert(*user, open);
            }
            RechargeKey::Payment(channel, trade_no) => {
                let key = (channel.clone(), trade_no.clone());
                rows.payments.extend(self.payments.get(&key).map(|row| (key, row.clone())));
            }
            RechargeKey::Return(id) => {
                rows.returns.extend(self.returns.get(id).map(|row| (*id, row.clone())));
            }
            RechargeKey::Refund(idem_key) => {
                let named = |row: &&RechargeReturn| row.idem_key.as_ref() == Some(idem_key);
                let row = self.returns.values().find(named);
                rows.returns.extend(row.map(|row| (row.id, row.clone())));
            }
            RechargeKey::Returns(payment) => {
                let hides = planted == Some(Planted::TakenTwice);
                let all = self.returns_of(*payment);
                let seen = all.filter(|row| !hides || row.kind == ReturnKind::Refund);
                rows.returns.extend(seen.map(|row| (row.id, row.clone())));
                let old = planted == Some(Planted::ReceivableEndedTwice);
                let receivables = if old { &self.firsts.1 } else { &self.receivables };
                let receivables = receivables.values().filter(|row| row.payment == *payment);
                rows.receivables.extend(receivables.map(|row| (row.id, row.clone())));
            }
        }
    }

    /// All returns of a payment.
    pub(super) fn returns_of(&self, payment: PaymentId) -> impl Iterator<Item = &RechargeReturn> {
        self.returns.values().filter(move |row| row.payment == payment)
    }

    /// Whether an order of this channel has this number there.
    pub(super) fn has_reference(&self, channel: &str, reference: &str) -> bool {
        let named = |order: &Recharge| order.reference.as_deref() == Some(reference);
        self.orders.values().any(|order| order.channel == channel && named(order))
    }

    /// A payment by its id.
    pub(super) fn payment(&self, id: PaymentId) -> Option<&RechargePayment> {
        self.payments.values().find(|row| row.id == id)
    }

    /// Every number of an order at its channel.
    pub(super) fn references_of(&self, order: &Recharge) -> Vec<String> {
        let further = self.references.get(&order.id).into_iter().flatten();
        let mut all: Vec<String> = order.reference.iter().chain(further).cloned().collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    /// The orders that are due at `now`, as the index of due rows has them.
    pub(super) fn due_orders(&self, now: Timestamp) -> Vec<Recharge> {
        let due = |order: &&Recharge| has_turn(order) && order.next_at.is_some_and(|at| at <= now);
        self.orders.values().filter(due).cloned().collect()
    }

    /// The returns that are due at `now`.
    pub(super) fn due_returns(&self, now: Timestamp) -> Vec<RechargeReturn> {
        let due = |row: &&RechargeReturn| is_asked(row) && row.next_at.is_some_and(|at| at <= now);
        self.returns.values().filter(due).cloned().collect()
    }

    /// When something is due next.
    pub(super) fn next_due(&self) -> Option<Timestamp> {
        let orders = self.orders.values().filter(|order| has_turn(order));
        let orders = orders.filter_map(|order| order.next_at);
        let returns = self.returns.values().filter(|row| is_asked(row));
        orders.chain(returns.filter_map(|row| row.next_at)).min()
    }

    /// The sum of the open holds of a balance.
    pub(super) fn apart(&self, user: UserId, asset: AssetId) -> u128 {
        let open = self.holds.values().filter(|hold| hold.state == HoldState::Held);
        let open = open.filter(|hold| (hold.user, hold.asset) == (user, asset));
        open.map(|hold| u128::from(hold.amount)).sum()
    }
}

/// Whether the till has something to do for an order.
fn has_turn(order: &Recharge) -> bool {
    match order.state {
        RechargeState::Paid => true,
        RechargeState::Closed => false,
        RechargeState::Init | RechargeState::Paying => order.held == 0,
    }
}

fn is_asked(row: &RechargeReturn) -> bool {
    row.kind == ReturnKind::Refund && matches!(row.state, ReturnState::Ready | ReturnState::Sent)
}
