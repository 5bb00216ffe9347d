//! The lines between the sessions of venues and the core thread, and the slab of their commands.
//!
//! A command of a venue takes no ticket: its body lies in a cell of the slab, and the slot on the
//! ring names the cell. So a slot stays small, and only the legs used are written and read. The
//! reply goes into the queue of the session's line. The sync thread wakes the sessions after each
//! sync.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};

use bell::Replies;
use crossbeam::queue::ArrayQueue;
use parking_lot::Mutex;

use crate::ledger::ROWS_READ_MAX;
use crate::posted::Posted;
use crate::venue::{Holds, Reply, VenueHalt};

/// The end of a command that was pushed.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Told {
    /// A reply.
    Reply(Reply),
    /// It was dropped, after a Back.
    Dropped,
}

/// One session of a venue, seen by its owner, the core thread and the sync thread.
pub(crate) struct Line {
    pub(crate) venue: u32,
    pub(crate) epoch: u64,
    /// The highest number that the venue had an answer for at its Open.
    pub(crate) told: u64,
    /// Its replies and its end. As many places as the session may have pushed: a push takes one.
    pub(crate) replies: Replies<Told>,
    /// The last number that the session has acknowledged.
    pub(crate) acknowledged: AtomicU64,
    /// The session was dropped. Its commands on the ring are still decided.
    left: AtomicBool,
    /// The answer to a read of holds.
    pub(crate) holds: Mutex<Holds>,
}

impl Line {
    pub(crate) fn new(
        (venue, epoch): (u32, u64),
        told: u64,
        acknowledged: u64,
        places: usize,
    ) -> Line {
        let holds = Vec::with_capacity(ROWS_READ_MAX);
        Line {
            venue,
            epoch,
            told,
            replies: Replies::new(places),
            acknowledged: AtomicU64::new(acknowledged),
            left: AtomicBool::new(false),
            holds: Mutex::new(Holds { position: 0, holds, next: None }),
        }
    }

    /// Whether a session is at work on it.
    pub(crate) fn open(&self) -> bool {
        !self.replies.fenced() && !self.left.load(Ordering::Acquire)
    }
}

/// The lines of the venues' newest sessions, and the slab of their commands.
pub(crate) struct Streams {
    /// One for a venue. It stays when its session is dropped, until the next one comes.
    lines: Mutex<Vec<Arc<Line>>>,
    /// For a venue, the last epoch that an Open or a close has shut out. Locked within `lines`.
    shut: Mutex<Vec<(u32, u64)>>,
    free: ArrayQueue<u32>,
    cells: Box<[Mutex<Posted>]>,
    /// Sessions that are open.
    sessions: AtomicUsize,
    /// A [`VenueHalt`] by its number.
    halt: AtomicU8,
    /// Answers told since the start that wait for a sync.
    pub(crate) decided: AtomicU64,
}

impl Streams {
    /// A slab of `cells` commands: the most that all sessions have on the ring.
    pub(crate) fn new(cells: usize) -> Streams {
        let free = ArrayQueue::new(cells.max(1));
        for cell in 0..u32::try_from(cells).expect("checked by the configuration") {
            free.push(cell).expect("sized for all");
        }
        Streams {
            lines: Mutex::new(Vec::new()),
            shut: Mutex::new(Vec::new()),
            free,
            cells: (0..cells).map(|_| Mutex::new(Posted::empty())).collect(),
            sessions: AtomicUsize::new(0),
            halt: AtomicU8::new(VenueHalt::Off.number()),
            decided: AtomicU64::new(0),
        }
    }

    pub(crate) fn set_halt(&self, halt: VenueHalt) {
        self.halt.store(halt.number(), Ordering::Relaxed);
    }

    pub(crate) fn halt(&self) -> VenueHalt {
        VenueHalt::of_number(self.halt.load(Ordering::Relaxed))
    }

