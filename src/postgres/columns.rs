//! Our nouns as PostgreSQL's numbers, and back. What a column holds may be anybody's: a number that is none of ours is
//! `None`, and whoever reads it says in which row it stands.

use std::error::Error as StdError;

use bytes::{BufMut, BytesMut};
use postgres_types::{FromSql, IsNull, ToSql, Type, accepts, to_sql_checked};
use tokio_postgres::Row;

use super::Error;
use domain::account::{AccountStatus, UserId};
use domain::amount::Amount;
use domain::asset::{Asset, AssetId, Catalog};
use domain::code::Code;
use domain::transfer::{Op, ReqId};

/// The 128 bits of a ULID as a UUID.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Id(pub(super) u128);

impl Id {
    /// The UUID of a transfer's name.
    pub(super) fn of(req_id: ReqId) -> Id {
        Id(req_id.number())
    }

    /// The UUIDs of names, in their order.
    pub(super) fn all<'a>(req_ids: impl IntoIterator<Item = &'a ReqId>) -> Vec<Id> {
        req_ids.into_iter().map(|req_id| Id::of(*req_id)).collect()
    }

    /// The name; `None`: no transfer has it.
    pub(super) fn req_id(self) -> Option<ReqId> {
        ReqId::new(self.0)
    }
}

impl ToSql for Id {
    fn to_sql(
        &self,
        _: &Type,
        out: &mut BytesMut,
    ) -> Result<IsNull, Box<dyn StdError + Sync + Send>> {
        out.put_u128(self.0);
        Ok(IsNull::No)
    }

    accepts!(UUID);
    to_sql_checked!();
}

impl FromSql<'_> for Id {
    fn from_sql(_: &Type, raw: &[u8]) -> Result<Id, Box<dyn StdError + Sync + Send>> {
        Ok(Id(u128::from_be_bytes(raw.try_into()?)))
    }

    accepts!(UUID);
}

/// The status of an account; `None`: the number is none of ours.
pub(super) fn account_status(number: i16) -> Option<AccountStatus> {
    u8::try_from(number).ok().and_then(AccountStatus::from_number)
}

/// Smallest units as a NUMERIC without decimals, in PostgreSQL's binary form: digits to the base
/// 10,000, and a sign.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Numeric(pub(super) i128);

const BASE: u128 = 10_000;
const NEGATIVE: u16 = 0x4000;

impl ToSql for Numeric {
    fn to_sql(
        &self,
        _: &Type,
        out: &mut BytesMut,
    ) -> Result<IsNull, Box<dyn StdError + Sync + Send>> {
        let (mut digits, mut rest) = (Vec::with_capacity(10), self.0.unsigned_abs());
        while rest > 0 {
            digits.push(u16::try_from(rest % BASE)?);
            rest /= BASE;
        }
        let count = i16::try_from(digits.len())?;
        out.put_i16(count);
        out.put_i16(count - 1); // the weight of the first digit
        out.put_u16(if self.0 < 0 { NEGATIVE } else { 0 });
        out.put_i16(0); // decimals
        digits.into_iter().rev().for_each(|digit| out.put_u16(digit));
        Ok(IsNull::No)
    }

    accepts!(NUMERIC);
    to_sql_checked!();
}

impl FromSql<'_> for Numeric {
    fn from_sql(_: &Type, raw: &[u8]) -> Result<Numeric, Box<dyn StdError + Sync + Send>> {
        let (head, digits) = raw.split_at_checked(8).ok_or("a NUMERIC of fewer than 8 bytes")?;
        let word = |at: usize| u16::from_be_bytes([head[at], head[at + 1]]);
        let weight = i16::from_be_bytes([head[2], head[3]]);
        let mut units = 0_i128;
        let mut left = i32::from(weight) + 1;
        for pair in digits.chunks_exact(2) {
            let digit = i128::from(u16::from_be_bytes([pair[0], pair[1]]));
            match left > 0 {
                true => units = shifted(units)?.checked_add(digit).ok_or(TOO_LARGE)?,
                false if digit == 0 => {}
                false => return Err("a NUMERIC with decimals".into()),
            }
            left -= 1;
        }
        // Zeros at the end are not sent.
        for _ in 0..left {
            units = shifted(units)?;
        }
        match word(4) {
            0 => Ok(Numeric(units)),
            NEGATIVE => Ok(Numeric(-units)),
            _ => Err("a NUMERIC that is no number".into()),
        }
    }

    accepts!(NUMERIC);
}

const TOO_LARGE: &str = "a NUMERIC of more than 128 bits";

fn shifted(units: i128) -> Result<i128, &'static str> {
    units.checked_mul(BASE as i128).ok_or(TOO_LARGE)
}

