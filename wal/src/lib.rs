//! An append-only log: bytes in order, durable, checked.
//!
//! # The promise
//!
//! - A record has a sequence: 1, 2, 3, ... without gaps. It comes back byte for byte, in that
//!   order.
//! - A record up to [`Durable::durable`] comes back after any crash, kill or power cut. If it
//!   cannot, the log refuses to open and names the place. Records beyond that mark may come back or
//!   not, but never one without all before it.
//! - The log refuses to open if its state cannot be distinguished from damage to a durable record.
//!   It opens in every other case: no crash makes the log refuse. No record is ever skipped.
//! - After a failed sync the log is dead: see [`Error::Sync`].
//!
//! The log never interprets a payload or a kind, reads no clock and no random number, and starts no
//! thread. One process has a directory open at a time. A [`Reader`] may read beside it.
//!
//! # Parts
//!
//! ```text
//!               spares                      rolls
//! Preparer ---------------> Writer ----------------> Syncer
//! helper thread             the deciding thread      the thread that waits for the disk
//! fills, pre-faults,        encodes, stores,         syncs pages, names segments,
//! unmaps                    never waits              publishes the durable mark
//! ```
//!
//! [`Recovery`] opens a log and makes all three. The deciding thread may use the syncer, under a
//! lock, while it has nothing to decide. Below them lies the [`Medium`]: a [`Directory`] of mapped
//! files, or [`Memory`](memory::Memory), which loses unsynced bytes in a simulated power cut.
//!
//! # The medium it assumes
//!
//! A sync that returns makes its pages durable. Unsynced pages reach the disk in any order, in part
//! (whole sectors), or not at all. A rename or removal is durable after a sync of the directory;
//! before it, it may or may not survive.
//!
//! Durable bytes may later be damaged. The damage is found if a checksum fails and something valid
//! claims that the record was durable. Damage to the last synced records, claimed by nothing after
//! them, looks like a torn tail. Callers narrow that window by appending and syncing one more
//! record when idle. They close it by remembering the durable mark elsewhere and passing it to
//! [`Recovery::open`].
//!
//! # The format, version 1
//!
//! All numbers are little endian. Sequences and segment numbers end at 2^63 - 1. A log is a
//! directory of segments, `segment-{number:016x}.wal`, numbered from 1 without gaps; the first ones
//! may have been removed. `spare-{number:016x}.tmp` is a future segment, which recovery ignores.
//! `lock` holds the pid of the process that has the log open. `cut` is explained below.
//!
//! A segment is filled with zeros to its full length before it gets its name, and begins with a
//! header page of 4096 bytes:
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 8 | magic, `wal\r\n\x1a\n\0` |
//! | 8 | 4 | CRC-32 of bytes 12..4096 |
//! | 12 | 4 | version, 1 |
//! | 16 | 16 | identity of the log, 128 random bits |
//! | 32 | 8 | number of the segment, as in its name |
//! | 40 | 8 | sequence of its first record: the predecessor's last plus 1 |
//! | 48 | 8 | number of its predecessor: its own less 1, so 0 for the first segment |
//! | 56 | 8 | sequence of the predecessor's last record, 0 for none |
//! | 64 | 4 | CRC of that record; for none, the CRC-32 of the identity's 16 bytes |
//! | 68 | 4 | length of this header, 4096 |
//! | 72 | 8 | length of the segment in bytes, a multiple of 4096 |
//! | 80 | 4016 | zeros |
//!
//! The header is written after the predecessor's last record is durable, and is durable before the
//! segment has its name. So a header claims its predecessor's last record durable. Bytes behind
//! that record in the predecessor were cut off by a recovery.
//!
//! Records follow, each at a multiple of 8. The CRC-32 covers the identity (16 bytes), the
//! segment's number (8 bytes), and this record from offset 4 to the end of its payload.
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 4 | CRC-32, see above |
//! | 4 | 4 | length of the record in bytes without padding: 40 + payload; stored last |
//! | 8 | 8 | sequence |
//! | 16 | 4 | chain: the CRC of the record before; for a segment's first, as in its header |
//! | 20 | 1 | kind, the caller's |
//! | 21 | 1 | version, 1 |
//! | 22 | 2 | zeros |
//! | 24 | 8 | time in nanoseconds, the caller's |
//! | 32 | 8 | durable: the highest sequence known durable when this was written, below its own |
//! | 40 | 0..=1024 | payload |
//! | | 0..=7 | zeros up to a multiple of 8 |
//!
//! A record that does not fit into the rest of a segment goes into the next. A length of 0 is the
//! end of the records, if only zeros follow. Identity and number in the CRC keep records of another
//! log, or of another segment, from ever being valid here.
//!
//! # Recovery
//!
//! The decision is one table, `decide` in `verdict.rs`. n is the sequence due where reading
//! stopped. Column 1 is the last record that the next segment's header names. Column 2 is the rest
//! of this segment. Column 3: a valid record behind the stop, or the caller, claims n durable.
//!
//! | next header names | rest of the segment | claimed | then |
//! |---|---|---|---|
//! | no next segment | zeros | no | the end, clean |
//! | no next segment | bytes | no | torn: cut off, counted |
//! | no next segment | zeros or bytes | yes | refuse: [`Error::Damaged`] |
//! | no next segment | shorter than its header says | either | refuse: [`Error::Damaged`] |
//! | n-1 | anything but a valid record n | either | go on in the next segment |
//! | n-1 | a valid record n | either | refuse: [`Error::Order`] |
//! | n or later | anything but a valid record n | either | refuse: [`Error::Damaged`] |
//! | before n-1 | anything | either | refuse: [`Error::Order`] |
//!
//! Claims come from valid records behind the stop (their durable field), from the next header, and
//! from the caller. Some damage refuses before any record is read: a page that is no header or is
//! foreign, of another version, or out of order, and a gap in the numbers. See [`Error::Header`],
//! [`Error::Foreign`], [`Error::Version`], [`Error::Order`], [`Error::Missing`] and
//! [`Error::Chain`].
//!
//! A start appends to a fresh segment, and its header names the last record read. That header cuts
//! off a torn tail; nothing else is changed or removed. If the last segment holds only its header,
//! it is used instead, so that empty restarts take no space.
//!
//! # Giving up a part on purpose
//!
//! If recovery refuses a log, the log stays refused until its files are restored or an operator
//! gives up everything from a named record on: [`cut`]. During a cut a file `cut` holds the
//! record's sequence as text, and recovery refuses with [`Error::Unfinished`]. A [`Reader`] reads
//! the records that are left.

