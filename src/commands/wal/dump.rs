//! `ubscore wal dump`: prints the selected records as lines.

use std::io::{self, Write};

use engine::entry::Entry;
use engine::posted::Posted;
use engine::record;
use engine::record::Kind;
use serde::Serialize;
use wal::{Directory, Reader, SegmentHeader, Sequence};

use super::error::Error;
use super::finding::{EndingText, TornObject, ending_name};
use super::ink::Ink;
use super::integer::Integer;
use super::line::Printer;
use super::log::Log;
use crate::audit::legs::HoldOwners;
use crate::cli::WalDumpArgs;
use crate::commands::output::json;
use crate::format::Format;

/// The most records that are read for assets before the first wanted segment. UBSCore records its
/// assets at its first start, so they are at the front. A later asset is printed by its number.
const ASSET_SEARCH_RECORDS_MAX: u64 = 65_536;

/// Prints the selected records, then the end of the log if it was reached.
pub(super) fn dump(
    args: &WalDumpArgs,
    out: &mut impl Write,
    notes: &mut impl Write,
    ink: Ink,
    pause: &mut impl FnMut() -> io::Result<()>,
) -> Result<(), Error> {
    let (from, to) = (args.from.unwrap_or(0), args.to.unwrap_or(Sequence::MAX));
    if to < from {
        return Err(Error::Range { from, to });
    }
    let log = Log::find(&args.path)?;
    let mut printer = Printer::new(args.format, ink);
    // A leg out of a hold does not name the hold's owner: the records before it do.
    let mut holds = args.user.map(|_| HoldOwners::default());
    let start = if holds.is_some() { 0 } else { from };
    let (mut reader, mut last) = seek(&log, start, &mut printer)?;
    let mut left = args.limit.unwrap_or(u64::MAX);
    let mut undecodable = 0;
    loop {
        let Some(record) = reader.next().map_err(|source| log.refused(source))? else {
            if !args.follow {
                break;
            }
            out.flush()?;
            pause()?;
            continue;
        };
        if record.sequence > to {
            return Ok(());
        }
        last = record.sequence;
        let entry = Entry::decode(record.kind, record.payload);
        let selected = record.sequence >= from;
        if selected {
            undecodable += u64::from(entry.is_err());
            if wanted(args, &entry, holds.as_ref()) {
                out.write_all(printer.print(&record, &entry))?;
                left -= 1;
            }
        }
        if let Ok(entry) = &entry {
            printer.learn(entry);
            match (&mut holds, entry) {
                (Some(holds), Entry::Posting(posted)) => holds.book(posted, |_| {}),
                (Some(holds), Entry::Named(named)) => holds.book_named(named, |_| {}),
                _ => {}
            }
        }
        if !selected {
            continue;
        }
        if left == 0 || record.sequence == to {
            return Ok(());
        }
    }
    let ending = reader.ending().map_err(|source| log.refused(source))?;
    // Flushed before the note, so that on a terminal the end comes after the records.
    out.flush()?;
    let note = match args.format {
        Format::Text => {
            let undecodable = match undecodable {
                0 => String::new(),
                count => format!(" undecodable={count}"),
            };
            format!("last={last}{undecodable} {}", EndingText(&ending))
        }
        Format::Json => json(&EndObject {
            last: last.into(),
            undecodable,
            ending: ending_name(&ending),
            torn: TornObject::of(&ending),
        }),
    };
    // The records were written. If stderr is closed, the note is lost.
    writeln!(notes, "{note}").ok();
    Ok(())
}

/// The end of a dump.
#[derive(Serialize)]
struct EndObject<'a> {
    last: Integer,
    undecodable: u64,
    ending: &'static str,
    torn: Option<TornObject<'a>>,
}

