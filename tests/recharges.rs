//! Recharges without a listener: orders and verified payments through the handle, in the flights of
//! a real PostgreSQL and the log of a running UBSCore.

use std::sync::Arc;
use std::time::Duration;

use domain::account::{AccountStatus, UserId};
use domain::amount::Amount;
use domain::asset::AssetId;
use domain::code::Code;
use engine::Engine;
use futures_util::future::join_all;
use jiff::Timestamp;
use ubscore::adapters::funding::Funding;
use ubscore::adapters::spot::Spot;
use ubscore::clock::SystemClock;
use ubscore::coordinator::Coordinator;
use ubscore::coordinator::recharges::{
    PaymentAnswer, RechargeDraft, RechargeMade, RechargeRules, Recharges,
};
use ubscore::entropy::SystemEntropy;
use ubscore::postgres::database::Database;
use ubscore::postgres::flight::Told;
use ubscore::postgres::flight_store::FlightStore;
use ubscore::postgres::pool;
use ubscore::postgres::reads::Reads;
use ubscore::postgres::reads::own_recharges::OwnRecharges;
use ubscore::recharge::RechargeId;
use ubscore::recharge::act::HeldEnd;
use ubscore::recharge::decide::{PaymentDecision, PaymentTold};
use ubscore::recharge::facts::{Facts, Returned};
use ubscore::recharge::order::{ClosingWish, Recharge, RechargeState, RechargeTarget};
use ubscore::recharge::payment::{Disposition, HeldCause, RechargePayment, SeenBy};
use ubscore::recharge::proof::ProofKeys;
use ubscore::recharge::terms::{ChannelTerms, PaymentRule, RechargePolicy};
use ubscore::task::Tasks;

use crate::harness::{LIMITS, Site, block_on, catalog};
use crate::layers;

/// Payments beside the usual ones: unusual, second, late.
mod beside;
/// Bonuses that a restore has lost.
mod bonuses;
/// The rules that PostgreSQL shares.
mod guarded;
/// Orders that a restore has lost, and the users that may have their money.
mod lost_orders;
/// Repeats, and many at once.
mod repeated;
/// Rows that a restore has lost.
mod restored;
/// Refunds, money that channels take and give back, receivables.
mod returns;
/// Events, and the reads of owners.
mod told;

const USER: u64 = 1001;
const OTHER: u64 = 1002;
/// 100.00 in the channel's minor units.
const FEN: i64 = 10_000;
const COIN: u64 = 100_000_000;

type Store = FlightStore<Database>;

/// The handle over a running coordinator with one worker. Its user has 10 USDT in Funding.
struct Desk {
    site: Site,
    recharges: Recharges<Spot, Funding<Store>>,
    coordinator: Arc<Coordinator<Spot, Funding<Store>>>,
    terms: Arc<ChannelTerms>,
    tasks: Tasks,
    engine: Engine,
}

impl Desk {
    fn new() -> Desk {
        Desk::with(RechargePolicy::default())
    }

    fn with(policy: RechargePolicy) -> Desk {
        Desk::ruled(RechargeRules {
            policy,
            open_max: 5,
            life: Duration::from_secs(1_500),
            freeze_on_short: true,
        })
    }

    fn with_open_max(open_max: usize) -> Desk {
        let (policy, life) = (RechargePolicy::default(), Duration::from_secs(1_500));
        Desk::ruled(RechargeRules { policy, open_max, life, freeze_on_short: true })
    }

    fn ruled(rules: RechargeRules) -> Desk {
        Desk::heard(rules, Arc::new(()))
    }

    /// `told` gets its flights.
    fn heard(rules: RechargeRules, told: Arc<dyn Told>) -> Desk {
        let site = Site::new();
        let (coordinator, tasks, engine) = layers::coordinator_heard(&site, told);
        let coordinator = Arc::new(coordinator);
        let (name, currency) = ("wechat".to_owned(), "CNY".to_owned());
        let terms = ChannelTerms { name, asset: AssetId(3), currency, minor_digits: 2 };
        let recharges = Recharges::new(
            Arc::clone(&coordinator),
            Reads::new(pool(&site.target(), &LIMITS, 4), catalog())
                .looking_by_keys(&site.target(), &LIMITS),
            ProofKeys::new("live", b"a secret", None),
            rules,
            Arc::new(SystemClock::new()),
            Box::new(SystemEntropy::default()),
        );
        Desk { site, recharges, coordinator, terms: Arc::new(terms), tasks, engine }
    }

