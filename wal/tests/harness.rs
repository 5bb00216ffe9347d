//! A log on one thread, and its expected content.

use wal::memory::Memory;
use wal::{
    Ending, Error, Identity, Log, Medium, Options, Progress, Reader, Recovery, Report,
    SEGMENT_BYTES_MIN, Sequence,
};

pub(crate) const IDENTITY: Identity = Identity(0x0123_4567_89ab_cdef_0011_2233_4455_6677);

pub(crate) const SMALL: Options = Options { segment_bytes: SEGMENT_BYTES_MIN, spares_ready: 2 };

/// One record, owned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) kind: u8,
    pub(crate) time_ns: u64,
    pub(crate) payload: Vec<u8>,
}

impl Entry {
    /// An entry whose every byte follows from `n`.
    pub(crate) fn numbered(n: u64, payload_bytes: usize) -> Self {
        let byte = |value: u64| value.to_le_bytes()[0];
        let payload = (0..payload_bytes as u64).map(|at| byte(n * 31 + at)).collect();
        Self { kind: byte(n), time_ns: n * 1_000, payload }
    }
}

/// All records of a recovery, checked to be numbered from 1 without gaps.
pub(crate) fn recover<M: Medium>(medium: &M, claim: Sequence) -> Result<Vec<Entry>, Error> {
    let mut recovery = Recovery::open(medium.clone(), claim, 0)?;
    let mut entries = Vec::new();
    while let Some(record) = recovery.next()? {
        entries.push(Entry {
            kind: record.kind,
            time_ns: record.time_ns,
            payload: record.payload.to_vec(),
        });
        assert_eq!(record.sequence, entries.len() as u64);
    }
    Ok(entries)
}

/// Opens and starts, with small segments.
pub(crate) fn start<M: Medium>(medium: &M) -> Result<(Log<M>, Report), Error> {
    Recovery::open(medium.clone(), 0, 0)?.start(IDENTITY, SMALL)
}

pub(crate) fn append<M: Medium>(log: &mut Log<M>, entry: &Entry) -> Result<Sequence, Error> {
    log.writer.append(entry.kind, entry.time_ns, &entry.payload)
}

/// Ticks until everything is prepared.
pub(crate) fn prepare<M: Medium>(log: &mut Log<M>) -> Result<(), Error> {
    while log.preparer.tick()? == Progress::Busy {}
    Ok(())
}

/// All records of a reader, and their ending.
pub(crate) fn read<M: Medium>(medium: &M) -> Result<(Vec<Entry>, Ending), Error> {
    let mut reader = Reader::open(medium.clone(), 0)?;
    let mut entries = Vec::new();
    while let Some(record) = reader.next()? {
        entries.push(Entry {
            kind: record.kind,
            time_ns: record.time_ns,
            payload: record.payload.to_vec(),
        });
    }
    let ending = reader.ending()?;
    Ok((entries, ending))
}

/// A small generator (SplitMix64), so that one number names a whole run.
pub(crate) struct Dice(pub(crate) u64);

impl Dice {
    pub(crate) fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub(crate) fn coin(&mut self) -> bool {
        self.roll().is_multiple_of(2)
    }
}

/// Changes a file, durably.
pub(crate) fn change(memory: &Memory, name: &str, change: impl FnOnce(&mut Vec<u8>)) {
    let mut bytes = memory.content(name).unwrap();
    change(&mut bytes);
    memory.put(name, bytes);
}
