//! What a backup says of itself: `manifest.json`, written last. Every byte of it and of every file it names is summed.

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
/// What `pg_dump` wrote.
pub const DUMP: &str = "postgres.dump";
/// The version of the format that this program writes and reads.
const FORMAT: u32 = 1;
/// Bytes read at a time.
const BUFFER_BYTES: usize = 256 * 1024;

/// What a backup holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// The version of the format.
    format: u32,
    /// The version of the program that made it.
    pub program: String,
    /// When it was finished, RFC 3339.
    pub created_at: String,
    /// The log's half.
    pub log: Log,
    /// PostgreSQL's half.
    pub postgres: Postgres,
    /// Every file but this one.
    pub files: Vec<Summed>,
}

/// What a backup holds of the log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Log {
    /// The log's identity, hexadecimal.
    pub identity: String,
    /// Its first record; 0 for none.
    pub first: Sequence,
    /// Its last record; 0 for none.
    pub last: Sequence,
    /// The records at which snapshots stand, newest first.
    pub snapshots: Vec<Sequence>,
}

/// What a backup holds of PostgreSQL.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Postgres {
    /// The server's version.
    pub version: String,
    /// Its major version.
    pub major: u32,
    /// Which cluster it was taken from.
    pub system_identifier: String,
    /// In which of the cluster's histories.
    pub timeline: i32,
    /// Up to where the server's log was written then.
    pub lsn: String,
    /// The database.
    pub database: String,
    /// The last incarnation it had given.
    pub incarnation: u64,
    /// Order numbers below it may have left UBSCore's outcome map.
    pub watermark: u64,
    /// The highest sequence that a lease holder had seen durable.
    pub durable_sequence: Sequence,
    /// The highest sequence that anything in it claims to be durable.
    pub claimed_sequence: Sequence,
    /// How many transfers it holds.
    pub transfers: u64,
}

/// A file, and what it adds up to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Summed {
    /// Below the backup's directory.
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
    /// Of `backup`, written as compactly as JSON goes.
    xxh3: String,
}

impl Manifest {
    /// A manifest of what this program has written.
    pub fn new(created_at: String, log: Log, postgres: Postgres, files: Vec<Summed>) -> Manifest {
        let program = env!("CARGO_PKG_VERSION").to_owned();
        Manifest { format: FORMAT, program, created_at, log, postgres, files }
    }

    /// What names this backup and no other.
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
    /// There is none, it is of another version, or a byte of it is not as it was written.
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
        // Whatever was changed, a number or a blank, it is written otherwise again.
        ensure!(manifest.to_bytes() == bytes, damaged());
        for file in &manifest.files {
            ensure!(file.is_known(), "{shown} names {}", file.path.display());
        }
        Ok(manifest)
    }

    /// Reads every file that is named, and compares.
    ///
    /// # Errors
    /// The first one that is not what was written, by name.
    pub fn check_files(&self, directory: &Path) -> anyhow::Result<()> {
        for file in &self.files {
            let found = Summed::of(directory, &file.path)?;
            let path = directory.join(&file.path);
            ensure!(
                found == *file,
                "{} is damaged: it has {} bytes that add up to {}, and was written with {} that add up to {}",
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

    /// Whether it is a name that a backup has: no other is ever opened.
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

/// A file that is summed while it is read.
pub struct Summing {
    file: File,
    sum: Box<Xxh3>,
    bytes: u64,
}

impl Summing {
    /// Nothing read yet.
    pub fn new(file: File) -> Summing {
        Summing { file, sum: Box::new(Xxh3::new()), bytes: 0 }
    }

    /// What was read so far.
    pub fn summed(&self, path: &Path) -> Summed {
        let xxh3 = format!("{:032x}", self.sum.digest128());
        Summed { path: path.to_owned(), bytes: self.bytes, xxh3 }
    }

    /// Copies all of it to `to`.
    ///
    /// # Errors
    /// Whatever the system says.
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