    fn draft(&self, user: u64, idem_key: &str) -> RechargeDraft {
        RechargeDraft {
            user: UserId::new(user).expect("an id"),
            idem_key: idem_key.to_owned(),
            terms: Arc::clone(&self.terms),
            amount: Amount::new(100 * COIN).expect("not zero"),
            target: RechargeTarget::Funding,
            promotion: None,
        }
    }

    fn made(&self, draft: RechargeDraft) -> RechargeMade {
        block_on(self.recharges.create(draft)).expect("made")
    }

    /// An order of the user that is INIT.
    fn order(&self, idem_key: &str) -> Recharge {
        self.made(self.draft(USER, idem_key)).order
    }

    /// An order of the user that is PAYING.
    fn paying(&self, idem_key: &str) -> Recharge {
        let order = self.order(idem_key);
        let noted = self.recharges.noted(&order, Some("prepay".to_owned()), None, None);
        let noted = block_on(noted).expect("noted");
        assert_eq!(noted.state, RechargeState::Paying);
        noted
    }

    fn facts(&self, order: &Recharge, trade_no: &str) -> Facts {
        Facts {
            merchant_no: order.id.to_string(),
            trade_no: trade_no.to_owned(),
            minor_units: FEN,
            total_minor_units: FEN,
            currency: "CNY".to_owned(),
            discount: false,
            returned: Returned::None,
            paid_at: Timestamp::UNIX_EPOCH,
            proof: Some(self.recharges.proofs().sign(order)),
        }
    }

    fn told(&self, facts: &Facts) -> PaymentAnswer {
        let told = self.recharges.told(&self.terms, facts, SeenBy::Callback);
        block_on(told).expect("an answer")
    }

    fn held(&self, facts: &Facts) -> (RechargePayment, HeldCause) {
        let payment = self.told(facts).payment.expect("recorded");
        assert_eq!(payment.disposition, Disposition::Held);
        let cause = payment.cause.expect("a cause");
        (payment, cause)
    }

    fn ended(&self, payment: &RechargePayment, end: HeldEnd) -> RechargePayment {
        let ended = block_on(self.recharges.ended(payment, end, None, "an operator"));
        ended.expect("ended").payment.expect("recorded")
    }

    /// An operator cannot credit a payment, for this reason.
    fn not_credited(&self, payment: &RechargePayment, why: &str) {
        let credit = self.recharges.ended(payment, HeldEnd::Credit, None, "an operator");
        let refused = block_on(credit).expect_err("refused");
        assert_eq!(refused.code, Code::InvalidRequest);
        let detail = refused.detail.expect("why");
        assert!(detail.contains(why), "{detail}");
    }

    fn value(&self, statement: &str) -> String {
        self.site.sql_value(statement)
    }

    /// The state of an order, the number of its payments, and of those that are held.
    fn stands(&self, order: &Recharge) -> (RechargeState, u32, u32) {
        let reads = Reads::new(pool(&self.site.target(), &LIMITS, 1), catalog());
        let order = block_on(reads.recharge(order.id)).expect("read").expect("an order");
        (order.state, order.payments, order.held)
    }

    /// Available USDT of a user in Funding, smallest units.
    fn available(&self, user: u64) -> String {
        let sum = "SELECT COALESCE(sum(available), 0) FROM balances_tb WHERE user_id = ";
        self.value(&format!("{sum}{user}"))
    }

    /// Credits, as the tables have them: external operations, movements to users, payments.
    fn credits(&self) -> [String; 3] {
        [
            "SELECT count(*) FROM external_operations",
            "SELECT count(*) FROM recharge_movements WHERE credit LIKE 'user/%'",
            "SELECT count(*) FROM channel_payments WHERE disposition = 40",
        ]
        .map(|statement| self.value(statement))
    }

