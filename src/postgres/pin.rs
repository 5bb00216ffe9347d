//! The PostgreSQL server that a process is pinned to.
//!
//! A database can go back in time under a running process: a replica that lags is promoted, a backup is restored in
//! place, a volume is rolled back. So every new connection is checked before its first use:
//!
//! - system identifier and timeline are those that the process is pinned to;
//! - the server's flushed WAL position is not below the highest one seen;
//! - the journal has each shard's last flight whose commit was answered, by its row ([`Flights`]). WAL order makes this
//!   exact: a server that has a shard's last commit has all earlier ones.
//!
//! A difference is a [`Change`]. It ends every connection at once, closes the gate through [`Pin::on_change`], and
//! refuses new connections. Only the audit may then connect, and only to the server that was found. When it has compared
//! everything, [`Pin::accept`] pins the process to that server. A server that was left is never used again.

use std::fmt;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use tokio::sync::watch;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, GenericClient, Row};
use tracing::warn;

use super::Error;
use super::columns::{self, bigint};
use super::flights::{FlightRow, Flights};

/// Which server it is, and which of its histories.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Server {
    /// `pg_control_system().system_identifier`: given by `initdb`, the same on replicas.
    pub system: i64,
    /// Raised by every promotion and point-in-time recovery.
    pub timeline: u32,
}

impl fmt::Display for Server {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "system {} timeline {}", self.system.cast_unsigned(), self.timeline)
    }
}

/// A WAL position as PostgreSQL writes it.
pub fn lsn_text(lsn: u64) -> String {
    format!("{:X}/{:X}", lsn >> 32, lsn & 0xFFFF_FFFF)
}

/// What a server says of itself at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sight {
    /// Which one.
    pub server: Server,
    /// Its flushed WAL position, bytes.
    pub lsn: u64,
    /// The last incarnation that it has given, 0 if that was not read.
    pub incarnation: u64,
    /// The last flight of each shard.
    pub last: Vec<FlightRow>,
    /// The flights that were asked for, and are not in its journal.
    pub missing: Vec<FlightRow>,
}

impl Sight {
    /// Asks a server. `answered`: flights that its journal must have; `None`: nothing of the schema is read.
    ///
    /// # Errors
    /// [`Error`]: it does not answer.
    pub async fn read(client: &Client, answered: Option<&[FlightRow]>) -> Result<Sight, Error> {
        // Right after a promotion pg_control_checkpoint() still has the old timeline; the name of a WAL file has the new.
        let who = "SELECT system_identifier, pg_walfile_name(pg_current_wal_insert_lsn()), \
                     (pg_current_wal_flush_lsn() - '0/0'::pg_lsn)::bigint FROM pg_control_system()";
        let rows = client.query_typed(who, &[]).await?;
        let row = rows.first().ok_or_else(|| unreadable("no row"))?;
        let file: &str = row.try_get(1)?;
        let timeline = file.get(..8).and_then(|digits| u32::from_str_radix(digits, 16).ok());
        let timeline = timeline.ok_or_else(|| unreadable(&format!("WAL file {file}")))?;
        let server = Server { system: row.try_get(0)?, timeline };
        let lsn = columns::count(row, 2, "pg_control_system")?;
        let mut sight =
            Sight { server, lsn, incarnation: 0, last: Vec::new(), missing: Vec::new() };
        if let Some(answered) = answered {
            let incarnation =
                client.query_typed("SELECT incarnation FROM engine_state", &[]).await?;
            let row = incarnation.first().ok_or_else(|| unreadable("no row of engine_state"))?;
            sight.incarnation = columns::count(row, 0, "engine_state")?;
            (sight.last, sight.missing) = journal(client, answered).await?;
        }
        Ok(sight)
    }

    /// What this server lacks of `answered`, the last answered flight of each shard; `None`: nothing. Flights answered
    /// since this sight are compared by their number.
    pub fn lacks(&self, answered: &[FlightRow]) -> Option<String> {
        answered.iter().find(|row| self.is_without(row)).map(|row| lacking(row, &self.last))
    }

