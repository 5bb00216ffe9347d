//! The till in process, over a real PostgreSQL and a running UBSCore, with both adapters against
//! the simulator's process. No callback arrives unless a test delivers it. The till has a clock of
//! the test.

/// Money that goes on to Spot.
mod onward;
/// Orders from INIT to their ends.
mod orders;
/// Rows, channels and halts that must stop nothing else.
mod rows;
/// Payments that go back.
mod sent_back;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use arc_swap::ArcSwap;
use domain::account::UserId;
use domain::amount::Amount;
use domain::asset::{AssetId, Catalog};
use engine::Engine;
use hyper::HeaderMap;
use jiff::Timestamp;
use serde_json::{Value, json};
use ubscore::adapters::funding::Funding;
use ubscore::adapters::spot::Spot;
use ubscore::channels::open::{OpenChannel, OpenChannels};
use ubscore::channels::stripe::{Stripe, StripeSettings};
use ubscore::channels::{
    Acknowledgement, BillAsk, CallbackEnd, Channel, ChannelLimits, CreateAsk, OrderAsk, RefundAsk,
    Renewal,
};
use ubscore::clock::{Clock, Sleep, SystemClock};
use ubscore::config::secret::Secret;
use ubscore::coordinator::Coordinator;
use ubscore::coordinator::recharges::{PaymentAnswer, RechargeDraft, RechargeRules, Recharges};
use ubscore::entropy::SystemEntropy;
use ubscore::gate::Gate;
use ubscore::postgres::database::Database;
use ubscore::postgres::flight_store::FlightStore;
use ubscore::postgres::pool;
use ubscore::postgres::reads::Reads;
use ubscore::recharge::answers::{
    BillLine, Billed, Closing, Created, Queried, Refunded, Rejected, ReturnedSum,
};
use ubscore::recharge::facts::{Facts, Notice, Returned};
use ubscore::recharge::order::{ClosingWish, Recharge, RechargeState, RechargeTarget};
use ubscore::recharge::payment::SeenBy;
use ubscore::recharge::proof::ProofKeys;
use ubscore::recharge::terms::{ChannelTerms, RechargePolicy};
use ubscore::task::Tasks;
use ubscore::till::{self, Till, TillOptions, TillParts};

use crate::channels::simulated::{PATIENT, Simulator};
use crate::harness::{LIMITS, Site, block_on, catalog, eventually};
use crate::layers;

const USER: u64 = 1001;
const COIN: u64 = 100_000_000;
/// 100.00 in the minor units of both channels.
const PRICE: i64 = 10_000;
/// Both channels, by the names of their configuration.
const BOTH: [&str; 2] = ["wechat", "card"];
/// The life of an order, s.
const LIFE_S: u64 = 1_500;
/// Behind the end of payment of every channel that has one, s.
const FENCE_S: u64 = LIFE_S + 301;

type Store = FlightStore<Database>;

/// The machine's clock with a lead that a test sets. Pauses are those of the machine.
struct Ahead(SystemClock, AtomicU64);

impl Clock for Ahead {
    fn now_ns(&self) -> u64 {
        self.0.now_ns() + self.1.load(Ordering::SeqCst) * 1_000_000_000
    }

    fn monotonic_ns(&self) -> u64 {
        self.0.monotonic_ns()
    }

    fn sleep(&self, duration: Duration) -> Sleep {
        self.0.sleep(duration)
    }
}

/// An adapter with a list of its calls, each written down when it begins and when it ends. A call
/// may be held.
struct Listed {
    inner: Box<dyn Channel>,
    calls: Arc<Calls>,
}

#[derive(Default)]
struct Calls {
    begun: Mutex<Vec<(&'static str, String)>>,
    ended: AtomicU64,
    hangs: Mutex<bool>,
    /// New orders are refused.
    refuses: AtomicBool,
    released: Condvar,
}

impl Calls {
    fn of(&self, call: &str, order: &Recharge) -> usize {
        let no = order.id.to_string();
        let begun = self.begun.lock().expect("no panic");
        begun.iter().filter(|(name, about)| *name == call && *about == no).count()
    }

    fn hang(&self, hangs: bool) {
        *self.hangs.lock().expect("no panic") = hangs;
        self.released.notify_all();
    }

