//! What the disk holds for certain, for tests: every range that a sync has made durable is copied aside, and every name
//! that a directory's sync has. From these, and whatever else a test lets survive, it builds what a power cut leaves.
//!
//! Files are kept by inode number, `<inode>`; the names of a directory in `names-<inode of the directory>`, one `<inode>
//! <name>` a line.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// The syncs there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sync {
    /// Of a range of records.
    Range,
    /// Of a file before it is read.
    Settle,
    /// Of a file that was filled.
    Fill,
    /// Of a directory.
    Directory,
}

impl Sync {
    /// The sync with this name.
    pub fn from_name(name: &str) -> Option<Sync> {
        match name {
            "range" => Some(Sync::Range),
            "settle" => Some(Sync::Settle),
            "fill" => Some(Sync::Fill),
            "directory" => Some(Sync::Directory),
            _ => None,
        }
    }
}

#[derive(Debug)]
struct Shadow {
    directory: PathBuf,
    forgotten: Option<Sync>,
}

static SHADOW: OnceLock<Shadow> = OnceLock::new();

/// Begins to copy into `directory`. `forgotten`: a sync that is treated as if it were not there.
pub fn begin(directory: PathBuf, forgotten: Option<Sync>) {
    SHADOW.set(Shadow { directory, forgotten }).expect("once");
}

fn shadow(sync: Sync) -> Option<&'static Shadow> {
    SHADOW.get().filter(|shadow| shadow.forgotten != Some(sync))
}

/// Runs a sync of `range` of a file, and copies what was there before.
pub(crate) fn sync_file(
    file: &File,
    range: Range<u64>,
    kind: Sync,
    sync: impl FnOnce() -> io::Result<()>,
) -> io::Result<()> {
    let Some(Shadow { directory, .. }) = shadow(kind) else { return sync() };
    let length = usize::try_from(range.end - range.start).expect("a segment");
    let mut bytes = vec![0; length];
    file.read_exact_at(&mut bytes, range.start)?;
    sync()?;
    let path = directory.join(file.metadata()?.ino().to_string());
    let copy = OpenOptions::new().create(true).truncate(false).write(true).open(path)?;
    copy.write_all_at(&bytes, range.start)
}

/// Runs a sync of a directory, and copies its names as they were before.
pub(crate) fn sync_directory(path: &Path, sync: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
    let Some(Shadow { directory, .. }) = shadow(Sync::Directory) else { return sync() };
    let mut names = Vec::new();
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        // One that is renamed in this moment is not there yet.
        if let Ok(metadata) = entry.metadata() {
            writeln!(names, "{} {}", metadata.ino(), entry.file_name().to_string_lossy())?;
        }
    }
    sync()?;
    let copy = directory.join(format!("names-{}", fs::metadata(path)?.ino()));
    let new = copy.with_extension("new");
    fs::write(&new, names)?;
    fs::rename(new, copy)
}
