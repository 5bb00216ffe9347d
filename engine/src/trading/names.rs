//! Whole lives of transactions from a seed: the production core, ledger and log over a disk in
//! memory. Services reserve, settle, release and post by name among a venue, transfers, statuses
//! and a rising watermark; processes are killed and lose power. A naive model judges every answer,
//! and every balance after each start.

use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};

use wal::Sequence;
use wal::memory::Memory;

use super::lives::{self, Broken, Chance, ensure, follow, left_behind, of_facts};
use super::transactions::body;
use super::*;
use crate::core::{Numbered, Sent};
use crate::named::{Named, NamedAnswer, NamedBug, NamedPosting};
use crate::venue::VenueHalt;

/// Seeds of each test; a planted bug must be found within them.
const SEEDS: u64 = 60;
const STEPS: u64 = 400;
const USERS: u64 = 6;
const WORLD: Places = Places {
    accounts_max: 40,
    outcomes_max: 4_000,
    venues: VenuePlaces { holds_max: 60, venues_max: 1, window: 8 },
};
/// Without room for all accounts, balances, holds and outcomes.
const TIGHT: Places = Places {
    accounts_max: 4,
    outcomes_max: 60,
    venues: VenuePlaces { holds_max: 6, venues_max: 1, window: 8 },
};

/// User, asset and purpose: 0 is the available amount, another one a freeze.
type Balance = (u64, u32, u16);

/// The amount that a place names; `None` for the outside.
fn balance(place: Place, asset: u32) -> Option<Balance> {
    match place {
        Place::Available(user) => Some((user, asset, 0)),
        Place::Frozen { user, purpose } => Some((user, asset, purpose)),
        Place::Outside => None,
        place => panic!("{place:?}"),
    }
}

/// The legs of a posting, and success or the refusal with its leg.
type Decided = (Vec<Leg>, Result<(), (Code, u8)>);

/// A transaction in the naive model.
#[derive(Clone, Default)]
struct Deal {
    /// The legs and the decision of each RESERVE and POST, by operation and round.
    rounds: BTreeMap<(Op, u8), Decided>,
    /// The round of the open RESERVE.
    open: Option<u8>,
    /// SETTLE or RELEASE.
    end: Option<Op>,
    held: BTreeMap<Balance, u64>,
}

/// The naive model: amounts by name, legs booked one after the other.
#[derive(Clone, Default)]
struct Naive {
    available: BTreeMap<Balance, u64>,
    accounts: BTreeMap<u64, AccountStatus>,
    deals: BTreeMap<u128, Deal>,
    /// Holds of the venue by number.
    venue: BTreeMap<u64, (u64, u32, u64)>,
    /// From outside less to the outside, by asset.
    crossed: BTreeMap<u32, i128>,
    watermark: u64,
}

/// The answer to a command by name that the model expects.
#[derive(Clone, Debug, PartialEq)]
enum Want {
    Now(Result<(), (Code, u8)>),
    Before(Result<(), (Code, u8)>),
    Violation,
    /// Nothing is recorded: below the watermark.
    Nothing,
}

/// For each balance its change by the legs, and its lowest point below 0 on the way.
fn walk(legs: &[Leg]) -> BTreeMap<Balance, (i128, i128)> {
    let mut walked = BTreeMap::<Balance, (i128, i128)>::new();
    for leg in legs {
        for (place, sign) in [(leg.from, -1), (leg.to, 1)] {
            let Some(key) = balance(place, leg.asset) else { continue };
            let (sum, lowest) = walked.entry(key).or_default();
            *sum += sign * i128::from(leg.amount);
            *lowest = (*lowest).min(*sum);
        }
    }
    walked
}

/// The user of a place; `None` for the outside.
fn user_of(place: Place) -> Option<u64> {
    match place {
        Place::Available(user) | Place::Frozen { user, .. } => Some(user),
        Place::Outside => None,
        other => panic!("{other:?}"),
    }
}

fn units(signed: i128) -> u64 {
    u64::try_from(signed).expect("an amount")
}

