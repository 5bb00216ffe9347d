//! The directory of snapshots: it lists, adds and removes them.

use std::path::{Path, PathBuf};

use domain::chain::chain;
use tracing::{info, warn};
use wal::{Directory, Identity, Medium, Sequence};

use super::{Error, Header, Snapshot, write};
use crate::crash;
use crate::ledger::Ledger;
use crate::notice::LOG_TARGET;
use crate::places::Places;

const PREFIX: &str = "snapshot-";
const SUFFIX: &str = ".snap";
const SUFFIX_UNFINISHED: &str = ".tmp";

/// A directory of snapshots. A writer holds the lock of the log beside it.
#[derive(Clone, Debug)]
pub struct SnapshotStore {
    directory: Directory,
}

/// The snapshots that a start can use.
#[derive(Debug, Default)]
pub struct Choice {
    /// The newest undamaged snapshot.
    pub newest: Option<Snapshot>,
    /// The damaged ones that are newer.
    pub damaged: Vec<Error>,
}

impl SnapshotStore {
    /// Makes an absent directory, and removes the unfinished snapshots of an earlier process.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn create(path: &Path) -> Result<SnapshotStore, Error> {
        let failed = |source| Error::Io { action: "make", path: path.to_owned(), source };
        let directory = Directory::create(path).map_err(|error| failed(io_error(error)))?;
        let store = SnapshotStore { directory };
        // An earlier process may have died between a rename and its sync. The names must be durable
        // before they are relied on.
        store.directory.sync_directory().map_err(failed)?;
        for name in store.names()? {
            if name.starts_with(PREFIX) && name.ends_with(SUFFIX_UNFINISHED) {
                store.remove(&name)?;
            }
        }
        Ok(store)
    }

    /// A directory for reading only: it is not made and not cleaned.
    pub fn at(path: &Path) -> SnapshotStore {
        SnapshotStore { directory: Directory::at(path) }
    }

    /// All snapshots, newest first.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn paths(&self) -> Result<Vec<PathBuf>, Error> {
        Ok(self.list()?.into_iter().map(|(_, name)| self.path(&name)).collect())
    }

    /// All snapshots with the record in their names, newest first.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn named(&self) -> Result<Vec<(Sequence, PathBuf)>, Error> {
        Ok(self.list()?.into_iter().map(|(sequence, name)| (sequence, self.path(&name))).collect())
    }

    /// The newest undamaged snapshot, and the damaged ones that are newer.
    ///
    /// # Errors
    /// [`Error`]: a snapshot with a fault that no damage explains.
    pub fn choose(&self) -> Result<Choice, Error> {
        let mut choice = Choice::default();
        for (sequence, name) in self.list()? {
            match self.open(sequence, &name) {
                Ok(snapshot) => {
                    choice.newest = Some(snapshot);
                    break;
                }
                Err(error) if error.is_damage() => choice.damaged.push(error),
                Err(error) => return Err(error),
            }
        }
        Ok(choice)
    }

    /// Writes a snapshot of `ledger`, reads it back, and only then names it. The last record of the
    /// ledger is a DIGEST.
    ///
    /// It takes the ledger, so that there are never two of them beside UBSCore's. `go_on`: see
    /// [`write()`].
    ///
    /// # Errors
    /// [`Error`]: there is no new snapshot.
    pub fn add(
        &self,
        identity: Identity,
        mut ledger: Ledger,
        places: Places,
        go_on: impl Fn() -> bool,
    ) -> Result<Option<Snapshot>, Error> {
        // Outcomes below the watermark are not kept.
        ledger.forget_all();
        let sequence = ledger.sequence();
        let name = format!("{PREFIX}{sequence:016x}{SUFFIX}");
        let unfinished = format!("{PREFIX}{sequence:016x}{SUFFIX_UNFINISHED}");
        let made = self.make(identity, ledger, places, go_on, [&unfinished, &name]);
        if !matches!(made, Ok(Some(_))) {
            // On a full disk it would take the log's space. If this fails, the next start removes
            // it.
            self.directory.remove(&unfinished).ok();
        }
        made
    }

    fn make(
        &self,
        identity: Identity,
        ledger: Ledger,
        places: Places,
        go_on: impl Fn() -> bool,
        [unfinished, name]: [&str; 2],
    ) -> Result<Option<Snapshot>, Error> {
        let path = self.path(unfinished);
        let Some(header) = write(&path, identity, &ledger, go_on)? else { return Ok(None) };
        drop(ledger);
        let written = Snapshot::open(&path)?;
        if written.header != header {
            let problem = "its header does not read back as written";
            return Err(Error::Contradiction { path, problem });
        }
        drop(written.ledger(Ledger::new(places))?);
        crash::point("snapshot_before_rename");
        let failed = Error::io("rename", &path);
        self.directory.rename(unfinished, name).map_err(&failed)?;
        self.directory.sync_directory().map_err(|error| {
            // Nothing may be removed because of a name that may not be durable. A start that still
            // finds the name syncs it first.
            self.directory.remove(name).ok();
            failed(error)
        })?;
        crash::point("snapshot_after_rename");
        Ok(Some(Snapshot { path: self.path(name), ..written }))
    }

    /// Removes all but the newest `keep` undamaged snapshots of a log. Returns the sequence of the
    /// oldest one kept; `None` if there are fewer.
    ///
    /// A damaged one is not counted. It is removed if it is older than those kept.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error`]: a snapshot with a fault that no damage explains. Nothing is
    /// removed then.
    pub fn prune(&self, identity: Identity, keep: usize) -> Result<Option<Sequence>, Error> {
        let mut kept = 0;
        let mut oldest = None;
        let mut names = self.list()?.into_iter();
        for (sequence, name) in names.by_ref() {
            match self.open(sequence, &name) {
                Ok(snapshot) if snapshot.header.identity == identity => kept += 1,
                Ok(Snapshot { path, .. }) => {
                    return Err(Error::Contradiction { path, problem: "it is another log's" });
                }
                Err(error) if error.is_damage() => {
                    warn!(target: LOG_TARGET, error = chain(&error), "a damaged snapshot is not counted");
                    continue;
                }
                Err(error) => return Err(error),
            }
            if kept == keep {
                oldest = Some(sequence);
                break;
            }
        }
        for (_, name) in names {
            self.remove(&name)?;
            info!(target: LOG_TARGET, name, "an old snapshot is removed");
        }
        crash::point("snapshot_after_remove");
        Ok(oldest)
    }

    /// Reads the header and checks the CRC.
    fn open(&self, sequence: Sequence, name: &str) -> Result<Snapshot, Error> {
        let snapshot = Snapshot::open(&self.path(name))?;
        match snapshot.header {
            Header { sequence: found, .. } if found != sequence => Err(Error::Contradiction {
                path: snapshot.path,
                problem: "its name has another sequence than its header",
            }),
            Header { .. } => Ok(snapshot),
        }
    }

    /// Names of all snapshots with the sequence in them, newest first.
    fn list(&self) -> Result<Vec<(Sequence, String)>, Error> {
        let sequence = |name: &str| {
            let digits = name.strip_prefix(PREFIX)?.strip_suffix(SUFFIX)?;
            let plain = |digit: u8| digit.is_ascii_digit() || (b'a'..=b'f').contains(&digit);
            let whole = digits.len() == 16 && digits.bytes().all(plain);
            whole.then(|| Sequence::from_str_radix(digits, 16).ok()).flatten()
        };
        let names = self.names()?.into_iter();
        let mut all: Vec<_> = names.filter_map(|name| Some((sequence(&name)?, name))).collect();
        all.sort_unstable();
        all.reverse();
        Ok(all)
    }

    fn names(&self) -> Result<Vec<String>, Error> {
        self.directory.list().map_err(Error::io("list", self.directory.path()))
    }

    fn remove(&self, name: &str) -> Result<(), Error> {
        let path = self.path(name);
        let removed = self.directory.remove(name).and_then(|()| self.directory.sync_directory());
        removed.map_err(Error::io("remove", &path))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }
}

