//! The schemas of values that are text in JSON, and more than text.
//!
//! `wire`, `refusal` and `openapi` name them; this file imports none of the three.

use std::borrow::Cow;

use utoipa::openapi::RefOr;
use utoipa::openapi::schema::{Object, ObjectBuilder, Schema, Type};
use utoipa::{PartialSchema, ToSchema};

use crate::postgres::flight::recharged::RechargeChange;
use crate::recharge::order::{ClosingWish, RechargeState, RechargeTarget};
use crate::recharge::payment::{Disposition, HeldCause};
use crate::transaction::{BranchState, TransactionState};
use domain::account::AccountType;
use domain::asset::AssetStatus;
use domain::code::Code;
use domain::shortage::Shortage;
use domain::transfer::State;

/// The state that POST answers for a transfer that is not final.
pub(super) const PENDING: &str = "PENDING";

/// Text that matches a pattern.
pub(super) fn text(pattern: &str) -> Object {
    ObjectBuilder::new().schema_type(Type::String).pattern(Some(pattern)).build()
}

/// One of these names.
fn names<'a>(names: impl IntoIterator<Item = &'a str>) -> Object {
    ObjectBuilder::new().schema_type(Type::String).enum_values(Some(names)).build()
}

/// Declares a type for each value that is text in JSON: a component that types in `wire.rs` refer
/// to.
macro_rules! texts {
    ($($type:ident = $name:literal, $description:literal: $schema:expr;)+) => {$(
        #[doc = $description]
        pub(super) enum $type {}

        impl PartialSchema for $type {
            fn schema() -> RefOr<Schema> {
                ObjectBuilder::from($schema).description(Some($description)).into()
            }
        }

        impl ToSchema for $type {
            fn name() -> Cow<'static, str> {
                Cow::Borrowed($name)
            }
        }
    )+};
}

texts! {
    StateName = "State", "The state of a transfer.": names(State::ALL.map(State::name));
    RepliedState = "ToldState", "The state of a transfer. POST answers PENDING for each state that is not final.":
        names(State::ALL.map(State::name).into_iter().chain([PENDING]));
    CodeName = "Code", "Why a request is refused, or why a transfer failed.": names(Code::of_service().map(Code::name));
    ShortageName = "Shortage", "The resource that is short.":
        names(Shortage::ALL.map(Shortage::name));
    AccountName = "Account", "An account.":
        names([AccountType::Funding, AccountType::Spot].map(AccountType::name));
    AssetStatusName = "AssetStatus", "Whether an asset can be moved.":
        names([AssetStatus::Active, AssetStatus::Suspended].map(AssetStatus::name));
    ReqIdText = "ReqId", "The name of a transfer.": text("^[0-7][0-9A-HJKMNP-TV-Z]{25}$");
    TransactionStateName = "TransactionState", "The state of a transaction.":
        names(TransactionState::ALL.map(TransactionState::name));
    BranchStateName = "BranchState", "The state of a branch.":
        names(BranchState::ALL.map(BranchState::name));
    TransactionIdText = "TransactionId", "The name that ubscore gave to a transaction.":
        text("^[0-7][0-9A-HJKMNP-TV-Z]{25}$");
    TxIdText = "TxId", "The name that its owner gave to a transaction.":
        text("^[A-Za-z0-9_.:-]{1,64}$");
    SideName = "Side", "PAID: the amount has left the account. RECEIVED: it has reached it.":
        names(["PAID", "RECEIVED"]);
    SignedAmountText = "SignedAmount", "A decimal number, without trailing zeros, which may be below zero.":
        text(r"^-?[0-9]+(\.[0-9]+)?$");
    RechargeIdText = "RechargeId", "The name of a recharge.": text("^wrc_[0-7][0-9A-HJKMNP-TV-Z]{25}$");
    WalletPaymentIdText = "WalletPaymentId", "The name of a payment of a recharge.":
        text("^wpy_[0-7][0-9A-HJKMNP-TV-Z]{25}$");
    ReturnIdText = "ReturnId", "The name of a return.": text("^wrf_[0-7][0-9A-HJKMNP-TV-Z]{25}$");
    RechargeStateName = "RechargeState", "The state of a recharge.":
        names(RechargeState::ALL.map(RechargeState::name));
    TargetName = "RechargeTarget", "The account that the money of a recharge is meant for.":
        names([RechargeTarget::Funding, RechargeTarget::Spot].map(RechargeTarget::name));
    PayKindName = "PayKind", "code_url: the URL of a QR code. client_secret: the secret of a payment form.":
        names(["code_url", "client_secret"]);
    DispositionName = "Disposition", "The state of a payment.":
        names(Disposition::ALL.map(Disposition::name));
    CauseName = "HeldCause", "Why a payment is held.": names(HeldCause::ALL.map(HeldCause::name));
    ReturnStateName = "ReturnState", "The state of a return.":
        names(["UNDER_WAY", "DONE", "FAILED"]);
    FollowName = "FollowState", "How far the money of a recharge has gone on to Spot.":
        names(["WAITING", "ARRIVED", "FAILED", "GIVEN_UP"]);
    WishName = "ClosingWish", "Why a recharge is to be closed.":
        names(ClosingWish::ALL.map(ClosingWish::name));
    RechargeEventType = "RechargeEventType", "The change that an event of a recharge tells.":
        names(RechargeChange::ALL.map(RechargeChange::event_type));
    ChainAccountText = "ChainAddress", "The address of an account on the chain.":
        text("^0x[0-9a-fA-F]{40}$");
    ChainHashText = "ChainHash", "The hash of a transaction or block.": text("^0x[0-9a-f]{64}$");
    ChainTxIdText = "ChainTxId", "The name that the manager gave to a transaction.":
        text("^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$");
    ChainKeyText = "ChainKey", "A name that a client gave.": text("^[A-Za-z0-9_.:/-]{1,128}$");
    ChainValueText = "ChainValue", "A whole number below 2^256, in decimal digits or behind 0x.":
        text("^([0-9]{1,77}|0x[0-9a-fA-F]{1,64})$");
    WeiText = "Wei", "A whole number, in decimal digits.": text("^[0-9]{1,78}$");
    ChainStateName = "ChainTxState", "The state of a transaction.":
        names(chain::state::TxState::ALL.map(chain::state::TxState::name));
    AttemptKindName = "AttemptKind", "The kind of an attempt.":
        names(chain::state::AttemptKind::ALL.map(chain::state::AttemptKind::name));
    SendClassName = "SendClass", "The meaning of an endpoint's answer.":
        names(chain::class::SendClass::ALL.map(chain::class::SendClass::name));
    AmountText = "Amount", "A decimal number, without trailing zeros.": text(r"^[0-9]+(\.[0-9]+)?$");
}