impl Naive {
    /// The first leg that fails, with the amounts of `held` beside the others.
    fn judge(&self, legs: &[Leg], held: &BTreeMap<Balance, u64>) -> Result<(), (Code, u8)> {
        let mut made = BTreeSet::new();
        if legs.is_empty() {
            return Err((Code::InvalidPosting, 0));
        }
        for (index, leg) in (0..).zip(legs) {
            let fail = |code| Err((code, index));
            let (from, to) = (user_of(leg.from), user_of(leg.to));
            let frozen = |place: Place| matches!(place, Place::Frozen { .. });
            let crosses = from.is_none() || to.is_none();
            if leg.amount == 0
                || leg.from == leg.to
                || (crosses && (frozen(leg.from) || frozen(leg.to)))
            {
                return fail(Code::InvalidPosting);
            }
            let unfreezes = frozen(leg.from) && from == to;
            match from.map(|from| (from, self.accounts.get(&from))) {
                _ if unfreezes => {}
                Some((from, None)) if !made.contains(&from) => {
                    return fail(Code::SourceAccountNotFound);
                }
                Some((_, Some(AccountStatus::Frozen))) => return fail(Code::AccountFrozen),
                Some((_, Some(AccountStatus::Disabled))) => return fail(Code::AccountDisabled),
                _ => {}
            }
            let payee = to.filter(|_| from != to).and_then(|to| self.accounts.get(&to));
            if payee == Some(&AccountStatus::Disabled) {
                return fail(Code::AccountDisabled);
            }
            made.extend(to);
            let Some(from) = from else { continue };
            let key = balance(leg.from, leg.asset).expect("a user's");
            let lowest = walk(&legs[..=usize::from(index)])[&key].1;
            let of = |amounts: &BTreeMap<Balance, u64>| amounts.get(&key).copied().unwrap_or(0);
            if lowest.unsigned_abs() > u128::from(of(&self.available) + of(held)) {
                let short = if frozen(leg.from) {
                    Code::InsufficientFrozen
                } else {
                    Code::InsufficientBalance
                };
                return fail(short);
            }
            made.insert(from);
        }
        Ok(())
    }

    fn expect(&self, op: Op, name: u128, round: u8, legs: &[Leg], number: u64) -> Want {
        let none = Deal::default();
        let deal = self.deals.get(&name).unwrap_or(&none);
        let below = number < self.watermark;
        let ends = matches!(op, Op::Settle | Op::Release);
        if below && !(ends && deal.open.is_some()) {
            return Want::Nothing;
        }
        let open = deal.open.map(|round| &deal.rounds[&(Op::Reserve, round)].0);
        match (op, deal.end) {
            (Op::Settle | Op::Release, Some(end)) if end != op => Want::Violation,
            (Op::Release, Some(_)) => Want::Before(SUCCESS),
            (Op::Release, None) => {
                let mut posts = deal.rounds.iter().filter(|((op, _), _)| *op == Op::Post);
                let posted = posts.any(|(_, (_, decided))| decided.is_ok());
                if posted && open.is_none() { Want::Violation } else { Want::Now(SUCCESS) }
            }
            (Op::Settle, Some(_)) => {
                let last = deal
                    .rounds
                    .iter()
                    .rfind(|((op, _), (_, decided))| *op == Op::Reserve && decided.is_ok());
                let same = last.is_some_and(|(_, (settled, _))| settled == legs);
                if same { Want::Before(SUCCESS) } else { Want::Violation }
            }
            (Op::Settle, None) => {
                let same = open.is_some_and(|open| open == legs);
                if same { Want::Now(SUCCESS) } else { Want::Violation }
            }
            (op, end) => match deal.rounds.get(&(op, round)) {
                Some((sent, decided)) if sent == legs => Want::Before(*decided),
                Some(_) => Want::Violation,
                None => Want::Now(self.begin(deal, op, round, end, legs)),
            },
        }
    }

    fn begin(
        &self,
        deal: &Deal,
        op: Op,
        round: u8,
        end: Option<Op>,
        legs: &[Leg],
    ) -> Result<(), (Code, u8)> {
        let later = |(other, later): &(Op, u8)| *other == Op::Reserve && *later > round;
        match end {
            Some(Op::Release) => return Err((Code::TransactionAborted, 0)),
            Some(_) => return Err((Code::TransactionDecided, 0)),
            None if op == Op::Reserve && deal.rounds.keys().any(later) => {
                return Err((Code::TransactionDecided, 0));
            }
            None => {}
        }
        let none = BTreeMap::new();
        self.judge(legs, if op == Op::Reserve { &deal.held } else { &none })
    }

