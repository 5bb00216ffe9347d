use domain::account::AccountStatus;
use domain::code::Code;
use domain::posting::{Breakdown, Leg, Place};
use domain::transfer::{Direction, Op, ReqId};
use engine::command::Command;
use engine::entry::Entry;
use engine::fact::Fact;
use engine::ledger::{Ledger, Step};
use engine::named::{Named, NamedPosting, NamedStep};
use engine::order::Order;
use engine::places::{Places, VenuePlaces};
use engine::posted::Posted;
use engine::record::PAYLOAD_BYTES_MAX;
use engine::replay::Replay;
use engine::text::Text;
use engine::venue;
use wal::memory::Memory;
use wal::{
    Ending, Error, Identity, Log, Options, Reader, Recovery, SEGMENT_BYTES_MIN, Sequence,
    record_bytes, segment_name,
};

use super::Recipe;
use super::payload::check_entry;

const IDENTITY: Identity = Identity(0x5eed);
pub(super) const PLACES: Places = Places {
    accounts_max: 4,
    outcomes_max: 16,
    venues: VenuePlaces { holds_max: 4, venues_max: 2, window: 8 },
};
const OPTIONS: Options = Options { segment_bytes: SEGMENT_BYTES_MIN, spares_ready: 1 };

/// Offset of a segment's first record.
const RECORDS_FROM: usize = 4_096;
const _: () = assert!(RECORDS_FROM as u64 == wal::SEGMENT_HEADER_BYTES);

/// A recipe for a log's directory, see [`Draft::write`].
pub fn check(bytes: &[u8]) {
    let mut recipe = Recipe::new(bytes);
    let (known_durable, from) = (recipe.number(), recipe.number());
    let mut draft = Draft::new();
    while !recipe.is_over() {
        draft.write(&mut recipe);
    }
    draft.close();
    let medium = draft.medium;

    let read = read(&medium, from.max(1));
    let recovered = recover(&medium, known_durable, from);
    let (records, ending) = &recovered;
    for (record, due) in records.iter().zip(from.max(1)..) {
        assert_eq!(record.sequence, due, "{recovered:?}");
    }
    assert_eq!(read.0, *records, "the reader and recovery read the same records");
    if known_durable == 0 && from <= 1 {
        assert_eq!(read.1, *ending, "the reader and recovery find the same end");
    }
    if ending.is_ok() {
        start(&medium, known_durable, from, records.last().map_or(from.max(1) - 1, |r| r.sequence));
    }
    if from <= 1 {
        replay(&medium, from);
    }
}

/// A record's content, without its place.
#[derive(Debug, PartialEq, Eq)]
struct Seen {
    sequence: Sequence,
    kind: u8,
    time_ns: u64,
    payload: Vec<u8>,
}

impl Seen {
    fn new(record: &wal::Record<'_>) -> Seen {
        assert!(record.durable < record.sequence, "{record:?}");
        assert!(record.offset.is_multiple_of(8), "{record:?}");
        assert_eq!(record.bytes, record_bytes(record.payload.len()), "{record:?}");
        check_entry(record.kind, record.payload);
        let (sequence, kind, time_ns) = (record.sequence, record.kind, record.time_ns);
        Seen { sequence, kind, time_ns, payload: record.payload.to_vec() }
    }
}

/// Records, and their end: clean, or the text of the error.
type Read = (Vec<Seen>, Result<Option<Ending>, String>);

fn read(medium: &Memory, from: Sequence) -> Read {
    let mut records = Vec::new();
    let mut walk = || {
        let mut reader = Reader::open(medium.clone(), from)?;
        while let Some(record) = reader.next()? {
            records.push(Seen::new(&record));
        }
        reader.ending()
    };
    let ending = walk().map(Some).map_err(said);
    (records, ending)
}

