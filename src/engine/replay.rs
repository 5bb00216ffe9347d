//! Rebuilds the ledger from the log: every record is decided again and must come out as it is recorded.
//!
//! A start and the folding of a snapshot go the same way, from nothing or from an older snapshot.

use std::path::PathBuf;

use wal::{Record, Sequence};

use super::ledger::{Ledger, Places, Step};
use super::order::{self, Command, Entry};
use super::snapshot::{self, Snapshot};

/// A log that this program cannot have written, or not with this configuration.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A record's payload cannot be read.
    #[error("record {sequence}")]
    Payload {
        /// Which record.
        sequence: wal::Sequence,
        /// Why.
        #[source]
        source: order::Error,
    },
    /// The record says one thing, the state before it another.
    #[error("record {sequence} holds {found:?}, but deciding it again gives {decided:?}")]
    Mismatch {
        /// Which record.
        sequence: wal::Sequence,
        /// What the log holds.
        found: Box<Entry>,
        /// What this program decides.
        decided: Box<Step>,
    },
    /// There are more outcomes in the log than places.
    #[error("record {sequence}: engine.outcomes_max is too small for this log")]
    OutcomesFull {
        /// The first record without a place.
        sequence: wal::Sequence,
    },
    /// The snapshot's digest is not that of the record at which it stands: one of the two is not what was written.
    #[error(
        "{} adds up to {digest:032x}, but record {sequence} of the log holds {found:?}",
        path.display()
    )]
    Digest {
        /// The snapshot's file.
        path: PathBuf,
        /// What its facts add up to.
        digest: u128,
        /// The record at which it stands.
        sequence: Sequence,
        /// What the log holds there.
        found: Box<Entry>,
    },
}

/// A ledger on its way through the log.
pub struct Replay {
    ledger: Ledger,
    /// The snapshot it began with, until the log has confirmed it.
    unconfirmed: Option<Snapshot>,
}

impl Replay {
    /// From the beginning.
    pub fn from_nothing(places: Places) -> Replay {
        Replay { ledger: Ledger::new(places), unconfirmed: None }
    }

    /// From a snapshot, which the first record replayed must confirm.
    ///
    /// # Errors
    /// [`snapshot::Error`].
    pub fn from_snapshot(
        snapshot: Snapshot,
        places: Places,
    ) -> Result<Replay, snapshot::Error> {
        let ledger = snapshot.ledger(places)?;
        Ok(Replay { ledger, unconfirmed: Some(snapshot) })
    }

    /// Goes past one record. A snapshot's own record comes first.
    ///
    /// # Errors
    /// [`Error`]: the log, or the snapshot, must not be used.
    pub fn take(&mut self, record: &Record<'_>) -> Result<(), Error> {
        let Some(snapshot) = self.unconfirmed.take() else {
            return replay(&mut self.ledger, record);
        };
        let sequence = record.sequence;
        assert_eq!(sequence, snapshot.header.sequence, "a snapshot's own record comes first");
        let entry = Entry::decode(record.kind, record.payload)
            .map_err(|source| Error::Payload { sequence, source })?;
        let digest = snapshot.header.digest;
        if entry != (Entry::Digest { digest }) {
            let (path, found) = (snapshot.path, Box::new(entry));
            return Err(Error::Digest { path, digest, sequence, found });
        }
        Ok(())
    }

    /// The snapshot it began with, as long as the log has not confirmed it.
    pub fn unconfirmed(&self) -> Option<&Snapshot> {
        self.unconfirmed.as_ref()
    }

    /// What has come out.
    ///
    /// Panics while the snapshot it began with is unconfirmed.
    pub fn ledger(self) -> Ledger {
        assert_eq!(self.unconfirmed, None, "the log has not confirmed it");
        self.ledger
    }
}

/// Replays one record.
///
/// # Errors
/// [`Error`]: the log must not be used.
pub fn replay(ledger: &mut Ledger, record: &Record<'_>) -> Result<(), Error> {
    let sequence = record.sequence;
    let entry = Entry::decode(record.kind, record.payload)
        .map_err(|source| Error::Payload { sequence, source })?;
    let command = match entry {
        Entry::Order { order, .. } => Command::Order(order),
        Entry::AccountStatus { user, status } => Command::SetStatus { user, status },
        Entry::Asset { asset, precision, symbol } => {
            Command::RegisterAsset { asset, precision, symbol }
        }
        Entry::Watermark { order_number } => Command::RaiseWatermark { order_number },
        Entry::Digest { .. } => Command::Digest,
        Entry::Mark => {
            ledger.apply(&entry, sequence, record.time_ns);
            return Ok(());
        }
    };
    match ledger.step(&command) {
        Step::Append(decided) if decided == entry => {
            ledger.apply(&entry, sequence, record.time_ns);
            Ok(())
        }
        Step::Full => Err(Error::OutcomesFull { sequence }),
        decided => {
            Err(Error::Mismatch { sequence, found: Box::new(entry), decided: Box::new(decided) })
        }
    }
}
