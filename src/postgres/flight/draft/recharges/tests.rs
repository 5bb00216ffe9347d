//! The answers to acts that are only looked for.

use super::*;
use crate::recharge::PaymentId;
use crate::recharge::act::PaymentName;
use crate::recharge::decide::tests::{facts, order, recorded};
use crate::recharge::order::{Follow, FollowState};

fn call(act: RechargeAct) -> RechargeCall {
    let (user, actor) = (Some(order().user), "a test".to_owned());
    RechargeCall { user, order_number: 7, bonus_number: 8, actor, act }
}

fn seen(known: &Known, act: RechargeAct) -> RechargeOutcome {
    match known.recharge(&call(act)) {
        Reply::Recharge(reply) => reply.outcome,
        reply => panic!("{reply:?}"),
    }
}

fn with(order: Recharge) -> Known {
    let mut known = Known::default();
    known.recharges.order(order);
    known
}

/// Goal: the end of a HELD payment, or of its return, is told from its row, and one that has not
/// come is not.
#[test]
fn an_end_that_has_come_is_found() {
    let id = ReturnId::new(9).expect("not zero");
    for disposition in Disposition::ALL {
        let row = recorded(&facts(), disposition, Some(HeldCause::Late));
        let name = PaymentName {
            channel: row.channel.clone(),
            trade_no: row.trade_no.clone(),
            id: row.id,
            recharge: row.recharge,
        };
        let mut known = Known::default();
        let end = |how| RechargeAct::EndHeld { payment: name.clone(), how };
        assert_eq!(seen(&known, end(HeldEnd::Dismiss)), RechargeOutcome::Nothing);
        known.recharges.payments.insert((name.channel.clone(), name.trade_no.clone()), row.clone());
        let decided = |payment| decided(PaymentDecision::Repeat, Some(payment)).outcome;
        for how in [HeldEnd::Credit, HeldEnd::Return(id), HeldEnd::Dismiss] {
            let want = match disposition {
                Disposition::Held => RechargeOutcome::Nothing,
                _ => decided(row.clone()),
            };
            assert_eq!(seen(&known, end(how)), want, "{disposition:?} {how:?}");
        }
        for state in ReturnState::ALL {
            let at = row.at;
            let back = RechargeReturn {
                id,
                payment: row.id,
                kind: ReturnKind::Refund,
                minor_units: 1,
                state,
                next_at: None,
                created_at: at,
                updated_at: at,
                version: 1,
                idem_key: None,
                number: None,
                code: None,
                attempts: 0,
                bonus: 0,
            };
            known.recharges.returns.insert(id, back);
            let want = match state {
                ReturnState::Done | ReturnState::Failed => decided(row.clone()),
                _ => RechargeOutcome::Nothing,
            };
            let act = RechargeAct::EndReturn { payment: name.clone(), id, gone: Ok(()) };
            assert_eq!(seen(&known, act), want, "{state:?}");
        }
    }
}

/// Goal: a note, a wish or a close that stands in its order is told by the order.
#[test]
fn a_change_of_an_order_that_stands_is_found() {
    let id = order().id;
    let note = |reference: Option<&str>| {
        let reference = reference.map(str::to_owned);
        RechargeAct::Note { id, reference, pay: None, next_at: None }
    };
    let wish = || RechargeAct::Wish { id, closing: ClosingWish::Expired };
    let close = || RechargeAct::Close { id };
    let init = Recharge { state: RechargeState::Init, ..order() };
    let noted = Recharge { reference: Some("a".to_owned()), ..order() };
    let wished = Recharge { closing: Some(ClosingWish::Cancelled), ..noted.clone() };
    let closed = Recharge { state: RechargeState::Closed, ..wished.clone() };
    let paid = Recharge { state: RechargeState::Paid, ..noted.clone() };
    for (row, shows) in [
        (init, [false, false, false, false]),
        (noted, [true, false, false, false]),
        (wished, [true, false, true, false]),
        (closed, [true, true, true, true]),
    ] {
        let known = with(row.clone());
        let acts = [note(Some("a")), note(Some("b")), wish(), close()];
        for (act, shows) in acts.into_iter().zip(shows) {
            let want = match shows {
                true => RechargeOutcome::Order { order: Box::new(row.clone()), replayed: true },
                false => RechargeOutcome::Nothing,
            };
            assert_eq!(seen(&known, act.clone()), want, "{act:?}");
        }
    }
    let refused = RechargeOutcome::Refused { code: Code::RechargePaid, detail: None };
    assert_eq!(seen(&with(paid), wish()), refused);
}

