//! An external operation in UBSCore's log: money that enters Funding from outside, or leaves it.
//!
//! PostgreSQL decides it and moves the Funding balance. UBSCore only records the decision, so that
//! a database that is set back in time cannot lose it unnoticed. The record moves no Spot balance
//! and needs no Spot account.
//!
//! | bytes | field |
//! |---|---|
//! | 16 | balance_after: the Funding balance afterwards, smallest units; 0 for a refusal |
//! | 8 | user |
//! | 8 | amount, smallest units |
//! | 8 | order_number, from the same counter as those of transfers |
//! | 4 | asset |
//! | 2 | code, 0 = success |
//! | 1 | op, 4 = EXT_DEPOSIT, 5 = EXT_WITHDRAW |
//! | 1 | length of idem_key |
//! | 1 to 64 | idem_key |

use std::mem::size_of;

use domain::account::UserId;
use domain::amount::Amount;
use domain::asset::AssetId;
use domain::transfer::op::Effect;
use domain::transfer::{CID_BYTES_MAX, Cid, Decision, ExternalOperation, Op};
use xxhash_rust::xxh3::xxh3_128;
use zerocopy::little_endian::{U16, U32, U64, U128};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::record::{Error, Kind, PAYLOAD_BYTES_MAX, decision_number, decision_of, join};
use crate::text::Text;
use crate::totals::TOTAL_MAX;

/// An external operation that PostgreSQL has decided.
///
/// Its fields are plain numbers: UBSCore checks them itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct External {
    /// EXT_DEPOSIT or EXT_WITHDRAW.
    pub op: Op,
    /// The caller's idempotency key, not empty.
    pub idem_key: Text<CID_BYTES_MAX>,
    /// The Funding account's user, 1..=2^63-1.
    pub user: u64,
    /// The asset's number.
    pub asset: u32,
    /// Smallest units, not 0.
    pub amount: u64,
    /// Its position in the order of accepts.
    pub order_number: u64,
    /// The decision of PostgreSQL.
    pub decision: Decision,
    /// The Funding balance afterwards, smallest units; 0 for a refusal.
    pub balance_after: u128,
}

impl External {
    /// The record of a decided operation: the only way from a row of PostgreSQL to a record.
    pub fn new(operation: &ExternalOperation) -> External {
        External {
            op: operation.op,
            idem_key: Text::new(operation.idem_key.as_str()).expect("a Cid fits"),
            user: operation.user.number(),
            asset: operation.asset.0,
            amount: operation.amount.units(),
            order_number: operation.order_number,
            decision: operation.decision,
            balance_after: operation.balance_after,
        }
    }

    /// The recorded operation; `None` if a field is out of range.
    pub fn operation(&self) -> Option<ExternalOperation> {
        Some(ExternalOperation {
            op: self.op,
            idem_key: Cid::of_operation(self.idem_key.as_str())?,
            user: UserId::new(self.user)?,
            asset: AssetId(self.asset),
            amount: Amount::new(self.amount)?,
            order_number: self.order_number,
            decision: self.decision,
            balance_after: self.balance_after,
        })
    }

    /// The name in the outcome map, together with the op: see [`key`].
    pub fn key(&self) -> u128 {
        key(self.idem_key.as_str())
    }

    /// Writes the payload into `buffer`. Returns its length in bytes.
    pub(crate) fn encode(&self, buffer: &mut [u8; PAYLOAD_BYTES_MAX]) -> usize {
        let fixed = ExternalBytes {
            balance_after: self.balance_after.into(),
            user: self.user.into(),
            amount: self.amount.into(),
            order_number: self.order_number.into(),
            asset: self.asset.into(),
            code: decision_number(self.decision).into(),
            op: self.op as u8,
            idem_key_length: self.idem_key.length(),
        };
        join(buffer, fixed.as_bytes(), self.idem_key.as_bytes())
    }

    /// Reads the payload of a record of [`Kind::External`].
    ///
    /// # Errors
    /// [`Error`]: this version cannot read it.
    pub(crate) fn decode(payload: &[u8]) -> Result<External, Error> {
        let malformed = || Error::Payload { kind: Kind::External, bytes: payload.len() };
        let (fixed, idem_key) = ExternalBytes::ref_from_prefix(payload).map_err(|_| malformed())?;
        if idem_key.is_empty() || idem_key.len() != usize::from(fixed.idem_key_length) {
            return Err(malformed());
        }
        let op = Op::from_number(fixed.op).filter(|op| op.is_external());
        let op = op.ok_or(Error::Field { field: "op", number: fixed.op.into() })?;
        let decision = decision_of(fixed.code.get())?;
        Ok(External {
            op,
            idem_key: Text::from_bytes(idem_key).ok_or_else(malformed)?,
            user: fixed.user.get(),
            asset: fixed.asset.get(),
            amount: fixed.amount.get(),
            order_number: fixed.order_number.get(),
            decision,
            balance_after: fixed.balance_after.get(),
        })
    }
}

/// The name of an external operation in the outcome map: a 128-bit hash of its idem_key, never 0.
///
/// It cannot collide with a req_id: transfers and external operations have different ops.
pub fn key(idem_key: &str) -> u128 {
    xxh3_128(idem_key.as_bytes()).max(1)
}

/// The cumulative external operations of one asset.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outside {
    /// Decided EXT_DEPOSITs, refusals included.
    pub deposits: u64,
    /// The sum of the successful ones, smallest units.
    pub deposited: u128,
    /// Decided EXT_WITHDRAWs, refusals included.
    pub withdrawals: u64,
    /// The sum of the successful ones, smallest units.
    pub withdrawn: u128,
}