    fn is_without(&self, row: &FlightRow) -> bool {
        let last = self.last.iter().find(|last| last.shard == row.shard);
        self.missing.contains(row) || last.map_or(0, |last| last.flight) < row.flight
    }
}

/// The last flight of each shard.
///
/// # Errors
/// [`Error`]: PostgreSQL does not answer.
pub(super) async fn last_flights(client: &impl GenericClient) -> Result<Vec<FlightRow>, Error> {
    let rows = "SELECT shard, flight, incarnation, attempt FROM journal_last";
    flight_rows(&client.query_typed(rows, &[]).await?)
}

/// The last flight of each shard, and those of `answered` that are not in the journal.
///
/// # Errors
/// [`Error`]: PostgreSQL does not answer.
pub(super) async fn journal(
    client: &impl GenericClient,
    answered: &[FlightRow],
) -> Result<(Vec<FlightRow>, Vec<FlightRow>), Error> {
    let last = last_flights(client).await?;
    let found = "SELECT shard, flight, incarnation, attempt FROM journal_tb \
                   JOIN unnest($1::integer[], $2::bigint[]) AS asked (shard, flight) USING (shard, flight)";
    let shards: Vec<i32> = answered.iter().map(|row| row.shard.cast_signed()).collect();
    let flights: Vec<i64> = answered.iter().map(|row| bigint(row.flight)).collect();
    let keys: [(&(dyn ToSql + Sync), Type); 2] =
        [(&shards, Type::INT4_ARRAY), (&flights, Type::INT8_ARRAY)];
    let found = flight_rows(&client.query_typed(found, &keys).await?)?;
    let missing = answered.iter().filter(|row| row.flight > 0 && !found.contains(row));
    Ok((last, missing.copied().collect()))
}

fn flight_rows(rows: &[Row]) -> Result<Vec<FlightRow>, Error> {
    let flight = |row: &Row| {
        Ok(FlightRow {
            shard: row.try_get::<_, i32>(0)?.cast_unsigned(),
            flight: columns::count(row, 1, "journal_tb")?,
            incarnation: columns::count(row, 2, "journal_tb")?,
            attempt: columns::count(row, 3, "journal_tb")?,
        })
    };
    rows.iter().map(flight).collect()
}

/// An answered flight that PostgreSQL lacks, and what it has instead, for people.
pub(super) fn lacking(row: &FlightRow, last: &[FlightRow]) -> String {
    match last.iter().find(|last| last.shard == row.shard) {
        Some(last) => format!("{row} was answered, and PostgreSQL lacks it: it ends at {last}"),
        None => format!("{row} was answered, and PostgreSQL lacks it and its shard"),
    }
}

fn unreadable(what: &str) -> Error {
    Error::Row { table: "pg_control_system", what: what.to_owned() }
}

/// Another server than the one that the process is pinned to, or the same that has gone back.
#[derive(Clone, Debug)]
pub struct Change {
    /// The server until now.
    pub was: Server,
    /// The server that is to be compared with the log.
    pub found: Server,
    /// What differs.
    pub why: String,
    /// What the audit's connection to it has seen first.
    pub sight: Option<Sight>,
    number: u64,
}

impl Change {
    /// Counts the changes of this process.
    pub fn number(&self) -> u64 {
        self.number
    }
}

impl fmt::Display for Change {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Change { was, found, why, .. } = self;
        write!(out, "PostgreSQL was {was} and is {found}: {why}")
    }
}

struct State {
    server: Server,
    /// The highest flushed position seen of it, bytes.
    lsn: u64,
    /// Servers that were left.
    left: Vec<Server>,
    change: Option<Change>,
}

type OnChange = Box<dyn Fn(&Change) + Send + Sync>;

