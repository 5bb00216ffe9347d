//! Postings by number: the door of the venues.
//!
//! A venue's commands are decided in the order of their numbers, each once. Everything behind the
//! door is the same as for orders: `posting::judge` and `posting::book`.

use domain::code::Code;
use domain::posting::Breakdown;
use domain::transfer::Decision;

use super::posting::{self, Ask, Booking, Refusal};
use crate::ledger::Ledger;
use crate::posted::Posted;
use crate::venues::{Venue, WindowAnswer};

/// Acknowledged answers that leave with each command: more than it adds.
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
                answer if answer.hash == posted.hash() => Door::Known(NumberedAnswer::new(answer)),
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
            Ok(()) if posting::lacks_place(self, ask(posted), parts) => {
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
            let (ask, reference) = (ask(posted), posted.reference);
            let booking = Booking { ask, reference, record: sequence, time_ns };
            posting::book(self, booking, parts);
        }
        let answer = WindowAnswer::new(posted.hash(), sequence, posted.decision, posted.leg);
        let venue = self.venues.get_mut(posted.venue).expect("the door has found it");
        let fact = venue.push(answer);
        self.exchange(None, fact);
        self.forget_answers(LEAVES);
        NumberedAnswer::new(&answer)
    }

    /// Whether a record's acknowledgement is one of answers in the window.
    pub(crate) fn may_acknowledge(&self, posted: &Posted) -> bool {
        let venue = self.venue(posted.venue);
        (venue.acknowledged..=venue.last()).contains(&posted.acknowledged)
    }

    /// The lower half of the digest.
    fn state(&self) -> u64 {
        u64::try_from(self.digest() & u128::from(u64::MAX)).expect("64 bits")
    }

    fn venue(&self, id: u32) -> &Venue {
        self.venues.get(id).expect("the door has found it")
    }
}

fn ask(posted: &Posted) -> Ask {
    let Posted { op, venue, number, .. } = *posted;
    Ask { op, venue, number, freezes: false }
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
