//! The facts of a ledger: a snapshot holds them one after the other, and a digest adds them up.
//!
//! A fact has one form in bytes, little endian, without padding. Its digest is the XXH3-128 of its
//! tag and these bytes. The digest of a state is the sum of its facts' digests modulo 2^128: it
//! does not depend on their order, and each change costs two of them. Evicted outcomes still count,
//! by the sum of their digests. So a digest depends on the log only, and not on the moment at which
//! a reader has forgotten an outcome.
//!
//! | tag | fact | bytes |
//! |---|---|---|
//! | 1 | asset | asset 4, precision 1, symbol length 1, symbol 16 (padded with zeros) |
//! | 2 | account | user 8, status 1 |
//! | 3 | balance | available 16, deposits 16, withdrawals 16, refunds 16, user 8, asset 4 |
//! | 4 | outcome | the fields of `OutcomeBytes` in their order; code 0 is a success |
//! | 5 | watermark | order_number 8 |
//! | 6 | evicted | digest 16: the sum over the evicted outcomes; it is also this fact's digest |
//! | 7 | outside | deposited 16, withdrawn 16, deposits 8, withdrawals 8, asset 4 |
//! | 8 | balance that postings have named | as 3, then held 16, traded 16: one of both is not 0 |
//! | 9 | hold | the fields of `HoldBytes` in their order; venue 0 is a freeze |
//! | 10 | venue | the fields of `VenueBytes`; flags: 1 closed, 2 may POST |
//! | 11 | answer in a window | the fields of `AnswerBytes`; code 0 is a success |
//! | 12 | outcome of a posting by name | the fields of `NamedBytes`; code 0 is a success |
//! | 13 | hold of a transaction | the fields of `NamedHoldBytes` in their order |
//! | 14 | crossed | brought less taken 16, not 0; asset 4: see `crossed.rs` |
//! | 15 | the same, out of a freeze | as 13, then purpose 2: it is not 0 |

mod bytes;

use std::mem::size_of;

use domain::account::AccountStatus;
use domain::asset::SYMBOL_BYTES_MAX;
use domain::transfer::{Decision, Op};
use xxhash_rust::xxh3::xxh3_128;
use zerocopy::little_endian::{U16, U64, U128};
use zerocopy::{FromBytes, Immutable, IntoBytes};

pub use self::bytes::VENUE_NAME_BYTES_MAX;
use self::bytes::{
    AccountBytes, AnswerBytes, AssetBytes, BalanceBytes, FrozenHoldBytes, HoldBytes, NamedBytes,
    NamedHoldBytes, OutcomeBytes, TradedBytes, VenueBytes,
};
use crate::crossed::CrossedBytes;
use crate::external::{Outside, OutsideBytes};
use crate::record::{Error, decision_number, decision_of};
use crate::recorded::Recorded;
use crate::text::Text;
use crate::totals::Totals;

/// One fact of a ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fact {
    /// A registered asset.
    Asset {
        /// Its number.
        asset: u32,
        /// Its decimals.
        precision: u8,
        /// Its symbol.
        symbol: Text<SYMBOL_BYTES_MAX>,
    },
    /// A Spot account.
    Account {
        /// The account's user.
        user: u64,
        /// Its status.
        status: AccountStatus,
    },
    /// A Spot balance that has had an operation.
    Balance {
        /// The balance's user.
        user: u64,
        /// The balance's asset.
        asset: u32,
        /// Smallest units, without holds and freezes.
        available: u128,
        /// All its holds and freezes, smallest units.
        held: u128,
        /// All that postings have brought less all that they have taken, smallest units.
        traded: i128,
        /// All its operations.
        totals: Totals,
    },
    /// A decided operation.
    Outcome {
        /// The transfer, or the key of an external operation.
        req_id: u128,
        /// The operation.
        op: Op,
        /// The decision.
        recorded: Recorded,
    },
    /// Outcomes of smaller order numbers may be forgotten.
    Watermark {
        /// The smallest number to be kept.
        order_number: u64,
    },
    /// All evicted outcomes.
    Evicted {
        /// The sum of their digests.
        digest: u128,
    },
    /// The external operations of an asset.
    Outside {
        /// The asset's number.
        asset: u32,
        /// All of them, also those with evicted outcomes.
        outside: Outside,
    },
    /// Money of an asset that transactions have brought to Spot less all that they have taken.
    Crossed {
        /// The asset's number.
        asset: u32,
        /// Smallest units, not 0.
        brought: i128,
    },
    /// A hold or a freeze.
    Hold(HoldFact),
    /// A venue.
    Venue(VenueFact),
    /// An answer in a venue's window.
    Answer(AnswerFact),
    /// A decided posting by name.
    Named(NamedFact),
}