    /// Carries out a recorded decision.
    fn book(&mut self, op: Op, name: u128, round: u8, legs: &[Leg], done: Result<(), (Code, u8)>) {
        let mut deal = self.deals.get(&name).cloned().unwrap_or_default();
        match op {
            Op::Settle | Op::Release => {
                for (balance, units) in std::mem::take(&mut deal.held) {
                    *self.available.get_mut(&balance).expect("it has held") += units;
                }
                if op == Op::Settle {
                    self.move_all(legs);
                }
                (deal.open, deal.end) = (None, Some(op));
            }
            op => {
                deal.rounds.insert((op, round), (legs.to_vec(), done));
                match (op, done) {
                    (_, Err(_)) => {}
                    (Op::Reserve, Ok(())) => {
                        for (balance, units) in std::mem::take(&mut deal.held) {
                            *self.available.get_mut(&balance).expect("it has held") += units;
                        }
                        for (balance, (_, lowest)) in walk(legs) {
                            if lowest < 0 {
                                let apart = units(-lowest);
                                *self.available.get_mut(&balance).expect("judged") -= apart;
                                deal.held.insert(balance, apart);
                            }
                        }
                        deal.open = Some(round);
                    }
                    (_, Ok(())) => self.move_all(legs),
                }
            }
        }
        self.deals.insert(name, deal);
    }

    fn move_all(&mut self, legs: &[Leg]) {
        for leg in legs {
            let crossed = self.crossed.entry(leg.asset).or_default();
            *crossed += match (leg.from, leg.to) {
                (Place::Outside, _) => i128::from(leg.amount),
                (_, Place::Outside) => -i128::from(leg.amount),
                _ => 0,
            };
        }
        for (balance, (change, _)) in walk(legs) {
            let available = self.available.entry(balance).or_default();
            *available = units(i128::from(*available) + change);
            self.accounts.entry(balance.0).or_insert(AccountStatus::Active);
        }
    }
}

impl Chance {
    fn payment(&mut self) -> Leg {
        let asset = if self.one_in(3) { BTC } else { USD };
        let (from, to) = (self.below(USERS) + 1, self.below(USERS) + 1);
        let amount = self.below(80) + u64::from(!self.one_in(20));
        let purpose = if self.one_in(3) { 2 } else { 1 };
        // A record has no room for two purposes in a leg.
        let frozen = |user| Place::Frozen { user, purpose };
        let (from, to) = match self.below(15) {
            0 | 1 => (available(from), frozen(from)),
            2 | 3 => (frozen(from), available(from)),
            4 => (available(from), frozen(to)),
            5 => (frozen(from), available(to)),
            6 => (Place::Outside, available(to)),
            7 => (available(from), Place::Outside),
            8 if self.one_in(8) => (frozen(from), Place::Outside),
            _ => (available(from), available(to)),
        };
        leg(from, to, asset, amount)
    }
}

/// A process with the answers that wait for their record.
type Process = lives::Process<((u128, Op, u8), NamedAnswer)>;

struct Service {
    chance: Chance,
    bug: Option<NamedBug>,
    places: Places,
    disk: Memory,
    /// The model after each record.
    models: BTreeMap<Sequence, Naive>,
    /// Answers that have left, by transaction, operation and round.
    told: BTreeMap<(u128, Op, u8), NamedAnswer>,
    orders: u64,
    /// Transactions so far.
    names: u128,
}

impl Service {
    fn model(&self) -> Naive {
        self.models.last_key_value().map(|(_, model)| model.clone()).unwrap_or_default()
    }

    fn start(&mut self) -> Result<Process, Broken> {
        let mut ledger = Ledger::new(self.places);
        ledger.named_bug = self.bug;
        let mut process = Process::start(&self.disk, ledger)?;
        let last = process.core.ledger().sequence();
        self.models.split_off(&(last + 1));
        for (name, answer) in &self.told {
            ensure(answer.record <= last, || format!("{name:?} is taken back"))?;
        }
        let symbol = Text::new("ASSET").expect("short");
        for asset in [BTC, USD] {
            self.ask(&mut process, &Asked::RegisterAsset { asset, precision: 8, symbol });
        }
        let name = Text::new("venue").expect("short");
        self.ask(&mut process, &Asked::AddVenue { id: 1, name, posts: false });
        self.ask(&mut process, &Asked::OpenVenue { id: 1, epoch: 0, told: 0 });
        self.judge(&process)?;
        Ok(process)
    }

