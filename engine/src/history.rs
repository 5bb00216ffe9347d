//! Random histories: in every order of commands and evictions the ledger's sums hold, and every way
//! back leads to the same ledger.

use std::collections::{BTreeMap, BTreeSet};

use domain::account::AccountStatus;
use domain::code::Code;
use domain::transfer::{Decision, Direction, Op};
use proptest::prelude::*;
use proptest::sample::Index;
use wal::Record;

use super::external::{External, Outside};
use super::replay::{self, replay};
use crate::builder::Builder;
use crate::command::Command;
use crate::entry::Entry;
use crate::fact::{FACT_BYTES_MAX, Fact};
use crate::ledger::{Answer, Ledger, Step};
use crate::order::Order;
use crate::places::Places;
use crate::record::PAYLOAD_BYTES_MAX;
use crate::text::Text;
use crate::totals::Totals;

/// So few that histories run into the limits.
const PLACES: Places = Places::of_transfers(3, 24);
const LARGE: Places = Places::of_transfers(64, 1_024);

/// The next step. Numbers are taken modulo small bounds, so that few names meet often.
#[derive(Clone, Debug)]
enum HistoryStep {
    Order { op: Op, transfer: u8, user: u8, asset: u8, amount: u8, odd: bool, refuse: bool },
    Status { user: u8, status: AccountStatus },
    Asset { asset: u8 },
    Raise { by: u8 },
    Digest,
    Forget { looks: usize, leaves: usize },
}

fn step() -> impl Strategy<Value = HistoryStep> {
    let op = prop_oneof![
        4 => Just(Op::Deposit), 4 => Just(Op::Withdraw), 3 => Just(Op::Refund),
        2 => Just(Op::ExtDeposit), 1 => Just(Op::ExtWithdraw),
    ];
    // Refunds need their withdraws: users and amounts follow from the transfer, except in odd
    // orders.
    let rarely = || prop::bool::weighted(0.05);
    let order = (op, 0..12u8, 1..5u8, 1..4u8, 1..9u8, rarely(), rarely());
    let order = order.prop_map(|(op, transfer, user, asset, amount, odd, refuse)| {
        HistoryStep::Order { op, transfer, user, asset, amount, odd, refuse }
    });
    let status = prop_oneof![
        4 => Just(AccountStatus::Active), 1 => Just(AccountStatus::Frozen),
        1 => Just(AccountStatus::Disabled),
    ];
    prop_oneof![
        24 => order,
        1 => (1..5u8, status).prop_map(|(user, status)| HistoryStep::Status { user, status }),
        1 => (1..4u8).prop_map(|asset| HistoryStep::Asset { asset }),
        2 => (0..12u8).prop_map(|by| HistoryStep::Raise { by }),
        1 => Just(HistoryStep::Digest),
        4 => (0..64usize, 0..24usize).prop_map(|(looks, leaves)| HistoryStep::Forget { looks, leaves }),
    ]
}

/// A ledger, its log, and the sums that follow from the log.
struct History {
    ledger: Ledger,
    log: Vec<(Entry, u64)>,
    /// Every success: (user, asset), operation, amount, order number.
    successes: Vec<((u64, u32), Op, u64, u64)>,
    /// Every external operation.
    externals: Vec<External>,
    /// The refunded transfers, by order number: an evicted name may come again under another
    /// number.
    refunded: BTreeSet<(u128, u64)>,
}

impl History {
    fn new(places: Places) -> History {
        let mut history = History {
            ledger: Ledger::new(places),
            log: Vec::new(),
            successes: Vec::new(),
            externals: Vec::new(),
            refunded: BTreeSet::new(),
        };
        for asset in [1, 2] {
            history.run(asset_command(asset));
        }
        history
    }

    fn run(&mut self, command: Command) {
        let Step::Append(entry) = self.ledger.step(&command) else { return };
        self.log.push((entry.clone(), self.ledger.sequence() * 10));
        let (sequence, time_ns) = (self.ledger.sequence() + 1, self.ledger.sequence() * 10);
        let answer = self.ledger.apply(&entry, sequence, time_ns);
        if let Entry::External(external) = entry {
            self.externals.push(external);
        }
        if let (Answer::Decided(recorded), Entry::Order { order, .. }) = (answer, entry)
            && recorded.decision == Decision::Success
        {
            let key = (order.user, order.asset);
            self.successes.push((key, order.op, order.amount, order.order_number));
            if order.op.row().undoes.is_some() {
                self.refunded.insert((order.req_id, order.order_number));
            }
        }
    }

