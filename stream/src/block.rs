//! The fixed fields of each message in the order of the schema: little endian, without padding, at
//! any address. `config/stream.sbe.xml` explains each field.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of the token in [`Open`]; a shorter one is filled up with NUL.
pub const TOKEN_BYTES: usize = 900;

/// [`Answer::leg`] without a leg.
pub const NO_LEG: u8 = u8::MAX;

/// Declares the blocks: each one is plain bytes.
macro_rules! blocks {
    ($($(#[$doc:meta])* $name:ident { $($(#[$field_doc:meta])* $field:ident: $type:ty,)* })+) => {
        $(
            $(#[$doc])*
            #[derive(Clone, Copy, Debug, PartialEq, Eq)]
            #[derive(FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
            #[repr(C)]
            pub struct $name { $($(#[$field_doc])* pub $field: $type,)* }
        )+
    };
}

blocks! {
    /// The first message of a session.
    Open {
        /// Above that of the venue's last session; 0: the next one.
        epoch: U64,
        /// The highest number that was answered to the venue.
        told: U64,
        /// The venue's number.
        venue: U32,
        /// A JWT, filled up with NUL.
        token: [u8; TOKEN_BYTES],
    }
    /// The session begins.
    Opened {
        /// The epoch in force.
        epoch: U64,
        /// The highest recorded number.
        last: U64,
        /// The highest acknowledged number.
        acknowledged: U64,
        /// The highest number whose record is durable.
        durable: U64,
        /// The log's identity.
        log: Wide,
        /// The most answers that are not acknowledged.
        window: U64,
    }
    /// 128 bits: a log's identity or an amount.
    Wide {
        /// The lower half.
        low: U64,
        /// The upper half.
        high: U64,
    }
    /// Sets money apart.
    Reserve {
        /// The command's number.
        number: U64,
        /// The venue's own.
        reference: U64,
        /// The owner.
        user: U64,
        /// Smallest units.
        amount: U64,
        /// The hold to grow; 0: a new one.
        onto: U64,
        /// The asset's number.
        asset: U32,
    }
    /// The fixed part of Settle and Post.
    Set {
        /// The command's number.
        number: U64,
        /// The venue's own.
        reference: U64,
    }
    /// One leg of Settle and Post.
    LegRow {
        /// The number of the place it leaves.
        from: U64,
        /// The number of the place it reaches.
        to: U64,
        /// Smallest units.
        amount: U64,
        /// The asset's number.
        asset: U32,
        /// The kind of the place it leaves.
        from_kind: u8,
        /// The kind of the place it reaches.
        to_kind: u8,
        /// Of the frozen place; 0 without one.
        purpose: U16,
    }
    /// Gives a hold back.
    Release {
        /// The command's number.
        number: U64,
        /// The venue's own.
        reference: U64,
        /// The hold's number.
        hold: U64,
        /// Smallest units; 2^64 - 1 is all that is left.
        amount: U64,
    }
    /// Answers up to a number need not be kept.
    Acknowledge {
        /// The highest number that may be forgotten.
        number: U64,
    }
    /// The decision on one command.
    Answer {
        /// The command's number.
        number: U64,
        /// Its record in the log.
        record: U64,
        /// 0, or the number of a `domain` code.
        code: U16,
        /// The first leg that fails, or [`NO_LEG`].
        leg: u8,
    }
    /// A number that was not decided, and neither are those behind it.
    Back {
        /// The next number that is taken.
        number: U64,
        /// The time to wait before it is sent, ms.
        after_ms: U32,
        /// A [`BackReason`] as a number.
        reason: u8,
    }
    /// Reads holds in the order of their numbers.
    ReadHolds {
        /// The last number that was read, 0 at first.
        after: U64,
    }
    /// The fixed part of Holds.
    HoldsPart {
        /// The record up to which the rows are exact.
        position: U64,
        /// 1 if more parts of the same read follow, else 0.
        follows: u8,
    }
    /// One hold.
    HoldRow {
        /// The command that made it.
        number: U64,
        /// The venue's own.
        reference: U64,
        /// The owner.
        user: U64,
        /// Smallest units.
        remaining: U64,
        /// The record that made it.
        record: U64,
        /// The asset's number.
        asset: U32,
    }
    /// Reads one balance.
    ReadBalance {
        /// The owner.
        user: U64,
        /// The asset's number.
        asset: U32,
    }
    /// One balance.
    Balance {
        /// Smallest units that are not held.
        available: Wide,
        /// Smallest units in holds and freezes.
        held: Wide,
        /// The record up to which it is exact.
        position: U64,
    }
    /// The last message of a session.
    Close {
        /// A [`CloseReason`] as a number.
        reason: u8,
    }
}

/// Declares an enum of the schema: its numbers are those on the wire.
macro_rules! numbered {
    ($($(#[$doc:meta])* $name:ident { $($(#[$value_doc:meta])* $value:ident = $number:literal, $text:literal;)+ })+) => {
        $(
            $(#[$doc])*
            #[derive(Clone, Copy, Debug, PartialEq, Eq)]
            #[repr(u8)]
            pub enum $name { $($(#[$value_doc])* $value = $number,)+ }

            impl $name {
                /// Every value, by number.
                pub const ALL: &'static [$name] = &[$($name::$value,)+];

                /// Its name in the schema.
                pub fn name(self) -> &'static str {
                    match self { $($name::$value => $text,)+ }
                }

                /// The value with this number; `None` for a number that the schema does not hold.
                pub fn from_number(number: u8) -> Option<$name> {
                    match number { $($number => Some($name::$value),)+ _ => None }
                }
            }
        )+
    };
}

numbered! {
    /// Why a number was not decided.
    BackReason {
        /// It is above the next one.
        Gap = 1, "GAP";
        /// Too many answers are not acknowledged.
        Window = 2, "WINDOW";
        /// No money moves until an operator resumes.
        Halted = 3, "HALTED";
        /// The log has no room.
        NoRoom = 4, "NO_ROOM";
    }
    /// Why a session ends.
    CloseReason {
        /// A higher epoch was opened, or this one is not above the last.
        Fenced = 1, "FENCED";
        /// An acknowledged number was repeated.
        Forgotten = 2, "FORGOTTEN";
        /// A repeat had another body, or an answer was acknowledged that was not sent.
        Violation = 3, "VIOLATION";
        /// The venue was silent for too long.
        Silent = 4, "SILENT";
        /// The token is not valid for this venue.
        Unauthorized = 5, "UNAUTHORIZED";
        /// A frame is not of the schema, or a message was not allowed here.
        Malformed = 6, "MALFORMED";
        /// The service stops.
        Stopping = 7, "STOPPING";
        /// An operator has closed the venue.
        Closed = 8, "CLOSED";
    }
}

impl Open {
    /// The token without its padding; `None` if it is not text.
    pub fn token(&self) -> Option<&str> {
        let length = self.token.iter().position(|byte| *byte == 0).unwrap_or(TOKEN_BYTES);
        std::str::from_utf8(&self.token[..length]).ok()
    }
}

impl Wide {
    /// Both halves as one number.
    pub fn number(self) -> u128 {
        u128::from(self.high.get()) << 64 | u128::from(self.low.get())
    }
}

impl From<u128> for Wide {
    fn from(number: u128) -> Wide {
        zerocopy::transmute!(number.to_le_bytes())
    }
}
