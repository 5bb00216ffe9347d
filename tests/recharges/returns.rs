use domain::transfer::Op;
use ubscore::audit::statement::{UserRecords, statement};
use ubscore::coordinator::Rejection;
use ubscore::coordinator::recharges::returns::{ReturnMade, TakingAnswer};
use ubscore::coordinator::worker::shard_of;
use ubscore::events::{Bounds, Hub, Pushed};
use ubscore::http::recharge_event::RechargeEventBody;
use ubscore::postgres::events::{EventCursor, Missed, UserEvent};
use ubscore::postgres::flight::recharged::RechargeChange;
use ubscore::postgres::movements;
use ubscore::postgres::store::External;
use ubscore::recharge::ReturnId;
use ubscore::recharge::facts::Taking;
use ubscore::recharge::returned::{RechargeReturn, ReturnKind, ReturnState};

use super::*;

/// Its Funding comes from recharges alone, so all of it is explained.
const PAYER: u64 = OTHER;

impl Desk {
    /// A payment of 100 that is credited to the payer.
    fn credited(&self, name: &str) -> RechargePayment {
        let order = self.made(self.draft(PAYER, name)).order;
        let payment = self.told(&self.facts(&order, name)).payment.expect("recorded");
        assert_eq!(payment.disposition, Disposition::Credited);
        payment
    }

    fn refund(
        &self,
        payment: &RechargePayment,
        coins: Option<u64>,
        idem_key: &str,
    ) -> Result<ReturnMade, Rejection> {
        let amount = coins.map(|coins| Amount::new(coins * COIN).expect("not zero"));
        block_on(self.recharges.refund(payment, amount, idem_key, "an operator"))
    }

    /// The code and the detail of a refund that is refused.
    fn not_refunded(
        &self,
        payment: &RechargePayment,
        coins: Option<u64>,
        idem_key: &str,
    ) -> (Code, String) {
        let refused = self.refund(payment, coins, idem_key).expect_err("refused");
        (refused.code, refused.detail.unwrap_or_default())
    }

    /// The channel ends a return.
    fn ends(&self, payment: &RechargePayment, id: ReturnId, gone: bool) -> RechargePayment {
        let ended = block_on(self.recharges.returned(payment, id, gone));
        ended.expect("ended").payment.expect("recorded")
    }

    fn taking(payment: &RechargePayment, number: &str, coins: i64) -> Taking {
        Taking {
            merchant_no: None,
            trade_no: payment.trade_no.clone(),
            number: number.to_owned(),
            minor_units: coins * 100,
            currency: payment.currency.clone(),
            at: Timestamp::UNIX_EPOCH,
        }
    }

    fn take(&self, payment: &RechargePayment, number: &str, coins: i64) -> TakingAnswer {
        let taking = Desk::taking(payment, number, coins);
        block_on(self.recharges.taken(&self.terms, &taking)).expect("an answer")
    }

    fn give(&self, payment: &RechargePayment, number: &str, coins: i64) -> TakingAnswer {
        let taking = Desk::taking(payment, number, coins);
        block_on(self.recharges.given_back(&self.terms, &taking)).expect("an answer")
    }

    /// Available and frozen coins of the payer.
    fn funds(&self) -> (u64, u64) {
        let row = "SELECT round(available / 1e8), round(frozen / 1e8) FROM balances_tb \
                    WHERE user_id = 1002";
        let row = &self.site.sql(row)[0];
        let coins = |text: &str| text.parse::<u64>().expect("a number");
        (coins(&row[0]), coins(&row[1]))
    }

    /// The returns of a payment.
    fn returns(&self, payment: &RechargePayment) -> Vec<RechargeReturn> {
        let reads = Reads::new(pool(&self.site.target(), &LIMITS, 1), catalog());
        block_on(reads.recharge_returns(payment.id)).expect("read")
    }

    /// Nothing contradicts anything: rows of recharges, accounts of channels, holds, balances, and
    /// the payer's statement.
    fn is_whole(&self) {
        let found = "\
            SELECT subject || ' ' || what FROM audit_recharges('epoch', 'infinity') \
            UNION ALL SELECT subject || ' ' || what FROM audit_recharge_accounts() \
            UNION ALL SELECT 'held ' || user_id FROM audit_misheld(0, 9223372036854775807) \
            UNION ALL SELECT 'counted ' || user_id FROM audit_miscounted(1001, 9223372036854775807)";
        assert_eq!(self.site.sql(found), Vec::<Vec<String>>::new());
        let assets = catalog();
        let user = UserId::new(PAYER).expect("an id");
        let target = self.site.target();
        let read = movements::read(&target, &LIMITS, &assets, user);
        let lines = block_on(read).expect("read");
        let statement = statement(lines, UserRecords::default(), &assets.load());
        assert_eq!(statement.mismatches, Vec::<String>::new());
    }

    /// A withdrawal of the payer by an operator.
    fn withdraw(&self, coins: u64) {
        self.external(Op::ExtWithdraw, coins);
    }

    fn external(&self, op: Op, coins: u64) {
        let external = External {
            idem_key: format!("{op}-{coins}"),
            op,
            user: UserId::new(PAYER).expect("an id"),
            asset: AssetId(3),
            amount: Amount::new(coins * COIN).expect("not zero"),
            actor: "an operator".to_owned(),
            order_number: 0,
        };
        let decided = block_on(self.coordinator.external(external)).expect("decided");
        assert_eq!(decided.decision.code(), None);
    }