/// A hold of a venue or of a transaction, or a freeze.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HoldFact {
    /// The venue; 0 for a freeze and for a hold of a transaction.
    pub venue: u32,
    /// The transaction; 0 for a freeze and for a hold of a venue.
    pub transaction: u128,
    /// The number of the command that made it; 0 for a freeze. The holds of a transaction are
    /// numbered from 1, and a number that is free again is the next one.
    pub number: u64,
    /// The purpose of a freeze, and of the freeze that a hold of a transaction takes from; else 0.
    pub purpose: u16,
    /// The owner.
    pub user: u64,
    /// The asset's number.
    pub asset: u32,
    /// Smallest units, not 0.
    pub amount: u128,
    /// The venue's reference; 0 for a freeze and for a hold of a transaction.
    pub reference: u64,
    /// The record that made it.
    pub record: wal::Sequence,
    /// The time of that record, ns since the Unix epoch.
    pub time_ns: u64,
    /// A place for a balance is kept free for its SETTLE. Never of a hold of a transaction: its
    /// RESERVE keeps all places, see [`NamedFact::kept`].
    pub keeps: bool,
}

/// The outcome of a posting by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NamedFact {
    /// The transaction, not 0.
    pub transaction: u128,
    /// RESERVE, SETTLE, RELEASE or POST.
    pub op: Op,
    /// 1..=8; 0 for a SETTLE and a RELEASE, which end all rounds.
    pub round: u8,
    /// XXH3-128 of the legs.
    pub hash: u128,
    /// The user of a user's transaction, else 0.
    pub reference: u64,
    /// The record that holds the decision.
    pub record: wal::Sequence,
    /// The time of that record, ns since the Unix epoch.
    pub time_ns: u64,
    /// The transaction's position in the order of accepts.
    pub order_number: u64,
    /// The decision.
    pub decision: Decision,
    /// The failing leg from 0; 0 for a success.
    pub leg: u8,
    /// The places that are kept free for the end of its transaction.
    pub kept: Kept,
}

/// The places that the last successful RESERVE of a transaction keeps free, until its end. Accounts
/// and balances are counted as if none of the payees had one, and freezes as if there were none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Kept {
    /// Accounts.
    pub accounts: u8,
    /// Balances.
    pub balances: u8,
    /// Freezes.
    pub freezes: u8,
    /// 1 for the outcome of its SETTLE or RELEASE. With 0 nothing is kept.
    pub outcomes: u8,
}

impl NamedFact {
    /// Whether it is the RESERVE of a transaction with open holds.
    pub fn is_open(&self) -> bool {
        self.kept.outcomes != 0
    }
}

/// A venue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VenueFact {
    /// Its number, not 0.
    pub id: u32,
    /// The epoch of its last session, 0 for none.
    pub epoch: u64,
    /// The last number acknowledged.
    pub acknowledged: u64,
    /// An operator has closed it.
    pub closed: bool,
    /// It may POST.
    pub posts: bool,
    /// Its name, not empty.
    pub name: Text<VENUE_NAME_BYTES_MAX>,
}

/// An answer in a venue's window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AnswerFact {
    /// The venue.
    pub venue: u32,
    /// The command's number.
    pub number: u64,
    /// XXH3-64 of the command's body.
    pub hash: u64,
    /// The record that holds the decision.
    pub record: wal::Sequence,
    /// The decision.
    pub decision: Decision,
    /// The failing leg.
    pub leg: u8,
}

/// The most bytes of a fact.
pub const FACT_BYTES_MAX: usize = size_of::<TradedBytes>();

const _: () = assert!(size_of::<OutcomeBytes>() <= FACT_BYTES_MAX);
const _: () = assert!(size_of::<FrozenHoldBytes>() <= FACT_BYTES_MAX);
const _: () = assert!(size_of::<NamedBytes>() <= FACT_BYTES_MAX);
const _: () = assert!(size_of::<NamedHoldBytes>() <= FACT_BYTES_MAX);
const _: () = assert!(size_of::<HoldBytes>() <= FACT_BYTES_MAX);
const _: () = assert!(size_of::<VenueBytes>() <= FACT_BYTES_MAX);
const _: () = assert!(size_of::<OutsideBytes>() <= FACT_BYTES_MAX);
const _: () = assert!(size_of::<CrossedBytes>() <= FACT_BYTES_MAX);

