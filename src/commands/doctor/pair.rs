//! Whether log and database belong together, by reading both.

use std::path::Path;

use engine::snapshot::store::SnapshotStore;
use wal::cut::Survey;
use wal::{Directory, Identity, Sequence};

use crate::postgres::adopt::{Asked, Bound};
use crate::postgres::recover;
use crate::postgres::{self, Address, Limits};
use crate::telemetry::chain;

/// The records of both stores about each other.
#[derive(Debug)]
pub(super) struct Pair {
    /// The log that the database is bound to, and the last record that it recorded as durable.
    /// `None`: the database has no ubscore schema.
    pub(super) database: Option<(Bound, Sequence)>,
    /// Whether recharges must be recovered behind a restore.
    pub(super) recover_needed: bool,
    /// The log in the data directory.
    pub(super) log: Log,
}

/// The log in the data directory.
#[derive(Debug, Default)]
pub(super) struct Log {
    /// The identity in its headers; `None` if there is no readable segment.
    pub(super) identity: Option<Identity>,
    /// Whether a segment exists.
    pub(super) is_there: bool,
    /// The last sound record; 0 for none.
    pub(super) last: Sequence,
    /// The reason that it cannot be read from its beginning or from its newest snapshot.
    pub(super) unreadable: Option<String>,
}

impl Pair {
    /// Reads PostgreSQL first: the log already holds every record that PostgreSQL knows by then.
    pub(super) async fn look(
        target: &Address,
        limits: &Limits,
        log: &Path,
        snapshots: &Path,
    ) -> Result<Pair, postgres::Error> {
        let database = Asked::connect(target, limits).await?.claimed().await?;
        let recover_needed = database.is_some() && recover::is_marked(target, limits).await?;
        Ok(Pair { database, recover_needed, log: Log::look(log, snapshots) })
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
        let late = "it does not begin with record 1, and no snapshot continues it".to_owned();
        Ok(Log {
            identity: survey.identity(),
            is_there: !survey.is_empty(),
            last: survey.last(),
            unreadable: begins_late.then_some(late),
        })
    }
}
