//! The words in which the calls of a channel end. Each names a fact, a refusal or a doubt.
//!
//! A doubt is no failure: the channel may have done the work. Its caller asks again.

use jiff::Timestamp;

use super::facts::Facts;

/// Why a callback, or the signature of an answer, is not believed. A reason is counted, and no
/// answer names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Rejected {
    /// A header of the signature is missing, doubled or in a wrong form.
    #[error("a header of the signature is missing, doubled or malformed")]
    Header,
    /// The body is encoded, so that its bytes are not those that were signed.
    #[error("the body has a Content-Encoding")]
    Encoding,
    /// Its time is too far from ours.
    #[error("its time is more than 300 s from ours")]
    Time,
    /// The signing key is in no known set. The set may be renewed.
    #[error("its signing key is not known")]
    Serial,
    /// The signature does not fit.
    #[error("its signature does not fit")]
    Signature,
    /// The sealed part cannot be opened.
    #[error("its sealed part cannot be opened")]
    Sealed,
    /// The signed body lacks a field, or has one twice or in a wrong form.
    #[error("its body is malformed")]
    Malformed,
    /// It belongs to another merchant or account.
    #[error("it is for another merchant")]
    Merchant,
    /// It belongs to another application.
    #[error("it is for another application")]
    Application,
    /// It is a test in live mode, or the reverse.
    #[error("it is of the other mode, live or test")]
    Mode,
}

impl Rejected {
    /// Each of them.
    pub const ALL: [Rejected; 10] = [
        Rejected::Header,
        Rejected::Encoding,
        Rejected::Time,
        Rejected::Serial,
        Rejected::Signature,
        Rejected::Sealed,
        Rejected::Malformed,
        Rejected::Merchant,
        Rejected::Application,
        Rejected::Mode,
    ];

    /// Its name, by which it is counted.
    pub fn name(self) -> &'static str {
        match self {
            Rejected::Header => "header",
            Rejected::Encoding => "encoding",
            Rejected::Time => "time",
            Rejected::Serial => "serial",
            Rejected::Signature => "signature",
            Rejected::Sealed => "sealed",
            Rejected::Malformed => "malformed",
            Rejected::Merchant => "merchant",
            Rejected::Application => "application",
            Rejected::Mode => "mode",
        }
    }
}

/// Why the outcome of a call is not known.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChannelDoubt {
    /// No whole answer came.
    #[error("{0}")]
    Unanswered(String),
    /// A status that decides nothing, such as 429 or 503.
    #[error("it answered {0}")]
    Status(u16),
    /// The answer is not signed as it must be.
    #[error("its answer is not believed: {0}")]
    Unsigned(Rejected),
    /// The answer is signed and cannot be read, or is about something else.
    #[error("its answer cannot be read")]
    Unreadable,
    /// The channel refuses our key.
    #[error("it refuses our key")]
    OwnKey,
    /// A code of the channel that decides nothing.
    #[error("it answered the code {0}")]
    Code(String),
    /// A bill that does not add up, or with another digest than the signed one.
    #[error("the bill is damaged: {0}")]
    Damaged(&'static str),
}

/// The way to pay an order. Only its owner may see it.
#[derive(Clone, PartialEq, Eq)]
pub struct Pay {
    /// The form of the value.
    pub kind: PayKind,
    /// The URL of a QR code, or the secret of a payment form.
    pub value: String,
    /// The end of its validity, where it has one.
    pub expires_at: Option<Timestamp>,
}

impl std::fmt::Debug for Pay {
    // The value lets its reader pay, or see the payment.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Pay { kind, expires_at, value: _ } = self;
        write!(f, "Pay {{ {kind:?}, *** until {expires_at:?} }}")
    }
}

impl Pay {
    /// Its text, as an order keeps it and its owner is told: a JSON object.
    pub fn to_json(&self) -> String {
        let Pay { kind, value, expires_at } = self;
        let expires_at = expires_at.map(|at| at.to_string());
        serde_json::json!({"kind": kind.name(), "value": value, "expires_at": expires_at})
            .to_string()
    }
}

/// The form of the value of a [`Pay`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PayKind {
    /// The URL of a QR code.
    CodeUrl,
    /// The secret of a payment form in a browser.
    ClientSecret,
}

