//! The content of a record of the log, and its payload in bytes. [`crate::record`] lists the kinds.

use std::mem::size_of;

use domain::account::AccountStatus;
use domain::asset::SYMBOL_BYTES_MAX;
use domain::transfer::Decision;
use zerocopy::little_endian::{U32, U64, U128};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::external::{External, Outside, OutsideBytes};
use crate::fact::VENUE_NAME_BYTES_MAX;
use crate::named::Named;
use crate::order::{DecidedOrder, Order};
use crate::posted::{Posted, is_by_name};
use crate::record::{Error, Kind, PAYLOAD_BYTES_MAX, join};
use crate::text::Text;
use crate::totals::Totals;

/// The content of one record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entry {
    /// A decided order.
    Order {
        /// The operation.
        order: Order,
        /// The decision.
        decision: Decision,
        /// The Spot balance afterwards, smallest units.
        balance_after: u128,
        /// Refused without a decision by balance and status: by an operator, for want of a place,
        /// or again because the first refusal's record was lost.
        imposed: bool,
    },
    /// A decided external operation of Funding.
    External(External),
    /// A Spot account's status.
    AccountStatus {
        /// The account's user.
        user: u64,
        /// The new status.
        status: AccountStatus,
    },
    /// A registered asset.
    Asset {
        /// Its number.
        asset: u32,
        /// Its decimals.
        precision: u8,
        /// Its symbol.
        symbol: Text<SYMBOL_BYTES_MAX>,
    },
    /// Outcomes of smaller order numbers may be forgotten from now on.
    Watermark {
        /// The smallest number to be kept.
        order_number: u64,
    },
    /// A balance's totals before this log began.
    Totals {
        /// The balance's user.
        user: u64,
        /// The balance's asset.
        asset: u32,
        /// Its earlier operations.
        totals: Totals,
    },
    /// An asset's external operations before this log began.
    Outside {
        /// The asset's number.
        asset: u32,
        /// All operations below the watermark.
        outside: Outside,
    },
    /// A decided posting by number. UBSCore itself encodes it from its slot.
    Posting(Box<Posted>),
    /// A decided posting by name. UBSCore itself encodes it from its cell.
    Named(Box<Named>),
    /// A venue that is registered, opened, closed or reopened.
    Venue(VenueEntry),
    /// Nothing.
    Mark,
    /// The state's digest.
    Digest {
        /// The sum of all facts' digests.
        digest: u128,
    },
}

/// The content of a record of a venue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VenueEntry {
    /// Its number, not 0.
    pub id: u32,
    /// The epoch of a session that opens; 0 if an operator has registered, closed or reopened it.
    pub epoch: u64,
    /// Closed from now on.
    pub closed: bool,
    /// It may POST.
    pub posts: bool,
    /// Its name, not empty.
    pub name: Text<VENUE_NAME_BYTES_MAX>,
}

