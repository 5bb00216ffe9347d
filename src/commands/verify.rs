//! `ubscore verify`: compares the log, its newest snapshot and PostgreSQL, with or without a
//! running service. It changes nothing.

use std::io::Write;
use std::sync::Arc;

use anyhow::Context;
use serde::Serialize;

use super::configured::load_config;
use super::output::json;
use crate::audit::verify::{Stores, Verdict, verify};
use crate::cli::VerifyArgs;
use crate::exit::Exit;
use crate::format::Format;
use crate::postgres::recover::RECOVER_NEXT;
use crate::stores::{Target, with_stores};
use domain::account::UserId;
use domain::asset::Catalog;

/// Compares both stores, and prints each mismatch as one line.
///
/// # Errors
/// The comparison cannot run.
pub fn run(args: &VerifyArgs, out: &mut impl Write) -> anyhow::Result<Exit> {
    let config = load_config(&args.stores)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let work = async |_: Stores, target: &Target| compare(target).await;
    let (verdict, catalog) = runtime.context("start")?.block_on(with_stores(config, work))?;
    Ok(report(verdict, &catalog, args.format, out))
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
    RecoverNeeded {
        what: &'a str,
        next: &'static str,
    },
    End {
        verdict: &'static str,
        mismatches: usize,
        log: u64,
        outcomes: usize,
        open: usize,
    },
}

/// Prints a verdict and returns its exit code.
pub(super) fn report(
    verdict: Verdict,
    catalog: &Catalog,
    format: Format,
    out: &mut impl Write,
) -> Exit {
    let Verdict { sequence, outcomes, open, mut mismatches, behind, recover_needed, .. } = verdict;
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
        // If stdout is closed, the exit code remains.
        writeln!(out, "{line}").ok();
    }
    for what in &recover_needed {
        let line = match format {
            Format::Text => format!("RECOVER_NEEDED {what}; next: {RECOVER_NEXT}"),
            Format::Json => json(&Object::RecoverNeeded { what, next: RECOVER_NEXT }),
        };
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
    if mismatches.is_empty() { Exit::Done } else { Exit::Failed }
}

/// A verdict, and the assets to name in it.
pub(super) type Compared = (Verdict, Arc<Catalog>);

/// Compares both stores.
pub(super) async fn compare(target: &Target) -> anyhow::Result<Compared> {
    let stores = target.stores().await?;
    let catalog = Arc::clone(&stores.catalog);
    let verdict = verify(stores).await.context("compare the two stores")?;
    Ok((verdict, catalog.load_full()))
}
