//! The witness of a node: the highest token and nonce that it has seen of each signer, in its data
//! directory. A database that shows less is an older one.
//!
//! The file is never ahead of the database: it takes only numbers of commits that were answered.
//! It may be behind by `WRITE_EVERY`, and a witness that is behind only finds less. It has one
//! part for each database, so that a database that was made anew has none.

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, File};
use std::io::{self, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use alloy_primitives::Address;
use chain::payload::address_text;
use parking_lot::{Condvar, Mutex};
use serde::{Deserialize, Serialize};
use tracing::warn;
use xxhash_rust::xxh3::xxh3_64;

/// Between two writes of the file. A kill in between loses as much: a disk that is shared with
/// PostgreSQL is not synced for each commit a second time.
const WRITE_EVERY: Duration = Duration::from_secs(1);

/// Why the witness cannot be used. The node does not start.
#[derive(Debug, thiserror::Error)]
pub enum WitnessError {
    /// The file cannot be read or written.
    #[error("{}: the witness of the node, in data_dir", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The file is damaged.
    #[error(
        "{}: the witness of the node is damaged; remove it only if this database is surely the \
         newest", path.display()
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The place.
        source: toml::de::Error,
    },
}

/// The highest numbers that were seen of a signer within an epoch of the database.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SeenSigner {
    /// The epoch. Each one begins with the suspension of all signers, so that token and nonce of an
    /// earlier one have done their work.
    pub epoch: u64,
    /// The fencing token.
    pub token: u64,
    /// The next nonce.
    pub nonce: u64,
    /// The nonce behind the last one that was signed, in any epoch: the chain may get all below it.
    #[serde(default)]
    pub signed: u64,
}

impl SeenSigner {
    /// The later epoch counts; within one, the higher numbers. The signed nonce never falls.
    fn raise(&mut self, other: SeenSigner) -> bool {
        let before = *self;
        match other.epoch.cmp(&self.epoch) {
            std::cmp::Ordering::Less => {}
            std::cmp::Ordering::Greater => *self = SeenSigner { signed: self.signed, ..other },
            std::cmp::Ordering::Equal => {
                self.token = self.token.max(other.token);
                self.nonce = self.nonce.max(other.nonce);
            }
        }
        self.signed = self.signed.max(other.signed);
        *self != before
    }
}

/// The signers by address.
type Signers = BTreeMap<String, SeenSigner>;

/// The text of the file.
#[derive(Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Text {
    /// The database, for people.
    database: String,
    #[serde(default)]
    signers: Signers,
}

#[derive(Default)]
struct State {
    signers: Signers,
    epoch: u64,
    is_changed: bool,
    is_closed: bool,
}

struct Shared {
    path: PathBuf,
    database: String,
    state: Mutex<State>,
    news: Condvar,
}

/// The witness of this process. Dropped, it writes its last news.
pub struct NodeWitness {
    shared: Arc<Shared>,
    writer: Option<JoinHandle<()>>,
}

impl NodeWitness {
    /// Reads the file, or begins one. `database`: its name for ever, also of a copy.
    ///
    /// # Errors
    /// [`WitnessError`].
    pub fn open(data_dir: &Path, database: String) -> Result<NodeWitness, WitnessError> {
        let path = data_dir.join(format!("txm-seen-{:016x}.toml", xxh3_64(database.as_bytes())));
        let failed = |source| WitnessError::Io { path: path.clone(), source };
        DirBuilder::new().mode(0o700).recursive(true).create(data_dir).map_err(failed)?;
        let signers = read(&path)?;
        // A directory that cannot be written is told now, and not at the first payment.
        write(&path, &database, &signers).map_err(failed)?;
        let state = Mutex::new(State { signers, ..State::default() });
        let shared = Arc::new(Shared { path, database, state, news: Condvar::new() });
        let kept = Arc::clone(&shared);
        let writer = thread::Builder::new().name("witness".to_owned());
        let writer = writer
            .spawn(move || keep(&kept))
            .map_err(|source| WitnessError::Io { path: shared.path.clone(), source })?;
        Ok(NodeWitness { shared, writer: Some(writer) })
    }

    /// All that was seen, by the address of the signer.
    pub fn signers(&self) -> BTreeMap<String, SeenSigner> {
        self.shared.state.lock().signers.clone()
    }

    /// The part of one signer that was seen; empty: nothing.
    pub fn signer(&self, signer: Address) -> BTreeMap<String, SeenSigner> {
        let name = address_text(&signer);
        let seen = self.shared.state.lock().signers.get(&name).copied();
        seen.map(|seen| (name, seen)).into_iter().collect()
    }

    /// From now on the numbers are of this epoch. `known`: the database has these signers, so their
    /// tokens and nonces from before this epoch have done their work.
    pub fn enter(&self, epoch: u64, known: &[&str]) {
        let mut guard = self.shared.state.lock();
        let state = &mut *guard;
        state.epoch = state.epoch.max(epoch);
        let begun = SeenSigner { epoch: state.epoch, ..SeenSigner::default() };
        for signer in known.iter().copied() {
            let seen = state.signers.get_mut(signer);
            state.is_changed |= seen.is_some_and(|seen| seen.raise(begun));
        }
        self.shared.news.notify_one();
    }

    /// A commit gave a signer this token.
    pub fn saw_token(&self, signer: Address, token: u64) {
        self.saw(signer, SeenSigner { token, ..SeenSigner::default() });
    }