    fn status(&self) -> String {
        self.value("SELECT status FROM accounts_tb WHERE user_id = 1002")
    }
}

/// Goal: a refund is set apart, and settles as a whole and in parts: once, and never more than has
/// come. Method: each act and its repeat; then the rows, the log and every sum.
#[test]
fn rch_031_a_refund_settles_whole_and_in_parts() {
    let desk = Desk::new();
    let payment = desk.credited("4200001");
    let part = desk.refund(&payment, Some(40), "part").expect("set apart").row;
    assert_eq!((part.state, part.minor_units), (ReturnState::Ready, 4_000));
    assert!(part.next_at.is_some(), "due at once");
    // A repeat behind a restore has its number, so the channel sends no more.
    assert_eq!(part.id, ReturnId::of(payment.id, ReturnKind::Refund, "part"));
    assert_eq!(desk.funds(), (60, 40));
    desk.is_whole();
    let again = desk.refund(&payment, Some(40), "part").expect("as decided");
    assert!(again.replayed);
    assert_eq!(again.row, part);
    assert_eq!(desk.not_refunded(&payment, Some(41), "part").0, Code::IdemKeyConflict);
    let (code, left) = desk.not_refunded(&payment, Some(61), "over");
    assert_eq!((code, left.as_str()), (Code::NotReturnable, "60 USDT of the payment is left."));
    let odd = desk.recharges.refund(&payment, Amount::new(1), "odd", "an operator");
    assert_eq!(block_on(odd).expect_err("no multiple of a fen").code, Code::PrecisionOverflow);
    assert_eq!(desk.funds(), (60, 40), "refusals move nothing");

    for _ in 0..2 {
        desk.ends(&payment, part.id, true);
        assert_eq!(desk.funds(), (60, 0));
        desk.is_whole();
    }
    let key = format!("return/{}", part.id.ulid());
    let row = format!(
        "SELECT op, amount / 1e8 = 40, code IS NULL FROM external_operations \
                        WHERE idem_key = '{key}'"
    );
    assert_eq!(desk.site.sql(&row), [["5", "t", "t"].map(str::to_owned)]);
    let row = format!(
        "SELECT debit, credit, kind FROM recharge_movements \
                        WHERE movement_key = '{key}'"
    );
    assert_eq!(desk.site.sql(&row), [["user/1002", "wechat/clearing", "5"].map(str::to_owned)]);

    let rest = desk.refund(&payment, None, "rest").expect("set apart").row;
    assert_eq!(rest.minor_units, 6_000);
    assert_eq!(desk.not_refunded(&payment, None, "more").0, Code::NotReturnable);
    desk.ends(&payment, rest.id, true);
    assert_eq!(desk.funds(), (0, 0));
    assert_eq!(desk.account("clearing"), "0");
    assert_eq!(desk.not_refunded(&payment, Some(1), "gone").0, Code::NotReturnable);
    desk.is_whole();
    let told = "SELECT count(*) FROM journal_tb WHERE substring(entries FOR 1) = '\\x03'";
    assert_eq!(desk.value(told), "3", "paid, and returned twice");
    let site = desk.stopped();
    let keys = recorded(&site);
    for id in [part.id, rest.id] {
        let key = format!("return/{}", id.ulid());
        assert!(keys.contains(&key), "the log has {key}: {keys:?}");
    }
}

/// Goal: a refused refund releases its money, by the channel's word alone; one that is short, or of
/// a frozen account, is refused for good under its key; a payment without a user has none.
#[test]
fn rch_031_a_refund_is_refused_and_nothing_is_lost() {
    let desk = Desk::new();
    let payment = desk.credited("4200001");
    let asked = desk.refund(&payment, None, "first").expect("set apart").row;
    for _ in 0..2 {
        desk.ends(&payment, asked.id, false);
        assert_eq!(desk.funds(), (100, 0));
    }
    desk.ends(&payment, asked.id, true);
    assert_eq!(desk.funds(), (100, 0), "its end stands");
    let again = desk.refund(&payment, None, "first").expect("as decided");
    assert_eq!(
        (again.row.state, again.row.code),
        (ReturnState::Failed, Some(Code::ChannelRefused))
    );
    desk.is_whole();

    desk.withdraw(30);
    for _ in 0..2 {
        assert_eq!(desk.not_refunded(&payment, None, "short").0, Code::InsufficientBalance);
    }
    desk.set_status(PAYER, AccountStatus::Frozen);
    assert_eq!(desk.not_refunded(&payment, Some(1), "frozen").0, Code::AccountFrozen);
    desk.set_status(PAYER, AccountStatus::Active);
    assert_eq!(desk.not_refunded(&payment, Some(1), "frozen").0, Code::AccountFrozen);
    assert_eq!(desk.funds(), (70, 0));
    let part = desk.refund(&payment, Some(70), "part").expect("set apart").row;
    desk.set_status(PAYER, AccountStatus::Disabled);
    desk.ends(&payment, part.id, true);
    assert_eq!(desk.funds(), (0, 0), "no status stops an end");
    desk.is_whole();

    let order = desk.paying("order");
    let (held, _) = desk.held(&Facts { discount: true, ..desk.facts(&order, "4200002") });
    let (code, why) = desk.not_refunded(&held, None, "held");
    assert_eq!((code, why.as_str()), (Code::NotReturnable, "The payment is HELD."));
    let other = desk.credited_for(USER, "4200003");
    assert_eq!(desk.not_refunded(&other, Some(70), "part").0, Code::IdemKeyConflict);
    desk.stopped();
}

