//! Records of the log as lines, for people or for machines.

use std::collections::HashSet;
use std::fmt::{self, Display};
use std::io::Write;

use anstyle::Style;
use engine::entry::{Entry, VenueEntry};
use engine::external::{External, Outside};
use engine::posted::Posted;
use engine::record;
use engine::totals::Totals;
use jiff::Timestamp;
use ulid::{ULID_LEN, Ulid};
use wal::Record;

use super::assets::{Asset, Assets, escape};
use super::ink::{BAD, GOOD, Ink, QUIET, REFUSED};
use super::integer::JSON_INTEGER_MAX;
use super::named::{NamedObject, named_outcome, named_text};
use super::posting::{leg_objects, outcome, outcome_text, posting_text, venue_event, venue_text};
use crate::clock::NS_PER_S;
use crate::format::Format;
use domain::amount::push_units;
use domain::transfer::Decision;

/// The text of a column that a kind of record does not have.
const ABSENT: &str = "-";

/// The most venues that are remembered. The record of a further venue that reopens is printed as
/// one that adds it.
const VENUES_MAX: usize = 65_536;

/// Blanks for padding, as wide as the widest padded column.
const SPACES: [u8; 32] = [b' '; 32];

/// Times as text. The second is cached, because most records share it with the record before.
struct Clock {
    /// The second that `text` begins with; `u64::MAX` for none.
    second: u64,
    text: [u8; "2023-11-14T22:13:20.123456789Z".len()],
}

/// Where the fraction of a second begins in a time.
const FRACTION: usize = "2023-11-14T22:13:20.".len();

impl Clock {
    /// A time in UTC with this many decimals of a second, 1..=9; further decimals are cut off.
    fn text(&mut self, time_ns: u64, decimals: usize) -> &str {
        let (second, fraction) = (time_ns / NS_PER_S, time_ns % NS_PER_S);
        if self.second != second {
            // 2^64 ns end in the year 2554, a timestamp in 9999.
            let whole = i64::try_from(second).ok().and_then(|s| Timestamp::from_second(s).ok());
            let whole = format!("{:.1}", whole.expect("any u64 of ns is in range"));
            self.text[..FRACTION].copy_from_slice(&whole.as_bytes()[..FRACTION]);
            self.second = second;
        }
        // The leading one keeps the zeros at the front of the fraction.
        let mut digits = itoa::Buffer::new();
        let digits = digits.format(NS_PER_S + fraction).as_bytes();
        self.text[FRACTION..FRACTION + 9].copy_from_slice(&digits[1..]);
        self.text[FRACTION + decimals] = b'Z';
        std::str::from_utf8(&self.text[..=FRACTION + decimals]).expect("ASCII")
    }
}

/// Appends a member of a JSON object, but not the first: its name, and its value by a function.
/// Serde takes twice as long, and a log has millions of records.
macro_rules! member {
    ($line:expr, $name:literal, $push:ident, $($value:expr),+) => {
        $line.extend_from_slice(concat!(",\"", $name, "\":").as_bytes());
        $push($line, $($value),+);
    };
}

/// Prints records into buffers that all records share.
pub(super) struct Printer {
    /// The assets known so far.
    assets: Assets,
    /// The venues of the records read so far.
    venues: HashSet<u32, foldhash::fast::RandomState>,
    format: Format,
    ink: Ink,
    clock: Clock,
    line: Vec<u8>,
    amount: String,
    balance_after: String,
}

impl Printer {
    /// A printer that knows no asset.
    pub(super) fn new(format: Format, ink: Ink) -> Printer {
        Printer {
            assets: Assets::default(),
            venues: HashSet::default(),
            format,
            ink,
            clock: Clock { second: u64::MAX, text: *b"____-__-__T__:__:__._________Z" },
            line: Vec::new(),
            amount: String::new(),
            balance_after: String::new(),
        }
    }

    /// Remembers the asset or the venue of a record. Call it after [`Printer::print`].
    pub(super) fn learn(&mut self, entry: &Entry) {
        self.assets.learn(entry);
        if let Entry::Venue(venue) = entry
            && self.venues.len() < VENUES_MAX
        {
            self.venues.insert(venue.id);
        }
    }

    /// The record as a line with a line break. `entry`: its content, or the reason that it cannot
    /// be decoded.
    pub(super) fn print(
        &mut self,
        record: &Record<'_>,
        entry: &Result<Entry, record::Error>,
    ) -> &[u8] {
        self.line.clear();
        match self.format {
            Format::Text => self.text(record, entry),
            Format::Json => self.json(record, entry),
        }
        self.line.push(b'\n');
        &self.line
    }