/// Whether the record passes the filters. A record that cannot be decoded passes only if no filter
/// needs its content.
fn wanted(
    args: &WalDumpArgs,
    entry: &Result<Entry, record::Error>,
    holds: Option<&HoldOwners>,
) -> bool {
    let (mut venue, mut number, mut reference, mut tx_id) = (None, None, None, None);
    let (req_id, user, op) = match entry {
        Ok(Entry::Order { order, .. }) => (Some(order.req_id), Some(order.user), Some(order.op)),
        Ok(Entry::Posting(posted)) => {
            (venue, number) = (Some(posted.venue), Some(posted.number));
            reference = Some(posted.reference);
            let named = |user: &u64| holds.is_some_and(|holds| names(posted, *user, holds));
            (None, args.user.filter(named), Some(posted.op))
        }
        Ok(Entry::Named(named)) => {
            reference = Some(named.reference);
            tx_id = Some(named.tx_id.as_str());
            let owned = |user: &u64| holds.is_some_and(|holds| holds.names(named, *user));
            (Some(named.transaction), args.user.filter(owned), Some(named.op))
        }
        Ok(Entry::Venue(entry)) => {
            venue = Some(entry.id);
            (None, None, None)
        }
        Ok(Entry::External(external)) => (None, Some(external.user), Some(external.op)),
        Ok(Entry::AccountStatus { user, .. } | Entry::Totals { user, .. }) => {
            (None, Some(*user), None)
        }
        Ok(
            Entry::Asset { .. }
            | Entry::Watermark { .. }
            | Entry::Outside { .. }
            | Entry::Mark
            | Entry::Digest { .. },
        )
        | Err(_) => (None, None, None),
    };
    args.req_id.is_none_or(|wanted| req_id == Some(wanted.0))
        && args.user.is_none_or(|wanted| user == Some(wanted))
        && args.op.is_none_or(|wanted| op == Some(wanted))
        && args.venue.is_none_or(|wanted| venue == Some(wanted))
        && args.number.is_none_or(|wanted| number == Some(wanted))
        && args.reference.is_none_or(|wanted| reference == Some(wanted))
        && args.tx_id.as_deref().is_none_or(|wanted| tx_id == Some(wanted))
}

/// Whether a leg of a posting names the user, or a hold of the user.
fn names(posted: &Posted, user: u64, holds: &HoldOwners) -> bool {
    posted.legs.iter().any(|leg| {
        [leg.from, leg.to].into_iter().any(|place| holds.owner(posted, leg, place) == Some(user))
    })
}

/// Returns a reader at the segment of the record `from`, and the sequence before its first record.
/// Learns the assets and venues that stand before it, within a bounded number of records.
fn seek(
    log: &Log,
    from: Sequence,
    printer: &mut Printer,
) -> Result<(Reader<Directory>, Sequence), Error> {
    let mut reader = log.reader(0)?;
    let first = reader.headers().next().map(SegmentHeader::first);
    // A live log's segments may all have been removed since they were listed.
    let Some(first) = first else { return Ok((reader, 0)) };
    let firsts = reader.headers().skip(1).map(SegmentHeader::first);
    let Some(start) = firsts.take_while(|first| *first <= from).last() else {
        return Ok((reader, first - 1));
    };
    for _ in 0..ASSET_SEARCH_RECORDS_MAX {
        // Damage here is outside of the selection; the assets are then printed by number.
        match reader.next() {
            Ok(Some(record)) if record.sequence < start => {
                if [Kind::Asset as u8, Kind::Venue as u8].contains(&record.kind)
                    && let Ok(entry) = Entry::decode(record.kind, record.payload)
                {
                    printer.learn(&entry);
                }
            }
            _ => break,
        }
    }
    Ok((log.reader(start)?, start - 1))
}

#[cfg(test)]
mod tests {
    use crate::exit::Exit;

    use engine::order::Order;
    use engine::text::Text;
    use serde_json::{Value, json};

    use super::*;
    use crate::commands::wal::tests::{
        REQ_ID, Sample, objects, order, sequences, ubscore_wal, ubscore_wal_following,
        ubscore_wal_in,
    };
    use domain::code::Code;
    use domain::transfer::{Decision, Direction, Op};

