//! `manifest.json`, the description of a backup, written last. Checksums cover every byte of it and
//! of every file that it names.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Component, Path, PathBuf};

use anyhow::{Context, ensure};
use serde::{Deserialize, Serialize};
use wal::Sequence;
use xxhash_rust::xxh3::{Xxh3, xxh3_128};

use crate::audit::halt;
use crate::data_dir::{LOG_DIRECTORY, SNAPSHOT_DIRECTORY};

/// The manifest's file.
pub const FILE: &str = "manifest.json";
/// The file that `pg_dump` wrote.
pub const DUMP: &str = "postgres.dump";
/// The version of the format that this program writes and reads.
const FORMAT: u32 = 1;
/// Bytes read at a time.
const BUFFER_BYTES: usize = 256 * 1024;

/// The content of a backup.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// The version of the format.
    format: u32,
    /// The version of the program that made it.
    pub program: String,
    /// When it was finished, RFC 3339.
    pub created_at: String,
    /// The log's part.
    pub log: Log,
    /// PostgreSQL's part.
    pub postgres: Postgres,
    /// Every file except the manifest.
    pub files: Vec<Summed>,
}

/// The log in a backup.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Log {
    /// The log's identity, hexadecimal.
    pub identity: String,
    /// Its first record; 0 for none.
    pub first: Sequence,
    /// Its last record; 0 for none.
    pub last: Sequence,
    /// The sequences of the snapshots, newest first.
    pub snapshots: Vec<Sequence>,
}

/// PostgreSQL in a backup.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Postgres {
    /// The server's version.
    pub version: String,
    /// Its major version.
    pub major: u32,
    /// The cluster that was dumped.
    pub system_identifier: String,
    /// The timeline of the cluster.
    pub timeline: i32,
    /// The end of the server's log at that time.
    pub lsn: String,
    /// The database.
    pub database: String,
    /// The last incarnation that it had assigned.
    pub incarnation: u64,
    /// Outcomes with order numbers below it may be evicted from UBSCore's map.
    pub watermark: u64,
    /// The highest sequence that a worker reported as durable.
    pub durable_sequence: Sequence,
    /// The highest sequence that any row of it records as durable.
    pub claimed_sequence: Sequence,
    /// Number of its transfers.
    pub transfers: u64,
}

/// A file with its length and checksum.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Summed {
    /// The path below the backup's directory.
    pub path: PathBuf,
    /// Its length.
    pub bytes: u64,
    /// XXH3, 128 bits, hexadecimal.
    pub xxh3: String,
}

/// The file as it is written.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Sealed {
    backup: Manifest,
    /// The checksum of `backup` in compact JSON.
    xxh3: String,
}

impl Manifest {
    /// A manifest of this program's format and version.
    pub fn new(created_at: String, log: Log, postgres: Postgres, files: Vec<Summed>) -> Manifest {
        let program = env!("CARGO_PKG_VERSION").to_owned();
        Manifest { format: FORMAT, program, created_at, log, postgres, files }
    }

    /// The checksum of the manifest, which identifies the backup.
    pub fn sum(&self) -> String {
        let text = serde_json::to_vec(self).expect("text and numbers");
        format!("{:032x}", xxh3_128(&text))
    }

    /// The bytes of its file.
    pub fn to_bytes(&self) -> Vec<u8> {
        let sealed = Sealed { backup: self.clone(), xxh3: self.sum() };
        let mut bytes = serde_json::to_vec_pretty(&sealed).expect("text and numbers");
        bytes.push(b'\n');
        bytes
    }

    /// Reads the manifest of the backup in `directory`.
    ///
    /// # Errors
    /// There is no manifest, it has another format, or a byte of it has changed.
    pub fn read(directory: &Path) -> anyhow::Result<Manifest> {
        let path = directory.join(FILE);
        let shown = path.display();
        let bytes = fs::read(&path)
            .with_context(|| format!("{} is no whole backup: read {shown}", directory.display()))?;
        #[derive(Deserialize)]
        struct Version {
            backup: Format,
        }
        #[derive(Deserialize)]
        struct Format {
            format: u32,
        }
        let damaged = || format!("{shown} is damaged: it is not what was written");
        let version: Version = serde_json::from_slice(&bytes).with_context(damaged)?;
        let found = version.backup.format;
        ensure!(found == FORMAT, "{shown} has format {found}, and this program reads {FORMAT}");
        let sealed: Sealed = serde_json::from_slice(&bytes).with_context(damaged)?;
        let manifest = sealed.backup;
        // Written again, the manifest must have the same bytes: so any change is found.
        ensure!(manifest.to_bytes() == bytes, damaged());
        for file in &manifest.files {
            ensure!(file.is_known(), "{shown} names {}", file.path.display());
        }
        Ok(manifest)
    }

