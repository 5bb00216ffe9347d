//! The venues in [`crate::ledger`], each with its window: the answers that it has not acknowledged.
//!
//! An acknowledged answer leaves a little later, a few at each command. It still counts in the
//! digest, as an evicted outcome does. No decision depends on which answers have left: a repeat of
//! an acknowledged number is forgotten in any case.

use std::collections::VecDeque;

use domain::transfer::Decision;

use crate::fact::{AnswerFact, Fact, VENUE_NAME_BYTES_MAX, VenueFact};
use crate::holds::Chain;
use crate::record::{decision_number, decision_of};
use crate::text::Text;

/// An answer in a window, without padding: there may be hundreds of thousands.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct WindowAnswer {
    /// XXH3-64 of the body.
    pub(crate) hash: u64,
    /// The record that holds the decision.
    pub(crate) record: wal::Sequence,
    code: u16,
    /// The failing leg.
    pub(crate) leg: u8,
}

const _: () = assert!(size_of::<WindowAnswer>() == 24);

impl WindowAnswer {
    pub(crate) fn new(hash: u64, record: wal::Sequence, decision: Decision, leg: u8) -> Self {
        WindowAnswer { hash, record, code: decision_number(decision), leg }
    }

    pub(crate) fn decision(&self) -> Decision {
        decision_of(self.code).expect("it was made of a decision")
    }
}

/// A venue.
pub(crate) struct Venue {
    pub(crate) id: u32,
    pub(crate) name: Text<VENUE_NAME_BYTES_MAX>,
    /// The epoch of its last session, 0 for none.
    pub(crate) epoch: u64,
    /// An operator has closed it.
    pub(crate) closed: bool,
    /// It may POST.
    pub(crate) posts: bool,
    /// The last number acknowledged.
    pub(crate) acknowledged: u64,
    /// The number of the first answer held.
    first: u64,
    answers: VecDeque<WindowAnswer>,
    /// Its holds, in number order.
    pub(crate) holds: Chain,
}

impl Venue {
    /// The last number decided, 0 for none.
    #[inline]
    pub(crate) fn last(&self) -> u64 {
        self.first + self.answers.len() as u64 - 1
    }

    /// The answer of a number that is decided and not acknowledged.
    pub(crate) fn answer(&self, number: u64) -> &WindowAnswer {
        assert!(number > self.acknowledged && number <= self.last(), "{number} is not held");
        let index = usize::try_from(number - self.first).expect("a window is small");
        &self.answers[index]
    }

    /// The venue's fact.
    pub(crate) fn fact(&self) -> Fact {
        let Venue { id, name, epoch, closed, posts, acknowledged, .. } = *self;
        Fact::Venue(VenueFact { id, epoch, acknowledged, closed, posts, name })
    }

    /// The facts of the answers held.
    pub(crate) fn answers(&self) -> impl Iterator<Item = Fact> + '_ {
        (self.first..).zip(&self.answers).map(|(number, answer)| self.answer_fact(number, answer))
    }

    fn answer_fact(&self, number: u64, answer: &WindowAnswer) -> Fact {
        let WindowAnswer { hash, record, leg, .. } = *answer;
        let (venue, decision) = (self.id, answer.decision());
        Fact::Answer(AnswerFact { venue, number, hash, record, decision, leg })
    }

    /// Adds the answer of the next number. Returns its fact.
    pub(crate) fn push(&mut self, answer: WindowAnswer) -> Fact {
        self.answers.push_back(answer);
        self.answer_fact(self.last(), &answer)
    }

    /// The fact of the first answer, if it is acknowledged. It leaves.
    fn leave(&mut self) -> Option<Fact> {
        if self.first > self.acknowledged {
            return None;
        }
        let answer = self.answers.pop_front()?;
        self.first += 1;
        Some(self.answer_fact(self.first - 1, &answer))
    }
}

#[cfg(test)]
impl Venue {
    /// Answers held, and the places of the window.
    pub(crate) fn window(&self) -> (usize, usize) {
        (self.answers.len(), self.answers.capacity())
    }
}

