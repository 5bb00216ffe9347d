//! The facts a ledger consists of: what a snapshot holds one after the other, and what a digest adds up.
//!
//! A fact has one form in bytes, little endian, without padding; its digest is XXH3-128 of its tag and those bytes. The
//! digest of a state is the sum of its facts' digests modulo 2^128, so that it does not depend on their order and each
//! change costs two of them. An outcome that leaves memory goes on counting, by the sum of those that have left: so a
//! digest tells what the log adds up to, and not when its reader forgot what.
//!
//! | tag | fact | bytes |
//! |---|---|---|
//! | 1 | asset | asset 4, precision 1, symbol length 1, symbol 16 (padded with zeros) |
//! | 2 | account | user 8, status 1 |
//! | 3 | balance | available 16, deposits 16, withdrawals 16, refunds 16, user 8, asset 4 |
//! | 4 | outcome | req_id 16, balance_after 16, user 8, amount 8, sequence 8, time_ns 8, order_number 8, asset 4, code 2 (0 = success), op 1 |
//! | 5 | watermark | order_number 8 |
//! | 6 | evicted | digest 16: the sum over the outcomes that have left, and its own digest |
//! | 7 | outside | deposited 16, withdrawn 16, deposits 8, withdrawals 8, asset 4: all external operations of an asset |

use std::mem::size_of;

use domain::account::AccountStatus;
use domain::asset::SYMBOL_BYTES_MAX;
use domain::code::Code;
use domain::transfer::op::Sum;
use domain::transfer::{Decision, Op};
use xxhash_rust::xxh3::xxh3_128;
use zerocopy::little_endian::{U16, U32, U64, U128};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::external::Outside;
use super::order::{Error, Text};
use super::outcomes::Recorded;

/// What has ever been done to one balance, smallest units.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Successful deposits.
    pub deposits: u128,
    /// Successful withdrawals.
    pub withdrawals: u128,
    /// Successful refunds.
    pub refunds: u128,
}

impl Totals {
    /// The balance they leave, `None` where it would be negative or above what a u128 holds.
    pub fn available(&self) -> Option<u128> {
        self.deposits.checked_add(self.refunds)?.checked_sub(self.withdrawals)
    }

    /// The total of one operation, 0 for those that UBSCore has not.
    pub fn of(&self, op: Op) -> u128 {
        match op.row().sum {
            Some(Sum::Deposits) => self.deposits,
            Some(Sum::Withdrawals) => self.withdrawals,
            Some(Sum::Refunds) => self.refunds,
            None => 0,
        }
    }

    /// Whether 2^62 more of the largest amounts leave every sum within a u128. Beyond, no log can have led here.
    pub(super) fn leave_room(&self) -> bool {
        [self.deposits, self.withdrawals, self.refunds].iter().all(|&total| total <= 1 << 126)
    }

    /// These without those of `part`, `None` where it holds more.
    pub(super) fn without(&self, part: Totals) -> Option<Totals> {
        Some(Totals {
            deposits: self.deposits.checked_sub(part.deposits)?,
            withdrawals: self.withdrawals.checked_sub(part.withdrawals)?,
            refunds: self.refunds.checked_sub(part.refunds)?,
        })
    }

    /// These and one success more. A u128 holds 2^64 of the largest amounts, so that no legal sequence overflows.
    pub(super) fn with(self, op: Op, amount: u64) -> Totals {
        let grown = self.of(op).checked_add(u128::from(amount));
        let grown = grown.unwrap_or_else(|| panic!("{amount} more than {self:?}"));
        match op.row().sum {
            Some(Sum::Deposits) => Totals { deposits: grown, ..self },
            Some(Sum::Withdrawals) => Totals { withdrawals: grown, ..self },
            Some(Sum::Refunds) => Totals { refunds: grown, ..self },
            None => unreachable!("no balance has a sum of {op}"),
        }
    }
}

