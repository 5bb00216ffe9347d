//! The state and the log together, without a thread: decide, append, apply.

use domain::posting::Breakdown;
use domain::shortage::{Capacity, Shortage};
use wal::{Medium, Sequence};

use crate::command::Command;
use crate::crash;
use crate::entry::Entry;
use crate::ledger::{Answer, FORGET_LEAVES, FORGET_LOOKS, Ledger, Step};
use crate::named::{Named, NamedStep};
use crate::op::number::{Door, NumberedAnswer};
use crate::order::Order;
use crate::posted::Posted;
use crate::record::{Kind, ORDER_BYTES_MAX, PAYLOAD_BYTES_MAX};
use crate::venue::{Ending, Reason, VenueHalt};

/// Outcomes checked in a turn without a command, and outcomes evicted: about 5 us, in which a
/// command may have to wait.
const IDLE_LOOKS: usize = 512;
const IDLE_LEAVES: usize = 8;
/// New work is refused while the log has room for fewer bytes. Refunds, statuses and marks of the
/// work under way still find room then.
pub(crate) const ROOM_RESERVED_BYTES: u64 = 8 * 1024;
/// A RESERVE and a POST, of a venue and of a service, are not decided while the log has room for
/// fewer bytes: SETTLEs and RELEASEs still find room then.
pub(crate) const VENUES_RESERVED_BYTES: u64 = 64 * 1024;
/// The smallest segment of a log with venues: that reserve takes a small part of one that is
/// prepared ahead.
pub const VENUES_SEGMENT_BYTES_MIN: u64 = 4 * VENUES_RESERVED_BYTES;

/// The state and the log together, without a thread. The simulation drives it command by command.
pub struct Core<M: Medium> {
    ledger: Ledger,
    writer: wal::Writer<M>,
    /// See [`Core::marked`].
    marked: Sequence,
    time_ns: u64,
    /// Bytes of all records appended.
    log_bytes: u64,
    payload: [u8; PAYLOAD_BYTES_MAX],
    /// The parts of the posting under way.
    parts: Breakdown,
}

/// The session of a command.
#[derive(Clone, Copy, Debug)]
pub struct Sent {
    /// Its epoch.
    pub epoch: u64,
    /// The last number that it has acknowledged.
    pub acknowledged: u64,
    /// The halt of the service.
    pub halt: VenueHalt,
    /// The highest number that the venue had an answer for at its Open.
    pub told: u64,
}

impl Sent {
    /// Whether the halt stops this number.
    fn stops(self, number: u64) -> bool {
        match self.halt {
            VenueHalt::Off => false,
            VenueHalt::Lost => number > self.told,
            VenueHalt::On => true,
        }
    }
}

/// Whether a command is refused in any state, such as a RESERVE of amount 0. Also form and assets
/// depend on the state: a venue that is registered anew may lack its right to POST.
fn is_refused_for_good(posted: &Posted) -> bool {
    posted.legs.first().is_some_and(|leg| leg.amount == 0)
}

/// The end of a numbered command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Numbered {
    /// Decided, now or before.
    Answer(NumberedAnswer),
    /// Not decided.
    Back {
        /// The number to go on with.
        number: u64,
        /// The reason.
        reason: Reason,
    },
    /// The session must end.
    Close(Ending),
    /// The session has ended: a newer one is open, or the venue is closed.
    Fenced,
}

impl<M: Medium> Core<M> {
    /// A core. Its ledger has applied every record of the log.
    pub fn new(ledger: Ledger, writer: wal::Writer<M>) -> Core<M> {
        assert_eq!(ledger.sequence(), writer.appended(), "the ledger is not the log's");
        let marked = ledger.sequence();
        let (payload, parts) = ([0; PAYLOAD_BYTES_MAX], Breakdown::default());
        Core { ledger, writer, marked, time_ns: 0, log_bytes: 0, payload, parts }
    }

