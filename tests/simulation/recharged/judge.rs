//! The judge: the laws of recharges (RL1 to RL10 of the specification), written from their words.
//! It sees each committed flight, each call of a channel when it is sent, and each answer to a
//! callback. It compares them with the truth of the model channel, and knows nothing of the code.

use std::collections::{BTreeMap, BTreeSet};

use domain::code::Code;
use domain::transfer::Op;
use jiff::Timestamp;
use ubscore::postgres::flight::Flight;
use ubscore::postgres::flight::recharged::RechargeChange;
use ubscore::recharge::facts::Notice;
use ubscore::recharge::movement::{LedgerAccount, MovementKind, RechargeMovement};
use ubscore::recharge::order::{Recharge, RechargeState, RechargeStep};
use ubscore::recharge::payment::{Disposition, RechargePayment};
use ubscore::recharge::returned::{Receivable, RechargeReturn, ReturnKind, ReturnState};
use ubscore::recharge::{PaymentId, RechargeId, ReturnId};

use super::bank::{Bank, CHANNELS, Real};
use super::desk::OPERATOR;
use super::tables::Tables;
use super::world::{ASSET, UNITS_OF_MINOR, users};
use crate::simulation::law::Broken;

/// Units of an account, signed.
type Sums = BTreeMap<String, i128>;

/// A try that was committed, and the wish at that time.
#[derive(Clone, Copy, Debug)]
struct Tried {
    closing: bool,
    used: bool,
}

/// See the head of this file.
#[derive(Debug, Default)]
pub(super) struct Judge {
    broken: Option<Broken>,
    orders: BTreeMap<RechargeId, Recharge>,
    payments: BTreeMap<(String, String), RechargePayment>,
    returns: BTreeMap<ReturnId, RechargeReturn>,
    receivables: BTreeMap<ReturnId, Receivable>,
    tries: BTreeMap<RechargeId, Tried>,
    sends: BTreeMap<ReturnId, bool>,
    keys: BTreeSet<String>,
    credited: BTreeSet<PaymentId>,
    /// The money that users have of a payment, smallest units.
    nets: BTreeMap<PaymentId, i128>,
    /// Orders with an event PAID.
    told_paid: BTreeSet<u128>,
    sums: Sums,
    /// Events, counted by name.
    pub(super) tally: BTreeMap<&'static str, u64>,
}

impl Judge {
    /// The first law that was broken.
    pub(super) fn broken(&self) -> Option<&Broken> {
        self.broken.as_ref()
    }

    /// A law is broken. The first one stands.
    pub(super) fn breach(&mut self, law: &'static str, what: String) {
        self.broken.get_or_insert(Broken { law, what });
    }

    /// Counts an event.
    pub(super) fn note(&mut self, what: &'static str) {
        *self.tally.entry(what).or_default() += 1;
    }

    /// A flight is committed.
    pub(super) fn committed(&mut self, flight: &Flight, bank: &Bank, now: Timestamp) {
        let rows = &flight.recharged;
        for row in &rows.payments {
            self.payment(row, bank);
        }
        for row in &rows.returns {
            self.goes_back(row, bank);
        }
        for (row, _) in &rows.receivables {
            self.receivable(row);
        }
        for (order, steps) in &rows.orders {
            self.order(order, steps, bank, now);
        }
        for row in &flight.balances {
            if row.after.is_some_and(|after| after.available < 0) {
                self.breach("RL8 no balance below zero", format!("{row:?}"));
            }
        }
        for notice in rows.notices.iter().filter(|one| one.change == RechargeChange::Paid) {
            if !self.told_paid.insert(notice.recharge) {
                self.breach("RL1 one event a PAID order", format!("{notice:?}"));
            }
        }
        self.sources(flight);
        for movement in &rows.movements {
            self.movement(movement, flight);
        }
        let mut changed: BTreeSet<PaymentId> = rows.returns.iter().map(|row| row.payment).collect();
        changed.extend(rows.receivables.iter().map(|(row, _)| row.payment));
        for payment in changed {
            self.bears(payment);
        }
    }

