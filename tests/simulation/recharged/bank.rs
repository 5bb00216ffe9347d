//! The model of two payment channels: one that ends payment itself, and one that does not. It keeps
//! what really happened to the payers' money. It answers in the words of `recharge::answers`.
//!
//! It may take a payment twice, in part, in another currency, with a discount, or behind a close
//! that it has promised. It accepts refunds and ends them later, refuses some, takes money by
//! disputes and gives it back, and refunds behind our back.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use ubscore::channels::{ChannelLimits, CreateAsk, RefundAsk};
use ubscore::recharge::RechargeId;
use ubscore::recharge::answers::{ChannelDoubt, Closing, Created, Pay, PayKind, Queried, Refunded};
use ubscore::recharge::facts::{Facts, Notice, Returned, Taking};

/// The names of both channels. The first one ends payment at the expiry of an order.
pub(super) const CHANNELS: [&str; 2] = ["wechat", "card"];
/// Their currency.
pub(super) const CURRENCY: &str = "CNY";
/// For so long a search may not show a new order of a channel without numbers of its own.
const UNSEEN: Duration = Duration::from_secs(30);

/// The limits of a channel of [`CHANNELS`].
pub(super) fn limits_of(channel: &str, close_after: Duration) -> ChannelLimits {
    let ends_payment = channel == CHANNELS[0];
    ChannelLimits {
        close_after: if ends_payment { close_after } else { Duration::ZERO },
        expiry_max: Duration::from_hours(23),
        proof_bytes_max: 128,
        ends_payment,
    }
}

/// A way to pay an order.
#[derive(Clone, Debug)]
struct Intent {
    reference: String,
    at: Timestamp,
    open: bool,
    /// A payer has it.
    told: bool,
    /// It is ended by name alone, and takes a payment all the same.
    lies: bool,
}

/// An order as its channel has it.
#[derive(Clone, Debug)]
struct Bought {
    channel: String,
    minor_units: i64,
    proof: String,
    expires_at: Timestamp,
    intents: Vec<Intent>,
}

/// A payment as it really is.
#[derive(Clone, Debug)]
pub(super) struct Real {
    pub(super) facts: Facts,
    /// Gone back by refunds of ours, minor units.
    pub(super) refunded: i64,
    /// Gone back by refunds that we never asked for.
    pub(super) behind: i64,
    /// Taken by disputes, less the part that was given back.
    pub(super) taken: i64,
    /// It came behind an end that the channel had promised.
    pub(super) by_lie: bool,
}

/// Where a refund of ours stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SentState {
    Pending { until: Timestamp, done: bool },
    Done,
    Refused,
}

/// A refund that we have asked for.
#[derive(Clone, Debug)]
struct SentBack {
    key: (String, String),
    minor_units: i64,
    state: SentState,
    refused: bool,
}

/// A dispute.
#[derive(Clone, Debug)]
pub(super) struct Dispute {
    pub(super) key: (String, String),
    pub(super) minor_units: i64,
    pub(super) given: Option<i64>,
}

/// The manner of a payment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Manner {
    Exact,
    Less,
    More,
    Currency,
    Discount,
}

/// See the head of this file.
#[derive(Debug, Default)]
pub(super) struct Bank {
    orders: BTreeMap<String, Bought>,
    /// By channel and trade_no.
    payments: BTreeMap<(String, String), Real>,
    sent: BTreeMap<String, SentBack>,
    disputes: BTreeMap<String, Dispute>,
    /// Messages that are not on their way yet.
    outbox: Vec<(String, Notice)>,
    numbers: u64,
    /// The last time, for the ends of refunds.
    now: Timestamp,
}

impl Bank {
    /// Messages to be sent.
    pub(super) fn take_outbox(&mut self) -> Vec<(String, Notice)> {
        std::mem::take(&mut self.outbox)
    }

    /// All payments.
    pub(super) fn payments(&self) -> &BTreeMap<(String, String), Real> {
        &self.payments
    }

