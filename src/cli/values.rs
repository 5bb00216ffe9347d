//! The parsers of single arguments.

use std::time::Duration;

use clap::builder::{PossibleValuesParser, RangedU64ValueParser, TypedValueParser};
use jiff::Timestamp;
use jiff::civil::Date;
use jiff::tz::TimeZone;
use serde_json::Value;

use crate::config::is_http_url;
use crate::recharge::payment::HeldCause;
use crate::recharge::{PaymentId, RechargeId, ReturnId};
use crate::role::Owner;
use crate::transaction::{Did, ROUNDS_MAX, TransactionState};
use domain::account::AccountType;
use domain::account::USER_ID_MAX;
use domain::asset::{AssetStatus, SYMBOL_BYTES_MAX, is_symbol};
use domain::transfer::{Direction, Op, ReqId, State};

/// The longest life of a token, s: a year. A longer life would outlast its user's rights.
const TTL_S_MAX: u64 = 31_536_000;

/// A parser of names. Its error lists the known names.
pub(super) fn op_parser() -> impl TypedValueParser<Value = Op> {
    PossibleValuesParser::new(Op::ALL.map(Op::name))
        .map(|name| Op::from_name(&name.to_ascii_uppercase()).expect("one of the names above"))
}

pub(super) fn state_parser() -> impl TypedValueParser<Value = State> {
    PossibleValuesParser::new(State::ALL.map(State::name)).map(|name| {
        let name = name.to_ascii_uppercase();
        State::from_name(&name).expect("one of the names above")
    })
}

pub(super) fn transaction_state_parser() -> impl TypedValueParser<Value = TransactionState> {
    PossibleValuesParser::new(TransactionState::ALL.map(TransactionState::name)).map(|name| {
        let name = name.to_ascii_uppercase();
        TransactionState::from_name(&name).expect("one of the names above")
    })
}

/// Why a text is not the name of a service.
#[derive(Debug, thiserror::Error)]
#[error("must be 1 to 64 of A-Z a-z 0-9 _ . : -")]
pub(super) struct OwnerError;

/// Checks the name of a service, or of a transaction: both have the same form.
pub(super) fn parse_owner(text: &str) -> Result<String, OwnerError> {
    if Owner::new(text).is_some() { Ok(text.to_owned()) } else { Err(OwnerError) }
}

/// Why a text is not the name of a purpose.
#[derive(Debug, thiserror::Error)]
#[error("must be a name of holds.purposes, of A-Z 0-9 _")]
pub(super) struct PurposeNameError;

/// Checks the name of a purpose.
pub(super) fn parse_purpose(text: &str) -> Result<String, PurposeNameError> {
    let plain = |b: u8| b.is_ascii_uppercase() || b.is_ascii_digit() || b == b'_';
    match !text.is_empty() && text.bytes().all(plain) {
        true => Ok(text.to_owned()),
        false => Err(PurposeNameError),
    }
}

pub(super) fn direction_parser() -> impl TypedValueParser<Value = Direction> {
    PossibleValuesParser::new(Direction::ALL.map(Direction::wire_name)).map(|name| {
        Direction::from_wire_name(&name.to_ascii_uppercase()).expect("one of the names above")
    })
}

pub(super) fn account_parser() -> impl TypedValueParser<Value = AccountType> {
    PossibleValuesParser::new([AccountType::Funding, AccountType::Spot].map(AccountType::name)).map(
        |name| AccountType::from_name(&name.to_ascii_uppercase()).expect("one of the names above"),
    )
}

pub(super) fn asset_status_parser() -> impl TypedValueParser<Value = AssetStatus> {
    PossibleValuesParser::new([AssetStatus::Active, AssetStatus::Suspended].map(AssetStatus::name))
        .map(|name| {
            AssetStatus::from_name(&name.to_ascii_uppercase()).expect("one of the names above")
        })
}

/// Why a text is not a symbol.
#[derive(Debug, thiserror::Error)]
#[error("must be 1 to {SYMBOL_BYTES_MAX} of A-Z a-z 0-9 _ . -")]
pub(super) struct SymbolError;

