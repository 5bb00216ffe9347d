//! A snapshot: all facts of a ledger at one record of the log, in one file.
//!
//! # The promise
//!
//! - A snapshot belongs to a DIGEST record, and its facts add up to the digest in this record. A
//!   start compares both: a snapshot and a log of different origin never make a ledger.
//! - Its CRC finds the damage that a disk does: [`Error::Damaged`], and an older snapshot is used.
//!   A file with a right CRC that contradicts itself, its name or the log stops the start.
//! - A file gets its name only once it is complete, durable and read back.
//!
//! # The format, versions 1 to 4
//!
//! All numbers are little endian. The file `snapshot-{sequence:016x}.snap` is a header of 64 bytes,
//! the facts, and a CRC. `snapshot-{sequence:016x}.tmp` is an unfinished snapshot and never read.
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 8 | magic, `snap\r\n\x1a\n` |
//! | 8 | 4 | version: 4 with postings by name, 3 with venues, 2 with external operations, else 1 |
//! | 12 | 4 | zeros |
//! | 16 | 16 | identity of the log |
//! | 32 | 8 | sequence of its DIGEST record |
//! | 40 | 8 | number of facts |
//! | 48 | 16 | digest: the sum of the facts' digests, as in the DIGEST record |
//! | 64 | | the facts as [`Ledger::facts`] returns them, each a tag of 1 byte and its bytes |
//! | end - 4 | 4 | CRC-32 of all bytes before it |

pub mod store;

use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};

use crc32fast::Hasher;
use wal::{Identity, Sequence};
use zerocopy::little_endian::{U32, U64, U128};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::builder;
use crate::builder::Builder;
use crate::crash;
use crate::fact::{FACT_BYTES_MAX, Fact};
use crate::ledger::Ledger;
use crate::record;

/// The newest version of the format. An older one is still written if it has all facts: version 1
/// has no external operations, version 2 no venues, holds and traded balances, version 3 no
/// postings by name, version 4 no money that transactions brought from outside, and version 5 no
/// frozen places of transactions.
pub const VERSION: u32 = 6;
const VERSION_CROSSED: u32 = 5;
const VERSION_NAMED: u32 = 4;
const VERSION_VENUES: u32 = 3;
const VERSION_OUTSIDE: u32 = 2;
const VERSION_FIRST: u32 = 1;

const MAGIC: [u8; 8] = *b"snap\r\n\x1a\n";
/// Bytes of the header.
const HEADER_BYTES: usize = size_of::<HeaderBytes>();
/// Bytes of the CRC after the facts.
const CRC_BYTES: usize = 4;
/// Bytes read or written at a time.
const BUFFER_BYTES: usize = 256 * 1024;

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct HeaderBytes {
    magic: [u8; 8],
    version: U32,
    reserved: U32,
    identity: U128,
    sequence: U64,
    facts: U64,
    digest: U128,
}

const _: () = assert!(HEADER_BYTES == 64);

/// The header of a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The log of the snapshot.
    pub identity: Identity,
    /// The DIGEST record of the snapshot.
    pub sequence: Sequence,
    /// The number of facts.
    pub facts: u64,
    /// The sum of their digests.
    pub digest: u128,
}

/// A snapshot that must not be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file or its directory cannot be read or written.
    #[error("{action} {}", path.display())]
    Io {
        /// The operation.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// The file has changed since it was written. An older snapshot can be used.
    #[error("{} is damaged: {problem}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The fault.
        problem: &'static str,
    },
    /// Written in another version of the format. Use a program of that version.
    #[error("{} has version {found}, and this program reads {VERSION_FIRST} to {VERSION}", path.display())]
    Version {
        /// The file.
        path: PathBuf,
        /// The version found.
        found: u32,
    },
    /// The file has a right CRC, but no ledger wrote it.
    #[error("{} contradicts itself: {problem}", path.display())]
    Contradiction {
        /// The file.
        path: PathBuf,
        /// The contradiction.
        problem: &'static str,
    },
    /// The file has a right CRC, but one of its facts cannot be read.
    #[error("{}: fact {index}", path.display())]
    Fact {
        /// The file.
        path: PathBuf,
        /// The index of the fact, from 0.
        index: u64,
        /// The reason.
        #[source]
        source: record::Error,
    },
    /// The file has a right CRC, but its facts make no ledger.
    #[error("{} is no ledger", path.display())]
    Ledger {
        /// The file.
        path: PathBuf,
        /// The reason.
        #[source]
        source: Box<builder::Error>,
    },
}