    /// Decides one command. The answer may leave once the returned sequence is durable.
    pub fn decide(&mut self, command: &Command, time_ns: u64) -> (Answer, Sequence) {
        self.time_ns = time_ns;
        let answer = match self.ledger.step(command) {
            Step::Append(_) if opens_work(command) && self.writer.room() < ROOM_RESERVED_BYTES => {
                Answer::Overloaded
            }
            Step::Append(entry) => self.append(&entry),
            // It may have been decided a moment ago: the answer to a repeat waits for the same
            // sync.
            Step::Known(answer) => answer,
            Step::Violation(why) => Answer::Violation(why),
            Step::Full(_) => Answer::Overloaded,
            Step::Forgotten => Answer::Forgotten,
        };
        // Also after a refused command: a full map is freed by the commands that it refuses.
        self.ledger.forget(FORGET_LOOKS, FORGET_LEAVES);
        (answer, self.ledger.sequence())
    }

    /// Evicts some outcomes below the watermark when the core is idle. Returns whether more are
    /// left.
    pub fn forget(&mut self) -> bool {
        self.ledger.forget(IDLE_LOOKS, IDLE_LEAVES);
        !self.ledger.has_forgotten()
    }

    /// Appends an entry, then applies it. If the log has no room, nothing has changed.
    fn append(&mut self, entry: &Entry) -> Answer {
        let length = entry.encode(&mut self.payload);
        let payload = &self.payload[..length];
        debug_assert_eq!(
            Entry::decode(entry.kind() as u8, payload),
            Ok(entry.clone()),
            "reads back"
        );
        crash::point("engine_before_append");
        match self.writer.append(entry.kind() as u8, self.time_ns, payload) {
            Ok(sequence) => {
                self.log_bytes += wal::record_bytes(length);
                self.ledger.apply(entry, sequence, self.time_ns)
            }
            Err(wal::Error::Full) => Answer::Overloaded,
            Err(error) => panic!("append to the log: {error}"),
        }
    }

    /// Decides one command by name; `named` gets the decision. The answer may leave once the
    /// returned sequence is durable.
    pub fn name(&mut self, named: &mut Named, time_ns: u64) -> (Answer, Sequence) {
        self.time_ns = time_ns;
        let step = self.ledger.decide_named(named, &mut self.parts);
        // An end finds room where new work does not.
        let waits = named.op.row().opens_work && self.writer.room() < VENUES_RESERVED_BYTES;
        let answer = match step {
            NamedStep::Append if waits => Answer::Overloaded,
            NamedStep::Append => self.append_named(named),
            NamedStep::Known(answer) => Answer::Named(answer),
            NamedStep::Violation(why) => Answer::Violation(why),
            NamedStep::Full(_) => Answer::Overloaded,
            NamedStep::Forgotten => Answer::Forgotten,
        };
        self.ledger.forget(FORGET_LOOKS, FORGET_LEAVES);
        (answer, self.ledger.sequence())
    }

    /// Appends a decided command by name, then applies it. If the log has no room, nothing has
    /// changed.
    fn append_named(&mut self, named: &Named) -> Answer {
        let Core { ledger, writer, payload, parts, time_ns, .. } = self;
        let length = named.encode(payload);
        debug_assert_eq!(Named::decode(&payload[..length]).as_ref(), Ok(named), "reads back");
        crash::point("engine_before_append");
        match writer.append(Kind::Posting as u8, *time_ns, &payload[..length]) {
            Ok(sequence) => {
                self.log_bytes += wal::record_bytes(length);
                Answer::Named(ledger.apply_named(named, parts, sequence, *time_ns))
            }
            Err(wal::Error::Full) => Answer::Overloaded,
            Err(error) => panic!("append to the log: {error}"),
        }
    }

    /// Takes one command of a venue's session. A decided one is recorded, and `posted` gets the
    /// decision.
    pub fn number(&mut self, posted: &mut Posted, sent: Sent, time_ns: u64) -> Numbered {
        let venue = self.ledger.venue_state(posted.venue);
        let Some(venue) = venue.filter(|venue| venue.epoch == sent.epoch && !venue.closed) else {
            return Numbered::Fenced;
        };
        let back = |reason| Numbered::Back { number: venue.last + 1, reason };
        match self.ledger.door(posted) {
            Door::Known(answer) => return Numbered::Answer(answer),
            Door::Violation => return Numbered::Close(Ending::Violation),
            Door::Forgotten => return Numbered::Close(Ending::Forgotten),
            Door::Gap(_) => return back(Reason::Gap),
            Door::Next if sent.stops(posted.number) => return back(Reason::Halted),
            Door::Next => {}
        }
        // An acknowledgement takes effect with the record that carries it.
        posted.acknowledged = sent.acknowledged.clamp(venue.acknowledged, venue.last);
        if venue.last - posted.acknowledged >= venue.window {
            return back(Reason::Window);
        }
        match self.decide_posted(posted, sent.halt, time_ns) {
            Ok(answer) => Numbered::Answer(answer),
            Err(reason) => back(reason),
        }
    }

