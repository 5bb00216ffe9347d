//! The certain content of the disk, for tests. Every range that a sync has made durable is copied
//! aside, and every name that a directory's sync has. From the copies, and any other bytes that a
//! test lets survive, the test builds the disk after a power cut.
//!
//! Files are kept by inode number, `<inode>`. The names of a directory are in `names-<inode of the
//! directory>`, one `<inode> <name>` per line.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// The kinds of sync.
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

/// Begins to copy into `directory`. `forgotten`: a sync that is treated as if it did not happen.
pub fn begin(directory: PathBuf, forgotten: Option<Sync>) {
    SHADOW.set(Shadow { directory, forgotten }).expect("once");
}

fn shadow(sync: Sync) -> Option<&'static Shadow> {
    SHADOW.get().filter(|shadow| shadow.forgotten != Some(sync))
}

/// Runs a sync of `range` of a file, and copies the bytes from before it.
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

/// Runs a sync of a directory, and copies its names from before it.
pub(crate) fn sync_directory(path: &Path, sync: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
    let Some(Shadow { directory, .. }) = shadow(Sync::Directory) else { return sync() };
    let mut names = Vec::new();
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        // A file that is being renamed may be absent for a moment.
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