/// See the module. One a process.
pub struct Pin {
    state: Mutex<State>,
    /// Of this process, and the last answered flight of each shard; not before it has begun.
    begun: OnceLock<(u64, Flights)>,
    /// Counts changes. Every connection of an earlier count ends.
    changes: watch::Sender<u64>,
    on_change: OnceLock<OnChange>,
    superseded: watch::Sender<bool>,
    /// Workers with a flight that may be committed and is not noted.
    flying: AtomicUsize,
    /// Commits that may be on no standby, see [`Pin::doubt`].
    doubts: watch::Sender<u64>,
    /// Those of them that a later commit covers.
    covered: watch::Sender<u64>,
}

/// A connection that is about to be checked: what had been seen before it was opened.
pub(super) struct Admission {
    pin: Arc<Pin>,
    /// Ends the connection when it changes.
    pub(super) changes: watch::Receiver<u64>,
    number: u64,
    lsn: u64,
    /// `None`: the process has not begun, and flights are not compared.
    answered: Option<Vec<FlightRow>>,
}

impl Pin {
    /// Pins the process to the server of a first look.
    pub fn new(sight: &Sight) -> Arc<Pin> {
        let Sight { server, lsn, .. } = *sight;
        Arc::new(Pin {
            state: Mutex::new(State { server, lsn, left: Vec::new(), change: None }),
            begun: OnceLock::new(),
            changes: watch::Sender::new(0),
            on_change: OnceLock::new(),
            superseded: watch::Sender::new(false),
            doubts: watch::Sender::new(0),
            covered: watch::Sender::new(0),
            flying: AtomicUsize::new(0),
        })
    }

    /// From here on flights are compared as well. `flights`: the file of this incarnation.
    pub fn begin(&self, incarnation: u64, flights: Flights) {
        // A second call keeps the first.
        self.begun.set((incarnation, flights)).ok();
    }

    /// Has every change reported, from the thread that finds it. The gate must be closed when this returns.
    pub fn on_change(&self, report: impl Fn(&Change) + Send + Sync + 'static) {
        self.on_change.set(Box::new(report)).ok();
        if let Some(change) = self.change() {
            self.report(&change);
        }
    }

    /// A worker sends a flight, or one of its flights has got a known end and is noted. In between,
    /// any read may see what is not noted.
    pub(super) fn flies(&self, flies: bool) {
        match flies {
            true => self.flying.fetch_add(1, Ordering::SeqCst),
            false => self.flying.fetch_sub(1, Ordering::SeqCst),
        };
    }

    /// Whether a flight may be committed and not noted.
    pub(super) fn is_flying(&self) -> bool {
        self.flying.load(Ordering::SeqCst) > 0
    }

    /// Notes that the commit of this flight was answered, before anything of it is told.
    ///
    /// # Errors
    /// The note is not written: nothing of the flight may be told.
    pub(super) fn answered(&self, row: FlightRow) -> io::Result<()> {
        match self.begun.get() {
            Some((_, flights)) => flights.raise(row),
            None => Ok(()),
        }
    }

    /// The last answered flight of each shard, none before the process has begun.
    pub fn flights(&self) -> Vec<FlightRow> {
        self.begun.get().map_or_else(Vec::new, |(_, flights)| flights.rows())
    }

    /// The incarnation of this process, `None` before it has begun.
    pub(super) fn incarnation(&self) -> Option<u64> {
        self.begun.get().map(|(incarnation, _)| *incarnation)
    }

    /// Makes the answered flights durable. Blocks.
    pub fn sync_flights(&self) {
        if let Some((_, flights)) = self.begun.get()
            && let Err(error) = flights.sync()
        {
            warn!(%error, "after a power cut, a start would know earlier flights only");
        }
    }

    /// The server that the process is pinned to, and its highest flushed position seen, bytes.
    pub fn server(&self) -> (Server, u64) {
        let state = self.state.lock();
        (state.server, state.lsn)
    }