/// One thing that is so in a ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fact {
    /// UBSCore knows this asset.
    Asset {
        /// Its number.
        asset: u32,
        /// Its decimals.
        precision: u8,
        /// Its symbol.
        symbol: Text<SYMBOL_BYTES_MAX>,
    },
    /// A user has a Spot account.
    Account {
        /// Whose.
        user: u64,
        /// What it may do.
        status: AccountStatus,
    },
    /// A user has had money on Spot.
    Balance {
        /// Whose.
        user: u64,
        /// Of what.
        asset: u32,
        /// Smallest units.
        available: u128,
        /// What it has come from.
        totals: Totals,
    },
    /// An operation has been decided.
    Outcome {
        /// Of which transfer.
        req_id: u128,
        /// Which operation.
        op: Op,
        /// What was decided.
        recorded: Recorded,
    },
    /// Outcomes of smaller order numbers may be forgotten.
    Watermark {
        /// The smallest that must be kept.
        order_number: u64,
    },
    /// Outcomes have been forgotten.
    Evicted {
        /// The sum of their digests.
        digest: u128,
    },
    /// External operations of an asset have been recorded.
    Outside {
        /// Of which asset.
        asset: u32,
        /// All of them, those included whose outcomes have been forgotten.
        outside: Outside,
    },
}

