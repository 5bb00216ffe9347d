//! SIGKILL at each named point of a recharge: the order ends as its client meant it, once, on both
//! sides of the channel, and no answer is taken back.

/// The clients of these tests: one order each, from its wish to its end.
mod client;

use std::os::unix::process::ExitStatusExt;

use serde_json::json;
use ubscore::crash::{EVENT_POINTS, RECHARGE_POINTS};

use self::client::{Client, Story};
use crate::harness::{COIN, Door, Part, Recharging, Server, Site, eventually};

const USER: u64 = 1001;
/// The amount of each order, as the harness reads balances: with 8 decimals.
const PRICE: u128 = 100 * COIN;
/// Both channels, by the names of their configuration.
const BOTH: [&str; 2] = ["wechat", "card"];

/// A point, and the state of an order behind a death there.
struct Point {
    name: &'static str,
    /// Of an order `r`, in SQL.
    durable: &'static str,
    /// The till passes it again behind a start, before any client asks.
    recurs: bool,
}

const fn point(name: &'static str, recurs: bool, durable: &'static str) -> Point {
    Point { name, durable, recurs }
}

/// The points of an order that is paid for, in their order.
const PAID: [Point; 5] = [
    point("recharge_after_create", false, "r.state = 0"),
    point("recharge_after_ask", true, "r.state = 0"),
    point("callback_before_commit", true, "r.state = 10 AND r.payments = 0"),
    point("callback_after_commit", false, "r.state = 40 AND r.payments = 1"),
    point(
        "recharge_before_tell",
        false,
        "EXISTS (SELECT FROM recharge_events e WHERE e.recharge_id = r.recharge_id)",
    ),
];
/// The point of money that goes on to Spot.
const FOLLOWED: Point = point(
    "follow_after_submit",
    true,
    "r.state = 40 AND r.follow_state = 0 AND EXISTS \
     (SELECT FROM transfers_tb WHERE cid = 'recharge/' || ulid_text(r.recharge_id))",
);
/// The points of a close, in their order.
const CLOSED: [Point; 2] = [
    point("close_after_wish", false, "r.closing IS NOT NULL"),
    point("close_after_there", true, "r.closing IS NOT NULL AND r.state = 10"),
];
const SENT: &str = "EXISTS (SELECT FROM recharge_returns b JOIN channel_payments USING (payment_id) \
                            WHERE recharge_id = r.recharge_id AND b.state = 20)";
/// The points of a return, in their order.
const RETURNED: [Point; 2] =
    [point("return_after_send", true, SENT), point("return_after_there", true, SENT)];

/// The point of a refund that an operator asks for: the money is apart. The till may be quick.
const REFUNDED: Point = point(
    "return_after_hold",
    false,
    "EXISTS (SELECT FROM recharge_returns b JOIN channel_payments USING (payment_id) \
             JOIN funding_holds ON hold_key LIKE 'return:' || ulid_text(b.return_id) || ':%' \
              WHERE recharge_id = r.recharge_id AND b.state IN (10, 20) \
                AND funding_holds.state = 10)",
);

/// A site whose server dies, with its clients.
struct Kills {
    desk: Recharging,
    door: Door,
    server: Option<Server>,
    clients: Vec<Client>,
    /// The orders before those of `clients`, all ended.
    ended: Vec<Client>,
}

impl Kills {
    fn new() -> Kills {
        let (desk, door) = Recharging::new().behind_a_door();
        Kills { desk, door, server: None, clients: Vec::new(), ended: Vec::new() }
    }

    fn site(&self) -> &Site {
        &self.desk.site
    }

    fn server(&mut self) -> &mut Server {
        self.server.as_mut().expect("started")
    }

    fn start(&mut self) {
        let server = self.site().start();
        self.door.leads_to(Some(&server));
        self.server = Some(server);
    }

    /// Starts with a point armed at a visit. The start itself may die there. `hears`: callbacks
    /// arrive.
    fn start_armed(&mut self, point: &Point, visit: u32, hears: bool) {
        let armed = format!("{}={visit}", point.name);
        let site = self.site().clone().with("UBSCORE_CRASH", armed);
        match Server::try_start(site.command()) {
            Ok(server) => {
                self.door.leads_to(Some(&server).filter(|_| hears));
                self.server = Some(server);
            }
            Err((status, said)) => assert_eq!(status.signal(), Some(9), "{status}: {said}"),
        }
    }