    fn order(&mut self, order: &Recharge, steps: &[RechargeStep], bank: &Bank, now: Timestamp) {
        let before = self.orders.insert(order.id, order.clone());
        if let Some(before) = &before {
            let end = |order: &Recharge| (order.state, order.paid_at, order.code, order.closing);
            if before.state.is_terminal() && end(before) != end(order) {
                self.breach("RL6 terminal is final", format!("{before:?} became {order:?}"));
            }
        }
        let was_closed = before.is_some_and(|before| before.state == RechargeState::Closed);
        if order.state != RechargeState::Closed || was_closed {
            return;
        }
        self.note("orders closed");
        // An operator may force it, and an operator's end of its last payment closes it.
        let forced = steps.iter().any(|step| step.actor == OPERATOR);
        if forced || order.code == Some(Code::HeldEnded) {
            return;
        }
        let no = order.id.to_string();
        if bank.takes_more(&no, now) {
            let law = "RL5 closed only where the channel takes no more";
            self.breach(law, format!("{no} can be paid still"));
        }
        for real in bank.payments_of(&no).filter(|real| !real.by_lie) {
            let key = (order.channel.clone(), real.facts.trade_no.clone());
            if !self.payments.contains_key(&key) {
                let law = "RL5 closed only where nothing is paid";
                self.breach(law, format!("{no}: {key:?} is not known here"));
            }
        }
    }

    fn payment(&mut self, row: &RechargePayment, bank: &Bank) {
        let key = (row.channel.clone(), row.trade_no.clone());
        let fits = bank.payments().get(&key).is_some_and(|real| {
            let facts = &real.facts;
            (row.minor_units, &row.currency, &row.merchant_no)
                == (facts.minor_units, &facts.currency, &facts.merchant_no)
        });
        if !fits {
            let law = "RL2 a payment is what its channel says";
            self.breach(law, format!("{row:?} is none of the channel"));
        }
        let order =
            RechargeId::parse(&row.merchant_no).and_then(|id| self.orders.get(&id).cloned());
        let order = order.as_ref();
        if row.recharge.is_none() && order.is_some_and(|order| order.channel == row.channel) {
            let law = "RL1 a payment belongs to the order that it names";
            self.breach(law, format!("{row:?} has no order"));
        }
        let units = u64::try_from(row.minor_units).expect("above 0") * UNITS_OF_MINOR;
        if row.amount.is_some_and(|amount| amount.units() != units) {
            self.breach("RL9 the channel's amount counts", format!("{row:?}"));
        }
        let is_second = order.is_some_and(|order| order.state == RechargeState::Paid);
        let seen_now = !self.payments.contains_key(&key);
        if seen_now && is_second && row.disposition == Disposition::Credited {
            self.breach("RL1 one credit an order", format!("{row:?}"));
        }
        if let Some(before) = self.payments.insert(key, row.clone()) {
            let body = |row: &RechargePayment| (row.id, row.minor_units, row.amount, row.paid_at);
            if before.disposition.is_terminal() || body(&before) != body(row) {
                self.breach("RL1 one decision a payment", format!("{before:?} became {row:?}"));
            }
        }
        if self.payments[&(row.channel.clone(), row.trade_no.clone())].version == 1
            && bank
                .payments()
                .values()
                .any(|real| real.by_lie && real.facts.trade_no == row.trade_no)
        {
            self.note("late by a lie");
        }
        self.note(row.disposition.name());
        if let Some(cause) = row.cause {
            self.note(cause.name());
        }
    }

    fn goes_back(&mut self, row: &RechargeReturn, bank: &Bank) {
        let no = row.id.to_string();
        let before = self.returns.get(&row.id).cloned();
        let before = before.as_ref();
        if before
            .is_some_and(|before| matches!(before.state, ReturnState::Done | ReturnState::Failed))
        {
            self.breach("RL1 one decision a return", format!("{before:?} became {row:?}"));
        }
        self.note(row.kind.name());
        match (row.kind, row.state) {
            (ReturnKind::Refund, ReturnState::Done) if !bank.is_sent(&no) => {
                let law = "RL5 a return is done by the channel's word";
                self.breach(law, format!("{no} is not with its payer"));
            }
            (ReturnKind::Refund, ReturnState::Failed)
                if row.code == Some(Code::ChannelRefused) && !bank.has_refused(&no) =>
            {
                let law = "RL5 a hold is released on a refusal alone";
                self.breach(law, format!("the channel has not refused {no}"));
            }
            (ReturnKind::Refund, _) => {}
            (kind @ (ReturnKind::Taken | ReturnKind::GivenBack), _) => {
                self.taking(row, kind, bank);
            }
        }
        self.returns.insert(row.id, row.clone());
    }