    /// A command by ticket; the model follows it.
    fn ask(&mut self, process: &mut Process, command: &Asked) -> Answer {
        let before = process.core.ledger().sequence();
        let (answer, record) = process.core.decide(command, 7);
        let mut model = self.model();
        if record > before {
            let key = |user, asset| (user, asset, 0);
            follow(command, answer, &mut model.available, key, &mut model.accounts);
            if let Asked::RaiseWatermark { order_number } = command {
                model.watermark = *order_number;
            }
            self.models.insert(record, model);
        }
        answer
    }

    fn sync(&mut self, process: &mut Process) {
        self.told.extend(process.sync());
    }

    /// A command of a service, new or sent again.
    fn send(&mut self, process: &mut Process) -> Result<(), Broken> {
        let model = self.model();
        let fresh = self.names == 0 || self.chance.one_in(4);
        if fresh {
            self.names += 1;
        }
        // Mostly one of the last few.
        let back = if fresh { 0 } else { u128::from(self.chance.below(6)) };
        let name = self.names.saturating_sub(back).max(1);
        let deal = model.deals.get(&name).cloned().unwrap_or_default();
        let open = deal.open.map(|round| deal.rounds[&(Op::Reserve, round)].0.clone());
        let rounds = deal.rounds.keys().map(|(_, round)| *round).max().unwrap_or(0);
        let mut round = (rounds + 1).min(8);
        let op = match self.chance.below(10) {
            0..4 => Op::Reserve,
            4..7 => Op::Settle,
            7..9 => Op::Release,
            _ => Op::Post,
        };
        let mut legs = match op {
            Op::Release => Vec::new(),
            Op::Settle => open.unwrap_or_default(),
            _ => {
                let mut legs = open.unwrap_or_default();
                let more = usize::try_from(self.chance.below(4)).expect("small");
                legs.truncate(16 - more);
                legs.extend((0..more).map(|_| self.chance.payment()));
                legs
            }
        };
        if op == Op::Release && self.chance.one_in(30) {
            round = 1;
        }
        if op != Op::Release && self.chance.one_in(8) {
            // A repeat, or a round that comes late.
            round = u8::try_from(self.chance.below(8)).expect("small") + 1;
            if let Some((sent, _)) = deal.rounds.get(&(op, round))
                && !self.chance.one_in(4)
            {
                legs = sent.clone();
            }
        }
        self.send_one(process, op, &body(name, round, &legs))
    }

    fn send_one(
        &mut self,
        process: &mut Process,
        op: Op,
        posting: &NamedPosting,
    ) -> Result<(), Broken> {
        let (name, round, legs) = (posting.transaction.number(), posting.round, &posting.legs[..]);
        let mut model = self.model();
        let want = model.expect(op, name, round, legs, posting.order_number);
        let deal = model.deals.get(&name).cloned().unwrap_or_default();
        let before = process.core.ledger().sequence();
        let (answer, after) = process.core.name(&mut Named::new(op, posting), 7);
        let context = || format!("{op} {name} round {round} {legs:?}: {answer:?}, not {want:?}");
        if after == before {
            return match (answer, &want) {
                (Answer::Named(known), Want::Before(decided)) => {
                    ensure(result(&known) == *decided, context)
                }
                (Answer::Violation(_), Want::Violation) | (_, Want::Nothing) => Ok(()),
                (Answer::Overloaded, Want::Now(_)) => {
                    // L13: an end with holds has its place.
                    let end = matches!(op, Op::Settle | Op::Release) && deal.open.is_some();
                    ensure(!end, context)
                }
                _ => Err(Broken(context())),
            };
        }
        let (Answer::Named(decided), Want::Now(expected)) = (answer, &want) else {
            return Err(Broken(context()));
        };
        ensure(result(&decided) == *expected && decided.record == after, context)?;
        model.book(op, name, round, legs, *expected);
        self.models.insert(after, model);
        process.waiting.push(((name, op, round), decided));
        Ok(())
    }