    /// The change that is not accepted yet.
    pub fn change(&self) -> Option<Change> {
        self.state.lock().change.clone()
    }

    /// Counts changes.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Becomes true when another process is known to have taken over.
    pub fn is_superseded(&self) -> watch::Receiver<bool> {
        self.superseded.subscribe()
    }

    /// Pins the process to the server of `change`, which has been compared. Returns false if there was another change
    /// meanwhile.
    pub fn accept(&self, change: &Change) -> bool {
        let mut state = self.state.lock();
        let Some(Change { sight: Some(sight), .. }) =
            state.change.take_if(|now| now.number == change.number && now.sight.is_some())
        else {
            return false;
        };
        if state.server != sight.server {
            let left = state.server;
            state.left.push(left);
        }
        (state.server, state.lsn) = (sight.server, sight.lsn);
        if let Some((_, flights)) = self.begun.get()
            && let Err(error) = flights.set(&sight.last)
        {
            warn!(%error, "the next start may ask for flights of the server before");
        }
        true
    }

    /// What a new connection is checked by.
    ///
    /// # Errors
    /// [`Error::Changed`]: no connection is to be opened now.
    pub(super) fn ask(self: &Arc<Pin>, examines: bool) -> Result<Admission, Error> {
        let answered = self.begun.get().map(|(_, flights)| flights.rows());
        let changes = self.changes.subscribe();
        let state = self.state.lock();
        let lsn = match &state.change {
            Some(change) if !examines => return Err(Error::Changed(change.to_string())),
            Some(change) => change.sight.as_ref().map_or(0, |sight| sight.lsn),
            None => state.lsn,
        };
        let number = *changes.borrow();
        Ok(Admission { pin: Arc::clone(self), changes, number, lsn, answered })
    }

    /// Notes a look at the server over a connection that was admitted before.
    ///
    /// # Errors
    /// [`Error::Superseded`]: another process has taken over.
    pub fn note(&self, sight: &Sight) -> Result<(), Error> {
        self.note_incarnation(sight)?;
        let mut state = self.state.lock();
        if state.change.is_none() && state.server == sight.server {
            state.lsn = state.lsn.max(sight.lsn);
        }
        Ok(())
    }

    fn note_incarnation(&self, sight: &Sight) -> Result<(), Error> {
        match self.begun.get() {
            Some((incarnation, _)) if sight.incarnation > *incarnation => {
                self.superseded.send_replace(true);
                Err(Error::Superseded)
            }
            Some(_) | None => Ok(()),
        }
    }

    fn report(&self, change: &Change) {
        if let Some(report) = self.on_change.get() {
            report(change);
        }
    }

    /// A commit of this process may be on no standby: its wait for one was cancelled.
    pub(super) fn doubt(&self) {
        self.doubts.send_modify(|doubts| *doubts += 1);
    }

    /// Commits in doubt so far; tells of each.
    pub fn doubts(&self) -> watch::Receiver<u64> {
        self.doubts.subscribe()
    }

    /// A commit that began when there were `doubts` has been waited for to its end. WAL is replicated in order, so every
    /// earlier commit is where this one is.
    pub fn cover(&self, doubts: u64) {
        self.covered.send_modify(|covered| *covered = doubts.max(*covered));
    }

    /// Commits in doubt that are covered.
    pub fn covered(&self) -> u64 {
        *self.covered.borrow()
    }

    /// Waits until every commit in doubt is covered.
    pub(super) async fn certain(&self) {
        let mut covered = self.covered.subscribe();
        // The sender lives as long as we do.
        drop(covered.wait_for(|covered| *covered >= *self.doubts.borrow()).await);
    }
}

impl Admission {
    /// What [`Sight::read`] asks for.
    pub(super) fn answered(&self) -> Option<&[FlightRow]> {
        self.answered.as_deref()
    }