mod copy;
pub mod cut;
mod directory;
mod error;
#[cfg(feature = "shadow")]
pub mod fault;
mod frame;
mod log;
mod marks;
mod medium;
pub mod memory;
#[cfg(all(loom, test))]
mod model;
mod preparer;
mod reader;
mod recover;
#[cfg(feature = "shadow")]
pub mod shadow;
mod syncer;
mod verdict;
mod walk;
mod writer;

pub use copy::{Copied, Copier};
pub use directory::{Directory, DirectoryLock, MappedFile, create_private};
pub use error::{Claim, Error, Place};
pub use frame::{
    Identity, PAYLOAD_BYTES_MAX, RECORD_BYTES_MAX, RECORD_HEADER_BYTES, Record,
    SEGMENT_HEADER_BYTES, SegmentHeader, Sequence, VERSION, record_bytes, segment_name,
};
pub use log::{Durable, Log, Options, SEGMENT_BYTES_MAX, SEGMENT_BYTES_MIN, SPARES_READY_MAX};
pub use medium::{Medium, MediumFile, MediumSource, PAGE_BYTES};
pub use preparer::{Preparer, Progress};
pub use reader::Reader;
pub use recover::{Recovery, Report};
pub use syncer::Syncer;
pub use verdict::{Ending, Torn};
pub use walk::{Listing, Passed};
pub use writer::Writer;
