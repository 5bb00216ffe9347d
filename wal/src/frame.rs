//! Bytes on disk: the segment's header page, the record, their checks. The crate's documentation
//! describes the format.

use std::fmt;

use zerocopy::little_endian::{U16, U32, U64, U128};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// A record's number: 1, 2, 3, ... without gaps over the whole log. 0 means none.
pub type Sequence = u64;

/// The largest sequence, and the largest segment number. No log grows so far, and one more is still
/// a number. A larger number on disk is not from this program.
pub(crate) const NUMBER_MAX: u64 = i64::MAX as u64;

/// Longest payload, in bytes.
pub const PAYLOAD_BYTES_MAX: usize = 1024;

/// Bytes of a record before its payload.
pub const RECORD_HEADER_BYTES: usize = 40;

/// Longest record on disk: header, payload and padding, in bytes.
pub const RECORD_BYTES_MAX: usize = RECORD_HEADER_BYTES + PAYLOAD_BYTES_MAX;

/// Length of a segment's header page, in bytes. Records begin behind it.
pub const SEGMENT_HEADER_BYTES: u64 = HEADER_PAGE as u64;

/// The same as the length of a buffer.
pub(crate) const HEADER_PAGE: usize = 4096;

/// Bytes of the header page before its zeros.
const HEADER_FIELDS: usize = 80;

/// The version of the format that this crate writes and reads.
pub const VERSION: u32 = 1;

/// First eight bytes of a segment. The line ends catch a transfer in text mode.
pub(crate) const MAGIC: [u8; 8] = *b"wal\r\n\x1a\n\0";

/// Records begin at multiples of this many bytes.
pub(crate) const ALIGNMENT: usize = 8;

const VERSION_RECORD: u8 = 1;

/// The header's length as stored in the header.
const HEADER_BYTES: u32 = 4096;

const _: () = assert!(size_of::<RecordBytes>() == RECORD_HEADER_BYTES);
const _: () = assert!(RECORD_HEADER_BYTES.is_multiple_of(ALIGNMENT));
const _: () = assert!(PAYLOAD_BYTES_MAX.is_multiple_of(ALIGNMENT));
const _: () = assert!(size_of::<PageBytes>() == HEADER_PAGE);
const _: () = assert!(HEADER_BYTES as u64 == SEGMENT_HEADER_BYTES);
const _: () = assert!(VERSION == VERSION_RECORD as u32);

/// A log's identity: 128 random bits, drawn by the caller once for the life of the log.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Identity(pub u128);

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Identity({self})")
    }
}

impl Identity {
    /// The chain value before the first record of a log.
    pub(crate) fn chain_first(self) -> u32 {
        crc32fast::hash(&self.0.to_le_bytes())
    }

    /// The CRC's state before the first byte of any record of one segment of this log.
    pub(crate) fn seed(self, segment: u64) -> u32 {
        let mut hasher = crc32fast::Hasher::new();
        hasher.update(&self.0.to_le_bytes());
        hasher.update(&segment.to_le_bytes());
        hasher.finalize()
    }
}

/// One record, borrowed from the reader's buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// Its number.
    pub sequence: Sequence,
    /// The highest sequence known durable when this record was written; always below `sequence`.
    pub durable: Sequence,
    /// Time as given by the caller, in nanoseconds.
    pub time_ns: u64,
    /// Kind as given by the caller.
    pub kind: u8,
    /// The caller's bytes, 0..=[`PAYLOAD_BYTES_MAX`].
    pub payload: &'a [u8],
    /// Number of its segment.
    pub segment: u64,
    /// Where it begins in the segment, in bytes.
    pub offset: u64,
    /// Its length on disk with header and padding, in bytes.
    pub bytes: u64,
}

/// Length on disk of a record with a payload of `payload` bytes, with header and padding.
#[inline]
pub const fn record_bytes(payload: usize) -> u64 {
    (RECORD_HEADER_BYTES + payload).next_multiple_of(ALIGNMENT) as u64
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RecordBytes {
    crc: U32,
    length: U32,
    sequence: U64,
    chain: U32,
    kind: u8,
    version: u8,
    reserved: U16,
    time_ns: U64,
    durable: U64,
}

/// A record's header, checked by its CRC and nothing else.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Frame {
    pub(crate) crc: u32,
    pub(crate) sequence: Sequence,
    pub(crate) chain: u32,
    pub(crate) kind: u8,
    pub(crate) version: u8,
    pub(crate) reserved: u16,
    pub(crate) time_ns: u64,
    pub(crate) durable: Sequence,
    /// Payload length, in bytes.
    pub(crate) payload: usize,
}