    /// Decides, appends and books the next command of a venue.
    ///
    /// # Errors
    /// The reason why it is not decided: nothing has changed.
    fn decide_posted(
        &mut self,
        posted: &mut Posted,
        halt: VenueHalt,
        time_ns: u64,
    ) -> Result<NumberedAnswer, Reason> {
        self.time_ns = time_ns;
        // An end finds room where new work does not.
        if posted.op.row().opens_work && self.writer.room() < VENUES_RESERVED_BYTES {
            return Err(Reason::NoRoom);
        }
        let Core { ledger, writer, payload, parts, .. } = self;
        ledger.decide_posted(posted, parts);
        // The number was a success before the cut, and another venue may still bring its money. A
        // recorded refusal would stand against the answer that the venue has.
        if halt == VenueHalt::Lost && posted.code().is_some() && !is_refused_for_good(posted) {
            return Err(Reason::Halted);
        }
        let length = posted.encode(payload);
        crash::point("engine_before_append");
        match writer.append(Kind::Posting as u8, time_ns, &payload[..length]) {
            Ok(sequence) => {
                self.log_bytes += wal::record_bytes(length);
                Ok(ledger.apply_posted(posted, parts, sequence, time_ns))
            }
            Err(wal::Error::Full) => {
                posted.take_back();
                Err(Reason::NoRoom)
            }
            Err(error) => panic!("append to the log: {error}"),
        }
    }

    /// Appends a mark, so that a later record's durable mark also covers the last batch. If it is
    /// covered already, nothing happens.
    pub fn mark(&mut self) {
        let last = self.ledger.sequence();
        if last > self.marked {
            let durable = self.writer.durable();
            // Without room the mark is left out. Recovery then takes more of the end for a tear.
            self.append(&Entry::Mark);
            // An order that came after the request for this mark is covered by the next mark only.
            if durable >= last {
                self.marked = self.ledger.sequence();
            }
        }
    }

    /// The last record that needs no later mark.
    pub(crate) fn marked(&self) -> Sequence {
        self.marked
    }

    /// The transfers that the outcome map has room for. Each may need a withdraw and a refund.
    pub(crate) fn outcome_capacity(&self) -> usize {
        self.ledger.places_left() / 2
    }

    /// The transfers that the log has room for.
    pub(crate) fn log_capacity(&self) -> usize {
        let bytes = self.writer.room().saturating_sub(ROOM_RESERVED_BYTES);
        let records = bytes / wal::record_bytes(ORDER_BYTES_MAX);
        usize::try_from(records / 2).unwrap_or(usize::MAX)
    }

    /// The transfers that there is room for, and the table or file that bounds them.
    pub fn capacity(&self) -> Capacity {
        capacity(self.outcome_capacity(), self.log_capacity())
    }

    /// Prefetches the rows of the orders that are decided next.
    pub(crate) fn expect<'a>(&self, orders: impl Iterator<Item = &'a Order> + Clone) {
        self.ledger.expect(orders);
    }

    /// Bytes of all records appended.
    pub(crate) fn log_bytes(&self) -> u64 {
        self.log_bytes
    }

    /// The state.
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }
}

/// The capacity of all resources that a transfer needs of UBSCore.
pub(crate) fn capacity(outcomes: usize, log: usize) -> Capacity {
    let outcomes = Capacity { transfers: outcomes, bound_by: Shortage::Outcomes };
    outcomes.min(Capacity { transfers: log, bound_by: Shortage::LogSpace })
}

/// Whether a command begins work that may need the log again, or can wait for room. A command that
/// ends work must not wait.
fn opens_work(command: &Command) -> bool {
    let begins = matches!(command, Command::Order(order) if order.op.row().opens_work);
    begins || *command == Command::Digest
}