    fn is_idle(&self) -> bool {
        self.begun.lock().expect("no panic").len() as u64 == self.ended.load(Ordering::SeqCst)
    }
}

impl Listed {
    fn listed<R>(&self, call: &'static str, no: &str, work: impl FnOnce(&dyn Channel) -> R) -> R {
        self.calls.begun.lock().expect("no panic").push((call, no.to_owned()));
        let mut hangs = self.calls.hangs.lock().expect("no panic");
        while *hangs {
            hangs = self.calls.released.wait(hangs).expect("no panic");
        }
        drop(hangs);
        let end = work(&*self.inner);
        self.calls.ended.fetch_add(1, Ordering::SeqCst);
        end
    }
}

impl Channel for Listed {
    fn limits(&self) -> ChannelLimits {
        self.inner.limits()
    }
    fn create(&self, ask: &CreateAsk<'_>) -> Created {
        let refuses = self.calls.refuses.load(Ordering::SeqCst);
        self.listed("create", ask.merchant_no, |inner| match refuses {
            true => Created::Refused("PARAM_ERROR".to_owned()),
            false => inner.create(ask),
        })
    }
    fn callback(&self, h: &HeaderMap, b: &[u8], now: Timestamp) -> Result<Vec<Notice>, Rejected> {
        self.inner.callback(h, b, now)
    }
    fn query(&self, order: &OrderAsk<'_>) -> Queried {
        self.listed("query", order.merchant_no, |inner| inner.query(order))
    }
    fn close(&self, order: &OrderAsk<'_>) -> Closing {
        self.listed("close", order.merchant_no, |inner| inner.close(order))
    }
    fn refund(&self, ask: &RefundAsk<'_>) -> Refunded {
        self.listed("refund", ask.merchant_no, |inner| inner.refund(ask))
    }
    fn query_refund(&self, ask: &RefundAsk<'_>) -> Refunded {
        self.listed("query_refund", ask.merchant_no, |inner| inner.query_refund(ask))
    }
    fn returned(&self, ask: &RefundAsk<'_>) -> ReturnedSum {
        self.listed("returned", ask.merchant_no, |inner| inner.returned(ask))
    }
    fn bill(&self, ask: &BillAsk, lines: &mut dyn FnMut(BillLine)) -> Billed {
        self.inner.bill(ask, lines)
    }
    fn keys_end(&self) -> Option<Timestamp> {
        self.inner.keys_end()
    }

    fn renew(&self) -> Renewal {
        self.inner.renew()
    }
    fn acknowledge(&self, end: CallbackEnd) -> Acknowledgement {
        self.inner.acknowledge(end)
    }
}

/// The adapter of cards, with the till's clock: a create that failed is looked for a minute later.
fn card(simulator: &Simulator, clock: &Arc<Ahead>) -> Stripe {
    let settings = StripeSettings {
        api_key: Secret::new(simulator.file("card_api_key")),
        webhook_secrets: vec![Secret::new(simulator.file("card_webhook_secret"))],
        account: None,
        livemode: false,
    };
    let clock = Arc::clone(clock) as Arc<dyn Clock>;
    Stripe::new(&settings, simulator.wire(PATIENT), clock).expect("secrets")
}

/// A till over a running coordinator with one worker. Its user has 10 USDT in Funding.
struct Shop {
    site: Site,
    simulator: Simulator,
    clock: Arc<Ahead>,
    calls: [Arc<Calls>; 2],
    channels: Arc<OpenChannels>,
    catalog: Arc<ArcSwap<Catalog>>,
    reads: Reads,
    gate: Arc<Gate>,
    recharges: Arc<Recharges<Spot, Funding<Store>>>,
    coordinator: Arc<Coordinator<Spot, Funding<Store>>>,
    till: Till,
    tasks: Tasks,
    engine: Engine,
}

impl Shop {
    fn new() -> Shop {
        Shop::with(RechargePolicy::default())
    }

    fn with(policy: RechargePolicy) -> Shop {
        let site = Site::new();
        let simulator = Simulator::start();
        // Nothing listens to callbacks.
        simulator.faults(&json!({"callbacks": "drop"}));
        let (coordinator, tasks, engine) = layers::coordinator(&site);
        let coordinator = Arc::new(coordinator);
        let catalog = catalog();
        let reads = Reads::new(pool(&site.target(), &LIMITS, 8), Arc::clone(&catalog));
        let recharges = Arc::new(Recharges::new(
            Arc::clone(&coordinator),
            reads.clone(),
            ProofKeys::new("live", b"a secret", None),
            RechargeRules {
                policy,
                open_max: 50,
                life: Duration::from_secs(LIFE_S),
                freeze_on_short: true,
            },
            Arc::new(SystemClock::new()),
            Box::new(SystemEntropy::default()),
        ));
        let calls = [Arc::<Calls>::default(), Arc::default()];
        let clock = Arc::new(Ahead(SystemClock::new(), AtomicU64::new(0)));
        let inner: [Box<dyn Channel>; 2] =
            [Box::new(simulator.wechat(PATIENT)), Box::new(card(&simulator, &clock))];
        let open = BOTH.into_iter().zip(["CNY", "EUR"]).zip(inner).zip(&calls);
        let open = open.map(|(((name, currency), inner), calls)| OpenChannel {
            terms: Arc::new(ChannelTerms {
                name: name.to_owned(),
                asset: AssetId(3),
                currency: currency.to_owned(),
                minor_digits: 2,
            }),
            amount_min: Amount::new(1).expect("not zero"),
            amount_max: Amount::new(u64::MAX).expect("not zero"),
            callback_url: "http://127.0.0.1:9/callbacks/v1/it".to_owned(),
            channel: Box::new(Listed { inner, calls: Arc::clone(calls) }),
            paused: false.into(),
        });
        let channels = Arc::new(OpenChannels::new(open.collect()));
        let gate = Arc::new(Gate::new(false));
        let (till, heard) = Till::new();
        let mut shop = Shop {
            site,
            simulator,
            clock,
            calls,
            channels,
            catalog,
            reads,
            gate,
            recharges,
            coordinator,
            till,
            tasks,
            engine,
        };
        let parts = shop.parts();
        let tasks = &mut shop.tasks;
        block_on(async { till::start(parts, heard, tasks) });
        shop
    }