impl Frame {
    /// Whether this program can read the frame.
    pub(crate) fn version_known(&self) -> bool {
        self.version == VERSION_RECORD && self.reserved == 0
    }

    /// Length on disk with header and padding, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        (RECORD_HEADER_BYTES + self.payload).next_multiple_of(ALIGNMENT)
    }
}

/// A record's fields beside its payload.
#[derive(Clone, Copy)]
pub(crate) struct Fields {
    pub(crate) sequence: Sequence,
    pub(crate) chain: u32,
    pub(crate) kind: u8,
    pub(crate) time_ns: u64,
    pub(crate) durable: Sequence,
}

/// Encodes a record into the front of `buffer`, padding included.
///
/// Returns its length in bytes and its CRC, which is the next record's chain value.
pub(crate) fn encode(
    buffer: &mut [u8; RECORD_BYTES_MAX],
    seed: u32,
    fields: Fields,
    payload: &[u8],
) -> (usize, u32) {
    debug_assert!(fields.durable < fields.sequence, "a record claims itself durable");
    debug_assert!(payload.len() <= PAYLOAD_BYTES_MAX, "payload of {} bytes", payload.len());
    let length = RECORD_HEADER_BYTES + payload.len();
    let padded = length.next_multiple_of(ALIGNMENT);
    let mut header = RecordBytes {
        crc: U32::ZERO,
        length: U32::new(u32::try_from(length).expect("a record is shorter than 4 GiB")),
        sequence: U64::new(fields.sequence),
        chain: U32::new(fields.chain),
        kind: fields.kind,
        version: VERSION_RECORD,
        reserved: U16::ZERO,
        time_ns: U64::new(fields.time_ns),
        durable: U64::new(fields.durable),
    };
    buffer[..RECORD_HEADER_BYTES].copy_from_slice(header.as_bytes());
    buffer[RECORD_HEADER_BYTES..length].copy_from_slice(payload);
    buffer[length..padded].fill(0);
    let mut hasher = crc32fast::Hasher::new_with_initial(seed);
    hasher.update(&buffer[4..length]);
    let crc = hasher.finalize();
    header.crc = U32::new(crc);
    buffer[..4].copy_from_slice(header.crc.as_bytes());
    (padded, crc)
}

/// Reads the record at the front of `bytes`. Returns `None` if length, CRC, padding or sequence is
/// invalid.
///
/// `bytes`: the rest of the segment. The caller checks sequence, chain and version.
pub(crate) fn decode(bytes: &[u8], seed: u32) -> Option<Frame> {
    let (header, _) = RecordBytes::ref_from_prefix(bytes).ok()?;
    let length = usize::try_from(header.length.get()).ok()?;
    if !(RECORD_HEADER_BYTES..=RECORD_BYTES_MAX).contains(&length) {
        return None;
    }
    let padding = bytes.get(length..length.next_multiple_of(ALIGNMENT))?;
    let mut hasher = crc32fast::Hasher::new_with_initial(seed);
    hasher.update(&bytes[4..length]);
    if hasher.finalize() != header.crc.get() || padding.iter().any(|&byte| byte != 0) {
        return None;
    }
    if header.sequence.get() > NUMBER_MAX {
        return None;
    }
    Some(Frame {
        crc: header.crc.get(),
        sequence: header.sequence.get(),
        chain: header.chain.get(),
        kind: header.kind,
        version: header.version,
        reserved: header.reserved.get(),
        time_ns: header.time_ns.get(),
        durable: header.durable.get(),
        payload: length - RECORD_HEADER_BYTES,
    })
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct PageBytes {
    magic: [u8; 8],
    crc: U32,
    version: U32,
    identity: U128,
    segment: U64,
    first: U64,
    predecessor: U64,
    predecessor_last: U64,
    predecessor_chain: U32,
    header_bytes: U32,
    segment_bytes: U64,
    zeros: [u8; HEADER_PAGE - HEADER_FIELDS],
}

/// The CRC of the header page covers the bytes from here: behind the magic and the CRC itself.
const PAGE_CRC_FROM: usize = 12;

/// A segment's header: its identity, and the record it follows.
///
/// It exists only if the predecessor's last record is durable, so it claims that record durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentHeader {
    /// The log it belongs to.
    pub identity: Identity,
    /// Its number: 1, 2, 3, ...
    pub segment: u64,
    /// Sequence of the last record before it; 0 if there is none.
    pub predecessor_last: Sequence,
    /// CRC of that record, or the identity's CRC if there is none.
    pub predecessor_chain: u32,
    /// Length of the whole segment, in bytes.
    pub segment_bytes: u64,
}

