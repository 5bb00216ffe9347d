//! After a cut of the log: the venues that have not sent again all the answers that they have.
//!
//! Only the venues have the commands that the cut took. Until each has sent its own again, no debit
//! that PostgreSQL proves is decided again, and no money moves: a withdrawal may rest on a lost
//! trade, and a new one could take the money of a lost trade.

use std::collections::BTreeMap;
use std::fmt;

use engine::venue::VenueRow;

use crate::postgres::cut::CutVenue;

/// A venue that has not sent again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Awaited {
    venue: u32,
    why: Why,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Why {
    /// The cut took its registration.
    Missing,
    /// It is closed in the log. The cut may have taken its reopening and later trades.
    Closed,
    /// It has opened no session since the cut.
    Silent,
    /// It has answers that the log does not hold.
    Behind { told: u64, last: u64 },
    /// Venues have moved money, and neither store names one.
    Nameless,
    /// It has acknowledged answers above the last one that it names: a part of its journal is lost.
    Forgetful { told: u64, acknowledged: u64 },
}

impl Awaited {
    /// Whether it has sent all that it could behind the credits that were decided last.
    pub fn has_sent(&self, known: &[CutVenue]) -> bool {
        known.iter().any(|of| of.id == self.venue && of.sent)
    }
}

impl fmt::Display for Awaited {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let venue = self.venue;
        match self.why {
            Why::Missing => write!(out, "venue {venue} is not in the log any more: add it again"),
            Why::Closed => write!(out, "venue {venue} is closed in the log: open it"),
            Why::Nameless => {
                write!(out, "venues that neither store names any more: add them again")
            }
            Why::Silent => write!(out, "venue {venue} has opened no session since the cut"),
            Why::Behind { told: known, last } => {
                write!(out, "venue {venue} has answers up to {known}, and the log ends with {last}")
            }
            Why::Forgetful { told: known, acknowledged } => write!(
                out,
                "venue {venue} has named its answers up to {known}, and has acknowledged {acknowledged}: let it open \
                 with its whole journal"
            ),
        }
    }
}

/// The venues that have not sent again, by number. An operator ends the wait for one by a close
/// after the cut. `known`: as PostgreSQL knows them, and whether it knows that there were any.
/// `rows`: as the log has them.
pub fn awaited((known, any): (&[CutVenue], bool), rows: &[VenueRow]) -> Vec<Awaited> {
    if any && known.is_empty() && rows.is_empty() {
        return vec![Awaited { venue: 0, why: Why::Nameless }];
    }
    let mut venues: BTreeMap<u32, (Option<&CutVenue>, Option<&VenueRow>)> = BTreeMap::new();
    for venue in known {
        venues.entry(venue.id).or_default().0 = Some(venue);
    }
    for row in rows {
        venues.entry(row.id).or_default().1 = Some(row);
    }
    let why = |known: Option<&CutVenue>, row: Option<&VenueRow>| {
        let is_closed = row.is_none_or(|row| row.closed);
        let told = known.and_then(|known| known.told);
        let (acknowledged, last) = row.map_or((0, 0), |row| (row.acknowledged, row.last));
        match (told, row) {
            _ if is_closed && known.is_some_and(|known| known.closed) => None,
            (Some(told), Some(_)) if (acknowledged..=last).contains(&told) => None,
            (_, None) => Some(Why::Missing),
            (_, Some(VenueRow { closed: true, .. })) => Some(Why::Closed),
            (Some(told), Some(_)) if told > last => Some(Why::Behind { told, last }),
            (Some(told), Some(_)) => Some(Why::Forgetful { told, acknowledged }),
            (None, Some(_)) => Some(Why::Silent),
        }
    };
    let awaited = venues.into_iter();
    awaited
        .filter_map(|(venue, (known, row))| Some(Awaited { venue, why: why(known, row)? }))
        .collect()
}

#[cfg(test)]
mod tests {
    use engine::text::Text;

    use super::*;

    /// Goal: each way in which a venue may have sent, or not.
    #[test]
    fn a_venue_is_awaited_until_the_log_has_its_last_answer_or_an_operator_closes_it() {
        let known = |told, closed| Some(CutVenue { id: 7, told, closed, sent: false });
        let row = |closed, last: u64| {
            let (id, name, posts, epoch) = (7, Text::EMPTY, false, 1);
            let (acknowledged, oldest) = (last.min(3), None);
            Some(VenueRow { id, name, posts, closed, epoch, last, acknowledged, oldest })
        };
        let behind = Some(Why::Behind { told: 5, last: 4 });
        let forgetful = Some(Why::Forgetful { told: 0, acknowledged: 3 });
        for (known, row, want) in [
            (known(Some(5), false), row(false, 5), None),
            (known(Some(5), false), row(false, 9), None),
            (known(Some(3), false), row(false, 9), None),
            (known(Some(0), false), row(false, 9), forgetful),
            (known(Some(0), false), row(true, 9), Some(Why::Closed)),
            (known(Some(0), true), row(true, 9), None),
            (known(Some(0), false), row(false, 0), None),
            (known(Some(5), false), row(false, 4), behind),
            (known(None, false), row(false, 5), Some(Why::Silent)),
            (None, row(false, 5), Some(Why::Silent)),
            (known(Some(5), false), row(true, 5), None),
            (known(Some(5), false), row(true, 4), Some(Why::Closed)),
            (known(None, false), row(true, 5), Some(Why::Closed)),
            (known(Some(0), false), None, Some(Why::Missing)),
            (None, row(true, 5), Some(Why::Closed)),
            (known(Some(5), false), None, Some(Why::Missing)),
            // Closed by an operator since the cut, and then also in the log.
            (known(Some(5), true), row(true, 4), None),
            (known(None, true), None, None),
            (known(Some(5), true), row(false, 4), behind),
        ] {
            let found = awaited((known.as_slice(), true), row.as_slice());
            let why: Vec<Why> = found.iter().map(|awaited| awaited.why).collect();
            assert_eq!(why, want.into_iter().collect::<Vec<_>>(), "{known:?} {row:?}");
        }
        let nameless = Awaited { venue: 0, why: Why::Nameless };
        for (any, want) in [(true, vec![nameless]), (false, vec![])] {
            assert_eq!(awaited((&[], any), &[]), want);
        }
    }
}