fn recover(medium: &Memory, known_durable: Sequence, from: Sequence) -> Read {
    let mut records = Vec::new();
    let mut walk = || {
        let mut recovery = Recovery::open(medium.clone(), known_durable, from)?;
        while let Some(record) = recovery.next()? {
            records.push(Seen::new(&record));
        }
        let (_log, report) =
            recovery_of(&medium.kill(), known_durable, from)?.start(IDENTITY, OPTIONS)?;
        Ok(report.ending)
    };
    let ending = walk().map(Some).map_err(said);
    (records, ending)
}

fn recovery_of(
    medium: &Memory,
    known_durable: Sequence,
    from: Sequence,
) -> Result<Recovery<Memory>, Error> {
    Recovery::open(medium.clone(), known_durable, from)
}

/// The error's text, which names the place in the log.
fn said(error: Error) -> String {
    let text = error.to_string();
    match error {
        Error::Damaged { .. }
        | Error::Missing { .. }
        | Error::Header { .. }
        | Error::Version { .. }
        | Error::Foreign { .. }
        | Error::Order { .. }
        | Error::Chain { .. } => {
            let parts = ["segment-", " offset ", " sequence "];
            assert!(parts.iter().all(|part| text.contains(part)), "{text}");
        }
        // A medium in memory does not fail, and no other process has it open.
        other => panic!("{other:?}"),
    }
    text
}

/// A log that opens can be appended to, and keeps all of it after a power cut.
fn start(medium: &Memory, known_durable: Sequence, from: Sequence, last: Sequence) {
    let recovery = recovery_of(medium, known_durable, from).expect("it did before");
    let identity = recovery.identity().unwrap_or(IDENTITY);
    let (log, report) = match recovery.start(identity, OPTIONS) {
        Ok(started) => started,
        Err(error) => return drop(said(error)),
    };
    assert_eq!(report.last, last);
    let Log { mut writer, mut syncer, .. } = log;
    assert_eq!(writer.append(9, 7, b"one more").expect("a fresh segment"), last + 1);
    assert_eq!(syncer.sync().expect("no fault"), last + 1);
    let (records, ending) = recover(&medium.crash(|| false), last + 1, from);
    assert_eq!(ending, Ok(Some(Ending::Clean)));
    let seen = records.last().expect("the last one at least");
    assert_eq!((seen.sequence, seen.kind, &seen.payload[..]), (last + 1, 9, &b"one more"[..]));
}

/// The log is replayed up to the first record that cannot have been decided.
fn replay(medium: &Memory, from: Sequence) {
    let Ok(mut recovery) = recovery_of(&medium.kill(), 0, from) else { return };
    let mut replay = Replay::begin(None, Ledger::new(PLACES)).expect("nothing to load");
    let mut taken = Ok(());
    while let (Ok(()), Ok(Some(record))) = (&taken, recovery.next()) {
        taken = replay.take(&record);
    }
    match taken.and_then(|()| replay.finish()) {
        Ok(ledger) => check_ledger(&ledger),
        Err(error) => assert!(error.to_string().contains("record at segment-"), "{error}"),
    }
}

/// The invariants of any accepted ledger.
pub(super) fn check_ledger(ledger: &Ledger) {
    let digest = ledger.facts().map(|fact| fact.digest()).fold(0, u128::wrapping_add);
    assert_eq!(digest, ledger.digest());
    assert!(ledger.order_numbers_end() >= ledger.watermark());
    assert!(ledger.outcome_count() <= PLACES.outcomes_max);
    for fact in ledger.facts() {
        if let Fact::Balance { available, held, traded, totals, .. } = fact {
            let entered = (totals.deposits + totals.refunds).checked_add_signed(traded);
            assert_eq!(
                entered.and_then(|all| all.checked_sub(totals.withdrawals)),
                Some(available + held)
            );
        }
    }
    ledger.settled(ledger.order_numbers_end()).expect("not below the watermark");
}

/// An unfinished log directory.
struct Draft {
    medium: Memory,
    /// The segment that is being written.
    bytes: Vec<u8>,
    number: u64,
    /// Where the next record goes.
    offset: usize,
    last: Sequence,
    chain: u32,
    /// The effect of the records decided so far.
    ledger: Ledger,
}

