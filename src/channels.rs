//! Payment channels: the calls that each of them answers, and the words in which a call ends.
//!
//! An adapter signs, asks, verifies and translates. It decides nothing about money, and it keeps
//! nothing but keys. Everything that is not verified is a [`ChannelDoubt`] or a [`Rejected`].
//! Calls block, so each runs on a thread of its caller.

mod json;
pub mod keyed;
pub mod open;
pub mod stripe;
pub mod wechat;
pub mod wire;

use std::time::Duration;

use hyper::HeaderMap;
use jiff::Timestamp;
use jiff::civil::Date;

use crate::clock::Clock;
use crate::recharge::answers::{
    BillLine, Billed, ChannelDoubt, Closing, Created, Queried, Refunded, Rejected, ReturnedSum,
};
use crate::recharge::facts::Notice;

/// How far the time of a signature may be from ours, seconds, either way.
const WINDOW_S: i64 = 300;

/// A payment channel.
pub trait Channel: Send + Sync {
    /// The limits that the channel sets.
    fn limits(&self) -> ChannelLimits;

    /// Makes an order at the channel. A repeat with the same merchant number makes no second one.
    fn create(&self, ask: &CreateAsk<'_>) -> Created;

    /// Verifies a callback and reads it. Pure: neither network nor clock.
    ///
    /// # Errors
    /// [`Rejected`]: it is not believed. Behind [`Rejected::Serial`] the caller may
    /// [`renew`](Channel::renew) the keys, on another thread.
    fn callback(
        &self,
        head: &HeaderMap,
        body: &[u8],
        now: Timestamp,
    ) -> Result<Vec<Notice>, Rejected>;

    /// Asks for the state of an order.
    fn query(&self, order: &OrderAsk<'_>) -> Queried;

    /// Ends an order at the channel, so that it cannot be paid any more.
    fn close(&self, order: &OrderAsk<'_>) -> Closing;

    /// Sends money of a payment back, at up to three requests: the channel is asked for the return
    /// number first, and again behind a refusal. A repeat with the same return number sends no
    /// more, at any time later.
    fn refund(&self, ask: &RefundAsk<'_>) -> Refunded;

    /// Asks for the state of a refund.
    fn query_refund(&self, ask: &RefundAsk<'_>) -> Refunded;

    /// The sum of the returns of a payment that the channel has, without that of this number.
    fn returned(&self, _ask: &RefundAsk<'_>) -> ReturnedSum {
        ReturnedSum::None
    }

    /// Fetches the bill of one day. The lines go to `lines` as they come; they count only if the
    /// answer is [`Billed::Whole`].
    fn bill(&self, ask: &BillAsk, lines: &mut dyn FnMut(BillLine)) -> Billed;

    /// Fetches the channel's keys, at most once a minute.
    fn renew(&self) -> Renewal;

    /// The end of the last key that the channel signs by; `None`: none of its keys has an end.
    fn keys_end(&self) -> Option<Timestamp>;

    /// The answer to a callback, in the channel's own form.
    fn acknowledge(&self, end: CallbackEnd) -> Acknowledgement;
}

/// The limits that a channel sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChannelLimits {
    /// An order is not closed before this age.
    pub close_after: Duration,
    /// The longest time from an order to its expiry.
    pub expiry_max: Duration,
    /// The longest proof, bytes.
    pub proof_bytes_max: usize,
    /// Whether the channel itself ends payment at the expiry of an order.
    pub ends_payment: bool,
}

/// The order that `create` asks for.
#[derive(Clone, Copy, Debug)]
pub struct CreateAsk<'a> {
    /// Our number.
    pub merchant_no: &'a str,
    /// The price in the channel's minor units, above 0.
    pub minor_units: i64,
    /// ISO 4217, upper case.
    pub currency: &'a str,
    /// The text that the payer sees.
    pub description: &'a str,
    /// The proof that the channel gives back with the payment.
    pub proof: &'a str,
    /// The address of callbacks, without a query.
    pub callback_url: &'a str,
    /// The end of payment.
    pub expires_at: Timestamp,
    /// The time of the first try of this create.
    pub first_tried_at: Timestamp,
}

/// An order at its channel.
#[derive(Clone, Copy, Debug)]
pub struct OrderAsk<'a> {
    /// Our number.
    pub merchant_no: &'a str,
    /// Every number that the channel has given it.
    pub references: &'a [String],
}

/// A refund of one payment, in whole or in part.
#[derive(Clone, Copy, Debug)]
pub struct RefundAsk<'a> {
    /// Our number of the refund.
    pub return_no: &'a str,
    /// Our number of the order.
    pub merchant_no: &'a str,
    /// The channel's number of the payment.
    pub trade_no: &'a str,
    /// The amount of the refund in minor units, above 0.
    pub minor_units: i64,
    /// The amount of the payment in minor units.
    pub total_minor_units: i64,
    /// ISO 4217, upper case.
    pub currency: &'a str,
}

/// The bill that is asked for.
#[derive(Clone, Copy, Debug)]
pub struct BillAsk {
    /// The day, in the channel's offset.
    pub day: Date,
    /// Whether we know of a payment on that day.
    pub has_trade: bool,
}

/// The end of a renewal of keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Renewal {
    /// The list is fetched.
    Renewed,
    /// The channel gives out no list: its key is in the configuration. No error.
    NoList,
    /// It was fetched less than a minute ago.
    TooSoon,
    /// Not known.
    Unknown(ChannelDoubt),
}

