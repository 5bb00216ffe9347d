//! Counts of a log that was read: as text, and as a JSON object.

use serde::Serialize;
use wal::{Identity, Passed, Sequence};

use super::integer::Integer;

/// Counts of a log that was read.
#[derive(Clone, Copy, Default)]
pub(super) struct Read {
    /// Its identity.
    pub(super) log: Option<Identity>,
    /// Segments that were read.
    pub(super) segments: u64,
    pub(super) passed: Passed,
    pub(super) records: u64,
    pub(super) first: Option<Sequence>,
    pub(super) last: Option<Sequence>,
}

impl Read {
    /// Counts of zero are left out.
    pub(super) fn text(&self) -> String {
        let sequence = |sequence: Option<Sequence>| match sequence {
            Some(sequence) => sequence.to_string(),
            None => "-".to_owned(),
        };
        let (first, last) = (sequence(self.first), sequence(self.last));
        let (records, segments) = (self.records, self.segments);
        let mut text = format!("records={records} first={first} last={last} segments={segments}");
        for (name, count) in
            [("cut_tails", self.passed.cut_tails), ("short_segments", self.passed.short_segments)]
        {
            if count > 0 {
                text.push_str(&format!(" {name}={count}"));
            }
        }
        text
    }

    pub(super) fn object(&self) -> ReadObject {
        let Passed { cut_tails, cut_bytes, cut_records, short_segments, .. } = self.passed;
        ReadObject {
            log: self.log.map(|log| log.to_string()),
            records: self.records.into(),
            first: self.first.map(Integer::from),
            last: self.last.map(Integer::from),
            segments: self.segments.into(),
            cut: CutObject {
                tails: cut_tails.into(),
                bytes: cut_bytes.into(),
                records: cut_records.into(),
            },
            short_segments: short_segments.into(),
        }
    }
}

/// Counts of a log that was read, in JSON.
#[derive(Serialize)]
pub(super) struct ReadObject {
    log: Option<String>,
    records: Integer,
    first: Option<Integer>,
    last: Option<Integer>,
    segments: Integer,
    /// Tails that earlier recoveries cut off.
    cut: CutObject,
    /// Segments that lost only zeros at their end.
    short_segments: Integer,
}

#[derive(Serialize)]
struct CutObject {
    tails: Integer,
    bytes: Integer,
    records: Integer,
}