impl Error {
    fn io<'a>(action: &'static str, path: &'a Path) -> impl Fn(io::Error) -> Error + 'a {
        move |source| Error::Io { action, path: path.to_owned(), source }
    }

    /// Whether the disk may have caused it, so that an older snapshot can be used.
    pub fn is_damage(&self) -> bool {
        match self {
            Error::Io { .. } | Error::Damaged { .. } => true,
            Error::Version { .. }
            | Error::Contradiction { .. }
            | Error::Fact { .. }
            | Error::Ledger { .. } => false,
        }
    }
}

/// A snapshot with a right CRC.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// The file.
    pub path: PathBuf,
    /// Its length.
    pub bytes: u64,
    /// Its header.
    pub header: Header,
}

impl Snapshot {
    /// Reads the whole file and checks its CRC, in constant memory.
    ///
    /// # Errors
    /// [`Error::Io`], [`Error::Damaged`], [`Error::Version`].
    pub fn open(path: &Path) -> Result<Snapshot, Error> {
        let failed = Error::io("read", path);
        let damaged = |problem| Error::Damaged { path: path.to_owned(), problem };
        let file = File::open(path).map_err(&failed)?;
        let bytes = file.metadata().map_err(&failed)?.len();
        let Some(checked) = bytes.checked_sub(CRC_BYTES as u64) else {
            return Err(damaged("it is too short"));
        };
        let mut reader = BufReader::with_capacity(BUFFER_BYTES, file);
        let mut page = [0; HEADER_BYTES];
        if checked < HEADER_BYTES as u64 {
            return Err(damaged("it is too short"));
        }
        reader.read_exact(&mut page).map_err(&failed)?;
        let mut hasher = Hasher::new();
        hasher.update(&page);
        let mut rest = reader.by_ref().take(checked - HEADER_BYTES as u64);
        let mut buffer = vec![0; BUFFER_BYTES];
        loop {
            match rest.read(&mut buffer) {
                Ok(0) => break,
                Ok(read) => hasher.update(&buffer[..read]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(failed(error)),
            }
        }
        let mut crc = [0; CRC_BYTES];
        reader.read_exact(&mut crc).map_err(&failed)?;
        let header: &HeaderBytes = zerocopy::transmute_ref!(&page);
        if header.magic != MAGIC {
            return Err(damaged("its first bytes are not those of a snapshot"));
        }
        if hasher.finalize() != u32::from_le_bytes(crc) {
            return Err(damaged("its checksum is wrong"));
        }
        if !(VERSION_FIRST..=VERSION).contains(&header.version.get()) {
            return Err(Error::Version { path: path.to_owned(), found: header.version.get() });
        }
        if header.reserved.get() != 0 {
            let problem = "its reserved bytes are not zeros";
            return Err(Error::Contradiction { path: path.to_owned(), problem });
        }
        let header = Header {
            identity: Identity(header.identity.get()),
            sequence: header.sequence.get(),
            facts: header.facts.get(),
            digest: header.digest.get(),
        };
        Ok(Snapshot { path: path.to_owned(), bytes, header })
    }

    /// Its facts, one after the other, in constant memory. Their number is that of the header, and
    /// no byte follows them.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn facts(&self) -> Result<Facts<'_>, Error> {
        let failed = Error::io("read", &self.path);
        let file = File::open(&self.path).map_err(&failed)?;
        let mut reader = BufReader::with_capacity(BUFFER_BYTES, file);
        reader.read_exact(&mut [0; HEADER_BYTES]).map_err(&failed)?;
        let left = self.bytes - (HEADER_BYTES + CRC_BYTES) as u64;
        Ok(Facts { snapshot: self, reader: reader.take(left), index: 0, failed: false })
    }

    /// The ledger of its facts, built in an empty one and checked against the digest.
    ///
    /// # Errors
    /// [`Error`]: none of its facts may be used.
    pub fn ledger(&self, empty: Ledger) -> Result<Ledger, Error> {
        let failed = |source| {
            let (path, source) = (self.path.clone(), Box::new(source));
            Error::Ledger { path, source }
        };
        let mut builder = Builder::new(empty);
        for fact in self.facts()? {
            builder.add(fact?).map_err(failed)?;
        }
        let Header { sequence, digest, .. } = self.header;
        builder.finish(sequence, digest).map_err(failed)
    }
}

