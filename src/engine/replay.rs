//! Rebuilds the ledger from the log: every record is decided again and must come out as it is recorded.

use wal::Record;

use super::ledger::{FORGET_LEAVES, FORGET_LOOKS, Ledger, Step};
use super::order::{self, Command, Entry};

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
    /// There is more in the log than places.
    #[error("record {sequence}: {key} is too small for this log")]
    Full {
        /// The first record without a place.
        sequence: wal::Sequence,
        /// Which places.
        key: &'static str,
    },
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
    let mut step = ledger.step(&command);
    if step != Step::Append(entry) {
        // Whoever wrote this may have forgotten more: what is below the watermark must not stand in its way.
        ledger.forget_all();
        step = ledger.step(&command);
    }
    match step {
        Step::Append(decided) if decided == entry => {
            ledger.apply(&entry, sequence, record.time_ns);
            ledger.forget(FORGET_LOOKS, FORGET_LEAVES);
            Ok(())
        }
        Step::Full(key) => Err(Error::Full { sequence, key }),
        decided => {
            Err(Error::Mismatch { sequence, found: Box::new(entry), decided: Box::new(decided) })
        }
    }
}
