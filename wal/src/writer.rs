//! Appending: encode, store, publish. Rolls into a ready spare without waiting.

use std::sync::Arc;

use crate::error::Error;
use crate::frame::{
    Fields, Identity, NUMBER_MAX, PAYLOAD_BYTES_MAX, RECORD_BYTES_MAX, SEGMENT_HEADER_BYTES,
    SegmentHeader, Sequence, encode, record_bytes,
};
use crate::marks::{Marks, Roll, Rolls, Segment, Spares};
use crate::medium::{Medium, MediumFile};

/// Appends records, for one thread. It never blocks that thread, and takes no system call and no
/// memory.
#[derive(Debug)]
pub struct Writer<M: Medium> {
    marks: Arc<Marks>,
    spares: Spares<M::File>,
    rolls: Rolls<M::File>,
    identity: Identity,
    segment: Arc<Segment<M::File>>,
    /// Where the next record begins in the segment, in bytes.
    offset: u64,
    /// State of the CRC before the first byte of any record of the segment.
    seed: u32,
    /// The last record appended.
    last: Sequence,
    /// Its CRC.
    chain: u32,
    buffer: Box<[u8; RECORD_BYTES_MAX]>,
    /// Length of a spare, in bytes; a reused segment may have another.
    spare_bytes: u64,
    _lock: Arc<M::Lock>,
}

impl<M: Medium> Writer<M> {
    pub(crate) fn new(
        marks: Arc<Marks>,
        spares: Spares<M::File>,
        rolls: Rolls<M::File>,
        segment: Arc<Segment<M::File>>,
        header: SegmentHeader,
        spare_bytes: u64,
        lock: Arc<M::Lock>,
    ) -> Self {
        Self {
            marks,
            spares,
            rolls,
            identity: header.identity,
            seed: header.identity.seed(segment.number),
            segment,
            offset: SEGMENT_HEADER_BYTES,
            last: header.predecessor_last,
            chain: header.predecessor_chain,
            buffer: Box::new([0; RECORD_BYTES_MAX]),
            spare_bytes,
            _lock: lock,
        }
    }

    /// Appends one record; durable only once [`Writer::durable`] has reached it.
    ///
    /// `kind`: the caller's, not interpreted. `time_ns`: the caller's time in nanoseconds.
    /// `payload`: 0..=[`PAYLOAD_BYTES_MAX`] bytes, copied, not interpreted.
    /// Returns the record's sequence: 1, 2, 3, ... without gaps.
    ///
    /// # Errors
    /// [`Error::Full`]: no prepared space is left; nothing was written, the caller may wait.
    /// [`Error::Payload`]: too long; nothing was written.
    /// [`Error::Poisoned`]: a sync or a preparation has failed; nothing was written.
    pub fn append(&mut self, kind: u8, time_ns: u64, payload: &[u8]) -> Result<Sequence, Error> {
        if payload.len() > PAYLOAD_BYTES_MAX {
            return Err(Error::Payload { bytes: payload.len() });
        }
        if self.marks.poisoned() {
            return Err(Error::Poisoned);
        }
        if self.offset + record_bytes(payload.len()) > self.segment.bytes {
            self.roll()?;
        }
        let sequence = self.last + 1;
        let durable = self.marks.durable();
        assert!(durable < sequence, "durable {durable}, appending {sequence}");
        assert!(sequence <= NUMBER_MAX, "a reader would take {sequence} for no record");
        let fields = Fields { sequence, chain: self.chain, kind, time_ns, durable };
        let (length, crc) = encode(&mut self.buffer, self.seed, fields, payload);

        // The first word holds the length. It is stored last, so that a reader of the live file
        // never sees a partial record.
        let (word, rest) = self.buffer[..length].split_at(8);
        let word = u64::from_le_bytes(word.try_into().expect("split at 8 bytes"));
        self.segment.file.store(self.offset + 8, rest);
        self.segment.file.store_release(self.offset, word);

        self.offset += length as u64;
        debug_assert!(
            self.offset <= self.segment.bytes,
            "record {sequence} ends behind its segment"
        );
        self.last = sequence;
        self.chain = crc;
        // The end first: a thread that sees the record appended must find it within the end.
        self.segment.publish_end(self.offset);
        self.marks.publish_appended(sequence);
        Ok(sequence)
    }

    /// The last record appended; 0 if the log is empty.
    pub fn appended(&self) -> Sequence {
        self.last
    }

    /// The last record known durable; 0 if none.
    pub fn durable(&self) -> Sequence {
        self.marks.durable()
    }

    /// Bytes that can still be appended with the prepared segments. Any records with a total of
    /// [`record_bytes`] up to it will fit, in any order.
    ///
    /// It falls by appending and rises when the [`crate::Preparer`] has made a spare.
    /// [`Writer::append`] returns [`Error::Full`] despite room only if syncs lag eight whole
    /// segments behind.
    pub fn room(&self) -> u64 {
        // Each segment but the last may end in a piece that is too short for the next record.
        let waste = RECORD_BYTES_MAX as u64 - 8;
        let rest = self.segment.bytes - self.offset;
        let spares = self.spares.len() as u64;
        (rest + spares * (self.spare_bytes - SEGMENT_HEADER_BYTES)).saturating_sub(spares * waste)
    }

    /// Enters the next spare. The syncer names it with its next sync. Until then recovery ignores
    /// it, and no record in it counts as durable.
    fn roll(&mut self) -> Result<(), Error> {
        if self.rolls.is_full() {
            return Err(Error::Full);
        }
        let segment = self.spares.pop().ok_or(Error::Full)?;
        assert_eq!(segment.number, self.segment.number + 1, "spares come in order");
        let roll = Roll {
            segment: segment.clone(),
            predecessor_end: self.offset,
            predecessor_last: self.last,
            predecessor_chain: self.chain,
        };
        assert!(self.rolls.push(roll).is_ok(), "only the writer pushes, and there was room");
        self.seed = self.identity.seed(segment.number);
        // The preparer holds the old segment too, so that it is unmapped there and not here.
        self.segment = segment;
        self.offset = SEGMENT_HEADER_BYTES;
        self.marks.publish_segment(self.segment.number);
        Ok(())
    }
}