/// Checks a text that becomes a part of a path.
pub(super) fn parse_symbol(text: &str) -> Result<String, SymbolError> {
    if is_symbol(text) { Ok(text.to_owned()) } else { Err(SymbolError) }
}

pub(super) fn count_parser() -> RangedU64ValueParser<u64> {
    RangedU64ValueParser::new().range(1..=10_000_000)
}

pub(super) fn user_id_parser() -> RangedU64ValueParser<u64> {
    RangedU64ValueParser::new().range(1..=USER_ID_MAX)
}

pub(super) fn venue_parser() -> RangedU64ValueParser<u32> {
    RangedU64ValueParser::new().range(1..)
}

/// Why a text names no hold.
#[derive(Debug, thiserror::Error)]
#[error(
    "must be VENUE:NUMBER, such as 7:1042, or TRANSACTION:USER:ASSET NUMBER, on Funding with FUNDING: \
     before it"
)]
pub(super) struct HoldError;

/// Checks a text that becomes a part of a path.
pub(super) fn parse_hold(text: &str) -> Result<String, HoldError> {
    let numbers = text.split_once(':').and_then(|(venue, number)| {
        Some((venue.parse::<u32>().ok()?, number.parse::<u64>().ok()?))
    });
    match numbers {
        Some((1.., 1..)) => Ok(text.to_owned()),
        _ if is_of_transaction(text) => Ok(text.to_owned()),
        _ => Err(HoldError),
    }
}

/// Whether a text names a hold of a transaction.
fn is_of_transaction(text: &str) -> bool {
    let parts: Vec<&str> = text.strip_prefix("FUNDING:").unwrap_or(text).split(':').collect();
    let (name, user, asset, purpose) = match parts[..] {
        [name, user, asset] => (name, user, asset, "1"),
        [name, user, asset, purpose] => (name, user, asset, purpose),
        _ => return false,
    };
    let numbers = (user.parse::<u64>(), asset.parse::<u32>(), purpose.parse::<u16>());
    ReqId::parse(name).is_some() && matches!(numbers, (Ok(1..), Ok(_), Ok(1..)))
}

/// The name of a branch, in its parts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BranchName {
    /// The transaction.
    pub transaction: ReqId,
    /// The participant.
    pub participant: String,
    /// From 1.
    pub round: u8,
}

/// Why a text names no branch.
#[derive(Debug, thiserror::Error)]
#[error("must be TRANSACTION_ID:PARTICIPANT:ROUND, with a round of 1 to 8")]
pub(super) struct BranchError;

/// Reads the name of a branch.
pub(super) fn parse_branch(text: &str) -> Result<BranchName, BranchError> {
    let parts: Vec<&str> = text.split(':').collect();
    let [transaction, participant, round] = parts[..] else { return Err(BranchError) };
    let round = round.parse().ok().filter(|round| (1..=ROUNDS_MAX).contains(round));
    match (ReqId::parse(transaction), round) {
        (Some(transaction), Some(round)) if !participant.is_empty() => {
            Ok(BranchName { transaction, participant: participant.to_owned(), round })
        }
        _ => Err(BranchError),
    }
}

pub(super) fn did_parser() -> impl TypedValueParser<Value = Did> {
    PossibleValuesParser::new(Did::ALL.map(Did::name))
        .map(|name| Did::from_name(&name).expect("one of the names above"))
}

/// Why a text names no order, payment, return, channel or cause.
#[derive(Debug, thiserror::Error)]
pub(super) enum RechargeNameError {
    #[error("must be wrc_ and 26 characters, as `recharge list` prints it")]
    Recharge,
    #[error("must be wpy_ and 26 characters, as `recharge list --held` prints it")]
    Payment,
    #[error("must be wrc_ or wpy_ and 26 characters")]
    Either,
    #[error("must be wrf_ and 26 characters, as `recharge show` prints it")]
    Return,
    #[error("must be 1 to 16 of a-z 0-9 -")]
    Channel,
    #[error("must be a day such as 2026-11-26")]
    Day,
    #[error("must be one of {}", HeldCause::ALL.map(HeldCause::name).join(", "))]
    Cause,
    #[error("must be 1 to 128 of A-Z a-z 0-9 _ . -")]
    TradeNo,
}