    /// All disputes, by their numbers.
    pub(super) fn disputes(&self) -> &BTreeMap<String, Dispute> {
        &self.disputes
    }

    fn number(&mut self, prefix: &str) -> String {
        self.numbers += 1;
        format!("{prefix}{}", self.numbers)
    }

    /// Brings the refunds under way to their ends.
    pub(super) fn advance(&mut self, now: Timestamp) {
        self.now = now;
        for (no, sent) in &mut self.sent {
            let SentState::Pending { until, done } = sent.state else { continue };
            if now < until {
                continue;
            }
            let real = self.payments.get_mut(&sent.key).expect("it was refunded");
            if done {
                sent.state = SentState::Done;
                real.refunded += sent.minor_units;
                // Some channels tell it with our own number.
                if self.numbers.is_multiple_of(3) {
                    let taking = taking(&real.facts, &sent.key, no, sent.minor_units, now);
                    self.outbox.push((sent.key.0.clone(), Notice::Taken(taking)));
                }
            } else {
                (sent.state, sent.refused) = (SentState::Refused, true);
            }
        }
    }

    /// Makes an order, or shows the way to pay it again. An order that was ended is open again.
    /// `fresh`: a further way to pay, where there is one. `refuses`: an unknown order is refused.
    pub(super) fn create(
        &mut self,
        channel: &str,
        ask: &CreateAsk<'_>,
        (fresh, refuses): (bool, bool),
        now: Timestamp,
    ) -> Created {
        let ends_payment = channel == CHANNELS[0];
        let known = self.orders.contains_key(ask.merchant_no);
        if !known && refuses || ends_payment && now >= ask.expires_at {
            return Created::Refused("NOT_ALLOWED".to_owned());
        }
        if ends_payment && self.payments_of(ask.merchant_no).next().is_some() {
            return Created::Unknown(ChannelDoubt::Code("ORDERPAID".to_owned()));
        }
        let reference = self.number("in_");
        let order = self.orders.entry(ask.merchant_no.to_owned()).or_insert_with(|| Bought {
            channel: channel.to_owned(),
            minor_units: ask.minor_units,
            proof: ask.proof.to_owned(),
            expires_at: ask.expires_at,
            intents: Vec::new(),
        });
        let open = order.intents.iter().rev().find(|intent| intent.open);
        let reference = match open.filter(|_| ends_payment || !fresh) {
            Some(intent) => intent.reference.clone(),
            None => {
                let (open, told, lies) = (true, false, false);
                order.intents.push(Intent {
                    reference: reference.clone(),
                    at: now,
                    open,
                    told,
                    lies,
                });
                reference
            }
        };
        let value = reference.clone();
        let pay = Pay { kind: PayKind::CodeUrl, value, expires_at: None };
        Created::Created { reference, pay }
    }

    /// The state of an order. A channel without an end of payment shows the intents that it is
    /// asked for by number, and finds the rest a while later. `one`: of several payments it shows
    /// the first.
    pub(super) fn query(
        &mut self,
        merchant_no: &str,
        references: &[String],
        one: bool,
        now: Timestamp,
    ) -> Queried {
        self.advance(now);
        let mut paid: Vec<Facts> = self.payments_of(merchant_no).map(Real::shown).collect();
        if !paid.is_empty() {
            paid.truncate(if one { 1 } else { usize::MAX });
            return Queried::Paid(paid);
        }
        let Some(order) = self.orders.get(merchant_no) else { return Queried::Absent };
        let seen: Vec<&Intent> = order.seen(references, now).collect();
        match seen.iter().any(|intent| intent.open && !intent.lies) {
            _ if seen.is_empty() => Queried::Absent,
            true => Queried::Open,
            false => Queried::Closed,
        }
    }