    /// Appends the columns: sequence, time, kind, req_id or idem_key, op, user, asset, amount,
    /// balance after, outcome.
    ///
    /// An unknown asset is `#` and its number; its amounts are smallest units and `u`. The last
    /// column of a status is the status, of an asset its number and precision, of a mark the
    /// durable sequence. A record that cannot be decoded has its bytes after the kind. Postings and
    /// venues have words instead of columns: see [`posting_text`].
    fn text(&mut self, record: &Record<'_>, entry: &Result<Entry, record::Error>) {
        let (ink, line) = (self.ink, &mut self.line);
        right(line, itoa::Buffer::new().format(record.sequence), 10);
        left(line, self.clock.text(record.time_ns, 6), 0);
        let entry = match entry {
            Ok(entry) => entry,
            Err(error) => {
                let (kind, hex) = (record.kind, Hex(record.payload));
                styled(line, ink.of(BAD), |line| left(line, "RAW", 6));
                write(line, format_args!("kind={kind} bytes={hex} ({error})"));
                return;
            }
        };
        let is_order = matches!(
            entry,
            Entry::Order { .. } | Entry::External(_) | Entry::Posting(_) | Entry::Named(_)
        );
        let kind_style = if is_order { Style::new() } else { QUIET };
        styled(line, ink.of(kind_style), |line| left(line, entry.kind().name(), 6));
        if push_words(line, ink, &self.assets, &self.venues, entry) {
            return;
        }
        let (mut ulid, mut user, escaped, unknown, idem_key);
        let columns = match entry {
            Entry::Order { order, balance_after, .. } => {
                (ulid, user) = ([0; ULID_LEN], itoa::Buffer::new());
                let known = self.assets.known.get(&order.asset);
                for (text, units) in [
                    (&mut self.amount, order.amount.into()),
                    (&mut self.balance_after, *balance_after),
                ] {
                    text.clear();
                    match known {
                        Some(known) => push_units(text, units, known.precision),
                        None => *text = format!("{units}u"),
                    }
                }
                Columns {
                    req_id: Ulid(order.req_id).array_to_str(&mut ulid),
                    op: order.op.name(),
                    user: user.format(order.user),
                    asset: match known {
                        Some(known) => &known.escaped,
                        None => {
                            unknown = self.assets.name(order.asset);
                            &unknown
                        }
                    },
                    amount: &self.amount,
                    balance_after: &self.balance_after,
                }
            }
            Entry::External(external) => {
                user = itoa::Buffer::new();
                unknown = self.assets.name(external.asset);
                self.amount = self.assets.amount(external.asset, external.amount.into());
                self.balance_after = self.assets.amount(external.asset, external.balance_after);
                idem_key = external.idem_key.as_str().escape_debug().to_string();
                Columns {
                    req_id: &idem_key,
                    op: external.op.name(),
                    user: user.format(external.user),
                    asset: &unknown,
                    amount: &self.amount,
                    balance_after: &self.balance_after,
                }
            }
            Entry::AccountStatus { user: owner, .. } => {
                user = itoa::Buffer::new();
                Columns { user: user.format(*owner), ..Columns::ABSENT }
            }
            Entry::Asset { symbol, .. } => {
                escaped = escape(symbol);
                Columns { asset: &escaped, ..Columns::ABSENT }
            }
            Entry::Totals { user: owner, asset, totals } => {
                user = itoa::Buffer::new();
                unknown = self.assets.name(*asset);
                let units = totals.available().unwrap_or(0);
                self.balance_after = self.assets.amount(*asset, units);
                Columns {
                    user: user.format(*owner),
                    asset: &unknown,
                    balance_after: &self.balance_after,
                    ..Columns::ABSENT
                }
            }
            Entry::Outside { asset, .. } => {
                unknown = self.assets.name(*asset);
                Columns { asset: &unknown, ..Columns::ABSENT }
            }
            Entry::Posting(_) | Entry::Named(_) | Entry::Venue(_) => {
                unreachable!("printed above")
            }
            Entry::Watermark { .. } | Entry::Mark | Entry::Digest { .. } => Columns::ABSENT,
        };
        columns.push(line);
        push_last_column(line, ink, &self.assets, record, entry);
    }

