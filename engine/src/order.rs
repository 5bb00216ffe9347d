//! What UBSCore is asked, and the bytes of what it decided in the log.
//!
//! The payload of a record, little endian, without padding. The record's header (crate `wal`) carries the time.
//!
//! | kind | payload |
//! |---|---|
//! | 1 order | req_id 16, balance_after 16, user 8, amount 8, order_number 8, asset 4, code 2 (0 = success), op 1, direction 1, cid length 1, cid |
//! | 2 account status | user 8, status 1 |
//! | 3 asset | asset 4, precision 1, symbol |
//! | 4 watermark | order_number 8: outcomes of smaller ones may have been forgotten |
//! | 5 mark | empty: written when idle, so that the last batch too is covered by a later record |
//! | 6 digest | digest 16: of everything the records before this one add up to, see [`super::fact`] |
//! | 8 refusal | as an order, of a WITHDRAW or a DEPOSIT, with a code: refused whatever balance and status had said |
//! | 9 external | see [`super::external`]: an operation of Funding with the outside, decided by PostgreSQL |
//! | 10 totals | user 8, asset 4, deposits 16, withdrawals 16, refunds 16: what a balance came to before this log began |
//! | 11 external sums | as the fact 7 of [`super::fact`]: the external operations of an asset below the watermark, in a log that was rebuilt |
//!
//! Kind 7 (shard fence) is reserved. A refusal is the one decision that no state leads to: an operator has ended the wait for it,
//! or its record was lost in a cut ([`Command::Refuse`]).

use std::mem::size_of;

use domain::account::{AccountStatus, UserId};
use domain::amount::Amount;
use domain::asset::{AssetId, SYMBOL_BYTES_MAX};
use domain::code::Code;
use domain::transfer::{CID_BYTES_MAX, Cid, Decision, Direction, Intent, Op, ReqId};
use zerocopy::little_endian::{U16, U32, U64, U128};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::external::{External, Outside};
use super::fact::{FACT_BYTES_MAX, Fact, OUTSIDE, Totals};

/// What a record is about. A number is never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// A decided order.
    Order = 1,
    /// A Spot account's status.
    AccountStatus = 2,
    /// An asset UBSCore has learned.
    Asset = 3,
    /// Outcomes of smaller order numbers may be forgotten.
    Watermark = 4,
    /// Nothing but the durable mark in the record's header.
    Mark = 5,
    /// What the whole state adds up to.
    Digest = 6,
    /// An order that was not decided here, but refused by whoever may.
    Refusal = 8,
    /// A decided operation of Funding with the outside.
    External = 9,
    /// What a balance came to before this log began: the log was lost, and is rebuilt from PostgreSQL.
    Totals = 10,
    /// What the external operations of an asset came to before this log began.
    Outside = 11,
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
        }
    }
}

/// Up to `N` bytes of text, held in place: slots of the ring are plain data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Text<const N: usize> {
    length: u8,
    bytes: [u8; N],
}

impl<const N: usize> Text<N> {
    /// No text.
    pub const EMPTY: Text<N> = Text { length: 0, bytes: [0; N] };

    /// This text, `None` when it is longer than `N` bytes.
    pub fn new(text: &str) -> Option<Text<N>> {
        Text::from_bytes(text.as_bytes())
    }

    pub(super) fn from_bytes(text: &[u8]) -> Option<Text<N>> {
        std::str::from_utf8(text).ok()?;
        let mut bytes = [0; N];
        bytes.get_mut(..text.len())?.copy_from_slice(text);
        Some(Text { length: u8::try_from(text.len()).ok()?, bytes })
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(self.as_bytes()).expect("checked by new")
    }

    fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.length)]
    }
}

/// A transfer's operation on Spot, with the full intent, so that PostgreSQL can be checked against the log and
/// repaired from it. Plain numbers: UBSCore checks them for itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Order {
    /// WITHDRAW, DEPOSIT or REFUND.
    pub op: Op,
    /// The transfer, not 0.
    pub req_id: u128,
    /// The client's idempotency key, may be empty.
    pub cid: Text<CID_BYTES_MAX>,
    /// Whose account, 1..=2^63-1.
    pub user: u64,
    /// Of what.
    pub asset: u32,
    /// Smallest units, not 0.
    pub amount: u64,
    /// Which way the transfer goes.
    pub direction: Direction,
    /// The transfer's position in the order of accepts.
    pub order_number: u64,
}

