//! One record of the log as one line, for eyes or for machines.

use std::collections::HashMap;
use std::fmt::{self, Write};

use jiff::Timestamp;
use serde::{Serialize, Serializer};
use ulid::Ulid;
use wal::Record;

use crate::amount::{PRECISION_MAX, units_text};
use crate::asset::SYMBOL_BYTES_MAX;
use crate::engine::order::{self, Entry, Text};
use crate::transfer::Decision;

/// What a column says that its kind of record does not have.
const ABSENT: &str = "-";

/// Assets remembered; at the bound a further one is printed by its number.
const ASSETS_MAX: usize = 65_536;

/// The largest integer up to which every reader of JSON can tell neighbors apart.
const JSON_INTEGER_MAX: u128 = 1 << 53;

/// What the log has said about assets so far.
#[derive(Default)]
pub(super) struct Assets {
    known: HashMap<u32, Asset>,
}

struct Asset {
    symbol: Text<SYMBOL_BYTES_MAX>,
    precision: u8,
}

impl Assets {
    /// Remembers an asset; the newest record about it counts.
    pub(super) fn learn(&mut self, asset: u32, precision: u8, symbol: Text<SYMBOL_BYTES_MAX>) {
        let room = self.known.len() < ASSETS_MAX || self.known.contains_key(&asset);
        // No such precision is ever registered, and no amount could be written by it.
        if room && precision <= PRECISION_MAX {
            self.known.insert(asset, Asset { symbol, precision });
        }
    }
}

/// An integer in JSON: a number up to 2^53, above it a string, since many readers would round it.
#[derive(Clone, Copy)]
pub(in crate::commands) struct Integer(u128);

impl From<u64> for Integer {
    fn from(value: u64) -> Integer {
        Integer(value.into())
    }
}

impl From<u128> for Integer {
    fn from(value: u128) -> Integer {
        Integer(value)
    }
}

impl fmt::Display for Integer {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(out)
    }
}

impl Serialize for Integer {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match u64::try_from(self.0) {
            Ok(number) if self.0 <= JSON_INTEGER_MAX => serializer.serialize_u64(number),
            _ => serializer.collect_str(&self.0),
        }
    }
}

/// A record and what is needed to print it.
pub(super) struct Line<'a> {
    /// The record.
    pub(super) record: &'a Record<'a>,
    /// What it says, or why that cannot be read.
    pub(super) entry: &'a Result<Entry, order::Error>,
    /// The assets known by now.
    pub(super) assets: &'a Assets,
}

/// The columns of a text line behind sequence, time and kind; absent until filled.
struct Columns {
    req_id: String,
    op: &'static str,
    user: String,
    asset: String,
    amount: String,
    balance_after: String,
    outcome: String,
}

impl Columns {
    fn absent() -> Columns {
        let absent = || ABSENT.to_owned();
        Columns {
            req_id: absent(),
            op: ABSENT,
            user: absent(),
            asset: absent(),
            amount: absent(),
            balance_after: absent(),
            outcome: absent(),
        }
    }
}