/// The facts of a snapshot, in the order of the file. It ends after the first error.
pub struct Facts<'a> {
    snapshot: &'a Snapshot,
    reader: io::Take<BufReader<File>>,
    index: u64,
    failed: bool,
}

impl Facts<'_> {
    fn read(&mut self) -> Result<Option<Fact>, Error> {
        let path = &self.snapshot.path;
        let contradiction = |problem| Error::Contradiction { path: path.clone(), problem };
        if self.index == self.snapshot.header.facts {
            return match self.reader.limit() {
                0 => Ok(None),
                _ => Err(contradiction("bytes follow the last fact")),
            };
        }
        let mut buffer = [0; FACT_BYTES_MAX];
        let mut fill = |bytes: &mut [u8]| match self.reader.read_exact(bytes) {
            Ok(()) => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                Err(contradiction("it ends before the last fact"))
            }
            Err(error) => Err(Error::io("read", path)(error)),
        };
        let mut tag = [0];
        fill(&mut tag)?;
        let [tag] = tag;
        let index = self.index;
        let unknown = || Error::Fact {
            path: path.clone(),
            index,
            source: record::Error::Field { field: "fact tag", number: tag.into() },
        };
        let length = Fact::bytes_of(tag).ok_or_else(unknown)?;
        fill(&mut buffer[..length])?;
        let fact = Fact::decode(tag, &buffer[..length]).map_err(|source| Error::Fact {
            path: path.clone(),
            index,
            source,
        })?;
        self.index += 1;
        Ok(Some(fact))
    }
}

impl Iterator for Facts<'_> {
    type Item = Result<Fact, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.failed {
            return None;
        }
        let read = self.read();
        self.failed = read.is_err();
        read.transpose()
    }
}

/// The oldest version that has all facts of `ledger`. So an older program can read a snapshot
/// without newer facts.
fn version_of(ledger: &Ledger) -> u32 {
    let version = |fact: Fact| match fact {
        Fact::Named(named) if named.kept.freezes != 0 => VERSION,
        Fact::Hold(hold) if hold.transaction != 0 && hold.purpose != 0 => VERSION,
        Fact::Crossed { .. } => VERSION_CROSSED,
        Fact::Named(_) => VERSION_NAMED,
        Fact::Hold(hold) if hold.transaction != 0 => VERSION_NAMED,
        Fact::Venue(_) | Fact::Hold(_) | Fact::Answer(_) => VERSION_VENUES,
        Fact::Balance { held, traded, .. } if (held, traded) != (0, 0) => VERSION_VENUES,
        Fact::Outside { .. } => VERSION_OUTSIDE,
        _ => VERSION_FIRST,
    };
    ledger.facts().map(version).max().unwrap_or(VERSION_FIRST)
}

/// Writes all facts of `ledger` to a file, and makes its bytes durable. Its name is not durable
/// yet.
///
/// `go_on` is called after each fact. When it returns false, the file is left unfinished and `None`
/// is returned.
///
/// # Errors
/// [`Error::Io`].
pub fn write(
    path: &Path,
    identity: Identity,
    ledger: &Ledger,
    go_on: impl Fn() -> bool,
) -> Result<Option<Header>, Error> {
    let failed = Error::io("write", path);
    let header = Header {
        identity,
        sequence: ledger.sequence(),
        facts: ledger.facts().count() as u64,
        digest: ledger.digest(),
    };
    let file = wal::create_private(path).map_err(&failed)?;
    let mut out =
        Summed { out: BufWriter::with_capacity(BUFFER_BYTES, file), hasher: Hasher::new() };
    let page = HeaderBytes {
        magic: MAGIC,
        version: version_of(ledger).into(),
        reserved: 0.into(),
        identity: header.identity.0.into(),
        sequence: header.sequence.into(),
        facts: header.facts.into(),
        digest: header.digest.into(),
    };
    out.write(page.as_bytes()).map_err(&failed)?;
    let (mut buffer, mut written) = ([0; 1 + FACT_BYTES_MAX], 0);
    for fact in ledger.facts() {
        let (tag, bytes) = buffer.split_first_mut().expect("one more than a fact");
        let length;
        (*tag, length) = fact.encode(bytes.try_into().expect("as long as a fact"));
        out.write(&buffer[..1 + length]).map_err(&failed)?;
        written += 1;
        if !go_on() {
            return Ok(None);
        }
    }
    assert_eq!(written, header.facts, "the header has the number of facts");
    crash::meet(path, "write").map_err(&failed)?;
    let crc = out.hasher.finalize();
    let mut out = out.out;
    out.write_all(&crc.to_le_bytes()).map_err(&failed)?;
    let file = out.into_inner().map_err(|error| failed(error.into_error()))?;
    crash::meet(path, "sync_file").and_then(|()| file.sync_all()).map_err(&failed)?;
    // The check reads the disk's bytes and not those in the page cache.
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)
        .map_err(|errno| failed(errno.into()))?;
    Ok(Some(header))
}

