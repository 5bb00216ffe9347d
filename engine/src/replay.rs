//! Rebuilds the ledger from the log. Every record is decided again, and the decision must be equal
//! to the recorded one.
//!
//! A start and a new snapshot go the same way: from nothing or from an older snapshot.

use std::path::PathBuf;
use std::sync::mpsc::SyncSender;

use arrayvec::ArrayVec;
use domain::posting::Breakdown;
use domain::transfer::Decision;
use wal::{Medium, Place, Record, Recovery, Sequence, segment_name};

use super::snapshot::{self, Snapshot};
use crate::command::Command;
use crate::entry::{Entry, VenueEntry};
use crate::ledger::{Answer, FORGET_LEAVES, FORGET_LOOKS, LOOK_AHEAD, Ledger, Step};
use crate::named::{Named, NamedStep};
use crate::op::number::Door;
use crate::places::ACCOUNTS_MAX;
use crate::posted::Posted;
use crate::record;

/// Records in one chunk.
const CHUNK_RECORDS: usize = 1_024;

/// A log that this program has not written, or not with this configuration.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A record's payload cannot be read.
    #[error("undecodable record at {place}")]
    Payload {
        /// The record.
        place: Place,
        /// The reason.
        #[source]
        source: record::Error,
    },
    /// The record contradicts the state before it.
    #[error("the record at {place} holds {found:?}, but deciding it again gives {decided:?}")]
    Mismatch {
        /// The record.
        place: Place,
        /// The entry in the log.
        found: Box<Entry>,
        /// The decision of this program.
        decided: Box<Step>,
    },
    /// The log has more rows than places.
    #[error("record at {place}: {key} is too small for this log")]
    Full {
        /// The first record without a place.
        place: Place,
        /// The configuration key of the bound.
        key: &'static str,
    },
    /// The snapshot and its record have different digests: one of the two has changed.
    #[error(
        "{} adds up to {digest:032x}, but the record at {place} holds {found:?}",
        path.display()
    )]
    Digest {
        /// The snapshot's file.
        path: PathBuf,
        /// The sum of its facts' digests.
        digest: u128,
        /// The snapshot's record.
        place: Place,
        /// The entry in the log.
        found: Box<Entry>,
    },
}

/// A record as read from the log.
pub(super) struct Read {
    pub(super) sequence: Sequence,
    pub(super) bytes: u64,
    time_ns: u64,
    entry: Result<Entry, record::Error>,
    segment: u64,
    offset: u64,
}

impl Read {
    fn new(record: &Record<'_>) -> Read {
        let Record { sequence, bytes, time_ns, kind, payload, segment, offset, .. } = *record;
        Read { sequence, bytes, time_ns, entry: Entry::decode(kind, payload), segment, offset }
    }

    fn place(&self) -> Place {
        let Read { sequence, segment, offset, .. } = *self;
        Place { file: segment_name(segment), offset, sequence }
    }
}

/// Reads a log to its end and sends the records in chunks: another thread replays them meanwhile.
/// It ends early if the receiver is dropped.
///
/// # Errors
/// As [`Recovery::next`]. The records before it are sent.
pub(super) fn read_ahead<M: Medium>(
    recovery: &mut Recovery<M>,
    reads: &SyncSender<Vec<Read>>,
) -> Result<(), wal::Error> {
    loop {
        let mut chunk = Vec::with_capacity(CHUNK_RECORDS);
        let mut ended = Ok(());
        while chunk.len() < CHUNK_RECORDS {
            match recovery.next() {
                Ok(Some(record)) => chunk.push(Read::new(&record)),
                Ok(None) => break,
                Err(error) => {
                    ended = Err(error);
                    break;
                }
            }
        }
        let last = chunk.len() < CHUNK_RECORDS;
        if reads.send(chunk).is_err() || last {
            return ended;
        }
    }
}

/// A ledger during replay.
pub struct Replay {
    ledger: Ledger,
    /// Records that are read and not replayed yet.
    ahead: ArrayVec<Read, LOOK_AHEAD>,
    /// The loaded snapshot, until its record in the log has confirmed it.
    unconfirmed: Option<Snapshot>,
}

