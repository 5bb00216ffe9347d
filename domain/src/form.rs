//! The form of an order: the checks that the coordinator, both adapters and UBSCore repeat, so that
//! no layer trusts the layer above it.

use crate::account::UserId;
use crate::amount::Amount;
use crate::code::Code;
use crate::transfer::ReqId;

/// The part of a transfer that stays valid for ever once it is valid, in the numbers of the layers
/// below the API.
#[derive(Clone, Copy, Debug)]
pub struct Form {
    /// [`ReqId`] as a number.
    pub req_id: u128,
    /// [`UserId`] as a number.
    pub user: u64,
    /// Smallest units.
    pub amount: u64,
    /// Whether the layer knows the asset.
    pub asset_known: bool,
}

/// The check that every layer below the API repeats: a name, a user, a known asset and an amount.
///
/// # Errors
/// [`Code::InvalidRequest`]: no name or no such user. [`Code::InvalidAsset`]: unknown.
/// [`Code::InvalidAmount`]: zero.
#[inline]
pub fn check_form(form: Form) -> Result<(ReqId, UserId, Amount), Code> {
    let req_id = ReqId::new(form.req_id).ok_or(Code::InvalidRequest)?;
    let user = UserId::new(form.user).ok_or(Code::InvalidRequest)?;
    if !form.asset_known {
        return Err(Code::InvalidAsset);
    }
    let amount = Amount::new(form.amount).ok_or(Code::InvalidAmount)?;
    Ok((req_id, user, amount))
}
