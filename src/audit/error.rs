//! Why a comparison of both stores could not be finished.

use std::path::PathBuf;

use domain::transfer::{Op, ReqId};
use wal::Sequence;

use crate::adapters::spot::Unanswered;
use engine::record;
use engine::{replay, snapshot};

/// A round that could not be finished. It proves nothing, and nothing was kept.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// PostgreSQL.
    #[error("read PostgreSQL")]
    Postgres(#[from] crate::postgres::Error),
    /// UBSCore.
    #[error("ask UBSCore")]
    Spot(#[from] Unanswered),
    /// The log.
    #[error("read the log")]
    Log(#[from] wal::Error),
    /// A snapshot.
    #[error("read a snapshot")]
    Snapshot(#[from] Box<snapshot::Error>),
    /// The log and the database do not belong together.
    #[error(
        "the log has identity {log}, the database belongs to log {database}: they are not a pair"
    )]
    Foreign {
        /// The identity in the headers of the log.
        log: String,
        /// The identity in `engine_state`.
        database: String,
    },
    /// The log ends before the record of the newest snapshot.
    #[error("the log does not hold the record at which {} stands", path.display())]
    Unconfirmed {
        /// The snapshot's file.
        path: PathBuf,
    },
    /// The archive has segments of another log.
    #[error("{} has segments of another log", path.display())]
    ForeignArchive {
        /// The archive's directory.
        path: PathBuf,
    },
    /// The log, as it is replayed.
    #[error("replay the log")]
    Replay(#[from] Box<replay::Error>),
    /// A record of the log holds an operation that belongs to Funding.
    #[error("record {sequence} of the log: {} of transfer {req_id} belongs to Funding", op.name())]
    Misplaced {
        /// The record.
        sequence: Sequence,
        /// The transfer.
        req_id: ReqId,
        /// The operation.
        op: Op,
    },
    /// A record of the log cannot be decoded.
    #[error("record {sequence} of the log")]
    Record {
        /// The record.
        sequence: Sequence,
        /// The reason.
        #[source]
        source: record::Error,
    },
}