impl Replay {
    /// Starts from a snapshot, or from an empty ledger at the log's beginning. The first record
    /// after a snapshot is its own, and must confirm it.
    ///
    /// # Errors
    /// [`snapshot::Error`].
    pub fn begin(snapshot: Option<Snapshot>, empty: Ledger) -> Result<Replay, snapshot::Error> {
        let ledger = match &snapshot {
            Some(snapshot) => snapshot.ledger(empty)?,
            None => empty,
        };
        Ok(Replay { ledger, ahead: ArrayVec::new(), unconfirmed: snapshot })
    }

    /// Takes the next record. A snapshot's own record comes first.
    ///
    /// # Errors
    /// [`Error`], of this record or of one of the last few: the log or the snapshot must not be
    /// used.
    pub fn take(&mut self, record: &Record<'_>) -> Result<(), Error> {
        self.take_read(Read::new(record))
    }

    /// [`Replay::take`] for a record of [`read_ahead`].
    pub(super) fn take_read(&mut self, read: Read) -> Result<(), Error> {
        let Some(snapshot) = self.unconfirmed.take() else {
            self.ahead.push(read);
            return if self.ahead.is_full() { self.catch_up() } else { Ok(()) };
        };
        let place = read.place();
        assert_eq!(read.sequence, snapshot.header.sequence, "a snapshot's own record comes first");
        let digest = snapshot.header.digest;
        match read.entry {
            Ok(entry) if entry == (Entry::Digest { digest }) => Ok(()),
            Ok(entry) => {
                let (path, found) = (snapshot.path, Box::new(entry));
                Err(Error::Digest { path, digest, place, found })
            }
            Err(source) => Err(Error::Payload { place, source }),
        }
    }

    /// Replays the records taken.
    fn catch_up(&mut self) -> Result<(), Error> {
        let Replay { ledger, ahead, .. } = self;
        let orders = ahead.iter().filter_map(|read| match &read.entry {
            Ok(Entry::Order { order, .. }) => Some(order),
            _ => None,
        });
        ledger.expect(orders);
        ahead.drain(..).try_for_each(|read| replay_read(ledger, read))
    }

    /// The loaded snapshot if the log has not confirmed it yet.
    pub fn unconfirmed(&self) -> Option<&Snapshot> {
        self.unconfirmed.as_ref()
    }

    /// The ledger after the last record.
    ///
    /// Panics if the loaded snapshot is not confirmed.
    ///
    /// # Errors
    /// [`Error`], of one of the last few records taken.
    pub fn finish(mut self) -> Result<Ledger, Error> {
        assert_eq!(self.unconfirmed, None, "the log has not confirmed it");
        self.catch_up()?;
        Ok(self.ledger)
    }
}

/// Replays one record.
///
/// # Errors
/// [`Error`]: the log must not be used.
pub fn replay(ledger: &mut Ledger, record: &Record<'_>) -> Result<(), Error> {
    replay_read(ledger, Read::new(record))
}