impl Draft {
    fn new() -> Draft {
        let chain = crc32fast::hash(&IDENTITY.0.to_le_bytes());
        let ledger = Ledger::new(PLACES);
        let medium = Memory::new();
        Draft { medium, bytes: Vec::new(), number: 0, offset: 0, last: 0, chain, ledger }
    }

    /// Follows one line of the recipe.
    fn write(&mut self, recipe: &mut Recipe<'_>) {
        match recipe.byte() % 18 {
            0 => {
                self.close();
                self.open(self.number.wrapping_add(1), self.last, self.chain, SEGMENT_BYTES_MIN);
            }
            1 => {
                self.close();
                let [number, last] = [recipe.number(), recipe.number()];
                let chain = if recipe.byte() == 0 { self.chain } else { recipe.byte().into() };
                let bytes = recipe.number().wrapping_mul(4096);
                self.open(number, last, chain, bytes);
            }
            2 => {
                let (kind, length) = (recipe.byte(), recipe.byte());
                let payload = recipe.take(length.into()).to_vec();
                self.record(kind, &payload);
            }
            3 => {
                let [sequence, durable] = [recipe.number(), recipe.number()];
                let [kind, version, reserved, length] = recipe.bytes();
                let payload = recipe.take(length.into());
                self.put(sequence, self.chain, [kind, version, reserved, 0], durable, payload);
            }
            4 => {
                let length = recipe.byte();
                let bytes = recipe.take(length.into()).to_vec();
                self.overwrite(self.offset, &bytes);
            }
            5 => {
                let (at, mask) = (recipe.short(), recipe.byte());
                if let Some(byte) = self.bytes.get_mut(at) {
                    *byte ^= mask;
                }
            }
            6 => self.bytes.truncate(recipe.short()),
            7 => {
                let name = String::from_utf8_lossy(recipe.take(24)).into_owned();
                self.medium.put(&format!("segment-{name}.wal"), recipe.take(64).to_vec());
            }
            8 => self.offset += usize::from(recipe.byte()) * 8,
            // A missing segment.
            9 => self.bytes.clear(),
            10 => {
                // A record of an earlier sequence becomes due again.
                self.last = self.last.wrapping_sub(recipe.number());
            }
            11 => self.record(99, &[7; 1_024]),
            12 => self.decide(&Command::Digest),
            13 => self.decide(&Command::RaiseWatermark { order_number: recipe.number() }),
            14 => {
                let (asset, precision) = (recipe.byte() % 4, recipe.byte() % 16);
                let symbol = Text::new("USDT").expect("short");
                self.decide(&Command::RegisterAsset { asset: asset.into(), precision, symbol });
                let status = AccountStatus::from_number(recipe.byte());
                let status = status.unwrap_or(AccountStatus::Active);
                self.decide(&Command::SetStatus { user: recipe.number(), status });
            }
            15 => self.decide(&venue_command(recipe)),
            16 => self.post(recipe),
            _ => {
                let command = order(recipe);
                self.decide(&command);
            }
        }
    }

    /// Begins a segment.
    fn open(&mut self, number: u64, last: Sequence, chain: u32, bytes: u64) {
        let mut page = vec![0; RECORDS_FROM];
        page[..8].copy_from_slice(b"wal\r\n\x1a\n\0");
        page[12..16].copy_from_slice(&1_u32.to_le_bytes());
        page[16..32].copy_from_slice(&IDENTITY.0.to_le_bytes());
        page[32..40].copy_from_slice(&number.to_le_bytes());
        page[40..48].copy_from_slice(&last.wrapping_add(1).to_le_bytes());
        page[48..56].copy_from_slice(&number.wrapping_sub(1).to_le_bytes());
        page[56..64].copy_from_slice(&last.to_le_bytes());
        page[64..68].copy_from_slice(&chain.to_le_bytes());
        page[68..72].copy_from_slice(&4_096_u32.to_le_bytes());
        page[72..80].copy_from_slice(&bytes.to_le_bytes());
        let crc = crc32fast::hash(&page[12..]);
        page[8..12].copy_from_slice(&crc.to_le_bytes());
        page.resize(usize::try_from(SEGMENT_BYTES_MIN).expect("short"), 0);
        (self.bytes, self.offset) = (page, RECORDS_FROM);
        (self.number, self.last, self.chain) = (number, last, chain);
    }