impl Desk {
    fn credited_for(&self, user: u64, name: &str) -> RechargePayment {
        let order = self.made(self.draft(user, name)).order;
        self.told(&self.facts(&order, name)).payment.expect("recorded")
    }
}

/// Goal: refunds of one payment at once never give back more than has come.
#[test]
fn rch_031_refunds_at_once_stay_within_the_payment() {
    let desk = Desk::new();
    let payment = desk.credited("4200001");
    let amount = Amount::new(30 * COIN);
    let keys: Vec<String> = (0..8).map(|number| format!("key-{number}")).collect();
    let refunds = keys.iter().map(|key| desk.recharges.refund(&payment, amount, key, "operator"));
    let made = block_on(join_all(refunds));
    assert_eq!(made.iter().filter(|made| made.is_ok()).count(), 3, "{made:?}");
    let twice = (0..4).map(|_| desk.recharges.refund(&payment, None, "rest", "operator"));
    let made = block_on(join_all(twice));
    assert_eq!(
        made.iter().filter(|made| made.as_ref().is_ok_and(|made| !made.replayed)).count(),
        1
    );
    assert_eq!(desk.funds(), (0, 100));
    desk.is_whole();
    desk.stopped();
}

/// Goal: an open hold is part of the balance and of the statement, and both add up before it,
/// during it, and behind each of its ends. The watermark does not wait for it.
#[test]
fn rch_032_a_hold_shows_and_everything_adds_up() {
    let desk = Desk::new();
    let payment = desk.credited("4200001");
    desk.is_whole();
    let asked = desk.refund(&payment, Some(25), "a").expect("set apart").row;
    assert_eq!(desk.funds(), (75, 25));
    let hold = "SELECT hold_key, amount / 1e8 = 25, reason FROM funding_holds WHERE state = 10";
    let key = format!("return:{}:1002:3", asked.id.ulid());
    assert_eq!(desk.site.sql(hold), [[key.as_str(), "t", "2"].map(str::to_owned)]);
    desk.is_whole();
    let waits = "SELECT count(*) FROM funding_holds WHERE state = 10 AND reason = 1";
    assert_eq!(desk.value(waits), "0", "the watermark passes it");
    desk.ends(&payment, asked.id, true);
    desk.is_whole();
    let line = "SELECT balance_after / 1e8 = 75 FROM external_operations WHERE op = 5";
    assert_eq!(desk.value(line), "t");
    desk.stopped();
}

/// Goal: taken money is debited, in any state of the account; the rest is a receivable, and the
/// account is FROZEN; an operator recovers it or writes it off, each once. No balance falls below
/// zero.
#[test]
fn rch_033_taken_money_is_debited_and_the_rest_is_a_receivable() {
    let desk = Desk::new();
    let payment = desk.credited("4200001");
    let part = desk.take(&payment, "dp_1", 30);
    assert_eq!(part.told, PaymentTold::Success);
    assert_eq!((desk.funds(), desk.status()), ((70, 0), "1".to_owned()));
    let flights = desk.flights();
    assert_eq!(desk.take(&payment, "dp_1", 30).told, PaymentTold::Success);
    assert_eq!(desk.take(&payment, "dp_1", 31).told, PaymentTold::Conflict);
    assert_eq!((desk.flights(), desk.funds()), (flights, (70, 0)), "repeats write nothing");
    assert_eq!(desk.not_refunded(&payment, Some(71), "over").0, Code::NotReturnable);

    desk.withdraw(20);
    let taken = desk.take(&payment, "dp_2", 70);
    let owed = taken.receivable.expect("20 are gone");
    assert_eq!((owed.amount.units(), owed.open()), (20 * COIN, 20 * COIN));
    assert_eq!((desk.funds(), desk.status()), ((0, 0), "2".to_owned()));
    let audited = "SELECT actor, subject FROM admin_audit WHERE action = 'account status'";
    assert_eq!(desk.site.sql(audited), [["channel", "1002 FUNDING"].map(str::to_owned)]);
    desk.is_whole();

    let id = owed.id;
    let none = block_on(desk.recharges.recover(id, "r-0", "an operator")).expect_err("nothing");
    assert_eq!(none.code, Code::InsufficientBalance);
    desk.external(Op::ExtDeposit, 15);
    for _ in 0..2 {
        let part = block_on(desk.recharges.recover(id, "r-1", "an operator")).expect("a part");
        assert_eq!((part.recovered, part.open()), (15 * COIN, 5 * COIN));
        assert_eq!(desk.funds(), (0, 0));
    }
    let other = block_on(desk.recharges.write_off(id, "r-1", "an operator")).expect_err("another");
    assert_eq!(other.code, Code::IdemKeyConflict);
    for _ in 0..2 {
        let ended = block_on(desk.recharges.write_off(id, "w-1", "an operator")).expect("ended");
        assert_eq!((ended.written_off, ended.open()), (5 * COIN, 0));
    }
    let over = block_on(desk.recharges.recover(id, "r-2", "an operator")).expect_err("closed");
    assert_eq!(over.code, Code::InvalidRequest);
    let keys = format!(
        "SELECT array_agg(replace(movement_key, '{}', '') ORDER BY movement_key)::text \
           FROM recharge_movements WHERE movement_key LIKE 'return/{}/%'",
        id.ulid(),
        id.ulid()
    );
    assert_eq!(desk.value(&keys), "{return//recover/1,return//short,return//write-off/2}");
    assert_eq!(desk.status(), "2", "an operator opens it");
    let reads = Reads::new(pool(&desk.site.target(), &LIMITS, 1), catalog());
    let accounts = block_on(reads.channel_accounts()).expect("read");
    let [wechat] = &accounts[..] else { panic!("{accounts:?}") };
    let coins = |units: i128| units / i128::from(COIN);
    assert_eq!((coins(wechat.paid), coins(wechat.taken)), (100, 100));
    assert_eq!((coins(wechat.clearing), coins(wechat.receivable), coins(wechat.loss)), (0, 0, 5));
    desk.is_whole();
    desk.stopped();
}

