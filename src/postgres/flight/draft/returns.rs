//! Refunds of credited payments, money that a channel takes and gives back, and receivables, in a
//! flight.
//!
//! A refund sets money apart in a hold of Funding. Its end releases the hold. If the payer has the
//! money, the same flight takes it by an EXT_WITHDRAW, which UBSCore's log records. So a hold of a
//! refund never changes the sum of a balance, and each unit that leaves is in one table.
//!
//! A fact of a channel is booked in any state of the account.

use std::cmp::min;

use super::super::recharged::{RechargeChange, RechargeRows};
use super::super::{Audited, Key};
use super::{Draft, Objected, violation};
use crate::postgres::store::{External, Reply};
use crate::recharge::act::{
    PaymentName, ReceivableCall, RechargeAct, RechargeCall, RechargeOutcome, RechargeReply,
    RefundCall, TakeCall, TakingCondition,
};
use crate::recharge::movement::{self, LedgerAccount, MovementKind, RechargeMovement};
use crate::recharge::payment::{Disposition, HeldCause, RechargePayment};
use crate::recharge::returned::{
    Receivable, ReceivableAct, ReceivableEnd, RechargeReturn, ReturnKind, ReturnState,
};
use crate::recharge::{PaymentId, ReturnId};
use domain::account::{AccountStatus, UserId};
use domain::amount::{Amount, units_text};
use domain::asset::AssetId;
use domain::code::Code;
use domain::hold::{HoldAct, HoldKey, HoldOrder};
use domain::transfer::{Decision, ExternalOperation, Op, Participant};

/// The round of a refund's hold: it has one.
const ROUND: u8 = 1;

/// The holds that an act is decided on: of the money, and of the bonus that goes with it.
/// `recorded`: its payment.
pub(super) fn hold_of(call: &RechargeCall, recorded: Option<&RechargePayment>) -> Vec<HoldKey> {
    let holds = |id, user, asset| {
        vec![movement::return_hold(id, user, asset), movement::bonus_hold(id, user, asset)]
    };
    match &call.act {
        RechargeAct::Refund(refund) => {
            call.user.map_or_else(Vec::new, |user| holds(refund.id, user, refund.asset))
        }
        RechargeAct::EndReturn { id, .. } => {
            let payment = recorded.filter(|row| row.disposition == Disposition::Credited);
            let owner = payment.and_then(|row| Some((row.user?, row.asset)));
            owner.map_or_else(Vec::new, |(user, asset)| holds(*id, user, asset))
        }
        _ => Vec::new(),
    }
}

/// The outcome of an act, as its rows show it.
pub(super) fn stands(call: &RechargeCall, rows: &RechargeRows) -> RechargeOutcome {
    let mut returns = rows.returns.values();
    let outcome = match &call.act {
        RechargeAct::Refund(refund) => returns
            .find(|row| row.idem_key.as_deref() == Some(&refund.idem_key) || row.id == refund.id)
            .or_else(|| rows.returns.values().find(|row| row.is_lost_refund(refund.id)))
            .map(|found| refunded(found, refund)),
        RechargeAct::Take(take) => {
            let found = returns.find(|row| is_fact(row, take));
            found.map(|found| taken(found, rows.receivables.get(&found.id), take))
        }
        RechargeAct::EndReceivable(end) => rows.receivables.get(&end.id).and_then(|receivable| {
            let act = receivable.acts.iter().find(|act| act.idem_key == end.idem_key)?;
            Some(ended(rows.returns.get(&end.id)?, receivable, act, end))
        }),
        _ => None,
    };
    outcome.unwrap_or(RechargeOutcome::Nothing)
}

/// Whether a return is this fact.
fn is_fact(row: &RechargeReturn, take: &TakeCall) -> bool {
    (row.payment, row.kind) == (take.payment.id, take.kind)
        && row.number.as_ref() == Some(&take.number)
}

/// The answer to a repeat of a refund's key.
fn refunded(found: &RechargeReturn, refund: &RefundCall) -> RechargeOutcome {
    let other = refund.minor_units.is_some_and(|asked| asked != found.minor_units);
    if other || found.payment != refund.payment.id {
        return refused(Code::IdemKeyConflict, None);
    }
    match found.code {
        Some(code) if code != Code::ChannelRefused => refused(code, None),
        _ => shown(found, None, true),
    }
}

/// The answer to a repeat of a fact.
fn taken(
    found: &RechargeReturn,
    receivable: Option<&Receivable>,
    take: &TakeCall,
) -> RechargeOutcome {
    match found.minor_units == take.minor_units {
        true => shown(found, receivable, true),
        false => refused(Code::IdemKeyConflict, None),
    }
}

