//! The state that the engine's threads and handles share.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use bell::Bell;
use crossbeam::queue::ArrayQueue;
use domain::code::Code;
use domain::transfer::Op;
use parking_lot::Mutex;
use wal::{Medium, Sequence};

use crate::core::Core;
use crate::ledger::{Answer, ROWS_READ_MAX};
use crate::line::Streams;
use crate::posted::Posted;
use crate::ring::Tickets;
use crate::slab::Slab;
use crate::venue::{Page, RefusedEnd};

/// Refused ends that are kept for an alert; the oldest is dropped.
const REFUSED_ENDS_MAX: usize = 64;

/// An answer that leaves once `after` is durable.
pub(crate) struct Release {
    pub(crate) ticket: u32,
    pub(crate) after: Sequence,
    pub(crate) answer: Answer,
}

/// The state that the threads and the handles share.
pub(crate) struct Shared {
    pub(crate) releases: ArrayQueue<Release>,
    pub(crate) tickets: Arc<Tickets>,
    pub(crate) streams: Arc<Streams>,
    /// Commands by name on the ring.
    pub(crate) slab: Slab,
    pub(crate) log: wal::Durable,
    pub(crate) core_bell: Arc<Bell>,
    pub(crate) sync_bell: Arc<Bell>,
    pub(crate) prepare_bell: Arc<Bell>,
    pub(crate) mark_wanted: AtomicBool,
    /// See [`Core::marked`].
    pub(crate) marked: AtomicU64,
    pub(crate) stop: AtomicBool,
    pub(crate) core_stopped: AtomicBool,
    /// The sync thread has ended: all that was decided is durable and answered.
    pub(crate) released: AtomicBool,
    pub(crate) outcomes: AtomicUsize,
    /// Holds and freezes.
    pub(crate) holds: AtomicUsize,
    /// Decided postings of venues, by operation, each with its successes and its refusals.
    pub(crate) postings: [[AtomicU64; 2]; Op::ALL.len()],
    /// The last refused SETTLEs and RELEASEs.
    pub(crate) refused_ends: ArrayQueue<RefusedEnd>,
    /// The answer to a read of rows.
    pub(crate) page: Mutex<Page>,
    /// See [`Core::outcome_capacity`].
    pub(crate) outcome_capacity: AtomicUsize,
    /// See [`Core::log_capacity`].
    pub(crate) log_capacity: AtomicUsize,
    pub(crate) accounts: AtomicUsize,
    pub(crate) accounts_left: AtomicUsize,
    pub(crate) balances: AtomicUsize,
    pub(crate) balances_left: AtomicUsize,
    /// Bytes of the log's records since the start.
    pub(crate) log_bytes: AtomicU64,
    /// Segments without records from this one on are removed.
    pub(crate) remove_before: AtomicU64,
    pub(crate) segments_removed: AtomicU64,
}

impl Shared {
    /// The state of a stopped engine.
    pub(crate) fn new(
        tickets: Arc<Tickets>,
        streams: Arc<Streams>,
        releases_max: usize,
        log: wal::Durable,
        bells: [Arc<Bell>; 3],
    ) -> Shared {
        let [core_bell, sync_bell, prepare_bell] = bells;
        Shared {
            releases: ArrayQueue::new(releases_max),
            tickets,
            streams,
            slab: Slab::new(releases_max),
            log,
            core_bell,
            sync_bell,
            prepare_bell,
            mark_wanted: AtomicBool::new(false),
            marked: AtomicU64::new(0),
            stop: AtomicBool::new(false),
            core_stopped: AtomicBool::new(false),
            released: AtomicBool::new(false),
            outcomes: AtomicUsize::new(0),
            holds: AtomicUsize::new(0),
            postings: Default::default(),
            refused_ends: ArrayQueue::new(REFUSED_ENDS_MAX),
            page: Mutex::new(Page {
                holds: Vec::with_capacity(ROWS_READ_MAX + 1),
                ..Page::default()
            }),
            outcome_capacity: AtomicUsize::new(0),
            log_capacity: AtomicUsize::new(0),
            accounts: AtomicUsize::new(0),
            accounts_left: AtomicUsize::new(0),
            balances: AtomicUsize::new(0),
            balances_left: AtomicUsize::new(0),
            log_bytes: AtomicU64::new(0),
            remove_before: AtomicU64::new(0),
            segments_removed: AtomicU64::new(0),
        }
    }
}

impl Shared {
    /// Counts a decided posting of a venue.
    pub(crate) fn count(&self, posted: &Posted, code: Option<Code>) {
        let &Posted { venue, number, op, leg, .. } = posted;
        let place = Op::ALL.iter().position(|known| *known == op).expect("one of all");
        self.postings[place][usize::from(code.is_some())].fetch_add(1, Ordering::Relaxed);
        if let Some(code) = code
            && !op.row().opens_work
        {
            self.refused_ends.force_push(RefusedEnd { venue, number, op, code, leg });
        }
    }

    /// Publishes the core's counters to the handles.
    pub(crate) fn publish<M: Medium>(&self, core: &Core<M>) {
        self.holds.store(core.ledger().hold_count(), Ordering::Relaxed);
        self.outcomes.store(core.ledger().outcome_count(), Ordering::Relaxed);
        self.outcome_capacity.store(core.outcome_capacity(), Ordering::Relaxed);
        self.log_capacity.store(core.log_capacity(), Ordering::Relaxed);
        let ledger = core.ledger();
        self.accounts.store(ledger.account_count(), Ordering::Relaxed);
        self.accounts_left.store(ledger.accounts_left(), Ordering::Relaxed);
        self.balances.store(ledger.balance_count(), Ordering::Relaxed);
        self.balances_left.store(ledger.balances_left(), Ordering::Relaxed);
        self.log_bytes.store(core.log_bytes(), Ordering::Relaxed);
        self.marked.store(core.marked(), Ordering::Relaxed);
    }
}
