//! Acts on recharges in a flight: the row of a payment decides whether anything else is written.

mod held;
mod remade;
mod seen;
mod till;

use std::collections::BTreeMap;

use jiff::Timestamp;

use super::super::recharged::{Beside, RechargeChange, RechargeKey, RechargeNotice, Recharged};
use super::super::{Decided, Key};
use super::{Draft, Known, Objected, Rows, bonuses, burden, returns, violation};
use crate::postgres::store::{External, Reply};
use crate::recharge::act::{
    HeldEnd, PaymentCall, RechargeAct, RechargeCall, RechargeOutcome, RechargeReply,
};
use crate::recharge::decide::{KnownPayment, PaymentDecision, RestoredCredit, decide};
use crate::recharge::movement::{self, LedgerAccount, MovementKind, RechargeMovement};
use crate::recharge::order::{
    ClosingWish, Recharge, RechargeEvent, RechargeState, RechargeStep, RechargeTarget,
};
use crate::recharge::payment::{Disposition, HeldCause, RechargePayment};
use crate::recharge::returned::{
    Receivable, ReceivableAct, RechargeReturn, ReturnKind, ReturnState, taken,
};
use crate::recharge::{RechargeId, ReturnId};
use domain::account::UserId;
use domain::asset::AssetId;
use domain::code::Code;
use domain::transfer::{Cid, ExternalOperation, Op};

/// The rows of recharges that a flight under construction writes.
#[derive(Default)]
pub(super) struct Desk {
    orders: BTreeMap<RechargeId, (Recharge, Vec<RechargeStep>)>,
    idems: BTreeMap<(UserId, String), RechargeId>,
    /// New orders of users.
    opened: BTreeMap<UserId, usize>,
    pub(super) payments: BTreeMap<(String, String), RechargePayment>,
    pub(super) returns: BTreeMap<ReturnId, RechargeReturn>,
    pub(super) movements: Vec<RechargeMovement>,
    notices: Vec<RechargeNotice>,
    beside: Beside,
    pub(super) receivables: BTreeMap<ReturnId, (Receivable, Vec<ReceivableAct>)>,
}

impl Desk {
    pub(super) fn into_rows(self) -> Recharged {
        Recharged {
            orders: self.orders.into_values().collect(),
            payments: self.payments.into_values().collect(),
            returns: self.returns.into_values().collect(),
            movements: self.movements,
            notices: self.notices,
            beside: self.beside,
            receivables: self.receivables.into_values().collect(),
        }
    }
}

/// The rows that an act is decided on.
pub(super) fn wanted(call: &RechargeCall, known: &Known, rows: &mut Rows) {
    rows.recharges.extend(keys(call));
    if let (Some(user), Some(asset)) = (call.user, asset_of(call, known)) {
        rows.of_funding(user, asset);
    }
    let recorded = call.payment().and_then(|key| known.recharges.payments.get(&key));
    let credited = recorded.is_some_and(|row| row.disposition == Disposition::Credited);
    rows.holds.extend(returns::hold_of(call, recorded));
    if credited {
        burden::wanted(call, known, rows);
    }
    // The channel may have taken a part of it meanwhile.
    let held = recorded.filter(|row| row.disposition == Disposition::Held);
    rows.recharges.extend(held.map(|row| RechargeKey::Returns(row.id)));
    // A payment behind the end of its order is not credited beside the order's own credit.
    let order = call.recharge().and_then(|id| known.recharges.orders.get(&id));
    let ends = order.is_some_and(|order| !order.is_open() || order.closing.is_some());
    let decides = match &call.act {
        RechargeAct::Pay(pay) => Some(pay.restored),
        RechargeAct::EndHeld { .. } => Some(true),
        _ => None,
    };
    if known.careful || credited || decides == Some(true) || ends && call.may_credit() {
        let keys = call.credit_keys(recorded.map(|row| row.id));
        let moved = keys.iter().filter(|_| decides.is_some());
        rows.recharges.extend(moved.cloned().map(RechargeKey::Movement));
        rows.externals.extend(keys);
        rows.externals.extend(call.bonus_key());
        let lost = recorded.filter(|_| decides.is_some()).and_then(RechargePayment::named_order);
        if let Some(key) = lost.map(movement::recharge_credit) {
            rows.recharges.insert(RechargeKey::Movement(key.clone()));
            rows.externals.insert(key);
        }
        // An operator's credit adopts it too.
        let adopts = call.recharge().filter(|_| decides == Some(true));
        rows.externals.extend(adopts.map(movement::recharge_bonus));
    }
    rows.externals.extend(bonuses::own_credit_of(call));
}