impl PayKind {
    /// The name on the wire.
    pub fn name(self) -> &'static str {
        match self {
            PayKind::CodeUrl => "code_url",
            PayKind::ClientSecret => "client_secret",
        }
    }
}

/// The end of `create`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Created {
    /// The payer can pay.
    Created {
        /// The channel's number of the order: the caller keeps all of them.
        reference: String,
        /// The way to pay.
        pay: Pay,
    },
    /// It was made before, and is paid. A query has the facts.
    Paid,
    /// The channel refuses the order: its code.
    Refused(String),
    /// It may exist or not.
    Unknown(ChannelDoubt),
}

/// The end of `query`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Queried {
    /// It exists, and can be paid.
    Open,
    /// It exists, and cannot be paid any more.
    Closed,
    /// The channel does not know it. A create on its way may still arrive.
    Absent,
    /// It is paid: one payment, or more.
    Paid(Vec<Facts>),
    /// Not known.
    Unknown(ChannelDoubt),
}

/// The end of `close`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Closing {
    /// It cannot be paid any more.
    Closed,
    /// It is paid. A query has the facts.
    Paid,
    /// The channel does not know it.
    Absent,
    /// Not known.
    Unknown(ChannelDoubt),
}

/// The end of `refund` and `query_refund`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refunded {
    /// The money is back with the payer.
    Done,
    /// Accepted. `query_refund` shows its end.
    UnderWay {
        /// It has left us and does not arrive: a person must look.
        is_stuck: bool,
    },
    /// The channel refuses it, and nothing has left: its code.
    Refused(String),
    /// It may have been done or not.
    Unknown(ChannelDoubt),
}

/// The end of `returned`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReturnedSum {
    /// The channel tells no such sum.
    None,
    /// Minor units that have gone back, or are on their way.
    Sum(i64),
    /// Not known.
    Unknown(ChannelDoubt),
}

/// The end of `bill`. Its lines count only behind [`Billed::Whole`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Billed {
    /// All lines came, and they fit the channel's own sums.
    Whole(BillSums),
    /// The channel had no trade on that day.
    NoTrade,
    /// The bill is not made yet.
    NotYet,
    /// No bill, or one that is damaged. The lines so far do not count.
    Unknown(ChannelDoubt),
}

/// The sums of a bill, in the channel's minor units.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BillSums {
    /// The lines.
    pub lines: u64,
    /// Paid, as it arrives.
    pub paid: i64,
    /// Returned and taken, less given back.
    pub returned: i64,
    /// The channel's fees, rounded to the nearest unit.
    pub fees: i64,
}

/// The meaning of one line of a bill.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BillKind {
    /// A payment.
    Paid,
    /// A refund, ours or one made at the channel.
    Returned,
    /// A chargeback.
    Taken,
    /// A chargeback that was won.
    GivenBack,
    /// A refund, or a payment, that has failed behind its success.
    Undone,
    /// Anything else, such as a payout to the bank.
    Other,
}

/// One line of a bill.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BillLine {
    /// The meaning.
    pub kind: BillKind,
    /// The merchant number: ours, a foreign one or empty.
    pub merchant_no: String,
    /// The channel's number of the payment, or empty.
    pub trade_no: String,
    /// Our number of a refund, where it has one.
    pub return_no: Option<String>,
    /// The channel's number of a refund or a taking.
    pub channel_return_no: Option<String>,
    /// The amount in the channel's minor units, not below 0.
    pub minor_units: i64,
    /// ISO 4217, upper case.
    pub currency: String,
    /// The channel's fee, in [`FEE_PARTS`] of a minor unit; below 0: given back.
    pub fee_parts: i64,
    /// Of the fee: ISO 4217, upper case.
    pub fee_currency: String,
    /// The time, by the channel's clock.
    pub at: Timestamp,
}

/// Parts of a minor unit: WeChat Pay has fees with up to five decimals of a yuan.
pub const FEE_PARTS: i64 = 1_000;

/// Parts of a minor unit as minor units, rounded to the nearest.
pub fn whole_fees(parts: i64) -> i64 {
    parts.div_euclid(FEE_PARTS) + i64::from(parts.rem_euclid(FEE_PARTS) * 2 >= FEE_PARTS)
}
