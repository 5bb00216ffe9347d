//! Whole lives of venues from a seed: the production core, ledger and log over a disk in memory.
//! Two venues and transfers meet in one log; processes are killed and lose power; older sessions go
//! on sending. The naive model judges every decision, and every balance after each start.

use std::collections::{BTreeMap, BTreeSet};

use domain::posting::Posting;
use wal::Sequence;
use wal::memory::Memory;

use super::lives::{self, Broken, Chance, ensure, follow, left_behind, of_facts};
use super::model::Model;
use super::*;
use crate::core::{Numbered, Sent};
use crate::venue::{Ending, Reason, VenueHalt};

/// Seeds of each test; a planted bug must be found within them.
const SEEDS: u64 = 60;
const STEPS: u64 = 400;
const WINDOW: usize = 24;
const WORLD: Places = Places {
    accounts_max: 40,
    outcomes_max: 4_000,
    venues: VenuePlaces { holds_max: 60, venues_max: 2, window: WINDOW },
};

/// The same without room for both balances of each user.
const TIGHT: Places = Places { accounts_max: 4, ..WORLD };

/// A bug planted in the shim around the core, or in the table of holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bug {
    /// A hold of another venue is released.
    AnothersHold,
    /// The window forgets answers that are not acknowledged.
    ForgetsEarly,
    /// A command of an older epoch is decided.
    EpochNotCompared,
    /// The last leg is left out.
    HalfAPosting,
    /// ALL is the amount before the posting.
    AllBefore,
    /// A session is told an answer before it is durable.
    ToldBeforeSync,
    /// A hold keeps no place for the balance that its SETTLE may make.
    PlaceNotKept,
}

impl Chance {
    fn amount(&mut self) -> u64 {
        if self.one_in(6) { ALL } else { self.below(60) }
    }

    fn leg(&mut self, last: u64) -> Leg {
        let asset = if self.one_in(2) { BTC } else { USD };
        let mut place = || match self.below(5) {
            0 | 1 => Place::Available(self.below(5) + 1),
            _ => Place::Hold(last.saturating_sub(self.below(12))),
        };
        let (from, to) = (place(), place());
        Leg { from, to, asset, amount: self.amount() }
    }

    /// A part of a hold, a fee out of it, and the rest to its owner.
    fn trade(&mut self, hold: u64, owner: u64, asset: u32) -> Command {
        let (seller, part) = (available(self.below(4) + 1), self.below(9) + 1);
        settle([
            leg(Place::Hold(hold), seller, asset, part),
            leg(seller, available(5), asset, 1),
            leg(Place::Hold(hold), available(owner), asset, ALL),
        ])
    }

    fn command(&mut self, last: u64) -> Command {
        let asset = if self.one_in(2) { BTC } else { USD };
        let user = self.below(5) + 1;
        match self.below(8) {
            0..3 => {
                let onto = if self.one_in(5) { last.saturating_sub(self.below(8)) } else { 0 };
                Command::Reserve { reference: 1, user, asset, amount: self.below(90), onto }
            }
            3..6 => {
                let count = self.below(5);
                settle((0..count).map(|_| self.leg(last)).collect::<Vec<_>>())
            }
            6 => release(last.saturating_sub(self.below(12)), self.amount()),
            _ => {
                let to = available(self.below(5) + 1);
                post([leg(available(user), to, asset, self.below(200))])
            }
        }
    }
}

/// A venue's own view: it survives every process.
#[derive(Default)]
struct Client {
    epoch: u64,
    /// Its commands by number: a recorded one is repeated as it is.
    sent: BTreeMap<u64, Command>,
    /// Durable answers, and the last one acknowledged.
    told: BTreeMap<u64, NumberedAnswer>,
    acknowledged: u64,
}

/// A process with the answers that wait for their record: venue, number, answer.
type Process = lives::Process<(u32, u64, NumberedAnswer)>;

struct Trading {
    chance: Chance,
    bug: Option<Bug>,
    places: Places,
    disk: Memory,
    clients: [Client; 2],
    /// The naive model after each record.
    models: BTreeMap<Sequence, Model>,
    orders: u64,
}

fn name() -> Text<32> {
    Text::new("venue").expect("short")
}