/// The end of a callback.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallbackEnd {
    /// Durable, or of no interest.
    Success,
    /// Not believed.
    Rejected(Rejected),
    /// The payment is known with other facts.
    Contradiction,
    /// An order that carries our mark is not here: the channel shall send it again.
    Missing,
    /// Busy or halted: the channel shall send it again.
    Later,
}

/// The answer to a callback.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Acknowledgement {
    /// The HTTP status.
    pub status: u16,
    /// The body, JSON; empty with 204.
    pub body: &'static str,
}

/// A channel's key or secret cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ChannelKeyError {
    /// A text that is no PEM of the wanted kind.
    #[error("{0} is no PEM of {1}")]
    NotPem(&'static str, &'static str),
    /// A key of another algorithm, or a damaged one.
    #[error("{0} is no RSA key of at least 2048 bits")]
    NotRsa(&'static str),
    /// A certificate that cannot be read.
    #[error("{0} is no X.509 certificate")]
    NotCertificate(&'static str),
    /// A secret of another length.
    #[error("{0} must have {1} bytes")]
    Length(&'static str, usize),
    /// An empty secret.
    #[error("{0} is empty")]
    Empty(&'static str),
}

impl CallbackEnd {
    /// The HTTP status that every channel understands.
    pub fn status(self) -> u16 {
        match self {
            CallbackEnd::Success => 204,
            CallbackEnd::Rejected(Rejected::Encoding) => 415,
            CallbackEnd::Rejected(Rejected::Malformed) => 400,
            CallbackEnd::Rejected(_) => 401,
            CallbackEnd::Missing => 404,
            CallbackEnd::Contradiction => 409,
            CallbackEnd::Later => 503,
        }
    }
}

impl Acknowledgement {
    /// A status, with a body that names no reason.
    fn of(end: CallbackEnd) -> Acknowledgement {
        let status = end.status();
        let body = if status == 204 { "" } else { r#"{"code":"FAIL","message":"not accepted"}"# };
        Acknowledgement { status, body }
    }
}

/// The state of a refund that was looked for by our number; `None`: the channel has no such refund.
type Looked = Result<Option<Refunded>, ChannelDoubt>;

/// Posts a refund that the channel does not have yet, and believes a refusal only if it still has
/// none behind it.
///
/// A channel forgets that it has seen a request, and may refuse the repeat of one that it accepted.
fn refund_once(look: impl Fn() -> Looked, post: impl FnOnce() -> Refunded) -> Refunded {
    match look() {
        Ok(None) => {}
        Ok(Some(end)) => return end,
        Err(doubt) => return Refunded::Unknown(doubt),
    }
    match post() {
        refused @ Refunded::Refused(_) => match look() {
            Ok(None) => refused,
            Ok(Some(end)) => end,
            Err(doubt) => Refunded::Unknown(doubt),
        },
        end => end,
    }
}

/// The end of a question for a refund.
fn asked(looked: Looked) -> Refunded {
    match looked {
        Ok(Some(end)) => end,
        // Not there yet is no refusal: the refund may be on its way.
        Ok(None) => Refunded::Unknown(ChannelDoubt::Code("NO_SUCH_REFUND".to_owned())),
        Err(doubt) => Refunded::Unknown(doubt),
    }
}

/// The time of a clock as a timestamp.
fn now(clock: &dyn Clock) -> Timestamp {
    Timestamp::from_nanosecond(i128::from(clock.now_ns())).expect("before the year 9999")
}

/// The only value of a header; `None`: it is absent.
///
/// # Errors
/// It stands there twice, or it is no plain text.
fn header<'a>(head: &'a HeaderMap, name: &str) -> Result<Option<&'a str>, Rejected> {
    let mut values = head.get_all(name).iter();
    let Some(value) = values.next() else { return Ok(None) };
    match (value.to_str(), values.next()) {
        (Ok(text), None) => Ok(Some(text)),
        _ => Err(Rejected::Header),
    }
}

/// Whether a signature's time, in seconds since 1970, is near enough to ours.
///
/// # Errors
/// [`Rejected::Header`]: no plain number. [`Rejected::Time`]: too far.
fn check_time(text: &str, now: Timestamp) -> Result<(), Rejected> {
    let plain = (1..=12).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit());
    let second: i64 = text.parse().ok().filter(|_| plain).ok_or(Rejected::Header)?;
    let apart = now.as_second().abs_diff(second);
    if apart > WINDOW_S.unsigned_abs() { Err(Rejected::Time) } else { Ok(()) }
}

/// Refuses an encoded body: its bytes are not those that were signed.
fn check_encoding(head: &HeaderMap) -> Result<(), Rejected> {
    if head.contains_key(hyper::header::CONTENT_ENCODING) {
        return Err(Rejected::Encoding);
    }
    Ok(())
}