/// Goal: a taking moves no more of a user's money than is left of the payment: the rest is a loss,
/// and comes back first. One in another currency is a contradiction. Method: a refund is done, one
/// is under way, and a dispute takes more than the payment, beside another payment.
#[test]
fn rch_033_no_user_pays_more_than_is_left_of_a_payment() {
    let desk = Desk::new();
    let payment = desk.credited("4200001");
    desk.credited("4200002");
    let (flights, dollars) = (desk.flights(), "USD".to_owned());
    let taking = Taking { currency: dollars, ..Desk::taking(&payment, "dp_0", 10) };
    let told = block_on(desk.recharges.taken(&desk.terms, &taking)).expect("an answer").told;
    assert_eq!((told, desk.flights()), (PaymentTold::Conflict, flights));
    let done = desk.refund(&payment, Some(30), "a").expect("set apart").row;
    desk.ends(&payment, done.id, true);
    desk.refund(&payment, Some(10), "b").expect("set apart");
    assert_eq!(desk.funds(), (160, 10));
    let taken = desk.take(&payment, "dp_1", 150);
    assert_eq!((taken.told, taken.receivable), (PaymentTold::Success, None));
    assert_eq!((desk.funds(), desk.status()), ((100, 10), "1".to_owned()), "60 were left");
    assert_eq!(desk.account("loss"), format!("-{}", 90 * COIN));
    desk.is_whole();
    desk.give(&payment, "dp_1", 120);
    assert_eq!((desk.funds(), desk.account("loss").as_str()), ((130, 10), "0"));
    desk.is_whole();
    // The word of an operator has the same limit, and that is asked of the worker.
    let by_operator = |minor_units: i64| {
        let part = ("re_1", minor_units);
        block_on(desk.recharges.taken_by_operator(&payment, part, "an operator"))
    };
    assert_eq!(by_operator(3_001).expect_err("30 are left").code, Code::NotReturnable);
    for replayed in [false, true] {
        assert_eq!(by_operator(3_000).expect("booked").replayed, replayed);
        assert_eq!(desk.funds(), (100, 10));
    }
    desk.is_whole();
    desk.stopped();
}

/// Goal: money that comes back behind a write-off makes the loss good, and goes to no user that
/// never paid it. Method: a dispute takes 100 of 0; then 100 of 40.
#[test]
fn rch_033_money_given_back_behind_a_write_off_is_no_users() {
    let desk = Desk::new();
    let payment = desk.credited("4200001");
    desk.withdraw(100);
    let owed = desk.take(&payment, "dp_1", 100).receivable.expect("all is gone");
    block_on(desk.recharges.write_off(owed.id, "w-1", "an operator")).expect("ended");
    assert_eq!(desk.account("loss"), format!("-{}", 100 * COIN));
    for _ in 0..2 {
        desk.give(&payment, "dp_1", 100);
        assert_eq!((desk.funds(), desk.account("loss").as_str()), ((0, 0), "0"));
    }
    desk.is_whole();
    desk.set_status(PAYER, AccountStatus::Active);
    let payment = desk.credited("4200002");
    desk.withdraw(60);
    let owed = desk.take(&payment, "dp_2", 100).receivable.expect("60 are gone");
    block_on(desk.recharges.write_off(owed.id, "w-2", "an operator")).expect("ended");
    desk.give(&payment, "dp_2", 100);
    assert_eq!((desk.funds(), desk.account("loss").as_str()), ((40, 0), "0"));
    desk.is_whole();
    desk.stopped();
}