    #[test]
    fn text_is_one_aligned_line_a_record() {
        let sample = Sample::new();
        let (out, notes) = ubscore_wal(&["dump", &sample.data()]).succeeded();
        let want = "
         1 2023-11-14T22:13:20.123456Z ASSET  -                          -                 - USDT                        -                    - id=3 precision=8
         2 2023-11-14T22:13:20.123456Z ORDER  01JFVQ2X8Z0Y1M3N4P5R6S7T8V DEPOSIT        1001 USDT                    250.5 11529215046.06846976 SUCCESS
         3 2023-11-14T22:13:20.123456Z ORDER  01JFVQ2X8Z0Y1M3N4P5R6S7T8V WITHDRAW       1002 USDT                    250.5 11529215046.06846976 INSUFFICIENT_BALANCE
         4 2023-11-14T22:13:20.123456Z STATUS -                          -              1001 -                           -                    - FROZEN
         5 2023-11-14T22:13:20.123456Z MARK   -                          -                 - -                           -                    - durable=4
";
        assert_eq!(format!("\n{out}"), want);
        assert_eq!(notes, "last=5 ending=clean\n");
    }

    #[test]
    fn json_says_all_of_it_and_keeps_large_numbers_exact() {
        let sample = Sample::new();
        let (out, notes) = ubscore_wal(&["dump", &sample.data(), "--format", "json"]).succeeded();
        let time = "2023-11-14T22:13:20.123456789Z";
        let want = [
            json!({"sequence": 1, "time": time, "kind": "ASSET", "asset": "USDT", "asset_id": 3,
                "precision": 8, "segment": 1, "offset": 4096, "length": 56, "durable": 0}),
            json!({"sequence": 2, "time": time, "kind": "ORDER", "req_id": REQ_ID, "cid": "c-1",
                "op": "DEPOSIT", "direction": "funding_to_spot", "user": 1001, "asset": "USDT",
                "asset_id": 3, "amount": "250.5", "amount_units": 25_050_000_000_u64,
                "balance_after": "11529215046.06846976",
                "balance_after_units": "1152921504606846976", "outcome": "SUCCESS",
                "order_number": "1152921504606846976", "segment": 1, "offset": 4152,
                "length": 112, "durable": 1}),
            json!({"sequence": 3, "time": time, "kind": "ORDER", "req_id": REQ_ID, "cid": null,
                "op": "WITHDRAW", "direction": "funding_to_spot", "user": 1002,
                "asset": "USDT", "asset_id": 3, "amount": "250.5",
                "amount_units": 25_050_000_000_u64, "balance_after": "11529215046.06846976",
                "balance_after_units": "1152921504606846976", "outcome": "INSUFFICIENT_BALANCE",
                "order_number": "1152921504606846976", "segment": 1, "offset": 4264,
                "length": 112, "durable": 2}),
            json!({"sequence": 4, "time": time, "kind": "STATUS", "user": 1001,
                "status": "FROZEN", "segment": 1, "offset": 4376, "length": 56, "durable": 3}),
            json!({"sequence": 5, "time": time, "kind": "MARK", "segment": 1, "offset": 4432,
                "length": 40, "durable": 4}),
        ];
        assert_eq!(objects(&out), want);
        assert!(out.starts_with(r#"{"sequence":1,"time":"#), "{out}");
        let ended = json!({"last": 5, "undecodable": 0, "ending": "clean", "torn": null});
        assert_eq!(objects(&notes), [ended]);
    }

    #[test]
    fn filters_let_pass_what_they_name() {
        let sample = Sample::new();
        let data = sample.data();
        for (words, want) in [
            (&["--from", "2", "--to", "4"][..], &[2, 3, 4][..]),
            (&["--from", "4"], &[4, 5]),
            (&["--from", "9"], &[]),
            (&["--to", "1"], &[1]),
            (&["--limit", "2"], &[1, 2]),
            (&["--req-id", REQ_ID], &[2, 3]),
            (&["--req-id", REQ_ID, "--limit", "1"], &[2]),
            (&["--req-id", "01JFVQ2X8Z0Y1M3N4P5R6S7T8W"], &[]),
            (&["--user", "1001"], &[2, 4]),
            (&["--op", "WITHDRAW"], &[3]),
            (&["--op", "WITHDRAW", "--user", "1001"], &[]),
        ] {
            assert_eq!(sequences(&[&[data.as_str()], words].concat()), want, "{words:?}");
        }
        // A dump that stops early does not know the end.
        let (_, notes) = ubscore_wal(&["dump", &data, "--to", "5"]).succeeded();
        assert_eq!(notes, "");
        let (code, why) = ubscore_wal(&["dump", &data, "--from", "3", "--to", "2"]).failed();
        assert_eq!((code, &*why), (Exit::Arguments, "--to 2 is before --from 3"));
    }

    #[test]
    fn an_asset_that_is_not_known_yet_goes_by_its_number() {
        let mut sample = Sample::empty();
        sample.append(&order(Op::Deposit, 1001, Decision::Success));
        let (out, _) = ubscore_wal(&["dump", &sample.data()]).succeeded();
        let words: Vec<&str> = out.split_whitespace().collect();
        assert_eq!(words[6..], ["#3", "25050000000u", "1152921504606846976u", "SUCCESS"]);
        let (out, _) = ubscore_wal(&["dump", &sample.data(), "--format", "json"]).succeeded();
        let object = objects(&out).remove(0);
        assert_eq!((&object["asset"], &object["amount"]), (&Value::Null, &Value::Null));
        assert_eq!(
            (&object["asset_id"], &object["amount_units"]),
            (&json!(3), &json!(25_050_000_000_u64))
        );
    }

    /// Goal: `--from` reads the assets at the front of the log, and nothing else there. Method: the
    /// first segment is damaged after the asset, and a record of a later segment is wanted.
    #[test]
    fn symbols_are_known_from_the_front_of_a_log() {
        let mut sample = Sample::new();
        while sample.log.writer.appended() < 300 {
            sample.append(&order(Op::Deposit, 1001, Decision::Success));
        }
        sample.store(4264 + 50, &[0xff]);
        let words = ["dump", &sample.data(), "--from", "300"];
        let (out, notes) = ubscore_wal(&words).succeeded();
        assert!(out.contains(" USDT ") && out.lines().count() == 1, "{out}");
        assert_eq!(notes, "last=300 ending=clean\n");
    }

    /// Goal: `--follow` shows later records, across segments. Method: the pause appends more than a
    /// segment holds, and at last hangs up.
    #[test]
    fn follow_shows_what_is_appended_later() {
        let mut sample = Sample::new();
        let data = sample.data();
        let words = ["dump", &data, "--from", "5", "--format", "json", "--follow"];
        let done = ubscore_wal_following(&words, &mut || {
            if sample.log.writer.appended() > 300 {
                return Err(io::ErrorKind::BrokenPipe.into());
            }
            for _ in 0..100 {
                sample.append(&order(Op::Refund, 1001, Decision::Success));
            }
            Ok(())
        });
        let (out, notes) = done.succeeded();
        let objects = objects(&out);
        let sequences: Vec<u64> =
            objects.iter().filter_map(|object| object["sequence"].as_u64()).collect();
        assert_eq!(sequences, (5..=305).collect::<Vec<u64>>());
        assert!(objects.last().expect("records")["segment"].as_u64() > Some(1));
        assert_eq!(notes, "");
    }

    /// Goal: `--follow` continues when old segments are removed, and when a server dies and its
    /// successor cuts a torn tail. Method: each pause does one of these.
    #[test]
    fn follow_goes_on_over_removals_and_restarts() {
        let mut sample = Some(Sample::new());
        let data = sample.as_ref().expect("just made").data();
        let words = ["dump", &data, "--follow", "--format", "json"];
        let mut pauses = 0;
        let done = ubscore_wal_following(&words, &mut || {
            pauses += 1;
            let mut log = sample.take().expect("put back");
            match pauses {
                1 => (0..200).for_each(|_| log.append(&Entry::Mark)),
                2 | 3 => (0..200).for_each(|_| {
                    log.append(&order(Op::Refund, 1001, Decision::Success));
                }),
                4 => {
                    let newest = log.log.durable.durable();
                    log.tear();
                    log = log.restarted();
                    assert_eq!(log.log.durable.durable(), newest, "only the torn tail is cut");
                }
                5 => assert!(log.log.preparer.remove_before(350).expect("removed") > 0),
                6 => (0..10).for_each(|_| log.append(&Entry::Mark)),
                _ => return Err(io::ErrorKind::BrokenPipe.into()),
            }
            sample = Some(log);
            Ok(())
        });
        let (out, _) = done.succeeded();
        let seen = objects(&out);
        let sequences: Vec<_> = seen.iter().filter_map(|o| o["sequence"].as_u64()).collect();
        assert_eq!(sequences, (1..=615).collect::<Vec<u64>>());
    }

    #[test]
    fn follow_ends_by_itself_at_the_given_record() {
        let sample = Sample::new();
        let data = sample.data();
        for words in [["--to", "5"], ["--limit", "5"]] {
            let words = [&["dump", &data, "--follow"], &words[..]].concat();
            let (out, _) = ubscore_wal(&words).succeeded();
            assert_eq!(out.lines().count(), 5);
        }
    }

    /// Goal: later versions of the program print an old log unchanged. Method: a segment with fixed
    /// bytes, checked by their CRC. It has a record of every kind, of an unknown kind, of each
    /// direction and with every sort of amount. Compare the text and the JSON byte for byte.
    #[test]
    fn a_log_of_fixed_bytes_is_printed_in_fixed_words() {
        let mut sample = Sample::new();
        let large = |asset| Order {
            op: Op::Refund,
            req_id: u128::MAX >> 3,
            cid: Text::new("\u{1F980}\"\\").expect("short"),
            user: i64::MAX.cast_unsigned(),
            asset,
            amount: u64::MAX,
            direction: Direction::SpotToFunding,
            order_number: (1 << 53) + 1,
        };
        let decision = Decision::Refused(Code::AccountFrozen);
        for (asset, balance_after) in [(3, u128::MAX), (4, 0)] {
            sample.append(&Entry::Order {
                order: large(asset),
                decision,
                balance_after,
                imposed: false,
            });
        }
        let symbol = Text::new("\u{1b}[31mé").expect("short");
        sample.append(&Entry::Asset { asset: u32::MAX, precision: 0, symbol });
        let order = Order { amount: 1, ..large(u32::MAX) };
        let decision = Decision::Success;
        sample.append(&Entry::Order { order, decision, balance_after: 1 << 53, imposed: false });
        sample.append(&Entry::Watermark { order_number: u64::MAX });
        sample.append(&Entry::Digest { digest: 0xfe });
        sample.append_bytes(9, &[0xde, 0xad]);
        let bytes = std::fs::read(sample.segment()).expect("the segment");
        assert_eq!(crc32fast::hash(&bytes), 0x0a4a_cc4d, "the log's own bytes");
        let (text, _) = ubscore_wal(&["dump", &sample.data()]).succeeded();
        assert_eq!(text, include_str!("golden.txt"));
        let (json, _) = ubscore_wal(&["dump", &sample.data(), "--format", "json"]).succeeded();
        assert_eq!(json, include_str!("golden.jsonl"));
        let lines: Vec<_> = objects(&json);
        assert_eq!(lines.len(), text.lines().count(), "every line is an object");
    }

    #[test]
    fn colors_change_nothing_but_colors() {
        let sample = Sample::new();
        let (plain, _) = ubscore_wal(&["dump", &sample.data()]).succeeded();
        assert!(!plain.contains('\x1b'), "{plain}");
        let (colored, _) = ubscore_wal_in(Ink::COLORED, &["dump", &sample.data()]).succeeded();
        assert!(colored.contains("\x1b[32mSUCCESS\x1b[0m\n"), "{colored}");
        assert!(colored.contains("\x1b[33mINSUFFICIENT_BALANCE\x1b[0m\n"), "{colored}");
        assert_eq!(anstream::adapter::strip_str(&colored).to_string(), plain);
        let words = ["dump", &sample.data(), "--format", "json"];
        let (json, _) = ubscore_wal(&words).succeeded();
        assert_eq!(ubscore_wal_in(Ink::COLORED, &words).succeeded().0, json);
    }
}
