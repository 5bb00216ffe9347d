//! `DATA/flights`: the last answered flight of each shard.
//!
//! The file is written before anything of a flight is told. A write goes to the page cache, which
//! outlives the process, so a SIGKILL loses nothing. The file is synced every second and at a stop,
//! so a power cut may leave an earlier flight in it, and never a later one. It is no part of a
//! backup.
//!
//! A start demands that each named row is in `journal_tb`, see [`super::incarnation::begin`]. If a
//! row is missing, PostgreSQL has gone back in time, and answered commits are lost. `journal_trim`
//! keeps the last 1,000 rows of each shard, and the file is synced before each call of it.
//!
//! ```text
//!   header | slot 0 of each shard | slot 1 of each shard
//! ```
//!
//! The three parts lie on pages of their own. Each write of a shard goes to its older slot, so a
//! torn write leaves the other one. Integers are little-endian.

use std::fmt;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use tracing::warn;

/// The file in the data directory.
pub const FILE: &str = "flights";
/// Its name until it is complete.
const FILE_NEW: &str = "flights.new";

/// The first bytes of the file: its kind and its version.
const MAGIC: [u8; 8] = *b"ubsflt\x00\x01";
/// The parts of the file begin at multiples of it, bytes: no page holds both slots of a shard.
const PAGE_BYTES: usize = 4096;
/// Magic, number of shards, the latest incarnation, and their checksum.
const HEADER_BYTES: usize = 24;
/// Where the checksum of the header begins.
const HEADER_SUM: usize = 20;
/// A slot with its padding: none crosses a sector of a disk.
const SLOT_BYTES: usize = 64;
/// The bytes of a slot that carry something. The checksum is the last four.
const SLOT_USED: usize = 40;
/// The most shards of a file. More than this is damage.
const SHARDS_MAX: usize = 65_536;

/// The name of a row of `journal_tb`. No two flights have the same, also
/// after PostgreSQL has gone back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlightRow {
    /// The shard.
    pub shard: u32,
    /// The number in the shard, without gaps over all incarnations; 0 stands for no flight.
    pub flight: u64,
    /// The incarnation that has flown it.
    pub incarnation: u64,
    /// Tells flights of one number and incarnation apart; 0: the start of the incarnation.
    pub attempt: u64,
}

impl FlightRow {
    fn is_after(&self, other: &FlightRow) -> bool {
        (self.incarnation, self.flight) > (other.incarnation, other.flight)
    }
}

impl fmt::Display for FlightRow {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let FlightRow { shard, flight, incarnation, attempt } = self;
        write!(
            out,
            "flight {flight} of shard {shard} (incarnation {incarnation}, attempt {attempt})"
        )
    }
}

/// What a file says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answered {
    /// The latest incarnation that has written to PostgreSQL from this data directory. Its ids are
    /// known to clients, also where PostgreSQL has gone back to an earlier incarnation.
    pub latest: u64,
    /// The last answered flight of each shard, by shard.
    pub rows: Vec<FlightRow>,
}

/// Why the file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is none.
    #[error("{} is missing: nothing proves that PostgreSQL has every answered commit", .0.display())]
    Missing(PathBuf),
    /// Its contents are damaged.
    #[error(
        "{} is damaged ({what}): nothing proves that PostgreSQL has every answered commit",
        path.display()
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The first damage.
        what: String,
    },
    /// The file cannot be read or written.
    #[error("{}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}

/// A slot: a row, and how often its shard had been written by then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Slot {
    row: FlightRow,
    /// 0, 1, 2, ...; its lowest bit says which of the two slots it is.
    writes: u64,
}

impl Slot {
    fn encode(&self) -> [u8; SLOT_BYTES] {
        let mut bytes = [0; SLOT_BYTES];
        let FlightRow { shard, flight, incarnation, attempt } = self.row;
        for (at, number) in (0..).step_by(8).zip([self.writes, flight, incarnation, attempt]) {
            bytes[at..at + 8].copy_from_slice(&number.to_le_bytes());
        }
        bytes[32..36].copy_from_slice(&shard.to_le_bytes());
        let sum = crc32fast::hash(&bytes[..36]);
        bytes[36..SLOT_USED].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    /// `None`: torn or damaged.
    fn decode(bytes: &[u8], side: u64) -> Option<Slot> {
        let (shard, sum) = (number_32(bytes, 32)?, number_32(bytes, 36)?);
        let [writes, flight, incarnation, attempt] =
            [0, 8, 16, 24].map(|at| number_64(bytes, at).expect("it is shorter than the sum"));
        let is_sound = crc32fast::hash(&bytes[..36]) == sum && writes % 2 == side;
        is_sound.then_some(Slot { row: FlightRow { shard, flight, incarnation, attempt }, writes })
    }
}

fn number_32(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().expect("four bytes")))
}

