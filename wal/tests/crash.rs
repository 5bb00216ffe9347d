//! No crash loses a durable record, and none makes the log refuse.

use proptest::prelude::*;
use wal::memory::Memory;
use wal::{Ending, Error, Log, Recovery};

use crate::harness::{Dice, Entry, IDENTITY, SMALL, append, prepare, read, recover, start};

/// The events of a log's life, in any order.
#[derive(Clone, Debug)]
enum Event {
    /// Appends this many records with payloads of up to this many bytes.
    Append {
        records: u8,
        payload_bytes_max: u16,
    },
    Sync,
    /// One tick, or ticks until all is prepared.
    Tick,
    Prepare,
    /// The kernel writes some pages back on its own.
    WriteBack,
    /// The power is cut after this many more operations on the medium, if it comes to that.
    StopAfter(u8),
    /// The power is cut now.
    Crash,
    /// The power is cut now, and again after this many operations of the recovery.
    CrashTwice(u8),
    /// The process is killed; the page cache lives on.
    Kill,
    /// The process ends and starts again.
    Restart,
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        8 => (1..12_u8, prop_oneof![Just(1024_u16), 0..1025_u16, 0..64_u16])
            .prop_map(|(records, payload_bytes_max)| Event::Append { records, payload_bytes_max }),
        5 => Just(Event::Sync),
        2 => Just(Event::Tick),
        3 => Just(Event::Prepare),
        2 => Just(Event::WriteBack),
        2 => (0..12_u8).prop_map(Event::StopAfter),
        2 => Just(Event::Crash),
        2 => (0..24_u8).prop_map(Event::CrashTwice),
        1 => Just(Event::Kill),
        1 => Just(Event::Restart),
    ]
}

struct Run {
    memory: Memory,
    log: Option<Log<Memory>>,
    /// All appended records that may still come back.
    model: Vec<Entry>,
    /// This many of them must come back.
    durable: usize,
    dice: Dice,
}

impl Run {
    fn new(seed: u64) -> Self {
        let memory = Memory::new();
        let mut run = Self { memory, log: None, model: vec![], durable: 0, dice: Dice(seed) };
        run.reopen();
        run
    }

    fn event(&mut self, event: &Event) {
        match *event {
            Event::Append { records, payload_bytes_max } => {
                for _ in 0..records {
                    self.append(u64::from(payload_bytes_max));
                }
            }
            Event::Sync => match self.log.as_mut().unwrap().syncer.sync() {
                Ok(durable) => {
                    self.durable = usize::try_from(durable).unwrap();
                    assert_eq!(self.durable, self.model.len());
                }
                Err(_) => self.end(),
            },
            Event::Tick => {
                if self.log.as_mut().unwrap().preparer.tick().is_err() {
                    self.end();
                }
            }
            Event::Prepare => {
                if prepare(self.log.as_mut().unwrap()).is_err() {
                    self.end();
                }
            }
            Event::WriteBack => self.memory.write_back(|| self.dice.coin()),
            Event::StopAfter(operations) => self.memory.stop_after(u64::from(operations)),
            Event::Crash => self.crash(),
            Event::CrashTwice(operations) => {
                self.memory = self.memory.crash(|| self.dice.coin());
                self.memory.stop_after(u64::from(operations));
                // Whether it gets through or not, the next recovery finds the same.
                let _stopped_or_not = start(&self.memory);
                self.end();
            }
            Event::Kill => {
                self.memory = self.memory.kill();
                self.reopen();
            }
            Event::Restart => {
                self.log = None;
                self.memory = self.memory.kill();
                self.reopen();
            }
        }
    }

    fn append(&mut self, payload_bytes_max: u64) {
        let n = self.dice.roll();
        let payload_bytes = usize::try_from(n % (payload_bytes_max + 1)).unwrap();
        let entry = Entry::numbered(n >> 32, payload_bytes);
        match append(self.log.as_mut().unwrap(), &entry) {
            Ok(sequence) => {
                self.model.push(entry);
                assert_eq!(sequence, self.model.len() as u64);
            }
            Err(Error::Full) => {}
            Err(error) => panic!("{error:?}"),
        }
    }

    /// Cuts the power or kills the process.
    fn end(&mut self) {
        if self.dice.coin() {
            return self.crash();
        }
        self.memory = self.memory.kill();
        self.reopen();
    }

    fn crash(&mut self) {
        self.memory = self.memory.crash(|| self.dice.coin());
        self.reopen();
    }

