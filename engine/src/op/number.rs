//! Postings by number: the door of the venues. An operator's RELEASE goes beside it.
//!
//! A venue's commands are decided in the order of their numbers, each once. Everything behind the
//! door is the same as for orders: `posting::judge` and `posting::book`.

use domain::code::Code;
use domain::posting::Breakdown;
use domain::transfer::Decision;

use super::posting::{self, Ask, Booking, Refusal};
use crate::entry::Entry;
use crate::ledger::{Answer, Ledger, Step};
use crate::posted::Posted;
use crate::venue::OpenError;
use crate::venues::{Venue, WindowAnswer};

/// Acknowledged answers of the venue that leave with each of its commands: more than it adds. So
/// its window never outgrows its memory.
const LEAVES: usize = 2;

/// The way of a command through the door.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Door {
    /// The next number: decide it.
    Next,
    /// A repeat of an answer in the window.
    Known(NumberedAnswer),
    /// An earlier number is missing: this one.
    Gap(u64),
    /// A repeat with another body.
    Violation,
    /// A repeat of a number that the venue has acknowledged.
    Forgotten,
}

/// The answer to a numbered command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NumberedAnswer {
    /// The decision.
    pub decision: Decision,
    /// The failing leg from 0; 0 for a success.
    pub leg: u8,
    /// The record that holds it.
    pub record: wal::Sequence,
}

impl NumberedAnswer {
    fn new(answer: &WindowAnswer) -> NumberedAnswer {
        NumberedAnswer { decision: answer.decision(), leg: answer.leg, record: answer.record }
    }
}

impl Ledger {
    /// The way of a command through the door. The venue is registered.
    pub fn door(&self, posted: &Posted) -> Door {
        let venue = self.venue(posted.venue);
        let last = venue.last();
        match posted.number {
            number if number == last + 1 => Door::Next,
            number if number > last => Door::Gap(last + 1),
            number if number <= venue.acknowledged => Door::Forgotten,
            number => match venue.answer(number) {
                answer if posted.has_hash(answer.hash) => Door::Known(NumberedAnswer::new(answer)),
                _ => Door::Violation,
            },
        }
    }

    /// Decides the next command of a venue: the lower fields of `posted` are set, and `parts` are
    /// those of a success. Nothing changes.
    pub fn decide_posted(&self, posted: &mut Posted, parts: &mut Breakdown) {
        *parts = Breakdown::default();
        posted.state = self.state();
        (posted.leg, posted.imposed) = (0, false);
        let venue = self.venue(posted.venue);
        let refusal = match judge(self, venue, posted, parts) {
            Ok(()) if self.lacks_place(posted, parts).is_some() => {
                // By number nothing waits for a place: behind it stand the ends that make places.
                posted.imposed = true;
                Refusal { leg: 0, code: Code::Overloaded }
            }
            Ok(()) => {
                posted.decision = Decision::Success;
                return;
            }
            Err(refusal) => refusal,
        };
        posted.take_back();
        posted.decision = Decision::Refused(refusal.code);
        posted.leg = refusal.leg;
    }

    /// Carries out a decided command. `sequence` and `time_ns` are the record's own.
    ///
    /// Panics if [`Ledger::decide_posted`] could not have decided it in this state.
    pub fn apply_posted(
        &mut self,
        posted: &Posted,
        parts: &Breakdown,
        sequence: wal::Sequence,
        time_ns: u64,
    ) -> NumberedAnswer {
        assert_eq!(sequence, self.sequence + 1, "records are applied in order");
        self.sequence = sequence;
        let venue = self.venue(posted.venue);
        assert_eq!(posted.number, venue.last() + 1, "numbers are decided in order");
        if posted.acknowledged != venue.acknowledged {
            let before = venue.fact();
            self.venues.acknowledge(posted.venue, posted.acknowledged);
            let after = self.venue(posted.venue).fact();
            self.exchange(Some(before), after);
        }
        if posted.decision == Decision::Success {
            self.book_posted(posted, parts, sequence, time_ns);
        }
        let answer = WindowAnswer::new(posted.hash(), sequence, posted.decision, posted.leg);
        let venue = self.venues.get_mut(posted.venue).expect("the door has found it");
        let fact = venue.push(answer);
        self.exchange(None, fact);
        self.forget_answers(Some(posted.venue), LEAVES);
        NumberedAnswer::new(&answer)
    }