#[cfg(test)]
mod tests {
    use domain::account::AccountStatus;
    use domain::posting::{ALL, Leg, Place};
    use domain::transfer::{Decision, Direction, Op, ReqId};
    use wal::memory::Memory;
    use wal::{Directory, Identity, Log, Options, Recovery};

    use super::*;
    use crate::fact::Fact;
    use crate::named::NamedPosting;
    use crate::places::{Places, VenuePlaces};
    use crate::text::Text;
    use crate::venue;

    const OUTCOMES_MAX: usize = 2_000;

    fn core() -> (Core<Memory>, wal::Durable) {
        let mut recovery = Recovery::open(Memory::new(), 0, 0).expect("a directory");
        assert_eq!(recovery.next().expect("a log"), None);
        let options = Options { segment_bytes: 1 << 20, spares_ready: 1 };
        let (log, _report) = recovery.start(Identity(1), options).expect("a segment");
        let Log { writer, durable, .. } = log;
        let places = Places::of_transfers(1, OUTCOMES_MAX);
        let mut core = Core::new(Ledger::new(places), writer);
        let symbol = Text::new("USDT").expect("short");
        core.decide(&Command::RegisterAsset { asset: 3, precision: 8, symbol }, 0);
        (core, durable)
    }

    /// Story: an order came just before a mark was appended. The mark did not cover it, and no
    /// other mark followed. Damage to the answered order then looked like a torn end.
    #[test]
    fn an_order_that_comes_before_its_mark_is_covered_by_the_next_one() {
        let mut recovery = Recovery::open(Memory::new(), 0, 0).expect("a directory");
        assert_eq!(recovery.next().expect("a log"), None);
        let options = Options { segment_bytes: 1 << 20, spares_ready: 1 };
        let (log, _report) = recovery.start(Identity(1), options).expect("a segment");
        let Log { writer, mut syncer, .. } = log;
        let places = Places::of_transfers(1, OUTCOMES_MAX);
        let mut core = Core::new(Ledger::new(places), writer);
        let symbol = Text::new("USDT").expect("short");
        core.decide(&Command::RegisterAsset { asset: 3, precision: 8, symbol }, 0);
        let mut mark = || {
            let before = core.ledger.sequence();
            core.mark();
            syncer.sync().expect("synced");
            core.ledger.sequence() - before
        };
        // The first mark does not know that the asset is durable. The second one does: it is the
        // last.
        assert_eq!([mark(), mark(), mark()], [1, 1, 0]);
    }

    fn deposit(number: u64) -> Command {
        Command::Order(Order {
            op: Op::Deposit,
            req_id: u128::from(number) + 1,
            cid: Text::EMPTY,
            user: 7,
            asset: 3,
            amount: 1,
            direction: Direction::FundingToSpot,
            order_number: number,
        })
    }

    fn succeeds(core: &mut Core<Memory>, number: u64) -> bool {
        match core.decide(&deposit(number), 0).0 {
            Answer::Decided(recorded) => recorded.decision == Decision::Success,
            Answer::Overloaded => false,
            other => panic!("{other:?}"),
        }
    }

    /// Goal: neither a raised watermark nor a full map stops the core. Method: a full map, a
    /// watermark above all of it, and then only commands. Each may evict only its share: counted,
    /// not timed.
    #[test]
    fn a_full_map_comes_free_by_the_commands_after_a_raise() {
        let (mut core, _durable) = core();
        let full = OUTCOMES_MAX as u64;
        assert!((0..full).all(|number| succeeds(&mut core, number)));
        assert!(!succeeds(&mut core, full), "there was a place");
        core.decide(&Command::RaiseWatermark { order_number: full }, 0);
        let mut held = core.ledger().outcome_count();
        let mut number = full;
        // The slowest way: each command takes a free place.
        while !core.ledger().has_forgotten() {
            number += 1;
            succeeds(&mut core, number);
            let now = core.ledger().outcome_count();
            assert!(now + FORGET_LEAVES >= held, "{held} held, then {now}");
            held = now;
            assert!(number < 3 * full, "{held} held after {number} commands");
        }
        let oldest = core.ledger().facts().filter_map(|fact| match fact {
            Fact::Outcome { recorded, .. } => Some(recorded.order_number),
            _ => None,
        });
        assert!(oldest.min() > Some(full));
    }

