//! Whether log and database belong together, as far as reading both tells.

use std::path::Path;

use engine::snapshot::store::SnapshotStore;
use wal::cut::Survey;
use wal::{Directory, Identity, Sequence};

use crate::postgres::adopt::{Asked, Bound};
use crate::postgres::{self, Address, Limits};
use crate::telemetry::chain;

/// What both stores say of each other.
#[derive(Debug)]
pub(super) struct Pair {
    /// What the database knows of its log, and the last record it knows to have been durable; `None` for a database that
    /// has not been prepared for ubscore.
    pub(super) database: Option<(Bound, Sequence)>,
    /// The log that is there.
    pub(super) log: Log,
}

/// The log that is there.
#[derive(Debug, Default)]
pub(super) struct Log {
    /// By its headers; none where no segment is there or none can be read.
    pub(super) identity: Option<Identity>,
    /// Whether there is any segment.
    pub(super) is_there: bool,
    /// The last sound record; 0 for none.
    pub(super) last: Sequence,
    /// Why it cannot be read from its beginning, or from its newest snapshot on.
    pub(super) unreadable: Option<String>,
}

impl Pair {
    /// Asks PostgreSQL first: whatever it claims by then, the log has had before.
    pub(super) async fn look(
        target: &Address,
        limits: &Limits,
        log: &Path,
        snapshots: &Path,
    ) -> Result<Pair, postgres::Error> {
        let database = Asked::connect(target, limits).await?.claimed().await?;
        Ok(Pair { database, log: Log::look(log, snapshots) })
    }
}

impl Log {
    fn look(log: &Path, snapshots: &Path) -> Log {
        if !log.is_dir() {
            return Log::default();
        }
        let stored = SnapshotStore::at(snapshots).named().unwrap_or_default();
        let from = stored.first().map_or(0, |(sequence, _)| *sequence);
        match Log::walk(log, from) {
            Ok(log) => log,
            Err(error) => Log { is_there: true, unreadable: Some(chain(&error)), ..Log::default() },
        }
    }

    fn walk(log: &Path, from: Sequence) -> Result<Log, wal::Error> {
        let mut survey = Survey::open(Directory::at(log), from, None)?;
        let begins_late = from == 0 && survey.last() > 0;
        while survey.next()?.is_some() {}
        let late = "it does not begin with record 1, and no snapshot stands in it".to_owned();
        Ok(Log {
            identity: survey.identity(),
            is_there: !survey.is_empty(),
            last: survey.last(),
            unreadable: begins_late.then_some(late),
        })
    }
}