    /// Ends an order. `lies`: it says so, and takes a payment all the same.
    pub(super) fn close(
        &mut self,
        merchant_no: &str,
        references: &[String],
        lies: bool,
        now: Timestamp,
    ) -> Closing {
        if self.payments_of(merchant_no).next().is_some() && self.numbers.is_multiple_of(2) {
            return Closing::Paid;
        }
        let Some(order) = self.orders.get_mut(merchant_no) else { return Closing::Absent };
        let ends_payment = order.channel == CHANNELS[0];
        let mut any = false;
        for intent in &mut order.intents {
            let is_old = now.duration_since(intent.at).unsigned_abs() >= UNSEEN;
            if !ends_payment && !is_old && !references.contains(&intent.reference) {
                continue;
            }
            any = true;
            intent.lies |= lies && intent.open && intent.told;
            intent.open = false;
        }
        if any { Closing::Closed } else { Closing::Absent }
    }

    /// A payer has the way to pay.
    pub(super) fn tell(&mut self, reference: &str) {
        let intents = self.orders.values_mut().flat_map(|order| &mut order.intents);
        for intent in intents.filter(|intent| intent.reference == reference) {
            intent.told = true;
        }
    }

    /// Whether a payer could pay an order now, by a way that was not ended by a lie.
    pub(super) fn takes_more(&self, merchant_no: &str, now: Timestamp) -> bool {
        self.orders.get(merchant_no).is_some_and(|order| {
            let in_time = order.channel != CHANNELS[0] || now < order.expires_at;
            order.intents.iter().any(|intent| intent.open && intent.told && in_time)
        })
    }

    /// A payer pays by a way that was told. Returns whether the channel has taken it. `again`: a
    /// second payer is as fast.
    pub(super) fn pay(
        &mut self,
        reference: &str,
        manner: Manner,
        again: bool,
        now: Timestamp,
    ) -> bool {
        let found = self.orders.iter_mut().find_map(|(no, order)| {
            let nth = order.intents.iter().position(|intent| intent.reference == reference)?;
            Some((no.clone(), order, nth))
        });
        let Some((merchant_no, order, nth)) = found else { return false };
        let ends_payment = order.channel == CHANNELS[0];
        let intent = &mut order.intents[nth];
        let in_time = !ends_payment || now < order.expires_at;
        if !intent.told || !(intent.open && in_time || intent.lies) {
            return false;
        }
        let by_lie = intent.lies;
        (intent.open, intent.lies) = (false, false);
        let order = order.clone();
        let trade_no = if ends_payment { self.number("42") } else { reference.to_owned() };
        self.takes(&merchant_no, &order, (trade_no, by_lie), manner, now);
        if again && ends_payment {
            let trade_no = self.number("42");
            self.takes(&merchant_no, &order, (trade_no, by_lie), Manner::Exact, now);
        }
        true
    }

    fn takes(
        &mut self,
        merchant_no: &str,
        order: &Bought,
        (trade_no, by_lie): (String, bool),
        manner: Manner,
        now: Timestamp,
    ) {
        let total = order.minor_units;
        let (minor_units, total_minor_units) = match manner {
            Manner::Exact | Manner::Currency => (total, total),
            Manner::Less => ((total / 2).max(1), (total / 2).max(1)),
            Manner::More => (total + 100, total + 100),
            Manner::Discount => ((total - 50).max(1), total),
        };
        let facts = Facts {
            merchant_no: merchant_no.to_owned(),
            trade_no: trade_no.clone(),
            minor_units,
            total_minor_units,
            currency: if manner == Manner::Currency { "USD" } else { CURRENCY }.to_owned(),
            discount: manner == Manner::Discount,
            returned: Returned::None,
            paid_at: now,
            proof: Some(order.proof.clone()),
        };
        self.keep((order.channel.clone(), trade_no), facts, by_lie);
    }

    /// A payment without an order in this deployment.
    pub(super) fn stray(&mut self, channel: &str, merchant_no: String, proof: String) {
        let trade_no = self.number("99");
        let facts = Facts {
            merchant_no,
            trade_no: trade_no.clone(),
            minor_units: 1_234,
            total_minor_units: 1_234,
            currency: CURRENCY.to_owned(),
            discount: false,
            returned: Returned::None,
            paid_at: self.now,
            proof: Some(proof),
        };
        self.keep((channel.to_owned(), trade_no), facts, false);
    }

