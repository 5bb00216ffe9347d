//! `ubscore repair`: what the log proves of transfers that PostgreSQL has lost, said or carried out.

use std::fmt::Display;
use std::io::Write;
use std::process::ExitCode;

use anyhow::Context;

use super::verify::{EXIT_CANNOT_RUN, EXIT_MISMATCH, Target, with_stores};
use crate::audit::repair::{Plan, plan};
use crate::audit::verify::Stores;
use crate::cli::RepairArgs;
use crate::engine::Closed;
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
    // Nobody may write to the log, or go on from what PostgreSQL had, in the meantime; and what it ends with is to be on the
    // disk before anything is built upon it.
    let closed = match reason {
        None => None,
        Some(_) => {
            let open = || Closed::open(target.engine.clone());
            Some(tokio::task::block_in_place(open).context("open the log")?)
        }
    };
    let again = stores.again();
    let catalog = stores.catalog.clone();
    let Plan { mendings, mut left, behind, incarnation } =
        plan(stores).await.context("compare the two stores")?;
    let mut say = |word: &str, what: &dyn Display| writeln!(out, "{word:<8} {what}");
    let (mut count, mut count_left) = (mendings.len(), 0);
    let log = closed.as_ref().and_then(Closed::identity);
    let (word, verb) = if reason.is_some() { ("repaired", "done") } else { ("planned", "would") };
    if let Some(behind) = &behind {
        say(verb, &format_args!("begin anew behind incarnation {incarnation}: {behind}"))?;
    }
    if let (Some(reason), Some(log)) = (reason, log)
        && (behind.is_some() || !mendings.is_empty())
    {
        let (Target { config, limits, .. }, catalog) = (target, catalog.load());
        let done = carry_out(config, limits, &catalog, log, incarnation, &mendings, reason).await;
        for (mending, mended) in mendings.iter().zip(done.context("write PostgreSQL")?) {
            match mended {
                Mended::Done => say(verb, mending)?,
                Mended::Short | Mended::Occupied => count -= 1,
            }
        }
        let after = plan(again).await.context("compare the two stores again")?;
        left = after.left;
        for mending in after.mendings {
            let why = "Funding has not got so much, or another transfer has its cid";
            say("left", &format_args!("{mending}: {why}"))?;
            count_left += 1;
        }
    } else {
        for mending in &mendings {
            say(verb, mending)?;
        }
    }
    for (mismatch, why) in &left {
        say("left", &format_args!("{mismatch}: {why}"))?;
    }
    let open = left.len() + count_left;
    writeln!(out, "{word} transfers={count} left={open}")?;
    drop(closed);
    Ok(open)
}