    /// Transfers are named by generation: names come again once most are below the watermark, and
    /// numbers rise.
    fn carry_out(&mut self, step: &HistoryStep) {
        let watermark = self.ledger.watermark();
        match *step {
            HistoryStep::Order { op, transfer, user, asset, amount, odd, refuse } => {
                // Some below the watermark, most above.
                let order_number = (watermark + u64::from(transfer)).saturating_sub(3);
                let (user, asset, amount) = match odd {
                    true => (user.into(), asset.into(), amount.into()),
                    false => (
                        order_number % 3 + 1,
                        1 + u32::from(order_number.is_multiple_of(2)),
                        order_number % 5 + 1,
                    ),
                };
                let order = Order {
                    op,
                    req_id: u128::from(order_number % 10) + 1,
                    cid: Text::EMPTY,
                    user,
                    asset,
                    amount,
                    direction: Direction::FundingToSpot,
                    order_number,
                };
                if op.is_external() && !odd {
                    let name = format!("key-{}", order_number % 10);
                    let refused = Decision::Refused(Code::InsufficientBalance);
                    self.run(Command::External(External {
                        op,
                        idem_key: Text::new(&name).expect("short"),
                        user,
                        asset,
                        amount,
                        order_number,
                        decision: if refuse { refused } else { Decision::Success },
                        balance_after: 7,
                    }));
                    return;
                }
                self.run(if refuse {
                    Command::Refuse { order, code: Code::ResolvedByOperator }
                } else {
                    Command::Order(order)
                });
            }
            HistoryStep::Status { user, status } => {
                self.run(Command::SetStatus { user: user.into(), status });
            }
            HistoryStep::Asset { asset } => self.run(asset_command(asset.into())),
            HistoryStep::Raise { by } => {
                self.run(Command::RaiseWatermark { order_number: watermark + u64::from(by) });
            }
            HistoryStep::Digest => self.run(Command::Digest),
            HistoryStep::Forget { looks, leaves } => self.ledger.forget(looks, leaves),
        }
    }

    /// The sums of the successes below an order number.
    fn settled(&self, below: u64) -> BTreeMap<(u64, u32), Totals> {
        let mut settled = BTreeMap::new();
        for &(key, op, amount, order_number) in &self.successes {
            let totals: &mut Totals = settled.entry(key).or_default();
            if order_number < below {
                *totals = totals.with(op, amount);
            }
        }
        settled
    }

    /// The sums of the external operations below an order number.
    fn outside(&self, below: u64) -> BTreeMap<u32, Outside> {
        let mut outside = BTreeMap::<u32, Outside>::new();
        for external in self.externals.iter().filter(|external| external.order_number < below) {
            let of_asset = outside.entry(external.asset).or_default();
            *of_asset = of_asset.with(external.op, external.decision, external.amount);
        }
        outside
    }

    /// The places without an outcome and without a refund that may still come.
    fn places_left(&self, places: Places) -> usize {
        let taken = self.ledger.facts().map(|fact| match fact {
            Fact::Outcome { req_id, op: Op::Withdraw, recorded }
                if recorded.decision == Decision::Success
                    && !self.refunded.contains(&(req_id, recorded.order_number)) =>
            {
                2
            }
            Fact::Outcome { .. } => 1,
            _ => 0,
        });
        places.outcomes_max - taken.sum::<usize>()
    }
}

fn asset_command(asset: u32) -> Command {
    let symbol = Text::new("ASSET").expect("short");
    Command::RegisterAsset { asset, precision: 8, symbol }
}

fn sum(ledger: &Ledger) -> u128 {
    ledger.facts().map(|fact| fact.digest()).fold(0, u128::wrapping_add)
}

/// All facts, sorted.
fn sorted(ledger: &Ledger) -> Vec<(u8, Vec<u8>)> {
    let bytes = |fact: Fact| {
        let mut buffer = [0; FACT_BYTES_MAX];
        let (tag, length) = fact.encode(&mut buffer);
        (tag, buffer[..length].to_vec())
    };
    let mut all: Vec<_> = ledger.facts().map(bytes).collect();
    all.sort_unstable();
    all
}