    /// The most commands of all sessions on the ring.
    pub(crate) fn cells(&self) -> usize {
        self.cells.len().max(1)
    }

    /// The most commands of one session on the ring: each gets an equal part.
    pub(crate) fn share(&self) -> usize {
        (self.cells.len() / self.sessions.load(Ordering::Relaxed).max(1)).max(1)
    }

    /// Commands on the ring.
    pub(crate) fn in_use(&self) -> usize {
        self.cells.len().saturating_sub(self.free.len())
    }

    /// Takes a free cell.
    pub(crate) fn take(&self) -> Option<u32> {
        if self.cells.is_empty() { None } else { self.free.pop() }
    }

    /// The command in a cell. No other thread wants it: the cell is on the ring or just taken.
    pub(crate) fn cell(&self, cell: u32) -> &Mutex<Posted> {
        &self.cells[usize::try_from(cell).expect("u32 fits")]
    }

    /// Gives a cell back.
    pub(crate) fn give_back(&self, cell: u32) {
        self.free.push(cell).expect("sized for all");
    }

    /// Adds the line of a session. The lines of its earlier epochs end. Returns false if a newer
    /// one is there already, or a close has shut it out.
    pub(crate) fn add(&self, line: &Arc<Line>) -> bool {
        let mut lines = self.lines.lock();
        if self.shut.lock().iter().any(|&(venue, last)| venue == line.venue && line.epoch <= last) {
            return false;
        }
        if lines.iter().any(|other| other.venue == line.venue && other.epoch >= line.epoch) {
            return false;
        }
        lines.retain(|other| {
            let stays = other.venue != line.venue;
            if !stays {
                other.replies.fence();
            }
            stays
        });
        lines.push(Arc::clone(line));
        self.count(&lines);
        true
    }

    /// Takes the session of a line away. The line stays for its commands on the ring.
    pub(crate) fn remove(&self, line: &Line) {
        let lines = self.lines.lock();
        line.left.store(true, Ordering::Release);
        self.count(&lines);
    }

    fn count(&self, lines: &[Arc<Line>]) {
        let at_work = |line: &&Arc<Line>| !line.left.load(Ordering::Relaxed);
        self.sessions.store(lines.iter().filter(at_work).count(), Ordering::Relaxed);
    }

    /// The line of a venue's newest session.
    pub(crate) fn line_of(&self, venue: u32) -> Option<Arc<Line>> {
        self.lines.lock().iter().find(|line| line.venue == venue).cloned()
    }

    /// Ends the sessions of a venue up to and including the epoch `last`, also those that are not
    /// added yet.
    pub(crate) fn fence(&self, venue: u32, last: u64) {
        let lines = self.lines.lock();
        let mut shut = self.shut.lock();
        match shut.iter_mut().find(|(known, _)| *known == venue) {
            Some((_, known)) => *known = last.max(*known),
            None => shut.push((venue, last)),
        }
        drop(shut);
        for line in lines.iter() {
            if line.venue == venue && line.epoch <= last {
                line.replies.fence();
            }
        }
    }

    /// Wakes all sessions: a sync has ended.
    pub(crate) fn wake(&self) {
        if self.sessions.load(Ordering::Relaxed) > 0 {
            self.lines.lock().iter().for_each(|line| line.replies.wake());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a close also ends a session that was opened before it, and is added after it.
    #[test]
    fn a_session_that_a_close_has_overtaken_does_not_begin() {
        let streams = Streams::new(4);
        let line = |venue, epoch| Arc::new(Line::new((venue, epoch), 0, 0, 4));
        streams.fence(1, 5);
        assert!(!streams.add(&line(1, 5)));
        let (next, other) = (line(1, 6), line(2, 1));
        assert!(streams.add(&next) && streams.add(&other));
        streams.fence(1, 5);
        assert!(!next.replies.fenced());
        streams.fence(1, 6);
        assert!(next.replies.fenced() && !other.replies.fenced());
    }
}