impl Order {
    /// What UBSCore is asked for an op of a transfer.
    pub fn new(intent: &Intent, op: Op) -> Order {
        let cid = intent.cid.as_ref().map_or("", |cid| cid.as_str());
        Order {
            op,
            req_id: intent.req_id.number(),
            cid: Text::new(cid).expect("a Cid fits"),
            user: intent.user.number(),
            asset: intent.asset.0,
            amount: intent.amount.units(),
            direction: intent.direction,
            order_number: intent.order_number,
        }
    }

    /// The transfer that it is of; `None` where a number is that of none.
    pub fn intent(&self) -> Option<Intent> {
        Some(Intent {
            req_id: ReqId::new(self.req_id)?,
            cid: Cid::new(self.cid.as_str()),
            user: UserId::new(self.user)?,
            asset: AssetId(self.asset),
            amount: Amount::new(self.amount)?,
            direction: self.direction,
            order_number: self.order_number,
        })
    }
}

/// One event on the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// Decide an operation.
    Order(Order),
    /// Decide a WITHDRAW or a DEPOSIT against it, whatever it would have come to: an operator ends the wait for it, or it was
    /// refused before and the record is lost. What is recorded stands.
    Refuse {
        /// What was asked.
        order: Order,
        /// Why it is refused.
        code: Code,
    },
    /// Record an external operation that PostgreSQL has decided. It moves nothing on Spot.
    External(External),
    /// Set a Spot account's status, creating the account where it is absent.
    SetStatus {
        /// Whose account.
        user: u64,
        /// From now on.
        status: AccountStatus,
    },
    /// Learn an asset.
    RegisterAsset {
        /// Its number.
        asset: u32,
        /// Its decimals.
        precision: u8,
        /// Its symbol.
        symbol: Text<SYMBOL_BYTES_MAX>,
    },
    /// Let outcomes of smaller order numbers be forgotten.
    RaiseWatermark {
        /// The smallest that must be kept.
        order_number: u64,
    },
    /// Begin a balance with what it came to before this log began, creating the account where it is absent. Only for a
    /// balance that nothing has moved yet.
    CarryTotals {
        /// Whose.
        user: u64,
        /// Of what.
        asset: u32,
        /// What it came from.
        totals: Totals,
    },
    /// Begin an asset's external operations with what they came to before this log began. Only where none is recorded yet.
    CarryOutside {
        /// Of what.
        asset: u32,
        /// All below the watermark.
        outside: Outside,
    },
    /// Write down what the state adds up to.
    Digest,
    /// Read one balance.
    ReadBalance {
        /// Whose.
        user: u64,
        /// Of what.
        asset: u32,
    },
    /// Read what an order would come to now; nothing is decided.
    Foresee(Order),
    /// Read a Spot account's status.
    ReadStatus {
        /// Whose account.
        user: u64,
    },
    /// Read what all balances of an asset add up to.
    ReadTotal {
        /// Of what.
        asset: u32,
    },
    /// Read the watermark.
    ReadWatermark,
    /// Read what is recorded for an operation.
    Query {
        /// The transfer.
        req_id: u128,
        /// The operation.
        op: Op,
    },
}

impl Command {
    /// The order it asks to decide, if it is one.
    pub fn order(&self) -> Option<&Order> {
        match self {
            Command::Order(order) | Command::Refuse { order, .. } => Some(order),
            _ => None,
        }
    }
}