/// A balance or a sum as a NUMERIC.
pub(super) fn numeric(units: u128) -> Numeric {
    Numeric(i128::try_from(units).expect("a balance is below 10^38, as its column"))
}

/// A NUMERIC that is not negative, smallest units; `None`: it is negative or cannot be read.
pub(super) fn units(row: &Row, column: usize) -> Option<u128> {
    let Numeric(units) = row.try_get(column).ok()?;
    u128::try_from(units).ok()
}

/// A NUMERIC with its sign, smallest units; `None`: it cannot be read.
pub(super) fn signed(row: &Row, column: usize) -> Option<i128> {
    let Numeric(units) = row.try_get(column).ok()?;
    Some(units)
}

/// The same of a column that may be empty; `None`: it cannot be read.
pub(super) fn signed_or_null(row: &Row, column: usize) -> Option<Option<i128>> {
    Some(row.try_get::<_, Option<Numeric>>(column).ok()?.map(|Numeric(units)| units))
}

/// A BIGINT that is an amount, smallest units.
pub(super) fn amount(row: &Row, column: usize) -> Result<Option<Amount>, Error> {
    let number: i64 = row.try_get(column)?;
    Ok(u64::try_from(number).ok().and_then(Amount::new))
}

/// An amount as a BIGINT.
pub(super) fn amount_number(amount: Amount) -> i64 {
    bigint(amount.units())
}

/// A code as a SMALLINT.
pub(super) fn code_number(code: Code) -> i16 {
    i16::try_from(code as u16).expect("a few codes")
}

/// A SMALLINT that is a code, or NULL.
///
/// # Errors
/// [`Error::Row`]: no code has this number.
pub(super) fn code(row: &Row, column: usize, table: &'static str) -> Result<Option<Code>, Error> {
    let Some(number) = row.try_get::<_, Option<i16>>(column)? else { return Ok(None) };
    let code = u16::try_from(number).ok().and_then(Code::from_number);
    let bad = || Error::Row { table, what: format!("code {number}") };
    code.map(Some).ok_or_else(bad)
}

/// A UUID that names a transfer.
pub(super) fn req_id(row: &Row, column: usize) -> Result<Option<ReqId>, Error> {
    Ok(row.try_get::<_, Id>(column)?.req_id())
}

/// What we count as a BIGINT: records, flights, incarnations, order numbers. None of them comes to 2^63. Nor does an amount: see
/// [`UNITS_MAX`](domain::amount::UNITS_MAX).
pub(super) fn bigint(number: u64) -> i64 {
    i64::try_from(number).expect("below 2^63")
}

/// An asset's number as an INTEGER.
pub(super) fn asset_number(asset: AssetId) -> i32 {
    i32::try_from(asset.0).expect("asset numbers come from an INTEGER")
}

/// What [`bigint`] wrote.
///
/// # Errors
/// [`Error::Row`]: it is less than nothing.
pub(super) fn count(row: &Row, column: usize, table: &'static str) -> Result<u64, Error> {
    let number: i64 = row.try_get(column)?;
    u64::try_from(number).map_err(|_| {
        let what = format!("{} {number}", row.columns()[column].name());
        Error::Row { table, what }
    })
}

/// A BIGINT that names a user.
pub(super) fn user(row: &Row, column: usize) -> Result<Option<UserId>, Error> {
    let number: i64 = row.try_get(column)?;
    Ok(u64::try_from(number).ok().and_then(UserId::new))
}

/// An INTEGER that names an asset of the catalog.
pub(super) fn asset<'a>(
    row: &Row,
    column: usize,
    catalog: &'a Catalog,
) -> Result<Option<&'a Asset>, Error> {
    let number: i32 = row.try_get(column)?;
    Ok(u32::try_from(number).ok().and_then(|number| catalog.by_id(AssetId(number))))
}

/// A SMALLINT that names an op.
pub(super) fn op(row: &Row, column: usize) -> Result<Option<Op>, Error> {
    let number: i16 = row.try_get(column)?;
    Ok(u8::try_from(number).ok().and_then(Op::from_number))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sum_is_the_same_in_postgresql_and_back() {
        let mut next = 1_i128;
        let powers = (0..38).map(|_| {
            next *= 10;
            next
        });
        for power in powers.collect::<Vec<_>>() {
            for units in [power - 1, power, power + 1, 7 * (power / 10) + 20_000] {
                for units in [units, -units, 0] {
                    let mut out = BytesMut::new();
                    Numeric(units).to_sql(&Type::NUMERIC, &mut out).expect("written");
                    let read = Numeric::from_sql(&Type::NUMERIC, &out).expect("read");
                    assert_eq!(read, Numeric(units));
                }
            }
        }
    }
}