/// Goal: a try with a commit without an answer is ours only if its row stands: otherwise nothing is
/// asked. The end of a transfer to Spot is found too.
#[test]
fn a_try_that_stands_is_found() {
    let id = order().id;
    let at = |second| Timestamp::from_second(second).expect("a time");
    let row = Recharge { version: 8, next_at: Some(at(50)), ..order() };
    let known = with(row.clone());
    for (version, next_at, granted) in [(7, at(50), true), (7, at(51), false), (6, at(50), false)] {
        let want = match granted {
            true => RechargeOutcome::Order { order: Box::new(row.clone()), replayed: false },
            false => RechargeOutcome::Nothing,
        };
        let act = RechargeAct::Try { id, version, next_at };
        assert_eq!(seen(&known, act), want, "{version} {next_at}");
    }
    let follow = Follow { state: FollowState::Arrived, req_id: None, code: None };
    let act = || RechargeAct::Follow { id, follow };
    assert_eq!(seen(&known, act()), RechargeOutcome::Nothing);
    let arrived = Recharge { follow, ..row };
    let want = RechargeOutcome::Order { order: Box::new(arrived.clone()), replayed: true };
    assert_eq!(seen(&with(arrived), act()), want);

    let payment = recorded(&facts(), Disposition::Returning, None);
    let back = RechargeReturn {
        bonus: 0,
        id: ReturnId::new(9).expect("not zero"),
        payment: payment.id,
        kind: ReturnKind::Refund,
        minor_units: 1,
        state: ReturnState::Sent,
        next_at: Some(at(50)),
        created_at: at(0),
        updated_at: at(0),
        version: 2,
        attempts: 1,
        idem_key: None,
        number: None,
        code: None,
    };
    let mut known = Known::default();
    known.recharges.returns.insert(back.id, back.clone());
    let send = |version| RechargeAct::Send {
        payment: PaymentName {
            channel: payment.channel.clone(),
            trade_no: payment.trade_no.clone(),
            id: payment.id,
            recharge: payment.recharge,
        },
        id: back.id,
        version,
        next_at: at(50),
    };
    let row = Box::new(back.clone());
    assert_eq!(
        seen(&known, send(1)),
        RechargeOutcome::Return { row, receivable: None, replayed: false }
    );
    assert_eq!(seen(&known, send(2)), RechargeOutcome::Nothing);
}

/// A call with a payment of the order.
fn pays(bonus: bool) -> RechargeCall {
    let facts = facts();
    let terms = crate::recharge::terms::ChannelTerms {
        name: "wechat".to_owned(),
        asset: AssetId(4),
        currency: "CNY".to_owned(),
        minor_digits: 2,
    };
    let differing = crate::recharge::terms::PaymentRule::Credit;
    call(RechargeAct::Pay(Box::new(PaymentCall {
        bonus,
        id: PaymentId::of(&terms.name, &facts.trade_no),
        return_id: ReturnId::new(9).expect("not zero"),
        facts,
        terms: terms.into(),
        proven: crate::recharge::proof::Proven::Nothing,
        recharge: Some(order().id),
        seen_by: crate::recharge::payment::SeenBy::Callback,
        policy: crate::recharge::terms::RechargePolicy { differing, ..Default::default() },
        again: false,
        restored: false,
        last: false,
        seen: None,
    })))
}

/// Goal: a credit of unknown end is looked for under the key that it was written with, and so is a
/// bonus.
#[test]
fn a_lost_credit_is_looked_for_under_its_own_key() {
    let id = PaymentId::of("wechat", &facts().trade_no);
    let want = [movement::payment_credit(id), movement::recharge_credit(order().id)];
    let mut rows = Rows::default();
    wanted_behind(&pays(false), &mut rows);
    assert_eq!(rows.externals, want.clone().into_iter().collect());
    let bonus = [movement::recharge_bonus(order().id)];
    let mut rows = Rows::default();
    wanted_behind(&pays(true), &mut rows);
    assert_eq!(rows.externals, want.into_iter().chain(bonus).collect());
}