/// Replays the log's records after the ledger's last one.
fn catch_up(ledger: &mut Ledger, log: &[(Entry, u64)]) -> Result<(), replay::Error> {
    let behind = usize::try_from(ledger.sequence()).expect("small");
    for &(ref entry, time_ns) in &log[behind..] {
        let mut buffer = [0; PAYLOAD_BYTES_MAX];
        let length = entry.encode(&mut buffer);
        let sequence = ledger.sequence() + 1;
        let kind = entry.kind() as u8;
        let record = Record {
            sequence,
            durable: 0,
            time_ns,
            kind,
            payload: &buffer[..length],
            segment: 0,
            offset: 0,
            bytes: 0,
        };
        replay(ledger, &record)?;
    }
    Ok(())
}

fn restored(ledger: &Ledger, places: Places) -> Ledger {
    let mut builder = Builder::new(Ledger::new(places));
    ledger.facts().for_each(|fact| builder.add(fact).expect("a fact of a ledger"));
    builder.finish(ledger.sequence(), ledger.digest()).expect("the facts of a ledger")
}

proptest! {
    /// Goal: the running sums are equal to a recount, in every order of evictions. Method: after
    /// each step of a random history the digest, the places and the totals below the watermark are
    /// counted again from the facts and from the successes.
    #[test]
    fn what_is_carried_along_is_what_a_recount_gives(
        steps in prop::collection::vec(step(), 1..250)
    ) {
        let mut history = History::new(PLACES);
        for step in &steps {
            history.carry_out(step);
            prop_assert_eq!(history.ledger.digest(), sum(&history.ledger));
            prop_assert_eq!(history.ledger.places_left(), history.places_left(PLACES));
        }
        let watermark = history.ledger.watermark();
        for below in [watermark, watermark + 1, watermark + 5] {
            prop_assert_eq!(history.ledger.settled(below), Some(history.settled(below)));
            prop_assert_eq!(history.ledger.outside(below), Some(history.outside(below)));
        }
        history.ledger.forget_all();
        prop_assert_eq!(history.ledger.digest(), sum(&history.ledger));
        prop_assert_eq!(history.ledger.places_left(), history.places_left(PLACES));
        prop_assert_eq!(history.ledger.settled(watermark), Some(history.settled(watermark)));
        let below = history.ledger.facts().filter(|fact| match fact {
            Fact::Outcome { recorded, .. } => recorded.order_number < history.ledger.watermark(),
            _ => false,
        });
        prop_assert_eq!(below.count(), 0);
    }

    /// Goal: the same log gives the same ledger, from its beginning or from any snapshot, with
    /// other places, and with other evictions. Method: a random history. Its log is replayed from
    /// the beginning, and from the facts at a random record, before or after evictions.
    #[test]
    fn every_way_back_leads_to_the_same_ledger(
        steps in prop::collection::vec(step(), 1..250), cut in any::<Index>(), forget in any::<bool>()
    ) {
        let mut live = History::new(PLACES);
        steps.iter().for_each(|step| live.carry_out(step));

        let mut replayed = Ledger::new(PLACES);
        catch_up(&mut replayed, &live.log).expect("a log");
        let mut large = Ledger::new(LARGE);
        catch_up(&mut large, &live.log).expect("a log");

        let records = cut.index(live.log.len() + 1);
        let mut before = Ledger::new(LARGE);
        catch_up(&mut before, &live.log[..records]).expect("a log");
        if forget {
            before.forget_all();
        }
        let mut from_facts = restored(&before, PLACES);
        catch_up(&mut from_facts, &live.log).expect("the rest of a log");

        live.ledger.forget_all();
        for mut other in [replayed, large, from_facts, restored(&live.ledger, PLACES)] {
            prop_assert_eq!(other.digest(), live.ledger.digest());
            let watermark = live.ledger.watermark();
            prop_assert_eq!(other.settled(watermark), live.ledger.settled(watermark));
            prop_assert_eq!(other.outside(watermark), live.ledger.outside(watermark));
            other.forget_all();
            prop_assert_eq!(sorted(&other), sorted(&live.ledger));
        }
    }
}