    fn taking(&mut self, row: &RechargeReturn, kind: ReturnKind, bank: &Bank) {
        let number = row.number.as_deref().unwrap_or_default();
        let real = match bank.disputes().get(number) {
            Some(dispute) if kind == ReturnKind::Taken => Some(dispute.minor_units),
            Some(dispute) => dispute.given,
            // A refund that was refused, and carried out all the same.
            None => bank.sent_units(number).filter(|_| kind == ReturnKind::Taken),
        };
        if real != Some(row.minor_units) {
            self.breach("RL2 a taking is what its channel says", format!("{row:?}"));
        }
        let same = |other: &&RechargeReturn| {
            other.id != row.id
                && (other.payment, other.kind, &other.number)
                    == (row.payment, row.kind, &row.number)
        };
        if let Some(other) = self.returns.values().find(same) {
            self.breach("RL1 a taking is booked once", format!("{other:?} and {row:?}"));
        }
    }

    fn receivable(&mut self, row: &Receivable) {
        let ended: u64 = row.acts.iter().map(|act| act.amount.units()).sum();
        let before = self.receivables.insert(row.id, row.clone());
        let grows = before.as_ref().is_none_or(|before| row.acts.starts_with(&before.acts));
        if !grows || ended != row.recovered + row.written_off || ended > row.amount.units() {
            let law = "RL8 a receivable is ended once";
            self.breach(law, format!("{before:?} became {row:?}"));
        }
        self.note("receivables");
    }

    /// A side of a user and its external operation are in one flight, and the same.
    fn sources(&mut self, flight: &Flight) {
        for row in &flight.externals {
            let external = &row.external;
            let key = &external.idem_key;
            let of_recharges = ["recharge/", "payment/", "return/"];
            if !of_recharges.iter().any(|head| key.starts_with(head))
                || row.decision.code().is_some()
            {
                continue;
            }
            let user = LedgerAccount::User(external.user);
            let fits = flight.recharged.movements.iter().any(|movement| {
                let side = if external.op.takes() { &movement.debit } else { &movement.credit };
                movement.key == *key && movement.amount == external.amount && *side == user
            });
            if !fits {
                self.breach("RL7 every unit has a source", format!("{row:?} has no movement"));
            }
            let id = key.strip_prefix("payment/").and_then(|rest| rest.strip_suffix("/credit"));
            let id = id.and_then(|ulid| PaymentId::parse(&format!("wpy_{ulid}")));
            let recharge = flight
                .recharged
                .payments
                .iter()
                .find(|row| Some(row.id) == id)
                .and_then(|row| row.recharge);
            let paid = recharge.and_then(|id| self.orders.get(&id));
            let is_second = paid.is_some_and(|order| order.state == RechargeState::Paid);
            if is_second && external.actor != OPERATOR {
                self.breach("RL1 one credit an order", format!("{row:?}"));
            }
        }
    }

    fn movement(&mut self, row: &RechargeMovement, flight: &Flight) {
        if !self.keys.insert(row.key.clone()) {
            self.breach("RL7 a movement is written once", format!("{row:?}"));
        }
        let users = [&row.debit, &row.credit];
        if users.iter().any(|side| matches!(side, LedgerAccount::User(_))) {
            let takes = matches!(row.debit, LedgerAccount::User(_));
            let op = if takes { Op::ExtWithdraw } else { Op::ExtDeposit };
            let has = |decided: &ubscore::postgres::flight::Decided| {
                let external = &decided.external;
                (&external.idem_key, external.op, external.amount) == (&row.key, op, row.amount)
            };
            if !flight.externals.iter().any(has) {
                self.breach("RL7 every unit has a source", format!("{row:?} has no operation"));
            }
        }
        if row.kind == MovementKind::Credit && !self.credited.insert(row.payment) {
            self.breach("RL1 one credit a payment", format!("{row:?}"));
        }
        if row.key.ends_with("/taken") {
            self.note("a refused refund is taken");
        }
        let units = i128::from(row.amount.units());
        self.net(row, units);
        *self.sums.entry(row.debit.to_string()).or_default() += units;
        *self.sums.entry(row.credit.to_string()).or_default() -= units;
    }

