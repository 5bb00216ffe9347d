//! The decision about the end of a log: one table, read by recovery, reader, survey and test.

use crate::error::Place;

/// The relation of the next segment's header to the place where reading stopped. Sequence n is due
/// there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Successor {
    /// There is no next segment.
    None,
    /// It names n-1 as the last record before it.
    Here,
    /// It names n or a later one.
    Ahead,
    /// It names one before n-1.
    Behind,
}

/// The bytes from the place where reading stopped to the end of its segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tail {
    /// Only zeros.
    Zeros,
    /// Other bytes, and not the record n at the front.
    Bytes,
    /// Fewer bytes than the header promises.
    Short,
    /// The record n, whole: a live writer has stored it, or the next segment's header is wrong.
    Record,
}

/// The meaning of a stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Decision {
    /// More can be read here.
    Read,
    /// This tail ends, or was cut before; continue in the next segment.
    Continue,
    /// The data end here, without a fault.
    Clean,
    /// The data end here; the bytes behind were never acknowledged and are cut off.
    Cut,
    /// A durable record is gone: refuse.
    Damaged,
    /// The segments contradict each other: refuse.
    OutOfOrder,
}

/// The table. `claimed`: the caller or a valid record behind the stop claims n durable.
///
/// Only the newest segment can be torn. A header exists only once its predecessor's last record is
/// durable, so a segment with a successor is whole up to the record that the successor names. An
/// earlier recovery cut off the bytes behind that record. For the same reason a cut removes
/// nothing: the header of the fresh segment, which names n-1, is the cut.
pub(crate) const fn decide(successor: Successor, tail: Tail, claimed: bool) -> Decision {
    match (successor, tail, claimed) {
        (Successor::None | Successor::Ahead, Tail::Record, _) => Decision::Read,
        (Successor::Here, Tail::Zeros | Tail::Bytes | Tail::Short, _) => Decision::Continue,
        (Successor::Ahead, Tail::Zeros | Tail::Bytes | Tail::Short, _) => Decision::Damaged,
        // Valid records that contradict the successor: two histories have been mixed.
        (Successor::Here, Tail::Record, _) | (Successor::Behind, _, _) => Decision::OutOfOrder,
        (Successor::None, Tail::Zeros, false) => Decision::Clean,
        (Successor::None, Tail::Bytes, false) => Decision::Cut,
        (Successor::None, Tail::Zeros | Tail::Bytes, true) => Decision::Damaged,
        // A segment has its full length before it has its name; no crash makes it shorter.
        (Successor::None, Tail::Short, _) => Decision::Damaged,
    }
}

/// The end of a log's data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ending {
    /// No bytes follow the last record.
    Clean,
    /// Bytes follow the last record, and they were never acknowledged.
    Torn(Torn),
}

/// The bytes that a crash left behind the last record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Torn {
    /// Its begin, and the sequence due there.
    pub place: Place,
    /// Its length in bytes, up to the last that is not zero.
    pub bytes: u64,
    /// Valid records in it: written, but behind a hole, and never acknowledged.
    pub records: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the table equals the specification's table. Method: every combination is listed here a
    /// second time, from the specification's side.
    #[test]
    fn the_table_follows_the_specification() {
        use Successor as S;
        use Tail as T;
        for claimed in [false, true] {
            for tail in [T::Zeros, T::Bytes, T::Short] {
                assert_eq!(decide(S::Here, tail, claimed), Decision::Continue);
                assert_eq!(decide(S::Ahead, tail, claimed), Decision::Damaged);
                assert_eq!(decide(S::Behind, tail, claimed), Decision::OutOfOrder);
            }
            assert_eq!(decide(S::None, T::Record, claimed), Decision::Read);
            assert_eq!(decide(S::Ahead, T::Record, claimed), Decision::Read);
            assert_eq!(decide(S::Here, T::Record, claimed), Decision::OutOfOrder);
            assert_eq!(decide(S::Behind, T::Record, claimed), Decision::OutOfOrder);
            assert_eq!(decide(S::None, T::Short, claimed), Decision::Damaged);
        }
        assert_eq!(decide(S::None, T::Zeros, false), Decision::Clean);
        assert_eq!(decide(S::None, T::Bytes, false), Decision::Cut);
        assert_eq!(decide(S::None, T::Zeros, true), Decision::Damaged);
        assert_eq!(decide(S::None, T::Bytes, true), Decision::Damaged);
    }
}