/// The asset that an act may move; `None`: it moves nothing, or its payment is not read yet.
fn asset_of(call: &RechargeCall, known: &Known) -> Option<AssetId> {
    match &call.act {
        RechargeAct::Pay(pay) => {
            let recorded = call.payment().and_then(|key| known.recharges.payments.get(&key));
            Some(recorded.map_or(pay.terms.asset, |row| row.asset))
        }
        RechargeAct::EndHeld { how: HeldEnd::Credit, .. } => {
            let recorded = call.payment().and_then(|key| known.recharges.payments.get(&key));
            recorded.map(|row| row.asset)
        }
        RechargeAct::EndReturn { .. } => {
            let recorded = call.payment().and_then(|key| known.recharges.payments.get(&key));
            let credited = recorded.filter(|row| row.disposition == Disposition::Credited);
            credited.map(|row| row.asset)
        }
        RechargeAct::Refund(refund) => Some(refund.asset),
        RechargeAct::Take(take) => Some(take.asset),
        RechargeAct::EndReceivable(end) => Some(end.asset),
        _ => None,
    }
}

/// The rows that show the outcome of an act.
pub(super) fn wanted_behind(call: &RechargeCall, rows: &mut Rows) {
    rows.recharges.extend(keys(call));
    rows.externals.extend(call.credit_keys(None));
    rows.externals.extend(call.bonus_key());
}

fn keys(call: &RechargeCall) -> Vec<RechargeKey> {
    let mut keys = Vec::new();
    if let RechargeAct::Create { order, .. } = &call.act {
        keys.push(RechargeKey::Idem(order.user, order.idem_key.clone()));
    }
    keys.extend(call.recharge().map(RechargeKey::Order));
    keys.extend(call.payment().map(|(channel, trade_no)| RechargeKey::Payment(channel, trade_no)));
    keys.extend(call.ended_return().map(RechargeKey::Return));
    keys.extend(call.refund_key().map(|key| RechargeKey::Refund(key.to_owned())));
    keys.extend(call.returns_of().map(RechargeKey::Returns));
    keys
}

impl Known {
    /// The outcome of an act, as it was read. An act that was not carried out has none.
    pub fn recharge(&self, call: &RechargeCall) -> Reply {
        if let Some(why) =
            keys(call).into_iter().find_map(|key| self.unreadable.get(&Key::Recharge(key)))
        {
            return Reply::Unreadable(why.clone());
        }
        let mut reply = RechargeReply::plain(RechargeOutcome::Nothing);
        match &call.act {
            RechargeAct::Create { order, .. } => {
                let key = (order.user, order.idem_key.clone());
                let id = self.recharges.idems.get(&key);
                if let Some(found) = id.and_then(|id| self.recharges.orders.get(id)) {
                    reply = replayed(found, order);
                }
            }
            RechargeAct::Pay(pay) => {
                let recorded = call.payment().and_then(|key| self.recharges.payments.get(&key));
                let order = pay.recharge.and_then(|id| self.recharges.orders.get(&id));
                let known = KnownPayment {
                    terms: &pay.terms,
                    amount: recorded.and_then(|row| row.amount),
                    proven: pay.proven,
                    recorded,
                    order,
                    account: None,
                    again: false,
                };
                let decision = decide(&known, &pay.facts, pay.policy);
                if !decision.writes() {
                    reply = decided(decision, recorded.cloned());
                }
            }
            RechargeAct::EndHeld { .. } | RechargeAct::EndReturn { .. } => {
                if let Some(ended) = self.ended(call) {
                    reply = decided(PaymentDecision::Repeat, Some(ended.clone()));
                }
            }
            RechargeAct::Send { id, version, next_at, .. } => {
                let row = self.recharges.returns.get(id);
                // One flight alone has written this version.
                let ours = row.filter(|row| is_try(row.version, row.next_at, *version, *next_at));
                if let Some(row) = ours {
                    let row = Box::new(row.clone());
                    reply.outcome =
                        RechargeOutcome::Return { row, receivable: None, replayed: false };
                }
            }
            RechargeAct::Remake { .. }
            | RechargeAct::Note { .. }
            | RechargeAct::Wish { .. }
            | RechargeAct::Try { .. }
            | RechargeAct::Hint { .. }
            | RechargeAct::Follow { .. }
            | RechargeAct::Close { .. } => {
                let order = call.recharge().and_then(|id| self.recharges.orders.get(&id));
                let order = order.filter(|order| call.user == Some(order.user));
                reply.outcome = order.map_or(RechargeOutcome::Nothing, |order| stands(call, order));
            }
            RechargeAct::Refund(_) | RechargeAct::Take(_) | RechargeAct::EndReceivable(_) => {
                reply.outcome = returns::stands(call, &self.recharges);
            }
        }
        let mut externals = call.credit_keys(None).into_iter();
        let ours = externals.find_map(|key| {
            let row = self.externals.get(&key)?;
            (row.external.order_number == call.order_number).then_some(row)
        });
        reply.credit = ours.and_then(operation);
        let bonus = call.bonus_key().and_then(|key| self.externals.get(&key));
        let ours = bonus.filter(|row| row.external.order_number == call.bonus_number);
        reply.bonus = ours.and_then(operation);
        Reply::Recharge(Box::new(reply))
    }
}