/// The answer to a repeat of an act on a receivable.
fn ended(
    row: &RechargeReturn,
    receivable: &Receivable,
    act: &ReceivableAct,
    end: &ReceivableCall,
) -> RechargeOutcome {
    match act.end == end.end {
        true => shown(row, Some(receivable), true),
        false => refused(Code::IdemKeyConflict, None),
    }
}

fn refused(code: Code, detail: Option<String>) -> RechargeOutcome {
    RechargeOutcome::Refused { code, detail }
}

fn shown(row: &RechargeReturn, receivable: Option<&Receivable>, replayed: bool) -> RechargeOutcome {
    let receivable = receivable.map(|receivable| Box::new(receivable.clone()));
    RechargeOutcome::Return { row: Box::new(row.clone()), receivable, replayed }
}

impl Draft<'_> {
    /// The returns of a payment as this flight has them so far.
    pub(super) fn returns_of(&self, payment: PaymentId) -> Vec<RechargeReturn> {
        let here = &self.desk.returns;
        let known = self.known.recharges.returns.values();
        let known = known.filter(|row| !here.contains_key(&row.id));
        known.chain(here.values()).filter(|row| row.payment == payment).cloned().collect()
    }

    /// The receivables of a payment as this flight has them so far.
    pub(super) fn receivables_of(&self, payment: PaymentId) -> Vec<Receivable> {
        let here = &self.desk.receivables;
        let known = self.known.recharges.receivables.values();
        let known = known.filter(|row| !here.contains_key(&row.id));
        let all = known.chain(here.values().map(|(row, _)| row));
        all.filter(|row| row.payment == payment).cloned().collect()
    }

    /// The payment of an act; the answer if it is not there, or has an owner that the caller did
    /// not know: it may be another worker's.
    fn named_payment(
        &self,
        call: &RechargeCall,
        name: &PaymentName,
    ) -> Result<RechargePayment, Box<RechargeReply>> {
        let refused = |code, detail| Err(Box::new(RechargeReply::refused(code, detail)));
        let Some(payment) = self.payment(&(name.channel.clone(), name.trade_no.clone())) else {
            return refused(Code::RechargeNotFound, None);
        };
        let has_owner = payment.user.is_some() && payment.user != call.user;
        if payment.recharge != name.recharge || has_owner {
            return refused(Code::SystemError, Some("The payment has changed meanwhile.".into()));
        }
        Ok(payment)
    }

    /// Writes a movement of a part of a payment, where there is an amount.
    pub(super) fn movement_of(
        &mut self,
        payment: &RechargePayment,
        key: String,
        kind: MovementKind,
        (debit, credit): (LedgerAccount, LedgerAccount),
        amount: Option<Amount>,
    ) {
        let Some(amount) = amount else { return };
        let (asset, recharge, payment) = (payment.asset, payment.recharge, payment.id);
        let movement =
            RechargeMovement { key, kind, debit, credit, asset, amount, recharge, payment };
        self.desk.movements.push(movement);
    }

    fn write_receivable(&mut self, mut row: Receivable, act: Option<ReceivableAct>) {
        let before = self.known.recharges.receivables.get(&row.id).map_or(0, |row| row.version);
        (row.version, row.updated_at) = (before + 1, self.flight.at);
        let here = self.desk.receivables.remove(&row.id);
        let mut acts = here.map_or_else(Vec::new, |(_, acts)| acts);
        acts.extend(act);
        self.desk.receivables.insert(row.id, (row, acts));
    }

    /// A return as this flight leaves it, for the answer.
    fn shown(&self, id: ReturnId) -> RechargeOutcome {
        let row = self.desk.returns.get(&id);
        let row = row.or_else(|| self.known.recharges.returns.get(&id));
        let receivable = self.desk.receivables.get(&id).map(|(row, _)| row);
        row.map_or(RechargeOutcome::Nothing, |row| shown(row, receivable, false))
    }

    /// Sets money of a CREDITED payment apart, once for its idempotency key.
    pub(super) fn refund(
        &mut self,
        call: &RechargeCall,
        refund: &RefundCall,
    ) -> Result<RechargeReply, Objected> {
        let payment = match self.named_payment(call, &refund.payment) {
            Ok(payment) => payment,
            Err(reply) => return Ok(*reply),
        };
        let mut all = self.desk.returns.values().chain(self.known.recharges.returns.values());
        // One that was remade behind a restore has lost its key, and not its number.
        let is_here = |row: &&RechargeReturn| {
            row.idem_key.as_ref() == Some(&refund.idem_key) || row.id == refund.id
        };
        if let Some(found) = all.find(is_here) {
            return Ok(RechargeReply::plain(refunded(found, refund)));
        }
        // Its channel has carried it out, and it was lost here: it is booked as taken.
        let returns = self.returns_of(payment.id);
        if let Some(found) = returns.iter().find(|row| row.is_lost_refund(refund.id)) {
            return Ok(RechargeReply::plain(refunded(found, refund)));
        }
        let user = payment.user.filter(|_| payment.disposition == Disposition::Credited);
        let Some(user) = user else {
            let why = format!("The payment is {}.", payment.disposition.name());
            return Ok(RechargeReply::refused(Code::NotReturnable, Some(why)));
        };
        let left = payment.left(&returns);
        let minor_units = refund.minor_units.unwrap_or(left);
        let amount = payment.amount_of(minor_units).filter(|_| minor_units <= left);
        let Some(amount) = amount else {
            let why = self.left_text(&payment, left);
            return Ok(RechargeReply::refused(Code::NotReturnable, Some(why)));
        };
        let bonus = self.bonus_back(&payment, minor_units)?;
        let code = self.apart(call, refund, user, (amount, bonus))?;
        let at = self.flight.at;
        let (state, next_at) = match code {
            None => (ReturnState::Ready, Some(at)),
            Some(_) => (ReturnState::Failed, None),
        };
        self.write_return(RechargeReturn {
            id: refund.id,
            payment: payment.id,
            kind: ReturnKind::Refund,
            minor_units,
            state,
            next_at,
            created_at: at,
            updated_at: at,
            version: 0,
            attempts: 0,
            idem_key: Some(refund.idem_key.clone()),
            number: None,
            code,
            bonus,
        });
        Ok(match code {
            Some(code) => RechargeReply::refused(code, None),
            None => RechargeReply::plain(self.shown(refund.id)),
        })
    }

    fn left_text(&self, payment: &RechargePayment, left: i64) -> String {
        let asset = self.catalog.by_id(payment.asset);
        let (precision, symbol) =
            asset.map_or((0, "?"), |asset| (asset.precision, asset.symbol.as_str()));
        let units = payment.amount_of(left).map_or(0, Amount::units);
        format!("{} {symbol} of the payment is left.", units_text(units.into(), precision))
    }

    /// Takes the hold of a refund. Returns the code of an EXT_WITHDRAW that refuses it.
    fn apart(
        &mut self,
        call: &RechargeCall,
        refund: &RefundCall,
        user: UserId,
        (amount, bonus): (Amount, u64),
    ) -> Result<Option<Code>, Objected> {
        let (asset, amount) = (refund.asset, amount.units());
        self.readable(&Key::Account(user))?;
        self.readable(&Key::Balance(user, asset))?;
        let status = self.account(user).after;
        let enough = self.free(user, asset) >= u128::from(amount) + u128::from(bonus);
        // Also a refusal rests on it.
        self.balance(user, asset);
        let verdict = Op::ExtWithdraw.verdict(Participant::Funding, status, enough);
        if let Err(code) = verdict {
            return Ok(Some(code));
        }
        let key = movement::return_hold(refund.id, user, asset);
        let act = HoldAct::Set { round: ROUND, amount, pays: true, paid: false };
        let order_number = call.order_number;
        self.on_hold(plain_order(key, order_number, (user, asset), act))?;
        if bonus > 0 {
            let key = movement::bonus_hold(refund.id, user, asset);
            let act = HoldAct::Set { round: ROUND, amount: bonus, pays: true, paid: false };
            self.on_hold(plain_order(key, order_number, (user, asset), act))?;
        }
        Ok(None)
    }

    /// Carries out an act on a hold that cannot be refused here.
    fn on_hold(&mut self, order: HoldOrder) -> Result<(), Objected> {
        match self.hold(&order)? {
            Reply::Hold(Decision::Success) => Ok(()),
            Reply::Unreadable(what) => Err(Objected { violation: false, what }),
            reply => Err(violation(format!("hold {} answers {reply:?}", order.key))),
        }
    }

    /// The channel has ended the refund of a CREDITED payment. Returns the operations that take the
    /// money and the bonus, if they are gone or were taken meanwhile. The caller writes the return.
    pub(super) fn end_refund(
        &mut self,
        call: &RechargeCall,
        payment: &RechargePayment,
        row: &RechargeReturn,
        gone: bool,
    ) -> Result<(Option<ExternalOperation>, Option<ExternalOperation>), Objected> {
        let user = payment.user.filter(|user| Some(*user) == call.user);
        let (Some(user), Some(amount)) = (user, payment.amount_of(row.minor_units)) else {
            return Err(violation(format!("return {} is another user's", row.id)));
        };
        let asset = payment.asset;
        self.release(row, movement::return_hold(row.id, user, asset), (user, asset))?;
        if row.bonus > 0 {
            self.release(row, movement::bonus_hold(row.id, user, asset), (user, asset))?;
        }
        if !gone {
            return self.take_refused(call, payment, row, user);
        }
        let key = movement::return_key(row.id);
        let external = External {
            idem_key: key.clone(),
            op: Op::ExtWithdraw,
            user,
            asset,
            amount,
            actor: call.actor.clone(),
            order_number: call.order_number,
        };
        // The money is that of the hold. Behind its release the balance may be below zero still.
        let done = self.booked_anyway(&external, false)?;
        let clearing = LedgerAccount::Clearing(payment.channel.clone());
        let sides = (LedgerAccount::User(user), clearing);
        self.movement_of(payment, key, MovementKind::Refund, sides, Some(amount));
        let bonus = self.take_bonus(call, payment, row, (user, row.bonus))?;
        self.notice_beside(RechargeChange::Returned, user, payment, done.order_number);
        Ok((Some(done), bonus))
    }

    /// Gives the money of a hold of a return back.
    fn release(
        &mut self,
        row: &RechargeReturn,
        key: HoldKey,
        owner: (UserId, AssetId),
    ) -> Result<(), Objected> {
        self.readable(&Key::Hold(key.clone()))?;
        let here = self.holds.get(&key).map(|row| row.after);
        let Some(held) = here.or_else(|| self.known.holds.get(&key).copied()) else {
            return Err(violation(format!("return {} has no hold", row.id)));
        };
        self.on_hold(plain_order(key, held.order_number, owner, HoldAct::Release))
    }

    /// Money that the channel moves out of suspense: `before` and `after` are in it, in minor
    /// units. The part of the return that suspense does not have is a loss.
    pub(super) fn leaves(
        &mut self,
        payment: &RechargePayment,
        row: &RechargeReturn,
        kind: MovementKind,
        (before, after): (i64, i64),
    ) {
        let channel = &payment.channel;
        let suspense = || LedgerAccount::Suspense(channel.clone());
        let clearing = || LedgerAccount::Clearing(channel.clone());
        let loss = || LedgerAccount::Loss(channel.clone());
        let leaving = before - after;
        let part = min(leaving, row.minor_units);
        let (key, amount) = (movement::return_key(row.id), payment.amount_of(part));
        self.movement_of(payment, key, kind, (suspense(), clearing()), amount);
        let key = || movement::return_loss(row.id);
        let rest = payment.amount_of(row.minor_units - part);
        self.movement_of(payment, key(), MovementKind::Loss, (loss(), clearing()), rest);
        let surplus = payment.amount_of(leaving - part);
        self.movement_of(payment, key(), MovementKind::Loss, (suspense(), loss()), surplus);
    }

    /// The reverse: money that the channel gives back into suspense.
    fn arrives(
        &mut self,
        payment: &RechargePayment,
        row: &RechargeReturn,
        (before, after): (i64, i64),
    ) {
        let channel = &payment.channel;
        let clearing = || LedgerAccount::Clearing(channel.clone());
        let part = after - before;
        let (key, amount) = (movement::return_key(row.id), payment.amount_of(part));
        let sides = (clearing(), LedgerAccount::Suspense(channel.clone()));
        self.movement_of(payment, key, MovementKind::GivenBack, sides, amount);
        let (key, rest) = (movement::return_loss(row.id), row.minor_units - part);
        let sides = (clearing(), LedgerAccount::Loss(channel.clone()));
        self.movement_of(payment, key, MovementKind::Loss, sides, payment.amount_of(rest));
    }

    /// Books a fact of a channel, once for its number.
    pub(super) fn take(
        &mut self,
        call: &RechargeCall,
        take: &TakeCall,
    ) -> Result<RechargeReply, Objected> {
        let mut payment = match self.named_payment(call, &take.payment) {
            Ok(payment) => payment,
            Err(reply) => return Ok(*reply),
        };
        let returns = self.returns_of(payment.id);
        let is_here = |row: &&RechargeReturn| is_fact(row, take) || row.id == take.id;
        if let Some(found) = returns.iter().find(is_here) {
            let receivables = self.receivables_of(payment.id);
            let receivable = receivables.iter().find(|row| row.id == found.id);
            let (credit, bonus) = (self.credited_before(call), self.bonus_before(call));
            return Ok(RechargeReply { outcome: taken(found, receivable, take), credit, bonus });
        }
        if let Some(code) = contradicted(&payment, &returns, take) {
            return Ok(RechargeReply::refused(code, None));
        }
        if take.kind == ReturnKind::Refund
            && let Err(code) = self.restored_refund(&payment, take)?
        {
            return Ok(RechargeReply::refused(code, None));
        }
        let at = self.flight.at;
        let mut row = RechargeReturn {
            id: take.id,
            payment: payment.id,
            kind: take.kind,
            minor_units: take.minor_units,
            state: ReturnState::Done,
            next_at: None,
            created_at: at,
            updated_at: at,
            version: 0,
            attempts: 0,
            idem_key: None,
            number: Some(take.number.clone()),
            code: None,
            bonus: 0,
        };
        let is_taken = take.kind == ReturnKind::Taken;
        let (mut credit, mut bonus) = (None, None);
        let bonus_due = match (payment.disposition, is_taken) {
            (Disposition::Credited, true) => {
                let part = min(payment.left(&returns), take.minor_units);
                self.bonus_back(&payment, part)?
            }
            _ => 0,
        };
        self.write_return(row.clone());
        match payment.disposition {
            Disposition::Credited if take.kind == ReturnKind::Refund => {
                credit = self.adopt_refund(call, &payment, &row)?;
                if let Some(user) = payment.user {
                    row.bonus = self.restored_share(row.id)?.unwrap_or(0);
                    bonus = self.take_bonus(call, &payment, &row, (user, row.bonus))?;
                    self.write_return(row);
                }
            }
            Disposition::Credited if is_taken => {
                let (left, key) = (payment.left(&returns), movement::return_bonus(row.id));
                let restored = self.restored_share(row.id)?;
                credit = self.take_of_user(call, &payment, &row, (left, take.freezes))?;
                // The principal comes first, and the lack of the bonus is not claimed.
                if let Some(user) = payment.user {
                    row.bonus = match restored {
                        Some(units) => units,
                        None => self.debit(&key, &payment, user, bonus_due)?,
                    };
                    bonus = self.take_bonus(call, &payment, &row, (user, row.bonus))?;
                    self.write_return(row);
                }
            }
            Disposition::Credited => credit = self.give_to_user(call, &payment, &row)?,
            Disposition::Held | Disposition::Returning => {
                let after = payment.in_suspense(&self.returns_of(payment.id));
                let sides = (payment.in_suspense(&returns), after);
                match is_taken {
                    true => self.leaves(&payment, &row, MovementKind::Taken, sides),
                    false => self.arrives(&payment, &row, sides),
                }
                // No later word makes it whole: an operator never credits it.
                payment.cause = Some(HeldCause::PartReturned);
                self.write_alone(payment);
            }
            Disposition::Returned | Disposition::Dismissed => self.unowned(&payment, &row),
        }
        Ok(RechargeReply { outcome: self.shown(take.id), credit, bonus })
    }

    /// Whether UBSCore's log has the debit of a refund that is lost. The inner error: it has none,
    /// or one of another body.
    fn restored_refund(
        &self,
        payment: &RechargePayment,
        take: &TakeCall,
    ) -> Result<Result<(), Code>, Objected> {
        let key = movement::return_key(take.id);
        self.readable(&Key::External(key.clone()))?;
        let credited = payment.disposition == Disposition::Credited;
        let Some(row) = self.known.externals.get(&key).filter(|_| credited) else {
            return Ok(Err(Code::RechargeNotFound));
        };
        let External { op, user, asset, amount, .. } = row.external;
        let is_ours = (row.decision, op, asset)
            == (Decision::Success, Op::ExtWithdraw, payment.asset)
            && (Some(user), Some(amount)) == (payment.user, payment.amount_of(take.minor_units));
        Ok(if is_ours { Ok(()) } else { Err(Code::IdemKeyConflict) })
    }

    /// A refund that is lost, and is done: its debit is in the log, and nothing is booked.
    fn adopt_refund(
        &mut self,
        call: &RechargeCall,
        payment: &RechargePayment,
        row: &RechargeReturn,
    ) -> Result<Option<ExternalOperation>, Objected> {
        let (Some(user), Some(amount)) = (payment.user, payment.amount_of(row.minor_units)) else {
            return Err(violation(format!("payment {} has no amount", payment.id)));
        };
        let key = movement::return_key(row.id);
        let external = External {
            idem_key: key.clone(),
            op: Op::ExtWithdraw,
            user,
            asset: payment.asset,
            amount,
            actor: call.actor.clone(),
            order_number: call.order_number,
        };
        let done = self.restored(&external)?;
        let sides = (LedgerAccount::User(user), LedgerAccount::Clearing(payment.channel.clone()));
        self.movement_of(payment, key, MovementKind::Refund, sides, Some(amount));
        let number = done.as_ref().map_or(0, |done| done.order_number);
        self.notice_beside(RechargeChange::Returned, user, payment, number);
        Ok(done)
    }

    /// Writes a payment without a change of its order.
    fn write_alone(&mut self, mut payment: RechargePayment) {
        let key = (payment.channel.clone(), payment.trade_no.clone());
        let before = self.known.recharges.payments.get(&key).map_or(0, |row| row.version);
        (payment.version, payment.updated_at) = (before + 1, self.flight.at);
        self.desk.payments.insert(key, payment);
    }

    /// Money of a payment that has left us before: of an owner outside, or a loss.
    fn unowned(&mut self, payment: &RechargePayment, row: &RechargeReturn) {
        let other = match payment.disposition {
            Disposition::Dismissed => LedgerAccount::Outside,
            _ => LedgerAccount::Loss(payment.channel.clone()),
        };
        let clearing = LedgerAccount::Clearing(payment.channel.clone());
        let sides = match row.kind {
            ReturnKind::GivenBack => (clearing, other),
            ReturnKind::Taken | ReturnKind::Refund => (other, clearing),
        };
        let (key, amount) = (movement::return_key(row.id), payment.amount_of(row.minor_units));
        self.movement_of(payment, key, MovementKind::Loss, sides, amount);
    }

    /// Debits the user of a CREDITED payment. The part that lacks is a receivable. The user pays no
    /// more than is `left` of the payment, in minor units: the rest is a loss, until a refund that
    /// is under way is refused.
    fn take_of_user(
        &mut self,
        call: &RechargeCall,
        payment: &RechargePayment,
        row: &RechargeReturn,
        (left, freezes): (i64, bool),
    ) -> Result<Option<ExternalOperation>, Objected> {
        let (Some(user), Some(amount)) = (payment.user, payment.amount_of(row.minor_units)) else {
            return Err(violation(format!("payment {} has no amount", payment.id)));
        };
        let key = movement::return_key(row.id);
        let part = self.borne_of_taking(payment, row, left)?;
        // A debit that a repair has restored stands.
        let restored = self.known.externals.get(&key).map_or(0, |row| row.external.amount.units());
        let part = part.max(min(restored, amount.units()));
        let debit = self.debit(&key, payment, user, part)?;
        let clearing = || LedgerAccount::Clearing(payment.channel.clone());
        let done =
            self.debited(call, payment, user, key, (MovementKind::Taken, clearing(), debit))?;
        let (loss, kind) = (LedgerAccount::Loss(payment.channel.clone()), MovementKind::Loss);
        let (key, rest) = (movement::return_loss(row.id), Amount::new(amount.units() - part));
        self.movement_of(payment, key, kind, (loss, clearing()), rest);
        if let Some(short) = Amount::new(part - debit) {
            let at = self.flight.at;
            let owed = LedgerAccount::Receivable(payment.channel.clone());
            let (key, kind) = (movement::return_short(row.id), MovementKind::Short);
            self.movement_of(payment, key, kind, (owed, clearing()), Some(short));
            let receivable = Receivable {
                id: row.id,
                payment: payment.id,
                user,
                asset: payment.asset,
                amount: short,
                recovered: 0,
                written_off: 0,
                acts: Vec::new(),
                at,
                updated_at: at,
                version: 0,
            };
            self.write_receivable(receivable, None);
            if freezes {
                self.freeze_account(user, row.id);
            }
        }
        let number = done.as_ref().map_or(0, |done| done.order_number);
        self.notice_beside(RechargeChange::Taken, user, payment, number);
        Ok(done)
    }

    /// The part of `units` that a user can be debited with under a key: all that is available. A
    /// repair from the log has restored the row of a debit before the return that it belongs to.
    fn debit(
        &mut self,
        key: &str,
        payment: &RechargePayment,
        user: UserId,
        units: u64,
    ) -> Result<u64, Objected> {
        self.readable(&Key::Account(user))?;
        self.readable(&Key::Balance(user, payment.asset))?;
        self.readable(&Key::External(key.to_owned()))?;
        let restored = self.known.externals.get(key).map(|row| row.external.amount.units());
        let available = self.free(user, payment.asset);
        let available = u64::try_from(available).unwrap_or(u64::MAX);
        Ok(min(restored.unwrap_or(available), units))
    }

    /// Debits a user in any state of the account, if there is something to debit.
    fn debited(
        &mut self,
        call: &RechargeCall,
        payment: &RechargePayment,
        user: UserId,
        key: String,
        (kind, to, units): (MovementKind, LedgerAccount, u64),
    ) -> Result<Option<ExternalOperation>, Objected> {
        let asset = payment.asset;
        // The decision rests on both, also without a debit.
        self.account(user);
        self.balance(user, asset);
        let Some(amount) = Amount::new(units) else { return Ok(None) };
        let external = External {
            idem_key: key.clone(),
            op: Op::ExtWithdraw,
            user,
            asset,
            amount,
            actor: call.actor.clone(),
            order_number: call.order_number,
        };
        let done = self.booked_anyway(&external, true)?;
        let sides = (LedgerAccount::User(user), to);
        self.movement_of(payment, key, kind, sides, Some(amount));
        Ok(Some(done))
    }

    /// Sets an ACTIVE account FROZEN.
    fn freeze_account(&mut self, user: UserId, id: ReturnId) {
        let account = self.account(user);
        if account.after != Some(AccountStatus::Active) {
            return;
        }
        account.after = Some(AccountStatus::Frozen);
        self.flight.audited.push(Audited {
            actor: "channel".to_owned(),
            action: "account status",
            subject: format!("{user} FUNDING"),
            detail: (AccountStatus::Frozen as u8).to_string(),
            reason: format!("{id} has taken more than is available"),
        });
    }

    /// Makes good the part that was taken beyond the payment with money that the channel gives
    /// back. Of the rest, closes the receivable of the same taking, makes good the part of it that
    /// was written off, then closes other receivables of the payment, the oldest first, and credits
    /// the remainder, in any state of the account: no user gets more than was paid.
    fn give_to_user(
        &mut self,
        call: &RechargeCall,
        payment: &RechargePayment,
        row: &RechargeReturn,
    ) -> Result<Option<ExternalOperation>, Objected> {
        let (Some(user), Some(amount)) = (payment.user, payment.amount_of(row.minor_units)) else {
            return Err(violation(format!("payment {} has no amount", payment.id)));
        };
        let number = row.number.as_deref().unwrap_or_default();
        let own = ReturnId::of(payment.id, ReturnKind::Taken, number);
        let mut owed = self.receivables_of(payment.id);
        let part = self.users_part(payment, row, owed.iter().find(|row| row.id == own))?;
        owed.retain(|row| row.open() > 0);
        owed.sort_by_key(|row| (row.id != own, row.at, row.id));
        let (at, actor) = (self.flight.at, call.actor.clone());
        let clearing = || LedgerAccount::Clearing(payment.channel.clone());
        // A credit that a repair has restored stands, and the other parts follow from it.
        let restored = self.booked_units(&movement::return_key(row.id))?;
        let (mut rest, mut loss) = (part.max(min(restored, amount.units())), amount.units());
        // A receivable of another taking that is closed here is credited when that one comes back.
        for (place, mut receivable) in owed.into_iter().enumerate() {
            let closes = min(rest.saturating_sub(restored), receivable.open());
            let Some(part) = Amount::new(closes) else { break };
            rest -= part.units();
            loss -= part.units();
            let key = movement::return_closed(row.id, place + 1);
            let (end, idem_key) = (ReceivableEnd::GivenBack, movement::return_key(row.id));
            let act = ReceivableAct { at, end, amount: part, idem_key, actor: actor.clone() };
            receivable.ends(act.clone());
            self.write_receivable(receivable, Some(act));
            let sides = (clearing(), LedgerAccount::Receivable(payment.channel.clone()));
            self.movement_of(payment, key, MovementKind::Closed, sides, Some(part));
        }
        let rest = if restored > 0 { restored } else { rest };
        let (key, kind) = (movement::return_loss(row.id), MovementKind::Loss);
        let sides = (clearing(), LedgerAccount::Loss(payment.channel.clone()));
        let loss = Amount::new(loss.saturating_sub(rest));
        self.movement_of(payment, key, kind, sides, loss);
        let Some(amount) = Amount::new(rest) else { return Ok(None) };
        let key = movement::return_key(row.id);
        let external = External {
            idem_key: key.clone(),
            op: Op::ExtDeposit,
            user,
            asset: payment.asset,
            amount,
            actor,
            order_number: call.order_number,
        };
        let done = self.booked_anyway(&external, true)?;
        let sides = (clearing(), LedgerAccount::User(user));
        self.movement_of(payment, key, MovementKind::GivenBack, sides, Some(amount));
        let (change, number) = (RechargeChange::PaymentCredited, done.order_number);
        self.notice_beside(change, user, payment, number);
        Ok(Some(done))
    }

    /// An operator ends the open part of a receivable.
    pub(super) fn end_receivable(
        &mut self,
        call: &RechargeCall,
        end: &ReceivableCall,
    ) -> Result<RechargeReply, Objected> {
        let payment = match self.named_payment(call, &end.payment) {
            Ok(payment) => payment,
            Err(reply) => return Ok(*reply),
        };
        let row = self.returns_of(payment.id).into_iter().find(|row| row.id == end.id);
        let mut all = self.receivables_of(payment.id).into_iter();
        let Some((row, mut receivable)) = row.zip(all.find(|row| row.id == end.id)) else {
            return Ok(RechargeReply::refused(Code::RechargeNotFound, None));
        };
        if let Some(act) = receivable.acts.iter().find(|act| act.idem_key == end.idem_key) {
            let outcome = ended(&row, &receivable, act, end);
            return Ok(RechargeReply { outcome, credit: self.credited_before(call), bonus: None });
        }
        if receivable.acts.len() + 1 != end.number || call.user != Some(receivable.user) {
            let why = "The receivable has changed meanwhile.".to_owned();
            return Ok(RechargeReply::refused(Code::SystemError, Some(why)));
        }
        if receivable.open() == 0 {
            let why = "Nothing of the receivable is open.".to_owned();
            return Ok(RechargeReply::refused(Code::InvalidRequest, Some(why)));
        }
        let (user, open) = (receivable.user, receivable.open());
        let key = movement::receivable_act(end.id, end.end, end.number);
        let owed = LedgerAccount::Receivable(payment.channel.clone());
        let (mut credit, mut ends) = (None, open);
        if end.end == ReceivableEnd::Recovered {
            ends = self.debit(&key, &payment, user, open)?;
            let moves = (MovementKind::Recovered, owed, ends);
            credit = self.debited(call, &payment, user, key, moves)?;
        } else {
            let sides = (LedgerAccount::Loss(payment.channel.clone()), owed);
            self.movement_of(&payment, key, MovementKind::WrittenOff, sides, Amount::new(open));
        }
        let Some(amount) = Amount::new(ends) else {
            return Ok(RechargeReply::refused(Code::InsufficientBalance, None));
        };
        let (idem_key, actor) = (end.idem_key.clone(), call.actor.clone());
        let act = ReceivableAct { at: self.flight.at, end: end.end, amount, idem_key, actor };
        receivable.ends(act.clone());
        self.write_receivable(receivable, Some(act));
        Ok(RechargeReply { outcome: self.shown(end.id), credit, bonus: None })
    }
}