fn replay_read(ledger: &mut Ledger, read: Read) -> Result<(), Error> {
    let Read { sequence, time_ns, segment, offset, .. } = read;
    // Only for an error: its text costs as much as half of an order.
    let place = || Place { file: segment_name(segment), offset, sequence };
    let entry = read.entry.map_err(|source| Error::Payload { place: place(), source })?;
    let entry = match entry {
        Entry::Posting(posted) if posted.operator == 0 => {
            return replay_posted(ledger, posted, sequence, time_ns, place);
        }
        Entry::Named(named) => return replay_named(ledger, named, sequence, time_ns, place),
        entry => entry,
    };
    let command = match entry {
        // No state leads to a refusal of kind 8.
        Entry::Order { order, decision: Decision::Refused(code), imposed: true, .. } => {
            Command::Refuse { order, code }
        }
        Entry::Order { order, .. } => Command::Order(order),
        Entry::External(external) => Command::External(external),
        Entry::AccountStatus { user, status } => Command::SetStatus { user, status },
        Entry::Asset { asset, precision, symbol } => {
            Command::RegisterAsset { asset, precision, symbol }
        }
        Entry::Watermark { order_number } => Command::RaiseWatermark { order_number },
        Entry::Totals { user, asset, totals } => Command::CarryTotals { user, asset, totals },
        Entry::Outside { asset, outside } => Command::CarryOutside { asset, outside },
        Entry::Venue(VenueEntry { id, epoch: 0, closed, posts, name }) => {
            match ledger.knows_venue(id) {
                true => Command::CloseVenue { id, closed },
                false => Command::AddVenue { id, name, posts },
            }
        }
        Entry::Venue(VenueEntry { id, epoch, .. }) => Command::OpenVenue { id, epoch, told: 0 },
        Entry::Digest { .. } => Command::Digest,
        // The venue's own commands are replayed above.
        Entry::Posting(ref posted) => {
            let hold = posted.released().expect("read as a release");
            Command::ReleaseHold { name: posted.operator, venue: posted.venue, hold }
        }
        Entry::Named(_) => unreachable!("replayed above"),
        Entry::Mark => {
            ledger.apply(&entry, sequence, time_ns);
            return Ok(());
        }
    };
    let mut step = ledger.step(&command);
    if !matches!(&step, Step::Append(decided) if *decided == entry) {
        // The writer may have evicted more: outcomes below the watermark must not change the
        // decision.
        ledger.forget_all();
        step = ledger.step(&command);
    }
    match step {
        Step::Append(decided) if decided == entry => {
            ledger.apply(&entry, sequence, time_ns);
            ledger.forget(FORGET_LOOKS, FORGET_LEAVES);
            Ok(())
        }
        Step::Full(key) => Err(Error::Full { place: place(), key }),
        // A plain order was decided again: only a missing place imposes a refusal on it.
        Step::Append(Entry::Order { imposed: true, .. })
            if matches!(command, Command::Order(_)) =>
        {
            Err(Error::Full { place: place(), key: ACCOUNTS_MAX })
        }
        decided => Err(Error::Mismatch {
            place: place(),
            found: Box::new(entry),
            decided: Box::new(decided),
        }),
    }
}

/// Replays one posting by name: decided again, it must be equal.
fn replay_named(
    ledger: &mut Ledger,
    found: Box<Named>,
    sequence: Sequence,
    time_ns: u64,
    place: impl Fn() -> Place,
) -> Result<(), Error> {
    let mut parts = Breakdown::default();
    let mut again = found.clone();
    let mut step = ledger.decide_named(&mut again, &mut parts);
    if step != NamedStep::Append || again != found {
        // The writer may have evicted more.
        ledger.forget_all();
        step = ledger.decide_named(&mut again, &mut parts);
    }
    let decided = match step {
        NamedStep::Append if again == found => {
            ledger.apply_named(&found, &parts, sequence, time_ns);
            ledger.forget(FORGET_LOOKS, FORGET_LEAVES);
            return Ok(());
        }
        NamedStep::Append => Step::Append(Entry::Named(again)),
        NamedStep::Full(key) => return Err(Error::Full { place: place(), key }),
        NamedStep::Known(answer) => Step::Known(Answer::Named(answer)),
        NamedStep::Violation(why) => Step::Violation(why),
        NamedStep::Forgotten => Step::Forgotten,
    };
    let (found, decided) = (Box::new(Entry::Named(found)), Box::new(decided));
    Err(Error::Mismatch { place: place(), found, decided })
}