fn number_64(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().expect("eight bytes")))
}

/// Where a slot begins in a file of `shards`, bytes. `side`: 0 or 1.
fn offset(shards: usize, index: usize, side: u64) -> usize {
    let part = (shards * SLOT_BYTES).next_multiple_of(PAGE_BYTES);
    let before = if side == 0 { 0 } else { part };
    PAGE_BYTES + before + index * SLOT_BYTES
}

/// The length of a file of `shards`, bytes.
fn file_bytes(shards: usize) -> usize {
    offset(shards, shards, 1).next_multiple_of(PAGE_BYTES)
}

/// A whole file: both slots of each shard hold its row.
fn encode(latest: u64, rows: &[FlightRow]) -> Vec<u8> {
    let mut bytes = vec![0; file_bytes(rows.len())];
    let shards = u32::try_from(rows.len()).expect("at most SHARDS_MAX");
    bytes[..8].copy_from_slice(&MAGIC);
    bytes[8..12].copy_from_slice(&shards.to_le_bytes());
    bytes[12..HEADER_SUM].copy_from_slice(&latest.to_le_bytes());
    let sum = crc32fast::hash(&bytes[..HEADER_SUM]);
    bytes[HEADER_SUM..HEADER_BYTES].copy_from_slice(&sum.to_le_bytes());
    for (index, row) in rows.iter().enumerate() {
        for writes in [0, 1] {
            let at = offset(rows.len(), index, writes);
            bytes[at..at + SLOT_BYTES].copy_from_slice(&Slot { row: *row, writes }.encode());
        }
    }
    bytes
}

/// The newest sound slot of each shard, and the shards with a bad slot; or the first damage.
fn decode(bytes: &[u8]) -> Result<(Answered, Vec<u32>), String> {
    let header = bytes.get(..HEADER_BYTES).ok_or_else(|| "it is too short".to_owned())?;
    if !header.starts_with(&MAGIC) {
        return Err("it is no such file, or of another version".to_owned());
    }
    let sum = number_32(header, HEADER_SUM).expect("it is long enough");
    let latest = number_64(header, 12).expect("it is long enough");
    let shards = number_32(header, 8).expect("it is long enough");
    let shards = usize::try_from(shards).expect("a number of 32 bits");
    if crc32fast::hash(&header[..HEADER_SUM]) != sum || shards > SHARDS_MAX {
        return Err("its header".to_owned());
    }
    // A torn write leaves the length.
    let length = file_bytes(shards);
    if bytes.len() != length {
        return Err(format!("it has {} bytes, and not {length}", bytes.len()));
    }
    let (mut rows, mut torn) = (Vec::<FlightRow>::with_capacity(shards), Vec::new());
    for index in 0..shards {
        let sides = [0, 1].map(|side| {
            let at = offset(shards, index, side);
            bytes.get(at..at + SLOT_BYTES).and_then(|bytes| Slot::decode(bytes, side))
        });
        let newest = sides.into_iter().flatten().max_by_key(|slot| slot.writes);
        let row = newest.ok_or_else(|| format!("both slots of shard {index}"))?.row;
        if rows.last().is_some_and(|last| last.shard >= row.shard) {
            return Err(format!("shard {} at an unexpected place", row.shard));
        }
        if sides.contains(&None) {
            torn.push(row.shard);
        }
        rows.push(row);
    }
    Ok((Answered { latest, rows }, torn))
}