impl Known {
    /// The payment of an act that ends a HELD payment or a return, if that end has come.
    fn ended(&self, call: &RechargeCall) -> Option<&RechargePayment> {
        let rows = &self.recharges;
        let payment = call.payment().and_then(|key| rows.payments.get(&key))?;
        let has_ended = match &call.act {
            RechargeAct::EndReturn { id, .. } => rows.returns.get(id).is_some_and(|row| {
                row.payment == payment.id
                    && matches!(row.state, ReturnState::Done | ReturnState::Failed)
            }),
            _ => payment.disposition != Disposition::Held || payment.recharge != call.recharge(),
        };
        has_ended.then_some(payment)
    }
}

/// The outcome of an act on an order, as its row shows it.
fn stands(call: &RechargeCall, order: &Recharge) -> RechargeOutcome {
    let done = match &call.act {
        RechargeAct::Wish { .. } if order.state == RechargeState::Paid => {
            return RechargeOutcome::Refused { code: Code::RechargePaid, detail: None };
        }
        RechargeAct::Wish { .. } => !order.is_open() || order.closing.is_some(),
        RechargeAct::Close { .. } => !order.is_open(),
        RechargeAct::Remake { .. } => true,
        RechargeAct::Try { version, next_at, .. } => {
            if is_try(order.version, order.next_at, *version, *next_at) {
                let order = Box::new(order.clone());
                return RechargeOutcome::Order { order, replayed: false };
            }
            false
        }
        RechargeAct::Follow { follow, .. } => order.follow == *follow,
        RechargeAct::Note { reference, .. } => {
            order.state.is_terminal()
                || (order.state == RechargeState::Paying || reference.is_some())
                    && (reference.is_none() || order.reference == *reference)
        }
        _ => false,
    };
    match done {
        true => RechargeOutcome::Order { order: Box::new(order.clone()), replayed: true },
        false => RechargeOutcome::Nothing,
    }
}

/// Whether the row that stands is that of this try: one flight alone has written its version.
fn is_try(stands: u64, stands_at: Option<Timestamp>, decided_on: u64, next_at: Timestamp) -> bool {
    stands == decided_on + 1 && stands_at == Some(next_at)
}

/// The answer to a repeat of an idempotency key.
fn replayed(found: &Recharge, asked: &Recharge) -> RechargeReply {
    match found.replayed(&asked.fingerprint) {
        Ok(()) => RechargeReply::plain(RechargeOutcome::Order {
            order: Box::new(found.clone()),
            replayed: true,
        }),
        Err(fields) => {
            let fields = fields.0.join(", ");
            let detail = format!("This idem_key was used with another {fields}.");
            RechargeReply::refused(Code::DuplicateRequest, Some(detail))
        }
    }
}

/// The answer about a payment.
fn decided(decision: PaymentDecision, payment: Option<RechargePayment>) -> RechargeReply {
    let told = decision.told(payment.as_ref());
    let payment = payment.map(Box::new);
    RechargeReply::plain(RechargeOutcome::Payment { decision, told, payment })
}

/// A row of an external operation; `None`: its key is none.
pub(super) fn operation(row: &Decided) -> Option<ExternalOperation> {
    let External { idem_key, op, user, asset, amount, order_number, .. } = &row.external;
    Some(ExternalOperation {
        op: *op,
        idem_key: Cid::of_operation(idem_key)?,
        user: *user,
        asset: *asset,
        amount: *amount,
        order_number: *order_number,
        decision: row.decision,
        // The log has no sign: a special balance below zero is 0 there.
        balance_after: row.balance_after.map_or(0, |units| u128::try_from(units).unwrap_or(0)),
    })
}

/// A payment under decision, with its order.
pub(super) struct Matter {
    pub(super) payment: RechargePayment,
    /// It was recorded before: `false` for a new row.
    recorded: bool,
    pub(super) order: Option<Recharge>,
    steps: Vec<RechargeStep>,
    /// The bonus that was given with it.
    pub(super) bonus: Option<ExternalOperation>,
    /// The key of its credit, if a repair has brought that back.
    pub(super) restored: Option<String>,
}

