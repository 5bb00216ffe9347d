//! The daily bill of trades: text with a header, one line a payment or refund, and its own sums.
//!
//! Columns are found by name: bills of older merchants have fewer. Each field of a line has a
//! backquote before it, so fields end at a comma with a backquote: a name may hold a comma.

use std::io::{self, BufRead, Read};

use jiff::Timestamp;
use jiff::civil::DateTime;
use ring::digest::{Context, SHA1_FOR_LEGACY_USE_ONLY};

use super::ZONE;
use crate::recharge::answers::{BillKind, BillLine, BillSums, ChannelDoubt, FEE_PARTS, whole_fees};

/// The longest line, bytes.
const LINE_BYTES_MAX: u64 = 65_536;

/// Parts of a fen.
const PARTS: i64 = FEE_PARTS;

/// A reader that keeps the SHA-1 digest of everything it has read. The channel chose SHA-1; the
/// digest guards against a cut file, and stands in a signed answer.
pub(super) struct HashingReader<R> {
    inner: R,
    context: Context,
}

impl<R> HashingReader<R> {
    pub(super) fn new(inner: R) -> HashingReader<R> {
        HashingReader { inner, context: Context::new(&SHA1_FOR_LEGACY_USE_ONLY) }
    }

    pub(super) fn digest(self) -> Vec<u8> {
        self.context.finish().as_ref().to_vec()
    }
}

impl<R: Read> Read for HashingReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(buffer)?;
        self.context.update(&buffer[..count]);
        Ok(count)
    }
}

/// The places of the columns.
struct Columns {
    count: usize,
    time: usize,
    trade_no: usize,
    merchant_no: usize,
    state: usize,
    currency: usize,
    amount: usize,
    channel_return_no: usize,
    return_no: usize,
    returned: usize,
    fee: usize,
}

/// The sums of the lines read so far, in parts of a fen where fees are.
#[derive(Default)]
struct Sums {
    lines: u64,
    paid: i64,
    returned: i64,
    fees: i64,
}

/// Reads a bill to its end. Each line goes to `lines`; they count only if the result is `Ok`.
///
/// # Errors
/// [`ChannelDoubt`]: it cannot be read, or its own sums do not fit its lines.
pub fn read(
    mut bill: impl BufRead,
    lines: &mut dyn FnMut(BillLine),
) -> Result<BillSums, ChannelDoubt> {
    let mut line = String::new();
    let header = next(&mut bill, &mut line)?.ok_or(damaged("it is empty"))?;
    let columns = Columns::of(header.trim_start_matches('\u{feff}'))?;
    let mut sums = Sums::default();
    let summary = loop {
        let text = next(&mut bill, &mut line)?.ok_or(damaged("it ends without its sums"))?;
        if !text.starts_with('`') {
            break names(text);
        }
        let read = columns.line(&fields(text)).ok_or(damaged("a line cannot be read"))?;
        sums.add(&read).ok_or(damaged("its sums overflow"))?;
        lines(read);
    };
    let text = next(&mut bill, &mut line)?.ok_or(damaged("it ends without its sums"))?;
    sums.check(&summary, &fields(text))?;
    if next(&mut bill, &mut line)?.is_some() {
        return Err(damaged("it goes on behind its sums"));
    }
    let Sums { lines, paid, returned, fees } = sums;
    Ok(BillSums { lines, paid, returned, fees: whole_fees(fees) })
}

/// The next line that is not blank; `None`: the end.
fn next<'a>(
    bill: &mut impl BufRead,
    line: &'a mut String,
) -> Result<Option<&'a str>, ChannelDoubt> {
    loop {
        line.clear();
        let count =
            bill.by_ref().take(LINE_BYTES_MAX).read_line(line).map_err(|error| {
                match error.kind() {
                    io::ErrorKind::InvalidData => damaged("it is no text"),
                    _ => ChannelDoubt::Unanswered("the bill was cut off".to_owned()),
                }
            })?;
        if count as u64 == LINE_BYTES_MAX && !line.ends_with('\n') {
            return Err(damaged("a line is too long"));
        }
        if count == 0 {
            return Ok(None);
        }
        if !line.trim().is_empty() {
            return Ok(Some(line.trim_end_matches(['\r', '\n'])));
        }
    }
}

fn damaged(why: &'static str) -> ChannelDoubt {
    ChannelDoubt::Damaged(why)
}

/// The names of a header.
fn names(line: &str) -> Vec<String> {
    line.split(',').map(|name| name.trim().trim_start_matches('`').to_owned()).collect()
}

/// The fields of a line.
fn fields(line: &str) -> Vec<&str> {
    line.strip_prefix('`').unwrap_or(line).split(",`").map(str::trim).collect()
}