/// What a record of the log says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry {
    /// A decided order.
    Order {
        /// What was asked.
        order: Order,
        /// What was decided.
        decision: Decision,
        /// The Spot balance afterwards, smallest units.
        balance_after: u128,
        /// Refused whatever would have been decided: by an operator, or again, as it had been before.
        imposed: bool,
    },
    /// A decided operation of Funding with the outside.
    External(External),
    /// A Spot account's status.
    AccountStatus {
        /// Whose.
        user: u64,
        /// From then on.
        status: AccountStatus,
    },
    /// An asset.
    Asset {
        /// Its number.
        asset: u32,
        /// Its decimals.
        precision: u8,
        /// Its symbol.
        symbol: Text<SYMBOL_BYTES_MAX>,
    },
    /// Outcomes of smaller order numbers may be forgotten from then on.
    Watermark {
        /// The smallest that is kept.
        order_number: u64,
    },
    /// What a balance came to before this log began.
    Totals {
        /// Whose.
        user: u64,
        /// Of what.
        asset: u32,
        /// What it came from.
        totals: Totals,
    },
    /// What the external operations of an asset came to before this log began.
    Outside {
        /// Of what.
        asset: u32,
        /// All below the watermark.
        outside: Outside,
    },
    /// Nothing.
    Mark,
    /// What the state adds up to.
    Digest {
        /// The sum of all facts' digests.
        digest: u128,
    },
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct OrderBytes {
    req_id: U128,
    balance_after: U128,
    user: U64,
    amount: U64,
    order_number: U64,
    asset: U32,
    code: U16,
    op: u8,
    direction: u8,
    cid_length: u8,
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

const _: () = assert!(size_of::<OrderBytes>() == 65);
const _: () = assert!(size_of::<OrderBytes>() + CID_BYTES_MAX == PAYLOAD_BYTES_MAX);
const _: () = assert!(size_of::<AssetBytes>() + SYMBOL_BYTES_MAX <= PAYLOAD_BYTES_MAX);
const _: () = assert!(PAYLOAD_BYTES_MAX <= wal::PAYLOAD_BYTES_MAX);

/// The most bytes a payload has.
pub const PAYLOAD_BYTES_MAX: usize = 129;

/// A payload of the log that this version cannot read.
#[derive(Clone, Copy, Debug, thiserror::Error, PartialEq, Eq)]
pub enum Error {
    /// The kind is reserved or of a later version.
    #[error("unknown record kind {0}")]
    Kind(u8),
    /// The payload does not have the bytes its kind asks for.
    #[error("payload of {bytes} bytes is not a {kind:?}")]
    Payload {
        /// The kind.
        kind: Kind,
        /// The payload's length.
        bytes: usize,
    },
    /// A field holds a number this version does not know.
    #[error("{field} holds {number}")]
    Field {
        /// Its name.
        field: &'static str,
        /// What it holds.
        number: u64,
    },
}

impl Entry {
    /// What the record is about.
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
            Entry::Mark => Kind::Mark,
            Entry::Digest { .. } => Kind::Digest,
        }
    }

    /// Writes the payload into `buffer` and returns its length in bytes.
    pub fn encode(&self, buffer: &mut [u8; PAYLOAD_BYTES_MAX]) -> usize {
        match self {
            Entry::Order { order, decision, balance_after, imposed: _ } => {
                let fixed = OrderBytes {
                    req_id: order.req_id.into(),
                    balance_after: (*balance_after).into(),
                    user: order.user.into(),
                    amount: order.amount.into(),
                    order_number: order.order_number.into(),
                    asset: order.asset.into(),
                    code: match decision {
                        Decision::Success => 0.into(),
                        Decision::Refused(code) => (*code as u16).into(),
                    },
                    op: order.op as u8,
                    direction: order.direction as u8,
                    cid_length: order.cid.length,
                };
                join(buffer, fixed.as_bytes(), order.cid.as_bytes())
            }
            Entry::External(external) => external.encode(buffer),
            Entry::AccountStatus { user, status } => {
                let fixed = StatusBytes { user: (*user).into(), status: *status as u8 };
                join(buffer, fixed.as_bytes(), &[])
            }
            Entry::Asset { asset, precision, symbol } => {
                let fixed = AssetBytes { asset: (*asset).into(), precision: *precision };
                join(buffer, fixed.as_bytes(), symbol.as_bytes())
            }
            Entry::Watermark { order_number } => {
                join(buffer, U64::from(*order_number).as_bytes(), &[])
            }
            Entry::Totals { user, asset, totals } => {
                let fixed = TotalsBytes {
                    user: (*user).into(),
                    asset: (*asset).into(),
                    deposits: totals.deposits.into(),
                    withdrawals: totals.withdrawals.into(),
                    refunds: totals.refunds.into(),
                };
                join(buffer, fixed.as_bytes(), &[])
            }
            Entry::Outside { asset, outside } => {
                let mut bytes = [0; FACT_BYTES_MAX];
                let fact = Fact::Outside { asset: *asset, outside: *outside };
                let (_, length) = fact.encode(&mut bytes);
                join(buffer, &bytes[..length], &[])
            }
            Entry::Mark => 0,
            Entry::Digest { digest } => join(buffer, U128::from(*digest).as_bytes(), &[]),
        }
    }

    /// Reads a payload back.
    ///
    /// # Errors
    /// [`Error`]: this version cannot read it; the log must not be replayed past it.
    pub fn decode(kind: u8, payload: &[u8]) -> Result<Entry, Error> {
        let kind = Kind::from_number(kind).ok_or(Error::Kind(kind))?;
        let malformed = || Error::Payload { kind, bytes: payload.len() };
        let field = |field, number: u64| Error::Field { field, number };
        match kind {
            Kind::Order | Kind::Refusal => {
                let (fixed, cid) = OrderBytes::ref_from_prefix(payload).map_err(|_| malformed())?;
                if cid.len() != usize::from(fixed.cid_length) {
                    return Err(malformed());
                }
                let op = Op::from_number(fixed.op).ok_or_else(|| field("op", fixed.op.into()))?;
                let direction = Direction::from_number(fixed.direction)
                    .ok_or_else(|| field("direction", fixed.direction.into()))?;
                let decision = match fixed.code.get() {
                    0 => Decision::Success,
                    number => Decision::Refused(
                        Code::from_number(number).ok_or_else(|| field("code", number.into()))?,
                    ),
                };
                let order = Order {
                    op,
                    req_id: fixed.req_id.get(),
                    cid: Text::from_bytes(cid).ok_or_else(malformed)?,
                    user: fixed.user.get(),
                    asset: fixed.asset.get(),
                    amount: fixed.amount.get(),
                    direction,
                    order_number: fixed.order_number.get(),
                };
                let (imposed, balance_after) = (kind == Kind::Refusal, fixed.balance_after.get());
                let imposable = op.row().refusable && !op.is_external();
                match (imposed, decision) {
                    (true, Decision::Success) => Err(field("code", 0)),
                    (true, Decision::Refused(_)) if !imposable => Err(field("op", fixed.op.into())),
                    (true, Decision::Refused(_)) | (false, _) => {
                        Ok(Entry::Order { order, decision, balance_after, imposed })
                    }
                }
            }
            Kind::External => External::decode(payload).map(Entry::External),
            Kind::AccountStatus => {
                let fixed = StatusBytes::ref_from_bytes(payload).map_err(|_| malformed())?;
                let status = AccountStatus::from_number(fixed.status)
                    .ok_or_else(|| field("status", fixed.status.into()))?;
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
            Kind::Outside => match Fact::decode(OUTSIDE, payload) {
                Ok(Fact::Outside { asset, outside }) => Ok(Entry::Outside { asset, outside }),
                _ => Err(malformed()),
            },
            Kind::Mark => payload.is_empty().then_some(Entry::Mark).ok_or_else(malformed),
            Kind::Digest => {
                let digest = U128::read_from_bytes(payload).map_err(|_| malformed())?.get();
                Ok(Entry::Digest { digest })
            }
        }
    }
}