    /// The sum of an account of the channel, smallest units: all that came in less the rest.
    fn account(&self, name: &str) -> String {
        self.value(&format!(
            "SELECT COALESCE(sum(CASE WHEN credit = 'wechat/{name}' THEN amount \
                                      WHEN debit = 'wechat/{name}' THEN -amount END), 0) \
               FROM recharge_movements"
        ))
    }

    /// The flights so far: a repeat that is only read makes none.
    fn flights(&self) -> String {
        self.value("SELECT max(flight) FROM journal_tb WHERE shard = 0")
    }

    fn set_status(&self, user: u64, status: AccountStatus) {
        let user = UserId::new(user).expect("an id");
        let (actor, reason) = ("a test".to_owned(), "a test".to_owned());
        let set = self.coordinator.set_funding_status(user, status, actor, reason);
        block_on(set).expect("set");
    }

    /// Stops everything. Returns the site.
    fn stopped(self) -> Site {
        let Desk { site, recharges, coordinator, tasks, engine, .. } = self;
        drop((recharges, coordinator));
        block_on(tasks.join());
        engine.stop();
        site
    }
}

/// Goal: a payment is credited in the one commit that makes its order PAID, with everything that
/// belongs to it. Method: create, note, pay; then each row, the journal and the log are read.
#[test]
fn rch_001_a_payment_is_credited_in_the_commit_of_paid() {
    let desk = Desk::new();
    let order = desk.paying("order-1");
    let answer = desk.told(&desk.facts(&order, "4200001"));
    assert_eq!(answer.decision, PaymentDecision::Credit { pays: true });
    assert_eq!(answer.told, PaymentTold::Success);
    assert_eq!(desk.stands(&order), (RechargeState::Paid, 1, 0));
    assert_eq!(desk.available(USER), (110 * COIN).to_string());
    assert_eq!(desk.credits(), ["1", "1", "1"]);
    let key = format!("recharge/{}/credit", order.id.ulid());
    let row = "SELECT idem_key, op, user_id, asset_id, amount, balance_after \
                 FROM external_operations";
    let (amount, after) = ((100 * COIN).to_string(), (110 * COIN).to_string());
    let want = [key.as_str(), "4", "1001", "3", &amount, &after];
    assert_eq!(desk.site.sql(row), [want.map(str::to_owned)]);
    let movement = "SELECT movement_key, debit, credit, amount FROM recharge_movements";
    let want = [key.as_str(), "wechat/clearing", "user/1001", &amount];
    assert_eq!(desk.site.sql(movement), [want.map(str::to_owned)]);
    let states = "SELECT array_agg(s.state ORDER BY s.at, s.state)::text \
                    FROM recharges_tb CROSS JOIN unnest(history) AS s";
    assert_eq!(desk.value(states), "{0,10,40}");
    let one_time = "SELECT count(DISTINCT at) FROM (\
        SELECT at FROM external_operations UNION ALL SELECT at FROM recharge_movements \
        UNION ALL SELECT at FROM channel_payments UNION ALL SELECT paid_at FROM recharges_tb) t";
    assert_eq!(desk.value(one_time), "1", "one commit has one time");
    let paid = "SELECT count(*) FROM journal_tb WHERE get_byte(entries, 0) = 3 \
                  AND at = (SELECT paid_at FROM recharges_tb)";
    assert_eq!(desk.value(paid), "1", "one entry of the journal");
    let site = desk.stopped();
    let in_the_log = recorded(&site);
    assert_eq!(in_the_log, [key], "the log has the credit");
}

/// The keys of the external operations in the log of a stopped UBSCore.
fn recorded(site: &Site) -> Vec<String> {
    let directory = wal::Directory::at(site.log_dir());
    let mut reader = wal::Reader::open(directory, 0).expect("a log");
    let mut keys = Vec::new();
    while let Some(record) = reader.next().expect("a record") {
        let entry = engine::entry::Entry::decode(record.kind, record.payload).expect("an entry");
        if let engine::entry::Entry::External(external) = entry {
            keys.push(external.idem_key.as_str().to_owned());
        }
    }
    keys
}