impl BalanceBytes {
    fn read(&self, held: u128, traded: i128) -> Fact {
        let totals = Totals {
            deposits: self.deposits.get(),
            withdrawals: self.withdrawals.get(),
            refunds: self.refunds.get(),
        };
        let (user, asset, available) = (self.user.get(), self.asset.get(), self.available.get());
        Fact::Balance { user, asset, available, held, traded, totals }
    }
}

fn decode_hold(bytes: &[u8]) -> Result<Fact, Error> {
    let field = |field, number: u64| Error::Field { field, number };
    let malformed = || field("fact tag", HOLD.into());
    let fixed = HoldBytes::ref_from_bytes(bytes).map_err(|_| malformed())?;
    Ok(Fact::Hold(HoldFact {
        venue: fixed.venue.get(),
        transaction: 0,
        number: fixed.number.get(),
        purpose: fixed.purpose.get(),
        user: fixed.user.get(),
        asset: fixed.asset.get(),
        amount: fixed.amount.get(),
        reference: fixed.reference.get(),
        record: fixed.record.get(),
        time_ns: fixed.time_ns.get(),
        keeps: match fixed.keeps {
            0 => false,
            1 => true,
            other => return Err(field("keeps", other.into())),
        },
    }))
}

/// The hold of a transaction, of tag 13 or 15.
fn decode_named_hold(tag: u8, bytes: &[u8]) -> Result<Fact, Error> {
    let malformed = || Error::Field { field: "fact tag", number: tag.into() };
    let (fixed, rest) = NamedHoldBytes::ref_from_prefix(bytes).map_err(|_| malformed())?;
    let purpose = match tag {
        NAMED_HOLD if rest.is_empty() => 0,
        NAMED_HOLD => return Err(malformed()),
        _ => {
            let purpose = U16::read_from_bytes(rest).map_err(|_| malformed())?.get();
            // One fact has one form: without a purpose it is of tag 13.
            Some(purpose).filter(|purpose| *purpose != 0).ok_or_else(malformed)?
        }
    };
    // One fact has one form: without a transaction it is a freeze.
    let transaction = Some(fixed.transaction.get()).filter(|number| *number != 0);
    Ok(Fact::Hold(HoldFact {
        venue: 0,
        transaction: transaction.ok_or_else(malformed)?,
        number: fixed.number.get(),
        purpose,
        user: fixed.user.get(),
        asset: fixed.asset.get(),
        amount: fixed.amount.get().into(),
        reference: 0,
        record: fixed.record.get(),
        time_ns: fixed.time_ns.get(),
        keeps: false,
    }))
}

fn decode_named(bytes: &[u8]) -> Result<Fact, Error> {
    let field = |field, number: u64| Error::Field { field, number };
    let malformed = || field("fact tag", NAMED.into());
    let fixed = NamedBytes::ref_from_bytes(bytes).map_err(|_| malformed())?;
    let op = Op::from_number(fixed.op).filter(|op| op.is_posting());
    Ok(Fact::Named(NamedFact {
        transaction: fixed.transaction.get(),
        op: op.ok_or_else(|| field("op", fixed.op.into()))?,
        round: fixed.round,
        hash: fixed.hash.get(),
        reference: fixed.reference.get(),
        record: fixed.record.get(),
        time_ns: fixed.time_ns.get(),
        order_number: fixed.order_number.get(),
        decision: decision_of(fixed.code.get())?,
        leg: fixed.leg,
        kept: Kept {
            accounts: fixed.accounts,
            balances: fixed.balances,
            freezes: fixed.freezes,
            outcomes: fixed.outcomes,
        },
    }))
}

fn decode_venue(bytes: &[u8]) -> Result<Fact, Error> {
    let field = |field, number: u64| Error::Field { field, number };
    let malformed = || field("fact tag", VENUE.into());
    let fixed = VenueBytes::ref_from_bytes(bytes).map_err(|_| malformed())?;
    let split = fixed.name.split_at_checked(usize::from(fixed.name_length));
    let name = split.filter(|(_, padding)| padding.iter().all(|&byte| byte == 0));
    let name = name.and_then(|(name, _)| Text::from_bytes(name));
    if fixed.flags & !(CLOSED | POSTS) != 0 {
        return Err(field("flags", fixed.flags.into()));
    }
    Ok(Fact::Venue(VenueFact {
        id: fixed.id.get(),
        epoch: fixed.epoch.get(),
        acknowledged: fixed.acknowledged.get(),
        closed: fixed.flags & CLOSED != 0,
        posts: fixed.flags & POSTS != 0,
        name: name.ok_or_else(malformed)?,
    }))
}