    /// The venue reserves or releases: money that transactions cannot have.
    fn trade(&mut self, process: &mut Process) {
        let state = process.core.ledger().venue_state(1).expect("registered");
        let (number, mut model) = (state.last + 1, self.model());
        let first = model.venue.first_key_value().map(|(number, _)| *number);
        let command = match first.filter(|_| self.chance.one_in(2)) {
            Some(hold) => release(hold, ALL),
            None => reserve(self.chance.below(USERS) + 1, USD, self.chance.below(40) + 1),
        };
        let mut posted = Market::posted(1, number, &command);
        let (epoch, acknowledged, halt) = (state.epoch, state.last, VenueHalt::Off);
        let done = process.core.number(&mut posted, Sent { epoch, acknowledged, halt, told: 0 }, 7);
        let Numbered::Answer(answer) = done else { return };
        if answer.decision == Decision::Success {
            match command {
                Command::Reserve { user, asset, amount, .. } => {
                    *model.available.get_mut(&(user, asset, 0)).expect("it has paid") -= amount;
                    model.venue.insert(number, (user, asset, amount));
                }
                Command::Release { hold, .. } => {
                    let (user, asset, amount) = model.venue.remove(&hold).expect("it was there");
                    *model.available.get_mut(&(user, asset, 0)).expect("it was there") += amount;
                }
                other => panic!("{other:?}"),
            }
        }
        self.models.insert(answer.record, model);
    }

    /// Balances, holds and sums are those of the model, and the facts lead back to them.
    fn judge(&self, process: &Process) -> Result<(), Broken> {
        let (ledger, model) = (process.core.ledger(), self.model());
        let mut freezes = 0;
        for (&(user, asset, purpose), &units) in &model.available {
            let frozen = |row: &&HoldFact| row.transaction == 0 && row.purpose == purpose;
            let has = match purpose {
                0 => ledger.available(user, asset),
                _ => {
                    freezes += usize::from(units > 0);
                    let rows = ledger.held_of(user, asset, 256);
                    rows.iter().find(frozen).map_or(0, |row| row.amount)
                }
            };
            ensure(has == units.into(), || {
                format!("{has} of {units}: user {user}, asset {asset}, purpose {purpose}")
            })?;
        }
        let rows = |name| ledger.transaction_holds(name);
        for (&name, deal) in &model.deals {
            let found: BTreeMap<Balance, u64> = rows(name)
                .map(|row| {
                    let amount = u64::try_from(row.amount).expect("a hold");
                    ((row.user, row.asset, row.purpose), amount)
                })
                .collect();
            ensure(found == deal.held, || format!("{name}: {found:?} instead of {:?}", deal.held))?;
        }
        let held: usize = model.deals.values().map(|deal| deal.held.len()).sum();
        let mut crossed = model.crossed.clone();
        crossed.retain(|_, crossed| *crossed != 0);
        let stated = ledger.facts().filter_map(|fact| match fact {
            Fact::Crossed { asset, brought } => Some((asset, brought)),
            _ => None,
        });
        let stated: BTreeMap<u32, i128> = stated.collect();
        ensure(stated == crossed, || format!("{stated:?} has crossed instead of {crossed:?}"))?;
        let count = held + model.venue.len() + freezes;
        ensure(ledger.hold_count() == count, || format!("{count} holds"))?;
        for (&(name, op, round), answer) in &self.told {
            let query = Asked::QueryNamed { transaction: name, op, round };
            let found = match ledger.step(&query) {
                Step::Known(Answer::QueryNamed(found)) => found,
                other => panic!("{other:?}"),
            };
            let gone = found.is_none() && body(name, 1, &[]).order_number < ledger.watermark();
            ensure(gone || found == Some(*answer), || format!("{name} {op} {round}: {found:?}"))?;
        }
        let restored = of_facts(ledger, self.places)?;
        let places =
            |ledger: &Ledger| (ledger.accounts_left(), ledger.balances_left(), ledger.holds_left());
        ensure(places(&restored) == places(ledger), || "a recount of the places".to_owned())
    }