impl Columns {
    fn of(header: &str) -> Result<Columns, ChannelDoubt> {
        let names = names(header);
        let place = |known: &[&str]| {
            let mut found = names.iter().enumerate().filter(|(_, name)| known.contains(&&***name));
            match (found.next(), found.next()) {
                (Some((place, _)), None) => Ok(place),
                _ => Err(damaged("a column is missing or doubled")),
            }
        };
        Ok(Columns {
            count: names.len(),
            time: place(&["交易时间"])?,
            trade_no: place(&["微信订单号"])?,
            merchant_no: place(&["商户订单号"])?,
            state: place(&["交易状态"])?,
            currency: place(&["货币种类"])?,
            // What arrives; older bills call it the sum.
            amount: place(&["应结订单金额", "总金额"])?,
            channel_return_no: place(&["微信退款单号"])?,
            return_no: place(&["商户退款单号"])?,
            returned: place(&["退款金额"])?,
            fee: place(&["手续费"])?,
        })
    }

    /// A line; `None`: it cannot be read.
    fn line(&self, fields: &[&str]) -> Option<BillLine> {
        if fields.len() != self.count {
            return None;
        }
        let plain = |place: usize| Some(fields[place].to_owned()).filter(|text| !text.is_empty());
        let time: DateTime = fields[self.time].parse().ok()?;
        let at: Timestamp = ZONE.to_timestamp(time).ok()?;
        let (kind, minor_units) = match fields[self.state] {
            "SUCCESS" => (BillKind::Paid, fen(fields[self.amount])?),
            "REFUND" | "REVOKED" => (BillKind::Returned, fen(fields[self.returned])?),
            _ => return None,
        };
        let is_return = kind == BillKind::Returned;
        let number = |place: usize| plain(place).filter(|number| is_return && number != "0");
        let currency = plain(self.currency)?.to_ascii_uppercase();
        Some(BillLine {
            kind,
            merchant_no: plain(self.merchant_no)?,
            trade_no: plain(self.trade_no)?,
            return_no: number(self.return_no),
            channel_return_no: number(self.channel_return_no),
            minor_units,
            fee_parts: parts(fields[self.fee])?,
            fee_currency: currency.clone(),
            currency,
            at,
        })
    }
}

impl Sums {
    fn add(&mut self, line: &BillLine) -> Option<()> {
        let units = line.minor_units;
        self.lines += 1;
        match line.kind {
            BillKind::Paid => self.paid = self.paid.checked_add(units)?,
            _ => self.returned = self.returned.checked_add(units)?,
        }
        self.fees = self.fees.checked_add(line.fee_parts)?;
        Some(())
    }

    /// Compares the lines with the bill's own sums.
    fn check(&self, names: &[String], fields: &[&str]) -> Result<(), ChannelDoubt> {
        let field = |known: &[&str]| {
            let place = names.iter().position(|name| known.contains(&name.as_str()))?;
            fields.get(place).copied()
        };
        let lines = field(&["总交易单数"]).and_then(|text| text.parse::<u64>().ok());
        if names.len() != fields.len() || lines != Some(self.lines) {
            return Err(damaged("it does not have the lines that it counts"));
        }
        let paid = field(&["应结订单总金额", "总交易额"]).and_then(fen);
        let returned = field(&["退款总金额", "总退款金额"]).and_then(fen);
        let fees = field(&["手续费总金额"]).and_then(parts);
        // The channel rounds the sum of fees to fen.
        let fits = fees.is_some_and(|fees| fees.abs_diff(self.fees) < PARTS.unsigned_abs());
        if paid != Some(self.paid) || returned != Some(self.returned) || !fits {
            return Err(damaged("its sums are not those of its lines"));
        }
        Ok(())
    }
}

/// Yuan as decimal text in fen, not below 0.
fn fen(text: &str) -> Option<i64> {
    let parts = parts(text)?;
    (parts >= 0 && parts % PARTS == 0).then_some(parts / PARTS)
}