fn flag(set: bool, bit: u8) -> u8 {
    if set { bit } else { 0 }
}

const ASSET: u8 = 1;
const ACCOUNT: u8 = 2;
const BALANCE: u8 = 3;
const OUTCOME: u8 = 4;
const WATERMARK: u8 = 5;
const EVICTED: u8 = 6;
const OUTSIDE: u8 = 7;
const TRADED: u8 = 8;
const HOLD: u8 = 9;
const VENUE: u8 = 10;
const ANSWER: u8 = 11;
const NAMED: u8 = 12;
const NAMED_HOLD: u8 = 13;
const CROSSED: u8 = 14;
const FROZEN_HOLD: u8 = 15;

/// Writes `bytes` into `buffer`. Returns their number.
fn put(buffer: &mut [u8], bytes: &(impl IntoBytes + Immutable)) -> usize {
    let bytes = bytes.as_bytes();
    buffer[..bytes.len()].copy_from_slice(bytes);
    bytes.len()
}

impl HoldFact {
    /// See [`Fact::encode`].
    fn encode(&self, buffer: &mut [u8; FACT_BYTES_MAX]) -> (u8, usize) {
        if self.transaction != 0 {
            let bytes = NamedHoldBytes {
                transaction: self.transaction.into(),
                number: self.number.into(),
                amount: u64::try_from(self.amount).expect("the judge has checked it").into(),
                user: self.user.into(),
                record: self.record.into(),
                time_ns: self.time_ns.into(),
                asset: self.asset.into(),
            };
            return match self.purpose {
                0 => (NAMED_HOLD, put(buffer, &bytes)),
                purpose => {
                    let bytes = FrozenHoldBytes { hold: bytes, purpose: purpose.into() };
                    (FROZEN_HOLD, put(buffer, &bytes))
                }
            };
        }
        let bytes = HoldBytes {
            amount: self.amount.into(),
            number: self.number.into(),
            user: self.user.into(),
            reference: self.reference.into(),
            record: self.record.into(),
            time_ns: self.time_ns.into(),
            venue: self.venue.into(),
            asset: self.asset.into(),
            purpose: self.purpose.into(),
            keeps: self.keeps.into(),
        };
        (HOLD, put(buffer, &bytes))
    }
}

impl NamedFact {
    /// See [`Fact::encode`].
    fn encode(&self, buffer: &mut [u8; FACT_BYTES_MAX]) -> (u8, usize) {
        let bytes = NamedBytes {
            transaction: self.transaction.into(),
            hash: self.hash.into(),
            reference: self.reference.into(),
            record: self.record.into(),
            time_ns: self.time_ns.into(),
            order_number: self.order_number.into(),
            code: decision_number(self.decision).into(),
            op: self.op.number(),
            round: self.round,
            leg: self.leg,
            accounts: self.kept.accounts,
            balances: self.kept.balances,
            freezes: self.kept.freezes,
            outcomes: self.kept.outcomes,
        };
        (NAMED, put(buffer, &bytes))
    }
}

/// In the flags of a venue.
const CLOSED: u8 = 1;
const POSTS: u8 = 2;

