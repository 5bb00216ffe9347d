//! `ubscore wal verify`: reads and decodes the whole log, and prints the verdict in one line.

use std::io::Write;

use serde::Serialize;
use wal::{Ending, Listing};

use super::error::Error;
use super::finding::{Damage, DamageObject, EndingText, TornObject, ending_kind, ending_name};
use super::ink::{BAD, GOOD, Ink};
use super::integer::Integer;
use super::log::Log;
use super::read::{Read, ReadObject};
use crate::cli::WalVerifyArgs;
use crate::commands::output::json;
use crate::format::Format;

/// Checks the whole log, and prints the verdict.
pub(super) fn verify(args: &WalVerifyArgs, out: &mut impl Write, ink: Ink) -> Result<(), Error> {
    let log = Log::find(&args.path)?;
    let mut read = Read::default();
    let checked = log.read_all(&mut read, |_, _| {});
    let found = match &checked {
        Ok(ending) => Ok(ending),
        Err(error) => match error.damage() {
            Some(damage) => Err(damage),
            // Another error proves nothing about the log.
            None => return checked.map(drop),
        },
    };
    let written = match args.format {
        Format::Text => {
            let verdict = if found.is_ok() { "ok" } else { "damaged" };
            let style = ink.of(if found.is_ok() { GOOD } else { BAD });
            let found = found_text(&found);
            let (read, ignored) = (read.text(), ignored_text(&log.listing));
            writeln!(out, "{style}{verdict}{style:#} {read}{ignored}{found}")
        }
        Format::Json => {
            let verdict = if found.is_ok() { "ok" } else { "damaged" };
            let found = FoundObject::of(&found);
            let read = read.object();
            let Listing { spares, unknown, .. } = log.listing;
            let ignored = IgnoredObject { spares: spares.into(), unknown: unknown.into() };
            writeln!(out, "{}", json(&VerdictObject { verdict, read, found, ignored }))
        }
    };
    // Damage first: the exit code must report it even if the verdict cannot be printed.
    checked?;
    Ok(written?)
}

fn ignored_text(listing: &Listing) -> String {
    let mut text = String::new();
    for (name, count) in [("spares", listing.spares), ("unknown", listing.unknown)] {
        if count > 0 {
            text.push_str(&format!(" {name}={count}"));
        }
    }
    text
}

/// The end or the damage as text, with the blank before it.
pub(super) fn found_text(found: &Result<&Ending, Damage<'_>>) -> String {
    match found {
        Ok(ending) => format!(" {}", EndingText(ending)),
        Err(Damage { kind, reason, .. }) => format!(" kind={kind}: {reason}"),
    }
}

#[derive(Serialize)]
struct VerdictObject<'a> {
    verdict: &'static str,
    #[serde(flatten)]
    read: ReadObject,
    #[serde(flatten)]
    found: FoundObject<'a>,
    ignored: IgnoredObject,
}

/// The end or the damage, in JSON.
#[derive(Serialize)]
pub(super) struct FoundObject<'a> {
    kind: &'static str,
    ending: Option<&'static str>,
    torn: Option<TornObject<'a>>,
    damage: Option<DamageObject<'a>>,
}

impl<'a> FoundObject<'a> {
    pub(super) fn of(found: &'a Result<&'a Ending, Damage<'a>>) -> FoundObject<'a> {
        match found {
            Ok(ending) => FoundObject {
                kind: ending_kind(ending),
                ending: Some(ending_name(ending)),
                torn: TornObject::of(ending),
                damage: None,
            },
            Err(damage) => FoundObject {
                kind: damage.kind,
                ending: None,
                torn: None,
                damage: Some(DamageObject::of(damage)),
            },
        }
    }
}

/// Files in the directory that are not part of the log.
#[derive(Serialize)]
struct IgnoredObject {
    spares: Integer,
    unknown: Integer,
}

#[cfg(test)]
mod tests {
    use std::fs;

    use engine::entry::Entry;

    use crate::commands::wal::tests::{END, Sample, objects, ubscore_wal};
    use crate::data_dir::LOG_DIRECTORY;

    /// Goal: cut tails and unread files are reported and are not damage. Method: a torn tail, a
    /// start, a sealed segment that loses zeros, and strange files.
    #[test]
    fn what_does_not_count_is_counted() {
        let sample = Sample::new();
        sample.store(END + 8, &[0xff; 17]);
        let mut sample = sample.restarted();
        sample.append(&Entry::Mark);
        for name in ["spare-00000000000000ff.tmp", "notes", "segment-1.bak"] {
            fs::write(sample.path(&format!("{LOG_DIRECTORY}/{name}")), "").expect("written");
        }
        let segment = fs::OpenOptions::new().write(true).open(sample.segment()).expect("there");
        segment.set_len(8192).expect("cut");
        let (out, _) = ubscore_wal(&["verify", &sample.data()]).succeeded();
        let want = "ok records=6 first=1 last=6 segments=2 cut_tails=1 short_segments=1 spares=1 \
                    unknown=2 ending=clean\n";
        assert_eq!(out, want);
        let (out, _) = ubscore_wal(&["verify", &sample.data(), "--format", "json"]).succeeded();
        let object = objects(&out).remove(0);
        assert_eq!(object["cut"], serde_json::json!({"tails": 1, "bytes": 32, "records": 0}));
        assert_eq!(object["ignored"], serde_json::json!({"spares": 1, "unknown": 2}));
        assert_eq!((&object["kind"], &object["segments"]), (&"clean".into(), &2.into()));
    }
}
