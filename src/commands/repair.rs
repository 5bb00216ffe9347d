//! `ubscore repair`: what the log proves of transfers that PostgreSQL has lost, said or carried out.

use std::io::Write;
use std::process::ExitCode;

use anyhow::Context;
use wal::{Directory, Medium};

use super::verify::{EXIT_CANNOT_RUN, EXIT_MISMATCH, Target, with_stores};
use crate::audit::repair::{Plan, plan};
use crate::audit::verify::Stores;
use crate::cli::RepairArgs;
use crate::postgres::mend::{Mended, carry_out};

/// Says what is to be done, or does it; one line each.
pub fn run(args: &RepairArgs, out: &mut impl Write) -> ExitCode {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let left = runtime.context("start").and_then(|runtime| {
        let work = async |stores: Stores, target: &Target| repair(args, stores, target, out).await;
        runtime.block_on(with_stores(&args.stores, work))
    });
    match left {
        Ok(0) => ExitCode::SUCCESS,
        Ok(_) => ExitCode::from(EXIT_MISMATCH),
        Err(error) => {
            writeln!(std::io::stderr(), "error: {error:#}").ok();
            ExitCode::from(EXIT_CANNOT_RUN)
        }
    }
}

/// Returns how much is left.
async fn repair(
    args: &RepairArgs,
    stores: Stores,
    target: &Target,
    out: &mut impl Write,
) -> anyhow::Result<usize> {
    let reason = args.reason.as_deref();
    // Nobody may write to the log, or go on from what PostgreSQL had, in the meantime.
    let _lock = match reason {
        None => None,
        Some(_) => Some(Directory::at(&stores.log).lock().context("lock the log")?),
    };
    let catalog = stores.catalog.clone();
    let Plan { mendings, left, incarnation } =
        plan(stores).await.context("compare the two stores")?;
    let (mut mended_count, mut open) = (mendings.len(), left.len());
    let mut say = |word: &str, what: &dyn std::fmt::Display| writeln!(out, "{word:<8} {what}");
    match reason {
        None => {
            for mending in &mendings {
                say("would", mending)?;
            }
        }
        Some(reason) => {
            let (Target { config, limits }, catalog) = (target, catalog.load());
            let done = carry_out(config, limits, &catalog, incarnation, &mendings, reason);
            for (mending, mended) in mendings.iter().zip(done.await.context("write PostgreSQL")?) {
                match mended {
                    Mended::Done => say("done", mending)?,
                    Mended::Short => {
                        (mended_count, open) = (mended_count - 1, open + 1);
                        say("left", &format_args!("{mending}: Funding has not got so much"))?;
                    }
                    Mended::Occupied => {
                        (mended_count, open) = (mended_count - 1, open + 1);
                        let why = "another transfer has its cid, or it has moved";
                        say("left", &format_args!("{mending}: {why}"))?;
                    }
                }
            }
        }
    }
    for (mismatch, why) in &left {
        say("left", &format_args!("{mismatch}: {why}"))?;
    }
    let word = if reason.is_some() { "repaired" } else { "planned" };
    writeln!(out, "{word} transfers={mended_count} left={open}")?;
    Ok(open)
}