    /// The key that bounds a place which an admitted command lacks. `parts`: of its decision.
    pub(crate) fn lacks_place(&self, posted: &Posted, parts: &Breakdown) -> Option<&'static str> {
        posting::lacks_place(self, ask(posted), parts)
    }

    fn book_posted(
        &mut self,
        posted: &Posted,
        parts: &Breakdown,
        record: wal::Sequence,
        time_ns: u64,
    ) {
        let (ask, reference) = (ask(posted), posted.reference);
        posting::book(self, Booking { ask, reference, record, time_ns }, parts);
    }

    /// Whether a record's acknowledgement is one of answers in the window.
    pub(crate) fn may_acknowledge(&self, posted: &Posted) -> bool {
        let venue = self.venue(posted.venue);
        (venue.acknowledged..=venue.last()).contains(&posted.acknowledged)
    }

    /// The lower half of the digest.
    pub(super) fn state(&self) -> u64 {
        u64::try_from(self.digest() & u128::from(u64::MAX)).expect("64 bits")
    }

    fn venue(&self, id: u32) -> &Venue {
        self.venues.get(id).expect("the door has found it")
    }
}

/// Decides an operator's release. It needs a closed venue: an open one may match the hold's order.
/// A hold is released once, so a repeat finds none.
pub(super) fn step_release(ledger: &Ledger, name: u128, venue: u32, hold: u64) -> Step {
    let refused = |error| Step::Known(Answer::NotOpened(error));
    match ledger.venues.get(venue) {
        _ if name == 0 => return Step::Violation("a release without a name"),
        None => return refused(OpenError::Unknown),
        Some(known) if !known.closed => return refused(OpenError::NotClosed),
        Some(_) => {}
    }
    let mut posted = Box::new(Posted::release(name, venue, hold));
    ledger.decide_posted(&mut posted, &mut Breakdown::default());
    match posted.decision {
        Decision::Success => Step::Append(Entry::Posting(posted)),
        Decision::Refused(_) => refused(OpenError::NoHold),
    }
}

/// Carries out an operator's release. The ledger has the record's sequence already.
pub(super) fn apply_release(
    ledger: &mut Ledger,
    posted: &Posted,
    sequence: wal::Sequence,
    time_ns: u64,
) -> Answer {
    assert_ne!(posted.operator, 0, "a venue's command is carried out with its parts");
    let (mut again, mut parts) = (posted.clone(), Breakdown::default());
    again.take_back();
    ledger.decide_posted(&mut again, &mut parts);
    assert_eq!(again, *posted, "decided in this state");
    ledger.book_posted(posted, &parts, sequence, time_ns);
    let [leg] = posted.legs[..] else { unreachable!("a release has one leg") };
    let user = leg.to.user().expect("the judge has filled in the owner");
    Answer::Released { user, asset: leg.asset, amount: leg.amount, sequence }
}

fn ask(posted: &Posted) -> Ask {
    let Posted { op, venue, number, .. } = *posted;
    Ask { op, venue, number, freezes: false, outside: false }
}

fn judge(
    ledger: &Ledger,
    venue: &Venue,
    posted: &mut Posted,
    parts: &mut Breakdown,
) -> Result<(), Refusal> {
    let ask = ask(posted);
    // A venue that may not POST reserves, and moves only money of its holds.
    if !venue.posts && !ask.op.row().touches_holds() {
        return Err(Refusal { leg: 0, code: Code::InvalidPosting });
    }
    posting::judge(ledger, ask, &mut posted.legs, &mut posted.took_all, parts)
}

#[cfg(test)]
mod tests {
    use domain::posting::ALL;
    use domain::transfer::{Direction, Op};

    use super::*;
    use crate::command::Command;
    use crate::order::Order;
    use crate::places::{Places, VenuePlaces};
    use crate::record::PAYLOAD_BYTES_MAX;
    use crate::text::Text;
    use crate::venue;

    const USD: u32 = 2;
    const USER: u64 = 7;

