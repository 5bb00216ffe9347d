//! The orders of a book: matched by price, then by time, and every set of money that follows.
//!
//! All of it follows from the commands and their answers, in their order, and from nothing else.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use anyhow::{Context, ensure};
use bytes::BytesMut;
use domain::code::Code;
use domain::posting::{ALL, Leg, Place};
use stream::block::{Answer, LegRow, Release, Reserve, Set};
use stream::message::Message;

pub(crate) const BTC: u32 = 1;
pub(crate) const USDT: u32 = 3;
/// One lot, smallest units of BTC.
pub(crate) const LOT: u64 = 100_000;
/// One lot at a price of 1, smallest units of USDT.
pub(crate) const TICK: u64 = 100_000;
/// Of the amount that the taker receives, basis points of 1/10,000. The maker gets its part of it.
const TAKER_FEE: u64 = 10;
const MAKER_REBATE: u64 = 2;

/// A limit order. IOC: the part that does not trade at once is cancelled.
#[derive(Clone, Copy)]
pub(crate) struct Order {
    pub(crate) user: u64,
    pub(crate) is_buy: bool,
    pub(crate) price: u64,
    pub(crate) lots: u64,
    pub(crate) ioc: bool,
}

impl Order {
    /// The asset of its hold, and the smallest units of it for so many lots.
    fn hold(&self, lots: u64) -> (u32, u64) {
        match self.is_buy {
            true => (USDT, lots * self.price * TICK),
            false => (BTC, lots * LOT),
        }
    }

    /// The order of a Reserve: its reference keeps the rest.
    fn read(reserve: &Reserve) -> Order {
        let (reference, amount) = (reserve.reference.get(), reserve.amount.get());
        let (is_buy, price) = (reserve.asset.get() == USDT, reference >> 1);
        let lots = if is_buy { amount / (price * TICK) } else { amount / LOT };
        Order { user: reserve.user.get(), is_buy, price, lots, ioc: reference & 1 == 1 }
    }
}

/// A command without an answer.
pub(crate) enum Waiting {
    Order(Order),
    Trade(String),
    Release(u64),
}

/// The state that the journal leads to.
#[derive(Default)]
pub(crate) struct Book {
    /// The highest number with an answer. Those of `waiting` follow.
    pub(crate) told: u64,
    pub(crate) waiting: VecDeque<Waiting>,
    /// Orders with money set apart, by number.
    pub(crate) open: BTreeMap<u64, Order>,
    /// Asks and bids: the orders of each price by time. Some have ended.
    sides: [BTreeMap<u64, VecDeque<u64>>; 2],
    pub(crate) users: BTreeSet<u64>,
    fees: u64,
    /// Commands of the book that are not in the journal yet.
    pub(crate) out: VecDeque<BytesMut>,
    /// Lines to print once the answers are in the journal.
    pub(crate) said: Vec<String>,
}

impl Book {
    /// An empty book. `fees`: the user that receives the fees.
    pub(crate) fn new(fees: u64) -> Book {
        Book { fees, users: BTreeSet::from([fees]), ..Book::default() }
    }

    /// Takes a new order. Its money is set apart first.
    pub(crate) fn order(&mut self, order: Order) -> anyhow::Result<()> {
        let units = order.price.checked_mul(TICK).and_then(|units| units.checked_mul(order.lots));
        ensure!(units.is_some_and(|units| units > 0), "price or lots out of range");
        ensure!(order.lots.checked_mul(LOT).is_some(), "lots out of range");
        let (asset, amount) = order.hold(order.lots);
        let reserve = Reserve {
            number: self.next().into(),
            reference: (order.price << 1 | u64::from(order.ioc)).into(),
            user: order.user.into(),
            amount: amount.into(),
            onto: 0.into(),
            asset: asset.into(),
        };
        self.issue(&Message::Reserve(&reserve));
        Ok(())
    }