/// A file and the CRC of the bytes written to it.
struct Summed {
    out: BufWriter<File>,
    hasher: Hasher,
}

impl Summed {
    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.hasher.update(bytes);
        self.out.write_all(bytes)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use domain::account::AccountStatus;
    use domain::chain::chain;
    use domain::transfer::{Direction, Op};
    use tempfile::{TempDir, tempdir};

    use super::*;
    use crate::command::Command;
    use crate::entry::Entry;
    use crate::ledger::Step;
    use crate::order::Order;
    use crate::places::Places;
    use crate::text::Text;

    pub(super) const IDENTITY: Identity = Identity(0xfe);
    pub(super) const PLACES: Places = Places::of_transfers(8, 64);

    /// A ledger after `commands` and a digest.
    pub(super) fn ledger(commands: &[Command]) -> Ledger {
        let mut ledger = Ledger::new(PLACES);
        for command in commands.iter().chain([&Command::Digest]) {
            let Step::Append(entry) = ledger.step(command) else { panic!("{command:?}") };
            ledger.apply(&entry, ledger.sequence() + 1, 1_700_000_000_000_000_000);
        }
        ledger
    }

    pub(super) fn asset() -> Command {
        let symbol = Text::new("USDT").expect("short");
        Command::RegisterAsset { asset: 3, precision: 8, symbol }
    }

    pub(super) fn deposit(req_id: u128, user: u64, amount: u64) -> Command {
        let (op, direction, cid) = (Op::Deposit, Direction::FundingToSpot, Text::EMPTY);
        let order_number = u64::try_from(req_id).expect("small");
        Command::Order(Order { op, req_id, cid, user, asset: 3, amount, direction, order_number })
    }

    fn sample() -> Ledger {
        let frozen = Command::SetStatus { user: 7, status: AccountStatus::Frozen };
        ledger(&[asset(), deposit(1, 7, 500), frozen, deposit(2, 8, 250)])
    }

    /// A directory with a snapshot of a ledger in it.
    struct Written {
        _directory: TempDir,
        path: PathBuf,
    }

    impl Written {
        fn new(ledger: &Ledger) -> Written {
            let directory = tempdir().expect("a directory");
            let path = directory.path().join("a.snap");
            write(&path, IDENTITY, ledger, || true).expect("written").expect("to the end");
            Written { _directory: directory, path }
        }

        fn bytes(&self) -> Vec<u8> {
            fs::read(&self.path).expect("there")
        }

        /// Replaces the file's bytes.
        fn put(&self, bytes: &[u8]) {
            fs::write(&self.path, bytes).expect("written");
        }

        /// The same, with a CRC that fits.
        fn put_sealed(&self, mut bytes: Vec<u8>) {
            let checked = bytes.len() - CRC_BYTES;
            let crc = crc32fast::hash(&bytes[..checked]);
            bytes[checked..].copy_from_slice(&crc.to_le_bytes());
            self.put(&bytes);
        }

        fn load(&self) -> Result<Ledger, Error> {
            Snapshot::open(&self.path)?.ledger(Ledger::new(PLACES))
        }

        fn refusal(&self) -> Error {
            match self.load() {
                Ok(_) => panic!("it was taken"),
                Err(error) => error,
            }
        }
    }

    #[test]
    fn a_ledger_comes_back_as_it_was() {
        let before = sample();
        let after = Written::new(&before).load().expect("whole");
        assert_eq!(after.sequence(), before.sequence());
        assert_eq!(after.watermark(), before.watermark());
        assert_eq!(after.digest(), before.digest());
        assert_eq!(after.balances(), before.balances());
        let facts = |ledger: &Ledger| {
            let mut facts: Vec<_> = ledger.facts().map(|fact| format!("{fact:?}")).collect();
            facts.sort();
            facts
        };
        assert_eq!(facts(&after), facts(&before));
    }