impl Matter {
    /// A payment that was recorded before.
    fn recorded(payment: RechargePayment, order: Option<Recharge>) -> Matter {
        Matter { payment, recorded: true, order, steps: Vec::new(), bonus: None, restored: None }
    }

    /// Whether its money is in suspense.
    fn suspended(&self) -> bool {
        self.recorded && self.payment.amount.is_some()
    }

    /// Gives the payment its place in its order, once.
    fn attach(&mut self) {
        if let (Some(order), None) = (&mut self.order, self.payment.recharge) {
            order.payments += 1;
            self.payment.recharge = Some(order.id);
            self.payment.ordinal = Some(order.payments);
            if self.recorded && self.payment.disposition == Disposition::Held {
                order.held += 1;
            }
        }
    }

    /// Changes the disposition, and the count of held payments with it.
    fn goes(&mut self, to: Disposition) {
        let was_held = self.recorded && self.payment.disposition == Disposition::Held;
        let is_held = to == Disposition::Held;
        if let Some(order) = &mut self.order {
            match (was_held, is_held) {
                (false, true) => order.held += 1,
                (true, false) => order.held -= 1,
                _ => {}
            }
        }
        self.payment.disposition = to;
    }

    /// Takes its order to a state, over those between.
    fn passes(&mut self, event: RechargeEvent, actor: &str, reason: Option<Code>) {
        let Some(order) = &mut self.order else { return };
        let step = |state, reason: Option<Code>| RechargeStep {
            state,
            actor: actor.to_owned(),
            reason: reason.map(|code| code.name().to_owned()),
        };
        // A payment that overtakes our note of PAYING passes it all the same.
        if order.state == RechargeState::Init && event == RechargeEvent::Credited {
            self.steps.push(step(RechargeState::Paying, None));
        }
        if let Some(next) = order.state.next(event) {
            order.state = next;
            self.steps.push(step(next, reason));
            if next.is_terminal() {
                (order.pay, order.next_at) = (None, None);
            }
        }
    }
}