    /// Waits for the death at an armed point.
    fn dies(&mut self, point: &Point) {
        if let Some(server) = &mut self.server {
            let (status, said) = server.wait();
            assert_eq!(status.signal(), Some(9), "{}: {status} {said}", point.name);
        }
        self.server = None;
        self.door.leads_to(None);
        self.site().wait_for_disconnected();
        for client in &mut self.clients {
            client.asks_again();
        }
    }

    /// Every client goes on until its order has ended, one behind the other, or the server has.
    fn go_on(&mut self) {
        let server = self.server.as_mut().expect("started");
        for client in &mut self.clients {
            eventually("an end, or a death", || {
                let is_over = server.has_ended() || client.step(&self.desk, server);
                is_over.then_some(())
            });
        }
    }

    /// Asserts that an order stands as the point says.
    fn assert_durable(&self, point: &Point) {
        let keys: Vec<String> =
            self.clients.iter().map(|client| format!("'{}'", client.key)).collect();
        let count = format!(
            "SELECT count(*) FROM recharges_tb r WHERE r.idem_key IN ({}) AND {}",
            keys.join(", "),
            point.durable
        );
        let all = self.site().sql("SELECT idem_key, state, payments, closing FROM recharges_tb");
        assert_ne!(self.site().sql_value(&count), "0", "{}: {all:?}", point.name);
        let mut there = self.clients.iter().map(|client| client.there(&self.desk));
        match point.name {
            "recharge_after_ask" => assert!(there.any(|orders| !orders.is_empty())),
            "close_after_there" => {
                assert!(there.flatten().any(|order| order["is_closed"] == json!(true)));
            }
            "return_after_there" => {
                assert!(there.any(|orders| client::refunds(&orders).len() == 1));
            }
            _ => {}
        }
    }

    /// One order through each channel, and a death at one visit of a point. Where the till passes
    /// the point again by itself, the next process dies there too.
    fn round(&mut self, point: &Point, story: Story, channels: &[&'static str], visit: u32) {
        let client = |channel: &&'static str| {
            let key = format!("{}-{story:?}-{visit}-{channel}", point.name);
            Client::new(key, channel, story)
        };
        self.clients = channels.iter().map(client).collect();
        self.start_armed(point, visit, true);
        self.go_on();
        self.dies(point);
        self.assert_durable(point);
        if point.recurs && visit == 1 {
            // A callback may be before the till.
            self.start_armed(point, 1, false);
            self.dies(point);
            self.assert_durable(point);
        }
        if point.name == "recharge_after_ask" {
            // Whether its payer knows it or not: the channel has it.
            for client in &mut self.clients {
                client.pay_if_there(&self.desk);
            }
        }
        self.start();
        eventually("the end of the work without a client", || {
            self.clients.iter().all(|client| client.rests(&self.desk)).then_some(())
        });
        self.go_on();
        self.assert_ended();
        self.ended.append(&mut self.clients);
        self.assert_balances();
        self.server.take().expect("started").kill();
        self.door.leads_to(None);
    }

    /// Both visits of a point: the first of one channel's order alone, the second behind that of
    /// the other channel.
    fn both_visits(&mut self, point: &Point, story: Story, turn: usize) {
        let mut channels = BOTH;
        channels.rotate_left(turn % 2);
        self.round(point, story, &channels[..1], 1);
        self.round(point, story, &channels, 2);
    }

    fn assert_ended(&mut self) {
        assert!(!self.server().has_ended(), "nothing is armed");
        self.site().wait_for_rest();
        let server = self.server.as_ref().expect("started");
        for client in &self.clients {
            client.assert_once(&self.desk, server);
        }
    }

    /// Each order has moved its money once, and no other money has moved.
    fn assert_balances(&mut self) {
        let count = |wanted: &[Story]| {
            let of = self.ended.iter().filter(|client| wanted.contains(&client.story));
            u128::try_from(of.count()).expect("few")
        };
        let funding = PRICE * count(&[Story::Pays, Story::PaysTwice]);
        let spot = PRICE * count(&[Story::GoesOn]);
        let now = self.server().balances(USER)["CNY"];
        let sums = (now.funding.unwrap_or(0), now.spot.unwrap_or(0), now.in_flight);
        assert_eq!(sums, (funding, spot, 0));
    }

