//! The end of a log, or its damage: as text, and as JSON objects.
//!
//! The name of a kind is stable; the sentence beside it may change.

use std::fmt::{self, Display};

use serde::Serialize;
use wal::{Claim, Ending, Place, SEGMENT_HEADER_BYTES, Torn};

use super::error::Error;
use super::integer::Integer;

/// Damage in a log.
pub(super) struct Damage<'a> {
    /// The kind, a stable name.
    pub(super) kind: &'static str,
    /// The first bad place.
    pub(super) place: &'a Place,
    /// The evidence that the record at the place was durable, if there is any.
    claim: Option<Claim>,
    /// A sentence that names the place.
    pub(super) reason: String,
}

impl Error {
    /// The damage in the log and its place; `None` for other errors.
    pub(super) fn damage(&self) -> Option<Damage<'_>> {
        match self {
            Error::Payload { place, source, .. } => {
                let reason = format!("undecodable record at {place}: {source}");
                Some(Damage { kind: "undecodable_record", place, claim: None, reason })
            }
            Error::Log { source, .. } => {
                let kind = kind(source)?;
                let claim = match source {
                    wal::Error::Damaged { claim, .. } => Some(*claim),
                    _ => None,
                };
                Some(Damage { kind, place: source.place()?, claim, reason: source.to_string() })
            }
            _ => None,
        }
    }
}

/// The kind of an error, if it is damage.
fn kind(error: &wal::Error) -> Option<&'static str> {
    match error {
        wal::Error::Damaged { claim: Claim::Length { .. }, .. } => Some("short_segment"),
        wal::Error::Damaged { .. } => Some("below_durable_mark"),
        wal::Error::Missing { .. } => Some("missing_segment"),
        wal::Error::Header { file_bytes: 0, .. } => Some("empty_segment"),
        wal::Error::Header { file_bytes: ..SEGMENT_HEADER_BYTES, .. } => Some("short_header"),
        wal::Error::Header { .. } => Some("bad_header"),
        wal::Error::Version { .. } => Some("unknown_version"),
        wal::Error::Foreign { .. } => Some("foreign_segment"),
        wal::Error::Order { .. } => Some("out_of_order"),
        wal::Error::Chain { .. } => Some("broken_chain"),
        _ => None,
    }
}

/// The kind of an end.
pub(super) fn ending_kind(ending: &Ending) -> &'static str {
    match ending {
        Ending::Clean => "clean",
        Ending::Torn(_) => "torn_tail",
    }
}

/// The value of the field `ending`.
pub(super) fn ending_name(ending: &Ending) -> &'static str {
    match ending {
        Ending::Clean => "clean",
        Ending::Torn(_) => "torn",
    }
}

/// An end as text.
pub(super) struct EndingText<'a>(pub(super) &'a Ending);

impl Display for EndingText<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Ending::Clean => out.write_str("ending=clean"),
            Ending::Torn(Torn { place, bytes, records }) => write!(
                out,
                "ending=torn at {place}: {bytes} bytes, {records} whole records among them, \
                 never acknowledged"
            ),
        }
    }
}

#[derive(Serialize)]
struct PlaceObject<'a> {
    file: &'a str,
    offset: Integer,
    sequence: Integer,
}

impl<'a> PlaceObject<'a> {
    fn of(place: &'a Place) -> PlaceObject<'a> {
        PlaceObject {
            file: &place.file,
            offset: place.offset.into(),
            sequence: place.sequence.into(),
        }
    }
}

/// A torn end in JSON.
#[derive(Serialize)]
pub(super) struct TornObject<'a> {
    #[serde(flatten)]
    at: PlaceObject<'a>,
    bytes: Integer,
    records: Integer,
}

impl<'a> TornObject<'a> {
    /// `None` for another end.
    pub(super) fn of(ending: &'a Ending) -> Option<TornObject<'a>> {
        let Ending::Torn(Torn { place, bytes, records }) = ending else { return None };
        Some(TornObject {
            at: PlaceObject::of(place),
            bytes: (*bytes).into(),
            records: (*records).into(),
        })
    }
}

/// A damage in JSON.
#[derive(Serialize)]
pub(super) struct DamageObject<'a> {
    kind: &'static str,
    #[serde(flatten)]
    at: PlaceObject<'a>,
    /// The evidence that the record at the place was durable: `record`, `header` or `length`.
    claimed_by: Option<&'static str>,
    reason: &'a str,
}

impl<'a> DamageObject<'a> {
    pub(super) fn of(damage: &'a Damage<'_>) -> DamageObject<'a> {
        let claimed_by = damage.claim.map(|claim| match claim {
            Claim::Caller(_) => "caller",
            Claim::Record { .. } => "record",
            Claim::Header { .. } => "header",
            Claim::Length { .. } => "length",
        });
        let Damage { kind, place, reason, .. } = damage;
        DamageObject { kind, at: PlaceObject::of(place), claimed_by, reason }
    }
}