    /// Appends the same as one JSON object. It also has the record's segment, its offset there, its
    /// length with header and padding, both in bytes, and the highest sequence that was known
    /// durable when the record was written.
    fn json(&mut self, record: &Record<'_>, entry: &Result<Entry, record::Error>) {
        let line = &mut self.line;
        line.extend(b"{\"sequence\":");
        push_integer(line, record.sequence.into());
        member!(line, "time", plain, self.clock.text(record.time_ns, 9));
        let kind = entry.as_ref().map_or("RAW", |entry| entry.kind().name());
        member!(line, "kind", plain, kind);
        match entry {
            Ok(Entry::Order { order, decision, balance_after, .. }) => {
                let asset = self.assets.known.get(&order.asset);
                let text = &mut self.amount;
                member!(line, "req_id", plain, Ulid(order.req_id).array_to_str(&mut [0; ULID_LEN]));
                let cid = Some(order.cid.as_str()).filter(|cid| !cid.is_empty());
                member!(line, "cid", push_text, cid);
                member!(line, "op", plain, order.op.name());
                member!(line, "direction", plain, order.direction.name());
                member!(line, "user", push_integer, order.user.into());
                member!(line, "asset", push_text, asset.map(|asset| asset.symbol.as_str()));
                member!(line, "asset_id", push_integer, order.asset.into());
                member!(line, "amount", push_amount, asset, order.amount.into(), text);
                member!(line, "amount_units", push_integer, order.amount.into());
                member!(line, "balance_after", push_amount, asset, *balance_after, text);
                member!(line, "balance_after_units", push_integer, *balance_after);
                member!(line, "outcome", plain, outcome(*decision));
                member!(line, "order_number", push_integer, order.order_number.into());
            }
            Ok(Entry::External(external)) => {
                let asset = self.assets.known.get(&external.asset);
                let text = &mut self.amount;
                member!(line, "idem_key", push_text, Some(external.idem_key.as_str()));
                member!(line, "op", plain, external.op.name());
                member!(line, "user", push_integer, external.user.into());
                member!(line, "asset", push_text, asset.map(|asset| asset.symbol.as_str()));
                member!(line, "asset_id", push_integer, external.asset.into());
                member!(line, "amount", push_amount, asset, external.amount.into(), text);
                member!(line, "amount_units", push_integer, external.amount.into());
                member!(line, "balance_after", push_amount, asset, external.balance_after, text);
                member!(line, "outcome", plain, outcome(external.decision));
                member!(line, "order_number", push_integer, external.order_number.into());
            }
            Ok(Entry::AccountStatus { user, status }) => {
                member!(line, "user", push_integer, (*user).into());
                member!(line, "status", plain, status.name());
            }
            Ok(Entry::Asset { asset, precision, symbol }) => {
                member!(line, "asset", push_text, Some(symbol.as_str()));
                member!(line, "asset_id", push_integer, (*asset).into());
                member!(line, "precision", push_integer, (*precision).into());
            }
            Ok(Entry::Watermark { order_number }) => {
                member!(line, "order_number", push_integer, (*order_number).into());
            }
            Ok(Entry::Totals { user, asset, totals }) => {
                let known = self.assets.known.get(asset);
                let (text, units) = (&mut self.amount, totals.available().unwrap_or(0));
                member!(line, "user", push_integer, (*user).into());
                member!(line, "asset", push_text, known.map(|known| known.symbol.as_str()));
                member!(line, "asset_id", push_integer, (*asset).into());
                member!(line, "balance_after", push_amount, known, units, text);
                member!(line, "balance_after_units", push_integer, units);
                member!(line, "deposits_units", push_integer, totals.deposits);
                member!(line, "withdrawals_units", push_integer, totals.withdrawals);
                member!(line, "refunds_units", push_integer, totals.refunds);
            }
            Ok(Entry::Outside { asset, outside }) => {
                let known = self.assets.known.get(asset);
                let text = &mut self.amount;
                member!(line, "asset", push_text, known.map(|known| known.symbol.as_str()));
                member!(line, "asset_id", push_integer, (*asset).into());
                member!(line, "deposits", push_integer, outside.deposits.into());
                member!(line, "deposited", push_amount, known, outside.deposited, text);
                member!(line, "withdrawals", push_integer, outside.withdrawals.into());
                member!(line, "withdrawn", push_amount, known, outside.withdrawn, text);
            }
            Ok(Entry::Posting(posted)) => push_posting(line, posted, &self.assets),
            Ok(Entry::Named(named)) => {
                let object = NamedObject::of(named, &self.assets);
                let object = serde_json::to_string(&object).expect("text and numbers");
                // Its members, without the braces.
                line.push(b',');
                line.extend_from_slice(&object.as_bytes()[1..object.len() - 1]);
            }
            Ok(Entry::Venue(venue)) => {
                let known = self.venues.contains(&venue.id);
                push_venue(line, venue, venue_event(venue, known));
            }
            Ok(Entry::Mark) => {}
            Ok(Entry::Digest { digest }) => {
                member!(line, "digest", plain, &format!("{digest:032x}"));
            }
            Err(error) => {
                member!(line, "kind_number", push_integer, record.kind.into());
                member!(line, "bytes", plain, &Hex(record.payload).to_string());
                member!(line, "error", push_text, Some(&error.to_string()));
            }
        }
        member!(line, "segment", push_integer, record.segment.into());
        member!(line, "offset", push_integer, record.offset.into());
        member!(line, "length", push_integer, record.bytes.into());
        member!(line, "durable", push_integer, record.durable.into());
        line.push(b'}');
    }
}

