//! Our nouns as PostgreSQL's numbers, and back. What a column holds may be anybody's: a number that is none of ours is
//! `None`, and whoever reads it says in which row it stands.

use tokio_postgres::Row;

use super::Error;
use domain::account::UserId;
use domain::asset::{Asset, AssetId, Catalog};
use domain::transfer::Op;

/// What we count as a BIGINT: records, flights, incarnations, order numbers. None of them comes to 2^63.
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