/// In the flags of a venue.
const CLOSED: u8 = 1;
const POSTS: u8 = 2;

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct VenueBytes {
    id: U32,
    epoch: U64,
    flags: u8,
    name_length: u8,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct StatusBytes {
    user: U64,
    status: u8,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct AssetBytes {
    asset: U32,
    precision: u8,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct TotalsBytes {
    user: U64,
    asset: U32,
    deposits: U128,
    withdrawals: U128,
    refunds: U128,
}

const _: () = assert!(size_of::<AssetBytes>() + SYMBOL_BYTES_MAX <= PAYLOAD_BYTES_MAX);

impl Entry {
    /// The record's kind.
    pub fn kind(&self) -> Kind {
        match self {
            Entry::Order { imposed: false, .. } => Kind::Order,
            Entry::Order { imposed: true, .. } => Kind::Refusal,
            Entry::External(_) => Kind::External,
            Entry::AccountStatus { .. } => Kind::AccountStatus,
            Entry::Asset { .. } => Kind::Asset,
            Entry::Watermark { .. } => Kind::Watermark,
            Entry::Totals { .. } => Kind::Totals,
            Entry::Outside { .. } => Kind::Outside,
            Entry::Posting(_) | Entry::Named(_) => Kind::Posting,
            Entry::Venue(_) => Kind::Venue,
            Entry::Mark => Kind::Mark,
            Entry::Digest { .. } => Kind::Digest,
        }
    }

    /// Writes the payload into `buffer`. Returns its length in bytes.
    pub fn encode(&self, buffer: &mut [u8; PAYLOAD_BYTES_MAX]) -> usize {
        match *self {
            Entry::Order { ref order, decision, balance_after, imposed } => {
                debug_assert!(!imposed || decision != Decision::Success, "{order:?}");
                DecidedOrder::encode(order, decision, balance_after, buffer)
            }
            Entry::External(ref external) => external.encode(buffer),
            Entry::AccountStatus { user, status } => {
                let fixed = StatusBytes { user: user.into(), status: status as u8 };
                join(buffer, fixed.as_bytes(), &[])
            }
            Entry::Asset { asset, precision, ref symbol } => {
                let fixed = AssetBytes { asset: asset.into(), precision };
                join(buffer, fixed.as_bytes(), symbol.as_bytes())
            }
            Entry::Watermark { order_number } => {
                join(buffer, U64::from(order_number).as_bytes(), &[])
            }
            Entry::Totals { user, asset, totals } => {
                let fixed = TotalsBytes {
                    user: user.into(),
                    asset: asset.into(),
                    deposits: totals.deposits.into(),
                    withdrawals: totals.withdrawals.into(),
                    refunds: totals.refunds.into(),
                };
                join(buffer, fixed.as_bytes(), &[])
            }
            Entry::Outside { asset, outside } => {
                join(buffer, OutsideBytes::new(asset, outside).as_bytes(), &[])
            }
            Entry::Posting(ref posted) => posted.encode(buffer),
            Entry::Named(ref named) => named.encode(buffer),
            Entry::Venue(ref venue) => {
                let closed = if venue.closed { CLOSED } else { 0 };
                let posts = if venue.posts { POSTS } else { 0 };
                let fixed = VenueBytes {
                    id: venue.id.into(),
                    epoch: venue.epoch.into(),
                    flags: closed | posts,
                    name_length: venue.name.length(),
                };
                join(buffer, fixed.as_bytes(), venue.name.as_bytes())
            }
            Entry::Mark => 0,
            Entry::Digest { digest } => join(buffer, U128::from(digest).as_bytes(), &[]),
        }
    }

    /// Reads a record's payload.
    ///
    /// # Errors
    /// [`Error`]: this version cannot read it; the log must not be replayed past it.
    pub fn decode(kind: u8, payload: &[u8]) -> Result<Entry, Error> {
        let kind = Kind::from_number(kind).ok_or(Error::Kind(kind))?;
        let malformed = || Error::Payload { kind, bytes: payload.len() };
        match kind {
            Kind::Order | Kind::Refusal => decode_order(kind, payload),
            Kind::External => External::decode(payload).map(Entry::External),
            Kind::AccountStatus => {
                let fixed = StatusBytes::ref_from_bytes(payload).map_err(|_| malformed())?;
                let (field, number) = ("status", fixed.status.into());
                let status = AccountStatus::from_number(fixed.status)
                    .ok_or(Error::Field { field, number })?;
                Ok(Entry::AccountStatus { user: fixed.user.get(), status })
            }
            Kind::Asset => {
                let (fixed, symbol) =
                    AssetBytes::ref_from_prefix(payload).map_err(|_| malformed())?;
                let symbol = Text::from_bytes(symbol).ok_or_else(malformed)?;
                Ok(Entry::Asset { asset: fixed.asset.get(), precision: fixed.precision, symbol })
            }
            Kind::Watermark => {
                let order_number = U64::read_from_bytes(payload).map_err(|_| malformed())?.get();
                Ok(Entry::Watermark { order_number })
            }
            Kind::Totals => {
                let fixed = TotalsBytes::ref_from_bytes(payload).map_err(|_| malformed())?;
                let totals = Totals {
                    deposits: fixed.deposits.get(),
                    withdrawals: fixed.withdrawals.get(),
                    refunds: fixed.refunds.get(),
                };
                Ok(Entry::Totals { user: fixed.user.get(), asset: fixed.asset.get(), totals })
            }
            Kind::Outside => {
                let fixed = OutsideBytes::ref_from_bytes(payload).map_err(|_| malformed())?;
                let (asset, outside) = fixed.read();
                Ok(Entry::Outside { asset, outside })
            }
            Kind::Posting if is_by_name(payload) => {
                Named::decode(payload).map(|named| Entry::Named(Box::new(named)))
            }
            Kind::Posting => Posted::decode(payload).map(|posted| Entry::Posting(Box::new(posted))),
            Kind::Venue => decode_venue(payload),
            Kind::Mark => payload.is_empty().then_some(Entry::Mark).ok_or_else(malformed),
            Kind::Digest => {
                let digest = U128::read_from_bytes(payload).map_err(|_| malformed())?.get();
                Ok(Entry::Digest { digest })
            }
        }
    }
}

fn decode_venue(payload: &[u8]) -> Result<Entry, Error> {
    let malformed = || Error::Payload { kind: Kind::Venue, bytes: payload.len() };
    let (fixed, name) = VenueBytes::ref_from_prefix(payload).map_err(|_| malformed())?;
    if fixed.flags & !(CLOSED | POSTS) != 0 {
        return Err(Error::Field { field: "flags", number: fixed.flags.into() });
    }
    if name.is_empty() || name.len() != usize::from(fixed.name_length) {
        return Err(malformed());
    }
    Ok(Entry::Venue(VenueEntry {
        id: fixed.id.get(),
        epoch: fixed.epoch.get(),
        closed: fixed.flags & CLOSED != 0,
        posts: fixed.flags & POSTS != 0,
        name: Text::from_bytes(name).ok_or_else(malformed)?,
    }))
}

/// Reads an order, or a refusal: a refused WITHDRAW or DEPOSIT.
fn decode_order(kind: Kind, payload: &[u8]) -> Result<Entry, Error> {
    let DecidedOrder { order, decision, balance_after } = DecidedOrder::decode(kind, payload)?;
    let imposed = kind == Kind::Refusal;
    let imposable = order.op.row().refusable && !order.op.is_external();
    match decision {
        Decision::Success if imposed => Err(Error::Field { field: "code", number: 0 }),
        Decision::Refused(_) if imposed && !imposable => {
            Err(Error::Field { field: "op", number: order.op.number().into() })
        }
        Decision::Success | Decision::Refused(_) => {
            Ok(Entry::Order { order, decision, balance_after, imposed })
        }
    }
}

#[cfg(test)]
mod tests {
    use domain::code::Code;
    use domain::transfer::{Direction, Op};

    use super::*;

    fn order() -> Order {
        Order {
            op: Op::Withdraw,
            req_id: 0x0102_0304_0506_0708_090a_0b0c_0d0e_0f10,
            cid: Text::new("ab").expect("short"),
            user: 1001,
            asset: 3,
            amount: 25_050_000_000,
            direction: Direction::SpotToFunding,
            order_number: 7,
        }
    }

    fn encoded(entry: &Entry) -> Vec<u8> {
        let mut buffer = [0; PAYLOAD_BYTES_MAX];
        let length = entry.encode(&mut buffer);
        buffer[..length].to_vec()
    }

    #[test]
    fn an_entry_reads_back_as_written() {
        let symbol = Text::new("USDT").expect("short");
        for entry in [
            Entry::Order {
                order: order(),
                decision: Decision::Success,
                balance_after: u128::MAX,
                imposed: false,
            },
            Entry::Order {
                order: order(),
                decision: Decision::Refused(Code::InsufficientBalance),
                balance_after: 0,
                imposed: false,
            },
            Entry::Order {
                order: Order { op: Op::Deposit, ..order() },
                decision: Decision::Refused(Code::ResolvedByOperator),
                balance_after: 9,
                imposed: true,
            },
            Entry::External(External {
                op: Op::ExtDeposit,
                idem_key: Text::new("dep-1").expect("short"),
                user: 1001,
                asset: 3,
                amount: 5,
                order_number: 8,
                decision: Decision::Refused(Code::AccountDisabled),
                balance_after: 0,
            }),
            Entry::AccountStatus { user: 9, status: AccountStatus::Frozen },
            Entry::Asset { asset: 3, precision: 8, symbol },
            Entry::Watermark { order_number: 7 },
            Entry::Totals {
                user: 9,
                asset: 3,
                totals: Totals { deposits: 1 << 100, withdrawals: 7, refunds: 5 },
            },
            Entry::Outside {
                asset: 3,
                outside: Outside { deposits: 1, deposited: 1 << 90, withdrawals: 2, withdrawn: 7 },
            },
            Entry::Mark,
            Entry::Digest { digest: u128::MAX - 1 },
        ] {
            assert_eq!(Entry::decode(entry.kind() as u8, &encoded(&entry)), Ok(entry.clone()));
        }
    }

    #[test]
    fn the_bytes_of_an_order_stay_what_they_are() {
        let refused = Decision::Refused(Code::InsufficientBalance);
        let bytes = encoded(&Entry::Order {
            order: order(),
            decision: refused,
            balance_after: 5,
            imposed: false,
        });
        let mut want = vec![16, 15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1];
        want.extend([5, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        want.extend([0xe9, 3, 0, 0, 0, 0, 0, 0]);
        want.extend([0x80, 0xaa, 0x18, 0xd5, 5, 0, 0, 0]);
        want.extend([7, 0, 0, 0, 0, 0, 0, 0]);
        want.extend([3, 0, 0, 0, 24, 0, 1, 2, 2]);
        want.extend(b"ab");
        assert_eq!(bytes, want);
    }

    #[test]
    fn the_bytes_of_a_venue_stay_what_they_are() {
        let name = Text::new("book").expect("short");
        let venue = VenueEntry { id: 2, epoch: 258, closed: true, posts: true, name };
        let bytes = encoded(&Entry::Venue(venue));
        assert_eq!(bytes, [&[2, 0, 0, 0, 2, 1, 0, 0, 0, 0, 0, 0, 3, 4], &b"book"[..]].concat());
        assert_eq!(Entry::decode(13, &bytes), Ok(Entry::Venue(venue)));
        let mut flags = bytes.clone();
        flags[12] = 4;
        assert_eq!(Entry::decode(13, &flags), Err(Error::Field { field: "flags", number: 4 }));
        let malformed = Err(Error::Payload { kind: Kind::Venue, bytes: 14 });
        assert_eq!(Entry::decode(13, &bytes[..14]), malformed);
    }

    #[test]
    fn foreign_bytes_are_refused() {
        assert_eq!(Entry::decode(7, &[]), Err(Error::Kind(7)));
        // The next free kind: of a later version.
        assert_eq!(Entry::decode(14, &[]), Err(Error::Kind(14)));
        assert_eq!(Error::Kind(14).to_string(), "unknown record kind 14");
        assert_eq!(Entry::decode(5, &[0]), Err(Error::Payload { kind: Kind::Mark, bytes: 1 }));
        let mut bytes = encoded(&Entry::Order {
            order: order(),
            decision: Decision::Success,
            balance_after: 0,
            imposed: false,
        });
        bytes[62] = 9;
        assert_eq!(Entry::decode(1, &bytes), Err(Error::Field { field: "op", number: 9 }));
        // A refusal of kind 8 has a code, and its operation can be refused.
        bytes[62] = 1;
        assert_eq!(Entry::decode(8, &bytes), Err(Error::Field { field: "code", number: 0 }));
        (bytes[60], bytes[62]) = (24, 3);
        assert_eq!(Entry::decode(8, &bytes), Err(Error::Field { field: "op", number: 3 }));
        bytes.pop();
        assert_eq!(Entry::decode(1, &bytes), Err(Error::Payload { kind: Kind::Order, bytes: 66 }));
    }
}