    /// Takes lots out of an order, which keeps its place. It ends if there are no more.
    pub(crate) fn reduce(&mut self, number: u64, lots: u64) -> anyhow::Result<()> {
        let order = self.open.get(&number).context("no open order")?;
        ensure!(lots > 0, "no lots");
        let amount = if lots < order.lots { order.hold(lots).1 } else { ALL };
        self.release(number, amount);
        Ok(())
    }

    /// The remaining amount of each hold, as the open orders need it.
    pub(crate) fn needs(&self) -> BTreeMap<u64, u64> {
        let need = |(number, order): (&u64, &Order)| (*number, order.hold(order.lots).1);
        self.open.iter().map(need).collect()
    }

    pub(crate) fn next(&self) -> u64 {
        self.told + self.waiting.len() as u64 + 1
    }

    /// Applies a new command, and puts it out.
    fn issue(&mut self, command: &Message<'_>) {
        let mut bytes = BytesMut::new();
        command.append_to(&mut bytes);
        self.out.push_back(bytes);
        self.apply(command);
    }

    /// Applies a command. Only a new order waits for its answer: a book may always settle and
    /// release its own holds.
    pub(crate) fn apply(&mut self, command: &Message<'_>) {
        let waiting = match command {
            Message::Reserve(reserve) => {
                self.users.insert(reserve.user.get());
                Waiting::Order(Order::read(reserve))
            }
            Message::Settle(_, legs) => {
                let (lots, price) = (legs[1].amount.get() / LOT, legs[0].amount.get() / TICK);
                let [bid, ask] = [legs[0].from.get(), legs[1].from.get()];
                self.lower(bid, lots);
                self.lower(ask, lots);
                Waiting::Trade(format!("trade: {bid} buys {lots} of {ask} at {}", price / lots))
            }
            Message::Release(release) => {
                let hold = release.hold.get();
                let place = hold.checked_sub(self.told + 1).and_then(|place| place.try_into().ok());
                let waiting: Option<usize> = place;
                if let Some(Waiting::Order(order)) = waiting.and_then(|at| self.waiting.get_mut(at))
                {
                    order.lots = 0;
                }
                let order = self.open.get(&hold).copied();
                let lots = order.map_or(0, |order| match release.amount.get() {
                    ALL => order.lots,
                    amount => amount / order.hold(1).1,
                });
                self.lower(hold, lots);
                Waiting::Release(hold)
            }
            _ => unreachable!("the book makes no other command"),
        };
        self.waiting.push_back(waiting);
    }

    /// Takes lots out of an order. Without any it has ended.
    fn lower(&mut self, number: u64, lots: u64) {
        if let Some(order) = self.open.get_mut(&number) {
            order.lots -= lots;
            if order.lots == 0 {
                self.open.remove(&number);
            }
        }
    }

    /// Takes the answer to the oldest command without one.
    pub(crate) fn answer(&mut self, answer: &Answer) -> anyhow::Result<()> {
        let number = answer.number.get();
        let waiting = self.waiting.pop_front().context("an answer came without a command")?;
        self.told += 1;
        ensure!(number == self.told, "answer {number} came instead of {}", self.told);
        let code = Code::from_number(answer.code.get());
        let name = code.map_or("SUCCESS", Code::name);
        match waiting {
            Waiting::Order(order) => {
                let Order { user, is_buy, price, lots, .. } = order;
                let side = if is_buy { "buys" } else { "sells" };
                self.said.push(format!("{number} order: {user} {side} {lots} at {price}: {name}"));
                // Without a lot its hold was missing at the start, see `compare`.
                if code.is_none() && lots > 0 {
                    self.enter(number, order);
                }
            }
            Waiting::Trade(trade) => {
                ensure!(code.is_none(), "{number} {trade}: {name}, leg {}", answer.leg);
                self.said.push(format!("{number} {trade}: {name}"));
            }
            // The hold of a cancelled order may be gone, see `compare`.
            Waiting::Release(order) => {
                let ends = matches!(code, None | Some(Code::HoldNotFound));
                ensure!(ends, "{number} release of {order}: {name}");
                self.said.push(format!("{number} release of {order}: {name}"));
            }
        }
        Ok(())
    }

