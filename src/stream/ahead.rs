//! A venue with answers that the log does not hold.

use std::collections::BTreeMap;

use engine::VenueSession;
use engine::venue::OpenError;
use parking_lot::Mutex;
use tracing::info;

use crate::alert::{Alert, alert_about};

/// Halts the service for a reason, which is added to that of an earlier halt.
type HaltFor = Box<dyn Fn(String) + Send + Sync>;
/// Records the last answer of a venue. Returns false if PostgreSQL has not.
type Note = Box<dyn Fn(u32, u64) -> bool + Send + Sync>;
/// Whether venues may send lost numbers again.
type Resends = Box<dyn Fn() -> bool + Send + Sync>;

/// Opens sessions, and halts the service for a venue with answers that the log does not hold.
pub struct Ahead {
    halt: HaltFor,
    note: Note,
    resends: Resends,
    /// The highest answer for which each venue has halted this process.
    found: Mutex<BTreeMap<u32, u64>>,
}

impl Ahead {
    /// `note` records the last answer of a venue while a cut of the log is open, and waits for
    /// PostgreSQL.
    pub fn new(halt: HaltFor, note: Note, resends: Resends) -> Ahead {
        Ahead { halt, note, resends, found: Mutex::default() }
    }

    /// Opens a session. If the log has lost answers that the venue knows, and no cut explains it,
    /// it halts the service first. The venue learns from [`Opened`](engine::venue::Opened) where
    /// the log ends, and sends the lost commands again. It waits for a sync.
    ///
    /// # Errors
    /// As [`engine::Handle::open_venue`], without [`OpenError::AheadOfLog`].
    pub fn open(
        &self,
        engine: &engine::Handle,
        venue: u32,
        epoch: u64,
        told: u64,
    ) -> Result<VenueSession, OpenError> {
        let session = match engine.open_venue(venue, epoch, told) {
            Err(OpenError::AheadOfLog { told, last }) => {
                self.find(venue, told, last);
                engine.open_venue_ahead(venue, epoch, told)
            }
            opened => opened,
        }?;
        // Behind the Open, which may be refused. Before the caller has the session: a number must
        // not be decided before the repair of a cut knows the venue's last. Earlier sessions have
        // ended with the Open.
        match (self.note)(venue, told) {
            true => Ok(session),
            false => Err(OpenError::Unnoted),
        }
    }

    /// Halts the service, once for the same answers.
    fn find(&self, venue: u32, told: u64, last: u64) {
        if (self.resends)() {
            info!(venue, told, last, "a venue sends again what a cut of the log has lost");
            return;
        }
        let mut found = self.found.lock();
        if found.get(&venue).is_some_and(|known| told <= *known) {
            info!(venue, told, last, "a venue sends again, as it was found before");
            return;
        }
        let known = told;
        let reason =
            format!("venue {venue} has answers up to {known}, and the log ends with {last}");
        let about = format_args!("venue {venue}");
        alert_about(Alert::VenueAheadOfLog, &about, format_args!("{reason}"));
        (self.halt)(reason);
        found.insert(venue, told);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tempfile::tempdir;

    use super::*;
    use crate::stream::session::tests::engine;

    /// Story: the last answer was noted before each Open, also of a session that did not begin, and
    /// the repair of a cut waited for numbers that no venue had. Goal: a refused Open is not noted,
    /// and an accepted one before its session begins.
    #[test]
    fn only_an_accepted_open_is_noted_and_before_its_session_begins() {
        let dir = tempdir().expect("a directory");
        let engine = engine(dir.path());
        let handle = engine.handle();
        handle.add_venue(7, "book", false).expect("a place");
        let noted = Arc::new(Mutex::new(Vec::new()));
        let (notes, halts) = (Arc::clone(&noted), Arc::new(Mutex::new(0)));
        let halted = Arc::clone(&halts);
        let ahead = Ahead::new(
            Box::new(move |_| *halted.lock() += 1),
            Box::new(move |venue, told| {
                notes.lock().push((venue, told));
                told != 13
            }),
            Box::new(|| false),
        );
        let open = |venue, epoch, told| ahead.open(&handle, venue, epoch, told).err();
        assert_eq!(open(8, 5, 9), Some(OpenError::Unknown));
        assert_eq!(open(7, 5, 0), None);
        assert_eq!(open(7, 5, 9), Some(OpenError::Fenced { epoch: 5 }));
        assert_eq!(open(7, 4, 9), Some(OpenError::Fenced { epoch: 5 }));
        assert_eq!(*noted.lock(), [(7, 0)]);
        assert_eq!(open(7, 6, 12), None);
        assert_eq!((&**noted.lock(), *halts.lock()), (&[(7, 0), (7, 12)][..], 1));
        // PostgreSQL is away: the session does not begin, and the next epoch is free.
        assert_eq!(open(7, 7, 13), Some(OpenError::Unnoted));
        let session = ahead.open(&handle, 7, 0, 12).expect("opened");
        assert_eq!(session.opened().epoch, 8);
        drop(session);
        engine.stop();
    }
}
