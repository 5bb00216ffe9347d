//! The faults of a real channel, switched on by `PUT /sim/faults`. They do not survive a restart.

use serde::{Deserialize, Serialize};
use serde_json::json;

use super::door::{Manner, Reply};

/// The faults in force.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Faults {
    /// The answers to calls.
    pub(super) answer: Option<AnswerFault>,
    /// A spoiled call has no effect either.
    pub(super) lost: bool,
    /// A close answers success, and closes nothing.
    pub(super) lie_about_close: bool,
    /// Callbacks.
    pub(super) callbacks: Option<CallbackFault>,
    /// The status of new refunds of WeChat, or NOT_ENOUGH; of cards, the status.
    pub(super) refunds: Option<String>,
    /// Bills.
    pub(super) bill: Option<BillFault>,
    /// The fee of each payment in bills, minor units.
    pub(super) fee: i64,
    /// So many lines of other merchant numbers are in each bill of WeChat Pay that has a trade.
    pub(super) foreign: usize,
}

/// A fault of every answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum AnswerFault {
    /// The connection is closed without an answer.
    Away,
    /// No answer ever.
    Hang,
    /// 500.
    Error,
    /// 429.
    Busy,
    /// 200 with bytes that mean nothing.
    Rubbish,
    /// The answer without its signature.
    Unsigned,
    /// The answer of another body than the signed one.
    Changed,
    /// The first half of the body.
    Half,
}

/// A fault of callbacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum CallbackFault {
    /// None is sent, and none comes later.
    Drop,
    /// None is sent until the fault is over.
    Hold,
    /// Each is sent three times behind its success.
    Repeat,
    /// The newest is sent first.
    Reorder,
    /// A changed body under a right signature, before the right one.
    ForgeBody,
    /// A signature by another key, before the right one.
    ForgeKey,
    /// A time 301 s ago, rightly signed, before the right one.
    ForgeTime,
    /// A serial that nothing knows, before the right one.
    ForgeSerial,
    /// A probe of WeChat, before the right one.
    Probe,
}

/// A fault of bills.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum BillFault {
    /// The file ends early.
    Cut,
    /// Its first line is lost; the sums do not show it.
    Lose,
    /// A line of another merchant number is added.
    Add,
    /// The first amount is one unit higher.
    Change,
    /// It is not made yet.
    Late,
    /// It has nothing: an empty file, or no transaction.
    Empty,
    /// A bill of an older merchant, with fewer columns and other names (WeChat Pay).
    Old,
    /// The file is another one than the signed digest says (WeChat Pay).
    Digest,
}

impl AnswerFault {
    /// The answer in the manner of the fault. `None`: the request had no effect.
    pub(super) fn spoil(self, answer: Option<Reply>) -> Manner {
        let empty = || Reply::json(200, &json!({}));
        let mut answer = answer.unwrap_or_else(empty);
        match self {
            AnswerFault::Away => Manner::Closed,
            AnswerFault::Hang => Manner::Never,
            AnswerFault::Error => {
                let body = json!({"code": "SYSTEM_ERROR", "error": {"type": "api_error"}});
                Manner::Whole(Reply::json(500, &body))
            }
            AnswerFault::Busy => Manner::Whole(Reply::json(429, &json!({"code": "BUSY"}))),
            AnswerFault::Rubbish => {
                answer.status = 200;
                answer.body = b"<html>\x00 it works!".to_vec();
                Manner::Whole(answer)
            }
            AnswerFault::Unsigned => {
                answer.headers.retain(|(name, _)| !name.starts_with("wechatpay-"));
                Manner::Whole(answer)
            }
            AnswerFault::Changed => {
                answer.body.push(b' ');
                Manner::Whole(answer)
            }
            AnswerFault::Half => Manner::Half(answer),
        }
    }
}