    /// No user has more of a payment than came, and none pays more than that.
    fn net(&mut self, row: &RechargeMovement, units: i128) {
        let change = match (&row.debit, &row.credit) {
            (LedgerAccount::User(_), _) => -units,
            (_, LedgerAccount::User(_)) => units,
            _ => return,
        };
        let net = self.nets.entry(row.payment).or_default();
        *net += change;
        let (net, mut all) = (*net, self.payments.values());
        let payment = all.find(|payment| payment.id == row.payment);
        let most = payment.and_then(|payment| payment.amount).map_or(0, |amount| amount.units());
        if net < 0 || net > i128::from(most) {
            let law = "RL9 no user has more of a payment than came";
            self.breach(law, format!("{net} of {most} behind {row:?}"));
        }
    }

    /// The user of a payment bears the money that its channel has taken, at most the part that
    /// refunds leave of it, but for a part that was written off. A part is paid, or owed.
    fn bears(&mut self, id: PaymentId) {
        let payment = self.payments.values().find(|row| row.id == id);
        let credited = payment.filter(|row| row.disposition == Disposition::Credited);
        let Some(whole) = credited.and_then(|row| row.amount) else { return };
        let sum = |wanted: &dyn Fn(&RechargeReturn) -> bool| -> i128 {
            let rows = self.returns.values().filter(|row| row.payment == id && wanted(row));
            rows.map(|row| i128::from(row.minor_units) * i128::from(UNITS_OF_MINOR)).sum()
        };
        let is_refund = |row: &RechargeReturn| row.kind == ReturnKind::Refund;
        let refunds = sum(&|row| is_refund(row) && row.state != ReturnState::Failed);
        let done = sum(&|row| is_refund(row) && row.state == ReturnState::Done);
        let taken = sum(&|row| row.kind == ReturnKind::Taken)
            - sum(&|row| row.kind == ReturnKind::GivenBack);
        let whole = i128::from(whole.units());
        let due = (whole - refunds).max(0).min(taken.max(0));
        let owed = self.receivables.values().filter(|row| row.payment == id);
        let (open, written_off) = owed.fold((0, 0), |(open, written_off), row| {
            (open + i128::from(row.open()), written_off + i128::from(row.written_off))
        });
        let net = self.nets.get(&id).copied().unwrap_or(0);
        let bears = whole - net - done + open;
        if refunds > done && taken > 0 {
            self.note("taken beside a refund under way");
        }
        if bears < due - written_off || bears > due {
            let law = "RL9 a user bears what was taken, and no more";
            let what = format!("{id}: {bears} of {due}, with {written_off} written off");
            self.breach(law, what);
        }
    }

    /// A try of an order was granted. One flight may write the try and a later act, so its
    /// own answer counts, and the row must be durable by then.
    pub(super) fn granted(&mut self, row: &Recharge) {
        if self.orders.get(&row.id).is_none_or(|stands| stands.version < row.version) {
            self.breach("RL10 a try is durable before its call", format!("{row:?}"));
        }
        self.tries.insert(row.id, Tried { closing: row.closing.is_some(), used: false });
    }

    /// The same of a return.
    pub(super) fn granted_send(&mut self, row: &RechargeReturn) {
        if self.returns.get(&row.id).is_none_or(|stands| stands.version < row.version) {
            self.breach("RL10 a try is durable before its call", format!("{row:?}"));
        }
        self.sends.insert(row.id, false);
    }

    /// A create or a close is sent. It needs a try of its own, and a create none behind the wish.
    pub(super) fn asks(&mut self, id: RechargeId, creates: bool) {
        self.note(if creates { "creates" } else { "closes" });
        match self.tries.get_mut(&id) {
            Some(tried) if tried.closing && creates => {
                let law = "RL10 no create behind the wish";
                self.breach(law, format!("{id} has a wish to be closed"));
            }
            Some(tried) if !tried.closing && !creates => {
                self.breach("RL10 no close before the wish", format!("{id} has no wish"));
            }
            Some(tried) if !tried.used => tried.used = true,
            _ => self.breach("RL10 a try is durable before its call", format!("{id}")),
        }
    }

