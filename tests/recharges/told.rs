use domain::transfer::Direction;
use ubscore::coordinator::Request;
use ubscore::coordinator::worker::shard_of;
use ubscore::events::webhooks::ENDPOINT;
use ubscore::http::recharge_event::RechargeEventBody;
use ubscore::http::transaction_event::posted;
use ubscore::postgres::admin::Admin;
use ubscore::postgres::events::{EventCursor, Missed, UserEvent};
use ubscore::postgres::flight::recharged::RechargeChange;
use ubscore::postgres::webhooks::{self, Deliveries, LetterSubject, Tried};
use ubscore::validation::Checked;

use super::*;

impl Desk {
    fn reads(&self) -> Reads {
        Reads::new(pool(&self.site.target(), &LIMITS, 2), catalog())
    }

    /// Moves so much USDT of the user from Funding to Spot.
    fn transfer(&self, units: u64) {
        let asset = catalog().load().by_id(AssetId(3)).expect("USDT").clone();
        let amount = Amount::new(units).expect("not zero");
        let request = Request {
            user: UserId::new(USER).expect("an id"),
            cid: None,
            checked: Checked { direction: Direction::FundingToSpot, asset, amount },
            fingerprint: format!("FUNDING:SPOT:USDT:{units}"),
            reservation: None,
            pauses: Arc::default(),
        };
        let submitted = block_on(self.coordinator.submit(request)).expect("in good form");
        let mut accepted = block_on(submitted.reply).expect("an answer").expect("accepted");
        block_on(accepted.progress.wait_for(|transfer| transfer.state.is_terminal()))
            .expect("an end");
    }

    /// Every event of the user after `last`, read in pages of `rows`.
    fn missed(&self, last: EventCursor, rows: usize) -> Vec<UserEvent> {
        let reads = self.reads();
        let user = UserId::new(USER).expect("an id");
        let mut missed = Missed::after(user, shard_of(user, 1), last);
        let mut events = Vec::new();
        while let Some(page) = block_on(reads.missed(&mut missed, rows)).expect("read") {
            assert!(page.len() <= rows);
            events.extend(page);
        }
        events
    }
}

/// The changes of these events of recharges.
fn changes(events: &[UserEvent]) -> Vec<RechargeChange> {
    let change = |event: &UserEvent| match event {
        UserEvent::Recharge(event) => Some(event.change),
        UserEvent::Transfer(_) | UserEvent::Transaction(_) => None,
    };
    events.iter().filter_map(change).collect()
}

/// Goal: each change that a user sees is one event with an id of the one sequence, and a stream
/// that was away reads all of them, with those of transfers, in the order of their ids. Method:
/// recharges and transfers in turn; the journal counts as many as the stream reads.
#[test]
fn rch_001_each_change_is_one_event_in_the_order_of_ids() {
    use RechargeChange::{Closed, Paid, Paying, PaymentCredited, PaymentHeld};
    let desk = Desk::new();
    let order = desk.paying("order-1");
    desk.transfer(COIN);
    desk.told(&desk.facts(&order, "4200001"));
    desk.transfer(COIN);
    // A repeat, and a note behind the end, are no events.
    desk.told(&desk.facts(&order, "4200001"));
    block_on(desk.recharges.noted(&order, None, None, None)).expect("nothing");
    let other = desk.paying("order-2");
    let odd = Facts { minor_units: FEN + 1, total_minor_units: FEN + 1, ..desk.facts(&other, "2") };
    let (payment, _) = desk.held(&odd);
    desk.ended(&payment, HeldEnd::Dismiss);
    let late = desk.told(&desk.facts(&other, "3"));
    assert_eq!(late.decision, PaymentDecision::Credit { pays: false });

    let all = desk.missed(EventCursor::default(), 2);
    let ids: Vec<i64> = all.iter().map(UserEvent::id).collect();
    assert!(ids.is_sorted_by(|one, next| one < next), "{ids:?}");
    let want = [Paying, Paid, Paying, PaymentHeld, Closed, PaymentCredited];
    assert_eq!(changes(&all), want);
    let kind = |event: &UserEvent| match event {
        UserEvent::Transfer(_) => 't',
        UserEvent::Recharge(_) => 'r',
        UserEvent::Transaction(_) => 'x',
    };
    let kinds: String = all.iter().map(kind).collect();
    let kinds = kinds.replace("ttt", "t").replace("tt", "t");
    assert_eq!(kinds, "rtrtrrrr", "each between the others");
    // From each place on, nothing is skipped and nothing comes twice.
    for (place, id) in ids.iter().enumerate() {
        let last = EventCursor { transfer: *id, transaction: 0 };
        let rest: Vec<i64> = desk.missed(last, 3).iter().map(UserEvent::id).collect();
        assert_eq!(rest, ids[place + 1..], "after {id}");
    }
    let counted = "SELECT sum(event_count) FROM journal_tb";
    assert_eq!(desk.value(counted), all.len().to_string());
    let within = "SELECT count(*) FROM recharge_events e JOIN journal_tb j \
                    ON e.event_id >= j.event_first AND e.event_id < j.event_first + j.event_count \
                 WHERE e.at = j.at";
    assert_eq!(desk.value(within), want.len().to_string());
    desk.stopped();
}