impl Trading {
    fn start(&mut self) -> Result<Process, Broken> {
        let mut ledger = Ledger::new(self.places);
        ledger.holds.keeps_none = self.bug == Some(Bug::PlaceNotKept);
        let mut process = Process::start(&self.disk, ledger)?;
        self.models.split_off(&(process.core.ledger().sequence() + 1));
        let symbol = Text::new("ASSET").expect("short");
        for asset in [BTC, USD] {
            self.ask(&mut process, &Asked::RegisterAsset { asset, precision: 8, symbol });
        }
        for id in [1, 2] {
            self.ask(&mut process, &Asked::AddVenue { id, name: name(), posts: true });
            self.open(&mut process, id)?;
        }
        self.judge(&process)?;
        Ok(process)
    }

    fn model(&self) -> Model {
        self.models.last_key_value().map(|(_, model)| model.clone()).unwrap_or_default()
    }

    /// A command by name; the model follows a success of a transfer or a status.
    fn ask(&mut self, process: &mut Process, command: &Asked) -> Answer {
        let before = process.core.ledger().sequence();
        let (answer, record) = process.core.decide(command, 7);
        let mut model = self.model();
        if record > before {
            let key = |user, asset| (user, asset);
            follow(command, answer, &mut model.available, key, &mut model.accounts);
            self.models.insert(record, model);
        }
        answer
    }

    /// A venue opens its next session. No answer that it was told is taken back.
    fn open(&mut self, process: &mut Process, id: u32) -> Result<(), Broken> {
        let client = &mut self.clients[index(id)];
        client.epoch += 1;
        let epoch = client.epoch;
        let told = client.told.last_key_value().map_or(0, |(number, _)| *number);
        match self.ask(process, &Asked::OpenVenue { id, epoch, told }) {
            Answer::Opened { last, acknowledged, .. } => {
                let client = &mut self.clients[index(id)];
                ensure(acknowledged <= client.acknowledged, || {
                    "acknowledged by itself".to_owned()
                })?;
                client.sent.split_off(&(last + 1));
                Ok(())
            }
            other => Err(Broken(format!("an answer is not taken back: {other:?}"))),
        }
    }

    fn sync(&mut self, process: &mut Process) {
        for (venue, number, answer) in process.sync() {
            self.clients[index(venue)].told.insert(number, answer);
        }
    }

    /// A venue sends one number, with the shim's bug.
    fn send(
        &mut self,
        process: &mut Process,
        id: u32,
        number: u64,
        epoch: u64,
    ) -> Result<(), Broken> {
        let state = process.core.ledger().venue_state(id).expect("registered");
        let client = &self.clients[index(id)];
        let known = client.sent.get(&number).cloned();
        let holds = self.model().holds;
        let mut own = holds.iter().filter(|((venue, _), _)| *venue == id);
        let nth = usize::try_from(self.chance.below(6)).expect("small");
        let command = match (known.clone(), own.nth(nth)) {
            (Some(known), _) => known,
            (None, Some((&(_, hold), &(owner, asset, _)))) if self.chance.one_in(4) => {
                self.chance.trade(hold, owner, asset)
            }
            (None, _) => self.chance.command(state.last),
        };
        let client = &self.clients[index(id)];
        let (current, acknowledged) = (client.epoch, client.acknowledged);
        let mut sent = Sent { epoch, acknowledged, halt: VenueHalt::Off, told: 0 };
        let mut posted = Market::posted(id, number, &command);
        match self.bug {
            Some(Bug::EpochNotCompared) => sent.epoch = current,
            Some(Bug::ForgetsEarly) => sent.acknowledged = state.last,
            Some(Bug::HalfAPosting) if posted.legs.len() > 1 => drop(posted.legs.pop()),
            Some(Bug::AllBefore) => all_before(process.core.ledger(), &mut posted),
            Some(Bug::AnothersHold) => self.take_anothers(process, &posted),
            _ => {}
        }
        let before = process.core.ledger().sequence();
        let done = process.core.number(&mut posted, sent, 7);
        if epoch != current {
            return ensure(done == Numbered::Fenced, || {
                format!("an older epoch is shut out: {done:?}")
            });
        }
        match done {
            Numbered::Answer(answer) if answer.record > before => {
                let mut model = self.model();
                let decided = match answer.decision {
                    Decision::Success => Ok(()),
                    Decision::Refused(code) => Err((code, answer.leg)),
                };
                let full = decided == Err((Code::Overloaded, 0));
                if !full {
                    let want = model.decide(id, number, &command);
                    ensure(decided == want, || {
                        format!("{decided:?} instead of {want:?}: {command:?}")
                    })?;
                }
                ensure(!full || self.may_be_full(id, number, &command), || {
                    format!("an end is always possible: {command:?}")
                })?;
                self.models.insert(answer.record, model);
                let client = &mut self.clients[index(id)];
                client.sent.insert(number, command);
                if self.bug == Some(Bug::ToldBeforeSync) {
                    client.told.insert(number, answer);
                }
                process.waiting.push((id, number, answer));
                Ok(())
            }
            Numbered::Answer(answer) => {
                let client = &self.clients[index(id)];
                let told = client.told.get(&number);
                ensure(known.is_some() && told.is_none_or(|told| *told == answer), || {
                    format!("a repeat has the same answer: {answer:?}")
                })
            }
            Numbered::Close(Ending::Forgotten) => ensure(number <= acknowledged, || {
                "nothing is forgotten that is not acknowledged".to_owned()
            }),
            Numbered::Close(Ending::Violation) => {
                Err(Broken("the same body is no violation".to_owned()))
            }
            Numbered::Back { reason: Reason::Gap, .. } => {
                ensure(number > state.last + 1, || "only a missing number is a gap".to_owned())
            }
            Numbered::Back { reason: Reason::Window, .. } => {
                let behind = state.last - acknowledged;
                ensure(behind >= WINDOW as u64, || format!("a window of {behind} is not full"))
            }
            Numbered::Back { reason: Reason::NoRoom, .. } => Ok(()),
            Numbered::Back { reason: Reason::Halted, .. } | Numbered::Fenced => {
                Err(Broken(format!("{done:?}: neither halted nor fenced")))
            }
        }
    }