/// At most `places` venues, all windows made at the start.
pub(crate) struct Venues {
    rows: Vec<Venue>,
    /// The windows of venues that are not registered yet.
    spares: Vec<VecDeque<WindowAnswer>>,
    /// Answers of one venue without an acknowledgement.
    pub(crate) window: usize,
    /// Acknowledged answers that have not left yet.
    behind: u64,
}

impl Venues {
    pub(crate) fn new(places: usize, window: usize) -> Venues {
        // One more: an answer leaves after the next one has come.
        let spare = || VecDeque::with_capacity(window + 1);
        let spares = (0..places).map(|_| spare()).collect();
        Venues { rows: Vec::with_capacity(places), spares, window, behind: 0 }
    }

    pub(crate) fn prefault(&mut self) {
        let used = self.rows.iter_mut().map(|venue| &mut venue.answers);
        for window in self.spares.iter_mut().chain(used) {
            let held = window.len();
            window.resize(window.capacity(), WindowAnswer::default());
            window.truncate(held);
        }
    }

    pub(crate) fn rows(&self) -> &[Venue] {
        &self.rows
    }

    pub(crate) fn places_left(&self) -> usize {
        self.spares.len()
    }

    pub(crate) fn get(&self, id: u32) -> Option<&Venue> {
        self.rows.iter().find(|venue| venue.id == id)
    }

    pub(crate) fn get_mut(&mut self, id: u32) -> Option<&mut Venue> {
        self.rows.iter_mut().find(|venue| venue.id == id)
    }

    /// Registers a venue. Returns false without a place for it.
    pub(crate) fn insert(&mut self, fact: VenueFact) -> bool {
        let Some(answers) = self.spares.pop() else { return false };
        let VenueFact { id, epoch, acknowledged, closed, posts, name } = fact;
        let (first, holds) = (acknowledged + 1, Chain::default());
        self.rows.push(Venue {
            id,
            name,
            epoch,
            closed,
            posts,
            acknowledged,
            first,
            answers,
            holds,
        });
        true
    }

    /// Restores the answers of a venue, by number. Returns false if one is missing.
    pub(crate) fn restore(&mut self, id: u32, answers: &[(u64, WindowAnswer)]) -> bool {
        let venue = self.get_mut(id).expect("the builder has checked it");
        let Some(&(first, _)) = answers.first() else { return true };
        // A file with a right checksum may hold any number.
        let numbers = answers.iter().map(|(number, _)| *number);
        let follows = (first..).zip(numbers).all(|(want, number)| want == number);
        if first == 0 || first > venue.acknowledged.saturating_add(1) || !follows {
            return false;
        }
        venue.first = first;
        venue.answers.extend(answers.iter().map(|(_, answer)| *answer));
        let behind = venue.acknowledged.saturating_sub(first - 1);
        let held = answers.len() as u64;
        if behind > held {
            return false;
        }
        self.behind += behind;
        true
    }

    /// A venue acknowledges answers up to a number.
    pub(crate) fn acknowledge(&mut self, id: u32, number: u64) {
        let venue = self.get_mut(id).expect("the door has found it");
        let answered = venue.acknowledged..=venue.last();
        assert!(answered.contains(&number), "{number} of {answered:?}");
        let more = number - venue.acknowledged;
        venue.acknowledged = number;
        self.behind += more;
    }

    /// Whether all acknowledged answers have left.
    pub(crate) fn has_forgotten(&self) -> bool {
        self.behind == 0
    }

    /// Lets up to `leaves_max` acknowledged answers leave, of one venue or of all. Returns the sum
    /// of their digests.
    pub(crate) fn forget(&mut self, of: Option<u32>, leaves_max: usize) -> u128 {
        let mut left: u128 = 0;
        if self.behind == 0 {
            return 0;
        }
        let mut leaves = 0;
        for venue in self.rows.iter_mut().filter(|venue| of.is_none_or(|id| id == venue.id)) {
            while leaves < leaves_max
                && let Some(fact) = venue.leave()
            {
                left = left.wrapping_add(fact.digest());
                self.behind -= 1;
                leaves += 1;
            }
        }
        left
    }
}