    #[test]
    fn without_commands_the_core_forgets_by_itself() {
        let (mut core, _durable) = core();
        assert!((0..1_000).all(|number| succeeds(&mut core, number)));
        core.decide(&Command::RaiseWatermark { order_number: 900 }, 0);
        let mut turns = 0;
        let mut held = core.ledger().outcome_count();
        while core.forget() {
            turns += 1;
            let now = core.ledger().outcome_count();
            assert!(now + IDLE_LEAVES >= held, "{held} held, then {now}");
            held = now;
            assert!(turns < 1_000, "{held} held");
        }
        assert_eq!(core.ledger().outcome_count(), 100);
        assert_eq!(core.ledger().places_left(), OUTCOMES_MAX - 100);
    }

    /// Goal: the working core takes no memory from the system. Method: every kind of command with
    /// every kind of answer, a log on the disk, a following watermark; this thread's allocations
    /// counted.
    #[test]
    fn a_working_core_takes_no_memory() {
        let directory = tempfile::tempdir().expect("a directory");
        let log_dir = Directory::create(directory.path().join("wal")).expect("a directory");
        let options = Options { segment_bytes: 8 << 20, spares_ready: 1 };
        let recovery = Recovery::open(log_dir, 0, 0).expect("no log");
        let (log, _report) = recovery.start(Identity(1), options).expect("a segment");
        let venues = VenuePlaces { holds_max: 1_000, venues_max: 1, window: 64 };
        let places = Places { accounts_max: 1_000, outcomes_max: 30_000, venues };
        let mut core = Core::new(Ledger::new(places), log.writer);
        let symbol = Text::new("USDT").expect("short");
        core.decide(&Command::RegisterAsset { asset: 3, precision: 8, symbol }, 0);
        let name = Text::new("book").expect("short");
        core.decide(&Command::AddVenue { id: 1, name, posts: true }, 0);
        core.decide(&Command::OpenVenue { id: 1, epoch: 1, told: 0 }, 0);
        let (mut posted, mut named) = (Posted::empty(), Named::empty());
        let mut work = |numbers: std::ops::Range<u64>| {
            for number in numbers {
                let user = number % 100 + 1;
                trade(&mut core, &mut posted, user);
                pay(&mut core, &mut named, user, number);
                let order = |op, amount| {
                    let Command::Order(order) = deposit(number) else { unreachable!() };
                    Command::Order(Order { op, user, amount, order_number: number, ..order })
                };
                for command in [
                    order(Op::Deposit, 5),
                    order(Op::Deposit, 5),
                    order(Op::Deposit, 6),
                    order(Op::Withdraw, 1 + number % 9),
                    order(Op::Refund, 1 + number % 9),
                    Command::SetStatus { user, status: AccountStatus::Active },
                    Command::ReadBalance { user, asset: 3 },
                    Command::Query { req_id: u128::from(number), op: Op::Deposit },
                    Command::RaiseWatermark { order_number: number / 2 },
                    Command::Digest,
                ] {
                    core.decide(&command, number);
                }
            }
        };
        // The first use of a thing may allocate.
        work(1..10);
        let taken = allocation_counter::measure(|| work(10..2_000));
        assert_eq!(taken.count_total, 0, "{taken:?}");
        let seen = allocation_counter::measure(|| drop(std::hint::black_box(Box::new(1))));
        assert_eq!(seen.count_total, 1, "a box is not counted");
        assert!(core.ledger().sequence() > 5_000, "not worked");
    }