    /// An attempt of the nonce below is committed.
    pub fn saw_signed(&self, signer: Address, signed: u64) {
        self.saw(signer, SeenSigner { signed, ..SeenSigner::default() });
    }

    /// The next nonce of a signer is committed.
    pub fn saw_nonce(&self, signer: Address, nonce: u64) {
        self.saw(signer, SeenSigner { nonce, ..SeenSigner::default() });
    }

    fn saw(&self, signer: Address, seen: SeenSigner) {
        let mut state = self.shared.state.lock();
        let seen = SeenSigner { epoch: state.epoch, ..seen };
        let is_news = state.signers.entry(address_text(&signer)).or_default().raise(seen);
        if is_news {
            state.is_changed = true;
            self.shared.news.notify_one();
        }
    }
}

impl Drop for NodeWitness {
    fn drop(&mut self) {
        self.shared.state.lock().is_closed = true;
        self.shared.news.notify_one();
        if let Some(writer) = self.writer.take() {
            // It has said why it failed.
            drop(writer.join());
        }
    }
}

/// Writes the news until the witness is closed.
fn keep(shared: &Shared) {
    loop {
        let signers = {
            let mut state = shared.state.lock();
            while !state.is_changed && !state.is_closed {
                shared.news.wait(&mut state);
            }
            if !state.is_changed {
                return;
            }
            state.is_changed = false;
            state.signers.clone()
        };
        let written = merged(&shared.path, signers)
            .and_then(|signers| write(&shared.path, &shared.database, &signers));
        let mut state = shared.state.lock();
        if let Err(error) = written {
            let path = shared.path.display();
            warn!(%error, %path, "the witness is not written: a restored database may not be found");
            // The next round tries again.
            state.is_changed = !state.is_closed;
        }
        if !state.is_closed {
            shared.news.wait_while_for(&mut state, |state| !state.is_closed, WRITE_EVERY);
        }
    }
}

/// These numbers, and those that another process of this directory has written.
fn merged(path: &Path, mut signers: Signers) -> io::Result<Signers> {
    for (signer, seen) in read(path).map_err(io::Error::other)? {
        signers.entry(signer).or_default().raise(seen);
    }
    Ok(signers)
}

fn read(path: &Path) -> Result<Signers, WitnessError> {
    let text = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Signers::new()),
        Err(source) => return Err(WitnessError::Io { path: path.to_owned(), source }),
    };
    let text: Result<Text, _> = toml::from_str(&text);
    let damaged = |source| WitnessError::Damaged { path: path.to_owned(), source };
    text.map(|text| text.signers).map_err(damaged)
}

/// Atomic, and durable on return.
fn write(path: &Path, database: &str, signers: &Signers) -> io::Result<()> {
    let text = Text { database: database.to_owned(), signers: signers.clone() };
    let text = toml::to_string(&text).map_err(io::Error::other)?;
    // Another process of the same directory has a draft of its own.
    let draft = path.with_extension(format!("{}.new", std::process::id()));
    let mut file = wal::create_private(&draft)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    fs::rename(&draft, path)?;
    File::open(path.parent().unwrap_or(Path::new(".")))?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(epoch: u64, token: u64, nonce: u64) -> SeenSigner {
        SeenSigner { epoch, token, nonce, signed: 0 }
    }

    fn open(directory: &Path) -> NodeWitness {
        NodeWitness::open(directory, "a database".to_owned()).expect("a witness")
    }

    #[test]
    fn numbers_rise_within_an_epoch_and_the_signed_nonce_for_ever() {
        let mut kept = seen(1, 3, 7);
        assert!(!kept.raise(seen(1, 2, 5)) && !kept.raise(seen(0, 9, 9)));
        assert!(kept.raise(seen(1, 4, 5)));
        assert_eq!(kept, seen(1, 4, 7));
        assert!(kept.raise(seen(2, 1, 0)));
        assert_eq!(kept, seen(2, 1, 0));
        assert!(kept.raise(SeenSigner { signed: 5, ..seen(1, 9, 9) }) && kept.raise(seen(3, 1, 0)));
        assert_eq!(kept, SeenSigner { signed: 5, ..seen(3, 1, 0) }, "the chain may get them");
    }

    #[test]
    fn a_later_process_reads_the_numbers_of_every_process_before() {
        let directory = tempfile::tempdir().expect("a directory");
        let place = directory.path().join("data");
        let signer = |byte| Address::repeat_byte(byte);
        let (first, second) = (open(&place), open(&place));
        for witness in [&first, &second] {
            witness.enter(1, &[]);
        }
        first.saw_token(signer(1), 4);
        first.saw_nonce(signer(1), 9);
        drop(first);
        second.saw_token(signer(1), 5);
        second.saw_nonce(signer(2), 2);
        drop(second);
        let third = open(&place);
        assert_eq!(third.signer(signer(1)).values().copied().collect::<Vec<_>>(), [seen(1, 5, 9)]);
        assert_eq!(third.signers().len(), 2);
        let other = NodeWitness::open(&place, "another one".to_owned()).expect("a witness");
        assert!(other.signers().is_empty());
        let path = third.shared.path.clone();
        drop(third);
        fs::write(&path, "signers = 7").expect("damaged");
        let refused = NodeWitness::open(&place, "a database".to_owned()).err();
        assert!(matches!(refused, Some(WitnessError::Damaged { .. })), "{refused:?}");
    }
}