/// Goal: an event is that of its commit, also when it is read long after it.
#[test]
fn an_event_of_a_recharge_stays_as_it_was() {
    let desk = Desk::new();
    let order = desk.paying("order-1");
    let odd = Facts { minor_units: FEN + 1, total_minor_units: FEN + 1, ..desk.facts(&order, "1") };
    let (payment, _) = desk.held(&odd);
    let text = |desk: &Desk| -> Vec<String> {
        let events = desk.missed(EventCursor::default(), 100);
        let body = |event: &UserEvent| match event {
            UserEvent::Recharge(event) => RechargeEventBody::json(event, &catalog().load()),
            other => panic!("{other:?}"),
        };
        events.iter().map(body).collect()
    };
    let before = text(&desk);
    assert!(before[1].contains(r#""type":"recharge.payment_held""#), "{}", before[1]);
    assert!(before[1].contains(r#""cause":"AMOUNT""#), "{}", before[1]);
    assert!(before[1].contains(r#""state":"PAYING","final":false"#), "{}", before[1]);
    desk.ended(&payment, HeldEnd::Dismiss);
    let after = text(&desk);
    assert_eq!(after[..2], before);
    assert!(after[2].contains(r#""code":"HELD_ENDED""#), "{}", after[2]);
    assert!(after.iter().all(|body| !body.contains("weixin://")), "no event lets anyone pay");
    let changed = desk.site.session().try_sql("UPDATE recharge_events SET change = 3");
    assert!(changed.is_err(), "rows of events stand");
    desk.stopped();
}

/// Goal: an endpoint gets each event once and in order, a dead letter names its recharge, and it
/// can be sent again.
#[test]
fn an_endpoint_gets_the_events_of_recharges() {
    let desk = Desk::new();
    let incarnation: u64 =
        desk.value("SELECT incarnation FROM engine_state").parse().expect("a number");
    let target = desk.site.target();
    block_on(webhooks::begin(&target, &LIMITS, incarnation, Some(ENDPOINT))).expect("begun");
    let order = desk.paying("order-1");
    desk.transfer(COIN);
    desk.told(&desk.facts(&order, "4200001"));
    let deliveries =
        Deliveries::connect(&target, &LIMITS, incarnation, ENDPOINT.to_owned(), catalog());
    let deliveries = block_on(deliveries).expect("connected");
    let collected = block_on(deliveries.collect()).expect("collected");
    assert_eq!(collected.found, collected.events as u64);
    let of_recharges = "SELECT array_agg(states ORDER BY event_id)::text FROM webhook_deliveries \
                         WHERE kind = 3";
    assert_eq!(desk.value(of_recharges), "{{1},{2}}");
    let due = || {
        let due = deliveries.due(&[], 10, Duration::from_secs(60));
        let due = block_on(due).expect("read");
        let of_recharge = |due: webhooks::Due| match due.event.expect("readable") {
            UserEvent::Recharge(event) => Some((event, due.event_id)),
            _ => None,
        };
        due.into_iter().filter_map(of_recharge).next()
    };
    let note = |event_id, error: Option<&str>| {
        let error = error.map(str::to_owned);
        let tried = [Tried { event_id, error, delay_ms: 0 }];
        block_on(deliveries.note(&tried, 1)).expect("noted")
    };
    let (first, id) = due().expect("the first one");
    assert_eq!((first.change, first.id), (RechargeChange::Paying, id));
    assert_eq!(note(id, Some("it answered 503")), [id], "dead behind one try");
    let (second, next) = due().expect("the next one");
    assert_eq!(second.change, RechargeChange::Paid);
    let body = posted(&UserEvent::Recharge(second), &catalog().load());
    for part in [r#""type":"recharge.paid""#, r#""state":"PAID""#, r#""trade_no":"4200001""#] {
        assert!(body.contains(part), "{part} in {body}");
    }
    assert_eq!(note(next, None), Vec::<i64>::new());
    let letters = block_on(desk.reads().dead_letters((0, ""), 10)).expect("read");
    assert_eq!(letters.len(), 1);
    let letter = &letters[0];
    assert_eq!((letter.about, letter.state), (LetterSubject::Recharge, "PAYING"));
    assert_eq!(letter.req_id, order.id.to_string());
    let admin = Admin::new(desk.reads(), incarnation);
    assert!(block_on(admin.resend(id, "a test", "a test")).expect("sent again"));
    assert_eq!(due().map(|(_, id)| id), Some(id));
    desk.stopped();
}

/// Goal: a wait for an order ends with an act on it, and with nothing else.
#[test]
fn a_wait_ends_with_the_act_that_it_waits_for() {
    let desk = Desk::new();
    let order = desk.order("order-1");
    let at_once = desk.recharges.wait(order.id, |_| true, Duration::from_secs(3_600));
    assert_eq!(block_on(at_once).expect("read"), Some(order.clone()));
    let never = desk.recharges.wait(order.id, |_| false, Duration::ZERO);
    assert_eq!(block_on(never).expect("read"), Some(order.clone()), "over: as it stands");
    let paying = |order: &Recharge| order.state == RechargeState::Paying;
    // Far beyond any test: the note alone ends it.
    let waits = desk.recharges.wait(order.id, paying, Duration::from_secs(86_400));
    let noted = desk.recharges.noted(&order, Some("prepay".to_owned()), None, None);
    let (waited, noted) = block_on(futures_util::future::join(waits, noted));
    let waited = waited.expect("read").expect("an order");
    let number = noted.expect("noted").reference;
    assert_eq!((waited.state, waited.reference), (RechargeState::Paying, number));
    let unknown = RechargeId::new(7).expect("not zero");
    let none = desk.recharges.wait(unknown, |_| false, Duration::from_secs(3_600));
    assert_eq!(block_on(none).expect("read"), None);
    desk.stopped();
}

/// Goal: an owner's list, sums and history show what happened, and a walk neither skips nor repeats
/// an order.
#[test]
fn an_owner_reads_lists_sums_and_history() {
    let desk = Desk::with_open_max(100);
    let orders: Vec<Recharge> = (0..7).map(|n| desk.paying(&format!("key-{n}"))).collect();
    desk.told(&desk.facts(&orders[0], "1"));
    desk.told(&desk.facts(&orders[1], "2"));
    // A second payment goes back.
    let again = desk.told(&desk.facts(&orders[1], "3"));
    assert_eq!(again.decision, PaymentDecision::Return);
    let reads = desk.reads();
    let user = UserId::new(USER).expect("an id");
    let filter = |before, limit| OwnRecharges {
        user,
        state: None,
        channel: None,
        since: None,
        until: None,
        before,
        limit,
    };
    let mut seen = Vec::new();
    let mut before = None;
    loop {
        let page = block_on(reads.own_recharges(&filter(before, 3))).expect("a page");
        seen.extend(page.orders.iter().map(|order| order.id));
        before = page.next;
        if before.is_none() {
            break;
        }
    }
    let mut want: Vec<RechargeId> = orders.iter().map(|order| order.id).collect();
    want.sort_unstable_by(|one, other| other.cmp(one));
    assert_eq!(seen, want, "newest first");
    let paid = OwnRecharges { state: Some(RechargeState::Paid), ..filter(None, 100) };
    assert_eq!(block_on(reads.own_recharges(&paid)).expect("a page").orders.len(), 2);
    let none = OwnRecharges { channel: Some("card".to_owned()), ..filter(None, 100) };
    assert!(block_on(reads.own_recharges(&none)).expect("a page").orders.is_empty());
    let of_other = OwnRecharges { user: UserId::new(OTHER).expect("an id"), ..filter(None, 100) };
    assert!(block_on(reads.own_recharges(&of_other)).expect("a page").orders.is_empty());
    let payments = block_on(reads.payments_of(&[orders[0].id, orders[1].id])).expect("read");
    assert_eq!(payments.len(), 3);
    let ids: Vec<_> = payments.iter().map(|payment| payment.id).collect();
    assert_eq!(block_on(reads.returns_of(&ids)).expect("read").len(), 1);
    let totals = block_on(reads.recharge_totals(user)).expect("read");
    let recharged = u128::from(200 * COIN);
    assert_eq!(totals.len(), 1);
    assert_eq!((totals[0].recharged, totals[0].count, totals[0].returned), (recharged, 2, 0));
    let steps = block_on(reads.recharge_steps(orders[0].id)).expect("read");
    let states: Vec<RechargeState> = steps.iter().map(|step| step.state).collect();
    assert_eq!(states, [RechargeState::Init, RechargeState::Paying, RechargeState::Paid]);
    assert_eq!(block_on(reads.open_recharges(100)).expect("counted"), 5);
    assert_eq!(block_on(reads.open_recharges(2)).expect("counted"), 2, "no further than asked");
    desk.stopped();
}

/// Goal: neither the rate of one user nor the open orders of all users pass their bound.
#[test]
fn a_create_is_admitted_below_its_bounds() {
    let desk = Desk::new();
    let user = |number| UserId::new(number).expect("an id");
    let admit = |number, rate, open_max| {
        block_on(desk.recharges.admit(user(number), rate, open_max)).map_err(|why| why.code)
    };
    assert_eq!(admit(USER, 2, 1), Ok(()));
    assert_eq!(admit(USER, 2, 1), Ok(()));
    assert_eq!(admit(USER, 2, 1), Err(Code::RateLimitExceeded));
    assert_eq!(admit(OTHER, 2, 1), Ok(()), "each user has an own rate");
    desk.order("order-1");
    assert_eq!(admit(OTHER, 2, 1), Err(Code::TooManyOpen), "a new order counts at once");
    desk.stopped();
}
