//! `ubscore verify`: the log, its newest snapshot and PostgreSQL joined, with or without a running service. Changes
//! nothing.

use std::io::Write;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context;
use serde::Serialize;

use super::complain;
use super::wal::json;
use crate::audit::verify::{Stores, Verdict, verify};
use crate::cli::VerifyArgs;
use crate::config::format::Format;
use crate::stores::{Target, with_stores};
use domain::account::UserId;
use domain::asset::Catalog;

/// Something does not add up.
pub(super) const EXIT_MISMATCH: u8 = 1;
/// Nothing is known.
pub(super) const EXIT_CANNOT_RUN: u8 = 2;

/// Compares, and prints what does not add up, one a line.
pub fn run(args: &VerifyArgs, out: &mut impl Write) -> ExitCode {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let verdict = runtime.context("start").and_then(|runtime| {
        let work = async |_: Stores, target: &Target| compare(target).await;
        runtime.block_on(with_stores(&args.stores, work))
    });
    match verdict {
        Ok((verdict, catalog)) => tell(verdict, &catalog, args.format, out),
        Err(error) => {
            complain(&error, args.format, None);
            ExitCode::from(EXIT_CANNOT_RUN)
        }
    }
}

/// One line of JSON.
#[derive(Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
enum Object<'a> {
    Mismatch {
        user_id: Option<u64>,
        asset: Option<&'a str>,
        difference: &'a str,
        req_id: Option<String>,
        what: &'a str,
    },
    End {
        verdict: &'static str,
        mismatches: usize,
        log: u64,
        outcomes: usize,
        open: usize,
    },
}

/// Prints what was found, and returns what it means.
pub(super) fn tell(
    verdict: Verdict,
    catalog: &Catalog,
    format: Format,
    out: &mut impl Write,
) -> ExitCode {
    let Verdict { sequence, outcomes, open, mut mismatches, behind, .. } = verdict;
    mismatches.extend(behind);
    for mismatch in &mismatches {
        let line = match format {
            Format::Text => catalog.name_assets(&mismatch.to_string()),
            Format::Json => json(&Object::Mismatch {
                user_id: mismatch.user.map(UserId::number),
                asset: mismatch.asset.and_then(|id| Some(&*catalog.by_id(id)?.symbol)),
                difference: &mismatch.difference(),
                req_id: mismatch.req_id.map(|req_id| req_id.to_string()),
                what: &mismatch.what(),
            }),
        };
        // If nobody reads it, the exit code still tells that something is wrong.
        writeln!(out, "{line}").ok();
    }
    let verdict = if mismatches.is_empty() { "ok" } else { "mismatch" };
    let found = mismatches.len();
    let line = match format {
        Format::Text => {
            format!("{verdict} mismatches={found} log={sequence} outcomes={outcomes} open={open}")
        }
        Format::Json => {
            json(&Object::End { verdict, mismatches: found, log: sequence, outcomes, open })
        }
    };
    writeln!(out, "{line}").ok();
    if mismatches.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(EXIT_MISMATCH) }
}

/// What was found, and the assets to name it.
pub(super) type Compared = (Verdict, Arc<Catalog>);

/// Compares both stores.
pub(super) async fn compare(target: &Target) -> anyhow::Result<Compared> {
    let stores = target.stores().await?;
    let catalog = Arc::clone(&stores.catalog);
    let verdict = verify(stores).await.context("compare the two stores")?;
    Ok((verdict, catalog.load_full()))
}