impl Fact {
    /// Writes the fact into `buffer`. Returns its tag and its length in bytes.
    pub fn encode(&self, buffer: &mut [u8; FACT_BYTES_MAX]) -> (u8, usize) {
        match *self {
            Fact::Asset { asset, precision, symbol } => {
                let text = symbol.as_str().as_bytes();
                let mut padded = [0; SYMBOL_BYTES_MAX];
                padded[..text.len()].copy_from_slice(text);
                let symbol_length = u8::try_from(text.len()).expect("a symbol is short");
                let asset = asset.into();
                let bytes = AssetBytes { asset, precision, symbol_length, symbol: padded };
                (ASSET, put(buffer, &bytes))
            }
            Fact::Account { user, status } => {
                (ACCOUNT, put(buffer, &AccountBytes { user: user.into(), status: status as u8 }))
            }
            Fact::Balance { user, asset, available, held, traded, totals } => {
                let balance = BalanceBytes {
                    available: available.into(),
                    deposits: totals.deposits.into(),
                    withdrawals: totals.withdrawals.into(),
                    refunds: totals.refunds.into(),
                    user: user.into(),
                    asset: asset.into(),
                };
                // A balance that nothing has traded keeps its old form, and old digests hold.
                if (held, traded) == (0, 0) {
                    return (BALANCE, put(buffer, &balance));
                }
                let bytes = TradedBytes { balance, held: held.into(), traded: traded.into() };
                (TRADED, put(buffer, &bytes))
            }
            Fact::Outcome { req_id, op, ref recorded } => {
                let bytes = OutcomeBytes {
                    req_id: req_id.into(),
                    balance_after: recorded.balance_after.into(),
                    user: recorded.user.into(),
                    amount: recorded.amount.into(),
                    sequence: recorded.sequence.into(),
                    time_ns: recorded.time_ns.into(),
                    order_number: recorded.order_number.into(),
                    asset: recorded.asset.into(),
                    code: decision_number(recorded.decision).into(),
                    op: op as u8,
                };
                (OUTCOME, put(buffer, &bytes))
            }
            Fact::Watermark { order_number } => (WATERMARK, put(buffer, &U64::from(order_number))),
            Fact::Evicted { digest } => (EVICTED, put(buffer, &U128::from(digest))),
            Fact::Outside { asset, outside } => {
                (OUTSIDE, put(buffer, &OutsideBytes::new(asset, outside)))
            }
            Fact::Crossed { asset, brought } => {
                (CROSSED, put(buffer, &CrossedBytes::new(asset, brought)))
            }
            Fact::Hold(ref hold) => hold.encode(buffer),
            Fact::Venue(ref venue) => {
                let text = venue.name.as_bytes();
                let mut name = [0; VENUE_NAME_BYTES_MAX];
                name[..text.len()].copy_from_slice(text);
                let bytes = VenueBytes {
                    epoch: venue.epoch.into(),
                    acknowledged: venue.acknowledged.into(),
                    id: venue.id.into(),
                    flags: flag(venue.closed, CLOSED) | flag(venue.posts, POSTS),
                    name_length: venue.name.length(),
                    name,
                };
                (VENUE, put(buffer, &bytes))
            }
            Fact::Answer(ref answer) => {
                let bytes = AnswerBytes {
                    number: answer.number.into(),
                    hash: answer.hash.into(),
                    record: answer.record.into(),
                    venue: answer.venue.into(),
                    code: decision_number(answer.decision).into(),
                    leg: answer.leg,
                };
                (ANSWER, put(buffer, &bytes))
            }
            Fact::Named(ref named) => named.encode(buffer),
        }
    }

    /// The length of a fact with this tag, in bytes; `None` for a tag of a later version.
    pub fn bytes_of(tag: u8) -> Option<usize> {
        match tag {
            ASSET => Some(size_of::<AssetBytes>()),
            ACCOUNT => Some(size_of::<AccountBytes>()),
            BALANCE => Some(size_of::<BalanceBytes>()),
            OUTCOME => Some(size_of::<OutcomeBytes>()),
            WATERMARK => Some(size_of::<U64>()),
            EVICTED => Some(size_of::<U128>()),
            OUTSIDE => Some(size_of::<OutsideBytes>()),
            TRADED => Some(size_of::<TradedBytes>()),
            HOLD => Some(size_of::<HoldBytes>()),
            VENUE => Some(size_of::<VenueBytes>()),
            ANSWER => Some(size_of::<AnswerBytes>()),
            NAMED => Some(size_of::<NamedBytes>()),
            NAMED_HOLD => Some(size_of::<NamedHoldBytes>()),
            CROSSED => Some(size_of::<CrossedBytes>()),
            FROZEN_HOLD => Some(size_of::<FrozenHoldBytes>()),
            _ => None,
        }
    }