    /// A refund is sent. It needs a row that is SENT, and a try of its own.
    pub(super) fn asks_refund(&mut self, return_no: &str) {
        self.note("refunds asked");
        let id = ReturnId::parse(return_no);
        if id.is_none_or(|id| !self.returns.contains_key(&id)) {
            self.breach("RL5 a return has one number at its channel", return_no.to_owned());
        }
        match id.and_then(|id| self.sends.get_mut(&id)) {
            Some(used @ false) => *used = true,
            None | Some(true) => {
                self.breach("RL10 a try is durable before its call", return_no.to_owned());
            }
        }
    }

    /// A channel is told success.
    pub(super) fn told_success(
        &mut self,
        channel: &str,
        notice: &Notice,
        tables: &Tables,
        bank: &Bank,
    ) {
        let law = "RL4 durable before success is told";
        match notice {
            Notice::Payment(facts) => {
                let marked = RechargeId::parse(&facts.merchant_no);
                let ours = marked.is_some_and(|id| tables.orders.contains_key(&id));
                let key = (channel.to_owned(), facts.trade_no.clone());
                if ours && !tables.payments.contains_key(&key) {
                    self.breach(law, format!("{key:?} has no row"));
                }
            }
            Notice::Taken(taking) | Notice::GivenBack(taking) => {
                let kind = match notice {
                    Notice::Taken(_) => ReturnKind::Taken,
                    _ => ReturnKind::GivenBack,
                };
                let key = (channel.to_owned(), taking.trade_no.clone());
                let marked = bank.payments().get(&key).is_some_and(Real::is_marked);
                let payment = PaymentId::of(channel, &taking.trade_no);
                let own = ReturnId::parse(&taking.number);
                let own = own.and_then(|id| tables.returns.get(&id));
                let known = tables
                    .returns_of(payment)
                    .any(|row| row.kind == kind && row.number.as_ref() == Some(&taking.number));
                let done = own.is_some_and(|row| row.state == ReturnState::Done);
                if marked && !known && !done {
                    self.breach(law, format!("{taking:?} has no row"));
                }
            }
            Notice::Hint { .. } | Notice::Nothing => {}
        }
    }

    fn sum(&self, account: &LedgerAccount) -> i128 {
        self.sums.get(&account.to_string()).copied().unwrap_or(0)
    }

    /// Everything has come to rest: the sums. `spent`: by key, as users have spent.
    pub(super) fn end(&mut self, tables: &Tables, bank: &Bank, log: &BTreeSet<String>, told: bool) {
        for (key, real) in bank.payments().iter().filter(|(_, real)| real.is_marked()) {
            let id = RechargeId::parse(&real.facts.merchant_no);
            let here = id.is_some_and(|id| tables.orders.contains_key(&id));
            if !tables.payments.contains_key(key) && here {
                let law = "RL4 each payment of ours has a row";
                self.breach(law, format!("{key:?} has none: {real:?}"));
            }
        }
        for channel in CHANNELS {
            self.channel_sums(channel, tables, bank, told);
        }
        for user in users() {
            self.user_sums(user, tables);
        }
        for order in tables.orders.values().filter(|order| order.state == RechargeState::Paid) {
            let key = ubscore::recharge::movement::recharge_credit(order.id);
            let credit = tables.externals.get(&key).map(|row| row.external.user);
            let own = tables.payments.values().filter(|row| {
                row.recharge == Some(order.id) && row.disposition == Disposition::Credited
            });
            let told = self.told_paid.contains(&order.id.number());
            if credit != Some(order.user) || own.count() == 0 || !told {
                self.breach("RL7 a PAID order has its credit", format!("{order:?}"));
            }
        }
        for (key, row) in &tables.externals {
            if row.decision.code().is_none() && !log.contains(key) {
                self.breach("RL4 each credit has its record", key.clone());
            }
        }
        for (no, key, minor_units) in bank.carried_out() {
            let id = ReturnId::parse(no).expect("it has a row");
            let row = &tables.returns[&id];
            let own = row.state == ReturnState::Done && row.minor_units == minor_units;
            let payment = PaymentId::of(&key.0, &key.1);
            let as_taking = tables.returns_of(payment).any(|row| row.number.as_ref() == Some(no));
            if !own && !as_taking && told {
                self.breach("RL5 each return agrees with its channel", format!("{row:?}"));
            }
        }
    }