/// Why a page is not a header.
pub(crate) enum HeaderFault {
    /// The bytes are not a header page.
    Bad,
    /// The magic is right and the version is not `VERSION`.
    Version(u32),
}

impl SegmentHeader {
    /// Header of a log's first segment.
    pub(crate) fn genesis(identity: Identity, segment_bytes: u64) -> Self {
        let predecessor_chain = identity.chain_first();
        Self { identity, segment: 1, predecessor_last: 0, predecessor_chain, segment_bytes }
    }

    /// Sequence of the first record that the segment can hold.
    pub fn first(&self) -> Sequence {
        self.predecessor_last + 1
    }

    /// The header page, ready to be stored.
    pub(crate) fn encode(&self) -> Vec<u8> {
        assert!(self.segment > 0, "segments are numbered from 1");
        assert!(self.segment_bytes.is_multiple_of(SEGMENT_HEADER_BYTES), "{}", self.segment_bytes);
        let mut page = PageBytes {
            magic: MAGIC,
            crc: U32::ZERO,
            version: U32::new(VERSION),
            identity: U128::new(self.identity.0),
            segment: U64::new(self.segment),
            first: U64::new(self.first()),
            predecessor: U64::new(self.segment - 1),
            predecessor_last: U64::new(self.predecessor_last),
            predecessor_chain: U32::new(self.predecessor_chain),
            header_bytes: U32::new(HEADER_BYTES),
            segment_bytes: U64::new(self.segment_bytes),
            zeros: [0; HEADER_PAGE - HEADER_FIELDS],
        };
        page.crc = U32::new(crc32fast::hash(&page.as_bytes()[PAGE_CRC_FROM..]));
        page.as_bytes().to_vec()
    }

    /// Reads a header page; `bytes` may be shorter than one.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, HeaderFault> {
        let (page, _) = PageBytes::ref_from_prefix(bytes).map_err(|_| HeaderFault::Bad)?;
        if page.magic != MAGIC {
            return Err(HeaderFault::Bad);
        }
        // Before the CRC: another version may have another check.
        if page.version.get() != VERSION {
            return Err(HeaderFault::Version(page.version.get()));
        }
        let header = Self {
            identity: Identity(page.identity.get()),
            segment: page.segment.get(),
            predecessor_last: page.predecessor_last.get(),
            predecessor_chain: page.predecessor_chain.get(),
            segment_bytes: page.segment_bytes.get(),
        };
        // One comparison checks the CRC, the zeros, and every field that follows from another.
        let sound = (1..=NUMBER_MAX).contains(&header.segment)
            && header.predecessor_last < NUMBER_MAX
            && header.segment_bytes > SEGMENT_HEADER_BYTES
            && header.segment_bytes.is_multiple_of(SEGMENT_HEADER_BYTES)
            && header.encode() == page.as_bytes();
        if sound { Ok(header) } else { Err(HeaderFault::Bad) }
    }
}

/// The meaning of a file name in the log's directory.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Name {
    /// A segment, by number.
    Segment(u64),
    /// A spare, which recovery ignores and a start removes.
    Spare,
    /// Shaped like a segment's name, but invalid.
    Malformed,
    /// The file that is locked while the log is open.
    Lock,
    /// A file that does not belong to the log.
    Other,
}

impl Name {
    pub(crate) fn parse(name: &str) -> Self {
        if name.starts_with("spare-") && name.ends_with(".tmp") {
            return Self::Spare;
        }
        if name == LOCK_NAME {
            return Self::Lock;
        }
        let Some(digits) = name.strip_prefix("segment-").and_then(|rest| rest.strip_suffix(".wal"))
        else {
            return Self::Other;
        };
        match u64::from_str_radix(digits, 16) {
            // The number has one spelling, so that no two names mean one segment.
            Ok(number) if number > 0 && segment_name(number) == name => Self::Segment(number),
            _ => Self::Malformed,
        }
    }
}

/// Name of the file that is locked while the log is open.
pub(crate) const LOCK_NAME: &str = "lock";

/// Name of the segment `number`.
pub fn segment_name(number: u64) -> String {
    format!("segment-{number:016x}.wal")
}

/// Name of the spare that will become the segment `number`.
pub(crate) fn spare_name(number: u64) -> String {
    format!("spare-{number:016x}.tmp")
}