    /// Lets the connection be used, if the server is the one that it must be.
    ///
    /// # Errors
    /// [`Error::Changed`]: it must not be used, and every other one has ended. [`Error::Superseded`].
    pub(super) fn admit(&self, sight: Sight) -> Result<(), Error> {
        let pin = &*self.pin;
        let change = {
            let mut state = pin.state.lock();
            if *pin.changes.borrow() != self.number {
                let why = state.change.as_ref().map_or_else(String::new, ToString::to_string);
                return Err(Error::Changed(why));
            }
            let why = match state.change.clone() {
                None => match self.differs(&state, &sight) {
                    None => {
                        pin.note_incarnation(&sight)?;
                        state.lsn = state.lsn.max(sight.lsn);
                        return Ok(());
                    }
                    Some(why) => why,
                },
                Some(now) if sight.server == now.found && sight.lsn >= self.lsn => {
                    state.change.get_or_insert(now).sight.get_or_insert(sight);
                    return Ok(());
                }
                // The server to compare is not the one that answers here.
                Some(now) if older(&sight.server, &now.found, &state.left) => {
                    return Err(Error::Changed(format!("{now}; {} answers", sight.server)));
                }
                Some(_) => "it has changed again".to_owned(),
            };
            let (was, answers) = (state.server, sight.server);
            // A server of an older history is not gone to: the newer one is compared once more.
            let (found, why) = match older(&answers, &was, &state.left) {
                true => (was, format!("{answers} answers too, which is older")),
                false => (answers, why),
            };
            let change = Change { was, found, why, sight: None, number: self.number + 1 };
            state.change = Some(change.clone());
            // The gate is closed before the comparison learns of the change, and changes are reported in their order.
            pin.report(&change);
            pin.changes.send_replace(change.number);
            change
        };
        Err(Error::Changed(change.to_string()))
    }

    /// What is wrong with the server; `None`: nothing.
    fn differs(&self, state: &State, sight: &Sight) -> Option<String> {
        let Sight { server, lsn, .. } = sight;
        if *server != state.server {
            return Some("another server or history answers".to_owned());
        }
        if *lsn < self.lsn {
            let (here, seen) = (lsn_text(*lsn), lsn_text(self.lsn));
            return Some(format!(
                "its WAL ends at {here}, and had come to {seen}: it has gone back"
            ));
        }
        let lacks = self.answered.as_ref().and_then(|answered| sight.lacks(answered));
        lacks.map(|lacks| format!("{lacks}: it has gone back"))
    }
}

/// Whether a server is one that was left, or an earlier history of `than`.
fn older(server: &Server, than: &Server, left: &[Server]) -> bool {
    left.contains(server) || (server.system == than.system && server.timeline < than.timeline)
}

#[cfg(test)]
mod tests {
    use tempfile::tempdir;

    use super::*;

    fn row(flight: u64) -> FlightRow {
        FlightRow { shard: 0, flight, incarnation: 5, attempt: 70 + flight }
    }

    /// `flight`: the last one. The journal has all before it.
    fn sight(timeline: u32, lsn: u64, flight: u64) -> Sight {
        let server = Server { system: 7, timeline };
        Sight { server, lsn, incarnation: 5, last: vec![row(flight)], missing: Vec::new() }
    }

    fn pinned() -> Arc<Pin> {
        let directory = tempdir().expect("a directory");
        let pin = Pin::new(&sight(1, 100, 0));
        // The open file outlives its name.
        pin.begin(5, Flights::create(directory.path(), 5, &[row(0)]).expect("a file"));
        pin
    }

    fn connect(pin: &Arc<Pin>, sight: Sight) -> Result<(), Error> {
        pin.ask(false)?.admit(sight)
    }

    fn examine(pin: &Arc<Pin>, sight: Sight) -> Result<(), Error> {
        pin.ask(true)?.admit(sight)
    }