    fn run(ledger: &mut Ledger, command: &Command) -> Answer {
        match ledger.step(command) {
            Step::Append(entry) => {
                let mut payload = [0; PAYLOAD_BYTES_MAX];
                let length = entry.encode(&mut payload);
                let read = Entry::decode(entry.kind() as u8, &payload[..length]);
                assert_eq!(read.as_ref(), Ok(&entry));
                ledger.apply(&entry, ledger.sequence() + 1, 9)
            }
            Step::Known(answer) => answer,
            other => panic!("{command:?}: {other:?}"),
        }
    }

    fn send(ledger: &mut Ledger, number: u64, command: &venue::Command) -> Decision {
        let (mut posted, mut parts) = (Posted::empty(), Breakdown::default());
        posted.fill(1, number, command);
        assert_eq!(ledger.door(&posted), Door::Next);
        ledger.decide_posted(&mut posted, &mut parts);
        ledger.apply_posted(&posted, &parts, ledger.sequence() + 1, 9).decision
    }

    /// HLD-017, in the ledger. Goal: an operator releases the hold of a closed venue, once; its
    /// numbers stay the venue's own, and a later end of the hold finds none.
    #[test]
    fn an_operator_releases_a_hold_of_a_closed_venue() {
        let venues = VenuePlaces { holds_max: 3, venues_max: 1, window: 8 };
        let mut ledger = Ledger::new(Places { accounts_max: 9, outcomes_max: 9, venues });
        let (symbol, name) = (Text::new("USD").expect("short"), Text::new("book").expect("short"));
        let deposit = Order {
            op: Op::Deposit,
            req_id: 1,
            cid: Text::EMPTY,
            user: USER,
            asset: USD,
            amount: 1_000,
            direction: Direction::FundingToSpot,
            order_number: 1,
        };
        for command in [
            Command::RegisterAsset { asset: USD, precision: 2, symbol },
            Command::Order(deposit),
            Command::AddVenue { id: 1, name, posts: false },
            Command::OpenVenue { id: 1, epoch: 1, told: 0 },
        ] {
            run(&mut ledger, &command);
        }
        let reserve =
            venue::Command::Reserve { reference: 3, user: USER, asset: USD, amount: 400, onto: 0 };
        assert_eq!(send(&mut ledger, 1, &reserve), Decision::Success);
        assert_eq!((ledger.total(USD), ledger.total_held(USD)), (1_000, 400));
        let release = |name, venue, hold| Command::ReleaseHold { name, venue, hold };
        let refused = Answer::NotOpened;
        assert_eq!(run(&mut ledger, &release(5, 1, 1)), refused(OpenError::NotClosed));
        run(&mut ledger, &Command::CloseVenue { id: 1, closed: true });
        assert_eq!(run(&mut ledger, &release(5, 2, 1)), refused(OpenError::Unknown));
        for hold in [0, 2] {
            assert_eq!(run(&mut ledger, &release(5, 1, hold)), refused(OpenError::NoHold));
        }
        assert!(matches!(ledger.step(&release(0, 1, 1)), Step::Violation(_)));
        let balance = |ledger: &Ledger| (ledger.available(USER, USD), ledger.held(USER, USD));
        assert_eq!(balance(&ledger), (600, 400));
        let released = run(&mut ledger, &release(5, 1, 1));
        let sequence = ledger.sequence();
        let want = Answer::Released { user: USER, asset: USD, amount: 400, sequence };
        assert_eq!(released, want);
        assert_eq!((balance(&ledger), ledger.hold_count()), ((1_000, 0), 0));
        assert_eq!((ledger.total(USD), ledger.total_held(USD)), (1_000, 0));
        let sum = ledger.facts().map(|fact| fact.digest()).fold(0, u128::wrapping_add);
        assert_eq!(sum, ledger.digest());
        assert_eq!(run(&mut ledger, &release(5, 1, 1)), refused(OpenError::NoHold));
        assert_eq!(ledger.sequence(), sequence, "a repeat changes nothing");
        let late = venue::Command::Release { reference: 3, hold: 1, amount: ALL };
        let gone = Decision::Refused(Code::HoldNotFound);
        assert_eq!(send(&mut ledger, 2, &late), gone);
    }
}