    /// Clearing is the real debt of the channel, suspense the money held; receivables stand.
    fn channel_sums(&mut self, channel: &str, tables: &Tables, bank: &Bank, told: bool) {
        let (mut owes, mut held) = (0, 0);
        let of_channel = tables.payments.iter().filter(|(key, _)| key.0 == channel);
        for (key, row) in of_channel.filter(|(_, row)| row.amount.is_some()) {
            let Some(real) = bank.payments().get(key) else { continue };
            let refund = |row: &&RechargeReturn| {
                (row.kind, row.state) == (ReturnKind::Refund, ReturnState::Done)
            };
            let sent = tables.returns_of(row.id).any(|row| refund(&row));
            // It had gone back before it was seen.
            let unseen = row.disposition == Disposition::Returned && !sent;
            let came = if unseen { 0 } else { real.facts.minor_units };
            owes += came - real.refunded - real.taken;
            let returns: Vec<RechargeReturn> = tables.returns_of(row.id).cloned().collect();
            held += row.in_suspense(&returns);
        }
        let factor = i128::from(UNITS_OF_MINOR);
        let clearing = self.sum(&LedgerAccount::Clearing(channel.to_owned()));
        if told && clearing != i128::from(owes) * factor {
            let what = format!("{channel} owes {owes} minor units, and clearing is {clearing}");
            self.breach("RL7 clearing is the channel's debt", what);
        }
        let suspense = -self.sum(&LedgerAccount::Suspense(channel.to_owned()));
        if suspense != i128::from(held) * factor {
            let what = format!("{channel} has {held} minor units held, and suspense is {suspense}");
            self.breach("RL7 suspense is the money held", what);
        }
        let open = tables.receivables.values().filter(|row| {
            tables.payment(row.payment).is_some_and(|payment| payment.channel == channel)
        });
        let open: i128 = open.map(|row| i128::from(row.open())).sum();
        let owed = self.sum(&LedgerAccount::Receivable(channel.to_owned()));
        if owed != open {
            let what = format!("{channel}: {open} is open, and receivables are {owed}");
            self.breach("RL8 receivables are those that are open", what);
        }
    }

    /// A balance is the sum of its credits and debits; the frozen part is that of the open holds.
    fn user_sums(&mut self, user: domain::account::UserId, tables: &Tables) {
        let balance = tables.balances.get(&(user, ASSET));
        let (available, frozen) = balance.map_or((0, 0), |row| (row.available, row.frozen));
        let came = -self.sum(&LedgerAccount::User(user));
        let spent: i128 = tables
            .externals
            .values()
            .filter(|row| row.external.user == user && row.external.idem_key.starts_with("spend-"))
            .filter(|row| row.decision.code().is_none())
            .map(|row| i128::from(row.external.amount.units()))
            .sum();
        let sum = available + i128::try_from(frozen).expect("small");
        if sum != came - spent {
            let what = format!("{user} has {sum}; {came} came and {spent} went");
            self.breach("RL7 a balance is the sum of its credits", what);
        }
        let apart = tables.apart(user, ASSET);
        let due: i64 = tables
            .returns
            .values()
            .filter(|row| row.kind == ReturnKind::Refund)
            .filter(|row| matches!(row.state, ReturnState::Ready | ReturnState::Sent))
            .filter(|row| {
                tables.payment(row.payment).is_some_and(|payment| payment.user == Some(user))
            })
            .map(|row| row.minor_units)
            .sum();
        let due = u128::try_from(due).expect("above 0") * u128::from(UNITS_OF_MINOR);
        if frozen != apart || apart != due {
            let what = format!("{user}: frozen {frozen}, open holds {apart}, returns {due}");
            self.breach("RL8 the frozen part is the open holds", what);
        }
    }
}