    #[test]
    fn the_bytes_of_a_snapshot_stay_what_they_are() {
        let hex: String = Written::new(&ledger(&[asset()]))
            .bytes()
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        let want = concat!(
            // Header: magic, version, zeros, identity, sequence, number of facts, digest.
            "736e61700d0a1a0a",
            "01000000",
            "00000000",
            "fe000000000000000000000000000000",
            "0200000000000000",
            "0300000000000000",
            "4074fcd71929780d9419b20d9f53f71d",
            // Facts: the evicted outcomes, the watermark, an asset.
            "0600000000000000000000000000000000",
            "050000000000000000",
            "01030000000804555344540000000000000000",
            "00000000",
            "96002c4e",
        );
        assert_eq!(hex, want);
    }

    /// Goal: no damage to a file makes another ledger, or a panic. Method: every bit of every byte
    /// flipped, and every shorter file. Each error names the file.
    #[test]
    fn every_flipped_bit_and_every_cut_is_damage() {
        let written = Written::new(&sample());
        let whole = written.bytes();
        for at in 0..whole.len() {
            for bit in 0..8 {
                let mut bytes = whole.clone();
                bytes[at] ^= 1 << bit;
                written.put(&bytes);
                assert_damaged(&written, &format!("byte {at} bit {bit}"));
            }
            written.put(&whole[..at]);
            assert_damaged(&written, &format!("{at} bytes"));
        }
        let mut longer = whole.clone();
        longer.push(0);
        written.put(&longer);
        assert_damaged(&written, "a byte more");
        written.put(&whole);
        assert!(written.load().is_ok());
    }

    fn assert_damaged(written: &Written, what: &str) {
        let error = written.refusal();
        assert!(matches!(error, Error::Damaged { .. }), "{what}: {error:?}");
        assert!(error.is_damage(), "{what}");
        assert!(error.to_string().contains("a.snap is damaged: "), "{what}: {error}");
    }

    /// Goal: a file that was changed together with its CRC is never a ledger of other money.
    /// Method: every byte changed under a right CRC. A file that is taken all the same has the same
    /// facts.
    #[test]
    fn a_changed_file_with_a_right_checksum_is_no_ledger_of_this_digest() {
        let before = sample();
        let written = Written::new(&before);
        let whole = written.bytes();
        for at in 0..whole.len() - CRC_BYTES {
            let mut bytes = whole.clone();
            bytes[at] ^= 1;
            written.put_sealed(bytes);
            let Ok(snapshot) = Snapshot::open(&written.path) else { continue };
            if let Ok(after) = snapshot.ledger(Ledger::new(PLACES)) {
                assert_eq!(after.digest(), before.digest(), "byte {at}");
                assert_eq!(after.balances(), before.balances(), "byte {at}");
            }
        }
    }

    #[test]
    fn a_whole_file_that_contradicts_itself_is_not_passed_over() {
        let written = Written::new(&sample());
        let whole = written.bytes();
        let facts = 40;
        for change in [
            (facts, whole[facts] - 1, "bytes follow the last fact"),
            (facts, whole[facts] + 1, "ends before the last fact"),
            (HEADER_BYTES, 99, "a.snap: fact 0: fact tag holds 99"),
            (8, 7, "version 7"),
        ] {
            let (at, byte, why) = change;
            let mut bytes = whole.clone();
            bytes[at] = byte;
            written.put_sealed(bytes);
            let error = written.refusal();
            assert!(!error.is_damage() && chain(&error).contains(why), "{error}");
        }
    }

    #[test]
    fn a_balance_that_was_changed_refuses_with_its_file() {
        let written = Written::new(&sample());
        let mut bytes = written.bytes();
        let balance = 500_u128.to_le_bytes();
        let at = bytes.windows(16).position(|window| window == balance).expect("a balance");
        bytes[at] += 1;
        written.put_sealed(bytes);
        let error = written.refusal();
        assert!(matches!(error, Error::Ledger { .. }), "{error:?}");
    }

    #[test]
    fn a_stopped_writer_leaves_no_snapshot() {
        let directory = tempdir().expect("a directory");
        let path = directory.path().join("a.snap");
        assert_eq!(write(&path, IDENTITY, &sample(), || false).expect("stopped"), None);
        assert!(Snapshot::open(&path).is_err());
        let entry = Entry::Digest { digest: sample().digest() };
        assert_eq!(sample().step(&Command::Digest), Step::Append(entry));
    }
}