    /// The claim: a prefix of the appended records comes back, with every durable record. Neither
    /// the recovery nor a reader refuses.
    fn reopen(&mut self) {
        let (seen, _) = read(&self.memory).unwrap();
        assert!(seen.len() >= self.durable, "the reader saw {} of {}", seen.len(), self.durable);
        let recovered = recover(&self.memory, self.durable as u64).unwrap();
        assert!(recovered.len() >= self.durable, "{} of {}", recovered.len(), self.durable);
        assert_eq!(recovered, self.model[..recovered.len()]);
        self.durable = recovered.len();
        self.model = recovered;
        let (log, report) = start(&self.memory).unwrap();
        assert_eq!(report.last, self.durable as u64);
        self.log = Some(log);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    /// Goal: no crash loses a durable record or makes the log refuse. Method: a log beside a plain
    /// vector; power cuts keep any sectors and names, at any operation, also during recovery.
    #[test]
    fn whatever_happens_the_durable_records_come_back(
        seed in any::<u64>(),
        events in prop::collection::vec(event(), 1..60),
    ) {
        let mut run = Run::new(seed);
        for event in &events {
            run.event(event);
        }
        run.crash();
    }
}

/// Goal: a roll may be cut short at any place. Method: the same run of appends, ticks and syncs,
/// stopped after 0, 1, 2, ... operations, each with several ways to lose pages.
#[test]
fn a_crash_at_any_operation_is_survived() {
    let mut stopped = true;
    let mut operations = 0;
    while stopped {
        for seed in 0..4 {
            let mut run = Run::new(seed);
            run.memory.stop_after(operations);
            stopped = false;
            for _ in 0..12 {
                let log = run.log.as_mut().unwrap();
                if prepare(log).is_err() {
                    stopped = true;
                    break;
                }
                for _ in 0..8 {
                    run.append(1024);
                }
                match run.log.as_mut().unwrap().syncer.sync() {
                    Ok(durable) => run.durable = usize::try_from(durable).unwrap(),
                    Err(_) => {
                        stopped = true;
                        break;
                    }
                }
            }
            run.crash();
        }
        operations += 1;
    }
    assert!(operations > 30, "{operations} operations");
}

/// Goal: a crash during the removal of old segments leaves no gap. Method: stopped after every
/// number of operations; each unsynced name is kept or lost at random.
#[test]
fn a_crash_while_segments_are_removed_leaves_no_gap() {
    for operations in 0..24 {
        let mut run = Run::new(operations);
        for _ in 0..6 {
            run.event(&Event::Prepare);
            run.event(&Event::Append { records: 11, payload_bytes_max: 1024 });
            run.event(&Event::Sync);
        }
        let last = run.model.len() as u64;
        run.memory.stop_after(operations);
        let removed = run.log.as_mut().unwrap().preparer.remove_before(last);
        let memory = run.memory.crash(|| run.dice.coin());
        let (_, report) =
            Recovery::open(memory, last, last).unwrap().start(IDENTITY, SMALL).unwrap();
        assert_eq!(report.last, last, "{operations} operations: {removed:?}");
    }
}

/// A killed process may leave a name that is not durable. Found by taking the directory's sync out
/// of recovery: an empty segment was reused, and its durable records went with its name.
#[test]
fn a_name_that_a_killed_process_left_is_made_durable_before_use() {
    for operations in 0..16 {
        let memory = Memory::new();
        memory.stop_after(operations);
        let _stopped_or_not = start(&memory);
        let memory = memory.kill();
        let (mut log, _) = start(&memory).unwrap();
        append(&mut log, &Entry::numbered(1, 10)).unwrap();
        log.syncer.sync().unwrap();
        let recovered = recover(&memory.crash(|| false), 1).unwrap();
        assert_eq!(recovered, [Entry::numbered(1, 10)], "{operations} operations");
    }
}

/// A torn first record leaves a segment that is neither empty nor to be reused.
#[test]
fn a_segment_with_a_torn_first_record_is_not_reused() {
    let memory = Memory::new();
    let (mut log, _) = start(&memory).unwrap();
    append(&mut log, &Entry::numbered(1, 1024)).unwrap();
    // Its first sector is lost, the second is kept.
    let mut sectors = 0;
    let memory = memory.crash(|| {
        sectors += 1;
        sectors == 2
    });
    let (mut log, report) = start(&memory).unwrap();
    assert!(matches!(report.ending, Ending::Torn(_)), "{report:?}");
    assert_eq!((report.last, report.segment, report.reused), (0, 2, false));
    append(&mut log, &Entry::numbered(2, 10)).unwrap();
    log.syncer.sync().unwrap();
    assert_eq!(recover(&memory.crash(|| false), 1).unwrap(), [Entry::numbered(2, 10)]);
}