    /// One command of each kind with each kind of end, of a venue that acknowledges all.
    fn trade<M: Medium>(core: &mut Core<M>, posted: &mut Posted, user: u64) {
        let available = Place::Available;
        let leg = |from, to, amount| Leg { from, to, asset: 3, amount };
        let pay = [leg(available(user), available(user % 100 + 1), 1)];
        let first = core.ledger().venue_state(1).expect("registered").last + 1;
        let trade = [
            leg(Place::Hold(first), available(user % 100 + 1), 1),
            leg(available(user % 100 + 1), available(user), 1),
            leg(Place::Hold(first), available(user), ALL),
        ];
        let reference = 0;
        let reserve =
            |amount| venue::Command::Reserve { reference, user, asset: 3, amount, onto: 0 };
        for (index, command) in (0..).zip([
            reserve(2),
            reserve(u64::MAX),
            venue::Command::Settle { reference, legs: trade.into_iter().collect() },
            venue::Command::Settle { reference, legs: trade.into_iter().collect() },
            reserve(1),
            venue::Command::Release { reference, hold: first + 4, amount: ALL },
            venue::Command::Post { reference, legs: pay.into_iter().collect() },
        ]) {
            posted.fill(1, first + index, &command);
            let sent =
                Sent { epoch: 1, acknowledged: first + index - 1, halt: VenueHalt::Off, told: 0 };
            let done = core.number(posted, sent, 0);
            assert!(matches!(done, Numbered::Answer(_)), "{command:?}: {done:?}");
            // A repeat, a gap, and an earlier session.
            core.number(posted, sent, 0);
            posted.fill(1, first + index + 2, &command);
            core.number(posted, sent, 0);
            core.number(posted, Sent { epoch: 0, ..sent }, 0);
        }
    }

    /// One command by name of each kind with each kind of end.
    fn pay<M: Medium>(core: &mut Core<M>, named: &mut Named, user: u64, number: u64) {
        let mut leg = Leg {
            from: Place::Available(user),
            to: Place::Available(user % 100 + 1),
            asset: 3,
            amount: 1,
        };
        let mut posting = NamedPosting {
            transaction: ReqId::new(u128::from(number) << 64).expect("not 0"),
            order_number: number,
            round: 1,
            tx_id: Text::new("pay").expect("short"),
            user: 0,
            legs: [leg].into_iter().collect(),
        };
        let mut ask = |op, posting: &NamedPosting, want: fn(&Answer) -> bool| {
            named.fill(op, posting);
            let (answer, _) = core.name(named, 0);
            assert!(want(&answer), "{op} {number}: {answer:?}");
        };
        let named = |answer: &Answer| matches!(answer, Answer::Named(_));
        let violation = |answer: &Answer| matches!(answer, Answer::Violation(_));
        ask(Op::Reserve, &posting, named);
        ask(Op::Reserve, &posting, named);
        posting.round = 2;
        posting.legs.push(leg);
        ask(Op::Reserve, &posting, named);
        leg.amount = u64::MAX - 1;
        posting.legs.push(leg);
        ask(Op::Settle, &posting, violation);
        posting.round = 3;
        ask(Op::Reserve, &posting, named);
        posting.legs.pop();
        match number % 2 {
            0 => ask(Op::Settle, &posting, |_| true),
            _ => {
                posting.legs.clear();
                ask(Op::Release, &posting, |_| true);
            }
        }
        posting.transaction = ReqId::new((u128::from(number) << 64) + 1).expect("not 0");
        posting.legs.clear();
        ask(Op::Release, &posting, named);
        leg.amount = 1;
        posting.legs.push(leg);
        ask(Op::Reserve, &posting, named);
        posting.transaction = ReqId::new((u128::from(number) << 64) + 2).expect("not 0");
        ask(Op::Post, &posting, named);
        posting.order_number = number / 3;
        posting.transaction = ReqId::new((u128::from(number) << 64) + 3).expect("not 0");
        ask(Op::Post, &posting, |_| true);
    }

    /// Amendment of the reserve, for services: below it new work is OVERLOADED and not recorded,
    /// and ends are decided.
    #[test]
    fn without_room_a_service_begins_nothing_and_its_ends_are_decided() {
        let (mut core, _syncer, _preparer) = market(128 * 1024);
        let leg =
            |amount| Leg { from: Place::Available(7), to: Place::Available(8), asset: 3, amount };
        let posting = |number: u64, amount| NamedPosting {
            transaction: ReqId::new(u128::from(number) << 64).expect("not 0"),
            order_number: 5,
            round: 1,
            tx_id: Text::new("pay").expect("short"),
            user: 0,
            legs: [leg(amount)].into_iter().collect(),
        };
        let mut ask = |op, posting: &NamedPosting| core.name(&mut Named::new(op, posting), 0).0;
        let first = ask(Op::Reserve, &posting(1, 1));
        assert!(matches!(first, Answer::Named(_)), "{first:?}");
        let mut number = 2;
        while ask(Op::Reserve, &posting(number, 9)) != Answer::Overloaded {
            number += 1;
        }
        assert_eq!(ask(Op::Post, &posting(number, 9)), Answer::Overloaded);
        // A decided command is told its decision.
        assert_eq!(ask(Op::Reserve, &posting(1, 1)), first);
        let done = ask(Op::Settle, &posting(1, 1));
        assert!(matches!(done, Answer::Named(_)), "{done:?}");
        assert_eq!(core.ledger().hold_count(), 0);
    }