impl Draft<'_> {
    /// Carries out an act.
    pub(super) fn recharge(&mut self, call: &RechargeCall) -> Result<Reply, Objected> {
        for key in keys(call) {
            if let Some(why) = self.known.unreadable.get(&Key::Recharge(key)) {
                return Ok(Reply::Unreadable(why.clone()));
            }
        }
        let order = call.recharge().and_then(|id| self.order(id));
        if order.as_ref().is_some_and(|order| Some(order.user) != call.user) {
            return Err(violation(format!("{} is another user's", call.subject())));
        }
        let reply = match (&call.act, order) {
            (RechargeAct::Create { order, open_max }, _) => self.create(call, order, *open_max),
            (RechargeAct::Remake { order }, _) => self.remake(call, order),
            (RechargeAct::Pay(pay), order) => self.pay(call, pay, order)?,
            (RechargeAct::EndHeld { payment, how }, order) => {
                self.end_held(call, payment, *how, order)?
            }
            (RechargeAct::EndReturn { payment, id, gone }, order) => {
                self.end_return(call, payment, *id, *gone, order)?
            }
            (RechargeAct::Refund(refund), _) => self.refund(call, refund)?,
            (RechargeAct::Take(take), _) => self.take(call, take)?,
            (RechargeAct::EndReceivable(end), _) => self.end_receivable(call, end)?,
            (RechargeAct::Send { payment, id, version, next_at }, _) => {
                self.sent(payment, *id, *version, *next_at)?
            }
            (_, None) => RechargeReply::refused(Code::RechargeNotFound, None),
            (RechargeAct::Try { version, next_at, .. }, Some(order)) => {
                self.tried(order, *version, *next_at)
            }
            (RechargeAct::Hint { .. }, Some(order)) => self.hinted(order),
            (RechargeAct::Follow { follow, .. }, Some(order)) => {
                self.followed(call, order, *follow)
            }
            (RechargeAct::Note { reference, pay, next_at, .. }, Some(mut order)) => {
                let noted = order.state == RechargeState::Init && order.closing.is_none();
                if noted {
                    order.reference.clone_from(reference);
                    order.pay.clone_from(pay);
                    (order.next_at, order.attempts) = (*next_at, 1);
                } else if let Some(reference) = reference {
                    self.refers(call, &mut order, reference);
                }
                self.moves(call, order, noted.then_some(RechargeEvent::Noted), None)
            }
            (RechargeAct::Wish { closing, .. }, Some(order)) => self.wish(call, order, *closing),
            (RechargeAct::Close { .. }, Some(order)) => self.close(call, order)?,
        };
        Ok(Reply::Recharge(Box::new(reply)))
    }

    /// An order as this flight has it so far, or as it was read.
    pub(super) fn order(&self, id: RechargeId) -> Option<Recharge> {
        let here = self.desk.orders.get(&id).map(|(order, _)| order);
        here.or_else(|| self.known.recharges.orders.get(&id)).cloned()
    }

    /// The same of a payment.
    pub(super) fn payment(&self, key: &(String, String)) -> Option<RechargePayment> {
        let here = self.desk.payments.get(key);
        here.or_else(|| self.known.recharges.payments.get(key)).cloned()
    }

    /// Writes an order behind steps of its history.
    fn write_order(&mut self, mut order: Recharge, steps: Vec<RechargeStep>) {
        let before = self.known.recharges.orders.get(&order.id).map_or(0, |row| row.version);
        (order.version, order.updated_at) = (before + 1, self.flight.at);
        if order.owes_bonus() {
            // The till gives it back, and keeps the time of what follows.
            order.next_at.get_or_insert(self.flight.at);
        }
        let id = order.id;
        match self.desk.orders.get_mut(&id) {
            Some((row, history)) => {
                *row = order;
                history.extend(steps);
            }
            None => drop(self.desk.orders.insert(id, (order, steps))),
        }
    }

    /// Writes a payment and its order.
    fn write_payment(&mut self, matter: Matter) -> RechargePayment {
        let Matter { mut payment, order, steps, .. } = matter;
        let key = (payment.channel.clone(), payment.trade_no.clone());
        let before = self.known.recharges.payments.get(&key).map_or(0, |row| row.version);
        (payment.version, payment.updated_at) = (before + 1, self.flight.at);
        self.desk.payments.insert(key, payment.clone());
        if let Some(order) = order {
            self.write_order(order, steps);
        }
        payment
    }

    pub(super) fn write_return(&mut self, mut row: RechargeReturn) {
        let before = self.known.recharges.returns.get(&row.id).map_or(0, |row| row.version);
        (row.version, row.updated_at) = (before + 1, self.flight.at);
        self.desk.returns.insert(row.id, row);
    }

    pub(super) fn notice(
        &mut self,
        change: RechargeChange,
        user: Option<UserId>,
        order: Option<RechargeId>,
        payment: Option<&RechargePayment>,
        order_number: u64,
    ) {
        let Some(user) = user else { return };
        let stands = || order.and_then(|id| self.order(id)).map(|order| order.state);
        let state = change.state().or_else(stands);
        let cause = payment.filter(|_| change == RechargeChange::PaymentHeld);
        let cause = cause.and_then(|payment| payment.cause);
        let recharge = order.map_or(0, RechargeId::number);
        let payment = payment.map_or(0, |payment| payment.id.number());
        let notice = RechargeNotice { change, order_number, user, recharge, payment, state, cause };
        self.desk.notices.push(notice);
    }

    /// A notice of a CREDITED payment, which this flight does not write, nor its order.
    pub(super) fn notice_beside(
        &mut self,
        change: RechargeChange,
        user: UserId,
        payment: &RechargePayment,
        order_number: u64,
    ) {
        self.notice(change, Some(user), payment.recharge, Some(payment), order_number);
        let order = payment.recharge.and_then(|id| self.order(id));
        self.desk.beside.orders.extend(order);
        self.desk.beside.payments.push(payment.clone());
    }

    fn create(&mut self, call: &RechargeCall, asked: &Recharge, open_max: usize) -> RechargeReply {
        let key = (asked.user, asked.idem_key.clone());
        let known = &self.known.recharges;
        let id = self.desk.idems.get(&key).or_else(|| known.idems.get(&key)).copied();
        if let Some(found) = id.and_then(|id| self.order(id)) {
            return replayed(&found, asked);
        }
        let opened = self.desk.opened.entry(asked.user).or_default();
        if known.open.get(&asked.user).map_or(0, |open| *open) + *opened >= open_max {
            return RechargeReply::refused(Code::TooManyOpen, None);
        }
        *opened += 1;
        let life = asked.created_at.duration_until(asked.expires_at);
        let at = self.flight.at;
        let order = Recharge {
            state: RechargeState::Init,
            created_at: at,
            expires_at: at.saturating_add(life).unwrap_or(asked.expires_at),
            next_at: Some(at),
            version: 1,
            ..asked.clone()
        };
        self.desk.idems.insert(key, order.id);
        let (state, actor) = (RechargeState::Init, call.actor.clone());
        self.write_order(order.clone(), vec![RechargeStep { state, actor, reason: None }]);
        let order = Box::new(Recharge { updated_at: at, ..order });
        RechargeReply::plain(RechargeOutcome::Order { order, replayed: false })
    }

    /// Keeps the channel's number of an open order that is not noted as PAYING now: behind a wish,
    /// or a further number. The first one stands in its column, and each one in the history.
    fn refers(&mut self, call: &RechargeCall, order: &mut Recharge, reference: &str) {
        if order.state.is_terminal() || order.reference.as_deref() == Some(reference) {
            return;
        }
        order.reference.get_or_insert_with(|| reference.to_owned());
        let (state, actor) = (order.state, call.actor.clone());
        let reason = Some(format!("reference {reference}"));
        self.write_order(order.clone(), vec![RechargeStep { state, actor, reason }]);
    }

    /// Moves an order, or leaves it as it is.
    fn moves(
        &mut self,
        call: &RechargeCall,
        mut order: Recharge,
        event: Option<RechargeEvent>,
        code: Option<Code>,
    ) -> RechargeReply {
        if let Some(state) = event.and_then(|event| order.state.next(event)) {
            order.state = state;
            order.code = code;
            if state.is_terminal() {
                (order.pay, order.next_at) = (None, None);
            }
            let (actor, reason) = (call.actor.clone(), code.map(|code| code.name().to_owned()));
            self.write_order(order.clone(), vec![RechargeStep { state, actor, reason }]);
            let change = match state {
                RechargeState::Paying => RechargeChange::Paying,
                _ => RechargeChange::Closed,
            };
            self.notice(change, Some(order.user), Some(order.id), None, 0);
        }
        let order = Box::new(order);
        RechargeReply::plain(RechargeOutcome::Order { order, replayed: event.is_none() })
    }

    fn wish(
        &mut self,
        call: &RechargeCall,
        mut order: Recharge,
        closing: ClosingWish,
    ) -> RechargeReply {
        if order.state == RechargeState::Paid {
            return RechargeReply::refused(Code::RechargePaid, None);
        }
        if order.is_open() && order.closing.is_none() {
            order.closing = Some(closing);
            (order.next_at, order.attempts) = (Some(self.flight.at), 1);
            let (state, actor) = (order.state, call.actor.clone());
            let reason = Some(closing.name().to_owned());
            self.write_order(order.clone(), vec![RechargeStep { state, actor, reason }]);
        }
        let order = Box::new(order);
        RechargeReply::plain(RechargeOutcome::Order { order, replayed: false })
    }

    fn close(&mut self, call: &RechargeCall, order: Recharge) -> Result<RechargeReply, Objected> {
        if !order.is_open() {
            return Ok(self.moves(call, order, None, None));
        }
        let Some(closing) = order.closing else {
            return Err(violation(format!("{} has no wish to be closed", order.id)));
        };
        let code = (closing == ClosingWish::Refused).then_some(Code::ChannelRefused);
        Ok(self.moves(call, order, Some(RechargeEvent::Ended), code))
    }

    /// Decides a verified payment, on the rows of this flight.
    fn pay(
        &mut self,
        call: &RechargeCall,
        pay: &PaymentCall,
        order: Option<Recharge>,
    ) -> Result<RechargeReply, Objected> {
        let (terms, facts) = (&*pay.terms, &pay.facts);
        let Some(asset) = self.catalog.by_id(terms.asset) else {
            return Err(violation(format!("channel {}: no such asset", terms.name)));
        };
        let amount = terms.amount(facts.minor_units, asset.precision);
        let account = match &order {
            Some(order) => {
                self.readable(&Key::Account(order.user))?;
                self.account(order.user).after
            }
            None => None,
        };
        let recorded = self.payment(&(terms.name.clone(), facts.trade_no.clone()));
        let known = KnownPayment {
            terms,
            amount: recorded.as_ref().map_or(amount, |row| row.amount),
            proven: pay.proven,
            recorded: recorded.as_ref(),
            order: order.as_ref(),
            account,
            again: pay.again,
        };
        let mut decision = decide(&known, facts, pay.policy);
        // A part of it is gone, though a later cause may stand in its row.
        if matches!(decision, PaymentDecision::Credit { .. } | PaymentDecision::Return)
            && recorded.as_ref().is_some_and(|row| taken(&self.returns_of(row.id)) > 0)
        {
            decision = PaymentDecision::Hold(HeldCause::PartReturned);
        }
        let id = recorded.as_ref().map_or(pay.id, |row| row.id);
        let arrived = (recorded.as_ref().map_or(terms.asset, |row| row.asset), known.amount);
        let mut restored = None;
        let found = match decision.writes() {
            true => self.restored_credit(id, order.as_ref(), call.user, arrived)?,
            false => RestoredCredit::Nothing,
        };
        match found {
            RestoredCredit::Ours { key, .. } if pay.waits_for_others(&key) => {
                decision = PaymentDecision::Hold(HeldCause::PartReturned);
            }
            RestoredCredit::Ours { key, pays } => {
                (decision, restored) = (PaymentDecision::Credit { pays }, Some(key));
            }
            // The user has money of it, and how much is for people.
            RestoredCredit::Other if order.is_some() => {
                decision = PaymentDecision::Hold(HeldCause::Duplicate);
            }
            RestoredCredit::Other | RestoredCredit::Nothing => {}
        }
        if let (PaymentDecision::Credit { pays: false }, Some(order)) = (decision, &order)
            && restored.is_none()
            && let Some(cause) = self.credited_otherwise(order)?
        {
            decision = PaymentDecision::Hold(cause);
        }
        if !decision.writes() {
            let mut reply = decided(decision, recorded);
            reply.credit = self.credited_before(call);
            reply.bonus = self.bonus_before(call);
            return Ok(reply);
        }
        let at = self.flight.at;
        let is_recorded = recorded.is_some();
        let payment = recorded.unwrap_or_else(|| RechargePayment {
            id: pay.id,
            channel: terms.name.clone(),
            trade_no: facts.trade_no.clone(),
            merchant_no: facts.merchant_no.clone(),
            recharge: None,
            ordinal: None,
            user: None,
            minor_units: facts.minor_units,
            currency: facts.currency.clone(),
            asset: terms.asset,
            // Nothing moves where no asset stands for it.
            amount: amount.filter(|_| {
                facts.currency == terms.currency
                    && decision != PaymentDecision::Hold(HeldCause::Currency)
            }),
            disposition: Disposition::Held,
            cause: None,
            seen_by: pay.seen_by,
            paid_at: facts.paid_at,
            at,
            updated_at: at,
            version: 0,
        });
        let (steps, bonus) = (Vec::new(), None);
        let mut matter = Matter { payment, recorded: is_recorded, order, steps, bonus, restored };
        matter.attach();
        let mut credit = None;
        match decision {
            PaymentDecision::Hold(cause) => self.held(&mut matter, cause),
            PaymentDecision::Returned => {
                matter.goes(Disposition::Returned);
                self.ended_unpaid(call, &mut matter);
            }
            PaymentDecision::Return => self.returning(&mut matter, pay.return_id),
            PaymentDecision::Credit { pays } => match self.credit(call, &mut matter, pays)? {
                Ok(done) => {
                    credit = Some(done);
                    if pays || self.adopts_bonus(&matter)? {
                        self.give_bonus(call, &mut matter)?;
                    }
                }
                Err(code) => return Ok(RechargeReply::refused(code, None)),
            },
            PaymentDecision::Foreign | PaymentDecision::Contradiction | PaymentDecision::Repeat => {
                unreachable!("they write nothing")
            }
        }
        let bonus = matter.bonus.take();
        let payment = self.write_payment(matter);
        Ok(RechargeReply { credit, bonus, ..decided(decision, Some(payment)) })
    }

    /// Why a payment of an order that is over is not credited: a repair from the log has restored
    /// the credit of the order, and the order does not know it. `None`: it may be credited.
    fn credited_otherwise(&self, order: &Recharge) -> Result<Option<HeldCause>, Objected> {
        if order.state == RechargeState::Paid {
            return Ok(None);
        }
        let key = movement::recharge_credit(order.id);
        self.readable(&Key::External(key.clone()))?;
        if self.known.externals.contains_key(&key) {
            return Ok(Some(HeldCause::Duplicate));
        }
        // An order that a call of this flight has ended: its key was not read.
        let is_read = self.known.read.contains(&Key::External(key));
        Ok((!is_read).then_some(HeldCause::Late))
    }

    /// The credit that an earlier try of this call has committed, so that it gets its record.
    pub(super) fn credited_before(&self, call: &RechargeCall) -> Option<ExternalOperation> {
        let recorded = call.payment().and_then(|key| self.payment(&key)).map(|row| row.id);
        let found = call.credit_keys(recorded).into_iter().find_map(|key| {
            let row = self.known.externals.get(&key)?;
            (row.external.order_number == call.order_number).then_some(row)
        });
        found.and_then(operation)
    }

    /// Into suspense, or it stays there with a cause.
    fn held(&mut self, matter: &mut Matter, cause: HeldCause) {
        if !matter.recorded {
            self.suspend(&matter.payment);
        }
        matter.goes(Disposition::Held);
        matter.payment.cause = Some(cause);
        let owner = matter.order.as_ref().map(|order| order.user);
        let id = matter.payment.recharge;
        self.notice(RechargeChange::PaymentHeld, owner, id, Some(&matter.payment), 0);
    }

    /// Out of suspense by the till, which asks the channel.
    fn returning(&mut self, matter: &mut Matter, id: ReturnId) {
        if !matter.recorded {
            self.suspend(&matter.payment);
        }
        // The channel may have taken a part of it.
        let minor_units = match matter.recorded {
            true => matter.payment.in_suspense(&self.returns_of(matter.payment.id)),
            false => matter.payment.minor_units,
        };
        matter.goes(Disposition::Returning);
        let at = self.flight.at;
        self.write_return(RechargeReturn {
            id,
            payment: matter.payment.id,
            kind: ReturnKind::Refund,
            minor_units,
            // Its money is apart already.
            state: ReturnState::Ready,
            next_at: Some(at),
            created_at: at,
            updated_at: at,
            version: 0,
            idem_key: None,
            number: None,
            code: None,
            attempts: 0,
            bonus: 0,
        });
    }

    fn suspend(&mut self, payment: &RechargePayment) {
        let clearing = LedgerAccount::Clearing(payment.channel.clone());
        let suspense = LedgerAccount::Suspense(payment.channel.clone());
        let key = movement::payment_suspense(payment.id);
        self.movement(payment, key, MovementKind::Suspense, clearing, suspense);
    }

    /// Writes a movement of a payment; none where no amount stands for it.
    fn movement(
        &mut self,
        payment: &RechargePayment,
        key: String,
        kind: MovementKind,
        debit: LedgerAccount,
        credit: LedgerAccount,
    ) {
        self.movement_of(payment, key, kind, (debit, credit), payment.amount);
    }

    /// Credits a payment. `pays`: its order becomes PAID. The inner error: the account does not
    /// take it, and nothing was written.
    fn credit(
        &mut self,
        call: &RechargeCall,
        matter: &mut Matter,
        pays: bool,
    ) -> Result<Result<ExternalOperation, Code>, Objected> {
        let payment = &matter.payment;
        let (Some(user), Some(amount)) = (call.user, payment.amount) else {
            return Err(violation(format!("payment {} cannot be credited", payment.id)));
        };
        let idem_key = match (&matter.restored, &matter.order) {
            (Some(key), _) => key.clone(),
            (None, Some(order)) if pays => movement::recharge_credit(order.id),
            _ => movement::payment_credit(payment.id),
        };
        let (op, asset, order_number) = (Op::ExtDeposit, payment.asset, call.order_number);
        let actor = call.actor.clone();
        let external = External { idem_key, op, user, asset, amount, actor, order_number };
        let done = match self.booked(&external)? {
            Ok(done) => done,
            Err(code) => return Ok(Err(code)),
        };
        let debit = match matter.suspended() {
            true => LedgerAccount::Suspense(payment.channel.clone()),
            false => LedgerAccount::Clearing(payment.channel.clone()),
        };
        let (key, to) = (external.idem_key, LedgerAccount::User(user));
        self.movement(&matter.payment, key, MovementKind::Credit, debit, to);
        matter.goes(Disposition::Credited);
        matter.payment.user = Some(user);
        if pays {
            matter.passes(RechargeEvent::Credited, &call.actor, None);
            if let Some(order) = &mut matter.order {
                order.paid_at = Some(self.flight.at);
                // The till sends it on.
                let goes_on = order.target == RechargeTarget::Spot;
                order.next_at = goes_on.then_some(self.flight.at);
                order.attempts = 1;
            }
        }
        let change = if pays { RechargeChange::Paid } else { RechargeChange::PaymentCredited };
        let id = matter.payment.recharge;
        self.notice(change, Some(user), id, Some(&matter.payment), done.order_number);
        Ok(Ok(done))
    }

    /// Closes an order that has lost its last held payment without a credit.
    fn ended_unpaid(&mut self, call: &RechargeCall, matter: &mut Matter) {
        let Some(order) = &mut matter.order else { return };
        if order.held > 0 || order.state.is_terminal() {
            return;
        }
        order.code = Some(Code::HeldEnded);
        let (user, id) = (order.user, order.id);
        matter.passes(RechargeEvent::Ended, &call.actor, Some(Code::HeldEnded));
        self.notice(RechargeChange::Closed, Some(user), Some(id), None, 0);
    }
}

#[cfg(test)]
mod tests;