/// An act on a hold of the available balance, without the outside.
fn plain_order(
    key: HoldKey,
    order_number: u64,
    (user, asset): (UserId, AssetId),
    act: HoldAct,
) -> HoldOrder {
    let (purpose, special, outside_numbers) = (0, false, [0, 0]);
    HoldOrder { key, order_number, user, asset, purpose, special, act, outside_numbers }
}

/// Why a fact cannot be one of this payment. A GivenBack waits for its taking: the channel tells
/// both, in any order.
fn contradicted(
    payment: &RechargePayment,
    returns: &[RechargeReturn],
    take: &TakeCall,
) -> Option<Code> {
    if payment.amount.is_some() && payment.amount_of(take.minor_units).is_none() {
        return Some(Code::IdemKeyConflict);
    }
    let is_under_way = |row: &RechargeReturn| {
        let over = matches!(row.state, ReturnState::Done | ReturnState::Failed);
        row.kind == ReturnKind::Refund && !over
    };
    let refused = match take.condition {
        TakingCondition::Always => false,
        // The part that is left is not known yet.
        TakingCondition::NoRefundUnderWay => returns.iter().any(is_under_way),
        TakingCondition::WithinLeft => take.minor_units > payment.left(returns),
    };
    if refused {
        return Some(Code::NotReturnable);
    }
    if take.kind != ReturnKind::GivenBack {
        return None;
    }
    let of_taking = |row: &&RechargeReturn| {
        row.kind == ReturnKind::Taken && row.number.as_ref() == Some(&take.number)
    };
    match returns.iter().find(of_taking) {
        None => Some(Code::RechargeNotFound),
        Some(taking) if taking.minor_units < take.minor_units => Some(Code::IdemKeyConflict),
        Some(_) => None,
    }
}