/// Goal: where two disputes have taken one payment, no user gets more than was paid. Method: the
/// first has left a receivable, and the second, beyond the payment, a loss; the second comes back.
#[test]
fn the_loss_of_a_dispute_comes_before_the_receivable_of_another() {
    let user = order().user;
    let payment =
        RechargePayment { user: Some(user), ..recorded(&facts(), Disposition::Credited, None) };
    let at = payment.at;
    let taken = |number: &str| RechargeReturn {
        id: ReturnId::of(payment.id, ReturnKind::Taken, number),
        payment: payment.id,
        kind: ReturnKind::Taken,
        minor_units: payment.minor_units,
        bonus: 0,
        state: ReturnState::Done,
        next_at: None,
        created_at: at,
        updated_at: at,
        version: 1,
        idem_key: None,
        number: Some(number.to_owned()),
        code: None,
        attempts: 0,
    };
    let first = taken("first");
    let owed = Receivable {
        id: first.id,
        payment: payment.id,
        user,
        asset: payment.asset,
        amount: payment.amount_of(payment.minor_units / 2).expect("an amount"),
        recovered: 0,
        written_off: 0,
        acts: Vec::new(),
        at,
        updated_at: at,
        version: 1,
    };
    let mut known = Known::default();
    for row in [first, taken("second")] {
        known.recharges.returns.insert(row.id, row);
    }
    known.recharges.receivables.insert(owed.id, owed);
    let name = PaymentName {
        channel: payment.channel.clone(),
        trade_no: payment.trade_no.clone(),
        id: payment.id,
        recharge: payment.recharge,
    };
    let key = (payment.channel.clone(), payment.trade_no.clone());
    known.recharges.payments.insert(key, payment.clone());
    let take = crate::recharge::act::TakeCall {
        payment: name,
        asset: payment.asset,
        id: ReturnId::of(payment.id, ReturnKind::GivenBack, "second"),
        kind: ReturnKind::GivenBack,
        number: "second".to_owned(),
        minor_units: payment.minor_units,
        freezes: false,
        condition: crate::recharge::act::TakingCondition::Always,
    };
    let call =
        crate::postgres::store::Call::Recharge(Box::new(call(RechargeAct::Take(Box::new(take)))));
    let memory = crate::postgres::flight::memory::Memory::new(2);
    let catalog = domain::asset::Catalog::default();
    let decided = Draft::new(&memory, &known, &catalog, at).decide(&[call]);
    let (flight, _) = decided.expect("it is decided");
    assert_eq!(flight.recharged.receivables, Vec::new(), "that of the first stays open");
    let [loss] = &flight.recharged.movements[..] else { panic!("{:?}", flight.recharged) };
    assert_eq!((loss.kind, Some(loss.amount)), (MovementKind::Loss, payment.amount));
}

/// A return of a payment that is on its way, or done.
fn going(
    payment: &RechargePayment,
    (kind, state): (ReturnKind, ReturnState),
    minor_units: i64,
) -> RechargeReturn {
    let at = payment.at;
    RechargeReturn {
        id: ReturnId::of(payment.id, kind, "one"),
        payment: payment.id,
        kind,
        minor_units,
        state,
        next_at: None,
        created_at: at,
        updated_at: at,
        version: 1,
        idem_key: None,
        number: Some("one".to_owned()),
        code: None,
        attempts: 1,
        bonus: 0,
    }
}

/// The flight in which a channel refuses a refund of the whole payment. `taken`: by a dispute, in
/// minor units. `restored`: the debit that UBSCore's log has for it, smallest units.
fn refused(taken: i64, restored: Option<u64>) -> crate::postgres::flight::Flight {
    use crate::postgres::flight::{Balance, Found, Wanted};
    let user = order().user;
    let payment =
        RechargePayment { user: Some(user), ..recorded(&facts(), Disposition::Credited, None) };
    let whole = payment.amount.expect("an amount").units();
    let back = going(&payment, (ReturnKind::Refund, ReturnState::Sent), payment.minor_units);
    let dispute = going(&payment, (ReturnKind::Taken, ReturnState::Done), taken);
    let key = movement::return_hold(back.id, user, payment.asset);
    let act = domain::hold::HoldAct::Set { round: 1, amount: whole, pays: true, paid: false };
    let order = domain::hold::HoldOrder {
        key: key.clone(),
        order_number: 5,
        user,
        asset: payment.asset,
        purpose: 0,
        special: false,
        act,
        outside_numbers: [0, 0],
    };
    let hold = domain::hold::Hold {
        amount: whole,
        round: 1,
        asked: whole,
        pays: true,
        ..domain::hold::Hold::new(&order)
    };
    let mut known = Known::default();
    known.holds.insert(key, hold);
    let named = (payment.channel.clone(), payment.trade_no.clone());
    known.recharges.payments.insert(named, payment.clone());
    for row in [&back, &dispute] {
        known.recharges.returns.insert(row.id, row.clone());
    }
    if let Some(units) = restored {
        let external = External {
            idem_key: movement::return_taken(back.id),
            op: Op::ExtWithdraw,
            user,
            asset: payment.asset,
            amount: domain::amount::Amount::new(units).expect("not zero"),
            actor: "a repair".to_owned(),
            order_number: 3,
        };
        let decision = domain::transfer::Decision::Success;
        let row = Decided { external, decision, balance_after: Some(0) };
        known.externals.insert(row.external.idem_key.clone(), row);
    }
    let mut memory = crate::postgres::flight::memory::Memory::new(2);
    let wanted =
        Wanted { accounts: vec![user], balances: vec![(user, payment.asset)], ..Wanted::default() };
    let balance = Balance { available: 0, frozen: whole.into(), version: 1 };
    let found = Found {
        accounts: vec![(user, domain::account::AccountStatus::Active)],
        balances: vec![(user, payment.asset, balance)],
        ..Found::default()
    };
    memory.learn(&wanted, &found);
    let name = PaymentName {
        channel: payment.channel.clone(),
        trade_no: payment.trade_no.clone(),
        id: payment.id,
        recharge: payment.recharge,
    };
    let gone = Err(Code::ChannelRefused);
    let end = call(RechargeAct::EndReturn { payment: name, id: back.id, gone });
    let calls = [crate::postgres::store::Call::Recharge(Box::new(end))];
    let unit = domain::amount::Amount::new(1).expect("not zero");
    let asset = domain::asset::Asset {
        id: payment.asset,
        symbol: "CNY".to_owned(),
        precision: 6,
        status: domain::asset::AssetStatus::Active,
        transfer_enabled: true,
        transfer_min: unit,
        transfer_max: unit,
    };
    let catalog = domain::asset::Catalog::new([asset]);
    let decided = Draft::new(&memory, &known, &catalog, payment.at).decide(&calls);
    decided.expect("it is decided").0
}