/// The system's error behind an error of the log's directory.
fn io_error(error: wal::Error) -> std::io::Error {
    match error {
        wal::Error::Medium { source, .. } => source,
        other => std::io::Error::other(other),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use tempfile::{TempDir, tempdir};

    use super::*;
    use crate::snapshot::tests::{IDENTITY, PLACES, asset, deposit, ledger};

    /// A store with three snapshots, newest last.
    fn three() -> (TempDir, SnapshotStore, Vec<Snapshot>) {
        let directory = tempdir().expect("a directory");
        let store = SnapshotStore::create(&directory.path().join("snapshots")).expect("made");
        let steps = [asset(), deposit(1, 7, 500), deposit(2, 7, 500)];
        let add = |count: usize| {
            let ledger = ledger(&steps[..count]);
            store.add(IDENTITY, ledger, PLACES, || true).expect("added").expect("to the end")
        };
        let snapshots = (1..=3).map(add).collect();
        (directory, store, snapshots)
    }

    fn damage(snapshot: &Snapshot) {
        let mut bytes = fs::read(&snapshot.path).expect("there");
        bytes[70] ^= 1;
        fs::write(&snapshot.path, bytes).expect("written");
    }

    #[test]
    fn the_newest_whole_snapshot_is_chosen_and_the_others_are_named() {
        let (_directory, store, snapshots) = three();
        let choice = store.choose().expect("three");
        assert_eq!((choice.newest.as_ref(), choice.damaged.len()), (snapshots.last(), 0));
        damage(&snapshots[2]);
        let choice = store.choose().expect("two");
        assert_eq!((choice.newest.as_ref(), choice.damaged.len()), (Some(&snapshots[1]), 1));
        damage(&snapshots[1]);
        damage(&snapshots[0]);
        let choice = store.choose().expect("none");
        assert_eq!((choice.newest.as_ref(), choice.damaged.len()), (None, 3));
    }

    #[test]
    fn a_snapshot_under_anothers_name_is_not_passed_over() {
        let (_directory, store, snapshots) = three();
        fs::copy(&snapshots[1].path, &snapshots[2].path).expect("copied");
        let error = store.choose().expect_err("another's name");
        assert!(!error.is_damage() && error.to_string().contains("its name has"), "{error}");
        store.prune(IDENTITY, 1).expect_err("another's name");
        assert_eq!(store.paths().expect("listed").len(), 3);
    }

    #[test]
    fn as_many_whole_snapshots_stay_as_are_to_be_kept() {
        let (_directory, store, snapshots) = three();
        assert_eq!(store.prune(IDENTITY, 4).expect("pruned"), None);
        assert_eq!(store.paths().expect("listed").len(), 3);
        // A damaged one is none: the two others stay.
        damage(&snapshots[2]);
        assert_eq!(store.prune(IDENTITY, 2).expect("pruned"), Some(snapshots[0].header.sequence));
        assert_eq!(store.paths().expect("listed").len(), 3);
        assert_eq!(store.prune(IDENTITY, 1).expect("pruned"), Some(snapshots[1].header.sequence));
        assert_eq!(
            store.paths().expect("listed"),
            [snapshots[2].path.clone(), snapshots[1].path.clone()]
        );
        store.prune(Identity(1), 1).expect_err("another log's");
    }

    #[test]
    fn a_snapshot_that_is_not_finished_takes_no_space() {
        let (_directory, store, _) = three();
        let before = store.names().expect("listed").len();
        let steps = [asset(), deposit(1, 7, 500), deposit(2, 7, 500), deposit(3, 7, 500)];
        let added = store.add(IDENTITY, ledger(&steps), PLACES, || false);
        assert_eq!(added.expect("stopped"), None);
        assert_eq!(store.names().expect("listed").len(), before);
    }

    #[test]
    fn what_was_left_unfinished_goes_and_what_is_foreign_stays() {
        let (directory, store, _) = three();
        let here = directory.path().join("snapshots");
        let (unfinished, other) = (here.join("snapshot-00000000000000ff.tmp"), here.join("notes"));
        for path in [&unfinished, &other] {
            fs::write(path, "something").expect("written");
        }
        SnapshotStore::create(&here).expect("made again");
        assert!(!unfinished.exists() && other.exists());
        assert_eq!(store.paths().expect("listed").len(), 3);
    }
}