    /// Whether a command may lack a place: an end only if it makes more balances than its holds
    /// keep. A hold keeps one until a SETTLE has made a balance for it.
    fn may_be_full(&self, id: u32, number: u64, command: &Command) -> bool {
        let Command::Settle { legs, .. } = command else {
            return matches!(command, Command::Reserve { .. } | Command::Post { .. });
        };
        let holds = |legs: &Posting| -> BTreeSet<u64> {
            let places = legs.iter().flat_map(|leg| [leg.from, leg.to]);
            places
                .filter_map(|place| if let Place::Hold(hold) = place { Some(hold) } else { None })
                .collect()
        };
        let mut keepers = holds(legs);
        for earlier in self.clients[index(id)].sent.range(..number).map(|(_, earlier)| earlier) {
            if let Command::Settle { legs, .. } = earlier {
                keepers = &keepers - &holds(legs);
            }
        }
        let (before, mut after) = (self.model(), self.model());
        let admitted = after.decide(id, number, command).is_ok();
        admitted && after.available.len() - before.available.len() > keepers.len()
    }

    fn take_anothers(&mut self, process: &mut Process, posted: &Posted) {
        let other = 3 - posted.venue;
        let state = process.core.ledger().venue_state(other).expect("registered");
        let Some(Place::Hold(number)) = posted.legs.first().map(|leg| leg.from) else { return };
        let mut found = Vec::new();
        process.core.ledger().holds_of(other, 0, 1_000, &mut found);
        if found.iter().all(|row| row.number != number) {
            return;
        }
        let mut stolen = Market::posted(other, state.last + 1, &release(number, ALL));
        let (epoch, acknowledged) = (state.epoch, state.acknowledged);
        process.core.number(
            &mut stolen,
            Sent { epoch, acknowledged, halt: VenueHalt::Off, told: 0 },
            7,
        );
    }

    /// Balances, holds and sums are those of the model.
    fn judge(&self, process: &Process) -> Result<(), Broken> {
        let ledger = process.core.ledger();
        let model = self.model();
        for (&(user, asset), &units) in &model.available {
            let has = ledger.available(user, asset);
            ensure(has == units.into(), || {
                format!("{has} of {units}: user {user}, asset {asset}")
            })?;
        }
        let mut holds = BTreeMap::new();
        for venue in [1, 2] {
            let mut found = Vec::new();
            ledger.holds_of(venue, 0, 1_000, &mut found);
            let rows = found.into_iter();
            holds.extend(
                rows.map(|row| ((venue, row.number), (row.user, row.asset, row.remaining))),
            );
        }
        ensure(holds == model.holds, || format!("{holds:?} instead of {:?}", model.holds))?;
        of_facts(ledger, self.places).map(drop)
    }