    /// Matches a new order by price, then by time. Its rest stays in the book.
    fn enter(&mut self, number: u64, order: Order) {
        self.open.insert(number, order);
        while let Some(taker) = self.open.get(&number).copied()
            && let Some(maker) = self.maker(&taker)
        {
            self.trade((number, taker), (maker, self.open[&maker]));
        }
        match self.open.contains_key(&number) {
            true if order.ioc => self.release(number, ALL),
            true => {
                let side = &mut self.sides[usize::from(order.is_buy)];
                side.entry(order.price).or_default().push_back(number);
            }
            false => {}
        }
    }

    /// The first order on the other side that the taker's price reaches.
    fn maker(&mut self, taker: &Order) -> Option<u64> {
        let side = &mut self.sides[usize::from(!taker.is_buy)];
        loop {
            let mut level = if taker.is_buy { side.first_entry()? } else { side.last_entry()? };
            let price = *level.key();
            if if taker.is_buy { price > taker.price } else { price < taker.price } {
                return None;
            }
            match level.get().front() {
                Some(maker) if self.open.contains_key(maker) => return Some(*maker),
                Some(_) => drop(level.get_mut().pop_front()),
                None => drop(level.remove()),
            }
        }
    }

    /// One trade at the maker's price, in one set.
    fn trade(&mut self, (taking, taker): (u64, Order), (making, maker): (u64, Order)) {
        let (lots, price) = (taker.lots.min(maker.lots), maker.price);
        let (cost, quantity) = (lots * price * TICK, lots * LOT);
        let ((bid, buyer), (ask, seller)) = match taker.is_buy {
            true => ((taking, taker), (making, maker)),
            false => ((making, maker), (taking, taker)),
        };
        let (asset, received) = if taker.is_buy { (BTC, quantity) } else { (USDT, cost) };
        let part = |points: u64| received / 10_000 * points;
        let rebate = if taker.user == maker.user { 0 } else { part(MAKER_REBATE) };
        let fee = if taker.user == self.fees { 0 } else { part(TAKER_FEE) - rebate };
        let improvement = lots * (buyer.price - price) * TICK;
        let at = Place::Available;
        let legs = [
            (Place::Hold(bid), at(seller.user), USDT, cost),
            (Place::Hold(ask), at(buyer.user), BTC, quantity),
            (at(taker.user), at(maker.user), asset, rebate),
            (at(taker.user), at(self.fees), asset, fee),
            (Place::Hold(bid), at(buyer.user), USDT, improvement),
        ];
        let legs = legs.into_iter().filter(|(.., amount)| *amount > 0);
        let legs = legs.map(|(from, to, asset, amount)| Leg { from, to, asset, amount });
        let rows: Vec<LegRow> = legs.map(LegRow::from).collect();
        let set = Set { number: self.next().into(), reference: making.into() };
        self.issue(&Message::Settle(&set, &rows));
    }

    fn release(&mut self, hold: u64, amount: u64) {
        let [number, hold, amount] = [self.next(), hold, amount].map(Into::into);
        self.issue(&Message::Release(&Release { number, reference: hold, hold, amount }));
    }

    /// Ends each order with another hold than it needs, and each hold without an order. Nothing
    /// waits for an answer but those in `answers`, which are decided.
    pub(crate) fn compare(&mut self, answers: &[Answer], holds: &BTreeMap<u64, u64>) {
        let mut needs = self.needs();
        for (waiting, answer) in self.waiting.iter().zip(answers) {
            if let (Waiting::Order(order), 0) = (waiting, answer.code.get()) {
                needs.insert(answer.number.get(), order.hold(order.lots).1);
            }
        }
        let numbers: BTreeSet<u64> = needs.keys().chain(holds.keys()).copied().collect();
        for number in numbers.into_iter().filter(|number| needs.get(number) != holds.get(number)) {
            let [needs, held] = [&needs, holds].map(|all| all.get(&number).copied().unwrap_or(0));
            self.said.push(format!("{number} is cancelled: it needs {needs}, and holds {held}"));
            self.release(number, ALL);
        }
    }
}