/// Goal: a refund that its channel refuses behind a chargeback is paid by its user, that has the
/// money of its hold: no user gets more than was paid, and money that the channel gives back is
/// that user's. Method: whole; in part, with money that is given back before the refusal.
#[test]
fn rch_033_a_refund_that_is_refused_behind_a_chargeback_is_its_users_to_pay() {
    let desk = Desk::new();
    let payment = desk.credited("4200001");
    let loss = |coins: i64| (coins * i64::try_from(COIN).expect("small")).to_string();
    let whole = desk.refund(&payment, None, "a").expect("set apart").row;
    desk.take(&payment, "dp_1", 100);
    assert_eq!((desk.funds(), desk.account("loss")), ((0, 100), loss(-100)));
    desk.is_whole();
    for _ in 0..2 {
        desk.ends(&payment, whole.id, false);
        assert_eq!((desk.funds(), desk.account("loss")), ((0, 0), loss(0)));
        desk.is_whole();
    }
    let again = desk.refund(&payment, None, "a").expect("as decided");
    assert_eq!((again.row.state, again.replayed), (ReturnState::Failed, true));
    assert_eq!(desk.not_refunded(&payment, Some(1), "more").0, Code::NotReturnable);
    desk.give(&payment, "dp_1", 100);
    assert_eq!((desk.funds(), desk.account("loss")), ((100, 0), loss(0)));
    desk.is_whole();

    let part = desk.refund(&payment, Some(60), "b").expect("set apart").row;
    desk.take(&payment, "dp_2", 70);
    assert_eq!((desk.funds(), desk.account("loss")), ((0, 60), loss(-30)), "40 were left");
    desk.give(&payment, "dp_2", 20);
    assert_eq!((desk.funds(), desk.account("loss")), ((0, 60), loss(-10)), "the loss is first");
    desk.is_whole();
    desk.ends(&payment, part.id, false);
    assert_eq!((desk.funds(), desk.account("loss")), ((50, 0), loss(0)));
    desk.is_whole();
    let rest = desk.refund(&payment, None, "c").expect("set apart").row;
    desk.ends(&payment, rest.id, true);
    assert_eq!((desk.funds(), desk.account("clearing")), ((0, 0), loss(0)));
    desk.is_whole();
    let keys = recorded(&desk.stopped());
    for id in [whole.id, part.id] {
        let key = format!("return/{}/taken", id.ulid());
        assert!(keys.contains(&key), "the log has {key}: {keys:?}");
    }
}

/// Goal: where two disputes have taken one payment, money that the first gives back is no user's
/// while the second has it. Method: the user has paid the first, and the second is a loss.
#[test]
fn rch_033_money_of_two_disputes_is_given_back_once() {
    let desk = Desk::new();
    let payment = desk.credited("4200001");
    desk.take(&payment, "dp_1", 100);
    desk.take(&payment, "dp_2", 100);
    assert_eq!((desk.funds(), desk.account("loss")), ((0, 0), format!("-{}", 100 * COIN)));
    desk.give(&payment, "dp_1", 100);
    assert_eq!((desk.funds(), desk.account("loss").as_str()), ((0, 0), "0"));
    desk.is_whole();
    desk.give(&payment, "dp_2", 100);
    assert_eq!((desk.funds(), desk.account("loss").as_str()), ((100, 0), "0"));
    desk.is_whole();
    desk.stopped();
}

/// Goal: the end of a refund is booked also where a special account has fallen below zero behind
/// its hold: the money is that of the hold.
#[test]
fn rch_031_a_refund_of_a_special_account_below_zero_ends() {
    let desk = Desk::new();
    let payment = desk.credited("4200001");
    let asked = desk.refund(&payment, Some(40), "a").expect("set apart").row;
    let session = desk.site.session();
    session.sql(&format!("SELECT special_set({PAYER}, 3)"));
    session.sql(&format!(
        "UPDATE balances_tb SET available = -10e8, version = version + 1 WHERE user_id = {PAYER}"
    ));
    desk.ends(&payment, asked.id, true);
    let row = "SELECT available / 1e8 = -10, frozen FROM balances_tb WHERE user_id = 1002";
    assert_eq!(desk.site.sql(row), [["t", "0"].map(str::to_owned)]);
    let done = desk.returns(&payment).into_iter().map(|row| row.state).collect::<Vec<_>>();
    assert_eq!(done, [ReturnState::Done]);
    desk.stopped();
}