    fn step(&mut self, process: &mut Process) -> Result<(), Broken> {
        let id = u32::try_from(self.chance.below(2)).expect("small") + 1;
        let state = process.core.ledger().venue_state(id).expect("registered");
        let client = &mut self.clients[index(id)];
        let epoch = client.epoch;
        match self.chance.below(20) {
            0..10 => self.send(process, id, state.last + 1, epoch),
            10 => {
                let number = state.last.saturating_sub(self.chance.below(WINDOW as u64));
                let asked = self.clients[index(id)].sent.contains_key(&number);
                if asked { self.send(process, id, number, epoch) } else { Ok(()) }
            }
            11 => {
                let number = state.last + 2 + self.chance.below(3);
                self.send(process, id, number, epoch)
            }
            12 => self.send(process, id, state.last + 1, epoch - 1),
            13 => {
                let told = client.told.last_key_value().map_or(0, |(number, _)| *number);
                client.acknowledged += self.chance.below(told - client.acknowledged + 1);
                Ok(())
            }
            14 => {
                let (user, op) = (self.chance.below(5) + 1, self.chance.below(2));
                self.orders += 1;
                let order = Order {
                    op: if op == 0 { Op::Deposit } else { Op::Withdraw },
                    req_id: self.orders.into(),
                    cid: Text::EMPTY,
                    user,
                    asset: if self.chance.one_in(2) { BTC } else { USD },
                    amount: self.chance.below(300) + 1,
                    direction: Direction::FundingToSpot,
                    order_number: self.orders,
                };
                self.ask(process, &Asked::Order(order));
                Ok(())
            }
            15 => {
                let choices = [AccountStatus::Active, AccountStatus::Active, AccountStatus::Frozen];
                let status = choices[usize::try_from(self.chance.below(3)).expect("small")];
                let user = self.chance.below(5) + 1;
                self.ask(process, &Asked::SetStatus { user, status });
                Ok(())
            }
            16 => self.open(process, id),
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

fn index(id: u32) -> usize {
    usize::try_from(id).expect("small") - 1
}

/// Replaces ALL by the amount before the posting.
fn all_before(ledger: &Ledger, posted: &mut Posted) {
    for leg in &mut posted.legs {
        if let (ALL, Place::Hold(number)) = (leg.amount, leg.from)
            && number > 0
        {
            let mut found = Vec::new();
            ledger.holds_of(posted.venue, number - 1, 1_000, &mut found);
            let row = found.into_iter().find(|row| row.number == number);
            leg.amount = row.map_or(1, |row| row.remaining);
        }
    }
}

fn run(seed: u64, bug: Option<Bug>) -> Result<u64, Broken> {
    let mut trading = Trading {
        chance: Chance::new(seed),
        bug,
        places: if seed.is_multiple_of(2) { WORLD } else { TIGHT },
        disk: Memory::new(),
        clients: Default::default(),
        models: BTreeMap::new(),
        orders: 0,
    };
    trading.live()
}

/// L12, L13, L15, HLD-014. Goal: no seed breaks a law.
#[test]
fn no_seed_breaks_a_law_of_venues() {
    let mut lives = 0;
    for seed in 0..SEEDS {
        lives += run(seed, None).unwrap_or_else(|broken| panic!("seed {seed}: {}", broken.0));
    }
    assert!(lives > 5 * SEEDS, "{lives} lives");
}

/// RCV-009. Goal: each planted bug is found within the seeds.
#[test]
fn every_planted_bug_of_venues_is_found() {
    for bug in [
        Bug::AnothersHold,
        Bug::ForgetsEarly,
        Bug::EpochNotCompared,
        Bug::HalfAPosting,
        Bug::AllBefore,
        Bug::ToldBeforeSync,
        Bug::PlaceNotKept,
    ] {
        let found = (0..SEEDS).find_map(|seed| run(seed, Some(bug)).err().map(|why| (seed, why)));
        let (seed, why) = found.unwrap_or_else(|| panic!("{bug:?} is not found"));
        println!("{bug:?}: seed {seed}: {}", why.0);
    }
}