    /// Reads a fact. `bytes` has the length [`Fact::bytes_of`].
    ///
    /// # Errors
    /// [`Error`]: this version cannot read it.
    pub fn decode(tag: u8, bytes: &[u8]) -> Result<Fact, Error> {
        let field = |field, number: u64| Error::Field { field, number };
        let malformed = || field("fact tag", tag.into());
        match tag {
            ASSET => {
                let fixed = AssetBytes::ref_from_bytes(bytes).map_err(|_| malformed())?;
                let split = fixed.symbol.split_at_checked(usize::from(fixed.symbol_length));
                // The padding is zeros: other bytes would be lost, and the digest with them.
                let symbol = split.filter(|(_, padding)| padding.iter().all(|&byte| byte == 0));
                let symbol = symbol.and_then(|(symbol, _)| std::str::from_utf8(symbol).ok());
                let symbol = symbol.and_then(Text::new).ok_or_else(malformed)?;
                Ok(Fact::Asset { asset: fixed.asset.get(), precision: fixed.precision, symbol })
            }
            ACCOUNT => {
                let fixed = AccountBytes::ref_from_bytes(bytes).map_err(|_| malformed())?;
                let status = AccountStatus::from_number(fixed.status)
                    .ok_or_else(|| field("status", fixed.status.into()))?;
                Ok(Fact::Account { user: fixed.user.get(), status })
            }
            BALANCE => {
                let fixed = BalanceBytes::ref_from_bytes(bytes).map_err(|_| malformed())?;
                Ok(fixed.read(0, 0))
            }
            TRADED => {
                let fixed = TradedBytes::ref_from_bytes(bytes).map_err(|_| malformed())?;
                let (held, traded) = (fixed.held.get(), fixed.traded.get());
                // One fact has one form.
                if (held, traded) == (0, 0) {
                    return Err(malformed());
                }
                Ok(fixed.balance.read(held, traded))
            }
            HOLD => decode_hold(bytes),
            VENUE => decode_venue(bytes),
            NAMED => decode_named(bytes),
            NAMED_HOLD | FROZEN_HOLD => decode_named_hold(tag, bytes),
            ANSWER => {
                let fixed = AnswerBytes::ref_from_bytes(bytes).map_err(|_| malformed())?;
                Ok(Fact::Answer(AnswerFact {
                    venue: fixed.venue.get(),
                    number: fixed.number.get(),
                    hash: fixed.hash.get(),
                    record: fixed.record.get(),
                    decision: decision_of(fixed.code.get())?,
                    leg: fixed.leg,
                }))
            }
            OUTCOME => {
                let fixed = OutcomeBytes::ref_from_bytes(bytes).map_err(|_| malformed())?;
                let op = Op::from_number(fixed.op).ok_or_else(|| field("op", fixed.op.into()))?;
                let recorded = Recorded {
                    user: fixed.user.get(),
                    asset: fixed.asset.get(),
                    amount: fixed.amount.get(),
                    decision: decision_of(fixed.code.get())?,
                    balance_after: fixed.balance_after.get(),
                    sequence: fixed.sequence.get(),
                    time_ns: fixed.time_ns.get(),
                    order_number: fixed.order_number.get(),
                };
                Ok(Fact::Outcome { req_id: fixed.req_id.get(), op, recorded })
            }
            WATERMARK => {
                let fixed = U64::ref_from_bytes(bytes).map_err(|_| malformed())?;
                Ok(Fact::Watermark { order_number: fixed.get() })
            }
            EVICTED => {
                let fixed = U128::ref_from_bytes(bytes).map_err(|_| malformed())?;
                Ok(Fact::Evicted { digest: fixed.get() })
            }
            OUTSIDE => {
                let fixed = OutsideBytes::ref_from_bytes(bytes).map_err(|_| malformed())?;
                let (asset, outside) = fixed.read();
                Ok(Fact::Outside { asset, outside })
            }
            CROSSED => {
                let fixed = CrossedBytes::ref_from_bytes(bytes).map_err(|_| malformed())?;
                let (asset, brought) = fixed.read().ok_or_else(malformed)?;
                Ok(Fact::Crossed { asset, brought })
            }
            _ => Err(malformed()),
        }
    }

    /// The fact's part of the state's digest.
    pub fn digest(&self) -> u128 {
        if let Fact::Evicted { digest } = *self {
            return digest;
        }
        // One piece: hashing a stream of two costs several times as much, at every order.
        let mut tagged = [0; FACT_BYTES_MAX + 1];
        let (head, rest) = tagged.split_first_mut().expect("one byte more than a fact");
        let (tag, length) = self.encode(rest.try_into().expect("as long as a fact"));
        debug_assert_eq!(Fact::bytes_of(tag), Some(length), "{self:?}");
        *head = tag;
        xxh3_128(&tagged[..=length])
    }
}

#[cfg(test)]
mod tests;