/// The most bytes a fact has.
pub const FACT_BYTES_MAX: usize = size_of::<OutcomeBytes>();

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct AssetBytes {
    asset: U32,
    precision: u8,
    symbol_length: u8,
    symbol: [u8; SYMBOL_BYTES_MAX],
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct AccountBytes {
    user: U64,
    status: u8,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct BalanceBytes {
    available: U128,
    deposits: U128,
    withdrawals: U128,
    refunds: U128,
    user: U64,
    asset: U32,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct OutcomeBytes {
    req_id: U128,
    balance_after: U128,
    user: U64,
    amount: U64,
    sequence: U64,
    time_ns: U64,
    order_number: U64,
    asset: U32,
    code: U16,
    op: u8,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct OutsideBytes {
    deposited: U128,
    withdrawn: U128,
    deposits: U64,
    withdrawals: U64,
    asset: U32,
}

const ASSET: u8 = 1;
const ACCOUNT: u8 = 2;
const BALANCE: u8 = 3;
const OUTCOME: u8 = 4;
const WATERMARK: u8 = 5;
const EVICTED: u8 = 6;
pub(super) const OUTSIDE: u8 = 7;

impl Fact {
    /// Its tag, and its bytes written into `buffer`: how many.
    pub fn encode(&self, buffer: &mut [u8; FACT_BYTES_MAX]) -> (u8, usize) {
        fn put(buffer: &mut [u8], bytes: &(impl IntoBytes + Immutable)) -> usize {
            let bytes = bytes.as_bytes();
            buffer[..bytes.len()].copy_from_slice(bytes);
            bytes.len()
        }
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
            Fact::Balance { user, asset, available, totals } => {
                let bytes = BalanceBytes {
                    available: available.into(),
                    deposits: totals.deposits.into(),
                    withdrawals: totals.withdrawals.into(),
                    refunds: totals.refunds.into(),
                    user: user.into(),
                    asset: asset.into(),
                };
                (BALANCE, put(buffer, &bytes))
            }
            Fact::Outcome { req_id, op, ref recorded } => {
                let code = match recorded.decision {
                    Decision::Success => 0,
                    Decision::Refused(code) => code as u16,
                };
                let bytes = OutcomeBytes {
                    req_id: req_id.into(),
                    balance_after: recorded.balance_after.into(),
                    user: recorded.user.into(),
                    amount: recorded.amount.into(),
                    sequence: recorded.sequence.into(),
                    time_ns: recorded.time_ns.into(),
                    order_number: recorded.order_number.into(),
                    asset: recorded.asset.into(),
                    code: code.into(),
                    op: op as u8,
                };
                (OUTCOME, put(buffer, &bytes))
            }
            Fact::Watermark { order_number } => (WATERMARK, put(buffer, &U64::from(order_number))),
            Fact::Evicted { digest } => (EVICTED, put(buffer, &U128::from(digest))),
            Fact::Outside { asset, outside } => {
                let bytes = OutsideBytes {
                    deposited: outside.deposited.into(),
                    withdrawn: outside.withdrawn.into(),
                    deposits: outside.deposits.into(),
                    withdrawals: outside.withdrawals.into(),
                    asset: asset.into(),
                };
                (OUTSIDE, put(buffer, &bytes))
            }
        }
    }

    /// The bytes a fact with this tag has, `None` for a tag of a later version.
    pub fn bytes_of(tag: u8) -> Option<usize> {
        match tag {
            ASSET => Some(size_of::<AssetBytes>()),
            ACCOUNT => Some(size_of::<AccountBytes>()),
            BALANCE => Some(size_of::<BalanceBytes>()),
            OUTCOME => Some(size_of::<OutcomeBytes>()),
            WATERMARK => Some(size_of::<U64>()),
            EVICTED => Some(size_of::<U128>()),
            OUTSIDE => Some(size_of::<OutsideBytes>()),
            _ => None,
        }
    }

    /// Reads a fact back. `bytes`: as many as [`Fact::bytes_of`] says.
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
                // Bytes behind the symbol would not come back, and the digest would not be that of these bytes.
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
                let (user, asset) = (fixed.user.get(), fixed.asset.get());
                let totals = Totals {
                    deposits: fixed.deposits.get(),
                    withdrawals: fixed.withdrawals.get(),
                    refunds: fixed.refunds.get(),
                };
                Ok(Fact::Balance { user, asset, available: fixed.available.get(), totals })
            }
            OUTCOME => {
                let fixed = OutcomeBytes::ref_from_bytes(bytes).map_err(|_| malformed())?;
                let op = Op::from_number(fixed.op).ok_or_else(|| field("op", fixed.op.into()))?;
                let decision = match fixed.code.get() {
                    0 => Decision::Success,
                    number => Decision::Refused(
                        Code::from_number(number).ok_or_else(|| field("code", number.into()))?,
                    ),
                };
                let recorded = Recorded {
                    user: fixed.user.get(),
                    asset: fixed.asset.get(),
                    amount: fixed.amount.get(),
                    decision,
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
                let outside = Outside {
                    deposits: fixed.deposits.get(),
                    deposited: fixed.deposited.get(),
                    withdrawals: fixed.withdrawals.get(),
                    withdrawn: fixed.withdrawn.get(),
                };
                Ok(Fact::Outside { asset: fixed.asset.get(), outside })
            }
            _ => Err(malformed()),
        }
    }

    /// Its part of a state's digest.
    pub fn digest(&self) -> u128 {
        if let Fact::Evicted { digest } = *self {
            return digest;
        }
        let mut buffer = [0; FACT_BYTES_MAX];
        let (tag, length) = self.encode(&mut buffer);
        // In one piece: hashing a stream of two costs several times as much, and this is done for every order.
        let mut tagged = [0; FACT_BYTES_MAX + 1];
        tagged[0] = tag;
        tagged[1..=length].copy_from_slice(&buffer[..length]);
        xxh3_128(&tagged[..=length])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fact_reads_back_as_written() {
        let recorded = Recorded {
            user: 7,
            asset: 3,
            amount: 5,
            decision: Decision::Refused(Code::InsufficientBalance),
            balance_after: u128::MAX,
            sequence: 9,
            time_ns: 11,
            order_number: 13,
        };
        for fact in [
            Fact::Asset { asset: 3, precision: 8, symbol: Text::new("USDT").expect("short") },
            Fact::Account { user: 7, status: AccountStatus::Frozen },
            Fact::Balance {
                user: 7,
                asset: 3,
                available: u128::MAX,
                totals: Totals { deposits: 1 << 100, withdrawals: 2 << 100, refunds: 3 << 100 },
            },
            Fact::Outcome { req_id: u128::MAX, op: Op::Refund, recorded },
            Fact::Watermark { order_number: u64::MAX },
            Fact::Evicted { digest: u128::MAX - 1 },
            Fact::Outside {
                asset: 3,
                outside: Outside { deposits: 1, deposited: 1 << 90, withdrawals: 2, withdrawn: 7 },
            },
        ] {
            let mut buffer = [0; FACT_BYTES_MAX];
            let (tag, length) = fact.encode(&mut buffer);
            assert_eq!(Fact::bytes_of(tag), Some(length));
            assert_eq!(Fact::decode(tag, &buffer[..length]), Ok(fact));
        }
    }

    /// Found by a seed of a fuzz target: bytes behind a symbol were passed over, so that one fact had many forms.
    #[test]
    fn a_symbol_is_padded_with_zeros_and_nothing_else() {
        let mut buffer = [0; FACT_BYTES_MAX];
        let symbol = Text::new("USDT").expect("short");
        let (tag, length) = Fact::Asset { asset: 3, precision: 8, symbol }.encode(&mut buffer);
        buffer[length - 1] = b'x';
        let malformed = Error::Field { field: "fact tag", number: tag.into() };
        assert_eq!(Fact::decode(tag, &buffer[..length]), Err(malformed));
    }
}
