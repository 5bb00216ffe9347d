//! The registration of a venue, its sessions, and its end.

use crate::entry::{Entry, VenueEntry};
use crate::fact::{VENUE_NAME_BYTES_MAX, VenueFact};
use crate::ledger::{Answer, Ledger, Step};
use crate::places::VENUES_MAX;
use crate::text::Text;
use crate::venue::OpenError;
use crate::venues::Venue;

/// The most by which an Open raises the epoch. Without it one Open could take the last epoch, and
/// no session would follow.
const EPOCHS_AHEAD: u64 = 1 << 32;

/// Decides a registration. A repeat must have the same fields.
pub(super) fn step_add(
    ledger: &Ledger,
    id: u32,
    name: Text<VENUE_NAME_BYTES_MAX>,
    posts: bool,
) -> Step {
    match ledger.venues.get(id) {
        Some(known) if (known.name, known.posts) == (name, posts) => Step::Known(Answer::Done),
        Some(_) => refused(OpenError::Conflict),
        None if id == 0 || name.length() == 0 => refused(OpenError::Conflict),
        None if ledger.venues.places_left() == 0 => Step::Full(VENUES_MAX),
        None => append(VenueEntry { id, epoch: 0, closed: false, posts, name }),
    }
}

/// Decides a close or a reopening by an operator.
pub(super) fn step_close(ledger: &Ledger, id: u32, closed: bool) -> Step {
    match ledger.venues.get(id) {
        None => refused(OpenError::Unknown),
        Some(venue) if venue.closed == closed => Step::Known(Answer::Done),
        Some(&Venue { posts, name, .. }) => {
            append(VenueEntry { id, epoch: 0, closed, posts, name })
        }
    }
}

/// Decides an Open.
pub(super) fn step_open(ledger: &Ledger, id: u32, epoch: u64, told: u64) -> Step {
    let Some(venue) = ledger.venues.get(id) else { return refused(OpenError::Unknown) };
    let (last, current) = (venue.last(), venue.epoch);
    let next = match epoch {
        0 => current.checked_add(1),
        epoch => Some(epoch).filter(|epoch| *epoch > current),
    };
    match next {
        _ if venue.closed => refused(OpenError::Closed),
        None => refused(OpenError::Fenced { epoch: current }),
        Some(epoch) if epoch - current > EPOCHS_AHEAD => {
            refused(OpenError::TooHigh { epoch: current })
        }
        // Nothing is recorded: the service must halt first.
        Some(_) if told > last => refused(OpenError::AheadOfLog { told, last }),
        Some(epoch) => {
            let Venue { posts, name, closed, .. } = *venue;
            append(VenueEntry { id, epoch, closed, posts, name })
        }
    }
}

/// Carries out [`Entry::Venue`].
pub(super) fn apply(ledger: &mut Ledger, entry: &VenueEntry) -> Answer {
    let VenueEntry { id, epoch, closed, posts, name } = *entry;
    let Some(venue) = ledger.venues.get_mut(id) else {
        let fact = VenueFact { id, epoch, acknowledged: 0, closed, posts, name };
        assert!(ledger.venues.insert(fact), "step_add has found a place");
        let fact = ledger.venues.get(id).expect("inserted").fact();
        ledger.exchange(None, fact);
        return Answer::Done;
    };
    let before = venue.fact();
    venue.closed = closed;
    let answer = match epoch {
        0 => Answer::Done,
        epoch => {
            venue.epoch = epoch;
            let (last, acknowledged) = (venue.last(), venue.acknowledged);
            Answer::Opened { epoch, last, acknowledged }
        }
    };
    let after = venue.fact();
    ledger.exchange(Some(before), after);
    answer
}

fn append(entry: VenueEntry) -> Step {
    Step::Append(Entry::Venue(entry))
}

fn refused(error: OpenError) -> Step {
    Step::Known(Answer::NotOpened(error))
}