/// Checks the id of an order.
pub(super) fn parse_recharge(text: &str) -> Result<String, RechargeNameError> {
    RechargeId::parse(text).map(|id| id.to_string()).ok_or(RechargeNameError::Recharge)
}

/// Checks the id of a payment.
pub(super) fn parse_payment(text: &str) -> Result<String, RechargeNameError> {
    PaymentId::parse(text).map(|id| id.to_string()).ok_or(RechargeNameError::Payment)
}

/// Checks the id of a return.
pub(super) fn parse_return(text: &str) -> Result<String, RechargeNameError> {
    ReturnId::parse(text).map(|id| id.to_string()).ok_or(RechargeNameError::Return)
}

/// Checks either of both ids.
pub(super) fn parse_recharge_payment(text: &str) -> Result<String, RechargeNameError> {
    let either = parse_recharge(text).or_else(|_| parse_payment(text));
    either.map_err(|_| RechargeNameError::Either)
}

/// Checks the name of a channel, a part of a path.
pub(super) fn parse_channel(text: &str) -> Result<String, RechargeNameError> {
    let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    match (1..=16).contains(&text.len()) && text.bytes().all(plain) {
        true => Ok(text.to_owned()),
        false => Err(RechargeNameError::Channel),
    }
}

/// Checks a day, YYYY-MM-DD.
pub(super) fn parse_day(text: &str) -> Result<String, RechargeNameError> {
    let day = text.parse::<jiff::civil::Date>().ok().filter(|day| day.to_string() == text);
    day.map(|_| text.to_owned()).ok_or(RechargeNameError::Day)
}

/// Checks a number of a channel, a part of a path.
pub(super) fn parse_trade_no(text: &str) -> Result<String, RechargeNameError> {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"_.-".contains(&b);
    match (1..=128).contains(&text.len()) && text.bytes().all(plain) {
        true => Ok(text.to_owned()),
        false => Err(RechargeNameError::TradeNo),
    }
}

/// Checks the cause of a held payment; `true` stands for each.
pub(super) fn parse_held(text: &str) -> Result<String, RechargeNameError> {
    let name = text.to_ascii_uppercase();
    let known = HeldCause::ALL.into_iter().any(|cause| cause.name() == name);
    match (text, known) {
        ("true", _) => Ok(text.to_owned()),
        (_, true) => Ok(name),
        (_, false) => Err(RechargeNameError::Cause),
    }
}

/// Why a text is not a cursor.
#[derive(Debug, thiserror::Error)]
#[error("must be the cursor at the end of an earlier list")]
pub(super) struct CursorError;

/// Checks a text that becomes a part of a path.
pub(super) fn parse_cursor(text: &str) -> Result<String, CursorError> {
    let sane = |b: u8| b.is_ascii_alphanumeric() || b"_.-".contains(&b);
    if text.bytes().all(sane) { Ok(text.to_owned()) } else { Err(CursorError) }
}

/// Why a text is not a URL.
#[derive(Debug, thiserror::Error)]
#[error("must be an http:// or https:// URL")]
pub(super) struct UrlError;

pub(super) fn parse_url(text: &str) -> Result<String, UrlError> {
    if is_http_url(text) { Ok(text.to_owned()) } else { Err(UrlError) }
}

pub(super) fn parse_json(text: &str) -> Result<Value, serde_json::Error> {
    serde_json::from_str(text)
}

pub(super) fn parse_time(text: &str) -> Result<Timestamp, jiff::Error> {
    match text.parse::<Date>() {
        Ok(date) if !text.contains('T') => Ok(date.to_zoned(TimeZone::UTC)?.timestamp()),
        _ => text.parse(),
    }
}

/// Why a duration is not allowed as the life of a token.
#[derive(Debug, thiserror::Error)]
pub(super) enum TtlError {
    #[error(transparent)]
    Duration(#[from] humantime::DurationError),
    #[error("must be 1s..={TTL_S_MAX}s, a year")]
    Range,
}

pub(super) fn parse_ttl(text: &str) -> Result<Duration, TtlError> {
    let ttl = humantime::parse_duration(text)?;
    if !(1..=TTL_S_MAX).contains(&ttl.as_secs()) {
        return Err(TtlError::Range);
    }
    Ok(ttl)
}