    /// Ends the segment.
    fn close(&mut self) {
        if !self.bytes.is_empty() {
            self.medium.put(&segment_name(self.number), std::mem::take(&mut self.bytes));
        }
    }

    /// Appends the ledger's decision, if it decides anything new.
    fn decide(&mut self, command: &Command) {
        let Step::Append(entry) = self.ledger.step(command) else { return };
        let mut payload = [0; PAYLOAD_BYTES_MAX];
        let length = entry.encode(&mut payload);
        if self.ledger.sequence() == self.last {
            self.ledger.apply(&entry, self.last + 1, 0);
        }
        self.record(entry.kind() as u8, &payload[..length]);
    }

    /// Appends the decision of a service's command.
    fn name(&mut self, recipe: &mut Recipe<'_>) {
        let mut named = Named::empty();
        let [op, transaction, round, count] = recipe.bytes();
        let ops = [Op::Reserve, Op::Settle, Op::Release, Op::Post];
        named.fill(
            ops[usize::from(op % 4)],
            &NamedPosting {
                transaction: ReqId::new(u128::from(transaction % 4) + 1).expect("not 0"),
                order_number: recipe.number(),
                round: round % 10,
                tx_id: Text::new("pay:7").expect("short"),
                user: 0,
                legs: (0..count % 5).map(|_| leg(recipe)).collect(),
            },
        );
        let mut parts = Breakdown::default();
        if self.ledger.decide_named(&mut named, &mut parts) != NamedStep::Append {
            return;
        }
        let mut payload = [0; PAYLOAD_BYTES_MAX];
        let entry = Entry::Named(Box::new(named.clone()));
        let length = entry.encode(&mut payload);
        if self.ledger.sequence() == self.last {
            self.ledger.apply_named(&named, &parts, self.last + 1, 0);
        }
        self.record(entry.kind() as u8, &payload[..length]);
    }

    /// Appends the decision of a venue's next command, or of another number.
    fn post(&mut self, recipe: &mut Recipe<'_>) {
        let venue = u32::from(recipe.byte() % 3);
        if venue == 0 {
            return self.name(recipe);
        }
        let Some(state) = self.ledger.venue_state(venue) else { return };
        let command = numbered(recipe);
        let mut posted = Posted::empty();
        posted.fill(venue, state.last + 1, &command);
        let mut parts = Breakdown::default();
        self.ledger.decide_posted(&mut posted, &mut parts);
        let behind = state.last - state.acknowledged;
        posted.acknowledged = state.acknowledged + u64::from(recipe.byte() % 3).min(behind);
        let mut payload = [0; PAYLOAD_BYTES_MAX];
        let entry = Entry::Posting(Box::new(posted.clone()));
        let length = entry.encode(&mut payload);
        if self.ledger.sequence() == self.last {
            self.ledger.apply_posted(&posted, &parts, self.last + 1, 0);
        }
        self.record(entry.kind() as u8, &payload[..length]);
    }

    /// Appends a record as a writer would.
    fn record(&mut self, kind: u8, payload: &[u8]) {
        let durable = self.last / 2;
        self.put(self.last.wrapping_add(1), self.chain, [kind, 1, 0, 0], durable, payload);
    }

