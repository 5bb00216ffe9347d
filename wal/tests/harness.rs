//! A log on one thread, and what it must hold.

use wal::memory::Memory;
use wal::{
    Ending, Error, Identity, Log, Medium, Options, Progress, Reader, Recovery, Report,
    SEGMENT_BYTES_MIN, Sequence,
};

pub const IDENTITY: Identity = Identity(0x0123_4567_89ab_cdef_0011_2233_4455_6677);

pub const SMALL: Options = Options { segment_bytes: SEGMENT_BYTES_MIN, spares_ready: 2 };

/// One record, owned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub kind: u8,
    pub time_ns: u64,
    pub payload: Vec<u8>,
}

impl Entry {
    /// An entry whose every byte follows from `n`.
    pub fn numbered(n: u64, payload_bytes: usize) -> Self {
        let payload = (0..payload_bytes as u64).map(|at| ((n * 31 + at) & 0xff) as u8).collect();
        Self { kind: (n & 0xff) as u8, time_ns: n * 1_000, payload }
    }
}

/// Everything a recovery reads, checked to be numbered from 1 without gaps.
pub fn recover<M: Medium>(medium: &M, claim: Sequence) -> Result<Vec<Entry>, Error> {
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
pub fn start<M: Medium>(medium: &M) -> Result<(Log<M>, Report), Error> {
    Recovery::open(medium.clone(), 0, 0)?.start(IDENTITY, SMALL)
}

pub fn append<M: Medium>(log: &mut Log<M>, entry: &Entry) -> Result<Sequence, Error> {
    log.writer.append(entry.kind, entry.time_ns, &entry.payload)
}

/// Ticks until everything is prepared.
pub fn prepare<M: Medium>(log: &mut Log<M>) -> Result<(), Error> {
    while log.preparer.tick()? == Progress::Busy {}
    Ok(())
}

/// Everything a reader sees, and how it ends.
pub fn read<M: Medium>(medium: &M) -> Result<(Vec<Entry>, Ending), Error> {
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

/// A small generator, so that one number names a whole run.
pub struct Dice(pub u64);

impl Dice {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

/// Flips one bit of a file.
pub fn flip(memory: &Memory, name: &str, offset: usize, bit: u32) {
    let mut bytes = memory.content(name).unwrap();
    bytes[offset] ^= 1 << bit;
    memory.put(name, bytes);
}