    fn keep(&mut self, key: (String, String), facts: Facts, by_lie: bool) {
        self.outbox.push((key.0.clone(), Notice::Payment(facts.clone())));
        let real = Real { facts, refunded: 0, behind: 0, taken: 0, by_lie };
        self.payments.insert(key, real);
    }

    /// Sends money back, once for our number. `refuses`: a new one is refused. `until`, `done`: an
    /// accepted one ends then, and so.
    pub(super) fn refund(
        &mut self,
        channel: &str,
        ask: &RefundAsk<'_>,
        (refuses, until, done): (bool, Timestamp, bool),
        now: Timestamp,
    ) -> Refunded {
        self.advance(now);
        let key = (channel.to_owned(), ask.trade_no.to_owned());
        if !self.sent.contains_key(ask.return_no) {
            let under_way: i64 = self
                .sent
                .values()
                .filter(|sent| sent.key == key && matches!(sent.state, SentState::Pending { .. }))
                .map(|sent| sent.minor_units)
                .sum();
            let Some(real) = self.payments.get(&key) else {
                return Refunded::Refused("NO_SUCH_PAYMENT".to_owned());
            };
            let gone = real.refunded + real.behind + real.taken + under_way;
            let refuses = refuses || gone + ask.minor_units > real.facts.minor_units;
            let state =
                if refuses { SentState::Refused } else { SentState::Pending { until, done } };
            let minor_units = ask.minor_units;
            let sent = SentBack { key, minor_units, state, refused: refuses };
            self.sent.insert(ask.return_no.to_owned(), sent);
            self.advance(now);
        }
        match self.sent[ask.return_no].state {
            SentState::Pending { .. } => Refunded::UnderWay { is_stuck: false },
            SentState::Done => Refunded::Done,
            SentState::Refused => Refunded::Refused("REFUSED".to_owned()),
        }
    }

    /// Whether the payer has the money of this refund.
    pub(super) fn is_sent(&self, return_no: &str) -> bool {
        self.sent.get(return_no).is_some_and(|sent| sent.state == SentState::Done)
    }

    /// Whether the channel has refused this refund.
    pub(super) fn has_refused(&self, return_no: &str) -> bool {
        self.sent.get(return_no).is_some_and(|sent| sent.refused)
    }

    /// Whether a refund of this number is known, and how much it is.
    pub(super) fn sent_units(&self, return_no: &str) -> Option<i64> {
        self.sent.get(return_no).map(|sent| sent.minor_units)
    }

    /// The refunds that the channel has carried out: our number, payment and amount.
    pub(super) fn carried_out(&self) -> impl Iterator<Item = (&String, &(String, String), i64)> {
        let done = self.sent.iter().filter(|(_, sent)| sent.state == SentState::Done);
        done.map(|(no, sent)| (no, &sent.key, sent.minor_units))
    }

    /// Whether no refund is under way.
    pub(super) fn rests(&self) -> bool {
        self.sent.values().all(|sent| !matches!(sent.state, SentState::Pending { .. }))
    }

    /// A refund that was refused is carried out all the same. Returns whether there is one.
    pub(super) fn refund_after_all(&mut self, now: Timestamp) -> bool {
        let refused = self.sent.iter_mut().find(|(_, sent)| sent.state == SentState::Refused);
        let Some((no, sent)) = refused else { return false };
        let real = self.payments.get_mut(&sent.key).expect("it was refunded");
        let gone = real.refunded + real.behind + real.taken;
        if gone + sent.minor_units > real.facts.minor_units {
            return false;
        }
        sent.state = SentState::Done;
        real.refunded += sent.minor_units;
        let taking = taking(&real.facts, &sent.key, no, sent.minor_units, now);
        self.outbox.push((sent.key.0.clone(), Notice::Taken(taking)));
        true
    }