    #[test]
    fn a_server_that_goes_on_is_used_and_one_that_has_gone_back_is_not() {
        let pin = pinned();
        connect(&pin, sight(1, 100, 0)).expect("the same");
        pin.answered(row(3)).expect("written");
        connect(&pin, sight(1, 200, 4)).expect("further on");
        // By position, by commit.
        for back in [sight(1, 150, 4), sight(1, 300, 2)] {
            let pin = pinned();
            pin.answered(row(3)).expect("written");
            connect(&pin, sight(1, 200, 4)).expect("further on");
            assert!(matches!(connect(&pin, back), Err(Error::Changed(_))));
            assert!(pin.change().is_some());
        }
        // By the row: the number is in use, by another flight.
        let pin = pinned();
        pin.answered(row(3)).expect("written");
        let climbed = Sight { missing: vec![row(3)], ..sight(1, 300, 9) };
        let refused = connect(&pin, climbed).expect_err("not that flight").to_string();
        assert!(refused.contains("flight 3 of shard 0 (incarnation 5, attempt 73)"), "{refused}");
    }

    #[test]
    fn an_accepted_server_is_compared_by_its_own_flights() {
        let pin = pinned();
        pin.answered(row(8)).expect("written");
        assert!(connect(&pin, sight(2, 200, 4)).is_err());
        let change = pin.change().expect("a change");
        examine(&pin, sight(2, 200, 4)).expect("the audit");
        assert!(pin.accept(&change));
        assert_eq!(pin.flights(), [row(4)]);
        connect(&pin, sight(2, 300, 4)).expect("nothing is missing now");
    }

    #[test]
    fn after_a_change_nobody_connects_until_it_is_compared() {
        let pin = pinned();
        let (changes, late) = (pin.changes(), pin.ask(false).expect("no change yet"));
        assert!(connect(&pin, sight(2, 200, 9)).is_err());
        assert!(changes.has_changed().expect("the pin lives"), "every connection ends");
        assert!(late.admit(sight(1, 200, 9)).is_err(), "begun before the change");
        assert!(connect(&pin, sight(1, 300, 9)).is_err(), "the old server");
        assert!(connect(&pin, sight(2, 300, 9)).is_err(), "not even the new one");
        let change = pin.change().expect("a change");
        assert!(!pin.accept(&change), "nobody has looked at it");
        assert!(examine(&pin, sight(1, 300, 9)).is_err(), "the server to compare is the new one");
        examine(&pin, sight(2, 300, 9)).expect("the audit");
        assert!(pin.accept(&change));
        connect(&pin, sight(2, 300, 9)).expect("pinned now");
        // The old one again: never gone back to, and the new one is compared once more.
        assert!(connect(&pin, sight(1, 900, 9)).is_err());
        let change = pin.change().expect("another change");
        assert_eq!(change.found.timeline, 2, "{change}");
        examine(&pin, sight(2, 400, 9)).expect("the audit");
        assert!(pin.accept(&change));
        connect(&pin, sight(2, 400, 9)).expect("as before");
    }

    #[test]
    fn a_change_during_the_comparison_begins_it_again() {
        let pin = pinned();
        assert!(connect(&pin, sight(2, 200, 0)).is_err());
        let first = pin.change().expect("a change");
        examine(&pin, sight(2, 200, 0)).expect("the audit");
        assert!(examine(&pin, sight(3, 200, 0)).is_err(), "promoted once more");
        assert!(!pin.accept(&first));
        let second = pin.change().expect("the later one");
        examine(&pin, sight(3, 200, 0)).expect("the audit");
        assert!(pin.accept(&second));
        assert_eq!(pin.server().0.timeline, 3);
    }

    #[test]
    fn a_later_incarnation_is_told_at_once() {
        let pin = pinned();
        let superseded = pin.is_superseded();
        let later = Sight { incarnation: 6, ..sight(1, 200, 0) };
        assert!(matches!(connect(&pin, later), Err(Error::Superseded)));
        assert!(*superseded.borrow());
    }
}