    /// A core with venue 1 and the rest of its log.
    fn market(segment_bytes: u64) -> (Core<Memory>, wal::Syncer<Memory>, wal::Preparer<Memory>) {
        let mut recovery = Recovery::open(Memory::new(), 0, 0).expect("a directory");
        assert_eq!(recovery.next().expect("a log"), None);
        let options = Options { segment_bytes, spares_ready: 1 };
        let (log, _report) = recovery.start(Identity(1), options).expect("a segment");
        let venues = VenuePlaces { holds_max: 1_000, venues_max: 1, window: 10_000 };
        let places = Places { accounts_max: 1_000, outcomes_max: 1_000, venues };
        let mut core = Core::new(Ledger::new(places), log.writer);
        let symbol = Text::new("USDT").expect("short");
        core.decide(&Command::RegisterAsset { asset: 3, precision: 8, symbol }, 0);
        let name = Text::new("book").expect("short");
        core.decide(&Command::AddVenue { id: 1, name, posts: true }, 0);
        core.decide(&Command::OpenVenue { id: 1, epoch: 1, told: 0 }, 0);
        assert!(succeeds(&mut core, 1));
        (core, log.syncer, log.preparer)
    }

    fn send(core: &mut Core<Memory>, number: u64, command: &venue::Command) -> Numbered {
        let mut posted = Posted::empty();
        posted.fill(1, number, command);
        let sent = Sent { epoch: 1, acknowledged: 0, halt: VenueHalt::Off, told: 0 };
        core.number(&mut posted, sent, 0)
    }

    /// Goal: at the smallest segment new work of a venue always finds room, if the next segment is
    /// prepared in time.
    #[test]
    fn the_reserve_of_venues_fits_the_smallest_segment() {
        let (mut core, mut syncer, mut preparer) = market(VENUES_SEGMENT_BYTES_MIN);
        let (reference, user, onto) = (0, 7, 0);
        // Refused ones are as long: there is only money for one.
        let reserve = venue::Command::Reserve { reference, user, asset: 3, amount: 1, onto };
        let mut number = 0;
        while core.log_bytes() < 3 * VENUES_SEGMENT_BYTES_MIN {
            while preparer.tick().expect("memory") == wal::Progress::Busy {}
            for _ in 0..100 {
                number += 1;
                let answer = send(&mut core, number, &reserve);
                assert!(matches!(answer, Numbered::Answer(_)), "{number}: {answer:?}");
            }
            syncer.sync().expect("synced");
        }
    }

    /// Amendment of the reserve: below it new work of a venue waits, and its ends do not.
    #[test]
    fn without_room_new_numbers_wait_and_ends_are_decided() {
        let (mut core, _syncer, _preparer) = market(128 * 1024);
        let mut send = |number, command| send(&mut core, number, &command);
        let (reference, user, onto) = (0, 7, 0);
        let reserve = venue::Command::Reserve { reference, user, asset: 3, amount: 1, onto };
        let mut number = 1;
        while let Numbered::Answer(_) = send(number, reserve.clone()) {
            number += 1;
        }
        let no_room = Numbered::Back { number, reason: Reason::NoRoom };
        assert_eq!(send(number, reserve.clone()), no_room);
        let release = venue::Command::Release { reference, hold: 1, amount: ALL };
        let before = number;
        while let Numbered::Answer(_) = send(number, release.clone()) {
            number += 1;
        }
        assert!(number > before + 100, "{number} after {before}");
        let no_room = Numbered::Back { number, reason: Reason::NoRoom };
        assert_eq!(send(number, release), no_room);
    }
}