    /// A dispute takes money of a payment.
    pub(super) fn dispute(&mut self, key: &(String, String), minor_units: i64, now: Timestamp) {
        let number = self.number("dp_");
        let real = self.payments.get_mut(key).expect("it is there");
        real.taken += minor_units;
        let taking = taking(&real.facts, key, &number, minor_units, now);
        self.outbox.push((key.0.clone(), Notice::Taken(taking)));
        let dispute = Dispute { key: key.clone(), minor_units, given: None };
        self.disputes.insert(number, dispute);
    }

    /// A dispute is won: all of it, or `part`.
    pub(super) fn give_back(&mut self, number: &str, part: Option<i64>, now: Timestamp) {
        let dispute = self.disputes.get_mut(number).expect("it is there");
        let minor_units =
            part.map_or(dispute.minor_units, |part| part.clamp(1, dispute.minor_units));
        dispute.given = Some(minor_units);
        let real = self.payments.get_mut(&dispute.key).expect("it is there");
        real.taken -= minor_units;
        let taking = taking(&real.facts, &dispute.key, number, minor_units, now);
        self.outbox.push((dispute.key.0.clone(), Notice::GivenBack(taking)));
    }

    /// The channel refunds without being asked, as far as money is left.
    pub(super) fn refund_behind(&mut self, key: &(String, String), minor_units: i64) {
        let real = self.payments.get_mut(key).expect("it is there");
        let left = real.facts.minor_units - real.refunded - real.behind - real.taken;
        real.behind += minor_units.min(left).max(0);
        self.hint(key);
    }

    /// Something may have changed about a payment.
    pub(super) fn hint(&mut self, key: &(String, String)) {
        let merchant_no = self.payments[key].facts.merchant_no.clone();
        self.outbox.push((key.0.clone(), Notice::Hint { merchant_no }));
    }

    /// A hint of an order: it was closed, or has failed, or nothing.
    pub(super) fn hint_of_order(&mut self, nth: u64) {
        let count = u64::try_from(self.orders.len()).expect("few");
        if count > 0 {
            let place = usize::try_from(nth % count).expect("few");
            let (no, order) = self.orders.iter().nth(place).expect("counted");
            let (channel, merchant_no) = (order.channel.clone(), no.clone());
            self.outbox.push((channel, Notice::Hint { merchant_no }));
        }
    }

    /// The payments of an order.
    pub(super) fn payments_of<'a>(
        &'a self,
        merchant_no: &'a str,
    ) -> impl Iterator<Item = &'a Real> {
        self.payments.values().filter(move |real| real.facts.merchant_no == merchant_no)
    }
}

impl Bought {
    fn seen<'a>(
        &'a self,
        references: &'a [String],
        now: Timestamp,
    ) -> impl Iterator<Item = &'a Intent> {
        let ends_payment = self.channel == CHANNELS[0];
        self.intents.iter().filter(move |intent| {
            let is_old = now.duration_since(intent.at).unsigned_abs() >= UNSEEN;
            ends_payment || is_old || references.contains(&intent.reference)
        })
    }
}

impl Real {
    /// The facts as an answer has them now.
    fn shown(&self) -> Facts {
        let gone = self.refunded + self.behind;
        let returned = match gone {
            0 => Returned::None,
            _ if gone >= self.facts.minor_units => Returned::Whole,
            _ => Returned::Part,
        };
        Facts { returned, ..self.facts.clone() }
    }

    /// Whether it bears the mark of an order.
    pub(super) fn is_marked(&self) -> bool {
        RechargeId::parse(&self.facts.merchant_no).is_some()
    }
}

/// The message about money that was taken or given back. A dispute of a card names the payment
/// alone.
fn taking(
    facts: &Facts,
    key: &(String, String),
    number: &str,
    minor_units: i64,
    at: Timestamp,
) -> Taking {
    let named = key.0 == CHANNELS[0];
    Taking {
        merchant_no: named.then(|| facts.merchant_no.clone()),
        trade_no: facts.trade_no.clone(),
        number: number.to_owned(),
        minor_units,
        currency: facts.currency.clone(),
        at,
    }
}