    fn step(&mut self, process: &mut Process) -> Result<(), Broken> {
        match self.chance.below(20) {
            0..11 => self.send(process),
            11 | 12 => {
                self.trade(process);
                Ok(())
            }
            13 => {
                let takes = self.chance.one_in(3);
                self.orders += 1;
                let order = Order {
                    op: if takes { Op::Withdraw } else { Op::Deposit },
                    // Apart from the names of transactions, and of one order number space.
                    req_id: u128::from(self.orders) << 64,
                    cid: Text::EMPTY,
                    user: self.chance.below(USERS) + 1,
                    asset: if self.chance.one_in(3) { BTC } else { USD },
                    amount: self.chance.below(300) + 1,
                    direction: Direction::FundingToSpot,
                    order_number: body(self.names.max(1), 1, &[]).order_number,
                };
                self.ask(process, &Asked::Order(order));
                Ok(())
            }
            14 => {
                let choices = [AccountStatus::Active, AccountStatus::Active, AccountStatus::Frozen];
                let index = usize::try_from(self.chance.below(3)).expect("small");
                let status =
                    if self.chance.one_in(8) { AccountStatus::Disabled } else { choices[index] };
                let user = self.chance.below(USERS) + 1;
                self.ask(process, &Asked::SetStatus { user, status });
                Ok(())
            }
            15 if self.names > 5 => {
                // Some of the last transactions may be open yet.
                let name = self.names - u128::from(self.chance.below(6));
                let order_number = body(name, 1, &[]).order_number;
                self.ask(process, &Asked::RaiseWatermark { order_number });
                Ok(())
            }
            16 => self.judge(process),
            _ => {
                self.sync(process);
                Ok(())
            }
        }
    }

    fn live(&mut self) -> Result<u64, Broken> {
        let mut process = self.start()?;
        let mut lives = 1;
        for _ in 0..STEPS {
            if self.chance.one_in(40) {
                self.disk = left_behind(&self.disk, &mut self.chance);
                process = self.start()?;
                lives += 1;
            }
            self.step(&mut process)?;
        }
        self.judge(&process)?;
        Ok(lives)
    }
}

fn result(answer: &NamedAnswer) -> Result<(), (Code, u8)> {
    match answer.decision {
        Decision::Success => Ok(()),
        Decision::Refused(code) => Err((code, answer.leg)),
    }
}

fn run(seed: u64, bug: Option<NamedBug>) -> Result<u64, Broken> {
    let mut service = Service {
        chance: Chance::new(seed),
        bug,
        places: if seed.is_multiple_of(2) { WORLD } else { TIGHT },
        disk: Memory::new(),
        models: BTreeMap::new(),
        told: BTreeMap::new(),
        orders: 0,
        names: 0,
    };
    service.live()
}

/// L12, L13, MLT-007. Goal: no seed breaks a law of transactions.
#[test]
fn no_seed_breaks_a_law_of_transactions() {
    let mut lives = 0;
    for seed in 0..SEEDS {
        lives += run(seed, None).unwrap_or_else(|broken| panic!("seed {seed}: {}", broken.0));
    }
    assert!(lives > 5 * SEEDS, "{lives} lives");
}

/// RCV-009. Goal: each planted bug is found within the seeds. A panic of the core is a find: an
/// assertion of the ledger has stopped it.
#[test]
fn every_planted_bug_of_transactions_is_found() {
    for bug in [
        NamedBug::ReserveBehindRelease,
        NamedBug::ReleaseBehindSettle,
        NamedBug::ArrivingIsAvailable,
        NamedBug::PlaceNotKept,
        NamedBug::HalfAPosting,
        NamedBug::OutsideForgotten,
    ] {
        let lived = |seed| {
            let ran = catch_unwind(AssertUnwindSafe(|| run(seed, Some(bug))));
            ran.unwrap_or_else(|_| Err(Broken("an assertion of the ledger".to_owned())))
        };
        let found = (0..SEEDS).find_map(|seed| lived(seed).err().map(|why| (seed, why)));
        let (seed, why) = found.unwrap_or_else(|| panic!("{bug:?} is not found"));
        println!("{bug:?}: seed {seed}: {}", why.0);
    }
}