impl Line<'_> {
    /// The columns: sequence, time, kind, req_id, op, user, asset, amount, balance after, outcome.
    ///
    /// An asset that is not known yet is `#` and its number, its amounts are smallest units and `u`.
    /// The outcome of a status is the status, of an asset its number and precision, of a mark how far
    /// the log was durable. A record that cannot be decoded has its bytes behind the kind.
    pub(super) fn text(&self) -> String {
        let (record, assets) = (self.record, self.assets);
        let time = format!("{:.6}", time(record));
        let entry = match self.entry {
            Ok(entry) => entry,
            Err(error) => {
                let (sequence, kind, hex) = (record.sequence, record.kind, hex(record.payload));
                return format!("{sequence:>10} {time} RAW    kind={kind} bytes={hex} ({error})");
            }
        };
        let columns = match entry {
            Entry::Order { order, decision, balance_after } => {
                let asset = assets.known.get(&order.asset);
                let units = |units| match asset {
                    Some(asset) => units_text(units, asset.precision),
                    None => format!("{units}u"),
                };
                Columns {
                    req_id: Ulid(order.req_id).to_string(),
                    op: order.op.name(),
                    user: order.user.to_string(),
                    asset: match asset {
                        Some(asset) => symbol(&asset.symbol),
                        None => format!("#{}", order.asset),
                    },
                    amount: units(order.amount.into()),
                    balance_after: units(*balance_after),
                    outcome: outcome(*decision).to_owned(),
                }
            }
            Entry::AccountStatus { user, status } => Columns {
                user: user.to_string(),
                outcome: status.name().to_owned(),
                ..Columns::absent()
            },
            Entry::Asset { asset, precision, symbol: name } => Columns {
                asset: symbol(name),
                outcome: format!("id={asset} precision={precision}"),
                ..Columns::absent()
            },
            Entry::Watermark { order_number } => {
                Columns { outcome: format!("order_number={order_number}"), ..Columns::absent() }
            }
            Entry::Mark => {
                Columns { outcome: format!("durable={}", record.durable), ..Columns::absent() }
            }
            Entry::Digest { digest } => {
                Columns { outcome: format!("digest={digest:032x}"), ..Columns::absent() }
            }
        };
        let Columns { req_id, op, user, asset, amount, balance_after, outcome } = columns;
        let (sequence, kind) = (record.sequence, entry.kind().name());
        format!(
            "{sequence:>10} {time} {kind:<6} {req_id:<26} {op:<8} {user:>10} {asset:<8} \
             {amount:>20} {balance_after:>20} {outcome}"
        )
    }

    /// The same as one JSON object, with where the record stands and what the text leaves out.
    pub(super) fn json(&self) -> String {
        let record = self.record;
        let body = match self.entry {
            Ok(Entry::Order { order, decision, balance_after }) => {
                let asset = self.assets.known.get(&order.asset);
                let text = |units| asset.map(|asset| units_text(units, asset.precision));
                Body::Order {
                    req_id: Ulid(order.req_id).to_string(),
                    cid: Some(order.cid.as_str()).filter(|cid| !cid.is_empty()),
                    op: order.op.name(),
                    direction: order.direction.name(),
                    user: order.user.into(),
                    asset: asset.map(|asset| asset.symbol.as_str()),
                    asset_id: order.asset,
                    amount: text(order.amount.into()),
                    amount_units: order.amount.into(),
                    balance_after: text(*balance_after),
                    balance_after_units: (*balance_after).into(),
                    outcome: outcome(*decision),
                    order_number: order.order_number.into(),
                }
            }
            Ok(Entry::AccountStatus { user, status }) => {
                Body::AccountStatus { user: (*user).into(), status: status.name() }
            }
            Ok(Entry::Asset { asset, precision, symbol }) => {
                Body::Asset { asset: symbol.as_str(), asset_id: *asset, precision: *precision }
            }
            Ok(Entry::Watermark { order_number }) => {
                Body::Watermark { order_number: (*order_number).into() }
            }
            Ok(Entry::Mark) => Body::Mark {},
            Ok(Entry::Digest { digest }) => Body::Digest { digest: format!("{digest:032x}") },
            Err(error) => Body::Raw {
                kind_number: record.kind,
                bytes: hex(record.payload),
                error: error.to_string(),
            },
        };
        super::json(&Object {
            sequence: record.sequence.into(),
            time: format!("{:.9}", time(record)),
            kind: self.entry.as_ref().map_or("RAW", |entry| entry.kind().name()),
            body,
            segment: record.segment.into(),
            offset: record.offset.into(),
            length: record.bytes.into(),
            durable: record.durable.into(),
        })
    }
}

/// A record in JSON.
#[derive(Serialize)]
struct Object<'a> {
    sequence: Integer,
    time: String,
    kind: &'static str,
    #[serde(flatten)]
    body: Body<'a>,
    segment: Integer,
    /// Where the record begins in the segment, in bytes.
    offset: Integer,
    /// With header and padding, in bytes.
    length: Integer,
    /// The highest sequence known durable when it was written.
    durable: Integer,
}

/// What depends on the kind.
#[derive(Serialize)]
#[serde(untagged)]
enum Body<'a> {
    Watermark {
        order_number: Integer,
    },
    Digest {
        digest: String,
    },
    Order {
        req_id: String,
        cid: Option<&'a str>,
        op: &'static str,
        direction: &'static str,
        user: Integer,
        asset: Option<&'a str>,
        asset_id: u32,
        amount: Option<String>,
        amount_units: Integer,
        balance_after: Option<String>,
        balance_after_units: Integer,
        outcome: &'static str,
        order_number: Integer,
    },
    AccountStatus {
        user: Integer,
        status: &'static str,
    },
    Asset {
        asset: &'a str,
        asset_id: u32,
        precision: u8,
    },
    Mark {},
    Raw {
        kind_number: u8,
        bytes: String,
        error: String,
    },
}

fn time(record: &Record<'_>) -> Timestamp {
    // 2^64 ns end in the year 2554, a timestamp in 9999.
    Timestamp::from_nanosecond(record.time_ns.into()).expect("any u64 of ns is in range")
}

fn outcome(decision: Decision) -> &'static str {
    match decision {
        Decision::Success => "SUCCESS",
        Decision::Refused(code) => code.name(),
    }
}

/// A symbol that can do nothing to a terminal.
fn symbol(text: &Text<SYMBOL_BYTES_MAX>) -> String {
    text.as_str().escape_debug().to_string()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        write!(text, "{byte:02x}").expect("a string takes everything");
        text
    })
}