/// Replays one posting by number: decided again, it must be equal.
fn replay_posted(
    ledger: &mut Ledger,
    found: Box<Posted>,
    sequence: Sequence,
    time_ns: u64,
    place: impl Fn() -> Place,
) -> Result<(), Error> {
    let mut parts = Breakdown::default();
    let mut again = found.clone();
    again.take_back();
    let follows = ledger.knows_venue(found.venue)
        && ledger.door(&again) == Door::Next
        && ledger.may_acknowledge(&found);
    if follows {
        ledger.decide_posted(&mut again, &mut parts);
        if found.imposed && found.state == again.state {
            // No state leads to it: another process had fewer places.
            again = found.clone();
        }
    }
    match follows && again == found {
        true => {
            ledger.apply_posted(&found, &parts, sequence, time_ns);
            Ok(())
        }
        false if follows && again.imposed => {
            let key = ledger.lacks_place(&again, &parts).expect("it is refused for a place");
            Err(Error::Full { place: place(), key })
        }
        false => {
            let (found, decided) = (Box::new(Entry::Posting(found)), Entry::Posting(again));
            Err(Error::Mismatch { place: place(), found, decided: Box::new(Step::Append(decided)) })
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use domain::account::AccountStatus;
    use domain::code::Code;
    use domain::transfer::{Direction, Op};
    use proptest::prelude::*;
    use wal::memory::Memory;
    use wal::{Identity, Progress, Reader};

    use super::*;
    use crate::core::Core;
    use crate::ledger::Answer;
    use crate::order::Order;
    use crate::places::Places;
    use crate::text::Text;
    use crate::totals::Totals;

    const IDENTITY: Identity = Identity(0xfe);
    const PLACES: Places = Places::of_transfers(8, 1_024);

    fn from_nothing() -> Replay {
        Replay::begin(None, Ledger::new(PLACES)).expect("nothing to load")
    }

    /// A log of the commands that these numbers mean.
    fn history(steps: &[(u8, u64, u64, u64)]) -> Memory {
        let memory = Memory::new();
        let options = wal::Options { segment_bytes: wal::SEGMENT_BYTES_MIN, spares_ready: 2 };
        let recovery = Recovery::open(memory.clone(), 0, 0).expect("empty");
        let (mut log, _) = recovery.start(IDENTITY, options).expect("started");
        let mut core = Core::new(Ledger::new(PLACES), log.writer);
        let symbol = Text::new("USDT").expect("short");
        let asset = Command::RegisterAsset { asset: 3, precision: 8, symbol };
        for command in [asset].into_iter().chain(steps.iter().map(command)) {
            while log.preparer.tick().expect("prepared") == Progress::Busy {}
            let (answer, _) = core.decide(&command, 7);
            assert_ne!(answer, Answer::Overloaded);
            log.syncer.sync().expect("synced");
        }
        memory
    }

    fn command(&(step, number, user, amount): &(u8, u64, u64, u64)) -> Command {
        let code = Code::ResolvedByOperator;
        let order = |op| {
            let (direction, cid) = (Direction::FundingToSpot, Text::EMPTY);
            let (req_id, order_number) = (number.into(), number);
            let asset = 3;
            Order { op, req_id, cid, user, asset, amount, direction, order_number }
        };
        match step {
            0..3 => Command::Order(order(Op::Deposit)),
            3..5 => Command::Order(order(Op::Withdraw)),
            5 => Command::Order(order(Op::Refund)),
            11 => Command::Refuse { order: order(Op::Deposit), code },
            12 => Command::Refuse { order: order(Op::Withdraw), code },
            6 => Command::SetStatus { user, status: AccountStatus::Frozen },
            7 => Command::SetStatus { user, status: AccountStatus::Active },
            8 => Command::RaiseWatermark { order_number: number / 2 },
            13 => {
                let (deposits, withdrawals) = (u128::from(amount), u128::from(number % amount));
                let totals = Totals { deposits, withdrawals, refunds: 0 };
                Command::CarryTotals { user, asset: 3, totals }
            }
            _ => Command::Digest,
        }
    }

    /// Replays up to and including `to`, 0 for all.
    fn replayed(memory: &Memory, mut replay: Replay, from: Sequence, to: Sequence) -> Ledger {
        let mut reader = Reader::open(memory.clone(), from).expect("a log");
        while let Some(record) = reader.next().expect("sound") {
            replay.take(&record).expect("follows");
            if record.sequence == to {
                break;
            }
        }
        replay.finish().expect("follows")
    }

    fn digests(memory: &Memory) -> Vec<Sequence> {
        let mut reader = Reader::open(memory.clone(), 0).expect("a log");
        let mut found = Vec::new();
        while let Some(record) = reader.next().expect("sound") {
            if record.kind == record::Kind::Digest as u8 {
                found.push(record.sequence);
            }
        }
        found
    }

    fn snapshot_at(memory: &Memory, to: Sequence, path: &Path) -> Snapshot {
        let ledger = replayed(memory, from_nothing(), 1, to);
        snapshot::write(path, IDENTITY, &ledger, || true).expect("written").expect("to the end");
        Snapshot::open(path).expect("whole")
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]

        /// Goal: a start from any snapshot ends with the ledger of the whole log. Method: random
        /// histories with digests among them; a snapshot at each digest; the rest of the log after
        /// it.
        #[test]
        fn every_snapshot_leads_where_the_whole_log_leads(
            steps in prop::collection::vec((0..14_u8, 1..40_u64, 1..4_u64, 1..50_u64), 1..120)
        ) {
            let memory = history(&steps);
            let whole = replayed(&memory, from_nothing(), 1, 0);
            let directory = tempfile::tempdir().expect("a directory");
            for sequence in digests(&memory) {
                let snapshot = snapshot_at(&memory, sequence, &directory.path().join("a.snap"));
                prop_assert_eq!(snapshot.header.sequence, sequence);
                let replay = Replay::begin(Some(snapshot), Ledger::new(PLACES)).expect("a ledger");
                let after = replayed(&memory, replay, sequence, 0);
                prop_assert_eq!(after.digest(), whole.digest());
                prop_assert_eq!(after.sequence(), whole.sequence());
                prop_assert_eq!(after.watermark(), whole.watermark());
                prop_assert_eq!(after.balances(), whole.balances());
                let watermark = whole.watermark();
                prop_assert_eq!(after.settled(watermark), whole.settled(watermark));
                for step in &steps {
                    let command = command(step);
                    if step.1 >= whole.watermark() {
                        prop_assert_eq!(after.step(&command), whole.step(&command));
                    }
                }
            }
        }
    }

    /// Goal: a log may hold an imposed refusal of a WITHDRAW or a DEPOSIT, with any balance, and of
    /// no other operation; and no record that no state leads to. Method: one record each, written
    /// as in a log, after a deposit and a withdraw.
    #[test]
    fn a_log_holds_imposed_refusals_of_withdraws_and_deposits_only() {
        let order = |step, number| match command(&(step, number, 7, 100)) {
            Command::Order(order) => order,
            other => panic!("{other:?}"),
        };
        let (deposit, withdraw, refund) = (order(0, 3), order(3, 3), order(5, 2));
        let (resolved, frozen) = (Code::ResolvedByOperator, Code::AccountFrozen);
        for (order, code, imposed, balance_after, fits) in [
            (deposit, resolved, true, 400, true),
            (withdraw, resolved, true, 400, true),
            (withdraw, frozen, true, 400, true),
            // It would have overdrawn the account, or is none at all.
            (Order { amount: 900, ..withdraw }, resolved, true, 400, true),
            (Order { user: 9, ..deposit }, resolved, true, 0, true),
            (refund, resolved, true, 400, false),
            (deposit, resolved, true, 500, false),
            (deposit, frozen, false, 400, false),
            (deposit, resolved, false, 400, false),
            // Decided before.
            (order(3, 2), resolved, true, 400, false),
        ] {
            let memory = history(&[(0, 1, 7, 500), (3, 2, 7, 100)]);
            let mut ledger = replayed(&memory, from_nothing(), 1, 0);
            let decision = Decision::Refused(code);
            let entry = Entry::Order { order, decision, balance_after, imposed };
            let (sequence, bytes) = (ledger.sequence() + 1, 0);
            let (segment, offset) = (1, 0);
            let read =
                Read { sequence, bytes, time_ns: 7, entry: Ok(entry.clone()), segment, offset };
            let done = replay_read(&mut ledger, read);
            assert_eq!(done.is_ok(), fits, "{entry:?}: {done:?}");
            assert!(fits || matches!(done, Err(Error::Mismatch { .. })), "{done:?}");
        }
    }

    /// Story: the balance, the digest and the checksum of a snapshot fit each other, but not the
    /// log.
    #[test]
    fn a_snapshot_of_another_history_is_refused_by_the_log() {
        let digest = (9, 1, 1, 1);
        let memory = history(&[(0, 1, 1, 50), digest]);
        let other = history(&[(0, 1, 1, 51), digest]);
        let directory = tempfile::tempdir().expect("a directory");
        let snapshot = snapshot_at(&other, 3, &directory.path().join("a.snap"));
        let mut replay =
            Replay::begin(Some(snapshot), Ledger::new(PLACES)).expect("sound in itself");
        let mut reader = Reader::open(memory, 3).expect("a log");
        let record = reader.next().expect("sound").expect("the digest");
        let error = replay.take(&record).expect_err("another digest");
        assert!(matches!(&error, Error::Digest { place, .. } if place.sequence == 3), "{error:?}");
        assert!(error.to_string().contains("a.snap"), "{error}");
    }
}
