//! Copies of files before they are changed, and the moved files of a lost log. Both stand beside
//! the data in a new directory, whole and durable, and never replace other files.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use jiff::Timestamp;

/// The prefix of a directory of copies; the time follows.
const PREFIX: &str = "wal-cut-";
/// The prefix of a directory with the files of a lost log; the time follows.
const PREFIX_LOST: &str = "wal-lost-";
/// The suffix of a directory until every copy in it is durable.
const SUFFIX_UNFINISHED: &str = ".unfinished";
/// Bytes compared in one step.
const COMPARED_BYTES: usize = 64 * 1024;

/// Copies files into a new directory in `data_dir`, and returns its path. `now_ns`: the time in its
/// name, ns since the Unix epoch.
///
/// When this returns, every copy was compared with its original and is durable under its name.
pub(super) fn copy(data_dir: &Path, files: &[PathBuf], now_ns: u64) -> anyhow::Result<PathBuf> {
    let directory = vacant(data_dir, PREFIX, now_ns)?;
    let unfinished = directory.with_extension(SUFFIX_UNFINISHED.trim_start_matches('.'));
    fs::create_dir(&unfinished).with_context(|| format!("make {}", unfinished.display()))?;
    for file in files {
        let name = file.file_name().context("a file has a name")?;
        let copy = unfinished.join(name);
        ensure!(!copy.exists(), "two files are called {}", copy.display());
        copy_one(file, &copy)
            .with_context(|| format!("copy {} to {}", file.display(), copy.display()))?;
    }
    let failed = || format!("keep {}", directory.display());
    sync_directory(&unfinished).with_context(failed)?;
    fs::rename(&unfinished, &directory).with_context(failed)?;
    sync_directory(data_dir).with_context(failed)?;
    Ok(directory)
}

/// Moves files into a new directory in `data_dir`, and returns its path. `now_ns`: the time in its
/// name, ns since the Unix epoch.
///
/// When this returns, every file is durable under its new name and its old name is gone. A crash in
/// between leaves some files moved and the others in place.
pub(in crate::commands) fn move_away(
    data_dir: &Path,
    files: &[PathBuf],
    now_ns: u64,
) -> anyhow::Result<PathBuf> {
    let directory = vacant(data_dir, PREFIX_LOST, now_ns)?;
    fs::create_dir(&directory).with_context(|| format!("make {}", directory.display()))?;
    sync_directory(data_dir).with_context(|| format!("keep {}", directory.display()))?;
    for file in files {
        let name = file.file_name().context("a file has a name")?;
        let moved = directory.join(name);
        ensure!(!moved.exists(), "two files are called {}", moved.display());
        fs::rename(file, &moved)
            .with_context(|| format!("move {} to {}", file.display(), moved.display()))?;
    }
    let sources = files.iter().filter_map(|file| file.parent());
    for changed in sources.chain([directory.as_path()]) {
        sync_directory(changed).with_context(|| format!("sync {}", changed.display()))?;
    }
    Ok(directory)
}

/// A path that is free, both with and without the suffix.
fn vacant(data_dir: &Path, prefix: &str, now_ns: u64) -> anyhow::Result<PathBuf> {
    let time = Timestamp::from_nanosecond(i128::from(now_ns)).context("the machine's clock")?;
    let time = time.strftime("%Y%m%dT%H%M%SZ");
    for number in 1_u32.. {
        let name = match number {
            1 => format!("{prefix}{time}"),
            number => format!("{prefix}{time}-{number}"),
        };
        let (directory, unfinished) =
            (data_dir.join(&name), data_dir.join(format!("{name}{SUFFIX_UNFINISHED}")));
        if !directory.try_exists()? && !unfinished.try_exists()? {
            return Ok(directory);
        }
    }
    unreachable!("there are fewer files than numbers")
}

fn copy_one(from: &Path, to: &Path) -> anyhow::Result<()> {
    fs::copy(from, to)?;
    // Compares the files themselves, because a successful call does not prove the content.
    File::open(to)?.sync_all()?;
    ensure!(is_same(File::open(from)?, File::open(to)?)?, "the copy differs from the original");
    Ok(())
}

fn is_same(mut one: File, mut other: File) -> io::Result<bool> {
    let bytes = one.metadata()?.len();
    if bytes != other.metadata()?.len() {
        return Ok(false);
    }
    let (mut ours, mut theirs) = (vec![0; COMPARED_BYTES], vec![0; COMPARED_BYTES]);
    let mut left = bytes;
    while left > 0 {
        let part = usize::try_from(left).unwrap_or(usize::MAX).min(COMPARED_BYTES);
        one.read_exact(&mut ours[..part])?;
        other.read_exact(&mut theirs[..part])?;
        if ours[..part] != theirs[..part] {
            return Ok(false);
        }
        left -= part as u64;
    }
    Ok(true)
}

/// Makes the names in a directory durable.
pub(super) fn sync_directory(directory: &Path) -> io::Result<()> {
    File::open(directory)?.sync_all()
}

#[cfg(test)]
mod tests {
    use tempfile::tempdir;

    use super::*;

    #[test]
    fn copies_are_whole_and_never_in_the_place_of_others() {
        let data = tempdir().expect("a directory");
        let file = data.path().join("segment");
        let mut seen = Vec::new();
        for text in ["one", "two", "three"] {
            fs::write(&file, text).expect("written");
            let directory = copy(data.path(), std::slice::from_ref(&file), 0).expect("copied");
            seen.push((directory, text));
        }
        for (directory, text) in &seen {
            assert_eq!(fs::read_to_string(directory.join("segment")).expect("there"), *text);
        }
        let names: Vec<_> = seen.iter().filter_map(|(path, _)| path.file_name()).collect();
        assert_eq!(
            names,
            [
                "wal-cut-19700101T000000Z",
                "wal-cut-19700101T000000Z-2",
                "wal-cut-19700101T000000Z-3"
            ]
        );
    }

    #[test]
    fn what_cannot_be_copied_leaves_no_directory_that_looks_finished() {
        let data = tempdir().expect("a directory");
        copy(data.path(), &[data.path().join("absent")], 0).expect_err("absent");
        let names = fs::read_dir(data.path()).expect("listed");
        let names: Vec<_> = names.map(|entry| entry.expect("an entry").file_name()).collect();
        assert_eq!(names, ["wal-cut-19700101T000000Z.unfinished"]);
        let file = data.path().join("present");
        fs::write(&file, "x").expect("written");
        let directory = copy(data.path(), &[file], 0).expect("copied");
        assert!(directory.ends_with("wal-cut-19700101T000000Z-2"), "{}", directory.display());
    }
}