/// Goal: a refund that its channel refuses behind a taking is its user's to pay, as far as the
/// taking counted it as gone; the debit that a repair has restored stands.
#[test]
fn a_refund_that_is_refused_behind_a_taking_is_its_users_to_pay() {
    let (whole, unit) = (facts().minor_units, 10_000);
    for (taken, restored) in
        [(whole, None), (whole / 4, None), (2 * whole, None), (whole, Some(1_000_000))]
    {
        let flight = refused(taken, restored);
        let taken = u64::try_from(taken.min(whole)).expect("above 0") * unit;
        let (over, left) = match restored {
            None => (taken, i128::from(100_000_000 - taken)),
            Some(units) => (units, 100_000_000),
        };
        let [movement] = &flight.recharged.movements[..] else { panic!("{flight:?}") };
        let want = (LedgerAccount::User(order().user), LedgerAccount::Loss("wechat".to_owned()));
        assert_eq!((&movement.debit, &movement.credit), (&want.0, &want.1));
        assert_eq!((movement.kind, movement.amount.units()), (MovementKind::Taken, over));
        let [balance] = &flight.balances[..] else { panic!("{flight:?}") };
        let after = balance.after.expect("it has changed");
        assert_eq!((after.available, after.frozen), (left, 0));
        let [row] = &flight.recharged.returns[..] else { panic!("{flight:?}") };
        assert_eq!(row.state, ReturnState::Failed);
        let booked = flight.externals.iter().map(|row| row.external.amount.units());
        let want: Vec<u64> = if restored.is_some() { Vec::new() } else { vec![over] };
        assert_eq!(booked.collect::<Vec<_>>(), want);
    }
}

/// Goal: an order that a caller has seen is not read again for its payment, unless a flight may
/// have changed it, or another answer may rest on it.
#[test]
fn the_rows_of_a_payment_that_its_caller_has_seen_are_not_read_again() {
    use crate::postgres::flight::Flight;
    use crate::postgres::flight::draft::wanted;
    use crate::postgres::flight::memory::Memory;
    use crate::postgres::store::Call;

    let pay = |version| {
        let mut call = pays(false);
        let RechargeAct::Pay(pay) = &mut call.act else { panic!("{call:?}") };
        pay.seen = Some(Box::new(Recharge { version, ..order() }));
        Call::Recharge(Box::new(call))
    };
    let read = |calls: &[Call], memory: &Memory| {
        let mut known = Known::default();
        known.see(calls, memory);
        let left = wanted(calls, memory, &known).recharges.len();
        let forgotten = wanted(calls, memory, &known.forgotten()).recharges.len();
        (left, forgotten)
    };
    let mut memory = Memory::new(4);
    assert_eq!(read(&[pay(2)], &memory), (0, 2), "an order and a payment");
    assert_eq!(read(&[pay(2), pay(2)], &memory), (0, 2));
    assert_eq!(read(&[pay(2), pay(3)], &memory), (2, 2), "one of them is old");
    assert_eq!(read(&[Call::Recharge(Box::new(pays(false)))], &memory), (2, 2), "not seen");
    let hint = Call::Recharge(Box::new(call(RechargeAct::Hint { id: order().id })));
    assert_eq!(read(&[pay(2), hint], &memory), (2, 2), "another call names the order");
    let mut flight = Flight::default();
    flight.recharged.orders.push((Recharge { version: 3, ..order() }, Vec::new()));
    memory.advance(&flight);
    assert_eq!(read(&[pay(2)], &memory), (2, 2), "a flight has changed the order");
    assert_eq!(read(&[pay(3)], &memory), (0, 2));
}