/// Copies both parts into `buffer`, one behind the other, and returns their length in bytes.
pub(super) fn join(buffer: &mut [u8; PAYLOAD_BYTES_MAX], fixed: &[u8], rest: &[u8]) -> usize {
    let length = fixed.len() + rest.len();
    buffer[..fixed.len()].copy_from_slice(fixed);
    buffer[fixed.len()..length].copy_from_slice(rest);
    length
}

#[cfg(test)]
mod tests {
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
    fn an_order_leads_back_to_its_transfer() {
        for order in [order(), Order { cid: Text::EMPTY, ..order() }] {
            let intent = order.intent().expect("a transfer's");
            assert_eq!(Order::new(&intent, order.op), order);
        }
        for none in [
            Order { req_id: 0, ..order() },
            Order { user: 0, ..order() },
            Order { user: 1 << 63, ..order() },
            Order { amount: 0, ..order() },
        ] {
            assert_eq!(none.intent(), None, "{none:?}");
        }
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
            assert_eq!(Entry::decode(entry.kind() as u8, &encoded(&entry)), Ok(entry));
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
    fn foreign_bytes_are_refused() {
        assert_eq!(Entry::decode(7, &[]), Err(Error::Kind(7)));
        assert_eq!(Entry::decode(5, &[0]), Err(Error::Payload { kind: Kind::Mark, bytes: 1 }));
        let mut bytes = encoded(&Entry::Order {
            order: order(),
            decision: Decision::Success,
            balance_after: 0,
            imposed: false,
        });
        bytes[62] = 9;
        assert_eq!(Entry::decode(1, &bytes), Err(Error::Field { field: "op", number: 9 }));
        // A refusal is none, or of what has none.
        bytes[62] = 1;
        assert_eq!(Entry::decode(8, &bytes), Err(Error::Field { field: "code", number: 0 }));
        (bytes[60], bytes[62]) = (24, 3);
        assert_eq!(Entry::decode(8, &bytes), Err(Error::Field { field: "op", number: 3 }));
        bytes.pop();
        assert_eq!(Entry::decode(1, &bytes), Err(Error::Payload { kind: Kind::Order, bytes: 66 }));
    }
}