    /// Reads every named file, and compares its length and checksum.
    ///
    /// # Errors
    /// The first file that has changed, by name.
    pub fn check_files(&self, directory: &Path) -> anyhow::Result<()> {
        for file in &self.files {
            let found = Summed::of(directory, &file.path)?;
            let path = directory.join(&file.path);
            ensure!(
                found == *file,
                "{} is damaged: it has {} bytes with checksum {}, but was written with {} bytes and \
                 checksum {}",
                path.display(),
                found.bytes,
                found.xxh3,
                file.bytes,
                file.xxh3
            );
        }
        Ok(())
    }

    /// All bytes of all files.
    pub fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.bytes).sum()
    }

    /// The files in one directory of the backup.
    pub fn files_in<'a>(&'a self, directory: &'a str) -> impl Iterator<Item = &'a Summed> {
        self.files.iter().filter(move |file| file.path.parent() == Some(Path::new(directory)))
    }
}

impl Summed {
    /// Reads a file below `directory`.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn of(directory: &Path, path: &Path) -> anyhow::Result<Summed> {
        let whole = directory.join(path);
        let read = || {
            let mut sum = Summing::new(File::open(&whole)?);
            io::copy(&mut sum, &mut io::sink())?;
            Ok::<_, io::Error>(sum.summed(path))
        };
        read().with_context(|| format!("read {}", whole.display()))
    }

    /// Whether a backup has files of this name. No other file is opened.
    fn is_known(&self) -> bool {
        let plain = self.path.components().all(|part| matches!(part, Component::Normal(_)));
        let folder = self.path.parent().and_then(Path::to_str);
        plain
            && match folder {
                Some("") => [DUMP, halt::FILE].iter().any(|name| self.path == Path::new(name)),
                Some(folder) => [LOG_DIRECTORY, SNAPSHOT_DIRECTORY].contains(&folder),
                None => false,
            }
    }
}

/// A file with a checksum that is computed while it is read.
pub struct Summing {
    file: File,
    sum: Box<Xxh3>,
    bytes: u64,
}

impl Summing {
    /// Starts at the beginning of the file.
    pub fn new(file: File) -> Summing {
        Summing { file, sum: Box::new(Xxh3::new()), bytes: 0 }
    }

    /// Length and checksum of the bytes read so far.
    pub fn summed(&self, path: &Path) -> Summed {
        let xxh3 = format!("{:032x}", self.sum.digest128());
        Summed { path: path.to_owned(), bytes: self.bytes, xxh3 }
    }

    /// Copies all of it to `to`.
    ///
    /// # Errors
    /// The system's error.
    pub fn copy(&mut self, to: &mut File) -> io::Result<()> {
        let mut buffer = vec![0; BUFFER_BYTES];
        loop {
            match self.read(&mut buffer) {
                Ok(0) => return Ok(()),
                Ok(read) => io::Write::write_all(to, &buffer[..read])?,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
}

impl Read for Summing {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read(buffer)?;
        self.sum.update(&buffer[..read]);
        self.bytes += read as u64;
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Manifest {
        let log = Log { identity: "0f".to_owned(), first: 1, last: 9, snapshots: vec![7] };
        let postgres = Postgres {
            version: "15.1".to_owned(),
            major: 15,
            system_identifier: "7".to_owned(),
            timeline: 1,
            lsn: "0/1".to_owned(),
            database: "ubscore".to_owned(),
            incarnation: 1,
            watermark: 0,
            durable_sequence: 8,
            claimed_sequence: 9,
            transfers: 3,
        };
        let file = Summed { path: DUMP.into(), bytes: 4, xxh3: "ab".to_owned() };
        Manifest::new("2030-01-01T00:00:00Z".to_owned(), log, postgres, vec![file])
    }

    #[test]
    fn a_manifest_reads_back_and_no_changed_byte_of_it_is_taken() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join(FILE);
        let whole = sample().to_bytes();
        fs::write(&path, &whole).expect("written");
        assert_eq!(Manifest::read(directory.path()).expect("whole"), sample());
        for at in 0..whole.len() {
            for flip in [1, 0x20] {
                let mut bytes = whole.clone();
                bytes[at] ^= flip;
                fs::write(&path, bytes).expect("written");
                let refused = Manifest::read(directory.path()).expect_err("changed");
                assert!(format!("{refused:#}").contains(FILE), "byte {at}: {refused:#}");
            }
        }
        fs::write(&path, &whole[..whole.len() - 1]).expect("written");
        Manifest::read(directory.path()).expect_err("short");
    }

    #[test]
    fn a_manifest_leads_nowhere_else() {
        let directory = tempfile::tempdir().expect("a directory");
        for path in ["../there", "/etc/passwd", "wal/../../there", "other/file", "wal", "wal/a/b"] {
            let mut manifest = sample();
            manifest.files[0].path = path.into();
            fs::write(directory.path().join(FILE), manifest.to_bytes()).expect("written");
            Manifest::read(directory.path()).expect_err(path);
        }
    }
}
