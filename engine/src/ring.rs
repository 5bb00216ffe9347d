//! Commands go in by slots on a `disruptor` ring, answers come back by tickets.
//!
//! No call waits for room: a full ring or no free ticket returns [`Overloaded`] at once.

use std::sync::Arc;

use bell::Bell;
use crossbeam::queue::ArrayQueue;
use disruptor::{
    BusySpin, EventPoller, MultiProducer, MultiProducerBarrier, Producer, SingleConsumerBarrier,
    build_multi_producer,
};
use parking_lot::Mutex;

use crate::command::Command;
use crate::ledger::Answer;
use crate::order::Order;
use crate::text::Text;
use crate::venue::Look;

/// One command for the core thread. Plain data: a panic in a publish closure would hang the ring.
#[derive(Clone, Copy)]
pub(super) struct Slot {
    pub(super) time_ns: u64,
    pub(super) work: Work,
}

/// The content of a slot.
#[derive(Clone, Copy)]
pub(super) enum Work {
    /// A command with a ticket for its answer.
    Asked { ticket: u32, command: Command },
    /// A command by name, in a cell of its slab, with a ticket for its answer.
    Named { ticket: u32, cell: u32 },
    /// A command of a venue's session, in a cell of the slab.
    Numbered { venue: u32, epoch: u64, cell: u32 },
    /// A read of a venue's holds into the session's line.
    Holds { ticket: u32, venue: u32, epoch: u64, after: u64 },
    /// A read of rows for operators, into the shared page.
    Look { ticket: u32, look: Look },
}

impl Work {
    /// The order to decide, if it is one.
    pub(super) fn order(&self) -> Option<&Order> {
        match self {
            Work::Asked { command, .. } => command.order(),
            Work::Named { .. } | Work::Numbered { .. } | Work::Holds { .. } | Work::Look { .. } => {
                None
            }
        }
    }
}

/// The core thread's end of the ring.
pub(super) type Poller = EventPoller<Slot, MultiProducerBarrier>;

/// The ring is full or no ticket is free. Nothing was published; the caller may retry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("UBSCore's queue is full")]
pub struct Overloaded;

/// A pending answer. Dropping it does not take the command back.
pub type Pending = oneshot::AsyncReceiver<Answer>;

/// Places for pending answers, all made at the start.
pub(super) struct Tickets {
    free: ArrayQueue<u32>,
    waiting: Box<[Mutex<Option<oneshot::Sender<Answer>>>]>,
}

impl Tickets {
    fn new(count: usize) -> Tickets {
        let free = ArrayQueue::new(count);
        for ticket in 0..u32::try_from(count).expect("checked by the configuration") {
            free.push(ticket).expect("sized for all");
        }
        Tickets { free, waiting: (0..count).map(|_| Mutex::new(None)).collect() }
    }

    /// The number of pending answers.
    pub(super) fn in_use(&self) -> usize {
        self.count() - self.free.len()
    }

    /// The number of tickets.
    pub(super) fn count(&self) -> usize {
        self.waiting.len()
    }

    fn admits(&self, command: &Command) -> bool {
        command.order().is_none() || self.in_use() < orders_max(self.count())
    }

    fn take(&self) -> Option<(u32, Pending)> {
        let ticket = self.free.pop()?;
        let (sender, receiver) = oneshot::async_channel();
        *self.place(ticket).lock() = Some(sender);
        Some((ticket, receiver))
    }

    fn give_back(&self, ticket: u32) -> oneshot::Sender<Answer> {
        let sender = self.place(ticket).lock().take().expect("a ticket is answered once");
        self.free.push(ticket).expect("sized for all");
        sender
    }

    /// Sends an answer to its caller.
    pub(super) fn answer(&self, ticket: u32, answer: Answer) {
        // An error is a caller that waits no more. Its decision stays recorded for a repeat.
        drop(self.give_back(ticket).send(answer));
    }

    fn place(&self, ticket: u32) -> &Mutex<Option<oneshot::Sender<Answer>>> {
        &self.waiting[usize::try_from(ticket).expect("u32 fits")]
    }
}

/// The producers' end of the ring. Each thread that publishes has a clone of its own.
#[derive(Clone)]
pub(super) struct Publisher {
    producer: MultiProducer<Slot, SingleConsumerBarrier>,
    tickets: Arc<Tickets>,
    bell: Arc<Bell>,
}

impl Publisher {
    /// Publishes one command. The core sees it when it looks next, see [`Publisher::wake`].
    pub(super) fn publish(
        &mut self,
        command: Command,
        time_ns: u64,
    ) -> Result<Pending, Overloaded> {
        if !self.tickets.admits(&command) {
            return Err(Overloaded);
        }
        self.publish_asked(time_ns, |ticket| Work::Asked { ticket, command })
    }

    /// Publishes a command by name. New work is refused where orders are.
    pub(super) fn publish_named(
        &mut self,
        cell: u32,
        opens_work: bool,
        time_ns: u64,
    ) -> Result<Pending, Overloaded> {
        if opens_work && self.tickets.in_use() >= orders_max(self.tickets.count()) {
            return Err(Overloaded);
        }
        self.publish_asked(time_ns, |ticket| Work::Named { ticket, cell })
    }

    /// Publishes work with a ticket.
    pub(super) fn publish_asked(
        &mut self,
        time_ns: u64,
        work: impl Fn(u32) -> Work,
    ) -> Result<Pending, Overloaded> {
        let (ticket, pending) = self.tickets.take().ok_or(Overloaded)?;
        let slot = Slot { time_ns, work: work(ticket) };
        match self.producer.try_publish(|free| *free = slot) {
            Ok(_) => Ok(pending),
            Err(_full) => {
                drop(self.tickets.give_back(ticket));
                Err(Overloaded)
            }
        }
    }

    /// Publishes the command of a venue's session. Half of the ring is free of tickets.
    pub(super) fn publish_numbered(
        &mut self,
        venue: u32,
        epoch: u64,
        cell: u32,
        time_ns: u64,
    ) -> Result<(), Overloaded> {
        let work = Work::Numbered { venue, epoch, cell };
        let published = self.producer.try_publish(|slot| *slot = Slot { time_ns, work });
        published.map(|_| ()).map_err(|_full| Overloaded)
    }

    /// Wakes the core thread.
    pub(super) fn wake(&self) {
        self.bell.ring();
    }
}

/// Pending answers at which orders are refused. An eighth is left to administration and reads.
pub fn orders_max(in_flight_max: usize) -> usize {
    in_flight_max - in_flight_max / 8
}

/// A ring of `slots` (a power of two, at least 64) with `in_flight_max` tickets; `bell` is the
/// core's.
pub(super) fn ring(slots: usize, in_flight_max: usize, bell: Arc<Bell>) -> (Publisher, Poller) {
    let empty = Command::RegisterAsset { asset: 0, precision: 0, symbol: Text::EMPTY };
    let work = Work::Asked { ticket: 0, command: empty };
    let slot = move || Slot { time_ns: 0, work };
    // The wait strategy is for consumers that the crate manages. Ours polls.
    let (poller, builder) = build_multi_producer(slots, slot, BusySpin).new_event_poller();
    let tickets = Arc::new(Tickets::new(in_flight_max));
    (Publisher { producer: builder.build(), tickets, bell }, poller)
}

impl Publisher {
    pub(super) fn tickets(&self) -> Arc<Tickets> {
        Arc::clone(&self.tickets)
    }
}