    /// Appends a record with any content, and a correct checksum.
    fn put(&mut self, sequence: u64, chain: u32, kind: [u8; 4], durable: u64, payload: &[u8]) {
        let length = u32::try_from(40 + payload.len()).expect("short");
        let mut record = vec![0; 4];
        record.extend(length.to_le_bytes());
        record.extend(sequence.to_le_bytes());
        record.extend(chain.to_le_bytes());
        record.extend(kind);
        record.extend(0_u64.to_le_bytes());
        record.extend(durable.to_le_bytes());
        record.extend(payload);
        let mut hasher = crc32fast::Hasher::new();
        hasher.update(&IDENTITY.0.to_le_bytes());
        hasher.update(&self.number.to_le_bytes());
        hasher.update(&record[4..]);
        let crc = hasher.finalize();
        record[..4].copy_from_slice(&crc.to_le_bytes());
        record.resize(record.len().next_multiple_of(8), 0);
        if self.overwrite(self.offset, &record) {
            self.offset += record.len();
            (self.last, self.chain) = (sequence, crc);
        }
    }

    /// Whether there was room.
    fn overwrite(&mut self, at: usize, bytes: &[u8]) -> bool {
        let room = self.bytes.get_mut(at..at + bytes.len());
        room.map(|room| room.copy_from_slice(bytes)).is_some()
    }
}

/// The registration, the Open or the close of a venue.
fn venue_command(recipe: &mut Recipe<'_>) -> Command {
    let (id, choice) = (u32::from(recipe.byte() % 3), recipe.byte());
    match choice % 4 {
        0 => Command::OpenVenue { id, epoch: recipe.number(), told: 0 },
        1 => Command::CloseVenue { id, closed: choice & 64 != 0 },
        _ => {
            let name = Text::new("venue").expect("short");
            Command::AddVenue { id, name, posts: choice & 64 != 0 }
        }
    }
}

/// A command of a venue.
fn numbered(recipe: &mut Recipe<'_>) -> venue::Command {
    let reference = 0;
    match recipe.byte() % 4 {
        0 => venue::Command::Reserve {
            reference,
            user: u64::from(recipe.byte() % 8),
            asset: u32::from(recipe.byte() % 4),
            amount: recipe.number(),
            onto: u64::from(recipe.byte() % 4),
        },
        1 => venue::Command::Release {
            reference,
            hold: u64::from(recipe.byte() % 8),
            amount: recipe.number(),
        },
        choice => {
            let count = recipe.byte() % 5;
            let legs = (0..count).map(|_| leg(recipe)).collect();
            match choice {
                2 => venue::Command::Settle { reference, legs },
                _ => venue::Command::Post { reference, legs },
            }
        }
    }
}

fn leg(recipe: &mut Recipe<'_>) -> Leg {
    let mut place = || {
        let (kind, number) = (recipe.byte(), u64::from(recipe.byte() % 8));
        match kind % 8 {
            0 => Place::Outside,
            1 => Place::Frozen { user: number, purpose: 1 },
            2..=4 => Place::Hold(number),
            _ => Place::Available(number),
        }
    };
    let (from, to) = (place(), place());
    Leg { from, to, asset: u32::from(recipe.byte() % 4), amount: recipe.number() }
}

/// An order of few users, transfers and assets, so that they meet.
pub(super) fn order(recipe: &mut Recipe<'_>) -> Command {
    let [step, transfer, user, asset] = recipe.bytes();
    let op = [Op::Withdraw, Op::Deposit, Op::Refund][usize::from(step % 3)];
    let direction = match op {
        Op::Deposit => Direction::FundingToSpot,
        _ => Direction::SpotToFunding,
    };
    let (amount, order_number) = (recipe.number(), recipe.number());
    let order = Order {
        op,
        req_id: u128::from(transfer % 32),
        cid: Text::EMPTY,
        user: u64::from(user % 8),
        asset: u32::from(asset % 4),
        amount,
        direction,
        order_number,
    };
    // The last three byte values: an operator's.
    let code = Code::ResolvedByOperator;
    if step >= 253 { Command::Refuse { order, code } } else { Command::Order(order) }
}