    /// Every callback has had its answer, a stream tells every event once, and both stores agree.
    fn close(mut self) {
        self.start();
        eventually("all callbacks to be answered with success", || {
            let parcels = self.desk.sim.done("GET", "/sim/parcels", &json!({}));
            (parcels["open"] == json!(0)).then_some(())
        });
        let server = self.server.as_ref().expect("started");
        let rows = "SELECT event_id FROM recharge_events WHERE user_id = 1001 ORDER BY 1";
        let events: Vec<String> =
            self.site().sql(rows).into_iter().map(|row| row[0].clone()).collect();
        let stream = server.follow(USER, Some(&events[0]));
        let mut told = Vec::new();
        while told.last() != events.last() {
            if let Part::Event { id, kind, .. } = stream.next()
                && kind == "recharge"
            {
                told.push(id);
            }
        }
        assert_eq!(told, events[1..]);
        let strays = "SELECT count(*) FROM recharge_movements \
                       WHERE debit LIKE '%/suspense' OR credit LIKE '%/suspense' \
                       GROUP BY payment_id HAVING count(*) <> 2";
        assert_eq!(self.site().sql(strays), Vec::<Vec<String>>::new());
        self.site().assert_in_order(server);
    }
}

/// RCH-003 and RCH-039. Goal: a death at any point until an order is PAID makes one order here and
/// at the channel, one payment, one credit and one event. Method: each point at its first and its
/// second visit, each channel; behind a death at the channel's answer the order is paid before the
/// next start.
#[test]
fn rch_039_a_kill_on_the_way_to_paid_credits_once() {
    let mut kills = Kills::new();
    for (turn, point) in PAID.iter().enumerate() {
        kills.both_visits(point, Story::Pays, turn);
    }
    kills.close();
}

/// Goal: money for Spot arrives there once, over a death at any point of its order. Method: the
/// same with `to` SPOT, one visit of each point before PAID, and both of the point behind it.
#[test]
fn rch_029_a_kill_at_each_point_moves_the_money_to_spot_once() {
    let mut kills = Kills::new();
    kills.both_visits(&FOLLOWED, Story::GoesOn, 0);
    for (turn, point) in PAID.iter().enumerate() {
        kills.round(point, Story::GoesOn, &BOTH[turn % 2..][..1], 1);
    }
    kills.close();
}

/// Goal: an order that its user has cancelled closes there and here, once, over a death behind the
/// wish and behind the channel's answer.
#[test]
fn rch_039_a_kill_amid_a_close_closes_once() {
    let mut kills = Kills::new();
    for (turn, point) in CLOSED.iter().enumerate() {
        kills.both_visits(point, Story::Cancels, turn);
    }
    kills.close();
}

/// Goal: a second payment goes back once, over a death before and behind the channel's refund.
#[test]
fn rch_039_a_kill_amid_a_return_sends_back_once() {
    let mut kills = Kills::new();
    for (turn, point) in RETURNED.iter().enumerate() {
        kills.both_visits(point, Story::PaysTwice, turn);
    }
    kills.close();
}

/// Goal: a refund that an operator asks for takes the money once and sends it back once, over a
/// death behind its hold; the operator's repeat finds it. Method: both visits, and then the points
/// of the till's call, for a refund.
#[test]
fn rch_039_a_kill_amid_a_refund_takes_and_sends_back_once() {
    let mut kills = Kills::new();
    kills.both_visits(&REFUNDED, Story::Refunds, 0);
    for (turn, point) in RETURNED.iter().enumerate() {
        kills.round(point, Story::Refunds, &BOTH[turn % 2..][..1], 1);
    }
    kills.close();
}

/// Goal: no point of a recharge is forgotten here.
#[test]
fn rch_039_every_point_of_a_recharge_is_killed_at() {
    let here = PAID.iter().chain([&FOLLOWED, &REFUNDED]).chain(&CLOSED).chain(&RETURNED);
    let mut here: Vec<&str> = here.map(|point| point.name).collect();
    here.sort_unstable();
    let of_events = EVENT_POINTS.iter().filter(|name| name.starts_with("recharge_"));
    let mut all: Vec<&str> = RECHARGE_POINTS.iter().chain(of_events).copied().collect();
    all.sort_unstable();
    assert_eq!(here, all);
}