/// What the file of a data directory says.
///
/// # Errors
/// [`Error`]: it is not known which commits were answered.
pub fn read(data_dir: &Path) -> Result<Answered, Error> {
    let path = data_dir.join(FILE);
    match fs::read(&path) {
        Ok(bytes) => {
            let decoded =
                decode(&bytes).map_err(|what| Error::Damaged { path: path.clone(), what });
            let (answered, torn) = decoded?;
            if !torn.is_empty() {
                warn!(path = %path.display(), shards = ?torn, "using the other slot of a torn one");
            }
            Ok(answered)
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Err(Error::Missing(path)),
        Err(source) => Err(Error::Io { path, source }),
    }
}

/// The open file of a process that writes.
pub struct Flights {
    file: File,
    /// The last slot written of each shard, by shard.
    slots: Vec<Mutex<Slot>>,
    /// Whether a write is not synced.
    dirty: AtomicBool,
    /// Held during a sync: a thread that finds nothing dirty waits for the sync of another one.
    syncing: Mutex<()>,
}

impl Flights {
    /// Writes the file anew, atomically and durably. `rows`: one of each shard. `latest`: see
    /// [`Answered::latest`]; it must not be below that of the file before.
    ///
    /// # Errors
    /// [`Error::Io`]: the file is the old one, or the new one.
    pub fn create(data_dir: &Path, latest: u64, rows: &[FlightRow]) -> Result<Flights, Error> {
        let mut rows = rows.to_vec();
        rows.sort_by_key(|row| row.shard);
        assert!(rows.len() <= SHARDS_MAX, "{} shards", rows.len());
        let path = data_dir.join(FILE);
        let create = || {
            let new = data_dir.join(FILE_NEW);
            let mut file = wal::create_private(&new)?;
            file.write_all(&encode(latest, &rows))?;
            file.sync_all()?;
            fs::rename(&new, &path)?;
            File::open(data_dir)?.sync_all()?;
            Ok(file)
        };
        let file = create().map_err(|source| Error::Io { path: path.clone(), source })?;
        let slots = rows.iter().map(|row| Mutex::new(Slot { row: *row, writes: 1 })).collect();
        Ok(Flights { file, slots, dirty: AtomicBool::new(false), syncing: Mutex::new(()) })
    }

    /// Names a later flight of its shard. An earlier one changes nothing. When this returns, a
    /// SIGKILL loses nothing.
    ///
    /// # Errors
    /// The write failed: nothing of the flight may be told.
    pub fn raise(&self, row: FlightRow) -> io::Result<()> {
        let at = self.slots.binary_search_by_key(&row.shard, |slot| slot.lock().row.shard);
        let index =
            at.map_err(|_| io::Error::other(format!("{FILE} has no shard {}", row.shard)))?;
        let mut slot = self.slots[index].lock();
        match row.is_after(&slot.row) {
            true => self.write(index, &mut slot, row),
            false => Ok(()),
        }
    }

    /// Names the last flights of a server that the audit has accepted. A shard without a row names
    /// no flight.
    ///
    /// # Errors
    /// The file may name earlier rows; the process goes on with these ones.
    pub fn set(&self, rows: &[FlightRow]) -> io::Result<()> {
        let mut written = Ok(());
        for (index, slot) in self.slots.iter().enumerate() {
            let mut slot = slot.lock();
            let shard = slot.row.shard;
            let none = FlightRow { shard, flight: 0, incarnation: 0, attempt: 0 };
            let row = rows.iter().find(|row| row.shard == shard).copied().unwrap_or(none);
            let done = self.write(index, &mut slot, row);
            // Connections are compared with the server that is used.
            slot.row = row;
            written = written.and(done);
        }
        written
    }

    /// Writes the older slot of a shard. If that fails, the other one still names the earlier row,
    /// and the next write goes to the same slot.
    fn write(&self, index: usize, slot: &mut Slot, row: FlightRow) -> io::Result<()> {
        let next = Slot { row, writes: slot.writes + 1 };
        let at = offset(self.slots.len(), index, next.writes % 2);
        let at = u64::try_from(at).expect("a small file");
        self.file.write_all_at(&next.encode(), at)?;
        self.dirty.store(true, Ordering::Release);
        *slot = next;
        Ok(())
    }

    /// The named flights, by shard.
    pub fn rows(&self) -> Vec<FlightRow> {
        let rows = self.slots.iter().map(|slot| slot.lock().row);
        rows.filter(|row| row.flight > 0).collect()
    }

    /// Makes everything durable that was written before. Blocks.
    ///
    /// # Errors
    /// After a power cut the file may name earlier flights.
    pub fn sync(&self) -> io::Result<()> {
        let _syncing = self.syncing.lock();
        if !self.dirty.swap(false, Ordering::AcqRel) {
            return Ok(());
        }
        self.file.sync_data().inspect_err(|_| self.dirty.store(true, Ordering::Release))
    }
}

#[cfg(test)]
mod tests {
    use tempfile::{TempDir, tempdir};

    use super::*;

    fn row(shard: u32, flight: u64) -> FlightRow {
        FlightRow { shard, flight, incarnation: 3, attempt: flight * 10 }
    }

    /// A file of `shards`, each with a flight 5 and then a flight 6.
    fn written(shards: u32) -> (TempDir, Flights) {
        let directory = tempdir().expect("a directory");
        let rows: Vec<_> = (0..shards).rev().map(|shard| row(shard, 5)).collect();
        let flights = Flights::create(directory.path(), 3, &rows).expect("created");
        for shard in 0..shards {
            flights.raise(row(shard, 6)).expect("written");
        }
        (directory, flights)
    }

    /// Inverts a byte.
    fn spoil(directory: &TempDir, at: usize) {
        let path = directory.path().join(FILE);
        let mut bytes = fs::read(&path).expect("read");
        bytes[at] ^= 0xff;
        fs::write(&path, bytes).expect("written");
    }

    #[test]
    fn the_file_names_the_latest_flight_at_once() {
        let (directory, flights) = written(3);
        assert_eq!(read(directory.path()).expect("read").rows, [row(0, 6), row(1, 6), row(2, 6)]);
        flights.raise(row(1, 9)).expect("written");
        flights.raise(row(1, 8)).expect("an earlier one is left out");
        assert_eq!(read(directory.path()).expect("read").rows, [row(0, 6), row(1, 9), row(2, 6)]);
        assert_eq!(read(directory.path()).expect("read").rows, flights.rows());
        flights.sync().expect("synced");
        flights.raise(row(3, 1)).expect_err("no such shard");
    }

    #[test]
    fn an_accepted_server_may_have_fewer_flights() {
        let (directory, flights) = written(2);
        flights.set(&[row(0, 2)]).expect("written");
        assert_eq!(flights.rows(), [row(0, 2)]);
        let none = FlightRow { shard: 1, flight: 0, incarnation: 0, attempt: 0 };
        assert_eq!(read(directory.path()).expect("read").rows, [row(0, 2), none]);
        flights.raise(row(1, 1)).expect("written");
        assert_eq!(flights.rows(), [row(0, 2), row(1, 1)]);
    }

    #[test]
    fn a_torn_slot_leaves_the_other_one() {
        for shards in [1_u32, 65] {
            let count = usize::try_from(shards).expect("small");
            // Two writes since the creation: the newest is in slot 0, the one before in slot 1.
            for (side, flight) in [(0, 5), (1, 6)] {
                for byte in [0, 9, 35, SLOT_USED - 1] {
                    let (directory, _) = written(shards);
                    spoil(&directory, offset(count, count - 1, side) + byte);
                    let rows = read(directory.path()).expect("one is left").rows;
                    assert_eq!(rows.last(), Some(&row(shards - 1, flight)), "{side} {byte}");
                }
            }
        }
    }

    #[test]
    fn a_file_without_a_sound_slot_is_refused_by_name() {
        let (directory, _) = written(2);
        spoil(&directory, offset(2, 1, 0) + 3);
        spoil(&directory, offset(2, 1, 1) + 3);
        let refused = read(directory.path()).expect_err("both are bad").to_string();
        assert!(refused.contains("both slots of shard 1"), "{refused}");
        let path = directory.path().join(FILE);
        let whole = encode(3, &[row(0, 1)]);
        let cut = [
            &whole[..0],
            &whole[..HEADER_BYTES - 1],
            &whole[..PAGE_BYTES],
            &whole[..whole.len() - 1],
        ];
        for bytes in cut.into_iter().chain([&b"another file of text"[..]]) {
            fs::write(&path, bytes).expect("written");
            assert!(
                matches!(read(directory.path()), Err(Error::Damaged { .. })),
                "{}",
                bytes.len()
            );
        }
        fs::write(&path, &whole).expect("written");
        spoil(&directory, 8);
        assert!(matches!(read(directory.path()), Err(Error::Damaged { .. })), "another count");
        fs::remove_file(&path).expect("removed");
        assert!(matches!(read(directory.path()), Err(Error::Missing(_))));
    }

    #[test]
    fn a_start_with_more_or_fewer_shards_writes_a_whole_new_file() {
        let (directory, before) = written(2);
        for shards in [5, 1, 0] {
            let rows: Vec<_> = (0..shards).map(|shard| row(shard, 7)).collect();
            let flights = Flights::create(directory.path(), 3, &rows).expect("created");
            // A process that is given up still has the old file.
            before.raise(row(0, 100)).expect("written");
            assert_eq!(read(directory.path()).expect("read").rows, rows);
            assert_eq!(flights.rows(), rows);
            assert_eq!(read(directory.path()).expect("read").latest, 3);
        }
    }
}