/// Appends a text without characters that JSON escapes.
fn plain(line: &mut Vec<u8>, text: &str) {
    line.push(b'"');
    line.extend_from_slice(text.as_bytes());
    line.push(b'"');
}

/// Appends any text, or `null`.
fn push_text(line: &mut Vec<u8>, text: Option<&str>) {
    serde_json::to_writer(line, &text).expect("memory takes everything");
}

/// Appends a truth value.
fn push_bool(line: &mut Vec<u8>, value: bool) {
    line.extend_from_slice(if value { b"true" } else { b"false" });
}

/// Appends the members of a posting.
fn push_posting(line: &mut Vec<u8>, posted: &Posted, assets: &Assets) {
    member!(line, "op", plain, posted.op.name());
    member!(line, "venue", push_integer, posted.venue.into());
    match posted.operator {
        0 => {
            member!(line, "number", push_integer, posted.number.into());
        }
        name => {
            member!(line, "operator", plain, &Ulid(name).to_string());
        }
    }
    member!(line, "reference", push_integer, posted.reference.into());
    line.extend(b",\"legs\":");
    serde_json::to_writer(&mut *line, &leg_objects(posted, assets)).expect("memory");
    member!(line, "outcome", plain, outcome(posted.decision));
    if posted.decision != Decision::Success {
        member!(line, "leg", push_integer, posted.leg.into());
        member!(line, "imposed", push_bool, posted.imposed);
    }
    member!(line, "acknowledged", push_integer, posted.acknowledged.into());
    member!(line, "state", plain, &format!("{:016x}", posted.state));
}

/// Appends the members of a venue.
fn push_venue(line: &mut Vec<u8>, venue: &VenueEntry, event: &str) {
    member!(line, "venue", push_integer, venue.id.into());
    member!(line, "name", push_text, Some(venue.name.as_str()));
    member!(line, "event", plain, event);
    member!(line, "epoch", push_integer, venue.epoch.into());
    member!(line, "closed", push_bool, venue.closed);
    member!(line, "posts", push_bool, venue.posts);
}

/// Appends an [`Integer`].
fn push_integer(line: &mut Vec<u8>, value: u128) {
    match u64::try_from(value) {
        Ok(number) if value <= JSON_INTEGER_MAX => {
            line.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
        }
        _ => plain(line, itoa::Buffer::new().format(value)),
    }
}

/// Appends an amount of an asset, `null` if its precision is unknown. `text`: a buffer,
/// overwritten.
fn push_amount(line: &mut Vec<u8>, asset: Option<&Asset>, units: u128, text: &mut String) {
    let Some(asset) = asset else { return push_text(line, None) };
    text.clear();
    push_units(text, units, asset.precision);
    plain(line, text);
}

/// The columns of a text line between kind and outcome.
struct Columns<'a> {
    req_id: &'a str,
    op: &'a str,
    user: &'a str,
    asset: &'a str,
    amount: &'a str,
    balance_after: &'a str,
}

impl Columns<'_> {
    const ABSENT: Columns<'static> = Columns {
        req_id: ABSENT,
        op: ABSENT,
        user: ABSENT,
        asset: ABSENT,
        amount: ABSENT,
        balance_after: ABSENT,
    };

    fn push(&self, line: &mut Vec<u8>) {
        left(line, self.req_id, ULID_LEN);
        left(line, self.op, 8);
        right(line, self.user, 10);
        left(line, self.asset, 8);
        right(line, self.amount, 20);
        right(line, self.balance_after, 20);
    }
}

