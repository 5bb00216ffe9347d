//! The fields of each fact in their order, little endian, without padding.

use domain::asset::SYMBOL_BYTES_MAX;
use zerocopy::little_endian::{I128, U16, U32, U64, U128};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The most bytes of a venue's name.
pub const VENUE_NAME_BYTES_MAX: usize = 32;

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct AssetBytes {
    pub(super) asset: U32,
    pub(super) precision: u8,
    pub(super) symbol_length: u8,
    pub(super) symbol: [u8; SYMBOL_BYTES_MAX],
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct AccountBytes {
    pub(super) user: U64,
    pub(super) status: u8,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct BalanceBytes {
    pub(super) available: U128,
    pub(super) deposits: U128,
    pub(super) withdrawals: U128,
    pub(super) refunds: U128,
    pub(super) user: U64,
    pub(super) asset: U32,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct OutcomeBytes {
    pub(super) req_id: U128,
    pub(super) balance_after: U128,
    pub(super) user: U64,
    pub(super) amount: U64,
    pub(super) sequence: U64,
    pub(super) time_ns: U64,
    pub(super) order_number: U64,
    pub(super) asset: U32,
    pub(super) code: U16,
    pub(super) op: u8,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct TradedBytes {
    pub(super) balance: BalanceBytes,
    pub(super) held: U128,
    pub(super) traded: I128,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct HoldBytes {
    pub(super) amount: U128,
    pub(super) number: U64,
    pub(super) user: U64,
    pub(super) reference: U64,
    pub(super) record: U64,
    pub(super) time_ns: U64,
    pub(super) venue: U32,
    pub(super) asset: U32,
    pub(super) purpose: U16,
    pub(super) keeps: u8,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct VenueBytes {
    pub(super) epoch: U64,
    pub(super) acknowledged: U64,
    pub(super) id: U32,
    pub(super) flags: u8,
    pub(super) name_length: u8,
    pub(super) name: [u8; VENUE_NAME_BYTES_MAX],
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct AnswerBytes {
    pub(super) number: U64,
    pub(super) hash: U64,
    pub(super) record: U64,
    pub(super) venue: U32,
    pub(super) code: U16,
    pub(super) leg: u8,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct NamedBytes {
    pub(super) transaction: U128,
    pub(super) hash: U128,
    pub(super) reference: U64,
    pub(super) record: U64,
    pub(super) time_ns: U64,
    pub(super) order_number: U64,
    pub(super) code: U16,
    pub(super) op: u8,
    pub(super) round: u8,
    pub(super) leg: u8,
    pub(super) accounts: u8,
    pub(super) balances: u8,
    pub(super) freezes: u8,
    pub(super) outcomes: u8,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct NamedHoldBytes {
    pub(super) transaction: U128,
    pub(super) number: U64,
    pub(super) amount: U64,
    pub(super) user: U64,
    pub(super) record: U64,
    pub(super) time_ns: U64,
    pub(super) asset: U32,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct FrozenHoldBytes {
    pub(super) hold: NamedHoldBytes,
    pub(super) purpose: U16,
}