/// Goal: an order is made once for its user's key, and never more than the bound.
#[test]
fn rch_005_a_key_makes_one_order_of_its_user() {
    let desk = Desk::new();
    let first = desk.made(desk.draft(USER, "a"));
    assert!(!first.replayed);
    assert_eq!((first.order.state, first.order.attempts), (RechargeState::Init, 1));
    let again = desk.made(desk.draft(USER, "a"));
    assert!(again.replayed);
    assert_eq!(again.order, first.order);
    let other = desk.made(desk.draft(OTHER, "a"));
    assert!(!other.replayed && other.order.id != first.order.id);
    let changed = RechargeDraft {
        amount: Amount::new(50 * COIN).expect("not zero"),
        target: RechargeTarget::Spot,
        ..desk.draft(USER, "a")
    };
    let refused = block_on(desk.recharges.create(changed)).expect_err("another body");
    assert_eq!(refused.code, Code::DuplicateRequest);
    let detail = refused.detail.expect("the fields");
    assert!(detail.contains("amount, to") && !detail.contains("channel"), "{detail}");
    let odd = RechargeDraft { amount: Amount::new(1).expect("one"), ..desk.draft(USER, "odd") };
    let refused = block_on(desk.recharges.create(odd)).expect_err("no multiple of a fen");
    assert_eq!(refused.code, Code::PrecisionOverflow);
    // At once: the bound counts those of one flight too.
    let drafts = (0..10).map(|number| desk.draft(USER, &format!("key-{number}")));
    let made = block_on(join_all(drafts.map(|draft| desk.recharges.create(draft))));
    let codes: Vec<_> = made.iter().filter_map(|made| made.as_ref().err()).collect();
    assert_eq!(codes.len(), 6, "{codes:?}");
    assert!(codes.iter().all(|rejection| rejection.code == Code::TooManyOpen), "{codes:?}");
    assert_eq!(desk.value("SELECT count(*) FROM recharges_tb WHERE user_id = 1001"), "5");
    desk.stopped();
}

/// Goal: a payment that overtakes our note of PAYING is credited, and the note changes nothing.
#[test]
fn rch_006_a_payment_before_our_note_pays_the_order() {
    let desk = Desk::new();
    let order = desk.order("order-1");
    let answer = desk.told(&desk.facts(&order, "4200001"));
    assert_eq!(answer.decision, PaymentDecision::Credit { pays: true });
    let noted = block_on(desk.recharges.noted(&order, Some("late".to_owned()), None, None));
    assert_eq!(noted.expect("success and nothing").state, RechargeState::Paid);
    let row = "SELECT state, reference IS NULL, (SELECT array_agg(s.state)::text \
                 FROM unnest(history) AS s) FROM recharges_tb";
    assert_eq!(desk.site.sql(row), [["40", "t", "{0,10,40}"]]);
    desk.stopped();
}

/// Goal: the note of a channel's answer does not undo a wish, and no number of the channel is lost.
#[test]
fn a_note_keeps_each_number_and_leaves_a_wish_alone() {
    let desk = Desk::new();
    let order = desk.order("order-1");
    let wished = desk.recharges.wished(&order, ClosingWish::Cancelled, "user/1001");
    let wished = block_on(wished).expect("wished");
    let note = |order: &Recharge, number: &str| {
        let (number, pay, later) = (number.to_owned(), "a code".to_owned(), Timestamp::MAX);
        let noted = desk.recharges.noted(order, Some(number), Some(pay), Some(later));
        block_on(noted).expect("noted")
    };
    let noted = note(&order, "a");
    assert_eq!((noted.state, noted.pay), (RechargeState::Init, None));
    assert_eq!((noted.reference.as_deref(), noted.next_at), (Some("a"), wished.next_at));
    let other = desk.paying("order-2");
    let further = note(&other, "b");
    assert_eq!((further.state, further.pay), (RechargeState::Paying, None));
    assert_eq!(further.reference, other.reference);
    note(&order, "a");
    let reasons = "SELECT array_agg(s.reason ORDER BY s.reason)::text FROM recharges_tb \
                   CROSS JOIN unnest(history) AS s WHERE s.reason LIKE 'reference %'";
    assert_eq!(desk.value(reasons), "{\"reference a\",\"reference b\"}");
    desk.stopped();
}