/// Yuan as decimal text, with up to five decimals, in parts of a fen.
fn parts(text: &str) -> Option<i64> {
    let (sign, digits) = match text.strip_prefix('-') {
        Some(rest) => (-1, rest),
        None => (1, text),
    };
    let (whole, decimals) = digits.split_once('.').unwrap_or((digits, "0"));
    let plain = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if !plain(whole) || !plain(decimals) || decimals.len() > 5 {
        return None;
    }
    let whole: i64 = whole.parse().ok()?;
    let decimals: i64 = format!("{decimals:0<5}").parse().ok()?;
    whole.checked_mul(100 * PARTS)?.checked_add(decimals)?.checked_mul(sign)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BILL: &str = "\u{feff}交易时间,公众账号ID,商户号,微信订单号,商户订单号,交易状态,货币种类,应结订单金额,代金券金额,微信退款单号,商户退款单号,退款金额,商品名称,手续费,费率,订单金额\r\n\
`2026-11-26 16:33:45,`wxa,`1900,`4200001,`wrc_1,`SUCCESS,`CNY,`100.00,`0.00,`0,`0,`0.00,`a, b,`0.60000,`0.60%,`100.00\r\n\
`2026-11-26 23:59:59,`wxa,`1900,`4200001,`wrc_1,`REFUND,`CNY,`0.00,`0.00,`5000,`wrf_1,`40.00,`a, b,`-0.24000,`0.60%,`0.00\r\n\
总交易单数,应结订单总金额,退款总金额,充值券退款总金额,手续费总金额,订单总金额,申请退款总金额\r\n\
`2,`100.00,`40.00,`0.00,`0.36000,`100.00,`40.00\r\n";

    fn read_text(bill: &str) -> (Result<BillSums, ChannelDoubt>, Vec<BillLine>) {
        let mut lines = Vec::new();
        let end = read(bill.as_bytes(), &mut |line| lines.push(line));
        (end, lines)
    }

    #[test]
    fn a_bill_is_read_by_the_names_of_its_columns() {
        let (end, lines) = read_text(BILL);
        assert_eq!(end, Ok(BillSums { lines: 2, paid: 10_000, returned: 4_000, fees: 36 }));
        let [paid, returned] = &lines[..] else { panic!("{lines:?}") };
        assert_eq!(
            (paid.kind, paid.minor_units, &*paid.trade_no),
            (BillKind::Paid, 10_000, "4200001")
        );
        assert_eq!(paid.at.to_string(), "2026-11-26T08:33:45Z");
        assert_eq!((paid.return_no.clone(), paid.channel_return_no.clone()), (None, None));
        assert_eq!((returned.kind, returned.minor_units), (BillKind::Returned, 4_000));
        assert_eq!(returned.return_no.as_deref(), Some("wrf_1"));
        assert_eq!(returned.channel_return_no.as_deref(), Some("5000"));
        // Older merchants: fewer columns, and other names.
        let old = BILL
            .replace("应结订单金额", "总金额")
            .replace("应结订单总金额", "总交易额")
            .replace(",订单金额\r", "\r")
            .replace(",`0.60%,`100.00\r", ",`0.60%\r")
            .replace(",`0.60%,`0.00\r", ",`0.60%\r");
        assert_eq!(read_text(&old).0, end, "{old}");
    }

    /// Goal: the order of columns, further ones, and marks in a name mean nothing.
    #[test]
    fn other_columns_and_odd_names_change_nothing() {
        let (end, lines) = read_text(BILL);
        let odd = BILL.replace("`a, b,", "`\"a\", 'b' `c` 微信,");
        assert_eq!(read_text(&odd), (end.clone(), lines.clone()));
        // Each row of four and more fields, the last column first, and an unknown one behind.
        let turned = BILL.trim_start_matches('\u{feff}').split_inclusive("\r\n").take(3);
        let mut text: String = turned
            .map(|line| {
                let line = line.trim_end();
                let (rest, last) = match line.strip_prefix('`') {
                    Some(rest) => rest.rsplit_once(",`").expect("fields"),
                    None => line.rsplit_once(',').expect("names"),
                };
                match line.starts_with('`') {
                    true => format!("`{last},`{rest},`new\r\n"),
                    false => format!("{last},{rest},新列\r\n"),
                }
            })
            .collect();
        text.extend(BILL.split_inclusive("\r\n").skip(3));
        assert_eq!(read_text(&text), (end, lines), "{text}");
    }

    /// A bill with a part lost, added or changed is no bill.
    #[test]
    fn a_bill_that_does_not_add_up_is_damaged() {
        let lines: Vec<&str> = BILL.split_inclusive("\r\n").collect();
        let without = |lost: usize| {
            let kept = lines.iter().enumerate().filter(|(at, _)| *at != lost);
            kept.map(|(_, line)| *line).collect::<String>()
        };
        let mut bad: Vec<String> = (0..lines.len()).map(without).collect();
        bad.push(format!("{BILL}{}", lines[1]));
        bad.push(BILL.replace("`100.00,`0.00,`0", "`100.01,`0.00,`0"));
        bad.push(BILL.replace("`CNY,`100.00", "`CNY,`1e2"));
        bad.push(BILL.replace("`SUCCESS", "`OTHER"));
        bad.push(BILL.replace("0.60000", "10.60000"));
        bad.push(BILL.replace("商户订单号", "微信订单号"));
        bad.push(BILL[..BILL.len() - 20].to_owned());
        bad.push("x".repeat(100_000));
        for bill in bad {
            assert!(matches!(read_text(&bill).0, Err(ChannelDoubt::Damaged(_))), "{bill}");
        }
    }

    #[test]
    fn money_is_decimal_text() {
        let cases = [
            ("0", Some(0)),
            ("0.01", Some(1)),
            ("12.3", Some(1_230)),
            ("12.30000", Some(1_230)),
            ("92233720368547.75", Some(9_223_372_036_854_775)),
            ("0.001", None),
            ("-1.00", None),
            ("1.", None),
            (".5", None),
            ("+1", None),
            ("1.000000", None),
            ("99999999999999999999", None),
        ];
        for (text, expected) in cases {
            assert_eq!(fen(text), expected, "{text}");
        }
        assert_eq!(parts("-0.00600"), Some(-600));
    }
}