    /// The parts of a till.
    fn parts(&self) -> TillParts<Spot, Funding<Store>> {
        TillParts {
            recharges: Arc::clone(&self.recharges),
            channels: Arc::clone(&self.channels),
            coordinator: Arc::clone(&self.coordinator),
            reads: self.reads.clone(),
            gate: Arc::clone(&self.gate),
            clock: Arc::clone(&self.clock) as Arc<dyn Clock>,
            entropy: Box::new(SystemEntropy::default()),
            silent: Arc::default(),
            options: TillOptions {
                query_after: Duration::from_secs(15),
                query_cap: Duration::from_secs(300),
                follow_for: Duration::from_secs(86_400),
                parallel: 8,
                calls_per_second_max: 200,
            },
        }
    }

    fn terms(&self, channel: &str) -> &Arc<ChannelTerms> {
        &self.channels.get(channel).expect("open").terms
    }

    fn calls(&self, channel: &str) -> &Calls {
        &self.calls[usize::from(channel == BOTH[1])]
    }

    /// A new order that the till looks at.
    fn made_for(&self, channel: &str, idem_key: &str, target: RechargeTarget) -> Recharge {
        let draft = RechargeDraft {
            user: UserId::new(USER).expect("an id"),
            idem_key: idem_key.to_owned(),
            terms: Arc::clone(self.terms(channel)),
            amount: Amount::new(100 * COIN).expect("not zero"),
            target,
            promotion: None,
        };
        let made = block_on(self.recharges.create(draft)).expect("made");
        self.till.look(made.order.id);
        made.order
    }

    fn made(&self, channel: &str, idem_key: &str) -> Recharge {
        self.made_for(channel, idem_key, RechargeTarget::Funding)
    }

    /// A new order that is PAYING.
    fn paying(&self, channel: &str, idem_key: &str) -> Recharge {
        let order = self.made(channel, idem_key);
        self.until("PAYING", &order, |order| order.state == RechargeState::Paying)
    }

    fn stands(&self, order: &Recharge) -> Recharge {
        block_on(self.reads.recharge(order.id)).expect("read").expect("an order")
    }

    fn until(&self, what: &str, order: &Recharge, is: impl Fn(&Recharge) -> bool) -> Recharge {
        eventually(what, || Some(self.stands(order)).filter(&is))
    }

    fn is(&self, order: &Recharge, state: RechargeState) -> Recharge {
        self.until(state.name(), order, |order| order.state == state)
    }

    /// Sets the lead of the till's clock, and has an order looked at.
    fn later(&self, seconds: u64, order: &Recharge) {
        self.clock.1.store(seconds, Ordering::SeqCst);
        self.till.look(order.id);
    }

    fn wished(&self, order: &Recharge, wish: ClosingWish) {
        block_on(self.recharges.wished(order, wish, "a test")).expect("wished");
        self.till.look(order.id);
    }

    /// A person pays at the channel. Returns the number of the payment.
    fn pays(&self, order: &Recharge, how: &Value) -> String {
        let paid = self.simulator.pay(&order.id.to_string(), how);
        paid["trade_no"].as_str().expect("text").to_owned()
    }

    /// The payments and intents of an order, in the simulator's books.
    fn books(&self, order: &Recharge) -> Vec<Value> {
        let orders = self.simulator.done("GET", &format!("/sim/orders/{}", order.id), &json!({}));
        orders.as_array().expect("a list").clone()
    }

    fn facts(&self, order: &Recharge, trade_no: &str) -> Facts {
        Facts {
            merchant_no: order.id.to_string(),
            trade_no: trade_no.to_owned(),
            minor_units: PRICE,
            total_minor_units: PRICE,
            currency: self.terms(&order.channel).currency.clone(),
            discount: false,
            returned: Returned::None,
            paid_at: Timestamp::UNIX_EPOCH,
            proof: Some(self.recharges.proofs().sign(order)),
        }
    }

    /// A verified callback about a payment.
    fn told(&self, order: &Recharge, trade_no: &str) -> PaymentAnswer {
        let facts = self.facts(order, trade_no);
        let told = self.recharges.told(self.terms(&order.channel), &facts, SeenBy::Callback);
        block_on(told).expect("an answer")
    }

    fn value(&self, statement: &str) -> String {
        self.site.sql_value(statement)
    }

    /// Available USDT of the user in Funding, smallest units.
    fn available(&self) -> u64 {
        let sum = "SELECT sum(available) FROM balances_tb WHERE user_id = 1001";
        self.value(sum).parse().expect("a number")
    }

    fn stop(self) {
        let Shop { recharges, coordinator, till, tasks, engine, .. } = self;
        drop((recharges, coordinator, till));
        block_on(tasks.join());
        engine.stop();
    }
}
