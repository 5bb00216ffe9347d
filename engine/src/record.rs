//! The kinds of the log's records, and the errors of their payloads.
//!
//! A payload is little endian, without padding. The record's header (crate `wal`) carries the time.
//!
//! | kind | payload |
//! |---|---|
//! | 1 order | see [`crate::order`] |
//! | 2 account status | user 8, status 1 |
//! | 3 asset | asset 4, precision 1, symbol |
//! | 4 watermark | order_number 8: outcomes of smaller numbers may be forgotten |
//! | 5 mark | empty: written when idle, so that a later record also covers the last batch |
//! | 6 digest | digest 16: the digest of the state before this record, see [`crate::fact`] |
//! | 8 refusal | a refused WITHDRAW or DEPOSIT, see [`crate::order`] |
//! | 9 external | an external operation of Funding, see [`crate::external`] |
//! | 10 totals | user 8, asset 4, deposits 16, withdrawals 16, refunds 16: before this log began |
//! | 11 external sums | as fact 7 of [`crate::fact`]: below the watermark, in a rebuilt log |
//! | 12 posting | by number: see [`crate::posted`]; by name: see [`crate::named`] |
//! | 13 venue | venue 4, epoch 8 (0: by an operator), flags 1 (1 closed, 2 posts), length 1, name |
//!
//! Kind 7 (shard fence) is reserved. No state leads to a refusal of kind 8: an operator has ended
//! the wait for the operation, or its record was lost in a cut of the log.

use domain::code::Code;
use domain::transfer::Decision;

/// The kind of a record. A number is never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// A decided order.
    Order = 1,
    /// A Spot account's status.
    AccountStatus = 2,
    /// A registered asset.
    Asset = 3,
    /// A raised watermark: outcomes of smaller order numbers may be forgotten.
    Watermark = 4,
    /// The durable mark in the record's header, and nothing else.
    Mark = 5,
    /// The digest of the whole state.
    Digest = 6,
    /// An order that was refused without a decision by its balance and status.
    Refusal = 8,
    /// A decided external operation of Funding.
    External = 9,
    /// A balance's totals before this log began: the log was lost and is rebuilt from PostgreSQL.
    Totals = 10,
    /// An asset's external operations before this log began.
    Outside = 11,
    /// A decided posting, by number or by name.
    Posting = 12,
    /// A venue that is registered, opened, closed or reopened.
    Venue = 13,
}

impl Kind {
    /// The kind with this number.
    pub fn from_number(number: u8) -> Option<Kind> {
        match number {
            1 => Some(Kind::Order),
            2 => Some(Kind::AccountStatus),
            3 => Some(Kind::Asset),
            4 => Some(Kind::Watermark),
            5 => Some(Kind::Mark),
            6 => Some(Kind::Digest),
            8 => Some(Kind::Refusal),
            9 => Some(Kind::External),
            10 => Some(Kind::Totals),
            11 => Some(Kind::Outside),
            12 => Some(Kind::Posting),
            13 => Some(Kind::Venue),
            _ => None,
        }
    }

    /// The name in dumps.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Order => "ORDER",
            Kind::AccountStatus => "STATUS",
            Kind::Asset => "ASSET",
            Kind::Watermark => "WMARK",
            Kind::Mark => "MARK",
            Kind::Digest => "DIGEST",
            Kind::Refusal => "REFUSE",
            Kind::External => "EXTERN",
            Kind::Totals => "TOTALS",
            Kind::Outside => "OUTSUM",
            Kind::Posting => "POSTING",
            Kind::Venue => "VENUE",
        }
    }
}

/// The most bytes of a payload.
pub const PAYLOAD_BYTES_MAX: usize = 624;
/// The most bytes of an order's payload.
pub(crate) const ORDER_BYTES_MAX: usize = 129;

const _: () = assert!(PAYLOAD_BYTES_MAX <= wal::PAYLOAD_BYTES_MAX);

/// A payload that this version cannot read.
#[derive(Clone, Copy, Debug, thiserror::Error, PartialEq, Eq)]
pub enum Error {
    /// The kind is reserved or of a later version.
    #[error("unknown record kind {0}")]
    Kind(u8),
    /// The payload's length does not fit its kind.
    #[error("payload of {bytes} bytes is not a {kind:?}")]
    Payload {
        /// The kind.
        kind: Kind,
        /// The payload's length.
        bytes: usize,
    },
    /// A field holds a number that this version does not know.
    #[error("{field} holds {number}")]
    Field {
        /// The field's name.
        field: &'static str,
        /// The number found.
        number: u64,
    },
}

/// A decision as a number: 0 for a success, else the code of the refusal.
pub(crate) fn decision_number(decision: Decision) -> u16 {
    match decision {
        Decision::Success => 0,
        Decision::Refused(code) => code as u16,
    }
}

/// The decision with this number, see [`decision_number`].
///
/// # Errors
/// [`Error::Field`]: this version knows no code with the number.
pub(crate) fn decision_of(number: u16) -> Result<Decision, Error> {
    let refused = |code| Ok(Decision::Refused(code));
    match number {
        0 => Ok(Decision::Success),
        number => Code::from_number(number)
            .map_or(Err(Error::Field { field: "code", number: number.into() }), refused),
    }
}

/// Copies `fixed` and then `rest` into `buffer`. Returns their length in bytes.
pub(crate) fn join(buffer: &mut [u8; PAYLOAD_BYTES_MAX], fixed: &[u8], rest: &[u8]) -> usize {
    let length = fixed.len() + rest.len();
    debug_assert!(length <= PAYLOAD_BYTES_MAX, "{length} bytes");
    buffer[..fixed.len()].copy_from_slice(fixed);
    buffer[fixed.len()..length].copy_from_slice(rest);
    length
}