/// Appends a column that is aligned on the left, and the blank after it.
fn left(line: &mut Vec<u8>, text: &str, width: usize) {
    line.extend_from_slice(text.as_bytes());
    line.extend_from_slice(&SPACES[..=padding(text, width)]);
}

/// Appends a column that is aligned on the right, and the blank after it.
fn right(line: &mut Vec<u8>, text: &str, width: usize) {
    line.extend_from_slice(&SPACES[..padding(text, width)]);
    line.extend_from_slice(text.as_bytes());
    line.push(b' ');
}

fn padding(text: &str, width: usize) -> usize {
    let characters = if text.is_ascii() { text.len() } else { text.chars().count() };
    width.saturating_sub(characters)
}

fn styled(line: &mut Vec<u8>, style: Style, push: impl FnOnce(&mut Vec<u8>)) {
    if style.is_plain() {
        return push(line);
    }
    write(line, format_args!("{style}"));
    push(line);
    write(line, format_args!("{style:#}"));
}

fn write(line: &mut Vec<u8>, text: fmt::Arguments<'_>) {
    line.write_fmt(text).expect("memory takes everything");
}

/// Appends the words of a posting or of a venue. Returns whether the entry is one of them.
fn push_words(
    line: &mut Vec<u8>,
    ink: Ink,
    assets: &Assets,
    venues: &HashSet<u32, foldhash::fast::RandomState>,
    entry: &Entry,
) -> bool {
    match entry {
        Entry::Posting(posted) => {
            write(line, format_args!("{} ", posting_text(posted, assets)));
            let outcome = outcome_text(posted);
            let style = ink.of(style_of(posted.decision));
            styled(line, style, |line| line.extend(outcome.as_bytes()));
            true
        }
        Entry::Named(named) => {
            write(line, format_args!("{} ", named_text(named, assets)));
            let (outcome, style) = (named_outcome(named), ink.of(style_of(named.decision)));
            styled(line, style, |line| line.extend(outcome.as_bytes()));
            true
        }
        Entry::Venue(venue) => {
            write(line, format_args!("{}", venue_text(venue, venues.contains(&venue.id))));
            true
        }
        _ => false,
    }
}

/// Appends the last column of a record's line.
fn push_last_column(
    line: &mut Vec<u8>,
    ink: Ink,
    assets: &Assets,
    record: &Record<'_>,
    entry: &Entry,
) {
    match entry {
        Entry::Order { decision, .. } | Entry::External(External { decision, .. }) => {
            let style = ink.of(style_of(*decision));
            styled(line, style, |line| line.extend(outcome(*decision).as_bytes()));
        }
        Entry::AccountStatus { status, .. } => line.extend(status.name().as_bytes()),
        Entry::Asset { asset, precision, .. } => {
            write(line, format_args!("id={asset} precision={precision}"));
        }
        Entry::Watermark { order_number } => {
            write(line, format_args!("order_number={order_number}"));
        }
        Entry::Totals { totals, .. } => {
            let Totals { deposits, withdrawals, refunds } = totals;
            write(
                line,
                format_args!("deposits={deposits}u withdrawals={withdrawals}u refunds={refunds}u"),
            );
        }
        Entry::Outside { asset, outside } => {
            let amount = |units| assets.amount(*asset, units);
            let Outside { deposits, deposited, withdrawals, withdrawn } = *outside;
            let (deposited, withdrawn) = (amount(deposited), amount(withdrawn));
            write(
                line,
                format_args!(
                    "deposits={deposits} deposited={deposited} withdrawals={withdrawals} withdrawn={withdrawn}"
                ),
            );
        }
        Entry::Posting(_) | Entry::Named(_) | Entry::Venue(_) => {
            unreachable!("they have no columns")
        }
        Entry::Mark => write(line, format_args!("durable={}", record.durable)),
        Entry::Digest { digest } => write(line, format_args!("digest={digest:032x}")),
    }
}

fn style_of(decision: Decision) -> Style {
    match decision {
        Decision::Success => GOOD,
        Decision::Refused(_) => REFUSED,
    }
}

/// Bytes as hexadecimal digits.
struct Hex<'a>(&'a [u8]);

impl Display for Hex<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(out, "{byte:02x}"))
    }
}