impl Outside {
    /// One more decided operation. `op`: EXT_DEPOSIT or EXT_WITHDRAW.
    pub fn with(self, op: Op, decision: Decision, amount: u64) -> Outside {
        let moved = if decision == Decision::Success { u128::from(amount) } else { 0 };
        assert!(op.is_external(), "{op} is not external");
        match op.row().available {
            Effect::More => {
                Outside { deposits: self.deposits + 1, deposited: self.deposited + moved, ..self }
            }
            Effect::Less => Outside {
                withdrawals: self.withdrawals + 1,
                withdrawn: self.withdrawn + moved,
                ..self
            },
            Effect::Same => self,
        }
    }

    /// The difference to `part`; `None` if `part` is larger.
    pub fn without(self, part: Outside) -> Option<Outside> {
        Some(Outside {
            deposits: self.deposits.checked_sub(part.deposits)?,
            deposited: self.deposited.checked_sub(part.deposited)?,
            withdrawals: self.withdrawals.checked_sub(part.withdrawals)?,
            withdrawn: self.withdrawn.checked_sub(part.withdrawn)?,
        })
    }

    /// Whether every sum is at most [`TOTAL_MAX`] and every count at most 2^63. A larger one in a
    /// file was written by no ledger.
    pub(crate) fn leave_room(&self) -> bool {
        let sums = [self.deposited, self.withdrawn].iter().all(|&sum| sum <= TOTAL_MAX);
        sums && [self.deposits, self.withdrawals].iter().all(|&count| count <= 1 << 63)
    }
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct ExternalBytes {
    balance_after: U128,
    user: U64,
    amount: U64,
    order_number: U64,
    asset: U32,
    code: U16,
    op: u8,
    idem_key_length: u8,
}

const _: () = assert!(size_of::<ExternalBytes>() == 48);
const _: () = assert!(size_of::<ExternalBytes>() + CID_BYTES_MAX <= PAYLOAD_BYTES_MAX);

/// An asset's external operations in bytes: in a record of kind 11, and in a fact of tag 7.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct OutsideBytes {
    deposited: U128,
    withdrawn: U128,
    deposits: U64,
    withdrawals: U64,
    asset: U32,
}

const _: () = assert!(size_of::<OutsideBytes>() <= PAYLOAD_BYTES_MAX);

impl OutsideBytes {
    /// The bytes of an asset's external operations.
    pub(crate) fn new(asset: u32, outside: Outside) -> OutsideBytes {
        let Outside { deposits, deposited, withdrawals, withdrawn } = outside;
        OutsideBytes {
            deposited: deposited.into(),
            withdrawn: withdrawn.into(),
            deposits: deposits.into(),
            withdrawals: withdrawals.into(),
            asset: asset.into(),
        }
    }

    /// The asset and its external operations.
    pub(crate) fn read(&self) -> (u32, Outside) {
        let outside = Outside {
            deposits: self.deposits.get(),
            deposited: self.deposited.get(),
            withdrawals: self.withdrawals.get(),
            withdrawn: self.withdrawn.get(),
        };
        (self.asset.get(), outside)
    }
}

#[cfg(test)]
mod tests {
    use domain::code::Code;

    use super::*;

    fn external() -> External {
        External {
            op: Op::ExtWithdraw,
            idem_key: Text::new("wd-1").expect("short"),
            user: 1001,
            asset: 3,
            amount: 25_050_000_000,
            order_number: 7,
            decision: Decision::Success,
            balance_after: 5,
        }
    }

    fn encoded(external: &External) -> Vec<u8> {
        let mut buffer = [0; PAYLOAD_BYTES_MAX];
        let length = external.encode(&mut buffer);
        buffer[..length].to_vec()
    }

    #[test]
    fn the_bytes_of_an_external_operation_stay_what_they_are() {
        let mut want = vec![5, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        want.extend([0xe9, 3, 0, 0, 0, 0, 0, 0]);
        want.extend([0x80, 0xaa, 0x18, 0xd5, 5, 0, 0, 0]);
        want.extend([7, 0, 0, 0, 0, 0, 0, 0]);
        want.extend([3, 0, 0, 0, 0, 0, 5, 4]);
        want.extend(b"wd-1");
        assert_eq!(encoded(&external()), want);
        // The name in the outcome map is part of the format: snapshots hold it.
        assert_eq!(format!("{:032x}", external().key()), "b5f1aa7405e562c2f83889b208ae2732");
    }

    #[test]
    fn a_record_leads_back_to_its_operation() {
        let refused = Decision::Refused(Code::InsufficientBalance);
        for external in [external(), External { decision: refused, ..external() }] {
            assert_eq!(External::decode(&encoded(&external)), Ok(external));
            let operation = external.operation().expect("an operation");
            assert_eq!(External::new(&operation), external);
        }
        for none in [
            External { user: 0, ..external() },
            External { amount: 0, ..external() },
            External { idem_key: Text::new("a b").expect("short"), ..external() },
        ] {
            assert_eq!(none.operation(), None, "{none:?}");
        }
    }

    #[test]
    fn foreign_bytes_are_refused() {
        let bytes = encoded(&external());
        let malformed = |bytes| Error::Payload { kind: Kind::External, bytes };
        assert_eq!(External::decode(&bytes[..47]), Err(malformed(47)));
        assert_eq!(External::decode(&bytes[..51]), Err(malformed(51)));
        let mut op = bytes.clone();
        op[46] = 1;
        let wrong = Error::Field { field: "op", number: 1 };
        assert_eq!(External::decode(&op), Err(wrong));
        let mut code = bytes;
        code[44] = 0xff;
        let wrong = Error::Field { field: "code", number: 0xff };
        assert_eq!(External::decode(&code), Err(wrong));
    }
}