/// Goal: a stream that is open hears of a refund, of a taking and of money given back as one that
/// was away reads it later; and the sums count each unit once.
#[test]
fn a_stream_hears_of_returns_as_they_are_read_later() {
    use RechargeChange::{Paid, PaymentCredited, Returned, Taken};
    let hub = Arc::new(Hub::new(Bounds { streams_max: 1, streams_per_user_max: 1, queue_max: 16 }));
    let (policy, life) = (RechargePolicy::default(), Duration::from_secs(1_500));
    let rules = RechargeRules { policy, open_max: 5, life, freeze_on_short: true };
    let desk = Desk::heard(rules, Arc::<Hub>::clone(&hub));
    let user = UserId::new(PAYER).expect("an id");
    let place = hub.enter(user).expect("a place");
    let mut queue = place.follow();
    let payment = desk.credited("4200001");
    let asked = desk.refund(&payment, Some(10), "a").expect("set apart").row;
    desk.ends(&payment, asked.id, true);
    desk.take(&payment, "dp_1", 30);
    desk.give(&payment, "dp_1", 30);
    let assets = catalog().load();
    let mut live = Vec::new();
    while let Ok(pushed) = queue.try_recv() {
        let Pushed::Recharge(event) = pushed else { panic!("{pushed:?}") };
        live.push((event.change, RechargeEventBody::json(&event, &assets)));
    }
    let reads = Reads::new(pool(&desk.site.target(), &LIMITS, 1), catalog());
    let mut missed = Missed::after(user, shard_of(user, 1), EventCursor::default());
    let mut later = Vec::new();
    while let Some(page) = block_on(reads.missed(&mut missed, 10)).expect("read") {
        later.extend(page.into_iter().map(|event| match event {
            UserEvent::Recharge(event) => (event.change, RechargeEventBody::json(&event, &assets)),
            other => panic!("{other:?}"),
        }));
    }
    assert_eq!(live, later);
    let changes: Vec<RechargeChange> = live.iter().map(|(change, _)| *change).collect();
    assert_eq!(changes, [Paid, Returned, Taken, PaymentCredited]);
    assert!(live.iter().all(|(_, text)| text.contains(r#""trade_no":"4200001""#)), "{live:?}");

    let totals = block_on(reads.recharge_totals(user)).expect("read");
    let [sums] = &totals[..] else { panic!("{totals:?}") };
    let coins = |units: u128| units / u128::from(COIN);
    assert_eq!((coins(sums.recharged), coins(sums.returned), sums.count), (100, 10, 1));
    let own = block_on(reads.returns_of(&[payment.id])).expect("read");
    assert_eq!(own.iter().map(|row| row.id).collect::<Vec<_>>(), [asked.id], "no takings");
    desk.stopped();
}

/// Goal: money that a channel gives back closes the receivable first, and credits the rest. It
/// waits for its taking, and the account stays FROZEN.
#[test]
fn rch_033_given_back_closes_the_receivable_first() {
    let desk = Desk::new();
    let payment = desk.credited("4200001");
    assert_eq!(desk.give(&payment, "dp_1", 100).told, PaymentTold::NotFound);
    desk.withdraw(60);
    let owed = desk.take(&payment, "dp_1", 100).receivable.expect("60 are gone");
    assert_eq!((desk.funds(), owed.open()), ((0, 0), 60 * COIN));
    assert_eq!(desk.give(&payment, "dp_1", 101).told, PaymentTold::Conflict);
    for _ in 0..2 {
        let back = desk.give(&payment, "dp_1", 80);
        assert_eq!(back.told, PaymentTold::Success);
        assert_eq!((desk.funds(), desk.status()), ((20, 0), "2".to_owned()));
    }
    assert_eq!(desk.value("SELECT recovered / 1e8 = 60 FROM receivables_tb"), "t");
    let kinds = desk.returns(&payment).into_iter().map(|row| row.kind).collect::<Vec<_>>();
    assert_eq!(kinds, [ReturnKind::Taken, ReturnKind::GivenBack]);
    desk.is_whole();
    desk.set_status(PAYER, AccountStatus::Disabled);
    desk.take(&payment, "dp_2", 10);
    assert_eq!((desk.funds(), desk.status()), ((10, 0), "3".to_owned()));
    desk.give(&payment, "dp_2", 10);
    assert_eq!(desk.funds(), (20, 0), "a fact is booked in any state of the account");
    desk.is_whole();
    desk.stopped();
}

/// Goal: money that a channel takes of a payment without a user comes out of suspense, and no
/// operator credits it. Method: taken and given back while HELD and RETURNING, and behind each end.
#[test]
fn rch_033_taken_money_of_a_held_payment_comes_out_of_suspense() {
    let desk = Desk::new();
    let held = |name: &str| {
        let order = desk.paying(name);
        desk.held(&Facts { discount: true, ..desk.facts(&order, name) }).0
    };
    let coins = |coins: u64| (coins * COIN).to_string();
    let first = held("1");
    desk.take(&first, "a", 30);
    assert_eq!(desk.account("suspense"), coins(70));
    desk.not_credited(&first, "given a part of this payment back");
    desk.is_whole();
    let id = desk.recharges.return_id();
    let returning = desk.ended(&first, HeldEnd::Return(id));
    assert_eq!(
        desk.returns(&first).iter().find(|row| row.id == id).expect("it").minor_units,
        7_000
    );
    desk.take(&returning, "b", 10);
    desk.ends(&returning, id, true);
    assert_eq!(desk.account("suspense"), "0");
    assert_eq!(desk.account("loss"), format!("-{}", coins(10)), "it has gone back twice");
    desk.is_whole();
    desk.give(&returning, "b", 10);
    assert_eq!(desk.account("loss"), "0");
    desk.is_whole();

    let second = held("2");
    desk.take(&second, "a", 100);
    let whole =
        desk.recharges.ended(&second, HeldEnd::Return(desk.recharges.return_id()), None, "x");
    assert_eq!(block_on(whole).expect_err("nothing is left").code, Code::NotReturnable);
    desk.give(&second, "a", 40);
    assert_eq!(desk.account("suspense"), coins(40));
    desk.ended(&second, HeldEnd::Dismiss);
    desk.take(&second, "c", 5);
    assert_eq!(desk.account("suspense"), "0");
    desk.is_whole();

    let third = held("3");
    let id = desk.recharges.return_id();
    let returning = desk.ended(&third, HeldEnd::Return(id));
    desk.take(&returning, "a", 100);
    desk.ends(&returning, id, false);
    let refused = desk.told(&desk.facts_of(&third)).payment.expect("recorded");
    assert_eq!(refused.cause, Some(HeldCause::PartReturned));
    desk.ended(&refused, HeldEnd::Dismiss);
    assert_eq!(desk.account("suspense"), "0");
    desk.is_whole();
    desk.stopped();
}

impl Desk {
    /// The facts of a recorded payment.
    fn facts_of(&self, payment: &RechargePayment) -> Facts {
        Facts {
            merchant_no: payment.merchant_no.clone(),
            trade_no: payment.trade_no.clone(),
            minor_units: payment.minor_units,
            total_minor_units: payment.minor_units,
            currency: payment.currency.clone(),
            discount: true,
            returned: Returned::None,
            paid_at: payment.paid_at,
            proof: None,
        }
    }
}

/// Goal: a taking that carries our own number is that return; one of a payment that is not here
/// comes again if it is ours; a foreign one is success and nothing.
#[test]
fn rch_034_a_taking_with_our_number_is_our_return() {
    let desk = Desk::new();
    let payment = desk.credited("4200001");
    let asked = desk.refund(&payment, Some(40), "a").expect("set apart").row;
    for _ in 0..2 {
        assert_eq!(desk.take(&payment, &asked.id.to_string(), 40).told, PaymentTold::Success);
        assert_eq!(desk.funds(), (60, 0));
    }
    assert_eq!(desk.returns(&payment).len(), 1);
    let failed = desk.refund(&payment, Some(10), "b").expect("set apart").row;
    desk.ends(&payment, failed.id, false);
    for _ in 0..2 {
        desk.take(&payment, &failed.id.to_string(), 10);
        assert_eq!(desk.funds(), (50, 0), "it is taken all the same, once");
    }
    desk.is_whole();

    let order = desk.order("unpaid");
    let noted = desk.recharges.noted(&order, Some("pi_1".to_owned()), None, None);
    block_on(noted).expect("noted");
    let unknown = |merchant_no: Option<&str>, trade_no: &str| Taking {
        merchant_no: merchant_no.map(str::to_owned),
        trade_no: trade_no.to_owned(),
        ..Desk::taking(&payment, "dp_9", 1)
    };
    let lost = RechargeId::generate(1, 7).to_string();
    for (taking, told) in [
        (unknown(Some(&lost), "x"), PaymentTold::NotFound),
        (unknown(None, "pi_1"), PaymentTold::NotFound),
        (unknown(Some("shop-7"), "x"), PaymentTold::Success),
        (unknown(None, "pi_2"), PaymentTold::Success),
    ] {
        let answer = block_on(desk.recharges.taken(&desk.terms, &taking)).expect("an answer");
        assert_eq!((answer.told, answer.row.is_none()), (told, true), "{taking:?}");
    }
    desk.stopped();
}

/// Goal: a repair may restore the external operation of a return before its end comes: nothing is
/// booked twice.
/// Method: the row is there with its money, and the return is not ended.
#[test]
fn rch_039_an_end_behind_a_repair_takes_nothing_twice() {
    let desk = Desk::new();
    let payment = desk.credited("4200001");
    let asked = desk.refund(&payment, Some(40), "a").expect("set apart").row;
    let session = desk.site.session();
    session.sql(&format!(
        "INSERT INTO external_operations (order_number, user_id, amount, asset_id, op, \
                                          balance_after, idem_key) \
         VALUES (77, {PAYER}, 40e8, 3, 5, 60e8, 'return/{}'); \
         UPDATE balances_tb SET available = available - 40e8, version = version + 1 \
          WHERE user_id = {PAYER}",
        asked.id.ulid()
    ));
    assert_eq!(desk.funds(), (20, 40));
    desk.ends(&payment, asked.id, true);
    assert_eq!(desk.funds(), (60, 0));
    desk.is_whole();
    let id = ReturnId::of(payment.id, ReturnKind::Taken, "dp_1");
    session.sql(&format!(
        "INSERT INTO external_operations (order_number, user_id, amount, asset_id, op, \
                                          balance_after, idem_key) \
         VALUES (78, {PAYER}, 50e8, 3, 5, 10e8, 'return/{}'); \
         UPDATE balances_tb SET available = available - 50e8, version = version + 1 \
          WHERE user_id = {PAYER}",
        id.ulid()
    ));
    let owed = desk.take(&payment, "dp_1", 60).receivable.expect("10 were not there then");
    assert_eq!((desk.funds(), owed.open()), ((10, 0), 10 * COIN));
    desk.is_whole();
    // A refund that was refused behind a taking, which its channel tells again behind it.
    desk.set_status(PAYER, AccountStatus::Active);
    let payment = desk.credited("4200002");
    let refused = desk.refund(&payment, None, "b").expect("set apart").row;
    session.sql(&format!(
        "INSERT INTO external_operations (order_number, user_id, amount, asset_id, op, \
                                          balance_after, idem_key) \
         VALUES (79, {PAYER}, 10e8, 3, 5, 100e8, 'return/{}/taken'); \
         UPDATE balances_tb SET available = available - 10e8, version = version + 1 \
          WHERE user_id = {PAYER}",
        refused.id.ulid()
    ));
    desk.ends(&payment, refused.id, false);
    assert_eq!(desk.funds(), (100, 0));
    desk.is_whole();
    desk.take(&payment, "dp_2", 10);
    assert_eq!((desk.funds(), desk.account("loss").as_str()), ((100, 0), "0"));
    desk.is_whole();
    desk.stopped();
}

/// Goal: behind a restore a refund that the log has is found again by its number, and nothing is
/// debited; one that the log does not have has left the channel and not its user, and is taken.
#[test]
fn rch_037_a_lost_refund_is_found_again() {
    let desk = Desk::new().behind_a_restore(false);
    let payment = desk.credited("4200001");
    let id = ReturnId::of(payment.id, ReturnKind::Refund, "a");
    desk.site.sql(&format!(
        "INSERT INTO external_operations (order_number, user_id, amount, asset_id, op, \
                                          balance_after, idem_key) \
         VALUES (77, {PAYER}, 40e8, 3, 5, 60e8, 'return/{}'); \
         UPDATE balances_tb SET available = available - 40e8, version = version + 1 \
          WHERE user_id = {PAYER}",
        id.ulid()
    ));
    let other = desk.take(&payment, &id.to_string(), 41);
    assert_eq!((other.told, other.row), (PaymentTold::Conflict, None));
    for _ in 0..2 {
        let row = desk.take(&payment, &id.to_string(), 40).row.expect("found again");
        assert_eq!((row.id, row.kind, row.state), (id, ReturnKind::Refund, ReturnState::Done));
        assert_eq!(desk.funds(), (60, 0));
        desk.is_whole();
    }
    let again = desk.refund(&payment, Some(40), "a").expect("a repeat");
    assert_eq!((again.row.id, again.replayed), (id, true));
    let lost = ReturnId::of(payment.id, ReturnKind::Refund, "b");
    let row = desk.take(&payment, &lost.to_string(), 20).row.expect("taken");
    assert_eq!((row.kind, row.state), (ReturnKind::Taken, ReturnState::Done));
    assert_eq!(desk.funds(), (40, 0));
    let again = desk.refund(&payment, Some(20), "b").expect("a repeat");
    assert_eq!((again.row, again.replayed), (row, true), "it is not debited again");
    assert_eq!(desk.not_refunded(&payment, Some(21), "b").0, Code::IdemKeyConflict);
    assert_eq!(desk.funds(), (40, 0));
    desk.is_whole();
    desk.stopped();
}

/// Goal: each broken law of returns and receivables is named. Method: each is broken by SQL behind
/// the guards.
#[test]
fn rch_038_returns_that_contradict_their_movements_are_named() {
    let desk = Desk::new();
    let payment = desk.credited("4200001");
    let done = desk.refund(&payment, Some(10), "a").expect("set apart").row;
    desk.ends(&payment, done.id, true);
    desk.refund(&payment, Some(20), "b").expect("set apart");
    desk.withdraw(30);
    desk.take(&payment, "dp_1", 100);
    let found = "SELECT subject FROM audit_recharges('epoch', 'infinity') \
                 UNION ALL SELECT subject FROM audit_recharge_accounts() ORDER BY 1";
    assert_eq!(desk.site.sql(found), Vec::<Vec<String>>::new(), "whole");
    let breaks = |change: &str, subject: &str| {
        let session = desk.site.session();
        session.sql("BEGIN; SET LOCAL session_replication_role = replica");
        session.sql(change);
        let rows = session.sql(found);
        assert!(rows.iter().any(|row| row[0].starts_with(subject)), "{change}: {rows:?}");
        session.sql("ROLLBACK");
    };
    breaks("DELETE FROM external_operations WHERE idem_key LIKE 'return/%'", "return/");
    breaks("DELETE FROM recharge_movements WHERE kind = 5", "return/");
    breaks("UPDATE recharge_movements SET amount = 1 WHERE kind = 6", "return/");
    breaks("UPDATE recharge_movements SET credit = 'user/7' WHERE kind = 1", "payment ");
    breaks("UPDATE recharge_movements SET debit = 'user/7' WHERE kind = 6", "return/");
    breaks("DELETE FROM recharge_movements WHERE kind = 7", "receivable ");
    breaks("DELETE FROM recharge_movements WHERE kind = 7", "channel wechat");
    breaks("UPDATE recharge_returns SET state = 40 WHERE state = 10", "return/");
    breaks("UPDATE recharge_returns SET state = -10 WHERE state = 10", "return:");
    breaks("UPDATE funding_holds SET state = -20 WHERE state = 10", "return/");
    breaks("UPDATE funding_holds SET amount = 1 WHERE state = 10", "return/");
    breaks("UPDATE recharge_returns SET minor_units = 1 WHERE kind = 2", "return/");
    breaks("UPDATE recharge_returns SET state = -10 WHERE kind = 2", "channel wechat");
    breaks("DELETE FROM receivables_tb", "payment ");
    breaks("UPDATE receivables_tb SET recovered = 1", "receivable ");
    breaks("UPDATE receivables_tb SET written_off = 1", "channel wechat");
    let session = desk.site.session();
    for change in [
        "UPDATE receivables_tb SET acts = acts || ROW(now(), 1, 1, 'a', 'b')::receivable_act, \
                                   recovered = 1",
        "UPDATE receivables_tb SET payment_id = gen_random_uuid(), version = version + 1",
        "UPDATE recharge_returns SET code = 1, version = version + 1 WHERE state = 10",
        "DELETE FROM receivables_tb",
    ] {
        assert_eq!(session.sql_refused(change), "UB003", "{change}");
    }
    desk.stopped();
}
